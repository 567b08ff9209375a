//! How late packets come: a histogram of arrival delays over the recent past.
//!
//! A delay is counted in frames between two clocks: *frames the player has rendered* minus *media time of the packet*.
//! Its absolute value means nothing; its spread is exactly what the jitter buffer must absorb,
//! bursts of the capturing and of the rendering browser included, and no clock is read to know it.
//!
//! When the output slips ([`crate::slip`]), what it has not rendered counts as rendered: otherwise every packet would come that much
//! earlier from then on, and the spread seem wider than it is. But a sender on the same sound card, as who hears himself is, stands still
//! along with it, and its packets come as before.

use crate::wire::SampleRate;

/// Resolution of the histogram, in frames: twice that above 48 kHz.
const BIN_FRAMES: usize = 16;
/// Spread covered: 340 ms. What lies farther apart counts as that far.
const BINS: usize = 1_024;
/// Share of the remembered frames that came later than the prompt ones, which no queue moves.
const LATER_SHARE: f32 = 0.9;
/// Frames that must have come since a slip to tell whether the sender stood still too.
const LEAST_FRAMES: u64 = 2_048;

/// A histogram of arrival delays, weighted by frames, in two generations: each [`turn`](Self::turn) forgets the older.
///
/// Not an exponential average: after a disturbance that would need many times its half-life to fall below a small share.
#[derive(Debug)]
pub struct Spread {
    /// What came since the last [`settle`](Self::settle), and between that and the one before.
    newest: [u32; BINS],
    before: [u32; BINS],
    recent: [u32; BINS],
    older: [u32; BINS],
    /// See [`Self::doubted_frames`].
    doubted: i64,
    bin_frames: i64,
    /// Delay at the lower edge of bin 0; a multiple of nothing, set by the first packet.
    origin: i64,
    is_empty: bool,
}

impl Spread {
    /// Nothing is remembered yet, of arrivals at a stream's sample rate.
    pub fn new(rate: SampleRate) -> Self {
        Self {
            bin_frames: rate.scaled(BIN_FRAMES) as i64,
            newest: [0; BINS],
            before: [0; BINS],
            doubted: 0,
            recent: [0; BINS],
            older: [0; BINS],
            origin: 0,
            is_empty: true,
        }
    }

    /// Forgets everything. RT: no alloc, no lock, O(bins).
    pub fn clear(&mut self) {
        for weights in [
            &mut self.newest,
            &mut self.before,
            &mut self.recent,
            &mut self.older,
        ] {
            weights.fill(0);
        }
        (self.doubted, self.is_empty) = (0, true);
    }

    /// Frames within which delays are not told apart.
    pub fn bin_frames(&self) -> i64 {
        self.bin_frames
    }

    /// Frames remembered.
    ///
    /// RT: no alloc, no lock, O(bins).
    pub fn frames(&self) -> u64 {
        let all = [&self.newest, &self.before, &self.recent, &self.older];
        all.into_iter()
            .flatten()
            .map(|&weight| u64::from(weight))
            .sum()
    }

    /// Counts a packet of `frames` frames that arrived with `delay`. What came `soonest` of late stays within the range covered; what came sooner, longer
    /// ago, counts as that soon where there is no room for it: where a sender loses frames all the time, delays leave any range.
    ///
    /// RT: no alloc, no lock, O(bins) at most.
    pub fn add(&mut self, delay: i64, frames: u16, soonest: i64) {
        if self.is_empty {
            self.is_empty = false;
            self.origin = delay.wrapping_sub(self.bin_frames * BINS as i64 / 2);
        }
        let bin_of = |delay: i64| delay.wrapping_sub(self.origin).div_euclid(self.bin_frames);
        let mut bin = bin_of(delay);
        let last = BINS as i64 - 1;
        if bin < 0 {
            self.shift(bin);
        } else if bin > last {
            // A single straggler must not make forget what came in time.
            let bins = (bin - last).min(bin_of(soonest).max(self.first_bin()));
            self.shift(bins);
            bin -= bins;
        }
        let weight = &mut self.newest[bin.clamp(0, last) as usize];
        *weight = weight.saturating_add(u32::from(frames));
    }

