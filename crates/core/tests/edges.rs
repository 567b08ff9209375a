//! What is changed while it sounds changes without a step, which would be heard as a click.

mod support;

use std::f32::consts::TAU;

use antiphon_core::conceal::Concealment;
use antiphon_core::player::MAX_QUANTUM_FRAMES;
use antiphon_core::wire::{self, AUDIO_HEADER_BYTES, AudioHeader, Datagram, MAX_DATAGRAM_BYTES};
use antiphon_core::{
    Command, Player, PlayerConfig, SampleFormat, SampleRate, Sender, SenderConfig, Target,
};
use support::header;

const ID: u32 = 1;
const PACKET: usize = 128;
/// Twice the steepest step of [`tone`].
const STEEP: f32 = 0.06;

/// 440 Hz.
fn tone(n: usize) -> f32 {
    (n as f32 * (440.0 * TAU / 48_000.0)).sin() * 0.5
}

const CONFIG: PlayerConfig = PlayerConfig {
    rate: SampleRate::Hz48000,
    output_channels: 1,
    max_streams: 2,
    buffer_frames: 8_192,
    max_quantum_frames: MAX_QUANTUM_FRAMES,
    concealment: Concealment::Prediction,
};

fn player() -> Player {
    Player::new(CONFIG)
}

/// Sends packet `n` of the tone.
fn send(player: &mut Player, n: usize) {
    let header = header(n as u32, (PACKET * n) as u64, PACKET);
    let mut bytes = vec![0; header.datagram_bytes()];
    header.write(&mut bytes);
    let samples = bytes[AUDIO_HEADER_BYTES..].chunks_exact_mut(4);
    for (index, sample) in samples.enumerate() {
        sample.copy_from_slice(&tone(PACKET * n + index).to_le_bytes());
    }
    player.handle_datagram(ID, &bytes);
}

/// The same, and renders as many frames.
fn play(player: &mut Player, n: usize) -> Vec<f32> {
    send(player, n);
    support::quantum(player, PACKET)
}

fn command(player: &mut Player, command: Command) {
    player.handle_command(command).expect("is there");
}

fn steepest(heard: &[f32]) -> f32 {
    let steps = heard.windows(2).map(|pair| (pair[1] - pair[0]).abs());
    steps.fold(0.0, f32::max)
}

#[test]
fn another_target_makes_no_step() {
    let targets = [
        Target::Fixed(1_500),
        Target::Fixed(300),
        Target::Auto,
        Target::Fixed(700),
    ];
    let mut player = player();
    command(&mut player, Command::Add(ID));
    command(&mut player, Command::Target(ID, Target::Fixed(500)));
    let mut heard = Vec::new();
    for n in 0..500 {
        if n > 0 && n % 100 == 0 {
            command(&mut player, Command::Target(ID, targets[n / 100 - 1]));
        }
        heard.extend(play(&mut player, n));
        if n % 100 == 99 {
            let stats = support::stats(&player, ID);
            let buffered = stats.buffered_frames.expect("plays");
            let target = stats.target_frames;
            assert!(buffered.abs_diff(target) < 64, "{buffered} for {target}");
        }
    }
    assert!(
        steepest(&heard[1_000..]) < STEEP,
        "{}",
        steepest(&heard[1_000..])
    );
}

#[test]
fn a_shorter_target_is_reached_although_too_little_is_there_to_skip_at_first() {
    // Whenever the delay is reviewed meanwhile.
    for start in (300..500).step_by(5) {
        let mut player = player();
        command(&mut player, Command::Add(ID));
        command(&mut player, Command::Target(ID, Target::Fixed(2_400)));
        for n in 0..start {
            play(&mut player, n);
        }
        // The sender is held up for 19 packets, most of what is there.
        for n in 0..19 {
            if n == 10 {
                command(&mut player, Command::Target(ID, Target::Fixed(960)));
            }
            support::quantum(&mut player, PACKET);
        }
        (start..start + 19).for_each(|n| send(&mut player, n));
        for n in start + 19..start + 400 {
            play(&mut player, n);
        }
        let stats = support::stats(&player, ID);
        let buffered = stats.buffered_frames.expect("plays");
        assert!(buffered.abs_diff(960) < 200, "{start}: {buffered}");
    }
}

