//! The commands that talk to a daemon: each is a request or a few, and what is told of the answer.
//!
//! ```text
//!   args ─> verb ─ client ─> daemon
//!             └─ output ─> stdout: lines for people, or JSON, YAML, names
//! ```
//!
//! Invariants: stdout has the result and nothing else; what went wrong is on stderr and in the
//! exit status (`docs/cli.md`); of several devices each is tried, and the first failure counts.

pub(super) mod args;
mod change;
mod create;
mod daemon;
mod delete;
pub(super) mod devices;
mod each;
mod events;
mod wait;

use std::time::Duration;

use super::client::{Client, Failure};
use super::{complain, list, top};
use crate::daemon::ExitStatus;
use args::{Connection, Verb};

/// Where a daemon listens unless told otherwise.
pub(super) const SOCKET: &str = "/run/ublkd/ublkd.sock";

/// How long a question may take, and a change, unless told otherwise.
const QUESTION: Duration = Duration::from_secs(10);
const CHANGE: Duration = Duration::from_secs(60);

/// How much later than the end of a shutdown's time its report may come.
const REPORT: Duration = Duration::from_secs(5);

/// The longest `shutdown_timeout` that a config may have.
const LONGEST_END: Duration = Duration::from_secs(3600);

impl Connection {
    pub(super) fn client(&self) -> Result<Client, Failure> {
        Client::new(&self.socket)
    }

    /// How long a question may take.
    pub(super) fn question(&self) -> Duration {
        self.within.unwrap_or(QUESTION)
    }

    /// How long a change may take.
    fn change(&self) -> Duration {
        self.within.unwrap_or(CHANGE)
    }

    /// How long an end may take: the daemon knows its own bound, and keeps it. Its report, which
    /// says what was left, comes after that bound.
    fn end(&self) -> Duration {
        self.within.map_or(LONGEST_END, |within| within.saturating_add(REPORT))
    }
}

/// Does what a verb says.
pub(super) fn run(verb: &Verb) -> ExitStatus {
    status(match verb {
        Verb::Create(args) => create::create(args),
        Verb::Delete(args) => delete::delete(args),
        Verb::List(args) if args.kernel => list::list(args),
        Verb::List(args) => devices::list(args),
        Verb::Describe(args) => devices::describe(args),
        Verb::Resize(args) => change::resize(args),
        Verb::Quiesce(args) => change::quiesce(args),
        Verb::Resume(args) => change::resume(args),
        Verb::ReadOnly(args) => change::read_only(args),
        Verb::Wait(args) => wait::wait(args),
        Verb::Events(args) => events::events(args),
        Verb::Groups(args) => daemon::groups(args),
        Verb::Features(args) => daemon::features(args),
        Verb::Reload(args) => daemon::reload(args),
        Verb::Shutdown(args) => daemon::shutdown(args),
        Verb::Top(args) => top::top(args),
    })
}

fn status(done: Result<(), Failure>) -> ExitStatus {
    match done {
        Ok(()) => ExitStatus::Clean,
        Err(failure) => {
            complain(&failure);
            failure.status
        }
    }
}
