//! What a device owns and what is known of it. It outlives the actor: when an actor panics, its
//! body goes to a new one with everything that must still be undone.
//!
//! Invariants: no borrow is held across an await; a queue set that is being joined is lent out by
//! a [`Lease`], which puts it back even when the future that joins it is dropped.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use futures::channel::oneshot;
use slog::{Logger, o};
use tokio::sync::{Mutex, Notify};
use tokio::time::Instant;

use super::undo::{Undo, Undos};
use crate::driver::{CharDevice, Features, QueueSet};
use crate::model::{
    CreateOutcome, DeviceId, DeviceInfo, DeviceName, DeviceOutcome, DeviceSpec, DeviceState, Error,
    ErrorKind, IoStats, OutcomeKind, PanicReport, QueueSpec, Stage, StageTimes,
};
use crate::sys::thread::Blocking;
use crate::target::{Geometry, Target};

/// A device's possessions and history.
pub(crate) struct Body {
    name: DeviceName,
    /// What it is to be; changes with what is changed while it runs.
    spec: RefCell<Arc<DeviceSpec>>,
    pub(crate) log: RefCell<Logger>,
    /// Held by the one lifecycle future that may run.
    pub(crate) lifecycle: Mutex<()>,
    /// Set when a queue broke, so that a start that waits for the kernel sees it.
    pub(crate) broken: Notify,
    pub(crate) deadline: Cell<Option<Instant>>,
    /// A TRY_STOP_DEV is under way or has stopped it: its tags come back for that.
    pub(crate) yielding: Cell<bool>,
    /// Its block device refuses writes since somebody asked for that.
    pub(crate) read_only: Cell<bool>,
    /// An observer that panicked is not asked again for this device.
    pub(crate) muted: Cell<bool>,
    pub(super) parts: RefCell<Parts>,
    history: RefCell<History>,
    waiters: RefCell<Waiters>,
}

/// What the start has made so far.
#[derive(Default)]
pub(super) struct Parts {
    pub(super) id: Option<DeviceId>,
    pub(super) target: Option<Arc<dyn Target>>,
    /// As the target told it once; it is code of the host's.
    pub(super) geometry: Option<Geometry>,
    /// The target, while it is being dropped.
    pub(super) shutting: Option<Blocking<()>>,
    pub(super) chardev: Option<Box<dyn CharDevice>>,
    queues: Option<Box<dyn QueueSet>>,
    /// Queues as the kernel made them.
    pub(super) made: Option<QueueSpec>,
    /// Features as the kernel switched them on.
    pub(super) features: Features,
    pub(super) undos: Undos,
}

struct History {
    state: DeviceState,
    state_since: Instant,
    stage: Stage,
    stage_since: Instant,
    times: StageTimes,
    error: Option<Error>,
    /// Why the last quiesce or resume did not end well; it may be asked again.
    pending: Option<Error>,
    panics: Vec<PanicReport>,
    outcome: Option<DeviceOutcome>,
}

#[derive(Default)]
struct Waiters {
    start: Vec<oneshot::Sender<Result<CreateOutcome, Error>>>,
    end: Vec<oneshot::Sender<DeviceOutcome>>,
}

impl Body {
    pub(crate) fn new(spec: DeviceSpec, log: &Logger) -> Rc<Self> {
        let now = Instant::now();
        let log = log.new(o!("device" => spec.name().to_string()));
        Rc::new(Self {
            name: spec.name().clone(),
            spec: RefCell::new(Arc::new(spec)),
            log: RefCell::new(log),
            lifecycle: Mutex::new(()),
            broken: Notify::new(),
            deadline: Cell::new(None),
            yielding: Cell::new(false),
            read_only: Cell::new(false),
            muted: Cell::new(false),
            parts: RefCell::default(),
            history: RefCell::new(History {
                state: DeviceState::Waiting,
                state_since: now,
                stage: Stage::Wait,
                stage_since: now,
                times: StageTimes::default(),
                error: None,
                pending: None,
                panics: Vec::new(),
                outcome: None,
            }),
            waiters: RefCell::default(),
        })
    }

    pub(crate) fn name(&self) -> &DeviceName {
        &self.name
    }

