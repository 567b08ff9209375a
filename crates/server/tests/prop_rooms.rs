//! Whatever happens in whatever order, everyone in a room sees the same people with the same numbers, the same owner and
//! the same lock; the relay knows just those people; and nothing is left over at the end.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
    time::Duration,
};

use antiphon_server::{
    media::{MediaCommand, RelayOffer, Token},
    rooms::{Arrival, ConnectionId, Output, RoomLimits, Rooms},
    signalling::{
        ClientMessage, ErrorCode, Name, Participant, ParticipantId, RoomName, ServerMessage, parse,
    },
};
use proptest::prelude::*;

const ROOMS: [&str; 3] = [
    "prop-room-0000000",
    "prop-room-1111111",
    "prop-room-2222222",
];
const ACTIONS: [&str; 3] = ["mute", "unmute", "remove"];
const GRACE: Duration = Duration::from_secs(15);

/// What can happen. `who` picks one of the connections that are open.
#[derive(Debug, Clone)]
enum Step {
    Hello {
        room: usize,
        person: u8,
        name: u8,
        passphrase: u8,
        returning: bool,
    },
    Rename {
        who: prop::sample::Index,
        name: u8,
    },
    Signal {
        who: prop::sample::Index,
        to: u8,
    },
    Moderate {
        who: prop::sample::Index,
        to: u8,
        action: usize,
    },
    Lock {
        who: prop::sample::Index,
        passphrase: u8,
    },
    Certificate {
        port: u16,
    },
    Leave {
        who: prop::sample::Index,
    },
    HelloAgain {
        who: prop::sample::Index,
    },
    Break {
        who: prop::sample::Index,
    },
    Pass {
        ms: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let who = any::<prop::sample::Index>;
    prop_oneof![
        8 => (0..ROOMS.len(), 0_u8..8, 0_u8..3, 0_u8..3, any::<bool>())
            .prop_map(|(room, person, name, passphrase, returning)| {
                Step::Hello { room, person, name, passphrase, returning }
            }),
        1 => (who(), 0_u8..3).prop_map(|(who, name)| Step::Rename { who, name }),
        2 => (who(), 0_u8..8).prop_map(|(who, to)| Step::Signal { who, to }),
        2 => (who(), 0_u8..8, 0..ACTIONS.len()).prop_map(|(who, to, action)| Step::Moderate { who, to, action }),
        1 => (who(), 0_u8..3).prop_map(|(who, passphrase)| Step::Lock { who, passphrase }),
        1 => any::<u16>().prop_map(|port| Step::Certificate { port }),
        1 => who().prop_map(|who| Step::Leave { who }),
        1 => who().prop_map(|who| Step::HelloAgain { who }),
        3 => who().prop_map(|who| Step::Break { who }),
        2 => (0_u64..20_000).prop_map(|ms| Step::Pass { ms }),
    ]
}

/// Someone as a page sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    stream: u16,
    name: String,
    present: bool,
    muted: bool,
}

impl From<&Participant> for Seen {
    fn from(participant: &Participant) -> Self {
        Self {
            stream: participant.stream,
            name: text(&participant.name),
            present: participant.present,
            muted: participant.muted,
        }
    }
}

/// Everyone in a room, its owner, and whether it is locked.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Everything {
    people: BTreeMap<ParticipantId, Seen>,
    owner: ParticipantId,
    locked: bool,
}

/// What one page knows, from the messages it got.
#[derive(Debug, Default, Clone)]
struct View {
    room: Option<RoomName>,
    id: Option<ParticipantId>,
    name: String,
    stream: u16,
    muted: bool,
    owner: Option<ParticipantId>,
    locked: bool,
    port: Option<u16>,
    token: Option<Token>,
    others: BTreeMap<ParticipantId, Seen>,
}

