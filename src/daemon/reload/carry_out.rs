//! Carries a plan out: what goes first, so that what it held is free for what comes.
//!
//! ```text
//!   delete, and the old of replace ─> resize ─> create, and the new of replace
//! ```
//!
//! Each operation has the bounds that it has for any caller; one that fails holds up no other.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use serde::{Serialize, Serializer};
use slog::Logger;

use super::plan::Plan;
use crate::Handle;
use crate::model::{DeleteOptions, DeleteOutcome, DeviceName, DeviceSpec, Error, ErrorKind};

/// Operations that are asked for at once; the supervisor runs as many as it has workers.
const AT_ONCE: usize = 64;

/// What a reload did, or would do.
#[derive(Debug, Clone, Serialize)]
pub struct ReloadReport {
    /// Nothing was done.
    pub dry_run: bool,
    /// What there was to do.
    #[serde(flatten)]
    pub plan: Plan,
    /// Devices that are not as planned, and why.
    #[serde(serialize_with = "as_text")]
    pub failed: BTreeMap<DeviceName, Error>,
    /// Settings that differ and take effect after a restart.
    pub restart: Vec<String>,
    /// Wall time, in seconds.
    #[serde(rename = "wall_s", serialize_with = "seconds")]
    pub wall: Duration,
}

impl fmt::Display for ReloadReport {
    /// One line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { delete, replace, resize, create, keep } = &self.plan;
        write!(
            f,
            "reloaded: {} created, {} deleted, {} replaced, {} resized, {} kept; {} failed",
            create.len(),
            delete.len(),
            replace.len(),
            resize.len(),
            keep.len(),
            self.failed.len()
        )
    }
}

fn as_text<S: Serializer>(
    errors: &BTreeMap<DeviceName, Error>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(errors.iter().map(|(name, error)| (name, error.to_string())))
}

fn seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

/// Does what `plan` says. Gives the devices that are not as planned.
pub(super) async fn carry_out(
    plan: &Plan,
    handle: &Handle,
    log: &Logger,
) -> BTreeMap<DeviceName, Error> {
    let mut failed = BTreeMap::new();
    let old = plan.replace.iter().map(|replace| replace.spec.name());
    let deletes = plan.delete.iter().chain(old).map(|name| delete(handle, name));
    failed.extend(failures(deletes).await);

    let resizes = plan.resize.iter().map(|resize| async {
        let resized = handle.resize(&resize.name, resize.to, false).await;
        resized.err().map(|error| (resize.name.clone(), error))
    });
    failed.extend(failures(resizes).await);

    let new = plan.replace.iter().map(|replace| &replace.spec);
    let new = new.filter(|spec| !failed.contains_key(spec.name()));
    let specs: Vec<DeviceSpec> = plan.create.iter().chain(new).cloned().collect();
    let created = handle.create_all(specs);
    let created = created.filter_map(|(name, result)| async { Some((name, result.err()?)) });
    failed.extend(created.collect::<Vec<_>>().await);
    for (name, error) in &failed {
        slog::error!(log, "reload: {error}"; "device" => %name, "kind" => error.kind().as_str());
    }
    failed
}

/// Runs operations, some at once; gives those that failed.
async fn failures<F>(operations: impl Iterator<Item = F>) -> Vec<(DeviceName, Error)>
where
    F: Future<Output = Option<(DeviceName, Error)>>,
{
    let running = stream::iter(operations).buffer_unordered(AT_ONCE);
    running.filter_map(std::future::ready).collect().await
}

/// Why `name` is still there, if it is.
async fn delete(handle: &Handle, name: &DeviceName) -> Option<(DeviceName, Error)> {
    let error = match handle.delete_with(name, DeleteOptions::default()).await {
        Err(error) => error,
        Ok(DeleteOutcome::Absent) => return None,
        Ok(DeleteOutcome::Ended(outcome)) if outcome.left.is_empty() => return None,
        Ok(DeleteOutcome::Ended(outcome)) => outcome.error.unwrap_or_else(|| {
            let text = format!("something is left: {}", outcome.left.join("; "));
            Error::new(ErrorKind::Internal, text).device(name)
        }),
    };
    Some((name.clone(), error))
}
