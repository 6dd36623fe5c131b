//! What goes to which stream, and what a stream that is closed, full or not read does: nothing.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal::SIGTERM;

use crate::support::{Daemon, Scene, bare, eventually, output};

/// `command` with a shell's redirections.
fn redirected(command: &Command, redirections: &str) -> Command {
    let mut shell = bare(Path::new("sh"));
    // The shell becomes the program, with the shell's pid.
    shell.arg("-c").arg(format!("exec \"$0\" \"$@\" {redirections}"));
    shell.arg(command.get_program()).args(command.get_args());
    shell.current_dir(command.get_current_dir().unwrap());
    shell
}

#[test]
fn f42_a_run_says_nothing_on_stdout() {
    let scene = Scene::nulls(2);
    let daemon = scene.up(&["--fault", "stop@1: panic", "--set", "log.level=debug"]);
    let ended = daemon.terminate();
    assert_eq!(ended.stdout, "");
    assert!(ended.stderr.contains("stopping 2 devices"));
}

#[test]
fn f42_a_result_is_alone_on_stdout() {
    let scene = Scene::nulls(2);
    let ended = output(&mut scene.command(&["check", "-c", "ublkd.toml", "--json"]));
    assert_eq!(ended.status.code(), Some(0));
    assert!(ended.stderr.is_empty());
    let config: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(config["devices"].as_array().unwrap().len(), 2);

    let said = |form: &[&str]| {
        let ended = output(&mut scene.command(&[&["check", "-c", "ublkd.toml"], form].concat()));
        (ended.status.code(), String::from_utf8(ended.stdout).unwrap())
    };
    let json = (Some(0), String::from_utf8(ended.stdout).unwrap());
    assert_eq!(said(&["-o", "json"]), json);
    assert_eq!(said(&["--output=json"]), json);
    let (status, yaml) = said(&["-o", "yaml"]);
    assert!(status == Some(0) && yaml.contains("name: d0\n"), "{yaml}");
    assert_eq!(said(&["-o", "json", "--json"]), (Some(2), String::new()));

    scene.write("bad.toml", "[supervisor]\nworkers = 0\n");
    let ended = output(&mut scene.command(&["check", "-c", "bad.toml", "--json"]));
    assert_eq!(ended.status.code(), Some(2));
    assert!(ended.stdout.is_empty());
}

#[test]
fn closed_and_full_streams_change_nothing() {
    for redirections in
        ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full", "2>/dev/full", ">/dev/full 2>&1"]
    {
        let scene = Scene::nulls(3);
        let daemon = Daemon::spawn(&mut redirected(&scene.run(&[]), redirections));
        eventually("three links", || scene.links() == ["d0", "d1", "d2"]);
        let ended = daemon.terminate();
        assert_eq!(ended.code, Some(0), "{redirections}: {}", ended.stderr);
        assert_eq!(scene.report()["outcomes"]["deleted"], 3, "{redirections}");
    }
}

#[test]
fn a_stderr_that_nobody_reads_does_not_delay_the_end() {
    let scene = Scene::nulls(300);
    let mut command = scene.run(&["--set", "log.level=debug"]);
    let (unread, stderr) = std::io::pipe().unwrap();
    command.stderr(stderr);
    let daemon = Daemon::spawn(&mut command);
    // Our end of the pipe that it writes to goes with the command.
    drop(command);
    eventually("300 links", || scene.links().len() == 300);
    daemon.signal(SIGTERM);
    let ended = daemon.ends_within(Duration::from_secs(20));
    assert_eq!(ended.code, Some(0));
    assert_eq!(scene.report()["outcomes"]["deleted"], 300);
    drop(unread);
}

#[test]
fn a_stderr_whose_reader_has_gone_changes_nothing() {
    let scene = Scene::nulls(3);
    let mut command = scene.run(&[]);
    let (gone, stderr) = std::io::pipe().unwrap();
    command.stderr(stderr);
    let daemon = Daemon::spawn(&mut command);
    drop((command, gone));
    eventually("three links", || scene.links().len() == 3);
    assert_eq!(daemon.terminate().code, Some(0));
}

#[test]
fn a_result_that_cannot_be_written_is_a_failure_and_a_reader_that_has_enough_is_not() {
    let scene = Scene::nulls(2000);
    let check = scene.command(&["check", "-c", "ublkd.toml", "--json"]);
    let full = output(&mut redirected(&check, ">/dev/full"));
    assert_eq!(full.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&full.stderr).contains("ENOSPC"));

    let mut command = scene.command(&["check", "-c", "ublkd.toml", "--json"]);
    let (gone, stdout) = std::io::pipe().unwrap();
    let daemon = Daemon::spawn(command.stdout(stdout));
    drop((command, gone));
    let ended = daemon.ends();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
}

#[test]
fn f42_a_command_in_a_shell_returns_at_once() {
    let scene = Scene::nulls(1);
    let mut command = bare(Path::new("sh"));
    command.arg("-c").arg("p=$(timeout 20 \"$0\" check -c ublkd.toml --json); echo \"<$p>\"");
    command.arg(env!("CARGO_BIN_EXE_ublkd")).current_dir(scene.path("")).stdin(Stdio::null());
    let ended = output(&mut command);
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(text.starts_with("<{") && text.ends_with("}>\n"), "{text}");
}
