//! What a listener's path can carry: whether copies are sent, and how far the format steps down.
//!
//! The formats are *rungs*, the chosen one first (rung 0), each cheaper than the one before. What they are is the host's to say.
//! When lanes back up the order is fixed: copies go off, if they do more harm than good, then lanes are added, then the format steps down. It steps up again after
//! a calm time, longer after each attempt that failed; an attempt that backs lanes up is taken back at once, while the format before it
//! is still sent. Many lanes together may send more than a path carries before one of them backs up; then the listener loses so much that
//! it steps down for that. Lanes that did not prevent a step down were added in vain: the host takes them away, and no more are added until
//! all is well again.
//!
//! Copies hide the loss they are for: while they are sent, the listener reports little of it or none. So now and then they are switched off for a
//! moment to look, the less often the more often that was in vain. `docs/adr/0015-redundancy-and-degradation.md`.

/// More than this share of a review's datagrams found every lane crowded: the lanes back up.
const CROWDED_SHARE: f32 = 0.01;
/// A larger share lost is congestion, not chance, as in Google's congestion control for WebRTC (draft-ietf-rmcat-gcc-02, section 6); unless copies make up for it.
pub const CONGESTED_SHARE: f32 = 0.1;
/// A larger share lost is not made up for by copies: of a quarter a sixteenth would be left, if it was chance.
const HOPELESS_SHARE: f32 = 0.25;
/// Reviews in a row with lanes that back up, before the format steps down.
const DOWN_REVIEWS: u32 = 2;
/// Calm before the format steps up. Doubled after each attempt that failed.
const CLIMB: Backoff = Backoff::new(10_000, 160_000);
/// So long after a step up, lanes that back up end it at the first review...
const TRIAL_MS: u32 = 1_500;
/// ...which is due once so many datagrams found every lane crowded: more than a moment's hold-up of this machine.
const TRIAL_CROWDED: u32 = 8;
/// A step up that has held for so long was right.
const PROVEN_MS: u32 = 60_000;
/// Loss that switches copies on...
const COPIES_ON_SHARE: f32 = 0.005;
/// ...and loss that brings them back when they were switched off to look.
const COPIES_BACK_SHARE: f32 = 0.001;
/// Copies are sent for so long before they are switched off to look, unless they leave so much that it can be seen without. Doubled when the loss was still
/// there.
const HOLD: Backoff = Backoff::new(10_000, 320_000);
/// How long a look takes; no loss meanwhile means that copies are no longer needed.
const LOOK_MS: u32 = 10_000;
/// Copies that did harm or no good stay off for so long. Doubled each time.
const REST: Backoff = Backoff::new(10_000, 320_000);
/// The time that a listener's report is of.
const REPORT_MS: u32 = 4_000;
/// Until the listener's reports are of what was sent since the last change: half a second old by the time they are sent, and under way.
const SETTLED_MS: u32 = REPORT_MS + 2_000;
/// The longest time between reviews that counts: more is a host that slept, which says nothing of the path.
pub(crate) const MAX_ELAPSED_MS: u32 = 2_000;

/// What the host saw since the last review.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observation {
    /// Time since the last review, ms.
    pub elapsed_ms: u32,
    /// Datagrams for this listener, without copies.
    pub offered: u32,
    /// Of these, those that found every lane crowded, dropped ones included.
    pub crowded: u32,
    /// Share of datagrams, 0 to 1, that the listener lately reports as never arrived; `None` without a report.
    pub lost_share: Option<f32>,
    /// Copies are allowed, and there is a way to send them: Opus needs a second lane.
    pub can_copy: bool,
    /// Lanes may still be added.
    pub can_add_lanes: bool,
}

/// What to do until the next review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The format to send: 0 is the chosen one.
    pub rung: usize,
    /// Send copies.
    pub copies: bool,
    /// Add lanes now.
    pub add_lanes: bool,
}

/// A waiting time that doubles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    first_ms: u32,
    last_ms: u32,
    pub(crate) wait_ms: u32,
}

