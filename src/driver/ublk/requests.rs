//! The requests of one queue: what their descriptors ask for, and how their data gets to the buffers
//! of the tags and back.
//!
//! ```text
//!   descriptor (mapped, read-only) ── arrived ──> Request, its data in the buffer if it writes
//!   Transfer: Kernel copies | User copies by pread, pwrite | Registered pages | None moves any
//! ```
//!
//! Invariants: a descriptor is read only between the announcement of its request and the answer;
//! data is copied at those two moments only, while the tag belongs to this process.

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;

use libublk::sys::{self, ublksrv_io_desc};
use nix::libc::{self, off_t};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::unistd::{SysconfVar, sysconf};

use crate::driver::Features;
use crate::driver::queue::{Arrival, PortSetup};
use crate::model::{Error, Tag};
use crate::sys::arena::Buffer;
use crate::target::{DataUse, Op, Request};

const SECTOR_SHIFT: u32 = 9;

/// Who moves data between requests and buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transfer {
    /// The kernel copies when it announces a write and takes the answer to a read.
    Kernel,
    /// We copy, by reading and writing the char device.
    User,
    /// Nobody: the pages of a request are the buffer.
    Registered,
    /// Nobody: the target has no use for data.
    None,
}

impl Transfer {
    pub(super) fn of(features: Features, data_use: DataUse) -> Self {
        if features.has(Features::AUTO_BUF_REG) {
            Self::Registered
        } else if !features.has(Features::USER_COPY) {
            Self::Kernel
        } else if data_use == DataUse::Nothing {
            Self::None
        } else {
            Self::User
        }
    }
}

/// One queue of an open char device.
pub(super) struct Requests {
    /// Open as long as commands are on it.
    pub(super) file: Arc<File>,
    pub(super) queue: u16,
    transfer: Transfer,
    descriptors: Descriptors,
}

impl Requests {
    /// Maps the descriptors.
    ///
    /// # Errors
    /// When they cannot be mapped: the kernel lets one process map them, read-only.
    pub(super) fn new(
        file: &Arc<File>,
        setup: &PortSetup<'_>,
        transfer: Transfer,
    ) -> Result<Self, Error> {
        let queue = setup.queue.queue.0;
        let descriptors = Descriptors::map(file, queue, setup.queue.depth)?;
        Ok(Self { file: Arc::clone(file), queue, transfer, descriptors })
    }

    pub(super) fn tags(&self) -> impl Iterator<Item = Tag> + use<> {
        (0..self.descriptors.depth).map(Tag)
    }

    /// Whether the kernel is to be told the buffers' addresses.
    pub(super) fn has_addresses(&self) -> bool {
        self.transfer == Transfer::Kernel
    }

    /// Whether the kernel is to be told the buffers' places in the ring's table.
    pub(super) fn has_places(&self) -> bool {
        self.transfer == Transfer::Registered
    }

    /// What was announced for `tag`; the data of a write is in `buffer` afterwards.
    #[inline(always)]
    pub(super) fn arrived(&self, tag: Tag, buffer: &mut Buffer) -> Arrival {
        let Some(descriptor) = self.descriptors.read(tag) else {
            return Arrival::Failed(libc::EINVAL);
        };
        let arrival = request(&descriptor);
        match self.transfer {
            Transfer::User => self.take_data(tag, arrival, buffer),
            Transfer::Kernel | Transfer::Registered | Transfer::None => arrival,
        }
    }

    /// The answer to give for `result`; the data of a read is with the kernel afterwards.
    #[inline]
    pub(super) fn answer(&self, tag: Tag, result: i32, buffer: &Buffer) -> i32 {
        match self.transfer {
            Transfer::User if result > 0 => self.give_data(tag, result, buffer),
            _ => result,
        }
    }

    /// Copies the data of a write to `buffer`.
    #[inline(never)]
    fn take_data(&self, tag: Tag, arrival: Arrival, buffer: &mut Buffer) -> Arrival {
        match arrival {
            Arrival::Request(request)
                if request.op == Op::Write && request.data_len() <= buffer.capacity() =>
            {
                let data = &mut buffer.bytes_mut()[..request.data_len()];
                match self.file.read_exact_at(data, self.position(tag)) {
                    Ok(()) => arrival,
                    Err(error) => Arrival::Refused(error.raw_os_error().unwrap_or(libc::EIO)),
                }
            }
            other => other,
        }
    }

