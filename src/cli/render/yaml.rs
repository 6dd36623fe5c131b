//! JSON values as YAML.
//!
//! Invariants: block style, two blanks a level; a text that any version of YAML could take for
//! something else is written as in JSON, which YAML contains; so what is read back is the value.

use serde_json::Value;

/// Words that some version of YAML takes for a boolean, null or number.
const WORDS: [&str; 13] =
    ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf", "e", "x"];

/// The value as YAML, ended by a newline.
#[must_use]
pub fn yaml(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Array(_) | Value::Object(_) => block(value, 0, &mut out),
        scalar => out.push_str(&(inline(scalar) + "\n")),
    }
    out
}

/// A value that needs lines of its own, each indented by `level`.
fn block(value: &Value, level: usize, out: &mut String) {
    match value {
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                indent(level, out);
                out.push_str("- ");
                let start = out.len();
                block(item, level + 1, out);
                // The first line of an item stands on the line of its dash.
                let blanks = out[start..].bytes().take_while(|byte| *byte == b' ').count();
                out.replace_range(start..start + blanks.min(2 * (level + 1)), "");
            }
        }
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                indent(level, out);
                out.push_str(&text(key));
                out.push(':');
                if is_block(value) {
                    out.push('\n');
                    block(value, level + 1, out);
                } else {
                    out.push(' ');
                    out.push_str(&inline(value));
                    out.push('\n');
                }
            }
        }
        scalar => {
            out.push_str(&inline(scalar));
            out.push('\n');
        }
    }
}

fn is_block(value: &Value) -> bool {
    match value {
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => false,
    }
}

fn inline(value: &Value) -> String {
    match value {
        Value::String(string) => text(string),
        // Empty lists and maps, numbers, booleans, null.
        other => other.to_string(),
    }
}

/// Plain where nothing can be meant but this text.
fn text(text: &str) -> String {
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "/_-.+".contains(c))
        && !WORDS.contains(&text.to_ascii_lowercase().as_str());
    if plain { text.to_owned() } else { Value::from(text).to_string() }
}

fn indent(level: usize, out: &mut String) {
    out.extend(std::iter::repeat_n("  ", level));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nested_values_are_blocks() {
        let value = json!({
            "items": [
                {"name": "vol-1", "id": 7, "labels": {"app": "db", "empty": ""}, "tids": [1, 2]},
                [[1], []],
                "text",
            ],
            "next": null,
            "none": {},
        });
        insta::assert_snapshot!(yaml(&value), @r#"
        items:
          - id: 7
            labels:
              app: db
              empty: ""
            name: vol-1
            tids:
              - 1
              - 2
          - - - 1
            - []
          - text
        next: null
        none: {}
        "#);
        assert_eq!(yaml(&json!([])), "[]\n");
        assert_eq!(yaml(&json!("a b")), "\"a b\"\n");
    }

    #[test]
    fn texts_that_look_like_something_else_are_quoted() {
        for quoted in [
            "", "no", "Yes", "NULL", "~", "1", "1e3", "0x1f", ".5", "-", "- a", "a: b", "a #b",
            "#", "a\nb", "\u{e4}", " a", "a ", "!x", "&x", "*x", "{}", "[a]", "'", "\"", "%", "@",
            "`", "12:30:45",
        ] {
            assert_eq!(text(quoted), serde_json::to_string(quoted).expect("JSON"), "{quoted}");
        }
        for plain in ["vol-1", "/dev/ublkb7", "live", "a.b_c+d", "x86_64"] {
            assert_eq!(text(plain), plain);
        }
    }
}
