//! Anonymous memory that several threads copy into and out of, populated on demand.
//!
//! ```text
//!   queue 0 ── write ─┐       ┌───────┬───────┬───────┬─ ─     one mapping, cut into chunks
//!   queue 1 ── read ──┼─ lock ┤ chunk │ chunk │ chunk │        of 64 KiB; a chunk's bytes move
//!   queue 2 ── clear ─┘       └───────┴───────┴───────┴─ ─     under one of 256 locks
//! ```
//!
//! Invariants: nobody outside gets a reference into the mapping; bytes move under their chunk's
//! lock, so that two queues that are told to write the same blocks race as on a disk (either
//! content) and not as in memory (undefined); the mapping moves only under all of the locks, and
//! whoever copies holds one at a time; it never becomes shorter. Pages nobody
//! wrote, and pages that were cleared, take no memory and read as zeroes.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use nix::errno::Errno;
use nix::sys::mman::{
    MRemapFlags, MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, mremap, munmap,
};
use nix::unistd::{SysconfVar, sysconf};

/// Bytes that move under one lock: a multiple of every page size that Linux has by default.
const CHUNK: usize = 64 << 10;
/// Enough that queues seldom meet; 2 KiB a mapping.
const LOCKS: usize = 256;

/// A range that is not inside of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the range is not inside of the memory")]
pub struct OutOfRange;

/// The memory. Dropping it gives it back.
pub struct SharedMemory {
    /// Where the mapping is; changes under all locks only.
    base: AtomicPtr<u8>,
    /// Its length; changes with it, and only grows.
    len: AtomicUsize,
    page: usize,
    locks: Box<[RwLock<()>]>,
}

