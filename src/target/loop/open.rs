//! From a path to an open file: looked at first, opened only if it is a file or a block device.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::libc;

use crate::model::{Error, ErrorKind};
use crate::sys::limits;

/// Which file it is, whatever its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileId {
    /// A regular file: number of its file system, number of its inode.
    File(u64, u64),
    /// A block device: its number.
    Block(u64),
}

/// What a path leads to, found and not yet opened.
pub(super) struct Backing {
    /// The path, as configured.
    pub(super) path: PathBuf,
    /// What it leads to.
    pub(super) id: FileId,
    /// A reference (`O_PATH`) to it: whoever renames the path now changes nothing.
    place: File,
}

impl Backing {
    /// Follows `path`, symbolic links included, and looks at what is there.
    ///
    /// # Errors
    /// There is nothing, or neither a regular file nor a block device.
    pub(super) fn find(path: &Path) -> Result<Self, Error> {
        let place = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH)
            .open(path)
            .map_err(|error| failed(&error, format!("cannot find {path:?}"), false))?;
        let meta = place
            .metadata()
            .map_err(|error| failed(&error, format!("cannot look at {path:?}"), false))?;
        let kind = meta.file_type();
        let id = if kind.is_file() {
            FileId::File(meta.dev(), meta.ino())
        } else if kind.is_block_device() {
            FileId::Block(meta.rdev())
        } else {
            let what = if kind.is_dir() {
                "a directory"
            } else if kind.is_fifo() {
                "a fifo"
            } else if kind.is_socket() {
                "a socket"
            } else {
                "a character device"
            };
            return Err(Error::new(ErrorKind::Invalid, format!("{path:?} is {what}"))
                .hint("set path to a regular file or a block device"));
        };
        Ok(Self { path: path.to_owned(), id, place })
    }

    /// Opens it. A block device that is written to is claimed (`O_EXCL`): the kernel then keeps
    /// mounts, device mapper and other claimants off, under any of the device's names.
    ///
    /// # Errors
    /// What the kernel says: `EBUSY` for a block device that is claimed already.
    pub(super) fn open(&self, writable: bool) -> Result<File, Error> {
        let claim = writable && matches!(self.id, FileId::Block(_));
        let place = format!("/proc/self/fd/{}", self.place.as_raw_fd());
        OpenOptions::new()
            .read(true)
            .write(writable)
            .custom_flags(if claim { libc::O_EXCL } else { 0 })
            .open(place)
            .map_err(|error| {
                let how = if writable { "reading and writing" } else { "reading" };
                failed(&error, format!("cannot open {:?} for {how}", self.path), writable)
            })
    }
}

fn failed(error: &std::io::Error, message: String, writable: bool) -> Error {
    let failure = Error::from_io(error, message).command("open");
    if failure.errno() == Some(libc::EMFILE) {
        return failure.hint(limits::open_files_hint());
    }
    let hint = match failure.errno() {
        Some(libc::ENOENT) => "create it (truncate -s SIZE PATH) or correct path",
        Some(libc::ENOTDIR | libc::ELOOP | libc::ENAMETOOLONG) => "correct path",
        Some(libc::EACCES | libc::EPERM) if writable => {
            "give the user of this process the rights, or set read_only = true"
        }
        Some(libc::EACCES | libc::EPERM) => "give the user of this process the rights",
        Some(libc::EROFS) => "its file system is mounted read-only: set read_only = true",
        Some(libc::ETXTBSY) => "it is a program or swap file in use: use a copy of it",
        Some(libc::ENFILE) => "raise the host's limit of open files (fs.file-max)",
        Some(libc::ENXIO | libc::ENODEV | libc::ENOMEDIUM) => "no driver or medium is behind it",
        _ => "see the kernel's log",
    };
    failure.hint(hint)
}
