//! From entries to devices: defaults under each entry, keys that belong to its target, fleets.
//!
//! ```text
//!   [defaults] ─┐
//!   Entry ──────┴─> Keys ─ target ─ count × {n} ─> DeviceSpec …     (made, with its entry)
//! ```
//!
//! A default that does not belong to an entry's target is passed over; a key of the entry itself
//! is refused.
//!
//! Invariant: an entry makes all its devices or, with at least one problem, none.

use std::path::PathBuf;
use std::time::Duration;

use config::{Map, Value};
use serde::Deserialize;

use super::document::Entry;
use super::expand::Template;
use super::paths;
use super::problem::Problem;
use super::schema::MAX_DEVICES;
use super::suggest::nearest;
use crate::model::{
    BUSY_TIMEOUT, BlockSize, BusyPolicy, DataMode, DeviceId, DeviceName, DeviceSpec, FaultSpec,
    GroupName, Labels, QueueSpec, TargetSpec,
};

/// Targets that the crate brings.
const BUILT_IN: [&str; 3] = ["null", "ram", "loop"];

/// Keys that only some targets take, and which.
const OF_TARGETS: [(&str, &str); 4] = [
    ("size", "null and ram targets; others know their size"),
    ("path", "loop targets"),
    ("direct", "loop targets"),
    ("options", "custom targets"),
];

/// A device and the entry it comes from, by position.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) spec: DeviceSpec,
    pub(super) entry: usize,
}

/// The keys of one entry over the defaults, typed.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Keys {
    name: Option<String>,
    target: Option<String>,
    size: Option<u64>,
    path: Option<String>,
    direct: bool,
    count: Option<u64>,
    start: u64,
    id: Option<u32>,
    queues: Option<u16>,
    depth: Option<u16>,
    max_io: Option<u32>,
    logical_block: Option<u32>,
    physical_block: Option<u32>,
    read_only: bool,
    partitions: bool,
    data: DataMode,
    batch: bool,
    affinity: Option<bool>,
    group: Option<String>,
    busy: Option<BusyPolicy>,
    #[serde(deserialize_with = "super::units::duration::optional")]
    busy_timeout: Option<Duration>,
    recovery: bool,
    #[serde(deserialize_with = "super::units::duration::optional")]
    delay: Option<Duration>,
    error_at: Option<u64>,
    panic_at: Option<u64>,
}

/// Makes the devices of all entries. `custom` are the words of the host's own targets.
///
/// # Errors
/// Only if a value passed its check and yet does not fit its field, which is a bug.
pub(super) fn make(
    entries: &[Entry<'_>],
    defaults: &Map<String, Value>,
    custom: &[String],
    problems: &mut Vec<Problem>,
) -> Result<Vec<Made>, config::ConfigError> {
    let mut made = Vec::new();
    for (position, entry) in entries.iter().enumerate() {
        let mut keys = defaults.clone();
        let own = entry.values.iter().filter(|(key, _)| !entry.tables.contains_key(*key));
        keys.extend(
            own.map(|(key, (value, _))| ((*key).to_owned(), Value::new(None, value.clone()))),
        );
        let keys = Keys::deserialize(Value::from(keys))?;
        let maker = Maker { entry, keys: &keys, defaults, custom };
        let room = MAX_DEVICES - made.len() as u64;
        match maker.specs(room) {
            // A key that is wrong was replaced by its default: good for checking the others only.
            Ok(_) if !entry.bad.is_empty() => {}
            Ok(specs) => made.extend(specs.into_iter().map(|spec| Made { spec, entry: position })),
            Err(found) => problems.extend(found),
        }
    }
    Ok(made)
}

struct Maker<'a> {
    entry: &'a Entry<'a>,
    keys: &'a Keys,
    defaults: &'a Map<String, Value>,
    custom: &'a [String],
}

