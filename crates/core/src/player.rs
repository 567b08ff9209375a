//! The playing half: datagrams in, the mix out.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use crate::adpcm;
use crate::conceal::{Allowance, Concealer, Concealment};
use crate::drift::{Drift, DriftEstimator};
use crate::jitter::{JitterBuffer, JitterCounts, SPARE_FRAMES, Target};
use crate::mix::{MAX_GAIN, RAMP_SECONDS, Strip};
use crate::resample::{HALF, Kernel, Resampler};
use crate::sequence::{Arrival, SequenceCounts, SequenceTracker};
use crate::slip::SlipWatch;
use crate::wire::{
    self, AudioHeader, Datagram, MAX_CHANNELS, MAX_DATAGRAM_BYTES, MAX_PACKET_FRAMES, SampleFormat,
    SampleRate,
};

/// Most frames in a quantum.
pub const MAX_QUANTUM_FRAMES: usize = 1_024;

/// Predictors that may be fitted in each 128 frames of a quantum, one for each channel in which a gap begins: they are the dearest thing it does.
const MAX_FITS: usize = 8;
/// Gaps of a stream that are carried over there: twice what packets of 16 frames make. And of all streams together.
const MAX_GAPS: usize = 8;
/// See [`MAX_GAPS`].
const MAX_GAPS_TOGETHER: usize = 64;

/// How often a stream's rate is adjusted.
const STEER_SECONDS: f32 = 0.5;
/// Clocks are known to agree when their estimated difference is no more uncertain than this.
const KNOWN_PPM: f32 = 60.0;
/// An estimate more uncertain than this, and of a slow sender than this share of it, is not followed: it may do more harm than good.
const FOLLOWED_PPM: f32 = 100.0;
const FOLLOWED_SHARE: f32 = 0.3;
/// Difference of the clocks that the buffer absorbs: a skip or a gap of 32 frames every 11 minutes.
const ABSORBED_PPM: f32 = 1.0;
/// Greatest difference of clocks compensated.
const MAX_DRIFT_PPM: f32 = 400.0;
/// The same of a sender that is slow because it loses a few frames every second, each of which would be a gap: a fortieth of a semitone.
const MAX_LOST_PPM: f32 = 1_400.0;
/// What sound cards' clocks keep to, as long as nothing better is known.
const USUAL_PPM: f32 = 300.0;
/// Clocks that agree are seldom estimated to differ by more, or by as large a share of the error claimed.
const SEEMING_PPM: f32 = 30.0;
const SEEMING_SHARE: f32 = 0.4;
/// Delay that is kept beyond what the past needed until it is known how the clocks run, and as much again is no reason to skip: 50 ppm
/// eat either up in 14 s. More would be safer with clocks far apart, but everybody would wait for it.
const MARGIN_SECONDS: f32 = 0.000_7;
/// The same while the clocks are matched.
const MATCHED_MARGIN_FRAMES: i64 = 16;
/// What is no reason to skip while the player resamples, which takes this away unheard.
const SPARE_RESAMPLED_FRAMES: i64 = 192;
/// Share of the glitch budget that may go to what the past could not foretell: see [`Stream::stair_margin`].
const BUDGET_OF_STAIRS: f32 = 0.5;
/// Stairs that come as often as that are remembered by the spread of arrivals under budgets that strict, and need no margin once the drift is
/// known from them.
const REMEMBERED_STAIR_SECONDS: f32 = 20.0;

/// How the delay is brought to its aim, unheard.
#[derive(Clone, Copy, Debug)]
struct Trim {
    /// What is that near is not trimmed: the need is only known so exactly.
    near_frames: i64,
    ppm_per_frame: f32,
    max_ppm: f32,
}

/// A frame off the aim is trimmed in 4 s, but no faster than nobody hears: 600 ppm are a cent.
const TRIM: Trim = Trim {
    near_frames: 12,
    ppm_per_frame: 5.0,
    max_ppm: 600.0,
};
/// The same while the clocks may be apart: then trimming alone has to hold against them, before the margin is eaten up.
const UNSURE_TRIM: Trim = Trim {
    near_frames: 20,
    ppm_per_frame: 10.0,
    max_ppm: 300.0,
};
/// Frames of a stream that a quantum may take besides its own: look-ahead, and what the fastest rate consumes.
const EXTRA_INPUT_FRAMES: usize = HALF + 8;

/// Names a remote stream. The host chooses it, and never uses one twice, so that a straggler of a stream that left
/// cannot enter another.
pub type StreamId = u32;

/// Sizes, fixed for the life of a player.
#[derive(Clone, Copy, Debug)]
pub struct PlayerConfig {
    /// The room's rate; datagrams of another are refused.
    pub rate: SampleRate,
    /// Channels of the mix, 1 to [`MAX_CHANNELS`]. No more are held of a stream: what it has besides is folded onto them as it comes.
    pub output_channels: usize,
    /// Most streams at a time.
    pub max_streams: usize,
    /// Slots of each stream's jitter buffer: a power of two of at least 2,048. Half of them can hold frames to come.
    pub buffer_frames: usize,
    /// Frames of the longest quantum that is rendered, 1 to [`MAX_QUANTUM_FRAMES`].
    pub max_quantum_frames: usize,
    /// What is heard in place of missing frames.
    pub concealment: Concealment,
}

