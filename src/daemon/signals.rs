//! Signals as a stream: one thread receives them all, and the rest of the process none.
//!
//! Invariant: of each signal at most one waits, as in the kernel, so that TERM never comes behind
//! more than a few others, however fast they are sent (faults F32, F89).

use std::time::Duration;

use futures::SinkExt;
use futures::channel::mpsc::{self, Receiver, Sender};
use futures::executor::block_on;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::{Handle, Signals};

use crate::model::Error;
use crate::sys;

/// A signal, or a request of the API, that means something to the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signal {
    /// TERM or INT, by name.
    Stop(&'static str),
    /// The API: take everything down, within this time if one is given.
    Asked {
        /// Bound of the whole.
        within: Option<Duration>,
    },
    /// HUP.
    Reload,
    /// USR1.
    Describe,
}

/// The signal thread. Ends when dropped, after the receiver; the handlers stay, so that later
/// signals do nothing.
pub(super) struct Watch {
    handle: Handle,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Starts receiving; others can send too. Call it after [`sys::signals::block_all`] and before other threads start.
pub(super) fn watch() -> Result<(Watch, Sender<Signal>, Receiver<Signal>), Error> {
    let failed = |e: std::io::Error| Error::from_io(&e, "cannot install signal handlers");
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1]).map_err(failed)?;
    let handle = signals.handle();
    let (mut send, receive) = mpsc::channel(0);
    let others = send.clone();
    let thread = sys::thread::spawn("ublkd-signals", move || {
        if sys::signals::unblock_all().is_err() {
            return;
        }
        for signal in signals.forever() {
            let signal = match signal {
                SIGTERM => Signal::Stop("SIGTERM"),
                SIGINT => Signal::Stop("SIGINT"),
                SIGHUP => Signal::Reload,
                _ => Signal::Describe,
            };
            // While the receiver is busy, further ones of a kind become one.
            if block_on(send.send(signal)).is_err() {
                return;
            }
        }
    })?;
    Ok((Watch { handle, thread: Some(thread) }, others, receive))
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // It only forwards; it has nothing to say.
            let _ = thread.join();
        }
    }
}
