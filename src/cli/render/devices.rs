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

use super::table::{Align::Left, Align::Right, Table};
use super::{Extent, MOST_ROWS, devices_text};
use crate::config::size_text;
use crate::model::{DeviceInfo, DeviceState};

/// The devices as a table with a sum above. A long list shows only those that are not live, unless
/// all are asked for.
#[must_use]
pub fn devices(list: &[DeviceInfo], extent: Extent) -> String {
    let mut states: BTreeMap<DeviceState, usize> = BTreeMap::new();
    for device in list {
        *states.entry(device.state).or_default() += 1;
    }
    let counts: Vec<_> = states.iter().map(|(state, n)| format!("{n} {state}")).collect();
    let mut out = devices_text(list.len());
    if !counts.is_empty() {
        out += &format!(": {}", counts.join(", "));
    }
    out.push('\n');
    if list.is_empty() {
        return out;
    }
    if extent.shows(list.len()) {
        return out + "\n" + &rows(list);
    }
    out += &format!("\n{}", kinds(list));
    let others: Vec<_> =
        list.iter().filter(|device| device.state != DeviceState::Live).take(MOST_ROWS).collect();
    if !others.is_empty() {
        out += &format!("\nnot live:\n{}", rows(others.iter().copied()));
        let more = list.len() - states.get(&DeviceState::Live).unwrap_or(&0) - others.len();
        if more > 0 {
            out += &format!("\u{2026} and {more} more\n");
        }
    }
    out
}

fn size(device: &DeviceInfo) -> String {
    device.size.map(size_text).unwrap_or_default()
}

/// How many devices there are of each target and size.
fn kinds(list: &[DeviceInfo]) -> String {
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

fn rows<'a>(list: impl IntoIterator<Item = &'a DeviceInfo>) -> String {
    let mut table = Table::new([
        ("NAME", Left),
        ("ID", Right),
        ("NODE", Left),
        ("STATE", Left),
        ("TARGET", Left),
        ("SIZE", Right),
        ("QUEUES", Right),
        ("MODE", Left),
        ("SINCE", Right),
        ("LAST ERROR", Left),
    ]);
    for device in list {
        let state = match device.state {
            // Where it is on its way says more than that it is on its way.
            DeviceState::Starting
            | DeviceState::Cancelling
            | DeviceState::Stopping
            | DeviceState::Failing => format!("{} ({})", device.state, device.stage),
            state => state.to_string(),
        };
        table.row([
            device.name.to_string(),
            device.id.map(|id| id.to_string()).unwrap_or_default(),
            device.path.clone().unwrap_or_default(),
            state,
            device.target.clone(),
            size(device),
            format!("{}\u{d7}{}", device.queues, device.depth),
            if device.read_only { "ro" } else { "rw" }.to_owned(),
            age(device.since_s),
            device.error.clone().unwrap_or_default(),
        ]);
    }
    table.text()
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
    use std::sync::Arc;

    use crate::model::{
        DeviceId, DeviceName, DeviceSpec, IoStats, Labels, Origin, Stage, TargetSpec,
    };
    use insta::assert_snapshot;

    fn device(n: u32, state: DeviceState) -> DeviceInfo {
        DeviceInfo {
            name: DeviceName::new(format!("vol-{n}")).expect("a name"),
            id: Some(DeviceId(n)),
            path: Some(DeviceId(n).block_path()),
            state,
            stage: if state == DeviceState::Live { Stage::Live } else { Stage::Add },
            target: "null".to_owned(),
            size: Some(1 << 30),
            queues: 2,
            depth: 64,
            read_only: false,
            tids: vec![1, 2],
            since_s: 12.7,
            io: IoStats::default(),
            error: None,
            group: None,
            labels: Labels::new(),
            origin: Origin::Config,
            holders: Vec::new(),
            spec: Arc::new(spec(n)),
        }
    }

    fn spec(n: u32) -> DeviceSpec {
        let name = DeviceName::new(format!("vol-{n}")).expect("a name");
        DeviceSpec::builder(name, TargetSpec::Null { size: 1 << 30 }).build().expect("a spec")
    }

    #[test]
    fn f91_a_short_list_shows_every_device() {
        let mut list = vec![
            device(7, DeviceState::Live),
            device(1000, DeviceState::Starting),
            device(8, DeviceState::Failed),
        ];
        list[1].since_s = 7300.0;
        (list[2].id, list[2].path, list[2].size) = (None, None, None);
        list[2].error = Some("open: no such file\n(ENOENT)".to_owned());
        list[2].target = "loop".to_owned();
        list[2].read_only = true;
        assert_snapshot!(devices(&list, Extent::Short), @r"
    3 devices: 1 starting, 1 live, 1 failed

    NAME        ID  NODE            STATE           TARGET   SIZE  QUEUES  MODE  SINCE  LAST ERROR
    vol-7        7  /dev/ublkb7     live            null    1 GiB    2×64  rw     12 s
    vol-1000  1000  /dev/ublkb1000  starting (add)  null    1 GiB    2×64  rw      2 h
    vol-8                           failed          loop             2×64  ro     12 s  open: no such file\n(ENOENT)
    ");
    }

    #[test]
    fn a_long_list_is_summed_up_and_what_is_not_live_is_shown() {
        let mut list: Vec<_> = (0..4000).map(|n| device(n, DeviceState::Live)).collect();
        list[17] = device(17, DeviceState::Wedged);
        list[18].target = "ram".to_owned();
        assert_snapshot!(devices(&list, Extent::Short), @r"
    4000 devices: 3999 live, 1 wedged

    TARGET   SIZE  DEVICES
    null    1 GiB     3999
    ram     1 GiB        1

    not live:
    NAME    ID  NODE          STATE   TARGET   SIZE  QUEUES  MODE  SINCE  LAST ERROR
    vol-17  17  /dev/ublkb17  wedged  null    1 GiB    2×64  rw     12 s
    ");
        assert_eq!(devices(&list, Extent::All).lines().count(), 4003);
        list.iter_mut().for_each(|device| device.state = DeviceState::Waiting);
        let text = devices(&list, Extent::Short);
        assert!(text.ends_with("\u{2026} and 3950 more\n"), "{text}");
    }

    #[test]
    fn no_device_is_no_table() {
        assert_eq!(devices(&[], Extent::Short), "0 devices\n");
    }
}
