//! Clocks that run apart: how well the drift is known, and how cleanly it is followed.
//! `cargo test -p antiphon-core --test drift -- --nocapture` prints the figures.

mod support;

use antiphon_core::SampleRate;
use antiphon_core::drift::{Drift, DriftEstimator};
use antiphon_core::resample::{HALF, Kernel, Resampler};
use support::Random;

const RATE_HZ: f64 = 48_000.0;
const MS: f64 = RATE_HZ / 1_000.0;

// The estimator.

/// How long a packet takes, beyond the least.
#[derive(Clone, Copy, Debug)]
enum Jitter {
    /// Mean, in frames.
    Exponential(f64),
    /// Most, in frames.
    Uniform(f64),
    /// Uniform, plus a queue that fills now and then (about once in 3 s) by so many frames at most, and drains at a fifth of real time.
    Queue(f64, f64),
    /// Pareto, of shape 1.5: no variance. Scale in frames.
    Pareto(f64),
}

/// Something that moves the delay once: when (s), by how many frames.
#[derive(Clone, Copy, Debug)]
struct Step {
    at_s: f64,
    frames: f64,
}

#[derive(Clone, Copy, Debug)]
struct Conditions<'a> {
    ppm: f64,
    /// Change of `ppm` per minute.
    wander: f64,
    packet: u64,
    capture_burst: u64,
    render_burst: u64,
    /// Longest that either's thread may be late, uniform, in frames.
    scheduling: f64,
    jitter: Jitter,
    loss: f64,
    steps: &'a [Step],
    /// Neither capture nor packets, from and to (s).
    pause: Option<(f64, f64)>,
    /// Whether the host says in which millisecond packets came.
    is_timed: bool,
    /// Share of the packets that come by a decoder, which nobody times and which takes 400 frames.
    decoded: f64,
}

const QUIET: Conditions<'static> = Conditions {
    ppm: 200.0,
    wander: 0.0,
    packet: 64,
    capture_burst: 128,
    render_burst: 128,
    scheduling: 0.0,
    jitter: Jitter::Exponential(MS),
    loss: 0.0,
    steps: &[],
    pause: None,
    is_timed: false,
    decoded: 0.0,
};

/// Clocks that agree, and jitter so narrow that all delays are alike.
const ALIKE: Conditions<'static> = Conditions {
    ppm: 0.0,
    packet: 128,
    jitter: Jitter::Uniform(0.1 * MS),
    ..QUIET
};

/// What an estimator says at each of `times_s`, and what is true then.
fn estimates(conditions: Conditions<'_>, seed: u64, times_s: &[f64]) -> Vec<(Option<Drift>, f64)> {
    let mut random = Random(seed);
    let mut estimator = DriftEstimator::new(SampleRate::Hz48000);
    let render_phase = random.unit() * conditions.render_burst as f64;
    let base = 1_000.0 + random.unit() * 5_000.0;
    let end_s = times_s.iter().fold(0.0, |a: f64, &b| a.max(b));
    let mut arrivals: Vec<(f64, Option<u64>, u64)> = Vec::new();
    let (mut captured, mut sent_until, mut now, mut queue) = (0, 0, 0.0, 0.0);
    while now < end_s * RATE_HZ {
        let rate_ppm = conditions.ppm + conditions.wander * now / RATE_HZ / 60.0;
        let burst = conditions.capture_burst as f64;
        let length = burst / (1.0 + rate_ppm * 1e-6);
        now += length;
        captured += conditions.capture_burst;
        let now_s = now / RATE_HZ;
        if conditions
            .pause
            .is_some_and(|(from, to)| (from..to).contains(&now_s))
        {
            sent_until = captured;
            continue;
        }
        if let Jitter::Queue(_, most) = conditions.jitter {
            queue = f64::max(0.0, queue - length / 5.0);
            if random.unit() < length / RATE_HZ / 3.0 {
                queue = random.unit() * most;
            }
        }
        let stepped: f64 = conditions
            .steps
            .iter()
            .filter(|step| step.at_s <= now_s)
            .map(|step| step.frames)
            .sum();
        let sent = now + random.unit() * conditions.scheduling;
        while sent_until + conditions.packet <= captured {
            let timestamp = sent_until;
            sent_until += conditions.packet;
            if random.unit() < conditions.loss {
                continue;
            }
            let unit = random.unit();
            let jitter = match conditions.jitter {
                Jitter::Exponential(mean) => -mean * (1.0 - unit).ln(),
                Jitter::Uniform(most) => unit * most,
                Jitter::Queue(most, _) => unit * most + queue,
                Jitter::Pareto(scale) => {
                    (scale * ((1.0 - unit).powf(-1.0 / 1.5) - 1.0)).min(RATE_HZ)
                }
            };
            let is_decoded = conditions.decoded > 0.0 && random.unit() < conditions.decoded;
            let decoding = if is_decoded { 400.0 } else { 0.0 };
            let at = sent + base + stepped + jitter + decoding;
            let timed =
                (conditions.is_timed && !is_decoded).then_some(((at / MS).floor() * MS) as u64);
            arrivals.push((at, timed, timestamp));
        }
    }
    // What arrives between two bursts of rendering is seen at the second.
    let burst = conditions.render_burst as f64;
    for arrival in &mut arrivals {
        let late = random.unit() * conditions.scheduling;
        arrival.0 = ((arrival.0 + late - render_phase) / burst).ceil() * burst;
    }
    arrivals.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut said = Vec::new();
    let mut next = 0;
    for &time_s in times_s {
        while next < arrivals.len() && arrivals[next].0 <= time_s * RATE_HZ {
            let (at, timed, timestamp) = arrivals[next];
            estimator.add(
                at as u64,
                timed,
                7_000_000_000 + timestamp,
                conditions.packet as u16,
            );
            next += 1;
        }
        let truth = conditions.ppm + conditions.wander * time_s / 60.0;
        said.push((estimator.estimate(), truth));
    }
    said
}

