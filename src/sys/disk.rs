//! What the kernel says of an open file or block device: block sizes, what direct I/O needs.
//!
//! Invariants: changes nothing but a device's read-only flag, when asked; whatever an old kernel or a missing sysfs does not tell is `None`, never
//! a guess. Sizes are in bytes.

use std::ffi::{c_int, c_uint};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::libc;

use super::holders::DiskNumber;
use super::host::Host;

/// Block sizes of a block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockDevice {
    /// Smallest unit of I/O (`BLKSSZGET`).
    pub logical_block: u32,
    /// Unit that is written without reading first (`BLKPBSZGET`).
    pub physical_block: u32,
    /// Preferred smallest request (`BLKIOMIN`).
    pub io_min: u32,
    /// Preferred request, 0 if the device has no preference (`BLKIOOPT`).
    pub io_opt: u32,
    /// Writes are refused (`BLKROGET`).
    pub read_only: bool,
}

impl BlockDevice {
    /// Asks an open block device.
    ///
    /// # Errors
    /// `ENOTTY` if it is none.
    pub fn of(file: BorrowedFd<'_>) -> Result<Self, Errno> {
        let ask = |request: libc::Ioctl| {
            let mut value: c_uint = 0;
            // SAFETY: each request used here writes one int to where the pointer points
            // (block/ioctl.c), on every architecture.
            Errno::result(unsafe { libc::ioctl(file.as_raw_fd(), request, &raw mut value) })?;
            Ok::<_, Errno>(value)
        };
        Ok(Self {
            logical_block: ask(libc::BLKSSZGET)?,
            physical_block: ask(libc::BLKPBSZGET)?,
            io_min: ask(libc::BLKIOMIN)?,
            io_opt: ask(libc::BLKIOOPT)?,
            read_only: ask(nix::request_code_none!(0x12, 94) as libc::Ioctl)? != 0,
        })
    }
}

/// Has an open block device refuse writes, or take them again (`BLKROSET`).
///
/// # Errors
/// `ENOTTY` if it is none, `EACCES` without the right.
pub fn set_read_only(file: BorrowedFd<'_>, on: bool) -> Result<(), Errno> {
    let request = nix::request_code_none!(0x12, 93) as libc::Ioctl;
    let value = c_int::from(on);
    // SAFETY: the request reads one int from where the pointer points (block/ioctl.c).
    Errno::result(unsafe { libc::ioctl(file.as_raw_fd(), request, &raw const value) }).map(drop)
}

/// What direct I/O on a file needs: multiples of these. Both 0 when it cannot be done at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectAlignment {
    /// For addresses of buffers.
    pub memory: u32,
    /// For offsets and lengths.
    pub offset: u32,
}

impl DirectAlignment {
    /// Asks the file system (`statx` with `STATX_DIOALIGN`, Linux 6.1 on). `None` if it does not
    /// tell, as many do not.
    #[must_use]
    pub fn of(file: BorrowedFd<'_>) -> Option<Self> {
        let mut answer = MaybeUninit::<libc::statx>::zeroed();
        // SAFETY: an empty path with AT_EMPTY_PATH means the descriptor, which is open; the
        // kernel writes one `statx` to where the pointer points.
        let asked = unsafe {
            libc::statx(
                file.as_raw_fd(),
                c"".as_ptr(),
                libc::AT_EMPTY_PATH,
                libc::STATX_DIOALIGN,
                answer.as_mut_ptr(),
            )
        };
        // SAFETY: zeroes are a valid `statx`, so it is initialised whatever the kernel wrote.
        let answer = unsafe { answer.assume_init() };
        (asked == 0 && answer.stx_mask & libc::STATX_DIOALIGN != 0).then_some(Self {
            memory: answer.stx_dio_mem_align,
            offset: answer.stx_dio_offset_align,
        })
    }
}

/// An attribute of the request queue of block device `dev` (a partition has its disk's), from
/// sysfs. `None` for what is no block device (the device numbers of btrfs, overlayfs, NFS).
#[must_use]
pub fn queue_attribute(host: &Host, dev: u64, attribute: &str) -> Option<u64> {
    let device = format!("/sys/dev/block/{}", DiskNumber::of_rdev(dev));
    // `..` is resolved behind the symbolic link: the partition's disk.
    ["queue", "../queue"]
        .iter()
        .find_map(|queue| host.number(format!("{device}/{queue}/{attribute}")))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_is_no_block_device() -> Result<(), Box<dyn std::error::Error>> {
        let file = tempfile::tempfile()?;
        assert_eq!(BlockDevice::of(file.as_fd()), Err(Errno::ENOTTY));
        Ok(())
    }

    #[test]
    fn a_partition_has_the_attributes_of_its_disk() -> Result<(), Box<dyn std::error::Error>> {
        let root = tempfile::tempdir()?;
        let host = Host::at(root.path());
        fs::create_dir_all(host.path("/sys/devices/sda/queue"))?;
        fs::create_dir_all(host.path("/sys/devices/sda/sda1"))?;
        fs::create_dir_all(host.path("/sys/dev/block"))?;
        fs::write(host.path("/sys/devices/sda/queue/logical_block_size"), "4096\n")?;
        symlink("../../devices/sda", host.path("/sys/dev/block/8:0"))?;
        symlink("../../devices/sda/sda1", host.path("/sys/dev/block/8:1"))?;
        let block = |minor| queue_attribute(&host, libc::makedev(8, minor), "logical_block_size");
        assert_eq!([block(0), block(1), block(2)], [Some(4096), Some(4096), None]);
        Ok(())
    }
}
