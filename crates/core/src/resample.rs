//! A resampler for clocks that run apart: ratios within 1 ± 0.002.
//!
//! Each output frame is the input's, delayed by a fraction of a frame, by one of many FIR filters of 16 taps. The filters are not a
//! windowed sinc but the least-squares fit to a pure delay over the band that matters: at this length that is worth 20 dB, or two
//! frames of latency. Above 16 kHz (at 48 kHz) the treble is dulled a little while the clocks run apart.
//!
//! A stream plays without it until its clock has to be followed. [`Resampler::engage`] then takes [`HALF`] frames of look-ahead at
//! once, so that the output goes on where it was; from then on it is later than the input by so much.

use alloc::boxed::Box;
use alloc::vec;

use crate::wire::MAX_CHANNELS;

/// Frames that the filter looks ahead, and by which an engaged resampler delays: 0.17 ms at 48 kHz.
pub const HALF: usize = 8;
/// Furthest from 1:1, in parts per million.
pub const MAX_PPM: f32 = 2_000.0;

const TAPS: usize = 2 * HALF;
/// Filters between one frame and the next, as a power of two; between two of them, the taps are interpolated linearly. The error of
/// that is below -100 dB at 15 kHz, and falls by 12 dB an octave.
const PHASE_BITS: u32 = 8;
const PHASES: usize = 1 << PHASE_BITS;
const FRACTION_BITS: u32 = 32 - PHASE_BITS;
/// What the fit is to: bands from 0 to an edge, in cycles a frame (15.7 kHz and 4 kHz at 48 kHz), and the weight of an error there.
/// Found by trial: 15 kHz comes below -90 dB, and the lows, where music is loudest, below -110 dB.
const BANDS: [(f64, f64); 2] = [(0.327, 1.0), (1.0 / 12.0, 30.0)];
/// One frame in units of the phase.
const FRAME: i64 = 1 << 32;
/// How fast the phase returns to 0 once the ratio is 1: 100 ppm, half a frame in at most 0.1 s.
const LANDING: i64 = FRAME / 10_000;

/// The filters: one table for all resamplers.
#[derive(Debug)]
pub struct Kernel {
    /// Row *r* delays by the fraction *r* / [`PHASES`].
    rows: Box<[[f32; TAPS]]>,
}

impl Default for Kernel {
    fn default() -> Self {
        Self::new()
    }
}

impl Kernel {
    /// Computes the filters: some 100,000 multiplications.
    ///
    /// Source: T. I. Laakso et al., *Splitting the unit delay*, IEEE Signal Processing Magazine 13 (1), 1996: general least squares.
    pub fn new() -> Self {
        let mut rows = vec![[0.0; TAPS]; PHASES + 1].into_boxed_slice();
        let autocorrelation: [f64; TAPS] = core::array::from_fn(|lag| correlation(lag as f64));
        let factors = factorise(&autocorrelation);
        for row in 1..=PHASES / 2 {
            let fraction = row as f64 / PHASES as f64;
            let wanted =
                core::array::from_fn(|tap| correlation(tap as f64 - (HALF - 1) as f64 - fraction));
            let taps = solve(&factors, wanted).map(|tap| tap as f32);
            rows[row] = taps;
            rows[PHASES - row] = taps;
            rows[PHASES - row].reverse();
        }
        rows[0][HALF - 1] = 1.0;
        rows[PHASES][HALF] = 1.0;
        Self { rows }
    }

    /// The filter that delays by `phase` / 2³² frames.
    fn taps(&self, phase: u32) -> [f32; TAPS] {
        let row = (phase >> FRACTION_BITS) as usize;
        let fraction = (phase << PHASE_BITS >> PHASE_BITS) as f32 / (1 << FRACTION_BITS) as f32;
        let (low, high) = (&self.rows[row], &self.rows[row + 1]);
        core::array::from_fn(|tap| low[tap] + (high[tap] - low[tap]) * fraction)
    }
}

/// Follows a sender's clock by taking a little more or less than one frame of input for one of output.
#[derive(Debug)]
pub struct Resampler {
    /// The input around the last output frame, of each channel; while not engaged, the last [`HALF`] frames only.
    history: Box<[[f32; TAPS]]>,
    /// How many frames of `history` count.
    held: usize,
    channels: usize,
    is_engaged: bool,
    /// Of the last output frame, between two of the input, in 2⁻³² frames.
    phase: u32,
    /// Input taken for each output frame, beyond one, in 2⁻³² frames.
    drift: i64,
}

impl Resampler {
    /// A resampler for streams of up to `max_channels`, at 1:1 and not engaged.
    ///
    /// # Panics
    /// If `max_channels` is above [`MAX_CHANNELS`].
    pub fn new(max_channels: usize) -> Self {
        assert!(max_channels <= MAX_CHANNELS, "max_channels out of range");
        Self {
            history: vec![[0.0; TAPS]; max_channels].into_boxed_slice(),
            held: HALF,
            channels: 0,
            is_engaged: false,
            phase: 0,
            drift: 0,
        }
    }

