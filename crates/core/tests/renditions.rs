//! One capture, several formats at a time: each encoded once, all of the same frames, and a stream that changes between them
//! has no hole.

mod support;

use antiphon_core::sender::{FEED, MAX_RENDITIONS, QUEUE_FRAMES};
use antiphon_core::wire::{
    self, AUDIO_HEADER_BYTES, AudioHeader, Datagram, MAX_DATAGRAM_BYTES, OpusHeader,
};
use antiphon_core::{
    Command, Player, SampleFormat, SampleRate, Sender, SenderConfig, StreamFormat, StreamStats,
    Target,
};
use proptest::prelude::*;
use support::player;

const ID: u32 = 1;

fn config(format: SampleFormat, packet_frames: usize) -> SenderConfig {
    SenderConfig {
        rate: SampleRate::Hz48000,
        format,
        channels: 2,
        packet_frames,
    }
}

/// A ramp that is exact in 16 bits, so that every format carries it bit for bit.
fn ramp(from: usize, frames: usize) -> Vec<f32> {
    let sample = |n: usize| ((n % 30_000) as f32 + 1.0) / 32_768.0;
    let left = (from..from + frames).map(sample);
    left.chain((from..from + frames).map(|n| -sample(n)))
        .collect()
}

/// The datagrams that there are of a rendition.
fn poll_all(sender: &mut Sender, index: usize) -> Vec<Vec<u8>> {
    let mut bytes = [0; MAX_DATAGRAM_BYTES];
    let next = || {
        let length = sender.poll_rendition(index, &mut bytes)?;
        Some(bytes[..length].to_vec())
    };
    std::iter::from_fn(next).collect()
}

fn drain(sender: &mut Sender, index: usize) -> Vec<(AudioHeader, Vec<u8>)> {
    let parsed = |bytes: Vec<u8>| {
        let Ok(Datagram::Audio(header, samples, _)) = wire::parse(&bytes) else {
            panic!("the sender made what nobody reads");
        };
        (header, samples.to_vec())
    };
    poll_all(sender, index).into_iter().map(parsed).collect()
}

#[test]
fn what_is_flushed_goes_in_about_as_many_packets_as_usual_in_every_format_but_the_feed() {
    let mut sender = Sender::new(config(SampleFormat::S24, 128));
    sender.set_rendition(1, Some(config(SampleFormat::S16, 128)));
    sender.set_rendition(FEED, Some(config(SampleFormat::F32, 120)));
    let mut pushed = 0;
    let mut push = |sender: &mut Sender, frames: usize, is_flushed: bool| {
        sender.push(&ramp(pushed, frames), frames);
        pushed += frames;
        if is_flushed {
            sender.flush(usize::MAX);
        }
        [0, 1, FEED].map(|index| {
            let found = drain(sender, index);
            (found.iter().map(|(header, _)| header.frames)).collect::<Vec<_>>()
        })
    };
    let same = |frames: &[u16], feed: &[u16]| [frames.to_vec(), frames.to_vec(), feed.to_vec()];
    assert_eq!(push(&mut sender, 200, true), same(&[100, 100], &[120]));
    assert_eq!(push(&mut sender, 256, true), same(&[128, 128], &[120; 2]));
    assert_eq!(
        push(&mut sender, 15, true),
        same(&[], &[]),
        "too few for a packet"
    );
    assert_eq!(push(&mut sender, 242, true), same(&[129, 128], &[120; 2]));
    assert_eq!(push(&mut sender, 100, false), same(&[], &[120]));
    assert_eq!(push(&mut sender, 100, false), same(&[128], &[120]));
    sender.set_copies(1, true);
    assert_eq!(
        push(&mut sender, 100, true),
        same(&[128], &[120]),
        "copies are of packets of one length"
    );
    sender.set_copies(1, false);
    assert_eq!(push(&mut sender, 40, true), same(&[84], &[]));
}

