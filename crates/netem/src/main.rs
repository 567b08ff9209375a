//! The `antiphon-netem` command.

use std::io::{self, BufRead, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use antiphon_netem::calibration::{Case, DriverError, Row};
use antiphon_netem::{Overrides, Plan, Profile};
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;
use serde_json::json;

const TEACH: &str = r#"
Run a browser on either side (as root; NETNS is in the line that says "ready"):
  antiphon-netem run --profile wifi
  nsenter --net=NETNS firefox

While it runs, each line of input is answered by one line of output:
  {"profile":"4g","loss":0.02}     another network; "delayMs" and "seed" too
  {"plan":{"leftToRight":[...]}}   another plan
  {"stats":true}                   what became of the packets so far
It ends, and both sides with it, when its input ends.

A plan is JSON; what is left out is off (`antiphon-netem profiles`):
  {"seed": 1,
   "leftToRight": [
     {"atMs": 0, "link": {"delayMs": 20, "rateBitsPerSecond": 4000000}},
     {"atMs": 30000, "link": {"loss": {"kind": "random", "share": 0.05}}}],
   "rightToLeft": [
     {"atMs": 0, "link": {"jitter": {"kind": "exponential", "meanMs": 2}}}]}
A link: delayMs jitter jitterHoldMs reorder loss duplicateShare
        rateBitsPerSecond queueBytes
jitter: none | uniform maxMs | normal meanMs sdMs | exponential meanMs
        | pareto scaleMs shape maxMs
loss:   none | random share | gilbertElliott enterBad leaveBad lossGood lossBad

Does it do what it says? (tun: as root, 21 s for each network)
  antiphon-netem calibrate --driver virtual
  antiphon-netem calibrate --driver tun --profile wifi --profile overflow
"#;

/// Emulates a network between two network namespaces, and proves that it does.
#[derive(Parser)]
#[command(
    version,
    arg_required_else_help = true,
    max_term_width = 110,
    after_help = TEACH
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Joins two network namespaces, 10.77.0.1 (left, the person at home) and 10.77.0.2 (right); Linux, root
    Run(Run),
    /// Lists the networks that have a name, with their figures, as JSON
    Profiles,
    /// Compares what is delivered with what formulas say, as JSON; exit code 1 if they differ
    Calibrate(Calibrate),
}

#[derive(Args)]
struct Run {
    #[command(flatten)]
    network: Network,
    /// Random loss instead of the profile's, both ways
    #[arg(long, value_name = "SHARE")]
    loss: Option<f64>,
    /// Delay instead of the profile's, each way
    #[arg(long, value_name = "MS")]
    delay_ms: Option<f64>,
    /// The same seed loses the same packets
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct Network {
    /// A network by name
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// A file with a plan
    #[arg(long, value_name = "FILE", conflicts_with_all = ["loss", "delay_ms", "seed"])]
    plan: Option<PathBuf>,
}

#[derive(Args)]
struct Calibrate {
    /// What moves the packets
    #[arg(long, value_enum)]
    driver: Driver,
    /// Each way; 5,000 a second
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1_000..=10_000_000))]
    packets: u32,
    /// Only these; repeatable. Beside the profiles: reordering, duplicates, bursts, overflow
    #[arg(long, value_name = "NAME")]
    profile: Vec<String>,
    /// Of the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Driver {
    Virtual,
    Tun,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => run(&args).map(|()| true),
        Command::Profiles => say(&Profile::all(), true).map(|()| true),
        Command::Calibrate(args) => calibrate(&args),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("antiphon-netem: {message}");
            ExitCode::FAILURE
        }
    }
}

fn say(answer: &impl Serialize, pretty: bool) -> Result<(), String> {
    let text = if pretty {
        serde_json::to_string_pretty(answer)
    } else {
        serde_json::to_string(answer)
    };
    let text = text.map_err(|error| error.to_string())?;
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .map_err(|error| error.to_string())
}

fn find(name: &str) -> Result<Profile, String> {
    Profile::find(name).ok_or_else(|| {
        format!("there is no profile {name:?}: `antiphon-netem profiles` lists them")
    })
}

fn plan_of(name: &str, overrides: Overrides, seed: u64) -> Result<Plan, String> {
    find(name)?
        .plan(overrides, seed)
        .map_err(|error| error.to_string())
}

/// Longest line on standard input; a plan of 10,000 steps fits.
const MAX_LINE_BYTES: u64 = 8 << 20;

