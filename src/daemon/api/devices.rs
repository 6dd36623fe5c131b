//! Devices: list, create one or many, describe, delete.

use std::time::Duration;

use actix_web::http::{Method, StatusCode};
use actix_web::{HttpRequest, HttpResponse, web};
use futures::stream::{self, StreamExt};
use serde_json::Value;

use super::app::{Api, resource};
use super::body;
use super::operations::Reply;
use super::problem::Refusal;
use super::query::{Query, device};
use super::types::{CreateDevices, Created, CreatedItem, Deleted, Devices};
use crate::Handle;
use crate::config::{devices_of_request, parse_duration};
use crate::model::{
    DeleteOptions, DeleteOutcome, DeviceInfo, DeviceName, DeviceOutcome, DeviceSpec, DeviceState,
    Ensured, Error, ErrorKind, GroupName, OutcomeKind,
};

/// Devices of a page unless the client asks for another number.
const USUAL_LIMIT: usize = 1000;

/// Most devices of a page.
const MOST: usize = 10_000;

/// Devices of a batch that are asked for at once.
const AT_ONCE: usize = 64;

/// The longest that a delete waits for holders.
const LONGEST_BUSY: Duration = Duration::from_secs(3600);

pub(super) fn calls(app: &mut web::ServiceConfig) {
    app.service(resource(
        "/api/v1/devices",
        [(Method::GET, web::to(list)), (Method::POST, web::to(create))],
    ))
    .service(resource("/api/v1/devices:batch", [(Method::POST, web::to(create_many))]))
    .service(resource(
        "/api/v1/devices/{name}",
        [(Method::GET, web::to(describe)), (Method::DELETE, web::to(delete))],
    ));
}

async fn list(api: web::Data<Api>, request: HttpRequest) -> Result<HttpResponse, Refusal> {
    let known = ["state", "group", "target", "limit", "after"];
    let query = Query::of(&request, &known, &["label"])?;
    let state = query.parsed("state", state)?;
    let limit = query.parsed("limit", limit)?.unwrap_or(USUAL_LIMIT);
    let after = query.parsed("after", |text| DeviceName::new(text).map_err(|e| e.to_string()))?;
    let group = query.parsed("group", |text| GroupName::new(text).map_err(|e| e.to_string()))?;
    let labels = query.all("label").map(label).collect::<Result<Vec<_>, _>>()?;
    let wanted = |device: &DeviceInfo| {
        after.as_ref().is_none_or(|after| device.name > *after)
            && state.is_none_or(|state| device.state == state)
            && query.get("target").is_none_or(|target| device.target == target)
            && group.as_ref().is_none_or(|group| device.group.as_ref() == Some(group))
            && labels.iter().all(|(key, value)| {
                device.labels.get(*key).is_some_and(|has| value.is_none_or(|value| has == value))
            })
    };
    let devices = api.ask(api.handle.list()).await?;
    let mut items: Vec<_> = devices.into_iter().filter(wanted).take(limit + 1).collect();
    let more = items.len() > limit;
    items.truncate(limit);
    let next = items.last().filter(|_| more).map(|device| device.name.clone());
    Ok(HttpResponse::Ok().json(Devices { items, next }))
}

fn state(text: &str) -> Result<DeviceState, String> {
    DeviceState::ALL.into_iter().find(|state| state.as_str() == text).ok_or_else(|| {
        let all = DeviceState::ALL.map(DeviceState::as_str).join(", ");
        format!("{text:?} is no state: expected one of {all}")
    })
}

fn limit(text: &str) -> Result<usize, String> {
    let limit = text.parse().ok().filter(|limit| (1..=MOST).contains(limit));
    limit.ok_or_else(|| format!("{text:?} is no limit: expected 1 to {MOST}"))
}

/// `KEY=VALUE`, or `KEY` for any value.
fn label(text: &str) -> Result<(&str, Option<&str>), Refusal> {
    match text.split_once('=') {
        Some((key, value)) => Ok((key, Some(value))),
        None if text.is_empty() => Err(Refusal::key("label", "expected KEY=VALUE or KEY")),
        None => Ok((text, None)),
    }
}

