//! What the system itself has, by cpal: ALSA on Linux, CoreAudio on macOS, WASAPI on Windows.
//!
//! There a card is two streams, each with a thread of its own. The output's calls the duplex; what the input's has captured waits for it in a
//! ring. Where the two belong to different cards, their clocks differ, and every now and then a quantum is too much or missing.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use antiphon_core::SampleRate;
use cpal::traits::{DeviceTrait, HostTrait, StreamTrait};
use cpal::{
    BufferSize, Error, ErrorKind, FromSample, I24, SampleFormat, SizedSample, Stream, StreamConfig,
    SupportedBufferSize, SupportedStreamConfig,
};
use rtrb::{Consumer, Producer, RingBuffer};

use super::{CardConfig, Device, PRIORITY, RateSource};
use crate::clock;
use crate::duplex::{DeviceDelays, Duplex, Faults, MAX_QUANTUM_FRAMES};
use crate::priority;

/// Frames per quantum, if nobody asks for another number and the card can.
const QUANTUM_FRAMES: u32 = 128;
/// Captured frames that may wait: more than the largest buffers that systems give.
const RING_FRAMES: usize = 16_384;
/// What a card may have, the best first: where the system converts, the card has what it needs of the float anyway.
const FORMATS: [SampleFormat; 4] = [
    SampleFormat::F32,
    SampleFormat::I32,
    SampleFormat::I24,
    SampleFormat::I16,
];
/// A stream that says nothing for so long is looked after: not every system tells that its card is gone.
const TIMEOUT: Duration = Duration::from_secs(1);
/// How often the streams are looked at, and for how many times they may do nothing: five seconds, for some take their time to begin.
const LOOK: Duration = Duration::from_millis(50);
const IDLE_LOOKS: u32 = 100;

const GONE: &str = "the sound card is gone: plug it in again";
/// Until a stream that was told to end has given back what its thread had.
const FAREWELL: Duration = Duration::from_secs(1);

/// One direction of a sound card.
struct End {
    device: cpal::Device,
    format: SampleFormat,
    config: StreamConfig,
    /// Of its callback.
    calls: Arc<AtomicU64>,
}

/// Two streams of the system.
pub struct CpalDevice {
    card: CardConfig,
    /// Which of the card's inputs are captured.
    chosen: Vec<usize>,
    input: End,
    output: End,
}

impl std::fmt::Debug for CpalDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpalDevice")
            .field("card", &self.card)
            .field("input", &self.input.config)
            .field("output", &self.output.config)
            .finish_non_exhaustive()
    }
}

/// Names of the sound cards, as the system has them.
///
/// # Errors
/// In words for the user: no sound system.
pub fn list() -> Result<Vec<String>, String> {
    hush();
    let mut lines = Vec::new();
    for (direction, what) in [(Direction::Input, "in "), (Direction::Output, "out")] {
        for device in devices(direction)? {
            let (id, name) = names(&device);
            lines.push(format!("{what}  {id}  {name}"));
        }
    }
    Ok(lines)
}

/// Opens a card.
///
/// # Errors
/// In words for the user: no such card, or none of this rate or quantum.
pub fn open(card: CardConfig) -> Result<Box<dyn Device>, String> {
    Ok(Box::new(CpalDevice::new(card)?))
}