/// What a host may ask of a player. Takes effect with the next quantum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Command {
    /// A new stream, with gain 1 and an automatic target.
    Add(StreamId),
    /// Forgets a stream. What waits of it fades out.
    Remove(StreamId),
    /// Linear gain, 0 to [`crate::mix::MAX_GAIN`].
    Gain(StreamId, f32),
    /// -1 (left) to 1 (right).
    Pan(StreamId, f32),
    /// Mutes or unmutes.
    Mute(StreamId, bool),
    /// While any stream is soloed, only those are heard.
    Solo(StreamId, bool),
    /// How deep the jitter buffer is.
    Target(StreamId, Target),
    /// The glitch budget: share of frames that an automatic target may have concealed because they come late,
    /// [`crate::playout::LEAST_BUDGET`] to [`crate::playout::MOST_BUDGET`]; [`crate::playout::DEFAULT_BUDGET`] at first.
    Budget(StreamId, f32),
    /// The automatic target to start with, in frames: the peer's last good one.
    Expect(StreamId, u32),
}

/// Why a command had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommandError {
    /// No stream of that name: it has left, or was never added.
    UnknownStream,
    /// The name is in use: remove it first.
    StreamExists,
    /// All [`PlayerConfig::max_streams`] are in use: remove one first.
    TooManyStreams,
}

/// Everything a player knows of one stream, since it was added.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StreamStats {
    /// Loss, order and duplicates, of both paths together.
    pub sequence: SequenceCounts,
    /// The same of what came directly, and of what came through a relay.
    pub paths: [SequenceCounts; 2],
    /// What became of the frames.
    pub jitter: JitterCounts,
    /// Datagrams refused: malformed, of another rate, or of an unbelievable sequence number.
    pub malformed_packets: u64,
    /// Datagrams too old to tell whether they are duplicates; they are late in any case.
    pub ancient_packets: u64,
    /// Media time that plays next, with the first frame of the next quantum; `None` while nothing plays.
    pub playhead: Option<u64>,
    /// Spread of arrivals that an automatic target absorbs, in frames; `None` before any is known.
    pub spread_frames: Option<u64>,
    /// Frames waiting; `None` while nothing plays.
    pub buffered_frames: Option<u64>,
    /// Frames received that wait to be played, those behind a gap included.
    pub held_frames: u64,
    /// The delay aimed at, in frames from the most prompt arrivals.
    pub target_frames: u64,
    /// By how much the sender's clock is faster than the player's; `None` until it is known.
    pub drift: Option<Drift>,
    /// Whether the stream is resampled to compensate for that; otherwise every frame is heard as it was sent.
    pub is_resampled: bool,
    /// Channels of the newest packet; `None` before the first.
    pub channels: Option<u8>,
    /// Format of the newest packet; `None` before the first.
    pub format: Option<StreamFormat>,
}

/// What a stream is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamFormat {
    /// Samples, bit for bit as they were captured to that format's depth.
    Samples(SampleFormat),
    /// Opus packets, decoded by the host.
    Opus,
}

#[derive(Debug)]
struct Stream {
    id: Option<StreamId>,
    /// Until it is silent, after it was removed.
    leaving_frames: usize,
    /// The direct one, and the relayed one.
    paths: [Path; 2],
    /// Times the sender started anew.
    restarts: u32,
    /// While nothing plays: by the player's clock, since when without a break a path brings what the other had overtaken by more than a second, and when it did so last.
    left_behind: Option<(u64, u64)>,
    /// Frames by which its sender slipped together with the output: to both clocks alike nothing happened.
    stood_still: u64,
    jitter: JitterBuffer,
    concealer: Concealer,
    drift: DriftEstimator,
    resampler: Resampler,
    steering: Steering,
    strip: Strip,
    /// The last one rendered, `[channel][frame]`, with room for the longest.
    quantum: Box<[f32]>,
    /// Whether there was anything in it to play.
    is_playing: bool,
    /// Nothing was heard of it in the last quantum that it played, before gain.
    was_silent: bool,
    /// Of the newest packet: format and channels.
    format: Option<(StreamFormat, u8)>,
    malformed_packets: u64,
    ancient_packets: u64,
    /// Even channels, odd channels.
    peaks: [f32; 2],
}

/// A way by which a stream's datagrams come. Each has sequence numbers of its own; the media time is the same.
#[derive(Debug, Default)]
struct Path {
    sequence: SequenceTracker,
    /// Media time after the newest frame that came this way; `None` before the first.
    newest_end: Option<u64>,
    /// Times the sender started anew, as far as this path has told.
    restarts: u32,
}

/// What is known of how the sender's clock runs against the player's.
#[derive(Clone, Copy, Debug)]
enum Clocks {
    /// Nothing.
    Unknown,
    /// They agree within what the buffer absorbs.
    Agree,
    /// They seem to differ, nobody knows by how much, or the budget is too strict to wait and see. With an automatic target the player
    /// resamples where the delay is off its aim.
    MayBeApart,
    /// They differ, and the player resamples.
    Apart(Drift),
}

/// Whether the estimate is more than one of clocks that agree would be, though not yet known.
fn seem_apart(drift: Option<Drift>) -> bool {
    drift.is_some_and(|drift| drift.ppm.abs() > (SEEMING_SHARE * drift.error_ppm).max(SEEMING_PPM))
}

