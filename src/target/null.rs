//! Takes and gives nothing, at once: what is left is the cost of the way. For measuring.
//!
//! A read leaves the buffer as it is. Buffers belong to one device and start as zeroes, so a
//! reader sees at most what was written to this very device.

use super::{Discard, Geometry, Io, IoResult, Request, Serve};
use crate::model::Error;

/// Largest DISCARD and WRITE_ZEROES: they cost nothing, whatever their size.
const MAX_DISCARD: u32 = 1 << 30;

/// What a null device of `size` bytes says of itself.
pub(super) fn geometry(size: u64) -> Geometry {
    let discard =
        Discard { granularity: 4096, max_discard: MAX_DISCARD, max_write_zeroes: MAX_DISCARD };
    Geometry { discard: Some(discard), ..Geometry::new(size, 512) }
}

/// Answers every request at once.
pub(super) struct Null;

impl Serve for Null {
    async fn serve(&self, _io: &mut Io) -> IoResult {
        Ok(())
    }

    const AT_ONCE: bool = true;

    fn at_once(&self, _request: &Request, _data: &mut [u8]) -> Option<IoResult> {
        Some(Ok(()))
    }

    fn resize(&self, _from: u64, _to: u64) -> Result<(), Error> {
        Ok(())
    }
}
