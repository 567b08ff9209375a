//! What bots play: a small band in D minor at 100 beats a minute, generated, the same every time.
//!
//! Bot *n* plays part *n* mod 8; from the ninth on the parts enter again, a bar later each time, as in a canon.

use std::f32::consts::TAU;

/// Parts of the band.
pub const PARTS: usize = 8;
const NAMES: [&str; PARTS] = [
    "Bass", "Pad", "Arpeggio", "Hi-hat", "Bell", "Kick", "Pluck", "Flute",
];
const BEATS_PER_MINUTE: u32 = 100;
const BEATS: u32 = 16;
const BEATS_PER_BAR: u32 = 4;
/// Each part's greatest sample: with the band's crest factors some -18 dBFS, and eight of them together do not clip.
const PEAK: f32 = 0.25;
/// D minor, B flat, F, C: roots as MIDI note numbers, and whether the third is minor.
const CHORDS: [(f32, bool); 4] = [(38.0, true), (34.0, false), (41.0, false), (36.0, false)];

/// What bot `bot` is called.
pub fn name(bot: usize) -> String {
    match bot / PARTS {
        0 => NAMES[bot].to_owned(),
        round => format!("{} {}", NAMES[bot % PARTS], round + 1),
    }
}

/// A part's loop of four bars, mono, at `rate_hz`. It ends where it begins, without a click.
pub fn part(part: usize, rate_hz: u32) -> Vec<f32> {
    let beat_frames = rate_hz * 60 / BEATS_PER_MINUTE;
    let mut noise = 0x2545_f491u32;
    let mut out: Vec<f32> = (0..beat_frames * BEATS)
        .map(|frame| {
            let seconds = frame as f32 / rate_hz as f32;
            let beat = frame / beat_frames;
            // Within a beat, and within each half and quarter of it, s.
            let within = |parts: u32| (frame % (beat_frames / parts)) as f32 / rate_hz as f32;
            let chord = CHORDS[(beat / BEATS_PER_BAR) as usize % CHORDS.len()];
            let (root, is_minor) = chord;
            let third = if is_minor { 3.0 } else { 4.0 };
            let tones = [0.0, third, 7.0, 12.0];
            let step = frame / (beat_frames / 2);
            let bar_seconds = (frame % (beat_frames * BEATS_PER_BAR)) as f32 / rate_hz as f32;
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let hiss = noise as f32 / (u32::MAX / 2) as f32 - 1.0;
            match part % PARTS {
                0 => pluck(root, within(1), 3.0),
                1 => {
                    let chord: f32 = (tones[..3].iter())
                        .map(|tone| (TAU * hz(root + 24.0 + tone) * bar_seconds).sin())
                        .sum();
                    let bar = 60.0 / BEATS_PER_MINUTE as f32 * BEATS_PER_BAR as f32;
                    chord * (bar_seconds / bar * TAU / 2.0).sin()
                }
                2 => pluck(root + 36.0 + tones[step as usize % 4], within(2), 8.0),
                3 => hiss * (-within(2) * if step.is_multiple_of(2) { 90.0 } else { 30.0 }).exp(),
                4 if beat.is_multiple_of(2) => {
                    pluck(root + 48.0 + tones[(beat / 2) as usize % 4], within(1), 4.0)
                }
                4 => 0.0,
                5 => {
                    let t = within(1);
                    (TAU * (45.0 * t + 1.6 * (1.0 - (-t * 30.0).exp()))).sin() * (-t * 9.0).exp()
                }
                6 if beat % 2 == 1 => (tones[..3].iter())
                    .map(|tone| pluck(root + 24.0 + tone, within(1), 6.0))
                    .sum(),
                6 => 0.0,
                _ => {
                    let tone = tones[(beat as usize * 3) % 4] + root + 36.0;
                    let t = within(1);
                    let swell = (t * BEATS_PER_MINUTE as f32 / 60.0 * TAU / 2.0).sin();
                    (TAU * hz(tone) * t + 0.4 * (TAU * 5.0 * seconds).sin()).sin() * swell
                }
            }
        })
        .collect();
    // Attacks of 2 ms, so that nothing clicks: a moving average does it for all of them.
    let width = (rate_hz / 2_000).max(1) as usize;
    if part % PARTS != 3 {
        let sharp = out.clone();
        let length = sharp.len();
        let mut sum: f32 = sharp[length - width..].iter().sum();
        for frame in 0..length {
            sum += sharp[frame] - sharp[(frame + length - width) % length];
            out[frame] = sum / width as f32;
        }
    }
    let peak = out
        .iter()
        .fold(1e-9f32, |peak, sample| peak.max(sample.abs()));
    out.iter_mut().for_each(|sample| *sample *= PEAK / peak);
    out
}

/// Frames by which bot `bot` is later in its loop than the first of its part.
pub fn entry_frames(bot: usize, rate_hz: u32) -> usize {
    let bar_frames = (rate_hz * 60 / BEATS_PER_MINUTE * BEATS_PER_BAR) as usize;
    bot / PARTS * bar_frames
}

fn hz(note: f32) -> f32 {
    440.0 * ((note - 69.0) / 12.0).exp2()
}

/// A string, or a bell: two partials that fade.
fn pluck(note: f32, seconds: f32, fading: f32) -> f32 {
    let turn = TAU * hz(note) * seconds;
    (turn.sin() + 0.4 * (2.0 * turn).sin() * (-seconds * fading).exp()) * (-seconds * fading).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_another_sound_that_is_neither_silent_nor_too_loud_nor_clicks() {
        let parts: Vec<_> = (0..PARTS).map(|n| part(n, 48_000)).collect();
        for (n, samples) in parts.iter().enumerate() {
            assert_eq!(samples.len(), 460_800, "16 beats of 0.6 s");
            let power = samples.iter().map(|s| s * s).sum::<f32>() / samples.len() as f32;
            let level = 10.0 * power.log10();
            assert!((-40.0..-14.0).contains(&level), "{}: {level} dBFS", name(n));
            assert!(samples.iter().all(|sample| sample.abs() <= PEAK + 1e-6));
            let around = samples.iter().chain(&samples[..1]);
            let jump = around
                .zip(samples.iter().skip(1).chain(&samples[..1]))
                .fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
            // Noise may jump; tones must not.
            assert!(n == 3 || jump < 0.06, "{} jumps by {jump}", name(n));
            for (other, others) in parts[..n].iter().enumerate() {
                assert_ne!(samples, others, "{} and {}", name(n), name(other));
            }
        }
        assert_eq!(part(2, 48_000), parts[2], "the same every time");
    }

    #[test]
    fn later_bots_enter_a_bar_later() {
        assert_eq!((name(0).as_str(), name(9).as_str()), ("Bass", "Pad 2"));
        assert_eq!(entry_frames(7, 48_000), 0);
        assert_eq!(entry_frames(16, 48_000), 2 * 4 * 28_800);
    }
}
