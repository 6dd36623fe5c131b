//! What is there in the simulated kernel at one moment, for tests and for `describe`.

use std::fmt;

use super::fault::InFlight;
use super::kernel::Kernel;
use crate::driver::KernelState;
use crate::model::DeviceId;

/// Everything that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Every device that somebody holds a reference to, in order. One without is unknown to all
    /// commands, and its id is free as soon as the kernel has freed the tag set.
    pub devices: Vec<DeviceSnapshot>,
    /// Queue threads that are up (of virtual queues: those that would be).
    pub queue_threads: usize,
    /// Control commands in flight.
    pub commands: InFlight,
}

/// One device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSnapshot {
    /// Its number.
    pub id: DeviceId,
    /// Its state.
    pub state: KernelState,
    /// Whether a delete has removed its node.
    pub deleted: bool,
    /// Open files of the char device.
    pub fds: u32,
    /// Mappings of its descriptors.
    pub maps: u32,
    /// Registrations in rings.
    pub rings: u32,
    /// Users who have the block device open.
    pub openers: usize,
    /// Requests that wait for an answer.
    pub io_in_flight: usize,
}

impl Snapshot {
    pub(super) fn of(kernel: &Kernel, commands: InFlight) -> Self {
        let devices = kernel.devices();
        let devices = devices.iter().map(|device| {
            let [fds, maps, rings] = device.file_references();
            let disk = device.last_disk();
            DeviceSnapshot {
                id: device.id,
                state: device.state.get(),
                deleted: device.deleted.get(),
                fds,
                maps,
                rings,
                openers: disk.as_ref().map_or(0, |disk| disk.openers()),
                io_in_flight: disk.as_ref().map_or(0, |disk| disk.in_flight()),
            }
        });
        Self { devices: devices.collect(), queue_threads: kernel.threads.get(), commands }
    }

    /// Whether nothing is left: no device, no reference, no queue thread, no command.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty() && self.queue_threads == 0 && self.commands.now == 0
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { devices, queue_threads, commands } = self;
        let (now, most) = (commands.now, commands.most);
        write!(f, "{} devices, {queue_threads} queue threads, ", devices.len())?;
        write!(f, "{now} commands in flight (at most {most})")?;
        for device in devices {
            let DeviceSnapshot { id, state, fds, maps, rings, openers, io_in_flight, .. } = device;
            let deleted = if device.deleted { ", deleted" } else { "" };
            write!(f, "\n  {id}: {state:?}{deleted}, {fds} fds, {maps} maps, {rings} rings, ")?;
            write!(f, "{openers} openers, {io_in_flight} requests in flight")?;
        }
        Ok(())
    }
}
