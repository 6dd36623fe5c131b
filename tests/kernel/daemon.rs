//! `ublkd run` as a child process, with config, run directory, log and report in the guest's folder.
//!
//! ```text
//!   Guest::start(config) ──> Daemon ── node, id, signal, log ──> stop or wait ──> Ended
//!                              └── dropped: SIGKILL
//! ```

use std::error::Error;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use ublkd::model::DeviceId;

use crate::guest::{Guest, left, until};

/// The program under test.
pub(crate) const UBLKD: &str = env!("CARGO_BIN_EXE_ublkd");

/// Longest start of the largest config.
const START: Duration = Duration::from_secs(120);
/// Longest end; each config has a shorter bound of its own.
const END: Duration = Duration::from_secs(200);

pub(crate) struct Daemon {
    child: Child,
    folder: PathBuf,
}

/// How a daemon ended.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// What `--report` wrote; null if nothing.
    pub(crate) report: Value,
    pub(crate) log: Vec<Value>,
    /// From the signal to the end of the process.
    pub(crate) took: Duration,
}

impl Guest {
    /// Runs `ublkd run` with `config` and waits until all its devices are in service.
    pub(crate) fn start(&self, config: &str) -> Result<Daemon, Box<dyn Error>> {
        let mut daemon = self.launch(&[], config, &[])?;
        match daemon.in_service()? {
            (_, 0) => Ok(daemon),
            (up, failed) => {
                Err(format!("{failed} failed, {up} are up:\n{}", daemon.log_text()).into())
            }
        }
    }

    /// Runs `ublkd run` under `wrapper` (such as `unshare --mount`) with further arguments.
    pub(crate) fn launch(
        &self,
        wrapper: &[&str],
        config: &str,
        arguments: &[&str],
    ) -> Result<Daemon, Box<dyn Error>> {
        let folder = self.folder();
        fs::write(self.path("ublkd.toml"), config)?;
        let mut words = wrapper.to_vec();
        words.extend([UBLKD, "run", "-c", "ublkd.toml", "--report", "report.json"]);
        words.extend(["--set", "log.format=json"]);
        let run_dir = format!("supervisor.run_dir={}", self.path("run").display());
        words.extend(["--set", &run_dir]);
        words.extend(arguments);
        let child = Process::new(words[0])
            .args(&words[1..])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(File::create(self.path("stdout"))?)
            .stderr(File::create(self.path("log"))?)
            .spawn()?;
        Ok(Daemon { child, folder: folder.to_owned() })
    }
}

impl Daemon {
    /// Waits until every device is up or has failed; gives how many of each.
    pub(crate) fn in_service(&mut self) -> Result<(u64, u64), Box<dyn Error>> {
        let mut counts = None;
        let told = until(START, || {
            let log = self.log();
            let line = log.iter().find(|line| text(line, "msg").contains("devices in service"));
            counts = line.and_then(|line| Some((line["up"].as_u64()?, line["failed"].as_u64()?)));
            counts.is_some() || !matches!(self.child.try_wait(), Ok(None))
        });
        counts.filter(|_| told).ok_or_else(|| format!("did not start:\n{}", self.log_text()).into())
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// `<run_dir>/by-name/NAME`.
    pub(crate) fn link(&self, name: &str) -> PathBuf {
        self.folder.join("run/by-name").join(name)
    }

    /// The kernel's number of a device in service.
    pub(crate) fn id(&self, name: &str) -> Result<DeviceId, Box<dyn Error>> {
        let node = fs::read_link(self.link(name))?;
        let number = node.to_str().and_then(|node| node.strip_prefix("/dev/ublkb"));
        Ok(DeviceId(number.ok_or("not a link to a device")?.parse()?))
    }

    pub(crate) fn node(&self, name: &str) -> Result<PathBuf, Box<dyn Error>> {
        Ok(self.id(name)?.block_path().into())
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<(), nix::errno::Errno> {
        kill(self.pid(), signal)
    }

    /// The log lines so far. The last one may still be half written.
    pub(crate) fn log(&self) -> Vec<Value> {
        let text = self.log_text();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The log as it is, with what is no JSON.
    pub(crate) fn log_text(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.folder.join("log")).unwrap_or_default()).into_owned()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until it has ended by itself, or by a signal it was sent a moment ago.
    pub(crate) fn wait(mut self) -> Result<Ended, Box<dyn Error>> {
        let began = Instant::now();
        if !until(END, || self.has_ended()) {
            return Err(format!("does not end:\n{}", self.log_text()).into());
        }
        let status = self.child.wait()?;
        let took = began.elapsed();
        let printed = fs::read_to_string(self.folder.join("stdout"))?;
        // Fault 42: what a program prints and what it logs do not mix.
        assert_eq!(printed, "", "logs belong to stderr");
        let report = fs::read(self.folder.join("report.json")).unwrap_or_else(|_| b"null".to_vec());
        Ok(Ended { status, report: serde_json::from_slice(&report)?, log: self.log(), took })
    }

    /// SIGTERM; and then it has to end well, with nothing left anywhere.
    pub(crate) fn stop(self) -> Result<Ended, Box<dyn Error>> {
        self.signal(Signal::SIGTERM)?;
        let folder = self.folder.clone();
        let ended = self.wait()?;
        ended.is_clean(&folder)?;
        Ok(ended)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if !self.has_ended() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Ended {
    /// Exit status 0, an empty `left`, no device and no link.
    pub(crate) fn is_clean(&self, folder: &Path) -> Result<(), Box<dyn Error>> {
        let why = || format!("{}\n{:#}\n{:#?}", self.status, self.report, self.errors());
        assert_eq!(self.status.code(), Some(0), "{}", why());
        assert_eq!(self.report["left"], serde_json::json!([]), "{}", why());
        assert_eq!(left(), [""; 0], "{}", why());
        assert_eq!(fs::read_dir(folder.join("run/by-name"))?.count(), 0);
        Ok(())
    }

    /// What the report says of a device.
    pub(crate) fn device(&self, name: &str) -> &Value {
        let devices = self.report["devices"].as_array().map_or(&[][..], Vec::as_slice);
        devices.iter().find(|device| device["name"] == name).unwrap_or(&Value::Null)
    }

    /// How many devices ended as `outcome`.
    pub(crate) fn count(&self, outcome: &str) -> u64 {
        self.report["outcomes"][outcome].as_u64().unwrap_or_default()
    }

    /// Log lines that are worse than a warning.
    pub(crate) fn errors(&self) -> Vec<&Value> {
        let bad = |line: &&Value| matches!(text(line, "level"), "error" | "critical");
        self.log.iter().filter(bad).collect()
    }
}

/// A text of a log line or report; empty if there is none.
pub(crate) fn text<'a>(line: &'a Value, key: &str) -> &'a str {
    line[key].as_str().unwrap_or_default()
}
