//! One run of the daemon, from the list of devices to the shutdown report.
//!
//! ```text
//!   lock ─> supervisor ─> start all ─> serve ─────> TERM, INT ─> shutdown ─> report
//!                            │ abort on failure ──────────────────^   │
//!                            └ TERM in the middle ────────────────^   └ TERM again: forced
//! ```

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use futures::channel::mpsc::Receiver;
use futures::future::{Either, select};
use futures::stream::StreamExt;
use slog::{Logger, o};
use tokio::sync::watch;

use super::api::{self, Phase, State};
use super::exit::ExitStatus;
use super::reload::Reloader;
use super::signals::{self, Signal};
use super::watchdog::{self, Watchdog};
use super::{lock, systemd};
use crate::config::{ApiConfig, Config, MetricsConfig, Sources};
use crate::driver::MakeDriver;
use crate::model::{DeviceSpec, Error, ErrorKind, ShutdownReport, WorkerLimit};
use crate::sys::census::Census;
use crate::{Builder, Handle, Running};

/// How long the kernel may take to end its workers and close files after everything has ended.
const SETTLE: Duration = Duration::from_secs(2);

/// Stop signals this close together are one: `timeout` and terminals signal a process and its
/// group.
const SAME_SIGNAL: Duration = Duration::from_millis(250);

/// How much later than its deadline the report of a shutdown may come.
const OVERDUE: Duration = Duration::from_secs(5);

/// How long a question may take.
const ANSWER: Duration = Duration::from_secs(2);

/// How long a forced end may take.
const FORCE: Duration = Duration::from_secs(2);

/// What to run.
pub struct Options {
    /// Devices, in the order of the config.
    pub devices: Vec<DeviceSpec>,
    /// Creates and deletes at once.
    pub workers: WorkerLimit,
    /// Operations that may wait.
    pub mailbox: usize,
    /// Bound of a command.
    pub command_timeout: Duration,
    /// Bound of a shutdown.
    pub shutdown_timeout: Duration,
    /// Where the lock and the links are.
    pub run_dir: PathBuf,
    /// Whether one device that fails to start ends the run.
    pub abort_on_failure: bool,
    /// Told how many devices have come up or failed.
    pub progress: Option<Box<dyn Fn(usize)>>,
    /// The HTTP API.
    pub api: ApiConfig,
    /// What is measured.
    pub metrics: MetricsConfig,
    /// A socket for the API that a service manager has handed over.
    pub listener: Option<UnixListener>,
    /// Where the config comes from, for a reload.
    pub sources: Sources,
    /// What they said at the start.
    pub config: Config,
    /// Which driver.
    pub driver: MakeDriver,
    /// Where to log.
    pub log: Logger,
}

/// How a run ended.
#[derive(Debug)]
pub struct Ended {
    /// For the process.
    pub status: ExitStatus,
    /// What became of each device; `None` if the supervisor never ran.
    pub report: Option<ShutdownReport>,
    /// Why it did not run, or why it was ended.
    pub error: Option<Error>,
}

/// Brings the devices up, serves until TERM or INT, takes them down.
///
/// Signals must be blocked on this thread ([`crate::sys::signals::block_all`]).
#[must_use]
pub fn run(options: Options) -> Ended {
    let log = options.log.new(o!("component" => "daemon"));
    // The first runtime of a process makes a pair of sockets for signals, which stays for good.
    drop(tokio::runtime::Builder::new_current_thread().enable_all().build());
    let census = Census::take();
    let ended = match start(options, &log) {
        Ok((running, day)) => futures::executor::block_on(day.run(running)),
        // Told to stop before there was anything to stop.
        Err(error) if error.kind() == ErrorKind::Stopping => {
            let report = ShutdownReport::new(Vec::new(), Duration::ZERO, false);
            Ended { status: ExitStatus::Clean, report: Some(report), error: None }
        }
        Err(error) => Ended { status: ExitStatus::RunFailed, report: None, error: Some(error) },
    };
    account_for_itself(ended, census, &log)
}