    /// Takes what came before the last call into what is remembered, and `slip` as [`crate::slip::SlipWatch`] tells it: by so much
    /// delays are counted longer from now on, and those of the newest are too short, as are some in the moment of the slip itself.
    /// Returns the slip told by the call before, if the sender has stood still as long, and otherwise 0.
    ///
    /// RT: no alloc, no lock, O(bins).
    pub fn settle(&mut self, slip: i64) -> i64 {
        let bins = self.nearest_bins(slip);
        if slip != 0 && self.remembers_only_newest() {
            // However long the slip, they lie as near to each other as before.
            self.origin = self.origin.wrapping_add(bins * self.bin_frames);
        } else {
            move_weights(&mut self.newest, bins);
        }
        if slip > 0 {
            self.lift_before();
        }
        let stood_still = if self.has_sender_stood_still() {
            let bins = self.nearest_bins(self.doubted);
            move_weights(&mut self.recent, bins);
            move_weights(&mut self.older, bins);
            self.doubted
        } else {
            0
        };
        self.doubted = slip.max(0);
        self.join();
        stood_still
    }

    fn remembers_only_newest(&self) -> bool {
        let mut rest = [&self.before, &self.recent, &self.older].into_iter();
        rest.all(|weights| weights.iter().all(|&weight| weight == 0))
    }

    /// The newest slip, as long as it is not known whether the sender has stood still as well; 0 mostly.
    pub fn doubted_frames(&self) -> i64 {
        self.doubted
    }

    /// Whether what came since the doubted slip came later than before by most of that: even the least late of it. A moment's queue may
    /// do the same, but hardly for all that comes.
    fn has_sender_stood_still(&self) -> bool {
        if self.doubted == 0 {
            return false;
        }
        let frames: u64 = self.newest.iter().map(|&weight| u64::from(weight)).sum();
        let now = self.newest.iter().position(|&weight| weight > 0);
        let least = self.nearest_bins(self.doubted) * 3 / 4;
        frames >= LEAST_FRAMES
            && self
                .prompt_bin()
                .zip(now)
                .is_some_and(|(past, now)| now as i64 - past > least)
    }

    /// What came between a slip and the end of its window seems earlier than anything did: it counts as prompt.
    fn lift_before(&mut self) {
        if let Some(prompt) = self.prompt_bin() {
            let (early, rest) = self.before.split_at_mut(prompt as usize);
            let lifted = total(early);
            early.fill(0);
            rest[0] = rest[0].saturating_add(lifted);
        }
    }

    /// The bin of the prompt ones of what is remembered.
    fn prompt_bin(&self) -> Option<i64> {
        bin_exceeded_by([&self.recent, &self.older], LATER_SHARE)
    }

    /// Begins a new generation, and forgets the one before the last.
    ///
    /// RT: no alloc, no lock, O(bins).
    pub fn turn(&mut self) {
        // In doubt the newest have to stay apart.
        if self.doubted == 0 {
            self.join();
            self.join();
        }
        self.older = self.recent;
        self.recent.fill(0);
    }

    /// The least delay that only a `share` (0 to 1) of all frames exceeded; `None` if no packet is remembered.
    ///
    /// RT: no alloc, no lock, O(bins).
    pub fn exceeded_by(&self, share: f32) -> Option<i64> {
        let all = [&self.newest, &self.before, &self.recent, &self.older];
        let bin = bin_exceeded_by(all, share)?;
        Some(self.origin.wrapping_add((bin + 1) * self.bin_frames - 1))
    }

    fn nearest_bins(&self, frames: i64) -> i64 {
        (frames.saturating_add(self.bin_frames / 2)).div_euclid(self.bin_frames)
    }

    fn join(&mut self) {
        for (recent, before) in self.recent.iter_mut().zip(&self.before) {
            *recent = recent.saturating_add(*before);
        }
        self.before = core::mem::replace(&mut self.newest, [0; BINS]);
    }

    /// The first bin that has any weight; the last if none has.
    fn first_bin(&self) -> i64 {
        let all = [&self.newest, &self.before, &self.recent, &self.older];
        let is_used = |bin: &usize| all.iter().any(|part| part[*bin] > 0);
        (0..BINS).find(is_used).unwrap_or(BINS - 1) as i64
    }

