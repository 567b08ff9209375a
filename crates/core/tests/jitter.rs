//! The jitter buffer's rules, one test for each, driven through the player as hosts do.

mod support;

use antiphon_core::jitter::JitterBuffer;
use antiphon_core::sequence::Arrival;
use antiphon_core::wire::AUDIO_HEADER_BYTES;
use antiphon_core::{Command, Player, SampleRate, StreamStats, Target};
use support::{datagram, header, media_of, player, quantum, stats};

const ID: u32 = 1;

fn fixed(frames: u32) -> Player {
    let mut player = player(1, 1, 8_192);
    add(&mut player, Target::Fixed(frames));
    player
}

fn add(player: &mut Player, target: Target) {
    player.handle_command(Command::Add(ID)).expect("fits");
    player
        .handle_command(Command::Target(ID, target))
        .expect("is there");
}

fn send(player: &mut Player, sequence: u32, timestamp: u64, frames: usize) {
    player.handle_datagram(ID, &datagram(&header(sequence, timestamp, frames)));
}

/// The same for a buffer without a player.
fn insert(buffer: &mut JitterBuffer, sequence: u32, timestamp: u64, frames: usize) {
    let header = header(sequence, timestamp, frames);
    let samples = datagram(&header).split_off(AUDIO_HEADER_BYTES);
    buffer.insert(&header, &samples, Arrival::New);
}

/// `received = played + skipped + late + copied + held`.
fn assert_accounts(player: &Player, received_frames: u64) {
    let stats = stats(player, ID);
    let jitter = stats.jitter;
    assert_eq!(
        received_frames,
        jitter.played_frames
            + jitter.skipped_frames
            + jitter.late_frames
            + jitter.copied_frames
            + stats.held_frames,
        "{stats:?}"
    );
}

#[test]
fn the_playhead_is_the_media_time_that_plays_next() {
    let mut player = fixed(100);
    assert_eq!(stats(&player, ID).playhead, None);
    assert_eq!(stats(&player, ID).spread_frames, None);
    let mut heard = 0;
    for n in 0..200 {
        send(&mut player, n, 5_000 + 64 * u64::from(n), 64);
        let playhead = stats(&player, ID).playhead.expect("plays");
        for (index, sample) in quantum(&mut player, 48).into_iter().enumerate() {
            let Some(media) = media_of(sample) else {
                continue;
            };
            assert_eq!(media, playhead + index as u64);
            heard += 1;
        }
    }
    assert!(heard > 9_000, "{heard}");
}

#[test]
fn loss_after_a_restart_to_an_earlier_media_time_is_counted() {
    let mut player = fixed(64);
    for n in 0..100 {
        send(&mut player, n, 1_000_000 + 64 * u64::from(n), 64);
        quantum(&mut player, 64);
    }
    // A new sender: other sequence numbers, media time from 0 again.
    for n in 0..10 {
        send(&mut player, 900_000_000 + n, 64 * u64::from(n), 64);
        quantum(&mut player, 64);
    }
    let before = stats(&player, ID).jitter;
    assert_eq!(before.resyncs, 1);
    for _ in 0..10 {
        quantum(&mut player, 64);
    }
    let after = stats(&player, ID).jitter;
    assert_eq!(after.underruns, before.underruns + 1);
    assert!(after.concealed_frames >= before.concealed_frames + 9 * 64);
    // And a second without a packet ends the playing.
    for _ in 0..1_000 {
        quantum(&mut player, 64);
    }
    assert_eq!(stats(&player, ID).buffered_frames, None);
}

#[test]
fn a_sender_that_begins_anew_with_numbers_that_were_seen_is_heard_at_once() {
    let mut player = fixed(64);
    for n in 0..500 {
        send(&mut player, n, 64 * u64::from(n), 64);
        quantum(&mut player, 64);
    }
    for _ in 0..200 {
        quantum(&mut player, 64);
    }
    for n in 0..10 {
        send(&mut player, n, 64 * (700 + u64::from(n)), 64);
        quantum(&mut player, 64);
    }
    let stats = stats(&player, ID);
    assert!(
        stats.playhead.is_some_and(|playhead| playhead > 64 * 700),
        "{stats:?}"
    );
    assert_eq!(
        (stats.sequence.received, stats.sequence.duplicate),
        (510, 0)
    );
}

