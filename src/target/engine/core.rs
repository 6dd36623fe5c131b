//! What the engine and the requests of one queue share: the ring, and a cell for each tag.
//!
//! ```text
//!   engine ── request ──> Cell ── TagSlot::next ──> Io ── complete, or dropped ──> result ──> engine
//!             buffer  ──>      ── moved into ────────┘ ── moved back
//! ```
//!
//! Invariants: one thread; a tag's buffer is either in its cell or in its one `Io`; every `Io`
//! gives a result exactly once, `EIO` if it was dropped without one.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::model::Tag;
use crate::sys::arena::Buffer;
use crate::sys::ring::Ring;
use crate::target::{Op, Request};

/// Whose turn it is with a tag.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::target) enum Turn {
    /// The driver's: no request.
    #[default]
    Driver,
    /// A request has come, and the target has not taken it yet.
    Arrived,
    /// One transfer of the ring's, whose end answers the request.
    Transfer,
    /// The target's.
    Target,
    /// The request is answered, and not committed yet.
    Answered,
}

/// The state of one tag: a cache line, so that a request costs few of them.
#[repr(align(64))]
pub(in crate::target) struct TagCell {
    pub(in crate::target) turn: Cell<Turn>,
    /// The last request that came.
    pub(in crate::target) request: Cell<Request>,
    /// The last answer that was given.
    pub(in crate::target) result: Cell<i32>,
    /// Not there while an [`crate::target::Io`] has it.
    pub(in crate::target) buffer: Cell<Option<Buffer>>,
    /// A combinator inside the tag's task that waits for the cell; without one the engine polls
    /// the task directly.
    waiter: Cell<Option<Waker>>,
}

/// The shared part of one queue.
pub(in crate::target) struct Core {
    pub(in crate::target) ring: Ring,
    pub(in crate::target) wakers: Rc<[Waker]>,
    pub(in crate::target) tags: Box<[TagCell]>,
    /// Whose task the engine is polling: it looks for that tag's answer by itself.
    pub(in crate::target) polled: Cell<Option<Tag>>,
    /// Other tags with a new answer.
    pub(in crate::target) answered: RefCell<Vec<Tag>>,
    /// The targets are to end.
    pub(in crate::target) ending: Cell<bool>,
}

impl Core {
    pub(in crate::target) fn new(
        ring: Ring,
        wakers: &Rc<[Waker]>,
        buffers: Vec<Buffer>,
    ) -> Rc<Self> {
        let answered = RefCell::new(Vec::with_capacity(buffers.len()));
        let cell = |buffer| TagCell {
            turn: Cell::default(),
            request: Cell::new(Request::new(Op::Flush, 0, 0)),
            result: Cell::new(0),
            buffer: Cell::new(Some(buffer)),
            waiter: Cell::default(),
        };
        let tags = buffers.into_iter().map(cell).collect();
        let (wakers, polled, ending) = (Rc::clone(wakers), Cell::default(), Cell::new(false));
        Rc::new(Self { ring, wakers, tags, polled, answered, ending })
    }

    /// Notes the answer to a request and takes its buffer back.
    #[inline]
    pub(in crate::target) fn answer(&self, tag: Tag, buffer: Option<Buffer>, result: i32) {
        let cell = &self.tags[tag.index()];
        cell.buffer.set(buffer);
        cell.result.set(result);
        cell.turn.set(Turn::Answered);
        if self.polled.get() != Some(tag) {
            self.answered.borrow_mut().push(tag);
        }
    }

    /// Keeps `cx`'s waker for the tag if it is another one than the task's own; gives `Pending`.
    #[inline]
    pub(in crate::target) fn wait<T>(&self, tag: Tag, cx: &Context<'_>) -> Poll<T> {
        let own = self.wakers.get(tag.index());
        if !own.is_some_and(|own| own.will_wake(cx.waker())) {
            self.tags[tag.index()].waiter.set(Some(cx.waker().clone()));
        }
        Poll::Pending
    }

    /// Wakes a combinator that waits for the cell; call before polling the tag's task.
    #[inline]
    pub(in crate::target) fn nudge(&self, tag: Tag) {
        if let Some(waiter) = self.tags[tag.index()].waiter.take() {
            waiter.wake();
        }
    }
}
