//! The bound on operations that wait: a permit travels inside the message, and without one the
//! caller is told at once.
//!
//! An actor's own mailbox capacity is no bound: clones of an address, `send` and `do_send` pass
//! it, and it does not count what is in flight (actix 0.13). A permit is held from the call until
//! a worker takes the operation up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::model::{Error, ErrorKind, Occupancy};

/// The places in the supervisor's mailbox.
#[derive(Clone)]
pub(crate) struct Admission {
    places: Arc<Semaphore>,
    capacity: usize,
    refused: Arc<AtomicU64>,
}

impl Admission {
    /// At most `capacity` (at least 1) operations wait at once.
    pub(crate) fn new(capacity: usize) -> Self {
        let capacity = capacity.clamp(1, Semaphore::MAX_PERMITS);
        let places = Arc::new(Semaphore::new(capacity));
        Self { places, capacity, refused: Arc::default() }
    }

    /// A permit now, or [`ErrorKind::Overloaded`].
    pub(crate) fn try_enter(&self) -> Result<OwnedSemaphorePermit, Error> {
        Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            self.refused.fetch_add(1, Ordering::Relaxed);
            Error::new(
                ErrorKind::Overloaded,
                format!("{} operations wait already: the mailbox is full", self.capacity),
            )
            .hint("try again later, or raise supervisor.mailbox")
        })
    }

    /// A permit as soon as there is one, in order of arrival.
    pub(crate) async fn enter(&self) -> Result<OwnedSemaphorePermit, Error> {
        Arc::clone(&self.places)
            .acquire_owned()
            .await
            .map_err(|_| Error::new(ErrorKind::Stopping, "the supervisor has ended"))
    }

    /// Operations that hold a permit now.
    pub(crate) fn waiting(&self) -> usize {
        self.capacity - self.places.available_permits()
    }

    /// Places that are taken, and those there are.
    pub(crate) fn occupancy(&self) -> Occupancy {
        Occupancy { used: self.waiting(), limit: self.capacity }
    }

    /// How often there was no place.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_holds_over_clones_and_a_dropped_permit_is_a_place_again() {
        let admission = Admission::new(2);
        let other = admission.clone();
        let first = admission.try_enter().expect("a place");
        let second = other.try_enter().expect("a place");
        let refused = admission.try_enter().expect_err("full");
        assert_eq!(refused.kind(), ErrorKind::Overloaded);
        assert_eq!(admission.waiting(), 2);
        drop((first, second));
        assert!(other.try_enter().is_ok());
    }
}
