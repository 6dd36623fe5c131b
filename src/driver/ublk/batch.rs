//! One queue of a char device as a [`Port`] whose commands are for many tags at once.
//!
//! ```text
//!   PREP_IO_CMDS, once ─> FETCH_IO_CMDS, again and again ─> message: the tags that have a request
//!                                                                        │
//!   a round's answers, one list ── COMMIT_IO_CMDS <── commit ── service ─┘
//!   FETCH_IO_CMDS ends with -ENODEV: the device stops; what is not in service is gone at once, the
//!   rest when it is answered
//! ```
//!
//! Invariants: a list stays where it is until the kernel has said that it has read it; a tag is
//! handed out once for each time that the kernel announced it.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;

use libublk::sys::{self, ublk_batch_io};
use nix::libc;

use super::requests::{Requests, Transfer};
use super::sqe::Sqe;
use crate::driver::queue::{Arrival, Port, PortSetup};
use crate::model::{Error, Tag};
use crate::sys::arena::Buffer;
use crate::sys::ring::{GROUP, Ring};

/// Number of the message of the fetch command.
const FETCH: u32 = 0;
/// Number of the message of the first list; the others count on.
const FIRST_LIST: u32 = 1;
/// Most tags that the kernel announces at a time.
const TAGS: u16 = 128;

/// A queue of `/dev/ublkcN` with `UBLK_F_BATCH_IO`.
pub(super) struct BatchPort {
    requests: Requests,
    addresses: Vec<u64>,
    /// What was announced and not handed out yet.
    tags: Vec<u16>,
    /// Handed out of `tags` already.
    taken: usize,
    /// Tags that have come back for good.
    gone: VecDeque<Tag>,
    /// Tags that are with us.
    held: Vec<bool>,
    /// The device stops.
    stopping: bool,
    /// Lists of elements, by number; those in `free` are not with the kernel.
    lists: Vec<Vec<u64>>,
    free: Vec<usize>,
    /// Answers that are to go with the next list.
    answers: Vec<u64>,
}

impl BatchPort {
    /// # Errors
    /// As [`Requests::new`].
    pub(super) fn new(
        file: &Arc<File>,
        setup: &PortSetup<'_>,
        transfer: Transfer,
    ) -> Result<Self, Error> {
        let depth = setup.buffers.len();
        Ok(Self {
            requests: Requests::new(file, setup, transfer)?,
            addresses: setup.buffers.iter().map(Buffer::address).collect(),
            tags: Vec::with_capacity(depth),
            taken: 0,
            gone: VecDeque::with_capacity(depth),
            held: vec![false; depth],
            stopping: false,
            lists: Vec::new(),
            free: Vec::new(),
            answers: Vec::with_capacity(2 * depth),
        })
    }

    /// Words of eight bytes that a tag takes in a list: `struct ublk_elem_header`, and the
    /// buffer's address where the kernel copies.
    fn words(&self) -> usize {
        if self.requests.has_addresses() { 2 } else { 1 }
    }

    /// Appends a tag to the answers.
    fn add(&mut self, tag: Tag, result: i32) {
        let header = u64::from(tag.0) | u64::from(tag.0) << 16 | u64::from(result as u32) << 32;
        self.answers.push(header);
        if self.requests.has_addresses() {
            self.answers.push(self.addresses[tag.index()]);
        }
    }

    /// Sends the answers as a list.
    fn send(&mut self, ring: &Ring, op: u32) {
        let number = self.free.pop().unwrap_or_else(|| {
            self.lists.push(Vec::with_capacity(self.answers.capacity()));
            self.lists.len() - 1
        });
        let words = self.words();
        let list = &mut self.lists[number];
        list.clear();
        list.append(&mut self.answers);
        let flags = if words == 2 { sys::UBLK_BATCH_F_HAS_BUF_ADDR as u16 } else { 0 };
        let payload = ublk_batch_io {
            q_id: self.requests.queue,
            flags,
            nr_elem: (list.len() / words) as u16,
            elem_bytes: (8 * words) as u8,
            ..Default::default()
        };
        let bytes = 8 * list.len() as u32;
        let sqe = Sqe::of_queue(op, payload);
        let sqe = sqe.list(list.as_ptr() as u64, bytes);
        // SAFETY: the list is not touched until its message has come; the kernel reads it while
        // the thread of the ring is inside it, so not after the thread has dropped it.
        unsafe { ring.push_message(FIRST_LIST + number as u32, sqe.entry()) };
    }

