//! The shutdown report as a table.
//!
//! ```text
//!   shut down 4000 devices in 4.361 s: 3999 deleted, 1 timed_out
//!
//!   STAGE   DEVICES      P50      P99      MAX
//!   stop       4000  12.0 ms  34.1 ms  51.2 ms
//!
//!   vol-7 (id 7): timed_out in delete: …; held by pid 4711 (dd); left: id 7 is not free
//! ```

use super::table::{Align::Left, Align::Right, Table, one_line};
use super::{Extent, devices_text, seconds};
use crate::model::{DeviceOutcome, OutcomeKind, ShutdownReport};

/// The report for people: the sum, the stages, and a line for each device that was not just
/// deleted. A long list of those is cut unless all are asked for.
#[must_use]
pub fn shutdown(report: &ShutdownReport, extent: Extent) -> String {
    let counts = report.outcomes.iter().filter(|(_, n)| **n > 0);
    let counts: Vec<_> = counts.map(|(kind, n)| format!("{n} {kind}")).collect();
    let mut out = format!(
        "{} {} in {}",
        if report.forced { "forced to abandon the shutdown of" } else { "shut down" },
        devices_text(report.devices.len()),
        seconds(report.wall.as_secs_f64()),
    );
    if !counts.is_empty() {
        out += &format!(": {}", counts.join(", "));
    }
    out.push('\n');
    if !report.stages.is_empty() {
        out += &format!("\n{}", stages(report));
    }

    let others: Vec<_> =
        report.devices.iter().filter(|d| d.outcome != OutcomeKind::Deleted).collect();
    let shown = if extent.shows(others.len()) { others.len() } else { super::MOST_ROWS };
    if shown > 0 {
        out.push('\n');
    }
    for device in others.iter().take(shown) {
        out += &one_line(&outcome(device));
        out.push('\n');
    }
    if others.len() > shown {
        out += &format!("\u{2026} and {} more\n", others.len() - shown);
    }
    out
}

fn stages(report: &ShutdownReport) -> String {
    let mut table = Table::new([
        ("STAGE", Left),
        ("DEVICES", Right),
        ("P50", Right),
        ("P99", Right),
        ("MAX", Right),
    ]);
    for (stage, times) in &report.stages {
        let [p50, p99, max] = [times.p50, times.p99, times.max].map(seconds);
        table.row([stage.to_string(), times.count.to_string(), p50, p99, max]);
    }
    table.text()
}