#[test]
fn packets_of_nothing_but_what_was_made_up_go_to_the_encoder_alone() {
    let mut sender = Sender::new(config(SampleFormat::S24, 64));
    sender.set_rendition(1, Some(config(SampleFormat::S16, 128)));
    sender.set_rendition(FEED, Some(config(SampleFormat::F32, 120)));
    for (from, frames) in [(0, 64), (64, 64)] {
        sender.push(&ramp(from, frames), frames);
    }
    for (from, frames) in [(128, 64), (192, 96)] {
        sender.push_made_up(&ramp(from, frames), frames);
    }
    sender.push(&ramp(288, 192), 192);
    let spans = |packets: Vec<(AudioHeader, Vec<u8>)>| -> Vec<_> {
        let first = packets[0].0.sequence;
        let in_a_row = (first..).zip(&packets);
        assert!(
            in_a_row
                .into_iter()
                .all(|(n, (header, _))| header.sequence == n)
        );
        let span = |(header, _): &(AudioHeader, Vec<u8>)| (header.timestamp, header.frames);
        packets.iter().map(span).collect()
    };
    // What is made up in part is sent.
    assert_eq!(
        spans(drain(&mut sender, 0)),
        [(0, 64), (64, 64), (256, 64), (320, 64), (384, 64)]
    );
    assert_eq!(spans(drain(&mut sender, 1)), [(0, 128), (256, 128)]);
    assert_eq!(
        spans(drain(&mut sender, FEED)),
        [(0, 120), (120, 120), (240, 120), (360, 120)]
    );
    sender.push(&ramp(480, 32), 32);
    assert_eq!(spans(drain(&mut sender, 0)), [(448, 64)], "and goes on");
}

#[test]
fn what_is_longer_than_a_copy_has_none() {
    let mut sender = Sender::new(config(SampleFormat::F32, 128));
    let mut sent = |frames: usize, is_flushed: bool| {
        sender.push(&ramp(0, frames), frames);
        sender.set_copies(0, !is_flushed);
        if is_flushed {
            sender.flush(usize::MAX);
        }
        let described = |bytes: &Vec<u8>| {
            let Ok(Datagram::Audio(header, _, copy)) = wire::parse(bytes) else {
                panic!("the sender made what nobody reads");
            };
            (header.frames, !copy.is_empty())
        };
        let found = poll_all(&mut sender, 0);
        found.iter().map(described).collect::<Vec<_>>()
    };
    sent(128, false);
    assert_eq!(sent(120, true), [(120, false)]);
    // The first would leave out half of the 120 frames before it.
    assert_eq!(sent(128, false), [(64, false), (64, true)]);
}

/// What a host may do to a sender.
#[derive(Clone, Debug)]
enum Step {
    Push(usize),
    Flush,
    Copies(usize, bool),
    Poll(usize, usize),
}

proptest! {
    #[test]
    fn whatever_is_flushed_each_frame_goes_once_and_in_order(
        format in prop_oneof![Just(SampleFormat::S16), Just(SampleFormat::S24), Just(SampleFormat::F32)],
        channels in 1..=8usize,
        packet_frames in 16..=512usize,
        steps in prop::collection::vec(
            prop_oneof![
                (1..=1_500usize).prop_map(Step::Push),
                Just(Step::Flush),
                (0..MAX_RENDITIONS, any::<bool>()).prop_map(|(index, on)| Step::Copies(index, on)),
                (0..MAX_RENDITIONS, 0..20usize).prop_map(|(index, most)| Step::Poll(index, most)),
            ],
            1..60,
        ),
    ) {
        let config = SenderConfig { channels, packet_frames, ..config(format, packet_frames) };
        let mut sender = Sender::new(config);
        sender.set_rendition(1, Some(SenderConfig { format: SampleFormat::S16, ..config }));
        sender.set_rendition(FEED, Some(SenderConfig { packet_frames: 120, ..config }));
        let mut pushed = 0u64;
        let mut bytes = [0; MAX_DATAGRAM_BYTES];
        let mut ends = [0u64; MAX_RENDITIONS];
        for step in steps {
            match step {
                Step::Push(frames) => {
                    sender.push(&vec![0.25; frames], frames);
                    pushed += frames as u64;
                }
                Step::Flush => sender.flush(usize::MAX),
                Step::Copies(index, on) => sender.set_copies(index, on),
                Step::Poll(index, most) => {
                    for _ in 0..most {
                        let Some(length) = sender.poll_rendition(index, &mut bytes) else {
                            break;
                        };
                        let Ok(Datagram::Audio(header, ..)) = wire::parse(&bytes[..length]) else {
                            panic!("the sender made what nobody reads");
                        };
                        let end = header.timestamp + u64::from(header.frames);
                        // One frame of the datagram before may be repeated, and what the queue has lost is missing.
                        let lost = pushed.saturating_sub(QUEUE_FRAMES as u64);
                        prop_assert!(header.timestamp <= ends[index].max(lost));
                        prop_assert!(header.timestamp + 1 >= ends[index]);
                        prop_assert!(end > ends[index] && end <= pushed);
                        prop_assert!(usize::from(header.frames) <= (packet_frames * 3 / 2).max(120) + 1);
                        ends[index] = end;
                    }
                }
            }
        }
    }
}

