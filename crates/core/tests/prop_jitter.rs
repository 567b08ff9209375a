//! The player against a reference model, and laws that hold whatever happens.

mod support;

use std::collections::BTreeSet;

use antiphon_core::sequence::SequenceCounts;
use antiphon_core::wire::AudioHeader;
use antiphon_core::{Command, Player, Target};
use proptest::prelude::*;
use support::sim::{CHROMIUM, Conditions, ID, MS, Sim};
use support::{datagram, header, player, quantum, stats, tag};

/// One packet on its way.
#[derive(Clone, Copy, Debug)]
struct Packet {
    /// Counted from the sender's first.
    index: u64,
    /// Counted from the sender's first frame.
    media: u64,
    frames: u64,
    /// Frames rendered when it arrives.
    arrival: u64,
}

/// A stream: its packets in the order of their arrival, and the quanta in which it is rendered.
#[derive(Clone, Debug)]
struct Plan {
    first_sequence: u32,
    first_timestamp: u64,
    target: u32,
    arrivals: Vec<Packet>,
    quanta: Vec<usize>,
}

fn plans(jitter_frames: std::ops::Range<u64>, trouble: bool) -> impl Strategy<Value = Plan> {
    // One float a frame: 245 fit a datagram.
    let packet = (1..=245u64, any::<u64>(), 0..100u32, 0..100u32);
    (
        prop_oneof![
            Just(0),
            any::<u32>(),
            (0..300u32).prop_map(|n| u32::MAX - n)
        ],
        prop_oneof![
            Just(0),
            any::<u64>(),
            (0..20_000u64).prop_map(|n| u64::MAX - n)
        ],
        jitter_frames,
        0.3..1.5f64,
        proptest::collection::vec(packet, 1..100),
        proptest::collection::vec(16..=1_024usize, 200),
        1..50u64,
    )
        .prop_map(
            move |(first_sequence, first_timestamp, jitter, depth, packets, quanta, begin)| {
                let mut arrivals = Vec::new();
                let mut media = 0;
                for (index, (frames, random, lost, doubled)) in (0..).zip(packets) {
                    let copies = match (trouble && lost < 10, trouble && doubled < 10) {
                        (true, _) => 0,
                        (false, true) => 2,
                        (false, false) => 1,
                    };
                    for copy in 0..copies {
                        let late = random.rotate_left(16 * copy) % (jitter + 1);
                        arrivals.push(Packet {
                            index,
                            media,
                            frames,
                            arrival: begin * 16 + media + frames + late,
                        });
                    }
                    media += frames;
                }
                arrivals.sort_by_key(|packet| packet.arrival);
                Plan {
                    first_sequence,
                    first_timestamp,
                    target: (jitter as f64 * depth) as u32,
                    arrivals,
                    quanta,
                }
            },
        )
}

/// What a fixed delay makes of a plan, frame by frame.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    heard: Vec<f32>,
    played: u64,
    concealed: u64,
    late: u64,
    late_packets: u64,
    held: u64,
    underruns: u64,
    sequence: SequenceCounts,
}

