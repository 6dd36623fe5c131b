//! The `options` of a custom target: whatever TOML holds, as JSON.
//!
//! Dates become text, and so does what JSON has no number for (`inf`, integers beyond 64 bits).

use std::collections::BTreeMap;

use serde_json::Value;
use toml::de::{DeTable, DeValue};

/// The table as JSON values by key.
pub(super) fn options(table: &DeTable<'_>) -> BTreeMap<String, Value> {
    table.iter().map(|(key, value)| (key.get_ref().to_string(), json(value.get_ref()))).collect()
}

fn json(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::from(text.to_string()),
        DeValue::Boolean(value) => Value::from(*value),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or_else(|_| Value::from(number.as_str()), Value::from),
        DeValue::Float(number) => match number.as_str().parse::<f64>() {
            Ok(value) if value.is_finite() => Value::from(value),
            _ => Value::from(number.as_str()),
        },
        DeValue::Datetime(time) => Value::from(time.to_string()),
        DeValue::Array(values) => values.iter().map(|value| json(value.get_ref())).collect(),
        DeValue::Table(table) => Value::Object(options(table).into_iter().collect()),
    }
}
