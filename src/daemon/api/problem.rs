//! Errors as RFC 9457 problem documents: which status a kind of error is, and what the document says.

use std::fmt;
use std::ops::{Deref, DerefMut};

use actix_web::http::StatusCode;
use actix_web::http::header::{CONTENT_TYPE, RETRY_AFTER};
use actix_web::{HttpResponse, HttpResponseBuilder, ResponseError};

use super::types::{Deleted, KeyProblem, Problem};
use crate::config::ConfigError;
use crate::model::{Error, ErrorKind};

/// The media type of a problem.
pub(super) const MEDIA_TYPE: &str = "application/problem+json";

/// When to ask again after the mailbox was full.
const RETRY_S: u64 = 1;

/// When to ask again after the daemon was on its way out or up.
const RESTART_S: u64 = 5;

/// Why a request is refused, or has failed.
#[derive(Debug, Clone)]
pub(super) struct Refusal(Box<Problem>);

impl Deref for Refusal {
    type Target = Problem;

    fn deref(&self) -> &Problem {
        &self.0
    }
}

impl DerefMut for Refusal {
    fn deref_mut(&mut self) -> &mut Problem {
        &mut self.0
    }
}

impl Refusal {
    /// A problem of `kind` with a status of its own.
    pub(super) fn new(status: StatusCode, kind: &str, detail: impl Into<String>) -> Self {
        Self(Box::new(Problem {
            type_: format!("urn:ublkd:problem:{kind}"),
            title: status.canonical_reason().unwrap_or("Error").to_owned(),
            status: status.as_u16(),
            detail: detail.into(),
            instance: None,
            kind: kind.to_owned(),
            device: None,
            stage: None,
            errno: None,
            remedy: None,
            holders: Vec::new(),
            left: Vec::new(),
            errors: Vec::new(),
            retry_after: None,
        }))
    }

    /// The request cannot be read as what it should be.
    pub(super) fn malformed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed", detail)
    }

    /// A value of the request is not allowed.
    pub(super) fn key(key: &str, message: impl Into<String>) -> Self {
        let message = message.into();
        let mut problem = Self::of_kind(ErrorKind::Invalid, format!("{key}: {message}"));
        problem.errors = vec![KeyProblem { key: key.to_owned(), message }];
        problem
    }

    /// A problem with the status of `kind`.
    pub(super) fn of_kind(kind: ErrorKind, detail: impl Into<String>) -> Self {
        let mut problem = Self::new(status(kind), kind.as_str(), detail);
        problem.retry_after = match kind {
            ErrorKind::Overloaded => Some(RETRY_S),
            ErrorKind::Stopping => Some(RESTART_S),
            _ => None,
        };
        problem
    }

    /// What kept a device from coming up: a backing file that is not there is a wrong value.
    pub(super) fn of_create(error: Error) -> Self {
        let mut problem = Self::from(error);
        if problem.status == StatusCode::NOT_FOUND {
            let status = StatusCode::UNPROCESSABLE_ENTITY;
            problem.status = status.as_u16();
            problem.title = status.canonical_reason().unwrap_or_default().to_owned();
        }
        problem
    }

    /// The document.
    pub(super) fn document(self) -> Problem {
        *self.0
    }

    /// With what to do about it.
    pub(super) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// The device could not be removed.
    pub(super) fn left_behind(kind: ErrorKind, ended: Deleted) -> Self {
        let detail = ended.error.unwrap_or_else(|| "something is left of it".to_owned());
        let mut problem = Self::of_kind(kind, detail);
        problem.device = Some(ended.name.to_string());
        problem.holders = ended.holders;
        problem.left = ended.left;
        problem
    }
}

/// The HTTP status of each kind of error.
fn status(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
        ErrorKind::Overloaded | ErrorKind::Stopping => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Exists | ErrorKind::Busy => StatusCode::CONFLICT,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Limit => StatusCode::INSUFFICIENT_STORAGE,
        ErrorKind::Unsupported => StatusCode::NOT_IMPLEMENTED,
        ErrorKind::Timeout => StatusCode::GATEWAY_TIMEOUT,
        // The daemon lacks the rights, not the client.
        ErrorKind::Permission
        | ErrorKind::Wedged
        | ErrorKind::Panicked
        | ErrorKind::Io
        | ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let mut problem = Self::of_kind(error.kind(), error.to_string());
        problem.device = error.subject().map(ToString::to_string);
        problem.stage = error.stage().map(|stage| stage.to_string());
        problem.errno = error.errno();
        problem.remedy = error.remedy().map(str::to_owned);
        problem
    }
}

impl From<ConfigError> for Refusal {
    fn from(error: ConfigError) -> Self {
        let mut problem = Self::of_kind(ErrorKind::Invalid, error.to_string());
        problem.device = error.problems.iter().find_map(|problem| problem.device.clone());
        let keys = error.problems.into_iter();
        problem.errors = keys.map(|p| KeyProblem { key: p.key, message: p.message }).collect();
        problem
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl ResponseError for Refusal {
    fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    fn error_response(&self) -> HttpResponse {
        let mut response = HttpResponseBuilder::new(self.status_code());
        response.insert_header((CONTENT_TYPE, MEDIA_TYPE));
        if let Some(seconds) = self.retry_after {
            response.insert_header((RETRY_AFTER, seconds.to_string()));
        }
        // A problem has nothing in it that JSON cannot hold.
        response.body(serde_json::to_string(&self.0).unwrap_or_default())
    }
}
