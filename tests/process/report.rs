//! The shutdown report as a file: the keys that are documented, and what happens when it cannot be
//! written.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::symlink;
use std::path::Path;

use nix::sys::stat::Mode;
use serde_json::Value;

use crate::support::{Daemon, IN_SERVICE, Scene, bare, output};

fn keys(value: &Value) -> BTreeSet<String> {
    value.as_object().unwrap().keys().cloned().collect()
}

/// Words in backticks.
fn quoted(text: &str) -> BTreeSet<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The table of the report in `docs/operations.md`: key and meaning.
fn documented() -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operations.md");
    let text = fs::read_to_string(path).unwrap();
    let section = text.split("## The shutdown report").nth(1).unwrap();
    let rows = section.lines().skip_while(|line| !line.starts_with("| `")).map_while(|line| {
        let mut cells = line.strip_prefix('|')?.split('|');
        Some((cells.next()?.trim().trim_matches('`').to_owned(), cells.next()?.to_owned()))
    });
    rows.collect()
}

#[test]
fn the_report_has_exactly_the_documented_keys() {
    let scene = Scene::nulls(4);
    let trouble = ["--fault", "stop@2: hang", "--set", "supervisor.command_timeout=3s"];
    scene.up(&trouble).terminate().with_status(3);
    let report = scene.report();

    let documented = documented();
    let top: BTreeSet<_> = documented.iter().map(|(key, _)| key.clone()).collect();
    assert_eq!(keys(&report), top);
    let row = |key: &str| quoted(&documented.iter().find(|(k, _)| k == key).unwrap().1);
    assert_eq!(keys(&report["outcomes"]), row("outcomes"));

    let devices = report["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 4);
    for device in devices {
        assert_eq!(keys(device), row("devices"), "{device}");
        let stages = device["stages"].as_object().unwrap();
        assert!(stages.contains_key("stop") && stages.values().all(Value::is_f64), "{device}");
        let bad = device["outcome"] != "deleted";
        assert_eq!(device["stage"].is_string(), bad, "{device}");
        assert_eq!(device["error"].is_string(), bad, "{device}");
        assert!(device["id"].is_u64());
    }
    let bad: Vec<_> = devices.iter().filter(|d| d["outcome"] == "wedged").collect();
    assert!(bad.len() == 1 && bad[0]["stage"] == "stop", "{report}");

    for stage in report["stages"].as_object().unwrap().values() {
        assert_eq!(keys(stage), row("stages"));
    }
    assert!(report["wall_s"].as_f64().unwrap() >= 3.0);
    assert_eq!(report["forced"], false);
    let counted: u64 =
        report["outcomes"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
    assert_eq!(counted, 4);
}

#[test]
fn a_report_that_cannot_be_made_is_known_before_anything_starts() {
    let scene = Scene::nulls(2);
    let mut command = scene.command(&["run", "-c", "ublkd.toml", "--report", "none/report.json"]);
    let ended = output(command.args(scene.sim()));
    let text = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(2), "{text}");
    assert!(text.contains("none/report.json") && text.contains("ENOENT"), "{text}");
    assert!(!scene.path("run").exists(), "something was started");
}

#[test]
fn a_report_that_cannot_be_written_is_a_failure_and_keeps_the_one_before() {
    let scene = Scene::nulls(100);
    scene.write("report.json", "the one before");
    let run = scene.run(&["--fault", "add: EIO x99"]);
    // The largest file may have one block: 512 bytes or 1024.
    let mut shell = bare(Path::new("sh"));
    shell.arg("-c").arg("ulimit -f 1; exec \"$0\" \"$@\"");
    shell.arg(run.get_program()).args(run.get_args()).current_dir(scene.path(""));
    let daemon = Daemon::spawn(&mut shell);
    daemon.says(IN_SERVICE);
    let ended = daemon.terminate().with_status(1);
    ended.saying(&["report.json was not written", "EFBIG"]);
    assert_eq!(fs::read_to_string(scene.path("report.json")).unwrap(), "the one before");
    assert!(!scene.path("report.json.new").exists(), "a half report was left behind");
}

#[test]
fn a_report_may_go_to_a_device_or_a_pipe_which_stays_what_it_is() {
    let scene = Scene::nulls(2);
    for (device, status) in [("/dev/full", 1), ("/dev/null", 0), ("/dev/stdout", 0)] {
        // By a link of ours, so that a mistake replaces that and not a device of the host.
        let link = scene.path("link");
        let _ = fs::remove_file(&link);
        symlink(device, &link).unwrap();
        let mut command = scene.command(&["run", "-c", "ublkd.toml", "--report", "link"]);
        let daemon = Daemon::spawn(command.args(scene.sim()));
        daemon.says(IN_SERVICE);
        let ended = daemon.terminate().with_status(status);
        assert_eq!(ended.stderr.contains("ENOSPC"), device == "/dev/full", "{}", ended.stderr);
        assert!(link.is_symlink(), "{device} was replaced");
        if device == "/dev/stdout" {
            let report: Value = serde_json::from_str(&ended.stdout).unwrap();
            assert_eq!(report["outcomes"]["deleted"], 2);
        }
    }
}

#[test]
fn a_pipe_that_nobody_reads_does_not_keep_the_report_for_ever() {
    let scene = Scene::nulls(600);
    nix::unistd::mkfifo(&scene.path("pipe"), Mode::S_IRWXU).unwrap();
    // A reader that reads nothing; the report is larger than the pipe.
    let _reader = OpenOptions::new().read(true).write(true).open(scene.path("pipe")).unwrap();
    let mut command = scene.command(&["run", "-c", "ublkd.toml", "--report", "pipe"]);
    let daemon = Daemon::spawn(command.args(scene.sim()));
    daemon.says(IN_SERVICE);
    daemon.terminate().with_status(1).saying(&["the report was not written within 10 s"]);
}
