//! The jitter buffer of one stream: reorders and holds packets until it is their frames' turn.
//!
//! Frames are stored by media time and read at the *playhead*, which moves with the speaker. The playhead is the number of
//! frames rendered less the *delay*; the delay is all there is to decide. With a fixed target it is set by the first packet.
//! Otherwise it follows what [`PlayoutDelay`] learns from the arrivals, never the round-trip time: it grows at once when packets come late more
//! often than the glitch budget allows, and shrinks by a cross-faded skip when it has been longer than needed.
//!
//! A sender may send the same frames by two paths. Of each frame the first copy counts; what was received before is a *copy*, whatever
//! became of it, and tells nothing of lateness. So is what the slower path brings when nobody remembers any more whether it had come.
//!
//! A datagram may also carry a cheap copy of the one before ([`Arrival::Recovered`]). It plays unless the original comes in time, by either
//! path, which then takes its place.
//!
//! Every frame received is accounted for: `received = played + skipped + late + copied + still held`.

use alloc::boxed::Box;
use alloc::vec;

use crate::conceal::Run;
use crate::pcm;
use crate::playout::{PlayoutDelay, REVIEW_SECONDS};
use crate::presence::{Presence, Received};
use crate::sequence::Arrival;
use crate::wire::{AudioHeader, SampleFormat, SampleRate};

/// How far ahead of the playhead the jitter buffer aims to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Follows the measured spread of arrivals.
    Auto,
    /// Frames between the arrival of a stream's first packet and its playout; kept, but for the corrections that
    /// clocks running apart and stalls make unavoidable, and never much less than that from the most prompt packets.
    Fixed(u32),
}

/// Automatic target before anything is known: 20 ms covers Chromium's bursts of 1,024 frames with little to spare.
const FIRST_TARGET_SECONDS: f32 = 0.02;
/// Delay beyond what is needed and kept that is not worth a skip, with an automatic target, unless the player says otherwise.
pub const SPARE_FRAMES: i64 = 32;
/// Delay above what is needed that is not worth a skip with a fixed target, or that target again if it is more: beyond the bursts of capture and rendering, so that only
/// drift, stalls and an output that stood still exceed it.
const FIXED_SPARE_SECONDS: f32 = 0.05;
/// Length of the cross-fade of a skip: 2.7 ms at 48 kHz, less where fewer frames are at hand.
const FADE_FRAMES: usize = 128;
const LEAST_FADE_FRAMES: usize = 16;
/// A packet later than this tells of a pause at the sender or in the network, not of jitter: start anew from it.
const STALL_SECONDS: f32 = 0.25;
/// Searches of the spread that a stream's packets may cause from one reading to the next, and what it takes of them to start anew. A burst that waited for
/// seconds needs about these, one after the other; a hostile stream could have thousands made in one quantum.
const MOST_SEARCHES: u32 = 64;
const SEARCHES_TO_START_ANEW: u32 = 8;
/// So much has to have come to say that a stream needs less delay than it did before.
const KNOWN_SECONDS: f32 = 1.0;
/// A stream of which nothing was heard for so long has run dry.
const STARVED_SECONDS: f32 = 0.1;

/// What became of the frames of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JitterCounts {
    /// Packets whose frames, or some of them, came after their playout instant.
    pub late_packets: u64,
    /// Frames that came, in packets and in copies of lost ones: what became of them is counted below, but for those that wait.
    pub received_frames: u64,
    /// Frames received and played, each once.
    pub played_frames: u64,
    /// Frames played in place of missing ones.
    pub concealed_frames: u64,
    /// Frames received in time and dropped unplayed: to shorten the delay, or to start anew.
    pub skipped_frames: u64,
    /// Frames received after their playout instant, and dropped.
    pub late_frames: u64,
    /// Frames that came more than once, by both paths, in two formats or as a copy, and were dropped.
    pub copied_frames: u64,
    /// Times the newest frame had been played and more were wanted.
    pub underruns: u64,
    /// Times the buffer started anew: a stall, a jump in media time, a change of channels.
    pub resyncs: u64,
}

/// A skip under way: the frames at the playhead fade into those `distance` later.
#[derive(Clone, Copy, Debug)]
struct Skip {
    distance: usize,
    fade: usize,
    done: usize,
}

/// A stream that started anew since the last reading. What waited while the output stood still comes all at once, and says nothing of the network: the last of it
/// is what came now.
#[derive(Clone, Copy, Debug)]
struct Anew {
    /// Delay of the most prompt packet since.
    least: i64,
    target: i64,
}

