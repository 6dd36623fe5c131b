//! One io_uring, owned by one thread: submissions are queued by anyone on the thread, sent and
//! waited for with one system call a round, and completions are told apart by their user data.
//!
//! ```text
//!   push, read, write, …  ──> submission queue ── enter ──> kernel
//!   (backlog when full)                                        │
//!   Completion::{Command, Moved, Message, Ready, Woken, Clock} <┘ reap
//!
//!   user data:  kind (8 bits) | generation (32 bits) | slot of the operation, or tag (24 bits)
//! ```
//!
//! Invariants: a push never fails and never enters the kernel; what comes with unknown or stale
//! user data is logged and dropped (fault F62); the ring goes before the memory that its
//! operations use, and memory that the kernel still uses then is given up on purpose.

mod operation;
mod provided;
mod setup;

pub use operation::{Operation, Transfer};
pub use provided::GROUP;
pub use setup::{RingConfig, setup_error};

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};
use nix::libc;
use slog::{Logger, warn};

use super::doorbell::Doorbell;
use crate::model::{Error, Tag};
use operation::Operations;
use provided::Provided;

#[cfg(test)]
mod tests;

const COMMAND: u8 = 1;
const OPERATION: u8 = 2;
const DOORBELL: u8 = 3;
const CANCEL: u8 = 4;
const CLOCK: u8 = 5;
const MESSAGE: u8 = 6;
const TRANSFER: u8 = 7;

/// Tries to have the kernel take what is queued; one that is short of memory takes a millisecond.
const TRIES: u32 = 1000;

fn user_data(kind: u8, generation: u32, number: u32) -> u64 {
    u64::from(kind) << 56 | u64::from(generation) << 24 | u64::from(number & 0x00ff_ffff)
}

/// What has come back from the kernel.
#[derive(Debug)]
pub enum Completion {
    /// The driver command of a tag ended with this result.
    Command(Tag, i32),
    /// The [`Transfer`] of a tag ended with this result.
    Moved(Tag, i32),
    /// A command of the driver's that is for no tag: its number, its result and its flags.
    Message(u32, i32, u32),
    /// An operation of this task has ended: wake the waker, if a combinator left one, and poll
    /// the task.
    Ready(u32, Option<Waker>),
    /// The doorbell was rung.
    Woken,
    /// The time given to [`Ring::start_clock`] has passed.
    Clock,
}

/// How [`Ring::enter`] waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// Until a completion is there.
    Forever,
    /// Until a completion is there or this much time has passed.
    AtMost(Duration),
}

/// The ring. `!Send`: the thread that made it owns it.
pub struct Ring {
    // First, so that it goes before the memory its operations use.
    uring: IoUring,
    operations: RefCell<Operations>,
    backlog: RefCell<VecDeque<squeue::Entry>>,
    backlogged: Cell<bool>,
    doorbell: Arc<Doorbell>,
    /// The waker of each task: who waits with another one (a combinator's) has it stored.
    wakers: Rc<[Waker]>,
    clock: Box<Cell<Timespec>>,
    /// What the kernel writes messages to.
    provided: RefCell<Option<Provided>>,
    deferred: bool,
    log: Logger,
}

impl Ring {
    /// Makes a ring for the tasks of `wakers`, on the thread that will use it, and puts the
    /// doorbell on it. Takes one file descriptor.
    ///
    /// # Errors
    /// As [`setup_error`] tells; `ENOMEM` and `EAGAIN` after some tries over 0.6 seconds.
    pub fn new(
        config: RingConfig,
        doorbell: &Arc<Doorbell>,
        wakers: &Rc<[Waker]>,
        log: &Logger,
    ) -> Result<Self, Error> {
        let (uring, deferred) = setup::build(config)?;
        let ring = Self {
            uring,
            operations: RefCell::default(),
            backlog: RefCell::default(),
            backlogged: Cell::new(false),
            doorbell: Arc::clone(doorbell),
            wakers: Rc::clone(wakers),
            clock: Box::new(Cell::new(Timespec::new())),
            provided: RefCell::default(),
            deferred,
            log: log.clone(),
        };
        ring.watch_doorbell();
        Ok(ring)
    }

    /// Whether the kernel works on this ring only inside [`Ring::enter`] (`DEFER_TASKRUN`).
    #[must_use]
    pub fn is_deferred(&self) -> bool {
        self.deferred
    }

    /// The user data of a driver command whose completion is to come as [`Completion::Command`]
    /// with `tag`.
    #[must_use]
    pub fn command_data(tag: Tag) -> u64 {
        user_data(COMMAND, 0, u32::from(tag.0))
    }

