//! Writes the golden files of `vectors/`, which the Rust and the TypeScript tests both read.
//!
//! `cargo run -p antiphon-core --example vectors` writes them, `-- --check` only says whether they are up to date.

#[path = "../tests/support/golden.rs"]
mod golden;
#[path = "../tests/support/mod.rs"]
mod support;
#[path = "../tests/support/world.rs"]
mod world;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use antiphon_core::conceal::Concealment;
use antiphon_core::pcm;
use antiphon_core::player::MAX_QUANTUM_FRAMES;
use antiphon_core::wire::{
    self, AUDIO_HEADER_BYTES, AudioHeader, CaptureReport, Datagram, HeardReport, InputDelay,
    MAX_CHANNELS, MAX_DATAGRAM_BYTES, MAX_PACKET_FRAMES, Malformed, OpusHeader, Probe, Report,
};
use antiphon_core::{
    Command, Player, PlayerConfig, SampleFormat, SampleRate, Sender, SenderConfig, Target,
};
use golden::{FNV_OFFSET, fnv1a};
use serde_json::{Value, json};

/// Goes up when the shape of the files changes.
const VERSION: u32 = 1;
const FORMATS: [SampleFormat; 3] = [SampleFormat::S16, SampleFormat::S24, SampleFormat::F32];
const RATES: [SampleRate; 4] = [
    SampleRate::Hz44100,
    SampleRate::Hz48000,
    SampleRate::Hz88200,
    SampleRate::Hz96000,
];

fn main() -> ExitCode {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors");
    let files: [(&str, Value); 4] = [
        ("wire.json", wire_vectors()),
        ("pcm.json", pcm_vectors()),
        ("stream.json", stream_vectors()),
        ("sim.json", golden::sim_vectors()),
    ];
    let check = std::env::args().any(|argument| argument == "--check");
    let mut stale = false;
    for (name, content) in files {
        let path: PathBuf = folder.join(name);
        let text = format!("{content:#}\n");
        if check {
            let is_current = std::fs::read_to_string(&path).is_ok_and(|found| found == text);
            stale |= !is_current;
            println!(
                "vectors/{name}: {}",
                if is_current { "current" } else { "stale" }
            );
        } else if let Err(error) = std::fs::write(&path, text) {
            eprintln!("vectors/{name}: {error}");
            return ExitCode::FAILURE;
        } else {
            println!("vectors/{name}: written");
        }
    }
    ExitCode::from(u8::from(stale))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes that are the same each time and look like none in particular.
fn filler(length: usize) -> impl Iterator<Item = u8> {
    (0..length).map(|n| (n * 167 + 13) as u8)
}

fn audio(header: AudioHeader) -> Vec<u8> {
    let mut bytes = vec![0; AUDIO_HEADER_BYTES];
    header.write(&mut bytes);
    bytes.extend(filler(header.datagram_bytes() - AUDIO_HEADER_BYTES));
    bytes
}

fn audio_with_copy(header: AudioHeader) -> Vec<u8> {
    let mut bytes = audio(header);
    bytes.extend(filler(header.copy_bytes()));
    bytes
}

fn opus(header: OpusHeader, packet_bytes: usize) -> Vec<u8> {
    let mut bytes = vec![0; AUDIO_HEADER_BYTES];
    header.write(&mut bytes);
    bytes.extend(filler(packet_bytes));
    bytes
}

fn reason(malformed: Malformed) -> &'static str {
    match malformed {
        Malformed::Oversized => "oversized",
        Malformed::Length => "length",
        Malformed::Version => "version",
        Malformed::Kind => "kind",
        Malformed::Encoding => "encoding",
        Malformed::Channels => "channels",
        Malformed::Frames => "frames",
        Malformed::Reserved => "reserved",
        Malformed::Range => "range",
        _ => "other",
    }
}

