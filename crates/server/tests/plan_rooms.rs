//! The rooms in virtual time, as plans: somebody does something, and this is what everybody is told.

use std::{net::IpAddr, time::Duration};

use antiphon_server::{
    media::{CertificateHash, MediaCommand, RelayOffer, Token},
    rooms::{Arrival, ConnectionId, Output, RoomLimits, Rooms},
    signalling::{ClientMessage, RoomName, parse},
};

const ROOM: &str = "plan-room-0123456";

/// The rooms, with numbered connections and people whose secrets are their number, over and over.
struct Plan {
    rooms: Rooms,
    now: Duration,
    /// The relay's tokens, in the order in which they were admitted.
    tokens: Vec<Token>,
}

impl Plan {
    fn new(limits: RoomLimits) -> Self {
        Self::with(limits, None)
    }

    fn with(limits: RoomLimits, relay: Option<RelayOffer>) -> Self {
        Self {
            rooms: Rooms::new(limits, relay),
            now: Duration::from_secs(1),
            tokens: Vec::new(),
        }
    }

    fn hello(&mut self, connection: u64, person: u8, name: &str) -> Vec<String> {
        self.hello_in(ROOM, connection, person, name)
    }

    fn hello_in(&mut self, room: &str, connection: u64, person: u8, name: &str) -> Vec<String> {
        self.enters(room, connection, &hello(person, name, 48_000, None))
    }

    /// Ann's or whose ever name is of no account, but the passphrase is.
    fn knocks(&mut self, connection: u64, person: u8, passphrase: Option<&str>) -> Vec<String> {
        self.enters(ROOM, connection, &hello(person, "Nn", 48_000, passphrase))
    }

