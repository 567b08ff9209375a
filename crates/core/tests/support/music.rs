//! Sounds to conceal, what they become where packets are lost, and how far that is from them.
//!
//! Each sound is generated: nothing to licence, and the same on every machine but for the last bits of `sin`.
#![allow(dead_code, unreachable_pub, reason = "each user uses a part")]

use std::f64::consts::TAU;
use std::ops::Range;

use antiphon_core::SampleRate;
use antiphon_core::conceal::{Allowance, Concealer, Concealment, Run};

/// Of all sounds.
pub const RATE_HZ: usize = 48_000;
/// Of the packets that are lost or not.
pub const PACKET_FRAMES: usize = 128;
/// Names of the sounds, for [`sound`].
pub const SOUNDS: [&str; 7] = [
    "violin", "flute", "guitar", "voice", "piano", "drums", "band",
];

/// A sound by its name, mono, peak about half of full scale.
///
/// # Panics
/// If it is none of [`SOUNDS`].
pub fn sound(name: &str, frames: usize) -> Vec<f32> {
    let mut sound = match name {
        "violin" => violin(frames),
        "flute" => flute(frames),
        "guitar" => guitar(frames),
        "voice" => voice(frames),
        "piano" => piano(frames),
        "drums" => drums(frames),
        "band" => {
            let parts = [guitar(frames), voice(frames), drums(frames), violin(frames)];
            (0..frames)
                .map(|n| parts.iter().map(|part| part[n]).sum())
                .collect()
        }
        other => panic!("no sound is named {other}"),
    };
    let peak = sound.iter().fold(1e-9f64, |peak, x| peak.max(x.abs()));
    sound.iter_mut().for_each(|x| *x *= 0.5 / peak);
    sound.into_iter().map(|x| x as f32).collect()
}

/// Which packets are lost, each with a probability of `percent` by itself; the first half second is heard.
pub fn lost_packets(frames: usize, percent: u32, seed: u64) -> Vec<Range<usize>> {
    let mut noise = Noise(seed);
    let mut gaps: Vec<Range<usize>> = Vec::new();
    for packet in 0..frames / PACKET_FRAMES {
        let is_lost = noise.unit() * 100.0 < f64::from(percent);
        let start = packet * PACKET_FRAMES;
        if !is_lost || start < RATE_HZ / 2 {
            continue;
        }
        match gaps.last_mut() {
            Some(gap) if gap.end == start => gap.end += PACKET_FRAMES,
            _ => gaps.push(start..start + PACKET_FRAMES),
        }
    }
    gaps
}

/// What is heard of a mono sound where `gaps` are missing, rendered in quanta of `quantum` frames.
pub fn conceal(
    sound: &[f32],
    gaps: &[Range<usize>],
    concealment: Concealment,
    quantum: usize,
) -> Vec<f32> {
    let mut concealer = Concealer::new(SampleRate::Hz48000, 1, concealment);
    let mut heard = sound.to_vec();
    gaps.iter().for_each(|gap| heard[gap.clone()].fill(0.0));
    let mut edges = gaps.iter().flat_map(|gap| [gap.start, gap.end]).peekable();
    let mut is_missing = false;
    let mut at = 0;
    while at < heard.len() {
        while edges.next_if_eq(&at).is_some() {
            is_missing = !is_missing;
        }
        let end = (at - at % quantum + quantum)
            .min(heard.len())
            .min(edges.peek().copied().unwrap_or(usize::MAX));
        let run = Run {
            frames: end - at,
            is_missing,
            is_cut: false,
        };
        let stride = heard.len();
        let mut left = Allowance { fits: 8, gaps: 8 };
        concealer.process(&mut heard, stride, at, 1, run, &mut left);
        at = end;
    }
    heard
}