/// The jitter buffer of one stream.
#[derive(Debug)]
pub struct JitterBuffer {
    rate: SampleRate,
    target: Target,
    /// What an automatic target starts with.
    expected: i64,
    /// Delay that an automatic target keeps beyond what the past needed, and what more is not worth a skip.
    margin: i64,
    tolerated: i64,
    /// `[channel][slot]`; the frame of media time *t* is in slot *t* mod capacity.
    samples: Box<[f32]>,
    present: Presence,
    received: Received,
    /// The same, and those of which a cheap copy came.
    covered: Received,
    max_channels: usize,
    /// Channels of the newest packet, so far as there is room for them.
    sent_channels: usize,
    /// Channels that are held: as many as the stream has had since it began to play, for one that it has no more is to be faded out.
    channels: usize,
    playing: bool,
    /// What is read next does not go on from what was read before.
    is_cut: bool,
    /// The target has changed, and the delay has not yet.
    is_retargeted: bool,
    /// Frames rendered so far, or passed, or slipped by.
    rendered: u64,
    /// How many of them are ahead of the host's clock; `None` if the host renders when its clock says so.
    lead: Option<i64>,
    /// `rendered` minus the media time that plays now.
    delay: i64,
    /// Media time after the newest frame received.
    newest_end: u64,
    /// The path by which that came, as in [`AudioHeader::stream`].
    newest_stream: u16,
    /// Media time after the newest frame played: nothing before it is played any more, even when the delay has grown.
    played_end: u64,
    /// Media time of the first frame: silence before it is waiting, not concealment.
    counted_from: u64,
    playout: PlayoutDelay,
    /// Frames to render until the next review.
    until_review: i64,
    /// Delay that is needed and kept, and what there is beyond that, as of the last review.
    needed: Option<i64>,
    excess: Option<i64>,
    skip: Option<Skip>,
    /// Frames the last review found too many, until enough frames are at hand to skip them.
    spare: usize,
    missing_frames: u64,
    late_run_frames: u64,
    /// Of [`MOST_SEARCHES`].
    searches_left: u32,
    /// The stream started anew since the last reading.
    anew: Option<Anew>,
    counts: JitterCounts,
}

impl JitterBuffer {
    /// A buffer that can hold `capacity_frames / 2` frames ahead of the playhead, and `max_channels` channels: of a stream with more,
    /// channel *c* is added to channel *c* mod `max_channels`, as the mix would do ([`crate::mix::Strip::mix`]).
    ///
    /// # Panics
    /// If `capacity_frames` is no power of two of at least 2,048.
    pub fn new(rate: SampleRate, max_channels: usize, capacity_frames: usize) -> Self {
        assert!(
            capacity_frames.is_power_of_two() && capacity_frames >= 2_048,
            "capacity_frames must be a power of two of at least 2,048, not {capacity_frames}"
        );
        Self {
            rate,
            target: Target::Auto,
            expected: (rate.hz() as f32 * FIRST_TARGET_SECONDS) as i64,
            margin: 0,
            tolerated: SPARE_FRAMES,
            samples: vec![0.0; max_channels * capacity_frames].into_boxed_slice(),
            present: Presence::new(capacity_frames),
            received: Received::new(capacity_frames),
            covered: Received::new(capacity_frames),
            max_channels,
            sent_channels: 0,
            channels: 0,
            playing: false,
            is_cut: false,
            is_retargeted: false,
            rendered: 0,
            lead: None,
            delay: 0,
            newest_end: 0,
            newest_stream: 0,
            played_end: 0,
            counted_from: 0,
            playout: PlayoutDelay::new(rate),
            until_review: 0,
            needed: None,
            excess: None,
            skip: None,
            spare: 0,
            missing_frames: 0,
            late_run_frames: 0,
            searches_left: MOST_SEARCHES,
            anew: None,
            counts: JitterCounts::default(),
        }
    }

    /// Back to the state of a new buffer, without allocating. RT: O(capacity / 64).
    pub fn reset(&mut self) {
        self.forget_arrivals();
        self.forget_received();
        self.target = Target::Auto;
        self.playout.reset();
        self.expected = self.seconds(FIRST_TARGET_SECONDS);
        (self.margin, self.tolerated) = (0, SPARE_FRAMES);
        self.lead = None;
        (self.sent_channels, self.channels) = (0, 0);
        (self.playing, self.is_retargeted) = (false, false);
        self.counts = JitterCounts::default();
    }

    /// What became of the frames so far.
    pub fn counts(&self) -> JitterCounts {
        self.counts
    }

    /// Channels that are held of the stream; 0 before the first packet.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Media time that plays next; `None` while nothing plays.
    pub fn playing_next(&self) -> Option<u64> {
        self.playing.then(|| self.playhead())
    }

    /// The spread that an automatic target absorbs, in frames, as of the last review, half a second ago or less, or of what came too late since; `None` before the
    /// first.
    pub fn spread_frames(&self) -> Option<u64> {
        self.playout.width()
    }

