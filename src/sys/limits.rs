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

use std::fmt;
use std::path::Path;

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
/// Bits of `CapEff`.
const CAP_SYS_ADMIN: u32 = 21;
const CAP_SYS_RESOURCE: u32 = 24;

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
        let Self { name, need, have, remedy, verdict } = self;
        write!(f, "{verdict}: {name}: need {need}, have {have}")?;
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
        Some(kernel(host)),
        Some(driver(host)),
        Some(rights(host)),
        Some(io_uring(host)),
        Some(nodes(host)),
        open_files(host, need),
        threads(host, need),
        tasks_of_group(host, need),
        mappings(host, need),
        device_limit(host, need),
    ];
    checks.into_iter().flatten().collect()
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

fn kernel(host: &Host) -> Check {
    let release = host.kernel_release();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u64>().ok());
    let version = (numbers.next().flatten(), numbers.next().flatten());
    let (old, aged) = match version {
        (Some(major), Some(minor)) => ((major, minor) < (6, 0), (major, minor) < (6, 9)),
        _ => (false, false),
    };
    Check::new("kernel", "6.0 or newer", release)
        .or(old, Verdict::Fail, "ublk came with Linux 6.0")
        .or(aged, Verdict::Warn, "from Linux 6.9 on many devices are removed much faster")
}

fn driver(host: &Host) -> Check {
    let known = host.has("/sys/class/misc/ublk-control");
    let there = host.has("/dev/ublk-control");
    Check::new("driver", "/dev/ublk-control", if there { "it" } else { "none" })
        .or(
            !there && known,
            Verdict::Fail,
            "the driver is there, its node is not: mount a devtmpfs",
        )
        .or(!there, Verdict::Fail, "load ublk_drv: modprobe ublk_drv")
}

fn rights(host: &Host) -> Check {
    let may = capable(host, CAP_SYS_ADMIN);
    Check::new("rights", "CAP_SYS_ADMIN", if may { "it" } else { "none" }).or(
        !may,
        Verdict::Fail,
        "run as root, or with AmbientCapabilities=CAP_SYS_ADMIN",
    )
}

fn io_uring(host: &Host) -> Check {
    let mode = host.number("/proc/sys/kernel/io_uring_disabled").unwrap_or(0);
    let admin = capable(host, CAP_SYS_ADMIN);
    let have = match mode {
        0 => "allowed".to_owned(),
        1 => format!("io_uring_disabled = 1, io_uring_group = {}", io_uring_group(host)),
        other => format!("io_uring_disabled = {other}"),
    };
    Check::new("io_uring", "allowed", have)
        .or(mode >= 2, Verdict::Fail, "sysctl kernel.io_uring_disabled=0")
        .or(mode == 1 && !admin, Verdict::Warn, "be root, or in the group of kernel.io_uring_group")
}

fn io_uring_group(host: &Host) -> String {
    host.text("/proc/sys/kernel/io_uring_group").unwrap_or_else(|| "none".to_owned())
}

/// Who makes the nodes. A devtmpfs is enough; udev adds links and rights.
fn nodes(host: &Host) -> Check {
    let mounts = host.text("/proc/self/mounts").unwrap_or_default();
    let devtmpfs = mounts.lines().any(|line| {
        let mut fields = line.split(' ').skip(1);
        fields.next() == Some("/dev") && fields.next() == Some("devtmpfs")
    });
    let udev = host.has("/run/udev/control");
    let have = match (devtmpfs, udev) {
        (true, true) => "devtmpfs and udev",
        (true, false) => "devtmpfs",
        (false, true) => "udev",
        (false, false) => "neither",
    };
    Check::new("device nodes", "devtmpfs or udev", have)
        .or(
            !devtmpfs && !udev,
            Verdict::Fail,
            "nobody makes /dev/ublkbN: mount a devtmpfs on /dev, or bind the host's",
        )
        .or(!udev, Verdict::Warn, "without udev there are no links in /dev/disk and no rules")
}

