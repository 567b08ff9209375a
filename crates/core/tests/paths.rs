//! One stream by two paths, either of which loses packets, goes away and returns.

mod support;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use antiphon_core::wire::AudioHeader;
use antiphon_core::{Command, Player};
use support::{Random, datagram, header, media_of, player, quantum, stats};

const ID: u32 = 1;
const PACKET: u64 = 128;
const RATE_HZ: u64 = 48_000;

/// A path, in frames.
struct Path {
    stream: u16,
    delay: u64,
    jitter: u64,
    /// One packet in so many is lost.
    lost_of: u64,
    /// Carries nothing between these times, s.
    away_s: std::ops::Range<u64>,
    /// Of what is sent meanwhile, so many of the first frames come when it is back.
    kept: u64,
    sent: u32,
}

/// What comes of a minute.
#[derive(Debug, Default)]
struct Heard {
    samples: Vec<f32>,
    /// Of packets that neither path brought.
    lost_frames: u64,
    /// Greatest drift that was claimed for certain, ppm.
    false_drift_ppm: f32,
    was_resampled: bool,
}

fn play(player: &mut Player, paths: &mut [Path], seconds: u64, seed: u64) -> Heard {
    let mut random = Random(seed);
    let mut heard = Heard::default();
    let mut network = BinaryHeap::new();
    for n in 0..seconds * RATE_HZ / PACKET {
        let now = n * PACKET;
        let mut is_lost = true;
        for path in &mut *paths {
            let is_away = path.away_s.contains(&(now / RATE_HZ));
            let sequence = path.sent;
            path.sent += 1;
            if random.below(path.lost_of) == 0 {
                continue;
            }
            if is_away {
                if now < path.away_s.start * RATE_HZ + path.kept {
                    // In twos and threes, as acknowledgements let them go.
                    let back = path.away_s.end * RATE_HZ + path.delay;
                    let arrival = back + u64::from(sequence % 16) / 3 * RATE_HZ / 100;
                    network.push(Reverse((arrival, path.stream, sequence, now)));
                }
                continue;
            }
            is_lost = false;
            let arrival = now + path.delay + random.below(path.jitter + 1);
            network.push(Reverse((arrival, path.stream, sequence, now)));
        }
        heard.lost_frames += if is_lost { PACKET } else { 0 };
        while let Some(&Reverse((arrival, stream, sequence, media))) = network.peek()
            && arrival <= now
        {
            network.pop();
            let header = AudioHeader {
                stream,
                ..header(sequence, media, PACKET as usize)
            };
            player.handle_datagram(ID, &datagram(&header));
        }
        heard.samples.extend(quantum(player, PACKET as usize));
        let known = stats(player, ID);
        heard.was_resampled |= known.is_resampled;
        if let Some(drift) = known.drift
            && drift.ppm.abs() > drift.error_ppm
        {
            heard.false_drift_ppm = heard.false_drift_ppm.max(drift.ppm.abs());
        }
    }
    heard
}

fn both() -> [Path; 2] {
    let path = |stream, delay_ms| Path {
        stream,
        delay: delay_ms * RATE_HZ / 1_000,
        jitter: RATE_HZ / 1_000,
        lost_of: 100,
        away_s: 0..0,
        kept: 0,
        sent: 0,
    };
    [path(0, 5), path(9, 12)]
}

fn added() -> Player {
    let mut player = player(1, 1, 16_384);
    player.handle_command(Command::Add(ID)).expect("fits");
    player
}

fn assert_order(samples: &[f32]) {
    let mut last = None;
    for pair in samples.windows(2) {
        let (before, now) = (media_of(pair[0]), media_of(pair[1]));
        if before.is_some() && now == before.map(|media| media + 1) {
            assert!(now > last, "{now:?} after {last:?}");
            last = now;
        }
    }
}

