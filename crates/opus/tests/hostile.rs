//! No bytes make the decoder panic; each datagram is delivered once, and all that is decoded is finite. In a process of its own:
//! [`antiphon_opus::Receiver`] survives a panic, so only the hook sees one.

mod common;

use std::sync::atomic::{AtomicU32, Ordering};

use antiphon_core::wire;
use antiphon_opus::{Received, Receiver};
use common::{SHAPES, datagram, datagrams};

static PANICS: AtomicU32 = AtomicU32::new(0);

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % below as u64) as usize
    }
}

#[test]
fn hostile_packets_are_refused_or_decoded_to_something_finite() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        print(panic);
    }));
    let packets: Vec<_> = SHAPES.into_iter().flat_map(datagrams).collect();
    let mut random = Random(1);
    let (mut decoded, mut refused) = (0, 0);
    for _ in 0..40 {
        let (mut receiver, mut pushed, mut delivered) = (Receiver::default(), 0, 0);
        for sequence in 0..50 {
            let source = &packets[random.below(packets.len())];
            let (channels, frames) = (source[3], u16::from_le_bytes([source[6], source[7]]));
            let mut packet = source[20..].to_vec();
            match random.below(6) {
                0 => {
                    packet = (0..=random.below(980))
                        .map(|_| random.below(256) as u8)
                        .collect()
                }
                1 => packet.truncate(1 + random.below(source.len() - 20)),
                2 => packet[0] = random.below(256) as u8,
                3 => {
                    let from = random.below(packet.len());
                    packet[from..].fill([0, 255, 128][random.below(3)]);
                }
                _ => {
                    for _ in 0..4 {
                        let at = random.below(packet.len());
                        packet[at] ^= 1 << random.below(8);
                    }
                }
            }
            packet.truncate(980);
            let timestamp = (sequence + random.below(4)) as u64 * 120;
            let bytes = datagram(channels, frames, sequence as u32, timestamp, &packet);
            pushed += 1;
            receiver.push(&bytes, |received| {
                delivered += 1;
                let Received::Decoded(record) = received else {
                    refused += 1;
                    return;
                };
                let (_, samples) = wire::parse_decoded(record).expect("a record");
                decoded += usize::from(!samples.is_empty());
                for sample in samples.chunks_exact(4) {
                    let sample = f32::from_le_bytes(sample.try_into().expect("four bytes"));
                    assert!(sample.is_finite());
                }
            });
        }
        assert!(
            (pushed - 3 * 8..=pushed).contains(&delivered),
            "{delivered} of {pushed}"
        );
    }
    assert!(
        decoded > 200 && refused > 200,
        "{decoded} decoded, {refused} refused"
    );
    assert_eq!(PANICS.load(Ordering::Relaxed), 0);
}
