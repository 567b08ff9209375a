//! The rooms: who is in them, and what each of them is told.
//!
//! Sans-IO: connections are numbers, time is an argument, and what is to be sent comes out of [`Rooms::poll_output`].
//! So the whole of it runs in a test, in virtual time.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use serde_json::value::RawValue;

use crate::{
    ice::IceServer,
    signalling::{
        ClientMessage, ErrorCode, Hello, Name, Participant, ParticipantId, RoomName, SampleRateHz,
        ServerMessage, VERSION,
    },
};

/// A signalling connection, numbered by the host; a number is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

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
    /// A signal was lost: its receiver is away, and enough waits for it.
    DroppedWhileAway,
}

/// What is kept for someone who is away has at most this many bytes of data.
const MAX_KEPT_BYTES: usize = 256 * 1024;

/// All rooms of a server.
#[derive(Debug)]
pub struct Rooms {
    limits: RoomLimits,
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
    /// In order of joining.
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    id: ParticipantId,
    name: Name,
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
    bytes: usize,
}

impl Rooms {
    /// No rooms yet.
    pub fn new(limits: RoomLimits) -> Self {
        Self {
            limits,
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

    /// A connection says who it is: it joins, resumes, or is refused.
    pub fn handle_hello(
        &mut self,
        connection: ConnectionId,
        room_name: RoomName,
        hello: Hello,
        ice_servers: Vec<IceServer>,
    ) {
        let resumed = self
            .rooms
            .get(&room_name)
            .is_some_and(|room| room.member(hello.id).is_some());
        if resumed {
            self.resume(connection, &room_name, &hello);
        } else if let Err((code, message)) = self.join(connection, &room_name, &hello) {
            return self.refuse(connection, code, message);
        }
        self.seats.insert(connection, (room_name.clone(), hello.id));
        let room = self.rooms.get_mut(&room_name).expect("it was entered");
        let participants = room
            .members
            .iter()
            .filter(|member| member.id != hello.id)
            .map(Member::seen)
            .collect();
        let sample_rate_hz = room.sample_rate_hz;
        let member = room.member_mut(hello.id).expect("it is in the room");
        let before = std::mem::replace(&mut member.presence, Presence::Here(connection));
        self.outputs.push_back(Output::Send {
            to: vec![connection],
            message: ServerMessage::Welcome {
                version: VERSION,
                id: hello.id,
                room: room_name.clone(),
                sample_rate_hz,
                participants,
                ice_servers,
                resumed,
            },
        });
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
    }

    fn join(
        &mut self,
        connection: ConnectionId,
        room_name: &RoomName,
        hello: &Hello,
    ) -> Result<(), (ErrorCode, &'static str)> {
        let members = self
            .rooms
            .get(room_name)
            .map_or(0, |room| room.members.len());
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
        });
        room.members.push(Member {
            id: hello.id,
            name: hello.name.clone(),
            presence: Presence::Here(connection),
        });
        self.participants += 1;
        let participant = Participant {
            id: hello.id,
            name: hello.name.clone(),
            present: true,
        };
        self.tell_others(room_name, hello.id, ServerMessage::Joined { participant });
        Ok(())
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
            Presence::Here(_) => {}
            Presence::Away { .. } => {
                self.tell_others(room_name, hello.id, ServerMessage::Back { id: hello.id })
            }
        }
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
            ClientMessage::Leave => {
                self.seats.remove(&connection);
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
                let bytes = kept.bytes + data.get().len();
                if bytes <= MAX_KEPT_BYTES {
                    kept.bytes = bytes;
                    return kept.signals.push((from, data));
                }
                Output::DroppedWhileAway
            }
            None => {
                let message = ServerMessage::error(
                    ErrorCode::UnknownPeer,
                    format!("{to} is not in this room"),
                );
                Output::Send {
                    to: vec![connection],
                    message,
                }
            }
        };
        self.outputs.push_back(output);
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

    fn remove(&mut self, room_name: &RoomName, id: ParticipantId) {
        let room = self
            .rooms
            .get_mut(room_name)
            .expect("a member is in a room");
        room.members.retain(|member| member.id != id);
        // Nobody hears from those they do not know.
        for member in &mut room.members {
            if let Presence::Away { kept, .. } = &mut member.presence {
                kept.signals.retain(|(from, _)| *from != id);
                kept.bytes = kept.signals.iter().map(|(_, data)| data.get().len()).sum();
            }
        }
        self.participants -= 1;
        if room.members.is_empty() {
            self.rooms.remove(room_name);
        } else {
            self.tell_others(room_name, id, ServerMessage::Left { id });
        }
    }

    fn refuse(&mut self, connection: ConnectionId, code: ErrorCode, message: &str) {
        self.outputs.push_back(Output::Send {
            to: vec![connection],
            message: ServerMessage::error(code, message),
        });
        let code = code.close_code().expect("it ends the connection");
        self.outputs.push_back(Output::Close { connection, code });
    }

    fn tell_others(&mut self, room_name: &RoomName, id: ParticipantId, message: ServerMessage) {
        let room = self.rooms.get(room_name).expect("a member is in a room");
        let to: Vec<_> = room
            .members
            .iter()
            .filter(|member| member.id != id)
            .filter_map(Member::connection)
            .collect();
        if !to.is_empty() {
            self.outputs.push_back(Output::Send { to, message });
        }
    }
}

impl Room {
    fn member(&self, id: ParticipantId) -> Option<&Member> {
        self.members.iter().find(|member| member.id == id)
    }

    fn member_mut(&mut self, id: ParticipantId) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.id == id)
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
            name: self.name.clone(),
            present: self.connection().is_some(),
        }
    }
}
