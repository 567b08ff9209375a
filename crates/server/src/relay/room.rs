//! One room's sound: who is in it, over which sessions, who takes what from whom, and the way of each datagram.
//!
//! Only the media thread has rooms, so nothing here is locked; and nothing here waits.

use std::{
    cell::Cell,
    cmp::Reverse,
    collections::BTreeMap,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use antiphon_core::{
    SampleFormat, SampleRate,
    ladder::CONGESTED_SHARE,
    wire::{self, Datagram, Kind, MAX_DATAGRAM_BYTES, MAX_PACKET_FRAMES, MIX_STREAM},
};
use antiphon_opus::outgoing::{Choice, Copies, Listener, Rendition, Rung, Sent};
use bytes::{Bytes, BytesMut};
use quinn_proto::ConnectionHandle;

use super::{
    connections::Connections,
    control::{ControlError, Listen, Mix, MixedSource, Statistics, Wanted},
    encoding::{Encoded, Encoding, Place},
    latency::Latencies,
    load::Account,
    losses::{Downlink, Mixed, Sound, Uplink},
    metrics::{Snapshot, Traffic},
    quic::{CloseCode, SEND_BUFFER, SESSION_PREFIX},
};
use crate::{
    media::{MediaStatus, MixFormat, ParticipantMedia, RoomMedia},
    mixer::{CHANNELS, Decoding, Mixer, Source},
    rate::TokenBucket,
    signalling::{ParticipantId, RoomName, SampleRateHz},
};

/// Sessions of one participant.
pub(super) const MAX_SESSIONS: usize = 4;
/// Datagrams that a participant may send per second in the long run; half as many at once. The most that a page can be told to send is 6,000 of 16 frames at
/// 96 kHz; beside them go probes of the relay, and another format for the second in which it changes.
const DATAGRAMS_PER_S: u32 = 8_000;
/// Bytes that a participant may send per second in the long run; half as many at once. The most is 8 channels in 32 bits at 96 kHz, with copies: 3.7 MB.
const BYTES_PER_S: u32 = 5_000_000;
/// Probes, replies and reports that one participant may send another per second in the long run, and at once. A page sends 6 to 8.
const PASSED_ON_PER_S: u32 = 50;
/// Datagrams that the relay may have to send for a participant's audio per second in the long run, one for each who takes it; half as many at once.
/// Few listeners never reach it; of a full room's 31, packets of 64 frames at 48 kHz take half.
const DELIVERIES_PER_S: u32 = 48_000;
/// The same for all in a room: more than a full room where everyone takes everyone's packets of 128 frames as they are: 372,000, and a third more where their
/// blocks are of one and a half packets, which go as two.
const ROOM_DELIVERIES_PER_S: u32 = 500_000;
/// Work of all mixes of the server together, see [`mixing_work`]: some four fifths of a core, of which twenty who take a mix of everyone need 540. Who asks for more
/// is not mixed for.
const MAX_MIXING: usize = 2_048;
/// The same for running mixes that grow: who has come into a room shall not take away everybody's.
const MAX_GROWN: usize = MAX_MIXING + MAX_MIXING / 32;
/// A room's mixes may take one part in so many of what the other rooms leave for each who is in it, but no more than half. So the 64 connections that an address has by default leave
/// a quarter, whatever rooms they are in.
const SEATS_LEFT: usize = 64;
const MAX_SEATS: usize = SEATS_LEFT / 2;
/// To make a packet and to send it takes as much as so many sources in it.
const PACKET_WORK: usize = 8;
/// Messages that a participant may send on its control streams per second, and at once.
const MESSAGES_PER_S: u32 = 20;
/// Mixes of another shape that a participant may ask for per second in the long run, and at once: making one takes the media thread's
/// time.
const MIXES_PER_S: u32 = 1;
const MIXES_AT_ONCE: u32 = 4;
/// With less room than this on a listener's emptiest session, so much waits that its downlink is too slow.
const CROWDED_ROOM: usize = SEND_BUFFER / 2;
/// Nothing has come of a session for so long: it may have died, and has. Those who live are probed twice a second.
const SILENT: Duration = Duration::from_secs(1);
const DEAD: Duration = Duration::from_secs(2);
/// A datagram is sent a second time only where at least so much room is left.
const COPY_ROOM: usize = SEND_BUFFER / 4 * 3;
/// So many packets lost since a listener's last review, and more than [`CONGESTED_SHARE`]: that is want of room (as the ladder has it, which learns of
/// other losses by reports that are seconds old).
const HEAVY_LOSS: u64 = 8;
/// Time between two looks at what a listener's mix can be sent as, at least.
const LOOK: Duration = Duration::from_millis(10);

/// Everyone in a room who may have sessions, by number.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) name: RoomName,
    /// When the relay began: the zero of its clock.
    start: Instant,
    /// Datagrams that its audio may still cause.
    deliveries: TokenBucket,
    all_mixes: Rc<AllMixes>,
    changed: Rc<Changed>,
    /// Somebody takes something else than [`Room::connect_listeners`] has found.
    listeners_changed: bool,
    participants: BTreeMap<u16, Participant>,
    /// Its clock is the relay's.
    mixer: Mixer,
    /// There was more to mix than is done in one go.
    has_more_to_mix: bool,
    rate: SampleRate,
    encoding: Rc<Encoding>,
    /// From a datagram's arrival until its last copy was handed to QUIC.
    pub(super) forward: Latencies,
    /// From the last frame a mix needed until its datagram was written to the socket.
    pub(super) mix: Latencies,
    /// Both as of the last report.
    reported: (Latencies, Latencies),
}

/// What has changed in any of the rooms since the loop looked.
#[derive(Debug, Default)]
pub(super) struct Changed {
    /// [`Room::poll_timeout`] may be another than before.
    pub(super) mixes: Cell<bool>,
    /// [`Room::connect_listeners`] has something to do.
    pub(super) listeners: Cell<bool>,
}

#[derive(Debug)]
struct Participant {
    id: ParticipantId,
    muted: bool,
    sessions: Vec<ConnectionHandle>,
    /// What comes by these is taken, and nothing more is sent on them: they are about to end. Oldest first.
    retired: Vec<ConnectionHandle>,
    /// Which session was used last.
    turn: usize,
    listen: Listen,
    /// How many streams are forwarded to it.
    takes: u16,
    /// Who takes this one's stream as it is, ascending.
    forwarded_to: Vec<u16>,
    /// In whose mixes this one's stream is.
    mixed_for: Vec<u16>,
    /// Who takes this one's stream, as its page is told.
    wanted: Wanted,
    allowance: Allowance,
    account: Rc<Account>,
    mix_share: MixShare,
    /// Frames of its mix's packets: as it asked for, or more.
    mix_frames: usize,
    /// Whether it asked for a mix, and the server mixed enough already.
    mix_refused: bool,
    uplink: Uplink,
    /// Its own sound, in the mixes of others.
    mixed: Mixed,
    downlink: Downlink,
    /// Once it has asked for a mix.
    mix_way: Option<Box<MixWay>>,
    counts: Counts,
    /// The counts as of the last report.
    reported: Counts,
    /// How long its mixes took since its page was told last, and how many they were.
    mixing: (Duration, u32),
}

/// What a participant may do.
#[derive(Debug)]
struct Allowance {
    datagrams: TokenBucket,
    bytes: TokenBucket,
    deliveries: TokenBucket,
    messages: TokenBucket,
    mixes: TokenBucket,
    /// What may be passed on to it, by the number of who sends it.
    passed_on: BTreeMap<u16, TokenBucket>,
}

impl Allowance {
    fn new(now: Duration) -> Self {
        Self {
            datagrams: TokenBucket::new(DATAGRAMS_PER_S / 2, DATAGRAMS_PER_S, now),
            bytes: TokenBucket::new(BYTES_PER_S / 2, BYTES_PER_S, now),
            deliveries: TokenBucket::new(DELIVERIES_PER_S / 2, DELIVERIES_PER_S, now),
            messages: TokenBucket::new(MESSAGES_PER_S, MESSAGES_PER_S, now),
            mixes: TokenBucket::new(MIXES_AT_ONCE, MIXES_PER_S, now),
            passed_on: BTreeMap::new(),
        }
    }

    fn pass_on(&mut self, from: u16, now: Duration) -> bool {
        let new = || TokenBucket::new(PASSED_ON_PER_S, PASSED_ON_PER_S, now);
        let passed_on = self.passed_on.entry(from).or_insert_with(new);
        passed_on.take(1, now)
    }

