//! Fails or panics at a sector: a broken disk and a broken backend, for tests.

use std::ops::Range;

use nix::libc;

use super::{Delay, Errno, Io, IoResult, QueueTarget, Serve, per_tag};
use crate::model::FaultSpec;

/// Bytes of a sector, whatever the logical block is.
const SECTOR: u64 = 512;

/// Stands before a backend and spoils the requests that touch certain sectors. They do not reach
/// the backend.
pub struct Faulty<S> {
    inner: S,
    error_at: Option<u64>,
    panic_at: Option<u64>,
}

impl<S: Serve> Faulty<S> {
    /// Answers requests of `inner` that touch sector `error_at` with `EIO`, and panics at those
    /// that touch sector `panic_at`.
    #[must_use]
    pub fn new(inner: S, error_at: Option<u64>, panic_at: Option<u64>) -> Self {
        Self { inner, error_at, panic_at }
    }
}

impl<S: Serve> Serve for Faulty<S> {
    /// # Panics
    /// At the sector it was told to.
    async fn serve(&self, io: &mut Io) -> IoResult {
        let sectors = sectors(io.offset(), io.len() as u64);
        if let Some(sector) = self.panic_at.filter(|sector| sectors.contains(sector)) {
            panic!("panic_at: a request touched sector {sector}");
        }
        if self.error_at.is_some_and(|sector| sectors.contains(&sector)) {
            return Err(Errno(libc::EIO));
        }
        self.inner.serve(io).await
    }
}

/// The sectors that a range of bytes touches; none if it is empty, as that of a FLUSH.
fn sectors(offset: u64, len: u64) -> Range<u64> {
    let first = offset / SECTOR;
    first..if len == 0 { first } else { offset.saturating_add(len).div_ceil(SECTOR) }
}

/// Makes a [`QueueTarget`] of `serve` with the trouble that a spec asks for. Without any it is
/// [`per_tag`] and costs nothing.
#[must_use]
pub fn with_faults<S: Serve>(serve: S, faults: &FaultSpec) -> Box<dyn QueueTarget> {
    match *faults {
        FaultSpec { delay: None, error_at: None, panic_at: None } => per_tag(serve),
        FaultSpec { delay, error_at, panic_at } => {
            let faulty = Faulty::new(serve, error_at, panic_at);
            per_tag(Delay::new(faulty, delay.unwrap_or_default()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_is_touched_by_its_first_and_last_byte_and_not_by_a_flush() {
        assert_eq!(sectors(0, 0), 0..0);
        assert_eq!(sectors(512, 512), 1..2);
        assert_eq!(sectors(512, 4096), 1..9);
        assert!(sectors(5 * 512, 0).is_empty());
    }
}
