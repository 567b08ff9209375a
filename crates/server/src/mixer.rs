//! A room's mixer: a personal mix for each listener who cannot receive every stream.
//!
//! Sans-IO, on the engine's two halves. Each source is played once, however many listen: a [`Player`] of its own aligns it and
//! reconciles its clock as in a client, and what that renders goes into a ring of the source's newest frames. A listener's mix is a sum
//! over these rings with gains of its own, and a [`Sender`] makes datagrams of it. So *n* participants who all take a mix cost *n* players
//! and, for each frame, some *n*² multiplications and additions.
//!
//! The host tells the time, as a [`Duration`] on its monotonic clock, and sends what [`poll_datagram`](Mixer::poll_datagram) gives: first
//! after each arrival or change, then when [`poll_timeout`](Mixer::poll_timeout) says so. All rings and mixes count frames of the nominal
//! rate on that clock; that is their media time.
//!
//! A packet of a mix is due when the clock reaches its end: by then each source's jitter buffer has given its frames time enough, and
//! what is missing is concealed. (Where the host says until when it has [handed over](Mixer::handed_over) what came, by that clock: after a standstill, what is missing lies
//! unread.) But it leaves before that, as soon as every source that plays is there, within the call that brought the
//! last frame of it. So the mix runs ahead of the clock by as much as the slowest of its sources allows, and adds no delay of its own; what
//! varies is for the listener's jitter buffer, which has to take the network's jitter anyway.
//!
//! A source is rendered as soon as its frames are there, but only to the end of the next packet of a listener: what comes after that waits
//! in its jitter buffer, which may still skip it or grow. Whoever hears only the quick ones may be ahead of who hears a slow one, too; the ring
//! bounds by how much, see `Mixer::limit`.
//!
//! Who leaves a mix fades out, as gains change. A mix does not wait for who is silent in it, nor for who cannot send.
//!
//! Nobody hears themselves only because the host does not name a listener's own stream as a source.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    rc::Rc,
    sync::{Arc, LazyLock},
    time::Duration,
};

use antiphon_core::{
    Command, Player, PlayerConfig, SampleFormat, SampleRate, Sender, SenderConfig, StreamId,
    StreamStats,
    conceal::Concealment,
    jitter::JitterCounts,
    limiter::Limiter,
    mix::Strip,
    resample::Kernel,
    wire::{self, Datagram, Kind, MAX_PACKET_FRAMES, MIN_PACKET_FRAMES, MIX_STREAM},
};
use antiphon_opus::{
    FEED_FRAMES, Received, Receiver,
    outgoing::{Rendition, Renditions, Rung},
};
use serde::Deserialize;

use crate::rate::TokenBucket;

/// Channels of a mix.
pub(crate) const CHANNELS: usize = 2;
/// Sources are rendered up to multiples of this, so that their work is bounded whatever packets are asked for: the least packet. One that
/// is no multiple of it waits for up to 15 frames more.
const BLOCK_FRAMES: u64 = MIN_PACKET_FRAMES as u64;
/// What a source's jitter buffer begins with, until its spread is known: half of what a page begins with, for there are no
/// bursts of rendering here. Less would have a musician with a browser's bursts of capture begin with gaps.
const FIRST_TARGET_SECONDS: f64 = 0.01;
/// Slots of a source's jitter buffer at up to 48 kHz; twice as many above. Half of them hold frames to come.
const BUFFER_FRAMES: usize = 8_192;
/// Frames of a source's ring, likewise: mixes can run ahead of the clock by 31 ms. What comes earlier than that waits in the jitter buffer, and
/// is in time for a listener all the same.
const RING_FRAMES: usize = 2_048;
/// Most frames of a source that are rendered at once. The less, the less room that takes.
const QUANTUM_FRAMES: usize = 128;
/// Frames of Opus that a source may have decoded a second, and at once: twice what it plays, for it sends those of two durations for a second or two
/// where it changes.
const OPUS_FRAMES_PER_S: u32 = 2 * 48_000;
const OPUS_FRAMES_AT_ONCE: u32 = 48_000;
/// So much of it is what it plays, by a clock that is a little fast.
const PLAYED_FRAMES_PER_S: u32 = 49_000;
const PLAYED_FRAMES_AT_ONCE: u32 = 4_800;
/// For each source that can be played, so much may be decoded at once of what is more than sources play.
const SPARE_FRAMES_AT_ONCE: u32 = 4_800;
/// Sources that can be played from Opus at once, in all rooms together: those of one address, and a class of twenty beside them. Decoding takes 20 to 75 µs for 10 ms
/// of sound, so that this is half of a core: without a bound, a few who send as many datagrams as they may would have the thread to themselves.
const OPUS_SOURCES: u32 = 64 + 20;
/// A host that is behind by more has been asleep: what it missed is not made up for.
const ASLEEP: Duration = Duration::from_millis(250);
/// What came no longer ago than this may lie unread: so long a packet of a mix waits for it beyond its time.
pub(crate) const UNREAD: Duration = Duration::from_millis(50);
/// The stream in each source's player.
const STREAM: StreamId = 0;

