//! Operations of targets on the ring: futures that may be dropped, or forgotten, at any time.
//!
//! ```text
//!   Waiting ── completion ──> Done ── polled ──> Free
//!      └─ dropped: cancelled ──> Orphan ── completion ──> Free
//! ```
//!
//! A [`Transfer`] is an operation without a future: its tag is its name, and its end is told as it is.
//!
//! Invariants: the slot holds the lease of the buffer until the completion has come, whatever
//! became of the future; a generation a slot tells a late completion from the slot's next use.

use std::future::Future;
use std::marker::PhantomData;
use std::mem;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use io_uring::types::{Fd, FsyncFlags, Timespec};
use io_uring::{opcode, squeue};
use nix::libc;

use super::{OPERATION, Ring, TRANSFER, user_data};
use crate::model::Tag;
use crate::sys::arena::{Buffer, Lease, Place};

enum State {
    Free,
    /// In flight. The waker is of a combinator inside the task, or of another executor; without
    /// one the engine polls the task directly.
    Waiting(Option<Waker>),
    Orphan,
    Done(i32),
}

struct Slot {
    generation: u32,
    task: u32,
    state: State,
    lease: Option<Lease>,
    /// What a timeout points to.
    time: Option<Box<Timespec>>,
}

/// The operations of one ring that are in flight or not looked at yet.
#[derive(Default)]
pub(super) struct Operations {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Of each tag, the buffer of its transfer in flight.
    transfers: Vec<Option<Lease>>,
}

/// All the data of a read or write, to be moved between its buffer and a file by one operation that
/// no future waits for.
#[derive(Debug, Clone, Copy)]
pub struct Transfer<'a> {
    /// The file.
    pub file: BorrowedFd<'a>,
    /// First byte in the file.
    pub offset: u64,
    /// A write is on stable storage when it ends (`RWF_DSYNC`).
    pub durable: bool,
}

impl Operations {
    /// Takes a slot; gives its number and the user data of the submission.
    fn begin(&mut self, task: u32, lease: Option<Lease>, time: Option<Box<Timespec>>) -> u32 {
        let state = State::Waiting(None);
        if let Some(number) = self.free.pop() {
            let slot = &mut self.slots[number as usize];
            let generation = slot.generation.wrapping_add(1);
            *slot = Slot { generation, task, state, lease, time };
            return number;
        }
        self.slots.push(Slot { generation: 0, task, state, lease, time });
        self.slots.len() as u32 - 1
    }

    fn free(&mut self, number: u32) {
        self.slots[number as usize].state = State::Free;
        self.free.push(number);
    }

    /// Takes a result in: gives the task and the waker to wake, or nothing for a stranger.
    pub(super) fn end(
        &mut self,
        number: u32,
        generation: u32,
        result: i32,
    ) -> Option<(u32, Option<Waker>)> {
        let slot = self.slots.get_mut(number as usize)?;
        if slot.generation != generation {
            return None;
        }
        let task = slot.task;
        slot.lease = None;
        slot.time = None;
        let waker = match mem::replace(&mut slot.state, State::Done(result)) {
            State::Waiting(waker) => waker,
            State::Orphan => {
                self.free(number);
                None
            }
            settled => {
                slot.state = settled;
                return None;
            }
        };
        Some((task, waker))
    }

    /// Notes that a tag's transfer has begun.
    #[inline]
    fn moving(&mut self, tag: Tag, lease: Lease) {
        if self.transfers.len() <= tag.index() {
            self.transfers.resize_with(tag.index() + 1, || None);
        }
        self.transfers[tag.index()] = Some(lease);
    }

    /// Notes that a tag's transfer has ended; `false` if there was none.
    #[inline]
    pub(super) fn moved(&mut self, tag: u32) -> bool {
        self.transfers.get_mut(tag as usize).and_then(Option::take).is_some()
    }

    pub(super) fn is_transferring(&self) -> bool {
        self.transfers.iter().any(Option::is_some)
    }

