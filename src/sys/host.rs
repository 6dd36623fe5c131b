//! Facts about the host, read from `/proc`, `/sys` and `/dev` below a root that tests can choose.
//!
//! Invariants: reading never fails for a file that is absent or odd (the answer is `None` then);
//! nothing is cached, since limits change while the daemon runs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::model::DeviceId;

/// Where the facts are read from: the machine's root, or a folder that looks like one.
#[derive(Debug, Clone)]
pub struct Host {
    root: PathBuf,
}

impl Default for Host {
    /// The machine itself.
    fn default() -> Self {
        Self::at("/")
    }
}

impl Host {
    /// Reads below `root`, which has `proc`, `sys` and `dev` in it.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Where `path` (absolute on the machine) is below this root.
    #[must_use]
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Whether there is something at `path`.
    #[must_use]
    pub fn has(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// The text of a small file, without the blank space around it.
    #[must_use]
    pub fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        Some(fs::read_to_string(self.path(path)).ok()?.trim().to_owned())
    }

    /// The number in a small file.
    #[must_use]
    pub fn number(&self, path: impl AsRef<Path>) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// The kernel's release, as `uname -r` prints it.
    #[must_use]
    pub fn kernel_release(&self) -> String {
        self.text("/proc/sys/kernel/osrelease").unwrap_or_else(|| "of unknown release".to_owned())
    }

    /// The driver's parameter `ublks_max`. It once bounded all devices; newer drivers (seen in Linux
    /// 6.12.117 and 7.3.4) bound with it those of users without rights only. Which it is, only the
    /// answer to an `ADD_DEV` tells.
    #[must_use]
    pub fn ublks_max(&self) -> Option<u64> {
        self.number("/sys/module/ublk_drv/parameters/ublks_max")
    }

    /// The ids of all ublk devices, whoever made them, in order: the `ublkcN` of
    /// `/sys/class/ublk-char`, anything else there is passed over.
    ///
    /// # Errors
    /// When the folder cannot be read; it is absent as long as the driver is not loaded.
    pub fn ublk_devices(&self) -> io::Result<Vec<DeviceId>> {
        let mut ids = Vec::new();
        for entry in fs::read_dir(self.path("/sys/class/ublk-char"))? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("ublkc"));
            let digits = number.filter(|n| n.bytes().all(|b| b.is_ascii_digit()));
            ids.extend(digits.and_then(|n| n.parse().ok()).map(DeviceId));
        }
        ids.sort_unstable();
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f51_every_id_is_listed_and_junk_is_passed_over() -> io::Result<()> {
        let root = tempfile::tempdir()?;
        let class = root.path().join("sys/class/ublk-char");
        for name in ["ublkc70000", "ublkc0", "ublkc129", "ublkc5", "ublkc", "ublkc-1", "ublkc+2"] {
            fs::create_dir_all(class.join(name))?;
        }
        fs::create_dir_all(class.join("ublkc99999999999"))?;
        fs::write(class.join("power"), "")?;
        let ids = Host::at(root.path()).ublk_devices()?;
        assert_eq!(ids, [0, 5, 129, 70_000].map(DeviceId));
        Ok(())
    }

    #[test]
    fn without_the_driver_there_is_no_list() -> io::Result<()> {
        let root = tempfile::tempdir()?;
        let error = Host::at(root.path()).ublk_devices().expect_err("a list");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        Ok(())
    }

    #[test]
    fn what_is_absent_or_odd_is_none() -> io::Result<()> {
        let root = tempfile::tempdir()?;
        let host = Host::at(root.path());
        assert_eq!(host.ublks_max(), None);
        fs::create_dir_all(host.path("/sys/module/ublk_drv/parameters"))?;
        fs::write(host.path("/sys/module/ublk_drv/parameters/ublks_max"), "64\n")?;
        assert_eq!(host.ublks_max(), Some(64));
        fs::write(host.path("/sys/module/ublk_drv/parameters/ublks_max"), "many\n")?;
        assert_eq!(host.ublks_max(), None);
        Ok(())
    }
}
