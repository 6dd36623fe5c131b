//! Types of keys, and the one check of a value against a type and a range.
//!
//! ```text
//!   TOML value ──┐
//!   variable ────┼─> Raw ── Kind::check ──> config::ValueKind, or what was expected instead
//!   flag ────────┘
//! ```
//!
//! Invariant: a value that passed [`Kind::check`] fits the field that it is for.

use std::fmt;
use std::time::Duration;

use config::ValueKind;

use super::paths;
use super::units::{duration, parse_duration, parse_mode, parse_size, size_text};
use crate::model::{LIMITS, WorkerLimit};

/// Largest size of a device, as a pattern.
const SIZE_MAX: u64 = LIMITS.size_max;

/// The type and range of a key.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// A whole number, from and to.
    Integer(u64, u64),
    /// A whole number, from and to, or `auto`.
    Workers(u64, u64),
    /// Bytes, as a number or with a unit, from and to.
    Size(u64, u64),
    /// Text with a unit, from and to.
    Duration(Duration, Duration),
    Bool,
    /// One of these words.
    Word(&'static [&'static str]),
    Text,
    /// Permissions of a file, in octal as text.
    Mode,
    /// A path; relative ones start at the directory of the file that names them.
    Path,
    /// A table that is not looked into.
    Table,
}

/// A value as a source gives it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Raw {
    Text(String),
    Integer(i128),
    Bool(bool),
    /// Something that no key but a table takes, by the name of its type.
    Other(&'static str),
}

impl Raw {
    /// A value of the environment or a flag, where everything is text.
    pub(super) fn from_text(kind: Kind, text: &str) -> Self {
        let read = match kind {
            Kind::Integer(..) | Kind::Workers(..) => text.parse().ok().map(Self::Integer),
            Kind::Bool => text.parse().ok().map(Self::Bool),
            _ => None,
        };
        read.unwrap_or_else(|| Self::Text(text.to_owned()))
    }
}

impl fmt::Display for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "the string {text:?}"),
            Self::Integer(number) => write!(f, "the integer {number}"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Other(kind) => write!(f, "{kind}"),
        }
    }
}

impl Kind {
    /// Checks type and range.
    ///
    /// # Errors
    /// What was found and what is allowed.
    pub(super) fn check(self, raw: &Raw) -> Result<ValueKind, String> {
        let out_of_range =
            |value: &dyn fmt::Display| Err(format!("{value} is out of range: {}", self.range()));
        let within = |value: i128, min: u64, max: u64| {
            u64::try_from(value).ok().filter(|v| (min..=max).contains(v))
        };
        match (self, raw) {
            (Self::Workers(..), Raw::Text(text)) if text == WorkerLimit::AUTO => {
                Ok(ValueKind::String(text.clone()))
            }
            (Self::Integer(min, max) | Self::Workers(min, max), Raw::Integer(value)) => {
                match within(*value, min, max) {
                    Some(value) => Ok(ValueKind::U64(value)),
                    None => out_of_range(value),
                }
            }
            (Self::Size(min, max), Raw::Integer(value)) => match within(*value, min, max) {
                Some(value) => Ok(ValueKind::U64(value)),
                None => out_of_range(value),
            },
            (Self::Size(min, max), Raw::Text(text)) => match parse_size(text)? {
                value if (min..=max).contains(&value) => Ok(ValueKind::U64(value)),
                _ => out_of_range(text),
            },
            (Self::Duration(min, max), Raw::Text(text)) => match parse_duration(text)? {
                value if (min..=max).contains(&value) => Ok(ValueKind::String(text.clone())),
                _ => out_of_range(text),
            },
            (Self::Bool, Raw::Bool(value)) => Ok(ValueKind::Boolean(*value)),
            (Self::Word(words), Raw::Text(text)) => match words.contains(&text.as_str()) {
                true => Ok(ValueKind::String(text.clone())),
                false => Err(format!("{text:?} is not one of {}", self.range())),
            },
            (Self::Text, Raw::Text(text)) => Ok(ValueKind::String(text.clone())),
            (Self::Mode, Raw::Text(text)) => match parse_mode(text) {
                Some(_) => Ok(ValueKind::String(text.clone())),
                None => Err(format!(
                    "{text:?} is no mode: write three or four octal digits, as \"0660\""
                )),
            },
            (Self::Path, Raw::Text(text)) => {
                paths::check(text)?;
                Ok(ValueKind::String(text.clone()))
            }
            _ => Err(format!("expected {}, found {raw}", self.expected())),
        }
    }

    /// The type in words, as in the documentation.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Integer(..) => "integer",
            Self::Workers(..) => "integer or `auto`",
            Self::Size(..) => "size",
            Self::Duration(..) => "duration",
            Self::Bool => "boolean",
            Self::Word(_) => "word",
            Self::Text | Self::Mode => "string",
            Self::Path => "path",
            Self::Table => "table",
        }
    }

    /// What is allowed, as in the documentation; empty where anything of the type is.
    pub(super) fn range(self) -> String {
        match self {
            Self::Integer(min, max) | Self::Workers(min, max) => format!("{min} to {max}"),
            Self::Size(min, SIZE_MAX) => format!("{} to 8 EiB - 4 KiB", size_text(min)),
            Self::Size(min, max) => format!("{} to {}", size_text(min), size_text(max)),
            Self::Duration(min, max) => {
                format!("{} to {}", duration::text(min), duration::text(max))
            }
            Self::Word(words) => words.join(", "),
            Self::Mode => "\"0000\" to \"0777\"".to_owned(),
            Self::Bool | Self::Text | Self::Path | Self::Table => String::new(),
        }
    }

    fn expected(self) -> String {
        match self {
            Self::Integer(..) => format!("an integer from {}", self.range()),
            Self::Workers(..) => format!("an integer from {}, or \"auto\"", self.range()),
            Self::Size(..) => format!("a size from {}, as 4096 or \"64M\"", self.range()),
            Self::Duration(..) => format!("a duration from {}, as \"10s\"", self.range()),
            Self::Bool => "true or false".to_owned(),
            Self::Word(_) => format!("one of {} in quotes", self.range()),
            Self::Text => "a string".to_owned(),
            Self::Mode => "a mode in quotes, as \"0660\"".to_owned(),
            Self::Path => "a path in quotes".to_owned(),
            Self::Table => "a table".to_owned(),
        }
    }
}
