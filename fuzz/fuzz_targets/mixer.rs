//! Any sequence of what listeners ask for and musicians send: the server's mixer never panics, what it makes is sound as the protocol has it, and it
//! is not to be asked again before anything is due.
#![no_main]

use std::time::Duration;

use antiphon_core::wire::{self, AUDIO_HEADER_BYTES, AudioHeader, Datagram, OpusHeader};
use antiphon_core::{SampleFormat, SampleRate};
use antiphon_opus::outgoing::{Rendition, Rung};
use antiphon_server::mixer::{Mixer, Source};
use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

const LISTENERS: u8 = 2;
const STREAMS: u8 = 3;
/// What came may lie unread for so long.
const UNREAD: Duration = Duration::from_millis(50);
const RATES: [SampleRate; 4] = [
    SampleRate::Hz44100,
    SampleRate::Hz48000,
    SampleRate::Hz88200,
    SampleRate::Hz96000,
];
const FORMATS: [SampleFormat; 3] = [SampleFormat::S16, SampleFormat::S24, SampleFormat::F32];

#[derive(Arbitrary, Debug)]
enum Operation {
    Listen {
        listener: u8,
        is_24_bits: bool,
        packet_frames: u16,
    },
    Leave(u8),
    /// Stream, gain, pan, muted.
    Sources(u8, Vec<(u8, f32, f32, bool)>),
    Prepare {
        listener: u8,
        narrow: bool,
        feeds: bool,
    },
    Expect(u8, bool),
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
    },
    Opus {
        stream: u8,
        is_stereo: bool,
        duration: u8,
        bytes: Vec<u8>,
    },
    Bytes(u8, Vec<u8>),
    /// Nothing but time passes, ms.
    Wait(u16),
    /// Packets come in their time, each of so many frames.
    Play {
        stream: u8,
        packets: u8,
        frames: u8,
    },
    /// What came up to so many ms ago has been handed over.
    HandOver(u8),
}

struct Host {
    rate: SampleRate,
    mixer: Mixer,
    now: Duration,
    handed_over: Option<Duration>,
    /// Of each stream, what comes next.
    next: [(u32, u64); STREAMS as usize],
}

impl Host {
    fn next_packet(&mut self, stream: u8, frames: u16) -> AudioHeader {
        let (sequence, timestamp) = &mut self.next[usize::from(stream)];
        let header = AudioHeader {
            format: SampleFormat::S16,
            rate: self.rate,
            channels: 1,
            stream: 0,
            frames,
            sequence: *sequence,
            timestamp: *timestamp,
        };
        *sequence = sequence.wrapping_add(1);
        *timestamp = timestamp.wrapping_add(frames.into());
        header
    }

    fn packet(&mut self, stream: u8, header: AudioHeader, fill: u8, has_copy: bool) {
        let copy_bytes = if has_copy { header.copy_bytes() } else { 0 };
        let mut bytes = vec![fill; header.datagram_bytes() + copy_bytes];
        header.write(&mut bytes);
        self.mixer.handle_audio(stream.into(), &bytes, self.now);
    }

    fn poll(&mut self) {
        let mut out = [0; wire::MAX_DATAGRAM_BYTES];
        while let Some(mixed) = self.mixer.poll_datagram(self.now, &mut out) {
            let parsed = wire::parse(&out[..mixed.length]);
            let Ok(Datagram::Audio(header, samples, _)) = parsed else {
                panic!("{mixed:?}: {parsed:?}")
            };
            assert!(mixed.listener < LISTENERS.into());
            assert_eq!((header.stream, header.channels), (wire::MIX_STREAM, 2));
            assert_eq!(header.rate, self.rate);
            assert!(mixed.complete_at.is_none_or(|at| at <= self.now));
            if mixed.rendition == Rendition::Feed {
                for sample in samples.chunks_exact(4) {
                    let sample = f32::from_le_bytes(sample.try_into().expect("four bytes"));
                    assert!(sample.is_finite());
                }
            }
        }
        let due_by = self.handed_over.map_or(self.now, |until| {
            until.clamp(self.now.saturating_sub(UNREAD), self.now)
        });
        assert!(self.mixer.poll_timeout().is_none_or(|at| at > due_by));
        for listener in 0..LISTENERS.into() {
            assert!(self.mixer.leads(listener).count() <= STREAMS.into());
        }
    }
}

