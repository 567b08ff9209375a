//! What is known of a peer.

use std::collections::HashMap;

use antiphon_core::mix::MAX_GAIN;
use antiphon_core::path::{self, Carried, Route};
use antiphon_core::{SampleFormat, StreamId, StreamStats};
use antiphon_opus::Receiver;
use antiphon_opus::outgoing::Listener;

use crate::direct::{Direct, MAX_WAIT_NS};
use crate::numbering::Numbering;
use crate::report::{Hearing, Reports};
use crate::status::SentStatus;

const LEAST_GAIN_DB: f32 = -40.0;
/// One by whose lanes no audio has come for so long is not heard directly.
pub(super) const AUDIBLE_NS: u64 = 1_000_000_000;
/// Lanes by which nothing came for so long are dead: neither audio nor one of four probes.
pub(super) const LANE_DEAD_NS: u64 = 2_000_000_000;

/// A round trip that no reply has confirmed for so long is none any more. As in the page.
pub(super) const RTT_STALE_NS: u64 = 3_000_000_000;

/// This end's mix of one peer; kept while it is away, and when it returns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Strip {
    pub(super) gain: f32,
    pub(super) pan: f32,
    pub(super) is_muted: bool,
    pub(super) is_solo: bool,
}

impl Default for Strip {
    fn default() -> Self {
        Self {
            gain: 1.0,
            pan: 0.0,
            is_muted: false,
            is_solo: false,
        }
    }
}

impl Strip {
    /// Below the least gain there is silence, from which it is the next.
    pub(super) fn make_louder(&mut self, step_db: f32) {
        let db = 20.0 * self.gain.max(1e-9).log10();
        let db = if db < LEAST_GAIN_DB && step_db > 0.0 {
            LEAST_GAIN_DB
        } else {
            db + step_db
        };
        self.gain = if db < LEAST_GAIN_DB {
            0.0
        } else {
            10f32.powf(db / 20.0).min(MAX_GAIN)
        };
    }

    /// In whole steps, so that the middle is met.
    pub(super) fn move_right(&mut self, step: f32) {
        self.pan = (((self.pan + step) / step).round() * step).clamp(-1.0, 1.0);
    }
}

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: String,
    pub(super) name: String,
    /// Its number in the room; `None` while a server that was restarted does not know it: another may have that number by now.
    pub(super) number: Option<u16>,
    pub(super) is_present: bool,
    /// Since when the server does not know it, though it did not say that it left.
    pub(super) missed_since_ns: Option<u64>,
    pub(super) is_muted_by_owner: bool,
    /// Its name in our player.
    pub(super) stream: StreamId,
    /// As the player was last told: silent as well while it is heard in the mix, or muted by the owner.
    pub(super) strip: Option<Strip>,
    pub(super) direct: Option<Direct>,
    /// When anything last came by a lane: twice a second, while one is alive.
    pub(super) direct_ns: Option<u64>,
    pub(super) by_lanes: Way,
    pub(super) by_relay: Way,
    /// When it was last sent our sound both ways.
    pub(super) both_ways_ns: Option<u64>,
    /// Whether it shall send us its audio directly, as it was last told; `None`: that may not have reached it.
    pub(super) is_told_direct: Option<bool>,
    /// Whether we take its audio from the relay, as it was last told.
    pub(super) is_told_relayed: Option<bool>,
    /// Whether it takes ours from there, by its own word.
    pub(super) takes_relayed: bool,
    pub(super) sending: path::Sending,
    /// Which paths are sent on.
    pub(super) route: Route,
    /// Datagrams that its lanes dropped, at the last review.
    pub(super) dropped_before: u64,
    /// What its lanes are sent.
    pub(super) listener: Listener,
    pub(super) reports: Reports,
    pub(super) hearing: Hearing,
    pub(super) stats: Option<StreamStats>,
    pub(super) peaks: [f32; 2],
    /// Of its lanes.
    pub(super) rtts: RoundTrips,
}

/// Of each lane's last probe, and when its reply came, ns.
#[derive(Debug, Default)]
pub(super) struct RoundTrips(HashMap<usize, (u64, u64)>);

impl RoundTrips {
    pub(super) fn add(&mut self, lane: usize, sent_ns: u64, now_ns: u64) {
        let rtt_ns = now_ns.saturating_sub(sent_ns);
        self.0.insert(lane, (rtt_ns, now_ns));
    }

    /// Those of other lanes are forgotten.
    pub(super) fn keep(&mut self, is_open: impl Fn(usize) -> bool) {
        self.0.retain(|&lane, _| is_open(lane));
    }

