//! What the supervisor itself costs: operations on a simulated driver whose commands take no time.
//!
//! ```sh
//! cargo bench --bench parts  # measures
//! cargo test --bench parts   # runs each once
//! ```

#![allow(clippy::unwrap_used, reason = "what goes wrong here ends the bench")]

use std::hint::black_box;
use std::rc::Rc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use futures::StreamExt;
use futures::executor::block_on;
use futures::future::join_all;
use ublkd::driver::Driver;
use ublkd::driver::sim::{FaultPlan, KernelProfile, QueueMode, SimDriver};
use ublkd::model::{DeviceName, DeviceSpec, ErrorKind, TargetSpec};
use ublkd::{Builder, Handle, Running};

/// Operations in flight at a time where many are.
const MANY: usize = 1000;

/// A supervisor over a kernel that takes no time and never waits.
fn supervisor(shape: impl FnOnce(Builder) -> Builder, faults: &str) -> Running {
    let mut kernel = KernelProfile::linux_7_4().grace_only();
    kernel.costs.stop_graces = 0;
    kernel.costs.last_reference = Duration::ZERO;
    let plan: FaultPlan =
        if faults.is_empty() { FaultPlan::none() } else { faults.parse().unwrap() };
    let driver = Builder::new(Box::new(move |_| {
        Ok(Rc::new(SimDriver::new(kernel, plan, QueueMode::Virtual)) as Rc<dyn Driver>)
    }));
    shape(driver).start().unwrap()
}

fn name(n: usize) -> DeviceName {
    DeviceName::new(format!("d{n}")).unwrap()
}

fn null(n: usize) -> DeviceSpec {
    DeviceSpec::builder(name(n), TargetSpec::Null { size: 1 << 20 }).build().unwrap()
}

/// Brings devices up and keeps them.
fn fleet(handle: &Handle, devices: usize) {
    block_on(handle.create_all((0..devices).map(null)).for_each(|(_, created)| {
        created.unwrap();
        futures::future::ready(())
    }));
}

/// A full mailbox: how fast one more is refused.
fn admission(c: &mut Criterion) {
    let mut group = c.benchmark_group("admission");
    group.throughput(Throughput::Elements(1));
    let running = supervisor(|b| b.workers(1).mailbox(1).command_timeout(DAY), "add: hang");
    let handle = running.handle();
    // One runs and never ends; then one waits, and has the only place.
    let mut waits = Vec::new();
    for waiting in 0..2 {
        let asking = handle.clone();
        waits.push(std::thread::spawn(move || block_on(asking.create(null(waiting)))));
        let bound = Instant::now() + Duration::from_secs(10);
        while handle.waiting() != waiting || block_on(handle.list()).unwrap().len() <= waiting {
            assert!(Instant::now() < bound, "create {waiting} was not taken up");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let spec = null(MANY);
    group.bench_function("refused", |b| {
        b.iter(|| {
            let error = block_on(handle.create(spec.clone())).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Overloaded);
        });
    });
    group.finish();
    handle.force();
    block_on(running.shutdown(Duration::from_millis(1))).unwrap();
    for wait in waits {
        drop(wait.join().unwrap());
    }
}

const DAY: Duration = Duration::from_secs(86_400);

/// Questions to the supervisor's actor, one by one and many in flight, among many devices.
fn registry(c: &mut Criterion) {
    let mut group = c.benchmark_group("registry");
    for devices in [100, 10_000] {
        let running = supervisor(|b| b, "");
        let handle = running.handle();
        fleet(&handle, devices);
        let wanted = name(devices / 2);
        group.throughput(Throughput::Elements(MANY as u64));
        group.bench_function(BenchmarkId::new("describe", devices), |b| {
            b.iter(|| {
                let asked = join_all((0..MANY).map(|_| handle.describe(&wanted)));
                assert!(block_on(asked).iter().all(|known| matches!(known, Ok(Some(_)))));
            });
        });
        group.throughput(Throughput::Elements(devices as u64));
        group.bench_function(BenchmarkId::new("list", devices), |b| {
            b.iter(|| black_box(block_on(handle.list()).unwrap()).len());
        });
        block_on(running.shutdown(DAY)).unwrap();
    }
    group.finish();
}

/// There and back: a message to the supervisor's actor, on its thread, and its answer.
fn round_trip(c: &mut Criterion) {
    let running = supervisor(|b| b, "");
    let handle = running.handle();
    let nobody = name(0);
    let mut group = c.benchmark_group("round trip");
    group.throughput(Throughput::Elements(1));
    group.bench_function("one at a time", |b| {
        b.iter(|| assert!(block_on(handle.describe(&nobody)).unwrap().is_none()));
    });
    group.throughput(Throughput::Elements(MANY as u64));
    group.bench_function("1000 in flight", |b| {
        b.iter(|| {
            let asked = join_all((0..MANY).map(|_| handle.describe(&nobody)));
            assert!(block_on(asked).iter().all(Result::is_ok));
        });
    });
    group.finish();
    block_on(running.shutdown(DAY)).unwrap();
}

/// Whole lives: starts and teardowns through the schedule, each some ten commands long.
fn schedule(c: &mut Criterion) {
    let mut group = c.benchmark_group("schedule");
    group.throughput(Throughput::Elements(2 * MANY as u64));
    group.sample_size(20);
    for workers in ["1", "64", "auto"] {
        let limit: ublkd::model::WorkerLimit = workers.parse().unwrap();
        group.bench_function(BenchmarkId::new("starts and teardowns", workers), |b| {
            b.iter(|| {
                let running = supervisor(|b| b.workers(limit), "");
                fleet(&running.handle(), MANY);
                let report = block_on(running.shutdown(DAY)).unwrap();
                assert!(report.is_clean());
            });
        });
    }
    group.finish();
}

criterion_group!(parts, admission, registry, round_trip, schedule);
criterion_main!(parts);
