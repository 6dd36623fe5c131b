//! The command line: reads arguments and environment, calls a room below, prints what it says.
//!
//! Results go to stdout, logs and the report's table to stderr. Every command ends with one of the
//! exit statuses of `docs/operations.md`.

mod args;
mod bench;
mod check;
mod client;
mod complete;
mod doctor;
mod drivers;
mod list;
mod output;
#[cfg(test)]
mod pages;
mod progress;
pub mod render;
mod report;
mod run;
mod top;
mod verbs;
mod view;

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use clap::Parser;

use crate::config::{Config, Sources};
use crate::daemon::ExitStatus;
use crate::driver::Driver;
use crate::driver::deadline::Deadline;
use crate::driver::ublk::UblkDriver;
use crate::model::Error;
use crate::sys;
use args::{Cli, Command, ConfigArgs};

/// How long a command of this command line may take in the kernel.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    if complete::answered() {
        return ExitCode::SUCCESS;
    }
    let status = match Cli::try_parse() {
        Ok(cli) => match cli.command {
            Command::Run(run) => run::run(*run),
            Command::Check(check) => check::check(&check),
            Command::Doctor(format) => doctor::doctor(format),
            Command::Bench(bench) => bench::bench(&bench),
            Command::Completions { shell } => finish(Ok(complete::script(shell))),
            Command::Verb(verb) => verbs::run(&verb),
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
    sources(args).load().map_err(|error| {
        complain(&error);
        ExitStatus::Usage
    })
}

/// Where the config that the arguments name comes from.
fn sources(args: &ConfigArgs) -> Sources {
    let mut sources = Sources::new().environment(std::env::vars_os());
    for path in &args.paths {
        sources = sources.path(path);
    }
    for (key, value) in &args.set {
        sources = sources.flag(key, value);
    }
    sources
}

/// Asks the kernel's driver something, bounded as every command is.
fn on_kernel<T>(ask: impl AsyncFnOnce(&dyn Driver) -> Result<T, Error>) -> Result<T, Error> {
    let failed = |e: std::io::Error| Error::from_io(&e, "cannot start a runtime");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.map_err(failed)?.block_on(async {
        let driver = Deadline::new(Rc::new(UblkDriver::open(1)?), COMMAND_TIMEOUT);
        ask(&driver).await
    })
}

/// Prints the result of a command, or why there is none.
fn finish(result: Result<String, Error>) -> ExitStatus {
    let printed = result
        .and_then(|text| say(&text).map_err(|e| Error::from_io(&e, "the result was not written")));
    match printed {
        Ok(_) => ExitStatus::Clean,
        Err(error) => {
            complain(&error);
            ExitStatus::RunFailed
        }
    }
}

/// Prints to stderr; a stderr that is closed changes nothing.
fn complain(text: &dyn Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Prints text that ends its own lines to stdout. A reader that has gone (`ublkd list | head`) has
/// seen enough: then it says false.
fn say(text: &str) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true),
    }
}

/// Does `work` on a thread and gives up on it after `bound`, as on a pipe that nobody reads. `None`
/// also when the host has no thread for it.
fn within<T: Send + 'static>(
    bound: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (done, is_done) = mpsc::channel();
    let thread = sys::thread::spawn("ublkd-write", move || {
        // Whoever waited may have given up.
        let _ = done.send(work());
    });
    thread.ok()?;
    is_done.recv_timeout(bound).ok()
}
