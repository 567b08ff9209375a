//! Networks by name. Where nothing else is said, figures are set by hand: plausible, and fixed, so that runs compare.

use serde::Serialize;

use crate::{ConfigError, Jitter, LinkConfig, Loss, Plan};

/// A network by name. Left is the person at home: left to right is the uplink, right to left the downlink.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Profile {
    /// As on the command line.
    pub name: String,
    /// Where its figures come from.
    pub source: &'static str,
    /// The uplink.
    pub left_to_right: LinkConfig,
    /// The downlink.
    pub right_to_left: LinkConfig,
}

/// What to change in a profile, in both directions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overrides {
    /// Random loss of this share instead of the profile's loss.
    pub loss_share: Option<f64>,
    /// This delay instead of the profile's; its jitter stays.
    pub delay_ms: Option<f64>,
}

impl Profile {
    /// Every profile.
    pub fn all() -> Vec<Self> {
        let mut all = vec![
            Self::new(
                "lan",
                "set by hand: two hops of switched gigabit Ethernet",
                both(|_| LinkConfig {
                    jitter: Jitter::Exponential { mean_ms: 0.02 },
                    ..wire(0.1, 1_000.0)
                }),
            ),
            Self::new(
                "fibre",
                "set by hand: two fibre accesses of one country, RTT 10 ms",
                both(|_| LinkConfig {
                    jitter: Jitter::Exponential { mean_ms: 0.2 },
                    loss: Loss::Random { share: 0.0005 },
                    ..wire(5.0, 300.0)
                }),
            ),
            Self::new(
                "cable",
                "set by hand: RTT 20 ms; the uplink waits for its grants (DOCSIS)",
                both(|up| LinkConfig {
                    jitter: Jitter::Exponential {
                        mean_ms: if up { 1.5 } else { 0.5 },
                    },
                    jitter_hold_ms: 2.0,
                    loss: Loss::Random { share: 0.001 },
                    ..wire(9.0, if up { 20.0 } else { 200.0 })
                }),
            ),
            Self::new(
                "wifi",
                "set by hand: fibre behind one good Wi-Fi hop, which costs 0.4 ms at the median, 5 ms at the 99th percentile",
                both(|_| LinkConfig {
                    jitter: Jitter::Pareto {
                        scale_ms: 1.5,
                        shape: 3.0,
                        max_ms: 100.0,
                    },
                    jitter_hold_ms: 10.0,
                    loss: bursts(0.002, 0.5, 0.5),
                    ..wire(5.0, 100.0)
                }),
            ),
            Self::new(
                "wifi-bad",
                "Sui et al., MobiSys 2016, Wi-Fi hop of a campus: median 3 ms, 90th percentile 20 ms (theirs has a longer tail: 99th 250 ms)",
                both(|_| LinkConfig {
                    jitter: Jitter::Pareto {
                        scale_ms: 12.0,
                        shape: 3.0,
                        max_ms: 250.0,
                    },
                    jitter_hold_ms: 10.0,
                    loss: bursts(0.01, 0.2, 0.4),
                    ..wire(5.0, 20.0)
                }),
            ),
            Self::new(
                "4g",
                "set by hand: RTT 50 ms and up; the uplink waits for its grants (LTE)",
                both(|up| LinkConfig {
                    jitter: Jitter::Exponential {
                        mean_ms: if up { 6.0 } else { 3.0 },
                    },
                    jitter_hold_ms: 10.0,
                    loss: bursts(0.001, 0.4, 0.4),
                    ..wire(25.0, if up { 10.0 } else { 30.0 })
                }),
            ),
            Self::new(
                "5g",
                "set by hand: RTT 20 ms and up, reached by the best 5 % of mobile users (arXiv:2507.18834)",
                both(|up| LinkConfig {
                    jitter: Jitter::Exponential {
                        mean_ms: if up { 2.0 } else { 1.0 },
                    },
                    jitter_hold_ms: 10.0,
                    loss: bursts(0.001, 0.5, 0.3),
                    ..wire(10.0, if up { 50.0 } else { 200.0 })
                }),
            ),
            Self::new(
                "leo",
                "Michel et al., IMC 2022, Starlink: RTT 20 ms at least, 50 ms at the median; loss set by hand, in bursts as of handovers",
                both(|up| LinkConfig {
                    jitter: Jitter::Normal {
                        mean_ms: 7.0,
                        sd_ms: 3.0,
                    },
                    jitter_hold_ms: 10.0,
                    loss: bursts(0.002, 0.25, 0.8),
                    ..wire(18.0, if up { 10.0 } else { 100.0 })
                }),
            ),
            Self::new(
                "mbit-40-33",
                "the network \"WiFi\" of Hopp's remote control article: 40 Mbit/s down, 33 up; delay set by hand",
                both(|up| wire(1.0, if up { 33.0 } else { 40.0 })),
            ),
            Self::new(
                "mbit-12-4",
                "the network \"WiFi_testing\" of Hopp's remote control article: 12 Mbit/s down, 4 up; delay set by hand",
                both(|up| wire(1.0, if up { 4.0 } else { 12.0 })),
            ),
        ];
        // 50 ms are in its figures 2 to 4; 100 ms is set by hand.
        all.extend(
            [10.0, 20.0, 40.0, 50.0, 80.0, 100.0, 160.0, 320.0].map(|rtt_ms| {
                Self::new(
                    &format!("rtt-{rtt_ms}"),
                    "the WebRTC data channel study, table I, on its link of 100 Mbit/s",
                    both(|_| wire(rtt_ms / 2.0, 100.0)),
                )
            }),
        );
        all
    }

    /// A profile by its name.
    pub fn find(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|profile| profile.name == name)
    }

    /// The profile from now to the end.
    ///
    /// # Errors
    /// If an override is out of range.
    pub fn plan(&self, overrides: Overrides, seed: u64) -> Result<Plan, ConfigError> {
        let apply = |link: &LinkConfig| {
            let mut link = link.clone();
            if let Some(share) = overrides.loss_share {
                link.loss = Loss::Random { share };
            }
            if let Some(delay_ms) = overrides.delay_ms {
                link.delay_ms = delay_ms;
            }
            link.validate().map(|()| link)
        };
        Ok(Plan::steady(
            seed,
            apply(&self.left_to_right)?,
            apply(&self.right_to_left)?,
        ))
    }

    fn new(name: &str, source: &'static str, [up, down]: [LinkConfig; 2]) -> Self {
        Self {
            name: name.to_owned(),
            source,
            left_to_right: up,
            right_to_left: down,
        }
    }
}

/// The uplink, then the downlink.
fn both(link: impl Fn(bool) -> LinkConfig) -> [LinkConfig; 2] {
    [link(true), link(false)]
}

fn wire(delay_ms: f64, mbit_per_second: f64) -> LinkConfig {
    LinkConfig {
        delay_ms,
        rate_bits_per_second: Some((mbit_per_second * 1e6) as u64),
        ..LinkConfig::default()
    }
}

fn bursts(enter_bad: f64, leave_bad: f64, loss_bad: f64) -> Loss {
    Loss::GilbertElliott {
        enter_bad,
        leave_bad,
        loss_good: 0.0,
        loss_bad,
    }
}