    /// Queues a driver command with [`Ring::command_data`] in it.
    ///
    /// # Safety
    /// Whatever memory the entry points to must stay valid until the command has completed or
    /// the ring is gone.
    #[inline]
    pub unsafe fn push_command(&self, entry: &squeue::Entry) {
        self.push(entry);
    }

    /// Queues a driver command that is for no tag; whatever comes of it comes as
    /// [`Completion::Message`] with `number`, which has 24 bits.
    ///
    /// # Safety
    /// As [`Ring::push_command`].
    pub unsafe fn push_message(&self, number: u32, entry: &squeue::Entry) {
        self.push(&entry.clone().user_data(user_data(MESSAGE, 0, number)));
    }

    /// Asks for a [`Completion::Clock`] after `time`. One at a time.
    pub fn start_clock(&self, time: Duration) {
        self.clock.set(Timespec::from(time));
        let entry = opcode::Timeout::new(self.clock.as_ptr()).build();
        self.push(&entry.user_data(user_data(CLOCK, 0, 0)));
    }

    /// Sends what is queued and waits as told; both in one system call. Returns early without
    /// having waited when the kernel is short of memory or the completion queue is full: reap
    /// and enter again.
    ///
    /// # Errors
    /// What io_uring_enter says that trying again does not cure.
    pub fn enter(&self, wait: Wait) -> Result<(), Error> {
        while self.backlogged.get() {
            self.refill();
            if self.backlogged.get() && !self.enter_once(Wait::No)? {
                return Ok(());
            }
        }
        self.enter_once(wait)?;
        // A ring that defers work does as much of it after a wait as was waited for, which is one
        // completion; the others are had together instead of one more round each.
        // SAFETY: as in `push`; the borrow ends with the statement.
        if wait != Wait::No && unsafe { self.uring.submission_shared() }.taskrun() {
            self.enter_once(Wait::No)?;
        }
        Ok(())
    }

    /// Has the kernel take all that is queued, after which files may be closed that it is about.
    /// Gives whether it has, after a bounded number of tries.
    #[must_use]
    pub fn send_all(&self) -> bool {
        for _ in 0..TRIES {
            // SAFETY: as in `push`; the borrow ends with the statement.
            let sent = unsafe { self.uring.submission_shared() }.is_empty();
            if sent && !self.backlogged.get() {
                return true;
            }
            if self.enter(Wait::No).is_err() {
                return false;
            }
        }
        false
    }

