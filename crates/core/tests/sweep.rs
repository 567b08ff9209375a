//! Every format, rate, channel count, packet and quantum, from the sender's input to the player's output.

mod support;

use antiphon_core::conceal::Concealment;
use antiphon_core::player::MAX_QUANTUM_FRAMES;
use antiphon_core::wire::{self, AudioHeader, Datagram, MAX_DATAGRAM_BYTES};
use antiphon_core::{
    Command, Player, PlayerConfig, SampleFormat, SampleRate, Sender, SenderConfig, Target,
};
use support::Random;

const FORMATS: [SampleFormat; 3] = [SampleFormat::S16, SampleFormat::S24, SampleFormat::F32];
const RATES: [SampleRate; 4] = [
    SampleRate::Hz44100,
    SampleRate::Hz48000,
    SampleRate::Hz88200,
    SampleRate::Hz96000,
];
const TARGET: u32 = 2_048;

/// Material of so many bits, `[channel][frame]`, full scale included.
fn material(random: &mut Random, bits: u32, channels: usize, frames: usize) -> Vec<f32> {
    let scale = (1i64 << (bits - 1)) as f32;
    (0..channels * frames)
        .map(|n| match n {
            0 => -1.0,
            1 => (scale - 1.0) / scale,
            _ => ((random.next() >> (64 - bits)) as i64 - (1 << (bits - 1))) as f32 / scale,
        })
        .collect()
}

/// Sends `input` in quanta through a sender and a player; returns what is heard, and checks the datagrams.
fn send_and_play(config: SenderConfig, quantum: usize, input: &[f32]) -> Vec<f32> {
    let channels = config.channels;
    let total = input.len() / channels;
    let mut sender = Sender::new(config);
    let mut player = Player::new(PlayerConfig {
        rate: config.rate,
        output_channels: channels,
        max_streams: 1,
        buffer_frames: 16_384,
        max_quantum_frames: MAX_QUANTUM_FRAMES,
        concealment: Concealment::Silence,
    });
    for command in [Command::Add(1), Command::Target(1, Target::Fixed(TARGET))] {
        player.handle_command(command).expect("fits");
    }
    let mut heard = vec![0.0; channels * (total + 2 * TARGET as usize + 1_024)];
    let stride = heard.len() / channels;
    let (mut sequence, mut timestamp, mut packet_left, mut packet_sizes) = (0, 0, 0, Vec::new());
    for at in (0..stride).step_by(quantum) {
        let frames = quantum.min(total.saturating_sub(at));
        let block: Vec<f32> = (0..channels * frames)
            .map(|n| input[n / frames * total + at + n % frames])
            .collect();
        sender.push(&block, frames);
        let mut bytes = [0; MAX_DATAGRAM_BYTES];
        while let Some(length) = sender.poll_datagram(&mut bytes) {
            let Ok(Datagram::Audio(header, ..)) = wire::parse(&bytes[..length]) else {
                panic!("the sender made a malformed datagram");
            };
            assert_eq!((header.sequence, header.timestamp), (sequence, timestamp));
            assert_eq!((header.format, header.rate), (config.format, config.rate));
            sequence += 1;
            timestamp += u64::from(header.frames);
            packet_left += usize::from(header.frames);
            packet_sizes.push(usize::from(header.frames));
            if packet_left == config.packet_frames {
                let (least, most) = (packet_sizes.iter().min(), packet_sizes.iter().max());
                assert!(
                    most <= least.map(|least| least + 1).as_ref(),
                    "{packet_sizes:?}"
                );
                packet_left = 0;
                packet_sizes.clear();
            }
            assert!(packet_left < config.packet_frames);
            player.handle_datagram(1, &bytes[..length]);
        }
        let mut out = vec![0.0; channels * quantum];
        player.process_quantum(&mut out);
        let kept = quantum.min(stride - at);
        for channel in 0..channels {
            heard[channel * stride + at..][..kept]
                .copy_from_slice(&out[channel * quantum..][..kept]);
        }
    }
    let known = player.stream_stats(1).expect("was added");
    assert_eq!(known.jitter.late_packets, 0);
    assert_eq!(known.sequence.received, sender.stats().packets);
    heard
}

