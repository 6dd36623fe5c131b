//! How many threads and open files this process has: what must be the same before and after.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Threads and file descriptors of this process at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Census {
    /// Threads, the kernel's io_uring workers among them.
    pub threads: usize,
    /// Open file descriptors.
    pub fds: usize,
}

impl Census {
    /// Counts now. What cannot be read counts as 0.
    #[must_use]
    pub fn take() -> Self {
        let entries = |dir: &str| fs::read_dir(Path::new(dir)).map_or(0, Iterator::count);
        Self {
            threads: entries("/proc/self/task"),
            // The directory that is being read has a descriptor too.
            fds: entries("/proc/self/fd").saturating_sub(1),
        }
    }

    /// What is there beyond `self`, one line each, if it does not go within `bound`: the kernel
    /// ends its workers and closes a ring's files a little after the ring.
    #[must_use]
    pub fn surplus(self, bound: Duration) -> Vec<String> {
        let end = Instant::now() + bound;
        loop {
            let now = Self::take();
            let extra = [
                (now.threads.saturating_sub(self.threads), "threads"),
                (now.fds.saturating_sub(self.fds), "file descriptors"),
            ];
            let surplus: Vec<_> = extra
                .iter()
                .filter(|(count, _)| *count > 0)
                .map(|(count, what)| format!("{count} {what} of this process"))
                .collect();
            if surplus.is_empty() || Instant::now() >= end {
                return surplus;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
