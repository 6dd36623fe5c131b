//! `ublkd list --kernel`: the ublk devices of this host as the kernel has them, with the names that a
//! daemon's links give them. It asks the kernel, not a daemon, so that nothing is missed.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;

use super::client::Failure;
use super::output::{Output, Shown};
use super::render::{self, host::NamedDevice};
use super::verbs::args::List;
use super::{complain, on_kernel};
use crate::daemon::ExitStatus;
use crate::model::ErrorKind;

pub(super) fn list(args: &List) -> Result<(), Failure> {
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
    let devices = devices.map_err(|e| Failure::new(ExitStatus::RunFailed, e.to_string()))?;
    let value = json!({ "items": &devices });
    let nodes = devices.iter().map(|named| named.device.id.block_path());
    let people = |_| render::host::kernel_devices(&devices);
    Output::show(args.ask.output, &Shown { value: &value, names: nodes, people: &people })
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
