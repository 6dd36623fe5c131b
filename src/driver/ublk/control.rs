//! One ring on one thread that carries every control command, many at a time.
//!
//! ```text
//!   send(Wire) ── channel + eventfd ──> ublkd-control thread ── SQE ──> io-wq workers ──> driver
//!       ^                                   │                           (they may sleep)
//!       └───────── oneshot (i32, Payload) ──┴── CQE <──────────────────────────────┘
//! ```
//!
//! Commands that may wait are handed to the kernel's io-wq workers at once, so the thread itself
//! never waits for one; how many run at a time is the number of workers. A command that never comes
//! back keeps its worker, hence a reserve of those.
//!
//! Invariants:
//! - a command is submitted once. When the wait for completions is interrupted the wait goes on;
//!   when the driver itself says `EINTR` the command is sent again, [`TRIES`] times at most, if
//!   [`abi::may_resend`] says that this is safe (fault F32);
//! - the memory a command points to stays where it is until its completion came, for ever if it
//!   never comes;
//! - dropping [`Control`] takes at most [`GOODBYE`], whatever the kernel holds back.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use futures::channel::oneshot;
use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use libublk::sys::ublksrv_ctrl_cmd;
use nix::libc;
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::abi::{self, Payload, Wire};
use super::lent::Lent;
use crate::model::{Error, ErrorKind};
use crate::sys::ring::setup_error;

/// Workers beside those that were asked for, to stand in for those that never come back.
const RESERVE: u32 = 64;
/// Slots of the submission queue; more commands than that go in several rounds.
const ENTRIES: u32 = 256;
/// How often a command is sent that the driver answers with `EINTR`.
const TRIES: u32 = 8;
/// How long the thread may take to make its ring.
const WELCOME: Duration = Duration::from_secs(10);
/// How long a dropped [`Control`] waits for its thread.
const GOODBYE: Duration = Duration::from_secs(2);
/// The completion of the eventfd's poll; commands count from 0.
const WAKE: u64 = u64::MAX;

/// The kernel's answer: 0 or a negative errno, and the payload as it left it.
pub(super) type Answer = (i32, Payload);

/// The way to the control thread; dropping it ends the thread.
pub(super) struct Control {
    jobs: Option<Sender<Job>>,
    wake: Arc<EventFd>,
    /// Says how many commands were still out when the thread left its loop.
    ended: Receiver<usize>,
    /// Why the thread ended before it was asked to.
    broken: Arc<OnceLock<Error>>,
    thread: Option<JoinHandle<()>>,
}

struct Job {
    wire: Wire,
    answer: oneshot::Sender<Answer>,
}

impl Control {
    /// Starts the thread on `device` (an open `/dev/ublk-control`) with workers for `in_flight`
    /// commands at a time.
    ///
    /// # Errors
    /// When the ring, its workers or the thread cannot be made.
    pub(super) fn start(device: File, in_flight: u32) -> Result<Self, Error> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = EventFd::from_value_and_flags(0, flags)
            .map_err(|errno| setup_error(errno as i32, "eventfd"))?;
        let wake = Arc::new(wake);
        let (jobs, inbox) = mpsc::channel();
        let (say_ended, ended) = mpsc::channel();
        let (say_ready, ready) = mpsc::channel();
        let broken = Arc::new(OnceLock::new());
        let (thread_wake, thread_broken) = (Arc::clone(&wake), Arc::clone(&broken));
        let run = move || {
            let (made, ring) = match Ring::new(device, thread_wake, in_flight) {
                Ok(ring) => (Ok(()), Some(ring)),
                Err(error) => (Err(error), None),
            };
            // Nobody listens if `start` gave up; the closed inbox ends the loop then.
            let _ = say_ready.send(made);
            let Some(mut ring) = ring else { return };
            if let Err(error) = ring.run(&inbox) {
                let _ = thread_broken.set(error);
            }
            let _ = say_ended.send(ring.in_flight.len());
        };
        let thread = thread::Builder::new()
            .name("ublkd-control".to_owned())
            .spawn(run)
            .map_err(|error| Error::from_io(&error, "the control thread could not be started"))?;
        let control = Self { jobs: Some(jobs), wake, ended, broken, thread: Some(thread) };
        match ready.recv_timeout(WELCOME) {
            Ok(Ok(())) => Ok(control),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::new(ErrorKind::Internal, "the control thread does not start")),
        }
    }

    /// Sends a command; it is on its way when this returns, and dropping the future does not take
    /// it back.
    pub(super) fn send(&self, wire: Wire) -> impl Future<Output = Result<Answer, Error>> + use<> {
        let (answer, told) = oneshot::channel();
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.send(Job { wire, answer }).is_ok());
        if sent {
            self.wake();
        }
        let broken = Arc::clone(&self.broken);
        async move {
            told.await.map_err(|_| match broken.get() {
                Some(reason) => reason.clone(),
                None => Error::new(ErrorKind::Stopping, "the driver is closed"),
            })
        }
    }

    fn wake(&self) {
        // It only fails when the counter is full, and then the thread is about to wake anyway.
        let _ = self.wake.write(1);
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.jobs = None;
        self.wake();
        // With commands still out the exiting thread waits inside the kernel for their workers,
        // perhaps for ever: then it is not joined. The same for one that says nothing in time.
        let idle = match self.ended.recv_timeout(GOODBYE) {
            Ok(out) => out == 0,
            Err(RecvTimeoutError::Disconnected) => true,
            Err(RecvTimeoutError::Timeout) => false,
        };
        if let Some(thread) = self.thread.take().filter(|_| idle) {
            // A panic there would have been reported by every command that it left unanswered.
            let _ = thread.join();
        }
    }
}