    /// Gives the ring a file, as number 0 of its own table, which saves its commands the way
    /// through the process's.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn register_file(&self, file: &impl AsRawFd) -> Result<(), Error> {
        let registered = self.uring.submitter().register_files(&[file.as_raw_fd()]);
        registered.map_err(|error| Error::from_io(&error, "cannot register a file with a ring"))
    }

    /// Lets go of the file, if there is one. A kernel may wait for commands on it that are in flight.
    pub fn unregister_file(&self) {
        // ENXIO: there is none.
        let _: std::io::Result<()> = self.uring.submitter().unregister_files();
    }

    /// The next completion that is there, without a system call.
    #[inline]
    #[must_use]
    pub fn reap(&self) -> Option<Completion> {
        loop {
            let cqe = self.next_cqe()?;
            let data = cqe.user_data();
            if (data >> 56) as u8 == COMMAND {
                return Some(Completion::Command(Tag(data as u16), cqe.result()));
            }
            if let Some(other) = self.other(&cqe) {
                return Some(other);
            }
        }
    }

    /// What a completion says that is of no command.
    #[inline(never)]
    fn other(&self, cqe: &cqueue::Entry) -> Option<Completion> {
        let data = cqe.user_data();
        let number = (data & 0x00ff_ffff) as u32;
        match (data >> 56) as u8 {
            MESSAGE => return Some(Completion::Message(number, cqe.result(), cqe.flags())),
            TRANSFER => {
                if self.operations.borrow_mut().moved(number) {
                    return Some(Completion::Moved(Tag(number as u16), cqe.result()));
                }
                self.stray(data, cqe.result());
            }
            OPERATION => {
                let generation = (data >> 24) as u32;
                let ended = self.operations.borrow_mut().end(number, generation, cqe.result());
                match ended {
                    Some((task, waker)) => return Some(Completion::Ready(task, waker)),
                    None => self.stray(data, cqe.result()),
                }
            }
            DOORBELL => {
                if !cqueue::more(cqe.flags()) {
                    self.watch_doorbell();
                }
                return Some(Completion::Woken);
            }
            CLOCK => return Some(Completion::Clock),
            CANCEL => {}
            _ => self.stray(data, cqe.result()),
        }
        None
    }

    /// Whether no completion is there.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        // SAFETY: as in `next_cqe`.
        unsafe { self.uring.completion_shared() }.is_empty()
    }

    /// Whether a [`Transfer`] is in flight, or queued.
    #[must_use]
    pub fn is_transferring(&self) -> bool {
        self.operations.borrow().is_transferring()
    }

    /// Cancels the operations in flight and waits up to `limit` until they have come back.
    /// Everything else that completes meanwhile is dropped: the ring is good for nothing more.
    /// Gives the number of those that have not come back.
    pub fn cancel_all(&self, limit: Duration) -> usize {
        let end = Instant::now() + limit;
        let keys = self.operations.borrow().in_flight();
        for data in keys {
            self.cancel(data);
        }
        loop {
            let left = self.operations.borrow().in_flight().len();
            let time = end.saturating_duration_since(Instant::now());
            if left == 0 || time.is_zero() || self.enter(Wait::AtMost(time)).is_err() {
                return left;
            }
            while self.reap().is_some() {}
        }
    }

    /// Queues an entry, behind the backlog if there is one.
    #[inline]
    fn push(&self, entry: &squeue::Entry) {
        // SAFETY: the callers hand over entries whose memory outlives the operation (leases,
        // the boxed timespec of a slot, `push_command`'s contract). No other borrow of the
        // submission queue exists: it is never kept beyond a statement and the ring is !Sync.
        let pushed =
            !self.backlogged.get() && unsafe { self.uring.submission_shared().push(entry) }.is_ok();
        if !pushed {
            self.postpone(entry);
        }
    }

    #[cold]
    fn postpone(&self, entry: &squeue::Entry) {
        self.backlog.borrow_mut().push_back(entry.clone());
        self.backlogged.set(true);
    }

    /// Moves entries from the backlog to the submission queue while there is room.
    fn refill(&self) {
        let mut backlog = self.backlog.borrow_mut();
        while let Some(entry) = backlog.front() {
            // SAFETY: as in `push`.
            if unsafe { self.uring.submission_shared().push(entry) }.is_err() {
                break;
            }
            backlog.pop_front();
        }
        self.backlogged.set(!backlog.is_empty());
    }

    /// One `io_uring_enter`, resumed after signals. `false` when the kernel wants completions
    /// reaped, or time, first.
    fn enter_once(&self, wait: Wait) -> Result<bool, Error> {
        loop {
            let entered = match wait {
                Wait::No => self.enter_raw(0),
                Wait::Forever => self.enter_raw(1),
                Wait::AtMost(time) => {
                    let time = Timespec::from(time);
                    let args = SubmitArgs::new().timespec(&time);
                    self.uring.submitter().submit_with_args(1, &args)
                }
            };
            let error = match entered {
                Ok(_) => return Ok(true),
                Err(error) => error,
            };
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::ETIME) => return Ok(true),
                Some(libc::EBUSY) => return Ok(false),
                Some(libc::EAGAIN | libc::ENOMEM) => {
                    // The host is out of memory for requests; a pause instead of a spin.
                    std::thread::sleep(Duration::from_millis(1));
                    return Ok(false);
                }
                _ => return Err(Error::from_io(&error, "io_uring_enter failed")),
            }
        }
    }

    fn enter_raw(&self, want: u32) -> std::io::Result<usize> {
        // SAFETY: as in `push`; the borrow ends with the statement.
        let queued = unsafe { self.uring.submission_shared() }.len();
        let flags = EnterFlags::GETEVENTS.bits();
        // SAFETY: no argument structure is passed; the entries queued are valid (see `push`).
        // GETEVENTS even without waiting: deferred work runs only then.
        unsafe { self.uring.submitter().enter::<libc::sigset_t>(queued as u32, want, flags, None) }
    }

    #[inline]
    fn next_cqe(&self) -> Option<cqueue::Entry> {
        // SAFETY: the only borrow of the completion queue: it ends with the statement, nothing
        // is called in it, and the ring is !Sync.
        unsafe { self.uring.completion_shared() }.next()
    }

    fn watch_doorbell(&self) {
        let fd = Fd(self.doorbell.as_fd().as_raw_fd());
        let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32).multi(true).build();
        self.push(&entry.user_data(user_data(DOORBELL, 0, 0)));
    }

    fn cancel(&self, data: u64) {
        let entry = opcode::AsyncCancel::new(data).build();
        self.push(&entry.user_data(user_data(CANCEL, 0, 0)));
    }

    fn stray(&self, data: u64, result: i32) {
        warn!(self.log, "a completion that nobody asked for was dropped";
            "user_data" => format_args!("{data:#x}"), "result" => result);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel may write to these buffers even after the ring is closed; their memory is
        // never used again instead.
        let given_up = self.operations.get_mut().give_up();
        if given_up > 0 {
            warn!(self.log, "buffers are given up: the kernel still works on them";
                "operations" => given_up);
        }
    }
}
