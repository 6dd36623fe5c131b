//! The queue threads of a device: what they tell, how they are driven.

pub use crate::target::engine::{Arrival, Port, PortSetup};

use std::sync::Arc;

use crate::model::{PanicReport, QueueId};

/// What a queue thread tells the device's owner while the device lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueueEvent {
    /// Code of the target panicked; the queue answers `EIO` to everything until it is stopped.
    Panicked(QueueId, PanicReport),
    /// The ring or the mapping failed, or the kernel took the queue away; the thread has ended.
    Failed(QueueId, String),
}

/// Called from queue threads; must not block.
pub type QueueEvents = Arc<dyn Fn(QueueEvent) + Send + Sync>;
