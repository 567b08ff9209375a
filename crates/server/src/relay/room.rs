//! One room's sound: who is in it, over which sessions, who takes what from whom, and the way of each datagram.
//!
//! Only the media thread has rooms, so nothing here is locked; and nothing here waits.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    time::{Duration, Instant},
};

use antiphon_core::wire::{self, Kind, MIX_STREAM};
use bytes::{Bytes, BytesMut};
use tokio::sync::watch;
use web_transport_quinn::{Session, quinn::Connection};

use super::{
    control::{Listen, Statistics},
    latency::Latencies,
    metrics::Traffic,
    quic::{CloseCode, SESSION_PREFIX},
};
use crate::{
    media::{ParticipantMedia, RoomMedia},
    rate::TokenBucket,
    signalling::{ParticipantId, RoomName, SampleRateHz},
};

/// Sessions of one participant.
const MAX_SESSIONS: usize = 4;
/// Datagrams that a participant may send per second in the long run; half as many at once.
const DATAGRAMS_PER_S: u32 = 4_000;
/// Bytes that a participant may send per second in the long run; half as many at once.
const BYTES_PER_S: u32 = 1_500_000;
/// Messages that a participant may send on its control streams per second, and at once.
const MESSAGES_PER_S: u32 = 20;

/// Everyone in a room who may have sessions, by number.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) name: RoomName,
    sample_rate_hz: SampleRateHz,
    participants: BTreeMap<u16, Participant>,
    /// From a datagram's arrival until its last copy was handed to QUIC.
    pub(super) forward: Latencies,
    /// From the last frame a mix needed until its datagram was handed to QUIC.
    pub(super) mix: Latencies,
    /// As of the last report.
    reported_forward: Latencies,
}

#[derive(Debug)]
struct Participant {
    id: ParticipantId,
    muted: bool,
    sessions: Vec<Session>,
    /// Which session was used last.
    turn: usize,
    listen: Listen,
    /// Who takes this one's stream as it is.
    forwarded_to: Vec<u16>,
    /// How many take this one's stream.
    wanted: watch::Sender<u32>,
    datagrams: TokenBucket,
    bytes: TokenBucket,
    messages: TokenBucket,
    counts: Counts,
    reported: Counts,
}

/// Since the participant was admitted.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    /// Datagrams from it.
    pub(super) received: u64,
    /// Of these, what matched the protocol in no way.
    pub(super) malformed: u64,
    /// Of these, what was over its rate.
    pub(super) over_rate: u64,
    /// Datagrams to it.
    pub(super) sent: u64,
    /// Dropped for it because no session had room.
    pub(super) aged: u64,
    /// Packets to it that were lost on sessions that have ended.
    lost_before: u64,
}

