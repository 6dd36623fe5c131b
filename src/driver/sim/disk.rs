//! The block device of a simulated ublk device, as its users see it.
//!
//! ```text
//!   SimDisk::submit ──> serving: a queue's wire, or answered at once where queues are virtual
//!                  ├──> silent:  waits until somebody serves or the kernel gives up
//!                  └──> failing: EIO at once
//! ```
//!
//! Usable from any thread: tests and benchmarks do I/O from threads of their own while the
//! simulated kernel lives on one.
//!
//! Invariants: every accepted request is answered, or waits and is counted as in flight; a
//! [`Hold`] is a user with the node open, and the kernel keeps the device until all are gone.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::sleep;

use super::wire::{Wire, Wires};
use crate::driver::Params;
use crate::model::{DeviceId, Error};
use crate::target::{Errno, Geometry, Op, Request};

/// Bytes that are read to look for partitions: a page.
const PARTITION_TABLE: u64 = 4096;

/// What becomes of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Service {
    /// A queue serves them.
    Serving,
    /// They wait: the queues have been asked to end, or a server is awaited.
    Silent,
    /// They fail: the kernel knows that nobody will serve them.
    Failing,
}

/// A simulated `/dev/ublkbN`. Cheap to clone, usable from any thread.
#[derive(Clone)]
pub struct SimDisk(Arc<Shared>);

struct Shared {
    id: DeviceId,
    params: Params,
    /// Changes with UPDATE_SIZE.
    size: AtomicU64,
    read_only: AtomicBool,
    state: Mutex<State>,
    /// To the queues that have threads; none where queues are virtual.
    wires: Wires,
    /// Requests go to the queues in turn.
    turn: AtomicUsize,
    openers: watch::Sender<usize>,
    in_flight: Arc<watch::Sender<usize>>,
}

struct State {
    service: Service,
    /// The disk is being removed: nobody can open it or send it anything.
    removed: bool,
    waiting: Vec<Pending>,
}

/// The block devices of a simulated host, by number: for a host agent or an example that looks from
/// outside, on any thread.
#[derive(Clone, Default)]
pub struct SimDisks(Arc<Mutex<BTreeMap<DeviceId, SimDisk>>>);

impl SimDisks {
    /// The block device of a started device.
    ///
    /// # Errors
    /// `ENXIO` when there is none.
    pub fn get(&self, id: DeviceId) -> Result<SimDisk, Error> {
        let disk = self.lock().get(&id).cloned();
        disk.ok_or_else(|| Error::from_errno(nix::libc::ENXIO, "it is not started").id(id))
    }

    pub(super) fn attach(&self, id: DeviceId, disk: SimDisk) {
        self.lock().insert(id, disk);
    }

