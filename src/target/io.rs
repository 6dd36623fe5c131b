//! One request as a target sees it, and the slot of a tag that it comes from.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::IoResult;
use crate::model::Tag;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// Fill the buffer from the device.
    Read,
    /// Write the buffer to the device.
    Write,
    /// Make everything written so far durable.
    Flush,
    /// The range's content is of no use any more.
    Discard,
    /// The range reads as zeroes from now on.
    WriteZeroes,
}

/// One request, as the kernel gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// What it asks for.
    pub op: Op,
    /// First byte on the device.
    pub offset: u64,
    /// Length in bytes; 0 for a flush.
    pub len: u32,
    /// It must be durable before it is answered.
    pub fua: bool,
    /// WRITE_ZEROES must not free the blocks.
    pub no_unmap: bool,
}

/// A request being served.
pub struct Io {}

impl Io {
    /// Fills the buffer from a file.
    ///
    /// # Errors
    /// Errno of the file.
    pub async fn read_file(&mut self, _file: BorrowedFd<'_>, _offset: u64) -> IoResult {
        Ok(())
    }

    /// Waits.
    pub async fn sleep(&self, _time: Duration) {}

    /// The tag it came on.
    #[must_use]
    pub fn tag(&self) -> Tag {
        Tag(0)
    }
}

/// Gives one tag's requests, one after the other.
pub struct TagSlot {}

impl TagSlot {
    /// The next request, or `None` when the queue ends.
    pub async fn next(&mut self) -> Option<Io> {
        None
    }

    /// Answers a request.
    pub fn complete(&mut self, _io: Io, _result: IoResult) {}
}