#[test]
fn renditions_carry_the_same_frames_in_packets_of_their_own() {
    let mut sender = Sender::new(config(SampleFormat::S24, 128));
    sender.push(&ramp(0, 1_000), 1_000);
    assert_eq!(drain(&mut sender, 0).len(), 7);
    assert!(drain(&mut sender, 1).is_empty());
    sender.set_rendition(1, Some(config(SampleFormat::S16, 128)));
    sender.set_rendition(2, Some(config(SampleFormat::F32, 120)));
    sender.push(&ramp(1_000, 1_000), 1_000);
    let [main, narrow, floats] = [0, 1, 2].map(|index| drain(&mut sender, index));
    let times = |of: &[(AudioHeader, Vec<u8>)]| -> Vec<u64> {
        of.iter().map(|(header, _)| header.timestamp).collect()
    };
    assert_eq!(
        times(&main),
        (0..8).map(|n| 896 + 128 * n).collect::<Vec<_>>()
    );
    assert_eq!(times(&main), times(&narrow));
    assert_eq!(
        times(&floats),
        (0..9).map(|n| 896 + 120 * n).collect::<Vec<_>>()
    );
    assert!(floats.iter().all(|(header, _)| header.frames == 120));
    for ((_, wide), (_, narrow)) in main.iter().zip(&narrow) {
        for (wide, narrow) in wide.chunks(3).zip(narrow.chunks(2)) {
            assert_eq!(wide, [0, narrow[0], narrow[1]]);
        }
    }
    // Each counts its own datagrams; the statistics are the main one's.
    assert_eq!((main[0].0.sequence, narrow[0].0.sequence), (7, 0));
    assert_eq!(sender.stats().packets, 15);
}

#[test]
fn a_rendition_that_ended_begins_again_where_the_main_one_is() {
    let mut sender = Sender::new(config(SampleFormat::S16, 64));
    for index in [0, MAX_RENDITIONS, usize::MAX] {
        sender.set_rendition(index, Some(config(SampleFormat::F32, 64)));
    }
    assert_eq!(sender.config(), config(SampleFormat::S16, 64));
    sender.set_rendition(1, Some(config(SampleFormat::S24, 64)));
    sender.push(&ramp(0, 128), 128);
    assert_eq!(
        (drain(&mut sender, 0).len(), drain(&mut sender, 1).len()),
        (2, 2)
    );
    sender.set_rendition(1, None);
    sender.push(&ramp(128, 64), 64);
    assert_eq!(
        (drain(&mut sender, 0).len(), drain(&mut sender, 1).len()),
        (1, 0)
    );
    sender.set_rendition(1, Some(config(SampleFormat::S24, 64)));
    sender.push(&ramp(192, 64), 64);
    assert_eq!(drain(&mut sender, 1)[0].0.timestamp, 192);
}