    /// Frames between the playhead and the newest received; `None` while nothing plays.
    pub fn buffered_frames(&self) -> Option<u64> {
        let ahead = self.newest_end.wrapping_sub(self.playhead()) as i64;
        self.playing.then_some(ahead.max(0) as u64)
    }

    /// True when nothing is heard, and has not been for 0.1 s.
    pub fn is_starved(&self) -> bool {
        !self.playing || self.missing_frames as i64 > self.seconds(STARVED_SECONDS)
    }

    /// Frames received that wait to be played, behind gaps or not.
    pub fn held_frames(&self) -> u64 {
        let faded = self.skip.map_or(0, |skip| skip.done);
        (self.present.count() - faded) as u64
    }

    /// The delay aimed at, in frames from the most prompt arrivals.
    pub fn target_frames(&self) -> u64 {
        let wanted = match self.target {
            Target::Fixed(frames) => i64::from(frames),
            Target::Auto => self
                .spread_frames()
                .map_or(self.expected, |frames| frames as i64),
        };
        wanted.clamp(0, self.deepest()) as u64
    }

    /// What the delay aims at.
    pub fn target(&self) -> Target {
        self.target
    }

    /// Changes the target. What plays goes on: a longer delay is concealed, a shorter one skipped to.
    pub fn set_target(&mut self, target: Target) {
        if self.target != target {
            self.target = target;
            self.playout.begin_account();
            self.is_retargeted = self.playing;
        }
    }

    /// Changes the share of frames that an automatic target may have concealed because they come late; clamped to
    /// [`LEAST_BUDGET`](crate::playout::LEAST_BUDGET) to [`MOST_BUDGET`](crate::playout::MOST_BUDGET). Takes effect with the next review or late packet.
    pub fn set_budget(&mut self, share: f32) {
        self.playout.set_budget(share);
    }

    /// What an automatic target shall be until the spread is known, in frames: what sufficed for this peer last time.
    pub fn expect(&mut self, frames: u32) {
        self.expected = i64::from(frames).min(self.deepest());
    }

    /// How many frames of delay an automatic target shall keep beyond what the past needed, and how many more are not worth a skip. Takes
    /// effect with the next review.
    pub fn set_margin(&mut self, frames: i64, tolerated: i64) {
        (self.margin, self.tolerated) = (frames, tolerated);
    }

    /// The share of frames that an automatic target may have concealed because they come late.
    pub fn budget(&self) -> f32 {
        self.playout.budget()
    }

    /// By how many frames the delay is longer (or, negative, shorter) than what is needed and kept, as of the last review, which was made
    /// half a second ago or less; `None` before the first since the target was changed, and while nothing plays.
    pub fn excess_frames(&self) -> Option<i64> {
        self.excess.filter(|_| self.playing && !self.is_retargeted)
    }

    /// Tells by how many frames rendering is ahead of the host's clock, by which arrivals are timed. `None`, as at first, is a sound
    /// card: it renders when its clock says so.
    pub fn set_lead(&mut self, frames: Option<i64>) {
        self.lead = frames;
    }

    /// True when a [`read`](Self::read) of `frames` frames would miss nothing that may still come: nothing plays, or all of them
    /// are there. RT: no alloc, no lock, O(frames).
    pub fn is_ready(&self, frames: usize) -> bool {
        // Over a skip the frames on both sides of it are there.
        let (fading, distance) = self
            .skip
            .map_or((0, 0), |skip| (skip.fade - skip.done, skip.distance));
        let rest = frames.saturating_sub(fading);
        let from = self.playhead().wrapping_add((fading + distance) as u64);
        // Before the first frame there is nothing to wait for.
        let waiting = self.counted_from.wrapping_sub(from) as i64;
        let silent = waiting.clamp(0, rest as i64) as usize;
        let rest = rest - silent;
        !self.playing || self.present.run(from.wrapping_add(silent as u64), rest) == rest
    }

    /// Lets `frames` frames pass unrendered. What plays ends, and starts anew with its next packet.
    pub fn pass(&mut self, frames: u64) {
        self.rendered = self.rendered.wrapping_add(frames);
        if self.playing {
            self.stop();
            self.forget_arrivals();
        }
    }

    /// What plays ends.
    fn stop(&mut self) {
        self.remember();
        self.playing = false;
    }

    /// What starts next begins with the delay that the stream needed, unless it is known too shortly to say less than what was known before.
    fn remember(&mut self) {
        if let (Target::Auto, Some(_)) = (self.target, self.spread_frames()) {
            let needed = self.target_frames() as i64;
            let known = self.playout.known_frames() as i64;
            self.expected = if known > self.seconds(KNOWN_SECONDS) {
                needed
            } else {
                needed.max(self.expected)
            };
        }
    }