    fn datagram(&mut self, bytes: usize, now: Duration) -> bool {
        self.datagrams.take(1, now) && self.bytes.take(bytes, now)
    }

    /// Whether audio may go to so many, who belong to a room that may still have so much delivered.
    fn deliver(&mut self, listeners: usize, room: &mut TokenBucket, now: Duration) -> bool {
        self.deliveries.take(listeners, now) && room.take(listeners, now)
    }
}

fn room_deliveries(now: Duration) -> TokenBucket {
    TokenBucket::new(ROOM_DELIVERIES_PER_S / 2, ROOM_DELIVERIES_PER_S, now)
}

/// What a mix of so many takes: 1 for each source, and [`PACKET_WORK`], of 375 packets of 128 frames a second.
fn mixing_work(sources: usize, packet_frames: usize, rate: SampleRate) -> usize {
    if sources == 0 {
        return 0;
    }
    ((sources + PACKET_WORK) * rate.hz() as usize * 128).div_ceil(48_000 * packet_frames)
}

/// What the server mixes in all rooms together.
#[derive(Debug, Default)]
pub(super) struct AllMixes {
    work: Cell<usize>,
    /// Mixes that were one too many, since the start.
    pub(super) refused: Cell<u64>,
    decoding: Decoding,
}

/// What the server mixes in one of them.
struct RoomMixes {
    /// Who is there, with a mix or without.
    seats: usize,
    mixes: usize,
    work: usize,
}

/// A participant's part of all that the server mixes.
#[derive(Debug)]
struct MixShare {
    all: Rc<AllMixes>,
    work: usize,
}

impl MixShare {
    /// In what packets the server would take on a mix of so many: as asked, where that takes no more than an equal part of what is left to those in the room who have none, or a part
    /// of all that is left, or longer.
    /// `None` if it would mix too much even so.
    fn packet_frames(
        &self,
        room: &RoomMixes,
        sources: usize,
        asked: usize,
        rate: SampleRate,
    ) -> Option<usize> {
        let has_one = self.work > 0;
        let most = if has_one { MAX_GROWN } else { MAX_MIXING };
        let of_others = self.all.work.get() - room.work;
        let share = most.saturating_sub(of_others) * room.seats.min(MAX_SEATS) / SEATS_LEFT;
        let left = share.saturating_sub(room.work - self.work);
        // Others may have come since, and those in the room keep what they have.
        let free = MAX_MIXING.saturating_sub(self.all.work.get());
        let least = if has_one { 0 } else { free / SEATS_LEFT };
        let without = room.seats - room.mixes + usize::from(has_one);
        let mut frames = asked;
        loop {
            let is_longest = frames >= MAX_PACKET_FRAMES;
            let may_take = if is_longest { left } else { left / without };
            if mixing_work(sources, frames, rate) <= may_take.max(least).max(self.work) {
                return Some(frames);
            }
            if is_longest {
                return None;
            }
            frames = (2 * frames).min(MAX_PACKET_FRAMES);
        }
    }

    fn set(&mut self, work: usize) {
        self.all.work.set(self.all.work.get() - self.work + work);
        self.work = work;
    }
}

impl Drop for MixShare {
    fn drop(&mut self) {
        self.set(0);
    }
}

fn format_of(mix: &Mix) -> SampleFormat {
    let format = SampleFormat::from_bits(mix.format);
    format.expect("a control message has the engine's formats")
}

/// How a participant is sent its mix: in samples as it asked for, or in what its downlink has room for.
#[derive(Debug)]
struct MixWay {
    listener: Listener,
    /// Where it is sent Opus.
    place: Option<Arc<Place>>,
    looked_at: Duration,
    /// As of the last review: packets sent to the participant, and those of them that were lost.
    reviewed: (u64, u64),
    /// Of those lost since, how many are counted as lost for want of room.
    counted: u64,
    /// See [`Sound::newest`].
    newest: Option<Bytes>,
}

impl MixWay {
    /// The formats: without Opus, where that cannot be.
    fn rungs(mix: &Mix, packet_frames: usize, rate: SampleRate, opus: bool) -> Rc<[Rung]> {
        let choice = Choice {
            rate,
            format: format_of(mix),
            channels: CHANNELS,
            packet_frames,
            opus_kbps: None,
            adapts: true,
            copies: Copies::Off,
        };
        let mut rungs = choice.rungs();
        rungs.retain(|rung| opus || !rung.is_opus());
        rungs.into()
    }

    /// These are the formats from now on.
    fn set_rungs(&mut self, rungs: Rc<[Rung]>) {
        if self.listener.rungs() != &*rungs {
            self.listener.set_rungs(rungs);
        }
    }

    /// Formats in Opus that it is sent at present.
    fn opus(&self) -> impl Iterator<Item = Rung> {
        let listener = &self.listener;
        let rungs = listener.rungs().iter().copied();
        rungs.filter(|rung| rung.is_opus() && listener.takes(*rung))
    }
}

/// Since the participant was admitted.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    /// Datagrams from it.
    pub(super) received: u64,
    /// Of these, what matched the protocol in no way.
    pub(super) malformed: u64,
    /// Of these, what was over its rate, or more Opus than is decoded for mixes; and packets that were dropped unread, because it caused more work than the thread could do.
    pub(super) over_rate: u64,
    /// Datagrams to it.
    pub(super) sent: u64,
    /// Datagrams of which it was sent a copy: in the one after, or themselves once more.
    pub(super) copied: u64,
    /// Of these, the latter.
    repeated: u64,
    /// Dropped for it because no session had room.
    pub(super) aged: u64,
    /// Packets to it that were lost on sessions that have ended.
    lost_before: u64,
}

