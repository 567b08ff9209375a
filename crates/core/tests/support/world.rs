//! Endpoints joined by emulated links, in virtual time.
//!
//! Every endpoint has a capture device and an output device, each with a clock of its own. Of each direction a [`Track`] is
//! kept, from which a [`Report`] is made. Delays are counted in frames of the sender's clock, beyond the link's least one-way
//! delay and without the buffers of the devices: a frame's delay is what the capture clock reads when the output clock
//! reaches the frame, less the frame's media time. So clocks apart add no delay of themselves, and a player that hides them well has a
//! constant one.
//!
//! The engine sees a datagram only with the next quantum, so links are emptied when an output wants frames.
#![allow(dead_code, unreachable_pub, reason = "each user uses a part")]

use std::fmt;
use std::rc::Rc;

use antiphon_core::conceal::Concealment;
use antiphon_core::jitter::JitterCounts;
use antiphon_core::player::MAX_QUANTUM_FRAMES;
use antiphon_core::playout::DEFAULT_BUDGET;
use antiphon_core::wire::{self, Datagram, MAX_DATAGRAM_BYTES};
use antiphon_core::{
    Command, Player, PlayerConfig, SampleFormat, SampleRate, Sender, SenderConfig, Target,
};
use antiphon_netem::{Direction, Line, LinkConfig, Plan, Profile, Verdict};

use crate::golden::Log;
use crate::support::{Random, TAGS, media_of, tag};

pub const RATE_HZ: f64 = 48_000.0;
const NS_PER_S: f64 = 1e9;
const NS_PER_MS: f64 = 1e6;
const FRAMES_PER_NS: f64 = RATE_HZ / NS_PER_S;
pub const QUANTUM_FRAMES: usize = 128;
/// Around each datagram: IPv4 20, UDP 8, DTLS 1.2 with AES-GCM 37, SCTP 28.
const OVERHEAD_BYTES: usize = 93;
/// How often a direction is sampled: asking a player for its statistics costs as much as a quantum.
const SAMPLE_FRAMES: u64 = 256;
/// Longer without a frame played than any concealment can hide.
const HARD_GAP_FRAMES: u64 = 960;
/// Share of packets that the player that knows the future gives up.
const NEED_SHARE: f64 = 0.001;

/// A sound device: its clock, and how its thread behaves.
#[derive(Clone, Copy, Debug)]
pub struct DeviceConfig {
    /// Parts per million by which its clock is fast.
    pub ppm: f64,
    /// Comes on top, up and down as a triangle that begins at 0.
    pub wander_ppm: f64,
    pub wander_period_s: f64,
    /// Frames handed over, or asked for, at a time.
    pub burst_frames: usize,
    /// Longest that its thread may be late, uniform.
    pub scheduling_ms: f64,
}

/// As good as devices get.
pub const QUIET: DeviceConfig = DeviceConfig {
    ppm: 0.0,
    wander_ppm: 0.0,
    wander_period_s: 600.0,
    burst_frames: 128,
    scheduling_ms: 0.5,
};

/// One participant.
#[derive(Clone, Copy, Debug)]
pub struct EndpointConfig {
    pub capture: DeviceConfig,
    pub output: DeviceConfig,
    pub packet_frames: usize,
    /// Of every stream it hears.
    pub target: Target,
    /// The glitch budget of an automatic target.
    pub budget: f32,
    pub concealment: Concealment,
    /// The sample of a media time.
    pub input: fn(u64) -> f32,
}

impl Default for EndpointConfig {
    fn default() -> Self {
        Self {
            capture: QUIET,
            output: QUIET,
            packet_frames: 128,
            target: Target::Auto,
            budget: DEFAULT_BUDGET,
            concealment: Concealment::Prediction,
            input: |media| tag(media, 0),
        }
    }
}

