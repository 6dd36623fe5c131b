//! What a device actor is told.

use actix::Message;
use futures::channel::oneshot;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::driver::QueueEvent;
use crate::model::{CreateOutcome, DeviceOutcome, Error};

/// Bring the device up; the answer comes when it is in service, or when the failed start was
/// undone.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Start {
    /// The place in the supervisor's mailbox, given back when a worker takes the operation up.
    pub(crate) permit: Option<OwnedSemaphorePermit>,
    pub(crate) reply: oneshot::Sender<Result<CreateOutcome, Error>>,
}

/// Take the device down; the answer comes at the end of its life. Asking again is harmless.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Stop {
    pub(crate) permit: Option<OwnedSemaphorePermit>,
    /// No stage goes on past this.
    pub(crate) deadline: Option<Instant>,
    pub(crate) reply: oneshot::Sender<DeviceOutcome>,
}

/// Take the device down if nobody holds it, or as soon as nobody does.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct StopUnheld {
    /// How long to wait for holders to let go.
    pub(crate) within: Duration,
    /// Told if it stays in service; dropped once it does not.
    pub(crate) refused: oneshot::Sender<Error>,
    /// What is done when nobody holds it.
    pub(crate) stop: Stop,
}

/// Take its server away while its users wait.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Quiesce {
    /// How long I/O in flight has to end by itself.
    pub(crate) within: Duration,
    pub(crate) reply: oneshot::Sender<Result<(), Error>>,
}

/// Serve it again.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Resume {
    pub(crate) reply: oneshot::Sender<Result<(), Error>>,
}

/// A queue thread has something to tell.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct QueueBroke(pub(crate) QueueEvent);