    /// The output has gone on without `frames` frames: what would have been played in them is skipped, and with it what an automatic target has to spare, for
    /// there is a break anyway. RT: no alloc, no lock, O(frames + capacity / 64).
    pub fn miss(&mut self, frames: usize) {
        if let Some(skip) = self.skip {
            // The rest of the fade is not heard.
            self.end_skip(skip);
        }
        let playhead = self.playhead();
        self.rendered = self.rendered.wrapping_add(frames as u64);
        if self.playing {
            let held = frames.min(self.present.capacity());
            let skipped = self.present.clear(playhead, held);
            self.counts.skipped_frames += skipped as u64;
            if self.passed(self.played_end) > 0 {
                self.played_end = self.playhead();
            }
            self.skip_excess();
        }
    }

    /// Without a fade.
    fn skip_excess(&mut self) {
        let (Target::Auto, Some(needed)) = (self.target, self.needed) else {
            return;
        };
        // Where all come alike and clocks agree, as on one sound system, the need is known to a frame. A single one may have come sooner.
        let is_exact = (self.spread_frames(), self.margin) == (Some(0), 0);
        let is_near =
            |soonest: &i64| (0..self.playout.resolution()).contains(&needed.wrapping_sub(*soonest));
        let soonest = self.playout.soonest().filter(is_near).filter(|_| is_exact);
        if self.skip_to(soonest.unwrap_or(needed)) {
            (self.excess, self.spare) = (Some(0), 0);
        }
    }

    /// Accounts for `frames` (negative: fewer) that were read beyond what the clocks account for, to trim the delay by them.
    pub fn trim(&mut self, frames: i64) {
        self.rendered = self.rendered.wrapping_sub(frames as u64);
        self.delay = self.delay.wrapping_sub(frames);
    }

    /// Takes `slip` as [`crate::slip::SlipWatch`] tells it: so many frames count as rendered, but what plays next is the same, and so
    /// comes that much later. Returns the frames of the slip before, if the sender has stood still as long: then nothing is left to catch
    /// up with. RT: no alloc, no lock, O(bins of the spread).
    pub fn settle(&mut self, slip: i64) -> i64 {
        self.trim(slip.wrapping_neg());
        let doubted = self.playout.doubted_frames();
        let is_news = slip != 0 || doubted != 0;
        let stood_still = self.playout.settle(slip);
        if let Some(anew) = &mut self.anew {
            anew.least = anew.least.wrapping_add(slip);
        }
        if is_news && self.playing {
            self.find_spare();
            // A fixed target tolerates much, but not what is known to be the output's: slips would add up.
            let slipped = self.excess.unwrap_or(0).min(doubted - stood_still);
            if matches!(self.target, Target::Fixed(_)) && slipped > SPARE_FRAMES {
                self.spare = self.spare.max(slipped as usize);
            }
        }
        stood_still
    }