/// What the estimator said in many runs.
#[derive(Debug)]
struct Summary {
    /// Mean square error's root, and the errors that 95 % and all are below, in ppm.
    rms: f64,
    p95: f64,
    worst: f64,
    /// Median of the error claimed.
    claimed: f64,
    /// Share of the estimates farther from the truth than claimed.
    dishonest: f64,
    known: f64,
}

fn summarise(said: &[(Option<Drift>, f64)]) -> Summary {
    let known: Vec<_> = said
        .iter()
        .filter_map(|(drift, truth)| drift.map(|drift| (drift, truth)))
        .collect();
    let mut errors: Vec<f64> = known
        .iter()
        .map(|(drift, truth)| (f64::from(drift.ppm) - *truth).abs())
        .collect();
    let mut claimed: Vec<f64> = known
        .iter()
        .map(|(drift, _)| f64::from(drift.error_ppm))
        .collect();
    let dishonest = errors
        .iter()
        .zip(&claimed)
        .filter(|(error, claimed)| error > claimed)
        .count();
    errors.sort_by(f64::total_cmp);
    claimed.sort_by(f64::total_cmp);
    let count = errors.len().max(1) as f64;
    let at = |values: &[f64], share: f64| {
        values
            .get(((values.len() as f64 - 1.0) * share) as usize)
            .copied()
            .unwrap_or(f64::NAN)
    };
    Summary {
        rms: (errors.iter().map(|error| error * error).sum::<f64>() / count).sqrt(),
        p95: at(&errors, 0.95),
        worst: at(&errors, 1.0),
        claimed: at(&claimed, 0.5),
        dishonest: dishonest as f64 / count,
        known: known.len() as f64 / said.len() as f64,
    }
}

const SEEDS: u64 = 40;
const TIMES_S: [f64; 5] = [7.0, 10.0, 30.0, 60.0, 120.0];

