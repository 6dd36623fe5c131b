//! The I/O buffers of one queue, a [`Buffer`] for each tag: cut from one anonymous mapping, or places
//! in the ring's table of registered buffers, whose memory is the kernel's.
//!
//! ```text
//!   mapping  |  tag 0: max_io bytes  |  tag 1  |  tag 2  | …      page aligned, populated on demand
//!   or table |  0: pages of a request |  1  |  2  | …             filled by the driver, never mapped
//!               Buffer (unique) ──> Slot <── Lease of each operation in flight
//! ```
//!
//! Invariants: there is one `Buffer` a slot, so Rust's borrows of it are borrows of the memory; the
//! kernel's are the leases: no slice is handed out while the kernel may write to it, no mutable
//! one while it may read; the mapping goes when the last buffer and the last lease are gone. An
//! idle device costs address space only.

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::model::{Error, ErrorKind};

/// Alignment of every buffer in bytes: a page, enough for `O_DIRECT` on any block device.
pub const ALIGN: usize = 4096;

/// The mapping.
struct Arena {
    base: NonNull<u8>,
    len: NonZeroUsize,
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody has a pointer into it any more: buffers and
        // leases hold an `Rc` of this arena.
        let unmapped = unsafe { munmap(self.base.cast(), self.len.get()) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
    }
}

/// Where a buffer's bytes are.
enum Memory {
    Mapped {
        _arena: Rc<Arena>,
        start: NonNull<u8>,
    },
    /// In the ring's table, at this index.
    Registered(u16),
}

struct Slot {
    memory: Memory,
    len: usize,
    /// Operations in flight on it.
    busy: Cell<u32>,
    /// Those of them that write to it.
    filling: Cell<u32>,
}

/// The memory of one tag. Not clonable: who has it has the memory.
pub struct Buffer(Rc<Slot>);

/// Maps `count` buffers of `len` bytes each, rounded up to whole pages.
///
/// # Errors
/// `ENOMEM` when the host does not give that much address space; kind `Invalid` for 0 bytes.
pub fn map(count: usize, len: usize) -> Result<Vec<Buffer>, Error> {
    let len = len.checked_next_multiple_of(ALIGN).unwrap_or(0);
    let total = count.checked_mul(len).and_then(NonZeroUsize::new).ok_or_else(|| {
        Error::new(ErrorKind::Invalid, format!("{count} buffers of {len} bytes cannot be mapped"))
    })?;
    let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nobody's memory.
    let mapped = unsafe { mmap_anonymous(None, total, prot, flags) };
    let base = mapped
        .map_err(|errno| {
            Error::from_errno(errno as i32, format!("cannot map {total} bytes of I/O buffers"))
                .hint("use fewer queues, less depth or a smaller max_io; see vm.overcommit_memory")
        })?
        .cast::<u8>();
    // SAFETY: it is our own fresh mapping. A huge page would populate many tags at once; without
    // the advice (a kernel without them) nothing is wrong.
    let _ = unsafe { madvise(base.cast(), total.get(), MmapAdvise::MADV_NOHUGEPAGE) };
    let arena = Rc::new(Arena { base, len: total });
    let slot = |index: usize| {
        // SAFETY: index < count, so the offset is within the mapping of count * len bytes.
        let start = unsafe { base.add(index * len) };
        Buffer::new(Memory::Mapped { _arena: Rc::clone(&arena), start }, len)
    };
    Ok((0..count).map(slot).collect())
}

/// `count` buffers of `len` bytes each that are places in a ring's table of registered buffers,
/// from 0 on. They take no memory; what is in them only operations on the ring can reach.
#[must_use]
pub fn registered(count: u16, len: usize) -> Vec<Buffer> {
    (0..count).map(|index| Buffer::new(Memory::Registered(index), len)).collect()
}

/// What an operation on the ring is told of a buffer.
pub(super) enum Place {
    /// Its address.
    Memory(*mut u8),
    /// Index in the ring's table, and bytes from the start of the buffer there.
    Registered(u16, usize),
}

impl Buffer {
    fn new(memory: Memory, len: usize) -> Self {
        Self(Rc::new(Slot { memory, len, busy: Cell::new(0), filling: Cell::new(0) }))
    }

