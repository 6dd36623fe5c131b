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

#[test]
fn f31_f41_a_host_without_a_driver_is_told_once() {
    let scene = Scene::nulls(200);
    let mut command = scene.command(&["run", "-c", "ublkd.toml", "--report", "report.json"]);
    let run_dir = format!("supervisor.run_dir={}", scene.path("run").display());
    command.args(["--set", &run_dir]);
    // A /dev of its own, without the control node.
    let mut inside = bare(Path::new("unshare"));
    inside.arg("--mount");
    if !geteuid().is_root() {
        inside.arg("--map-root-user");
    }
    inside.args(["sh", "-c", "mount -t tmpfs none /dev && exec \"$0\" \"$@\""]);
    inside.arg(command.get_program()).args(command.get_args()).current_dir(scene.path(""));
    let ended = output(&mut inside);
    let text = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{text}");
    assert_eq!(text.matches("modprobe ublk_drv").count(), 1, "{text}");
    assert!(text.lines().count() < 15, "{text}");
    assert!(!scene.path("run").exists(), "something was started");
}
