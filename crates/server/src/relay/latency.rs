//! Distributions of short durations, counted by the media thread alone.

use std::time::Duration;

use crate::media::Quantiles;

/// The first bucket holds all below 576 ns.
const FIRST_OCTAVE: u32 = 9;
/// Buckets of one octave: neighbours differ by an eighth at most.
const PER_OCTAVE: usize = 8;
/// Up to 2.1 s; what takes longer is counted in the last bucket.
const OCTAVES: usize = 22;

/// How often which duration was seen.
#[derive(Debug, Clone)]
pub(crate) struct Latencies {
    counts: [u64; OCTAVES * PER_OCTAVE],
    sum: Duration,
}

impl Default for Latencies {
    fn default() -> Self {
        Self {
            counts: [0; OCTAVES * PER_OCTAVE],
            sum: Duration::ZERO,
        }
    }
}

impl Latencies {
    pub(crate) fn record(&mut self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket_of(ns)] += 1;
        self.sum += latency;
    }

    /// Adds all that another has counted.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum += other.sum;
    }

    /// What was counted since `before`, an earlier copy of the same.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let mut counts = self.counts;
        for (count, less) in counts.iter_mut().zip(&before.counts) {
            *count -= less;
        }
        Self {
            counts,
            sum: self.sum - before.sum,
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub(crate) fn sum(&self) -> Duration {
        self.sum
    }

    /// Median and 99th percentile, an eighth too long at most; none of none.
    pub(crate) fn quantiles(&self) -> Option<Quantiles> {
        Some(Quantiles {
            p50: self.quantile_us(50)?,
            p99: self.quantile_us(99)?,
        })
    }

    fn quantile_us(&self, percent: u64) -> Option<u32> {
        let rank = (self.count() * percent).div_ceil(100);
        let mut seen = 0;
        let bucket = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank && rank > 0
        })?;
        Some(
            (end_of(bucket).div_ceil(1_000))
                .try_into()
                .unwrap_or(u32::MAX),
        )
    }

    /// For each octave its end in seconds, and how many are in it.
    pub(crate) fn octaves(&self) -> [(f64, u64); OCTAVES] {
        std::array::from_fn(|octave| {
            let buckets = octave * PER_OCTAVE..(octave + 1) * PER_OCTAVE;
            let end = match octave + 1 {
                OCTAVES => f64::MAX,
                _ => end_of(buckets.end - 1) as f64 / 1e9,
            };
            (end, self.counts[buckets].iter().sum())
        })
    }
}

fn bucket_of(ns: u64) -> usize {
    let ns = ns.max(1 << FIRST_OCTAVE);
    let octave = ns.ilog2();
    let eighth = (ns >> (octave - 3)) as usize & (PER_OCTAVE - 1);
    ((octave - FIRST_OCTAVE) as usize * PER_OCTAVE + eighth).min(OCTAVES * PER_OCTAVE - 1)
}

/// The first duration beyond a bucket, ns.
fn end_of(bucket: usize) -> u64 {
    let octave = FIRST_OCTAVE as usize + bucket / PER_OCTAVE;
    ((PER_OCTAVE + bucket % PER_OCTAVE + 1) as u64) << (octave - 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_is_in_the_bucket_that_ends_beyond_it() {
        for ns in (512..100_000).chain([1_000_000, 999_999_999, 2_000_000_000]) {
            let bucket = bucket_of(ns);
            assert!(ns < end_of(bucket), "{ns} ns");
            assert!(bucket == 0 || ns >= end_of(bucket - 1), "{ns} ns");
            assert!(end_of(bucket) - ns <= ns / 8 + 1, "{ns} ns");
        }
        assert_eq!(bucket_of(0), 0);
        assert_eq!(bucket_of(u64::MAX), OCTAVES * PER_OCTAVE - 1);
    }

    #[test]
    fn quantiles_are_of_what_was_counted_since() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.quantiles(), None);
        latencies.record(Duration::from_secs(1));
        let before = latencies.clone();
        for us in 1..=100 {
            latencies.record(Duration::from_micros(us));
        }
        let recent = latencies.since(&before);
        let Quantiles { p50, p99 } = recent.quantiles().expect("some");
        assert!((50..=57).contains(&p50), "{p50}");
        assert!((99..=112).contains(&p99), "{p99}");
        assert_eq!(
            (recent.count(), recent.sum()),
            (100, Duration::from_micros(5_050))
        );
        let octaves = latencies.octaves();
        assert_eq!(octaves.iter().map(|(_, count)| count).sum::<u64>(), 101);
        assert!(octaves.is_sorted_by(|(a, _), (b, _)| a < b));
    }
}
