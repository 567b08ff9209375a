//! What an encoder makes of a sound is that sound again, at the same media time, whatever the shape of the packets.

use std::f32::consts::TAU;

use antiphon_core::wire::{self, AUDIO_HEADER_BYTES, Datagram, MAX_DATAGRAM_BYTES};
use antiphon_core::{SampleFormat, SampleRate, Sender, SenderConfig};
use antiphon_opus::outgoing::{Choice, Copies, Listener, Outgoing, Rung, Sent};
use antiphon_opus::{Encoder, FEED_FRAMES, Received, Receiver};
use proptest::prelude::*;

const SECONDS: usize = 2;

fn feed(channels: usize) -> Sender {
    Sender::new(SenderConfig {
        rate: SampleRate::Hz48000,
        format: SampleFormat::F32,
        channels,
        packet_frames: FEED_FRAMES,
    })
}

/// A chord, another one in each channel.
fn chord(channel: usize, frame: usize) -> f32 {
    let tones = if channel == 0 {
        [220.0, 277.2, 329.6]
    } else {
        [146.8, 440.0, 1_174.7]
    };
    let phase = frame as f32 / 48_000.0 * TAU;
    tones.map(|hz: f32| (phase * hz).sin()).iter().sum::<f32>() * 0.2
}

/// Takes all that a sender has and encodes it.
fn encode(sender: &mut Sender, encoder: &mut Encoder) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    let mut bytes = [0; MAX_DATAGRAM_BYTES];
    while let Some(length) = sender.poll_datagram(&mut bytes) {
        encoder.push(&bytes[..length], |datagram| packets.push(datagram.to_vec()));
    }
    packets
}

#[test]
fn sound_is_the_same_again_at_the_same_time() {
    for (channels, frames, kbps, least_db) in [
        (1, 480, 64, 25.0),
        (2, 480, 64, 15.0),
        (2, 240, 128, 20.0),
        (2, 120, 128, 10.0),
        (2, 120, 256, 25.0),
    ] {
        let mut sender = feed(channels);
        let mut encoder = Encoder::new(channels, frames, kbps * 1_000);
        let mut receiver = Receiver::default();
        let (mut signal, mut noise, mut heard) = (0.0, 0.0, 0);
        for start in (0..SECONDS * 48_000).step_by(960) {
            let block: Vec<f32> = (0..channels * 960)
                .map(|n| chord(n / 960, start + n % 960))
                .collect();
            sender.push(&block, 960);
            for packet in encode(&mut sender, &mut encoder) {
                let payload = packet.len() - AUDIO_HEADER_BYTES;
                assert_eq!(
                    payload,
                    kbps as usize * frames / 48 / 8,
                    "bytes at {kbps} kbit/s"
                );
                receiver.push(&packet, |received| {
                    let Received::Decoded(record) = received else {
                        panic!("not decoded")
                    };
                    let (header, samples) = wire::parse_decoded(record).expect("a record");
                    // The first packets have nothing to go by.
                    if header.timestamp < 4_800 {
                        return;
                    }
                    for (n, sample) in samples.chunks_exact(4).enumerate() {
                        let sample = f32::from_le_bytes(sample.try_into().expect("four bytes"));
                        let frame = header.timestamp as usize + n / channels;
                        let truth = chord(n % channels, frame);
                        signal += truth * truth;
                        noise += (sample - truth) * (sample - truth);
                    }
                    heard += usize::from(header.frames);
                });
            }
        }
        assert!(heard > (SECONDS * 48_000) * 9 / 10, "{heard} frames");
        let db = 10.0 * f32::log10(signal / noise);
        println!("{channels} channels, {frames} frames, {kbps} kbit/s: {db:.1} dB");
        assert!(
            db > least_db,
            "{channels} channels, {frames} frames, {kbps} kbit/s: {db:.1} dB"
        );
    }
}

/// What is wrong at worst, of a chord whose format changes from the first to the second: frames in each packet, and kbit/s. `is_old`: somebody else has been
/// sent the second before. Of each frame that is played which comes first.
fn worst_error(formats: [(usize, u32); 2], is_old: bool) -> f32 {
    let [before, after] = formats.map(|(frames, kbps)| Rung::Opus { kbps, frames });
    let (packet_frames, most) = *formats.iter().max_by_key(|(_, kbps)| *kbps).expect("two");
    let mut outgoing = Outgoing::new(&Choice {
        rate: SampleRate::Hz48000,
        format: SampleFormat::S16,
        channels: 1,
        packet_frames,
        opus_kbps: Some(most),
        adapts: true,
        copies: Copies::Off,
    });
    let mut listener = Listener::new([before].into(), Copies::Off);
    let mut receiver = Receiver::default();
    let mut heard = vec![0_u8; 144_000];
    let mut worst = 0.0_f32;
    for start in (0..144_000).step_by(960) {
        if start == 48_000 {
            listener.set_rungs([after].into());
        }
        let is_used = |rung| listener.takes(rung) || (is_old && rung == after);
        outgoing.prepare(is_used, |_| false);
        let block: Vec<f32> = (start..start + 960).map(|frame| chord(0, frame)).collect();
        outgoing.samples.sender.push(&block, 960);
        let mut bytes = [0; MAX_DATAGRAM_BYTES];
        while let Some((rung, length)) = outgoing.poll_datagram(&mut bytes) {
            let Ok(Datagram::Opus(header, _)) = wire::parse(&bytes[..length]) else {
                continue;
            };
            if !listener.takes(rung) {
                continue;
            }
            let at = (header.timestamp, header.frames);
            listener.send(rung, &mut bytes[..length], at, |datagram| {
                receiver.push(&datagram, |received| {
                    let Received::Decoded(record) = received else {
                        panic!("not decoded")
                    };
                    let (header, samples) = wire::parse_decoded(record).expect("a record");
                    for (n, sample) in samples.chunks_exact(4).enumerate() {
                        let sample = f32::from_le_bytes(sample.try_into().expect("four bytes"));
                        let frame = header.timestamp as usize + n;
                        heard[frame] += 1;
                        if frame >= 4_800 && heard[frame] == 1 {
                            worst = worst.max((sample - chord(0, frame)).abs());
                        }
                    }
                });
                Some(Sent {
                    lane: 0,
                    is_crowded: false,
                })
            });
        }
    }
    assert_eq!(listener.heard_rung(), after, "it has taken over");
    // All but what the first packet begins with and the last has not told yet; each once, where one decoder has them all.
    let most = if formats[0].0 == formats[1].0 { 1 } else { 2 };
    let times = heard[1_000..143_000].iter();
    let all = times.filter(|&&times| (1..=most).contains(&times));
    assert_eq!(all.count(), 142_000, "{formats:?}");
    worst
}

