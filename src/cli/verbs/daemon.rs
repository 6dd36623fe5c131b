//! `groups`, `features`, `reload`, `shutdown`: what is of the daemon as a whole.

use hyper::Method;
use serde_json::{Map, Value, json};

use super::args::{Ask, Reload};
use crate::cli::client::{Call, Failure};
use crate::cli::output::{Output, Shown};
use crate::cli::progress::Bar;
use crate::cli::render;
use crate::daemon::ExitStatus;

/// No names.
const NONE: std::iter::Empty<String> = std::iter::empty();

pub(super) fn groups(ask: &Ask) -> Result<(), Failure> {
    let value = ask.at.client()?.send(&Call::get("/api/v1/groups", ask.at.question()))?.json;
    let items = value["items"].as_array().map_or(&[][..], Vec::as_slice);
    let names = items.iter().filter_map(|group| group["name"].as_str());
    let names = names.map(|name| format!("group/{name}"));
    Output::show(ask.output, &Shown { value: &value, names, people: &|_| render::groups(items) })
}

pub(super) fn features(ask: &Ask) -> Result<(), Failure> {
    let value = ask.at.client()?.send(&Call::get("/api/v1/features", ask.at.question()))?.json;
    let names = value["names"].as_array().map_or(&[][..], Vec::as_slice);
    let names = names.iter().filter_map(Value::as_str).map(|name| format!("feature/{name}"));
    let people = |_| render::description(&value);
    Output::show(ask.output, &Shown { value: &value, names, people: &people })
}

pub(super) fn reload(args: &Reload) -> Result<(), Failure> {
    let ask = &args.ask;
    let body = json!({ "dry_run": args.dry_run });
    let call = Call::change(Method::POST, "/api/v1/reload", ask.at.change()).body(body);
    let value = ask.at.client()?.send(&call)?.json;
    let people = |_| render::reloaded(&value);
    Output::show(ask.output, &Shown { value: &value, names: NONE, people: &people })?;
    let failed = value["failed"].as_object().into_iter().flatten();
    Failure::all(failed.map(|(name, error)| {
        let error = error.as_str().unwrap_or_default();
        Failure::new(ExitStatus::RunFailed, error).about(name)
    }))
}

pub(super) fn shutdown(ask: &Ask) -> Result<(), Failure> {
    let client = ask.at.client()?;
    let mut body = Map::new();
    if let Some(within) = ask.at.within {
        body.insert("within".to_owned(), humantime::format_duration(within).to_string().into());
    }
    let call = Call::change(Method::POST, "/api/v1/shutdown", ask.at.end()).body(body.into());
    let report = if Bar::is_seen() {
        let remaining = |report: &Value| report["remaining"].as_u64().map(|n| n as usize);
        let question = Call::get("/api/v1/report", Bar::LOOK);
        let total = remaining(&client.send(&question)?.json).unwrap_or_default();
        let bar = Bar::new("stopping", total);
        let told = |report: &Value| {
            if let Some(remaining) = remaining(report) {
                bar.at(total.saturating_sub(remaining));
            }
        };
        client.send_watched(&call, &question, told)?.json
    } else {
        client.send(&call)?.json
    };
    let people = |_| render::ended(&report);
    Output::show(ask.output, &Shown { value: &report, names: NONE, people: &people })?;
    let left = report["left"].as_array().map_or(&[][..], Vec::as_slice);
    let left: Vec<_> = left.iter().filter_map(Value::as_str).collect();
    match (report["forced"].as_bool(), left.is_empty()) {
        (Some(true), _) => Err(Failure::new(ExitStatus::Forced, "the end was forced")),
        (_, true) => Ok(()),
        (_, false) => {
            Err(Failure::new(ExitStatus::Left, format!("left: {}", left.join("\nleft: "))))
        }
    }
}
