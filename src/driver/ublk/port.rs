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
//! file is not registered with the ring, since that would keep the device referenced for a while
//! after the queue's end.

use std::fs::File;
use std::sync::Arc;

use io_uring::squeue;
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
    /// Of the buffers, by tag, where the kernel copies.
    addresses: Vec<u64>,
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
        let address = |buffer: &Buffer| if requests.has_addresses() { buffer.address() } else { 0 };
        let addresses = setup.buffers.iter().map(address).collect();
        Ok(Self { requests, addresses })
    }

    fn command(&self, op: u32, tag: Tag, result: i32) -> squeue::Entry {
        let addr = self.addresses.get(tag.index()).copied().unwrap_or(0);
        let payload = ublksrv_io_cmd { q_id: self.requests.queue, tag: tag.0, result, addr };
        let sqe = Sqe::of_tag(&self.requests.file, op, payload);
        // `struct ublk_auto_buf_reg`: the index in the ring's table, and no flags.
        if self.requests.has_places() { sqe.addr(tag.0.into()) } else { sqe }.entry()
    }
}

impl Port for UblkPort {
    fn fetch_all(&mut self, ring: &Ring) -> Result<(), Error> {
        for tag in self.requests.tags() {
            let fetch = self.command(sys::UBLK_U_IO_FETCH_REQ, tag, 0);
            // SAFETY: the kernel uses the buffer only while the thread of the ring is inside it,
            // and the queue keeps its buffers longer than its ring.
            unsafe { ring.push_command(tag, fetch) };
        }
        Ok(())
    }

    fn arrived(&mut self, tag: Tag, result: i32, buffer: &mut Buffer) -> Arrival {
        match result {
            0 => self.requests.arrived(tag, buffer),
            sys::UBLK_IO_RES_ABORT => Arrival::Gone,
            errno if errno < 0 => Arrival::Failed(-errno),
            // A step that only devices have which fetch write data on their own.
            _ => Arrival::Failed(libc::EPROTO),
        }
    }

    fn commit(&mut self, ring: &Ring, tag: Tag, result: i32, buffer: &mut Buffer) {
        let result = self.requests.answer(tag, result, buffer);
        let commit = self.command(sys::UBLK_U_IO_COMMIT_AND_FETCH_REQ, tag, result);
        // SAFETY: as in `fetch_all`.
        unsafe { ring.push_command(tag, commit) };
    }
}
