//! The HTTP API on a Unix socket: what a host agent and the command line drive a daemon with.
//!
//! ```text
//!   client ─ socket ─ accept ─ Connection ─ actix-web ─┬─ health, report, events   at once
//!            (rights,  (peer,   (stalled                ├─ devices: list, describe  at once
//!             lock)     places)  readers)               └─ create, delete, …  ──> Operation ──> Handle
//! ```
//!
//! `docs/api.md` has every call.
//!
//! Invariants: all of it runs on one thread of its own, and what blocks or panics there harms no
//! device; every request has a deadline, and an operation that takes longer goes on without it;
//! whatever a client holds (connections, bodies, operations, watchers) has a bound.

mod app;
mod body;
mod changes;
mod connection;
mod devices;
mod events;
mod groups;
mod life;
mod openapi;
mod operations;
mod peer;
mod problem;
mod query;
mod reload;
mod schema;
mod server;
mod socket;
mod types;

pub(super) use server::{Options, Server, State, start};
pub(super) use types::Phase;

/// Where the socket of the daemon with `run_dir` is.
#[must_use]
pub fn socket_path(run_dir: &std::path::Path) -> std::path::PathBuf {
    run_dir.join("ublkd.sock")
}
