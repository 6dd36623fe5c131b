//! The library in this process, on the real driver, as a host has it.

use std::error::Error;
use std::time::Duration;

use futures::executor::block_on;
use ublkd::driver::ublk;
use ublkd::model::{DeviceName, DeviceSpec, IoStats, QueueSpec, ShutdownReport, TargetSpec};
use ublkd::{Builder, Handle, Running};

use crate::guest::left;

/// A supervisor over the kernel's driver.
pub(crate) fn builder() -> Builder {
    Builder::new(ublk::driver())
}

/// A small device of one queue.
pub(crate) fn spec(name: &str, target: TargetSpec) -> Result<DeviceSpec, Box<dyn Error>> {
    let queues = QueueSpec { count: 1, depth: 16, max_io: 64 << 10 };
    Ok(DeviceSpec::builder(DeviceName::new(name)?, target).queues(queues).build()?)
}

/// What a device's queues have counted.
pub(crate) fn counted(handle: &Handle, name: &DeviceName) -> Result<IoStats, Box<dyn Error>> {
    Ok(block_on(handle.describe(name))?.ok_or("no such device")?.io)
}

/// The end: clean, with nothing left anywhere.
pub(crate) fn shut_down(running: Running) -> Result<ShutdownReport, Box<dyn Error>> {
    let report = block_on(running.shutdown(Duration::from_secs(60)))?;
    assert!(report.is_clean(), "{report:#?}");
    assert_eq!(left(), [""; 0]);
    Ok(report)
}