    /// Its size in bytes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.len
    }

    /// Its address, for commands that carry one; 0 if its memory is the kernel's.
    #[must_use]
    pub fn address(&self) -> u64 {
        match &self.0.memory {
            Memory::Mapped { start, .. } => start.as_ptr() as u64,
            Memory::Registered(_) => 0,
        }
    }

    /// # Panics
    /// When the memory is the kernel's.
    fn start(&self) -> NonNull<u8> {
        match &self.0.memory {
            Memory::Mapped { start, .. } => *start,
            Memory::Registered(_) => {
                panic!("the data of this request is in no memory of this process")
            }
        }
    }

    /// Whether the kernel may still read from or write to it.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.0.busy.get() != 0
    }

    /// Whether the kernel may still write to it.
    #[must_use]
    pub fn is_filling(&self) -> bool {
        self.0.filling.get() != 0
    }

    /// The memory.
    ///
    /// # Panics
    /// When it is the kernel's ([`registered`]), and while an operation that fills it is in
    /// flight, which takes a future that was dropped or forgotten in the middle.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        assert!(!self.is_filling(), "the kernel still writes to this buffer");
        // SAFETY: the slot is mapped and initialised (by the kernel, with zeroes), as long as
        // `self` holds the arena; nobody writes to it: neither the kernel (asserted) nor, since
        // there is one buffer a slot and `self` is borrowed, anyone else.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.0.len) }
    }

    /// The memory, to change.
    ///
    /// # Panics
    /// As [`Buffer::bytes`], and while an operation that reads it is in flight.
    #[inline]
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(!self.is_busy(), "the kernel still uses this buffer");
        // SAFETY: as in `bytes`; `self` is borrowed mutably and no operation is in flight.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.0.len) }
    }

    /// The first `len` bytes of the memory, to change; none if the memory is the kernel's.
    ///
    /// # Panics
    /// As [`Buffer::bytes_mut`], and when there are fewer.
    #[inline]
    #[must_use]
    pub fn reach(&mut self, len: usize) -> &mut [u8] {
        match self.0.memory {
            Memory::Mapped { .. } => &mut self.bytes_mut()[..len],
            Memory::Registered(_) => &mut [],
        }
    }

    /// Gives the memory back to the host; it reads as zeroes afterwards. Does nothing while the
    /// kernel uses it, or if it is the kernel's.
    pub fn give_back(&mut self) {
        let Memory::Mapped { start, .. } = &self.0.memory else { return };
        if self.is_busy() {
            return;
        }
        // SAFETY: the range is ours, `self` is borrowed mutably and no operation is in flight, so
        // nobody sees the content change; MADV_DONTNEED on an anonymous mapping cannot fault.
        let _ = unsafe { madvise(start.cast(), self.0.len, MmapAdvise::MADV_DONTNEED) };
    }

    /// A lease for an operation that reads `range`.
    pub(super) fn lend(&self, range: Range<usize>) -> (Lease, Place, u32) {
        let (place, len) = self.cut(range);
        (Lease::new(&self.0, false), place, len)
    }

    /// A lease for an operation that writes to `range`.
    pub(super) fn lend_mut(&mut self, range: Range<usize>) -> (Lease, Place, u32) {
        let (place, len) = self.cut(range);
        (Lease::new(&self.0, true), place, len)
    }

    /// Place and length of a range, cut to what is there.
    fn cut(&self, range: Range<usize>) -> (Place, u32) {
        let end = range.end.min(self.0.len);
        let offset = range.start.min(end);
        let place = match &self.0.memory {
            // SAFETY: offset <= len, so the pointer stays within (or one past) the slot.
            Memory::Mapped { start, .. } => Place::Memory(unsafe { start.add(offset) }.as_ptr()),
            Memory::Registered(index) => Place::Registered(*index, offset),
        };
        (place, u32::try_from(end - offset).unwrap_or(u32::MAX))
    }
}

/// The kernel's hold on a buffer, kept until the operation's completion has come.
pub(super) struct Lease {
    slot: Rc<Slot>,
    fills: bool,
}

impl Lease {
    fn new(slot: &Rc<Slot>, fills: bool) -> Self {
        slot.busy.set(slot.busy.get() + 1);
        slot.filling.set(slot.filling.get() + u32::from(fills));
        Self { slot: Rc::clone(slot), fills }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.slot.busy.set(self.slot.busy.get() - 1);
        self.slot.filling.set(self.slot.filling.get() - u32::from(self.fills));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Resident bytes of the pages of a buffer.
    fn resident(buffer: &Buffer) -> usize {
        let pages = buffer.capacity() / ALIGN;
        let mut present = vec![0u8; pages];
        // SAFETY: the range is mapped and the vector has a byte for each of its pages.
        let got = unsafe {
            nix::libc::mincore(
                buffer.start().as_ptr().cast(),
                buffer.capacity(),
                present.as_mut_ptr(),
            )
        };
        assert_eq!(got, 0, "mincore");
        present.iter().filter(|byte| **byte & 1 != 0).count() * ALIGN
    }

    #[test]
    fn buffers_are_aligned_apart_and_cost_nothing_until_touched() {
        let mut buffers = map(1024, 512 << 10).expect("address space");
        assert_eq!(buffers.len(), 1024);
        for pair in buffers.windows(2) {
            assert_eq!(pair[0].address() % ALIGN as u64, 0);
            assert_eq!(pair[0].address() + (512 << 10), pair[1].address());
        }
        assert_eq!(buffers.iter().map(resident).sum::<usize>(), 0);
        buffers[7].bytes_mut()[5000] = 1;
        assert_eq!(buffers.iter().map(resident).sum::<usize>(), ALIGN);
    }

    #[test]
    fn f90_memory_that_is_given_back_is_gone_and_reads_as_zeroes() {
        let mut buffers = map(2, 64 << 10).expect("memory");
        for buffer in &mut buffers {
            buffer.bytes_mut().fill(9);
        }
        buffers[0].give_back();
        assert_eq!((resident(&buffers[0]), resident(&buffers[1])), (0, 64 << 10));
        assert!(buffers[0].bytes().iter().all(|byte| *byte == 0));
        assert!(buffers[1].bytes().iter().all(|byte| *byte == 9), "its neighbour keeps its own");
    }

    #[test]
    fn what_is_registered_has_a_place_and_no_memory() {
        let buffers = registered(3, 8192);
        assert_eq!((buffers.len(), buffers[2].capacity(), buffers[2].address()), (3, 8192, 0));
        let (_lease, place, len) = buffers[2].lend(512..9000);
        assert!(matches!(place, Place::Registered(2, 512)) && len == 8192 - 512);
        assert!(buffers[2].is_busy() && !buffers[1].is_busy());
        let looked_at = crate::sys::panic::catch(|| buffers[1].bytes().len());
        assert!(looked_at.is_err_and(|report| report.message.contains("no memory")));
    }

    #[test]
    fn sizes_are_rounded_to_pages_and_nonsense_is_refused() {
        assert_eq!(map(3, 1).expect("memory")[2].capacity(), ALIGN);
        for (count, len) in [(0, 4096), (4, 0), (usize::MAX, 8192)] {
            assert_eq!(map(count, len).err().map(|e| e.kind()), Some(ErrorKind::Invalid));
        }
    }
}
