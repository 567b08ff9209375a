//! Which of QUIC's congestion controls suits the relay: sound from the relay to a listener over emulated networks, in virtual time.
//!
//! `cargo bench -p antiphon-server --bench congestion` prints a table, the same each time. Only the congestion control differs. "None" lets all
//! through at once: what the network alone does to the sound.

#[path = "../tests/network/mod.rs"]
mod network;

use std::{any::Any, sync::Arc, time::Instant};

use antiphon_congestion::SoundConfig;
use antiphon_netem::{LinkConfig, Loss, Overrides, Plan, Profile};
use network::{IN_TIME_MS, losing, play};
use quinn_proto::congestion::{
    BbrConfig, Controller, ControllerFactory, CubicConfig, NewRenoConfig,
};

const SECONDS: u64 = 30;

fn main() {
    println!(
        "Sound from the relay to a listener, {} s in virtual time, one session. In time: within {} ms of the network's least delay.\n",
        SECONDS, IN_TIME_MS
    );
    println!(
        "| network | streams | control | delivered, % | in time, % | delay beyond the least, ms: median | 99 % | window at the end, kB |"
    );
    println!("| --- | --: | --- | --: | --: | --: | --: | --: |");
    for (network, plan) in networks() {
        for streams in [1, 4] {
            for (control, factory) in controls() {
                let heard = play(&plan, streams, SECONDS, factory);
                println!(
                    "| {network} | {streams} | {control} | {:.2} | {:.2} | {:.1} | {:.1} | {} |",
                    100.0 * heard.delivered,
                    100.0 * heard.in_time,
                    heard.median_ms,
                    heard.p99_ms,
                    heard.window_bytes / 1_000,
                );
            }
        }
    }
}

fn controls() -> [(&'static str, Arc<dyn ControllerFactory + Send + Sync>); 5] {
    [
        ("none", Arc::new(NoControl)),
        ("sound", Arc::new(SoundConfig)),
        ("Cubic", Arc::new(CubicConfig::default())),
        ("NewReno", Arc::new(NewRenoConfig::default())),
        ("BBR", Arc::new(BbrConfig::default())),
    ]
}

/// Some profiles of the lab, and plain loss at two distances.
fn networks() -> Vec<(String, Plan)> {
    let mut networks = Vec::new();
    for (delay_ms, share) in [
        (10.0, 0.0),
        (10.0, 0.01),
        (10.0, 0.05),
        (50.0, 0.001),
        (50.0, 0.01),
        (50.0, 0.05),
    ] {
        let link = LinkConfig {
            delay_ms,
            loss: Loss::Random { share },
            ..LinkConfig::default()
        };
        networks.push((
            format!("{delay_ms} ms each way, {} % lost", share * 100.0),
            Plan::steady(1, link.clone(), link),
        ));
    }
    let tight = LinkConfig {
        delay_ms: 10.0,
        rate_bits_per_second: Some(4_000_000),
        ..LinkConfig::default()
    };
    networks.push((
        "10 ms each way, 4 Mbit/s".into(),
        Plan::steady(1, tight.clone(), tight),
    ));
    networks.push((
        "10 ms each way, 0.7 s of every 10 s lost".into(),
        losing((0..=SECONDS + 5).flat_map(|second| {
            let begin_ms = 1_000 * second;
            let share = if second % 10 == 9 { 1.0 } else { 0.0 };
            [(begin_ms, 0.0), (begin_ms + 300, share)]
        })),
    ));
    for name in ["wifi-bad", "4g"] {
        let profile = Profile::find(name).expect("is one of the lab's");
        let plan = profile.plan(Overrides::default(), 1).expect("is valid");
        networks.push((name.into(), plan));
    }
    networks
}

/// Far more than can be under way.
const NO_LIMIT: u64 = 1 << 30;

#[derive(Debug, Clone)]
struct NoControl;

impl ControllerFactory for NoControl {
    fn build(self: Arc<Self>, _now: Instant, _mtu: u16) -> Box<dyn Controller> {
        Box::new(NoControl)
    }
}

impl Controller for NoControl {
    fn on_congestion_event(&mut self, _: Instant, _: Instant, _: bool, _: u64) {}

    fn on_mtu_update(&mut self, _: u16) {}

    fn window(&self) -> u64 {
        NO_LIMIT
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        NO_LIMIT
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
