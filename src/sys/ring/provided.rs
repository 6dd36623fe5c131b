//! Memory that the kernel takes piece by piece to write messages to (a ring of provided buffers).
//!
//! ```text
//!   one mapping:  | entries: which pieces are free | piece 0 | piece 1 | … |
//!   provide ─> kernel takes a piece, fills it ─> Message with its number ─> read ─> free again
//! ```
//!
//! Invariants: the mapping belongs to the ring and goes after it; a piece is read only between its
//! message and its return.

use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::cqueue;
use io_uring::types::BufRingEntry;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::{Ring, setup_error};
use crate::model::Error;

/// Pieces; a power of two.
const PIECES: u16 = 16;
/// Bytes of the entries, which have to start at a page.
const ENTRIES: usize = 4096;

/// The group that the kernel knows the pieces by.
pub const GROUP: u16 = 1;

pub(super) struct Provided {
    base: NonNull<u8>,
    len: NonZeroUsize,
    piece: usize,
    tail: u16,
}

impl Drop for Provided {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and the ring that used it is gone.
        let unmapped = unsafe { munmap(self.base.cast(), self.len.get()) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
    }
}

impl Provided {
    fn map(piece: usize) -> Result<Self, Error> {
        let failed = |errno: nix::errno::Errno| setup_error(errno as i32, "mmap");
        let len = NonZeroUsize::new(ENTRIES + usize::from(PIECES) * piece)
            .ok_or_else(|| failed(nix::errno::Errno::EINVAL))?;
        let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nobody's memory.
        let base = unsafe { mmap_anonymous(None, len, prot, MapFlags::MAP_PRIVATE) };
        Ok(Self { base: base.map_err(failed)?.cast(), len, piece, tail: 0 })
    }

    /// Gives a piece to the kernel.
    fn free(&mut self, number: u16) {
        let entries = self.base.as_ptr().cast::<BufRingEntry>();
        let place = usize::from(self.tail % PIECES);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: place < PIECES, and the entries of all pieces fit into the page; the kernel reads
        // an entry only once the tail, which is stored after it, has passed it.
        unsafe {
            let entry = &mut *entries.add(place);
            entry.set_addr(self.start(number) as u64);
            entry.set_len(self.piece as u32);
            entry.set_bid(number);
            let tail = BufRingEntry::tail(entries).cast::<AtomicU16>();
            (*tail).store(self.tail, Ordering::Release);
        }
    }

    fn start(&self, number: u16) -> *mut u8 {
        // SAFETY: callers pass numbers below PIECES, so it stays within the mapping.
        unsafe { self.base.as_ptr().add(ENTRIES + usize::from(number) * self.piece) }
    }
}

impl Ring {
    /// Gives the kernel memory for messages of up to `bytes` bytes, as group [`GROUP`]. Once a ring.
    ///
    /// # Errors
    /// What the kernel says; `EINVAL` before Linux 5.19.
    pub fn provide(&self, bytes: u16) -> Result<(), Error> {
        let mut provided = Provided::map(usize::from(bytes).next_multiple_of(8))?;
        let entries = provided.base.as_ptr() as u64;
        // SAFETY: the page is mapped until after the ring is gone: the ring keeps it.
        let registered = unsafe {
            self.uring.submitter().register_buf_ring_with_flags(entries, PIECES, GROUP, 0)
        };
        registered
            .map_err(|error| setup_error(error.raw_os_error().unwrap_or(0), "register_buf_ring"))?;
        for number in 0..PIECES {
            provided.free(number);
        }
        *self.provided.borrow_mut() = Some(provided);
        Ok(())
    }

    /// Appends the message of a [`super::Completion::Message`] with this result and these flags to
    /// `into`, as numbers of 16 bits, and gives its memory back to the kernel.
    pub fn message(&self, result: i32, flags: u32, into: &mut Vec<u16>) {
        let mut provided = self.provided.borrow_mut();
        let (Some(provided), Some(number)) = (&mut *provided, cqueue::buffer_select(flags)) else {
            return;
        };
        if number >= PIECES {
            return;
        }
        let count = usize::try_from(result).unwrap_or(0).min(provided.piece) / 2;
        // SAFETY: within the piece, which the kernel has filled and does not have any more; pieces
        // start at multiples of eight.
        let words =
            unsafe { std::slice::from_raw_parts(provided.start(number).cast::<u16>(), count) };
        into.extend_from_slice(words);
        provided.free(number);
    }
}
