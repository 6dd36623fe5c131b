//! Makes faults happen around a char device and its queues.
//!
//! ```text
//!   serve ─> ready ─> (START_DEV seen) ─> a queue breaks ─> join ─> close
//! ```
//!
//! Invariants: a broken queue is told of once, and its exit says the same cause; threads that never
//! end have done their work, but are never joined, are counted, and keep the char device open.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use futures::future::{LocalBoxFuture, pending};
use tokio::time::{Instant, sleep_until};

use super::plan::{Effect, Point};
use super::strike::{Strike, Strikes, refused};
use crate::driver::sim::work::pause;
use crate::driver::{CharDevice, QueueEvent, QueueEvents, QueueSet, ServePlan};
use crate::model::{
    DeviceId, Error, IoStats, PanicReport, Processors, QueueExit, QueueExitCause, QueueId,
};

/// How queues broke.
type Broken = Rc<RefCell<BTreeMap<QueueId, QueueExitCause>>>;

/// A char device that faults happen to.
pub(super) struct FaultyChar {
    inner: Rc<dyn CharDevice>,
    id: DeviceId,
    plan: Rc<Strikes>,
}

struct FaultyQueues {
    inner: Box<dyn QueueSet>,
    id: DeviceId,
    plan: Rc<Strikes>,
    ready: Cell<Strike>,
    end: Strike,
    /// When they were asked to end.
    asked: Cell<Option<Instant>>,
    /// Threads that will never end and are not counted yet.
    stuck: Cell<usize>,
    /// Their ids, from when they were ready.
    tids: Vec<i32>,
    broken: Broken,
}

/// A queue that is to break while it is live.
pub(super) struct Blow {
    queue: QueueId,
    strike: Strike,
    events: QueueEvents,
    broken: Broken,
    log: slog::Logger,
}

impl FaultyChar {
    pub(super) fn new(inner: Box<dyn CharDevice>, id: DeviceId, plan: Rc<Strikes>) -> Self {
        Self { inner: inner.into(), id, plan }
    }
}

impl CharDevice for FaultyChar {
    fn serve(&self, mut plan: ServePlan) -> Result<Box<dyn QueueSet>, Error> {
        let strike = |point| self.plan.strike(point, Some(self.id));
        match strike(Point::Serve).effect {
            Some(Effect::Errno(errno)) => {
                return Err(refused(errno).command("serve").id(self.id));
            }
            Some(Effect::Panic) => {
                panic!("the fault plan makes serve of device {} panic", self.id)
            }
            _ => {}
        }
        let (ready, end) = (strike(Point::Ready), strike(Point::Join));
        let broken = Broken::default();
        let blows = (0..plan.queues.count).filter_map(|queue| {
            let strike = strike(Point::Queue);
            let (events, broken) = (plan.events.clone(), Rc::clone(&broken));
            let (queue, log) = (QueueId(queue), plan.log.clone());
            strike.effect.is_some().then_some(Blow { queue, strike, events, broken, log })
        });
        let blows: Vec<_> = blows.collect();
        if ready.effect == Some(Effect::Short) {
            plan.queues.depth -= 1;
        }
        let count = usize::from(plan.queues.count);
        let inner = self.inner.serve(plan)?;
        self.plan.armed.borrow_mut().insert(self.id, blows);
        let stuck = end.effect == Some(Effect::Hang);
        if stuck {
            self.plan.kept.borrow_mut().push(Rc::clone(&self.inner));
        }
        Ok(Box::new(FaultyQueues {
            inner,
            id: self.id,
            plan: Rc::clone(&self.plan),
            ready: Cell::new(ready),
            end,
            asked: Cell::new(None),
            stuck: Cell::new(if stuck { count } else { 0 }),
            tids: Vec::new(),
            broken,
        }))
    }
}

impl Drop for FaultyChar {
    fn drop(&mut self) {
        let Strike { delay, effect } = self.plan.strike(Point::Close, Some(self.id));
        let inner = Rc::clone(&self.inner);
        if effect == Some(Effect::Hang) {
            self.plan.kept.borrow_mut().push(inner);
        } else if !delay.is_zero() {
            self.plan.work.spawn(async move {
                pause(delay).await;
                drop(inner);
            });
        }
    }
}

impl FaultyQueues {
    fn never_ends(&self) -> bool {
        self.end.effect == Some(Effect::Hang)
    }

    /// From now on the threads that never end are only counted.
    fn count_stuck(&self) {
        self.plan.stuck.set(self.plan.stuck.get() + self.stuck.take());
    }
}

impl QueueSet for FaultyQueues {
    fn ready(&mut self) -> LocalBoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.ready.take().befall("FETCH_REQ", self.id).await?;
            self.inner.ready().await?;
            self.tids = self.inner.tids();
            Ok(())
        })
    }

    fn stop(&self) {
        if self.asked.get().is_none() {
            self.asked.set(Some(Instant::now()));
        }
        self.inner.stop();
    }

    fn join(&mut self) -> LocalBoxFuture<'_, Vec<QueueExit>> {
        Box::pin(async move {
            let mut exits = self.inner.join().await;
            if self.never_ends() {
                self.count_stuck();
                return pending().await;
            }
            if let Some(asked) = self.asked.get() {
                sleep_until(asked + self.end.delay).await;
            }
            for exit in &mut exits {
                if let Some(cause) = self.broken.borrow().get(&exit.queue) {
                    exit.cause = cause.clone();
                }
            }
            exits
        })
    }

    fn tids(&self) -> Vec<i32> {
        if self.never_ends() { self.tids.clone() } else { self.inner.tids() }
    }

    fn processors(&self) -> Vec<Option<Processors>> {
        self.inner.processors()
    }

    fn stats(&self) -> IoStats {
        self.inner.stats()
    }
}

impl Drop for FaultyQueues {
    fn drop(&mut self) {
        self.count_stuck();
    }
}

impl Strikes {
    /// A device has started: what is to break while it is live does.
    pub(super) fn live(&self, id: DeviceId) {
        for blow in self.armed.borrow_mut().remove(&id).unwrap_or_default() {
            self.work.spawn(async move {
                pause(blow.strike.delay).await;
                blow.fall(id);
            });
        }
    }
}

impl Blow {
    fn fall(self, id: DeviceId) {
        let queue = self.queue;
        let (event, cause) = match self.strike.effect {
            Some(Effect::Errno(errno)) => {
                let text = Error::from_errno(errno, "the fault plan breaks the ring").to_string();
                (QueueEvent::Failed(queue, text.clone()), QueueExitCause::Failed(text))
            }
            _ => {
                let report = PanicReport {
                    message: "the fault plan makes the queue panic".to_owned(),
                    location: None,
                    thread: format!("queue {queue} of device {id}"),
                };
                // As a queue's thread does.
                slog::crit!(self.log, "the queue panicked"; "queue" => queue.0, "panic" => %report);
                (QueueEvent::Panicked(queue, report.clone()), QueueExitCause::Panicked(report))
            }
        };
        self.broken.borrow_mut().insert(queue, cause);
        (self.events)(event);
    }
}