/// How a stream's rate is adjusted.
#[derive(Clone, Copy, Debug, Default)]
struct Steering {
    /// Frames of output until the next time.
    frames_left: usize,
    /// The clocks are apart for certain: the stream follows its sender's.
    is_following: bool,
    /// What a fixed delay exceeded its target by when following began, and shall exceed it by.
    fixed_aim_frames: Option<i64>,
    trim_ppm: f32,
    /// Frames trimmed that the jitter buffer has not accounted for.
    trimmed_frames: f64,
}

/// The playing half of the engine.
#[derive(Debug)]
pub struct Player {
    config: PlayerConfig,
    streams: Vec<Stream>,
    kernel: Arc<Kernel>,
    /// What a stream's resampler takes for a quantum, `[channel][frame]`.
    input: Box<[f32]>,
    /// The slot that may have predictors fitted first.
    first: usize,
    /// Frames rendered so far, or passed, or slipped by.
    rendered: u64,
    slips: SlipWatch,
    /// See [`Player::set_lead`].
    lead: Option<i64>,
    stray_datagrams: u64,
}

impl Player {
    /// Allocates all that the player will ever need.
    ///
    /// # Panics
    /// If a size of `config` is out of its range.
    pub fn new(config: PlayerConfig) -> Self {
        Self::with_kernel(config, Arc::new(Kernel::new()))
    }

    /// The same, for a host of many players: its filters are those of others too.
    ///
    /// # Panics
    /// If a size of `config` is out of its range.
    pub fn with_kernel(config: PlayerConfig, kernel: Arc<Kernel>) -> Self {
        assert!(
            (1..=MAX_CHANNELS).contains(&config.output_channels),
            "output_channels out of range"
        );
        assert!(
            (1..=MAX_QUANTUM_FRAMES).contains(&config.max_quantum_frames),
            "max_quantum_frames out of range"
        );
        let input_frames = config.max_quantum_frames + EXTRA_INPUT_FRAMES;
        Self {
            config,
            streams: (0..config.max_streams)
                .map(|_| Stream::new(&config))
                .collect(),
            kernel,
            input: vec![0.0; config.output_channels * input_frames].into_boxed_slice(),
            first: 0,
            rendered: 0,
            slips: SlipWatch::new(config.rate),
            lead: None,
            stray_datagrams: 0,
        }
    }

    /// Tells by how many frames rendering is ahead of the host's clock, by which arrivals are timed; it may be behind (negative) by
    /// [`MAX_PACKET_FRAMES`] at most, and more is taken as that. For a host that does not render when a clock says so but as soon as
    /// it can ([`is_ready`](Self::is_ready)), and at the latest when the clock has reached the end of the quantum: so each frame has
    /// as long as its jitter buffer's delay gives it. A sound card's host never calls this.
    ///
    /// RT: no alloc, no lock, O(streams).
    pub fn set_lead(&mut self, frames: i64) {
        self.lead = Some(frames.max(-(MAX_PACKET_FRAMES as i64)));
        for stream in &mut self.streams {
            stream.jitter.set_lead(self.lead);
        }
    }

    /// Tells what the host's clock reads, in ns from anywhere and no coarser than a millisecond, before each quantum that a sound card asks
    /// for: so its output's slips are known, by which it renders less than the clock goes on, and do not pass for jitter. Without it,
    /// each makes the delay longer for some 10 s.
    ///
    /// RT: no alloc, no lock, O(streams × bins of the spread).
    pub fn keep_time(&mut self, now_ns: u64) {
        if let Some(slip) = self.slips.handle_quantum(self.rendered, now_ns) {
            self.rendered = self.rendered.wrapping_add_signed(slip);
            for stream in self.streams.iter_mut().filter(|stream| stream.id.is_some()) {
                let stood_still = stream.jitter.settle(slip);
                stream.stood_still = stream.stood_still.wrapping_add_signed(stood_still);
            }
        }
    }

    /// Tells that the output has gone on without `frames` frames, which were asked for too late: what was due in them is skipped, so
    /// that all that follows is heard when it would have been. For a host whose sound system says so; elsewhere it is found out
    /// ([`keep_time`](Self::keep_time)). What had come by then must have been handed over before.
    ///
    /// RT: no alloc, no lock, O(streams × (frames + buffer / 64)).
    pub fn miss(&mut self, frames: usize) {
        self.rendered = self.rendered.wrapping_add(frames as u64);
        for stream in &mut self.streams {
            let mut frames = frames;
            let resampler = &mut stream.resampler;
            if resampler.is_engaged() && resampler.is_idle() && frames >= HALF {
                // What it holds is not heard either. When it has to engage again it takes as much.
                frames -= HALF;
                resampler.reset();
            }
            stream.jitter.miss(frames);
        }
    }

    /// Frames rendered so far, or passed, or slipped by ([`keep_time`](Self::keep_time)).
    pub fn rendered_frames(&self) -> u64 {
        self.rendered
    }

    /// True when a stream plays: its first packet has come, and within the last second some other.
    ///
    /// RT: no alloc, no lock, O(streams).
    pub fn is_playing(&self) -> bool {
        self.streams
            .iter()
            .any(|stream| stream.id.is_some() && stream.jitter.playing_next().is_some())
    }

