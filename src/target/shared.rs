//! The simplest way to a [`Target`]: one [`Serve`] that all queues share.
//!
//! ```text
//!   Shared ── open_queue, on each queue's thread ──> per_tag(Delay(Faulty(Arc<S>)))
//! ```
//!
//! The built-in kinds are made of it, and a host's own may be: a backend that keeps nothing per
//! queue is a `Serve` that is `Send + Sync`, and a [`Geometry`].

use std::future::Future;
use std::sync::Arc;

use super::{
    DataUse, Geometry, Io, IoResult, QueueContext, QueueTarget, Request, Serve, Target, Transfer,
    with_faults,
};
use crate::model::{Error, FaultSpec};

/// A target whose queues share one [`Serve`].
///
/// ```
/// use ublkd::target::{Geometry, Io, IoResult, Op, Serve, Shared};
///
/// struct Zeroes;
///
/// impl Serve for Zeroes {
///     async fn serve(&self, io: &mut Io) -> IoResult {
///         if io.op() == Op::Read {
///             io.buf_mut().fill(0);
///         }
///         Ok(())
///     }
/// }
///
/// let target = Shared::new(Geometry::new(1 << 30, 512), Zeroes);
/// ```
pub struct Shared<S> {
    serve: Arc<S>,
    geometry: Geometry,
    faults: FaultSpec,
    notes: Vec<String>,
    data_use: DataUse,
}

impl<S: Serve + Send + Sync> Shared<S> {
    /// A target of `geometry` that `serve` serves.
    #[must_use]
    pub fn new(geometry: Geometry, serve: S) -> Self {
        let (faults, notes) = (FaultSpec::default(), Vec::new());
        Self { serve: Arc::new(serve), geometry, faults, notes, data_use: DataUse::Memory }
    }

    /// Says what `serve` does with data, where it does not need it in memory
    /// ([`Target::data_use`]).
    #[must_use]
    pub fn data_use(mut self, data_use: DataUse) -> Self {
        self.data_use = data_use;
        self
    }

    /// Makes trouble on purpose ([`crate::model::DeviceSpec::faults`]).
    #[must_use]
    pub fn faults(mut self, faults: &FaultSpec) -> Self {
        self.faults = faults.clone();
        self
    }

    /// Adds what the operator should know ([`Target::notes`]).
    #[must_use]
    pub fn note(mut self, notes: impl IntoIterator<Item = String>) -> Self {
        self.notes.extend(notes);
        self
    }
}

impl<S: Serve + Send + Sync> Target for Shared<S> {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn resize(&self, from: u64, to: u64) -> Result<(), Error> {
        self.serve.resize(from, to)
    }

    fn data_use(&self) -> DataUse {
        self.data_use
    }

    fn open_queue(self: Arc<Self>, _queue: QueueContext) -> Result<Box<dyn QueueTarget>, Error> {
        Ok(with_faults(Arc::clone(&self.serve), &self.faults))
    }
}

impl<S: Serve> Serve for Arc<S> {
    fn serve(&self, io: &mut Io) -> impl Future<Output = IoResult> {
        S::serve(self, io)
    }

    const AT_ONCE: bool = S::AT_ONCE;

    fn at_once(&self, request: &Request, data: &mut [u8]) -> Option<IoResult> {
        S::at_once(self, request, data)
    }

    const TRANSFERS: bool = S::TRANSFERS;

    fn transfer(&self, request: &Request) -> Option<Transfer<'_>> {
        S::transfer(self, request)
    }

    fn resize(&self, from: u64, to: u64) -> Result<(), Error> {
        S::resize(self, from, to)
    }
}
