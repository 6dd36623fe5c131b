//! What the examples share: the driver that `--driver` names, and a device as its user sees it.
//! A host agent needs none of this; it would say `ublk::driver()` and open the node.
#![allow(dead_code, reason = "each example uses a part")]

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;

use ublkd::driver::sim::{FaultPlan, KernelProfile, SimDisk, SimDisks};
use ublkd::driver::{MakeDriver, sim, ublk};
use ublkd::model::{DeviceId, DeviceName, DeviceSpec, TargetSpec};

pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// The driver, and its block devices where it is a simulated one.
pub(crate) struct Host {
    disks: Option<SimDisks>,
}

/// `--driver ublk` (the default) or `--driver sim`.
pub(crate) fn driver() -> Outcome<(MakeDriver, Host)> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = args.iter().map(String::as_str).collect();
    match words[..] {
        [] | ["--driver", "ublk"] => Ok((ublk::driver(), Host { disks: None })),
        ["--driver", "sim"] => {
            let (make, disks) = sim::driver(KernelProfile::linux_7_3(), FaultPlan::none());
            Ok((make, Host { disks: Some(disks) }))
        }
        _ => Err("usage: [--driver ublk|sim]".into()),
    }
}

/// An open block device.
pub(crate) enum Disk {
    Node(File),
    Sim(SimDisk),
}

impl Host {
    pub(crate) fn open(&self, id: DeviceId) -> Outcome<Disk> {
        Ok(match &self.disks {
            Some(disks) => Disk::Sim(disks.get(id)?),
            None => {
                let node = File::options().read(true).write(true).open(id.block_path())?;
                Disk::Node(node)
            }
        })
    }
}

impl Disk {
    pub(crate) fn read(&self, offset: u64, len: usize) -> Outcome<Vec<u8>> {
        let mut data = vec![0; len];
        match self {
            Self::Node(file) => file.read_exact_at(&mut data, offset)?,
            Self::Sim(disk) => disk.read_at(offset, &mut data).map_err(errno)?,
        }
        Ok(data)
    }

    /// Writes, and waits until it is durable.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Outcome {
        match self {
            Self::Node(file) => {
                file.write_all_at(data, offset)?;
                file.sync_data()?;
            }
            Self::Sim(disk) => {
                disk.write_at(offset, data).map_err(errno)?;
                disk.flush().map_err(errno)?;
            }
        }
        Ok(())
    }

    /// Writes a pattern and reads it back.
    pub(crate) fn check(&self) -> Outcome {
        let pattern: Vec<u8> = (0..64 << 10).map(|n: u32| (n % 251) as u8).collect();
        self.write(4096, &pattern)?;
        if self.read(4096, pattern.len())? == pattern {
            Ok(())
        } else {
            Err("what was read is not what was written".into())
        }
    }
}

fn errno(errno: ublkd::target::Errno) -> String {
    ublkd::model::errno_name(errno.0)
}

/// A RAM device of 16 MiB.
pub(crate) fn ram(name: &str) -> Outcome<DeviceSpec> {
    let target = TargetSpec::Ram { size: 16 << 20 };
    Ok(DeviceSpec::builder(DeviceName::new(name)?, target).build()?)
}
