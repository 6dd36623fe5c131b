//! The list of devices.
//!
//! ```text
//!   4000 devices: 1 starting, 3998 live, 1 failed
//!
//!   TARGET  SIZE   DEVICES
//!   null    1 GiB     4000
//!
//!   not live:
//!   NAME    ID  NODE  STATE …
//! ```

use std::collections::BTreeMap;

use super::table::{
    Align::{self, Left, Right},
    Table,
};
use super::{Extent, MOST_ROWS, devices_text};
use crate::cli::view::Device;
use crate::config::size_text;
use crate::model::DeviceState;

/// The devices as a table with a sum above, with every column if it is to be wide. A long list
/// shows only those that are not live, unless all are asked for.
pub(in crate::cli) fn devices(list: &[Device], extent: Extent, wide: bool) -> String {
    let mut states: BTreeMap<(usize, &str), usize> = BTreeMap::new();
    for device in list {
        *states.entry((rank(&device.state), &device.state)).or_default() += 1;
    }
    let counts: Vec<_> = states.iter().map(|((_, state), n)| format!("{n} {state}")).collect();
    let mut out = devices_text(list.len());
    if !counts.is_empty() {
        out += &format!(": {}", counts.join(", "));
    }
    out.push('\n');
    if list.is_empty() {
        return out;
    }
    if extent.shows(list.len()) {
        return out + "\n" + &rows(list, wide);
    }
    out += &format!("\n{}", kinds(list));
    let others: Vec<_> =
        list.iter().filter(|device| device.state != DeviceState::Live.as_str()).collect();
    if !others.is_empty() {
        let shown = others.iter().take(MOST_ROWS).copied();
        out += &format!("\nnot live:\n{}", rows(shown, wide));
        if let more @ 1.. = others.len().saturating_sub(MOST_ROWS) {
            out += &format!("\u{2026} and {more} more\n");
        }
    }
    out
}

/// Where in a life a state is; one that is not known here comes last.
fn rank(state: &str) -> usize {
    let known = DeviceState::ALL.iter().position(|known| known.as_str() == state);
    known.unwrap_or(DeviceState::ALL.len())
}

fn size(device: &Device) -> String {
    device.size.map(size_text).unwrap_or_default()
}

/// How many devices there are of each target and size.
fn kinds(list: &[Device]) -> String {
    let mut kinds: BTreeMap<(&str, Option<u64>), usize> = BTreeMap::new();
    for device in list {
        *kinds.entry((&device.target, device.size)).or_default() += 1;
    }
    let mut table = Table::new([("TARGET", Left), ("SIZE", Right), ("DEVICES", Right)]);
    let more = kinds.len().saturating_sub(MOST_ROWS);
    for ((target, size), count) in kinds.into_iter().take(MOST_ROWS) {
        let size = size.map(size_text).unwrap_or_default();
        table.row([target.to_owned(), size, count.to_string()]);
    }
    match more {
        0 => table.text(),
        more => table.text() + &format!("\u{2026} and {more} more\n"),
    }
}

fn rows<'a>(list: impl IntoIterator<Item = &'a Device>, wide: bool) -> String {
    if !wide {
        // Those that fit a terminal.
        return table(list, [0, 2, 3, 4, 5, 8, 11, 12]);
    }
    table(list, std::array::from_fn::<_, { COLUMNS.len() }, _>(|column| column))
}

const COLUMNS: [(&str, Align); 13] = [
    ("NAME", Left),
    ("ID", Right),
    ("NODE", Left),
    ("STATE", Left),
    ("TARGET", Left),
    ("SIZE", Right),
    ("QUEUES", Right),
    ("MODE", Left),
    ("GROUP", Left),
    ("LABELS", Left),
    ("ORIGIN", Left),
    ("SINCE", Right),
    ("LAST ERROR", Left),
];

fn table<'a, const N: usize>(
    list: impl IntoIterator<Item = &'a Device>,
    columns: [usize; N],
) -> String {
    let mut table = Table::new(columns.map(|column| COLUMNS[column]));
    for device in list {
        let cells = cells(device);
        table.row(columns.map(|column| cells[column].clone()));
    }
    table.text()
}

