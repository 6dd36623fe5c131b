//! `ublkd run`: a config's devices from start to shutdown report.

use std::sync::Arc;
use std::time::Duration;

use slog::Logger;

use super::args::{DriverName, Run};
use super::progress::{Above, Bar};
use super::render::{self, Extent};
use super::report::ReportFile;
use super::{complain, drivers, load, sources, within};
use crate::config::{Config, LogFormat, OnFailure};
use crate::daemon::{self, ExitStatus, Options};
use crate::driver::MakeDriver;
use crate::driver::sim::FaultPlan;
use crate::model::{Error, ErrorKind, ShutdownReport};
use crate::sys;
use crate::sys::host::Host;
use crate::sys::limits::{self, Need, Verdict};
use crate::telemetry;
use crate::telemetry::logging::Logging;

/// How long the last log lines, and the table, may take: nobody may read them.
const LOG_BOUND: Duration = Duration::from_secs(2);

/// How long writing the report may take.
const REPORT_BOUND: Duration = Duration::from_secs(10);

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
        .and_then(|driver| Ok((driver, args.report.as_deref().map(ReportFile::open).transpose()?)));
    let (driver, report) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            complain(&error);
            return ExitStatus::Usage;
        }
    };

    let bar = (config.log.format == LogFormat::Terminal && Bar::is_seen())
        .then(|| Arc::new(Bar::new("starting", config.devices.len())));
    let logging = match &bar {
        Some(bar) => Logging::start(&config.log, Above(Arc::clone(bar))),
        None => Logging::to_stderr(&config.log),
    };
    let log = logging.logger().clone();
    telemetry::panics::install(&log);
    if let Err(error) = telemetry::bridge::install(&log, config.log.level) {
        slog::warn!(log, "{error}");
    }
    let need = need(&config);
    // The simulation has real threads and files too.
    if let Err(error) = limits::raise_open_files(&need) {
        slog::warn!(log, "{error}");
    }
    if args.driver == DriverName::Ublk && !host_is_fit(&need, &log) {
        return ExitStatus::RunFailed;
    }
    let listener = match daemon::handed_over() {
        Ok(listener) => listener,
        Err(error) => {
            slog::error!(log, "{error}"; "kind" => error.kind().as_str());
            return ExitStatus::RunFailed;
        }
    };
    let supervisor = &config.supervisor;
    let ended = daemon::run(Options {
        devices: config.devices.iter().map(|device| device.spec.clone()).collect(),
        workers: supervisor.workers,
        mailbox: supervisor.mailbox,
        command_timeout: supervisor.command_timeout,
        shutdown_timeout: supervisor.shutdown_timeout,
        run_dir: supervisor.run_dir.clone(),
        abort_on_failure: supervisor.on_failure == OnFailure::Abort,
        progress: bar.clone().map(|bar| progress(bar, config.devices.len())),
        api: config.api.clone(),
        metrics: config.metrics.clone(),
        listener,
        sources: sources(&args.config),
        config: config.clone(),
        driver,
        log: log.clone(),
    });

    if let Some(bar) = bar {
        within(LOG_BOUND, move || bar.end());
    }
    if let Some(error) = &ended.error {
        slog::error!(log, "{error}"; "kind" => error.kind().as_str());
    }
    let mut status = ended.status;
    if let Some(outcomes) = ended.report {
        telemetry::report::log(&log, &outcomes);
        if config.log.format == LogFormat::Terminal {
            let table = render::shutdown(&outcomes, Extent::Short);
            within(LOG_BOUND, move || complain(&table));
        }
        if let Some(file) = report
            && let Err(error) = write(file, outcomes)
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

/// Moves the bar, and takes it away when all devices are up or have failed.
fn progress(bar: Arc<Bar>, total: usize) -> Box<dyn Fn(usize)> {
    Box::new(move |done| {
        bar.at(done);
        if done == total {
            let bar = Arc::clone(&bar);
            // Only a terminal that is stopped needs that long.
            within(LOG_BOUND, move || bar.end());
        }
    })
}

fn write(file: ReportFile, report: ShutdownReport) -> Result<(), Error> {
    within(REPORT_BOUND, move || file.write(&report)).unwrap_or_else(|| {
        let bound = REPORT_BOUND.as_secs();
        let text = format!("the report was not written within {bound} s");
        Err(Error::new(ErrorKind::Timeout, text).hint("does anybody read that pipe?"))
    })
}

/// What the devices of a config need of the host.
fn need(config: &Config) -> Need {
    let devices = config.devices.iter();
    Need {
        devices: config.devices.len() as u64,
        queues: devices.clone().map(|d| u64::from(d.spec.queues().count)).sum(),
        target_files: devices.filter(|d| d.spec.backing().is_some()).count() as u64,
        in_flight: config.supervisor.workers.most() as u64,
    }
}

/// Checks the host, one message a limit; false when no device can work.
fn host_is_fit(need: &Need, log: &Logger) -> bool {
    let mut fit = true;
    for check in limits::check(&Host::default(), need) {
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
