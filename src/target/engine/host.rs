//! The life of a queue's thread: set up, say whether it is ready, serve, close, tell how it ended.
//!
//! ```text
//!   io-flusher, bind, buffers, ring, port, open_queue, futures, fetch ──> Ready ── run ──> QueueExit
//!        └─ an error or a panic ──> NotReady ────────────────────────────────────────────>    ^
//! ```
//!
//! Invariants: whatever happens, the owner hears Ready or NotReady once and gets one `QueueExit`;
//! no panic leaves the thread.

use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use slog::{Logger, crit, debug, error, o};

use super::control::QueueControl;
use super::core::Core;
use super::panicked;
use super::port::{Port, PortSetup};
use super::queue::{Notice, Queue};
use super::tasks::Tasks;
use crate::model::{Error, PanicReport, Processors, QueueExit, QueueExitCause};
use crate::sys::panic::catch;
use crate::sys::ring::{Ring, RingConfig};
use crate::sys::{affinity, arena, thread};
use crate::target::{QueueContext, Target};

/// How long the end of a queue waits for cancelled operations of the target to come back.
const CANCEL_LIMIT: Duration = Duration::from_secs(1);

/// What a queue's thread shall do.
#[derive(Clone)]
pub struct QueuePlan {
    /// Which queue.
    pub context: QueueContext,
    /// Where the thread shall run; anywhere if `None`.
    pub processors: Option<Box<Processors>>,
    /// Largest request in bytes.
    pub max_io: u32,
    /// The data of requests is in the ring's registered buffers, by tag, and in no memory of this
    /// process.
    pub registered: bool,
    /// The backend.
    pub target: Arc<dyn Target>,
    /// How long a stopping queue waits for its tags to come back before it lets the ring go.
    pub drain: Duration,
    /// Has the device's name and id.
    pub log: Logger,
}

/// What a queue's thread tells its owner, on its own thread.
#[derive(Debug)]
pub enum QueueNotice {
    /// Every tag is fetched. Comes once, or [`QueueNotice::NotReady`] does.
    Ready,
    /// The queue could not be set up; the thread ends.
    NotReady(Error),
    /// The target panicked; the queue answers `EIO` to everything until it is stopped.
    Panicked(PanicReport),
    /// The kernel took every tag back unasked; the thread ends.
    TakenAway,
    /// The ring or the driver failed or panicked; the thread ends.
    Failed(String),
}

/// Runs one queue on the calling thread until it ends. `make_port` and `tell` are called on it.
pub fn run_queue<P: Port>(
    plan: &QueuePlan,
    control: &Arc<QueueControl>,
    make_port: impl FnOnce(PortSetup<'_>) -> Result<P, Error>,
    mut tell: impl FnMut(QueueNotice),
) -> QueueExit {
    let log = plan.log.new(o!("queue" => plan.context.queue.0));
    control.set_tid(thread::tid());
    thread::mark_io_flusher(&log);
    // Before there are buffers and a ring: their memory is then near to those processors.
    if let Some(wanted) = &plan.processors {
        bind(wanted, control, &log);
    }

    let mut ready = false;
    let ran = catch(|| {
        let mut queue = set_up(plan, control, make_port, &log)?;
        let started = queue.start(&mut |notice| tell(told(&log, notice)));
        let cause = started.and_then(|()| {
            ready = true;
            tell(QueueNotice::Ready);
            queue.run(&mut |notice| tell(told(&log, notice)))
        });
        queue.close(CANCEL_LIMIT);
        cause
    });
    let (notice, cause) = match ran {
        Ok(Ok(cause)) => (None, cause),
        Ok(Err(failure)) => {
            error!(log, "the queue failed"; "error" => %failure);
            let text = failure.to_string();
            let cause = QueueExitCause::Failed(text.clone());
            let failed = QueueNotice::Failed(text);
            (Some(if ready { failed } else { QueueNotice::NotReady(failure) }), cause)
        }
        Err(report) => {
            crit!(log, "the queue panicked"; "panic" => %report);
            let cause = QueueExitCause::Panicked(report.clone());
            let failed = QueueNotice::Failed(report.to_string());
            (Some(if ready { failed } else { QueueNotice::NotReady(panicked(report)) }), cause)
        }
    };
    if let Some(notice) = notice {
        tell(notice);
    }
    control.set_tid(0);
    debug!(log, "the queue has ended"; "cause" => ?cause);
    QueueExit { queue: plan.context.queue, cause }
}

/// Not inlined: its sets of processors would stay on the stack as long as the queue lives, which
/// was a page a device.
#[inline(never)]
fn bind(wanted: &Processors, control: &QueueControl, log: &Logger) {
    if let Some(bound) = affinity::bind(wanted, log) {
        control.set_bound(bound);
    }
}

/// Makes everything the queue needs, in the order in which it is undone when a later step fails.
fn set_up<P: Port>(
    plan: &QueuePlan,
    control: &Arc<QueueControl>,
    make_port: impl FnOnce(PortSetup<'_>) -> Result<P, Error>,
    log: &Logger,
) -> Result<Queue<P>, Error> {
    let QueuePlan { context, max_io, registered, target, .. } = plan;
    let depth = usize::from(context.depth);
    let wakers: Rc<[Waker]> = (0..depth).map(|task| control.doorbell.waker(task)).collect();
    let (buffers, places) = match registered {
        true => (arena::registered(context.depth, *max_io as usize), context.depth),
        false => (arena::map(depth, *max_io as usize)?, 0),
    };
    let config = RingConfig { depth: context.depth, registered: places };
    let ring = Ring::new(config, &control.doorbell, &wakers, log)?;
    let waker = control.doorbell.waker(depth);
    let port = make_port(PortSetup { queue: context, buffers: &buffers, waker })?;
    let half = Arc::clone(target).open_queue(context.clone())?;
    let core = Core::new(ring, &wakers, buffers);
    let tasks = Tasks::new(&core, half).map_err(panicked)?;
    Ok(Queue::new(core, Arc::clone(control), port, tasks, plan, log.clone()))
}

/// Logs what the loop tells, and puts it into the words of the owner.
fn told(log: &Logger, notice: Notice) -> QueueNotice {
    match notice {
        Notice::Panicked(report) => {
            crit!(log, "the target panicked: the queue answers EIO until it is stopped";
                "panic" => %report);
            QueueNotice::Panicked(report)
        }
        Notice::TakenAway => QueueNotice::TakenAway,
    }
}