    /// User data of everything that the kernel has.
    pub(super) fn in_flight(&self) -> Vec<u64> {
        let slots = self.slots.iter().enumerate();
        let slots = slots
            .filter(|(_, slot)| matches!(slot.state, State::Waiting(_) | State::Orphan))
            .map(|(number, slot)| user_data(OPERATION, slot.generation, number as u32));
        let transfers = self.transfers.iter().enumerate().filter(|(_, lease)| lease.is_some());
        slots.chain(transfers.map(|(tag, _)| user_data(TRANSFER, 0, tag as u32))).collect()
    }

    /// Leaves the memory of operations in flight to the kernel for good; says of how many.
    pub(super) fn give_up(&mut self) -> usize {
        let leases = self.slots.iter_mut().filter_map(|slot| slot.lease.take());
        let transfers = self.transfers.iter_mut().filter_map(Option::take);
        leases.chain(transfers).map(mem::forget).count()
    }
}

/// An operation on the ring; resolves to the kernel's result: a count, 0, or a negative errno.
///
/// It is queued when it is made. Dropped before its end it is cancelled; its buffer stays busy
/// until the kernel has really let go of it.
#[must_use = "an operation that is not awaited is cancelled"]
pub struct Operation<'a> {
    ring: &'a Ring,
    task: u32,
    number: u32,
    generation: u32,
    /// The file and the buffer stay borrowed.
    used: PhantomData<&'a mut Buffer>,
}

impl Ring {
    /// Reads into `range` of the buffer from `offset` of the file.
    pub fn read<'a>(
        &'a self,
        task: u32,
        file: BorrowedFd<'a>,
        buffer: &'a mut Buffer,
        range: Range<usize>,
        offset: u64,
    ) -> Operation<'a> {
        let (lease, place, len) = buffer.lend_mut(range);
        self.begin(task, read(file, &place, len, offset), Some(lease), None)
    }

    /// Writes `range` of the buffer to `offset` of the file; `durable` with `RWF_DSYNC`.
    pub fn write<'a>(
        &'a self,
        task: u32,
        file: BorrowedFd<'a>,
        buffer: &'a Buffer,
        range: Range<usize>,
        offset: u64,
        durable: bool,
    ) -> Operation<'a> {
        let (lease, place, len) = buffer.lend(range);
        self.begin(task, write(file, &place, len, offset, durable), Some(lease), None)
    }

    /// Fills the first `len` bytes of the buffer of `tag` from a file, or writes them to it; comes as
    /// [`super::Completion::Moved`]. One at a time for each tag. The file must be open until
    /// [`Ring::enter`] or [`Ring::send_all`] has had the kernel take it.
    #[inline]
    pub fn transfer(
        &self,
        tag: Tag,
        writes: bool,
        transfer: Transfer<'_>,
        buffer: &mut Buffer,
        len: usize,
    ) {
        let Transfer { file, offset, durable } = transfer;
        let (lease, entry) = if writes {
            let (lease, place, len) = buffer.lend(0..len);
            (lease, write(file, &place, len, offset, durable))
        } else {
            let (lease, place, len) = buffer.lend_mut(0..len);
            (lease, read(file, &place, len, offset))
        };
        self.operations.borrow_mut().moving(tag, lease);
        self.push(&entry.user_data(user_data(TRANSFER, 0, tag.0.into())));
    }

    /// Makes what was written to the file durable (fdatasync).
    pub fn datasync<'a>(&'a self, task: u32, file: BorrowedFd<'a>) -> Operation<'a> {
        let fd = Fd(file.as_raw_fd());
        let entry = opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build();
        self.begin(task, entry, None, None)
    }

    /// `fallocate(2)`.
    pub fn fallocate<'a>(
        &'a self,
        task: u32,
        file: BorrowedFd<'a>,
        mode: i32,
        offset: u64,
        len: u64,
    ) -> Operation<'a> {
        let fd = Fd(file.as_raw_fd());
        let entry = opcode::Fallocate::new(fd, len).offset(offset).mode(mode).build();
        self.begin(task, entry, None, None)
    }

    /// Waits until the file is ready for `events` (`POLLIN` and the like).
    pub fn poll<'a>(&'a self, task: u32, file: BorrowedFd<'a>, events: u32) -> Operation<'a> {
        let entry = opcode::PollAdd::new(Fd(file.as_raw_fd()), events).build();
        self.begin(task, entry, None, None)
    }

    /// Ends with `-ETIME` after `time`.
    pub fn sleep(&self, task: u32, time: Duration) -> Operation<'_> {
        let time = Box::new(Timespec::from(time));
        let entry = opcode::Timeout::new(&raw const *time).build();
        self.begin(task, entry, None, Some(time))
    }

    fn begin(
        &self,
        task: u32,
        entry: squeue::Entry,
        lease: Option<Lease>,
        time: Option<Box<Timespec>>,
    ) -> Operation<'_> {
        let mut operations = self.operations.borrow_mut();
        let number = operations.begin(task, lease, time);
        let generation = operations.slots[number as usize].generation;
        self.push(&entry.user_data(user_data(OPERATION, generation, number)));
        Operation { ring: self, task, number, generation, used: PhantomData }
    }
}