    /// True when the next quantum of `frames` frames would miss nothing that may still come.
    ///
    /// RT: no alloc, no lock, O(streams × frames / 64).
    pub fn is_ready(&self, frames: usize) -> bool {
        let mut streams = self.streams.iter().filter(|stream| stream.id.is_some());
        streams.all(|stream| {
            stream
                .jitter
                .is_ready(stream.resampler.frames_needed(frames))
        })
    }

    /// Lets `frames` frames pass unrendered: the host was asleep. What plays ends, and starts anew with its next packet.
    ///
    /// RT: no alloc, no lock, O(streams × buffer / 64).
    pub fn pass(&mut self, frames: u64) {
        self.rendered = self.rendered.wrapping_add(frames);
        for stream in &mut self.streams {
            if stream.jitter.playing_next().is_some() {
                // What was heard before the sleep is not carried on after it.
                stream.concealer.reset();
                stream.resampler.reset();
                stream.steering = Steering::default();
            }
            stream.was_silent = true;
            stream.jitter.pass(frames);
        }
    }

    /// Datagrams that came for no stream.
    pub fn stray_datagrams(&self) -> u64 {
        self.stray_datagrams
    }

    /// Carries out a command.
    ///
    /// # Errors
    /// [`CommandError`], and nothing is changed.
    ///
    /// RT: no alloc, no lock, O(streams + buffer / 64).
    pub fn handle_command(&mut self, command: Command) -> Result<(), CommandError> {
        match command {
            Command::Add(id) => self.add(id)?,
            Command::Remove(id) => {
                let most_seconds = RAMP_SECONDS * MAX_GAIN;
                let leaving_frames = (self.config.rate.hz() as f32 * most_seconds) as usize;
                let stream = self.stream(id)?;
                stream.id = None;
                stream.leaving_frames = leaving_frames;
                stream.strip.set_muted(true);
            }
            Command::Gain(id, gain) => self.stream(id)?.strip.set_gain(gain),
            Command::Pan(id, pan) => self.stream(id)?.strip.set_pan(pan),
            Command::Mute(id, muted) => self.stream(id)?.strip.set_muted(muted),
            Command::Solo(id, soloed) => self.stream(id)?.strip.set_soloed(soloed),
            Command::Target(id, target) => self.stream(id)?.set_target(target),
            Command::Budget(id, share) => self.stream(id)?.jitter.set_budget(share),
            Command::Expect(id, frames) => self.stream(id)?.jitter.expect(frames),
        }
        Ok(())
    }

    /// Takes a datagram of a stream. Whatever does not belong is dropped and counted.
    ///
    /// RT: no alloc, no lock, O(frames + buffer / 64 + bins of the spread), and now and then a line of the drift.
    pub fn handle_datagram(&mut self, id: StreamId, bytes: &[u8]) {
        self.handle(id, bytes, None);
    }

    /// The same for a host that [keeps time](Self::keep_time): by its clock the datagram came at `at_ns`, be it that this quantum is the
    /// first to see it. So it is known within seconds how the sender's clock runs, however coarse the quanta are.
    ///
    /// RT: no alloc, no lock, O(frames + buffer / 64 + bins of the spread), and now and then a line of the drift.
    pub fn handle_datagram_at(&mut self, id: StreamId, bytes: &[u8], at_ns: u64) {
        self.handle(id, bytes, self.slips.rendered_at(at_ns));
    }

    fn handle(&mut self, id: StreamId, bytes: &[u8], timed: Option<u64>) {
        let (rate, clock) = (self.config.rate, self.clock());
        let Ok(stream) = self.stream(id) else {
            self.stray_datagrams += 1;
            return;
        };
        match wire::parse(bytes) {
            Ok(Datagram::Audio(header, samples, copy)) if header.rate == rate => {
                let format = StreamFormat::Samples(header.format);
                let is_new = stream.handle_audio(&header, samples, format, clock, timed);
                if is_new && !copy.is_empty() {
                    stream.handle_copy(&header.before(), copy);
                }
            }
            // Probes are the host's to answer and Opus is its to decode: here they are as wrong as another rate.
            Ok(_) | Err(_) => stream.malformed_packets += 1,
        }
    }

    /// Takes what the host decoded of an Opus datagram: that datagram's header, then its samples as [`wire::parse_decoded`] reads
    /// them. Without samples the packet counts as received, and its frames as skipped. What came from the network as it is belongs to [`handle_datagram`](Self::handle_datagram).
    ///
    /// RT: no alloc, no lock, O(frames + buffer / 64 + bins of the spread), and now and then a line of the drift.
    pub fn handle_decoded(&mut self, id: StreamId, bytes: &[u8]) {
        let (rate, clock) = (self.config.rate, self.clock());
        let Ok(stream) = self.stream(id) else {
            self.stray_datagrams += 1;
            return;
        };
        match wire::parse_decoded(bytes) {
            Ok((header, samples)) if header.rate == rate => {
                stream.handle_audio(&header, samples, StreamFormat::Opus, clock, None);
            }
            Ok(_) | Err(_) => stream.malformed_packets += 1,
        }
    }

