//! Memory that the kernel reads and writes while it works on a command.
//!
//! ```text
//!   Payload ── lend ──> Lent (address in the SQE) ── take_back, after the CQE ──> Payload
//! ```
//!
//! Invariant: a [`Lent`] that is dropped is never freed, since the kernel may still write to it.
//! That is the end of a command that never came back: a few dozen bytes.

use std::ptr::NonNull;

use libublk::sys::ublksrv_ctrl_dev_info;

use super::abi::{Mask, Payload};
use super::params::KernelParams;

/// A payload that is with the kernel.
#[derive(Debug)]
pub(super) enum Lent {
    Nothing,
    Features(NonNull<u64>),
    Device(NonNull<ublksrv_ctrl_dev_info>),
    Params(NonNull<KernelParams>),
    Mask(NonNull<Mask>),
}

impl Payload {
    /// Gives the memory out of Rust's hands.
    pub(super) fn lend(self) -> Lent {
        match self {
            Self::Nothing => Lent::Nothing,
            Self::Features(memory) => Lent::Features(NonNull::from(Box::leak(memory))),
            Self::Device(memory) => Lent::Device(NonNull::from(Box::leak(memory))),
            Self::Params(memory) => Lent::Params(NonNull::from(Box::leak(memory))),
            Self::Mask(memory) => Lent::Mask(NonNull::from(Box::leak(memory))),
        }
    }
}

impl Lent {
    /// For the command's `addr`; 0 for nothing.
    pub(super) fn address(&self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Features(memory) => memory.as_ptr() as u64,
            Self::Device(memory) => memory.as_ptr() as u64,
            Self::Params(memory) => memory.as_ptr() as u64,
            Self::Mask(memory) => memory.as_ptr() as u64,
        }
    }

    /// For the command's `len`, in bytes.
    pub(super) fn len(&self) -> u16 {
        let len = match self {
            Self::Nothing => 0,
            Self::Features(_) => size_of::<u64>(),
            Self::Device(_) => size_of::<ublksrv_ctrl_dev_info>(),
            Self::Params(_) => size_of::<KernelParams>(),
            Self::Mask(_) => size_of::<Mask>(),
        };
        len as u16
    }

    /// The memory, as the kernel left it.
    ///
    /// # Safety
    /// The kernel must be done with it: the command was completed, or never submitted.
    pub(super) unsafe fn take_back(self) -> Payload {
        // SAFETY: each pointer came from a leaked `Box` and is taken back once, since this consumes
        // `self`; the caller says that nobody else uses it any more.
        unsafe {
            match self {
                Self::Nothing => Payload::Nothing,
                Self::Features(memory) => Payload::Features(Box::from_raw(memory.as_ptr())),
                Self::Device(memory) => Payload::Device(Box::from_raw(memory.as_ptr())),
                Self::Params(memory) => Payload::Params(Box::from_raw(memory.as_ptr())),
                Self::Mask(memory) => Payload::Mask(Box::from_raw(memory.as_ptr())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_back_is_what_the_kernel_wrote() {
        let lent = Payload::Features(Box::new(1)).lend();
        assert_eq!(lent.len(), 8);
        // SAFETY: the address of a leaked box of a u64, in nobody else's hands.
        unsafe { *(lent.address() as *mut u64) = 4711 };
        // SAFETY: no kernel was given it.
        let Payload::Features(bits) = (unsafe { lent.take_back() }) else { panic!("no features") };
        assert_eq!(*bits, 4711);
    }

    #[test]
    fn nothing_has_no_address() {
        let lent = Payload::Nothing.lend();
        assert_eq!((lent.address(), lent.len()), (0, 0));
    }
}
