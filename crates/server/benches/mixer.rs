//! What the server's mixer takes of a core for one turn, in which everybody sends a packet and is sent one: `cargo bench -p antiphon-server --bench mixer`.
//!
//! Everybody takes a mix of all others, stereo, 16 bits, packets of 128 frames, which is a turn every 2.67 ms, and all packets of a turn come at
//! the same time. QUIC and the network are not in it.

#[path = "../tests/mixing/mod.rs"]
mod mixing;

use std::{hint::black_box, time::Duration};

use antiphon_core::wire::MAX_DATAGRAM_BYTES;
use antiphon_core::{SampleFormat, SampleRate, Sender, SenderConfig};
use antiphon_server::mixer::Mixer;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};

const RATE: SampleRate = SampleRate::Hz48000;
const FRAMES: usize = 128;

/// A turn's packet, which everybody sends, and when.
struct Turn {
    packet: Vec<u8>,
    at: Duration,
}

/// Turns of noise.
fn turns() -> impl FnMut() -> Turn {
    let mut sender = Sender::new(SenderConfig {
        rate: RATE,
        format: SampleFormat::S16,
        channels: 2,
        packet_frames: FRAMES,
    });
    let (mut noise, mut frames) = (1u32, 0);
    move || {
        let samples: [f32; 2 * FRAMES] = std::array::from_fn(|_| {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            noise as i32 as f32 / 2_147_483_648.0
        });
        sender.push(&samples, FRAMES);
        let mut packet = vec![0; MAX_DATAGRAM_BYTES];
        let length = sender.poll_datagram(&mut packet).expect("a packet");
        packet.truncate(length);
        frames += FRAMES as u64;
        let at = Duration::from_nanos(frames * 1_000_000_000 / u64::from(RATE.hz()));
        Turn { packet, at }
    }
}

/// Everybody sends the packet; the number of mixes that leave.
fn play(mixer: &mut Mixer, participants: u16, turn: &Turn) -> usize {
    let mut out = [0; MAX_DATAGRAM_BYTES];
    let mut mixed = 0;
    for stream in 1..=participants {
        mixer.handle_audio(stream, &turn.packet, turn.at);
        while let Some(packet) = mixer.poll_datagram(turn.at, &mut out) {
            black_box(&out[..packet.length]);
            mixed += 1;
        }
    }
    mixed
}

fn mixer(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("a turn of the mixer");
    for participants in [2, 8, 32] {
        let (mut mixer, mut turns) = (mixing::room(participants), turns());
        let mixed: usize = (0..2_000)
            .map(|_| play(&mut mixer, participants, &turns()))
            .sum();
        assert!(mixed > 1_900 * usize::from(participants), "{mixed} mixes");
        group.throughput(Throughput::Elements(participants.into()));
        group.bench_function(format!("{participants} participants"), |bencher| {
            bencher.iter_batched(
                &mut turns,
                |turn| play(&mut mixer, participants, &turn),
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, mixer);
criterion_main!(benches);