    /// Renders the next quantum of the mix into `out`: `[channel][frame]`, 1 to [`PlayerConfig::max_quantum_frames`] of each of
    /// [`PlayerConfig::output_channels`].
    ///
    /// RT: no alloc, no lock, O(streams × channels × frames), and what a review, a fit and a gap cost (docs/realtime.md).
    ///
    /// # Panics
    /// If `out` has another shape.
    pub fn process_quantum(&mut self, out: &mut [f32]) {
        let frames = out.len() / self.config.output_channels;
        assert!(
            (1..=self.config.max_quantum_frames).contains(&frames)
                && frames * self.config.output_channels == out.len(),
            "out is [channel][frame]"
        );
        out.fill(0.0);
        let any_soloed = self
            .streams
            .iter()
            .any(|s| s.id.is_some() && s.strip.is_soloed());
        let parts = frames.div_ceil(128);
        let mut left = Allowance {
            fits: MAX_FITS * parts,
            gaps: MAX_GAPS_TOGETHER * parts,
        };
        self.rendered = self.rendered.wrapping_add(frames as u64);
        let (count, first) = (self.streams.len(), self.first);
        // Who is not heard comes last, and has nothing fitted.
        for is_silent in [false, true] {
            for slot in (first..count).chain(0..first) {
                let stream = &mut self.streams[slot];
                if !stream.is_heard() || stream.strip.is_silent(any_soloed) != is_silent {
                    continue;
                }
                // No stream, however full of gaps, takes what the others need.
                let own_fits = if is_silent {
                    0
                } else {
                    parts * stream.jitter.channels()
                };
                let most = Allowance {
                    fits: left.fits.min(own_fits),
                    gaps: left.gaps.min(parts * MAX_GAPS),
                };
                let mut own = most;
                stream.render(&self.kernel, &mut self.input, frames, &mut own);
                left.fits -= most.fits - own.fits;
                left.gaps -= most.gaps - own.gaps;
                if own.fits < most.fits {
                    // Where all lose a packet at once, who got nothing comes first the next time.
                    self.first = (slot + 1) % count;
                }
            }
        }
        // In the order of slots, whoever came first: the bits of a sum depend on it.
        for stream in self.streams.iter_mut().filter(|stream| stream.is_heard()) {
            stream.leaving_frames = stream.leaving_frames.saturating_sub(frames);
            if !stream.is_playing {
                continue;
            }
            stream.steer(frames, self.config.rate);
            let quantum = &stream.quantum[..stream.jitter.channels() * frames];
            for (channel, samples) in quantum.chunks_exact(frames).enumerate() {
                let peak = &mut stream.peaks[channel % 2];
                *peak = samples
                    .iter()
                    .fold(*peak, |peak, sample| peak.max(sample.abs()));
            }
            if stream.was_silent {
                // What begins now begins as loud as it shall be: there is nothing to fade from.
                (stream.strip).settle(self.config.output_channels, any_soloed);
            }
            stream.was_silent = quantum.iter().all(|sample| *sample == 0.0);
            stream.strip.mix(quantum, out, frames, any_soloed);
        }
    }

    /// What is known of a stream; `None` if there is none of that name.
    ///
    /// RT: no alloc, no lock, O(streams + buffer / 64).
    pub fn stream_stats(&self, id: StreamId) -> Option<StreamStats> {
        let stream = self.streams.iter().find(|stream| stream.id == Some(id))?;
        let [direct, relayed] = [0, 1].map(|path: usize| stream.paths[path].sequence.counts());
        Some(StreamStats {
            sequence: direct + relayed,
            paths: [direct, relayed],
            jitter: stream.jitter.counts(),
            malformed_packets: stream.malformed_packets,
            ancient_packets: stream.ancient_packets,
            spread_frames: stream.jitter.spread_frames(),
            buffered_frames: stream.jitter.buffered_frames(),
            held_frames: stream.jitter.held_frames(),
            target_frames: stream.jitter.target_frames(),
            playhead: stream.playhead(),
            drift: stream.drift.estimate(),
            is_resampled: !stream.resampler.is_idle(),
            channels: stream.format.map(|(_, channels)| channels),
            format: stream.format.map(|(format, _)| format),
        })
    }

    /// Of [`StreamStats`], what became of the frames alone.
    ///
    /// RT: no alloc, no lock, O(streams).
    pub fn jitter_counts(&self, id: StreamId) -> Option<JitterCounts> {
        let stream = self.streams.iter().find(|stream| stream.id == Some(id))?;
        Some(stream.jitter.counts())
    }

    /// Of [`StreamStats`], the playhead alone.
    ///
    /// RT: no alloc, no lock, O(streams).
    pub fn playhead(&self, id: StreamId) -> Option<u64> {
        let stream = self.streams.iter().find(|stream| stream.id == Some(id))?;
        stream.playhead()
    }

    /// Peak of a stream's left (even) and right (odd) channels since the last call, linear, before gain.
    /// A mono stream has only a left one, unless it was stereo before.
    pub fn take_peaks(&mut self, id: StreamId) -> Option<[f32; 2]> {
        self.stream(id)
            .ok()
            .map(|stream| core::mem::take(&mut stream.peaks))
    }

