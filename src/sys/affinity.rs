//! Which processors a thread may run on.
//!
//! ```text
//!   wanted ∩ what the thread may use already ── sched_setaffinity ──> bound
//!      └─ empty, or the call fails ──> it runs where it might before, and the log says so once
//! ```
//!
//! Invariant: a thread never gets a processor that it might not use before, as a cpuset or whoever
//! started the process had it.

use std::sync::atomic::{AtomicBool, Ordering};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use slog::{Logger, warn};

use crate::model::{Error, ErrorKind, Processors};

/// Binds the calling thread to those of `wanted` that it may use, and gives them. Where that cannot
/// be it leaves the thread as it was, and says so once a process.
pub fn bind(wanted: &Processors, log: &Logger) -> Option<Processors> {
    static TOLD: AtomicBool = AtomicBool::new(false);
    match try_bind(wanted) {
        Ok(bound) => Some(bound),
        Err(error) => {
            if !TOLD.swap(true, Ordering::Relaxed) {
                warn!(log, "a queue thread is not bound to its queue's processors; no other one \
                      that cannot be is told of"; "error" => %error);
            }
            None
        }
    }
}

/// Where the calling thread may run.
///
/// # Errors
/// `EINVAL` when the kernel may have more processors than [`Processors::MOST`].
pub fn allowed() -> Result<Processors, Error> {
    let set = sched_getaffinity(CALLING).map_err(|errno| {
        Error::from_errno(errno as i32, "cannot tell where the thread may run")
            .command("sched_getaffinity")
    })?;
    Ok((0..CpuSet::count()).filter(|number| set.is_set(*number) == Ok(true)).collect())
}

/// The calling thread, for the calls here.
const CALLING: Pid = Pid::from_raw(0);

fn try_bind(wanted: &Processors) -> Result<Processors, Error> {
    let allowed = allowed()?;
    let bound = wanted.and(&allowed);
    if bound.is_empty() {
        let text = format!("it may use processors {allowed}, and none of {wanted}");
        return Err(Error::new(ErrorKind::Limit, text));
    }
    let mut set = CpuSet::new();
    bound
        .iter()
        .try_for_each(|number| set.set(number))
        .and_then(|()| sched_setaffinity(CALLING, &set))
        .map_err(|errno| {
            Error::from_errno(errno as i32, "cannot bind the thread").command("sched_setaffinity")
        })?;
    Ok(bound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::thread;

    /// Runs `f` on a thread of its own, which may do what it likes with its processors.
    fn on_a_thread<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
        thread::spawn("bound", f).expect("a thread").join().expect("no panic")
    }

    #[test]
    fn a_set_has_room_for_what_the_calls_have() {
        assert_eq!(CpuSet::count(), Processors::MOST);
    }

    #[test]
    fn a_thread_is_bound_to_what_is_wanted_and_allowed() {
        on_a_thread(|| {
            let before = allowed().expect("some");
            let last = before.iter().last().expect("one");
            let absent = (0..Processors::MOST).find(|n| !before.has(*n)).expect("fewer than all");
            let wanted = [absent, last].into_iter().collect();
            let bound = try_bind(&wanted).expect("bound");
            assert_eq!(bound.iter().collect::<Vec<_>>(), [last]);
            assert_eq!(allowed().expect("one"), bound);
        });
    }

    #[test]
    fn a_thread_with_nothing_left_runs_where_it_might_before() {
        on_a_thread(|| {
            let before = allowed().expect("some");
            let absent = (0..Processors::MOST).find(|n| !before.has(*n)).expect("fewer than all");
            let wanted: Processors = [absent].into_iter().collect();
            let error = try_bind(&wanted).expect_err("none is left").to_string();
            let (may, none) = (format!("may use processors {before}"), format!("none of {absent}"));
            assert!(error.contains(&may) && error.contains(&none), "{error}");
            let log = Logger::root(slog::Discard, slog::o!());
            assert_eq!(bind(&wanted, &log), None);
            assert_eq!(allowed().expect("some"), before);
        });
    }
}
