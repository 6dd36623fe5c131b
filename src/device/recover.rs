//! Takes a device's server away while its users wait, and gives it a new one.
//!
//! ```text
//!   quiesce   QUIESCE_DEV ─ join the queue threads ─ close ─ until the kernel says quiesced
//!   resume    GET_PARAMS ─ START_USER_RECOVERY ─ open ─ queue threads ─ END_USER_RECOVERY
//! ```
//!
//! Some kernels leave a tag out when they take the tags back, if its request was with the server:
//! nothing ever completes it. So a queue that has not ended after its drain time lets its ring go,
//! and what it had is issued again to the next server (the device has that feature).
//!
//! Invariants: nothing waits longer than its bound; a quiesce that has begun is never undone, since
//! the kernel keeps new I/O back from then on: it ends, or the device is stalled; SET_PARAMS is
//! never sent here, what the kernel has is compared instead.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Env;
use super::body::Body;
use super::startup::{self, bounded, unless_broken};
use super::undo::Undo;
use crate::driver::{Command, Features, KernelState, QueueEvents};
use crate::model::{DeviceId, Error, ErrorKind, Event, Stage};

/// The first pause between two looks, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

/// Takes the server away; I/O in flight has `within` to end by itself. Gives the event that
/// follows, with the reason if it is not [`Event::Quieted`].
pub(super) async fn quiesce(body: &Body, env: &Env, within: Duration) -> (Event, Option<Error>) {
    let _one = body.lifecycle.lock().await;
    let quiesced = async {
        let id = served(body)?;
        // Retried after a queue did not end: the kernel has been told.
        body.enter(Stage::Quiesce);
        let within = within.min(env.stage_bound / 2);
        match env.driver.execute(Command::Quiesce(id, within)).await {
            Ok(_) => {}
            // New I/O waits by now, so what is left of the old is cut off.
            Err(error) if is_late(&error) => {
                slog::warn!(body.log.borrow(), "quiesce: {error}; its queues are ended");
            }
            Err(error) if error.kind() == ErrorKind::Wedged => return Err((Event::Stuck, error)),
            Err(error) => return Err((Event::Declined, error)),
        }
        let stuck = |error| (Event::Stuck, error);
        let_go(body, env).await.map_err(stuck)?;
        until_quiesced(env, id).await.map_err(stuck)
    };
    let ended = quiesced.await;
    body.enter(Stage::Live);
    match ended {
        Ok(()) => (Event::Quieted, None),
        Err((event, error)) => (event, Some(body.told(error, Stage::Quiesce))),
    }
}

/// Whether the kernel had begun when it gave up.
fn is_late(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Busy | ErrorKind::Timeout | ErrorKind::Io)
}

/// Whether it can be quiesced at all.
fn served(body: &Body) -> Result<DeviceId, (Event, Error)> {
    let parts = body.parts.borrow();
    let unsupported =
        |text, hint| Err((Event::Declined, Error::new(ErrorKind::Unsupported, text).hint(hint)));
    match parts.id {
        // Linux 7.3 fails what comes to a quiesced batch device with EIO, where it shall wait.
        Some(_) if parts.features.has(Features::QUIESCE.with(Features::BATCH_IO)) => unsupported(
            "it was made with batch, and the kernel fails the I/O of a quiesced batch device",
            "make it with batch = false",
        ),
        Some(id) if parts.features.has(Features::QUIESCE) => Ok(id),
        Some(_) if body.spec().recovery() => {
            unsupported("the kernel cannot quiesce a device", "Linux 6.16 and newer can")
        }
        _ => Err((Event::Declined, without("quiesce"))),
    }
}

/// Why a device without recovery is refused something.
pub(super) fn without(what: &str) -> Error {
    let text = format!("it was made without recovery, which {what} needs");
    Error::new(ErrorKind::Unsupported, text).hint("make it with recovery = true")
}

/// Ends the queue threads and closes the char device.
async fn let_go(body: &Body, env: &Env) -> Result<(), Error> {
    if let Some(mut lease) = body.lease_queues()
        && let Some(queues) = lease.queues()
    {
        queues.stop();
        if let Err(late) = bounded(env.stage_bound, queues.join()).await {
            let running = queues.tids();
            return Err(late.hint(format!(
                "queue threads {running:?} do not end: the target blocks them; quiesce it again"
            )));
        }
        lease.consume();
    }
    let mut parts = body.parts.borrow_mut();
    parts.chardev = None;
    parts.undos.done(Undo::Join);
    parts.undos.done(Undo::Close);
    Ok(())
}

/// The kernel lets go of the old server a little after its file is closed.
async fn until_quiesced(env: &Env, id: DeviceId) -> Result<(), Error> {
    let end = Instant::now() + env.stage_bound;
    let mut pause = PAUSES.0;
    loop {
        let state = env.driver.info(id).await?.state;
        if state == KernelState::Quiesced {
            return Ok(());
        }
        if Instant::now() >= end {
            let text = format!("the kernel says that it is {state:?} still");
            return Err(Error::new(ErrorKind::Timeout, text).elapsed(env.stage_bound));
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// Serves a quiesced device again.
pub(super) async fn resume(body: &Body, env: &Env, events: QueueEvents) -> Result<(), Error> {
    let _one = body.lifecycle.lock().await;
    body.enter(Stage::Resume);
    let resumed = match serve_again(body, env, events).await {
        Ok(()) => Ok(()),
        Err(error) => Err(match let_go(body, env).await {
            Ok(()) => error,
            Err(undoing) => error.rollback(undoing),
        }),
    };
    body.enter(Stage::Live);
    resumed.map_err(|error| body.told(error, Stage::Resume))
}

async fn serve_again(body: &Body, env: &Env, events: QueueEvents) -> Result<(), Error> {
    // Left by a resume that failed.
    let_go(body, env).await?;
    let Some(id) = body.id() else { return Err(body.not_in_this_state()) };
    let ours = body.parts.borrow().geometry;
    let kernels = env.driver.params(id).await?.geometry;
    if ours
        .is_none_or(|ours| (ours.size, ours.logical_block) != (kernels.size, kernels.logical_block))
    {
        let text = format!(
            "the kernel has {} bytes in blocks of {}, and its target does not",
            kernels.size, kernels.logical_block
        );
        return Err(Error::new(ErrorKind::Invalid, text).hint("somebody else has resized it"));
    }
    start_recovery(env, id).await?;
    startup::serve(body, env, id, events).await?;
    unless_broken(body, env.driver.execute(Command::EndRecovery(id))).await?;
    Ok(())
}

/// The kernel says `EBUSY` until it has really let go of the old server.
async fn start_recovery(env: &Env, id: DeviceId) -> Result<(), Error> {
    let end = Instant::now() + env.stage_bound;
    let mut pause = PAUSES.0;
    loop {
        match env.driver.execute(Command::StartRecovery(id)).await {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Busy && Instant::now() < end => {}
            Err(error) => return Err(error),
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}
