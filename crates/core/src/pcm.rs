//! Sample formats: `f32` in the engine, integers or floats on the wire.
//!
//! Integer full scale is `2^15` and `2^23`, so integer material of that depth survives
//! decode-encode-decode bit for bit (every 24-bit integer is exact in an `f32`).

use crate::wire::SampleFormat;

const S16_SCALE: f32 = 32_768.0;
const S24_SCALE: f32 = 8_388_608.0;
/// No float sample is larger: 24 dB above full scale. What is, is no sound: a single one would have a limiter turn the whole mix down, and
/// a mix that is infinite or NaN would silence filters after us for good.
pub(crate) const LARGEST_FLOAT: f32 = 16.0;

/// Added to a small number, it leaves no room for a fraction: what the lowest bits then hold is the nearest integer, halves to even.
const TO_INTEGER: f64 = 1.5 * (1_u64 << 52) as f64;
/// Moves halves, and no other `f32`: of those the nearest to a half differs by `2^-25`.
const HAIR: f64 = 1.0 / (1_u64 << 29) as f64;

/// Rounds half away from zero and clamps to `±scale`, in `f64`, where nothing of that rounds before its time. NaN gives 0. Written so that a
/// compiler does several at once.
fn quantise(sample: f32, scale: f32) -> i32 {
    let (sample, scale) = (f64::from(sample), f64::from(scale));
    let scaled = if sample.is_nan() { 0.0 } else { sample } * scale;
    let above = if scaled > -scale { scaled } else { -scale };
    let clamped = if above < scale - 1.0 {
        above
    } else {
        scale - 1.0
    };
    (clamped + HAIR.copysign(clamped) + TO_INTEGER).to_bits() as i32
}

/// The nearest 16-bit sample.
pub(crate) fn quantise_s16(sample: f32) -> i32 {
    quantise(sample, S16_SCALE)
}

/// Writes one channel of a frame run into interleaved wire bytes.
///
/// `samples` is the channel, `out` the whole interleaved run of `samples.len() × channels` samples.
/// RT: no alloc, no lock, O(frames).
pub fn encode_channel(
    format: SampleFormat,
    samples: &[f32],
    channel: usize,
    channels: usize,
    out: &mut [u8],
) {
    let width = format.bytes();
    let slots = out.chunks_exact_mut(width * channels).zip(samples);
    match format {
        SampleFormat::S16 => {
            for (frame, sample) in slots {
                let bytes = (quantise_s16(*sample) as i16).to_le_bytes();
                frame[channel * 2..][..2].copy_from_slice(&bytes);
            }
        }
        SampleFormat::S24 => {
            for (frame, sample) in slots {
                let bytes = quantise(*sample, S24_SCALE).to_le_bytes();
                frame[channel * 3..][..3].copy_from_slice(&bytes[..3]);
            }
        }
        SampleFormat::F32 => {
            for (frame, sample) in slots {
                frame[channel * 4..][..4].copy_from_slice(&sample.to_le_bytes());
            }
        }
    }
}

/// Reads one channel of interleaved wire bytes into `out`; floats that are no sound (NaN, infinities,
/// beyond ±16) become 0.
///
/// RT: no alloc, no lock, O(frames).
pub fn decode_channel(
    format: SampleFormat,
    bytes: &[u8],
    channel: usize,
    channels: usize,
    out: &mut [f32],
) {
    read_channel(format, bytes, channel, channels, out, |out, sample| {
        *out = sample;
    });
}

/// Adds one channel of interleaved wire bytes to `out`, as [`decode_channel`] reads it.
///
/// RT: no alloc, no lock, O(frames).
pub fn add_channel(
    format: SampleFormat,
    bytes: &[u8],
    channel: usize,
    channels: usize,
    out: &mut [f32],
) {
    read_channel(format, bytes, channel, channels, out, |out, sample| {
        *out += sample;
    });
}

