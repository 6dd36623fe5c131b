//! The block device of a simulated ublk device, as its users see it.
//!
//! ```text
//!   SimDisk::submit ──> serving: answered at once
//!                  ├──> silent:  waits until somebody serves or the kernel gives up
//!                  └──> failing: EIO at once
//! ```
//!
//! Usable from any thread: tests and benchmarks do I/O from threads of their own while the
//! simulated kernel lives on one.
//!
//! Invariants: every accepted request is answered, or waits and is counted as in flight; a
//! [`Hold`] is a user with the node open, and the kernel keeps the device until all are gone.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::{oneshot, watch};

use crate::model::{DeviceId, Error};
use crate::target::{Errno, Op, Request};

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
    state: Mutex<State>,
    openers: watch::Sender<usize>,
    in_flight: watch::Sender<usize>,
}

struct State {
    service: Service,
    /// The disk is being removed: nobody can open it or send it anything.
    removed: bool,
    waiting: Vec<Pending>,
}

struct Pending {
    data: Vec<u8>,
    answer: oneshot::Sender<Result<Vec<u8>, Errno>>,
}

/// A user who has the block device open. Dropping it closes it.
pub struct Hold(Arc<Shared>);

/// A request on its way; await it, or [`Ticket::wait`] for it on a thread.
pub struct Ticket(oneshot::Receiver<Result<Vec<u8>, Errno>>);

impl SimDisk {
    pub(super) fn new(id: DeviceId) -> Self {
        let state = State { service: Service::Serving, removed: false, waiting: Vec::new() };
        Self(Arc::new(Shared {
            id,
            state: Mutex::new(state),
            openers: watch::Sender::new(0),
            in_flight: watch::Sender::new(0),
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

    /// Sends a request; `data` is what a write carries, and of the length that a read wants.
    pub fn submit(&self, _request: Request, data: Vec<u8>) -> Ticket {
        let (answer, answered) = oneshot::channel();
        let pending = Pending { data, answer };
        let mut state = self.0.lock();
        match (state.removed, state.service) {
            (true, _) | (_, Service::Failing) => pending.finish(Err(Errno(nix::libc::EIO))),
            (_, Service::Serving) => pending.finish(Ok(())),
            (_, Service::Silent) => {
                self.0.in_flight.send_modify(|count| *count += 1);
                state.waiting.push(pending);
            }
        }
        Ticket(answered)
    }

    /// Reads into `data` and waits for it: not on the thread of the simulated kernel.
    ///
    /// # Errors
    /// The errno the request was answered with.
    pub fn read_at(&self, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        let read = request(Op::Read, offset, data.len());
        data.copy_from_slice(&self.submit(read, vec![0; data.len()]).wait()?);
        Ok(())
    }

    /// Writes `data` and waits for it: not on the thread of the simulated kernel.
    ///
    /// # Errors
    /// The errno the request was answered with.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.submit(request(Op::Write, offset, data.len()), data.to_vec()).wait().map(drop)
    }

    /// Flushes and waits for it: not on the thread of the simulated kernel.
    ///
    /// # Errors
    /// The errno the request was answered with.
    pub fn flush(&self) -> Result<(), Errno> {
        self.submit(request(Op::Flush, 0, 0), Vec::new()).wait().map(drop)
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
        let result = match service {
            Service::Silent => return,
            Service::Serving => Ok(()),
            Service::Failing => Err(Errno(nix::libc::EIO)),
        };
        for pending in state.waiting.drain(..) {
            pending.finish(result);
            self.0.in_flight.send_modify(|count| *count -= 1);
        }
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
    fn finish(self, result: Result<(), Errno>) {
        // The issuer may have given up.
        let _ = self.answer.send(result.map(|()| self.data));
    }
}

impl Ticket {
    /// Waits on this thread.
    ///
    /// # Errors
    /// The errno the request was answered with.
    pub fn wait(self) -> Result<Vec<u8>, Errno> {
        futures::executor::block_on(self)
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
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    Request { op, offset, len, fua: false, no_unmap: false }
}

async fn becomes_zero(count: &watch::Sender<usize>) {
    let mut seen = count.subscribe();
    // Fails only when the sender is gone, which `count` is not.
    let _ = seen.wait_for(|count| *count == 0).await;
}