// SAFETY: the mapping belongs to no thread, and all access to it goes through the locks.
unsafe impl Send for SharedMemory {}
// SAFETY: as above; the pointer never leaves this module.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Maps `len` bytes of zeroes. Takes address space and no memory.
    ///
    /// # Errors
    /// `EINVAL` for no bytes at all, `ENOMEM` when the address space is full or the host does not
    /// overcommit.
    pub fn new(len: u64) -> Result<Self, Errno> {
        let len = usize::try_from(len).map_err(|_| Errno::ENOMEM)?;
        let len = NonZeroUsize::new(len).ok_or(Errno::EINVAL)?;
        let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nobody's
        // memory.
        let base = unsafe { mmap_anonymous(None, len, prot, flags) }?.cast::<u8>();
        let page = sysconf(SysconfVar::PAGE_SIZE)?.and_then(|size| usize::try_from(size).ok());
        let memory = Self {
            base: AtomicPtr::new(base.as_ptr()),
            len: AtomicUsize::new(len.get()),
            page: page.unwrap_or(CHUNK),
            locks: (0..LOCKS).map(|_| RwLock::new(())).collect(),
        };
        // A core dump is no backup of a disk, and a child of fork must not double its memory.
        for advice in [MmapAdvise::MADV_DONTDUMP, MmapAdvise::MADV_DONTFORK] {
            // SAFETY: our own mapping; both change what happens at a dump or fork only.
            unsafe { madvise(base.cast(), len.get(), advice) }?;
        }
        Ok(memory)
    }

    /// Makes it `len` bytes long, the new ones zeroes; nothing if it is that long already. Waits for
    /// whoever copies.
    ///
    /// # Errors
    /// `ENOMEM` when the address space is full or the host does not overcommit; it is as it was.
    pub fn grow(&self, len: u64) -> Result<(), Errno> {
        let len = usize::try_from(len).map_err(|_| Errno::ENOMEM)?;
        let alone: Vec<_> = self.locks.iter().map(exclusive).collect();
        let old = self.len.load(Ordering::Relaxed);
        if len > old {
            let base = NonNull::new(self.base()).ok_or(Errno::EFAULT)?.cast();
            // SAFETY: our own mapping; whoever copies into or out of it holds one of the locks, and
            // all of them are held here.
            let moved = unsafe { mremap(base, old, len, MRemapFlags::MREMAP_MAYMOVE, None) }?;
            self.base.store(moved.cast().as_ptr(), Ordering::Relaxed);
            self.len.store(len, Ordering::Relaxed);
        }
        drop(alone);
        Ok(())
    }

    /// Where the mapping is: for whoever holds a lock, which orders this with a move.
    fn base(&self) -> *mut u8 {
        self.base.load(Ordering::Relaxed)
    }

    /// Copies bytes from `offset` on out into `into`.
    ///
    /// # Errors
    /// [`OutOfRange`]; `into` is as it was then.
    pub fn read(&self, offset: u64, mut into: &mut [u8]) -> Result<(), OutOfRange> {
        for piece in self.pieces(offset, into.len())? {
            let (here, rest) = into.split_at_mut(piece.len());
            into = rest;
            let _readers = self.shared(&piece);
            // SAFETY: `piece` is inside of the mapping, which lives as long as `self`, and has
            // the length of `here`; the lock keeps writers out; `here` is a borrow of other
            // memory, since no reference into the mapping exists.
            unsafe {
                let from = self.base().add(piece.start);
                ptr::copy_nonoverlapping(from, here.as_mut_ptr(), here.len());
            }
        }
        Ok(())
    }

    /// Copies `from` in, from `offset` on.
    ///
    /// # Errors
    /// [`OutOfRange`]; nothing is written then.
    pub fn write(&self, offset: u64, mut from: &[u8]) -> Result<(), OutOfRange> {
        for piece in self.pieces(offset, from.len())? {
            let (here, rest) = from.split_at(piece.len());
            from = rest;
            let _alone = self.exclusive(&piece);
            // SAFETY: as in `read`; the lock keeps everybody else out.
            unsafe {
                let into = self.base().add(piece.start);
                ptr::copy_nonoverlapping(here.as_ptr(), into, here.len());
            }
        }
        Ok(())
    }

    /// Makes `len` bytes from `offset` on read as zeroes and gives whole pages among them back.
    ///
    /// # Errors
    /// [`OutOfRange`]; nothing is cleared then.
    pub fn clear(&self, offset: u64, len: u64) -> Result<(), OutOfRange> {
        let len = usize::try_from(len).map_err(|_| OutOfRange)?;
        for piece in self.pieces(offset, len)? {
            let _alone = self.exclusive(&piece);
            let first = piece.start.next_multiple_of(self.page).min(piece.end);
            let last = (piece.end - piece.end % self.page).max(first);
            self.zero(piece.start..first);
            self.zero(last..piece.end);
            if !self.give_back(first..last) {
                self.zero(first..last);
            }
        }
        Ok(())
    }

    /// Gives whole pages back. The kernel refuses if they are locked (`mlockall` of the host).
    fn give_back(&self, pages: Range<usize>) -> bool {
        if pages.is_empty() {
            return true;
        }
        // SAFETY: the pages are inside of our own private anonymous mapping, where the advice
        // means zeroes from now on; the caller holds the lock.
        unsafe {
            let Some(start) = NonNull::new(self.base().add(pages.start)) else { return false };
            madvise(start.cast(), pages.len(), MmapAdvise::MADV_DONTNEED).is_ok()
        }
    }

    /// Overwrites a part of one chunk with zeroes. The caller holds the chunk's lock.
    fn zero(&self, part: Range<usize>) {
        // SAFETY: `part` is inside of the mapping, and the caller holds the lock.
        unsafe { ptr::write_bytes(self.base().add(part.start), 0, part.len()) }
    }

    /// Cuts a range at the borders of the chunks.
    fn pieces(
        &self,
        offset: u64,
        len: usize,
    ) -> Result<impl Iterator<Item = Range<usize>> + use<>, OutOfRange> {
        let start = usize::try_from(offset).map_err(|_| OutOfRange)?;
        let end = start.checked_add(len).filter(|end| *end <= self.len()).ok_or(OutOfRange)?;
        let mut at = start;
        Ok(std::iter::from_fn(move || {
            let piece = at..end.min((at / CHUNK + 1) * CHUNK);
            at = piece.end;
            (!piece.is_empty()).then_some(piece)
        }))
    }

    fn lock(&self, piece: &Range<usize>) -> &RwLock<()> {
        &self.locks[piece.start / CHUNK % LOCKS]
    }

    fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    // A poisoned lock guards nothing that could be half done: there is no value behind it.
    fn shared(&self, piece: &Range<usize>) -> RwLockReadGuard<'_, ()> {
        self.lock(piece).read().unwrap_or_else(PoisonError::into_inner)
    }

    fn exclusive(&self, piece: &Range<usize>) -> RwLockWriteGuard<'_, ()> {
        exclusive(self.lock(piece))
    }
}

