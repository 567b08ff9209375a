//! What is sent to whom, and in which format.

use antiphon_core::wire::{self, Datagram, MAX_DATAGRAM_BYTES};
use antiphon_opus::outgoing::{Lanes, Rung};

use super::peer::is_within;
use super::telling::share;
use super::{Network, RECENT_NS};
use crate::clock::now_ns;
use crate::direct::MAX_LANES;
use crate::relay::RelayStatistics;

/// Where their number is found by itself; no fewer, for a copy needs a second one.
pub(super) const FIRST_LANES: usize = 2;
/// The most then, unless copies are sent: lanes that lose some hold back what is more than a few packets for each acknowledgement.
const MAX_LOSSLESS_LANES: usize = 8;
/// To all peers together: each is a connection to set up, to watch and to keep alive.
const MAX_LANES_TOGETHER: usize = 64;

impl Network {
    /// Sends all that waits, in every format that somebody is sent.
    pub(super) fn send_captured(&mut self) {
        let is_relayed = self.sends_to_relay();
        let (peers, relay_listener) = (&self.peers, &self.relay_listener);
        let listeners = || {
            let direct = peers
                .iter()
                .filter(|peer| peer.route.direct && peer.is_direct());
            direct
                .map(|peer| &peer.listener)
                .chain(is_relayed.then_some(relay_listener))
        };
        self.outgoing.prepare(
            |rung| listeners().any(|listener| listener.takes(rung)),
            |rung| listeners().any(|listener| listener.takes(rung) && listener.sends_copies()),
        );
        let mut bytes = [0; MAX_DATAGRAM_BYTES];
        while let Some((rung, length)) = self.outgoing.poll_datagram(&mut bytes) {
            self.send_as(rung, &mut bytes[..length], is_relayed);
        }
        self.send_copies();
    }

    /// Whether somebody takes our stream from the relay. Before it said how many do, somebody may.
    pub(super) fn sends_to_relay(&self) -> bool {
        (self.relay.as_ref()).is_some_and(|(_, relay)| relay.is_open())
            && self.listeners != Some(0)
            && self.peers.iter().any(|peer| peer.route.relay)
    }

    fn send_as(&mut self, rung: Rung, datagram: &mut [u8], is_relayed: bool) {
        let (timestamp, frames) = match wire::parse(datagram) {
            Ok(Datagram::Audio(header, ..)) => (header.timestamp, header.frames),
            Ok(Datagram::Opus(header, _)) => (header.timestamp, header.frames),
            _ => return,
        };
        let at = (timestamp, frames);
        let mut is_sent = false;
        for peer in self.peers.iter_mut().filter(|peer| peer.route.direct) {
            if let Some(direct) = peer.direct.as_mut().filter(|direct| direct.is_open())
                && peer.listener.takes(rung)
            {
                is_sent |= (peer.listener).send(rung, datagram, at, |bytes| direct.send(bytes));
            }
        }
        if is_relayed
            && self.relay_listener.takes(rung)
            && let Some((_, relay)) = &self.relay
        {
            is_sent |= (self.relay_listener).send(rung, datagram, at, |bytes| relay.send(bytes));
        }
        if is_sent {
            self.capture.sent(rung, timestamp, now_ns());
        }
    }

    fn send_copies(&mut self) {
        for peer in &mut self.peers {
            if let Some(direct) = &peer.direct {
                (peer.listener).send_copies(|lane, bytes| direct.send_copy(lane, bytes));
            }
        }
        if let Some((_, relay)) = &self.relay {
            (self.relay_listener).send_copies(|session, bytes| relay.send_copy(session, bytes));
        }
    }

    /// Finds out what each listener's path can carry, where that is due so long after the last question.
    pub(super) fn review_formats(&mut self, elapsed_ms: u32, now: u64) {
        let is_relayed = self.sends_to_relay();
        let adds_lanes = self.config.lanes.is_none();
        let most_each = (MAX_LANES_TOGETHER / self.peers.len().max(1)).max(FIRST_LANES);
        for peer in &mut self.peers {
            let Some(direct) = peer.direct.as_mut().filter(|direct| direct.is_open()) else {
                continue;
            };
            if !peer.listener.is_due(elapsed_ms) {
                continue;
            }
            // What is lost of a mix was lost behind the server.
            let heard = peer.reports.heard(now).filter(|heard| !heard.is_mixed);
            // Where the relay is sent the same, that is the copy, and what is lost may be all of that way's.
            let has_copy = is_relayed && peer.route.relay && peer.takes_relayed;
            if has_copy {
                peer.both_ways_ns = Some(now);
            }
            let is_said_of_both = is_within(peer.both_ways_ns, RECENT_NS, now);
            let heard = heard.filter(|_| !is_said_of_both);
            let lost_share = heard.and_then(|heard| share(heard.lost_packets, &heard));
            let lanes = direct.open_lanes().len();
            // Samples carry their copies, Opus needs a second lane for them.
            let can_copy = (lanes > 1 || !peer.listener.rung().is_opus()) && !has_copy;
            // Lanes that were asked for and do not come are not waited for.
            let most = lanes.max(direct.wanted_lanes());
            let limit = if peer.listener.sends_copies() {
                MAX_LANES
            } else {
                MAX_LOSSLESS_LANES
            };
            let limit = limit.min(most_each);
            let can_add = adds_lanes && most < limit;
            match (peer.listener).review(lost_share.map(|share| share as f32), can_copy, can_add) {
                Lanes::Add => direct.want_lanes((2 * most).min(limit), now),
                Lanes::Remove if adds_lanes && lanes > FIRST_LANES => {
                    direct.want_lanes(lanes - 1, now);
                }
                Lanes::Reset if adds_lanes && most > FIRST_LANES => {
                    direct.want_lanes(FIRST_LANES, now)
                }
                Lanes::Keep | Lanes::Remove | Lanes::Reset => {}
            }
        }
        if let Some((_, relay)) = &self.relay
            && self.relay_listener.is_due(elapsed_ms)
        {
            // Where all are sent the same directly, that is the copy.
            let is_needed = (self.peers.iter())
                .any(|peer| peer.takes_relayed && !(peer.route.direct && peer.is_direct()));
            let can_copy = is_needed
                && (relay.open_sessions().len() > 1 || !self.relay_listener.rung().is_opus());
            let lost_share = (self.statistics.as_ref()).and_then(RelayStatistics::missing_share);
            (self.relay_listener).review(lost_share, can_copy, false);
        }
    }
}