    fn add(&mut self, id: StreamId) -> Result<(), CommandError> {
        if self.stream(id).is_ok() {
            return Err(CommandError::StreamExists);
        }
        let (rate_hz, lead) = (self.config.rate.hz(), self.lead);
        let stream = self
            .streams
            .iter_mut()
            .filter(|stream| stream.id.is_none())
            .min_by_key(|stream| stream.leaving_frames)
            .ok_or(CommandError::TooManyStreams)?;
        stream.id = Some(id);
        stream.leaving_frames = 0;
        stream.paths = Default::default();
        stream.restarts = 0;
        stream.left_behind = None;
        stream.stood_still = 0;
        stream.jitter.reset();
        stream.jitter.set_lead(lead);
        stream.concealer.reset();
        stream.drift.reset();
        stream.resampler.reset();
        stream.steering = Steering::default();
        stream.strip = Strip::new(rate_hz);
        stream.was_silent = true;
        stream.format = None;
        stream.malformed_packets = 0;
        stream.ancient_packets = 0;
        stream.peaks = [0.0; 2];
        Ok(())
    }

    /// The host's clock, by which arrivals are timed.
    fn clock(&self) -> u64 {
        self.rendered.wrapping_sub(self.lead.unwrap_or(0) as u64)
    }

    fn stream(&mut self, id: StreamId) -> Result<&mut Stream, CommandError> {
        self.streams
            .iter_mut()
            .find(|stream| stream.id == Some(id))
            .ok_or(CommandError::UnknownStream)
    }
}

impl Stream {
    fn new(config: &PlayerConfig) -> Self {
        let channels = config.output_channels;
        Self {
            id: None,
            leaving_frames: 0,
            paths: Default::default(),
            restarts: 0,
            left_behind: None,
            stood_still: 0,
            jitter: JitterBuffer::new(config.rate, channels, config.buffer_frames),
            concealer: Concealer::new(config.rate, channels, config.concealment),
            drift: DriftEstimator::new(config.rate),
            resampler: Resampler::new(channels),
            steering: Steering::default(),
            strip: Strip::new(config.rate.hz()),
            quantum: vec![0.0; channels * config.max_quantum_frames].into_boxed_slice(),
            is_playing: false,
            was_silent: true,
            format: None,
            malformed_packets: 0,
            ancient_packets: 0,
            peaks: [0.0; 2],
        }
    }

    /// Whether it may be in the mix.
    fn is_heard(&self) -> bool {
        self.id.is_some() || self.leaving_frames > 0
    }

    /// True if it came for the first time.
    fn handle_audio(
        &mut self,
        header: &AudioHeader,
        samples: &[u8],
        format: StreamFormat,
        clock: u64,
        timed: Option<u64>,
    ) -> bool {
        let Some(arrival) = self.judge(header, clock) else {
            self.jitter.pass_over(usize::from(header.frames));
            return false;
        };
        if arrival == Arrival::Restart {
            self.drift.reset();
        }
        match arrival {
            arrival
            @ (Arrival::New | Arrival::Overtaken | Arrival::Original | Arrival::Restart) => {
                let has_samples = !samples.is_empty();
                if !has_samples {
                    self.jitter.pass_over(usize::from(header.frames));
                } else if !self.jitter.insert(header, samples, arrival) {
                    // What came by the other path is what is heard.
                    return true;
                }
                self.format = Some((format, header.channels));
                if has_samples && matches!(arrival, Arrival::New | Arrival::Restart) {
                    let stood_still = self.stood_still;
                    let timed = timed.map(|at| at.wrapping_sub(stood_still));
                    let clock = clock.wrapping_sub(stood_still);
                    (self.drift).add(clock, timed, header.timestamp, header.frames);
                }
                return true;
            }
            Arrival::Recovered | Arrival::Duplicate => {}
            Arrival::Ancient => self.ancient_packets += 1,
            Arrival::Doubtful => self.malformed_packets += 1,
        }
        false
    }

    /// Takes the copy of a datagram with that header, unless it has come itself.
    fn handle_copy(&mut self, header: &AudioHeader, copy: &[u8]) {
        let path = &mut self.paths[usize::from(header.stream != 0)];
        let arrival = path.sequence.handle_copy(header.sequence);
        if arrival != Arrival::Recovered {
            return;
        }
        let header = AudioHeader {
            format: SampleFormat::S16,
            ..*header
        };
        let (channels, frames) = (usize::from(header.channels), usize::from(header.frames));
        // In no format are samples shorter, and a datagram of them, with this copy besides, has come.
        let mut samples = [0; MAX_DATAGRAM_BYTES];
        let samples = &mut samples[..2 * channels * frames];
        for (channel, block) in copy.chunks_exact(adpcm::block_bytes(frames)).enumerate() {
            let slots = samples.chunks_exact_mut(2 * channels);
            for (frame, sample) in slots.zip(adpcm::decode(block, frames)) {
                frame[2 * channel..][..2].copy_from_slice(&sample.to_le_bytes());
            }
        }
        self.jitter.insert(&header, samples, arrival);
    }

