//! By which way the sound to and from each peer goes, whether it is heard by itself or in the server's mix, and how loud.

use antiphon_core::mixing::{MemberObservation, MixObservation};
use antiphon_core::path::{Asked, Carried, ListenerObservation, Pin, SenderObservation};
use antiphon_core::{Command, StreamId, StreamStats};
use antiphon_opus::Receiver;
use serde_json::json;

use super::peer::{Peer, Strip, is_since};
use super::{Network, PROBE_TICKS, Path, TICK};
use crate::clock::now_ns;
use crate::relay::{Listen, Mix, MixSource, Relay, RelayStatistics};
use crate::report::Hearing;
use crate::signalling::ToServer;

/// The mix that the server makes for us, as a stream of our player; silent until it shall be heard.
#[derive(Debug)]
pub(super) struct MixStream {
    pub(super) stream: StreamId,
    /// As the player was last told.
    pub(super) strip: Option<Strip>,
    pub(super) opus: Receiver,
    pub(super) hearing: Hearing,
    pub(super) stats: StreamStats,
    pub(super) peaks: [f32; 2],
}

impl Network {
    /// Tells the player how each stream is heard, where that has changed.
    pub(super) fn apply_strips(&mut self) {
        let (mixing, strips) = (&self.mixing, &self.strips);
        let wanted = |id: &str| strips.get(id).copied().unwrap_or_default();
        let has_solo = (self.peers.iter())
            .any(|peer| mixing.is_mixed(peer.stream) && wanted(&peer.id).is_solo);
        let peers = self.peers.iter_mut().map(|peer| {
            let own = wanted(&peer.id);
            let is_silent = peer.is_muted_by_owner || mixing.is_mixed(peer.stream);
            let strip = Strip {
                is_muted: own.is_muted || is_silent,
                ..own
            };
            (peer.stream, strip, &mut peer.strip)
        });
        let mix = self.mix.iter_mut().map(|mix| {
            let own = wanted("");
            let strip = Strip {
                is_muted: own.is_muted || !mixing.is_heard(),
                is_solo: own.is_solo || has_solo,
                ..own
            };
            (mix.stream, strip, &mut mix.strip)
        });
        for (stream, strip, told) in peers.chain(mix) {
            if told.replace(strip) != Some(strip) {
                self.commands.extend([
                    Command::Gain(stream, strip.gain),
                    Command::Pan(stream, strip.pan),
                    Command::Mute(stream, strip.is_muted),
                    Command::Solo(stream, strip.is_solo),
                ]);
            }
        }
    }

    pub(super) fn wanted(&self, now: u64) -> Listen {
        if self.config.path == Path::Direct {
            return Listen::default();
        }
        let forward = (self.peers.iter())
            .filter(|peer| self.asked_of(peer, now) != Asked::Nothing)
            .filter(|peer| self.mixing.needs_own(peer.stream))
            .filter_map(|peer| peer.number)
            .collect();
        let any_solo = self.peers.iter().any(|peer| self.strip(&peer.id).is_solo);
        let sources: Vec<_> = (self.mixing.sources())
            .filter_map(|stream| self.peers.iter().find(|peer| peer.stream == stream))
            .filter_map(|peer| {
                let strip = self.strip(&peer.id);
                Some(MixSource {
                    stream: peer.number?,
                    gain: strip.gain,
                    pan: strip.pan,
                    muted: strip.is_muted || (any_solo && !strip.is_solo),
                })
            })
            .collect();
        let mix = (!sources.is_empty()).then(|| Mix {
            format: self.config.choice.format.bits().min(24),
            packet_frames: self.config.choice.packet_frames,
            sources,
        });
        Listen {
            forward,
            mix,
            ..Listen::default()
        }
    }

    /// What to ask the relay for of one peer: of who is heard directly while others are mixed, nothing.
    pub(super) fn asked_of(&self, peer: &Peer, now: u64) -> Asked {
        if self.asked == Asked::Mixed && peer.by_lanes.is_heard(now) {
            Asked::Nothing
        } else {
            self.asked
        }
    }