/// What a plan can do. Endpoints are named by the order in which they came.
#[derive(Clone, Debug)]
pub enum Event {
    /// The link from one to another is like this from now on.
    Link(usize, usize, LinkConfig),
    /// What arrives from one to another waits for so many ms.
    Hold(usize, usize, f64),
    /// An endpoint captures nothing for so many ms.
    Pause(usize, f64),
    /// An endpoint's output stands still for so many ms.
    Slip(usize, f64),
    /// An endpoint's sender starts anew: sequence numbers and media time from 0.
    Restart(usize),
    /// The clocks of an endpoint's devices, capture and output, change to so many ppm.
    Clocks(usize, f64, f64),
    /// How deep an endpoint buffers.
    Target(usize, Target),
    /// One more comes, joined by links of the world's profile.
    Join(EndpointConfig),
    /// One goes for good.
    Leave(usize),
}

/// At `due_ns` the clock reads `frames`.
#[derive(Debug)]
struct Device {
    config: DeviceConfig,
    frames: u64,
    due_ns: f64,
    wakes_ns: u64,
}

impl Device {
    fn new(config: DeviceConfig, frames: u64, now_ns: u64, random: &mut Random) -> Self {
        let mut device = Self {
            config,
            frames,
            due_ns: now_ns as f64,
            wakes_ns: now_ns,
        };
        // Devices start in no phase with each other.
        let phase = 1.0 + random.unit();
        device.due_ns += phase * config.burst_frames as f64 * device.frame_ns();
        device.sleep(random);
        device
    }

    fn frame_ns(&self) -> f64 {
        let DeviceConfig {
            ppm,
            wander_ppm,
            wander_period_s,
            ..
        } = self.config;
        let turn = (self.due_ns / (wander_period_s * NS_PER_S) + 0.25).fract();
        let wander = wander_ppm * (1.0 - 4.0 * (turn - 0.5).abs());
        NS_PER_S / (RATE_HZ * (1.0 + (ppm - wander) * 1e-6))
    }

    /// What the clock reads at another instant, not far away.
    fn frames_at(&self, ns: f64) -> f64 {
        self.frames as f64 + (ns - self.due_ns) / self.frame_ns()
    }

    fn advance(&mut self, random: &mut Random) {
        self.due_ns += self.config.burst_frames as f64 * self.frame_ns();
        self.frames += self.config.burst_frames as u64;
        self.sleep(random);
    }

    fn sleep(&mut self, random: &mut Random) {
        let late_ns = random.unit() * self.config.scheduling_ms * NS_PER_MS;
        self.wakes_ns = self.wakes_ns.max((self.due_ns + late_ns) as u64);
    }
}

struct Endpoint {
    config: EndpointConfig,
    /// Of its own, so that nobody's presence changes what happens to others.
    random: Random,
    capture: Device,
    output: Device,
    sender: Sender,
    player: Player,
    paused_until_ns: u64,
    /// Datagrams sent, also by the senders before a restart.
    sent: u64,
    has_left: bool,
}

#[derive(Clone)]
struct Packet {
    bytes: Rc<[u8]>,
    number: u64,
    /// What the capture clock read at the sender's frame 0.
    origin: u64,
}

/// One direction.
struct Path {
    line: Line<Packet>,
    link: LinkConfig,
    held_until_ns: u64,
    track: Track,
}

/// What happened to a stream since the last sample.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    at_ns: u64,
    /// Beyond the link's least; unknown while nothing waits.
    delay_frames: Option<i32>,
    counts: JitterCounts,
}

/// The course of one direction.
#[derive(Debug, Default, PartialEq)]
pub struct Track {
    samples: Vec<Sample>,
    /// When a packet came, and with which delay its first frame would have been in time.
    arrivals: Vec<(u64, i32)>,
    /// When the link lost or dropped how many frames.
    lost: Vec<(u64, u32)>,
    /// By the capture clock: the end of the newest packet, and its sender's frame 0.
    newest_end: u64,
    last: JitterCounts,
    next_sample: u64,
    /// Samples in which tags said another delay than the player.
    pub contradictions: u64,
    /// Samples in which tags said the same.
    pub agreements: u64,
}

