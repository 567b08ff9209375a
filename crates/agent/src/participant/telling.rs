//! What the others and the user are told: probes, reports, the status.

use std::sync::atomic::Ordering;

use antiphon_core::StreamStats;
use antiphon_core::wire::{HeardReport, Probe};
use bytes::Bytes;

use super::peer::{Peer, Strip, is_within};
use super::{NOTICE_NS, Network, Path};
use crate::clock::now_ns;
use crate::relay::{MixedSource, Relay, RelayStatistics};
use crate::report::in_mix;
use crate::status::{
    HeardStatus, MouthToEarStatus, PeerStatus, RelayStatus, SentStatus, format_name,
};

impl Network {
    pub(super) fn probe(&mut self) {
        self.probe_id = self.probe_id.wrapping_add(1);
        let probe = |id, stream| {
            let probe = Probe {
                stream,
                id,
                time_ns: now_ns(),
                replied_ns: None,
            };
            Bytes::copy_from_slice(&probe.to_bytes())
        };
        if let Some((_, relay)) = &self.relay {
            for session in relay.open_sessions() {
                relay.send_on(session, probe(self.probe_id, 0));
            }
            for number in self.peers.iter().filter_map(|peer| peer.number) {
                relay.send(probe(self.probe_id, number));
            }
        }
        for direct in self.peers.iter_mut().filter_map(|it| it.direct.as_mut()) {
            direct.probe(&probe(self.probe_id, 0), now_ns());
        }
    }

    pub(super) fn report(&mut self, overrun_frames: u32, underruns: u32, now: u64) {
        let relay = self.relay.as_ref().map(|(_, relay)| relay);
        let relay_dropped = relay.map_or(0, |relay| relay.dropped.get());
        let heard: Vec<_> = (self.peers.iter())
            .map(|peer| self.hears(peer, underruns, now))
            .collect();
        let is_relay_open = relay.is_some_and(Relay::is_open);
        for (peer, heard) in self.peers.iter_mut().zip(heard) {
            let is_relayed = is_relay_open && peer.relay_listeners(self.listeners) > 0;
            let is_direct = peer.is_reached_directly(is_relayed, now);
            let direct = peer.direct.as_mut().filter(|_| is_direct);
            let stream = if direct.is_some() {
                0
            } else if let Some(number) = peer.number {
                number
            } else {
                continue;
            };
            let dropped = direct
                .as_ref()
                .map_or(relay_dropped, |direct| direct.dropped);
            // As it is likely to hear it: by the lanes if they are sent.
            let rung = if direct.is_some() && peer.route.direct {
                peer.listener.heard_rung()
            } else {
                self.relay_listener.heard_rung()
            };
            let reading = self.capture.read(rung);
            let due = (peer.reports).poll(stream, reading, overrun_frames, dropped, heard, now);
            let Some(report) = due else { continue };
            let datagram = Bytes::copy_from_slice(&report.to_bytes());
            if let Some(direct) = direct {
                direct.send(datagram);
            } else if let Some(relay) = relay {
                relay.send(datagram);
            }
        }
    }

    /// How we hear a peer: by its own stream, which stands still while it is in the mix, or in that.
    pub(super) fn hears(&self, peer: &Peer, underruns: u32, now: u64) -> Option<HeardReport> {
        if !self.mixing.is_mixed(peer.stream) {
            return peer.hearing.report(underruns, now);
        }
        let source = mixed_source(self.statistics.as_ref(), peer.number)?;
        let mix = self.mix.as_ref()?.hearing.report(underruns, now)?;
        Some(in_mix(mix, source.concealed_share))
    }

