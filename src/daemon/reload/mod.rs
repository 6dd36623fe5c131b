//! Reload: the config's list of devices is what shall be there; the difference is planned, told,
//! and carried out.
//!
//! ```text
//!   HUP, POST /reload ─> Reloader ─ config (all of it, or nothing happens) ─> plan ─> carry_out
//!                        one at a time                             dry run ends here ─┘
//! ```
//!
//! Invariants: a config that cannot be used changes nothing; devices that the config did not make
//! are left alone; two reloads follow one another; none begins when the end has.

mod carry_out;
mod plan;

pub use carry_out::ReloadReport;
pub use plan::{Plan, Replace, Resize};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use futures::lock::Mutex;
use serde_json::Value;
use slog::Logger;

use crate::Handle;
use crate::config::{Config, Sources};
use crate::model::{DeviceSpec, Error, ErrorKind};
use crate::sys::thread::blocking;
use plan::Known;

/// Reloads one daemon's config. Clones share it.
#[derive(Clone)]
pub struct Reloader(Arc<Inner>);

struct Inner {
    sources: Sources,
    /// What the daemon was started with.
    started: Config,
    handle: Handle,
    one: Mutex<()>,
    ended: AtomicBool,
    log: Logger,
}

impl Reloader {
    /// Reloads from `sources`, from which the daemon was started as `started`.
    pub(super) fn new(sources: Sources, started: Config, handle: Handle, log: &Logger) -> Self {
        Self(Arc::new(Inner {
            sources,
            started,
            handle,
            one: Mutex::new(()),
            ended: AtomicBool::new(false),
            log: log.clone(),
        }))
    }

    /// Reads the config again and makes the devices what it says; with `dry_run` it only says what
    /// it would do.
    ///
    /// # Errors
    /// Kind [`ErrorKind::Invalid`] with every problem of the config, [`ErrorKind::Exists`] for names
    /// that belong to devices of others, [`ErrorKind::Stopping`] during a shutdown: nothing was
    /// changed. What goes wrong with one device is in the report.
    pub async fn reload(&self, dry_run: bool) -> Result<ReloadReport, Error> {
        let Inner { sources, handle, one, log, .. } = &*self.0;
        let _one = one.lock().await;
        let began = Instant::now();
        self.goes_on()?;
        let sources = sources.clone();
        let config = blocking("ublkd-reload", move || sources.load())?.await;
        let config =
            config.map_err(|panic| Error::new(ErrorKind::Panicked, panic.to_string()))??;
        let wanted: Vec<DeviceSpec> = config.devices.iter().map(|d| d.spec.clone()).collect();
        let there = handle.list().await?;
        let known: Vec<Known<'_>> = there.iter().map(Known::from).collect();
        let plan = plan::plan(&known, &wanted)?;
        self.goes_on()?;
        let restart = differences(&settings(&self.0.started)?, &settings(&config)?);
        for key in &restart {
            slog::warn!(log, "reload: {key} takes effect after a restart");
        }
        let failed = match dry_run {
            true => Default::default(),
            false => carry_out::carry_out(&plan, handle, log).await,
        };
        let report = ReloadReport { dry_run, plan, failed, restart, wall: began.elapsed() };
        slog::info!(log, "{report}"; "wall_s" => report.wall.as_secs_f64(), "dry_run" => dry_run);
        Ok(report)
    }

    /// No reload begins from now on.
    pub(super) fn end(&self) {
        self.0.ended.store(true, Ordering::Release);
    }

    fn goes_on(&self) -> Result<(), Error> {
        match self.0.ended.load(Ordering::Acquire) {
            true => {
                Err(Error::new(ErrorKind::Stopping, "a shutdown has begun: nothing is reloaded"))
            }
            false => Ok(()),
        }
    }
}

/// Everything of a config but its devices.
///
/// # Errors
/// Kind [`ErrorKind::Internal`] if it cannot be told as JSON.
fn settings(config: &Config) -> Result<Value, Error> {
    let config = Config { devices: Vec::new(), ..config.clone() };
    serde_json::to_value(&config).map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))
}

/// The keys, as `section.key`, in which two settings differ.
fn differences(before: &Value, after: &Value) -> Vec<String> {
    let mut keys = Vec::new();
    for (section, table) in after.as_object().into_iter().flatten() {
        for (key, value) in table.as_object().into_iter().flatten() {
            if before[section][key] != *value {
                keys.push(format!("{section}.{key}"));
            }
        }
    }
    keys
}
