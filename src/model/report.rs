//! The shutdown report: what became of every device, and how long the stages took.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::{DeviceOutcome, OutcomeKind, Stage};

/// What a shutdown gives back: every device that was known is in it exactly once.
#[derive(Debug, Clone, Serialize)]
pub struct ShutdownReport {
    /// How many devices ended in which way; kinds that did not occur are there with 0.
    pub outcomes: BTreeMap<OutcomeKind, usize>,
    /// Each device, by name.
    pub devices: Vec<DeviceOutcome>,
    /// Wall time of the whole shutdown, in seconds.
    #[serde(rename = "wall_s", serialize_with = "seconds")]
    pub wall: Duration,
    /// Per stage: how often, p50, p99 and max, in seconds.
    pub stages: BTreeMap<Stage, StageSummary>,
    /// Whatever is still there, one line each.
    pub left: Vec<String>,
    /// Whether the end was forced (a second signal) before everything was accounted for.
    pub forced: bool,
}

/// Distribution of the time in one stage over the devices of a report, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StageSummary {
    /// Number of devices that went through it.
    pub count: usize,
    /// Median.
    pub p50: f64,
    /// 99th percentile (nearest rank).
    pub p99: f64,
    /// Longest.
    pub max: f64,
}

impl ShutdownReport {
    /// Sums up `devices`.
    #[must_use]
    pub fn new(mut devices: Vec<DeviceOutcome>, wall: Duration, forced: bool) -> Self {
        devices.sort_by(|a, b| a.name.cmp(&b.name));
        let mut outcomes: BTreeMap<_, _> = OutcomeKind::ALL.iter().map(|k| (*k, 0)).collect();
        let mut times: BTreeMap<Stage, Vec<f64>> = BTreeMap::new();
        let mut left = Vec::new();
        for device in &devices {
            *outcomes.entry(device.outcome).or_default() += 1;
            for (stage, time) in device.stages.iter() {
                times.entry(stage).or_default().push(time.as_secs_f64());
            }
            left.extend(device.left.iter().map(|what| format!("{}: {what}", device.name)));
        }
        let stages = times.into_iter().map(|(stage, t)| (stage, StageSummary::of(t))).collect();
        Self { outcomes, devices, wall, stages, left, forced }
    }

    /// Whether nothing is left of any device.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.left.is_empty()
    }
}

impl StageSummary {
    fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        let rank = |share: usize| times.get((times.len() * share).div_ceil(100).max(1) - 1);
        Self {
            count: times.len(),
            p50: rank(50).copied().unwrap_or_default(),
            p99: rank(99).copied().unwrap_or_default(),
            max: times.last().copied().unwrap_or_default(),
        }
    }
}

fn seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_rank() {
        let summary = StageSummary::of((1..=200).map(f64::from).collect());
        assert_eq!((summary.p50, summary.p99, summary.max), (100.0, 198.0, 200.0));
        let one = StageSummary::of(vec![3.0]);
        assert_eq!((one.p50, one.p99, one.max, one.count), (3.0, 3.0, 3.0, 1));
    }

    #[test]
    fn every_kind_of_outcome_is_counted_even_when_it_did_not_occur() {
        let report = ShutdownReport::new(Vec::new(), Duration::ZERO, false);
        assert_eq!(report.outcomes.len(), OutcomeKind::ALL.len());
        assert!(report.is_clean());
    }
}
