//! Work that outlives the request that asked for it.
//!
//! ```text
//!   request ─ begin ──> task ── ended in time ──> its answer, and the operation is forgotten
//!                         └──── not ──> 202 with the operation, which goes on and is kept
//! ```
//!
//! Invariants: a client that goes away or stops waiting changes nothing of the work; at most
//! [`MOST_RUNNING`] run and [`MOST_KEPT`] are known after their end, the oldest are forgotten.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use actix_web::http::StatusCode;
use actix_web::http::header::LOCATION;
use actix_web::{HttpResponse, rt};
use futures::FutureExt;
use futures::future::{LocalBoxFuture, Shared};
use serde_json::Value;
use tokio::time::timeout;

use super::problem::Refusal;
use super::types::{self, Operation, OperationState};
use crate::model::ErrorKind;
use crate::sys;

/// Operations that may run at once.
const MOST_RUNNING: usize = 4096;

/// Operations that are known after their end.
const MOST_KEPT: usize = 1024;

/// What a call answers when all went well.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) body: Value,
}

impl Reply {
    pub(super) fn new(status: StatusCode, body: impl serde::Serialize) -> Self {
        // The types of the API have nothing in them that JSON cannot hold.
        Self { status, body: serde_json::to_value(body).unwrap_or_default() }
    }

    pub(super) fn ok(body: impl serde::Serialize) -> Self {
        Self::new(StatusCode::OK, body)
    }
}

type Ended = Shared<LocalBoxFuture<'static, Rc<Result<Reply, Refusal>>>>;

struct Entry {
    action: &'static str,
    subject: Option<String>,
    began: Instant,
    ended: Ended,
}

/// The operations of this run.
#[derive(Default)]
pub(super) struct Operations {
    last: Cell<u64>,
    known: RefCell<BTreeMap<u64, Entry>>,
}

impl Operations {
    /// Starts `work` and answers with what comes of it, or after `wait` with the operation.
    pub(super) async fn run(
        &self,
        (action, subject): (&'static str, Option<String>),
        wait: Duration,
        work: impl Future<Output = Result<Reply, Refusal>> + 'static,
    ) -> Result<HttpResponse, Refusal> {
        let (id, ended) = self.begin(action, subject, work)?;
        let Ok(result) = timeout(wait, ended).await else {
            let operation = self.describe(id)?;
            return Ok(HttpResponse::Accepted()
                .insert_header((LOCATION, format!("/api/v1/operations/{id}")))
                .json(operation));
        };
        self.known.borrow_mut().remove(&id);
        match &*result {
            Ok(reply) => Ok(HttpResponse::build(reply.status).json(&reply.body)),
            Err(problem) => Err(problem.clone()),
        }
    }

    fn begin(
        &self,
        action: &'static str,
        subject: Option<String>,
        work: impl Future<Output = Result<Reply, Refusal>> + 'static,
    ) -> Result<(u64, Ended), Refusal> {
        let mut known = self.known.borrow_mut();
        let done: Vec<u64> =
            known.iter().filter(|(_, e)| e.ended.peek().is_some()).map(|(id, _)| *id).collect();
        if known.len() - done.len() >= MOST_RUNNING {
            let text = format!("{MOST_RUNNING} operations run already");
            return Err(Refusal::of_kind(ErrorKind::Overloaded, text));
        }
        for id in done.iter().rev().skip(MOST_KEPT) {
            known.remove(id);
        }
        // A task of its own: it goes on when nobody waits for it.
        let ended = rt::spawn(work).map(|ended| {
            Rc::new(ended.unwrap_or_else(|error| {
                let text = match error.try_into_panic() {
                    Ok(payload) => sys::panic::report(&*payload).to_string(),
                    Err(_) => "it was cancelled".to_owned(),
                };
                Err(Refusal::of_kind(ErrorKind::Panicked, text))
            }))
        });
        let ended = ended.boxed_local().shared();
        // Somebody must poll it, so that its end is known.
        rt::spawn(ended.clone());
        let id = self.last.get() + 1;
        self.last.set(id);
        let began = Instant::now();
        known.insert(id, Entry { action, subject, began, ended: ended.clone() });
        Ok((id, ended))
    }

    /// An operation, after waiting for its end up to `wait`.
    pub(super) async fn watch(&self, id: &str, wait: Duration) -> Result<Operation, Refusal> {
        let id = id.parse().map_err(|_| unknown(id))?;
        let ended = self.known.borrow().get(&id).map(|entry| entry.ended.clone());
        if let Some(ended) = ended {
            // It is described either way.
            let _ = timeout(wait, ended).await;
        }
        self.describe(id)
    }

    /// All that are known, oldest first.
    pub(super) fn list(&self) -> types::Operations {
        let known = self.known.borrow();
        types::Operations { items: known.iter().map(|(id, entry)| entry.describe(*id)).collect() }
    }

    fn describe(&self, id: u64) -> Result<Operation, Refusal> {
        let known = self.known.borrow();
        known.get(&id).map(|entry| entry.describe(id)).ok_or_else(|| unknown(&id.to_string()))
    }
}

fn unknown(id: &str) -> Refusal {
    Refusal::of_kind(ErrorKind::NotFound, format!("no operation {id:?} is known"))
        .remedy("the oldest ones that have ended are forgotten, and all of them with the daemon")
}

impl Entry {
    fn describe(&self, id: u64) -> Operation {
        let result = self.ended.peek().map(|result| &**result);
        Operation {
            id: id.to_string(),
            action: self.action.to_owned(),
            subject: self.subject.clone(),
            state: match result {
                None => OperationState::Running,
                Some(Ok(_)) => OperationState::Succeeded,
                Some(Err(_)) => OperationState::Failed,
            },
            age_s: self.began.elapsed().as_secs_f64(),
            status: result.map(|result| match result {
                Ok(reply) => reply.status.as_u16(),
                Err(problem) => problem.status,
            }),
            result: result.and_then(|result| result.as_ref().ok()).map(|r| r.body.clone()),
            problem: result
                .and_then(|result| result.as_ref().err())
                .cloned()
                .map(Refusal::document),
        }
    }
}
