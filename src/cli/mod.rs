//! The command line.

pub mod render;
//! The command line: reads arguments and environment, calls a room below, prints what it says.
//!
//! Results go to stdout, logs and the report's table to stderr. Every command ends with one of the
//! exit statuses of `docs/operations.md`.

mod args;
mod check;
mod doctor;
mod list;
mod render;
mod run;

use std::fmt::Display;
use std::process::ExitCode;

use clap::Parser;

use crate::config::{Config, Sources};
use crate::daemon::ExitStatus;
use args::{Cli, Command, ConfigArgs};

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let status = match Cli::try_parse() {
        Ok(cli) => match cli.command {
            Command::Run(run) => run::run(*run),
            Command::Check(check) => check::check(&check),
            Command::Doctor(format) => doctor::doctor(format),
            Command::List(list) => list::list(&list),
        },
        Err(error) => {
            // Help and version are asked for; everything else is bad usage.
            let asked = !error.use_stderr();
            // A closed pipe is not worth an error of its own.
            let _ = error.print();
            if asked { ExitStatus::Clean } else { ExitStatus::Usage }
        }
    };
    ExitCode::from(status.code())
}

/// The config that the arguments name, under the environment and the flags; or the status to exit
/// with, every problem printed.
fn load(args: &ConfigArgs) -> Result<Config, ExitStatus> {
    let mut sources = Sources::new().environment(std::env::vars_os());
    for path in &args.paths {
        sources = sources.path(path);
    }
    for (key, value) in &args.set {
        sources = sources.flag(key, value);
    }
    sources.load().map_err(|error| {
        complain(&error);
        ExitStatus::Usage
    })
}

/// Prints to stderr; a stderr that is closed changes nothing.
fn complain(text: &dyn Display) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Prints to stdout. A reader that has gone (`ublkd list | head`) has seen enough.
fn say(text: &dyn Display) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout(), "{text}");
}