fn assert_bit_exact(config: SenderConfig, quantum: usize, input: &[f32]) {
    let channels = config.channels;
    let total = input.len() / channels;
    let whole = total / config.packet_frames * config.packet_frames;
    let heard = send_and_play(config, quantum, input);
    let stride = heard.len() / channels;
    let first = heard[..stride].iter().position(|&s| s != 0.0);
    let first = first.expect("something is heard");
    for channel in 0..channels {
        let heard = &heard[channel * stride..][..stride];
        let input = &input[channel * total..][..whole];
        assert!(
            heard[first..first + whole] == *input,
            "{config:?}, quanta of {quantum}, channel {channel}"
        );
        assert!(heard[first + whole..].iter().all(|&s| s == 0.0));
    }
}

#[test]
fn sixteen_bit_material_is_bit_exact_everywhere() {
    let mut random = Random(1);
    for channels in 1..=8 {
        let input = material(&mut random, 16, channels, 3_000);
        for format in FORMATS {
            for rate in RATES {
                for packet_frames in [16, 17, 64, 128, 253, 512] {
                    for quantum in [16, 63, 128, 512, 1_024] {
                        let config = SenderConfig {
                            rate,
                            format,
                            channels,
                            packet_frames,
                        };
                        assert_bit_exact(config, quantum, &input);
                    }
                }
            }
        }
    }
}

#[test]
fn twenty_four_bit_material_is_bit_exact_in_the_wider_formats() {
    let mut random = Random(2);
    for channels in 1..=8 {
        let input = material(&mut random, 24, channels, 3_000);
        for format in [SampleFormat::S24, SampleFormat::F32] {
            for packet_frames in [16, 128, 512] {
                let config = SenderConfig {
                    rate: SampleRate::Hz96000,
                    format,
                    channels,
                    packet_frames,
                };
                assert_bit_exact(config, 128, &input);
            }
        }
    }
}

#[test]
fn a_sender_that_nobody_drains_drops_the_oldest_and_counts() {
    let config = SenderConfig {
        rate: SampleRate::Hz48000,
        format: SampleFormat::F32,
        channels: 1,
        packet_frames: 64,
    };
    let mut sender = Sender::new(config);
    let mut bytes = [0; MAX_DATAGRAM_BYTES];
    let mut media = 0u64;
    for frames in [5_000, 10, 3_000, 500, 20_000, 64] {
        let input: Vec<f32> = (0..frames).map(|n| support::tag(media + n, 0)).collect();
        sender.push(&input, frames as usize);
        media += frames;
        let stats = sender.stats();
        assert_eq!(stats.captured_frames, media);
        // One datagram only, so that the queue overflows.
        let length = sender.poll_datagram(&mut bytes).expect("enough waits");
        let Ok(Datagram::Audio(header, samples, _)) = wire::parse(&bytes[..length]) else {
            panic!("the sender made a malformed datagram");
        };
        assert_eq!(header.timestamp, stats.sent_frames + stats.overrun_frames);
        let first = f32::from_le_bytes([samples[0], samples[1], samples[2], samples[3]]);
        assert_eq!(first, support::tag(header.timestamp, 0));
    }
    assert!(sender.stats().overrun_frames > 0);
}

#[test]
fn a_change_of_format_in_mid_stream_loses_nothing() {
    let mut config = SenderConfig {
        rate: SampleRate::Hz48000,
        format: SampleFormat::F32,
        channels: 2,
        packet_frames: 512,
    };
    let mut sender = Sender::new(config);
    let mut bytes = [0; MAX_DATAGRAM_BYTES];
    let mut next = 0;
    for n in 0..40 {
        sender.push(&[0.25; 2 * 256], 256);
        // In the middle of a packet that is split.
        let mut left = 2;
        while left > 0
            && let Some(length) = sender.poll_datagram(&mut bytes)
        {
            let Ok(Datagram::Audio(header, ..)) = wire::parse(&bytes[..length]) else {
                panic!("the sender made a malformed datagram");
            };
            assert_eq!(header.timestamp, next);
            next += u64::from(header.frames);
            left -= 1;
        }
        config.channels = 1 + n % 8;
        config.format = FORMATS[n % 3];
        config.packet_frames = 16 + 40 * (n % 10);
        sender.set_config(config);
    }
    assert_eq!(sender.stats().sent_frames, next);
}