fn cells(device: &Device) -> [String; COLUMNS.len()] {
    // Where it is on its way says more than that it is on its way.
    let on_its_way = ["starting", "cancelling", "stopping", "failing"];
    let state = match on_its_way.contains(&device.state.as_str()) {
        true => format!("{} ({})", device.state, device.stage),
        false => device.state.clone(),
    };
    let labels: Vec<_> =
        device.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    [
        device.name.clone(),
        device.id.map(|id| id.to_string()).unwrap_or_default(),
        device.path.clone().unwrap_or_default(),
        state,
        device.target.clone(),
        size(device),
        format!("{}\u{d7}{}", device.queues, device.depth),
        if device.read_only { "ro" } else { "rw" }.to_owned(),
        device.group.clone().unwrap_or_default(),
        labels.join(","),
        device.origin.clone(),
        age(device.since_s),
        device.error.clone().unwrap_or_default(),
    ]
}

/// Whole seconds, minutes, hours or days, whichever still says something.
fn age(seconds: f64) -> String {
    match seconds as u64 {
        s @ 0..120 => format!("{s} s"),
        s @ 120..7200 => format!("{} min", s / 60),
        s @ 7200..172_800 => format!("{} h", s / 3600),
        s => format!("{} d", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use insta::assert_snapshot;
    use serde_json::json;

    fn device(n: u32, state: &str) -> Device {
        let stage = if state == "live" { "live" } else { "add" };
        let device = json!({"name": format!("vol-{n}"), "id": n, "path": format!("/dev/ublkb{n}"),
            "state": state, "stage": stage, "target": "null", "size": 1 << 30, "queues": 2,
            "depth": 64, "since_s": 12.7, "origin": "api", "a key of a newer daemon": {}});
        serde_json::from_value(device).expect("a device")
    }

    #[test]
    fn f91_a_short_list_shows_every_device() {
        let mut list = vec![device(7, "live"), device(1000, "starting"), device(8, "failed")];
        list[0].group = Some("vm-7".to_owned());
        list[0].labels = [("app", "db"), ("zone", "a")].map(|(k, v)| (k.into(), v.into())).into();
        list[1].since_s = 7300.0;
        (list[2].id, list[2].path, list[2].size) = (None, None, None);
        list[2].error = Some("open: no such file\n(ENOENT)".to_owned());
        list[2].target = "loop".to_owned();
        list[2].read_only = true;
        assert_snapshot!(devices(&list, Extent::Short, false), @r"
        3 devices: 1 starting, 1 live, 1 failed

        NAME      NODE            STATE           TARGET   SIZE  GROUP  SINCE  LAST ERROR
        vol-7     /dev/ublkb7     live            null    1 GiB  vm-7    12 s
        vol-1000  /dev/ublkb1000  starting (add)  null    1 GiB           2 h
        vol-8                     failed          loop                   12 s  open: no such file\n(ENOENT)
        ");
        assert_snapshot!(devices(&list, Extent::Short, true), @r"
        3 devices: 1 starting, 1 live, 1 failed

        NAME        ID  NODE            STATE           TARGET   SIZE  QUEUES  MODE  GROUP  LABELS         ORIGIN  SINCE  LAST ERROR
        vol-7        7  /dev/ublkb7     live            null    1 GiB    2×64  rw    vm-7   app=db,zone=a  api      12 s
        vol-1000  1000  /dev/ublkb1000  starting (add)  null    1 GiB    2×64  rw                          api       2 h
        vol-8                           failed          loop             2×64  ro                          api      12 s  open: no such file\n(ENOENT)
        ");
    }

    #[test]
    fn a_long_list_is_summed_up_and_what_is_not_live_is_shown() {
        let mut list: Vec<_> = (0..4000).map(|n| device(n, "live")).collect();
        list[17] = device(17, "wedged");
        list[18].target = "ram".to_owned();
        assert_snapshot!(devices(&list, Extent::Short, false), @r"
        4000 devices: 3999 live, 1 wedged

        TARGET   SIZE  DEVICES
        null    1 GiB     3999
        ram     1 GiB        1

        not live:
        NAME    NODE          STATE   TARGET   SIZE  GROUP  SINCE  LAST ERROR
        vol-17  /dev/ublkb17  wedged  null    1 GiB          12 s
        ");
        assert_eq!(devices(&list, Extent::All, false).lines().count(), 4003);
        list.iter_mut().for_each(|device| device.state = "a newer state".to_owned());
        let text = devices(&list, Extent::Short, false);
        assert!(text.starts_with("4000 devices: 4000 a newer state\n"), "{text}");
        assert!(text.ends_with("\u{2026} and 3950 more\n"), "{text}");
    }

    #[test]
    fn no_device_is_no_table() {
        assert_eq!(devices(&[], Extent::Short, false), "0 devices\n");
    }
}
