//! `ublkd list`: the ublk devices of this host as the kernel has them, with the names that a
//! daemon's links give them. It asks the kernel, not a daemon, so that nothing is missed.

use std::collections::BTreeMap;
use std::path::Path;

use super::args::List;
use super::render::{self, host::NamedDevice};
use super::{complain, finish, on_kernel};
use crate::daemon::ExitStatus;
use crate::model::ErrorKind;

pub(super) fn list(args: &List) -> ExitStatus {
    let names = names(&args.run_dir);
    let devices = on_kernel(async |driver| {
        let mut devices = Vec::new();
        for id in driver.list()? {
            match driver.info(id).await {
                Ok(device) => {
                    let name = names.get(&id.block_path()).cloned();
                    devices.push(NamedDevice { name, device });
                }
                // It went between the two.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => complain(&error),
            }
        }
        Ok(devices)
    });
    finish(devices.and_then(|devices| match args.format.json {
        true => render::json(&devices),
        false => Ok(render::host::kernel_devices(&devices)),
    }))
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
