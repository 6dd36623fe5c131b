//! What serves the blocks: a [`Target`] is opened once per device and shared by its queues; each
//! queue thread gets a [`QueueTarget`] of its own, which may be `!Send`.
//!
//! ```text
//!   TargetSpec ── Registry::open ──> Arc<dyn Target> ── open_queue ──> Box<dyn QueueTarget>
//!   (any thread)                     (any thread)        (queue thread)       │ run_tag, once a tag
//!                                                                             v
//!                     request ──> Io ──> Serve::serve(&self, &mut Io) ──> Result<(), Errno>
//! ```
//!
//! A backend is an async function from a request to a result ([`Serve`]). It awaits operations on
//! the queue's own ring ([`Io::read_file`] and its siblings), or anything else: a future woken
//! from another thread wakes the queue thread. One future lives per tag for the life of the
//! queue, so no memory is allocated per request.

mod delay;
pub mod engine;
mod faulty;
mod geometry;
mod io;
mod r#loop;
mod null;
mod ram;
mod registry;
mod request;
mod shared;
pub mod testing;
#[cfg(test)]
mod tests;

pub use delay::Delay;
pub use faulty::{Faulty, with_faults};
pub use geometry::{Discard, Geometry};
pub use io::{Io, TagSlot};
pub use registry::{OpenTarget, Registry};
pub use request::{Op, Request};
pub use shared::Shared;

pub use crate::sys::ring::Transfer;

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use futures::future::LocalBoxFuture;

use crate::model::{DeviceId, DeviceName, Error, ErrorKind, QueueId};

/// An errno that a request is answered with (`nix::libc::EIO` and the like, positive).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

/// The answer to one request.
pub type IoResult = Result<(), Errno>;

/// What a target does with the data of reads and writes, which says how data may get there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataUse {
    /// It looks at it ([`Io::buf`], [`Io::buf_mut`]), so it has to be in this process's memory.
    Memory,
    /// It moves it between requests and files only ([`Io::read_file`], [`Io::write_file`]), so it
    /// need not be in memory; [`Io::buf`] panics where it is not.
    Files,
    /// It neither takes nor gives any.
    Nothing,
}

/// A backend of one device, shared by its queues.
pub trait Target: Send + Sync + 'static {
    /// Size, block sizes and abilities, as it was opened. Only the size may change while the device
    /// lives, and only by [`Target::resize`].
    fn geometry(&self) -> Geometry;

    /// Follows the device to another size: before it grows and after it has shrunk, while requests
    /// are served. May block; it runs on a thread of its own.
    ///
    /// # Errors
    /// Kind [`ErrorKind::Unsupported`] unless the target can; the device keeps its size then.
    fn resize(&self, from: u64, to: u64) -> Result<(), Error> {
        let _ = (from, to);
        Err(Error::new(ErrorKind::Unsupported, "its target cannot change its size"))
    }

    /// What the operator should know about how it was opened, one line each: where it is less than
    /// was asked for. Logged when the device starts.
    fn notes(&self) -> &[String] {
        &[]
    }

    /// What it does with data. Must not change while the device lives.
    fn data_use(&self) -> DataUse {
        DataUse::Memory
    }

    /// The half of it that lives on one queue thread. Called on that thread.
    ///
    /// # Errors
    /// Whatever keeps the queue from being served; the device's start fails with it.
    fn open_queue(self: Arc<Self>, queue: QueueContext) -> Result<Box<dyn QueueTarget>, Error>;
}

/// Which queue a [`QueueTarget`] is for.
#[derive(Debug, Clone)]
pub struct QueueContext {
    /// The device.
    pub device: DeviceName,
    /// The kernel's number of the device.
    pub id: DeviceId,
    /// The queue.
    pub queue: QueueId,
    /// Tags of the queue.
    pub depth: u16,
}

/// One queue's half of a backend. Object-safe; [`per_tag`] makes one from a [`Serve`].
pub trait QueueTarget {
    /// Serves one tag until the slot says that the queue ends.
    fn run_tag(&self, slot: TagSlot) -> LocalBoxFuture<'static, ()>;

    /// Whether [`QueueTarget::at_once`] answers anything; asked once.
    fn answers_at_once(&self) -> bool {
        false
    }

    /// As [`Serve::at_once`].
    fn at_once(&self, request: &Request, data: &mut [u8]) -> Option<IoResult> {
        let _ = (request, data);
        None
    }

    /// Whether [`QueueTarget::transfer`] gives anything; asked once.
    fn transfers(&self) -> bool {
        false
    }

    /// As [`Serve::transfer`].
    fn transfer(&self, request: &Request) -> Option<Transfer<'_>> {
        let _ = request;
        None
    }
}

/// A backend as an async function from a request to its result.
pub trait Serve: 'static {
    /// Serves one request. A panic is caught: the request and all later ones of the queue are
    /// answered with `EIO` and the device is taken down as failed.
    ///
    /// # Errors
    /// The errno that the request's issuer sees.
    fn serve(&self, io: &mut Io) -> impl Future<Output = IoResult>;

    /// Whether [`Serve::at_once`] answers anything.
    const AT_ONCE: bool = false;

    /// The answer to a request that needs no waiting; `None` leaves it to [`Serve::serve`]. This
    /// saves the future's share of each request, which is most of what the engine costs. `data`
    /// is what [`Io::buf_mut`] would be, and empty if that is in no memory of this process. A panic
    /// is caught as there.
    ///
    /// # Errors
    /// The errno that the request's issuer sees.
    fn at_once(&self, request: &Request, data: &mut [u8]) -> Option<IoResult> {
        let _ = (request, data);
        None
    }

    /// Whether [`Serve::transfer`] gives anything.
    const TRANSFERS: bool = false;

    /// The one operation that answers a read or a write: by having moved all of the data, or by its
    /// errno. If it has moved less, or ended with `EINTR` or `EAGAIN`, [`Serve::serve`] is asked,
    /// which may come to move the same data again. This saves the future's share of each request.
    /// Not asked about other requests, nor about one that [`Serve::at_once`] has answered. A panic is
    /// caught as there.
    fn transfer(&self, request: &Request) -> Option<Transfer<'_>> {
        let _ = request;
        None
    }

    /// Follows the device to another size ([`Target::resize`]).
    ///
    /// # Errors
    /// Kind [`ErrorKind::Unsupported`] unless it can.
    fn resize(&self, from: u64, to: u64) -> Result<(), Error> {
        let _ = (from, to);
        Err(Error::new(ErrorKind::Unsupported, "its target cannot change its size"))
    }
}

/// Makes a [`QueueTarget`] that runs `serve` for every request of every tag.
#[must_use]
pub fn per_tag<S: Serve>(serve: S) -> Box<dyn QueueTarget> {
    struct PerTag<S>(Rc<S>);
    impl<S: Serve> QueueTarget for PerTag<S> {
        fn run_tag(&self, mut slot: TagSlot) -> LocalBoxFuture<'static, ()> {
            let serve = Rc::clone(&self.0);
            Box::pin(async move {
                while let Some(mut io) = slot.next().await {
                    let result = serve.serve(&mut io).await;
                    slot.complete(io, result);
                }
            })
        }

        fn answers_at_once(&self) -> bool {
            S::AT_ONCE
        }

        fn at_once(&self, request: &Request, data: &mut [u8]) -> Option<IoResult> {
            self.0.at_once(request, data)
        }

        fn transfers(&self) -> bool {
            S::TRANSFERS
        }

        fn transfer(&self, request: &Request) -> Option<Transfer<'_>> {
            self.0.transfer(request)
        }
    }
    Box::new(PerTag(Rc::new(serve)))
}