#[test]
fn a_stream_that_is_removed_fades_out() {
    for gain in [1.0, 4.0] {
        let mut player = player();
        command(&mut player, Command::Add(ID));
        command(&mut player, Command::Gain(ID, gain));
        let mut heard = Vec::new();
        for n in 0..100 {
            heard.extend(play(&mut player, n));
        }
        command(&mut player, Command::Remove(ID));
        assert!(player.stream_stats(ID).is_none());
        let mut last = Vec::new();
        for n in 100..130 {
            last.extend(play(&mut player, n));
        }
        // A whole of 1 in 10 ms.
        let most = 480 * gain as usize;
        let fade = last.iter().rposition(|&sample| sample != 0.0);
        assert!(
            fade.is_some_and(|fade| (300..most).contains(&fade)),
            "{fade:?}"
        );
        heard.extend(last);
        let steepest = steepest(&heard[2_000..]);
        assert!(steepest < gain * STEEP, "{steepest}");
    }
}

/// Ends what plays.
type Pause = fn(&mut Player);

/// More than a second without a packet, and a sleep of the host.
const PAUSES: [Pause; 2] = [
    |player| {
        for _ in 0..400 {
            support::quantum(player, PACKET);
        }
    },
    |player| player.pass(400 * PACKET as u64),
];

/// What is heard of the stream when these commands were given before its first packet; or, with a pause, in that.
fn begins_with(commands: &[Command], pause: Option<Pause>) -> Vec<f32> {
    let mut player = player();
    for id in [ID, 2] {
        command(&mut player, Command::Add(id));
        command(&mut player, Command::Target(id, Target::Fixed(0)));
    }
    if let Some(pause) = pause {
        for n in 0..100 {
            play(&mut player, n);
        }
        pause(&mut player);
        assert_eq!(support::stats(&player, ID).playhead, None);
    }
    for &one in commands {
        command(&mut player, one);
    }
    (500..600).flat_map(|n| play(&mut player, n)).collect()
}

#[test]
fn a_stream_begins_as_loud_as_it_shall_be() {
    let silent = [
        [Command::Mute(ID, true)],
        [Command::Gain(ID, 0.0)],
        [Command::Solo(2, true)],
    ];
    for pause in [None, Some(PAUSES[0]), Some(PAUSES[1])] {
        for commands in silent {
            let heard = begins_with(&commands, pause);
            let first = heard.iter().position(|&sample| sample != 0.0);
            assert_eq!(first, None, "{commands:?}, {pause:?}");
        }
        let whole = begins_with(&[], pause);
        assert!(whole.iter().any(|&sample| sample != 0.0));
        let quiet = begins_with(&[Command::Gain(ID, 0.25)], pause);
        let is_quarter = |(quiet, whole): (&f32, &f32)| *quiet == whole * 0.25;
        assert!(quiet.iter().zip(&whole).all(is_quarter), "{pause:?}");
    }
}

#[test]
fn a_gain_changed_while_nothing_is_heard_yet_does_not_sound_as_before() {
    let mut player = player();
    command(&mut player, Command::Add(ID));
    command(&mut player, Command::Target(ID, Target::Fixed(500)));
    // The first packet waits.
    let mut heard = play(&mut player, 0);
    command(&mut player, Command::Mute(ID, true));
    for n in 1..100 {
        heard.extend(play(&mut player, n));
    }
    assert!(heard.iter().all(|&sample| sample == 0.0));
}

#[test]
fn a_change_of_gain_makes_no_step_in_what_sounds_be_it_a_gap() {
    for gap in [0, 5] {
        let mut player = player();
        command(&mut player, Command::Add(ID));
        command(&mut player, Command::Target(ID, Target::Fixed(500)));
        let mut heard = Vec::new();
        for n in 0..300 {
            if n >= 100 && n % 50 == 6 {
                // Lost packets are due by now, four quanta after they were sent.
                command(&mut player, Command::Mute(ID, n / 50 % 2 == 0));
            }
            let is_lost = n >= 100 && n % 50 < gap;
            heard.extend(if is_lost {
                support::quantum(&mut player, PACKET)
            } else {
                play(&mut player, n)
            });
        }
        let steepest = steepest(&heard[2_000..]);
        assert!(steepest < STEEP, "{steepest} with gaps of {gap}");
        assert!(
            heard[120 * PACKET..140 * PACKET]
                .iter()
                .all(|it| *it == 0.0)
        );
        assert!(
            heard[180 * PACKET..190 * PACKET]
                .iter()
                .any(|it| *it != 0.0)
        );
    }
}

