//! Loads block devices past the page cache, from a process of its own so that its processor time
//! is not the server's.
//!
//! ```text
//!   in_a_child ── ublkd bench load PATH… ──> a thread a job, each: a ring, depth tasks
//!       ^                                           │ read or write, one after the other
//!       └──────────── Loaded, as JSON on stdout ────┘
//! ```
//!
//! Invariants: an I/O that fails or is short ends the load with an error; the child ends by itself.

use std::cell::{Cell, RefCell};
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures::future::LocalBoxFuture;
use nix::libc;
use serde::{Deserialize, Serialize};
use slog::{Discard, Logger, o};

use super::args::{Load, LoadOp};
use super::histogram::Histogram;
use crate::model::{Error, ErrorKind};
use crate::sys::arena::{self, Buffer};
use crate::sys::doorbell::Doorbell;
use crate::sys::ring::{Completion, Ring, RingConfig, Wait};
use crate::sys::thread;

/// How long one I/O may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is done to each device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) op: LoadOp,
    /// I/Os in flight a job.
    pub(super) depth: u16,
    /// Size of an I/O in KiB.
    pub(super) block: u32,
    /// Threads a device.
    pub(super) jobs: u16,
    /// Each job ends after this time.
    pub(super) seconds: f64,
    /// Each I/O in flight is repeated this often at most.
    pub(super) repeat: u64,
}

/// What a load saw.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Loaded {
    /// I/Os that were done.
    pub(super) ios: u64,
    /// I/Os a second, all jobs together.
    pub(super) iops: f64,
    /// Latencies in seconds: what half of them, 99 and 99.9 of 100 are not above.
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
}

/// Loads `paths` from a process of its own.
///
/// # Errors
/// When the process cannot be started or an I/O failed; it has said so on stderr.
pub(super) fn in_a_child(paths: &[PathBuf], shape: Shape) -> Result<Loaded, Error> {
    let failed = |e: std::io::Error| Error::from_io(&e, "cannot run the load");
    let Shape { op, depth, block, jobs, seconds, repeat } = shape;
    // The words of clap and those of serde are the same.
    let op = serde_json::to_string(&op).map_err(|e| failed(e.into()))?;
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.args(["bench", "load", "--op", op.trim_matches('"')]);
    command.args(["--depth", &depth.to_string(), "--block", &block.to_string()]);
    command.args(["--jobs", &jobs.to_string(), "--seconds", &seconds.to_string()]);
    command.args(["--repeat", &repeat.to_string()]).args(paths);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().map_err(failed)?;
    if !output.status.success() {
        let text = format!("the load failed: {}", output.status);
        return Err(Error::new(ErrorKind::Io, text));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| failed(e.into()))
}

/// `ublkd bench load`: the child's side.
pub(super) fn load(args: &Load) -> Result<Loaded, Error> {
    let Load { op, depth, block, jobs, seconds, repeat, .. } = *args;
    let shape = Shape { op, depth, block, jobs, seconds, repeat };
    let jobs = args.paths.iter().flat_map(|path| (0..jobs).map(move |job| (path.clone(), job)));
    let threads: Result<Vec<_>, Error> = jobs
        .map(|(path, job)| thread::spawn("load", move || run_job(&path, u64::from(job), shape)))
        .collect();
    let (mut all, mut iops) = (Histogram::new(), 0.0);
    for thread in threads? {
        let panicked = |_| Error::new(ErrorKind::Panicked, "a job panicked");
        let (latencies, time) = thread.join().map_err(panicked)??;
        iops += latencies.count() as f64 / time.as_secs_f64().max(f64::EPSILON);
        all.add(&latencies);
    }
    let at = |share| all.quantile(share) / 1e9;
    Ok(Loaded { ios: all.count(), iops, p50: at(0.5), p99: at(0.99), p999: at(0.999) })
}

