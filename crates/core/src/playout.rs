//! How much delay a stream needs: the adaptive half of the jitter buffer.
//!
//! The past would have kept the glitch budget with the delay that only so small a share of its packets exceeded: that is what the future is given,
//! too. How long the past is decides the rest. It is 7 to 14 s with the default budget, half as long with a lax one and up to four times as long with a
//! strict one, and longer where shrinking has proved wrong: where a spread that was forgotten came again. What the budget allowed and was not used is saved and makes the share greater, what was used beyond it is owed and makes the share smaller
//! (decision 16).
//!
//! Delays are counted as in [`crate::spread`]: only their differences mean anything.

use crate::spread::{Floor, Spread};
use crate::wire::SampleRate;

/// The glitch budget unless another is asked for: the share of frames that may be concealed because they come too late.
pub const DEFAULT_BUDGET: f32 = 0.001;
/// The least and the most that may be asked for.
pub const LEAST_BUDGET: f32 = 0.000_01;
/// See [`LEAST_BUDGET`].
pub const MOST_BUDGET: f32 = 0.1;
/// Share of the budget that the past may have been late by, but for what is saved or owed: the rest is for what the past did not foretell.
const BUDGET_OF_PAST: f32 = 0.5;
/// What is concealed beyond the budget is owed, at most what the budget allows in four minutes.
const MOST_OWED_SECONDS: f32 = 240.0;
/// What the budget allows and is not concealed is saved, at most so much of it: a minute that went well is no reason for a bad one.
const MOST_SAVED_SECONDS: f32 = 30.0;
/// Who owes what the budget allows in so long aims at half as many late frames, twice that at a third, and so on; who has saved it at twice
/// as many, twice that at three times as many.
const BALANCE_SECONDS: f32 = 15.0;
/// How often to [`review`](PlayoutDelay::review) the delay.
pub const REVIEW_SECONDS: f32 = 0.5;
/// Reviews in one generation of the spread, with the default budget: its past is 7 to 14 s, so that 15 s after a disturbance it is forgotten.
/// The first generations are shorter, one review and then twice as many each time: connecting disturbs, and is over soon.
const REVIEWS_PER_TURN: u32 = 14;
/// The same where shrinking after so short a time has proved wrong again and again: 112 to 224 s.
const MOST_REVIEWS_PER_TURN: u32 = 16 * REVIEWS_PER_TURN;
/// Having shrunk is regretted when a spread that was forgotten comes again within four minutes; after as long without, the memory
/// gets shorter again.
const REGRET_REVIEWS: u32 = 480;
/// What is so many times wider than anything of late is no such regret, and no reason to remember it for longer.
const NEWS: i64 = 3;
/// Share of the frames that came later than the prompt ones: the spread is measured from the quickest in a hundred.
const LATER_SHARE: f32 = 0.99;

/// The delay that keeps the glitch budget, learnt from how late packets came.
#[derive(Debug)]
pub struct PlayoutDelay {
    rate: SampleRate,
    /// Share of frames that may be concealed because they come late.
    budget: f32,
    /// Frames that the budget had allowed by the last review and that were not concealed; negative if more were.
    balance: f32,
    /// Frames that came too late since.
    late: u64,
    spread: Spread,
    /// Over seven seconds: its spans are those from one review to the next.
    floor: Floor,
    /// See [`Self::width`].
    width: Option<u64>,
    /// The delay has not grown since that was found out.
    is_measured: bool,
    reviews_left: u32,
    reviews_per_turn: u32,
    /// How many reviews a generation of the spread shall last.
    memory: u32,
    /// The widest spread that had to be absorbed of late, and the reviews since.
    widest: i64,
    reviews_since_widest: u32,
    /// Less than three quarters of that were needed at a review, and the delay has not grown since.
    is_given_up: bool,
    /// The delay has grown since the last review. What is needed may also seem more because all that came in time is forgotten.
    has_grown: bool,
}