#[test]
fn a_sender_that_begins_anew_with_numbers_and_media_that_were_seen_is_heard() {
    let mut player = fixed(64);
    for n in 0..1_000 {
        send(&mut player, n, 64 * u64::from(n), 64);
        quantum(&mut player, 64);
    }
    for _ in 0..1_000 {
        quantum(&mut player, 64);
    }
    for n in 0..200 {
        send(&mut player, n, 64 * u64::from(n), 64);
        quantum(&mut player, 64);
    }
    let stats = stats(&player, ID);
    let playhead = stats.playhead.expect("plays");
    assert!((64 * 190..=64 * 200).contains(&playhead), "{stats:?}");
    assert_eq!(
        (stats.sequence.received, stats.sequence.duplicate),
        (1_185, 15)
    );
}

#[test]
fn copies_that_come_after_the_end_are_no_new_sender() {
    // The last second again, when nothing plays; or the first while something does.
    for (pause, from, last) in [(1_000, 250, 1_000), (300, 0, 64)] {
        let mut player = fixed(64);
        for n in 0..1_000 {
            send(&mut player, n, 64 * u64::from(n), 64);
            quantum(&mut player, 64);
        }
        for _ in 0..pause {
            quantum(&mut player, 64);
        }
        for n in from..last {
            send(&mut player, n, 64 * u64::from(n), 64);
            quantum(&mut player, 64);
        }
        let stats = stats(&player, ID);
        assert_eq!(stats.sequence.received, 1_000, "{stats:?}");
        assert_eq!(stats.sequence.duplicate, u64::from(last - from));
    }
}

#[test]
fn a_second_of_silence_is_no_reason_to_forget_what_was_needed() {
    let mut player = player(1, 1, 8_192);
    add(&mut player, Target::Auto);
    let first = stats(&player, ID).target_frames;
    // 40 ms at a time, which is twice what a new stream begins with.
    let hear = |player: &mut Player, bursts: std::ops::Range<u32>| {
        for burst in bursts {
            for n in 30 * burst..30 * (burst + 1) {
                send(player, n, 64 * u64::from(n), 64);
            }
            for _ in 0..30 {
                quantum(player, 64);
            }
        }
    };
    hear(&mut player, 0..200);
    let learnt = stats(&player, ID).target_frames;
    assert_eq!(stats(&player, ID).spread_frames, Some(learnt));
    assert!(learnt > first * 3 / 2, "{learnt}");
    for _ in 0..1_200 {
        quantum(&mut player, 64);
    }
    assert_eq!(stats(&player, ID).playhead, None);
    hear(&mut player, 240..241);
    let again = stats(&player, ID).target_frames;
    assert!(again.abs_diff(learnt) < 32, "{learnt}, then {again}");
    let before = stats(&player, ID).jitter;
    hear(&mut player, 241..260);
    let after = stats(&player, ID).jitter;
    assert_eq!(after.late_frames, before.late_frames);
    // A few that come alike after a longer pause say nothing of what is needed.
    for n in 7_840..7_900 {
        send(&mut player, n, 64 * (9_000 + u64::from(n)), 64);
        quantum(&mut player, 64);
    }
    for _ in 0..1_200 {
        quantum(&mut player, 64);
    }
    hear(&mut player, 300..301);
    let third = stats(&player, ID).target_frames;
    assert!(third.abs_diff(learnt) < 32, "{learnt}, then {third}");
}

#[test]
fn what_comes_later_for_good_is_prompt() {
    let mut player = player(1, 1, 8_192);
    add(&mut player, Target::Auto);
    let mut n = 0;
    let mut hear = |player: &mut Player, quanta: u32| {
        for _ in 0..quanta {
            send(player, n, 64 * u64::from(n), 64);
            quantum(player, 64);
            n += 1;
        }
        stats(player, ID).target_frames
    };
    let before = hear(&mut player, 20 * 750);
    assert!(before < 64, "{before}");
    // The sender's sound card loses 5 ms each second: media time stands still meanwhile.
    for _ in 0..30 {
        for _ in 0..4 {
            quantum(&mut player, 64);
        }
        hear(&mut player, 750);
    }
    let after = hear(&mut player, 0);
    // Not more than it loses in seven seconds, and one.
    assert!(after <= 8 * 4 * 64, "{after}");
    let after = hear(&mut player, 8 * 750);
    assert!(after < 64, "{after}");
}