/// One job on one device: its latencies in nanoseconds, and how long it took.
fn run_job(path: &Path, job: u64, shape: Shape) -> Result<(Histogram, Duration), Error> {
    let (file, blocks) = open(path, shape)?;
    let depth = shape.depth.max(1);
    let doorbell = Doorbell::new(usize::from(depth))?;
    let wakers: Rc<[Waker]> = (0..usize::from(depth)).map(|task| doorbell.waker(task)).collect();
    let log = Logger::root(Discard, o!());
    let ring = Ring::new(RingConfig { depth, registered: 0 }, &doorbell, &wakers, &log)?;
    let began = Instant::now();
    let course = Course {
        ring: &ring,
        file: &file,
        shape,
        blocks,
        end: began + Duration::try_from_secs_f64(shape.seconds).unwrap_or(Duration::MAX),
        // Each job has numbers of its own; 0 would give zeroes for ever.
        random: Cell::new((job + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        next: Cell::new(0),
        latencies: RefCell::new(Histogram::new()),
    };
    let buffers = arena::map(usize::from(depth), course.bytes())?;
    let tasks = (0..).zip(buffers).map(|(task, buffer)| course.stream(task, buffer));
    drive(&ring, &wakers, tasks.map(|task| Box::pin(task) as _).collect())?;
    let time = began.elapsed();
    Ok((course.latencies.into_inner(), time))
}

/// Opens a device; gives the number of blocks on it.
fn open(path: &Path, shape: Shape) -> Result<(File, u64), Error> {
    let failed = |e: std::io::Error| Error::from_io(&e, format!("cannot load {}", path.display()));
    let mut options = OpenOptions::new();
    options.read(true).write(shape.op.is_write()).custom_flags(libc::O_DIRECT);
    let mut file = options.open(path).map_err(failed)?;
    let size = file.seek(SeekFrom::End(0)).map_err(failed)?;
    match size.checked_div(u64::from(shape.block) << 10) {
        None | Some(0) => {
            let text = format!("{} has no block of {} KiB", path.display(), shape.block);
            Err(Error::new(ErrorKind::Invalid, text))
        }
        Some(blocks) => Ok((file, blocks)),
    }
}

/// Polls each task when the ring says that its I/O has ended, until all are done.
fn drive(
    ring: &Ring,
    wakers: &[Waker],
    tasks: Vec<LocalBoxFuture<'_, Result<(), Error>>>,
) -> Result<(), Error> {
    let mut left = tasks.len();
    let mut tasks: Vec<_> = tasks.into_iter().map(Some).collect();
    let mut ready: Vec<u32> = (0..left as u32).collect();
    while left > 0 {
        for task in ready.drain(..) {
            let Some(slot) = tasks.get_mut(task as usize) else { continue };
            let Some(future) = slot else { continue };
            let mut context = Context::from_waker(&wakers[task as usize]);
            if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
                result?;
                *slot = None;
                left -= 1;
            }
        }
        if left > 0 {
            ring.enter(Wait::AtMost(PATIENCE))?;
        }
        while let Some(completion) = ring.reap() {
            if let Completion::Ready(task, _) = completion {
                ready.push(task);
            }
        }
        if left > 0 && ready.is_empty() {
            let error = Error::new(ErrorKind::Timeout, "an I/O does not end");
            return Err(error.elapsed(PATIENCE).hint("is the device stopped? see dmesg"));
        }
    }
    Ok(())
}

/// What the tasks of a job share.
struct Course<'a> {
    ring: &'a Ring,
    file: &'a File,
    shape: Shape,
    blocks: u64,
    end: Instant,
    random: Cell<u64>,
    next: Cell<u64>,
    latencies: RefCell<Histogram>,
}

impl Course<'_> {
    fn bytes(&self) -> usize {
        self.shape.block as usize * 1024
    }

    /// One I/O after the other.
    async fn stream(&self, task: u32, mut buffer: Buffer) -> Result<(), Error> {
        let (range, file) = (0..self.bytes(), self.file.as_fd());
        let mut left = self.shape.repeat;
        let mut began = Instant::now();
        while left > 0 && began < self.end {
            left -= 1;
            let offset = self.place() * self.bytes() as u64;
            let done = if self.shape.op.is_write() {
                self.ring.write(task, file, &buffer, range.clone(), offset, false).await
            } else {
                self.ring.read(task, file, &mut buffer, range.clone(), offset).await
            };
            if done < 0 {
                return Err(Error::from_errno(-done, format!("an I/O at {offset} failed")));
            }
            if done as usize != self.bytes() {
                let text = format!("an I/O at {offset} was {done} bytes long only");
                return Err(Error::new(ErrorKind::Io, text));
            }
            let now = Instant::now();
            self.latencies.borrow_mut().record((now - began).as_nanos() as u64);
            began = now;
        }
        Ok(())
    }

    /// The block of the next I/O.
    fn place(&self) -> u64 {
        if !self.shape.op.is_random() {
            return self.next.replace(self.next.get() + 1) % self.blocks;
        }
        // Xorshift: even enough, and nothing beside the I/O.
        let mut x = self.random.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.set(x);
        x % self.blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(op: LoadOp, repeat: u64) -> Shape {
        Shape { op, depth: 4, block: 4, jobs: 1, seconds: 60.0, repeat }
    }

    #[test]
    fn a_job_does_what_it_was_asked_for_and_counts_each_io()
    -> Result<(), Box<dyn std::error::Error>> {
        let disk = tempfile::NamedTempFile::new_in(".")?;
        disk.as_file().set_len(64 << 10)?;
        for op in [LoadOp::Write, LoadOp::Randwrite, LoadOp::Read, LoadOp::Randread] {
            let (latencies, time) = run_job(disk.path(), 0, shape(op, 5))?;
            assert_eq!(latencies.count(), 20, "{op:?}");
            assert!(time > Duration::ZERO && latencies.quantile(0.5) > 0.0);
        }
        Ok(())
    }

    #[test]
    fn a_job_ends_in_time() -> Result<(), Box<dyn std::error::Error>> {
        let disk = tempfile::NamedTempFile::new_in(".")?;
        disk.as_file().set_len(64 << 10)?;
        let short = Shape { seconds: 0.05, ..shape(LoadOp::Randread, u64::MAX) };
        let (latencies, time) = run_job(disk.path(), 0, short)?;
        assert!(latencies.count() >= 4);
        assert!(time >= Duration::from_millis(50) && time < Duration::from_secs(5), "{time:?}");
        Ok(())
    }

    #[test]
    fn what_is_too_small_is_refused() -> Result<(), Box<dyn std::error::Error>> {
        let disk = tempfile::NamedTempFile::new_in(".")?;
        disk.as_file().set_len(1024)?;
        let error = run_job(disk.path(), 0, shape(LoadOp::Read, 1)).expect_err("no block");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        Ok(())
    }
}