#[test]
fn what_one_path_loses_the_other_brings() {
    for seed in 1..5 {
        let mut player = added();
        let heard = play(&mut player, &mut both(), 60, seed);
        let known = stats(&player, ID);
        assert_order(&heard.samples);
        let lost = known.paths.map(|path| path.lost);
        assert!(
            lost.iter().all(|lost| (150..300).contains(lost)),
            "{lost:?}"
        );
        assert_eq!(known.sequence.lost, lost[0] + lost[1]);
        assert_eq!((known.jitter.late_frames, known.jitter.resyncs), (0, 0));
        // The last packet that both lost may still be to come.
        let concealed = known.jitter.concealed_frames;
        assert!(
            concealed.abs_diff(heard.lost_frames) <= PACKET,
            "{concealed}"
        );
        assert!(!heard.was_resampled, "{}", heard.false_drift_ppm);
        assert_eq!(heard.false_drift_ppm, 0.0);
    }
}

#[test]
fn a_path_goes_away_and_returns_without_a_gap_or_a_false_drift() {
    for away in 0..2 {
        for seed in 1..5 {
            let mut player = added();
            let mut paths = both();
            paths[away].away_s = 20..45;
            let heard = play(&mut player, &mut paths, 80, seed);
            let known = stats(&player, ID);
            println!(
                "{away} {seed}: {} lost by both, {known:?}",
                heard.lost_frames
            );
            assert_order(&heard.samples);
            assert_eq!(known.jitter.resyncs, 0);
            // Who was long alone has forgotten how late the other is, and learns it at the cost of the budget at most.
            let late = known.jitter.late_frames;
            assert!(late * 1_000 < heard.samples.len() as u64, "{late}");
            let concealed = known.jitter.concealed_frames;
            let most = heard.lost_frames + late + PACKET;
            assert!(concealed <= most + 8 * PACKET, "{concealed} of {most}");
            assert!(!heard.was_resampled, "{}", heard.false_drift_ppm);
        }
    }
}

#[test]
fn a_path_that_was_away_for_more_datagrams_than_a_jump_starts_nothing_anew() {
    for away in 0..2 {
        let mut player = added();
        let mut paths = both();
        paths[away].away_s = 20..200;
        let heard = play(&mut player, &mut paths, 215, 1);
        let known = stats(&player, ID);
        // Tags repeat; from here on they do not.
        assert_order(&heard.samples[190 * RATE_HZ as usize..]);
        assert_eq!(known.jitter.resyncs, 0, "{known:?}");
        // Of the jump's first datagram nobody can tell.
        assert!((1..4).contains(&known.malformed_packets), "{known:?}");
        assert!(!heard.was_resampled, "{}", heard.false_drift_ppm);
        let (late, concealed) = (known.jitter.late_frames, known.jitter.concealed_frames);
        let most = heard.lost_frames + late + 9 * PACKET;
        assert!(concealed <= most, "{concealed} of {most}");
    }
}

#[test]
fn what_a_path_held_back_for_seconds_does_not_disturb_what_the_other_brings() {
    for away in 0..2 {
        for seconds in [1, 2, 4] {
            let mut player = added();
            let mut paths = both();
            (paths[away].away_s, paths[away].kept) = (10..10 + seconds, RATE_HZ / 10);
            let heard = play(&mut player, &mut paths, 20, 1);
            let jitter = stats(&player, ID).jitter;
            assert_order(&heard.samples);
            assert_eq!(jitter.resyncs, 0, "{away} {seconds}: {jitter:?}");
            let most = heard.lost_frames + 10 * PACKET;
            let concealed = jitter.concealed_frames;
            assert!(concealed <= most, "{away} {seconds}: {concealed} of {most}");
        }
    }
}

