//! The relay's congestion control, in virtual time over the emulator's networks.

mod network;

use std::sync::Arc;

use antiphon_congestion::SoundConfig;
use antiphon_netem::{LinkConfig, Loss, Plan, Step};
use network::{Heard, losing, play};

const SECONDS: u64 = 10;

fn sound(link: LinkConfig, streams: u64) -> Heard {
    let plan = Plan::steady(1, link.clone(), link);
    play(&plan, streams, SECONDS, Arc::new(SoundConfig))
}

#[test]
fn after_an_interruption_everything_goes_on_at_once() {
    for streams in [1, 4, 12] {
        for milliseconds in [300, 700, 1_000, 1_500] {
            // From the beginning of what is counted.
            let begin_ms = 500 * SECONDS;
            let plan = losing([(0, 0.0), (begin_ms, 1.0), (begin_ms + milliseconds, 0.0)]);
            let heard = play(&plan, streams, SECONDS, Arc::new(SoundConfig));
            let lost = milliseconds as f64 / (1_000 * SECONDS) as f64;
            // A quarter of a second more.
            assert!(
                heard.delivered > 1.0 - lost - 0.025,
                "{streams} streams, {milliseconds} ms: {}",
                heard.delivered
            );
        }
    }
}

#[test]
fn what_the_network_loses_by_chance_is_all_that_is_missing_and_nothing_waits() {
    for (delay_ms, share) in [(10.0, 0.0), (10.0, 0.05), (50.0, 0.01), (50.0, 0.05)] {
        for streams in [1, 4] {
            let heard = sound(
                LinkConfig {
                    delay_ms,
                    loss: Loss::Random { share },
                    ..LinkConfig::default()
                },
                streams,
            );
            let what = format!("{streams} streams, {delay_ms} ms, {share}");
            // Three standard deviations of chance, at the least number of packets.
            let chance = 3.0 * (share / (375.0 * SECONDS as f64)).sqrt() + 0.001;
            assert!(
                heard.delivered > 1.0 - share - chance,
                "{what}: {}",
                heard.delivered
            );
            assert!((heard.in_time - heard.delivered).abs() < 1e-9, "{what}");
            assert!(heard.p99_ms < 1.0, "{what}: {} ms", heard.p99_ms);
        }
    }
}

#[test]
fn a_link_that_is_too_narrow_is_kept_full_but_its_queue_is_not() {
    // The queue holds 100 ms; more waits with the sender, up to 33 ms of this.
    let heard = sound(
        LinkConfig {
            delay_ms: 10.0,
            rate_bits_per_second: Some(4_000_000),
            ..LinkConfig::default()
        },
        4,
    );
    // 4 of 6.9 Mbit/s.
    assert!(
        (0.55..0.65).contains(&heard.delivered),
        "{}",
        heard.delivered
    );
    assert!(heard.median_ms < 80.0, "{} ms", heard.median_ms);
}

/// A tenth counts as congestion. Of a little less, chance makes more than a tenth again and again.
#[test]
fn chance_does_not_close_the_window_for_good() {
    for share in [0.06, 0.08] {
        let link = LinkConfig {
            delay_ms: 50.0,
            loss: Loss::Random { share },
            ..LinkConfig::default()
        };
        let plan = Plan::steady(1, link.clone(), link);
        let heard = play(&plan, 4, 60, Arc::new(SoundConfig));
        assert!(
            heard.delivered > 1.0 - share - 0.01,
            "{share}: {}",
            heard.delivered
        );
    }
}

#[test]
fn a_longer_way_is_no_queue_of_ours() {
    let step = |at_ms, delay_ms| Step {
        at_ms,
        link: LinkConfig {
            delay_ms,
            rate_bits_per_second: Some(4_000_000),
            ..LinkConfig::default()
        },
    };
    // From the beginning of what is counted.
    let steps = vec![step(0, 10.0), step(500 * SECONDS, 35.0)];
    let plan = Plan {
        seed: 1,
        left_to_right: steps.clone(),
        right_to_left: steps,
    };
    let heard = play(&plan, 4, SECONDS, Arc::new(SoundConfig));
    // 4 of 6.9 Mbit/s, but for the first three seconds.
    assert!(heard.delivered > 0.44, "{}", heard.delivered);
}
