//! The actor of one device: turns messages into events, applies [`next`], does what it says.
//!
//! The lifecycle futures run as tasks of their own, so that the actor answers meanwhile and a
//! handler that panics cuts no command in two; the actor awaits their end, or their panic as a
//! value.

use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use actix::{Actor, ActorFutureExt, AsyncContext, Context, Handler, SpawnHandle, WrapFuture};
use futures::channel::oneshot;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinError;

use super::body::Body;
use super::messages::{QueueBroke, Quiesce, Resume, Start, Stop, StopUnheld};
use super::workers::{Class, Slot};
use super::{Env, busy, recover, startup, teardown};
use crate::driver::{QueueEvent, QueueEvents};
use crate::model::{
    Action, DeviceOutcome, DeviceState, Error, ErrorKind, Event, OutcomeKind, PanicReport,
    StateChange, next,
};
use crate::sys::panic::catch_future;

/// How a lifecycle task ended; it is cancelled only with the whole actor system.
type Ended<T> = Result<Result<T, PanicReport>, JoinError>;

/// One device.
pub(crate) struct Device {
    body: Rc<Body>,
    env: Rc<Env>,
    waiting: Option<SpawnHandle>,
    /// Who waits for the quiesce or resume under way.
    changes: Vec<oneshot::Sender<Result<(), Error>>>,
    /// Takes over from an actor that panicked: the device has failed.
    salvage: bool,
}

impl Device {
    pub(crate) fn new(body: Rc<Body>, env: Rc<Env>) -> Self {
        Self { body, env, waiting: None, changes: Vec::new(), salvage: false }
    }

    /// An actor that takes down what one that panicked has left.
    pub(crate) fn salvage(body: Rc<Body>, env: Rc<Env>, panic: PanicReport) -> Self {
        let text = format!("its actor panicked: {}", panic.message);
        body.set_error(Error::new(ErrorKind::Panicked, text).at(body.stage()).device(body.name()));
        body.caught(panic);
        body.muted.set(true);
        Self { body, env, waiting: None, changes: Vec::new(), salvage: true }
    }

    fn apply(&mut self, event: Event) -> Action {
        let from = self.body.state();
        let (to, action) = match next(from, event) {
            Ok(step) => step,
            Err(illegal) => {
                slog::error!(self.body.log.borrow(), "{illegal}: a fault of ublkd, ignored");
                return Action::Ignore;
            }
        };
        if from != to {
            self.body.set_state(to);
            slog::debug!(self.body.log.borrow(), "state"; "from" => from.as_str(), "to" => to.as_str());
            self.tell(from, to);
        }
        action
    }

    fn tell(&self, from: DeviceState, to: DeviceState) {
        let change = StateChange {
            at: SystemTime::now(),
            device: self.body.name().clone(),
            id: self.body.id(),
            group: self.body.spec().group().cloned(),
            from,
            to,
            error: self.body.complaint(),
        };
        // The observer is code of the host's and may panic: it comes last.
        self.env.events.push(change.clone());
        if let Some(observer) = &self.env.observer
            && !self.body.muted.get()
        {
            observer.state_changed(&change);
        }
    }

    fn granted(&mut self, slot: Slot, ctx: &mut Context<Self>) {
        self.waiting = None;
        if self.apply(Event::Granted) != Action::Start {
            return;
        }
        let (body, env) = (Rc::clone(&self.body), Rc::clone(&self.env));
        let events = queue_events(ctx);
        let start = actix_rt::spawn(catch_future(async move {
            let _slot = slot;
            startup::run(&body, &env, events).await
        }));
        ctx.spawn(start.into_actor(self).map(|ended, device, ctx| device.started(ended, ctx)));
    }

    fn started(&mut self, ended: Ended<Result<(), Error>>, ctx: &mut Context<Self>) {
        let event = match self.survived(ended).and_then(|result| result) {
            Ok(()) => {
                self.env.tally.borrow_mut().created(&self.body.times());
                Event::Started
            }
            Err(error) => {
                slog::error!(self.body.log.borrow(), "start failed: {error}"; "kind" => error.kind().as_str());
                self.env.tally.borrow_mut().not_created(error.kind());
                self.body.set_error(error);
                Event::StartFailed
            }
        };
        match self.apply(event) {
            Action::Announce => {
                slog::info!(self.body.log.borrow(), "in service");
                self.body.announce();
                // A queue that broke between the last step and now has been told, and ignored.
                if self.body.error().is_some() {
                    self.fault(ctx);
                }
            }
            Action::Teardown => self.teardown(None, ctx),
            _ => {}
        }
    }

    fn fault(&mut self, ctx: &mut Context<Self>) {
        if self.apply(Event::Fault) == Action::Teardown {
            self.teardown(None, ctx);
        }
    }

    fn teardown(&mut self, permit: Option<OwnedSemaphorePermit>, ctx: &mut Context<Self>) {
        let (body, env) = (Rc::clone(&self.body), Rc::clone(&self.env));
        let end = async move { teardown::run(&body, &env, permit).await };
        let end = actix_rt::spawn(catch_future(end));
        ctx.spawn(end.into_actor(self).map(|ended, device, _| device.ended(ended)));
    }

