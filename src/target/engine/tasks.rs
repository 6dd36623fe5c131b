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
use crate::target::{IoResult, QueueTarget, Request, TagSlot, Transfer};

/// The futures of a queue's tags.
pub(super) struct Tasks {
    core: Rc<Core>,
    futures: Vec<Option<LocalBoxFuture<'static, ()>>>,
    target: Option<Box<dyn QueueTarget>>,
    at_once: bool,
    transfers: bool,
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
            at_once: false,
            transfers: false,
            running: count,
        };
        let made = catch(|| {
            if let Some(target) = &tasks.target {
                tasks.at_once = target.answers_at_once();
                tasks.transfers = target.transfers();
            }
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

    /// Whether the target answers anything without a future.
    #[inline]
    pub(super) fn answers_at_once(&self) -> bool {
        self.at_once
    }

    /// The target's answer to a request, if it has one without waiting.
    ///
    /// # Errors
    /// A panic; every future of the queue is gone then.
    #[inline]
    pub(super) fn at_once(
        &mut self,
        request: &Request,
        data: &mut [u8],
    ) -> Result<Option<IoResult>, PanicReport> {
        let Some(target) = &self.target else { return Ok(None) };
        catch(|| target.at_once(request, data)).inspect_err(|_| self.drop_all())
    }

    /// Whether the target has an operation instead of a future for anything.
    #[inline]
    pub(super) fn transfers(&self) -> bool {
        self.transfers
    }

    /// The operation that answers a request, if one does.
    ///
    /// # Errors
    /// A panic; [`Tasks::drop_all`] is to be called then, which what is borrowed here keeps it from
    /// doing itself.
    #[inline]
    pub(super) fn transfer(&self, request: &Request) -> Result<Option<Transfer<'_>>, PanicReport> {
        let Some(target) = &self.target else { return Ok(None) };
        catch(|| target.transfer(request))
    }

    /// Wakes whoever inside a task waits with a waker of its own.
    ///
    /// # Errors
    /// A panic; every future of the queue is gone then.
    pub(super) fn wake(&mut self, waker: Waker) -> Result<(), PanicReport> {
        catch(|| waker.wake()).inspect_err(|_| self.drop_all())
    }

    /// Polls the future of `tag`; ready when it has ended, now or before.
    ///
    /// # Errors
    /// A panic; every future of the queue is gone then.
    #[inline]
    pub(super) fn poll(&mut self, tag: Tag) -> Result<Poll<()>, PanicReport> {
        let Some(future) = &mut self.futures[tag.index()] else { return Ok(Poll::Ready(())) };
        let core = &*self.core;
        let polled = catch(|| {
            core.nudge(tag);
            future.as_mut().poll(&mut Context::from_waker(&core.wakers[tag.index()]))
        });
        match polled {
            Ok(Poll::Pending) => Ok(Poll::Pending),
            Ok(Poll::Ready(())) => self.ended(tag),
            Err(report) => {
                self.drop_all();
                Err(report)
            }
        }
    }

    #[cold]
    fn ended(&mut self, tag: Tag) -> Result<Poll<()>, PanicReport> {
        self.running -= 1;
        let ended = self.futures[tag.index()].take();
        catch(|| drop(ended)).inspect_err(|_| self.drop_all()).map(Poll::Ready)
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
        let Some(target) = self.target.take() else { return };
        // The files may be closed with the target, and their numbers may become others': the kernel
        // has to have the transfers by then.
        if self.core.ring.is_transferring() && !self.core.ring.send_all() {
            std::mem::forget(target);
        } else {
            let _ = catch(|| drop(target));
        }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.drop_all();
    }
}
