//! What the server's mixer takes of a core for one turn, in which everybody sends a packet and is sent one: `cargo bench -p antiphon-server --bench mixer`.
//!
//! Everybody takes a mix of all others, stereo, 16 bits, packets of 128 frames, which is a turn every 2.67 ms, and all packets of a turn come at
//! the same time. QUIC and the network are not in it. And what 10 ms of a mix take in Opus, on the thread beside: so many listeners fit a processor
//! as that goes into 10 ms.

#[path = "../tests/mixing/mod.rs"]
mod mixing;

use std::{hint::black_box, time::Duration};

use antiphon_core::wire::MAX_DATAGRAM_BYTES;
use antiphon_core::{SampleFormat, SampleRate, Sender, SenderConfig};
use antiphon_opus::{FEED_FRAMES, outgoing::Rung};
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

/// Feeds of a chord with some noise, 2.5 ms each.
fn feeds() -> impl FnMut() -> Vec<u8> {
    let mut sender = Sender::new(SenderConfig {
        rate: RATE,
        format: SampleFormat::F32,
        channels: 2,
        packet_frames: FEED_FRAMES,
    });
    let (mut noise, mut frame) = (1u32, 0u32);
    move || {
        let mut samples = [0.0; 2 * FEED_FRAMES];
        let (left, right) = samples.split_at_mut(FEED_FRAMES);
        for (left, right) in left.iter_mut().zip(right) {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let hiss = noise as i32 as f32 / 2_147_483_648.0 / 50.0;
            let time = frame as f32 / RATE.hz() as f32;
            let tone = |hz: f32| 0.2 * (std::f32::consts::TAU * hz * time).sin();
            *left = tone(220.0) + tone(277.2) + hiss;
            *right = tone(220.0) + tone(329.6) - hiss;
            // A whole number of periods of all three.
            frame = (frame + 1) % (5 * RATE.hz());
        }
        sender.push(&samples, FEED_FRAMES);
        let mut datagram = vec![0; MAX_DATAGRAM_BYTES];
        let length = sender.poll_datagram(&mut datagram).expect("a feed");
        datagram.truncate(length);
        datagram
    }
}

fn opus(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("10 ms of a mix in Opus");
    for (kbps, frames) in [(128, 240), (64, 480)] {
        let rung = Rung::Opus { kbps, frames };
        let (mut encoder, mut feeds) = (rung.encoder(2).expect("Opus"), feeds());
        group.bench_function(format!("{kbps} kbit/s"), |bencher| {
            bencher.iter_batched(
                || [(); 4].map(|()| feeds()),
                |feeds| {
                    for feed in feeds {
                        encoder.push(&feed, |datagram| {
                            black_box(datagram);
                        });
                    }
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, mixer, opus);
criterion_main!(benches);
