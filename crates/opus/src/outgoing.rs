//! What each listener is sent: the chosen format, or a cheaper one where its path cannot carry that, and copies where it loses some. The same
//! steps as the page's (`docs/adr/0015-redundancy-and-degradation.md`).

use std::collections::VecDeque;
use std::rc::Rc;

use antiphon_core::sender::FEED;
use antiphon_core::{Ladder, Observation, SampleFormat, SampleRate, Sender, SenderConfig, wire};
use bytes::Bytes;

use crate::{Encoder, FEED_FRAMES, WARM_UP_FRAMES};

/// Between two reviews of what a listener is sent.
const REVIEW_MS: u32 = 1_000;
/// Lanes are taken away after so long without copies, and without any datagram that found all of them crowded.
const CALM_MS: u32 = 60_000;
/// When the format changes, the old one is sent for so many more frames of media time: the other end's codec takes its time to be set up, and a format that
/// turns out to be too much is taken back before the old one has ended.
const OVERLAP_FRAMES: u64 = 48_000;
/// Headers of each packet, of all protocols together.
const HEADER_BITS: usize = 8 * 110;
/// Frames that a packet of Opus may hold.
const OPUS_FRAMES: [usize; 3] = [120, 240, 480];

/// One format of our stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rung {
    /// Samples as they were chosen; with Opus chosen, of 16 bits.
    Main,
    /// Samples of 16 bits, where more were chosen.
    Narrow,
    /// Opus.
    Opus {
        /// kbit/s.
        kbps: u32,
        /// In each packet: 120, 240 or 480.
        frames: usize,
    },
}

impl Rung {
    /// Begins an encoder of it; `None` of samples.
    ///
    /// # Panics
    /// See [`Encoder::new`].
    pub fn encoder(self, channels: usize) -> Option<Encoder> {
        match self {
            Self::Opus { kbps, frames } => Some(Encoder::new(channels, frames, kbps * 1_000)),
            Self::Main | Self::Narrow => None,
        }
    }

    /// Not samples.
    pub fn is_opus(self) -> bool {
        self.opus_frames().is_some()
    }

    /// What it takes of a path, kbit/s with headers; of samples the order alone counts.
    fn cost(self) -> usize {
        match self {
            Self::Main => usize::MAX,
            Self::Narrow => usize::MAX - 1,
            Self::Opus { kbps, frames } => kbps as usize + HEADER_BITS * 48 / frames,
        }
    }

    fn opus_frames(self) -> Option<usize> {
        match self {
            Self::Opus { frames, .. } => Some(frames),
            Self::Main | Self::Narrow => None,
        }
    }
}

/// Whether what is sent can be made up for where it is lost: datagrams of samples carry a cheap copy of the one before, those of Opus are sent twice, on two
/// lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Copies {
    /// Where it helps.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// What a musician chose to send, and what may be done about a path that cannot carry it.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// The room's.
    pub rate: SampleRate,
    /// How samples are written.
    pub format: SampleFormat,
    /// 1 to 8.
    pub channels: usize,
    /// 16 to 512.
    pub packet_frames: usize,
    /// Opus instead of samples, kbit/s.
    pub opus_kbps: Option<u32>,
    /// The format may step down for a listener whose path cannot carry it.
    pub adapts: bool,
    /// See there.
    pub copies: Copies,
}

impl Choice {
    /// Why Opus cannot be sent so, for people; `None` if it can.
    pub fn opus_refusal(&self) -> Option<String> {
        if self.rate != SampleRate::Hz48000 {
            let hz = self.rate.hz();
            return Some(format!(
                "Opus is sent at 48,000 Hz only, and the sound here is at {hz} Hz"
            ));
        }
        (self.channels > 2).then(|| {
            format!(
                "Opus is sent in one or two channels only, not {}",
                self.channels
            )
        })
    }

    /// The chosen format first, then each cheaper than the one before.
    pub fn rungs(&self) -> Vec<Rung> {
        let can_opus = self.opus_refusal().is_none();
        let nearest = |frames: usize| {
            let by_distance = |opus: &usize| opus.abs_diff(frames);
            OPUS_FRAMES
                .into_iter()
                .min_by_key(by_distance)
                .expect("some")
        };
        let top = self.opus_kbps.filter(|_| can_opus).map(|kbps| Rung::Opus {
            kbps,
            frames: nearest(self.packet_frames),
        });
        let mut rungs = vec![top.unwrap_or(Rung::Main)];
        if !self.adapts {
            return rungs;
        }
        if top.is_none() && self.format != SampleFormat::S16 {
            rungs.push(Rung::Narrow);
        }
        // Headers cost as much as the sound: a slow path gets longer packets, too.
        let down = [(128, 240), (64, 480)].map(|(kbps, frames)| Rung::Opus { kbps, frames });
        let is_cheaper = |rung: &Rung| match (top, *rung) {
            (Some(Rung::Opus { kbps: most, .. }), Rung::Opus { kbps, .. }) => kbps < most,
            _ => true,
        };
        rungs.extend(down.into_iter().filter(is_cheaper).filter(|_| can_opus));
        rungs
    }
}

