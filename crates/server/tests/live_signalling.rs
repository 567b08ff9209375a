//! The signalling of `docs/protocol.md`, spoken to a real server over real WebSockets.

mod running;

use std::{
    fs,
    net::IpAddr,
    sync::Mutex,
    time::{Duration, Instant},
};

use antiphon_server::{
    Secret,
    ice::{IceServer, TurnService},
};
use futures_util::SinkExt;
use running::{Page, ROOM, Running, hello};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{
    Message,
    protocol::frame::{
        Frame,
        coding::{Data, OpCode},
    },
};

#[tokio::test]
async fn people_join_talk_rename_and_leave() {
    let server = Running::start(|_| {}).await;
    let (mut ann, welcome) = server.join(1).await;
    let ann_id = welcome["id"].clone();
    assert_eq!(
        welcome,
        json!({
            "type": "welcome", "version": 1, "id": ann_id, "stream": 1, "room": ROOM, "sample_rate_hz": 48000,
            "participants": [], "owner": ann_id, "locked": false, "muted": false, "ice_servers": [], "relay": null,
            "resumed": false,
        })
    );
    let (mut bob, welcome) = server.join(2).await;
    let bob_id = welcome["id"].clone();
    assert_eq!(
        welcome["participants"],
        json!([{ "id": ann_id, "stream": 1, "name": "Person 1", "present": true, "muted": false }])
    );
    let joined = json!({
        "type": "joined",
        "participant": { "id": bob_id, "stream": 2, "name": "Person 2", "present": true, "muted": false },
    });
    assert_eq!(ann.hear().await, joined);

    ann.say(json!({ "type": "signal", "to": bob_id, "data": { "kind": "lanes", "count": 4 } }))
        .await;
    let signal =
        json!({ "type": "signal", "from": ann_id, "data": { "kind": "lanes", "count": 4 } });
    assert_eq!(bob.hear().await, signal);
    bob.say(json!({ "type": "rename", "name": "B\u{7}b" }))
        .await;
    bob.say(json!({ "type": "rename", "name": "Bob" })).await;
    assert_eq!(
        ann.hear().await,
        json!({ "type": "renamed", "id": bob_id, "name": "Bob" })
    );
    ann.say(json!({ "type": "signal", "to": "0".repeat(32), "data": {} }))
        .await;
    assert_eq!(ann.hear().await["code"], "unknown_peer");
    bob.say(json!({ "type": "leave" })).await;
    assert_eq!(bob.closed().await, 1000);
    assert_eq!(
        ann.hear().await,
        json!({ "type": "left", "id": bob_id }),
        "ann stayed after her mistake"
    );
    assert_eq!(server.dropped("unknown_peer").await, 1);
    assert_eq!(server.dropped("bad_message").await, 1, "the name");
    assert_eq!(server.metric("antiphon_participants").await, 1);
    assert_eq!(
        server
            .metric("antiphon_messages_received_total{type=\"hello\"}")
            .await,
        2
    );
    assert_eq!(
        server
            .metric("antiphon_messages_sent_total{type=\"welcome\"}")
            .await,
        2
    );
}

#[tokio::test]
async fn a_dropped_connection_is_resumed() {
    let server = Running::start(|_| {}).await;
    let (mut ann, _) = server.join(1).await;
    let (bob, welcome) = server.join(2).await;
    let id = welcome["id"].clone();
    assert_eq!(ann.hear().await["type"], "joined");
    drop(bob);
    assert_eq!(ann.hear().await, json!({ "type": "away", "id": id }));
    let (_bob, welcome) = server.join(2).await;
    assert_eq!((&welcome["id"], &welcome["resumed"]), (&id, &json!(true)));
    assert_eq!(ann.hear().await, json!({ "type": "back", "id": id }));
}