    /// Copies the data of a read to the kernel.
    #[inline(never)]
    fn give_data(&self, tag: Tag, result: i32, buffer: &Buffer) -> i32 {
        let op = self.descriptors.read(tag).map(|descriptor| request(&descriptor));
        match op {
            Some(Arrival::Request(Request { op: Op::Read, .. })) => {
                let data = &buffer.bytes()[..result as usize];
                match self.file.write_all_at(data, self.position(tag)) {
                    Ok(()) => result,
                    Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
                }
            }
            _ => result,
        }
    }

    /// Where the char device has the data of `tag`.
    fn position(&self, tag: Tag) -> u64 {
        u64::from(sys::UBLKSRV_IO_BUF_OFFSET)
            + (u64::from(self.queue) << sys::UBLK_QID_OFF)
            + (u64::from(tag.0) << sys::UBLK_TAG_OFF)
    }
}

/// What a descriptor asks for.
#[inline(always)]
fn request(descriptor: &ublksrv_io_desc) -> Arrival {
    let op = match descriptor.op_flags & 0xff {
        sys::UBLK_IO_OP_READ => Op::Read,
        sys::UBLK_IO_OP_WRITE => Op::Write,
        other => return rare(other, descriptor),
    };
    ranged(op, descriptor)
}

/// What a descriptor of another kind than READ and WRITE asks for.
#[cold]
fn rare(op: u32, descriptor: &ublksrv_io_desc) -> Arrival {
    let op = match op {
        // It is for everything: what stands for its place is no sector.
        sys::UBLK_IO_OP_FLUSH => return Arrival::Request(Request::new(Op::Flush, 0, 0)),
        sys::UBLK_IO_OP_DISCARD => Op::Discard,
        sys::UBLK_IO_OP_WRITE_ZEROES => Op::WriteZeroes,
        _ => return Arrival::Refused(libc::EOPNOTSUPP),
    };
    ranged(op, descriptor)
}

#[inline(always)]
fn ranged(op: Op, descriptor: &ublksrv_io_desc) -> Arrival {
    let len = descriptor.nr_sectors.checked_mul(1 << SECTOR_SHIFT);
    let offset = descriptor.start_sector.checked_mul(1 << SECTOR_SHIFT);
    let (Some(len), Some(offset)) = (len, offset) else { return Arrival::Refused(libc::EINVAL) };
    Arrival::Request(Request {
        op,
        offset,
        len,
        fua: descriptor.op_flags & sys::UBLK_IO_F_FUA != 0,
        no_unmap: descriptor.op_flags & sys::UBLK_IO_F_NOUNMAP != 0,
    })
}

/// The kernel's descriptors of one queue, mapped read-only.
struct Descriptors {
    first: NonNull<ublksrv_io_desc>,
    bytes: NonZeroUsize,
    depth: u16,
}

impl Descriptors {
    fn map(file: &File, queue: u16, depth: u16) -> Result<Self, Error> {
        let failed = |errno: nix::errno::Errno| {
            Error::from_errno(errno as i32, format!("cannot map the descriptors of queue {queue}"))
                .command("mmap")
        };
        let page = sysconf(SysconfVar::PAGE_SIZE).map_err(failed)?.unwrap_or(4096) as usize;
        let size = |depth: usize| (depth * size_of::<ublksrv_io_desc>()).next_multiple_of(page);
        // The queues lie as far apart as if each had the greatest depth.
        let start = sys::UBLKSRV_CMD_BUF_OFFSET as usize
            + usize::from(queue) * size(sys::UBLK_MAX_QUEUE_DEPTH as usize);
        let bytes = NonZeroUsize::new(size(usize::from(depth)))
            .ok_or_else(|| failed(nix::errno::Errno::EINVAL))?;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nobody's memory.
        let mapped =
            unsafe { mmap(None, bytes, ProtFlags::PROT_READ, flags, file, start as off_t) };
        Ok(Self { first: mapped.map_err(failed)?.cast(), bytes, depth })
    }

