//! IMA ADPCM (IMA Digital Audio Focus and Technical Working Groups, 1992): four bits a sample, for the copy that a datagram carries of the one before.
//!
//! Each block stands alone: it begins with a sample as it is, and with the step that suits what follows.

use crate::pcm::quantise_s16;

/// Bytes before a block's codes: its first sample, and the index of its first step.
const HEAD_BYTES: usize = 3;
/// Differences that a block's first step is chosen by.
const LOOK_FRAMES: usize = 16;

#[rustfmt::skip]
const STEPS: [i32; 89] = [
    7, 8, 9, 10, 11, 12, 13, 14, 16, 17, 19, 21, 23, 25, 28, 31, 34, 37, 41, 45, 50, 55, 60, 66, 73, 80, 88, 97, 107, 118, 130, 143, 157, 173, 190, 209,
    230, 253, 279, 307, 337, 371, 408, 449, 494, 544, 598, 658, 724, 796, 876, 963, 1_060, 1_166, 1_282, 1_411, 1_552, 1_707, 1_878, 2_066, 2_272, 2_499,
    2_749, 3_024, 3_327, 3_660, 4_026, 4_428, 4_871, 5_358, 5_894, 6_484, 7_132, 7_845, 8_630, 9_493, 10_442, 11_487, 12_635, 13_899, 15_289, 16_818,
    18_500, 20_350, 22_385, 24_623, 27_086, 29_794, 32_767,
];
/// By how many steps the index moves after a code, by its size.
const MOVES: [i8; 8] = [-1, -1, -1, -1, 2, 4, 6, 8];

/// Bytes of a block of one channel; of no frames, none.
pub const fn block_bytes(frames: usize) -> usize {
    if frames == 0 {
        0
    } else {
        HEAD_BYTES + frames / 2
    }
}

/// What encoder and decoder both know.
#[derive(Clone, Copy)]
struct State {
    sample: i32,
    index: usize,
}

impl State {
    /// RT: no alloc, no lock, O(1).
    fn decode(&mut self, code: u8) {
        let step = STEPS[self.index];
        let size = i32::from(code & 7);
        let difference = (2 * size + 1) * step / 8;
        let next = if code & 8 == 0 {
            self.sample + difference
        } else {
            self.sample - difference
        };
        self.sample = next.clamp(i32::from(i16::MIN), i32::from(i16::MAX));
        self.index = self
            .index
            .saturating_add_signed(MOVES[size as usize].into())
            .min(STEPS.len() - 1);
    }

    /// The code that comes nearest to `sample`.
    fn code(&self, sample: i32) -> u8 {
        let difference = sample - self.sample;
        let size = (4 * difference.abs() / STEPS[self.index]).min(7) as u8;
        size | u8::from(difference < 0) << 3
    }
}

/// Writes a channel's samples, at least one, into a block of [`block_bytes`].
///
/// RT: no alloc, no lock, O(frames).
///
/// # Panics
/// If there is no sample, or `out` is too short.
pub fn encode(samples: impl Iterator<Item = f32> + Clone, out: &mut [u8]) {
    let mut samples = samples.map(quantise_s16);
    let first = samples.next().expect("at least one sample");
    let mut before = first;
    let (mut sum, mut looked) = (0, 1);
    for sample in samples.clone().take(LOOK_FRAMES) {
        sum += (sample - before).abs();
        before = sample;
        looked += 1;
    }
    let index = STEPS
        .iter()
        .position(|&step| step >= sum / looked)
        .unwrap_or(STEPS.len() - 1);
    out[..2].copy_from_slice(&(first as i16).to_le_bytes());
    out[2] = index as u8;
    let mut state = State {
        sample: first,
        index,
    };
    let mut codes = samples.map(|sample| {
        let code = state.code(sample);
        state.decode(code);
        code
    });
    let mut bytes = out[HEAD_BYTES..].iter_mut();
    while let Some(low) = codes.next() {
        let high = codes.next().unwrap_or(0);
        *bytes.next().expect("a whole block") = low | high << 4;
    }
}