#[tokio::test]
async fn the_grace_period_ends_by_itself() {
    let server = Running::start(|config| config.rooms.grace = Duration::from_millis(100)).await;
    let (mut ann, _) = server.join(1).await;
    let (bob, welcome) = server.join(2).await;
    let id = welcome["id"].clone();
    assert_eq!(ann.hear().await["type"], "joined");
    drop(bob);
    assert_eq!(ann.hear().await, json!({ "type": "away", "id": id }));
    assert_eq!(ann.hear().await, json!({ "type": "left", "id": id }));
    drop(ann);
    server.expect_metric("antiphon_rooms", 0).await;
    server.expect_metric("antiphon_connections", 0).await;
}

#[tokio::test]
async fn a_second_connection_replaces_the_first() {
    let server = Running::start(|_| {}).await;
    let (mut first, _) = server.join(1).await;
    let (_second, welcome) = server.join(1).await;
    assert_eq!(welcome["resumed"], true);
    assert_eq!(first.refused().await, ("replaced".into(), 1000));
    server.expect_metric("antiphon_connections", 1).await;
    assert_eq!(server.metric("antiphon_participants").await, 1);
}

#[tokio::test]
async fn what_breaks_the_protocol_is_told_counted_and_closed() {
    let server = Running::start(|_| {}).await;
    let other_version = json!({ "type": "hello", "version": 2 }).to_string();
    let wrong_field = json!({ "type": "leave", "surplus": 1 }).to_string();
    let before_hello = json!({ "type": "leave" }).to_string();
    let not_utf8 = Frame::message(vec![0xff; 4], OpCode::Data(Data::Text), true);
    for (message, code, reason) in [
        (Message::text("no JSON"), "bad_message", "bad_message"),
        (Message::text(wrong_field), "bad_message", "bad_message"),
        (Message::text(before_hello), "bad_message", "bad_message"),
        (Message::text(other_version), "bad_version", "bad_version"),
        (
            Message::text(" ".repeat(65_537)),
            "bad_message",
            "oversized",
        ),
        (Message::binary(vec![0; 4]), "bad_message", "not_text"),
        (Message::Frame(not_utf8), "bad_message", "not_text"),
    ] {
        let mut page = server.connect().await;
        let before = server.dropped(reason).await;
        page.send(message).await;
        assert_eq!(page.refused().await, (code.to_owned(), 1008), "{reason}");
        assert_eq!(server.dropped(reason).await, before + 1, "{reason}");
    }
    let (mut page, _) = server.join(1).await;
    page.say(hello(1)).await;
    assert_eq!(
        page.refused().await,
        ("bad_message".into(), 1008),
        "hello twice"
    );
}

#[tokio::test]
async fn a_frame_beyond_any_measure_ends_the_connection() {
    let server = Running::start(|_| {}).await;
    let (mut page, _) = server.join(1).await;
    page.send(Message::text("x".repeat(1 << 20))).await;
    server.expect_metric("antiphon_connections", 0).await;
    assert_eq!(server.dropped("oversized").await, 1);
}

#[tokio::test]
async fn whoever_sends_too_fast_is_stopped() {
    let server = Running::start(|config| config.connections.messages_per_s = 1).await;
    let (mut page, _) = server.join(1).await;
    for n in 0..40 {
        page.say(json!({ "type": "rename", "name": format!("Name {n}") }))
            .await;
    }
    assert_eq!(page.refused().await, ("too_fast".into(), 1008));
    assert_eq!(server.dropped("too_fast").await, 1);

    let server = Running::start(|_| {}).await;
    let (mut page, _) = server.join(1).await;
    for n in 0..200 {
        page.say(json!({ "type": "rename", "name": format!("Name {n}") }))
            .await;
    }
    assert_eq!(
        page.refused().await,
        ("too_fast".into(), 1008),
        "what is told to everybody counts as more than one"
    );

    let server = Running::start(|config| config.connections.bytes_per_s = 1_000).await;
    let (mut page, welcome) = server.join(1).await;
    page.say(json!({ "type": "signal", "to": welcome["id"], "data": { "x": "x".repeat(10_000) } }))
        .await;
    assert_eq!(
        page.refused().await,
        ("too_fast".into(), 1008),
        "bytes count too"
    );
}

