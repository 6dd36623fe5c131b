//! Starts and ends a supervisor: an actor system on an OS thread of its own, which any host can
//! have beside whatever runtime it uses.
//!
//! ```text
//!   Builder ── start() ──> Running ── handle() ──> Handle (Clone, Send, free of any runtime)
//!                             │
//!                             └── shutdown(within).await, or drop: all devices go, the thread ends
//! ```

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use actix::Actor;
use actix_rt::System;
use futures::channel::oneshot;
use slog::{Discard, Logger, o};

use crate::device::{Env, Events, Links, Workers};
use crate::driver::MakeDriver;
use crate::driver::deadline::Deadline;
use crate::handle::Handle;
use crate::model::{Error, ErrorKind, Observer, ShutdownReport, WorkerLimit};
use crate::supervisor::{Admission, Supervisor};
use crate::sys;
use crate::sys::thread::wait_for;
use crate::target::{OpenTarget, Registry};

/// How long the control thread may take until it answers: it opens the driver.
const START_BOUND: Duration = Duration::from_secs(30);

/// How long the control thread may take to end when every device is accounted for.
const END_BOUND: Duration = Duration::from_secs(5);

/// Collects how a supervisor shall be, and starts it.
pub struct Builder {
    workers: WorkerLimit,
    mailbox: usize,
    command_timeout: Duration,
    shutdown_timeout: Duration,
    run_dir: Option<PathBuf>,
    targets: Registry,
    observer: Option<Box<dyn Observer>>,
    history: usize,
    log: Logger,
    close_first: bool,
    driver: MakeDriver,
}

impl Builder {
    /// A supervisor over `driver` that finds its number of workers itself, with a mailbox of 1024,
    /// 10 s a command, 60 s for a shutdown, no links, no observer, no log.
    #[must_use]
    pub fn new(driver: MakeDriver) -> Self {
        Self {
            workers: WorkerLimit::Auto,
            mailbox: 1024,
            command_timeout: Duration::from_secs(10),
            shutdown_timeout: Duration::from_secs(60),
            run_dir: None,
            targets: Registry::default(),
            observer: None,
            history: 8192,
            log: Logger::root(Discard, o!()),
            close_first: false,
            driver,
        }
    }

    /// How many creates and deletes run at once: a number, or [`WorkerLimit::Auto`].
    #[must_use]
    pub fn workers(mut self, workers: impl Into<WorkerLimit>) -> Self {
        self.workers = workers.into();
        self
    }

    /// How many operations may wait; one more is refused with [`ErrorKind::Overloaded`].
    #[must_use]
    pub fn mailbox(mut self, places: usize) -> Self {
        self.mailbox = places.max(1);
        self
    }

    /// Bound of one control command, and of each stage that waits for something else.
    #[must_use]
    pub fn command_timeout(mut self, bound: Duration) -> Self {
        self.command_timeout = bound;
        self
    }

    /// Bound of the shutdown that dropping [`Running`] does.
    #[must_use]
    pub fn shutdown_timeout(mut self, bound: Duration) -> Self {
        self.shutdown_timeout = bound;
        self
    }

