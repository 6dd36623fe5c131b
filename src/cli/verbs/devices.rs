//! `list` and `describe`: the daemon's devices.

use std::io::{self, IsTerminal};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::args::{Connection, Describe, List};
use crate::cli::client::{Call, Client, Failure, encoded};
use crate::cli::output::{Output, Shown};
use crate::cli::render::{self, Extent};
use crate::cli::view::Device;
use crate::daemon::ExitStatus;

/// Devices that the daemon is asked for at once.
const PAGE: usize = 1000;

/// Which devices are wanted: names of the query's keys, and what they have to be.
#[derive(Debug, Default)]
pub(in crate::cli) struct Filter(Vec<(&'static str, String)>);

impl Filter {
    fn of(args: &List) -> Self {
        let some = |key, value: Option<String>| value.map(|value| (key, value));
        let named = [
            some("state", args.state.map(|state| state.to_string())),
            some("group", args.group.clone()),
            some("target", args.target.clone()),
        ];
        let labels = args.labels.iter().map(|(key, value)| ("label", format!("{key}={value}")));
        Self(named.into_iter().flatten().chain(labels).collect())
    }
}

/// Every device that passes, as the daemon tells it.
pub(in crate::cli) fn all(
    client: &Client,
    filter: &Filter,
    within: Duration,
) -> Result<Vec<Value>, Failure> {
    let mut query = format!("limit={PAGE}");
    for (key, value) in &filter.0 {
        query += &format!("&{key}={}", encoded(value));
    }
    let (mut all, mut after) = (Vec::new(), String::new());
    loop {
        let path = format!("/api/v1/devices?{query}{after}");
        let mut page = client.send(&Call::get(path, within))?.json;
        match page["items"].take() {
            Value::Array(items) if !items.is_empty() => all.extend(items),
            _ => return Ok(all),
        }
        match page["next"].as_str() {
            Some(next) => after = format!("&after={}", encoded(next)),
            None => return Ok(all),
        }
    }
}

/// What tables need of devices.
pub(in crate::cli) fn viewed(client: &Client, devices: &[Value]) -> Result<Vec<Device>, Failure> {
    let viewed: Result<_, _> = devices.iter().map(Device::deserialize).collect();
    viewed.map_err(|e| client.strange(&format!("a device that is told strangely: {e}")))
}

/// The devices as `-o name` prints them.
pub(super) fn named(devices: &[Value]) -> impl Iterator<Item = String> + Clone {
    devices.iter().filter_map(|device| device["name"].as_str()).map(|name| format!("device/{name}"))
}

pub(super) fn list(args: &List) -> Result<(), Failure> {
    let at = &args.ask.at;
    let client = at.client()?;
    let devices = all(&client, &Filter::of(args), at.question())?;
    let views = viewed(&client, &devices)?;
    // A sum is for people who look; whoever filters lines wants them all.
    let whole = !io::stdout().is_terminal();
    let people = |wide| {
        let extent = if wide || whole { Extent::All } else { Extent::Short };
        render::devices(&views, extent, wide)
    };
    let value = json!({ "items": &devices });
    let shown = Shown { value: &value, names: named(&devices), people: &people };
    Output::show(args.ask.output, &shown)
}

pub(super) fn describe(args: &Describe) -> Result<(), Failure> {
    let at = &args.ask.at;
    let client = at.client()?;
    let (mut devices, mut failures) = (Vec::new(), Vec::new());
    for name in &args.devices.names {
        match one(&client, at, name.as_str()) {
            Ok(device) => devices.push(device),
            // Nobody is there; the others would say the same.
            Err(failure) if failure.status == ExitStatus::NoDaemon => return Err(failure),
            Err(failure) => failures.push(failure),
        }
    }
    let people = |_| devices.iter().map(render::description).collect::<Vec<_>>().join("\n");
    let value = match (devices.as_slice(), args.devices.names.as_slice()) {
        ([device], [_]) => device.clone(),
        // A single device that failed has no value.
        ([], [_]) => return Failure::all(failures),
        (devices, _) => json!({ "items": devices }),
    };
    let shown = Shown { value: &value, names: named(&devices), people: &people };
    Output::show(args.ask.output, &shown)?;
    Failure::all(failures)
}

/// One device.
pub(super) fn one(client: &Client, at: &Connection, name: &str) -> Result<Value, Failure> {
    Ok(client.send(&Call::get(path(name), at.question()))?.json)
}

/// Where a device is.
pub(super) fn path(name: &str) -> String {
    format!("/api/v1/devices/{}", encoded(name))
}
