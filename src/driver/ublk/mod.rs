//! The real driver: libublk's ABI over rings of our own.
//!
//! ```text
//!   Command ── abi::encode ──> control thread (one ring, many commands) ──> /dev/ublk-control
//!   Reply  <── abi::decode ─── answer; refusal::refused when it is an errno
//!
//!   open ── node::open_char ──> CharNode ── serve ──> one thread a queue, each with a UblkPort or,
//!                                                     for many tags a command, a BatchPort
//! ```
//!
//! libublk's own control and queue code is not used: its ring belongs to the thread that made it,
//! it deletes devices when handles are dropped, and it panics where an error would do.
//!
//! Invariants: nothing is sent that nobody asked for, dropping a handle deletes no device; the
//! caller's thread never waits for a command; a driver belongs to the thread that opened it, which
//! the types see to (fault F33).

mod abi;
mod batch;
mod char;
mod control;
mod lent;
mod node;
mod params;
mod port;
mod refusal;
mod requests;
mod sqe;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use futures::FutureExt;
use futures::StreamExt;
use futures::channel::mpsc;
use futures::future::{LocalBoxFuture, ready};
use tokio::time::{Instant, timeout_at};

use self::char::CharNode;
use self::control::Control;
use super::{CharDevice, Command, Driver, MakeDriver, Reply};
use crate::model::{DeviceId, Error, ErrorKind};
use crate::sys::disk::set_read_only;
use crate::sys::holders::{self, DiskNumber};
use crate::sys::host::Host;
use crate::sys::thread;

const CONTROL: &str = "/dev/ublk-control";
/// How long the search for holders may take.
const SEARCH: Duration = Duration::from_secs(2);

/// Control commands at a time: as many as there can be workers.
const IN_FLIGHT: u32 = 1024;

/// What `Builder::new` takes for the driver of this host's kernel.
#[must_use]
pub fn driver() -> MakeDriver {
    Box::new(|_| Ok(Rc::new(UblkDriver::open(IN_FLIGHT)?) as Rc<dyn Driver>))
}

/// The ublk driver of this host's kernel.
pub struct UblkDriver {
    control: Control,
    host: Host,
    /// Disks that have been seen, by device: a disk's holders outlive its node.
    disks: Rc<RefCell<BTreeMap<DeviceId, DiskNumber>>>,
}

impl UblkDriver {
    /// Opens the driver for `in_flight` control commands at a time; more wait in the kernel.
    ///
    /// # Errors
    /// When the driver is not loaded, rights are missing, or io_uring is switched off or short of
    /// memory; the text says what to do.
    pub fn open(in_flight: u32) -> Result<Self, Error> {
        let device = OpenOptions::new().read(true).write(true).open(CONTROL);
        let device = device.map_err(|error| {
            let hint = match error.kind() {
                std::io::ErrorKind::NotFound => "load ublk_drv: modprobe ublk_drv",
                std::io::ErrorKind::PermissionDenied => "run as root",
                _ => "see dmesg",
            };
            Error::from_io(&error, format!("cannot open {CONTROL}")).command("open").hint(hint)
        })?;
        let control = Control::start(device, in_flight)?;
        Ok(Self { control, host: Host::default(), disks: Rc::default() })
    }
}

impl Driver for UblkDriver {
    fn name(&self) -> &'static str {
        "ublk"
    }

    fn execute(&self, command: Command) -> LocalBoxFuture<'static, Result<Reply, Error>> {
        let about = |error: Error, command: &Command| {
            let error = error.command(command.name());
            match command.device() {
                Some(id) => error.id(id),
                None => error,
            }
        };
        let wire = match abi::encode(&command, std::process::id()) {
            Ok(wire) => wire,
            Err(error) => return ready(Err(about(error, &command))).boxed_local(),
        };
        let answer = self.control.send(wire);
        let host = self.host.clone();
        async move {
            let reply = match answer.await {
                Ok((errno, _)) if errno < 0 => Err(refusal::refused(&command, -errno, &host)),
                Ok((_, payload)) => abi::decode(&command, payload),
                Err(error) => Err(error),
            };
            reply.map_err(|error| about(error, &command))
        }
        .boxed_local()
    }

    fn open(&self, id: DeviceId) -> LocalBoxFuture<'static, Result<Box<dyn CharDevice>, Error>> {
        let host = self.host.clone();
        async move {
            let file = node::open_char(&host, id).await?;
            Ok(Box::new(CharNode::new(file)) as Box<dyn CharDevice>)
        }
        .boxed_local()
    }

    fn list(&self) -> Result<Vec<DeviceId>, Error> {
        self.host.ublk_devices().map_err(|error| {
            Error::from_io(&error, "cannot list the devices in /sys/class/ublk-char")
                .hint("is ublk_drv loaded and /sys mounted?")
        })
    }

    fn node_ready(&self, id: DeviceId) -> LocalBoxFuture<'static, Result<(), Error>> {
        let (host, disks) = (self.host.clone(), Rc::clone(&self.disks));
        async move {
            let disk = node::block_ready(&host, id).await?;
            disks.borrow_mut().insert(id, disk);
            Ok(())
        }
        .boxed_local()
    }

    fn set_read_only(&self, id: DeviceId, on: bool) -> LocalBoxFuture<'static, Result<(), Error>> {
        let path = self.host.path(id.block_path());
        // On a thread: opening a disk may read from it.
        let set = thread::blocking("ublkd-roset", move || {
            let file = File::open(&path)
                .map_err(|error| Error::from_io(&error, format!("cannot open {path:?}")))?;
            set_read_only(file.as_fd(), on)
                .map_err(|errno| Error::from_errno(errno as i32, format!("cannot change {path:?}")))
        });
        async move {
            let set = match set?.await {
                Ok(set) => set,
                Err(panic) => Err(Error::new(ErrorKind::Panicked, panic.to_string())),
            };
            set.map_err(|error| error.command("BLKROSET").id(id))
        }
        .boxed_local()
    }

    fn holders(&self, id: DeviceId) -> LocalBoxFuture<'static, Vec<String>> {
        let Some(disk) = self.disks.borrow().get(&id).copied() else {
            return ready(Vec::new()).boxed_local();
        };
        let (found, mut lines) = mpsc::unbounded();
        let host = self.host.clone();
        // A thread, since it may find thousands of processes.
        let search = move || {
            holders::search(&host, disk, &format!("ublkb{id}"), &mut |line| {
                // Nobody listens when the time is up.
                let _ = found.unbounded_send(line);
            });
        };
        // It is left to end by itself. Where none is to be had nobody is found, at once.
        drop(thread::spawn("ublkd-holders", search));
        async move {
            let end = Instant::now() + SEARCH;
            let mut all = Vec::new();
            while let Ok(Some(line)) = timeout_at(end, lines.next()).await {
                all.push(line);
            }
            all
        }
        .boxed_local()
    }
}