    /// The descriptor of a tag whose request was announced.
    #[inline]
    fn read(&self, tag: Tag) -> Option<ublksrv_io_desc> {
        (tag.0 < self.depth).then(|| {
            // SAFETY: within the mapping, which lives as long as this; the kernel writes a
            // descriptor before it announces the request and not until the tag is fetched again.
            unsafe { self.first.add(tag.index()).read_volatile() }
        })
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: our own mapping; nobody has a pointer into it.
        let unmapped = unsafe { munmap(self.first.cast(), self.bytes.get()) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_moves_data_follows_from_what_was_granted_and_the_target() {
        let zero = Features::ZERO_COPY.with(Features::AUTO_BUF_REG);
        for (features, data_use, expected) in [
            (Features::NONE, DataUse::Files, Transfer::Kernel),
            (Features::NONE, DataUse::Nothing, Transfer::Kernel),
            (Features::USER_COPY, DataUse::Memory, Transfer::User),
            (Features::USER_COPY, DataUse::Files, Transfer::User),
            (Features::USER_COPY, DataUse::Nothing, Transfer::None),
            (zero, DataUse::Files, Transfer::Registered),
            (zero.with(Features::BATCH_IO), DataUse::Nothing, Transfer::Registered),
        ] {
            assert_eq!(Transfer::of(features, data_use), expected, "{features:?} {data_use:?}");
        }
    }

    fn descriptor(op_flags: u32, nr_sectors: u32, start_sector: u64) -> ublksrv_io_desc {
        ublksrv_io_desc { op_flags, nr_sectors, start_sector, addr: 0 }
    }

    #[test]
    fn every_op_is_read_in_bytes() {
        for (op, ours) in [
            (sys::UBLK_IO_OP_READ, Op::Read),
            (sys::UBLK_IO_OP_WRITE, Op::Write),
            (sys::UBLK_IO_OP_DISCARD, Op::Discard),
            (sys::UBLK_IO_OP_WRITE_ZEROES, Op::WriteZeroes),
        ] {
            let arrival = request(&descriptor(op, 8, 1 << 40));
            assert_eq!(arrival, Arrival::Request(Request::new(ours, 1 << 49, 4096)));
        }
    }

    #[test]
    fn f58_a_flush_has_no_range_and_fua_is_seen() {
        // So Linux 7.3 sends it.
        let arrival = request(&descriptor(sys::UBLK_IO_OP_FLUSH, 0, u64::MAX));
        assert_eq!(arrival, Arrival::Request(Request::new(Op::Flush, 0, 0)));
        let durable = sys::UBLK_IO_OP_WRITE | sys::UBLK_IO_F_FUA | sys::UBLK_IO_F_META;
        let arrival = request(&descriptor(durable, 1, 0));
        assert_eq!(arrival, Arrival::Request(Request::new(Op::Write, 0, 512).fua()));
        let kept = sys::UBLK_IO_OP_WRITE_ZEROES | sys::UBLK_IO_F_NOUNMAP;
        let wanted = Request { no_unmap: true, ..Request::new(Op::WriteZeroes, 0, 512) };
        assert_eq!(request(&descriptor(kept, 1, 0)), Arrival::Request(wanted));
    }

    #[test]
    fn what_no_target_can_serve_is_refused() {
        for op in [sys::UBLK_IO_OP_WRITE_SAME, sys::UBLK_IO_OP_ZONE_RESET, 0xff] {
            let arrival = request(&descriptor(op, 8, 0));
            assert_eq!(arrival, Arrival::Refused(libc::EOPNOTSUPP));
        }
        let endless = descriptor(sys::UBLK_IO_OP_READ, u32::MAX, 0);
        assert_eq!(request(&endless), Arrival::Refused(libc::EINVAL));
        let nowhere = descriptor(sys::UBLK_IO_OP_READ, 1, u64::MAX);
        assert_eq!(request(&nowhere), Arrival::Refused(libc::EINVAL));
    }
}
