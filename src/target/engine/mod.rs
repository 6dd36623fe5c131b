//! Serves one queue on one thread: the engine beneath every driver, real, simulated or none.
//!
//! ```text
//!   driver's Port ── Request ──> cell of the tag ──> TagSlot, Io ──> the target's future
//!        ^                                                              │ operations
//!        └────── commit <── result <── answered                         v
//!                                        one Ring for commands and operations, one enter a round
//!
//!   host::run_queue   the thread's life        queue   the loop       tasks   the futures
//!   port              what a driver brings     core    shared cells   control other threads' handle
//!   meter             counts requests
//! ```
//!
//! Invariants: each request is answered exactly once, whatever the target does; a panic of the
//! target breaks its queue, not the thread; the queue serves until it is stopped, since a device
//! can only be stopped by one that serves.

mod control;
pub(in crate::target) mod core;
mod host;
mod meter;
mod port;
mod queue;
mod tasks;
#[cfg(test)]
mod tests;

pub use control::QueueControl;
pub use host::{QueueNotice, QueuePlan, run_queue};
pub use port::{Arrival, Port, PortSetup};

use crate::model::{Error, ErrorKind, PanicReport};

/// A panic as the reason why something did not come up.
fn panicked(report: PanicReport) -> Error {
    Error::new(ErrorKind::Panicked, report.to_string())
        .hint("this is a fault of the target's code: report it with this line")
}
