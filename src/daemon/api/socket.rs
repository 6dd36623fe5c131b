//! The socket of the API: made with its final rights, taken from a service manager, or refused.
//!
//! Invariants: it is made below the lock of the run directory, so a socket there on which nobody
//! listens is what an earlier daemon has left; nothing but such a socket is ever removed at a
//! start, and at the end nothing but the one that was made here (fault F07); there is no moment at
//! which it has more rights than it shall have.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket,
};
use nix::sys::stat::{Mode, fchmod};

use crate::model::{Error, ErrorKind};

/// Connections that may wait until they are accepted.
const BACKLOG: i32 = 1024;

/// Rights of the socket.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rights {
    pub(super) mode: u32,
    pub(super) owner: Option<u32>,
    pub(super) group: Option<u32>,
}

/// A socket that listens. Dropping it removes the file that was made for it.
pub(super) struct Socket {
    pub(super) listener: UnixListener,
    _file: Option<OwnFile>,
}

impl Socket {
    /// One that a service manager listens on and hands over: its file is not ours.
    pub(super) fn handed_over(listener: UnixListener) -> Self {
        Self { listener, _file: None }
    }

    /// Makes one at `path`, which is below a lock that this process holds.
    pub(super) fn make(path: &Path, rights: Rights) -> Result<Self, Error> {
        make_room(path)?;
        let failed =
            |e: io::Error| Error::from_io(&e, format!("cannot make the socket {}", path.display()));
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None)
            .map_err(|errno| failed(errno.into()))?;
        let mode = Mode::from_bits_truncate(rights.mode);
        let address = address(path)?;
        // The file gets the rights that the socket has before it is bound, less the umask.
        fchmod(&fd, mode).map_err(|errno| failed(errno.into()))?;
        bind(fd.as_raw_fd(), &address).map_err(|errno| failed(errno.into()))?;
        let file = OwnFile::new(path).map_err(failed)?;
        fs::set_permissions(path, fs::Permissions::from_mode(rights.mode)).map_err(failed)?;
        if rights.owner.is_some() || rights.group.is_some() {
            chown(path, rights.owner, rights.group).map_err(|e| {
                failed(e).hint("only root may give a socket away: see owner and group of [api]")
            })?;
        }
        let backlog = Backlog::new(BACKLOG).map_err(|errno| failed(errno.into()))?;
        listen(&fd, backlog).map_err(|errno| failed(errno.into()))?;
        Ok(Self { listener: UnixListener::from(fd), _file: Some(file) })
    }
}

fn address(path: &Path) -> Result<UnixAddr, Error> {
    UnixAddr::new(path).map_err(|errno| {
        let text = format!("{} is no path for a socket", path.display());
        Error::from_errno(errno as i32, text).kind_of(ErrorKind::Invalid).hint(
            "it may have up to 107 bytes: set a shorter supervisor.run_dir, or api.enabled = false",
        )
    })
}

/// Removes what an earlier daemon has left; refuses whatever else is there.
fn make_room(path: &Path) -> Result<(), Error> {
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::from_io(&e, format!("cannot look at {}", path.display()))),
    };
    let refuse = |what: &str| {
        let text = format!("{} is {what}: it is left alone", path.display());
        Err(Error::new(ErrorKind::Exists, text)
            .hint("remove it, or give this daemon a supervisor.run_dir of its own"))
    };
    if !meta.file_type().is_socket() {
        return refuse(if meta.is_symlink() { "a symbolic link" } else { "no socket" });
    }
    if somebody_listens(path)? {
        return refuse("a socket that another process listens on");
    }
    fs::remove_file(path)
        .map_err(|e| Error::from_io(&e, format!("cannot remove the old {}", path.display())))
}

/// Anything but a refused connection is somebody: one whose queue is full is busy, not dead (fault
/// F54).
fn somebody_listens(path: &Path) -> Result<bool, Error> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let probe = socket(AddressFamily::Unix, SockType::Stream, flags, None)
        .map_err(|errno| Error::from_errno(errno as i32, "cannot make a socket"))?;
    let connected = connect(probe.as_fd().as_raw_fd(), &address(path)?);
    Ok(connected != Err(Errno::ECONNREFUSED))
}

