//! Every command of `docs/api.md`, as it is written there but for the socket's directory, on a
//! machine that has curl.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::support::{IN_SERVICE, Scene, bare, output};

/// The commands of the document and the status that each says it gets.
fn commands() -> Vec<(String, String)> {
    let text = include_str!("../../docs/api.md").replace("\\\n", " ");
    let mut commands = Vec::new();
    let mut shell = false;
    for line in text.lines() {
        match line {
            "```sh" => shell = true,
            "```" => shell = false,
            _ if shell => {
                let (command, status) = line.rsplit_once('#').expect("a status");
                commands.push((command.trim().to_owned(), status.trim().to_owned()));
            }
            _ => {}
        }
    }
    commands
}

#[test]
fn every_documented_call_gets_what_the_document_says() {
    let curl = output(bare("sh".as_ref()).args(["-c", "command -v curl"]));
    let curl = String::from_utf8(curl.stdout).unwrap();
    assert!(!curl.is_empty(), "curl is not there: tests/setup installs it");
    let scene = Scene::nulls(2);
    let daemon = scene.up(&[]);
    daemon.says(IN_SERVICE);
    // A curl that also prints the status, found before the real one.
    let path = scene.write(
        "bin/curl",
        &format!("#!/bin/sh\nexec {} -sS -w '\\n%{{http_code}}' \"$@\"\n", curl.trim()),
    );
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let commands = commands();
    assert!(commands.len() > 25, "{}", commands.len());
    for (command, expected) in commands {
        assert!(command.starts_with("curl --unix-socket /run/ublkd/ublkd.sock "), "{command}");
        let run_dir = format!("{}/", scene.path("run").display());
        let here = command.replace("/run/ublkd/", &run_dir);
        let mut shell: Command = bare("sh".as_ref());
        let bin = format!("{}:{}", scene.path("bin").display(), std::env::var("PATH").unwrap());
        let ended = output(shell.args(["-c", &here]).env("PATH", bin));
        let said = String::from_utf8(ended.stdout).unwrap();
        let (body, status) = said.rsplit_once('\n').unwrap_or_default();
        assert_eq!(
            status,
            expected,
            "{command}\n{body}\n{}",
            String::from_utf8_lossy(&ended.stderr)
        );
        assert!(!body.trim().is_empty(), "{command}");
    }
    // The last of them was the shutdown.
    daemon.ends().with_status(0);
}