/// A sender's sound card that has lost frames sends all that follows later by them, for good.
#[test]
fn a_fixed_target_follows_what_comes_later_for_good() {
    const QUANTUM: usize = 60;
    const PER_SECOND: u64 = 48_000 / QUANTUM as u64;
    let mut player = fixed(480);
    // A packet every other quantum, up to four quanta late; from the fifth second on five later.
    let due = |n: u64| 2 * n + n * 7 % 5 + if n >= 5 * PER_SECOND / 2 { 5 } else { 0 };
    let mut concealed = Vec::new();
    for at in 0..15 * PER_SECOND {
        for n in (at.saturating_sub(9) / 2..=at / 2).filter(|&n| due(n) == at) {
            send(&mut player, n as u32, 2 * QUANTUM as u64 * n, 2 * QUANTUM);
        }
        quantum(&mut player, QUANTUM);
        if at % PER_SECOND == 0 {
            concealed.push(stats(&player, ID).jitter.concealed_frames);
        }
    }
    assert!(concealed[7] > concealed[5], "{concealed:?}");
    assert_eq!(concealed[14], concealed[13], "{concealed:?}");
}

#[test]
fn a_buffer_that_was_reset_as_it_started_anew_is_as_new() {
    let new = || JitterBuffer::new(SampleRate::Hz48000, 1, 8_192);
    let mut used = new();
    insert(&mut used, 0, 0, 64);
    used.read(&mut [0.0; 64], 64, |_, _, _| {});
    insert(&mut used, 1, 1_000_000, 64);
    assert_eq!(used.counts().resyncs, 1);
    used.reset();
    let [used, fresh] = [used, new()].map(|mut buffer| {
        // The second packet is late: how wide the spread is depends on it.
        for n in 0..2_000 {
            if n != 1 {
                insert(&mut buffer, n, 64 * u64::from(n), 64);
            }
            if n == 5 {
                insert(&mut buffer, 1, 64, 64);
            }
            buffer.read(&mut [0.0; 64], 64, |_, _, _| {});
        }
        (
            buffer.counts(),
            buffer.playing_next(),
            buffer.spread_frames(),
        )
    });
    assert_eq!(used, fresh);
}

/// A steady stream with an automatic target, for `quanta` quanta of 16 frames. The first target is much more than it
/// needs, so that after the first review (1 s, 3,000 quanta) it skips.
fn steady(quanta: u64) -> Player {
    let mut player = player(1, 1, 8_192);
    add(&mut player, Target::Auto);
    for n in 0..quanta {
        send(&mut player, n as u32, 16 * n, 16);
        quantum(&mut player, 16);
        assert_accounts(&player, 16 * (n + 1));
    }
    player
}

#[test]
fn a_quantum_that_the_output_went_on_without_takes_its_time_and_what_is_spare() {
    // The second time from within a skip.
    for quanta in [2_000, 3_001] {
        let mut player = steady(quanta);
        let before = stats(&player, ID);
        let next = before.playhead.expect("plays");
        for n in quanta..quanta + 4 {
            send(&mut player, n as u32, 16 * n, 16);
            player.miss(16);
            assert_accounts(&player, 16 * (n + 1));
        }
        let after = stats(&player, ID);
        assert_eq!(player.rendered_frames(), 16 * quanta + 64);
        assert!(after.playhead >= Some(next + 64), "{next}: {after:?}");
        for n in quanta + 4..quanta + 4_000 {
            send(&mut player, n as u32, 16 * n, 16);
            quantum(&mut player, 16);
            assert_accounts(&player, 16 * (n + 1));
        }
        let jitter = stats(&player, ID).jitter;
        assert_eq!((jitter.late_frames, jitter.concealed_frames), (0, 0));
    }
}