    /// The same, of one who says that it was in before.
    fn returns(&mut self, connection: u64, person: u8, passphrase: Option<&str>) -> Vec<String> {
        let hello = hello(person, "Nn", 48_000, passphrase);
        self.enters(
            ROOM,
            connection,
            &hello.replace('}', r#","returning":true}"#),
        )
    }

    fn enters(&mut self, room: &str, connection: u64, hello: &str) -> Vec<String> {
        let Ok(ClientMessage::Hello(hello)) = parse(hello) else {
            panic!("{hello}")
        };
        let room: RoomName = room.parse().expect("a room's name");
        let arrival = Arrival {
            connection: ConnectionId(connection),
            address: IpAddr::from([192, 0, 2, 1]),
            ice_servers: vec![],
        };
        let _ = self.rooms.handle_hello(arrival, room, hello, self.now);
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

    /// "connections: message", with people's ids replaced by their numbers, and tokens by theirs.
    fn told(&mut self) -> Vec<String> {
        let mut told = Vec::new();
        while let Some(output) = self.rooms.poll_output() {
            told.push(match output {
                Output::Send { to, message } => {
                    let to: Vec<_> = to.iter().map(|to| to.0.to_string()).collect();
                    let text = serde_json::to_string(&message).expect("JSON");
                    format!("{}: {}", to.join(" "), self.shortened(text))
                }
                Output::Close { connection, code } => format!("{}: close {code}", connection.0),
                Output::Media(MediaCommand::Admit {
                    token,
                    participant,
                    stream,
                    ..
                }) => {
                    self.tokens.push(token);
                    let who = self.shortened(participant.to_string());
                    format!("relay: admit {who} with {} as {stream}", self.number(token))
                }
                Output::Media(MediaCommand::Withdraw { token }) => {
                    format!("relay: withdraw {}", self.number(token))
                }
                Output::Media(MediaCommand::Mute { token, muted }) => {
                    format!("relay: mute {} {muted}", self.number(token))
                }
                Output::DroppedWhileAway => "dropped".into(),
                Output::Moderated(_, what) => format!("counted: {what:?}"),
            });
        }
        told
    }

    fn number(&self, token: Token) -> String {
        let known = self.tokens.iter().position(|known| *known == token);
        format!("T{}", 1 + known.expect("it was admitted"))
    }

    fn shortened(&self, text: String) -> String {
        let text = (1..40).fold(text, |text, person| {
            text.replace(&id(person), &format!("#{person}"))
        });
        self.tokens.iter().fold(text, |text, token| {
            let digits = serde_json::to_string(token).expect("JSON");
            text.replace(&digits, &self.number(*token))
        })
    }
}

fn hello(person: u8, name: &str, sample_rate_hz: u32, passphrase: Option<&str>) -> String {
    let secret = format!("{person:02x}").repeat(32);
    let passphrase = passphrase.map(|text| format!(r#","passphrase":"{text}""#));
    format!(
        r#"{{"type":"hello","version":1,"secret":"{secret}","name":"{name}","sample_rate_hz":{sample_rate_hz}{}}}"#,
        passphrase.unwrap_or_default()
    )
}

fn id(person: u8) -> String {
    match parse(&hello(person, "x", 48_000, None)) {
        Ok(ClientMessage::Hello(hello)) => hello.id.to_string(),
        other => panic!("{other:?}"),
    }
}

/// Someone as the others see it.
fn seen(person: u8, stream: u16, name: &str, present: bool) -> String {
    format!(
        r##"{{"id":"#{person}","stream":{stream},"name":"{name}","present":{present},"muted":false}}"##
    )
}

/// The welcome of someone who is not muted in an open room without a relay.
fn welcome(
    connection: u64,
    (person, stream): (u8, u16),
    others: &str,
    owner: u8,
    resumed: bool,
) -> String {
    format!(
        r##"{connection}: {{"type":"welcome","version":1,"id":"#{person}","stream":{stream},"room":"{ROOM}","sample_rate_hz":48000,"participants":[{others}],"owner":"#{owner}","locked":false,"muted":false,"ice_servers":[],"relay":null,"resumed":{resumed}}}"##
    )
}

fn moderate(to: u8, action: &str) -> String {
    format!(
        r#"{{"type":"moderate","to":"{}","action":"{action}"}}"#,
        id(to)
    )
}

/// The code of the error that is told first.
fn code(told: &[String]) -> &str {
    let (_, rest) = told[0]
        .split_once(r#"{"type":"error","code":""#)
        .expect("an error");
    rest.split('"').next().expect("a code")
}

#[test]
fn people_join_and_leave() {
    let mut plan = Plan::new(RoomLimits::default());
    assert_eq!(plan.hello(1, 1, "Ann"), [welcome(1, (1, 1), "", 1, false)]);
    assert_eq!(
        plan.hello(2, 2, "Bob"),
        [
            format!(
                r#"1: {{"type":"joined","participant":{}}}"#,
                seen(2, 2, "Bob", true)
            ),
            welcome(2, (2, 2), &seen(1, 1, "Ann", true), 1, false),
        ]
    );
    assert_eq!(
        plan.says(1, r#"{"type":"leave"}"#),
        [
            "1: close 1000",
            r##"2: {"type":"left","id":"#1"}"##,
            r##"2: {"type":"owner","id":"#2"}"##
        ]
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
    let ann = &seen(1, 1, "Ann", true);
    assert_eq!(
        plan.hello(3, 2, "Bob"),
        [
            r##"1: {"type":"back","id":"#2"}"##.to_owned(),
            welcome(3, (2, 2), ann, 1, true)
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
    let ann = &seen(1, 1, "Ann", true);
    assert_eq!(
        plan.hello(3, 2, "Bob").last(),
        Some(&welcome(3, (2, 3), ann, 1, false)),
        "too late: a new participant"
    );
}

#[test]
fn a_room_waits_for_the_last_one_to_come_back() {
    let mut plan = Plan::new(RoomLimits::default());
    plan.hello(1, 1, "Ann");
    plan.breaks(1);
    assert_eq!(plan.rooms.room_count(), 1);
    assert_eq!(
        plan.hello(2, 2, "Bob"),
        [welcome(2, (2, 2), &seen(1, 1, "Ann", false), 1, false)]
    );
    plan.breaks(2);
    plan.passes(Duration::from_secs(15));
    assert_eq!(
        (plan.rooms.room_count(), plan.rooms.participant_count()),
        (0, 0)
    );
}

#[test]
fn a_second_connection_replaces_the_first_and_the_others_hear_of_it() {
    let mut plan = Plan::new(RoomLimits::default());
    plan.hello(1, 1, "Ann");
    plan.hello(2, 2, "Bob");
    let ann = &seen(1, 1, "Ann", true);
    assert_eq!(
        plan.hello(3, 2, "Bob"),
        [
            r#"2: {"type":"error","code":"replaced","message":"another connection resumed this identity"}"#.to_owned(),
            "2: close 1000".into(),
            r##"1: {"type":"back","id":"#2"}"##.into(),
            welcome(3, (2, 2), ann, 1, true),
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
    assert_eq!(plan.hello(3, 2, "Bob"), [welcome(3, (2, 2), "", 2, true)]);
}

#[test]
fn an_owner_decides_only_so_much_of_which_others_use_up_nothing() {
    let mut plan = Plan::new(RoomLimits::default());
    plan.hello(1, 1, "Ann");
    plan.hello(2, 2, "Bob");
    for _ in 0..300 {
        assert_eq!(code(&plan.says(2, &moderate(1, "mute"))), "not_owner");
    }
    let decided = |plan: &mut Plan, connection| {
        let actions = ["mute", "unmute"].into_iter().cycle().take(300);
        let told = actions.map(|action| plan.says(connection, &moderate(2, action)));
        let told: Vec<_> = told.collect();
        let declined = told.iter().filter(|told| told[0].contains("error"));
        declined
            .inspect(|told| assert_eq!(code(told), "not_now"))
            .count()
    };
    assert_eq!(decided(&mut plan, 1), 300 - 256);
    plan.passes(Duration::from_secs(1));
    plan.hello(3, 1, "Ann");
    assert_eq!(decided(&mut plan, 3), 300 - 32, "by another connection");
}

#[test]
fn what_waits_for_who_is_away_is_bounded() {
    let mut plan = Plan::new(RoomLimits::default());
    plan.hello(1, 1, "Ann");
    plan.hello(2, 2, "Bob");
    plan.hello(3, 3, "Cem");
    plan.hello(4, 4, "Dan");
    plan.breaks(2);
    let large = format!(
        r#"{{"type":"signal","to":"{}","data":{{"x":"{}"}}}}"#,
        id(2),
        "x".repeat(60_000)
    );
    let kept = [1, 3, 4].map(|connection| {
        let kept = (0..10).filter(|_| plan.says(connection, &large).is_empty());
        kept.count()
    });
    let why = "four times 60 kB fit in 256 KiB, and half of it is for the others";
    assert_eq!(kept, [2, 2, 0], "{why}");
    // Who leaves takes its own along, and makes room.
    plan.says(3, r#"{"type":"leave"}"#);
    assert!(plan.says(1, &large) == ["dropped"] && plan.says(4, &large).is_empty());
    let told = plan.hello(5, 2, "Bob");
    let signals = told.iter().filter(|told| told.contains(r#""signal""#));
    assert_eq!(signals.count(), 3);

    let mut plan = Plan::new(RoomLimits::default());
    for person in 1..5 {
        plan.hello(person.into(), person, "Nn");
    }
    plan.breaks(2);
    let small = format!(r#"{{"type":"signal","to":"{}","data":{{}}}}"#, id(2));
    let kept = [1, 3, 4].map(|connection| {
        let kept = (0..600).filter(|_| plan.says(connection, &small).is_empty());
        kept.count()
    });
    assert_eq!(kept, [512, 512, 0], "however small they are");
    assert_eq!(plan.hello(5, 2, "Nn").len(), 2 + 1_024);
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
    let faster = hello(2, "Bob", 96_000, None);
    let told = plan.says(2, &faster);
    assert_eq!(code(&told), "bad_message");
    assert_eq!(
        told[1..],
        ["2: close 1008", r##"1: {"type":"away","id":"#2"}"##]
    );
    let told = plan.enters(ROOM, 3, &faster);
    assert!(told[1].contains(r#""sample_rate_hz":48000"#));
}

#[test]
fn the_room_passes_to_who_came_next() {
    let mut plan = Plan::new(RoomLimits::default());
    plan.hello(1, 1, "Ann");
    plan.hello(2, 2, "Bob");
    plan.hello(3, 3, "Cem");
    plan.breaks(1);
    assert_eq!(
        code(&plan.says(2, &moderate(3, "mute"))),
        "not_owner",
        "it is still Ann's"
    );
    assert_eq!(
        plan.passes(Duration::from_secs(15)),
        [
            r##"2 3: {"type":"left","id":"#1"}"##,
            r##"2 3: {"type":"owner","id":"#2"}"##
        ]
    );
    plan.breaks(2);
    assert_eq!(
        plan.hello(4, 1, "Ann")
            .last()
            .map(|told| told.contains(r##""owner":"#2""##)),
        Some(true),
        "who left and came again is the last in line"
    );
    plan.hello(5, 2, "Bob");
    assert_eq!(
        plan.says(3, r#"{"type":"leave"}"#)[1..],
        [r##"5 4: {"type":"left","id":"#3"}"##],
        "no word of the owner when another leaves"
    );
}

#[test]
fn the_owner_mutes_and_unmutes() {
    let mut plan = Plan::new(RoomLimits::default());
    plan.hello(1, 1, "Ann");
    plan.hello(2, 2, "Bob");
    plan.hello(3, 3, "Cem");
    assert_eq!(
        plan.says(1, &moderate(2, "mute")),
        [
            "counted: Muted",
            r##"1 2 3: {"type":"muted","id":"#2","muted":true}"##
        ]
    );
    assert!(
        plan.says(1, &moderate(2, "mute")).is_empty(),
        "it is muted already"
    );
    let told = plan.hello(4, 4, "Dan");
    let bob = seen(2, 2, "Bob", true).replace("false}", "true}");
    assert!(told[1].contains(&bob), "a newcomer knows: {told:?}");
    plan.breaks(2);
    let told = plan.hello(5, 2, "Bob");
    assert!(
        told[1].contains(r#""locked":false,"muted":true"#),
        "leaving the server for a moment does not help: {told:?}"
    );
    assert_eq!(
        plan.says(1, &moderate(2, "unmute")),
        [
            "counted: Unmuted",
            r##"1 5 3 4: {"type":"muted","id":"#2","muted":false}"##
        ]
    );
    assert_eq!(
        plan.says(1, &moderate(1, "mute"))[1..],
        [r##"1 5 3 4: {"type":"muted","id":"#1","muted":true}"##],
        "even oneself"
    );
}

#[test]
fn who_inherits_a_room_is_heard() {
    let mut plan = Plan::new(RoomLimits::default());
    plan.hello(1, 1, "Ann");
    plan.hello(2, 2, "Bob");
    plan.hello(3, 3, "Cem");
    plan.says(1, &moderate(2, "mute"));
    let told = plan.says(1, r#"{"type":"leave"}"#);
    let after: Vec<&String> = told
        .iter()
        .skip_while(|told| !told.contains("owner"))
        .collect();
    assert_eq!(
        after,
        [
            r##"2 3: {"type":"owner","id":"#2"}"##,
            "counted: Unmuted",
            r##"2 3: {"type":"muted","id":"#2","muted":false}"##
        ]
    );

    // Somebody muted who comes back where only bots are left.
    let bot = hello(4, "Bot", 48_000, None).replace('}', r#","bot":true}"#);
    plan.enters(ROOM, 4, &bot);
    plan.says(2, &moderate(3, "mute"));
    plan.says(3, r#"{"type":"leave"}"#);
    plan.says(2, r#"{"type":"leave"}"#);
    let told = plan.hello(5, 3, "Cem");
    assert!(
        told.iter()
            .any(|told| told.contains(r#""muted":false,"ice"#)),
        "{told:?}"
    );
}

#[test]
fn a_bot_owns_a_room_only_while_nobody_else_is_there() {
    let mut plan = Plan::new(RoomLimits::default());
    let bot = |person| hello(person, "Bot", 48_000, None).replace('}', r#","bot":true}"#);
    let owned = |told: &[String], person: u8| {
        let owner = format!(r##""owner":"#{person}""##);
        told.iter().any(|told| told.contains(&owner))
    };
    assert!(owned(&plan.enters(ROOM, 1, &bot(1)), 1));
    assert!(owned(&plan.enters(ROOM, 2, &bot(2)), 1));
    let told = plan.hello(3, 3, "Ann");
    assert!(owned(&told, 3), "{told:?}");
    assert!(told.contains(&r##"1 2: {"type":"owner","id":"#3"}"##.to_owned()));
    let told = plan.hello(4, 4, "Bob");
    assert!(owned(&told, 3) && !told.iter().any(|told| told.contains(r#""type":"owner""#)));
    plan.says(3, r#"{"type":"leave"}"#);
    let told = plan.says(4, r#"{"type":"leave"}"#);
    assert!(
        told.contains(&r##"1 2: {"type":"owner","id":"#1"}"##.to_owned()),
        "{told:?}"
    );
}

#[test]
fn only_the_owner_moderates_and_only_those_in_the_room() {
    let mut plan = Plan::new(RoomLimits::default());
    plan.hello(1, 1, "Ann");
    plan.hello(2, 2, "Bob");
    for text in [
        moderate(1, "remove").as_str(),
        &moderate(2, "unmute"),
        &moderate(9, "mute"),
        r#"{"type":"lock","passphrase":"x"}"#,
        r#"{"type":"lock","passphrase":null}"#,
    ] {
        let told = plan.says(2, text);
        assert_eq!((told.len(), code(&told)), (1, "not_owner"), "{text}");
    }
    let told = plan.says(1, &moderate(9, "remove"));
    assert_eq!((told.len(), code(&told)), (1, "unknown_peer"));
    assert!(
        plan.says(1, &moderate(2, "mute"))[1].contains("muted"),
        "nobody was closed for it"
    );
}

#[test]
fn who_was_removed_does_not_come_back_while_the_room_lasts() {
    let mut plan = Plan::new(RoomLimits::default());
    plan.hello(1, 1, "Ann");
    plan.hello(2, 2, "Bob");
    plan.hello(3, 3, "Cem");
    let why = r#"{"type":"error","code":"removed","message":"the owner of this room removed you"}"#;
    assert_eq!(
        plan.says(1, &moderate(2, "remove")),
        [
            "counted: Removed".to_owned(),
            format!("2: {why}"),
            "2: close 1008".into(),
            r##"1 3: {"type":"left","id":"#2"}"##.into(),
        ]
    );
    assert!(plan.breaks(2).is_empty(), "it is forgotten");
    let refused = |connection| {
        [
            format!("{connection}: {why}"),
            format!("{connection}: close 1008"),
        ]
    };
    assert_eq!(plan.hello(4, 2, "Rob"), refused(4));
    assert_eq!(plan.rooms.participant_count(), 2);

    plan.breaks(3);
    assert_eq!(
        plan.says(1, &moderate(3, "remove")),
        ["counted: Removed", r##"1: {"type":"left","id":"#3"}"##],
        "who is away can be removed too"
    );
    assert_eq!(plan.rooms.poll_timeout(), None, "and its grace is over");
    assert_eq!(plan.hello(5, 3, "Cem"), refused(5));
    assert_eq!(
        plan.hello_in("second-room-01234", 6, 2, "Bob").len(),
        1,
        "another room is not concerned"
    );
    plan.says(1, r#"{"type":"leave"}"#);
    assert_eq!(
        plan.hello(7, 2, "Bob"),
        [welcome(7, (2, 1), "", 2, false)],
        "a new room of that name begins anew"
    );
}

#[test]
fn what_a_room_remembers_of_the_removed_is_bounded() {
    let mut plan = Plan::new(RoomLimits::default());
    plan.hello(1, 1, "Ann");
    let secret = |n: u16| format!("{n:04x}").repeat(16);
    let enters = |plan: &mut Plan, connection: u64, n: u16| {
        let hello = hello(0, "Nn", 48_000, None).replace(&"00".repeat(32), &secret(n));
        plan.enters(ROOM, connection, &hello)
    };
    for n in 20_000..20_300 {
        let told = enters(&mut plan, n.into(), n);
        let (_, rest) = told[1].split_once(r#""id":""#).expect("a welcome");
        let text = moderate(9, "remove").replace(&id(9), &rest[..32]);
        assert_eq!(code(&plan.says(1, &text)[1..]), "removed");
        // An owner decides no more than 32 times a second for long.
        plan.passes(Duration::from_millis(50));
    }
    let (first, oldest) = (enters(&mut plan, 2, 20_000), enters(&mut plan, 3, 20_044));
    assert!(first[1].contains("welcome"), "the first is forgotten");
    assert_eq!(code(&oldest), "removed", "256 are not");
}

#[test]
fn a_locked_room_lets_in_who_knows_the_passphrase_and_who_was_in() {
    let mut plan = Plan::new(RoomLimits::default());
    plan.hello(1, 1, "Ann");
    plan.hello(2, 2, "Bob");
    plan.breaks(2);
    assert_eq!(
        plan.says(1, r#"{"type":"lock","passphrase":"open sesame"}"#),
        [
            "counted: Locked",
            r#"1: {"type":"locked","locked":true,"passphrase":"open sesame"}"#
        ]
    );
    plan.says(
        1,
        &format!(r#"{{"type":"signal","to":"{}","data":{{}}}}"#, id(2)),
    );
    let told = plan.hello(3, 2, "Bob");
    assert!(
        told[1].contains(r##""owner":"#1","locked":true"##),
        "who was in resumes without it"
    );
    assert_eq!(
        told[2..],
        [
            r#"3: {"type":"locked","locked":true,"passphrase":"open sesame"}"#,
            r##"3: {"type":"signal","from":"#1","data":{}}"##
        ],
        "and hears it before all else"
    );
    let told = plan.knocks(4, 3, None);
    assert_eq!(
        told,
        [
            r#"4: {"type":"error","code":"passphrase","message":"this room asks for a passphrase"}"#,
            "4: close 1008"
        ]
    );
    assert_eq!(code(&plan.knocks(5, 3, Some("open"))), "passphrase");
    assert_eq!(plan.rooms.participant_count(), 2);
    assert!(plan.knocks(6, 3, Some("open sesame"))[1].contains("welcome"));

    plan.says(1, r#"{"type":"lock","passphrase":"another"}"#);
    assert_eq!(code(&plan.knocks(7, 4, Some("open sesame"))), "passphrase");
    assert_eq!(
        plan.says(1, r#"{"type":"lock","passphrase":null}"#),
        [
            "counted: Unlocked",
            r#"1 3 6: {"type":"locked","locked":false,"passphrase":null}"#
        ]
    );
    assert!(plan.knocks(8, 4, Some("whatever"))[1].contains("welcome"));
}

#[test]
fn who_resumes_hears_a_passphrase_that_it_does_not_say() {
    let mut plan = Plan::new(RoomLimits::default());
    plan.knocks(1, 1, Some("first"));
    plan.knocks(2, 2, Some("first"));
    plan.breaks(2);
    let told = plan.knocks(3, 2, Some("first"));
    assert!(told[1].contains(r#""resumed":true"#), "{told:?}");
    assert_eq!(told.len(), 2, "it knows: {told:?}");
    // The server does not know yet that this connection is dead.
    plan.says(1, r#"{"type":"lock","passphrase":"second"}"#);
    let told = plan.knocks(4, 2, Some("first"));
    let last = told.last().expect("a message");
    let locked = r#"4: {"type":"locked","locked":true,"passphrase":"second"}"#;
    assert_eq!(last, locked);
    plan.breaks(4);
    plan.says(1, r#"{"type":"lock","passphrase":null}"#);
    let told = plan.knocks(5, 2, Some("second"));
    assert!(told[1].contains(r#""locked":false"#), "{told:?}");
    assert_eq!(told.len(), 2, "the welcome says it: {told:?}");
    // A newcomer gets to hear nothing that it did not say.
    plan.says(1, r#"{"type":"lock","passphrase":"third"}"#);
    let told = plan.knocks(6, 3, Some("second"));
    assert!(!told.concat().contains("third"), "{told:?}");
}

#[test]
fn wrong_passphrases_are_rationed() {
    let mut plan = Plan::new(RoomLimits::default());
    plan.knocks(1, 1, Some("right"));
    let told: Vec<_> = (2..20)
        .map(|connection| {
            let wrong = format!("wrong {connection}");
            code(&plan.knocks(connection, 2, Some(&wrong))).to_owned()
        })
        .collect();
    assert_eq!(told[..10], vec!["passphrase"; 10]);
    assert_eq!(told[10..], vec!["too_fast"; 8]);
    assert_eq!(
        code(&plan.knocks(20, 2, Some("right"))),
        "too_fast",
        "guesses are not even looked at"
    );
    plan.passes(Duration::from_secs(6));
    assert!(plan.knocks(21, 2, Some("right"))[1].contains("welcome"));
}

#[test]
fn a_server_that_starts_again_locks_the_room_again() {
    let mut plan = Plan::new(RoomLimits::default());
    assert!(
        plan.knocks(1, 2, Some("open sesame"))[0].contains(r#""locked":true"#),
        "the page that comes back first says what it knew"
    );
    assert_eq!(code(&plan.knocks(2, 3, None)), "passphrase");
    assert!(plan.knocks(3, 1, Some("open sesame"))[1].contains("welcome"));
}

#[test]
fn who_returns_with_the_passphrase_locks_the_room_again_though_strangers_were_first() {
    let why = r#"{"type":"error","code":"passphrase","message":"this room is locked as before, and asks for its passphrase"}"#;
    let mut plan = Plan::new(RoomLimits::default());
    plan.knocks(1, 4, None);
    let told = plan.returns(2, 1, Some("open sesame"));
    assert_eq!(told[..2], [format!("1: {why}"), "1: close 1008".into()]);
    let alone = welcome(2, (1, 1), "", 1, false).replace(r#""locked":false"#, r#""locked":true"#);
    assert_eq!(told[2], "counted: LockedAgain");
    assert_eq!(told[3..], [alone], "the room is made anew");
    assert_eq!(code(&plan.knocks(3, 4, None)), "passphrase");

    let mut plan = Plan::new(RoomLimits::default());
    plan.knocks(1, 4, None);
    plan.breaks(1);
    plan.knocks(2, 5, Some("open"));
    // One who knows it, but was not in before, locks nothing.
    let told = plan.knocks(3, 6, Some("open sesame"));
    assert!(told[1].contains(r#""locked":false"#), "{told:?}");
    plan.passes(Duration::from_millis(14_999));
    let told = plan.returns(4, 1, Some("open sesame"));
    assert_eq!(
        told[..8],
        [
            r##"2 3: {"type":"left","id":"#4"}"##.to_owned(),
            r##"2 3: {"type":"owner","id":"#5"}"##.into(),
            format!("2: {why}"),
            "2: close 1008".into(),
            r##"3: {"type":"left","id":"#5"}"##.into(),
            r##"3: {"type":"owner","id":"#6"}"##.into(),
            "counted: LockedAgain".into(),
            r#"3: {"type":"locked","locked":true,"passphrase":"open sesame"}"#.into(),
        ],
        "who has said it stays"
    );
    assert!(told[8].contains("joined"), "{told:?}");
    let owned = r##""owner":"#6","locked":true"##;
    assert!(told[9].contains(owned), "{told:?}");
    assert!(plan.breaks(2).is_empty(), "it is forgotten");
    let told = plan.returns(5, 7, Some("open"));
    assert_eq!(code(&told), "passphrase", "only the first one locks");
}

#[test]
fn a_passphrase_of_before_locks_no_room_that_is_open_by_right() {
    let is_open = |told: &[String]| {
        let welcome = told.last().expect("a welcome");
        assert!(welcome.contains(r#""locked":false"#), "{told:?}");
        assert!(!told.concat().contains("error"), "{told:?}");
    };
    let mut plan = Plan::new(RoomLimits::default());
    plan.knocks(1, 1, None);
    is_open(&plan.returns(2, 2, None));
    plan.passes(Duration::from_secs(15));
    is_open(&plan.returns(3, 3, Some("too late")));

    // A server that did not start just now has forgotten nothing.
    let mut plan = Plan::new(RoomLimits::default());
    plan.passes(Duration::from_secs(120));
    plan.knocks(1, 1, None);
    is_open(&plan.returns(2, 2, Some("evil")));

    // Nobody who was in before has to go, or hears a passphrase that it does not know.
    let mut plan = Plan::new(RoomLimits::default());
    plan.knocks(1, 1, None);
    plan.returns(2, 2, None);
    is_open(&plan.returns(3, 3, Some("evil")));

    let mut plan = Plan::new(RoomLimits::default());
    plan.knocks(1, 1, Some("x"));
    plan.says(1, r#"{"type":"lock","passphrase":null}"#);
    is_open(&plan.returns(2, 2, Some("x")));

    let mut plan = Plan::new(RoomLimits::default());
    plan.knocks(1, 1, None);
    plan.knocks(2, 2, None);
    plan.says(1, &moderate(2, "remove"));
    let told = plan.returns(3, 2, Some("mine"));
    assert_eq!(
        code(&told),
        "removed",
        "who may not come in decides nothing"
    );
    is_open(&plan.knocks(4, 3, None));
}

#[test]
fn stream_numbers_stay_and_are_not_used_early() {
    let mut plan = Plan::new(RoomLimits::default());
    plan.hello(1, 1, "Ann");
    let stream = |told: &[String]| {
        let welcome = told.last().expect("a welcome");
        let (_, rest) = welcome.split_once(r#""stream":"#).expect("a number");
        rest.split(',').next().expect("a number").to_owned()
    };
    assert_eq!(stream(&plan.hello(2, 2, "Bob")), "2");
    plan.breaks(2);
    assert_eq!(stream(&plan.hello(3, 2, "Bob")), "2", "it resumed");
    plan.says(3, r#"{"type":"leave"}"#);
    // Two short of all: each comes and goes, and takes the next number. 65,534 is the last.
    let Ok(ClientMessage::Hello(bob)) = parse(&hello(2, "Bob", 48_000, None)) else {
        panic!("Bob's hello")
    };
    for connection in 4..65_536 {
        let arrival = Arrival {
            connection: ConnectionId(connection),
            address: IpAddr::from([192, 0, 2, 1]),
            ice_servers: vec![],
        };
        let room = ROOM.parse().expect("a name");
        let _ = plan
            .rooms
            .handle_hello(arrival, room, bob.clone(), plan.now);
        plan.rooms
            .handle_message(ConnectionId(connection), ClientMessage::Leave, plan.now);
        while plan.rooms.poll_output().is_some() {}
    }
    let told = plan.hello(70_000, 3, "Cem");
    assert_eq!(stream(&told), "2", "the first that became free: {told:?}");
    assert_eq!(stream(&plan.hello(70_001, 4, "Dan")), "3");
}

fn offer(port: u16, hash: u8) -> RelayOffer {
    RelayOffer {
        port,
        certificate_hashes: [CertificateHash([hash; 32])].into(),
    }
}

#[test]
fn the_relay_is_told_who_comes_goes_and_is_muted() {
    let mut plan = Plan::with(RoomLimits::default(), Some(offer(4433, 0xab)));
    let hash = "ab".repeat(32);
    let told = plan.hello(1, 1, "Ann");
    assert_eq!(told[0], "relay: admit #1 with T1 as 1");
    let access = format!(r#""relay":{{"port":4433,"token":T1,"certificate_hashes":["{hash}"]}}"#);
    assert!(told[1].contains(&access), "{told:?}");
    let told = plan.hello(2, 2, "Bob");
    assert_eq!(told[0], "relay: admit #2 with T2 as 2");
    assert!(
        told.iter().all(|told| !told.contains("T1")),
        "Ann's is hers"
    );
    assert_ne!(plan.tokens[0], plan.tokens[1]);

    plan.breaks(2);
    let told = plan.hello(3, 2, "Bob");
    assert!(
        told.len() == 2 && told[1].contains(r#""token":T2"#),
        "sound goes on, so the token stays: {told:?}"
    );
    assert_eq!(plan.says(1, &moderate(2, "mute"))[0], "relay: mute T2 true");
    assert_eq!(
        plan.says(1, &moderate(2, "unmute"))[0],
        "relay: mute T2 false"
    );
    plan.says(1, &moderate(2, "mute"));
    plan.says(3, r#"{"type":"leave"}"#);
    let told = plan.hello(4, 2, "Bob");
    assert_eq!(
        told[..2],
        ["relay: admit #2 with T3 as 3", "relay: mute T3 true"],
        "to leave and come back does not help"
    );
    assert!(
        told.iter().any(|told| told.contains(r#""muted":true}"#)),
        "the others know: {told:?}"
    );
    assert_eq!(
        plan.says(1, &moderate(2, "unmute"))[0],
        "relay: mute T3 false"
    );
    plan.says(4, r#"{"type":"leave"}"#);
    assert_eq!(plan.hello(5, 2, "Bob")[0], "relay: admit #2 with T4 as 4");
    assert_eq!(
        plan.says(1, &moderate(2, "remove"))[3..],
        ["relay: withdraw T4", r##"1: {"type":"left","id":"#2"}"##]
    );
    plan.breaks(1);
    assert_eq!(
        plan.passes(Duration::from_secs(15)),
        ["relay: withdraw T1"],
        "the last one's too"
    );
    assert_eq!(
        plan.hello(6, 1, "Ann")[0],
        "relay: admit #1 with T5 as 1",
        "another life, another token"
    );
}

#[test]
fn everyone_is_told_of_a_new_certificate_with_the_token_that_is_theirs() {
    let mut plan = Plan::with(RoomLimits::default(), Some(offer(4433, 0xab)));
    plan.hello(1, 1, "Ann");
    plan.hello(2, 2, "Bob");
    plan.hello(3, 3, "Cem");
    plan.breaks(3);
    plan.rooms.handle_relay_offer(offer(4433, 0xcd));
    let relay = |connection: u8| {
        let hash = "cd".repeat(32);
        format!(
            r#"{connection}: {{"type":"relay","relay":{{"port":4433,"token":T{connection},"certificate_hashes":["{hash}"]}}}}"#
        )
    };
    assert_eq!(plan.told(), [relay(1), relay(2)]);
    let told = plan.hello(4, 3, "Cem");
    assert!(
        told[1].contains(&"cd".repeat(32)),
        "who was away learns it: {told:?}"
    );
}

#[test]
fn the_operator_sees_rooms_without_their_names() {
    let mut plan = Plan::new(RoomLimits::default());
    plan.hello(1, 1, "Ann");
    plan.hello(2, 2, "Bob");
    plan.breaks(2);
    plan.says(1, &moderate(1, "mute"));
    plan.says(1, r#"{"type":"lock","passphrase":"x"}"#);
    let status = serde_json::to_value(plan.rooms.status()).expect("JSON");
    let name: RoomName = ROOM.parse().expect("a name");
    let expected = serde_json::json!([{
        "room": format!("{name:?}"), "sample_rate_hz": 48_000, "participants": 2, "away": 1, "muted": 1, "locked": true,
    }]);
    assert_eq!(status, expected);
}