/// Log-spectral distance of two sounds over each gap, in dB: the root mean square difference of their levels over all bins of
/// 1,024-frame Hann windows, averaged over the windows, 256 frames apart, that touch the gap. Levels are in dB re a full-scale sine, and at
/// least -80. Source: Gray and Markel, "Distance measures for speech processing", IEEE Trans. ASSP 24(5), 1976.
pub fn log_spectral_distances(original: &[f32], heard: &[f32], gaps: &[Range<usize>]) -> Vec<f64> {
    const WINDOW: usize = 1_024;
    const HOP: usize = 256;
    let of_gap = |gap: &Range<usize>| {
        let first = (gap.start + 1).saturating_sub(WINDOW).div_ceil(HOP);
        let windows: Vec<f64> = (first..)
            .map(|n| n * HOP)
            .take_while(|at| *at < gap.end && at + WINDOW <= original.len())
            .map(|at| {
                let a = levels(&original[at..][..WINDOW]);
                let b = levels(&heard[at..][..WINDOW]);
                let square: f64 = a.iter().zip(&b).map(|(a, b)| (a - b) * (a - b)).sum();
                (square / a.len() as f64).sqrt()
            })
            .collect();
        windows.iter().sum::<f64>() / windows.len() as f64
    };
    gaps.iter()
        .filter(|gap| gap.end + WINDOW <= original.len())
        .map(of_gap)
        .collect()
}

/// Mean, and median.
pub fn mean_and_median(values: &[f64]) -> (f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    (
        values.iter().sum::<f64>() / values.len() as f64,
        sorted[sorted.len() / 2],
    )
}

/// Levels of a Hann window's bins, in dB.
fn levels(samples: &[f32]) -> Vec<f64> {
    let length = samples.len();
    let mut bins: Vec<[f64; 2]> = samples
        .iter()
        .enumerate()
        .map(|(n, x)| {
            let hann = 0.5 - 0.5 * (TAU * n as f64 / length as f64).cos();
            // A full-scale sine has a bin of 1.
            [f64::from(*x) * hann * 4.0 / length as f64, 0.0]
        })
        .collect();
    transform(&mut bins);
    bins[..=length / 2]
        .iter()
        .map(|[re, im]| (10.0 * (re * re + im * im).log10()).max(-80.0))
        .collect()
}

/// Fourier transform of a power of two of complex samples, in place.
fn transform(bins: &mut [[f64; 2]]) {
    let length = bins.len();
    if length == 1 {
        return;
    }
    let (mut even, mut odd): (Vec<_>, Vec<_>) =
        bins.chunks_exact(2).map(|pair| (pair[0], pair[1])).unzip();
    transform(&mut even);
    transform(&mut odd);
    for (n, (a, b)) in even.into_iter().zip(odd).enumerate() {
        let (sin, cos) = (-TAU * n as f64 / length as f64).sin_cos();
        let turned = [b[0] * cos - b[1] * sin, b[0] * sin + b[1] * cos];
        bins[n] = [a[0] + turned[0], a[1] + turned[1]];
        bins[n + length / 2] = [a[0] - turned[0], a[1] - turned[1]];
    }
}

/// Uniform noise (SplitMix64).
pub struct Noise(pub u64);

impl Noise {
    /// 0 to 1.
    pub fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// -1 to 1.
    pub fn white(&mut self) -> f64 {
        2.0 * self.unit() - 1.0
    }
}

/// A two-pole resonance of gain 1 at its centre.
struct Resonance {
    a1: f64,
    a2: f64,
    gain: f64,
    past: [f64; 2],
}

impl Resonance {
    fn new(hz: f64, width_hz: f64) -> Self {
        let radius = (-TAU / 2.0 * width_hz / RATE_HZ as f64).exp();
        let angle = TAU * hz / RATE_HZ as f64;
        Self {
            a1: 2.0 * radius * angle.cos(),
            a2: -radius * radius,
            gain: (1.0 - radius)
                * (1.0 - 2.0 * radius * (2.0 * angle).cos() + radius * radius).sqrt(),
            past: [0.0; 2],
        }
    }

    fn next(&mut self, input: f64) -> f64 {
        let out = self.gain * input + self.a1 * self.past[0] + self.a2 * self.past[1];
        self.past = [out, self.past[0]];
        out
    }
}

fn hz(midi_note: i32) -> f64 {
    440.0 * ((f64::from(midi_note) - 69.0) / 12.0).exp2()
}

/// Notes of a melody by turns, each of `seconds`: the note and the time within it.
fn melody(notes: &[i32], seconds: f64, t: f64) -> (f64, f64) {
    let index = (t / seconds) as usize;
    (hz(notes[index % notes.len()]), t - index as f64 * seconds)
}

