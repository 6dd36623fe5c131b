//! The application: which call goes where, who may ask, what is logged, and a problem document for
//! whatever is refused before it reaches a handler.

use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::body::{self, BodySize, BoxBody, MessageBody};
use actix_web::dev::{ServiceFactory, ServiceRequest, ServiceResponse};
use actix_web::http::header::ALLOW;
use actix_web::http::{Method, StatusCode};
use actix_web::middleware::{Next, from_fn};
use actix_web::{App, Error as WebError, HttpRequest, HttpResponse, ResponseError, web};
use futures::channel::mpsc;
use slog::Logger;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::operations::Operations;
use super::peer::Peer;
use super::problem::Refusal;
use super::server::State;
use super::{changes, devices, events, groups, life, reload};
use crate::Handle;
use crate::config::MetricsConfig;
use crate::daemon::reload::Reloader;
use crate::daemon::signals::Signal;
use crate::model::{Error, ErrorKind};

/// How long a question to the supervisor may take.
const ANSWER: Duration = Duration::from_secs(10);

/// What every call has at hand.
pub(super) struct Api {
    pub(super) handle: Handle,
    pub(super) orders: mpsc::Sender<Signal>,
    pub(super) reloader: Reloader,
    pub(super) state: watch::Receiver<State>,
    pub(super) operations: Operations,
    /// `[metrics]`.
    pub(super) metrics: MetricsConfig,
    /// Places for those who watch events.
    pub(super) watchers: Arc<Semaphore>,
    pub(super) log: Logger,
}

impl Api {
    /// Asks the supervisor something that it answers at once.
    pub(super) async fn ask<T>(
        &self,
        question: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Refusal> {
        match timeout(ANSWER, question).await {
            Ok(answer) => Ok(answer?),
            Err(_) => {
                let text = format!("the supervisor did not answer within {} s", ANSWER.as_secs());
                Err(Refusal::of_kind(ErrorKind::Timeout, text))
            }
        }
    }
}

/// The application with all its calls.
pub(super) fn application(
    api: Api,
) -> App<
    impl ServiceFactory<
        ServiceRequest,
        Config = (),
        Response = ServiceResponse<impl MessageBody>,
        Error = WebError,
        InitError = (),
    >,
> {
    App::new()
        .app_data(web::Data::new(api))
        .wrap(from_fn(head))
        .wrap(from_fn(admit))
        .configure(life::calls)
        .configure(devices::calls)
        .configure(changes::calls)
        .configure(groups::calls)
        .configure(events::calls)
        .configure(reload::calls)
        .default_service(web::to(no_such_path))
}

/// A path and its calls; other methods are refused with those that there are.
pub(super) fn resource<const N: usize>(
    path: &str,
    calls: [(Method, actix_web::Route); N],
) -> actix_web::Resource {
    let mut allowed: Vec<String> = Vec::new();
    let mut resource = web::resource(path);
    for (method, route) in calls {
        allowed.push(method.to_string());
        if method == Method::GET {
            allowed.push(Method::HEAD.to_string());
        }
        resource = resource.route(route.method(method));
    }
    let allowed = allowed.join(", ");
    resource.default_service(web::to(move |request: HttpRequest| {
        let text = format!("{} is not for {}: use {allowed}", request.method(), request.path());
        let problem = Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method", text);
        let mut response = problem.error_response();
        if let Ok(allowed) = allowed.parse() {
            response.headers_mut().insert(ALLOW, allowed);
        }
        async { response }
    }))
}

async fn no_such_path(request: HttpRequest) -> Result<HttpResponse, Refusal> {
    let text = format!("there is nothing at {:?}", request.path());
    Err(Refusal::of_kind(ErrorKind::NotFound, text).remedy("/openapi.json has every call"))
}

/// HEAD is GET without the content. The connection remembers what was asked and sends none; an
/// answer whose end nobody knows, as of events, is not even begun.
async fn head(
    mut request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, WebError> {
    let is_head = request.method() == Method::HEAD;
    if is_head {
        request.head_mut().method = Method::GET;
    }
    let response = next.call(request).await?;
    Ok(match response.response().body().size() {
        BodySize::Stream if is_head => response.map_body(|_, _| BoxBody::new(body::None::new())),
        _ => response.map_into_boxed_body(),
    })
}

/// Lets in who is allowed, and logs what was asked and answered.
async fn admit(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, WebError> {
    let began = Instant::now();
    let (method, path) = (request.method().clone(), request.path().to_owned());
    let peer = request.conn_data::<Peer>().copied();
    let log = request.app_data::<web::Data<Api>>().map(|api| api.log.clone());
    let refused = peer.filter(|peer| !peer.allowed);
    let response = match refused {
        Some(peer) => {
            let text = format!("user {} may not use this daemon", peer.uid);
            let problem = Refusal::new(StatusCode::FORBIDDEN, "forbidden", text)
                .remedy("add the user to allow of [api]");
            let (request, _) = request.into_parts();
            let response = problem.error_response();
            ServiceResponse::new(request, response).map_into_left_body()
        }
        None => next.call(request).await?.map_into_right_body(),
    };
    if let Some(log) = log {
        let status = response.status().as_u16();
        let took = format!("{:.3}", began.elapsed().as_secs_f64());
        let (uid, pid) = (peer.map(|p| p.uid), peer.and_then(|p| p.pid));
        if refused.is_some() {
            slog::warn!(log, "{method} {path}"; "status" => status, "uid" => uid, "pid" => pid);
        } else if method.is_safe() {
            slog::debug!(log, "{method} {path}"; "status" => status, "took_s" => took, "uid" => uid, "pid" => pid);
        } else {
            slog::info!(log, "{method} {path}"; "status" => status, "took_s" => took, "uid" => uid, "pid" => pid);
        }
    }
    Ok(response)
}
