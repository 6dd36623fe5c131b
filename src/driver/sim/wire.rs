//! What connects users of a simulated disk with a queue thread: a mailbox, and the queue's port.
//!
//! ```text
//!   SimDisk (any thread) ── send ──> Wire ── waker, take ──> WirePort ── the engine ── target
//!   kernel ── cancel: tags come back ──^          └── Up, Fetched, Down ──> kernel
//! ```
//!
//! Invariants: a request is in the mailbox, or with the one tag that serves it, or answered; what a
//! queue has taken and not answered when it ends stays unanswered until the kernel has released
//! the file of its server, as on a real kernel.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use nix::libc;
use tokio::sync::mpsc::UnboundedSender;

use super::disk::Pending;
use crate::driver::queue::{Arrival, Port, PortSetup};
use crate::model::{Error, QueueId, Tag};
use crate::sys::arena::Buffer;
use crate::sys::ring::Ring;
use crate::target::{Errno, Op};

/// The wires of a device, one a queue.
pub(super) type Wires = Arc<[Wire]>;

/// The mailbox of one queue.
#[derive(Default)]
pub(super) struct Wire(Mutex<Mailbox>);

#[derive(Default)]
struct Mailbox {
    untaken: VecDeque<Pending>,
    /// Taken by a queue that ended without an answer.
    orphans: Vec<Pending>,
    /// Tags come back instead of requests.
    cancelled: bool,
    waker: Option<Waker>,
}

/// What a queue thread tells the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// It has its mapping and its ring.
    Up(QueueId),
    /// Every tag of it is fetched.
    Fetched(QueueId),
    /// Mapping and ring are gone.
    Down(QueueId),
}

/// A queue's port onto its wire.
pub(super) struct WirePort {
    wires: Wires,
    queue: QueueId,
    told: UnboundedSender<Told>,
    free: Vec<Tag>,
    serving: Vec<Option<Pending>>,
}

impl Wire {
    /// A queue is to serve this.
    pub(super) fn send(&self, request: Pending) {
        self.change(|mailbox| mailbox.untaken.push_back(request));
    }

    /// Fetched tags come back from now on, or do not any more.
    pub(super) fn cancel(&self, cancelled: bool) {
        self.change(|mailbox| mailbox.cancelled = cancelled);
    }

    /// Answers `EIO` to what no queue has taken.
    pub(super) fn fail_untaken(&self) {
        let untaken = std::mem::take(&mut self.lock().untaken);
        drop(untaken);
    }

    /// What a queue had taken when it ended is issued again, or answered with `EIO`.
    pub(super) fn release_orphans(&self, reissue: bool) {
        let mut mailbox = self.lock();
        let orphans = std::mem::take(&mut mailbox.orphans);
        if reissue {
            mailbox.untaken.extend(orphans);
        }
    }

