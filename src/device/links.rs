//! `<run_dir>/by-name/NAME`: a link to the block device that exists only while it resolves.
//!
//! Made after the node is there, removed before the disk goes. A link is removed only while it
//! still points where this device put it: a successor of the same name keeps its own.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::model::{DeviceId, DeviceName, Error};

/// The directory of links.
#[derive(Debug, Clone)]
pub(crate) struct Links {
    dir: PathBuf,
}

impl Links {
    /// Makes `<run_dir>/by-name` and removes links that resolve to nothing, left by a crash.
    pub(crate) fn open(run_dir: &Path) -> Result<Self, Error> {
        let dir = run_dir.join("by-name");
        let failed = |e: &io::Error, what: &Path| {
            Error::from_io(e, format!("cannot use {}", what.display()))
                .hint("make the directory writable for ublkd or set supervisor.run_dir")
        };
        fs::create_dir_all(&dir).map_err(|e| failed(&e, &dir))?;
        for entry in fs::read_dir(&dir).map_err(|e| failed(&e, &dir))? {
            let path = entry.map_err(|e| failed(&e, &dir))?.path();
            if path.is_symlink() && !path.exists() {
                fs::remove_file(&path).map_err(|e| failed(&e, &path))?;
            }
        }
        Ok(Self { dir })
    }

    pub(crate) fn link(&self, name: &DeviceName, id: DeviceId) -> Result<(), Error> {
        let path = self.dir.join(name.as_str());
        // Renaming over is atomic: whoever opens the name sees the old link or the new one.
        let fresh = self.dir.join(format!(".{name}.new"));
        let made = match fs::remove_file(&fresh) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => symlink(id.block_path(), &fresh).and_then(|()| fs::rename(&fresh, &path)),
        };
        made.map_err(|e| {
            Error::from_io(&e, format!("cannot link {}", path.display()))
                .hint("supervisor.run_dir has to have room and to be writable for ublkd")
        })
    }

    pub(crate) fn unlink(&self, name: &DeviceName, id: DeviceId) -> Result<(), Error> {
        let path = self.dir.join(name.as_str());
        let removed = match fs::read_link(&path) {
            Ok(to) if to == Path::new(&id.block_path()) => fs::remove_file(&path),
            Ok(_) => Ok(()),
            Err(e) => Err(e),
        };
        match removed {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(Error::from_io(&e, format!("cannot remove {}", path.display())))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_of_a_successor_is_kept_and_dangling_ones_go() -> Result<(), Box<dyn std::error::Error>>
    {
        let dir = tempfile::tempdir()?;
        let links = Links::open(dir.path())?;
        let name = DeviceName::new("vol")?;
        let path = dir.path().join("by-name/vol");
        links.link(&name, DeviceId(3))?;
        links.link(&name, DeviceId(4))?;
        links.unlink(&name, DeviceId(3))?;
        assert_eq!(fs::read_link(&path)?, Path::new("/dev/ublkb4"));
        links.unlink(&name, DeviceId(4))?;
        links.unlink(&name, DeviceId(4))?;
        assert!(!path.is_symlink());
        links.link(&name, DeviceId(u32::MAX))?;
        Links::open(dir.path())?;
        assert!(!path.is_symlink(), "a dangling link outlived a new start");
        Ok(())
    }
}