#[test]
fn one_that_nobody_drains_does_not_hold_up_the_others() {
    let mut sender = Sender::new(config(SampleFormat::S16, 64));
    sender.set_rendition(1, Some(config(SampleFormat::S24, 64)));
    for n in 0..20 {
        sender.push(&ramp(n * 1_024, 1_024), 1_024);
        assert_eq!(drain(&mut sender, 0).len(), 16);
    }
    assert_eq!(sender.stats().overrun_frames, 0);
    let late = drain(&mut sender, 1);
    assert_eq!(late[0].0.timestamp, 20 * 1_024 - 8_192);
    assert_eq!(late.len(), 8_192 / 64);
}

/// What is heard of a ramp whose datagrams carry copies, when they come as `deliver` has it.
fn play_copies(
    format: SampleFormat,
    packet_frames: usize,
    deliver: impl FnOnce(&mut Player, &[Vec<u8>]),
) -> (Vec<f32>, StreamStats) {
    let mut sender = Sender::new(config(format, packet_frames));
    sender.set_copies(0, true);
    sender.push(&ramp(0, 4_096), 4_096);
    let mut bytes = [0; MAX_DATAGRAM_BYTES];
    let mut datagrams = Vec::new();
    while let Some(length) = sender.poll_datagram(&mut bytes) {
        datagrams.push(bytes[..length].to_vec());
    }
    let mut player = player(2, 1, 16_384);
    player.handle_command(Command::Add(ID)).expect("fits");
    let target = Command::Target(ID, Target::Fixed(0));
    player.handle_command(target).expect("was added");
    deliver(&mut player, &datagrams);
    let mut heard = Vec::new();
    let mut quantum = [0.0; 2 * 128];
    for _ in 0..32 {
        player.process_quantum(&mut quantum);
        heard.extend_from_slice(&quantum[..128]);
    }
    (heard, player.stream_stats(ID).expect("was added"))
}

#[test]
fn each_datagram_but_the_first_carries_a_copy_of_the_one_before() {
    for (format, packet_frames) in [
        (SampleFormat::S16, 16),
        (SampleFormat::S16, 510),
        (SampleFormat::S24, 128),
        (SampleFormat::F32, 300),
        // Split unevenly.
        (SampleFormat::S24, 509),
        (SampleFormat::F32, 512),
    ] {
        let every_second = |player: &mut Player, datagrams: &[Vec<u8>]| {
            for (n, datagram) in datagrams.iter().enumerate() {
                assert_eq!(wire::without_copy(datagram).len() < datagram.len(), n > 0);
                if n % 2 == 0 {
                    player.handle_datagram(ID, datagram);
                }
            }
        };
        let (heard, known) = play_copies(format, packet_frames, every_second);
        // The last may be lost, and with it its copy.
        let frames = 4_096 - packet_frames;
        for (n, sample) in heard[..frames].iter().enumerate() {
            let error = sample - ((n % 30_000) as f32 + 1.0) / 32_768.0;
            assert!(
                error.abs() < 0.002,
                "{format:?} {packet_frames}: frame {n} is off by {error}"
            );
        }
        assert_eq!(known.sequence.lost, 0);
        assert!(known.sequence.recovered.abs_diff(known.sequence.received) <= 1);
        assert!(known.jitter.played_frames >= frames as u64);
    }
}

/// The datagrams that a sender makes of `input`.
fn datagrams(config: SenderConfig, has_copies: bool, input: &[f32]) -> Vec<Vec<u8>> {
    let mut sender = Sender::new(config);
    sender.set_copies(0, has_copies);
    sender.push(input, input.len() / config.channels);
    poll_all(&mut sender, 0)
}