/// The resampler's filters, of all sources.
static KERNEL: LazyLock<Arc<Kernel>> = LazyLock::new(Arc::default);

/// How much Opus may still be decoded, by all mixers that share it.
#[derive(Clone, Debug)]
pub struct Decoding(Rc<RefCell<TokenBucket>>);

impl Default for Decoding {
    fn default() -> Self {
        Self(Rc::new(RefCell::new(TokenBucket::new(
            OPUS_SOURCES * (PLAYED_FRAMES_AT_ONCE + SPARE_FRAMES_AT_ONCE),
            OPUS_SOURCES * PLAYED_FRAMES_PER_S,
            Duration::ZERO,
        ))))
    }
}

/// A participant in a mix, and how loud.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// The participant's number in the room.
    pub stream: u16,
    /// Linear, 0 to 4; clamped.
    pub gain: f32,
    /// -1 (left) to 1 (right); clamped.
    pub pan: f32,
    /// Silent, whatever the gain.
    pub muted: bool,
}

/// A datagram of a mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mixed {
    /// Whose mix.
    pub listener: u16,
    /// What it is for.
    pub rendition: Rendition,
    /// Its length, in bytes.
    pub length: usize,
    /// When the last frame that it needed came; `None` if it did not wait for all, because it was due.
    pub complete_at: Option<Duration>,
}

/// What is known of a source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SourceStats {
    /// Of its stream, since somebody mixes it.
    pub stream: StreamStats,
    /// Media time of the mixes that it was rendered to: there the playhead stands.
    pub rendered_end: u64,
    /// Times that some of it was rendered.
    pub renders: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Mixer {
    rate: SampleRate,
    decoding: Decoding,
    /// Whoever is in some mix, by number.
    inputs: BTreeMap<u16, Input>,
    listeners: BTreeMap<u16, Listener>,
    handed_over: Option<Duration>,
    /// Of all packets that were made.
    mixed_frames: u64,
    /// The listener whose newest packet is polled, and when that became complete.
    polled: Option<(u16, Option<Duration>)>,
    /// Room for a packet, and for one source's part of it; `[channel][frame]`.
    packet: Box<[f32]>,
    part: Box<[f32]>,
}

/// A source as it is played for all who mix it.
#[derive(Debug)]
struct Input {
    /// With this stream alone, untouched by gains.
    player: Player,
    opus: Receiver,
    opus_allowance: OpusAllowance,
    /// `[channel][slot]`: the newest frames rendered; that of media time *t* is in slot *t* mod its length.
    ring: Box<[f32]>,
    renders: u64,
    /// Whether anything may still come of it.
    is_expected: bool,
    /// Who mixes it, ascending.
    listeners: Vec<u16>,
}

/// What a source may have decoded.
#[derive(Debug)]
struct OpusAllowance {
    frames: TokenBucket,
    /// Of these, what it plays.
    played: TokenBucket,
}

/// A source in a mix.
#[derive(Debug)]
struct Voice {
    stream: u16,
    strip: Strip,
    /// It is named no more, and goes once it is silent.
    is_leaving: bool,
}

