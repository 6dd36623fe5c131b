//! `ublkd doctor`: what this host can do and what is missing, as a table.

use serde::Serialize;

use super::args::Format;
use super::render::host::{self, Feature};
use super::{complain, finish, on_kernel, say};
use crate::daemon::ExitStatus;
use crate::sys::host::Host;
use crate::sys::limits::{self, Check, Need, Verdict};

/// What a host is likely to be asked for.
const LIKELY: Need = Need { devices: 1000, queues: 1000, target_files: 1000, in_flight: 64 };

#[derive(Serialize)]
struct Findings {
    checks: Vec<Check>,
    features: Vec<Feature>,
}

pub(super) fn doctor(format: Format) -> ExitStatus {
    // As `run` does before it looks.
    if let Err(error) = limits::raise_open_files(&LIKELY) {
        complain(&error);
    }
    let checks = limits::check(&Host::default(), &LIKELY);
    let fit = checks.iter().all(|check| check.verdict != Verdict::Fail);
    let features = match fit {
        true => on_kernel(async |driver| driver.features().await).map(host::features),
        false => Ok(Vec::new()),
    };
    let findings = match features {
        Ok(features) => Findings { checks, features },
        Err(error) => {
            // The error tells more than that nobody reads the table.
            let _ = say(&host::checks(&checks));
            complain(&error);
            return ExitStatus::RunFailed;
        }
    };
    let text = match format.form() {
        Some(form) => form.text(&findings),
        None => {
            let checks = host::checks(&findings.checks);
            Ok(checks + "\n" + &host::feature_table(&findings.features))
        }
    };
    match finish(text) {
        ExitStatus::Clean if !fit => ExitStatus::RunFailed,
        status => status,
    }
}
