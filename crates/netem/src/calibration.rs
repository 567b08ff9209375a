//! Holds a driver against the formulas of [`crate::expected`].

#[cfg(target_os = "linux")]
mod tun;

#[cfg(target_os = "linux")]
pub use tun::TunRun;

use serde::Serialize;

use crate::expected::{Expected, Quantities, STANDARD_ERRORS, Traffic, expect};
use crate::{Direction, Jitter, Line, LinkConfig, LinkStats, Loss, Plan, PlanError, Profile};

/// A network and the stream that is sent over it, both ways at once.
#[derive(Clone, Debug)]
pub struct Case {
    /// Name of the profile, or of what the case is about.
    pub name: String,
    /// Uplink, then downlink.
    pub links: [LinkConfig; 2],
    /// Each way.
    pub traffic: Traffic,
}

/// What the far end saw of a stream.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    /// By sequence number: the delay of the first arrival, none if there was none.
    pub delays_ns: Vec<Option<u64>>,
    /// By sequence number: whether one sent later came first.
    pub reordered: Vec<bool>,
    /// By sequence number: whether it came more than once.
    pub duplicated: Vec<bool>,
    /// Sequence number that is expected next.
    next: usize,
}

/// What both far ends saw, with the counters of the model: uplink, then downlink.
pub type Seen = [(Observation, LinkStats); 2];

/// One quantity of one case.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Name of the case.
    pub case: String,
    /// Which way.
    pub direction: &'static str,
    /// As in [`Quantities`].
    pub quantity: &'static str,
    /// By formula; none where there is no formula.
    pub model: Option<f64>,
    /// By the driver.
    pub measured: Option<f64>,
    /// Measured less model.
    pub residual: Option<f64>,
    /// How large the residual may be; none where it may be anything.
    pub allowed: Option<f64>,
    /// Whether it is not larger; true where one of the two is unknown.
    pub ok: bool,
    /// Whether it could be too large: chance alone may do anything to a late percentile of a short stream.
    pub can_tell: bool,
}

/// What a driver may add to what chance does, beside the model.
#[derive(Clone, Copy, Debug, Default)]
pub struct DriverError {
    /// Of the mean delay and its percentiles.
    pub delay_ms: f64,
    /// Of the shares of reordered and queue-dropped packets and, as a ratio, of the throughput: packets that enter
    /// unevenly meet the queue and each other differently.
    pub share: f64,
}

/// The exact stream is cut into so many parts, whose scatter gives the standard error: bursts and waiting correlate packets
/// that are near each other, but hardly the parts.
const BATCHES: usize = 50;
/// Instants are whole nanoseconds, grids finite.
const DELAY_RESOLUTION_MS: f64 = 0.01;

impl Case {
    /// A case for a named profile.
    pub fn of_profile(profile: &Profile, packets: u32) -> Self {
        Self {
            name: profile.name.clone(),
            links: [profile.left_to_right.clone(), profile.right_to_left.clone()],
            traffic: traffic(packets),
        }
    }

    /// Cases for what no profile does: reordering, duplicates, long bursts, a queue that overflows.
    pub fn beyond_profiles(packets: u32) -> Vec<Self> {
        let case = |name: &str, link: LinkConfig| Self {
            name: name.to_owned(),
            links: [link.clone(), link],
            traffic: traffic(packets),
        };
        vec![
            case(
                "reordering",
                LinkConfig {
                    delay_ms: 10.0,
                    jitter: Jitter::Exponential { mean_ms: 0.5 },
                    reorder: true,
                    ..LinkConfig::default()
                },
            ),
            case(
                "duplicates",
                LinkConfig {
                    delay_ms: 10.0,
                    jitter: Jitter::Uniform { max_ms: 3.0 },
                    duplicate_share: 0.05,
                    ..LinkConfig::default()
                },
            ),
            case(
                "bursts",
                LinkConfig {
                    delay_ms: 10.0,
                    jitter: Jitter::Normal {
                        mean_ms: 1.0,
                        sd_ms: 1.0,
                    },
                    reorder: true,
                    duplicate_share: 0.01,
                    loss: Loss::GilbertElliott {
                        enter_bad: 0.01,
                        leave_bad: 0.1,
                        loss_good: 0.005,
                        loss_bad: 0.7,
                    },
                    ..LinkConfig::default()
                },
            ),
            case(
                "overflow",
                LinkConfig {
                    delay_ms: 10.0,
                    rate_bits_per_second: Some(1_000_000),
                    queue_bytes: Some(5_000),
                    ..LinkConfig::default()
                },
            ),
        ]
    }

    /// The case for its whole time.
    pub fn plan(&self, seed: u64) -> Plan {
        let [up, down] = self.links.clone();
        Plan::steady(seed, up, down)
    }

