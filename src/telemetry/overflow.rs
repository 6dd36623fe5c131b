//! The door to the log thread: a record gets in at once or not at all.
//!
//! ```text
//!   record ─ try ─┬─ in ──> log thread      (the next one that gets in brings the count of those lost)
//!                 └─ full ──> lost += 1
//! ```
//!
//! Invariants: no caller ever waits; each lost record is counted once, and told in the log as soon
//! as there is room, at the latest when logging ends.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use slog::{Drain, Level, Never, OwnedKVList, Record, b, o, record};
use slog_async::AsyncCore;

pub(super) struct Overflow {
    core: AsyncCore,
    /// Records lost and not told yet.
    untold: AtomicU64,
    /// Records lost since the start.
    lost: AtomicU64,
}

impl Overflow {
    pub(super) fn new(core: AsyncCore) -> Self {
        Self { core, untold: AtomicU64::new(0), lost: AtomicU64::new(0) }
    }

    /// Records lost since the start.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }

    /// Tells how many records were lost, if there is something to tell and room for it.
    pub(super) fn tell(&self) {
        let untold = self.untold.swap(0, Relaxed);
        if untold == 0 {
            return;
        }
        let told = self.core.log(
            &record!(
                Level::Warning,
                "",
                &format_args!("log lines were lost: they came faster than they could be written"),
                b!("count" => untold)
            ),
            &o!("component" => "log").into(),
        );
        if told.is_err() {
            self.untold.fetch_add(untold, Relaxed);
        }
    }
}

impl Drain for Overflow {
    type Ok = ();
    type Err = Never;

    fn log(&self, record: &Record<'_>, values: &OwnedKVList) -> Result<(), Never> {
        match self.core.log(record, values) {
            Ok(()) => self.tell(),
            // Full, or the log thread has ended: the record is lost either way.
            Err(_) => {
                self.lost.fetch_add(1, Relaxed);
                self.untold.fetch_add(1, Relaxed);
            }
        }
        Ok(())
    }
}