impl PlayoutDelay {
    /// Nothing is known yet.
    pub fn new(rate: SampleRate) -> Self {
        Self {
            rate,
            budget: DEFAULT_BUDGET,
            balance: 0.0,
            late: 0,
            spread: Spread::new(rate),
            floor: Floor::default(),
            width: None,
            is_measured: true,
            reviews_left: 1,
            reviews_per_turn: 1,
            memory: REVIEWS_PER_TURN,
            widest: 0,
            reviews_since_widest: 0,
            is_given_up: false,
            has_grown: false,
        }
    }

    /// Back to the state of a new one, without allocating. RT: O(bins of the spread).
    pub fn reset(&mut self) {
        self.forget_arrivals();
        self.budget = DEFAULT_BUDGET;
        self.begin_account();
        self.memory = REVIEWS_PER_TURN;
        (self.widest, self.reviews_since_widest) = (0, 0);
        (self.is_given_up, self.has_grown) = (false, false);
    }

    /// What came so far says nothing of what will come; what was learnt of the network stays. RT: O(bins of the spread).
    pub fn forget_arrivals(&mut self) {
        (self.reviews_left, self.reviews_per_turn) = (1, 1);
        self.spread.clear();
        self.floor.clear();
        (self.width, self.is_measured) = (None, true);
    }

    /// A packet of `frames` frames arrived with `delay`. RT: no alloc, no lock, O(bins of the spread) at most.
    pub fn add(&mut self, delay: i64, frames: u16) {
        self.floor.add(delay);
        let soonest = self.floor.delay().unwrap_or(delay);
        self.spread.add(delay, frames, soonest);
    }

    /// So many frames came too late. RT: O(1).
    pub fn count_late(&mut self, frames: u64) {
        self.late += frames;
    }

    /// The delay was made so much longer, and as many frames concealed for it. RT: O(1).
    pub fn count_growth(&mut self, frames: i64) {
        self.balance -= frames as f32;
        self.has_grown |= frames > 0;
        self.is_measured = false;
    }

    /// See [`Spread::settle`].
    pub fn settle(&mut self, slip: i64) -> i64 {
        self.spread.settle(slip)
    }

    /// See [`Spread::doubted_frames`].
    pub fn doubted_frames(&self) -> i64 {
        self.spread.doubted_frames()
    }

    /// Frames within which delays are not told apart.
    pub fn resolution(&self) -> i64 {
        self.spread.bin_frames()
    }

    /// Frames that arrived, of those remembered. RT: no alloc, no lock, O(bins of the spread).
    pub fn known_frames(&self) -> u64 {
        self.spread.frames()
    }

    /// The share of frames that may be concealed because they come late.
    pub fn budget(&self) -> f32 {
        self.budget
    }

    /// Changes it; clamped to [`LEAST_BUDGET`] to [`MOST_BUDGET`].
    pub fn set_budget(&mut self, share: f32) {
        let clamped = share.clamp(LEAST_BUDGET, MOST_BUDGET);
        if share.is_finite() && clamped != self.budget {
            self.budget = clamped;
            self.memory = self.least_memory();
            self.reviews_left = self.reviews_left.min(self.memory);
            self.begin_account();
        }
    }

    /// The delay of packets that did not queue; `None` if nothing is known. RT: no alloc, no lock, O(bins of the spread).
    pub fn prompt(&self) -> Option<i64> {
        let prompt = self.spread.exceeded_by(LATER_SHARE)?;
        Some(self.floor.delay().map_or(prompt, |floor| floor.max(prompt)))
    }

    /// The least delay of late; `None` if nothing came. RT: O(1).
    pub fn soonest(&self) -> Option<i64> {
        self.floor.delay()
    }

    /// The delay with which the past would have kept the budget, or less of it where some is owed, or more where some is saved; `None` if nothing
    /// is known. RT: no alloc, no lock, O(bins of the spread).
    pub fn needed(&self) -> Option<i64> {
        let share = BUDGET_OF_PAST * self.budget;
        let weight = self.balance_seconds() / BALANCE_SECONDS;
        self.spread.exceeded_by(if weight < 0.0 {
            share / (1.0 - weight)
        } else {
            share * (1.0 + weight)
        })
    }

