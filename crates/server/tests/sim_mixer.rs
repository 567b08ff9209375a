//! Musicians, a network and a mix for each who wants one, in virtual time.
//!
//! Every musician's frames carry a digit in a place of their own, so that a sum still tells what is in it: frame *m* of musician *k*
//! is `(m mod 6 + 1) × 7^k` of 2^23. A digit 0 is nothing of that musician.

#[path = "../../opus/tests/common/mod.rs"]
mod libopus;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use antiphon_core::StreamFormat;
use antiphon_core::wire::{self, AUDIO_HEADER_BYTES, Datagram, MAX_DATAGRAM_BYTES, MIX_STREAM};
use antiphon_core::{SampleFormat, SampleRate, Sender, SenderConfig};
use antiphon_opus::FEED_FRAMES;
use antiphon_opus::outgoing::{Rendition, Rung};
use antiphon_server::mixer::{Decoding, Mixer, Source, SourceStats};

use libopus::{SHAPES, datagram, datagrams, music};

const RATE: SampleRate = SampleRate::Hz48000;
const PACKET: usize = 128;
/// Frames that a musician's packets hold.
const SENT: usize = 64;
const MS: u64 = 1_000_000;

fn digit(media: u64) -> u32 {
    (media % 6) as u32 + 1
}

fn place(of: usize) -> u32 {
    7u32.pow(of as u32)
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }
}

struct Musician {
    sender: Sender,
    ppm: f64,
    captured: u64,
    /// What it plays at a media time.
    play: fn(of: usize, media: u64) -> f32,
    /// Plays nothing, and sends nothing, between these times, ns.
    absent_ns: std::ops::Range<u64>,
    jitter_ns: u64,
    /// When each frame came to the server, ns.
    arrived_ns: Vec<u64>,
}

/// A datagram of a mix, as it left.
struct Emitted {
    at_ns: u64,
    complete_at: Option<Duration>,
    timestamp: u64,
    /// Left channel, in units of 2^-23.
    samples: Vec<i32>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Capture(usize),
    Arrival(usize, Vec<u8>),
    /// Takes a mix of all others, in packets of so many frames.
    Join(usize, usize),
}

struct Room {
    musicians: Vec<Musician>,
    mixer: Mixer,
    heard: Vec<Vec<Emitted>>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    scheduled: u64,
    random: Random,
    now_ns: u64,
}

fn tagged(of: usize, media: u64) -> f32 {
    (digit(media) * place(of)) as f32 / 8_388_608.0
}

fn source(stream: usize) -> Source {
    Source {
        stream: stream as u16,
        gain: 1.0,
        pan: 0.0,
        muted: false,
    }
}

impl Room {
    /// Musicians with clocks of so many ppm, each with a mix of all others.
    fn new(seed: u64, ppm: &[f64], jitter_ms: f64) -> Self {
        let mut room = Self::without_listeners(seed, ppm, jitter_ms);
        for listener in 0..ppm.len() {
            room.listen(listener, PACKET);
        }
        room
    }

    fn without_listeners(seed: u64, ppm: &[f64], jitter_ms: f64) -> Self {
        let count = ppm.len();
        let mut room = Self {
            musicians: Vec::new(),
            mixer: Mixer::new(RATE),
            heard: (0..count).map(|_| Vec::new()).collect(),
            events: BinaryHeap::new(),
            scheduled: 0,
            random: Random(seed),
            now_ns: 0,
        };
        for (of, &ppm) in ppm.iter().enumerate() {
            room.musicians.push(Musician {
                sender: Sender::new(SenderConfig {
                    rate: RATE,
                    format: SampleFormat::S24,
                    channels: 1,
                    packet_frames: SENT,
                }),
                ppm,
                captured: 0,
                play: tagged,
                absent_ns: 0..0,
                jitter_ns: (jitter_ms * MS as f64) as u64,
                arrived_ns: Vec::new(),
            });
            let begin_ns = room.random.below(3 * MS);
            room.schedule(begin_ns, Event::Capture(of));
        }
        room
    }

    fn listen(&mut self, listener: usize, packet_frames: usize) {
        let format = SampleFormat::S24;
        (self.mixer).set_listener(listener as u16, format, packet_frames);
        let others = (0..self.musicians.len()).filter(|&other| other != listener);
        self.mix(listener, &others.map(source).collect::<Vec<_>>());
    }

    fn mix(&mut self, listener: usize, sources: &[Source]) {
        let now = Duration::from_nanos(self.now_ns);
        self.mixer.set_sources(listener as u16, sources, now);
    }

    fn stats(&self, of: usize) -> SourceStats {
        self.mixer.source_stats(of as u16).expect("is in a mix")
    }

