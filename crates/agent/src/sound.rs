//! What calls the audio thread's part: a sound card, or files and tones at the same pace.

#[cfg(any(feature = "alsa", not(target_os = "linux")))]
pub mod cpal;
pub mod file;
pub mod jack;
mod wav;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use antiphon_core::SampleRate;

use crate::clock::now_ns;
use crate::duplex::{DeviceDelays, Duplex};

/// Of threads that call the duplex, where no sound system has given them one: below the kernel's own threads.
const PRIORITY: i32 = 65;

/// Who brings the sound of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// JACK where a server answers, otherwise cpal.
    Auto,
    /// A JACK server, or PipeWire.
    Jack,
    /// What the system has: ALSA, CoreAudio, WASAPI.
    Cpal,
}

/// Which sound card, and how.
#[derive(Clone, Debug)]
pub struct CardConfig {
    /// Which of its inputs, from 0; 1 to 8 of them. By default the first two, or the one that there is.
    pub inputs: Option<Vec<usize>>,
    /// Frames that it takes and gives at a time; by default what is set already, and where nothing is, 128.
    pub quantum_frames: Option<usize>,
    /// Frames per second, where nothing is set already.
    pub rate: SampleRate,
    /// What is captured from: its name begins so. By default the system's choice.
    pub input: Option<String>,
    /// What is played on.
    pub output: Option<String>,
}

impl CardConfig {
    /// Which inputs are captured of a card that has so many. One microphone goes as one channel: it would be heard in the left ear only.
    fn inputs(&self, has: usize) -> Vec<usize> {
        let default = if has == 1 { vec![0] } else { vec![0, 1] };
        self.inputs.clone().unwrap_or(default)
    }
}

/// That the card does not have these inputs, from 0; `None` if there are none of them.
fn absence(inputs: impl Iterator<Item = usize>) -> Option<String> {
    let numbers: Vec<_> = inputs.map(|input| (input + 1).to_string()).collect();
    match &numbers[..] {
        [] => None,
        [number] => Some(format!("the card has no input {number}: it is silent")),
        _ => Some(format!(
            "the card has no inputs {}: they are silent",
            numbers.join(", ")
        )),
    }
}

/// Opens a sound card.
///
/// # Errors
/// In words for the user: no sound system, no such card, or one that cannot do what is asked.
pub fn open(backend: Backend, card: CardConfig) -> Result<Box<dyn Device>, String> {
    let client = match backend {
        Backend::Cpal => return cpal::open(card),
        Backend::Jack => jack::connect()?,
        Backend::Auto => match jack::connect() {
            Ok(client) => client,
            Err(no_jack) => {
                return cpal::open(card).map_err(|why| format!("{no_jack}\n{why}"));
            }
        },
    };
    Ok(Box::new(jack::JackDevice::new(client, card)?))
}

/// What [`CardConfig`] may name, a line for each.
///
/// # Errors
/// In words for the user: no sound system.
pub fn list(backend: Backend) -> Result<Vec<String>, String> {
    let client = match backend {
        Backend::Cpal => return cpal::list(),
        Backend::Jack => jack::connect()?,
        Backend::Auto => match jack::connect() {
            Ok(client) => client,
            Err(no_jack) => return cpal::list().map_err(|why| format!("{no_jack}\n{why}")),
        },
    };
    Ok(jack::list(&client))
}

/// In its place where it was not built in.
#[cfg(not(any(feature = "alsa", not(target_os = "linux"))))]
mod cpal {
    use super::{CardConfig, Device};

    const ABSENT: &str =
        "ALSA is not built in: install libasound2-dev and pkg-config, and build antiphon again";

    pub(super) fn open(_: CardConfig) -> Result<Box<dyn Device>, String> {
        Err(ABSENT.into())
    }

    pub(super) fn list() -> Result<Vec<String>, String> {
        Err(ABSENT.into())
    }
}

/// Where the card has gone: sends silence until `open` finds it, once a second. `None`: `stop` was set before. `gone`: in words for the user.
fn found_again<T>(
    duplex: &mut Duplex,
    stop: &AtomicBool,
    gone: &str,
    open: impl Fn() -> Result<T, String>,
) -> Option<T> {
    let faults = duplex.faults();
    let tell = |is_gone| {
        faults.no_input.store(is_gone, Ordering::Relaxed);
        faults.no_output.store(is_gone, Ordering::Relaxed);
        let why = is_gone.then(|| format!("{gone}; it is looked for every second"));
        faults.set_refused(why);
    };
    tell(true);
    loop {
        stand_in(duplex, stop);
        if stop.load(Ordering::Acquire) {
            return None;
        }
        if let Ok(found) = open() {
            tell(false);
            return Some(found);
        }
    }
}

/// A second without a card: what comes is taken at its pace, so that nothing old waits when there is one again.
fn stand_in(duplex: &mut Duplex, stop: &AtomicBool) {
    const QUANTA: u64 = 100;
    let config = duplex.config();
    let frames = config.rate.hz() as usize / QUANTA as usize;
    let silence = vec![0.0; config.input_channels * frames];
    let mut unheard = vec![0.0; config.output_channels * frames];
    duplex.set_delays(DeviceDelays::default());
    let start_ns = now_ns();
    for quantum in 1..=QUANTA {
        if stop.load(Ordering::Acquire) {
            return;
        }
        file::sleep_until(start_ns + quantum * 1_000_000_000 / QUANTA);
        duplex.process(&silence, &mut unheard);
    }
}

/// Sound that runs on a thread of its own until this is dropped.
#[derive(Debug)]
pub struct Running {
    /// Set: the sound shall end.
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<Result<(), String>>>,
}