#[tokio::test]
async fn a_new_connection_may_tell_everybody_no_more_than_the_one_before() {
    let server = Running::start(|config| config.connections.per_address = 8).await;
    let (mut page, welcome) = server.join(1).await;
    for n in 0..30 {
        page.say(json!({ "type": "rename", "name": format!("Name {n}") }))
            .await;
    }
    // All of it has been read when this comes back.
    page.say(json!({ "type": "signal", "to": welcome["id"], "data": {} }))
        .await;
    assert_eq!(page.hear().await["type"], "signal");
    let (mut again, welcome) = server.join(1).await;
    assert_eq!(welcome["resumed"], true);
    assert_eq!(page.refused().await, ("replaced".into(), 1000));
    let declined = renames_declined(&mut again, &welcome, 30).await;
    assert!(declined > 10, "{declined}");
    assert_eq!(server.dropped("not_now").await, declined);
}

/// How many of so many new names, said at once, nobody is told: the connection stays.
async fn renames_declined(page: &mut Page, welcome: &Value, count: u64) -> u64 {
    for n in 0..count {
        page.say(json!({ "type": "rename", "name": format!("Name {n}") }))
            .await;
    }
    page.say(json!({ "type": "signal", "to": welcome["id"], "data": {} }))
        .await;
    let mut declined = 0;
    loop {
        let heard = page.hear().await;
        if heard["type"] == "signal" {
            return declined;
        }
        assert_eq!(heard["code"], "not_now", "{heard}");
        declined += 1;
    }
}

#[tokio::test]
async fn who_changes_names_without_end_keeps_no_owner_at_the_same_address_from_muting() {
    let server = Running::start(|config| config.connections.per_address = 8).await;
    let (mut ann, _) = server.join(1).await;
    let (_bob, welcome) = server.join(2).await;
    assert_eq!(ann.hear().await["type"], "joined");
    let elsewhere = server.try_connect("another-room-0123456789", None).await;
    let mut eve = elsewhere.expect("connects");
    eve.say(hello(3)).await;
    let eves = eve.hear().await;
    let declined = renames_declined(&mut eve, &eves, 90).await;
    assert!(declined > 30, "{declined}");
    ann.say(json!({ "type": "moderate", "to": welcome["id"], "action": "mute" }))
        .await;
    assert_eq!(ann.hear().await["type"], "muted");
}

#[tokio::test]
async fn rooms_and_the_server_can_be_full() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let file = Mutex::new(fs::File::create(&log).expect("created"));
    // The test's tasks all run on its own thread.
    let _logging =
        tracing::subscriber::set_default(tracing_subscriber::fmt().with_writer(file).finish());
    let server = Running::start(|config| {
        config.rooms.participants_per_room = 1;
        config.rooms.participants = 2;
    })
    .await;
    let (_ann, _) = server.join(1).await;
    let mut page = server.connect().await;
    page.say(hello(2)).await;
    assert_eq!(page.refused().await, ("room_full".into(), 1008));
    let mut rooms = Vec::new();
    for (person, room) in [(3, "second-room-012345"), (4, "third-room-0123456")] {
        let mut page = server.try_connect(room, None).await.expect("connects");
        page.say(hello(person)).await;
        rooms.push(page);
    }
    assert_eq!(rooms[0].hear().await["type"], "welcome");
    assert_eq!(rooms[1].refused().await, ("server_full".into(), 1008));
    assert_eq!(
        (
            server.dropped("room_full").await,
            server.dropped("server_full").await
        ),
        (1, 1)
    );
    // No more than a line a second.
    let log = fs::read_to_string(log).expect("UTF-8");
    assert!(log.contains("--max-participants-per-room"), "{log}");
    assert!(log.contains("127.0.0.1") && !log.contains(ROOM), "{log}");
}

