//! What is made of the command line's definition and checked in: man pages, scripts for shells, the
//! help texts. The tests here keep them fresh; with `UBLKD_WRITE_PAGES=1` they write them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{CommandFactory, ValueEnum};

use super::args::Cli;
use super::complete::{self, Shell};

/// The files of a folder of the repository, and what should be in them.
fn compare(folder: &str, fresh: &BTreeMap<String, String>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    if std::env::var_os("UBLKD_WRITE_PAGES").is_some() {
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("a folder");
        for (name, text) in fresh {
            fs::write(folder.join(name), text).expect("written");
        }
    }
    let paths = fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let name = |path: &PathBuf| path.file_name().expect("a name").to_string_lossy().into_owned();
    let there: BTreeMap<String, String> =
        paths.map(|path| (name(&path), fs::read_to_string(&path).expect("text"))).collect();
    let stale: Vec<_> = fresh
        .keys()
        .chain(there.keys())
        .filter(|name| fresh.get(*name) != there.get(*name))
        .collect();
    assert!(
        stale.is_empty(),
        "{stale:?} of {} are stale: UBLKD_WRITE_PAGES=1 cargo test --lib pages",
        folder.display()
    );
}

/// The commands and theirs, hidden ones left out, with their full names.
fn commands(command: &clap::Command, name: &str, found: &mut Vec<(String, clap::Command)>) {
    found.push((name.to_owned(), command.clone()));
    for below in command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help") {
        commands(below, &format!("{name}-{}", below.get_name()), found);
    }
}

fn all() -> Vec<(String, clap::Command)> {
    let mut command = Cli::command();
    command.build();
    let mut found = Vec::new();
    commands(&command, "ublkd", &mut found);
    found
}

#[test]
fn man_pages_are_fresh() {
    let mut pages = BTreeMap::new();
    for (name, command) in all() {
        let mut page = Vec::new();
        let command = command.display_name(name.clone());
        clap_mangen::Man::new(command).render(&mut page).expect("a page");
        pages.insert(format!("{name}.1"), String::from_utf8(page).expect("text"));
    }
    assert!(pages.len() > 20, "{}", pages.len());
    compare("docs/man", &pages);
}

#[test]
fn scripts_for_shells_are_fresh() {
    let name = |shell| match shell {
        Shell::Bash => "ublkd.bash",
        Shell::Fish => "ublkd.fish",
        Shell::Zsh => "_ublkd",
    };
    let shells = Shell::value_variants().iter();
    let scripts = shells.map(|shell| (name(*shell).to_owned(), complete::script(*shell)));
    compare("config/completions", &scripts.collect());
}

#[test]
fn help_texts() {
    let mut text = String::new();
    for (name, mut command) in all() {
        let name = name.replace('-', " ");
        let help =
            command.render_help().to_string().replace("Usage: ", &format!("Usage ({name}): "));
        text += &format!("======== {name}\n{help}\n");
    }
    insta::assert_snapshot!(text);
}
