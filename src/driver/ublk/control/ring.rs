//! The control thread's half: commands onto the ring, completions back to those who wait.
//!
//! ```text
//!   inbox ─> begin ─> submit ─> SQE … CQE ─> finish ─> judge ─> answer
//!                       ^                                └─ EINTR, and safe: once more
//! ```
//!
//! Invariants: a wait for completions that is interrupted goes on, nothing is submitted twice for
//! it; a command leaves `in_flight` only with its completion.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};

use futures::channel::oneshot;
use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use libublk::sys::ublksrv_ctrl_cmd;
use nix::libc;
use nix::sys::eventfd::EventFd;

use super::super::abi::{self, Wire};
use super::super::lent::Lent;
use super::{Answer, Job};
use crate::model::Error;
use crate::sys::ring::setup_error;

/// Workers beside those that were asked for, to stand in for those that never come back.
const RESERVE: u32 = 64;
/// Slots of the submission queue; more commands than that go in several rounds.
pub(super) const ENTRIES: u32 = 256;
/// How often a command is sent that the driver answers with `EINTR`.
const TRIES: u32 = 8;
/// The completion of the eventfd's poll; commands count from 0.
const WAKE: u64 = u64::MAX;

/// A command that the kernel works on.
struct InFlight {
    op: u32,
    header: ublksrv_ctrl_cmd,
    lent: Lent,
    tries: u32,
    answer: oneshot::Sender<Answer>,
}

/// The ring and the commands on it.
pub(super) struct Ring {
    ring: IoUring<Entry128, cqueue::Entry>,
    device: File,
    wake: Arc<EventFd>,
    in_flight: HashMap<u64, InFlight>,
    next_key: u64,
}

impl Ring {
    /// Makes the ring on the thread that will use it.
    ///
    /// # Errors
    /// As [`setup_error`] tells.
    pub(super) fn new(device: File, wake: Arc<EventFd>, in_flight: u32) -> Result<Self, Error> {
        let ring = IoUring::builder()
            .dontfork()
            .setup_single_issuer()
            .build(ENTRIES)
            .map_err(|error| setup_failed(&error, "io_uring_setup"))?;
        let workers = in_flight.saturating_add(RESERVE);
        ring.submitter()
            .register_iowq_max_workers(&mut [workers, workers])
            .map_err(|error| setup_failed(&error, "io_uring_register"))?;
        Ok(Self { ring, device, wake, in_flight: HashMap::new(), next_key: 0 })
    }

    /// How many commands the kernel works on.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Serves until the inbox is closed, whatever is still out then.
    ///
    /// # Errors
    /// When the ring is of no use any more.
    pub(super) fn run(&mut self, inbox: &Receiver<Job>) -> Result<(), Error> {
        let mut listening = false;
        loop {
            if !listening {
                let fd = types::Fd(self.wake.as_fd().as_raw_fd());
                let poll = opcode::PollAdd::new(fd, libc::POLLIN as u32).build().user_data(WAKE);
                self.push(&poll.into())?;
                listening = true;
            }
            match self.ring.submit_and_wait(1) {
                Err(error) if !is_passing(&error) => return Err(broken(&error)),
                // Even if it was interrupted, or is short of room for completions: what has come is
                // taken, then the wait goes on.
                _ => {}
            }
            let done: Vec<_> =
                self.ring.completion().map(|c| (c.user_data(), c.result())).collect();
            for (key, result) in done {
                if key == WAKE {
                    listening = false;
                    // Nothing to read means that somebody else's wake-up was read with the last.
                    let _ = self.wake.read();
                } else {
                    self.finish(key, result)?;
                }
            }
            loop {
                match inbox.try_recv() {
                    Ok(job) => self.begin(job)?,
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return Ok(()),
                }
            }
        }
    }

