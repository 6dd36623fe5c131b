//! What `ublkd bench` takes.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use crate::cli::args::{DriverName, Format, data_mode};
use crate::model::{DataMode, WorkerLimit};

/// Measure this host. Devices are named bench-N; an interrupt ends it after the round under way.
#[derive(Debug, Args)]
pub(in crate::cli) struct Bench {
    #[command(subcommand)]
    pub(super) what: What,
}

#[derive(Debug, Subcommand)]
pub(super) enum What {
    /// How long it takes until no device is left.
    Teardown(Teardown),
    /// How long it takes until every device is in service.
    Create(Create),
    /// How many devices come and go in a second.
    Churn(Churn),
    /// What a device costs: memory, threads, open files.
    Density(Density),
    /// How fast the block device is, and what an I/O costs the server.
    Io(Io),
    /// The other side of `io`: loads block devices and prints what it saw, as JSON.
    #[command(hide = true)]
    Load(Load),
}

#[derive(Debug, Args)]
pub(super) struct Common {
    /// How often each case is measured; the rounds go through all cases in turn.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = at_least_one)]
    pub(super) rounds: usize,
    /// The kernel's driver, or a simulation of it that needs no rights.
    #[arg(long, value_enum, default_value_t = DriverName::Ublk)]
    pub(super) driver: DriverName,
    /// Which kernel the simulation is: 6.12, 7.3 or 7.4.
    #[arg(long, value_name = "RELEASE", default_value = "7.3")]
    pub(super) sim_kernel: String,
    #[command(flatten)]
    pub(super) format: Format,
}

#[derive(Debug, Args)]
pub(super) struct Teardown {
    /// How many null devices, each to be measured.
    #[arg(long, value_name = "N,…", default_values_t = [500], value_delimiter = ',', value_parser = at_least_one)]
    pub(super) devices: Vec<usize>,
    /// Operations that run at once, each to be measured: a number, or `auto`.
    #[arg(long, value_name = "N,…", default_values_t = [WorkerLimit::Auto], value_delimiter = ',')]
    pub(super) workers: Vec<WorkerLimit>,
    /// Ways to take them down; the ratios are against the first. `serial` has one worker.
    #[arg(long, value_enum, value_name = "WAY,…", default_values_t = [Order::DeleteFirst, Order::Floor], value_delimiter = ',')]
    pub(super) order: Vec<Order>,
    /// Also tell how long each stage took a device.
    #[arg(long)]
    pub(super) stages: bool,
    #[command(flatten)]
    pub(super) common: Common,
}

/// A way to bring devices up and down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Order {
    /// One device after the other, each awaited until it is gone; in ublkd's order.
    Serial,
    /// As kernels before 6.9 want it: close the char device, then delete. With one worker this is
    /// what other daemons do.
    CloseFirst,
    /// As ublkd does it: delete while the char device is open, then close.
    DeleteFirst,
    /// The same commands from a bare loop without actors: what the kernel costs.
    Floor,
}

#[derive(Debug, Args)]
pub(super) struct Create {
    /// How many null devices, each to be measured.
    #[arg(long, value_name = "N,…", default_values_t = [500], value_delimiter = ',', value_parser = at_least_one)]
    pub(super) devices: Vec<usize>,
    /// Operations that run at once, each to be measured: a number, or `auto`.
    #[arg(long, value_name = "N,…", default_values_t = [WorkerLimit::Auto], value_delimiter = ',')]
    pub(super) workers: Vec<WorkerLimit>,
    #[command(flatten)]
    pub(super) common: Common,
}

#[derive(Debug, Args)]
pub(super) struct Churn {
    /// How many devices come and go at the same time.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = at_least_one)]
    pub(super) devices: usize,
    /// How often each of them comes and goes in a round.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = at_least_one)]
    pub(super) cycles: usize,
    /// Operations that run at once, each to be measured: a number, or `auto`.
    #[arg(long, value_name = "N,…", default_values_t = [WorkerLimit::Auto], value_delimiter = ',')]
    pub(super) workers: Vec<WorkerLimit>,
    #[command(flatten)]
    pub(super) common: Common,
}

