//! A request being served ([`Io`]), and the slot of a tag that requests come from ([`TagSlot`]).
//!
//! ```text
//!   TagSlot::next ──> Io ── read_file, write_file, … on the queue's ring, or anything else
//!        ^                    │
//!        └── complete(io, result)          an Io that is dropped is answered with EIO
//! ```
//!
//! Invariants: an operation may be dropped in the middle; the request is committed, and the next
//! operation of the same request started, only when the kernel has let go of the buffer.

use std::future::{Future, poll_fn};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use nix::libc;

use super::engine::core::{Core, Turn};
use super::{Errno, IoResult, Op, Request};
use crate::model::Tag;
use crate::sys::arena::Buffer;

/// How often an operation is tried again after `EINTR` or `EAGAIN` before the target is told.
const RETRIES: u32 = 64;

/// A request being served.
///
/// Its operations run on the queue's own ring, many requests at once. Any other future may be
/// awaited as well; one that is woken from another thread wakes the queue thread.
pub struct Io {
    core: Rc<Core>,
    request: Request,
    tag: Tag,
    /// There until the request is answered.
    buffer: Option<Buffer>,
}

impl Io {
    /// The request.
    #[must_use]
    pub fn request(&self) -> Request {
        self.request
    }

    /// What it asks for.
    #[must_use]
    pub fn op(&self) -> Op {
        self.request.op
    }

    /// First byte on the device.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.request.offset
    }

    /// Length in bytes; 0 for a flush.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a length on the device, not of a collection")]
    pub fn len(&self) -> usize {
        self.request.len as usize
    }

    /// Whether it must be durable before it is answered.
    #[must_use]
    pub fn fua(&self) -> bool {
        self.request.fua
    }

    /// The tag it came on.
    #[must_use]
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// The data of a write, the space of a read: `len()` bytes; else nothing.
    ///
    /// # Panics
    /// When a read into it was dropped in the middle and the kernel has not let go of it yet:
    /// await [`Io::settled`] first.
    #[must_use]
    pub fn buf(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], |buffer| &buffer.bytes()[..self.request.data_len()])
    }

    /// The same, to change.
    ///
    /// # Panics
    /// As [`Io::buf`], and when a write from it was dropped in the middle.
    #[must_use]
    pub fn buf_mut(&mut self) -> &mut [u8] {
        let len = self.request.data_len();
        self.buffer.as_mut().map_or(&mut [], |buffer| &mut buffer.bytes_mut()[..len])
    }

    /// Fills the buffer from a file, starting at `offset` bytes.
    ///
    /// # Errors
    /// The file's errno; `EIO` when the file ends in the middle.
    pub async fn read_file(&mut self, file: BorrowedFd<'_>, offset: u64) -> IoResult {
        let len = self.request.data_len();
        let mut done = 0;
        while done < len {
            match self.read_file_at(done..len, file, offset + done as u64).await? {
                0 => return Err(Errno(libc::EIO)),
                count => done += count,
            }
        }
        Ok(())
    }

    /// Fills `range` of the buffer from a file with one read, starting at `offset` bytes. Gives
    /// the number of bytes read: fewer than asked for at the end of the file, or at the
    /// kernel's pleasure.
    ///
    /// # Errors
    /// The file's errno.
    pub async fn read_file_at(
        &mut self,
        range: Range<usize>,
        file: BorrowedFd<'_>,
        offset: u64,
    ) -> Result<usize, Errno> {
        let range = self.within(range);
        for _ in 0..RETRIES {
            self.settled().await;
            let Some(buffer) = self.buffer.as_mut() else { break };
            let read = self.core.ring.read(self.tag.into(), file, buffer, range.clone(), offset);
            if let Some(result) = finished(read.await) {
                return result;
            }
        }
        Err(Errno(libc::EAGAIN))
    }

    /// Writes the buffer to a file, starting at `offset` bytes. `durable`: it is on stable
    /// storage when this ends (`RWF_DSYNC`).
    ///
    /// # Errors
    /// The file's errno; `EIO` when the file takes nothing more.
    pub async fn write_file(&self, file: BorrowedFd<'_>, offset: u64, durable: bool) -> IoResult {
        let len = self.request.data_len();
        let mut done = 0;
        let mut retries = RETRIES;
        while done < len {
            self.readable().await;
            let Some(buffer) = self.buffer.as_ref() else { break };
            let (task, at) = (self.tag.into(), offset + done as u64);
            let write = self.core.ring.write(task, file, buffer, done..len, at, durable);
            match finished(write.await) {
                Some(Ok(0)) => return Err(Errno(libc::EIO)),
                Some(Ok(count)) => done += count,
                Some(Err(errno)) => return Err(errno),
                None if retries == 0 => return Err(Errno(libc::EAGAIN)),
                None => retries -= 1,
            }
        }
        Ok(())
    }

    /// Makes everything written to a file durable (fdatasync).
    ///
    /// # Errors
    /// The file's errno.
    pub async fn datasync(&self, file: BorrowedFd<'_>) -> IoResult {
        for _ in 0..RETRIES {
            let sync = self.core.ring.datasync(self.tag.into(), file);
            if let Some(result) = finished(sync.await) {
                return result.map(|_| ());
            }
        }
        Err(Errno(libc::EAGAIN))
    }

    /// `fallocate(2)` on a file: allocates, punches holes or zeroes a range, as `mode` says.
    ///
    /// # Errors
    /// The file's errno.
    pub async fn fallocate(
        &self,
        file: BorrowedFd<'_>,
        mode: i32,
        offset: u64,
        len: u64,
    ) -> IoResult {
        for _ in 0..RETRIES {
            let call = self.core.ring.fallocate(self.tag.into(), file, mode, offset, len);
            if let Some(result) = finished(call.await) {
                return result.map(|_| ());
            }
        }
        Err(Errno(libc::EAGAIN))
    }

    /// Waits until a file is ready for `events` (`POLLIN` and the like); gives those it is ready
    /// for.
    ///
    /// # Errors
    /// The file's errno.
    pub async fn poll_file(&self, file: BorrowedFd<'_>, events: u32) -> Result<u32, Errno> {
        for _ in 0..RETRIES {
            let poll = self.core.ring.poll(self.tag.into(), file, events);
            if let Some(result) = finished(poll.await) {
                return result.map(|events| events as u32);
            }
        }
        Err(Errno(libc::EAGAIN))
    }

    /// Waits.
    pub async fn sleep(&self, time: Duration) {
        // -ETIME is how a timeout ends well; no other end is of use to a caller.
        let _: i32 = self.core.ring.sleep(self.tag.into(), time).await;
    }

    /// Waits until the kernel has let go of the buffer: at once, unless an operation on it was
    /// dropped in the middle.
    pub async fn settled(&mut self) {
        poll_fn(|cx| match &self.buffer {
            Some(buffer) if buffer.is_busy() => self.core.wait(self.tag, cx),
            _ => Poll::Ready(()),
        })
        .await;
    }

    /// Waits until the kernel does not write to the buffer any more.
    async fn readable(&self) {
        poll_fn(|cx| match &self.buffer {
            Some(buffer) if buffer.is_filling() => self.core.wait(self.tag, cx),
            _ => Poll::Ready(()),
        })
        .await;
    }

    /// The part of `range` that is in the request.
    fn within(&self, range: Range<usize>) -> Range<usize> {
        let end = range.end.min(self.request.data_len());
        range.start.min(end)..end
    }

    /// Answers the request, once.
    #[inline]
    fn answer(&mut self, result: IoResult) {
        if let Some(buffer) = self.buffer.take() {
            self.core.answer(self.tag, Some(buffer), self.request.answered(result));
        }
    }
}