fn open_files(host: &Host, need: &Need) -> Option<Check> {
    let (soft, hard) = limit_of_process(host, "Max open files")?;
    let wanted = need.open_files();
    let have = format!("{} (hard limit {})", text(soft), text(hard));
    let remedy =
        format!("raise RLIMIT_NOFILE to {wanted}: LimitNOFILE={wanted}, or ulimit -n {wanted}");
    Some(Check::new("open files", wanted, have).or(wanted > soft, Verdict::Warn, remedy))
}

fn threads(host: &Host, need: &Need) -> Option<Check> {
    let wanted = need.threads();
    let running = host
        .text("/proc/loadavg")
        .and_then(|text| text.split_whitespace().nth(3)?.split_once('/')?.1.parse::<u64>().ok())
        .unwrap_or(0);
    let of_host = ["/proc/sys/kernel/threads-max", "/proc/sys/kernel/pid_max"]
        .map(|path| host.number(path).map(|most| (path, most.saturating_sub(running))));
    // Those who may override limits of resources are not bound by the user's.
    let free = capable(host, CAP_SYS_ADMIN) || capable(host, CAP_SYS_RESOURCE);
    let of_user = limit_of_process(host, "Max processes").filter(|_| !free);
    let of_user = of_user.map(|(soft, _)| ("RLIMIT_NPROC", soft));
    let (which, have) = of_host.into_iter().flatten().chain(of_user).min_by_key(|(_, n)| *n)?;
    let have_text = format!("{} by {which}", text(have));
    let remedy = format!("raise {which}, or use fewer queues");
    Some(Check::new("threads", wanted, have_text).or(wanted > have, Verdict::Warn, remedy))
}

/// Service managers bound the threads of a service with `pids.max`, often to a few thousand.
fn tasks_of_group(host: &Host, need: &Need) -> Option<Check> {
    let groups = host.text("/proc/self/cgroup")?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let bound = |group: &Path| {
        let folder = Path::new("/sys/fs/cgroup").join(group.strip_prefix("/").ok()?);
        host.number(folder.join("pids.max"))
    };
    // Those above bind as well.
    let most = Path::new(group).ancestors().filter_map(bound).min()?;
    let wanted = need.threads();
    Some(Check::new("tasks of the service", wanted, most).or(
        wanted > most,
        Verdict::Warn,
        format!("raise TasksMax= of the service ({group}) to {wanted}, or to infinity"),
    ))
}

fn mappings(host: &Host, need: &Need) -> Option<Check> {
    let most = host.number("/proc/sys/vm/max_map_count")?;
    let wanted = need.mappings();
    Some(Check::new("memory mappings", wanted, most).or(
        wanted > most,
        Verdict::Warn,
        format!("sysctl vm.max_map_count={wanted}, or use fewer queues"),
    ))
}

/// Only a warning: newer kernels bound with it the devices of users without rights alone.
fn device_limit(host: &Host, need: &Need) -> Option<Check> {
    let most = host.ublks_max()?;
    let used = host.ublk_devices().map_or(0, |ids| ids.len() as u64);
    let remedy = format!(
        "the kernel may refuse: raise /sys/module/ublk_drv/parameters/ublks_max to {}",
        used + need.devices
    );
    let have = format!("{most}, {used} of them used");
    let short = need.devices > most.saturating_sub(used);
    Some(Check::new("devices (ublks_max)", need.devices, have).or(short, Verdict::Warn, remedy))
}

