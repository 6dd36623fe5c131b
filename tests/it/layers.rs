//! The rooms and who may know whom: read from the sources, so that a wrong import fails a test.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Rooms from the bottom up; a room may import those before it. Side rooms are last but low.
const ROOMS: [(&str, &[&str]); 13] = [
    ("model", &[]),
    ("sys", &["model"]),
    ("target", &["model", "sys"]),
    ("driver", &["model", "sys", "target"]),
    ("device", &["model", "sys", "target", "driver"]),
    ("supervisor", &["model", "sys", "target", "driver", "device"]),
    ("handle", &["model", "supervisor"]),
    ("runtime", &["model", "sys", "target", "driver", "device", "supervisor", "handle"]),
    ("config", &["model"]),
    ("telemetry", &["model", "sys", "config"]),
    ("daemon", &["model", "sys", "target", "driver", "handle", "runtime", "config", "telemetry"]),
    (
        "cli",
        &["model", "sys", "target", "driver", "handle", "runtime", "config", "telemetry", "daemon"],
    ),
    ("lib", &[]),
];

fn sources() -> Vec<(PathBuf, String)> {
    fn walk(dir: &Path, found: &mut Vec<(PathBuf, String)>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    walk(&root, &mut found);
    assert!(found.len() > 20, "only {} sources found", found.len());
    found.into_iter().map(|(p, t)| (p.strip_prefix(&root).unwrap().to_owned(), t)).collect()
}

/// The part of a file that is shipped: unit tests may use what they like.
fn shipped(path: &Path, text: &str) -> String {
    if path.iter().any(|part| part == "tests" || part == "tests.rs") {
        return String::new();
    }
    let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

fn room_of(path: &Path) -> String {
    let first = path.iter().next().unwrap().to_string_lossy();
    first.trim_end_matches(".rs").to_owned()
}

/// The rooms named in the code as `crate::ROOM`, also inside `crate::{…}`.
fn rooms_named(code: &str) -> Vec<String> {
    let mut named = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(group) => {
                let group = group.split('}').next().unwrap_or_default();
                named.extend(group.split(',').map(|n| word(n.trim())));
            }
            None => named.push(word(rest)),
        }
    }
    named
}

fn word(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

#[test]
fn imports_point_only_down() {
    let allowed: BTreeMap<_, _> = ROOMS.into_iter().collect();
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let room = room_of(&path);
        if room == "lib" || room == "main" {
            continue;
        }
        let below = allowed.get(room.as_str()).unwrap_or_else(|| panic!("no such room: {room}"));
        for other in rooms_named(&shipped(&path, &text)) {
            let is_room = allowed.contains_key(other.as_str());
            if is_room && other != room && !below.contains(&other.as_str()) {
                wrong.push(format!("{}: {room} imports {other}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_library_stays_in_its_room() {
    let rules: [(&str, &[&str]); 7] = [
        ("libublk", &["driver/ublk"]),
        ("actix", &["device", "supervisor", "runtime.rs", "handle.rs"]),
        ("actix_web", &["daemon/api"]),
        ("actix_http", &["daemon/api"]),
        ("actix_service", &["daemon/api"]),
        ("signal_hook", &["daemon", "cli"]),
        ("clap", &["cli"]),
    ];
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let code = shipped(&path, &text);
        for (library, rooms) in rules {
            let named =
                code.contains(&format!("{library}::")) || code.contains(&format!("{library}_rt::"));
            if named && !rooms.iter().any(|room| path.starts_with(room)) {
                wrong.push(format!("{} names {library}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn unsafe_stays_in_two_rooms_and_says_why() {
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let lines: Vec<_> = text.lines().collect();
        for (n, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if !(code.contains("unsafe {") || code.contains("unsafe impl")) {
                continue;
            }
            let place = format!("{}:{}", path.display(), n + 1);
            if !(path.starts_with("sys") || path.starts_with("driver/ublk")) {
                wrong.push(format!("{place}: unsafe outside sys and driver::ublk"));
            }
            let before = &lines[n.saturating_sub(8)..=n];
            if !before.iter().any(|l| l.contains("SAFETY:")) {
                wrong.push(format!("{place}: no SAFETY line"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_file_opens_with_what_it_is_for_and_stays_small() {
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        if !text.starts_with("//!") {
            wrong.push(format!("{} does not open with //!", path.display()));
        }
        let lines = text.lines().count();
        if lines > 600 {
            wrong.push(format!("{} has {lines} lines", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
