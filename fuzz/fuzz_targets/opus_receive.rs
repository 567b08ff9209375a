//! Opus packets of any bytes, out of order, twice and with gaps: no panic, also none that the receiver survives; each datagram is
//! delivered once; what is decoded has its header's shape and is finite.
#![no_main]

use std::collections::BTreeSet;

use antiphon_core::wire::{self, AUDIO_HEADER_BYTES, OpusHeader};
use antiphon_opus::{Received, Receiver};
use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

/// Packets that may wait behind gaps, in all.
const MAX_WAITING: usize = 3 * 8;

#[derive(Arbitrary, Debug)]
struct Packet {
    is_stereo: bool,
    duration: u8,
    /// Media time after the packet before.
    ahead: i32,
    bytes: Vec<u8>,
}

fuzz_target!(|packets: Vec<Packet>| {
    let mut receiver = Receiver::default();
    let mut timestamp = 1u64 << 40;
    let mut waiting = BTreeSet::new();
    for (n, packet) in packets.iter().take(64).enumerate() {
        timestamp = timestamp.wrapping_add_signed(i64::from(packet.ahead));
        let bytes = &packet.bytes[..packet.bytes.len().min(980)];
        let mut datagram = vec![0; AUDIO_HEADER_BYTES + bytes.len()];
        OpusHeader {
            channels: 1 + u8::from(packet.is_stereo),
            stream: 0,
            frames: 120 << (packet.duration % 3),
            sequence: n as u32,
            timestamp,
        }
        .write(&mut datagram);
        datagram[AUDIO_HEADER_BYTES..].copy_from_slice(bytes);
        waiting.insert(n as u32);
        receiver.push(&datagram, |received| {
            let (Received::Decoded(bytes) | Received::Undecoded(bytes)) = received;
            let sequence = wire::sequence(bytes);
            assert!(waiting.remove(&sequence), "{sequence} twice, or of nobody");
            let Received::Decoded(record) = received else {
                return;
            };
            let (_, samples) = wire::parse_decoded(record).expect("a record");
            for sample in samples.chunks_exact(4) {
                let sample = f32::from_le_bytes(sample.try_into().expect("four bytes"));
                assert!(sample.is_finite());
            }
        });
        assert!(waiting.len() <= MAX_WAITING);
    }
});
