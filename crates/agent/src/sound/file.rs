//! Without a sound card: a file or a tone is captured, and what is heard is written to a file, at the pace of a precise timer.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use antiphon_core::SampleRate;
use hound::{SampleFormat, WavSpec, WavWriter};

use super::{Device, PRIORITY, RateSource, wav};
use crate::clock::{frames_ns, now_ns};
use crate::duplex::{DeviceDelays, Duplex, MAX_QUANTUM_FRAMES};
use crate::priority;

/// Of a tone: -18 dBFS, EBU's reference level (R 68).
const TONE_PEAK: f32 = 0.125_892_54;
/// After a take has ended, so that its last frames are heard and what others play is too.
const AFTER_SECONDS: u64 = 1;
/// Of a recording that was cut off no more than so much is missing.
const FLUSH_SECONDS: u32 = 5;
/// A WAV file's lengths have 32 bits, its header's share included.
const MAX_FILE_BYTES: u32 = 4_000_000_000;
/// Two samples of 32 bits.
const FRAME_BYTES: u32 = 8;
/// Who is later than this stood still: what was due meanwhile is past, and is not made up for in a burst.
const STANDSTILL_NS: u64 = 1_000_000_000;

/// What is captured.
#[derive(Debug)]
pub enum Input {
    /// A take, `[frame][channel]`.
    Take {
        /// The samples.
        samples: Vec<f32>,
        /// 1 to 8.
        channels: usize,
        /// Over and over again; otherwise the sound ends a second after it.
        is_loop: bool,
    },
    /// A sine, Hz.
    Tone(f32),
    /// Nothing.
    Silence,
}

/// A device made of files.
pub struct FileDevice {
    rate: SampleRate,
    quantum_frames: usize,
    input: Input,
    output: Option<Recording>,
}

/// What is heard, in WAV files: one holds less than 4 GiB.
struct Recording {
    path: PathBuf,
    spec: WavSpec,
    sink: Sink,
    /// Of the file that is written, from 1.
    number: u32,
    /// In it; of a stream none are counted, so it is never full.
    frames: u32,
    max_frames: u32,
}

enum Sink {
    /// Its header tells how long it is.
    File(WavWriter<BufWriter<File>>),
    /// A pipe, or /dev/null: its header is past, and it goes on for as long as it may.
    Stream(BufWriter<File>),
}

impl Recording {
    fn create(path: &Path, spec: WavSpec) -> Result<Self, String> {
        let sink = match File::create_new(path) {
            Err(why) if why.kind() == ErrorKind::AlreadyExists && path.is_file() => {
                return Err(format!(
                    "{} is there already: take another name, or remove it",
                    path.display()
                ));
            }
            Err(why) if why.kind() == ErrorKind::AlreadyExists => {
                Sink::Stream(stream_into(path, spec).map_err(|why| failed(path, why))?)
            }
            file => Sink::File(write_into(file, path, spec)?),
        };
        Ok(Self {
            path: path.to_owned(),
            spec,
            sink,
            number: 1,
            frames: 0,
            max_frames: MAX_FILE_BYTES / FRAME_BYTES,
        })
    }

    /// One quantum, which is readable in a file a few seconds later, whatever happens to this program.
    fn write(&mut self, left: &[f32], right: &[f32]) -> Result<(), String> {
        for (&left, &right) in left.iter().zip(right) {
            if self.frames == self.max_frames {
                self.begin_another()?;
            }
            self.write_frame([left, right])
                .map_err(|why| failed(&self.path, why))?;
        }
        Ok(())
    }

    fn write_frame(&mut self, frame: [f32; 2]) -> hound::Result<()> {
        match &mut self.sink {
            Sink::File(writer) => {
                for sample in frame {
                    writer.write_sample(sample)?;
                }
                self.frames += 1;
                if (self.frames).is_multiple_of(FLUSH_SECONDS * self.spec.sample_rate) {
                    writer.flush()?;
                }
            }
            Sink::Stream(writer) => {
                for sample in frame {
                    writer.write_all(&sample.to_le_bytes())?;
                }
            }
        }
        Ok(())
    }

