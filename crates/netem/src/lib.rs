//! A calibrated network emulator.
//!
//! One pure model of a link ([`Link`]) says what becomes of every packet; time is an argument. Two drivers move packets
//! by it: [`Line`], an event queue in virtual time for simulations, and `tun` (Linux), which joins two network
//! namespaces with real packets. Both are held against the closed formulas in [`expected`] by [`calibration`].
//!
//! The two ends are called left and right. Where the directions differ, left is the person at home:
//! left to right is the uplink, right to left the downlink.

#![forbid(unsafe_code)]

pub mod calibration;
mod config;
pub mod expected;
mod link;
mod plan;
mod profiles;
#[cfg(target_os = "linux")]
pub mod tun;
mod virtual_time;

pub use config::{ConfigError, Jitter, LinkConfig, Loss};
pub use link::{Link, Verdict};
pub use plan::{Direction, Plan, PlanError, Step};
pub use profiles::{Overrides, Profile};
pub use virtual_time::{Line, LinkStats, MAX_IN_FLIGHT_PACKETS};

const NS_PER_MS: f64 = 1e6;