    /// Moves the covered range by `bins`; what would fall off stays at its edge.
    fn shift(&mut self, bins: i64) {
        self.origin = self.origin.wrapping_add(bins.wrapping_mul(self.bin_frames));
        for weights in [
            &mut self.newest,
            &mut self.before,
            &mut self.recent,
            &mut self.older,
        ] {
            move_weights(weights, bins.saturating_neg());
        }
    }
}

/// Spans that a [`Floor`] looks back over.
const SPANS: usize = 14;

/// The delay of what came soonest of late. The histogram may remember for minutes; but where a sender's sound card has lost frames, all that
/// follows comes later by them for good, and is as prompt as what came before.
#[derive(Debug)]
pub struct Floor {
    /// Of each span; `NOTHING_CAME` if so.
    least: [i64; SPANS],
    newest: usize,
}

const NOTHING_CAME: i64 = i64::MAX;

impl Default for Floor {
    /// Nothing is remembered yet.
    fn default() -> Self {
        Self {
            least: [NOTHING_CAME; SPANS],
            newest: 0,
        }
    }
}

impl Floor {
    /// Forgets everything.
    pub fn clear(&mut self) {
        self.least.fill(NOTHING_CAME);
    }

    /// A packet arrived with `delay`. RT, as all of it: no alloc, no lock, O(spans) at most.
    pub fn add(&mut self, delay: i64) {
        let least = &mut self.least[self.newest];
        *least = delay.min(*least);
    }

    /// Begins a span, and forgets the oldest.
    pub fn turn(&mut self) {
        self.newest = (self.newest + 1) % SPANS;
        self.least[self.newest] = NOTHING_CAME;
    }

    /// The least delay of all spans; `None` if nothing came.
    pub fn delay(&self) -> Option<i64> {
        let least = self.least.iter().copied().min();
        least.filter(|&delay| delay != NOTHING_CAME)
    }
}

/// The least bin that only a `share` of all weight, of all `parts` together, lies above; `None` if there is no weight.
fn bin_exceeded_by<const PARTS: usize>(parts: [&[u32; BINS]; PARTS], share: f32) -> Option<i64> {
    // Of a part at a time, and without a check of what cannot overflow, the sum vectorises.
    let sum = |weights: &[u32]| {
        (weights.iter()).fold(0u64, |sum, &weight| sum.wrapping_add(u64::from(weight)))
    };
    let total: u64 = parts.iter().map(|part| sum(&part[..])).sum();
    let allowed = (total as f32 * share) as u64;
    let mut above = 0;
    let bin = (0..BINS).rposition(|bin| {
        above += sum(&parts.map(|part| part[bin]));
        above > allowed
    })?;
    Some(bin as i64)
}

fn total(weights: &[u32]) -> u32 {
    weights.iter().copied().fold(0, u32::saturating_add)
}

