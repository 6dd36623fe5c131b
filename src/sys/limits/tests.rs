//! On folders that look like hosts.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

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
fn f15_a_mount_namespace_that_may_end_with_ublkd_is_told() -> io::Result<()> {
    let root = good_root()?;
    let process = |pid: &str, namespace: &str| {
        let folder = root.path().join("proc").join(pid).join("ns");
        fs::create_dir_all(&folder)?;
        symlink(namespace, folder.join("mnt"))
    };
    process("1", "mnt:[1]")?;
    process("self", "mnt:[2]")?;
    process("4711", "mnt:[1]")?;
    process(&std::process::id().to_string(), "mnt:[2]")?;
    assert_eq!(wrong(root.path()), [], "a namespace of its own");

    process("4712", "mnt:[2]")?;
    write(root.path(), "proc/4712/comm", "bash\n")?;
    let checks = wrong(root.path());
    assert_eq!(names(&checks), [("mount namespace", Verdict::Warn)]);
    assert!(checks[0].have.contains("shared with pid 4712 (bash)"), "{}", checks[0]);

    fs::remove_file(root.path().join("proc/1/ns/mnt"))?;
    process("1", "mnt:[2]")?;
    assert_eq!(wrong(root.path()), [], "that of process 1");
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
    assert!(checks[0].to_string().contains("need 70, have 64, 1 of them used"), "{}", checks[0]);
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
    for (release, verdict) in
        [("5.10.0-8-amd64", Some(Verdict::Fail)), ("6.1.0", Some(Verdict::Warn)), ("6.12.5", None)]
    {
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