    fn schedule(&mut self, at_ns: u64, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((at_ns, self.scheduled, event)));
    }

    fn run_until(&mut self, end_ns: u64) {
        loop {
            let event_ns = self.events.peek().map_or(u64::MAX, |next| next.0.0);
            let due = self.mixer.poll_timeout();
            let timeout_ns = due.map_or(u64::MAX, |due| due.as_nanos() as u64);
            let next_ns = event_ns.min(timeout_ns).max(self.now_ns);
            if next_ns >= end_ns {
                break;
            }
            self.now_ns = next_ns;
            if event_ns <= timeout_ns
                && let Some(Reverse((_, _, event))) = self.events.pop()
            {
                match event {
                    Event::Capture(of) => self.capture(of),
                    Event::Arrival(of, bytes) => self.arrive(of, &bytes),
                    Event::Join(listener, packet_frames) => self.listen(listener, packet_frames),
                }
            }
            self.emit();
        }
        self.now_ns = end_ns;
    }

    fn capture(&mut self, of: usize) {
        let now_ns = self.now_ns;
        let musician = &mut self.musicians[of];
        let first = musician.captured;
        musician.captured += SENT as u64;
        let next_ns = now_ns as f64 + SENT as f64 / 48_000.0 * 1e9 / (1.0 + musician.ppm * 1e-6);
        let frames: Vec<f32> = (first..first + SENT as u64)
            .map(|media| (musician.play)(of, media))
            .collect();
        musician.sender.push(&frames, SENT);
        let mut bytes = [0; MAX_DATAGRAM_BYTES];
        while let Some(length) = self.musicians[of].sender.poll_datagram(&mut bytes) {
            if self.musicians[of].absent_ns.contains(&now_ns) {
                continue;
            }
            let jitter_ns = self.musicians[of].jitter_ns;
            let delay_ns = 2 * MS + self.random.below(jitter_ns.max(1));
            self.schedule(
                now_ns + delay_ns,
                Event::Arrival(of, bytes[..length].into()),
            );
        }
        self.schedule(next_ns as u64, Event::Capture(of));
    }

    fn arrive(&mut self, of: usize, bytes: &[u8]) {
        let Ok(Datagram::Audio(header, ..)) = wire::parse(bytes) else {
            panic!("a sender made no audio");
        };
        let end = header.timestamp as usize + usize::from(header.frames);
        let arrived_ns = &mut self.musicians[of].arrived_ns;
        arrived_ns.resize(arrived_ns.len().max(end), u64::MAX);
        arrived_ns[header.timestamp as usize..end].fill(self.now_ns);
        let now = Duration::from_nanos(self.now_ns);
        self.mixer.handle_audio(of as u16, bytes, now);
    }

    fn emit(&mut self) {
        let now = Duration::from_nanos(self.now_ns);
        let mut bytes = [0; MAX_DATAGRAM_BYTES];
        while let Some(mixed) = self.mixer.poll_datagram(now, &mut bytes) {
            let Ok(Datagram::Audio(header, samples, _)) = wire::parse(&bytes[..mixed.length])
            else {
                panic!("a mix is audio");
            };
            assert_eq!((header.stream, header.channels), (MIX_STREAM, 2));
            let heard = &mut self.heard[usize::from(mixed.listener)];
            let before = heard.last();
            let end = before.map_or(0, |last| last.timestamp + last.samples.len() as u64);
            assert!(header.timestamp >= end, "{} after {end}", header.timestamp);
            assert_eq!(header.sequence as usize, heard.len());
            let left = |frame: &[u8]| i32::from_le_bytes([0, frame[0], frame[1], frame[2]]) >> 8;
            heard.push(Emitted {
                at_ns: self.now_ns,
                complete_at: mixed.complete_at,
                timestamp: header.timestamp,
                samples: samples.chunks_exact(6).map(left).collect(),
            });
        }
    }

    /// The digits of one musician in what another heard.
    fn digits(&self, listener: usize, of: usize) -> Vec<u32> {
        let heard = self.heard[listener].iter();
        heard
            .flat_map(|emitted| &emitted.samples)
            .map(|&sample| sample as u32 / place(of) % 7)
            .collect()
    }
}

const CLOCKS: [f64; 8] = [-200.0, 200.0, -150.0, 120.0, -60.0, 30.0, 0.0, 180.0];

#[test]
fn each_hears_every_frame_of_all_others_in_its_place_and_never_themselves() {
    let mut room = Room::new(1, &CLOCKS, 3.0);
    // All have begun, and are faded in. What came before the first packet to arrive was late.
    room.run_until(50 * MS);
    let late = |room: &Room| -> u64 {
        let stats = (0..8).map(|of| room.stats(of).stream);
        stats.map(|stats| stats.jitter.late_frames).sum()
    };
    let late_before = late(&room);
    let begin = room.heard.iter().map(|heard| heard.len() * PACKET).max();
    let begin = begin.expect("mixes");
    // Until the first review, when delays begin to be shortened.
    room.run_until(900 * MS);
    assert_eq!(late(&room), late_before);
    for listener in 0..8 {
        for of in 0..8 {
            let digits = &room.digits(listener, of)[begin..];
            if of == listener {
                assert!(digits.iter().all(|&digit| digit == 0), "{of} hears itself");
                continue;
            }
            let first = u64::from(digits[0]).wrapping_sub(1);
            for (n, &found) in (0..).zip(digits) {
                assert_eq!(found, digit(first + n), "{listener} hears {of}, frame {n}");
            }
        }
        let newest = room.heard[listener].last().expect("a mix");
        let mut sources = 0;
        for (of, lead) in room.mixer.leads(listener as u16) {
            let found = newest.samples[0] as u32 / place(of.into()) % 7;
            let media = newest.timestamp.wrapping_sub_signed(lead);
            assert_eq!(found, digit(media), "{listener} hears {of}");
            sources += 1;
        }
        assert_eq!(sources, 7);
    }
    for of in 0..8 {
        assert_eq!(room.stats(of).stream.jitter.concealed_frames, 0, "of {of}");
    }
}

