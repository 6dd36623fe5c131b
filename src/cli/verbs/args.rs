//! What the commands take that talk to a daemon.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser, ValueHint};
use clap::{ArgGroup, Args, Subcommand};
use clap_complete::ArgValueCandidates;

use crate::cli::args::data_mode;
use crate::cli::complete;
use crate::cli::output::Output;
use crate::config::{parse_duration, parse_size};
use crate::model::{BusyPolicy, Condition, DataMode, DeviceName, DeviceState};

/// The commands that talk to a daemon.
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum Verb {
    Create(Box<Create>),
    Delete(Delete),
    List(List),
    Describe(Describe),
    Resize(Resize),
    /// Hold I/O of live devices back until resume.
    Quiesce(Change),
    /// Let I/O of quiesced devices go on.
    Resume(Change),
    ReadOnly(ReadOnly),
    Wait(Wait),
    Events(Events),
    /// List the groups, with how many devices of each are in which state.
    Groups(Ask),
    /// Tell what the daemon's kernel can do.
    Features(Ask),
    Reload(Reload),
    /// Take all devices down and end the daemon.
    ///
    /// Prints what became of the devices; the exit status is 3 if something is left.
    Shutdown(Ask),
    Top(Top),
}

// How the daemon is reached. (A doc comment would become the help of each command.)
#[derive(Debug, Args)]
pub(in crate::cli) struct Connection {
    /// The daemon's socket.
    #[arg(
        long,
        value_name = "PATH",
        env = "UBLKD_SOCKET",
        hide_env_values = true,
        default_value = "/run/ublkd/ublkd.sock",
        value_hint = ValueHint::FilePath
    )]
    pub(in crate::cli) socket: PathBuf,

    /// How long it may take, as 500ms or 2m [default: 10s for questions, 60s for changes].
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(super) within: Option<Duration>,
}

// What every command has.
#[derive(Debug, Args)]
pub(in crate::cli) struct Ask {
    #[command(flatten)]
    pub(in crate::cli) at: Connection,

    /// Print something else than text for people.
    #[arg(short = 'o', long, value_enum, value_name = "FORM")]
    pub(in crate::cli) output: Option<Output>,
}

// The devices that a command is about.
#[derive(Debug, Args)]
pub(in crate::cli) struct Names {
    /// Names of devices, also as device/NAME.
    #[arg(value_name = "DEVICE", required = true, value_parser = device_name, add = ArgValueCandidates::new(complete::devices))]
    pub(super) names: Vec<DeviceName>,
}

/// Create devices: one by flags, or those of a file.
///
/// What is there already and the same stays as it is (`unchanged`).
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").args(["name", "file"]).required(true))]
pub(in crate::cli) struct Create {
    /// The host's name for the device.
    #[arg(value_name = "DEVICE", value_parser = device_name, requires = "target")]
    pub(super) name: Option<DeviceName>,

    /// A *.toml file with [[device]] entries as in a config, or a *.json file (- for stdin).
    #[arg(short = 'f', long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) file: Option<PathBuf>,

    /// All devices of the file or none; they have to be of one group.
    #[arg(long, requires = "file")]
    pub(super) atomic: bool,

    /// The group that the devices belong to, such as a VM.
    #[arg(long, value_name = "GROUP", add = ArgValueCandidates::new(complete::groups))]
    pub(super) group: Option<String>,

    /// A label. May be repeated.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub(super) labels: Vec<(String, String)>,

    #[command(flatten)]
    pub(super) ask: Ask,

    // Last, because of its heading.
    #[command(flatten)]
    pub(super) device: DeviceArgs,
}

// The keys of a device, as `[[device]]` has them.
#[derive(Debug, Args)]
#[command(next_help_heading = "Device")]
pub(super) struct DeviceArgs {
    /// What serves the blocks: null, ram or loop.
    #[arg(long, value_name = "TARGET", conflicts_with = "file")]
    pub(super) target: Option<String>,

    /// Size of a null or ram device, as 64M or 1GiB.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "file")]
    pub(super) size: Option<u64>,

