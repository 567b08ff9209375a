//! The sending half: captured frames in, datagrams out.

use alloc::boxed::Box;
use alloc::vec;
use core::ops::Range;

use crate::adpcm;
use crate::mix::{RAMP_SECONDS, approach};
use crate::pcm;
use crate::wire::{
    AUDIO_HEADER_BYTES, AudioHeader, MAX_CHANNELS, MAX_DATAGRAM_BYTES, MAX_PACKET_FRAMES,
    MIN_PACKET_FRAMES, SampleFormat, SampleRate,
};

/// Frames the sender can hold: eight of Chromium's bursts.
pub const QUEUE_FRAMES: usize = 8_192;
/// Ways in which a sender can write the same frames at a time.
pub const MAX_RENDITIONS: usize = 3;
/// The rendition for an encoder, whose packets are always of its `packet_frames`.
pub const FEED: usize = MAX_RENDITIONS - 1;

/// What a sender sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderConfig {
    /// The room's rate.
    pub rate: SampleRate,
    /// How samples are written.
    pub format: SampleFormat,
    /// 1 to [`MAX_CHANNELS`]; clamped.
    pub channels: usize,
    /// Frames collected before they are sent, but for what is flushed; [`MIN_PACKET_FRAMES`] to [`MAX_PACKET_FRAMES`]; clamped.
    pub packet_frames: usize,
}

/// Counters of a sender, since its construction. Datagrams are those of the main rendition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderStats {
    /// Frames pushed.
    pub captured_frames: u64,
    /// Frames put into datagrams.
    pub sent_frames: u64,
    /// Frames dropped, oldest first, because nobody drained the sender.
    pub overrun_frames: u64,
    /// Datagrams made.
    pub packets: u64,
}

/// One way to write the queue's frames: a format and a place in the queue.
#[derive(Debug)]
struct Rendition {
    config: SenderConfig,
    carries_copies: bool,
    /// Ditto, when the packet under way began: it was split for that.
    is_copied: bool,
    polled: u64,
    /// Frames sent in a row up to here, of the same channels: the most that a copy can be of.
    sent_in_a_row: u64,
    /// Frames of the newest datagram that none had before.
    newest: usize,
    /// Frames of the packet being split that still have to go.
    unsent_frames: usize,
    /// Ditto, datagrams.
    unsent_datagrams: usize,
    sequence: u32,
}

/// The sending half of the engine.
///
/// Listeners whose paths differ may need different formats. Each format in use is a *rendition*: the frames are captured
/// once, and every rendition reads them at its own place, so that each is encoded once however many listen. Rendition 0, the
/// main one, always exists.
#[derive(Debug)]
pub struct Sender {
    /// `[channel][slot]`; the frame of media time *t* is in slot *t* mod `queue_frames`.
    queue: Box<[f32]>,
    queue_frames: usize,
    pushed: u64,
    /// The newest that were made up, of those.
    made_up: Range<u64>,
    /// What was pushed up to here waits for nothing; 0 while a rendition carries copies, which are of packets of one length.
    flushed: u64,
    main: Rendition,
    others: [Option<Rendition>; MAX_RENDITIONS - 1],
    muted: bool,
    /// Applied to what was captured last: on its way to 0 or 1.
    gain: f32,
    peaks: [f32; MAX_CHANNELS],
    stats: SenderStats,
}

impl Sender {
    /// Allocates all that the sender will ever need.
    pub fn new(config: SenderConfig) -> Self {
        Self::with_queue(config, MAX_CHANNELS, QUEUE_FRAMES)
    }

    /// The same with less room: for a host that pushes what it has rendered, and polls it at once.
    ///
    /// No `config` can have more than `max_channels`. Of what is pushed at once, and of what waits, no more than `queue_frames` frames
    /// are kept: at least a packet.
    ///
    /// # Panics
    /// If `max_channels` is not 1 to [`MAX_CHANNELS`], or `queue_frames` less than [`MAX_PACKET_FRAMES`].
    pub fn with_queue(config: SenderConfig, max_channels: usize, queue_frames: usize) -> Self {
        assert!(
            (1..=MAX_CHANNELS).contains(&max_channels) && queue_frames >= MAX_PACKET_FRAMES,
            "no room for a packet"
        );
        Self {
            queue: vec![0.0; max_channels * queue_frames].into_boxed_slice(),
            queue_frames,
            pushed: 0,
            made_up: 0..0,
            flushed: 0,
            main: Rendition::new(valid(config, max_channels), 0),
            others: Default::default(),
            muted: false,
            gain: 1.0,
            peaks: [0.0; MAX_CHANNELS],
            stats: SenderStats::default(),
        }
    }

