//! Groups: list, create all or nothing, delete all at once. And what the kernel can do.

use actix_web::http::Method;
use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::Value;

use super::app::{Api, resource};
use super::body;
use super::devices::{all, delete_options};
use super::operations::Reply;
use super::problem::Refusal;
use super::query::{Query, segment};
use super::types::{CreateGroup, Deleted, GroupDeleted, Groups};
use crate::config::devices_of_request;
use crate::model::{ErrorKind, GroupInfo, GroupName, GroupReport};

pub(super) fn calls(app: &mut web::ServiceConfig) {
    app.service(resource("/api/v1/groups", [(Method::GET, web::to(list))]))
        .service(resource(
            "/api/v1/groups/{group}",
            [
                (Method::GET, web::to(describe)),
                (Method::PUT, web::to(create)),
                (Method::DELETE, web::to(delete)),
            ],
        ))
        .service(resource("/api/v1/features", [(Method::GET, web::to(features))]));
}

fn group(request: &HttpRequest) -> Result<GroupName, Refusal> {
    GroupName::new(segment(request, "group")).map_err(|e| Refusal::key("group", e.to_string()))
}

async fn list(api: web::Data<Api>, request: HttpRequest) -> Result<HttpResponse, Refusal> {
    Query::of(&request, &[], &[])?;
    Ok(HttpResponse::Ok().json(Groups { items: api.ask(api.handle.groups()).await? }))
}

async fn describe(api: web::Data<Api>, request: HttpRequest) -> Result<HttpResponse, Refusal> {
    Query::of(&request, &[], &[])?;
    let name = group(&request)?;
    let groups = api.ask(api.handle.groups()).await?;
    let found: Option<GroupInfo> = groups.into_iter().find(|group| group.name == name);
    let unknown = || Refusal::of_kind(ErrorKind::NotFound, format!("no device is of group {name}"));
    Ok(HttpResponse::Ok().json(found.ok_or_else(unknown)?))
}

async fn create(
    api: web::Data<Api>,
    request: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, Refusal> {
    let wait = Query::of(&request, &["wait"], &[])?.wait(&request)?;
    let name = group(&request)?;
    let mut asked: CreateGroup = body::required(&request, payload).await?;
    for keys in asked.devices.iter_mut().filter_map(Value::as_object_mut) {
        keys.entry("group").or_insert_with(|| name.to_string().into());
    }
    let specs = devices_of_request(&asked.devices, false)?;
    let handle = api.handle.clone();
    let subject = Some(name.to_string());
    let work = async move { all(handle.create_group(&name, specs).await) };
    api.operations.run(("create group", subject), wait, work).await
}

async fn delete(api: web::Data<Api>, request: HttpRequest) -> Result<HttpResponse, Refusal> {
    let query = Query::of(&request, &["wait", "busy", "busy_timeout"], &[])?;
    let (wait, options) = (query.wait(&request)?, delete_options(&query)?);
    let name = group(&request)?;
    let handle = api.handle.clone();
    let subject = Some(name.to_string());
    let work = async move { deleted(handle.delete_group(&name, options).await?) };
    api.operations.run(("delete group", subject), wait, work).await
}

fn deleted(report: GroupReport) -> Result<Reply, Refusal> {
    if !report.is_clean() {
        let held = report.refused.values().next();
        let kind = held.map_or(ErrorKind::Timeout, |error| error.kind());
        let text =
            format!("something is left of group {}: {}", report.group, report.left.join("; "));
        let mut problem = Refusal::of_kind(kind, text);
        problem.holders = report.devices.iter().flat_map(|d| d.holders.iter().cloned()).collect();
        problem.left = report.left;
        return Err(problem);
    }
    let outcome = if report.is_absent() { "absent" } else { "deleted" };
    Ok(Reply::ok(GroupDeleted {
        name: report.group,
        outcome: outcome.to_owned(),
        devices: report.devices.iter().map(Deleted::from).collect(),
        wall_s: report.wall.as_secs_f64(),
    }))
}

async fn features(api: web::Data<Api>, request: HttpRequest) -> Result<HttpResponse, Refusal> {
    Query::of(&request, &[], &[])?;
    Ok(HttpResponse::Ok().json(api.ask(api.handle.features()).await?))
}
