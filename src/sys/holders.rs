//! Who holds a block device: processes that have it open, mounts, swap, devices on top.
//!
//! ```text
//!   /proc/*/fd            st_rdev of every open file          "pid 4711 (dd) has it open"
//!   /proc/*/mountinfo     each mount namespace once           "mounted at /mnt"
//!   /proc/swaps           path                                "used as swap"
//!   /sys/block/*          holders/, loop/backing_file         "dm-3 is on top of it"
//! ```
//!
//! Invariants: read-only; processes that vanish meanwhile, and what may not be read, are left out;
//! this process is left out; no file system is asked anything, so that a dead network mount does
//! not stop the search. The search takes as long as there are processes: callers bound it.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;

use nix::libc;
use nix::sys::stat::{major, minor};

use super::host::Host;

/// Number of a disk, which its openers keep alive when the disk itself has gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskNumber {
    /// The driver's half.
    pub major: u32,
    /// The disk's half.
    pub minor: u32,
}

impl DiskNumber {
    /// Takes the `st_rdev` of a node apart.
    #[must_use]
    pub fn of_rdev(rdev: u64) -> Self {
        Self { major: major(rdev) as u32, minor: minor(rdev) as u32 }
    }
}

impl fmt::Display for DiskNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// A text that is no `MAJOR:MINOR`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no disk number: MAJOR:MINOR is one")]
pub struct NoDiskNumber;

impl FromStr for DiskNumber {
    type Err = NoDiskNumber;
    fn from_str(text: &str) -> Result<Self, NoDiskNumber> {
        let (major, minor) = text.split_once(':').ok_or(NoDiskNumber)?;
        let number = |text: &str| text.parse().map_err(|_| NoDiskNumber);
        Ok(Self { major: number(major)?, minor: number(minor)? })
    }
}

/// Searches for the holders of `disk`, whose name in the kernel is or was `name` (`ublkb7`); calls
/// `found` with a line for each as it comes across them.
pub fn search(host: &Host, disk: DiskNumber, name: &str, found: &mut dyn FnMut(String)) {
    // The number belongs to another disk by now: whoever holds that one is innocent.
    let current = host.path(format!("/sys/dev/block/{disk}"));
    if fs::read_link(current).is_ok_and(|link| !link.ends_with(name)) {
        return;
    }
    let node = format!("/dev/{name}");
    on_top(host, name, &node, found);
    let mut seen = BTreeSet::new();
    for pid in processes(host) {
        mounts(host, pid, disk, &node, &mut seen, found);
        if pid != std::process::id() {
            opener(host, pid, disk, found);
        }
    }
}

fn processes(host: &Host) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(host.path("/proc")) else { return Vec::new() };
    let mut pids: Vec<u32> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    // The own namespace first, so that its mounts are not told as those of another process.
    let own = std::process::id();
    pids.sort_by_key(|pid| *pid != own);
    pids
}

fn opener(host: &Host, pid: u32, disk: DiskNumber, found: &mut dyn FnMut(String)) {
    let Ok(files) = fs::read_dir(host.path(format!("/proc/{pid}/fd"))) else { return };
    let open = files.flatten().filter(|file| block_device(&file.path()) == Some(disk)).count();
    if open > 0 {
        let name = host.text(format!("/proc/{pid}/comm")).unwrap_or_else(|| "gone".to_owned());
        let times = if open > 1 { format!(" {open} times") } else { String::new() };
        found(format!("pid {pid} ({name}) has it open{times}"));
    }
}

/// The number of the block device that a path leads to. Unlike `stat` it never asks a file server.
fn block_device(path: &Path) -> Option<DiskNumber> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    let flags = libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT;
    // SAFETY: a structure of integers, for which zeroes are a value.
    let mut told: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a zero byte, the structure is ours and large enough.
    let result =
        unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, libc::STATX_TYPE, &mut told) };
    let block = result == 0 && u32::from(told.stx_mode) & libc::S_IFMT == libc::S_IFBLK;
    block.then_some(DiskNumber { major: told.stx_rdev_major, minor: told.stx_rdev_minor })
}

fn mounts(
    host: &Host,
    pid: u32,
    disk: DiskNumber,
    node: &str,
    seen: &mut BTreeSet<Box<Path>>,
    found: &mut dyn FnMut(String),
) {
    let Ok(namespace) = fs::read_link(host.path(format!("/proc/{pid}/ns/mnt"))) else { return };
    if !seen.insert(namespace.into_boxed_path()) {
        return;
    }
    let Ok(table) = fs::read(host.path(format!("/proc/{pid}/mountinfo"))) else { return };
    for line in String::from_utf8_lossy(&table).lines() {
        if let Some(place) = mounted_at(line, disk, node) {
            let whose = match pid == std::process::id() {
                true => String::new(),
                false => format!(" (in the namespace of pid {pid})"),
            };
            found(format!("mounted at {place}{whose}"));
        }
    }
}

/// The mount point of a line of `mountinfo`, if `disk` is mounted there: by number, or by source for
/// file systems that have a number of their own.
fn mounted_at(line: &str, disk: DiskNumber, node: &str) -> Option<String> {
    let (mount, fs) = line.split_once(" - ")?;
    let mut fields = mount.split(' ');
    let number = fields.nth(2)?;
    let place = fields.nth(1)?;
    let source = fs.split(' ').nth(1)?;
    let ours = number.parse() == Ok(disk) || source == node;
    ours.then(|| unescape(place))
}

