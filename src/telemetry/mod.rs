//! What the process tells the world about itself: log lines, bridged lines of libraries, panics,
//! the shutdown report, metrics.
//!
//! ```text
//!   rooms ─ slog ───────────┐
//!   libublk ─ log ─ bridge ─┼─ level ─ overflow (bounded, never waits) ─> log thread ─> stderr
//!   panic hook ─ panics ────┘
//! ```
//!
//! Invariants: nobody waits for the log, least of all a queue thread: what does not fit is dropped
//! and counted; the library takes loggers and installs nothing, the binary calls [`bridge::install`]
//! and [`panics::install`]; a line is one line, whatever is in it.

pub mod bridge;
pub mod context;
pub mod logging;
pub mod metrics;
mod overflow;
pub mod panics;

pub mod report;
mod terminal;

#[cfg(test)]
mod testing;