#[tokio::test]
async fn an_owner_mutes_removes_and_hands_on() {
    let server = Running::start(|_| {}).await;
    let (mut ann, welcome) = server.join(1).await;
    let ann_id = welcome["id"].clone();
    let (mut bob, welcome) = server.join(2).await;
    let bob_id = welcome["id"].clone();
    let (mut cem, welcome) = server.join(3).await;
    let cem_id = welcome["id"].clone();
    for _ in 0..2 {
        assert_eq!(ann.hear().await["type"], "joined");
    }
    assert_eq!(bob.hear().await["type"], "joined");
    let mute = json!({ "type": "moderate", "to": bob_id, "action": "mute" });
    cem.say(mute.clone()).await;
    assert_eq!(cem.hear().await["code"], "not_owner");
    ann.say(mute).await;
    for page in [&mut ann, &mut bob, &mut cem] {
        let muted = json!({ "type": "muted", "id": bob_id, "muted": true });
        assert_eq!(page.hear().await, muted);
    }
    ann.say(json!({ "type": "moderate", "to": bob_id, "action": "remove" }))
        .await;
    assert_eq!(bob.refused().await, ("removed".into(), 1008));
    let mut bob = server.connect().await;
    bob.say(hello(2)).await;
    assert_eq!(bob.refused().await, ("removed".into(), 1008));
    ann.say(json!({ "type": "leave" })).await;
    for message in [
        json!({ "type": "left", "id": bob_id }),
        json!({ "type": "left", "id": ann_id }),
        json!({ "type": "owner", "id": cem_id }),
    ] {
        assert_eq!(cem.hear().await, message);
    }
    for (action, count) in [("mute", 1), ("remove", 1), ("lock", 0)] {
        let metric = format!("antiphon_moderated_total{{action=\"{action}\"}}");
        assert_eq!(server.metric(&metric).await, count, "{action}");
    }
    assert_eq!(
        (
            server.dropped("removed").await,
            server.dropped("not_owner").await
        ),
        (2, 1)
    );
}

#[tokio::test]
async fn a_locked_room_asks_for_its_passphrase() {
    let server = Running::start(|_| {}).await;
    let (mut ann, _) = server.join(1).await;
    ann.say(json!({ "type": "lock", "passphrase": "open sesame" }))
        .await;
    let locked = json!({ "type": "locked", "locked": true, "passphrase": "open sesame" });
    assert_eq!(ann.hear().await, locked);
    let with = |person, passphrase: &str| {
        let mut hello = hello(person);
        hello["passphrase"] = passphrase.into();
        hello
    };
    for hello in [hello(2), with(2, "open")] {
        let mut page = server.connect().await;
        page.say(hello).await;
        assert_eq!(page.refused().await, ("passphrase".into(), 1008));
    }
    let mut bob = server.connect().await;
    bob.say(with(2, "open sesame")).await;
    assert_eq!(bob.hear().await["locked"], true);
    assert_eq!(server.dropped("passphrase").await, 2);
    // A second connection of Ann, who did not say it when she came.
    let mut again = server.connect().await;
    again.say(hello(1)).await;
    assert_eq!(again.hear().await["resumed"], true);
    assert_eq!(again.hear().await, locked);
    let welcomes = "antiphon_welcome_latency_seconds_count";
    // Not of those who were refused.
    server.expect_metric(welcomes, 3).await;
}

#[tokio::test]
async fn the_operator_is_told_who_guesses_and_what_owners_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let file = Mutex::new(fs::File::create(&log).expect("created"));
    // The test's tasks all run on its own thread.
    let _logging =
        tracing::subscriber::set_default(tracing_subscriber::fmt().with_writer(file).finish());
    let server = Running::start(|_| {}).await;
    let knock = async |person, passphrase: &str, returning: bool| {
        let mut page = server.connect().await;
        let mut hello = hello(person);
        hello["passphrase"] = passphrase.into();
        hello["returning"] = returning.into();
        page.say(hello).await;
        page
    };
    let _stranger = server.join(1).await;
    let mut owner = knock(2, "right", true).await;
    assert_eq!(owner.hear().await["locked"], true);
    owner
        .say(json!({ "type": "lock", "passphrase": "hush" }))
        .await;
    assert_eq!(owner.hear().await["type"], "locked");
    // A line a second.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    for guess in 0..11 {
        let mut page = knock(3, &format!("wrong {guess}"), false).await;
        page.refused().await;
    }
    let log = fs::read_to_string(log).expect("UTF-8");
    for words in ["\"relock\"", "\"lock\"", "127.0.0.1"] {
        assert!(log.contains(words), "{words}: {log}");
    }
    assert!(log.contains("too many wrong passphrases"), "{log}");
    for secret in [ROOM, "right", "hush"] {
        assert!(!log.contains(secret), "{log}");
    }
}

