//! A strict fake of the ublk driver: the same commands, states, references, errors and waits, on a
//! clock of its own.
//!
//! ```text
//!   SimDriver ── Faulty (the fault plan) ── Kernel ── devices, mutexes, grace periods
//!       │                                      └── CharFile ── queues
//!       └── disk(id) ──> SimDisk: what users of the block device see, from any thread
//! ```
//!
//! Time is tokio's: in a test with paused time, thousands of devices come and go in milliseconds,
//! and how long it took on the simulated clock is exact. It lives on one thread, inside a `LocalSet`
//! (an actix system is one). What a real kernel would refuse it refuses with the same errno, and
//! what would wait for ever there waits for ever here.

mod device;
mod disk;
pub mod fault;
mod file;
mod grace;
mod journal;
mod kernel;
mod profile;
mod queues;
mod snapshot;
#[cfg(test)]
mod tests;
mod threads;
mod wire;
mod work;

pub use disk::{Hold, SimDisk, SimDisks, Ticket};
pub use fault::FaultPlan;
pub use grace::GracePeriods;
pub use journal::Record;
pub use profile::{Costs, KernelProfile};
pub use snapshot::{DeviceSnapshot, Snapshot};

use std::rc::Rc;

use futures::FutureExt;
use futures::future::LocalBoxFuture;
use nix::libc;

use super::{CharDevice, Command, Driver, MakeDriver, Reply};
use crate::model::{DeviceId, Error};
use fault::Faulty;
use file::CharFile;
use kernel::{Kernel, refuse};

/// How queues are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QueueMode {
    /// No threads: queues are state machines on the simulated clock, targets are not asked.
    #[default]
    Virtual,
    /// Threads that really serve their target, on the engine of the real driver. For real time.
    Threads,
}

/// What `Builder::new` takes for a simulated host whose queue threads really serve, and its
/// block devices as seen from outside.
#[must_use]
pub fn driver(profile: KernelProfile, plan: FaultPlan) -> (MakeDriver, SimDisks) {
    let disks = SimDisks::default();
    let seen = disks.clone();
    let make = move |_: &slog::Logger| {
        let sim = SimDriver::with_disks(profile, plan, QueueMode::Threads, seen);
        Ok(Rc::new(sim) as Rc<dyn Driver>)
    };
    (Box::new(make), disks)
}

/// The simulated driver. Clones are the same driver: keep one to look at it from outside.
#[derive(Clone)]
pub struct SimDriver {
    kernel: Rc<Kernel>,
    faulty: Rc<Faulty>,
}

impl SimDriver {
    /// A kernel without devices.
    #[must_use]
    pub fn new(profile: KernelProfile, plan: FaultPlan, mode: QueueMode) -> Self {
        Self::with_disks(profile, plan, mode, SimDisks::default())
    }

    fn with_disks(
        profile: KernelProfile,
        plan: FaultPlan,
        mode: QueueMode,
        disks: SimDisks,
    ) -> Self {
        let kernel = Rc::new(Kernel::new(profile, mode, disks));
        let faulty = Rc::new(Faulty::new(Rc::new(Bare(Rc::clone(&kernel))), plan));
        Self { kernel, faulty }
    }

    /// The kernel that is simulated.
    #[must_use]
    pub fn profile(&self) -> &KernelProfile {
        &self.kernel.profile
    }

    /// The block device of a started device.
    ///
    /// # Errors
    /// `ENXIO` when there is none.
    pub fn disk(&self, id: DeviceId) -> Result<SimDisk, Error> {
        self.kernel.disks.get(id)
    }

    /// Writes down from now on what happens in the kernel; [`SimDriver::recorded`] gives it.
    pub fn record(&self) {
        self.kernel.journal.switch_on();
    }

    /// What has happened since it was asked last, in order. Nothing before [`SimDriver::record`].
    #[must_use]
    pub fn recorded(&self) -> Vec<Record> {
        self.kernel.journal.take()
    }

    /// Everything that is there at this moment.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::of(&self.kernel, self.faulty.in_flight());
        snapshot.queue_threads += self.faulty.stuck_threads();
        snapshot
    }
}

impl Driver for SimDriver {
    fn name(&self) -> &'static str {
        self.faulty.name()
    }

    fn execute(&self, command: Command) -> LocalBoxFuture<'static, Result<Reply, Error>> {
        self.faulty.execute(command)
    }

    fn open(&self, id: DeviceId) -> LocalBoxFuture<'static, Result<Box<dyn CharDevice>, Error>> {
        self.faulty.open(id)
    }

    fn list(&self) -> Result<Vec<DeviceId>, Error> {
        self.faulty.list()
    }

    fn node_ready(&self, id: DeviceId) -> LocalBoxFuture<'static, Result<(), Error>> {
        self.faulty.node_ready(id)
    }

    fn set_read_only(&self, id: DeviceId, on: bool) -> LocalBoxFuture<'static, Result<(), Error>> {
        self.faulty.set_read_only(id, on)
    }

    fn holders(&self, id: DeviceId) -> LocalBoxFuture<'static, Vec<String>> {
        self.faulty.holders(id)
    }
}

/// The kernel as a driver, without faults.
struct Bare(Rc<Kernel>);

impl Driver for Bare {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn execute(&self, command: Command) -> LocalBoxFuture<'static, Result<Reply, Error>> {
        self.0.work.run(Rc::clone(&self.0).execute(command))
    }

    fn open(&self, id: DeviceId) -> LocalBoxFuture<'static, Result<Box<dyn CharDevice>, Error>> {
        let kernel = Rc::clone(&self.0);
        async move {
            let none = (libc::ENOENT, "the char device is gone");
            let opened = kernel.device(id).ok_or(none).and_then(|device| {
                device.open()?;
                Ok(device)
            });
            let errno = opened.as_ref().err().map(|refusal| refusal.0);
            kernel.journal.note(Some(id), "open", errno);
            let device = refuse(opened).map_err(|error| error.command("open").id(id))?;
            Ok(Box::new(CharFile::new(kernel, device)) as Box<dyn CharDevice>)
        }
        .boxed_local()
    }

    fn list(&self) -> Result<Vec<DeviceId>, Error> {
        Ok(self.0.list())
    }

    fn node_ready(&self, id: DeviceId) -> LocalBoxFuture<'static, Result<(), Error>> {
        let live = self.0.device(id).is_some_and(|device| device.disk().is_some());
        let node = if live { Ok(()) } else { Err((libc::ENOENT, "the block device is gone")) };
        std::future::ready(refuse(node).map_err(|error| error.command("node").id(id))).boxed_local()
    }

    fn set_read_only(&self, id: DeviceId, on: bool) -> LocalBoxFuture<'static, Result<(), Error>> {
        let none = (libc::ENXIO, "the block device is gone");
        let disk = self.0.device(id).and_then(|device| device.disk()).ok_or(none);
        let set = refuse(disk).map(|disk| disk.set_read_only(on));
        std::future::ready(set.map_err(|error| error.command("BLKROSET").id(id))).boxed_local()
    }

    fn holders(&self, id: DeviceId) -> LocalBoxFuture<'static, Vec<String>> {
        let disk = self.0.device(id).and_then(|device| device.last_disk());
        let openers = disk.map_or(0, |disk| disk.openers());
        let holders = (1..=openers).map(|n| format!("simulated user {n} of {}", id.block_path()));
        std::future::ready(holders.collect()).boxed_local()
    }
}