/// Undoes the octal escapes of blanks, newlines and backslashes.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

fn on_top(host: &Host, name: &str, node: &str, found: &mut dyn FnMut(String)) {
    let holders = fs::read_dir(host.path(format!("/sys/block/{name}/holders")));
    for holder in holders.into_iter().flatten().flatten() {
        found(format!("{} is on top of it", holder.file_name().to_string_lossy()));
    }
    for disk in fs::read_dir(host.path("/sys/block")).into_iter().flatten().flatten() {
        let disk = disk.file_name().to_string_lossy().into_owned();
        let backing = host.text(format!("/sys/block/{disk}/loop/backing_file"));
        if backing.is_some_and(|path| path.trim_end_matches(" (deleted)") == node) {
            found(format!("{disk} is on top of it"));
        }
    }
    let swaps = host.text("/proc/swaps").unwrap_or_default();
    if swaps.lines().any(|line| line.split_whitespace().next() == Some(node)) {
        found("used as swap".to_owned());
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::unix::fs::symlink;

    use super::*;

    const DISK: DiskNumber = DiskNumber { major: 259, minor: 7 };

    fn lines(host: &Host) -> Vec<String> {
        let mut lines = Vec::new();
        search(host, DISK, "ublkb7", &mut |line| lines.push(line));
        lines
    }

    fn process(host: &Host, pid: u32, namespace: &str, mounts: &str) -> io::Result<()> {
        let folder = host.path(format!("/proc/{pid}"));
        fs::create_dir_all(folder.join("ns"))?;
        fs::create_dir_all(folder.join("fd"))?;
        fs::write(folder.join("comm"), "dd\n")?;
        symlink(namespace, folder.join("ns/mnt"))?;
        fs::write(folder.join("mountinfo"), mounts)
    }

    const EXT4: &str = "36 25 259:7 / /mnt/my\\040disk rw - ext4 /dev/ublkb7 rw\n";
    const BTRFS: &str = "37 25 0:45 /sub /srv rw shared:5 - btrfs /dev/ublkb7 rw\n";
    const OTHER: &str = "38 25 259:70 / /other rw - ext4 /dev/ublkb70 rw\nnonsense\n";

    #[test]
    fn f03_mounts_are_found_in_each_namespace_once() -> io::Result<()> {
        let root = tempfile::tempdir()?;
        let host = Host::at(root.path());
        process(&host, 1, "mnt:[1]", &format!("{EXT4}{OTHER}"))?;
        process(&host, 2, "mnt:[1]", &format!("{EXT4}{OTHER}"))?;
        process(&host, 3, "mnt:[2]", BTRFS)?;
        assert_eq!(
            lines(&host),
            [
                "mounted at /mnt/my disk (in the namespace of pid 1)",
                "mounted at /srv (in the namespace of pid 3)"
            ]
        );
        Ok(())
    }

    #[test]
    fn devices_on_top_and_swap_are_found() -> io::Result<()> {
        let root = tempfile::tempdir()?;
        let host = Host::at(root.path());
        fs::create_dir_all(host.path("/sys/block/ublkb7/holders/dm-3"))?;
        fs::create_dir_all(host.path("/sys/block/loop5/loop"))?;
        fs::write(host.path("/sys/block/loop5/loop/backing_file"), "/dev/ublkb7 (deleted)\n")?;
        fs::create_dir_all(host.path("/proc"))?;
        let swaps = "Filename Type Size\n/dev/ublkb7 partition 1020\n";
        fs::write(host.path("/proc/swaps"), swaps)?;
        assert_eq!(lines(&host), ["dm-3 is on top of it", "loop5 is on top of it", "used as swap"]);
        Ok(())
    }

    #[test]
    fn a_number_that_another_disk_has_by_now_accuses_nobody() -> io::Result<()> {
        let root = tempfile::tempdir()?;
        let host = Host::at(root.path());
        process(&host, 1, "mnt:[1]", EXT4)?;
        fs::create_dir_all(host.path("/sys/dev/block"))?;
        symlink("../../devices/virtual/block/ublkb8", host.path("/sys/dev/block/259:7"))?;
        assert_eq!(lines(&host), [""; 0]);
        Ok(())
    }

    #[test]
    fn an_empty_root_holds_nothing() -> io::Result<()> {
        let root = tempfile::tempdir()?;
        assert_eq!(lines(&Host::at(root.path())), [""; 0]);
        Ok(())
    }

    #[test]
    fn numbers_are_read_and_written_alike() {
        assert_eq!("259:7".parse(), Ok(DISK));
        assert_eq!(DISK.to_string(), "259:7");
        for bad in ["", "259", "259:", ":7", "a:b", "259:7:1", "-1:7"] {
            assert_eq!(bad.parse::<DiskNumber>(), Err(NoDiskNumber), "{bad}");
        }
    }

    #[test]
    fn a_file_that_is_no_block_device_has_no_number() {
        assert_eq!(block_device(Path::new("/dev/null")), None);
        assert_eq!(block_device(Path::new("/nowhere")), None);
    }
}