/// A listener's mix.
#[derive(Debug)]
struct Listener {
    /// By stream, ascending.
    voices: Vec<Voice>,
    limiter: Limiter,
    samples: Renditions,
    packet_frames: usize,
    /// Media time of the next packet: a multiple of its frames, so that those who take packets of one size need the same of each source.
    position: u64,
    /// When the newest datagram of a source came.
    newest_at: Duration,
    /// Index of a source that was missing when last looked: the others need no look before it is there.
    missing: usize,
}

impl Mixer {
    /// A room in which nobody takes a mix, and that alone decodes what it may.
    pub fn new(rate: SampleRate) -> Self {
        Self::sharing(rate, Decoding::default())
    }

    /// The same beside others.
    pub fn sharing(rate: SampleRate, decoding: Decoding) -> Self {
        let room = || vec![0.0; CHANNELS * MAX_PACKET_FRAMES].into_boxed_slice();
        Self {
            rate,
            decoding,
            inputs: BTreeMap::new(),
            listeners: BTreeMap::new(),
            handed_over: None,
            mixed_frames: 0,
            polled: None,
            packet: room(),
            part: room(),
        }
    }

    /// Gives a listener a mix, of nobody at first, or changes the one it has, which goes on with its next packet. `format` is that of the
    /// samples; `packet_frames` is clamped to 16 to 512.
    ///
    /// Allocates.
    pub fn set_listener(&mut self, listener: u16, format: SampleFormat, packet_frames: usize) {
        let config = SenderConfig {
            rate: self.rate,
            format,
            channels: CHANNELS,
            packet_frames: packet_frames.clamp(MIN_PACKET_FRAMES, MAX_PACKET_FRAMES),
        };
        let listener = self.listeners.entry(listener);
        let listener = listener.or_insert_with(|| Listener::new(config));
        listener.samples.sender.set_config(config);
        listener.packet_frames = config.packet_frames;
        let packet_frames = listener.packet_frames as u64;
        listener.go_on_at(listener.position.next_multiple_of(packet_frames));
    }

    /// Makes a listener's mix in these formats from now on, as long as it has one; at first, in that of its samples alone. `feeds`: also for encoders.
    /// What is made of its samples but not used is the host's to throw away.
    ///
    /// RT: no alloc, no lock, O(log listeners).
    pub fn prepare(&mut self, listener: u16, is_used: impl Fn(Rung) -> bool, feeds: bool) {
        if let Some(mix) = self.listeners.get_mut(&listener) {
            mix.samples.prepare(is_used, feeds);
        }
    }

    /// Ends a listener's mix, if it has one.
    pub fn remove_listener(&mut self, listener: u16) {
        if self.listeners.remove(&listener).is_some() {
            self.inputs.retain(|_, input| input.lose(listener));
        }
    }

    /// Changes who is in a listener's mix, and how loud. Changes of gain are ramped, and who stays goes on undisturbed. Of a participant who is
    /// named twice, the last counts. Nothing happens if the listener has no mix.
    ///
    /// Allocates.
    pub fn set_sources(&mut self, listener: u16, sources: &[Source], now: Duration) {
        let clock = self.clock(now);
        let Some(mix) = self.listeners.get_mut(&listener) else {
            return;
        };
        if mix.voices.is_empty() {
            // It begins now, but where its sources have come to: what they were rendered to before is no news.
            let inputs = sources
                .iter()
                .filter_map(|source| self.inputs.get(&source.stream));
            let playing = inputs.filter(|input| input.player.is_playing());
            let reached = playing.map(Input::rendered_end).min();
            let packet_frames = mix.packet_frames as u64;
            let begin = clock.max(reached.unwrap_or(0)) / packet_frames * packet_frames;
            mix.go_on_at(begin.max(mix.position));
        }
        mix.missing = 0;
        for voice in &mut mix.voices {
            voice.is_leaving = true;
            voice.strip.set_muted(true);
        }
        for source in sources {
            let voice = mix.voice(source.stream, self.rate);
            voice.is_leaving = false;
            voice.strip.set_gain(source.gain);
            voice.strip.set_pan(source.pan);
            voice.strip.set_muted(source.muted);
        }
        let begin = self.slowest().unwrap_or(clock);
        for source in sources {
            let input = self.inputs.entry(source.stream);
            let input = input.or_insert_with(|| Input::new(self.rate, begin, now));
            if let Err(at) = input.listeners.binary_search(&listener) {
                input.listeners.insert(at, listener);
            }
        }
    }

