//! The rooms: who is in them, and what each of them is told.
//!
//! Sans-IO: connections are numbers, time is an argument, and what is to be sent comes out of [`Rooms::poll_output`].
//! So the whole of it runs in a test, in virtual time.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    net::IpAddr,
    time::Duration,
};

use serde::Serialize;
use serde_json::value::RawValue;

use crate::{
    ice::IceServer,
    lock::Lock,
    media::{MediaCommand, RelayOffer, Token},
    numbers::StreamNumbers,
    rate::TokenBucket,
    signalling::{
        ClientMessage, ErrorCode, Hello, Moderation, Name, Participant, ParticipantId, Passphrase,
        Relay, RoomName, SampleRateHz, ServerMessage, VERSION,
    },
};

/// A signalling connection, numbered by the host; a number is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// A page plays 65 streams, the native participant 64 (`web/src/shared/messages.ts`, `crates/agent/src/duplex.rs`): the others, and the mix.
pub const MAX_PARTICIPANTS_PER_ROOM: usize = 64;

/// How many there may be, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct RoomLimits {
    /// Rooms at once.
    pub rooms: usize,
    /// Participants in all rooms.
    pub participants: usize,
    /// Participants in one room.
    pub participants_per_room: usize,
    /// How long the place of a participant is kept after its connection broke.
    pub grace: Duration,
}

impl Default for RoomLimits {
    fn default() -> Self {
        Self {
            rooms: 1_000,
            participants: 2_000,
            participants_per_room: 32,
            grace: Duration::from_secs(15),
        }
    }
}

/// A connection that has said hello, as its host knows it.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// Which.
    pub connection: ConnectionId,
    /// Where it is from: wrong passphrases are counted by address, too.
    pub address: IpAddr,
    /// STUN and TURN servers that it may use.
    pub ice_servers: Vec<IceServer>,
}

/// What the host has to do.
#[derive(Debug, Clone)]
pub enum Output {
    /// Send this to each of them.
    Send {
        /// The receivers.
        to: Vec<ConnectionId>,
        /// The message.
        message: ServerMessage,
    },
    /// Close a connection, after what was sent before. It is already forgotten here.
    Close {
        /// Which.
        connection: ConnectionId,
        /// The WebSocket close code.
        code: u16,
    },
    /// Tell the relay.
    Media(MediaCommand),
    /// A signal was lost: its receiver is away, and enough waits for it.
    DroppedWhileAway,
    /// Somebody decided over a room, to be counted and logged.
    Moderated(RoomName, Moderated),
}

/// What an owner did, or one who returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Moderated {
    /// Muted someone.
    Muted,
    /// Unmuted someone.
    Unmuted,
    /// Removed someone.
    Removed,
    /// Set a passphrase, or another.
    Locked,
    /// Took the passphrase away.
    Unlocked,
    /// Somebody who returned after a restart set the passphrase of before.
    LockedAgain,
}

impl Moderated {
    /// In metrics and logs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Muted => "mute",
            Self::Unmuted => "unmute",
            Self::Removed => "remove",
            Self::Locked => "lock",
            Self::Unlocked => "unlock",
            Self::LockedAgain => "relock",
        }
    }
}

/// A room, for the operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RoomStatus {
    /// The room as logs write it: its name is its key.
    pub room: String,
    /// The room's sample rate.
    pub sample_rate_hz: SampleRateHz,
    /// Participants, those who are away included.
    pub participants: usize,
    /// Those of them that are away.
    pub away: usize,
    /// Those of them that the owner muted.
    pub muted: usize,
    /// Whether newcomers need a passphrase.
    pub locked: bool,
}

/// What is kept for someone who is away has at most this many bytes of data, in so many signals: the least have two bytes, and take thirty times that.
const MAX_KEPT_BYTES: usize = 256 * 1024;
const MAX_KEPT: usize = 1_024;
/// Of both, one sender's may take half: sixteen lanes' offers and candidates are less.
const MAX_KEPT_BYTES_OF_ONE: usize = MAX_KEPT_BYTES / 2;
const MAX_KEPT_OF_ONE: usize = MAX_KEPT / 2;

