//! Where a queue's requests come from and its answers go to: what a driver brings to the engine.

use std::task::Waker;

use crate::model::{Error, Tag};
use crate::sys::arena::Buffer;
use crate::sys::ring::Ring;
use crate::target::{QueueContext, Request};

/// One queue of a driver, on the queue's thread.
///
/// ```text
///   fetch_all ─> (Completion::Command, or take) ─> arrived ─> Request ─> … ─> commit ─┐
///                          ^                                                         │
///                          └── the next request of the tag ──────────────────────────┘
/// ```
///
/// A driver whose requests come as completions of commands on the ring
/// ([`Ring::push_command`]) needs no [`Port::take`]; one that is fed by other threads wakes the
/// queue with [`PortSetup::waker`] and hands out what has come in `take`; one whose commands are
/// for many tags at once is told of them in [`Port::message`], collects answers in `commit` and
/// sends them in [`Port::flush`].
pub trait Port {
    /// Asks for the first request of every tag.
    ///
    /// # Errors
    /// Whatever keeps the queue from being served; the device's start fails with it.
    fn fetch_all(&mut self, ring: &Ring) -> Result<(), Error>;

    /// Says what it means that the command of `tag` ended with `result`, or that `take` gave
    /// it. `buffer` is the tag's; the data of a write has to be in it afterwards.
    fn arrived(&mut self, tag: Tag, result: i32, buffer: &mut Buffer) -> Arrival;

    /// Answers the request of `tag` and asks for the next one. `result` is the number of bytes
    /// of a read or write, 0 for other requests, or a negative errno; `buffer` is the tag's.
    fn commit(&mut self, ring: &Ring, tag: Tag, result: i32, buffer: &mut Buffer);

    /// The next tag that there is something for, after another thread woke the queue or a message
    /// came.
    fn take(&mut self) -> Option<(Tag, i32)> {
        None
    }

    /// A command that is for no tag ([`Ring::push_message`]) told something.
    ///
    /// # Errors
    /// When the queue cannot go on.
    fn message(&mut self, _: &Ring, _number: u32, _result: i32, _flags: u32) -> Result<(), Error> {
        Ok(())
    }

    /// A round is over: queues what was held back during it. Gives whether there is something to
    /// [`Port::take`].
    fn flush(&mut self, _: &Ring) -> bool {
        false
    }
}

/// What has come for a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// A request to serve.
    Request(Request),
    /// A request that no target can serve; it is answered with this errno (positive).
    Refused(i32),
    /// The tag has come back for good: the device stops.
    Gone,
    /// The driver failed with this errno (positive); the queue cannot go on.
    Failed(i32),
}

/// What a port is made from, on the queue's thread.
pub struct PortSetup<'a> {
    /// Which queue.
    pub queue: &'a QueueContext,
    /// The buffers, one for each tag, in order.
    pub buffers: &'a [Buffer],
    /// Wakes the queue so that it calls [`Port::take`]; may go to other threads.
    pub waker: Waker,
}
