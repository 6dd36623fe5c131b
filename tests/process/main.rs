//! The real binary, on the simulated driver: exit statuses, signals, streams, the run directory, the
//! report, and what it says when something breaks.
#![allow(clippy::unwrap_used)]

mod api;
mod client;
mod commands;
mod config;
mod documented;
mod faults;
mod http;
mod limits;
mod lock;
mod notify;
mod panics;
mod reload;
mod report;
mod signals;
mod soak;
mod status;
mod streams;
mod support;
mod terminal;
mod together;
