//! Packets of libopus as datagrams, and what went into it.
#![allow(dead_code, reason = "not every test needs all of it")]

use antiphon_core::wire::{AUDIO_HEADER_BYTES, OpusHeader};

/// Media time of the first frame that went into the encoder.
pub(crate) const BEGIN: u64 = 100_000;
/// Of the encoder, in low-delay mode.
pub(crate) const LOOKAHEAD: u64 = 120;
/// Every shape of packet: channels, frames, packets.
pub(crate) const SHAPES: [(u8, u16, &[u8]); 6] = [
    (1, 120, include_bytes!("../libopus/1-120")),
    (1, 240, include_bytes!("../libopus/1-240")),
    (1, 480, include_bytes!("../libopus/1-480")),
    (2, 120, include_bytes!("../libopus/2-120")),
    (2, 240, include_bytes!("../libopus/2-240")),
    (2, 480, include_bytes!("../libopus/2-480")),
];

/// A chord that begins anew four times a second: what went into the encoder, by frame.
pub(crate) fn music(frame: usize, channel: usize) -> f32 {
    let t = frame as f32 / 48_000.0;
    let detune = 1.0 + 0.001 * channel as f32;
    let parts = [220.0, 277.2, 329.6, 880.0, 3000.0];
    let sum: f32 = (0..5)
        .map(|k| {
            let phase = t * parts[k] * std::f32::consts::TAU * detune;
            phase.sin() * 0.1 / (1.0 + k as f32 * 0.5)
        })
        .sum();
    sum * (1.0 - (frame % 12_000) as f32 / 12_000.0 * 0.8)
}

/// A datagram of one packet.
pub(crate) fn datagram(
    channels: u8,
    frames: u16,
    sequence: u32,
    timestamp: u64,
    packet: &[u8],
) -> Vec<u8> {
    let mut bytes = vec![0; AUDIO_HEADER_BYTES + packet.len()];
    OpusHeader {
        channels,
        stream: 0,
        frames,
        sequence,
        timestamp,
    }
    .write(&mut bytes);
    bytes[AUDIO_HEADER_BYTES..].copy_from_slice(packet);
    bytes
}

/// A file's packets as a sender numbers and times them.
pub(crate) fn datagrams((channels, frames, mut file): (u8, u16, &[u8])) -> Vec<Vec<u8>> {
    let mut datagrams = Vec::new();
    while let Some((length, rest)) = file.split_first_chunk() {
        let (packet, rest) = rest.split_at(u16::from_le_bytes(*length).into());
        file = rest;
        let sequence = datagrams.len() as u32;
        let timestamp = BEGIN + u64::from(sequence) * u64::from(frames) - LOOKAHEAD;
        datagrams.push(datagram(channels, frames, sequence, timestamp, packet));
    }
    datagrams
}