#[test]
fn channels_beyond_the_outputs_are_folded_onto_them_and_still_reported() {
    for channels in 1..=8 {
        let mut player = support::player(2, 1, 2_048);
        player.handle_command(Command::Add(1)).expect("fits");
        let target = Command::Target(1, Target::Fixed(0));
        player.handle_command(target).expect("is there");
        let header = AudioHeader {
            channels,
            ..support::header(0, 0, 24)
        };
        player.handle_datagram(1, &support::datagram(&header));
        let mut heard = [0.0; 2 * 24];
        player.process_quantum(&mut heard);
        for (output, samples) in heard.chunks_exact(24).enumerate() {
            for (media, &sample) in (0..).zip(samples) {
                let first = output % usize::from(channels);
                let folded = (first..usize::from(channels)).step_by(2);
                let expected: f32 = folded.map(|channel| support::tag(media, channel)).sum();
                assert_eq!(sample, expected, "{channels} channels, output {output}");
            }
        }
        let stats = support::stats(&player, 1);
        assert_eq!(stats.channels, Some(channels));
        assert_eq!(stats.jitter.played_frames, 24);
    }
}

#[test]
fn a_small_queue_carries_every_packet_that_is_polled_at_once() {
    let mut random = Random(7);
    for packet_frames in [16, 100, 512] {
        let config = SenderConfig {
            rate: SampleRate::Hz48000,
            format: SampleFormat::S16,
            channels: 2,
            packet_frames,
        };
        let mut small = Sender::with_queue(config, 2, 512);
        let mut large = Sender::new(config);
        let (mut found, mut expected) = ([0; MAX_DATAGRAM_BYTES], [0; MAX_DATAGRAM_BYTES]);
        let mut packets = 0;
        for _ in 0..50 {
            let block = material(&mut random, 16, 2, packet_frames);
            small.push(&block, packet_frames);
            large.push(&block, packet_frames);
            while let Some(length) = large.poll_datagram(&mut expected) {
                assert_eq!(small.poll_datagram(&mut found), Some(length));
                assert_eq!(found[..length], expected[..length]);
                packets += 1;
            }
            assert_eq!(small.poll_datagram(&mut found), None);
        }
        assert!(packets >= 50, "{packets}");
        // More channels than there is room for are not sent.
        small.set_config(SenderConfig {
            channels: 8,
            ..config
        });
        assert_eq!(small.config().channels, 2);
    }
}

#[test]
fn datagrams_with_copies_keep_within_their_length_and_lose_nothing() {
    let mut random = Random(8);
    for channels in 1..=8 {
        for format in FORMATS {
            for packet_frames in [16, 17, 64, 128, 253, 512] {
                let config = SenderConfig {
                    rate: SampleRate::Hz48000,
                    format,
                    channels,
                    packet_frames,
                };
                let (mut sender, mut plain) = (Sender::new(config), Sender::new(config));
                sender.set_copies(0, true);
                let mut bytes = [0; MAX_DATAGRAM_BYTES];
                let (mut next, mut before, mut copies, mut datagrams) = (0, 0, 0, 0);
                for _ in 0..20 {
                    let block = material(&mut random, 16, channels, 512);
                    sender.push(&block, 512);
                    plain.push(&block, 512);
                    while let Some(length) = sender.poll_datagram(&mut bytes) {
                        let Ok(Datagram::Audio(header, _, copy)) = wire::parse(&bytes[..length])
                        else {
                            panic!("{config:?}: the sender made a malformed datagram");
                        };
                        // Where a packet does not split evenly, a frame comes twice. Nothing of the datagram before is missing from the copy, but
                        // at the start.
                        assert!((header.timestamp..=header.timestamp + 1).contains(&next));
                        assert!(datagrams < 2 || header.before().timestamp <= before);
                        before = header.timestamp;
                        assert_eq!(
                            wire::without_copy(&bytes[..length]).len(),
                            header.datagram_bytes()
                        );
                        next = header.timestamp + u64::from(header.frames);
                        datagrams += 1;
                        copies += u32::from(!copy.is_empty());
                    }
                    while plain.poll_datagram(&mut bytes).is_some() {}
                }
                assert_eq!(copies, datagrams - 1, "{config:?}");
                assert_eq!(sender.stats().sent_frames, plain.stats().sent_frames);
            }
        }
    }
}
