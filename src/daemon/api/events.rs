//! Every change of state as server-sent events, from where the client was.

use std::convert::Infallible;
use std::time::Duration;

use actix_web::http::Method;
use actix_web::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use actix_web::web::Bytes;
use actix_web::{HttpRequest, HttpResponse, web};
use futures::stream::{self, StreamExt};
use serde::Serialize;
use tokio::time::timeout;

use super::app::{Api, resource};
use super::problem::Refusal;
use super::query::Query;
use super::types::{Event, Lost};
use crate::model::{ErrorKind, StreamEvent};

/// How often a stream without news says that it is alive; also how long a client that has gone
/// away may go unnoticed.
const HEARTBEAT: Duration = Duration::from_secs(10);

pub(super) fn calls(app: &mut web::ServiceConfig) {
    app.service(resource("/api/v1/events", [(Method::GET, web::to(events))]));
}

async fn events(api: web::Data<Api>, request: HttpRequest) -> Result<HttpResponse, Refusal> {
    let from = from(&request)?;
    let place = api.watchers.clone().try_acquire_owned().map_err(|_| {
        let text = "as many clients watch events as may";
        Refusal::of_kind(ErrorKind::Overloaded, text).remedy("raise connections of [api]")
    })?;
    // The first bytes let the client know that it watches from here on.
    let hello = stream::once(async { Bytes::from_static(b": ublkd events\n\n") });
    let changes = stream::unfold((api.handle.events(from), place), |(mut changes, place)| async {
        let text = match timeout(HEARTBEAT, changes.next()).await {
            Ok(Some(event)) => written(&event),
            Ok(None) => return None,
            Err(_) => ": heartbeat\n\n".to_owned(),
        };
        Some((Bytes::from(text), (changes, place)))
    });
    Ok(HttpResponse::Ok()
        .insert_header((CONTENT_TYPE, "text/event-stream"))
        .insert_header((CACHE_CONTROL, "no-store"))
        .streaming(hello.chain(changes).map(Ok::<_, Infallible>)))
}

/// The number of the first event that the client wants: the one after `Last-Event-ID`, or `from`.
fn from(request: &HttpRequest) -> Result<Option<u64>, Refusal> {
    let number = |key: &str, text: &str| {
        let wrong = || Refusal::key(key, format!("{text:?} is no number of an event"));
        text.parse::<u64>().map_err(|_| wrong())
    };
    let query = Query::of(request, &["from"], &[])?;
    let last = request.headers().get("last-event-id").map(|last| last.to_str().unwrap_or("?"));
    match (query.get("from"), last) {
        (Some(from), _) => number("from", from).map(Some),
        (None, Some(last)) => Ok(Some(number("Last-Event-ID", last)?.saturating_add(1))),
        (None, None) => Ok(None),
    }
}

fn written(event: &StreamEvent) -> String {
    match event {
        StreamEvent::Change(id, change) => {
            let data = Event {
                id: *id,
                at: humantime::format_rfc3339_micros(change.at).to_string(),
                device: change.device.clone(),
                number: change.id.map(|id| id.0),
                group: change.group.clone(),
                from: change.from,
                to: change.to,
                error: change.error.clone(),
            };
            message(*id, "state", &data)
        }
        StreamEvent::Lost { from, to } => message(*to, "lost", &Lost { from: *from, to: *to }),
    }
}

fn message(id: u64, event: &str, data: &impl Serialize) -> String {
    // JSON has no line ends in it, and these types nothing that it cannot hold.
    let data = serde_json::to_string(data).unwrap_or_default();
    format!("id: {id}\nevent: {event}\ndata: {data}\n\n")
}
