//! A queue without a driver: runs a [`Target`] on a thread of its own and gives it requests from
//! the caller. For testing targets, one's own as well.
//!
//! ```text
//!   submit(request, data) ──> jobs ── waker ──> queue thread: the engine, as under a driver
//!          Receiver <── (result, data) ────────────────┘
//! ```
//!
//! Invariants: jobs beyond the depth wait for a tag; stopping serves what was submitted before;
//! a job that is never answered shows as a receiver without a sender.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::libc;
use slog::{Discard, Logger, o};

use super::engine::{Arrival, Port, PortSetup, QueueControl, QueueNotice, QueuePlan, run_queue};
use super::{Errno, IoResult, QueueContext, Request, Target};
use crate::model::{
    DeviceId, DeviceName, Error, ErrorKind, IoStats, QueueExit, QueueExitCause, QueueId, Tag,
};
use crate::sys::arena::Buffer;
use crate::sys::ring::Ring;
use crate::sys::thread;

/// How long the start waits for the target's half to be open.
const START_LIMIT: Duration = Duration::from_secs(30);

/// How long stopping waits for requests that the target does not answer.
const DRAIN: Duration = Duration::from_secs(5);

/// A queue thread that serves a target.
pub struct LocalQueue {
    control: Arc<QueueControl>,
    jobs: Arc<Jobs>,
    thread: Option<JoinHandle<QueueExit>>,
}

impl LocalQueue {
    /// Starts a queue of `depth` tags for requests of up to `max_io` bytes.
    ///
    /// # Errors
    /// What `open_queue` says; kind `Panicked` when it panics; what the host does not give.
    pub fn start(target: Arc<dyn Target>, depth: u16, max_io: u32) -> Result<Self, Error> {
        Self::start_logged(target, depth, max_io, DRAIN, &Logger::root(Discard, o!()))
    }

    /// The same with a drain time of one's own, logging to `log`.
    ///
    /// # Errors
    /// As [`LocalQueue::start`].
    pub fn start_logged(
        target: Arc<dyn Target>,
        depth: u16,
        max_io: u32,
        drain: Duration,
        log: &Logger,
    ) -> Result<Self, Error> {
        let device = DeviceName::new("local")
            .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        let queue = QueueId(0);
        let name = thread::queue_thread_name(&device, queue);
        let context = QueueContext { device, id: DeviceId(0), queue, depth };
        let log = log.clone();
        let plan =
            QueuePlan { context, processors: None, max_io, registered: false, target, drain, log };
        let control = QueueControl::new(depth)?;
        let jobs = Arc::new(Jobs::default());
        let (ready, is_ready) = channel();
        let thread = thread::spawn(&name, {
            let (control, jobs) = (Arc::clone(&control), Arc::clone(&jobs));
            move || {
                let tell = |notice| {
                    // Only the first matters, and only while `start` listens.
                    let _ = match notice {
                        QueueNotice::Ready => ready.send(Ok(())),
                        QueueNotice::NotReady(error) => ready.send(Err(error)),
                        QueueNotice::Panicked(_)
                        | QueueNotice::TakenAway
                        | QueueNotice::Failed(_) => Ok(()),
                    };
                };
                run_queue(&plan, &control, |setup| Ok(LocalPort::new(&setup, jobs)), tell)
            }
        })?;
        let local = Self { control, jobs, thread: Some(thread) };
        match is_ready.recv_timeout(START_LIMIT) {
            Ok(Ok(())) => Ok(local),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::new(ErrorKind::Timeout, "the target's half did not open")
                .elapsed(START_LIMIT)),
        }
    }

    /// Gives the target a request; `data` is what a write writes. The answer comes with what a
    /// read has read, or the data that was given.
    pub fn submit(&self, request: Request, data: Vec<u8>) -> Receiver<(IoResult, Vec<u8>)> {
        let (answer, receiver) = channel();
        self.jobs.add(Job { request, data, answer });
        receiver
    }

    /// Serves what was submitted, ends the queue and tells how it ended.
    pub fn stop(mut self) -> QueueExit {
        self.end().unwrap_or(QueueExit { queue: QueueId(0), cause: QueueExitCause::StillRunning })
    }

    /// I/O counted so far.
    #[must_use]
    pub fn stats(&self) -> IoStats {
        self.control.stats()
    }

    /// Id of the queue's thread.
    #[must_use]
    pub fn tid(&self) -> Option<i32> {
        self.control.tid()
    }

    fn end(&mut self) -> Option<QueueExit> {
        self.jobs.close();
        self.control.stop();
        // The queue's thread catches its panics.
        self.thread.take().and_then(|thread| thread.join().ok())
    }
}