    /// `heard-2.wav` after `heard.wav`, or the next that is not there yet.
    fn begin_another(&mut self) -> Result<(), String> {
        self.frames = 0;
        let (path, file) = loop {
            self.number += 1;
            let mut name = self.path.file_stem().unwrap_or_default().to_owned();
            name.push(format!("-{}.", self.number));
            name.push(self.path.extension().unwrap_or("wav".as_ref()));
            let path = self.path.with_file_name(name);
            match File::create_new(&path) {
                Err(why) if why.kind() == ErrorKind::AlreadyExists => {}
                file => break (path, file),
            }
        };
        let next = Sink::File(write_into(file, &path, self.spec)?);
        finish(std::mem::replace(&mut self.sink, next), &self.path)
    }

    fn finish(self) -> Result<(), String> {
        finish(self.sink, &self.path)
    }
}

fn finish(sink: Sink, path: &Path) -> Result<(), String> {
    let finished = match sink {
        Sink::File(writer) => writer.finalize(),
        Sink::Stream(mut writer) => writer.flush().map_err(hound::Error::IoError),
    };
    finished.map_err(|why| failed(path, why))
}

fn failed(path: &Path, why: impl Display) -> String {
    format!("{}: {why}", path.display())
}

fn stream_into(path: &Path, spec: WavSpec) -> io::Result<BufWriter<File>> {
    let mut writer = BufWriter::new(File::create(path)?);
    writer.write_all(&spec.into_header_for_infinite_file())?;
    Ok(writer)
}

fn write_into(
    file: io::Result<File>,
    path: &Path,
    spec: WavSpec,
) -> Result<WavWriter<BufWriter<File>>, String> {
    file.map_err(hound::Error::IoError)
        .and_then(|file| WavWriter::new(BufWriter::new(file), spec))
        .map_err(|why| failed(path, why))
}

impl std::fmt::Debug for FileDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileDevice")
            .field("rate", &self.rate)
            .field("quantum_frames", &self.quantum_frames)
            .finish_non_exhaustive()
    }
}

/// Reads a take.
///
/// # Errors
/// In words for the user: no WAV file, or of a rate that no room has.
pub fn read_take(path: &Path, is_loop: bool) -> Result<(Input, SampleRate), String> {
    let take = File::open(path)
        .map_err(|error| error.to_string())
        .and_then(|file| wav::read(BufReader::new(file)))
        .map_err(|why| failed(path, why))?;
    let input = Input::Take {
        samples: take.samples,
        channels: take.channels,
        is_loop,
    };
    Ok((input, take.rate))
}

impl FileDevice {
    /// Writes nothing until [`FileDevice::record`].
    pub fn new(input: Input, rate: SampleRate, quantum_frames: usize) -> Self {
        Self {
            rate,
            quantum_frames: quantum_frames.clamp(1, MAX_QUANTUM_FRAMES),
            input,
            output: None,
        }
    }

    /// The mix is written there, stereo, as 32-bit float.
    ///
    /// # Errors
    /// In words for the user: there is a file already, or none can be written.
    pub fn record(&mut self, path: &Path) -> Result<(), String> {
        let spec = WavSpec {
            channels: 2,
            sample_rate: self.rate.hz(),
            bits_per_sample: 32,
            sample_format: SampleFormat::Float,
        };
        self.output = Some(Recording::create(path, spec)?);
        Ok(())
    }
}

impl Device for FileDevice {
    fn rate(&self) -> SampleRate {
        self.rate
    }

    fn rate_source(&self) -> RateSource {
        match self.input {
            Input::Take { .. } => RateSource::Take,
            Input::Tone(_) | Input::Silence => RateSource::Asked,
        }
    }

    fn input_channels(&self) -> usize {
        match self.input {
            Input::Take { channels, .. } => channels,
            Input::Tone(_) | Input::Silence => 2,
        }
    }

    fn output_channels(&self) -> usize {
        2
    }

    fn run(mut self: Box<Self>, mut duplex: Duplex, stop: Arc<AtomicBool>) -> Result<(), String> {
        // Without real-time priority it works too, only less evenly.
        let _ = priority::real_time(PRIORITY);
        // A file takes no time.
        duplex.set_delays(DeviceDelays {
            input_ns: Some(0),
            output_ns: Some(0),
        });
        let channels = self.input_channels();
        let frames = self.quantum_frames;
        let mut captured = vec![0.0; channels * frames];
        let mut heard = vec![0.0; 2 * frames];
        let faults = duplex.faults();
        let is_silent = matches!(self.input, Input::Silence);
        faults.no_input.store(is_silent, Ordering::Relaxed);
        let mut pace = Pace {
            start_ns: now_ns(),
            rate: self.rate,
        };
        let mut played = 0u64;
        while !stop.load(Ordering::Acquire) && !self.has_ended(played) {
            // A quantum has been captured when its last frame has.
            played += frames as u64;
            let late_ns = sleep_until(pace.due_ns(played));
            if late_ns > frames_ns(frames as i64, self.rate) as u64 {
                faults.xruns.fetch_add(1, Ordering::Relaxed);
            }
            pace.forgive(late_ns);
            self.capture(played - frames as u64, &mut captured);
            duplex.process(&captured, &mut heard);
            if let Some(recording) = &mut self.output {
                let (left, right) = heard.split_at(frames);
                recording.write(left, right)?;
            }
        }
        self.output.map_or(Ok(()), Recording::finish)
    }
}