    /// Judges a datagram by its sequence number on its path, and by what the other path has brought. `None` for what was sent before the sender started
    /// anew, while what was sent after that plays.
    fn judge(&mut self, header: &AudioHeader, clock: u64) -> Option<Arrival> {
        let end = header.timestamp.wrapping_add(u64::from(header.frames));
        let [direct, relayed] = &mut self.paths;
        let (path, other) = if header.stream == 0 {
            (direct, relayed)
        } else {
            (relayed, direct)
        };
        if path.newest_end.is_none() {
            path.restarts = self.restarts;
        }
        let (second, before) = (i64::from(header.rate.hz()), path.newest_end);
        let is_news_of_restart = path.restarts == self.restarts;
        let plays = !self.jitter.is_starved();
        let is_starved = !plays || !is_news_of_restart;
        // What a path brought that has not told of the restart is of the clock that was.
        let mut other_end = (other.newest_end).filter(|_| other.restarts == self.restarts);
        // In frames of media time; negative if it is ahead.
        let behind = |newest: Option<u64>| newest.map(|newest| newest.wrapping_sub(end) as i64);
        let is_near = |newest| {
            behind(newest).is_some_and(|behind| behind.unsigned_abs() <= second.unsigned_abs())
        };
        let mut arrival = path.sequence.handle(header.sequence, is_starved);
        let is_newer = |newest: u64| end.wrapping_sub(newest) as i64 > 0;
        let is_anew = || {
            let is_again = self.jitter.playing_next().is_none() && path.sequence.is_repeated();
            is_starved && before.is_some_and(is_newer) || is_again
        };
        if arrival == Arrival::Duplicate && is_anew() {
            path.sequence.restart(header.sequence);
            arrival = Arrival::Restart;
        }
        if matches!(arrival, Arrival::New | Arrival::Restart) {
            path.newest_end = Some(end);
        }
        if arrival == Arrival::Restart {
            // A path that was away for many datagrams, while what the other brings plays on, has missed them: nothing starts anew.
            let goes_on = plays && is_near(other_end);
            let is_anew = is_news_of_restart && !goes_on;
            self.restarts = self.restarts.wrapping_add(u32::from(is_anew));
            path.restarts = self.restarts;
            if is_anew {
                return Some(Arrival::Restart);
            }
        } else if !is_news_of_restart {
            let is_first = !matches!(
                arrival,
                Arrival::Duplicate | Arrival::Ancient | Arrival::Doubtful
            );
            if arrival == Arrival::New && is_near(other_end) {
                path.restarts = self.restarts;
            } else if is_first && plays && is_near(before) && !is_near(other_end) {
                return None;
            }
        }
        let behind = |newest| behind(newest).unwrap_or(0);
        // What is older by more than a second may have been sent after the sender had set its clock: but not if it goes on from what the path brought before,
        // which may have stood still for seconds, nor if the path is new and the other is heard.
        let is_known = arrival == Arrival::New && before.is_some();
        let is_set_back = is_known && behind(before) > second;
        // Nor does it say what is overtaken by who goes on while nothing plays. What was held back goes on for a moment only.
        let is_left_behind = self.jitter.playing_next().is_none() && behind(other_end) > second;
        let is_soon = |&(_, last): &(u64, u64)| clock.wrapping_sub(last) as i64 <= second / 10;
        let since = (self.left_behind.filter(is_soon)).map_or(clock, |(since, _)| since);
        self.left_behind = is_left_behind.then_some((since, clock));
        let goes_on = clock.wrapping_sub(since) as i64 > second / 2;
        if (is_set_back || arrival == Arrival::Restart || goes_on) && behind(other_end) > second {
            // What the other path brought is of the clock that was.
            (other.newest_end, other_end) = (None, None);
        }
        let is_overtaken = match behind(other_end) {
            ..1 => false,
            behind => behind <= second || is_known || !is_starved,
        };
        Some(match arrival {
            Arrival::New | Arrival::Restart if is_overtaken => Arrival::Overtaken,
            Arrival::Restart => Arrival::New,
            arrival => arrival,
        })
    }

    /// Renders the next quantum, if anything plays. `input` is room for what that takes.
    fn render(&mut self, kernel: &Kernel, input: &mut [f32], frames: usize, left: &mut Allowance) {
        let out = &mut *self.quantum;
        let channels = self.jitter.channels();
        let is_resampled = self.resampler.is_engaged();
        let (room, taken) = if is_resampled {
            (&mut *input, self.resampler.frames_needed(frames))
        } else {
            (&mut *out, frames)
        };
        self.is_playing = self.jitter.read(room, taken, |room, at, run| {
            (self.concealer).process(room, taken, at, channels, run, left);
        });
        if self.is_playing {
            self.left_behind = None;
        }
        if !self.is_playing {
            self.resampler.reset();
            self.steering = Steering::default();
        } else if is_resampled {
            let (input, out) = (&input[..channels * taken], &mut out[..channels * frames]);
            self.resampler.process(kernel, input, channels, out, frames);
        } else {
            self.resampler.remember(out, frames, 0, frames, channels);
        }
    }

