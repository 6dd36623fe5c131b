//! What devices take of the host, against what `sys::limits` says they take.

use std::error::Error;
use std::fs;

use futures::future::try_join_all;
use ublkd::model::{QueueSpec, TargetSpec};
use ublkd::sys::host::Host;
use ublkd::sys::limits::{Need, Verdict, check, raise_open_files};

use crate::served::{Order, Served, target};
use crate::support::run;

/// Open files and mappings of this process.
fn taken() -> Result<(u64, u64), Box<dyn Error>> {
    let files = fs::read_dir("/proc/self/fd")?.count() as u64;
    let mappings = fs::read_to_string("/proc/self/maps")?.lines().count() as u64;
    Ok((files, mappings))
}

#[test]
fn f28_devices_take_what_is_counted_and_give_it_back() -> Result<(), Box<dyn Error>> {
    run(async |driver| {
        const DEVICES: u64 = 50;
        let queues = QueueSpec { count: 2, depth: 16, max_io: 64 << 10 };
        let need = |devices| Need {
            devices,
            queues: devices * u64::from(queues.count),
            target_files: 0,
            in_flight: 64,
        };
        raise_open_files(&need(DEVICES))?;
        let before = taken()?;
        let starts = (0..DEVICES).map(|_| async {
            let null = target(TargetSpec::Null { size: 1 << 20 })?;
            Served::start(driver, null, queues).await
        });
        let devices = try_join_all(starts).await?;
        let during = taken()?;
        println!("{DEVICES} devices of 2 queues: files, mappings from {before:?} to {during:?}");
        let counted = need(DEVICES).open_files() - need(0).open_files();
        assert_eq!(during.0 - before.0, counted, "open files");
        let counted = need(DEVICES).mappings() - need(0).mappings();
        assert!(during.1 - before.1 <= counted, "more than {counted} mappings");

        try_join_all(devices.into_iter().map(|d| d.end(driver, Order::DeleteFirst))).await?;
        assert_eq!(taken()?.0, before.0, "open files afterwards");
        Ok(())
    })
}

#[test]
fn f41_this_host_passes_its_checks() -> Result<(), Box<dyn Error>> {
    run(async |_| {
        let need = Need { devices: 10, queues: 20, target_files: 10, in_flight: 64 };
        for check in check(&Host::default(), &need) {
            println!("{check}");
            assert!(check.verdict != Verdict::Fail, "{check}");
        }
        Ok(())
    })
}
