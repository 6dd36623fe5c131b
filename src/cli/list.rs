//! `ublkd list`: the ublk devices of this host as the kernel has them, with the names that a
//! daemon's links give them. It asks the kernel, not a daemon, so that nothing is missed.

use std::collections::BTreeMap;
use std::path::Path;

use super::args::List;
use super::{complain, render, say};
use crate::daemon::ExitStatus;
use crate::driver::ublk;

pub(super) fn list(args: &List) -> ExitStatus {
    let devices = match ublk::devices() {
        Ok(devices) => devices,
        Err(error) => {
            complain(&error);
            return ExitStatus::RunFailed;
        }
    };
    let names = names(&args.run_dir);
    let rows: Vec<_> = devices
        .into_iter()
        .map(|device| render::kernel::Row {
            name: names.get(&device.id.block_path()).cloned(),
            device,
        })
        .collect();
    if args.format.json {
        render::json(&rows, say);
    } else {
        say(&render::kernel::table(&rows));
    }
    ExitStatus::Clean
}

/// Names by the node that they link to. Without a run directory nothing has a name.
fn names(run_dir: &Path) -> BTreeMap<String, String> {
    let Ok(entries) = std::fs::read_dir(run_dir.join("by-name")) else { return BTreeMap::new() };
    entries
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let node = std::fs::read_link(entry.path()).ok()?;
            Some((node.to_str()?.to_owned(), entry.file_name().into_string().ok()?))
        })
        .collect()
}
