//! Completions: scripts for the shells, and the names that a daemon knows.
//!
//! The script of a shell calls `ublkd` back with `UBLKD_COMPLETE` set, so that it completes what
//! this version knows.

use std::ffi::OsString;
use std::time::Duration;

use clap::{CommandFactory, ValueEnum};
use clap_complete::CompletionCandidate;
use clap_complete::env::{Bash, CompleteEnv, EnvCompleter, Fish, Zsh};

use super::args::Cli;
use super::client::{Call, Client};

/// Set by the scripts when they call back.
const VARIABLE: &str = "UBLKD_COMPLETE";

/// How long somebody who has pressed a key waits.
const PATIENCE: Duration = Duration::from_millis(700);

/// Most names that are offered.
const MOST: usize = 1000;

/// A shell with a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Shell {
    Bash,
    Fish,
    Zsh,
}

/// Answers a script that calls back; true when this process was only that.
pub(super) fn answered() -> bool {
    let args = std::env::args_os();
    let here = std::env::current_dir().ok();
    let complete = CompleteEnv::with_factory(Cli::command).var(VARIABLE).completer("ublkd");
    match complete.try_complete(args, here.as_deref()) {
        Ok(answered) => answered,
        Err(error) => {
            // A shell that cannot be answered completes nothing.
            let _ = error.print();
            true
        }
    }
}

/// The script of a shell.
pub(super) fn script(shell: Shell) -> String {
    let shell: &dyn EnvCompleter = match shell {
        Shell::Bash => &Bash,
        Shell::Fish => &Fish,
        Shell::Zsh => &Zsh,
    };
    let mut text = Vec::new();
    // Writing to memory does not fail.
    let _ = shell.write_registration(VARIABLE, "ublkd", "ublkd", "ublkd", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Names of devices.
pub(super) fn devices() -> Vec<CompletionCandidate> {
    names(&format!("/api/v1/devices?limit={MOST}"))
}

/// Names of groups.
pub(super) fn groups() -> Vec<CompletionCandidate> {
    names("/api/v1/groups")
}

/// Without a daemon there is nothing to offer, and nobody to tell.
fn names(path: &str) -> Vec<CompletionCandidate> {
    let Ok(client) = Client::new(socket()) else { return Vec::new() };
    let Ok(reply) = client.send(&Call::get(path, PATIENCE)) else { return Vec::new() };
    let items = reply.json["items"].as_array().map_or(&[][..], Vec::as_slice);
    let names = items.iter().filter_map(|item| item["name"].as_str());
    names.map(CompletionCandidate::new).collect()
}

/// The socket of the line that is being completed.
fn socket() -> OsString {
    let words: Vec<_> = std::env::args_os().collect();
    let named = words.iter().position(|word| word == "--socket").and_then(|at| words.get(at + 1));
    let set = || std::env::var_os("UBLKD_SOCKET");
    named.cloned().or_else(set).unwrap_or_else(|| super::verbs::SOCKET.into())
}
