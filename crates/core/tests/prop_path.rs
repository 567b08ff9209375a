//! Whatever is seen of the paths, the choice never flutters, uses nothing that is closed, and comes back.

use antiphon_core::path::{Asked, Carried, ListenerObservation, Route, SenderObservation};
use antiphon_core::{Listening, Pin, Sending};
use proptest::prelude::*;

fn share() -> impl Strategy<Value = Option<f32>> {
    proptest::option::of(prop_oneof![Just(0.0f32), 0.0..0.3f32, Just(f32::NAN)])
}

fn runs<T: Clone + std::fmt::Debug>(
    one: impl Strategy<Value = T>,
) -> impl Strategy<Value = Vec<T>> {
    proptest::collection::vec((one, 1..60usize), 1..60).prop_map(|runs| {
        let repeat = |(seen, times)| std::iter::repeat_n(seen, times);
        runs.into_iter().flat_map(repeat).collect()
    })
}

/// Both paths open: what remains is a choice.
fn sender_observations() -> impl Strategy<Value = Vec<SenderObservation>> {
    let one = (0..3_000u32, share(), share(), any::<bool>(), 1..4u32);
    runs(one.prop_map(
        |(elapsed_ms, direct, relay, is_short, relay_listeners)| SenderObservation {
            elapsed_ms,
            pin: Pin::Automatic,
            is_direct_open: true,
            is_relay_open: true,
            direct_lost_share: direct,
            relay_lost_share: relay,
            direct: Carried {
                is_short,
                is_answered: true,
            },
            relay: Carried::default(),
            relay_listeners,
        },
    ))
}

fn listener_observations() -> impl Strategy<Value = Vec<ListenerObservation>> {
    let one = (
        0..3_000u32,
        0..5u32,
        any::<u32>(),
        prop_oneof![Just(0), any::<u32>()],
    );
    runs(one.prop_map(
        |(elapsed_ms, streams, forwarded, aged)| ListenerObservation {
            elapsed_ms,
            pin: Pin::Automatic,
            is_relay_open: true,
            streams,
            forwarded,
            aged,
        },
    ))
}

proptest! {
    #[test]
    fn a_sender_changes_its_mind_seldom_and_returns(seen in sender_observations()) {
        let mut sending = Sending::new();
        let both = Route { direct: true, relay: true };
        let (mut route, mut since_ms, mut changes, mut passed_ms) = (both, 0u64, 0, 0u64);
        for seen in seen {
            let now = sending.review(&seen);
            passed_ms += u64::from(seen.elapsed_ms);
            since_ms += u64::from(seen.elapsed_ms);
            prop_assert!(now.direct || now.relay);
            if now == route {
                continue;
            }
            match (route == both, now == both) {
                (true, _) => prop_assert!(seen.direct.is_short),
                (_, true) => prop_assert!(since_ms >= 15_000, "both after {since_ms} ms"),
                _ => prop_assert!(seen.direct.is_short && since_ms >= 5_000, "{since_ms} ms"),
            }
            (route, since_ms) = (now, 0);
            changes += 1;
        }
        // One for each return and the fall after it, and in between one each 5 s.
        prop_assert!(changes <= 1 + 2 * (passed_ms / 15_000) + passed_ms / 5_000, "{changes}");
        let calm = SenderObservation {
            elapsed_ms: 500,
            is_direct_open: true,
            is_relay_open: true,
            relay_listeners: 2,
            ..Default::default()
        };
        prop_assert!((0..600).any(|_| sending.review(&calm) == both));
        prop_assert!((0..600).all(|_| sending.review(&calm) == both));
    }

    #[test]
    fn a_listener_changes_its_mind_seldom_and_returns(seen in listener_observations()) {
        let mut listening = Listening::new();
        let (mut asked, mut since_ms) = (Asked::Forwarded, 0u64);
        for seen in seen {
            let now = listening.review(&seen);
            since_ms += u64::from(seen.elapsed_ms);
            prop_assert_ne!(now, Asked::Nothing);
            if now == asked {
                continue;
            }
            if now == Asked::Mixed {
                prop_assert!(seen.streams >= 2 && since_ms >= 2_000, "mixed after {since_ms} ms");
            } else {
                prop_assert!(since_ms >= 30_000, "forwarded after {since_ms} ms");
            }
            (asked, since_ms) = (now, 0);
        }
        let calm = ListenerObservation {
            elapsed_ms: 500,
            is_relay_open: true,
            streams: 8,
            forwarded: 1_000,
            ..Default::default()
        };
        // A moment of what was seen before may still be judged.
        for _ in 0..4 {
            listening.review(&calm);
        }
        prop_assert!((0..600).any(|_| listening.review(&calm) == Asked::Forwarded));
        prop_assert!((0..600).all(|_| listening.review(&calm) == Asked::Forwarded));
    }
}
