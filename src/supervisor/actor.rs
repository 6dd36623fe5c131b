//! The supervisor's registry and the messages it answers.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use actix::dev::ContextFutureSpawner;
use actix::{
    Actor, ActorFutureExt, Addr, AsyncContext, Context, Handler, ResponseFuture, WrapFuture,
};
use futures::channel::oneshot;
use slog::{Logger, o};
use tokio::sync::watch;

use super::admission::Admission;
use super::messages::{Create, Delete, Died, Ensure};
use crate::device::{Body, Device, Env, Start, Stop, StopUnheld};
use crate::model::{
    BusyPolicy, CreateOutcome, DeleteOutcome, DeviceName, DeviceOutcome, DeviceSpec, DeviceState,
    Ensured, Error, ErrorKind, GroupName, ShutdownReport,
};
use crate::sys::panic::catch_future;

/// Owns every device actor of a process.
pub(crate) struct Supervisor {
    pub(super) env: Rc<Env>,
    pub(super) devices: BTreeMap<DeviceName, Entry>,
    /// Groups that are being deleted: nothing starts in them meanwhile.
    pub(super) ending: BTreeSet<GroupName>,
    pub(super) admission: Admission,
    /// Set when a shutdown has begun; carries its report to everybody who asks.
    pub(super) shutdown: Option<watch::Receiver<Option<ShutdownReport>>>,
    pub(super) force: watch::Sender<bool>,
    pub(super) log: Logger,
    device_log: Logger,
}

/// One device: its actor's address, and what outlives the actor.
pub(super) struct Entry {
    pub(super) addr: Addr<Device>,
    pub(super) body: Rc<Body>,
}

impl Supervisor {
    pub(crate) fn new(env: Env, admission: Admission, log: &Logger) -> Self {
        let device_log = log.new(o!("component" => "device"));
        let log = log.new(o!("component" => "supervisor"));
        let (force, _) = watch::channel(false);
        Self {
            env: Rc::new(env),
            devices: BTreeMap::new(),
            ending: BTreeSet::new(),
            admission,
            shutdown: None,
            force,
            log,
            device_log,
        }
    }

    /// Why `spec` cannot be created now, if it cannot.
    fn refusal(&self, spec: &DeviceSpec) -> Option<Error> {
        let name = spec.name();
        if let Some(group) = spec.group().filter(|group| self.ending.contains(group)) {
            let text = format!("its group {group} is being deleted");
            let error = Error::new(ErrorKind::Busy, text).device(name);
            return Some(error.hint("try again when that is done"));
        }
        if self.shutdown.is_some() {
            let text = "the supervisor is shutting down; nothing starts any more";
            return Some(Error::new(ErrorKind::Stopping, text).device(name));
        }
        let body = &self.devices.get(name)?.body;
        match body.state() {
            // Nothing is left of these; only their error was kept.
            DeviceState::Failed | DeviceState::Gone => None,
            state => Some(
                Error::new(ErrorKind::Exists, format!("a device of that name is {state}"))
                    .device(name)
                    .hint("delete it first, or choose another name"),
            ),
        }
    }

    /// Starts `device` as an actor and watches it: a panic comes back as [`Died`].
    fn launch(&self, name: DeviceName, device: Device, ctx: &Context<Self>) -> Addr<Device> {
        let context = Context::new();
        let addr = context.address();
        let supervisor = ctx.address().downgrade();
        actix_rt::spawn(async move {
            if let Err(panic) = catch_future(context.into_future(device)).await
                && let Some(supervisor) = supervisor.upgrade()
            {
                supervisor.do_send(Died { name, panic });
            }
        });
        addr
    }

    /// Forgets a device of which nothing is left, unless the name is another device's by now.
    fn forget(&mut self, name: &DeviceName, body: &Rc<Body>) {
        if let Some(entry) = self.devices.get(name)
            && Rc::ptr_eq(&entry.body, body)
            && body.state() == DeviceState::Gone
        {
            self.devices.remove(name);
        }
    }
}

impl Actor for Supervisor {
    type Context = Context<Self>;
}

impl Handler<Create> for Supervisor {
    type Result = ResponseFuture<Result<CreateOutcome, Error>>;

    fn handle(&mut self, create: Create, ctx: &mut Context<Self>) -> Self::Result {
        let name = create.spec.name().clone();
        if let Some(refusal) = self.refusal(&create.spec) {
            self.env.tally.borrow_mut().refused(refusal.kind());
            return Box::pin(async move { Err(refusal) });
        }
        let body = Body::new(create.spec, &self.device_log);
        let device = Device::new(Rc::clone(&body), Rc::clone(&self.env));
        let addr = self.launch(name.clone(), device, ctx);
        let (reply, started) = oneshot::channel();
        addr.do_send(Start { permit: Some(create.permit), reply });
        self.devices.insert(name.clone(), Entry { addr, body });
        Box::pin(async move { started.await.unwrap_or_else(|_| Err(vanished(&name))) })
    }
}

impl Handler<Ensure> for Supervisor {
    type Result = ResponseFuture<Result<Ensured, Error>>;

