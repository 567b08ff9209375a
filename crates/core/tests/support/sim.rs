//! A sender, a network and a player in virtual time.
//!
//! Both devices start at 0 and count frames on clocks of their own. The *delay* of a frame is its index in the output less
//! its index in the input. The *need* is the least constant delay with which all frames but a share would have been in time: what a
//! player that knew the future would choose. Neither contains the buffers of the devices.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use antiphon_core::wire::MAX_DATAGRAM_BYTES;
use antiphon_core::{
    Command, Player, SampleFormat, SampleRate, Sender, SenderConfig, StreamStats, Target,
};

use super::{Random, TAGS, media_of, player, stats, tag};

pub const ID: u32 = 1;
pub const RATE_HZ: f64 = 48_000.0;
pub const MS: f64 = 0.001;

/// What the devices and the network are like now.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// Frames that the capturing browser hands over at a time.
    pub capture_burst: usize,
    /// Frames that the rendering browser asks for at a time, in quanta of 128 or less.
    pub render_burst: usize,
    /// Longest that either's thread may be late, uniform.
    pub scheduling_s: f64,
    /// Least time on the way, and the most that is added to it, uniform: packets overtake one another.
    pub network_s: f64,
    pub network_jitter_s: f64,
    /// Share of packets lost.
    pub loss: f64,
    /// Share of packets sent twice.
    pub duplication: f64,
}

pub const QUIET: Conditions = Conditions {
    capture_burst: 128,
    render_burst: 128,
    scheduling_s: 0.5 * MS,
    network_s: 5.0 * MS,
    network_jitter_s: 0.5 * MS,
    loss: 0.0,
    duplication: 0.0,
};

pub const CHROMIUM: Conditions = Conditions {
    capture_burst: 1_024,
    scheduling_s: 2.0 * MS,
    ..QUIET
};

/// What happened during one [`Sim::run`].
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub before: StreamStats,
    pub after: StreamStats,
    /// Of the last frame heard.
    pub delay_frames: Option<i64>,
    /// With which one in a thousand frames would have been late.
    pub need_frames: i64,
}

impl Window {
    pub fn concealed_frames(&self) -> u64 {
        self.after.jitter.concealed_frames - self.before.jitter.concealed_frames
    }

    pub fn concealed_share(&self) -> f64 {
        let played = self.after.jitter.played_frames - self.before.jitter.played_frames;
        self.concealed_frames() as f64 / (played + self.concealed_frames()).max(1) as f64
    }

    pub fn resyncs(&self) -> u64 {
        self.after.jitter.resyncs - self.before.jitter.resyncs
    }

