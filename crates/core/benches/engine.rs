//! What the engine costs, as the share of real time that one core spends on it: `cargo bench -p antiphon-core`.
//! The same in wasm, as the browser's audio thread runs it: `node crates/core/benches/wasm.mjs`.

use std::hint::black_box;

use antiphon_core::conceal::Concealment;
use antiphon_core::player::MAX_QUANTUM_FRAMES;
use antiphon_core::wire::MAX_DATAGRAM_BYTES;
use antiphon_core::{
    Command, Player, PlayerConfig, SampleFormat, SampleRate, Sender, SenderConfig, Target,
};
use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{Criterion, Throughput};

const RATE: SampleRate = SampleRate::Hz48000;

/// Wall time, shown as a share of the time that `frames` frames sound.
struct Share {
    quantum_ns: f64,
}

impl Share {
    fn of(frames: usize) -> Self {
        Self {
            quantum_ns: frames as f64 * 1e9 / f64::from(RATE.hz()),
        }
    }
}

impl ValueFormatter for Share {
    fn scale_values(&self, _typical: f64, values: &mut [f64]) -> &'static str {
        for value in values {
            *value *= 100.0 / self.quantum_ns;
        }
        "% of real time"
    }

    fn scale_throughputs(&self, _: f64, _: &Throughput, _: &mut [f64]) -> &'static str {
        "% of real time"
    }

    fn scale_for_machines(&self, _values: &mut [f64]) -> &'static str {
        "ns"
    }
}

impl Measurement for Share {
    type Intermediate = <WallTime as Measurement>::Intermediate;
    type Value = <WallTime as Measurement>::Value;

    fn start(&self) -> Self::Intermediate {
        WallTime.start()
    }

    fn end(&self, begin: Self::Intermediate) -> Self::Value {
        WallTime.end(begin)
    }

    fn add(&self, a: &Self::Value, b: &Self::Value) -> Self::Value {
        WallTime.add(a, b)
    }

    fn zero(&self) -> Self::Value {
        WallTime.zero()
    }

    fn to_f64(&self, value: &Self::Value) -> f64 {
        WallTime.to_f64(value)
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        self
    }
}

fn sender(format: SampleFormat, packet_frames: usize) -> Sender {
    Sender::new(SenderConfig {
        rate: RATE,
        format,
        channels: 2,
        packet_frames,
    })
}

/// A player with so many stereo peers, and what each of them sends.
struct Room {
    player: Player,
    senders: Vec<Sender>,
    input: Vec<f32>,
    frames: usize,
    datagrams: Vec<(u32, [u8; MAX_DATAGRAM_BYTES], usize)>,
}

impl Room {
    fn new(peers: u32, frames: usize, format: SampleFormat) -> Self {
        let mut player = Player::new(PlayerConfig {
            rate: RATE,
            output_channels: 2,
            max_streams: peers as usize,
            buffer_frames: 16_384,
            max_quantum_frames: MAX_QUANTUM_FRAMES,
            concealment: Concealment::Prediction,
        });
        for id in 0..peers {
            let fixed = Command::Target(id, Target::Fixed(256));
            for command in [Command::Add(id), fixed, Command::Gain(id, 0.5)] {
                player.handle_command(command).expect("fits");
            }
        }
        let input = (0..2 * frames).map(|n| (n as f32 * 0.01).sin()).collect();
        Self {
            player,
            senders: (0..peers).map(|_| sender(format, frames)).collect(),
            input,
            frames,
            datagrams: Vec::new(),
        }
    }

    /// Every peer captures and sends a quantum's worth.
    fn send(&mut self) {
        self.datagrams.clear();
        for (id, sender) in (0..).zip(&mut self.senders) {
            sender.push(&self.input, self.frames);
            let mut bytes = [0; MAX_DATAGRAM_BYTES];
            while let Some(length) = sender.poll_datagram(&mut bytes) {
                self.datagrams.push((id, bytes, length));
            }
        }
    }

    /// What the audio thread does each time: take what has come, and render.
    fn receive(&mut self, out: &mut [f32]) {
        for (id, bytes, length) in &self.datagrams {
            self.player.handle_datagram(*id, &bytes[..*length]);
        }
        self.player.process_quantum(out);
    }
}

fn render(frames: usize) {
    let mut criterion = Criterion::default()
        .with_measurement(Share::of(frames))
        .without_plots()
        .configure_from_args();
    for peers in [1, 20] {
        for format in [SampleFormat::S16, SampleFormat::S24, SampleFormat::F32] {
            let mut room = Room::new(peers, frames, format);
            let mut out = vec![0.0; 2 * frames];
            let bits = format.bits();
            let name =
                format!("receive and render {frames} frames, {peers} stereo peers, {bits} bits");
            criterion.bench_function(&name, |bencher| {
                bencher.iter_custom(|times| {
                    let mut total = Share::of(frames).zero();
                    for _ in 0..times {
                        room.send();
                        let begin = WallTime.start();
                        room.receive(&mut out);
                        total += WallTime.end(begin);
                    }
                    total
                });
            });
            black_box(&out);
            let stats = room.player.stream_stats(0).expect("was added");
            assert_eq!(
                stats.jitter.concealed_frames, 0,
                "the bench starves its player"
            );
        }
    }
}

fn parts(frames: usize) {
    let mut criterion = Criterion::default()
        .with_measurement(Share::of(frames))
        .without_plots()
        .configure_from_args();
    for format in [SampleFormat::S16, SampleFormat::S24, SampleFormat::F32] {
        let bits = format.bits();
        let mut sender = sender(format, frames);
        let input = vec![0.25; 2 * frames];
        let mut bytes = [0; MAX_DATAGRAM_BYTES];
        criterion.bench_function(
            &format!("push and poll {frames} frames, stereo, {bits} bits"),
            |bencher| {
                bencher.iter(|| {
                    sender.push(black_box(&input), frames);
                    while sender.poll_datagram(&mut bytes).is_some() {}
                });
            },
        );
        let mut room = Room::new(1, frames, format);
        let mut out = vec![0.0; 2 * frames];
        let name = format!("handle_datagram of {frames} frames, stereo, {bits} bits");
        criterion.bench_function(&name, |bencher| {
            bencher.iter_custom(|times| {
                let mut total = Share::of(frames).zero();
                for _ in 0..times {
                    room.send();
                    let begin = WallTime.start();
                    for (id, bytes, length) in &room.datagrams {
                        room.player
                            .handle_datagram(*id, black_box(&bytes[..*length]));
                    }
                    total += WallTime.end(begin);
                    room.player.process_quantum(&mut out);
                }
                total
            });
        });
    }
}

fn main() {
    for frames in [128, 64] {
        render(frames);
    }
    parts(128);
}
