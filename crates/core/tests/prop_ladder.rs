//! Whatever a path does, the ladder stays within its bounds, never flutters, and comes back to the top.

use antiphon_core::{Ladder, Observation};
use proptest::prelude::*;

fn observations() -> impl Strategy<Value = Vec<Observation>> {
    let one = (
        0..5_000u32,
        0..500u32,
        prop_oneof![Just(0u32), 0..500u32],
        proptest::option::of(prop_oneof![Just(0.0f32), 0.0..0.4f32, Just(f32::NAN)]),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(
            |(elapsed_ms, offered, crowded, lost_share, can_copy, can_add_lanes)| Observation {
                elapsed_ms,
                offered,
                crowded,
                lost_share,
                can_copy,
                can_add_lanes,
            },
        );
    prop::collection::vec((one, 1..30usize), 1..60).prop_map(|runs| {
        let repeat = |(seen, times)| std::iter::repeat_n(seen, times);
        runs.into_iter().flat_map(repeat).collect()
    })
}

proptest! {
    #[test]
    fn never_out_of_bounds_never_fluttering(rungs in 1..6usize, path in observations()) {
        let mut ladder = Ladder::new(rungs);
        let mut rung = 0;
        let mut since_step_ms = 0u64;
        let mut since_down = 0;
        let mut copies = false;
        let mut has_added = false;
        let mut most_lost = 0.0f64;
        let mut since_up_ms = u64::MAX;
        for seen in path {
            let now = ladder.review(&seen);
            since_step_ms += u64::from(seen.elapsed_ms);
            since_up_ms = since_up_ms.saturating_add(seen.elapsed_ms.into());
            since_down += 1;
            prop_assert!(now.rung < rungs);
            prop_assert!(now.rung.abs_diff(rung) <= 1);
            prop_assert!(seen.can_copy || !now.copies);
            prop_assert!(seen.can_add_lanes || !now.add_lanes);
            // The order: copies off, if they crowd out more than was ever lost, then lanes, then down; but lanes are no answer to heavy loss, nor twice to the same, nor to a step up.
            let is_crowded = f64::from(seen.crowded) > 0.011 * f64::from(seen.offered);
            most_lost = most_lost.max(seen.lost_share.map_or(0.0, f64::from));
            let does_harm = f64::from(seen.crowded) > 1.001 * most_lost * f64::from(seen.offered);
            prop_assert!(!(is_crowded && does_harm && now.copies));
            prop_assert!(!(is_crowded && now.copies && !copies));
            // ...but a step up that is too much is taken back at once.
            prop_assert!(!(copies && now.rung > rung) || since_up_ms <= 1_500);
            let is_heavy = seen.lost_share.is_some_and(|lost| lost > 0.1);
            prop_assert!(!(seen.can_add_lanes && now.rung > rung) || is_heavy || has_added || since_up_ms <= 1_500);
            has_added |= now.add_lanes;
            // Copies, which add to it, are the last answer to what they could not make up for.
            let begins = now.copies && !copies;
            let is_hopeless = seen.lost_share.is_some_and(|lost| lost > 0.25);
            prop_assert!(!(is_hopeless && begins && rung + 1 < rungs));
            if now.rung < rung {
                prop_assert!(since_step_ms >= 10_000, "up after {since_step_ms} ms");
                (since_step_ms, since_up_ms) = (0, 0);
            }
            if now.rung > rung {
                prop_assert!(since_down >= 2, "down twice in {since_down} reviews");
                (since_step_ms, since_down) = (0, 0);
            }
            (rung, copies) = (now.rung, now.copies);
        }
        // All is well from now on: at most the longest wait for each rung.
        let calm = Observation {
            elapsed_ms: 1_000,
            offered: 375,
            crowded: 0,
            lost_share: Some(0.0),
            can_copy: true,
            can_add_lanes: true,
        };
        let mut last = ladder.review(&calm);
        for _ in 0..160 * rungs + 640 {
            last = ladder.review(&calm);
        }
        prop_assert_eq!((last.rung, last.copies, last.add_lanes), (0, false, false));
    }
}
