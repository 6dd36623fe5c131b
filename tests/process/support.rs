//! The real binary as a child: a directory of its own, its log line by line, signals, its end.
//!
//! Every wait is bounded, and a child that is still there when a test ends, panicking or not, is
//! killed by its pid.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Longest wait for anything that should happen at once, on a machine that is busy.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// The line that says that every device was started or has failed.
pub(crate) const IN_SERVICE: &str = "devices in service";

/// A directory with configs, a run directory and a report.
pub(crate) struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    /// A scene whose `ublkd.toml` is `config`.
    pub(crate) fn with(config: &str) -> Self {
        let scene = Self::new();
        scene.write("ublkd.toml", config);
        scene
    }

    /// A scene with `count` null devices `d0`, `d1`, …
    pub(crate) fn nulls(count: usize) -> Self {
        Self::with(&nulls(count))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// `ublkd ARGS` in this directory, with nothing of ours in its environment.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = bare(Path::new(env!("CARGO_BIN_EXE_ublkd")));
        command.args(args).current_dir(self.dir.path());
        command
    }

    /// `ublkd run` of the scene's config on the simulated driver, with a report.
    pub(crate) fn run(&self, more: &[&str]) -> Command {
        let mut command = self.command(&["run", "-c", "ublkd.toml"]);
        command.args(self.sim()).args(["--report", "report.json"]).args(more);
        command
    }

    /// The flags of a simulated run that stays in this directory.
    pub(crate) fn sim(&self) -> [String; 4] {
        let run_dir = format!("supervisor.run_dir={}", self.path("run").display());
        ["--driver", "sim", "--set", &run_dir].map(str::to_owned)
    }

    /// Starts [`Scene::run`].
    pub(crate) fn start(&self, more: &[&str]) -> Daemon {
        Daemon::spawn(&mut self.run(more))
    }

    /// Starts [`Scene::run`] and waits until the devices are up.
    pub(crate) fn up(&self, more: &[&str]) -> Daemon {
        let daemon = self.start(more);
        daemon.says(IN_SERVICE);
        daemon
    }

    pub(crate) fn report(&self) -> Value {
        serde_json::from_str(&fs::read_to_string(self.path("report.json")).unwrap()).unwrap()
    }

    /// Names of the links to devices, and whatever else is with them.
    pub(crate) fn links(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path("run/by-name")) else { return Vec::new() };
        let mut names: Vec<_> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// A config of `count` null devices `d0`, `d1`, …
pub(crate) fn nulls(count: usize) -> String {
    format!(
        "[[device]]\nname = \"d{{n}}\"\ncount = {count}\ntarget = \"null\"\nsize = \"1MiB\"\n\
         depth = 4\nmax_io = \"4KiB\"\n"
    )
}

/// A command with nothing of ours, of cargo's or of a service manager's in its environment.
pub(crate) fn bare(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a command that ends by itself.
pub(crate) fn output(command: &mut Command) -> Output {
    let daemon = Daemon::spawn(command);
    let ended = daemon.ends();
    Output {
        status: std::process::ExitStatus::from_raw(ended.raw),
        stdout: ended.stdout.into_bytes(),
        stderr: ended.stderr.into_bytes(),
    }
}

/// A child that runs.
pub(crate) struct Daemon {
    child: Child,
    log: Arc<Log>,
    stdout: Option<JoinHandle<String>>,
    stderr: Option<JoinHandle<String>>,
    began: Instant,
}

/// How a child ended.
pub(crate) struct Ended {
    raw: i32,
    /// The exit status; `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// From its start.
    pub(crate) took: Duration,
}

/// What a child has said on stderr so far.
#[derive(Default)]
struct Log {
    state: Mutex<(Vec<String>, bool)>,
    more: Condvar,
}

impl Daemon {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let log = Arc::new(Log::default());
        let stdout = child.stdout.take().map(|mut stdout| {
            std::thread::spawn(move || {
                let mut text = String::new();
                stdout.read_to_string(&mut text).unwrap();
                text
            })
        });
        let stderr = child.stderr.take().map(|stderr| {
            let log = Arc::clone(&log);
            std::thread::spawn(move || log.read(stderr))
        });
        Self { child, log, stdout, stderr, began: Instant::now() }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Waits for a line of the log that has `text` in it.
    pub(crate) fn says(&self, text: &str) -> String {
        self.says_within(text, SOON)
    }

    pub(crate) fn says_within(&self, text: &str, bound: Duration) -> String {
        let end = Instant::now() + bound;
        let mut state = self.log.state.lock().unwrap();
        loop {
            let (lines, ended) = &*state;
            if let Some(line) = lines.iter().find(|line| line.contains(text)) {
                return line.clone();
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(
                !ended && !left.is_zero(),
                "it never said {text:?}, but:\n{}",
                lines.join("\n")
            );
            state = self.log.more.wait_timeout(state, left).unwrap().0;
        }
    }

    /// The lines so far that have `text` in them.
    pub(crate) fn lines(&self, text: &str) -> Vec<String> {
        let state = self.log.state.lock().unwrap();
        state.0.iter().filter(|line| line.contains(text)).cloned().collect()
    }

    /// Tells it to stop and waits for its end.
    pub(crate) fn terminate(self) -> Ended {
        self.signal(Signal::SIGTERM);
        self.ends()
    }

    /// Waits for its end.
    pub(crate) fn ends(self) -> Ended {
        self.ends_within(SOON)
    }

    pub(crate) fn ends_within(mut self, bound: Duration) -> Ended {
        let end = Instant::now() + bound;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(
                Instant::now() < end,
                "it runs after {bound:?} still; it said:\n{}",
                self.lines("").join("\n")
            );
            std::thread::sleep(Duration::from_millis(5));
        };
        let took = self.began.elapsed();
        // Both end with the child, which has no children of its own.
        let text = |reader: Option<JoinHandle<String>>| reader.map(|r| r.join().unwrap());
        let stdout = text(self.stdout.take()).unwrap_or_default();
        let stderr = text(self.stderr.take()).unwrap_or_default();
        Ended { raw: status.into_raw(), code: status.code(), stdout, stderr, took }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have been waited for already; then it is not killed again.
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Log {
    fn read(&self, stderr: impl Read) -> String {
        let mut text = String::new();
        for line in BufReader::new(stderr).lines() {
            let line = line.unwrap();
            text.push_str(&line);
            text.push('\n');
            self.state.lock().unwrap().0.push(line);
            self.more.notify_all();
        }
        self.state.lock().unwrap().1 = true;
        self.more.notify_all();
        text
    }
}

impl Ended {
    /// Lines of stderr that have `text` in them.
    pub(crate) fn lines(&self, text: &str) -> Vec<&str> {
        self.stderr.lines().filter(|line| line.contains(text)).collect()
    }

    /// Asserts how it ended; shows what it said if that is wrong.
    #[track_caller]
    pub(crate) fn with_status(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "after {:?} it had said:\n{}", self.took, self.stderr);
        self
    }

    /// Asserts that stderr has each of `parts`.
    #[track_caller]
    pub(crate) fn saying(self, parts: &[&str]) -> Self {
        for part in parts {
            assert!(self.stderr.contains(part), "no {part:?} in:\n{}", self.stderr);
        }
        self
    }
}

/// Waits until `done` says so.
#[track_caller]
pub(crate) fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !done() {
        assert!(Instant::now() < end, "{what} did not happen within {SOON:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
