//! The process's log: where the lines go, in which form, from which level on.
//!
//! ```text
//!   let log = Logging::to_stderr(&config.log);
//!   run(log.logger());
//!   log.finish(…)       // or drop it: what is in the channel gets written, within a bound
//! ```
//!
//! Invariants: see the room; a sink that does not take lines any more (a full pipe) delays neither
//! a caller nor, beyond the bound, the end of the process; one that fails is ignored. A line's
//! time is that of its writing, which is later than the event only while lines pile up.

use std::io::{LineWriter, Write};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use slog::{Drain, FnValue, Level, LevelFilter, Logger, PushFnValue, Record, o};
use slog_async::{AsyncCore, AsyncGuard};
use slog_json::Json;

use super::overflow::Overflow;
use super::terminal;
use crate::config::{LogConfig, LogFormat, LogLevel};

/// Records that may wait for the log thread.
const CHANNEL: usize = 4096;

/// Longest time that dropping a [`Logging`] waits for the last lines.
const LAST_LINES: Duration = Duration::from_secs(2);

/// The running log. Loggers made from it stay usable after it has ended; they write nothing then.
pub struct Logging {
    logger: Logger,
    overflow: Arc<Overflow>,
    /// Ends the log thread when it is dropped; `None` once that was done.
    guard: Option<AsyncGuard>,
}

impl Logging {
    /// Logs to stderr, so that stdout is left to what was asked for (fault F42).
    ///
    /// # Panics
    /// When the host allows no thread for it.
    #[must_use]
    pub fn to_stderr(config: &LogConfig) -> Self {
        Self::start(config, std::io::stderr())
    }

    /// Logs to `sink`, from a thread of its own.
    ///
    /// # Panics
    /// When the host allows no thread for it.
    #[must_use]
    pub fn start(config: &LogConfig, sink: impl Write + Send + 'static) -> Self {
        Self::with_channel(config, sink, CHANNEL)
    }

    fn with_channel(config: &LogConfig, sink: impl Write + Send + 'static, size: usize) -> Self {
        // There is nobody to tell that the log cannot be written.
        let (core, guard) = match config.format {
            LogFormat::Terminal => spawn(terminal::drain(sink).ignore_res(), size),
            LogFormat::Json => spawn(json(sink).ignore_res(), size),
        };
        let overflow = Arc::new(Overflow::new(core));
        let drain = LevelFilter::new(Arc::clone(&overflow), config.level.into()).ignore_res();
        Self { logger: Logger::root(drain, o!()), overflow, guard: Some(guard) }
    }

    /// The root of all loggers.
    pub fn logger(&self) -> &Logger {
        &self.logger
    }

    /// Number of records that were lost since the start because they came faster than the sink
    /// took them.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.overflow.lost()
    }

    /// Writes what is in the channel and ends the log thread, or gives up after `within`. Says
    /// whether everything was written.
    pub fn finish(mut self, within: Duration) -> bool {
        self.end(within)
    }

    fn end(&mut self, within: Duration) -> bool {
        let Some(guard) = self.guard.take() else { return true };
        self.overflow.tell();
        // Dropping the guard waits for the sink without a bound, so a thread does that.
        let (done, ended) = mpsc::channel();
        let flusher = std::thread::Builder::new().name("log-flush".to_owned()).spawn(move || {
            drop(guard);
            // Whoever waited may have given up.
            let _ = done.send(());
        });
        // Without a thread the closure, and the guard with it, was dropped: all is written.
        flusher.is_err() || ended.recv_timeout(within).is_ok()
    }
}

impl Drop for Logging {
    fn drop(&mut self) {
        self.end(LAST_LINES);
    }
}

fn spawn<D>(drain: D, size: usize) -> (AsyncCore, AsyncGuard)
where
    D: Drain<Ok = (), Err = slog::Never> + Send + 'static,
{
    AsyncCore::custom(drain).chan_size(size).thread_name("log".to_owned()).build_with_guard()
}

