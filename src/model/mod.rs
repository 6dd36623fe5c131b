//! The vocabulary of the house: what a device is, the states it goes through, what became of it.
//!
//! Pure values only. Nothing here knows a runtime, an actor, a ring or a kernel; every other room
//! imports this one and this one imports nobody.
//!
//! ```text
//!   DeviceSpec ──> (Supervisor ─> Device ─> Driver) ──> CreateOutcome, DeleteOutcome, ShutdownReport
//!                         │
//!                         └─ DeviceState, moved only by next(state, event)
//! ```

mod error;
mod id;
mod io;
mod observe;
mod outcome;
mod panic;
mod policy;
mod processors;
mod report;
mod request;
mod spec;
mod state;
mod tally;
mod target;
mod workers;

pub use error::{Error, ErrorKind, Result, errno_name};
pub use id::{DeviceId, DeviceName, GroupName, InvalidName, QueueId, Tag};
pub use io::{IoStats, Latency, OpStats};
pub use observe::{Observer, StateChange, StreamEvent};
pub use outcome::{
    CreateOutcome, DeleteOutcome, DeviceInfo, DeviceOutcome, OutcomeKind, QueueExit,
    QueueExitCause, Stage, StageTimes,
};
pub use panic::PanicReport;
pub use policy::{BUSY_TIMEOUT, BusyPolicy, Labels, NoBusyPolicy, Origin};
pub use processors::Processors;
pub use report::{ShutdownReport, StageSummary};
pub use request::{
    Condition, DeleteOptions, Ensured, GroupInfo, GroupReport, KernelFeatures, ResizeOutcome,
};
pub use spec::{
    Backing, BlockSize, DataMode, DeviceSpec, DeviceSpecBuilder, FaultSpec, LIMITS, Limits,
    Problem, QueueSpec,
};
pub use state::{Action, DeviceState, Event, IllegalTransition, lifecycle_mermaid, next};
pub use tally::{Occupancy, Operation, Snapshot, Tally};
pub use target::TargetSpec;
pub use workers::WorkerLimit;
