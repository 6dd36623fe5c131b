//! The guest, for one test alone: no ublk device before, none after, a folder of its own, and the
//! programs that people use with block devices.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, ExitStatus};
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use ublkd::driver::Command;
use ublkd::model::{self, DeviceId, ErrorKind};

use crate::support::{alone, with_driver};

pub(crate) type Outcome = Result<(), Box<dyn Error>>;

/// No program of these tests takes longer, in seconds.
const PROGRAM: &str = "150";

/// What a test has of the guest.
pub(crate) struct Guest {
    folder: TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl Guest {
    /// Waits for the tests before to end.
    pub(crate) fn new() -> Result<Self, Box<dyn Error>> {
        let alone = alone();
        // Fails where there is no driver.
        let known = with_driver(async |driver| driver.list())?;
        assert!(known.is_empty(), "an earlier test has left devices: {known:?}");
        let folder = tempfile::tempdir()?;
        // Mount points and links are compared with what the kernel says of them.
        assert_eq!(fs::canonicalize(folder.path())?, folder.path());
        Ok(Self { folder, _alone: alone })
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a bash script in the folder to its end; gives what it printed.
    pub(crate) fn sh(&self, script: &str) -> Result<String, Box<dyn Error>> {
        let done = Process::new("timeout")
            .args(["--kill-after=5", PROGRAM, "bash", "-euo", "pipefail", "-c", script])
            .current_dir(self.folder.path())
            .output()?;
        let told = String::from_utf8_lossy(&done.stdout).into_owned();
        let complaint = String::from_utf8_lossy(&done.stderr);
        if done.status.success() {
            Ok(told)
        } else {
            Err(format!("{script}\n{}: {told}{complaint}", done.status).into())
        }
    }

    /// A file system on a disk of the kernel's loop driver, at `name` in the folder: one that can
    /// do direct I/O and punch holes whatever the folder itself is on. It goes with the guest.
    pub(crate) fn disk(&self, name: &str, size: &str) -> Result<PathBuf, Box<dyn Error>> {
        load_module("loop")?;
        self.sh(&format!(
            "truncate -s {size} {name}.raw
            disk=$(losetup --find --show {name}.raw)
            mkfs.ext4 -q $disk
            mkdir {name}
            mount $disk {name}
            losetup --detach $disk  # when it is unmounted"
        ))?;
        Ok(self.path(name))
    }
}

impl Drop for Guest {
    /// What a test has left, perhaps by failing, shall not be the next one's trouble.
    fn drop(&mut self) {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let places = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        let mine: Vec<_> = places.filter(|at| Path::new(at).starts_with(self.folder())).collect();
        for place in mine.iter().rev() {
            let _ = Process::new("umount").args(["--lazy", place]).status();
        }
        let _ = remove_all();
    }
}

/// Has the kernel load a module by the program that the kernel itself would ask.
pub(crate) fn load_module(name: &str) -> Outcome {
    let modprobe = fs::read_to_string("/proc/sys/kernel/modprobe")?;
    let loaded = Process::new(modprobe.trim()).arg(name).status()?;
    if loaded.success() { Ok(()) } else { Err(format!("no module {name}").into()) }
}

/// Whatever there is of ublk devices: nodes, and what the kernel knows.
pub(crate) fn left() -> Vec<String> {
    let named = |dir: &str, starts: &[&str]| -> Vec<String> {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let ours = names.filter(|name| starts.iter().any(|start| name.starts_with(start)));
        ours.map(|name| format!("{dir}/{name}")).collect()
    };
    let mut all = named("/dev", &["ublkb", "ublkc"]);
    all.extend(named("/sys/class/ublk-char", &["ublkc"]));
    all.extend(named("/sys/block", &["ublkb"]));
    all.sort();
    all
}

/// Waits until something is so, for `bound` at most; says whether it is.
pub(crate) fn until(bound: Duration, mut so: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + bound;
    while !so() {
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Waits for a program to end by itself, for 30 s at most; after that it is killed, and it hangs.
pub(crate) fn end_of(program: &mut Child, name: &str) -> Result<ExitStatus, Box<dyn Error>> {
    let mut status = Ok(None);
    until(Duration::from_secs(30), || {
        status = program.try_wait();
        !matches!(status, Ok(None))
    });
    if let Some(status) = status? {
        return Ok(status);
    }
    program.kill()?;
    Err(format!("{name} hangs").into())
}

/// Devices that the kernel has a node for.
pub(crate) fn devices() -> usize {
    fs::read_dir("/sys/class/ublk-char").map_or(0, Iterator::count)
}

/// Those of `ids` that are not free: a device without nodes keeps its id as long as somebody has
/// its disk open.
pub(crate) fn taken(ids: &[DeviceId]) -> Result<Vec<DeviceId>, model::Error> {
    with_driver(async |driver| {
        let mut taken = Vec::new();
        for id in ids {
            match driver.info(*id).await {
                Ok(_) => taken.push(*id),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
    })
}

/// Deletes a device as another program would, without asking its server.
pub(crate) fn delete_from_outside(id: DeviceId) -> Result<(), model::Error> {
    with_driver(async |driver| driver.execute(Command::DeleteAsync(id)).await.map(|_| ()))
}

fn remove_all() -> Result<(), model::Error> {
    with_driver(async |driver| {
        for id in driver.list()? {
            driver.execute(Command::DeleteAsync(id)).await?;
        }
        Ok(())
    })
}
