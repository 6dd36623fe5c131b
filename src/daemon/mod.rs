//! The daemon: a config's devices from start to shutdown, driven by signals.
//!
//! ```text
//!   signal thread ──> main loop ──> Handle (create_all, list, shutdown, force)
//!                        │
//!                        ├──> systemd: READY, STATUS, STOPPING
//!                        └──> shutdown report: log, table, --report FILE, exit status
//! ```
//!
//! Invariants: signals are handled on one thread only; after TERM or INT the process ends within
//! the shutdown timeout, whatever hangs; the exit status says what is left.

pub mod api;
mod exit;
mod lock;
pub mod reload;
mod run;
mod signals;
mod systemd;
mod watchdog;

pub use exit::ExitStatus;
pub use run::{Ended, Options, run};
pub use systemd::handed_over;