/// What a direction was like for some time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    pub played_frames: u64,
    pub concealed_frames: u64,
    /// By the link.
    pub lost_frames: u64,
    pub skipped_frames: u64,
    /// Times frames were skipped.
    pub skips: u64,
    /// Times nothing was played for [`HARD_GAP_FRAMES`] and more.
    pub hard_gaps: u64,
    pub underruns: u64,
    pub resyncs: u64,
    pub delay_median_frames: Option<i32>,
    pub delay_p99_frames: Option<i32>,
    /// What a player that knew the future would have chosen.
    pub need_frames: Option<i32>,
    /// Of any 10 s, counted from the beginning.
    pub worst_concealed_share: f64,
}

impl Report {
    pub fn concealed_share(&self) -> f64 {
        share(self.concealed_frames, self.played_frames)
    }

    /// The median of the delay beyond the need.
    pub fn excess_frames(&self) -> Option<i32> {
        Some(self.delay_median_frames? - self.need_frames?)
    }

    /// Concealed although the link delivered them, or more often than it lost them.
    pub fn beyond_loss_share(&self) -> f64 {
        let beyond = self.concealed_frames.saturating_sub(self.lost_frames);
        beyond as f64 / (self.concealed_frames + self.played_frames).max(1) as f64
    }
}

/// What a printed [`Report`] holds: shares in %, delays in ms.
pub const REPORT_HEADING: &str =
    " conceal  in 10 s   beyond gaps skips skipped under resync   need median    p99";

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |frames: Option<i32>| frames.map_or("-".into(), |f| format!("{:.1}", to_ms(f)));
        write!(
            f,
            "{:>8.3} {:>8.3} {:>8.3} {:>4} {:>5} {:>7} {:>5} {:>6} {:>6} {:>6} {:>6}",
            100.0 * self.concealed_share(),
            100.0 * self.worst_concealed_share,
            100.0 * self.beyond_loss_share(),
            self.hard_gaps,
            self.skips,
            self.skipped_frames,
            self.underruns,
            self.resyncs,
            ms(self.need_frames),
            ms(self.delay_median_frames),
            ms(self.delay_p99_frames),
        )
    }
}

pub fn to_ms(frames: i32) -> f64 {
    1_000.0 * f64::from(frames) / RATE_HZ
}

fn share(of: u64, and: u64) -> f64 {
    of as f64 / (of + and).max(1) as f64
}

impl Track {
    /// What happened in `[from_s, to_s)`.
    pub fn report(&self, from_s: f64, to_s: f64) -> Report {
        let range = (from_s * NS_PER_S) as u64..(to_s * NS_PER_S) as u64;
        let samples = &self.samples[self.samples.partition_point(|s| s.at_ns < range.start)
            ..self.samples.partition_point(|s| s.at_ns < range.end)];
        let sum = |of: fn(&JitterCounts) -> u64| samples.iter().map(|s| of(&s.counts)).sum();
        let mut delays: Vec<i32> = samples.iter().filter_map(|s| s.delay_frames).collect();
        delays.sort_unstable();
        let mut arrivals: Vec<i32> = self
            .arrivals
            .iter()
            .filter(|(at_ns, _)| range.contains(at_ns))
            .map(|&(_, delay)| delay)
            .collect();
        arrivals.sort_unstable();
        Report {
            played_frames: sum(|counts| counts.played_frames),
            concealed_frames: sum(|counts| counts.concealed_frames),
            lost_frames: self
                .lost
                .iter()
                .filter(|(at_ns, _)| range.contains(at_ns))
                .map(|&(_, frames)| u64::from(frames))
                .sum(),
            skipped_frames: sum(|counts| counts.skipped_frames),
            skips: sum(|counts| u64::from(counts.skipped_frames > 0)),
            hard_gaps: hard_gaps(samples),
            underruns: sum(|counts| counts.underruns),
            resyncs: sum(|counts| counts.resyncs),
            delay_median_frames: quantile(&delays, 0.5),
            delay_p99_frames: quantile(&delays, 0.99),
            need_frames: quantile(&arrivals, 1.0 - NEED_SHARE),
            worst_concealed_share: worst_share(samples),
        }
    }