/// Thirty harmonics through a body, vibrato of 20 cents at 5.6 Hz, slow swells, a bow's noise.
fn violin(frames: usize) -> Vec<f64> {
    let (mut noise, mut bow) = (Noise(11), Resonance::new(2_500.0, 3_000.0));
    let mut phase = 0.0;
    (0..frames)
        .map(|n| {
            let t = n as f64 / RATE_HZ as f64;
            let (pitch, since) = melody(&[67, 69, 71, 74, 72, 71, 69, 62], 0.6, t);
            let vibrato = (since / 0.2).min(1.0) * 0.0116 * (TAU * 5.6 * t).sin();
            phase += pitch * (1.0 + vibrato) / RATE_HZ as f64;
            let swell = (since / 0.06).min(1.0)
                * ((0.6 - since) / 0.04).clamp(0.0, 1.0)
                * (0.75 + 0.25 * (TAU * 0.9 * t).sin());
            let tone: f64 = (1..=30)
                .take_while(|k| f64::from(*k) * pitch < 16_000.0)
                .map(|k| {
                    let k = f64::from(k);
                    let body = 1.0 + 0.8 * (k * pitch / 450.0).sin();
                    body / k * (TAU * k * phase + 0.7 * k * k).sin()
                })
                .sum();
            swell * (tone + 0.15 * bow.next(noise.white()))
        })
        .collect()
}

/// Six harmonics, a little tremolo, much breath.
fn flute(frames: usize) -> Vec<f64> {
    const LEVELS: [f64; 6] = [1.0, 0.35, 0.15, 0.04, 0.02, 0.01];
    let (mut noise, mut breath) = (Noise(12), Resonance::new(1_800.0, 2_500.0));
    let mut phase = 0.0;
    (0..frames)
        .map(|n| {
            let t = n as f64 / RATE_HZ as f64;
            let (pitch, since) = melody(&[74, 79, 81, 83, 86, 81], 0.8, t);
            phase += pitch * (1.0 + 0.003 * (TAU * 5.0 * t).sin()) / RATE_HZ as f64;
            let swell = (since / 0.08).min(1.0)
                * ((0.8 - since) / 0.06).clamp(0.0, 1.0)
                * (1.0 + 0.12 * (TAU * 5.0 * t).sin());
            let tone: f64 = (1..)
                .zip(LEVELS)
                .map(|(k, level)| level * (TAU * f64::from(k) * phase).sin())
                .sum();
            swell * (tone + 0.12 * breath.next(noise.white()))
        })
        .collect()
}

/// Adds decaying, slightly inharmonic partials of a string; the first falls to 1/e in `seconds`.
fn strike(
    out: &mut [f64],
    at: f64,
    pitch: f64,
    partials: i32,
    level: f64,
    stiffness: f64,
    seconds: f64,
) {
    let start = (at * RATE_HZ as f64) as usize;
    let limit = ((seconds * 4.0) * RATE_HZ as f64) as usize;
    for k in 1..=partials {
        let k = f64::from(k);
        let hz = k * pitch * (1.0 + stiffness * k * k).sqrt();
        if hz > 18_000.0 {
            break;
        }
        let decay = (-1.0 / (seconds / (1.0 + 0.25 * (k - 1.0)) * RATE_HZ as f64)).exp();
        let mut gain = level / k * (0.35 + (TAU * k / 2.0 * 0.21).sin().abs());
        for (n, out) in out.iter_mut().skip(start).take(limit).enumerate() {
            let attack = (n as f64 / 48.0).min(1.0);
            *out += attack * gain * (TAU * hz * n as f64 / RATE_HZ as f64 + k).sin();
            gain *= decay;
        }
    }
}

/// A plucked arpeggio that rings on, with a finger's noise at each pluck.
fn guitar(frames: usize) -> Vec<f64> {
    const NOTES: [i32; 8] = [40, 47, 52, 55, 59, 64, 59, 55];
    let mut out = vec![0.0; frames];
    let mut noise = Noise(13);
    for index in 0..(frames * 4).div_ceil(RATE_HZ) {
        let at = index as f64 * 0.25;
        strike(&mut out, at, hz(NOTES[index % 8]), 30, 1.0, 3e-5, 0.5);
        let start = (at * RATE_HZ as f64) as usize;
        for (n, out) in out.iter_mut().skip(start).take(480).enumerate() {
            *out += 0.4 * noise.white() * (-(n as f64) / 100.0).exp();
        }
    }
    out
}

