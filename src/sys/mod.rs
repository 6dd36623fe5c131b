//! The operating system, narrow and safe outside: io_uring, buffers, threads, wakeups, panics, and
//! facts about the host.
//!
//! ```text
//!   Arena ── Buffer, one a tag ──┐
//!   Doorbell ── Waker, one a task┼──> Ring ── Operation (a future) ──> Completion
//!   thread::spawn, blocking      │      one thread owns it
//!
//!   Host (a root folder) ──> limits, devices, holders of a disk
//! ```
//!
//! Invariants: `unsafe` is only here and in `driver::ublk`, each block says why it is sound; no
//! operation outlives its memory, whatever is dropped or forgotten; only `host`, `limits` and `holders` read
//! files, those of `/proc`, `/sys` and `/dev`; nothing here reads the environment or signals.

pub mod arena;
pub mod doorbell;
pub mod holders;
pub mod host;
pub mod limits;
pub mod ring;