    pub(super) fn detach(&self, id: DeviceId) {
        self.lock().remove(&id);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<DeviceId, SimDisk>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that was accepted. Dropping it answers `EIO`.
pub(super) struct Pending {
    pub(super) request: Request,
    pub(super) data: Vec<u8>,
    /// Gone only when it is answered.
    answer: Option<oneshot::Sender<Result<Vec<u8>, Errno>>>,
    in_flight: Arc<watch::Sender<usize>>,
}

/// A user who has the block device open. Dropping it closes it.
pub struct Hold(Arc<Shared>);

/// A request on its way; await it, or [`Ticket::wait`] for it on a thread.
pub struct Ticket(oneshot::Receiver<Result<Vec<u8>, Errno>>);

impl SimDisk {
    pub(super) fn new(id: DeviceId, params: Params, wires: Wires) -> Self {
        let state = State { service: Service::Serving, removed: false, waiting: Vec::new() };
        Self(Arc::new(Shared {
            id,
            size: AtomicU64::new(params.geometry.size),
            read_only: AtomicBool::new(params.geometry.read_only),
            params,
            state: Mutex::new(state),
            wires,
            turn: AtomicUsize::new(0),
            openers: watch::Sender::new(0),
            in_flight: Arc::new(watch::Sender::new(0)),
        }))
    }

    /// Opens the block device until the [`Hold`] is dropped, as a mount or a process would.
    ///
    /// # Errors
    /// `ENXIO` when the disk is being removed.
    pub fn hold(&self) -> Result<Hold, Error> {
        if self.0.lock().removed {
            let error = Error::from_errno(nix::libc::ENXIO, "the simulated disk is being removed");
            return Err(error.id(self.0.id));
        }
        self.0.openers.send_modify(|openers| *openers += 1);
        Ok(Hold(Arc::clone(&self.0)))
    }

    /// Sends a request. `data` is what a write carries, and of the length that a read wants.
    /// What exceeds the disk, its block or its largest request is answered with an error at once.
    pub fn submit(&self, request: Request, data: Vec<u8>) -> Ticket {
        let (answer, answered) = oneshot::channel();
        let in_flight = Arc::clone(&self.0.in_flight);
        in_flight.send_modify(|count| *count += 1);
        let pending = Pending { request, data, answer: Some(answer), in_flight };
        let refused = self.0.check(&pending);
        let mut state = self.0.lock();
        match (refused, state.removed, state.service) {
            (Some(errno), _, _) => pending.finish(Err(Errno(errno))),
            (_, true, _) | (_, _, Service::Failing) => drop(pending),
            (_, _, Service::Silent) => state.waiting.push(pending),
            (_, _, Service::Serving) => self.serve(pending),
        }
        Ticket(answered)
    }

    fn serve(&self, pending: Pending) {
        match self.next_wire() {
            Some(wire) => wire.send(pending),
            None => pending.finish(Ok(())),
        }
    }

    fn next_wire(&self) -> Option<&Wire> {
        let turn = self.0.turn.fetch_add(1, Ordering::Relaxed);
        self.0.wires.get(turn.checked_rem(self.0.wires.len())?)
    }

    /// Reads into `data` and waits for it: not on the thread of the simulated kernel.
    ///
    /// # Errors
    /// The errno that a request was answered with.
    pub fn read_at(&self, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        let mut at = offset;
        for part in data.chunks_mut(self.0.params.max_io as usize) {
            let read = request(Op::Read, at, part.len());
            part.copy_from_slice(&self.submit(read, vec![0; part.len()]).wait()?);
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Writes `data` and waits for it: not on the thread of the simulated kernel.
    ///
    /// # Errors
    /// The errno that a request was answered with.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let mut at = offset;
        for part in data.chunks(self.0.params.max_io as usize) {
            self.submit(request(Op::Write, at, part.len()), part.to_vec()).wait()?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Flushes and waits for it: not on the thread of the simulated kernel.
    ///
    /// # Errors
    /// The errno the request was answered with.
    pub fn flush(&self) -> Result<(), Errno> {
        self.submit(request(Op::Flush, 0, 0), Vec::new()).wait().map(drop)
    }

    /// Size, block sizes and abilities, as its users see them.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    /// Users who have it open.
    #[must_use]
    pub fn openers(&self) -> usize {
        *self.0.openers.borrow()
    }

    /// Requests that wait for an answer.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        *self.0.in_flight.borrow()
    }

    /// Changes what becomes of requests, those that wait included.
    pub(super) fn set_service(&self, service: Service) {
        let mut state = self.0.lock();
        state.service = service;
        let waiting = match service {
            Service::Silent => return,
            Service::Serving | Service::Failing => std::mem::take(&mut state.waiting),
        };
        drop(state);
        if service == Service::Failing {
            self.0.wires.iter().for_each(Wire::fail_untaken);
            return drop(waiting);
        }
        waiting.into_iter().for_each(|pending| self.serve(pending));
    }

    /// Its users see another size from now on.
    pub(super) fn resize(&self, size: u64) {
        self.0.size.store(size, Ordering::Relaxed);
    }

    /// Writes are refused from now on, or not any more.
    pub(super) fn set_read_only(&self, on: bool) {
        self.0.read_only.store(on, Ordering::Relaxed);
    }

    /// Completes when queues have answered all that they were given.
    pub(super) async fn idle(&self) {
        // The kernel looks from time to time, too.
        while self.in_flight() > self.0.lock().waiting.len() {
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Reads the first blocks, as the kernel does when a disk appears; newer ones after START_DEV,
    /// so nobody waits for it.
    pub(super) fn scan_partitions(&self) {
        let len = self.0.params.geometry.size.min(PARTITION_TABLE);
        // It fits: it is bounded.
        let len = usize::try_from(len).unwrap_or_default();
        drop(self.submit(request(Op::Read, 0, len), vec![0; len]));
    }

    /// What an opener (udev, a partition scan) still reads while the disk is being removed.
    pub(super) async fn probe(&self) -> Result<(), Errno> {
        let block = self.0.params.geometry.logical_block as usize;
        self.submit(request(Op::Read, 0, block), vec![0; block]).await.map(drop)
    }

    /// From now on nobody can open it or send it anything; what is in flight goes on.
    pub(super) fn remove(&self) {
        self.0.lock().removed = true;
    }

    /// Completes when nothing is in flight.
    pub(super) async fn drained(&self) {
        becomes_zero(&self.0.in_flight).await;
    }

    /// Completes when nobody has it open.
    pub(super) async fn closed(&self) {
        becomes_zero(&self.0.openers).await;
    }
}

impl Pending {
    /// Answers it; a success gives the data back.
    pub(super) fn finish(mut self, result: Result<(), Errno>) {
        if let Some(answer) = self.answer.take() {
            // The issuer may have given up.
            let _ = answer.send(result.map(|()| std::mem::take(&mut self.data)));
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.in_flight.send_modify(|count| *count -= 1);
    }
}

impl Ticket {
    /// Waits on this thread.
    ///
    /// # Errors
    /// The errno the request was answered with.
    pub fn wait(self) -> Result<Vec<u8>, Errno> {
        crate::sys::thread::wait(self)
    }
}

impl Future for Ticket {
    type Output = Result<Vec<u8>, Errno>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let gone = Err(Errno(nix::libc::EIO));
        Pin::new(&mut self.0).poll(cx).map(|answer| answer.unwrap_or(gone))
    }
}

impl Shared {
    /// What the block layer would not let through.
    fn check(&self, Pending { request, data, .. }: &Pending) -> Option<i32> {
        let (geometry, max_io) = (self.geometry(), &self.params.max_io);
        let len = u64::from(request.len);
        let block = u64::from(geometry.logical_block);
        let changes = !matches!(request.op, Op::Read | Op::Flush);
        if request.data_len() != data.len() || (request.data_len() > *max_io as usize) {
            return Some(nix::libc::EINVAL);
        }
        if !len.is_multiple_of(block) || !request.offset.is_multiple_of(block) {
            return Some(nix::libc::EINVAL);
        }
        if changes && geometry.read_only {
            return Some(nix::libc::EPERM);
        }
        let end = request.offset.checked_add(len);
        end.is_none_or(|end| end > geometry.size).then_some(nix::libc::EIO)
    }

    fn geometry(&self) -> Geometry {
        let size = self.size.load(Ordering::Relaxed);
        let read_only = self.read_only.load(Ordering::Relaxed);
        Geometry { size, read_only, ..self.params.geometry }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that holds the lock can panic half way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.openers.send_modify(|openers| *openers -= 1);
    }
}

fn request(op: Op, offset: u64, len: usize) -> Request {
    // No part is larger than the largest request, which fits.
    Request::new(op, offset, u32::try_from(len).unwrap_or(u32::MAX))
}

async fn becomes_zero(count: &watch::Sender<usize>) {
    let mut seen = count.subscribe();
    // Fails only when the sender is gone, which `count` is not.
    let _ = seen.wait_for(|count| *count == 0).await;
}