    fn fetch(&self, ring: &Ring) {
        let payload = ublk_batch_io {
            q_id: self.requests.queue,
            elem_bytes: size_of::<u16>() as u8,
            ..Default::default()
        };
        let sqe = Sqe::of_queue(sys::UBLK_U_IO_FETCH_IO_CMDS, payload);
        // SAFETY: it points to no memory but what the ring provides.
        unsafe { ring.push_message(FETCH, sqe.multishot(GROUP).entry()) };
    }

    /// The fetch command said something.
    fn fetched(&mut self, ring: &Ring, result: i32, flags: u32) -> Result<(), Error> {
        if self.taken == self.tags.len() {
            self.tags.clear();
            self.taken = 0;
        }
        ring.message(result, flags, &mut self.tags);
        match result {
            sys::UBLK_IO_RES_ABORT => {
                self.stopping = true;
                let held = self.held.iter().zip(self.requests.tags());
                self.gone.extend(held.filter_map(|(held, tag)| (!held).then_some(tag)));
                // What was announced before is handed out first.
                let announced = self.tags[self.taken..].to_vec();
                self.gone.retain(|tag| !announced.contains(&tag.0));
            }
            // All the memory was with us: it is free again by now.
            0.. | NO_MEMORY if io_uring::cqueue::more(flags) => {}
            0.. | NO_MEMORY => self.fetch(ring),
            errno => return Err(Error::from_errno(-errno, "FETCH_IO_CMDS failed")),
        }
        Ok(())
    }

    /// A list was read.
    fn listed(&mut self, number: usize, result: i32) -> Result<(), Error> {
        let Some(list) = self.lists.get(number) else { return Ok(()) };
        // The first one prepares the tags, which has no count as its result.
        if result != 0 && result != 8 * list.len() as i32 {
            let errno = if result < 0 { -result } else { libc::EIO };
            let text = format!("a list of {} answers was not taken", list.len() / self.words());
            return Err(Error::from_errno(errno, text));
        }
        self.free.push(number);
        Ok(())
    }
}

const NO_MEMORY: i32 = -libc::ENOBUFS;

impl Port for BatchPort {
    fn fetch_all(&mut self, ring: &Ring) -> Result<(), Error> {
        ring.register_file(&self.requests.file)?;
        ring.provide(TAGS * size_of::<u16>() as u16)?;
        for tag in self.requests.tags() {
            self.add(tag, 0);
        }
        self.send(ring, sys::UBLK_U_IO_PREP_IO_CMDS);
        self.fetch(ring);
        Ok(())
    }

    fn message(&mut self, ring: &Ring, number: u32, result: i32, flags: u32) -> Result<(), Error> {
        match number.checked_sub(FIRST_LIST) {
            None => self.fetched(ring, result, flags),
            Some(list) => self.listed(list as usize, result),
        }
    }

    fn take(&mut self) -> Option<(Tag, i32)> {
        if let Some(tag) = self.tags.get(self.taken) {
            self.taken += 1;
            return Some((Tag(*tag), 0));
        }
        self.gone.pop_front().map(|tag| (tag, sys::UBLK_IO_RES_ABORT))
    }

    fn arrived(&mut self, tag: Tag, result: i32, buffer: &mut Buffer) -> Arrival {
        match result {
            0 => {
                self.held[tag.index()] = true;
                self.requests.arrived(tag, buffer)
            }
            _ => Arrival::Gone,
        }
    }

    fn commit(&mut self, _: &Ring, tag: Tag, result: i32, buffer: &mut Buffer) {
        let result = self.requests.answer(tag, result, buffer);
        self.add(tag, result);
        self.held[tag.index()] = false;
        if self.stopping {
            self.gone.push_back(tag);
        }
    }

    fn flush(&mut self, ring: &Ring) -> bool {
        if !self.answers.is_empty() {
            self.send(ring, sys::UBLK_U_IO_COMMIT_IO_CMDS);
        }
        self.taken < self.tags.len() || !self.gone.is_empty()
    }
}