#[test]
fn where_all_come_alike_a_missed_quantum_leaves_nothing_to_spare() {
    let mut jitter = JitterBuffer::new(SampleRate::Hz48000, 1, 8_192);
    for n in 0..12_000 {
        insert(&mut jitter, n, 16 * u64::from(n), 16);
        if n == 11_000 {
            let before = jitter.buffered_frames();
            assert!(
                before > Some(16),
                "as exactly as a spread is known: {before:?}"
            );
            jitter.miss(16);
        } else {
            jitter.read(&mut [0.0; 16], 16, |_, _, _| {});
        }
    }
    assert_eq!(jitter.buffered_frames(), Some(0));
    let counts = jitter.counts();
    assert_eq!((counts.late_frames, counts.concealed_frames), (0, 0));
}

#[test]
fn a_packet_that_came_sooner_is_no_reason_to_miss_more_than_was_missed() {
    let mut jitter = JitterBuffer::new(SampleRate::Hz48000, 1, 8_192);
    for n in 0..9_200 {
        if n != 9_001 {
            insert(&mut jitter, n, 64 * u64::from(n), 64);
        }
        if n == 9_000 {
            insert(&mut jitter, n + 1, 64 * u64::from(n + 1), 64);
        }
        if n == 9_010 {
            jitter.miss(64);
        } else {
            jitter.read(&mut [0.0; 64], 64, |_, _, _| {});
        }
    }
    let counts = jitter.counts();
    assert_eq!((counts.late_frames, counts.concealed_frames), (0, 0));
}

#[test]
fn a_delay_that_has_just_grown_is_not_taken_back_where_a_quantum_is_missed() {
    let mut jitter = JitterBuffer::new(SampleRate::Hz48000, 1, 8_192);
    for n in 0..9_040 {
        // All that comes from then on comes three quanta late.
        if n < 9_000 {
            insert(&mut jitter, n, 64 * u64::from(n), 64);
        } else if n >= 9_003 {
            insert(&mut jitter, n - 3, 64 * u64::from(n - 3), 64);
        }
        jitter.read(&mut [0.0; 64], 64, |_, _, _| {});
    }
    let grown = jitter.counts().concealed_frames;
    assert!((192..=512).contains(&grown), "{grown}");
    jitter.miss(64);
    for n in 9_041..9_080 {
        insert(&mut jitter, n - 4, 64 * u64::from(n - 4), 64);
        insert(&mut jitter, n - 3, 64 * u64::from(n - 3), 64);
        jitter.read(&mut [0.0; 64], 64, |_, _, _| {});
    }
    assert_eq!(jitter.counts().concealed_frames, grown);
}

#[test]
fn quanta_missed_again_and_again_cost_a_stream_that_is_resampled_nothing_else() {
    for ppm in [150, -150] {
        let mut player = player(1, 1, 8_192);
        add(&mut player, Target::Auto);
        let (mut sent, mut concealed, mut is_resampled) = (0u64, 0, false);
        for turn in 0..120 * 750u64 {
            let now = 64 * turn;
            let captured = now.wrapping_add_signed(now as i64 * ppm / 1_000_000);
            while (sent + 1) * 64 <= captured {
                let datagram = datagram(&header(sent as u32, 64 * sent, 64));
                player.handle_datagram_at(ID, &datagram, 1_000_000_000 + now * 1_000_000 / 48);
                sent += 1;
            }
            if turn > 60 * 750 && turn % 750 == 0 {
                player.miss(64);
            } else {
                player.keep_time(1_000_000_000 + now * 1_000_000 / 48);
                quantum(&mut player, 64);
            }
            if turn == 60 * 750 {
                let stats = stats(&player, ID);
                (concealed, is_resampled) = (stats.jitter.concealed_frames, stats.is_resampled);
            }
        }
        assert!(is_resampled, "{ppm}");
        let after = stats(&player, ID).jitter.concealed_frames - concealed;
        assert!(after <= 128, "{ppm}: {after}");
    }
}

#[test]
fn a_fixed_target_stays_where_the_output_goes_on_without_a_quantum() {
    let mut player = fixed(500);
    for n in 0..4_000 {
        send(&mut player, n as u32, 16 * n, 16);
        quantum(&mut player, 16);
    }
    let before = stats(&player, ID).buffered_frames;
    player.miss(32);
    for n in 4_000..4_100 {
        send(&mut player, n as u32, 16 * n, 16);
        if n >= 4_002 {
            quantum(&mut player, 16);
        }
    }
    assert_eq!(stats(&player, ID).buffered_frames, before);
    assert_eq!(stats(&player, ID).jitter.concealed_frames, 0);
}

