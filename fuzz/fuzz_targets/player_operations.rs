//! Any sequence of commands, datagrams and quanta: no panic, a finite mix, and every datagram and frame accounted for.
#![no_main]

use antiphon_core::conceal::Concealment;
use antiphon_core::player::MAX_QUANTUM_FRAMES;
use antiphon_core::wire::{self, AUDIO_HEADER_BYTES, AudioHeader, Datagram, OpusHeader};
use antiphon_core::{Command, Player, PlayerConfig, SampleFormat, SampleRate, Target};
use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

const STREAMS: usize = 3;

#[derive(Arbitrary, Debug)]
enum Operation {
    Add(u8),
    Remove(u8),
    Gain(u8, f32),
    Pan(u8, f32),
    Mute(u8, bool),
    Solo(u8, bool),
    Budget(u8, f32),
    /// `None`: automatic.
    Target(u8, Option<u32>),
    /// The next packet of a well-behaved sender, or one so far off it.
    Packet {
        stream: u8,
        frames: u8,
        format: u8,
        channels: u8,
        sequence_off: i8,
        media_off: i16,
        fill: u8,
    },
    /// A packet from anywhere.
    Jump {
        stream: u8,
        sequence: u32,
        timestamp: u64,
        frames: u8,
    },
    /// What the host decoded of an Opus packet, or passed over.
    Decoded {
        stream: u8,
        is_whole: bool,
        sequence_off: i8,
        media_off: i16,
    },
    Bytes(u8, Vec<u8>),
    DecodedBytes(u8, Vec<u8>),
    Quantum(u16),
    /// The host tells the time: so many ms later than before, or earlier.
    Clock(i16),
    /// Any time, ns.
    ClockJump(u64),
    /// As long as nothing but time passes.
    Wait {
        stream: u8,
        packets: u8,
        quantum: u8,
    },
}

/// What the player should have counted of a stream.
#[derive(Clone, Copy, Default)]
struct Tally {
    datagrams: u64,
    frames: u64,
    sequence: u32,
    timestamp: u64,
}

struct Host {
    player: Player,
    tallies: [Tally; STREAMS],
    now_ns: u64,
    out: Vec<f32>,
}

impl Host {
    fn command(&mut self, id: usize, command: Command) {
        if self.player.handle_command(command).is_ok() && matches!(command, Command::Add(_)) {
            let Tally {
                sequence,
                timestamp,
                ..
            } = self.tallies[id];
            self.tallies[id] = Tally {
                sequence,
                timestamp,
                ..Tally::default()
            };
        }
    }

    fn received(&self, id: usize) -> u64 {
        let stats = self.player.stream_stats(id as u32);
        stats.map_or(0, |stats| stats.sequence.received)
    }

    fn datagram(&mut self, id: usize, bytes: &[u8]) {
        let before = self.received(id);
        // In every other quantum by the clock, wherever that has been set meanwhile.
        if self.player.rendered_frames() % 2 == 0 {
            self.player.handle_datagram_at(id as u32, bytes, self.now_ns);
        } else {
            self.player.handle_datagram(id as u32, bytes);
        }
        self.tallies[id].datagrams += 1;
        if self.received(id) > before
            && let Ok(Datagram::Audio(header, ..)) = wire::parse(bytes)
        {
            self.tallies[id].frames += u64::from(header.frames);
        }
    }

    fn packet(&mut self, id: usize, header: AudioHeader, fill: u8) {
        let mut bytes = vec![fill; header.datagram_bytes()];
        header.write(&mut bytes[..AUDIO_HEADER_BYTES]);
        self.datagram(id, &bytes);
    }

    fn decoded(&mut self, id: usize, bytes: &[u8]) {
        let before = self.received(id);
        self.player.handle_decoded(id as u32, bytes);
        self.tallies[id].datagrams += 1;
        if self.received(id) > before
            && let Ok((header, _)) = wire::parse_decoded(bytes)
        {
            self.tallies[id].frames += u64::from(header.frames);
        }
    }

    fn next_packet(&mut self, id: usize, frames: u16) -> AudioHeader {
        let tally = &mut self.tallies[id];
        let header = AudioHeader {
            format: SampleFormat::S16,
            rate: SampleRate::Hz48000,
            channels: 1,
            stream: 0,
            frames,
            sequence: tally.sequence,
            timestamp: tally.timestamp,
        };
        tally.sequence = tally.sequence.wrapping_add(1);
        tally.timestamp = tally.timestamp.wrapping_add(u64::from(frames));
        header
    }

    fn quantum(&mut self, frames: usize) {
        self.out.resize(2 * frames, f32::NAN);
        self.player.process_quantum(&mut self.out);
        assert!(self.out.iter().all(|sample| sample.is_finite()));
    }

