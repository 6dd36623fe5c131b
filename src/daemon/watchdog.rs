//! The service manager's watchdog: fed only while the supervisor answers.
//!
//! Invariant: a supervisor that hangs is not fed, so that the service manager restarts the daemon;
//! one that is slow, or stops, is.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use slog::Logger;

use super::systemd;
use crate::Handle;
use crate::model::Error;
use crate::sys::thread::{spawn, wait_for};

/// Feeds the watchdog until it is dropped.
pub(super) struct Watchdog {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Begins to feed the watchdog, if there is one.
pub(super) fn start(handle: Handle, log: &Logger) -> Result<Option<Watchdog>, Error> {
    let Some(limit) = systemd::watchdog() else { return Ok(None) };
    // A question that is answered at the last moment still comes in time.
    let pause = limit / 3;
    let (stop, stopped) = mpsc::channel();
    let log = log.clone();
    let feed = move || {
        while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            feed(&handle, pause, &log);
        }
    };
    let thread = Some(spawn("ublkd-watchdog", feed)?);
    Ok(Some(Watchdog { stop: Some(stop), thread }))
}

fn feed(handle: &Handle, bound: Duration, log: &Logger) {
    // One that has ended is no reason to restart the daemon, which ends too.
    if wait_for(bound, handle.ping()).is_some() {
        systemd::alive();
    } else {
        slog::error!(log, "the supervisor does not answer: the watchdog is not fed";
            "bound_s" => bound.as_secs_f64());
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}