    /// Seconds after `from_s` until the delay stays within 10 ms of `settled_frames` for a second; `None` if it never does.
    pub fn settle_s(&self, from_s: f64, settled_frames: i32) -> Option<f64> {
        let from_ns = (from_s * NS_PER_S) as u64;
        let mut since = None;
        for sample in self.samples.iter().filter(|s| s.at_ns >= from_ns) {
            match sample.delay_frames {
                Some(delay) if delay.abs_diff(settled_frames) <= 480 => {
                    let since = *since.get_or_insert(sample.at_ns);
                    if sample.at_ns - since >= NS_PER_S as u64 {
                        return Some((since - from_ns) as f64 / NS_PER_S);
                    }
                }
                Some(_) => since = None,
                None => {}
            }
        }
        None
    }
}

fn quantile(sorted: &[i32], share: f64) -> Option<i32> {
    let last = sorted.len().checked_sub(1)?;
    Some(sorted[(last as f64 * share).round() as usize])
}

fn hard_gaps(samples: &[Sample]) -> u64 {
    let (mut gaps, mut silent) = (0, 0);
    for Sample { counts, .. } in samples {
        if counts.played_frames > 0 {
            silent = 0;
            continue;
        }
        let before = silent;
        silent += counts.concealed_frames;
        gaps += u64::from(before < HARD_GAP_FRAMES && silent >= HARD_GAP_FRAMES);
    }
    gaps
}

fn worst_share(samples: &[Sample]) -> f64 {
    let first_ns = samples.first().map_or(0, |sample| sample.at_ns);
    samples
        .chunk_by(|a, b| {
            let window = |s: &Sample| (s.at_ns - first_ns) / (10 * NS_PER_S as u64);
            window(a) == window(b)
        })
        .map(|window| {
            let sum = |of: fn(&JitterCounts) -> u64| window.iter().map(|s| of(&s.counts)).sum();
            share(sum(|c| c.concealed_frames), sum(|c| c.played_frames))
        })
        .fold(0.0, f64::max)
}

fn difference(now: JitterCounts, before: JitterCounts) -> JitterCounts {
    JitterCounts {
        late_packets: now.late_packets - before.late_packets,
        received_frames: now.received_frames - before.received_frames,
        played_frames: now.played_frames - before.played_frames,
        concealed_frames: now.concealed_frames - before.concealed_frames,
        skipped_frames: now.skipped_frames - before.skipped_frames,
        late_frames: now.late_frames - before.late_frames,
        copied_frames: now.copied_frames - before.copied_frames,
        underruns: now.underruns - before.underruns,
        resyncs: now.resyncs - before.resyncs,
    }
}

/// Everybody, and everything on its way.
pub struct World {
    seed: u64,
    profile: Profile,
    now_ns: u64,
    endpoints: Vec<Endpoint>,
    /// `[from][to]`; none from an endpoint to itself.
    paths: Vec<Vec<Option<Path>>>,
    /// Checks delays against the tags, which only means something while no sample is made up or resampled.
    pub reads_tags: bool,
    /// Of endpoint 1: see [`Log`].
    pub log: Option<Log>,
}

impl World {
    /// Endpoints 0, 1, ... joined by `profile`: who came earlier is its left.
    pub fn new(seed: u64, profile: Profile, endpoints: &[EndpointConfig]) -> Self {
        let mut world = Self {
            seed,
            profile,
            now_ns: 0,
            endpoints: Vec::new(),
            paths: Vec::new(),
            reads_tags: false,
            log: None,
        };
        for &config in endpoints {
            world.join(config);
        }
        world
    }

    pub fn now_s(&self) -> f64 {
        self.now_ns as f64 / NS_PER_S
    }

