//! Where config comes from: files, directories of fragments, places in them.
//!
//! ```text
//!   path ─┬─ file x.toml ──────────────────────┐
//!         └─ directory ─ *.toml, by name ──────┴─> SourceFile { path, base, text } ─ place(span) ─> Place
//! ```
//!
//! Invariants: only regular files of at most [`MAX_BYTES`] are read, so reading cannot wait or
//! run away; a file counts once, whatever it is called; `base` is the directory of the path *as it
//! was given* (a symlinked config is relative to where the link is), made absolute.

use std::fs::{File, Metadata, OpenOptions};
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::problem::Problem;

/// Largest config file, in bytes: 10 MiB.
pub const MAX_BYTES: u64 = 10 << 20;

/// Longest part of a line that an error shows, in characters.
const EXCERPT_WIDTH: usize = 100;

/// A place that a problem points at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// File as it was named, `environment`, `flags`, or empty.
    pub(super) source: String,
    /// Order of the sources.
    pub(super) rank: usize,
    /// Line and column, from 1; the column counts characters.
    pub(super) at: Option<(usize, usize)>,
    pub(super) excerpt: Option<Excerpt>,
}

impl Place {
    /// No source in particular.
    pub(super) fn nowhere() -> Self {
        Self::whole("", 0)
    }

    /// A source as a whole.
    pub(super) fn whole(source: impl Into<String>, rank: usize) -> Self {
        Self { source: source.into(), rank, at: None, excerpt: None }
    }
}

/// The line of a place, fit to be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Excerpt {
    pub(super) text: String,
    /// Characters before the first caret.
    pub(super) indent: usize,
    /// Number of carets, at least 1.
    pub(super) width: usize,
}

/// One file that was read.
#[derive(Debug)]
pub(super) struct SourceFile {
    pub(super) path: PathBuf,
    /// Absolute directory that relative paths in it start from.
    pub(super) base: PathBuf,
    pub(super) text: String,
    pub(super) rank: usize,
    /// Offset of the first byte of each line; never empty.
    lines: Vec<usize>,
}

impl SourceFile {
    fn new(path: &Path, base: PathBuf, text: String, rank: usize) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let lines = std::iter::once(0).chain(ends.map(|(i, _)| i + 1)).collect();
        Self { path: path.to_owned(), base, text, rank, lines }
    }

    /// The file as a whole.
    pub(super) fn whole(&self) -> Place {
        Place::whole(self.path.display().to_string(), self.rank)
    }

    /// Line and column, from 1, of a byte of its text.
    pub(super) fn position(&self, offset: usize) -> (usize, usize) {
        let line = self.lines.partition_point(|start| *start <= offset).max(1);
        let head = self.text.get(self.lines[line - 1]..offset).unwrap_or_default();
        (line, head.chars().count() + 1)
    }

    /// Where a span of bytes of its text is, with the line to show.
    pub(super) fn place(&self, span: &Range<usize>) -> Place {
        let (line, column) = self.position(span.start);
        let line_start = self.lines[line - 1];
        let text = self.text[line_start..].lines().next().unwrap_or_default();
        // A span may go over several lines; the carets stay in the first.
        let end = span.end.min(line_start + text.len());
        let width = self.text.get(span.start..end).map_or(0, |s| s.chars().count());
        let excerpt = Some(excerpt(text, column - 1, width.max(1)));
        Place { at: Some((line, column)), excerpt, ..self.whole() }
    }
}

/// Cuts a window out of a long line, and shows control characters as spaces so that the carets
/// stand where they should.
fn excerpt(line: &str, indent: usize, width: usize) -> Excerpt {
    let skip = if indent + width < EXCERPT_WIDTH { 0 } else { indent.saturating_sub(20) };
    let window = line.chars().skip(skip).take(EXCERPT_WIDTH);
    let text: String = window.map(|c| if c.is_control() { ' ' } else { c }).collect();
    let indent = indent - skip;
    Excerpt { text, indent, width: width.min(EXCERPT_WIDTH.saturating_sub(indent).max(1)) }
}