#[tokio::test]
async fn only_pages_of_this_server_may_connect() {
    let server =
        Running::start(|config| config.public_origin = Some("https://music.example.org".into()))
            .await;
    let own = format!("http://{}", server.address);
    for origin in [Some(own.as_str()), Some("https://music.example.org"), None] {
        assert!(server.try_connect(ROOM, origin).await.is_ok(), "{origin:?}");
    }
    let port = server.address.port();
    for origin in [
        "https://evil.example.org",
        "null",
        "http://localhost",
        "https://music.example.org.evil.example",
        "https://music.example.org:8443",
        &format!("ftp://{}", server.address),
        &format!("http://127.0.0.1.evil.example:{port}"),
    ] {
        assert_eq!(
            server.try_connect(ROOM, Some(origin)).await.err(),
            Some(403),
            "{origin}"
        );
    }
    assert_eq!(server.dropped("foreign_origin").await, 7);
    assert_eq!(server.try_connect("short", None).await.err(), Some(404));
}

#[tokio::test]
async fn strangers_cannot_fill_the_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let file = Mutex::new(fs::File::create(&log).expect("created"));
    // The test's tasks all run on its own thread.
    let _logging =
        tracing::subscriber::set_default(tracing_subscriber::fmt().with_writer(file).finish());
    let server = Running::start(|config| {
        config.connections.per_address = 1;
        // Else the port itself would soon talk to nobody here.
        config.trusted_proxies = vec![IpAddr::from([127, 0, 0, 1]).into()];
    })
    .await;
    let began = Instant::now();
    let origin = "https://evil.example.org/".repeat(100);
    let _one = server.connect().await;
    for _ in 0..20 {
        let refused = server.try_connect(ROOM, Some(&origin)).await;
        assert_eq!(refused.err(), Some(403));
        assert_eq!(server.try_connect(ROOM, None).await.err(), Some(429));
    }
    let seconds = began.elapsed().as_secs() as usize;
    let log = fs::read_to_string(log).expect("UTF-8");
    let lines: Vec<_> = log.lines().filter(|line| line.contains("WARN")).collect();
    assert!((1..=2 + seconds).contains(&lines.len()), "{log}");
    assert!(lines[0].contains("https://evil.example.org/"), "{log}");
    assert!(lines.iter().all(|line| line.len() < 400), "{log}");
}

#[tokio::test]
async fn nor_can_those_who_are_let_in() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let file = Mutex::new(fs::File::create(&log).expect("created"));
    // The test's tasks all run on its own thread.
    let _logging =
        tracing::subscriber::set_default(tracing_subscriber::fmt().with_writer(file).finish());
    let server = Running::start(|_| {}).await;
    let began = Instant::now();
    for _ in 0..20 {
        let (mut page, _) = server.join(1).await;
        page.send(Message::text("no JSON")).await;
        page.refused().await;
    }
    let seconds = began.elapsed().as_secs() as usize;
    let log = fs::read_to_string(log).expect("UTF-8");
    assert!((1..=2 + seconds).contains(&log.lines().count()), "{log}");
    assert!(log.contains("bad_message"), "{log}");
}

