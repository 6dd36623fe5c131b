//! One file, parsed alone: its settings as a layer, its devices as entries.
//!
//! ```text
//!   SourceFile ─ toml ─┬─ [supervisor] [log] [api] [defaults] ──> Layer
//!                      └─ [[device]] … ─────────────────────────> Entry …
//! ```
//!
//! Invariants: a file with a syntax error gives its syntax errors and nothing else; every other
//! problem of a file is found in one go; each value keeps its place in the text.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use config::ValueKind;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Origin;
use super::kind::{Kind, Raw};
use super::layers::{Layer, settle};
use super::options::options;
use super::problem::Problem;
use super::schema::Section;
use super::source::{Place, SourceFile};
use super::suggest::{instead, nearest};
use crate::model;

/// A device as a file or a request has it: types and ranges of its own keys are checked.
#[derive(Debug)]
pub(super) struct Entry<'f> {
    /// The file that it is in; a request has none.
    file: Option<&'f SourceFile>,
    /// What its keys are called: `device[3].` and the key, or the key alone.
    prefix: String,
    /// The header, or the whole inline table.
    span: Range<usize>,
    pub(super) values: BTreeMap<&'static str, (ValueKind, Range<usize>)>,
    /// Keys that are there, but wrong.
    pub(super) bad: BTreeSet<&'static str>,
    /// Its tables that are not looked into, by key.
    pub(super) tables: BTreeMap<&'static str, BTreeMap<String, serde_json::Value>>,
}

/// A key of a device as it is written.
pub(super) struct Field<'a> {
    pub(super) name: &'a str,
    pub(super) name_span: Range<usize>,
    pub(super) value: Given,
    pub(super) span: Range<usize>,
}

/// A value of a device as it is written.
pub(super) enum Given {
    Plain(Raw),
    Table(BTreeMap<String, serde_json::Value>),
}

impl<'f> Entry<'f> {
    /// Checks each field by itself. What is wrong goes to `problems`.
    pub(super) fn read<'a>(
        file: Option<&'f SourceFile>,
        prefix: String,
        span: Range<usize>,
        fields: impl Iterator<Item = Field<'a>>,
        problems: &mut Vec<Problem>,
    ) -> Self {
        let (values, bad, tables) = Default::default();
        let mut entry = Self { file, prefix, span, values, bad, tables };
        // Problems are told with the name, and the name may come last.
        let mut wrong: Vec<(&str, Range<usize>, String)> = Vec::new();
        for Field { name, name_span, value, span } in fields {
            match (Section::Device.key(name), value) {
                (None, _) => wrong.push((name, name_span, unknown_key(Section::Device, name))),
                (Some(key), Given::Table(table)) if matches!(key.kind, Kind::Table) => {
                    entry.tables.insert(key.name, table);
                    entry.values.insert(key.name, (ValueKind::Nil, span));
                }
                (Some(key), value) => {
                    let raw = match value {
                        Given::Plain(raw) => raw,
                        Given::Table(_) => Raw::Other("a table"),
                    };
                    match key.kind.check(&raw) {
                        Ok(value) => {
                            entry.values.insert(key.name, (value, span));
                        }
                        Err(message) => {
                            entry.bad.insert(key.name);
                            wrong.push((key.name, span, message));
                        }
                    }
                }
            }
        }
        problems.extend(wrong.into_iter().map(|(key, span, message)| {
            entry.problem_at(key, &span, message).of_device(entry.name())
        }));
        entry
    }

    /// The name as it is written, with its `{n}`.
    pub(super) fn name(&self) -> Option<&str> {
        match self.values.get("name") {
            Some((ValueKind::String(name), _)) => Some(name),
            _ => None,
        }
    }

    /// Where the entry starts, if it is in a file.
    pub(super) fn origin(&self) -> Option<Origin> {
        let file = self.file?;
        let (line, column) = file.position(self.span.start);
        Some(Origin { file: file.path.clone(), line, column })
    }

    /// Where the entry is, for people.
    pub(super) fn place(&self) -> String {
        self.origin()
            .map_or_else(|| self.prefix.trim_end_matches('.').to_owned(), |at| at.to_string())
    }

    /// Who wants it.
    pub(super) fn wanted_by(&self) -> model::Origin {
        self.file.map_or(model::Origin::Api, |_| model::Origin::Config)
    }

    /// The directory that relative paths in it start from.
    pub(super) fn base(&self) -> Option<&Path> {
        self.file.map(|file| file.base.as_path())
    }

    /// Whether the entry itself has the key, right or wrong.
    pub(super) fn has(&self, key: &str) -> bool {
        self.values.contains_key(key) || self.bad.contains(key)
    }

    /// A problem of a key: at its value, or at the header when the entry has no such key.
    pub(super) fn problem(&self, key: &str, message: impl Into<String>) -> Problem {
        let span = self.values.get(key).map_or(&self.span, |(_, span)| span);
        self.problem_at(key, span, message).of_device(self.name())
    }

    fn problem_at(&self, key: &str, span: &Range<usize>, message: impl Into<String>) -> Problem {
        let place = self.file.map_or_else(Place::nowhere, |file| file.place(span));
        Problem::new(&place, format!("{}{key}", self.prefix), message)
    }
}