/// One device in one line.
fn outcome(device: &DeviceOutcome) -> String {
    let mut line = device.name.to_string();
    if let Some(id) = device.id {
        line += &format!(" (id {id})");
    }
    line += &format!(": {}", device.outcome);
    if let Some(stage) = device.stage {
        line += &format!(" in {stage}");
    }
    if let Some(error) = &device.error {
        line += &format!(": {error}");
    }
    for panic in &device.panics {
        line += &format!("; {panic}");
    }
    if !device.holders.is_empty() {
        line += &format!("; held by {}", device.holders.join(", "));
    }
    if !device.left.is_empty() {
        line += &format!("; left: {}", device.left.join(", "));
    }
    line
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::json;
    use super::*;
    use crate::model::{DeviceId, DeviceName, Error, ErrorKind, PanicReport, Stage, StageTimes};
    use insta::assert_snapshot;

    fn deleted(n: u32) -> DeviceOutcome {
        let mut stages = StageTimes::default();
        stages.push(Stage::Stop, Duration::from_micros(12_000 + u64::from(n)));
        stages.push(Stage::Join, Duration::from_micros(900));
        DeviceOutcome {
            name: DeviceName::new(format!("vol-{n:04}")).expect("a name"),
            id: Some(DeviceId(n)),
            outcome: OutcomeKind::Deleted,
            stage: None,
            error: None,
            stages,
            panics: Vec::new(),
            holders: Vec::new(),
            left: Vec::new(),
        }
    }

    fn report() -> ShutdownReport {
        let mut devices: Vec<_> = (0..4000).map(deleted).collect();
        let timed_out = &mut devices[7];
        timed_out.outcome = OutcomeKind::TimedOut;
        timed_out.stage = Some(Stage::Release);
        timed_out.error = Some(Error::new(ErrorKind::Timeout, "the id is not free"));
        timed_out.holders = vec!["pid 4711 (dd)".to_owned(), "mounted on /mnt".to_owned()];
        timed_out.left = vec!["id 7".to_owned()];
        let panicked = &mut devices[9];
        panicked.outcome = OutcomeKind::Panicked;
        panicked.stage = Some(Stage::Live);
        panicked.panics = vec![PanicReport {
            message: "sector 42\nis cursed".to_owned(),
            location: Some("src/target/faulty.rs:7:9".to_owned()),
            thread: "vol-0009.q0".to_owned(),
        }];
        ShutdownReport::new(devices, Duration::from_millis(4361), false)
    }

    #[test]
    fn the_report_sums_up_and_names_what_did_not_go_well() {
        assert_snapshot!(shutdown(&report(), Extent::Short), @r"
    shut down 4000 devices in 4.361 s: 3998 deleted, 1 panicked, 1 timed_out

    STAGE  DEVICES      P50      P99      MAX
    stop      4000  14.0 ms  16.0 ms  16.0 ms
    join      4000   900 µs   900 µs   900 µs

    vol-0007 (id 7): timed_out in release: the id is not free; held by pid 4711 (dd), mounted on /mnt; left: id 7
    vol-0009 (id 9): panicked in live; panic on thread vol-0009.q0: sector 42\nis cursed (at src/target/faulty.rs:7:9)
    ");
    }

    #[test]
    fn a_long_list_of_failures_is_cut() {
        let mut devices: Vec<_> = (0..200).map(deleted).collect();
        devices.iter_mut().for_each(|device| device.outcome = OutcomeKind::Wedged);
        let report = ShutdownReport::new(devices, Duration::from_secs(60), true);
        let text = shutdown(&report, Extent::Short);
        assert!(text.starts_with(
            "forced to abandon the shutdown of 200 devices in 60.000 s: 200 wedged\n"
        ));
        assert!(text.ends_with("vol-0049 (id 49): wedged\n\u{2026} and 150 more\n"), "{text}");
        assert_eq!(shutdown(&report, Extent::All).lines().count(), 206);
    }

    #[test]
    fn no_device_is_one_line() {
        let report = ShutdownReport::new(Vec::new(), Duration::from_micros(50), false);
        assert_eq!(shutdown(&report, Extent::Short), "shut down 0 devices in 50 \u{b5}s\n");
    }

    #[test]
    fn the_json_has_the_documented_keys() {
        let devices = report().devices.into_iter().filter(|d| d.id == Some(DeviceId(7))).collect();
        let report = ShutdownReport::new(devices, Duration::from_millis(4361), false);
        assert_snapshot!(json(&report).expect("JSON"), @r#"
    {
      "outcomes": {
        "deleted": 0,
        "already_gone": 0,
        "failed": 0,
        "panicked": 0,
        "timed_out": 1,
        "wedged": 0
      },
      "devices": [
        {
          "name": "vol-0007",
          "id": 7,
          "outcome": "timed_out",
          "stage": "release",
          "error": "the id is not free",
          "stages": {
            "stop": 0.012007,
            "join": 0.0009
          },
          "panics": [],
          "holders": [
            "pid 4711 (dd)",
            "mounted on /mnt"
          ],
          "left": [
            "id 7"
          ]
        }
      ],
      "wall_s": 4.361,
      "stages": {
        "stop": {
          "count": 1,
          "p50": 0.012007,
          "p99": 0.012007,
          "max": 0.012007
        },
        "join": {
          "count": 1,
          "p50": 0.0009,
          "p99": 0.0009,
          "max": 0.0009
        }
      },
      "left": [
        "vol-0007: id 7"
      ],
      "forced": false
    }
    "#);
    }
}
