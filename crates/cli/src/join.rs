//! `antiphon join`.

use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::path::{self, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use antiphon_agent::bots::{self, BotsConfig, BotsSummary, MAX_TURNS};
use antiphon_agent::core::{SampleFormat, SampleRate, Target};
use antiphon_agent::duplex::{self, DuplexConfig};
use antiphon_agent::link::RoomLink;
use antiphon_agent::outgoing::{Choice, Copies};
use antiphon_agent::participant::{Participant, ParticipantConfig, Path};
use antiphon_agent::sound::file::{FileDevice, Input, read_take};
use antiphon_agent::sound::{self, Backend, CardConfig, Device, Running};
use antiphon_server::signalling::{MAX_PASSPHRASE_CHARACTERS, Name};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::Failure;

/// Enter a room without a browser: from a sound card, or from files
#[derive(Debug, Args)]
#[command(after_help = "\
LINK is a room's, as `antiphon serve` prints it or as the page shows it.
Sound goes by JACK: a JACK server, or PipeWire (then put `pw-jack` before it). Where
none answers it goes by what the system has: ALSA, CoreAudio or WASAPI.
In the room, ? shows the keys: gain, mute and solo of each musician, and q to leave.

Examples:
  antiphon join http://localhost:8080/r/ROOM
      Play with the sound card's first two inputs, or the one that it has.

  PIPEWIRE_LATENCY=64/48000 pw-jack antiphon join --quantum 64 --packet 64 LINK
      The least latency that PipeWire gives. --list-devices shows its ports.

  antiphon join --backend cpal --device hw:CARD=USB --quantum 64 --packet 64 LINK
      A card of ALSA's alone, without a sound server; hw: is the card itself,
      without conversion. --backend cpal --list-devices shows them all.

  antiphon join --input-channels 1 --path relay LINK
      One microphone, and through the server only.

  antiphon join --input take.wav --output heard.wav LINK
      Without a sound card: play a take into the room, and record it.

  antiphon join --bots 3 LINK
      A small band to play with. `--bots 2 --rooms 10` is load for a server:
      once a second it says what came and how long it took.

  antiphon join --tone --plain --json summary.json --seconds 60 LINK
      For tests: a tone for a minute, and figures at the end.")]
pub(crate) struct Join {
    /// The room's link
    #[arg(value_name = "LINK", required_unless_present = "list_devices")]
    link: Option<RoomLink>,

    /// Shown to the others
    #[arg(long, default_value = "Antiphon", value_parser = name)]
    name: String,

    /// Of a room that is locked; a new one is locked by it; better from the environment than on the command line
    #[arg(
        long,
        env = "ANTIPHON_PASSPHRASE",
        hide_env_values = true,
        value_name = "WORDS"
    )]
    passphrase: Option<String>,

    /// By which ways sound goes and comes: straight to each peer and through the server at once, one of them, or mixed by the server
    #[arg(long, value_enum, default_value_t = PathChoice::Auto)]
    path: PathChoice,

    /// What brings the sound
    #[arg(long, value_enum, default_value_t = BackendChoice::Auto)]
    backend: BackendChoice,

    /// Show the sound cards, with JACK their ports, and stop
    #[arg(long)]
    list_devices: bool,

    /// Use the card whose name, or whose ports' names, begin so; with JACK "none": connect no card, something else will
    #[arg(long, value_name = "NAME", conflicts_with_all = ["input", "tone", "output"])]
    device: Option<String>,

    /// ... and play on this one. Each card has a clock of its own: what one is ahead of the other is skipped now and then, or silent
    #[arg(long, value_name = "NAME", conflicts_with_all = ["input", "tone", "output"])]
    output_device: Option<String>,

    /// Which inputs of the card, 1 to 64, at most 8 of them, separated by commas; if not given the first two, or the one that it has
    #[arg(
        long,
        value_name = "NUMBERS",
        conflicts_with_all = ["input", "tone", "output"],
        value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(1..=64)
    )]
    input_channels: Option<Vec<u16>>,

    /// Frames per quantum of the sound card, 16 to 1024; if not given, with JACK as it is set already, otherwise 128 (files: 64)
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u32).range(16..=1_024))]
    quantum: Option<u32>,

    /// Frames per packet, 16 to 512
    #[arg(
        long,
        value_name = "FRAMES",
        default_value_t = 128,
        value_parser = clap::value_parser!(u32).range(16..=512)
    )]
    packet: u32,

    /// Bits per sample sent: 16, 24 or 32 (float)
    #[arg(long, default_value = "16", value_parser = bits)]
    bits: SampleFormat,

    /// Send Opus instead of samples, at 64, 96, 128 or 256 kbit/s, in packets of 2.5, 5 or 10 ms, whichever is nearest to --packet
    #[arg(long, value_name = "KBPS", value_parser = kbps)]
    opus: Option<u32>,

    /// Never send a listener whose path is too slow fewer bits or Opus, but let packets be lost
    #[arg(long)]
    keep_format: bool,

    /// Make up for what gets lost: each packet carries a cheap copy of the one before (a quarter more bytes), Opus goes twice; where a listener loses some,
    /// always, or never
    #[arg(long, value_enum, default_value_t = CopiesChoice::Auto)]
    copies: CopiesChoice,

    /// Jitter buffer: tight, auto, safe (aiming at no more than 1 %, 0.1 %, 0.01 % of the frames late), or frames
    #[arg(long, value_name = "WHAT", default_value = "auto", value_parser = buffer)]
    buffer: (Target, f32),

    /// Sessions with the server, 1 to 4; if not given 2, of a bot 1
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=4))]
    sessions: Option<u32>,

    /// Direct lanes to each peer, 1 to 16; if not given two, and more where these back up
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=16))]
    lanes: Option<u32>,

    /// Without a sound card: play this WAV file into the room
    #[arg(long, value_name = "WAV", conflicts_with = "tone")]
    input: Option<PathBuf>,

    /// ... again and again; otherwise it leaves a second after the end
    #[arg(long = "loop", requires = "input")]
    is_loop: bool,

    /// Without a sound card: play a sine into the room, of 20 to 20000 Hz, 440 if not given
    #[arg(
        long,
        value_name = "HZ",
        num_args = 0..=1,
        // Otherwise it would take the room's link for a number.
        require_equals = true,
        default_missing_value = "440",
        value_parser = clap::value_parser!(u16).range(20..=20_000)
    )]
    tone: Option<u16>,

    /// Without a sound card, and so without a microphone: write what is heard to this WAV file, which is not there yet; after some 3 hours, at 48 kHz, to another: heard-2.wav after heard.wav, or the next that is not there yet
    #[arg(long, value_name = "WAV")]
    output: Option<PathBuf>,

    /// 44100, 48000, 88200 or 96000 Hz, except with JACK and --input, which have their own; if the room is new
    #[arg(long, value_name = "HZ", default_value = "48000", value_parser = rate)]
    rate: SampleRate,

    /// Send so many synthetic musicians instead, up to 1000: company, or load; they sound through the server only
    #[arg(
        long,
        value_name = "NUMBER",
        value_parser = clap::value_parser!(u32).range(1..=1_000),
        conflicts_with_all = [
            "name", "backend", "list_devices", "device", "output_device", "input_channels", "quantum", "bits", "opus", "keep_format",
            "copies", "buffer", "lanes", "input", "tone", "output", "rate"
        ]
    )]
    bots: Option<u32>,

    /// ... into each of so many rooms, up to 1000: the link's, and new ones of the same server, which one with a room secret does not make
    #[arg(
        long,
        value_name = "NUMBER",
        requires = "bots",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1_000)
    )]
    rooms: u32,

    /// ... who send in so many turns in the time of a packet, up to 64; 1: all at once
    #[arg(
        long,
        value_name = "NUMBER",
        requires = "bots",
        default_value_t = 8,
        value_parser = clap::value_parser!(u32).range(1..=MAX_TURNS as i64)
    )]
    turns: u32,

    /// Leave after so long
    #[arg(long, value_name = "NUMBER", value_parser = seconds)]
    seconds: Option<f64>,

    /// Lines of text instead of a view; so too where there is no terminal to be seen and typed at, or a dumb one (TERM=dumb)
    #[arg(long)]
    plain: bool,

    /// Write all figures there at the end
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PathChoice {
    Auto,
    Direct,
    Relay,
    Mix,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CopiesChoice {
    Auto,
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BackendChoice {
    /// JACK if a server answers, otherwise cpal; files where --input, --tone or --output asks for them
    Auto,
    /// A JACK server, or PipeWire
    Jack,
    /// The system's own sound: ALSA, CoreAudio or WASAPI
    Cpal,
}

impl From<BackendChoice> for Backend {
    fn from(choice: BackendChoice) -> Self {
        match choice {
            BackendChoice::Auto => Self::Auto,
            BackendChoice::Jack => Self::Jack,
            BackendChoice::Cpal => Self::Cpal,
        }
    }
}

fn name(text: &str) -> Result<String, String> {
    Name::try_from(text.to_owned())?;
    Ok(text.to_owned())
}

fn kbps(text: &str) -> Result<u32, String> {
    let kbps = text
        .parse()
        .ok()
        .filter(|kbps| [64, 96, 128, 256].contains(kbps));
    kbps.ok_or_else(|| "64, 96, 128 or 256".to_owned())
}

fn bits(text: &str) -> Result<SampleFormat, String> {
    let bits = text.parse().ok().and_then(SampleFormat::from_bits);
    bits.ok_or_else(|| "16, 24 or 32".to_owned())
}

fn rate(text: &str) -> Result<SampleRate, String> {
    let rate = text.parse().ok().and_then(SampleRate::from_hz);
    rate.ok_or_else(|| "44100, 48000, 88200 or 96000".to_owned())
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok();
    (seconds.filter(|&seconds| Duration::try_from_secs_f64(seconds).is_ok()))
        .ok_or_else(|| "a number of seconds".to_owned())
}

/// As the server takes it, without blanks at its ends; where nothing is left, none. Not for clap to refuse: it would show it.
fn passphrase(said: Option<&str>) -> Result<Option<String>, Failure> {
    let words = said.map(str::trim).filter(|words| !words.is_empty());
    if words.is_some_and(|words| words.chars().count() > MAX_PASSPHRASE_CHARACTERS) {
        return Err(Failure::usage(format!(
            "--passphrase or ANTIPHON_PASSPHRASE: a passphrase has at most {MAX_PASSPHRASE_CHARACTERS} characters"
        )));
    }
    Ok(words.map(str::to_owned))
}

/// As the page has it: `docs/automation.md`.
fn buffer(text: &str) -> Result<(Target, f32), String> {
    match text {
        "tight" => Ok((Target::Auto, 0.01)),
        "auto" => Ok((Target::Auto, 0.001)),
        "safe" => Ok((Target::Auto, 0.000_1)),
        frames => match frames.parse() {
            Ok(frames) if frames <= 8_192 => Ok((Target::Fixed(frames), 0.001)),
            _ => Err("tight, auto, safe, or 0 to 8192 frames".to_owned()),
        },
    }
}

impl Join {
    /// Plays until it is told to leave.
    pub(crate) fn run(self) -> Result<(), Failure> {
        if self.list_devices {
            for line in sound::list(self.backend.into()).map_err(Failure::running)? {
                crate::say(line);
            }
            return Ok(());
        }
        let Some(link) = self.link.clone() else {
            return Err(Failure::usage("which room?"));
        };
        let passphrase = passphrase(self.passphrase.as_deref())?;
        if let Some(mistake) = self.overwriting() {
            return Err(mistake);
        }
        let stop = stop_by_signal()?;
        if let Some(bots) = self.bots {
            return self.run_bots(link, passphrase, bots as usize, &stop);
        }
        let (device, choice) = self.device()?;
        // After it, so that a mistake leaves no file.
        let json = match self.report() {
            Ok(json) => json,
            Err(failure) => {
                drop(device);
                self.remove_recording();
                return Err(failure);
            }
        };
        let duplex_config = DuplexConfig {
            rate: device.rate(),
            input_channels: device.input_channels(),
            output_channels: device.output_channels(),
        };
        let rate_source = device.rate_source();
        let (duplex, far, sleeper) = duplex::pair(duplex_config).map_err(Failure::running)?;
        let config = ParticipantConfig {
            link,
            name: self.name.clone(),
            passphrase,
            choice,
            rate_source,
            target: self.buffer.0,
            budget: self.buffer.1,
            path: match self.path {
                PathChoice::Auto => Path::Auto,
                PathChoice::Direct => Path::Direct,
                PathChoice::Relay => Path::Relay,
                PathChoice::Mix => Path::Mix,
            },
            sessions: self.sessions.unwrap_or(2) as usize,
            lanes: self.lanes.map(|lanes| lanes as usize),
        };
        let running = Running::start(device, duplex).map_err(Failure::running)?;
        let participant = Participant::join(config, far, sleeper).map_err(Failure::running)?;
        let status = participant.status.clone();
        let deadline = self.deadline();
        let is_over = || {
            stop.load(Ordering::Acquire)
                || running.has_ended()
                || deadline.is_some_and(|deadline| Instant::now() >= deadline)
        };
        let has_view = !self.plain && io::stdout().is_terminal() && !is_dumb();
        let terminal = has_view.then(ratatui::try_init);
        let shown = match terminal {
            Some(Ok(terminal)) => crate::view::show(terminal, &participant, is_over),
            // One that nobody can type at, as a service has it.
            Some(Err(_)) | None => {
                // It may have failed halfway.
                crate::view::give_back();
                print_lines(&participant, is_over);
                Ok(())
            }
        };
        let refused = status.borrow().ended.clone();
        // What it knew before it left: nothing is connected afterwards.
        let last = status.borrow().clone();
        let left = participant.leave();
        let sounded = running.stop();
        let written = json.map_or(Ok(()), |json| json.write(&last));
        if last.id.is_none() {
            self.remove_recording();
        }
        left.and(sounded).map_err(Failure::running)?;
        shown.map_err(Failure::running)?;
        if let Some(why) = refused {
            return Err(Failure::running(why));
        }
        if last.id.is_none() {
            let why = last.offline.unwrap_or_else(|| "no answer yet".to_owned());
            return Err(Failure::running(format!("never got into the room: {why}")));
        }
        written
    }

    /// Where the figures go, if they are asked for.
    fn report(&self) -> Result<Option<Report>, Failure> {
        self.json.as_deref().map(Report::create).transpose()
    }

    /// That the figures would be written over sound.
    fn overwriting(&self) -> Option<Failure> {
        let json = place_of(self.json.as_deref()?);
        let sounds = [("--input", &self.input), ("--output", &self.output)];
        let is_json =
            |path: &Option<PathBuf>| path.as_deref().is_some_and(|path| place_of(path) == json);
        let (flag, _) = sounds.into_iter().find(|(_, path)| is_json(path))?;
        Some(Failure::usage(format!(
            "--json and {flag} name the same file"
        )))
    }

    /// Made by this run, and of nothing: it would be in the way of the next.
    fn remove_recording(&self) {
        if let Some(recording) = self.output.as_ref().filter(|path| path.is_file()) {
            let _ = fs::remove_file(recording);
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let seconds = self.seconds.map(Duration::from_secs_f64)?;
        Instant::now().checked_add(seconds)
    }

    fn run_bots(
        self,
        link: RoomLink,
        passphrase: Option<String>,
        bots: usize,
        stop: &Arc<AtomicBool>,
    ) -> Result<(), Failure> {
        let path = match self.path {
            PathChoice::Auto | PathChoice::Relay => Path::Relay,
            PathChoice::Mix => Path::Mix,
            PathChoice::Direct => return Err(Failure::usage("bots sound through the server only")),
        };
        let json = self.report()?;
        let rooms = self.rooms as usize;
        let deadline = self.deadline();
        let config = BotsConfig {
            link,
            passphrase,
            bots,
            rooms,
            turns: self.turns as usize,
            path,
            packet_frames: self.packet as usize,
            channels: 2,
            sessions: self.sessions.unwrap_or(1) as usize,
        };
        let told = stop.clone();
        let summary = bots::run(config, stop, |summary| {
            crate::say(bots_line(summary));
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                told.store(true, Ordering::Release);
            }
        })
        .map_err(Failure::running)?;
        let has_begun = summary.seconds > 0.0;
        let written = json.map_or(Ok(()), |json| json.write(&summary));
        if !has_begun || summary.rooms < rooms {
            let why = summary
                .trouble
                .unwrap_or_else(|| "no answer yet".to_owned());
            let whom = match (has_begun, summary.rooms) {
                (false, _) => "no bot got into the room".to_owned(),
                (true, 0) => "no bot is left".to_owned(),
                (true, left) => format!("bots are in {left} of {rooms} rooms only"),
            };
            return Err(Failure::running(format!("{whom}: {why}")));
        }
        written
    }

    /// What is sent of a device's sound.
    fn choice(&self, device: &dyn Device) -> Result<Choice, Failure> {
        let choice = Choice {
            rate: device.rate(),
            channels: device.input_channels(),
            format: self.bits,
            packet_frames: self.packet as usize,
            opus_kbps: self.opus,
            adapts: !self.keep_format,
            copies: match self.copies {
                CopiesChoice::Auto => Copies::Auto,
                CopiesChoice::On => Copies::On,
                CopiesChoice::Off => Copies::Off,
            },
        };
        match choice.opus_refusal().filter(|_| self.opus.is_some()) {
            Some(why) => Err(Failure::usage(why)),
            None => Ok(choice),
        }
    }

    fn device(&self) -> Result<(Box<dyn Device>, Choice), Failure> {
        let is_file = self.input.is_some() || self.tone.is_some() || self.output.is_some();
        if is_file && self.backend == BackendChoice::Auto {
            let (input, rate) = match (&self.input, self.tone) {
                (Some(path), _) => read_take(path, self.is_loop).map_err(Failure::usage)?,
                (None, Some(hz)) => (Input::Tone(f32::from(hz)), self.rate),
                (None, None) => (Input::Silence, self.rate),
            };
            let quantum = self.quantum.unwrap_or(64) as usize;
            let mut device = FileDevice::new(input, rate, quantum);
            let choice = self.choice(&device)?;
            // Last, so that a mistake leaves no file.
            if let Some(path) = &self.output {
                device.record(path).map_err(Failure::usage)?;
            }
            return Ok((Box::new(device), choice));
        }
        if is_file {
            return Err(Failure::usage(
                "--input, --tone and --output stand in for a sound card: not with --backend",
            ));
        }
        let from_0 = |number: &u16| usize::from(*number) - 1;
        let inputs: Option<Vec<_>> =
            (self.input_channels.as_ref()).map(|numbers| numbers.iter().map(from_0).collect());
        if inputs.as_ref().is_some_and(|inputs| inputs.len() > 8) {
            return Err(Failure::usage("--input-channels: 8 at most"));
        }
        let card = CardConfig {
            inputs,
            quantum_frames: self.quantum.map(|frames| frames as usize),
            rate: self.rate,
            input: self.device.clone(),
            output: (self.output_device.clone()).or_else(|| self.device.clone()),
        };
        let device = sound::open(self.backend.into(), card).map_err(|why| {
            Failure::running(format!(
                "{why}\nwithout a sound card, --tone or --input TAKE.wav --output HEARD.wav play, too"
            ))
        })?;
        let choice = self.choice(&*device)?;
        Ok((device, choice))
    }
}

fn bots_line(summary: &BotsSummary) -> String {
    let us = |value: Option<f64>| value.map_or("?".into(), |us| format!("{us:.0}"));
    let mut line = format!(
        "{:.0} s: {} bots in {} rooms, sent {}, dropped {}, received {}, lost {}, reordered {}; one way through the server p50 {} us, p99 {} us, most {} us",
        summary.seconds,
        summary.bots,
        summary.rooms,
        summary.sent_packets,
        summary.dropped_packets,
        summary.received_packets,
        summary.lost_packets,
        summary.reordered_packets,
        us(summary.delay_p50_us),
        us(summary.delay_p99_us),
        us(summary.delay_max_us),
    );
    if let Some(trouble) = &summary.trouble {
        line += &format!("; {trouble}");
    }
    line
}

/// A file's full name, whether it is there already or not.
fn place_of(path: &path::Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default();
    let folder = path
        .parent()
        .filter(|folder| *folder != path::Path::new(""));
    let folder = fs::canonicalize(folder.unwrap_or(path::Path::new(".")));
    fs::canonicalize(path)
        .or_else(|_| folder.map(|folder| folder.join(name)))
        .unwrap_or_else(|_| path.to_owned())
}

/// Where all figures are written at the end.
struct Report {
    path: PathBuf,
    file: File,
}

impl Report {
    /// Nobody plays for an hour to hear then that it cannot be written. What is there stays until it is.
    fn create(path: &path::Path) -> Result<Self, Failure> {
        let mut options = File::options();
        let file = options.write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
        let path = path.to_owned();
        Ok(Self { path, file })
    }

    fn write(mut self, figures: &impl Serialize) -> Result<(), Failure> {
        // What is no file cannot be made shorter.
        let _ = self.file.set_len(0);
        let written =
            serde_json::to_writer_pretty(&mut self.file, figures).map_err(io::Error::from);
        written
            .and_then(|()| writeln!(self.file))
            .map_err(|error| Failure::running(format!("{}: {error}", self.path.display())))
    }
}

/// Set at the first SIGINT or SIGTERM, or when the terminal is closed; a SIGINT or SIGTERM after that ends the process at once.
pub(crate) fn stop_by_signal() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let told = stop.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::running)?;
    thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                () = crate::serve::signal() => {}
                () = hung_up() => {}
            }
            // Not also a second SIGHUP: a terminal that is closed may send several.
            let second = crate::serve::signal();
            told.store(true, Ordering::Release);
            second.await;
            crate::view::give_back();
            std::process::exit(130);
        });
    });
    Ok(stop)
}

