//! Queues without threads: a state machine on the simulated clock.
//!
//! ```text
//!   serve: map, ring, fetch every tag ─> live: I/O is answered at once
//!      tags have come back ─> told, ended
//!      asked to stop ─> I/O waits ─> tags have come back, or the drain time is over ─> ended
//! ```
//!
//! The target is not asked: reads give zeroes. Panics and failures come from the fault plan.
//!
//! They are stricter than queues with threads, which serve on until they end: whoever asks queues to
//! end before STOP_DEV has returned finds I/O unserved.
//!
//! Invariants: a queue holds a mapping and a ring until it has ended; a queue that ends while the
//! device is live makes the kernel fail whatever I/O comes afterwards.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;

use futures::FutureExt;
use futures::future::{LocalBoxFuture, select};
use tokio::time::timeout;

use super::device::{Device, FileHolder};
use super::disk::Service;
use super::file::FileReference;
use super::kernel::{Kernel, refuse};
use super::work::Flag;
use crate::driver::{QueueEvent, QueueSet, ServePlan};
use crate::model::{Error, IoStats, Processors, QueueExit, QueueExitCause, QueueId};

/// The queues of one device.
pub(super) struct VirtualQueues(Rc<Inner>);

struct Inner {
    kernel: Rc<Kernel>,
    device: Rc<Device>,
    plan: ServePlan,
    /// What each queue could not do, by queue.
    broken: Vec<Option<Error>>,
    /// Mappings and rings of the queues that are up.
    held: RefCell<Vec<FileReference>>,
    asked: Flag,
    ended: Flag,
    exits: RefCell<Vec<QueueExit>>,
}

impl VirtualQueues {
    pub(super) fn start(kernel: &Rc<Kernel>, device: &Rc<Device>, plan: ServePlan) -> Self {
        let depth = plan.queues.depth;
        let fetch = |queue| {
            let reserved = refuse(device.reserve(queue, depth));
            reserved.map(|()| device.fetched(depth)).err()
        };
        let broken: Vec<_> = (0..plan.queues.count).map(fetch).collect();
        let up = broken.iter().filter(|error| error.is_none()).count();
        let holders = [FileHolder::Map, FileHolder::Ring];
        let held = (0..up).flat_map(|_| holders.map(|h| FileReference::new(kernel, device, h)));
        let inner = Rc::new(Inner {
            held: RefCell::new(held.collect()),
            kernel: Rc::clone(kernel),
            device: Rc::clone(device),
            plan,
            broken,
            asked: Flag::default(),
            ended: Flag::default(),
            exits: RefCell::default(),
        });
        kernel.threads.set(kernel.threads.get() + up);
        kernel.work.spawn(Rc::clone(&inner).live());
        Self(inner)
    }
}

impl QueueSet for VirtualQueues {
    fn ready(&mut self) -> LocalBoxFuture<'_, Result<(), Error>> {
        let broken = self.0.broken.iter().flatten().next().cloned();
        std::future::ready(broken.map_or(Ok(()), |error| Err(error.command("FETCH_REQ")))).boxed()
    }

    fn stop(&self) {
        self.0.asked.raise();
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

    fn processors(&self) -> Vec<Option<Processors>> {
        let Inner { plan, .. } = &*self.0;
        (0..plan.queues.count).map(|n| plan.affinity.get(usize::from(n)).copied()).collect()
    }

    fn stats(&self) -> IoStats {
        IoStats::default()
    }
}

impl Inner {
    async fn live(self: Rc<Self>) {
        let Self { device, plan, .. } = &*self;
        select(pin!(self.asked.wait()), pin!(device.cancelled.wait())).await;
        if device.cancelled.is_raised() && !self.asked.is_raised() {
            for queue in self.up() {
                (plan.events)(QueueEvent::TakenAway(queue));
            }
        } else if !device.cancelled.is_raised() {
            device.set_service(Service::Silent);
        }
        let back = timeout(plan.drain, device.cancelled.wait()).await.is_ok();
        let abandoned = QueueExitCause::Abandoned(plan.queues.depth);
        self.end(&if back { QueueExitCause::Stopped } else { abandoned });
    }

    fn up(&self) -> impl Iterator<Item = QueueId> {
        (0..).map(QueueId).zip(&self.broken).filter(|queue| queue.1.is_none()).map(|queue| queue.0)
    }

    fn end(&self, cause: &QueueExitCause) {
        self.kernel.threads.set(self.kernel.threads.get() - self.up().count());
        self.device.lost_server();
        self.held.borrow_mut().clear();
        let exits = (0..).zip(&self.broken).map(|(queue, error)| QueueExit {
            queue: QueueId(queue),
            cause: match error {
                Some(error) => QueueExitCause::Failed(error.to_string()),
                None => cause.clone(),
            },
        });
        *self.exits.borrow_mut() = exits.collect();
        self.kernel.journal.note(Some(self.device.id), "queues ended", None);
        self.ended.raise();
    }
}

impl Drop for VirtualQueues {
    fn drop(&mut self) {
        self.stop();
    }
}
