//! Device nodes: opening `/dev/ublkcN`, waiting for `/dev/ublkbN`.
//!
//! ```text
//!   ADD_DEV   ─> kernel ─> devtmpfs (or udev) ─> /dev/ublkcN ─> open_char, EBUSY tried again
//!   START_DEV ─> kernel ─> devtmpfs (or udev) ─> /dev/ublkbN ─> block_ready
//! ```
//!
//! Invariants: nodes are never made here, whoever owns `/dev` makes them; every wait is bounded and
//! looks first, so that nothing is waited for that is there already; the block node is not opened
//! (an open waits for a partition scan), only looked at, and it counts when it stands for the disk
//! that the kernel names.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::time::Duration;

use nix::libc;
use tokio::time::{Instant, sleep};

use crate::model::{DeviceId, Error, ErrorKind};
use crate::sys::holders::DiskNumber;
use crate::sys::host::Host;
use crate::sys::limits;

/// How long the char device may be busy or absent after `ADD_DEV`.
const CHAR_BOUND: Duration = Duration::from_secs(3);
/// How long the block device may take to appear after `START_DEV`.
const BLOCK_BOUND: Duration = Duration::from_secs(10);
/// The pauses between looks double from the first to the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(16));

/// Opens `/dev/ublkcN`. Only one process may have it open; udev looks into it when it is new
/// (fault F23).
///
/// # Errors
/// `EBUSY` when somebody keeps it open, `ENOENT` when nobody makes the node, or what the open says.
pub(super) async fn open_char(host: &Host, id: DeviceId) -> Result<File, Error> {
    let path = host.path(id.char_path());
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_CLOEXEC);
    let began = Instant::now();
    let opened = patiently(CHAR_BOUND, || match options.open(&path) {
        Err(error) if is_passing(&error) => Try::Again(error),
        other => Try::Done(other),
    });
    opened.await.map_err(|error| {
        let failure = Error::from_io(&error, format!("cannot open {}", id.char_path()))
            .id(id)
            .command("open")
            .elapsed(began.elapsed());
        let hint = match error.raw_os_error() {
            Some(libc::EMFILE) => return failure.hint(limits::open_files_hint()),
            Some(libc::EBUSY) => "somebody else has it open: another server, or udev",
            Some(libc::ENOENT) if host.has(format!("/sys/class/ublk-char/ublkc{id}")) => {
                "the device is there and its node is not: /dev has to be a devtmpfs, or udev has \
                 to run"
            }
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => "the device is gone",
            Some(libc::EACCES | libc::EPERM) => "run as root",
            _ => "see dmesg",
        };
        failure.hint(hint)
    })
}

/// Waits until `/dev/ublkbN` stands for the disk of device `id`; gives the disk's number.
///
/// # Errors
/// Kind [`ErrorKind::Timeout`] when it does not in time.
pub(super) async fn block_ready(host: &Host, id: DeviceId) -> Result<DiskNumber, Error> {
    let began = Instant::now();
    // Without opening anything: the last open file of the process may have gone to this device.
    let ready = patiently(BLOCK_BOUND, || match disk_of_node(host, id) {
        Some(disk) if is_disk_of(host, id, disk) => Try::Done(Ok(disk)),
        _ => Try::Again(io::ErrorKind::NotFound.into()),
    });
    ready.await.map_err(|_| {
        let path = id.block_path();
        let known = host.has(format!("/sys/class/block/ublkb{id}"));
        let hint = match (disk_of_node(host, id), known) {
            (_, false) => "the kernel has no such disk: was it stopped?",
            (None, true) => "nodes are not made here: /dev has to be a devtmpfs, or udev to run",
            (Some(_), true) => "the node is an old one of another disk: remove it",
        };
        Error::new(ErrorKind::Timeout, format!("{path} has not become the device's node"))
            .id(id)
            .elapsed(began.elapsed())
            .hint(hint)
    })
}

fn disk_of_node(host: &Host, id: DeviceId) -> Option<DiskNumber> {
    let node = fs::metadata(host.path(id.block_path())).ok()?;
    node.file_type().is_block_device().then(|| DiskNumber::of_rdev(node.rdev()))
}

/// Whether the kernel's disk of device `id` has this number.
fn is_disk_of(host: &Host, id: DeviceId, disk: DiskNumber) -> bool {
    let link = fs::read_link(host.path(format!("/sys/dev/block/{disk}")));
    link.is_ok_and(|link| link.ends_with(format!("ublkb{id}")))
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::ENOENT | libc::EINTR))
}

enum Try<T> {
    Done(io::Result<T>),
    Again(io::Error),
}

/// Tries until it is done or the bound has passed; the last error is the result then.
async fn patiently<T>(bound: Duration, mut attempt: impl FnMut() -> Try<T>) -> io::Result<T> {
    let end = Instant::now() + bound;
    let mut pause = PAUSES.0;
    loop {
        let error = match attempt() {
            Try::Done(result) => return result,
            Try::Again(error) => error,
        };
        if Instant::now() >= end {
            return Err(error);
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy() -> io::Error {
        io::Error::from_raw_os_error(libc::EBUSY)
    }

    #[tokio::test(start_paused = true)]
    async fn f23_a_device_that_is_busy_for_a_moment_is_opened() {
        let mut calls = 0;
        let opened = patiently(CHAR_BOUND, || {
            calls += 1;
            if calls <= 3 { Try::Again(busy()) } else { Try::Done(Ok(calls)) }
        });
        let began = Instant::now();
        assert_eq!(opened.await.ok(), Some(4));
        assert!(began.elapsed() < Duration::from_millis(20), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn f23_a_device_that_stays_busy_is_an_error_after_the_bound() {
        let began = Instant::now();
        let error = patiently(CHAR_BOUND, || Try::<()>::Again(busy())).await.expect_err("busy");
        assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
        let late = began.elapsed() - CHAR_BOUND;
        assert!(late < Duration::from_millis(50), "{late:?} too late");
    }

    #[tokio::test(start_paused = true)]
    async fn f41_a_node_that_nobody_makes_is_explained() -> io::Result<()> {
        let root = tempfile::tempdir()?;
        let host = Host::at(root.path());
        fs::create_dir_all(host.path("/sys/class/ublk-char/ublkc3"))?;
        fs::create_dir_all(host.path("/sys/class/block/ublkb3"))?;
        fs::write(host.path("/sys/class/block/ublkb3/dev"), "259:7\n")?;
        let error = open_char(&host, DeviceId(3)).await.expect_err("no node");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("devtmpfs"), "{error}");
        let error = block_ready(&host, DeviceId(3)).await.expect_err("no node");
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(error.to_string().contains("devtmpfs"), "{error}");
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_device_that_is_gone_is_told_as_gone() -> io::Result<()> {
        let root = tempfile::tempdir()?;
        let host = Host::at(root.path());
        let error = open_char(&host, DeviceId(3)).await.expect_err("no device");
        assert!(error.to_string().contains("the device is gone"), "{error}");
        let error = block_ready(&host, DeviceId(3)).await.expect_err("no disk");
        assert!(error.to_string().contains("no such disk"), "{error}");
        Ok(())
    }
}