    pub(super) fn tell(&mut self, now: u64) {
        let main = self.outgoing.samples.sender.config().format;
        let sends_to_relay = self.sends_to_relay();
        let status = &mut self.status;
        status.xruns = self.faults.xruns.load(Ordering::Relaxed);
        status.has_no_input = self.faults.no_input.load(Ordering::Relaxed);
        status.has_no_output = self.faults.no_output.load(Ordering::Relaxed);
        status.refused = self.faults.refused();
        if !is_within(Some(self.noticed_ns), NOTICE_NS, now) {
            status.notice = None;
        }
        status.overrun_frames = self.faults.lost_capture_frames.load(Ordering::Relaxed)
            + self.outgoing.samples.sender.stats().overrun_frames;
        status.ring_overflows = self.faults.lost_datagrams.load(Ordering::Relaxed);
        status.packets = self.outgoing.samples.sender.stats().packets;
        status.input_peaks =
            self.outgoing.samples.sender.take_peaks()[..self.config.choice.channels].to_vec();
        status.output_peaks = std::mem::take(&mut self.output_peaks);
        let relay = self.relay.as_ref().map(|(_, relay)| relay);
        status.relay = RelayStatus {
            sessions: relay.map_or(0, |relay| relay.open_sessions().len()),
            trouble: match relay {
                Some(relay) => relay.trouble(),
                None if status.id.is_some()
                    && matches!(self.config.path, Path::Relay | Path::Mix) =>
                {
                    Some("this server has no relay: take --path direct or auto".into())
                }
                None => None,
            },
            rtt_ms: self.relay_rtts.least_ms(now),
            listeners: self.listeners,
            dropped_packets: relay.map_or(0, |relay| relay.dropped.get()),
            statistics: self.statistics.clone(),
            sent: sends_to_relay.then(|| SentStatus::of(&self.relay_listener, main)),
        };
        // What a mute leaves out is not made up in place of something.
        let hearings: Vec<_> = (self.peers.iter())
            .map(|peer| self.hears(peer, 0, now).filter(|_| !peer.is_muted_by_owner))
            .map(|heard| heard.as_ref().map(heard_status))
            .collect();
        let mut hearings = hearings.into_iter();
        let mut peers = Vec::new();
        for peer in &mut self.peers {
            let strip = self.strips.get(&peer.id).copied().unwrap_or_default();
            let playhead = if self.mixing.is_mixed(peer.stream) {
                let mix = self.mix.as_ref().and_then(|mix| mix.stats.playhead);
                mix.zip(mixed_source(self.statistics.as_ref(), peer.number))
                    .map(|(mix, source)| mix.wrapping_sub_signed(source.lead_frames))
            } else {
                peer.stats.and_then(|stats| stats.playhead)
            };
            let mouth_to_ear = playhead.and_then(|playhead| {
                let played_ns =
                    self.rendered_frames as f64 * 1e9 / f64::from(self.config.choice.rate.hz());
                let rendered_ns = self.rendered.middle()?.ns + played_ns as i64;
                peer.reports.mouth_to_ear(
                    playhead,
                    rendered_ns,
                    self.output_ns,
                    self.config.choice.rate,
                    now,
                )
            });
            let heard = peer.reports.heard(now).as_ref().map(heard_status);
            let hearing = hearings.next().flatten();
            peers.push(PeerStatus {
                id: peer.id.clone(),
                name: peer.name.clone(),
                is_present: peer.is_present,
                is_muted_by_owner: peer.is_muted_by_owner,
                direct_lanes: peer.direct.as_ref().map_or(0, |d| d.open_lanes().len()),
                is_heard_directly: peer.by_lanes.is_heard(now),
                is_relayed: peer.by_relay.is_heard(now),
                is_mixed: self.mixing.is_mixed(peer.stream),
                rtt_ms: peer.rtts.least_ms(now),
                mouth_to_ear: mouth_to_ear.map(|m| MouthToEarStatus {
                    known_ms: m.known_ms,
                    error_ms: m.error_ms,
                    is_whole: m.is_whole,
                }),
                sent: peer.sent(main),
                captures: peer.reports.captures(now),
                hearing,
                heard,
                ..described(strip, peer.stats, std::mem::take(&mut peer.peaks))
            });
        }
        if let Some(mix) = &mut self.mix {
            let strip = self.strips.get("").copied().unwrap_or_default();
            peers.push(PeerStatus {
                name: "the server's mix".into(),
                is_present: true,
                is_mixed: self.mixing.is_heard(),
                hearing: mix.hearing.report(0, now).as_ref().map(heard_status),
                ..described(strip, Some(mix.stats), std::mem::take(&mut mix.peaks))
            });
        }
        self.status.peers = peers;
    }
}

fn heard_status(heard: &HeardReport) -> HeardStatus {
    HeardStatus {
        is_mixed: heard.is_mixed,
        concealed_share: concealed_share(heard),
        lost_share: share(heard.lost_packets, heard),
        late_share: share(heard.late_packets, heard),
        buffer_frames: heard.buffer_frames,
    }
}

/// What is known of any stream.
fn described(strip: Strip, stats: Option<StreamStats>, peaks: [f32; 2]) -> PeerStatus {
    let stats = stats.unwrap_or_default();
    PeerStatus {
        gain: strip.gain,
        pan: strip.pan,
        is_muted: strip.is_muted,
        is_solo: strip.is_solo,
        peaks,
        format: stats.format.map(format_name),
        received_packets: stats.sequence.received,
        lost_packets: stats.sequence.lost,
        late_packets: stats.jitter.late_packets,
        played_frames: stats.jitter.played_frames,
        concealed_frames: stats.jitter.concealed_frames,
        underruns: stats.jitter.underruns,
        buffer_frames: stats.buffered_frames,
        target_frames: stats.target_frames,
        drift_ppm: stats.drift.map(|drift| drift.ppm),
        ..PeerStatus::default()
    }
}

/// So many datagrams as a share of all that should have come; `None` if none should.
pub(super) fn share(packets: u32, heard: &HeardReport) -> Option<f64> {
    let due = u64::from(heard.received_packets) + u64::from(heard.lost_packets);
    (due > 0).then(|| f64::from(packets) / due as f64)
}

/// Frames made up, as a share of all that were heard; `None` if none were.
fn concealed_share(heard: &HeardReport) -> Option<f64> {
    let all = u64::from(heard.played_frames) + u64::from(heard.concealed_frames);
    (all > 0).then(|| f64::from(heard.concealed_frames) / all as f64)
}

/// As the relay says of the participant with that number; `None` while it does not play in our mix.
fn mixed_source(said: Option<&RelayStatistics>, number: Option<u16>) -> Option<MixedSource> {
    said?.mixed(number?)
}
