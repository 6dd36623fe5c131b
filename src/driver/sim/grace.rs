//! The law of shared grace periods, as a pure value.
//!
//! ```text
//!   arrives        a b    c           d
//!                  | |    |           |
//!   periods    ────[=====][=====]─────[=====]──
//!   released             a      b,c         d
//! ```
//!
//! A grace period ends when every processor has been somewhere that holds no reference. One that
//! is under way when a waiter arrives does not count for it, since a processor may have passed
//! before; so the waiter is released at the end of the next one. Periods start on demand and run
//! back to back while somebody waits, and everybody who waits for the same one is released by it:
//! that is why removals overlap so well.
//!
//! Invariants: a waiter that arrives at the very start of a period is covered by it; two periods
//! never overlap; a wait lasts from one length to just under two.

use std::time::Duration;

/// The system's grace periods: says when a waiter is released. Times count from any fixed origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GracePeriods {
    length: Duration,
    /// Start of the last period that anybody has asked for; it may lie in the future.
    last: Option<Duration>,
}

impl GracePeriods {
    /// Grace periods of this length, none of them under way.
    #[must_use]
    pub const fn new(length: Duration) -> Self {
        Self { length, last: None }
    }

    /// A waiter arrives at `now`, which must not go backwards. Returns when it is released.
    pub fn arrive(&mut self, now: Duration) -> Duration {
        let start = match self.last {
            Some(start) if now <= start => start,
            Some(start) if now < start + self.length => start + self.length,
            _ => now,
        };
        self.last = Some(start);
        start + self.length
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// The law told a second way: every millisecond a period may end, waiters arrive, one starts.
    fn step_by_step(length: u64, arrivals: &[u64]) -> Vec<u64> {
        let mut released = vec![0; arrivals.len()];
        let (mut waiting, mut covered) = (Vec::new(), Vec::new());
        let mut end = None;
        for now in 0.. {
            if end == Some(now) {
                covered.drain(..).for_each(|waiter: usize| released[waiter] = now);
                end = None;
            }
            waiting.extend((0..arrivals.len()).filter(|i| arrivals[*i] == now));
            if end.is_none() && !waiting.is_empty() {
                covered.append(&mut waiting);
                end = Some(now + length);
            }
            if end.is_none() && arrivals.iter().all(|at| *at <= now) {
                return released;
            }
        }
        released
    }

    proptest! {
        #[test]
        fn the_closed_form_is_the_step_by_step_law(
            length in 1_u64..20,
            mut arrivals in prop::collection::vec(0_u64..200, 1..40),
        ) {
            arrivals.sort_unstable();
            let mut periods = GracePeriods::new(ms(length));
            let released: Vec<_> = arrivals.iter().map(|at| periods.arrive(ms(*at))).collect();
            let expected: Vec<_> = step_by_step(length, &arrivals).into_iter().map(ms).collect();
            prop_assert_eq!(&released, &expected);
            for (at, end) in arrivals.iter().zip(&released) {
                let wait = *end - ms(*at);
                prop_assert!(ms(length) <= wait && wait < ms(2 * length));
            }
        }

        #[test]
        fn serial_waits_cost_one_period_each_and_simultaneous_ones_share(
            length in 1_u64..50, waiters in 1_u32..500, waits in 1_u32..8, start in 0_u64..1000,
        ) {
            let mut serial = GracePeriods::new(ms(length));
            let mut now = ms(start);
            for _ in 0..waiters * waits {
                now = serial.arrive(now);
            }
            prop_assert_eq!(now - ms(start), ms(length) * waiters * waits);

            let mut shared = GracePeriods::new(ms(length));
            let mut now = ms(start);
            for _ in 0..waits {
                let ends: Vec<_> = (0..waiters).map(|_| shared.arrive(now)).collect();
                prop_assert!(ends.iter().all(|end| *end == ends[0]));
                now = ends[0];
            }
            prop_assert_eq!(now - ms(start), ms(length) * waits);
        }
    }

    #[test]
    fn a_period_under_way_does_not_count() {
        let mut periods = GracePeriods::new(ms(10));
        assert_eq!(periods.arrive(ms(100)), ms(110));
        assert_eq!(periods.arrive(ms(100)), ms(110), "came before it started");
        assert_eq!(periods.arrive(ms(101)), ms(120), "came while it ran");
        assert_eq!(periods.arrive(ms(109)), ms(120));
        assert_eq!(periods.arrive(ms(110)), ms(120), "came as the next one started");
        assert_eq!(periods.arrive(ms(111)), ms(130));
        assert_eq!(periods.arrive(ms(500)), ms(510), "nobody waited, so none was running");
    }
}