    /// The direction from one endpoint to another, since both were there.
    pub fn track(&self, from: usize, to: usize) -> &Track {
        let path = self.paths[from][to].as_ref();
        &path.expect("two endpoints").track
    }

    pub fn player(&self, of: usize) -> &Player {
        &self.endpoints[of].player
    }

    /// Lets time pass until `until_s`, with events at their instants.
    pub fn play(&mut self, events: &[(f64, Event)], until_s: f64) {
        for (at_s, event) in events {
            self.run_until(*at_s);
            self.apply(event.clone());
        }
        self.run_until(until_s);
    }

    pub fn run_until(&mut self, end_s: f64) {
        let end_ns = (end_s * NS_PER_S) as u64;
        loop {
            let present = (0..).zip(&self.endpoints).filter(|(_, e)| !e.has_left);
            let next = present
                .flat_map(|(n, e)| [(e.capture.wakes_ns, false, n), (e.output.wakes_ns, true, n)])
                .min();
            match next {
                Some((at_ns, is_output, n)) if at_ns < end_ns => {
                    self.now_ns = at_ns;
                    if is_output {
                        self.render(n);
                    } else {
                        self.capture(n);
                    }
                }
                _ => break,
            }
        }
        self.now_ns = end_ns;
    }

    pub fn apply(&mut self, event: Event) {
        let until = |ms: f64| self.now_ns + (ms * NS_PER_MS) as u64;
        match event {
            Event::Link(from, to, link) => {
                let plan = self.plan(from, to, link.clone());
                let now_ns = self.now_ns;
                let path = self.path(from, to);
                path.link = link;
                path.line.set_plan(&plan, now_ns).expect("a valid link");
            }
            Event::Hold(from, to, ms) => {
                let until_ns = until(ms);
                self.path(from, to).held_until_ns = until_ns;
            }
            Event::Pause(of, ms) => self.endpoints[of].paused_until_ns = until(ms),
            Event::Slip(of, ms) => {
                self.endpoints[of].output.due_ns += ms * NS_PER_MS;
                self.endpoints[of].output.wakes_ns += (ms * NS_PER_MS) as u64;
            }
            Event::Restart(of) => {
                self.endpoints[of].sender = sender(self.endpoints[of].config.packet_frames);
            }
            Event::Clocks(of, capture_ppm, output_ppm) => {
                self.endpoints[of].capture.config.ppm = capture_ppm;
                self.endpoints[of].output.config.ppm = output_ppm;
            }
            Event::Target(of, target) => {
                for id in (0..self.endpoints.len()).filter(|&id| id != of) {
                    // Those who left are unknown.
                    let command = Command::Target(id as u32, target);
                    let _ = self.endpoints[of].player.handle_command(command);
                }
            }
            Event::Join(config) => self.join(config),
            Event::Leave(of) => {
                self.endpoints[of].has_left = true;
                for endpoint in self.endpoints.iter_mut().filter(|e| !e.has_left) {
                    let command = Command::Remove(of as u32);
                    endpoint.player.handle_command(command).expect("was there");
                }
            }
        }
    }

    fn join(&mut self, config: EndpointConfig) {
        let new = self.endpoints.len();
        let mut random = Random(self.seed.wrapping_add(new as u64 * 1_000_003));
        let first = config.capture.burst_frames as u64;
        self.endpoints.push(Endpoint {
            config,
            capture: Device::new(config.capture, first, self.now_ns, &mut random),
            output: Device::new(config.output, 0, self.now_ns, &mut random),
            random,
            sender: sender(config.packet_frames),
            player: Player::new(PlayerConfig {
                rate: SampleRate::Hz48000,
                output_channels: 1,
                max_streams: 16,
                buffer_frames: 32_768,
                max_quantum_frames: MAX_QUANTUM_FRAMES,
                concealment: config.concealment,
            }),
            paused_until_ns: 0,
            sent: 0,
            has_left: false,
        });
        self.paths.push((0..new).map(|_| None).collect());
        self.paths[new].push(None);
        for other in 0..new {
            let up = self.new_path(other, new);
            self.paths[other].push(Some(up));
            self.paths[new][other] = Some(self.new_path(new, other));
            if !self.endpoints[other].has_left {
                self.hear(other, new);
                self.hear(new, other);
            }
        }
    }

