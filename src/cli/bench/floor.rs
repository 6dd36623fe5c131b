//! The same commands from a bare loop: no actors, no names, no reports, no deadlines of its own.
//! What it takes is what the driver room and the kernel cost; the rest is ours.
//!
//! ```text
//!   up:    ADD ─ SET_PARAMS ─ open ─ queue threads ─ START            so many at once
//!   down:  STOP ─ join ─ DEL_DEV_ASYNC ─ close │ ask until the id is free
//!          └────────── so many at once ────────┘ └───── all at once ─────┘
//! ```
//!
//! Invariants: a device that does not come up is deleted; devices that did are taken down before
//! the error is told.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt};
use slog::{Discard, Logger, o};
use tokio::sync::Semaphore;
use tokio::task::LocalSet;
use tokio::time::{sleep, timeout};

use super::lab::{self, Down, Lab, SMALL, Up, WITHIN};
use crate::driver::{
    AddDevice, CharDevice, Command, Driver, Features, Params, QueueSet, ServePlan,
};
use crate::model::{DeviceId, DeviceSpec, Error, ErrorKind, QueueSpec, WorkerLimit};
use crate::sys::census;
use crate::target::{Registry, Target};

/// How long a queue waits for its tags; all are idle.
const DRAIN: Duration = Duration::from_secs(2);
/// Pauses between two questions whether an id is free: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// A bare loop on a driver.
#[derive(Clone)]
pub(super) struct Floor {
    driver: Rc<dyn Driver>,
    targets: Registry,
    features: Features,
    /// So many devices are worked on at once.
    slots: Rc<Semaphore>,
    log: Logger,
}

/// A device that is up.
pub(super) struct Live {
    id: DeviceId,
    chardev: Box<dyn CharDevice>,
    queues: Box<dyn QueueSet>,
}

/// Runs `work` with a bare loop that has `workers` devices in hand at a time.
///
/// # Errors
/// Those of `work`, and kind [`ErrorKind::Timeout`] when it does not end.
pub(super) fn with<T>(
    lab: &Lab,
    workers: WorkerLimit,
    work: impl AsyncFnOnce(Floor) -> Result<T, Error>,
) -> Result<T, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(|e| Error::from_io(&e, "cannot start a runtime"))?;
    let log = Logger::root(Discard, o!());
    LocalSet::new().block_on(&runtime, async {
        let driver = lab.driver()?(&log)?;
        let slots = Rc::new(Semaphore::new(workers.most()));
        // What the library asks for too.
        let known = driver.features().await?;
        let features = Features(known.0 & Features::NO_AUTO_PART_SCAN.0);
        let floor = Floor { driver, targets: Registry::default(), features, slots, log };
        match timeout(2 * WITHIN, work(floor)).await {
            Ok(result) => result,
            Err(_) => Err(Error::new(ErrorKind::Timeout, "the bare loop does not end")),
        }
    })
}

impl Floor {
    /// Brings `specs` up.
    pub(super) async fn create(&self, specs: &[DeviceSpec]) -> Result<(Vec<Live>, Up), Error> {
        let (began, before) = (Instant::now(), census::processor_time());
        let mut coming: FuturesUnordered<_> = specs.iter().map(|spec| self.up(spec)).collect();
        let (mut live, mut ready, mut trouble) = (Vec::new(), Vec::new(), None);
        while let Some(result) = coming.next().await {
            match result {
                Ok(device) => live.push(device),
                Err(error) => trouble = trouble.or(Some(error)),
            }
            ready.push(began.elapsed());
        }
        let processor = census::processor_time() - before;
        let Some(trouble) = trouble else { return Ok((live, Up { ready, processor })) };
        self.shutdown(live).await?;
        Err(trouble)
    }

    /// Takes devices down.
    pub(super) async fn shutdown(&self, live: Vec<Live>) -> Result<Down, Error> {
        let (began, before) = (Instant::now(), census::processor_time());
        let ends = join_all(live.into_iter().map(|device| self.down(device))).await;
        let down = Down { wall: began.elapsed(), processor: census::processor_time() - before };
        ends.into_iter().collect::<Result<(), _>>().map(|()| down)
    }

    /// Brings one up.
    pub(super) async fn up(&self, spec: &DeviceSpec) -> Result<Live, Error> {
        let _slot = self.slots.acquire().await;
        let add = AddDevice { id: None, queues: spec.queues(), features: self.features };
        let added = self.driver.add(add).await?;
        let up = self.serve(spec, added.id, added.queues).await;
        if up.is_err() {
            // The error that is told is the first one; this deletes what was added.
            let _ = self.driver.execute(Command::DeleteAsync(added.id)).await;
        }
        up
    }

    async fn serve(
        &self,
        spec: &DeviceSpec,
        id: DeviceId,
        queues: QueueSpec,
    ) -> Result<Live, Error> {
        let target: Arc<dyn Target> = self.targets.open(spec)?;
        let (geometry, max_io) = (target.geometry(), queues.max_io);
        let params = Params { geometry, max_io, memory_alignment: None };
        self.driver.execute(Command::SetParams(id, params)).await?;
        let chardev = self.driver.open(id).await?;
        let mut queues = chardev.serve(ServePlan {
            device: spec.name().clone(),
            id,
            queues,
            affinity: Vec::new(),
            features: Features::NONE,
            target,
            events: Arc::new(|_| {}),
            drain: DRAIN,
            log: self.log.clone(),
        })?;
        queues.ready().await?;
        self.driver.execute(Command::Start(id)).await?;
        Ok(Live { id, chardev, queues })
    }

    /// Takes one down.
    pub(super) async fn down(&self, live: Live) -> Result<(), Error> {
        let Live { id, chardev, mut queues } = live;
        let slot = self.slots.acquire().await;
        self.driver.execute(Command::Stop(id)).await?;
        queues.stop();
        queues.join().await;
        self.driver.execute(Command::DeleteAsync(id)).await?;
        drop((queues, chardev, slot));
        let mut pause = PAUSES.0;
        loop {
            match self.driver.info(id).await {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error),
                Ok(_) => sleep(pause).await,
            }
            pause = (pause * 3 / 2).min(PAUSES.1);
        }
    }
}

/// One round: up and down again.
pub(super) fn round(lab: &Lab, devices: usize, workers: WorkerLimit) -> Result<(Up, Down), Error> {
    let specs = lab::nulls(devices, SMALL)?;
    with(lab, workers, async |floor| {
        let (live, up) = floor.create(&specs).await?;
        Ok((up, floor.shutdown(live).await?))
    })
}