    /// Back to the state of a new resampler: for another stream, or one whose channels changed. RT: no alloc, no lock, O(channels).
    pub fn reset(&mut self) {
        self.history.fill([0.0; TAPS]);
        self.held = HALF;
        self.channels = 0;
        self.is_engaged = false;
        self.phase = 0;
        self.drift = 0;
    }

    /// Whether the output passes through the filter, and is delayed.
    pub fn is_engaged(&self) -> bool {
        self.is_engaged
    }

    /// True when output is input to the bit, for now: the ratio is 1 and the phase 0.
    pub fn is_idle(&self) -> bool {
        self.phase == 0 && self.drift == 0
    }

    /// Begins to follow: the next [`process`](Self::process) takes [`HALF`] frames more than it gives, once.
    /// Nothing happens if it has begun.
    pub fn engage(&mut self) {
        self.is_engaged = true;
    }

    /// How much faster than 1:1 input is consumed, in parts per million; clamped to ±[`MAX_PPM`], NaN ignored. Takes effect at once:
    /// the position goes on without a jump. At 0 the position glides to the nearest whole frame, and then output is input again.
    pub fn set_ppm(&mut self, ppm: f32) {
        if !ppm.is_nan() {
            let ppm = f64::from(ppm.clamp(-MAX_PPM, MAX_PPM));
            self.drift = (ppm * (FRAME as f64 / 1e6)) as i64;
        }
    }

    /// Input frames that the next [`process`](Self::process) of `out_frames` (below 2³⁰) takes, exactly.
    pub fn frames_needed(&self, out_frames: usize) -> usize {
        if !self.is_engaged {
            return out_frames;
        }
        TAPS - self.held + self.position_after(out_frames).0
    }

    /// Keeps the end of what was played without the resampler, so that it can engage; nothing happens once it has.
    ///
    /// `played` is `[channel][frame]`, with `stride` frames from one channel to the next; `frames` of them from `at` on count.
    /// RT: no alloc, no lock, O(channels).
    ///
    /// # Panics
    /// If `played` is shorter than that, or `channels` more than the resampler has.
    pub fn remember(
        &mut self,
        played: &[f32],
        stride: usize,
        at: usize,
        frames: usize,
        channels: usize,
    ) {
        if self.is_engaged {
            return;
        }
        self.set_channels(channels);
        let new = frames.min(HALF);
        for (channel, history) in self.history[..channels].iter_mut().enumerate() {
            history.copy_within(new..HALF, 0);
            let end = channel * stride + at + frames;
            history[HALF - new..HALF].copy_from_slice(&played[end - new..end]);
        }
    }

    /// Renders `out_frames` frames of each channel into `out`, `[channel][frame]`, from the next
    /// [`frames_needed`](Self::frames_needed) frames of `input`, of the same shape. While not engaged, that is a copy.
    /// More `channels` than before go on from what was heard: of a mono stream on both sides, of a channel that there was not, nothing.
    ///
    /// RT: no alloc, no lock, O(channels × frames).
    ///
    /// # Panics
    /// If a slice has another shape, or `channels` is more than the resampler has.
    pub fn process(
        &mut self,
        kernel: &Kernel,
        input: &[f32],
        channels: usize,
        out: &mut [f32],
        out_frames: usize,
    ) {
        let in_frames = self.frames_needed(out_frames);
        assert!(
            input.len() == channels * in_frames && out.len() == channels * out_frames,
            "input and out are [channel][frame]"
        );
        if !self.is_engaged {
            out.copy_from_slice(input);
            self.remember(input, in_frames, 0, in_frames, channels);
            return;
        }
        self.set_channels(channels);
        // Where a filter begins in the history, it may end in the input.
        let mut joined = [[0.0; 2 * TAPS]; MAX_CHANNELS];
        let held = self.held;
        let overlap = in_frames.min(TAPS);
        for channel in 0..channels {
            joined[channel][..held].copy_from_slice(&self.history[channel][..held]);
            joined[channel][held..held + overlap]
                .copy_from_slice(&input[channel * in_frames..][..overlap]);
        }
        let around = |channel: usize, first: usize| -> &[f32] {
            if first < held {
                &joined[channel][first..first + TAPS]
            } else {
                &input[channel * in_frames + first - held..][..TAPS]
            }
        };
        for frame in 0..out_frames {
            let (first, phase) = self.position_after(frame + 1);
            if phase == 0 {
                for channel in 0..channels {
                    out[channel * out_frames + frame] = around(channel, first)[HALF - 1];
                }
            } else {
                let taps = kernel.taps(phase);
                for channel in 0..channels {
                    out[channel * out_frames + frame] = dot(&taps, around(channel, first));
                }
            }
        }
        let (first, phase) = self.position_after(out_frames);
        for channel in 0..channels {
            self.history[channel].copy_from_slice(around(channel, first));
        }
        self.held = TAPS;
        self.phase = phase;
    }