    /// Whether anything of a source may still come. Of one that was muted for everyone, or is gone, no mix waits for the next packet until it
    /// has been missing for so long that its jitter buffer gives it up.
    ///
    /// RT: no alloc, no lock, O(log sources).
    pub fn set_expected(&mut self, stream: u16, is_expected: bool) {
        if let Some(input) = self.inputs.get_mut(&stream) {
            input.is_expected = is_expected;
        }
    }

    /// Takes an audio datagram of a participant. Who is in no mix is ignored. False if it is more Opus than may be decoded: its frames are lost.
    ///
    /// RT: no lock, O(frames + listeners); no alloc but for Opus, see [`Receiver::push`].
    pub fn handle_audio(&mut self, stream: u16, bytes: &[u8], now: Duration) -> bool {
        let clock = self.clock(now);
        let limit = self.limit(clock);
        let Some(input) = self.inputs.get_mut(&stream) else {
            return true;
        };
        let lead = input.rendered_end().wrapping_sub(clock) as i64;
        input.player.set_lead(lead);
        let Input {
            player,
            opus,
            opus_allowance,
            ..
        } = input;
        match wire::parse(bytes) {
            Ok(Datagram::Opus(header, _)) if self.rate == SampleRate::Hz48000 => {
                if !opus_allowance.take(header.frames.into(), &self.decoding, now) {
                    return false;
                }
                opus.push(bytes, |received| match received {
                    Received::Decoded(record) => player.handle_decoded(STREAM, record),
                    Received::Undecoded(bytes) => player.handle_datagram(STREAM, bytes),
                });
            }
            // In a room of another rate the player refuses Opus.
            _ => player.handle_datagram(STREAM, bytes),
        }
        for at in 0..input.listeners.len() {
            let Some(listener) = self.listeners.get_mut(&input.listeners[at]) else {
                continue;
            };
            listener.newest_at = now;
            let end = listener.end();
            if end <= limit {
                input.reach(end);
            }
        }
        true
    }

    /// Says that whatever came until then has been handed over: without, whatever came until now. So nothing counts as missing that lies unread.
    ///
    /// RT: O(1).
    pub fn handed_over(&mut self, until: Duration) {
        self.handed_over = Some(until);
    }

    /// Writes the next datagram of a mix into `out`, if its frames are there or it is due. To be called until it gives `None`, with the same `now`: else a host
    /// that is slower than its mixes would never come to an end.
    ///
    /// RT: no alloc, no lock, O(listeners + sources × frames).
    ///
    /// # Panics
    /// If `out` is shorter than [`antiphon_core::wire::MAX_DATAGRAM_BYTES`].
    pub fn poll_datagram(&mut self, now: Duration, out: &mut [u8]) -> Option<Mixed> {
        let due_by = self.clock(
            self.handed_over
                .map_or(now, |until| until.clamp(now.saturating_sub(UNREAD), now)),
        );
        loop {
            if let Some((listener, complete_at)) = self.polled {
                let mix = self.listeners.get_mut(&listener);
                let polled = mix.and_then(|mix| mix.samples.poll_datagram(out));
                if let Some((rendition, length)) = polled {
                    Kind::Audio.set_stream(&mut out[..length], MIX_STREAM);
                    return Some(Mixed {
                        listener,
                        rendition,
                        length,
                        complete_at,
                    });
                }
            }
            self.polled = self.next(now, due_by);
            let (listener, _) = self.polled?;
            self.mix(listener, due_by);
        }
    }

    /// Frames of all packets that were made so far: the work that was done.
    pub fn mixed_frames(&self) -> u64 {
        self.mixed_frames
    }

    /// Frames of the longest packet for each who has a mix: so much may be made in one go, before the host looks at what else there is.
    pub fn frames_in_one_go(&self) -> u64 {
        (self.listeners.len() * MAX_PACKET_FRAMES) as u64
    }