/// What fails is said in words of ours: ALSA's own, which this thread would write to stderr and so into the view, are not.
fn hush() {
    #[cfg(target_os = "linux")]
    {
        use std::ffi::{c_char, c_int};

        unsafe extern "C" fn say_nothing(
            _file: *const c_char,
            _line: c_int,
            _function: *const c_char,
            _error: c_int,
            _format: *const c_char,
            _arguments: *mut alsa_sys::__va_list_tag,
        ) {
        }
        // SAFETY: the handler is there for as long as the program is, and looks at nothing that it is given.
        unsafe {
            alsa_sys::snd_lib_error_set_local(Some(say_nothing));
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Input,
    Output,
}

impl Direction {
    fn verb(self) -> &'static str {
        match self {
            Self::Input => "captures",
            Self::Output => "plays",
        }
    }
}

fn devices(direction: Direction) -> Result<Vec<cpal::Device>, String> {
    let mut devices: Vec<_> = match direction {
        Direction::Input => cpal::default_host().input_devices().map(Iterator::collect),
        Direction::Output => cpal::default_host().output_devices().map(Iterator::collect),
    }
    .map_err(|error| format!("no sound system: {error}"))?;
    // ALSA's is always ready: its threads would never sleep.
    devices.retain(|device| names(device).0 != "null");
    Ok(devices)
}

/// What a card is called by the system, and by people.
fn names(device: &cpal::Device) -> (String, String) {
    let id = device.id().map(|id| id.id().to_owned());
    let name = device.description().map(|about| about.name().to_owned());
    (id.unwrap_or_default(), name.unwrap_or_default())
}

/// The card that was opened, whole: another's name may begin as what was asked for.
fn keep(name: &mut Option<String>, id: String) {
    if !id.is_empty() {
        *name = Some(id);
    }
}

/// Which of the cards, by their ids and names, is called so, or begins so.
fn find(cards: &[(String, String)], name: &str) -> Option<usize> {
    let begins = |(id, words): &(String, String)| id.starts_with(name) || words.starts_with(name);
    (cards.iter().position(|(id, _)| id == name)).or_else(|| cards.iter().position(begins))
}

impl End {
    /// One that has `channels`, if there is one. `name`: the system's choice, if there is none.
    fn open(
        direction: Direction,
        card: &CardConfig,
        name: Option<&str>,
        channels: usize,
    ) -> Result<Self, String> {
        let what = direction.verb();
        let device = match name {
            None => match direction {
                Direction::Input => cpal::default_host().default_input_device(),
                Direction::Output => cpal::default_host().default_output_device(),
            }
            .ok_or_else(|| format!("there is no sound card that {what}"))?,
            Some(name) => {
                let mut devices = devices(direction)?;
                let cards: Vec<_> = devices.iter().map(names).collect();
                let found = find(&cards, name)
                    .ok_or_else(|| {
                        format!("no sound card that {what} begins with \"{name}\": --list-devices shows them all")
                    })?;
                devices.swap_remove(found)
            }
        };
        let fail =
            |why: String| format!("the sound card {} {what} nothing: {why}", names(&device).0);
        let offers: Vec<_> = match direction {
            Direction::Input => device.supported_input_configs().map(Iterator::collect),
            Direction::Output => device.supported_output_configs().map(Iterator::collect),
        }
        .map_err(|error| fail(error.to_string()))?;
        let rank = |offer: &SupportedStreamConfig| {
            let has = usize::from(offer.channels());
            let format = FORMATS.iter().position(|&f| f == offer.sample_format());
            // As few channels as suffice, and where none do, as many as there are.
            (has < channels, has.abs_diff(channels), format)
        };
        let offer = offers
            .into_iter()
            .filter(|offer| FORMATS.contains(&offer.sample_format()))
            .filter_map(|offer| offer.try_with_sample_rate(card.rate.hz()))
            .min_by_key(rank)
            .ok_or_else(|| {
                let hz = card.rate.hz();
                fail(format!(
                    "it has no {hz} Hz in a format known here; --rate asks for another"
                ))
            })?;
        let buffer_size = match (*offer.buffer_size(), card.quantum_frames) {
            (SupportedBufferSize::Range { min, max }, Some(frames))
                if !(min..=max).contains(&(frames as u32)) =>
            {
                return Err(fail(format!(
                    "it refuses a quantum of {frames} frames; it has {min} to {max}"
                )));
            }
            (_, Some(frames)) => BufferSize::Fixed(frames as u32),
            (SupportedBufferSize::Range { min, max }, None) => {
                BufferSize::Fixed(QUANTUM_FRAMES.clamp(min, max))
            }
            (SupportedBufferSize::Unknown, None) => BufferSize::Default,
        };
        let (config, format) = (offer.config(), offer.sample_format());
        Ok(Self {
            device,
            format,
            config: StreamConfig {
                buffer_size,
                ..config
            },
            calls: Arc::default(),
        })
    }
}

impl Device for CpalDevice {
    fn rate(&self) -> SampleRate {
        self.card.rate
    }

    fn rate_source(&self) -> RateSource {
        RateSource::Asked
    }

    fn input_channels(&self) -> usize {
        self.chosen.len()
    }

    fn output_channels(&self) -> usize {
        2
    }

    fn run(self: Box<Self>, mut duplex: Duplex, stop: Arc<AtomicBool>) -> Result<(), String> {
        let mut device = *self;
        let mut has_sounded = false;
        loop {
            let (back, ended) = device.play(duplex, &stop);
            let Err(why) = ended else { return Ok(()) };
            let ends = [&device.input, &device.output];
            has_sounded |= ends.iter().all(|end| end.calls.load(Ordering::Relaxed) > 0);
            duplex = match back {
                Some(duplex) if has_sounded => duplex,
                _ => return Err(why),
            };
            let open = || Self::new(device.card.clone());
            match super::found_again(&mut duplex, &stop, GONE, open) {
                Some(found) => device = found,
                None => return Ok(()),
            }
        }
    }
}

impl CpalDevice {
    fn new(mut card: CardConfig) -> Result<Self, String> {
        hush();
        // With two, if it has them, where nobody says which.
        let last = card.inputs(2).into_iter().max().unwrap_or(0);
        let input = End::open(Direction::Input, &card, card.input.as_deref(), last + 1)?;
        // As many as now, whatever comes back.
        let chosen = card.inputs(input.config.channels.into());
        card.inputs = Some(chosen.clone());
        let output = End::open(Direction::Output, &card, card.output.as_deref(), 2)?;
        // One that goes is not replaced by what the system chooses then: a laptop's loudspeaker, beside its open microphone.
        for (name, end) in [(&mut card.input, &input), (&mut card.output, &output)] {
            keep(name, names(&end.device).0);
        }
        Ok(Self {
            card,
            chosen,
            input,
            output,
        })
    }

    /// Until `stop` is set, or the card is gone; gives the duplex back, unless the system keeps it.
    fn play(&self, duplex: Duplex, stop: &AtomicBool) -> (Option<Duplex>, Result<(), String>) {
        let (input, output) = (&self.input, &self.output);
        let reported = Reported {
            is_gone: Arc::default(),
            faults: duplex.faults(),
        };
        let has = usize::from(input.config.channels);
        let silent = self.chosen.iter().copied().filter(|&input| input >= has);
        reported.faults.set_refused(super::absence(silent));
        let (capture, playback) = pair(&self.chosen, has, output.config.channels.into(), duplex);
        let (lent, back) = Lent::new(playback);
        let ended = self.stream(capture, lent, &reported, stop);
        let playback = back.recv_timeout(FAREWELL).ok();
        (playback.map(|playback| playback.duplex), ended)
    }

    fn stream(
        &self,
        capture: Capture,
        lent: Lent,
        reported: &Reported,
        stop: &AtomicBool,
    ) -> Result<(), String> {
        let (input, output) = (&self.input, &self.output);
        let start = || {
            let output = match output.format {
                SampleFormat::F32 => output.play::<f32>(lent, reported),
                SampleFormat::I32 => output.play::<i32>(lent, reported),
                SampleFormat::I24 => output.play::<I24>(lent, reported),
                _ => output.play::<i16>(lent, reported),
            }?;
            let input = match input.format {
                SampleFormat::F32 => input.capture::<f32>(capture, reported),
                SampleFormat::I32 => input.capture::<i32>(capture, reported),
                SampleFormat::I24 => input.capture::<I24>(capture, reported),
                _ => input.capture::<i16>(capture, reported),
            }?;
            // The one that waits first: so nothing has gathered before it.
            output.play()?;
            input.play()?;
            Ok([output, input])
        };
        // Dropped, they stop.
        let _streams =
            start().map_err(|error: Error| format!("the sound card does not start: {error}"))?;
        let mut watched = [
            (input, Direction::Input, 0, 0),
            (output, Direction::Output, 0, 0),
        ];
        while !stop.load(Ordering::Acquire) {
            if reported.is_gone.load(Ordering::Acquire) {
                return Err(GONE.into());
            }
            for (end, direction, known, idle) in &mut watched {
                let calls = end.calls.load(Ordering::Relaxed);
                *idle = if calls == *known { *idle + 1 } else { 0 };
                *known = calls;
                if *idle >= IDLE_LOOKS {
                    return Err(format!(
                        "the sound card {} {} nothing: a larger --quantum may help",
                        names(&end.device).0,
                        direction.verb()
                    ));
                }
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }
}

impl End {
    fn play<T>(&self, mut lent: Lent, reported: &Reported) -> Result<Stream, Error>
    where
        T: SizedSample + FromSample<f32>,
    {
        let begin = self.begin();
        self.device.build_output_stream(
            self.config,
            move |out: &mut [T], info| {
                begin();
                let time = info.timestamp();
                if let Some(playback) = &mut lent.playback {
                    playback.process(out, time.playback.duration_since(time.callback));
                }
            },
            reported.callback(),
            Some(TIMEOUT),
        )
    }

    fn capture<T>(&self, mut capture: Capture, reported: &Reported) -> Result<Stream, Error>
    where
        T: SizedSample,
        f32: FromSample<T>,
    {
        let begin = self.begin();
        self.device.build_input_stream(
            self.config,
            move |samples: &[T], info| {
                begin();
                let time = info.timestamp();
                capture.process(samples, time.callback.duration_since(time.capture));
            },
            reported.callback(),
            Some(TIMEOUT),
        )
    }

    /// What each callback does first: it counts itself, and the first time, when nothing sounds yet, asks for priority, for cpal's threads are its own.
    /// Only for ALSA's cards themselves: where a plug-in stands between, as PipeWire's does, the thread may wait without sleeping, and then keeps the
    /// processor from those it waits for.
    fn begin(&self) -> impl Fn() + Send + 'static {
        let is_card = names(&self.device).0.starts_with("hw:");
        let calls = self.calls.clone();
        move || {
            if calls.fetch_add(1, Ordering::Relaxed) == 0 && is_card {
                // Without it works too, only less evenly.
                let _ = priority::real_time(PRIORITY);
            }
        }
    }
}

struct Reported {
    is_gone: Arc<AtomicBool>,
    faults: Arc<Faults>,
}

impl Reported {
    fn callback(&self) -> impl FnMut(Error) + Send + 'static {
        let (is_gone, faults) = (self.is_gone.clone(), self.faults.clone());
        move |error| match error.kind() {
            ErrorKind::Xrun => {
                faults.xruns.fetch_add(1, Ordering::Relaxed);
            }
            ErrorKind::DeviceNotAvailable
            | ErrorKind::StreamInvalidated
            | ErrorKind::HostUnavailable => is_gone.store(true, Ordering::Release),
            // It goes on, or does nothing any more, which is looked after.
            _ => {}
        }
    }
}

/// The playback as a stream's callback has it, which gives it back when the stream has ended.
struct Lent {
    /// There until then.
    playback: Option<Playback>,
    back: mpsc::SyncSender<Playback>,
}

impl Lent {
    fn new(playback: Playback) -> (Self, mpsc::Receiver<Playback>) {
        let (back, returned) = mpsc::sync_channel(1);
        let playback = Some(playback);
        (Self { playback, back }, returned)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(playback) = self.playback.take() {
            // Where nobody waits for it any more, all is over.
            let _ = self.back.try_send(playback);
        }
    }
}

/// The input does not say when it captures.
const UNKNOWN_NS: i64 = i64::MIN;

/// Both ends of the ring. `inputs`: which of the card's inputs, from 0; then how many channels its two streams have.
pub fn pair(
    inputs: &[usize],
    input_channels: usize,
    output_channels: usize,
    duplex: Duplex,
) -> (Capture, Playback) {
    let (producer, consumer) = RingBuffer::new(RING_FRAMES * inputs.len());
    let faults = duplex.faults();
    let config = duplex.config();
    let line_ns = Arc::new(AtomicI64::new(UNKNOWN_NS));
    let capture = Capture {
        inputs: inputs.to_vec(),
        channels: input_channels,
        rate: config.rate,
        ring: producer,
        given: 0,
        line_ns: line_ns.clone(),
        faults: faults.clone(),
    };
    let playback = Playback {
        channels: output_channels,
        ring: consumer,
        taken: 0,
        line_ns,
        captured: vec![0.0; config.input_channels * MAX_QUANTUM_FRAMES],
        heard: vec![0.0; config.output_channels * MAX_QUANTUM_FRAMES],
        has_begun: false,
        least_left: usize::MAX,
        watched: 0,
        faults,
        duplex,
    };
    (capture, playback)
}

/// What the input's thread does.
#[derive(Debug)]
pub struct Capture {
    inputs: Vec<usize>,
    /// Of the stream.
    channels: usize,
    rate: SampleRate,
    ring: Producer<f32>,
    /// Frames so far.
    given: u64,
    /// When the first of them would have been captured, ns, or [`UNKNOWN_NS`]: by the newest block.
    line_ns: Arc<AtomicI64>,
    faults: Arc<Faults>,
}

impl Capture {
    /// Takes what was captured, `[frame][channel]`, its first frame `age` ago, zero if that is not known. An input that the card does not have is silent.
    ///
    /// RT: no alloc, no lock, no system call, O(samples).
    pub fn process<T>(&mut self, samples: &[T], age: Duration)
    where
        T: Copy,
        f32: FromSample<T>,
    {
        let frames = samples.len() / self.channels;
        let Ok(room) = self.ring.write_chunk_uninit(frames * self.inputs.len()) else {
            // Nobody plays.
            self.faults.xruns.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let inputs = &self.inputs;
        room.fill_from_iter(samples.chunks_exact(self.channels).flat_map(|frame| {
            let of = |&input: &usize| frame.get(input).map_or(0.0, |&s| f32::from_sample_(s));
            inputs.iter().map(of)
        }));
        let age_ns = age.as_nanos() as i64;
        let line_ns = match age_ns {
            0 => UNKNOWN_NS,
            _ => clock::now_ns() as i64 - age_ns - clock::frames_ns(self.given as i64, self.rate),
        };
        self.line_ns.store(line_ns, Ordering::Relaxed);
        self.given += frames as u64;
    }
}

/// What the output's thread does.
#[derive(Debug)]
pub struct Playback {
    duplex: Duplex,
    /// Of the stream.
    channels: usize,
    ring: Consumer<f32>,
    /// Frames so far, those that were skipped among them.
    taken: u64,
    /// As in [`Capture`].
    line_ns: Arc<AtomicI64>,
    /// `[channel][frame]`, as the duplex has them.
    captured: Vec<f32>,
    heard: Vec<f32>,
    /// The input has given something.
    has_begun: bool,
    /// Frames that were left in the ring after a quantum: the fewest, of the frames watched.
    least_left: usize,
    watched: usize,
    faults: Arc<Faults>,
}

impl Playback {
    /// Writes what is to be played, `[frame][channel]`; its first frame is heard after `delay`, zero if that is not known. A channel that the duplex
    /// does not have is silent.
    ///
    /// RT: as the duplex.
    pub fn process<T>(&mut self, out: &mut [T], delay: Duration)
    where
        T: Copy + FromSample<f32>,
    {
        let delay_ns = delay.as_nanos() as i64;
        self.duplex.set_delays(DeviceDelays {
            input_ns: self.input_ns(out.len() / self.channels, clock::now_ns()),
            output_ns: (delay_ns > 0).then_some(delay_ns),
        });
        let played = self.duplex.config().output_channels;
        // A longer quantum than the engine renders is rendered in parts.
        for part in out.chunks_mut(MAX_QUANTUM_FRAMES * self.channels) {
            let frames = part.len() / self.channels;
            self.take(frames);
            let captured = &self.captured[..self.duplex.config().input_channels * frames];
            let heard = &mut self.heard[..played * frames];
            self.duplex.process(captured, heard);
            for (n, frame) in part.chunks_exact_mut(self.channels).enumerate() {
                for (channel, sample) in frame.iter_mut().enumerate() {
                    let value = heard.get(channel * frames + n).copied();
                    *sample = T::from_sample_(value.unwrap_or(0.0).clamp(-1.0, JUST_BELOW_1));
                }
            }
        }
        self.skim(out.len() / self.channels);
    }

    /// What the input takes, see [`DeviceDelays::input_ns`], of a quantum that comes now: the ring's part is in it.
    fn input_ns(&self, quantum: usize, now_ns: u64) -> Option<i64> {
        let line_ns = Some(self.line_ns.load(Ordering::Relaxed)).filter(|&ns| ns != UNKNOWN_NS)?;
        let rate = self.duplex.config().rate;
        Some(now_ns as i64 - line_ns - clock::frames_ns(self.taken as i64 + quantum as i64, rate))
    }

    /// The next captured frames; silence for those that are not there.
    fn take(&mut self, frames: usize) {
        let channels = self.duplex.config().input_channels;
        let there = frames.min(self.ring.slots() / channels);
        let captured = &mut self.captured[..channels * frames];
        captured.fill(0.0);
        if let Ok(chunk) = self.ring.read_chunk(there * channels) {
            for (n, sample) in chunk.into_iter().enumerate() {
                captured[n % channels * frames + n / channels] = sample;
            }
        }
        if self.has_begun && there < frames {
            self.faults.xruns.fetch_add(1, Ordering::Relaxed);
        }
        self.has_begun |= there > 0;
        self.taken += there as u64;
    }

    /// What is always left over is delay for nothing. Less than a quantum is let be, for threads are not even; of more, half a quantum is.
    fn skim(&mut self, quantum: usize) {
        let config = self.duplex.config();
        self.least_left = (self.ring.slots() / config.input_channels).min(self.least_left);
        self.watched += quantum;
        if self.watched < config.rate.hz() as usize {
            return;
        }
        if self.least_left >= quantum {
            let excess = (self.least_left - quantum / 2) * config.input_channels;
            if let Ok(chunk) = self.ring.read_chunk(excess) {
                chunk.commit_all();
                self.taken += (excess / config.input_channels) as u64;
            }
            self.faults.xruns.fetch_add(1, Ordering::Relaxed);
        }
        (self.least_left, self.watched) = (usize::MAX, 0);
    }
}

/// Full scale: the largest that fits into every format.
const JUST_BELOW_1: f32 = 1.0 - f32::EPSILON / 2.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::duplex::{self, DuplexConfig, Far};
    use crate::wake::Sleeper;

    const QUANTUM: usize = 64;

    fn bridge(inputs: &[usize], channels: usize) -> (Capture, Playback, Far, Sleeper) {
        let (duplex, far, sleeper) = duplex::pair(DuplexConfig {
            rate: SampleRate::Hz48000,
            input_channels: inputs.len(),
            output_channels: 2,
        })
        .expect("a duplex");
        let (capture, playback) = pair(inputs, channels, 2, duplex);
        (capture, playback, far, sleeper)
    }

    fn xruns(playback: &Playback) -> u64 {
        playback.faults.xruns.load(Ordering::Relaxed)
    }

    /// All that was captured, `[channel][frame]`, block by block.
    fn taken(far: &mut Far) -> Vec<Vec<f32>> {
        let mut blocks = Vec::new();
        while far.take_block(|samples, _, _| blocks.push(samples.to_vec())) {}
        blocks
    }

    #[test]
    fn what_a_stream_was_lent_comes_back_with_its_end() {
        let (_capture, playback, mut far, _sleeper) = bridge(&[0], 1);
        let (mut lent, back) = Lent::new(playback);
        let stream = std::thread::spawn(move || {
            let playback = lent.playback.as_mut().expect("it is lent");
            playback.process(&mut [0.0f32; 2 * QUANTUM], Duration::ZERO);
        });
        let mut playback = back.recv_timeout(FAREWELL).expect("it is back");
        stream.join().expect("it ended");
        // With another card it goes on.
        (playback.duplex).process(&[0.0; QUANTUM], &mut [0.0; 2 * QUANTUM]);
        assert_eq!(taken(&mut far).len(), 2);
    }

    #[test]
    fn a_card_that_was_found_is_kept_by_its_whole_name() {
        let card = |id: &str, words: &str| (id.to_owned(), words.to_owned());
        let (first, second) = (
            card("hw:CARD=USB,DEV=0", "USB Audio"),
            card("hw:CARD=USB_1,DEV=0", "USB Audio"),
        );
        let both = [first.clone(), second.clone()];
        for asked in ["hw:CARD=USB", "USB", "hw:CARD=USB,DEV=0"] {
            assert_eq!(find(&both, asked), Some(0));
            let mut name = Some(asked.to_owned());
            keep(&mut name, first.0.clone());
            let name = name.expect("a name");
            assert_eq!(find(std::slice::from_ref(&second), &name), None, "{asked}");
            let turned = [second.clone(), first.clone()];
            assert_eq!(find(&turned, &name), Some(1), "{asked}");
        }
        let mut name = None;
        keep(&mut name, String::new());
        assert_eq!(name, None, "the system does not say which");
    }

    #[test]
    fn only_a_card_that_is_gone_is_at_once() {
        let (_capture, playback, ..) = bridge(&[0], 1);
        let reported = Reported {
            is_gone: Arc::default(),
            faults: playback.duplex.faults(),
        };
        let is_gone = |kind: ErrorKind| {
            reported.callback()(kind.into());
            reported.is_gone.swap(false, Ordering::Relaxed)
        };
        for kind in [
            ErrorKind::DeviceNotAvailable,
            ErrorKind::StreamInvalidated,
            ErrorKind::HostUnavailable,
        ] {
            assert!(is_gone(kind), "{kind:?}");
        }
        for kind in [
            ErrorKind::Xrun,
            ErrorKind::DeviceChanged,
            ErrorKind::PermissionDenied,
        ] {
            assert!(!is_gone(kind), "{kind:?}");
        }
        assert_eq!(xruns(&playback), 1);
    }

    #[test]
    fn the_chosen_inputs_are_captured_in_their_order() {
        let (mut capture, mut playback, mut far, _sleeper) = bridge(&[2, 0, 7], 3);
        capture.process(&[100i16, 0, -16_384, 200, 0, i16::MIN], Duration::ZERO);
        playback.process(&mut [0i16; 4], Duration::ZERO);
        let of = |n: f32| n / 32_768.0;
        let expected = [-0.5, -1.0, of(100.0), of(200.0), 0.0, 0.0];
        assert_eq!(taken(&mut far), [expected.to_vec()]);
        assert_eq!(xruns(&playback), 0);
    }

    #[test]
    fn what_is_missing_is_silence_and_counted_once_the_input_has_begun() {
        let (mut capture, mut playback, mut far, _sleeper) = bridge(&[0], 1);
        let mut out = [0.0f32; 2 * 4];
        let mut counted = Vec::new();
        for frames in [0, 3, 4, 3, 0] {
            capture.process(&vec![0.5f32; frames], Duration::ZERO);
            playback.process(&mut out, Duration::ZERO);
            counted.push(xruns(&playback));
        }
        assert_eq!(counted, [0, 0, 0, 1, 2], "it begins within the second one");
        let (whole, part, nothing) = (vec![0.5; 4], vec![0.5, 0.5, 0.5, 0.0], vec![0.0; 4]);
        let expected = [nothing.clone(), part.clone(), whole, part, nothing];
        assert_eq!(taken(&mut far), expected);
    }

    #[test]
    fn what_is_always_left_over_is_skipped_down_to_half_a_quantum() {
        let (mut capture, mut playback, mut far, _sleeper) = bridge(&[0], 1);
        let mut out = [0i32; 2 * QUANTUM];
        let quanta = 48_000 / QUANTUM;
        let mut run = |left: usize, capture: &mut Capture, playback: &mut Playback| {
            capture.process(&vec![0.0f32; left], Duration::ZERO);
            for _ in 0..quanta {
                capture.process(&[0.0f32; QUANTUM], Duration::ZERO);
                playback.process(&mut out, Duration::ZERO);
                taken(&mut far);
            }
            (playback.ring.slots(), xruns(playback))
        };
        let less = run(QUANTUM - 1, &mut capture, &mut playback);
        assert_eq!(less, (QUANTUM - 1, 0), "left");
        let more = run(1, &mut capture, &mut playback);
        assert_eq!(more, (QUANTUM / 2, 1), "left, and counted");
    }

    #[test]
    fn what_the_input_takes_is_known_with_what_waits_and_whatever_is_skipped() {
        let (mut capture, mut playback, _far, _sleeper) = bridge(&[0], 1);
        let mut out = [0.0f32; 2 * QUANTUM];
        assert_eq!(playback.input_ns(QUANTUM, clock::now_ns()), None);
        let age = Duration::from_millis(5);
        let before_ns = clock::now_ns();
        capture.process(&[0.0f32; 3 * QUANTUM], age);
        let within_ns = (clock::now_ns() - before_ns) as i64;
        let line_ns = before_ns as i64 - 5_000_000;
        let quanta_ns = |n: i64| n * QUANTUM as i64 * 1_000_000_000 / 48_000;
        // A quantum that comes when its last frame has just been captured has taken nothing.
        let least_ns = |playback: &Playback, n| {
            let at_ns = (line_ns + quanta_ns(n)) as u64;
            playback.input_ns(QUANTUM, at_ns).expect("is known")
        };
        let is_about =
            |known: i64, wanted: i64| (wanted - within_ns - 1..=wanted + 1).contains(&known);
        assert!(is_about(least_ns(&playback, 1), 0));
        assert!(
            is_about(least_ns(&playback, 3), quanta_ns(2)),
            "two wait behind it"
        );
        playback.process(&mut out, Duration::ZERO);
        assert!(is_about(least_ns(&playback, 2), 0), "the second quantum");
        (playback.watched, playback.least_left) = (48_000, usize::MAX);
        playback.skim(QUANTUM);
        assert_eq!(playback.ring.slots(), QUANTUM / 2, "the rest was skipped");
        assert!(is_about(least_ns(&playback, 2), -quanta_ns(3) / 2));
        capture.process(&[0.0f32; QUANTUM], Duration::ZERO);
        assert_eq!(
            playback.input_ns(QUANTUM, clock::now_ns()),
            None,
            "it says no more"
        );
    }

    #[test]
    fn nobody_who_plays_costs_no_more_than_the_ring() {
        let (mut capture, playback, _far, _sleeper) = bridge(&[0], 1);
        for _ in 0..RING_FRAMES / QUANTUM {
            capture.process(&[0.0f32; QUANTUM], Duration::ZERO);
        }
        assert_eq!(xruns(&playback), 0);
        capture.process(&[0.0f32; QUANTUM], Duration::ZERO);
        assert_eq!((playback.ring.slots(), xruns(&playback)), (RING_FRAMES, 1));
    }

    #[test]
    fn full_scale_fits_into_every_format() {
        assert_eq!(i16::from_sample_(JUST_BELOW_1), i16::MAX);
        assert_eq!(I24::from_sample_(JUST_BELOW_1).inner(), (1 << 23) - 1);
        // The largest that a float has.
        assert_eq!(i32::from_sample_(JUST_BELOW_1), i32::MAX - 127);
    }
}
