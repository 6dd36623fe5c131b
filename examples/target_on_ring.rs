//! A backend of the host's own, asynchronous on the queue's ring: a device striped over two files.
//! Each request waits for its operations on the ring while the queue serves others.

mod common;

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use common::Outcome;
use futures::executor::block_on;
use ublkd::model::{DeviceName, DeviceSpec, Error, TargetSpec};
use ublkd::target::{Geometry, Io, IoResult, Op, Serve, Shared, Target};

const STRIPE: u64 = 64 << 10;
const SIZE: u64 = 16 << 20;

struct Striped {
    files: [File; 2],
}

impl Striped {
    /// The file that byte `offset` lies in, and where in it.
    fn place(&self, offset: u64) -> (&File, u64) {
        let (stripe, within) = (offset / STRIPE, offset % STRIPE);
        let file = &self.files[(stripe % 2) as usize];
        (file, stripe / 2 * STRIPE + within)
    }
}

impl Serve for Striped {
    async fn serve(&self, io: &mut Io) -> IoResult {
        // The geometry says that no request is larger than a stripe; the spec's max_io is.
        let (file, at) = self.place(io.offset());
        match io.op() {
            Op::Read => io.read_file(file.as_fd(), at).await,
            Op::Write => io.write_file(file.as_fd(), at, io.fua()).await,
            Op::Flush => {
                for file in &self.files {
                    io.datasync(file.as_fd()).await?;
                }
                Ok(())
            }
            // The geometry offers neither.
            Op::Discard | Op::WriteZeroes => Err(ublkd::target::Errno(nix::libc::EOPNOTSUPP)),
        }
    }
}

fn open(_: &DeviceSpec) -> Result<Arc<dyn Target>, Error> {
    let file = || {
        let file = tempfile::tempfile().map_err(|e| Error::from_io(&e, "no file"))?;
        file.set_len(SIZE / 2).map_err(|e| Error::from_io(&e, "no space"))?;
        Ok::<_, Error>(file)
    };
    let mut geometry = Geometry::new(SIZE, 512);
    geometry.volatile_cache = true;
    geometry.fua = true;
    Ok(Arc::new(Shared::new(geometry, Striped { files: [file()?, file()?] })))
}

fn main() -> Outcome {
    let (driver, host) = common::driver()?;
    let running = ublkd::Builder::new(driver).target("striped", Arc::new(open)).start()?;

    let target = TargetSpec::Custom { name: "striped".to_owned(), options: Default::default() };
    let queues = ublkd::model::QueueSpec { max_io: STRIPE as u32, ..Default::default() };
    let spec = DeviceSpec::builder(DeviceName::new("stripes")?, target).queues(queues).build()?;
    let device = block_on(running.handle().create(spec))?;
    // Aligned to a stripe, no request crosses one.
    let disk = host.open(device.id)?;
    for stripe in 0..8 {
        let data = vec![stripe as u8 + 1; STRIPE as usize];
        disk.write(stripe * STRIPE, &data)?;
    }
    for stripe in 0..8 {
        let data = disk.read(stripe * STRIPE, STRIPE as usize)?;
        assert!(data.iter().all(|byte| *byte == stripe as u8 + 1));
    }
    println!("{} is {}: 8 stripes compared", device.name, device.id.block_path());

    drop(disk);
    let report = block_on(running.shutdown(Duration::from_secs(30)))?;
    assert!(report.is_clean(), "{:?}", report.left);
    println!("all gone");
    Ok(())
}
