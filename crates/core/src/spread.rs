//! How late packets come: a histogram of arrival delays over the recent past.
//!
//! A delay is counted in frames between two clocks: *frames the player has rendered* minus *media time of the packet*.
//! Its absolute value means nothing; its spread is exactly what the jitter buffer must absorb,
//! bursts of the capturing and of the rendering browser included, and no clock is read to know it.
//!
//! When an output stands still for a moment, which browsers' outputs do, it renders that much less than the sender captured, and from
//! then on every packet comes that much earlier. This *slip* is no spread: what is remembered moves with it.

/// Resolution of the histogram, in frames.
pub const BIN_FRAMES: i64 = 16;
/// Spread covered: 16,384 frames, 340 ms at 48 kHz. What comes later than that is a stall, not jitter.
const BINS: usize = 1_024;

/// A fall smaller than this may be chance, not a slip.
const LEAST_SLIP_BINS: i64 = 2;
/// The shares of frames later than the delays by which two distributions are compared: all of them fall in a slip, while jitter
/// that ends leaves the prompt ones where they were, and a burst of late ones the late.
const COMPARED_SHARES: [f32; 4] = [0.75, 0.5, 0.25, 0.05];

/// A histogram of arrival delays, weighted by frames, in two generations: each [`turn`](Self::turn) forgets the older.
///
/// Not an exponential average: after a disturbance that would need many times its half-life to fall below a small share.
#[derive(Debug)]
pub struct Spread {
    /// What came since the last [`settle`](Self::settle).
    newest: [u32; BINS],
    recent: [u32; BINS],
    older: [u32; BINS],
    /// Delay at the lower edge of bin 0; a multiple of nothing, set by the first packet.
    origin: i64,
    is_empty: bool,
}

impl Default for Spread {
    fn default() -> Self {
        Self {
            newest: [0; BINS],
            recent: [0; BINS],
            older: [0; BINS],
            origin: 0,
            is_empty: true,
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
        if self.is_empty {
            self.is_empty = false;
            self.origin = delay.wrapping_sub(BIN_FRAMES * BINS as i64 / 2);
        }
        let bin = delay.wrapping_sub(self.origin).div_euclid(BIN_FRAMES);
        let last = BINS as i64 - 1;
        if bin < 0 {
            self.shift(bin);
        } else if bin > last {
            self.shift(bin - last);
        }
        let weight = &mut self.newest[bin.clamp(0, last) as usize];
        *weight = weight.saturating_add(u32::from(frames));
    }

    /// Joins the newest arrivals with those before, and returns the frames by which the output has slipped meanwhile, mostly 0:
    /// by so much all that is remembered was moved.
    ///
    /// RT: no alloc, no lock, O(bins).
    pub fn settle(&mut self) -> i64 {
        let past: [u32; BINS] =
            core::array::from_fn(|bin| self.recent[bin].saturating_add(self.older[bin]));
        let slip = COMPARED_SHARES
            .iter()
            .filter_map(|&share| {
                Some(bin_exceeded_by(&past, share)? - bin_exceeded_by(&self.newest, share)?)
            })
            .min()
            .filter(|&bins| bins >= LEAST_SLIP_BINS)
            .unwrap_or(0);
        move_weights(&mut self.recent, -slip);
        move_weights(&mut self.older, -slip);
        self.join();
        slip * BIN_FRAMES
    }

    /// Begins a new generation, and forgets the one before the last.
    ///
    /// RT: no alloc, no lock, O(bins).
    pub fn turn(&mut self) {
        self.join();
        self.older = self.recent;
        self.recent.fill(0);
    }

    /// The least delay that only a `share` (0 to 1) of all frames exceeded; `None` if no packet is remembered.
    ///
    /// RT: no alloc, no lock, O(bins).
    pub fn exceeded_by(&self, share: f32) -> Option<i64> {
        let all: [u32; BINS] = core::array::from_fn(|bin| {
            let past = self.recent[bin].saturating_add(self.older[bin]);
            past.saturating_add(self.newest[bin])
        });
        let bin = bin_exceeded_by(&all, share)?;
        Some(self.origin.wrapping_add((bin + 1) * BIN_FRAMES - 1))
    }

    fn join(&mut self) {
        for (recent, newest) in self.recent.iter_mut().zip(&mut self.newest) {
            *recent = recent.saturating_add(core::mem::take(newest));
        }
    }

    /// Moves the covered range by `bins`; what falls off is forgotten.
    fn shift(&mut self, bins: i64) {
        self.origin = self.origin.wrapping_add(bins.wrapping_mul(BIN_FRAMES));
        for weights in [&mut self.newest, &mut self.recent, &mut self.older] {
            move_weights(weights, bins.saturating_neg());
        }
    }
}

/// The least bin that only a `share` of all weight lies above; `None` if there is no weight.
fn bin_exceeded_by(weights: &[u32; BINS], share: f32) -> Option<i64> {
    let total: u64 = weights.iter().map(|&weight| u64::from(weight)).sum();
    let allowed = (total as f32 * share) as u64;
    let mut above = 0;
    let bin = weights.iter().rposition(|&weight| {
        above += u64::from(weight);
        above > allowed
    })?;
    Some(bin as i64)
}

/// Moves weights to bins higher by `bins`; what falls off is forgotten.
fn move_weights(weights: &mut [u32; BINS], bins: i64) {
    let distance = (bins.unsigned_abs() as usize).min(BINS);
    if bins > 0 {
        weights.copy_within(..BINS - distance, distance);
        weights[..distance].fill(0);
    } else {
        weights.copy_within(distance.., 0);
        weights[BINS - distance..].fill(0);
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
    fn what_is_remembered_moves_with_a_slip_and_with_nothing_else() {
        let mut spread = Spread::default();
        let mut hear = |delays: &[i64]| {
            for &delay in delays.iter().cycle().take(100) {
                spread.add(delay, 64);
            }
            (
                spread.settle(),
                spread.exceeded_by(0.0).expect("has packets"),
            )
        };
        assert_eq!(hear(&[0, 100, 200, 900]).0, 0);
        // Late ones, and then fewer of them: jitter.
        assert_eq!(hear(&[0, 0, 0, 900]).0, 0);
        // Half before, half after a slip.
        assert_eq!(hear(&[0, 100, 200, 900, -320, -220, -120, 580]).0, 0);
        let (slip, latest) = hear(&[-320, -220, -120, 580]);
        assert!((320 - BIN_FRAMES..=320).contains(&slip), "{slip}");
        assert!((580..580 + 2 * BIN_FRAMES).contains(&latest), "{latest}");
    }

    #[test]
    fn what_is_two_turns_old_no_longer_counts() {
        let mut spread = Spread::default();
        spread.add(1_000, 64);
        spread.turn();
        spread.add(0, 64);
        assert!(spread.exceeded_by(0.0).expect("has packets") >= 1_000);
        spread.turn();
        assert!(spread.exceeded_by(0.0).expect("has packets") < BIN_FRAMES);
        spread.turn();
        assert_eq!(spread.exceeded_by(0.0), None);
    }
}
