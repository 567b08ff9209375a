//! What happens on the audio thread: captured frames out to the network thread, datagrams in, one quantum of the mix.
//!
//! [`pair`] makes both ends: the [`Duplex`] belongs to the audio thread, the [`Far`] to the network thread. Between them are
//! wait-free rings only; one that is full drops what is new, and that is counted.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use antiphon_core::conceal::{Allowance, Concealer, Concealment, Run};
use antiphon_core::wire::{MAX_CHANNELS, MAX_DATAGRAM_BYTES, MAX_DECODED_BYTES};
use antiphon_core::{Command, Player, PlayerConfig, SampleRate, StreamId, StreamStats};
use rtrb::{Consumer, Producer, RingBuffer};

use crate::clock;
use crate::wake::{self, Sleeper, Waker};

/// Most frames of a quantum.
pub const MAX_QUANTUM_FRAMES: usize = antiphon_core::player::MAX_QUANTUM_FRAMES;
/// Most streams heard at a time.
pub const MAX_STREAMS: usize = 64;
/// Slots of each jitter buffer at 48 kHz: as many as in the browser; half of them can hold frames to come.
const BUFFER_FRAMES: usize = 32_768;
/// Captured samples that may wait: a network thread that is held up for a third of a second, with 4 channels at 48 kHz, loses none.
const CAPTURE_SAMPLES: usize = 65_536;
/// Datagrams that may wait for the next quantum, and decoded ones.
const DATAGRAMS: usize = 2_048;
const DECODED: usize = 512;
/// Datagrams of either sort that one quantum takes: the network must not decide how long it takes.
const MAX_DATAGRAMS_PER_QUANTUM: usize = 512;
/// Between two observations, in frames.
const OBSERVE_FRAMES: u32 = 2_400;

/// A datagram for a stream, or what was decoded of one.
#[derive(Clone, Copy, Debug)]
struct Record<const BYTES: usize> {
    stream: StreamId,
    /// When it was put here, ns of the local clock.
    at_ns: u64,
    length: u16,
    bytes: [u8; BYTES],
}

/// One captured block; its samples are in the other ring, `[channel][frame]`.
#[derive(Clone, Copy, Debug)]
struct Block {
    frames: u32,
    /// Frames before it that were lost: their time passes all the same.
    lost: u32,
    /// When the audio thread had it, ns of the local clock.
    at_ns: u64,
}

/// What the audio thread tells, some twenty times a second.
#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a box would be an allocation on the audio thread"
)]
pub enum Observation {
    /// Of one stream.
    Stream {
        /// Which.
        id: StreamId,
        /// All that is known of it.
        stats: StreamStats,
        /// Left, right; linear, since the last time, before gain.
        peaks: [f32; 2],
    },
    /// Of the mix; comes after the streams.
    Mix {
        /// Linear, since the last time.
        peaks: [f32; 2],
        /// Frames rendered so far, this quantum's included.
        rendered: u64,
        /// When this quantum came, ns of the local clock.
        at_ns: u64,
        /// Frames of this quantum.
        quantum: u32,
        /// What input and output add to that.
        delays: DeviceDelays,
    },
}

/// What a sound device takes beyond what the times of its quanta tell, by its own word; `None`: unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceDelays {
    /// From a sound until the quantum with it comes, less the quantum's length; ns.
    pub input_ns: Option<i64>,
    /// From when a quantum comes until its first frame is heard, ns.
    pub output_ns: Option<i64>,
}

/// What does not go as it should. Written by the audio thread and its device, read by all; the audio thread touches no lock.
#[derive(Debug, Default)]
pub struct Faults {
    /// Quanta that came late, as the device counts them.
    pub xruns: AtomicU64,
    /// Frames that were not captured, or found no room on their way to the network thread.
    pub lost_capture_frames: AtomicU64,
    /// Datagrams that found no room on their way to the audio thread.
    pub lost_datagrams: AtomicU64,
    /// No card is connected to what is captured.
    pub no_input: AtomicBool,
    /// Nor to what is played.
    pub no_output: AtomicBool,
    refused: Mutex<Option<String>>,
}

