//! The daemon itself: whether it lives and is ready, its metrics, how its end goes, operations.

use std::time::Duration;

use actix_web::http::{Method, StatusCode};
use actix_web::{HttpRequest, HttpResponse, web};
use futures::SinkExt;

use super::app::{Api, resource};
use super::body;
use super::openapi;
use super::operations::Reply;
use super::problem::Refusal;
use super::query::{Query, segment};
use super::types::{Health, Phase, Report, ShutdownRequest};
use crate::config::parse_duration;
use crate::daemon::signals::Signal;
use crate::model::{DeviceState, ErrorKind};
use crate::telemetry;

/// Bounds of a shutdown that may be asked for.
const SHUTDOWN: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(3600);

pub(super) fn calls(app: &mut web::ServiceConfig) {
    app.service(resource("/healthz", [(Method::GET, web::to(ready))]))
        .service(resource("/healthz/ready", [(Method::GET, web::to(ready))]))
        .service(resource("/healthz/live", [(Method::GET, web::to(live))]))
        .service(resource("/metrics", [(Method::GET, web::to(metrics))]))
        .service(resource("/openapi.json", [(Method::GET, web::to(description))]))
        .service(resource("/api/v1/report", [(Method::GET, web::to(report))]))
        .service(resource("/api/v1/shutdown", [(Method::POST, web::to(shutdown))]))
        .service(resource("/api/v1/operations", [(Method::GET, web::to(operations))]))
        .service(resource("/api/v1/operations/{id}", [(Method::GET, web::to(operation))]));
}

fn health(api: &Api) -> Health {
    Health {
        phase: api.state.borrow().phase,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
    }
}

async fn live(api: web::Data<Api>, request: HttpRequest) -> Result<HttpResponse, Refusal> {
    Query::of(&request, &[], &[])?;
    Ok(HttpResponse::Ok().json(health(&api)))
}

async fn ready(api: web::Data<Api>, request: HttpRequest) -> Result<HttpResponse, Refusal> {
    Query::of(&request, &[], &[])?;
    let health = health(&api);
    match health.phase {
        Phase::Serving => Ok(HttpResponse::Ok().json(health)),
        Phase::Starting => {
            let text = "the config's devices are not all up";
            let mut problem = Refusal::of_kind(ErrorKind::Stopping, text);
            problem.kind = "starting".to_owned();
            Err(problem)
        }
        Phase::Stopping | Phase::Stopped => {
            Err(Refusal::of_kind(ErrorKind::Stopping, "everything is taken down"))
        }
    }
}

async fn metrics(api: web::Data<Api>, request: HttpRequest) -> Result<HttpResponse, Refusal> {
    Query::of(&request, &[], &[])?;
    let snapshot = api.ask(api.handle.snapshot()).await?;
    let text = telemetry::metrics::render(snapshot, api.metrics.per_device_max);
    Ok(HttpResponse::Ok().content_type(telemetry::metrics::CONTENT_TYPE).body(text))
}

async fn description(request: HttpRequest) -> Result<HttpResponse, Refusal> {
    Query::of(&request, &[], &[])?;
    Ok(HttpResponse::Ok().content_type("application/json").body(&**openapi::TEXT))
}

async fn report(api: web::Data<Api>, request: HttpRequest) -> Result<HttpResponse, Refusal> {
    Query::of(&request, &[], &[])?;
    let state = api.state.borrow().clone();
    // At the end the supervisor may have gone before its report is read.
    let devices = api.ask(api.handle.list()).await.ok();
    let here = |state: DeviceState| !matches!(state, DeviceState::Gone | DeviceState::Failed);
    Ok(HttpResponse::Ok().json(Report {
        phase: state.phase,
        remaining: devices.map(|all| all.iter().filter(|device| here(device.state)).count()),
        report: state.report.and_then(|report| serde_json::to_value(&*report).ok()),
    }))
}

async fn shutdown(
    api: web::Data<Api>,
    request: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, Refusal> {
    let wait = Query::of(&request, &["wait"], &[])?.wait(&request)?;
    let asked = body::json::<ShutdownRequest>(&request, payload).await?.unwrap_or_default();
    let within = asked.within.as_deref().map(parse_duration).transpose();
    let within = within.map_err(|message| Refusal::key("within", message))?;
    if within.is_some_and(|within| !SHUTDOWN.contains(&within)) {
        return Err(Refusal::key("within", "is out of range: 1s to 1h"));
    }
    let (mut orders, mut state) = (api.orders.clone(), api.state.clone());
    let work = async move {
        let gone = || Refusal::of_kind(ErrorKind::Stopping, "the daemon has ended");
        orders.send(Signal::Asked { within }).await.map_err(|_| gone())?;
        let ended = state.wait_for(|state| state.phase == Phase::Stopped).await;
        let report = ended.map_err(|_| gone())?.report.clone();
        let missing = || Refusal::of_kind(ErrorKind::Internal, "the supervisor gave no report");
        Ok(Reply::new(StatusCode::OK, &*report.ok_or_else(missing)?))
    };
    api.operations.run(("shutdown", None), wait, work).await
}

async fn operations(api: web::Data<Api>, request: HttpRequest) -> Result<HttpResponse, Refusal> {
    Query::of(&request, &[], &[])?;
    Ok(HttpResponse::Ok().json(api.operations.list()))
}

async fn operation(api: web::Data<Api>, request: HttpRequest) -> Result<HttpResponse, Refusal> {
    let query = Query::of(&request, &["wait"], &[])?;
    let wait = match query.get("wait") {
        Some(_) => query.wait(&request)?,
        None => Duration::ZERO,
    };
    Ok(HttpResponse::Ok().json(api.operations.watch(segment(&request, "id"), wait).await?))
}
