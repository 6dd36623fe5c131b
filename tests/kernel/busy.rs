//! Devices that somebody does not let go, and hosts that are short of something.

use std::fs::{self, File};
use std::process::{Command as Process, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;
use ublkd::model::DeviceId;

use crate::daemon::text;
use crate::guest::{Guest, Outcome, devices, left, taken, until};

#[test]
fn f03_holders_delay_neither_the_others_nor_the_end_and_are_named() -> Outcome {
    let guest = Guest::new()?;
    let daemon = guest.start(
        r#"
        [supervisor]
        command_timeout = "30s"
        shutdown_timeout = "10s"
        [[device]]
        name = "vol-{n:02}"
        target = "null"
        size = "1G"
        count = 20
        [[device]]
        name = "mounted"
        target = "ram"
        size = "16M"
        "#,
    )?;
    let (held, mounted) = (daemon.id("vol-07")?, daemon.id("mounted")?);
    let ids: Vec<_> = (0..21).map(DeviceId).collect();
    assert_eq!(taken(&ids)?, ids);
    let mut holder = Process::new("sleep")
        .arg("600")
        .stdin(Stdio::from(File::open(daemon.node("vol-07")?)?))
        .spawn()?;
    guest.sh("mkfs.ext4 -q run/by-name/mounted; mkdir mnt; mount run/by-name/mounted mnt")?;

    let told = Instant::now();
    daemon.signal(Signal::SIGTERM)?;
    let others_gone = || taken(&ids).is_ok_and(|ids| ids.len() <= 2);
    assert!(until(Duration::from_secs(8), others_gone), "{:?} are left", taken(&ids));
    println!("19 devices were gone after {:?}", told.elapsed());
    let ended = daemon.wait()?;
    let took = told.elapsed();
    println!("and the daemon after {took:?}");
    assert!(took > Duration::from_secs(8) && took < Duration::from_secs(14), "{took:?}");
    assert_eq!(ended.status.code(), Some(3));
    assert_eq!((ended.count("deleted"), ended.count("timed_out")), (19, 2), "{:#}", ended.report);
    let pid = holder.id();
    for (name, id, holders) in [
        ("vol-07", held, json!([format!("pid {pid} (sleep) has it open")])),
        ("mounted", mounted, json!([format!("mounted at {}", guest.path("mnt").display())])),
    ] {
        let device = ended.device(name);
        assert_eq!((text(device, "outcome"), text(device, "stage")), ("timed_out", "release"));
        assert_eq!(device["holders"], holders);
        assert_eq!(device["left"], json!([format!("id {id} ({})", id.char_path())]));
        let line = ended.log.iter().find(|l| l["device"] == name && l["outcome"] == "timed_out");
        assert!(line.is_some(), "no line of the log names it: {:#?}", ended.log);
    }
    assert_eq!(ended.report["left"].as_array().map_or(0, Vec::len), 2);

    // The kernel has been told: it frees the ids when the holders let go.
    let within = Duration::from_secs(10);
    let mut still: Vec<_> = [held, mounted].into();
    still.sort();
    assert_eq!(taken(&ids)?, still);
    holder.kill()?;
    holder.wait()?;
    assert!(until(within, || taken(&ids).is_ok_and(|ids| ids == [mounted])));
    guest.sh("umount mnt")?;
    assert!(until(within, || taken(&ids).is_ok_and(|ids| ids.is_empty())));
    assert_eq!(left(), [""; 0]);
    Ok(())
}

#[test]
fn f10_a_second_sigterm_ends_it_at_once_and_names_what_is_abandoned() -> Outcome {
    let guest = Guest::new()?;
    let daemon = guest.start(
        r#"
        [[device]]
        name = "vol-{n}"
        target = "null"
        size = "1G"
        count = 3
        "#,
    )?;
    let (id, held) = (daemon.id("vol-1")?, File::open(daemon.node("vol-1")?)?);
    let ids: Vec<_> = (0..3).map(DeviceId).collect();
    let told = Instant::now();
    daemon.signal(Signal::SIGTERM)?;
    assert!(until(Duration::from_secs(8), || taken(&ids).is_ok_and(|ids| ids == [id])));
    // Two at once are one.
    std::thread::sleep(Duration::from_millis(400).saturating_sub(told.elapsed()));
    daemon.signal(Signal::SIGTERM)?;
    let ended = daemon.wait()?;
    assert_eq!(ended.status.code(), Some(4));
    assert!(ended.took < Duration::from_secs(5), "{:?}", ended.took);
    assert_eq!(ended.report["forced"], true);
    assert_eq!((ended.count("deleted"), ended.count("timed_out")), (2, 1), "{:#}", ended.report);
    assert_eq!(text(ended.device("vol-1"), "stage"), "release");
    drop(held);
    assert!(until(Duration::from_secs(10), || taken(&ids).is_ok_and(|ids| ids.is_empty())));
    assert_eq!(left(), [""; 0]);
    Ok(())
}

/// Root without the right to raise hard limits, under a limit on open files.
fn short_of_files(limit: u32) -> [String; 5] {
    [
        "setpriv".to_owned(),
        "--bounding-set=-sys_resource".to_owned(),
        "--inh-caps=-sys_resource".to_owned(),
        "prlimit".to_owned(),
        format!("--nofile={limit}:{limit}"),
    ]
}

#[test]
fn f28_running_out_of_open_files_fails_only_the_devices_that_need_them() -> Outcome {
    let guest = Guest::new()?;
    let wrapper = short_of_files(100);
    let wrapper: Vec<_> = wrapper.iter().map(String::as_str).collect();
    let began = Instant::now();
    let mut daemon = guest.launch(
        &wrapper,
        r#"
        [supervisor]
        workers = 4
        [[device]]
        name = "vol-{n:02}"
        target = "null"
        size = "1G"
        depth = 16
        count = 40
        "#,
        &[],
    )?;
    let (up, failed) = daemon.in_service()?;
    println!("{up} up, {failed} failed, after {:?}", began.elapsed());
    assert!(up > 10 && failed > 5 && up + failed == 40, "{up} {failed}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!(devices() as u64, up, "half a device is left");
    let log = daemon.log();
    let failures: Vec<_> = log
        .iter()
        .filter(|line| text(line, "level") == "error" && text(line, "msg").contains("start failed"))
        .collect();
    assert_eq!(failures.len() as u64, failed, "{failures:#?}");
    for line in &failures {
        let told = text(line, "msg");
        for part in ["RLIMIT_NOFILE", "need", "100"] {
            assert!(told.contains(part), "no {part:?} in {told:?}");
        }
    }
    println!("{}", text(failures[0], "msg"));
    // Those that are up work.
    let links = fs::read_dir(guest.path("run/by-name"))?.count() as u64;
    assert_eq!(links, up);
    guest.sh("for d in run/by-name/*; do dd if=$d of=/dev/null bs=4k count=1 iflag=direct status=none; done")?;
    let ended = daemon.stop()?;
    assert_eq!((ended.count("deleted"), ended.count("failed")), (up, failed));
    let devices = ended.report["devices"].as_array().ok_or("no devices")?;
    for device in devices.iter().filter(|device| device["outcome"] == "failed") {
        // It did not wait for files to become free.
        let stages = device["stages"].as_object().ok_or("no stages")?;
        let time: f64 = stages.iter().filter(|s| s.0 != "wait").filter_map(|s| s.1.as_f64()).sum();
        assert!(time < 5.0, "{device:#}");
    }
    Ok(())
}
