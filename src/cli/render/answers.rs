//! Answers of a daemon, for people: groups, the end, events.

use std::collections::BTreeMap;

use serde_json::Value;

use super::table::{Align::Left, Align::Right, Table, one_line};
use super::{devices_text, seconds};
use crate::config::size_text;

/// Groups as a table, with how many devices of each are in which state.
#[must_use]
pub fn groups(items: &[Value]) -> String {
    if items.is_empty() {
        return "no groups\n".to_owned();
    }
    let mut table = Table::new([("GROUP", Left), ("DEVICES", Right), ("STATES", Left)]);
    for group in items {
        table.row([
            group["name"].as_str().unwrap_or_default().to_owned(),
            group["devices"].to_string(),
            counts(&group["states"]),
        ]);
    }
    table.text()
}

/// A shutdown report's first lines.
#[must_use]
pub fn ended(report: &Value) -> String {
    let devices = report["devices"].as_array().map_or(&[][..], Vec::as_slice);
    let mut out = format!(
        "shut down {} in {}",
        devices_text(devices.len()),
        seconds(report["wall_s"].as_f64().unwrap_or_default()),
    );
    let counts = counts(&report["outcomes"]);
    if !counts.is_empty() {
        out += &format!(": {counts}");
    }
    out.push('\n');
    for device in devices.iter().filter(|device| !device["error"].is_null()) {
        let text = |key: &str| device[key].as_str().unwrap_or_default().to_owned();
        let line = format!("{}: {}: {}", text("name"), text("outcome"), text("error"));
        out += &(one_line(&line) + "\n");
    }
    out
}

/// What a reload did with each device, or would do; those that are kept are counted.
#[must_use]
pub fn reloaded(report: &Value) -> String {
    let dry = if report["dry_run"] == true { " (dry run)" } else { "" };
    let items = |key: &str| report[key].as_array().map_or(&[][..], Vec::as_slice);
    let failed = |name: &str| !report["failed"][name].is_null();
    let mut out = String::new();
    let mut tell = |name: &Value, what: &str| {
        let name = name.as_str().unwrap_or_default();
        if !failed(name) {
            out += &(one_line(&format!("device/{name} {what}{dry}")) + "\n");
        }
    };
    items("delete").iter().for_each(|name| tell(name, "deleted"));
    for replaced in items("replace") {
        let why = replaced["why"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let why: Vec<_> = why.collect();
        tell(&replaced["name"], &format!("replaced: {}", why.join(", ")));
    }
    for resized in items("resize") {
        let size = size_text(resized["to"].as_u64().unwrap_or_default());
        tell(&resized["name"], &format!("resized to {size}"));
    }
    items("create").iter().for_each(|name| tell(name, "created"));
    out += &format!("{} unchanged\n", devices_text(items("keep").len()));
    for what in items("restart").iter().filter_map(Value::as_str) {
        out += &format!("after a restart: {}\n", one_line(what));
    }
    out
}

/// `3 live, 1 failed`; what there is none of is left out.
fn counts(by_word: &Value) -> String {
    let by_word = by_word.as_object().into_iter().flatten();
    let counts: BTreeMap<_, _> =
        by_word.filter_map(|(word, n)| Some((word, n.as_u64()?))).collect();
    let some = counts.into_iter().filter(|(_, n)| *n > 0);
    some.map(|(word, n)| format!("{n} {word}")).collect::<Vec<_>>().join(", ")
}

/// A change of state in a line: `17  2026-01-01T12:00:00.123Z  vol-1 (id 7)  starting -> live`.
#[must_use]
pub fn event(change: &Value) -> String {
    let text = |key: &str| change[key].as_str().unwrap_or_default();
    let number = match change["number"].as_u64() {
        Some(number) => format!(" (id {number})"),
        None => String::new(),
    };
    let error = match change["error"].as_str() {
        Some(error) => format!(": {error}"),
        None => String::new(),
    };
    let line = format!(
        "{:>6}  {}  {}{number}  {} -> {}{error}",
        change["id"].as_u64().unwrap_or_default(),
        text("at"),
        text("device"),
        text("from"),
        text("to"),
    );
    one_line(&line) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn groups_reloads_events_and_ends_are_lines() {
        let two = [
            json!({"name": "vm-7", "devices": 3, "states": {"live": 2, "failed": 1, "gone": 0}}),
            json!({"name": "b", "devices": 12, "states": {"live": 12}}),
        ];
        insta::assert_snapshot!(groups(&two), @r"
        GROUP  DEVICES  STATES
        vm-7         3  1 failed, 2 live
        b           12  12 live
        ");
        assert_eq!(groups(&[]), "no groups\n");
        let plan = json!({"dry_run": true, "delete": ["a"], "create": ["b", "c"], "keep": ["d"],
            "replace": [{"name": "e", "why": ["target", "depth"]}],
            "resize": [{"name": "f", "from": 1, "to": 1 << 20}], "failed": {"c": "no space"},
            "restart": ["supervisor.workers"]});
        insta::assert_snapshot!(reloaded(&plan), @r"
        device/a deleted (dry run)
        device/e replaced: target, depth (dry run)
        device/f resized to 1 MiB (dry run)
        device/b created (dry run)
        1 device unchanged
        after a restart: supervisor.workers
        ");
        let change = json!({"at": "2026-01-01T12:00:00.123Z", "device": "vol-1", "number": 7,
            "id": 17, "from": "starting", "to": "failing", "error": "no\nspace"});
        assert_eq!(
            event(&change),
            "    17  2026-01-01T12:00:00.123Z  vol-1 (id 7)  starting -> failing: no\\nspace\n"
        );
        let report = json!({"outcomes": {"deleted": 1, "timed_out": 1, "failed": 0}, "wall_s": 1.25,
            "devices": [{"name": "a", "outcome": "deleted", "error": null},
                        {"name": "b", "outcome": "timed_out", "error": "it is held"}]});
        insta::assert_snapshot!(ended(&report), @r"
        shut down 2 devices in 1.250 s: 1 deleted, 1 timed_out
        b: timed_out: it is held
        ");
    }
}
