//! One thread for each queue of a device: started together, ready together, joined together.
//!
//! ```text
//!   start ──> thread ── ready (oneshot) ──> ready()
//!             thread ── exit  (oneshot) ──> join() ── all told ──> joined(), on another thread
//! ```
//!
//! Invariants: what goes wrong with one queue, even that its thread cannot be started, shows in
//! `ready` at once; every thread that was started is joined by `join`, and not on the caller's thread,
//! since one that still has work in the kernel may take its time to end; dropping the set asks
//! the threads to end and does not wait.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::thread::JoinHandle;

use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::LocalBoxFuture;

use super::{Port, PortSetup, QueueEvent};
use crate::driver::{QueueSet, ServePlan};
use crate::model::{Error, ErrorKind, IoStats, Processors, QueueExit, QueueExitCause, QueueId};
use crate::sys::join::joined;
use crate::sys::thread;
use crate::target::QueueContext;
use crate::target::engine::{QueueControl, QueueNotice, QueuePlan, run_queue};

/// The queue threads of one device.
pub struct ThreadSet {
    queues: Vec<Queue>,
    /// What kept the rest from being started.
    failure: Option<Error>,
    join: Join,
}

struct Queue {
    id: QueueId,
    control: Arc<QueueControl>,
    /// Taken when it has said that it is ready.
    ready: Option<oneshot::Receiver<Result<(), Error>>>,
    exit: oneshot::Receiver<QueueExit>,
    exited: Option<QueueExit>,
    thread: Option<JoinHandle<()>>,
}

/// Where the data of requests is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buffers {
    /// In memory of this process.
    Memory,
    /// In the ring's table of registered buffers, which the driver fills.
    Registered,
}

/// How far joining has come.
enum Join {
    Waiting,
    Joining(oneshot::Receiver<()>),
    Done,
}

impl ThreadSet {
    /// Starts a thread for each queue of `plan`. Each makes its port with `make`, whose setup says
    /// which queue it is for, on the thread.
    ///
    /// A thread that cannot be started fails [`QueueSet::ready`]; those started before it are
    /// ended and joined as ever, with [`QueueSet::stop`] and [`QueueSet::join`].
    pub fn start<P, F>(plan: &ServePlan, buffers: Buffers, make: F) -> Self
    where
        P: Port,
        F: Fn(PortSetup<'_>) -> Result<P, Error> + Send + Sync + 'static,
    {
        let make = Arc::new(make);
        let mut set = Self { queues: Vec::new(), failure: None, join: Join::Waiting };
        for number in 0..plan.queues.count {
            match Queue::start(plan, buffers, QueueId(number), &make) {
                Ok(queue) => set.queues.push(queue),
                Err(error) => {
                    set.failure = Some(error.device(&plan.device).id(plan.id));
                    break;
                }
            }
        }
        set
    }

    /// Whether every queue is ready; an error as soon as one cannot be any more.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let mut all = true;
        for queue in &mut self.queues {
            if self.failure.is_some() {
                break;
            }
            match queue.poll_ready(cx) {
                Poll::Pending => all = false,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => self.failure = Some(error),
            }
        }
        match &self.failure {
            Some(failure) => Poll::Ready(Err(failure.clone())),
            None if all => Poll::Ready(Ok(())),
            None => Poll::Pending,
        }
    }

    fn poll_join(&mut self, cx: &mut Context<'_>) -> Poll<Vec<QueueExit>> {
        if let Join::Waiting = self.join {
            // All of them are polled, so that each wakes this task.
            let mut running = 0;
            for queue in &mut self.queues {
                running += usize::from(queue.poll_exit(cx).is_none());
            }
            if running > 0 {
                return Poll::Pending;
            }
            let threads: Vec<_> = self.queues.iter_mut().filter_map(|q| q.thread.take()).collect();
            self.join = match joined(threads) {
                Ok(joined) => Join::Joining(joined),
                // Without a thread to be had they end by themselves: they have told their exit.
                Err(_) => Join::Done,
            };
        }
        if let Join::Joining(joined) = &mut self.join {
            let _ = ready!(joined.poll_unpin(cx));
            self.join = Join::Done;
        }
        Poll::Ready(self.queues.iter().filter_map(|queue| queue.exited.clone()).collect())
    }
}

