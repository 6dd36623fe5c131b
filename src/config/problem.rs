//! What is wrong with a config: every problem at once, each with where it is and what is allowed.
//!
//! ```text
//!   etc/fleet.toml:12:9: device "vol-3": depth: 5000 is out of range: 1 to 4096
//!      |
//!   12 | depth = 5000
//!      |         ^^^^
//! ```
//!
//! Invariant: a [`ConfigError`] holds at least one [`Problem`], in the order of the sources.

use std::collections::HashSet;
use std::fmt;

use serde::Serialize;

use super::source::{Excerpt, Place};
use crate::model::{DeviceName, Error, ErrorKind};

/// One thing that is wrong, where it is, and what is allowed there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file as it was named, `environment`, `flags`, or empty when no source is to blame.
    pub source: String,
    /// Line in the file, from 1.
    pub line: Option<usize>,
    /// Column in the line, in characters from 1.
    pub column: Option<usize>,
    /// Path of the key, as `device[3].depth` (devices of a file count from 0); the variable's name
    /// for the environment; empty when the whole source is meant.
    pub key: String,
    /// The device's name as it was written (cut when it is too long to be one), when it has one.
    pub device: Option<String>,
    /// What is wrong: the value, and what is allowed.
    pub message: String,
    #[serde(skip)]
    rank: usize,
    #[serde(skip)]
    excerpt: Option<Excerpt>,
}

impl Problem {
    pub(super) fn new(place: &Place, key: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            source: place.source.clone(),
            line: place.at.map(|(line, _)| line),
            column: place.at.map(|(_, column)| column),
            key: key.into(),
            device: None,
            message: message.into(),
            rank: place.rank,
            excerpt: place.excerpt.clone(),
        }
    }

    pub(super) fn of_device(mut self, name: Option<&str>) -> Self {
        self.device = name.map(|name| match name.char_indices().nth(DeviceName::MAX_LEN) {
            Some((end, _)) => format!("{}…", &name[..end]),
            None => name.to_owned(),
        });
        self
    }

    /// What the problem is about, as the first words of its text.
    fn subject(&self) -> String {
        match (&self.device, self.key.split_once('.')) {
            (Some(name), Some((_, key))) => format!("device {name:?}: {key}: "),
            (Some(name), None) if self.key.is_empty() => format!("device {name:?}: "),
            (Some(name), None) => format!("device {name:?}: {}: ", self.key),
            (None, _) if self.key.is_empty() => String::new(),
            (None, _) => format!("{}: ", self.key),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.source.is_empty() {
            f.write_str(&self.source)?;
            if let (Some(line), Some(column)) = (self.line, self.column) {
                write!(f, ":{line}:{column}")?;
            }
            f.write_str(": ")?;
        }
        write!(f, "{}{}", self.subject(), self.message)?;
        if let (Some(line), Some(excerpt)) = (self.line, &self.excerpt) {
            let margin = line.to_string().len();
            write!(f, "\n{:margin$} |\n{line} | {}", "", excerpt.text)?;
            let (indent, carets) = (excerpt.indent, "^".repeat(excerpt.width));
            write!(f, "\n{:margin$} | {:indent$}{carets}", "", "")?;
        }
        Ok(())
    }
}

/// Why a config cannot be used: every problem of every source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfigError {
    /// The problems, in the order of the sources and of the lines in them.
    pub problems: Vec<Problem>,
}

impl ConfigError {
    /// Puts the problems in order and drops those that say the same of the same place: the
    /// devices of a fleet and a bad default would repeat themselves.
    pub(super) fn new(mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|p| (p.rank, p.line, p.column));
        let mut said = HashSet::new();
        problems.retain(|p| said.insert((p.rank, p.line, p.key.clone(), p.message.clone())));
        Self { problems }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            write!(f, "{}{problem}", if i == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

impl From<ConfigError> for Error {
    /// Kind [`ErrorKind::Invalid`], with the text of all problems.
    fn from(error: ConfigError) -> Self {
        Self::new(ErrorKind::Invalid, error.to_string())
    }
}