    fn ended(&mut self, ended: Ended<(DeviceOutcome, Event)>) {
        let (outcome, event) = self.survived(ended).unwrap_or_else(|error| {
            self.body.set_error(error.clone());
            let mut outcome = self.body.outcome_now(OutcomeKind::Panicked, Some(error));
            outcome.left = self.body.remains();
            (outcome, Event::Remains)
        });
        self.env.tally.borrow_mut().ended(&outcome);
        // Before the observer is told, which may panic.
        self.body.keep(outcome.clone());
        if self.apply(event) == Action::Report {
            let (log, kind) = (self.body.log.borrow().clone(), outcome.outcome.as_str());
            match &outcome.error {
                None => slog::info!(log, "gone"; "outcome" => kind),
                Some(error) => slog::warn!(log, "ended: {error}"; "outcome" => kind),
            }
            self.body.finish();
        }
    }

    /// Somebody wants a quiesce or a resume: answers at once, or notes who waits.
    fn change(&mut self, event: Event, reply: oneshot::Sender<Result<(), Error>>) -> Action {
        let action = self.apply(event);
        // A caller that went away does not want to know.
        match action {
            Action::Quiesce | Action::Resume | Action::Await => self.changes.push(reply),
            Action::Answer => drop(reply.send(Ok(()))),
            _ => drop(reply.send(Err(self.body.not_in_this_state()))),
        }
        action
    }

    /// A quiesce or a resume has ended.
    fn changed(&mut self, event: Event, error: Option<Error>, ctx: &mut Context<Self>) {
        let log = self.body.log.borrow().clone();
        match &error {
            None => {
                slog::info!(log, "{}", if event == Event::Quieted { "quiesced" } else { "resumed" })
            }
            Some(error) => slog::warn!(log, "{error}"),
        }
        self.body.set_pending(error.clone().filter(|_| event != Event::Declined));
        let result =
            match (self.apply(event), error) {
                (Action::Answer, None) => Ok(()),
                (_, Some(error)) => Err(error),
                _ => Err(Error::new(ErrorKind::Stopping, "was deleted meanwhile")
                    .device(self.body.name())),
            };
        for reply in self.changes.drain(..) {
            let _ = reply.send(result.clone());
        }
        // Somebody else has removed it.
        if let Some(gone) = result.err().filter(|error| error.kind() == ErrorKind::NotFound) {
            self.body.set_error(gone);
        }
        // A queue that broke meanwhile has been told, and ignored.
        if self.body.error().is_some() && self.body.state().is_in_service() {
            self.fault(ctx);
        }
    }

    /// What a lifecycle task gave, or that it panicked, as an error.
    fn survived<T>(&self, ended: Ended<T>) -> Result<T, Error> {
        let error = match ended {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(panic)) => {
                let error = Error::new(ErrorKind::Panicked, panic.to_string());
                self.body.caught(panic);
                error
            }
            Err(_) => Error::new(ErrorKind::Internal, "its lifecycle task was cancelled"),
        };
        Err(error.at(self.body.stage()).device(self.body.name()))
    }

    /// It ends before anything was made.
    fn cancel(&mut self, ctx: &mut Context<Self>, error: Error) {
        if let Some(waiting) = self.waiting.take() {
            ctx.cancel_future(waiting);
        }
        let kind = if self.body.panicked() { OutcomeKind::Panicked } else { OutcomeKind::Failed };
        self.body.set_error(error.clone());
        let outcome = self.body.outcome_now(kind, Some(error));
        self.env.tally.borrow_mut().ended(&outcome);
        self.body.keep(outcome);
        self.body.finish();
    }
}

impl Actor for Device {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        if !self.salvage {
            return;
        }
        match self.body.state() {
            DeviceState::Waiting | DeviceState::Starting | DeviceState::Cancelling => {
                match (self.apply(Event::StartFailed), self.body.error()) {
                    (Action::Teardown, _) => self.teardown(None, ctx),
                    (Action::Report, Some(error)) => self.cancel(ctx, error),
                    _ => {}
                }
            }
            DeviceState::Live
            | DeviceState::Quiescing
            | DeviceState::Quiesced
            | DeviceState::Stalled => self.fault(ctx),
            DeviceState::Resuming => {
                self.apply(Event::NotResumed);
                self.fault(ctx);
            }
            // The task of the dead actor may be at it still; the lifecycle lock orders the two.
            DeviceState::Stopping | DeviceState::Failing => self.teardown(None, ctx),
            // It died between the end and the telling of it.
            DeviceState::Gone | DeviceState::Failed | DeviceState::Left | DeviceState::Wedged => {
                self.body.blame_panic();
                self.body.finish();
            }
        }
    }
}

impl Handler<Start> for Device {
    type Result = ();

    fn handle(&mut self, start: Start, ctx: &mut Context<Self>) {
        self.body.on_start(start.reply);
        let workers = self.env.workers.clone();
        let slot = async move { workers.acquire(Class::Create).await };
        let permit = start.permit;
        self.waiting = Some(ctx.spawn(slot.into_actor(self).map(move |slot, device, ctx| {
            drop(permit);
            device.granted(slot, ctx);
        })));
    }
}