#[test]
fn another_target_is_reached_from_within_a_skip() {
    let mut cut = 0;
    for quanta in 2_990..3_020 {
        let mut player = steady(quanta);
        let before = stats(&player, ID);
        player
            .handle_command(Command::Target(ID, Target::Fixed(1_000)))
            .expect("is there");
        for n in quanta..quanta + 300 {
            send(&mut player, n as u32, 16 * n, 16);
            quantum(&mut player, 16);
            assert_accounts(&player, 16 * (n + 1));
        }
        let after = stats(&player, ID);
        let buffered = after.buffered_frames.expect("plays");
        assert!((950..1_050).contains(&buffered), "{buffered}");
        assert_eq!(after.jitter.resyncs, 0);
        cut += u32::from(before.jitter.skipped_frames < after.jitter.skipped_frames);
    }
    assert!((1..30).contains(&cut), "the skip was not among them: {cut}");
}

#[test]
fn a_skip_fades_from_the_frames_it_leaves_to_those_it_comes_to() {
    let mut player = player(1, 1, 8_192);
    add(&mut player, Target::Auto);
    let mut heard = Vec::new();
    for n in 0..4_000 {
        send(&mut player, n, 16 * u64::from(n), 16);
        heard.extend(quantum(&mut player, 16));
    }
    let skipped = stats(&player, ID).jitter.skipped_frames;
    assert!(skipped > 500, "{skipped}");
    // The tags rise by one each frame, so the fade is known: frame n of N is `media + distance × (n + ½) / N`.
    let number = |n: usize| f64::from(heard[n]) * 8_388_608.0;
    let steps_by_one = |n: usize| number(n) - number(n - 1) == 1.0;
    let first = heard.iter().position(|&s| s != 0.0).expect("plays");
    let begin = (first + 1..).find(|&n| !steps_by_one(n)).expect("skips");
    let end = (begin..).find(|&n| steps_by_one(n)).expect("ends") - 1;
    let fade = end - begin;
    assert!((16..=128).contains(&fade), "{fade}");
    for n in 0..fade {
        let old = number(begin - 1) + 1.0 + n as f64;
        let expected = old + skipped as f64 * (n as f64 + 0.5) / fade as f64;
        let found = number(begin + n);
        assert!((found - expected).abs() < 0.02, "{n}: {found} {expected}");
    }
    for n in end..heard.len() {
        let passed = (n - begin + 1) as f64;
        assert_eq!(number(n), number(begin - 1) + passed + skipped as f64);
    }
}

#[test]
fn a_packet_half_the_clock_away_starts_anew() {
    // Lateness of exactly i64::MIN: neither early nor late in two's complement.
    let mut player = fixed(0);
    send(&mut player, 0, 0, 16);
    send(&mut player, 1, 1 << 63, 16);
    assert_eq!(stats(&player, ID).jitter.resyncs, 1);
    assert_accounts(&player, 32);
    let out = quantum(&mut player, 16);
    assert_eq!(media_of(out[0]), Some((1 << 63) % support::TAGS));
}

#[test]
fn a_target_beyond_the_buffer_is_cut_to_it() {
    let mut player = fixed(u32::MAX);
    assert_eq!(stats(&player, ID).target_frames, 3_072);
    let mut heard = Vec::new();
    for n in 0..150 {
        send(&mut player, n, 64 * u64::from(n), 64);
        heard.extend(quantum(&mut player, 64));
    }
    let first = heard.iter().position(|&sample| sample != 0.0);
    assert_eq!(first, Some(3_072));
    assert!((0..4_000).all(|n| media_of(heard[3_072 + n]) == Some(n as u64)));
}

#[test]
fn growing_never_makes_frames_to_come_share_a_slot() {
    // A small buffer, full ahead; then a packet so late that the delay wants to grow by more than there is room for.
    let mut player = player(1, 1, 2_048);
    add(&mut player, Target::Auto);
    let mut heard = Vec::new();
    for n in 0..200u32 {
        if n != 5 {
            send(&mut player, n, 64 * u64::from(n), 64);
        }
        if n == 40 {
            send(&mut player, 5, 64 * 5, 64);
        }
        heard.extend(quantum(&mut player, 64));
    }
    let mut last = None;
    for (n, media) in heard.into_iter().map(media_of).enumerate() {
        assert!(
            media.is_none() || media > last,
            "{media:?} after {last:?}, frame {n}"
        );
        last = media.or(last);
    }
    assert!(last > Some(64 * 170));
    // Without the limit it plays frames to come for old ones, and then starts anew.
    let jitter = stats(&player, ID).jitter;
    assert_eq!((jitter.resyncs, jitter.skipped_frames), (0, 0));
}

