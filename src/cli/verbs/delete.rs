//! `delete`: devices by name, or a group at once.

use hyper::Method;
use serde_json::Value;

use super::args::Delete;
use super::devices::path;
use super::each::each;
use crate::cli::client::{Call, Client, Failure, encoded};
use crate::cli::output::{Output, Shown};
use crate::cli::progress::Bar;

pub(super) fn delete(args: &Delete) -> Result<(), Failure> {
    if let Some(group) = &args.group {
        return delete_group(args, group);
    }
    let call =
        |name: &str| Call::change(Method::DELETE, path(name) + &query(args), args.ask.at.change());
    let names: Vec<_> = args.devices.names.iter().collect();
    each(&args.ask, &names, call, |deleted| Ok(word(deleted)))
}

/// What is asked for beside the name.
fn query(args: &Delete) -> String {
    let busy = args.busy.map(|busy| format!("busy={}", busy.as_str()));
    let timeout = args.busy_timeout.map(|time| {
        format!("busy_timeout={}", encoded(&humantime::format_duration(time).to_string()))
    });
    let keys: Vec<_> = busy.into_iter().chain(timeout).collect();
    if keys.is_empty() { String::new() } else { format!("?{}", keys.join("&")) }
}

/// How a device ended, in a few words. One that had failed is as deleted as any other.
fn word(deleted: &Value) -> String {
    match deleted["outcome"].as_str() {
        None => "deleted".to_owned(),
        Some(before @ ("failed" | "panicked")) => format!("deleted (it had {before})"),
        Some(outcome) => outcome.replace('_', " "),
    }
}

fn delete_group(args: &Delete, group: &str) -> Result<(), Failure> {
    let client = args.ask.at.client()?;
    let place = format!("/api/v1/groups/{}", encoded(group));
    let call = Call::change(Method::DELETE, place.clone() + &query(args), args.ask.at.change());
    let report = watched(&client, &call, &place, group)?;
    let devices = report["devices"].as_array().map_or(&[][..], Vec::as_slice);
    let lines = |_| {
        let mut text: String = devices
            .iter()
            .map(|device| {
                let name = device["name"].as_str().unwrap_or_default();
                format!("device/{name} {}\n", word(device))
            })
            .collect();
        if devices.is_empty() {
            text = format!("group/{group} absent\n");
        }
        text
    };
    let shown = Shown { value: &report, names: super::devices::named(devices), people: &lines };
    Output::show(args.ask.output, &shown)
}

/// Deletes with a bar, where somebody sees it.
fn watched(client: &Client, call: &Call, place: &str, group: &str) -> Result<Value, Failure> {
    if !Bar::is_seen() {
        return Ok(client.send(call)?.json);
    }
    let count = |info: &Value| info["devices"].as_u64().unwrap_or_default() as usize;
    let question = Call::get(place, Bar::LOOK);
    let total = client.send(&question).map_or(0, |reply| count(&reply.json));
    let bar = Bar::new(format!("deleting {group}"), total);
    let told = |info: &Value| bar.at(total.saturating_sub(count(info)));
    Ok(client.send_watched(call, &question, told)?.json)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn outcomes_are_words() {
        assert_eq!(word(&json!({"outcome": "already_gone"})), "already gone");
        assert_eq!(word(&json!({})), "deleted");
        assert_eq!(word(&json!({"outcome": "failed"})), "deleted (it had failed)");
    }
}
