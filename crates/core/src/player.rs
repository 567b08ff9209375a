//! The playing half: datagrams in, the mix out.

use alloc::boxed::Box;
use alloc::vec;

use crate::jitter::{JitterBuffer, JitterCounts, Target};
use crate::mix::Strip;
use crate::sequence::{Arrival, SequenceCounts, SequenceTracker};
use crate::wire::{self, AudioHeader, Datagram, MAX_CHANNELS, SampleFormat, SampleRate};

/// Most frames in a quantum.
pub const MAX_QUANTUM_FRAMES: usize = 1_024;

/// Names a remote stream. The host chooses it, and never uses one twice, so that a straggler of a stream that left
/// cannot enter another.
pub type StreamId = u32;

/// Sizes, fixed for the life of a player.
#[derive(Clone, Copy, Debug)]
pub struct PlayerConfig {
    /// The room's rate; datagrams of another are refused.
    pub rate: SampleRate,
    /// Channels of the mix, 1 to [`MAX_CHANNELS`].
    pub output_channels: usize,
    /// Most streams at a time.
    pub max_streams: usize,
    /// Slots of each stream's jitter buffer: a power of two of at least 2,048. Half of them can hold frames to come.
    pub buffer_frames: usize,
}

/// What a host may ask of a player. Takes effect with the next quantum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Command {
    /// A new stream, with gain 1 and an automatic target.
    Add(StreamId),
    /// Forgets a stream.
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
    /// Loss, order and duplicates.
    pub sequence: SequenceCounts,
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
    /// Channels of the newest packet; `None` before the first.
    pub channels: Option<u8>,
    /// Format of the newest packet; `None` before the first.
    pub format: Option<SampleFormat>,
}

#[derive(Debug)]
struct Stream {
    id: Option<StreamId>,
    sequence: SequenceTracker,
    jitter: JitterBuffer,
    strip: Strip,
    format: Option<SampleFormat>,
    malformed_packets: u64,
    ancient_packets: u64,
    /// Even channels, odd channels.
    peaks: [f32; 2],
}

/// The playing half of the engine.
#[derive(Debug)]
pub struct Player {
    config: PlayerConfig,
    streams: Box<[Stream]>,
    /// One stream's quantum, `[channel][frame]`.
    scratch: Box<[f32]>,
    stray_datagrams: u64,
}

impl Player {
    /// Allocates all that the player will ever need.
    ///
    /// # Panics
    /// If a size of `config` is out of its range.
    pub fn new(config: PlayerConfig) -> Self {
        assert!(
            (1..=MAX_CHANNELS).contains(&config.output_channels),
            "output_channels out of range"
        );
        let stream = |_| Stream {
            id: None,
            sequence: SequenceTracker::default(),
            jitter: JitterBuffer::new(config.rate, MAX_CHANNELS, config.buffer_frames),
            strip: Strip::new(config.rate.hz()),
            format: None,
            malformed_packets: 0,
            ancient_packets: 0,
            peaks: [0.0; 2],
        };
        Self {
            config,
            streams: (0..config.max_streams).map(stream).collect(),
            scratch: vec![0.0; MAX_CHANNELS * MAX_QUANTUM_FRAMES].into_boxed_slice(),
            stray_datagrams: 0,
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
            Command::Remove(id) => self.stream(id)?.id = None,
            Command::Gain(id, gain) => self.stream(id)?.strip.set_gain(gain),
            Command::Pan(id, pan) => self.stream(id)?.strip.set_pan(pan),
            Command::Mute(id, muted) => self.stream(id)?.strip.set_muted(muted),
            Command::Solo(id, soloed) => self.stream(id)?.strip.set_soloed(soloed),
            Command::Target(id, target) => self.stream(id)?.jitter.set_target(target),
        }
        Ok(())
    }

    /// Takes a datagram of a stream. Whatever does not belong is dropped and counted.
    ///
    /// RT: no alloc, no lock, O(frames + buffer / 64).
    pub fn handle_datagram(&mut self, id: StreamId, bytes: &[u8]) {
        let rate = self.config.rate;
        let Ok(stream) = self.stream(id) else {
            self.stray_datagrams += 1;
            return;
        };
        match wire::parse(bytes) {
            Ok(Datagram::Audio(header, samples)) if header.rate == rate => {
                stream.handle_audio(&header, samples);
            }
            // Probes and reports are the host's: here they are as wrong as another rate.
            Ok(_) | Err(_) => stream.malformed_packets += 1,
        }
    }

