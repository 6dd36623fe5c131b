//! The shutdown report as log lines.
//!
//! ```text
//!   INFO shut down, devices: 4000, deleted: 3998, failed: 1, timed_out: 1, wall_s: 4.361
//!   INFO stage, stage: stop, count: 4000, p50_s: 0.012, p99_s: 0.034, max_s: 0.051
//!   ERRO device did not end well, device: vol-7, id: 7, outcome: timed_out, stage: delete, …
//! ```
//!
//! Invariant: at most [`MOST_DEVICES`] devices are named; the rest is a number, and the report file
//! has them all.

use slog::{Logger, error, info, o, warn};

use super::context;
use crate::model::{DeviceOutcome, OutcomeKind, ShutdownReport};

/// Most devices that are named one by one.
pub const MOST_DEVICES: usize = 100;

/// Logs `report`.
pub fn log(log: &Logger, report: &ShutdownReport) {
    let log = &context::component(log, "shutdown");
    let count = |kind| report.outcomes.get(&kind).copied().unwrap_or_default();
    info!(log, "shut down";
        "devices" => report.devices.len(),
        "deleted" => count(OutcomeKind::Deleted),
        "already_gone" => count(OutcomeKind::AlreadyGone),
        "failed" => count(OutcomeKind::Failed),
        "panicked" => count(OutcomeKind::Panicked),
        "timed_out" => count(OutcomeKind::TimedOut),
        "wedged" => count(OutcomeKind::Wedged),
        "left" => report.left.len(),
        "forced" => report.forced,
        "wall_s" => report.wall.as_secs_f64(),
    );
    for (stage, summary) in &report.stages {
        info!(log, "time in stage";
            "stage" => stage.as_str(),
            "count" => summary.count,
            "p50_s" => summary.p50,
            "p99_s" => summary.p99,
            "max_s" => summary.max,
        );
    }
    let mut others = report.devices.iter().filter(|d| d.outcome != OutcomeKind::Deleted);
    others.by_ref().take(MOST_DEVICES).for_each(|device| outcome(log, device));
    let more = others.count();
    if more > 0 {
        error!(log, "more devices that were not just deleted: the report file has them"; "count" => more);
    }
}

fn outcome(log: &Logger, device: &DeviceOutcome) {
    let mut log = context::device(log, &device.name);
    if let Some(id) = device.id {
        log = context::id(&log, id);
    }
    log = log.new(o!("outcome" => device.outcome.as_str()));
    if let Some(stage) = device.stage {
        log = log.new(o!("stage" => stage.as_str()));
    }
    if let Some(error) = &device.error {
        log = log.new(o!("error" => error.to_string()));
    }
    if !device.holders.is_empty() {
        log = log.new(o!("holders" => device.holders.join(", ")));
    }
    if !device.left.is_empty() {
        log = log.new(o!("left" => device.left.join(", ")));
    }
    match device.outcome {
        OutcomeKind::Deleted => {}
        OutcomeKind::AlreadyGone => warn!(log, "device was gone already"),
        OutcomeKind::Failed | OutcomeKind::Panicked => error!(log, "device had failed; it is gone"),
        OutcomeKind::TimedOut | OutcomeKind::Wedged => error!(log, "device is still there"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::logging::Logging;
    use super::super::testing::Sink;
    use super::*;
    use crate::config::LogConfig;
    use crate::model::{DeviceId, DeviceName, Error, ErrorKind, Stage, StageTimes};

    fn device(n: u32, outcome: OutcomeKind) -> DeviceOutcome {
        let mut stages = StageTimes::default();
        stages.push(Stage::Stop, Duration::from_millis(12));
        DeviceOutcome {
            name: DeviceName::new(format!("vol-{n:03}")).expect("a name"),
            id: Some(DeviceId(n)),
            outcome,
            stage: None,
            error: None,
            stages,
            panics: Vec::new(),
            holders: Vec::new(),
            left: Vec::new(),
        }
    }

    fn logged(devices: Vec<DeviceOutcome>) -> Vec<String> {
        let sink = Sink::default();
        let logging = Logging::start(&LogConfig::default(), sink.clone());
        let report = ShutdownReport::new(devices, Duration::from_millis(1500), false);
        log(logging.logger(), &report);
        assert!(logging.finish(Duration::from_secs(10)));
        let text = sink.text();
        // Without the times, which differ.
        text.lines().filter_map(|line| Some(line.split_once(' ')?.1.to_owned())).collect()
    }

    #[test]
    fn f03_the_log_names_the_device_that_is_left_its_stage_and_its_holder() {
        let mut devices: Vec<_> = (0..20).map(|n| device(n, OutcomeKind::Deleted)).collect();
        let busy = &mut devices[7];
        busy.outcome = OutcomeKind::TimedOut;
        busy.stage = Some(Stage::Release);
        busy.error = Some(Error::new(ErrorKind::Timeout, "the id is not free").at(Stage::Release));
        busy.holders = vec!["pid 4711 (dd)".to_owned()];
        busy.left = vec!["id 7".to_owned()];
        devices[8].outcome = OutcomeKind::AlreadyGone;
        devices[9].outcome = OutcomeKind::Failed;
        insta::assert_snapshot!(logged(devices).join("\n"), @r"
    INFO shut down, component: shutdown, devices: 20, deleted: 17, already_gone: 1, failed: 1, panicked: 0, timed_out: 1, wedged: 0, left: 1, forced: false, wall_s: 1.5
    INFO time in stage, component: shutdown, stage: stop, count: 20, p50_s: 0.012, p99_s: 0.012, max_s: 0.012
    ERRO device is still there, component: shutdown, device: vol-007, id: 7, outcome: timed_out, stage: release, error: release: the id is not free, holders: pid 4711 (dd), left: id 7
    WARN device was gone already, component: shutdown, device: vol-008, id: 8, outcome: already_gone
    ERRO device had failed; it is gone, component: shutdown, device: vol-009, id: 9, outcome: failed
    ");
    }

    #[test]
    fn thousands_of_failures_do_not_flood_the_log() {
        let lines = logged((0..4000).map(|n| device(n, OutcomeKind::Wedged)).collect());
        assert_eq!(lines.len(), 2 + MOST_DEVICES + 1);
        assert!(lines.last().is_some_and(|line| line.ends_with("count: 3900")), "{lines:?}");
    }
}