/// The sender's rendition in samples of 16 bits, beside the main one and the encoders' feed.
const NARROW: usize = 1;

/// A stream in samples: in every format that somebody is sent, and in the one that encoders take.
#[derive(Debug)]
pub struct Renditions {
    /// Takes the sound. Its main rendition is [`Rung::Main`].
    pub sender: Sender,
    narrow: Option<SenderConfig>,
    feed: Option<SenderConfig>,
}

/// What a datagram of [`Renditions`] is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rendition {
    /// To be sent, to who is sent this.
    Samples(Rung),
    /// For the [`Encoder`]s.
    Feed,
}

impl Renditions {
    /// Of a sender with its main rendition alone.
    pub fn new(sender: Sender) -> Self {
        Self {
            sender,
            narrow: None,
            feed: None,
        }
    }

    /// Begins what is used from now on, changes what goes on as the main rendition has changed, and ends what is not.
    ///
    /// RT: no alloc, no lock, O(1).
    pub fn prepare(&mut self, is_used: impl Fn(Rung) -> bool, feeds: bool) {
        let main = self.sender.config();
        let narrow = is_used(Rung::Narrow).then_some(SenderConfig {
            format: SampleFormat::S16,
            ..main
        });
        if narrow != self.narrow {
            self.narrow = narrow;
            self.sender.set_rendition(NARROW, narrow);
        }
        let feed = feeds.then_some(SenderConfig {
            format: SampleFormat::F32,
            packet_frames: FEED_FRAMES,
            ..main
        });
        if feed != self.feed {
            self.feed = feed;
            self.sender.set_rendition(FEED, feed);
        }
    }

    /// Samples carry copies from now on where those are wanted. After [`prepare`](Self::prepare).
    ///
    /// RT: no alloc, no lock, O(1).
    pub fn set_copies(&mut self, is_wanted: impl Fn(Rung) -> bool) {
        for (index, rung) in [(0, Rung::Main), (NARROW, Rung::Narrow)] {
            self.sender.set_copies(index, is_wanted(rung));
        }
    }

    /// Writes the next datagram into `out`; what it is for, and its length in bytes. `None` when too few frames wait.
    ///
    /// RT: no alloc, no lock, O(channels × frames).
    ///
    /// # Panics
    /// If `out` is shorter than [`MAX_DATAGRAM_BYTES`](antiphon_core::wire::MAX_DATAGRAM_BYTES).
    pub fn poll_datagram(&mut self, out: &mut [u8]) -> Option<(Rendition, usize)> {
        // Samples first: who hears them waits for no encoder.
        for (index, rendition) in [
            (0, Rendition::Samples(Rung::Main)),
            (NARROW, Rendition::Samples(Rung::Narrow)),
            (FEED, Rendition::Feed),
        ] {
            if let Some(length) = self.sender.poll_rendition(index, out) {
                return Some((rendition, length));
            }
        }
        None
    }
}

/// Our stream, in every format that somebody is sent.
#[derive(Debug)]
pub struct Outgoing {
    /// Takes what is captured.
    pub samples: Renditions,
    rungs: Rc<[Rung]>,
    sample_rungs: Rc<[Rung]>,
    encoders: Vec<(Rung, Encoder)>,
    encoded: VecDeque<(Rung, Box<[u8]>)>,
}

impl Outgoing {
    /// Of what a musician chose.
    pub fn new(choice: &Choice) -> Self {
        let rungs = choice.rungs();
        let (opus, mut samples): (Vec<_>, Vec<_>) =
            (rungs.iter().copied()).partition(|rung| rung.is_opus());
        if samples.is_empty() {
            samples.push(Rung::Main);
        }
        // Beside Opus it only keeps time.
        let format = if opus.first() == rungs.first() {
            SampleFormat::S16
        } else {
            choice.format
        };
        Self {
            samples: Renditions::new(Sender::new(SenderConfig {
                rate: choice.rate,
                format,
                channels: choice.channels,
                packet_frames: choice.packet_frames,
            })),
            rungs: rungs.into(),
            sample_rungs: samples.into(),
            encoders: Vec::new(),
            encoded: VecDeque::new(),
        }
    }

    /// What may be sent, the chosen format first; for who has no use for Opus, only samples.
    pub fn rungs(&self, opus: bool) -> Rc<[Rung]> {
        if opus {
            &self.rungs
        } else {
            &self.sample_rungs
        }
        .clone()
    }

