//! What became of a device: the stages it went through, how long each took, how it ended.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};
use utoipa::ToSchema;

use super::{
    DeviceId, DeviceName, DeviceSpec, DeviceState, Error, GroupName, IoStats, Labels, Origin,
    PanicReport, Processors, QueueId,
};

/// A step in the life of a device, named in every error, log line and report.
///
/// The order here is the order of a life; teardown runs its own stages in schedule order.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Waiting for a worker.
    Wait,
    /// Opening the target (backing file, memory).
    Open,
    /// `ADD_DEV`: the kernel makes the device and its char node.
    Add,
    /// `SET_PARAMS`: size, block sizes, limits.
    Configure,
    /// Opening `/dev/ublkcN`.
    Attach,
    /// Starting the queue threads and fetching every tag.
    Serve,
    /// `START_DEV`: the block device appears.
    Start,
    /// Linking `<run_dir>/by-name/NAME`.
    Link,
    /// In service.
    Live,
    /// `UPDATE_SIZE`, and the target with it.
    Resize,
    /// `QUIESCE_DEV`, and the end of the queue threads.
    Quiesce,
    /// `START_USER_RECOVERY`, new queue threads, `END_USER_RECOVERY`.
    Resume,
    /// Removing the link.
    Unlink,
    /// `STOP_DEV`: I/O is drained, the disk goes.
    Stop,
    /// Joining the queue threads.
    Join,
    /// `DEL_DEV_ASYNC` (or `DEL_DEV`): the kernel lets go of the device.
    Delete,
    /// Closing the char device.
    Close,
    /// Waiting until the kernel has freed the id.
    Release,
}

impl Stage {
    /// Every stage, in order.
    pub const ALL: [Self; 18] = [
        Self::Wait,
        Self::Open,
        Self::Add,
        Self::Configure,
        Self::Attach,
        Self::Serve,
        Self::Start,
        Self::Link,
        Self::Live,
        Self::Resize,
        Self::Quiesce,
        Self::Resume,
        Self::Unlink,
        Self::Stop,
        Self::Join,
        Self::Delete,
        Self::Close,
        Self::Release,
    ];

    /// The stage as one word, as in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::Open => "open",
            Self::Add => "add",
            Self::Configure => "configure",
            Self::Attach => "attach",
            Self::Serve => "serve",
            Self::Start => "start",
            Self::Link => "link",
            Self::Live => "live",
            Self::Resize => "resize",
            Self::Quiesce => "quiesce",
            Self::Resume => "resume",
            Self::Unlink => "unlink",
            Self::Stop => "stop",
            Self::Join => "join",
            Self::Delete => "delete",
            Self::Close => "close",
            Self::Release => "release",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// How long each stage took, in the order they ran. JSON: `{ "stop": seconds, … }`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StageTimes(Vec<(Stage, Duration)>);

impl StageTimes {
    /// Adds a stage that took `time`. One that runs again (waiting for a worker, for the start and
    /// for undoing it) is one with the time of both.
    pub fn push(&mut self, stage: Stage, time: Duration) {
        match self.0.iter_mut().find(|(known, _)| *known == stage) {
            Some((_, known)) => *known += time,
            None => self.0.push((stage, time)),
        }
    }

    /// All stages, in the order they ran.
    pub fn iter(&self) -> impl Iterator<Item = (Stage, Duration)> + '_ {
        self.0.iter().copied()
    }
}

impl Serialize for StageTimes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(stage, time)| (stage, time.as_secs_f64())))
    }
}

/// How a device ended, as one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeKind {
    /// We removed it; nothing is left.
    Deleted,
    /// Somebody else had removed it; nothing is left.
    AlreadyGone,
    /// It never came up or broke while live, and was removed; nothing is left.
    Failed,
    /// Code of it panicked. It was removed, unless `left` says what could not be.
    Panicked,
    /// A stage ran out of time; something is left.
    TimedOut,
    /// A control command never came back; something is left.
    Wedged,
}

