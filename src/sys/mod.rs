//! The operating system, narrow and safe outside: io_uring, buffers, threads, wakeups, panics.
//!
//! ```text
//!   Arena ── Buffer, one a tag ──┐
//!   Doorbell ── Waker, one a task┼──> Ring ── Operation (a future) ──> Completion
//!   thread::spawn, blocking      │      one thread owns it
//! ```
//!
//! Invariants: `unsafe` is only here and in `driver::ublk`, each block says why it is sound; no
//! operation outlives its memory, whatever is dropped or forgotten; nothing here reads files,
//! the environment or signals.

pub mod arena;
pub mod doorbell;
pub mod ring;