/// Errors are honest: not less than the truth in more than one case of twenty. Returns the RMS error at each of [`TIMES_S`].
fn check(name: &str, conditions: Conditions<'_>) -> [f64; 5] {
    let runs: Vec<_> = (1..=SEEDS)
        .map(|seed| estimates(conditions, seed * 7_919, &TIMES_S))
        .collect();
    let all: Vec<_> = runs.iter().flatten().copied().collect();
    let rms = std::array::from_fn(|n| {
        let summary = summarise(&runs.iter().map(|run| run[n]).collect::<Vec<_>>());
        println!(
            "{name}, {} s: rms {:.1} ppm, 95 % {:.1}, worst {:.1}; claimed {:.1}, too little in {:.1} %; known {:.0} %",
            TIMES_S[n],
            summary.rms,
            summary.p95,
            summary.worst,
            summary.claimed,
            100.0 * summary.dishonest,
            100.0 * summary.known
        );
        // 5 %, and what chance adds in so few runs.
        assert!(
            summary.dishonest <= 0.1,
            "{name}, {} s: {summary:?}",
            TIMES_S[n]
        );
        summary.rms
    });
    let all = summarise(&all);
    assert!(all.dishonest <= 0.05, "{name}: {all:?}");
    assert!(all.known >= 0.95, "{name}: {all:?}");
    rms
}

/// Delays are on a grid of 128 frames, 2.7 ms, and jitter is narrower: the first stairs have to pass.
#[test]
fn drift_is_known_within_3_ppm_in_a_minute() {
    let cases = [
        ("1 ms", QUIET),
        (
            "1 ms, packets of 128",
            Conditions {
                packet: 128,
                ..QUIET
            },
        ),
        (
            "1 ms, uniform",
            Conditions {
                jitter: Jitter::Uniform(MS),
                ..QUIET
            },
        ),
        (
            "0.1 ms",
            Conditions {
                jitter: Jitter::Uniform(0.1 * MS),
                ..QUIET
            },
        ),
        (
            "0.1 ms, packets of 240 out of blocks of 128",
            Conditions {
                packet: 240,
                jitter: Jitter::Uniform(0.1 * MS),
                ..QUIET
            },
        ),
        (
            "5 ms",
            Conditions {
                jitter: Jitter::Exponential(5.0 * MS),
                ..QUIET
            },
        ),
        (
            "queues of 30 ms",
            Conditions {
                jitter: Jitter::Queue(MS, 30.0 * MS),
                ..QUIET
            },
        ),
        (
            "Pareto",
            Conditions {
                jitter: Jitter::Pareto(MS),
                ..QUIET
            },
        ),
        (
            "capture in 1,024",
            Conditions {
                capture_burst: 1_024,
                ..QUIET
            },
        ),
        (
            "capture in 1,024, threads 2 ms late",
            Conditions {
                capture_burst: 1_024,
                scheduling: 2.0 * MS,
                ..QUIET
            },
        ),
        (
            "rendering in 1,024",
            Conditions {
                render_burst: 1_024,
                ..QUIET
            },
        ),
        (
            "capture in 480, rendering in 512",
            Conditions {
                packet: 96,
                capture_burst: 480,
                render_burst: 512,
                ..QUIET
            },
        ),
        (
            "wander of 1 ppm/min",
            Conditions {
                wander: 1.0,
                ..QUIET
            },
        ),
        (
            "5 % lost",
            Conditions {
                loss: 0.05,
                ..QUIET
            },
        ),
        (
            "a pause",
            Conditions {
                pause: Some((20.0, 26.0)),
                ..QUIET
            },
        ),
    ];
    for (name, conditions) in cases {
        let rms = check(name, conditions);
        assert!(
            rms[2] < 20.0 && rms[3] < 3.0 && rms[4] < 2.0,
            "{name}: {rms:?}"
        );
    }
}

#[test]
fn on_a_fine_grid_drift_is_known_within_20_ppm_in_ten_seconds() {
    for (name, packet, burst) in [
        ("64 frames", 64, 64),
        ("32 frames", 32, 32),
        ("96 in 480", 96, 480),
    ] {
        let conditions = Conditions {
            packet,
            capture_burst: burst,
            render_burst: if burst == 480 { 512 } else { burst },
            ..QUIET
        };
        let rms = check(name, conditions);
        assert!(rms[1] < 20.0 && rms[3] < 1.5, "{name}: {rms:?}");
    }
}

