//! Devices of a request: JSON objects with the keys of `[[device]]`, checked as a config's are.
//!
//! A request has no directory that relative paths could start from, and no `[defaults]`: what it
//! makes depends on nothing but itself.

use config::Map;
use serde_json::Value;

use super::document::{Entry, Field, Given};
use super::kind::Raw;
use super::problem::{ConfigError, Problem};
use super::source::Place;
use super::{conflict, device};
use crate::model::DeviceSpec;

/// The devices that JSON objects say, each with the keys of `[[device]]`, fleets expanded. Problems
/// call the `n`-th object `devices[n]`, or nothing when there is `one`.
///
/// # Errors
/// Every problem of every object.
pub fn devices_of_request(objects: &[Value], one: bool) -> Result<Vec<DeviceSpec>, ConfigError> {
    let mut problems = Vec::new();
    let mut entries = Vec::new();
    for (index, object) in objects.iter().enumerate() {
        let prefix = if one { String::new() } else { format!("devices[{index}].") };
        let Value::Object(keys) = object else {
            let found = raw(object);
            let message = format!("expected an object with the keys of a device, found {found}");
            let key = prefix.trim_end_matches('.');
            problems.push(Problem::new(&Place::nowhere(), key, message));
            continue;
        };
        let fields = keys.iter().map(|(name, value)| Field {
            name,
            name_span: 0..0,
            value: match value {
                Value::Object(table) => Given::Table(table.clone().into_iter().collect()),
                value => Given::Plain(raw(value)),
            },
            span: 0..0,
        });
        entries.push(Entry::read(None, prefix, 0..0, fields, &mut problems));
    }
    let made = device::make(&entries, &Map::new(), &[], &mut problems).unwrap_or_else(|error| {
        problems.push(Problem::new(&Place::nowhere(), "", format!("internal: {error}")));
        Vec::new()
    });
    conflict::check(&made, &entries, &mut problems);
    if problems.is_empty() {
        Ok(made.into_iter().map(|made| made.spec).collect())
    } else {
        Err(ConfigError::new(problems))
    }
}

fn raw(value: &Value) -> Raw {
    match value {
        Value::String(text) => Raw::Text(text.clone()),
        Value::Bool(value) => Raw::Bool(*value),
        Value::Number(number) => match number.as_i128() {
            Some(number) => Raw::Integer(number),
            None => Raw::Other("a number with a fraction, or one that is too large"),
        },
        Value::Null => Raw::Other("null"),
        Value::Array(_) => Raw::Other("an array"),
        Value::Object(_) => Raw::Other("an object"),
    }
}
