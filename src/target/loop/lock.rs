//! One writer, or readers only: the ownership of a backing.
//!
//! ```text
//!   device a, rw ── write lock ─┐
//!   device b, rw ── write lock ─┼─> inode     refused, by whatever name, from whatever process
//!   device c, ro ── read lock ──┘
//!                   Holders: which device of this process has it, for the text of the refusal
//! ```
//!
//! The lock is the kernel's and belongs to the open file, so it ends with the process however that
//! ends. Network file systems keep it among their clients only if they are mounted with locks. A
//! writer of a block device has claimed it besides, see [`Backing::open`].

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;

use super::open::{Backing, FileId};
use crate::model::{DeviceName, Error, ErrorKind};
use crate::sys::file_lock;
use crate::sys::holders::{self, DiskNumber};
use crate::sys::host::Host;

/// How long a lock may be in the way of one who has a right to it: a child of this process between
/// fork and exec has every file open, and the kernel lets go of a ring a little after its end.
const PATIENCE: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(10);

/// The devices of this process and what they hold.
#[derive(Default)]
pub(in crate::target) struct Holders(Mutex<Vec<(FileId, DeviceName)>>);

impl Holders {
    fn list(&self) -> MutexGuard<'_, Vec<(FileId, DeviceName)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn device_of(&self, wanted: FileId) -> Option<DeviceName> {
        self.list().iter().find(|(id, _)| *id == wanted).map(|(_, device)| device.clone())
    }
}

/// An open and locked file. Dropping it closes the file and so frees the lock.
pub(super) struct Claim {
    file: File,
    id: FileId,
    device: DeviceName,
    holders: Arc<Holders>,
}

impl Claim {
    /// Opens and locks `backing` for `device`, for itself alone if it is to be `writable`.
    ///
    /// # Errors
    /// Kind [`ErrorKind::Exists`] if it has a holder, named if that can be found; else what the
    /// kernel says to opening or locking it.
    pub(super) fn take(
        backing: &Backing,
        writable: bool,
        device: &DeviceName,
        holders: &Arc<Holders>,
    ) -> Result<Self, Error> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            // Which of the two is in the way: a lock on a file, or the claim on a block device.
            let locked = match backing.open(writable) {
                Ok(file) => match file_lock::try_lock(&file, writable) {
                    Ok(()) => {
                        holders.list().push((backing.id, device.clone()));
                        let (device, holders) = (device.clone(), Arc::clone(holders));
                        return Ok(Self { file, id: backing.id, device, holders });
                    }
                    Err(Errno::EAGAIN) => Some(file),
                    Err(errno) => return Err(unlockable(backing, errno)),
                },
                Err(error) if error.errno() == Some(libc::EBUSY) => None,
                Err(error) => return Err(error),
            };
            if let Some(device) = holders.device_of(backing.id) {
                return Err(refused(backing, &format!("device {device} holds it")));
            }
            if Instant::now() >= deadline {
                let holder = match locked {
                    Some(file) => {
                        file_lock::holder(file.as_fd()).map(|it| format!("{it} holds it"))
                    }
                    None => claimants(backing.id),
                };
                let unknown = "another device or process holds it";
                return Err(refused(backing, holder.as_deref().unwrap_or(unknown)));
            }
            thread::sleep(PAUSE);
        }
    }

    /// The file.
    pub(super) fn file(&self) -> &File {
        &self.file
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut list = self.holders.list();
        let own = |(id, device): &(FileId, DeviceName)| *id == self.id && *device == self.device;
        if let Some(at) = list.iter().position(own) {
            list.swap_remove(at);
        }
    }
}

/// Who is known to use a block device, in words.
fn claimants(id: FileId) -> Option<String> {
    let FileId::Block(number) = id else { return None };
    let (host, disk) = (Host::default(), DiskNumber::of_rdev(number));
    let place = fs::read_link(host.path(format!("/sys/dev/block/{disk}"))).ok()?;
    let mut found = Vec::new();
    holders::search(&host, disk, place.file_name()?.to_str()?, &mut |line| found.push(line));
    (!found.is_empty()).then(|| found.join(", "))
}

fn refused(backing: &Backing, why: &str) -> Error {
    Error::new(ErrorKind::Exists, format!("{:?} is in use: {why}", backing.path))
        .hint("a backing has one writer or only readers: end the other use, or make both read_only")
}

fn unlockable(backing: &Backing, errno: Errno) -> Error {
    Error::from_errno(errno as i32, format!("cannot lock {:?}", backing.path))
        .command("F_OFD_SETLK")
        .hint("its file system must have locks (NFS: mount it without nolock)")
}