    /// Stores a packet's frames. `arrival` is what its sequence number says: [`Arrival::New`], [`Arrival::Overtaken`], [`Arrival::Recovered`],
    /// [`Arrival::Original`] or [`Arrival::Restart`]. False if all of them are copies.
    ///
    /// `samples` are the wire bytes that go with `header`; the header's rate and channels have been checked.
    /// RT: no alloc, no lock, O(frames + capacity / 64 + bins of the spread), and at most 64 searches of the spread between two reads.
    pub fn insert(&mut self, header: &AudioHeader, samples: &[u8], mut arrival: Arrival) -> bool {
        if arrival == Arrival::Restart {
            self.forget_received();
        }
        self.counts.received_frames += u64::from(header.frames);
        // What is copied in front is as if it had not come.
        let copied = (self.received).run(header.timestamp, usize::from(header.frames));
        self.counts.copied_frames += copied as u64;
        let frames = usize::from(header.frames) - copied;
        if frames == 0 {
            return false;
        }
        let channels = usize::from(header.channels).min(self.max_channels);
        let frame_bytes = usize::from(header.channels) * header.format.bytes();
        let samples = &samples[copied * frame_bytes..];
        let start = header.timestamp.wrapping_add(copied as u64);
        // Its copy came by the other path, which brings no original any more.
        if arrival == Arrival::Overtaken && self.covered.run(start, frames) == frames {
            arrival = Arrival::Original;
        }
        let clock = self.rendered.wrapping_sub(self.lead.unwrap_or(0) as u64);
        let arrival_delay = clock.wrapping_sub(start) as i64;

        let late = arrival_delay.wrapping_sub(self.delay);
        let is_straggler = matches!(arrival, Arrival::Overtaken | Arrival::Recovered);
        let is_hopeless =
            !self.playing || channels != self.sent_channels || late > self.seconds(STALL_SECONDS);
        let is_beyond = (frames as i64).saturating_sub(self.passed(start)) > self.depth();
        if arrival == Arrival::Original {
            // Its copy has come, and said when and how late these frames come.
            if is_hopeless || is_beyond {
                self.counts.copied_frames += frames as u64;
                return true;
            }
        } else if is_straggler && is_hopeless {
            // It says nothing of the stream as it is now, so nothing is decided by it, and nothing owed for it.
            if header.stream != self.newest_stream && self.received.is_past(start) {
                // As far as anybody remembers, the faster path has brought it.
                self.counts.copied_frames += frames as u64;
                return false;
            }
            self.counts.late_packets += 1;
            self.counts.late_frames += frames as u64;
            return true;
        } else {
            let is_anew = arrival == Arrival::Restart
                || channels != self.sent_channels
                || late > self.seconds(STALL_SECONDS)
                || self.late_run_frames > self.seconds(STALL_SECONDS) as u64;
            if !self.playing {
                self.start(start, arrival_delay);
            } else if is_anew || (is_beyond && !self.catch_up(arrival_delay)) {
                if !self.may_search(SEARCHES_TO_START_ANEW) {
                    self.counts.late_packets += 1;
                    self.counts.late_frames += frames as u64;
                    return true;
                }
                self.resync(arrival_delay, arrival);
            }
            self.sent_channels = channels;
            self.channels = self.channels.max(channels);
            if let Some(anew) = &mut self.anew {
                anew.least = anew.least.min(arrival_delay);
            } else {
                self.playout.add(arrival_delay, frames as u16);
            }
            if arrival_delay.wrapping_sub(self.delay) > 0 {
                self.counts.late_packets += 1;
                if !is_straggler {
                    self.late_run_frames += frames as u64;
                }
                self.grow();
            } else {
                self.late_run_frames = 0;
            }
        }

        // Frames whose instant has passed are dropped, the rest of the packet still plays.
        let passed = self
            .passed(start)
            .max(self.played_end.wrapping_sub(start) as i64)
            .clamp(0, frames as i64) as usize;
        let source = (header.format, usize::from(header.channels), samples);
        let dropped = self.store(start, passed, frames, source) as u64;
        if arrival == Arrival::Original {
            self.counts.copied_frames += dropped;
        } else {
            self.counts.late_frames += dropped;
            self.playout.count_late(dropped);
        }
        if arrival != Arrival::Recovered {
            self.received.set(start, frames);
        }
        self.covered.reach(start, frames);
        self.covered.set(start, frames);
        let end = start.wrapping_add(frames as u64);
        if end.wrapping_sub(self.newest_end) as i64 > 0 {
            self.newest_end = end;
            self.newest_stream = header.stream;
        }
        true
    }

    /// Counts frames that came without their samples: they tell nothing of how late packets are. RT: O(1).
    pub fn pass_over(&mut self, frames: usize) {
        self.counts.received_frames += frames as u64;
        self.counts.skipped_frames += frames as u64;
    }

    /// Renders the next `frames` frames into `out`, `[channel][frame]`, for [`channels`](Self::channels) channels; missing
    /// frames are silence, counted as concealed. Calls `each(out, at, run)` after each run of frames, from frame `at` on.
    /// False, and `out` untouched, while nothing plays.
    ///
    /// RT: no alloc, no lock, O(frames + capacity / 64), and what `each` does.
    pub fn read(
        &mut self,
        out: &mut [f32],
        frames: usize,
        mut each: impl FnMut(&mut [f32], usize, Run),
    ) -> bool {
        self.searches_left = MOST_SEARCHES;
        if let Some(anew) = self.anew.take() {
            self.go_on_from(anew);
        }
        if !self.playing {
            self.rendered = self.rendered.wrapping_add(frames as u64);
            return false;
        }
        if self.until_review <= 0 {
            self.until_review = self.seconds(REVIEW_SECONDS);
            self.playout.review(self.target == Target::Auto);
            self.find_spare();
        } else {
            self.playout.measure();
        }
        if self.is_retargeted && self.skip.is_none() {
            self.retarget();
        }
        self.until_review -= frames as i64;
        if self.spare > 0 && self.skip.is_none() {
            self.begin_skip(frames);
        }
        let mut done = 0;
        while done < frames {
            let wanted = frames - done;
            let run = match self.skip {
                Some(skip) => self.read_skip(skip, out, frames, done, wanted),
                None => self.read_plain(out, frames, done, wanted),
            };
            let is_cut = core::mem::take(&mut self.is_cut);
            each(out, done, Run { is_cut, ..run });
            done += run.frames;
        }
        if self.missing_frames > u64::from(self.rate.hz()) {
            self.stop();
        }
        true
    }

