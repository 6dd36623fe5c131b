//! Locks on whole files that belong to an open file: they end with its last descriptor, whoever
//! closes it and however the process ends.
//!
//! Open file description locks (Linux 3.15 on), because virtual machine monitors (QEMU,
//! cloud-hypervisor) lock their disk images with them and so are kept out too. The kernel does
//! not tell whose such a lock is, except in `/proc/PID/fdinfo`.

use std::fmt;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::sys::stat::fstat;

/// Longest search for a holder. It only makes an error text better.
const SEARCH: Duration = Duration::from_millis(250);

fn whole_file(kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

/// Locks the whole file, `exclusive` or shared with others that are not, without waiting. The
/// file must be open for writing or for reading, respectively.
///
/// # Errors
/// `EAGAIN` when another open file holds a lock that is in the way; others when the file system
/// has no locks.
pub fn try_lock(file: impl AsFd, exclusive: bool) -> Result<(), Errno> {
    let lock = whole_file(if exclusive { libc::F_WRLCK } else { libc::F_RDLCK });
    match fcntl(file, FcntlArg::F_OFD_SETLK(&lock)) {
        Ok(_) => Ok(()),
        Err(Errno::EACCES) => Err(Errno::EAGAIN),
        Err(errno) => Err(errno),
    }
}

/// A process that holds a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its number.
    pub pid: i32,
    /// The name of its program, at most 15 bytes of it.
    pub program: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, self.program)
    }
}

/// A process that holds a lock on the file, if one can be found: it is in sight of this
/// process, whose rights allow to look, and found within a quarter of a second.
#[must_use]
pub fn holder(file: BorrowedFd<'_>) -> Option<Holder> {
    let mut lock = whole_file(libc::F_WRLCK);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock)).ok()?;
    if lock.l_type == libc::F_UNLCK as libc::c_short {
        return None;
    }
    if lock.l_pid > 0 {
        return Some(named(lock.l_pid));
    }
    let stat = fstat(file).ok()?;
    let (dev, ino) = (stat.st_dev, stat.st_ino);
    let wanted = format!("{:02x}:{:02x}:{ino}", libc::major(dev), libc::minor(dev));
    let deadline = Instant::now() + SEARCH;
    let pids = fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        Some((pid, entry.path()))
    });
    pids.take_while(|_| Instant::now() < deadline)
        .find(|(_, process)| has_lock(process, &wanted, deadline))
        .map(|(pid, _)| named(pid))
}

fn named(pid: i32) -> Holder {
    let program = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Holder { pid, program: program.trim_end().to_owned() }
}

/// Whether a line `lock: 1: OFDLCK ADVISORY WRITE -1 MAJ:MIN:INO 0 EOF` is about the file.
fn has_lock(process: &Path, wanted: &str, deadline: Instant) -> bool {
    let Ok(files) = fs::read_dir(process.join("fdinfo")) else { return false };
    files.flatten().take_while(|_| Instant::now() < deadline).any(|file| {
        let text = fs::read_to_string(file.path()).unwrap_or_default();
        text.lines()
            .filter(|line| line.starts_with("lock:"))
            .any(|line| line.split_whitespace().any(|word| word == wanted))
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn f74_one_writer_or_many_readers_and_the_holder_has_a_name()
    -> Result<(), Box<dyn std::error::Error>> {
        let file = tempfile::NamedTempFile::new()?;
        let reader = || File::open(file.path());
        let writer = || File::options().read(true).write(true).open(file.path());

        let (one, two) = (reader()?, reader()?);
        try_lock(&one, false)?;
        try_lock(&two, false)?;
        let third = writer()?;
        assert_eq!(try_lock(&third, true), Err(Errno::EAGAIN));
        let found = holder(third.as_fd()).ok_or("no holder found")?;
        assert_eq!(found.pid, i32::try_from(std::process::id())?);

        drop((one, two));
        eventually(|| try_lock(&third, true).is_ok());
        assert_eq!(try_lock(reader()?, false), Err(Errno::EAGAIN));
        drop(third);
        let after = writer()?;
        eventually(|| holder(after.as_fd()).is_none());
        Ok(())
    }

    /// Other tests of this process start children, which have every file open until they exec.
    fn eventually(condition: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while !condition() {
            assert!(Instant::now() < deadline, "the lock is still held");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