/// What an owner decides is told to everybody in the room: so many times at once, and so many per second. Far less than an outbox holds, and who connects
/// anew, or inherits the room, has no more.
const DECISIONS_AT_ONCE: u32 = 256;
const DECISIONS_PER_S: u32 = 32;

/// How many identities a room refuses, and how many that have gone it takes back muted only. The first are forgotten first.
const MAX_REMEMBERED: usize = 256;

/// Until this long after its start the server may have forgotten locks that those who return know of. Pages try to return every few seconds.
const RESTART: Duration = Duration::from_secs(120);

fn remember(identities: &mut VecDeque<ParticipantId>, id: ParticipantId) {
    if identities.len() >= MAX_REMEMBERED {
        identities.pop_front();
    }
    identities.push_back(id);
}

/// All rooms of a server.
#[derive(Debug)]
pub struct Rooms {
    limits: RoomLimits,
    relay: Option<RelayOffer>,
    rooms: HashMap<RoomName, Room>,
    /// Who speaks on a connection. One entry for each participant that is present.
    seats: HashMap<ConnectionId, (RoomName, ParticipantId)>,
    /// When the grace of those who are away ends.
    deadlines: BTreeSet<(Duration, RoomName, ParticipantId)>,
    participants: usize,
    outputs: VecDeque<Output>,
}

#[derive(Debug)]
struct Room {
    sample_rate_hz: SampleRateHz,
    /// In order of joining, so the first one who is no bot is the owner. Never empty.
    members: Vec<Member>,
    numbers: StreamNumbers,
    lock: Option<Lock>,
    /// What its owner may still decide.
    decisions: TokenBucket,
    /// Until then whoever returns may know of a lock of which this server does not, unless the owner has decided.
    relockable_until: Duration,
    /// Identities that the owner removed.
    removed: VecDeque<ParticipantId>,
    /// Identities that have gone muted by the owner.
    gone_muted: VecDeque<ParticipantId>,
}

#[derive(Debug)]
struct Member {
    id: ParticipantId,
    stream: u16,
    name: Name,
    is_bot: bool,
    muted: bool,
    /// When it joined: the room may have been open then, and be locked as before.
    said: Option<Passphrase>,
    /// It says that it was in before.
    returning: bool,
    /// If there is a relay.
    token: Option<Token>,
    presence: Presence,
}

#[derive(Debug)]
enum Presence {
    Here(ConnectionId),
    Away { until: Duration, kept: Kept },
}

/// Signals for someone who is away, with their senders.
#[derive(Debug, Default)]
struct Kept {
    signals: Vec<(ParticipantId, Box<RawValue>)>,
    /// How many are each sender's, and their bytes.
    shares: HashMap<ParticipantId, (usize, usize)>,
}

impl Rooms {
    /// No rooms yet, and perhaps a relay for those to come.
    pub fn new(limits: RoomLimits, relay: Option<RelayOffer>) -> Self {
        Self {
            limits,
            relay,
            rooms: HashMap::new(),
            seats: HashMap::new(),
            deadlines: BTreeSet::new(),
            participants: 0,
            outputs: VecDeque::new(),
        }
    }

    /// How many rooms there are.
    pub fn room_count(&self) -> usize {
        self.rooms.len()
    }

    /// How many participants there are in all rooms, those who are away included.
    pub fn participant_count(&self) -> usize {
        self.participants
    }

    /// All rooms, in any order.
    pub fn status(&self) -> Vec<RoomStatus> {
        let count = |room: &Room, which: fn(&Member) -> bool| {
            room.members.iter().filter(|member| which(member)).count()
        };
        let status = |(name, room): (&RoomName, &Room)| RoomStatus {
            room: format!("{name:?}"),
            sample_rate_hz: room.sample_rate_hz,
            participants: room.members.len(),
            away: count(room, |member| member.connection().is_none()),
            muted: count(room, |member| member.muted),
            locked: room.lock.is_some(),
        };
        self.rooms.iter().map(status).collect()
    }

