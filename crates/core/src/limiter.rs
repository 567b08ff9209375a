//! A limiter for a sum of streams: many players at once neither wrap nor clip hard.
//!
//! Up to [`THRESHOLD`] nothing is changed, to the bit. Beyond it, the level is bent to stay below full scale, all channels by the same
//! gain, so that the stereo image stays. There is no look-ahead and so no delay: the gain falls within the frame that needs it, and
//! rises again over [`RELEASE_SECONDS`], so that what follows is turned down rather than bent anew with each wave.

/// Level below which frames pass as they are: -1 dBFS.
pub const THRESHOLD: f32 = 0.891_250_9;
/// Time in which the gain rises from nothing to 1: 6 dB are back after half of it.
pub const RELEASE_SECONDS: f32 = 0.3;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Limiter {
    gain: f32,
    release_per_frame: f32,
}

impl Limiter {
    /// A limiter at rest.
    pub fn new(rate_hz: u32) -> Self {
        Self {
            gain: 1.0,
            release_per_frame: 1.0 / (rate_hz as f32 * RELEASE_SECONDS),
        }
    }

    /// Gain of the last frame, linear: 1 at rest.
    #[cfg(test)]
    fn gain(&self) -> f32 {
        self.gain
    }

    /// Limits `mix` in place: `[channel][frame]`, `frames` frames of each channel, finite. No sample is beyond full scale then.
    ///
    /// RT: no alloc, no lock, O(channels × frames).
    pub fn process(&mut self, mix: &mut [f32], frames: usize) {
        let is_over = |any: bool, sample: &f32| any | (sample.abs() > THRESHOLD);
        if self.gain == 1.0 && !mix.iter().fold(false, is_over) {
            return;
        }
        for frame in 0..frames {
            let channels = mix[frame..].iter().step_by(frames);
            let peak = channels.fold(0.0, |peak: f32, sample| peak.max(sample.abs()));
            self.gain = (self.gain + self.release_per_frame).min(allowed(peak));
            if self.gain < 1.0 {
                let channels = mix[frame..].iter_mut().step_by(frames);
                channels.for_each(|sample| *sample *= self.gain);
            }
        }
    }
}

/// The gain for a peak: 1 up to the threshold; beyond, what bends the level smoothly towards full scale.
fn allowed(peak: f32) -> f32 {
    if peak <= THRESHOLD {
        return 1.0;
    }
    let room = 1.0 - THRESHOLD;
    let over = (peak - THRESHOLD) / room;
    (THRESHOLD + room * (over / (1.0 + over))) / peak
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    fn sine(hz: f32, level: f32, frames: usize) -> Vec<f32> {
        (0..frames)
            .map(|n| level * libm::sinf(n as f32 * hz * core::f32::consts::TAU / 48_000.0))
            .collect()
    }

    #[test]
    fn below_the_threshold_nothing_changes_to_the_bit() {
        let input = [sine(440.0, THRESHOLD, 4_800), sine(97.0, 0.3, 4_800)].concat();
        let mut mix = input.clone();
        let mut limiter = Limiter::new(48_000);
        limiter.process(&mut mix, 4_800);
        assert_eq!(mix, input);
    }

    #[test]
    fn whatever_comes_stays_within_full_scale_and_keeps_its_sign_and_balance() {
        for level in [0.9, 1.0, 1.5, 4.0, 128.0, 1e32] {
            let left = sine(220.0, level, 48_000);
            let right: Vec<f32> = left.iter().map(|sample| sample / 4.0).collect();
            let input = [left, right].concat();
            let mut mix = input.clone();
            let mut limiter = Limiter::new(48_000);
            limiter.process(&mut mix, 48_000);
            for n in 0..48_000 {
                let (left, right) = (mix[n], mix[48_000 + n]);
                assert!(left.abs() <= 1.0, "{level}: {left}");
                assert_eq!(left > 0.0, input[n] > 0.0);
                let balance = 4.0 * right - left;
                assert!(balance.abs() <= 1e-5 * left.abs(), "{left} {right}");
            }
        }
    }

    #[test]
    fn the_curve_rises_everywhere_without_a_step() {
        let mut before = 0.0;
        for n in 1..4_000 {
            let level = n as f32 * 1e-3;
            let out = level * allowed(level);
            // Beyond 2 it rises by less than rounding.
            assert!((-1e-6..1.1e-3).contains(&(out - before)), "{level}");
            before = out;
        }
        assert!(before < 1.0);
    }

    #[test]
    fn after_a_loud_moment_the_gain_rises_slowly_and_ends_at_exactly_1() {
        let mut limiter = Limiter::new(48_000);
        limiter.process(&mut [4.0], 1);
        let mut gain = limiter.gain();
        assert!(gain < 0.25);
        let mut quiet = vec![0.5; 48_000];
        limiter.process(&mut quiet, 48_000);
        for sample in quiet {
            let now = sample / 0.5;
            assert!(now >= gain && now - gain < 1e-4, "{gain} {now}");
            gain = now;
        }
        assert_eq!((gain, limiter.gain()), (1.0, 1.0));
    }

    #[test]
    fn a_steady_loud_tone_is_turned_down_rather_than_bent() {
        let mut limiter = Limiter::new(48_000);
        let mut mix = sine(1_000.0, 2.0, 48_000);
        limiter.process(&mut mix, 48_000);
        // In the second half, each wave is the sine at the gain that it has now: no more than the release moves it.
        let heard = &mix[24_000..];
        let peak = heard.iter().fold(0.0, |peak: f32, s| peak.max(s.abs()));
        for (n, sample) in heard.iter().enumerate() {
            let expected = peak * libm::sinf(n as f32 * core::f32::consts::TAU / 48.0);
            assert!((sample - expected).abs() < 0.01, "{n}: {sample} {expected}");
        }
    }
}
