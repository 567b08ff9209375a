//! The mouth-to-ear device: one JACK client that plays into some ports and records from others in the same process
//! callback. Frame *n* of every recording is the frame that arrived while frame *n* of every take was leaving, so the
//! distance between a sound in a take and the same sound in a recording is the mouth-to-ear latency in frames, with
//! no clock to compare. The device adds exactly one quantum of its own: see `--help`.

mod process;
mod take;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;

use antiphon_jack::Client;
use process::{Device, Progress, Run};

const TEACH: &str = "\
Every --play is paired with the --connect-out that has the same place in the command, every --record with its
--connect-in. All takes start at the same frame, in which all recordings start too.

  One way through two cards (a take into A's microphone, what B's speaker plays into a file):
    PIPEWIRE_LATENCY=64/48000 pw-jack antiphon-device \\
      --play take.wav    --connect-out micA:input_FL,micA:input_FR \\
      --record heard.wav --connect-in  spkB:monitor_FL,spkB:monitor_FR

  Both ways at once, on one clock: repeat the four options with B and A exchanged.

  Calibration: play into a speaker and record the same speaker. Its latency is the device's own, exactly one quantum:
    ... --play take.wav --connect-out spkA:playback_FL --record heard.wav --connect-in spkA:monitor_FL

A take is a WAV file of 16, 24 or 32 bits or float, at the rate of the graph; its channels go to the ports in order.
Recordings are 32-bit float. The summary is JSON on standard output (or --summary FILE); counters cover the run only.
began_ms is when the takes began, in ms since 1970, at most some 5 ms late. missed_frames are frames the graph ran without the
device: a sound under way at that moment seems faster by as much. There may be one xrun more than xruns says: PipeWire keeps back
the first of each driver's life. List all ports with: pw-jack antiphon-device --list";

