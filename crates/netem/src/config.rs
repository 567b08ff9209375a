//! What a link does to packets, and the limits within which that makes sense.

use rand::{Rng, RngExt};
use rand_distr::{Distribution, Exp1, OpenClosed01, StandardNormal};
use serde::{Deserialize, Serialize};

const MAX_DELAY_MS: f64 = 60_000.0;
const RATE_BITS_PER_SECOND: std::ops::RangeInclusive<u64> = 1_000..=100_000_000_000;
/// At least one packet of the usual MTU; at most 64 MiB, so that memory stays bounded.
const QUEUE_BYTES: std::ops::RangeInclusive<u64> = 1_500..=(64 << 20);
/// Without [`LinkConfig::queue_bytes`] the queue holds so much of the rate: the order of what home routers hold.
const DEFAULT_QUEUE_MS: u64 = 100;
const MIN_DEFAULT_QUEUE_BYTES: u64 = 10 * 1_500;

/// One direction of a link. A packet first meets the loss, then the queue and the rate, then delay and jitter.
/// The default is a perfect link: it delivers at once.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LinkConfig {
    /// Delay of every packet, 0 to 60,000 ms.
    pub delay_ms: f64,
    /// Delay on top.
    pub jitter: Jitter,
    /// How long one draw of the jitter holds, from the packet for which it was drawn; 0: each packet draws. What delays a
    /// packet on a radio link delays its neighbours too, and a link that keeps the order and draws for each packet would
    /// become slower the more packets wait for each other.
    pub jitter_hold_ms: f64,
    /// Whether a packet may overtake one offered earlier. If not, it waits for it.
    pub reorder: bool,
    /// Which packets vanish.
    pub loss: Loss,
    /// Share of the delivered packets that arrive twice. The copy never precedes the original, and draws jitter of its own
    /// unless a draw holds.
    pub duplicate_share: f64,
    /// Packets leave one after the other at this rate, sizes as offered; without it, at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_bits_per_second: Option<u64>,
    /// A packet that would fill the queue beyond this is dropped; the packet being sent counts. Default: 100 ms of the
    /// rate, but at least 15,000 bytes and at most 64 MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_bytes: Option<u64>,
}

/// Distribution of the delay that is added to [`LinkConfig::delay_ms`]; never negative.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(
    tag = "kind",
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
#[allow(missing_docs)] // The parameters are the distributions' own.
pub enum Jitter {
    /// No jitter.
    None {},
    /// Any value up to `max_ms`, all alike.
    Uniform { max_ms: f64 },
    /// Normal; a negative draw counts as 0.
    Normal { mean_ms: f64, sd_ms: f64 },
    /// Many small, few large.
    Exponential { mean_ms: f64 },
    /// Heavy tail: Pareto of type II (Lomax), which starts at 0; a draw beyond `max_ms` counts as `max_ms`.
    Pareto {
        scale_ms: f64,
        shape: f64,
        max_ms: f64,
    },
}

/// How packets are lost, per packet offered.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(
    tag = "kind",
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
#[allow(missing_docs)] // The parameters are the model's own.
pub enum Loss {
    /// No loss.
    None {},
    /// Each packet with the same probability, whatever became of the others.
    Random { share: f64 },
    /// Two states, each with its own loss; after each packet the state changes with the probability given. Starts good.
    GilbertElliott {
        enter_bad: f64,
        leave_bad: f64,
        loss_good: f64,
        loss_bad: f64,
    },
}

/// Why a [`LinkConfig`] cannot be: correct the field named.
#[derive(Debug, thiserror::Error, PartialEq)]
#[non_exhaustive]
pub enum ConfigError {
    /// A delay or a parameter of the jitter.
    #[error("{field} is {value}: give {min} to {max}")]
    OutOfRange {
        /// As in JSON.
        field: &'static str,
        /// What was given.
        value: f64,
        /// Least value allowed.
        min: f64,
        /// Largest value allowed.
        max: f64,
    },
    /// A queue needs a rate at which it drains.
    #[error("queueBytes without rateBitsPerSecond: nothing would ever queue")]
    QueueWithoutRate,
}

fn within(field: &'static str, value: f64, min: f64, max: f64) -> Result<(), ConfigError> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(ConfigError::OutOfRange {
            field,
            value,
            min,
            max,
        })
    }
}

impl LinkConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// The first field outside its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        within("delayMs", self.delay_ms, 0.0, MAX_DELAY_MS)?;
        within("jitterHoldMs", self.jitter_hold_ms, 0.0, MAX_DELAY_MS)?;
        within("duplicateShare", self.duplicate_share, 0.0, 1.0)?;
        self.jitter.validate()?;
        self.loss.validate()?;
        let bounded = |field, value: Option<u64>, range: &std::ops::RangeInclusive<u64>| {
            value.map_or(Ok(()), |value| {
                within(
                    field,
                    value as f64,
                    *range.start() as f64,
                    *range.end() as f64,
                )
            })
        };
        bounded(
            "rateBitsPerSecond",
            self.rate_bits_per_second,
            &RATE_BITS_PER_SECOND,
        )?;
        bounded("queueBytes", self.queue_bytes, &QUEUE_BYTES)?;
        if self.queue_bytes.is_some() && self.rate_bits_per_second.is_none() {
            return Err(ConfigError::QueueWithoutRate);
        }
        Ok(())
    }

    /// Bytes the queue holds; none where there is no rate.
    pub fn queue_limit_bytes(&self) -> Option<u64> {
        self.rate_bits_per_second.map(|rate| {
            self.queue_bytes.unwrap_or_else(|| {
                (rate / 8 * DEFAULT_QUEUE_MS / 1_000)
                    .clamp(MIN_DEFAULT_QUEUE_BYTES, *QUEUE_BYTES.end())
            })
        })
    }

    /// How long the rate takes to send a packet, rounded up so that the rate is never exceeded; 0 without a rate.
    pub fn serialisation_ns(&self, size_bytes: u32) -> u64 {
        self.rate_bits_per_second.map_or(0, |rate| {
            (u64::from(size_bytes) * 8)
                .saturating_mul(1_000_000_000)
                .div_ceil(rate)
        })
    }
}