/// What has a device's rate changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateSource {
    /// What was asked for.
    Asked,
    /// The take that is played.
    Take,
    /// The JACK server, or PipeWire.
    Server,
}

impl RateSource {
    /// What a user does to have the room's rate, Hz.
    pub fn advice(self, hz: u32) -> String {
        match self {
            Self::Asked => format!("join with --rate {hz}"),
            Self::Take => format!("convert the file to {hz} Hz"),
            Self::Server => format!("set the sound system to {hz} Hz"),
        }
    }
}

/// A sound input and output, about to run.
pub trait Device: Send {
    /// Frames per second.
    fn rate(&self) -> SampleRate;
    /// What has that changed.
    fn rate_source(&self) -> RateSource;
    /// Channels captured, 1 to 8.
    fn input_channels(&self) -> usize;
    /// Channels played, 1 to 8.
    fn output_channels(&self) -> usize;
    /// Calls the duplex quantum by quantum until `stop` is set, or the input has ended.
    ///
    /// # Errors
    /// In words for the user.
    fn run(self: Box<Self>, duplex: Duplex, stop: Arc<AtomicBool>) -> Result<(), String>;
}

impl Running {
    /// Starts.
    ///
    /// # Errors
    /// The system's, for want of a thread, in words.
    pub fn start(device: Box<dyn Device>, duplex: Duplex) -> Result<Self, String> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::Builder::new()
            .name("sound".into())
            .spawn(move || device.run(duplex, stopped))
            .map_err(|error| error.to_string())?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// Whether it has ended by itself, be it by a panic.
    pub fn has_ended(&self) -> bool {
        (self.thread.as_ref()).is_none_or(thread::JoinHandle::is_finished)
    }

    /// Ends it, and says how that went.
    ///
    /// # Errors
    /// What went wrong while it ran, in words for the user.
    pub fn stop(mut self) -> Result<(), String> {
        self.join()
    }

    fn join(&mut self) -> Result<(), String> {
        self.stop.store(true, Ordering::Release);
        match self.thread.take().map(thread::JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err("the sound's thread panicked".into()),
            None => Ok(()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.join();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::duplex::{DuplexConfig, pair};

    #[test]
    fn of_a_card_with_one_input_there_is_one_channel_and_what_it_has_not_is_said() {
        let card = |inputs| CardConfig {
            inputs,
            quantum_frames: None,
            rate: SampleRate::Hz48000,
            input: None,
            output: None,
        };
        for (has, captured) in [(0, &[0, 1][..]), (1, &[0]), (2, &[0, 1]), (8, &[0, 1])] {
            assert_eq!(card(None).inputs(has), captured, "{has}");
            assert_eq!(card(Some(vec![3, 1])).inputs(has), [3, 1], "as asked");
        }
        let said = |inputs: &[usize]| absence(inputs.iter().copied());
        assert_eq!(said(&[]), None);
        let words = "the card has no input 2: it is silent";
        assert_eq!(said(&[1]).as_deref(), Some(words));
        let words = "the card has no inputs 2, 8: they are silent";
        assert_eq!(said(&[1, 7]).as_deref(), Some(words));
    }

    #[test]
    fn sound_that_panicked_has_ended_and_says_so() {
        struct Broken;
        impl Device for Broken {
            fn rate(&self) -> SampleRate {
                SampleRate::Hz48000
            }
            fn rate_source(&self) -> RateSource {
                RateSource::Asked
            }
            fn input_channels(&self) -> usize {
                1
            }
            fn output_channels(&self) -> usize {
                2
            }
            fn run(self: Box<Self>, _: Duplex, _: Arc<AtomicBool>) -> Result<(), String> {
                panic!("as a test")
            }
        }
        let (duplex, _far, _sleeper) = pair(DuplexConfig {
            rate: SampleRate::Hz48000,
            input_channels: 1,
            output_channels: 2,
        })
        .expect("a duplex");
        let running = Running::start(Box::new(Broken), duplex).expect("a thread");
        let deadline = Instant::now() + Duration::from_secs(10);
        while !running.has_ended() {
            assert!(Instant::now() < deadline, "it seems to go on");
            thread::sleep(Duration::from_millis(1));
        }
        let why = running.stop().expect_err("it panicked");
        assert_eq!(why, "the sound's thread panicked");
    }

    #[test]
    fn a_card_that_is_gone_is_looked_for_and_silence_goes_on_meanwhile() {
        let (mut duplex, far, _sleeper) = pair(DuplexConfig {
            rate: SampleRate::Hz48000,
            input_channels: 1,
            output_channels: 2,
        })
        .expect("a duplex");
        let (faults, stop, looks) = (far.faults(), AtomicBool::new(false), Cell::new(0));
        let (far, sent) = (RefCell::new(far), Cell::new(0));
        let told = || {
            let is_missed = [&faults.no_input, &faults.no_output];
            let is_missed = is_missed.map(|fault| fault.load(Ordering::Relaxed));
            (is_missed, faults.refused())
        };
        let found = found_again(&mut duplex, &stop, "it is gone", || {
            let words = "it is gone; it is looked for every second";
            assert_eq!(told(), ([true; 2], Some(words.into())));
            let count = |_: &[f32], frames, _| sent.set(sent.get() + frames);
            while far.borrow_mut().take_block(count) {}
            looks.set(looks.get() + 1);
            (looks.get() == 2).then_some(7).ok_or_else(String::new)
        });
        assert_eq!(found, Some(7));
        assert_eq!(told(), ([false; 2], None));
        assert_eq!(sent.get(), 2 * 48_000);
        stop.store(true, Ordering::Release);
        let found = found_again(&mut duplex, &stop, "it is gone", || Ok(7));
        assert_eq!(found, None, "told to stop");
    }
}
