//! Every key that a config may hold, in one table: section, type, range, default, meaning.
//!
//! The parser, the error texts, the names of environment variables and `docs/configuration.md`
//! all come from this table.
//!
//! Invariant: the ranges of device keys are [`LIMITS`], so that the check of a spec says the same.

use std::fmt::Write;
use std::time::Duration;

use super::kind::Kind;
use crate::model::{DeviceId, LIMITS};

/// One key of a section.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// The default as it could be written, or in words where there is no fixed one.
    pub(super) default: &'static str,
    /// What it means, for the documentation.
    pub(super) meaning: &'static str,
}

const fn key(name: &'static str, kind: Kind, default: &'static str, meaning: &'static str) -> Key {
    Key { name, kind, default, meaning }
}

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// Most devices that one entry or one config may make.
pub(super) const MAX_DEVICES: u64 = 65_536;

const SUPERVISOR: &[Key] = &[
    key(
        "workers",
        Kind::Workers(1, 1024),
        "auto",
        "Starts and teardowns that run at once. `auto` finds out what suits the machine and its kernel.",
    ),
    key(
        "mailbox",
        Kind::Integer(1, 65_536),
        "1024",
        "Requests that may wait; more are refused at once as overloaded.",
    ),
    key(
        "command_timeout",
        Kind::Duration(Duration::from_millis(100), HOUR),
        "10s",
        "Longest time of one control command; a device whose command takes longer is given up as wedged.",
    ),
    key(
        "shutdown_timeout",
        Kind::Duration(SECOND, HOUR),
        "60s",
        "Longest time of a whole shutdown. Keep it below systemd's `TimeoutStopSec` (90 s unless set).",
    ),
    key("run_dir", Kind::Path, "/run/ublkd", "Directory of links by name, locks and sockets."),
    key(
        "on_failure",
        Kind::Word(&["continue", "abort"]),
        "continue",
        "When a device fails to start: run the others, or shut everything down again.",
    ),
];

const LOG: &[Key] = &[
    key(
        "level",
        Kind::Word(&["critical", "error", "warning", "info", "debug", "trace"]),
        "info",
        "Least important level that is logged. Release builds have no `trace`.",
    ),
    key(
        "format",
        Kind::Word(&["terminal", "json"]),
        "terminal",
        "Lines for people, or one JSON object a line; both to stderr.",
    ),
];

const METRICS: &[Key] = &[key(
    "per_device_max",
    Kind::Integer(0, MAX_DEVICES),
    "1000",
    "Most devices that have metrics of their own, the first ones by name; the sums have all. 0 switches them off.",
)];
const API: &[Key] = &[
    key("enabled", Kind::Bool, "true", "Serve the HTTP API on `<run_dir>/ublkd.sock`."),
    key(
        "mode",
        Kind::Mode,
        "0600",
        "Permissions of the socket, in octal. Whoever may write to it may ask, if `allow` lets them.",
    ),
    key("owner", Kind::Text, "the daemon's", "User who owns the socket, by name or number."),
    key("group", Kind::Text, "the daemon's", "Group of the socket, by name or number."),
    key(
        "allow",
        Kind::Text,
        "nobody else",
        "Users who may use the API beside root and the daemon's own, by name or number, with commas between. Others are refused with 403, whatever the mode is.",
    ),
    key(
        "connections",
        Kind::Integer(8, 4096),
        "256",
        "Connections at once; more wait until one ends. A quarter of them may watch events.",
    ),
];

const SIZE: Kind = Kind::Size(LIMITS.block_min as u64, LIMITS.size_max);
const BLOCK: Kind = Kind::Size(LIMITS.block_min as u64, LIMITS.block_max as u64);
const PHYSICAL: Kind = Kind::Size(LIMITS.block_min as u64, 1 << 20);
const MAX_IO: Kind = Kind::Size(LIMITS.max_io_min as u64, LIMITS.max_io_max as u64);
const SECTOR: Kind = Kind::Integer(0, LIMITS.size_max / 512);

