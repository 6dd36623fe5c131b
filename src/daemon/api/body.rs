//! Bodies of requests: JSON of a bounded size that comes in a bounded time.

use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::http::header::{CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use actix_web::{HttpRequest, web};
use futures::StreamExt;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::problem::Refusal;
use crate::model::ErrorKind;

/// Largest body: some ten thousand devices.
const MAX_BYTES: usize = 4 << 20;

/// Longest time until all of it is there.
const BOUND: Duration = Duration::from_secs(10);

/// The body as JSON; `None` when there is none.
pub(super) async fn json<T: DeserializeOwned>(
    request: &HttpRequest,
    payload: web::Payload,
) -> Result<Option<T>, Refusal> {
    let head = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    let is_empty = head(CONTENT_LENGTH).is_none_or(|length| length == "0");
    if is_empty && head(TRANSFER_ENCODING).is_none() {
        return Ok(None);
    }
    let content_type = head(CONTENT_TYPE).unwrap_or_default();
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    if !media_type.eq_ignore_ascii_case("application/json") {
        let text = format!("a body of type {media_type:?} is not taken: send application/json");
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "media_type", text));
    }
    let bytes = timeout(BOUND, read(payload)).await.map_err(|_| {
        let text = format!("the body was not there within {} s", BOUND.as_secs());
        Refusal::new(StatusCode::REQUEST_TIMEOUT, "timeout", text)
    })??;
    match serde_json::from_slice(&bytes) {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_data() => {
            Err(Refusal::of_kind(ErrorKind::Invalid, format!("the body: {error}")))
        }
        Err(error) => Err(Refusal::malformed(format!("the body is no JSON: {error}"))),
    }
}

/// The body as JSON of a call that needs one.
pub(super) async fn required<T: DeserializeOwned>(
    request: &HttpRequest,
    payload: web::Payload,
) -> Result<T, Refusal> {
    json(request, payload).await?.ok_or_else(|| Refusal::malformed("this call needs a JSON body"))
}

async fn read(mut payload: web::Payload) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    while let Some(chunk) = payload.next().await {
        let chunk = chunk.map_err(|e| Refusal::malformed(format!("the body broke off: {e}")))?;
        if bytes.len() + chunk.len() > MAX_BYTES {
            let text = format!("a body may have up to {} MiB", MAX_BYTES >> 20);
            return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", text));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}
