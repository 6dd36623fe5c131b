//! How long a shutdown takes on hosts larger than any at hand: the law of shared grace periods, a
//! host's processors and the driver's mutex, on a clock of their own. It checks itself against
//! shutdowns that were measured, and prints how far off it is.
//!
//! ```sh
//! cargo run --release --example plan_shutdown
//! ```
//!
//! A debug build takes half a minute for it. `examples/measured/` has the measurements: what `ublkd bench teardown --json` printed, with the
//! command that did.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use serde_json::Value;
use ublkd::driver::sim::GracePeriods;

const MEASURED: [(&str, &str); 2] = [
    ("6.12", include_str!("measured/teardown-6.12.json")),
    ("7.3", include_str!("measured/teardown-7.3.json")),
];

/// Grace periods that the removal of a disk waits for, one after the other, as in the simulated
/// kernel.
const GRACES: u8 = 5;

/// What decides how long a device's teardown takes.
#[derive(Clone, Copy)]
struct Host {
    processors: usize,
    /// Work of a processor a device: half before the grace periods, half after.
    work: Duration,
    grace: Duration,
    /// How long a delete holds the driver's mutex.
    mutex: Duration,
}

/// Times of resources that do one thing at a time, each as soon as it is free.
struct Line(BinaryHeap<Reverse<Duration>>);

impl Line {
    fn new(servers: usize) -> Self {
        Self((0..servers).map(|_| Reverse(Duration::ZERO)).collect())
    }

    /// When something that arrives `now` and takes `time` is done.
    fn serve(&mut self, now: Duration, time: Duration) -> Duration {
        let Reverse(free) = self.0.pop().unwrap_or_default();
        let done = free.max(now) + time;
        self.0.push(Reverse(done));
        done
    }
}

impl Host {
    /// How long it takes until none of `devices` is left, `workers` at a time.
    fn shutdown(&self, devices: usize, workers: usize) -> Duration {
        let (mut processors, mut mutex) = (Line::new(self.processors), Line::new(1));
        let mut graces = GracePeriods::new(self.grace);
        let mut last = Duration::ZERO;
        // What happens when, and how many steps of its device are done: work, the grace periods,
        // work, the delete.
        let mut events: BinaryHeap<_> =
            (0..workers.min(devices)).map(|_| Reverse((Duration::ZERO, 0u8))).collect();
        let mut waiting = devices.saturating_sub(workers);
        while let Some(Reverse((now, done))) = events.pop() {
            last = now;
            const WORK: u8 = GRACES + 1;
            const DELETE: u8 = GRACES + 2;
            let next = match done {
                0 | WORK => processors.serve(now, self.work / 2),
                1..=GRACES => graces.arrive(now),
                DELETE => mutex.serve(now, self.mutex),
                _ if waiting > 0 => {
                    waiting -= 1;
                    events.push(Reverse((now, 0)));
                    continue;
                }
                _ => continue,
            };
            events.push(Reverse((next, done + 1)));
        }
        last
    }
}

/// The medians of one measured kernel.
struct Measured(Value);

impl Measured {
    fn read(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text).map(Self)
    }

    fn rows(&self) -> impl Iterator<Item = (&str, usize, usize, f64)> {
        let results = self.0["results"].as_array().into_iter().flatten();
        results.filter(|row| row["measure"] == "teardown").filter_map(|row| {
            let number = |key: &str| usize::try_from(row[key].as_u64()?).ok();
            let (order, median) = (row["order"].as_str()?, row["median"].as_f64()?);
            Some((order, number("devices")?, number("workers")?, median))
        })
    }

    fn of(&self, order: &str, workers: u64, measure: &str) -> f64 {
        let results = self.0["results"].as_array().into_iter().flatten();
        let mut found = results.filter(|row| {
            row["order"] == order && row["workers"] == workers && row["measure"] == measure
        });
        found.next().and_then(|row| row["median"].as_f64()).unwrap_or(f64::NAN)
    }

    /// The host that these rows tell of: the work from devices that went one by one, the grace period
    /// from four at a time, the mutex from sixteen that closed first. The other rows are left for
    /// checking.
    fn host(&self, close_first: bool) -> Host {
        let devices = self.rows().map(|(_, devices, ..)| devices).next().unwrap_or(1);
        let work = self.of("serial", 1, "processor time a device");
        let held = self.of("close-first", 16, "teardown") / devices as f64 - work;
        let four = Duration::from_secs_f64(self.of("delete-first", 4, "teardown"));
        // The guest's processors take turns on one.
        let work = Duration::from_secs_f64(work);
        let host = |grace| Host { processors: 1, work, grace, mutex: Duration::ZERO };
        let (mut least, mut most) = (Duration::ZERO, four);
        while most - least > Duration::from_micros(1) {
            let grace = (least + most) / 2;
            match host(grace).shutdown(devices, 4) > four {
                true => most = grace,
                false => least = grace,
            }
        }
        let mutex = Duration::from_secs_f64(if close_first { held.max(0.0) } else { 0.0 });
        Host { mutex, ..host(least) }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("the model against what was measured\n");
    println!("kernel  order         devices  workers  measured     model  error");
    for (kernel, text) in MEASURED {
        let measured = Measured::read(text)?;
        for (order, devices, workers, seconds) in measured.rows() {
            // On 6.12 no delete waits inside the mutex.
            let host = measured.host(order == "close-first" && kernel != "6.12");
            let model = host.shutdown(devices, workers).as_secs_f64();
            let error = (model / seconds - 1.0) * 100.0;
            println!(
                "{kernel:7} {order:13} {devices:>7} {workers:>8} {seconds:>7.3} s {model:>7.3} s {error:>+5.0} %"
            );
        }
    }

    println!("\none host, seconds until no device is left\n");
    println!(
        "kernel, order              grace  processors  workers    1,000   10,000  100,000  1,000,000"
    );
    let recent = Measured::read(MEASURED[1].1)?;
    let (first, last) = (recent.host(true), recent.host(false));
    let plans = [
        ("7.3, close first", first, 10, 4, 16),
        ("7.4, or delete first", last, 10, 4, 64),
        ("7.4, or delete first", last, 10, 4, 1024),
        ("7.4, or delete first", last, 10, 64, 1024),
        ("7.4, or delete first", last, 50, 64, 1024),
    ];
    for (name, host, grace, processors, workers) in plans {
        let host = Host { processors, grace: Duration::from_millis(grace), ..host };
        let [a, b, c, d] = [1_000, 10_000, 100_000, 1_000_000]
            .map(|devices| host.shutdown(devices, workers).as_secs_f64());
        println!(
            "{name:26} {grace:>2} ms {processors:>11} {workers:>8} {a:>8.2} {b:>8.1} {c:>8.0} {d:>10.0}"
        );
    }

    println!(
        "\na million devices on many hosts of 64 processors, delete first, 1024 workers each\n"
    );
    println!("hosts  devices a host  seconds");
    let host = Host { processors: 64, ..recent.host(false) };
    for hosts in [10, 100, 250, 1000] {
        let devices = 1_000_000 / hosts;
        println!("{hosts:>5} {devices:>15} {:>8.2}", host.shutdown(devices, 1024).as_secs_f64());
    }
    Ok(())
}
