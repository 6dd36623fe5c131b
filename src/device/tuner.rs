//! Finds how many teardowns should run at once, from how long each STOP took.
//!
//! ```text
//!   a STOP:     work ── wait for grace periods ── work          longer only if the processors are busy
//!
//!   took at most twice as long as the fastest, and others wait for a worker ──> one worker more
//!   took more than three times as long                                       ──> one worker less
//! ```
//!
//! A STOP waits most of its time for grace periods, which all that wait share: more of them at once
//! cost nothing, until their work keeps the processors busy. Then each takes longer and no more of
//! them end in a second; what runs beyond that only gets into each other's way. So the number grows
//! (it doubles in the time of one STOP) until STOPs take 2 to 3 times as long as alone: that is enough to
//! keep the processors busy, whatever their number and however long a grace period is.
//!
//! Invariants: one step a STOP, up or down alike, so that a few that hang for reasons of their own
//! move nothing; it does not grow unless somebody waits for a worker.

use std::time::Duration;

use tokio::time::Instant;

use crate::model::WorkerLimit;

/// Workers at the beginning: too few for nobody, and not too many for one processor.
const START: usize = 64;
/// The least: overlapping pays whatever the machine.
const LEAST: usize = 8;
/// How much longer than the fastest a STOP takes when the processors are busy enough.
const BUSY: u32 = 2;
/// And when they are too busy.
const TOO_BUSY: u32 = 3;
/// A fastest time that is older says nothing of the machine as it is now.
const MEMORY: Duration = Duration::from_secs(10);

/// The number of workers, and what it is derived from.
#[derive(Debug)]
pub(super) struct Tuner {
    limit: usize,
    /// The shortest STOP, and since when.
    fastest: Option<(Duration, Instant)>,
}

impl Default for Tuner {
    fn default() -> Self {
        Self { limit: START, fastest: None }
    }
}

impl Tuner {
    /// How many may run at once.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// A STOP took `time` and ended now; others wait for a worker, or not.
    pub(super) fn stopped(&mut self, now: Instant, time: Duration, others_wait: bool) {
        let (fastest, since) = match self.fastest {
            Some((fastest, since)) if now < since + MEMORY => (fastest.min(time), since),
            _ => (time, now),
        };
        self.fastest = Some((fastest, since));
        if time > TOO_BUSY * fastest {
            self.limit = (self.limit - 1).max(LEAST);
        } else if others_wait && time <= BUSY * fastest {
            self.limit = (self.limit + 1).min(WorkerLimit::Auto.most());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Tells a tuner of `count` STOPs that took `time`, all now.
    fn stops(tuner: &mut Tuner, now: Instant, count: usize, time: Duration, others_wait: bool) {
        for _ in 0..count {
            tuner.stopped(now, time, others_wait);
        }
    }

    #[test]
    fn it_grows_while_stops_are_quick_and_others_wait_and_shrinks_when_they_are_slow() {
        let (mut tuner, now) = (Tuner::default(), Instant::now());
        stops(&mut tuner, now, 100, 30 * MS, true);
        assert_eq!(tuner.limit(), START + 100);
        stops(&mut tuner, now, 100, 30 * MS, false);
        assert_eq!(tuner.limit(), START + 100, "nobody needs more");
        stops(&mut tuner, now, 50, 91 * MS, true);
        assert_eq!(tuner.limit(), START + 50);
        stops(&mut tuner, now, 1000, 91 * MS, true);
        assert_eq!(tuner.limit(), LEAST);
        stops(&mut tuner, now, 1000, 61 * MS, true);
        assert_eq!(tuner.limit(), LEAST, "busy enough");
        stops(&mut tuner, now, 10_000, 60 * MS, true);
        assert_eq!(tuner.limit(), WorkerLimit::Auto.most());
    }

    #[test]
    fn a_few_that_hang_move_it_by_as_many() {
        let (mut tuner, now) = (Tuner::default(), Instant::now());
        stops(&mut tuner, now, 50, 30 * MS, true);
        stops(&mut tuner, now, 3, 9000 * MS, true);
        assert_eq!(tuner.limit(), START + 47);
    }

    #[test]
    fn what_was_fast_long_ago_is_no_measure() {
        let (mut tuner, now) = (Tuner::default(), Instant::now());
        stops(&mut tuner, now, 1, MS, true);
        stops(&mut tuner, now, 1, 30 * MS, true);
        assert_eq!(tuner.limit(), START);
        stops(&mut tuner, now + MEMORY, 1, 30 * MS, true);
        assert_eq!(tuner.limit(), START + 1);
    }
}