    /// The relay's certificate changed: everyone who may use the relay is told.
    pub fn handle_relay_offer(&mut self, offer: RelayOffer) {
        for room in self.rooms.values() {
            for member in &room.members {
                if let (Some(connection), Some(token)) = (member.connection(), member.token) {
                    let relay = relay(&offer, token);
                    self.outputs.push_back(Output::Send {
                        to: vec![connection],
                        message: ServerMessage::Relay { relay },
                    });
                }
            }
        }
        self.relay = Some(offer);
    }

    /// A connection says who it is: it joins or resumes, or is refused.
    pub fn handle_hello(
        &mut self,
        arrival: Arrival,
        room_name: RoomName,
        hello: Hello,
        now: Duration,
    ) -> Result<(), ErrorCode> {
        let connection = arrival.connection;
        let resumed = self
            .rooms
            .get(&room_name)
            .is_some_and(|room| room.member(hello.id).is_some());
        if resumed {
            self.resume(connection, &room_name, &hello);
        } else if let Err((code, message)) = self.join(&arrival, &room_name, &hello, now) {
            self.refuse(connection, code, message);
            return Err(code);
        }
        self.seats.insert(connection, (room_name.clone(), hello.id));
        let room = self.rooms.get_mut(&room_name).expect("it was entered");
        let participants = room
            .members
            .iter()
            .filter(|member| member.id != hello.id)
            .map(Member::seen)
            .collect();
        let (sample_rate_hz, owner, locked) =
            (room.sample_rate_hz, room.owner(), room.lock.is_some());
        // It may have been said on a connection that was already dead, or to the others only.
        let is_missed = |lock: &&Lock| {
            !hello
                .passphrase
                .as_ref()
                .is_some_and(|said| lock.opens_to(said))
        };
        let missed = room
            .lock
            .as_ref()
            .filter(is_missed)
            .map(|lock| lock.passphrase().clone());
        let member = room.member_mut(hello.id).expect("it is in the room");
        let before = std::mem::replace(&mut member.presence, Presence::Here(connection));
        let access = self.relay.as_ref().zip(member.token);
        self.outputs.push_back(Output::Send {
            to: vec![connection],
            message: ServerMessage::Welcome {
                version: VERSION,
                id: hello.id,
                stream: member.stream,
                room: room_name.clone(),
                sample_rate_hz,
                participants,
                owner,
                locked,
                muted: member.muted,
                ice_servers: arrival.ice_servers,
                relay: access.map(|(offer, token)| relay(offer, token)),
                resumed,
            },
        });
        if missed.is_some() {
            self.outputs.push_back(Output::Send {
                to: vec![connection],
                message: ServerMessage::Locked {
                    locked,
                    passphrase: missed,
                },
            });
        }
        if let Presence::Away { until, kept } = before {
            self.deadlines.remove(&(until, room_name, hello.id));
            for (from, data) in kept.signals {
                let message = ServerMessage::Signal { from, data };
                self.outputs.push_back(Output::Send {
                    to: vec![connection],
                    message,
                });
            }
        }
        Ok(())
    }

