//! Frames of the engine into packets of Opus, as the page makes them with WebCodecs.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use antiphon_core::wire::{self, AUDIO_HEADER_BYTES, Datagram, MAX_DATAGRAM_BYTES, OpusHeader};
use antiphon_core::{SampleFormat, SampleRate};
use ruopus::{Application, Bandwidth, OpusEncoder};

/// Frames in each datagram of the rendition that feeds encoders: every packet is a whole number of them.
pub const FEED_FRAMES: usize = 120;
/// An Opus packet is no longer (RFC 6716, 3.4).
const MAX_PACKET_BYTES: usize = 1_275;

/// Encodes one stream at one bit rate, in packets of one duration: constant bit rate, and no more lookahead than the transform's.
///
/// A packet's media time is that of the frame that its first one decodes to: the lookahead is taken off, so that all formats of a stream
/// have the same media time (`docs/adr/0015-redundancy-and-degradation.md`).
pub struct Encoder {
    encoder: OpusEncoder,
    channels: usize,
    /// Of a packet.
    frames: usize,
    bits_per_second: u32,
    /// The packet under way, interleaved.
    block: Vec<f32>,
    /// Media time of the block's first frame.
    start: u64,
}

impl Encoder {
    /// For packets of `frames` frames, at so many bits a second.
    ///
    /// # Panics
    /// Unless there are one or two `channels`, and 120, 240 or 480 `frames` (2.5, 5, 10 ms).
    pub fn new(channels: usize, frames: usize, bits_per_second: u32) -> Self {
        assert!(
            (1..=2).contains(&channels) && [120, 240, 480].contains(&frames),
            "{channels} channels, {frames} frames"
        );
        Self {
            encoder: encoder(channels, frames, bits_per_second),
            channels,
            frames,
            bits_per_second,
            block: Vec::with_capacity(channels * frames),
            start: 0,
        }
    }

    /// Takes a datagram of floats with [`FEED_FRAMES`] frames at 48 kHz, and gives `deliver` the Opus datagram that it completes, if any. Its sequence
    /// and stream numbers are 0. Another datagram, or one of as many channels as it does not encode, is ignored. After a jump in media time it begins
    /// anew, with a frame with which all encoders of this feed begin such a packet.
    ///
    /// O(frames), no lock, but allocates: not for an audio thread. Samples beyond ±1 are clipped, those that are no number are silent.
    pub fn push(&mut self, feed: &[u8], mut deliver: impl FnMut(&mut [u8])) {
        let Ok(Datagram::Audio(header, samples, _)) = wire::parse(feed) else {
            return;
        };
        let is_fit = header.format == SampleFormat::F32
            && header.rate == SampleRate::Hz48000
            && usize::from(header.channels) == self.channels
            && usize::from(header.frames) == FEED_FRAMES;
        if !is_fit {
            return;
        }
        let expected = self.start + (self.block.len() / self.channels) as u64;
        if header.timestamp != expected {
            self.block.clear();
            self.start = header.timestamp;
            self.encoder.reset();
        }
        if self.block.is_empty() && !is_boundary(header.timestamp, self.frames) {
            self.start += FEED_FRAMES as u64;
            return;
        }
        let samples = samples.chunks_exact(4).map(|bytes| {
            let sample = f32::from_le_bytes(bytes.try_into().expect("four bytes"));
            if sample.is_nan() {
                0.0
            } else {
                sample.clamp(-1.0, 1.0)
            }
        });
        self.block.extend(samples);
        if self.block.len() < self.frames * self.channels {
            return;
        }
        let packet = self.encode();
        let start = self.start;
        self.start += self.frames as u64;
        self.block.clear();
        // What the first packet begins with is before the first frame.
        let timestamp = start.checked_sub(self.encoder.lookahead().into());
        let (Some(packet), Some(timestamp)) = (packet, timestamp) else {
            return;
        };
        let mut datagram = [0; MAX_DATAGRAM_BYTES];
        let Some(datagram) = datagram.get_mut(..AUDIO_HEADER_BYTES + packet.len()) else {
            return;
        };
        let header = OpusHeader {
            channels: self.channels as u8,
            stream: 0,
            frames: self.frames as u16,
            sequence: 0,
            timestamp,
        };
        header.write(datagram);
        datagram[AUDIO_HEADER_BYTES..].copy_from_slice(&packet);
        deliver(datagram);
    }

    /// `None`: the packet is missing, and the encoder begins anew.
    fn encode(&mut self) -> Option<Vec<u8>> {
        // A panic leaves nothing behind: the encoder goes with it.
        let (encoder, block) = (&mut self.encoder, &self.block);
        let encode = AssertUnwindSafe(|| encoder.encode(block, MAX_PACKET_BYTES).ok());
        let packet = catch_unwind(encode).ok().flatten();
        if packet.is_none() {
            self.encoder = self::encoder(self.channels, self.frames, self.bits_per_second);
        }
        packet
    }
}

/// Whether packets of `frames` frames begin with the feed's datagram of that media time: in all encoders of a feed with the same, so that one can take over
/// from another between two packets.
fn is_boundary(timestamp: u64, frames: usize) -> bool {
    let number = timestamp / FEED_FRAMES as u64;
    number.is_multiple_of((frames / FEED_FRAMES) as u64)
}

fn encoder(channels: usize, frames: usize, bits_per_second: u32) -> OpusEncoder {
    // It does not count the byte before each packet's sound.
    let first_byte = 8 * 48_000 / frames as u32;

    let mut encoder = OpusEncoder::new(channels);
    encoder.set_application(Application::RestrictedLowDelay);
    encoder.set_bandwidth(Bandwidth::FullBand);
    encoder.set_bitrate(Some(bits_per_second.saturating_sub(first_byte)));
    encoder.set_vbr(false);
    encoder
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoder")
            .field("channels", &self.channels)
            .field("bits_per_second", &self.bits_per_second)
            .field("start", &self.start)
            .finish_non_exhaustive()
    }
}