/// The reference: a set of frames, and the delay of the first packet to arrive. `None` if the plan is one that makes the player
/// start anew: too many late packets in a row.
fn model(plan: &Plan) -> Option<Outcome> {
    let mut outcome = Outcome::default();
    let mut in_time = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let (mut delay, mut counted_from, mut newest_end, mut late_run) = (None, 0, 0, 0);
    let mut was_missing = false;
    let mut arrivals = plan.arrivals.iter().peekable();
    for &quantum in &plan.quanta {
        let rendered = outcome.heard.len() as u64;
        while let Some(packet) = arrivals.next_if(|packet| packet.arrival <= rendered) {
            let newest = seen.last().copied();
            if !seen.insert(packet.index) {
                outcome.sequence.duplicate += 1;
                continue;
            }
            outcome.sequence.received += 1;
            outcome.sequence.reordered += u64::from(newest > Some(packet.index));
            let delay = *delay.get_or_insert_with(|| {
                counted_from = packet.media;
                rendered as i64 - packet.media as i64 + i64::from(plan.target)
            });
            let playhead = rendered as i64 - delay;
            let passed = (playhead - packet.media as i64).clamp(0, packet.frames as i64) as u64;
            outcome.late += passed;
            outcome.late_packets += u64::from(passed > 0);
            if newest < Some(packet.index) {
                late_run = if passed > 0 {
                    late_run + packet.frames
                } else {
                    0
                };
            } else if passed == 0 {
                late_run = 0;
            }
            if late_run > 4_800 {
                return None;
            }
            in_time.extend(packet.media + passed..packet.media + packet.frames);
            newest_end = newest_end.max(packet.media + packet.frames);
        }
        for n in rendered..rendered + quantum as u64 {
            let media = delay.map_or(-1, |delay| n as i64 - delay) as u64;
            let is_in_time = delay.is_some() && in_time.remove(&media);
            if is_in_time {
                outcome
                    .heard
                    .push(tag(plan.first_timestamp.wrapping_add(media), 0));
                outcome.played += 1;
                was_missing = false;
            } else {
                outcome.heard.push(0.0);
                if delay.is_some() && media as i64 >= counted_from as i64 {
                    outcome.concealed += 1;
                    outcome.underruns += u64::from(!was_missing && newest_end <= media);
                    was_missing = true;
                }
            }
        }
    }
    outcome.held = in_time.len() as u64;
    let first = plan.arrivals.first().map_or(0, |packet| packet.index);
    if let Some(&newest) = seen.last() {
        outcome.sequence.lost = (newest - first + 1) - seen.range(first..).count() as u64;
    }
    Some(outcome)
}

fn play(plan: &Plan) -> Outcome {
    let mut player = player(1, 1, 16_384);
    for command in [
        Command::Add(ID),
        Command::Target(ID, Target::Fixed(plan.target)),
    ] {
        player.handle_command(command).expect("fits");
    }
    let mut heard = Vec::new();
    let mut arrivals = plan.arrivals.iter().peekable();
    for &frames in &plan.quanta {
        let rendered = heard.len() as u64;
        while let Some(packet) = arrivals.next_if(|packet| packet.arrival <= rendered) {
            let bytes = datagram(&header(
                plan.first_sequence.wrapping_add(packet.index as u32),
                plan.first_timestamp.wrapping_add(packet.media),
                packet.frames as usize,
            ));
            player.handle_datagram(ID, &bytes);
        }
        heard.extend(quantum(&mut player, frames));
    }
    let known = stats(&player, ID);
    assert_eq!((known.jitter.resyncs, known.jitter.skipped_frames), (0, 0));
    Outcome {
        heard,
        played: known.jitter.played_frames,
        concealed: known.jitter.concealed_frames,
        late: known.jitter.late_frames,
        late_packets: known.jitter.late_packets,
        held: known.held_frames,
        underruns: known.jitter.underruns,
        sequence: known.sequence,
    }
}

/// Plays a plan whose packets come by two paths: of packet *n*, `routes[n]` says by which it comes first, and how many frames later by
/// the other one, too.
fn play_by_two_paths(plan: &Plan, routes: &[(bool, Option<u64>)]) -> (Outcome, u64) {
    let mut player = player(1, 1, 16_384);
    for command in [
        Command::Add(ID),
        Command::Target(ID, Target::Fixed(plan.target)),
    ] {
        player.handle_command(command).expect("fits");
    }
    let route = |packet: &Packet| routes[packet.index as usize % routes.len()];
    let first = plan
        .arrivals
        .iter()
        .map(|packet| (*packet, route(packet).0));
    let copies = plan.arrivals.iter().filter_map(|packet| {
        let (is_relayed, later) = route(packet);
        let arrival = packet.arrival + later?;
        Some((Packet { arrival, ..*packet }, !is_relayed))
    });
    let mut arrivals: Vec<_> = first.chain(copies).collect();
    arrivals.sort_by_key(|(packet, _)| packet.arrival);
    let mut arrivals = arrivals.into_iter().peekable();
    let (mut heard, mut copied) = (Vec::new(), 0);
    let mut seen = BTreeSet::new();
    for &frames in &plan.quanta {
        let rendered = heard.len() as u64;
        while let Some((packet, is_relayed)) =
            arrivals.next_if(|(packet, _)| packet.arrival <= rendered)
        {
            let (stream, ahead) = if is_relayed { (7, 0x8000_0000) } else { (0, 0) };
            let sequence = plan.first_sequence.wrapping_add(ahead);
            let header = AudioHeader {
                stream,
                ..header(
                    sequence.wrapping_add(packet.index as u32),
                    plan.first_timestamp.wrapping_add(packet.media),
                    packet.frames as usize,
                )
            };
            player.handle_datagram(ID, &datagram(&header));
            if !seen.insert(packet.index) {
                copied += packet.frames;
            }
        }
        heard.extend(quantum(&mut player, frames));
    }
    let known = stats(&player, ID);
    assert_eq!((known.jitter.resyncs, known.jitter.skipped_frames), (0, 0));
    assert_eq!(known.jitter.copied_frames, copied);
    let outcome = Outcome {
        heard,
        played: known.jitter.played_frames,
        concealed: known.jitter.concealed_frames,
        late: known.jitter.late_frames,
        late_packets: known.jitter.late_packets,
        held: known.held_frames,
        underruns: known.jitter.underruns,
        sequence: known.sequence,
    };
    (outcome, known.paths.iter().map(|path| path.received).sum())
}

