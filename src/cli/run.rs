//! `ublkd run`: a config's devices from start to shutdown report.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use slog::Logger;

use super::args::{DriverName, Run};
use super::render::{self, Extent};
use super::{complain, drivers, load};
use crate::config::{Config, OnFailure};
use crate::daemon::{self, ExitStatus, Options};
use crate::driver::MakeDriver;
use crate::driver::sim::FaultPlan;
use crate::model::{Error, ErrorKind, ShutdownReport};
use crate::sys;
use crate::sys::host::Host;
use crate::sys::limits::{self, Need, Verdict};
use crate::telemetry;
use crate::telemetry::logging::Logging;

/// How long the last log lines may take.
const LOG_BOUND: Duration = Duration::from_secs(2);

pub(super) fn run(args: Run) -> ExitStatus {
    // Before there is any other thread: each inherits this mask.
    if let Err(error) = sys::signals::block_all() {
        complain(&error);
        return ExitStatus::RunFailed;
    }
    let config = match load(&args.config) {
        Ok(config) => config,
        Err(status) => return status,
    };
    let prepared = driver(&args)
        .and_then(|driver| Ok((driver, args.report.as_deref().map(Report::open).transpose()?)));
    let (driver, report) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            complain(&error);
            return ExitStatus::Usage;
        }
    };

    let logging = Logging::to_stderr(&config.log);
    let log = logging.logger().clone();
    telemetry::panics::install(&log);
    if let Err(error) = telemetry::bridge::install(&log, config.log.level) {
        slog::warn!(log, "{error}");
    }
    if args.driver == DriverName::Ublk && !host_is_fit(&config, &log) {
        return ExitStatus::RunFailed;
    }
    let supervisor = &config.supervisor;
    let ended = daemon::run(Options {
        devices: config.devices.iter().map(|device| device.spec.clone()).collect(),
        workers: supervisor.workers,
        mailbox: supervisor.mailbox,
        command_timeout: supervisor.command_timeout,
        shutdown_timeout: supervisor.shutdown_timeout,
        run_dir: supervisor.run_dir.clone(),
        abort_on_failure: supervisor.on_failure == OnFailure::Abort,
        driver,
        log: log.clone(),
    });

    if let Some(error) = &ended.error {
        slog::error!(log, "{error}"; "kind" => error.kind().as_str());
    }
    let mut status = ended.status;
    if let Some(outcomes) = &ended.report {
        telemetry::report::log(&log, outcomes);
        complain(&render::shutdown(outcomes, Extent::Short));
        if let Some(file) = report
            && let Err(error) = file.write(outcomes)
        {
            slog::error!(log, "{error}");
            status = match status {
                ExitStatus::Clean => ExitStatus::RunFailed,
                worse => worse,
            };
        }
    }
    // A stderr that nobody reads loses its last lines, not the end of the process.
    logging.finish(LOG_BOUND);
    status
}

/// Raises the limits and checks the host, one message a limit; false when no device can work.
fn host_is_fit(config: &Config, log: &Logger) -> bool {
    let devices = config.devices.iter();
    let need = Need {
        devices: config.devices.len() as u64,
        queues: devices.clone().map(|d| u64::from(d.spec.queues().count)).sum(),
        target_files: devices.filter(|d| d.spec.backing().is_some()).count() as u64,
        in_flight: config.supervisor.workers as u64,
    };
    if let Err(error) = limits::raise_open_files(&need) {
        slog::warn!(log, "{error}");
    }
    let mut fit = true;
    for check in limits::check(&Host::default(), &need) {
        match check.verdict {
            Verdict::Ok => slog::debug!(log, "{check}"),
            Verdict::Warn => slog::warn!(log, "{check}"),
            Verdict::Fail => {
                slog::error!(log, "{check}");
                fit = false;
            }
        }
    }
    fit
}

/// The driver that the arguments name, with the faults they ask for.
fn driver(args: &Run) -> Result<MakeDriver, Error> {
    let mut plan = FaultPlan::none();
    for text in &args.fault {
        let more: FaultPlan = text
            .parse()
            .map_err(|e| Error::new(ErrorKind::Invalid, format!("--fault {text:?}: {e}")))?;
        plan = plan.and(more);
    }
    drivers::maker(args.driver, &args.sim_kernel, plan)
}

/// The file for the report: opened before anything starts, so that a wrong path is known at once,
/// and put in place whole.
struct Report {
    path: PathBuf,
    fresh: PathBuf,
    file: File,
}

impl Report {
    fn open(path: &Path) -> Result<Self, Error> {
        let mut fresh = path.as_os_str().to_owned();
        fresh.push(".new");
        let fresh = PathBuf::from(fresh);
        let file = File::create(&fresh).map_err(|e| {
            Error::from_io(&e, format!("cannot write the report {}", fresh.display()))
                .hint("name a file in a directory that ublkd may write")
        })?;
        Ok(Self { path: path.to_owned(), fresh, file })
    }

    fn write(mut self, report: &ShutdownReport) -> Result<(), Error> {
        let failed = |e: std::io::Error| {
            Error::from_io(&e, format!("the report {} was not written", self.path.display()))
        };
        let json = serde_json::to_vec_pretty(report).map_err(|e| failed(e.into()))?;
        let written = self.file.write_all(&json).and_then(|()| self.file.write_all(b"\n"));
        written
            .and_then(|()| self.file.sync_all())
            .and_then(|()| fs::rename(&self.fresh, &self.path))
            .map_err(failed)
    }
}
