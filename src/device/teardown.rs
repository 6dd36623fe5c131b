//! Takes a device down: runs the undos that are due, in the order that overlaps most.
//!
//! ```text
//!   unlink ─ STOP ─ join the queue threads ─ DEL_DEV_ASYNC ─ close, shut ─┬─ wait until the id is free
//!   └────────────────────── holds a worker ───────────────────────────────┘   └─── holds none ───┘
//! ```
//!
//! The delete goes before the close because then the last reference is dropped by the close, on
//! a kernel worker, outside the driver's global mutex: on Linux 7.3 that is 12 to 15 times faster
//! for hundreds of devices. Kernels before 6.9 lack `DEL_DEV_ASYNC`; there the close goes first.
//!
//! Invariants: an undo leaves the list only when it is done, so a teardown that could not end can
//! be run again; nothing here waits longer than the stage's bound or the deadline.

use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep};

use super::Env;
use super::body::Body;
use super::startup::bounded;
use super::undo::{CLOSE_FIRST, DELETE_FIRST, Undo};
use super::workers::Class;
use crate::driver::{Command, KernelDevice, KernelState, Reply};
use crate::model::{
    DeviceId, DeviceOutcome, Error, ErrorKind, Event, OutcomeKind, PanicReport, QueueExitCause,
    Stage, TargetSpec,
};
use crate::sys::panic::catch_future;
use crate::sys::thread::blocking;

/// How often a command that was interrupted (`EINTR`) is sent again; STOP and DEL may be repeated.
const INTERRUPTED_TRIES: u32 = 4;

/// Runs every undo that is due. Gives the outcome, and the event that ends the life. `permit` is
/// given back when a worker has taken the teardown up.
pub(super) async fn run(
    body: &Body,
    env: &Env,
    permit: Option<OwnedSemaphorePermit>,
) -> (DeviceOutcome, Event) {
    let _one = body.lifecycle.lock().await;
    body.enter_teardown();
    let mut slot = Some(env.workers.acquire(Class::Delete).await);
    drop(permit);
    let mut course = Course { body, env, gone: false, trouble: None, holders: Vec::new() };
    let mut fate = if body.lost_in_add() { Event::Lost } else { Event::Cleared };
    loop {
        let order = if env.delete_async.get() { DELETE_FIRST } else { CLOSE_FIRST };
        let Some(undo) = body.parts.borrow().undos.next(order) else { break };
        body.enter(undo.stage());
        if undo == Undo::Release {
            slot = None;
        }
        // A panic of one step, in a driver or a target, is that step's failure: the others go on.
        let step = match catch_future(course.step(undo)).await {
            Ok(step) => step,
            Err(panic) => course.panicked(undo, panic),
        };
        match step {
            Step::Done => body.parts.borrow_mut().undos.done(undo),
            Step::Reorder => {}
            Step::Skip => {
                fate = Event::Remains;
                body.parts.borrow_mut().undos.skip(undo);
            }
            Step::Lost => {
                fate = Event::Lost;
                break;
            }
        }
    }
    drop(slot);
    body.parts.borrow_mut().undos.unskip();
    if fate == Event::Cleared
        && let Some(id) = body.id()
    {
        env.gave_back(id, body.name());
    }
    (course.outcome(fate), fate)
}

/// Whether it is in service for another process: nobody but its server starts a device.
fn is_of_another(kernel: &KernelDevice) -> bool {
    kernel.state == KernelState::Live && i64::from(kernel.pid) != i64::from(std::process::id())
}

enum Step {
    Done,
    /// The kernel lacks a command: look at the order again.
    Reorder,
    /// It did not go; go on with the others and say so at the end.
    Skip,
    /// A command never came back: nothing more can be sent to this device.
    Lost,
}

/// A teardown under way.
struct Course<'a> {
    body: &'a Body,
    env: &'a Env,
    /// Somebody else had removed the device.
    gone: bool,
    /// The first thing that went wrong.
    trouble: Option<Error>,
    holders: Vec<String>,
}