impl FileDevice {
    fn has_ended(&self, played: u64) -> bool {
        match &self.input {
            Input::Take {
                samples,
                channels,
                is_loop: false,
            } => {
                let frames = (samples.len() / channels) as u64;
                played >= frames + AFTER_SECONDS * u64::from(self.rate.hz())
            }
            _ => false,
        }
    }

    /// Writes the input's frames from `first` on into `out`, `[channel][frame]`.
    fn capture(&self, first: u64, out: &mut [f32]) {
        let frames = self.quantum_frames;
        match &self.input {
            Input::Silence => out.fill(0.0),
            Input::Tone(hz) => {
                let step = std::f64::consts::TAU * f64::from(*hz) / f64::from(self.rate.hz());
                let (left, right) = out.split_at_mut(frames);
                for (frame, sample) in left.iter_mut().enumerate() {
                    let phase = step * (first + frame as u64) as f64;
                    *sample = phase.sin() as f32 * TONE_PEAK;
                }
                right.copy_from_slice(left);
            }
            Input::Take {
                samples,
                channels,
                is_loop,
            } => {
                let length = (samples.len() / channels) as u64;
                for frame in 0..frames {
                    let at = first + frame as u64;
                    let at = if *is_loop { at % length } else { at };
                    for channel in 0..*channels {
                        let index = at as usize * channels + channel;
                        out[channel * frames + frame] = samples.get(index).copied().unwrap_or(0.0);
                    }
                }
            }
        }
    }
}

/// When frames are due.
struct Pace {
    start_ns: u64,
    rate: SampleRate,
}

impl Pace {
    /// When so many have passed.
    fn due_ns(&self, frames: u64) -> u64 {
        self.start_ns + frames_ns(frames as i64, self.rate) as u64
    }

    /// After a standstill it goes on from now.
    fn forgive(&mut self, late_ns: u64) {
        self.start_ns += forgiven(late_ns);
    }
}

/// How much of being so late is not made up for.
pub(crate) fn forgiven(late_ns: u64) -> u64 {
    if late_ns > STANDSTILL_NS { late_ns } else { 0 }
}

/// Returns how late it is then, ns.
pub(crate) fn sleep_until(due_ns: u64) -> u64 {
    let now = now_ns();
    if now < due_ns {
        sleep(due_ns - now);
    }
    now_ns().saturating_sub(due_ns)
}

/// By the timer that is as fine as the system has one; ordinary threads are woken some 50 us late (`timer_slack_ns`), real-time ones are not.
fn sleep(ns: u64) {
    std::thread::sleep(std::time::Duration::from_nanos(ns));
}

#[cfg(test)]
mod tests {
    use hound::WavReader;

    use super::*;

    fn device(input: Input) -> FileDevice {
        FileDevice::new(input, SampleRate::Hz48000, 4)
    }

    fn recording(path: &Path) -> Result<Recording, String> {
        let mut device = device(Input::Silence);
        device.record(path)?;
        Ok(device.output.expect("a recording"))
    }

    #[test]
    fn a_take_is_captured_frame_by_frame_and_again_if_it_loops() {
        let samples = vec![0.1, -0.1, 0.2, -0.2, 0.3, -0.3];
        let take = |is_loop| {
            device(Input::Take {
                samples: samples.clone(),
                channels: 2,
                is_loop,
            })
        };
        let mut out = [9.0; 8];
        take(false).capture(1, &mut out);
        assert_eq!(out, [0.2, 0.3, 0.0, 0.0, -0.2, -0.3, 0.0, 0.0]);
        take(true).capture(1, &mut out);
        assert_eq!(out, [0.2, 0.3, 0.1, 0.2, -0.2, -0.3, -0.1, -0.2]);
        assert_eq!(take(false).rate_source(), RateSource::Take);
        assert_eq!(device(Input::Silence).rate_source(), RateSource::Asked);
        assert!(take(false).has_ended(48_003) && !take(false).has_ended(48_002));
        assert!(!take(true).has_ended(u64::MAX / 2));
    }