    /// Of the quickest that answers.
    pub(super) fn least_ns(&self, now_ns: u64) -> Option<u64> {
        let fresh = (self.0.values()).filter(|(_, at)| is_within(Some(*at), RTT_STALE_NS, now_ns));
        fresh.map(|&(rtt_ns, _)| rtt_ns).min()
    }

    pub(super) fn least_ms(&self, now_ns: u64) -> Option<f64> {
        self.least_ns(now_ns).map(|rtt_ns| rtt_ns as f64 / 1e6)
    }
}

/// By which a peer's audio comes.
#[derive(Debug, Default)]
pub(super) struct Way {
    /// When any last came.
    pub(super) audio_ns: Option<u64>,
    /// Whether any since then was not to come.
    pub(super) is_withheld: bool,
    pub(super) numbering: Numbering,
    pub(super) opus: Receiver,
}

impl Way {
    /// An open lane does not tell: the peer may send to the relay only.
    pub(super) fn is_heard(&self, now_ns: u64) -> bool {
        is_within(self.audio_ns, AUDIBLE_NS, now_ns)
    }
}

impl Peer {
    pub(super) fn is_direct(&self) -> bool {
        self.direct.as_ref().is_some_and(Direct::is_open)
    }

    /// The same, but for lanes by which nothing comes: they are dead long before ICE says so. Where nothing reaches the peer through the relay they may as well
    /// be tried.
    pub(super) fn is_reached_directly(&self, is_relayed: bool, now_ns: u64) -> bool {
        self.is_direct() && (self.is_alive(now_ns) || !is_relayed)
    }

    /// One of us was gone for the server, and the other may have forgotten it. What each said of the other's audio is said again; a lane
    /// that looks open may be none any more at the other end, which ICE takes half a minute to find out.
    pub(super) fn meet_again(&mut self, now_ns: u64) {
        (self.is_told_direct, self.is_told_relayed) = (Some(true), Some(true));
        self.takes_relayed = true;
        let is_alive = self.is_alive(now_ns);
        if let Some(direct) = &mut self.direct {
            direct.meet_again(is_alive, now_ns);
        }
    }

    /// One of us has resumed on another connection: nothing is forgotten, but what was said to it by the old one may be lost.
    pub(super) fn say_again(&mut self, now_ns: u64) {
        (self.is_told_direct, self.is_told_relayed) = (None, None);
        let is_alive = self.is_alive(now_ns);
        if let Some(direct) = &mut self.direct {
            direct.say_again(is_alive, now_ns);
        }
    }

    /// What was heard before it is heard again, silence above all, says nothing of how it is heard then.
    pub(super) fn set_muted_by_owner(&mut self, is_muted: bool) {
        if std::mem::replace(&mut self.is_muted_by_owner, is_muted) && !is_muted {
            self.hearing = Hearing::default();
        }
    }

    fn is_alive(&self, now_ns: u64) -> bool {
        is_within(self.direct_ns, LANE_DEAD_NS, now_ns)
    }

    pub(super) fn sent(&self, main: SampleFormat) -> Option<SentStatus> {
        let is_sent = self.route.direct && self.is_direct();
        is_sent.then(|| SentStatus::of(&self.listener, main))
    }

    /// Of `listeners`, where it is one of them.
    pub(super) fn relay_listeners(&self, listeners: Option<u32>) -> u32 {
        listeners.filter(|_| self.takes_relayed).unwrap_or(0)
    }

    /// What its lanes carried since the last review.
    pub(super) fn carried(&mut self, elapsed_ms: u32, now_ns: u64) -> Carried {
        let dropped = self.direct.as_ref().map_or(0, |direct| direct.dropped);
        let has_dropped = dropped > std::mem::replace(&mut self.dropped_before, dropped);
        Carried {
            is_short: has_dropped || (self.is_direct() && self.listener.step() > 0),
            is_answered: is_since(self.direct_ns, elapsed_ms, now_ns),
        }
    }

    pub(super) fn played_frames(&self) -> u64 {
        self.stats.map_or(0, |stats| stats.jitter.played_frames)
    }
}

/// Whether it was since the last review, and a little before: replies to probes come twice a second as well. What has died begins to drop only so much later.
pub(super) fn is_since(at_ns: Option<u64>, elapsed_ms: u32, now_ns: u64) -> bool {
    is_within(
        at_ns,
        u64::from(elapsed_ms) * 1_000_000 + MAX_WAIT_NS,
        now_ns,
    )
}

/// Whether it was less than so long ago.
pub(super) fn is_within(at_ns: Option<u64>, span_ns: u64, now_ns: u64) -> bool {
    at_ns.is_some_and(|at| now_ns.saturating_sub(at) < span_ns)
}
