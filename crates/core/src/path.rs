//! Which path a stream takes: straight to the listener, through the server's relay, or within a mix that the server makes.
//!
//! [`Sending`] decides for one listener whether to send directly, to the relay, or both. While the uplink has room both are kept warm:
//! the listener takes the first copy of each frame, so that either path may fail without a gap, as far as its buffer covers what the
//! other takes longer. Where the uplink is short, one must do: the relay if the lanes are short and it serves two listeners or more with one stream, else the
//! one that loses less, or as it was. A path that has died drops all it is given as well: so it is short only if it was so at the review before, and
//! something has come back by it since.
//!
//! [`Listening`] decides for one listener what to ask the relay for: every stream, or one mix of them, where its downlink has no room
//! for all.
//!
//! Both fall back at once and return after a calm time, longer after each return that failed, so that neither flutters. What is not
//! open is not used: then the other path is taken, whatever was chosen or pinned.

use crate::ladder::{Backoff, MAX_ELAPSED_MS};

/// Room on the uplink for so long, before both paths are used again. Doubled after each attempt that failed.
const RETURN: Backoff = Backoff::new(15_000, 300_000);
/// A mix is taken for so long before every stream is asked for again. Doubled likewise.
const UNMIX: Backoff = Backoff::new(30_000, 300_000);
/// A return that has held for so long was right.
const PROVEN_MS: u32 = 60_000;
/// Where the uplink is still short, the one path that is left is chosen anew after so long.
const CHOSEN_MS: u32 = 5_000;
/// Time over which the relay's dropping is judged.
const JUDGED_MS: u32 = 2_000;
/// More than this share of datagrams dropped by the relay, because no session had room: the downlink is short.
const AGED_SHARE: f32 = 0.01;
/// Fewest streams that a mix of them is less than.
const LEAST_MIXED: u32 = 2;

/// What the user wants, as far as it is possible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pin {
    /// Whatever is best.
    #[default]
    Automatic,
    /// Straight from one to the other.
    Direct,
    /// Through the server.
    Relayed,
    /// Through the server, within a mix; a sender does the same as for [`Relayed`](Self::Relayed).
    Mixed,
}

/// What a sender saw of a listener's paths since the last review.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SenderObservation {
    /// Time since the last review, ms.
    pub elapsed_ms: u32,
    /// What the user wants for this peer.
    pub pin: Pin,
    /// A direct lane is open.
    pub is_direct_open: bool,
    /// A session with the relay is open.
    pub is_relay_open: bool,
    /// Share of datagrams, 0 to 1, that the listener lately missed of the direct path; `None` if unknown.
    pub direct_lost_share: Option<f32>,
    /// The same of the relayed path.
    pub relay_lost_share: Option<f32>,
    /// What the direct lanes carried.
    pub direct: Carried,
    /// What the sessions with the relay did.
    pub relay: Carried,
    /// Listeners that take this participant's stream from the relay.
    pub relay_listeners: u32,
}

/// What is seen of one path since the last review.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Not all that it was given: datagrams were dropped because of a backlog, or their format stepped down.
    pub is_short: bool,
    /// Something came by it from the other end.
    pub is_answered: bool,
}

impl Carried {
    /// And not only because it has died.
    fn is_still_short(self, was_short: bool) -> bool {
        self.is_short && was_short && self.is_answered
    }
}

/// Where to send until the next review. Neither, if nothing is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// On the direct lanes.
    pub direct: bool,
    /// To the relay.
    pub relay: bool,
}

const BOTH: Route = Route {
    direct: true,
    relay: true,
};
const DIRECT: Route = Route {
    direct: true,
    relay: false,
};
const RELAY: Route = Route {
    direct: false,
    relay: true,
};

/// The choice for one listener of what this end sends.
#[derive(Clone, Debug)]
pub struct Sending {
    /// Chosen, if both are open.
    chosen: Route,
    /// Since the choice.
    chosen_ms: u32,
    /// Since the uplink was last short.
    calm_ms: u32,
    /// Whether either path did not carry all, at the last review.
    was_short: Short,
    back: Backoff,
    /// Both are used again, and that is not proven yet.
    is_attempt: bool,
}