impl Room {
    /// With nobody in it.
    pub(super) fn new(
        name: RoomName,
        sample_rate_hz: SampleRateHz,
        start: Instant,
        changed: Rc<Changed>,
        all_mixes: Rc<AllMixes>,
        encoding: Rc<Encoding>,
    ) -> Self {
        let rate = SampleRate::from_hz(sample_rate_hz.hz()).expect("rooms have the engine's rates");
        let mixer = Mixer::sharing(rate, all_mixes.decoding.clone());
        Self {
            name,
            start,
            deliveries: room_deliveries(start.elapsed()),
            all_mixes,
            changed,
            listeners_changed: false,
            participants: BTreeMap::new(),
            mixer,
            has_more_to_mix: false,
            rate,
            encoding,
            forward: Latencies::default(),
            mix: Latencies::default(),
            reported: Default::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.participants.is_empty()
    }

    pub(super) fn admit(&mut self, stream: u16, id: ParticipantId) {
        let participant = Participant {
            id,
            muted: false,
            sessions: Vec::new(),
            retired: Vec::new(),
            turn: 0,
            listen: Listen::default(),
            takes: 0,
            forwarded_to: Vec::new(),
            mixed_for: Vec::new(),
            wanted: Wanted {
                listeners: 0,
                opus: true,
            },
            allowance: Allowance::new(self.start.elapsed()),
            account: Rc::default(),
            mix_share: MixShare {
                all: Rc::clone(&self.all_mixes),
                work: 0,
            },
            mix_frames: MAX_PACKET_FRAMES,
            mix_refused: false,
            uplink: Uplink::default(),
            mixed: Mixed::default(),
            downlink: Downlink::default(),
            mix_way: None,
            counts: Counts::default(),
            reported: Counts::default(),
            mixing: (Duration::ZERO, 0),
        };
        self.participants.insert(stream, participant);
        self.handle_listeners_changed();
    }

    pub(super) fn withdraw(&mut self, stream: u16, connections: &mut Connections) {
        if let Some(participant) = self.participants.remove(&stream) {
            for session in participant.sessions.into_iter().chain(participant.retired) {
                connections.close(session, CloseCode::Left);
            }
        }
        for participant in self.participants.values_mut() {
            participant.allowance.passed_on.remove(&stream);
        }
        self.mixer.remove_listener(stream);
        self.expect(stream);
        self.handle_listeners_changed();
    }

    pub(super) fn mute(&mut self, stream: u16, muted: bool) {
        if let Some(participant) = self.participants.get_mut(&stream) {
            participant.muted = muted;
        }
        self.expect(stream);
    }

    /// Tells the mixer whether a participant can be heard.
    fn expect(&mut self, stream: u16) {
        let participant = self.participants.get(&stream);
        let is_expected = participant
            .is_some_and(|participant| !participant.muted && !participant.sessions.is_empty());
        self.mixer.set_expected(stream, is_expected);
    }

    pub(super) fn close_all(&self, code: CloseCode, connections: &mut Connections) {
        for participant in self.participants.values() {
            for session in participant.sessions.iter().chain(&participant.retired) {
                connections.close(*session, code);
            }
        }
    }

    /// A session of this participant was accepted. If it has enough, the new one takes the place of one that has died: after a change of networks all
    /// have, and QUIC takes ten seconds to know.
    ///
    /// # Errors
    /// It has to be closed: the participant has enough, or has left meanwhile.
    pub(super) fn open(
        &mut self,
        stream: u16,
        session: ConnectionHandle,
        connections: &mut Connections,
    ) -> Result<Rc<Account>, CloseCode> {
        let participant = self.participants.get_mut(&stream).ok_or(CloseCode::Left)?;
        let dead = if participant.sessions.len() == MAX_SESSIONS {
            let sessions = participant.sessions.iter().copied();
            let longest = sessions.max_by_key(|session| connections.silence(*session));
            let dead = longest.filter(|session| connections.silence(*session) > DEAD);
            Some(dead.ok_or(CloseCode::TooManySessions)?)
        } else {
            None
        };
        participant.sessions.push(session);
        let account = Rc::clone(&participant.account);
        self.expect(stream);
        if let Some(dead) = dead {
            connections.close(dead, CloseCode::TooManySessions);
            self.ended(stream, dead, connections);
        }
        Ok(account)
    }

    /// A session has ended. Who has none any more hears nothing, so it takes nothing.
    pub(super) fn ended(
        &mut self,
        stream: u16,
        session: ConnectionHandle,
        connections: &mut Connections,
    ) {
        let Some(participant) = self.participants.get_mut(&stream) else {
            return;
        };
        participant.retired.retain(|one| *one != session);
        let Some(at) = participant.sessions.iter().position(|one| *one == session) else {
            return;
        };
        participant.sessions.remove(at);
        participant.counts.lost_before += lost(session, connections);
        if participant.sessions.is_empty() {
            for session in participant.retired.drain(..) {
                connections.close(session, CloseCode::Unneeded);
            }
            participant.listen = Listen::default();
            // Its next session may count its sound anew.
            participant.uplink = Uplink::default();
            participant.downlink = Downlink::default();
            participant.mix_refused = false;
            participant.mix_way = None;
            self.mixer.remove_listener(stream);
            self.expect(stream);
            self.handle_listeners_changed();
        }
    }

    /// A page is about to end a session, so that nothing more is sent on it, unless it is the only one. What comes by it is still taken.
    ///
    /// # Errors
    /// It says too much.
    pub(super) fn retire(
        &mut self,
        stream: u16,
        session: ConnectionHandle,
        connections: &mut Connections,
    ) -> Result<(), ControlError> {
        let now = self.start.elapsed();
        let Some(participant) = self.participants.get_mut(&stream) else {
            return Ok(());
        };
        if !participant.allowance.messages.take(1, now) {
            return Err(ControlError::TooFast);
        }
        if participant.sessions.len() == 1 || !participant.sessions.contains(&session) {
            return Ok(());
        }
        if participant.retired.len() == MAX_SESSIONS {
            connections.close(participant.retired.remove(0), CloseCode::Unneeded);
        }
        self.ended(stream, session, connections);
        if let Some(participant) = self.participants.get_mut(&stream) {
            participant.retired.push(session);
        }
        Ok(())
    }

    /// Whether a session is about to end: another one has its control stream.
    pub(super) fn is_retired(&self, stream: u16, session: ConnectionHandle) -> bool {
        let participant = self.participants.get(&stream);
        participant.is_some_and(|it| it.retired.contains(&session))
    }

    /// A page said what its participant takes from now on: from the next [`Room::connect_listeners`] on, if that is anything new.
    ///
    /// # Errors
    /// It says too much, or asks for too many mixes.
    pub(super) fn handle_listen(
        &mut self,
        stream: u16,
        mut listen: Listen,
        connections: &mut Connections,
    ) -> Result<(), ControlError> {
        let now = self.start.elapsed();
        let mixed = self.mixed(stream, &listen).len();
        let room = self.mixes();
        let Some(participant) = self.participants.get_mut(&stream) else {
            return Ok(());
        };
        if !participant.allowance.messages.take(1, now) {
            return Err(ControlError::TooFast);
        }
        let shape = participant.listen.mix.as_ref().map(Mix::shape);
        let is_other = |mix: &&Mix| shape != Some(mix.shape());
        let other = listen.mix.as_ref().filter(is_other);
        let asked = other.map_or(participant.mix_frames, |mix| mix.packet_frames);
        let share = &participant.mix_share;
        let packet_frames = share.packet_frames(&room, mixed, asked, self.rate);
        let is_refused = packet_frames.is_none();
        if is_refused {
            // Nor does it keep the one it had: it would take that for the new one, and not hear whom that lacks.
            listen.mix = None;
        }
        let other = listen.mix.as_ref().filter(is_other);
        if other.is_some() && !participant.allowance.mixes.take(1, now) {
            return Err(ControlError::TooFast);
        }
        if is_refused {
            participant.refuse_mix();
        } else {
            participant.mix_refused = false;
        }
        if participant.listen == listen {
            return Ok(());
        }
        if let Some((mix, packet_frames)) = other.zip(packet_frames) {
            participant.mix_frames = packet_frames;
            self.mixer
                .set_listener(stream, format_of(mix), packet_frames);
        } else if listen.mix.is_none() {
            self.mixer.remove_listener(stream);
        }
        let was_mixed = shape.is_some();
        participant.listen = listen;
        let seen = participant.sent_and_lost(connections);
        if let Some(mix) = &participant.listen.mix {
            let opus = participant.listen.opus;
            let rungs = MixWay::rungs(mix, participant.mix_frames, self.rate, opus);
            let way = participant.mix_way.get_or_insert_with(|| {
                Box::new(MixWay {
                    listener: Listener::new(Rc::clone(&rungs), Copies::Off),
                    place: None,
                    looked_at: now,
                    reviewed: seen,
                    counted: 0,
                    newest: None,
                })
            });
            if !was_mixed {
                // What was lost of other streams says nothing of it.
                (way.looked_at, way.reviewed, way.counted) = (now, seen, 0);
            }
            way.set_rungs(rungs);
        }
        self.prepare_mix(stream);
        self.handle_listeners_changed();
        Ok(())
    }

    /// Whom a listener's mix holds: of those it names, who are there. Lists may name some who are nobody.
    fn mixed(&self, listener: u16, listen: &Listen) -> Vec<Source> {
        let named = listen.mix.iter().flat_map(|mix| &mix.sources);
        let others = named.filter(|source| source.stream != listener);
        let there = others.filter(|source| self.participants.contains_key(&source.stream));
        there.copied().collect()
    }

    /// A mix of who is silent counts as any: they may begin at any time.
    fn mixes(&self) -> RoomMixes {
        let shares = self.participants.values().map(|it| it.mix_share.work);
        RoomMixes {
            seats: self.participants.len(),
            mixes: shares.clone().filter(|work| *work > 0).count(),
            work: shares.sum(),
        }
    }

    fn handle_listeners_changed(&mut self) {
        self.listeners_changed = true;
        self.changed.listeners.set(true);
    }

    /// Finds out anew who takes whose stream, if that has changed. Nobody takes their own.
    ///
    /// It looks at everybody, so that it is for the end of a burst: one may say twenty things, and all may say something.
    pub(super) fn connect_listeners(&mut self, connections: &mut Connections) {
        if !std::mem::take(&mut self.listeners_changed) {
            return;
        }
        for participant in self.participants.values_mut() {
            participant.forwarded_to.clear();
            participant.mixed_for.clear();
        }
        let present: Vec<u16> = self.participants.keys().copied().collect();
        for listener in &present {
            self.connect_mix(*listener);
            let Some(participant) = self.participants.get_mut(listener) else {
                continue;
            };
            // Lists may name some who are nobody.
            let forward = &participant.listen.forward;
            let others = present.iter().copied().filter(|number| number != listener);
            let forwarded: Vec<u16> = others
                .filter(|number| forward.binary_search(number).is_ok())
                .collect();
            participant.takes = forwarded.len() as u16;
            for number in forwarded {
                if let Some(sender) = self.participants.get_mut(&number) {
                    sender.forwarded_to.push(*listener);
                }
            }
        }
        let takes_opus: Vec<u16> = self
            .participants
            .iter()
            .filter(|(_, participant)| participant.listen.opus)
            .map(|(number, _)| *number)
            .collect();
        for participant in self.participants.values_mut() {
            let forwarded_to = &participant.forwarded_to;
            let mixed_for = participant.mixed_for.iter();
            let only_mixed =
                mixed_for.filter(|listener| forwarded_to.binary_search(listener).is_err());
            let now = Wanted {
                listeners: (forwarded_to.len() + only_mixed.count()) as u32,
                opus: forwarded_to
                    .iter()
                    .all(|listener| takes_opus.binary_search(listener).is_ok()),
            };
            if participant.wanted != now {
                participant.wanted = now;
                for session in &participant.sessions {
                    connections.tell(*session, now);
                }
            }
        }
        // Perhaps only who has left was waited for.
        self.send_mixes(connections);
        self.changed.mixes.set(true);
    }

    /// Puts into a listener's mix whom it names; in longer packets, or it ends, if others have come whom it had named, or have asked for theirs within the same burst, and
    /// now the server would mix too much.
    fn connect_mix(&mut self, listener: u16) {
        let Some(participant) = self.participants.get(&listener) else {
            return;
        };
        let mixed = self.mixed(listener, &participant.listen);
        let room = self.mixes();
        let Some(participant) = self.participants.get_mut(&listener) else {
            return;
        };
        let share = &mut participant.mix_share;
        let had = participant.mix_frames;
        let Some(packet_frames) = share.packet_frames(&room, mixed.len(), had, self.rate) else {
            participant.listen.mix = None;
            participant.refuse_mix();
            self.mixer.remove_listener(listener);
            return self.prepare_mix(listener);
        };
        share.set(mixing_work(mixed.len(), packet_frames, self.rate));
        if packet_frames != had
            && let Some(mix) = &participant.listen.mix
        {
            participant.mix_frames = packet_frames;
            if let Some(way) = &mut participant.mix_way {
                let opus = participant.listen.opus;
                way.set_rungs(MixWay::rungs(mix, packet_frames, self.rate, opus));
            }
            self.mixer
                .set_listener(listener, format_of(mix), packet_frames);
            self.prepare_mix(listener);
        }
        self.mixer
            .set_sources(listener, &mixed, self.start.elapsed());
        for source in mixed {
            if let Some(sender) = self.participants.get_mut(&source.stream) {
                sender.mixed_for.push(listener);
            }
        }
    }

    /// Who takes a participant's stream. Its sessions are told on every change.
    pub(super) fn wanted(&self, stream: u16) -> Option<Wanted> {
        Some(self.participants.get(&stream)?.wanted)
    }

    /// What a participant's page is told, on this session.
    pub(super) fn statistics(
        &mut self,
        stream: u16,
        session: ConnectionHandle,
        connections: &mut Connections,
    ) -> Option<Statistics> {
        let mixed = (self.mixer.leads(stream)).filter_map(|(source, lead_frames)| {
            Some(MixedSource {
                stream: source,
                lead_frames,
                concealed_share: self.participants.get(&source)?.mixed.concealed_share(),
            })
        });
        let mixed = mixed.collect();
        let participant = self.participants.get_mut(&stream)?;
        let rtt_us = connections.get(session)?.quic.rtt().as_micros();
        let (mixing, mixes) = std::mem::take(&mut participant.mixing);
        let (received, missing) = participant.uplink.lately();
        participant.count_dropped();
        Some(Statistics {
            rtt_us: rtt_us.try_into().unwrap_or(u64::MAX),
            forwarded: participant.counts.sent,
            aged: participant.counts.aged,
            over_rate: participant.counts.over_rate,
            lost: participant.lost(connections),
            received,
            missing,
            mix_us: (mixes > 0).then(|| (mixing / mixes).as_micros() as u32),
            mixed,
            mix_refused: participant.mix_refused,
        })
    }

    /// What a participant sent goes where it has to. `raw` is as QUIC delivered it, at `arrived`.
    pub(super) fn handle_datagram(
        &mut self,
        from: u16,
        session: ConnectionHandle,
        raw: Bytes,
        arrived: Instant,
        connections: &mut Connections,
    ) {
        let clock = arrived.duration_since(self.start);
        let Some(sender) = self.participants.get_mut(&from) else {
            return;
        };
        sender.counts.received += 1;
        // There may be many in a packet.
        sender.account.charge(1);
        let routed = match raw.split_first() {
            Some((&SESSION_PREFIX, datagram)) => wire::route(datagram).ok(),
            _ => None,
        };
        // A copy that is not needed costs no more than one that is over the rate.
        if let Some((Kind::Audio, 0)) = routed
            && !sender.uplink.is_news(&raw[1..])
        {
            return;
        }
        // Else whoever is probed would have less left for its sound: it answers.
        if let Some((kind, to)) = routed
            && kind != Kind::Audio
            && (1..MIX_STREAM).contains(&to)
        {
            return self.pass_on(from, to, numbered(raw, kind, from), clock, connections);
        }
        if !sender.allowance.datagram(raw.len(), clock) {
            sender.counts.over_rate += 1;
            return;
        }
        match routed {
            Some((Kind::Audio, 0)) if sender.muted => {}
            Some((Kind::Audio, 0)) => {
                // It is played once for all whose mixes it is in, however many.
                let listeners =
                    sender.forwarded_to.len() + usize::from(!sender.mixed_for.is_empty());
                let of_room = &mut self.deliveries;
                if sender.allowance.deliver(listeners, of_room, clock) {
                    sender.account.charge(listeners);
                    self.handle_audio(from, raw, arrived, connections);
                } else {
                    sender.counts.over_rate += 1;
                }
            }
            Some((Kind::Probe, 0)) => {
                let reply = answered(raw, clock);
                // A session that has just ended needs no reply.
                connections.send_datagram(session, reply);
            }
            _ => sender.counts.malformed += 1,
        }
    }

    /// A probe, reply or report goes to another participant, who may have left.
    fn pass_on(
        &mut self,
        from: u16,
        to: u16,
        outgoing: Bytes,
        clock: Duration,
        connections: &mut Connections,
    ) {
        let Some(receiver) = self.participants.get_mut(&to) else {
            // Nobody's allowance is there for it, and it is not for nothing.
            if let Some(sender) = self.participants.get_mut(&from)
                && !sender.allowance.datagram(outgoing.len(), clock)
            {
                sender.counts.over_rate += 1;
            }
            return;
        };
        if receiver.allowance.pass_on(from, clock) {
            receiver.send(outgoing, connections);
        } else if let Some(sender) = self.participants.get_mut(&from) {
            sender.counts.over_rate += 1;
        }
    }

    /// Audio goes to those who take it as it is, then into the mixes; each of these leaves at once if this was all that it waited for.
    ///
    /// To one listener it leaves before anything else is done. To several it leaves with all that came in the same burst, which then shares
    /// packets and system calls.
    fn handle_audio(
        &mut self,
        from: u16,
        raw: Bytes,
        arrived: Instant,
        connections: &mut Connections,
    ) {
        let Some(sender) = self.participants.get_mut(&from) else {
            return;
        };
        let is_mixed = !sender.mixed_for.is_empty();
        let forwarded_to = std::mem::take(&mut sender.forwarded_to);
        let outgoing = numbered(raw, Kind::Audio, from);
        let sound = Sound::new(outgoing, sender.uplink.newest.take());
        for listener in &forwarded_to {
            let Some(participant) = self.participants.get_mut(listener) else {
                continue;
            };
            let session = participant.send_sound(&sound, connections);
            if forwarded_to.last() == Some(listener) {
                let now = Instant::now();
                self.forward.record(now.duration_since(arrived));
                if let Some((session, _)) = session {
                    connections.follow(session);
                    if forwarded_to.len() == 1 {
                        connections.transmit(session, now);
                    }
                }
            }
        }
        if let Some(sender) = self.participants.get_mut(&from) {
            sender.forwarded_to = forwarded_to;
            sender.uplink.newest = sound.newest();
        }
        if is_mixed {
            let arrived = connections.arrived();
            let clock = arrived.saturating_duration_since(self.start);
            if !(self.mixer).handle_audio(from, &sound.datagram()[1..], clock)
                && let Some(sender) = self.participants.get_mut(&from)
            {
                sender.counts.over_rate += 1;
            }
            if !self.has_more_to_mix {
                self.send_mixes(connections);
            }
        }
    }

    /// Sends what is complete or due of the mixes by now; of much, a part, and the rest when the loop comes round again: whoever mixes more than the
    /// thread can shall not keep it from all others.
    pub(super) fn send_mixes(&mut self, connections: &mut Connections) {
        let mut outgoing = [0; MAX_DATAGRAM_BYTES];
        let handled = connections.handled_until();
        self.mixer
            .handed_over(handled.saturating_duration_since(self.start));
        let now = self.start.elapsed();
        let enough = self.mixer.mixed_frames() + self.mixer.frames_in_one_go();
        let had_more = std::mem::replace(&mut self.has_more_to_mix, false);
        if had_more {
            self.changed.mixes.set(true);
        }
        while let Some(mixed) = self.mixer.poll_datagram(now, &mut outgoing) {
            self.changed.mixes.set(true);
            let (stream, complete_at) = (mixed.listener, mixed.complete_at);
            let datagram = &mut outgoing[..mixed.length];
            match mixed.rendition {
                Rendition::Samples(rung) => {
                    self.send_mix(stream, rung, datagram, complete_at, connections);
                }
                Rendition::Feed => self.encode(stream, datagram, complete_at),
            }
            self.review_mix(stream, connections);
            if self.mixer.mixed_frames() > enough {
                self.has_more_to_mix = true;
                return;
            }
        }
    }

    /// A listener's mix came back in Opus.
    pub(super) fn handle_encoded(&mut self, encoded: Encoded, connections: &mut Connections) {
        let Encoded {
            place,
            rung,
            mut datagram,
            complete_at,
        } = encoded;
        let participant = self.participants.get(&place.stream);
        let way = participant.and_then(|participant| participant.mix_way.as_deref());
        let its = way.and_then(|way| way.place.as_ref());
        // Else it is for one who has left, or has ended its mix.
        if its.is_some_and(|its| Arc::ptr_eq(its, &place)) {
            self.send_mix(place.stream, rung, &mut datagram, complete_at, connections);
        }
    }

    /// Sends a listener a datagram of its mix, if it takes this format.
    fn send_mix(
        &mut self,
        stream: u16,
        rung: Rung,
        datagram: &mut [u8],
        complete_at: Option<Duration>,
        connections: &mut Connections,
    ) {
        let Some(participant) = self.participants.get_mut(&stream) else {
            return;
        };
        let at = match wire::parse(datagram) {
            Ok(Datagram::Audio(header, ..)) => (header.timestamp, header.frames),
            Ok(Datagram::Opus(header, _)) => (header.timestamp, header.frames),
            _ => return,
        };
        let Some(mut way) = participant.mix_way.take() else {
            return;
        };
        if way.listener.takes(rung) && participant.listen.mix.is_some() {
            let newest = &mut way.newest;
            let is_sent = way.listener.send(rung, datagram, at, |datagram| {
                let mut outgoing = BytesMut::with_capacity(1 + datagram.len());
                outgoing.extend_from_slice(&[SESSION_PREFIX]);
                outgoing.extend_from_slice(&datagram);
                let sound = Sound::new(outgoing.freeze(), newest.take());
                let sent = participant.send_sound(&sound, connections);
                *newest = sound.newest();
                let (session, room) = sent?;
                connections.transmit(session, Instant::now());
                Some(Sent {
                    lane: 0,
                    is_crowded: room < CROWDED_ROOM,
                })
            });
            if let Some(complete_at) = complete_at.filter(|_| is_sent) {
                let latency = self.start.elapsed().saturating_sub(complete_at);
                self.mix.record(latency);
                participant.mixing = (participant.mixing.0 + latency, participant.mixing.1 + 1);
            }
        }
        participant.mix_way = Some(way);
    }

    fn encode(&mut self, stream: u16, feed: &[u8], complete_at: Option<Duration>) {
        let participant = self.participants.get(&stream);
        let way = participant.and_then(|participant| participant.mix_way.as_deref());
        if let Some(way) = way
            && let Some(place) = &way.place
        {
            // What is missing the listener conceals.
            self.encoding.feed(place, way.opus(), feed, complete_at);
        }
    }

    /// Finds out what a listener's downlink has room for, where that is due.
    fn review_mix(&mut self, stream: u16, connections: &mut Connections) {
        let now = self.start.elapsed();
        let Some(participant) = self.participants.get_mut(&stream) else {
            return;
        };
        let Some(mut way) = participant.mix_way.take() else {
            return;
        };
        let elapsed = now - way.looked_at;
        if elapsed >= LOOK {
            way.looked_at = now;
            let seen = participant.sent_and_lost(connections);
            let sent = seen.0 - way.reviewed.0;
            let lost = seen.1.saturating_sub(way.reviewed.1);
            let lost_share = (sent > 0).then(|| lost as f32 / sent as f32);
            if lost >= HEAVY_LOSS && lost_share.is_some_and(|share| share > CONGESTED_SHARE) {
                way.listener
                    .lost_for_want_of_room(lost.saturating_sub(way.counted) as u32);
                way.counted = lost;
            }
            if way.listener.is_due(elapsed.as_millis() as u32) {
                (way.reviewed, way.counted) = (seen, 0);
                // Sessions are the listener's to open.
                way.listener.review(lost_share, false, false);
                if let Some(mix) = &participant.listen.mix
                    && self.encoding.has_place()
                {
                    // There may have been none when it needed one.
                    let opus = participant.listen.opus;
                    way.set_rungs(MixWay::rungs(mix, participant.mix_frames, self.rate, opus));
                }
            }
        }
        participant.mix_way = Some(way);
        if elapsed >= LOOK {
            self.prepare_mix(stream);
        }
    }

    /// Makes a listener's mix in the formats that it is sent.
    fn prepare_mix(&mut self, stream: u16) {
        let Some(participant) = self.participants.get_mut(&stream) else {
            return;
        };
        let Some(way) = &mut participant.mix_way else {
            return;
        };
        let Some(mix) = &participant.listen.mix else {
            way.place = None;
            return;
        };
        let needs_place = way.opus().next().is_some();
        if needs_place && way.place.is_none() {
            way.place = self.encoding.place(&self.name, stream);
            if way.place.is_none() {
                // Others have them all.
                way.set_rungs(MixWay::rungs(mix, participant.mix_frames, self.rate, false));
            }
        }
        if !needs_place {
            way.place = None;
        }
        let feeds = way.place.is_some();
        let listener = &way.listener;
        self.mixer
            .prepare(stream, |rung| listener.takes(rung), feeds);
    }

    /// When a mix is due, whatever is missing in it; on the relay's clock. At once, if there was more to mix than is done in one go.
    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        if self.has_more_to_mix {
            return Some(Duration::ZERO);
        }
        self.mixer.poll_timeout()
    }