proptest! {
    #[test]
    fn who_passes_datagrams_on_can_add_the_copies_that_the_sender_would_have_sent(
        (format, packet_frames, channels) in prop_oneof![
            (Just(SampleFormat::S16), 16..150usize, 1..3usize),
            (Just(SampleFormat::S24), 16..130usize, 1..3usize),
            (Just(SampleFormat::F32), 16..30usize, 1..8usize),
        ],
        // Of full scale, and somewhat more.
        samples in proptest::collection::vec(-9_000_000..9_000_000i32, 8 * 3 * 16..4_000),
    ) {
        // In 24 bits they are whole: a relay has no others.
        let samples: Vec<f32> = samples.iter().map(|&sample| sample as f32 / 8_388_608.0).collect();
        let whole = samples.len() / channels * channels;
        let config = SenderConfig { channels, ..config(format, packet_frames) };
        let [plain, copied] =
            [false, true].map(|has_copies| datagrams(config, has_copies, &samples[..whole]));
        prop_assert_eq!(&plain[0], &copied[0]);
        prop_assert_eq!(plain.len(), copied.len());
        for (pair, copied) in plain.windows(2).zip(&copied[1..]) {
            let mut copy = [0; MAX_DATAGRAM_BYTES];
            let length = wire::write_copy(&pair[0], &pair[1], &mut copy).expect("has room");
            prop_assert_eq!(&[&pair[1], &copy[..length]].concat(), copied);
        }
    }
}

#[test]
fn a_copy_is_added_to_nothing_but_the_next_of_the_same_shape_and_where_it_fits() {
    let header = AudioHeader {
        format: SampleFormat::S16,
        rate: SampleRate::Hz48000,
        channels: 2,
        stream: 7,
        frames: 128,
        // Both wrap.
        sequence: 0,
        timestamp: 100,
    };
    let datagram = |header: &AudioHeader| {
        let mut bytes = vec![1; header.datagram_bytes()];
        header.write(&mut bytes);
        bytes
    };
    let mut copy = [0; MAX_DATAGRAM_BYTES];
    let mut written = |before: &AudioHeader, header: &AudioHeader| {
        wire::write_copy(&datagram(before), &datagram(header), &mut copy)
    };
    let before = header.before();
    assert_eq!(
        (before.sequence, before.timestamp),
        (u32::MAX, u64::MAX - 27)
    );
    assert_eq!(written(&before, &header), Some(header.copy_bytes()));
    for other in [
        header,
        AudioHeader {
            sequence: u32::MAX - 1,
            ..before
        },
        AudioHeader {
            timestamp: before.timestamp - 1,
            ..before
        },
        AudioHeader {
            frames: 127,
            ..before
        },
        AudioHeader {
            channels: 1,
            ..before
        },
        AudioHeader {
            stream: 0,
            ..before
        },
        AudioHeader {
            format: SampleFormat::S24,
            ..before
        },
        AudioHeader {
            rate: SampleRate::Hz44100,
            ..before
        },
    ] {
        assert_eq!(written(&other, &header), None, "{other:?}");
    }
    // 20 bytes, 780 of samples, and two blocks of 100.
    for (frames, fits) in [(195, true), (196, false)] {
        let header = AudioHeader { frames, ..header };
        assert_eq!(written(&header.before(), &header).is_some(), fits);
    }
}

#[test]
fn what_comes_after_its_copy_and_in_time_takes_its_place() {
    let swapped = |player: &mut Player, datagrams: &[Vec<u8>]| {
        player.handle_datagram(ID, &datagrams[0]);
        for pair in datagrams[1..].chunks(2) {
            for datagram in pair.iter().rev() {
                player.handle_datagram(ID, datagram);
            }
        }
        // By the other path, and again.
        for datagram in datagrams {
            let mut relayed = datagram.clone();
            wire::Kind::Audio.set_stream(&mut relayed, 7);
            player.handle_datagram(ID, &relayed);
            player.handle_datagram(ID, datagram);
        }
    };
    let (heard, known) = play_copies(SampleFormat::S16, 128, swapped);
    assert_eq!(heard, ramp(0, 4_096)[..4_096], "bit for bit");
    assert_eq!((known.sequence.lost, known.sequence.recovered), (0, 0));
    assert_eq!(known.jitter.concealed_frames, 0);
}

