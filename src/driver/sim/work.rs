//! The kernel's own workers, for what goes on whether anybody waits for it or not.
//!
//! ```text
//!   execute(), drop(fd), a ring's end ── run(job) ──> channel ── one task ──> a task per job
//! ```
//!
//! A control command that was sent goes on when the caller stops waiting, and a close goes on
//! after the file is closed. Drops happen anywhere, so they may not need a runtime: a job is
//! handed over by a channel, and the first command (which has a runtime under it) starts the task
//! that takes jobs out.
//!
//! Invariants: jobs start in the order they came; dropping what [`Work::run`] returns does not
//! stop the job; when the runtime is gone, jobs are forgotten.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::time::Duration;

use futures::future::LocalBoxFuture;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::model::{Error, ErrorKind};

type Job = LocalBoxFuture<'static, ()>;

/// Runs jobs on the `LocalSet` that the first one with an answer came from.
pub(super) struct Work {
    jobs: UnboundedSender<Job>,
    waiting: RefCell<Option<UnboundedReceiver<Job>>>,
}

impl Work {
    pub(super) fn new() -> Self {
        let (jobs, waiting) = unbounded_channel();
        Self { jobs, waiting: RefCell::new(Some(waiting)) }
    }

    /// Hands a job over; callable from any drop.
    pub(super) fn spawn(&self, job: impl Future<Output = ()> + 'static) {
        // Fails only when the runtime has ended, and the simulated world with it.
        let _ = self.jobs.send(Box::pin(job));
    }

    /// Hands a job over and gives its answer.
    ///
    /// # Panics
    /// Outside a tokio `LocalSet` (an actix system is one).
    pub(super) fn run<T: 'static>(
        &self,
        job: impl Future<Output = Result<T, Error>> + 'static,
    ) -> LocalBoxFuture<'static, Result<T, Error>> {
        if let Some(mut waiting) = self.waiting.take() {
            tokio::task::spawn_local(async move {
                while let Some(job) = waiting.recv().await {
                    tokio::task::spawn_local(job);
                }
            });
        }
        let (answer, answered) = oneshot::channel();
        self.spawn(async move {
            // Nobody may wait any more.
            let _ = answer.send(job.await);
        });
        Box::pin(async move {
            answered.await.unwrap_or_else(|_| {
                Err(Error::new(ErrorKind::Internal, "the simulation ended under a command")
                    .hint("keep the LocalSet alive until every command has been answered"))
            })
        })
    }
}

/// Sleeps, but does not even yield for nothing.
pub(super) async fn pause(time: Duration) {
    if !time.is_zero() {
        sleep(time).await;
    }
}

/// Something that happens once and that tasks wait for.
#[derive(Default)]
pub(super) struct Flag {
    raised: Cell<bool>,
    waiters: Notify,
}

impl Flag {
    pub(super) fn raise(&self) {
        self.raised.set(true);
        self.waiters.notify_waiters();
    }

    pub(super) fn lower(&self) {
        self.raised.set(false);
    }

    pub(super) fn is_raised(&self) -> bool {
        self.raised.get()
    }

    /// Completes once it is raised.
    pub(super) async fn wait(&self) {
        loop {
            let raised = self.waiters.notified();
            if self.raised.get() {
                return;
            }
            raised.await;
        }
    }
}