/// A datagram and what [`wire::parse`] makes of it. 64-bit numbers are strings: JSON's are doubles to JavaScript.
fn described(name: &str, bytes: &[u8]) -> Value {
    let meaning = match wire::parse(bytes) {
        Ok(Datagram::Audio(header, samples, copy)) => json!({
            "kind": "audio",
            "bits": header.format.bits(),
            "rate_hz": header.rate.hz(),
            "channels": header.channels,
            "stream": header.stream,
            "frames": header.frames,
            "sequence": header.sequence,
            "timestamp": header.timestamp.to_string(),
            "sample_bytes": samples.len(),
            "copy_bytes": copy.len(),
        }),
        Ok(Datagram::Opus(header, packet)) => json!({
            "kind": "opus",
            "rate_hz": 48_000,
            "channels": header.channels,
            "stream": header.stream,
            "frames": header.frames,
            "sequence": header.sequence,
            "timestamp": header.timestamp.to_string(),
            "packet_bytes": packet.len(),
        }),
        Ok(Datagram::Probe(probe)) => json!({
            "kind": if probe.replied_ns.is_some() { "probe_reply" } else { "probe" },
            "stream": probe.stream,
            "id": probe.id,
            "time_ns": probe.time_ns.to_string(),
            "replied_ns": probe.replied_ns.map(|time| time.to_string()),
        }),
        Ok(Datagram::Report(report)) => json!({
            "kind": "report",
            "stream": report.stream,
            "id": report.id,
            "capture": report.capture.map(|capture| json!({
                "timestamp": capture.timestamp.to_string(),
                "time_ns": capture.time_ns.to_string(),
                "error_us": capture.error_us,
                "block_us": capture.block_us,
                "send_us": capture.send_us,
                "input": capture.input.map(|input| json!({
                    "is_calibrated": input.is_calibrated,
                    "delay_us": input.delay_us,
                    "error_us": input.error_us,
                })),
                "overrun_frames": capture.overrun_frames,
                "dropped_packets": capture.dropped_packets,
            })),
            "heard": report.heard.map(|heard| json!({
                "is_mixed": heard.is_mixed,
                "period_ms": heard.period_ms,
                "received_packets": heard.received_packets,
                "lost_packets": heard.lost_packets,
                "late_packets": heard.late_packets,
                "played_frames": heard.played_frames,
                "concealed_frames": heard.concealed_frames,
                "buffer_frames": heard.buffer_frames,
                "target_frames": heard.target_frames,
                "spread_frames": heard.spread_frames,
                "output_underruns": heard.output_underruns,
            })),
        }),
        Err(malformed) => json!({ "malformed": reason(malformed) }),
    };
    json!({ "name": name, "bytes": hex(bytes), "meaning": meaning })
}