impl Handler<Stop> for Device {
    type Result = ();

    fn handle(&mut self, stop: Stop, ctx: &mut Context<Self>) {
        if let Some(deadline) = stop.deadline {
            let old = self.body.deadline.get();
            self.body.deadline.set(Some(old.map_or(deadline, |old| old.min(deadline))));
        }
        match self.apply(Event::Delete) {
            Action::Teardown => {
                self.body.on_end(stop.reply);
                self.teardown(stop.permit, ctx);
            }
            Action::Report => {
                self.body.on_end(stop.reply);
                let text = "was deleted before its start began";
                self.cancel(ctx, Error::new(ErrorKind::Stopping, text).device(self.body.name()));
            }
            _ => self.body.on_end(stop.reply),
        }
    }
}

impl Handler<StopUnheld> for Device {
    type Result = ();

    fn handle(
        &mut self,
        StopUnheld { within, refused, stop }: StopUnheld,
        ctx: &mut Context<Self>,
    ) {
        let (body, env) = (Rc::clone(&self.body), Rc::clone(&self.env));
        let look = async move { busy::unheld(&body, &env, within).await };
        let look = actix_rt::spawn(catch_future(look));
        ctx.spawn(look.into_actor(self).map(|unheld, device, ctx| {
            match device.survived(unheld).and_then(|result| result) {
                Ok(()) => device.handle(stop, ctx),
                Err(error) => {
                    slog::info!(device.body.log.borrow(), "not deleted: {error}");
                    // A caller that went away does not want to know.
                    let _ = refused.send(error);
                }
            }
        }));
    }
}

impl Handler<Quiesce> for Device {
    type Result = ();

    fn handle(&mut self, Quiesce { within, reply }: Quiesce, ctx: &mut Context<Self>) {
        if self.change(Event::Quiesce, reply) != Action::Quiesce {
            return;
        }
        let (body, env) = (Rc::clone(&self.body), Rc::clone(&self.env));
        let quiesce = async move { recover::quiesce(&body, &env, within).await };
        let quiesce = actix_rt::spawn(catch_future(quiesce));
        ctx.spawn(quiesce.into_actor(self).map(|ended, device, ctx| {
            let ended = device.survived(ended);
            let (event, error) = ended.unwrap_or_else(|error| (Event::Stuck, Some(error)));
            device.changed(event, error, ctx);
        }));
    }
}

impl Handler<Resume> for Device {
    type Result = ();

    fn handle(&mut self, Resume { reply }: Resume, ctx: &mut Context<Self>) {
        // Never quiesced, so nothing of it can be resumed.
        if self.body.state() == DeviceState::Live && !self.body.spec().recovery() {
            // A caller that went away does not want to know.
            return drop(reply.send(Err(recover::without("resume"))));
        }
        if self.change(Event::Resume, reply) != Action::Resume {
            return;
        }
        let (body, env) = (Rc::clone(&self.body), Rc::clone(&self.env));
        let events = queue_events(ctx);
        let resume = async move { recover::resume(&body, &env, events).await };
        let resume = actix_rt::spawn(catch_future(resume));
        ctx.spawn(resume.into_actor(self).map(|ended, device, ctx| {
            match device.survived(ended).and_then(|resumed| resumed) {
                Ok(()) => device.changed(Event::Resumed, None, ctx),
                Err(error) => device.changed(Event::NotResumed, Some(error), ctx),
            }
        }));
    }
}

impl Handler<QueueBroke> for Device {
    type Result = ();

    fn handle(&mut self, QueueBroke(event): QueueBroke, ctx: &mut Context<Self>) {
        let error = match event {
            // The queue thread has logged it.
            QueueEvent::Panicked(queue, panic) => {
                let text = format!("queue {queue}: {panic}");
                self.body.add_panic(panic);
                Error::new(ErrorKind::Panicked, text)
            }
            QueueEvent::TakenAway(queue) => {
                // A STOP of ours does that.
                if self.body.state() != DeviceState::Live || self.body.yielding.get() {
                    return;
                }
                let text =
                    format!("somebody else stopped the device: queue {queue} was taken away");
                Error::new(ErrorKind::NotFound, text)
            }
            QueueEvent::Failed(queue, why) => {
                Error::new(ErrorKind::Io, format!("queue {queue} failed: {why}"))
            }
        };
        let error = error.at(self.body.stage()).device(self.body.name());
        let error = self.body.id().into_iter().fold(error, Error::id);
        slog::error!(self.body.log.borrow(), "broke: {error}");
        self.body.set_error(error);
        self.body.broken.notify_one();
        self.fault(ctx);
    }
}

/// What queue threads call: a message to this actor, for nobody once it has ended.
fn queue_events(ctx: &mut Context<Device>) -> QueueEvents {
    let device = ctx.address().downgrade();
    Arc::new(move |event| {
        if let Some(device) = device.upgrade() {
            device.do_send(QueueBroke(event));
        }
    })
}