/// The terminal was closed. Without one, or where whoever started us ignores it, as nohup does, that is nothing to us.
#[cfg(unix)]
async fn hung_up() {
    use tokio::signal::unix::{SignalKind, signal};
    if !has_terminal() || ignores_hangup() {
        return std::future::pending().await;
    }
    match signal(SignalKind::hangup()) {
        Ok(mut hangup) => _ = hangup.recv().await,
        Err(_) => std::future::pending().await,
    }
}

/// Whether somebody may close it.
#[cfg(unix)]
pub(crate) fn has_terminal() -> bool {
    io::stdin().is_terminal() || io::stdout().is_terminal() || io::stderr().is_terminal()
}

/// Whether whoever started us wants SIGHUP ignored, as nohup does.
#[cfg(unix)]
pub(crate) fn ignores_hangup() -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: without a new action it only asks for the old one, which is written where it answers 0.
    unsafe {
        libc::sigaction(libc::SIGHUP, std::ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

#[cfg(not(unix))]
async fn hung_up() {
    std::future::pending().await
}

/// Whether the terminal says that all it can do is print: an editor's, or one for a screen reader.
fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}

/// A line whenever somebody comes or goes, and figures every two seconds.
fn print_lines(participant: &Participant, is_over: impl Fn() -> bool) {
    let mut known = String::new();
    let mut next = Instant::now();
    loop {
        let status = participant.status.borrow().clone();
        if participant.has_ended() || is_over() {
            return;
        }
        let names: Vec<_> = status.peers.iter().map(|peer| peer.name.as_str()).collect();
        let now = format!("{:?} with {}", status.signalling, names.join(", "));
        if now != known || Instant::now() >= next {
            known = now;
            next = Instant::now() + Duration::from_secs(2);
            for line in crate::view::lines(&status) {
                crate::say(line);
            }
        }
        thread::sleep(Duration::from_millis(100));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_begun_before_and_replaces_what_was_there_only_at_the_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("figures.json");
        std::fs::write(&path, "of the last time, and longer than it is now").expect("written");
        let report = Report::create(&path).expect("it can be written");
        let read = || std::fs::read_to_string(&path).expect("it is there");
        assert!(read().starts_with("of the last time"));
        report.write(&7).expect("written");
        assert_eq!(read(), "7\n");
        let nowhere = folder.path().join("missing").join("figures.json");
        let failure = Report::create(&nowhere).err().expect("nowhere");
        assert!(failure.code == 2 && failure.message.contains("figures.json"));
    }

    #[test]
    fn a_passphrase_of_blanks_is_none_and_one_that_is_too_long_a_mistake() {
        let said = |words: &str| passphrase(Some(words));
        for none in ["", " ", "\t\n"] {
            assert_eq!(said(none).expect("fit"), None);
        }
        assert_eq!(passphrase(None).expect("fit"), None);
        let longest = "ä".repeat(128);
        for fit in ["open sesame", longest.as_str()] {
            let blank = format!(" {fit}\n");
            assert_eq!(said(&blank).expect("fit").as_deref(), Some(fit));
        }
        let mistake = said(&"ä".repeat(129)).expect_err("too long");
        assert_eq!(mistake.code, 2);
        assert!(mistake.message.contains("at most 128 characters"));
        assert!(!mistake.message.contains('ä'), "it is a secret");
    }
}
