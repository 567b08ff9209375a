//! What the model must do to a steady stream of equal packets, by formula: the yardstick of the calibration.

use serde::Serialize;

use crate::{Jitter, LinkConfig, NS_PER_MS};

/// A steady stream of equal packets.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Traffic {
    /// How many.
    pub packets: u32,
    /// From one to the next, at least 1.
    pub interval_ns: u64,
    /// Of each.
    pub size_bytes: u32,
}

/// What the formulas say, or what was measured, of one stream over one direction. Unknown is `None`.
///
/// Delay is that of the packets that arrive, copies not counted.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)] // The names say it all.
pub struct Quantities {
    pub mean_delay_ms: Option<f64>,
    pub delay_p50_ms: Option<f64>,
    pub delay_p90_ms: Option<f64>,
    pub delay_p99_ms: Option<f64>,
    /// Of all offered.
    pub loss_share: Option<f64>,
    /// Packets from one that arrives to the next that does.
    pub mean_loss_run_length: Option<f64>,
    /// Of those that were not lost before the queue.
    pub queue_drop_share: Option<f64>,
    /// Of the delivered.
    pub reorder_share: Option<f64>,
    /// Of the delivered.
    pub duplicate_share: Option<f64>,
    /// Delivered bits, copies included, over the time of sending.
    pub throughput_bits_per_second: Option<f64>,
}

/// What the formulas say.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// In the mean over many streams.
    pub quantities: Quantities,
    /// How far one stream may be off, at [`STANDARD_ERRORS`], [below, above]: mean delay, then its percentiles 50, 90
    /// and 99. Infinite where the stream is too short to tell.
    pub delay_chance_ms: [[f64; 2]; 4],
}

/// Chance goes as far once in a million.
pub const STANDARD_ERRORS: f64 = 5.0;

/// What the formulas say. The config must be valid.
///
/// - Loss share and run length: stationary distribution of the two-state chain, closed.
/// - Delay: closed distribution of the jitter. With order kept, a packet arrives when its own jitter and that of all
///   earlier ones have passed, so P(delay ≤ x) is the product of F(x + k·interval) over the earlier packets k = 0, 1, …
///   that were not lost: a recursion on a grid, exact but for the grid. Where draws hold, each of them counts once, for
///   the last of its packets that was not lost.
/// - Reorder share: a packet is overtaken if any later one's jitter is smaller by k·interval or more: the same product,
///   averaged over the packet's own jitter by the midpoint rule. Unknown where draws hold.
/// - Queue: a rate above that of the stream only serialises. Below it, the queue fills once and stays full (D/D/1/K);
///   delay is then known without loss and jitter only.
/// - Chance: late packets come in groups that share a draw or wait for the same packet. How often a delay is exceeded in
///   one stream scatters as if it had fewer packets, by the sum of the correlations between them; loss is neglected.
pub fn expect(config: &LinkConfig, traffic: &Traffic) -> Expected {
    let chain = Chain::new(config);
    let serialisation_ms = config.serialisation_ns(traffic.size_bytes) as f64 / NS_PER_MS;
    let interval_ms = traffic.interval_ns as f64 / NS_PER_MS;
    let offered_bits_per_second = f64::from(traffic.size_bytes) * 8e3 / interval_ms;
    let mut expected = Quantities {
        loss_share: Some(chain.loss_share()),
        mean_loss_run_length: chain.mean_loss_run_length(),
        queue_drop_share: Some(0.0),
        duplicate_share: Some(config.duplicate_share),
        ..Quantities::default()
    };
    let mut delay_chance_ms = [[0.0; 2]; 4];
    let base_ms = config.delay_ms + serialisation_ms;
    if serialisation_ms <= interval_ms {
        let delays = Delays::new(config, &chain, interval_ms);
        expected.mean_delay_ms = Some(base_ms + delays.mean_ms());
        expected.delay_p50_ms = Some(base_ms + delays.quantile_ms(0.5));
        expected.delay_p90_ms = Some(base_ms + delays.quantile_ms(0.9));
        expected.delay_p99_ms = Some(base_ms + delays.quantile_ms(0.99));
        delay_chance_ms = delays.chance_ms(config, traffic);
        expected.reorder_share = reorder_share(config, &chain, interval_ms);
    } else if chain.loss_share() == 0.0 {
        // Packets the queue holds, packets accepted until it is full, and in all.
        let room = (config.queue_limit_bytes().unwrap_or(0) / u64::from(traffic.size_bytes)) as f64;
        let packets = f64::from(traffic.packets);
        let speed = interval_ms / serialisation_ms;
        let filling = (room / (1.0 - speed)).min(packets);
        let accepted = (filling + (packets - filling) * speed).min(packets);
        expected.queue_drop_share = Some(1.0 - accepted / packets);
        if config.jitter == (Jitter::None {}) {
            // Behind a full queue a place is taken up to one interval after it is free.
            let full_ms = room * serialisation_ms;
            let filling = filling / accepted;
            let mean_ms = full_ms * filling / 2.0 + (full_ms - interval_ms / 2.0) * (1.0 - filling);
            expected.mean_delay_ms = Some(config.delay_ms + mean_ms);
            let quantile = |p: f64| {
                let steady = (p - filling) / (1.0 - filling);
                let wait_ms = if steady < 0.0 {
                    full_ms * p / filling
                } else {
                    full_ms - interval_ms * (1.0 - steady)
                };
                Some(config.delay_ms + wait_ms)
            };
            expected.delay_p50_ms = quantile(0.5);
            expected.delay_p90_ms = quantile(0.9);
            expected.delay_p99_ms = quantile(0.99);
            expected.reorder_share = Some(0.0);
        }
    } else {
        expected.queue_drop_share = None;
    }
    expected.throughput_bits_per_second = expected.queue_drop_share.map(|dropped| {
        offered_bits_per_second
            * (1.0 - chain.loss_share())
            * (1.0 - dropped)
            * (1.0 + config.duplicate_share)
    });
    Expected {
        quantities: expected,
        delay_chance_ms,
    }
}

