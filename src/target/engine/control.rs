//! What other threads have of a queue: ask it to end, wake it, read its counts.
//!
//! Invariants: only the queue's thread writes the counters, so they need no locked instructions;
//! a stop that comes before the queue is up is not forgotten.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use crate::model::{Error, IoStats};
use crate::sys::doorbell::Doorbell;
use crate::target::{Op, Request};

/// The handle of one queue, made before its thread.
pub struct QueueControl {
    pub(super) doorbell: Arc<Doorbell>,
    stop: AtomicBool,
    tid: AtomicI32,
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
}

/// [`IoStats`] that one thread counts and any thread reads.
#[derive(Default)]
pub(super) struct Counters {
    reads: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
    fua: AtomicU64,
    discards: AtomicU64,
    write_zeroes: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    errors: AtomicU64,
}

fn add(counter: &AtomicU64, amount: u64) {
    // One writer: a load and a store do, without the cost of a locked addition.
    counter.store(counter.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
}

impl Counters {
    /// Counts a request that was answered with `result`.
    pub(super) fn count(&self, request: &Request, result: i32) {
        if result < 0 {
            add(&self.errors, 1);
        }
        let bytes = u64::try_from(result).unwrap_or(0);
        match request.op {
            Op::Read => {
                add(&self.reads, 1);
                add(&self.read_bytes, bytes);
            }
            Op::Write => {
                add(&self.writes, 1);
                add(&self.written_bytes, bytes);
            }
            Op::Flush => add(&self.flushes, 1),
            Op::Discard => add(&self.discards, 1),
            Op::WriteZeroes => add(&self.write_zeroes, 1),
        }
        if request.fua {
            add(&self.fua, 1);
        }
    }

    fn read(&self) -> IoStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        IoStats {
            reads: get(&self.reads),
            writes: get(&self.writes),
            flushes: get(&self.flushes),
            fua: get(&self.fua),
            discards: get(&self.discards),
            write_zeroes: get(&self.write_zeroes),
            read_bytes: get(&self.read_bytes),
            written_bytes: get(&self.written_bytes),
            errors: get(&self.errors),
        }
    }
}
