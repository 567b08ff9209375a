//! The engine in every network, at every loss and every drift of clocks, in virtual time.
//! `cargo test -p antiphon-core --test matrix -- --nocapture` prints the tables; `ANTIPHON_SEED=n` draws other random numbers.

#[path = "support/golden.rs"]
mod golden;
mod support;
#[path = "support/world.rs"]
mod world;

use std::sync::atomic::{AtomicUsize, Ordering};

use antiphon_core::Target;
use antiphon_core::conceal::Concealment;
use antiphon_core::playout::DEFAULT_BUDGET;
use antiphon_netem::{Jitter, LinkConfig, Loss, Profile};
use support::Random;
use world::{
    DeviceConfig, EndpointConfig, Event, QUIET, RATE_HZ, REPORT_HEADING, Report, World, to_ms,
};

/// Random loss instead of the profile's own.
const LOSSES: [Option<f64>; 3] = [None, Some(0.02), Some(0.05)];
/// Of the right endpoint's devices; directions see opposite signs.
const DRIFTS_PPM: [f64; 5] = [0.0, -50.0, 50.0, -200.0, 200.0];
/// The page's choices; a fixed one conceals what it is told to. Those with the default budget are held to the limits below.
const BUFFERS: [(&str, Target, f32); 4] = [
    ("tight", Target::Auto, 0.01),
    ("auto", Target::Auto, DEFAULT_BUDGET),
    ("safe", Target::Auto, 0.000_1),
    ("20 ms", Target::Fixed(960), DEFAULT_BUDGET),
];
const CELL_S: f64 = 60.0;
/// What comes before is judged by the time to settle.
const SETTLE_S: f64 = 2.0;

/// The worst that any cell of a profile may come to. They are what the engine does, with a margin for other seeds: whoever
/// improves it lowers them. The goals stand above each column.
struct Limits {
    profile: &'static str,
    /// Concealed beyond what the link lost. Goal: 0.1 %.
    beyond_percent: f64,
    /// Goal: 0.
    hard_gaps: u64,
    /// The median of the delay beyond the need. Goal: 1 ms.
    excess_ms: f64,
    /// The 99th percentile of the delay beyond the link's.
    p99_ms: f64,
    /// Goal: 2 s.
    settle_s: f64,
    /// In 58 s. Goal: 0 where drift alone asks for them.
    skips: u64,
}

#[rustfmt::skip]
const LIMITS: [Limits; 8] = [
    Limits { profile: "lan", beyond_percent: 0.04, hard_gaps: 0, excess_ms: 2.5, p99_ms: 11.0, settle_s: 1.5, skips: 3 },
    Limits { profile: "fibre", beyond_percent: 0.05, hard_gaps: 0, excess_ms: 3.0, p99_ms: 12.0, settle_s: 1.5, skips: 3 },
    Limits { profile: "cable", beyond_percent: 0.08, hard_gaps: 0, excess_ms: 4.5, p99_ms: 28.0, settle_s: 1.5, skips: 9 },
    Limits { profile: "wifi", beyond_percent: 0.35, hard_gaps: 5, excess_ms: 30.0, p99_ms: 125.0, settle_s: 60.0, skips: 10 },
    Limits { profile: "wifi-bad", beyond_percent: 1.3, hard_gaps: 12, excess_ms: 65.0, p99_ms: 265.0, settle_s: 60.0, skips: 12 },
    Limits { profile: "4g", beyond_percent: 0.25, hard_gaps: 4, excess_ms: 17.0, p99_ms: 95.0, settle_s: 60.0, skips: 9 },
    Limits { profile: "5g", beyond_percent: 0.09, hard_gaps: 2, excess_ms: 8.0, p99_ms: 42.0, settle_s: 3.0, skips: 8 },
    Limits { profile: "leo", beyond_percent: 0.07, hard_gaps: 6, excess_ms: 4.5, p99_ms: 32.0, settle_s: 1.5, skips: 4 },
];

/// An hour of clocks so far apart, wandering by 1 ppm a minute, on "fibre".
struct Hour {
    ppm: f64,
    /// Otherwise packets take equally long.
    has_jitter: bool,
    budget: f32,
    /// A budget that allows it waits for the first stair rather than provide for it, and then may skip it.
    skips: u64,
    concealed_percent: f64,
}