#[tokio::test]
async fn an_address_has_its_share_of_connections() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let file = Mutex::new(fs::File::create(&log).expect("created"));
    // The test's tasks all run on its own thread.
    let _logging =
        tracing::subscriber::set_default(tracing_subscriber::fmt().with_writer(file).finish());
    let server = Running::start(|config| config.connections.per_address = 2).await;
    let (_first, _second) = (server.connect().await, server.connect().await);
    assert_eq!(server.try_connect(ROOM, None).await.err(), Some(429));
    assert_eq!(server.dropped("too_many_connections").await, 1);
    let log = fs::read_to_string(log).expect("UTF-8");
    assert!(log.contains("127.0.0.1"), "{log}");
    assert!(log.contains("--max-connections-per-address"), "{log}");
}

#[tokio::test]
async fn hello_must_come_in_time() {
    let server =
        Running::start(|config| config.connections.hello_timeout = Duration::from_millis(50)).await;
    let mut page = server.connect().await;
    assert_eq!(page.closed().await, 1001, "it may try again");
    assert_eq!(server.dropped("hello_timeout").await, 1);
}

#[tokio::test]
async fn a_silent_connection_is_dropped_and_a_living_one_is_not() {
    let server = Running::start(|config| {
        config.connections.ping_interval = Duration::from_millis(100);
        // Long for a test, but a page that the machine keeps waiting must not look silent.
        config.connections.silence_timeout = Duration::from_secs(3);
    })
    .await;
    let (mut listening, _) = server.join(1).await;
    let (_deaf, welcome) = server.join(2).await; // it never reads, so it never answers a ping
    assert_eq!(listening.hear().await["type"], "joined");
    assert_eq!(
        listening.hear().await,
        json!({ "type": "away", "id": welcome["id"] })
    );
    assert_eq!(server.dropped("silent").await, 1);
    listening.say(json!({ "type": "leave" })).await;
    assert_eq!(listening.closed().await, 1000);
}

#[tokio::test]
async fn a_page_that_does_not_read_is_dropped_by_what_the_server_says_and_delays_nobody() {
    let server = Running::start(|config| {
        config.connections.bytes_per_s = 1 << 24;
        config.connections.messages_per_s = 5_000;
        // An address of fewer could not tell everybody as much as fills an outbox.
        config.connections.per_address = 2_000;
    })
    .await;
    let (mut ann, _) = server.join(1).await;
    let (_deaf, welcome) = server.join(2).await;
    let deaf = welcome["id"].clone();
    assert_eq!(ann.hear().await["type"], "joined");
    // The kernel's own buffers take some megabytes before the outbox fills.
    let large = json!({ "type": "signal", "to": deaf, "data": { "x": "x".repeat(60_000) } });
    for _ in 0..300 {
        ann.say(large.clone()).await;
    }
    ann.say(json!({ "type": "signal", "to": "0".repeat(32), "data": {} }))
        .await;
    let heard = ann.hear().await;
    assert_eq!(heard["code"], "unknown_peer", "signals cut nobody");
    let dropped = server.dropped("peer_slow").await;
    assert!(dropped > 0);
    let sent = "antiphon_messages_sent_total{type=\"signal\"}";
    assert_eq!(server.metric(sent).await + dropped, 300, "each counts once");
    for _ in 0..4_096 {
        ann.say(json!({ "type": "rename", "name": "A" })).await;
    }
    assert_eq!(ann.hear().await, json!({ "type": "away", "id": deaf }));
    assert_eq!(server.dropped("slow_client").await, 1);
    server.expect_metric("antiphon_connections", 1).await;
}