/// One JSON object a line, written at once.
fn json<W: Write + Send + 'static>(sink: W) -> Json<LineWriter<W>> {
    Json::new(LineWriter::with_capacity(16 << 10, sink))
        .add_key_value(o!(
            "ts" => FnValue(|_: &Record<'_>| terminal::now()),
            "level" => FnValue(|record: &Record<'_>| word(record.level())),
            "msg" => PushFnValue(|record: &Record<'_>, out| out.emit(record.msg())),
        ))
        .build()
}

/// The level in the words of the config.
fn word(level: Level) -> &'static str {
    match level {
        Level::Critical => "critical",
        Level::Error => "error",
        Level::Warning => "warning",
        Level::Info => "info",
        Level::Debug => "debug",
        Level::Trace => "trace",
    }
}

impl From<LogLevel> for Level {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Critical => Self::Critical,
            LogLevel::Error => Self::Error,
            LogLevel::Warning => Self::Warning,
            LogLevel::Info => Self::Info,
            LogLevel::Debug => Self::Debug,
            LogLevel::Trace => Self::Trace,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use slog::{crit, debug, info};

    use super::super::context;
    use super::super::testing::{Sink, Stuck};
    use super::*;
    use crate::model::{DeviceId, DeviceName, QueueId};

    fn config(format: LogFormat) -> LogConfig {
        LogConfig { level: LogLevel::Info, format }
    }

    fn logged(format: LogFormat, f: impl FnOnce(&Logger)) -> String {
        let sink = Sink::default();
        let log = Logging::start(&config(format), sink.clone());
        f(log.logger());
        assert!(log.finish(Duration::from_secs(10)));
        sink.text()
    }

    fn some_lines(root: &Logger) {
        let name = DeviceName::new("vol-1").expect("a name");
        let log = context::device(&context::component(root, "device"), &name);
        let log = context::queue(&context::id(&log, DeviceId(7)), QueueId(2));
        info!(log, "opened\nCRIT forged"; "path" => "/srv/a\x1b[31m\n.img", "size" => 512);
        debug!(log, "not at this level");
        crit!(log, "code panicked");
    }

    #[test]
    fn f91_lines_for_people_have_name_and_id_and_stay_one_line() {
        let text = logged(LogFormat::Terminal, some_lines);
        let lines: Vec<_> =
            text.lines().map(|line| line.split_once(' ').expect("a time")).collect();
        assert!(lines.iter().all(|(time, _)| humantime::parse_rfc3339(time).is_ok()), "{text}");
        let rest: Vec<_> = lines.iter().map(|(_, rest)| *rest).collect();
        insta::assert_snapshot!(rest.join("\n"), @r"
    INFO opened\nCRIT forged, component: device, device: vol-1, id: 7, queue: 2, path: /srv/a\x1b[31m\n.img, size: 512
    CRIT code panicked, component: device, device: vol-1, id: 7, queue: 2
    ");
    }

    #[test]
    fn f91_json_lines_have_name_and_id() {
        let text = logged(LogFormat::Json, some_lines);
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(lines.len(), 2);
        let first = &lines[0];
        assert!(humantime::parse_rfc3339(first["ts"].as_str().expect("a time")).is_ok());
        assert_eq!(first["msg"], "opened\nCRIT forged");
        assert_eq!(first["level"], "info");
        assert_eq!(
            (&first["device"], &first["id"], &first["queue"]),
            (&"vol-1".into(), &7.into(), &2.into())
        );
        assert_eq!(lines[1]["level"], "critical");
    }

    #[test]
    fn every_line_is_one_write() {
        for format in [LogFormat::Terminal, LogFormat::Json] {
            let sink = Sink::default();
            let log = Logging::start(&config(format), sink.clone());
            some_lines(log.logger());
            assert!(log.finish(Duration::from_secs(10)));
            assert_eq!(sink.writes(), 2, "{format:?}");
        }
    }

    #[test]
    fn a_stuck_sink_delays_no_caller_and_not_the_end_and_losses_are_counted() {
        let stuck = Stuck::default();
        let log = Logging::with_channel(&config(LogFormat::Terminal), stuck.clone(), 8);
        let started = Instant::now();
        for i in 0..1000 {
            info!(log.logger(), "line"; "i" => i);
        }
        // The thread holds one record, the channel eight; or it has not got to run yet.
        assert!((991..=992).contains(&log.lost()), "{}", log.lost());
        assert!(!log.finish(Duration::from_millis(50)));
        assert!(started.elapsed() < Duration::from_secs(5));
        stuck.release();
    }

    #[test]
    fn losses_are_told_when_there_is_room_again() {
        let stuck = Stuck::default();
        let log = Logging::with_channel(&config(LogFormat::Terminal), stuck.clone(), 8);
        for _ in 0..1000 {
            info!(log.logger(), "line");
        }
        let lost = log.lost();
        stuck.release();
        // Whatever is in the channel is written first; then there is room.
        while stuck.lines() < 8 {
            std::thread::yield_now();
        }
        assert!(log.finish(Duration::from_secs(10)));
        let text = stuck.text();
        let last = text.lines().last().expect("a line");
        assert!(last.contains("log lines were lost"), "{last}");
        assert!(last.ends_with(&format!("count: {lost}")), "{last}");
    }

    #[test]
    fn a_logger_outlives_its_log() {
        let sink = Sink::default();
        let log = Logging::start(&config(LogFormat::Terminal), sink.clone());
        let logger = log.logger().clone();
        drop(log);
        info!(logger, "nobody hears this");
        assert_eq!(sink.text(), "");
    }
}
