//! `create`: a device by flags, or those of a file.
//!
//! ```text
//!   flags ──────┐
//!   *.toml ─────┼─> devices with the keys of [[device]] ─ batches ─> daemon
//!   *.json, - ──┘
//! ```
//!
//! Invariant: paths are absolute when they leave: relative ones start where the flag was typed or
//! where the file is, not where the daemon runs.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use hyper::Method;
use serde_json::{Map, Value, json};

use super::args::{Create, DeviceArgs};
use super::devices::named;
use crate::cli::client::{Call, Client, Failure};
use crate::cli::output::{Output, Shown, print};
use crate::cli::progress::Bar;
use crate::config::{MAX_BYTES, Sources};
use crate::daemon::ExitStatus;
use crate::model::Error;

const DEVICES: &str = "/api/v1/devices";

/// Devices in a request, unless it is all or none: enough to keep a daemon busy, few enough to see
/// how far it is.
const BATCH: usize = 256;

pub(super) fn create(args: &Create) -> Result<(), Failure> {
    let mut devices = match (&args.name, &args.file) {
        (Some(name), _) => vec![by_flags(name.as_str(), &args.device)?],
        (None, Some(file)) => of_file(file)?,
        (None, None) => Vec::new(),
    };
    for device in &mut devices {
        if let Some(group) = &args.group {
            device.insert("group".to_owned(), group.as_str().into());
        }
        if !args.labels.is_empty() {
            let labels = device.entry("labels").or_insert_with(|| json!({}));
            for (key, value) in &args.labels {
                labels[key] = value.as_str().into();
            }
        }
    }
    let client = args.ask.at.client()?;
    match args.file {
        None => one(&client, args, devices.into_iter().next().unwrap_or_default()),
        Some(_) => many(&client, args, devices),
    }
}

fn one(client: &Client, args: &Create, device: Map<String, Value>) -> Result<(), Failure> {
    let call = Call::change(Method::POST, DEVICES, args.ask.at.change()).body(device.into());
    let reply = client.send(&call)?;
    let said = said(reply.status.as_u16());
    let name = reply.json["name"].as_str().unwrap_or_default();
    let people = |_| format!("device/{name} {said}\n");
    let one = [reply.json.clone()];
    let shown = Shown { value: &reply.json, names: named(&one), people: &people };
    Output::show(args.ask.output, &shown)
}

fn many(client: &Client, args: &Create, devices: Vec<Map<String, Value>>) -> Result<(), Failure> {
    let bar = Bar::new("creating", devices.len());
    let (mut items, mut failures, mut sent) = (Vec::new(), Vec::new(), 0);
    for batch in devices.chunks(if args.atomic { devices.len().max(1) } else { BATCH }) {
        let body = json!({ "devices": batch, "atomic": args.atomic });
        let path = DEVICES.to_owned() + ":batch";
        let call = Call::change(Method::POST, path, args.ask.at.change()).body(body);
        let mut created = client.send(&call)?.json;
        let Value::Array(batch_items) = created["items"].take() else { continue };
        for item in &batch_items {
            let name = item["name"].as_str().unwrap_or_default();
            match Failure::of_problem(&item["problem"]) {
                Some(failure) => failures.push(failure.about(name)),
                None if matches!(args.ask.output, None | Some(Output::Wide)) => {
                    let status = item["status"].as_u64().unwrap_or_default() as u16;
                    bar.print(|| print(&format!("device/{name} {}\n", said(status))))?;
                }
                None => {}
            }
        }
        items.extend(batch_items);
        sent += batch.len();
        bar.at(sent);
    }
    drop(bar);
    if !matches!(args.ask.output, None | Some(Output::Wide)) {
        let value = json!({ "items": &items });
        let good: Vec<_> = items.iter().filter(|item| item["problem"].is_null()).cloned().collect();
        let shown = Shown { value: &value, names: named(&good), people: &|_| String::new() };
        Output::show(args.ask.output, &shown)?;
    }
    Failure::all(failures)
}

/// What a good status means.
fn said(status: u16) -> &'static str {
    if status == 201 { "created" } else { "unchanged" }
}

/// A device with the keys of `[[device]]`, as far as they were given.
fn by_flags(name: &str, args: &DeviceArgs) -> Result<Map<String, Value>, Failure> {
    let path = args.path.as_deref().map(|path| absolute(Path::new(""), path)).transpose()?;
    let yes = |flag: bool| flag.then_some(Value::Bool(true));
    let keys = [
        ("name", Some(name.into())),
        ("target", args.target.as_deref().map(Value::from)),
        ("size", args.size.map(Value::from)),
        ("path", path),
        ("direct", yes(args.direct)),
        ("id", args.id.map(Value::from)),
        ("queues", args.queues.map(Value::from)),
        ("depth", args.depth.map(Value::from)),
        ("max_io", args.max_io.map(Value::from)),
        ("logical_block", args.logical_block.map(Value::from)),
        ("physical_block", args.physical_block.map(Value::from)),
        ("read_only", yes(args.read_only)),
        ("partitions", yes(args.partitions)),
        ("data", args.data.map(|data| data.as_str().into())),
        ("batch", yes(args.batch)),
        ("affinity", args.no_affinity.then_some(Value::Bool(false))),
        ("recovery", yes(args.recovery)),
        ("busy", args.busy.map(|busy| busy.as_str().into())),
    ];
    Ok(keys.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect())
}