impl OutcomeKind {
    /// Every kind, in order.
    pub const ALL: [Self; 6] = [
        Self::Deleted,
        Self::AlreadyGone,
        Self::Failed,
        Self::Panicked,
        Self::TimedOut,
        Self::Wedged,
    ];

    /// The kind as one snake_case word, as in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deleted => "deleted",
            Self::AlreadyGone => "already_gone",
            Self::Failed => "failed",
            Self::Panicked => "panicked",
            Self::TimedOut => "timed_out",
            Self::Wedged => "wedged",
        }
    }
}

impl fmt::Display for OutcomeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The end of one device, as the shutdown report tells it.
#[derive(Debug, Clone, Serialize)]
pub struct DeviceOutcome {
    /// The host's name for it.
    pub name: DeviceName,
    /// The kernel's number, if it ever had one.
    pub id: Option<DeviceId>,
    /// How it ended.
    pub outcome: OutcomeKind,
    /// The stage that failed or did not end; `None` when all went well.
    pub stage: Option<Stage>,
    /// What went wrong, in one line.
    #[serde(serialize_with = "as_text")]
    pub error: Option<Error>,
    /// Time in each stage of the teardown (and of the start that failed).
    pub stages: StageTimes,
    /// Panics that were caught in its code.
    pub panics: Vec<PanicReport>,
    /// Who holds the block device: one line a process or mount.
    pub holders: Vec<String>,
    /// What is still there: the id is not free, a queue thread runs.
    pub left: Vec<String>,
}

fn as_text<S: Serializer>(error: &Option<Error>, serializer: S) -> Result<S::Ok, S::Error> {
    match error {
        Some(error) => serializer.collect_str(error),
        None => serializer.serialize_none(),
    }
}

/// What a successful create gives back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CreateOutcome {
    /// The host's name for it.
    pub name: DeviceName,
    /// The kernel's number.
    pub id: DeviceId,
    /// Time in each stage.
    pub stages: StageTimes,
}

/// What a delete gives back: it is not an error to delete what is not there.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeleteOutcome {
    /// It was there; this is how it ended.
    Ended(Box<DeviceOutcome>),
    /// No device of that name is known.
    Absent,
}

/// What is known of a device now.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct DeviceInfo {
    /// The host's name for it.
    pub name: DeviceName,
    /// The kernel's number, once it has one.
    pub id: Option<DeviceId>,
    /// `/dev/ublkbN`, once it has one.
    pub path: Option<String>,
    /// Where in its life it is.
    pub state: DeviceState,
    /// The stage it is in.
    pub stage: Stage,
    /// Kind of its target.
    pub target: String,
    /// Size in bytes, once the target is open.
    pub size: Option<u64>,
    /// Number of queues.
    pub queues: u16,
    /// Tags a queue.
    pub depth: u16,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Thread ids of the queue threads.
    pub tids: Vec<i32>,
    /// What the thread of each queue is bound to, in order of the queues, as `0-3,8`; null for one
    /// that may run anywhere. Empty if all may.
    pub processors: Vec<Option<Processors>>,
    /// Seconds since the last change of state.
    pub since_s: f64,
    /// I/O done so far.
    pub io: IoStats,
    /// The last error, in one line.
    pub error: Option<String>,
    /// The group it belongs to.
    pub group: Option<GroupName>,
    /// Words of the host's own about it.
    pub labels: Labels,
    /// Who wanted it.
    pub origin: Origin,
    /// Who holds the block device, one line each. Only `describe` looks; empty in a list.
    pub holders: Vec<String>,
    /// What it is to be, with what was changed while it ran.
    #[serde(skip)]
    pub spec: Arc<DeviceSpec>,
}

/// How a queue thread ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QueueExit {
    /// Which queue.
    pub queue: QueueId,
    /// Why it ended.
    pub cause: QueueExitCause,
}

/// Why a queue thread ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueExitCause {
    /// It was asked to and every tag had come back.
    Stopped,
    /// It was asked to, and let the ring go with this many tags still out.
    Abandoned(u16),
    /// Code on it panicked.
    Panicked(PanicReport),
    /// The ring or the mapping failed.
    Failed(String),
    /// It did not end in time and runs still.
    StillRunning,
}
