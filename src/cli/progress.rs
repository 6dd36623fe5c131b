//! A bar for what takes long, while somebody looks at a terminal.
//!
//! ```text
//!   deleting vm-7  [=====>          ]  97/300  12 s
//! ```
//!
//! Invariant: nothing is drawn unless stderr is a terminal, and nothing is left of it at the end.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const TEMPLATE: &str = "{msg}  [{bar:30}]  {pos}/{len}  {elapsed}";

/// Somebody waits for `total` things.
pub(super) struct Bar(ProgressBar);

impl Bar {
    /// How long a question may take that only moves a bar.
    pub(super) const LOOK: Duration = Duration::from_secs(1);

    /// Whether anybody would see one.
    pub(super) fn is_seen() -> bool {
        std::io::stderr().is_terminal()
    }

    /// A bar that is drawn if stderr is a terminal.
    pub(super) fn new(what: impl Into<String>, total: usize) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total as u64), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(what.into());
        bar.enable_steady_tick(Duration::from_millis(250));
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
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
