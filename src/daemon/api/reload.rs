//! `POST /api/v1/reload`: the config is read again, as by HUP.

use actix_web::http::{Method, StatusCode};
use actix_web::{HttpRequest, HttpResponse, web};

use super::app::{Api, resource};
use super::body;
use super::operations::Reply;
use super::problem::Refusal;
use super::query::Query;
use super::types::ReloadRequest;

pub(super) fn calls(app: &mut web::ServiceConfig) {
    app.service(resource("/api/v1/reload", [(Method::POST, web::to(reload))]));
}

async fn reload(
    api: web::Data<Api>,
    request: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, Refusal> {
    let wait = Query::of(&request, &["wait"], &[])?.wait(&request)?;
    let asked = body::json::<ReloadRequest>(&request, payload).await?.unwrap_or_default();
    let reloader = api.reloader.clone();
    let work = async move {
        let report = reloader.reload(asked.dry_run).await?;
        Ok(Reply::new(StatusCode::OK, &report))
    };
    api.operations.run(("reload", None), wait, work).await
}