#[test]
fn the_format_changes_between_two_packets_without_a_hole() {
    let alone = |format| worst_error([format; 2], false);
    let (low_240, low_480) = (alone((240, 128)), alone((480, 64)));
    // No worse than what the lower of two formats does by itself.
    for (alone, is_old, formats) in [
        (low_240, false, [(240, 256), (240, 128)]),
        (low_240, false, [(240, 128), (240, 256)]),
        (low_480, false, [(480, 128), (480, 64)]),
        (low_480, false, [(480, 64), (480, 128)]),
        // Shorter packets come first.
        (low_480, false, [(480, 64), (240, 128)]),
        (low_480, true, [(480, 64), (240, 128)]),
        (low_240, false, [(240, 128), (120, 256)]),
        (low_240, true, [(240, 128), (120, 256)]),
    ] {
        let worst = worst_error(formats, is_old);
        println!("{formats:?}, {is_old}: {worst:.4}, the lower alone {alone:.4}");
        assert!(worst <= 1.2 * alone, "{formats:?}, {is_old}");
    }
}

#[test]
fn packets_follow_each_other_and_begin_anew_after_a_jump() {
    let (mut sender, mut encoder) = (feed(1), Encoder::new(1, 480, 64_000));
    let mut times = Vec::new();
    for jump in [0, 1_000, 0] {
        sender.pass(jump);
        sender.push(&[0.1; 1_080], 1_080);
        for packet in encode(&mut sender, &mut encoder) {
            let Ok(Datagram::Opus(header, _)) = wire::parse(&packet) else {
                panic!("no Opus")
            };
            times.push(header.timestamp);
        }
    }
    // Frames 960 to 1,080 were no packet yet, and have no continuation. After the jump packets begin with every fourth datagram of the feed.
    assert_eq!(times, [360, 2_320, 2_800, 3_280]);
}

#[test]
fn what_it_cannot_encode_is_ignored() {
    let mut encoder = Encoder::new(2, 120, 64_000);
    let mut push = |bytes: &[u8]| encoder.push(bytes, |_| panic!("a packet"));
    push(&[]);
    push(&[1; 40]);
    for config in [
        SenderConfig {
            channels: 1,
            ..feed(2).config()
        },
        SenderConfig {
            rate: SampleRate::Hz44100,
            ..feed(2).config()
        },
        SenderConfig {
            format: SampleFormat::S16,
            ..feed(2).config()
        },
        SenderConfig {
            packet_frames: 60,
            ..feed(2).config()
        },
    ] {
        let mut sender = Sender::new(config);
        sender.push(&[0.0; 480], 480);
        let mut bytes = [0; MAX_DATAGRAM_BYTES];
        while let Some(length) = sender.poll_datagram(&mut bytes) {
            push(&bytes[..length]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A sound card may hand over anything.
    #[test]
    fn any_samples_become_packets(
        stereo in any::<bool>(),
        frames in prop::sample::select(vec![120usize, 240, 480]),
        kbps in prop::sample::select(vec![64u32, 96, 128, 256]),
        samples in prop::collection::vec(
            prop_oneof![any::<f32>(), -1.0f32..1.0, Just(0.0), Just(f32::NAN), Just(f32::INFINITY)],
            2 * 1_920,
        ),
    ) {
        let channels = if stereo { 2 } else { 1 };
        let (mut sender, mut encoder) = (feed(channels), Encoder::new(channels, frames, kbps * 1_000));
        let mut receiver = Receiver::default();
        sender.push(&samples[..channels * 1_920], 1_920);
        let packets = encode(&mut sender, &mut encoder);
        // All but the first, which is before the first frame.
        prop_assert_eq!(packets.len(), 1_920 / frames - 1);
        for packet in packets {
            receiver.push(&packet, |received| {
                assert!(matches!(received, Received::Decoded(_)), "not decoded");
            });
        }
    }
}