impl Jitter {
    /// Probability that the jitter is `x_ms` at most.
    pub fn cdf(&self, x_ms: f64) -> f64 {
        if x_ms < 0.0 {
            return 0.0;
        }
        match *self {
            Self::None {} => 1.0,
            Self::Uniform { max_ms } => {
                if x_ms >= max_ms {
                    1.0
                } else {
                    x_ms / max_ms
                }
            }
            Self::Normal { mean_ms, sd_ms } => {
                if sd_ms == 0.0 {
                    f64::from(u8::from(x_ms >= mean_ms))
                } else {
                    normal_cdf((x_ms - mean_ms) / sd_ms)
                }
            }
            Self::Exponential { mean_ms } => {
                if mean_ms == 0.0 {
                    1.0
                } else {
                    -(-x_ms / mean_ms).exp_m1()
                }
            }
            Self::Pareto {
                scale_ms,
                shape,
                max_ms,
            } => {
                if x_ms >= max_ms || scale_ms == 0.0 {
                    1.0
                } else {
                    1.0 - (1.0 + x_ms / scale_ms).powf(-shape)
                }
            }
        }
    }

    /// Mean of the jitter.
    pub fn mean_ms(&self) -> f64 {
        match *self {
            Self::None {} => 0.0,
            Self::Uniform { max_ms } => max_ms / 2.0,
            Self::Normal { mean_ms, sd_ms } if sd_ms > 0.0 => {
                let z = mean_ms / sd_ms;
                let density = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
                mean_ms * normal_cdf(z) + sd_ms * density
            }
            Self::Normal { mean_ms, .. } | Self::Exponential { mean_ms } => mean_ms,
            Self::Pareto {
                scale_ms,
                shape,
                max_ms,
            } => {
                let reach = 1.0 + max_ms / scale_ms;
                if scale_ms == 0.0 {
                    0.0
                } else if shape == 1.0 {
                    scale_ms * reach.ln()
                } else {
                    scale_ms * (1.0 - reach.powf(1.0 - shape)) / (shape - 1.0)
                }
            }
        }
    }

    /// The jitter that a share `p` of the packets does not exceed.
    pub fn quantile_ms(&self, p: f64) -> f64 {
        let (mut low, mut high) = (0.0, self.reach_ms());
        if self.cdf(0.0) >= p {
            return 0.0;
        }
        for _ in 0..60 {
            let middle = f64::midpoint(low, high);
            if self.cdf(middle) < p {
                low = middle;
            } else {
                high = middle;
            }
        }
        high
    }

