//! A device that is served: brought up and taken down step by step, as the device actor does it.

use std::sync::Arc;
use std::time::Duration;

use ublkd::driver::{
    AddDevice, CharDevice, Command, Driver, Features, Params, QueueEvents, QueueSet, ServePlan,
};
use ublkd::model::{
    DeviceId, DeviceName, DeviceSpec, Error, ErrorKind, QueueExitCause, QueueSpec, TargetSpec,
};
use ublkd::target::{Registry, Target};

use crate::support::freed;

/// A started device and everything that serves it.
pub(crate) struct Served {
    pub(crate) id: DeviceId,
    pub(crate) queues: Box<dyn QueueSet>,
    node: Box<dyn CharDevice>,
}

/// In which order a device is taken down once its queues have been joined.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Order {
    /// Delete without waiting, close, wait for the id.
    DeleteFirst,
    /// Close, delete and wait.
    CloseFirst,
}

pub(crate) const QUEUES: QueueSpec = QueueSpec { count: 1, depth: 16, max_io: 128 << 10 };

/// A built-in target.
pub(crate) fn target(spec: TargetSpec) -> Result<Arc<dyn Target>, Error> {
    Registry::default().open(&DeviceSpec::builder(name()?, spec).build()?)
}

fn name() -> Result<DeviceName, Error> {
    DeviceName::new("kernel-test").map_err(|e| Error::new(ErrorKind::Invalid, e.to_string()))
}

impl Served {
    pub(crate) async fn start(
        driver: &dyn Driver,
        target: Arc<dyn Target>,
        queues: QueueSpec,
    ) -> Result<Self, Error> {
        let add = AddDevice { id: None, queues, features: Features::NONE };
        let device = driver.add(add).await?;
        let (id, queues) = (device.id, device.queues);
        let params =
            Params { geometry: target.geometry(), max_io: queues.max_io, memory_alignment: None };
        driver.execute(Command::SetParams(id, params)).await?;
        let node = driver.open(id).await?;
        let events: QueueEvents = Arc::new(|_| ());
        let log = slog::Logger::root(slog::Discard, slog::o!());
        let drain = Duration::from_secs(5);
        let features = device.features;
        let plan = ServePlan {
            device: name()?,
            id,
            queues,
            affinity: Vec::new(),
            features,
            target,
            events,
            drain,
            log,
        };
        let mut queues = node.serve(plan)?;
        queues.ready().await?;
        driver.execute(Command::Start(id)).await?;
        driver.node_ready(id).await?;
        Ok(Self { id, queues, node })
    }

    /// `/dev/ublkbN`.
    pub(crate) fn path(&self) -> String {
        self.id.block_path()
    }

    /// Stops the disk and joins the queues.
    pub(crate) async fn stop(&mut self, driver: &dyn Driver) -> Result<(), Error> {
        driver.execute(Command::Stop(self.id)).await?;
        self.queues.stop();
        for exit in self.queues.join().await {
            assert_eq!(exit.cause, QueueExitCause::Stopped, "device {}: {exit:?}", self.id);
        }
        Ok(())
    }

    /// Takes the stopped device away.
    pub(crate) async fn remove(self, driver: &dyn Driver, order: Order) -> Result<(), Error> {
        let Self { id, queues, node } = self;
        drop(queues);
        match order {
            Order::DeleteFirst => {
                driver.execute(Command::DeleteAsync(id)).await?;
                drop(node);
            }
            Order::CloseFirst => {
                drop(node);
                driver.execute(Command::Delete(id)).await?;
            }
        }
        freed(driver, id).await
    }

    /// All of the way down.
    pub(crate) async fn end(mut self, driver: &dyn Driver, order: Order) -> Result<(), Error> {
        self.stop(driver).await?;
        self.remove(driver, order).await
    }
}
