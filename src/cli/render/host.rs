//! What a host has: its limits and features, and the devices of its kernel.

use serde::Serialize;

use super::devices_text;
use super::table::{Align::Left, Align::Right, Table};
use crate::driver::{Features, KernelDevice};
use crate::sys::limits::Check;

/// A device of the kernel's, with the name that a daemon's link gives it.
#[derive(Debug, Serialize)]
pub struct NamedDevice {
    /// The name, if a link leads to it.
    pub name: Option<String>,
    /// What the kernel says of it.
    #[serde(flatten)]
    pub device: KernelDevice,
}

/// A feature of the driver, and whether this kernel has it.
#[derive(Debug, Serialize)]
pub struct Feature {
    /// Its word.
    pub name: &'static str,
    /// Whether this kernel has it.
    pub available: bool,
    /// What it is good for.
    pub meaning: &'static str,
}

/// Every feature known here, against those that the kernel has.
#[must_use]
pub fn features(has: Features) -> Vec<Feature> {
    let known = Features::KNOWN.iter();
    known
        .map(|(flag, name, meaning)| Feature { name, available: has.has(*flag), meaning })
        .collect()
}

/// Checks as a table.
#[must_use]
pub fn checks(checks: &[Check]) -> String {
    let mut table = Table::new([
        ("CHECK", Left),
        ("VERDICT", Left),
        ("NEED", Left),
        ("HAVE", Left),
        ("REMEDY", Left),
    ]);
    for check in checks {
        table.row([
            check.name.to_owned(),
            check.verdict.to_string(),
            check.need.clone(),
            check.have.clone(),
            check.remedy.clone(),
        ]);
    }
    table.text()
}

/// Features as a table.
#[must_use]
pub fn feature_table(features: &[Feature]) -> String {
    let mut table = Table::new([("FEATURE", Left), ("HERE", Left), ("MEANING", Left)]);
    for feature in features {
        let here = if feature.available { "yes" } else { "no" };
        table.row([feature.name.to_owned(), here.to_owned(), feature.meaning.to_owned()]);
    }
    table.text()
}

/// The kernel's devices as a table: every row, since this is what a leak is looked for with.
#[must_use]
pub fn kernel_devices(devices: &[NamedDevice]) -> String {
    let mut out = devices_text(devices.len());
    out.push('\n');
    if devices.is_empty() {
        return out;
    }
    let mut table = Table::new([
        ("ID", Right),
        ("NAME", Left),
        ("NODE", Left),
        ("STATE", Left),
        ("QUEUES", Right),
        ("DEPTH", Right),
        ("MAX IO", Right),
        ("PID", Right),
    ]);
    for NamedDevice { name, device } in devices {
        table.row([
            device.id.to_string(),
            name.clone().unwrap_or_else(|| "-".to_owned()),
            device.id.block_path(),
            format!("{:?}", device.state).to_lowercase(),
            device.queues.count.to_string(),
            device.queues.depth.to_string(),
            crate::config::size_text(u64::from(device.queues.max_io)),
            device.pid.to_string(),
        ]);
    }
    out + "\n" + &table.text()
}
