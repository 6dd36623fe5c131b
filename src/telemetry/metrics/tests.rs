//! The output against the rules of the format, and the table against the docs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::*;
use crate::model::{
    DeviceId, DeviceInfo, DeviceName, DeviceSpec, DeviceState, ErrorKind, GroupName, Labels,
    Latency, Occupancy, OpStats, Operation, Origin, Stage, Tally, TargetSpec,
};

type TestResult = Result<(), Box<dyn std::error::Error>>;

fn device(name: &str, id: u32) -> Result<DeviceInfo, Box<dyn std::error::Error>> {
    let mut latency = Latency::default();
    latency.add(std::time::Duration::from_micros(3));
    latency.add(std::time::Duration::from_secs(60));
    let read = OpStats { requests: 2, bytes: 4096, errors: 1, latency };
    let spec = DeviceSpec::builder(DeviceName::new(name)?, TargetSpec::Null { size: 1 << 20 });
    Ok(DeviceInfo {
        name: DeviceName::new(name)?,
        id: Some(DeviceId(id)),
        path: Some(DeviceId(id).block_path()),
        state: DeviceState::Live,
        stage: Stage::Live,
        target: "null".to_owned(),
        size: Some(1 << 20),
        queues: 1,
        depth: 64,
        read_only: false,
        tids: Vec::new(),
        processors: Vec::new(),
        since_s: 1.0,
        io: IoStats { read, in_flight: 3, ..IoStats::default() },
        error: None,
        group: Some(GroupName::new("vm1")?),
        labels: Labels::default(),
        origin: Origin::Config,
        holders: Vec::new(),
        spec: Arc::new(spec.build()?),
    })
}

fn snapshot(devices: u32) -> Result<Snapshot, Box<dyn std::error::Error>> {
    let mut tally = Tally::default();
    tally.operations.insert((Operation::Create, "ok"), 7);
    tally.refusals.insert(ErrorKind::Exists, 1);
    tally.wedged.insert(Stage::Stop, 1);
    tally.stages.entry(Stage::Add).or_default().add(std::time::Duration::from_millis(2));
    tally.past_io.read.requests = 100;
    let devices = (0..devices).map(|n| device(&format!("d{n}"), n)).collect::<Result<_, _>>()?;
    let occupied = Occupancy { used: 1, limit: 64 };
    Ok(Snapshot { devices, tally, mailbox: occupied, workers: occupied })
}

/// Series by name and labels, after every rule of the format that the output could break was
/// checked: each family once with TYPE, UNIT as the name's end, suffixes of its kind, values that
/// are numbers, cumulative buckets that end with +Inf and agree with the count, EOF at the end.
fn parse(text: &str) -> Result<BTreeMap<String, f64>, String> {
    let mut families: BTreeMap<String, String> = BTreeMap::new();
    let mut series = BTreeMap::new();
    let mut current = String::new();
    let mut buckets: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    let body = text.strip_suffix("# EOF\n").ok_or("no EOF at the end")?;
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.splitn(3, ' ');
            let (what, name, value) = (words.next(), words.next(), words.next());
            let (name, value) = (name.ok_or(line)?, value.ok_or(line)?);
            match what {
                Some("HELP") => {
                    current = name.to_owned();
                    if families.contains_key(name) {
                        return Err(format!("{name} comes twice"));
                    }
                }
                Some("TYPE") if name == current => {
                    families.insert(name.to_owned(), value.to_owned());
                }
                Some("UNIT") if name == current && name.ends_with(&format!("_{value}")) => {}
                _ => return Err(format!("out of place: {line}")),
            }
            continue;
        }
        let (key, value) = line.rsplit_once(' ').ok_or(line)?;
        let value: f64 = value.parse().map_err(|_| line)?;
        let (name, labels) = match key.split_once('{') {
            Some((name, labels)) => (name, labels.strip_suffix('}').ok_or(line)?),
            None => (key, ""),
        };
        let kind = families.get(&current).ok_or(line)?.as_str();
        let suffixes: &[&str] = match kind {
            "counter" => &["_total"],
            "gauge" => &[""],
            "info" => &["_info"],
            "histogram" => &["_sum", "_count", "_bucket"],
            _ => return Err(format!("unknown kind: {kind}")),
        };
        if !suffixes.iter().any(|suffix| name == format!("{current}{suffix}")) {
            return Err(format!("{line} is no series of {current}"));
        }
        if name.ends_with("_bucket") {
            let (bounds, others): (Vec<_>, Vec<_>) =
                labels.split(',').partition(|label| label.starts_with("le="));
            let bound = bounds.first().ok_or(line)?[3..].trim_matches('"');
            let bound = match bound {
                "+Inf" => f64::INFINITY,
                bound => bound.parse().map_err(|_| line)?,
            };
            let of = format!("{current}{{{}}}", others.join(","));
            buckets.entry(of).or_default().push((bound, value));
        }
        if series.insert(key.to_owned(), value).is_some() {
            return Err(format!("{key} comes twice"));
        }
    }
    for (of, buckets) in buckets {
        let sorted = buckets.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 <= w[1].1);
        let (name, labels) = of.split_once('{').ok_or("no labels")?;
        let count =
            if labels == "}" { format!("{name}_count") } else { format!("{name}_count{{{labels}") };
        let last = buckets.last().copied();
        if !sorted || last != series.get(&count).map(|count| (f64::INFINITY, *count)) {
            return Err(format!("{of}: {buckets:?}, {last:?}"));
        }
    }
    Ok(series)
}