    fn join(
        &mut self,
        arrival: &Arrival,
        room_name: &RoomName,
        hello: &Hello,
        now: Duration,
    ) -> Result<(), (ErrorCode, &'static str)> {
        let removed = self.rooms.get(room_name).map(|room| &room.removed);
        if removed.is_some_and(|removed| removed.contains(&hello.id)) {
            return Err((ErrorCode::Removed, "the owner of this room removed you"));
        }
        self.lock_as_before(room_name, hello, now);
        let mut room = self.rooms.get_mut(room_name);
        if let Some(lock) = room.as_mut().and_then(|room| room.lock.as_mut()) {
            let said = hello.passphrase.as_ref();
            lock.open(said, arrival.address, now)?;
        }
        let members = room.map_or(0, |room| room.members.len());
        if members >= self.limits.participants_per_room {
            return Err((ErrorCode::RoomFull, "this room is full"));
        }
        if self.participants >= self.limits.participants
            || (members == 0 && self.rooms.len() >= self.limits.rooms)
        {
            return Err((
                ErrorCode::ServerFull,
                "this server is full; try again later",
            ));
        }
        let room = self.rooms.entry(room_name.clone()).or_insert_with(|| Room {
            sample_rate_hz: hello.sample_rate_hz,
            members: Vec::new(),
            numbers: StreamNumbers::default(),
            lock: hello.passphrase.as_ref().map(Lock::new),
            decisions: TokenBucket::new(DECISIONS_AT_ONCE, DECISIONS_PER_S, now),
            relockable_until: RESTART.min(now + self.limits.grace),
            removed: VecDeque::new(),
            gone_muted: VecDeque::new(),
        });
        let Some(stream) = room.numbers.take() else {
            return Err((ErrorCode::RoomFull, "this room is full"));
        };
        let was_muted = room.gone_muted.iter().position(|id| *id == hello.id);
        let was_muted = was_muted.and_then(|at| room.gone_muted.remove(at));
        // Whoever will be the owner, by `Room::owner`, is muted by nobody.
        let owns = !hello.bot && room.members.iter().all(|member| member.is_bot);
        let member = Member {
            id: hello.id,
            stream,
            name: hello.name.clone(),
            is_bot: hello.bot,
            muted: was_muted.is_some() && !owns,
            said: hello.passphrase.clone(),
            returning: hello.returning,
            token: self.relay.as_ref().map(|_| Token::random()),
            presence: Presence::Here(arrival.connection),
        };
        let participant = member.seen();
        if let Some(token) = member.token {
            self.outputs.push_back(Output::Media(MediaCommand::Admit {
                token,
                room: room_name.clone(),
                participant: hello.id,
                stream,
                sample_rate_hz: room.sample_rate_hz,
            }));
            if member.muted {
                let command = MediaCommand::Mute { token, muted: true };
                self.outputs.push_back(Output::Media(command));
            }
        }
        let owner = room.members.first().map(|_| room.owner());
        room.members.push(member);
        let heir = room.owner();
        self.participants += 1;
        self.tell_others(room_name, hello.id, ServerMessage::Joined { participant });
        if owner.is_some_and(|owner| owner != heir) {
            self.tell_others(room_name, hello.id, ServerMessage::Owner { id: heir });
        }
        Ok(())
    }

    /// After a restart of the server, whoever comes first makes the room again, and that may be somebody without its passphrase: the first who returns
    /// with it locks the room, and those who did not say it have to go. Not if one of them returned, too: then it is not known who is right.
    fn lock_as_before(&mut self, room_name: &RoomName, hello: &Hello, now: Duration) {
        let (true, Some(passphrase)) = (hello.returning, &hello.passphrase) else {
            return;
        };
        let room = self.rooms.get_mut(room_name);
        let is_forgotten = |room: &&mut Room| {
            room.lock.is_none()
                && now < room.relockable_until
                && !room.members.iter().any(|member| member.returning)
        };
        let Some(room) = room.filter(is_forgotten) else {
            return;
        };
        let lock = room.lock.insert(Lock::new(passphrase));
        let knows = |said: &Passphrase| lock.opens_to(said);
        let strangers: Vec<_> = room
            .members
            .iter()
            .filter(|member| !member.said.as_ref().is_some_and(knows))
            .map(|member| (member.id, member.connection()))
            .collect();
        for (id, connection) in strangers {
            if let Some(connection) = connection {
                let why = "this room is locked as before, and asks for its passphrase";
                self.refuse(connection, ErrorCode::Passphrase, why);
            }
            self.remove(room_name, id);
        }
        self.moderated(room_name, Moderated::LockedAgain);
        if self.rooms.contains_key(room_name) {
            let message = ServerMessage::Locked {
                locked: true,
                passphrase: Some(passphrase.clone()),
            };
            self.tell_all(room_name, message);
        }
    }

