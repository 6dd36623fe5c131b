//! What the kernel asks for, as a value.

use nix::libc;

use super::{Errno, IoResult};

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// Fill the buffer from the device.
    Read,
    /// Write the buffer to the device.
    Write,
    /// Make everything written so far durable.
    Flush,
    /// The range's content is of no use any more.
    Discard,
    /// The range reads as zeroes from now on.
    WriteZeroes,
}

/// One request, as the kernel gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// What it asks for.
    pub op: Op,
    /// First byte on the device.
    pub offset: u64,
    /// Length in bytes; 0 for a flush.
    pub len: u32,
    /// It must be durable before it is answered.
    pub fua: bool,
    /// WRITE_ZEROES must not free the blocks.
    pub no_unmap: bool,
}

impl Request {
    /// A request without flags.
    #[must_use]
    pub fn new(op: Op, offset: u64, len: u32) -> Self {
        Self { op, offset, len, fua: false, no_unmap: false }
    }

    /// The same request, to be durable before it is answered.
    #[must_use]
    pub fn fua(mut self) -> Self {
        self.fua = true;
        self
    }

    /// Bytes of data that go with it: its length for reads and writes, else none.
    #[must_use]
    pub fn data_len(&self) -> usize {
        match self.op {
            Op::Read | Op::Write => self.len as usize,
            Op::Flush | Op::Discard | Op::WriteZeroes => 0,
        }
    }

    /// An answer as a number: bytes of data, or a negative errno that the block layer tells apart
    /// from a broken disk (`errno_to_blk_status` in block/blk-core.c; what it does not know becomes
    /// `EIO`).
    #[inline]
    pub(super) fn answered(&self, result: IoResult) -> i32 {
        match result {
            // At most 32 MiB.
            Ok(()) => self.data_len() as i32,
            Err(Errno(libc::EDQUOT)) => -libc::ENOSPC,
            Err(Errno(errno)) if errno > 0 => -errno,
            Err(_) => -libc::EIO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_quota_is_told_as_a_full_disk_and_the_rest_as_it_is() {
        let request = Request::new(Op::Write, 0, 4096);
        assert_eq!(request.answered(Ok(())), 4096);
        assert_eq!(request.answered(Err(Errno(libc::EDQUOT))), -libc::ENOSPC);
        for errno in [libc::ENOSPC, libc::EIO, libc::EOPNOTSUPP, libc::EROFS] {
            assert_eq!(request.answered(Err(Errno(errno))), -errno);
        }
        assert_eq!(request.answered(Err(Errno(-1))), -libc::EIO);
    }
}
