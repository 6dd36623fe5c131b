//! A fleet of equal devices in a supervisor of its own: what a user of the library has.
//!
//! Invariants: whatever happens, a fleet that was brought up is taken down (dropping it does it).

use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::executor::block_on;

use super::lab::{Down, Lab, Up, WITHIN};
use crate::model::{
    DeleteOutcome, DeviceInfo, DeviceName, DeviceSpec, Error, ErrorKind, ShutdownReport,
    WorkerLimit,
};
use crate::sys::census;
use crate::{Builder, Handle, Running};

/// Devices that are up.
pub(super) struct Fleet {
    running: Running,
}

impl Fleet {
    /// A supervisor without devices.
    pub(super) fn new(lab: &Lab, workers: WorkerLimit, close_first: bool) -> Result<Self, Error> {
        let builder = Builder::new(lab.driver()?).workers(workers).close_first(close_first);
        Ok(Self { running: builder.start()? })
    }

    pub(super) fn handle(&self) -> Handle {
        self.running.handle()
    }

    /// Brings `specs` up; gives when each was, from the first one's begin.
    pub(super) fn create(&self, specs: Vec<DeviceSpec>) -> Result<Up, Error> {
        let handle = self.handle();
        block_on(async {
            let mut ready = Vec::with_capacity(specs.len());
            let (began, before) = (Instant::now(), census::processor_time());
            let mut created = std::pin::pin!(handle.create_all(specs));
            while let Some((_, result)) = created.next().await {
                result?;
                ready.push(began.elapsed());
            }
            Ok(Up { ready, processor: census::processor_time() - before })
        })
    }

    /// What is known of one device.
    pub(super) fn describe(&self, name: &DeviceName) -> Result<DeviceInfo, Error> {
        let known = block_on(self.handle().describe(name))?;
        known.ok_or_else(|| Error::new(ErrorKind::Internal, "the device is gone").device(name))
    }

    /// Takes all down.
    ///
    /// # Errors
    /// When something is left.
    pub(super) fn shutdown(self) -> Result<(Down, ShutdownReport), Error> {
        let before = census::processor_time();
        let report = block_on(self.running.shutdown(WITHIN))?;
        clean(report, before)
    }

    /// Takes all down, each when the one before it is gone.
    ///
    /// # Errors
    /// When something is left.
    pub(super) fn shutdown_one_by_one(self) -> Result<(Down, ShutdownReport), Error> {
        let handle = self.handle();
        let (began, before) = (Instant::now(), census::processor_time());
        let outcomes = block_on(async {
            let mut outcomes = Vec::new();
            for device in handle.list().await? {
                if let DeleteOutcome::Ended(outcome) = handle.delete(&device.name).await? {
                    outcomes.push(*outcome);
                }
            }
            Ok::<_, Error>(outcomes)
        })?;
        clean(ShutdownReport::new(outcomes, began.elapsed(), false), before)
    }
}

/// The measures of a shutdown that left nothing; `before` is the processor time at its begin.
fn clean(report: ShutdownReport, before: Duration) -> Result<(Down, ShutdownReport), Error> {
    match report.left.first() {
        None => {
            let processor = census::processor_time() - before;
            Ok((Down { wall: report.wall, processor }, report))
        }
        Some(first) => {
            let text = format!("{} things are left, the first: {first}", report.left.len());
            Err(Error::new(ErrorKind::Timeout, text).elapsed(report.wall))
        }
    }
}