impl Default for Sending {
    fn default() -> Self {
        Self::new()
    }
}

impl Sending {
    /// Sends by both paths, as far as they are open.
    pub const fn new() -> Self {
        Self {
            chosen: BOTH,
            chosen_ms: 0,
            calm_ms: 0,
            was_short: Short {
                direct: false,
                relay: false,
            },
            back: RETURN,
            is_attempt: false,
        }
    }

    /// To be called about twice a second.
    ///
    /// RT: no alloc, no lock, O(1).
    pub fn review(&mut self, seen: &SenderObservation) -> Route {
        let elapsed_ms = seen.elapsed_ms.min(MAX_ELAPSED_MS);
        self.chosen_ms = self.chosen_ms.saturating_add(elapsed_ms);
        self.calm_ms = self.calm_ms.saturating_add(elapsed_ms);
        let short = Short {
            direct: seen.direct.is_still_short(self.was_short.direct),
            relay: seen.relay.is_still_short(self.was_short.relay),
        };
        self.was_short = Short {
            direct: seen.direct.is_short,
            relay: seen.relay.is_short,
        };
        if short.any() {
            self.calm_ms = 0;
        }
        let has_relay = seen.is_relay_open && seen.relay_listeners > 0;
        if !(seen.is_direct_open && has_relay) {
            // Nothing to choose, and nothing to learn of a return.
            return Route {
                direct: seen.is_direct_open,
                relay: has_relay,
            };
        }
        match seen.pin {
            Pin::Automatic => self.choose(seen, short),
            Pin::Direct => return DIRECT,
            Pin::Relayed | Pin::Mixed => return RELAY,
        }
        self.chosen
    }

    fn choose(&mut self, seen: &SenderObservation, short: Short) {
        if self.chosen != BOTH {
            if short.any() && self.chosen_ms >= CHOSEN_MS {
                self.turn(one_of(seen, short, self.chosen));
            } else if self.calm_ms >= self.back.wait_ms && self.chosen_ms >= self.back.wait_ms {
                self.turn(BOTH);
                self.is_attempt = true;
            }
        } else if short.any() {
            if self.is_attempt {
                self.back.double();
            }
            self.is_attempt = false;
            self.turn(one_of(seen, short, DIRECT));
        } else if self.is_attempt && self.chosen_ms >= PROVEN_MS {
            self.is_attempt = false;
            self.back.reset();
        }
    }

    fn turn(&mut self, chosen: Route) {
        if self.chosen != chosen {
            self.chosen = chosen;
            self.chosen_ms = 0;
        }
    }
}

/// Which paths are short.
#[derive(Clone, Copy, Debug)]
struct Short {
    direct: bool,
    relay: bool,
}

impl Short {
    fn any(self) -> bool {
        self.direct || self.relay
    }
}

/// The path to use alone; `otherwise` where nothing speaks for either.
fn one_of(seen: &SenderObservation, short: Short, otherwise: Route) -> Route {
    if seen.relay_listeners > 1 {
        // To somebody near, the lanes may have room where the way to the server has none.
        return if short.direct { RELAY } else { otherwise };
    }
    match (seen.direct_lost_share, seen.relay_lost_share) {
        (Some(direct), Some(relay)) if relay < direct => RELAY,
        (Some(_), Some(_)) => DIRECT,
        _ => otherwise,
    }
}

/// What a listener saw of the relay since the last review.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenerObservation {
    /// Time since the last review, ms.
    pub elapsed_ms: u32,
    /// What the user wants.
    pub pin: Pin,
    /// A session with the relay is open.
    pub is_relay_open: bool,
    /// Streams that the relay has for this listener.
    pub streams: u32,
    /// Datagrams that the relay sent to this listener, without those it dropped.
    pub forwarded: u32,
    /// Datagrams that it dropped, because no session had room.
    pub aged: u32,
}

