//! One stream's strip in the mix: gain, pan, mute and solo, without zipper noise.

/// Time a change of gain by 1 takes, in seconds, and a rise beyond 1 from 0: short enough to feel immediate, long enough not to click.
pub const RAMP_SECONDS: f32 = 0.01;
/// Largest gain, linear: +12 dB.
pub const MAX_GAIN: f32 = 4.0;

/// Gain, pan, mute and solo of one stream, with the gains applied now on their way to them.
///
/// Pan is a balance: at centre both sides are untouched (so 16-bit material stays bit-exact at gain 1); moving to one side fades
/// out the other.
#[derive(Clone, Copy, Debug)]
pub struct Strip {
    gain: f32,
    pan: f32,
    muted: bool,
    soloed: bool,
    /// Gains applied now: left, right.
    current: [f32; 2],
    ramp_frames: f32,
}

impl Strip {
    /// Gain 1, centre, heard.
    pub fn new(rate_hz: u32) -> Self {
        Self {
            gain: 1.0,
            pan: 0.0,
            muted: false,
            soloed: false,
            current: [1.0; 2],
            ramp_frames: rate_hz as f32 * RAMP_SECONDS,
        }
    }

    /// The same, faded in: for a stream that is in the middle of something.
    pub fn from_silence(rate_hz: u32) -> Self {
        Self {
            current: [0.0; 2],
            ..Self::new(rate_hz)
        }
    }

    /// Linear gain, 0 to [`MAX_GAIN`]; clamped, NaN ignored.
    pub fn set_gain(&mut self, gain: f32) {
        if !gain.is_nan() {
            self.gain = gain.clamp(0.0, MAX_GAIN);
        }
    }

    /// -1 (left) to 1 (right); clamped, NaN ignored.
    pub fn set_pan(&mut self, pan: f32) {
        if !pan.is_nan() {
            self.pan = pan.clamp(-1.0, 1.0);
        }
    }

    /// Silences the stream.
    pub fn set_muted(&mut self, muted: bool) {
        self.muted = muted;
    }

    /// While any stream is soloed, only those are heard.
    pub fn set_soloed(&mut self, soloed: bool) {
        self.soloed = soloed;
    }

    /// Whether nothing is heard of the stream, and nothing will be until that is changed.
    pub fn is_silent(&self, any_soloed: bool) -> bool {
        let is_hidden = any_soloed && !self.soloed;
        (self.muted || is_hidden || self.gain == 0.0) && self.current == [0.0; 2]
    }

    /// Whether the stream is soloed.
    pub fn is_soloed(&self) -> bool {
        self.soloed
    }

    /// Ends a change of gain at once: for a stream of which nothing was heard just now, so that it begins as loud as it shall be.
    /// `outputs` is the number of channels of the mix.
    pub fn settle(&mut self, outputs: usize, any_soloed: bool) {
        self.current = self.wanted(outputs, any_soloed);
    }

    /// The gains that those applied now are on their way to.
    fn wanted(&self, outputs: usize, any_soloed: bool) -> [f32; 2] {
        let heard = !self.muted && (self.soloed || !any_soloed);
        let gain = if heard { self.gain } else { 0.0 };
        // One output has no sides: nothing may be panned out of it.
        let pan = if outputs == 1 { 0.0 } else { self.pan };
        [gain * (1.0 - pan).min(1.0), gain * (1.0 + pan).min(1.0)]
    }

    /// Adds one quantum of the stream to the mix.
    ///
    /// `input` is `[channel][frame]`, `output` too, both of `frames` frames a channel. A mono stream goes to the first two outputs;
    /// otherwise channel *c* goes to output *c* mod outputs. Even outputs are left, odd ones right.
    /// RT: no alloc, no lock, O(channels × frames).
    pub fn mix(&mut self, input: &[f32], output: &mut [f32], frames: usize, any_soloed: bool) {
        let sources = input.len() / frames;
        let outputs = output.len() / frames;
        let wanted = self.wanted(outputs, any_soloed);
        let routes = if sources == 1 {
            outputs.min(2)
        } else {
            sources
        };
        for route in 0..routes {
            let source = &input[(route % sources) * frames..][..frames];
            let sink = &mut output[(route % outputs) * frames..][..frames];
            let side = route % outputs % 2;
            // A fixed slope, so that a ramp may span any number of quanta.
            let step = wanted[side].max(1.0) / self.ramp_frames;
            let mut gain = self.current[side];
            if gain == wanted[side] {
                for (sink, source) in sink.iter_mut().zip(source) {
                    *sink += source * gain;
                }
            } else {
                for (sink, source) in sink.iter_mut().zip(source) {
                    gain = approach(gain, wanted[side], step);
                    *sink += source * gain;
                }
            }
        }
        for (wanted, current) in wanted.into_iter().zip(&mut self.current) {
            let step = wanted.max(1.0) / self.ramp_frames * frames as f32;
            *current = approach(*current, wanted, step);
        }
    }
}