/// Each packet left when the last frame of its sources came that it needs, or with the packet before if that was later.
fn assert_prompt(room: &Room, listener: usize, packet: u64, sources: &[usize]) {
    // While delays do not change, a source's media time runs beside the mix's.
    let behind: Vec<_> = sources
        .iter()
        .map(|&of| {
            let stats = room.stats(of);
            (
                of,
                stats.rendered_end - stats.stream.playhead.expect("plays"),
            )
        })
        .collect();
    let heard = &room.heard[listener];
    let settled = heard[0].timestamp + 48_000 * 100 / 1_000;
    let mut count = 0;
    for pair in heard.windows(2).filter(|pair| pair[0].timestamp > settled) {
        let [before, emitted] = pair else {
            unreachable!("two in a row");
        };
        let begin = emitted.timestamp / packet * packet;
        let end = (begin + packet).next_multiple_of(16);
        let complete_ns = behind.iter().flat_map(|&(of, behind)| {
            &room.musicians[of].arrived_ns[(begin - behind) as usize..(end - behind) as usize]
        });
        let complete_ns = *complete_ns.max().expect("sources");
        assert_eq!(emitted.at_ns, complete_ns.max(before.at_ns));
        let complete_at = Duration::from_nanos(emitted.at_ns);
        assert_eq!(emitted.complete_at, Some(complete_at));
        count += 1;
    }
    assert!(count > 50, "{count}");
}

fn all_but(listener: usize, count: usize) -> Vec<usize> {
    (0..count).filter(|&other| other != listener).collect()
}

#[test]
fn a_packet_leaves_with_the_last_frame_that_it_needs_and_not_at_a_tick() {
    let mut room = Room::new(2, &CLOCKS, 3.0);
    room.run_until(900 * MS);
    for listener in 0..8 {
        assert_prompt(&room, listener, PACKET as u64, &all_but(listener, 8));
    }
}

#[test]
fn packets_of_other_sizes_are_whole_and_prompt_and_cost_no_more_renders_than_blocks() {
    const PACKETS: [usize; 4] = [16, 100, 160, 512];
    let mut room = Room::without_listeners(6, &CLOCKS[..4], 1.0);
    for (listener, packet) in PACKETS.into_iter().enumerate() {
        room.listen(listener, packet);
    }
    room.run_until(900 * MS);
    for (listener, packet) in PACKETS.into_iter().enumerate() {
        assert_prompt(&room, listener, packet as u64, &all_but(listener, 4));
        for of in all_but(listener, 4) {
            let digits = &room.digits(listener, of)[4_800..];
            let first = u64::from(digits[0]).wrapping_sub(1);
            for (n, &found) in (0..).zip(digits) {
                assert_eq!(found, digit(first + n), "{listener} hears {of}, frame {n}");
            }
        }
    }
    for of in 0..4 {
        let SourceStats {
            stream,
            rendered_end,
            renders,
        } = room.stats(of);
        assert_eq!(stream.jitter.concealed_frames, 0, "of {of}");
        assert!(renders <= rendered_end / 16, "{renders}");
    }
}

#[test]
fn a_source_is_taken_and_rendered_once_however_many_listen() {
    let work = |listeners: usize| {
        let mut room = Room::without_listeners(7, &CLOCKS, 1.0);
        for listener in (1..8).take(listeners) {
            room.listen(listener, PACKET);
        }
        room.run_until(900 * MS);
        let arrived = &room.musicians[0].arrived_ns;
        let arrived = arrived.iter().filter(|&&at| at != u64::MAX).count();
        let stats = room.stats(0);
        let received = stats.stream.sequence.received;
        assert_eq!(received, (arrived / SENT) as u64, "for {listeners}");
        // One for each packet, but where the source began.
        let packets = stats.rendered_end / PACKET as u64;
        assert!(
            (packets..packets + 8).contains(&stats.renders),
            "for {listeners}: {stats:?}"
        );
    };
    [1, 2, 7].into_iter().for_each(work);
}