/// A process that is left with threads or files it did not have before has leaked them.
fn account_for_itself(mut ended: Ended, before: Census, log: &Logger) -> Ended {
    if matches!(ended.status, ExitStatus::Clean | ExitStatus::RunFailed) {
        let surplus = before.surplus(SETTLE);
        if !surplus.is_empty() {
            slog::error!(log, "left behind: {}", surplus.join(", "));
            ended.status = ExitStatus::Left;
            if let Some(report) = &mut ended.report {
                report.left.extend(surplus);
            }
        }
    }
    ended
}

/// What a run has beside the supervisor.
struct Day {
    devices: Vec<DeviceSpec>,
    abort_on_failure: bool,
    progress: Option<Box<dyn Fn(usize)>>,
    shutdown_timeout: Duration,
    signals: Receiver<Signal>,
    state: watch::Sender<State>,
    reloader: Reloader,
    /// HUP has come, and is to be heeded.
    reload_due: bool,
    log: Logger,
    // In order of dropping: the socket goes before the lock, signals are received until that is
    // free.
    api: Option<api::Server>,
    _watchdog: Option<Watchdog>,
    _lock: lock::RunDirLock,
    _watch: signals::Watch,
}

fn start(options: Options, log: &Logger) -> Result<(Running, Day), Error> {
    let (watch, orders, mut signals) = signals::watch()?;
    let lock = lock::take(&options.run_dir, lock::PATIENCE, log, || {
        let mut waiting = std::iter::from_fn(|| signals.try_recv().ok());
        waiting.any(|signal| stops(Some(signal), log))
    })?;
    let running = Builder::new(options.driver)
        .workers(options.workers)
        .mailbox(options.mailbox)
        .command_timeout(options.command_timeout)
        .shutdown_timeout(options.shutdown_timeout)
        .run_dir(&options.run_dir)
        .log(options.log)
        .start()?;
    let reloader = Reloader::new(options.sources, options.config, running.handle(), log);
    let (state, is_state) = watch::channel(State { phase: Phase::Starting, report: None });
    let api = options.api.enabled.then(|| {
        api::start(api::Options {
            config: options.api,
            metrics: options.metrics,
            path: api::socket_path(&options.run_dir),
            listener: options.listener,
            handle: running.handle(),
            orders,
            reloader: reloader.clone(),
            state: is_state,
            log: log.new(o!("component" => "api")),
        })
    });
    let day = Day {
        devices: options.devices,
        abort_on_failure: options.abort_on_failure,
        progress: options.progress,
        shutdown_timeout: options.shutdown_timeout,
        signals,
        state,
        reloader,
        reload_due: false,
        log: log.clone(),
        api: api.transpose()?,
        _watchdog: watchdog::start(running.handle(), log)?,
        _lock: lock,
        _watch: watch,
    };
    Ok((running, day))
}

impl Day {
    async fn run(mut self, running: Running) -> Ended {
        let handle = running.handle();
        let failure = match self.bring_up(&handle).await {
            Some(End::Failed(error)) => Some(error),
            Some(End::Signal) => None,
            None => {
                self.phase(Phase::Serving);
                self.serve(&handle).await;
                None
            }
        };
        let report = self.take_down(running, &handle).await;
        let status = match &report {
            Some(report) if report.forced => ExitStatus::Forced,
            Some(report) if !report.is_clean() => ExitStatus::Left,
            None => ExitStatus::Forced,
            Some(_) if failure.is_some() => ExitStatus::RunFailed,
            Some(_) => ExitStatus::Clean,
        };
        Ended { status, report, error: failure }
    }

