//! Makes rings: the best flags that the kernel takes, patience where memory comes back late, and
//! clear words where it does not.
//!
//! Invariants: memory of a closed ring is given back by the kernel a little later, so `ENOMEM` is
//! tried again over a bounded time (fault F30); whatever else is wrong is told at once.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use io_uring::{Builder, IoUring};
use nix::libc;
use nix::sys::resource::Resource;

use crate::model::{Error, ErrorKind};
use crate::sys::limits;

/// How large a ring is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingConfig {
    /// Entries that are queued in one round: a tag each. More go through a backlog.
    pub depth: u16,
    /// Places in the ring's table of registered buffers, for a driver that fills them.
    pub registered: u16,
}

/// Pauses between tries, ending 0.63 seconds after the first.
const PAUSES_MS: [u64; 6] = [10, 20, 40, 80, 160, 320];

/// A set of flags, and whether it defers the kernel's work to `enter`.
struct Flavour {
    set: fn(&mut Builder),
    deferred: bool,
}

/// The best first, each with the Linux it needs.
const FLAVOURS: [Flavour; 4] = [
    // 6.6
    Flavour {
        set: |b| {
            _ = b
                .setup_single_issuer()
                .setup_defer_taskrun()
                .setup_taskrun_flag()
                .setup_no_sqarray()
        },
        deferred: true,
    },
    // 6.1
    Flavour { set: |b| _ = b.setup_single_issuer().setup_defer_taskrun(), deferred: true },
    // 6.0
    Flavour { set: |b| _ = b.setup_single_issuer().setup_coop_taskrun(), deferred: false },
    // 5.19
    Flavour { set: |b| _ = b.setup_coop_taskrun(), deferred: false },
];

/// Builds a ring; the flag says whether work is deferred to `enter`.
pub(super) fn build(config: RingConfig) -> Result<(IoUring, bool), Error> {
    // What this kernel took last time; the first ring of the process finds it out.
    static BEST: AtomicUsize = AtomicUsize::new(0);
    let entries = u32::from(config.depth).next_power_of_two().max(8);
    patiently(|| {
        let mut refused = io::Error::from_raw_os_error(libc::EINVAL);
        let known = BEST.load(Ordering::Relaxed);
        for (index, flavour) in FLAVOURS.iter().enumerate().skip(known) {
            let mut builder = IoUring::builder();
            builder.dontfork().setup_submit_all().setup_cqsize(4 * entries);
            (flavour.set)(&mut builder);
            match builder.build(entries) {
                Ok(ring) => {
                    BEST.store(index, Ordering::Relaxed);
                    if config.registered > 0 {
                        ring.submitter().register_buffers_sparse(config.registered.into())?;
                    }
                    return Ok((ring, flavour.deferred));
                }
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refused = error,
                Err(error) => return Err(error),
            }
        }
        Err(refused)
    })
}

/// Calls `make` until it succeeds, fails for good, or the pauses are used up.
fn patiently<T>(mut make: impl FnMut() -> io::Result<T>) -> Result<T, Error> {
    let mut pauses = PAUSES_MS.iter();
    loop {
        let errno = match make() {
            Ok(made) => return Ok(made),
            Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
        };
        match pauses.next() {
            Some(pause) if matches!(errno, libc::ENOMEM | libc::EAGAIN) => {
                std::thread::sleep(Duration::from_millis(*pause));
            }
            _ => return Err(setup_error(errno, "io_uring_setup")),
        }
    }
}

/// What it means that `call`, which makes a ring or a file descriptor for one, failed.
#[must_use]
pub fn setup_error(errno: i32, call: &'static str) -> Error {
    let error = Error::from_errno(errno, "cannot set up a ring").command(call);
    match errno {
        libc::EPERM => error.hint(
            "io_uring is switched off here: set the sysctl kernel.io_uring_disabled to 0, or \
             allow io_uring in the seccomp profile of the container",
        ),
        libc::ENOSYS => error
            .kind_of(ErrorKind::Unsupported)
            .hint("this kernel is built without io_uring; ublk needs it (Linux 6.0 or newer)"),
        libc::EINVAL => error
            .kind_of(ErrorKind::Unsupported)
            .hint("this kernel's io_uring is too old; ublk needs Linux 6.0 or newer"),
        libc::EMFILE => error.hint(limits::open_files_hint()),
        libc::ENFILE => error.hint("the host's limit on open files is reached: raise fs.file-max"),
        libc::ENOMEM | libc::EAGAIN => error.kind_of(ErrorKind::Limit).hint(format!(
            "memory for rings is short: raise RLIMIT_MEMLOCK (have {}) or the memory limit of \
             the service, or use less depth",
            limits::in_force(Resource::RLIMIT_MEMLOCK)
        )),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::resource::getrlimit;

    use super::*;

    fn failing(times: usize, errno: i32) -> (Result<usize, Error>, usize) {
        let mut calls = 0;
        let result = patiently(|| {
            calls += 1;
            if calls <= times { Err(io::Error::from_raw_os_error(errno)) } else { Ok(calls) }
        });
        (result, calls)
    }

    #[test]
    fn f30_memory_that_comes_back_late_is_waited_for_and_then_reported() {
        assert_eq!(failing(3, libc::ENOMEM).0.ok(), Some(4));
        let (result, calls) = failing(usize::MAX, libc::ENOMEM);
        let error = result.expect_err("it never works");
        assert_eq!((error.kind(), calls), (ErrorKind::Limit, PAUSES_MS.len() + 1));
        assert!(error.to_string().contains("RLIMIT_MEMLOCK"), "{error}");
    }

    #[test]
    fn f31_a_switched_off_io_uring_is_told_at_once() {
        for (errno, kind, word) in [
            (libc::EPERM, ErrorKind::Permission, "kernel.io_uring_disabled"),
            (libc::ENOSYS, ErrorKind::Unsupported, "without io_uring"),
        ] {
            let (result, calls) = failing(usize::MAX, errno);
            let error = result.expect_err("it never works");
            assert_eq!((error.kind(), calls), (kind, 1));
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn f28_the_open_files_limit_is_named_with_need_and_have() {
        let error = setup_error(libc::EMFILE, "io_uring_setup");
        let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
        assert_eq!(error.kind(), ErrorKind::Limit);
        let text = error.to_string();
        assert!(text.contains("RLIMIT_NOFILE") && text.contains(&soft.to_string()), "{text}");
    }
}
