//! What can be changed of a device in service without taking it down: its size, whether it takes
//! writes.
//!
//! ```text
//!   grow    target makes room ─ UPDATE_SIZE ─ noted          shrink  UPDATE_SIZE ─ target ─ noted
//! ```
//!
//! So the target is never smaller than the block device.
//!
//! Invariants: everything is checked before the kernel is told anything; it runs under the
//! lifecycle lock, and only on a device that is live; what is noted is what the kernel has.

use std::sync::Arc;

use super::Env;
use super::body::Body;
use super::startup::bounded;
use crate::driver::{Command, Features};
use crate::model::{DeviceId, Error, ErrorKind, LIMITS, ResizeOutcome, Stage, TargetSpec};
use crate::sys::thread::blocking;
use crate::target::{Geometry, Target};

/// Makes the device `to` bytes large; smaller only if `shrink` says so.
pub(crate) async fn resize(
    body: &Body,
    env: &Env,
    to: u64,
    shrink: bool,
) -> Result<ResizeOutcome, Error> {
    let _one = body.lifecycle.lock().await;
    let resized = async {
        let (id, target, geometry) = live(body)?;
        let from = geometry.size;
        check(geometry, to, shrink)?;
        if to == from {
            return Ok(ResizeOutcome { name: body.name().clone(), from, to });
        }
        if !env.features().await.has(Features::UPDATE_SIZE) {
            let text = "the kernel cannot change the size of a device";
            return Err(Error::new(ErrorKind::Unsupported, text)
                .hint("Linux 6.16 and newer can; else delete it and make a larger one"));
        }
        if to > from {
            follow(body, env, Arc::clone(&target), from, to).await?;
        }
        env.driver.execute(Command::UpdateSize(id, to)).await?;
        body.resized(to);
        if to < from {
            follow(body, env, target, from, to).await?;
        }
        slog::info!(body.log.borrow(), "resized"; "from" => from, "to" => to);
        Ok(ResizeOutcome { name: body.name().clone(), from, to })
    };
    resized.await.map_err(|error| body.told(error, Stage::Resize))
}

fn check(geometry: Geometry, to: u64, shrink: bool) -> Result<(), Error> {
    let block = u64::from(geometry.logical_block);
    let refuse = |text: String| Err(Error::new(ErrorKind::Invalid, text));
    if to == 0 || to > LIMITS.size_max {
        return refuse(format!("{to} bytes is out of range: {block} to {}", LIMITS.size_max));
    }
    if !to.is_multiple_of(block) {
        return refuse(format!("{to} bytes is no multiple of the logical block ({block})"));
    }
    if to < geometry.size && !shrink {
        let text = format!("{to} bytes would cut {} off", geometry.size - to);
        let hint = "shrink what is on it first, then ask for the shrinking as well";
        return Err(Error::new(ErrorKind::Invalid, text).hint(hint));
    }
    Ok(())
}

/// Has the target follow, on a thread of its own: clearing or moving memory takes its time, too.
async fn follow(
    body: &Body,
    env: &Env,
    target: Arc<dyn Target>,
    from: u64,
    to: u64,
) -> Result<(), Error> {
    if matches!(body.spec().target(), TargetSpec::Null { .. }) {
        return target.resize(from, to);
    }
    let followed = blocking("ublkd-resize", move || target.resize(from, to))?;
    match bounded(env.stage_bound, followed).await? {
        Ok(followed) => followed,
        Err(panic) => {
            let error = Error::new(ErrorKind::Panicked, format!("resizing the target: {panic}"));
            body.caught(panic);
            Err(error)
        }
    }
}

/// Has the block device refuse writes, or take them again.
pub(crate) async fn set_read_only(body: &Body, env: &Env, on: bool) -> Result<(), Error> {
    let _one = body.lifecycle.lock().await;
    let set = async {
        let (id, _, geometry) = live(body)?;
        if geometry.read_only && !on {
            let text = "it was made read-only, and its target refuses writes";
            return Err(Error::new(ErrorKind::Unsupported, text)
                .hint("delete it and make one that is writable"));
        }
        if !geometry.read_only {
            env.driver.set_read_only(id, on).await?;
            body.read_only.set(on);
            slog::info!(body.log.borrow(), "read-only"; "on" => on);
        }
        Ok(())
    };
    set.await.map_err(|error| body.told(error, Stage::Live))
}

/// What there is of a device that is live.
fn live(body: &Body) -> Result<(DeviceId, Arc<dyn Target>, Geometry), Error> {
    let parts = body.parts.borrow();
    match (parts.id, &parts.target, parts.geometry) {
        (Some(id), Some(target), Some(geometry)) if body.is_live() => {
            Ok((id, Arc::clone(target), geometry))
        }
        _ => Err(body.not_in_this_state()),
    }
}