#[test]
fn who_comes_in_its_place_has_nothing_of_a_stream_that_was_removed() {
    let mut player = player();
    for id in [ID, 2] {
        command(&mut player, Command::Add(id));
    }
    for n in 0..100 {
        play(&mut player, n);
    }
    command(&mut player, Command::Remove(ID));
    command(&mut player, Command::Add(3));
    let stats = support::stats(&player, 3);
    assert_eq!((stats.jitter, stats.playhead), Default::default());
    assert!(
        support::quantum(&mut player, PACKET)
            .iter()
            .all(|sample| *sample == 0.0)
    );
}

#[test]
fn a_muted_microphone_makes_no_step() {
    let mut sender = Sender::new(SenderConfig {
        rate: SampleRate::Hz48000,
        format: SampleFormat::F32,
        channels: 1,
        packet_frames: PACKET,
    });
    let mut sent = Vec::new();
    let mut datagram = [0; MAX_DATAGRAM_BYTES];
    for n in 0..60 {
        sender.set_muted((20..40).contains(&n));
        let block: Vec<f32> = (PACKET * n..).take(PACKET).map(tone).collect();
        sender.push(&block, PACKET);
        let length = sender.poll_datagram(&mut datagram).expect("a packet waits");
        let Ok(Datagram::Audio(_, samples, _)) = wire::parse(&datagram[..length]) else {
            panic!("no audio");
        };
        let samples = samples.chunks_exact(4);
        sent.extend(samples.map(|four| f32::from_le_bytes(four.try_into().expect("are four"))));
    }
    assert!(steepest(&sent) < STEEP, "{}", steepest(&sent));
    let is_whole = |n: usize| sent[n].to_bits() == tone(n).to_bits();
    // 10 ms each to fall silent and to come back.
    assert!((0..20 * PACKET).all(is_whole));
    assert!((20 * PACKET + 480..40 * PACKET).all(|n| sent[n] == 0.0));
    assert!((40 * PACKET + 480..60 * PACKET).all(is_whole));
}

/// Packets of so many frames, of which eight channels fit into a datagram.
const SHORT_PACKET: usize = 32;

/// Sends short packet `n` of the tone, in so many channels: each with a level of its own.
fn send_in(player: &mut Player, n: usize, channels: u8) {
    let header = AudioHeader {
        format: SampleFormat::S24,
        channels,
        ..header(n as u32, (SHORT_PACKET * n) as u64, SHORT_PACKET)
    };
    let mut bytes = vec![0; header.datagram_bytes()];
    header.write(&mut bytes);
    let frames = bytes[AUDIO_HEADER_BYTES..].chunks_exact_mut(3 * usize::from(channels));
    for (index, frame) in frames.enumerate() {
        let sample = tone(SHORT_PACKET * n + index);
        for (channel, out) in frame.chunks_exact_mut(3).enumerate() {
            let level = [0.2, 1.0][channel % 2];
            out.copy_from_slice(&((sample * level * 8_388_608.0) as i32).to_le_bytes()[..3]);
        }
    }
    player.handle_datagram(ID, &bytes);
}

#[test]
fn another_number_of_channels_makes_no_step() {
    for (outputs, before, after) in [(2, 1, 2), (8, 1, 2), (8, 1, 8), (8, 2, 8)] {
        let mut player = Player::new(PlayerConfig {
            output_channels: outputs,
            ..CONFIG
        });
        command(&mut player, Command::Add(ID));
        let mut heard = vec![Vec::new(); outputs];
        for n in 0..1_600 {
            send_in(&mut player, n, [before, after][n / 400 % 2]);
            let mut out = vec![0.0; outputs * SHORT_PACKET];
            player.process_quantum(&mut out);
            for (heard, out) in heard.iter_mut().zip(out.chunks_exact(SHORT_PACKET)) {
                heard.extend_from_slice(out);
            }
        }
        assert_eq!(support::stats(&player, ID).jitter.resyncs, 3);
        for (output, heard) in heard.iter().enumerate() {
            let steepest = steepest(&heard[2_000..]);
            assert!(
                steepest < STEEP,
                "{before} and {after} channels, output {output}: {steepest}"
            );
            let sounds = |part: usize| {
                heard[SHORT_PACKET * (400 * part + 200)..][..110]
                    .iter()
                    .any(|s| *s != 0.0)
            };
            let is_of = |channels: u8| output < usize::from(channels.max(2));
            assert_eq!(
                [sounds(1), sounds(2), sounds(3)],
                [is_of(after), is_of(before), is_of(after)],
                "{before} and {after} channels, output {output}"
            );
        }
    }
}

