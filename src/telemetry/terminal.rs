//! Log lines for people: time, level, message, context.
//!
//! Invariant: one record is one write of one line; control characters in messages and values are
//! escaped, so that a path with a newline in it cannot forge a line and no value can talk to the
//! terminal.

use std::cell::RefCell;
use std::io::{self, Write};
use std::time::SystemTime;

use slog::{Drain, OwnedKVList, Record};
use slog_term::{Decorator, FullFormat, RecordDecorator};

/// A drain that writes lines for people.
pub(super) fn drain<W: Write + Send + 'static>(
    sink: W,
) -> impl Drain<Ok = (), Err = io::Error> + Send {
    FullFormat::new(Lines(RefCell::new(sink)))
        .use_custom_timestamp(|out: &mut dyn Write| write!(out, "{}", now()))
        .use_original_order()
        .build()
}

/// The time as in RFC 3339, in UTC with milliseconds.
pub(super) fn now() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}

struct Lines<W>(RefCell<W>);

impl<W: Write> Decorator for Lines<W> {
    fn with_record<F>(&self, _: &Record<'_>, _: &OwnedKVList, f: F) -> io::Result<()>
    where
        F: FnOnce(&mut dyn RecordDecorator) -> io::Result<()>,
    {
        let mut line = Line::default();
        f(&mut line)?;
        self.0.borrow_mut().write_all(&line.text)
    }
}

#[derive(Default)]
struct Line {
    text: Vec<u8>,
    /// Inside a message or a value, which may hold anything.
    foreign: bool,
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for byte in bytes {
            match self.foreign && byte.is_ascii_control() {
                true => self.text.extend(byte.escape_ascii()),
                false => self.text.push(*byte),
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl RecordDecorator for Line {
    fn reset(&mut self) -> io::Result<()> {
        self.foreign = false;
        Ok(())
    }

    fn start_msg(&mut self) -> io::Result<()> {
        self.foreign = true;
        Ok(())
    }

    fn start_value(&mut self) -> io::Result<()> {
        self.foreign = true;
        Ok(())
    }
}