    /// When [`poll_datagram`](Self::poll_datagram) gives a datagram even if nothing comes; `None` while nobody mixes anyone.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let due = self.active().map(Listener::end).min()?;
        let nanos = (u128::from(due) * 1_000_000_000).div_ceil(u128::from(self.rate.hz()));
        Some(Duration::from_nanos(nanos as u64))
    }

    /// Who plays in a listener's mix: each source's number, and by how many frames the mix's media time is ahead of the source's own where both sound
    /// together, as of what was rendered last.
    pub fn leads(&self, listener: u16) -> impl Iterator<Item = (u16, i64)> {
        let voices = self.listeners.get(&listener).map(|mix| &mix.voices);
        let voices = voices.into_iter().flatten();
        voices
            .filter(|voice| !voice.is_leaving)
            .filter_map(|voice| {
                let input = self.inputs.get(&voice.stream)?;
                let playhead = input.player.playhead(STREAM)?;
                let lead_frames = input.rendered_end().wrapping_sub(playhead) as i64;
                Some((voice.stream, lead_frames))
            })
    }

    /// What became of a participant's frames as a source; `None` if it is in no mix.
    pub fn source_counts(&self, stream: u16) -> Option<JitterCounts> {
        self.inputs.get(&stream)?.player.jitter_counts(STREAM)
    }

    /// What is known of a participant as a source; `None` if it is in no mix.
    pub fn source_stats(&self, stream: u16) -> Option<SourceStats> {
        let input = self.inputs.get(&stream)?;
        Some(SourceStats {
            stream: input.player.stream_stats(STREAM)?,
            rendered_end: input.rendered_end(),
            renders: input.renders,
        })
    }

    /// Frames of the nominal rate on the host's clock.
    fn clock(&self, now: Duration) -> u64 {
        (now.as_nanos() * u128::from(self.rate.hz()) / 1_000_000_000) as u64
    }

    /// Listeners with sources.
    fn active(&self) -> impl Iterator<Item = &Listener> {
        let listeners = self.listeners.values();
        listeners.filter(|listener| !listener.voices.is_empty())
    }

    /// Media time of the packet that is furthest behind.
    fn slowest(&self) -> Option<u64> {
        self.active().map(|listener| listener.position).min()
    }

    /// How far sources may be rendered without being due: so that in the rings there is still what the slowest listener needs, and what
    /// one needs who may come now. What is due is always within, because the slowest comes first.
    fn limit(&self, clock: u64) -> u64 {
        let slowest = self.slowest().unwrap_or(clock);
        let spare = MAX_PACKET_FRAMES as u64 + BLOCK_FRAMES;
        slowest.min(clock) + (self.rate.scaled(RING_FRAMES)) as u64 - spare
    }

    /// Whose packet comes next, of what is complete or due by then, and when it became complete.
    fn next(&mut self, now: Duration, due_by: u64) -> Option<(u16, Option<Duration>)> {
        let clock = self.clock(now);
        if let Some(slowest) = self.slowest()
            && slowest + self.clock(ASLEEP) < clock
        {
            self.wake(clock);
        }
        let limit = self.limit(clock);
        let Self {
            inputs, listeners, ..
        } = self;
        let active = listeners
            .iter_mut()
            .filter(|(_, mix)| !mix.voices.is_empty());
        let due = active.filter(|(_, mix)| mix.end() <= due_by);
        if let Some((number, mix)) = due.min_by_key(|(_, mix)| mix.position) {
            let newest_at = mix.newest_at;
            return Some((*number, mix.is_complete(inputs).then_some(newest_at)));
        }
        let mut within = listeners.iter_mut().filter(|(_, mix)| mix.end() <= limit);
        within.find_map(|(number, mix)| {
            let is_complete = mix.is_complete(inputs);
            is_complete.then_some((*number, Some(mix.newest_at)))
        })
    }

    /// Goes on with the packets that are due by now, the newest of each listener.
    fn wake(&mut self, clock: u64) {
        for mix in self.listeners.values_mut() {
            let packet_frames = mix.packet_frames as u64;
            let newest = (clock / packet_frames).saturating_sub(1) * packet_frames;
            mix.go_on_at(newest.max(mix.position));
        }
        let begin = self.slowest().unwrap_or(clock) / BLOCK_FRAMES * BLOCK_FRAMES;
        for input in self.inputs.values_mut() {
            let missed = begin.saturating_sub(input.rendered_end());
            if missed > 0 {
                input.player.pass(missed);
            }
        }
    }

    /// Makes a listener's next packet of what is there by now.
    fn mix(&mut self, listener: u16, due_by: u64) {
        let Some(mix) = self.listeners.get_mut(&listener) else {
            return;
        };
        let (end, frames) = (mix.end(), mix.packet_frames);
        let packet = &mut self.packet[..CHANNELS * frames];
        let part = &mut self.part[..CHANNELS * frames];
        packet.fill(0.0);
        let due = due_by / BLOCK_FRAMES * BLOCK_FRAMES;
        for voice in &mut mix.voices {
            let Some(input) = self.inputs.get_mut(&voice.stream) else {
                continue;
            };
            let is_silent = voice.strip.is_silent(false);
            // Of who is silent here another may still hear what comes before it is due.
            let needed = if is_silent { end.min(due) } else { end };
            while input.rendered_end() < needed {
                input.render(needed);
            }
            if !is_silent {
                input.copy_out(mix.position, frames, part);
                voice.strip.mix(part, packet, frames, false);
            }
        }
        mix.voices.retain(|voice| {
            let has_left = voice.is_leaving && voice.strip.is_silent(false);
            if has_left
                && let Some(input) = self.inputs.get_mut(&voice.stream)
                && !input.lose(listener)
            {
                self.inputs.remove(&voice.stream);
            }
            !has_left
        });
        mix.limiter.process(packet, frames);
        mix.samples.sender.push(packet, frames);
        mix.position += frames as u64;
        self.mixed_frames += frames as u64;
    }
}