impl Queue {
    fn start<P, F>(
        plan: &ServePlan,
        buffers: Buffers,
        id: QueueId,
        make: &Arc<F>,
    ) -> Result<Self, Error>
    where
        P: Port,
        F: Fn(PortSetup<'_>) -> Result<P, Error> + Send + Sync + 'static,
    {
        let control = QueueControl::new(plan.queues.depth)?;
        let (ready, is_ready) = oneshot::channel();
        let (exit, exited) = oneshot::channel();
        let context = QueueContext {
            device: plan.device.clone(),
            id: plan.id,
            queue: id,
            depth: plan.queues.depth,
        };
        let queue_plan = QueuePlan {
            context: context.clone(),
            processors: plan.affinity.get(usize::from(id.0)).copied().map(Box::new),
            max_io: plan.queues.max_io,
            registered: buffers == Buffers::Registered,
            target: Arc::clone(&plan.target),
            drain: plan.drain,
            log: plan.log.clone(),
        };
        let name = thread::queue_thread_name(&plan.device, id);
        let thread = thread::spawn(&name, {
            let (control, make) = (Arc::clone(&control), Arc::clone(make));
            let events = Arc::clone(&plan.events);
            let mut ready = Some(ready);
            let mut is_ready = move |result| {
                if let Some(ready) = ready.take() {
                    // The owner may have given up waiting.
                    let _ = ready.send(result);
                }
            };
            move || {
                let tell = |notice| match notice {
                    QueueNotice::Ready => is_ready(Ok(())),
                    QueueNotice::NotReady(error) => {
                        is_ready(Err(error.device(&context.device).id(context.id)));
                    }
                    QueueNotice::Panicked(report) => events(QueueEvent::Panicked(id, report)),
                    QueueNotice::TakenAway => events(QueueEvent::TakenAway(id)),
                    QueueNotice::Failed(text) => events(QueueEvent::Failed(id, text)),
                };
                let ended = run_queue(&queue_plan, &control, |setup| make(setup), tell);
                // Whatever the thread holds of the device goes before its end is told.
                drop((make, queue_plan, events, control));
                let _ = exit.send(ended);
            }
        })?;
        let ready = Some(is_ready);
        Ok(Self { id, control, ready, exit: exited, exited: None, thread: Some(thread) })
    }

    /// Whether it has said that it is ready; an error when it cannot be, or has ended since.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if let Some(receiver) = &mut self.ready {
            // A thread that ends without a word shows below, by its exit.
            if let Ok(result) = ready!(receiver.poll_unpin(cx)) {
                result?;
            }
            self.ready = None;
        }
        match self.poll_exit(cx) {
            None => Poll::Ready(Ok(())),
            Some(QueueExit { queue, cause }) => {
                let text = format!("queue {queue} has ended: {cause:?}");
                Poll::Ready(Err(Error::new(ErrorKind::Internal, text)))
            }
        }
    }

    /// How it ended, once it has.
    fn poll_exit(&mut self, cx: &mut Context<'_>) -> Option<&QueueExit> {
        if self.exited.is_none()
            && let Poll::Ready(exit) = self.exit.poll_unpin(cx)
        {
            let cause = QueueExitCause::Failed("its thread ended without a word".to_owned());
            self.exited = Some(exit.unwrap_or(QueueExit { queue: self.id, cause }));
        }
        self.exited.as_ref()
    }
}

impl QueueSet for ThreadSet {
    fn ready(&mut self) -> LocalBoxFuture<'_, Result<(), Error>> {
        poll_fn(|cx| self.poll_ready(cx)).boxed_local()
    }

    fn stop(&self) {
        for queue in &self.queues {
            queue.control.stop();
        }
    }

    fn join(&mut self) -> LocalBoxFuture<'_, Vec<QueueExit>> {
        poll_fn(|cx| self.poll_join(cx)).boxed_local()
    }

    fn tids(&self) -> Vec<i32> {
        self.queues.iter().filter_map(|queue| queue.control.tid()).collect()
    }

    fn processors(&self) -> Vec<Option<Processors>> {
        self.queues.iter().map(|queue| queue.control.processors()).collect()
    }

    fn stats(&self) -> IoStats {
        let stats = self.queues.iter().map(|queue| queue.control.stats());
        stats.fold(IoStats::default(), IoStats::plus)
    }
}

impl Drop for ThreadSet {
    fn drop(&mut self) {
        self.stop();
    }
}
