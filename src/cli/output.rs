//! What a command of the client prints on stdout: lines for people, or one value for programs.
//!
//! | `-o` | |
//! |---|---|
//! | nothing | a table, or `device/vol-1 created` |
//! | `wide` | a table with every column |
//! | `json`, `yaml` | what the daemon has answered |
//! | `name` | `device/vol-1`, one a line |

use clap::ValueEnum;
use serde::Serialize;
use serde_json::Value;

use super::client::Failure;
use super::{render, say};
use crate::model::Error;

/// The forms of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// A table with every column.
    Wide,
    /// One JSON value.
    Json,
    /// The same as YAML.
    Yaml,
    /// Names only, one a line, as device/vol-1.
    Name,
}

/// The forms for programs of a result that has neither names nor columns to choose from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Form {
    /// One JSON value.
    Json,
    /// The same as YAML.
    Yaml,
}

impl Form {
    /// A value in this form.
    ///
    /// # Errors
    /// When the value cannot be told as JSON.
    pub(super) fn text<T: Serialize>(self, value: &T) -> Result<String, Error> {
        match self {
            Self::Json => render::json(value),
            Self::Yaml => render::value(value).map(|value| render::yaml(&value)),
        }
    }
}

/// A result, ready to be printed in each form.
pub(super) struct Shown<'a, N> {
    /// The value for programs.
    pub(super) value: &'a Value,
    /// What is named by `-o name`.
    pub(super) names: N,
    /// Text for people; true for all columns.
    pub(super) people: &'a dyn Fn(bool) -> String,
}

impl Output {
    /// Prints a result.
    ///
    /// # Errors
    /// When stdout cannot be written to.
    pub(super) fn show<N>(this: Option<Self>, shown: &Shown<'_, N>) -> Result<(), Failure>
    where
        N: Iterator<Item = String> + Clone,
    {
        let text = match this {
            None => (shown.people)(false),
            Some(Self::Wide) => (shown.people)(true),
            Some(Self::Json) => render::json(shown.value)?,
            Some(Self::Yaml) => render::yaml(shown.value),
            Some(Self::Name) => shown.names.clone().map(|name| name + "\n").collect(),
        };
        print(&text)
    }
}

/// Prints text that ends its own lines to stdout.
///
/// # Errors
/// When stdout cannot be written to; a reader that has gone is no error.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    heard(text).map(drop)
}

/// Prints as [`print`]; says whether anybody reads on.
pub(super) fn heard(text: &str) -> Result<bool, Failure> {
    Ok(say(text).map_err(|e| Error::from_io(&e, "the result was not written"))?)
}