/// Whole seconds without a packet end the playing, so a plan is rendered to a little after its end.
fn cut(mut plan: Plan) -> Plan {
    let end = plan.arrivals.last().map_or(0, |packet| packet.arrival) + 3_000;
    let mut rendered = 0;
    plan.quanta.retain(|&quantum| {
        rendered += quantum as u64;
        rendered < end.min(40_000)
    });
    plan
}

proptest! {
    #![proptest_config(ProptestConfig { max_global_rejects: 10_000, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn a_fixed_delay_is_what_the_model_says(plan in plans(0..2_000, true).prop_map(cut)) {
        let expected = model(&plan);
        prop_assume!(expected.is_some());
        let expected = expected.expect("assumed");
        let found = play(&plan);
        let differs = expected.heard.iter().zip(&found.heard).position(|(a, b)| a != b);
        prop_assert_eq!(differs, None);
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn two_paths_are_one_with_the_arrivals_of_the_first_copies(
        plan in plans(0..2_000, true).prop_map(cut),
        routes in proptest::collection::vec(
            (any::<bool>(), proptest::option::of(0..3_000u64)), 1..100,
        ),
    ) {
        let mut plan = plan;
        let mut known = BTreeSet::new();
        plan.arrivals.retain(|packet| known.insert(packet.index));
        let expected = model(&plan);
        prop_assume!(expected.is_some());
        let expected = expected.expect("assumed");
        let (found, received) = play_by_two_paths(&plan, &routes);
        prop_assert!(received >= expected.sequence.received);
        let differs = expected.heard.iter().zip(&found.heard).position(|(a, b)| a != b);
        prop_assert_eq!(differs, None);
        let sequence = found.sequence;
        prop_assert_eq!(found, Outcome { sequence, ..expected });
    }

    #[test]
    fn in_order_and_in_time_the_output_is_the_input(plan in plans(0..1, false).prop_map(cut)) {
        // The first packet's arrival is up to a quantum before it is seen, and so may any other's be.
        let plan = Plan { target: plan.target + 1_536, ..plan };
        let found = play(&plan);
        let silence = found.heard.iter().take_while(|&&sample| sample == 0.0).count();
        let frames = plan.arrivals.iter().map(|packet| packet.frames).sum::<u64>() as usize;
        let heard = (found.heard.len() - silence).min(frames);
        for n in 0..heard {
            let expected = tag(plan.first_timestamp.wrapping_add(n as u64), 0);
            prop_assert_eq!(found.heard[silence + n], expected, "frame {}", n);
        }
        prop_assert_eq!(found.played, heard as u64);
        prop_assert!(found.heard[silence + heard..].iter().all(|&sample| sample == 0.0));
    }
}