/// Moves weights to bins higher by `bins`; what would fall off stays at the edge.
fn move_weights(weights: &mut [u32; BINS], bins: i64) {
    let distance = bins.unsigned_abs().min(BINS as u64 - 1) as usize;
    if bins > 0 {
        let beyond = total(&weights[BINS - distance..]);
        weights.copy_within(..BINS - distance, distance);
        weights[..distance].fill(0);
        weights[BINS - 1] = weights[BINS - 1].saturating_add(beyond);
    } else {
        let beyond = total(&weights[..distance]);
        weights.copy_within(distance.., 0);
        weights[BINS - distance..].fill(0);
        weights[0] = weights[0].saturating_add(beyond);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BIN_FRAMES: i64 = super::BIN_FRAMES as i64;

    #[test]
    fn the_share_that_exceeds_a_delay_is_respected() {
        let mut spread = Spread::new(SampleRate::Hz48000);
        assert_eq!(spread.exceeded_by(0.01), None);
        for n in 0..1_000 {
            spread.add(5_000 + n % 100, 64, 5_000);
        }
        spread.add(7_000, 64, 5_000);
        let tight = spread.exceeded_by(0.002).expect("has packets");
        assert!((5_099..5_099 + BIN_FRAMES).contains(&tight), "{tight}");
        let safe = spread.exceeded_by(0.0).expect("has packets");
        assert!((7_000..7_000 + BIN_FRAMES).contains(&safe), "{safe}");
    }

    #[test]
    fn a_straggler_makes_nothing_forgotten() {
        let mut spread = Spread::new(SampleRate::Hz48000);
        for _ in 0..5_000 {
            spread.add(0, 128, 0);
        }
        // However late it comes, it is one packet, and is still known when the next comes in time.
        for late in [9_600, 19_200, i64::MAX - 5] {
            spread.add(late, 128, 0);
            let budgeted = spread.exceeded_by(0.001).expect("has packets");
            assert!((0..BIN_FRAMES).contains(&budgeted), "{late}: {budgeted}");
            spread.add(0, 128, 0);
            let latest = spread.exceeded_by(0.0).expect("has packets");
            assert!(latest >= late.min(16_000), "{late}: {latest}");
        }
    }

    #[test]
    fn the_range_follows_the_delays() {
        let mut spread = Spread::new(SampleRate::Hz48000);
        for delay in [0, 20_000, -20_000, 500_000, -500_000, i64::MIN + 5] {
            spread.clear();
            spread.add(delay + 100, 100, delay + 100);
            for later in [0, 15_000, 100] {
                spread.add(delay + later, 1, delay);
                let latest = spread.exceeded_by(0.0).expect("has packets");
                let range = 15_000 + BIN_FRAMES;
                assert!((0..range).contains(&(latest - delay)), "{delay}: {latest}");
            }
            let first = spread.exceeded_by(0.999).expect("has packets");
            assert!(
                (0..BIN_FRAMES).contains(&(first - delay)),
                "{delay}: {first}"
            );
        }
    }

    #[test]
    fn delays_that_rise_for_as_long_as_is_remembered_stay_known() {
        let mut spread = Spread::new(SampleRate::Hz48000);
        // 100 frames lost in each second, for four minutes.
        for packet in 0..240 * 400 {
            let delay = packet / 4;
            spread.add(delay, 120, (delay - 700).max(0));
            let needed = spread.exceeded_by(0.001).expect("has packets");
            assert!((-32..32).contains(&(delay - needed)), "{packet}: {needed}");
        }
    }

    /// Four delays, that much later, and then a call of `settle`: what it returns, and the prompt and the latest delay.
    fn hear(spread: &mut Spread, later: i64, slip: i64) -> (i64, [i64; 2]) {
        for delay in [0, 100, 200, 900].into_iter().cycle().take(100) {
            spread.add(delay + later, 64, later);
        }
        let stood_still = spread.settle(slip);
        let of = |share| spread.exceeded_by(share).expect("has packets");
        (stood_still, [of(0.9), of(0.0)])
    }

    #[test]
    fn what_came_after_a_slip_is_moved_to_what_came_before() {
        let mut spread = Spread::new(SampleRate::Hz48000);
        let (_, before) = hear(&mut spread, 0, 0);
        hear(&mut spread, 0, 0);
        // Half of them before it, half after; then all after it.
        hear(&mut spread, 0, 0);
        hear(&mut spread, -320, 0);
        assert_eq!(hear(&mut spread, -320, 320), (0, before));
        assert_eq!(hear(&mut spread, 0, 0), (0, before));
        assert_eq!(spread.exceeded_by(0.99), spread.exceeded_by(0.9));
        assert_eq!(hear(&mut spread, 480, -480), (0, before));
        assert_eq!(hear(&mut spread, 0, 0), (0, before));
    }

    #[test]
    fn a_sender_that_stands_still_too_is_recognised() {
        let mut spread = Spread::new(SampleRate::Hz48000);
        let (_, [prompt, latest]) = hear(&mut spread, 0, 0);
        hear(&mut spread, 0, 0);
        // What was on its way came earlier, the rest as before.
        spread.add(-320, 64, -320);
        hear(&mut spread, 0, 320);
        let moved = [prompt + 320, latest + 320];
        assert_eq!(hear(&mut spread, 320, 0), (320, moved));
        assert_eq!(hear(&mut spread, 320, 0), (0, moved));
    }

    #[test]
    fn what_is_two_turns_old_no_longer_counts() {
        let mut spread = Spread::new(SampleRate::Hz48000);
        spread.add(1_000, 64, 1_000);
        spread.turn();
        spread.add(0, 64, 0);
        assert!(spread.exceeded_by(0.0).expect("has packets") >= 1_000);
        spread.turn();
        assert!(spread.exceeded_by(0.0).expect("has packets") < BIN_FRAMES);
        spread.turn();
        assert_eq!(spread.exceeded_by(0.0), None);
    }
}
