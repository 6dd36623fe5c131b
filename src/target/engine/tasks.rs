//! The executor: one future a tag, made once and polled by tag, and what becomes of it when it
//! panics.
//!
//! ```text
//!   poll(tag) ── nudge combinators, poll the future ──> Pending | ended
//!                            └─ panic: every future is dropped ──> their requests get EIO
//! ```
//!
//! Invariants: no panic of target code leaves this module; after one, no target code runs again.

use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use futures::future::LocalBoxFuture;

use super::core::Core;
use crate::model::{PanicReport, Tag};
use crate::sys::panic::catch;
use crate::target::{QueueTarget, TagSlot};

/// The futures of a queue's tags.
pub(super) struct Tasks {
    core: Rc<Core>,
    futures: Vec<Option<LocalBoxFuture<'static, ()>>>,
    target: Option<Box<dyn QueueTarget>>,
    running: usize,
}

impl Tasks {
    /// Makes the future of every tag.
    ///
    /// # Errors
    /// A panic of the target's.
    pub(super) fn new(core: &Rc<Core>, target: Box<dyn QueueTarget>) -> Result<Self, PanicReport> {
        let count = core.tags.len();
        let mut tasks = Self {
            core: Rc::clone(core),
            futures: Vec::with_capacity(count),
            target: Some(target),
            running: count,
        };
        let made = catch(|| {
            for tag in 0..count as u16 {
                let slot = TagSlot::new(core, Tag(tag));
                let future = tasks.target.as_ref().map(|target| target.run_tag(slot));
                tasks.futures.push(future);
            }
        });
        match made {
            Ok(()) => Ok(tasks),
            Err(report) => {
                tasks.drop_all();
                Err(report)
            }
        }
    }

    /// Number of futures that have not ended.
    pub(super) fn running(&self) -> usize {
        self.running
    }

    /// Whether the future of `tag` has not ended.
    pub(super) fn is_running(&self, tag: Tag) -> bool {
        self.futures[tag.index()].is_some()
    }

    /// Polls the future of `tag`, if it has not ended; `waker` belongs to an operation of it that
    /// has.
    ///
    /// # Errors
    /// A panic; every future of the queue is gone then.
    pub(super) fn poll(&mut self, tag: Tag, waker: Option<Waker>) -> Result<(), PanicReport> {
        let Some(future) = &mut self.futures[tag.index()] else { return Ok(()) };
        let core = &self.core;
        let polled = catch(|| {
            if let Some(waker) = waker {
                waker.wake();
            }
            core.nudge(tag);
            future.as_mut().poll(&mut Context::from_waker(&core.wakers[tag.index()]))
        });
        match polled {
            Ok(Poll::Pending) => Ok(()),
            Ok(Poll::Ready(())) => {
                self.running -= 1;
                let ended = self.futures[tag.index()].take();
                catch(|| drop(ended)).inspect_err(|_| self.drop_all())
            }
            Err(report) => {
                self.drop_all();
                Err(report)
            }
        }
    }

    /// Drops every future and the target's half; what is in service is answered with `EIO`.
    pub(super) fn drop_all(&mut self) {
        for future in &mut self.futures {
            if let Some(future) = future.take() {
                // A panic in a drop tells nothing new: the queue is broken or at its end.
                let _ = catch(|| drop(future));
            }
        }
        self.running = 0;
        if let Some(target) = self.target.take() {
            let _ = catch(|| drop(target));
        }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.drop_all();
    }
}
