//! The keys of a device as a JSON Schema, for those who send them.

use serde_json::{Map, Value, json};

use super::kind::Kind;
use super::schema::Section;

/// The schema of an object with the keys of `[[device]]`. What only the values together can be
/// (a size in whole blocks) is not in it.
#[must_use]
pub fn device_schema() -> Value {
    let keys = Section::Device.keys().map(|key| {
        let mut schema = of_kind(key.kind);
        schema["description"] = json!(key.meaning);
        (key.name.to_owned(), schema)
    });
    let mut keys: Map<String, Value> = keys.collect();
    for name in ["name", "group"] {
        // With a place for the number of a fleet.
        keys[name]["pattern"] = json!(r"^[A-Za-z0-9_{][A-Za-z0-9._{}-]*$");
        keys[name]["maxLength"] = json!(64);
    }
    keys["labels"]["additionalProperties"] = json!({ "type": "string", "maxLength": 256 });
    json!({ "type": "object", "properties": keys, "additionalProperties": false })
}

fn of_kind(kind: Kind) -> Value {
    match kind {
        Kind::Integer(min, max) => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Kind::Workers(min, max) => json!({ "oneOf": [
            { "type": "integer", "minimum": min, "maximum": max },
            { "const": "auto" },
        ]}),
        Kind::Size(min, max) => json!({ "oneOf": [
            { "type": "integer", "minimum": min, "maximum": max },
            { "type": "string", "pattern": "^[0-9]+ ?([KMGTPE](iB|B)?|B)?$", "examples": ["64MiB"] },
        ]}),
        Kind::Duration(..) => json!({
            "type": "string",
            "pattern": "^([0-9]+(ms|s|m|h) ?)+$",
            "examples": ["10s"],
        }),
        Kind::Bool => json!({ "type": "boolean" }),
        Kind::Word(words) => json!({ "enum": words }),
        Kind::Mode => json!({ "type": "string", "pattern": "^0?[0-7]{3}$" }),
        Kind::Text => json!({ "type": "string" }),
        Kind::Path => json!({ "type": "string", "minLength": 1 }),
        Kind::Table => json!({ "type": "object" }),
    }
}
