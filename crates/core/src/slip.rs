//! Slips of the output: by how much it has rendered less than its host's clock went on.
//!
//! A sound system that misses a deadline lets the moment pass in silence, and goes on: what was rendered stays behind the clock by that
//! much, for good. A quantum that merely comes late is followed by others at once until nothing is behind. So of *frames rendered* less
//! *frames by the clock*, the highest in an eighth of a second holds still, but for clocks that run apart; if it falls, the output has
//! slipped; if it rises, the output has taken more than it should, to hold more in store. How late packets come has no part in that.
//!
//! In Chromium and Firefox, with a clock that tells whole milliseconds, the highest held within 0.4 ms while single quanta were 2 to 7 ms
//! late, and slips of 64 to 192 frames stood out.

use crate::wire::SampleRate;

/// Longer than any output waits between the bursts in which it asks for quanta, or each window has the end of a burst in it.
const WINDOW_NS: u64 = 125_000_000;
/// More than a clock of whole milliseconds may be off by.
const LEAST_SLIP_NS: u64 = 1_250_000;
/// Beyond it the clock was set, or the host slept. No output takes much into store at once.
const MOST_SLIP_NS: u64 = 1_000_000_000;
const MOST_RISE_NS: u64 = 100_000_000;
/// Sound cards and clocks run apart by less.
const DRIFT_PPM: u64 = 400;

/// Watches one output.
#[derive(Debug)]
pub struct SlipWatch {
    rate_hz: u64,
    window: Option<Window>,
    /// The highest of the windows before, as far as the clocks' drift has moved it since; `None` before the first is over.
    level: Option<i64>,
}

#[derive(Debug)]
struct Window {
    began_ns: u64,
    /// The most that rendering was ahead of the clock, in frames.
    highest: i64,
}

impl SlipWatch {
    /// Knows nothing yet.
    pub fn new(rate: SampleRate) -> Self {
        Self {
            rate_hz: rate.hz().into(),
            window: None,
            level: None,
        }
    }

    /// Before a quantum: `rendered` frames were rendered, the slips told so far counted as such, and the clock reads `now_ns`, from
    /// anywhere. At the end of each window, the frames by which the output has slipped at its beginning or in the one before: 0 mostly,
    /// negative if it took more than its time.
    ///
    /// RT: no alloc, no lock, O(1).
    pub fn handle_quantum(&mut self, rendered: u64, now_ns: u64) -> Option<i64> {
        let ahead = rendered.wrapping_sub(self.frames(now_ns)) as i64;
        match &mut self.window {
            Some(window) if now_ns.abs_diff(window.began_ns) < WINDOW_NS => {
                window.highest = window.highest.max(ahead);
                None
            }
            window => {
                let ended = window.take().map(|window| window.highest);
                let slip = ended.map(|highest| self.judge(highest));
                self.window = Some(Window {
                    began_ns: now_ns,
                    highest: ahead + slip.unwrap_or(0),
                });
                slip
            }
        }
    }

    /// How many frames had been rendered when the clock read `at_ns`, as far as quanta that came in time tell: a quantum itself may be late,
    /// or ask for several at once. `None` in the first eighth of a second.
    ///
    /// RT: no alloc, no lock, O(1).
    pub fn rendered_at(&self, at_ns: u64) -> Option<u64> {
        Some(self.frames(at_ns).wrapping_add_signed(self.level?))
    }

    fn judge(&mut self, highest: i64) -> i64 {
        let fallen = self.level.map_or(0, |level| level - highest);
        let frames = |ns| self.frames(ns) as i64;
        let most = if fallen > 0 {
            MOST_SLIP_NS
        } else {
            MOST_RISE_NS
        };
        let is_slip = (frames(LEAST_SLIP_NS)..frames(most)).contains(&fallen.abs());
        if is_slip {
            // It counts as rendered from now on, so the level stays.
            return fallen;
        }
        self.level = Some(match self.level {
            Some(level) if fallen.abs() < frames(LEAST_SLIP_NS) => {
                let drift = 1 + frames(WINDOW_NS * DRIFT_PPM / 1_000_000);
                level - fallen.clamp(-drift, drift)
            }
            _ => highest,
        });
        0
    }