impl Maker<'_> {
    /// A problem of a key; says so when the value is a default.
    fn problem(&self, key: &str, message: impl Into<String>) -> Problem {
        let mut message = message.into();
        if let (false, Some(value)) = (self.entry.has(key), self.defaults.get(key)) {
            let origin = value.origin().unwrap_or_default();
            message.push_str(&format!(" (the default of {origin})"));
        }
        self.entry.problem(key, message)
    }

    /// A problem of a key that is not there; one that is there and wrong has been told already.
    fn missing(&self, key: &str, expected: &str) -> Option<Problem> {
        let told = self.entry.bad.contains(key);
        (!told).then(|| self.problem(key, format!("is missing: expected {expected}")))
    }

    /// Makes at most `room` devices.
    fn specs(&self, room: u64) -> Result<Vec<DeviceSpec>, Vec<Problem>> {
        let mut problems = Vec::new();
        let name = self.name(&mut problems);
        let target = self.target(&mut problems);
        let path = self.path(&mut problems);
        let group = self.keys.group.as_deref().map(|g| self.template("group", g, &mut problems));
        let labels = self.labels(&mut problems);
        let mut count = self.keys.count.unwrap_or(1);
        if count > room {
            let message = format!("{count} more devices are too many: {MAX_DEVICES} in all");
            problems.push(self.problem("count", message));
        }
        // Where something is wrong already, the first device shows what else is.
        if !problems.is_empty() {
            count = 1;
        }
        let mut specs = Vec::new();
        for i in 0..count {
            match self.spec(i, &target, &name, path.as_ref(), group.as_ref(), &labels) {
                Ok(spec) => specs.push(spec),
                Err(found) => {
                    problems.extend(found);
                    break;
                }
            }
        }
        if problems.is_empty() { Ok(specs) } else { Err(problems) }
    }

    /// The target, a loop still without its path. A stand-in after a problem, so that the rest
    /// of the entry is checked too.
    fn target(&self, problems: &mut Vec<Problem>) -> TargetSpec {
        const STAND_IN: u64 = 1 << 20;
        let words = || BUILT_IN.into_iter().chain(self.custom.iter().map(String::as_str));
        let expected = || words().collect::<Vec<_>>().join(", ");
        let mut takes: &[&str] = &["size"];
        let mut target = TargetSpec::Null { size: self.keys.size.unwrap_or(STAND_IN) };
        let Some(word) = self.keys.target.as_deref() else {
            problems.extend(self.missing("target", &format!("one of {}", expected())));
            return target;
        };
        match word {
            "null" => {}
            "ram" => target = TargetSpec::Ram { size: self.keys.size.unwrap_or(STAND_IN) },
            "loop" => {
                takes = &["path", "direct"];
                target = TargetSpec::Loop { path: PathBuf::from("/"), direct: self.keys.direct };
            }
            custom if self.custom.iter().any(|c| c == custom) => {
                takes = &["options"];
                let options = self.entry.tables.get("options").cloned().unwrap_or_default();
                target = TargetSpec::Custom { name: custom.to_owned(), options };
            }
            other => {
                let hint = nearest(other, words()).map(|w| format!("; did you mean {w}?"));
                let message = format!("{other:?} is no target: expected one of {}", expected());
                problems.push(self.problem("target", message + &hint.unwrap_or_default()));
                return target;
            }
        }
        for (key, whose) in OF_TARGETS {
            if self.entry.has(key) && !takes.contains(&key) {
                let message = format!("does not belong to a {word} target: it is for {whose}");
                problems.push(self.problem(key, message));
            }
        }
        if takes.contains(&"size") && self.keys.size.is_none() {
            problems.extend(self.missing("size", "how large it shall be, as \"64M\""));
        }
        if takes.contains(&"path") && self.keys.path.is_none() {
            problems.extend(self.missing("path", "the path of a file or block device"));
        }
        target
    }

    fn name(&self, problems: &mut Vec<Problem>) -> Template<'_> {
        let Some(text) = self.keys.name.as_deref() else {
            problems.extend(self.missing("name", "the host's name for the device"));
            return Template::stand_in();
        };
        let template = self.template("name", text, problems);
        if let (Some(count), false) = (self.keys.count, template.has_number()) {
            let message = format!("{text:?} would name all {count} devices: put {{n}} in it");
            problems.push(self.problem("name", message));
        }
        if self.keys.count.is_none() && self.entry.has("start") && !self.entry.has("count") {
            problems.push(self.problem("start", "is for fleets: it needs count"));
        }
        template
    }

    fn path(&self, problems: &mut Vec<Problem>) -> Option<Template<'_>> {
        let text = self.keys.path.as_deref()?;
        let template = self.template("path", text, problems);
        if let (Some(count @ 2..), false, false) =
            (self.keys.count, template.has_number(), self.keys.read_only)
        {
            let message = format!(
                "all {count} devices would write to {text:?}: put {{n}} in it, or set read_only"
            );
            problems.push(self.problem("path", message));
        }
        Some(template)
    }

    /// The labels, whose values are texts.
    fn labels(&self, problems: &mut Vec<Problem>) -> Labels {
        let table = self.entry.tables.get("labels").into_iter().flatten();
        let mut labels = Labels::new();
        for (key, value) in table {
            match value.as_str() {
                Some(text) => drop(labels.insert(key.clone(), text.to_owned())),
                None => {
                    let message = format!("the value of {key} is no string: {value}");
                    problems.push(self.problem("labels", message));
                }
            }
        }
        labels
    }

    /// The text as a template of a fleet; without `count` braces mean nothing, except that one
    /// which looks like a number was surely meant as one.
    fn template<'t>(&self, key: &str, text: &'t str, problems: &mut Vec<Problem>) -> Template<'t> {
        let message = match (Template::parse(text), self.entry.has("count")) {
            (Ok(template), true) => return template,
            (Err(message), true) => message,
            (Ok(template), false) if template.has_number() => {
                format!("{text:?} holds a number, as for a fleet: it needs count")
            }
            (_, false) => return Template::literal(text),
        };
        problems.push(self.problem(key, message));
        Template::stand_in()
    }

    /// The `i`-th device of the entry.
    fn spec(
        &self,
        i: u64,
        target: &TargetSpec,
        name: &Template<'_>,
        path: Option<&Template<'_>>,
        group: Option<&Template<'_>>,
        labels: &Labels,
    ) -> Result<DeviceSpec, Vec<Problem>> {
        let keys = self.keys;
        let number = keys.start + i;
        let name = DeviceName::new(name.fill(number))
            .map_err(|error| vec![self.problem("name", error.to_string())])?;
        let mut target = target.clone();
        if let (TargetSpec::Loop { path, .. }, Some(template)) = (&mut target, path) {
            *path = paths::resolve(self.entry.base(), &template.fill(number))
                .map_err(|message| vec![self.problem("path", message)])?;
        }
        let standard = QueueSpec::default();
        let mut spec = DeviceSpec::builder(name, target)
            .queues(QueueSpec {
                count: keys.queues.unwrap_or(standard.count),
                depth: keys.depth.unwrap_or(standard.depth),
                max_io: keys.max_io.unwrap_or(standard.max_io),
            })
            .block(BlockSize { logical: keys.logical_block, physical: keys.physical_block })
            .read_only(keys.read_only)
            .partitions(keys.partitions)
            .data(keys.data)
            .batch(keys.batch)
            .affinity(keys.affinity.unwrap_or(true))
            .labels(labels.clone())
            .busy(keys.busy.unwrap_or_default())
            .busy_timeout(keys.busy_timeout.unwrap_or(BUSY_TIMEOUT))
            .recovery(keys.recovery)
            .origin(self.entry.wanted_by())
            .faults(FaultSpec {
                delay: keys.delay,
                error_at: keys.error_at,
                panic_at: keys.panic_at,
            });
        if let Some(group) = group {
            let group = GroupName::new(group.fill(number))
                .map_err(|error| vec![self.problem("group", error.to_string())])?;
            spec = spec.group(group);
        }
        if let Some(id) = keys.id {
            // The sum fits: an id has 20 bits, a fleet 65,536 devices.
            spec = spec.id(DeviceId(id + i as u32));
        }
        spec.try_build()
            .map_err(|found| found.iter().map(|p| self.problem(p.key, &p.message)).collect())
    }
}
