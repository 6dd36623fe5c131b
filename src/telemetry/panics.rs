//! The panic hook of the binary.
//!
//! ```text
//!   panic ─ note the place ─┬─ sys::panic::catch is around it ──> nothing: the catcher tells it,
//!                           │                                     with device and queue
//!                           ├─ nobody catches it ──> one critical line
//!                           └─ while another one unwinds ──> stderr at once: the process aborts,
//!                                                            and the log thread with it
//! ```
//!
//! Invariant: a panic is told once, by whoever knows most about it, and never by nobody.

use std::io::Write;
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicU64, Ordering};

use slog::{Logger, crit};

use super::context;
use crate::model::PanicReport;
use crate::sys::panic;

static COUNT: AtomicU64 = AtomicU64::new(0);

/// How many panics the hook has seen, those that were caught too.
#[must_use]
pub fn count() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// Replaces the process's panic hook by one that logs to `log`.
pub fn install(log: &Logger) {
    std::panic::set_hook(Box::new(hook(log)));
}

fn hook(log: &Logger) -> impl Fn(&PanicHookInfo<'_>) + Send + Sync + 'static {
    let log = context::component(log, "panic");
    move |info| {
        COUNT.fetch_add(1, Ordering::Relaxed);
        let location = info.location().map(ToString::to_string);
        let earlier = location.clone().and_then(panic::set_location);
        let report = PanicReport { location, ..PanicReport::from_payload(info.payload()) };
        tell(&log, &report, panic::is_caught(), earlier.is_some(), &mut std::io::stderr());
    }
}

fn tell(log: &Logger, report: &PanicReport, caught: bool, unwinding: bool, out: &mut dyn Write) {
    if unwinding {
        // There is nobody left to tell that stderr does not work.
        let _ = writeln!(out, "while unwinding from an earlier panic: {report}");
    } else if !caught {
        crit!(log, "code panicked";
            "message" => &report.message,
            "at" => report.location.as_deref().unwrap_or("unknown"),
            "thread" => &report.thread,
        );
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread::Builder;
    use std::time::Duration;

    use super::super::logging::Logging;
    use super::super::testing::Sink;
    use super::*;
    use crate::config::LogConfig;

    /// The process has one hook; ours minds the threads of this test and leaves the others to the
    /// hook that was there.
    fn with_hook(log: &Logger, f: impl FnOnce()) {
        let before: Arc<dyn Fn(&PanicHookInfo<'_>) + Send + Sync> = std::panic::take_hook().into();
        let (ours, others) = (hook(log), Arc::clone(&before));
        std::panic::set_hook(Box::new(move |info| {
            match std::thread::current().name().is_some_and(|name| name.starts_with("hooked")) {
                true => ours(info),
                false => others(info),
            }
        }));
        f();
        std::panic::set_hook(Box::new(move |info| before(info)));
    }

    #[test]
    fn f76_a_panic_is_told_by_its_catcher_or_else_by_the_hook() {
        let sink = Sink::default();
        let logging = Logging::start(&LogConfig::default(), sink.clone());
        with_hook(logging.logger(), || {
            let caught = Builder::new()
                .name("hooked-1".to_owned())
                .spawn(|| panic::catch(|| panic!("sector {}", 42)).expect_err("it panics"));
            let report = caught.expect("a thread").join().expect("it is caught");
            assert_eq!(report.message, "sector 42");
            let place = report.location.expect("the hook noted it");
            assert!(place.starts_with(file!()), "{place}");

            let uncaught = Builder::new().name("hooked-2".to_owned()).spawn(|| panic!("lost"));
            assert!(uncaught.expect("a thread").join().is_err());
        });
        assert!(logging.finish(Duration::from_secs(10)));
        let text = sink.text();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(
            text.contains("CRIT code panicked, component: panic, message: lost, at: "),
            "{text}"
        );
        assert!(text.trim_end().ends_with("thread: hooked-2"), "{text}");
    }

    #[test]
    fn a_panic_while_unwinding_is_told_at_once() {
        let log = Logger::root(slog::Discard, slog::o!());
        let report = PanicReport {
            message: "again".to_owned(),
            location: Some("x.rs:1:2".to_owned()),
            thread: "vol-1.q0".to_owned(),
        };
        for caught in [false, true] {
            let mut out = Vec::new();
            tell(&log, &report, caught, true, &mut out);
            let said = "while unwinding from an earlier panic: panic on thread vol-1.q0: again (at x.rs:1:2)\n";
            assert_eq!(String::from_utf8_lossy(&out), said);
        }
    }
}