#[tokio::test]
async fn a_page_that_does_not_read_is_dropped_however_much_it_says() {
    for leaves in [false, true] {
        let server = Running::start(|config| {
            config.connections.bytes_per_s = 1 << 24;
            config.connections.messages_per_s = 5_000;
            // Long for a test, but until then the buffers must be full.
            config.connections.silence_timeout = Duration::from_secs(3);
        })
        .await;
        let (mut deaf, welcome) = server.join(1).await;
        let large =
            json!({ "type": "signal", "to": welcome["id"], "data": { "x": "x".repeat(60_000) } });
        // Until the kernel's buffers and its outbox are so full that nothing gets in any more.
        let mut dropped = 0;
        loop {
            for _ in 0..5 {
                deaf.say(large.clone()).await;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            let before = std::mem::replace(&mut dropped, server.dropped("peer_slow").await);
            if dropped == before + 5 {
                break;
            }
        }
        if leaves {
            deaf.say(json!({ "type": "leave" })).await;
        }
        let pings = async {
            // Until it is cut.
            while deaf.socket.send(Message::Ping("?".into())).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = server.expect_metric("antiphon_connections", 0) => {}
            () = pings => {}
        }
        assert_eq!(server.dropped("slow_client").await, 1, "leaves: {leaves}");
    }
}

#[tokio::test]
async fn everyone_is_told_when_the_server_stops() {
    let mut server = Running::start(|_| {}).await;
    let (mut joined, _) = server.join(1).await;
    let mut silent = server.connect().await;
    server.stop();
    for page in [&mut joined, &mut silent] {
        assert_eq!(page.refused().await, ("shutting_down".into(), 1001));
    }
    drop((joined, silent));
    server.ended.await.expect("no panic").expect("a good end");
}

#[tokio::test]
async fn a_page_that_will_not_go_does_not_keep_the_server() {
    let mut server = Running::start(|_| {}).await;
    let (_deaf, _) = server.join(1).await;
    server.stop();
    let ended = tokio::time::timeout(Duration::from_secs(8), server.ended).await;
    ended
        .expect("in time")
        .expect("no panic")
        .expect("a good end");
}

#[tokio::test]
async fn a_welcome_names_the_ice_servers() {
    let server = Running::start(|config| {
        config.ice.servers = vec!["stun:stun.example.org".parse::<IceServer>().expect("valid")];
        config.ice.turn = Some(TurnService {
            urls: vec!["turn:turn.example.org".into()],
            secret: Secret::new("north"),
            ttl_s: 3_600,
        });
    })
    .await;
    let (_page, welcome) = server.join(1).await;
    assert_eq!(
        welcome["ice_servers"][0],
        json!({ "urls": ["stun:stun.example.org"] })
    );
    let turn = &welcome["ice_servers"][1];
    assert_eq!(turn["urls"], json!(["turn:turn.example.org"]));
    let id = welcome["id"].as_str().expect("an id");
    assert!(
        turn["username"]
            .as_str()
            .is_some_and(|name| name.ends_with(id)),
        "{turn}"
    );
    assert_eq!(
        turn["credential"].as_str().map(str::len),
        Some(28),
        "20 bytes in base64"
    );
}

#[tokio::test]
async fn a_proxy_speaks_for_its_clients_only_if_it_is_trusted() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let file = Mutex::new(fs::File::create(&log).expect("created"));
    // The test's tasks all run on its own thread.
    let _logging =
        tracing::subscriber::set_default(tracing_subscriber::fmt().with_writer(file).finish());
    for (trusted, admitted) in [(vec![], 1), (vec![IpAddr::from([127, 0, 0, 1]).into()], 3)] {
        let server = Running::start(|config| {
            config.connections.per_address = 1;
            config.trusted_proxies = trusted;
        })
        .await;
        let mut upgraded = 0;
        let mut open = Vec::new();
        for client in ["192.0.2.1", "192.0.2.2", "198.51.100.9, 192.0.2.3"] {
            use tokio_tungstenite::{connect_async, tungstenite::client::IntoClientRequest};
            let mut request = format!("ws://{}/ws/{ROOM}", server.address)
                .into_client_request()
                .expect("a request");
            request
                .headers_mut()
                .insert("x-forwarded-for", client.parse().expect("a header"));
            if let Ok(connection) = connect_async(request).await {
                upgraded += 1;
                open.push(connection);
            }
        }
        assert_eq!(upgraded, admitted);
    }
    let log = fs::read_to_string(log).expect("UTF-8");
    let advice = "Use --trusted-proxy 127.0.0.1";
    assert_eq!(log.matches(advice).count(), 1, "{log}");
}