impl Default for Jitter {
    fn default() -> Self {
        Self::None {}
    }
}

impl Jitter {
    fn validate(&self) -> Result<(), ConfigError> {
        let ms = |field, value| within(field, value, 0.0, MAX_DELAY_MS);
        match *self {
            Self::None {} => Ok(()),
            Self::Uniform { max_ms } => ms("jitter.maxMs", max_ms),
            Self::Normal { mean_ms, sd_ms } => {
                ms("jitter.meanMs", mean_ms)?;
                ms("jitter.sdMs", sd_ms)
            }
            // The tail at e^-21 must stay within the limit of delays.
            Self::Exponential { mean_ms } => {
                within("jitter.meanMs", mean_ms, 0.0, MAX_DELAY_MS / 20.0)
            }
            Self::Pareto {
                scale_ms,
                shape,
                max_ms,
            } => {
                ms("jitter.scaleMs", scale_ms)?;
                within("jitter.shape", shape, 0.1, 100.0)?;
                ms("jitter.maxMs", max_ms)
            }
        }
    }

    pub(crate) fn sample_ms(&self, rng: &mut impl Rng) -> f64 {
        match *self {
            Self::None {} => 0.0,
            Self::Uniform { max_ms } => max_ms * rng.random::<f64>(),
            Self::Normal { mean_ms, sd_ms } => {
                let z: f64 = StandardNormal.sample(rng);
                (mean_ms + sd_ms * z).max(0.0)
            }
            Self::Exponential { mean_ms } => {
                let e: f64 = Exp1.sample(rng);
                mean_ms * e
            }
            Self::Pareto {
                scale_ms,
                shape,
                max_ms,
            } => {
                let u: f64 = OpenClosed01.sample(rng);
                (scale_ms * (u.powf(-1.0 / shape) - 1.0)).min(max_ms)
            }
        }
    }
}

impl Default for Loss {
    fn default() -> Self {
        Self::None {}
    }
}

impl Loss {
    fn validate(&self) -> Result<(), ConfigError> {
        let share = |field, value| within(field, value, 0.0, 1.0);
        match *self {
            Self::None {} => Ok(()),
            Self::Random { share: value } => share("loss.share", value),
            Self::GilbertElliott {
                enter_bad,
                leave_bad,
                loss_good,
                loss_bad,
            } => {
                share("loss.enterBad", enter_bad)?;
                share("loss.leaveBad", leave_bad)?;
                share("loss.lossGood", loss_good)?;
                share("loss.lossBad", loss_bad)
            }
        }
    }

    /// Every kind of loss is a chain of two states: [probability to change, probability of loss] of good and of bad.
    pub(crate) fn chain(&self) -> [[f64; 2]; 2] {
        match *self {
            Self::None {} => [[0.0, 0.0], [1.0, 0.0]],
            Self::Random { share } => [[0.0, share], [1.0, share]],
            Self::GilbertElliott {
                enter_bad,
                leave_bad,
                loss_good,
                loss_bad,
            } => [[enter_bad, loss_good], [leave_bad, loss_bad]],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<LinkConfig, String> {
        let config: LinkConfig = serde_json::from_str(json).map_err(|e| e.to_string())?;
        config.validate().map_err(|e| e.to_string())?;
        Ok(config)
    }

    #[test]
    fn an_empty_object_is_a_perfect_link() {
        assert_eq!(parse("{}"), Ok(LinkConfig::default()));
    }

    #[test]
    fn errors_name_the_field_and_its_range() {
        for (json, wanted) in [
            (r#"{"delayMs":-1}"#, "delayMs is -1: give 0 to 60000"),
            (r#"{"delay":1}"#, "unknown field `delay`"),
            (
                r#"{"jitter":{"kind":"none","meanMs":1}}"#,
                "unknown field `meanMs`",
            ),
            (
                r#"{"jitter":{"kind":"pareto","scaleMs":1,"shape":0,"maxMs":9}}"#,
                "jitter.shape",
            ),
            (
                r#"{"loss":{"kind":"random","share":1.5}}"#,
                "loss.share is 1.5: give 0 to 1",
            ),
            (
                r#"{"loss":{"kind":"gilbertElliott","enterBad":0.1}}"#,
                "missing field `leaveBad`",
            ),
            (r#"{"rateBitsPerSecond":1}"#, "rateBitsPerSecond is 1"),
            (r#"{"queueBytes":3000}"#, "queueBytes without"),
            (
                r#"{"rateBitsPerSecond":1000000,"queueBytes":1}"#,
                "queueBytes is 1",
            ),
        ] {
            let error = parse(json).expect_err(json);
            assert!(error.contains(wanted), "{json}: {error}");
        }
        let nan = LinkConfig {
            delay_ms: f64::NAN,
            ..LinkConfig::default()
        };
        assert!(nan.validate().is_err());
    }

    #[test]
    fn what_is_written_is_read_again() {
        for profile in crate::Profile::all() {
            for config in [profile.left_to_right, profile.right_to_left] {
                let json = serde_json::to_string(&config).expect("serialises");
                assert_eq!(parse(&json), Ok(config));
            }
        }
    }
}
