//! One queue of a char device as a [`Port`]: requests come as completions of commands on the ring.
//!
//! ```text
//!   FETCH_REQ, once a tag ──> CQE 0 ── the tag's descriptor ──> Request
//!                              ^                                   │
//!                              └── COMMIT_AND_FETCH_REQ <── result ┘
//!                             CQE -ENODEV: the device stops, the tag is gone
//! ```
//!
//! Invariants: the thread that made the port is the only one that uses it and its ring (the kernel
//! binds a tag to the thread that fetched it); a descriptor is read only after the completion that
//! announced it; a tag's buffer is always named, with the size that the kernel was told; the file
//! is not registered with the ring, since that made no request faster (Linux 7.3, null target, one
//! queue) and would keep the device referenced for a while after the queue's end.

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;

use io_uring::{opcode, squeue, types};
use libublk::sys::{self, ublksrv_io_cmd, ublksrv_io_desc};
use nix::libc::{self, off_t};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::unistd::{SysconfVar, sysconf};

use crate::driver::queue::{Arrival, Port, PortSetup};
use crate::model::{Error, Tag};
use crate::sys::arena::Buffer;
use crate::sys::ring::Ring;
use crate::target::{Op, Request};

const SECTOR_SHIFT: u32 = 9;

/// A queue of `/dev/ublkcN`.
pub(super) struct UblkPort {
    /// Keeps the file open as long as commands are on it.
    file: Arc<File>,
    descriptors: Descriptors,
    queue: u16,
    /// Of the buffers, by tag.
    addresses: Vec<u64>,
}

impl UblkPort {
    /// Maps the descriptors of the queue.
    ///
    /// # Errors
    /// When they cannot be mapped: the kernel lets one process map them, read-only.
    pub(super) fn new(file: &Arc<File>, setup: &PortSetup<'_>) -> Result<Self, Error> {
        let queue = setup.queue.queue.0;
        let descriptors = Descriptors::map(file, queue, setup.queue.depth)?;
        let addresses = setup.buffers.iter().map(Buffer::address).collect();
        Ok(Self { file: Arc::clone(file), descriptors, queue, addresses })
    }

    fn command(&self, op: u32, tag: Tag, result: i32, addr: u64) -> squeue::Entry {
        let command = ublksrv_io_cmd { q_id: self.queue, tag: tag.0, result, addr };
        // SAFETY: a `repr(C)` structure of integers without padding, as long as the array.
        let bytes: [u8; 16] = unsafe { std::mem::transmute(command) };
        opcode::UringCmd16::new(types::Fd(self.file.as_raw_fd()), op).cmd(bytes).build()
    }
}

impl Port for UblkPort {
    fn fetch_all(&mut self, ring: &Ring) -> Result<(), Error> {
        for (tag, address) in (0..self.descriptors.depth).map(Tag).zip(&self.addresses) {
            let fetch = self.command(sys::UBLK_U_IO_FETCH_REQ, tag, 0, *address);
            // SAFETY: the kernel uses the buffer only while the thread of the ring is inside it,
            // and the queue keeps its buffers longer than its ring.
            unsafe { ring.push_command(tag, fetch) };
        }
        Ok(())
    }

    fn arrived(&mut self, tag: Tag, result: i32, _: &mut Buffer) -> Arrival {
        match result {
            0 => match self.descriptors.read(tag) {
                Some(descriptor) => request(&descriptor),
                None => Arrival::Failed(libc::EINVAL),
            },
            sys::UBLK_IO_RES_ABORT => Arrival::Gone,
            errno if errno < 0 => Arrival::Failed(-errno),
            // A step that only devices have which fetch write data on their own.
            _ => Arrival::Failed(libc::EPROTO),
        }
    }

    fn commit(&mut self, ring: &Ring, tag: Tag, result: i32, buffer: &mut Buffer) {
        let op = sys::UBLK_U_IO_COMMIT_AND_FETCH_REQ;
        let commit = self.command(op, tag, result, buffer.address());
        // SAFETY: as in `fetch_all`.
        unsafe { ring.push_command(tag, commit) };
    }
}

/// What a descriptor asks for.
fn request(descriptor: &ublksrv_io_desc) -> Arrival {
    let op = match descriptor.op_flags & 0xff {
        sys::UBLK_IO_OP_READ => Op::Read,
        sys::UBLK_IO_OP_WRITE => Op::Write,
        // It is for everything: what stands for its place is no sector.
        sys::UBLK_IO_OP_FLUSH => return Arrival::Request(Request::new(Op::Flush, 0, 0)),
        sys::UBLK_IO_OP_DISCARD => Op::Discard,
        sys::UBLK_IO_OP_WRITE_ZEROES => Op::WriteZeroes,
        _ => return Arrival::Refused(libc::EOPNOTSUPP),
    };
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