    /// Starts every device. `None` when those that could are in service.
    async fn bring_up(&mut self, handle: &Handle) -> Option<End> {
        let total = self.devices.len();
        let (mut up, mut failed) = (0, 0);
        let mut starts = pin!(handle.create_all(std::mem::take(&mut self.devices)));
        loop {
            match select(starts.next(), self.signals.next()).await {
                Either::Left((Some((_, Ok(_))), _)) => up += 1,
                // The device's actor has logged why.
                Either::Left((Some((name, Err(error))), _)) => {
                    failed += 1;
                    if self.abort_on_failure {
                        let text =
                            format!("{name} failed to start and on_failure is abort: {error}");
                        return Some(End::Failed(Error::new(error.kind(), text)));
                    }
                }
                Either::Left((None, _)) => break,
                Either::Right((signal, _)) => {
                    if self.heed(signal, handle).await {
                        return Some(End::Signal);
                    }
                }
            }
            if let Some(progress) = &self.progress {
                progress(up + failed);
            }
            if (up + failed) % 64 == 0 {
                systemd::status(&format!("starting: {up} of {total} up, {failed} failed"));
            }
        }
        let status = format!("{up} of {total} devices in service, {failed} failed to start");
        slog::info!(self.log, "{status}"; "up" => up, "failed" => failed);
        if up == 0 && failed > 0 {
            return Some(End::Failed(Error::new(ErrorKind::Internal, "no device came up")));
        }
        systemd::ready(&status);
        None
    }

    async fn serve(&mut self, handle: &Handle) {
        loop {
            let ended = if std::mem::take(&mut self.reload_due) {
                self.reload(handle).await
            } else {
                let signal = self.signals.next().await;
                self.heed(signal, handle).await
            };
            if ended {
                return;
            }
        }
    }

    /// Reads the config again; true when a signal says stop meanwhile. What the reload has asked
    /// for by then goes on, until the shutdown takes it down.
    async fn reload(&mut self, handle: &Handle) -> bool {
        slog::info!(self.log, "SIGHUP: the config is read again");
        systemd::reloading("reading the config again");
        let reloader = self.reloader.clone();
        let mut reload = pin!(reloader.reload(false));
        let reloaded = loop {
            match select(reload.as_mut(), self.signals.next()).await {
                Either::Left((reloaded, _)) => break reloaded,
                Either::Right((signal, _)) => {
                    if self.heed(signal, handle).await {
                        return true;
                    }
                }
            }
        };
        let status = match reloaded {
            Ok(report) => report.to_string(),
            Err(error) => {
                slog::error!(self.log, "reload refused, nothing was changed: {error}";
                    "kind" => error.kind().as_str());
                "in service; the last reload was refused, see the log".to_owned()
            }
        };
        systemd::ready(&status);
        false
    }

    /// Does what a signal says; true when it says stop.
    async fn heed(&mut self, signal: Option<Signal>, handle: &Handle) -> bool {
        match signal {
            Some(Signal::Asked { within: Some(within) }) => self.shutdown_timeout = within,
            Some(Signal::Describe) => self.describe(handle).await,
            Some(Signal::Reload) => self.reload_due = true,
            _ => {}
        }
        stops(signal, &self.log)
    }

    async fn describe(&self, handle: &Handle) {
        let Some(Ok(devices)) = within(ANSWER, handle.list()).await else {
            slog::error!(self.log, "SIGUSR1: the supervisor does not answer");
            return;
        };
        slog::info!(self.log, "SIGUSR1: {} devices", devices.len());
        for device in devices {
            slog::info!(self.log, "device";
                "device" => %device.name,
                "id" => device.id.map(|id| id.0),
                "node" => device.path,
                "state" => device.state.as_str(),
                "stage" => device.stage.as_str(),
                "target" => device.target,
                "size" => device.size,
                "queues" => device.queues,
                "depth" => device.depth,
                "tids" => format!("{:?}", device.tids),
                "since_s" => format!("{:.3}", device.since_s),
                "reads" => device.io.read.requests,
                "writes" => device.io.write.requests,
                "flushes" => device.io.flush.requests,
                "fua" => device.io.fua,
                "discards" => device.io.discard.requests,
                "errors" => device.io.errors(),
                "error" => device.error);
        }
    }