impl Room {
    pub(super) fn new(name: RoomName, sample_rate_hz: SampleRateHz) -> Self {
        Self {
            name,
            sample_rate_hz,
            participants: BTreeMap::new(),
            forward: Latencies::default(),
            mix: Latencies::default(),
            reported_forward: Latencies::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.participants.is_empty()
    }

    pub(super) fn admit(&mut self, stream: u16, id: ParticipantId, now: Duration) {
        let participant = Participant {
            id,
            muted: false,
            sessions: Vec::new(),
            turn: 0,
            listen: Listen::default(),
            forwarded_to: Vec::new(),
            wanted: watch::Sender::new(0),
            datagrams: TokenBucket::new(DATAGRAMS_PER_S / 2, DATAGRAMS_PER_S, now),
            bytes: TokenBucket::new(BYTES_PER_S / 2, BYTES_PER_S, now),
            messages: TokenBucket::new(MESSAGES_PER_S, MESSAGES_PER_S, now),
            counts: Counts::default(),
            reported: Counts::default(),
        };
        self.participants.insert(stream, participant);
        self.connect_listeners();
    }

    pub(super) fn withdraw(&mut self, stream: u16) {
        if let Some(participant) = self.participants.remove(&stream) {
            for session in participant.sessions {
                CloseCode::Left.close(&session);
            }
        }
        self.connect_listeners();
    }

    pub(super) fn mute(&mut self, stream: u16, muted: bool) {
        if let Some(participant) = self.participants.get_mut(&stream) {
            participant.muted = muted;
        }
    }

    pub(super) fn close_all(&self, code: CloseCode) {
        for participant in self.participants.values() {
            for session in &participant.sessions {
                code.close(session);
            }
        }
    }

    /// A session of this participant was accepted.
    ///
    /// # Errors
    /// It has to be closed: the participant has enough, or has left meanwhile.
    pub(super) fn open(&mut self, stream: u16, session: &Session) -> Result<(), CloseCode> {
        let participant = self.participants.get_mut(&stream).ok_or(CloseCode::Left)?;
        if participant.sessions.len() == MAX_SESSIONS {
            return Err(CloseCode::TooManySessions);
        }
        participant.sessions.push(session.clone());
        Ok(())
    }

    /// A session has ended. Who has none any more hears nothing, so it takes nothing.
    pub(super) fn ended(&mut self, stream: u16, session: &Session) {
        let Some(participant) = self.participants.get_mut(&stream) else {
            return;
        };
        participant.sessions.retain(|other| other != session);
        participant.counts.lost_before += lost(session);
        if participant.sessions.is_empty() {
            self.listen(stream, Listen::default());
        }
    }

    /// From now on a participant takes this.
    pub(super) fn listen(&mut self, stream: u16, listen: Listen) {
        if let Some(participant) = self.participants.get_mut(&stream) {
            participant.listen = listen;
        }
        self.connect_listeners();
    }

    /// Whether a participant may say one more thing now.
    pub(super) fn may_say(&mut self, stream: u16, now: Duration) -> bool {
        self.participants
            .get_mut(&stream)
            .is_some_and(|participant| participant.messages.take(1, now))
    }

    /// Tells how many take a participant's stream, now and on every change.
    pub(super) fn wanted(&self, stream: u16) -> Option<watch::Receiver<u32>> {
        Some(self.participants.get(&stream)?.wanted.subscribe())
    }

    pub(super) fn statistics(&self, stream: u16, session: &Session) -> Option<Statistics> {
        let participant = self.participants.get(&stream)?;
        let rtt_us = session.rtt().as_micros();
        Some(Statistics {
            rtt_us: rtt_us.try_into().unwrap_or(u64::MAX),
            forwarded: participant.counts.sent,
            aged: participant.counts.aged,
            over_rate: participant.counts.over_rate,
            lost: participant.lost(),
            mix_us: None,
        })
    }

    /// Finds out anew who takes whose stream.
    fn connect_listeners(&mut self) {
        let takes: Vec<(u16, Listen)> = self
            .participants
            .iter()
            .map(|(number, participant)| (*number, participant.listen.clone()))
            .collect();
        for (number, participant) in &mut self.participants {
            participant.forwarded_to.clear();
            let mut mixed = 0;
            for (listener, listen) in takes.iter().filter(|(listener, _)| listener != number) {
                if listen.forward.binary_search(number).is_ok() {
                    participant.forwarded_to.push(*listener);
                } else if listen.mixes(*number) {
                    mixed += 1;
                }
            }
            let listeners = participant.forwarded_to.len() as u32 + mixed;
            participant.wanted.send_if_modified(|wanted| {
                let changed = *wanted != listeners;
                *wanted = listeners;
                changed
            });
        }
    }

    /// What a participant sent goes where it has to. `raw` is as QUIC delivered it, at `arrived`; `clock` is the time since the relay
    /// began.
    pub(super) fn handle_datagram(
        &mut self,
        from: u16,
        session: &Session,
        raw: Bytes,
        arrived: Instant,
        clock: Duration,
    ) {
        let Some(sender) = self.participants.get_mut(&from) else {
            return;
        };
        sender.counts.received += 1;
        if !sender.datagrams.take(1, clock) || !sender.bytes.take(raw.len(), clock) {
            sender.counts.over_rate += 1;
            return;
        }
        let routed = match raw.split_first() {
            Some((&SESSION_PREFIX, datagram)) => wire::route(datagram).ok(),
            _ => None,
        };
        match routed {
            Some((Kind::Audio, 0)) => {
                if !sender.muted {
                    self.forward_audio(from, raw, arrived);
                }
            }
            Some((Kind::Probe, 0)) => {
                let reply = answered(raw, clock);
                // A session that has just ended needs no reply.
                let _ = Connection::send_datagram(session, reply);
            }
            Some((kind, to)) if kind != Kind::Audio && to < MIX_STREAM => {
                if let Some(receiver) = self.participants.get_mut(&to) {
                    receiver.send(numbered(raw, kind, from));
                }
            }
            _ => sender.counts.malformed += 1,
        }
    }

    fn forward_audio(&mut self, from: u16, raw: Bytes, arrived: Instant) {
        let Some(sender) = self.participants.get_mut(&from) else {
            return;
        };
        if sender.forwarded_to.is_empty() {
            return;
        }
        let listeners = std::mem::take(&mut sender.forwarded_to);
        let outgoing = numbered(raw, Kind::Audio, from);
        for listener in &listeners {
            if let Some(listener) = self.participants.get_mut(listener) {
                listener.send(outgoing.clone());
            }
        }
        if let Some(sender) = self.participants.get_mut(&from) {
            sender.forwarded_to = listeners;
        }
        self.forward.record(arrived.elapsed());
    }

    /// For the operator's page: those with a session, and what happened since the last call, `elapsed` ago. None if there is nobody.
    pub(super) fn report(&mut self, elapsed: Duration) -> Option<RoomMedia> {
        let forward_us = self.forward.since(&self.reported_forward).quantiles();
        self.reported_forward = self.forward.clone();
        let participants: Vec<_> = self
            .participants
            .iter_mut()
            .filter(|(_, participant)| !participant.sessions.is_empty())
            .map(|(number, participant)| participant.report(*number, elapsed))
            .collect();
        (!participants.is_empty()).then(|| RoomMedia {
            room: self.name.clone(),
            forward_us,
            mix_us: None,
            participants,
        })
    }

    /// For Prometheus: everyone who has sent anything.
    pub(super) fn traffic(&self) -> impl Iterator<Item = Traffic> {
        let present = self
            .participants
            .values()
            .filter(|participant| participant.counts.received > 0);
        present.map(|participant| Traffic {
            room: format!("{:?}", self.name),
            participant: format!("{:?}", participant.id),
            counts: participant.counts,
            lost: participant.lost(),
        })
    }
}

impl Participant {
    /// Sends on the session with the most room, in turns among equals, and never waits: where none has room, QUIC drops the oldest that
    /// waits on that session.
    fn send(&mut self, outgoing: Bytes) {
        let count = self.sessions.len();
        self.turn = (self.turn + 1) % count.max(1);
        let in_turn = (0..count).map(|index| &self.sessions[(self.turn + index) % count]);
        let with_room =
            in_turn.map(|session| (Connection::datagram_send_buffer_space(session), session));
        let Some((room, session)) = with_room.min_by_key(|(room, _)| Reverse(*room)) else {
            return;
        };
        if room < outgoing.len() {
            self.counts.aged += 1;
        }
        if Connection::send_datagram(session, outgoing).is_ok() {
            self.counts.sent += 1;
        }
    }