    /// Adds itself to what the operator's page shows, of what happened since the last call, `elapsed` ago; and to what Prometheus is told.
    pub(super) fn report(
        &mut self,
        elapsed: Duration,
        status: &mut MediaStatus,
        snapshot: &mut Snapshot,
        connections: &mut Connections,
    ) {
        snapshot.forward.merge(&self.forward);
        snapshot.mix.merge(&self.mix);
        let (forward, mix) = &self.reported;
        let forward_us = self.forward.since(forward).quantiles();
        let mix_us = self.mix.since(mix).quantiles();
        self.reported = (self.forward.clone(), self.mix.clone());
        let mut participants = Vec::with_capacity(self.participants.len());
        for (number, participant) in &mut self.participants {
            participant.uplink.look();
            (participant.mixed).look(self.mixer.source_counts(*number));
            participant.review_downlink(elapsed, connections);
            participant.count_dropped();
            if participant.counts.received > 0 {
                snapshot.participants.push(Traffic {
                    room: format!("{:?}", self.name),
                    stream: number.to_string(),
                    counts: participant.counts,
                    lost: participant.lost(connections),
                });
            }
            if !participant.sessions.is_empty() {
                participants.push(participant.report(*number, elapsed, connections));
            }
        }
        if !participants.is_empty() {
            status.rooms.push(RoomMedia {
                room: self.name.clone(),
                forward_us,
                mix_us,
                participants,
            });
        }
    }
}

