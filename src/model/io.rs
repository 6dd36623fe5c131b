//! I/O of a device in numbers: what was asked for, what became of it, how long it took.
//!
//! Latencies are counted in buckets whose bounds are powers of two of a nanosecond, from about a
//! microsecond to about 17 seconds, so that a device costs the same memory whatever it does.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// I/O counted by the queue threads of a device since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IoStats {
    /// READ requests.
    pub read: OpStats,
    /// WRITE requests.
    pub write: OpStats,
    /// FLUSH requests.
    pub flush: OpStats,
    /// DISCARD requests.
    pub discard: OpStats,
    /// WRITE_ZEROES requests.
    pub write_zeroes: OpStats,
    /// WRITE and WRITE_ZEROES requests that carried FUA; they are among those above.
    pub fua: u64,
    /// Requests that have come and are not answered yet.
    pub in_flight: u64,
}

/// Requests of one kind that were answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OpStats {
    /// How many, those with an error among them.
    pub requests: u64,
    /// Bytes read, written, discarded or zeroed.
    pub bytes: u64,
    /// How many were answered with an error.
    pub errors: u64,
    /// From the arrival of a request in the server until its answer goes back.
    #[serde(default, skip_serializing_if = "Latency::is_empty")]
    pub latency: Latency,
}

/// A histogram of times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Latency {
    /// All times together, in nanoseconds.
    pub total_ns: u64,
    /// How many times fell in each bucket, not cumulative; see [`Latency::bound`].
    pub buckets: [u64; Latency::BUCKETS],
}

impl Latency {
    /// Number of buckets; the last one has no upper bound.
    pub const BUCKETS: usize = 26;

    /// Power of two of the first bucket's upper bound in nanoseconds.
    const FIRST: u32 = 10;

    /// The bucket of a time.
    #[must_use]
    pub fn bucket(ns: u64) -> usize {
        let power = u64::BITS - ns.saturating_sub(1).leading_zeros();
        (power.saturating_sub(Self::FIRST) as usize).min(Self::BUCKETS - 1)
    }

    /// The largest time that falls in `bucket`; `None` for the last one.
    #[must_use]
    pub fn bound(bucket: usize) -> Option<Duration> {
        let bounded = bucket + 1 < Self::BUCKETS;
        bounded.then(|| Duration::from_nanos(1 << (Self::FIRST as usize + bucket)))
    }

    /// Whether nothing was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buckets.iter().all(|&count| count == 0)
    }

    /// The time that `share` (0 to 1) of what was counted does not exceed: the bound of its
    /// bucket, at most twice too long; `None` when nothing was counted.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let count: u64 = self.buckets.iter().sum();
        let rank = ((count as f64 * share).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|here| {
            seen += here;
            seen >= rank
        })?;
        // What is beyond the last bound is said to be at it.
        Self::bound(bucket.min(Self::BUCKETS - 2))
    }

    fn plus(mut self, other: Self) -> Self {
        self.total_ns += other.total_ns;
        for (here, there) in self.buckets.iter_mut().zip(other.buckets) {
            *here += there;
        }
        self
    }
}

impl OpStats {
    fn plus(self, other: Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            bytes: self.bytes + other.bytes,
            errors: self.errors + other.errors,
            latency: self.latency.plus(other.latency),
        }
    }
}

impl IoStats {
    /// Each kind of request by its name.
    #[must_use]
    pub fn ops(&self) -> [(&'static str, &OpStats); 5] {
        [
            ("read", &self.read),
            ("write", &self.write),
            ("flush", &self.flush),
            ("discard", &self.discard),
            ("write_zeroes", &self.write_zeroes),
        ]
    }

    /// Requests of all kinds that were answered with an error.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.ops().iter().map(|(_, op)| op.errors).sum()
    }

    /// The sum of two counts, as for the queues of a device.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            read: self.read.plus(other.read),
            write: self.write.plus(other.write),
            flush: self.flush.plus(other.flush),
            discard: self.discard.plus(other.discard),
            write_zeroes: self.write_zeroes.plus(other.write_zeroes),
            fua: self.fua + other.fua,
            in_flight: self.in_flight + other.in_flight,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_in_the_one_bucket_whose_bound_it_does_not_exceed() {
        for ns in [0, 1, 1023, 1024, 1025, 2048, 2049, 1 << 20, 1 << 34, (1 << 34) + 1, u64::MAX] {
            let bucket = Latency::bucket(ns);
            let time = Duration::from_nanos(ns);
            assert!(Latency::bound(bucket).is_none_or(|bound| time <= bound), "{ns}");
            let below = bucket.checked_sub(1).and_then(Latency::bound);
            assert!(below.is_none_or(|bound| time > bound), "{ns}");
        }
        assert_eq!(Latency::bound(Latency::BUCKETS - 1), None);
        assert_eq!(Latency::bound(24), Some(Duration::from_nanos(1 << 34)));
    }

    #[test]
    fn quantiles_are_bounds_of_buckets_by_nearest_rank() {
        let mut latency = Latency::default();
        assert_eq!((latency.quantile(0.5), latency.is_empty()), (None, true));
        latency.buckets[0] = 99;
        latency.buckets[5] = 1;
        assert_eq!(latency.quantile(0.5), Latency::bound(0));
        assert_eq!(latency.quantile(0.99), Latency::bound(0));
        assert_eq!(latency.quantile(0.999), Latency::bound(5));
        latency.buckets[Latency::BUCKETS - 1] = 1000;
        assert_eq!(latency.quantile(1.0), Latency::bound(24));
    }
}