/// What the grids hide is seen by who looks at a clock, be it one of milliseconds.
#[test]
fn where_arrivals_are_timed_drift_is_known_within_5_ppm_in_half_a_minute() {
    for (capture_burst, render_burst) in [(1_024, 1_024), (1_024, 512), (128, 128), (480, 1_024)] {
        for (ppm, packet, scheduling, jitter) in [
            (200.0, 64, 0.0, Jitter::Exponential(MS)),
            (0.0, 64, 2.0 * MS, Jitter::Exponential(MS)),
            (-30.0, 128, 0.0, Jitter::Uniform(0.1 * MS)),
            (200.0, 128, 0.0, Jitter::Uniform(0.1 * MS)),
            (20.0, 240, 0.5 * MS, Jitter::Queue(MS, 10.0 * MS)),
        ] {
            let packet = if capture_burst == 480 { 96 } else { packet };
            let name = format!(
                "timed, {capture_burst} and {render_burst}, packets of {packet}, {ppm} ppm, {jitter:?}"
            );
            let conditions = Conditions {
                ppm,
                packet,
                capture_burst,
                render_burst,
                scheduling,
                jitter,
                is_timed: true,
                ..QUIET
            };
            let rms = check(&name, conditions);
            // Bursts of whole milliseconds come in the same of them each time, until a stair has passed.
            assert!(
                capture_burst == 480 || rms[1] < 30.0 && rms[2] < 5.0 && rms[4] < 1.5,
                "{name}: {rms:?}"
            );
        }
    }
}

#[test]
fn packets_that_nobody_timed_hide_nothing_between_those_that_were() {
    let conditions = Conditions {
        ppm: 200.0,
        is_timed: true,
        decoded: 0.2,
        jitter: Jitter::Exponential(MS),
        ..QUIET
    };
    let rms = check("one in five decoded", conditions);
    assert!(rms[2] < 5.0, "{rms:?}");
}

#[test]
fn small_drifts_are_told_from_none() {
    for ppm in [0.0, -30.0, 20.0] {
        let rms = check(&format!("{ppm} ppm"), Conditions { ppm, ..QUIET });
        // A whole stair of 2.7 ms takes 20 ppm more than two minutes.
        assert!(rms[4] < 6.0, "{ppm}: {rms:?}");
    }
    check("0 ppm, all delays alike", ALIKE);
}

/// Bursts of 1,024 on both sides hide the clocks for minutes, packets that come alike or in a pattern hide them until some stairs have
/// passed. That must be said.
#[test]
fn what_cannot_be_known_is_not_claimed() {
    for (ppm, scheduling) in [(200.0, 0.0), (0.0, 2.0 * MS)] {
        let conditions = Conditions {
            ppm,
            capture_burst: 1_024,
            render_burst: 1_024,
            scheduling,
            ..QUIET
        };
        check(&format!("1,024 and 1,024, {ppm} ppm"), conditions);
    }
    for (packet, ppm) in [
        (240, 0.0),
        (240, 50.0),
        (240, 200.0),
        (120, 50.0),
        (120, 200.0),
    ] {
        for loss in [0.0, 0.02] {
            let pattern = Conditions {
                packet,
                ppm,
                loss,
                ..ALIKE
            };
            let name = format!("{ppm} ppm, packets of {packet} in a pattern, {loss} lost");
            check(&name, pattern);
        }
    }
}

#[test]
fn steps_are_no_drift() {
    let step = |at_s: f64, ms: f64| Step {
        at_s,
        frames: ms * MS,
    };
    let cases: [(&str, &[Step]); 4] = [
        ("-3 ms", &[step(7.0, -3.0)]),
        ("-5 ms", &[step(12.0, -5.0)]),
        ("50 ms", &[step(20.0, 50.0)]),
        ("a route and back", &[step(40.0, -20.0), step(45.0, 20.0)]),
    ];
    for (name, steps) in cases {
        let rms = check(name, Conditions { steps, ..QUIET });
        assert!(rms[3] < 6.0 && rms[4] < 1.0, "{name}: {rms:?}");
    }
}