impl View {
    fn handle(&mut self, message: &ServerMessage) {
        match message {
            ServerMessage::Welcome {
                id,
                stream,
                room,
                participants,
                owner,
                locked,
                muted,
                relay,
                ..
            } => {
                assert!(self.id.is_none(), "one welcome for each connection");
                self.id = Some(*id);
                self.room = Some(room.clone());
                (self.stream, self.muted) = (*stream, *muted);
                (self.owner, self.locked) = (Some(*owner), *locked);
                let relay = relay.as_ref().expect("there is one");
                (self.port, self.token) = (Some(relay.port), Some(relay.token));
                self.others = participants
                    .iter()
                    .map(|other| (other.id, other.into()))
                    .collect();
            }
            ServerMessage::Joined { participant } => {
                let known = self.others.insert(participant.id, participant.into());
                assert!(known.is_none(), "joined twice");
            }
            ServerMessage::Owner { id } => {
                assert_ne!(self.owner.replace(*id), Some(*id), "it was already");
            }
            ServerMessage::Muted { id, muted } => {
                let before = match self.id == Some(*id) {
                    true => &mut self.muted,
                    false => &mut self.other(id).muted,
                };
                assert_ne!(std::mem::replace(before, *muted), *muted, "it was already");
            }
            ServerMessage::Locked { locked, passphrase } => {
                assert_eq!(*locked, passphrase.is_some());
                self.locked = *locked;
            }
            ServerMessage::Relay { relay } => {
                assert_eq!(self.token, Some(relay.token), "somebody else's");
                self.port = Some(relay.port);
            }
            ServerMessage::Away { id } => assert!(
                std::mem::replace(&mut self.other(id).present, false),
                "away twice"
            ),
            // On another connection it may be back before the one before was missed.
            ServerMessage::Back { id } => self.other(id).present = true,
            ServerMessage::Renamed { id, name } => self.other(id).name = text(name),
            ServerMessage::Left { id } => assert!(self.others.remove(id).is_some(), "left twice"),
            ServerMessage::Signal { from, .. } => {
                assert!(
                    self.id == Some(*from) || self.others.contains_key(from),
                    "a signal from a stranger"
                );
            }
            ServerMessage::Error { code, .. } => {
                if *code == ErrorCode::NotOwner {
                    assert_ne!(self.owner, self.id, "the owner was refused");
                }
            }
        }
    }

    fn other(&mut self, id: &ParticipantId) -> &mut Seen {
        self.others.get_mut(id).expect("news of a stranger")
    }

    /// All it knows of its room, itself included.
    fn everything(&self) -> Everything {
        let own = Seen {
            stream: self.stream,
            name: self.name.clone(),
            present: true,
            muted: self.muted,
        };
        let mut people = self.others.clone();
        people.insert(self.id.expect("welcomed"), own);
        Everything {
            people,
            owner: self.owner.expect("welcomed"),
            locked: self.locked,
        }
    }
}

/// What the relay knows, from the commands it got.
#[derive(Debug, Default)]
struct Relay {
    used: HashSet<Token>,
    admitted: HashMap<Token, (RoomName, ParticipantId, u16, bool)>,
}

impl Relay {
    fn handle(&mut self, command: MediaCommand) {
        match command {
            MediaCommand::Admit {
                token,
                room,
                participant,
                stream,
                ..
            } => {
                assert!(self.used.insert(token), "a token is admitted once");
                for (there, who, number, _) in self.admitted.values() {
                    let twice = *who == participant || *number == stream;
                    assert!(*there != room || !twice, "someone is there already");
                }
                let known = (room, participant, stream, false);
                self.admitted.insert(token, known);
            }
            MediaCommand::Withdraw { token } => {
                assert!(self.admitted.remove(&token).is_some(), "withdrawn twice");
            }
            MediaCommand::Mute { token, muted } => {
                let known = self.admitted.get_mut(&token).expect("a stranger is muted");
                assert_ne!(std::mem::replace(&mut known.3, muted), muted);
            }
        }
    }
}