    /// File or block device behind a loop device.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath, conflicts_with = "file")]
    pub(super) path: Option<PathBuf>,

    /// A loop device bypasses the page cache.
    #[arg(long, conflicts_with = "file")]
    pub(super) direct: bool,

    /// The kernel's number [default: the first that is free].
    #[arg(long, value_name = "N", conflicts_with = "file")]
    pub(super) id: Option<u32>,

    /// Queues, each with a thread of its own.
    #[arg(long, value_name = "N", conflicts_with = "file")]
    pub(super) queues: Option<u16>,

    /// Requests in flight in each queue.
    #[arg(long, value_name = "N", conflicts_with = "file")]
    pub(super) depth: Option<u16>,

    /// Largest request.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "file")]
    pub(super) max_io: Option<u64>,

    /// Smallest unit of I/O.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "file")]
    pub(super) logical_block: Option<u64>,

    /// Unit that is written without reading first.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "file")]
    pub(super) physical_block: Option<u64>,

    /// Refuse writes.
    #[arg(long, conflicts_with = "file")]
    pub(super) read_only: bool,

    /// The kernel looks for partitions.
    #[arg(long, conflicts_with = "file")]
    pub(super) partitions: bool,

    /// How data gets to the target [default: auto].
    #[arg(long, value_name = "MODE", value_parser = data_mode(), conflicts_with = "file")]
    pub(super) data: Option<DataMode>,

    /// One command to the kernel is for many requests.
    #[arg(long, conflicts_with = "file")]
    pub(super) batch: bool,

    /// The threads of several queues run on any processor.
    #[arg(long, conflicts_with = "file")]
    pub(super) no_affinity: bool,

    /// The kernel keeps the device while it has no server: quiesce needs that.
    #[arg(long, conflicts_with = "file")]
    pub(super) recovery: bool,

    /// What a delete does while somebody holds the device [default: stop].
    #[arg(long, value_name = "POLICY", value_parser = policy(), conflicts_with = "file")]
    pub(super) busy: Option<BusyPolicy>,
}

/// Delete devices, or a whole group.
///
/// What is not there is no failure (`absent`).
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").args(["names", "group"]).required(true))]
#[command(mut_arg("names", |names| names.required(false)))]
pub(in crate::cli) struct Delete {
    #[command(flatten)]
    pub(super) devices: Names,

    /// Every device of this group, at once.
    #[arg(long, value_name = "GROUP", add = ArgValueCandidates::new(complete::groups))]
    pub(super) group: Option<String>,

    /// What to do while somebody holds the device [default: the device's own policy].
    #[arg(long, value_name = "POLICY", value_parser = policy())]
    pub(super) busy: Option<BusyPolicy>,

    /// How long `--busy wait` waits.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(super) busy_timeout: Option<Duration>,

    #[command(flatten)]
    pub(super) ask: Ask,
}

/// List the daemon's devices, or with --kernel those of this host, whoever made them.
#[derive(Debug, Args)]
pub(in crate::cli) struct List {
    /// Only those in this state.
    #[arg(long, value_name = "STATE", value_parser = state)]
    pub(super) state: Option<DeviceState>,

    /// Only those of this group.
    #[arg(long, value_name = "GROUP", add = ArgValueCandidates::new(complete::groups))]
    pub(super) group: Option<String>,

    /// Only those with this label. May be repeated.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub(super) labels: Vec<(String, String)>,

    /// Only those with this target.
    #[arg(long, value_name = "TARGET")]
    pub(super) target: Option<String>,

    // Not in conflict with the socket: that may come from the environment, for the other commands.
    /// Ask the kernel, not a daemon: nothing is missed.
    #[arg(long, conflicts_with_all = ["state", "group", "labels", "target", "within"])]
    pub(in crate::cli) kernel: bool,

    /// Where a daemon keeps its links, for the names of --kernel.
    #[arg(long, value_name = "DIR", default_value = "/run/ublkd", requires = "kernel")]
    pub(in crate::cli) run_dir: PathBuf,