#[test]
fn a_stream_that_nothing_is_awaited_of_begins_without_a_step() {
    for is_new in [true, false] {
        let mut player = player();
        command(&mut player, Command::Add(ID));
        command(&mut player, Command::Target(ID, Target::Fixed(0)));
        let mut before = 0.0;
        if !is_new {
            for n in 0..50 {
                before = play(&mut player, n)[PACKET - 1];
            }
        }
        // In the middle of the tone, as far from where it was as it can be; numbers go on, the media time does not.
        let mut heard = vec![before];
        for n in 50..100_usize {
            let header = header(n as u32, 1_000_000 + (PACKET * n) as u64, PACKET);
            let mut bytes = vec![0; header.datagram_bytes()];
            header.write(&mut bytes);
            let samples = bytes[AUDIO_HEADER_BYTES..].chunks_exact_mut(4);
            for (index, sample) in samples.enumerate() {
                let phase = PACKET * (n - 50) + index + 27;
                sample.copy_from_slice(&tone(phase).to_le_bytes());
            }
            player.handle_datagram(ID, &bytes);
            heard.extend(support::quantum(&mut player, PACKET));
        }
        assert!(steepest(&heard) < STEEP, "{is_new}: {}", steepest(&heard));
        assert!(heard[PACKET + 1..].iter().any(|sample| sample.abs() > 0.49));
    }
}

#[test]
fn a_gap_does_not_bring_back_what_fell_silent_in_the_one_before() {
    let mut player = player();
    command(&mut player, Command::Add(ID));
    command(&mut player, Command::Target(ID, Target::Fixed(500)));
    for n in 0..100 {
        play(&mut player, n);
    }
    // 200 ms are lost, then one packet of silence comes, and nothing any more.
    for _ in 100..175 {
        support::quantum(&mut player, PACKET);
    }
    let header = header(175, 175 * PACKET as u64, PACKET);
    let mut bytes = vec![0; header.datagram_bytes()];
    header.write(&mut bytes);
    player.handle_datagram(ID, &bytes);
    for _ in 175..200 {
        let heard = support::quantum(&mut player, PACKET);
        let peak = heard.iter().fold(0.0f32, |peak, it| peak.max(it.abs()));
        assert!(peak < 1e-4, "{peak}");
    }
    assert_eq!(
        support::stats(&player, ID).jitter.played_frames,
        101 * PACKET as u64
    );
}

#[test]
fn after_a_sleep_nothing_is_heard_of_what_was_before() {
    let mut player = player();
    command(&mut player, Command::Add(ID));
    for n in 0..100 {
        play(&mut player, n);
    }
    player.pass(24_000);
    for n in 290..300 {
        let heard = play(&mut player, n);
        let begins = heard.iter().position(|&sample| sample != 0.0);
        if let Some(at) = begins {
            // The first frames of packet 290, faded in.
            let waited = PACKET * (n - 290) + at;
            assert!((500..2_000).contains(&waited), "{waited}");
            return;
        }
    }
    panic!("nothing is heard");
}

#[test]
fn after_a_sleep_nothing_is_heard_of_what_was_resampled_before() {
    let mut player = player();
    command(&mut player, Command::Add(ID));
    let mut sent = 0;
    let mut send = |player: &mut Player, sample: f32| {
        let header = header(sent as u32, sent * 120, 120);
        sent += 1;
        let mut bytes = vec![0; header.datagram_bytes()];
        header.write(&mut bytes);
        for out in bytes[AUDIO_HEADER_BYTES..].chunks_exact_mut(4) {
            out.copy_from_slice(&sample.to_le_bytes());
        }
        player.handle_datagram(ID, &bytes);
        sent
    };
    let mut come = 0;
    for quantum in 0..90 * 375 {
        // The sender is 200 ppm fast.
        let now = quantum * 128;
        while (come + 1) * 120 <= now + now / 5_000 {
            come = send(&mut player, 0.5);
        }
        support::quantum(&mut player, 128);
    }
    assert!(support::stats(&player, ID).is_resampled);
    player.pass(48_000);
    // A packet of silence comes before the next quantum.
    for _ in 0..20 {
        send(&mut player, 0.0);
        let heard = support::quantum(&mut player, 120);
        assert!(heard.iter().all(|sample| *sample == 0.0), "{heard:?}");
    }
}
