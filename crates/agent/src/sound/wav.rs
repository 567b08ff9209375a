//! WAV files as they are found: from a pipe, cut off, with samples in containers that are wider than they are.

use std::io::{self, ErrorKind, Read};

use antiphon_core::SampleRate;
use antiphon_core::wire::MAX_CHANNELS;

/// `wFormatTag`, or what the subformat of an extensible one begins with.
const INTEGER: u16 = 1;
const FLOAT: u16 = 3;
const EXTENSIBLE: u16 = 0xFFFE;
/// What follows a tag in a subformat that is one: the rest of `KSDATAFORMAT_SUBTYPE_PCM`.
const SUBFORMAT: [u8; 14] = [0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xAA, 0, 0x38, 0x9B, 0x71];
/// Of a format chunk that is not extensible, and of one that is.
const FORMAT_BYTES: usize = 16;
const EXTENSIBLE_BYTES: usize = 40;
/// A length that is not known, as a program says that writes into a pipe.
const UNKNOWN: u32 = u32::MAX;

const CONVERT: &str =
    "convert it to 16 or 24 bits, for instance with `ffmpeg -i IN -c:a pcm_s24le OUT.wav`";

/// What is in a file.
#[derive(Debug)]
pub(super) struct Take {
    pub(super) rate: SampleRate,
    /// 1 to 8.
    pub(super) channels: usize,
    /// `[frame][channel]`, whole frames.
    pub(super) samples: Vec<f32>,
}

/// Reads as much as is there, whatever lengths are said. Nothing is sought, so that a pipe is read as well.
///
/// # Errors
/// In words for the user.
pub(super) fn read(mut from: impl Read) -> Result<Take, String> {
    let mut head = [0; 12];
    let begun = from.read_exact(&mut head);
    if begun.is_err() || head[..4] != *b"RIFF" || head[8..] != *b"WAVE" {
        return Err(format!("no WAV file: {CONVERT}"));
    }
    let file_bytes = u32_at(&head, 4);
    let mut position = 4u64;
    let mut format = None;
    loop {
        let mut head = [0; 8];
        from.read_exact(&mut head).map_err(cut_off)?;
        let length = u32_at(&head, 4);
        position += 8;
        match (&head[..4], format) {
            (b"data", Some(format)) => {
                // Whoever was cut off, or could not go back, left the length for later. An empty take has other chunks behind it, or nothing.
                let ends_here = file_bytes == UNKNOWN || u64::from(file_bytes) <= position;
                let is_unknown = length == UNKNOWN || (length == 0 && ends_here);
                let bytes = if is_unknown { u64::MAX } else { length.into() };
                return take(&format, from.take(bytes));
            }
            (b"data", None) => return Err(format!("its format comes too late: {CONVERT}")),
            _ => {}
        }
        // A chunk takes an even number of bytes.
        let mut left = u64::from(length) + u64::from(length % 2);
        position += left;
        if head[..4] == *b"fmt " {
            let mut chunk = [0; EXTENSIBLE_BYTES];
            let there = chunk.len().min(length as usize);
            from.read_exact(&mut chunk[..there]).map_err(cut_off)?;
            format = Some(Format::read(&chunk[..there])?);
            left -= there as u64;
        }
        io::copy(&mut (&mut from).take(left), &mut io::sink()).map_err(cut_off)?;
    }
}