/// What to ask the relay for until the next review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Asked {
    /// Nothing.
    Nothing = 0,
    /// Every stream, forwarded.
    Forwarded = 1,
    /// A mix of them. Who is heard directly belongs neither into it nor among what is forwarded.
    Mixed = 2,
}

/// The choice of what a listener takes from the relay.
#[derive(Clone, Debug)]
pub struct Listening {
    is_mixed: bool,
    /// Since `is_mixed` changed.
    chosen_ms: u32,
    unmix: Backoff,
    /// Every stream is asked for again, and that is not proven yet.
    is_attempt: bool,
    /// Seen since the last judgement.
    judged_ms: u32,
    forwarded: u32,
    aged: u32,
}

impl Default for Listening {
    fn default() -> Self {
        Self::new()
    }
}

impl Listening {
    /// Takes every stream.
    pub const fn new() -> Self {
        Self {
            is_mixed: false,
            chosen_ms: 0,
            unmix: UNMIX,
            is_attempt: false,
            judged_ms: 0,
            forwarded: 0,
            aged: 0,
        }
    }

    /// To be called about twice a second.
    ///
    /// RT: no alloc, no lock, O(1).
    pub fn review(&mut self, seen: &ListenerObservation) -> Asked {
        match seen.pin {
            _ if !seen.is_relay_open => Asked::Nothing,
            Pin::Direct => Asked::Nothing,
            Pin::Relayed => Asked::Forwarded,
            Pin::Mixed => Asked::Mixed,
            Pin::Automatic => {
                self.choose(seen);
                if self.is_mixed {
                    Asked::Mixed
                } else {
                    Asked::Forwarded
                }
            }
        }
    }

    fn choose(&mut self, seen: &ListenerObservation) {
        let elapsed_ms = seen.elapsed_ms.min(MAX_ELAPSED_MS);
        self.chosen_ms = self.chosen_ms.saturating_add(elapsed_ms);
        if self.is_mixed {
            if self.chosen_ms >= self.unmix.wait_ms {
                self.turn(false);
                self.is_attempt = true;
            }
            return;
        }
        self.judged_ms += elapsed_ms;
        self.forwarded = self.forwarded.saturating_add(seen.forwarded);
        self.aged = self.aged.saturating_add(seen.aged);
        if self.judged_ms >= JUDGED_MS {
            let offered = self.forwarded as f32 + self.aged as f32;
            if self.aged as f32 > offered * AGED_SHARE && seen.streams >= LEAST_MIXED {
                if self.is_attempt {
                    self.unmix.double();
                }
                self.is_attempt = false;
                self.turn(true);
            }
            (self.judged_ms, self.forwarded, self.aged) = (0, 0, 0);
        }
        if self.is_attempt && self.chosen_ms >= PROVEN_MS {
            self.is_attempt = false;
            self.unmix.reset();
        }
    }

