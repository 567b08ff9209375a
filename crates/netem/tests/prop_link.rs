//! What must hold whatever the link and the packets are.

use antiphon_netem::{Direction, Jitter, Line, LinkConfig, LinkStats, Loss, Plan, Step, Verdict};
use proptest::prelude::*;

fn jitter() -> impl Strategy<Value = Jitter> {
    prop_oneof![
        Just(Jitter::None {}),
        (0.0..20.0).prop_map(|max_ms| Jitter::Uniform { max_ms }),
        (0.0..10.0, 0.0..10.0).prop_map(|(mean_ms, sd_ms)| Jitter::Normal { mean_ms, sd_ms }),
        (0.0..10.0).prop_map(|mean_ms| Jitter::Exponential { mean_ms }),
        (0.0..10.0, 0.1..9.0, 0.0..500.0).prop_map(|(scale_ms, shape, max_ms)| Jitter::Pareto {
            scale_ms,
            shape,
            max_ms
        }),
    ]
}

fn loss() -> impl Strategy<Value = Loss> {
    let share = || 0.0..=1.0;
    prop_oneof![
        Just(Loss::None {}),
        share().prop_map(|share| Loss::Random { share }),
        (share(), share(), share(), share()).prop_map(
            |(enter_bad, leave_bad, loss_good, loss_bad)| Loss::GilbertElliott {
                enter_bad,
                leave_bad,
                loss_good,
                loss_bad
            }
        ),
    ]
}

fn link() -> impl Strategy<Value = LinkConfig> {
    let rate = proptest::option::of((
        10_000_u64..100_000_000,
        proptest::option::of(1_500_u64..50_000),
    ));
    (
        0.0..100.0,
        jitter(),
        prop_oneof![Just(0.0), 0.0..20.0],
        any::<bool>(),
        loss(),
        0.0..=1.0,
        rate,
    )
        .prop_map(
            |(delay_ms, jitter, jitter_hold_ms, reorder, loss, duplicate_share, rate)| LinkConfig {
                delay_ms,
                jitter,
                jitter_hold_ms,
                reorder,
                loss,
                duplicate_share,
                rate_bits_per_second: rate.map(|(rate, _)| rate),
                queue_bytes: rate.and_then(|(_, queue)| queue),
            },
        )
}

fn plan() -> impl Strategy<Value = Plan> {
    let steps = proptest::collection::vec((0..200_u64, link()), 1..4).prop_map(|mut steps| {
        steps.sort_by_key(|(at_ms, _)| *at_ms);
        steps
            .into_iter()
            .map(|(at_ms, link)| Step { at_ms, link })
            .collect()
    });
    (any::<u64>(), steps).prop_map(|(seed, left_to_right)| Plan {
        seed,
        left_to_right,
        right_to_left: Vec::new(),
    })
}

/// Gap to the packet before, in µs, and size.
fn packets() -> impl Strategy<Value = Vec<(u64, u32)>> {
    proptest::collection::vec((0..2_000_u64, 1..=1_500_u32), 0..400)
}

/// What came out: (instant, number).
fn run(plan: &Plan, packets: &[(u64, u32)]) -> (Vec<(u64, usize)>, Vec<Verdict>, LinkStats) {
    let mut line = Line::new(plan, Direction::LeftToRight, 0).expect("valid");
    let mut out = Vec::new();
    let mut verdicts = Vec::new();
    let mut now_ns = 0;
    for (number, (gap_us, size_bytes)) in packets.iter().enumerate() {
        now_ns += gap_us * 1_000;
        while let Some(at_ns) = line.poll_at().filter(|at_ns| *at_ns <= now_ns) {
            out.push((at_ns, line.pop(now_ns).expect("is due")));
        }
        verdicts.push(line.push(number, *size_bytes, now_ns));
    }
    while let Some(at_ns) = line.poll_at() {
        out.push((at_ns, line.pop(at_ns).expect("is due")));
    }
    (out, verdicts, line.stats())
}

