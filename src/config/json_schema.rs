//! The keys of a device as a JSON Schema, for those who send them.

use serde_json::{Map, Value, json};

use super::kind::Kind;
use super::schema::Section;
use crate::model::WorkerLimit;

/// The schema of a config file, for editors; `config/schema.json` holds it and a test compares the
/// two. What only the values together can be is not in it: `ublkd check` says that.
#[must_use]
pub fn config_schema() -> Value {
    let sections = Section::ALL.map(|section| {
        let schema = match section {
            Section::Device => json!({ "type": "array", "items": device_schema() }),
            _ => table(section),
        };
        (section.name().to_owned(), schema)
    });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A config file of ublkd",
        "type": "object",
        "properties": Map::from_iter(sections),
        "additionalProperties": false,
    })
}

/// The schema of an object with the keys of `[[device]]`. What only the values together can be
/// (a size in whole blocks) is not in it.
#[must_use]
pub fn device_schema() -> Value {
    table(Section::Device)
}

/// The schema of an object with the keys of a section.
fn table(section: Section) -> Value {
    let keys = section.keys().map(|key| {
        let mut schema = of_kind(key.kind);
        schema["description"] = json!(key.meaning);
        match key.name {
            "name" | "group" if section == Section::Device || section == Section::Defaults => {
                // With a place for the number of a fleet.
                schema["pattern"] = json!(r"^[A-Za-z0-9_{][A-Za-z0-9._{}:-]*$");
                schema["maxLength"] = json!(64);
            }
            "labels" => {
                schema["additionalProperties"] = json!({ "type": "string", "maxLength": 256 });
            }
            _ => {}
        }
        (key.name.to_owned(), schema)
    });
    let keys: Map<String, Value> = keys.collect();
    json!({ "type": "object", "properties": keys, "additionalProperties": false })
}

fn of_kind(kind: Kind) -> Value {
    match kind {
        Kind::Integer(min, max) => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Kind::Workers(min, max) => json!({ "oneOf": [
            { "type": "integer", "minimum": min, "maximum": max },
            { "const": WorkerLimit::AUTO },
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
