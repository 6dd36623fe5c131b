//! Host limits: files run out in the middle of a start; a host without a driver.

use std::path::Path;
use std::process::Command;

use nix::unistd::geteuid;

use crate::support::{Daemon, Scene, bare, output};

/// `command` after `preparation` in the same process.
fn prepared(command: &Command, preparation: &str) -> Command {
    let mut shell = bare(Path::new("sh"));
    shell.arg("-c").arg(format!("{preparation}; exec \"$0\" \"$@\""));
    shell.arg(command.get_program()).args(command.get_args());
    shell.current_dir(command.get_current_dir().unwrap());
    shell
}

#[test]
fn f28_devices_that_get_no_files_fail_alone_with_need_and_have() {
    let scene = Scene::nulls(40);
    let daemon = Daemon::spawn(&mut prepared(&scene.run(&[]), "ulimit -n 64"));
    daemon.says(crate::support::IN_SERVICE);
    let up = daemon.lines("INFO in service").len();
    let failed = daemon.lines("start failed");
    assert!(up >= 10 && failed.len() >= 5, "{up} up, {} failed", failed.len());
    assert_eq!(up + failed.len(), 40);
    for line in &failed {
        for part in ["device: d", "RLIMIT_NOFILE", "EMFILE", "have 64", "kind: limit"] {
            assert!(line.contains(part), "no {part:?} in {line}");
        }
    }
    let ended = daemon.terminate().with_status(0);
    assert!(ended.lines("left behind").is_empty(), "{}", ended.stderr);
    assert_eq!(scene.report()["outcomes"]["failed"], failed.len());
}

#[test]
fn f28_the_soft_limit_is_raised_to_the_hard_one() {
    let scene = Scene::nulls(40);
    let limits = "ulimit -Hn 4096; ulimit -Sn 64";
    let daemon = Daemon::spawn(&mut prepared(&scene.run(&[]), limits));
    daemon.says("40 of 40 devices in service");
    daemon.terminate().with_status(0);
}

/// Runs `command` where /dev has no control node.
fn without_driver(command: &Command) -> (Option<i32>, String, String) {
    let mut inside = bare(Path::new("unshare"));
    inside.arg("--mount");
    if !geteuid().is_root() {
        inside.arg("--map-root-user");
    }
    inside.args(["sh", "-c", "mount -t tmpfs none /dev && exec \"$0\" \"$@\""]);
    inside.arg(command.get_program()).args(command.get_args());
    let ended = output(inside.current_dir(command.get_current_dir().unwrap()));
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (ended.status.code(), text(ended.stdout), text(ended.stderr))
}

#[test]
fn f31_f41_a_host_without_a_driver_is_told_once() {
    let scene = Scene::nulls(200);
    let mut command = scene.command(&["run", "-c", "ublkd.toml", "--report", "report.json"]);
    let run_dir = format!("supervisor.run_dir={}", scene.path("run").display());
    let (code, _, text) = without_driver(command.args(["--set", &run_dir]));
    assert_eq!(code, Some(1), "{text}");
    assert_eq!(text.matches("modprobe ublk_drv").count(), 1, "{text}");
    assert!(text.lines().count() < 15, "{text}");
    assert!(!scene.path("run").exists(), "something was started");
    assert!(!scene.path("report.json.new").exists());
}

#[test]
fn f41_doctor_and_list_say_that_there_is_no_driver() {
    let scene = Scene::new();
    let (code, out, err) = without_driver(&scene.command(&["doctor", "--json"]));
    assert_eq!(code, Some(1), "{err}");
    let found: serde_json::Value = serde_json::from_str(&out).unwrap();
    let checks = found["checks"].as_array().unwrap();
    let driver = checks.iter().find(|check| check["name"] == "driver").unwrap();
    assert_eq!(driver["verdict"], "fail");
    assert!(driver["remedy"].as_str().unwrap().contains("ublk_drv"), "{driver}");

    let (code, out, _) = without_driver(&scene.command(&["doctor"]));
    assert_eq!(code, Some(1));
    assert!(out.contains("driver") && out.contains("modprobe ublk_drv"), "{out}");

    let (code, out, err) =
        without_driver(scene.command(&["list", "--kernel"]).env("UBLKD_SOCKET", "/of/a/daemon"));
    assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
    assert!(err.contains("ublk-control") || err.contains("ublk_drv"), "{err}");
}