    fn hear(&mut self, of: usize, other: usize) {
        let Endpoint { config, player, .. } = &mut self.endpoints[of];
        let id = other as u32;
        for command in [
            Command::Add(id),
            Command::Target(id, config.target),
            Command::Budget(id, config.budget),
        ] {
            player.handle_command(command).expect("fits");
        }
    }

    fn new_path(&self, from: usize, to: usize) -> Path {
        let link = match direction(from, to) {
            Direction::LeftToRight => &self.profile.left_to_right,
            Direction::RightToLeft => &self.profile.right_to_left,
        };
        let plan = self.plan(from, to, link.clone());
        Path {
            line: Line::new(&plan, direction(from, to), self.now_ns).expect("a valid link"),
            link: link.clone(),
            held_until_ns: 0,
            track: Track::default(),
        }
    }

    fn plan(&self, from: usize, to: usize, link: LinkConfig) -> Plan {
        let pair = (from.min(to) * 1_000 + from.max(to)) as u64;
        let seed = self.seed.wrapping_mul(1_000_000).wrapping_add(pair);
        Plan::steady(seed, link.clone(), link)
    }

    fn path(&mut self, from: usize, to: usize) -> &mut Path {
        self.paths[from][to].as_mut().expect("two endpoints")
    }

    fn capture(&mut self, from: usize) {
        let endpoint = &mut self.endpoints[from];
        let burst = endpoint.capture.config.burst_frames;
        let first = endpoint.capture.frames - burst as u64;
        endpoint.capture.advance(&mut endpoint.random);
        if self.now_ns < endpoint.paused_until_ns {
            return;
        }
        let origin = first - endpoint.sender.stats().captured_frames;
        let input: Vec<f32> = (0..burst as u64)
            .map(|n| (endpoint.config.input)(first + n))
            .collect();
        endpoint.sender.push(&input, burst);
        endpoint.sender.flush(burst);
        let mut bytes = [0; MAX_DATAGRAM_BYTES];
        while let Some(length) = endpoint.sender.poll_datagram(&mut bytes) {
            let packet = Packet {
                bytes: bytes[..length].into(),
                number: endpoint.sent,
                origin,
            };
            endpoint.sent += 1;
            for path in self.paths[from].iter_mut().flatten() {
                let size_bytes = (length + OVERHEAD_BYTES) as u32;
                let verdict = path.line.push(packet.clone(), size_bytes, self.now_ns);
                if let Verdict::Lost | Verdict::QueueDropped = verdict {
                    let frames = u32::from(header(&packet).frames);
                    path.track.lost.push((self.now_ns, frames));
                }
            }
        }
    }