    /// What hardly a packet exceeds (one in a thousand million).
    fn reach_ms(&self) -> f64 {
        match *self {
            Self::None {} => 0.0,
            Self::Uniform { max_ms } => max_ms,
            Self::Normal { mean_ms, sd_ms } => mean_ms + 6.0 * sd_ms,
            Self::Exponential { mean_ms } => 21.0 * mean_ms,
            Self::Pareto {
                scale_ms,
                shape,
                max_ms,
            } => max_ms.min(scale_ms * (1e-9_f64.powf(-1.0 / shape) - 1.0)),
        }
    }
}

fn normal_cdf(z: f64) -> f64 {
    libm::erfc(-z / std::f64::consts::SQRT_2) / 2.0
}

/// The loss as a two-state chain, in its stationary distribution.
struct Chain {
    change: [f64; 2],
    loss: [f64; 2],
    stationary: [f64; 2],
}

impl Chain {
    fn new(config: &LinkConfig) -> Self {
        let [[enter, loss_good], [leave, loss_bad]] = config.loss.chain();
        let bad = if enter == 0.0 {
            0.0
        } else {
            enter / (enter + leave)
        };
        Self {
            change: [enter, leave],
            loss: [loss_good, loss_bad],
            stationary: [1.0 - bad, bad],
        }
    }

    fn loss_share(&self) -> f64 {
        self.average(self.loss)
    }

    /// Lost packets per run: each run begins with a packet lost after one that was not.
    fn mean_loss_run_length(&self) -> Option<f64> {
        let next = self.next(self.loss);
        let starts = self.average([0, 1].map(|s| (1.0 - self.loss[s]) * next[s]));
        (starts > 0.0).then(|| self.loss_share() / starts)
    }

    fn average(&self, value: [f64; 2]) -> f64 {
        self.stationary[0] * value[0] + self.stationary[1] * value[1]
    }

    /// Mean of `value` at the next packet, by the state of this one. A two-state chain looks the same backwards, so this
    /// is also the mean at the packet before.
    fn next(&self, value: [f64; 2]) -> [f64; 2] {
        [0, 1].map(|s| (1.0 - self.change[s]) * value[s] + self.change[s] * value[1 - s])
    }

    /// Mean of `value` at a packet that was not lost.
    fn average_delivered(&self, value: [f64; 2]) -> f64 {
        let delivered = 1.0 - self.loss_share();
        if delivered == 0.0 {
            return 1.0;
        }
        self.average([0, 1].map(|s| (1.0 - self.loss[s]) * value[s])) / delivered
    }
}

/// Distribution function, on a grid, of what jitter and waiting for earlier packets add to the delay.
struct Delays {
    step_ms: f64,
    cdf: Vec<f64>,
}

/// Points of the grid up to the 90th percentile of the jitter.
const RESOLUTION: f64 = 200.0;
const MAX_POINTS: usize = 1 << 20;

impl Delays {
    fn new(config: &LinkConfig, chain: &Chain, interval_ms: f64) -> Self {
        let jitter = &config.jitter;
        let fine_ms = jitter.quantile_ms(0.9) / RESOLUTION;
        if fine_ms == 0.0 {
            return Self {
                step_ms: 0.0,
                cdf: vec![1.0],
            };
        }
        // The interval is a whole number of steps.
        let per_interval = (interval_ms / fine_ms).ceil().max(1.0);
        let step_ms = interval_ms / per_interval;
        let per_interval = per_interval as usize;
        let points = ((jitter.reach_ms() / step_ms) as usize + 2).min(MAX_POINTS);
        let mut cdf: Vec<f64> = (0..points)
            .map(|i| jitter.cdf(i as f64 * step_ms))
            .collect();
        if !config.reorder {
            let hold = packets_per_draw(config, interval_ms);
            let earlier = all_passed(&cdf, config.duplicate_share, chain, per_interval, hold);
            for (f, earlier) in cdf.iter_mut().zip(earlier) {
                *f *= earlier;
            }
        }
        Self { step_ms, cdf }
    }

    fn mean_ms(&self) -> f64 {
        let exceed = |i: usize| 1.0 - self.cdf[i];
        let inner: f64 = (0..self.cdf.len()).map(exceed).sum();
        self.step_ms * (inner - exceed(0) / 2.0)
    }