/// Moves `from` towards `to` by at most `step`, exactly onto it in the end.
pub(crate) fn approach(from: f32, to: f32, step: f32) -> f32 {
    if (to - from).abs() <= step {
        to
    } else {
        from + step.copysign(to - from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    fn mixed(strip: &mut Strip, input: &[f32], outputs: usize, frames: usize) -> Vec<f32> {
        let mut output = vec![0.0; outputs * frames];
        strip.mix(input, &mut output, frames, false);
        output
    }

    #[test]
    fn unity_is_bit_exact() {
        let input: Vec<f32> = (0..256)
            .map(|n| (n * 257 - 32_768) as f32 / 32_768.0)
            .collect();
        assert_eq!(mixed(&mut Strip::new(48_000), &input, 2, 128), input);
    }

    #[test]
    fn mono_is_heard_on_both_sides_and_extra_channels_fold() {
        let strip = &mut Strip::new(48_000);
        assert_eq!(mixed(strip, &[0.5], 2, 1), [0.5, 0.5]);
        assert_eq!(mixed(strip, &[0.5], 1, 1), [0.5]);
        assert_eq!(mixed(strip, &[0.1, 0.2, 0.25, 0.5], 2, 1), [0.35, 0.7]);
        assert_eq!(mixed(strip, &[0.1, 0.2], 4, 1), [0.1, 0.2, 0.0, 0.0]);
    }

    #[test]
    fn pan_fades_out_the_other_side_only() {
        let mut strip = Strip::new(48_000);
        strip.set_pan(0.5);
        let settled = |strip: &mut Strip, outputs| {
            mixed(strip, &[1.0; 1_024], outputs, 512);
            mixed(strip, &[1.0, 1.0], outputs, 1)
        };
        assert_eq!(settled(&mut strip, 2), [0.5, 1.0]);
        strip.set_pan(-1.0);
        assert_eq!(settled(&mut strip, 2), [1.0, 0.0]);
        // One output has no sides.
        strip.set_pan(1.0);
        assert_eq!(settled(&mut strip, 1), [2.0]);
    }

    #[test]
    fn changes_are_ramps_that_end_exactly() {
        for frames in [16, 64, 128, 1_024] {
            let mut strip = Strip::new(48_000);
            strip.set_gain(0.25);
            strip.set_pan(-1.0);
            let mut last = [1.0; 2];
            for _ in 0..2_048 / frames {
                let output = mixed(&mut strip, &vec![1.0; 2 * frames], 2, frames);
                for side in 0..2 {
                    for &sample in &output[side * frames..][..frames] {
                        let jump = (sample - last[side]).abs();
                        assert!(jump <= 1.0 / 480.0 + 1e-6, "a jump of {jump}");
                        last[side] = sample;
                    }
                }
            }
            assert_eq!(last, [0.25, 0.0]);
        }
    }

    #[test]
    fn from_silence_there_is_no_step() {
        let mut strip = Strip::from_silence(48_000);
        let heard = mixed(&mut strip, &[1.0; 1_024], 1, 1_024);
        assert!(heard[0] <= 1.0 / 480.0 + 1e-6, "begins at {}", heard[0]);
        assert!(heard.is_sorted());
        assert_eq!(heard[1_023], 1.0);
    }

    #[test]
    fn solo_silences_the_others_and_mute_wins() {
        let mut strip = Strip::new(48_000);
        let mut heard = |muted, soloed, any_soloed| {
            strip.set_muted(muted);
            strip.set_soloed(soloed);
            let mut output = vec![0.0; 4_096];
            strip.mix(&[1.0; 2_048], &mut output, 2_048, any_soloed);
            output[2_047] == 1.0
        };
        assert!(heard(false, false, false));
        assert!(!heard(false, false, true));
        assert!(heard(false, true, true));
        assert!(!heard(true, true, true));
    }

    #[test]
    fn nonsense_is_clamped_or_ignored() {
        let mut strip = Strip::new(48_000);
        strip.set_gain(f32::NAN);
        strip.set_pan(f32::NAN);
        assert_eq!(mixed(&mut strip, &[1.0], 2, 1), [1.0, 1.0]);
        strip.set_gain(f32::INFINITY);
        for _ in 0..1_000 {
            mixed(&mut strip, &[1.0], 2, 1);
        }
        assert_eq!(mixed(&mut strip, &[1.0], 2, 1), [MAX_GAIN; 2]);
    }
}
