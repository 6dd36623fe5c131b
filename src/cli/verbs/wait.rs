//! `wait`: until devices are in a state.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::args::Wait;
use super::devices::path;
use crate::cli::client::{Call, Client, Failure};
use crate::cli::output::{Output, Shown, print};
use crate::daemon::ExitStatus;
use crate::model::{DeviceName, DeviceState};

/// Time between two looks: short for people, long for a daemon.
const LOOK: Duration = Duration::from_millis(50);

/// How long the last look may take.
const GRACE: Duration = Duration::from_secs(5);

pub(super) fn wait(args: &Wait) -> Result<(), Failure> {
    let client = args.ask.at.client()?;
    let end = Instant::now() + args.ask.at.change();
    let (mut devices, mut names, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    for name in &args.devices.names {
        let device = match wait_for(&client, args, name, end) {
            Ok(device) => device,
            // Nobody is there; the others would say the same.
            Err(failure) if failure.status == ExitStatus::NoDaemon => return Err(failure),
            // The others are told all the same; when the time is over, as they are then.
            Err(failure) => {
                failures.push(failure);
                continue;
            }
        };
        if matches!(args.ask.output, None | Some(Output::Wide)) {
            print(&format!(
                "device/{name} {}\n",
                state(&device).map_or("absent", DeviceState::as_str)
            ))?;
        }
        devices.push(device);
        names.push(format!("device/{name}"));
    }
    if !matches!(args.ask.output, None | Some(Output::Wide)) && !names.is_empty() {
        let (value, names) = (json!({ "items": &devices }), names.into_iter());
        let shown = Shown { value: &value, names, people: &|_| String::new() };
        Output::show(args.ask.output, &shown)?;
    }
    Failure::all(failures)
}

/// The device when it is as it shall be; null when it shall not be and is not.
fn wait_for(
    client: &Client,
    args: &Wait,
    name: &DeviceName,
    end: Instant,
) -> Result<Value, Failure> {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let device = match client.send(&Call::get(path(name.as_str()), left.max(GRACE))) {
            Err(failure) if failure.status == ExitStatus::NotFound => Value::Null,
            answered => answered?.json,
        };
        let now = state(&device);
        if args.goal.is_met(now) {
            return Ok(device);
        }
        let told = now.map_or("absent", DeviceState::as_str);
        if args.goal.is_out_of_reach(now) {
            let error = device["error"].as_str().map(|error| format!(": {error}"));
            let text = format!("device {name} is {told} and stays so{}", error.unwrap_or_default());
            return Err(Failure::new(ExitStatus::RunFailed, text));
        }
        if Instant::now() >= end {
            let within = humantime::format_duration(args.ask.at.change());
            let text = format!("device {name} is {told} after {within} still");
            return Err(Failure::new(ExitStatus::Timeout, text));
        }
        std::thread::sleep(LOOK);
    }
}

fn state(device: &Value) -> Option<DeviceState> {
    serde_json::from_value(device["state"].clone()).ok()
}
