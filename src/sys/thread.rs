//! Threads: named, with a small stack, deaf to signals; and blocking calls on one of their own.
//!
//! ```text
//!   spawn(name, f) ──> JoinHandle               queue threads
//!   blocking(name, f) ──> Blocking, a future    a call that may take long: target opens, joins
//! ```
//!
//! Invariants: signals are masked before the thread exists, so none is ever delivered to it (an
//! interrupted wait of a ring is one completion behind for ever, fault F32); a panic in `f` of
//! `blocking` comes back as a value; the thread is joined when its answer is taken.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::thread::{Builder, JoinHandle, Thread};
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use nix::libc;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use slog::{Logger, warn};

use crate::model::{DeviceName, Error, ErrorKind, PanicReport, QueueId};

/// Stack of every thread, in bytes. Only pages that were touched cost memory, so this bounds
/// address space: 4,096 queue threads take 1 GiB of it. A panic's backtrace in a debug build is
/// the deepest use known, some 100 KiB.
const STACK: usize = 256 << 10;

/// Longest thread name that the kernel keeps, in bytes.
const NAME_MAX: usize = 15;

/// Name of a queue's thread: the end of the device's name, which tells the devices of a fleet
/// apart, and the queue: `volume-0001.q12`.
#[must_use]
pub fn queue_thread_name(device: &DeviceName, queue: QueueId) -> String {
    let suffix = format!(".q{queue}");
    let name = device.as_str();
    // Names are ASCII, so any index is a character's.
    let start = (name.len() + suffix.len()).saturating_sub(NAME_MAX);
    format!("{}{suffix}", &name[start.min(name.len())..])
}

/// Starts a thread with all signals masked but those that the thread itself sets off by a fault.
///
/// # Errors
/// Kind [`ErrorKind::Limit`] when the host allows no more threads.
pub fn spawn<T: Send + 'static>(
    name: &str,
    f: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Error> {
    let mut mask = SigSet::all();
    for fault in [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGILL, Signal::SIGFPE, Signal::SIGTRAP]
    {
        mask.remove(fault);
    }
    let masked = mask.thread_swap_mask(SigmaskHow::SIG_SETMASK);
    let before = masked.map_err(|errno| {
        Error::from_errno(errno as i32, "cannot mask signals").command("pthread_sigmask")
    })?;
    let builder = Builder::new().name(name.to_owned()).stack_size(STACK);
    #[cfg(test)]
    let builder = shortage::apply(builder);
    let spawned = builder.spawn(f);
    // Setting back what was just read cannot fail.
    let restored = before.thread_set_mask();
    debug_assert!(restored.is_ok());
    spawned.map_err(|error| {
        let limit = getrlimit(Resource::RLIMIT_NPROC).map_or(0, |(soft, _)| soft);
        Error::from_io(&error, format!("cannot start thread {name}"))
            .kind_of(ErrorKind::Limit)
            .command("clone")
            .hint(format!(
                "each queue needs a thread: raise RLIMIT_NPROC (have {limit}), kernel.threads-max, \
                 kernel.pid_max, or the pids limit of the service (TasksMax=)"
            ))
    })
}

/// Polls `future` to its end on this thread and blocks it meanwhile. Unlike an executor's
/// `block_on` it may be called inside of another executor, as a drop may be.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = unparker();
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        // Somebody else may unpark this thread: then it is polled once more.
        std::thread::park();
    }
}

/// As [`wait`], but gives up after `bound`.
pub fn wait_for<T>(bound: Duration, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let (waker, end) = (unparker(), Instant::now() + bound);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(value);
        }
        let left = end.checked_duration_since(Instant::now())?;
        std::thread::park_timeout(left);
    }
}

/// A waker that unparks this thread.
fn unparker() -> Waker {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    Waker::from(Arc::new(Unpark(std::thread::current())))
}

/// The kernel's id of the calling thread.
#[must_use]
pub fn tid() -> i32 {
    nix::unistd::gettid().as_raw()
}

/// Marks the calling thread as one that block devices depend on, so that its own memory
/// allocations never wait for them (fault F60). Says once a process when the right is missing.
pub fn mark_io_flusher(log: &Logger) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if let Err(errno) = set_io_flusher()
        && !TOLD.swap(true, Ordering::Relaxed)
    {
        warn!(log, "queue threads are not I/O flushers: under memory pressure a device may wait \
              for itself; give CAP_SYS_RESOURCE"; "errno" => crate::model::errno_name(errno));
    }
}

/// Whether the calling thread is marked as an I/O flusher.
#[must_use]
pub fn is_io_flusher() -> bool {
    // SAFETY: PR_GET_IO_FLUSHER takes no pointers; unused arguments must be 0.
    unsafe { libc::prctl(PR_GET_IO_FLUSHER, 0, 0, 0, 0) == 1 }
}

// From the kernel's prctl.h (Linux 5.6 on); libc has them for Android only.
const PR_SET_IO_FLUSHER: i32 = 57;
const PR_GET_IO_FLUSHER: i32 = 58;

