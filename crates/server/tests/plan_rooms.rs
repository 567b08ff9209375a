//! The rooms in virtual time, as plans: somebody does something, and this is what everybody is told.

use std::time::Duration;

use antiphon_server::{
    rooms::{ConnectionId, Output, RoomLimits, Rooms},
    signalling::{ClientMessage, RoomName, parse},
};

const ROOM: &str = "plan-room-0123456";

/// The rooms, with numbered connections and people whose secrets are their number, over and over.
struct Plan {
    rooms: Rooms,
    now: Duration,
}

impl Plan {
    fn new(limits: RoomLimits) -> Self {
        Self {
            rooms: Rooms::new(limits),
            now: Duration::from_secs(1_000),
        }
    }

    fn hello(&mut self, connection: u64, person: u8, name: &str) -> Vec<String> {
        self.hello_in(ROOM, connection, person, name)
    }

    fn hello_in(&mut self, room: &str, connection: u64, person: u8, name: &str) -> Vec<String> {
        let secret = format!("{person:02x}").repeat(32);
        let text = format!(
            r#"{{"type":"hello","version":1,"secret":"{secret}","name":"{name}","sample_rate_hz":48000}}"#
        );
        let Ok(ClientMessage::Hello(hello)) = parse(&text) else {
            panic!("{text}")
        };
        let room: RoomName = room.parse().expect("a room's name");
        self.rooms
            .handle_hello(ConnectionId(connection), room, hello, vec![]);
        self.told()
    }

    fn says(&mut self, connection: u64, text: &str) -> Vec<String> {
        let message = parse(text).expect(text);
        self.rooms
            .handle_message(ConnectionId(connection), message, self.now);
        self.told()
    }

    fn breaks(&mut self, connection: u64) -> Vec<String> {
        self.rooms.handle_closed(ConnectionId(connection), self.now);
        self.told()
    }

    fn passes(&mut self, time: Duration) -> Vec<String> {
        self.now += time;
        self.rooms.handle_timeout(self.now);
        self.told()
    }

    /// "connections: message", with people's ids replaced by their numbers.
    fn told(&mut self) -> Vec<String> {
        let mut told = Vec::new();
        while let Some(output) = self.rooms.poll_output() {
            told.push(match output {
                Output::Send { to, message } => {
                    let to: Vec<_> = to.iter().map(|to| to.0.to_string()).collect();
                    let text = serde_json::to_string(&message).expect("JSON");
                    format!("{}: {}", to.join(" "), shortened(text))
                }
                Output::Close { connection, code } => format!("{}: close {code}", connection.0),
                Output::DroppedWhileAway => "dropped".into(),
            });
        }
        told
    }
}

fn id(person: u8) -> String {
    let hello = format!(
        r#"{{"type":"hello","version":1,"secret":"{}","name":"x","sample_rate_hz":48000}}"#,
        format!("{person:02x}").repeat(32)
    );
    match parse(&hello) {
        Ok(ClientMessage::Hello(hello)) => hello.id.to_string(),
        other => panic!("{other:?}"),
    }
}

fn shortened(text: String) -> String {
    (1..40).fold(text, |text, person| {
        text.replace(&id(person), &format!("#{person}"))
    })
}

fn welcome(connection: u64, person: u8, others: &str, resumed: bool) -> String {
    format!(
        r##"{connection}: {{"type":"welcome","version":1,"id":"#{person}","room":"{ROOM}","sample_rate_hz":48000,"participants":[{others}],"ice_servers":[],"resumed":{resumed}}}"##
    )
}

