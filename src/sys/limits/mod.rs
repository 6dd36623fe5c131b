//! What the host allows against what the devices need: one [`Check`] a limit, for the start and for
//! `ublkd doctor`.
//!
//! ```text
//!   Need (devices, queues, …) ──┐
//!   Host (/proc, /sys, /dev)  ──┴─ check ─> Check { name, need, have, remedy, verdict } …
//!   raise_open_files ── setrlimit, before that
//! ```
//!
//! Invariants: checking changes nothing; a check whose source is absent is left out, unless its
//! absence is what it checks; every check that is not `ok` has a remedy; the driver is judged by
//! its control node alone, since it may be built in (fault F41).

mod checks;
#[cfg(test)]
mod tests;

use std::fmt;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::Serialize;

use super::host::Host;
use crate::model::Error;

/// What is going to be run on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Devices at a time.
    pub devices: u64,
    /// Queues of all of them together; each has a thread.
    pub queues: u64,
    /// Files that their targets hold open.
    pub target_files: u64,
    /// Control commands at a time; each has a thread of the kernel's in this process.
    pub in_flight: u64,
}

/// Open files, threads and mappings that the process has beside those of devices.
const OWN: u64 = 256;
/// File descriptors of a queue: its ring and its doorbell.
const FILES_A_QUEUE: u64 = 2;
/// Mappings of a queue: buffers, descriptors, two of the ring, stack and signal stack with a guard
/// page each, and some of the allocator's.
const MAPPINGS_A_QUEUE: u64 = 9;

impl Need {
    /// File descriptors: one a device for its char node, those of its queues, those of its target.
    #[must_use]
    pub fn open_files(&self) -> u64 {
        OWN + self.devices + FILES_A_QUEUE * self.queues + self.target_files
    }

    /// Threads: one a queue, the kernel's workers, the process's own.
    #[must_use]
    pub fn threads(&self) -> u64 {
        OWN + self.queues + self.in_flight
    }

    /// Memory mappings.
    #[must_use]
    pub fn mappings(&self) -> u64 {
        4 * OWN + MAPPINGS_A_QUEUE * self.queues
    }
}

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// There is enough of it.
    Ok,
    /// It may turn out to be short for some of the devices, or something nice is missing.
    Warn,
    /// No device can work.
    Fail,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        })
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What it is, in a word or two.
    pub name: &'static str,
    /// What is needed.
    pub need: String,
    /// What is there.
    pub have: String,
    /// What to do about it; empty when there is nothing to do.
    pub remedy: String,
    /// How it came out.
    pub verdict: Verdict,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, need, have, remedy, .. } = self;
        write!(f, "{name}: need {need}, have {have}")?;
        if remedy.is_empty() { Ok(()) } else { write!(f, "; {remedy}") }
    }
}

impl Check {
    fn new(name: &'static str, need: impl ToString, have: impl ToString) -> Self {
        let (need, have) = (need.to_string(), have.to_string());
        Self { name, need, have, remedy: String::new(), verdict: Verdict::Ok }
    }

    /// Gives it another verdict, with a remedy, when `wrong`.
    fn or(mut self, wrong: bool, verdict: Verdict, remedy: impl Into<String>) -> Self {
        if wrong && self.verdict == Verdict::Ok {
            self.verdict = verdict;
            self.remedy = remedy.into();
        }
        self
    }
}

/// Checks everything that can be checked before a device is started.
#[must_use]
pub fn check(host: &Host, need: &Need) -> Vec<Check> {
    let checks = [
        Some(checks::kernel(host)),
        Some(checks::driver(host)),
        Some(checks::rights(host)),
        Some(checks::io_uring(host)),
        Some(checks::nodes(host)),
        checks::mount_namespace(host),
        checks::open_files(host, need),
        checks::threads(host, need),
        checks::tasks_of_group(host, need),
        checks::mappings(host, need),
        checks::device_limit(host, need),
    ];
    checks.into_iter().flatten().collect()
}

/// What to do about `EMFILE`, with need and have.
#[must_use]
pub fn open_files_hint() -> String {
    format!(
        "raise RLIMIT_NOFILE (LimitNOFILE=, ulimit -n): have {}, each queue needs {FILES_A_QUEUE} \
         and each device 1 more, beside the target's",
        in_force(Resource::RLIMIT_NOFILE)
    )
}

/// A limit of this process: soft and hard.
#[must_use]
pub fn in_force(limit: Resource) -> String {
    match getrlimit(limit) {
        Ok((soft, hard)) if hard == nix::libc::RLIM_INFINITY => format!("{soft} of unlimited"),
        Ok((soft, hard)) => format!("{soft} of {hard}"),
        Err(errno) => format!("unknown: {errno}"),
    }
}

/// Raises the limit on open files to what `need` takes: the soft one as far as the hard one goes,
/// the hard one too where the process may. Gives the soft limit in force afterwards.
///
/// # Errors
/// When the limit cannot be read, or the soft one cannot be raised at all.
pub fn raise_open_files(need: &Need) -> Result<u64, Error> {
    let failed = |errno: nix::errno::Errno| {
        Error::from_errno(errno as i32, "RLIMIT_NOFILE cannot be raised")
    };
    let files = Resource::RLIMIT_NOFILE;
    let (soft, hard) = getrlimit(files).map_err(failed)?;
    let wanted = need.open_files();
    if soft >= wanted.max(hard) {
        return Ok(soft);
    }
    if wanted > hard && setrlimit(files, wanted, wanted).is_ok() {
        return Ok(wanted);
    }
    setrlimit(files, hard, hard).map_err(failed)?;
    Ok(hard)
}