    fn quantile_ms(&self, p: f64) -> f64 {
        let above = self.cdf.partition_point(|f| *f < p);
        if above == 0 || above == self.cdf.len() {
            return above as f64 * self.step_ms;
        }
        let (low, high) = (self.cdf[above - 1], self.cdf[above]);
        self.step_ms * (above as f64 - (high - p) / (high - low))
    }

    fn chance_ms(&self, config: &LinkConfig, traffic: &Traffic) -> [[f64; 2]; 4] {
        let interval_ms = traffic.interval_ns as f64 / NS_PER_MS;
        let hold = packets_per_draw(config, interval_ms) as f64;
        let draws = f64::from(traffic.packets) / hold;
        let correlation = [0.5, 0.9, 0.99].map(|p| {
            if config.reorder {
                return 1.0;
            }
            // If one packet is in time, one so many draws later is in time by the draws between alone.
            let late_ms = self.quantile_ms(p);
            let mut in_time = Vec::new();
            let mut product = 1.0;
            loop {
                let wait_ms = in_time.len() as f64 * hold * interval_ms;
                let draw = config.jitter.cdf(late_ms + wait_ms);
                product *= draw;
                in_time.push(product);
                if 1.0 - draw < 1e-6 || in_time.len() as f64 > draws || product == 0.0 {
                    break;
                }
            }
            let excess = |in_time: &f64| (in_time - product) / (1.0 - product);
            let sum: f64 = in_time.iter().map(excess).sum();
            if product < 1.0 { 1.0 + 2.0 * sum } else { 1.0 }
        });
        let quantile = |p: f64, correlation: f64| {
            let off = STANDARD_ERRORS * (p * (1.0 - p) * correlation / draws).sqrt();
            let middle = self.quantile_ms(p);
            let above = if p + off < 1.0 {
                self.quantile_ms(p + off) - middle
            } else {
                // All of the stream may be late: nothing would be too much.
                f64::INFINITY
            };
            [middle - self.quantile_ms(p - off), above]
        };
        let squares: f64 = (self.cdf.iter().enumerate())
            .map(|(i, f)| 2.0 * i as f64 * (1.0 - f))
            .sum();
        let variance = squares * self.step_ms.powi(2) - self.mean_ms().powi(2);
        let most = correlation.into_iter().fold(1.0, f64::max);
        let mean = STANDARD_ERRORS * (variance.max(0.0) * most / draws).sqrt();
        [
            [mean, mean],
            quantile(0.5, correlation[0]),
            quantile(0.9, correlation[1]),
            quantile(0.99, correlation[2]),
        ]
    }
}

/// How many packets of a steady stream share one draw of the jitter.
fn packets_per_draw(config: &LinkConfig, interval_ms: f64) -> usize {
    (config.jitter_hold_ms / interval_ms).ceil().max(1.0) as usize
}

/// For each x on the grid: probability that all packets before a packet that was not lost have arrived x after it was
/// offered, if its own jitter allows. `hold` packets in a row share one draw.
fn all_passed(
    cdf: &[f64],
    duplicate: f64,
    chain: &Chain,
    per_interval: usize,
    hold: usize,
) -> Vec<f64> {
    // Of one draw, only the last packet matters, and a copy has nothing to add to it.
    let duplicate = if hold == 1 { duplicate } else { 0.0 };
    let in_time: Vec<f64> = cdf
        .iter()
        .map(|f| f * (1.0 - duplicate + duplicate * f))
        .collect();
    // By x, by place among the packets of a draw, by state of the packet: that all earlier ones have passed, while a later
    // packet of the same draw was (0) or was not yet (1) seen to arrive.
    let mut earlier = vec![[[1.0; 2]; 2]; cdf.len() * hold];
    for i in (0..cdf.len().saturating_sub(per_interval)).rev() {
        let before = i + per_interval;
        for place in 0..hold {
            let ahead = earlier[before * hold + (place + hold - 1) % hold];
            let first = place == 0;
            earlier[i * hold + place] = [0, 1].map(|open: usize| {
                // The draw ahead is another one if this packet is the first of its own.
                let open = if first { 1 } else { open };
                chain.next([0, 1].map(|s| {
                    let arrives = if open == 1 { in_time[before] } else { 1.0 };
                    chain.loss[s] * ahead[open][s] + (1.0 - chain.loss[s]) * arrives * ahead[0][s]
                }))
            });
        }
    }
    earlier
        .chunks(hold)
        .map(|places| {
            let sum: f64 = places
                .iter()
                .map(|place| chain.average_delivered(place[0]))
                .sum();
            sum / hold as f64
        })
        .collect()
}

