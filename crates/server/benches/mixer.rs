//! What the server's mixer costs a participant, as the share of real time that one core spends on it: `cargo bench -p antiphon-server --bench mixer`.
//!
//! Everybody takes a mix of all others, stereo, 16 bits, packets of 128 frames, and all packets of a turn come at the same time. QUIC and the
//! network are not in it.

use std::{hint::black_box, time::Duration};

use antiphon_core::wire::MAX_DATAGRAM_BYTES;
use antiphon_core::{SampleFormat, SampleRate, Sender, SenderConfig};
use antiphon_server::mixer::{Mixer, Source};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const RATE: SampleRate = SampleRate::Hz48000;
const FRAMES: usize = 128;

/// Everybody in the room sends one packet and is sent one.
struct Room {
    mixer: Mixer,
    participants: u16,
    sender: Sender,
    noise: u32,
    turns: u64,
}

impl Room {
    fn new(participants: u16) -> Self {
        let mut mixer = Mixer::new(RATE);
        for listener in 1..=participants {
            mixer.set_listener(listener, SampleFormat::S16, FRAMES);
            let others = (1..=participants).filter(|&other| other != listener);
            let sources: Vec<_> = others
                .map(|stream| Source {
                    stream,
                    gain: 1.0 / f32::from(participants),
                    pan: 0.0,
                    muted: false,
                })
                .collect();
            mixer.set_sources(listener, &sources, Duration::ZERO);
        }
        let config = SenderConfig {
            rate: RATE,
            format: SampleFormat::S16,
            channels: 2,
            packet_frames: FRAMES,
        };
        Self {
            mixer,
            participants,
            sender: Sender::new(config),
            noise: 1,
            turns: 0,
        }
    }

    fn turn(&mut self) -> usize {
        let samples: [f32; 2 * FRAMES] = std::array::from_fn(|_| {
            self.noise = self
                .noise
                .wrapping_mul(1_664_525)
                .wrapping_add(1_013_904_223);
            self.noise as i32 as f32 / 2_147_483_648.0
        });
        self.sender.push(&samples, FRAMES);
        let mut packet = [0; MAX_DATAGRAM_BYTES];
        let length = self.sender.poll_datagram(&mut packet).expect("a packet");
        self.turns += 1;
        let nanos = self.turns * FRAMES as u64 * 1_000_000_000 / u64::from(RATE.hz());
        let now = Duration::from_nanos(nanos);
        let mut out = [0; MAX_DATAGRAM_BYTES];
        let mut mixed = 0;
        for stream in 1..=self.participants {
            self.mixer.handle_audio(stream, &packet[..length], now);
            while let Some(packet) = self.mixer.poll_datagram(now, &mut out) {
                black_box(&out[..packet.length]);
                mixed += 1;
            }
        }
        mixed
    }
}

fn mixing(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("a turn of the mixer");
    for participants in [2, 8, 32] {
        let mut room = Room::new(participants);
        let mixed: usize = (0..2_000).map(|_| room.turn()).sum();
        assert!(mixed > 1_900 * usize::from(participants), "{mixed} mixes");
        group.throughput(Throughput::Elements(participants.into()));
        group.bench_function(format!("{participants} participants"), |bencher| {
            bencher.iter(|| room.turn());
        });
    }
    group.finish();
}

criterion_group!(benches, mixing);
criterion_main!(benches);