    /// Delay beyond the need.
    pub fn excess_frames(&self) -> i64 {
        self.delay_frames.expect("something is heard") - self.need_frames
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct InFlight {
    arrival_ns: u64,
    number: u64,
    bytes: Vec<u8>,
}

pub struct Sim {
    pub conditions: Conditions,
    pub player: Player,
    pub sender: Sender,
    /// Parts per million by which the sender's clock is fast.
    pub skew_ppm: f64,
    /// Neither capture nor packets until then.
    pub sender_paused_until_s: f64,
    /// Packets wait in the network until then.
    pub network_held_until_s: f64,
    /// By how much the output stood still so far: so much later everything is rendered.
    pub output_slipped_s: f64,
    /// By how much the capture stood still so far: so much later everything is captured.
    pub capture_slipped_s: f64,
    /// Frames of the packets that arrived, duplicates not counted.
    pub arrived_frames: u64,
    /// The stream was resampled at some time: what was heard are not all frames as they were sent.
    pub was_resampled: bool,
    /// All that was heard.
    pub heard: Vec<f32>,
    random: Random,
    network: BinaryHeap<Reverse<InFlight>>,
    sent: u64,
    now_s: f64,
    captured: u64,
    /// Media time of the sender's frame 0, for senders that started later.
    media_offset: u64,
    next_capture_s: f64,
    next_render_s: f64,
    arrivals: Vec<i64>,
    delay_frames: Option<i64>,
}

fn sender(packet_frames: usize) -> Sender {
    Sender::new(SenderConfig {
        rate: SampleRate::Hz48000,
        format: SampleFormat::F32,
        channels: 1,
        packet_frames,
    })
}

impl Sim {
    pub fn new(conditions: Conditions, target: Target, packet_frames: usize, seed: u64) -> Self {
        let mut player = player(1, 4, 16_384);
        player.handle_command(Command::Add(ID)).expect("fits");
        player
            .handle_command(Command::Target(ID, target))
            .expect("is there");
        Self {
            conditions,
            player,
            sender: sender(packet_frames),
            skew_ppm: 0.0,
            sender_paused_until_s: 0.0,
            network_held_until_s: 0.0,
            output_slipped_s: 0.0,
            capture_slipped_s: 0.0,
            arrived_frames: 0,
            was_resampled: false,
            heard: Vec::new(),
            random: Random(seed),
            network: BinaryHeap::new(),
            sent: 0,
            now_s: 0.0,
            captured: 0,
            media_offset: 0,
            next_capture_s: 0.0,
            next_render_s: 0.0,
            arrivals: Vec::new(),
            delay_frames: None,
        }
    }

    pub fn now_s(&self) -> f64 {
        self.now_s
    }

    /// The sender's page was loaded anew: sequence numbers and media time from 0.
    pub fn restart_sender(&mut self) {
        self.media_offset = self.captured;
        self.sender = sender(self.sender.config().packet_frames);
    }

    /// Lets `seconds` pass.
    pub fn run(&mut self, seconds: f64) -> Window {
        let end_s = self.now_s + seconds;
        let before = stats(&self.player, ID);
        self.arrivals.clear();
        self.delay_frames = None;
        loop {
            let arrival_s = self
                .network
                .peek()
                .map_or(f64::INFINITY, |Reverse(packet)| {
                    (packet.arrival_ns as f64 * 1e-9).max(self.network_held_until_s)
                });
            let next_s = arrival_s.min(self.next_capture_s).min(self.next_render_s);
            if next_s >= end_s {
                break;
            }
            self.now_s = next_s;
            if next_s == arrival_s {
                self.arrive();
            } else if next_s == self.next_capture_s {
                self.capture();
            } else {
                self.render();
            }
        }
        self.now_s = end_s;
        self.arrivals.sort_unstable();
        let need = self.arrivals.len() * 999 / 1_000;
        Window {
            before,
            after: stats(&self.player, ID),
            delay_frames: self.delay_frames,
            need_frames: self.arrivals.get(need).copied().unwrap_or(0),
        }
    }

    fn capture(&mut self) {
        let frames = self.conditions.capture_burst;
        if self.now_s >= self.sender_paused_until_s {
            let first = self.captured - self.media_offset;
            let input: Vec<f32> = (0..frames as u64).map(|n| tag(first + n, 0)).collect();
            self.sender.push(&input, frames);
            let mut out = [0; MAX_DATAGRAM_BYTES];
            while let Some(length) = self.sender.poll_datagram(&mut out) {
                self.send(&out[..length]);
            }
        }
        self.captured += frames as u64;
        let due_s = (self.captured + frames as u64) as f64
            / (RATE_HZ * (1.0 + self.skew_ppm * 1e-6))
            + self.capture_slipped_s;
        self.next_capture_s = self
            .now_s
            .max(due_s + self.random.unit() * self.conditions.scheduling_s);
    }

    fn send(&mut self, bytes: &[u8]) {
        let conditions = self.conditions;
        if self.random.unit() < conditions.loss {
            return;
        }
        let copies = 1 + u64::from(self.random.unit() < conditions.duplication);
        for _ in 0..copies {
            let jitter_s = self.random.unit() * conditions.network_jitter_s;
            let arrival_s = self.now_s + conditions.network_s + jitter_s;
            self.sent += 1;
            self.network.push(Reverse(InFlight {
                arrival_ns: (arrival_s * 1e9) as u64,
                number: self.sent,
                bytes: bytes.to_vec(),
            }));
        }
    }

    fn arrive(&mut self) {
        let Some(Reverse(packet)) = self.network.pop() else {
            return;
        };
        let first = f32::from_le_bytes(packet.bytes[20..24].try_into().expect("4 bytes"));
        self.arrivals.push(self.delay_of(first, self.heard.len()));
        let before = stats(&self.player, ID).sequence.received;
        let at_ns = (self.now_s * 1e3) as u64 * 1_000_000;
        self.player.handle_datagram_at(ID, &packet.bytes, at_ns);
        if stats(&self.player, ID).sequence.received > before {
            self.arrived_frames += u64::from(packet.bytes[6]) + 256 * u64::from(packet.bytes[7]);
        }
    }

    /// Of a tagged sample, heard as or arriving before output frame `index`.
    fn delay_of(&self, sample: f32, index: usize) -> i64 {
        let media = media_of(sample).expect("a tag") + self.media_offset;
        let delay = (index as i64 - media as i64).rem_euclid(TAGS as i64);
        // Clocks apart may make it negative.
        if delay > TAGS as i64 / 2 {
            delay - TAGS as i64
        } else {
            delay
        }
    }

    fn render(&mut self) {
        let burst = self.conditions.render_burst;
        for _ in 0..burst.div_ceil(128) {
            let mut out = vec![0.0; burst.min(128)];
            // As coarse as a browser's clock is on its audio thread.
            self.player.keep_time((self.now_s * 1e3) as u64 * 1_000_000);
            self.player.process_quantum(&mut out);
            let known = self.player.stream_stats(ID);
            self.was_resampled |= known.is_some_and(|known| known.is_resampled);
            // Two frames in a row: within a fade a sample may happen to look like a tag.
            if let [.., a, b] = out[..]
                && let Some(media) = media_of(a)
                && media_of(b) == Some(media + 1)
            {
                self.delay_frames = Some(self.delay_of(b, self.heard.len() + out.len() - 1));
            }
            self.heard.extend(out);
        }
        let due_s = self.heard.len() as f64 / RATE_HZ + self.output_slipped_s;
        self.next_render_s = self
            .now_s
            .max(due_s + self.random.unit() * self.conditions.scheduling_s);
    }
}