#[test]
fn people_join_and_leave() {
    let mut plan = Plan::new(RoomLimits::default());
    assert_eq!(plan.hello(1, 1, "Ann"), [welcome(1, 1, "", false)]);
    assert_eq!(
        plan.hello(2, 2, "Bob"),
        [
            r##"1: {"type":"joined","participant":{"id":"#2","name":"Bob","present":true}}"##
                .to_owned(),
            welcome(2, 2, r##"{"id":"#1","name":"Ann","present":true}"##, false),
        ]
    );
    assert_eq!(
        plan.says(1, r#"{"type":"leave"}"#),
        ["1: close 1000", r##"2: {"type":"left","id":"#1"}"##]
    );
    assert!(plan.breaks(1).is_empty(), "it has left already");
    assert!(
        plan.says(1, r#"{"type":"rename","name":"Ghost"}"#)
            .is_empty()
    );
    assert_eq!(plan.says(2, r#"{"type":"leave"}"#), ["2: close 1000"]);
    assert_eq!(
        (plan.rooms.room_count(), plan.rooms.participant_count()),
        (0, 0)
    );
    assert_eq!(plan.rooms.poll_timeout(), None);
}

#[test]
fn a_broken_connection_is_resumed_within_the_grace_period() {
    let mut plan = Plan::new(RoomLimits::default());
    plan.hello(1, 1, "Ann");
    plan.hello(2, 2, "Bob");
    assert_eq!(plan.breaks(2), [r##"1: {"type":"away","id":"#2"}"##]);
    assert!(plan.passes(Duration::from_millis(14_999)).is_empty());
    let ann = r##"{"id":"#1","name":"Ann","present":true}"##;
    assert_eq!(
        plan.hello(3, 2, "Bob"),
        [
            r##"1: {"type":"back","id":"#2"}"##.to_owned(),
            welcome(3, 2, ann, true)
        ]
    );
    assert!(
        plan.passes(Duration::from_secs(60)).is_empty(),
        "the old grace is forgotten"
    );
    assert_eq!(plan.rooms.participant_count(), 2);
}

#[test]
fn the_grace_period_ends() {
    let mut plan = Plan::new(RoomLimits::default());
    plan.hello(1, 1, "Ann");
    plan.hello(2, 2, "Bob");
    plan.breaks(2);
    assert_eq!(
        plan.rooms.poll_timeout(),
        Some(plan.now + Duration::from_secs(15))
    );
    assert_eq!(
        plan.passes(Duration::from_secs(15)),
        [r##"1: {"type":"left","id":"#2"}"##]
    );
    let ann = r##"{"id":"#1","name":"Ann","present":true}"##;
    assert_eq!(
        plan.hello(3, 2, "Bob").last(),
        Some(&welcome(3, 2, ann, false)),
        "too late: a new participant"
    );
}

#[test]
fn a_room_waits_for_the_last_one_to_come_back() {
    let mut plan = Plan::new(RoomLimits::default());
    plan.hello(1, 1, "Ann");
    plan.breaks(1);
    assert_eq!(plan.rooms.room_count(), 1);
    let away = r##"{"id":"#1","name":"Ann","present":false}"##;
    assert_eq!(plan.hello(2, 2, "Bob"), [welcome(2, 2, away, false)]);
    plan.breaks(2);
    plan.passes(Duration::from_secs(15));
    assert_eq!(
        (plan.rooms.room_count(), plan.rooms.participant_count()),
        (0, 0)
    );
}

#[test]
fn a_second_connection_replaces_the_first_unnoticed_by_the_others() {
    let mut plan = Plan::new(RoomLimits::default());
    plan.hello(1, 1, "Ann");
    plan.hello(2, 2, "Bob");
    let ann = r##"{"id":"#1","name":"Ann","present":true}"##;
    assert_eq!(
        plan.hello(3, 2, "Bob"),
        [
            r#"2: {"type":"error","code":"replaced","message":"another connection resumed this identity"}"#.to_owned(),
            "2: close 1000".into(),
            welcome(3, 2, ann, true),
        ]
    );
    assert!(plan.breaks(2).is_empty(), "the old connection has no say");
    assert!(plan.says(2, r#"{"type":"leave"}"#).is_empty());
    assert_eq!(
        plan.says(3, r#"{"type":"rename","name":"Rob"}"#),
        [r##"1: {"type":"renamed","id":"#2","name":"Rob"}"##]
    );
}

#[test]
fn a_new_name_while_resuming_is_told() {
    let mut plan = Plan::new(RoomLimits::default());
    plan.hello(1, 1, "Ann");
    plan.hello(2, 2, "Bob");
    plan.breaks(2);
    let told = plan.hello(3, 2, "Rob");
    assert_eq!(
        told[..2],
        [
            r##"1: {"type":"back","id":"#2"}"##,
            r##"1: {"type":"renamed","id":"#2","name":"Rob"}"##
        ]
    );
}

#[test]
fn signals_go_to_one_and_wait_for_who_is_away() {
    let mut plan = Plan::new(RoomLimits::default());
    plan.hello(1, 1, "Ann");
    plan.hello(2, 2, "Bob");
    plan.hello(3, 3, "Cem");
    let signal = |to: u8, n: u8| {
        format!(
            r#"{{"type":"signal","to":"{}","data":{{"n":{n}}}}}"#,
            id(to)
        )
    };
    assert_eq!(
        plan.says(1, &signal(2, 1)),
        [r##"2: {"type":"signal","from":"#1","data":{"n":1}}"##]
    );
    assert_eq!(
        plan.says(1, &signal(1, 2)),
        [r##"1: {"type":"signal","from":"#1","data":{"n":2}}"##],
        "even to oneself"
    );
    plan.breaks(2);
    assert!(plan.says(1, &signal(2, 3)).is_empty());
    assert!(plan.says(3, &signal(2, 4)).is_empty());
    let told = plan.hello(4, 2, "Bob");
    assert!(told[1].starts_with(r#"4: {"type":"welcome""#), "{told:?}");
    assert_eq!(
        told[2..],
        [
            r##"4: {"type":"signal","from":"#1","data":{"n":3}}"##,
            r##"4: {"type":"signal","from":"#3","data":{"n":4}}"##
        ]
    );
    assert_eq!(
        plan.says(1, &signal(9, 5)),
        [r##"1: {"type":"error","code":"unknown_peer","message":"#9 is not in this room"}"##]
    );
}

#[test]
fn nothing_waits_from_who_has_left() {
    let mut plan = Plan::new(RoomLimits::default());
    plan.hello(1, 1, "Ann");
    plan.hello(2, 2, "Bob");
    plan.breaks(2);
    plan.says(
        1,
        &format!(r#"{{"type":"signal","to":"{}","data":{{}}}}"#, id(2)),
    );
    plan.says(1, r#"{"type":"leave"}"#);
    assert_eq!(plan.hello(3, 2, "Bob"), [welcome(3, 2, "", true)]);
}

#[test]
fn what_waits_for_who_is_away_is_bounded() {
    let mut plan = Plan::new(RoomLimits::default());
    plan.hello(1, 1, "Ann");
    plan.hello(2, 2, "Bob");
    plan.breaks(2);
    let large = format!(
        r#"{{"type":"signal","to":"{}","data":{{"x":"{}"}}}}"#,
        id(2),
        "x".repeat(60_000)
    );
    let dropped = (0..10)
        .filter(|_| plan.says(1, &large) == ["dropped"])
        .count();
    assert_eq!(dropped, 6, "four times 60 kB fit in 256 KiB");
    assert_eq!(plan.hello(3, 2, "Bob").len(), 2 + 4);
}

#[test]
fn rooms_are_apart() {
    let mut plan = Plan::new(RoomLimits::default());
    plan.hello_in("first-room-012345", 1, 1, "Ann");
    assert_eq!(
        plan.hello_in("second-room-01234", 2, 2, "Bob").len(),
        1,
        "Ann hears nothing of it"
    );
    let signal = format!(r#"{{"type":"signal","to":"{}","data":{{}}}}"#, id(1));
    assert!(plan.says(2, &signal)[0].contains("unknown_peer"));
    assert_eq!(plan.rooms.room_count(), 2);
}

#[test]
fn limits_refuse_newcomers_but_not_those_who_resume() {
    let limits = RoomLimits {
        rooms: 2,
        participants: 3,
        participants_per_room: 2,
        ..RoomLimits::default()
    };
    let mut plan = Plan::new(limits);
    plan.hello(1, 1, "Ann");
    plan.hello(2, 2, "Bob");
    let told = plan.hello(3, 3, "Cem");
    assert!(
        told[0].starts_with(r#"3: {"type":"error","code":"room_full""#),
        "{told:?}"
    );
    assert_eq!(told[1..], ["3: close 1008"]);
    plan.breaks(2);
    assert!(
        plan.hello(4, 3, "Cem")[0].contains("room_full"),
        "a place is kept for who is away"
    );
    assert!(plan.hello(5, 2, "Bob")[1].contains("welcome"));

    plan.hello_in("second-room-01234", 6, 4, "Dan");
    let told = plan.hello_in("third-room-012345", 7, 5, "Eve");
    assert!(
        told[0].contains("server_full"),
        "too many rooms, and too many participants: {told:?}"
    );
    assert!(
        plan.hello_in("second-room-01234", 8, 6, "Fay")[0].contains("server_full"),
        "too many participants"
    );
    assert_eq!(
        (plan.rooms.room_count(), plan.rooms.participant_count()),
        (2, 3)
    );
}

#[test]
fn the_first_one_decides_the_sample_rate_and_a_second_hello_is_a_mistake() {
    let mut plan = Plan::new(RoomLimits::default());
    plan.hello(1, 1, "Ann");
    plan.hello(2, 2, "Bob");
    let secret = "02".repeat(32);
    let hello = format!(
        r#"{{"type":"hello","version":1,"secret":"{secret}","name":"Bob","sample_rate_hz":96000}}"#
    );
    let told = plan.says(2, &hello);
    assert!(
        told[0].starts_with(r#"2: {"type":"error","code":"bad_message""#),
        "{told:?}"
    );
    assert_eq!(
        told[1..],
        ["2: close 1008", r##"1: {"type":"away","id":"#2"}"##]
    );
    let Ok(ClientMessage::Hello(hello)) = parse(&hello) else {
        panic!("{hello}")
    };
    plan.rooms.handle_hello(
        ConnectionId(3),
        ROOM.parse().expect("a name"),
        hello,
        vec![],
    );
    assert!(plan.told()[1].contains(r#""sample_rate_hz":48000"#));
}