#[test]
fn who_joins_later_begins_where_the_sources_are_and_disturbs_nobody() {
    let mut room = Room::without_listeners(8, &CLOCKS[..4], 1.0);
    room.listen(0, PACKET);
    room.listen(1, PACKET);
    room.schedule(400 * MS, Event::Join(2, PACKET));
    room.schedule(600 * MS, Event::Join(3, 64));
    room.run_until(800 * MS);
    // Gains change, and a source goes.
    let quiet = Source {
        gain: 0.5,
        ..source(1)
    };
    room.mix(0, &[quiet, source(3)]);
    room.run_until(850 * MS);
    room.mixer.remove_listener(1);
    room.run_until(950 * MS);
    for (listener, packet, joined_ns) in [(2, PACKET, 400 * MS), (3, 64, 600 * MS)] {
        let heard = &room.heard[listener];
        // Not what was played before, all at once.
        let frames_by = |ms: u64| {
            let by = heard
                .iter()
                .filter(|emitted| emitted.at_ns <= joined_ns + ms * MS);
            by.map(|emitted| emitted.samples.len()).sum::<usize>()
        };
        assert!(frames_by(0) <= packet, "{} at once", frames_by(0));
        let late = frames_by(100).abs_diff(4_800);
        assert!(late <= 2 * packet, "{late} of the first 100 ms");
        assert_prompt(&room, listener, packet as u64, &all_but(listener, 4));
        for of in all_but(listener, 4) {
            // Faded in.
            let digits = &room.digits(listener, of)[480 + packet..];
            let first = u64::from(digits[0]).wrapping_sub(1);
            for (n, &found) in (0..).zip(digits) {
                assert_eq!(found, digit(first + n), "{listener} hears {of}, frame {n}");
            }
        }
    }
    for listener in [0, 1] {
        let heard = room.heard[listener].iter();
        let mut settled = heard.filter(|emitted| emitted.at_ns > 100 * MS);
        assert!(settled.all(|emitted| emitted.complete_at.is_some()));
    }
    let last = room.heard[1].last().expect("was there").at_ns;
    assert!((845 * MS..850 * MS).contains(&last), "{last}");
    // Nobody mixes these any more.
    room.mix(0, &[]);
    for listener in [2, 3] {
        room.mixer.remove_listener(listener);
    }
    // So long it takes to fade out.
    room.run_until(1_000 * MS);
    assert!((0..4).all(|of| room.mixer.source_stats(of).is_none()));
    assert_eq!(room.mixer.poll_timeout(), None);
}

/// What a listener heard, by media time; `None` is what nothing was sent of.
fn by_time(room: &Room, listener: usize) -> Vec<Option<i32>> {
    let mut samples = Vec::new();
    for emitted in &room.heard[listener] {
        samples.resize(emitted.timestamp as usize, None);
        samples.extend(emitted.samples.iter().copied().map(Some));
    }
    samples
}

#[test]
fn all_hear_the_same_of_a_source_however_far_apart_they_are() {
    let mut room = Room::without_listeners(9, &CLOCKS[..3], 50.0);
    // Its frames come promptly, and are silent: who hears it too hears the others as if without it, but has to wait.
    room.musicians[2].jitter_ns = MS;
    room.musicians[2].play = |_, _| 0.0;
    for (listener, packet, sources) in [
        (0, 128, &[0, 1][..]),
        (1, 512, &[0, 1, 2]),
        (2, 16, &[0, 1, 2]),
    ] {
        (room.mixer).set_listener(listener as u16, SampleFormat::S24, packet);
        room.mix(
            listener,
            &sources.iter().copied().map(source).collect::<Vec<_>>(),
        );
    }
    room.run_until(3_000 * MS);
    // The host stands still, for less than a sleep.
    room.now_ns = 3_200 * MS;
    room.run_until(6_000 * MS);
    let [alone, large, small] = [0, 1, 2].map(|listener| by_time(&room, listener));
    let mut compared = 0;
    // The strips have been ramped up.
    for media in 48_000..6 * 48_000 - 4_800 {
        assert!(alone[media].is_some(), "{media}");
        assert_eq!(alone[media], large[media], "{media}");
        assert_eq!(alone[media], small[media], "{media}");
        compared += usize::from(alone[media] != Some(0));
    }
    assert!(compared > 200_000, "{compared}");
    let left_at = |listener: usize, media: u64| {
        let heard = &room.heard[listener];
        let next = heard.partition_point(|emitted| emitted.timestamp <= media);
        heard[next - 1].at_ns
    };
    let instants = (1_000..5_900).map(|ms| 48 * ms);
    let apart = instants.map(|media| left_at(1, media).saturating_sub(left_at(0, media)));
    let apart = apart.max().expect("instants");
    assert!(apart > 20 * MS, "{apart} ns");
    // Ahead of the clock by no more than the ring holds.
    for emitted in &room.heard[0] {
        let end_ns = (emitted.timestamp + 128) * 1_000_000_000 / 48_000;
        assert!(end_ns < emitted.at_ns + 4_096 * 1_000_000_000 / 48_000);
    }
}

#[test]
fn clocks_apart_are_followed_and_nothing_is_concealed_but_what_is_late() {
    let mut room = Room::new(3, &CLOCKS, 3.0);
    room.run_until(40_000 * MS);
    for (of, ppm) in CLOCKS.into_iter().enumerate() {
        let stats = room.stats(of).stream;
        let jitter = stats.jitter;
        assert_eq!(stats.is_resampled, ppm != 0.0, "{of} {stats:?}");
        // The budget of what may come late is one in a thousand.
        let heard = jitter.played_frames + jitter.concealed_frames;
        assert!(jitter.concealed_frames * 1_000 < heard, "{of}: {jitter:?}");
        assert_eq!((jitter.underruns, jitter.resyncs), (0, 0), "{of}");
    }
    for listener in 0..8 {
        let late = |emitted: &&Emitted| emitted.complete_at.is_none();
        let heard = &room.heard[listener];
        let due = heard.iter().filter(late).count();
        assert!(due * 100 < heard.len(), "{due} of {}", heard.len());
    }
}