    /// Begins the renditions and encoders that somebody is to be sent, and ends those that nobody is; likewise copies.
    pub fn prepare(&mut self, is_used: impl Fn(Rung) -> bool, has_copies: impl Fn(Rung) -> bool) {
        self.encoders.retain(|(rung, _)| is_used(*rung));
        let channels = self.samples.sender.config().channels;
        for &rung in self.rungs.iter().filter(|rung| is_used(**rung)) {
            if self.encoders.iter().all(|(other, _)| *other != rung)
                && let Some(encoder) = rung.encoder(channels)
            {
                self.encoders.push((rung, encoder));
            }
        }
        self.samples.prepare(is_used, !self.encoders.is_empty());
        self.samples.set_copies(has_copies);
    }

    /// Writes the next datagram of any format that is used into `out`; its format and its length in bytes. `None` when too few frames wait.
    ///
    /// # Panics
    /// If `out` is shorter than [`MAX_DATAGRAM_BYTES`](antiphon_core::wire::MAX_DATAGRAM_BYTES).
    pub fn poll_datagram(&mut self, out: &mut [u8]) -> Option<(Rung, usize)> {
        loop {
            if let Some((rung, datagram)) = self.encoded.pop_front() {
                out[..datagram.len()].copy_from_slice(&datagram);
                return Some((rung, datagram.len()));
            }
            let (rendition, length) = self.samples.poll_datagram(out)?;
            match rendition {
                Rendition::Samples(rung) => return Some((rung, length)),
                Rendition::Feed => {
                    for (rung, encoder) in &mut self.encoders {
                        encoder.push(&out[..length], |datagram| {
                            self.encoded.push_back((*rung, (*datagram).into()));
                        });
                    }
                }
            }
        }
    }
}

/// What is to be done about a listener's lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lanes {
    /// Nothing.
    Keep,
    /// There are too few for what is sent.
    Add,
    /// There have been enough for long.
    Remove,
    /// They were of no use: as many as at first.
    Reset,
}

/// How a datagram left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// On which lane.
    pub lane: usize,
    /// Even there, what came before it waits.
    pub is_crowded: bool,
}

/// What one listener is sent, or all of them who listen to the relay.
#[derive(Debug)]
pub struct Listener {
    rungs: Rc<[Rung]>,
    step: usize,
    /// The format it had before, until the present one has taken over.
    leaving: Option<Rung>,
    /// Media time where the present one began; `None` until it did.
    began: Option<u64>,
    /// The last datagram found every lane crowded.
    is_crowded: bool,
    ladder: Ladder,
    /// Since the last review.
    elapsed_ms: u32,
    offered: u32,
    crowded: u32,
    /// Since all the lanes were needed, or some taken away.
    calm_ms: u32,
    /// The next datagram's number: each listener's are counted on their own, so that a change of format is no loss.
    sequence: u32,
    copies: Copies,
    sends_copies: bool,
    /// Opus that was sent since the last copies, and on which lane.
    burst: Vec<(usize, Bytes)>,
    /// Copies sent.
    pub copies_sent: u64,
    /// Changes of the format.
    pub switches: u64,
}

impl Listener {
    /// Begins with the first of `rungs`; there is at least one.
    pub fn new(rungs: Rc<[Rung]>, copies: Copies) -> Self {
        Self {
            ladder: Ladder::new(rungs.len()),
            rungs,
            step: 0,
            leaving: None,
            began: None,
            is_crowded: false,
            elapsed_ms: 0,
            offered: 0,
            crowded: 0,
            calm_ms: 0,
            sequence: 0,
            copies,
            sends_copies: copies == Copies::On,
            burst: Vec::new(),
            copies_sent: 0,
            switches: 0,
        }
    }

    /// Other formats. Who was sent the chosen one is sent what is chosen now; otherwise the first that takes no more of the path than what that has
    /// carried, or the last.
    pub fn set_rungs(&mut self, rungs: Rc<[Rung]>) {
        let before = self.rung();
        if self.step > 0 {
            // Where there are no narrower ones, the chosen samples are of 16 bits.
            let most = match before {
                Rung::Narrow if !rungs.contains(&before) => Rung::Main,
                other => other,
            };
            let step = rungs.iter().position(|rung| rung.cost() <= most.cost());
            self.step = step.unwrap_or(rungs.len() - 1);
        }
        self.ladder.set_rungs(rungs.len(), self.step);
        self.rungs = rungs;
        self.change(before);
    }

    /// What it may be sent, the chosen format first.
    pub fn rungs(&self) -> &[Rung] {
        &self.rungs
    }

    /// What it is sent now, or soon.
    pub fn rung(&self) -> Rung {
        self.rungs[self.step]
    }

    /// Steps down from the chosen format.
    pub fn step(&self) -> usize {
        self.step
    }