impl Drop for LocalQueue {
    fn drop(&mut self) {
        self.end();
    }
}

struct Job {
    request: Request,
    data: Vec<u8>,
    answer: Sender<(IoResult, Vec<u8>)>,
}

/// What was submitted and has no tag yet.
#[derive(Default)]
struct Jobs {
    waiting: Mutex<VecDeque<Job>>,
    waker: Mutex<Option<Waker>>,
    closed: AtomicBool,
}

impl Jobs {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<Job>> {
        // Nothing that holds the lock can leave the list half changed.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, job: Job) {
        self.waiting().push_back(job);
        self.wake();
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker() {
            waker.wake_by_ref();
        }
    }
}

/// A port that is fed with jobs.
struct LocalPort {
    jobs: Arc<Jobs>,
    free: Vec<Tag>,
    serving: Vec<Option<Job>>,
    /// What goes out when the round is over and counted.
    answered: Vec<(Job, IoResult)>,
}

impl LocalPort {
    fn new(setup: &PortSetup<'_>, jobs: Arc<Jobs>) -> Self {
        *jobs.waker() = Some(setup.waker.clone());
        let serving = setup.buffers.iter().map(|_| None).collect();
        Self { jobs, free: Vec::new(), serving, answered: Vec::new() }
    }
}

impl Port for LocalPort {
    fn fetch_all(&mut self, _ring: &Ring) -> Result<(), Error> {
        self.free = (0..self.serving.len() as u16).rev().map(Tag).collect();
        self.jobs.wake();
        Ok(())
    }

    fn take(&mut self) -> Option<(Tag, i32)> {
        let tag = *self.free.last()?;
        let job = self.jobs.waiting().pop_front();
        if job.is_none() && !self.jobs.closed.load(Ordering::Acquire) {
            return None;
        }
        self.free.pop();
        let result = if job.is_some() { 0 } else { -libc::ENODEV };
        self.serving[tag.index()] = job;
        Some((tag, result))
    }

    fn arrived(&mut self, tag: Tag, _result: i32, buffer: &mut Buffer) -> Arrival {
        let Some(job) = &self.serving[tag.index()] else { return Arrival::Gone };
        if job.request.data_len() > buffer.capacity() {
            return Arrival::Refused(libc::EINVAL);
        }
        let len = job.data.len().min(buffer.capacity());
        buffer.bytes_mut()[..len].copy_from_slice(&job.data[..len]);
        Arrival::Request(job.request)
    }

    fn commit(&mut self, _ring: &Ring, tag: Tag, result: i32, buffer: &mut Buffer) {
        if let Some(mut job) = self.serving[tag.index()].take() {
            if job.request.op == super::Op::Read && result >= 0 {
                job.data = buffer.bytes()[..job.request.data_len()].to_vec();
            }
            let result = if result < 0 { Err(Errno(-result)) } else { Ok(()) };
            self.answered.push((job, result));
        }
        self.free.push(tag);
        self.jobs.wake();
    }

    fn flush(&mut self, _ring: &Ring) -> bool {
        for (job, result) in self.answered.drain(..) {
            // Whoever submitted it may not care.
            let _ = job.answer.send((result, job.data));
        }
        false
    }
}
