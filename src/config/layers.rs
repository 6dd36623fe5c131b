//! Layers of settings, merged by the `config` crate: files in order, then the environment, then
//! flags; what comes later wins, key by key.
//!
//! ```text
//!   file 1 ─ file 2 ─ … ─ UBLKD__SECTION__KEY ─ --set section.key=value ──> Settings
//! ```
//!
//! All sections but `[[device]]` are layered; `[[device]]` lists are concatenated.
//!
//! Invariants: a layer holds checked values only, so merging cannot fail on them; variables are
//! matched letter by letter and nothing with our prefix is passed over (fault F80).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use config::{Map, Source, Value, ValueKind};
use serde::Deserialize;

use super::kind::{Kind, Raw};
use super::problem::Problem;
use super::schema::{Key, Section};
use super::source::Place;
use super::suggest::{instead, nearest};
use super::{ApiConfig, LogConfig, MetricsConfig, SupervisorConfig, paths};

const NO_DEVICES: &str = "names no key: devices are set in files only, their defaults here too";

/// The checked settings of one source.
#[derive(Debug, Clone, Default)]
pub(super) struct Layer(BTreeMap<Section, Map<String, Value>>);

impl Layer {
    /// Sets a key; `origin` is where it comes from, for people.
    pub(super) fn set(&mut self, section: Section, key: &Key, value: ValueKind, origin: String) {
        let table = self.0.entry(section).or_default();
        table.insert(key.name.to_owned(), Value::new(Some(&origin), value));
    }

    /// Whether it says that devices come over the API, and does not merely leave it at that.
    pub(super) fn wants_api(&self) -> bool {
        let enabled = self.0.get(&Section::Api).and_then(|table| table.get("enabled"));
        enabled.is_some_and(|value| value.clone().into_bool().unwrap_or_default())
    }
}

impl Source for Layer {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, config::ConfigError> {
        let table = |(section, keys): (&Section, &Map<String, Value>)| {
            (section.name().to_owned(), Value::from(keys.clone()))
        };
        Ok(self.0.iter().map(table).collect())
    }
}

/// What all layers together say.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) supervisor: SupervisorConfig,
    pub(super) log: LogConfig,
    pub(super) metrics: MetricsConfig,
    pub(super) api: ApiConfig,
    /// `[defaults]`, each with its origin.
    pub(super) defaults: Map<String, Value>,
}

/// Merges the layers; later ones win.
///
/// # Errors
/// Only if a value passed its check and yet does not fit its field, which is a bug.
pub(super) fn merge(layers: Vec<Layer>) -> Result<Settings, config::ConfigError> {
    #[derive(Deserialize)]
    struct Typed {
        #[serde(default)]
        supervisor: SupervisorConfig,
        #[serde(default)]
        log: LogConfig,
        #[serde(default)]
        metrics: MetricsConfig,
        #[serde(default)]
        api: ApiConfig,
    }
    let builder =
        layers.into_iter().fold(config::Config::builder(), |b, layer| b.add_source(layer));
    let merged = builder.build()?;
    let defaults = match merged.get_table(Section::Defaults.name()) {
        Err(config::ConfigError::NotFound(_)) => Map::new(),
        defaults => defaults?,
    };
    let Typed { supervisor, log, metrics, api } = merged.try_deserialize()?;
    Ok(Settings { supervisor, log, metrics, api, defaults })
}

/// Checks a value of a layered section, and makes its paths absolute.
///
/// # Errors
/// What was found and what is allowed.
pub(super) fn settle(kind: Kind, raw: &Raw, base: Option<&Path>) -> Result<ValueKind, String> {
    match (kind.check(raw)?, kind) {
        (ValueKind::String(text), Kind::Path) => {
            let path = paths::resolve(base, &text)?;
            Ok(ValueKind::String(path.to_string_lossy().into_owned()))
        }
        (value, _) => Ok(value),
    }
}

/// The layer of the environment: `UBLKD__SUPERVISOR__WORKERS=8`.
pub(super) fn environment(
    variables: &[(OsString, OsString)],
    rank: usize,
    problems: &mut Vec<Problem>,
) -> Layer {
    let place = Place::whole("environment", rank);
    let known: BTreeMap<String, (Section, &Key)> =
        layered_keys().map(|(section, key)| (section.variable(key), (section, key))).collect();
    let mut layer = Layer::default();
    for (name, value) in variables {
        let name = name.to_string_lossy();
        let set = match (known.get(&*name), value.to_str()) {
            (Some((section, key)), Some(text)) => {
                let raw = Raw::from_text(key.kind, text);
                settle(key.kind, &raw, None).map(|v| layer.set(*section, key, v, name.to_string()))
            }
            (Some(_), None) => Err("is not UTF-8".to_owned()),
            (None, _) => unknown_variable(&name, known.keys().map(String::as_str)),
        };
        if let Err(message) = set {
            problems.push(Problem::new(&place, name, message));
        }
    }
    layer
}

/// Lets pass what is not ours; refuses what has our prefix, or would have but for an underscore.
fn unknown_variable<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let Some(rest) = name.strip_prefix("UBLKD_") else { return Ok(()) };
    let ours = |s: &Section| rest.starts_with(&format!("{}_", s.name().to_uppercase()));
    if !rest.starts_with('_') && !Section::ALL.iter().any(ours) {
        return Ok(());
    }
    Err(match nearest(name, known) {
        _ if rest.starts_with("_DEVICE") => NO_DEVICES.to_owned(),
        Some(near) => format!("names no key; did you mean {near}?"),
        None => "names no key: expected UBLKD__SECTION__KEY, as UBLKD__SUPERVISOR__WORKERS".into(),
    })
}

/// The layer of flags: `supervisor.workers` and a value as text.
pub(super) fn flags(flags: &[(String, String)], rank: usize, problems: &mut Vec<Problem>) -> Layer {
    let place = Place::whole("flags", rank);
    let mut layer = Layer::default();
    for (name, text) in flags {
        let dotted = |(section, key): (Section, &Key)| format!("{}.{}", section.name(), key.name);
        let set = match layered_keys().find(|known| dotted(*known) == *name) {
            Some((section, key)) => settle(key.kind, &Raw::from_text(key.kind, text), None)
                .map(|value| layer.set(section, key, value, format!("flag {name}"))),
            None if name.starts_with("device") => Err(NO_DEVICES.to_owned()),
            None => {
                let known: Vec<String> = layered_keys().map(dotted).collect();
                let known: Vec<&str> = known.iter().map(String::as_str).collect();
                Err(format!("names no key; {}", instead(name, &known)))
            }
        };
        if let Err(message) = set {
            problems.push(Problem::new(&place, name, message));
        }
    }
    layer
}

fn layered_keys() -> impl Iterator<Item = (Section, &'static Key)> {
    let layered = Section::ALL.into_iter().filter(|section| *section != Section::Device);
    layered.flat_map(|section| section.keys().map(move |key| (section, key)))
}