    /// What the main rendition is now.
    pub fn config(&self) -> SenderConfig {
        self.main.config
    }

    /// Changes the main rendition's format, channels or packet size from the next packet on; the stream goes on without a gap.
    pub fn set_config(&mut self, config: SenderConfig) {
        self.main.set_config(valid(config, self.max_channels()));
    }

    /// Begins, changes or (with `None`) ends rendition `index`, 1 to [`MAX_RENDITIONS`] - 1; another index does nothing.
    ///
    /// A new one begins where the main one is: with the same packet size, their packets are of the same frames.
    pub fn set_rendition(&mut self, index: usize, config: Option<SenderConfig>) {
        let config = config.map(|config| valid(config, self.max_channels()));
        let Some(slot) = index
            .checked_sub(1)
            .and_then(|other| self.others.get_mut(other))
        else {
            return;
        };
        match (slot, config) {
            (Some(rendition), Some(config)) => rendition.set_config(config),
            (slot, config) => {
                *slot = config.map(|config| Rendition::new(config, self.main.polled));
            }
        }
    }

    /// Whether each datagram of rendition `index` carries a copy of the one before ([`crate::adpcm`]), from the next packet on. Packets that would be too long
    /// with it are split. Not before there is such a rendition.
    pub fn set_copies(&mut self, index: usize, carried: bool) {
        let rendition = match index.checked_sub(1) {
            None => Some(&mut self.main),
            Some(other) => self.others.get_mut(other).and_then(Option::as_mut),
        };
        if let Some(rendition) = rendition {
            rendition.carries_copies = carried;
            if carried {
                self.flushed = 0;
            }
        }
    }

    /// Sends silence instead of the microphone (silence is sent as samples: nobody takes it for loss), within 10 ms: a step would click at every
    /// listener's.
    pub fn set_muted(&mut self, muted: bool) {
        self.muted = muted;
    }

    /// Counters so far.
    pub fn stats(&self) -> SenderStats {
        self.stats
    }

    /// Peak of each channel since the last call, linear, before muting.
    pub fn take_peaks(&mut self) -> [f32; MAX_CHANNELS] {
        core::mem::take(&mut self.peaks)
    }

    /// Takes captured audio: `[channel][frame]`, `frames` frames of 1 to [`MAX_CHANNELS`] channels.
    ///
    /// If there are fewer channels than are sent, they are repeated in turn. Frames that do not fit push out the oldest, counted.
    /// RT: no alloc, no lock, O(channels × frames).
    ///
    /// # Panics
    /// If `input` is not a whole number of channels of `frames` frames, or none.
    pub fn push(&mut self, input: &[f32], frames: usize) {
        if frames == 0 {
            return;
        }
        let sources = input.len() / frames;
        assert!(
            sources > 0 && sources * frames == input.len(),
            "input is [channel][frame]"
        );
        // Of more than the queue holds, only the newest could survive.
        let dropped = frames.saturating_sub(self.queue_frames);
        let wanted = if self.muted { 0.0 } else { 1.0 };
        let step = 1.0 / (self.main.config.rate.hz() as f32 * RAMP_SECONDS);
        let mut gain = self.gain;
        for channel in 0..self.max_channels() {
            let source = &input[(channel % sources) * frames..][..frames];
            let peak = source
                .iter()
                .fold(0.0, |peak: f32, sample| peak.max(sample.abs()));
            self.peaks[channel] = self.peaks[channel].max(peak);
            let ring = &mut self.queue[channel * self.queue_frames..][..self.queue_frames];
            let slot = ((self.pushed + dropped as u64) % ring.len() as u64) as usize;
            let kept = &source[dropped..];
            let first = kept.len().min(ring.len() - slot);
            gain = self.gain;
            let (older, newer) = kept.split_at(first);
            let (start, end) = ring.split_at_mut(slot);
            for (ring, source) in [
                (&mut end[..first], older),
                (&mut start[..newer.len()], newer),
            ] {
                if gain != wanted {
                    for (slot, sample) in ring.iter_mut().zip(source) {
                        gain = approach(gain, wanted, step);
                        *slot = sample * gain;
                    }
                } else if self.muted {
                    ring.fill(0.0);
                } else {
                    ring.copy_from_slice(source);
                }
            }
        }
        self.gain = gain;
        self.pushed += frames as u64;
        self.stats.captured_frames += frames as u64;
        self.stats.overrun_frames += self.main.overrun(self.pushed, self.queue_frames);
        for other in self.others.iter_mut().flatten() {
            other.overrun(self.pushed, self.queue_frames);
        }
    }

