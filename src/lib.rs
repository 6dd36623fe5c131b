//! ublkd owns ublk block devices: it brings thousands of them up fast, serves them, survives what
//! goes wrong with any of them, and takes them all down in a few grace periods.
//!
//! ```text
//!   cli > daemon > runtime/handle > supervisor > device > driver > target > model
//!   config, telemetry, sys: side rooms
//! ```
//!
//! Imports only point to the right. `docs/architecture.md` has the tour.

#[cfg(panic = "abort")]
compile_error!("ublkd isolates panics per device: build it with panic = \"unwind\"");

pub mod cli;
pub mod config;
pub mod daemon;
mod device;
pub mod driver;
mod handle;
pub mod model;
mod runtime;
mod supervisor;
pub mod sys;
pub mod target;
pub mod telemetry;

pub use handle::{EventStream, Handle};
pub use runtime::{Builder, Running};

/// The code in the documents compiles, or a test fails.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../docs/embedding.md")]
struct Documents;
