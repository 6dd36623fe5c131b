//! Configuration: files, the environment and flags in; settings and device specs out, or every
//! problem of every source at once.
//!
//! ```text
//!   files, fragments ─ source ─ document ─┬─ Layer ────┐
//!   UBLKD__… ─────────────────────────────┼─ Layer ────┼─ layers ──> SupervisorConfig, LogConfig, …
//!   flags ────────────────────────────────┼─ Layer ────┘     │ [defaults]
//!                                         └─ Entry … ─ device ─ conflict ──> ConfiguredDevice …
//! ```
//!
//! `docs/configuration.md` has every key and the rules.
//!
//! Invariants: nothing here starts, opens for writing, or reads the process's environment (it is
//! handed in); no two devices of a [`Config`] conflict; every problem has a
//! place and says what is allowed.

mod conflict;
mod device;
mod document;
mod expand;
mod json_schema;
mod kind;
mod layers;
mod options;
mod paths;
mod problem;
mod request;
mod resolved;
mod schema;
mod settings;
mod source;
mod suggest;
#[cfg(test)]
mod tests;
mod units;

pub use json_schema::{config_schema, device_schema};
pub use problem::{ConfigError, Problem};
pub use request::devices_of_request;
pub use schema::reference_markdown;
pub use settings::{
    ApiConfig, LogConfig, LogFormat, LogLevel, MetricsConfig, OnFailure, SupervisorConfig,
};
pub use source::MAX_BYTES;
pub use units::{parse_duration, parse_size, size_text};

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use crate::model::DeviceSpec;
use layers::Settings;
use source::Place;

/// A config, checked as a whole.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `[supervisor]`.
    pub supervisor: SupervisorConfig,
    /// `[log]`.
    pub log: LogConfig,
    /// `[metrics]`.
    pub metrics: MetricsConfig,
    /// `[api]`.
    pub api: ApiConfig,
    /// All devices, fleets expanded, in the order of the files.
    pub devices: Vec<ConfiguredDevice>,
}

const NO_CONFIG: &str = "no config was given: expected a file called *.toml or a directory of them";
const NO_DEVICE: &str = "no device is configured: expected at least one [[device]], or under [api] \
                         enabled = true if all come over the API";

/// A device and where it was configured.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfiguredDevice {
    /// The device as it shall be.
    pub spec: DeviceSpec,
    /// The entry that it comes from.
    pub origin: Origin,
}

/// A place in a config file. `Display` gives `file:line:column`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// The file as it was named.
    pub file: PathBuf,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file.display(), self.line, self.column)
    }
}

/// Where a config comes from. Later sources win over earlier ones.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    paths: Vec<PathBuf>,
    environment: Vec<(OsString, OsString)>,
    flags: Vec<(String, String)>,
    targets: Vec<String>,
}

impl Sources {
    /// No source yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file, or a directory whose `*.toml` files are taken in the order of their names.
    #[must_use]
    pub fn path(mut self, path: impl Into<PathBuf>) -> Self {
        self.paths.push(path.into());
        self
    }

    /// Adds the variables of an environment; those with the prefix `UBLKD__` count.
    #[must_use]
    pub fn environment(
        mut self,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Self {
        self.environment.extend(variables);
        self.environment.sort();
        self
    }

    /// Sets one key, named as `supervisor.workers`, over everything else.
    #[must_use]
    pub fn flag(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.flags.push((key.into(), value.into()));
        self
    }

    /// Allows devices of a target that the host brings.
    #[must_use]
    pub fn target(mut self, name: impl Into<String>) -> Self {
        self.targets.push(name.into());
        self
    }

    /// Reads all sources and checks everything.
    ///
    /// # Errors
    /// Every problem of every source.
    pub fn load(&self) -> Result<Config, ConfigError> {
        let mut problems = Vec::new();
        let files = source::read_all(&self.paths, &mut problems);
        let (mut layers, mut entries) = (Vec::new(), Vec::new());
        for file in &files {
            let (layer, found) = document::parse(file, &mut problems);
            layers.push(layer);
            entries.extend(found);
        }
        let last = files.last().map_or(0, |file| file.rank);
        layers.push(layers::environment(&self.environment, last + 1, &mut problems));
        layers.push(layers::flags(&self.flags, last + 2, &mut problems));
        if entries.is_empty() && problems.is_empty() {
            let message = match files.is_empty() {
                true => Some(NO_CONFIG),
                // A file that lost its devices by accident must not take them all down in a reload.
                false => (!layers.iter().any(layers::Layer::wants_api)).then_some(NO_DEVICE),
            };
            problems.extend(message.map(|text| Problem::new(&Place::nowhere(), "", text)));
        }

        let typed = layers::merge(layers).and_then(|settings| {
            let made = device::make(&entries, &settings.defaults, &self.targets, &mut problems)?;
            Ok((settings, made))
        });
        let (settings, made) = typed.map_err(|error| {
            problems.push(Problem::new(&Place::nowhere(), "", format!("internal: {error}")));
            ConfigError::new(std::mem::take(&mut problems))
        })?;
        conflict::check(&made, &entries, &mut problems);
        if !problems.is_empty() {
            return Err(ConfigError::new(problems));
        }

        let origin = |entry: &document::Entry<'_>| entry.origin().unwrap_or_default();
        let origins: Vec<Origin> = entries.iter().map(origin).collect();
        let configured = |made: device::Made| ConfiguredDevice {
            origin: origins[made.entry].clone(),
            spec: made.spec,
        };
        let devices = made.into_iter().map(configured).collect();
        let Settings { supervisor, log, metrics, api, .. } = settings;
        Ok(Config { supervisor, log, metrics, api, devices })
    }
}
