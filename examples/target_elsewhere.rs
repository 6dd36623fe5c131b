//! A backend of the host's own whose I/O is done elsewhere: on a tokio runtime of the host's. The
//! queue thread hands a request over and is woken when the answer is there.

mod common;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use common::Outcome;
use futures::channel::oneshot;
use futures::executor::block_on;
use tokio::runtime::Runtime;
use ublkd::model::{DeviceName, DeviceSpec, TargetSpec};
use ublkd::target::{Errno, Geometry, Io, IoResult, Op, Serve, Shared, Target};

/// A store of 4 KiB blocks that lives on a runtime: stands for anything over a network.
struct Store {
    runtime: Arc<Runtime>,
    blocks: Arc<Mutex<HashMap<u64, Vec<u8>>>>,
}

const BLOCK: usize = 4096;

impl Store {
    /// Runs `work` on the store's runtime; the future can be awaited on any thread.
    async fn there<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut HashMap<u64, Vec<u8>>) -> T + Send + 'static,
    ) -> Result<T, Errno> {
        let (answer, answered) = oneshot::channel();
        let blocks = Arc::clone(&self.blocks);
        self.runtime.spawn(async move {
            tokio::time::sleep(Duration::from_micros(200)).await;
            let result = work(&mut blocks.lock().unwrap_or_else(PoisonError::into_inner));
            // Nobody listens when the device has gone meanwhile.
            let _ = answer.send(result);
        });
        answered.await.map_err(|_| Errno(nix::libc::EIO))
    }
}

impl Serve for Store {
    async fn serve(&self, io: &mut Io) -> IoResult {
        let (first, count) = (io.offset() / BLOCK as u64, (io.len() / BLOCK) as u64);
        match io.op() {
            Op::Read => {
                let found = self.there(move |blocks| {
                    let wanted = first..first + count;
                    wanted.map(|n| blocks.get(&n).cloned()).collect::<Vec<_>>()
                });
                let found = found.await?;
                for (block, data) in io.buf_mut().chunks_mut(BLOCK).zip(found) {
                    match data {
                        Some(data) => block.copy_from_slice(&data),
                        None => block.fill(0),
                    }
                }
                Ok(())
            }
            Op::Write => {
                let data: Vec<_> = io.buf().chunks(BLOCK).map(<[u8]>::to_vec).collect();
                self.there(move |blocks| blocks.extend((first..).zip(data))).await
            }
            Op::Flush => Ok(()),
            Op::Discard | Op::WriteZeroes => Err(Errno(nix::libc::EOPNOTSUPP)),
        }
    }
}

fn main() -> Outcome {
    let (driver, host) = common::driver()?;
    let runtime = Arc::new(Runtime::new()?);
    let opener = {
        let runtime = Arc::clone(&runtime);
        move |_: &DeviceSpec| {
            let store = Store { runtime: Arc::clone(&runtime), blocks: Arc::default() };
            let geometry = Geometry::new(16 << 20, BLOCK as u32);
            Ok(Arc::new(Shared::new(geometry, store)) as Arc<dyn Target>)
        }
    };
    let running = ublkd::Builder::new(driver).target("store", Arc::new(opener)).start()?;

    let target = TargetSpec::Custom { name: "store".to_owned(), options: Default::default() };
    let spec = DeviceSpec::builder(DeviceName::new("remote")?, target).build()?;
    let device = block_on(running.handle().create(spec))?;
    let disk = host.open(device.id)?;
    disk.check()?;
    println!("{} is {}: compared", device.name, device.id.block_path());

    drop(disk);
    let report = block_on(running.shutdown(Duration::from_secs(30)))?;
    assert!(report.is_clean(), "{:?}", report.left);
    println!("all gone");
    Ok(())
}