fn exclusive(lock: &RwLock<()>) -> RwLockWriteGuard<'_, ()> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and nobody has a pointer into it.
        let unmapped =
            NonNull::new(self.base()).map(|base| unsafe { munmap(base.cast(), self.len()) });
        debug_assert_eq!(unmapped, Some(Ok(())), "munmap of our own mapping");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type TestResult = Result<(), Box<dyn std::error::Error>>;

    impl SharedMemory {
        /// Pages that take memory now.
        fn resident(&self) -> usize {
            let mut seen = vec![0u8; self.len().div_ceil(self.page)];
            // SAFETY: asks about our own mapping; the vector has a byte for each page of it.
            let told =
                unsafe { nix::libc::mincore(self.base().cast(), self.len(), seen.as_mut_ptr()) };
            assert_eq!(told, 0);
            seen.iter().filter(|page| **page & 1 == 1).count()
        }

        fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
            let mut bytes = vec![0xEE; len];
            self.read(offset, &mut bytes).expect("in range");
            bytes
        }
    }

    #[test]
    fn f78_no_bytes_and_too_many_are_errors_and_a_block_is_enough() -> TestResult {
        assert_eq!(SharedMemory::new(0).err(), Some(Errno::EINVAL));
        assert_eq!(SharedMemory::new(i64::MAX as u64).err(), Some(Errno::ENOMEM));
        let memory = SharedMemory::new(512)?;
        assert_eq!(memory.write(0, &[7; 512]), Ok(()));
        assert_eq!(memory.bytes(0, 512), [7; 512]);
        assert_eq!(memory.clear(0, 512), Ok(()));
        assert_eq!(memory.bytes(0, 512), [0; 512]);
        Ok(())
    }

    #[test]
    fn ranges_that_reach_over_the_end_change_nothing() -> TestResult {
        let memory = SharedMemory::new(4096)?;
        let mut bytes = [1; 1024];
        for offset in [3584, 4096, u64::MAX, u64::MAX - 512] {
            assert_eq!(memory.read(offset, &mut bytes), Err(OutOfRange), "{offset}");
            assert_eq!(memory.write(offset, &bytes), Err(OutOfRange), "{offset}");
            assert_eq!(memory.clear(offset, 1024), Err(OutOfRange), "{offset}");
        }
        assert_eq!(bytes, [1; 1024]);
        assert_eq!(memory.bytes(0, 4096), [0; 4096]);
        Ok(())
    }

    #[test]
    fn memory_is_taken_by_writing_and_given_back_by_clearing() -> TestResult {
        let len = 4 * CHUNK;
        let memory = SharedMemory::new(1 << 40)?;
        let far = (1 << 39) - CHUNK as u64;
        let one = SharedMemory::new(len as u64)?;
        memory.write(far, &vec![0xA5; len])?;
        one.write(0, &vec![0xA5; len])?;
        assert_eq!(one.resident(), len / one.page);
        // All but the first and the last 512 bytes: the pages at the edges stay.
        one.clear(512, len as u64 - 1024)?;
        assert_eq!(one.resident(), 2);
        assert_eq!(one.bytes(0, 1024), [[0xA5; 512], [0; 512]].concat());
        assert_eq!(one.bytes(len as u64 - 1024, 1024), [[0; 512], [0xA5; 512]].concat());
        assert!(one.bytes(512, len - 1024).iter().all(|byte| *byte == 0));
        assert_eq!(memory.bytes(far, len), vec![0xA5; len]);
        Ok(())
    }

    #[test]
    fn locked_pages_are_cleared_although_the_kernel_keeps_them() -> TestResult {
        let memory = SharedMemory::new(8192)?;
        memory.write(0, &[0xA5; 8192])?;
        // SAFETY: locks pages of our own mapping; unmapping unlocks them.
        unsafe {
            nix::sys::mman::mlock(NonNull::new(memory.base()).ok_or("no base")?.cast(), 8192)
        }?;
        memory.clear(0, 8192)?;
        assert_eq!(memory.bytes(0, 8192), [0; 8192]);
        Ok(())
    }

    #[test]
    fn it_grows_under_those_who_copy_and_keeps_what_was_written() -> TestResult {
        let memory = SharedMemory::new(CHUNK as u64)?;
        std::thread::scope(|scope| {
            for byte in 1..=3_u64 {
                let memory = &memory;
                scope.spawn(move || {
                    for _ in 0..200 {
                        memory.write(byte * 512, &[byte as u8; 512]).expect("in range");
                        assert_eq!(memory.bytes(byte * 512, 512), [byte as u8; 512]);
                    }
                });
            }
            for chunks in 1..=64_u64 {
                memory.grow(chunks * CHUNK as u64).expect("room");
            }
        });
        assert_eq!(memory.bytes(0, 512), [0; 512]);
        assert_eq!(memory.bytes(1024, 512), [2; 512]);
        memory.write(63 * CHUNK as u64, &[9; CHUNK])?;
        assert_eq!(memory.bytes(62 * CHUNK as u64, CHUNK), vec![0; CHUNK]);
        assert!(memory.grow(i64::MAX as u64).is_err());
        memory.grow(512)?;
        assert_eq!(memory.bytes(63 * CHUNK as u64, 512), [9; 512], "it became shorter");
        Ok(())
    }

    #[test]
    fn writers_of_the_same_blocks_leave_whole_chunks() -> TestResult {
        let memory = SharedMemory::new(CHUNK as u64)?;
        std::thread::scope(|scope| {
            for byte in 1..=4 {
                let memory = &memory;
                scope.spawn(move || {
                    for _ in 0..50 {
                        memory.write(0, &[byte; CHUNK]).expect("in range");
                        memory.clear(0, 512).expect("in range");
                    }
                });
            }
        });
        let end = memory.bytes(0, CHUNK);
        assert!((1..=4).contains(&end[CHUNK - 1]));
        assert!(end[512..].iter().all(|byte| *byte == end[CHUNK - 1]));
        Ok(())
    }
}