async fn create(
    api: web::Data<Api>,
    request: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, Refusal> {
    let wait = Query::of(&request, &["wait"], &[])?.wait(&request)?;
    let keys: Value = body::required(&request, payload).await?;
    for key in ["count", "start"] {
        if keys.get(key).is_some() {
            let text = "makes a fleet: send it to /api/v1/devices:batch";
            return Err(Refusal::key(key, text));
        }
    }
    let [spec] = <[_; 1]>::try_from(devices_of_request(&[keys], true)?)
        .map_err(|_| Refusal::malformed("expected one device"))?;
    let name = spec.name().clone();
    let handle = api.handle.clone();
    let subject = Some(name.to_string());
    let work = async move {
        Ok(match handle.ensure(spec).await.map_err(Refusal::of_create)? {
            Ensured::AlreadySo(device) => Reply::ok(device),
            Ensured::Created(_) => Reply::new(StatusCode::CREATED, handle.describe(&name).await?),
        })
    };
    api.operations.run(("create", subject), wait, work).await
}

async fn create_many(
    api: web::Data<Api>,
    request: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, Refusal> {
    let wait = Query::of(&request, &["wait"], &[])?.wait(&request)?;
    let asked: CreateDevices = body::required(&request, payload).await?;
    let specs = devices_of_request(&asked.devices, false)?;
    let handle = api.handle.clone();
    if !asked.atomic {
        let work = async move { Ok(each(&handle, specs).await) };
        return api.operations.run(("create", None), wait, work).await;
    }
    let group = specs.first().and_then(DeviceSpec::group).cloned();
    let Some(group) = group.filter(|group| specs.iter().all(|s| s.group() == Some(group))) else {
        let text = "needs devices that are all of one group, which is what holds them together";
        return Err(Refusal::key("atomic", text));
    };
    let subject = Some(group.to_string());
    let work = async move { all(handle.create_group(&group, specs).await) };
    api.operations.run(("create", subject), wait, work).await
}

/// Makes each device by itself.
async fn each(handle: &Handle, specs: Vec<DeviceSpec>) -> Reply {
    let made = stream::iter(specs).map(|spec| async {
        let name = spec.name().clone();
        match handle.ensure(spec).await {
            Ok(ensured) => item(&ensured),
            Err(error) => {
                let problem = Refusal::of_create(error);
                CreatedItem { name, status: problem.status, problem: Some(problem.document()) }
            }
        }
    });
    let mut items: Vec<_> = made.buffer_unordered(AT_ONCE).collect().await;
    items.sort_by(|a, b| a.name.cmp(&b.name));
    created(items)
}

/// Devices that were made together.
pub(super) fn all(made: Result<Vec<Ensured>, Error>) -> Result<Reply, Refusal> {
    Ok(created(made.map_err(Refusal::of_create)?.iter().map(item).collect()))
}

fn item(ensured: &Ensured) -> CreatedItem {
    let status = match ensured {
        Ensured::Created(_) => StatusCode::CREATED,
        Ensured::AlreadySo(_) => StatusCode::OK,
    };
    CreatedItem { name: ensured.name().clone(), status: status.as_u16(), problem: None }
}

/// 201 when some were made and the others were there, 200 when all were there, 207 when some
/// failed.
fn created(items: Vec<CreatedItem>) -> Reply {
    let status = match () {
        () if items.iter().any(|item| item.problem.is_some()) => StatusCode::MULTI_STATUS,
        () if items.iter().all(|item| item.status == StatusCode::OK) => StatusCode::OK,
        () => StatusCode::CREATED,
    };
    Reply::new(status, Created { items })
}

async fn describe(api: web::Data<Api>, request: HttpRequest) -> Result<HttpResponse, Refusal> {
    Query::of(&request, &[], &[])?;
    let name = device(&request)?;
    let known = api.ask(api.handle.describe(&name)).await?;
    Ok(HttpResponse::Ok().json(known.ok_or_else(|| unknown(&name))?))
}

fn unknown(name: &DeviceName) -> Refusal {
    let mut problem = Refusal::of_kind(ErrorKind::NotFound, format!("no device {name} is known"));
    problem.device = Some(name.to_string());
    problem
}

async fn delete(api: web::Data<Api>, request: HttpRequest) -> Result<HttpResponse, Refusal> {
    let query = Query::of(&request, &["wait", "busy", "busy_timeout"], &[])?;
    let (wait, options) = (query.wait(&request)?, delete_options(&query)?);
    let name = device(&request)?;
    let handle = api.handle.clone();
    let subject = Some(name.to_string());
    let work = async move {
        match handle.delete_with(&name, options).await? {
            DeleteOutcome::Absent => Ok(Reply::ok(absent(name))),
            DeleteOutcome::Ended(outcome) => ended(&outcome),
        }
    };
    api.operations.run(("delete", subject), wait, work).await
}

/// What a delete shall do while somebody holds the device.
pub(super) fn delete_options(query: &Query) -> Result<DeleteOptions, Refusal> {
    let busy = query.parsed("busy", |text| text.parse().map_err(|e| format!("{e}")))?;
    let within = query.parsed("busy_timeout", |text| match parse_duration(text)? {
        within if within <= LONGEST_BUSY => Ok(within),
        _ => Err(format!("{text} is out of range: up to 1h")),
    })?;
    Ok(DeleteOptions { busy, within })
}

fn absent(name: DeviceName) -> Deleted {
    Deleted {
        name,
        outcome: "absent".to_owned(),
        error: None,
        holders: Vec::new(),
        left: Vec::new(),
        stages: Default::default(),
    }
}

/// What became of a device that was deleted; a problem if something of it is left.
fn ended(outcome: &DeviceOutcome) -> Result<Reply, Refusal> {
    let deleted = Deleted::from(outcome);
    let kind = match outcome.outcome {
        _ if outcome.left.is_empty() => return Ok(Reply::ok(deleted)),
        OutcomeKind::Wedged => ErrorKind::Wedged,
        OutcomeKind::Panicked => ErrorKind::Panicked,
        _ => ErrorKind::Timeout,
    };
    Err(Refusal::left_behind(kind, deleted))
}

impl From<&DeviceOutcome> for Deleted {
    fn from(outcome: &DeviceOutcome) -> Self {
        let stages = outcome.stages.iter();
        Self {
            name: outcome.name.clone(),
            outcome: outcome.outcome.to_string(),
            error: outcome.error.as_ref().map(ToString::to_string),
            holders: outcome.holders.clone(),
            left: outcome.left.clone(),
            stages: stages.map(|(stage, time)| (stage.to_string(), time.as_secs_f64())).collect(),
        }
    }
}
