//! The queue threads of a device: what they tell, how they are driven.
//!
//! ```text
//!   driver ── a Port for each queue ──> ThreadSet ── run_queue, a thread each ──> QueueEvents
//! ```
//!
//! The loop itself is [`crate::target::engine`]; this is its management, shared by all drivers.

#[cfg(test)]
mod tests;
mod thread_set;

pub use crate::target::engine::{Arrival, Port, PortSetup};
pub use thread_set::{Buffers, ThreadSet};

use std::sync::Arc;

use crate::model::{PanicReport, QueueId};

/// What a queue thread tells the device's owner while the device lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueueEvent {
    /// Code of the target panicked; the queue answers `EIO` to everything until it is stopped.
    /// It was logged, and comes again as the queue's exit.
    Panicked(QueueId, PanicReport),
    /// The kernel took every tag back, as it does on `STOP_DEV`, whoever sent it; the thread has
    /// ended.
    TakenAway(QueueId),
    /// The ring or the mapping failed; the thread has ended.
    Failed(QueueId, String),
}

/// Called from queue threads; must not block.
pub type QueueEvents = Arc<dyn Fn(QueueEvent) + Send + Sync>;