    fn lost(&self) -> u64 {
        self.counts.lost_before + self.sessions.iter().map(lost).sum::<u64>()
    }

    fn report(&mut self, stream: u16, elapsed: Duration) -> ParticipantMedia {
        let per_s = |now: u64, before: u64| ((now - before) as f64 / elapsed.as_secs_f64()) as u32;
        let quickest = self.sessions.iter().map(|session| session.rtt()).min();
        let report = ParticipantMedia {
            participant: self.id,
            stream,
            sessions: self.sessions.len() as u8,
            forwarded: self.listen.forward.len() as u16,
            mixed: self.listen.mix.is_some(),
            rtt_us: quickest.map(|rtt| rtt.as_micros() as u32),
            packets_in_per_s: per_s(self.counts.received, self.reported.received),
            packets_out_per_s: per_s(self.counts.sent, self.reported.sent),
            lost: self.lost(),
            aged: self.counts.aged,
            over_rate: self.counts.over_rate,
        };
        self.reported = self.counts;
        report
    }
}

/// Packets that QUIC sent on a session and found lost.
fn lost(session: &Session) -> u64 {
    Connection::stats(session).path.lost_packets
}

/// The datagram with its sender's number in it. Copied only where QUIC still needs the bytes for another.
fn numbered(raw: Bytes, kind: Kind, from: u16) -> Bytes {
    let mut outgoing = writable(raw);
    kind.set_stream(&mut outgoing[1..], from);
    outgoing.freeze()
}

/// The reply to a probe of the relay itself.
fn answered(raw: Bytes, clock: Duration) -> Bytes {
    let mut reply = writable(raw);
    reply[2] = Kind::ProbeReply as u8;
    let replied = u64::try_from(clock.as_nanos()).unwrap_or(u64::MAX);
    reply[17..25].copy_from_slice(&replied.to_le_bytes());
    reply.freeze()
}

fn writable(raw: Bytes) -> BytesMut {
    raw.try_into_mut()
        .unwrap_or_else(|shared| BytesMut::from(&shared[..]))
}
