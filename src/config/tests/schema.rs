//! `config/schema.json` against the table of keys, and the example configs against it.

use std::path::Path;

use serde_json::Value;

use crate::config::config_schema;

fn text(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// What `value` breaks of `schema`, at `at`. Patterns are left to editors: no crate here has them.
fn broken(schema: &Value, value: &Value, at: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if let Some(choices) = schema["oneOf"].as_array() {
        let fits = choices.iter().filter(|one| broken(one, value, at).is_empty()).count();
        if fits != 1 {
            wrong.push(format!("{at}: fits {fits} of {choices:?}"));
        }
    }
    let is_type = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("boolean") => value.is_boolean(),
        other => other.is_none(),
    };
    let listed = schema["enum"].as_array().is_none_or(|words| words.contains(value));
    let constant = schema.get("const").is_none_or(|only| only == value);
    let number = value.as_u64().unwrap_or_default();
    let above = schema["minimum"].as_u64().is_none_or(|min| number >= min);
    let below = schema["maximum"].as_u64().is_none_or(|max| number <= max);
    if !(is_type && listed && constant && above && below) {
        wrong.push(format!("{at}: {value} is not {schema}"));
    }
    for item in value.as_array().into_iter().flatten() {
        wrong.extend(broken(&schema["items"], item, &format!("{at}[]")));
    }
    for (key, value) in value.as_object().into_iter().flatten() {
        let at = format!("{at}.{key}");
        match (schema["properties"].get(key), &schema["additionalProperties"]) {
            (Some(schema), _) => wrong.extend(broken(schema, value, &at)),
            (None, Value::Bool(false)) => wrong.push(format!("{at}: unknown")),
            (None, others) => wrong.extend(broken(others, value, &at)),
        }
    }
    wrong
}

#[test]
fn the_schema_that_is_checked_in_is_the_one_that_is_so() {
    let schema: Value = serde_json::from_str(&text("schema.json")).expect("JSON");
    let now = serde_json::to_string_pretty(&config_schema()).expect("JSON");
    assert_eq!(schema, config_schema(), "config/schema.json has to be:\n{now}");
}

#[test]
fn the_example_configs_are_as_the_schema_has_it_and_slips_are_not() {
    let schema = config_schema();
    let check = |text: &str| {
        let value: Value = toml::from_str(text).unwrap_or_else(|e| panic!("{e}"));
        broken(&schema, &value, "")
    };
    for name in ["ublkd.toml", "fleet.toml", "package.toml"] {
        assert_eq!(check(&text(name)), [""; 0], "{name}");
    }
    for slip in [
        "[supervisor]\nworker = 3",
        "[supervisor]\nworkers = 0",
        "[supervisor]\nworkers = 'many'",
        "[log]\nlevel = 'loud'",
        "[[device]]\nqeues = 1",
        "[[device]]\ndepth = 5000",
        "[[device]]\nsize = 1.5",
        "[device]\nname = 'x'",
    ] {
        assert!(!check(slip).is_empty(), "{slip}");
    }
}
