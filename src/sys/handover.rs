//! A socket that a service manager has opened before this process began.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::{AddressFamily, SockaddrLike, UnixAddr, getsockname, getsockopt, sockopt};

use crate::model::{Error, ErrorKind};

/// The first descriptor that is handed over (`SD_LISTEN_FDS_START`).
const FIRST: RawFd = 3;

/// Takes descriptor 3, which the service manager says is a socket for this process. Call it once,
/// and only when it says so: nobody else may use that descriptor.
///
/// # Errors
/// When it is not open, or no Unix stream socket that listens; it is left open then.
pub fn unix_listener() -> Result<UnixListener, Error> {
    let wrong = |what: &str| {
        Error::new(ErrorKind::Invalid, format!("the socket that was handed over is {what}"))
    };
    let flags = fcntl_getfd(FIRST).map_err(|_| wrong("not open"))?;
    // SAFETY: descriptor 3 is open (just asked), the service manager gave it to this process, and
    // by the contract of this function nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(FIRST) };
    let family = getsockname::<UnixAddr>(fd.as_raw_fd()).ok().and_then(|address| address.family());
    let listens = getsockopt(&fd, sockopt::AcceptConn).unwrap_or_default();
    if family != Some(AddressFamily::Unix) || !listens {
        return Err(wrong("no Unix stream socket that listens"));
    }
    let closed = FdFlag::from_bits_retain(flags) | FdFlag::FD_CLOEXEC;
    fcntl(&fd, FcntlArg::F_SETFD(closed))
        .map_err(|errno| Error::from_errno(errno as i32, "cannot keep a socket from children"))?;
    Ok(UnixListener::from(fd))
}

fn fcntl_getfd(fd: RawFd) -> nix::Result<i32> {
    // SAFETY: only for asking whether it is open: `F_GETFD` of a closed one is an error, not more.
    fcntl(unsafe { BorrowedFd::borrow_raw(fd) }, FcntlArg::F_GETFD)
}