#[rustfmt::skip]
const HOURS: [Hour; 5] = [
    // The goal: not one of either.
    Hour { ppm: 200.0, has_jitter: false, budget: 0.000_1, skips: 0, concealed_percent: 0.0 },
    Hour { ppm: 60.0, has_jitter: false, budget: 0.000_1, skips: 0, concealed_percent: 0.0 },
    Hour { ppm: 0.0, has_jitter: false, budget: 0.000_1, skips: 0, concealed_percent: 0.0 },
    Hour { ppm: 200.0, has_jitter: false, budget: DEFAULT_BUDGET, skips: 2, concealed_percent: 0.001 },
    Hour { ppm: 200.0, has_jitter: true, budget: DEFAULT_BUDGET, skips: 2, concealed_percent: 0.002 },
];

/// Ten minutes of the profile, with a glitch budget, and what may be concealed beyond the loss, in %. Goal: the budget.
const TEN_MINUTES: [(&str, f32, f64); 4] = [
    ("wifi-bad", DEFAULT_BUDGET, 0.1),
    ("wifi-bad", 0.000_1, 0.08),
    ("4g", DEFAULT_BUDGET, 0.1),
    ("4g", 0.000_1, 0.02),
];

fn seed() -> u64 {
    std::env::var("ANTIPHON_SEED")
        .map_or(1, |text| text.parse().expect("ANTIPHON_SEED is a number"))
}

fn profile(name: &str, loss: Option<f64>) -> Profile {
    let mut profile = Profile::find(name).expect("a profile");
    if let Some(share) = loss {
        profile.left_to_right.loss = Loss::Random { share };
        profile.right_to_left.loss = Loss::Random { share };
    }
    profile
}

fn clock(ppm: f64) -> DeviceConfig {
    DeviceConfig { ppm, ..QUIET }
}

/// The results of `work(0)`, `work(1)`, ..., on all processors.
fn in_parallel<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= count {
                return done;
            }
            done.push((n, work(n)));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut done = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        let done = workers.into_iter().map(|w| w.join().expect("no panic"));
        done.flatten().collect::<Vec<_>>()
    });
    done.sort_by_key(|&(n, _)| n);
    done.into_iter().map(|(_, result)| result).collect()
}

/// One direction of a cell.
struct Row {
    buffer: &'static str,
    profile: &'static str,
    loss: Option<f64>,
    ppm: f64,
    way: &'static str,
    report: Report,
    settle_s: Option<f64>,
}

impl Row {
    fn print(&self) {
        let loss = (self.loss).map_or("own".into(), |share| format!("{:.0} %", 100.0 * share));
        let settle = (self.settle_s).map_or("-".into(), |seconds| format!("{seconds:.1}"));
        println!(
            "{:6} {:8} {loss:>5} {:>5} {} {} {settle:>6}",
            self.buffer, self.profile, self.ppm, self.way, self.report,
        );
    }
}

