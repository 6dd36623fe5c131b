//! One file, parsed alone: its settings as a layer, its devices as entries.
//!
//! ```text
//!   SourceFile ─ toml ─┬─ [supervisor] [log] [defaults] ──> Layer
//!                      └─ [[device]] … ───────────────────> Entry …
//! ```
//!
//! Invariants: a file with a syntax error gives its syntax errors and nothing else; every other
//! problem of a file is found in one go; each value keeps its place in the text.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use config::ValueKind;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Origin;
use super::kind::{Kind, Raw};
use super::layers::{Layer, settle};
use super::options::options;
use super::problem::Problem;
use super::schema::Section;
use super::source::SourceFile;
use super::suggest::{instead, nearest};

/// A `[[device]]` as its file has it: types and ranges of its own keys are checked.
#[derive(Debug)]
pub(super) struct Entry<'f> {
    pub(super) file: &'f SourceFile,
    /// Which `[[device]]` of the file, from 0.
    pub(super) index: usize,
    /// The header, or the whole inline table.
    pub(super) span: Range<usize>,
    pub(super) values: BTreeMap<&'static str, (ValueKind, Range<usize>)>,
    /// Keys that are there, but wrong.
    pub(super) bad: BTreeSet<&'static str>,
    /// Its tables that are not looked into, by key.
    pub(super) tables: BTreeMap<&'static str, BTreeMap<String, serde_json::Value>>,
}

impl Entry<'_> {
    /// The name as it is written, with its `{n}`.
    pub(super) fn name(&self) -> Option<&str> {
        match self.values.get("name") {
            Some((ValueKind::String(name), _)) => Some(name),
            _ => None,
        }
    }

    /// Where the entry starts.
    pub(super) fn origin(&self) -> Origin {
        let (line, column) = self.file.position(self.span.start);
        Origin { file: self.file.path.clone(), line, column }
    }

    /// Whether the entry itself has the key, right or wrong.
    pub(super) fn has(&self, key: &str) -> bool {
        self.values.contains_key(key) || self.bad.contains(key)
    }

    /// A problem of a key: at its value, or at the header when the entry has no such key.
    pub(super) fn problem(&self, key: &str, message: impl Into<String>) -> Problem {
        let span = self.values.get(key).map_or(&self.span, |(_, span)| span);
        Problem::new(&self.file.place(span), format!("device[{}].{key}", self.index), message)
            .of_device(self.name())
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
        let mut entry = Entry {
            file: self.file,
            index,
            span: value.span(),
            values: BTreeMap::new(),
            bad: BTreeSet::new(),
            tables: BTreeMap::new(),
        };
        // Problems are told with the name, and the name may come last.
        let mut wrong: Vec<(&str, Range<usize>, String)> = Vec::new();
        for (name, value) in table {
            let span = value.span();
            match (Section::Device.key(name.get_ref()), value.get_ref()) {
                (None, _) => {
                    let message = unknown_key(Section::Device, name.get_ref());
                    wrong.push((name.get_ref(), name.span(), message));
                }
                (Some(key), DeValue::Table(table)) if matches!(key.kind, Kind::Table) => {
                    entry.tables.insert(key.name, options(table));
                    entry.values.insert(key.name, (ValueKind::Nil, span));
                }
                (Some(key), value) => match key.kind.check(&raw(value)) {
                    Ok(value) => {
                        entry.values.insert(key.name, (value, span));
                    }
                    Err(message) => {
                        entry.bad.insert(key.name);
                        wrong.push((key.name, span, message));
                    }
                },
            }
        }
        self.problems.extend(wrong.into_iter().map(|(key, span, message)| {
            Problem::new(&self.file.place(&span), format!("device[{index}].{key}"), message)
                .of_device(entry.name())
        }));
        self.entries.push(entry);
    }
}

fn unknown_at_top(name: &str) -> String {
    let sections = ["[supervisor]", "[log]", "[defaults]", "[[device]]"];
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
