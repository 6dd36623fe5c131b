//! Tests of the config room: what is taken, and word for word what is said of what is not.

mod errors;
mod files;
mod fleets;
mod layers;
mod resolved;
mod schema;

use std::path::Path;

use tempfile::TempDir;

use super::{Config, Sources};

/// A directory of config files that is gone with the test.
struct Fixture(TempDir);

impl Fixture {
    fn new(files: &[(&str, &str)]) -> Self {
        let fixture = Self(TempDir::new().expect("a directory"));
        for (name, text) in files {
            fixture.write(name, text);
        }
        fixture
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        let path = self.0.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        std::fs::write(path, text).expect("a file");
    }

    fn dir(&self) -> &Path {
        self.0.path()
    }

    fn path(&self, name: &str) -> String {
        self.dir().join(name).display().to_string()
    }

    fn sources(&self, names: &[&str]) -> Sources {
        names.iter().fold(Sources::new(), |s, name| s.path(self.path(name)))
    }

    fn load(&self, names: &[&str]) -> Config {
        self.sources(names).load().unwrap_or_else(|e| panic!("{e}"))
    }

    /// What is said of a config that cannot be used; the directory is written `DIR`.
    fn refused(&self, sources: &Sources) -> String {
        let error = sources.load().expect_err("the config was taken");
        error.to_string().replace(&self.dir().display().to_string(), "DIR")
    }
}

/// Loads one file.
fn load(text: &str) -> Config {
    Fixture::new(&[("x.toml", text)]).load(&["x.toml"])
}

/// What is said of one file that cannot be used.
fn refused(text: &str) -> String {
    let fixture = Fixture::new(&[("x.toml", text)]);
    fixture.refused(&fixture.sources(&["x.toml"]))
}

/// The names of all devices.
fn names(config: &Config) -> Vec<&str> {
    config.devices.iter().map(|d| d.spec.name().as_str()).collect()
}
