//! `ublkd bench density`: what one device costs this process, idle, and after each of its buffers
//! was filled once.

use std::time::Duration;

use serde_json::json;

use super::args::{Density, LoadOp};
use super::fleet::Fleet;
use super::lab::{self, Lab};
use super::load::{Shape, in_a_child};
use crate::cli::render::measured::{Findings, Unit, measured};
use crate::model::{Error, QueueSpec, WorkerLimit};
use crate::sys::census::{self, Census};

/// How long the process is left alone before it is looked at.
const SETTLE: Duration = Duration::from_millis(300);
/// Longer than an idle queue keeps the memory of its buffers.
const FORGOTTEN: Duration = Duration::from_secs(15);

/// What this process has at a moment.
struct Footprint {
    memory: f64,
    threads: f64,
    files: f64,
}

impl Footprint {
    fn take() -> Self {
        std::thread::sleep(SETTLE);
        let Census { threads, fds } = Census::take();
        Self { memory: census::resident() as f64, threads: threads as f64, files: fds as f64 }
    }

    /// What came on top of `before`, for each of `devices`.
    fn each(&self, before: &Self, devices: usize) -> Self {
        let devices = devices as f64;
        Self {
            memory: (self.memory - before.memory) / devices,
            threads: (self.threads - before.threads) / devices,
            files: (self.files - before.files) / devices,
        }
    }
}

/// After each buffer was filled once: at once, and when it has been idle since.
struct Touched {
    soon: Footprint,
    later: Footprint,
}

/// One device's cost: idle, and touched if that was asked for.
struct Sample {
    idle: Footprint,
    touched: Option<Touched>,
}

pub(super) fn density(args: &Density) -> Result<Findings, Error> {
    let lab = Lab::new(&args.common, &args.devices, &[WorkerLimit::Auto])?;
    if args.touch {
        lab.needs_kernel()?;
    }
    let samples = lab.rounds(&args.devices, |&devices| measure(&lab, args, devices))?;

    let mut results = Vec::new();
    for (&devices, samples) in args.devices.iter().zip(&samples) {
        let mut found = |measure, unit, pick: fn(&Sample) -> Option<f64>| {
            let values: Vec<_> = samples.iter().filter_map(pick).collect();
            if !values.is_empty() {
                results.push(measured(vec![("devices", json!(devices))], measure, unit, values));
            }
        };
        found("memory idle", Unit::Bytes, |s| Some(s.idle.memory));
        found("threads", Unit::Count, |s| Some(s.idle.threads));
        found("files", Unit::Count, |s| Some(s.idle.files));
        found("memory touched", Unit::Bytes, |s| s.touched.as_ref().map(|t| t.soon.memory));
        found("memory idle again", Unit::Bytes, |s| s.touched.as_ref().map(|t| t.later.memory));
    }
    Ok(lab::findings("density", results))
}

fn measure(lab: &Lab, args: &Density, devices: usize) -> Result<Sample, Error> {
    let queues = QueueSpec { count: 1, depth: args.depth, max_io: args.max_io << 10 };
    let fleet = Fleet::new(lab, WorkerLimit::Auto, false)?;
    // The first device brings up what there is once a process: workers of the kernel, caches.
    fleet.create(vec![lab::null(devices, queues)?])?;
    let before = Footprint::take();
    fleet.create(lab::nulls(devices, queues)?)?;
    let idle = Footprint::take().each(&before, devices);
    let touched = match args.touch {
        true => {
            fill(&fleet, args, devices)?;
            let soon = Footprint::take().each(&before, devices);
            std::thread::sleep(FORGOTTEN);
            Some(Touched { soon, later: Footprint::take().each(&before, devices) })
        }
        false => None,
    };
    fleet.shutdown()?;
    Ok(Sample { idle, touched })
}

/// Writes as much as there are buffers, all at once, to each device.
fn fill(fleet: &Fleet, args: &Density, devices: usize) -> Result<(), Error> {
    let shape = Shape {
        op: LoadOp::Write,
        depth: args.depth,
        block: args.max_io,
        jobs: 1,
        seconds: 60.0,
        repeat: 1,
    };
    for n in 0..devices {
        if let Some(path) = fleet.describe(&lab::name(n)?)?.path {
            in_a_child(&[path.into()], shape)?;
        }
    }
    Ok(())
}