    fn handle(&mut self, Ensure { spec, permit }: Ensure, ctx: &mut Context<Self>) -> Self::Result {
        let there = self.devices.get(spec.name()).map(|entry| Rc::clone(&entry.body));
        let there = there.filter(|body| body.state().is_there() && self.shutdown.is_none());
        let Some(body) = there else {
            let created = self.handle(Create { spec, permit }, ctx);
            return Box::pin(async move { created.await.map(Ensured::Created) });
        };
        let keys = spec.differences(&body.spec());
        if !keys.is_empty() {
            let text = format!("a device of that name is there and differs in {}", keys.join(", "));
            let error = Error::new(ErrorKind::Exists, text).device(spec.name());
            let error = error.hint("delete it first, or choose another name");
            return Box::pin(async move { Err(error) });
        }
        let started = body.state().is_starting().then(|| {
            let (reply, started) = oneshot::channel();
            body.on_start(reply);
            started
        });
        Box::pin(async move {
            if let Some(started) = started {
                started.await.unwrap_or_else(|_| Err(vanished(body.name())))?;
            }
            Ok(Ensured::AlreadySo(Box::new(body.info())))
        })
    }
}

impl Handler<Delete> for Supervisor {
    type Result = ResponseFuture<Result<DeleteOutcome, Error>>;

    fn handle(&mut self, delete: Delete, ctx: &mut Context<Self>) -> Self::Result {
        let is_meant =
            |entry: &&Entry| !delete.failed_only || entry.body.state() == DeviceState::Failed;
        let Some(entry) = self.devices.get(&delete.name).filter(is_meant) else {
            return Box::pin(async { Ok(DeleteOutcome::Absent) });
        };
        let body = Rc::clone(&entry.body);
        let spec = body.spec();
        let policy = delete.options.busy.unwrap_or(spec.busy());
        let within = delete.options.within.unwrap_or(spec.busy_timeout());
        let (reply, ended) = oneshot::channel();
        let stop = Stop { permit: Some(delete.permit), deadline: None, reply };
        let refused = entry.ask_to_stop(stop, policy, within);
        let name = delete.name;
        let (answer, answered) = oneshot::channel();
        async move {
            if let Some(refusal) = refused.await {
                return Err(refusal);
            }
            let ended = settled(&body, ended).await;
            ended.map(|outcome| (outcome, body)).ok_or_else(|| vanished(&name))
        }
        .into_actor(self)
        .map(move |ended, supervisor, _| {
            let ended = ended.map(|(outcome, body)| {
                supervisor.forget(body.name(), &body);
                DeleteOutcome::Ended(Box::new(outcome))
            });
            // A caller that went away does not want to know.
            let _ = answer.send(ended);
        })
        .spawn(ctx);
        Box::pin(async move {
            let gone = |_| Err(Error::new(ErrorKind::Stopping, "the supervisor has ended"));
            answered.await.unwrap_or_else(gone)
        })
    }
}

/// How a device ended: what its actor answers, or what the body says if the actor died on the way
/// and a new one took over.
pub(super) async fn settled(
    body: &Rc<Body>,
    ended: oneshot::Receiver<DeviceOutcome>,
) -> Option<DeviceOutcome> {
    if let Ok(outcome) = ended.await {
        return Some(outcome);
    }
    let (reply, ended) = oneshot::channel();
    body.on_end(reply);
    ended.await.ok()
}

impl Entry {
    /// Stops it when nobody holds it any more, and all the same after `within`.
    pub(super) fn stop_at_last(&self, stop: Stop, within: Duration) {
        let (addr, deadline) = (self.addr.clone(), stop.deadline);
        let refused = self.ask_to_stop(stop, BusyPolicy::Wait, within);
        actix_rt::spawn(async move {
            if refused.await.is_some() {
                // Who waits for the end hears of it from the body.
                let (reply, _) = oneshot::channel();
                addr.do_send(Stop { permit: None, deadline, reply });
            }
        });
    }

    /// Stops it as `policy` says; gives the reason if it stays in service.
    fn ask_to_stop(
        &self,
        stop: Stop,
        policy: BusyPolicy,
        within: Duration,
    ) -> impl Future<Output = Option<Error>> + use<> {
        let within = match policy {
            BusyPolicy::Stop => None,
            BusyPolicy::Refuse => Some(Duration::ZERO),
            BusyPolicy::Wait => Some(within),
        };
        let refusal = match within {
            None => {
                self.addr.do_send(stop);
                None
            }
            Some(within) => {
                let (refused, refusal) = oneshot::channel();
                self.addr.do_send(StopUnheld { within, refused, stop });
                Some(refusal)
            }
        };
        async move { refusal?.await.ok() }
    }
}

fn vanished(name: &DeviceName) -> Error {
    Error::new(ErrorKind::Internal, "its actor ended without an answer").device(name)
}

impl Handler<Died> for Supervisor {
    type Result = ();

    fn handle(&mut self, Died { name, panic }: Died, ctx: &mut Context<Self>) {
        let Some(entry) = self.devices.get(&name) else { return };
        let body = Rc::clone(&entry.body);
        let device = Device::salvage(Rc::clone(&body), Rc::clone(&self.env), panic);
        let addr = self.launch(name.clone(), device, ctx);
        self.devices.insert(name, Entry { addr, body });
    }
}