/// Reads the first `frames` samples of a block, in 16 bits. Steps beyond the last are taken as that; of a block that is too short, what it has.
///
/// RT: no alloc, no lock, O(frames).
pub fn decode(block: &[u8], frames: usize) -> impl Iterator<Item = i16> {
    let (head, codes) = block.split_at(HEAD_BYTES.min(block.len()));
    let start = match *head {
        [low, high, index] => Some(State {
            sample: i16::from_le_bytes([low, high]).into(),
            index: usize::from(index).min(STEPS.len() - 1),
        }),
        _ => None,
    };
    let mut codes = codes.iter().flat_map(|byte| [byte & 0x0f, byte >> 4]);
    core::iter::successors(start, move |state| {
        let mut next = *state;
        next.decode(codes.next()?);
        Some(next)
    })
    .map(|state| state.sample as i16)
    .take(frames)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    fn round_trip(samples: &[f32]) -> Vec<f32> {
        let mut block = vec![0; block_bytes(samples.len())];
        encode(samples.iter().copied(), &mut block);
        decode(&block, samples.len())
            .map(|sample| f32::from(sample) / 32_768.0)
            .collect()
    }

    /// Signal to error, dB, over blocks of 128.
    fn snr_db(samples: &[f32]) -> f64 {
        let power = |values: &mut dyn Iterator<Item = f32>| {
            values.map(|value| f64::from(value).powi(2)).sum::<f64>()
        };
        let heard: Vec<f32> = samples.chunks(128).flat_map(round_trip).collect();
        assert_eq!(heard.len(), samples.len());
        let signal = power(&mut samples.iter().copied());
        let error = power(&mut samples.iter().zip(&heard).map(|(a, b)| a - b));
        10.0 * (signal / error).log10()
    }

    #[test]
    fn what_is_heard_resembles_what_was_played() {
        let sine = |hz: f32, level: f32| -> Vec<f32> {
            (0..12_800)
                .map(|n| level * (n as f32 * hz / 48_000.0 * core::f32::consts::TAU).sin())
                .collect()
        };
        for (hz, level, least_db) in [
            (220.0, 0.5, 40.0),
            (220.0, 0.01, 30.0),
            (3_000.0, 0.9, 20.0),
        ] {
            let db = snr_db(&sine(hz, level));
            assert!(db > least_db, "{hz} Hz at {level}: {db} dB");
        }
        let mut seed = 1_u32;
        let noise: Vec<f32> = (0..12_800)
            .map(|_| {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (seed as i32) as f32 / 2_f32.powi(32)
            })
            .collect();
        let db = snr_db(&noise);
        assert!(db > 10.0, "noise: {db} dB");
    }

    #[test]
    fn silence_stays_silent_and_extremes_stay_in_range() {
        assert!(
            round_trip(&[0.0; 128])
                .iter()
                .all(|&sample| sample.abs() < 2.0 / 32_768.0)
        );
        let square: Vec<f32> = (0..128)
            .map(|n| if n / 20 % 2 == 0 { 9.0 } else { -9.0 })
            .collect();
        assert!(
            round_trip(&square)
                .iter()
                .all(|sample| (-1.0..1.0).contains(sample))
        );
        for strange in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(round_trip(&[strange; 128]).len(), 128);
        }
    }

    #[test]
    fn blocks_of_any_length_come_back_whole_and_any_bytes_are_a_block() {
        for frames in 1..70 {
            assert_eq!(round_trip(&vec![0.25; frames]).len(), frames);
        }
        assert_eq!(decode(&[0xff; 67], 128).count(), 128);
        assert_eq!(decode(&[1, 2], 128).count(), 0);
        assert_eq!(decode(&[0; 10], 128).count(), 15);
    }
}
