//! Child loggers, so that every line about a device says which one, in the same words.
//!
//! ```text
//!   root ─ component ─ device ─ id (once it is known) ─ queue
//! ```

use slog::{Logger, o};

use crate::model::{DeviceId, DeviceName, QueueId};

/// A logger for a part of the program.
pub fn component(log: &Logger, name: &'static str) -> Logger {
    log.new(o!("component" => name))
}

/// A logger for a device whose id is not known yet.
pub fn device(log: &Logger, name: &DeviceName) -> Logger {
    log.new(o!("device" => name.to_string()))
}

/// A device's logger, now that the kernel has given it a number.
pub fn id(log: &Logger, id: DeviceId) -> Logger {
    log.new(o!("id" => id.0))
}

/// A device's logger for one of its queue threads.
pub fn queue(log: &Logger, queue: QueueId) -> Logger {
    log.new(o!("queue" => queue.0))
}