fn cut_off(error: io::Error) -> String {
    match error.kind() {
        ErrorKind::UnexpectedEof => "it ends before its first sample".to_owned(),
        _ => error.to_string(),
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

#[derive(Clone, Copy)]
struct Format {
    rate: SampleRate,
    channels: usize,
    /// Of a sample.
    bytes: usize,
    coding: Coding,
}

#[derive(Clone, Copy)]
enum Coding {
    /// At the upper end of its bytes, as Microsoft has it: what is below the valid bits is zero, so how many those are does not matter.
    Integer,
    /// Three bytes at the lower end of four: the `S24_LE` of `arecord`.
    LowerThree,
    Float,
}

impl Format {
    fn read(chunk: &[u8]) -> Result<Self, String> {
        if chunk.len() < FORMAT_BYTES {
            return Err(format!("its format is not said: {CONVERT}"));
        }
        let (channels, hz) = (usize::from(u16_at(chunk, 2)), u32_at(chunk, 4));
        let rate = SampleRate::from_hz(hz)
            .ok_or_else(|| format!("{hz} Hz: a room has 44100, 48000, 88200 or 96000"))?;
        if !(1..=MAX_CHANNELS).contains(&channels) {
            return Err(format!(
                "{channels} channels: 1 to {MAX_CHANNELS} can be sent"
            ));
        }
        let (frame_bytes, bits) = (usize::from(u16_at(chunk, 12)), u16_at(chunk, 14));
        let tag = match u16_at(chunk, 0) {
            EXTENSIBLE if chunk.get(26..) == Some(&SUBFORMAT[..]) => u16_at(chunk, 24),
            tag => tag,
        };
        let bytes = frame_bytes / channels;
        let is_full = bytes == usize::from(bits.div_ceil(8));
        let coding = match (tag, bytes) {
            _ if !frame_bytes.is_multiple_of(channels) => None,
            (INTEGER, 1..=4) if is_full => Some(Coding::Integer),
            (INTEGER, 4) if bits == 24 => Some(Coding::LowerThree),
            (FLOAT, 4 | 8) if is_full => Some(Coding::Float),
            _ => None,
        };
        Ok(Self {
            rate,
            channels,
            bytes,
            coding: coding.ok_or_else(|| format!("its samples are not known here: {CONVERT}"))?,
        })
    }

    fn sample(&self, bytes: &[u8]) -> f32 {
        let upper = |bytes: &[u8]| {
            let mut whole = [0; 4];
            whole[4 - bytes.len()..].copy_from_slice(bytes);
            i32::from_le_bytes(whole)
        };
        let integer = match (self.coding, bytes) {
            (Coding::Float, &[a, b, c, d]) => return f32::from_le_bytes([a, b, c, d]),
            (Coding::Float, &[a, b, c, d, e, f, g, h]) => {
                return f64::from_le_bytes([a, b, c, d, e, f, g, h]) as f32;
            }
            // These alone have no sign.
            (_, &[byte]) => upper(&[byte ^ 0x80]),
            (Coding::LowerThree, _) => upper(&bytes[..3]),
            _ => upper(bytes),
        };
        integer as f32 / (1u32 << 31) as f32
    }
}

/// All whole frames that are there.
fn take(format: &Format, mut from: impl Read) -> Result<Take, String> {
    let mut samples = Vec::new();
    let mut frame = vec![0; format.channels * format.bytes];
    loop {
        match from.read_exact(&mut frame) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error.to_string()),
        }
        let read = frame.chunks_exact(format.bytes);
        samples.extend(read.map(|bytes| format.sample(bytes)));
    }
    if samples.is_empty() {
        return Err("there is nothing in it".into());
    }
    Ok(Take {
        rate: format.rate,
        channels: format.channels,
        samples,
    })
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    /// A chunk of one channel; what is `extensible` has so many valid bits.
    fn format(tag: u16, bytes: u16, bits: u16, valid_bits: Option<u16>) -> Vec<u8> {
        let mut chunk = Vec::new();
        chunk.extend(valid_bits.map_or(tag, |_| EXTENSIBLE).to_le_bytes());
        chunk.extend(1u16.to_le_bytes());
        chunk.extend(48_000u32.to_le_bytes());
        chunk.extend((48_000 * u32::from(bytes)).to_le_bytes());
        chunk.extend(bytes.to_le_bytes());
        chunk.extend(bits.to_le_bytes());
        if let Some(valid_bits) = valid_bits {
            chunk.extend(22u16.to_le_bytes());
            chunk.extend(valid_bits.to_le_bytes());
            chunk.extend(4u32.to_le_bytes());
            chunk.extend(tag.to_le_bytes());
            chunk.extend(SUBFORMAT);
        }
        chunk
    }

    fn chunk(name: &[u8; 4], content: &[u8]) -> Vec<u8> {
        let mut bytes = name.to_vec();
        bytes.extend((content.len() as u32).to_le_bytes());
        bytes.extend(content);
        bytes.resize(bytes.len().next_multiple_of(2), 0);
        bytes
    }

    fn file(chunks: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = b"WAVE".to_vec();
        bytes.extend(chunks.concat());
        chunk(b"RIFF", &bytes)
    }

    fn samples(format: &[u8], data: &[u8]) -> Vec<f32> {
        let bytes = file(&[chunk(b"fmt ", format), chunk(b"data", data)]);
        read(&bytes[..]).expect("a take").samples
    }

    #[test]
    fn every_width_is_read_at_full_scale() {
        let (half, least) = (0x40, 0x80);
        for bytes in 1..=4u16 {
            let sample = |top: u8| {
                let mut sample = vec![0; usize::from(bytes)];
                // Eight bits have no sign.
                *sample.last_mut().expect("a byte") = if bytes == 1 { top ^ 0x80 } else { top };
                sample
            };
            let data = [sample(half), sample(least), sample(0)].concat();
            let format = format(INTEGER, bytes, 8 * bytes, None);
            assert_eq!(samples(&format, &data), [0.5, -1.0, 0.0], "{bytes}");
        }
        let data = [0.25f32.to_le_bytes(), (-1.5f32).to_le_bytes()].concat();
        assert_eq!(samples(&format(FLOAT, 4, 32, None), &data), [0.25, -1.5]);
        let data = [0.25f64.to_le_bytes(), (-1.5f64).to_le_bytes()].concat();
        assert_eq!(
            samples(&format(FLOAT, 8, 64, Some(64)), &data),
            [0.25, -1.5]
        );
    }

    #[test]
    fn samples_in_wider_containers_are_at_their_upper_end_unless_they_are_plain() {
        // Below the valid bits is what would be full scale alone.
        let upper = [0, 0xFF, 0xFF, 0x3F, 0, 0, 0, 0xC0];
        let read = samples(&format(INTEGER, 4, 32, Some(24)), &upper);
        assert!((read[0] - 0.5).abs() < 1e-5 && read[1] == -0.5, "{read:?}");
        let twenty = [0xF0, 0xFF, 0x3F, 0, 0, 0xC0];
        let read = samples(&format(INTEGER, 3, 24, Some(20)), &twenty);
        assert!((read[0] - 0.5).abs() < 1e-5 && read[1] == -0.5, "{read:?}");
        // Above them is the sign, or nothing.
        let lower = [0, 0, 0x40, 0, 0, 0, 0xC0, 0xFF, 0, 0, 0xC0, 0];
        let read = samples(&format(INTEGER, 4, 24, None), &lower);
        assert_eq!(read, [0.5, -0.5, -0.5]);
    }

    #[test]
    fn what_was_piped_or_cut_off_is_read_as_far_as_it_goes() {
        let (format, data) = (format(INTEGER, 2, 16, None), [0, 0x40, 0, 0xC0]);
        let whole = file(&[chunk(b"fmt ", &format), chunk(b"data", &data)]);
        let lengths = |file_bytes: u32, data_bytes: u32, cut: usize| {
            let mut bytes = whole[..whole.len() - cut].to_vec();
            bytes[4..8].copy_from_slice(&file_bytes.to_le_bytes());
            let at = whole.len() - data.len() - 4;
            bytes[at..at + 4].copy_from_slice(&data_bytes.to_le_bytes());
            read(&bytes[..]).map(|take| take.samples)
        };
        let (true_bytes, without_data) = (40, 36);
        for (file_bytes, data_bytes) in [
            (true_bytes, 4),
            (UNKNOWN, UNKNOWN),
            (UNKNOWN, 0),
            (0, 0),
            (without_data, 0),
            (0x7FFF_FFFF, 0x7FFF_F000),
        ] {
            let read = lengths(file_bytes, data_bytes, 0).expect("a take");
            assert_eq!(read, [0.5, -0.5], "{file_bytes}, {data_bytes}");
        }
        assert_eq!(lengths(true_bytes, 4, 1).expect("a take"), [0.5]);
        for nothing in [lengths(true_bytes, 4, 3), lengths(true_bytes, 0, 0)] {
            assert_eq!(nothing.expect_err("refused"), "there is nothing in it");
        }
    }

    #[test]
    fn other_chunks_are_passed_over_and_what_is_no_sound_of_ours_is_refused() {
        let format_of = |tag| format(tag, 2, 16, None);
        let (name, odd) = (chunk(b"LIST", b"a name"), chunk(b"odd ", b"abc"));
        let (fmt, data) = (
            chunk(b"fmt ", &format_of(INTEGER)),
            chunk(b"data", &[0, 0x40]),
        );
        let take = read(&file(&[name.clone(), odd, fmt, data.clone(), name])[..]);
        assert_eq!(take.expect("a take").samples, [0.5]);
        let a_law = chunk(b"fmt ", &format_of(6));
        let mut slow = format_of(INTEGER);
        slow[4..8].copy_from_slice(&8_000u32.to_le_bytes());
        for (bytes, why) in [
            (b"ID3 and not a WAV file".to_vec(), "ffmpeg"),
            (file(&[a_law, data.clone()]), "ffmpeg"),
            (file(std::slice::from_ref(&data)), "too late"),
            (file(&[chunk(b"fmt ", &slow), data]), "8000 Hz"),
            (file(&[]), "before its first sample"),
        ] {
            let refused = read(&bytes[..]).expect_err("refused");
            assert!(refused.contains(why), "{refused}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn whatever_is_in_a_file_is_refused_or_read_in_whole_frames(
            format in vec(any::<u8>(), 0..64),
            channels in 0..10u8,
            (tag, frame_bytes, bits) in (0..5u8, 0..70u8, 0..70u8),
            data in vec(any::<u8>(), 0..200),
            cut in 0..300usize,
        ) {
            let mut likely = self::format(tag.into(), frame_bytes.into(), bits.into(), None);
            likely[2] = channels;
            for format in [format, likely] {
                let mut bytes = file(&[chunk(b"fmt ", &format), chunk(b"data", &data)]);
                bytes.truncate(cut);
                if let Ok(take) = read(&bytes[..]) {
                    prop_assert!(!take.samples.is_empty());
                    prop_assert!(take.samples.len().is_multiple_of(take.channels));
                }
            }
        }
    }
}
