//! One queue of a char device as a [`Port`]: requests come as completions of commands on the ring.
//!
//! ```text
//!   FETCH_REQ, once a tag ──> CQE 0 ── the tag's descriptor ──> Request
//!                              ^                                   │
//!                              └── COMMIT_AND_FETCH_REQ <── result ┘
//!                             CQE -ENODEV: the device stops, the tag is gone
//! ```
//!
//! Invariants: the thread that made the port is the only one that uses it and its ring (the kernel
//! binds a tag to the thread that fetched it); a tag's buffer is always named in the same way; the
//! file is registered with the ring until the queue ends, not until the kernel gets round to taking
//! the ring apart, which would keep the device referenced.

use std::fs::File;
use std::sync::Arc;

use libublk::sys::{self, ublksrv_io_cmd};
use nix::libc;

use super::requests::{Requests, Transfer};
use super::sqe::Sqe;
use crate::driver::queue::{Arrival, Port, PortSetup};
use crate::model::{Error, Tag};
use crate::sys::arena::Buffer;
use crate::sys::ring::Ring;

/// A queue of `/dev/ublkcN`.
pub(super) struct UblkPort {
    requests: Requests,
    /// Of each tag, ready but for the result.
    commits: Vec<Sqe>,
}

impl UblkPort {
    /// # Errors
    /// As [`Requests::new`].
    pub(super) fn new(
        file: &Arc<File>,
        setup: &PortSetup<'_>,
        transfer: Transfer,
    ) -> Result<Self, Error> {
        let requests = Requests::new(file, setup, transfer)?;
        let commit = |(tag, buffer): (Tag, &Buffer)| {
            let addr = if requests.has_addresses() { buffer.address() } else { 0 };
            let payload = ublksrv_io_cmd { q_id: requests.queue, tag: tag.0, result: 0, addr };
            let sqe = Sqe::of_tag(sys::UBLK_U_IO_COMMIT_AND_FETCH_REQ, payload).for_tag(tag);
            // `struct ublk_auto_buf_reg`: the index in the ring's table, and no flags.
            if requests.has_places() { sqe.addr(tag.0.into()) } else { sqe }
        };
        let commits = requests.tags().zip(setup.buffers).map(commit).collect();
        Ok(Self { requests, commits })
    }
}

impl Port for UblkPort {
    fn fetch_all(&mut self, ring: &Ring) -> Result<(), Error> {
        ring.register_file(&self.requests.file)?;
        for commit in &self.commits {
            let fetch = commit.command(sys::UBLK_U_IO_FETCH_REQ);
            // SAFETY: the kernel uses the buffer only while the thread of the ring is inside it,
            // and the queue keeps its buffers longer than its ring.
            unsafe { ring.push_command(fetch.entry()) };
        }
        Ok(())
    }

    #[inline]
    fn arrived(&mut self, tag: Tag, result: i32, buffer: &mut Buffer) -> Arrival {
        match result {
            0 => self.requests.arrived(tag, buffer),
            sys::UBLK_IO_RES_ABORT => Arrival::Gone,
            errno if errno < 0 => Arrival::Failed(-errno),
            // A step that only devices have which fetch write data on their own.
            _ => Arrival::Failed(libc::EPROTO),
        }
    }

    #[inline]
    fn commit(&mut self, ring: &Ring, tag: Tag, result: i32, buffer: &mut Buffer) {
        let result = self.requests.answer(tag, result, buffer);
        let commit = &mut self.commits[tag.index()];
        commit.set_result(result);
        // SAFETY: as in `fetch_all`.
        unsafe { ring.push_command(commit.entry()) };
    }
}
