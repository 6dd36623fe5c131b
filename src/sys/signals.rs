//! Signal masks of threads.
//!
//! A signal that interrupts a thread with a ring is trouble for nothing, so every thread blocks
//! all signals and one thread, which does only that, receives them. A thread inherits the mask of
//! the thread that spawned it: block before the first spawn.

use nix::sys::signal::SigSet;

use crate::model::Error;

/// Blocks every signal that can be blocked, for this thread and those it spawns from now on.
///
/// # Errors
/// When the kernel refuses the mask, which it never does for this set.
pub fn block_all() -> Result<(), Error> {
    SigSet::all()
        .thread_block()
        .map_err(|errno| Error::from_errno(errno as i32, "cannot block signals on this thread"))
}

/// Receives every signal on this thread again.
///
/// # Errors
/// When the kernel refuses the mask, which it never does for this set.
pub fn unblock_all() -> Result<(), Error> {
    SigSet::all()
        .thread_unblock()
        .map_err(|errno| Error::from_errno(errno as i32, "cannot unblock signals on this thread"))
}