impl OpusAllowance {
    fn new(now: Duration) -> Self {
        let mut played = TokenBucket::new(PLAYED_FRAMES_AT_ONCE, PLAYED_FRAMES_PER_S, now);
        // Or who is taken out of a mix and put in again would play more than others.
        played.take(PLAYED_FRAMES_AT_ONCE as usize, now);
        Self {
            frames: TokenBucket::new(OPUS_FRAMES_AT_ONCE, OPUS_FRAMES_PER_S, now),
            played,
        }
    }

    /// Takes so many frames of its own and of everybody's, if both have them. Of everybody's, what is more than it plays leaves a part untouched: it is for what others play.
    fn take(&mut self, frames: usize, decoding: &Decoding, now: Duration) -> bool {
        let mut all = decoding.0.borrow_mut();
        let kept = if self.played.take(frames, now) {
            0
        } else {
            (OPUS_SOURCES * PLAYED_FRAMES_AT_ONCE) as usize
        };
        all.has(frames + kept, now) && self.frames.take(frames, now) && all.take(frames, now)
    }
}

impl Input {
    /// Nothing of a source, rendered to `begin` or just before.
    fn new(rate: SampleRate, begin: u64, now: Duration) -> Self {
        let config = PlayerConfig {
            rate,
            output_channels: CHANNELS,
            max_streams: 1,
            buffer_frames: rate.scaled(BUFFER_FRAMES),
            max_quantum_frames: QUANTUM_FRAMES,
            concealment: Concealment::Prediction,
        };
        let mut player = Player::with_kernel(config, Arc::clone(&KERNEL));
        player.pass(begin / BLOCK_FRAMES * BLOCK_FRAMES);
        let target = (f64::from(rate.hz()) * FIRST_TARGET_SECONDS) as u32;
        for command in [Command::Add(STREAM), Command::Expect(STREAM, target)] {
            let done = player.handle_command(command);
            debug_assert_eq!(done, Ok(()), "{command:?}");
        }
        Self {
            player,
            opus: Receiver::default(),
            opus_allowance: OpusAllowance::new(now),
            ring: vec![0.0; CHANNELS * rate.scaled(RING_FRAMES)].into_boxed_slice(),
            renders: 0,
            is_expected: true,
            listeners: Vec::new(),
        }
    }

    /// Media time to which it was rendered.
    fn rendered_end(&self) -> u64 {
        self.player.rendered_frames()
    }

    /// Renders up to `end`, unless that would miss something that may still come. False if so; nobody waits for what does not play, or will not come.
    fn reach(&mut self, end: u64) -> bool {
        while self.rendered_end() < end && self.player.is_playing() && self.is_expected {
            if !self.player.is_ready(self.frames_to(end)) {
                return false;
            }
            self.render(end);
        }
        true
    }