#[inline]
fn read(file: BorrowedFd<'_>, place: &Place, len: u32, offset: u64) -> squeue::Entry {
    let fd = Fd(file.as_raw_fd());
    match *place {
        Place::Memory(start) => opcode::Read::new(fd, start, len).offset(offset).build(),
        Place::Registered(index, from) => {
            opcode::ReadFixed::new(fd, from as *mut u8, len, index).offset(offset).build()
        }
    }
}

#[inline]
fn write(
    file: BorrowedFd<'_>,
    place: &Place,
    len: u32,
    offset: u64,
    durable: bool,
) -> squeue::Entry {
    let fd = Fd(file.as_raw_fd());
    let flags = if durable { libc::RWF_DSYNC } else { 0 };
    match *place {
        Place::Memory(start) => {
            opcode::Write::new(fd, start, len).offset(offset).rw_flags(flags).build()
        }
        Place::Registered(index, from) => {
            let write = opcode::WriteFixed::new(fd, from as *const u8, len, index);
            write.offset(offset).rw_flags(flags).build()
        }
    }
}

impl Future for Operation<'_> {
    type Output = i32;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<i32> {
        let own = self.ring.wakers.get(self.task as usize);
        let own = own.is_some_and(|own| own.will_wake(cx.waker()));
        let foreign = (!own).then(|| cx.waker().clone());
        let mut operations = self.ring.operations.borrow_mut();
        let slot = &mut operations.slots[self.number as usize];
        assert!(slot.generation == self.generation, "polled after its end");
        match &mut slot.state {
            State::Done(result) => {
                let result = *result;
                operations.free(self.number);
                Poll::Ready(result)
            }
            State::Waiting(known) => {
                let old = mem::replace(known, foreign);
                // Dropping a waker runs code of others: not while the operations are borrowed.
                drop(operations);
                drop(old);
                Poll::Pending
            }
            State::Free | State::Orphan => panic!("polled after its end"),
        }
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        let ring = self.ring;
        {
            let mut operations = ring.operations.borrow_mut();
            let slot = &mut operations.slots[self.number as usize];
            if slot.generation != self.generation {
                return;
            }
            match slot.state {
                State::Waiting(_) => slot.state = State::Orphan,
                State::Done(_) => return operations.free(self.number),
                State::Free | State::Orphan => return,
            }
        }
        ring.cancel(user_data(OPERATION, self.generation, self.number));
        // The file may be closed right after this, and its number may become another file's:
        // the kernel has to have the operation by then. If it does not take it, nothing is left
        // to be done here.
        let _ = ring.send_all();
    }
}