fn wire_vectors() -> Value {
    let mut cases = Vec::new();
    let mut add = |name: &str, bytes: &[u8]| cases.push(described(name, bytes));
    let plain = AudioHeader {
        format: SampleFormat::S16,
        rate: SampleRate::Hz48000,
        channels: 2,
        stream: 0,
        frames: 4,
        sequence: 1,
        timestamp: 128,
    };

    for format in FORMATS {
        for rate in RATES {
            for channels in [1, MAX_CHANNELS as u8] {
                let header = AudioHeader {
                    format,
                    rate,
                    channels,
                    frames: 2,
                    ..plain
                };
                let name = format!(
                    "{} bits, {} Hz, {channels} channels",
                    format.bits(),
                    rate.hz()
                );
                add(&name, &audio(header));
            }
        }
    }
    let extremes = [
        ("all fields 0", 0, 1, 0, 0),
        (
            "all fields at their largest",
            u16::MAX,
            8,
            u32::MAX,
            u64::MAX,
        ),
        ("media time beyond 2^53", 1, 3, 1 << 31, (1 << 53) + 1),
    ];
    for (name, stream, channels, sequence, timestamp) in extremes {
        let header = AudioHeader {
            channels,
            stream,
            frames: 1,
            sequence,
            timestamp,
            ..plain
        };
        add(name, &audio(header));
    }
    let longest = [
        (
            "the longest: 245 frames of stereo, 16 bits",
            SampleFormat::S16,
            2,
            245,
        ),
        (
            "the most frames: 490 of mono, 16 bits",
            SampleFormat::S16,
            1,
            490,
        ),
    ];
    for (name, format, channels, frames) in longest {
        add(
            name,
            &audio(AudioHeader {
                format,
                channels,
                frames,
                ..plain
            }),
        );
    }
    for format in FORMATS {
        for (channels, frames) in [(1, 1), (1, 17), (2, 64), (8, 26)] {
            let header = AudioHeader {
                format,
                channels,
                frames,
                ..plain
            };
            let name = format!(
                "{} bits, {channels} channels, {frames} frames, and a copy",
                format.bits()
            );
            add(&name, &audio_with_copy(header));
        }
    }
    let longest_copied = AudioHeader {
        frames: 194,
        ..plain
    };
    add(
        "the longest with a copy: 194 frames of stereo, 16 bits",
        &audio_with_copy(longest_copied),
    );
    let copied = audio_with_copy(plain);
    for length in copied.len() - plain.copy_bytes()..copied.len() {
        add(
            &format!("audio and {length} bytes of a copy"),
            &copied[..length],
        );
    }
    add("a copy with a byte too many", &[&copied[..], &[0]].concat());
    for is_reply in [false, true] {
        for (stream, id, time_ns) in [
            (0, 0, 0),
            (0x0d0e, 0x0102_0304, 0x0506_0708_090a_0b0c),
            (u16::MAX, u32::MAX, u64::MAX),
        ] {
            let probe = Probe {
                stream,
                id,
                time_ns,
                replied_ns: is_reply.then_some(!time_ns),
            };
            let kind = if is_reply { "probe reply" } else { "probe" };
            add(&format!("{kind} {id}"), &probe.to_bytes());
        }
    }

    let packet = OpusHeader {
        channels: 2,
        stream: 0,
        frames: 120,
        sequence: 1,
        timestamp: 1_080,
    };
    for channels in [1, 2] {
        for frames in [120, 240, 480] {
            let header = OpusHeader {
                channels,
                frames,
                ..packet
            };
            let name = format!("Opus, {channels} channels, {frames} frames");
            add(&name, &opus(header, 40));
        }
    }
    let largest = OpusHeader {
        stream: u16::MAX,
        sequence: u32::MAX,
        timestamp: u64::MAX,
        ..packet
    };
    add(
        "Opus, the longest packet, all fields at their largest",
        &opus(largest, 980),
    );
    add("Opus, a packet of a byte", &opus(packet, 1));
    add("Opus without a packet", &opus(packet, 0));
    add("Opus, longer than 1,000 bytes", &opus(packet, 981));
    for (name, at, value) in [
        ("Opus at 44,100 Hz", 2, 0x04),
        ("Opus at 96,000 Hz", 2, 0x34),
        ("Opus at rate 4", 2, 0x44),
        ("Opus without channels", 3, 0),
        ("Opus of 3 channels", 3, 3),
        ("Opus of no frames", 6, 0),
        ("Opus of 119 frames", 6, 119),
        ("Opus of 376 frames", 7, 1),
    ] {
        let mut bytes = opus(packet, 40);
        bytes[at] = value;
        add(name, &bytes);
    }

    let good = audio(plain);
    for length in 0..good.len() {
        add(&format!("audio cut to {length} bytes"), &good[..length]);
    }
    add("audio with a byte too many", &[&good[..], &[0]].concat());
    let probe = Probe {
        stream: 0,
        id: 7,
        time_ns: 9,
        replied_ns: None,
    }
    .to_bytes();
    for length in 2..probe.len() {
        add(&format!("probe cut to {length} bytes"), &probe[..length]);
    }
    add("probe with a byte too many", &[&probe[..], &[0]].concat());
    let changes = [
        ("version 0", 0, 0),
        ("version 2", 0, 2),
        ("kind 0", 1, 0),
        ("kind 5", 1, 5),
        ("format 0", 2, 0x10),
        ("format 4, which is Opus, of 4 frames", 2, 0x14),
        ("format 5", 2, 0x15),
        ("format 15", 2, 0x1f),
        ("rate 4", 2, 0x41),
        ("rate 15", 2, 0xf1),
        ("no channels", 3, 0),
        ("9 channels", 3, 9),
        ("255 channels", 3, 255),
        ("no frames", 6, 0),
        ("a frame fewer than there are", 6, 3),
        ("a frame more than there are", 6, 5),
        ("a channel fewer than there are", 3, 1),
        ("a wider format than there is", 2, 0x12),
    ];
    for (name, at, value) in changes {
        let mut bytes = good.clone();
        bytes[at] = value;
        add(name, &bytes);
    }
    let mut many = good.clone();
    many[6..8].copy_from_slice(&(MAX_PACKET_FRAMES as u16 + 1).to_le_bytes());
    add("513 frames", &many);
    for at in [16, 23] {
        let mut bytes = probe;
        bytes[at] = 1;
        add(&format!("probe with reserved byte {at} set"), &bytes);
    }
    add_reports(&mut add);
    let frames = AudioHeader {
        frames: 246,
        ..plain
    };
    add(
        "true to its header, but longer than 1,000 bytes",
        &audio(frames),
    );
    add("1,001 bytes of nothing", &[0; MAX_DATAGRAM_BYTES + 1]);

    json!({
        "version": VERSION,
        "about": "docs/protocol.md, datagrams. Written by crates/core/examples/vectors.rs.",
        "datagrams": cases,
    })
}

