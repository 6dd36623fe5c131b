//! Brings a device up, step by step; each step registers what undoes it.
//!
//! ```text
//!   open target ─ ADD ─ SET_PARAMS ─ open char ─ queue threads ─ START ─ node ─ link
//!        │         │                    │            │                          │
//!      shut     delete,              close       stop, join                  unlink
//!               release
//! ```

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select, try_join_all};
use slog::warn;

use super::Env;
use super::body::Body;
use super::undo::Undo;
use crate::driver::{self, AddDevice, Command, Features, Params, QueueEvents, ServePlan};
use crate::model::{DeviceId, Error, ErrorKind, Processors, QueueId, Stage};
use crate::sys;
use crate::target::Target;

/// Runs every step. On an error the undos of the steps before it are registered in `body`.
pub(super) async fn run(body: &Body, env: &Env, events: QueueEvents) -> Result<(), Error> {
    let _one = body.lifecycle.lock().await;
    steps(body, env, events).await.map_err(|error| {
        let error = error.at(body.stage()).device(body.name());
        match body.id() {
            Some(id) => error.id(id),
            None => error,
        }
    })
}

async fn steps(body: &Body, env: &Env, events: QueueEvents) -> Result<(), Error> {
    let driver = &*env.driver;
    let wanted = body.spec().queues();

    body.enter(Stage::Open);
    let target = open_target(body, env).await?;
    for note in target.notes() {
        warn!(body.log.borrow(), "{note}");
    }
    body.parts.borrow_mut().target = Some(Arc::clone(&target));
    body.push_undo(Undo::Shut);
    let geometry = target.geometry();
    body.parts.borrow_mut().geometry = Some(geometry);

    body.enter(Stage::Add);
    let kernel = env.features().await;
    let spec = body.spec();
    let data = driver::data::features(spec.data(), spec.batch(), target.data_use(), kernel)?;
    let features = kernel.and(features(body)).with(data);
    let add = AddDevice { id: body.spec().id(), queues: wanted, features };
    let added = driver.add(add).await?;
    let id = added.id;
    body.added(id);
    env.took(id, body.name());
    // The kernel makes no more queues than there are processors.
    let queues = added.queues;
    if queues.count < wanted.count {
        slog::info!(body.log.borrow(), "fewer queues than asked for";
            "asked" => wanted.count, "made" => queues.count);
    }
    body.set_made(queues, added.features);

    body.enter(Stage::Configure);
    // The target's file gets to see addresses that it has to be able to take.
    let zero_copy = added.features.has(Features::AUTO_BUF_REG);
    let memory_alignment = zero_copy.then_some(geometry.logical_block);
    let params = Params { geometry, max_io: queues.max_io, memory_alignment };
    driver.execute(Command::SetParams(id, params)).await?;

    serve(body, env, id, events).await?;

    body.enter(Stage::Start);
    unless_broken(body, driver.execute(Command::Start(id))).await?;
    let node = async { bounded(env.stage_bound, driver.node_ready(id)).await? };
    unless_broken(body, node).await?;

    if let Some(links) = &env.links {
        body.enter(Stage::Link);
        body.push_undo(Undo::Unlink);
        links.link(body.name(), id)?;
    }
    body.enter(Stage::Live);
    Ok(())
}

/// Opens the char device and has every tag of every queue fetched.
pub(super) async fn serve(
    body: &Body,
    env: &Env,
    id: DeviceId,
    events: QueueEvents,
) -> Result<(), Error> {
    let stage = |of_a_start| match body.stage() {
        Stage::Resume => Stage::Resume,
        _ => of_a_start,
    };
    body.enter(stage(Stage::Attach));
    let chardev = bounded(env.stage_bound, env.driver.open(id)).await??;
    body.push_undo(Undo::Close);

    body.enter(stage(Stage::Serve));
    let (target, queues, features) = {
        let parts = body.parts.borrow();
        let nothing = || Error::new(ErrorKind::Internal, "there is nothing to serve it with");
        let made = parts.made.ok_or_else(nothing)?;
        (parts.target.clone().ok_or_else(nothing)?, made, parts.features)
    };
    let affinity = affinity(body, env, id, queues.count).await;
    let plan = ServePlan {
        device: body.name().clone(),
        id,
        queues,
        affinity,
        features,
        target,
        events,
        drain: env.stage_bound / 4,
        log: body.log.borrow().clone(),
    };
    let served = chardev.serve(plan);
    body.parts.borrow_mut().chardev = Some(chardev);
    body.put_queues(served?);
    body.push_undo(Undo::Stop);
    body.push_undo(Undo::Join);
    if let Some(mut lease) = body.lease_queues()
        && let Some(queues) = lease.queues()
    {
        bounded(env.stage_bound, queues.ready()).await??;
    }
    Ok(())
}

/// The processors of each of several queues, by queue. Empty where nobody wants to know, or the
/// kernel does not say: a device serves without.
async fn affinity(body: &Body, env: &Env, id: DeviceId, queues: u16) -> Vec<Processors> {
    // One queue is for all processors.
    if queues < 2 || !body.spec().affinity() {
        return Vec::new();
    }
    // All are sent before the first is answered: many queues cost one wait.
    let asked = (0..queues).map(|queue| env.driver.queue_affinity(id, QueueId(queue)));
    try_join_all(asked).await.unwrap_or_else(|error| {
        warn!(body.log.borrow(), "queue threads are not bound to processors: {error}");
        Vec::new()
    })
}

/// What a device shall have where the kernel has it.
fn features(body: &Body) -> Features {
    let spec = body.spec();
    let mut features = Features::UPDATE_SIZE;
    if !spec.partitions() {
        features = features.with(Features::NO_AUTO_PART_SCAN);
    }
    if spec.recovery() {
        let reissue = Features::USER_RECOVERY.with(Features::USER_RECOVERY_REISSUE);
        features = features.with(reissue).with(Features::QUIESCE);
    }
    features
}

/// Opens the target, on a thread of its own if that may block.
async fn open_target(body: &Body, env: &Env) -> Result<Arc<dyn Target>, Error> {
    if !body.spec().target().may_block() {
        return env.targets.open(&body.spec());
    }
    let (targets, spec) = (env.targets.clone(), body.spec());
    let opened = sys::thread::blocking("ublkd-open", move || targets.open(&spec))?;
    match bounded(env.stage_bound, opened).await? {
        Ok(opened) => opened,
        Err(panic) => {
            let error = Error::new(ErrorKind::Panicked, format!("opening the target: {panic}"));
            body.caught(panic);
            Err(error)
        }
    }
}

/// Gives up on `work` after `bound`.
pub(super) async fn bounded<T>(bound: Duration, work: impl Future<Output = T>) -> Result<T, Error> {
    actix_rt::time::timeout(bound, work).await.map_err(|_| {
        Error::new(ErrorKind::Timeout, format!("was not done within {:.3} s", bound.as_secs_f64()))
    })
}

/// Gives up on `work` when a queue breaks: START waits without end for a queue that died.
pub(super) async fn unless_broken<T>(
    body: &Body,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let broken = std::pin::pin!(body.broken.notified());
    match select(std::pin::pin!(work), broken).await {
        Either::Left((done, _)) => done,
        Either::Right(((), _)) => {
            Err(body.error().unwrap_or_else(|| Error::new(ErrorKind::Internal, "a queue broke")))
        }
    }
}