/// Both directions of one cell.
fn cell(
    seed: u64,
    (buffer, target, budget): (&'static str, Target, f32),
    profile_name: &'static str,
    loss: Option<f64>,
    ppm: f64,
) -> [Row; 2] {
    let left = EndpointConfig {
        target,
        budget,
        ..EndpointConfig::default()
    };
    let right = EndpointConfig {
        capture: clock(ppm),
        output: clock(ppm),
        ..left
    };
    let mut world = World::new(seed, profile(profile_name, loss), &[left, right]);
    world.run_until(CELL_S);
    [("up", 0, 1), ("dn", 1, 0)].map(|(way, from, to)| {
        let track = world.track(from, to);
        let report = track.report(SETTLE_S, CELL_S);
        let median = report.delay_median_frames;
        Row {
            buffer,
            profile: profile_name,
            loss,
            ppm,
            way,
            report,
            settle_s: median.and_then(|frames| track.settle_s(0.0, frames)),
        }
    })
}

#[test]
fn every_network_loss_and_drift_is_within_its_limits() {
    let seed = seed();
    let mut cells = Vec::new();
    for buffer in BUFFERS {
        for limits in &LIMITS {
            for loss in LOSSES {
                cells.extend(DRIFTS_PPM.map(|ppm| (buffer, limits.profile, loss, ppm)));
            }
        }
    }
    let mut rows: Vec<Row> = in_parallel(cells.len(), |n| {
        let (buffer, profile, loss, ppm) = cells[n];
        cell(seed + n as u64, buffer, profile, loss, ppm)
    })
    .into_iter()
    .flatten()
    .collect();
    rows.sort_by(|a, b| {
        let beyond = |row: &Row| row.report.beyond_loss_share();
        (a.buffer.cmp(b.buffer)).then(beyond(b).total_cmp(&beyond(a)))
    });
    println!("seed {seed}; shares in %, delays in ms beyond the link's, settling in s");
    println!("buffer profile   loss   ppm    {REPORT_HEADING} settle");
    rows.iter().for_each(Row::print);

    let mut broken = Vec::new();
    println!("the worst of each profile, and its limit");
    for limits in &LIMITS {
        let rows = || {
            rows.iter()
                .filter(|row| row.buffer == "auto" && row.profile == limits.profile)
        };
        let worst = |of: fn(&Row) -> f64| rows().map(of).fold(f64::MIN, f64::max);
        let figures = [
            (
                "beyond %",
                worst(|row| 100.0 * row.report.beyond_loss_share()),
                limits.beyond_percent,
            ),
            (
                "hard gaps",
                worst(|row| row.report.hard_gaps as f64),
                limits.hard_gaps as f64,
            ),
            (
                "excess ms",
                worst(|row| row.report.excess_frames().map_or(f64::INFINITY, to_ms)),
                limits.excess_ms,
            ),
            (
                "p99 ms",
                worst(|row| row.report.delay_p99_frames.map_or(f64::INFINITY, to_ms)),
                limits.p99_ms,
            ),
            (
                "settle s",
                worst(|row| row.settle_s.unwrap_or(f64::INFINITY)),
                limits.settle_s,
            ),
            (
                "skips",
                worst(|row| row.report.skips as f64),
                limits.skips as f64,
            ),
        ];
        print!("{:8}", limits.profile);
        for (name, found, limit) in figures {
            print!("  {name} {found:.3} ({limit})");
            if found > limit {
                broken.push(format!("{}: {name} {found:.3} > {limit}", limits.profile));
            }
        }
        println!();
    }
    let missed = |row: &&Row| row.buffer == "auto" && row.report.beyond_loss_share() > 0.001;
    println!(
        "{} of {} cells with an automatic target conceal more than 0.1 % beyond the loss",
        rows.iter().filter(missed).count(),
        rows.iter().filter(|row| row.buffer == "auto").count(),
    );
    println!("means over the networks: buffer, beyond the loss in %, median delay in ms");
    let means = BUFFERS.map(|(buffer, ..)| {
        let mean = |of: fn(&Row) -> f64| {
            let rows = rows.iter().filter(|row| row.buffer == buffer);
            let (sum, count) =
                rows.fold((0.0, 0.0), |(sum, count), row| (sum + of(row), count + 1.0));
            sum / count
        };
        let beyond = mean(|row| 100.0 * row.report.beyond_loss_share());
        let delay_ms = mean(|row| row.report.delay_median_frames.map_or(0.0, to_ms));
        println!("{buffer:6} {beyond:.3} {delay_ms:.1}");
        (beyond, delay_ms)
    });
    for (tighter, safer) in means.iter().zip(&means[1..3]) {
        let is_in_order = tighter.0 >= safer.0 && tighter.1 <= safer.1;
        if !is_in_order {
            broken.push(format!("{tighter:?} is no tighter than {safer:?}"));
        }
    }
    assert!(broken.is_empty(), "ANTIPHON_SEED={seed}: {broken:#?}");
}

#[test]
fn at_5_percent_of_loss_and_100_ms_rtt_the_delay_is_the_links_and_12_ms() {
    let endpoint = EndpointConfig::default();
    let found = in_parallel(8, |n| {
        let network = profile("rtt-100", Some(0.05));
        let mut world = World::new(seed() + n as u64, network, &[endpoint, endpoint]);
        world.run_until(CELL_S);
        [(0, 1), (1, 0)].map(|(from, to)| world.track(from, to).report(SETTLE_S, CELL_S))
    });
    for report in found.into_iter().flatten() {
        let p99_ms = report.delay_p99_frames.map(to_ms).expect("plays");
        println!("{report}");
        assert!(p99_ms <= 12.0, "{report}");
        assert!(report.beyond_loss_share() <= 0.001, "{report}");
    }
}

#[test]
fn an_hour_of_clocks_apart() {
    let found = in_parallel(2 * HOURS.len(), |n| {
        let hour = &HOURS[n / 2];
        let left = EndpointConfig {
            packet_frames: 240,
            budget: hour.budget,
            ..EndpointConfig::default()
        };
        let wandering = DeviceConfig {
            wander_ppm: 2.5,
            ..clock([-hour.ppm, hour.ppm][n % 2])
        };
        let right = EndpointConfig {
            capture: wandering,
            output: wandering,
            ..left
        };
        let mut network = profile("fibre", Some(0.0));
        if !hour.has_jitter {
            network.left_to_right.jitter = Jitter::None {};
            network.right_to_left.jitter = Jitter::None {};
        }
        let mut world = World::new(seed() + n as u64, network, &[left, right]);
        world.run_until(3_600.0);
        [(0, 1), (1, 0)].map(|(from, to)| world.track(from, to).report(SETTLE_S, 3_600.0))
    });
    for (n, reports) in found.into_iter().enumerate() {
        let hour = &HOURS[n / 2];
        for report in reports {
            println!(
                "{} ppm, jitter {}, budget {}: {report}",
                hour.ppm, hour.has_jitter, hour.budget
            );
            assert_eq!(
                (report.lost_frames, report.hard_gaps, report.resyncs),
                (0, 0, 0)
            );
            assert!(report.skips <= hour.skips, "{report}");
            assert!(
                100.0 * report.concealed_share() <= hour.concealed_percent,
                "{report}"
            );
            let spread = report.delay_p99_frames.zip(report.delay_median_frames);
            assert!(
                spread.is_some_and(|(p99, median)| to_ms(p99 - median) < 5.0),
                "{report}"
            );
        }
    }
}

#[test]
fn ten_minutes_of_bad_networks() {
    let found = in_parallel(TEN_MINUTES.len(), |n| {
        let (name, budget, _) = TEN_MINUTES[n];
        let endpoint = EndpointConfig {
            budget,
            ..EndpointConfig::default()
        };
        let network = profile(name, None);
        let mut world = World::new(seed() + n as u64, network, &[endpoint, endpoint]);
        world.run_until(600.0);
        [(0, 1), (1, 0)].map(|(from, to)| world.track(from, to).report(SETTLE_S, 600.0))
    });
    for ((name, budget, limit), reports) in TEN_MINUTES.into_iter().zip(found) {
        for report in reports {
            let percent = 100.0 * report.beyond_loss_share();
            println!("{name}, budget {budget}: {percent:.3} % beyond the loss, {report}");
            assert!(percent <= limit, "{name}: {percent} %, {report}");
        }
    }
}

/// A machine that stands still now and then: seconds from one time to the next in the mean, the longest, frames captured at once, and the median of the delay.
const STANDSTILLS: [(f64, f64, usize, f64); 5] = [
    (5.0, 8.0, 128, 6.0),
    (10.0, 20.0, 128, 9.0),
    (20.0, 30.0, 128, 6.0),
    (60.0, 50.0, 128, 6.0),
    (20.0, 30.0, 336, 12.0),
];

#[test]
fn what_the_budget_allows_to_standstills_is_no_delay() {
    let found = in_parallel(STANDSTILLS.len(), |n| {
        let (every_s, longest_ms, capture, _) = STANDSTILLS[n];
        let endpoint = EndpointConfig {
            capture: DeviceConfig {
                burst_frames: capture,
                ..QUIET
            },
            ..EndpointConfig::default()
        };
        let mut random = Random(seed() + n as u64);
        let (mut events, mut at_s) = (Vec::new(), SETTLE_S);
        while at_s < 600.0 {
            let length_ms = 2.0 + (longest_ms - 2.0) * random.unit();
            events.push((at_s, Event::Hold(0, 1, length_ms)));
            at_s -= every_s * (1.0 - random.unit()).ln();
        }
        let network = profile("lan", Some(0.0));
        let mut world = World::new(seed() + n as u64, network, &[endpoint, endpoint]);
        world.play(&events, 600.0);
        world.track(0, 1).report(SETTLE_S, 600.0)
    });
    for ((every_s, longest_ms, capture, most_ms), report) in STANDSTILLS.into_iter().zip(found) {
        println!("{longest_ms} ms every {every_s} s, capture {capture}: {report}");
        assert!(report.beyond_loss_share() <= 0.001, "{report}");
        let median_ms = report.delay_median_frames.map(to_ms);
        assert!(median_ms.is_some_and(|ms| ms <= most_ms), "{report}");
    }
}

#[test]
fn bursts_of_capture_and_rendering_cost_their_length_and_no_frame() {
    let bursts = [128, 256, 512, 1_024];
    let cells: Vec<(usize, usize)> = [128, 1_024]
        .into_iter()
        .flat_map(|capture| bursts.map(|render| (capture, render)))
        .collect();
    let found = in_parallel(cells.len(), |n| {
        let (capture, render) = cells[n];
        let device = |burst_frames| DeviceConfig {
            burst_frames,
            scheduling_ms: 2.0,
            ..QUIET
        };
        let endpoint = EndpointConfig {
            capture: device(capture),
            output: device(render),
            ..EndpointConfig::default()
        };
        let network = profile("fibre", Some(0.0));
        let mut world = World::new(seed() + n as u64, network, &[endpoint, endpoint]);
        world.run_until(CELL_S);
        world.track(0, 1).report(SETTLE_S, CELL_S)
    });
    for ((capture, render), report) in cells.into_iter().zip(found) {
        println!("capture {capture}, render {render}: {report}");
        assert!(report.beyond_loss_share() <= 0.001, "{report}");
        let median = report.delay_median_frames.expect("plays") as usize;
        // A packet and 2 ms more, with the granularity of the spread.
        assert!(median <= capture + render + 128 + 384, "{report}");
    }
}

#[test]
fn the_end_of_a_block_waits_for_no_other_block() {
    // Two packets and a part of one, and three.
    let [uneven, even] = [300, 384].map(|burst_frames| {
        let endpoint = EndpointConfig {
            capture: DeviceConfig {
                burst_frames,
                ..QUIET
            },
            ..EndpointConfig::default()
        };
        let mut world = World::new(seed(), profile("lan", None), &[endpoint, endpoint]);
        world.run_until(CELL_S);
        let report = world.track(0, 1).report(SETTLE_S, CELL_S);
        println!("blocks of {burst_frames}: {report}");
        report.delay_median_frames.expect("plays")
    });
    assert!(uneven + 32 < even, "{uneven}, {even}");
}

/// What befalls a stream at 20 s, and what may be left of it.
struct Trouble {
    name: &'static str,
    events: Vec<(f64, Event)>,
    /// What it takes away by itself.
    missing_ms: f64,
    /// When the delay is to be what it was, but for 8 ms.
    over_s: f64,
}

fn troubles() -> Vec<Trouble> {
    let link = |name: &str, loss| profile(name, loss).left_to_right;
    let longer = LinkConfig {
        delay_ms: 25.0,
        ..link("fibre", Some(0.0))
    };
    let trouble = |name, missing_ms, over_s, events| Trouble {
        name,
        events,
        missing_ms,
        over_s,
    };
    vec![
        trouble(
            "5 % of loss for 5 s",
            0.0,
            10.0,
            vec![
                (20.0, Event::Link(0, 1, link("fibre", Some(0.05)))),
                (25.0, Event::Link(0, 1, link("fibre", Some(0.0)))),
            ],
        ),
        trouble(
            "bad Wi-Fi for 5 s",
            300.0,
            25.0,
            vec![
                (20.0, Event::Link(0, 1, link("wifi-bad", Some(0.0)))),
                (25.0, Event::Link(0, 1, link("fibre", Some(0.0)))),
            ],
        ),
        trouble(
            "a path longer by 20 ms",
            20.0,
            20.0,
            vec![(20.0, Event::Link(0, 1, longer))],
        ),
        trouble(
            "held for 80 ms",
            80.0,
            20.0,
            vec![(20.0, Event::Hold(0, 1, 80.0))],
        ),
        trouble(
            "held for 1 s",
            1_000.0,
            20.0,
            vec![(20.0, Event::Hold(0, 1, 1_000.0))],
        ),
        trouble(
            "capture paused for 1 s",
            1_000.0,
            20.0,
            vec![(20.0, Event::Pause(0, 1_000.0))],
        ),
        trouble(
            "output stood still for 5 ms",
            0.0,
            5.0,
            vec![(20.0, Event::Slip(1, 5.0))],
        ),
        trouble(
            "output stood still for 50 ms",
            0.0,
            5.0,
            vec![(20.0, Event::Slip(1, 50.0))],
        ),
        trouble(
            "sender restarted",
            100.0,
            5.0,
            vec![(20.0, Event::Restart(0))],
        ),
        trouble(
            "clocks jump apart",
            0.0,
            20.0,
            vec![(20.0, Event::Clocks(0, 100.0, 100.0))],
        ),
    ]
}

#[test]
fn troubles_cost_what_they_take_and_pass() {
    let troubles = troubles();
    let endpoint = EndpointConfig::default();
    let found = in_parallel(troubles.len(), |n| {
        let network = profile("fibre", Some(0.0));
        let mut world = World::new(seed() + n as u64, network, &[endpoint, endpoint]);
        world.play(&troubles[n].events, 60.0);
        let (track, over_s) = (world.track(0, 1), 20.0 + troubles[n].over_s);
        [(10.0, 20.0), (20.0, over_s), (over_s, 60.0)].map(|(from, to)| track.report(from, to))
    });
    for (trouble, [before, during, after]) in troubles.iter().zip(found) {
        println!(
            "{}\n  before {before}\n  during {during}\n  after {after}",
            trouble.name
        );
        let beyond = during.concealed_frames as f64 - during.lost_frames as f64;
        let beyond_ms = 1_000.0 * beyond / RATE_HZ;
        assert!(
            beyond_ms <= trouble.missing_ms + 30.0,
            "{}: {beyond_ms}",
            trouble.name
        );
        assert!(
            after.beyond_loss_share() <= 0.001,
            "{}: {after}",
            trouble.name
        );
        let longer = after
            .excess_frames()
            .zip(before.excess_frames())
            .map(|(a, b)| a - b);
        assert!(
            longer.is_some_and(|frames| to_ms(frames) <= 8.0),
            "{}: {longer:?}",
            trouble.name
        );
    }
}

#[test]
fn many_play_together_and_who_comes_and_goes_changes_nothing_for_the_others() {
    let endpoint = |n: usize| EndpointConfig {
        capture: DeviceConfig {
            burst_frames: [128, 480, 1_024][n % 3],
            ..clock(40.0 * n as f64 - 100.0)
        },
        output: DeviceConfig {
            burst_frames: [128, 512][n % 2],
            ..clock(100.0 - 40.0 * n as f64)
        },
        ..EndpointConfig::default()
    };
    let band: Vec<EndpointConfig> = (0..5).map(endpoint).collect();
    let play = |events: &[(f64, Event)]| {
        let mut world = World::new(seed(), profile("fibre", None), &band);
        world.play(events, 30.0);
        world
    };
    let alone = play(&[]);
    let visited = play(&[
        (5.0, Event::Join(endpoint(5))),
        (12.0, Event::Leave(5)),
        (15.0, Event::Join(endpoint(6))),
    ]);
    for from in 0..5 {
        for to in (0..5).filter(|&to| to != from) {
            let report = alone.track(from, to).report(SETTLE_S, 30.0);
            println!("{from} to {to}: {report}");
            assert!(
                report.beyond_loss_share() <= 0.0015,
                "{from} to {to}: {report}"
            );
            assert_eq!(report.resyncs, 0);
            assert!(
                alone.track(from, to) == visited.track(from, to),
                "{from} to {to}"
            );
        }
        let guest = visited.track(6, from).report(17.0, 30.0);
        assert!(guest.beyond_loss_share() <= 0.0015, "6 to {from}: {guest}");
    }
}

#[test]
fn delays_from_the_players_figures_are_those_that_tags_tell() {
    for (name, _) in [("fibre", 0), ("wifi-bad", 0)] {
        // A prediction may look like a tag.
        let endpoint = EndpointConfig {
            concealment: Concealment::Silence,
            ..EndpointConfig::default()
        };
        let mut world = World::new(seed(), profile(name, None), &[endpoint, endpoint]);
        world.reads_tags = true;
        world.run_until(60.0);
        let track = world.track(0, 1);
        println!(
            "{name}: {} agree, {} do not",
            track.agreements, track.contradictions
        );
        assert!(track.agreements > 5_000);
        assert_eq!(track.contradictions, 0);
    }
}

#[test]
fn golden_runs_are_what_they_were() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors/sim.json");
    let text = std::fs::read_to_string(path).expect("vectors/sim.json");
    let golden: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let found = golden::sim_vectors();
    let runs = |value: &serde_json::Value| value["runs"].as_array().expect("runs").clone();
    for (mut golden, mut found) in runs(&golden).into_iter().zip(runs(&found)) {
        // Thousands of characters.
        let are_alike = golden["operations"].take() == found["operations"].take();
        assert_eq!(golden, found, "if this is meant: make vectors");
        assert!(are_alike, "other operations: {}", golden["name"]);
    }
    assert!(golden == found, "other runs than before");
}