fn capable(host: &Host, bit: u32) -> bool {
    let status = host.text("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    effective.is_some_and(|set| set & (1 << bit) != 0)
}

/// Soft and hard limit of a line of `/proc/self/limits`.
fn limit_of_process(host: &Host, name: &str) -> Option<(u64, u64)> {
    let limits = host.text("/proc/self/limits")?;
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    let mut words = line.split_whitespace().map(|word| match word {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    });
    Some((words.next()??, words.next()??))
}

fn text(limit: u64) -> String {
    if limit == u64::MAX { "unlimited".to_owned() } else { limit.to_string() }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io;

    use super::*;

    const NEED: Need = Need { devices: 70, queues: 140, target_files: 70, in_flight: 64 };

    /// A folder that looks like a host where everything is well.
    fn good_root() -> io::Result<tempfile::TempDir> {
        let root = tempfile::tempdir()?;
        for (path, text) in [
            ("dev/ublk-control", ""),
            ("run/udev/control", ""),
            ("proc/self/mounts", "udev /dev devtmpfs rw 0 0\n"),
            ("proc/self/status", "Name:\tx\nCapEff:\t000001ffffffffff\n"),
            (
                "proc/self/limits",
                "Limit Soft Hard Units\nMax open files  4096  524288  files\n\
                 Max processes  unlimited  unlimited  processes\n",
            ),
            ("proc/self/cgroup", "0::/system.slice/ublkd.service\n"),
            ("sys/fs/cgroup/system.slice/ublkd.service/pids.max", "max\n"),
            ("proc/loadavg", "0.00 0.01 0.05 1/100 4711\n"),
            ("proc/sys/kernel/osrelease", "7.3.4\n"),
            ("proc/sys/kernel/io_uring_disabled", "0\n"),
            ("proc/sys/kernel/threads-max", "60000\n"),
            ("proc/sys/kernel/pid_max", "4194304\n"),
            ("proc/sys/vm/max_map_count", "65530\n"),
            ("sys/module/ublk_drv/parameters/ublks_max", "128\n"),
            ("sys/class/ublk-char/ublkc0/dev", "240:0\n"),
        ] {
            write(root.path(), path, text)?;
        }
        Ok(root)
    }

    fn write(root: &Path, path: &str, text: &str) -> io::Result<()> {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap_or(root))?;
        fs::write(path, text)
    }

    /// The checks that are not ok.
    fn wrong(root: &Path) -> Vec<Check> {
        let checks = check(&Host::at(root), &NEED);
        checks.into_iter().filter(|check| check.verdict != Verdict::Ok).collect()
    }

    fn names(checks: &[Check]) -> Vec<(&str, Verdict)> {
        checks.iter().map(|check| (check.name, check.verdict)).collect()
    }

    #[test]
    fn f41_a_driver_without_a_module_is_fine() -> io::Result<()> {
        let root = good_root()?;
        assert_eq!(wrong(root.path()), []);
        // Built in: no parameters, no module.
        fs::remove_dir_all(root.path().join("sys/module"))?;
        assert_eq!(wrong(root.path()), []);
        Ok(())
    }

    #[test]
    fn f41_without_the_control_node_the_driver_has_to_be_loaded() -> io::Result<()> {
        let root = good_root()?;
        fs::remove_file(root.path().join("dev/ublk-control"))?;
        let checks = wrong(root.path());
        assert_eq!(names(&checks), [("driver", Verdict::Fail)]);
        assert!(checks[0].to_string().contains("load ublk_drv"), "{}", checks[0]);
        write(root.path(), "sys/class/misc/ublk-control/dev", "10:120\n")?;
        let checks = wrong(root.path());
        assert!(checks[0].remedy.contains("its node is not"), "{}", checks[0]);
        Ok(())
    }

    #[test]
    fn f41_without_udev_it_warns_and_without_devtmpfs_too_it_fails() -> io::Result<()> {
        let root = good_root()?;
        fs::remove_file(root.path().join("run/udev/control"))?;
        assert_eq!(names(&wrong(root.path())), [("device nodes", Verdict::Warn)]);
        write(root.path(), "proc/self/mounts", "tmpfs /dev tmpfs rw 0 0\n")?;
        let checks = wrong(root.path());
        assert_eq!(names(&checks), [("device nodes", Verdict::Fail)]);
        assert!(checks[0].remedy.contains("devtmpfs"), "{}", checks[0]);
        Ok(())
    }

    #[test]
    fn f31_a_switched_off_io_uring_is_found_before_any_device() -> io::Result<()> {
        let root = good_root()?;
        write(root.path(), "proc/sys/kernel/io_uring_disabled", "2\n")?;
        let checks = wrong(root.path());
        assert_eq!(names(&checks), [("io_uring", Verdict::Fail)]);
        assert!(checks[0].to_string().contains("kernel.io_uring_disabled"), "{}", checks[0]);
        // For all but the administrator.
        write(root.path(), "proc/sys/kernel/io_uring_disabled", "1\n")?;
        assert_eq!(wrong(root.path()), []);
        fs::remove_file(root.path().join("proc/sys/kernel/io_uring_disabled"))?;
        assert_eq!(wrong(root.path()), []);
        Ok(())
    }

    #[test]
    fn f28_open_files_are_counted_and_compared() -> io::Result<()> {
        let root = good_root()?;
        assert_eq!(NEED.open_files(), 256 + 70 + 2 * 140 + 70);
        let limits = "Max open files  64  64  files\nMax processes  10  10  processes\n";
        write(root.path(), "proc/self/limits", limits)?;
        let checks = wrong(root.path());
        assert_eq!(names(&checks), [("open files", Verdict::Warn)]);
        let text = checks[0].to_string();
        assert!(text.contains("need 676, have 64") && text.contains("RLIMIT_NOFILE"), "{text}");
        Ok(())
    }

    #[test]
    fn f25_too_many_devices_for_ublks_max_is_a_warning() -> io::Result<()> {
        let root = good_root()?;
        write(root.path(), "sys/module/ublk_drv/parameters/ublks_max", "64\n")?;
        let checks = wrong(root.path());
        assert_eq!(names(&checks), [("devices (ublks_max)", Verdict::Warn)]);
        assert!(
            checks[0].to_string().contains("need 70, have 64, 1 of them used"),
            "{}",
            checks[0]
        );
        Ok(())
    }

    #[test]
    fn threads_are_bound_by_the_host_the_user_and_the_service() -> io::Result<()> {
        let root = good_root()?;
        write(root.path(), "proc/sys/kernel/threads-max", "400\n")?;
        let checks = wrong(root.path());
        assert_eq!(names(&checks), [("threads", Verdict::Warn)]);
        assert!(checks[0].have.contains("300 by /proc/sys/kernel/threads-max"), "{}", checks[0]);

        let root = good_root()?;
        let group = "sys/fs/cgroup/system.slice/ublkd.service/pids.max";
        write(root.path(), group, "100\n")?;
        write(root.path(), "sys/fs/cgroup/system.slice/pids.max", "4000\n")?;
        let checks = wrong(root.path());
        assert_eq!(names(&checks), [("tasks of the service", Verdict::Warn)]);
        assert!(checks[0].remedy.contains("TasksMax="), "{}", checks[0]);

        let root = good_root()?;
        write(root.path(), "proc/self/status", "CapEff:\t0000000000000000\n")?;
        let limits = "Max open files  4096  4096  files\nMax processes  10  10  processes\n";
        write(root.path(), "proc/self/limits", limits)?;
        let checks = wrong(root.path());
        assert_eq!(names(&checks), [("rights", Verdict::Fail), ("threads", Verdict::Warn)]);
        assert!(checks[1].have.contains("RLIMIT_NPROC"), "{}", checks[1]);
        Ok(())
    }

    #[test]
    fn an_old_kernel_is_told() -> io::Result<()> {
        let root = good_root()?;
        for (release, verdict) in [
            ("5.10.0-8-amd64", Some(Verdict::Fail)),
            ("6.1.0", Some(Verdict::Warn)),
            ("6.12.5", None),
        ] {
            write(root.path(), "proc/sys/kernel/osrelease", release)?;
            let found = wrong(root.path()).first().map(|check| check.verdict);
            assert_eq!(found, verdict, "{release}");
        }
        Ok(())
    }

    #[test]
    fn the_real_host_can_be_checked() {
        let checks = check(&Host::default(), &NEED);
        assert!(checks.iter().any(|check| check.name == "open files"), "{checks:?}");
        assert!(checks.iter().all(|c| c.verdict == Verdict::Ok || !c.remedy.is_empty()));
    }

    #[test]
    fn f28_the_soft_limit_is_raised_to_the_hard_one() -> Result<(), Box<dyn std::error::Error>> {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        let small = Need { devices: 1, queues: 1, target_files: 0, in_flight: 1 };
        assert_eq!(raise_open_files(&small)?, hard);
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE)?.0, hard);
        Ok(())
    }
}
