//! What the documents quote is what the program says.

use std::fs;
use std::path::Path;

/// Everything under `src`, with texts that run over several lines put together.
fn sources() -> String {
    fn walk(dir: &Path, out: &mut String) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, out);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                // What unit tests say is said by nobody else.
                out.push_str(text.split("#[cfg(test)]\nmod ").next().unwrap());
            }
        }
    }
    let mut text = String::new();
    walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut text);
    let mut joined = String::new();
    for piece in text.split("\\\n") {
        joined.push_str(if joined.is_empty() { piece } else { piece.trim_start() });
    }
    joined
}

#[test]
fn every_message_in_troubleshooting_is_in_the_source() {
    let sources = sources();
    let docs = include_str!("../../docs/troubleshooting.md");
    let messages: Vec<_> = docs.lines().filter_map(|line| line.strip_prefix("### `")).collect();
    assert!(messages.len() > 20, "{} messages", messages.len());
    for message in messages {
        let message = message.strip_suffix('`').expect("a message ends its line");
        for piece in message.split('…').map(str::trim).filter(|piece| !piece.is_empty()) {
            assert!(sources.contains(piece), "nobody says {piece:?} ({message})");
        }
    }
}

#[test]
fn links_between_documents_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    for path in docs.chain([root.join("README.md"), root.join("CHANGELOG.md")]) {
        if path.extension().is_none_or(|ext| ext != "md") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap();
            if file.is_empty() || file.contains("://") {
                continue;
            }
            let there = path.parent().unwrap().join(file).exists();
            assert!(there, "{} links to {target}", path.display());
        }
    }
}