    fn read_plain(&mut self, out: &mut [f32], stride: usize, at: usize, wanted: usize) -> Run {
        let playhead = self.playhead();
        let run = self.present.run(playhead, wanted);
        if run > 0 {
            self.copy_out(playhead, out, stride, at, run);
            self.present.clear(playhead, run);
            self.played_end = playhead.wrapping_add(run as u64);
            self.counts.played_frames += run as u64;
            self.missing_frames = 0;
            self.rendered = self.rendered.wrapping_add(run as u64);
            return Run {
                frames: run,
                is_missing: false,
                is_cut: false,
            };
        }
        let gap = self.present.gap(playhead, wanted);
        for channel in 0..self.channels {
            out[channel * stride + at..][..gap].fill(0.0);
        }
        if (playhead.wrapping_sub(self.counted_from) as i64) >= 0 {
            if self.missing_frames == 0 && self.buffered_frames() == Some(0) {
                self.counts.underruns += 1;
            }
            self.counts.concealed_frames += gap as u64;
            self.missing_frames += gap as u64;
        }
        self.rendered = self.rendered.wrapping_add(gap as u64);
        Run {
            frames: gap,
            is_missing: true,
            is_cut: false,
        }
    }

    fn read_skip(
        &mut self,
        skip: Skip,
        out: &mut [f32],
        stride: usize,
        at: usize,
        wanted: usize,
    ) -> Run {
        let playhead = self.playhead();
        let run = wanted.min(skip.fade - skip.done);
        self.copy_out(playhead, out, stride, at, run);
        let capacity = self.present.capacity();
        for channel in 0..self.channels {
            let ring = &self.samples[channel * capacity..][..capacity];
            for (n, sample) in out[channel * stride + at..][..run].iter_mut().enumerate() {
                let slot = self
                    .present
                    .slot(playhead.wrapping_add((skip.distance + n) as u64));
                let weight = ((skip.done + n) as f32 + 0.5) / skip.fade as f32;
                *sample += (ring[slot] - *sample) * weight;
            }
        }
        self.rendered = self.rendered.wrapping_add(run as u64);
        self.counts.played_frames += run as u64;
        let skip = Skip {
            done: skip.done + run,
            ..skip
        };
        if skip.done < skip.fade {
            self.skip = Some(skip);
        } else {
            self.end_skip(skip);
        }
        Run {
            frames: run,
            is_missing: false,
            is_cut: false,
        }
    }

    /// Goes on behind what is skipped, however much of the fade was played.
    fn end_skip(&mut self, skip: Skip) {
        let first = self.playhead().wrapping_sub(skip.done as u64);
        let cleared = self.present.clear(first, skip.done + skip.distance);
        self.counts.skipped_frames += (cleared - skip.done) as u64;
        self.delay = self.delay.wrapping_sub(skip.distance as i64);
        self.played_end = self.playhead();
        self.skip = None;
    }

    /// Media time that plays next.
    fn playhead(&self) -> u64 {
        self.rendered.wrapping_sub(self.delay as u64)
    }

    /// Frames from a media time to the playhead; negative if it is still to come.
    fn passed(&self, media: u64) -> i64 {
        self.playhead().wrapping_sub(media) as i64
    }

    /// Frames that may be stored ahead of the playhead; as many slots stay free behind it for the delay to grow.
    fn depth(&self) -> i64 {
        (self.present.capacity() / 2) as i64
    }

    /// The greatest target: beyond it, there must be room for the packets of a burst.
    fn deepest(&self) -> i64 {
        self.depth() / 4 * 3
    }

    fn seconds(&self, seconds: f32) -> i64 {
        (self.rate.hz() as f32 * seconds) as i64
    }

    fn start(&mut self, timestamp: u64, arrival_delay: i64) {
        self.forget_arrivals();
        self.playing = true;
        self.is_cut = true;
        self.channels = 0;
        self.is_retargeted = false;
        self.missing_frames = 0;
        self.counted_from = timestamp;
        self.delay = arrival_delay.wrapping_add(self.target_frames() as i64);
        self.newest_end = self.playhead();
        self.played_end = self.newest_end;
    }

    /// Starts anew from a packet that arrives now, aiming as deep as before.
    fn resync(&mut self, arrival_delay: i64, arrival: Arrival) {
        let target = self.target_frames() as i64;
        self.remember();
        self.forget_arrivals();
        self.is_cut = true;
        self.counts.resyncs += 1;
        self.delay = arrival_delay.wrapping_add(target);
        self.newest_end = self.playhead();
        // The playhead may have moved back. What it passes again was played, unless the sender's clock itself was set back.
        let again = self.played_end.wrapping_sub(self.newest_end) as i64;
        if arrival == Arrival::Restart || !(0..self.depth()).contains(&again) {
            self.played_end = self.newest_end;
        }
        // What is missing from here on is missed, whatever media time it was before.
        self.counted_from = self.newest_end;
        let least = arrival_delay;
        self.anew = Some(Anew { least, target });
    }