impl Participant {
    /// It asked for more than the server takes on. It is told, and forwards go on: who waits for a mix takes those whom it shall hold as they are.
    fn refuse_mix(&mut self) {
        self.mix_share.set(0);
        if std::mem::replace(&mut self.mix_refused, true) {
            return;
        }
        let refused = &self.mix_share.all.refused;
        if refused.get() == 0 {
            tracing::warn!(
                "the server mixes enough already: listeners beyond that hear what is forwarded to them"
            );
        }
        refused.set(refused.get() + 1);
    }

    /// What was dropped of it unread, because it caused more work than the thread could do, counts as over its rate.
    fn count_dropped(&mut self) {
        self.counts.over_rate += self.account.take_dropped();
    }

    /// Sends on the session with the most room, in turns among equals, and never waits: where none has room, QUIC drops the oldest that
    /// waits on that session. Answers which it was, and what room it had, in bytes.
    fn send(
        &mut self,
        outgoing: Bytes,
        connections: &mut Connections,
    ) -> Option<(ConnectionHandle, usize)> {
        self.turn = (self.turn + 1) % self.sessions.len().max(1);
        let (mut room, session) = self.roomiest(None, connections)?;
        if room < CROWDED_ROOM {
            // Perhaps it is only this burst that waits: then it leaves, and makes room.
            connections.transmit(session, Instant::now());
            room = connections.datagram_space(session);
        }
        if room < outgoing.len() {
            self.counts.aged += 1;
        }
        // It fails only if the session has just ended.
        if !connections.send_datagram(session, outgoing) {
            return None;
        }
        self.counts.sent += 1;
        Some((session, room))
    }

