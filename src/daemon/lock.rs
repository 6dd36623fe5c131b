//! One daemon a run directory: a lock that the kernel frees when its process ends, however it
//! ends.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use slog::Logger;

use crate::model::{Error, ErrorKind};

/// How long a start waits for the daemon before it to end.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// The run directory is ours while this lives.
pub(super) struct RunDirLock(#[expect(dead_code, reason = "held, not read")] Flock<File>);

/// Takes `<run_dir>/ublkd.lock`, waiting up to `patience` for a daemon that is on its way out, or
/// until `stopped`: an error of kind [`ErrorKind::Stopping`].
pub(super) fn take(
    run_dir: &Path,
    patience: Duration,
    log: &Logger,
    mut stopped: impl FnMut() -> bool,
) -> Result<RunDirLock, Error> {
    let path = run_dir.join("ublkd.lock");
    let failed = |e: &std::io::Error| {
        let hint = match fs::metadata(run_dir) {
            Ok(there) if !there.is_dir() => {
                format!(
                    "{} is no directory: remove it or set supervisor.run_dir",
                    run_dir.display()
                )
            }
            _ => "make the directory writable for ublkd or set supervisor.run_dir".to_owned(),
        };
        Error::from_io(e, format!("cannot use {}", path.display())).hint(hint)
    };
    fs::create_dir_all(run_dir).map_err(|e| failed(&e))?;
    let end = Instant::now() + patience;
    let mut told = Instant::now();
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(|e| failed(&e))?;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(mut lock) => {
                let pid = std::process::id().to_string();
                let written = lock
                    .set_len(0)
                    .and_then(|()| lock.rewind())
                    .and_then(|()| lock.write_all(pid.as_bytes()));
                written.map_err(|e| failed(&e))?;
                return Ok(RunDirLock(lock));
            }
            Err((mut held, Errno::EWOULDBLOCK)) => {
                let holder = holder(&mut held);
                if Instant::now() >= end {
                    let text = format!("{} is held by another ublkd{holder}", path.display());
                    return Err(Error::new(ErrorKind::Busy, text).hint(
                        "stop that daemon, or give this one a supervisor.run_dir of its own",
                    ));
                }
                if told <= Instant::now() {
                    slog::warn!(log, "waiting for the daemon before{holder} to end"; "lock" => %path.display());
                    told = Instant::now() + Duration::from_secs(5);
                }
                if stopped() {
                    let text = "stopped before the daemon before had ended";
                    return Err(Error::new(ErrorKind::Stopping, text));
                }
                file = held;
                std::thread::sleep(Duration::from_millis(50));
            }
            Err((_, errno)) => return Err(failed(&errno.into())),
        }
    }
}

fn holder(file: &mut File) -> String {
    let mut pid = String::new();
    let read = file.rewind().and_then(|()| file.read_to_string(&mut pid));
    match (read, pid.trim().parse::<u32>()) {
        (Ok(_), Ok(pid)) => format!(" (pid {pid})"),
        _ => String::new(),
    }
}
