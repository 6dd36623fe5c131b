//! systemd's notify protocol; silent where there is no notify socket.
//!
//! Invariant: a service manager that does not listen is no reason to stop serving blocks, so
//! nothing here waits longer than a moment.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// How long a message that matters may wait for room.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long news may wait that the next one replaces.
const MOMENT: Duration = Duration::from_millis(1);

/// Everything is up.
pub(super) fn ready(status: &str) {
    tell(&format!("READY=1\nSTATUS={status}\n"), PATIENCE);
}

/// What is going on, for `systemctl status`.
pub(super) fn status(status: &str) {
    tell(&format!("STATUS={status}\n"), MOMENT);
}

/// The shutdown has begun.
pub(super) fn stopping(status: &str) {
    tell(&format!("STOPPING=1\nSTATUS={status}\n"), PATIENCE);
}

fn tell(text: &str, patience: Duration) {
    // There is nobody else to tell it.
    let _ = send(text, patience);
}

fn send(text: &str, patience: Duration) -> io::Result<()> {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(&name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(patience))?;
    socket.send_to_addr(text.as_bytes(), &address).map(drop)
}
