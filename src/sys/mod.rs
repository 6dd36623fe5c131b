//! The operating system, narrow and safe outside: io_uring, buffers, threads and their processors, wakeups, panics,
//! memory and locks that backends need, and facts about the host.
//!
//! ```text
//!   Arena ── Buffer, one a tag ──┐
//!   Doorbell ── Waker, one a task┼──> Ring ── Operation (a future) ──> Completion
//!   thread::spawn, join::joined  │      one thread owns it
//!
//!   SharedMemory, file locks, block sizes of disks ──> the targets
//!   Host (a root folder) ──> limits, devices, holders of a disk
//! ```
//!
//! Invariants: `unsafe` is only here and in `driver::ublk`, each block says why it is sound; no
//! operation outlives its memory, whatever is dropped or forgotten; what is read is below `/proc`,
//! `/sys` and `/dev`; nothing here reads the environment or signals.

pub mod affinity;
pub mod arena;
pub mod census;
pub mod disk;
pub mod doorbell;
pub mod file_lock;
pub mod handover;
pub mod holders;
pub mod host;
pub mod join;
pub mod limits;
pub mod panic;
pub mod ring;
pub mod shared_memory;
pub mod signals;
pub mod thread;
