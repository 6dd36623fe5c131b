//! Many devices of one daemon: all come up, all go, and how long that takes.

use std::process::Command as Process;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::daemon::UBLKD;
use crate::guest::{Guest, Outcome, devices};

fn fleet(count: usize, workers: usize) -> String {
    format!(
        r#"
        [supervisor]
        workers = {workers}
        command_timeout = "60s"
        shutdown_timeout = "180s"
        [[device]]
        name = "vol-{{n:04}}"
        target = "null"
        size = "1G"
        depth = 16
        max_io = "64K"
        count = {count}
        "#
    )
}

/// Brings a fleet up and down; gives the seconds of each.
fn life(
    guest: &Guest,
    count: usize,
    workers: usize,
) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    let began = Instant::now();
    let daemon = guest.start(&fleet(count, workers))?;
    let up = began.elapsed().as_secs_f64();
    assert_eq!(devices(), count);
    let ended = daemon.stop()?;
    assert_eq!(ended.count("deleted"), count as u64, "{:#}", ended.report["outcomes"]);
    let down = ended.report["wall_s"].as_f64().ok_or("no wall_s")?;
    println!("{count} null devices, {workers} workers: up in {up:.2} s, down in {down:.2} s");
    for (stage, times) in ended.report["stages"].as_object().ok_or("no stages")? {
        println!(
            "  {stage:8} p50 {:.4} p99 {:.4} max {:.4}",
            times["p50"], times["p99"], times["max"]
        );
    }
    Ok((up, down))
}

/// Its own guest counts instructions as time (tests/kernel/run), so that the ratio says what the
/// program does and not how busy the host is.
#[test]
fn f27_a_thousand_devices_come_and_go_and_workers_make_it_faster() -> Outcome {
    let guest = Guest::new()?;
    let (_, one) = life(&guest, 1000, 1)?;
    let (_, sixteen) = life(&guest, 1000, 16)?;
    let ratio = one / sixteen;
    println!("shutdown with 1 worker took {ratio:.2} times as long as with 16");
    // With several emulated processors on a busy host the host is what is measured.
    let least = if std::thread::available_parallelism()?.get() == 1 { 4.0 } else { 1.5 };
    assert!(ratio > least, "{ratio}");
    Ok(())
}

/// Its own guest has 8 GiB (tests/kernel/run).
#[test]
fn f27_four_thousand_devices_come_serve_and_go() -> Outcome {
    let guest = Guest::new()?;
    let began = Instant::now();
    let daemon = guest.start(
        r#"
        [supervisor]
        command_timeout = "60s"
        shutdown_timeout = "180s"
        [[device]]
        name = "vol-{n}"
        target = "ram"
        size = "1M"
        depth = 16
        max_io = "64K"
        count = 4000
        "#,
    )?;
    println!("4000 devices: up in {:.2} s", began.elapsed().as_secs_f64());
    assert_eq!(devices(), 4000);
    guest.sh("sample=$(seq 0 250 3999)
        for n in $sample; do head -c 1M /dev/urandom > data-$n; done
        for n in $sample; do
            dd if=data-$n of=run/by-name/vol-$n bs=64K oflag=direct status=none
        done
        for n in $sample; do
            dd if=run/by-name/vol-$n bs=64K iflag=direct status=none | cmp - data-$n
        done")?;
    let ended = daemon.stop()?;
    assert_eq!(ended.count("deleted"), 4000, "{:#}", ended.report["outcomes"]);
    println!("down in {} s", ended.report["wall_s"]);
    Ok(())
}

#[test]
fn f27_five_hundred_devices_come_up_with_many_workers() -> Outcome {
    let guest = Guest::new()?;
    for workers in [8, 64] {
        life(&guest, 500, workers)?;
    }
    Ok(())
}

#[test]
fn f42_f51_devices_are_listed_as_json_and_nothing_else() -> Outcome {
    let guest = Guest::new()?;
    // Numbers that are no list from 0 on.
    let daemon = guest.start(
        r#"
        [defaults]
        target = "null"
        size = "1M"
        [[device]]
        name = "first"
        id = 0
        [[device]]
        name = "far"
        id = 129
        [[device]]
        name = "farther-{n}"
        id = 70000
        count = 2
        "#,
    )?;
    let run_dir = guest.path("run");
    let list = |more: &[&str]| {
        let mut command = Process::new(UBLKD);
        command.args(["list", "--kernel", "--run-dir"]).arg(&run_dir).args(more).output()
    };
    let table = list(&[])?;
    let list = list(&["-o", "json"])?;
    assert!(list.status.success());
    assert_eq!(String::from_utf8_lossy(&list.stderr), "");
    let list: Value = serde_json::from_slice(&list.stdout)?;
    let list = list["items"].as_array().ok_or("no items")?;
    let told: Vec<_> = list.iter().map(|d| (d["name"].as_str(), d["id"].as_u64())).collect();
    let expected = [("first", 0), ("far", 129), ("farther-0", 70000), ("farther-1", 70001)];
    assert_eq!(told, expected.map(|(name, id)| (Some(name), Some(id))));
    assert!(list.iter().all(|device| device["state"] == "live"), "{list:#?}");
    assert!(String::from_utf8_lossy(&table.stdout).contains("farther-1"));
    daemon.stop()?;
    Ok(())
}

#[test]
fn f32_signals_at_1_khz_disturb_nothing_and_delay_no_stop() -> Outcome {
    let guest = Guest::new()?;
    let mut daemon = guest.launch(&[], &fleet(100, 16), &[])?;
    let storm = |daemon: &mut crate::daemon::Daemon, time: Duration| -> Outcome {
        let end = Instant::now() + time;
        while Instant::now() < end && !daemon.has_ended() {
            daemon.signal(Signal::SIGUSR1)?;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    };
    // From before it handles signals the first would be the end of it.
    assert!(crate::guest::until(Duration::from_secs(20), || devices() > 0));
    storm(&mut daemon, Duration::from_secs(2))?;
    assert_eq!(daemon.in_service()?, (100, 0));
    storm(&mut daemon, Duration::from_secs(1))?;
    daemon.signal(Signal::SIGTERM)?;
    let told = Instant::now();
    storm(&mut daemon, Duration::from_secs(60))?;
    println!("the end took {:?}", told.elapsed());
    let ended = daemon.wait()?;
    ended.is_clean(guest.folder())?;
    assert_eq!(ended.count("deleted"), 100);
    Ok(())
}
