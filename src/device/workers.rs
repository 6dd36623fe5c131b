//! How many lifecycle operations run at once, and which comes next: a delete before a create.
//!
//! A slot is held while commands are sent and given back by dropping it; waiting for an id to be
//! free holds none. How many slots there are is fixed, or found out by a [`Tuner`] from how long
//! each STOP took.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use futures::channel::oneshot;
use tokio::time::Instant;

use super::tuner::Tuner;
use crate::model::{Occupancy, WorkerLimit};

/// Which queue a waiter stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Delete,
    Create,
}

/// Who runs and who waits, as a plain value: deletes first, each class in order of arrival.
#[derive(Debug)]
struct Schedule<T> {
    limit: usize,
    /// Finds the limit, if it is not fixed.
    tuner: Option<Tuner>,
    running: usize,
    deletes: VecDeque<T>,
    creates: VecDeque<T>,
}

impl<T> Schedule<T> {
    fn new(limit: WorkerLimit) -> Self {
        let (limit, tuner) = match limit {
            WorkerLimit::Fixed(limit) => (limit.max(1), None),
            WorkerLimit::Auto => {
                let tuner = Tuner::default();
                (tuner.limit(), Some(tuner))
            }
        };
        let (deletes, creates) = (VecDeque::new(), VecDeque::new());
        Self { limit, tuner, running: 0, deletes, creates }
    }

    /// A STOP took `time`.
    fn stopped(&mut self, now: Instant, time: Duration) {
        if let Some(tuner) = &mut self.tuner {
            tuner.stopped(now, time, !self.deletes.is_empty());
            self.limit = tuner.limit();
        }
    }

    fn push(&mut self, class: Class, waiter: T) {
        match class {
            Class::Delete => self.deletes.push_back(waiter),
            Class::Create => self.creates.push_back(waiter),
        }
    }

    /// The next waiter to run, if a slot is free; it counts as running from now on.
    fn take(&mut self) -> Option<T> {
        if self.running >= self.limit {
            return None;
        }
        let next = self.deletes.pop_front().or_else(|| self.creates.pop_front())?;
        self.running += 1;
        Some(next)
    }

    fn finished(&mut self) {
        self.running = self.running.saturating_sub(1);
    }
}

/// The worker limit of a supervisor. Cheap to clone; lives on one thread.
#[derive(Clone)]
pub(crate) struct Workers(Rc<RefCell<Schedule<oneshot::Sender<Slot>>>>);

/// The right to run one lifecycle operation; dropping it lets the next one run.
pub(crate) struct Slot(Option<Workers>);

impl Workers {
    /// At most `limit` operations at once.
    pub(crate) fn new(limit: WorkerLimit) -> Self {
        Self(Rc::new(RefCell::new(Schedule::new(limit))))
    }

    /// Waits for a slot. Dropping the future leaves the line.
    pub(crate) async fn acquire(&self, class: Class) -> Slot {
        let (grant, granted) = oneshot::channel();
        self.0.borrow_mut().push(class, grant);
        self.pump();
        match granted.await {
            Ok(slot) => slot,
            // Nobody drops a grant unsent while `self` keeps the schedule alive.
            Err(oneshot::Canceled) => Slot(None),
        }
    }

    /// How many operations run, of how many that may.
    pub(crate) fn occupancy(&self) -> Occupancy {
        let schedule = self.0.borrow();
        Occupancy { used: schedule.running, limit: schedule.limit }
    }

    /// The STOP of a device that was in service took `time`.
    pub(crate) fn stopped(&self, time: Duration) {
        self.0.borrow_mut().stopped(Instant::now(), time);
        self.pump();
    }

    fn pump(&self) {
        loop {
            let next = self.0.borrow_mut().take();
            let Some(grant) = next else { return };
            // A waiter that left hands its slot back. Dropping that would pump from within, one
            // stack frame deeper for each of thousands of waiters that a forced end leaves behind.
            if let Err(mut unwanted) = grant.send(Slot(Some(self.clone()))) {
                unwanted.0 = None;
                self.0.borrow_mut().finished();
            }
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(workers) = self.0.take() {
            workers.0.borrow_mut().finished();
            workers.pump();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use proptest::prelude::*;

    #[test]
    fn deletes_go_before_creates_and_a_waiter_that_left_is_skipped() {
        let workers = Workers::new(WorkerLimit::Fixed(1));
        let first = workers.acquire(Class::Create).now_or_never().expect("free");
        let mut create = Box::pin(workers.acquire(Class::Create));
        let mut gone = Box::pin(workers.acquire(Class::Delete));
        let mut delete = Box::pin(workers.acquire(Class::Delete));
        assert!(create.as_mut().now_or_never().is_none());
        assert!(gone.as_mut().now_or_never().is_none());
        assert!(delete.as_mut().now_or_never().is_none());
        drop(gone);
        drop(first);
        assert!(create.as_mut().now_or_never().is_none());
        let slot = delete.now_or_never().expect("the delete is next");
        drop(slot);
        let slot = create.now_or_never().expect("the create is last");
        assert_eq!(workers.0.borrow().running, 1);
        drop(slot);
        assert_eq!(workers.0.borrow().running, 0);
    }

    #[test]
    fn any_number_of_waiters_may_leave_at_once() {
        let workers = Workers::new(WorkerLimit::Fixed(1));
        let slot = workers.acquire(Class::Create).now_or_never().expect("free");
        let mut waiters: Vec<_> =
            (0..100_000).map(|_| Box::pin(workers.acquire(Class::Delete))).collect();
        for waiter in &mut waiters {
            assert!(waiter.as_mut().now_or_never().is_none());
        }
        drop(waiters);
        drop(slot);
        assert_eq!(workers.0.borrow().running, 0);
        assert!(workers.acquire(Class::Create).now_or_never().is_some());
    }

    proptest! {
        #[test]
        fn never_more_than_the_limit_and_nobody_is_forgotten(
            limit in 1usize..8,
            ops in proptest::collection::vec(0u8..3, 0..200),
        ) {
            let mut schedule = Schedule::new(WorkerLimit::Fixed(limit));
            let (mut pushed, mut taken, mut finished) = (0, 0, 0);
            for op in ops {
                match op {
                    0 => { schedule.push(Class::Create, pushed); pushed += 1; }
                    1 => { schedule.push(Class::Delete, pushed); pushed += 1; }
                    _ if finished < taken => { schedule.finished(); finished += 1; }
                    _ => {}
                }
                while schedule.take().is_some() { taken += 1; }
                prop_assert!(taken - finished <= limit);
                prop_assert!(taken == pushed || taken - finished == limit);
            }
        }
    }
}