/// A file that this process has made, told from another of the same name by its inode.
struct OwnFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl OwnFile {
    fn new(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(path)? })
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|there| there == self.identity) {
            // If it cannot be removed, the next daemon finds it stale.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let meta = fs::symlink_metadata(path)?;
    Ok((meta.dev(), meta.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    const RIGHTS: Rights = Rights { mode: 0o600, owner: None, group: None };

    fn place() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("s");
        (dir, path)
    }

    fn refused(path: &Path) -> Error {
        Socket::make(path, RIGHTS).err().expect("a refusal")
    }

    #[test]
    fn it_has_the_mode_that_was_asked_for_and_goes_with_its_owner() {
        let (_dir, path) = place();
        for mode in [0o600, 0o660, 0o666] {
            let socket = Socket::make(&path, Rights { mode, ..RIGHTS }).expect("a socket");
            let meta = fs::symlink_metadata(&path).expect("a file");
            assert_eq!(meta.permissions().mode() & 0o7777, mode);
            UnixStream::connect(&path).expect("somebody listens");
            drop(socket);
            assert!(!path.exists());
        }
    }

    #[test]
    fn f54_a_stale_socket_is_replaced_and_one_that_is_listened_on_is_not() {
        let (_dir, path) = place();
        drop(UnixListener::bind(&path).expect("a socket"));
        assert!(path.exists(), "std leaves its file");
        let socket = Socket::make(&path, RIGHTS).expect("the stale one is replaced");
        let error = refused(&path);
        assert_eq!(error.kind(), ErrorKind::Exists);
        assert!(error.to_string().contains("another process listens on"), "{error}");
        UnixStream::connect(&path).expect("the first one is there still");
        drop(socket);
    }

    #[test]
    fn f54_a_full_queue_is_no_dead_listener() {
        let (_dir, path) = place();
        let flags = SockFlag::SOCK_NONBLOCK;
        let busy = socket(AddressFamily::Unix, SockType::Stream, flags, None).expect("a socket");
        bind(busy.as_raw_fd(), &UnixAddr::new(&path).expect("a path")).expect("bound");
        listen(&busy, Backlog::new(0).expect("a length")).expect("listens");
        let _queue: Vec<_> = (0..4)
            .map(|_| {
                let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None).expect("fd");
                let _ = connect(fd.as_raw_fd(), &UnixAddr::new(&path).expect("a path"));
                fd
            })
            .collect();
        assert_eq!(refused(&path).kind(), ErrorKind::Exists);
        assert!(path.exists());
    }

    #[test]
    fn what_is_no_socket_is_refused_and_left_alone() {
        let (dir, path) = place();
        fs::write(&path, "mine").expect("a file");
        assert!(refused(&path).to_string().contains("is no socket"));
        assert_eq!(fs::read_to_string(&path).expect("the file"), "mine");
        fs::remove_file(&path).expect("gone");

        let elsewhere = dir.path().join("elsewhere");
        drop(UnixListener::bind(&elsewhere).expect("a socket"));
        std::os::unix::fs::symlink(&elsewhere, &path).expect("a link");
        assert!(refused(&path).to_string().contains("a symbolic link"));
        assert!(elsewhere.exists() && path.is_symlink());
    }

    #[test]
    fn f07_a_file_of_somebody_else_is_not_removed_at_the_end() {
        let (_dir, path) = place();
        let first = Socket::make(&path, RIGHTS).expect("a socket");
        fs::remove_file(&path).expect("an operator cleans up");
        let second = Socket::make(&path, RIGHTS).expect("a second socket");
        drop(first);
        UnixStream::connect(&path).expect("the second one is there still");
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn a_path_that_is_too_long_says_what_to_do() {
        let error = refused(Path::new(&format!("/tmp/{}", "x".repeat(120))));
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("run_dir"), "{error}");
    }
}
