//! What others do: programs that delete our devices, hosts that lack something, namespaces.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command as Process, Stdio};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use nix::libc;
use nix::sys::signal::Signal;
use serde_json::Value;
use ublkd::model::{DeleteOutcome, OutcomeKind, TargetSpec};

use crate::daemon::{UBLKD, text};
use crate::guest::{Guest, Outcome, delete_from_outside, devices, end_of, left, until};
use crate::house::{builder, shut_down, spec};

const THREE: &str = r#"
    [[device]]
    name = "vol-{n}"
    target = "null"
    size = "1G"
    count = 3
"#;

#[test]
fn f14_a_device_that_another_program_deletes_harms_no_other() -> Outcome {
    let guest = Guest::new()?;
    // Between STOP and DEL.
    let mut daemon = guest.launch(&[], THREE, &["--fault", "del_async@*: delay 2s"])?;
    daemon.in_service()?;
    let id = daemon.id("vol-1")?;
    daemon.signal(Signal::SIGTERM)?;
    let stopped = || !fs::exists(format!("/sys/block/ublkb{id}")).unwrap_or(true);
    assert!(until(Duration::from_secs(10), stopped));
    delete_from_outside(id)?;
    let ended = daemon.wait()?;
    ended.is_clean(guest.folder())?;
    // The kernel lets a device be deleted twice as long as its server has it open.
    let well = ended.count("deleted") + ended.count("already_gone");
    assert_eq!(well, 3, "{:#}", ended.report);
    assert!(ended.errors().is_empty(), "{:#?}", ended.errors());

    // While it is in service: that one has failed, and why is told; the others go on.
    let daemon = guest.start(THREE)?;
    delete_from_outside(daemon.id("vol-1")?)?;
    let unlinked = || !fs::exists(daemon.link("vol-1")).unwrap_or(true);
    assert!(until(Duration::from_secs(10), unlinked), "{}", daemon.log_text());
    guest.sh("for d in run/by-name/vol-[02]; do
            dd if=$d of=/dev/null bs=4k count=1 iflag=direct status=none
        done")?;
    let ended = daemon.stop()?;
    assert_eq!((ended.count("deleted"), ended.count("failed")), (2, 1), "{:#}", ended.report);
    let told = text(ended.device("vol-1"), "error");
    assert!(told.contains("somebody else stopped the device"), "{told}");
    Ok(())
}

#[test]
fn f14_deleting_twice_is_no_failure() -> Outcome {
    let _guest = Guest::new()?;
    let running = builder().start()?;
    let handle = running.handle();
    let name = block_on(handle.create(spec("vol", TargetSpec::Null { size: 1 << 20 })?))?.name;
    let both = futures::future::join(handle.delete(&name), handle.delete(&name));
    let (first, second) = block_on(both);
    for outcome in [first?, second?] {
        let DeleteOutcome::Ended(outcome) = outcome else { return Err("never there".into()) };
        assert_eq!(outcome.outcome, OutcomeKind::Deleted);
    }
    assert!(matches!(block_on(handle.delete(&name))?, DeleteOutcome::Absent));
    shut_down(running)?;
    Ok(())
}

#[test]
fn f15_a_file_system_in_the_namespace_of_its_own_daemon_is_told_and_bounded() -> Outcome {
    let guest = Guest::new()?;
    let config = r#"
        [supervisor]
        command_timeout = "3s"
        [[device]]
        name = "vol"
        target = "ram"
        size = "16M"
    "#;
    fs::write(guest.path("ublkd.toml"), config)?;
    fs::create_dir(guest.path("mnt"))?;
    // A shell alone in a namespace with its daemon.
    let life = |wrapper: &str, end: &str| {
        let script = format!(
            "{wrapper} {UBLKD} run -c ublkd.toml --set supervisor.run_dir=$PWD/run \\
                --report report.json 2>log &
            daemon=$!
            for _ in $(seq 200); do test -e run/by-name/vol && break; sleep 0.1; done
            mkfs.ext4 -q run/by-name/vol
            mount run/by-name/vol mnt
            echo text > mnt/file
            {end}"
        );
        Process::new("timeout")
            .args(["--signal=KILL", "60", "unshare", "--mount", "bash", "-euc", &script])
            .current_dir(guest.folder())
            .stderr(Stdio::null())
            .status()
    };
    let warned =
        || fs::read_to_string(guest.path("log")).map(|log| log.contains("shared with pid"));

    // The danger is told, and an orderly end is bounded and says what is in the way.
    let status = life("", "kill -TERM $daemon; wait $daemon")?;
    assert!(warned()?, "{}", fs::read_to_string(guest.path("log"))?);
    assert_eq!(status.code(), Some(3), "{}", fs::read_to_string(guest.path("log"))?);
    let report: Value = serde_json::from_slice(&fs::read(guest.path("report.json"))?)?;
    let holders = report["devices"][0]["holders"].as_array().ok_or("no holders")?;
    let place = format!("mounted at {}", guest.path("mnt").display());
    assert_eq!(holders, &[Value::from(place)]);
    assert!(until(Duration::from_secs(10), || left().is_empty()));

    // In a namespace of its own it may even be killed: the shell is the last of the other one, and
    // the kernel fails the I/O of its unmount.
    let status = life("unshare --mount --propagation private", "kill -KILL $daemon; exit 7")?;
    assert_eq!(status.code(), Some(7), "{status:?}");
    assert!(!warned()?);
    assert!(until(Duration::from_secs(30), || !fs::exists("/sys/block/ublkb0").unwrap_or(true)));
    assert_eq!(waiting_for_ever(), [""; 0]);
    Ok(())
}

/// Processes in uninterruptible sleep that have to do with our devices.
fn waiting_for_ever() -> Vec<String> {
    let stuck = |pid: &str| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (name, rest) = stat.rsplit_once(')')?;
        let ours = ["ublk", "dd", "fio", "umount", "bash"].iter().any(|word| name.contains(word));
        (rest.trim_start().starts_with('D') && ours).then_some(stat)
    };
    let all = || -> Vec<String> {
        let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
        pids.filter_map(|pid| stuck(&pid.file_name().to_string_lossy())).collect()
    };
    until(Duration::from_secs(10), || all().is_empty());
    all()
}