fn add_reports(add: &mut impl FnMut(&str, &[u8])) {
    let capture = CaptureReport {
        timestamp: (1 << 53) + 1,
        time_ns: 1_795_223_941_016_986_123,
        error_us: 250,
        block_us: 2_740,
        send_us: 2_810,
        input: None,
        overrun_frames: 0,
        dropped_packets: 3,
    };
    let heard = HeardReport {
        is_mixed: false,
        period_ms: 4_000,
        received_packets: 1_490,
        lost_packets: 10,
        late_packets: 2,
        played_frames: 190_720,
        concealed_frames: 1_280,
        buffer_frames: Some(384),
        target_frames: 208,
        spread_frames: Some(192),
        output_underruns: Some(1),
    };
    let unknown = HeardReport {
        buffer_frames: None,
        spread_frames: None,
        output_underruns: None,
        ..heard
    };
    let mixed = HeardReport {
        is_mixed: true,
        ..heard
    };
    let input = |is_calibrated, delay_us| {
        Some(CaptureReport {
            input: Some(InputDelay {
                is_calibrated,
                delay_us,
                error_us: 700,
            }),
            ..capture
        })
    };
    let reports = [
        ("nothing known", 0, 0, None, None),
        ("nothing known, by a relay", 0x0102, 0, None, None),
        ("a capture", u16::MAX, 1, Some(capture), None),
        ("a stream heard", 0, u32::MAX, None, Some(heard)),
        ("a mix heard", 0x0102, 6, None, Some(mixed)),
        ("reported input", 0, 3, input(false, 10_000), Some(heard)),
        ("calibrated input", 0, 4, input(true, -1_200), Some(unknown)),
    ];
    for (name, stream, id, capture, heard) in reports {
        let report = Report {
            stream,
            id,
            capture,
            heard,
        };
        add(&format!("report: {name}"), &report.to_bytes());
    }
    let report = Report {
        stream: 0,
        id: 5,
        capture: input(true, 2_000),
        heard: Some(heard),
    };
    let good = report.to_bytes();
    for length in 2..good.len() {
        add(&format!("report cut to {length} bytes"), &good[..length]);
    }
    add("report with a byte too many", &[&good[..], &[0]].concat());
    let changes: [(&str, usize, &[u8]); 12] = [
        ("unknown parts", 2, &[8 | 3]),
        ("a mix that is not there", 2, &[4 | 1]),
        ("a capture that is not there", 2, &[2]),
        ("a stream that is not there", 2, &[1]),
        ("an input that is not there", 3, &[0]),
        ("an unknown source of the input's delay", 3, &[3]),
        ("an error of an hour", 24, &3_600_000_000_u32.to_le_bytes()),
        ("a block of 61 s", 28, &61_000_000_u32.to_le_bytes()),
        ("sending 61 s late", 32, &61_000_000_u32.to_le_bytes()),
        (
            "an input from the future",
            36,
            &(-61_000_000_i32).to_le_bytes(),
        ),
        ("no period", 52, &[0, 0]),
        ("a period over a minute", 52, &60_001_u16.to_le_bytes()),
    ];
    for (name, at, value) in changes {
        let mut bytes = good;
        bytes[at..at + value.len()].copy_from_slice(value);
        add(&format!("report with {name}"), &bytes);
    }
}

fn pcm_vectors() -> Value {
    let mut encode = Vec::new();
    let samples: [f32; 16] = [
        0.0,
        -0.0,
        0.5,
        -0.5,
        1.0,
        -1.0,
        1.5,
        -1.5,
        32_767.0 / 32_768.0,
        8_388_607.0 / 8_388_608.0,
        0.5 / 32_768.0,
        -0.5 / 32_768.0,
        2.5 / 32_768.0,
        1e-9,
        f32::MIN_POSITIVE,
        -0.1,
    ];
    for format in FORMATS {
        for sample in samples {
            let mut bytes = vec![0; format.bytes()];
            pcm::encode_channel(format, &[sample], 0, 1, &mut bytes);
            encode.push(json!({
                "bits": format.bits(),
                "sample_f32": hex(&sample.to_le_bytes()),
                "bytes": hex(&bytes),
            }));
        }
    }
    let mut decode = Vec::new();
    let wires: [(SampleFormat, &[&[u8]]); 3] = [
        (
            SampleFormat::S16,
            &[&[0, 0], &[0xff, 0x7f], &[0, 0x80], &[0xff, 0xff], &[1, 0]],
        ),
        (
            SampleFormat::S24,
            &[
                &[0, 0, 0],
                &[0xff, 0xff, 0x7f],
                &[0, 0, 0x80],
                &[0xff, 0xff, 0xff],
                &[1, 0, 0],
            ],
        ),
        (
            SampleFormat::F32,
            &[
                &[0, 0, 0x80, 0x3f],
                &[0, 0, 0xc0, 0x7f],
                &[0, 0, 0x80, 0x7f],
                &[0, 0, 0x80, 0xff],
                &[0xff, 0xff, 0x7f, 0x7f],
                &[1, 0, 0, 0],
            ],
        ),
    ];
    for (format, inputs) in wires {
        for &bytes in inputs {
            let mut sample = [0.0];
            pcm::decode_channel(format, bytes, 0, 1, &mut sample);
            decode.push(json!({
                "bits": format.bits(),
                "bytes": hex(bytes),
                "sample_f32": hex(&sample[0].to_le_bytes()),
            }));
        }
    }
    json!({
        "version": VERSION,
        "about": "Sample conversions; f32 as the hex of its little-endian bytes.",
        "encode": encode,
        "decode": decode,
    })
}

