//! A bar for what takes long, while somebody looks at a terminal.
//!
//! ```text
//!   deleting vm-7  [=====>          ]  97/300  12 s
//! ```
//!
//! Invariant: nothing is drawn unless stderr is a terminal, and nothing of it is left at the end.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const TEMPLATE: &str = "{msg}  [{bar:30}]  {pos}/{len}  {elapsed}";

/// Somebody waits for a number of things.
pub(super) struct Bar(ProgressBar);

impl Bar {
    /// How long a question may take that only moves a bar.
    pub(super) const LOOK: Duration = Duration::from_secs(1);

    /// Whether anybody would see one.
    pub(super) fn is_seen() -> bool {
        io::stderr().is_terminal()
    }

    /// A bar for `total` things. A thread of its own draws it, so that a terminal which is stopped
    /// stops nobody who tells how far it is.
    pub(super) fn new(what: impl Into<String>, total: usize) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total as u64), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(what.into());
        bar.enable_steady_tick(Duration::from_millis(100));
        Self(bar)
    }

    /// So many are done.
    pub(super) fn at(&self, done: usize) {
        self.0.set_position(done as u64);
    }

    /// Does something that writes to the terminal.
    pub(super) fn print<T>(&self, print: impl FnOnce() -> T) -> T {
        self.0.suspend(print)
    }

    /// Takes it away.
    pub(super) fn end(&self) {
        self.0.finish_and_clear();
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.end();
    }
}

/// Writes lines to stderr, above the bar.
pub(super) struct Above(pub(super) Arc<Bar>);

impl Write for Above {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.print(|| io::stderr().write(text))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