fn set_io_flusher() -> Result<(), i32> {
    // SAFETY: PR_SET_IO_FLUSHER takes no pointers; 1 sets, unused arguments must be 0.
    let set = unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
    if set == 0 && is_io_flusher() { Ok(()) } else { Err(nix::errno::Errno::last_raw()) }
}

/// Calls `f` on a thread of its own.
///
/// # Errors
/// As [`spawn`].
pub fn blocking<T: Send + 'static>(
    name: &str,
    f: impl FnOnce() -> T + Send + 'static,
) -> Result<Blocking<T>, Error> {
    let (sender, receiver) = oneshot::channel();
    let thread = spawn(name, move || {
        // Nobody listens when the future was dropped.
        let _ = sender.send(super::panic::catch(f));
    })?;
    Ok(Blocking { receiver, thread: Some(thread) })
}

/// The answer of [`blocking`]: what `f` gave, or its panic. Dropped, it leaves the thread to end
/// by itself.
#[must_use = "the call goes on, but nobody gets its answer"]
pub struct Blocking<T> {
    receiver: oneshot::Receiver<Result<T, PanicReport>>,
    thread: Option<JoinHandle<()>>,
}

impl<T> Future for Blocking<T> {
    type Output = Result<T, PanicReport>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.receiver).poll(cx));
        if let Some(thread) = self.thread.take() {
            // It has sent its answer and has nothing else to do; it catches its panics.
            let joined = thread.join();
            debug_assert!(joined.is_ok());
        }
        Poll::Ready(answer.unwrap_or_else(|_| {
            Err(PanicReport {
                message: "the thread ended without an answer".to_owned(),
                location: None,
                thread: "unknown".to_owned(),
            })
        }))
    }
}

/// A host that runs out of threads, for tests.
#[cfg(test)]
pub(crate) mod shortage {
    use std::cell::Cell;

    thread_local! {
        static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    }

    /// Lets the calling thread start `left` more threads, or any number.
    pub(crate) fn set(left: Option<u32>) {
        LEFT.set(left);
    }

    /// No host has room for the stack of a thread too many: `EAGAIN` like the real thing.
    pub(super) fn apply(builder: super::Builder) -> super::Builder {
        match LEFT.get() {
            Some(0) => builder.stack_size(1 << 60),
            Some(left) => {
                LEFT.set(Some(left - 1));
                builder
            }
            None => builder,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::executor::block_on;

    #[test]
    fn names_keep_what_tells_a_fleet_apart() {
        let name = |device: &str, queue| {
            let device = DeviceName::new(device).expect("a name");
            queue_thread_name(&device, QueueId(queue))
        };
        assert_eq!(name("vol-1", 0), "vol-1.q0");
        assert_eq!(name("tenant-volume-0001", 12), "volume-0001.q12");
        assert!(name(&"x".repeat(64), 4095).len() <= NAME_MAX);
    }

    #[test]
    fn f32_threads_are_deaf_to_signals_and_the_spawner_is_not_changed() {
        let before = SigSet::thread_get_mask().expect("a mask");
        let thread = spawn("deaf", || SigSet::thread_get_mask().expect("a mask"));
        let mask = thread.expect("a thread").join().expect("no panic");
        for signal in [Signal::SIGTERM, Signal::SIGPROF, Signal::SIGUSR1, Signal::SIGALRM] {
            assert!(mask.contains(signal), "{signal}");
        }
        assert!(!mask.contains(Signal::SIGSEGV));
        assert_eq!(SigSet::thread_get_mask().expect("a mask"), before);
    }

    #[test]
    fn f60_the_flag_is_set_and_read_back_or_the_right_is_missing() {
        let log = Logger::root(slog::Discard, slog::o!());
        let thread = spawn("flusher", move || {
            let before = is_io_flusher();
            mark_io_flusher(&log);
            (before, is_io_flusher(), set_io_flusher())
        });
        let (before, after, set) = thread.expect("a thread").join().expect("no panic");
        assert!(!before);
        assert!(after && set.is_ok() || !after && set == Err(libc::EPERM), "{after} {set:?}");
    }

    #[test]
    fn waiting_works_inside_of_an_executor_too() {
        let waited = block_on(async {
            let call = blocking("answer", || {
                std::thread::sleep(Duration::from_millis(20));
                7
            });
            wait(call.expect("a thread"))
        });
        assert_eq!(waited, Ok(7));
    }

    #[test]
    fn waiting_ends_at_its_bound() {
        assert_eq!(wait_for(Duration::from_secs(20), async { 7 }), Some(7));
        let (began, bound) = (Instant::now(), Duration::from_millis(20));
        assert_eq!(wait_for(bound, std::future::pending::<u32>()), None);
        assert!(began.elapsed() >= bound);
    }

    #[test]
    fn f76_a_panic_in_a_blocking_call_is_a_value_with_the_threads_name() {
        let call = blocking("opener", || -> u32 { panic!("no such image") });
        let report = block_on(call.expect("a thread")).expect_err("it panics");
        assert_eq!((report.message.as_str(), report.thread.as_str()), ("no such image", "opener"));
        let call = blocking("opener", || 7);
        assert_eq!(block_on(call.expect("a thread")), Ok(7));
    }
}
