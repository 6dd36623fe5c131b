//! What the supervisor is told.

use std::time::Duration;

use actix::Message;
use tokio::sync::OwnedSemaphorePermit;

use crate::model::{
    CreateOutcome, DeleteOutcome, DeviceInfo, DeviceName, DeviceSpec, Error, PanicReport,
    ShutdownReport,
};

/// Bring a device up.
#[derive(Message)]
#[rtype(result = "Result<CreateOutcome, Error>")]
pub(crate) struct Create {
    pub(crate) spec: DeviceSpec,
    pub(crate) permit: OwnedSemaphorePermit,
}

/// Take a device down.
#[derive(Message)]
#[rtype(result = "Result<DeleteOutcome, Error>")]
pub(crate) struct Delete {
    pub(crate) name: DeviceName,
    pub(crate) permit: OwnedSemaphorePermit,
}

/// Every device, by name.
#[derive(Message)]
#[rtype(result = "Vec<DeviceInfo>")]
pub(crate) struct List;

/// One device.
#[derive(Message)]
#[rtype(result = "Option<DeviceInfo>")]
pub(crate) struct Describe(pub(crate) DeviceName);

/// Take all down and account for each. Asking again gives the same report.
#[derive(Message)]
#[rtype(result = "ShutdownReport")]
pub(crate) struct Shutdown {
    /// Bound of the whole.
    pub(crate) within: Duration,
}

/// End a shutdown under way now: what has not ended is reported as left.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Force;

/// The actor of a device panicked.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Died {
    pub(crate) name: DeviceName,
    pub(crate) panic: PanicReport,
}
