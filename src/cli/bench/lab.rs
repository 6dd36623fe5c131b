//! What all benchmarks share: the driver they measure, specs of devices, how findings are told.

use std::time::Duration;

use super::args::Common;
use super::rounds::{Interrupt, interleaved};
use crate::cli::args::DriverName;
use crate::cli::drivers;
use crate::cli::render::measured::{Environment, Findings, Measured, against_first};
use crate::driver::MakeDriver;
use crate::driver::sim::FaultPlan;
use crate::model::{DeviceName, DeviceSpec, Error, ErrorKind, QueueSpec, TargetSpec, WorkerLimit};
use crate::sys::host::Host;
use crate::sys::limits::{self, Need};

/// Bound of bringing a fleet up, and of taking it down.
pub(super) const WITHIN: Duration = Duration::from_secs(600);
/// Size of a null device: it costs nothing.
const NULL_SIZE: u64 = 1 << 30;
/// Queues of devices that are only brought up and down.
pub(super) const SMALL: QueueSpec = QueueSpec { count: 1, depth: 16, max_io: 64 << 10 };

/// Devices that came up.
pub(super) struct Up {
    /// When each did, in that order, from the begin of the first.
    pub(super) ready: Vec<Duration>,
    /// Processor time that this process took for it.
    pub(super) processor: Duration,
}

/// Devices that went.
pub(super) struct Down {
    /// From the first command until the last id was free.
    pub(super) wall: Duration,
    /// Processor time that this process took for it.
    pub(super) processor: Duration,
}

impl Up {
    /// Until the last one was up.
    pub(super) fn total(&self) -> Duration {
        self.ready.last().copied().unwrap_or_default()
    }

    /// Devices a second in the `n`-th of ten parts (0 is the first); of fewer than ten devices the
    /// rate of all.
    pub(super) fn rate(&self, n: usize) -> f64 {
        let part = self.ready.len() / 10;
        let (from, to) = if part == 0 { (0, self.ready.len()) } else { (n * part, (n + 1) * part) };
        let at = |count: usize| count.checked_sub(1).map_or(Duration::ZERO, |i| self.ready[i]);
        (to - from) as f64 / (at(to) - at(from)).as_secs_f64().max(f64::EPSILON)
    }
}

/// What a benchmark works with.
pub(super) struct Lab<'a> {
    pub(super) common: &'a Common,
    interrupt: Interrupt,
}

impl<'a> Lab<'a> {
    /// Prepares this process for the most of `devices` and of `workers`.
    ///
    /// # Errors
    /// When the limits of the host are too low, or signals cannot be had.
    pub(super) fn new(
        common: &'a Common,
        devices: &[usize],
        workers: &[WorkerLimit],
    ) -> Result<Self, Error> {
        let devices = devices.iter().copied().max().unwrap_or(1) as u64;
        let in_flight = workers.iter().map(|limit| limit.most()).max().unwrap_or(1) as u64;
        limits::raise_open_files(&Need { devices, queues: devices, target_files: 1, in_flight })?;
        Ok(Self { common, interrupt: Interrupt::listen()? })
    }

    /// The driver that the arguments name.
    pub(super) fn driver(&self) -> Result<MakeDriver, Error> {
        drivers::maker(self.common.driver, &self.common.sim_kernel, FaultPlan::none())
    }

    /// Refuses what needs block devices that can be opened.
    pub(super) fn needs_kernel(&self) -> Result<(), Error> {
        match self.common.driver {
            DriverName::Ublk => Ok(()),
            DriverName::Sim => {
                let text = "a simulated device cannot be loaded";
                Err(Error::new(ErrorKind::Invalid, text).hint("leave out --driver sim"))
            }
        }
    }

    /// The samples of each case; see [`interleaved`].
    pub(super) fn rounds<C, S>(
        &self,
        cases: &[C],
        measure: impl FnMut(&C) -> Result<S, Error>,
    ) -> Result<Vec<Vec<S>>, Error> {
        interleaved(self.common.rounds, &self.interrupt, cases, measure)
    }
}

/// What was found, with where.
pub(super) fn findings(bench: &'static str, results: Vec<Measured>) -> Findings {
    let host = Host::default();
    let meminfo = host.text("/proc/meminfo").unwrap_or_default();
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|t| t.trim().trim_end_matches(" kB").parse::<u64>().ok());
    let environment = Environment {
        kernel: host.kernel_release(),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        memory: kib.unwrap_or_default() * 1024,
        build: if cfg!(debug_assertions) { "debug" } else { "release" },
        version: env!("CARGO_PKG_VERSION"),
        command: std::env::args().collect(),
    };
    Findings { bench, environment, results: against_first(results) }
}

/// The name of the `n`-th device.
pub(super) fn name(n: usize) -> Result<DeviceName, Error> {
    DeviceName::new(format!("bench-{n}"))
        .map_err(|refused| Error::new(ErrorKind::Internal, refused.to_string()))
}

/// The `n`-th null device.
pub(super) fn null(n: usize, queues: QueueSpec) -> Result<DeviceSpec, Error> {
    DeviceSpec::builder(name(n)?, TargetSpec::Null { size: NULL_SIZE }).queues(queues).build()
}

/// Specs of null devices.
pub(super) fn nulls(devices: usize, queues: QueueSpec) -> Result<Vec<DeviceSpec>, Error> {
    (0..devices).map(|n| null(n, queues)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_part() {
        let ready = (1..=20).map(|n| Duration::from_millis(if n <= 10 { n } else { 10 * n - 90 }));
        let up = Up { ready: ready.collect(), processor: Duration::ZERO };
        assert_eq!(up.total(), Duration::from_millis(110));
        assert!((up.rate(0) - 1000.0).abs() < 1e-6, "{}", up.rate(0));
        assert!((up.rate(9) - 100.0).abs() < 1e-6, "{}", up.rate(9));
        let ready = vec![Duration::from_secs(1), Duration::from_secs(4)];
        let few = Up { ready, processor: Duration::ZERO };
        assert!((few.rate(0) - 0.5).abs() < 1e-9 && (few.rate(9) - 0.5).abs() < 1e-9);
    }
}
