//! Schemas of what has no Rust type of its own: the keys of a device, from the config's table.

use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::config::device_schema;

/// The name under which [`device_keys`] is in the document.
#[derive(ToSchema)]
pub(super) struct DeviceKeys;

/// The name under which the config's kind of size is in the document.
#[derive(ToSchema)]
pub(super) struct Size;

/// Keys that only `null` and `ram` devices have, and those that only `loop` devices have.
const OF_SIZE: [&str; 1] = ["size"];
const OF_FILE: [&str; 2] = ["path", "direct"];

/// Keys that make a fleet.
const OF_FLEET: [&str; 2] = ["count", "start"];

/// The keys of a device that can be asked for, one schema a kind of target.
pub(super) fn device_keys(fleets: bool) -> Value {
    let variant = |title: &str, targets: &[&str], without: &[&str], required: &[&str]| {
        let mut schema = device_schema();
        schema["title"] = json!(title);
        schema["required"] = json!([&["name", "target"], required].concat());
        if let Some(keys) = schema["properties"].as_object_mut() {
            let other = |key: &&&str| !fleets && OF_FLEET.contains(*key) || without.contains(*key);
            let gone = OF_FLEET.iter().chain(&OF_SIZE).chain(&OF_FILE).filter(other);
            for key in gone {
                keys.remove(*key);
            }
            // Targets of an embedding host are not served here.
            keys.remove("options");
            keys["target"]["enum"] = json!(targets);
        }
        schema
    };
    json!({ "oneOf": [
        variant("A null or ram device", &["null", "ram"], &OF_FILE, &OF_SIZE),
        variant("A loop device", &["loop"], &OF_SIZE, &["path"]),
    ]})
}
