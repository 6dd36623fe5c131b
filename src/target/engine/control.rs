//! What other threads have of a queue: ask it to end, wake it, read its counts.
//!
//! Invariant: a stop that comes before the queue is up is not forgotten.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};

use super::meter::Counters;
use crate::model::{Error, IoStats, Processors};
use crate::sys::doorbell::Doorbell;

/// The handle of one queue, made before its thread.
pub struct QueueControl {
    pub(super) doorbell: Arc<Doorbell>,
    stop: AtomicBool,
    tid: AtomicI32,
    bound: OnceLock<Processors>,
    pub(super) counters: Counters,
}

impl QueueControl {
    /// A handle for a queue of `depth` tags. Takes one file descriptor.
    ///
    /// # Errors
    /// `EMFILE` when `RLIMIT_NOFILE` is reached, with need and have.
    pub fn new(depth: u16) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self {
            // A task a tag, and the port.
            doorbell: Doorbell::new(usize::from(depth) + 1)?,
            stop: AtomicBool::new(false),
            tid: AtomicI32::new(0),
            bound: OnceLock::new(),
            counters: Counters::default(),
        }))
    }

    /// Asks the queue to end: at once if all tags have come back, else after the drain time.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.doorbell.wake(usize::MAX);
    }

    /// Id of the queue's thread while it is up.
    #[must_use]
    pub fn tid(&self) -> Option<i32> {
        Some(self.tid.load(Ordering::Relaxed)).filter(|tid| *tid != 0)
    }

    /// What the queue's thread is bound to, if it is.
    #[must_use]
    pub fn processors(&self) -> Option<Processors> {
        self.bound.get().copied()
    }

    /// I/O counted so far.
    #[must_use]
    pub fn stats(&self) -> IoStats {
        self.counters.read()
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(super) fn set_tid(&self, tid: i32) {
        self.tid.store(tid, Ordering::Relaxed);
    }

    pub(super) fn set_bound(&self, to: Processors) {
        // A queue has one thread, which binds itself once.
        let _ = self.bound.set(to);
    }
}