    /// The same of frames that were not captured in time and that the host has made up. Of these a packet of samples is not sent if it is nothing else:
    /// it would come late, and listeners make up what is missing as well. An encoder gets them all.
    ///
    /// RT: as [`push`](Self::push).
    ///
    /// # Panics
    /// As [`push`](Self::push).
    pub fn push_made_up(&mut self, samples: &[f32], frames: usize) {
        if self.made_up.end != self.pushed {
            self.made_up = self.pushed..self.pushed;
        }
        self.push(samples, frames);
        self.made_up.end = self.pushed;
    }

    /// What was pushed ends a captured block of `block_frames` frames: if that is longer than a packet, all of it is sent, in about as many packets as usual, all
    /// alike, none longer than three halves of `packet_frames`, nor than a datagram. The end of a block, too short for a packet, would wait for the next block,
    /// and everything be played as much later. Does nothing while a rendition carries copies, where fewer than [`MIN_PACKET_FRAMES`] wait, and to [`FEED`].
    ///
    /// RT: no alloc, no lock, O(1).
    pub fn flush(&mut self, block_frames: usize) {
        let others = self.others.iter().flatten();
        let has_copies = others.fold(self.main.carries_copies, |any, other| {
            any || other.carries_copies
        });
        let waiting = self.pushed - self.main.polled;
        if block_frames > self.main.config.packet_frames
            && waiting >= MIN_PACKET_FRAMES as u64
            && !has_copies
        {
            self.flushed = self.pushed;
        }
    }

    /// Lets media time pass without frames: the next one pushed is `frames` later. What waits is dropped, and counted.
    ///
    /// RT: no alloc, no lock, O(1).
    pub fn pass(&mut self, frames: u64) {
        self.stats.overrun_frames += self.pushed - self.main.polled;
        self.pushed += frames;
        for rendition in [Some(&mut self.main)]
            .into_iter()
            .chain(self.others.iter_mut().map(Option::as_mut))
            .flatten()
        {
            rendition.begin_packet();
            rendition.polled = self.pushed;
        }
    }

    /// Writes the main rendition's next datagram into `out` and returns its length in bytes; `None` when too few frames wait
    /// for a packet.
    ///
    /// RT: no alloc, no lock, O(channels × frames).
    ///
    /// # Panics
    /// If `out` is shorter than [`MAX_DATAGRAM_BYTES`].
    pub fn poll_datagram(&mut self, out: &mut [u8]) -> Option<usize> {
        self.main.pass_over(&self.made_up);
        let (length, frames) = self.main.poll(
            &self.queue,
            self.queue_frames,
            self.pushed,
            self.flushed,
            out,
        )?;
        self.stats.sent_frames += frames as u64;
        self.stats.packets += 1;
        Some(length)
    }

    /// The same of rendition `index`; `None` also if there is none of that number.
    ///
    /// RT: no alloc, no lock, O(channels × frames).
    ///
    /// # Panics
    /// If `out` is shorter than [`MAX_DATAGRAM_BYTES`].
    pub fn poll_rendition(&mut self, index: usize, out: &mut [u8]) -> Option<usize> {
        let Some(other) = index.checked_sub(1) else {
            return self.poll_datagram(out);
        };
        let rendition = self.others.get_mut(other)?.as_mut()?;
        let flushed = if index == FEED {
            0
        } else {
            rendition.pass_over(&self.made_up);
            self.flushed
        };
        let (length, _) =
            rendition.poll(&self.queue, self.queue_frames, self.pushed, flushed, out)?;
        Some(length)
    }

    fn max_channels(&self) -> usize {
        self.queue.len() / self.queue_frames
    }
}

impl Rendition {
    fn new(config: SenderConfig, polled: u64) -> Self {
        Self {
            config,
            carries_copies: false,
            is_copied: false,
            polled,
            sent_in_a_row: 0,
            newest: 0,
            unsent_frames: 0,
            unsent_datagrams: 0,
            sequence: 0,
        }
    }

    fn set_config(&mut self, config: SenderConfig) {
        self.config = config;
        self.begin_packet();
    }

    /// What is left of a packet under way becomes the front of the next one, whose first datagram carries no copy.
    fn begin_packet(&mut self) {
        (self.unsent_frames, self.unsent_datagrams) = (0, 0);
        self.sent_in_a_row = 0;
    }

    /// Leaves out the packets that are nothing but what was made up.
    fn pass_over(&mut self, made_up: &Range<u64>) {
        if self.unsent_datagrams == 0 && made_up.contains(&self.polled) {
            let packet_frames = self.config.packet_frames as u64;
            let whole = (made_up.end - self.polled) / packet_frames * packet_frames;
            if whole > 0 {
                self.polled += whole;
                self.begin_packet();
            }
        }
    }

