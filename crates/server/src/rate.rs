//! A token bucket: how much may come at once, and how much per second.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// Allows `burst` units at once and `per_second` units each second after that.
#[derive(Debug, Clone)]
pub(crate) struct TokenBucket {
    burst: f64,
    per_second: f64,
    tokens: f64,
    filled_at: Duration,
}

impl TokenBucket {
    /// A full bucket. `now` is the time since any fixed instant, the same in every call.
    pub(crate) fn new(burst: u32, per_second: u32, now: Duration) -> Self {
        Self {
            burst: burst.into(),
            per_second: per_second.into(),
            tokens: burst.into(),
            filled_at: now,
        }
    }

    /// Takes `units` if they are there; takes nothing otherwise.
    pub(crate) fn take(&mut self, units: usize, now: Duration) -> bool {
        let enough = self.has(units, now);
        if enough {
            self.tokens -= units as f64;
        }
        enough
    }

    /// Whether [`TokenBucket::take`] would.
    pub(crate) fn has(&mut self, units: usize, now: Duration) -> bool {
        self.fill(now);
        self.tokens >= units as f64
    }

    /// Whether nothing was taken for so long that the bucket is as good as new.
    pub(crate) fn is_full(&mut self, now: Duration) -> bool {
        self.fill(now);
        self.tokens >= self.burst
    }

    fn fill(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.filled_at);
        self.filled_at = now.max(self.filled_at);
        self.tokens = (self.tokens + elapsed.as_secs_f64() * self.per_second).min(self.burst);
    }
}

/// How much may be logged about what strangers do: a line a second, or they could fill the disk.
#[derive(Debug)]
pub(crate) struct LineRate(Mutex<TokenBucket>);

impl LineRate {
    /// The first line may come at once.
    pub(crate) fn new(now: Duration) -> Self {
        Self(Mutex::new(TokenBucket::new(1, 1, now)))
    }

    /// Whether a line may be logged now, which then counts.
    pub(crate) fn may_log(&self, now: Duration) -> bool {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.take(1, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allows_a_burst_then_the_rate() {
        let mut bucket = TokenBucket::new(3, 2, Duration::ZERO);
        assert!(bucket.take(3, Duration::ZERO));
        assert!(!bucket.take(1, Duration::from_millis(499)));
        assert!(bucket.take(1, Duration::from_millis(500)));
        assert!(!bucket.is_full(Duration::from_millis(1_999)));
        assert!(bucket.is_full(Duration::from_secs(60)));
        assert!(
            !bucket.take(4, Duration::from_secs(60)),
            "never more than the burst"
        );
    }

    #[test]
    fn a_clock_that_steps_back_gives_nothing() {
        let mut bucket = TokenBucket::new(1, 1, Duration::from_secs(10));
        assert!(bucket.take(1, Duration::from_secs(10)));
        assert!(!bucket.take(1, Duration::from_secs(9)));
        assert!(bucket.take(1, Duration::from_secs(11)));
    }
}