#[test]
fn f52_a_daemon_that_is_killed_under_load_leaves_devices_that_can_be_deleted() -> Outcome {
    let guest = Guest::new()?;
    let daemon = guest.start(
        r#"
        [[device]]
        name = "vol-{n}"
        target = "ram"
        size = "16M"
        count = 2
        queues = 2
        "#,
    )?;
    let mut load = Vec::new();
    for name in ["vol-0", "vol-1"] {
        let filename = format!("--filename={}", daemon.node(name)?.display());
        load.push(
            Process::new("fio")
                .args(["--name=load", "--rw=randrw", "--bs=4k", "--iodepth=32", "--direct=1"])
                .args(["--time_based", "--runtime=60", "--size=16M", "--ioengine=libaio"])
                // A node that is gone must not come back as a file.
                .args(["--allow_file_create=0", &filename])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?,
        );
    }
    let (first, second) = (daemon.id("vol-0")?, daemon.id("vol-1")?);
    let reads = |id| {
        let stat = fs::read_to_string(format!("/sys/block/ublkb{id}/stat")).unwrap_or_default();
        stat.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0)
    };
    assert!(until(Duration::from_secs(60), || reads(first) > 100 && reads(second) > 100));
    daemon.signal(Signal::SIGKILL)?;
    delete_from_outside(first)?;
    let ended = daemon.wait()?;
    assert_eq!(ended.status.signal(), Some(libc::SIGKILL));
    std::thread::sleep(Duration::from_secs(1));
    delete_from_outside(second)?;
    for (fio, name) in load.iter_mut().zip(["vol-0", "vol-1"]) {
        let status = end_of(fio, &format!("fio on {name}"))?;
        assert!(!status.success(), "{name}: fio saw no error");
    }
    assert!(until(Duration::from_secs(30), || left().is_empty()), "{:?}", left());
    assert_eq!(waiting_for_ever(), [""; 0]);
    // The same numbers again, and the links of the dead daemon are gone.
    let daemon = guest.start(THREE)?;
    assert_eq!(fs::read_dir(guest.path("run/by-name"))?.count(), 3);
    assert_eq!(daemon.id("vol-0")?.0 + daemon.id("vol-1")?.0 + daemon.id("vol-2")?.0, 3);
    daemon.stop()?;
    Ok(())
}

