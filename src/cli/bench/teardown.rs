//! `ublkd bench teardown`: how long it takes until no device is left, by order of the steps and
//! number of workers, and where the time goes.

use std::collections::BTreeMap;

use serde_json::json;

use super::args::{Order, Teardown};
use super::fleet::Fleet;
use super::floor;
use super::lab::{self, Down, Lab, SMALL};
use crate::cli::render::measured::{Findings, Unit, measured};
use crate::model::{Error, Stage, StageSummary, WorkerLimit};

/// What is varied.
#[derive(Clone, Copy, PartialEq)]
struct Case {
    devices: usize,
    order: Order,
    workers: WorkerLimit,
}

/// A teardown, and how long its stages took; a bare loop tells none.
struct Sample {
    down: Down,
    stages: BTreeMap<Stage, StageSummary>,
}

pub(super) fn teardown(args: &Teardown) -> Result<Findings, Error> {
    let lab = Lab::new(&args.common, &args.devices, &args.workers)?;
    let cases = cases(args);
    let samples = lab.rounds(&cases, |case| measure(&lab, *case))?;

    let mut results = Vec::new();
    for (Case { devices, order, workers }, samples) in cases.into_iter().zip(&samples) {
        let case = || {
            vec![("devices", json!(devices)), ("order", json!(order)), ("workers", json!(workers))]
        };
        let walls = samples.iter().map(|sample| sample.down.wall.as_secs_f64());
        results.push(measured(case(), "teardown", Unit::Seconds, walls));
        let each = |s: &Sample| s.down.processor.as_secs_f64() / devices as f64;
        let times = samples.iter().map(each);
        results.push(measured(case(), "processor time a device", Unit::Seconds, times));
        for stage in Stage::ALL.into_iter().filter(|_| args.stages) {
            let times = |pick: fn(&StageSummary) -> f64| {
                samples.iter().filter_map(|s| s.stages.get(&stage)).map(pick).collect::<Vec<_>>()
            };
            let halves = times(|s| s.p50);
            if !halves.is_empty() {
                let ends = times(|s| s.max);
                results.push(measured(case(), format!("{stage} p50"), Unit::Seconds, halves));
                results.push(measured(case(), format!("{stage} max"), Unit::Seconds, ends));
            }
        }
    }
    Ok(lab::findings("teardown", results))
}

/// Every order with every number of workers, but for what has one only.
fn cases(args: &Teardown) -> Vec<Case> {
    let mut cases = Vec::new();
    for (&devices, &order) in
        args.devices.iter().flat_map(|n| args.order.iter().map(move |o| (n, o)))
    {
        for &workers in &args.workers {
            let workers = if order == Order::Serial { WorkerLimit::Fixed(1) } else { workers };
            let case = Case { devices, order, workers };
            if !cases.contains(&case) {
                cases.push(case);
            }
        }
    }
    cases
}

fn measure(lab: &Lab, Case { devices, order, workers }: Case) -> Result<Sample, Error> {
    if order == Order::Floor {
        let (_, down) = floor::round(lab, devices, workers)?;
        return Ok(Sample { down, stages: BTreeMap::new() });
    }
    let fleet = Fleet::new(lab, workers, order == Order::CloseFirst)?;
    fleet.create(lab::nulls(devices, SMALL)?)?;
    let (down, report) = match order {
        Order::Serial => fleet.shutdown_one_by_one()?,
        _ => fleet.shutdown()?,
    };
    Ok(Sample { down, stages: report.stages })
}