    /// Gives up what the queue no longer holds, and returns how many frames that is.
    fn overrun(&mut self, pushed: u64, queue_frames: usize) -> u64 {
        let overrun = (pushed - self.polled).saturating_sub(queue_frames as u64);
        if overrun > 0 {
            self.polled += overrun;
            self.begin_packet();
        }
        overrun
    }

    /// Length in bytes of the next datagram, and the frames in it that none had before.
    fn poll(
        &mut self,
        queue: &[f32],
        queue_frames: usize,
        pushed: u64,
        flushed: u64,
        out: &mut [u8],
    ) -> Option<(usize, usize)> {
        let SenderConfig {
            rate,
            format,
            channels,
            packet_frames,
        } = self.config;
        if self.unsent_datagrams == 0 {
            let at_once = flushed.saturating_sub(self.polled) as usize;
            if at_once == 0 && pushed - self.polled < packet_frames as u64 {
                return None;
            }
            self.is_copied = self.carries_copies;
            let most_frames = self.most_frames();
            (self.unsent_frames, self.unsent_datagrams) = if at_once > 0 {
                // As many packets as without: in a block longer ones are no later.
                let usual = (at_once + packet_frames / 2) / packet_frames;
                (at_once, usual.max(at_once.div_ceil(most_frames)))
            } else {
                (packet_frames, packet_frames.div_ceil(most_frames))
            };
        }
        let new = self.unsent_frames.div_ceil(self.unsent_datagrams);
        let in_queue = queue_frames as u64 - (pushed - self.polled);
        let kept = self.sent_in_a_row.min(in_queue) as usize;
        // What is a frame shorter than the others of its packet repeats one: as long as they are, its copy leaves out nothing of the one before.
        let longest = packet_frames.div_ceil(packet_frames.div_ceil(self.most_frames()));
        let repeated = if self.is_copied && kept >= 2 * longest - new {
            longest - new
        } else {
            0
        };
        let (frames, from) = (new + repeated, self.polled - repeated as u64);
        let header = AudioHeader {
            format,
            rate,
            channels: channels as u8,
            stream: 0,
            frames: frames as u16,
            sequence: self.sequence,
            timestamp: from,
        };
        let mut length = header.datagram_bytes();
        header.write(out);
        let samples = &mut out[AUDIO_HEADER_BYTES..length];
        for channel in 0..channels {
            let (older, newer) = run(queue, queue_frames, channel, from, frames);
            let (first, second) = samples.split_at_mut(older.len() * channels * format.bytes());
            pcm::encode_channel(format, older, channel, channels, first);
            pcm::encode_channel(format, newer, channel, channels, second);
        }
        // Nor is there one that would leave out more than a frame.
        let is_whole = self.newest <= frames + repeated + 1;
        if self.is_copied && is_whole && kept >= frames + repeated {
            for (channel, block) in header.copy_blocks(&mut out[length..]).enumerate() {
                let (older, newer) = run(
                    queue,
                    queue_frames,
                    channel,
                    header.before().timestamp,
                    frames,
                );
                adpcm::encode(older.iter().chain(newer).copied(), block);
            }
            length += header.copy_bytes();
        }
        self.newest = new;
        self.sent_in_a_row += new as u64;
        self.sequence = self.sequence.wrapping_add(1);
        self.polled += new as u64;
        self.unsent_frames -= new;
        self.unsent_datagrams -= 1;
        Some((length, new))
    }

    /// Frames of the longest datagram.
    fn most_frames(&self) -> usize {
        let room_bytes = MAX_DATAGRAM_BYTES - AUDIO_HEADER_BYTES;
        let SenderConfig {
            format, channels, ..
        } = self.config;
        if self.is_copied {
            // A copy takes half a byte a sample, and its head.
            2 * (room_bytes - channels * adpcm::block_bytes(1))
                / (channels * (2 * format.bytes() + 1))
        } else {
            room_bytes / (channels * format.bytes())
        }
    }
}

/// The `frames` frames of a channel from media time `from` on, in the two parts that they may be in.
fn run(
    queue: &[f32],
    queue_frames: usize,
    channel: usize,
    from: u64,
    frames: usize,
) -> (&[f32], &[f32]) {
    let ring = &queue[channel * queue_frames..][..queue_frames];
    let slot = (from % queue_frames as u64) as usize;
    let until_wrap = frames.min(queue_frames - slot);
    (&ring[slot..][..until_wrap], &ring[..frames - until_wrap])
}

fn valid(config: SenderConfig, max_channels: usize) -> SenderConfig {
    SenderConfig {
        channels: config.channels.clamp(1, max_channels),
        packet_frames: config
            .packet_frames
            .clamp(MIN_PACKET_FRAMES, MAX_PACKET_FRAMES),
        ..config
    }
}