impl Drop for Io {
    fn drop(&mut self) {
        self.answer(Err(Errno(libc::EIO)));
    }
}

/// The kernel's result as a count or an errno; nothing when the operation is to be tried again.
#[inline]
pub(super) fn finished(result: i32) -> Option<Result<usize, Errno>> {
    match -result {
        libc::EINTR | libc::EAGAIN => None,
        errno if errno > 0 => Some(Err(Errno(errno))),
        _ => Some(Ok(result as usize)),
    }
}

/// Gives one tag's requests, one after the other.
pub struct TagSlot {
    core: Rc<Core>,
    tag: Tag,
}

impl TagSlot {
    pub(super) fn new(core: &Rc<Core>, tag: Tag) -> Self {
        Self { core: Rc::clone(core), tag }
    }

    /// The next request, or `None` when the queue ends. It comes only after the one before was
    /// answered.
    #[allow(clippy::should_implement_trait, reason = "requests have to be awaited")]
    pub fn next(&mut self) -> impl Future<Output = Option<Io>> + '_ {
        let (core, tag) = (&self.core, self.tag);
        let cell = &core.tags[tag.index()];
        poll_fn(move |cx| match cell.turn.get() {
            Turn::Arrived => {
                cell.turn.set(Turn::Target);
                let (request, buffer) = (cell.request.get(), cell.buffer.take());
                Poll::Ready(Some(Io { core: Rc::clone(core), request, tag, buffer }))
            }
            _ if core.ending.get() => Poll::Ready(None),
            _ => core.wait(tag, cx),
        })
    }

    /// Answers a request.
    #[inline]
    pub fn complete(&mut self, mut io: Io, result: IoResult) {
        io.answer(result);
    }
}
