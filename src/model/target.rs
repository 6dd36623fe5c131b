//! What serves the blocks of a device, as it is asked for.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What serves the blocks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum TargetSpec {
    /// Takes and gives nothing: reads leave the buffer as it is. For measuring.
    Null {
        /// Size in bytes.
        size: u64,
    },
    /// Memory; the content goes with the device.
    Ram {
        /// Size in bytes.
        size: u64,
    },
    /// A file or a block device.
    Loop {
        /// Absolute path.
        path: PathBuf,
        /// Bypass the page cache (`O_DIRECT`) where the file allows it.
        direct: bool,
    },
    /// A target that the embedding host registered under `name` with its `Builder`.
    Custom {
        /// The registered name.
        name: String,
        /// Whatever the target wants to know.
        options: BTreeMap<String, serde_json::Value>,
    },
}

impl TargetSpec {
    /// The kind as one word, as in the config.
    #[must_use]
    pub fn kind(&self) -> &str {
        match self {
            Self::Null { .. } => "null",
            Self::Ram { .. } => "ram",
            Self::Loop { .. } => "loop",
            Self::Custom { name, .. } => name,
        }
    }

    /// The first key in which two targets that differ do.
    pub(super) fn difference(&self, there: &Self) -> &'static str {
        match (self, there) {
            (Self::Null { .. }, Self::Null { .. }) | (Self::Ram { .. }, Self::Ram { .. }) => "size",
            (Self::Loop { path, .. }, Self::Loop { path: other, .. }) if path != other => "path",
            (Self::Loop { .. }, Self::Loop { .. }) => "direct",
            (Self::Custom { name, .. }, Self::Custom { name: other, .. }) if name == other => {
                "options"
            }
            _ => "target",
        }
    }

    /// Whether opening it may wait, on a file system or on code of the host.
    #[must_use]
    pub fn may_block(&self) -> bool {
        !matches!(self, Self::Null { .. } | Self::Ram { .. })
    }
}