fn read_channel(
    format: SampleFormat,
    bytes: &[u8],
    channel: usize,
    channels: usize,
    out: &mut [f32],
    put: impl Fn(&mut f32, f32),
) {
    let width = format.bytes();
    let slots = bytes.chunks_exact(width * channels).zip(out);
    match format {
        SampleFormat::S16 => {
            for (frame, out) in slots {
                let at = channel * 2;
                let value = i16::from_le_bytes([frame[at], frame[at + 1]]);
                put(out, f32::from(value) / S16_SCALE);
            }
        }
        SampleFormat::S24 => {
            for (frame, out) in slots {
                let at = channel * 3;
                // Into the upper three bytes, then down again: extends the sign.
                let wide = i32::from_le_bytes([0, frame[at], frame[at + 1], frame[at + 2]]) >> 8;
                put(out, wide as f32 / S24_SCALE);
            }
        }
        SampleFormat::F32 => {
            for (frame, out) in slots {
                let at = channel * 4;
                let value =
                    f32::from_le_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]);
                let is_sound = value.abs() <= LARGEST_FLOAT;
                put(out, if is_sound { value } else { 0.0 });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(format: SampleFormat, bytes: &[u8]) -> f32 {
        let mut out = [0.0];
        decode_channel(format, bytes, 0, 1, &mut out);
        out[0]
    }

    fn encode(format: SampleFormat, sample: f32) -> [u8; 4] {
        let mut out = [0; 4];
        encode_channel(format, &[sample], 0, 1, &mut out[..format.bytes()]);
        out
    }

    #[test]
    fn all_16_bit_values_survive() {
        for value in i16::MIN..=i16::MAX {
            let bytes = value.to_le_bytes();
            let sample = decode(SampleFormat::S16, &bytes);
            assert_eq!(encode(SampleFormat::S16, sample)[..2], bytes);
            // 16-bit material is also exact through the wider formats.
            for format in [SampleFormat::S24, SampleFormat::F32] {
                assert_eq!(
                    decode(format, &encode(format, sample)[..format.bytes()]),
                    sample
                );
            }
        }
    }

    #[test]
    fn all_24_bit_values_survive() {
        for value in -(1 << 23)..(1 << 23) {
            let bytes = i32::to_le_bytes(value);
            let sample = decode(SampleFormat::S24, &bytes[..3]);
            assert_eq!(encode(SampleFormat::S24, sample)[..3], bytes[..3]);
        }
    }

    #[test]
    fn out_of_range_clamps_and_what_is_no_sound_is_silence() {
        assert_eq!(decode(SampleFormat::F32, &(-16f32).to_le_bytes()), -16.0);
        assert_eq!(encode(SampleFormat::S16, 2.0)[..2], i16::MAX.to_le_bytes());
        assert_eq!(encode(SampleFormat::S16, -2.0)[..2], i16::MIN.to_le_bytes());
        assert_eq!(encode(SampleFormat::S16, f32::NAN)[..2], [0, 0]);
        assert_eq!(
            encode(SampleFormat::S24, f32::INFINITY)[..3],
            [0xff, 0xff, 0x7f]
        );
        for poison in [
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::MIN,
            16f32.next_up(),
        ] {
            assert_eq!(decode(SampleFormat::F32, &poison.to_le_bytes()), 0.0);
        }
    }

    #[test]
    fn halves_round_away_from_zero() {
        let half = |n: f32| n / S16_SCALE;
        assert_eq!(
            encode(SampleFormat::S16, half(2.5))[..2],
            3i16.to_le_bytes()
        );
        assert_eq!(
            encode(SampleFormat::S16, half(-2.5))[..2],
            (-3i16).to_le_bytes()
        );
        assert_eq!(encode(SampleFormat::S16, half(0.499_999_97))[..2], [0, 0]);
    }

    proptest! {
        #[test]
        fn quantising_is_what_it_says(bits in any::<u32>(), half in -8_388_608..8_388_608_i32) {
            let plainly = |sample: f32, scale: f32| {
                let scaled = f64::from(sample) * f64::from(scale);
                let rounded = (scaled + 0.5_f64.copysign(scaled)) as i32;
                rounded.clamp(-(scale as i32), scale as i32 - 1)
            };
            for scale in [S16_SCALE, S24_SCALE] {
                let at_half = (half as f32 + 0.5) / scale;
                let samples = [f32::from_bits(bits), at_half, at_half.next_up(), at_half.next_down()];
                for sample in samples {
                    prop_assert_eq!(quantise(sample, scale), plainly(sample, scale), "{}", sample);
                }
            }
        }
    }
}
