//! What two devices must not share: a name, an id, a backing that one of them writes to.
//!
//! A backing is told by what is behind the path (device and inode, or the number of a block
//! device), so a symbolic link, a hard link or `./..` is no other file. A path that does not exist
//! yet is told by its spelling below the directory that does.
//!
//! Invariant: one problem for a pair of entries and a kind of conflict, not one a device.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::device::Made;
use super::document::Entry;
use super::problem::Problem;
use crate::model::DeviceSpec;

/// Finds every conflict between devices.
pub(super) fn check(made: &[Made], entries: &[Entry<'_>], problems: &mut Vec<Problem>) {
    let mut conflicts = Conflicts { made, entries, problems, told: HashSet::new() };
    let name = |made: &Made| Some(made.spec.name().clone());
    conflicts.shared("name", name, |first, _, place| {
        Some(format!("{:?} is also the name of a device at {place}", first.name()))
    });
    conflicts.shared(
        "id",
        |made| made.spec.id(),
        |first, second, place| {
            let id = second.id()?;
            Some(format!("{id} is also asked for by device {:?} at {place}", first.name()))
        },
    );
    let backing = |made: &Made| made.spec.backing().map(|backing| identity(&backing.path));
    conflicts.shared("path", backing, |first, second, place| {
        let (one, two) = (first.backing()?, second.backing()?);
        let spelling = match one.path == two.path {
            true => String::new(),
            false => format!(" as {}", one.path.display()),
        };
        (one.writable || two.writable).then(|| {
            format!(
                "{} is also the backing of device {:?} at {place}{spelling}; \
                 only devices that are all read_only may share one",
                two.path.display(),
                first.name(),
            )
        })
    });
}

struct Conflicts<'a, 'p> {
    made: &'a [Made],
    entries: &'a [Entry<'a>],
    problems: &'p mut Vec<Problem>,
    /// Pairs of entries whose conflict over a key was told.
    told: HashSet<(&'static str, usize, usize)>,
}

impl Conflicts<'_, '_> {
    /// Compares all devices for which `by` is the same; `refuse` says what is wrong with a pair,
    /// the first of which comes from the place that it is given.
    fn shared<K: Eq + Hash>(
        &mut self,
        key: &'static str,
        by: impl Fn(&Made) -> Option<K>,
        refuse: impl Fn(&DeviceSpec, &DeviceSpec, String) -> Option<String>,
    ) {
        let mut holders: HashMap<K, &Made> = HashMap::new();
        for made in self.made {
            let Some(what) = by(made) else { continue };
            let Some(holder) = holders.get(&what) else {
                holders.insert(what, made);
                continue;
            };
            let (entry, other) = (&self.entries[made.entry], &self.entries[holder.entry]);
            if let Some(message) = refuse(&holder.spec, &made.spec, other.place())
                && self.told.insert((key, holder.entry, made.entry))
            {
                let name = made.spec.name().as_str();
                self.problems.push(entry.problem(key, message).of_device(Some(name)));
            }
        }
    }
}

/// What is behind a path.
#[derive(PartialEq, Eq, Hash)]
enum Identity {
    File(u64, u64),
    BlockDevice(u64),
    Missing(PathBuf),
}

fn identity(path: &Path) -> Identity {
    match std::fs::metadata(path) {
        Ok(meta) if meta.file_type().is_block_device() => Identity::BlockDevice(meta.rdev()),
        Ok(meta) => Identity::File(meta.dev(), meta.ino()),
        Err(_) => {
            let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
            let whole = parent.zip(path.file_name()).map(|(parent, name)| parent.join(name));
            Identity::Missing(whole.unwrap_or_else(|| path.to_owned()))
        }
    }
}
