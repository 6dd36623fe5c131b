//! A disk of memory: populated as it is written, given back as it is discarded, gone with the
//! device.
//!
//! It has no volatile cache in the sense of the block layer, since a FLUSH would make nothing
//! safer: FLUSH and FUA are answered at once. A host out of memory ends processes, as with any
//! memory; the size of a device is a promise of address space only.

use nix::libc;

use super::{Discard, Errno, Geometry, Io, IoResult, Op, Request, Serve};
use crate::model::{Error, ErrorKind};
use crate::sys::shared_memory::SharedMemory;

/// Largest DISCARD and WRITE_ZEROES: giving this much back keeps the queue from other requests for
/// a few milliseconds.
const MAX_DISCARD: u32 = 64 << 20;

/// What a RAM device of `size` bytes says of itself.
pub(super) fn geometry(size: u64) -> Geometry {
    let discard =
        Discard { granularity: 4096, max_discard: MAX_DISCARD, max_write_zeroes: MAX_DISCARD };
    Geometry { discard: Some(discard), ..Geometry::new(size, 512) }
}

/// The memory of one device.
pub(super) struct Ram {
    memory: SharedMemory,
    read_only: bool,
}

impl Ram {
    /// Sets `size` bytes of address space aside.
    ///
    /// # Errors
    /// Kind `Limit` when the host does not give that much, `Invalid` for no bytes at all.
    pub(super) fn new(size: u64, read_only: bool) -> Result<Self, Error> {
        let memory = SharedMemory::new(size).map_err(|errno| {
            Error::from_errno(errno as i32, format!("cannot map {size} bytes of memory"))
                .command("mmap")
                .hint("use a smaller size; see vm.overcommit_memory and RLIMIT_AS")
        })?;
        Ok(Self { memory, read_only })
    }

    fn answer(&self, request: &Request, data: &mut [u8]) -> IoResult {
        let done = match request.op {
            Op::Read => self.memory.read(request.offset, data),
            Op::Flush => Ok(()),
            Op::Write | Op::Discard | Op::WriteZeroes if self.read_only => {
                return Err(Errno(libc::EROFS));
            }
            Op::Write => self.memory.write(request.offset, data),
            Op::Discard | Op::WriteZeroes => self.memory.clear(request.offset, request.len.into()),
        };
        // The kernel keeps requests inside of the device.
        done.map_err(|_| Errno(libc::EIO))
    }
}

impl Serve for Ram {
    async fn serve(&self, io: &mut Io) -> IoResult {
        self.answer(&io.request(), io.buf_mut())
    }

    const AT_ONCE: bool = true;

    fn at_once(&self, request: &Request, data: &mut [u8]) -> Option<IoResult> {
        Some(self.answer(request, data))
    }

    fn resize(&self, from: u64, to: u64) -> Result<(), Error> {
        if to > from {
            return self.memory.grow(to).map_err(|errno| {
                Error::from_errno(errno as i32, format!("cannot map {to} bytes of memory"))
                    .command("mremap")
                    .hint("use a smaller size; see vm.overcommit_memory and RLIMIT_AS")
            });
        }
        // What is cut off shall not come back when the device grows again.
        let cleared = self.memory.clear(to, from - to);
        cleared.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))
    }
}
