//! `ublkd bench io`: one device under load, as the block layer's users see it and as the server pays
//! for it.

use std::time::Duration;

use serde_json::json;

use super::args::{Io, IoTarget, LoadOp};
use super::fleet::Fleet;
use super::lab::{self, Lab};
use super::load::{Loaded, Shape, in_a_child};
use crate::cli::render::measured::{Findings, Unit, measured};
use crate::model::{DataMode, DeviceSpec, Error, ErrorKind, QueueSpec, TargetSpec, WorkerLimit};
use crate::sys::census;

/// Size of a null device, and of a RAM disk.
const SIZE: u64 = 8 << 30;
const RAM: u64 = 256 << 20;
/// Depth of the device's queues, and its largest request: no load is to meet them.
const DEPTH: u16 = 128;
const MAX_IO: u32 = 1 << 20;

/// What is varied.
#[derive(Clone, Copy)]
struct Case {
    target: IoTarget,
    data: DataMode,
    batch: bool,
    op: LoadOp,
    depth: u16,
    block: u32,
    jobs: u16,
    queues: u16,
    affinity: bool,
}

/// A load, and the processor time that the server took for it.
struct Sample {
    loaded: Loaded,
    server: Duration,
}

pub(super) fn io(args: &Io) -> Result<Findings, Error> {
    let lab = Lab::new(&args.common, &[1], &[WorkerLimit::Fixed(1)])?;
    lab.needs_kernel()?;
    let cases = cases(args);
    let samples = lab.rounds(&cases, |case| measure(&lab, args, *case))?;

    let mut results = Vec::new();
    for (case, samples) in cases.into_iter().zip(&samples) {
        let Case { target, data, batch, op, depth, block, jobs, queues, affinity } = case;
        let mut found = |measure, unit, pick: fn(&Sample) -> f64| {
            let case = vec![
                ("target", json!(target)),
                ("data", json!(data)),
                ("batch", json!(batch)),
                ("op", json!(op)),
                ("block_kib", json!(block)),
                ("depth", json!(depth)),
                ("jobs", json!(jobs)),
                ("queues", json!(queues)),
                ("affinity", json!(affinity)),
            ];
            results.push(measured(case, measure, unit, samples.iter().map(pick)));
        };
        found("iops", Unit::PerSecond, |s| s.loaded.iops);
        found("server time per I/O", Unit::Seconds, |s| {
            s.server.as_secs_f64() / s.loaded.ios.max(1) as f64
        });
        found("latency p50", Unit::Seconds, |s| s.loaded.p50);
        found("latency p99", Unit::Seconds, |s| s.loaded.p99);
        found("latency p99.9", Unit::Seconds, |s| s.loaded.p999);
    }
    Ok(lab::findings("io", results))
}

fn cases(args: &Io) -> Vec<Case> {
    let mut cases = vec![Case {
        target: IoTarget::Null,
        data: DataMode::Auto,
        batch: false,
        op: LoadOp::Randread,
        depth: 1,
        block: 4,
        jobs: 1,
        queues: 1,
        affinity: true,
    }];
    // What is varied last goes side by side.
    cases = varied(&cases, &args.target, |target, case| Case { target, ..case });
    cases = varied(&cases, &args.op, |op, case| Case { op, ..case });
    cases = varied(&cases, &args.block, |block, case| Case { block, ..case });
    cases = varied(&cases, &args.depth, |depth, case| Case { depth, ..case });
    cases = varied(&cases, &args.jobs, |jobs, case| Case { jobs, ..case });
    cases = varied(&cases, &args.queues, |queues, case| Case { queues, ..case });
    cases = varied(&cases, &args.affinity, |affinity, case| Case { affinity, ..case });
    cases = varied(&cases, &args.data, |data, case| Case { data, ..case });
    varied(&cases, &args.batch, |batch, case| Case { batch, ..case })
}

/// Each of `cases` with each of `values`.
fn varied<T: Copy>(cases: &[Case], values: &[T], with: impl Fn(T, Case) -> Case) -> Vec<Case> {
    cases.iter().flat_map(|case| values.iter().map(|value| with(*value, *case))).collect()
}

fn measure(lab: &Lab, args: &Io, case: Case) -> Result<Sample, Error> {
    let target = match (case.target, &args.file) {
        (IoTarget::Null, _) => TargetSpec::Null { size: SIZE },
        (IoTarget::Ram, _) => TargetSpec::Ram { size: RAM },
        (IoTarget::Loop, Some(file)) => {
            let path = std::path::absolute(file)
                .map_err(|e| Error::from_io(&e, format!("no file {}", file.display())))?;
            TargetSpec::Loop { path, direct: !args.buffered }
        }
        (IoTarget::Loop, None) => {
            let error = Error::new(ErrorKind::Invalid, "the loop target needs a file");
            return Err(error.hint("add --file PATH"));
        }
    };
    let queues = QueueSpec { count: case.queues, depth: DEPTH, max_io: MAX_IO };
    let name = lab::name(0)?;
    let spec = DeviceSpec::builder(name.clone(), target).queues(queues).data(case.data);
    let spec = spec.batch(case.batch).affinity(case.affinity).build()?;
    let fleet = Fleet::new(lab, WorkerLimit::Fixed(1), false)?;
    fleet.create(vec![spec])?;
    let path = fleet.describe(&name)?.path.unwrap_or_default();
    let Case { op, depth, block, jobs, .. } = case;
    let shape = Shape { op, depth, block, jobs, seconds: args.seconds, repeat: u64::MAX };
    let before = census::processor_time();
    let loaded = in_a_child(&[path.into()], shape)?;
    let server = census::processor_time() - before;
    fleet.shutdown()?;
    Ok(Sample { loaded, server })
}
