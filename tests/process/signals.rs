//! What each signal does, at any time.

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal::{self, SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use nix::sys::signal::{kill, killpg};
use nix::unistd::{Pid, geteuid, getpgid, getsid};

use crate::support::{Daemon, Ended, Scene, bare, eventually};

/// Stop signals that come within 250 ms are one.
const SAME_SIGNAL: Duration = Duration::from_millis(300);

#[test]
fn f11_term_and_int_are_orderly_and_named() {
    for (signal, name) in [(SIGTERM, "SIGTERM"), (SIGINT, "SIGINT")] {
        let scene = Scene::nulls(3);
        let daemon = scene.up(&[]);
        daemon.signal(signal);
        let ended = daemon.ends().with_status(0);
        ended.saying(&[&format!("{name}: orderly shutdown"), "stopping 3 devices"]);
        assert_eq!(scene.report()["outcomes"]["deleted"], 3);
    }
}

#[test]
fn f10_a_second_signal_forces_the_end_and_names_what_is_abandoned() {
    for (first, second, name) in [(SIGTERM, SIGTERM, "SIGTERM"), (SIGTERM, SIGINT, "SIGINT")] {
        let scene = Scene::nulls(4);
        let daemon = scene.up(&["--fault", "stop@1: hang"]);
        daemon.signal(first);
        daemon.says("stopping 4 devices");
        eventually("three devices gone", || daemon.lines("INFO gone").len() == 3);
        std::thread::sleep(SAME_SIGNAL);
        daemon.signal(second);
        // Far below the command timeout, which would end it as well.
        let ended = daemon.ends_within(Duration::from_secs(8)).with_status(4);
        let ended = ended.saying(&[&format!("{name} again: the end is forced")]);
        let report = scene.report();
        let devices = report["devices"].as_array().unwrap();
        let late: Vec<_> = devices.iter().filter(|d| d["outcome"] == "timed_out").collect();
        assert_eq!(late.len(), 1, "{report}");
        assert_eq!(late[0]["stage"], "stop");
        let name = late[0]["name"].as_str().unwrap();
        let abandoned = ended.lines("abandoned in stage stop");
        assert!(abandoned.len() == 1 && abandoned[0].contains(name), "{abandoned:?}");
        assert!(report["left"][0].as_str().unwrap().starts_with(name), "{report}");
        assert_eq!(report["outcomes"]["deleted"], 3);
    }
}

#[test]
fn a_second_signal_right_after_the_first_is_the_same_one() {
    let scene = Scene::nulls(2);
    let daemon = scene.up(&["--fault", "stop: delay 1s"]);
    daemon.signal(SIGTERM);
    daemon.signal(SIGINT);
    let ended = daemon.ends().with_status(0);
    assert!(ended.lines("again").is_empty(), "{}", ended.stderr);
}

#[test]
fn f91_usr1_logs_the_state_of_every_device() {
    let scene = Scene::nulls(3);
    let daemon = scene.up(&["--fault", "start@2: EIO"]);
    daemon.signal(SIGUSR1);
    daemon.says("SIGUSR1: 3 devices");
    eventually("a line each", || {
        daemon.lines("INFO device, component: daemon, device: ").len() == 3
    });
    let lines = daemon.lines("INFO device, component: daemon, device: ");
    let live: Vec<_> = lines.iter().filter(|line| line.contains("state: live")).collect();
    assert_eq!(live.len(), 2, "{lines:?}");
    for line in live {
        for part in ["id: ", "node: /dev/ublkb", "target: null", "size: 1048576", "tids: ["] {
            assert!(line.contains(part), "no {part:?} in {line}");
        }
    }
    let failed: Vec<_> = lines.iter().filter(|line| line.contains("state: failed")).collect();
    assert!(failed.len() == 1 && failed[0].contains("START_DEV"), "{lines:?}");
    daemon.terminate().with_status(0);
}

#[test]
fn term_in_the_middle_of_a_start_leaves_nothing() {
    let scene = Scene::nulls(500);
    let slow = ["--fault", "add: delay 50ms", "--set", "supervisor.workers=16"];
    let daemon = scene.start(&slow);
    eventually("twenty devices up", || daemon.lines("INFO in service").len() >= 20);
    let ended = daemon.terminate().with_status(0);
    assert!(ended.lines(crate::support::IN_SERVICE).is_empty(), "all had been started already");
    let report = scene.report();
    let devices = report["devices"].as_array().unwrap();
    let names: BTreeSet<_> = devices.iter().map(|d| d["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), devices.len(), "a device is in the report twice");
    let count = |kind: &str| report["outcomes"][kind].as_u64().unwrap();
    assert!(count("deleted") >= 20, "{}", report["outcomes"]);
    assert_eq!(count("deleted") + count("failed"), devices.len() as u64, "{}", report["outcomes"]);
    assert_eq!(report["left"].as_array().unwrap().len(), 0);
    assert_eq!(scene.links(), Vec::<String>::new());
}

#[test]
fn a_burst_of_signals_that_do_not_stop_it_is_harmless() {
    let scene = Scene::nulls(20);
    let daemon = scene.up(&[]);
    for _ in 0..50 {
        daemon.signal(SIGHUP);
        daemon.signal(SIGUSR1);
    }
    daemon.says("SIGHUP");
    daemon.says("SIGUSR1: 20 devices");
    daemon.terminate().with_status(0);
}

/// Runs a scene as PID 1 of a namespace of its own.
fn as_pid_1(scene: &Scene) -> Daemon {
    let run = scene.run(&[]);
    let mut command = bare(Path::new("unshare"));
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
    if !geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command.arg(run.get_program()).args(run.get_args());
    command.current_dir(run.get_current_dir().unwrap());
    Daemon::spawn(&mut command)
}

/// The only child of a process.
fn child_of(parent: Pid) -> Pid {
    let text = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    Pid::from_raw(text.trim().parse().unwrap())
}

#[test]
fn f11_as_pid_1_term_and_int_end_it_and_hup_does_not() {
    let end_by = |signal: Signal| -> Ended {
        let scene = Scene::nulls(3);
        let daemon = as_pid_1(&scene);
        daemon.says(crate::support::IN_SERVICE);
        let inner = child_of(daemon.pid());
        kill(inner, SIGHUP).unwrap();
        daemon.says("SIGHUP: the config is read again");
        kill(inner, signal).unwrap();
        let ended = daemon.ends().with_status(0);
        assert_eq!(scene.report()["outcomes"]["deleted"], 3);
        ended
    };
    end_by(SIGTERM).saying(&["SIGTERM: orderly shutdown"]);
    end_by(SIGINT).saying(&["SIGINT: orderly shutdown"]);
}

#[test]
fn a_signal_to_its_whole_group_is_one_signal() {
    let scene = Scene::nulls(3);
    let daemon = Daemon::spawn(scene.run(&[]).process_group(0));
    daemon.says(crate::support::IN_SERVICE);
    assert_eq!(getpgid(Some(daemon.pid())).unwrap(), daemon.pid());
    killpg(daemon.pid(), SIGTERM).unwrap();
    let ended = daemon.ends().with_status(0);
    assert_eq!(ended.lines("again").len(), 0, "{}", ended.stderr);
}

#[test]
fn it_runs_in_a_session_of_its_own_and_outlives_nobody() {
    let scene = Scene::nulls(3);
    let run = scene.run(&[]);
    let mut command = bare(Path::new("setsid"));
    command.arg(run.get_program()).args(run.get_args());
    command.current_dir(run.get_current_dir().unwrap());
    let daemon = Daemon::spawn(&mut command);
    daemon.says(crate::support::IN_SERVICE);
    assert_eq!(getsid(Some(daemon.pid())).unwrap(), daemon.pid(), "it made no session by itself");
    daemon.terminate().with_status(0);
}