/// A microphone that loses 64 frames once in a second in the mean is 1,333 ppm slow; and no more 8 s after it lost the last.
#[test]
fn steps_that_recur_are_drift_until_they_end() {
    const ENDS_S: f64 = 60.0;
    let (mut off, mut left) = (Vec::new(), Vec::new());
    for seed in 1..=SEEDS {
        let mut random = Random(seed);
        let mut steps = Vec::new();
        let mut at_s = 0.0;
        while at_s < ENDS_S {
            steps.push(Step { at_s, frames: 64.0 });
            at_s -= (1.0 - random.unit()).ln();
        }
        let conditions = Conditions {
            ppm: 0.0,
            steps: &steps,
            is_timed: true,
            ..QUIET
        };
        let said = estimates(conditions, seed * 7_919, &[ENDS_S, ENDS_S + 8.0]);
        let lost = 64.0 * steps.len() as f64 / (RATE_HZ * ENDS_S) * 1e6;
        let [(Some(before), _), (after, _)] = said[..] else {
            panic!("seed {seed}: {said:?}");
        };
        off.push((f64::from(before.ppm) + lost).abs() / lost);
        let after = after.expect("known");
        left.push(f64::from(after.ppm.abs()));
    }
    for values in [&mut off, &mut left] {
        values.sort_by(f64::total_cmp);
    }
    // Of so many runs some lose nothing, or much, just before they are asked.
    let (middle, most) = (SEEDS as usize / 2, SEEDS as usize * 9 / 10);
    println!(
        "off by {:.0} % of it, afterwards by {:.0} ppm in nine of ten",
        100.0 * off[middle],
        left[most]
    );
    assert!(off[middle] < 0.15, "{off:?}");
    assert!(left[most] < 100.0, "{left:?}");
}

#[test]
fn a_media_time_that_jumps_by_hours_hides_no_drift() {
    for jump_hours in [-13, 0, 6, 13] {
        let mut random = Random(12);
        let mut estimator = DriftEstimator::new(SampleRate::Hz48000);
        for n in 0..60_000u64 {
            let jump = if n < 20_000 { 0 } else { jump_hours };
            let media = (n * 128).wrapping_add_signed(jump * 3_600 * 48_000);
            // 200 ppm fast, with 3 ms of jitter.
            let at = (n as f64 * 128.0 / 1.000_2) as u64 + random.below(144);
            estimator.add(at.next_multiple_of(128), Some(at), media, 128);
        }
        let found = estimator.estimate();
        let is_right = |drift: Drift| (drift.ppm - 200.0).abs() <= drift.error_ppm.max(5.0);
        assert!(found.is_some_and(is_right), "{jump_hours} h: {found:?}");
    }
}

#[test]
fn hostile_numbers_do_no_harm() {
    let mut random = Random(11);
    let mut estimator = DriftEstimator::new(SampleRate::Hz48000);
    let mut output: u64 = 0;
    for n in 0..400_000u64 {
        output = output.wrapping_add(random.below(1 << (n / 8_000)));
        if n % 7 == 0 {
            output = output.wrapping_sub(random.below(1 << (n / 8_000)));
        }
        assert!(estimator.stair_frames() >= 0);
        let timed = (n % 3 > 0).then(|| random.next() >> (n % 61));
        estimator.add(
            output,
            timed,
            random.next() >> (n % 64),
            random.next() as u16,
        );
        if let Some(drift) = estimator.estimate() {
            assert!(
                drift.ppm.abs() <= 4_000.0 && drift.error_ppm.is_finite() && drift.error_ppm > 0.0
            );
        }
    }
    estimator.reset();
    assert_eq!(estimator.estimate(), None);
}

// The resampler.

/// Plays `input`, one channel, through a resampler in blocks of various lengths.
struct Stream<'a> {
    kernel: &'a Kernel,
    resampler: Resampler,
    input: &'a [f32],
    taken: usize,
    out: Vec<f32>,
}

impl<'a> Stream<'a> {
    fn new(kernel: &'a Kernel, input: &'a [f32]) -> Self {
        Self {
            kernel,
            resampler: Resampler::new(1),
            input,
            taken: 0,
            out: Vec::new(),
        }
    }

    fn play(&mut self, frames: usize) {
        let needed = self.resampler.frames_needed(frames);
        let mut out = vec![f32::NAN; frames];
        let input = &self.input[self.taken..self.taken + needed];
        self.resampler
            .process(self.kernel, input, 1, &mut out, frames);
        self.taken += needed;
        self.out.extend(out);
    }
}

fn sine(hz: f64, frames: usize) -> Vec<f32> {
    (0..frames).map(|n| at(hz, n as f64)).collect()
}

fn at(hz: f64, position: f64) -> f32 {
    (0.5 * (std::f64::consts::TAU * hz * position / RATE_HZ).sin()) as f32
}