    /// What its reports should tell of: what it hears now.
    pub fn heard_rung(&self) -> Rung {
        self.leaving.unwrap_or(self.rung())
    }

    /// Whether it is sent this format at present.
    pub fn takes(&self, rung: Rung) -> bool {
        rung == self.rung() || Some(rung) == self.leaving
    }

    /// Whether what it loses shall be made up for.
    pub fn sends_copies(&self) -> bool {
        self.sends_copies
    }

    /// Sends it a datagram with frames from `timestamp` on, numbered for it, and without the copy that it may carry if that is not needed. `send` hands it
    /// over at once, or answers `None`: then there was no room, and it is dropped. False if it was.
    pub fn send(
        &mut self,
        rung: Rung,
        datagram: &mut [u8],
        (timestamp, frames): (u64, u16),
        send: impl FnOnce(Bytes) -> Option<Sent>,
    ) -> bool {
        let is_outdone = self.is_crowded && self.is_outdone(rung);
        if is_outdone || !self.is_its_turn(rung, timestamp) {
            self.take_over(rung, timestamp, frames);
            return false;
        }
        wire::set_sequence(datagram, self.sequence);
        self.sequence = self.sequence.wrapping_add(1);
        let alone = wire::without_copy(datagram);
        let has_copy = self.sends_copies && alone.len() < datagram.len();
        let bytes = Bytes::copy_from_slice(if has_copy { datagram } else { alone });
        let sent = send(bytes.clone());
        self.is_crowded = sent.is_none_or(|sent| sent.is_crowded);
        self.offered += 1;
        self.crowded += u32::from(self.is_crowded);
        if let Some(sent) = sent
            && self.sends_copies
        {
            self.copies_sent += u64::from(has_copy);
            if rung.is_opus() {
                self.burst.push((sent.lane, bytes));
            }
        }
        self.take_over(rung, timestamp, frames);
        sent.is_some()
    }

    /// Sends the Opus that was sent since the last call once more, after the burst: no original shall wait behind a copy. `send` gets the lane that it is
    /// not to go by, and says whether there was another.
    pub fn send_copies(&mut self, mut send: impl FnMut(usize, Bytes) -> bool) {
        for (lane, bytes) in self.burst.drain(..) {
            self.copies_sent += u64::from(send(lane, bytes));
        }
    }

    /// A format that was too much, while the cheaper one is sent already.
    fn is_outdone(&self, rung: Rung) -> bool {
        let is_dearer = !self.rungs[self.step..].contains(&rung);
        let has_begun = self.began.is_some() && !self.is_handed_over();
        self.leaving == Some(rung) && is_dearer && has_begun
    }

    /// So many of the datagrams that were sent are known to be lost for want of room: they count as those that found every lane crowded.
    pub fn lost_for_want_of_room(&mut self, datagrams: u32) {
        self.crowded = (self.crowded + datagrams).min(self.offered);
    }

    /// Whether a [`review`](Self::review) is due, so long after the last question.
    pub fn is_due(&mut self, elapsed_ms: u32) -> bool {
        self.elapsed_ms += elapsed_ms;
        self.elapsed_ms >= REVIEW_MS || self.ladder.fails(self.crowded)
    }

    /// Chooses anew. `lost_share`: as the listener reports it; `can_copy`: there is a second lane; `can_add_lanes`: there may be more.
    pub fn review(
        &mut self,
        lost_share: Option<f32>,
        can_copy: bool,
        can_add_lanes: bool,
    ) -> Lanes {
        let is_crowded = self.crowded > 0;
        let elapsed_ms = std::mem::take(&mut self.elapsed_ms);
        let decision = self.ladder.review(&Observation {
            elapsed_ms,
            offered: std::mem::take(&mut self.offered),
            crowded: std::mem::take(&mut self.crowded),
            lost_share,
            can_copy: can_copy && self.copies == Copies::Auto,
            can_add_lanes,
        });
        self.sends_copies = self.copies == Copies::On || decision.copies;
        let (before, step) = (self.rung(), self.step);
        self.step = decision.rung.min(self.rungs.len() - 1);
        self.change(before);
        // Lanes that lose some carry less.
        self.calm_ms = if is_crowded || decision.copies {
            0
        } else {
            self.calm_ms + elapsed_ms
        };
        if decision.add_lanes {
            return Lanes::Add;
        }
        if self.step > step {
            return Lanes::Reset;
        }
        if self.calm_ms > CALM_MS {
            self.calm_ms = 0;
            return Lanes::Remove;
        }
        Lanes::Keep
    }

