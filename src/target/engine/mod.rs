//! Serves one queue on one thread.

#![expect(dead_code, reason = "the loop that uses it comes next")]

pub(in crate::target) mod core;
mod port;

pub use port::{Arrival, Port, PortSetup};
