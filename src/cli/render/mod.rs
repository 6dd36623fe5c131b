//! What the commands print: tables for people, JSON for programs.
//!
//! ```text
//!   a daemon's answers ────────┐
//!   Config         ─ resolved ─┼─> String ──> stdout
//!   ShutdownReport ─ shutdown ─┘
//! ```
//!
//! Invariants: pure functions from values to text, ended by a newline; thousands of devices are
//! summed up unless all of them are asked for.

mod answers;
mod description;
mod devices;
pub mod host;
pub mod measured;
mod resolved;
mod shutdown;
mod table;
mod yaml;

pub use answers::{ended, event, groups, reloaded};
pub use description::description;
pub(super) use devices::devices;
pub use resolved::resolved;
pub use shutdown::shutdown;
pub use yaml::yaml;

use serde::Serialize;
use serde_json::Value;

use crate::model::{Error, ErrorKind};

/// Most rows of a table that nobody asked for in full.
const MOST_ROWS: usize = 50;

/// How much of a list is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Every row.
    All,
    /// Every row of a short list, the sum of a long one.
    Short,
}

impl Extent {
    /// Whether a list of `rows` is to be shown row by row.
    fn shows(self, rows: usize) -> bool {
        self == Self::All || rows <= MOST_ROWS
    }
}

/// Anything as indented JSON, ended by a newline.
///
/// # Errors
/// Kind [`ErrorKind::Internal`] for what JSON cannot hold.
pub fn json<T: Serialize>(value: &T) -> Result<String, Error> {
    serde_json::to_string_pretty(value).map(|text| text + "\n").map_err(|e| no_json(&e))
}

/// Anything as a JSON value.
///
/// # Errors
/// As [`json`].
pub(super) fn value<T: Serialize>(value: &T) -> Result<Value, Error> {
    serde_json::to_value(value).map_err(|e| no_json(&e))
}

fn no_json(error: &serde_json::Error) -> Error {
    Error::new(ErrorKind::Internal, format!("cannot write JSON: {error}"))
}

/// Seconds for people: `850 µs`, `12.3 ms`, `4.361 s`.
fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 0.001 => format!("{:.0} \u{b5}s", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.3} s"),
    }
}

/// `1 device`, `2 devices`.
pub(super) fn devices_text(count: usize) -> String {
    format!("{count} device{}", if count == 1 { "" } else { "s" })
}