    fn turn(&mut self, is_mixed: bool) {
        self.is_mixed = is_mixed;
        self.chosen_ms = 0;
        (self.judged_ms, self.forwarded, self.aged) = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALM: SenderObservation = SenderObservation {
        elapsed_ms: 500,
        pin: Pin::Automatic,
        is_direct_open: true,
        is_relay_open: true,
        direct_lost_share: Some(0.001),
        relay_lost_share: Some(0.001),
        direct: Carried {
            is_short: false,
            is_answered: true,
        },
        relay: Carried {
            is_short: false,
            is_answered: true,
        },
        relay_listeners: 1,
    };
    const SHORT: SenderObservation = SenderObservation {
        direct: Carried {
            is_short: true,
            is_answered: true,
        },
        ..CALM
    };

    /// So much that it is believed.
    fn shorten(sending: &mut Sending, seen: SenderObservation) -> Route {
        sending.review(&seen);
        sending.review(&seen)
    }

    /// Seconds until `route`, at most `most`.
    fn until(
        sending: &mut Sending,
        seen: SenderObservation,
        most: u32,
        route: Route,
    ) -> Option<f32> {
        let found = (1..=2 * most).find(|_| sending.review(&seen) == route);
        found.map(|reviews| reviews as f32 / 2.0)
    }

    #[test]
    fn with_room_both_are_warm() {
        let mut sending = Sending::new();
        for relay_listeners in [1, 2, 20] {
            let seen = SenderObservation {
                relay_listeners,
                ..CALM
            };
            for _ in 0..1_000 {
                assert_eq!(sending.review(&seen), BOTH);
            }
        }
    }

    #[test]
    fn what_is_not_open_is_not_used_whatever_is_pinned() {
        for pin in [Pin::Automatic, Pin::Direct, Pin::Relayed, Pin::Mixed] {
            for seen in [CALM, SHORT] {
                let mut sending = Sending::new();
                let seen = SenderObservation { pin, ..seen };
                let closed = [
                    (false, true, 1, RELAY),
                    (true, false, 1, DIRECT),
                    (true, true, 0, DIRECT),
                    (false, true, 0, Route::default()),
                    (false, false, 2, Route::default()),
                ];
                for (is_direct_open, is_relay_open, relay_listeners, route) in closed {
                    let seen = SenderObservation {
                        is_direct_open,
                        is_relay_open,
                        relay_listeners,
                        ..seen
                    };
                    assert_eq!(sending.review(&seen), route, "{seen:?}");
                }
            }
        }
    }

    #[test]
    fn a_pin_holds_while_its_path_is_open() {
        let mut sending = Sending::new();
        for (pin, route) in [
            (Pin::Direct, DIRECT),
            (Pin::Relayed, RELAY),
            (Pin::Mixed, RELAY),
        ] {
            for seen in [CALM, SHORT] {
                let seen = SenderObservation { pin, ..seen };
                assert_eq!(sending.review(&seen), route);
            }
        }
    }

    #[test]
    fn a_short_uplink_leaves_the_relay_to_many_and_to_one_what_loses_less() {
        let cases = [
            (2, Some(0.0), Some(0.1), RELAY),
            (1, Some(0.0), Some(0.1), DIRECT),
            (1, Some(0.1), Some(0.0), RELAY),
            (1, Some(0.1), Some(0.1), DIRECT),
            (1, None, Some(0.0), DIRECT),
        ];
        for (relay_listeners, direct_lost_share, relay_lost_share, route) in cases {
            let seen = SenderObservation {
                relay_listeners,
                direct_lost_share,
                relay_lost_share,
                ..SHORT
            };
            assert_eq!(shorten(&mut Sending::new(), seen), route, "{seen:?}");
        }
    }

    #[test]
    fn a_path_that_has_died_is_not_taken_for_a_short_one() {
        let dead = Carried {
            is_short: true,
            is_answered: false,
        };
        for listeners in [1, 3] {
            // Within the review before the first of these it was still answered.
            for seen in [
                SenderObservation {
                    direct: dead,
                    ..CALM
                },
                SenderObservation {
                    relay: dead,
                    ..CALM
                },
            ] {
                let seen = SenderObservation {
                    relay_listeners: listeners,
                    ..seen
                };
                let mut dying = seen;
                dying.direct.is_answered = true;
                dying.relay.is_answered = true;
                let mut sending = Sending::new();
                assert_eq!(sending.review(&dying), BOTH);
                for _ in 0..100 {
                    assert_eq!(sending.review(&seen), BOTH);
                }
            }
        }
    }

    #[test]
    fn a_short_way_to_the_server_is_no_reason_to_leave_lanes_that_are_not() {
        let seen = SenderObservation {
            direct: CALM.direct,
            relay: SHORT.direct,
            relay_listeners: 3,
            ..CALM
        };
        let mut sending = Sending::new();
        assert_eq!(shorten(&mut sending, seen), DIRECT);
        assert_eq!(until(&mut sending, seen, 60, RELAY), None);
        // Where they share what is short, that shows.
        let many = SenderObservation {
            relay_listeners: 3,
            ..SHORT
        };
        assert_eq!(until(&mut sending, many, 60, RELAY), Some(1.0));
    }

    #[test]
    fn a_path_that_turns_out_worse_is_left_after_5_s_of_shortness() {
        let mut sending = Sending::new();
        assert_eq!(shorten(&mut sending, SHORT), DIRECT);
        let many = SenderObservation {
            relay_listeners: 3,
            ..SHORT
        };
        assert_eq!(until(&mut sending, many, 99, RELAY), Some(5.0));
        // Of one that is not used, nothing is known.
        let alone = SenderObservation {
            direct_lost_share: None,
            ..SHORT
        };
        assert_eq!(until(&mut sending, alone, 99, DIRECT), None);
    }

    #[test]
    fn both_are_tried_again_after_15_s_of_room_and_later_each_time_it_failed() {
        let mut sending = Sending::new();
        assert_eq!(shorten(&mut sending, SHORT), DIRECT);
        for wait_s in [15.0, 30.0, 60.0, 120.0, 240.0, 300.0, 300.0] {
            assert_eq!(until(&mut sending, CALM, 999, BOTH), Some(wait_s));
            assert_eq!(shorten(&mut sending, SHORT), DIRECT);
        }
        assert_eq!(until(&mut sending, CALM, 999, BOTH), Some(300.0));
        // A minute without shortness, and it is forgotten.
        assert_eq!(until(&mut sending, CALM, 61, DIRECT), None);
        assert_eq!(shorten(&mut sending, SHORT), DIRECT);
        assert_eq!(until(&mut sending, CALM, 999, BOTH), Some(15.0));
    }

    const FULL: ListenerObservation = ListenerObservation {
        elapsed_ms: 500,
        pin: Pin::Automatic,
        is_relay_open: true,
        streams: 3,
        forwarded: 560,
        aged: 0,
    };
    const AGED: ListenerObservation = ListenerObservation { aged: 7, ..FULL };

    fn asked(
        listening: &mut Listening,
        seen: ListenerObservation,
        most: u32,
        asked: Asked,
    ) -> Option<f32> {
        let found = (1..=2 * most).find(|_| listening.review(&seen) == asked);
        found.map(|reviews| reviews as f32 / 2.0)
    }

    #[test]
    fn a_downlink_without_room_takes_a_mix_and_tries_again_later_each_time() {
        let mut listening = Listening::new();
        assert_eq!(asked(&mut listening, FULL, 1_000, Asked::Mixed), None);
        let mut seen = AGED;
        seen.aged = 5;
        assert_eq!(asked(&mut listening, seen, 100, Asked::Mixed), None);
        for wait_s in [30.0, 60.0, 120.0, 240.0, 300.0, 300.0] {
            assert_eq!(asked(&mut listening, AGED, 99, Asked::Mixed), Some(2.0));
            let back = asked(&mut listening, FULL, 999, Asked::Forwarded);
            assert_eq!(back, Some(wait_s));
        }
        assert_eq!(asked(&mut listening, FULL, 62, Asked::Mixed), None);
        assert_eq!(asked(&mut listening, AGED, 99, Asked::Mixed), Some(2.0));
        let back = asked(&mut listening, FULL, 999, Asked::Forwarded);
        assert_eq!(back, Some(30.0));
    }

    #[test]
    fn one_stream_is_not_mixed_and_pins_and_closed_relays_are_obeyed() {
        let mut listening = Listening::new();
        let seen = ListenerObservation { streams: 1, ..AGED };
        assert_eq!(asked(&mut listening, seen, 99, Asked::Mixed), None);
        for (pin, wanted) in [
            (Pin::Direct, Asked::Nothing),
            (Pin::Relayed, Asked::Forwarded),
            (Pin::Mixed, Asked::Mixed),
        ] {
            let seen = ListenerObservation { pin, ..AGED };
            assert_eq!(listening.review(&seen), wanted);
            let closed = ListenerObservation {
                is_relay_open: false,
                ..seen
            };
            assert_eq!(listening.review(&closed), Asked::Nothing);
        }
    }
}