    /// Adjusts the rate at which the stream is consumed: to the sender's clock, and a little beyond to trim the delay.
    fn steer(&mut self, frames: usize, rate: SampleRate) {
        self.steering.trimmed_frames += f64::from(self.steering.trim_ppm) * 1e-6 * frames as f64;
        let whole = self.steering.trimmed_frames as i64;
        self.steering.trimmed_frames -= whole as f64;
        self.jitter.trim(whole);
        if let Some(left) = self.steering.frames_left.checked_sub(frames) {
            self.steering.frames_left = left;
            return;
        }
        self.steering.frames_left = (rate.hz() as f32 * STEER_SECONDS) as usize;

        let drift = self.drift.estimate();
        let excess = self.jitter.excess_frames();
        self.steering.is_following = drift.is_some_and(|drift| {
            let surely = if self.steering.is_following { 0.5 } else { 1.5 };
            drift.error_ppm <= FOLLOWED_PPM.max(-FOLLOWED_SHARE * drift.ppm)
                && drift.ppm.abs() > (surely * drift.error_ppm).max(ABSORBED_PPM)
        });
        let stair = self.drift.stair_frames().min(frames as i64);
        let unknown_stair = self.stair_margin(stair, USUAL_PPM);
        let stair_if_apart =
            |drift: Drift| self.stair_margin(stair, drift.ppm.abs() + drift.error_ppm);
        let clocks = match drift {
            Some(drift) if self.steering.is_following => Clocks::Apart(drift),
            Some(drift) if drift.error_ppm <= KNOWN_PPM && stair_if_apart(drift) == 0 => {
                Clocks::Agree
            }
            // Where packets come alike, it takes long to know how the clocks run, and then all come a stair sooner or later at once:
            // until then the delay is held by trimming. Elsewhere it is known before long.
            drift if unknown_stair > 0 || (stair > 0 && seem_apart(drift)) => Clocks::MayBeApart,
            _ => Clocks::Unknown,
        };
        let unsure = (rate.hz() as f32 * MARGIN_SECONDS) as i64;
        let (margin, tolerated) = match clocks {
            Clocks::Unknown => (unsure, unsure),
            Clocks::MayBeApart => (unsure + unknown_stair, SPARE_RESAMPLED_FRAMES),
            Clocks::Apart(drift) => {
                let stair_s = frames as f32 / (drift.ppm.abs() * 1e-6 * rate.hz() as f32);
                let unseen = if stair_s < REMEMBERED_STAIR_SECONDS {
                    0
                } else {
                    stair_if_apart(drift)
                };
                (MATCHED_MARGIN_FRAMES + unseen, SPARE_RESAMPLED_FRAMES)
            }
            Clocks::Agree => (0, SPARE_FRAMES),
        };
        // Who resamples anyway skips nothing that can be trimmed, least of all a margin that is needed no more.
        let is_engaged = self.resampler.is_engaged();
        let tolerated_at_all = if is_engaged {
            SPARE_RESAMPLED_FRAMES + unknown_stair
        } else {
            tolerated
        };
        self.jitter.set_margin(margin, tolerated_at_all);

        let (drift_ppm, trim) = match (clocks, self.jitter.target()) {
            (Clocks::Apart(drift), _) => (drift.ppm.clamp(-MAX_LOST_PPM, MAX_DRIFT_PPM), TRIM),
            (Clocks::MayBeApart, Target::Auto) => (0.0, UNSURE_TRIM),
            (Clocks::Unknown | Clocks::Agree, Target::Auto)
                if is_engaged && excess.is_some_and(|excess| excess > tolerated) =>
            {
                let near_frames = tolerated;
                (
                    0.0,
                    Trim {
                        near_frames,
                        ..UNSURE_TRIM
                    },
                )
            }
            (Clocks::Unknown | Clocks::MayBeApart | Clocks::Agree, _) => {
                self.steering.trim_ppm = 0.0;
                self.resampler.set_ppm(0.0);
                return;
            }
        };
        let off_aim = excess.map_or(0, |excess| match self.jitter.target() {
            Target::Auto => excess,
            Target::Fixed(_) => excess - *self.steering.fixed_aim_frames.get_or_insert(excess),
        });
        self.steering.trim_ppm = if off_aim.abs() <= trim.near_frames {
            0.0
        } else {
            (off_aim as f32 * trim.ppm_per_frame).clamp(-trim.max_ppm, trim.max_ppm)
        };
        let ppm = drift_ppm + self.steering.trim_ppm;
        if ppm != 0.0 {
            self.resampler.engage();
        }
        self.resampler.set_ppm(ppm);
    }

    /// What an automatic target shall wait for a stair that has not been seen, if the clocks are that much apart.
    ///
    /// Where packets come alike, clocks that run apart carry them over the edge of a quantum sooner or later, and then all come a stair
    /// later. Until that is learnt, it costs as large a share of the frames as the clocks run apart. Most budgets can afford
    /// that; those that can't wait a stair longer.
    fn stair_margin(&self, stair: i64, apart_ppm: f32) -> i64 {
        if apart_ppm * 1e-6 > BUDGET_OF_STAIRS * self.jitter.budget() {
            stair
        } else {
            0
        }
    }

    /// A new aim for the delay: what was made of the old one is forgotten.
    fn set_target(&mut self, target: Target) {
        if self.jitter.target() != target {
            self.jitter.set_target(target);
            self.steering.fixed_aim_frames = None;
        }
    }

    /// Media time of the frame that leaves next; `None` while nothing plays.
    fn playhead(&self) -> Option<u64> {
        let held = if self.resampler.is_engaged() { HALF } else { 0 };
        let taken = self.jitter.playing_next()?;
        Some(taken.wrapping_sub(held as u64))
    }
}