    fn begin(&mut self, job: Job) -> Result<(), Error> {
        let Wire { op, mut header, payload } = job.wire;
        let lent = payload.lend();
        header.addr = lent.address();
        header.len = lent.len();
        let key = self.next_key;
        self.next_key += 1;
        self.in_flight.insert(key, InFlight { op, header, lent, tries: 0, answer: job.answer });
        self.submit(key)
    }

    fn submit(&mut self, key: u64) -> Result<(), Error> {
        let Some(command) = self.in_flight.get_mut(&key) else { return Ok(()) };
        command.tries += 1;
        let mut bytes = [0; 80];
        bytes[..size_of::<ublksrv_ctrl_cmd>()].copy_from_slice(&abi::bytes(&command.header));
        let flags = match abi::may_wait(command.op) {
            true => squeue::Flags::ASYNC,
            false => squeue::Flags::empty(),
        };
        let fd = types::Fd(self.device.as_raw_fd());
        let entry = opcode::UringCmd80::new(fd, command.op).cmd(bytes).build();
        self.push(&entry.flags(flags).user_data(key))
    }

    /// Puts an entry into the queue, making room if there is none.
    fn push(&mut self, entry: &Entry128) -> Result<(), Error> {
        loop {
            // SAFETY: the entries made here point to no memory but that of a `Lent`, which stays
            // until the completion was taken, and to fds that live as long as the ring.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            match self.ring.submit() {
                Err(error) if !is_passing(&error) => return Err(broken(&error)),
                _ => {}
            }
        }
    }

    fn finish(&mut self, key: u64, result: i32) -> Result<(), Error> {
        let Some(command) = self.in_flight.get(&key) else { return Ok(()) };
        let result = match judge(command.op, command.tries, result) {
            Verdict::Resend => return self.submit(key),
            Verdict::Answer(result) => result,
        };
        let Some(command) = self.in_flight.remove(&key) else { return Ok(()) };
        // SAFETY: the kernel has completed the command.
        let payload = unsafe { command.lent.take_back() };
        // Nobody listens if the caller ran out of time; then the answer is of no use to anybody.
        let _ = command.answer.send((result, payload));
        Ok(())
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Resend,
    Answer(i32),
}

/// What a completion means for a command that was sent `tries` times.
fn judge(op: u32, tries: u32, result: i32) -> Verdict {
    if result == -libc::EINTR && tries < TRIES && abi::may_resend(op) {
        Verdict::Resend
    } else if result == -libc::ENODEV && tries > 1 && abi::removes(op) {
        // The try before was interrupted only after it had taken the device away.
        Verdict::Answer(0)
    } else {
        Verdict::Answer(result)
    }
}

fn setup_failed(error: &std::io::Error, call: &'static str) -> Error {
    setup_error(error.raw_os_error().unwrap_or(libc::EIO), call)
}

fn broken(error: &std::io::Error) -> Error {
    Error::from_io(error, "the ring of the control commands broke").command("io_uring_enter")
}

fn is_passing(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Command;
    use crate::model::DeviceId;

    #[test]
    fn f32_what_the_driver_interrupted_is_sent_again_if_that_is_safe() -> Result<(), Error> {
        let id = DeviceId(1);
        let start = abi::encode(&Command::Start(id), 1)?.op;
        let delete = abi::encode(&Command::Delete(id), 1)?.op;
        let add = libublk::sys::UBLK_U_CMD_ADD_DEV;
        let (interrupted, gone) = (-libc::EINTR, -libc::ENODEV);
        assert_eq!(judge(start, 1, interrupted), Verdict::Resend);
        assert_eq!(judge(start, TRIES, interrupted), Verdict::Answer(interrupted));
        assert_eq!(judge(add, 1, interrupted), Verdict::Answer(interrupted));
        assert_eq!(judge(delete, 1, gone), Verdict::Answer(gone));
        assert_eq!(judge(delete, 2, gone), Verdict::Answer(0));
        assert_eq!(judge(start, 2, gone), Verdict::Answer(gone));
        assert_eq!(judge(start, 1, 0), Verdict::Answer(0));
        Ok(())
    }
}