    fn check(&self) {
        for (id, tally) in (0..).zip(&self.tallies) {
            let Some(stats) = self.player.stream_stats(id) else {
                continue;
            };
            let sequence = stats.sequence;
            let jitter = stats.jitter;
            assert_eq!(
                tally.datagrams,
                sequence.received
                    + sequence.duplicate
                    + stats.malformed_packets
                    + stats.ancient_packets,
                "{stats:?}"
            );
            assert_eq!(
                tally.frames,
                jitter.played_frames
                    + jitter.skipped_frames
                    + jitter.late_frames
                    + jitter.copied_frames
                    + stats.held_frames,
                "{stats:?}"
            );
            assert!(sequence.reordered <= sequence.received);
            assert!(stats.held_frames <= 2_048);
        }
    }
}

fuzz_target!(|operations: Vec<Operation>| {
    let mut host = Host {
        player: Player::new(PlayerConfig {
            rate: SampleRate::Hz48000,
            output_channels: 2,
            max_streams: STREAMS - 1,
            buffer_frames: 2_048,
            max_quantum_frames: MAX_QUANTUM_FRAMES,
            concealment: Concealment::Prediction,
        }),
        tallies: [Tally::default(); STREAMS],
        now_ns: 0,
        out: Vec::new(),
    };
    for operation in operations.into_iter().take(256) {
        let id = |stream: u8| usize::from(stream) % STREAMS;
        match operation {
            Operation::Add(s) => host.command(id(s), Command::Add(id(s) as u32)),
            Operation::Remove(s) => host.command(id(s), Command::Remove(id(s) as u32)),
            Operation::Gain(s, gain) => host.command(id(s), Command::Gain(id(s) as u32, gain)),
            Operation::Pan(s, pan) => host.command(id(s), Command::Pan(id(s) as u32, pan)),
            Operation::Mute(s, muted) => host.command(id(s), Command::Mute(id(s) as u32, muted)),
            Operation::Solo(s, soloed) => host.command(id(s), Command::Solo(id(s) as u32, soloed)),
            Operation::Budget(s, share) => host.command(id(s), Command::Budget(id(s) as u32, share)),
            Operation::Target(s, frames) => {
                let target = frames.map_or(Target::Auto, Target::Fixed);
                host.command(id(s), Command::Target(id(s) as u32, target));
            }
            Operation::Packet {
                stream,
                frames,
                format,
                channels,
                sequence_off,
                media_off,
                fill,
            } => {
                let id = id(stream);
                let mut header = host.next_packet(id, 1 + u16::from(frames));
                header.format = [SampleFormat::S16, SampleFormat::S24, SampleFormat::F32]
                    [usize::from(format) % 3];
                header.channels = 1 + channels % 8;
                header.sequence = header.sequence.wrapping_add_signed(i32::from(sequence_off));
                header.timestamp = header.timestamp.wrapping_add_signed(i64::from(media_off));
                host.packet(id, header, fill);
            }
            Operation::Jump {
                stream,
                sequence,
                timestamp,
                frames,
            } => {
                let id = id(stream);
                host.tallies[id].sequence = sequence;
                host.tallies[id].timestamp = timestamp;
                let header = host.next_packet(id, 1 + u16::from(frames));
                host.packet(id, header, 0);
            }
            Operation::Decoded {
                stream,
                is_whole,
                sequence_off,
                media_off,
            } => {
                let id = id(stream);
                let next = host.next_packet(id, 120);
                let header = OpusHeader {
                    channels: 1,
                    stream: 0,
                    frames: 120,
                    sequence: next.sequence.wrapping_add_signed(i32::from(sequence_off)),
                    timestamp: next.timestamp.wrapping_add_signed(i64::from(media_off)),
                };
                let mut bytes = vec![
                    0;
                    if is_whole {
                        header.decoded().datagram_bytes()
                    } else {
                        AUDIO_HEADER_BYTES
                    }
                ];
                header.write(&mut bytes);
                host.decoded(id, &bytes);
            }
            Operation::DecodedBytes(stream, bytes) => host.decoded(id(stream), &bytes),
            Operation::Bytes(stream, bytes) => host.datagram(id(stream), &bytes),
            Operation::Quantum(frames) => host.quantum(1 + usize::from(frames) % 1_024),
            Operation::Clock(ms) => {
                host.now_ns = host.now_ns.wrapping_add_signed(1_000_000 * i64::from(ms));
                host.player.keep_time(host.now_ns);
            }
            Operation::ClockJump(ns) => {
                host.now_ns = ns;
                host.player.keep_time(ns);
            }
            Operation::Wait {
                stream,
                packets,
                quantum,
            } => {
                for _ in 0..packets {
                    let header = host.next_packet(id(stream), 64);
                    host.packet(id(stream), header, 1);
                    host.quantum(1 + usize::from(quantum));
                }
            }
        }
        host.check();
    }
});