    /// Sends the stream in virtual time.
    ///
    /// # Errors
    /// If the case's links are not valid.
    pub fn run_virtual(&self, seed: u64) -> Result<Seen, PlanError> {
        let plan = self.plan(seed);
        let run = |direction| -> Result<_, PlanError> {
            let mut line = Line::new(&plan, direction, 0)?;
            let mut seen = Observation::new(self.traffic.packets);
            let mut deliver = |line: &mut Line<(u64, u64)>, now_ns| {
                while let Some(at_ns) = line.poll_at().filter(|at_ns| *at_ns <= now_ns)
                    && let Some((number, sent_ns)) = line.pop(at_ns)
                {
                    seen.record(number, at_ns - sent_ns);
                }
            };
            for number in 0..u64::from(self.traffic.packets) {
                let now_ns = number * self.traffic.interval_ns;
                deliver(&mut line, now_ns);
                line.push((number, now_ns), self.traffic.size_bytes, now_ns);
            }
            deliver(&mut line, u64::MAX);
            let stats = line.stats();
            Ok((seen, stats))
        };
        let [up, down] = Direction::BOTH.map(run);
        Ok([up?, down?])
    }

    /// Compares what was seen with the formulas. `exact` is what [`Self::run_virtual`] makes of the same seed: its scatter says what
    /// chance may do. A driver's own would excuse it, for what it leaves out widens that.
    pub fn judge(&self, seen: &Seen, exact: &Seen, error: DriverError) -> Vec<Row> {
        let names = ["leftToRight", "rightToLeft"];
        (0..2)
            .flat_map(|way| {
                let expected = expect(&self.links[way], &self.traffic);
                judge(
                    &self.name,
                    names[way],
                    &self.traffic,
                    &expected,
                    &seen[way],
                    &exact[way],
                    error,
                )
            })
            .collect()
    }
}

/// 44 bytes are an IPv4 and a UDP header and two numbers; 5,000 packets a second so take less than half of the slowest profile.
fn traffic(packets: u32) -> Traffic {
    Traffic {
        packets,
        interval_ns: 200_000,
        size_bytes: 44,
    }
}

impl Observation {
    /// Nothing seen yet of a stream of so many packets.
    pub fn new(packets: u32) -> Self {
        let packets = packets as usize;
        Self {
            delays_ns: vec![None; packets],
            reordered: vec![false; packets],
            duplicated: vec![false; packets],
            next: 0,
        }
    }

    /// Takes note of an arrival; numbers that were never sent are ignored.
    pub fn record(&mut self, number: u64, delay_ns: u64) {
        let Some((number, delay)) = usize::try_from(number)
            .ok()
            .and_then(|number| Some((number, self.delays_ns.get_mut(number)?)))
        else {
            return;
        };
        if delay.is_some() {
            self.duplicated[number] = true;
            return;
        }
        *delay = Some(delay_ns);
        self.reordered[number] = number < self.next;
        self.next = self.next.max(number + 1);
    }

    fn part(&self, range: std::ops::Range<usize>) -> Part {
        let delays_ns = &self.delays_ns[range.clone()];
        let mut delays_ms: Vec<f64> = delays_ns
            .iter()
            .flatten()
            .map(|ns| *ns as f64 / crate::NS_PER_MS)
            .collect();
        delays_ms.sort_unstable_by(f64::total_cmp);
        let count = |flags: &[bool]| flags.iter().filter(|flag| **flag).count() as f64;
        let runs = delays_ns
            .windows(2)
            .filter(|pair| pair[0].is_some() && pair[1].is_none())
            .count();
        Part {
            offered: delays_ns.len() as f64,
            missing: (delays_ns.len() - delays_ms.len()) as f64,
            missing_runs: runs as f64,
            reordered: count(&self.reordered[range.clone()]),
            duplicated: count(&self.duplicated[range]),
            delays_ms,
        }
    }
}

/// A part of a stream, counted.
struct Part {
    offered: f64,
    missing: f64,
    missing_runs: f64,
    reordered: f64,
    duplicated: f64,
    delays_ms: Vec<f64>,
}

impl Part {
    /// `queue_drops` says that what is missing met a full queue.
    fn quantities(&self, traffic: &Traffic, queue_drops: bool) -> Quantities {
        let delivered = self.delays_ms.len() as f64;
        let share = |count: f64, of: f64| (of > 0.0).then(|| count / of);
        let quantile = |p: f64| {
            let last = self.delays_ms.len().checked_sub(1)?;
            self.delays_ms
                .get((p * last as f64).round() as usize)
                .copied()
        };
        let missing = share(self.missing, self.offered);
        let (loss_share, queue_drop_share) = if queue_drops {
            (Some(0.0), missing)
        } else {
            (missing, Some(0.0))
        };
        let bits = (delivered + self.duplicated) * f64::from(traffic.size_bytes) * 8.0;
        let seconds = self.offered * traffic.interval_ns as f64 / 1e9;
        Quantities {
            mean_delay_ms: share(self.delays_ms.iter().sum(), delivered),
            delay_p50_ms: quantile(0.5),
            delay_p90_ms: quantile(0.9),
            delay_p99_ms: quantile(0.99),
            loss_share,
            mean_loss_run_length: share(self.missing, self.missing_runs).filter(|_| !queue_drops),
            queue_drop_share,
            reorder_share: share(self.reordered, delivered),
            duplicate_share: share(self.duplicated, delivered),
            throughput_bits_per_second: share(bits, seconds),
        }
    }
}