    /// How wide the spread is: what is needed beyond what the most prompt packets take, in frames, as of the last review or [`measure`](Self::measure);
    /// `None` before.
    pub fn width(&self) -> Option<u64> {
        self.width
    }

    /// Finds out anew how wide the spread is, if the delay has grown since. RT: no alloc, no lock, O(bins of the spread).
    pub fn measure(&mut self) {
        if !self.is_measured {
            self.width = self.width_of(self.needed());
            self.is_measured = true;
        }
    }

    /// Forgets what is old, and learns how long to remember, from whether what was forgotten came again; to be called every [`REVIEW_SECONDS`]. What came late
    /// counts against the budget only if the delay `is_followed`. RT: no alloc, no lock, O(bins of the spread).
    pub fn review(&mut self, is_followed: bool) {
        if is_followed {
            let allowed = self.allowed_per_second();
            self.balance = (self.balance() + allowed * REVIEW_SECONDS)
                .clamp(-allowed * MOST_OWED_SECONDS, allowed * MOST_SAVED_SECONDS);
        }
        self.late = 0;
        self.reviews_left = self.reviews_left.saturating_sub(1);
        // Who owes does not forget, but for what came in the first moments.
        let is_young = self.reviews_per_turn < self.least_memory();
        let owes = self.balance() < 0.0 && self.comes_again();
        if self.reviews_left == 0 && (is_young || !owes) {
            self.reviews_per_turn = (2 * self.reviews_per_turn).min(self.memory);
            self.reviews_left = self.reviews_per_turn;
            self.spread.turn();
        }
        self.floor.turn();
        self.is_measured = false;
        self.measure();
        self.learn();
    }

    /// Nothing is saved, and nothing owed.
    pub fn begin_account(&mut self) {
        (self.balance, self.late) = (0.0, 0);
    }

    /// How many reviews a generation of the spread lasts at least: a strict budget is kept by a long memory, a lax one forgets soon.
    fn least_memory(&self) -> u32 {
        let strictness = (DEFAULT_BUDGET / self.budget).clamp(0.5, 4.0);
        (REVIEWS_PER_TURN as f32 * strictness) as u32
    }

    /// Frames that the budget allows in a second.
    fn allowed_per_second(&self) -> f32 {
        self.budget * self.rate.hz() as f32
    }

    /// What is saved or owed, now.
    fn balance(&self) -> f32 {
        self.balance - self.late as f32
    }

    /// How many seconds of the budget are saved or, if negative, to be made up for. What pays for half of the widest spread of late is no saving but
    /// kept for that, and made up for like what is owed where that spread is known to come again.
    fn balance_seconds(&self) -> f32 {
        let balance = self.balance();
        let reserve = self.widest as f32 / 2.0;
        let frames = if balance >= reserve {
            balance
        } else if self.comes_again() {
            balance - reserve
        } else {
            0.0
        };
        frames / self.allowed_per_second()
    }

    /// Whether shrinking has proved wrong. What was late but once is nothing to make up for.
    fn comes_again(&self) -> bool {
        self.memory > self.least_memory()
    }

    /// From what is prompt to a delay.
    fn width_of(&self, delay: Option<i64>) -> Option<u64> {
        let (delay, prompt) = delay.zip(self.prompt())?;
        Some(delay.wrapping_sub(prompt).max(0) as u64)
    }

