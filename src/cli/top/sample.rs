//! What devices do in a second: the difference of two looks at their counters.
//!
//! Invariants: a device that is another one under the same name (another id, or counters that went
//! back) is counted from nothing; without a look before there are no rates.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::cli::view::Device;
use crate::model::{IoStats, Latency};

/// One look at all devices.
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) devices: Vec<Device>,
}

/// A line of the table.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) node: String,
    pub(super) group: String,
    pub(super) state: String,
    pub(super) rates: Option<Rates>,
    /// Requests in the server now, and how many there may be.
    pub(super) in_flight: u64,
    pub(super) room: u64,
    /// Requests with an error since the device started.
    pub(super) errors: u64,
}

/// What was done, by the second, and how long it took.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Rates {
    pub(super) requests: f64,
    pub(super) read: f64,
    pub(super) written: f64,
    pub(super) p50: Option<Duration>,
    pub(super) p99: Option<Duration>,
}

/// A row for each device of `now`.
pub(super) fn rows(before: Option<&Sample>, now: &Sample) -> Vec<Row> {
    let known: HashMap<&str, &Device> = before
        .map(|sample| sample.devices.iter().map(|device| (device.name.as_str(), device)).collect())
        .unwrap_or_default();
    let seconds = before.map(|before| now.at.duration_since(before.at).as_secs_f64());
    let row = |device: &Device| {
        let start = known.get(device.name.as_str()).filter(|known| known.id == device.id);
        let rates = seconds.filter(|seconds| *seconds > 0.0).map(|seconds| {
            let start = start.map(|known| &known.io).filter(|io| is_later(&device.io, io));
            rates(start.copied().unwrap_or_default(), device.io, seconds)
        });
        Row {
            name: device.name.clone(),
            node: device.path.clone().unwrap_or_default(),
            group: device.group.clone().unwrap_or_default(),
            state: device.state.clone(),
            rates,
            in_flight: device.io.in_flight,
            room: u64::from(device.queues) * u64::from(device.depth),
            errors: device.io.errors(),
        }
    };
    now.devices.iter().map(row).collect()
}

/// Whether every counter has stayed or grown.
fn is_later(now: &IoStats, before: &IoStats) -> bool {
    let pairs = now.ops().into_iter().zip(before.ops());
    pairs
        .into_iter()
        .all(|((_, now), (_, before))| now.requests >= before.requests && now.bytes >= before.bytes)
}

fn rates(before: IoStats, now: IoStats, seconds: f64) -> Rates {
    let a_second = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
    let mut latency = Latency::default();
    let mut requests = 0.0;
    for ((_, now), (_, before)) in now.ops().into_iter().zip(before.ops()) {
        requests += a_second(now.requests, before.requests);
        let buckets = now.latency.buckets.iter().zip(before.latency.buckets);
        for (sum, (now, before)) in latency.buckets.iter_mut().zip(buckets) {
            *sum += now.saturating_sub(before);
        }
    }
    Rates {
        requests,
        read: a_second(now.read.bytes, before.read.bytes),
        written: a_second(now.write.bytes, before.write.bytes),
        p50: latency.quantile(0.5),
        p99: latency.quantile(0.99),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A device that has answered `requests` reads of 4 KiB, each in about 100 µs.
    pub(in crate::cli::top) fn device(name: &str, requests: u64) -> Device {
        let mut io = IoStats { in_flight: 3, ..IoStats::default() };
        io.read.requests = requests;
        io.read.bytes = 4096 * requests;
        io.read.latency.buckets[Latency::bucket(100_000)] = requests;
        let mut device: Device =
            serde_json::from_value(serde_json::json!({"name": name, "state": "live"}))
                .expect("a device");
        (device.id, device.path) = (Some(7), Some("/dev/ublkb7".to_owned()));
        (device.queues, device.depth, device.io) = (2, 64, io);
        device
    }

    pub(in crate::cli::top) fn samples(before: Vec<Device>, now: Vec<Device>) -> [Sample; 2] {
        let at = Instant::now();
        [Sample { at, devices: before }, Sample { at: at + Duration::from_secs(2), devices: now }]
    }

    #[test]
    fn rates_are_differences_by_the_second() {
        let [before, now] = samples(vec![device("a", 1000)], vec![device("a", 1500)]);
        let row = &rows(Some(&before), &now)[0];
        let rates = row.rates.expect("rates");
        assert_eq!((rates.requests, rates.read, rates.written), (250.0, 250.0 * 4096.0, 0.0));
        assert_eq!(rates.p99, Some(Duration::from_nanos(1 << 17)));
        assert_eq!((row.in_flight, row.room), (3, 128));
        assert_eq!(rows(None, &now)[0].rates, None);
    }

    #[test]
    fn only_what_was_done_between_two_looks_counts_for_latency() {
        let (mut before, mut now) = (device("a", 1_000_000), device("a", 1_000_000));
        // A million fast ones are long ago; the only one since was slow.
        for io in [&mut before.io, &mut now.io] {
            io.write.latency.buckets[0] = 1_000_000;
        }
        now.io.write.requests = 1;
        now.io.write.latency.buckets[20] = 1;
        let [before, now] = samples(vec![before], vec![now]);
        let rates = rows(Some(&before), &now)[0].rates.expect("rates");
        assert_eq!(rates.p50, Latency::bound(20));
    }

    #[test]
    fn another_device_of_the_same_name_is_counted_from_nothing() {
        let mut other = device("a", 600);
        other.id = Some(8);
        let [before, now] = samples(vec![device("a", 500)], vec![other]);
        assert_eq!(rows(Some(&before), &now)[0].rates.expect("rates").requests, 300.0);
        // The same id again, and fewer requests.
        let [before, now] = samples(vec![device("a", 500)], vec![device("a", 100)]);
        assert_eq!(rows(Some(&before), &now)[0].rates.expect("rates").requests, 50.0);
        // One that was not there before.
        let [before, now] = samples(vec![], vec![device("a", 100)]);
        assert_eq!(rows(Some(&before), &now)[0].rates.expect("rates").requests, 50.0);
    }
}
