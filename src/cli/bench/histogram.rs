//! Latencies, counted in buckets that are 1/16 of their value wide at most.

/// How many of which length.
#[derive(Debug, Clone)]
pub(super) struct Histogram(Vec<u64>);

/// Buckets a power of two.
const STEPS: u64 = 16;

impl Histogram {
    pub(super) fn new() -> Self {
        Self(vec![0; bucket(u64::MAX) + 1])
    }

    pub(super) fn record(&mut self, value: u64) {
        self.0[bucket(value)] += 1;
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(count, more)| *count += more);
    }

    pub(super) fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The value that `share` (0 to 1) of all are not above: the middle of its bucket. 0 of none.
    pub(super) fn quantile(&self, share: f64) -> f64 {
        let rank = (self.count() as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (index, count) in self.0.iter().enumerate() {
            seen += count;
            if seen >= rank {
                let (from, width) = bounds(index as u64);
                return from as f64 + (width - 1) as f64 / 2.0;
            }
        }
        0.0
    }
}

/// Values below 16 have a bucket each; then every power of two has 16.
fn bucket(value: u64) -> usize {
    let power = value.max(STEPS).ilog2() - STEPS.ilog2();
    (u64::from(power) * STEPS + (value >> power)) as usize
}

/// First value and width of a bucket.
fn bounds(index: u64) -> (u64, u64) {
    let power = (index / STEPS).saturating_sub(1);
    ((index - power * STEPS) << power, 1 << power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_in_the_bucket_that_says_so() {
        let mut expected = 0;
        for value in (0..5000).chain((13..64).flat_map(|p| [(1 << p) - 1, 1 << p, (1 << p) + 1])) {
            let (from, width) = bounds(bucket(value) as u64);
            assert!(from <= value && value - from < width, "{value}: {from} +{width}");
            assert!(width == 1 || width <= from / STEPS, "{value}: {width} is too wide");
            assert!(bucket(value) >= expected, "{value}");
            expected = bucket(value);
        }
        assert_eq!(bounds(bucket(u64::MAX) as u64).0, 31 << 59);
    }

    #[test]
    fn quantiles_are_near() {
        let mut all = Histogram::new();
        for value in 1..=1000 {
            let mut one = Histogram::new();
            one.record(value * 100);
            all.add(&one);
        }
        assert_eq!(all.count(), 1000);
        for (share, exact) in [(0.5, 50_000.0), (0.99, 99_000.0), (1.0, 100_000.0)] {
            let got = all.quantile(share);
            assert!((got / exact - 1.0).abs() < 1.0 / 16.0, "{share}: {got}");
        }
        assert!((Histogram::new().quantile(0.5)).abs() < f64::EPSILON);
    }
}