    /// `None` when not even the supervisor answers in time.
    async fn take_down(mut self, running: Running, handle: &Handle) -> Option<ShutdownReport> {
        self.reloader.end();
        systemd::stopping("stopping all devices");
        self.phase(Phase::Stopping);
        let begun = Instant::now();
        let bound = self.shutdown_timeout + OVERDUE;
        let mut shutdown = pin!(within(bound, running.shutdown(self.shutdown_timeout)));
        loop {
            match select(shutdown.as_mut(), self.signals.next()).await {
                Either::Left((report, _)) => return self.answered(report),
                // It is stopping already.
                Either::Right((Some(Signal::Asked { .. }), _)) => {}
                Either::Right((Some(Signal::Stop(_)), _)) if begun.elapsed() < SAME_SIGNAL => {}
                Either::Right((Some(Signal::Stop(name)), _)) => {
                    slog::warn!(self.log, "{name} again: the end is forced");
                    handle.force();
                    return self.answered(within(FORCE, shutdown).await.flatten());
                }
                Either::Right((signal, _)) => {
                    self.heed(signal, handle).await;
                }
            }
        }
    }

    fn phase(&self, phase: Phase) {
        self.state.send_modify(|state| state.phase = phase);
    }

    /// What the supervisor said of the end, also told over the API before that ends.
    fn answered(
        &mut self,
        report: Option<Result<ShutdownReport, Error>>,
    ) -> Option<ShutdownReport> {
        let report = report.and_then(Result::ok);
        if report.is_none() {
            slog::error!(self.log, "the supervisor does not answer; what it had is abandoned");
        }
        self.state
            .send_replace(State { phase: Phase::Stopped, report: report.clone().map(Arc::new) });
        drop(self.api.take());
        report
    }
}

/// Logs what a signal means; true when it says stop.
fn stops(signal: Option<Signal>, log: &Logger) -> bool {
    match signal {
        Some(Signal::Stop(name)) => {
            slog::info!(log, "{name}: orderly shutdown; a second one forces the end");
            true
        }
        Some(Signal::Asked { .. }) => {
            slog::info!(log, "the API: orderly shutdown; a signal forces the end");
            true
        }
        // The signal thread has ended, which only its drop does.
        None => true,
        // Nothing to do about these while there are no devices.
        Some(Signal::Reload | Signal::Describe) => false,
    }
}

enum End {
    Signal,
    Failed(Error),
}

/// Gives up on `work` after `bound`; the timer is a thread, since this thread has no runtime.
async fn within<T>(bound: Duration, work: impl Future<Output = T>) -> Option<T> {
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    let (ring, rung) = futures::channel::oneshot::channel();
    let timer = crate::sys::thread::spawn("ublkd-timer", move || {
        if is_done.recv_timeout(bound) == Err(RecvTimeoutError::Timeout) {
            // Nobody listens if the work was done at the last moment.
            let _ = ring.send(());
        }
    });
    // Work without a bound is better than none.
    let Ok(timer) = timer else { return Some(work.await) };
    let ended = match select(pin!(work), rung).await {
        Either::Left((ended, _)) => Some(ended),
        Either::Right(_) => None,
    };
    drop(done);
    // It has nothing to say.
    let _ = timer.join();
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_given_up_at_its_bound_and_not_before() {
        let bound = Duration::from_millis(20);
        let begun = Instant::now();
        let never = within(bound, std::future::pending::<()>());
        assert_eq!(futures::executor::block_on(never), None);
        assert!(begun.elapsed() >= bound);

        let begun = Instant::now();
        let done = within(Duration::from_secs(600), async { 7 });
        assert_eq!(futures::executor::block_on(done), Some(7));
        assert!(begun.elapsed() < Duration::from_secs(60), "the timer is not waited for");
    }
}
