//! Control commands and their answers, as values.

use std::time::Duration;

use serde::Serialize;

use super::{Driver, Features};
use crate::model::{DeviceId, Error, ErrorKind, Processors, QueueId, QueueSpec};
use crate::target::Geometry;

/// A control command on `/dev/ublk-control`.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// `GET_FEATURES` (Linux 6.5 on).
    Features,
    /// `ADD_DEV`.
    Add(AddDevice),
    /// `SET_PARAMS`; legal before the first start only.
    SetParams(DeviceId, Params),
    /// `GET_PARAMS`.
    GetParams(DeviceId),
    /// `START_DEV`; waits until every tag of every queue is fetched.
    Start(DeviceId),
    /// `STOP_DEV`.
    Stop(DeviceId),
    /// `TRY_STOP_DEV` (Linux 7.0 on): as `STOP_DEV`, or `EBUSY` while somebody has the disk open.
    TryStop(DeviceId),
    /// `DEL_DEV`: waits until the last reference to the char device is gone.
    Delete(DeviceId),
    /// `DEL_DEV_ASYNC` (Linux 6.9 on): the same without the last wait.
    DeleteAsync(DeviceId),
    /// `GET_DEV_INFO`.
    Info(DeviceId),
    /// `GET_QUEUE_AFFINITY`.
    QueueAffinity(DeviceId, QueueId),
    /// `UPDATE_SIZE` (Linux 6.16 on), in bytes.
    UpdateSize(DeviceId, u64),
    /// `QUIESCE_DEV` (Linux 6.16 on): new I/O waits, and once every queue has a tag to spare the
    /// tags come back. After the time it says `EBUSY`, and new I/O waits all the same.
    Quiesce(DeviceId, Duration),
    /// `START_USER_RECOVERY`: a new server may open the device; `EBUSY` while the old one has it.
    StartRecovery(DeviceId),
    /// `END_USER_RECOVERY`: waits until every tag of every queue is fetched again.
    EndRecovery(DeviceId),
}

impl Command {
    /// The kernel's name of the command.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Features => "GET_FEATURES",
            Self::Add(_) => "ADD_DEV",
            Self::SetParams(..) => "SET_PARAMS",
            Self::GetParams(_) => "GET_PARAMS",
            Self::Start(_) => "START_DEV",
            Self::Stop(_) => "STOP_DEV",
            Self::TryStop(_) => "TRY_STOP_DEV",
            Self::Delete(_) => "DEL_DEV",
            Self::DeleteAsync(_) => "DEL_DEV_ASYNC",
            Self::Info(_) => "GET_DEV_INFO",
            Self::QueueAffinity(..) => "GET_QUEUE_AFFINITY",
            Self::UpdateSize(..) => "UPDATE_SIZE",
            Self::Quiesce(..) => "QUIESCE_DEV",
            Self::StartRecovery(_) => "START_USER_RECOVERY",
            Self::EndRecovery(_) => "END_USER_RECOVERY",
        }
    }

    /// The device it is for; of an ADD the one that was asked for.
    #[must_use]
    pub fn device(&self) -> Option<DeviceId> {
        match self {
            Self::Features => None,
            Self::Add(add) => add.id,
            Self::SetParams(id, _)
            | Self::GetParams(id)
            | Self::Start(id)
            | Self::Stop(id)
            | Self::TryStop(id)
            | Self::Delete(id)
            | Self::DeleteAsync(id)
            | Self::Info(id)
            | Self::QueueAffinity(id, _)
            | Self::UpdateSize(id, _)
            | Self::Quiesce(id, _)
            | Self::StartRecovery(id)
            | Self::EndRecovery(id) => Some(*id),
        }
    }
}

/// The answer to a [`Command`].
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// To all that only succeed.
    Done,
    /// To `GET_FEATURES`.
    Features(Features),
    /// To `ADD_DEV` and `GET_DEV_INFO`.
    Device(KernelDevice),
    /// To `GET_PARAMS`.
    Params(Params),
    /// To `GET_QUEUE_AFFINITY`: the processors whose I/O goes to the queue, those that are not
    /// there yet included.
    Processors(Processors),
}

