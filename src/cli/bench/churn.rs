//! `ublkd bench churn`: devices that come and go all the time, as on a host of short-lived guests.

use std::time::{Duration, Instant};

use futures::executor::block_on;
use futures::future::join_all;
use serde_json::json;

use super::args::{Churn, Order};
use super::fleet::Fleet;
use super::floor;
use super::lab::{self, Lab, SMALL};
use crate::cli::render::measured::{Findings, Unit, measured};
use crate::model::{DeleteOutcome, DeviceSpec, Error, WorkerLimit};

/// One round.
struct Sample {
    wall: Duration,
    /// Each coming and each going, with the time it stood in line.
    up: Vec<f64>,
    down: Vec<f64>,
}

pub(super) fn churn(args: &Churn) -> Result<Findings, Error> {
    let lab = Lab::new(&args.common, &[args.devices], &args.workers)?;
    let workers = args.workers.iter();
    let cases: Vec<_> =
        workers.flat_map(|&n| [(Order::Floor, n), (Order::DeleteFirst, n)]).collect();
    let samples = lab.rounds(&cases, |&(by, workers)| match by {
        Order::Floor => bare(&lab, args, workers),
        _ => ours(&lab, args, workers),
    })?;

    let lives = (args.devices * args.cycles) as f64;
    let mut results = Vec::new();
    for ((by, workers), samples) in cases.into_iter().zip(&samples) {
        let by = if by == Order::Floor { "floor" } else { "ublkd" };
        let case = || vec![("by", json!(by)), ("workers", json!(workers))];
        let rates = samples.iter().map(|s| lives / s.wall.as_secs_f64());
        results.push(measured(case(), "lives", Unit::PerSecond, rates));
        let ups = samples.iter().flat_map(|s| s.up.iter().copied());
        results.push(measured(case(), "one create", Unit::Seconds, ups));
        let downs = samples.iter().flat_map(|s| s.down.iter().copied());
        results.push(measured(case(), "one delete", Unit::Seconds, downs));
    }
    Ok(lab::findings("churn", results))
}

fn ours(lab: &Lab, args: &Churn, workers: WorkerLimit) -> Result<Sample, Error> {
    let fleet = Fleet::new(lab, workers, false)?;
    let handle = fleet.handle();
    let life = async |spec: &DeviceSpec| {
        let began = Instant::now();
        handle.create(spec.clone()).await?;
        let up = began.elapsed();
        let outcome = handle.delete(spec.name()).await?;
        if let DeleteOutcome::Ended(outcome) = outcome
            && let Some(error) = outcome.error
        {
            return Err(error);
        }
        Ok((up, began.elapsed() - up))
    };
    let sample = block_on(cycles(args, life));
    fleet.shutdown()?;
    sample
}

fn bare(lab: &Lab, args: &Churn, workers: WorkerLimit) -> Result<Sample, Error> {
    floor::with(lab, workers, async |floor| {
        let life = async |spec: &DeviceSpec| {
            let began = Instant::now();
            let live = floor.up(spec).await?;
            let up = began.elapsed();
            floor.down(live).await?;
            Ok((up, began.elapsed() - up))
        };
        cycles(args, life).await
    })
}

/// All devices at the same time, each so many lives long.
async fn cycles(
    args: &Churn,
    life: impl AsyncFn(&DeviceSpec) -> Result<(Duration, Duration), Error>,
) -> Result<Sample, Error> {
    let life = &life;
    let specs = lab::nulls(args.devices, SMALL)?;
    let began = Instant::now();
    let devices = specs.iter().map(|spec| async move {
        let mut times = Vec::with_capacity(args.cycles);
        for _ in 0..args.cycles {
            times.push(life(spec).await?);
        }
        Ok::<_, Error>(times)
    });
    // All of them to their end, so that an error of one leaves none of the others half way.
    let times = join_all(devices).await;
    let wall = began.elapsed();
    let (mut up, mut down) = (Vec::new(), Vec::new());
    for of_one in times {
        for (coming, going) in of_one? {
            up.push(coming.as_secs_f64());
            down.push(going.as_secs_f64());
        }
    }
    Ok(Sample { wall, up, down })
}
