//! Changes of devices in use: resize, quiesce, resume, read-only. Each answers with the device as
//! it is then.

use std::time::Duration;

use actix_web::http::Method;
use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::Value;

use super::app::{Api, resource};
use super::body;
use super::operations::Reply;
use super::problem::Refusal;
use super::query::{Query, device};
use super::types::{QuiesceRequest, ReadOnlyRequest, ResizeRequest, ResumeRequest};
use crate::Handle;
use crate::config::{parse_duration, parse_size};
use crate::model::{DeviceName, Error};

/// How long I/O in flight has to end when a device is quiesced, unless the client says.
const USUAL_QUIESCE: Duration = Duration::from_secs(1);

pub(super) fn calls(app: &mut web::ServiceConfig) {
    app.service(resource("/api/v1/devices/{name}/resize", [(Method::POST, web::to(resize))]))
        .service(resource("/api/v1/devices/{name}/quiesce", [(Method::POST, web::to(quiesce))]))
        .service(resource("/api/v1/devices/{name}/resume", [(Method::POST, web::to(resume))]))
        .service(resource(
            "/api/v1/devices/{name}/read-only",
            [(Method::POST, web::to(read_only))],
        ));
}

async fn resize(
    api: web::Data<Api>,
    request: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, Refusal> {
    let asked: ResizeRequest = body::required(&request, payload).await?;
    let size = match &asked.size {
        Value::String(text) => parse_size(text),
        Value::Number(number) => number.as_u64().ok_or_else(|| format!("{number} is no size")),
        other => Err(format!("expected a size, as 4096 or \"64MiB\", found {other}")),
    };
    let size = size.map_err(|message| Refusal::key("size", message))?;
    let shrink = asked.shrink;
    change(&api, &request, "resize", async move |handle: &Handle, name: &DeviceName| {
        handle.resize(name, size, shrink).await.map(drop)
    })
    .await
}

async fn quiesce(
    api: web::Data<Api>,
    request: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, Refusal> {
    let asked: QuiesceRequest = body::json(&request, payload).await?.unwrap_or_default();
    let within = asked.within.as_deref().map_or(Ok(USUAL_QUIESCE), parse_duration);
    let within = within.map_err(|message| Refusal::key("within", message))?;
    change(&api, &request, "quiesce", async move |handle: &Handle, name: &DeviceName| {
        handle.quiesce(name, within).await
    })
    .await
}

async fn resume(
    api: web::Data<Api>,
    request: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, Refusal> {
    body::json::<ResumeRequest>(&request, payload).await?;
    change(&api, &request, "resume", async |handle: &Handle, name: &DeviceName| {
        handle.resume(name).await
    })
    .await
}

async fn read_only(
    api: web::Data<Api>,
    request: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, Refusal> {
    let asked: ReadOnlyRequest = body::required(&request, payload).await?;
    change(&api, &request, "read-only", async move |handle: &Handle, name: &DeviceName| {
        handle.set_read_only(name, asked.read_only).await
    })
    .await
}

/// Changes a device and answers with what it is then.
async fn change(
    api: &Api,
    request: &HttpRequest,
    action: &'static str,
    work: impl AsyncFnOnce(&Handle, &DeviceName) -> Result<(), Error> + 'static,
) -> Result<HttpResponse, Refusal> {
    let wait = Query::of(request, &["wait"], &[])?.wait(request)?;
    let name = device(request)?;
    let handle = api.handle.clone();
    let subject = Some(name.to_string());
    let work = async move {
        work(&handle, &name).await?;
        Ok(Reply::ok(handle.describe(&name).await?))
    };
    api.operations.run((action, subject), wait, work).await
}