/// Signal to noise and distortion in dB, by a fit of a sine of known frequency.
fn sinad_db(samples: &[f32], hz: f64) -> f64 {
    let (mut cc, mut ss, mut cs, mut xc, mut xs) = (0.0, 0.0, 0.0, 0.0, 0.0);
    let angle = |n: usize| std::f64::consts::TAU * hz * n as f64 / RATE_HZ;
    for (n, &sample) in samples.iter().enumerate() {
        let (s, c) = angle(n).sin_cos();
        cc += c * c;
        ss += s * s;
        cs += c * s;
        xc += c * f64::from(sample);
        xs += s * f64::from(sample);
    }
    let scale = cc * ss - cs * cs;
    let (a, b) = ((xc * ss - xs * cs) / scale, (xs * cc - xc * cs) / scale);
    let (mut signal, mut noise) = (0.0, 0.0);
    for (n, &sample) in samples.iter().enumerate() {
        let (s, c) = angle(n).sin_cos();
        let fitted = a * c + b * s;
        signal += fitted * fitted;
        noise += (f64::from(sample) - fitted).powi(2);
    }
    10.0 * (signal / noise).log10()
}

#[test]
fn a_resampled_sine_is_clean() {
    let kernel = Kernel::new();
    for hz in [
        50.0, 100.0, 440.0, 1_000.0, 3_000.0, 5_000.0, 8_000.0, 10_000.0, 12_000.0, 14_000.0,
        15_000.0, 16_000.0, 17_000.0, 18_000.0, 20_000.0,
    ] {
        let input = sine(hz, 50_000);
        let mut worst = f64::INFINITY;
        for ppm in [-2_000.0, -300.0, -20.0, 20.0, 300.0, 2_000.0] {
            let mut stream = Stream::new(&kernel, &input);
            stream.resampler.engage();
            stream.resampler.set_ppm(ppm);
            stream.play(48_000);
            let ratio = 1.0 + f64::from(ppm) * 1e-6;
            worst = worst.min(sinad_db(&stream.out[1_000..], hz * ratio));
        }
        println!("{hz} Hz: SINAD {worst:.1} dB at worst");
        let least = match hz {
            ..=1_000.0 => 110.0,
            ..=15_000.0 => 90.0,
            _ => 10.0,
        };
        assert!(worst > least, "{hz} Hz: {worst} dB");
    }
}

#[test]
fn at_1_to_1_output_is_input_to_the_bit() {
    let kernel = Kernel::new();
    let mut random = Random(5);
    let input: Vec<f32> = (0..20_000)
        .map(|_| f32::from_bits(random.next() as u32))
        .chain([-0.0, f32::INFINITY, f32::NAN])
        .chain((0..1_000).map(|n| n as f32))
        .collect();
    let mut stream = Stream::new(&kernel, &input);
    let mut engaged_at = 0;
    while stream.out.len() < 20_600 {
        if stream.out.len() > 9_000 && !stream.resampler.is_engaged() {
            stream.resampler.engage();
            engaged_at = stream.out.len();
        }
        stream.play(1 + random.below(300) as usize);
        let ahead = stream.taken - stream.out.len();
        assert_eq!(ahead, if engaged_at == 0 { 0 } else { HALF });
        assert!(stream.resampler.is_idle());
    }
    for (n, (out, input)) in stream.out.iter().zip(&input).enumerate() {
        assert_eq!(out.to_bits(), input.to_bits(), "frame {n}");
    }
}

#[test]
fn the_position_never_jumps() {
    let kernel = Kernel::new();
    let hz = 3_000.0;
    let input = sine(hz, 400_000);
    for seed in 1..=8 {
        let mut random = Random(seed);
        let mut stream = Stream::new(&kernel, &input);
        // In 2⁻³² frames, of the last frame of output: what the resampler should do, counted independently.
        let mut position: i64 = -(1 << 32);
        let mut step: i64 = 0;
        let mut worst: f32 = 0.0;
        while stream.out.len() < 300_000 {
            let frames = 1 + random.below(256) as usize;
            if stream.out.len() > 5_000 {
                stream.resampler.engage();
                if random.below(20) == 0 {
                    let ppm = random.unit() as f32 * 4_800.0 - 2_400.0;
                    stream.resampler.set_ppm(ppm);
                    step = (f64::from(ppm.clamp(-2_000.0, 2_000.0)) * 4_294.967_296) as i64;
                }
            }
            let from = stream.out.len();
            stream.play(frames);
            for &out in &stream.out[from..] {
                position += (1 << 32) + step;
                let ideal = at(hz, position as f64 / 4_294_967_296.0);
                worst = worst.max((out - ideal).abs());
            }
            let ahead = if stream.resampler.is_engaged() {
                HALF
            } else {
                0
            };
            assert_eq!(stream.taken, (position >> 32) as usize + 1 + ahead);
        }
        println!("seed {seed}: at most {worst:e} from the ideal");
        // 100 dB below the sine's 0.5.
        assert!(worst < 5e-6, "seed {seed}: {worst}");
    }
}

