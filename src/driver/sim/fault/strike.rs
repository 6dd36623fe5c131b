//! A fault plan as it goes: calls are counted, strikes handed out, what hangs is kept.
//!
//! Invariant: a call is counted by every fault that means its point and device, and struck by at
//! most one of them: the first in the plan.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use futures::future::pending;

use super::plan::{Effect, Fault, FaultPlan, Point};
use super::queues::Blow;
use crate::driver::sim::work::{Work, pause};
use crate::driver::{AddDevice, CharDevice, Command};
use crate::model::{DeviceId, Error, QueueSpec};

/// Control commands in flight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Now.
    pub now: usize,
    /// The most there have been at once.
    pub most: usize,
}

/// What befalls one call.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Strike {
    pub(super) delay: Duration,
    pub(super) effect: Option<Effect>,
}

pub(super) struct Strikes {
    pub(super) work: Work,
    /// What is to break as soon as its device has started.
    pub(super) armed: RefCell<BTreeMap<DeviceId, Vec<Blow>>>,
    /// Char devices that are never closed.
    pub(super) kept: RefCell<Vec<Rc<dyn CharDevice>>>,
    /// Queue threads that never end, beyond those that the inner driver knows.
    pub(super) stuck: Cell<usize>,
    faults: Vec<Counted>,
    in_flight: Cell<InFlight>,
}

struct Counted {
    fault: Fault,
    calls: Cell<u32>,
    struck: Cell<u32>,
}

impl Strikes {
    pub(super) fn new(plan: FaultPlan) -> Self {
        let counted = |fault| Counted { fault, calls: Cell::new(0), struck: Cell::new(0) };
        Self {
            work: Work::new(),
            armed: RefCell::default(),
            kept: RefCell::default(),
            stuck: Cell::new(0),
            faults: plan.0.into_iter().map(counted).collect(),
            in_flight: Cell::default(),
        }
    }

    pub(super) fn in_flight(&self) -> InFlight {
        self.in_flight.get()
    }

    /// Counts a call and says what befalls it.
    pub(super) fn strike(&self, point: Point, device: Option<DeviceId>) -> Strike {
        let mut strike = None;
        for Counted { fault, calls, struck } in &self.faults {
            if fault.point != point || fault.device.is_some_and(|id| Some(id) != device) {
                continue;
            }
            calls.set(calls.get() + 1);
            let spent = fault.times.is_some_and(|times| struck.get() >= times);
            if strike.is_none() && !spent && fault.calls.has(calls.get()) {
                struck.set(struck.get() + 1);
                strike = Some(Strike { delay: fault.delay, effect: fault.effect });
            }
        }
        strike.unwrap_or_default()
    }
}

impl Strike {
    /// Befalls a call that has not been made yet; `what` and `id` are for the error.
    ///
    /// # Panics
    /// When the plan says so.
    pub(super) async fn befall(self, what: &'static str, id: DeviceId) -> Result<(), Error> {
        pause(self.delay).await;
        match self.effect {
            None | Some(Effect::Short) => Ok(()),
            Some(Effect::Errno(errno)) => Err(refused(errno).command(what).id(id)),
            Some(Effect::Panic) => panic!("the fault plan makes {what} of device {id} panic"),
            Some(Effect::Hang) => pending().await,
        }
    }
}

/// Counts one command while it is in flight.
pub(super) struct Flight(Rc<Strikes>);

impl Flight {
    pub(super) fn start(plan: &Rc<Strikes>) -> Self {
        let InFlight { now, most } = plan.in_flight.get();
        plan.in_flight.set(InFlight { now: now + 1, most: most.max(now + 1) });
        Self(Rc::clone(plan))
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let counted = self.0.in_flight.get();
        self.0.in_flight.set(InFlight { now: counted.now - 1, ..counted });
    }
}

/// The error of a call that the plan refuses.
pub(super) fn refused(errno: i32) -> Error {
    Error::from_errno(errno, "the fault plan refuses it")
}

/// What is left of a command that does less than it should.
pub(super) fn shorten(command: Command) -> Command {
    match command {
        Command::Add(AddDevice { id, queues, features }) => {
            let QueueSpec { count, depth, max_io } = queues;
            let (count, depth) = (count.div_ceil(2), depth.div_ceil(2));
            Command::Add(AddDevice { id, queues: QueueSpec { count, depth, max_io }, features })
        }
        other => other,
    }
}
