//! Why a command of the client failed: what to tell people, and the exit status for programs.

use std::fmt;

use serde::Deserialize;
use serde_json::Value;

use crate::cli::view::Problem;
use crate::daemon::ExitStatus;
use crate::model::{Error, ErrorKind};

/// The HTTP status of a value that is not allowed.
const UNPROCESSABLE: u16 = 422;

/// A failed command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// What the process ends with.
    pub(crate) status: ExitStatus,
    text: String,
}

impl Failure {
    pub(crate) fn new(status: ExitStatus, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    /// What a problem document says; `None` for what is none.
    pub(crate) fn of_problem(document: &Value) -> Option<Self> {
        let problem = Problem::deserialize(document).ok()?;
        let mut text = problem.detail;
        if let Some(remedy) = problem.remedy
            && !text.contains(&remedy)
        {
            text = format!("{text}; {remedy}");
        }
        for line in problem.holders.iter().chain(&problem.left) {
            if !text.contains(line) {
                text = format!("{text}\n  {line}");
            }
        }
        let status = match status_of(&problem.kind) {
            // A backing that is not there: a wrong value, not a device that is unknown.
            ExitStatus::NotFound if problem.status == Some(UNPROCESSABLE) => ExitStatus::Usage,
            // Not so much how it went wrong matters as that something is there.
            ExitStatus::RunFailed | ExitStatus::Timeout if !problem.left.is_empty() => {
                ExitStatus::Left
            }
            status => status,
        };
        Some(Self { status, text })
    }

    /// The failure, about something that its text may not name.
    pub(crate) fn about(self, name: &str) -> Self {
        match self.text.contains(name) {
            true => self,
            false => Self::new(self.status, format!("{name}: {}", self.text)),
        }
    }

    /// All failures as one, with the status of the first.
    ///
    /// # Errors
    /// When there is any.
    pub(crate) fn all(failures: impl IntoIterator<Item = Self>) -> Result<(), Self> {
        let together = failures
            .into_iter()
            .reduce(|all, next| Self::new(all.status, format!("{}\n{}", all.text, next.text)));
        together.map_or(Ok(()), Err)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(status_of(error.kind().as_str()), error.to_string())
    }
}

/// The exit status that stands for an error's kind. A kind of a newer daemon is a failure.
pub(super) fn status_of(kind: &str) -> ExitStatus {
    let is = |kinds: &[ErrorKind]| kinds.iter().any(|known| known.as_str() == kind);
    match () {
        () if is(&[ErrorKind::Invalid]) || kind == "malformed" => ExitStatus::Usage,
        () if is(&[ErrorKind::NotFound]) => ExitStatus::NotFound,
        () if is(&[ErrorKind::Timeout]) => ExitStatus::Timeout,
        () if is(&[ErrorKind::Overloaded]) => ExitStatus::Overloaded,
        () if is(&[
            ErrorKind::Busy,
            ErrorKind::Exists,
            ErrorKind::Permission,
            ErrorKind::Stopping,
            ErrorKind::Unsupported,
        ]) =>
        {
            ExitStatus::Refused
        }
        () => ExitStatus::RunFailed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn problem(kind: &str, detail: &str) -> Value {
        json!({"type": "about:blank", "title": "Conflict", "status": 409, "kind": kind,
            "detail": detail})
    }

    #[test]
    fn a_problem_becomes_text_and_a_status() {
        let mut busy = problem("busy", "device vol-1: mounted at /mnt");
        busy["remedy"] = "unmount it".into();
        busy["holders"] = json!(["mounted at /mnt", "pid 7 (dd) has it open"]);
        let failure = Failure::of_problem(&busy).expect("a problem");
        // Holders are told once, wherever the daemon says it.
        let text = "device vol-1: mounted at /mnt; unmount it\n  pid 7 (dd) has it open";
        assert_eq!((failure.to_string().as_str(), failure.status), (text, ExitStatus::Refused));

        let mut left = problem("timeout", "it is held; wait");
        (left["left"], left["remedy"]) = (json!(["id 7"]), "wait".into());
        let failure = Failure::of_problem(&left).expect("a problem");
        let text = "it is held; wait\n  id 7";
        assert_eq!((failure.to_string().as_str(), failure.status), (text, ExitStatus::Left));

        // A file that is not there is a wrong value; 5 is for devices and groups.
        let mut missing = problem("not_found", "cannot find \"/img\"");
        for (http, status) in [(404, ExitStatus::NotFound), (422, ExitStatus::Usage)] {
            missing["status"] = http.into();
            assert_eq!(Failure::of_problem(&missing).map(|failure| failure.status), Some(status));
        }

        for none in [json!({}), json!([1]), json!("text"), json!({"detail": 7}), Value::Null] {
            assert_eq!(Failure::of_problem(&none), None, "{none}");
        }
    }

    #[test]
    fn many_failures_are_one() {
        let one = |status, text: &str| Failure::new(status, text);
        let all = [one(ExitStatus::Refused, "a: no"), one(ExitStatus::Timeout, "b: late")];
        let told = Failure::all(all).expect_err("failures");
        assert_eq!(
            (told.to_string().as_str(), told.status),
            ("a: no\nb: late", ExitStatus::Refused)
        );
        assert_eq!(Failure::all([]), Ok(()));
        assert_eq!(one(ExitStatus::Timeout, "late").about("vol-1").to_string(), "vol-1: late");
    }

    #[test]
    fn f92_kinds_that_a_caller_treats_differently_have_statuses_of_their_own() {
        let statuses = [
            ("invalid", 2),
            ("not_found", 5),
            ("busy", 6),
            ("exists", 6),
            ("stopping", 6),
            ("permission", 6),
            ("unsupported", 6),
            ("timeout", 7),
            ("overloaded", 9),
            ("malformed", 2),
            ("io", 1),
            ("wedged", 1),
            ("what is that", 1),
        ];
        for (kind, code) in statuses {
            assert_eq!(status_of(kind).code(), code, "{kind}");
        }
    }
}