#[test]
fn the_output_is_openmetrics_and_says_what_is_so() -> TestResult {
    let text = render(snapshot(2)?, 1000);
    let series = parse(&text)?;
    let get = |key: &str| series.get(key).copied().ok_or_else(|| format!("no {key}"));
    assert_eq!(get("ublkd_devices{state=\"live\"}")?, 2.0);
    assert_eq!(get("ublkd_devices{state=\"wedged\"}")?, 0.0);
    assert_eq!(get("ublkd_operations_total{operation=\"create\",outcome=\"ok\"}")?, 7.0);
    assert_eq!(get("ublkd_io_requests_total{op=\"read\"}")?, 104.0, "devices of the past too");
    assert_eq!(get("ublkd_io_bytes_total{op=\"read\"}")?, 8192.0);
    assert_eq!(get("ublkd_io_in_flight")?, 6.0);
    assert_eq!(get("ublkd_device_io_requests_total{device=\"d1\",op=\"read\"}")?, 2.0);
    let count = "ublkd_device_io_latency_seconds_count{device=\"d1\",op=\"read\"}";
    assert_eq!(get(count)?, 2.0);
    let bucket = |bound| {
        let labels = format!("le=\"{bound}\",device=\"d1\",op=\"read\"");
        get(&format!("ublkd_device_io_latency_seconds_bucket{{{labels}}}"))
    };
    assert_eq!((bucket("0.000001024")?, bucket("0.000004096")?, bucket("+Inf")?), (0.0, 1.0, 2.0));
    assert!(get("ublkd_process_resident_memory_bytes")? > 1e6);
    assert!(
        get("ublkd_device_info{device=\"d0\",node=\"/dev/ublkb0\",target=\"null\",group=\"vm1\"}")?
            == 1.0
    );
    Ok(())
}

#[test]
fn a_fleet_beyond_the_bound_adds_no_series() -> TestResult {
    let devices = |series: &BTreeMap<String, f64>| -> BTreeSet<String> {
        let labelled = series.keys().filter_map(|key| key.split_once("device=\""));
        labelled.filter_map(|(_, rest)| Some(rest.split_once('"')?.0.to_owned())).collect()
    };
    let few = parse(&render(snapshot(10)?, 10))?;
    let many = parse(&render(snapshot(4000)?, 10))?;
    assert_eq!(devices(&few).len(), 10);
    assert_eq!(devices(&many).len(), 10);
    assert_eq!(few.len(), many.len());
    assert_eq!(many.get("ublkd_devices_without_series"), Some(&3990.0));
    assert_eq!(many.get("ublkd_io_requests_total{op=\"read\"}"), Some(&8100.0));
    assert!(devices(&parse(&render(snapshot(10)?, 0))?).is_empty());
    Ok(())
}

#[test]
fn every_metric_has_series_and_a_line_in_the_docs() -> TestResult {
    let text = render(snapshot(2)?, 1000);
    for line in reference_markdown().lines().skip(2) {
        let name = line.split('`').nth(1).ok_or(line)?;
        let sample = |l: &str| l.starts_with(name) && !l.starts_with('#');
        assert!(text.lines().any(sample), "no series of {name}");
    }
    let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md"))?;
    assert!(
        docs.contains(&reference_markdown()),
        "docs/metrics.md: put in\n{}",
        reference_markdown()
    );
    Ok(())
}
