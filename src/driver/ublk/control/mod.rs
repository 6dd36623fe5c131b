//! One ring on one thread that carries every control command, many at a time.
//!
//! ```text
//!   send(Wire) ── channel + eventfd ──> ublkd-control thread ── SQE ──> io-wq workers ──> driver
//!       ^                                   │                           (they may sleep)
//!       └───────── oneshot (i32, Payload) ──┴── CQE <──────────────────────────────┘
//! ```
//!
//! Commands that may wait are handed to the kernel's io-wq workers at once, so the thread itself
//! never waits for one; how many run at a time is the number of workers. A command that never comes
//! back keeps its worker, hence a reserve of those.
//!
//! Invariants:
//! - a command is submitted once; only when the driver itself says `EINTR` and it is safe, it is sent
//!   again (fault F32);
//! - the memory a command points to stays where it is until its completion came, for ever if it
//!   never comes;
//! - dropping [`Control`] takes at most [`GOODBYE`], whatever the kernel holds back. (What nobody can
//!   help: as long as the kernel keeps a worker in a wait that no signal ends, it keeps the
//!   process's entry too.)

mod ring;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use futures::channel::oneshot;
use nix::sys::eventfd::{EfdFlags, EventFd};

use self::ring::Ring;
use super::abi::{Payload, Wire};
use crate::model::{Error, ErrorKind};
use crate::sys::ring::setup_error;
use crate::sys::thread;

/// How long the thread may take to make its ring.
const WELCOME: Duration = Duration::from_secs(10);
/// How long a dropped [`Control`] waits for its thread.
const GOODBYE: Duration = Duration::from_secs(2);

/// The kernel's answer: 0 or a negative errno, and the payload as it left it.
pub(super) type Answer = (i32, Payload);

/// The way to the control thread; dropping it ends the thread.
pub(super) struct Control {
    jobs: Option<Sender<Job>>,
    wake: Arc<EventFd>,
    /// Says how many commands were still out when the thread left its loop.
    ended: Receiver<usize>,
    /// Why the thread ended before it was asked to.
    broken: Arc<OnceLock<Error>>,
    thread: Option<JoinHandle<()>>,
}

struct Job {
    wire: Wire,
    answer: oneshot::Sender<Answer>,
}

impl Control {
    /// Starts the thread on `device` (an open `/dev/ublk-control`) with workers for `in_flight`
    /// commands at a time.
    ///
    /// # Errors
    /// When the ring, its workers or the thread cannot be made.
    pub(super) fn start(device: File, in_flight: u32) -> Result<Self, Error> {
        Self::start_with(device, in_flight, |run| thread::spawn("ublkd-control", run))
    }

    fn start_with(
        device: File,
        in_flight: u32,
        spawn: impl FnOnce(Box<dyn FnOnce() + Send>) -> Result<JoinHandle<()>, Error>,
    ) -> Result<Self, Error> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = EventFd::from_value_and_flags(0, flags)
            .map_err(|errno| setup_error(errno as i32, "eventfd"))?;
        let wake = Arc::new(wake);
        let (jobs, inbox) = mpsc::channel();
        let (say_ended, ended) = mpsc::channel();
        let (say_ready, ready) = mpsc::channel();
        let broken = Arc::new(OnceLock::new());
        let (thread_wake, thread_broken) = (Arc::clone(&wake), Arc::clone(&broken));
        let run = move || {
            let (made, ring) = match Ring::new(device, thread_wake, in_flight) {
                Ok(ring) => (Ok(()), Some(ring)),
                Err(error) => (Err(error), None),
            };
            // Nobody listens if `start` gave up; the closed inbox ends the loop then.
            let _ = say_ready.send(made);
            let Some(mut ring) = ring else { return };
            if let Err(error) = ring.run(&inbox) {
                let _ = thread_broken.set(error);
            }
            let _ = say_ended.send(ring.in_flight());
        };
        let thread = spawn(Box::new(run))?;
        let control = Self { jobs: Some(jobs), wake, ended, broken, thread: Some(thread) };
        match ready.recv_timeout(WELCOME) {
            Ok(Ok(())) => Ok(control),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::new(ErrorKind::Internal, "the control thread does not start")),
        }
    }

    /// Sends a command; it is on its way when this returns, and dropping the future does not take
    /// it back.
    pub(super) fn send(&self, wire: Wire) -> impl Future<Output = Result<Answer, Error>> + use<> {
        let (answer, told) = oneshot::channel();
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.send(Job { wire, answer }).is_ok());
        if sent {
            self.wake();
        }
        let broken = Arc::clone(&self.broken);
        async move {
            told.await.map_err(|_| match broken.get() {
                Some(reason) => reason.clone(),
                None => Error::new(ErrorKind::Stopping, "the driver is closed"),
            })
        }
    }

    fn wake(&self) {
        // It only fails when the counter is full, and then the thread is about to wake anyway.
        let _ = self.wake.write(1);
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.jobs = None;
        self.wake();
        // With commands still out the exiting thread waits inside the kernel for their workers,
        // perhaps for ever: then it is not joined. The same for one that says nothing in time.
        let idle = match self.ended.recv_timeout(GOODBYE) {
            Ok(out) => out == 0,
            Err(RecvTimeoutError::Disconnected) => true,
            Err(RecvTimeoutError::Timeout) => false,
        };
        if let Some(thread) = self.thread.take().filter(|_| idle) {
            // A panic there would have been reported by every command that it left unanswered.
            let _ = thread.join();
        }
    }
}