fuzz_target!(|input: (u8, Vec<Operation>)| {
    let (rate, operations) = input;
    let rate = RATES[usize::from(rate) % RATES.len()];
    let mut host = Host {
        rate,
        mixer: Mixer::new(rate),
        now: Duration::ZERO,
        handed_over: None,
        next: [(0, 0); STREAMS as usize],
    };
    for operation in operations.into_iter().take(256) {
        match operation {
            Operation::Listen {
                listener,
                is_24_bits,
                packet_frames,
            } => {
                let listener = (listener % LISTENERS).into();
                let format = FORMATS[usize::from(is_24_bits)];
                (host.mixer).set_listener(listener, format, packet_frames.into());
            }
            Operation::Leave(listener) => host.mixer.remove_listener((listener % LISTENERS).into()),
            Operation::Sources(listener, sources) => {
                let sources: Vec<_> = (sources.into_iter().take(8))
                    .map(|(stream, gain, pan, muted)| Source {
                        stream: (stream % STREAMS).into(),
                        gain,
                        pan,
                        muted,
                    })
                    .collect();
                (host.mixer).set_sources((listener % LISTENERS).into(), &sources, host.now);
            }
            Operation::Prepare {
                listener,
                narrow,
                feeds,
            } => {
                let is_used = |rung| rung == Rung::Main || narrow;
                (host.mixer).prepare((listener % LISTENERS).into(), is_used, feeds);
            }
            Operation::Expect(stream, is_expected) => {
                (host.mixer).set_expected((stream % STREAMS).into(), is_expected);
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
            } => {
                let stream = stream % STREAMS;
                let mut header = host.next_packet(stream, 1 + u16::from(frames));
                header.format = FORMATS[usize::from(format) % FORMATS.len()];
                header.channels = 1 + channels % 8;
                header.sequence = header.sequence.wrapping_add_signed(i32::from(sequence_off));
                header.timestamp = header.timestamp.wrapping_add_signed(i64::from(media_off));
                host.packet(stream, header, fill, has_copy);
            }
            Operation::Opus {
                stream,
                is_stereo,
                duration,
                bytes,
            } => {
                let stream = stream % STREAMS;
                let next = host.next_packet(stream, 120 << (duration % 3));
                let header = OpusHeader {
                    channels: 1 + u8::from(is_stereo),
                    stream: 0,
                    frames: next.frames,
                    sequence: next.sequence,
                    timestamp: next.timestamp,
                };
                let mut datagram = vec![0; AUDIO_HEADER_BYTES];
                header.write(&mut datagram);
                datagram.extend(bytes);
                (host.mixer).handle_audio(stream.into(), &datagram, host.now);
            }
            Operation::Bytes(stream, bytes) => {
                (host.mixer).handle_audio((stream % STREAMS).into(), &bytes, host.now);
            }
            Operation::Wait(ms) => host.now += Duration::from_millis(ms.into()),
            Operation::Play {
                stream,
                packets,
                frames,
            } => {
                let (stream, frames) = (stream % STREAMS, 1 + u16::from(frames));
                for _ in 0..packets {
                    let header = host.next_packet(stream, frames);
                    host.packet(stream, header, 1, false);
                    host.now += Duration::from_secs(1) * frames.into() / rate.hz();
                    host.poll();
                }
            }
            Operation::HandOver(ms) => {
                let until = host.now.saturating_sub(Duration::from_millis(ms.into()));
                host.mixer.handed_over(until);
                host.handed_over = Some(until);
            }
        }
        host.poll();
    }
});
