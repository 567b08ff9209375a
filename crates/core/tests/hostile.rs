//! Whatever comes from the network: dropped and counted, never a panic, never heard in another stream.

mod support;

use antiphon_core::conceal::Concealment;
use antiphon_core::limiter::Limiter;
use antiphon_core::wire::{self, AUDIO_HEADER_BYTES, AudioHeader, Datagram, MAX_DATAGRAM_BYTES};
use antiphon_core::{
    Command, Player, PlayerConfig, SampleFormat, SampleRate, StreamFormat, Target,
};
use proptest::prelude::*;
use support::{Random, datagram, header, player, quantum, stats};

const GOOD: u32 = 1;
const BAD: u32 = 2;

/// Bytes, any, or those of a good datagram with some changed, cut or added.
fn anything() -> impl Strategy<Value = Vec<u8>> {
    let bytes = proptest::collection::vec(any::<u8>(), 0..1_200);
    let mutated = (
        (any::<u32>(), any::<u64>(), 1..200usize),
        proptest::collection::vec((0..240usize, any::<u8>()), 0..4),
        prop_oneof![Just(None), (0..300usize).prop_map(Some)],
    )
        .prop_map(|((sequence, timestamp, frames), changes, length)| {
            let mut bytes = datagram(&header(sequence, timestamp, frames));
            if timestamp % 4 == 1 {
                bytes.resize(bytes.len() + 3 + frames / 2, 0xb6);
            }
            if timestamp % 4 == 0 {
                bytes[2..4].copy_from_slice(&[0x14, 2]);
                bytes[6..8].copy_from_slice(&[120, 0]);
            }
            for (at, value) in changes {
                let at = at % bytes.len();
                bytes[at] = value;
            }
            if let Some(length) = length {
                bytes.resize(length, 0xa5);
            }
            bytes
        });
    let changed = (
        any::<u32>(),
        proptest::collection::vec((0..92usize, any::<u8>()), 0..4),
    )
        .prop_map(|(id, changes)| {
            let mut bytes = report(id).to_bytes().to_vec();
            for (at, value) in changes {
                bytes[at] = value;
            }
            bytes
        });
    prop_oneof![bytes, mutated, changed]
}

fn report(id: u32) -> wire::Report {
    wire::Report {
        stream: 0,
        id,
        capture: Some(wire::CaptureReport {
            timestamp: 48_000,
            time_ns: 1_000_000_000,
            error_us: 100,
            block_us: 2_700,
            send_us: 2_800,
            input: Some(wire::InputDelay {
                is_calibrated: id.is_multiple_of(2),
                delay_us: -100,
                error_us: 100,
            }),
            overrun_frames: 0,
            dropped_packets: 0,
        }),
        heard: Some(wire::HeardReport {
            is_mixed: id.is_multiple_of(3),
            period_ms: 4_000,
            received_packets: 1_500,
            lost_packets: 0,
            late_packets: 0,
            played_frames: 192_000,
            concealed_frames: 0,
            buffer_frames: Some(256),
            target_frames: 256,
            spread_frames: Some(200),
            output_underruns: None,
        }),
    }
}

/// What `docs/protocol.md` says, in the plainest words.
fn is_well_formed(bytes: &[u8]) -> bool {
    if bytes.len() > 1_000 || bytes.len() < 2 || bytes[0] != 1 {
        return false;
    }
    match bytes[1] {
        1 => {
            if bytes.len() < 20 {
                return false;
            }
            let frames = usize::from(bytes[6]) + 256 * usize::from(bytes[7]);
            let width = match bytes[2] % 16 {
                1 => 2,
                2 => 3,
                3 => 4,
                4 => {
                    return bytes[2] == 0x14
                        && (1..=2).contains(&bytes[3])
                        && [120, 240, 480].contains(&frames)
                        && bytes.len() > 20;
                }
                _ => return false,
            };
            bytes[2] / 16 <= 3 && (1..=8).contains(&bytes[3]) && (1..=512).contains(&frames) && {
                let channels = usize::from(bytes[3]);
                let copy = channels * (3 + frames / 2);
                let rest = bytes.len().checked_sub(20 + frames * channels * width);
                rest.is_some_and(|rest| rest == 0 || rest == copy)
            }
        }
        2 => bytes.len() == 24 && bytes[16..] == [0; 8],
        3 => bytes.len() == 24,
        4 => bytes.len() == 92 && is_well_formed_report(bytes),
        _ => false,
    }
}

