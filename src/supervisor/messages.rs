//! What the supervisor is told.

use std::time::Duration;

use actix::Message;
use tokio::sync::OwnedSemaphorePermit;

use crate::model::{
    Condition, CreateOutcome, DeleteOptions, DeleteOutcome, DeviceInfo, DeviceName, DeviceSpec,
    Ensured, Error, GroupInfo, GroupName, GroupReport, KernelFeatures, PanicReport, ResizeOutcome,
    ShutdownReport, Snapshot,
};

/// Bring a device up.
#[derive(Message)]
#[rtype(result = "Result<CreateOutcome, Error>")]
pub(crate) struct Create {
    pub(crate) spec: DeviceSpec,
    pub(crate) permit: OwnedSemaphorePermit,
}

/// Bring a device up unless it is there as asked.
#[derive(Message)]
#[rtype(result = "Result<Ensured, Error>")]
pub(crate) struct Ensure {
    pub(crate) spec: DeviceSpec,
    pub(crate) permit: OwnedSemaphorePermit,
}

/// Take a device down.
#[derive(Message)]
#[rtype(result = "Result<DeleteOutcome, Error>")]
pub(crate) struct Delete {
    pub(crate) name: DeviceName,
    pub(crate) options: DeleteOptions,
    /// Only if it has failed; any other one is not there for this delete.
    pub(crate) failed_only: bool,
    pub(crate) permit: OwnedSemaphorePermit,
}

/// Every device, by name.
#[derive(Message)]
#[rtype(result = "Vec<DeviceInfo>")]
pub(crate) struct List;

/// Answer.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Ping;

/// Every device, what was done, and what is in use.
#[derive(Message)]
#[rtype(result = "Snapshot")]
pub(crate) struct Measure;

/// One device, with its holders.
#[derive(Message)]
#[rtype(result = "Option<DeviceInfo>")]
pub(crate) struct Describe(pub(crate) DeviceName);

/// Make a device larger, or smaller.
#[derive(Message)]
#[rtype(result = "Result<ResizeOutcome, Error>")]
pub(crate) struct Resize {
    pub(crate) name: DeviceName,
    pub(crate) size: u64,
    pub(crate) shrink: bool,
    pub(crate) permit: OwnedSemaphorePermit,
}

/// Have a device refuse writes, or take them again.
#[derive(Message)]
#[rtype(result = "Result<(), Error>")]
pub(crate) struct SetReadOnly {
    pub(crate) name: DeviceName,
    pub(crate) on: bool,
    pub(crate) permit: OwnedSemaphorePermit,
}

/// Take a device's server away while its users wait.
#[derive(Message)]
#[rtype(result = "Result<(), Error>")]
pub(crate) struct Quiesce {
    pub(crate) name: DeviceName,
    pub(crate) within: Duration,
    pub(crate) permit: OwnedSemaphorePermit,
}

/// Serve a quiesced device again.
#[derive(Message)]
#[rtype(result = "Result<(), Error>")]
pub(crate) struct Resume {
    pub(crate) name: DeviceName,
    pub(crate) permit: OwnedSemaphorePermit,
}

/// Bring all devices of a group up, or none. `permit` is the first one's.
#[derive(Message)]
#[rtype(result = "Result<Vec<Ensured>, Error>")]
pub(crate) struct CreateGroup {
    pub(crate) group: GroupName,
    pub(crate) specs: Vec<DeviceSpec>,
    pub(crate) permit: OwnedSemaphorePermit,
}

/// Take all devices of a group down. `permit` is the first one's.
#[derive(Message)]
#[rtype(result = "GroupReport")]
pub(crate) struct DeleteGroup {
    pub(crate) group: GroupName,
    pub(crate) options: DeleteOptions,
    pub(crate) permit: OwnedSemaphorePermit,
}

/// Every group, by name.
#[derive(Message)]
#[rtype(result = "Vec<GroupInfo>")]
pub(crate) struct Groups;

/// What the kernel's driver can do.
#[derive(Message)]
#[rtype(result = "KernelFeatures")]
pub(crate) struct AskFeatures;

/// Wait until a device is so.
#[derive(Message)]
#[rtype(result = "Result<(), Error>")]
pub(crate) struct Wait {
    pub(crate) name: DeviceName,
    pub(crate) condition: Condition,
    pub(crate) within: Duration,
}

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
