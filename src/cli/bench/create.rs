//! `ublkd bench create`: how long it takes until every device is in service, and whether the last
//! ones come as fast as the first.

use serde_json::json;

use super::args::{Create, Order};
use super::fleet::Fleet;
use super::floor;
use super::lab::{self, Lab, SMALL, Up};
use crate::cli::render::measured::{Findings, Unit, measured};
use crate::model::{Error, WorkerLimit};

pub(super) fn create(args: &Create) -> Result<Findings, Error> {
    let lab = Lab::new(&args.common, &args.devices, &args.workers)?;
    let mut cases = Vec::new();
    for &devices in &args.devices {
        for &workers in &args.workers {
            cases.extend([Order::Floor, Order::DeleteFirst].map(|by| (devices, by, workers)));
        }
    }
    let samples = lab.rounds(&cases, |&(devices, by, n)| measure(&lab, devices, by, n))?;

    let mut results = Vec::new();
    for ((devices, by, workers), ups) in cases.into_iter().zip(&samples) {
        let by = if by == Order::Floor { "floor" } else { "ublkd" };
        let case =
            || vec![("devices", json!(devices)), ("by", json!(by)), ("workers", json!(workers))];
        let totals = ups.iter().map(|up| up.total().as_secs_f64());
        results.push(measured(case(), "create", Unit::Seconds, totals));
        let times = ups.iter().map(|up| up.processor.as_secs_f64() / devices as f64);
        results.push(measured(case(), "processor time a device", Unit::Seconds, times));
        for (measure, tenth) in [("first tenth", 0), ("last tenth", 9)] {
            let rates = ups.iter().map(|up| up.rate(tenth));
            results.push(measured(case(), measure, Unit::PerSecond, rates));
        }
    }
    Ok(lab::findings("create", results))
}

fn measure(lab: &Lab, devices: usize, by: Order, workers: WorkerLimit) -> Result<Up, Error> {
    if by == Order::Floor {
        return floor::round(lab, devices, workers).map(|(up, _)| up);
    }
    let fleet = Fleet::new(lab, workers, false)?;
    let up = fleet.create(lab::nulls(devices, SMALL)?)?;
    fleet.shutdown()?;
    Ok(up)
}
