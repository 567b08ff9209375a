//! How late packets come: a histogram of arrival delays that forgets.
//!
//! A delay is counted in frames between two clocks: *frames the player has rendered* minus *media time of the packet*.
//! Its absolute value means nothing; its spread is exactly what the jitter buffer must absorb,
//! bursts of the capturing and of the rendering browser included, and no clock is read to know it.

/// Resolution of the histogram, in frames.
const BIN_FRAMES: i64 = 16;
/// Spread covered: 8,192 frames, 170 ms at 48 kHz. What comes later than that is a stall, not jitter.
const BINS: usize = 512;
/// Weights below this many frames are forgotten altogether.
const NEGLIGIBLE_FRAMES: f32 = 0.5;

/// A forgetting histogram of arrival delays, weighted by frames.
#[derive(Debug)]
pub struct Spread {
    bins: [f32; BINS],
    total: f32,
    /// Delay at the lower edge of bin 0; a multiple of nothing, set by the first packet.
    origin: i64,
}

impl Default for Spread {
    fn default() -> Self {
        Self {
            bins: [0.0; BINS],
            total: 0.0,
            origin: 0,
        }
    }
}

impl Spread {
    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Counts a packet of `frames` frames that arrived with `delay`.
    ///
    /// RT: no alloc, no lock, O(bins) at most.
    pub fn add(&mut self, delay: i64, frames: u16) {
        if self.total == 0.0 {
            self.origin = delay.wrapping_sub(BIN_FRAMES * BINS as i64 / 2);
        }
        let bin = delay.wrapping_sub(self.origin).div_euclid(BIN_FRAMES);
        let last = BINS as i64 - 1;
        if bin < 0 {
            self.shift(bin);
        } else if bin > last {
            self.shift(bin - last);
        }
        self.bins[bin.clamp(0, last) as usize] += f32::from(frames);
        self.total += f32::from(frames);
    }

    /// Multiplies all weights by `keep` (0 to 1): the past counts less.
    ///
    /// RT: no alloc, no lock, O(bins).
    pub fn forget(&mut self, keep: f32) {
        self.total = 0.0;
        for bin in &mut self.bins {
            *bin *= keep;
            if *bin < NEGLIGIBLE_FRAMES {
                *bin = 0.0;
            }
            self.total += *bin;
        }
    }

    /// The least delay that only a `share` (0 to 1) of all frames exceeded; `None` before the first packet.
    ///
    /// RT: no alloc, no lock, O(bins).
    pub fn exceeded_by(&self, share: f32) -> Option<i64> {
        let mut above = 0.0;
        let allowed = self.total * share;
        let bin = self.bins.iter().rposition(|weight| {
            above += weight;
            above > allowed
        })?;
        Some(self.origin.wrapping_add((bin as i64 + 1) * BIN_FRAMES - 1))
    }

    /// Moves the covered range by `bins`; what falls off is forgotten.
    fn shift(&mut self, bins: i64) {
        self.origin = self.origin.wrapping_add(bins.wrapping_mul(BIN_FRAMES));
        let distance = (bins.unsigned_abs() as usize).min(BINS);
        if bins > 0 {
            self.bins.copy_within(distance.., 0);
            self.bins[BINS - distance..].fill(0.0);
        } else {
            self.bins.copy_within(..BINS - distance, distance);
            self.bins[..distance].fill(0.0);
        }
        self.total = self.bins.iter().sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_that_exceeds_a_delay_is_respected() {
        let mut spread = Spread::default();
        assert_eq!(spread.exceeded_by(0.01), None);
        for n in 0..1_000 {
            spread.add(5_000 + n % 100, 64);
        }
        spread.add(7_000, 64);
        let tight = spread.exceeded_by(0.002).expect("has packets");
        assert!((5_099..5_099 + BIN_FRAMES).contains(&tight), "{tight}");
        let safe = spread.exceeded_by(0.0).expect("has packets");
        assert!((7_000..7_000 + BIN_FRAMES).contains(&safe), "{safe}");
    }

    #[test]
    fn the_range_follows_the_delays() {
        let mut spread = Spread::default();
        for delay in [0, 20_000, -20_000, i64::MAX - 5, i64::MIN + 5] {
            spread.add(delay, 100);
            let newest = spread.exceeded_by(0.0).expect("has packets");
            assert!(newest.wrapping_sub(delay) < BIN_FRAMES, "{delay}: {newest}");
        }
    }

    #[test]
    fn what_is_forgotten_no_longer_counts() {
        let mut spread = Spread::default();
        spread.add(1_000, 64);
        for _ in 0..20 {
            spread.forget(0.5);
            spread.add(0, 64);
        }
        assert!(spread.exceeded_by(0.0).expect("has packets") < BIN_FRAMES);
    }
}
