//! The resolved config, for `ublkd check`.

use super::table::{Align::Left, Align::Right, Table};
use super::{Extent, MOST_ROWS, devices_text};
use crate::config::{Config, ConfiguredDevice, size_text};
use crate::model::TargetSpec;

/// The devices of a config as a table, one row a device; a long list has one row an entry of the
/// file, and not too many of them, unless all are asked for.
#[must_use]
pub fn resolved(config: &Config, extent: Extent) -> String {
    let mut table = Table::new([
        ("NAME", Left),
        ("DEVICES", Right),
        ("ID", Right),
        ("TARGET", Left),
        ("SIZE OR PATH", Left),
        ("QUEUES", Right),
        ("MAX IO", Right),
        ("MODE", Left),
        ("FROM", Left),
    ]);
    let all = extent.shows(config.devices.len());
    let mut entries = config.devices.chunk_by(|a, b| !all && a.origin == b.origin);
    let most = if all { usize::MAX } else { MOST_ROWS };
    for entry in entries.by_ref().take(most) {
        if let [first, .., last] | [first @ last] = entry {
            table.row(row(first, last, entry.len()));
        }
    }
    let mut out = format!("{}\n\n{}", devices_text(config.devices.len()), table.text());
    let more: usize = entries.map(<[_]>::len).sum();
    if more > 0 {
        out += &format!("\u{2026} and {more} more\n");
    }
    out
}

fn row(first: &ConfiguredDevice, last: &ConfiguredDevice, count: usize) -> [String; 9] {
    let from_to = |text: &dyn Fn(&ConfiguredDevice) -> String| match (text(first), text(last)) {
        (first, last) if first == last => first,
        (first, last) => format!("{first} \u{2026} {last}"),
    };
    let spec = &first.spec;
    let queues = spec.queues();
    [
        from_to(&|device| device.spec.name().to_string()),
        count.to_string(),
        from_to(&|device| device.spec.id().map(|id| id.to_string()).unwrap_or_default()),
        spec.target().kind().to_owned(),
        from_to(&|device| match device.spec.target() {
            TargetSpec::Null { size } | TargetSpec::Ram { size } => size_text(*size),
            TargetSpec::Loop { path, .. } => path.display().to_string(),
            TargetSpec::Custom { .. } => String::new(),
        }),
        format!("{}\u{d7}{}", queues.count, queues.depth),
        size_text(queues.max_io.into()),
        if spec.read_only() { "ro" } else { "rw" }.to_owned(),
        first.origin.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ApiConfig, LogConfig, MetricsConfig, Origin, SupervisorConfig};
    use crate::model::{DeviceId, DeviceName, DeviceSpec};
    use insta::assert_snapshot;

    fn device(name: &str, line: usize, target: TargetSpec, id: Option<u32>) -> ConfiguredDevice {
        let name = DeviceName::new(name).expect("a name");
        let mut spec = DeviceSpec::builder(name, target);
        if let Some(id) = id {
            spec = spec.id(DeviceId(id));
        }
        let origin = Origin { file: "etc/x.toml".into(), line, column: 1 };
        ConfiguredDevice { spec: spec.build().expect("a spec"), origin }
    }

    fn config(fleet: u32) -> Config {
        let mut devices: Vec<_> = (0..fleet)
            .map(|n| {
                let path = format!("/srv/{n}.img").into();
                let target = TargetSpec::Loop { path, direct: true };
                device(&format!("vol-{n}"), 1, target, Some(100 + n))
            })
            .collect();
        devices.push(device("scratch", 9, TargetSpec::Ram { size: 64 << 20 }, None));
        Config {
            supervisor: SupervisorConfig::default(),
            log: LogConfig::default(),
            metrics: MetricsConfig::default(),
            api: ApiConfig::default(),
            devices,
        }
    }

    #[test]
    fn a_short_list_has_a_row_a_device() {
        assert_snapshot!(resolved(&config(2), Extent::Short), @r"
    3 devices

    NAME     DEVICES   ID  TARGET  SIZE OR PATH  QUEUES   MAX IO  MODE  FROM
    vol-0          1  100  loop    /srv/0.img      1×64  512 KiB  rw    etc/x.toml:1:1
    vol-1          1  101  loop    /srv/1.img      1×64  512 KiB  rw    etc/x.toml:1:1
    scratch        1       ram     64 MiB          1×64  512 KiB  rw    etc/x.toml:9:1
    ");
    }

    #[test]
    fn a_fleet_is_one_row() {
        assert_snapshot!(resolved(&config(4000), Extent::Short), @r"
    4001 devices

    NAME              DEVICES          ID  TARGET  SIZE OR PATH                QUEUES   MAX IO  MODE  FROM
    vol-0 … vol-3999     4000  100 … 4099  loop    /srv/0.img … /srv/3999.img    1×64  512 KiB  rw    etc/x.toml:1:1
    scratch                 1              ram     64 MiB                        1×64  512 KiB  rw    etc/x.toml:9:1
    ");
        assert_eq!(resolved(&config(4000), Extent::All).lines().count(), 4004);
    }

    #[test]
    fn a_long_list_of_entries_is_cut() {
        let mut config = config(100);
        for (line, device) in config.devices.iter_mut().enumerate() {
            device.origin.line = line;
        }
        assert!(resolved(&config, Extent::Short).ends_with("\u{2026} and 51 more\n"));
    }
}