#[test]
fn frames_sent_twice_under_two_sequence_numbers_are_played_once_and_counted() {
    let mut player = fixed(128);
    let mut received = 0;
    let mut heard = Vec::new();
    for n in 0..50 {
        send(&mut player, 2 * n, 64 * u64::from(n), 64);
        send(&mut player, 2 * n + 1, 64 * u64::from(n) + 20, 64);
        received += 128;
        heard.extend(quantum(&mut player, 64));
        assert_accounts(&player, received);
    }
    assert!((0..64 * 40).all(|n| media_of(heard[128 + n]) == Some(n as u64)));
}

#[test]
fn hostile_media_times_never_panic_and_stay_accounted_for() {
    let mut random = support::Random(7);
    let edges = [0, 1, 1 << 31, 1 << 32, 1 << 62, 1 << 63, u64::MAX - 100];
    for target in [Target::Auto, Target::Fixed(0), Target::Fixed(u32::MAX)] {
        let mut player = player(1, 1, 2_048);
        add(&mut player, target);
        let mut received = 0;
        for sequence in 0..20_000 {
            let edge = edges[random.below(edges.len() as u64) as usize];
            let media = edge.wrapping_add(random.below(5_000)).wrapping_sub(2_500);
            let frames = 1 + random.below(200) as usize;
            send(&mut player, sequence, media, frames);
            received += frames as u64;
            if random.below(3) == 0 {
                quantum(&mut player, 1 + random.below(1_024) as usize);
            }
            assert_accounts(&player, received);
        }
    }
}

#[test]
fn a_straggler_does_not_move_the_rest() {
    for target in [Target::Auto, Target::Fixed(128)] {
        let mut player = player(1, 1, 32_768);
        add(&mut player, target);
        let mut heard = Vec::new();
        for n in 0..6_000u32 {
            // One packet takes 0.3 s more than the others: longer than any stall, but newer ones are there.
            let sequence = match n {
                4_000..4_225 => n + 1,
                4_225 => 4_000,
                _ => n,
            };
            send(&mut player, sequence, 64 * u64::from(sequence), 64);
            heard.extend(quantum(&mut player, 64));
        }
        let jitter = stats(&player, ID).jitter;
        assert_eq!((jitter.late_packets, jitter.late_frames), (1, 64));
        assert_eq!((jitter.concealed_frames, jitter.resyncs), (64, 0));
        let delay = |n: usize| media_of(heard[n]).map(|media| n as u64 - media);
        assert_eq!(delay(64 * 3_990), delay(64 * 5_990));
    }
}

#[test]
fn what_comes_after_later_frames_were_played_stays_silent_even_when_the_delay_grows() {
    let mut player = player(1, 1, 8_192);
    add(&mut player, Target::Auto);
    let mut heard = Vec::new();
    for n in 0..6_000u32 {
        // After a while, every tenth packet takes 20 packets more: less than a stall, and often enough to grow for.
        let sequence = match n {
            4_000.. if n % 10 == 0 => n - 200,
            4_000.. if n % 10 == 5 => n - 20,
            _ => n,
        };
        if sequence >= 4_000 || n < 4_000 {
            send(&mut player, sequence, 16 * u64::from(sequence), 16);
        }
        heard.extend(quantum(&mut player, 16));
    }
    let jitter = stats(&player, ID).jitter;
    assert!(jitter.late_frames > 0);
    let mut last = None;
    for pair in heard.windows(2) {
        let (before, now) = (media_of(pair[0]), media_of(pair[1]));
        if before.is_some() && now == before.map(|media| media + 1) {
            assert!(now > last, "{now:?} after {last:?}");
            last = now;
        }
    }
}