fn text(name: &Name) -> String {
    serde_json::to_string(name).expect("JSON")
}

/// Passphrase 0 is none.
fn hello(person: u8, name: u8, passphrase: u8) -> ClientMessage {
    let secret = format!("{person:02x}").repeat(32);
    let passphrase = match passphrase {
        0 => String::new(),
        n => format!(r#","passphrase":"P{n}""#),
    };
    parse(&format!(
        r#"{{"type":"hello","version":1,"secret":"{secret}","name":"N{name}","sample_rate_hz":48000{passphrase}}}"#
    ))
    .expect("a hello")
}

struct World {
    rooms: Rooms,
    now: Duration,
    views: BTreeMap<ConnectionId, View>,
    relay: Relay,
    port: u16,
    next: u64,
}

fn offer(port: u16) -> RelayOffer {
    RelayOffer {
        port,
        certificate_hashes: [].into(),
    }
}

impl World {
    fn run(&mut self, step: &Step) {
        let open: Vec<ConnectionId> = self.views.keys().copied().collect();
        let pick =
            |who: &prop::sample::Index| (!open.is_empty()).then(|| open[who.index(open.len())]);
        match step {
            Step::Hello {
                room,
                person,
                name,
                passphrase,
                returning,
            } => {
                let ClientMessage::Hello(mut hello) = hello(*person, *name, *passphrase) else {
                    unreachable!("it is one")
                };
                hello.returning = *returning;
                let connection = ConnectionId(self.next);
                self.next += 1;
                self.views.insert(
                    connection,
                    View {
                        name: text(&hello.name),
                        ..View::default()
                    },
                );
                let room = ROOMS[*room].parse().expect("a name");
                let arrival = Arrival {
                    connection,
                    address: IpAddr::from([192, 0, 2, *person]),
                    ice_servers: vec![],
                };
                let _ = self.rooms.handle_hello(arrival, room, hello, self.now);
            }
            Step::Rename { who, name } => {
                let Some(connection) = pick(who) else { return };
                let ClientMessage::Hello(hello) = hello(0, *name, 0) else {
                    unreachable!("it is one")
                };
                self.views.get_mut(&connection).expect("open").name = text(&hello.name);
                self.say(connection, ClientMessage::Rename { name: hello.name });
            }
            Step::Signal { who, to } => {
                let Some(connection) = pick(who) else { return };
                let ClientMessage::Hello(to) = hello(*to, 0, 0) else {
                    unreachable!("it is one")
                };
                let text = format!(r#"{{"type":"signal","to":"{}","data":{{}}}}"#, to.id);
                self.say(connection, parse(&text).expect("a signal"));
            }
            Step::Moderate { who, to, action } => {
                let Some(connection) = pick(who) else { return };
                let ClientMessage::Hello(to) = hello(*to, 0, 0) else {
                    unreachable!("it is one")
                };
                let text = format!(
                    r#"{{"type":"moderate","to":"{}","action":"{}"}}"#,
                    to.id, ACTIONS[*action]
                );
                self.say(connection, parse(&text).expect("a moderation"));
            }
            Step::Lock { who, passphrase } => {
                let Some(connection) = pick(who) else { return };
                let passphrase = match passphrase {
                    0 => "null".to_owned(),
                    n => format!(r#""P{n}""#),
                };
                let text = format!(r#"{{"type":"lock","passphrase":{passphrase}}}"#);
                self.say(connection, parse(&text).expect("a lock"));
            }
            Step::Certificate { port } => {
                self.port = *port;
                self.rooms.handle_relay_offer(offer(*port));
            }
            Step::Leave { who } => {
                let Some(connection) = pick(who) else { return };
                self.say(connection, ClientMessage::Leave);
            }
            Step::HelloAgain { who } => {
                let Some(connection) = pick(who) else { return };
                self.say(connection, hello(0, 0, 0));
            }
            Step::Break { who } => {
                let Some(connection) = pick(who) else { return };
                self.views.remove(&connection);
                self.rooms.handle_closed(connection, self.now);
            }
            Step::Pass { ms } => {
                self.now += Duration::from_millis(*ms);
                self.rooms.handle_timeout(self.now);
            }
        }
        self.deliver();
    }

    fn say(&mut self, connection: ConnectionId, message: ClientMessage) {
        self.rooms.handle_message(connection, message, self.now);
    }

    fn deliver(&mut self) {
        while let Some(output) = self.rooms.poll_output() {
            match output {
                Output::Send { to, message } => {
                    for connection in to {
                        self.views
                            .get_mut(&connection)
                            .expect("sent to one that is closed")
                            .handle(&message);
                    }
                }
                Output::Close { connection, .. } => {
                    self.views.remove(&connection).expect("closed twice");
                }
                Output::Media(command) => self.relay.handle(command),
                Output::DroppedWhileAway | Output::Moderated(..) => {}
            }
        }
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let mut rooms: HashMap<&RoomName, Everything> = HashMap::new();
        for view in self.views.values() {
            let Some(room) = &view.room else { continue };
            let everything = view.everything();
            let seen = rooms.entry(room).or_insert_with(|| everything.clone());
            prop_assert_eq!(&*seen, &everything, "two in a room see different things");
            prop_assert_eq!(view.port, Some(self.port));
            let known = self.relay.admitted.get(&view.token.expect("welcomed"));
            let id = view.id.expect("welcomed");
            let expected = (room.clone(), id, view.stream, view.muted);
            prop_assert_eq!(known, Some(&expected), "the relay knows something else");
        }
        for everything in rooms.values() {
            let people = &everything.people;
            prop_assert!(people.contains_key(&everything.owner), "the owner is gone");
            let streams: BTreeSet<u16> = people.values().map(|seen| seen.stream).collect();
            prop_assert_eq!(streams.len(), people.len(), "a number of two people");
            prop_assert!(streams.iter().all(|stream| (1..=65_534).contains(stream)));
        }
        let present = rooms
            .values()
            .flat_map(|everything| everything.people.values())
            .filter(|seen| seen.present)
            .count();
        let welcomed = self.views.values().filter(|view| view.id.is_some()).count();
        prop_assert_eq!(present, welcomed, "present is who has a connection");
        prop_assert!(rooms.len() <= self.rooms.room_count());
        let seen: usize = rooms
            .values()
            .map(|everything| everything.people.len())
            .sum();
        prop_assert!(seen <= self.rooms.participant_count());
        prop_assert_eq!(self.relay.admitted.len(), self.rooms.participant_count());
        if let Some(deadline) = self.rooms.poll_timeout() {
            prop_assert!(deadline > self.now && deadline <= self.now + GRACE);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn everyone_in_a_room_sees_the_same_people(steps in proptest::collection::vec(step(), 1..120)) {
        let limits = RoomLimits { rooms: 2, participants: 7, participants_per_room: 5, grace: GRACE };
        let mut world = World {
            rooms: Rooms::new(limits, Some(offer(1))),
            now: Duration::ZERO,
            views: BTreeMap::new(),
            relay: Relay::default(),
            port: 1,
            next: 0,
        };
        for step in &steps {
            world.run(step);
            world.check()?;
            prop_assert!(world.rooms.room_count() <= 2 && world.rooms.participant_count() <= 7);
        }
        while let Some((connection, _)) = world.views.pop_first() {
            world.rooms.handle_closed(connection, world.now);
            world.deliver();
        }
        world.rooms.handle_timeout(world.now + GRACE);
        world.deliver();
        prop_assert!(world.relay.admitted.is_empty());
        prop_assert_eq!((world.rooms.room_count(), world.rooms.participant_count()), (0, 0));
        prop_assert_eq!(world.rooms.poll_timeout(), None);
    }
}
