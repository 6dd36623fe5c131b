//! One device, told in full: whatever the daemon says of it, key by key.

use std::fmt::Write;

use serde_json::Value;

use super::table::one_line;
use crate::config::size_text;

/// Keys first, in this order; others follow as they come.
const FIRST: [&str; 15] = [
    "name",
    "id",
    "path",
    "state",
    "stage",
    "target",
    "size",
    "queues",
    "depth",
    "read_only",
    "group",
    "labels",
    "origin",
    "holders",
    "error",
];

/// Everything about a device, a line a key; what is nothing is left out.
#[must_use]
pub fn description(device: &Value) -> String {
    let mut out = String::new();
    let Value::Object(keys) = device else { return out };
    let first = FIRST.into_iter().filter_map(|key| Some((key, keys.get(key)?)));
    let others = keys.iter().map(|(key, value)| (key.as_str(), value));
    for (key, value) in first.chain(others.filter(|(key, _)| !FIRST.contains(key))) {
        match (key, value) {
            ("size", Value::Number(size)) => {
                let size = size.as_u64().map(size_text).unwrap_or_default();
                line(&mut out, 0, key, &size);
            }
            ("io", io) => operations(&mut out, io),
            (key, value) => tell(&mut out, 0, key, value),
        }
    }
    out
}

fn tell(out: &mut String, level: usize, key: &str, value: &Value) {
    match value {
        Value::Null => {}
        Value::Array(items) if items.is_empty() => {}
        Value::Object(keys) if keys.is_empty() => {}
        Value::Array(items) if items.iter().all(Value::is_string) => {
            for (n, item) in items.iter().enumerate() {
                line(out, level, if n == 0 { key } else { "" }, item.as_str().unwrap_or_default());
            }
        }
        Value::Object(keys) => {
            line(out, level, key, "");
            for (key, value) in keys {
                tell(out, level + 1, key, value);
            }
        }
        Value::String(text) => line(out, level, key, text),
        Value::Number(number) if number.is_f64() => {
            line(out, level, key, &format!("{:.3}", number.as_f64().unwrap_or_default()));
        }
        other => line(out, level, key, &other.to_string()),
    }
}

/// I/O by operation; the histograms are for programs.
fn operations(out: &mut String, io: &Value) {
    let Value::Object(keys) = io else { return };
    line(out, 0, "io", "");
    for (operation, value) in keys {
        match value {
            Value::Object(counts) => {
                let count = |key| counts.get(key).and_then(Value::as_u64).unwrap_or_default();
                if count("requests") > 0 {
                    let text = format!(
                        "{} requests, {}, {} errors",
                        count("requests"),
                        size_text(count("bytes")),
                        count("errors")
                    );
                    line(out, 1, operation, &text);
                }
            }
            value => tell(out, 1, operation, value),
        }
    }
}

fn line(out: &mut String, level: usize, key: &str, text: &str) {
    let indent = "  ".repeat(level);
    let key = if key.is_empty() { String::new() } else { format!("{key}:") };
    let width = 16 - indent.len();
    let text = format!("{indent}{key:width$}{}", one_line(text));
    // Writing to a string does not fail.
    let _ = writeln!(out, "{}", text.trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_device_is_told_key_by_key_and_what_is_nothing_is_left_out() {
        let device = json!({
            "depth": 64, "error": null, "group": "vm-7", "id": 7,
            "holders": ["mounted at /mnt", "pid 12 (dd)\nhas it open"],
            "io": {"in_flight": 2, "fua": 0,
                   "read": {"requests": 3, "bytes": 12_288, "errors": 0, "latency": {"buckets": [1]}},
                   "write": {"requests": 0, "bytes": 0, "errors": 0}},
            "labels": {"app": "db"}, "name": "vol-1", "new_key": "of a newer daemon",
            "path": "/dev/ublkb7", "queues": 1, "read_only": false, "since_s": 12.345_678,
            "size": 1 << 30, "state": "live", "stage": "live", "target": "ram", "tids": [],
        });
        insta::assert_snapshot!(description(&device), @r"
        name:           vol-1
        id:             7
        path:           /dev/ublkb7
        state:          live
        stage:          live
        target:         ram
        size:           1 GiB
        queues:         1
        depth:          64
        read_only:      false
        group:          vm-7
        labels:
          app:          db
        holders:        mounted at /mnt
                        pid 12 (dd)\nhas it open
        io:
          fua:          0
          in_flight:    2
          read:         3 requests, 12 KiB, 0 errors
        new_key:        of a newer daemon
        since_s:        12.346
        ");
    }
}
