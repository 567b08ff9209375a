//! Packets of libopus come in, frames for the engine come out: all of them, in order, and as they sounded.

mod common;

use antiphon_core::SampleRate;
use antiphon_core::wire::{self, AUDIO_HEADER_BYTES, AudioHeader};
use antiphon_opus::{PACKETS_PER_DECODER, Received, Receiver};
use common::{BEGIN, SHAPES, datagram, datagrams, music};

/// Something delivered: the sequence number, media time, and samples; `None` if it was not decoded.
#[derive(Clone, Debug, PartialEq)]
struct Delivered {
    sequence: u32,
    timestamp: u64,
    samples: Option<Vec<f32>>,
}

fn push(receiver: &mut Receiver, datagram: &[u8], to: &mut Vec<Delivered>) {
    receiver.push(datagram, |received| {
        let (header, samples): (AudioHeader, _) = match received {
            Received::Decoded(record) => {
                let (header, samples) = wire::parse_decoded(record).expect("a record");
                let samples = samples
                    .chunks_exact(4)
                    .map(|sample| f32::from_le_bytes(sample.try_into().expect("four bytes")));
                (header, Some(samples.collect()))
            }
            Received::Undecoded(bytes) => {
                let header = wire::parse_decoded(&bytes[..AUDIO_HEADER_BYTES]);
                let (header, _) = header.expect("a header");
                (header, None)
            }
        };
        assert_eq!(header.rate, SampleRate::Hz48000);
        to.push(Delivered {
            sequence: header.sequence,
            timestamp: header.timestamp,
            samples,
        });
    });
}

fn receive(datagrams: &[Vec<u8>]) -> Vec<Delivered> {
    let (mut receiver, mut delivered) = (Receiver::default(), Vec::new());
    for datagram in datagrams {
        push(&mut receiver, datagram, &mut delivered);
    }
    delivered
}

fn sequences(delivered: &[Delivered]) -> Vec<u32> {
    delivered.iter().map(|one| one.sequence).collect()
}

/// Those of a packet that was not decoded in its turn.
fn is_passed_over(delivered: &Delivered) -> bool {
    delivered.samples.as_deref() == Some(&[])
}

#[test]
fn what_libopus_encoded_is_heard_frame_by_frame_at_its_media_time() {
    for shape @ (channels, frames, _) in SHAPES {
        let datagrams = datagrams(shape);
        let delivered = receive(&datagrams);
        assert_eq!(delivered.len(), 7_200 / usize::from(frames));
        let (mut signal, mut noise) = (0.0, 0.0);
        for (n, one) in (0..).zip(&delivered) {
            assert_eq!(one.sequence, n);
            let samples = one.samples.as_ref().expect("is decoded");
            assert_eq!(samples.len(), usize::from(frames) * usize::from(channels));
            for (at, sample) in samples.iter().enumerate() {
                let frame = one.timestamp + at as u64 / u64::from(channels);
                // The encoder has to get going.
                if let Some(frame) = frame.checked_sub(BEGIN)
                    && frame > 960
                {
                    let sent = music(frame as usize, at % usize::from(channels));
                    signal += f64::from(sent).powi(2);
                    noise += f64::from(sent - sample).powi(2);
                }
            }
        }
        // 25 to 35 dB, as by libopus itself; a frame too early or too late leaves less than 20.
        let snr_db = 10.0 * f64::log10(signal / noise);
        assert!(
            snr_db > 24.0,
            "{channels} channels, {frames} frames: {snr_db} dB"
        );
    }
}

#[test]
fn what_comes_out_of_order_or_twice_is_decoded_once_and_in_order() {
    let in_order = datagrams(SHAPES[3]);
    let expected = receive(&in_order);
    let mut mixed_up = in_order.clone();
    mixed_up.swap(10, 11);
    mixed_up.swap(20, 22);
    mixed_up.insert(31, in_order[30].clone());
    mixed_up.insert(23, in_order[22].clone());
    let delivered = receive(&mixed_up);
    assert_eq!(
        delivered.len(),
        mixed_up.len(),
        "each tells the engine that it came"
    );
    let (copies, decoded): (Vec<_>, _) = delivered.into_iter().partition(is_passed_over);
    assert_eq!(sequences(&copies), [22, 30]);
    assert_eq!(decoded, expected);
}

#[test]
fn a_gap_is_waited_for_and_then_passed_and_what_comes_later_still_is_not_decoded() {
    for (shape, waits) in [(SHAPES[0], 3), (SHAPES[1], 2), (SHAPES[2], 1)] {
        let mut datagrams = datagrams(shape);
        let lost = datagrams.remove(8);
        let (mut receiver, mut delivered) = (Receiver::default(), Vec::new());
        for (n, datagram) in datagrams[..14].iter().enumerate() {
            push(&mut receiver, datagram, &mut delivered);
            let waiting = if (8..8 + waits).contains(&n) {
                n - 7
            } else {
                0
            };
            assert_eq!(delivered.len() + waiting, n + 1, "after {n}");
        }
        push(&mut receiver, &lost, &mut delivered);
        assert_eq!(
            sequences(&delivered),
            [0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 8]
        );
        let passed_over = delivered.into_iter().filter(is_passed_over);
        assert_eq!(sequences(&passed_over.collect::<Vec<_>>()), [8]);
    }
}

