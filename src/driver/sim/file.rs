//! The open char device of a simulated device, and whatever else holds its file.
//!
//! ```text
//!   fd closed ──────────┐
//!   mapping dropped ────┼──> the last one: a kernel worker releases the file
//!   ring ended ── later ┘
//! ```
//!
//! Invariant: a [`FileReference`] is let go exactly once, wherever it is dropped.

use std::rc::Rc;

use tokio::time::sleep;

use super::device::{Device, FileHolder};
use super::kernel::Kernel;
use super::queues::VirtualQueues;
use super::{QueueMode, threads};
use crate::driver::{CharDevice, QueueSet, ServePlan};
use crate::model::Error;

/// A reference to the file of the open char device.
pub(super) struct FileReference {
    kernel: Rc<Kernel>,
    device: Rc<Device>,
    holder: FileHolder,
}

impl FileReference {
    pub(super) fn new(kernel: &Rc<Kernel>, device: &Rc<Device>, holder: FileHolder) -> Self {
        device.hold_file(holder);
        Self { kernel: Rc::clone(kernel), device: Rc::clone(device), holder }
    }
}

impl Drop for FileReference {
    fn drop(&mut self) {
        let (kernel, device, holder) =
            (Rc::clone(&self.kernel), Rc::clone(&self.device), self.holder);
        if holder == FileHolder::Fd {
            kernel.journal.note(Some(device.id), "close", None);
        }
        let late = kernel.profile.costs.deferred;
        if holder != FileHolder::Ring || late.is_zero() {
            return let_go(&kernel, &device, holder);
        }
        // A ring is torn down by a worker of its own, a little after its end.
        self.kernel.work.spawn(async move {
            sleep(late).await;
            let_go(&kernel, &device, holder);
        });
    }
}

fn let_go(kernel: &Rc<Kernel>, device: &Rc<Device>, holder: FileHolder) {
    if device.let_go_file(holder) {
        let (worker, device) = (Rc::clone(kernel), Rc::clone(device));
        kernel.work.spawn(async move { worker.release_file(&device).await });
    }
}

/// An open simulated char device.
pub(super) struct CharFile {
    kernel: Rc<Kernel>,
    device: Rc<Device>,
    _fd: FileReference,
}

impl CharFile {
    /// The char device was opened.
    pub(super) fn new(kernel: Rc<Kernel>, device: Rc<Device>) -> Self {
        let fd = FileReference::new(&kernel, &device, FileHolder::Fd);
        Self { kernel, device, _fd: fd }
    }
}

impl CharDevice for CharFile {
    fn serve(&self, plan: ServePlan) -> Result<Box<dyn QueueSet>, Error> {
        self.kernel.journal.note(Some(self.device.id), "serve", None);
        Ok(match self.kernel.mode {
            QueueMode::Virtual => Box::new(VirtualQueues::start(&self.kernel, &self.device, plan)),
            QueueMode::Threads => threads::start(&self.kernel, &self.device, &plan),
        })
    }
}
