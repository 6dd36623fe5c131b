//! Metrics in the OpenMetrics text format, made anew for each scrape.
//!
//! ```text
//!   supervisor, queue threads ── Snapshot ──┐
//!   /proc/self, panic hook ─────────────────┴─> Scrape ─ definitions::ALL ──> text
//! ```
//!
//! Invariants: nothing is counted here, and a scrape costs those who serve blocks nothing; at most
//! `per_device_max` devices have series of their own, whatever is configured or created.

mod definitions;
mod scrape;
#[cfg(test)]
mod tests;

pub use definitions::reference_markdown;

use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

use super::panics;
use crate::model::{IoStats, Snapshot};
use crate::sys::census::{self, Census};
use scrape::Scrape;

/// The `Content-Type` of what [`render`] gives.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Every metric as OpenMetrics text. Only the first `per_device_max` devices, by name, have series
/// of their own.
#[must_use]
pub fn render(snapshot: Snapshot, per_device_max: usize) -> String {
    let live = snapshot.devices.iter().map(|device| device.io);
    let total = live.fold(snapshot.tally.past_io, IoStats::plus);
    let mut registry = Registry::with_prefix("ublkd");
    registry.register_collector(Box::new(Scrape {
        snapshot,
        total,
        per_device_max,
        resident: census::resident(),
        census: Census::take(),
        panics: panics::count(),
    }));
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = text::encode(&mut out, &registry);
    out
}