/// The devices of a file, checked as a config is when it is one.
fn of_file(file: &Path) -> Result<Vec<Map<String, Value>>, Failure> {
    if file.extension().is_some_and(|extension| extension == "toml") {
        let config = Sources::new().path(file).load();
        let config = config.map_err(|e| Failure::new(ExitStatus::Usage, e.to_string()))?;
        let value = serde_json::to_value(&config).unwrap_or_default();
        let mut devices = objects(&value["devices"]).unwrap_or_default();
        for device in &mut devices {
            device.remove("origin");
        }
        return Ok(devices);
    }
    let stdin = file == Path::new("-");
    let read = if stdin { text(io::stdin().lock()) } else { File::open(file).and_then(text) };
    let read = read.map_err(|e| {
        let error = Error::from_io(&e, format!("cannot read {}", file.display()));
        Failure::new(ExitStatus::Usage, error.to_string())
    })?;
    let wrong = |what: String| {
        let text = format!(
            "{}: {what}; expected *.toml, or JSON: a device, a list of devices, or \
             {{\"devices\": [\u{2026}]}}",
            file.display()
        );
        Failure::new(ExitStatus::Usage, text)
    };
    let value: Value = serde_json::from_str(&read).map_err(|e| wrong(e.to_string()))?;
    let list = value.get("devices").unwrap_or(&value);
    let mut devices = objects(list).ok_or_else(|| wrong("no devices".to_owned()))?;
    let base = if stdin { Path::new("") } else { file.parent().unwrap_or(Path::new("")) };
    for device in &mut devices {
        if let Some(Value::String(path)) = device.get("path") {
            let path = absolute(base, Path::new(path))?;
            device.insert("path".to_owned(), path);
        }
    }
    Ok(devices)
}

/// At most as much as a config may have.
fn text(from: impl Read) -> io::Result<String> {
    let mut text = String::new();
    let read = from.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if read as u64 > MAX_BYTES {
        return Err(io::Error::other(format!("more than {MAX_BYTES} bytes")));
    }
    Ok(text)
}

/// One object or a list of them.
fn objects(value: &Value) -> Option<Vec<Map<String, Value>>> {
    match value {
        Value::Object(object) => Some(vec![object.clone()]),
        Value::Array(items) => items.iter().map(|item| item.as_object().cloned()).collect(),
        _ => None,
    }
}

fn absolute(base: &Path, path: &Path) -> Result<Value, Failure> {
    let wrong = |why: String| {
        Failure::new(ExitStatus::Usage, format!("the path {}: {why}", path.display()))
    };
    let path = std::path::absolute(base.join(path)).map_err(|e| wrong(e.to_string()))?;
    let text = path.to_str().ok_or_else(|| wrong("is not UTF-8".to_owned()))?;
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f84_paths_start_where_the_file_is() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("devices.json");
        let device = json!({"name": "a", "target": "loop", "path": "disks/a.img"});
        let expected = dir.path().join("disks/a.img");
        for form in [device.clone(), json!([device]), json!({"devices": [device]})] {
            std::fs::write(&file, form.to_string()).expect("written");
            let devices = of_file(&file).expect("devices");
            assert_eq!(devices[0]["path"].as_str(), expected.to_str());
        }
        let toml = dir.path().join("devices.toml");
        let text = "[[device]]\nname = \"a{n}\"\ncount = 2\ntarget = \"ram\"\nsize = \"1M\"\n";
        std::fs::write(&toml, text).expect("written");
        let devices = of_file(&toml).expect("devices");
        assert_eq!((devices.len(), &devices[1]["name"]), (2, &json!("a1")));
        assert!(devices[0].get("origin").is_none());
    }

    #[test]
    fn f81_a_file_that_is_none_says_what_was_expected() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("x.json");
        for (text, said) in [("", "EOF"), ("7", "no devices"), ("[1]", "no devices"), ("{", "EOF")]
        {
            std::fs::write(&file, text).expect("written");
            let failure = of_file(&file).expect_err(text);
            assert_eq!(failure.status, ExitStatus::Usage);
            let told = failure.to_string();
            assert!(
                told.contains(said) && told.contains("x.json") && told.contains("*.toml"),
                "{told}"
            );
        }
        let failure = of_file(&dir.path().join("none.json")).expect_err("no file");
        assert!(failure.to_string().contains("ENOENT"), "{failure}");
    }
}
