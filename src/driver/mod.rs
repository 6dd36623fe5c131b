//! The ublk driver as a trait: control commands are values, a char device is a thing that serves.
//!
//! ```text
//!   Driver ── execute(Command) ──> Reply          ADD, SET_PARAMS, START, STOP, DEL, GET_…
//!     └────── open(id) ──> CharDevice ── serve(plan) ──> QueueSet    one thread a queue
//! ```
//!
//! [`ublk`] is the real one, [`sim`] a strict fake of it with the same errors and a clock of grace
//! periods. [`deadline`] (and the fault plan of the simulation) wrap any [`Driver`]: since a command is a
//! value, a decorator is one method long.
//!
//! Invariants: a command is sent at most once; one that is dropped or out of time is not taken
//! back, it may still happen; closing is dropping ([`CharDevice`] holds one reference to
//! `/dev/ublkcN`, and so does each queue's ring until it is gone).

mod command;
pub mod data;
pub mod deadline;
mod features;
pub mod queue;
pub mod sim;
pub mod ublk;

pub use command::{AddDevice, Command, KernelDevice, KernelState, Params, Reply};
pub use features::Features;
pub use queue::{QueueEvent, QueueEvents};

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::future::LocalBoxFuture;

use crate::model::{DeviceId, DeviceName, Error, IoStats, Processors, QueueExit, QueueSpec};
use crate::target::Target;

/// Makes a driver on the supervisor's thread, where it lives.
pub type MakeDriver = Box<dyn FnOnce(&slog::Logger) -> Result<Rc<dyn Driver>, Error> + Send>;

/// Something that makes and unmakes ublk devices. Lives on the supervisor's thread.
pub trait Driver: 'static {
    /// One word for logs: `ublk` or `sim`.
    fn name(&self) -> &'static str;

    /// Sends one control command. The command is on its way when this returns; the future gives
    /// the answer, and dropping it does not take the command back.
    fn execute(&self, command: Command) -> LocalBoxFuture<'static, Result<Reply, Error>>;

    /// Opens `/dev/ublkcN`. `EBUSY` (udev has it open, fault F23) is tried again for a bounded time.
    fn open(&self, id: DeviceId) -> LocalBoxFuture<'static, Result<Box<dyn CharDevice>, Error>>;

    /// The ids of all devices of the host, whoever made them, in order.
    ///
    /// # Errors
    /// When the list cannot be read.
    fn list(&self) -> Result<Vec<DeviceId>, Error>;

    /// Completes once the block device node of a started device can be opened.
    fn node_ready(&self, id: DeviceId) -> LocalBoxFuture<'static, Result<(), Error>>;

    /// Has the block device of a started device refuse writes, or take them again (`BLKROSET`).
    fn set_read_only(&self, id: DeviceId, on: bool) -> LocalBoxFuture<'static, Result<(), Error>>;

    /// Who holds the block device of `id`, which may be stopped already: one line a process, mount
    /// or device on top. Bounded; what cannot be read is left out.
    fn holders(&self, id: DeviceId) -> LocalBoxFuture<'static, Vec<String>>;
}

/// An open `/dev/ublkcN`. Dropping it closes it; that may be the last reference to the device.
pub trait CharDevice {
    /// Starts the queue threads: each maps its descriptors, makes its ring, opens its half of the
    /// target and fetches every tag. A thread that cannot be started, or fails in this, shows in
    /// [`QueueSet::ready`].
    ///
    /// # Errors
    /// When nothing was started.
    fn serve(&self, plan: ServePlan) -> Result<Box<dyn QueueSet>, Error>;
}

/// What the queue threads of a device shall do.
#[derive(Clone)]
pub struct ServePlan {
    /// The host's name for the device; threads are named after it.
    pub device: DeviceName,
    /// The kernel's number.
    pub id: DeviceId,
    /// How many queues, how deep, how large the requests.
    pub queues: QueueSpec,
    /// Where each queue's thread shall run, by queue; empty if anywhere.
    pub affinity: Vec<Processors>,
    /// What the kernel has switched on for the device.
    pub features: Features,
    /// The backend.
    pub target: Arc<dyn Target>,
    /// Told when a queue breaks, from its thread.
    pub events: QueueEvents,
    /// How long a stopping queue waits for its tags to come back before it lets the ring go.
    pub drain: Duration,
    /// Where the queue threads log to; has the device's name and id.
    pub log: slog::Logger,
}

/// The queue threads of one device. Dropping it asks the threads to end and does not wait.
pub trait QueueSet {
    /// Completes when every queue has fetched every tag, so that START_DEV cannot wait in vain.
    /// Fails as soon as one queue cannot.
    fn ready(&mut self) -> LocalBoxFuture<'_, Result<(), Error>>;

    /// Asks every thread to end: at once if all tags have come back, else after the drain time.
    fn stop(&self);

    /// Completes when every thread has ended and is joined. Call [`QueueSet::stop`] before.
    /// May be called again after it was dropped unfinished.
    fn join(&mut self) -> LocalBoxFuture<'_, Vec<QueueExit>>;

    /// Thread ids, in order of the queues, of those that are up.
    fn tids(&self) -> Vec<i32>;

    /// What each thread is bound to, in order of the queues; `None` if it may run anywhere.
    fn processors(&self) -> Vec<Option<Processors>>;

    /// I/O counted so far, all queues together.
    fn stats(&self) -> IoStats;
}
