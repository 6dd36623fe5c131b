//! The file of `--report`: opened before anything starts, so that a wrong path is known at once, and
//! put in place whole.
//!
//! Invariants: a report that was there stays until the new one is complete; what is no regular file
//! (`/dev/stdout`, a pipe) is written to and never replaced; nothing half-made is left.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::model::{Error, ShutdownReport};

/// An open file for a report.
pub(super) struct ReportFile {
    path: PathBuf,
    file: File,
    /// Where the report is written until it is complete.
    fresh: Option<PathBuf>,
}

impl ReportFile {
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let special = fs::metadata(path).is_ok_and(|there| !there.is_file());
        let opened = if special {
            OpenOptions::new().write(true).open(path).map(|file| (file, None))
        } else {
            let mut fresh = path.as_os_str().to_owned();
            fresh.push(".new");
            File::create(&fresh).map(|file| (file, Some(fresh.into())))
        };
        let (file, fresh) = opened.map_err(|e| {
            Error::from_io(&e, format!("cannot write the report {}", path.display()))
                .hint("name a file in a directory that ublkd may write")
        })?;
        Ok(Self { path: path.to_owned(), file, fresh })
    }

    pub(super) fn write(mut self, report: &ShutdownReport) -> Result<(), Error> {
        let written = self.put(report);
        written.map_err(|e| {
            Error::from_io(&e, format!("the report {} was not written", self.path.display()))
        })
    }

    fn put(&mut self, report: &ShutdownReport) -> io::Result<()> {
        let mut json = serde_json::to_vec_pretty(report)?;
        json.push(b'\n');
        self.file.write_all(&json)?;
        if let Some(fresh) = &self.fresh {
            self.file.sync_all()?;
            fs::rename(fresh, &self.path)?;
            self.fresh = None;
        }
        Ok(())
    }
}

impl Drop for ReportFile {
    fn drop(&mut self) {
        if let Some(fresh) = &self.fresh {
            // Whoever reads the directory sees that it is empty or half.
            let _ = fs::remove_file(fresh);
        }
    }
}