#[test]
fn f25_the_limit_of_the_driver_is_named_where_the_kernel_has_one() -> Outcome {
    const LIMIT: &str = "/sys/module/ublk_drv/parameters/ublks_max";
    let guest = Guest::new()?;
    let before = fs::read_to_string(LIMIT)?;
    fs::write(LIMIT, "8")?;
    let config = THREE.replace("count = 3", "count = 10");
    let tried = guest.launch(&[], &config, &[]).and_then(|mut daemon| {
        let counts = daemon.in_service()?;
        Ok((daemon, counts))
    });
    fs::write(LIMIT, before)?;
    let (daemon, (up, failed)) = tried?;
    println!("{up} of 10 devices under a limit of 8");
    let log = daemon.log();
    let told = |word: &str| {
        let lines = log.iter().filter(|line| text(line, "level") == "error");
        lines.filter(|line| text(line, "msg").contains(word)).count() as u64
    };
    match up {
        // Newer kernels bound the devices of users without rights only.
        10 => assert_eq!((failed, told("ublks_max")), (0, 0)),
        up => {
            assert_eq!((up, failed), (8, 2));
            assert_eq!(told("ublks_max is 8 and 8 devices exist"), 2, "{log:#?}");
        }
    }
    assert_eq!(devices() as u64, up);
    let ended = daemon.stop()?;
    assert_eq!((ended.count("deleted"), ended.count("failed")), (up, failed));
    Ok(())
}

#[test]
fn f31_a_switched_off_io_uring_is_told_once() -> Outcome {
    const SWITCH: &str = "/proc/sys/kernel/io_uring_disabled";
    let guest = Guest::new()?;
    let before = fs::read_to_string(SWITCH)?;
    fs::write(SWITCH, "2")?;
    let config = THREE.replace("count = 3", "count = 200");
    let tried = guest.launch(&[], &config, &[]).and_then(|daemon| daemon.wait());
    fs::write(SWITCH, before)?;
    let ended = tried?;
    assert_eq!(ended.status.code(), Some(1));
    let errors = ended.errors();
    assert_eq!(errors.len(), 1, "{errors:#?}");
    assert!(text(errors[0], "msg").contains("kernel.io_uring_disabled"), "{errors:#?}");
    assert_eq!(left(), [""; 0]);
    Ok(())
}

#[test]
fn f41_hosts_without_driver_or_nodes_are_told_once_and_without_udev_it_works() -> Outcome {
    let guest = Guest::new()?;
    // An empty /dev: the driver is loaded and its node is not there.
    let script =
        "mount -t tmpfs none /dev; for node in null zero; do touch /dev/$node; done; exec \"$@\"";
    let wrapper = ["unshare", "--mount", "bash", "-euc", script, "--"];
    let ended = guest.launch(&wrapper, THREE, &[])?.wait()?;
    assert_eq!(ended.status.code(), Some(1));
    let errors = ended.errors();
    let lines: Vec<_> = errors.iter().map(|line| text(line, "msg")).collect();
    println!("{lines:#?}");
    assert!(lines[0].contains("driver") && lines[0].contains("devtmpfs"), "{lines:#?}");
    assert!(lines.len() <= 2, "{lines:#?}");

    let began = Instant::now();
    let daemon = guest.start(THREE)?;
    let udev = fs::exists("/run/udev/control")?;
    let warnings = daemon.log().iter().filter(|l| text(l, "msg").contains("without udev")).count();
    assert_eq!(warnings, usize::from(!udev), "after {:?}", began.elapsed());
    daemon.stop()?;
    Ok(())
}