    fn resume(&mut self, connection: ConnectionId, room_name: &RoomName, hello: &Hello) {
        let room = self
            .rooms
            .get_mut(room_name)
            .expect("the member was found in it");
        let member = room.member_mut(hello.id).expect("it was found");
        let renamed = member.name != hello.name;
        member.name = hello.name.clone();
        match member.presence {
            Presence::Here(previous) if previous != connection => {
                self.seats.remove(&previous);
                self.refuse(
                    previous,
                    ErrorCode::Replaced,
                    "another connection resumed this identity",
                );
            }
            Presence::Here(_) | Presence::Away { .. } => {}
        }
        // Also where nobody saw it go: what was on its way by the previous connection may be lost.
        self.tell_others(room_name, hello.id, ServerMessage::Back { id: hello.id });
        if renamed {
            let message = ServerMessage::Renamed {
                id: hello.id,
                name: hello.name.clone(),
            };
            self.tell_others(room_name, hello.id, message);
        }
    }

    /// A connection that said hello says something else.
    pub fn handle_message(
        &mut self,
        connection: ConnectionId,
        message: ClientMessage,
        now: Duration,
    ) {
        let Some((room_name, id)) = self.seats.get(&connection).cloned() else {
            return;
        };
        match message {
            ClientMessage::Hello(_) => {
                self.refuse(connection, ErrorCode::BadMessage, "hello was already said");
                self.handle_closed(connection, now);
            }
            ClientMessage::Signal { to, data } => {
                self.pass_on(connection, &room_name, id, to, data)
            }
            ClientMessage::Rename { name } => {
                let room = self.rooms.get_mut(&room_name).expect("a seat is in a room");
                room.member_mut(id).expect("a seat has a member").name = name.clone();
                self.tell_others(&room_name, id, ServerMessage::Renamed { id, name });
            }
            ClientMessage::Moderate { .. } | ClientMessage::Lock { .. }
                if !self.may_decide(connection, &room_name, id, now) => {}
            ClientMessage::Moderate { to, action } => {
                self.moderate(connection, &room_name, to, action)
            }
            ClientMessage::Lock { passphrase } => self.lock(&room_name, passphrase),
            ClientMessage::Leave => {
                self.outputs.push_back(Output::Close {
                    connection,
                    code: 1000,
                });
                self.remove(&room_name, id);
            }
        }
    }

    fn pass_on(
        &mut self,
        connection: ConnectionId,
        room_name: &RoomName,
        from: ParticipantId,
        to: ParticipantId,
        data: Box<RawValue>,
    ) {
        let room = self.rooms.get_mut(room_name).expect("a seat is in a room");
        let output = match room.member_mut(to).map(|member| &mut member.presence) {
            Some(Presence::Here(receiver)) => Output::Send {
                to: vec![*receiver],
                message: ServerMessage::Signal { from, data },
            },
            Some(Presence::Away { kept, .. }) => {
                if kept.add(from, data) {
                    return;
                }
                Output::DroppedWhileAway
            }
            None => return self.tell_unknown(connection, to),
        };
        self.outputs.push_back(output);
    }

    /// Whether this is the owner, who has not decided too much of late. Else it is told, and nobody else.
    fn may_decide(
        &mut self,
        connection: ConnectionId,
        room_name: &RoomName,
        id: ParticipantId,
        now: Duration,
    ) -> bool {
        let room = self.rooms.get_mut(room_name).expect("a seat is in a room");
        if room.owner() != id {
            self.tell_not_owner(connection);
            return false;
        }
        let may_decide = room.decisions.take(1, now);
        if !may_decide {
            self.tell_not_now(connection);
        }
        may_decide
    }

    fn moderate(
        &mut self,
        connection: ConnectionId,
        room_name: &RoomName,
        to: ParticipantId,
        action: Moderation,
    ) {
        let room = self.rooms.get_mut(room_name).expect("a seat is in a room");
        let Some(member) = room.member(to) else {
            return self.tell_unknown(connection, to);
        };
        let muted = match action {
            Moderation::Mute => true,
            Moderation::Unmute => false,
            Moderation::Remove => {
                let there = member.connection();
                remember(&mut room.removed, to);
                self.moderated(room_name, Moderated::Removed);
                if let Some(there) = there {
                    let why = "the owner of this room removed you";
                    self.refuse(there, ErrorCode::Removed, why);
                }
                return self.remove(room_name, to);
            }
        };
        self.set_muted(room_name, to, muted);
    }