#[test]
fn a_path_that_begins_with_old_sound_starts_nothing_anew_and_brings_copies() {
    for (first, second) in [(0, 9), (9, 0)] {
        let mut player = added();
        let mut samples = Vec::new();
        for n in 0..1_100u64 {
            // 1.2 s behind, from the start.
            let behind = (n >= 1_000).then(|| (second, n - 450));
            for (stream, n) in [(first, n)].into_iter().chain(behind) {
                let header = AudioHeader {
                    stream,
                    ..header(n as u32, n * PACKET, PACKET as usize)
                };
                player.handle_datagram(ID, &datagram(&header));
            }
            samples.extend(quantum(&mut player, PACKET as usize));
        }
        assert_order(&samples);
        let jitter = stats(&player, ID).jitter;
        assert_eq!((jitter.resyncs, jitter.late_packets), (0, 0), "{jitter:?}");
        assert_eq!(jitter.copied_frames, 100 * PACKET, "{jitter:?}");
    }
}

#[test]
fn a_path_that_begins_after_the_other_has_ended_is_heard_whatever_its_clock() {
    let mut player = added();
    let mut heard = 0;
    for n in 0..2_000u64 {
        let (stream, media) = match n {
            ..1_000 => (0, n * PACKET),
            // A second later, and set back by three.
            _ => (9, (n - 1_000) * PACKET),
        };
        if !(1_000..1_375).contains(&n) {
            let header = AudioHeader {
                stream,
                ..header(n as u32, media, PACKET as usize)
            };
            player.handle_datagram(ID, &datagram(&header));
        }
        let samples = quantum(&mut player, PACKET as usize);
        heard = samples.last().and_then(|&it| media_of(it)).unwrap_or(heard);
    }
    assert!((990 * PACKET..1_000 * PACKET).contains(&heard), "{heard}");
    assert!(stats(&player, ID).jitter.played_frames > 1_600 * PACKET);
}

#[test]
fn a_sender_that_sets_its_clock_back_is_followed_by_both_paths() {
    let mut player = added();
    let mut last = 0;
    for n in 0..2_000u64 {
        let now = n * PACKET;
        // By 3 s.
        let media = if n < 1_500 { now } else { now - 3 * RATE_HZ };
        for stream in [0, 9] {
            let header = AudioHeader {
                stream,
                ..header(n as u32, media, PACKET as usize)
            };
            player.handle_datagram(ID, &datagram(&header));
        }
        let heard = quantum(&mut player, PACKET as usize);
        last = heard.last().and_then(|&it| media_of(it)).unwrap_or(last);
    }
    let now = 2_000 * PACKET - 3 * RATE_HZ;
    assert!((1..2_000).contains(&(now - last)), "{last} at {now}");
    let jitter = stats(&player, ID).jitter;
    assert_eq!(jitter.resyncs, 1, "{jitter:?}");
}

fn send(player: &mut Player, stream: u16, sequence: u64, n: u64) {
    let header = AudioHeader {
        stream,
        ..header(sequence as u32, n * PACKET, PACKET as usize)
    };
    player.handle_datagram(ID, &datagram(&header));
}

#[test]
fn of_a_sender_that_starts_anew_by_one_path_the_other_makes_nothing_old() {
    for (first, second) in [(0, 9), (9, 0)] {
        let mut player = added();
        for n in 0..2_000 {
            send(&mut player, first, n, n);
            send(&mut player, second, n, n);
            quantum(&mut player, PACKET as usize);
        }
        // The other path brings nothing more, and the sender is silent for a second meanwhile.
        for n in 0..1_000 {
            if !(100..550).contains(&n) {
                send(&mut player, first, 900_000_000 + n, n);
            }
            quantum(&mut player, PACKET as usize);
        }
        let known = stats(&player, ID);
        let behind = known.playhead.map(|playhead| 1_000 * PACKET - playhead);
        assert!(behind.is_some_and(|behind| behind < 2_000), "{known:?}");
        assert_eq!(known.jitter.resyncs, 1, "{known:?}");
    }
}

