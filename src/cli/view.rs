//! What the commands read out of the daemon's answers. Programs get the answers as they are.
//!
//! Invariant: keys that are not known are passed over and states are taken as they come, so that a
//! client works with a newer daemon.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::model::IoStats;

/// A device, as far as tables show it.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) state: String,
    #[serde(default)]
    pub(super) id: Option<u32>,
    #[serde(default)]
    pub(super) path: Option<String>,
    #[serde(default)]
    pub(super) stage: String,
    #[serde(default)]
    pub(super) target: String,
    #[serde(default)]
    pub(super) size: Option<u64>,
    #[serde(default)]
    pub(super) queues: u16,
    #[serde(default)]
    pub(super) depth: u16,
    #[serde(default)]
    pub(super) read_only: bool,
    #[serde(default)]
    pub(super) since_s: f64,
    #[serde(default)]
    pub(super) error: Option<String>,
    #[serde(default)]
    pub(super) group: Option<String>,
    #[serde(default)]
    pub(super) labels: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) origin: String,
    #[serde(default)]
    pub(super) io: IoStats,
}

/// Why a request failed: what is told of a problem document (RFC 9457).
#[derive(Debug, Deserialize)]
pub(super) struct Problem {
    #[serde(default)]
    pub(super) status: Option<u16>,
    pub(super) kind: String,
    pub(super) detail: String,
    #[serde(default)]
    pub(super) remedy: Option<String>,
    #[serde(default)]
    pub(super) holders: Vec<String>,
    #[serde(default)]
    pub(super) left: Vec<String>,
}
