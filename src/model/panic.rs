//! What is known of a panic that was caught: who, where, and what it said.

use std::any::Any;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A panic, caught and told as a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PanicReport {
    /// The panic's message.
    pub message: String,
    /// `file:line:column`, when [`crate::telemetry::panics`] is installed (the binary does).
    pub location: Option<String>,
    /// Name of the thread it happened on.
    pub thread: String,
}

impl PanicReport {
    /// Builds a report from what `catch_unwind` or a `JoinHandle` gave back.
    #[must_use]
    pub fn from_payload(payload: &(dyn Any + Send)) -> Self {
        let message = payload
            .downcast_ref::<&'static str>()
            .map(|s| (*s).to_owned())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "a panic without a text message".to_owned());
        let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
        Self { message, location: None, thread }
    }
}

impl fmt::Display for PanicReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "panic on thread {}: {}", self.thread, self.message)?;
        match &self.location {
            Some(place) => write!(f, " (at {place})"),
            None => Ok(()),
        }
    }
}