    /// Chooses the paths, twice a second.
    pub(super) fn review(&mut self) {
        let elapsed_ms = TICK.as_millis() as u32 * PROBE_TICKS as u32;
        let pin = self.config.path.pin();
        let relay = self.relay.as_ref().map(|(_, relay)| relay);
        let is_relay_open = relay.is_some_and(Relay::is_open);
        let relay_dropped = relay.map_or(0, |relay| relay.dropped.get());
        let has_relay_dropped =
            relay_dropped > std::mem::replace(&mut self.relay_dropped_before, relay_dropped);
        let now = now_ns();
        let by_relay = Carried {
            is_short: is_relay_open && (has_relay_dropped || self.relay_listener.step() > 0),
            is_answered: is_since(self.relay_ns, elapsed_ms, now),
        };
        for peer in &mut self.peers {
            let relay_listeners = peer.relay_listeners(self.listeners);
            let is_relayed = is_relay_open && relay_listeners > 0;
            let by_lanes = peer.carried(elapsed_ms, now);
            let is_wanted = peer.direct.as_ref().is_none_or(|direct| direct.is_wanted);
            peer.route = peer.sending.review(&SenderObservation {
                elapsed_ms,
                // Ours is how we hear it; how it hears us, it tells.
                pin: if is_wanted { pin } else { Pin::Relayed },
                is_direct_open: peer.is_reached_directly(is_relayed, now),
                is_relay_open,
                // Its reports cover both paths at once.
                direct_lost_share: None,
                relay_lost_share: None,
                direct: by_lanes,
                relay: by_relay,
                relay_listeners,
            });
        }
        // The relay counts since we came into the room. With a session that has ended its word is gone for a second, and a server that was restarted counts anew.
        let both = self
            .statistics_before
            .as_ref()
            .zip(self.statistics.as_ref());
        let grown = |of: fn(&RelayStatistics) -> u64| {
            let grown = both.map_or(0, |(before, now)| of(now).saturating_sub(of(before)));
            u32::try_from(grown).unwrap_or(u32::MAX)
        };
        self.asked = self.listening.review(&ListenerObservation {
            elapsed_ms,
            pin,
            is_relay_open,
            streams: self.peers.len() as u32,
            forwarded: grown(|counts| counts.forwarded),
            aged: grown(|counts| counts.aged),
        });
        if self.statistics.is_some() {
            self.statistics_before = self.statistics.clone();
        }
    }

    /// Has each heard by its own stream or in the mix, as the relay is asked, and neither twice nor not at all meanwhile.
    pub(super) fn follow_mix(&mut self, now: u64) {
        let elapsed_ms = (now.saturating_sub(self.looked_ns) / 1_000_000) as u32;
        // What is less than a millisecond is not lost.
        self.looked_ns += u64::from(elapsed_ms) * 1_000_000;
        let stats = self.mix.as_ref().map(|mix| mix.stats).unwrap_or_default();
        let buffered_frames = stats.buffered_frames.unwrap_or_default();
        let buffered_ms = buffered_frames * 1_000 / u64::from(self.config.choice.rate.hz());
        let rtt_ns = self.relay_rtts.least_ns(now).unwrap_or(0);
        let seen = MixObservation {
            elapsed_ms,
            played_frames: stats.jitter.played_frames,
            settle_ms: (rtt_ns / 1_000_000 + buffered_ms) as u32,
        };
        let all: Vec<_> = (self.peers.iter())
            .map(|peer| MemberObservation {
                stream: peer.stream,
                is_wanted: peer.number.is_some() && self.asked_of(peer, now) == Asked::Mixed,
                is_forwarded: peer.by_relay.is_heard(now),
                played_frames: peer.played_frames(),
            })
            .collect();
        self.mixing.review(&seen, &all);
        match &self.mix {
            None if self.mixing.is_needed() => {
                self.mix = Some(MixStream {
                    stream: self.add_stream(),
                    strip: None,
                    opus: Receiver::default(),
                    hearing: Hearing::default(),
                    stats: StreamStats::default(),
                    peaks: [0.0; 2],
                });
            }
            Some(mix) if !self.mixing.is_needed() => {
                self.commands.push_back(Command::Remove(mix.stream));
                self.mix = None;
            }
            _ => {}
        }
        self.apply_strips();
        let listen = self.wanted(now);
        if let Some((_, relay)) = &self.relay {
            relay.listen(listen.clone());
        }
        for peer in &mut self.peers {
            // The relay passes on what was asked for, of whom the owner has not muted.
            let is_taken = (peer.number).is_some_and(|number| listen.forward.contains(&number));
            peer.by_relay.is_withheld |= !is_taken || peer.is_muted_by_owner;
        }
        // After the relay: who is no longer to send directly shall find that the relay is asked.
        self.tell_wanted(&listen);
    }

    /// Tells each peer by which ways its sound is to come: who is mixed need not send directly.
    fn tell_wanted(&mut self, listen: &Listen) {
        for peer in &mut self.peers {
            // Whom the server does not know at present cannot be told.
            let Some(number) = peer.number else { continue };
            let relayed = listen.takes(number);
            let direct = self.mixing.needs_own(peer.stream) || peer.direct.is_none();
            for (kind, wanted, told) in [
                ("relayed", relayed, &mut peer.is_told_relayed),
                ("direct", direct, &mut peer.is_told_direct),
            ] {
                if *told == Some(wanted) {
                    continue;
                }
                let signal = ToServer::Signal {
                    to: peer.id.clone(),
                    data: json!({"kind": kind, "wanted": wanted}),
                };
                // With a full queue it is said later.
                if self.to_server.try_send(signal).is_ok() {
                    *told = Some(wanted);
                }
            }
        }
    }

    pub(super) fn listen(&self, now: u64) {
        if let Some((_, relay)) = &self.relay {
            relay.listen(self.wanted(now));
        }
    }

    fn strip(&self, id: &str) -> Strip {
        self.strips.get(id).copied().unwrap_or_default()
    }
}
