//! The virtual driver against the formulas, 100,000 packets each way. Seeded: the outcome is always the same.

use antiphon_netem::Profile;
use antiphon_netem::calibration::{Case, DriverError};

const PACKETS: u32 = 100_000;

fn assert_calibrated(cases: Vec<Case>) {
    for case in cases {
        let seen = case.run_virtual(1).expect("valid");
        for (_, stats) in &seen {
            assert_eq!(stats.offered_packets, u64::from(PACKETS));
            assert_eq!(
                stats.offered_packets,
                stats.delivered_packets + stats.lost_packets + stats.queue_dropped_packets
            );
        }
        let rows = case.judge(&seen, &seen, DriverError::default());
        assert_eq!(rows.len(), 20);
        for row in rows {
            assert!(row.ok, "{row:?}");
        }
    }
}

#[test]
fn every_profile_does_what_the_formulas_say() {
    let profiles = Profile::all();
    assert_calibrated(
        profiles
            .iter()
            .map(|profile| Case::of_profile(profile, PACKETS))
            .collect(),
    );
}

#[test]
fn reordering_duplicates_bursts_and_overflow_do_what_the_formulas_say() {
    assert_calibrated(Case::beyond_profiles(PACKETS));
}

/// Of 20 s of jitter that is held, so few draws decide over the latest hundredth that anything may come of it.
#[test]
fn what_a_short_stream_cannot_tell_is_said() {
    for (name, percentiles) in [("lan", 0), ("wifi", 2), ("wifi-bad", 2)] {
        let case = Case::of_profile(&Profile::find(name).expect("exists"), PACKETS);
        let seen = case.run_virtual(1).expect("valid");
        let rows = case.judge(&seen, &seen, DriverError::default());
        let untold: Vec<_> = rows.iter().filter(|row| !row.can_tell).collect();
        assert_eq!(untold.len(), percentiles, "{untold:?}");
        assert!(untold.iter().all(|row| row.quantity == "delayP99Ms"));
    }
}

/// As a driver of real packets may have it.
const REAL: DriverError = DriverError {
    delay_ms: 0.5,
    share: 0.02,
};

#[test]
fn a_driver_is_not_excused_by_its_own_scatter() {
    let case = Case::of_profile(&Profile::find("fibre").expect("exists"), PACKETS);
    let exact = case.run_virtual(1).expect("valid");
    let mut seen = exact.clone();
    // It stands still for 50 ms a second.
    for (number, delay_ns) in seen[0].0.delays_ns.iter_mut().enumerate() {
        let late_ms = 50_u64.saturating_sub(number as u64 / 5 % 1_000);
        if let Some(delay_ns) = delay_ns {
            *delay_ns += late_ms * 1_000_000;
        }
    }
    let rows = case.judge(&seen, &exact, REAL);
    let wrong: Vec<_> = rows.iter().filter(|row| !row.ok).collect();
    let quantities: Vec<_> = wrong.iter().map(|row| row.quantity).collect();
    assert_eq!(quantities, ["meanDelayMs", "delayP99Ms"], "{wrong:?}");
}

#[test]
fn an_outage_is_found_out() {
    for name in ["lan", "wifi-bad", "reordering"] {
        let case = Profile::find(name)
            .map(|profile| Case::of_profile(&profile, PACKETS))
            .or_else(|| {
                Case::beyond_profiles(PACKETS)
                    .into_iter()
                    .find(|case| case.name == name)
            })
            .expect("exists");
        let exact = case.run_virtual(1).expect("valid");
        let mut seen = exact.clone();
        // It is dead for a tenth of the time.
        let dead = 40_000..50_000;
        seen[0].0.delays_ns[dead.clone()].fill(None);
        seen[0].0.reordered[dead.clone()].fill(false);
        seen[0].0.duplicated[dead].fill(false);
        let rows = case.judge(&seen, &exact, REAL);
        let wrong: Vec<_> = rows.iter().filter(|row| !row.ok).collect();
        assert!(wrong.iter().all(|row| row.direction == "leftToRight"));
        for quantity in ["lossShare", "throughputBitsPerSecond"] {
            let is_wrong = wrong.iter().any(|row| row.quantity == quantity);
            assert!(is_wrong, "{name}, {quantity}: {wrong:?}");
        }
    }
}

#[test]
fn a_link_that_differs_from_its_formula_is_found_out() {
    let judged = |spoil: fn(&mut Case), quantity: &str| {
        let case = Case::of_profile(&Profile::find("leo").expect("exists"), PACKETS);
        let mut spoiled = case.clone();
        spoil(&mut spoiled);
        let seen = spoiled.run_virtual(1).expect("valid");
        let exact = case.run_virtual(1).expect("valid");
        let rows = case.judge(&seen, &exact, DriverError::default());
        let row = rows.iter().find(|row| row.quantity == quantity);
        assert!(!row.expect("exists").ok, "{row:?}");
    };
    judged(|case| case.links[0].delay_ms += 1.0, "delayP50Ms");
    judged(
        |case| case.links[0].duplicate_share = 0.001,
        "duplicateShare",
    );
    judged(|case| case.links[0].reorder = true, "reorderShare");
    judged(
        |case| {
            let share = 0.0063;
            case.links[0].loss = antiphon_netem::Loss::Random { share };
        },
        "meanLossRunLength",
    );
    judged(
        |case| case.links[0].loss = antiphon_netem::Loss::None {},
        "lossShare",
    );
}