fn run(args: &Run) -> Result<(), String> {
    let overrides = Overrides {
        loss_share: args.loss,
        delay_ms: args.delay_ms,
    };
    let plan = match (&args.network.profile, &args.network.plan) {
        (Some(name), _) => plan_of(name, overrides, args.seed)?,
        (None, Some(file)) => {
            let text = std::fs::read_to_string(file)
                .map_err(|error| format!("{}: {error}", file.display()))?;
            Plan::from_json(&text).map_err(|error| format!("{}: {error}", file.display()))?
        }
        (None, None) => return Err("give --profile or --plan".to_owned()),
    };
    let network = linux::start(&plan)?;
    say(&linux::ready(&network), false)?;
    let mut input = io::stdin().lock();
    loop {
        let mut line = Vec::new();
        let read = (&mut input)
            .take(MAX_LINE_BYTES)
            .read_until(b'\n', &mut line);
        if read.map_err(|error| format!("standard input: {error}"))? == 0 {
            return Ok(());
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        let answer = linux::obey(&network, &line, args.seed)
            .unwrap_or_else(|error| json!({ "error": error }));
        say(&answer, false)?;
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use super::{Overrides, Plan, plan_of};
    use antiphon_netem::tun::Network;
    use serde::Deserialize;
    use serde_json::{Value, json};

    /// A line on standard input.
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Line {
        profile: Option<String>,
        loss: Option<f64>,
        delay_ms: Option<f64>,
        seed: Option<u64>,
        plan: Option<Plan>,
        stats: Option<bool>,
    }

    pub(super) fn start(plan: &Plan) -> Result<Network, String> {
        Network::new(plan).map_err(|error| error.to_string())
    }

    pub(super) fn ready(network: &Network) -> Value {
        json!({ "ready": { "left": network.left(), "right": network.right() } })
    }

    pub(super) fn obey(network: &Network, line: &[u8], seed: u64) -> Result<Value, String> {
        let line: Line = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        let overrides = Overrides {
            loss_share: line.loss,
            delay_ms: line.delay_ms,
        };
        let overridden = line.loss.is_some() || line.delay_ms.is_some() || line.seed.is_some();
        let plan = match (line.profile, line.plan, line.stats) {
            (Some(name), None, None) => plan_of(&name, overrides, line.seed.unwrap_or(seed))?,
            (None, Some(plan), None) if !overridden => plan,
            (None, None, Some(true)) if !overridden => {
                return Ok(json!({ "stats": network.stats() }));
            }
            _ => {
                return Err(
                    "give one of profile (with loss, delayMs and seed at will), plan, and stats: true"
                        .to_owned(),
                );
            }
        };
        network.set_plan(&plan).map_err(|error| error.to_string())?;
        Ok(json!({ "ok": true }))
    }
}

#[cfg(not(target_os = "linux"))]
mod linux {
    use super::Plan;
    use serde_json::Value;

    pub(super) enum Network {}

    pub(super) fn start(_: &Plan) -> Result<Network, String> {
        Err("real packets need Linux: network namespaces and TUN devices".to_owned())
    }

    pub(super) fn ready(network: &Network) -> Value {
        match *network {}
    }

    pub(super) fn obey(network: &Network, _: &[u8], _: u64) -> Result<Value, String> {
        match *network {}
    }
}

fn calibrate(args: &Calibrate) -> Result<bool, String> {
    let mut cases: Vec<Case> = Profile::all()
        .iter()
        .map(|profile| Case::of_profile(profile, args.packets))
        .chain(Case::beyond_profiles(args.packets))
        .collect();
    for name in &args.profile {
        if !cases.iter().any(|case| case.name == *name) {
            find(name)?;
        }
    }
    if !args.profile.is_empty() {
        cases.retain(|case| args.profile.contains(&case.name));
    }
    let mut rows: Vec<Row> = Vec::new();
    let mut lateness = serde_json::Map::new();
    for case in &cases {
        let exact = case
            .run_virtual(args.seed)
            .map_err(|error| error.to_string())?;
        match args.driver {
            Driver::Virtual => rows.extend(case.judge(&exact, &exact, DriverError::default())),
            #[cfg(target_os = "linux")]
            Driver::Tun => {
                let run = case.run_tun(args.seed).map_err(|error| error.to_string())?;
                rows.extend(case.judge(&run.seen, &exact, DriverError::TUN));
                lateness.insert(case.name.clone(), json!(run.stats));
            }
            #[cfg(not(target_os = "linux"))]
            Driver::Tun => return linux::start(&case.plan(args.seed)).map(|_| false),
        }
    }
    let ok = rows.iter().all(|row| row.ok);
    say(
        &json!({ "ok": ok, "packets": args.packets, "seed": args.seed, "rows": rows, "stats": lateness }),
        true,
    )?;
    Ok(ok)
}
