//! Queues without threads: a state machine on the simulated clock.
//!
//! ```text
//!   serve: map, ring, fetch every tag ─> live: I/O is answered at once
//!   stop:  tags have come back? ─ yes ─> ended at once
//!                               ─ no ──> I/O waits ─ they come back, or the drain time is over ─> ended
//! ```
//!
//! The target is not asked: reads give zeroes. Panics and failures come from the fault plan.
//!
//! Invariants: a queue holds a mapping and a ring until it has ended; a queue that ends while the
//! device is live makes the kernel fail whatever I/O comes afterwards.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::LocalBoxFuture;
use tokio::time::timeout;

use super::device::{Device, FileHolder};
use super::disk::Service;
use super::file::FileReference;
use super::kernel::{Kernel, refuse};
use super::work::Flag;
use crate::driver::{QueueSet, ServePlan};
use crate::model::{Error, IoStats, QueueExit, QueueExitCause, QueueId};

/// The queues of one device.
pub(super) struct VirtualQueues(Rc<Inner>);

struct Inner {
    kernel: Rc<Kernel>,
    device: Rc<Device>,
    depth: u16,
    drain: Duration,
    /// What each queue could not do, by queue.
    broken: Vec<Option<Error>>,
    /// Mappings and rings of the queues that are up.
    held: RefCell<Vec<FileReference>>,
    asked: Cell<bool>,
    ended: Flag,
    exits: RefCell<Vec<QueueExit>>,
}

impl VirtualQueues {
    pub(super) fn start(kernel: &Rc<Kernel>, device: &Rc<Device>, plan: &ServePlan) -> Self {
        let depth = plan.queues.depth;
        let fetch = |queue| refuse(device.fetch(queue, depth)).err();
        let broken: Vec<_> = (0..plan.queues.count).map(fetch).collect();
        let up = broken.iter().filter(|error| error.is_none()).count();
        let holders = [FileHolder::Map, FileHolder::Ring];
        let held = (0..up).flat_map(|_| holders.map(|h| FileReference::new(kernel, device, h)));
        let inner = Inner {
            held: RefCell::new(held.collect()),
            kernel: Rc::clone(kernel),
            device: Rc::clone(device),
            depth,
            drain: plan.drain,
            broken,
            asked: Cell::new(false),
            ended: Flag::default(),
            exits: RefCell::default(),
        };
        kernel.threads.set(kernel.threads.get() + up);
        Self(Rc::new(inner))
    }
}

impl QueueSet for VirtualQueues {
    fn ready(&mut self) -> LocalBoxFuture<'_, Result<(), Error>> {
        let broken = self.0.broken.iter().flatten().next().cloned();
        std::future::ready(broken.map_or(Ok(()), |error| Err(error.command("FETCH_REQ")))).boxed()
    }

    fn stop(&self) {
        if self.0.asked.replace(true) {
            return;
        }
        let queues = Rc::clone(&self.0);
        self.0.kernel.work.spawn(async move {
            let device = &queues.device;
            if !device.cancelled.is_raised() {
                device.set_service(Service::Silent);
            }
            let back = timeout(queues.drain, device.cancelled.wait()).await.is_ok();
            queues.end(if back {
                QueueExitCause::Stopped
            } else {
                QueueExitCause::Abandoned(queues.depth)
            });
        });
    }

    fn join(&mut self) -> LocalBoxFuture<'_, Vec<QueueExit>> {
        let queues = Rc::clone(&self.0);
        Box::pin(async move {
            queues.ended.wait().await;
            queues.exits.borrow().clone()
        })
    }

    fn tids(&self) -> Vec<i32> {
        if self.0.ended.is_raised() {
            return Vec::new();
        }
        // No thread is there, so the numbers only tell queues of a device apart.
        (1..).zip(&self.0.broken).filter(|queue| queue.1.is_none()).map(|queue| queue.0).collect()
    }

    fn stats(&self) -> IoStats {
        IoStats::default()
    }
}

impl Inner {
    fn end(&self, cause: QueueExitCause) {
        let up = self.broken.iter().filter(|error| error.is_none()).count();
        self.kernel.threads.set(self.kernel.threads.get() - up);
        // The rings are gone, so the kernel knows that nobody serves any more.
        self.device.set_service(Service::Failing);
        self.held.borrow_mut().clear();
        let exits = (0..).zip(&self.broken).map(|(queue, error)| QueueExit {
            queue: QueueId(queue),
            cause: match error {
                Some(error) => QueueExitCause::Failed(error.to_string()),
                None => cause.clone(),
            },
        });
        *self.exits.borrow_mut() = exits.collect();
        self.ended.raise();
    }
}

impl Drop for VirtualQueues {
    fn drop(&mut self) {
        self.stop();
    }
}