type Getter = fn(&Quantities) -> Option<f64>;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Place in [`Expected::delay_chance_ms`].
    Delay(usize),
    /// Share that uneven sending does not change.
    Share,
    /// Share that uneven sending changes.
    TimedShare,
    Length,
    Rate,
}

const QUANTITIES: [(&str, Kind, Getter); 10] = [
    ("meanDelayMs", Kind::Delay(0), |q| q.mean_delay_ms),
    ("delayP50Ms", Kind::Delay(1), |q| q.delay_p50_ms),
    ("delayP90Ms", Kind::Delay(2), |q| q.delay_p90_ms),
    ("delayP99Ms", Kind::Delay(3), |q| q.delay_p99_ms),
    ("lossShare", Kind::Share, |q| q.loss_share),
    ("meanLossRunLength", Kind::Length, |q| {
        q.mean_loss_run_length
    }),
    ("queueDropShare", Kind::TimedShare, |q| q.queue_drop_share),
    ("reorderShare", Kind::TimedShare, |q| q.reorder_share),
    ("duplicateShare", Kind::Share, |q| q.duplicate_share),
    ("throughputBitsPerSecond", Kind::Rate, |q| {
        q.throughput_bits_per_second
    }),
];

fn judge(
    case: &str,
    direction: &'static str,
    traffic: &Traffic,
    expected: &Expected,
    (seen, stats): &(Observation, LinkStats),
    (exact, exact_stats): &(Observation, LinkStats),
    error: DriverError,
) -> Vec<Row> {
    // Cases lose packets either on the way or in front of the queue: the far end cannot tell.
    let queue_drops = |stats: &LinkStats| stats.queue_dropped_packets > 0;
    let packets = seen.delays_ns.len();
    let all = seen.part(0..packets);
    let whole = all.quantities(traffic, queue_drops(stats));
    let batch = (packets / BATCHES).max(1);
    let parts: Vec<Quantities> = (0..packets / batch)
        .map(|i| {
            exact
                .part(i * batch..(i + 1) * batch)
                .quantities(traffic, queue_drops(exact_stats))
        })
        .collect();
    QUANTITIES
        .iter()
        .map(|(quantity, kind, get)| {
            let model = get(&expected.quantities);
            let measured = get(&whole);
            let values: Vec<f64> = parts.iter().filter_map(get).collect();
            let scatter = standard_error(&values);
            let residual = model
                .zip(measured)
                .map(|(model, measured)| measured - model);
            let allowed = model.map(|model| {
                let n = packets as f64;
                let chance = STANDARD_ERRORS * scatter;
                // A rare event may not have happened at all, and one more or less is no error.
                let rare = STANDARD_ERRORS * (model * (1.0 - model).max(0.0) / n).sqrt() + 2.0 / n;
                match *kind {
                    Kind::Delay(place) => {
                        // Few late packets weigh on the mean, so what the exact stream shows of them counts, and what it may hide.
                        let shown = if place == 0 { chance } else { 0.0 };
                        let [below, above] = expected.delay_chance_ms[place];
                        let side = if residual.is_some_and(|residual| residual < 0.0) {
                            below
                        } else {
                            above
                        };
                        side.max(shown) + DELAY_RESOLUTION_MS + error.delay_ms
                    }
                    Kind::Share => chance.max(rare),
                    // What the model says never happens does not happen with a driver either.
                    Kind::TimedShare if model == 0.0 => chance.max(rare),
                    Kind::TimedShare => chance.max(rare) + error.share,
                    Kind::Length => {
                        // As if the lengths were geometric; and one more or less is no error here either.
                        let runs = all.missing_runs.max(1.0);
                        let geometric = STANDARD_ERRORS * (model * (model - 1.0) / runs).sqrt();
                        chance.max(geometric) + 1.0 / runs
                    }
                    Kind::Rate => chance + model * (2.0 / n + error.share),
                }
            });
            let ok = residual
                .zip(allowed)
                .is_none_or(|(residual, allowed)| residual.abs() <= allowed);
            let can_tell = match *kind {
                Kind::Delay(place) => expected.delay_chance_ms[place][1].is_finite(),
                _ => true,
            };
            Row {
                case: case.to_owned(),
                direction,
                quantity,
                model,
                measured,
                residual,
                allowed: allowed.filter(|allowed| allowed.is_finite()),
                ok,
                can_tell,
            }
        })
        .collect()
}

/// Of the mean of independent values; 0 for fewer than two.
fn standard_error(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    if n < 2.0 {
        return 0.0;
    }
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (n - 1.0) / n).sqrt()
}