impl Course<'_> {
    async fn step(&mut self, undo: Undo) -> Step {
        match (undo, self.body.id()) {
            (Undo::Shut, _) => self.shut().await,
            (_, None) => Step::Done,
            (Undo::Unlink, Some(id)) => self.unlink(id),
            (Undo::Stop, Some(id)) => self.stop(id).await,
            (Undo::Join, Some(_)) => self.join().await,
            (Undo::Delete, Some(id)) => self.delete(id).await,
            (Undo::Close, Some(_)) => {
                self.body.parts.borrow_mut().chardev = None;
                Step::Done
            }
            (Undo::Release, Some(id)) => self.release(id).await,
        }
    }

    /// Drops the target, on a thread of its own: that may take as long as its file system does.
    async fn shut(&mut self) -> Step {
        let (target, shutting) = {
            let mut parts = self.body.parts.borrow_mut();
            (parts.target.take(), parts.shutting.take())
        };
        let quick = matches!(self.body.spec().target(), TargetSpec::Null { .. });
        let started = match (shutting, target) {
            (Some(shutting), _) => Ok(shutting),
            (None, Some(target)) if !quick => blocking("ublkd-shut", || drop(target)),
            (None, _) => return Step::Done,
        };
        let mut shutting = match started {
            Ok(shutting) => shutting,
            // Without a thread to be had it was dropped here.
            Err(error) => {
                self.note(error);
                return Step::Done;
            }
        };
        match bounded(self.bound(), &mut shutting).await {
            Ok(Ok(())) => Step::Done,
            Ok(Err(panic)) => self.panicked(Undo::Shut, panic),
            Err(late) => {
                self.body.parts.borrow_mut().shutting = Some(shutting);
                self.note(late.hint("the target takes that long to close; see what it is on"));
                Step::Skip
            }
        }
    }

    fn panicked(&mut self, undo: Undo, panic: PanicReport) -> Step {
        self.note(Error::new(ErrorKind::Panicked, panic.to_string()));
        self.body.caught(panic);
        match undo {
            Undo::Unlink | Undo::Stop | Undo::Shut => Step::Done,
            Undo::Join | Undo::Delete | Undo::Close | Undo::Release => Step::Skip,
        }
    }

    fn unlink(&mut self, id: DeviceId) -> Step {
        if let Some(links) = &self.env.links
            && let Err(error) = links.unlink(self.body.name(), id)
        {
            self.note(error);
        }
        Step::Done
    }

    /// The queues go on serving until this returns: the kernel drains I/O in it.
    async fn stop(&mut self, id: DeviceId) -> Step {
        let began = Instant::now();
        match self.send(Command::Stop(id)).await {
            Ok(_) => {
                // One that has failed may have no disk to remove, which is no measure.
                if self.body.error().is_none() {
                    self.env.workers.stopped(began.elapsed());
                }
                Step::Done
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.gone = true;
                Step::Done
            }
            Err(error) => {
                let lost = error.kind() == ErrorKind::Wedged;
                self.note(error);
                // Closing the char device makes the kernel stop the disk itself, so go on.
                if lost { Step::Lost } else { Step::Done }
            }
        }
    }

    async fn join(&mut self) -> Step {
        let Some(mut lease) = self.body.lease_queues() else { return Step::Done };
        let Some(queues) = lease.queues() else { return Step::Done };
        queues.stop();
        match bounded(self.bound(), queues.join()).await {
            Ok(exits) => {
                self.env.tally.borrow_mut().past(queues.stats());
                lease.consume();
                for exit in exits {
                    if let QueueExitCause::Failed(why) = exit.cause {
                        let text = format!("queue {} failed: {why}", exit.queue);
                        self.note(Error::new(ErrorKind::Io, text));
                    }
                }
                Step::Done
            }
            Err(late) => {
                let running = queues.tids();
                drop(lease);
                self.note(late.hint(format!(
                    "queue threads {running:?} do not end: the target blocks them; see /proc/PID/task/TID/stack"
                )));
                Step::Skip
            }
        }
    }

    async fn delete(&mut self, id: DeviceId) -> Step {
        if self.gone && self.undo_is_done(Undo::Close) {
            // Nothing of ours keeps the id from being another's by now.
            return Step::Done;
        }
        let waiting = !self.env.delete_async.get();
        let command = if waiting { Command::Delete(id) } else { Command::DeleteAsync(id) };
        match self.send(command).await {
            Ok(_) => {
                self.gone = false;
                Step::Done
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.gone = true;
                Step::Done
            }
            Err(error) if !waiting && error.kind() == ErrorKind::Unsupported => {
                self.env.delete_async.set(false);
                Step::Reorder
            }
            Err(error) => {
                let lost = error.kind() == ErrorKind::Wedged;
                self.note(error);
                if lost {
                    self.holders = self.env.driver.holders(id).await;
                    Step::Lost
                } else {
                    Step::Skip
                }
            }
        }
    }

    /// Waits until the id is free. The kernel tells nobody when that is, so ask: soon at first (a
    /// grace period is 1 to 3 ms), then less often.
    async fn release(&mut self, id: DeviceId) -> Step {
        if !self.undo_is_done(Undo::Join) || !self.undo_is_done(Undo::Delete) {
            return Step::Skip;
        }
        let end = Instant::now() + self.bound();
        let mut pause = Duration::from_millis(1);
        loop {
            match self.env.driver.info(id).await {
                Err(error) if error.kind() == ErrorKind::NotFound => return Step::Done,
                Err(error) if error.kind() == ErrorKind::Wedged => {
                    self.note(error);
                    return Step::Lost;
                }
                // Another device has the id by now: ours, or one of another program's.
                _ if !self.env.is_owner(id, self.body.name()) => return Step::Done,
                Ok(kernel) if is_of_another(&kernel) => return Step::Done,
                _ => {}
            }
            if Instant::now() >= end {
                self.holders = self.env.driver.holders(id).await;
                let text = "the kernel still holds the id";
                self.note(Error::new(ErrorKind::Timeout, text).hint(if self.holders.is_empty() {
                    "nobody seen holds it; see dmesg".to_owned()
                } else {
                    format!("end the holders: {}", self.holders.join("; "))
                }));
                return Step::Skip;
            }
            sleep(pause.min(end - Instant::now())).await;
            pause = (pause * 3 / 2).min(Duration::from_millis(20));
        }
    }

    /// Sends a command that may be repeated, again when it was interrupted.
    async fn send(&self, command: Command) -> Result<Reply, Error> {
        let mut tries = 1;
        loop {
            match self.env.driver.execute(command.clone()).await {
                Err(error)
                    if error.errno() == Some(nix::libc::EINTR) && tries < INTERRUPTED_TRIES =>
                {
                    tries += 1;
                }
                answer => return answer,
            }
        }
    }

    fn undo_is_done(&self, undo: Undo) -> bool {
        !self.body.parts.borrow().undos.contains(undo)
    }

    /// How long a stage may take from now.
    fn bound(&self) -> Duration {
        let left = self.body.deadline.get().map(|d| d.saturating_duration_since(Instant::now()));
        left.map_or(self.env.stage_bound, |left| left.min(self.env.stage_bound))
    }

    fn note(&mut self, error: Error) {
        let error = error.at(self.body.stage()).device(self.body.name());
        let error = self.body.id().into_iter().fold(error, Error::id);
        slog::warn!(self.body.log.borrow(), "teardown: {error}"; "stage" => self.body.stage().as_str());
        self.trouble.get_or_insert(error);
    }

    fn outcome(self, fate: Event) -> DeviceOutcome {
        let cause = self.body.error();
        let kind = match fate {
            Event::Lost => OutcomeKind::Wedged,
            _ if self.body.panicked() => OutcomeKind::Panicked,
            Event::Remains => OutcomeKind::TimedOut,
            _ if self.gone => OutcomeKind::AlreadyGone,
            _ if cause.is_some() || self.trouble.is_some() => OutcomeKind::Failed,
            _ => OutcomeKind::Deleted,
        };
        // What is left matters more than why it was taken down.
        let error = match fate {
            Event::Cleared => cause.or(self.trouble),
            _ => self.trouble.or(cause),
        };
        self.body.enter(Stage::Live);
        let mut outcome = self.body.outcome_now(kind, error);
        outcome.holders = self.holders;
        outcome.left = self.body.remains();
        outcome
    }
}
