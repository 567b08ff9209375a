//! The driver with real packets: 100,000 each way through two network namespaces, 20 s. Needs root and /dev/net/tun.
//!
//! What is lost, doubled and dropped is exact. Instants depend on the machine, and only gross errors fail.

#![cfg(target_os = "linux")]

use std::time::Duration;

use antiphon_netem::calibration::{Case, DriverError};
use antiphon_netem::tun::Network;
use antiphon_netem::{LinkConfig, LinkStats, Overrides, Plan, Profile};

const PACKETS: u32 = 100_000;
const MEDIAN_LATENESS_LIMIT_US: u64 = 5_000;

fn possible() -> bool {
    let possible =
        nix::unistd::geteuid().is_root() && std::fs::exists("/dev/net/tun").unwrap_or(false);
    if !possible {
        eprintln!("skipped: needs root and /dev/net/tun");
    }
    possible
}

/// Loss in bursts and duplicates one way, reordering the other.
#[test]
fn real_packets_meet_what_the_model_says() {
    if !possible() {
        return;
    }
    let mut case = Case::of_profile(&Profile::find("wifi-bad").expect("exists"), PACKETS);
    case.links[0].duplicate_share = 0.01;
    case.links[1].reorder = true;
    let run = case.run_tun(1).expect("root may do this");
    let fates = |stats: &LinkStats| {
        (
            stats.offered_packets,
            stats.lost_packets,
            stats.queue_dropped_packets,
        )
    };
    let model = case.run_virtual(1).expect("valid");
    for (way, ((seen, stats), (wanted, wanted_stats))) in run.seen.iter().zip(&model).enumerate() {
        assert_eq!(fates(stats), fates(wanted_stats), "way {way}");
        assert_eq!(stats.offered_bytes, wanted_stats.offered_bytes);
        // The very packets that the model loses are missing: nothing else was lost.
        let arrived =
            |delays: &[Option<u64>]| delays.iter().map(Option::is_some).collect::<Vec<_>>();
        assert!(
            arrived(&seen.delays_ns) == arrived(&wanted.delays_ns),
            "way {way}"
        );
        assert!(seen.duplicated == wanted.duplicated, "way {way}");
    }
    assert_eq!(run.stats.left_to_right.link.reordered_packets, 0);
    assert!(!run.seen[0].0.reordered.contains(&true));
    assert!(run.seen[1].0.reordered.contains(&true));
    for stats in [run.stats.left_to_right, run.stats.right_to_left] {
        assert_eq!(stats.refused_packets, 0);
        assert!(
            stats.lateness_p50_us.expect("packets came") < MEDIAN_LATENESS_LIMIT_US,
            "{stats:?}"
        );
    }
    // Of the delays, only the median stands a machine that pauses.
    let timed = ["meanDelayMs", "delayP90Ms", "delayP99Ms"];
    for row in case.judge(
        &run.seen,
        &model,
        DriverError {
            delay_ms: 5.0,
            share: 0.1,
        },
    ) {
        println!("{row:?}");
        assert!(row.ok || timed.contains(&row.quantity), "{row:?}");
    }
}

#[test]
fn a_network_changes_while_it_runs_and_leaves_nothing_behind() {
    if !possible() {
        return;
    }
    let network = Network::new(&Plan::steady(
        1,
        LinkConfig::default(),
        LinkConfig::default(),
    ))
    .expect("root may do this");
    let (left, right) = (network.left().clone(), network.right().clone());
    let exchange = |network: &Network| {
        std::thread::scope(|scope| {
            let (left, right) = (network.left(), network.right());
            let listener = scope.spawn(move || {
                right.enter()?;
                // Any port: a child that the other test just forked may hold the one before for a moment.
                std::net::UdpSocket::bind((right.address, 0))
            });
            let listener = listener.join().expect("no panic").expect("bound");
            let address = listener.local_addr().expect("bound");
            let sender = scope.spawn(move || {
                left.enter()?;
                std::net::UdpSocket::bind((left.address, 0))?.send_to(b"hello", address)
            });
            sender.join().expect("no panic").expect("sent");
            listener
                .set_read_timeout(Some(Duration::from_secs(2)))
                .expect("set");
            listener.recv(&mut [0; 16]).is_ok()
        })
    };
    assert!(exchange(&network));
    let overrides = Overrides {
        loss_share: Some(1.0),
        delay_ms: None,
    };
    let dead = Profile::find("lan")
        .expect("exists")
        .plan(overrides, 1)
        .expect("valid");
    network.set_plan(&dead).expect("valid");
    assert!(!exchange(&network));
    let stats = network.stats().left_to_right.link;
    assert_eq!((stats.delivered_packets, stats.lost_packets), (1, 1));
    drop(network);
    assert!(!left.netns.exists() && !right.netns.exists());
}