fn reorder_share(config: &LinkConfig, chain: &Chain, interval_ms: f64) -> Option<f64> {
    const MIDPOINTS: u32 = 2_000;
    if !config.reorder {
        return Some(0.0);
    }
    if config.jitter_hold_ms > 0.0 {
        return None;
    }
    let overtaken = |p: f64| {
        let own_ms = config.jitter.quantile_ms(p);
        let later = (own_ms / interval_ms) as usize;
        let mut ahead = [1.0; 2];
        for k in (1..=later).rev() {
            let overtakes = config.jitter.cdf(own_ms - k as f64 * interval_ms);
            ahead =
                chain.next([0, 1].map(|s| (1.0 - (1.0 - chain.loss[s]) * overtakes) * ahead[s]));
        }
        1.0 - chain.average_delivered(ahead)
    };
    let midpoint = |i| (f64::from(i) + 0.5) / f64::from(MIDPOINTS);
    let sum: f64 = (0..MIDPOINTS).map(|i| overtaken(midpoint(i))).sum();
    Some(sum / f64::from(MIDPOINTS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Loss;

    fn near(measured: f64, wanted: f64) {
        assert!(
            (measured - wanted).abs() < 1e-3 * wanted.abs().max(1e-3),
            "{measured} instead of {wanted}"
        );
    }

    #[test]
    fn the_formulas_of_the_jitter_agree_with_each_other() {
        for jitter in [
            Jitter::Uniform { max_ms: 4.0 },
            Jitter::Normal {
                mean_ms: 1.0,
                sd_ms: 2.0,
            },
            Jitter::Exponential { mean_ms: 3.0 },
            Jitter::Pareto {
                scale_ms: 2.0,
                shape: 1.5,
                max_ms: 50.0,
            },
        ] {
            let config = LinkConfig {
                jitter: jitter.clone(),
                reorder: true,
                ..LinkConfig::default()
            };
            let delays = Delays::new(&config, &Chain::new(&config), 1.0);
            near(delays.mean_ms(), jitter.mean_ms());
            for p in [0.5, 0.9, 0.99] {
                near(delays.quantile_ms(p), jitter.quantile_ms(p));
            }
        }
        near(
            Jitter::Exponential { mean_ms: 1.0 }.quantile_ms(0.9),
            10_f64.ln(),
        );
    }

    #[test]
    fn bursts_have_gilberts_length_and_share() {
        let config = LinkConfig {
            loss: Loss::GilbertElliott {
                enter_bad: 0.01,
                leave_bad: 0.25,
                loss_good: 0.0,
                loss_bad: 1.0,
            },
            ..LinkConfig::default()
        };
        let chain = Chain::new(&config);
        near(chain.mean_loss_run_length().expect("there is loss"), 4.0);
        near(chain.loss_share(), 0.01 / 0.26);
        let random = Chain::new(&LinkConfig {
            loss: Loss::Random { share: 0.2 },
            ..LinkConfig::default()
        });
        near(random.mean_loss_run_length().expect("there is loss"), 1.25);
        let perfect = Chain::new(&LinkConfig::default());
        assert_eq!(perfect.mean_loss_run_length(), None);
    }

    #[test]
    fn two_packets_change_places_as_often_as_can_be_worked_out_by_hand() {
        // Uniform on 2 ms, 1 ms apart: overtaken if own - next > 1, which is a triangle of 1/8.
        let config = LinkConfig {
            jitter: Jitter::Uniform { max_ms: 2.0 },
            reorder: true,
            ..LinkConfig::default()
        };
        let share = reorder_share(&config, &Chain::new(&config), 1.0);
        near(share.expect("each packet draws"), 0.125);
        // With order kept, P(delay ≤ 1/2) = F(1/2) F(3/2) = 1/4 · 3/4.
        let kept = LinkConfig {
            reorder: false,
            ..config
        };
        near(
            Delays::new(&kept, &Chain::new(&kept), 1.0).quantile_ms(3.0 / 16.0),
            0.5,
        );
    }
}