    fn change(&self, change: impl FnOnce(&mut Mailbox)) {
        let mut mailbox = self.lock();
        change(&mut mailbox);
        if let Some(waker) = &mailbox.waker {
            waker.wake_by_ref();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Mailbox> {
        // Nothing that holds the lock can panic half way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WirePort {
    pub(super) fn new(setup: &PortSetup<'_>, wires: Wires, told: UnboundedSender<Told>) -> Self {
        let queue = setup.queue.queue;
        let serving = setup.buffers.iter().map(|_| None).collect();
        let port = Self { wires, queue, told, free: Vec::new(), serving };
        if let Some(wire) = port.wire() {
            wire.lock().waker = Some(setup.waker.clone());
        }
        port.tell(Told::Up(queue));
        port
    }

    fn wire(&self) -> Option<&Wire> {
        self.wires.get(usize::from(self.queue.0))
    }

    fn tell(&self, told: Told) {
        // Fails only when the simulated kernel is gone, and nobody cares any more.
        let _ = self.told.send(told);
    }
}

impl Port for WirePort {
    fn fetch_all(&mut self, _: &Ring) -> Result<(), Error> {
        self.free = (0..self.serving.len() as u16).rev().map(Tag).collect();
        self.tell(Told::Fetched(self.queue));
        Ok(())
    }

    fn take(&mut self) -> Option<(Tag, i32)> {
        let tag = *self.free.last()?;
        let mut mailbox = self.wire()?.lock();
        let request = mailbox.untaken.pop_front();
        if request.is_none() && !mailbox.cancelled {
            return None;
        }
        drop(mailbox);
        self.free.pop();
        self.serving[tag.index()] = request;
        Some((tag, 0))
    }

    fn arrived(&mut self, tag: Tag, _: i32, buffer: &mut Buffer) -> Arrival {
        let Some(Pending { request, data, .. }) = &self.serving[tag.index()] else {
            return Arrival::Gone;
        };
        let Some(room) = buffer.bytes_mut().get_mut(..request.data_len()) else {
            return Arrival::Refused(libc::EINVAL);
        };
        if request.op == Op::Write {
            room.copy_from_slice(data);
        }
        Arrival::Request(*request)
    }

    fn commit(&mut self, _: &Ring, tag: Tag, result: i32, buffer: &mut Buffer) {
        self.free.push(tag);
        if let Some(mut pending) = self.serving[tag.index()].take() {
            if pending.request.op == Op::Read
                && let Some(read) = buffer.bytes().get(..pending.request.data_len())
            {
                pending.data.copy_from_slice(read);
            }
            pending.finish(if result < 0 { Err(Errno(-result)) } else { Ok(()) });
        }
        // The tag is free for what waits in the mailbox.
        if let Some(wire) = self.wire() {
            wire.change(|_| {});
        }
    }
}

impl Drop for WirePort {
    fn drop(&mut self) {
        if let Some(wire) = self.wires.get(usize::from(self.queue.0)) {
            let mut mailbox = wire.lock();
            mailbox.waker = None;
            mailbox.orphans.extend(self.serving.drain(..).flatten());
        }
        self.tell(Told::Down(self.queue));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Params;
    use crate::driver::sim::SimDisk;
    use crate::model::{DeviceId, DeviceName};
    use crate::sys::arena;
    use crate::target::{Geometry, QueueContext, Request};

    #[test]
    fn what_a_queue_took_waits_for_the_release_of_its_server()
    -> Result<(), Box<dyn std::error::Error>> {
        let wires: Wires = [Wire::default()].into();
        let params =
            Params { geometry: Geometry::new(1 << 20, 512), max_io: 4096, memory_alignment: None };
        let disk = SimDisk::new(DeviceId(0), params, Arc::clone(&wires));
        let queue = QueueContext {
            device: DeviceName::new("vol")?,
            id: DeviceId(0),
            queue: QueueId(0),
            depth: 1,
        };
        let mut buffers = arena::map(1, 4096)?;
        let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
        for reissue in [true, false] {
            let waker = Waker::noop().clone();
            let setup = PortSetup { queue: &queue, buffers: &buffers, waker };
            let mut port = WirePort::new(&setup, Arc::clone(&wires), told.clone());
            port.free = vec![Tag(0)];
            if reissue {
                disk.submit(Request::new(Op::Read, 0, 512), vec![0; 512]);
            }
            assert_eq!(port.take(), Some((Tag(0), 0)));
            let read = Arrival::Request(Request::new(Op::Read, 0, 512));
            assert_eq!(port.arrived(Tag(0), 0, &mut buffers[0]), read);
            drop(port);
            assert_eq!(heard.try_recv(), Ok(Told::Up(QueueId(0))));
            assert_eq!(heard.try_recv(), Ok(Told::Down(QueueId(0))));
            wires[0].fail_untaken();
            assert_eq!(disk.in_flight(), 1, "nobody has answered it");
            wires[0].release_orphans(reissue);
            assert_eq!(disk.in_flight(), usize::from(reissue));
        }
        Ok(())
    }
}