fn conditions() -> impl Strategy<Value = Conditions> {
    (
        prop_oneof![Just(128usize), Just(480), Just(1_024)],
        prop_oneof![Just(16usize), Just(64), Just(128), Just(512), Just(1_024)],
        0.0..10.0f64,
        0.0..60.0f64,
        prop_oneof![Just(0.0), 0.0..0.2f64],
    )
        .prop_map(
            |(capture_burst, render_burst, scheduling_ms, jitter_ms, loss)| Conditions {
                capture_burst,
                render_burst,
                scheduling_s: scheduling_ms * MS,
                network_jitter_s: jitter_ms * MS,
                loss,
                duplication: 0.05,
                ..CHROMIUM
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    #[test]
    fn whatever_happens_every_frame_is_accounted_for_and_order_is_kept(
        steps in proptest::collection::vec((conditions(), 1.0..3.0f64, 0..10u32), 1..8),
        target in prop_oneof![Just(Target::Auto), (0..4_000u32).prop_map(Target::Fixed)],
        packet_frames in 16..=240usize,
        seed in any::<u64>(),
    ) {
        let mut sim = Sim::new(steps[0].0, target, packet_frames, seed);
        // Silence before the first packet's frames is waiting, not concealment.
        sim.run(1.0);
        let (waited, waited_concealed) = (sim.heard.len(), stats(&sim.player, ID).jitter.concealed_frames);
        for (conditions, seconds, event) in steps {
            sim.conditions = conditions;
            match event {
                0 => sim.network_held_until_s = sim.now_s() + 0.7,
                1 => sim.sender_paused_until_s = sim.now_s() + 0.7,
                _ => {}
            }
            sim.run(seconds);
            let known = stats(&sim.player, ID);
            let jitter = known.jitter;
            prop_assert_eq!(
                sim.arrived_frames,
                jitter.played_frames + jitter.skipped_frames + jitter.late_frames + jitter.copied_frames + known.held_frames
            );
            if sim.was_resampled {
                // Rarely, a network held up looks like a clock that runs apart. The frames cannot be told any more.
                return Ok(());
            }
            let silent = |heard: &[f32]| heard.iter().filter(|&&sample| sample == 0.0).count();
            prop_assert_eq!(jitter.played_frames as usize, sim.heard.len() - silent(&sim.heard));
            let concealed = (jitter.concealed_frames - waited_concealed) as usize;
            let silent_since = silent(&sim.heard[waited..]);
            prop_assert!(concealed <= silent_since);
            // A second of silence ends the playing, and what follows is waiting again.
            let longest = sim.heard.split(|&sample| sample != 0.0).map(<[f32]>::len).max();
            prop_assert!(concealed == silent_since || longest > Some(48_000));
        }
        // Two frames in a row, because a fade's frames may happen to look like others.
        let mut last = None;
        for pair in sim.heard.windows(2) {
            let (before, now) = (support::media_of(pair[0]), support::media_of(pair[1]));
            if let (Some(before), Some(now)) = (before, now)
                && now == before + 1
            {
                prop_assert!(Some(before) >= last && Some(now) > last, "{} after {:?}", now, last);
                last = Some(now);
            }
        }
    }
}

/// Frames of each packet and quantum of [`Operation`]s.
const BLOCK: usize = 64;

/// What may befall one stream.
#[derive(Clone, Copy, Debug)]
enum Operation {
    /// So many packets, each with a quantum.
    Play(u8),
    /// So many packets are lost, quanta go on.
    Lose(u8),
    /// So many packets come at once after their quanta.
    Hold(u8),
    /// Packets without quanta: the output stands still.
    Burst(u8),
    Target(Target),
    Channels(u8),
    /// The stream is removed and added.
    Reset,
    /// A new sender with this first sequence number, its media time further on by so much.
    Restart(u32, u16),
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let target = prop_oneof![Just(Target::Auto), (0..6_000u32).prop_map(Target::Fixed)];
    let sequence = prop_oneof![0..3_000u32, any::<u32>()];
    let operation = prop_oneof![
        4 => any::<u8>().prop_map(Operation::Play),
        1 => any::<u8>().prop_map(Operation::Lose),
        1 => any::<u8>().prop_map(Operation::Hold),
        1 => any::<u8>().prop_map(Operation::Burst),
        1 => target.prop_map(Operation::Target),
        1 => (1..=2u8).prop_map(Operation::Channels),
        1 => Just(Operation::Reset),
        1 => (sequence, any::<u16>()).prop_map(|(sequence, media)| Operation::Restart(sequence, media)),
    ];
    proptest::collection::vec(operation, 1..30)
}

/// A stream under [`Operation`]s, and what must hold of it.
struct Stage {
    player: Player,
    channels: u8,
    sequence: u32,
    /// Never goes back, so that each tag names one frame.
    media: u64,
    received_frames: u64,
    heard: Vec<f32>,
}

impl Stage {
    fn packet(&mut self) -> Vec<u8> {
        let packet = datagram(&AudioHeader {
            channels: self.channels,
            ..header(self.sequence, self.media, BLOCK)
        });
        self.sequence = self.sequence.wrapping_add(1);
        self.media += BLOCK as u64;
        packet
    }

    fn arrive(&mut self, packet: &[u8]) {
        let before = stats(&self.player, ID).sequence.received;
        self.player.handle_datagram(ID, packet);
        let received = stats(&self.player, ID).sequence.received - before;
        self.received_frames += received * BLOCK as u64;
    }

    fn render(&mut self) {
        let before = stats(&self.player, ID).jitter;
        self.heard.extend(quantum(&mut self.player, BLOCK));
        let after = stats(&self.player, ID).jitter;
        let played = after.played_frames - before.played_frames;
        let concealed = after.concealed_frames - before.concealed_frames;
        assert!(played + concealed <= BLOCK as u64);
    }

    fn play(&mut self, packets: usize) {
        for _ in 0..packets {
            let packet = self.packet();
            self.arrive(&packet);
            self.render();
        }
    }

    fn carry_out(&mut self, operation: Operation) {
        match operation {
            Operation::Play(packets) => self.play(packets.into()),
            Operation::Lose(packets) => {
                for _ in 0..packets {
                    self.packet();
                    self.render();
                }
            }
            Operation::Hold(packets) => {
                let held: Vec<_> = (0..packets)
                    .map(|_| {
                        self.render();
                        self.packet()
                    })
                    .collect();
                held.iter().for_each(|packet| self.arrive(packet));
            }
            Operation::Burst(packets) => {
                for _ in 0..packets {
                    let packet = self.packet();
                    self.arrive(&packet);
                }
            }
            Operation::Target(target) => {
                let command = Command::Target(ID, target);
                self.player.handle_command(command).expect("is there");
            }
            Operation::Channels(channels) => self.channels = channels,
            Operation::Reset => {
                for command in [Command::Remove(ID), Command::Add(ID)] {
                    self.player.handle_command(command).expect("is there");
                }
                self.received_frames = 0;
            }
            Operation::Restart(sequence, ahead) => {
                self.sequence = sequence;
                self.media += u64::from(ahead);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn whatever_is_done_to_a_stream_it_plays_again(operations in operations()) {
        let mut stage = Stage {
            player: player(1, 1, 16_384),
            channels: 1,
            sequence: 0,
            media: 0,
            received_frames: 0,
            heard: Vec::new(),
        };
        stage.player.handle_command(Command::Add(ID)).expect("fits");
        for operation in operations {
            stage.carry_out(operation);
            let known = stats(&stage.player, ID);
            let jitter = known.jitter;
            prop_assert_eq!(
                stage.received_frames,
                jitter.played_frames + jitter.skipped_frames + jitter.late_frames + jitter.copied_frames + known.held_frames,
                "{:?}: {:?}", operation, known
            );
        }
        // Mono, since a mix of two channels shows no tags. A sender that starts anew just behind is taken for its own duplicates,
        // until it has passed what was seen.
        stage.channels = 1;
        stage.play((1_024 * BLOCK + 3 * 48_000) / BLOCK);
        let (before, heard) = (stats(&stage.player, ID), stage.heard.len());
        stage.play(48_000 / BLOCK);
        let after = stats(&stage.player, ID);
        prop_assert_eq!(after.jitter.played_frames - before.jitter.played_frames, 48_000, "{:?}", after);
        prop_assert_eq!(after.jitter.resyncs, before.jitter.resyncs);
        if after.jitter.skipped_frames == before.jitter.skipped_frames {
            let first = support::media_of(stage.heard[heard]).expect("plays");
            let differs = (0..48_000).find(|&n| stage.heard[heard + n] != tag(first + n as u64, 0));
            prop_assert_eq!(differs, None);
        }
    }
}
