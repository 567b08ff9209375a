//! Whatever happens in whatever order, everyone in a room sees the same people, and nothing is left over at the end.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use antiphon_server::{
    rooms::{ConnectionId, Output, RoomLimits, Rooms},
    signalling::{ClientMessage, Name, ParticipantId, RoomName, ServerMessage, parse},
};
use proptest::prelude::*;

const ROOMS: [&str; 3] = [
    "prop-room-0000000",
    "prop-room-1111111",
    "prop-room-2222222",
];
const GRACE: Duration = Duration::from_secs(15);

/// What can happen. `who` picks one of the connections that are open.
#[derive(Debug, Clone)]
enum Step {
    Hello { room: usize, person: u8, name: u8 },
    Rename { who: prop::sample::Index, name: u8 },
    Signal { who: prop::sample::Index, to: u8 },
    Leave { who: prop::sample::Index },
    HelloAgain { who: prop::sample::Index },
    Break { who: prop::sample::Index },
    Pass { ms: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let who = any::<prop::sample::Index>;
    prop_oneof![
        5 => (0..ROOMS.len(), 0_u8..8, 0_u8..3).prop_map(|(room, person, name)| Step::Hello { room, person, name }),
        1 => (who(), 0_u8..3).prop_map(|(who, name)| Step::Rename { who, name }),
        2 => (who(), 0_u8..8).prop_map(|(who, to)| Step::Signal { who, to }),
        1 => who().prop_map(|who| Step::Leave { who }),
        1 => who().prop_map(|who| Step::HelloAgain { who }),
        3 => who().prop_map(|who| Step::Break { who }),
        2 => (0_u64..20_000).prop_map(|ms| Step::Pass { ms }),
    ]
}

/// What one page knows, from the messages it got.
#[derive(Debug, Default, Clone)]
struct View {
    room: Option<RoomName>,
    id: Option<ParticipantId>,
    name: String,
    others: BTreeMap<ParticipantId, (String, bool)>,
}

impl View {
    fn handle(&mut self, message: &ServerMessage) {
        match message {
            ServerMessage::Welcome {
                id,
                room,
                participants,
                ..
            } => {
                assert!(self.id.is_none(), "one welcome for each connection");
                self.id = Some(*id);
                self.room = Some(room.clone());
                for other in participants {
                    self.others
                        .insert(other.id, (text(&other.name), other.present));
                }
            }
            ServerMessage::Joined { participant } => {
                let known = self.others.insert(
                    participant.id,
                    (text(&participant.name), participant.present),
                );
                assert!(known.is_none(), "joined twice");
            }
            ServerMessage::Away { id } => assert!(
                std::mem::replace(&mut self.other(id).1, false),
                "away twice"
            ),
            ServerMessage::Back { id } => assert!(
                !std::mem::replace(&mut self.other(id).1, true),
                "back twice"
            ),
            ServerMessage::Renamed { id, name } => self.other(id).0 = text(name),
            ServerMessage::Left { id } => assert!(self.others.remove(id).is_some(), "left twice"),
            ServerMessage::Signal { from, .. } => {
                assert!(
                    self.id == Some(*from) || self.others.contains_key(from),
                    "a signal from a stranger"
                );
            }
            ServerMessage::Error { .. } => {}
        }
    }

    fn other(&mut self, id: &ParticipantId) -> &mut (String, bool) {
        self.others.get_mut(id).expect("news of a stranger")
    }

    /// Everyone in the room, oneself included.
    fn everyone(&self) -> BTreeMap<ParticipantId, (String, bool)> {
        let mut everyone = self.others.clone();
        everyone.insert(self.id.expect("welcomed"), (self.name.clone(), true));
        everyone
    }
}

fn text(name: &Name) -> String {
    serde_json::to_string(name).expect("JSON")
}

fn hello(person: u8, name: u8) -> ClientMessage {
    let secret = format!("{person:02x}").repeat(32);
    parse(&format!(
        r#"{{"type":"hello","version":1,"secret":"{secret}","name":"N{name}","sample_rate_hz":48000}}"#
    ))
    .expect("a hello")
}

struct World {
    rooms: Rooms,
    now: Duration,
    views: BTreeMap<ConnectionId, View>,
    next: u64,
}

impl World {
    fn run(&mut self, step: &Step) {
        let open: Vec<ConnectionId> = self.views.keys().copied().collect();
        let pick =
            |who: &prop::sample::Index| (!open.is_empty()).then(|| open[who.index(open.len())]);
        match step {
            Step::Hello { room, person, name } => {
                let ClientMessage::Hello(hello) = hello(*person, *name) else {
                    unreachable!("it is one")
                };
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
                self.rooms.handle_hello(connection, room, hello, vec![]);
            }
            Step::Rename { who, name } => {
                let Some(connection) = pick(who) else { return };
                let ClientMessage::Hello(hello) = hello(0, *name) else {
                    unreachable!("it is one")
                };
                self.views.get_mut(&connection).expect("open").name = text(&hello.name);
                self.say(connection, ClientMessage::Rename { name: hello.name });
            }
            Step::Signal { who, to } => {
                let Some(connection) = pick(who) else { return };
                let ClientMessage::Hello(to) = hello(*to, 0) else {
                    unreachable!("it is one")
                };
                let text = format!(r#"{{"type":"signal","to":"{}","data":{{}}}}"#, to.id);
                self.say(connection, parse(&text).expect("a signal"));
            }
            Step::Leave { who } => {
                let Some(connection) = pick(who) else { return };
                self.say(connection, ClientMessage::Leave);
            }
            Step::HelloAgain { who } => {
                let Some(connection) = pick(who) else { return };
                self.say(connection, hello(0, 0));
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
                Output::DroppedWhileAway => {}
            }
        }
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let mut rooms: HashMap<&RoomName, BTreeMap<ParticipantId, (String, bool)>> = HashMap::new();
        for view in self.views.values() {
            let Some(room) = &view.room else { continue };
            let everyone = view.everyone();
            let seen = rooms.entry(room).or_insert_with(|| everyone.clone());
            prop_assert_eq!(&*seen, &everyone, "two in a room see different people");
        }
        let present = rooms
            .values()
            .flat_map(|people| people.values())
            .filter(|(_, present)| *present)
            .count();
        let welcomed = self.views.values().filter(|view| view.id.is_some()).count();
        prop_assert_eq!(present, welcomed, "present is who has a connection");
        prop_assert!(rooms.len() <= self.rooms.room_count());
        let seen: usize = rooms.values().map(BTreeMap::len).sum();
        prop_assert!(seen <= self.rooms.participant_count());
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
        let mut world = World { rooms: Rooms::new(limits), now: Duration::ZERO, views: BTreeMap::new(), next: 0 };
        for step in &steps {
            world.run(step);
            world.check()?;
            prop_assert!(world.rooms.room_count() <= 2 && world.rooms.participant_count() <= 7);
        }
        for connection in world.views.keys() {
            world.rooms.handle_closed(*connection, world.now);
        }
        world.rooms.handle_timeout(world.now + GRACE);
        prop_assert_eq!((world.rooms.room_count(), world.rooms.participant_count()), (0, 0));
        prop_assert_eq!(world.rooms.poll_timeout(), None);
    }
}