#[test]
fn a_sender_that_begins_anew_is_heard_at_once() {
    let datagrams = datagrams(SHAPES[4]);
    let expected = receive(&datagrams[..5]);
    for jump in [48_001, -48_001i64] {
        let (mut receiver, mut delivered) = (Receiver::default(), Vec::new());
        for datagram in &datagrams[..20] {
            push(&mut receiver, datagram, &mut delivered);
        }
        // The one that waits for 20 is not forgotten.
        push(&mut receiver, &datagrams[21], &mut delivered);
        let end = BEGIN.wrapping_add(20 * 240 - 120);
        let begin = end.wrapping_add_signed(jump);
        for n in 0..5u32 {
            let mut datagram = datagrams[n as usize].clone();
            let timestamp = begin + u64::from(n) * 240;
            datagram[12..20].copy_from_slice(&timestamp.to_le_bytes());
            push(&mut receiver, &datagram, &mut delivered);
        }
        assert!(is_passed_over(&delivered[20]));
        assert_eq!(sequences(&delivered[21..]), [0, 1, 2, 3, 4]);
        // An encoder's first packets need nothing of what was decoded before, but for a little that fades.
        let samples = |one: &Delivered| one.samples.clone().expect("is decoded");
        let pairs = samples(&delivered[25])
            .into_iter()
            .zip(samples(&expected[4]));
        let most = pairs
            .map(|(one, other)| (one - other).abs())
            .fold(0.0, f32::max);
        assert!(most < 1e-3, "{most} by {jump}");
    }
}

#[test]
fn durations_and_channels_are_decoded_apart() {
    let (quick, slow) = (datagrams(SHAPES[3]), datagrams(SHAPES[5]));
    let (expected_quick, expected_slow) = (receive(&quick), receive(&slow));
    let (mut receiver, mut delivered) = (Receiver::default(), Vec::new());
    for (n, datagram) in quick.iter().enumerate() {
        push(&mut receiver, datagram, &mut delivered);
        if n % 4 == 0 {
            push(&mut receiver, &slow[n / 4], &mut delivered);
        }
    }
    let (slow, quick): (Vec<_>, Vec<_>) = (delivered.into_iter()).partition(|one| {
        one.samples
            .as_ref()
            .is_some_and(|samples| samples.len() == 960)
    });
    // The shorter ones come first, and are not played before their decoder has some past.
    let expected_quick = expected_quick.into_iter().enumerate();
    let expected_quick = expected_quick.map(|(n, one)| match n {
        1..40 => Delivered {
            samples: Some(Vec::new()),
            ..one
        },
        _ => one,
    });
    assert!(quick.into_iter().eq(expected_quick));
    assert_eq!(slow, expected_slow);

    // A decoder of two channels reads no packet of one: each has the channels that its header says.
    let (mono, stereo) = (datagrams(SHAPES[0]), datagrams(SHAPES[3]));
    let delivered = receive(&[&mono[..50], &stereo[50..]].concat());
    let lengths: Vec<_> = (delivered.iter())
        .map(|one| one.samples.as_ref().expect("is decoded").len())
        .collect();
    assert_eq!(lengths, [vec![120; 50], vec![240; 10]].concat());
}

#[test]
fn decoders_are_made_seldom_whatever_a_sender_does() {
    // One and two channels in turn: a decoder reads those of one kind, and the other has to wait for its own.
    let (mono, stereo) = (datagrams(SHAPES[0]), datagrams(SHAPES[3]));
    let in_turn: Vec<_> = (0..60)
        .map(|n| [&mono, &stereo][n % 2][n].clone())
        .collect();
    let channels: Vec<_> = (receive(&in_turn).iter())
        .map(|one| one.samples.as_ref().map(|samples| samples.len() / 120))
        .collect();
    let expected = (0..60).map(|n| {
        let reads = if n < 51 { 1 } else { 2 };
        (n % 2 + 1 == reads).then_some(reads)
    });
    assert_eq!(channels, expected.collect::<Vec<_>>());

    // Of one byte, a packet stands for a pause as long as the packet before it. At the beginning there is none: its frames are too few, and
    // the decoder is thrown away.
    let slow = datagrams(SHAPES[2]);
    let spoiled: Vec<_> = (0..120u32)
        .map(|n| {
            let packet = match n {
                0 => &[0xf0][..],
                _ => &slow[n as usize % slow.len()][AUDIO_HEADER_BYTES..],
            };
            datagram(1, 480, n, BEGIN + u64::from(n) * 480, packet)
        })
        .collect();
    let mut decoded = receive(&spoiled);
    decoded.retain(|one| one.samples.is_some());
    assert_eq!(
        sequences(&decoded),
        (PACKETS_PER_DECODER..120).collect::<Vec<_>>()
    );
}

#[test]
fn a_packet_that_is_not_what_its_header_says_is_refused_and_the_next_is_decoded() {
    let mut datagrams = datagrams(SHAPES[4]);
    // Of 10 ms; of a code that wants more bytes; and 120 ms of frames.
    datagrams[5][20] = 0xf4;
    datagrams[9].truncate(21);
    datagrams[9][20] = 0xef;
    datagrams[12] = datagram(2, 240, 12, BEGIN + 12 * 240 - 120, &[0xe7, 48, 1, 2, 3]);
    let delivered = receive(&datagrams);
    let refused: Vec<_> = (delivered.iter().filter(|one| one.samples.is_none()))
        .map(|one| one.sequence)
        .collect();
    assert_eq!(refused, [5, 9, 12]);
    assert_eq!(sequences(&delivered), (0..30).collect::<Vec<_>>());
}

#[test]
fn samples_pass_as_they_came() {
    let mut samples = vec![7; 84];
    AudioHeader {
        format: antiphon_core::SampleFormat::S16,
        rate: SampleRate::Hz48000,
        channels: 2,
        stream: 0,
        frames: 16,
        sequence: 1,
        timestamp: 2,
    }
    .write(&mut samples);
    for bytes in [&samples[..], &samples[..50], &[]] {
        let mut passed = 0;
        Receiver::default().push(bytes, |received| {
            assert_eq!(received, Received::Undecoded(bytes));
            passed += 1;
        });
        assert_eq!(passed, 1);
    }
}