#[test]
fn what_the_slower_path_brings_after_its_copy_lengthens_no_buffer() {
    const LATE_QUANTA: usize = 8;
    let mut sender = Sender::new(config(SampleFormat::S16, 128));
    sender.set_copies(0, true);
    let mut player = player(2, 1, 16_384);
    player.handle_command(Command::Add(ID)).expect("fits");
    let mut bytes = [0; MAX_DATAGRAM_BYTES];
    let mut quantum = [0.0; 2 * 128];
    let mut relayed = std::collections::VecDeque::new();
    for n in 0..4_000 {
        sender.push(&ramp(128 * n, 128), 128);
        let length = sender.poll_datagram(&mut bytes).expect("128 frames");
        let mut datagram = bytes[..length].to_vec();
        if n % 40 != 39 {
            player.handle_datagram(ID, &datagram);
        }
        wire::Kind::Audio.set_stream(&mut datagram, 7);
        relayed.push_back(datagram);
        if relayed.len() > LATE_QUANTA {
            player.handle_datagram(ID, &relayed.pop_front().expect("waits"));
        }
        player.process_quantum(&mut quantum);
    }
    let known = player.stream_stats(ID).expect("was added");
    // The first copy comes a packet later than anything before it.
    assert!(known.jitter.late_packets <= 1, "{known:?}");
    assert!(known.target_frames <= 2 * 128, "{known:?}");
    assert!(known.jitter.concealed_frames <= 2 * 128, "{known:?}");
}

#[test]
fn copies_that_begin_or_end_within_a_packet_wait_for_the_next() {
    let mut sender = Sender::new(config(SampleFormat::S24, 320));
    sender.push(&ramp(0, 4_096), 4_096);
    let mut bytes = [0; MAX_DATAGRAM_BYTES];
    for n in 0..20 {
        sender.set_copies(0, n % 4 < 2);
        let Some(length) = sender.poll_datagram(&mut bytes) else {
            break;
        };
        let parsed = wire::parse(&bytes[..length]);
        assert!(parsed.is_ok(), "{n}: {parsed:?} of {length} bytes");
    }
}

#[test]
fn what_comes_late_after_its_copy_lengthens_no_buffer() {
    const LATE_QUANTA: usize = 16;
    let mut sender = Sender::new(config(SampleFormat::S16, 128));
    sender.set_copies(0, true);
    let mut player = player(2, 1, 16_384);
    player.handle_command(Command::Add(ID)).expect("fits");
    let mut bytes = [0; MAX_DATAGRAM_BYTES];
    let mut quantum = [0.0; 2 * 128];
    let mut held: Option<(usize, Vec<u8>)> = None;
    for n in 0..4_000 {
        sender.push(&ramp(128 * n, 128), 128);
        let length = sender.poll_datagram(&mut bytes).expect("128 frames");
        if n % 40 == 39 {
            held = Some((n + LATE_QUANTA, bytes[..length].to_vec()));
        } else {
            player.handle_datagram(ID, &bytes[..length]);
        }
        if let Some((_, late)) = held.take_if(|(due, _)| *due == n) {
            player.handle_datagram(ID, &late);
        }
        player.process_quantum(&mut quantum);
    }
    let known = player.stream_stats(ID).expect("was added");
    assert_eq!((known.sequence.lost, known.sequence.reordered), (0, 99));
    // The first copy comes a packet later than anything before it.
    assert!(known.jitter.late_packets <= 1, "{known:?}");
    assert!(known.target_frames <= 2 * 128, "{known:?}");
    // Its frames are heard once, or not at all.
    let jitter = known.jitter;
    assert_eq!(jitter.late_frames, 128 * jitter.late_packets);
    assert_eq!(jitter.copied_frames, 128 * known.sequence.reordered);
}

