//! What this process has of the host: threads and open files, which must be the same before and
//! after, and memory and processor time, which are to be little.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};

/// Memory of this process that is resident, in bytes (`VmRSS` of `/proc/self/status`); 0 if it
/// cannot be read.
#[must_use]
pub fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or_default() * 1024
}

/// Processor time that all threads of this process have had so far, the kernel's workers for it
/// among them.
#[must_use]
pub fn processor_time() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return Duration::ZERO };
    let micros = |time: TimeVal| u64::try_from(time.num_microseconds()).unwrap_or_default();
    Duration::from_micros(micros(usage.user_time()) + micros(usage.system_time()))
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_time_are_counted() {
        let before = resident();
        let began = processor_time();
        let mut touched = vec![1u8; 32 << 20];
        while processor_time() == began {
            touched.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
        }
        assert!(resident() >= before + (16 << 20), "{before} before, {} after", resident());
        assert_eq!(touched.len(), 32 << 20);
    }
}
