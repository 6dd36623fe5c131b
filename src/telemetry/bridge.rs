//! Lines that libraries log through the `log` crate, libublk above all, sent to our log.
//!
//! Installed by the binary only: a host that embeds the library has a `log` implementation of its
//! own choice.

use slog::{Level, Logger, RecordLocation, RecordStatic, b, o};

use crate::config::LogLevel;
use crate::model::{Error, ErrorKind};

/// A `log` implementation that writes to a [`Logger`]. The library is told as `component`.
struct Bridge(Logger);

/// Sends what libraries log to `log`, from `level` on. Once a process.
///
/// # Errors
/// Kind [`ErrorKind::Exists`] when a `log` implementation is installed already.
pub fn install(log: &Logger, level: LogLevel) -> Result<(), Error> {
    let bridge = Box::new(Bridge(log.new(o!())));
    log::set_boxed_logger(bridge).map_err(|_| {
        Error::new(
            ErrorKind::Exists,
            "cannot bridge the log of libraries: one is installed already",
        )
    })?;
    log::set_max_level(match level {
        LogLevel::Critical | LogLevel::Error => log::LevelFilter::Error,
        LogLevel::Warning => log::LevelFilter::Warn,
        LogLevel::Info => log::LevelFilter::Info,
        LogLevel::Debug => log::LevelFilter::Debug,
        LogLevel::Trace => log::LevelFilter::Trace,
    });
    Ok(())
}

impl log::Log for Bridge {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        // The maximum level and the drain's filter decide.
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let location = RecordLocation {
            file: record.file_static().unwrap_or_default(),
            line: record.line().unwrap_or_default(),
            column: 0,
            function: "",
            module: record.module_path_static().unwrap_or_default(),
        };
        let level = match record.level() {
            log::Level::Error => Level::Error,
            log::Level::Warn => Level::Warning,
            log::Level::Info => Level::Info,
            log::Level::Debug => Level::Debug,
            log::Level::Trace => Level::Trace,
        };
        let library = record.target().split("::").next().unwrap_or_default();
        let fixed = RecordStatic { location: &location, level, tag: "" };
        self.0.log(&slog::Record::new(&fixed, record.args(), b!("component" => library)));
    }

    fn flush(&self) {}
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use log::Log;

    use super::super::logging::Logging;
    use super::super::testing::Sink;
    use super::*;
    use crate::config::LogConfig;

    #[test]
    fn lines_of_libraries_keep_level_text_and_library() {
        let sink = Sink::default();
        let logging = Logging::start(&LogConfig::default(), sink.clone());
        let bridge = Bridge(logging.logger().clone());
        for level in [log::Level::Error, log::Level::Info, log::Level::Debug] {
            let args = format_args!("add {}", 7);
            let record =
                log::Record::builder().level(level).target("libublk::ctrl").args(args).build();
            bridge.log(&record);
        }
        assert!(logging.finish(Duration::from_secs(10)));
        let text = sink.text();
        let lines: Vec<_> = text.lines().filter_map(|line| line.split_once(' ')).collect();
        let rest: Vec<_> = lines.iter().map(|(_, rest)| *rest).collect();
        assert_eq!(rest, ["ERRO add 7, component: libublk", "INFO add 7, component: libublk"]);
    }
}