#[test]
fn who_stops_delays_the_others_no_longer_than_to_the_deadline_and_returns() {
    let mut room = Room::new(4, &CLOCKS[..4], 1.0);
    room.musicians[3].absent_ns = 500 * MS..3_000 * MS;
    room.run_until(5_000 * MS);
    let frame_ns = |frame: u64| frame * 1_000_000_000 / 48_000;
    for emitted in room.heard.iter().flatten() {
        let end = emitted.timestamp + PACKET as u64;
        assert!(emitted.at_ns <= frame_ns(end) + 1, "overdue");
    }
    // Who does not hear the one who stops waits for nothing.
    let mut unconcerned = room.heard[3]
        .iter()
        .filter(|emitted| emitted.at_ns > 100 * MS);
    assert!(unconcerned.all(|emitted| emitted.complete_at.is_some()));
    let within = |from_ms: u64, to_ms: u64| {
        let range = from_ms * MS..to_ms * MS;
        let heard = room.heard[0].iter();
        heard.filter(move |emitted| range.contains(&emitted.at_ns))
    };
    // For a second it may come back any moment; then it is not waited for.
    assert!(within(550, 1_400).all(|emitted| emitted.complete_at.is_none()));
    assert!(within(1_700, 2_900).all(|emitted| emitted.complete_at.is_some()));
    let of_3 = |emitted: &Emitted| {
        emitted
            .samples
            .iter()
            .all(|&s| !(s as u32 / place(3)).is_multiple_of(7))
    };
    assert!(within(4_000, 5_000).all(of_3));
    assert!(within(4_000, 5_000).count() > 370);
}

#[test]
fn many_at_full_scale_are_limited_and_gain_and_mute_are_each_listeners_own() {
    let mut room = Room::new(5, &[0.0; 8], 1.0);
    for musician in &mut room.musicians {
        musician.play = |of, media| {
            let is_up = (media / (40 + of as u64)).is_multiple_of(2);
            if is_up { 0.999 } else { -0.999 }
        };
    }
    let quiet: Vec<_> = (1..8)
        .map(|of| Source {
            gain: 0.1,
            muted: of > 3,
            ..source(of)
        })
        .collect();
    room.mix(0, &quiet);
    room.run_until(800 * MS);
    let peak = |listener: usize| {
        let heard = room.heard[listener].iter();
        let settled = heard.filter(|emitted| emitted.at_ns > 500 * MS);
        let peak = settled
            .flat_map(|emitted| &emitted.samples)
            .map(|s| s.unsigned_abs());
        peak.max().expect("is heard") as f32 / 8_388_608.0
    };
    assert!((peak(0) - 0.2997).abs() < 1e-4, "{}", peak(0));
    assert!((0.9..1.0).contains(&peak(1)), "{}", peak(1));
}

#[test]
fn what_cannot_be_mixed_is_counted_and_a_mix_of_nobody_is_silent() {
    let mut bytes = [0; MAX_DATAGRAM_BYTES];
    let mut mixer = Mixer::new(RATE);
    mixer.set_listener(7, SampleFormat::S16, PACKET);
    assert_eq!(mixer.poll_timeout(), None);
    assert_eq!(
        mixer.poll_datagram(Duration::from_secs(1), &mut bytes),
        None
    );
    mixer.set_sources(7, &[source(1)], Duration::ZERO);
    let now = Duration::from_secs(3_600);
    for stream in [1, 2] {
        mixer.handle_audio(stream, &[1; 60], now);
    }
    let stats = |stream| mixer.source_stats(stream);
    assert_eq!(stats(1).map(|s| s.stream.malformed_packets), Some(1));
    assert_eq!(stats(2), None);
    // After an hour asleep, the mix goes on at the clock's time: silent, one packet, the next when it is due.
    let first = mixer.poll_datagram(now, &mut bytes).expect("is due");
    let Ok(Datagram::Audio(header, samples, _)) = wire::parse(&bytes[..first.length]) else {
        panic!("a mix is audio");
    };
    assert_eq!(
        (header.timestamp, header.sequence),
        (3_600 * 48_000 - 128, 0)
    );
    assert!(samples.iter().all(|&byte| byte == 0));
    assert_eq!(first.complete_at, None);
    assert_eq!(mixer.poll_datagram(now, &mut bytes), None);
    let due = now + Duration::from_nanos(128_000_000_000 / 48_000 + 1);
    assert_eq!(mixer.poll_timeout(), Some(due));
    assert!(mixer.poll_datagram(due, &mut bytes).is_some());
}