/// Four-note chords, stiff strings.
fn piano(frames: usize) -> Vec<f64> {
    const CHORDS: [[i32; 4]; 4] = [
        [48, 60, 64, 67],
        [45, 57, 60, 64],
        [41, 57, 60, 65],
        [43, 55, 59, 62],
    ];
    let mut out = vec![0.0; frames];
    for index in 0..frames.div_ceil(RATE_HZ) {
        for (n, note) in CHORDS[index % 4].into_iter().enumerate() {
            strike(
                &mut out,
                index as f64 + 0.004 * n as f64,
                hz(note),
                20,
                1.0,
                2e-4,
                0.8,
            );
        }
    }
    out
}

/// A sung voice: pulses and breath through formants that glide from vowel to vowel.
fn voice(frames: usize) -> Vec<f64> {
    const VOWELS: [[f64; 4]; 4] = [
        [730.0, 1_090.0, 2_440.0, 3_400.0],
        [270.0, 2_290.0, 3_010.0, 3_700.0],
        [570.0, 840.0, 2_410.0, 3_300.0],
        [530.0, 1_840.0, 2_480.0, 3_500.0],
    ];
    const WIDTHS: [f64; 4] = [80.0, 90.0, 120.0, 200.0];
    const GAINS: [f64; 4] = [1.0, 0.6, 0.3, 0.15];
    let mut noise = Noise(14);
    let mut formants = [0, 1, 2, 3].map(|n| Resonance::new(VOWELS[0][n], WIDTHS[n]));
    let (mut phase, mut glottis) = (0.0, 0.0);
    (0..frames)
        .map(|n| {
            let t = n as f64 / RATE_HZ as f64;
            if n % 64 == 0 {
                let at = t / 0.45;
                let (from, part) = (at as usize, at.fract());
                let glide = ((part - 0.7) / 0.3).max(0.0);
                for (k, formant) in formants.iter_mut().enumerate() {
                    let hz =
                        VOWELS[from % 4][k] * (1.0 - glide) + VOWELS[(from + 1) % 4][k] * glide;
                    formant.clone_from_past(Resonance::new(hz, WIDTHS[k]));
                }
            }
            let (pitch, _) = melody(&[50, 53, 57, 55], 0.9, t);
            phase += pitch * (1.0 + 0.012 * (TAU * 5.2 * t).sin() + 0.004 * noise.white())
                / RATE_HZ as f64;
            let pulse = if phase >= 1.0 { 1.0 } else { 0.0 };
            phase -= pulse;
            // The glottis rounds its pulses off.
            glottis += 0.25 * (pulse * 20.0 - glottis);
            let source = glottis + 0.05 * noise.white();
            formants
                .iter_mut()
                .zip(GAINS)
                .map(|(formant, gain)| gain * formant.next(source))
                .sum()
        })
        .collect()
}

impl Resonance {
    /// Becomes `other`, but rings on.
    fn clone_from_past(&mut self, other: Self) {
        let past = self.past;
        *self = Self { past, ..other };
    }
}

/// Kick, snare and hi-hat, 120 a minute.
fn drums(frames: usize) -> Vec<f64> {
    let mut out = vec![0.0; frames];
    let mut noise = Noise(15);
    for index in 0..(frames * 4).div_ceil(RATE_HZ) {
        let start = index * RATE_HZ / 4;
        let mut before = 0.0;
        let (mut body, mut phase) = (Resonance::new(1_900.0, 2_500.0), 0.0);
        for (n, out) in out.iter_mut().skip(start).take(RATE_HZ / 4).enumerate() {
            let t = n as f64 / RATE_HZ as f64;
            let white = noise.white();
            // Hi-hat: noise without its low half.
            *out += 0.25 * (white - before) * (-t / 0.04).exp();
            before = white;
            match index % 4 {
                0 => {
                    phase += (50.0 + 130.0 * (-t / 0.03).exp()) / RATE_HZ as f64;
                    *out += 1.2 * (TAU * phase).sin() * (-t / 0.12).exp();
                }
                2 => {
                    *out += (1.5 * body.next(noise.white()) + 0.4 * (TAU * 190.0 * t).sin())
                        * (-t / 0.08).exp();
                }
                _ => {}
            }
        }
    }
    out
}