    /// Where a codec is involved, what was sent goes on until that has taken over.
    fn change(&mut self, before: Rung) {
        let now = self.rung();
        if now == before {
            return;
        }
        self.switches += 1;
        // What has not begun is not missed: what was sent before it goes on.
        let before = match self.leaving {
            Some(leaving) if self.began.is_none() => leaving,
            _ => before,
        };
        // Renditions in samples are of the same packets: one ends where the other begins. What has not ended yet goes on.
        let is_codec_involved = now.is_opus() || before.is_opus();
        let is_sharp = !is_codec_involved || before == now || self.leaving == Some(now);
        self.leaving = (!is_sharp).then_some(before);
        self.began = None;
    }

    /// From one format to another in Opus packets of one duration, which go through one decoder: each frame is sent in one of them only.
    fn is_handed_over(&self) -> bool {
        let leaving = self.leaving.and_then(Rung::opus_frames);
        leaving.is_some() && leaving == self.rung().opus_frames()
    }

    fn is_its_turn(&self, rung: Rung, timestamp: u64) -> bool {
        let has_begun = self.began.is_some_and(|began| timestamp >= began);
        !self.is_handed_over() || has_begun == (rung == self.rung())
    }

    /// A datagram of one of two formats came to be sent: the old one ends once it is far enough into the new one, or if it seems to have ended by itself.
    fn take_over(&mut self, rung: Rung, timestamp: u64, frames: u16) {
        if self.leaving.is_none() {
            return;
        }
        let is_new = rung == self.rung();
        if is_new {
            let warm_up = if self.is_handed_over() {
                WARM_UP_FRAMES
            } else {
                0
            };
            self.began.get_or_insert(timestamp + warm_up);
        }
        let Some(began) = self.began else { return };
        let is_over = if is_new {
            timestamp >= began + 2 * OVERLAP_FRAMES
        } else {
            timestamp + u64::from(frames) >= began + OVERLAP_FRAMES
        };
        if is_over {
            self.leaving = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use antiphon_core::wire::{self, Datagram, MAX_DATAGRAM_BYTES};

    use super::*;

    const CHOICE: Choice = Choice {
        rate: SampleRate::Hz48000,
        format: SampleFormat::S16,
        channels: 2,
        packet_frames: 128,
        opus_kbps: None,
        adapts: true,
        copies: Copies::Auto,
    };
    const HIGH: Rung = Rung::Opus {
        kbps: 128,
        frames: 240,
    };
    const LOW: Rung = Rung::Opus {
        kbps: 64,
        frames: 480,
    };

    #[test]
    fn what_is_narrower_follows_the_packets_that_were_chosen() {
        let config = SenderConfig {
            rate: SampleRate::Hz48000,
            format: SampleFormat::S24,
            channels: 1,
            packet_frames: 256,
        };
        let mut renditions = Renditions::new(Sender::new(config));
        let mut out = [0; MAX_DATAGRAM_BYTES];
        let mut narrow = |renditions: &mut Renditions| {
            renditions.prepare(|rung| rung == Rung::Narrow, false);
            renditions.sender.push(&[0.5; 256], 256);
            let mut packets = Vec::new();
            while let Some((rendition, length)) = renditions.poll_datagram(&mut out) {
                if rendition == Rendition::Samples(Rung::Narrow)
                    && let Ok(Datagram::Audio(header, ..)) = wire::parse(&out[..length])
                {
                    packets.push((header.timestamp, header.frames));
                }
            }
            packets
        };
        assert_eq!(narrow(&mut renditions), [(0, 256)]);
        renditions.sender.set_config(SenderConfig {
            packet_frames: 128,
            ..config
        });
        assert_eq!(narrow(&mut renditions), [(256, 128), (384, 128)]);
    }

    #[test]
    fn each_format_is_cheaper_than_the_one_before() {
        assert_eq!(CHOICE.rungs(), [Rung::Main, HIGH, LOW]);
        let wide = Choice {
            format: SampleFormat::S24,
            ..CHOICE
        };
        assert_eq!(wide.rungs(), [Rung::Main, Rung::Narrow, HIGH, LOW]);
        let fixed = Choice {
            adapts: false,
            ..wide
        };
        assert_eq!(fixed.rungs(), [Rung::Main]);
        let opus = |kbps, packet_frames| {
            let chosen = Choice {
                opus_kbps: Some(kbps),
                packet_frames,
                ..wide
            };
            chosen.rungs()
        };
        let top = |kbps, frames| Rung::Opus { kbps, frames };
        assert_eq!(opus(256, 128), [top(256, 120), HIGH, LOW]);
        assert_eq!(opus(128, 512), [top(128, 480), LOW]);
        assert_eq!(opus(64, 256), [top(64, 240)]);
    }

    /// So many datagrams of each format come of a tenth of a second.
    fn polled(outgoing: &mut Outgoing) -> [usize; 4] {
        outgoing.samples.sender.push(&[0.1; 4_800], 4_800);
        let mut counts = [0; 4];
        let mut bytes = [0; MAX_DATAGRAM_BYTES];
        while let Some((rung, length)) = outgoing.poll_datagram(&mut bytes) {
            let place = [Rung::Main, Rung::Narrow, HIGH, LOW]
                .into_iter()
                .position(|it| it == rung);
            let place = place.expect("one of them");
            counts[place] += 1;
            match (wire::parse(&bytes[..length]).expect("valid"), place) {
                (Datagram::Audio(header, ..), 0) => assert_eq!(header.format, SampleFormat::S24),
                (Datagram::Audio(header, ..), 1) => assert_eq!(header.format, SampleFormat::S16),
                (Datagram::Opus(header, _), 2) => assert_eq!(header.frames, 240),
                (Datagram::Opus(header, _), 3) => assert_eq!(header.frames, 480),
                (datagram, _) => panic!("{datagram:?}"),
            }
        }
        counts
    }

    #[test]
    fn only_what_somebody_is_sent_is_made() {
        let mut outgoing = Outgoing::new(&Choice {
            format: SampleFormat::S24,
            packet_frames: 120,
            ..CHOICE
        });
        assert_eq!(polled(&mut outgoing), [40, 0, 0, 0]);
        outgoing.prepare(|rung| rung == Rung::Narrow, |_| false);
        assert_eq!(polled(&mut outgoing), [40, 40, 0, 0]);
        outgoing.prepare(|rung| rung != Rung::Narrow, |_| false);
        assert_eq!(polled(&mut outgoing), [40, 0, 20, 10]);
        // Goes on where it was.
        outgoing.prepare(|rung| rung == LOW, |_| false);
        assert_eq!(polled(&mut outgoing), [40, 0, 0, 10]);
        outgoing.prepare(|_| false, |_| false);
        assert_eq!(polled(&mut outgoing), [40, 0, 0, 0]);
    }

    #[test]
    fn where_opus_cannot_be_there_are_samples() {
        let many = Choice {
            channels: 3,
            opus_kbps: Some(128),
            ..CHOICE
        };
        assert_eq!(many.rungs(), [Rung::Main]);
        let slow = Choice {
            rate: SampleRate::Hz44100,
            format: SampleFormat::F32,
            ..CHOICE
        };
        assert_eq!(slow.rungs(), [Rung::Main, Rung::Narrow]);
        assert!(many.opus_refusal().is_some() && slow.opus_refusal().is_some());
        assert_eq!(CHOICE.opus_refusal(), None);
    }

    /// A listener's lanes, as it were: what was sent, with its format and number.
    struct Path {
        listener: Listener,
        is_full: bool,
        frame: u64,
        sent: Vec<(Rung, u32)>,
    }

    impl Path {
        fn new(rungs: &[Rung], copies: Copies) -> Self {
            Self {
                listener: Listener::new(rungs.into(), copies),
                is_full: false,
                frame: 0,
                sent: Vec::new(),
            }
        }

        /// Half a second of packets of 240 frames in each format that is wanted.
        fn play(&mut self) {
            for _ in 0..100 {
                for rung in [Rung::Main, Rung::Narrow, HIGH, LOW] {
                    let is_whole = rung != LOW || self.frame.is_multiple_of(480);
                    if !self.listener.takes(rung) || !is_whole {
                        continue;
                    }
                    let mut datagram = [0; 24];
                    let (is_full, sent) = (self.is_full, &mut self.sent);
                    let frames = rung.opus_frames().unwrap_or(240) as u16;
                    self.listener
                        .send(rung, &mut datagram, (self.frame, frames), |bytes| {
                            let number = bytes[8..12].try_into().expect("four bytes");
                            sent.push((rung, u32::from_le_bytes(number)));
                            (!is_full).then_some(Sent {
                                lane: 0,
                                is_crowded: false,
                            })
                        });
                }
                self.frame += 240;
            }
        }

        /// Its lanes are full for as long as that takes, and stay so.
        fn step_down(&mut self) {
            self.is_full = true;
            for _ in 0..2 {
                self.play();
                self.review();
            }
        }

        /// Its lanes have room, until the format has stepped up for the last time.
        fn climb(&mut self) {
            self.is_full = false;
            while self.listener.step() > 0 {
                self.play();
                self.play();
                self.review();
            }
        }

        fn count(&self, rung: Rung) -> usize {
            self.sent.iter().filter(|(sent, _)| *sent == rung).count()
        }

        fn review(&mut self) -> Lanes {
            assert!(self.listener.is_due(1_000));
            self.listener.review(Some(0.0), true, false)
        }
    }

    #[test]
    fn a_slow_path_is_sent_less_and_what_it_had_until_that_has_begun() {
        let mut lanes = Path::new(&[Rung::Main, HIGH, LOW], Copies::Auto);
        lanes.step_down();
        assert_eq!((lanes.listener.rung(), lanes.listener.step()), (HIGH, 1));
        assert_eq!(lanes.listener.heard_rung(), Rung::Main);
        lanes.is_full = false;
        lanes.sent.clear();
        for _ in 0..3 {
            lanes.play();
        }
        // Both for a second, then the new one alone; and all in one row of numbers.
        assert_eq!((lanes.count(Rung::Main), lanes.count(HIGH)), (200, 300));
        assert_eq!(lanes.listener.heard_rung(), HIGH);
        let numbers = lanes.sent.iter().map(|(_, number)| *number);
        assert!(numbers.eq(200..700), "numbers");
        // Calm for long enough: up again.
        for _ in 0..10 {
            lanes.review();
        }
        assert_eq!(lanes.listener.rung(), Rung::Main);
        assert_eq!(lanes.listener.switches, 2);
    }

    #[test]
    fn a_format_that_is_too_much_is_not_sent_beside_the_next() {
        let mut lanes = Path::new(&[Rung::Main, HIGH], Copies::Auto);
        lanes.step_down();
        lanes.sent.clear();
        lanes.play();
        // Only until the next has begun.
        assert_eq!((lanes.count(Rung::Main), lanes.count(HIGH)), (1, 100));
    }

    #[test]
    fn a_step_up_that_is_too_much_is_taken_back_at_once_and_without_a_hole() {
        let mut lanes = Path::new(&[Rung::Main, HIGH], Copies::Auto);
        lanes.step_down();
        lanes.climb();
        assert!(!lanes.listener.is_due(500), "all is well");
        lanes.sent.clear();
        lanes.is_full = true;
        lanes.play();
        assert!(lanes.listener.is_due(0));
        lanes.listener.review(Some(0.0), true, true);
        assert_eq!(lanes.listener.heard_rung(), HIGH);
        assert!(!lanes.listener.takes(Rung::Main));
        lanes.is_full = false;
        lanes.play();
        // It never ended.
        assert_eq!((lanes.count(Rung::Main), lanes.count(HIGH)), (100, 200));
    }

    #[test]
    fn a_step_up_of_which_much_is_lost_is_taken_back_as_if_its_lanes_were_full() {
        let mut lanes = Path::new(&[Rung::Main, HIGH], Copies::Off);
        lanes.step_down();
        lanes.climb();
        lanes.play();
        lanes.listener.lost_for_want_of_room(7);
        assert!(!lanes.listener.is_due(500));
        lanes.listener.lost_for_want_of_room(1);
        assert!(lanes.listener.is_due(0));
        lanes.listener.review(None, false, false);
        assert_eq!(lanes.listener.rung(), HIGH);
    }

    #[test]
    fn lanes_are_added_before_the_format_steps_down_and_taken_away_after_a_calm_minute() {
        let mut lanes = Path::new(&[Rung::Main, HIGH], Copies::Auto);
        lanes.is_full = true;
        for _ in 0..3 {
            lanes.play();
            assert_eq!(lanes.listener.review(None, true, true), Lanes::Add);
        }
        assert_eq!(lanes.listener.step(), 0);
        lanes.is_full = true;
        let reviews = [(); 2].map(|()| {
            lanes.play();
            lanes.review()
        });
        assert_eq!(reviews, [Lanes::Keep, Lanes::Reset]);
        lanes.is_full = false;
        let reviews = (0..200).map(|_| lanes.review());
        let removed: Vec<_> = (reviews.enumerate())
            .filter(|(_, review)| *review == Lanes::Remove)
            .map(|(at, _)| at)
            .collect();
        assert_eq!(removed, [60, 121, 182]);
        // None where copies are needed.
        let lost = |copies| Some(if copies { 0.002 } else { 0.02 });
        for _ in 0..200 {
            let lost_share = lost(lanes.listener.sends_copies());
            lanes.play();
            lanes.listener.is_due(1_000);
            let lanes = lanes.listener.review(lost_share, true, true);
            assert_eq!(lanes, Lanes::Keep);
        }
    }

    #[test]
    fn samples_take_over_at_once() {
        let mut lanes = Path::new(&[Rung::Main, Rung::Narrow], Copies::Auto);
        lanes.step_down();
        assert_eq!(lanes.listener.heard_rung(), Rung::Narrow);
        assert!(!lanes.listener.takes(Rung::Main));
    }

    #[test]
    fn what_has_not_begun_is_not_waited_for_and_what_was_sent_goes_on() {
        let mut lanes = Path::new(&[Rung::Main], Copies::Auto);
        lanes.play();
        lanes.listener.set_rungs([HIGH].into());
        lanes.listener.set_rungs([LOW].into());
        assert!(lanes.listener.takes(Rung::Main) && !lanes.listener.takes(HIGH));
        lanes.listener.set_rungs([Rung::Main].into());
        assert!(!lanes.listener.takes(LOW) && !lanes.listener.takes(HIGH));
        assert_eq!(lanes.listener.heard_rung(), Rung::Main);
    }

    #[test]
    fn where_opus_is_of_no_use_samples_are_sent() {
        let mut lanes = Path::new(&[HIGH, LOW], Copies::Auto);
        lanes.listener.set_rungs([Rung::Main].into());
        assert_eq!(lanes.listener.rung(), Rung::Main);
        assert!(lanes.listener.takes(HIGH), "until then");
        for _ in 0..3 {
            lanes.play();
        }
        assert!(!lanes.listener.takes(HIGH));
    }

    #[test]
    fn other_formats_take_no_more_of_a_path_than_what_that_carries() {
        const SAMPLES: [Rung; 3] = [Rung::Main, HIGH, LOW];
        const WIDE: [Rung; 4] = [Rung::Main, Rung::Narrow, HIGH, LOW];
        let opus = |kbps, frames| Rung::Opus { kbps, frames };
        let top = opus(256, 120);
        for (before, steps, after, rung) in [
            (&SAMPLES[..], 0, &WIDE[..], Rung::Main),
            (&SAMPLES, 1, &WIDE, HIGH),
            (&WIDE, 0, &SAMPLES, Rung::Main),
            (&WIDE, 1, &SAMPLES, Rung::Main),
            (&WIDE, 1, &[top, HIGH, LOW], top),
            (&WIDE, 2, &[top, HIGH, LOW], HIGH),
            (&WIDE, 2, &[opus(128, 120), LOW], LOW),
            (&WIDE, 2, &[opus(96, 480), LOW], opus(96, 480)),
            (&WIDE, 3, &[opus(64, 240)], opus(64, 240)),
        ] {
            let mut lanes = Path::new(before, Copies::Auto);
            for _ in 0..steps {
                lanes.step_down();
                lanes.listener.leaving = None;
            }
            lanes.listener.set_rungs(after.into());
            assert_eq!(
                lanes.listener.rung(),
                rung,
                "{before:?}[{steps}], {after:?}"
            );
            // So has the ladder.
            lanes.review();
            assert_eq!(lanes.listener.rung(), rung);
        }
    }

    #[test]
    fn samples_carry_copies_to_who_loses_some_and_to_nobody_else() {
        let mut outgoing = Outgoing::new(&Choice {
            adapts: false,
            ..CHOICE
        });
        let mut lossy = Listener::new([Rung::Main].into(), Copies::On);
        let mut sound = Listener::new([Rung::Main].into(), Copies::Off);
        let mut bytes = [0; MAX_DATAGRAM_BYTES];
        let mut lengths = Vec::new();
        for is_carried in [false, true] {
            outgoing.prepare(|rung| rung == Rung::Main, |_| is_carried);
            outgoing.samples.sender.push(&[0.1; 2 * 256], 256);
            while let Some((rung, length)) = outgoing.poll_datagram(&mut bytes) {
                for listener in [&mut lossy, &mut sound] {
                    listener.send(rung, &mut bytes[..length], (0, 128), |bytes| {
                        lengths.push(bytes.len());
                        Some(Sent {
                            lane: 0,
                            is_crowded: false,
                        })
                    });
                }
            }
        }
        let (plain, copied) = (20 + 512, 20 + 512 + 134);
        assert_eq!(lengths[..4], [plain; 4]);
        assert_eq!(lengths[4..], [copied, plain, copied, plain]);
        assert_eq!((lossy.copies_sent, sound.copies_sent), (2, 0));
        lossy.send_copies(|_, _| panic!("nothing goes twice"));
    }

    #[test]
    fn copies_of_opus_go_by_another_lane_where_some_are_lost_and_the_numbers_are_the_same() {
        let mut lanes = Path::new(&[HIGH], Copies::Auto);
        let copies = |lanes: &mut Path| {
            let mut numbers = Vec::new();
            lanes.listener.send_copies(|lane, bytes| {
                assert_eq!(lane, 0);
                numbers.push(u32::from_le_bytes(bytes[8..12].try_into().expect("four")));
                true
            });
            numbers
        };
        lanes.play();
        assert!(copies(&mut lanes).is_empty());
        for _ in 0..8 {
            assert!(lanes.listener.is_due(1_000));
            lanes.listener.review(Some(0.02), true, false);
        }
        assert!(lanes.listener.sends_copies());
        lanes.play();
        assert!(copies(&mut lanes).into_iter().eq(100..200));
        assert!(copies(&mut lanes).is_empty(), "once");
        assert_eq!(lanes.listener.copies_sent, 100);
        let never = Path::new(&[Rung::Main], Copies::Off);
        let always = Path::new(&[Rung::Main], Copies::On);
        assert!(!never.listener.sends_copies() && always.listener.sends_copies());
    }
}
