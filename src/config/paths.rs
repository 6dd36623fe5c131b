//! The one rule of paths: a relative path starts at the directory of the file that names it.
//!
//! Nothing is expanded: a path that looks as if somebody relied on a shell (`~`, `${VAR}`) is
//! refused instead of creating a file of that name. Where no file names the path (environment,
//! flags) it must be absolute, so that it never depends on where the process was started.

use std::path::{Path, PathBuf};

/// Checks the text of a path.
///
/// # Errors
/// What is not expanded, or cannot be in a path.
pub(super) fn check(text: &str) -> Result<(), String> {
    let not_expanded = |what: &str, instead: &str| {
        Err(format!("{text:?} holds {what}, which is not expanded: {instead}"))
    };
    if text.is_empty() {
        Err("is empty: expected a path".to_owned())
    } else if text.contains('\0') {
        Err(format!("{text:?} holds a NUL, which no path can"))
    } else if text.starts_with('~') {
        not_expanded("~", "write the whole path (or ./~ for a file of that name)")
    } else if text.starts_with('$') || text.contains("${") {
        not_expanded("$", "write the whole path")
    } else {
        Ok(())
    }
}

/// Makes a checked path absolute. `.` is removed; `..` is kept, since what it means depends on
/// symbolic links.
///
/// # Errors
/// When it is relative and there is no directory to start from.
pub(super) fn resolve(base: Option<&Path>, text: &str) -> Result<PathBuf, String> {
    let path = match base {
        Some(base) => base.join(text),
        None if text.starts_with('/') => PathBuf::from(text),
        None => return Err(format!("{text:?} is relative: write an absolute path here")),
    };
    // Only an empty path can fail, and `check` refuses those.
    std::path::absolute(&path).map_err(|error| format!("{text:?}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f84_relative_paths_start_at_the_directory_that_is_given() {
        let base = Some(Path::new("/etc/ublkd"));
        let at = |text: &str| resolve(base, text).map(|p| p.display().to_string());
        assert_eq!(at("disks/a.img"), Ok("/etc/ublkd/disks/a.img".to_owned()));
        assert_eq!(at("./a b\n\u{e4}.img"), Ok("/etc/ublkd/a b\n\u{e4}.img".to_owned()));
        assert_eq!(at("../a.img"), Ok("/etc/ublkd/../a.img".to_owned()));
        assert_eq!(at("/srv/a.img"), Ok("/srv/a.img".to_owned()));
        assert!(resolve(None, "a.img").is_err_and(|e| e.contains("absolute")));
    }

    #[test]
    fn f84_what_a_shell_would_expand_is_refused() {
        for text in ["~/a", "~", "~root/a", "$HOME/a", "/srv/${VAR}/a", "", "a\0b"] {
            assert!(check(text).is_err(), "{text:?}");
        }
        for text in ["a~", "./~", "/srv/a$b", "a b", "\u{e4}\n"] {
            assert_eq!(check(text), Ok(()), "{text:?}");
        }
    }
}
