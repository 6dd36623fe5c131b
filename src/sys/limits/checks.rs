//! The checks, one a function: where each fact is read and what is to be done when it is short.

use std::fs;
use std::path::Path;

use super::{Check, Need, Verdict};
use crate::sys::host::Host;

/// Bits of `CapEff`.
const CAP_SYS_ADMIN: u32 = 21;
const CAP_SYS_RESOURCE: u32 = 24;

pub(super) fn kernel(host: &Host) -> Check {
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

pub(super) fn driver(host: &Host) -> Check {
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

pub(super) fn rights(host: &Host) -> Check {
    let may = capable(host, CAP_SYS_ADMIN);
    Check::new("rights", "CAP_SYS_ADMIN", if may { "it" } else { "none" }).or(
        !may,
        Verdict::Fail,
        "run as root, or with AmbientCapabilities=CAP_SYS_ADMIN",
    )
}

pub(super) fn io_uring(host: &Host) -> Check {
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
pub(super) fn nodes(host: &Host) -> Check {
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

/// Who ends last. The file systems of a mount namespace are unmounted by the last process to end; if
/// that is this one and they are on its own devices, the unmount waits for I/O that nobody serves
/// (fault F15). Process 1 ends after us, and a namespace of our own has no such mounts.
pub(super) fn mount_namespace(host: &Host) -> Option<Check> {
    let of = |pid: &str| fs::read_link(host.path(format!("/proc/{pid}/ns/mnt"))).ok();
    let (ours, first) = (of("self")?, of("1")?);
    let check = |have: String| Check::new("mount namespace", "one that outlives ublkd", have);
    if ours == first {
        return Some(check("that of process 1".to_owned()));
    }
    let own = std::process::id().to_string();
    let pids = fs::read_dir(host.path("/proc")).ok()?.flatten();
    let mut pids = pids.filter_map(|entry| entry.file_name().into_string().ok());
    let other = pids.find(|pid| {
        let process = pid.bytes().all(|byte| byte.is_ascii_digit());
        process && *pid != own && of(pid).as_ref() == Some(&ours)
    });
    Some(match other {
        None => check("its own, without other processes".to_owned()),
        Some(pid) => {
            let name = host.text(format!("/proc/{pid}/comm")).unwrap_or_default();
            check(format!("one shared with pid {pid} ({name})")).or(
                true,
                Verdict::Warn,
                "mount none of its devices there: if ublkd ends last, its end waits for the \
                 unmount and the unmount for ublkd; or give it a namespace of its own (unshare \
                 --mount, PrivateMounts=yes)",
            )
        }
    })
}

pub(super) fn open_files(host: &Host, need: &Need) -> Option<Check> {
    let (soft, hard) = limit_of_process(host, "Max open files")?;
    let wanted = need.open_files();
    let have = format!("{} (hard limit {})", text(soft), text(hard));
    let remedy =
        format!("raise RLIMIT_NOFILE to {wanted}: LimitNOFILE={wanted}, or ulimit -n {wanted}");
    Some(Check::new("open files", wanted, have).or(wanted > soft, Verdict::Warn, remedy))
}

pub(super) fn threads(host: &Host, need: &Need) -> Option<Check> {
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
pub(super) fn tasks_of_group(host: &Host, need: &Need) -> Option<Check> {
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

pub(super) fn mappings(host: &Host, need: &Need) -> Option<Check> {
    let most = host.number("/proc/sys/vm/max_map_count")?;
    let wanted = need.mappings();
    Some(Check::new("memory mappings", wanted, most).or(
        wanted > most,
        Verdict::Warn,
        format!("sysctl vm.max_map_count={wanted}, or use fewer queues"),
    ))
}

/// Only a warning: newer kernels bound with it the devices of users without rights alone.
pub(super) fn device_limit(host: &Host, need: &Need) -> Option<Check> {
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