/// Plays takes and records what is heard, sample-accurately, on one clock.
#[derive(Parser)]
#[command(version, about, after_long_help = TEACH)]
struct Args {
    /// A WAV file to play; repeatable.
    #[arg(long, value_name = "WAV")]
    play: Vec<PathBuf>,
    /// The ports it goes to, one per channel, separated by commas.
    #[arg(long, value_name = "PORTS")]
    connect_out: Vec<String>,
    /// A WAV file to write; repeatable.
    #[arg(long, value_name = "WAV")]
    record: Vec<PathBuf>,
    /// The ports it hears, one per channel, separated by commas.
    #[arg(long, value_name = "PORTS")]
    connect_in: Vec<String>,
    /// Length of the run; default: the longest take.
    #[arg(long)]
    seconds: Option<f64>,
    /// Silence between connecting the ports and the first frame of the run.
    #[arg(long, default_value_t = 0.5)]
    settle_seconds: f64,
    /// How long to wait for ports to appear.
    #[arg(long, default_value_t = 5.0)]
    wait_seconds: f64,
    /// Name of the JACK client.
    #[arg(long, default_value = "antiphon-device")]
    name: String,
    /// Write the JSON summary here instead of to standard output.
    #[arg(long, value_name = "JSON")]
    summary: Option<PathBuf>,
    /// List all audio ports and leave.
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("antiphon-device: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), String> {
    if args.play.len() != args.connect_out.len() || args.record.len() != args.connect_in.len() {
        return Err("each --play needs its --connect-out, each --record its --connect-in".into());
    }
    let client = Client::open(&args.name)?;
    if args.list {
        for port in client.ports() {
            println!("{port}");
        }
        return Ok(());
    }
    if args.play.is_empty() && args.record.is_empty() {
        return Err("nothing to play and nothing to record; --help shows how".into());
    }

    let rate_hz = client.sample_rate_hz();
    let takes = args
        .play
        .iter()
        .map(|file| take::read(file, rate_hz))
        .collect::<Result<Vec<_>, _>>()?;
    let longest = takes.iter().map(|take| take[0].len()).max().unwrap_or(0);
    let frames = args
        .seconds
        .map_or(longest, |s| (s * f64::from(rate_hz)).round() as usize);
    if frames == 0 {
        return Err("nothing says how long: give --seconds or a --play that is not empty".into());
    }

    let mut outputs = Vec::new();
    let mut inputs = Vec::new();
    let mut links: Vec<(String, String)> = Vec::new();
    for (index, (take, ports)) in takes.into_iter().zip(&args.connect_out).enumerate() {
        let ports: Vec<&str> = ports.split(',').collect();
        if ports.len() != take.len() {
            let file = args.play[index].display();
            return Err(format!(
                "{file} has {} channels, but {} ports are given",
                take.len(),
                ports.len()
            ));
        }
        for (channel, (samples, target)) in take.into_iter().zip(ports).enumerate() {
            let (port, name) = client.out_port(&format!("play{index}_{channel}"))?;
            links.push((name, target.to_owned()));
            outputs.push((port, samples));
        }
    }
    let mut recorded_channels = Vec::new();
    for (index, ports) in args.connect_in.iter().enumerate() {
        let ports: Vec<&str> = ports.split(',').collect();
        recorded_channels.push(ports.len());
        for (channel, source) in ports.into_iter().enumerate() {
            let (port, name) = client.in_port(&format!("record{index}_{channel}"))?;
            links.push((source.to_owned(), name));
            // Not zero: the pages must be mapped before the audio thread writes to them.
            inputs.push((port, vec![f32::MIN_POSITIVE; frames]));
        }
    }

    let progress = Arc::new(Progress::default());
    let settle_frames = (args.settle_seconds * f64::from(rate_hz)).round() as usize;
    let device = Device {
        outputs,
        inputs,
        run: Run::new(frames, settle_frames, Arc::clone(&progress)),
    };
    let mut began_ms = None;
    let (device, played) = client.run(device, || -> Result<u32, String> {
        for (source, target) in &links {
            connect(&client, source, target, args.wait_seconds)?;
        }
        progress.armed.store(true, Ordering::Release);
        let run_seconds = args.settle_seconds + frames as f64 / f64::from(rate_hz);
        let deadline = Instant::now() + Duration::from_secs_f64(run_seconds * 1.5 + 10.0);
        while !progress.done.load(Ordering::Acquire) {
            if progress.server_gone.load(Ordering::Relaxed) {
                return Err("the JACK server went away during the run".into());
            }
            if Instant::now() > deadline {
                return Err(
                    "the graph does not run: the process callback is not called often enough"
                        .into(),
                );
            }
            std::thread::sleep(Duration::from_millis(5));
            if progress.running.load(Ordering::Relaxed) {
                client.check_rate(rate_hz)?;
            }
            if began_ms.is_none() && progress.running.load(Ordering::Relaxed) {
                let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
                began_ms = since_epoch.ok().map(|since| since.as_millis() as u64);
            }
        }
        client.check_rate(rate_hz)?;
        Ok(client.quantum_frames())
    });
    let quantum_frames = played??;

    let mut channels = device.inputs.into_iter().map(|(_, samples)| samples);
    for (file, count) in args.record.iter().zip(recorded_channels) {
        let recording: Vec<Vec<f32>> = channels.by_ref().take(count).collect();
        take::write(file, rate_hz, &recording)?;
    }
    let summary = serde_json::json!({
        "version": 1,
        "sample_rate_hz": rate_hz,
        "quantum_frames": quantum_frames,
        "frames": frames,
        "began_ms": began_ms,
        "xruns": progress.xruns.load(Ordering::Relaxed),
        "clock_gaps": device.run.clock_gaps,
        "missed_frames": device.run.missed_frames,
        "quantum_changes": device.run.quantum_changes,
    });
    match &args.summary {
        Some(file) => std::fs::write(file, format!("{summary:#}\n"))
            .map_err(|e| format!("{}: {e}", file.display())),
        None => {
            println!("{summary:#}");
            Ok(())
        }
    }
}

/// Links two ports, waiting for them to appear.
fn connect(client: &Client, source: &str, target: &str, wait_seconds: f64) -> Result<(), String> {
    let deadline = Instant::now() + Duration::from_secs_f64(wait_seconds);
    loop {
        match client.connect(source, target) {
            Ok(()) => return Ok(()),
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            Err(problem) => {
                return Err(format!(
                    "{problem}. Ports there are: {}",
                    client.ports().join(" ")
                ));
            }
        }
    }
}