#[derive(Debug, Args)]
pub(super) struct Density {
    /// How many null devices, each to be measured.
    #[arg(long, value_name = "N,…", default_values_t = [100, 1000], value_delimiter = ',', value_parser = at_least_one)]
    pub(super) devices: Vec<usize>,
    /// Requests in flight a queue.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(super) depth: u16,
    /// Largest request in KiB.
    #[arg(long, value_name = "KIB", default_value_t = 512)]
    pub(super) max_io: u32,
    /// Also measure after each buffer of each device was filled once, and 15 s later.
    #[arg(long)]
    pub(super) touch: bool,
    #[command(flatten)]
    pub(super) common: Common,
}

#[derive(Debug, Args)]
pub(super) struct Io {
    /// What serves, each to be measured.
    #[arg(long, value_enum, value_name = "KIND,…", default_values_t = [IoTarget::Null], value_delimiter = ',')]
    pub(super) target: Vec<IoTarget>,
    /// The file or block device of the loop target. What is in it is lost if writes are measured.
    #[arg(long, value_name = "PATH", required_if_eq("target", "loop"))]
    pub(super) file: Option<PathBuf>,
    /// Let the loop target use the page cache.
    #[arg(long)]
    pub(super) buffered: bool,
    /// How data gets to the target, each to be measured.
    #[arg(long, value_name = "MODE,…", default_values_t = [DataMode::Auto], value_delimiter = ',', value_parser = data_mode())]
    pub(super) data: Vec<DataMode>,
    /// Whether one command to the kernel is for many requests, each to be measured.
    #[arg(long, value_name = "BOOL,…", default_values_t = [false], value_delimiter = ',', action = clap::ArgAction::Append)]
    pub(super) batch: Vec<bool>,
    /// What is done, each to be measured.
    #[arg(long, value_enum, value_name = "OP,…", default_values_t = [LoadOp::Randread], value_delimiter = ',')]
    pub(super) op: Vec<LoadOp>,
    /// I/Os in flight a job, each to be measured.
    #[arg(long, value_name = "N,…", default_values_t = [1, 32], value_delimiter = ',')]
    pub(super) depth: Vec<u16>,
    /// Size of an I/O in KiB, each to be measured.
    #[arg(long, value_name = "KIB,…", default_values_t = [4], value_delimiter = ',')]
    pub(super) block: Vec<u32>,
    /// Threads that load the device, each to be measured.
    #[arg(long, value_name = "N,…", default_values_t = [1], value_delimiter = ',')]
    pub(super) jobs: Vec<u16>,
    /// Queues of the device with a thread each, each number to be measured.
    #[arg(long, value_name = "N,…", default_values_t = [1], value_delimiter = ',')]
    pub(super) queues: Vec<u16>,
    /// Whether the threads of several queues run on their processors only, each to be measured.
    #[arg(long, value_name = "BOOL,…", default_values_t = [true], value_delimiter = ',', action = clap::ArgAction::Append)]
    pub(super) affinity: Vec<bool>,
    /// How long each case is loaded in a round.
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    pub(super) seconds: f64,
    #[command(flatten)]
    pub(super) common: Common,
}

/// What serves a device that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum IoTarget {
    /// Takes and gives nothing.
    Null,
    /// Memory.
    Ram,
    /// The file of `--file`.
    Loop,
}

/// What a load does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum LoadOp {
    /// Reads at random places.
    Randread,
    /// Writes at random places.
    Randwrite,
    /// Reads one block after the other.
    Read,
    /// Writes one block after the other.
    Write,
}

impl LoadOp {
    pub(super) fn is_write(self) -> bool {
        matches!(self, Self::Randwrite | Self::Write)
    }

    pub(super) fn is_random(self) -> bool {
        matches!(self, Self::Randread | Self::Randwrite)
    }
}

#[derive(Debug, Args)]
pub(super) struct Load {
    /// The block devices; each gets its own jobs.
    #[arg(required = true)]
    pub(super) paths: Vec<PathBuf>,
    #[arg(long, value_enum)]
    pub(super) op: LoadOp,
    #[arg(long)]
    pub(super) depth: u16,
    #[arg(long, value_name = "KIB")]
    pub(super) block: u32,
    #[arg(long, default_value_t = 1)]
    pub(super) jobs: u16,
    /// Each job ends after this time.
    #[arg(long, default_value_t = 60.0)]
    pub(super) seconds: f64,
    /// Each of a job's I/Os in flight is repeated this often at most.
    #[arg(long, default_value_t = u64::MAX)]
    pub(super) repeat: u64,
}

/// A count that is not 0.
fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(count) => Ok(count),
        Err(_) => Err("expected a whole number".to_owned()),
    }
}
