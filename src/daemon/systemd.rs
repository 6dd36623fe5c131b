//! systemd's notify protocol, silent where there is no notify socket; and its handing over of a
//! socket.
//!
//! Invariant: a service manager that does not listen is no reason to stop serving blocks, so
//! nothing here waits longer than a moment.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::model::{Error, ErrorKind};
use crate::sys::handover;

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

/// A reload has begun; [`ready`] ends it.
pub(super) fn reloading(status: &str) {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
    tell(&format!("RELOADING=1\nMONOTONIC_USEC={}\nSTATUS={status}\n", now.as_micros()), PATIENCE);
}

/// Feeds the watchdog.
pub(super) fn alive() {
    tell("WATCHDOG=1\n", PATIENCE);
}

/// How often the watchdog wants to be fed, if this process is watched.
pub(super) fn watchdog() -> Option<Duration> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    if number("WATCHDOG_PID").is_some_and(|pid| pid != u64::from(std::process::id())) {
        return None;
    }
    number("WATCHDOG_USEC").filter(|usec| *usec > 0).map(Duration::from_micros)
}

/// The shutdown has begun.
pub(super) fn stopping(status: &str) {
    tell(&format!("STOPPING=1\nSTATUS={status}\n"), PATIENCE);
}

/// The socket for the API that systemd has opened and handed over to this process
/// (`LISTEN_PID`, `LISTEN_FDS`), if it has. Call it once.
///
/// # Errors
/// When it is more than one, or no Unix socket that listens.
pub fn handed_over() -> Result<Option<UnixListener>, Error> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    // They may be for another process, from which this one has its environment.
    if number("LISTEN_PID") != Some(std::process::id()) {
        return Ok(None);
    }
    match number("LISTEN_FDS") {
        None | Some(0) => Ok(None),
        Some(1) => handover::unix_listener().map(Some).map_err(|error| {
            error.hint("the .socket unit must have one ListenStream= with a path")
        }),
        Some(count) => {
            let text = format!("{count} sockets were handed over, and there is use for one");
            Err(Error::new(ErrorKind::Invalid, text)
                .hint("the .socket unit must have one ListenStream= with a path"))
        }
    }
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