    /// Whole frames from the last output frame to that `out_frames` later, in the input, and the phase there.
    fn position_after(&self, out_frames: usize) -> (usize, u32) {
        let frames = out_frames as i64;
        let offset = if self.drift == 0 {
            // As a signed number, the phase is the distance from the nearest whole frame.
            let distance = i64::from(self.phase as i32);
            (-distance).clamp(-LANDING * frames, LANDING * frames)
        } else {
            self.drift * frames
        };
        let position = i64::from(self.phase) + FRAME * frames + offset;
        ((position >> 32) as usize, position as u32)
    }

    fn set_channels(&mut self, channels: usize) {
        let before = core::mem::replace(&mut self.channels, channels);
        for channel in before..channels {
            // A mono stream was on both sides; on the others was nothing.
            self.history[channel] = if (before, channel) == (1, 1) {
                self.history[0]
            } else {
                [0.0; TAPS]
            };
        }
    }
}

/// Four sums side by side, so that no addition waits for the one before.
fn dot(taps: &[f32; TAPS], input: &[f32]) -> f32 {
    let mut sums = [0.0; 4];
    for (taps, input) in taps.chunks_exact(4).zip(input.chunks_exact(4)) {
        for lane in 0..4 {
            sums[lane] += taps[lane] * input[lane];
        }
    }
    (sums[0] + sums[1]) + (sums[2] + sums[3])
}

/// What two taps so many frames apart have in common, over all of [`BANDS`].
fn correlation(frames: f64) -> f64 {
    let band = |&(edge, weight): &(f64, f64)| {
        let angle = 2.0 * core::f64::consts::PI * edge * frames;
        let sinc = if angle == 0.0 {
            1.0
        } else {
            libm::sin(angle) / angle
        };
        weight * edge * sinc
    };
    BANDS.iter().map(band).sum()
}

/// The Toeplitz matrix of an autocorrelation as L D Lᵀ: L below the diagonal, D on it.
fn factorise(autocorrelation: &[f64; TAPS]) -> [[f64; TAPS]; TAPS] {
    let mut factors = [[0.0; TAPS]; TAPS];
    for row in 0..TAPS {
        for column in 0..=row {
            let known: f64 = (0..column)
                .map(|k| factors[row][k] * factors[column][k] * factors[k][k])
                .sum();
            let rest = autocorrelation[row - column] - known;
            factors[row][column] = if row == column {
                rest
            } else {
                rest / factors[column][column]
            };
        }
    }
    factors
}

fn solve(factors: &[[f64; TAPS]; TAPS], mut wanted: [f64; TAPS]) -> [f64; TAPS] {
    for row in 0..TAPS {
        for column in 0..row {
            wanted[row] -= factors[row][column] * wanted[column];
        }
    }
    for row in (0..TAPS).rev() {
        wanted[row] /= factors[row][row];
        for below in row + 1..TAPS {
            wanted[row] -= factors[below][row] * wanted[below];
        }
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_position_is_exact_after_a_thousand_million_frames() {
        for ppm in [-1_000.0, -300.0, -0.001, 0.1, 7.0, 300.0, 1_000.0] {
            let mut resampler = Resampler::new(1);
            resampler.engage();
            resampler.held = TAPS;
            resampler.set_ppm(ppm);
            let block = 1_000;
            let mut taken = 0;
            for _ in 0..1_000_000 {
                let (first, phase) = resampler.position_after(block);
                assert_eq!(resampler.frames_needed(block), first);
                taken += first as i128;
                resampler.phase = phase;
            }
            let position = (taken << 32) + i128::from(resampler.phase);
            let step = i128::from(FRAME + resampler.drift);
            assert_eq!(position, 1_000_000_000 * step, "{ppm} ppm");
            // And the step is what was asked for, to a quarter of a part per thousand million.
            let found = (step - i128::from(FRAME)) as f64 / FRAME as f64 * 1e6;
            assert!((found - f64::from(ppm)).abs() < 0.000_25, "{found} {ppm}");
        }
    }

    #[test]
    fn the_phase_lands_on_the_nearest_whole_frame_and_stays() {
        for phase in [1, 1 << 20, 1 << 31, (1 << 31) + 1, u32::MAX] {
            let mut resampler = Resampler::new(1);
            resampler.phase = phase;
            let mut taken = 0;
            for _ in 0..100 {
                let (first, phase) = resampler.position_after(64);
                taken += first;
                resampler.phase = phase;
            }
            assert!(resampler.is_idle());
            assert_eq!(taken, 6_400 + usize::from(phase >= 1 << 31), "{phase}");
        }
    }
}