    fn frames(&self, ns: u64) -> u64 {
        const NS_PER_S: u64 = 1_000_000_000;
        ns / NS_PER_S * self.rate_hz + ns % NS_PER_S * self.rate_hz / NS_PER_S
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const RATE_HZ: u64 = 48_000;

    /// An output that asks for `burst` frames at a time, each up to 7 ms late, by a clock of whole milliseconds.
    struct Output {
        watch: SlipWatch,
        burst: u64,
        /// Asked for so far, and by how much the clock is ahead of that.
        asked: u64,
        behind_ns: i64,
        now_ns: u64,
        rendered: u64,
        random: u64,
    }

    impl Output {
        fn new(burst: u64) -> Self {
            Self {
                watch: SlipWatch::new(SampleRate::Hz48000),
                burst,
                asked: 0,
                behind_ns: 1_700_000_000_000_000_000,
                now_ns: 0,
                rendered: 0,
                random: 1,
            }
        }

        /// What it is told to have slipped by in so many seconds, while its clock is fast by `ppm`.
        fn run(&mut self, seconds: f64, ppm: f64) -> Vec<i64> {
            let mut slips = Vec::new();
            for _ in 0..(seconds * RATE_HZ as f64) as u64 / self.burst {
                self.random = self.random.wrapping_mul(6_364_136_223_846_793_005) + 1;
                let late = (self.random >> 33) % 7_000_000;
                let late = if self.random >> 62 == 0 { late } else { 0 };
                let due_ns = (self.asked as f64 * 1e9 / RATE_HZ as f64) as i64 + self.behind_ns;
                self.now_ns = self.now_ns.max(due_ns as u64 + late);
                let now_ns = self.now_ns / 1_000_000 * 1_000_000;
                for _ in 0..self.burst / 64 {
                    let slip = self.watch.handle_quantum(self.rendered, now_ns);
                    slips.extend(slip.filter(|&slip| slip != 0));
                    self.rendered = (self.rendered + 64).wrapping_add_signed(slip.unwrap_or(0));
                }
                self.asked += self.burst;
                self.behind_ns -= (self.burst as f64 * 1e9 / RATE_HZ as f64 * ppm * 1e-6) as i64;
            }
            slips
        }

        fn slip(&mut self, frames: i64) {
            self.behind_ns += frames * 1_000_000_000 / RATE_HZ as i64;
            self.now_ns = 0;
        }
    }

    #[test]
    fn late_quanta_and_clocks_apart_are_no_slips() {
        for burst in [64, 128, 512, 1_024] {
            for ppm in [0.0, 20.0, 300.0, -300.0] {
                let slips = Output::new(burst).run(120.0, ppm);
                assert_eq!(slips, [], "bursts of {burst}, {ppm} ppm");
            }
        }
    }

    #[test]
    fn each_slip_is_told_once_and_soon() {
        for burst in [64, 128, 1_024] {
            let mut output = Output::new(burst);
            assert_eq!(output.run(5.0, 50.0), []);
            for frames in [128, 192, 960, -128, 128, 24_000, -2_400] {
                output.slip(frames);
                let slips = output.run(0.4, 50.0);
                let told: i64 = slips.iter().sum();
                assert!(told.abs_diff(frames) <= 48, "{burst}, {frames}: {slips:?}");
                assert_eq!(slips.len(), 1, "{burst}, {frames}: {slips:?}");
                assert_eq!(output.run(2.0, 50.0), [], "{burst}, {frames}");
            }
        }
    }

    #[test]
    fn a_clock_that_is_set_is_no_slip() {
        let mut output = Output::new(128);
        output.run(1.0, 0.0);
        for frames in [48_000 * 3_600, -48_000 * 7_200, -9_600] {
            output.slip(frames);
            assert_eq!(output.run(5.0, 0.0), []);
        }
        output.slip(192);
        assert_eq!(output.run(0.5, 0.0).len(), 1, "it watches on");
    }
}