    #[test]
    fn a_recording_is_readable_while_it_is_made_and_goes_on_in_another_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("heard.wav");
        let mut recording = recording(&path).expect("a recording");
        let bytes = u64::from(recording.max_frames) * 8;
        assert!((3_900_000_000..u64::from(u32::MAX) - 1_000).contains(&bytes));
        recording.max_frames = FLUSH_SECONDS * 48_000 + 100;
        let another_take = folder.path().join("heard-3.wav");
        std::fs::write(&another_take, "").expect("written");
        let frames = |name: &str| {
            let reader = WavReader::open(folder.path().join(name)).expect("a WAV file");
            reader.duration()
        };
        let second = |recording: &mut Recording| {
            let samples = vec![0.5; 48_000];
            recording.write(&samples, &samples).expect("written");
        };
        for _ in 0..FLUSH_SECONDS {
            second(&mut recording);
        }
        assert_eq!(frames("heard.wav"), FLUSH_SECONDS * 48_000);
        for _ in 0..FLUSH_SECONDS + 1 {
            second(&mut recording);
        }
        recording.finish().expect("finished");
        assert_eq!(frames("heard.wav"), FLUSH_SECONDS * 48_000 + 100);
        assert_eq!(frames("heard-2.wav"), FLUSH_SECONDS * 48_000 + 100);
        assert_eq!(frames("heard-4.wav"), 48_000 - 200);
        assert_eq!(std::fs::read(another_take).expect("there"), b"");
    }

    #[test]
    fn a_recording_takes_no_file_that_is_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("heard.wav");
        std::fs::write(&path, "a take").expect("written");
        let why = recording(&path).err().expect("refused");
        assert!(why.contains("heard.wav is there already"), "{why}");
        assert_eq!(std::fs::read(&path).expect("there"), b"a take");
        #[cfg(unix)]
        assert!(recording("/dev/null".as_ref()).is_ok());
    }

    #[cfg(unix)]
    #[test]
    fn what_is_heard_goes_on_into_a_pipe() {
        use std::io::Read;
        use std::os::fd::AsRawFd;
        let (mut reader, pipe) = std::io::pipe().expect("a pipe");
        let path = format!("/dev/fd/{}", pipe.as_raw_fd());
        let mut recording = recording(path.as_ref()).expect("a recording");
        drop(pipe);
        let reading = std::thread::spawn(move || {
            let mut heard = Vec::new();
            reader.read_to_end(&mut heard).map(|_| heard)
        });
        // A file would be full.
        recording.max_frames = 40_000;
        let samples = vec![0.5; 48_000];
        for _ in 0..2 * FLUSH_SECONDS {
            recording.write(&samples, &samples).expect("written");
        }
        recording.finish().expect("finished");
        let heard = reading.join().expect("it reads").expect("read");
        let take = wav::read(&heard[..]).expect("a WAV file");
        assert_eq!((take.channels, take.rate), (2, SampleRate::Hz48000));
        let all = 2 * 2 * FLUSH_SECONDS as usize * 48_000;
        assert_eq!(take.samples, vec![0.5; all]);
    }

    #[test]
    fn the_pace_is_kept_for_days_and_not_caught_up_with_after_a_standstill() {
        let (start_ns, rate) = (1_000_000_000, SampleRate::Hz96000);
        let mut pace = Pace { start_ns, rate };
        let day = 24 * 3_600 * 96_000;
        assert_eq!(pace.due_ns(100 * day), start_ns + 8_640_000_000_000_000);
        pace.forgive(STANDSTILL_NS);
        assert_eq!(
            pace.due_ns(96),
            start_ns + 1_000_000,
            "a second is made up for"
        );
        pace.forgive(8_000_000_000);
        assert_eq!(pace.due_ns(96), start_ns + 8_001_000_000);
    }

    #[test]
    fn a_tone_goes_on_where_it_was() {
        let (mut whole, mut half) = ([0.0; 16], [0.0; 8]);
        let mut long = device(Input::Tone(440.0));
        long.quantum_frames = 8;
        long.capture(0, &mut whole);
        device(Input::Tone(440.0)).capture(4, &mut half);
        assert_eq!(whole[4..8], half[..4]);
        assert_eq!(whole[..8], whole[8..], "both channels");
    }
}
