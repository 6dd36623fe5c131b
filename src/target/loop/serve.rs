//! A request on a file, each step one operation on the queue's own ring.

use std::io::{Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};

use nix::fcntl::FallocateFlags;
use nix::libc;

use super::facts::punch_hole;
use super::lock::Claim;
use crate::model::{Error, ErrorKind};
use crate::target::{Errno, Io, IoResult, Op, Request, Serve, Transfer};

/// The backing of one device, shared by its queues.
pub(in crate::target) struct Loop {
    claim: Claim,
    writable: bool,
}

impl Loop {
    /// Serves the claimed file, and refuses to change it unless it is `writable`.
    pub(super) fn new(claim: Claim, writable: bool) -> Self {
        Self { claim, writable }
    }
}

impl Serve for Loop {
    async fn serve(&self, io: &mut Io) -> IoResult {
        let file = self.claim.file().as_fd();
        let (offset, len) = (io.offset(), io.len() as u64);
        match io.op() {
            Op::Read => io.read_file(file, offset).await,
            // Nothing was written, so all of it is durable.
            Op::Flush if !self.writable => Ok(()),
            Op::Flush => io.datasync(file).await,
            Op::Write | Op::Discard | Op::WriteZeroes if !self.writable => Err(Errno(libc::EROFS)),
            Op::Write => io.write_file(file, offset, io.fua()).await,
            Op::Discard => io.fallocate(file, punch_hole().bits(), offset, len).await,
            Op::WriteZeroes => zero(io, file).await,
        }
    }

    const TRANSFERS: bool = true;

    fn transfer(&self, request: &Request) -> Option<Transfer<'_>> {
        let may = self.writable || request.op == Op::Read;
        may.then(|| Transfer {
            file: self.claim.file().as_fd(),
            offset: request.offset,
            durable: request.fua,
        })
    }

    /// The file stays as it is: a device that is to be larger than it finds no room.
    fn resize(&self, from: u64, to: u64) -> Result<(), Error> {
        if to < from {
            return Ok(());
        }
        let mut file = self.claim.file();
        let held = file.seek(SeekFrom::End(0)).map_err(|error| {
            Error::from_io(&error, "cannot see how large its backing is").hint("see dmesg")
        })?;
        if to <= held {
            return Ok(());
        }
        let text = format!("its backing holds {held} bytes, and {to} are asked for");
        Err(Error::new(ErrorKind::Invalid, text)
            .hint("enlarge the backing first (truncate -s SIZE PATH)"))
    }
}

/// Zeroes a range: by a hole, or with its blocks kept if the request says so.
async fn zero(io: &Io, file: BorrowedFd<'_>) -> IoResult {
    let (offset, len, request) = (io.offset(), io.len() as u64, io.request());
    let keep_size = FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let zero_range = FallocateFlags::FALLOC_FL_ZERO_RANGE | keep_size;
    let fallocate = |mode: FallocateFlags| io.fallocate(file, mode.bits(), offset, len);
    if request.no_unmap {
        match fallocate(zero_range).await {
            // Memory and network file systems lack the mode: make a hole and fill it with blocks.
            Err(Errno(libc::EOPNOTSUPP)) => {
                fallocate(punch_hole()).await?;
                fallocate(keep_size).await?;
            }
            other => other?,
        }
    } else {
        fallocate(punch_hole()).await?;
    }
    if request.fua { io.datasync(file).await } else { Ok(()) }
}
