//! Wakes a queue thread from any other thread, and costs nothing while it is awake.
//!
//! ```text
//!   any thread:  set the task's bit ─> rung = true ─> asleep? write the eventfd ─> CQE on the ring
//!   queue thread: asleep = true ─> rung? stay up, else sleep in io_uring_enter ─> asleep = false
//! ```
//!
//! Invariants: either the waking thread sees `asleep` or the queue thread sees `rung` (both are
//! `SeqCst`), so no wakeup is lost; the eventfd is written at most once a sleep.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Wake, Waker};

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::model::Error;

/// The wakeups of one queue thread, a bit for each of its tasks.
pub struct Doorbell {
    rung: AtomicBool,
    asleep: AtomicBool,
    ready: Box<[AtomicU64]>,
    event: EventFd,
}

impl Doorbell {
    /// A doorbell for `tasks` tasks. Takes one file descriptor.
    ///
    /// # Errors
    /// `EMFILE` when `RLIMIT_NOFILE` is reached, with need and have; `ENOMEM`.
    pub fn new(tasks: usize) -> Result<Arc<Self>, Error> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|errno| super::ring::setup_error(errno as i32, "eventfd"))?;
        let ready = (0..tasks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let rung = AtomicBool::new(false);
        Ok(Arc::new(Self { rung, asleep: AtomicBool::new(false), ready, event }))
    }

    /// Marks `task` as ready and wakes the thread if it sleeps. A task out of range only wakes.
    pub fn wake(&self, task: usize) {
        if let Some(word) = self.ready.get(task / 64) {
            word.fetch_or(1 << (task % 64), Ordering::Release);
        }
        self.rung.store(true, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            // Only a counter near 2^64 could refuse, and then the eventfd is readable anyway.
            let _: Result<usize, Errno> = self.event.write(1);
        }
    }

    /// A waker of `task`.
    #[must_use]
    pub fn waker(self: &Arc<Self>, task: usize) -> Waker {
        struct Task(Arc<Doorbell>, usize);
        impl Wake for Task {
            fn wake(self: Arc<Self>) {
                self.0.wake(self.1);
            }
            fn wake_by_ref(self: &Arc<Self>) {
                self.0.wake(self.1);
            }
        }
        Waker::from(Arc::new(Task(Arc::clone(self), task)))
    }

    /// Whether anything was woken since the last [`Doorbell::take`].
    #[must_use]
    pub fn is_rung(&self) -> bool {
        self.rung.load(Ordering::Acquire)
    }

    /// Calls `each` with every task woken since the last time.
    pub fn take(&self, mut each: impl FnMut(usize)) {
        if !self.rung.swap(false, Ordering::SeqCst) {
            return;
        }
        for (index, word) in self.ready.iter().enumerate() {
            let mut bits = word.swap(0, Ordering::Acquire);
            while bits != 0 {
                each(index * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }

    /// Says that the thread is about to sleep. `false`: something was woken, do not.
    #[must_use]
    pub fn fall_asleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        let quiet = !self.rung.load(Ordering::SeqCst);
        if !quiet {
            self.asleep.store(false, Ordering::Relaxed);
        }
        quiet
    }

    /// Says that the thread is up again.
    pub fn awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
