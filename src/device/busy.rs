//! A delete that respects holders: it goes on only when nobody has the block device open.
//!
//! ```text
//!   TRY_STOP_DEV ── stopped ───────────────────────────────> teardown
//!        │   └──── EBUSY ──> holders ── in time? ── pause ──> again, or refused with their names
//!        └─ not known (before 7.0): nobody found ───────────> teardown
//! ```
//!
//! Where the kernel has `TRY_STOP_DEV` nobody can open the device between the look and the stop;
//! elsewhere that gap is there, and small.
//!
//! Invariants: nothing waits longer than was asked for, but for an opener that nobody can find,
//! which gets [`PASSING`]; what goes on is found out under the lifecycle lock, one try at a time.

use std::time::Duration;

use nix::libc;
use tokio::time::{Instant, sleep};

use super::Env;
use super::body::Body;
use crate::driver::Command;
use crate::model::{Error, ErrorKind, Stage};

/// How long openers are given that come and go before they can be found, as udev does.
const PASSING: Duration = Duration::from_secs(1);
/// The first pause between two looks, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

enum Found {
    Free,
    /// By whom, if that is known already.
    Held(Option<Vec<String>>),
}

/// Comes back when nobody holds the device, which is stopped then where the kernel can do both in
/// one step, or when there is nothing to stop any more.
pub(super) async fn unheld(body: &Body, env: &Env, within: Duration) -> Result<(), Error> {
    let began = Instant::now();
    let mut pause = PAUSES.0;
    loop {
        let Found::Held(holders) = look(body, env).await? else { return Ok(()) };
        let waited = began.elapsed();
        if waited >= within {
            let holders = match (holders, body.id()) {
                (Some(holders), _) => holders,
                (None, Some(id)) => env.driver.holders(id).await,
                (None, None) => Vec::new(),
            };
            if !holders.is_empty() || waited >= PASSING.max(within) {
                return Err(refusal(body, &holders, waited));
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

async fn look(body: &Body, env: &Env) -> Result<Found, Error> {
    let _one = body.lifecycle.lock().await;
    let Some(id) = body.id().filter(|_| body.state().is_in_service()) else {
        return Ok(Found::Free);
    };
    if env.try_stop.get() {
        body.yielding.set(true);
        let error = match env.driver.execute(Command::TryStop(id)).await {
            Ok(_) => return Ok(Found::Free),
            Err(error) => error,
        };
        match error.kind() {
            // The teardown will say so.
            ErrorKind::NotFound | ErrorKind::Wedged => return Ok(Found::Free),
            ErrorKind::Busy => {
                body.yielding.set(false);
                return Ok(Found::Held(None));
            }
            ErrorKind::Unsupported => {
                body.yielding.set(false);
                env.try_stop.set(false);
            }
            _ => {
                body.yielding.set(false);
                return Err(error.at(Stage::Stop).device(body.name()));
            }
        }
    }
    let holders = env.driver.holders(id).await;
    Ok(if holders.is_empty() { Found::Free } else { Found::Held(Some(holders)) })
}

fn refusal(body: &Body, holders: &[String], waited: Duration) -> Error {
    let who = match holders {
        [] => "somebody who cannot be found".to_owned(),
        some => some.join("; "),
    };
    let error = Error::from_errno(libc::EBUSY, format!("it is held: {who}"))
        .at(Stage::Stop)
        .device(body.name())
        .hint(
            "unmount it or end the holders, or delete it all the same, with the policy stop \
             (--busy stop, ?busy=stop)",
        );
    let error = body.id().into_iter().fold(error, Error::id);
    if waited.is_zero() { error } else { error.elapsed(waited) }
}