#[test]
fn silence_is_counted_even_if_the_delay_grows_to_before_the_new_start() {
    let mut player = player(1, 1, 8_192);
    add(&mut player, Target::Auto);
    let mut heard = Vec::new();
    for n in 0..8_000u32 {
        // A short delay; a pause of the sender; a packet that ends it; then those that it overtook.
        let next = match n {
            0..6_000 => Some(n),
            6_900 => Some(6_060),
            6_901.. => Some(n - 901),
            _ => None,
        };
        if let Some(next) = next {
            send(&mut player, next, 16 * u64::from(next), 16);
        }
        heard.extend(quantum(&mut player, 16));
    }
    let first = heard.iter().position(|&sample| sample != 0.0);
    let first = first.expect("it plays");
    let silent = heard[first..].iter().filter(|&&s| s == 0.0).count();
    let jitter = stats(&player, ID).jitter;
    assert_eq!(
        (jitter.resyncs, jitter.concealed_frames),
        (1, silent as u64)
    );
}

#[test]
fn an_output_that_stood_still_skips_what_is_too_old_and_no_more() {
    let mut player = fixed(1_024);
    let mut sequence = 0;
    let mut arrive = |player: &mut Player, packets: u32| {
        for _ in 0..packets {
            send(player, sequence, 64 * u64::from(sequence), 64);
            sequence += 1;
        }
    };
    for _ in 0..100 {
        arrive(&mut player, 1);
        quantum(&mut player, 64);
    }
    let before = stats(&player, ID).jitter;
    // Twice what the buffer holds, and not a quantum rendered.
    arrive(&mut player, 128);
    for _ in 0..200 {
        quantum(&mut player, 64);
        arrive(&mut player, 1);
    }
    let after = stats(&player, ID).jitter;
    assert_eq!(after.concealed_frames, before.concealed_frames);
    assert!(
        stats(&player, ID).held_frames >= 960,
        "{:?}",
        stats(&player, ID)
    );
    assert_accounts(&player, 64 * u64::from(100 + 128 + 200u32));
}

/// Once a minute everything is held up for 100 ms, 0.17 % of the time: what is remembered for 14 s is forgotten each time.
#[test]
fn what_comes_late_again_is_waited_for_until_the_budget_has_paid_for_it() {
    const PER_MINUTE: u32 = 22_500;
    const HELD: u32 = 38;
    // That none is as long as the first once was.
    const FIRST_HELD: u32 = 44;
    let mut player = player(1, 1, 16_384);
    add(&mut player, Target::Auto);
    let mut at_minute = Vec::new();
    for minute in 0..10 {
        let start = minute * PER_MINUTE;
        let held = match minute {
            0 => 0,
            1 => FIRST_HELD + 1,
            _ => HELD + 1,
        };
        hear_with_a_pause(&mut player, start..start + PER_MINUTE, start..start + held);
        at_minute.push(stats(&player, ID));
    }
    let concealed: Vec<u64> = at_minute
        .iter()
        .map(|s| s.jitter.concealed_frames)
        .collect();
    let share = concealed[9] as f64 / f64::from(10 * PER_MINUTE * 128);
    assert!(share <= 0.001, "{concealed:?}");
    // The first time nothing is known, the second time it is: from then on it is waited for, but for what the budget allows.
    assert!(
        concealed[1] > 0 && concealed[2] > concealed[1],
        "{concealed:?}"
    );
    assert!(concealed[3] - concealed[2] < 480, "{concealed:?}");
    // Four minutes without a longer one are no reason to forget it.
    assert!(concealed[6] - concealed[5] < 1_440, "{concealed:?}");
    // And once that is paid, no more.
    let is_short = |n: usize| {
        at_minute[n]
            .spread_frames
            .is_some_and(|frames| frames < 480)
    };
    assert!(
        is_short(1) && !is_short(2) && (4..10).any(is_short),
        "{concealed:?}"
    );
}

/// Packets of 128 frames, of which those `held` come all at once, after the last of them.
fn hear_with_a_pause(
    player: &mut Player,
    packets: std::ops::Range<u32>,
    held: std::ops::Range<u32>,
) {
    for n in packets {
        let come = if n + 1 == held.end {
            held.clone()
        } else if held.contains(&n) {
            n..n
        } else {
            n..n + 1
        };
        for sequence in come {
            send(player, sequence, 128 * u64::from(sequence), 128);
        }
        quantum(player, 128);
    }
}