    fn set_muted(&mut self, room_name: &RoomName, id: ParticipantId, muted: bool) {
        let room = self.rooms.get_mut(room_name).expect("it has a member");
        let member = room.member_mut(id).expect("it is in the room");
        if member.muted == muted {
            return;
        }
        member.muted = muted;
        if let Some(token) = member.token {
            let command = MediaCommand::Mute { token, muted };
            self.outputs.push_back(Output::Media(command));
        }
        let what = match muted {
            true => Moderated::Muted,
            false => Moderated::Unmuted,
        };
        self.moderated(room_name, what);
        self.tell_all(room_name, ServerMessage::Muted { id, muted });
    }

    fn lock(&mut self, room_name: &RoomName, passphrase: Option<Passphrase>) {
        let room = self.rooms.get_mut(room_name).expect("a seat is in a room");
        room.lock = passphrase.as_ref().map(Lock::new);
        room.relockable_until = Duration::ZERO;
        let locked = room.lock.is_some();
        let what = match locked {
            true => Moderated::Locked,
            false => Moderated::Unlocked,
        };
        self.moderated(room_name, what);
        let message = ServerMessage::Locked { locked, passphrase };
        self.tell_all(room_name, message);
    }

    /// A connection is gone, whatever the cause: its participant is away until it resumes or its grace ends.
    pub fn handle_closed(&mut self, connection: ConnectionId, now: Duration) {
        let Some((room_name, id)) = self.seats.remove(&connection) else {
            return;
        };
        let until = now + self.limits.grace;
        let room = self.rooms.get_mut(&room_name).expect("a seat is in a room");
        room.member_mut(id).expect("a seat has a member").presence = Presence::Away {
            until,
            kept: Kept::default(),
        };
        self.deadlines.insert((until, room_name.clone(), id));
        self.tell_others(&room_name, id, ServerMessage::Away { id });
    }

    /// Removes those whose grace has ended.
    pub fn handle_timeout(&mut self, now: Duration) {
        while let Some((until, room_name, id)) = self.deadlines.pop_first() {
            if until > now {
                self.deadlines.insert((until, room_name, id));
                break;
            }
            self.remove(&room_name, id);
        }
    }

