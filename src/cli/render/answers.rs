//! Answers of a daemon, for people: groups, the end, events.

use std::collections::BTreeMap;

use serde_json::Value;

use super::table::{Align::Left, Align::Right, Table, one_line};
use super::{devices_text, seconds};

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
    fn groups_events_and_ends_are_lines() {
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