#[test]
fn a_moment_is_paid_with_what_the_budget_has_saved() {
    const SECOND: u32 = 375;
    // 16 ms.
    const HELD: u32 = 6;
    let is_longer_after = |seconds: u32, pauses: u32| {
        let mut player = player(1, 1, 16_384);
        add(&mut player, Target::Auto);
        let start = seconds * SECOND;
        hear_with_a_pause(&mut player, 0..start, 0..0);
        let before = stats(&player, ID);
        for pause in 0..pauses {
            let from = start + pause * SECOND;
            hear_with_a_pause(&mut player, from..from + SECOND, from..from + HELD);
        }
        let after = stats(&player, ID);
        let concealed = after.jitter.concealed_frames - before.jitter.concealed_frames;
        assert!(concealed > 256, "{after:?}");
        after.target_frames > before.target_frames + 256
    };
    // Who has only just come has saved nothing, and who pauses again and again has spent it.
    assert!(is_longer_after(5, 1));
    assert!(!is_longer_after(60, 1));
    assert!(is_longer_after(60, 6));
}

#[test]
fn what_came_late_once_is_forgotten_though_less_came_late_again_and_again() {
    const SECOND: u32 = 375;
    let mut player = player(1, 1, 16_384);
    add(&mut player, Target::Auto);
    let at = |second: u32| second * SECOND;
    // For 6 s of every 24 something comes 8 ms late each second, and is forgotten afterwards; and then once 80 ms.
    for second in 0..144 {
        let pause = if second % 24 < 6 { 3 } else { 0 };
        let from = at(second);
        hear_with_a_pause(&mut player, from..at(second + 1), from..from + pause);
    }
    hear_with_a_pause(&mut player, at(144)..at(145), at(144)..at(144) + 30);
    let then = stats(&player, ID).target_frames;
    assert!(then > 1_920, "{then}");
    hear_with_a_pause(&mut player, at(145)..at(160), 0..0);
    let later = stats(&player, ID).target_frames;
    assert!(later < 480, "{later}");
}

/// What a stream has come to after 20 s whose first packet has media time `begin`, where the output, in quanta of 120 frames, stood still for `slip` frames after 8 s.
fn after_slip(target: Target, slip: u64, begin: u64) -> StreamStats {
    let mut player = player(1, 1, 32_768);
    add(&mut player, target);
    let (mut sent, mut now) = (begin / 120, 0);
    for turn in 0..20 * 400 {
        if turn == 8 * 400 {
            now += slip;
        }
        while (sent + 1) * 120 <= now {
            player.handle_datagram(ID, &datagram(&header(sent as u32, sent * 120, 120)));
            sent += 1;
        }
        player.keep_time(1_000_000_000 + now * 1_000_000 / 48);
        quantum(&mut player, 120);
        now += 120;
    }
    stats(&player, ID)
}

#[test]
fn a_fixed_delay_does_not_grow_for_a_slip_before_the_stream_began() {
    for slip in [240, 960, 2_160] {
        for after in [1_200, 2_400, 4_800] {
            let stats = after_slip(Target::Fixed(240), slip, 8 * 48_000 + slip + after);
            assert_eq!(stats.jitter.concealed_frames, 0, "{slip}, {after}");
            let buffered = stats.buffered_frames.expect("plays");
            assert!(buffered.abs_diff(240) < 64, "{slip}, {after}: {buffered}");
        }
    }
}

#[test]
fn a_fixed_delay_does_not_grow_for_the_slips_of_the_output() {
    for slip in [120, 240, 960, 2_160] {
        let stats = after_slip(Target::Fixed(240), slip, 0);
        assert_eq!(stats.jitter.concealed_frames, 0, "{slip}");
        assert_eq!(stats.jitter.skipped_frames.abs_diff(slip) / 48, 0, "{slip}");
        let buffered = stats.buffered_frames.expect("plays");
        assert!(buffered.abs_diff(240) < 64, "{slip}: {buffered}");
    }
}

#[test]
fn after_a_standstill_a_fixed_delay_starts_anew_without_a_second_gap() {
    for target in [Target::Auto, Target::Fixed(240)] {
        let stats = after_slip(target, 360 * 48, 0);
        let concealed = stats.jitter.concealed_frames;
        assert!(concealed < 1_000, "{target:?}: {concealed}");
    }
}