    /// The same, with copies if its downlink needs them. What is sent a second time goes on another session, if that has plenty of room: it leaves at the
    /// end of the burst, or with what that session sends before.
    fn send_sound(
        &mut self,
        sound: &Sound,
        connections: &mut Connections,
    ) -> Option<(ConnectionHandle, usize)> {
        let insured = self.downlink.sends_copies().then(|| sound.insured());
        let outgoing = insured.map_or(sound.datagram(), |insured| &insured.datagram);
        let sent = self.send(outgoing.clone(), connections)?;
        let (first, first_room) = sent;
        self.downlink.offer(first_room < CROWDED_ROOM);
        let Some(insured) = insured else {
            return Some(sent);
        };
        self.counts.copied += u64::from(outgoing.len() > sound.datagram().len());
        for again in &insured.again {
            if let Some((room, session)) = self.roomiest(Some(first), connections)
                && room >= COPY_ROOM
                && connections.send_datagram(session, again.clone())
            {
                self.counts.copied += 1;
                self.counts.repeated += 1;
            }
        }
        Some(sent)
    }

    /// The session with the most room, in turns among equals, `but` for one; and its room, in bytes. One that seems to have died only if all do.
    fn roomiest(
        &self,
        but: Option<ConnectionHandle>,
        connections: &mut Connections,
    ) -> Option<(usize, ConnectionHandle)> {
        let count = self.sessions.len();
        let in_turn = (0..count).map(|index| self.sessions[(self.turn + index) % count]);
        let others = in_turn.filter(|session| Some(*session) != but);
        let seen = others.map(|session| {
            let is_silent = connections.silence(session) > SILENT;
            (is_silent, connections.datagram_space(session), session)
        });
        let best = seen.min_by_key(|(is_silent, room, _)| (*is_silent, Reverse(*room)));
        best.map(|(_, room, session)| (room, session))
    }

    /// Finds out whether its downlink loses so much that copies help, so long after the last time.
    fn review_downlink(&mut self, elapsed: Duration, connections: &mut Connections) {
        let packets = self.sessions.iter().filter_map(|session| {
            let path = connections.get(*session)?.quic.stats().path;
            Some((path.sent_packets, path.lost_packets))
        });
        let packets = packets.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        self.downlink.review(elapsed, packets);
    }

    fn sent_and_lost(&self, connections: &mut Connections) -> (u64, u64) {
        let Counts { sent, repeated, .. } = self.counts;
        (sent + repeated, self.lost(connections))
    }

    fn lost(&self, connections: &mut Connections) -> u64 {
        let now = self
            .sessions
            .iter()
            .map(|session| lost(*session, connections));
        self.counts.lost_before + now.sum::<u64>()
    }

    fn report(
        &mut self,
        stream: u16,
        elapsed: Duration,
        connections: &mut Connections,
    ) -> ParticipantMedia {
        let per_s = |now: u64, before: u64| ((now - before) as f64 / elapsed.as_secs_f64()) as u32;
        let sessions = self.sessions.iter();
        let rtts = sessions.filter_map(|session| Some(connections.get(*session)?.quic.rtt()));
        let quickest = rtts.min();
        let mix = self.listen.mix.is_some().then(|| {
            let way = self.mix_way.as_ref();
            if way.is_some_and(|way| way.listener.rung().is_opus()) {
                MixFormat::Opus
            } else {
                MixFormat::Samples
            }
        });
        let report = ParticipantMedia {
            participant: self.id,
            stream,
            sessions: self.sessions.len() as u8,
            forwarded: self.takes,
            mix,
            copies: self.downlink.sends_copies(),
            rtt_us: quickest.map(|rtt| rtt.as_micros() as u32),
            packets_in_per_s: per_s(self.counts.received, self.reported.received),
            packets_out_per_s: per_s(self.counts.sent, self.reported.sent),
            lost: self.lost(connections),
            aged: self.counts.aged,
            over_rate: self.counts.over_rate,
        };
        self.reported = self.counts;
        report
    }
}