fn is_well_formed_report(bytes: &[u8]) -> bool {
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    let is_duration = |at| number(at) <= 60_000_000;
    let (known, source) = (bytes[2], bytes[3]);
    let period_ms = u16::from_le_bytes([bytes[52], bytes[53]]);
    let capture = match known & 1 {
        0 => source == 0 && bytes[8..52] == [0; 44],
        _ => [24, 28, 32].into_iter().all(is_duration),
    };
    let input = match source {
        0 => bytes[36..44] == [0; 8],
        1 | 2 => (number(36) as i32).unsigned_abs() <= 60_000_000 && is_duration(40),
        _ => false,
    };
    let heard = match known & 2 {
        0 => bytes[52..54] == [0; 2] && bytes[56..92] == [0; 36],
        _ => (1..=60_000).contains(&period_ms),
    };
    let mixed = known & 4 == 0 || known & 2 != 0;
    known <= 7 && capture && input && heard && mixed
}

/// Plays the same good stream with or without a hostile one beside it, muted, and returns all that was heard.
fn heard_beside(hostile: &[Vec<u8>], target: Target) -> Vec<f32> {
    let mut player = player(1, 2, 4_096);
    for command in [
        Command::Add(GOOD),
        Command::Target(GOOD, target),
        Command::Add(BAD),
        Command::Mute(BAD, true),
    ] {
        player.handle_command(command).expect("fits");
    }
    let mut random = Random(3);
    let mut heard = Vec::new();
    let mut hostile = hostile.iter();
    for n in 0..300u32 {
        if random.below(20) > 0 {
            let bytes = datagram(&header(n, 64 * u64::from(n), 64));
            player.handle_datagram(GOOD, &bytes);
        }
        for _ in 0..random.below(4) {
            if let Some(bytes) = hostile.next() {
                player.handle_datagram(BAD, bytes);
                player.handle_datagram(3, bytes);
            }
        }
        heard.extend(quantum(&mut player, 1 + random.below(127) as usize));
    }
    heard
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn parsing_accepts_exactly_what_the_protocol_says(bytes in anything()) {
        let parsed = wire::parse(&bytes);
        prop_assert_eq!(parsed.is_ok(), is_well_formed(&bytes));
        match parsed {
            Ok(Datagram::Audio(header, samples, copy)) => {
                let mut written = vec![0; 20];
                header.write(&mut written);
                written.extend(samples);
                prop_assert_eq!(header.datagram_bytes(), written.len());
                written.extend(copy);
                prop_assert_eq!(&written, &bytes);
            }
            Ok(Datagram::Opus(header, packet)) => {
                let mut written = vec![0; 20];
                header.write(&mut written);
                written.extend(packet);
                prop_assert_eq!(&written, &bytes);
            }
            Ok(Datagram::Probe(probe)) => prop_assert_eq!(&probe.to_bytes()[..], &bytes),
            Ok(Datagram::Report(report)) => prop_assert_eq!(&report.to_bytes()[..], &bytes),
            Err(_) => {}
        }
    }

    #[test]
    fn a_copy_is_made_only_of_what_is_whole_and_comes_before(
        datagram in anything(),
        other in anything(),
        is_next in any::<bool>(),
    ) {
        let mut before = other;
        if let (true, Ok(Datagram::Audio(header, ..))) = (is_next, wire::parse(&datagram)) {
            before.clone_from(&datagram);
            header.before().write(&mut before);
        }
        let mut copy = [0; MAX_DATAGRAM_BYTES];
        let Some(length) = wire::write_copy(&before, &datagram, &mut copy) else {
            return Ok(());
        };
        let Ok(Datagram::Audio(earlier, ..)) = wire::parse(&before) else {
            panic!("of no samples")
        };
        let joined = [&datagram, &copy[..length]].concat();
        let Ok(Datagram::Audio(header, samples, found)) = wire::parse(&joined) else {
            panic!("nobody reads it")
        };
        prop_assert_eq!(header.before(), earlier);
        prop_assert_eq!(&datagram[20..], samples);
        prop_assert_eq!(&copy[..length], found);
        prop_assert_eq!(wire::write_copy(&before, &joined, &mut copy), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn every_datagram_is_counted_once(
        datagrams in proptest::collection::vec(anything(), 1..100),
        quantum_frames in 1..1_024usize,
    ) {
        let mut player = player(1, 1, 4_096);
        player.handle_command(Command::Add(BAD)).expect("fits");
        let mut frames = 0;
        for bytes in &datagrams {
            let before = stats(&player, BAD).sequence;
            player.handle_datagram(BAD, bytes);
            let after = stats(&player, BAD).sequence;
            if let Ok(Datagram::Audio(header, ..)) = wire::parse(bytes) {
                // What came may also be the original of a copy.
                let come = after.received - before.received;
                let copied = u64::from(after.recovered > before.recovered);
                frames += (come + copied) * u64::from(header.frames);
            }
            let out = quantum(&mut player, quantum_frames);
            prop_assert!(out.iter().all(|sample| sample.is_finite()));
        }
        let known = stats(&player, BAD);
        let sum = known.sequence.received
            + known.sequence.duplicate
            + known.ancient_packets
            + known.malformed_packets;
        prop_assert_eq!(sum, datagrams.len() as u64);
        let jitter = known.jitter;
        prop_assert_eq!(frames, jitter.received_frames);
        prop_assert_eq!(
            frames,
            jitter.played_frames
                + jitter.skipped_frames
                + jitter.late_frames
                + jitter.copied_frames
                + known.held_frames
        );
    }

    #[test]
    fn a_hostile_stream_changes_nothing_in_another(
        datagrams in proptest::collection::vec(anything(), 1..400),
        is_fixed in any::<bool>(),
    ) {
        let target = if is_fixed { Target::Fixed(200) } else { Target::Auto };
        let alone = heard_beside(&[], target);
        let beside = heard_beside(&datagrams, target);
        // A strip that was just muted fades for 10 ms, so that much of the hostile stream may be heard.
        let differ = alone.iter().zip(&beside).filter(|(a, b)| a != b).count();
        prop_assert!(differ <= 480, "{differ} frames differ");
    }
}

/// What is heard of a good stream that loses every tenth packet, beside a hostile one that came first and is nothing but gaps.
fn concealed_beside(gaps_of_other: bool) -> Vec<f32> {
    let mut player = Player::new(PlayerConfig {
        rate: SampleRate::Hz48000,
        output_channels: 2,
        max_streams: 2,
        buffer_frames: 4_096,
        max_quantum_frames: 128,
        concealment: Concealment::Prediction,
    });
    for id in [BAD, GOOD] {
        player.handle_command(Command::Add(id)).expect("fits");
        let target = Command::Target(id, Target::Fixed(256));
        player.handle_command(target).expect("is there");
    }
    player
        .handle_command(Command::Mute(BAD, true))
        .expect("is there");
    let mut heard = Vec::new();
    for n in 0..200u32 {
        if gaps_of_other {
            for part in 4 * n..4 * n + 4 {
                let header = AudioHeader {
                    channels: 2,
                    ..header(part, 32 * u64::from(part), 1)
                };
                player.handle_datagram(BAD, &datagram(&header));
            }
        }
        if n % 10 != 9 {
            let sample = (n as f32 / 3.0).sin() / 2.0;
            send_raw(&mut player, GOOD, 2 * n, sample);
            send_raw(&mut player, GOOD, 2 * n + 1, -sample);
        }
        let mut out = [0.0; 256];
        player.process_quantum(&mut out);
        heard.extend(out);
    }
    heard
}

#[test]
fn a_stream_of_gaps_takes_no_predictor_from_another() {
    let (alone, beside) = (concealed_beside(false), concealed_beside(true));
    // The mute fades.
    assert!(alone[1_024..] == beside[1_024..]);
}

/// Error against the tone of what is heard of nine streams of which the last sends the tone and the others silence, in dB, when all lose each 20th packet
/// at once. Each but the last is given `commands`.
fn error_beside(commands: impl Fn(u32) -> Vec<Command>) -> f64 {
    const LAST: u32 = 8;
    let tone = |media: u64| (media as f32 * 440.0 * std::f32::consts::TAU / 48_000.0).sin() / 2.0;
    let mut player = Player::new(PlayerConfig {
        rate: SampleRate::Hz48000,
        output_channels: 1,
        max_streams: 9,
        buffer_frames: 4_096,
        max_quantum_frames: 128,
        concealment: Concealment::Prediction,
    });
    for id in 0..=LAST {
        for command in [Command::Add(id), Command::Target(id, Target::Fixed(256))] {
            player.handle_command(command).expect("fits");
        }
    }
    let (mut error, mut power) = (0.0, 0.0);
    for n in 0..1_000u32 {
        if n == 10 {
            for command in (0..LAST).flat_map(&commands) {
                player.handle_command(command).expect("is there");
            }
        }
        let header = header(n, 128 * u64::from(n), 128);
        for id in 0..=LAST {
            let mut bytes = vec![0; header.datagram_bytes()];
            header.write(&mut bytes);
            let samples = bytes[AUDIO_HEADER_BYTES..].chunks_exact_mut(4);
            for (media, sample) in (header.timestamp..).zip(samples) {
                let heard = if id == LAST { tone(media) } else { 0.0 };
                sample.copy_from_slice(&heard.to_le_bytes());
            }
            if n % 20 != 19 {
                player.handle_datagram(id, &bytes);
            }
        }
        let heard = quantum(&mut player, 128);
        if n > 100 {
            let end = player.playhead(LAST).expect("plays");
            for (media, heard) in (end - 128..).zip(heard) {
                error += f64::from(heard - tone(media)).powi(2);
                power += f64::from(tone(media)).powi(2);
            }
        }
    }
    10.0 * f64::log10(error / power)
}

#[test]
fn who_is_not_heard_takes_no_predictor_from_who_is() {
    let alone = error_beside(|id| vec![Command::Remove(id)]);
    for (name, command) in [
        (
            "muted",
            (|id| Command::Mute(id, true)) as fn(u32) -> Command,
        ),
        ("of gain 0", |id| Command::Gain(id, 0.0)),
        ("hidden", |_| Command::Solo(8, true)),
    ] {
        let beside = error_beside(|id| vec![command(id)]);
        assert!(
            (beside - alone).abs() < 1e-9,
            "{name}: {beside} dB, alone {alone} dB"
        );
    }
    assert!(alone < -40.0, "{alone} dB");
}

#[test]
fn where_all_lose_packets_at_once_each_has_its_turn_of_the_predictors() {
    let alone = error_beside(|id| vec![Command::Remove(id)]);
    let beside = error_beside(|_| vec![]);
    // It has none in a ninth of its gaps: 9.5 dB less than the -11 dB of one that never has any.
    assert!(beside < -18.0, "{beside} dB, alone {alone} dB");
}

fn send_raw(player: &mut Player, id: u32, sequence: u32, sample: f32) {
    let mut bytes = datagram(&header(sequence, 64 * u64::from(sequence), 64));
    for at in (20..bytes.len()).step_by(4) {
        bytes[at..at + 4].copy_from_slice(&sample.to_le_bytes());
    }
    player.handle_datagram(id, &bytes);
}

#[test]
fn the_mix_is_always_finite() {
    for sample in [
        16.0,
        1e30,
        f32::MAX,
        f32::MIN,
        f32::INFINITY,
        f32::NAN,
        1e-45,
    ] {
        let mut player = player(1, 2, 4_096);
        for command in [
            Command::Add(GOOD),
            Command::Add(BAD),
            Command::Target(BAD, Target::Fixed(0)),
            Command::Gain(BAD, 4.0),
            Command::Target(GOOD, Target::Fixed(0)),
            Command::Gain(GOOD, 4.0),
        ] {
            player.handle_command(command).expect("fits");
        }
        for n in 0..50 {
            send_raw(&mut player, BAD, n, sample);
            send_raw(&mut player, GOOD, n, -sample);
            let out = quantum(&mut player, 64);
            assert!(out.iter().all(|s| s.is_finite()), "{sample} gave {out:?}");
        }
    }
}

#[test]
fn one_sample_of_nonsense_turns_no_mix_down() {
    for nonsense in [16f32.next_up(), 1e30, f32::MIN, f32::INFINITY, f32::NAN] {
        let (mut player, mut limiter) = (player(1, 2, 4_096), Limiter::new(48_000));
        for id in [GOOD, BAD] {
            for command in [Command::Add(id), Command::Target(id, Target::Fixed(0))] {
                player.handle_command(command).expect("fits");
            }
        }
        for n in 0..50 {
            send_raw(&mut player, GOOD, n, 0.25);
            let header = header(n, 64 * u64::from(n), 64);
            let mut bytes = vec![0; header.datagram_bytes()];
            header.write(&mut bytes);
            if n == 25 {
                bytes[AUDIO_HEADER_BYTES..][..4].copy_from_slice(&nonsense.to_le_bytes());
            }
            player.handle_datagram(BAD, &bytes);
            let mut out = quantum(&mut player, 64);
            limiter.process(&mut out, 64);
            assert!(
                out.iter().all(|&sample| sample == 0.25),
                "{nonsense}: {out:?}"
            );
        }
    }
}

#[test]
fn each_refusal_is_counted_as_what_it_is() {
    let mut player = player(1, 1, 4_096);
    player.handle_command(Command::Add(BAD)).expect("fits");
    let good = datagram(&header(5_000, 0, 64));
    let mut refused = 0;
    let mut refuse = |player: &mut Player, bytes: &[u8]| {
        player.handle_datagram(BAD, bytes);
        refused += 1;
        assert_eq!(stats(player, BAD).malformed_packets, refused, "{bytes:?}");
        assert_eq!(stats(player, BAD).sequence.received, 0);
    };
    for end in 0..good.len() {
        refuse(&mut player, &good[..end]);
    }
    for (at, value) in [
        (0, 0),
        (0, 2),
        (1, 0),
        (1, 4),
        (2, 0x10),
        (2, 0x43),
        (3, 0),
        (3, 9),
        (6, 65),
    ] {
        let mut bytes = good.clone();
        bytes[at] = value;
        refuse(&mut player, &bytes);
    }
    refuse(&mut player, &vec![1; MAX_DATAGRAM_BYTES + 1]);
    let other_rate = wire::AudioHeader {
        rate: SampleRate::Hz44100,
        ..header(5_000, 0, 64)
    };
    refuse(&mut player, &datagram(&other_rate));
    let probe = wire::Probe {
        stream: 0,
        id: 1,
        time_ns: 2,
        replied_ns: None,
    };
    refuse(&mut player, &probe.to_bytes());
    refuse(&mut player, &report(1).to_bytes());

    // Replays: of what is in the window, and of what is older than it.
    player.handle_datagram(BAD, &good);
    player.handle_datagram(BAD, &good);
    assert_eq!(stats(&player, BAD).sequence.duplicate, 1);
    player.handle_datagram(BAD, &datagram(&header(7_000, 64, 64)));
    player.handle_datagram(BAD, &good);
    assert_eq!(stats(&player, BAD).ancient_packets, 1);
    // A jump without a witness.
    player.handle_datagram(BAD, &datagram(&header(1 << 31, 64, 64)));
    assert_eq!(stats(&player, BAD).malformed_packets, refused + 1);
    assert_eq!(
        stats(&player, BAD).format,
        Some(StreamFormat::Samples(SampleFormat::F32))
    );
    // Nobody's.
    player.handle_datagram(9, &good);
    assert_eq!(player.stray_datagrams(), 1);
}

#[test]
fn a_host_whose_clock_goes_back_is_borne() {
    let mut player = player(1, 1, 2_048);
    player.handle_command(Command::Add(GOOD)).expect("fits");
    // The slip that the last one tells is negative, and longer than all that was rendered.
    for now_ms in [500, 625, 501, 450, 575] {
        player.keep_time(now_ms * 1_000_000);
    }
    assert!(player.rendered_frames() > u64::MAX / 2);
    for n in 0..100 {
        player.handle_datagram(GOOD, &datagram(&header(n, 64 * u64::from(n), 64)));
        quantum(&mut player, 64);
    }
    assert!(player.rendered_frames() < u64::MAX / 2);
    assert!(stats(&player, GOOD).jitter.played_frames > 0);
}

#[test]
fn a_stream_starts_anew_a_few_times_a_quantum_at_most() {
    let mut player = player(1, 1, 32_768);
    player.handle_command(Command::Add(BAD)).expect("fits");
    for n in 0..100 {
        for m in 0..1_024u32 {
            // There and back.
            let timestamp = u64::from(m % 2) << 40;
            player.handle_datagram(BAD, &datagram(&header(1_024 * n + m, timestamp, 1)));
        }
        quantum(&mut player, 128);
        let resyncs = stats(&player, BAD).jitter.resyncs;
        assert!(resyncs <= 8 * u64::from(n + 1), "{n}: {resyncs}");
    }
}