    pub(crate) fn spec(&self) -> Arc<DeviceSpec> {
        Arc::clone(&self.spec.borrow())
    }

    pub(crate) fn id(&self) -> Option<DeviceId> {
        self.parts.borrow().id
    }

    pub(crate) fn state(&self) -> DeviceState {
        self.history.borrow().state
    }

    pub(super) fn set_state(&self, state: DeviceState) {
        let mut history = self.history.borrow_mut();
        history.state = state;
        history.state_since = Instant::now();
    }

    pub(crate) fn stage(&self) -> Stage {
        self.history.borrow().stage
    }

    /// Ends the stage under way, noting its time, and begins `stage`.
    pub(super) fn enter(&self, stage: Stage) {
        let now = Instant::now();
        let mut history = self.history.borrow_mut();
        let (last, took) = (history.stage, now - history.stage_since);
        // Time in service is no step that somebody could make faster.
        if last != Stage::Live {
            history.times.push(last, took);
        }
        history.stage = stage;
        history.stage_since = now;
    }

    /// How long each stage so far has taken.
    pub(super) fn times(&self) -> StageTimes {
        self.history.borrow().times.clone()
    }

    /// Begins a teardown: the report tells its stages, not those of a start that went well.
    pub(super) fn enter_teardown(&self) {
        self.enter(Stage::Wait);
        let mut history = self.history.borrow_mut();
        if history.error.is_none() {
            history.times = StageTimes::default();
        }
    }

    pub(super) fn push_undo(&self, undo: Undo) {
        self.parts.borrow_mut().undos.push(undo);
    }

    /// The kernel has made the device: its number is known and must be given back.
    pub(super) fn added(&self, id: DeviceId) {
        let log = self.log.borrow().new(o!("id" => id.0));
        *self.log.borrow_mut() = log;
        let mut parts = self.parts.borrow_mut();
        parts.id = Some(id);
        parts.undos.push(Undo::Delete);
        parts.undos.push(Undo::Release);
    }

    /// Whether the ADD never came back: it may still make a device, with a number nobody knows.
    pub(super) fn lost_in_add(&self) -> bool {
        let error = self.error();
        self.id().is_none() && error.is_some_and(|e| e.kind() == ErrorKind::Wedged)
    }

    /// What the kernel made of what was asked.
    pub(super) fn set_made(&self, made: QueueSpec, features: Features) {
        let mut parts = self.parts.borrow_mut();
        (parts.made, parts.features) = (Some(made), features);
    }

    /// The kernel has changed its size.
    pub(super) fn resized(&self, to: u64) {
        if let Some(geometry) = &mut self.parts.borrow_mut().geometry {
            geometry.size = to;
        }
        let resized = self.spec().as_ref().clone().resized(to);
        *self.spec.borrow_mut() = Arc::new(resized);
    }

    /// Whether it is served and takes I/O, as far as its actor knows.
    pub(super) fn is_live(&self) -> bool {
        self.state() == DeviceState::Live && !self.yielding.get()
    }

    /// An error of a step, with what is known of the device.
    pub(super) fn told(&self, error: Error, stage: Stage) -> Error {
        let error = error.at(stage).device(self.name());
        self.id().into_iter().fold(error, Error::id)
    }

    /// That something cannot be done now.
    pub(super) fn not_in_this_state(&self) -> Error {
        let text = format!("it is {}, and this cannot be done then", self.state());
        let error = Error::new(ErrorKind::Busy, text).device(self.name());
        match self.state() {
            DeviceState::Quiesced | DeviceState::Stalled => error.hint("resume it first"),
            _ => error,
        }
    }

    pub(super) fn put_queues(&self, queues: Box<dyn QueueSet>) {
        self.parts.borrow_mut().queues = Some(queues);
    }

