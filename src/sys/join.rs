//! Joins threads that are about to end, all of them on one thread, which blocks nobody.
//!
//! ```text
//!   joined(threads) ──> ublkd-join: sweep all that are pending ── ended ──> the future is ready
//!                       └── wait for one that has not, a moment ──────────┘
//! ```
//!
//! A thread for each join would be simpler, but starting and ending it costs a tenth of a
//! teardown.
//!
//! Invariants: a thread that does not end (it may have work in the kernel) keeps the others waiting
//! for `PATIENCE` at most; the joining thread ends when nothing is left and nothing has come for
//! `IDLE`.

use std::collections::VecDeque;
use std::os::unix::thread::JoinHandleExt;
use std::ptr::null_mut;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::channel::oneshot;
use nix::libc;

use super::thread::spawn;
use crate::model::Error;

/// How long one thread is waited for before the others are looked at again: at first, and after
/// doubling for as long as nothing ends.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));
/// How long the joining thread waits for more to do.
const IDLE: Duration = Duration::from_millis(100);

static JOINER: Joiner = Joiner {
    inbox: Mutex::new(Inbox { jobs: Vec::new(), is_served: false }),
    more: Condvar::new(),
};

struct Joiner {
    inbox: Mutex<Inbox>,
    more: Condvar,
}

struct Inbox {
    jobs: Vec<Job>,
    /// Whether there is a joining thread.
    is_served: bool,
}

struct Job {
    threads: Vec<Ending>,
    /// Taken when it was told.
    told: Option<oneshot::Sender<()>>,
}

/// Joins `threads`; the answer comes when the last one has been. Dropped, they are joined all the
/// same. What they return or panic with is lost.
///
/// # Errors
/// When there is no thread to be had that joins them; they are left to end by themselves.
pub fn joined(threads: Vec<JoinHandle<()>>) -> Result<oneshot::Receiver<()>, Error> {
    let (told, joined) = oneshot::channel();
    let mut inbox = JOINER.lock();
    if !inbox.is_served {
        spawn("ublkd-join", || JOINER.serve())?;
        inbox.is_served = true;
    }
    let threads = threads.into_iter().map(Ending::new).collect();
    inbox.jobs.push(Job { threads, told: Some(told) });
    JOINER.more.notify_one();
    Ok(joined)
}

impl Joiner {
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        // Nothing that is done under the lock panics half-way.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let (mut pending, mut patience) = (VecDeque::new(), PATIENCE.0);
        while self.take(&mut pending) {
            pending.retain_mut(|job: &mut Job| !job.is_done());
            // The one that has been waited for goes behind the others.
            if let Some(mut first) = pending.pop_front() {
                let ended = first.wait(patience);
                patience = if ended { PATIENCE.0 } else { PATIENCE.1.min(2 * patience) };
                pending.push_back(first);
            }
        }
    }

    /// Takes what has come; waits for it when nothing is pending. `false`: it is over.
    fn take(&self, pending: &mut VecDeque<Job>) -> bool {
        let mut inbox = self.lock();
        if pending.is_empty() && inbox.jobs.is_empty() {
            let nothing = |inbox: &mut Inbox| inbox.jobs.is_empty();
            let waited = self.more.wait_timeout_while(inbox, IDLE, nothing);
            inbox = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        pending.extend(inbox.jobs.drain(..));
        inbox.is_served = !pending.is_empty();
        inbox.is_served
    }
}

impl Job {
    /// Whether the last thread has ended; tells it.
    fn is_done(&mut self) -> bool {
        self.threads.retain(|thread| !thread.join(None));
        let done = self.threads.is_empty();
        if let Some(told) = self.told.take_if(|_| done) {
            // Nobody listens when the device's deadline has passed.
            let _ = told.send(());
        }
        done
    }

    /// Waits for one of its threads; whether it has ended.
    fn wait(&mut self, patience: Duration) -> bool {
        let ended = self.threads.pop_if(|thread| thread.join(Some(patience)));
        ended.is_some()
    }
}

/// A thread that has not been joined.
struct Ending(libc::pthread_t);

impl Ending {
    fn new(thread: JoinHandle<()>) -> Self {
        Self(thread.into_pthread_t())
    }

    /// Joins it if it ends within `patience`. If so, it is not to be used again.
    fn join(&self, patience: Option<Duration>) -> bool {
        let Some(patience) = patience else {
            // SAFETY: the thread was neither joined nor detached: `into_pthread_t` gave it up to
            // us, and callers drop what was joined. Its result is not asked for.
            return unsafe { libc::pthread_tryjoin_np(self.0, null_mut()) } == 0;
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let end = now + patience;
        let end = libc::timespec {
            tv_sec: end.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(end.subsec_nanos() as i32),
        };
        // SAFETY: as above; `end` lives until the call returns.
        unsafe { libc::pthread_timedjoin_np(self.0, null_mut(), &raw const end) == 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Instant;

    use crate::sys::thread::wait_for;

    const BOUND: Duration = Duration::from_secs(20);

    #[test]
    fn one_that_does_not_end_keeps_no_other_waiting() -> Result<(), Error> {
        let (end, ends) = mpsc::channel::<()>();
        let wait = move || {
            let _ = ends.recv();
        };
        let stuck = spawn("stuck", wait)?;
        let mut stuck = joined(vec![spawn("beside", || ())?, stuck])?;
        for _ in 0..200 {
            let other = joined(vec![spawn("other", || ())?, spawn("another", || ())?])?;
            assert_eq!(wait_for(BOUND, other), Some(Ok(())));
        }
        assert_eq!(stuck.try_recv(), Ok(None));
        drop(end);
        assert_eq!(wait_for(BOUND, stuck), Some(Ok(())));
        Ok(())
    }

    #[test]
    fn nobody_needs_to_wait_for_the_answer_and_a_panic_is_an_end() -> Result<(), Error> {
        drop(joined(vec![spawn("unheard", || ())?])?);
        let panics = joined(vec![spawn("panics", || panic!("on purpose"))?])?;
        assert_eq!(wait_for(BOUND, panics), Some(Ok(())));
        assert_eq!(wait_for(BOUND, joined(Vec::new())?), Some(Ok(())));
        Ok(())
    }

    #[test]
    fn a_thread_is_gone_when_its_join_is_told() -> Result<(), Error> {
        let began = Instant::now();
        let slow = spawn("slow", || std::thread::sleep(30 * PATIENCE.0))?;
        assert_eq!(wait_for(BOUND, joined(vec![slow])?), Some(Ok(())));
        assert!(began.elapsed() >= 30 * PATIENCE.0, "{:?}", began.elapsed());
        Ok(())
    }
}
