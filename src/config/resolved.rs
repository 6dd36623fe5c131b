//! A resolved config as TOML, and as JSON by serde, in the words of the config itself.
//!
//! Invariant: what [`Config::to_toml`] writes loads again as an equal config (but for origins).

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::units::duration;
use super::{ApiConfig, Config, ConfiguredDevice, LogConfig, MetricsConfig, SupervisorConfig};
use crate::model::{Error, ErrorKind, TargetSpec};

impl Config {
    /// The config as TOML that loads as the same config: fleets expanded, defaults filled in,
    /// paths absolute, sizes in bytes.
    ///
    /// # Errors
    /// Kind [`ErrorKind::Internal`] for what TOML cannot hold: an embedder's spec with a path that
    /// is not UTF-8, or with a null among the options of a custom target.
    pub fn to_toml(&self) -> Result<String, Error> {
        #[derive(Serialize)]
        struct Document<'a> {
            supervisor: &'a SupervisorConfig,
            log: &'a LogConfig,
            metrics: &'a MetricsConfig,
            api: &'a ApiConfig,
            device: Vec<Entry<'a>>,
        }
        let device = self.devices.iter().map(|device| Entry { device, origin: false }).collect();
        let Self { supervisor, log, metrics, api, .. } = self;
        let document = Document { supervisor, log, metrics, api, device };
        toml::to_string(&document).map_err(|error| {
            Error::new(ErrorKind::Internal, format!("cannot write the config: {error}"))
        })
    }
}

impl Serialize for Config {
    /// `supervisor`, `log`, `metrics`, `api` and `devices`, each device with its `origin`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let entry = |device| Entry { device, origin: true };
        let mut map = serializer.serialize_map(Some(5))?;
        map.serialize_entry("supervisor", &self.supervisor)?;
        map.serialize_entry("log", &self.log)?;
        map.serialize_entry("metrics", &self.metrics)?;
        map.serialize_entry("api", &self.api)?;
        map.serialize_entry("devices", &self.devices.iter().map(entry).collect::<Vec<_>>())?;
        map.end()
    }
}

/// A device with the keys of `[[device]]`.
struct Entry<'a> {
    device: &'a ConfiguredDevice,
    origin: bool,
}

impl Serialize for Entry<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let spec = &self.device.spec;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("name", spec.name())?;
        map.serialize_entry("target", spec.target().kind())?;
        match spec.target() {
            TargetSpec::Null { size } | TargetSpec::Ram { size } => {
                map.serialize_entry("size", size)?;
            }
            TargetSpec::Loop { path, direct } => {
                map.serialize_entry("path", path)?;
                map.serialize_entry("direct", direct)?;
            }
            TargetSpec::Custom { options, .. } => map.serialize_entry("options", options)?,
        }
        if let Some(id) = spec.id() {
            map.serialize_entry("id", &id)?;
        }
        map.serialize_entry("queues", &spec.queues().count)?;
        map.serialize_entry("depth", &spec.queues().depth)?;
        map.serialize_entry("max_io", &spec.queues().max_io)?;
        if let Some(logical) = spec.block().logical {
            map.serialize_entry("logical_block", &logical)?;
        }
        if let Some(physical) = spec.block().physical {
            map.serialize_entry("physical_block", &physical)?;
        }
        map.serialize_entry("read_only", &spec.read_only())?;
        map.serialize_entry("partitions", &spec.partitions())?;
        map.serialize_entry("data", &spec.data())?;
        map.serialize_entry("batch", &spec.batch())?;
        map.serialize_entry("affinity", &spec.affinity())?;
        if let Some(group) = spec.group() {
            map.serialize_entry("group", group)?;
        }
        if !spec.labels().is_empty() {
            map.serialize_entry("labels", spec.labels())?;
        }
        map.serialize_entry("busy", &spec.busy())?;
        map.serialize_entry("busy_timeout", &duration::text(spec.busy_timeout()))?;
        map.serialize_entry("recovery", &spec.recovery())?;
        let faults = spec.faults();
        if let Some(delay) = faults.delay {
            map.serialize_entry("delay", &duration::text(delay))?;
        }
        if let Some(sector) = faults.error_at {
            map.serialize_entry("error_at", &sector)?;
        }
        if let Some(sector) = faults.panic_at {
            map.serialize_entry("panic_at", &sector)?;
        }
        if self.origin {
            map.serialize_entry("origin", &self.device.origin.to_string())?;
        }
        map.end()
    }
}