    /// So much waits that no more fits, because the output stood still or the sender's clock was set forward: starts anew from
    /// this packet, but keeps what is due after that. False if nothing is.
    fn catch_up(&mut self, arrival_delay: i64) -> bool {
        let known = self.anew.map(|anew| anew.target);
        if known.is_none() && !self.may_search(SEARCHES_TO_START_ANEW) {
            return false;
        }
        let target = known.unwrap_or_else(|| self.target_frames() as i64);
        let delay = arrival_delay.wrapping_add(target);
        let playhead = self.rendered.wrapping_sub(delay as u64);
        let kept = self.newest_end.wrapping_sub(playhead) as i64;
        if self.skip.is_some() || kept <= 0 || !self.skip_to(delay) {
            return false;
        }
        self.counts.resyncs += 1;
        if known.is_none() {
            self.remember();
            self.forget_spread();
        }
        let least = arrival_delay;
        self.anew = Some(Anew { least, target });
        true
    }

    /// Of what came since the stream started anew, all but the last waited for the output: its delay is that of the most prompt.
    fn go_on_from(&mut self, Anew { least, target }: Anew) {
        if self.playing {
            self.playout.add(least, 1);
            self.skip_to(least.wrapping_add(target));
        }
    }

    /// Shortens the delay to so many frames without a fade. False, and nothing changed, if it is shorter, or longer by more than the buffer is deep.
    fn skip_to(&mut self, delay: i64) -> bool {
        let distance = self.delay.wrapping_sub(delay);
        if !(0..self.depth()).contains(&distance) {
            return false;
        }
        let skipped = self.present.clear(self.playhead(), distance as usize);
        self.counts.skipped_frames += skipped as u64;
        self.is_cut |= distance > 0;
        self.delay = delay;
        self.played_end = self.playhead();
        true
    }

    fn forget_received(&mut self) {
        self.received.clear();
        self.covered.clear();
    }

    /// Whether so many searches of the spread may still be made before the next reading; they count as made then.
    fn may_search(&mut self, searches: u32) -> bool {
        let left = self.searches_left.checked_sub(searches);
        self.searches_left = left.unwrap_or(self.searches_left);
        left.is_some()
    }

    fn forget_arrivals(&mut self) {
        self.counts.skipped_frames += self.held_frames();
        self.present.clear_all();
        self.skip = None;
        self.anew = None;
        self.forget_spread();
    }

    fn forget_spread(&mut self) {
        self.playout.forget_arrivals();
        (self.needed, self.excess) = (None, None);
        self.until_review = 2 * self.seconds(REVIEW_SECONDS);
        self.spare = 0;
        self.late_run_frames = 0;
    }

    /// A packet came late: lengthen the delay if the budget says so. Its missing frames are a gap already, so this costs nothing more.
    fn grow(&mut self) {
        if self.target == Target::Auto
            && self.skip.is_none()
            && self.may_search(1)
            && let Some(needed) = self.playout.needed()
        {
            let growth = self.lengthen_to(needed);
            self.playout.count_growth(growth);
        }
    }

    /// Not so far that the frames held no longer fit between the playhead and the end of the buffer. Answers how many frames are
    /// concealed for it.
    fn lengthen_to(&mut self, delay: i64) -> i64 {
        let ahead = self.newest_end.wrapping_sub(self.playhead()) as i64;
        let room = self.depth().saturating_sub(ahead);
        let growth = delay.wrapping_sub(self.delay).min(room);
        if growth <= 0 {
            return 0;
        }
        let has_begun = self.playhead().wrapping_sub(self.counted_from) as i64 >= 0;
        self.delay = self.delay.wrapping_add(growth);
        self.spare = 0;
        // More than was known.
        self.needed = None;
        if !has_begun {
            return 0;
        }
        // The playhead may be before the first frame again, but nobody waits for that any more.
        self.counted_from = self.playhead();
        growth
    }

    /// Brings the delay to another target at once.
    fn retarget(&mut self) {
        let before = self.delay;
        self.find_spare();
        // What it was for the old target tells nobody anything.
        let excess = self.excess.take().unwrap_or(0);
        self.lengthen_to(before.wrapping_sub(excess));
        // Until there are frames to skip over.
        self.is_retargeted = excess > SPARE_FRAMES;
        self.spare = if self.is_retargeted {
            excess as usize
        } else {
            0
        };
    }