/// Parses one file. Everything that is wrong with it goes to `problems`.
pub(super) fn parse<'f>(
    file: &'f SourceFile,
    problems: &mut Vec<Problem>,
) -> (Layer, Vec<Entry<'f>>) {
    let (root, errors) = DeTable::parse_recoverable(&file.text);
    if !errors.is_empty() {
        problems.extend(errors.iter().map(|error| {
            let place = error.span().map_or_else(|| file.whole(), |span| file.place(&span));
            Problem::new(&place, "", error.message())
        }));
        return Default::default();
    }
    let mut reader = Reader { file, problems, layer: Layer::default(), entries: Vec::new() };
    for (name, value) in root.get_ref() {
        reader.section(name, value);
    }
    (reader.layer, reader.entries)
}

struct Reader<'f, 'p> {
    file: &'f SourceFile,
    problems: &'p mut Vec<Problem>,
    layer: Layer,
    entries: Vec<Entry<'f>>,
}

impl<'f> Reader<'f, '_> {
    fn refuse(&mut self, span: &Range<usize>, key: &str, message: String) {
        self.problems.push(Problem::new(&self.file.place(span), key, message));
    }

    fn section(&mut self, name: &Spanned<Cow<'_, str>>, value: &Spanned<DeValue<'_>>) {
        let section = Section::ALL.into_iter().find(|s| s.name() == name.get_ref());
        match (section, value.get_ref()) {
            (Some(Section::Device), DeValue::Array(entries)) => {
                for (index, entry) in entries.iter().enumerate() {
                    self.device(index, entry);
                }
            }
            (Some(Section::Device), other) => {
                let message = format!("expected [[device]], found {}", type_of(other));
                self.refuse(&value.span(), "device", message);
            }
            (Some(section), DeValue::Table(table)) => self.settings(section, table),
            (Some(section), other) => {
                let name = section.name();
                let message = format!("expected a table [{name}], found {}", type_of(other));
                self.refuse(&value.span(), name, message);
            }
            (None, _) => self.refuse(&name.span(), name.get_ref(), unknown_at_top(name.get_ref())),
        }
    }

    fn settings(&mut self, section: Section, table: &DeTable<'_>) {
        for (name, value) in table {
            let path = format!("{}.{}", section.name(), name.get_ref());
            match section.key(name.get_ref()) {
                None => self.refuse(&name.span(), &path, unknown_key(section, name.get_ref())),
                Some(key) => {
                    let span = value.span();
                    match settle(key.kind, &raw(value.get_ref()), Some(&self.file.base)) {
                        Ok(value) => {
                            let (line, column) = self.file.position(span.start);
                            let origin = format!("{}:{line}:{column}", self.file.path.display());
                            self.layer.set(section, key, value, origin);
                        }
                        Err(message) => self.refuse(&span, &path, message),
                    }
                }
            }
        }
    }

    fn device(&mut self, index: usize, value: &Spanned<DeValue<'_>>) {
        let DeValue::Table(table) = value.get_ref() else {
            let message = format!("expected a table, found {}", type_of(value.get_ref()));
            return self.refuse(&value.span(), &format!("device[{index}]"), message);
        };
        let fields = table.iter().map(|(name, value)| Field {
            name: name.get_ref(),
            name_span: name.span(),
            value: match value.get_ref() {
                DeValue::Table(table) => Given::Table(options(table)),
                value => Given::Plain(raw(value)),
            },
            span: value.span(),
        });
        let prefix = format!("device[{index}].");
        let entry = Entry::read(Some(self.file), prefix, value.span(), fields, self.problems);
        self.entries.push(entry);
    }
}

fn unknown_at_top(name: &str) -> String {
    let sections = ["[supervisor]", "[log]", "[api]", "[defaults]", "[[device]]"];
    let holder = Section::ALL.into_iter().find(|section| section.key(name).is_some());
    match (nearest(name, Section::ALL.map(Section::name)), holder) {
        (Some("device"), _) => "unknown section; did you mean [[device]]?".to_owned(),
        (Some(section), _) => format!("unknown section; did you mean [{section}]?"),
        (None, Some(section)) => {
            format!("belongs in a section; did you mean {}.{name}?", section.name())
        }
        (None, None) => format!("unknown section; expected {}", sections.join(", ")),
    }
}

fn unknown_key(section: Section, name: &str) -> String {
    let known: Vec<&str> = section.keys().map(|key| key.name).collect();
    match section {
        Section::Defaults if Section::Device.key(name).is_some() => {
            "tells one device from another: it belongs in [[device]], not in [defaults]".to_owned()
        }
        _ => format!("unknown key; {}", instead(name, &known)),
    }
}

fn raw(value: &DeValue<'_>) -> Raw {
    match value {
        DeValue::String(text) => Raw::Text(text.to_string()),
        DeValue::Boolean(value) => Raw::Bool(*value),
        DeValue::Integer(number) => i128::from_str_radix(number.as_str(), number.radix())
            .map_or(Raw::Other("an integer that is too large"), Raw::Integer),
        other => Raw::Other(type_of(other)),
    }
}

fn type_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}
