//! Every metric in one table: name, kind, unit, labels, help, and where its series come from. The
//! output and `docs/metrics.md` are made from it.

use std::fmt::{self, Write};

use prometheus_client::metrics::MetricType::{self, Counter, Gauge, Histogram, Info};
use prometheus_client::registry::Unit;

use super::scrape::{Out, Scrape};

/// One metric.
pub(super) struct Metric {
    /// Without the prefix `ublkd_`, the unit, and the suffix of its kind.
    pub(super) name: &'static str,
    pub(super) kind: MetricType,
    pub(super) unit: Option<Unit>,
    /// Labels of every series.
    labels: &'static str,
    pub(super) help: &'static str,
    /// Writes its series.
    pub(super) series: fn(&Scrape, &mut Out<'_>) -> fmt::Result,
}

/// All of them, in the order of the output.
pub(super) const ALL: &[Metric] = &[
    Metric {
        name: "build",
        kind: Info,
        unit: None,
        labels: "version",
        help: "The version of ublkd",
        series: |_, out| out.info(&[("version", env!("CARGO_PKG_VERSION"))]),
    },
    Metric {
        name: "devices",
        kind: Gauge,
        unit: None,
        labels: "state",
        help: "Devices by state",
        series: Scrape::states,
    },
    Metric {
        name: "operations",
        kind: Counter,
        unit: None,
        labels: "operation, outcome",
        help: "Starts (create) by ok or the kind of their error, and ends of devices (end), asked for or not, by their outcome",
        series: Scrape::operations,
    },
    Metric {
        name: "stage_duration",
        kind: Histogram,
        unit: Some(Unit::Seconds),
        labels: "stage",
        help: "Time of each stage of starts and ends; wait is waiting for a worker",
        series: |scrape, out| {
            let stages = scrape.snapshot.tally.stages.iter();
            stages
                .into_iter()
                .try_for_each(|(stage, times)| out.histogram(&[("stage", stage.as_str())], times))
        },
    },
    Metric {
        name: "refusals",
        kind: Counter,
        unit: None,
        labels: "kind",
        help: "Operations that were refused before anything was done, by the kind of error",
        series: |scrape, out| {
            let refusals = &scrape.snapshot.tally.refusals;
            refusals
                .iter()
                .try_for_each(|(kind, count)| out.counter(&[("kind", kind.as_str())], *count))
        },
    },
    Metric {
        name: "wedged_commands",
        kind: Counter,
        unit: None,
        labels: "stage",
        help: "Control commands that the kernel never answered, by the stage that sent them",
        series: |scrape, out| {
            let wedged = &scrape.snapshot.tally.wedged;
            wedged
                .iter()
                .try_for_each(|(stage, count)| out.counter(&[("stage", stage.as_str())], *count))
        },
    },
    Metric {
        name: "panics",
        kind: Counter,
        unit: None,
        labels: "",
        help: "Panics of any thread, those that were caught too",
        series: |scrape, out| out.counter(&[], scrape.panics),
    },
    Metric {
        name: "mailbox_places",
        kind: Gauge,
        unit: None,
        labels: "part",
        help: "Places for operations that wait (limit) and how many are taken (used); an operation beyond the limit is refused",
        series: |scrape, out| out.occupancy(scrape.snapshot.mailbox),
    },
    Metric {
        name: "workers",
        kind: Gauge,
        unit: None,
        labels: "part",
        help: "Operations that may run at once (limit) and how many do (used)",
        series: |scrape, out| out.occupancy(scrape.snapshot.workers),
    },
    Metric {
        name: "io_requests",
        kind: Counter,
        unit: None,
        labels: "op",
        help: "Requests answered, all devices since the start of the daemon",
        series: |scrape, out| scrape.sum(out, |op| op.requests),
    },
    Metric {
        name: "io",
        kind: Counter,
        unit: Some(Unit::Bytes),
        labels: "op",
        help: "Bytes of the requests that went well, all devices since the start of the daemon",
        series: |scrape, out| scrape.sum(out, |op| op.bytes),
    },
    Metric {
        name: "io_errors",
        kind: Counter,
        unit: None,
        labels: "op",
        help: "Requests answered with an error, all devices since the start of the daemon",
        series: |scrape, out| scrape.sum(out, |op| op.errors),
    },
    Metric {
        name: "io_latency",
        kind: Histogram,
        unit: Some(Unit::Seconds),
        labels: "op",
        help: "From the arrival of a request until its answer goes back, all devices since the start of the daemon",
        series: |scrape, out| {
            let ops = scrape.total.ops();
            ops.iter().try_for_each(|(op, stats)| out.histogram(&[("op", op)], &stats.latency))
        },
    },
    Metric {
        name: "io_in_flight",
        kind: Gauge,
        unit: None,
        labels: "",
        help: "Requests that have come and are not answered, all devices",
        series: |scrape, out| out.gauge(&[], scrape.total.in_flight),
    },
    Metric {
        name: "device",
        kind: Info,
        unit: None,
        labels: "device, node, target, group",
        help: "A device that has series of its own: its node, what serves it, and its group",
        series: |scrape, out| {
            scrape.shown().try_for_each(|device| {
                let node = device.path.as_deref().unwrap_or_default();
                let group = device.group.as_ref().map_or("", |group| group.as_str());
                out.info(&[
                    ("device", device.name.as_str()),
                    ("node", node),
                    ("target", &device.target),
                    ("group", group),
                ])
            })
        },
    },
    Metric {
        name: "device_io_requests",
        kind: Counter,
        unit: None,
        labels: "device, op",
        help: "Requests answered",
        series: |scrape, out| scrape.each(|labels, op| out.counter(labels, op.requests)),
    },
    Metric {
        name: "device_io",
        kind: Counter,
        unit: Some(Unit::Bytes),
        labels: "device, op",
        help: "Bytes of the requests that went well",
        series: |scrape, out| scrape.each(|labels, op| out.counter(labels, op.bytes)),
    },
    Metric {
        name: "device_io_errors",
        kind: Counter,
        unit: None,
        labels: "device, op",
        help: "Requests answered with an error",
        series: |scrape, out| scrape.each(|labels, op| out.counter(labels, op.errors)),
    },
    Metric {
        name: "device_io_latency",
        kind: Histogram,
        unit: Some(Unit::Seconds),
        labels: "device, op",
        help: "From the arrival of a request until its answer goes back",
        series: |scrape, out| scrape.each(|labels, op| out.histogram(labels, &op.latency)),
    },
    Metric {
        name: "device_io_in_flight",
        kind: Gauge,
        unit: None,
        labels: "device",
        help: "Requests that have come and are not answered",
        series: |scrape, out| {
            scrape.shown().try_for_each(|device| {
                out.gauge(&[("device", device.name.as_str())], device.io.in_flight)
            })
        },
    },
    Metric {
        name: "devices_without_series",
        kind: Gauge,
        unit: None,
        labels: "",
        help: "Devices beyond metrics.per_device_max, which are in the sums only",
        series: |scrape, out| {
            let shown = scrape.shown().count();
            out.gauge(&[], (scrape.snapshot.devices.len() - shown) as u64)
        },
    },
    Metric {
        name: "process_resident_memory",
        kind: Gauge,
        unit: Some(Unit::Bytes),
        labels: "",
        help: "Resident memory of the daemon",
        series: |scrape, out| out.gauge(&[], scrape.resident),
    },
    Metric {
        name: "process_open_fds",
        kind: Gauge,
        unit: None,
        labels: "",
        help: "Open file descriptors of the daemon",
        series: |scrape, out| out.gauge(&[], scrape.census.fds as u64),
    },
    Metric {
        name: "process_threads",
        kind: Gauge,
        unit: None,
        labels: "",
        help: "Threads of the daemon, the kernel's workers for it among them",
        series: |scrape, out| out.gauge(&[], scrape.census.threads as u64),
    },
];

impl Metric {
    /// The name of its series, without what a histogram adds for each of its parts.
    fn full_name(&self) -> String {
        let unit = self.unit.as_ref().map(|unit| format!("_{}", unit.as_str()));
        let suffix = match self.kind {
            Counter => "_total",
            Info => "_info",
            _ => "",
        };
        format!("ublkd_{}{}{suffix}", self.name, unit.unwrap_or_default())
    }
}

/// All metrics as a Markdown table; `docs/metrics.md` holds it and a test compares the two.
#[must_use]
pub fn reference_markdown() -> String {
    let mut out = "| metric | type | labels | meaning |\n|---|---|---|---|\n".to_owned();
    for metric in ALL {
        let (name, kind) = (metric.full_name(), metric.kind.as_str());
        // Writing to a string cannot fail.
        let _ = writeln!(out, "| `{name}` | {kind} | {} | {} |", metric.labels, metric.help);
    }
    out
}