    /// When [`Rooms::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.deadlines.first().map(|(until, ..)| *until)
    }

    /// The next thing to do, in order.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Forgets a member, wherever it is.
    fn remove(&mut self, room_name: &RoomName, id: ParticipantId) {
        let room = self
            .rooms
            .get_mut(room_name)
            .expect("a member is in a room");
        let owner = room.owner();
        let at = room.members.iter().position(|member| member.id == id);
        let member = room.members.remove(at.expect("it is in the room"));
        room.numbers.give_back(member.stream);
        if member.muted {
            remember(&mut room.gone_muted, id);
        }
        // Nobody hears from those they do not know.
        for member in &mut room.members {
            if let Presence::Away { kept, .. } = &mut member.presence {
                kept.signals.retain(|(from, _)| *from != id);
                kept.shares.remove(&id);
            }
        }
        self.participants -= 1;
        match member.presence {
            Presence::Here(connection) => {
                self.seats.remove(&connection);
            }
            Presence::Away { until, .. } => {
                self.deadlines.remove(&(until, room_name.clone(), id));
            }
        }
        if let Some(token) = member.token {
            let command = MediaCommand::Withdraw { token };
            self.outputs.push_back(Output::Media(command));
        }
        if room.members.is_empty() {
            self.rooms.remove(room_name);
            return;
        }
        let heir = room.owner();
        self.tell_all(room_name, ServerMessage::Left { id });
        if heir != owner {
            self.tell_all(room_name, ServerMessage::Owner { id: heir });
            // By who is gone: nobody else could end it.
            self.set_muted(room_name, heir, false);
        }
    }

    fn moderated(&mut self, room_name: &RoomName, what: Moderated) {
        let output = Output::Moderated(room_name.clone(), what);
        self.outputs.push_back(output);
    }

    fn refuse(&mut self, connection: ConnectionId, code: ErrorCode, message: &str) {
        self.outputs.push_back(Output::Send {
            to: vec![connection],
            message: ServerMessage::error(code, message),
        });
        let code = code.close_code().expect("it ends the connection");
        self.outputs.push_back(Output::Close { connection, code });
    }

    fn tell_unknown(&mut self, connection: ConnectionId, id: ParticipantId) {
        let why = format!("{id} is not in this room");
        let message = ServerMessage::error(ErrorCode::UnknownPeer, why);
        self.tell([connection], message);
    }

    fn tell_not_owner(&mut self, connection: ConnectionId) {
        let why = "only the owner of this room may do this";
        self.tell([connection], ServerMessage::error(ErrorCode::NotOwner, why));
    }

    /// What a connection said is not done, because everybody was told enough for now.
    pub(crate) fn tell_not_now(&mut self, connection: ConnectionId) {
        let why = "everybody was told enough for now; say it again later";
        self.tell([connection], ServerMessage::error(ErrorCode::NotNow, why));
    }

    fn tell_others(&mut self, room_name: &RoomName, id: ParticipantId, message: ServerMessage) {
        let room = self.rooms.get(room_name).expect("a member is in a room");
        let others = room.members.iter().filter(|member| member.id != id);
        let to: Vec<_> = others.filter_map(Member::connection).collect();
        self.tell(to, message);
    }

    fn tell_all(&mut self, room_name: &RoomName, message: ServerMessage) {
        let room = self.rooms.get(room_name).expect("a member is in a room");
        let to: Vec<_> = room.members.iter().filter_map(Member::connection).collect();
        self.tell(to, message);
    }

    fn tell(&mut self, to: impl Into<Vec<ConnectionId>>, message: ServerMessage) {
        let to = to.into();
        if !to.is_empty() {
            self.outputs.push_back(Output::Send { to, message });
        }
    }
}

fn relay(offer: &RelayOffer, token: Token) -> Relay {
    Relay {
        port: offer.port,
        token,
        certificate_hashes: offer.certificate_hashes.clone(),
    }
}

impl Room {
    fn owner(&self) -> ParticipantId {
        let people = self.members.iter().find(|member| !member.is_bot);
        let owner = people.or(self.members.first());
        owner.expect("a room is never empty").id
    }

    fn member(&self, id: ParticipantId) -> Option<&Member> {
        self.members.iter().find(|member| member.id == id)
    }

    fn member_mut(&mut self, id: ParticipantId) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.id == id)
    }
}

impl Kept {
    /// Keeps a signal, if there is room for it.
    fn add(&mut self, from: ParticipantId, data: Box<RawValue>) -> bool {
        let bytes = data.get().len();
        let all: usize = self.shares.values().map(|(_, bytes)| bytes).sum();
        let (its, its_bytes) = self.shares.entry(from).or_default();
        let fits = self.signals.len() < MAX_KEPT
            && *its < MAX_KEPT_OF_ONE
            && all + bytes <= MAX_KEPT_BYTES
            && *its_bytes + bytes <= MAX_KEPT_BYTES_OF_ONE;
        if fits {
            (*its, *its_bytes) = (*its + 1, *its_bytes + bytes);
            self.signals.push((from, data));
        }
        fits
    }
}

impl Member {
    fn connection(&self) -> Option<ConnectionId> {
        match self.presence {
            Presence::Here(connection) => Some(connection),
            Presence::Away { .. } => None,
        }
    }

    fn seen(&self) -> Participant {
        Participant {
            id: self.id,
            stream: self.stream,
            name: self.name.clone(),
            present: self.connection().is_some(),
            muted: self.muted,
        }
    }
}
