//! `ublkd doctor`: what this host can do and what is missing, as a table.

use serde::Serialize;

use super::args::Format;
use super::{complain, render, say};
use crate::daemon::ExitStatus;
use crate::driver::{Features, ublk};
use crate::sys::host::Host;
use crate::sys::limits::{self, Check, Need, Verdict};

/// What a host of its size is likely to be asked for.
const LIKELY: Need = Need { devices: 1000, queues: 1000, target_files: 1000, in_flight: 64 };

#[derive(Serialize)]
struct Findings {
    checks: Vec<Check>,
    features: Vec<Feature>,
}

#[derive(Serialize)]
struct Feature {
    name: &'static str,
    available: bool,
    meaning: &'static str,
}

pub(super) fn doctor(format: Format) -> ExitStatus {
    // What `run` does before it looks.
    if let Err(error) = limits::raise_open_files(&LIKELY) {
        complain(&error);
    }
    let checks = limits::check(&Host::default(), &LIKELY);
    let fails = checks.iter().any(|check| check.verdict == Verdict::Fail);
    let features = match fails {
        true => Vec::new(),
        false => match ublk::features() {
            Ok(has) => features(has),
            Err(error) => {
                complain(&error);
                return ExitStatus::RunFailed;
            }
        },
    };
    let findings = Findings { checks, features };
    if format.json {
        render::json(&findings, say);
    } else {
        say(&render::doctor::table(&findings.checks));
        for feature in &findings.features {
            let mark = if feature.available { "yes" } else { "no" };
            say(&format!("{:<22} {mark:<4} {}", feature.name, feature.meaning));
        }
    }
    if fails { ExitStatus::RunFailed } else { ExitStatus::Clean }
}

fn features(has: Features) -> Vec<Feature> {
    Features::KNOWN
        .iter()
        .map(|(flag, name, meaning)| Feature { name, available: has.has(*flag), meaning: meaning.trim() })
        .collect()
}
