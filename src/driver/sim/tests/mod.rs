//! The rules of the kernel, each as a test on virtual time; what they share is here.

mod faults;
mod law;
mod rules;
mod threads;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use nix::libc;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};

use super::{FaultPlan, KernelProfile, QueueMode, SimDriver};
use crate::driver::{
    AddDevice, CharDevice, Command, Driver, Features, Params, QueueEvents, QueueSet, Reply,
    ServePlan,
};
use crate::model::{DeviceId, DeviceName, Error, QueueExitCause, QueueSpec};
use crate::target::{Geometry, QueueContext, QueueTarget, Target};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const QUEUES: QueueSpec = QueueSpec { count: 2, depth: 4, max_io: 65_536 };
const DRAIN: Duration = Duration::from_secs(5);

/// Runs a test on virtual time.
fn on_virtual_time<F: Future>(test: F) -> F::Output {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().expect("a runtime");
    LocalSet::new().block_on(&runtime, test)
}

fn sim(profile: KernelProfile) -> SimDriver {
    SimDriver::new(profile, FaultPlan::none(), QueueMode::Virtual)
}

fn sim_with_faults(plan: &str) -> SimDriver {
    let plan = plan.parse().expect("a fault plan");
    SimDriver::new(KernelProfile::linux_7_3().grace_only(), plan, QueueMode::Virtual)
}

fn add(id: Option<u32>) -> Command {
    let id = id.map(DeviceId);
    Command::Add(AddDevice { id, queues: QUEUES, features: Features::NONE })
}

fn params() -> Params {
    Params { geometry: Geometry::new(1 << 20, 512), max_io: QUEUES.max_io, memory_alignment: None }
}

fn errno<T: std::fmt::Debug>(result: Result<T, Error>) -> Option<i32> {
    result.expect_err("it was not refused").errno()
}

/// The driver as what its async functions are for.
fn asked(driver: &SimDriver) -> &dyn Driver {
    driver
}

/// A target that must not be asked for queues.
struct Untouched;

impl Target for Untouched {
    fn geometry(&self) -> Geometry {
        params().geometry
    }

    fn open_queue(self: Arc<Self>, _: QueueContext) -> Result<Box<dyn QueueTarget>, Error> {
        panic!("virtual queues do not ask the target")
    }
}

fn plan(id: DeviceId, events: QueueEvents) -> ServePlan {
    ServePlan {
        device: DeviceName::new("vol").expect("a name"),
        id,
        features: Features::NONE,
        queues: QUEUES,
        affinity: Vec::new(),
        target: Arc::new(Untouched),
        events,
        drain: DRAIN,
        log: slog::Logger::root(slog::Discard, slog::o!()),
    }
}

/// A device and its server, step by step.
struct Server {
    driver: SimDriver,
    id: DeviceId,
    char: Option<Box<dyn CharDevice>>,
    queues: Option<Box<dyn QueueSet>>,
}

impl Server {
    async fn added(driver: &SimDriver) -> Result<Self, Error> {
        Self::added_with(driver, Features::NONE).await
    }

    /// One that can be quiesced and resumed.
    async fn recoverable(driver: &SimDriver) -> Result<Self, Error> {
        let features = Features::USER_RECOVERY.with(Features::USER_RECOVERY_REISSUE);
        Self::added_with(driver, features.with(Features::QUIESCE)).await
    }

    async fn added_with(driver: &SimDriver, features: Features) -> Result<Self, Error> {
        let add = AddDevice { id: None, queues: QUEUES, features };
        let (driver, id) = (driver.clone(), asked(driver).add(add).await?.id);
        driver.execute(Command::SetParams(id, params())).await?;
        Ok(Self { driver, id, char: None, queues: None })
    }

    async fn served(driver: &SimDriver) -> Result<Self, Error> {
        let mut server = Self::added(driver).await?;
        server.serve_with(Arc::new(|_| {})).await?;
        Ok(server)
    }

    async fn live(driver: &SimDriver) -> Result<Self, Error> {
        let server = Self::served(driver).await?;
        driver.execute(Command::Start(server.id)).await?;
        driver.node_ready(server.id).await?;
        Ok(server)
    }

    async fn serve_with(&mut self, events: QueueEvents) -> Result<(), Error> {
        let char = self.driver.open(self.id).await?;
        let mut queues = char.serve(plan(self.id, events))?;
        queues.ready().await?;
        (self.char, self.queues) = (Some(char), Some(queues));
        Ok(())
    }

    async fn stop(&self) -> Result<(), Error> {
        self.driver.execute(Command::Stop(self.id)).await.map(drop)
    }

    async fn join(&mut self) -> Vec<QueueExitCause> {
        let Some(mut queues) = self.queues.take() else { return Vec::new() };
        queues.stop();
        queues.join().await.into_iter().map(|exit| exit.cause).collect()
    }

    fn close(&mut self) {
        self.char = None;
    }

    /// Stop, join, delete without waiting, close, wait for the id.
    async fn torn_down(mut self) -> Result<(), Error> {
        self.stop().await?;
        self.join().await;
        self.driver.execute(Command::DeleteAsync(self.id)).await?;
        self.close();
        self.id_free().await
    }

    /// Stop, join, close, delete.
    async fn torn_down_close_first(mut self) -> Result<(), Error> {
        self.stop().await?;
        self.join().await;
        self.close();
        self.driver.execute(Command::Delete(self.id)).await.map(drop)
    }

    /// Quiesced, without a server.
    async fn quiesced(&mut self) -> Result<(), Error> {
        self.driver.execute(Command::Quiesce(self.id, DRAIN)).await?;
        self.join().await;
        self.close();
        // The file is released by a worker.
        sleep(Duration::from_millis(10)).await;
        Ok(())
    }

    /// Served again.
    async fn resumed(&mut self, events: QueueEvents) -> Result<(), Error> {
        self.driver.execute(Command::StartRecovery(self.id)).await?;
        self.serve_with(events).await?;
        self.driver.execute(Command::EndRecovery(self.id)).await.map(drop)
    }

    async fn id_free(&self) -> Result<(), Error> {
        let mut wait = Duration::from_millis(1);
        loop {
            match self.driver.execute(Command::Info(self.id)).await {
                Ok(_) => sleep(wait).await,
                Err(error) if error.errno() == Some(libc::ENODEV) => return Ok(()),
                Err(error) => return Err(error),
            }
            wait = (wait * 2).min(Duration::from_secs(1));
        }
    }
}

/// How long something takes on the simulated clock.
async fn timed<F: Future>(what: F) -> (F::Output, Duration) {
    let start = Instant::now();
    let output = what.await;
    (output, start.elapsed())
}