impl Faults {
    /// Why no card is connected, or what it does not have, in words for the user; `None`: no longer. Not for the audio thread.
    pub fn set_refused(&self, why: Option<String>) {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// As it was last set.
    pub fn refused(&self) -> Option<String> {
        let why = self.refused.lock();
        why.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Shape of the sound.
#[derive(Clone, Copy, Debug)]
pub struct DuplexConfig {
    /// The room's.
    pub rate: SampleRate,
    /// Channels captured, 1 to [`MAX_CHANNELS`].
    pub input_channels: usize,
    /// Channels played, 1 to [`MAX_CHANNELS`].
    pub output_channels: usize,
}

/// The audio thread's end.
#[derive(Debug)]
pub struct Duplex {
    config: DuplexConfig,
    player: Player,
    datagrams: Consumer<Record<MAX_DATAGRAM_BYTES>>,
    decoded: Consumer<Record<MAX_DECODED_BYTES>>,
    commands: Consumer<Command>,
    samples: Producer<f32>,
    blocks: Producer<Block>,
    observations: Producer<Observation>,
    waker: Waker,
    faults: Arc<Faults>,
    /// The streams that the player has.
    streams: [Option<StreamId>; MAX_STREAMS],
    lost: u32,
    /// Frames that the device went on without, and that the player has not been told of.
    missed: u32,
    rendered: u64,
    unobserved: u32,
    peaks: [f32; 2],
    delays: DeviceDelays,
}

/// The network thread's end.
#[derive(Debug)]
pub struct Far {
    datagrams: Producer<Record<MAX_DATAGRAM_BYTES>>,
    decoded: Producer<Record<MAX_DECODED_BYTES>>,
    commands: Producer<Command>,
    samples: Consumer<f32>,
    blocks: Consumer<Block>,
    observations: Consumer<Observation>,
    channels: usize,
    /// A block, `[channel][frame]`.
    scratch: Vec<f32>,
    /// Of what is captured.
    concealer: Concealer,
    faults: Arc<Faults>,
}

/// Both ends, and what the network thread waits on.
///
/// # Errors
/// The system's, for want of an event counter.
///
/// # Panics
/// If a number of channels is out of its range.
pub fn pair(config: DuplexConfig) -> io::Result<(Duplex, Far, Sleeper)> {
    assert!((1..=MAX_CHANNELS).contains(&config.input_channels));
    // The clock's start, before the audio thread asks.
    clock::now_ns();
    let (waker, sleeper) = wake::pair()?;
    let (datagrams_in, datagrams) = RingBuffer::new(DATAGRAMS);
    let (decoded_in, decoded) = RingBuffer::new(DECODED);
    let (commands_in, commands) = RingBuffer::new(256);
    let (samples, samples_out) = RingBuffer::new(CAPTURE_SAMPLES);
    let (blocks, blocks_out) = RingBuffer::new(CAPTURE_SAMPLES / 16);
    let (observations, observations_out) = RingBuffer::new(4 * (MAX_STREAMS + 1));
    let faults = Arc::new(Faults::default());
    let player = Player::new(PlayerConfig {
        rate: config.rate,
        output_channels: config.output_channels,
        max_streams: MAX_STREAMS,
        buffer_frames: config.rate.scaled(BUFFER_FRAMES),
        max_quantum_frames: MAX_QUANTUM_FRAMES,
        concealment: Concealment::Prediction,
    });
    let duplex = Duplex {
        config,
        player,
        datagrams,
        decoded,
        commands,
        samples,
        blocks,
        observations,
        waker,
        faults: faults.clone(),
        streams: [None; MAX_STREAMS],
        lost: 0,
        missed: 0,
        rendered: 0,
        unobserved: 0,
        peaks: [0.0; 2],
        delays: DeviceDelays::default(),
    };
    let far = Far {
        datagrams: datagrams_in,
        decoded: decoded_in,
        commands: commands_in,
        samples: samples_out,
        blocks: blocks_out,
        observations: observations_out,
        channels: config.input_channels,
        scratch: vec![0.0; MAX_CHANNELS * MAX_QUANTUM_FRAMES],
        concealer: Concealer::new(config.rate, config.input_channels, Concealment::Prediction),
        faults,
    };
    Ok((duplex, far, sleeper))
}

impl Duplex {
    /// Shape of the sound.
    pub fn config(&self) -> DuplexConfig {
        self.config
    }

    /// Counts that a device writes too.
    pub fn faults(&self) -> Arc<Faults> {
        self.faults.clone()
    }

    /// What the device takes from now on; at first that is unknown.
    ///
    /// RT: no alloc, no lock, O(1).
    pub fn set_delays(&mut self, delays: DeviceDelays) {
        self.delays = delays;
    }

    /// One quantum: takes what was captured, `[channel][frame]`, and writes what is to be played, in the same shape. Both have
    /// the channels of the configuration, and 1 to [`MAX_QUANTUM_FRAMES`] frames.
    ///
    /// RT: no alloc, no lock, O(streams × channels × frames), and [`Player::miss`] for each quantum that was missed; one system call, [`Waker::wake`].
    pub fn process(&mut self, captured: &[f32], out: &mut [f32]) {
        let at_ns = clock::now_ns();
        let frames = captured.len() / self.config.input_channels;
        // First what others wait for.
        self.capture(captured, frames, at_ns);
        self.waker.wake();
        while let Ok(command) = self.commands.pop() {
            self.obey(command);
        }
        let mut left = [MAX_DATAGRAMS_PER_QUANTUM; 2];
        self.catch_up(frames, at_ns, &mut left);
        self.hear(u64::MAX, &mut left);
        self.player.keep_time(at_ns);
        self.player.process_quantum(out);
        for (channel, samples) in out.chunks_exact(frames).enumerate() {
            let peak = &mut self.peaks[channel % 2];
            *peak = samples.iter().fold(*peak, |peak, s| peak.max(s.abs()));
        }
        self.rendered += frames as u64;
        self.unobserved += frames as u32;
        if self.unobserved >= OBSERVE_FRAMES {
            self.unobserved = 0;
            self.observe(at_ns, frames as u32);
        }
    }

    /// So many frames were neither captured nor rendered before the next quantum: the device went on without us.
    ///
    /// RT: no alloc, no lock, O(1).
    pub fn miss(&mut self, frames: u32) {
        self.missed = self.missed.saturating_add(frames);
        self.lose(frames);
    }

    /// Lets pass what was missed, quantum by quantum, as far as possible as if it had not been: a datagram that came in time for one of them is not late.
    fn catch_up(&mut self, quantum: usize, at_ns: u64, left: &mut [usize; 2]) {
        let rate_hz = u64::from(self.config.rate.hz());
        while self.missed > 0 {
            let behind_ns = u64::from(self.missed) * 1_000_000_000 / rate_hz;
            self.hear(at_ns.saturating_sub(behind_ns), left);
            let frames = self.missed.min(quantum as u32);
            self.player.miss(frames as usize);
            self.rendered += u64::from(frames);
            self.missed -= frames;
        }
    }

    /// Hands the player what came until then, as far as the quantum takes any more.
    fn hear(&mut self, until_ns: u64, [datagrams, decoded]: &mut [usize; 2]) {
        drain(
            &mut self.datagrams,
            until_ns,
            datagrams,
            |stream, bytes, at| {
                self.player.handle_datagram_at(stream, bytes, at);
            },
        );
        drain(&mut self.decoded, until_ns, decoded, |stream, bytes, _| {
            self.player.handle_decoded(stream, bytes);
        });
    }

    fn lose(&mut self, frames: u32) {
        self.lost = self.lost.saturating_add(frames);
        let lost = &self.faults.lost_capture_frames;
        lost.fetch_add(frames.into(), Ordering::Relaxed);
    }

    fn capture(&mut self, captured: &[f32], frames: usize, at_ns: u64) {
        let block = Block {
            frames: frames as u32,
            lost: self.lost,
            at_ns,
        };
        if self.blocks.slots() > 0 && self.samples.push_entire_slice(captured).is_ok() {
            // There is room: this end alone fills the ring.
            let _ = self.blocks.push(block);
            self.lost = 0;
        } else {
            self.lose(frames as u32);
        }
    }

    fn obey(&mut self, command: Command) {
        if self.player.handle_command(command).is_err() {
            return;
        }
        let (from, to) = match command {
            Command::Add(id) => (None, Some(id)),
            Command::Remove(id) => (Some(id), None),
            _ => return,
        };
        if let Some(slot) = self.streams.iter_mut().find(|slot| **slot == from) {
            *slot = to;
        }
    }

    fn observe(&mut self, at_ns: u64, quantum: u32) {
        if self.observations.slots() <= MAX_STREAMS {
            return;
        }
        for id in self.streams.iter().copied().flatten() {
            let (Some(stats), Some(peaks)) =
                (self.player.stream_stats(id), self.player.take_peaks(id))
            else {
                continue;
            };
            let observation = Observation::Stream { id, stats, peaks };
            let _ = self.observations.push(observation);
        }
        let mix = Observation::Mix {
            peaks: std::mem::take(&mut self.peaks),
            rendered: self.rendered,
            at_ns,
            quantum,
            delays: self.delays,
        };
        let _ = self.observations.push(mix);
    }
}

impl Far {
    /// Hands a datagram to the next quantum.
    pub fn give(&mut self, stream: StreamId, bytes: &[u8]) {
        if !push(&mut self.datagrams, stream, bytes) {
            self.faults.lost_datagrams.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Hands what was decoded of a datagram to the next quantum, as [`Player::handle_decoded`] takes it.
    pub fn give_decoded(&mut self, stream: StreamId, record: &[u8]) {
        if !push(&mut self.decoded, stream, record) {
            self.faults.lost_datagrams.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Asks the player for something. False if it must be asked again: the ring is full.
    pub fn command(&mut self, command: Command) -> bool {
        self.commands.push(command).is_ok()
    }

    /// The next captured block, `[channel][frame]`: `take` gets it, its frames, and when the audio thread had it, ns; first what
    /// was lost before it, made up from what was captured, with no such time. False if there is none.
    pub fn take_block(&mut self, mut take: impl FnMut(&[f32], usize, Option<u64>)) -> bool {
        let Ok(block) = self.blocks.pop() else {
            return false;
        };
        let mut lost = block.lost as usize;
        while lost > 0 {
            let frames = lost.min(MAX_QUANTUM_FRAMES);
            let made_up = &mut self.scratch[..frames * self.channels];
            carry_on(&mut self.concealer, made_up, frames, true);
            take(made_up, frames, None);
            lost -= frames;
        }
        let frames = block.frames as usize;
        let samples = &mut self.scratch[..frames * self.channels];
        // The audio thread wrote them before the block.
        if self.samples.pop_entire_slice(samples).is_ok() {
            carry_on(&mut self.concealer, samples, frames, false);
            take(samples, frames, Some(block.at_ns));
        }
        true
    }

    /// Counts that the other end writes too.
    pub fn faults(&self) -> Arc<Faults> {
        self.faults.clone()
    }

    /// The next observation.
    pub fn observe(&mut self) -> Option<Observation> {
        self.observations.pop().ok()
    }
}

/// Remembers frames, `[channel][frame]`, or makes them up if they are missing. Nobody is hostile here: as much is allowed as there is.
fn carry_on(concealer: &mut Concealer, samples: &mut [f32], frames: usize, is_missing: bool) {
    let run = Run {
        frames,
        is_missing,
        is_cut: false,
    };
    let channels = samples.len() / frames;
    let mut left = Allowance {
        fits: channels,
        gaps: 1,
    };
    concealer.process(samples, frames, 0, channels, run, &mut left);
}

/// False if there is no room.
fn push<const BYTES: usize>(
    ring: &mut Producer<Record<BYTES>>,
    stream: StreamId,
    bytes: &[u8],
) -> bool {
    if bytes.len() > BYTES {
        return false;
    }
    let Ok(chunk) = ring.write_chunk_uninit(1) else {
        return false;
    };
    let mut record = Record {
        stream,
        at_ns: clock::now_ns(),
        length: bytes.len() as u16,
        bytes: [0; BYTES],
    };
    record.bytes[..bytes.len()].copy_from_slice(bytes);
    chunk.fill_from_iter([record]);
    true
}

/// What one quantum takes of a ring, of what came until then.
fn drain<const BYTES: usize>(
    ring: &mut Consumer<Record<BYTES>>,
    until_ns: u64,
    left: &mut usize,
    mut take: impl FnMut(StreamId, &[u8], u64),
) {
    while *left > 0 {
        let Ok(chunk) = ring.read_chunk(1) else {
            return;
        };
        if let Some(record) = chunk.as_slices().0.first() {
            if record.at_ns > until_ns {
                return;
            }
            *left -= 1;
            let bytes = &record.bytes[..usize::from(record.length)];
            take(record.stream, bytes, record.at_ns);
        }
        chunk.commit_all();
    }
}

#[cfg(test)]
mod tests {
    use antiphon_core::Target;

    use super::*;

    #[test]
    fn what_was_not_captured_is_made_up_and_takes_its_time() {
        let config = DuplexConfig {
            rate: SampleRate::Hz48000,
            input_channels: 1,
            output_channels: 2,
        };
        let (mut duplex, mut far, _sleeper) = pair(config).expect("a duplex");
        let sine = |frame: usize| 0.5 * (frame as f32 * 0.05).sin();
        let mut taken = Vec::new();
        for n in (0..100).filter(|n| *n != 60) {
            if n == 61 {
                duplex.miss(64);
            }
            let captured: Vec<f32> = (64 * n..64 * (n + 1)).map(sine).collect();
            duplex.process(&captured, &mut [0.0; 128]);
            while far.take_block(|samples, _, _| taken.extend_from_slice(samples)) {}
        }
        assert_eq!(taken.len(), 6_400);
        let off = |frame: usize| (taken[frame] - sine(frame)).abs();
        let (gap, faded) = (60 * 64, 64 * 64);
        assert!((0..gap).chain(faded..6_400).all(|frame| off(frame) == 0.0));
        let most = (gap..faded).map(off).fold(0.0, f32::max);
        assert!(most < 0.05, "{most}");
        assert_eq!(far.faults().lost_capture_frames.load(Ordering::Relaxed), 64);
    }

    #[test]
    fn what_came_in_time_for_a_missed_quantum_is_not_late() {
        use antiphon_core::wire::{AudioHeader, SampleFormat};
        use std::time::Duration;

        const FRAMES: u64 = 480;
        let config = DuplexConfig {
            rate: SampleRate::Hz48000,
            input_channels: 1,
            output_channels: 1,
        };
        let (mut duplex, mut far, _sleeper) = pair(config).expect("a duplex");
        assert!(far.command(Command::Add(0)) && far.command(Command::Target(0, Target::Fixed(0))));
        let mut give = |packet: u64| {
            let header = AudioHeader {
                format: SampleFormat::S16,
                rate: SampleRate::Hz48000,
                channels: 1,
                stream: 0,
                frames: FRAMES as u16,
                sequence: packet as u32,
                timestamp: packet * FRAMES,
            };
            let mut bytes = vec![0; header.datagram_bytes()];
            header.write(&mut bytes);
            far.give(0, &bytes);
        };
        let mut process = |missed: u32| {
            duplex.miss(missed * FRAMES as u32);
            duplex.process(&[0.0; FRAMES as usize], &mut [0.0; FRAMES as usize]);
            duplex.player.stream_stats(0).expect("a stream").jitter
        };
        for packet in 0..4 {
            give(packet);
            process(0);
        }
        // These two cycles of 10 ms are missed: what was there before each of them was in time.
        for packet in 4..6 {
            give(packet);
            std::thread::sleep(Duration::from_millis(11));
        }
        give(6);
        let after = process(2);
        assert_eq!((after.late_frames, after.resyncs), (0, 0), "{after:?}");
        assert_eq!(after.skipped_frames, 2 * FRAMES);
        assert_eq!(after.played_frames, 5 * FRAMES);
    }
}