/// A command that the kernel works on.
struct InFlight {
    op: u32,
    header: ublksrv_ctrl_cmd,
    lent: Lent,
    tries: u32,
    answer: oneshot::Sender<Answer>,
}

/// The thread's half.
struct Ring {
    ring: IoUring<Entry128, cqueue::Entry>,
    device: File,
    wake: Arc<EventFd>,
    in_flight: HashMap<u64, InFlight>,
    next_key: u64,
}

impl Ring {
    fn new(device: File, wake: Arc<EventFd>, in_flight: u32) -> Result<Self, Error> {
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

    /// Serves until the inbox is closed, whatever is still out then.
    fn run(&mut self, inbox: &Receiver<Job>) -> Result<(), Error> {
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
    use std::fs::OpenOptions;
    use std::time::Instant;

    use futures::executor::block_on;
    use futures::future::join_all;

    use super::*;
    use crate::driver::Command;
    use crate::model::DeviceId;

    /// A control thread on `/dev/null`, which takes every command and says 0.
    fn on_null() -> Result<Control, Box<dyn std::error::Error>> {
        let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
        Ok(Control::start(null, 4)?)
    }

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

    #[test]
    fn many_commands_are_answered_each_by_its_own() -> Result<(), Box<dyn std::error::Error>> {
        let control = on_null()?;
        // More than there are slots in the queue.
        let wires: Result<Vec<_>, _> =
            (0..3 * ENTRIES).map(|id| abi::encode(&Command::Stop(DeviceId(id)), 1)).collect();
        let answers = wires?.into_iter().map(|wire| control.send(wire));
        let answers = block_on(join_all(answers));
        assert_eq!(answers.len(), 3 * ENTRIES as usize);
        for answer in answers {
            assert_eq!(answer?.0, 0);
        }
        Ok(())
    }

    #[test]
    fn the_payload_comes_back() -> Result<(), Box<dyn std::error::Error>> {
        let control = on_null()?;
        let answer = block_on(control.send(abi::encode(&Command::Features, 1)?))?;
        assert!(matches!(answer, (0, Payload::Features(bits)) if *bits == 0));
        Ok(())
    }

    #[test]
    fn f32_signals_break_no_command() -> Result<(), Box<dyn std::error::Error>> {
        use std::os::unix::thread::JoinHandleExt;
        use std::sync::atomic::AtomicBool;

        signal_hook::flag::register(libc::SIGUSR2, Arc::new(AtomicBool::new(false)))?;
        let control = on_null()?;
        let thread = control.thread.as_ref().map(JoinHandleExt::as_pthread_t);
        let thread = thread.ok_or("no thread")?;
        for id in 0..200 {
            let wires: Result<Vec<_>, _> =
                (0..16).map(|_| abi::encode(&Command::Stop(DeviceId(id)), 1)).collect();
            let answers: Vec<_> = wires?.into_iter().map(|wire| control.send(wire)).collect();
            for _ in 0..8 {
                // SAFETY: the thread runs as long as `control` is there, and the signal has a
                // handler that may run anywhere.
                assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGUSR2) }, 0);
            }
            for answer in block_on(join_all(answers)) {
                assert_eq!(answer?.0, 0);
            }
        }
        Ok(())
    }

    #[test]
    fn dropping_it_ends_the_thread_and_answers_what_is_left()
    -> Result<(), Box<dyn std::error::Error>> {
        let control = on_null()?;
        let wire = abi::encode(&Command::Stop(DeviceId(1)), 1)?;
        block_on(control.send(wire))?;
        let began = Instant::now();
        let late = {
            let wire = abi::encode(&Command::Stop(DeviceId(1)), 1)?;
            let late = control.send(wire);
            drop(control);
            late
        };
        assert!(began.elapsed() < GOODBYE, "{:?}", began.elapsed());
        match block_on(late) {
            Ok((result, _)) => assert_eq!(result, 0),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Stopping),
        }
        Ok(())
    }
}
