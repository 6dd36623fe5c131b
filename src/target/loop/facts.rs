//! What is true of an open backing: asked once, at the open.

use std::fs::{File, Metadata};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, OFlag, fallocate, fcntl};

use super::open::{Backing, FileId};
use crate::model::{Error, ErrorKind};
use crate::sys::disk::{BlockDevice, DirectAlignment, queue_attribute};
use crate::sys::host::Host;

/// Alignment of the queues' buffers, and the block of nearly every file system and disk, which is
/// safe to take where nothing better is known.
const PAGE: u32 = 4096;
/// The smallest block there is.
const SECTOR: u32 = 512;

/// What was found out. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    /// Length of the file or size of the block device.
    pub(super) size: u64,
    /// Smallest unit that buffered I/O takes.
    pub(super) block: u32,
    /// Smallest unit that direct I/O takes, or why it cannot be done.
    pub(super) direct: Result<u32, String>,
    /// Unit that is written without reading first.
    pub(super) physical_block: u32,
    /// Preferred smallest request.
    pub(super) io_min: u32,
    /// Preferred request, 0 for none.
    pub(super) io_opt: u32,
    /// Unit in which holes are punched, if they can be.
    pub(super) hole: Option<u32>,
    /// Whether it may be written to.
    pub(super) writable: bool,
}

impl Facts {
    /// Asks the kernel about `file`, which is `backing` opened.
    ///
    /// # Errors
    /// The kernel does not answer, or a block device that shall be written to is read-only.
    pub(super) fn of(backing: &Backing, mut file: &File, writable: bool) -> Result<Self, Error> {
        let path = &backing.path;
        let unknown = |error: io::Error| {
            Error::from_io(&error, format!("cannot tell size and blocks of {path:?}"))
                .hint("see the kernel's log")
        };
        let size = file.seek(SeekFrom::End(0)).map_err(unknown)?;
        match backing.id {
            FileId::File(..) => {
                let meta = file.metadata().map_err(unknown)?;
                Ok(Self::of_regular(file, &meta, size, writable))
            }
            FileId::Block(number) => {
                let disk = BlockDevice::of(file.as_fd()).map_err(|errno| unknown(errno.into()))?;
                if writable && disk.read_only {
                    let message = format!("{path:?} is a read-only block device");
                    return Err(
                        Error::new(ErrorKind::Permission, message).hint("set read_only = true")
                    );
                }
                Ok(Self::of_disk(disk, number, size, writable))
            }
        }
    }

    fn of_regular(file: &File, meta: &Metadata, size: u64, writable: bool) -> Self {
        let preferred = u32::try_from(meta.blksize()).unwrap_or(PAGE);
        let sane = preferred.is_power_of_two() && (SECTOR..=16 * PAGE).contains(&preferred);
        let physical_block = if sane { preferred } else { PAGE };
        Self {
            size,
            block: SECTOR,
            direct: direct_block(file, meta.dev()),
            physical_block,
            io_min: physical_block,
            io_opt: 0,
            hole: (writable && can_punch(file, size)).then_some(physical_block),
            writable,
        }
    }

    fn of_disk(disk: BlockDevice, number: u64, size: u64, writable: bool) -> Self {
        // A hole in a block device is a WRITE_ZEROES that may unmap: what the device lacks, the
        // kernel refuses (blkdev_fallocate in block/fops.c).
        let host = Host::default();
        let zeroes = queue_attribute(&host, number, "write_zeroes_max_bytes").unwrap_or(0);
        let unit = queue_attribute(&host, number, "discard_granularity")
            .and_then(|bytes| u32::try_from(bytes).ok())
            .unwrap_or(0);
        Self {
            size,
            block: disk.logical_block,
            direct: Ok(disk.logical_block),
            physical_block: disk.physical_block,
            io_min: power_of_two(disk.io_min),
            io_opt: power_of_two(disk.io_opt),
            hole: (writable && zeroes > 0).then_some(power_of_two(unit)),
            writable,
        }
    }
}

/// The largest power of two that divides `bytes`; 0 for 0. The stripes of a RAID are any size, and
/// the ublk driver takes powers of two only.
fn power_of_two(bytes: u32) -> u32 {
    bytes & bytes.wrapping_neg()
}

/// Switches direct I/O on an open file on or off.
///
/// # Errors
/// `EINVAL` where the file system has none.
pub(super) fn set_direct(file: impl AsFd, direct: bool) -> Result<(), Errno> {
    let flags = if direct { OFlag::O_DIRECT } else { OFlag::empty() };
    fcntl(file, FcntlArg::F_SETFL(flags)).map(drop)
}

/// The unit of direct I/O on a regular file: what its file system says, else the logical block of
/// the disk below it, else a page. Trying out would not do: reads of a hole succeed with any unit.
fn direct_block(file: &File, disk: u64) -> Result<u32, String> {
    let none = || "its file system cannot do it".to_owned();
    set_direct(file, true).and_then(|()| set_direct(file, false)).map_err(|_| none())?;
    match DirectAlignment::of(file.as_fd()) {
        Some(DirectAlignment { memory: 0, .. } | DirectAlignment { offset: 0, .. }) => Err(none()),
        Some(DirectAlignment { memory, .. }) if memory > PAGE => {
            Err(format!("it takes buffers aligned to {memory} bytes only"))
        }
        Some(DirectAlignment { offset, .. }) => Ok(offset.max(SECTOR)),
        None => Ok(queue_attribute(&Host::default(), disk, "logical_block_size")
            .and_then(|block| u32::try_from(block).ok())
            .unwrap_or(PAGE)),
    }
}

/// Whether the file system punches holes. Tried behind the end of the file, where nothing is.
fn can_punch(file: &File, size: u64) -> bool {
    let behind = i64::try_from(size.next_multiple_of(PAGE.into()));
    behind.is_ok_and(|at| fallocate(file, punch_hole(), at, PAGE.into()).is_ok())
}

/// The mode of `fallocate` that frees blocks and reads as zeroes afterwards.
pub(super) fn punch_hole() -> FallocateFlags {
    FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_become_powers_of_two_that_divide_them() {
        let disk = BlockDevice {
            logical_block: 512,
            physical_block: 4096,
            io_min: 64 << 10,
            io_opt: 3 * (512 << 10),
            read_only: false,
        };
        let facts = Facts::of_disk(disk, 0, 1 << 30, true);
        assert_eq!((facts.io_min, facts.io_opt), (64 << 10, 512 << 10));
        assert_eq!(power_of_two(0), 0);
    }
}