#[test]
fn back_at_1_to_1_it_becomes_exact_again() {
    let kernel = Kernel::new();
    let input = sine(440.0, 120_000);
    for ppm in [-250.0, -0.5, 0.5, 250.0] {
        let mut stream = Stream::new(&kernel, &input);
        stream.resampler.engage();
        stream.resampler.set_ppm(ppm);
        stream.play(50_123);
        assert!(!stream.resampler.is_idle());
        stream.resampler.set_ppm(0.0);
        stream.play(5_001);
        assert!(stream.resampler.is_idle());
        let from = stream.out.len();
        let first = stream.taken - HALF;
        stream.play(1_000);
        assert_eq!(stream.out[from..], input[first..first + 1_000]);
        // And it got there no faster than 100 ppm.
        for pair in 50_123..from {
            let slope = (stream.out[pair] - stream.out[pair - 1]).abs();
            assert!(slope < 0.5 * std::f32::consts::TAU * 440.0 / 48_000.0 * 1.001);
        }
    }
}

#[test]
fn channels_do_not_mix() {
    let kernel = Kernel::new();
    let hz = |channel: usize| 200.0 + 150.0 * channel as f64;
    let inputs: Vec<_> = (0..8).map(|channel| sine(hz(channel), 20_000)).collect();
    let mut together = Resampler::new(8);
    let mut alone: Vec<_> = inputs
        .iter()
        .map(|input| Stream::new(&kernel, input))
        .collect();
    let mut taken = 0;
    for block in 0..60 {
        if block == 20 {
            together.engage();
            together.set_ppm(-700.0);
            for stream in &mut alone {
                stream.resampler.engage();
                stream.resampler.set_ppm(-700.0);
            }
        }
        let frames = 1 + 5 * block;
        let needed = together.frames_needed(frames);
        let input: Vec<f32> = inputs
            .iter()
            .flat_map(|input| &input[taken..taken + needed])
            .copied()
            .collect();
        taken += needed;
        let mut out = vec![f32::NAN; 8 * frames];
        together.process(&kernel, &input, 8, &mut out, frames);
        for (stream, out) in alone.iter_mut().zip(out.chunks(frames)) {
            stream.play(frames);
            assert_eq!(&stream.out[stream.out.len() - frames..], out);
        }
    }
}

#[test]
fn an_output_that_was_only_remembered_goes_on() {
    let kernel = Kernel::new();
    let input = [sine(700.0, 2_000), sine(1_100.0, 2_000)];
    let mut resampler = Resampler::new(2);
    // Played by others, in a buffer of more frames than were new.
    for block in 0..50 {
        let played: Vec<f32> = input
            .iter()
            .flat_map(|input| &input[3 * block..][..13])
            .copied()
            .collect();
        resampler.remember(&played, 13, 10, 3, 2);
    }
    let next = 10 + 150;
    resampler.engage();
    resampler.set_ppm(900.0);
    let needed = resampler.frames_needed(64);
    let ahead: Vec<f32> = input
        .iter()
        .flat_map(|input| &input[next..next + needed])
        .copied()
        .collect();
    let mut out = [0.0; 128];
    resampler.process(&kernel, &ahead, 2, &mut out, 64);
    for (channel, hz) in [(0, 700.0), (1, 1_100.0)] {
        for n in 0..64 {
            let ideal = at(hz, (next - 1) as f64 + (n + 1) as f64 * 1.000_9);
            assert!((out[64 * channel + n] - ideal).abs() < 2e-6);
        }
    }
}