/// Reads every file and directory of `paths`, in order. What cannot be read becomes a problem.
pub(super) fn read_all(paths: &[PathBuf], problems: &mut Vec<Problem>) -> Vec<SourceFile> {
    let mut reader = Reader { problems, files: Vec::new(), seen: Vec::new(), rank: 0 };
    for path in paths {
        match std::fs::metadata(path) {
            Ok(meta) if meta.is_dir() => reader.directory(path),
            // A file given by hand must say what it is; in a directory others are passed over.
            _ if path.extension().is_some_and(|e| e == "toml") => reader.file(path),
            Err(error) => reader.refuse(path, &cannot("find", path, &error)),
            Ok(_) => reader
                .refuse(path, "is no config: expected a file called *.toml or a directory of them"),
        }
    }
    reader.files
}

struct Reader<'a> {
    problems: &'a mut Vec<Problem>,
    files: Vec<SourceFile>,
    /// Device and inode of each file, and what it was called.
    seen: Vec<((u64, u64), PathBuf)>,
    rank: usize,
}

impl Reader<'_> {
    fn refuse(&mut self, path: &Path, message: &str) {
        let place = Place::whole(path.display().to_string(), self.rank);
        self.problems.push(Problem::new(&place, "", message));
    }

    fn directory(&mut self, dir: &Path) {
        let listed: std::io::Result<Vec<PathBuf>> =
            std::fs::read_dir(dir).and_then(|d| d.map(|entry| Ok(entry?.path())).collect());
        let mut fragments = match listed {
            Ok(paths) => paths,
            Err(error) => return self.refuse(dir, &cannot("list", dir, &error)),
        };
        fragments.retain(|p| {
            let hidden = p.file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(b"."));
            !hidden && p.extension().is_some_and(|e| e == "toml")
        });
        fragments.sort();
        if fragments.is_empty() {
            self.refuse(dir, "holds no config: expected at least one file called *.toml in it");
        }
        for path in &fragments {
            self.file(path);
        }
    }

    fn file(&mut self, path: &Path) {
        self.rank += 1;
        match self.read(path) {
            Ok(file) => self.files.push(file),
            Err(message) => self.refuse(path, &message),
        }
    }

    fn read(&mut self, path: &Path) -> Result<SourceFile, String> {
        let (file, meta) = open_regular(path)?;
        let ident = (meta.dev(), meta.ino());
        if let Some((_, other)) = self.seen.iter().find(|(seen, _)| *seen == ident) {
            return Err(format!("is the same file as {}: name it once", other.display()));
        }
        self.seen.push((ident, path.to_owned()));

        let mut bytes = Vec::new();
        // One byte more than allowed, since a file may grow after its size was looked at.
        let read = file.take(MAX_BYTES + 1).read_to_end(&mut bytes);
        read.map_err(|error| cannot("read", path, &error))?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err("is too large: a config file may have up to 10 MiB".to_owned());
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            let line = error.as_bytes()[..error.utf8_error().valid_up_to()]
                .iter()
                .filter(|b| **b == b'\n')
                .count();
            format!("is not UTF-8 in line {}: expected TOML, which is always UTF-8", line + 1)
        })?;
        if text.trim().is_empty() {
            let expected = "[[device]], [defaults], [supervisor], [log], [metrics] or [api]";
            return Err(format!("is empty: expected {expected}"));
        }
        let absolute = std::path::absolute(path).map_err(|e| cannot("locate", path, &e))?;
        // Paths in reports and JSON are text.
        if absolute.to_str().is_none() {
            return Err("has a path that is not UTF-8: move it".to_owned());
        }
        let base = absolute.parent().unwrap_or(Path::new("/")).to_owned();
        Ok(SourceFile::new(path, base, text, self.rank))
    }
}

/// Opens without waiting (a fifo would) and looks at what was really opened.
fn open_regular(path: &Path) -> Result<(File, Metadata), String> {
    let mut options = OpenOptions::new();
    let opened = options.read(true).custom_flags(nix::libc::O_NONBLOCK).open(path);
    let file = opened.map_err(|error| cannot("open", path, &error))?;
    let meta = file.metadata().map_err(|error| cannot("open", path, &error))?;
    match meta.is_file() {
        true => Ok((file, meta)),
        false => Err("is not a regular file: expected a TOML file".to_owned()),
    }
}

fn cannot(verb: &str, path: &Path, error: &std::io::Error) -> String {
    let mut text = format!("cannot {verb} it: {error}");
    if let (true, Ok(absolute)) = (path.is_relative(), std::path::absolute(path)) {
        text.push_str(&format!("; looked for {}", absolute.display()));
    }
    text
}