    /// Renders up to `end`, or as much of that as a quantum may have.
    fn render(&mut self, end: u64) {
        let frames = self.frames_to(end);
        let first = self.rendered_end();
        let mut quantum = [0.0; CHANNELS * QUANTUM_FRAMES];
        let quantum = &mut quantum[..CHANNELS * frames];
        self.player.process_quantum(quantum);
        self.renders += 1;
        let ring_frames = self.ring.len() / CHANNELS;
        let slot = first as usize % ring_frames;
        let rows = self.ring.chunks_exact_mut(ring_frames);
        for (row, samples) in rows.zip(quantum.chunks_exact(frames)) {
            let (until_wrap, rest) = samples.split_at(frames.min(ring_frames - slot));
            row[slot..slot + until_wrap.len()].copy_from_slice(until_wrap);
            row[..rest.len()].copy_from_slice(rest);
        }
    }

    /// Frames of the next quantum on the way to `end`.
    fn frames_to(&self, end: u64) -> usize {
        (end - self.rendered_end()).min(QUANTUM_FRAMES as u64) as usize
    }

    /// Copies frames from media time `from` on into `out`, `[channel][frame]`.
    fn copy_out(&self, from: u64, frames: usize, out: &mut [f32]) {
        let ring_frames = self.ring.len() / CHANNELS;
        let slot = from as usize % ring_frames;
        let rows = self.ring.chunks_exact(ring_frames);
        for (row, out) in rows.zip(out.chunks_exact_mut(frames)) {
            let (until_wrap, rest) = out.split_at_mut(frames.min(ring_frames - slot));
            until_wrap.copy_from_slice(&row[slot..slot + until_wrap.len()]);
            rest.copy_from_slice(&row[..rest.len()]);
        }
    }

    /// This listener does not mix it. False if nobody does.
    fn lose(&mut self, listener: u16) -> bool {
        if let Ok(at) = self.listeners.binary_search(&listener) {
            self.listeners.remove(at);
        }
        !self.listeners.is_empty()
    }
}

impl Listener {
    fn new(config: SenderConfig) -> Self {
        Self {
            voices: Vec::new(),
            limiter: Limiter::new(config.rate.hz()),
            // Encoders are fed in packets of their own: what is less than one of these waits for the next.
            samples: Renditions::new(Sender::with_queue(
                config,
                CHANNELS,
                MAX_PACKET_FRAMES + FEED_FRAMES,
            )),
            packet_frames: config.packet_frames,
            position: 0,
            newest_at: Duration::ZERO,
            missing: 0,
        }
    }

    /// Media time to which the next packet needs its sources, and the clock when it is due: at its end, so that its last frame has as long
    /// as the first.
    fn end(&self) -> u64 {
        (self.position + self.packet_frames as u64).next_multiple_of(BLOCK_FRAMES)
    }

    /// Of a source, new if it is not there yet.
    fn voice(&mut self, stream: u16, rate: SampleRate) -> &mut Voice {
        let known = self
            .voices
            .binary_search_by_key(&stream, |voice| voice.stream);
        let at = known.unwrap_or_else(|at| {
            let strip = Strip::from_silence(rate.hz());
            let voice = Voice {
                stream,
                strip,
                is_leaving: false,
            };
            self.voices.insert(at, voice);
            at
        });
        &mut self.voices[at]
    }

    /// Lets media time pass up to `position`.
    fn go_on_at(&mut self, position: u64) {
        self.samples.sender.pass(position - self.position);
        self.position = position;
    }

    /// Whether something plays, and all of that is there for the next packet.
    fn is_complete(&mut self, inputs: &mut BTreeMap<u16, Input>) -> bool {
        let (end, count) = (self.end(), self.voices.len());
        let mut plays = false;
        for step in 0..count {
            let at = (self.missing + step) % count;
            let Voice { stream, strip, .. } = &self.voices[at];
            let Some(input) = inputs.get_mut(stream).filter(|_| !strip.is_silent(false)) else {
                continue;
            };
            if !input.reach(end) {
                self.missing = at;
                return false;
            }
            plays |= input.player.is_playing();
        }
        plays
    }
}