    fn render(&mut self, to: usize) {
        let (now_ns, due_ns) = (self.now_ns, self.endpoints[to].output.due_ns);
        for from in (0..self.endpoints.len()).filter(|&from| from != to) {
            let path = self.paths[from][to].as_mut().expect("two endpoints");
            if now_ns < path.held_until_ns {
                continue;
            }
            let captured = self.endpoints[from].capture.frames_at(due_ns);
            while let Some(came_ns) = path.line.poll_at().filter(|&at_ns| at_ns <= now_ns)
                && let Some(packet) = path.line.pop(now_ns)
            {
                // A thread that is never as late as the audio thread sees to that.
                let at_ms = came_ns.max(path.held_until_ns) / NS_PER_MS as u64;
                self.endpoints[to].player.handle_datagram_at(
                    from as u32,
                    &packet.bytes,
                    at_ms * NS_PER_MS as u64,
                );
                let header = header(&packet);
                let media = packet.origin + header.timestamp;
                let least = least_frames(&path.link, packet.bytes.len());
                let delay = captured - media as f64 - least;
                path.track.arrivals.push((now_ns, delay as i32));
                let end = media + u64::from(header.frames);
                path.track.newest_end = path.track.newest_end.max(end);
                if let Some(log) = self.log.as_mut().filter(|_| to == 1) {
                    log.datagram(packet.number, at_ms);
                }
            }
        }
        let endpoint = &mut self.endpoints[to];
        let burst = endpoint.output.config.burst_frames;
        let mut out = [0.0; QUANTUM_FRAMES];
        // As coarse as a browser's clock is on its audio thread.
        let now_ms = now_ns / NS_PER_MS as u64;
        for done in (0..burst).step_by(QUANTUM_FRAMES) {
            let out = &mut out[..QUANTUM_FRAMES.min(burst - done)];
            endpoint.player.keep_time(now_ms * NS_PER_MS as u64);
            endpoint.player.process_quantum(out);
            if let Some(log) = self.log.as_mut().filter(|_| to == 1) {
                log.quantum(now_ms, out);
            }
        }
        endpoint.output.advance(&mut endpoint.random);
        let tags = (self.reads_tags && burst >= 2).then(|| {
            let end = (burst - 1) % QUANTUM_FRAMES;
            [media_of(out[end - 1]), media_of(out[end])]
        });
        for from in (0..self.endpoints.len()).filter(|&from| from != to) {
            self.sample(from, to, tags);
        }
    }

    fn sample(&mut self, from: usize, to: usize, tags: Option<[Option<u64>; 2]>) {
        let Endpoint { output, player, .. } = &self.endpoints[to];
        let path = self.paths[from][to].as_mut().expect("two endpoints");
        let track = &mut path.track;
        if output.frames < track.next_sample {
            return;
        }
        let Some(stats) = player.stream_stats(from as u32) else {
            return;
        };
        track.next_sample = output.frames + SAMPLE_FRAMES;
        let waiting = stats.buffered_frames.filter(|&frames| frames > 0);
        // Negative while the first packet waits.
        let playhead = waiting.map(|frames| track.newest_end as i64 - frames as i64);
        let delay_frames = playhead.map(|playhead| {
            let captured = self.endpoints[from].capture.frames_at(output.due_ns);
            let bytes = 4 * self.endpoints[from].config.packet_frames + wire::AUDIO_HEADER_BYTES;
            (captured - playhead as f64 - least_frames(&path.link, bytes)) as i32
        });
        // Two in a row, because within a fade a sample may happen to look like a tag.
        if let (Some([Some(a), Some(b)]), Some(playhead)) = (tags, playhead)
            && b == a + 1
        {
            let agrees = playhead as u64 % TAGS == b + 1;
            track.agreements += u64::from(agrees);
            track.contradictions += u64::from(!agrees);
        }
        track.samples.push(Sample {
            at_ns: self.now_ns,
            delay_frames,
            counts: difference(stats.jitter, track.last),
        });
        track.last = stats.jitter;
    }
}

fn direction(from: usize, to: usize) -> Direction {
    if from < to {
        Direction::LeftToRight
    } else {
        Direction::RightToLeft
    }
}

fn sender(packet_frames: usize) -> Sender {
    Sender::new(SenderConfig {
        rate: SampleRate::Hz48000,
        format: SampleFormat::F32,
        channels: 1,
        packet_frames,
    })
}

fn header(packet: &Packet) -> wire::AudioHeader {
    match wire::parse(&packet.bytes) {
        Ok(Datagram::Audio(header, ..)) => header,
        _ => panic!("a sender made no audio"),
    }
}

/// The least time that a datagram is on its way, in frames.
fn least_frames(link: &LinkConfig, bytes: usize) -> f64 {
    let serialisation_ns = link.serialisation_ns((bytes + OVERHEAD_BYTES) as u32);
    (link.delay_ms * NS_PER_MS + serialisation_ns as f64) * FRAMES_PER_NS
}