/// A whole stream through sender and player with loss, reordering, duplicates and gain ramps, as hashes of all bytes: native and wasm
/// must agree to the bit. The reader repeats exactly these steps.
fn stream_vectors() -> Value {
    let mut runs = Vec::new();
    for (bits, channels, packet_frames, quantum) in [
        (16, 2, 64, 128),
        (24, 2, 128, 128),
        (32, 1, 128, 64),
        (24, 8, 512, 1_024),
        (16, 3, 17, 100),
    ] {
        let mut sender = Sender::new(SenderConfig {
            rate: SampleRate::Hz48000,
            format: SampleFormat::from_bits(bits).expect("a format"),
            channels,
            packet_frames,
        });
        let mut player = Player::new(PlayerConfig {
            rate: SampleRate::Hz48000,
            output_channels: 2,
            max_streams: 4,
            buffer_frames: 8_192,
            max_quantum_frames: MAX_QUANTUM_FRAMES,
            concealment: Concealment::Prediction,
        });
        for command in [Command::Add(1), Command::Target(1, Target::Auto)] {
            player.handle_command(command).expect("fits");
        }
        let (mut sent, mut heard) = (FNV_OFFSET, FNV_OFFSET);
        let mut noise = 1u32;
        let mut bytes = [0; MAX_DATAGRAM_BYTES];
        let mut held: Option<Vec<u8>> = None;
        let mut datagrams = 0u32;
        for n in 0..1_500 {
            let input: Vec<f32> = (0..channels * quantum)
                .map(|_| {
                    noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (noise >> 8) as f32 / 8_388_608.0 - 1.0
                })
                .collect();
            sender.set_copies(0, n >= 500);
            sender.push(&input, quantum);
            while let Some(length) = sender.poll_datagram(&mut bytes) {
                let datagram = &bytes[..length];
                sent = fnv1a(sent, datagram);
                match datagrams % 97 {
                    // Lost, sent twice, held back until the one after the next.
                    11 => {}
                    23 => {
                        player.handle_datagram(1, datagram);
                        player.handle_datagram(1, datagram);
                    }
                    41 => held = Some(datagram.to_vec()),
                    _ => player.handle_datagram(1, datagram),
                }
                if datagrams % 97 == 43
                    && let Some(datagram) = held.take()
                {
                    player.handle_datagram(1, &datagram);
                }
                datagrams += 1;
            }
            match n % 300 {
                100 => player.handle_command(Command::Gain(1, 0.3)),
                150 => player.handle_command(Command::Pan(1, -0.7)),
                200 => player.handle_command(Command::Gain(1, 1.0)),
                250 => player.handle_command(Command::Pan(1, 0.0)),
                _ => Ok(()),
            }
            .expect("was added");
            let mut out = vec![0.0; 2 * quantum];
            player.process_quantum(&mut out);
            for sample in out {
                heard = fnv1a(heard, &f32::to_le_bytes(sample));
            }
        }
        let known = player.stream_stats(1).expect("was added");
        runs.push(json!({
            "bits": bits,
            "channels": channels,
            "packet_frames": packet_frames,
            "quantum_frames": quantum,
            "datagrams": datagrams,
            "sent_fnv1a": format!("{sent:016x}"),
            "heard_fnv1a": format!("{heard:016x}"),
            "received_frames": known.jitter.received_frames,
            "played_frames": known.jitter.played_frames,
            "concealed_frames": known.jitter.concealed_frames,
            "skipped_frames": known.jitter.skipped_frames,
            "lost_packets": known.sequence.lost,
            "recovered_packets": known.sequence.recovered,
        }));
    }
    json!({
        "version": VERSION,
        "about": "Streams through sender and player, in hashes (FNV-1a, 64 bits) of all datagrams and all samples heard; \
            the steps are in crates/core/examples/vectors.rs and web/test/node/wire.test.ts.",
        "quanta": 1_500,
        "runs": runs,
    })
}