    #[command(flatten)]
    pub(in crate::cli) ask: Ask,
}

/// Tell everything about devices: who holds them, their threads, I/O, last error.
#[derive(Debug, Args)]
pub(in crate::cli) struct Describe {
    #[command(flatten)]
    pub(super) devices: Names,

    #[command(flatten)]
    pub(super) ask: Ask,
}

/// Change the size of a live device.
#[derive(Debug, Args)]
pub(in crate::cli) struct Resize {
    /// The name of the device.
    #[arg(value_name = "DEVICE", value_parser = device_name, add = ArgValueCandidates::new(complete::devices))]
    pub(super) name: DeviceName,

    /// The size that it shall have, as 2GiB.
    #[arg(value_name = "SIZE", value_parser = parse_size)]
    pub(super) size: u64,

    /// Smaller than now is meant: what is behind the new end is lost.
    #[arg(long)]
    pub(super) shrink: bool,

    #[command(flatten)]
    pub(super) ask: Ask,
}

// A command on live devices that needs no more than their names.
#[derive(Debug, Args)]
pub(in crate::cli) struct Change {
    #[command(flatten)]
    pub(super) devices: Names,

    #[command(flatten)]
    pub(super) ask: Ask,
}

/// Make live devices read-only, or writable again.
#[derive(Debug, Args)]
pub(in crate::cli) struct ReadOnly {
    /// Make them writable again.
    #[arg(long)]
    pub(super) off: bool,

    #[command(flatten)]
    pub(super) change: Change,
}

/// Wait until devices are in a state.
///
/// Waiting for a state that cannot come any more, as live after failed, ends at once.
#[derive(Debug, Args)]
pub(in crate::cli) struct Wait {
    #[command(flatten)]
    pub(super) devices: Names,

    /// A state such as live, or deleted.
    #[arg(long = "for", value_name = "STATE", default_value = "live", value_parser = goal)]
    pub(super) goal: Condition,

    #[command(flatten)]
    pub(super) ask: Ask,
}

/// Follow the changes of state of all devices.
#[derive(Debug, Args)]
pub(in crate::cli) struct Events {
    /// Begin with this event if the daemon still has it [default: with the next one].
    #[arg(long, value_name = "ID")]
    pub(super) from: Option<u64>,

    /// End after so many events [default: never].
    #[arg(long, value_name = "N")]
    pub(super) count: Option<u64>,

    #[command(flatten)]
    pub(super) ask: Ask,
}

/// Read the config again, and make the devices be as it says.
///
/// Devices that were made over the socket are left alone.
#[derive(Debug, Args)]
pub(in crate::cli) struct Reload {
    /// Only tell what would be done.
    #[arg(long)]
    pub(super) dry_run: bool,

    #[command(flatten)]
    pub(super) ask: Ask,
}

/// A live table of devices: states, I/O, latency, queues.
#[derive(Debug, Args)]
pub(in crate::cli) struct Top {
    #[command(flatten)]
    pub(in crate::cli) at: Connection,

    /// Time between two looks.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    pub(in crate::cli) every: Duration,
}

/// A name, alone or as `-o name` prints it.
fn device_name(text: &str) -> Result<DeviceName, String> {
    DeviceName::new(text.strip_prefix("device/").unwrap_or(text)).map_err(|e| e.to_string())
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE, such as vm=web-1".to_owned()),
    }
}

fn state(text: &str) -> Result<DeviceState, String> {
    let known = serde_json::from_value(text.into());
    known.map_err(|_| "expected a state such as live, starting, stopping, failed".to_owned())
}

fn goal(text: &str) -> Result<Condition, String> {
    match text {
        "deleted" | "absent" => Ok(Condition::Absent),
        text => state(text).map(Condition::State),
    }
}

/// stop, refuse or wait.
fn policy() -> impl TypedValueParser<Value = BusyPolicy> {
    PossibleValuesParser::new(BusyPolicy::ALL.map(BusyPolicy::as_str))
        .try_map(|word| word.parse::<BusyPolicy>())
}