const DEVICE: &[Key] = &[
    key(
        "name",
        Kind::Text,
        "required",
        "The host's name for the device, unique: 1 to 64 of `A-Z a-z 0-9 . _ -`, the first one not `.` or `-`. Case is kept. A fleet has `{n}` in it.",
    ),
    key(
        "target",
        Kind::Text,
        "required",
        "What serves the blocks: `null` (nothing, for measuring), `ram`, `loop` (a file or block device), or a target of the embedding host.",
    ),
    key(
        "size",
        SIZE,
        "required by null, ram",
        "Size of a `null` or `ram` device; a multiple of the logical block.",
    ),
    key(
        "path",
        Kind::Path,
        "required by loop",
        "File or block device behind a `loop` device. Two devices may share one only if both are `read_only`. A fleet has `{n}` in it.",
    ),
    key("direct", Kind::Bool, "false", "A `loop` device bypasses the page cache (`O_DIRECT`)."),
    key("options", Kind::Table, "empty", "Whatever a target of the embedding host wants to know."),
    key("count", Kind::Integer(1, MAX_DEVICES), "no fleet", "Makes a fleet of this many devices."),
    key("start", Kind::Integer(0, u32::MAX as u64), "0", "Number of the first device of a fleet."),
    key(
        "id",
        Kind::Integer(0, DeviceId::MAX as u64),
        "first free",
        "The kernel's number, the `N` of `/dev/ublkbN`; the devices of a fleet count up from it.",
    ),
    key(
        "queues",
        Kind::Integer(1, LIMITS.queues as u64),
        "1",
        "Queues, each with a thread of its own.",
    ),
    key("depth", Kind::Integer(1, LIMITS.depth as u64), "64", "Requests in flight in each queue."),
    key("max_io", MAX_IO, "512 KiB", "Largest request; a multiple of 4096."),
    key("logical_block", BLOCK, "the target's", "Smallest unit of I/O: 512, 1024, 2048 or 4096."),
    key(
        "physical_block",
        PHYSICAL,
        "the target's",
        "Unit that is written without reading first: a power of two, not below the logical block.",
    ),
    key("read_only", Kind::Bool, "false", "Refuses writes."),
    key(
        "partitions",
        Kind::Bool,
        "false",
        "The kernel looks for partitions when the device starts. Older kernels, such as 6.12, always do.",
    ),
    key(
        "data",
        Kind::Word(&["auto", "copy", "user_copy", "zero_copy"]),
        "auto",
        "How data gets to the target ([targets](targets.md)). A mode that the kernel does not have, or that does not suit the target, fails the start.",
    ),
    key(
        "batch",
        Kind::Bool,
        "false",
        "One command to the kernel is for many requests (Linux 7.0 on, else the start fails): faster with many in flight, slower with one.",
    ),
    key(
        "affinity",
        Kind::Bool,
        "true",
        "The thread of each of several queues runs on the processors whose requests the kernel puts into that queue.",
    ),
    key(
        "group",
        Kind::Text,
        "none",
        "Devices of one group are deleted together: a sandbox, a virtual machine. Named as a device is; a fleet may have `{n}` in it.",
    ),
    key(
        "labels",
        Kind::Table,
        "empty",
        "Words of your own for finding devices, as `{ tenant = \"blue\" }`: up to 32, keys of `a-z 0-9 . _ / -`, values of up to 256 bytes.",
    ),
    key(
        "busy",
        Kind::Word(&["stop", "refuse", "wait"]),
        "stop",
        "What a delete does while somebody holds the device (a mount, a process, a device on top): stop it all the same, refuse and name the holders, or wait for them and then refuse.",
    ),
    key(
        "busy_timeout",
        Kind::Duration(Duration::ZERO, HOUR),
        "30s",
        "How long `busy = \"wait\"` waits.",
    ),
    key(
        "recovery",
        Kind::Bool,
        "false",
        "The kernel keeps the device, with its I/O waiting, while it has no server; `quiesce` needs that. It then outlives a daemon that was killed.",
    ),
    key(
        "delay",
        Kind::Duration(Duration::ZERO, HOUR),
        "none",
        "For tests: every request takes this much longer.",
    ),
    key(
        "error_at",
        SECTOR,
        "none",
        "For tests: requests that touch this sector (512 bytes) fail with `EIO`.",
    ),
    key(
        "panic_at",
        SECTOR,
        "none",
        "For tests: a request that touches this sector (512 bytes) panics.",
    ),
];

/// Keys of `[[device]]` that `[defaults]` may hold: all but what tells devices apart.
const DEFAULTS: &[&str] = &[
    "target",
    "size",
    "direct",
    "queues",
    "depth",
    "max_io",
    "logical_block",
    "physical_block",
    "read_only",
    "partitions",
    "data",
    "batch",
    "affinity",
    "group",
    "busy",
    "busy_timeout",
    "recovery",
    "delay",
];

/// A table of the config.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Section {
    Supervisor,
    Log,
    Metrics,
    Api,
    Defaults,
    Device,
}

impl Section {
    pub(super) const ALL: [Self; 6] =
        [Self::Supervisor, Self::Log, Self::Metrics, Self::Api, Self::Defaults, Self::Device];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Supervisor => "supervisor",
            Self::Log => "log",
            Self::Metrics => "metrics",
            Self::Api => "api",
            Self::Defaults => "defaults",
            Self::Device => "device",
        }
    }

    /// Its keys, in the order of the documentation.
    pub(super) fn keys(self) -> impl Iterator<Item = &'static Key> {
        let (keys, only) = match self {
            Self::Supervisor => (SUPERVISOR, None),
            Self::Log => (LOG, None),
            Self::Metrics => (METRICS, None),
            Self::Api => (API, None),
            Self::Defaults => (DEVICE, Some(DEFAULTS)),
            Self::Device => (DEVICE, None),
        };
        keys.iter().filter(move |key| only.is_none_or(|names| names.contains(&key.name)))
    }

    pub(super) fn key(self, name: &str) -> Option<&'static Key> {
        self.keys().find(|key| key.name == name)
    }

    /// The environment variable of a key: `UBLKD__SUPERVISOR__WORKERS`.
    pub(super) fn variable(self, key: &Key) -> String {
        format!("UBLKD__{}__{}", self.name(), key.name).to_uppercase()
    }
}

/// The keys of every section as Markdown tables; `docs/configuration.md` holds them and a test
/// compares the two.
#[must_use]
pub fn reference_markdown() -> String {
    let mut out = String::new();
    for section in Section::ALL {
        let title = match section {
            Section::Device => "[[device]]".to_owned(),
            _ => format!("[{}]", section.name()),
        };
        if section == Section::Defaults {
            let names: Vec<_> = section.keys().map(|key| format!("`{}`", key.name)).collect();
            let _ = writeln!(out, "### `{title}`\n\nAny of {}.\n", names.join(", "));
            continue;
        }
        let head = "| key | type | default | allowed | meaning |\n|---|---|---|---|---|";
        // Writing to a string cannot fail.
        let _ = writeln!(out, "### `{title}`\n\n{head}");
        for Key { name, kind, default, meaning } in section.keys() {
            let (kind, range) = (kind.word(), kind.range());
            let _ = writeln!(out, "| `{name}` | {kind} | {default} | {range} | {meaning} |");
        }
        out.push('\n');
    }
    out
}