    /// How long to remember, from whether what was forgotten came again. What is not needed only as long as something is saved is not
    /// forgotten.
    fn learn(&mut self) {
        let unsaved = self.spread.exceeded_by(BUDGET_OF_PAST * self.budget);
        let width = self.width_of(unsaved).max(self.width).unwrap_or(0) as i64;
        let is_less = width < self.widest / 4 * 3;
        if self.is_given_up && self.has_grown && !is_less && width <= self.widest / 4 * 5 {
            self.memory = (2 * self.memory).min(MOST_REVIEWS_PER_TURN);
        }
        self.is_given_up = is_less || (self.is_given_up && !self.has_grown);
        self.has_grown = false;
        if width > NEWS * self.widest {
            self.memory = self.least_memory();
            self.reviews_left = self.reviews_left.min(self.memory);
        }
        self.reviews_since_widest += 1;
        let is_long_ago = self.reviews_since_widest > REGRET_REVIEWS;
        if is_long_ago {
            self.memory = (self.memory / 2).max(self.least_memory());
        }
        if is_long_ago || width >= self.widest {
            (self.widest, self.reviews_since_widest) = (width, 0);
            self.is_given_up = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BIN_FRAMES: u64 = 16;
    const PACKET_FRAMES: u16 = 120;

    /// Packets of 2.5 ms come for so long, one in so many of them by `later` frames later, and none too late.
    fn hear(playout: &mut PlayoutDelay, seconds: u32, one_in: u32, later: i64) -> u64 {
        for packet in 1..=400 * seconds {
            let is_later = packet % one_in == 0;
            playout.add(if is_later { later } else { 0 }, PACKET_FRAMES);
            if packet % 200 == 0 {
                playout.review(true);
            }
        }
        playout.width().expect("reviewed")
    }

    #[test]
    fn as_much_is_needed_as_keeps_half_of_the_budget() {
        let mut playout = PlayoutDelay::new(SampleRate::Hz48000);
        assert_eq!((playout.needed(), playout.width()), (None, None));
        // More often than once in 2,000 packets, and less often.
        let width = hear(&mut playout, 5, 800, 480);
        assert!((480..480 + BIN_FRAMES).contains(&width), "{width}");
        playout.forget_arrivals();
        assert_eq!(hear(&mut playout, 30, 3_000, 480), 0);
        playout.set_budget(0.000_2);
        let width = hear(&mut playout, 10, 3_000, 480);
        assert!((480..480 + BIN_FRAMES).contains(&width), "{width}");
    }

    #[test]
    fn what_was_saved_may_be_late_until_it_is_used() {
        let mut playout = PlayoutDelay::new(SampleRate::Hz48000);
        let width = hear(&mut playout, 3, 1_000, 480);
        assert!((480..480 + BIN_FRAMES).contains(&width), "{width}");
        assert_eq!(hear(&mut playout, 30, 1_000, 480), 0, "saved");
        let saved = playout.needed();
        playout.count_late(1_440);
        assert!(playout.needed() >= saved.map(|delay| delay + 480), "used");
    }

    #[test]
    fn a_wide_spread_that_comes_again_is_kept_for_though_nothing_is_owed() {
        // One in 3,000 packets is less than half of the budget, and more than what is left of that.
        let width_after = |regrets: i64| {
            let mut playout = PlayoutDelay::new(SampleRate::Hz48000);
            for _ in 0..2 {
                hear(&mut playout, 20, 10, 9_600);
                hear(&mut playout, 30, u32::MAX, 0);
                playout.count_growth(regrets);
            }
            hear(&mut playout, 60, 3_000, 480)
        };
        assert_eq!(width_after(0), 0);
        assert!(width_after(1) >= 480);
    }

    #[test]
    fn what_comes_again_after_it_was_forgotten_is_remembered_for_longer() {
        let mut playout = PlayoutDelay::new(SampleRate::Hz48000);
        // Too wide for what may be saved to pay for it.
        let come_and_go = |playout: &mut PlayoutDelay| {
            hear(playout, 20, 10, 9_600);
            hear(playout, 12, u32::MAX, 0)
        };
        assert_eq!(come_and_go(&mut playout), 0);
        playout.count_growth(1);
        assert!(come_and_go(&mut playout) >= 9_600);
        assert_eq!(hear(&mut playout, 15, u32::MAX, 0), 0);
    }
}