#[test]
fn packets_of_every_size_are_whole() {
    for (packet_frames, datagrams) in [(16, 1), (245, 1), (246, 2), (512, 3), (5, 1)] {
        let mut bytes = [0; MAX_DATAGRAM_BYTES];
        let mut mixer = Mixer::new(RATE);
        mixer.set_listener(7, SampleFormat::S16, packet_frames);
        mixer.set_sources(7, &[source(1), source(1)], Duration::ZERO);
        let due = mixer.poll_timeout().expect("has sources");
        let early = due - Duration::from_nanos(1);
        assert_eq!(mixer.poll_datagram(early, &mut bytes), None);
        let mut frames = 0;
        for n in 0..datagrams {
            let mixed = mixer.poll_datagram(due, &mut bytes).expect("is due");
            let Ok(Datagram::Audio(header, ..)) = wire::parse(&bytes[..mixed.length]) else {
                panic!("a mix is audio");
            };
            assert_eq!((header.timestamp, header.sequence), (frames, n));
            frames += u64::from(header.frames);
        }
        assert_eq!(frames, packet_frames.max(16) as u64);
        assert_eq!(mixer.poll_datagram(due, &mut bytes), None);
    }
}

#[test]
fn a_sender_makes_the_mixer_decode_no_more_than_a_musician_needs() {
    let one = &datagrams(SHAPES[1])[0][AUDIO_HEADER_BYTES..];
    for (rate, taken, refused) in [(RATE, 200 + 400, 0), (SampleRate::Hz44100, 4_000, 4_000)] {
        let mut mixer = Mixer::new(rate);
        mixer.set_listener(7, SampleFormat::S16, PACKET);
        mixer.set_sources(7, &[source(1)], Duration::ZERO);
        // Twenty times as much as is played, for a second.
        let sent = (0..4_000u32).filter(|&n| {
            let now = Duration::from_micros(u64::from(n) * 250);
            let datagram = datagram(1, 240, n, u64::from(n) * 240, one);
            mixer.handle_audio(1, &datagram, now)
        });
        let sent = sent.count();
        assert!(sent.abs_diff(taken) <= 1, "{sent} at {rate:?}");
        let stats = mixer.source_stats(1).expect("is in a mix").stream;
        assert_eq!(stats.malformed_packets, refused, "{rate:?}");
    }
}

#[test]
fn rooms_that_flood_with_opus_have_so_much_decoded_and_take_it_from_no_class() {
    const SECONDS: u32 = 2;
    let one = &datagrams(SHAPES[1])[0][AUDIO_HEADER_BYTES..];
    let decoding = Decoding::default();
    let room = |sources: u16| {
        let mut mixer = Mixer::sharing(RATE, decoding.clone());
        mixer.set_listener(100, SampleFormat::S16, PACKET);
        let sources: Vec<_> = (1..=sources.into()).map(source).collect();
        mixer.set_sources(100, &sources, Duration::ZERO);
        mixer
    };
    // What one address may have, and a class that comes a second later.
    let mut floods = [room(32), room(32)];
    let mut class = room(20);
    let (mut of_floods, mut of_class) = (0, 0);
    // Packets of 5 ms; floods send four times as many as are played.
    for n in 0..SECONDS * 800 {
        let now = Duration::from_micros(u64::from(n) * 1_250);
        let packet = |n: u32| datagram(1, 240, n, u64::from(n) * 240, one);
        for flood in &mut floods {
            for stream in 1..=32 {
                of_floods += u32::from(flood.handle_audio(stream, &packet(n), now));
            }
        }
        if n >= 800 && n % 4 == 0 {
            let packet = packet(n / 4);
            for stream in 1..=20 {
                of_class += u32::from(class.handle_audio(stream, &packet, now));
            }
        }
    }
    assert_eq!(of_class, 20 * 200, "it hears everything");
    // What 84 play, and a fifth of a second of that at once.
    let most = 84 * 49_000 * SECONDS + 84 * 9_600;
    let frames = 240 * (of_floods + of_class);
    assert!(frames <= most, "{frames} of {most}");
    assert!(of_floods > 64 * 200 * SECONDS, "{of_floods}");
}

#[test]
fn a_mix_is_made_in_each_format_that_its_listener_is_sent_of_the_same_frames() {
    for packet_frames in [16, PACKET, 500, 512] {
        is_made_in_each_format(packet_frames);
    }
}