proptest! {
    #[test]
    fn every_packet_is_delivered_lost_or_dropped(plan in plan(), packets in packets()) {
        let (out, _, stats) = run(&plan, &packets);
        prop_assert_eq!(stats.offered_packets, packets.len() as u64);
        prop_assert_eq!(
            stats.offered_packets,
            stats.delivered_packets + stats.lost_packets + stats.queue_dropped_packets
        );
        prop_assert_eq!(out.len() as u64, stats.delivered_packets + stats.duplicated_packets);
        prop_assert!(out.is_sorted_by_key(|(at_ns, _)| *at_ns));
    }

    #[test]
    fn order_is_kept_unless_reordering_is_on(mut plan in plan(), packets in packets()) {
        for step in &mut plan.left_to_right {
            step.link.reorder = false;
        }
        let (out, _, stats) = run(&plan, &packets);
        prop_assert_eq!(stats.reordered_packets, 0);
        let mut firsts: Vec<usize> = Vec::new();
        for (_, number) in out {
            if !firsts.contains(&number) {
                firsts.push(number);
            }
        }
        prop_assert!(firsts.is_sorted());
    }

    #[test]
    fn no_packet_is_earlier_than_the_delay(link in link(), packets in packets()) {
        let plan = Plan::steady(3, link.clone(), LinkConfig::default());
        let (_, verdicts, _) = run(&plan, &packets);
        let mut now_ns = 0;
        for (verdict, (gap_us, size_bytes)) in verdicts.iter().zip(&packets) {
            now_ns += gap_us * 1_000;
            if let Verdict::Delivered { at_ns, duplicate_at_ns } = *verdict {
                let earliest_ns = now_ns + link.serialisation_ns(*size_bytes) + (link.delay_ms * 1e6) as u64;
                prop_assert!(at_ns >= earliest_ns);
                prop_assert!(duplicate_at_ns.is_none_or(|copy_ns| copy_ns >= at_ns));
            }
        }
    }

    /// Over any stretch of time, no more than the rate allows and one packet; and no more waits than the queue holds.
    #[test]
    fn the_rate_and_the_queue_are_never_exceeded(mut link in link(), rate in 10_000..10_000_000_u64, packets in packets()) {
        link.rate_bits_per_second = Some(rate);
        link.jitter = Jitter::None {};
        link.delay_ms = 0.0;
        link.duplicate_share = 0.0;
        let plan = Plan::steady(3, link.clone(), LinkConfig::default());
        let (out, verdicts, _) = run(&plan, &packets);
        for pair in out.windows(2) {
            let (_, number) = pair[1];
            prop_assert!(pair[1].0 - pair[0].0 >= link.serialisation_ns(packets[number].1));
        }
        let longest_ns = link.queue_limit_bytes().expect("there is a rate") * 8_000_000_000 / rate;
        let mut now_ns = 0;
        for (verdict, (gap_us, _)) in verdicts.iter().zip(&packets) {
            now_ns += gap_us * 1_000;
            if let Verdict::Delivered { at_ns, .. } = verdict {
                // Each packet's time is rounded up to a whole nanosecond.
                prop_assert!(at_ns - now_ns <= longest_ns + packets.len() as u64 + 1);
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_result(plan in plan(), packets in packets()) {
        prop_assert_eq!(run(&plan, &packets), run(&plan, &packets));
    }

    #[test]
    fn a_plan_survives_json(plan in plan()) {
        let json = serde_json::to_string(&plan).expect("serialises");
        prop_assert_eq!(Plan::from_json(&json).expect("is read"), plan);
    }

    #[test]
    fn no_text_breaks_the_reader(text in ".*") {
        let _ = Plan::from_json(&text);
    }

    /// A valid plan with one piece replaced: what is accepted must also run.
    #[test]
    fn no_spoilt_plan_breaks_the_reader_or_the_line(
        plan in plan(),
        at in any::<prop::sample::Index>(),
        length in 0..8_usize,
        with in prop_oneof![
            Just("-1"), Just("1e308"), Just("18446744073709551615"), Just("null"), Just("{}"), Just("[]"), Just("\""), Just("0"), Just(",")
        ],
        packets in packets(),
    ) {
        let mut json: Vec<char> = serde_json::to_string(&plan).expect("serialises").chars().collect();
        let at = at.index(json.len());
        json.splice(at..(at + length).min(json.len()), with.chars());
        if let Ok(plan) = Plan::from_json(&json.into_iter().collect::<String>()) {
            run(&plan, &packets);
        }
    }
}