/// Packets that QUIC sent on a session and found lost.
fn lost(session: ConnectionHandle, connections: &mut Connections) -> u64 {
    let connection = connections.get(session);
    connection.map_or(0, |connection| connection.quic.stats().path.lost_packets)
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

#[cfg(test)]
mod tests {
    use std::{iter, net::Ipv4Addr, time::SystemTime};

    use antiphon_core::wire::{AUDIO_HEADER_BYTES, AudioHeader, OpusHeader, Probe};

    use super::*;
    use crate::relay::{
        certificate::{Lifetime, Rotation},
        quic::{bind, transport},
    };

    #[test]
    fn a_participant_may_send_so_much_and_no_more() {
        let second = Duration::from_secs(1);
        let count = |bytes: usize, allowance: &mut Allowance, now| {
            (0..20_000)
                .filter(|_| allowance.datagram(bytes, now))
                .count()
        };
        let mut allowance = Allowance::new(second);
        assert_eq!(count(100, &mut allowance, second), 4_000, "at once");
        assert_eq!(count(100, &mut allowance, second + second / 4), 2_000);
        let mut allowance = Allowance::new(second);
        assert_eq!(
            count(1_000, &mut allowance, second),
            2_500,
            "bytes count too"
        );
        assert_eq!(count(1_000, &mut allowance, second + second / 10), 500);
    }

    /// A room with so many, and the relay's connections, of which there are none.
    fn room_of(participants: u16, encoding: &Rc<Encoding>) -> (Room, Connections) {
        let certificates = Rotation::new(Lifetime::default(), SystemTime::now());
        let config = certificates.server_config(&Arc::new(transport()));
        let socket = bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a socket");
        let connections = Connections::new(socket, config).expect("a socket");
        let room = room_beside(&Rc::default(), participants, 48_000, encoding);
        (room, connections)
    }

    /// A room with so many, beside all others.
    fn room_beside(
        all_mixes: &Rc<AllMixes>,
        participants: u16,
        hz: u32,
        encoding: &Rc<Encoding>,
    ) -> Room {
        let mut room = Room::new(
            "a-room-that-nobody-guesses".parse().expect("a name"),
            hz.try_into().expect("a rate"),
            Instant::now() - Duration::from_secs(2),
            Rc::default(),
            Rc::clone(all_mixes),
            Rc::clone(encoding),
        );
        for stream in 1..=participants {
            room.admit(stream, ParticipantId::of_secret(&[stream as u8; 32]));
        }
        room
    }

    #[tokio::test]
    async fn a_full_room_is_looked_through_once_a_burst_and_not_for_what_is_no_news() {
        const FULL: u16 = 64;
        let (encoding, _encoded) = Encoding::start().expect("a thread");
        let (mut room, mut connections) = room_of(FULL, &Rc::new(encoding));
        let listen = |gain| {
            let source = |stream| Source {
                stream,
                gain,
                pan: 0.0,
                muted: false,
            };
            Listen {
                forward: (1..=FULL).collect(),
                mix: Some(Mix {
                    format: 16,
                    packet_frames: 512,
                    sources: (1..=FULL).map(source).collect(),
                }),
                opus: true,
            }
        };
        let all_say = |room: &mut Room, connections: &mut Connections, gain, times| {
            for stream in (1..=FULL).flat_map(|stream| iter::repeat_n(stream, times)) {
                let heard = room.handle_listen(stream, listen(gain), connections);
                heard.expect("no more than it may");
            }
        };
        // Whether it was looked through, which may change when a mix is due.
        let looks_through = |room: &mut Room, connections: &mut Connections| {
            room.changed.mixes.set(false);
            room.connect_listeners(connections);
            room.changed.mixes.get()
        };
        let listeners = |room: &Room| room.wanted(1).expect("admitted").listeners;
        assert!(looks_through(&mut room, &mut connections), "of who came");
        all_say(&mut room, &mut connections, 1.0, 1);
        assert_eq!(listeners(&room), 0, "not before the end of the burst");
        assert!(looks_through(&mut room, &mut connections));
        assert_eq!(listeners(&room), u32::from(FULL) - 1);
        room.changed.listeners.set(false);
        all_say(&mut room, &mut connections, 1.0, 18);
        assert!(!room.changed.listeners.get(), "they have said it before");
        assert!(!looks_through(&mut room, &mut connections));
        all_say(&mut room, &mut connections, 0.5, 1);
        assert!(looks_through(&mut room, &mut connections));
        assert!(!looks_through(&mut room, &mut connections));
    }

    fn mix_of(packet_frames: usize, streams: impl Iterator<Item = u16>) -> Listen {
        let source = |stream| Source {
            stream,
            gain: 1.0,
            pan: 0.0,
            muted: false,
        };
        Listen {
            mix: Some(Mix {
                format: 16,
                packet_frames,
                sources: streams.map(source).collect(),
            }),
            ..Listen::default()
        }
    }

    #[tokio::test]
    async fn a_share_of_all_mixes_is_of_those_who_are_there_whenever_they_came() {
        let (encoding, _encoded) = Encoding::start().expect("a thread");
        let (mut room, mut connections) = room_of(2, &Rc::new(encoding));
        // Itself, two others, and many who are nobody.
        let listen = mix_of(128, (1..=3).chain(1_000..1_060));
        let say = |room: &mut Room, listen: &Listen, connections: &mut Connections| {
            let heard = room.handle_listen(1, listen.clone(), connections);
            heard.expect("no more than it may");
            room.connect_listeners(connections);
        };
        let shared = |room: &Room| room.all_mixes.work.get();
        let frames = |room: &Room| room.participants[&1].mix_frames;
        let refused = |room: &Room| room.participants[&1].mix_refused;
        say(&mut room, &listen, &mut connections);
        assert_eq!(shared(&room), PACKET_WORK + 1);
        let admit = |room: &mut Room, stream: u16, connections: &mut Connections| {
            room.admit(stream, ParticipantId::of_secret(&[stream as u8; 32]));
            room.connect_listeners(connections);
        };
        admit(&mut room, 3, &mut connections);
        assert_eq!(shared(&room), PACKET_WORK + 2, "one has come whom it named");
        room.withdraw(2, &mut connections);
        room.connect_listeners(&mut connections);
        assert_eq!(shared(&room), PACKET_WORK + 1);

        // What others mix in other rooms.
        let all = Rc::clone(&room.all_mixes);
        all.work.set(MAX_GROWN);
        admit(&mut room, 2, &mut connections);
        assert_eq!(frames(&room), 256, "it cannot grow any more in these");
        assert_eq!(shared(&room), MAX_GROWN - 4);
        assert!(!refused(&room));
        // It says the same more often than it might change its mix.
        for _ in 0..6 {
            say(&mut room, &listen, &mut connections);
        }
        assert_eq!(frames(&room), 256);

        say(&mut room, &Listen::default(), &mut connections);
        all.work.set(MAX_MIXING - SEATS_LEFT + 1);
        say(&mut room, &listen, &mut connections);
        assert!(
            refused(&room),
            "the longest packets take 3, as many as there are"
        );
        assert_eq!(shared(&room), MAX_MIXING - SEATS_LEFT + 1);
        all.work.set(MAX_MIXING - SEATS_LEFT);
        say(&mut room, &listen, &mut connections);
        assert!(!refused(&room));
        assert_eq!(
            (frames(&room), shared(&room)),
            (MAX_PACKET_FRAMES, MAX_MIXING - SEATS_LEFT + 3)
        );
        // What is in the mixer.
        let listen = room.participants[&1].listen.mix.as_ref().map(Mix::shape);
        assert_eq!(listen, Some((16, 128)), "as it asked");
        room.start -= Duration::from_millis(200);
        let before = room.mixer.mixed_frames();
        room.mixer
            .poll_datagram(room.start.elapsed(), &mut [0; MAX_DATAGRAM_BYTES])
            .expect("it is due");
        assert_eq!(room.mixer.mixed_frames() - before, MAX_PACKET_FRAMES as u64);
    }

    /// In what packets everybody in a room is mixed for, who all ask for so many frames of everybody else; `None` for who is not.
    fn mixes_of_all(
        room: &mut Room,
        packet_frames: usize,
        connections: &mut Connections,
    ) -> Vec<Option<usize>> {
        for stream in 1..=room.participants.len() as u16 {
            let listen = mix_of(packet_frames, 1..=64);
            room.handle_listen(stream, listen, connections)
                .expect("allowed");
        }
        room.connect_listeners(connections);
        let seats = room.participants.values();
        seats
            .map(|seat| (!seat.mix_refused).then_some(seat.mix_frames))
            .collect()
    }

    #[tokio::test]
    async fn many_small_packets_are_no_small_mixes() {
        let (encoding, _encoded) = Encoding::start().expect("a thread");
        let encoding = Rc::new(encoding);
        let ask = |hz, seats, packet_frames| {
            let (_, mut connections) = room_of(0, &encoding);
            let mut room = room_beside(&Rc::default(), seats, hz, &encoding);
            let frames = mixes_of_all(&mut room, packet_frames, &mut connections);
            (room.all_mixes.work.get(), frames)
        };
        assert_eq!(ask(48_000, 2, 16), (2 * 18, vec![Some(64); 2]));
        // The room of `docs/operating.md`, and the largest that there is at first.
        assert_eq!(ask(48_000, 20, 128), (540, vec![Some(128); 20]));
        assert_eq!(ask(48_000, 32, 128), (32 * 20, vec![Some(256); 32]));
        // The most that one may ask for.
        let (work, frames) = ask(96_000, 64, 16);
        assert!(work <= MAX_MIXING / 2, "{work}");
        let mixed = frames.iter().flatten().count();
        assert!(mixed > 25, "{frames:?}");
    }

    #[tokio::test]
    async fn who_comes_back_into_a_class_has_a_mix_though_other_classes_have_come() {
        let (encoding, _encoded) = Encoding::start().expect("a thread");
        let encoding = Rc::new(encoding);
        let (_, mut connections) = room_of(0, &encoding);
        let all_mixes = Rc::default();
        let mut classes = [(); 3].map(|()| {
            let mut class = room_beside(&all_mixes, 20, 48_000, &encoding);
            let frames = mixes_of_all(&mut class, 128, &mut connections);
            assert!(!frames.contains(&None), "{frames:?}");
            class
        });
        let first = &mut classes[0];
        for listen in [Listen::default(), mix_of(128, 1..=64)] {
            first
                .handle_listen(20, listen, &mut connections)
                .expect("allowed");
            first.connect_listeners(&mut connections);
        }
        let seat = &first.participants[&20];
        assert!(!seat.mix_refused);
        assert_eq!(seat.mix_frames, 256);
    }

    #[tokio::test]
    async fn one_address_leaves_a_class_its_mixes_whatever_rooms_it_makes() {
        let (encoding, _encoded) = Encoding::start().expect("a thread");
        let encoding = Rc::new(encoding);
        let (_, mut connections) = room_of(0, &encoding);
        for (seats, count) in [(32, 2), (64, 1), (20, 3), (2, 32)] {
            // At once, or each when there are few, who then become more.
            for come_at_first in [seats, 2] {
                let all_mixes = Rc::default();
                let rooms = (0..count).map(|_| {
                    let mut room = room_beside(&all_mixes, come_at_first, 96_000, &encoding);
                    mixes_of_all(&mut room, 16, &mut connections);
                    for stream in come_at_first + 1..=seats {
                        room.admit(stream, ParticipantId::of_secret(&[stream as u8; 32]));
                        room.connect_listeners(&mut connections);
                        room.handle_listen(stream, mix_of(16, 1..=64), &mut connections)
                            .expect("allowed");
                        room.connect_listeners(&mut connections);
                    }
                    room
                });
                let _rooms: Vec<_> = rooms.collect();
                let left = MAX_MIXING - all_mixes.work.get();
                // Less than a quarter only by that which running mixes may grow.
                assert!(left + MAX_GROWN - MAX_MIXING >= MAX_MIXING / 4, "{left}");
                let mut class = room_beside(&all_mixes, 20, 48_000, &encoding);
                let frames = mixes_of_all(&mut class, 128, &mut connections);
                assert!(
                    !frames.contains(&None),
                    "{count} rooms of {seats} leave {left}: {frames:?}"
                );
            }
        }
    }

    #[tokio::test]
    async fn probes_of_nobody_count_as_what_a_participant_sends() {
        let (encoding, _encoded) = Encoding::start().expect("a thread");
        let (mut room, mut connections) = room_of(2, &Rc::new(encoding));
        let now = Instant::now();
        let mut over_rate = |to| {
            let probe = Probe {
                stream: to,
                id: 1,
                time_ns: 0,
                replied_ns: None,
            };
            let mut raw = vec![SESSION_PREFIX];
            raw.extend_from_slice(&probe.to_bytes());
            let raw = Bytes::from(raw);
            for _ in 0..DATAGRAMS_PER_S {
                room.handle_datagram(1, ConnectionHandle(0), raw.clone(), now, &mut connections);
            }
            std::mem::take(
                &mut room
                    .participants
                    .get_mut(&1)
                    .expect("there")
                    .counts
                    .over_rate,
            )
        };
        assert_eq!(over_rate(2), u64::from(DATAGRAMS_PER_S - PASSED_ON_PER_S));
        assert_eq!(over_rate(9), u64::from(DATAGRAMS_PER_S / 2), "at once");
        assert_eq!(over_rate(9), u64::from(DATAGRAMS_PER_S));
    }

    #[tokio::test]
    async fn opus_that_is_not_decoded_is_counted() {
        let (encoding, _encoded) = Encoding::start().expect("a thread");
        let (mut room, mut connections) = room_of(2, &Rc::new(encoding));
        let listen = mix_of(128, iter::once(2));
        room.handle_listen(1, listen, &mut connections)
            .expect("allowed");
        room.connect_listeners(&mut connections);
        let now = Instant::now();
        for sequence in 0..300 {
            let mut datagram = [0; 1 + AUDIO_HEADER_BYTES + 20];
            datagram[0] = SESSION_PREFIX;
            OpusHeader {
                channels: 1,
                stream: 0,
                frames: 240,
                sequence,
                timestamp: u64::from(sequence) * 240,
            }
            .write(&mut datagram[1..]);
            // One packet of 5 ms.
            datagram[1 + AUDIO_HEADER_BYTES] = 29 << 3;
            let raw = Bytes::copy_from_slice(&datagram);
            room.handle_datagram(2, ConnectionHandle(0), raw, now, &mut connections);
        }
        // A second of it is decoded at once.
        assert_eq!(room.participants[&2].counts.over_rate, 100);
    }

    #[tokio::test]
    async fn a_room_that_is_behind_mixes_a_part_and_lets_others_have_their_turn() {
        const PACKET: usize = 64;
        const LONGEST: u64 = 512;
        let (encoding, _encoded) = Encoding::start().expect("a thread");
        let (mut room, mut connections) = room_of(2, &Rc::new(encoding));
        let listen = Listen {
            mix: Some(Mix {
                format: 16,
                packet_frames: PACKET,
                sources: vec![Source {
                    stream: 2,
                    gain: 1.0,
                    pan: 0.0,
                    muted: false,
                }],
            }),
            ..Listen::default()
        };
        room.handle_listen(1, listen, &mut connections)
            .expect("allowed");
        room.connect_listeners(&mut connections);
        // As if the thread had stood still for so long.
        room.start -= Duration::from_millis(200);
        connections.has_handled();
        let is_behind = |room: &Room| room.poll_timeout() == Some(Duration::ZERO);
        let mut turns = 0;
        loop {
            let before = room.mixer.mixed_frames();
            room.changed.mixes.set(false);
            room.send_mixes(&mut connections);
            let mixed = room.mixer.mixed_frames() - before;
            assert!(mixed <= LONGEST + PACKET as u64, "{mixed}");
            assert!(room.changed.mixes.get(), "it is due at once, or no more");
            if !is_behind(&room) {
                break;
            }
            turns += 1;
        }
        // 150 ms of it, at least, which do not wait for what lies unread.
        assert!(turns >= 10, "{turns}");
    }

    #[tokio::test]
    async fn who_found_no_place_for_opus_steps_down_to_it_once_another_leaves_one() {
        let (encoding, _encoded) = Encoding::start().expect("a thread");
        let encoding = Rc::new(encoding);
        let (mut room, mut connections) = room_of(1, &encoding);
        let listen = Listen {
            mix: Some(Mix {
                format: 16,
                packet_frames: 128,
                sources: Vec::new(),
            }),
            opus: true,
            ..Listen::default()
        };
        room.handle_listen(1, listen, &mut connections)
            .expect("allowed");
        fn way(room: &mut Room) -> &mut MixWay {
            let participant = room.participants.get_mut(&1).expect("admitted");
            participant.mix_way.as_deref_mut().expect("it listens")
        }
        let step_down = |room: &mut Room| {
            let listener = &mut way(room).listener;
            for _ in 0..2 {
                for _ in 0..100 {
                    listener.send(Rung::Main, &mut [0; 24], (0, 128), |_| None);
                }
                listener.review(None, false, false);
            }
            room.prepare_mix(1);
            way(room).listener.rung()
        };
        let places = iter::from_fn(|| encoding.place(&room.name, 2));
        let mut places: Vec<_> = places.collect();
        assert_eq!(step_down(&mut room), Rung::Main, "nothing else is left");
        let review = |room: &mut Room, connections: &mut Connections| {
            way(room).looked_at = Duration::ZERO;
            room.review_mix(1, connections);
        };
        review(&mut room, &mut connections);
        assert_eq!(step_down(&mut room), Rung::Main);
        places.pop();
        review(&mut room, &mut connections);
        assert!(step_down(&mut room).is_opus());
    }

    #[test]
    fn whatever_a_page_can_be_told_to_send_is_let_through() {
        let header_of = |channels, frames| AudioHeader {
            format: SampleFormat::F32,
            rate: SampleRate::Hz96000,
            channels,
            stream: 0,
            frames,
            sequence: 0,
            timestamp: 0,
        };
        // As small as they can be, and as much as there can be in each: 8 channels are split into packets of 26 frames, with copies.
        for (channels, frames) in [(2, 16), (8, 26), (8, 16)] {
            let header = header_of(channels, frames);
            let bytes = header.datagram_bytes() + header.copy_bytes();
            let per_s = 96_000 / u32::from(frames);
            let mut allowance = Allowance::new(Duration::ZERO);
            for n in 0..10 * per_s {
                let now = Duration::from_secs(n.into()) / per_s;
                assert!(allowance.datagram(bytes, now), "{channels} channels, {n}");
            }
        }
    }

    #[test]
    fn what_a_sender_and_a_room_cause_to_be_sent_is_bounded_and_honest_players_never_reach_it() {
        const SECONDS: u32 = 10;
        let per_s = |senders: u32, datagrams_per_s: u32, listeners: usize| {
            let mut room = room_deliveries(Duration::ZERO);
            let mut allowances: Vec<_> = (0..senders)
                .map(|_| Allowance::new(Duration::ZERO))
                .collect();
            let mut delivered = 0;
            for turn in 0..SECONDS * datagrams_per_s {
                let now = Duration::from_secs(turn.into()) / datagrams_per_s;
                for allowance in &mut allowances {
                    if allowance.datagram(100, now) && allowance.deliver(listeners, &mut room, now)
                    {
                        delivered += listeners as u32;
                    }
                }
            }
            delivered / SECONDS
        };
        assert_eq!(per_s(1, 1_500, 31), 1_500 * 31, "64 frames, twice each");
        assert_eq!(per_s(1, 3_000, 12), 3_000 * 12, "16 frames, to some");
        assert_eq!(per_s(32, 500, 31), 32 * 500 * 31, "a full room");
        assert_eq!(per_s(32, 3_000, 1), 32 * 3_000, "one that is mixed for all");
        // At once there may be half as much as in a second.
        let most = |per_s: u32| per_s + per_s / 2 / SECONDS;
        let one = per_s(1, 8_000, 31);
        assert!(
            (DELIVERIES_PER_S..=most(DELIVERIES_PER_S)).contains(&one),
            "{one}"
        );
        let all = per_s(32, 1_500, 31);
        let room = ROOM_DELIVERIES_PER_S..=most(ROOM_DELIVERIES_PER_S);
        assert!(room.contains(&all), "{all}");
    }
}