fn is_made_in_each_format(packet_frames: usize) {
    let mut mixer = Mixer::new(RATE);
    mixer.set_listener(7, SampleFormat::S24, packet_frames);
    mixer.set_sources(7, &[source(1)], Duration::ZERO);
    let mut samples = tone_sender();
    let mut bytes = [0; MAX_DATAGRAM_BYTES];
    let mut ends: [Vec<(u64, SampleFormat)>; 3] = Default::default();
    for n in 0..900 {
        match n {
            300 => mixer.prepare(7, |rung| matches!(rung, Rung::Main | Rung::Narrow), true),
            600 => mixer.prepare(7, |rung| rung == Rung::Main, false),
            _ => {}
        }
        let now = packet_time(n);
        send_tone(&mut mixer, &mut samples, 1, n, now);
        while let Some(mixed) = mixer.poll_datagram(now, &mut bytes) {
            let Ok(Datagram::Audio(header, ..)) = wire::parse(&bytes[..mixed.length]) else {
                panic!("a mix is audio");
            };
            let at = match mixed.rendition {
                Rendition::Samples(Rung::Main) => 0,
                Rendition::Samples(_) => 1,
                Rendition::Feed => 2,
            };
            ends[at].push((header.timestamp + u64::from(header.frames), header.format));
        }
    }
    let formats = [SampleFormat::S24, SampleFormat::S16, SampleFormat::F32];
    for (ends, format) in ends.iter().zip(formats) {
        assert!(ends.iter().all(|(_, its)| *its == format));
    }
    let [main, narrow, feed] =
        ends.map(|ends| ends.into_iter().map(|(end, _)| end).collect::<Vec<_>>());
    let in_steps = |ends: &[u64], frames: usize| {
        let mut pairs = ends.windows(2);
        pairs.all(|pair| pair[1] - pair[0] == frames as u64)
    };
    assert!(in_steps(&feed, FEED_FRAMES), "{packet_frames}");
    // Longer ones are split.
    if packet_frames <= PACKET {
        assert!(in_steps(&main, packet_frames) && in_steps(&narrow, packet_frames));
        assert!(narrow.iter().all(|end| main.contains(end)));
    }
    if packet_frames == PACKET {
        assert_eq!(narrow.len(), 300);
        let frames = FEED_FRAMES * feed.len();
        assert!(
            (300 * PACKET - FEED_FRAMES..=300 * PACKET).contains(&frames),
            "{frames}"
        );
    }
    // Packets of another size do not begin and end with the source's.
    let slack = (packet_frames.max(2 * PACKET) + FEED_FRAMES) as u64;
    for ends in [&narrow, &feed] {
        let frames = ends[ends.len() - 1] - ends[0];
        assert!(
            frames.abs_diff(300 * PACKET as u64) <= slack,
            "{packet_frames}: {frames}"
        );
    }
}

#[test]
fn opus_is_mixed_with_samples_and_a_broken_packet_disturbs_nobody_else() {
    let mut mixer = Mixer::new(RATE);
    mixer.set_listener(7, SampleFormat::S24, PACKET);
    let left = Source {
        pan: -1.0,
        ..source(1)
    };
    let right = Source {
        pan: 1.0,
        ..source(2)
    };
    mixer.set_sources(7, &[left, right], Duration::ZERO);
    let mut samples = Sender::new(SenderConfig {
        rate: RATE,
        format: SampleFormat::S16,
        channels: 1,
        packet_frames: 240,
    });
    let mut bytes = [0; MAX_DATAGRAM_BYTES];
    let mut heard: Vec<[f32; 2]> = Vec::new();
    for (n, mut opus) in datagrams(SHAPES[1]).into_iter().enumerate() {
        let now = Duration::from_millis(5 * n as u64);
        // At the end, so that it does not change what is compared.
        if n == 25 {
            opus[AUDIO_HEADER_BYTES..].fill(0xf4);
        }
        mixer.handle_audio(1, &opus, now);
        samples.push(&[0.25; 240], 240);
        while let Some(length) = samples.poll_datagram(&mut bytes) {
            mixer.handle_audio(2, &bytes[..length], now);
        }
        while let Some(mixed) = mixer.poll_datagram(now, &mut bytes) {
            let Ok(Datagram::Audio(_, samples, _)) = wire::parse(&bytes[..mixed.length]) else {
                panic!("a mix is audio");
            };
            let sample = |bytes: &[u8]| {
                (i32::from_le_bytes([0, bytes[0], bytes[1], bytes[2]]) >> 8) as f32 / 8_388_608.0
            };
            heard.extend(samples.chunks_exact(6).map(|frame| {
                let (left, right) = frame.split_at(3);
                [sample(left), sample(right)]
            }));
        }
    }
    let stats = |stream| mixer.source_stats(stream).expect("is mixed").stream;
    assert_eq!(stats(1).format, Some(StreamFormat::Opus));
    assert_eq!(
        (stats(1).malformed_packets, stats(2).malformed_packets),
        (1, 0)
    );
    assert_eq!((stats(1).sequence.lost, stats(2).sequence.lost), (1, 0));
    assert!((240..480).contains(&stats(1).jitter.concealed_frames));
    assert_eq!(stats(2).jitter.concealed_frames, 0);

    // The first frames are faded in. The decoder is 120 frames behind what was encoded; by how much the mix is, the stream says.
    let settled = 2_000..5_000;
    assert!(
        heard[settled.clone()]
            .iter()
            .all(|frame| frame[1] == heard[2_000][1])
    );
    assert!(heard[2_000][1] > 0.2, "{}", heard[2_000][1]);
    let noise_db = |lag: usize| {
        let (mut signal, mut noise) = (0.0, 0.0);
        for frame in settled.clone() {
            let sent = f64::from(music(frame - lag, 0));
            signal += sent.powi(2);
            noise += (f64::from(heard[frame][0]) - sent).powi(2);
        }
        10.0 * f64::log10(signal / noise)
    };
    let best = (0..1_500).max_by(|&a, &b| noise_db(a).total_cmp(&noise_db(b)));
    let best = best.expect("lags");
    assert!(
        noise_db(best) > 20.0,
        "{} dB, {best} frames late",
        noise_db(best)
    );
}

/// A tone of one voice at half of full scale, which every packet goes on with.
fn tone(n: usize) -> f32 {
    (n as f32 * (440.0 * std::f32::consts::TAU / 48_000.0)).sin() * 0.5
}