    /// Renders the next quantum of the mix into `out`: `[channel][frame]`, 1 to [`MAX_QUANTUM_FRAMES`] frames of each
    /// [`PlayerConfig::output_channels`].
    ///
    /// RT: no alloc, no lock, O(streams × channels × frames).
    ///
    /// # Panics
    /// If `out` has another shape.
    pub fn process_quantum(&mut self, out: &mut [f32]) {
        let frames = out.len() / self.config.output_channels;
        assert!(
            (1..=MAX_QUANTUM_FRAMES).contains(&frames)
                && frames * self.config.output_channels == out.len(),
            "out is [channel][frame]"
        );
        out.fill(0.0);
        let any_soloed = self
            .streams
            .iter()
            .any(|s| s.id.is_some() && s.strip.is_soloed());
        for stream in self.streams.iter_mut().filter(|stream| stream.id.is_some()) {
            if !stream.jitter.read(&mut self.scratch, frames) {
                continue;
            }
            let quantum = &self.scratch[..stream.jitter.channels() * frames];
            for (channel, samples) in quantum.chunks_exact(frames).enumerate() {
                let peak = &mut stream.peaks[channel % 2];
                *peak = samples
                    .iter()
                    .fold(*peak, |peak, sample| peak.max(sample.abs()));
            }
            stream.strip.mix(quantum, out, frames, any_soloed);
        }
    }

    /// What is known of a stream; `None` if there is none of that name.
    ///
    /// RT: no alloc, no lock, O(streams).
    pub fn stream_stats(&self, id: StreamId) -> Option<StreamStats> {
        let stream = self.streams.iter().find(|stream| stream.id == Some(id))?;
        Some(StreamStats {
            sequence: stream.sequence.counts(),
            jitter: stream.jitter.counts(),
            malformed_packets: stream.malformed_packets,
            ancient_packets: stream.ancient_packets,
            playhead: stream.jitter.playing_next(),
            spread_frames: stream.jitter.spread_frames(),
            buffered_frames: stream.jitter.buffered_frames(),
            held_frames: stream.jitter.held_frames(),
            target_frames: stream.jitter.target_frames(),
            channels: stream.format.map(|_| stream.jitter.channels() as u8),
            format: stream.format,
        })
    }

    /// Peak of a stream's left (even) and right (odd) channels since the last call, linear, before gain.
    /// A mono stream has only a left one.
    pub fn take_peaks(&mut self, id: StreamId) -> Option<[f32; 2]> {
        self.stream(id)
            .ok()
            .map(|stream| core::mem::take(&mut stream.peaks))
    }

    fn add(&mut self, id: StreamId) -> Result<(), CommandError> {
        if self.stream(id).is_ok() {
            return Err(CommandError::StreamExists);
        }
        let rate_hz = self.config.rate.hz();
        let stream = self
            .streams
            .iter_mut()
            .find(|stream| stream.id.is_none())
            .ok_or(CommandError::TooManyStreams)?;
        stream.id = Some(id);
        stream.sequence = SequenceTracker::default();
        stream.jitter.reset();
        stream.strip = Strip::new(rate_hz);
        stream.format = None;
        stream.malformed_packets = 0;
        stream.ancient_packets = 0;
        stream.peaks = [0.0; 2];
        Ok(())
    }

    fn stream(&mut self, id: StreamId) -> Result<&mut Stream, CommandError> {
        self.streams
            .iter_mut()
            .find(|stream| stream.id == Some(id))
            .ok_or(CommandError::UnknownStream)
    }
}

impl Stream {
    fn handle_audio(&mut self, header: &AudioHeader, samples: &[u8]) {
        let is_starved = self.jitter.is_starved();
        match self.sequence.handle(header.sequence, is_starved) {
            arrival @ (Arrival::New | Arrival::Overtaken | Arrival::Restart) => {
                self.format = Some(header.format);
                self.jitter.insert(header, samples, arrival);
            }
            Arrival::Duplicate => {}
            Arrival::Ancient => self.ancient_packets += 1,
            Arrival::Doubtful => self.malformed_packets += 1,
        }
    }
}