    /// How much longer than needed the delay is, and whether that is worth a skip.
    fn find_spare(&mut self) {
        let (needed, tolerated) = match self.target {
            Target::Auto => {
                let needed = self.playout.needed();
                (
                    needed.map(|needed| needed.wrapping_add(self.margin)),
                    self.tolerated,
                )
            }
            Target::Fixed(_) => {
                let target = self.target_frames() as i64;
                (
                    self.playout
                        .prompt()
                        .map(|prompt| prompt.wrapping_add(target)),
                    self.seconds(FIXED_SPARE_SECONDS).max(target),
                )
            }
        };
        // If the sender has stood still too, so much more is needed.
        let doubted = self.playout.doubted_frames();
        let needed = needed.map(|needed| needed.wrapping_add(doubted));
        // A skip that has begun is as good as done.
        let skipping = self.skip.map_or(0, |skip| skip.distance as i64);
        self.needed = needed;
        self.excess = needed.map(|needed| self.delay.wrapping_sub(needed).wrapping_sub(skipping));
        let spare = self.excess.unwrap_or(0);
        self.spare = if spare > tolerated { spare as usize } else { 0 };
        // A slow sender eats up a fixed delay from below. A doubt is none that has, only a reason to skip nothing.
        if let (Target::Fixed(_), Some(needed), None) = (self.target, needed, self.skip)
            && spare + doubted
                < -(self.target_frames() as i64 / 4).max(2 * self.playout.resolution())
        {
            self.lengthen_to(needed.wrapping_sub(doubted));
        }
    }

    /// Begins to skip what is spare, as soon as there are frames on both sides of it to fade between.
    fn begin_skip(&mut self, frames: usize) {
        let playhead = self.playhead();
        let at_hand = self.newest_end.wrapping_sub(playhead) as i64;
        let mut spare = self.spare as i64;
        if self.lead.is_some() {
            // Who renders ahead waits for every frame: after the skip there must be enough for this quantum, and more is not skipped.
            spare = spare.min(at_hand - frames as i64);
            if spare < SPARE_FRAMES {
                return;
            }
        }
        let fade = (at_hand - spare).min(FADE_FRAMES as i64);
        if fade < LEAST_FADE_FRAMES as i64 {
            return;
        }
        let fade = fade as usize;
        let is_whole = |from| self.present.run(from, fade) == fade;
        if is_whole(playhead) && is_whole(playhead.wrapping_add(spare as u64)) {
            self.skip = Some(Skip {
                distance: spare as usize,
                fade,
                done: 0,
            });
            self.spare = 0;
            self.is_retargeted = false;
        }
    }

    /// Stores frames from `passed` on. Returns how many of those before it had not come.
    fn store(
        &mut self,
        start: u64,
        passed: usize,
        frames: usize,
        source: (SampleFormat, usize, &[u8]),
    ) -> usize {
        self.received.reach(start, frames);
        let mut dropped = 0;
        let mut from = 0;
        while from < frames {
            let media = start.wrapping_add(from as u64);
            let copied = self.received.run(media, frames - from);
            self.counts.copied_frames += copied as u64;
            from += copied;
            let new = self
                .received
                .gap(media.wrapping_add(copied as u64), frames - from);
            let late = passed.saturating_sub(from).min(new);
            dropped += late;
            self.decode(start, from + late, from + new, source);
            from += new;
        }
        dropped
    }

    /// Decodes the frames `from` to `to` of a packet (format, channels and bytes) into their slots.
    fn decode(
        &mut self,
        start: u64,
        mut from: usize,
        to: usize,
        (format, sent_channels, bytes): (SampleFormat, usize, &[u8]),
    ) {
        let frame_bytes = sent_channels * format.bytes();
        let capacity = self.present.capacity();
        while from < to {
            let media = start.wrapping_add(from as u64);
            let slot = self.present.slot(media);
            let run = (to - from).min(capacity - slot);
            let part = &bytes[from * frame_bytes..(from + run) * frame_bytes];
            for channel in 0..sent_channels.max(self.channels) {
                let row = channel % self.channels;
                let out = &mut self.samples[row * capacity + slot..][..run];
                if channel != row {
                    pcm::add_channel(format, part, channel, sent_channels, out);
                } else if channel < sent_channels {
                    pcm::decode_channel(format, part, channel, sent_channels, out);
                } else if (channel, sent_channels) == (1, 1) {
                    pcm::decode_channel(format, part, 0, 1, out);
                } else {
                    out.fill(0.0);
                }
            }
            // A copy that it takes the place of; or the record of what was received is older than the frames held.
            self.counts.copied_frames += (run - self.present.set(media, run)) as u64;
            from += run;
        }
    }

    fn copy_out(&self, from: u64, out: &mut [f32], stride: usize, at: usize, frames: usize) {
        let capacity = self.present.capacity();
        let slot = self.present.slot(from);
        let first = frames.min(capacity - slot);
        for channel in 0..self.channels {
            let ring = &self.samples[channel * capacity..][..capacity];
            let out = &mut out[channel * stride + at..][..frames];
            out[..first].copy_from_slice(&ring[slot..slot + first]);
            out[first..].copy_from_slice(&ring[..frames - first]);
        }
    }
}
