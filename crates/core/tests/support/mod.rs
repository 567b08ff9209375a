//! What the tests share: packets whose samples name themselves, and readers of them.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]

pub mod sim;

use antiphon_core::conceal::Concealment;
use antiphon_core::player::MAX_QUANTUM_FRAMES;
use antiphon_core::wire::AudioHeader;
use antiphon_core::{Player, PlayerConfig, SampleFormat, SampleRate, StreamStats};

/// The frames that tagged samples can name before they repeat: what a 24-bit sample can tell apart.
pub const TAGS: u64 = (1 << 22) - 1;

/// A sample that names its media time and channel parity; never 0, exact in 24 bits and in floats.
pub fn tag(media: u64, channel: usize) -> f32 {
    let number = (media % TAGS + 1) as f32 / 8_388_608.0;
    if channel.is_multiple_of(2) {
        number
    } else {
        -number
    }
}

/// The media time (modulo [`TAGS`]) that a sample names; `None` for silence and for what no packet holds.
pub fn media_of(sample: f32) -> Option<u64> {
    let number = f64::from(sample.abs()) * 8_388_608.0;
    (number >= 1.0 && number.fract() == 0.0).then(|| number as u64 - 1)
}

/// A header for tests that do not care: stereo floats at 48 kHz.
pub fn header(sequence: u32, timestamp: u64, frames: usize) -> AudioHeader {
    AudioHeader {
        format: SampleFormat::F32,
        rate: SampleRate::Hz48000,
        channels: 1,
        stream: 0,
        frames: frames as u16,
        sequence,
        timestamp,
    }
}

/// The datagram of a header, its samples tagged. Too long for the wire if the header says so.
pub fn datagram(header: &AudioHeader) -> Vec<u8> {
    let mut bytes = vec![0; header.datagram_bytes()];
    header.write(&mut bytes);
    let width = header.format.bytes();
    let mut at = antiphon_core::wire::AUDIO_HEADER_BYTES;
    for frame in 0..u64::from(header.frames) {
        for channel in 0..usize::from(header.channels) {
            let sample = tag(header.timestamp.wrapping_add(frame), channel);
            let encoded = match header.format {
                SampleFormat::S16 => panic!("16 bits cannot hold a tag"),
                SampleFormat::S24 => ((sample * 8_388_608.0) as i32).to_le_bytes(),
                SampleFormat::F32 => sample.to_le_bytes(),
            };
            bytes[at..at + width].copy_from_slice(&encoded[..width]);
            at += width;
        }
    }
    bytes
}

/// A player at 48 kHz.
pub fn player(output_channels: usize, max_streams: usize, buffer_frames: usize) -> Player {
    Player::new(PlayerConfig {
        rate: SampleRate::Hz48000,
        output_channels,
        max_streams,
        buffer_frames,
        max_quantum_frames: MAX_QUANTUM_FRAMES,
        concealment: Concealment::Silence,
    })
}

/// One quantum of a player with one output channel.
pub fn quantum(player: &mut Player, frames: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; frames];
    player.process_quantum(&mut out);
    out
}

/// The statistics of a stream that must exist.
pub fn stats(player: &Player, id: u32) -> StreamStats {
    player.stream_stats(id).expect("the stream was added")
}

/// A small seeded generator (SplitMix64), for scenarios that must be the same on every machine.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 0 to 1, 1 excluded.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// From `0` to `below`, which is excluded.
    pub fn below(&mut self, below: u64) -> u64 {
        self.next() % below
    }
}