/// Plays a stream that changes from samples to (pretended) Opus and back, both overlapping, and returns the player.
fn change_format(overlap_frames: u64) -> Player {
    let mut sender = Sender::new(config(SampleFormat::S16, 128));
    let mut player = player(1, 2, 32_768);
    player.handle_command(Command::Add(ID)).expect("fits");
    let target = Command::Target(ID, Target::Fixed(4_096));
    player.handle_command(target).expect("was added");
    let mut sequence = 0;
    let mut bytes = [0; MAX_DATAGRAM_BYTES];
    let mut encoding = Vec::new();
    for quantum in 0..400u64 {
        let now = quantum * 128;
        sender.push(&ramp(now as usize, 128), 128);
        if quantum == 100 {
            sender.set_rendition(2, Some(config(SampleFormat::F32, 120)));
        }
        // Opus comes 300 frames late, as if encoded. It is sent from 100 on, samples until then and from 250 on; and the one that
        // ends goes on for a moment.
        let first = 100 * 128;
        let last = 250 * 128 + overlap_frames;
        while let Some(length) = sender.poll_datagram(&mut bytes) {
            let is_sent = !(first + overlap_frames..250 * 128).contains(&now);
            if is_sent {
                bytes[8..12].copy_from_slice(&u32::to_le_bytes(sequence));
                sequence += 1;
                player.handle_datagram(ID, &bytes[..length]);
            }
        }
        encoding.extend(drain(&mut sender, 2));
        let is_out = |(header, _): &(AudioHeader, Vec<u8>)| header.timestamp + 420 <= now + 128;
        let out: Vec<_> = encoding.extract_if(.., |held| is_out(held)).collect();
        for (header, samples) in out {
            if now >= last {
                break;
            }
            let header = OpusHeader {
                channels: 2,
                stream: 0,
                frames: header.frames,
                sequence,
                timestamp: header.timestamp,
            };
            let mut decoded = vec![0; AUDIO_HEADER_BYTES];
            header.write(&mut decoded);
            decoded.extend_from_slice(&samples);
            sequence += 1;
            player.handle_decoded(ID, &decoded);
            // Where both come, the samples are heard: they come first.
            if (first + overlap_frames + 1_000..250 * 128).contains(&now) {
                let format = player.stream_stats(ID).expect("was added").format;
                assert_eq!(format, Some(StreamFormat::Opus));
            }
        }
        player.process_quantum(&mut [0.0; 128]);
    }
    player
}

#[test]
fn a_change_of_format_and_back_loses_no_frame() {
    let known = change_format(960).stream_stats(ID).expect("was added");
    let samples = StreamFormat::Samples(SampleFormat::S16);
    assert_eq!(known.format, Some(samples));
    assert_eq!(known.sequence.lost, 0);
    assert_eq!(
        (known.jitter.concealed_frames, known.malformed_packets),
        (0, 0)
    );
    assert_eq!((known.jitter.late_frames, known.jitter.resyncs), (0, 0));
    // Both were sent for a moment: the same frames, heard once.
    assert!(known.jitter.copied_frames >= 960);
    assert_eq!(known.jitter.played_frames, 400 * 128 - 4_096);
}

#[test]
fn without_an_overlap_there_is_a_hole() {
    let known = change_format(0).stream_stats(ID).expect("was added");
    assert!(known.jitter.concealed_frames > 0);
}

#[test]
fn opus_that_nobody_decoded_is_refused() {
    let mut player = player(1, 2, 8_192);
    player.handle_command(Command::Add(ID)).expect("fits");
    let header = OpusHeader {
        channels: 2,
        stream: 0,
        frames: 120,
        sequence: 0,
        timestamp: 0,
    };
    let mut packet = [7; AUDIO_HEADER_BYTES + 40];
    header.write(&mut packet);
    player.handle_datagram(ID, &packet);
    player.handle_decoded(ID, &packet);
    player.handle_decoded(ID, &[]);
    let known = player.stream_stats(ID).expect("was added");
    assert_eq!((known.malformed_packets, known.sequence.received), (3, 0));
    // Passed over: received, but nothing to play.
    player.handle_decoded(ID, &packet[..AUDIO_HEADER_BYTES]);
    let known = player.stream_stats(ID).expect("was added");
    assert_eq!((known.malformed_packets, known.sequence.received), (3, 1));
    assert_eq!((known.jitter.skipped_frames, known.held_frames), (120, 0));
    player.handle_decoded(9, &packet);
    assert_eq!(player.stray_datagrams(), 1);
}
