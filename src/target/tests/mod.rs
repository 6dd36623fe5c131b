//! The backends, served by the real engine on a real ring, without a driver.

mod faults;
mod files;
mod model;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use super::testing::LocalQueue;
use super::{Errno, IoResult, Op, Registry, Request, Target};
use crate::model::{DeviceName, DeviceSpec, FaultSpec, QueueExit, TargetSpec};

type TestResult = Result<(), Box<dyn std::error::Error>>;

const MAX_IO: u32 = 128 << 10;
const DEPTH: u16 = 16;

fn spec(target: TargetSpec) -> crate::model::DeviceSpecBuilder {
    DeviceSpec::builder(DeviceName::new("vol-1").expect("a name"), target)
}

fn file_spec(path: &Path, direct: bool) -> TargetSpec {
    TargetSpec::Loop { path: path.to_owned(), direct }
}

type Answer = Receiver<(IoResult, Vec<u8>)>;

/// Waits for an answer, and not for ever.
fn settled(answer: Answer) -> (IoResult, Vec<u8>) {
    answer.recv_timeout(Duration::from_secs(30)).expect("the request was answered")
}

/// A served target that requests are made of one by one.
struct Disk {
    target: Arc<dyn Target>,
    queue: LocalQueue,
}

impl Disk {
    fn open(spec: DeviceSpec) -> Result<Self, Box<dyn std::error::Error>> {
        Self::of(Registry::default().open(&spec)?)
    }

    fn of(target: Arc<dyn Target>) -> Result<Self, Box<dyn std::error::Error>> {
        let queue = LocalQueue::start(Arc::clone(&target), DEPTH, MAX_IO)?;
        Ok(Self { target, queue })
    }

    fn submit(&self, request: Request, data: Vec<u8>) -> Answer {
        self.queue.submit(request, data)
    }

    fn ask(&self, op: Op, offset: u64, len: u32) -> IoResult {
        settled(self.submit(Request::new(op, offset, len), Vec::new())).0
    }

    fn read(&self, offset: u64, len: u32) -> Result<Vec<u8>, Errno> {
        let (result, data) = settled(self.submit(Request::new(Op::Read, offset, len), Vec::new()));
        result.map(|()| data)
    }

    fn write(&self, offset: u64, data: &[u8]) -> IoResult {
        let request = Request::new(Op::Write, offset, data.len() as u32);
        settled(self.submit(request, data.to_vec())).0
    }

    fn stop(self) -> QueueExit {
        self.queue.stop()
    }
}