    /// Takes the queue set out until the lease is dropped.
    pub(super) fn lease_queues(&self) -> Option<Lease<'_>> {
        let queues = self.parts.borrow_mut().queues.take()?;
        Some(Lease { body: self, queues: Some(queues) })
    }

    /// Notes the first error; later ones are consequences.
    pub(super) fn set_error(&self, error: Error) {
        self.history.borrow_mut().error.get_or_insert(error);
    }

    pub(crate) fn error(&self) -> Option<Error> {
        self.history.borrow().error.clone()
    }

    /// Notes why it does not serve, though it may be asked to again; or that it does.
    pub(super) fn set_pending(&self, error: Option<Error>) {
        self.history.borrow_mut().pending = error;
    }

    /// What is wrong with it now, in one line.
    pub(super) fn complaint(&self) -> Option<String> {
        let history = self.history.borrow();
        history.error.as_ref().or(history.pending.as_ref()).map(ToString::to_string)
    }

    /// A panic that somebody else has logged.
    pub(super) fn add_panic(&self, panic: PanicReport) {
        self.history.borrow_mut().panics.push(panic);
    }

    /// Logs a panic that was caught, and keeps it.
    pub(super) fn caught(&self, panic: PanicReport) {
        slog::crit!(self.log.borrow(), "code panicked"; "panic" => %panic,
            "stage" => self.stage().as_str());
        self.add_panic(panic);
    }

    /// Whether code of it panicked; of a queue that was not up yet only the error tells.
    pub(super) fn panicked(&self) -> bool {
        let history = self.history.borrow();
        let error = history.error.as_ref();
        !history.panics.is_empty() || error.is_some_and(|e| e.kind() == ErrorKind::Panicked)
    }

    /// Tells `reply` when it is in service, or why it is not.
    pub(crate) fn on_start(&self, reply: oneshot::Sender<Result<CreateOutcome, Error>>) {
        self.waiters.borrow_mut().start.push(reply);
    }

    /// Tells `reply` how its life ends; at once if it has.
    pub(crate) fn on_end(&self, reply: oneshot::Sender<DeviceOutcome>) {
        match self.outcome().filter(|_| self.state().is_final()) {
            Some(outcome) => drop(reply.send(outcome)),
            None => self.waiters.borrow_mut().end.push(reply),
        }
    }

    /// It is in service: tells its creators.
    pub(super) fn announce(&self) {
        let Some(id) = self.id() else { return };
        let stages = self.times();
        let outcome = CreateOutcome { name: self.name().clone(), id, stages };
        let waiting = std::mem::take(&mut self.waiters.borrow_mut().start);
        for reply in waiting {
            // A creator that went away does not want to know.
            let _ = reply.send(Ok(outcome.clone()));
        }
    }

    /// How its life has ended, for [`Body::finish`].
    pub(super) fn keep(&self, outcome: DeviceOutcome) {
        self.history.borrow_mut().outcome = Some(outcome);
    }

    /// Its actor panicked at the very end: that is how it ended, unless something worse is known.
    pub(super) fn blame_panic(&self) {
        let mut outcome =
            self.outcome().unwrap_or_else(|| self.outcome_now(OutcomeKind::Panicked, None));
        if outcome.left.is_empty() {
            outcome.outcome = OutcomeKind::Panicked;
        }
        outcome.error = outcome.error.or_else(|| self.error());
        outcome.stage = outcome.stage.or(Some(self.stage()));
        outcome.panics = self.history.borrow().panics.clone();
        self.keep(outcome);
    }

    /// Its life has ended, as was kept: tells everybody who waits.
    pub(super) fn finish(&self) {
        let Some(outcome) = self.outcome() else { return };
        let waiters = std::mem::take(&mut *self.waiters.borrow_mut());
        for start in waiters.start {
            let _ = start.send(Err(self.failure(&outcome)));
        }
        for end in waiters.end {
            let _ = end.send(outcome.clone());
        }
    }

    /// The error that a creator gets, with what undoing it met.
    fn failure(&self, outcome: &DeviceOutcome) -> Error {
        let undoing = outcome.error.clone().filter(|_| !outcome.left.is_empty());
        match (self.error(), undoing) {
            (Some(error), Some(undoing)) if undoing.stage() != error.stage() => {
                error.rollback(undoing)
            }
            (Some(error), _) | (None, Some(error)) => error,
            (None, None) => Error::new(ErrorKind::Stopping, "was deleted before it was in service")
                .device(self.name()),
        }
    }

    pub(crate) fn outcome(&self) -> Option<DeviceOutcome> {
        self.history.borrow().outcome.clone()
    }

    /// The outcome as of now: of `kind`, with the stages so far and the one under way.
    pub(crate) fn outcome_now(&self, kind: OutcomeKind, error: Option<Error>) -> DeviceOutcome {
        let history = self.history.borrow();
        let mut stages = history.times.clone();
        if !history.state.is_final() && history.stage != Stage::Live {
            stages.push(history.stage, history.stage_since.elapsed());
        }
        DeviceOutcome {
            name: self.name().clone(),
            id: self.id(),
            outcome: kind,
            stage: error.as_ref().map(|e| e.stage().unwrap_or(history.stage)),
            error,
            stages,
            panics: history.panics.clone(),
            holders: Vec::new(),
            left: Vec::new(),
        }
    }

    /// What is still there, one line each, while undos are due.
    pub(crate) fn remains(&self) -> Vec<String> {
        let parts = self.parts.borrow();
        let mut left = Vec::new();
        if self.lost_in_add() {
            left.push("an ADD_DEV that never came back; it may still make a device".to_owned());
        }
        if let Some(id) = parts.id
            && parts.undos.hold_device()
        {
            left.push(format!("id {id} ({})", id.char_path()));
        }
        if parts.undos.contains(Undo::Shut) && parts.shutting.is_some() {
            left.push(format!(
                "its {} target, which is still being closed",
                self.spec().target().kind()
            ));
        }
        if let Some(queues) = &parts.queues {
            let tids: Vec<_> = queues.tids().iter().map(ToString::to_string).collect();
            if !tids.is_empty() {
                left.push(format!("queue threads {}", tids.join(", ")));
            }
        }
        left
    }

    pub(crate) fn info(&self) -> DeviceInfo {
        let parts = self.parts.borrow();
        let history = self.history.borrow();
        let spec = self.spec();
        let queues = parts.made.unwrap_or(spec.queues());
        // Of a failed device nothing is there: its number may be another one's by now.
        let id = parts.id.filter(|_| history.state != DeviceState::Failed);
        let bound = parts.queues.as_ref().map(|queues| queues.processors());
        let left = history.outcome.as_ref().and_then(|outcome| outcome.error.as_ref());
        let error = history.error.as_ref().or(history.pending.as_ref()).or(left);
        // What has ended is in no stage; what it ended in is the one to know.
        let ended_in = error.and_then(Error::stage).filter(|_| history.state.is_final());
        DeviceInfo {
            name: self.name().clone(),
            id,
            path: id.map(DeviceId::block_path),
            state: history.state,
            stage: ended_in.unwrap_or(history.stage),
            target: spec.target().kind().to_owned(),
            size: parts.geometry.map(|g| g.size),
            queues: queues.count,
            depth: queues.depth,
            read_only: self.read_only.get()
                || spec.read_only()
                || parts.geometry.is_some_and(|g| g.read_only),
            tids: parts.queues.as_ref().map(|q| q.tids()).unwrap_or_default(),
            processors: bound.filter(|all| all.iter().any(Option::is_some)).unwrap_or_default(),
            since_s: history.state_since.elapsed().as_secs_f64(),
            io: parts.queues.as_ref().map_or_else(IoStats::default, |q| q.stats()),
            error: error.map(ToString::to_string),
            group: spec.group().cloned(),
            labels: spec.labels().clone(),
            origin: spec.origin(),
            holders: Vec::new(),
            spec,
        }
    }
}

/// A queue set, lent out; goes back to the body when dropped, unless it was consumed.
pub(super) struct Lease<'a> {
    body: &'a Body,
    queues: Option<Box<dyn QueueSet>>,
}

impl Lease<'_> {
    pub(super) fn queues(&mut self) -> Option<&mut Box<dyn QueueSet>> {
        self.queues.as_mut()
    }

    /// Every thread is joined: nothing goes back.
    pub(super) fn consume(mut self) {
        self.queues = None;
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        if let Some(queues) = self.queues.take() {
            self.body.put_queues(queues);
        }
    }
}