    /// Keep `DIR/by-name/NAME` links to the block devices.
    #[must_use]
    pub fn run_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.run_dir = Some(dir.into());
        self
    }

    /// Serve devices whose target is custom and called `name` with what `opener` opens.
    #[must_use]
    pub fn target(mut self, name: impl Into<String>, opener: Arc<dyn OpenTarget>) -> Self {
        self.targets.register(name, opener);
        self
    }

    /// Tell `observer` of every change of state.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }

    /// How many changes of state are kept for [`Handle::events`], 8192 unless set.
    #[must_use]
    pub fn history(mut self, changes: usize) -> Self {
        self.history = changes;
        self
    }

    /// Log to `log`. The library installs no logger of its own.
    #[must_use]
    pub fn log(mut self, log: Logger) -> Self {
        self.log = log;
        self
    }

    /// Take devices down in the order for kernels before 6.9 even where there is a better one: for
    /// measuring what the better one is worth.
    #[doc(hidden)]
    #[must_use]
    pub fn close_first(mut self, on: bool) -> Self {
        self.close_first = on;
        self
    }

    /// Starts the supervisor on a thread of its own and waits until it answers.
    ///
    /// # Errors
    /// When the thread, the driver or the run directory cannot be had; nothing runs then.
    pub fn start(self) -> Result<Running, Error> {
        let (ready, started) = oneshot::channel();
        let (end, ending) = mpsc::channel();
        let shutdown_timeout = self.shutdown_timeout;
        let thread = sys::thread::spawn("ublkd", move || {
            let _end: mpsc::Sender<()> = end;
            control_thread(self, ready);
        })?;
        match wait_for(START_BOUND, started) {
            Some(Ok(Ok((handle, system)))) => {
                let thread = Some(thread);
                Ok(Running { handle, system, thread, ending, shutdown_timeout, asked: false })
            }
            Some(Ok(Err(error))) => Err(error),
            Some(Err(oneshot::Canceled)) => Err(match thread.join() {
                Err(payload) => {
                    let panic = sys::panic::report(&*payload);
                    Error::new(ErrorKind::Panicked, format!("the control thread: {panic}"))
                }
                Ok(()) => Error::new(ErrorKind::Internal, "the control thread ended at once"),
            }),
            None => Err(Error::new(ErrorKind::Timeout, "the supervisor did not start")
                .elapsed(START_BOUND)
                .hint("the driver may not answer: see dmesg")),
        }
    }

    /// Starts the supervisor on the actix system of this thread, for a host that is one. The
    /// host calls [`Handle::shutdown`] before its system ends.
    ///
    /// # Errors
    /// When the driver or the run directory cannot be had.
    ///
    /// # Panics
    /// When this thread runs no actix system.
    pub fn start_here(self) -> Result<Handle, Error> {
        let driver = (self.driver)(&self.log)?;
        let links = self.run_dir.as_deref().map(Links::open).transpose()?;
        let env = Env {
            driver: Rc::new(Deadline::new(driver, self.command_timeout)),
            targets: self.targets,
            workers: Workers::new(self.workers),
            links,
            observer: self.observer,
            events: Events::new(self.history),
            delete_async: (!self.close_first).into(),
            try_stop: true.into(),
            features: Default::default(),
            stage_bound: self.command_timeout,
            owners: Default::default(),
            tally: Default::default(),
        };
        let admission = Admission::new(self.mailbox);
        let events = env.events.reader();
        let supervisor = Supervisor::new(env, admission.clone(), &self.log).start();
        Ok(Handle::new(supervisor, admission, events))
    }
}

/// Runs the actor system until [`Running`] stops it.
fn control_thread(builder: Builder, ready: oneshot::Sender<Result<(Handle, System), Error>>) {
    let runner = System::new();
    let started = runner.block_on(async { builder.start_here() });
    let failed = started.is_err();
    let started = started.map(|handle| (handle, System::current()));
    // Nobody waits for the answer only if the starting thread was ended.
    if ready.send(started).is_ok() && !failed {
        // An error here is an exit code that nobody sets.
        let _ = runner.run();
    }
}

/// A supervisor that runs. Dropping it shuts it down, within the builder's bound.
#[must_use = "dropping it shuts the supervisor down"]
pub struct Running {
    handle: Handle,
    system: System,
    thread: Option<JoinHandle<()>>,
    /// Closed when the thread is about to end.
    ending: mpsc::Receiver<()>,
    shutdown_timeout: Duration,
    /// A shutdown was asked for: dropping it does not ask again.
    asked: bool,
}

impl Running {
    /// A handle to it; clones are cheap and work from any thread or runtime.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Takes all devices down, accounts for each within `within`, and ends the thread.
    ///
    /// # Errors
    /// When the supervisor has ended before.
    pub async fn shutdown(mut self, within: Duration) -> Result<ShutdownReport, Error> {
        self.asked = true;
        let report = self.handle.shutdown(within).await;
        self.end();
        report
    }

    fn end(&mut self) {
        self.system.stop();
        let Some(thread) = self.thread.take() else { return };
        // A thread that a wedged command or a blocking observer holds is let go: the process can
        // still end, and its exit frees what is left.
        if self.ending.recv_timeout(END_BOUND) != Err(mpsc::RecvTimeoutError::Timeout) {
            // Its panic was the end of every actor; callers have seen that as errors.
            let _ = thread.join();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.thread.is_some() {
            if !self.asked {
                // Whoever drops it does not ask for the report; it is in the log. A supervisor that
                // an observer blocks does not keep to its own bound.
                let bound = self.shutdown_timeout + END_BOUND;
                let _ = wait_for(bound, self.handle.shutdown(self.shutdown_timeout));
            }
            self.end();
        }
    }
}