/// What `ADD_DEV` is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddDevice {
    /// This number, or the first free one.
    pub id: Option<DeviceId>,
    /// Queues, depth and largest request.
    pub queues: QueueSpec,
    /// Features to switch on for it. A kernel leaves out what it does not know: the reply says what
    /// is on.
    pub features: Features,
}

/// What the kernel says of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KernelDevice {
    /// Its number.
    pub id: DeviceId,
    /// Its state.
    pub state: KernelState,
    /// Queues, depth and largest request, as the kernel settled them.
    pub queues: QueueSpec,
    /// Features that are on for it.
    pub features: Features,
    /// The server's process, 0 if none has started it.
    pub pid: i32,
}

/// The kernel's state of a device (`UBLK_S_DEV_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelState {
    /// Added, or stopped.
    Dead,
    /// Started.
    Live,
    /// Waits for recovery.
    Quiesced,
    /// Fails I/O until recovered.
    FailIo,
}

/// What `SET_PARAMS` is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Params {
    /// Size, block sizes, abilities.
    pub geometry: Geometry,
    /// Largest request in bytes.
    pub max_io: u32,
    /// What the addresses of requests' data have to be a multiple of, where the target's file gets
    /// to see them.
    pub memory_alignment: Option<u32>,
}

/// The commands as async functions, so that callers need not take replies apart.
impl dyn Driver {
    /// `GET_FEATURES`.
    ///
    /// # Errors
    /// As the kernel says; `ENOTSUP` or `EINVAL` before Linux 6.5.
    pub async fn features(&self) -> Result<Features, Error> {
        match self.execute(Command::Features).await? {
            Reply::Features(features) => Ok(features),
            other => Err(unexpected("GET_FEATURES", &other)),
        }
    }

    /// `ADD_DEV`.
    ///
    /// # Errors
    /// As the kernel says: `EEXIST` (the id is taken), `EACCES` (`ublks_max`), `EINVAL`, `ENOMEM`.
    pub async fn add(&self, add: AddDevice) -> Result<KernelDevice, Error> {
        match self.execute(Command::Add(add)).await? {
            Reply::Device(device) => Ok(device),
            other => Err(unexpected("ADD_DEV", &other)),
        }
    }

    /// `GET_PARAMS`.
    ///
    /// # Errors
    /// `ENODEV` when there is no such device, `EINVAL` before `SET_PARAMS`.
    pub async fn params(&self, id: DeviceId) -> Result<Params, Error> {
        match self.execute(Command::GetParams(id)).await? {
            Reply::Params(params) => Ok(params),
            other => Err(unexpected("GET_PARAMS", &other)),
        }
    }

    /// `GET_DEV_INFO`.
    ///
    /// # Errors
    /// `ENODEV` when there is no such device.
    pub async fn info(&self, id: DeviceId) -> Result<KernelDevice, Error> {
        match self.execute(Command::Info(id)).await? {
            Reply::Device(device) => Ok(device),
            other => Err(unexpected("GET_DEV_INFO", &other)),
        }
    }

    /// `GET_QUEUE_AFFINITY`.
    ///
    /// # Errors
    /// `ENODEV` when there is no such device; `EINVAL` when it has no such queue, or the kernel may
    /// have more processors than [`Processors::MOST`].
    pub async fn queue_affinity(&self, id: DeviceId, queue: QueueId) -> Result<Processors, Error> {
        match self.execute(Command::QueueAffinity(id, queue)).await? {
            Reply::Processors(processors) => Ok(processors),
            other => Err(unexpected("GET_QUEUE_AFFINITY", &other)),
        }
    }
}

fn unexpected(command: &'static str, reply: &Reply) -> Error {
    Error::new(ErrorKind::Internal, format!("unexpected reply {reply:?}")).command(command)
}
