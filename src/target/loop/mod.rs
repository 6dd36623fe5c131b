//! A file or a block device as a disk.
//!
//! ```text
//!   path ── find ──> Backing ── open, lock ──> Claim ── ask ──> Facts ── plan ──> Geometry
//!                                               │                        direct or not, notes
//!                                               └──> Loop: Serve
//! ```
//!
//! What is decided here, and why:
//!
//! - *Ownership.* A backing has one writer or any number of readers, on the whole host, under
//!   whatever name; it is free again when the device is gone or the process has died. See [`lock`].
//! - *Block size.* The least that the backing takes: for direct I/O what its file system or device
//!   says, for a block device its own logical block, else 512. More can be asked for; less is an
//!   error.
//! - *Direct I/O that cannot be done* (a file system without it, blocks of more than 4096 bytes)
//!   becomes buffered I/O and a note for the operator.
//! - *Size.* Rounded down to whole blocks, with a note; less than one block is an error.
//! - *Durability.* Both the page cache and a disk's own cache are volatile: the device says so,
//!   FLUSH is `fdatasync`, and a FUA write is one write with `RWF_DSYNC`.
//! - *DISCARD* punches a hole, so that reads give zeroes and the blocks are free. Where holes
//!   cannot be punched the device offers neither it nor WRITE_ZEROES, and the kernel writes zeroes
//!   itself.
//!
//! Invariants: nothing is written through a read-only device; every descriptor is closed on exec; a
//! fifo, a tape or a terminal is never opened, only looked at.

mod facts;
mod lock;
mod open;
mod plan;
mod serve;
#[cfg(test)]
mod tests;

pub(super) use lock::Holders;

use std::path::Path;
use std::sync::Arc;

use self::facts::Facts;
use self::lock::Claim;
use self::open::Backing;
use self::plan::{Plan, plan};
use self::serve::Loop;
use super::{DataUse, Shared};
use crate::model::{DeviceSpec, Error};

/// Opens the file or block device at `path` for the device of `spec`, `direct` if it can be.
///
/// # Errors
/// One line that names the path and says what to do: it cannot be opened, is neither a file nor a
/// block device, has another holder (kind `Exists`), or is too small.
pub(super) fn open(
    spec: &DeviceSpec,
    path: &Path,
    direct: bool,
    holders: &Arc<Holders>,
) -> Result<Shared<Loop>, Error> {
    let writable = !spec.read_only();
    let backing = Backing::find(path)?;
    let claim = Claim::take(&backing, writable, spec.name(), holders)?;
    let facts = Facts::of(&backing, claim.file(), writable)?;
    let Plan { geometry, direct, notes } = plan(&facts, path, direct, spec.block())?;
    if direct {
        facts::set_direct(claim.file(), true).map_err(|errno| {
            Error::from_errno(errno as i32, format!("cannot switch {path:?} to direct I/O"))
                .hint("set direct = false")
        })?;
    }
    let shared = Shared::new(geometry, Loop::new(claim, writable));
    Ok(shared.faults(spec.faults()).note(notes).data_use(DataUse::Files))
}
