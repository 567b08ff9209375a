//! Any sequence of commands, datagrams and quanta: no panic, a finite mix, every datagram and frame accounted for; and whoever then sends steadily is heard.
#![no_main]

use std::cmp::Ordering;

use antiphon_core::conceal::Concealment;
use antiphon_core::player::MAX_QUANTUM_FRAMES;
use antiphon_core::wire::{self, AUDIO_HEADER_BYTES, AudioHeader, Datagram, OpusHeader};
use antiphon_core::{Command, Player, PlayerConfig, SampleFormat, SampleRate, StreamStats, Target};
use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

const STREAMS: usize = 3;
/// Whatever came before, a sender that goes on steadily is heard within so long.
const HEARD_SECONDS: usize = 2;
const RATES: [SampleRate; 4] = [
    SampleRate::Hz44100,
    SampleRate::Hz48000,
    SampleRate::Hz88200,
    SampleRate::Hz96000,
];
const CONCEALMENTS: [Concealment; 3] = [
    Concealment::Prediction,
    Concealment::Silence,
    Concealment::Repetition,
];

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
        has_copy: bool,
        is_relayed: bool,
    },
    /// A packet from anywhere, from which the sender goes on, or not.
    Jump {
        stream: u8,
        sequence: u32,
        timestamp: u64,
        frames: u8,
        is_relayed: bool,
        goes_on: bool,
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
    /// The output goes on without so many frames.
    Miss(u16),
    /// The host tells the time: so many ms later than before, or earlier.
    Clock(i16),
    /// Any time, ns.
    ClockJump(u64),
    /// Packets come and quanta pass, in turn.
    Wait {
        stream: u8,
        packets: u8,
        quantum: u8,
        /// A bit for each of eight packets in turn. If any is lost, the others carry copies.
        lost: u8,
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
    rate: SampleRate,
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

    fn stats(&self, id: usize) -> StreamStats {
        self.player.stream_stats(id as u32).unwrap_or_default()
    }

    fn datagram(&mut self, id: usize, bytes: &[u8]) {
        let before = self.stats(id);
        // In every other quantum by the clock, wherever that has been set meanwhile.
        if self.player.rendered_frames() % 2 == 0 {
            self.player
                .handle_datagram_at(id as u32, bytes, self.now_ns);
        } else {
            self.player.handle_datagram(id as u32, bytes);
        }
        let after = self.stats(id);
        let tally = &mut self.tallies[id];
        tally.datagrams += 1;
        if let Ok(Datagram::Audio(header, _, copy)) = wire::parse(bytes) {
            let [then, now] = [before.sequence, after.sequence];
            let come = now.received - then.received;
            let copies = match now.recovered.cmp(&then.recovered) {
                Ordering::Greater => 1,
                Ordering::Less => 0,
                // It may be the original of a copy that had come, and carry a copy itself.
                Ordering::Equal if now.reordered > then.reordered && !copy.is_empty() => {
                    u64::from(counted(&after) - counted(&before) > header.frames.into())
                }
                Ordering::Equal => 0,
            };
            tally.frames += (come + copies) * u64::from(header.frames);
        }
    }

    fn packet(&mut self, id: usize, header: AudioHeader, fill: u8, has_copy: bool) {
        let copy_bytes = if has_copy { header.copy_bytes() } else { 0 };
        let mut bytes = vec![fill; header.datagram_bytes() + copy_bytes];
        header.write(&mut bytes[..AUDIO_HEADER_BYTES]);
        self.datagram(id, &bytes);
    }

    fn decoded(&mut self, id: usize, bytes: &[u8]) {
        let before = self.stats(id).sequence.received;
        self.player.handle_decoded(id as u32, bytes);
        self.tallies[id].datagrams += 1;
        if self.stats(id).sequence.received > before
            && let Ok((header, _)) = wire::parse_decoded(bytes)
        {
            self.tallies[id].frames += u64::from(header.frames);
        }
    }

    fn next_packet(&mut self, id: usize, frames: u16) -> AudioHeader {
        let tally = &mut self.tallies[id];
        let header = AudioHeader {
            format: SampleFormat::S16,
            rate: self.rate,
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

    /// Each stream's sender goes on steadily for a while: it is heard.
    fn go_on(&mut self) {
        const FRAMES: usize = 240;
        for id in 0..STREAMS {
            self.command(id, Command::Target(id as u32, Target::Auto));
            let Some(before) = self.player.stream_stats(id as u32) else {
                continue;
            };
            for _ in 0..HEARD_SECONDS * self.rate.hz() as usize / FRAMES {
                let packet_ns = FRAMES as u64 * 1_000_000_000 / u64::from(self.rate.hz());
                self.now_ns = self.now_ns.wrapping_add(packet_ns);
                self.player.keep_time(self.now_ns);
                let header = self.next_packet(id, FRAMES as u16);
                self.packet(id, header, 1, false);
                self.quantum(FRAMES);
            }
            let after = self.stats(id);
            let played = after.jitter.played_frames - before.jitter.played_frames;
            assert!(played > 0, "{before:?}, then {after:?}");
        }
        self.check();
    }

    fn check(&self) {
        for (id, tally) in (0..).zip(&self.tallies) {
            let Some(stats) = self.player.stream_stats(id) else {
                continue;
            };
            let sequence = stats.sequence;
            assert_eq!(
                tally.datagrams,
                sequence.received
                    + sequence.duplicate
                    + stats.malformed_packets
                    + stats.ancient_packets,
                "{stats:?}"
            );
            assert_eq!(tally.frames, counted(&stats), "{stats:?}");
            assert!(sequence.reordered <= sequence.received);
            assert!(stats.held_frames <= 2_048);
        }
    }
}

/// Frames of which it is known what became of them.
fn counted(stats: &StreamStats) -> u64 {
    let jitter = stats.jitter;
    jitter.played_frames
        + jitter.skipped_frames
        + jitter.late_frames
        + jitter.copied_frames
        + stats.held_frames
}

fuzz_target!(|input: (u8, u8, bool, Vec<Operation>)| {
    // Not each time: it takes longer than most of what comes before.
    let (rate, concealment, goes_on, operations) = input;
    let rate = RATES[usize::from(rate) % RATES.len()];
    let mut host = Host {
        rate,
        player: Player::new(PlayerConfig {
            rate,
            output_channels: 2,
            max_streams: STREAMS - 1,
            buffer_frames: 2_048,
            max_quantum_frames: MAX_QUANTUM_FRAMES,
            concealment: CONCEALMENTS[usize::from(concealment) % CONCEALMENTS.len()],
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
            Operation::Budget(s, share) => {
                host.command(id(s), Command::Budget(id(s) as u32, share))
            }
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
                has_copy,
                is_relayed,
            } => {
                let id = id(stream);
                let mut header = host.next_packet(id, 1 + u16::from(frames));
                header.format = [SampleFormat::S16, SampleFormat::S24, SampleFormat::F32]
                    [usize::from(format) % 3];
                header.channels = 1 + channels % 8;
                header.stream = is_relayed.into();
                header.sequence = header.sequence.wrapping_add_signed(i32::from(sequence_off));
                header.timestamp = header.timestamp.wrapping_add_signed(i64::from(media_off));
                host.packet(id, header, fill, has_copy);
            }
            Operation::Jump {
                stream,
                sequence,
                timestamp,
                frames,
                is_relayed,
                goes_on,
            } => {
                let id = id(stream);
                let before = host.tallies[id];
                host.tallies[id].sequence = sequence;
                host.tallies[id].timestamp = timestamp;
                let mut header = host.next_packet(id, 1 + u16::from(frames));
                header.stream = is_relayed.into();
                if !goes_on {
                    host.tallies[id].sequence = before.sequence;
                    host.tallies[id].timestamp = before.timestamp;
                }
                host.packet(id, header, 0, false);
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
            Operation::Miss(frames) => host.player.miss(usize::from(frames)),
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
                lost,
            } => {
                for n in 0..packets {
                    let header = host.next_packet(id(stream), 64);
                    if lost >> (n % 8) & 1 == 0 {
                        host.packet(id(stream), header, 1, lost != 0);
                    }
                    host.quantum(1 + usize::from(quantum));
                }
            }
        }
        host.check();
    }
    if goes_on {
        host.go_on();
    }
});