impl Backoff {
    pub(crate) const fn new(first_ms: u32, last_ms: u32) -> Self {
        Self {
            first_ms,
            last_ms,
            wait_ms: first_ms,
        }
    }

    pub(crate) fn double(&mut self) {
        self.wait_ms = (2 * self.wait_ms).min(self.last_ms);
    }

    pub(crate) fn reset(&mut self) {
        self.wait_ms = self.first_ms;
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Copies {
    /// Not needed.
    Off,
    /// Sent, because of the loss given: the most that was reported of the time before, which was that `share` of a report; of the rest copies were sent, or
    /// less was lost.
    On { lost_before: f32, share: f32 },
    /// Off for a moment, to see whether the loss is still there.
    Looking,
    /// Off, because they did harm or no good.
    Resting,
}

/// What became of the lanes that were added since the chosen format was last proven.
#[derive(Clone, Copy, Debug, PartialEq)]
enum MoreLanes {
    /// None were.
    None,
    /// They are there to help.
    Added,
    /// The format stepped down all the same.
    InVain,
}

/// The state of one listener's path.
#[derive(Clone, Debug)]
pub struct Ladder {
    rungs: usize,
    rung: usize,
    crowded_reviews: u32,
    /// Since lanes last backed up or the format changed.
    calm_ms: u32,
    /// Since the format changed.
    changed_ms: u32,
    more_lanes: MoreLanes,
    climb: Backoff,
    /// The last step was up, and is not proven yet.
    is_attempt: bool,
    copies: Copies,
    /// In this state of `copies`.
    copies_ms: u32,
    /// How long loss that copies are for has been reported without them.
    lossy_ms: u32,
    hold: Backoff,
    rest: Backoff,
}

impl Ladder {
    /// A ladder of `rungs` formats (at least 1), at its top.
    pub fn new(rungs: usize) -> Self {
        Self {
            rungs: rungs.max(1),
            rung: 0,
            crowded_reviews: 0,
            calm_ms: 0,
            changed_ms: 0,
            more_lanes: MoreLanes::None,
            climb: CLIMB,
            is_attempt: false,
            copies: Copies::Off,
            copies_ms: 0,
            lossy_ms: 0,
            hold: HOLD,
            rest: REST,
        }
    }

    /// Other formats: so many (at least 1), of which `rung` is sent now.
    pub fn set_rungs(&mut self, rungs: usize, rung: usize) {
        self.rungs = rungs.max(1);
        self.rung = rung.min(self.rungs - 1);
    }

    /// Whether the next review is due at once: the format has just stepped up, and so many datagrams have `crowded` the lanes since the last review that
    /// this was too much.
    ///
    /// RT: no alloc, no lock, O(1).
    pub fn fails(&self, crowded: u32) -> bool {
        self.is_attempt && self.changed_ms < TRIAL_MS && crowded >= TRIAL_CROWDED
    }

    /// To be called about once a second, and when an attempt to step up [`fails`](Self::fails).
    ///
    /// RT: no alloc, no lock, O(1).
    pub fn review(&mut self, seen: &Observation) -> Decision {
        let elapsed_ms = seen.elapsed_ms.min(MAX_ELAPSED_MS);
        self.copies_ms = self.copies_ms.saturating_add(elapsed_ms);
        self.changed_ms = self.changed_ms.saturating_add(elapsed_ms);
        let is_crowded = seen.crowded as f32 > seen.offered as f32 * CROWDED_SHARE;
        let lost = seen.lost_share.unwrap_or(0.0);
        let is_heavy = lost > CONGESTED_SHARE;
        let can_step = self.rung + 1 < self.rungs;
        // On the last rung copies are all that is left.
        let may_copy = seen.can_copy && !(lost > HOPELESS_SHARE && can_step);
        // Heavy loss may be chance all the same: that is so if copies halve it, and they rest if they do not.
        let may_help = may_copy && self.copies != Copies::Resting;
        // Not before the listener's report is of what is sent now.
        let is_congested = is_heavy && can_step && !may_help && self.changed_ms > SETTLED_MS;
        let rung = self.rung;
        let mut add_lanes = false;
        if is_crowded || is_congested {
            self.calm_ms = 0;
            if self.copies_do_harm(seen) || (is_congested && self.sends_copies()) {
                self.rest();
            } else if self.is_attempt && self.changed_ms <= TRIAL_MS {
                self.step_down();
            } else if seen.can_add_lanes && !is_congested && self.more_lanes != MoreLanes::InVain {
                add_lanes = true;
                self.more_lanes = MoreLanes::Added;
            } else if !self.sends_copies() {
                self.crowded_reviews += 1;
                if self.crowded_reviews >= DOWN_REVIEWS {
                    self.step_down();
                }
            }
        } else {
            self.crowded_reviews = 0;
            self.calm_ms = self.calm_ms.saturating_add(elapsed_ms);
            if !is_heavy {
                self.step_up();
            }
            if self.rung == 0 && self.calm_ms >= PROVEN_MS {
                self.more_lanes = MoreLanes::None;
            }
        }
        if self.rung != rung {
            self.changed_ms = 0;
        }
        self.review_copies(seen, elapsed_ms, may_copy);
        Decision {
            rung: self.rung,
            copies: self.sends_copies(),
            add_lanes,
        }
    }

    fn step_down(&mut self) {
        self.crowded_reviews = 0;
        if self.rung + 1 == self.rungs {
            return;
        }
        self.rung += 1;
        if self.more_lanes == MoreLanes::Added {
            self.more_lanes = MoreLanes::InVain;
        }
        if self.is_attempt {
            self.climb.double();
        }
        self.is_attempt = false;
    }

    fn step_up(&mut self) {
        if self.is_attempt && self.calm_ms >= PROVEN_MS {
            self.is_attempt = false;
            self.climb.reset();
        }
        if self.rung > 0 && self.calm_ms >= self.climb.wait_ms {
            self.rung -= 1;
            self.is_attempt = true;
            self.calm_ms = 0;
        }
    }

    fn review_copies(&mut self, seen: &Observation, elapsed_ms: u32, may_copy: bool) {
        let lost = seen.lost_share.unwrap_or(0.0);
        // Lanes that back up drop, and the listener counts that as lost: no reason to send more. Where copies were right before, a moment's calm will do.
        let may_begin = may_copy && self.calm_ms >= SETTLED_MS;
        let may_go_on = may_copy && self.calm_ms > 0;
        self.lossy_ms = if lost > COPIES_ON_SHARE && !self.sends_copies() {
            self.lossy_ms.saturating_add(elapsed_ms)
        } else {
            0
        };
        match self.copies {
            Copies::On { .. } if !seen.can_copy => self.turn(Copies::Off),
            // The loss that copies are to be measured by is still coming in.
            Copies::On { lost_before, share } if self.copies_ms < SETTLED_MS => {
                self.copies = Copies::On {
                    lost_before: lost_before.max(lost),
                    share,
                };
            }
            Copies::On { lost_before, share } => {
                // Not halved: lost > before / 2, where lost_before is share * before + (1 - share) * lost.
                if lost > COPIES_ON_SHARE.max(lost_before / (1.0 + share)) {
                    self.rest();
                } else if self.copies_ms >= self.hold.wait_ms && lost <= COPIES_BACK_SHARE {
                    self.rest.reset();
                    self.turn(Copies::Looking);
                }
            }
            Copies::Off if lost > COPIES_ON_SHARE && may_begin => self.begin(lost, self.lossy_ms),
            Copies::Off => {}
            Copies::Looking if lost > COPIES_BACK_SHARE && may_go_on => {
                self.hold.double();
                self.begin(lost, self.copies_ms);
            }
            Copies::Looking if self.copies_ms >= LOOK_MS => {
                self.hold.reset();
                self.rest.reset();
                self.turn(Copies::Off);
            }
            Copies::Looking => {}
            Copies::Resting if self.copies_ms >= self.rest.wait_ms => {
                self.rest.double();
                self.turn(Copies::Off);
            }
            Copies::Resting => {}
        }
    }

    /// Copies are sent, and more datagrams find every lane crowded than were lost without them.
    fn copies_do_harm(&self, seen: &Observation) -> bool {
        let (crowded, offered) = (seen.crowded as f32, seen.offered as f32);
        matches!(self.copies, Copies::On { lost_before, .. } if crowded > offered * lost_before)
    }

    fn sends_copies(&self) -> bool {
        matches!(self.copies, Copies::On { .. })
    }

    /// `lost` was reported, because of the last `lossy_ms`.
    fn begin(&mut self, lost: f32, lossy_ms: u32) {
        self.turn(Copies::On {
            lost_before: lost,
            share: lossy_ms.min(REPORT_MS) as f32 / REPORT_MS as f32,
        });
    }

    fn rest(&mut self) {
        self.turn(Copies::Resting);
    }

    fn turn(&mut self, copies: Copies) {
        self.copies = copies;
        self.copies_ms = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const CALM: Observation = Observation {
        elapsed_ms: 1_000,
        offered: 375,
        crowded: 0,
        lost_share: Some(0.0),
        can_copy: true,
        can_add_lanes: false,
    };
    const CROWDED: Observation = Observation {
        crowded: 100,
        ..CALM
    };

    fn lossy(share: f32) -> Observation {
        Observation {
            lost_share: Some(share),
            ..CALM
        }
    }

    #[test]
    fn what_was_lost_while_the_host_slept_says_nothing_of_how_long_it_was() {
        let mut ladder = Ladder::new(3);
        ladder.review(&Observation {
            elapsed_ms: 60_000,
            can_copy: false,
            ..lossy(0.05)
        });
        assert_eq!(ladder.lossy_ms, MAX_ELAPSED_MS);
    }

    /// Reviews until `is_wanted`, at most `most`; how many it took.
    fn until(
        ladder: &mut Ladder,
        seen: Observation,
        most: u32,
        is_wanted: impl Fn(Decision) -> bool,
    ) -> Option<u32> {
        (1..=most).find(|_| is_wanted(ladder.review(&seen)))
    }

    #[test]
    fn a_calm_path_keeps_the_chosen_format_without_copies() {
        let mut ladder = Ladder::new(4);
        let top = Decision {
            rung: 0,
            copies: false,
            add_lanes: false,
        };
        assert_eq!(until(&mut ladder, CALM, 1_000, |now| now != top), None);
    }

    #[test]
    fn lanes_are_added_before_the_format_steps_down() {
        let mut ladder = Ladder::new(4);
        let seen = Observation {
            can_add_lanes: true,
            ..CROWDED
        };
        for _ in 0..5 {
            let now = ladder.review(&seen);
            assert_eq!((now.rung, now.add_lanes), (0, true));
        }
        assert_eq!(ladder.review(&CROWDED).rung, 0);
        assert_eq!(ladder.review(&CROWDED).rung, 1);
    }

    #[test]
    fn lanes_in_vain_are_not_added_again_until_the_chosen_format_is_proven() {
        let mut ladder = Ladder::new(2);
        let crowded = Observation {
            can_add_lanes: true,
            ..CROWDED
        };
        assert!(ladder.review(&crowded).add_lanes);
        // As many as there may be; then they are taken away again.
        assert_eq!(until(&mut ladder, CROWDED, 9, |now| now.rung == 1), Some(2));
        let up = until(&mut ladder, CALM, 99, |now| now.rung == 0);
        assert_eq!(up, Some(10));
        let now = until(&mut ladder, crowded, 9, |now| {
            now.add_lanes || now.rung == 1
        });
        assert_eq!((now, ladder.rung), (Some(1), 1), "at once");
        until(&mut ladder, CALM, 200, |_| false);
        assert!(ladder.review(&crowded).add_lanes);
    }

    #[test]
    fn heavy_loss_steps_down_once_for_each_report_of_what_is_sent_now() {
        let mut ladder = Ladder::new(3);
        let seen = Observation {
            can_add_lanes: true,
            ..lossy(0.3)
        };
        // Neither lanes nor copies, which would add to it.
        let steps: [_; 24] = core::array::from_fn(|_| ladder.review(&seen));
        let down = |rung| steps.iter().position(|now| now.rung == rung);
        assert_eq!((down(1), down(2)), (Some(7), Some(15)));
        assert!(steps.iter().all(|now| !now.add_lanes));
        assert!(steps[..16].iter().all(|now| !now.copies));
        // Chance, after all: then copies are all that is left.
        assert!(steps[23].copies);
        let mut ladder = Ladder::new(3);
        let all_right = until(&mut ladder, lossy(0.09), 100, |now| now.rung > 0);
        assert_eq!(all_right, None);
    }

    /// A path that loses `alone`, and `with_copies` where these are sent, for so many reviews. The rungs it had, and how often copies were sent.
    fn path(alone: f32, with_copies: f32, reviews: usize) -> (Vec<usize>, usize) {
        let mut ladder = Ladder::new(3);
        until(&mut ladder, CALM, 9, |_| false);
        let mut copies = false;
        let seen: Vec<_> = (0..reviews)
            .map(|_| {
                let now = ladder.review(&lossy(if copies { with_copies } else { alone }));
                copies = now.copies;
                now
            })
            .collect();
        let copied = seen.iter().filter(|now| now.copies).count();
        (seen.iter().map(|now| now.rung).collect(), copied)
    }

    #[test]
    fn heavy_loss_that_copies_make_up_for_is_chance_and_keeps_the_format() {
        let (rungs, copied) = path(0.15, 0.02, 600);
        assert!(rungs.iter().all(|rung| *rung == 0));
        // No looks: what copies leave shows the loss.
        assert_eq!(copied, 600);
    }

    #[test]
    fn heavy_loss_that_copies_do_not_halve_steps_down_when_that_is_seen() {
        let (rungs, _) = path(0.15, 0.2, 30);
        let down = |wanted| rungs.iter().position(|rung| *rung == wanted);
        assert_eq!((down(1), down(2)), (Some(8), Some(16)));
    }

    #[test]
    fn one_crowded_review_alone_changes_nothing() {
        let mut ladder = Ladder::new(4);
        for _ in 0..50 {
            assert_eq!(ladder.review(&CROWDED).rung, 0);
            assert_eq!(ladder.review(&CALM).rung, 0);
        }
    }

    #[test]
    fn steps_down_every_second_review_and_stays_on_the_last_rung() {
        let mut ladder = Ladder::new(4);
        let rungs: [usize; 9] = core::array::from_fn(|_| ladder.review(&CROWDED).rung);
        assert_eq!(rungs, [0, 1, 1, 2, 2, 3, 3, 3, 3]);
    }

    #[test]
    fn each_attempt_that_fails_doubles_the_wait_for_the_next() {
        let mut ladder = Ladder::new(2);
        assert_eq!(until(&mut ladder, CROWDED, 9, |now| now.rung == 1), Some(2));
        for wait_s in [10, 20, 40, 80, 160, 160] {
            let found = until(&mut ladder, CALM, 1_000, |now| now.rung == 0);
            assert_eq!(found, Some(wait_s));
            ladder.review(&CALM);
            assert_eq!(until(&mut ladder, CROWDED, 9, |now| now.rung == 1), Some(2));
        }
        // One that holds is forgotten as a failure.
        assert_eq!(
            until(&mut ladder, CALM, 999, |now| now.rung == 0),
            Some(160)
        );
        assert_eq!(until(&mut ladder, CALM, 60, |now| now.rung == 1), None);
        assert_eq!(until(&mut ladder, CROWDED, 9, |now| now.rung == 1), Some(2));
        assert_eq!(until(&mut ladder, CALM, 999, |now| now.rung == 0), Some(10));
    }

    #[test]
    fn an_attempt_that_backs_lanes_up_is_taken_back_at_once() {
        let mut ladder = Ladder::new(2);
        assert!(!ladder.fails(99), "no attempt");
        until(&mut ladder, CROWDED, 9, |now| now.rung == 1);
        assert!(!ladder.fails(99), "a step down");
        let up = until(&mut ladder, CALM, 99, |now| now.rung == 0);
        assert_eq!(up, Some(10));
        assert!(!ladder.fails(7));
        assert!(ladder.fails(8));
        let seen = Observation {
            elapsed_ms: 200,
            offered: 75,
            crowded: 8,
            can_add_lanes: true,
            ..CALM
        };
        let now = ladder.review(&seen);
        assert_eq!((now.rung, now.add_lanes), (1, false));
        // It counts as one that failed.
        let up = until(&mut ladder, CALM, 99, |now| now.rung == 0);
        assert_eq!(up, Some(20));
        // Held for long enough, it is judged like any format.
        ladder.review(&CALM);
        ladder.review(&CALM);
        assert!(!ladder.fails(99));
        assert_eq!(ladder.review(&CROWDED).rung, 0);
    }

    #[test]
    fn loss_switches_copies_on_and_looking_becomes_rare_while_it_lasts() {
        let mut ladder = Ladder::new(1);
        assert_eq!(until(&mut ladder, lossy(0.004), 99, |now| now.copies), None);
        assert_eq!(
            until(&mut ladder, lossy(0.02), 9, |now| now.copies),
            Some(1)
        );
        for hold_s in [10, 20, 40, 80, 160, 320, 320] {
            // While copies are sent the listener misses nothing.
            assert_eq!(
                until(&mut ladder, CALM, 999, |now| !now.copies),
                Some(hold_s)
            );
            assert_eq!(
                until(&mut ladder, lossy(0.02), 9, |now| now.copies),
                Some(1)
            );
        }
        assert_eq!(until(&mut ladder, CALM, 999, |now| !now.copies), Some(320));
        assert_eq!(until(&mut ladder, CALM, 100, |now| now.copies), None);
        // Forgotten: the next loss begins with short looks again.
        assert_eq!(
            until(&mut ladder, lossy(0.02), 9, |now| now.copies),
            Some(1)
        );
        assert_eq!(until(&mut ladder, CALM, 999, |now| !now.copies), Some(10));
    }

    #[test]
    fn copies_that_crowd_the_lanes_go_off_at_once_and_stay_off_longer_each_time() {
        let mut ladder = Ladder::new(2);
        until(&mut ladder, CALM, 5, |_| false);
        let crowd_again = |ladder: &mut Ladder, rest_s| {
            let now = ladder.review(&CROWDED);
            assert_eq!((now.copies, now.rung), (false, 0));
            let found = until(ladder, lossy(0.02), 999, |now| now.copies);
            assert_eq!(found, Some(rest_s));
        };
        assert_eq!(
            until(&mut ladder, lossy(0.02), 9, |now| now.copies),
            Some(1)
        );
        for rest_s in [11, 21, 41, 81, 161, 321, 321] {
            crowd_again(&mut ladder, rest_s);
        }
    }

    #[test]
    fn copies_that_crowd_the_lanes_less_than_they_save_stay_and_lanes_are_added() {
        let mut ladder = Ladder::new(2);
        until(&mut ladder, CALM, 5, |_| false);
        assert!(ladder.review(&lossy(0.05)).copies);
        // 2 % wait, where 5 % were lost.
        let seen = Observation {
            crowded: 8,
            can_add_lanes: true,
            ..CALM
        };
        for can_add_lanes in [true, false, false, false] {
            let now = ladder.review(&Observation {
                can_add_lanes,
                ..seen
            });
            assert_eq!(
                (now.copies, now.add_lanes, now.rung),
                (true, can_add_lanes, 0)
            );
        }
        // 6 %.
        let seen = Observation {
            crowded: 22,
            ..seen
        };
        assert!(!ladder.review(&seen).copies);
    }

    #[test]
    fn a_look_is_over_as_soon_as_the_loss_is_seen_though_lanes_backed_up_before() {
        let mut ladder = Ladder::new(2);
        until(&mut ladder, CALM, 5, |_| false);
        assert!(ladder.review(&lossy(0.05)).copies);
        let looks = until(&mut ladder, CALM, 99, |now| !now.copies);
        assert_eq!(looks, Some(10));
        let crowded = Observation {
            lost_share: Some(0.05),
            ..CROWDED
        };
        assert!(!ladder.review(&crowded).copies, "that may be what is lost");
        assert!(ladder.review(&lossy(0.05)).copies);
    }

    #[test]
    fn copies_that_do_not_help_go_off_and_those_that_halve_a_heavy_loss_stay() {
        let mut ladder = Ladder::new(1);
        until(&mut ladder, CALM, 5, |_| false);
        assert!(ladder.review(&lossy(0.1)).copies);
        assert_eq!(
            until(&mut ladder, lossy(0.1), 9, |now| !now.copies),
            Some(6)
        );
        assert_eq!(
            until(&mut ladder, lossy(0.1), 99, |now| now.copies),
            Some(11)
        );
        // What they leave shows that the loss is still there.
        assert_eq!(until(&mut ladder, lossy(0.02), 99, |now| !now.copies), None);
        assert_eq!(until(&mut ladder, CALM, 99, |now| !now.copies), Some(1));
    }

    #[test]
    fn copies_are_judged_by_what_was_lost_just_before() {
        for (alone, with_copies) in [(0.03, 0.0009), (0.15, 0.06)] {
            let mut ladder = Ladder::new(3);
            until(&mut ladder, CALM, 6, |_| false);
            // Every report is of four seconds, and one second old: a look is over when it sees but a part of the loss.
            let mut lost = [0.0; 5];
            let mut copied = 0;
            for _ in 0..120 {
                let reported = lost[..4].iter().sum::<f32>() / 4.0;
                let now = ladder.review(&lossy(reported));
                lost.rotate_left(1);
                lost[4] = if now.copies { with_copies } else { alone };
                copied += u32::from(now.copies);
                assert_ne!(ladder.copies, Copies::Resting);
                assert_eq!(now.rung, 0);
            }
            // Two seconds to begin with, and two for each look: after 10, 20 and 40 s.
            assert!(copied >= 120 - 2 - 3 * 2, "{copied}");
        }
    }

    #[test]
    fn what_crowded_lanes_drop_is_no_loss_for_copies() {
        let mut ladder = Ladder::new(1);
        let seen = Observation {
            lost_share: Some(0.3),
            ..CROWDED
        };
        assert_eq!(until(&mut ladder, seen, 100, |now| now.copies), None);
    }

    #[test]
    fn without_a_second_lane_or_a_report_there_are_no_copies() {
        let mut ladder = Ladder::new(1);
        let alone = Observation {
            can_copy: false,
            ..lossy(0.2)
        };
        assert_eq!(until(&mut ladder, alone, 100, |now| now.copies), None);
        let unknown = Observation {
            lost_share: None,
            ..CALM
        };
        assert_eq!(until(&mut ladder, unknown, 100, |now| now.copies), None);
        assert_eq!(until(&mut ladder, lossy(0.2), 9, |now| now.copies), Some(1));
        assert!(!ladder.review(&alone).copies);
    }

    #[test]
    fn other_formats_keep_it_within_them_where_it_is_told() {
        let mut ladder = Ladder::new(4);
        until(&mut ladder, CROWDED, 9, |now| now.rung == 1);
        ladder.set_rungs(5, 2);
        assert_eq!(ladder.review(&CALM).rung, 2);
        ladder.set_rungs(2, 3);
        assert_eq!(ladder.review(&CALM).rung, 1);
        ladder.set_rungs(0, 0);
        assert_eq!(ladder.review(&CROWDED).rung, 0);
    }
}