#[test]
fn what_was_sent_before_the_sender_started_anew_is_passed_over_by_the_slower_path() {
    for media in [0, 5_000] {
        let mut player = added();
        for n in 0..2_000 {
            send(&mut player, 0, n, 1_000 + n);
            if n < 1_990 {
                send(&mut player, 9, n, 1_000 + n);
            }
            quantum(&mut player, PACKET as usize);
        }
        let mut heard = 0;
        for n in 0..1_000 {
            send(&mut player, 0, 900_000_000 + n, media + n);
            match n {
                // The last one overtook another.
                ..10 => send(&mut player, 9, (1_990 + n) ^ 1, 1_000 + ((1_990 + n) ^ 1)),
                _ => send(&mut player, 9, 700_000_000 + n, media + n - 10),
            }
            let samples = quantum(&mut player, PACKET as usize);
            heard = samples.last().and_then(|&it| media_of(it)).unwrap_or(heard);
        }
        let behind = (media + 1_000) * PACKET - heard;
        assert!(behind < 2_000, "{behind}");
        let known = stats(&player, ID);
        assert_eq!(known.jitter.resyncs, 1, "{known:?}");
        // What was passed over, and what waited as the sender started anew.
        let skipped = known.jitter.skipped_frames;
        assert!((10 * PACKET..18 * PACKET).contains(&skipped), "{known:?}");
        assert_eq!(known.malformed_packets, 2);
    }
}

#[test]
fn a_sender_that_starts_anew_twice_is_heard_by_the_path_that_told_of_it_once() {
    let mut player = added();
    for n in 0..2_000 {
        send(&mut player, 0, n, n);
        send(&mut player, 9, n, n);
        quantum(&mut player, PACKET as usize);
    }
    for n in 0..2_000 {
        send(&mut player, 0, 900_000_000 + n, n);
        quantum(&mut player, PACKET as usize);
    }
    // Silent for a second meanwhile.
    for n in 0..1_000 {
        if !(100..550).contains(&n) {
            send(&mut player, 9, 700_000_000 + n, n);
        }
        quantum(&mut player, PACKET as usize);
    }
    let known = stats(&player, ID);
    let behind = known.playhead.map(|playhead| 1_000 * PACKET - playhead);
    assert!(behind.is_some_and(|behind| behind < 2_000), "{known:?}");
}

#[test]
fn a_path_is_heard_again_whatever_the_other_told_before_it_fell_silent() {
    for (first, second) in [(0, 9), (9, 0)] {
        // Hours ahead; and by an honest sender, whose sound started anew.
        for told in [1 << 40, 200_000] {
            let mut player = added();
            send(&mut player, first, 0, 0);
            quantum(&mut player, PACKET as usize);
            send(&mut player, second, 0, told);
            for n in 1..1_000 {
                send(&mut player, first, n, n);
                quantum(&mut player, PACKET as usize);
            }
            let known = stats(&player, ID);
            let behind = known.playhead.map(|playhead| 1_000 * PACKET - playhead);
            assert!(behind.is_some_and(|behind| behind < 2_000), "{known:?}");
        }
    }
}

#[test]
fn what_a_path_held_back_is_not_heard_after_what_the_other_brought_though_nothing_plays() {
    for (held, other) in [(0, 9), (9, 0)] {
        let mut player = added();
        let mut samples = Vec::new();
        for n in 0..8_000 {
            match n {
                ..3_000 => {
                    send(&mut player, held, n, n);
                    send(&mut player, other, n, n);
                }
                // A tenth of a second of it is under way for long.
                3_000..4_500 => send(&mut player, other, n, n),
                // Then nothing comes, and nothing plays any more, until that arrives, in two bursts.
                5_500..5_520 => send(&mut player, held, n - 2_500, n - 2_500),
                5_820..5_840 => send(&mut player, held, n - 2_800, n - 2_800),
                4_500..5_840 => {}
                _ => send(&mut player, other, n - 1_340, n),
            }
            samples.extend(quantum(&mut player, PACKET as usize));
        }
        assert_order(&samples);
        let known = stats(&player, ID);
        let behind = known.playhead.map(|playhead| 8_000 * PACKET - playhead);
        assert!(behind.is_some_and(|behind| behind < 2_000), "{known:?}");
    }
}