/// Sends packet `n` of it.
fn send_tone(mixer: &mut Mixer, sender: &mut Sender, stream: u16, n: u32, now: Duration) {
    let block: Vec<f32> = (PACKET * n as usize..).take(PACKET).map(tone).collect();
    sender.push(&block, PACKET);
    let mut bytes = [0; MAX_DATAGRAM_BYTES];
    let length = sender.poll_datagram(&mut bytes).expect("a packet");
    mixer.handle_audio(stream, &bytes[..length], now);
}

fn tone_sender() -> Sender {
    Sender::new(SenderConfig {
        rate: RATE,
        format: SampleFormat::S16,
        channels: 1,
        packet_frames: PACKET,
    })
}

/// A listener's mix of two, and what they send with.
fn mix_of_two() -> (Mixer, [Sender; 2]) {
    let mut mixer = Mixer::new(RATE);
    mixer.set_listener(7, SampleFormat::S16, PACKET);
    mixer.set_sources(7, &[source(1), source(2)], Duration::ZERO);
    (mixer, [tone_sender(), tone_sender()])
}

fn packet_time(n: u32) -> Duration {
    Duration::from_secs(1) * n * PACKET as u32 / RATE.hz()
}

/// The left channel of what a mixer sends now, and how many of its packets did not wait for all.
fn left(mixer: &mut Mixer, now: Duration) -> (Vec<f32>, usize) {
    let mut bytes = [0; MAX_DATAGRAM_BYTES];
    let (mut left, mut incomplete) = (Vec::new(), 0);
    while let Some(mixed) = mixer.poll_datagram(now, &mut bytes) {
        let Ok(Datagram::Audio(_, samples, _)) = wire::parse(&bytes[..mixed.length]) else {
            panic!("a mix is audio");
        };
        let frames = samples.chunks_exact(4);
        left.extend(
            frames.map(|frame| f32::from(i16::from_le_bytes([frame[0], frame[1]])) / 32_768.0),
        );
        incomplete += usize::from(mixed.complete_at.is_none());
    }
    (left, incomplete)
}

#[test]
fn what_lies_unread_after_a_standstill_is_not_missing() {
    for says_so in [true, false] {
        let (mut mixer, mut senders) = mix_of_two();
        for n in 0..800 {
            // In the 401st packet's time the host stands still for 24 ms.
            let is_held = (400..409).contains(&n);
            let now = packet_time(if is_held { 409 } else { n });
            for (stream, sender) in (1..).zip(&mut senders) {
                let arrived = if is_held && says_so {
                    packet_time(400)
                } else {
                    now
                };
                mixer.handed_over(arrived);
                send_tone(&mut mixer, sender, stream, n, arrived);
                left(&mut mixer, now);
            }
        }
        let concealed: u64 = (1..=2)
            .map(|stream| mixer.source_counts(stream).expect("mixed").concealed_frames)
            .sum();
        assert_eq!(concealed == 0, says_so, "{concealed}");
    }
}

#[test]
fn who_leaves_a_mix_fades_out() {
    let (mut mixer, mut senders) = mix_of_two();
    let mut heard = Vec::new();
    for n in 0..500 {
        let now = packet_time(n);
        match n {
            300 => {
                mixer.set_expected(2, false);
                mixer.set_sources(7, &[source(1)], now);
            }
            400 => {
                mixer.set_expected(1, false);
                mixer.set_sources(7, &[], now);
            }
            _ => {}
        }
        for (stream, sender) in (1..).zip(&mut senders) {
            if stream == 1 && n < 400 || n < 300 {
                send_tone(&mut mixer, sender, stream, n, now);
            }
        }
        heard.extend(left(&mut mixer, now).0);
    }
    assert!(mixer.source_counts(1).is_none() && mixer.source_counts(2).is_none());
    assert_eq!(mixer.poll_timeout(), None);
    let steps = heard[4_000..]
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).abs());
    let steepest = steps.fold(0.0, f32::max);
    // Two voices' own steepest step is 0.058.
    assert!(steepest < 0.08, "{steepest}");
}

#[test]
fn a_mix_waits_for_nobody_who_is_silent_in_it_or_cannot_send() {
    for is_muted_for_all in [true, false] {
        let (mut mixer, mut senders) = mix_of_two();
        let mut incomplete = 0;
        for n in 0..800 {
            let now = packet_time(n);
            if n == 400 && is_muted_for_all {
                mixer.set_expected(2, false);
            }
            if n == 390 && !is_muted_for_all {
                let muted = Source {
                    muted: true,
                    ..source(2)
                };
                mixer.set_sources(7, &[source(1), muted], now);
            }
            for (stream, sender) in (1..).zip(&mut senders) {
                if stream == 1 || n < 400 {
                    send_tone(&mut mixer, sender, stream, n, now);
                }
            }
            let now_incomplete = left(&mut mixer, now).1;
            incomplete += if n > 400 { now_incomplete } else { 0 };
        }
        assert_eq!(incomplete, 0, "{is_muted_for_all}");
        // What is not waited for does not pile up either.
        let stats = mixer.source_stats(2).expect("mixed");
        let clock = packet_time(799).as_millis() as u64 * 48;
        assert!(clock.abs_diff(stats.rendered_end) < 2_000, "{stats:?}");
    }
}
