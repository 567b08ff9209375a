//! The relay over real QUIC, on the loopback interface: what a page sends, and what others get of it, byte for byte.

mod running;

use std::{
    collections::HashMap,
    fs,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use antiphon_core::{
    SampleFormat, SampleRate,
    wire::{self, AudioHeader, Datagram, MAX_DATAGRAM_BYTES, MIX_STREAM, Probe, parse},
};
use antiphon_server::{
    Config, RelayConfig, StartError, TlsFiles,
    media::{CertificateHash, Media, MediaCommand, MixFormat, ParticipantMedia, Token},
    relay::{BoundRelay, Lifetime, RunningRelay, control::MAX_LINE_BYTES},
    signalling::{ParticipantId, RoomName},
};
use bytes::Bytes;
use data_encoding::HEXLOWER;
use quinn_udp::{Transmit, UdpSocketState};
use serde_json::{Value, json};
use tokio::{
    net::UdpSocket,
    runtime,
    task::AbortHandle,
    time::{MissedTickBehavior, timeout},
};
use web_transport_quinn::{
    ALPN, Client, ClientBuilder, ClientError, RecvStream, SendStream, Session, SessionError,
    WebTransportError, http::HeaderValue, http::header, proto::ConnectRequest, quinn,
};

const SOON: Duration = Duration::from_secs(30);
const ROOM: &str = "k3J9x0aQbW2mT7uYpL5sNg";

/// A relay, and the hub's end of the seam.
struct Relay {
    running: RunningRelay,
    media: Media,
    address: SocketAddr,
}

impl Relay {
    fn start() -> Self {
        Self::start_with(Lifetime::default())
    }

    fn start_with(lifetime: Lifetime) -> Self {
        Self::start_as(&Config::default(), &RelayConfig::default(), lifetime)
    }

    fn start_as(config: &Config, relay: &RelayConfig, lifetime: Lifetime) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let (relay, media) = BoundRelay::bind(config, relay, any, lifetime).expect("binds");
        let address = relay.address();
        assert_eq!(media.offer().port, address.port());
        let running = relay.start().expect("starts");
        Self {
            running,
            media,
            address,
        }
    }

    fn admit_to(&self, room: &str, stream: u16) -> Token {
        let token = Token::random();
        self.media.tell(MediaCommand::Admit {
            token,
            room: room.parse().expect("a room"),
            participant: ParticipantId::of_secret(&[stream as u8; 32]),
            stream,
            sample_rate_hz: 48_000.try_into().expect("a rate"),
        });
        token
    }

    fn admit(&self, stream: u16) -> Token {
        self.admit_to(ROOM, stream)
    }

    fn request(&self, token: Token) -> ConnectRequest {
        request(self.address, token)
    }

    async fn connect(&self, token: Token) -> Session {
        self.connect_by(self.address, token).await
    }

    async fn connect_by(&self, address: SocketAddr, token: Token) -> Session {
        let client = client(&self.media.offer().certificate_hashes);
        let connected = client.connect(request(address, token)).await;
        connected.expect("connects")
    }

    /// Admits and connects.
    async fn join(&self, stream: u16) -> Page {
        let token = self.admit(stream);
        let session = self.connect(token).await;
        Page { token, session }
    }

    /// Waits until the operator's view of a participant is as wanted.
    async fn expect(&self, stream: u16, wanted: impl Fn(&ParticipantMedia) -> bool) {
        self.until(stream, |one| one.is_some_and(&wanted)).await;
    }

    /// Waits until a participant has no session.
    async fn expect_gone(&self, stream: u16) {
        self.until(stream, |one| one.is_none()).await;
    }

    async fn until(&self, stream: u16, is_so: impl Fn(Option<&ParticipantMedia>) -> bool) {
        let reached = async {
            loop {
                let status = self.media.status();
                let mut participants = status.rooms.iter().flat_map(|room| &room.participants);
                if is_so(participants.find(|one| one.stream == stream)) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(SOON, reached).await.expect("the status is reached");
    }
}

fn request(address: SocketAddr, token: Token) -> ConnectRequest {
    let token = serde_json::to_string(&token).expect("serialises");
    let url = format!("https://{address}/relay/{}", token.trim_matches('"'));
    ConnectRequest::new(url.parse::<url::Url>().expect("a URL"))
}

/// A line to the relay on which one packet of 50 from there is lost: where it begins.
async fn lossy_line(relay: SocketAddr) -> (SocketAddr, AbortOnDrop) {
    let here = SocketAddr::from(([127, 0, 0, 1], 0));
    let near = UdpSocket::bind(here).await.expect("binds");
    let far = UdpSocket::bind(here).await.expect("binds");
    far.connect(relay).await.expect("has an address");
    let begin = near.local_addr().expect("is bound");
    let carrying = tokio::spawn(async move {
        let (mut up, mut down) = ([0; 2_048], [0; 2_048]);
        let mut page = None;
        let mut carried = 0;
        loop {
            tokio::select! {
                Ok((length, from)) = near.recv_from(&mut up) => {
                    page = Some(from);
                    let _ = far.send(&up[..length]).await;
                }
                Ok(length) = far.recv(&mut down) => {
                    carried += 1;
                    if let Some(page) = page.filter(|_| carried % 50 != 0) {
                        let _ = near.send_to(&down[..length], page).await;
                    }
                }
            }
        }
    });
    (begin, AbortOnDrop(carrying.abort_handle()))
}

/// A client that takes these certificates, and no others.
fn client(hashes: &[CertificateHash]) -> Client {
    let hashes = hashes.iter().map(|hash| hash.0.to_vec()).collect();
    ClientBuilder::new()
        .with_server_certificate_hashes(hashes)
        .expect("a client")
}

struct Page {
    token: Token,
    session: Session,
}

impl Page {
    fn send(&self, datagram: &[u8]) {
        self.session
            .send_datagram(Bytes::copy_from_slice(datagram))
            .expect("sent");
    }

    async fn receive(&self) -> Bytes {
        timeout(SOON, self.session.read_datagram())
            .await
            .expect("a datagram in time")
            .expect("a datagram")
    }

    /// Opens the control stream and says what to forward. The relay knows it when the others hear of it: [`Control::wanted`].
    async fn listen(&self, forward: &[u16]) -> Control {
        let mut control = Control::open(&self.session).await;
        control.listen(forward).await;
        control
    }

    /// The code that the relay closes the session with.
    async fn closed(&self) -> u32 {
        closed(&self.session).await
    }
}

async fn closed(session: &Session) -> u32 {
    match timeout(SOON, session.closed())
        .await
        .expect("closed in time")
    {
        SessionError::WebTransportError(WebTransportError::Closed(code, reason)) => {
            assert!(!reason.is_empty());
            code
        }
        other => panic!("closed without a code: {other}"),
    }
}

struct Control {
    sender: SendStream,
    receiver: RecvStream,
    unread: Vec<u8>,
}

impl Control {
    async fn open(session: &Session) -> Self {
        let (sender, receiver) = session.open_bi().await.expect("opens");
        Self {
            sender,
            receiver,
            unread: Vec::new(),
        }
    }

    async fn say(&mut self, message: Value) {
        let line = format!("{message}\n");
        self.sender.write_all(line.as_bytes()).await.expect("said");
    }

    async fn listen(&mut self, forward: &[u16]) {
        let message = json!({"type": "listen", "forward": forward, "mix": null, "opus": true});
        self.say(message).await;
    }

    /// Waits until so many take the stream.
    async fn wanted(&mut self, listeners: u64) {
        while self.hear("wanted").await["listeners"] != listeners {}
    }

    /// The next message of a type.
    async fn hear(&mut self, kind: &str) -> Value {
        let next = async {
            loop {
                if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = self.unread.drain(..=end).collect();
                    let message: Value = serde_json::from_slice(&line).expect("JSON");
                    if message["type"] == kind {
                        return message;
                    }
                    continue;
                }
                let mut chunk = [0; 1_024];
                let read = self.receiver.read(&mut chunk).await.expect("readable");
                let length = read.expect("not at its end");
                self.unread.extend_from_slice(&chunk[..length]);
            }
        };
        timeout(SOON, next).await.expect("something to hear")
    }
}

/// An audio datagram of 128 stereo frames, all of whose bytes tell which it is.
fn audio(sequence: u32) -> Vec<u8> {
    let header = AudioHeader {
        format: SampleFormat::S16,
        rate: SampleRate::Hz48000,
        channels: 2,
        stream: 0,
        frames: 128,
        sequence,
        timestamp: u64::from(sequence) * 128,
    };
    let mut bytes = vec![sequence as u8; header.datagram_bytes()];
    header.write(&mut bytes);
    bytes
}

/// The same as others get it.
fn audio_from(stream: u16, sequence: u32) -> Vec<u8> {
    let mut bytes = audio(sequence);
    bytes[4..6].copy_from_slice(&stream.to_le_bytes());
    bytes
}

fn probe(stream: u16, id: u32) -> [u8; 24] {
    let probe = Probe {
        stream,
        id,
        time_ns: 7_000,
        replied_ns: None,
    };
    probe.to_bytes()
}

#[tokio::test]
async fn two_hear_each_other_to_the_byte() {
    let relay = Relay::start();
    let (a, b) = (relay.join(1).await, relay.join(2).await);
    let mut a_control = a.listen(&[2, 1]).await;
    let mut b_control = b.listen(&[1]).await;
    a_control.wanted(1).await;
    b_control.wanted(1).await;
    for sequence in 0..100 {
        a.send(&audio(sequence));
        assert_eq!(b.receive().await, audio_from(1, sequence));
        b.send(&audio(sequence + 1));
        assert_eq!(
            a.receive().await,
            audio_from(2, sequence + 1),
            "and not its own"
        );
    }
    let statistics = loop {
        let statistics = b_control.hear("statistics").await;
        if statistics["forwarded"] == 100 {
            break statistics;
        }
    };
    assert_eq!(statistics["aged"], 0);
    assert_eq!(statistics["over_rate"], 0);
    assert_eq!(statistics["mix_us"], Value::Null);
    assert!(statistics["rtt_us"].as_u64().is_some_and(|us| us > 0));
    relay.running.stop().await.expect("stops");
}

#[tokio::test]
async fn a_copy_goes_no_further_and_a_sender_hears_what_was_lost_on_the_way_to_the_relay() {
    let relay = Relay::start();
    let (a, b) = (relay.join(1).await, relay.join(2).await);
    let mut a_control = a.listen(&[]).await;
    b.listen(&[1]).await;
    a_control.wanted(1).await;
    for sequence in (0..100).filter(|sequence| sequence % 10 != 5) {
        a.send(&audio(sequence));
        a.send(&audio(sequence));
        assert_eq!(b.receive().await, audio_from(1, sequence));
    }
    let told = async {
        loop {
            let statistics = a_control.hear("statistics").await;
            if statistics["received"] == 90 {
                return statistics;
            }
        }
    };
    let statistics = timeout(SOON, told).await.expect("all are counted");
    assert_eq!(statistics["missing"], 10);
    // It may begin anew with another session.
    a.session.close(0, b"over");
    relay.expect_gone(1).await;
    let a = Page {
        session: relay.connect(a.token).await,
        ..a
    };
    let mut a_control = a.listen(&[]).await;
    a_control.wanted(1).await;
    a.send(&audio(3));
    assert_eq!(b.receive().await, audio_from(1, 3));
}

/// A stream of samples as it comes where copies are sent.
struct Copied {
    stream: u16,
    /// The newest datagram, without its copy.
    last: Option<(u32, Vec<u8>)>,
    /// Copies that came of the datagram before.
    copies: usize,
}

impl Copied {
    fn of(stream: u16) -> Self {
        Self {
            stream,
            last: None,
            copies: 0,
        }
    }

    /// False if it is not of this stream.
    fn hear(&mut self, datagram: &[u8]) -> bool {
        let Ok(Datagram::Audio(header, _, copy)) = parse(datagram) else {
            panic!("no samples: {datagram:?}")
        };
        if header.stream != self.stream {
            return false;
        }
        let alone = wire::without_copy(datagram);
        if let Some((last, before)) = self.last.replace((header.sequence, alone.to_vec())) {
            assert!(last < header.sequence, "it came a second time");
            if !copy.is_empty() && last + 1 == header.sequence {
                let mut wanted = [0; MAX_DATAGRAM_BYTES];
                let length = wire::write_copy(&before, alone, &mut wanted).expect("fits");
                assert_eq!(copy, &wanted[..length]);
                self.copies += 1;
            }
        }
        true
    }
}

#[tokio::test]
async fn a_downlink_that_loses_some_gets_copies_within_the_next_datagram_and_no_other_does() {
    let relay = Relay::start();
    let (a, c) = (relay.join(1).await, relay.join(3).await);
    let (line, _carrying) = lossy_line(relay.address).await;
    let token = relay.admit(2);
    let session = relay.connect_by(line, token).await;
    let b = Page { token, session };
    let mut a_control = a.listen(&[]).await;
    let _c_control = c.listen(&[1]).await;
    let mut b_control = Control::open(&b.session).await;
    let source = json!({"stream": 1, "gain": 1, "pan": 0, "muted": false});
    b_control
        .say(json!({"type": "listen", "forward": [1],
            "mix": {"format": 24, "packet_frames": 64, "sources": [source]}, "opus": false}))
        .await;
    a_control.wanted(2).await;
    let _playing = play(a.session.clone(), 4_000);
    let (mut forwarded, mut mixed) = (Copied::of(1), Copied::of(MIX_STREAM));
    let hear_copies = async {
        while forwarded.copies < 200 || mixed.copies < 200 {
            let datagram = b.receive().await;
            if forwarded.hear(&datagram) {
                let heard = c.receive().await;
                assert_eq!(wire::without_copy(&heard), heard, "as it was sent");
            } else {
                assert!(mixed.hear(&datagram));
            }
        }
    };
    timeout(SOON, hear_copies).await.expect("copies in time");
    relay.expect(2, |b| b.copies && b.lost > 0).await;
    relay.expect(3, |c| !c.copies).await;
}

#[tokio::test]
async fn nothing_is_sent_to_who_did_not_ask() {
    let relay = Relay::start();
    let (a, b, c) = (
        relay.join(1).await,
        relay.join(2).await,
        relay.join(3).await,
    );
    let elsewhere = relay.admit_to("another-room-of-others", 1);
    let elsewhere = relay.connect(elsewhere).await;
    let mut a_control = a.listen(&[]).await;
    let mut b_control = b.listen(&[1]).await;
    let mut other_control = Control::open(&elsewhere).await;
    other_control.listen(&[1, 2, 3]).await;
    assert_eq!(other_control.hear("wanted").await["listeners"], 0);
    a_control.wanted(1).await;
    a.send(&audio(1));
    assert_eq!(b.receive().await, audio_from(1, 1));
    // Whatever else had been sent would come before this.
    a.send(&probe(3, 1));
    assert_eq!(c.receive().await[..], probe(1, 1));

    b_control.listen(&[]).await;
    a_control.wanted(0).await;
    a.send(&audio(2));
    a.send(&probe(2, 2));
    assert_eq!(
        b.receive().await[..],
        probe(1, 2),
        "not what it no longer takes"
    );
    let elsewhere = timeout(Duration::ZERO, elsewhere.read_datagram()).await;
    assert!(elsewhere.is_err(), "numbers are those of one room");
}

#[tokio::test]
async fn probes_and_reports_go_where_their_number_says() {
    let relay = Relay::start();
    let (a, b) = (relay.join(1).await, relay.join(2).await);
    a.send(&probe(0, 9));
    let reply = a.receive().await;
    assert_eq!((reply[1], &reply[2..16]), (3, &probe(0, 9)[2..16]));
    let replied = |reply: &[u8]| u64::from_le_bytes(reply[16..24].try_into().expect("8 bytes"));
    assert_ne!(replied(&reply), 0);
    a.send(&probe(0, 10));
    let later = a.receive().await;
    assert!(replied(&later) > replied(&reply), "the clock goes on");

    a.send(&probe(2, 11));
    let mut arrived = b.receive().await.to_vec();
    assert_eq!(arrived, probe(1, 11));
    // As a page answers: the number it came with, and so back to where it came from.
    arrived[1] = 3;
    arrived[16..24].copy_from_slice(&5_u64.to_le_bytes());
    b.send(&arrived);
    let mut expected = arrived.clone();
    expected[2..4].copy_from_slice(&2_u16.to_le_bytes());
    assert_eq!(a.receive().await, expected);

    let mut report = [7; 92];
    report[..2].copy_from_slice(&[1, 4]);
    report[54..56].copy_from_slice(&2_u16.to_le_bytes());
    a.send(&report);
    report[54..56].copy_from_slice(&1_u16.to_le_bytes());
    assert_eq!(b.receive().await[..], report);
    // To nobody: no harm.
    a.send(&probe(77, 1));
    a.send(&probe(0, 12));
    assert_eq!(a.receive().await[4], 12);
}

#[tokio::test]
async fn nobody_is_flooded_with_probes_and_they_take_nothing_from_the_sound() {
    let relay = Relay::start();
    let (a, b, c) = (
        relay.join(1).await,
        relay.join(2).await,
        relay.join(3).await,
    );
    let mut a_control = a.listen(&[]).await;
    let _listening = b.listen(&[1]).await;
    a_control.wanted(1).await;
    const FLOOD: u32 = 5_000;
    for id in 0..FLOOD {
        a.send(&probe(2, id));
        if id % 100 == 0 {
            // The relay keeps up.
            a.send(&probe(0, id));
            a.receive().await;
        }
    }
    a.send(&audio(1));
    let mut passed_on = 0;
    while b.receive().await != audio_from(1, 1) {
        passed_on += 1;
    }
    assert!((50..FLOOD / 5).contains(&passed_on), "{passed_on}");
    while a_control.hear("statistics").await["over_rate"] != FLOOD - passed_on {}
    c.send(&probe(2, 1));
    assert_eq!(b.receive().await[..], probe(3, 1), "others may still");
}

/// A line to the relay that keeps the newest packet which a page sent by it: where it begins, where it leaves, and what it keeps.
async fn recording_line(
    relay: SocketAddr,
) -> (SocketAddr, std::net::UdpSocket, Recorded, AbortOnDrop) {
    let here = SocketAddr::from(([127, 0, 0, 1], 0));
    let near = UdpSocket::bind(here).await.expect("binds");
    let far = UdpSocket::bind(here).await.expect("binds");
    far.connect(relay).await.expect("has an address");
    let far = far.into_std().expect("a socket");
    let leaves = far.try_clone().expect("a socket");
    let far = UdpSocket::from_std(far).expect("a socket");
    let begin = near.local_addr().expect("is bound");
    let recorded = Recorded::default();
    let newest = Arc::clone(&recorded);
    let carrying = tokio::spawn(async move {
        let (mut up, mut down) = ([0; 2_048], [0; 2_048]);
        let mut page = None;
        loop {
            tokio::select! {
                Ok((length, from)) = near.recv_from(&mut up) => {
                    page = Some(from);
                    *newest.lock().expect("whole") = up[..length].to_vec();
                    let _ = far.send(&up[..length]).await;
                }
                Ok(length) = far.recv(&mut down) => {
                    if let Some(page) = page {
                        let _ = near.send_to(&down[..length], page).await;
                    }
                }
            }
        }
    });
    (
        begin,
        leaves,
        recorded,
        AbortOnDrop(carrying.abort_handle()),
    )
}

type Recorded = Arc<Mutex<Vec<u8>>>;

/// Sends that packet until told to end, as fast as it goes.
fn flood(socket: &std::net::UdpSocket, to: SocketAddr, packet: &[u8], is_over: &AtomicBool) {
    let state = UdpSocketState::new(socket.into()).expect("a socket");
    let many = packet.repeat(state.max_gso_segments().clamp(1, 40));
    while !is_over.load(Ordering::Relaxed) {
        let transmit = Transmit {
            destination: to,
            ecn: None,
            contents: &many,
            segment_size: Some(packet.len()),
            src_ip: None,
        };
        let _ = state.try_send(socket.into(), &transmit);
    }
}

#[tokio::test]
async fn who_sends_the_most_loses_some_while_more_comes_than_the_relay_can_do_and_nobody_else() {
    let relay = Relay::start();
    let (begin, leaves, recorded, _carrying) = recording_line(relay.address).await;
    let hostile = relay.admit_to("of-who-floods-the-relay", 7);
    let hostile = relay.connect_by(begin, hostile).await;
    let (a, b) = (relay.join(1).await, relay.join(2).await);
    let mut a_control = a.listen(&[]).await;
    let _listening = b.listen(&[1]).await;
    a_control.wanted(1).await;
    while recorded.lock().expect("whole").len() < audio(1).len() {
        hostile.send_datagram(audio(1).into()).expect("sent");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // It has to be decrypted to be known for one that came before. And the first packet of a connection (RFC 9000, section 17.2.2), in whose keys nothing can be
    // read, for no other costs as much: by itself the former may be no more than the relay can do.
    let again = recorded.lock().expect("whole").clone();
    let mut initial = [0; 1_200];
    initial[..18].copy_from_slice(&[
        0xc3, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0x44, 0x9e,
    ]);
    let stranger = std::net::UdpSocket::bind(("127.0.0.1", 0)).expect("binds");
    let is_over = Arc::new(AtomicBool::new(false));
    let flooding = (leaves.try_clone().expect("a socket"), again.clone());
    let floods = [flooding, (stranger, initial.to_vec())].map(|(socket, packet)| {
        let (is_over, to) = (Arc::clone(&is_over), relay.address);
        thread::spawn(move || flood(&socket, to, &packet, &is_over))
    });
    let over_rate = |stream| {
        let status = relay.media.status();
        let mut participants = status.rooms.iter().flat_map(|room| &room.participants);
        let one = participants.find(|one| one.stream == stream);
        one.map_or(0, |one| one.over_rate)
    };
    let mut beat = tokio::time::interval(Duration::from_secs(1) / 375);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let limited = async {
        while over_rate(7) < 1_000 {
            beat.tick().await;
            // It stays.
            let _ = hostile.send_datagram(audio(1).into());
        }
    };
    let limited = timeout(SOON, limited).await;
    is_over.store(true, Ordering::Relaxed);
    for flood in floods {
        flood.join().expect("no panic");
    }
    limited.expect("it loses some");
    // The limit holds for a while, and now the thread could take all of this.
    let (mut sent, mut heard) = (0, 0);
    let playing = async {
        while sent < 750 {
            tokio::select! {
                _ = beat.tick() => {
                    sent += 1;
                    a.send(&audio(sent));
                    for _ in 0..10 {
                        let _ = leaves.send(&again);
                    }
                }
                datagram = b.session.read_datagram() => {
                    datagram.expect("a datagram");
                    heard += 1;
                }
            }
        }
    };
    timeout(SOON, playing).await.expect("in time");
    assert!(heard > 700, "{heard} of 750");
    assert_eq!((over_rate(1), over_rate(2)), (0, 0));
}

#[tokio::test]
async fn what_does_not_match_the_protocol_is_dropped_and_the_rest_goes_on() {
    let relay = Relay::start();
    let (a, b) = (relay.join(1).await, relay.join(2).await);
    let mut a_control = a.listen(&[]).await;
    let _listening = b.listen(&[1]).await;
    a_control.wanted(1).await;
    let changed = |mut bytes: Vec<u8>, at: usize, value: u8| {
        bytes[at] = value;
        bytes
    };
    let mut report = [0; 92];
    report[..2].copy_from_slice(&[1, 4]);
    let too_long = [audio(1), vec![0; MAX_DATAGRAM_BYTES]].concat();
    let malformed = [
        vec![],
        vec![1],
        vec![0; 300],
        audio(1)[..20].to_vec(),
        too_long[..MAX_DATAGRAM_BYTES + 1].to_vec(),
        changed(audio(1), 0, 2),
        changed(audio(1), 1, 5),
        changed(audio(1), 4, 2),
        changed(audio(1), 5, 0xff),
        probe(2, 1)[..23].to_vec(),
        changed(probe(0, 1).to_vec(), 1, 3),
        report.to_vec(),
        changed(report.to_vec(), 54, 0xff)[..91].to_vec(),
    ];
    for bytes in &malformed {
        a.send(bytes);
    }
    a.send(&audio(9));
    assert_eq!(b.receive().await, audio_from(1, 9));
    let longest = &too_long[..MAX_DATAGRAM_BYTES];
    a.send(longest);
    assert_eq!(b.receive().await[6..], longest[6..]);
}

#[tokio::test]
async fn the_muted_are_not_heard_but_still_measured() {
    let relay = Relay::start();
    let (a, b) = (relay.join(1).await, relay.join(2).await);
    let mut a_control = a.listen(&[]).await;
    let _listening = b.listen(&[1]).await;
    a_control.wanted(1).await;
    let mute = |muted| {
        relay.media.tell(MediaCommand::Mute {
            token: a.token,
            muted,
        });
    };
    mute(true);
    // The relay has done as it was told before it reads what is sent now.
    relay.join(3).await;
    a.send(&audio(1));
    a.send(&probe(2, 1));
    assert_eq!(b.receive().await[..], probe(1, 1));
    mute(false);
    relay.join(4).await;
    a.send(&audio(2));
    assert_eq!(b.receive().await, audio_from(1, 2));
}

#[tokio::test]
async fn sessions_share_the_work_and_the_fifth_is_too_many() {
    let relay = Relay::start();
    let a = relay.join(1).await;
    let b = relay.admit(2);
    let mut lanes = Vec::new();
    for _ in 0..4 {
        lanes.push(relay.connect(b).await);
    }
    assert_eq!(closed(&relay.connect(b).await).await, 3);
    let mut b_control = Control::open(&lanes[3]).await;
    b_control.listen(&[1]).await;
    let mut a_control = a.listen(&[]).await;
    a_control.wanted(1).await;
    for turn in 0..8 {
        a.send(&audio(turn));
        let mut reading: Vec<_> = lanes
            .iter()
            .map(|lane| Box::pin(lane.read_datagram()))
            .collect();
        let (first, ..) = timeout(SOON, futures_util::future::select_all(&mut reading))
            .await
            .expect("one of them brings it");
        assert_eq!(first.expect("a datagram"), audio_from(1, turn));
    }
    relay
        .expect(2, |b| b.sessions == 4 && b.forwarded == 1)
        .await;
    // One goes, and the others do its part; its place is free again.
    lanes.swap_remove(0).close(0, b"");
    relay
        .expect(2, |b| b.sessions == 3 && b.forwarded == 1)
        .await;
    let again = relay.connect(b).await;
    again
        .send_datagram(Bytes::copy_from_slice(&probe(0, 1)))
        .expect("sent");
    let reply = timeout(SOON, again.read_datagram()).await;
    assert_eq!(reply.expect("in time").expect("a reply")[4], 1);
}

#[tokio::test]
async fn a_session_that_is_about_to_end_gets_no_more_sound_and_what_comes_by_it_is_taken() {
    let relay = Relay::start();
    let a = relay.join(1).await;
    let b = relay.join(2).await;
    let (mut a_control, mut b_control) = (a.listen(&[2]).await, b.listen(&[1]).await);
    a_control.wanted(1).await;
    b_control.wanted(1).await;
    let other = relay.connect(b.token).await;
    relay.expect(2, |b| b.sessions == 2).await;
    let mut retiring = Control::open(&other).await;
    retiring.say(json!({"type": "retire"})).await;
    relay.expect(2, |b| b.sessions == 1).await;
    for sequence in 0..20 {
        a.send(&audio(sequence));
        assert_eq!(b.receive().await, audio_from(1, sequence));
        let datagram = Bytes::from(audio(sequence));
        other.send_datagram(datagram).expect("it is open");
        assert_eq!(a.receive().await, audio_from(2, sequence));
    }
    other.close(0, b"");
    // The only one goes on.
    b_control.say(json!({"type": "retire"})).await;
    b_control.listen(&[1, 3]).await;
    let _c = relay.join(3).await;
    relay
        .expect(2, |b| b.sessions == 1 && b.forwarded == 2)
        .await;
    a.send(&audio(20));
    assert_eq!(b.receive().await, audio_from(1, 20));
}

#[tokio::test]
async fn sessions_that_are_about_to_end_are_ended_where_they_are_too_many_or_their_participant_has_left()
 {
    let relay = Relay::start();
    let a = relay.join(1).await;
    let mut retired = Vec::new();
    for _ in 0..5 {
        let session = relay.connect(a.token).await;
        relay.expect(1, |a| a.sessions == 2).await;
        let mut control = Control::open(&session).await;
        control.say(json!({"type": "retire"})).await;
        relay.expect(1, |a| a.sessions == 1).await;
        retired.push((session, control));
    }
    assert_eq!(closed(&retired[0].0).await, 0);
    relay.media.tell(MediaCommand::Withdraw { token: a.token });
    for (session, _) in &retired[1..] {
        assert_eq!(closed(session).await, 4);
    }
    let b = relay.join(2).await;
    let session = relay.connect(b.token).await;
    relay.expect(2, |b| b.sessions == 2).await;
    let mut control = Control::open(&session).await;
    control.say(json!({"type": "retire"})).await;
    relay.expect(2, |b| b.sessions == 1).await;
    b.session.close(0, b"over");
    assert_eq!(closed(&session).await, 0, "it is nobody's any more");
}

#[tokio::test]
async fn sessions_that_have_died_keep_no_place_and_get_no_sound() {
    let relay = Relay::start();
    let a = relay.join(1).await;
    let b = relay.admit(2);
    let (mut lines, mut dead) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        // Each its own: a line carries back to whom it heard last.
        let (line, running) = lossy_line(relay.address).await;
        lines.push(running);
        dead.push(relay.connect_by(line, b).await);
    }
    // As when a phone goes from one network to another.
    drop(lines);
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let session = relay.connect(b).await;
    let mut b_control = Control::open(&session).await;
    b_control.listen(&[1]).await;
    let mut a_control = a.listen(&[]).await;
    a_control.wanted(1).await;
    for turn in 0..8 {
        a.send(&audio(turn));
        let next = timeout(SOON, session.read_datagram()).await;
        assert_eq!(next.expect("in time").expect("open"), audio_from(1, turn));
    }
}

#[tokio::test]
async fn who_has_no_session_left_takes_nothing() {
    let relay = Relay::start();
    let (a, b) = (relay.join(1).await, relay.join(2).await);
    let mut a_control = a.listen(&[]).await;
    let _listening = b.listen(&[1]).await;
    a_control.wanted(1).await;
    b.session.close(0, b"");
    a_control.wanted(0).await;
}

#[tokio::test]
async fn strangers_are_closed_and_other_sites_refused() {
    let relay = Relay::start();
    assert_eq!(closed(&relay.connect(Token::random()).await).await, 1);
    let client = client(&relay.media.offer().certificate_hashes);
    let refusal = async |path: &str, origin: Option<&str>| {
        let url = format!("https://{}{path}", relay.address);
        let mut request = ConnectRequest::new(url.parse::<url::Url>().expect("a URL"));
        if let Some(origin) = origin {
            let origin = HeaderValue::from_str(origin).expect("a header");
            request = request.with_header(header::ORIGIN, origin);
        }
        match client.connect(request).await {
            Ok(session) => closed(&session).await.to_string(),
            Err(ClientError::HttpError(error)) => error.to_string(),
            Err(error) => panic!("{error}"),
        }
    };
    assert!(refusal("/elsewhere", None).await.contains("404"));
    assert_eq!(refusal("/relay/1234", None).await, "1");
    let token = "0123456789abcdef0123456789abcdef";
    let path = format!("/relay/{token}");
    assert!(
        refusal(&path, Some("https://evil.example"))
            .await
            .contains("403")
    );
    assert!(refusal(&path, Some("null")).await.contains("403"));
    let own = format!("http://{}:8080", relay.address.ip());
    assert_eq!(refusal(&path, Some(&own)).await, "1");
    // As pages at localhost do.
    assert_eq!(refusal(&path, Some("http://localhost:8080")).await, "1");
}

#[tokio::test]
async fn strangers_behind_the_same_address_delay_a_session_and_do_not_refuse_it() {
    let mut config = Config::default();
    // So the relay has four sessions for each address.
    config.connections.per_address = 1;
    let relay = Relay::start_as(&config, &RelayConfig::default(), Lifetime::default());
    let token = relay.admit(1);
    let client = client(&relay.media.offer().certificate_hashes);
    let exhausted = async {
        while let Ok(session) = client.connect(relay.request(Token::random())).await {
            assert_eq!(closed(&session).await, 1);
        }
    };
    timeout(SOON, exhausted)
        .await
        .expect("the address is refused");
    let told = async {
        while relay.media.status().refused == 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(SOON, told).await.expect("the operator is told");
    let admitted = async {
        loop {
            match client.connect(relay.request(token)).await {
                Ok(session) => return session,
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    };
    let session = timeout(SOON, admitted).await.expect("a place becomes free");
    let probe = Bytes::copy_from_slice(&probe(0, 1));
    session.send_datagram(probe).expect("sent");
    let reply = timeout(SOON, session.read_datagram()).await;
    assert_eq!(reply.expect("in time").expect("it is open")[4], 1);
}

/// A certificate of `localhost` and its key, in files there.
fn certificate_files(folder: &Path) -> (TlsFiles, rcgen::Certificate) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
    let files = TlsFiles {
        cert: folder.join("cert.pem"),
        key: folder.join("key.pem"),
    };
    fs::write(&files.cert, made.cert.pem()).expect("written");
    fs::write(&files.key, made.signing_key.serialize_pem()).expect("written");
    (files, made.cert)
}

/// What QUIC without WebTransport needs to connect to who shows this certificate.
fn http3(certificate: &rcgen::Certificate) -> quinn::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.der().clone()).expect("a root");
    let mut tls = rustls::ClientConfig::builder_with_provider(
        rustls::crypto::ring::default_provider().into(),
    )
    .with_protocol_versions(&[&rustls::version::TLS13])
    .expect("a version")
    .with_root_certificates(roots)
    .with_no_client_auth();
    tls.alpn_protocols = vec![ALPN.into()];
    let tls = quinn::crypto::rustls::QuicClientConfig::try_from(tls).expect("a configuration");
    quinn::ClientConfig::new(Arc::new(tls))
}

#[tokio::test]
async fn who_breaks_http3_or_asks_for_nothing_is_closed_and_nobody_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let (files, certificate) = certificate_files(folder.path());
    let config = RelayConfig {
        tls: Some(files),
        ..RelayConfig::default()
    };
    let relay = Relay::start_as(&Config::default(), &config, Lifetime::default());
    let tls = http3(&certificate);
    let endpoint = quinn::Endpoint::client(([127, 0, 0, 1], 0).into()).expect("binds");
    let connect = async || {
        let connecting = endpoint.connect_with(tls.clone(), relay.address, "localhost");
        connecting.expect("begins").await.expect("admitted")
    };
    let code_of = async |connection: quinn::Connection| {
        let closed = timeout(SOON, connection.closed()).await;
        match closed.expect("in time") {
            quinn::ConnectionError::ApplicationClosed(closed) => closed.error_code.into_inner(),
            other => panic!("{other}"),
        }
    };
    let well = connect().await;
    let silent = connect().await;
    for begin in [
        // Settings without WebTransport, and a frame that has no place there.
        &[0, 4, 2, 1, 0][..],
        &[0, 0, 1, 9],
    ] {
        let broken = connect().await;
        let mut stream = broken.open_uni().await.expect("a stream");
        stream.write_all(begin).await.expect("written");
        assert_eq!(code_of(broken).await, 0x101);
    }
    let broken = connect().await;
    let (mut stream, _answer) = broken.open_bi().await.expect("a stream");
    stream
        .write_all(b"GET / HTTP/1.1\r\n\r\n")
        .await
        .expect("written");
    stream.finish().expect("open");
    assert_eq!(code_of(broken).await, 0x101);
    let session = Session::connect(well, relay.request(relay.admit(1))).await;
    let session = session.expect("a session");
    session
        .send_datagram(Bytes::copy_from_slice(&probe(0, 1)))
        .expect("sent");
    let reply = timeout(SOON, session.read_datagram()).await;
    assert_eq!(reply.expect("in time").expect("a reply")[4], 1);
    assert_eq!(code_of(silent).await, 0, "its time was over");
}

/// Linux has all of 127.0.0.0/8.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_address_that_begins_handshakes_keeps_nobody_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let (files, certificate) = certificate_files(folder.path());
    let config = RelayConfig {
        tls: Some(files),
        ..RelayConfig::default()
    };
    let relay = Relay::start_as(&Config::default(), &config, Lifetime::default());
    let tls = http3(&certificate);
    let connect = async |from: [u8; 4]| {
        let endpoint = quinn::Endpoint::client((from, 0).into()).expect("binds");
        let connecting = endpoint.connect_with(tls.clone(), relay.address, "localhost");
        connecting.expect("begins").await
    };
    // It never asks for anything, so that each stays a handshake.
    let mut held = Vec::new();
    let refused = async {
        while let Ok(connection) = connect([127, 0, 0, 2]).await {
            held.push(connection);
        }
    };
    timeout(SOON, refused).await.expect("it is refused");
    assert!(held.len() >= 64, "{} are held", held.len());
    let other = connect([127, 0, 0, 1]).await.expect("admitted");
    let url = format!("https://{}/relay/{}", relay.address, "0".repeat(32));
    let request = ConnectRequest::new(url.parse::<url::Url>().expect("a URL"));
    let other = Session::connect(other, request).await.expect("a session");
    assert_eq!(closed(&other).await, 1);
    // What it held is given back.
    held.clear();
    let again = async { while connect([127, 0, 0, 2]).await.is_err() {} };
    timeout(SOON, again).await.expect("admitted again");
}

#[tokio::test]
async fn who_has_left_is_closed_and_no_longer_heard() {
    let relay = Relay::start();
    let (a, b) = (relay.join(1).await, relay.join(2).await);
    let mut b_control = b.listen(&[]).await;
    let _listening = a.listen(&[2]).await;
    b_control.wanted(1).await;
    relay.media.tell(MediaCommand::Withdraw { token: a.token });
    assert_eq!(a.closed().await, 4);
    b_control.wanted(0).await;
    assert_eq!(
        closed(&relay.connect(a.token).await).await,
        1,
        "its token is void"
    );
}

#[tokio::test]
async fn malformed_control_ends_the_session() {
    let relay = Relay::start();
    let too_long = format!("\"{}\"\n", "x".repeat(MAX_LINE_BYTES));
    let endless = "x".repeat(MAX_LINE_BYTES + 2_048);
    let nothing = "{\"type\":\"listen\",\"forward\":[],\"mix\":null}\n";
    let shapes: String = (16..26)
        .map(|frames| {
            let mix = format!("{{\"format\":16,\"packet_frames\":{frames},\"sources\":[]}}");
            nothing.replace("null", &mix)
        })
        .collect();
    let surplus = nothing.replace("null", "null,\"x\":1");
    for (stream, said) in [
        (1, "{}\n"),
        (2, "\n"),
        (3, "not JSON\n"),
        (4, surplus.as_str()),
        (5, too_long.as_str()),
        (6, endless.as_str()),
        (7, &nothing.repeat(100)),
        (8, &shapes),
    ] {
        let page = relay.join(stream).await;
        let mut control = Control::open(&page.session).await;
        // The relay may have closed before all of it is written.
        let _ = control.sender.write_all(said.as_bytes()).await;
        assert_eq!(page.closed().await, 2, "{stream}");
    }
}

/// A musician whose every sample is the same, one packet of 128 frames each 2.67 ms, until dropped.
fn play(session: Session, sample: i16) -> AbortOnDrop {
    let playing = tokio::spawn(async move {
        let mut ticks = tokio::time::interval(Duration::from_nanos(128 * 1_000_000_000 / 48_000));
        for sequence in 0.. {
            ticks.tick().await;
            let mut datagram = audio(sequence);
            for bytes in datagram[20..].chunks_exact_mut(2) {
                bytes.copy_from_slice(&sample.to_le_bytes());
            }
            if session.send_datagram(datagram.into()).is_err() {
                return;
            }
        }
    });
    AbortOnDrop(playing.abort_handle())
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[tokio::test]
async fn a_stranger_writes_no_line_of_the_log_nor_more_of_one_than_helps() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let file = Mutex::new(fs::File::create(&log).expect("created"));
    // The relay has a thread of its own; what other tests log comes here, too.
    let logging = tracing_subscriber::fmt().with_ansi(false).with_writer(file);
    tracing::subscriber::set_global_default(logging.finish()).expect("the only one");
    let relay = Relay::start();
    let session = relay.connect(relay.admit(1)).await;
    let mut control = Control::open(&session).await;
    let forged = "2026-01-01T00:00:00.000000Z  INFO moderated";
    let key = format!("x\n{forged}{}", "y".repeat(15_000));
    control.say(json!({"type": "listen", key: 1})).await;
    assert_eq!(closed(&session).await, 2);
    let logged = async {
        loop {
            let log = fs::read_to_string(&log).expect("UTF-8");
            let line = log.lines().find(|line| line.contains(forged));
            if let Some(line) = line {
                return line.to_owned();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let line = timeout(SOON, logged).await.expect("it is logged");
    assert!(line.contains("closed a session"), "{line}");
    assert!(line.len() < 400, "{line}");
}

#[tokio::test]
async fn a_sender_is_told_where_opus_is_of_no_use() {
    let relay = Relay::start();
    let (a, b) = (relay.join(1).await, relay.join(2).await);
    let mut a_control = a.listen(&[]).await;
    let mut b_control = b.listen(&[1]).await;
    let mix = json!({"format": 16, "packet_frames": 128,
        "sources": [{"stream": 1, "gain": 1, "pan": 0, "muted": false}]});
    // Each differs from the one before in what is told.
    for (forward, mix, takes_opus, is_of_use) in [
        (json!([1]), json!(null), false, false),
        (json!([]), mix.clone(), false, true),
        (json!([1]), mix.clone(), false, false),
        (json!([1]), mix, true, true),
    ] {
        b_control
            .say(json!({"type": "listen", "forward": forward, "mix": mix, "opus": takes_opus}))
            .await;
        let expected = json!({"type": "wanted", "listeners": 1, "opus": is_of_use});
        let told = async { while a_control.hear("wanted").await != expected {} };
        timeout(SOON, told).await.expect("the sender is told");
    }
}

#[tokio::test]
async fn a_mix_holds_those_whom_the_listener_named_and_not_itself() {
    let relay = Relay::start();
    let (a, b, c) = (
        relay.join(1).await,
        relay.join(2).await,
        relay.join(3).await,
    );
    let mut a_control = a.listen(&[]).await;
    let mut c_control = Control::open(&c.session).await;
    let mix = |b_is_muted: bool| {
        let source = |stream: u16, muted: bool| json!({"stream": stream, "gain": 1, "pan": 0, "muted": muted});
        let sources = [
            source(1, false),
            source(2, b_is_muted),
            source(3, false),
            source(9, false),
        ];
        json!({"type": "listen", "forward": [],
            "mix": {"format": 24, "packet_frames": 64, "sources": sources},
            "opus": true})
    };
    c_control.say(mix(false)).await;
    a_control.wanted(1).await;
    let _playing = [
        play(a.session.clone(), 4_000),
        play(b.session.clone(), 2_000),
        play(c.session.clone(), 1_000),
    ];
    let mut last: Option<AudioHeader> = None;
    let mut until_all_are = async |wanted: i32| {
        let heard = async {
            loop {
                let datagram = c.receive().await;
                let Ok(Datagram::Audio(header, samples, _)) = parse(&datagram) else {
                    panic!("a mix is audio: {datagram:?}")
                };
                let expected = AudioHeader {
                    format: SampleFormat::S24,
                    rate: SampleRate::Hz48000,
                    channels: 2,
                    stream: MIX_STREAM,
                    frames: 64,
                    ..header
                };
                assert_eq!(header, expected);
                // A machine that is busy may not read in time; what it misses are whole datagrams.
                if let Some(last) = last {
                    assert!(header.sequence > last.sequence);
                    let missed = u64::from(header.sequence - last.sequence);
                    assert!(header.timestamp >= last.timestamp + 64 * missed);
                }
                last = Some(header);
                let mut samples = samples
                    .chunks_exact(3)
                    .map(|bytes| i32::from_le_bytes([0, bytes[0], bytes[1], bytes[2]]) >> 8);
                if samples.all(|sample| sample == wanted * 256) {
                    return;
                }
            }
        };
        timeout(SOON, heard)
            .await
            .expect("the mix becomes what it should");
    };
    until_all_are(6_000).await;
    c_control.say(mix(true)).await;
    until_all_are(4_000).await;
    let statistics = loop {
        let statistics = c_control.hear("statistics").await;
        if !statistics["mix_us"].is_null() {
            break statistics;
        }
    };
    assert!(
        statistics["forwarded"]
            .as_u64()
            .is_some_and(|count| count > 0)
    );
    relay
        .expect(3, |c| c.mix == Some(MixFormat::Samples) && c.forwarded == 0)
        .await;
}

#[tokio::test]
async fn the_server_mixes_so_much_and_forwards_to_who_asks_for_more() {
    const ADMITTED: u16 = 122;
    const NAMED: u16 = 64;
    // Each takes a quarter of 64 and 8, of the half of 2,048.
    const MIXES: u16 = 56;
    let relay = Relay::start();
    let tokens: Vec<Token> = (1..=ADMITTED).map(|stream| relay.admit(stream)).collect();
    let first = relay.connect(tokens[0]).await;
    let mut first = Control::open(&first).await;
    // Nobody who sends: what matters here is not the mixing. The first one hears who listens.
    let sources: Vec<Value> = (1..=NAMED)
        .map(|stream| json!({"stream": stream, "gain": 1, "pan": 0, "muted": true}))
        .collect();
    let mix = json!({"format": 16, "packet_frames": 512, "sources": sources});
    let listen = |mix: Value| json!({"type": "listen", "forward": [1], "mix": mix, "opus": true});
    let join = async |stream: u16| {
        let session = relay.connect(tokens[usize::from(stream) - 1]).await;
        let mut control = Control::open(&session).await;
        control.say(listen(mix.clone())).await;
        (session, control)
    };
    let mut mixed = Vec::new();
    for stream in NAMED + 1..=NAMED + MIXES {
        mixed.push(join(stream).await);
        first.wanted(mixed.len() as u64).await;
    }
    let is_refused = async |control: &mut Control, refused: bool| {
        let told = async { while control.hear("statistics").await["mix_refused"] != refused {} };
        timeout(SOON, told).await.expect("it is told");
    };
    is_refused(&mut mixed[0].1, false).await;
    let (instead, mut instead_control) = join(ADMITTED - 1).await;
    first.wanted(u64::from(MIXES) + 1).await;
    is_refused(&mut instead_control, true).await;
    // More often than it might change a mix.
    for _ in 0..10 {
        instead_control.say(listen(mix.clone())).await;
    }
    // What one takes no longer, or took with a session that has ended, is there for others.
    let nothing = json!({"type": "listen", "forward": [], "mix": null, "opus": true});
    mixed[0].1.say(nothing).await;
    first.wanted(MIXES.into()).await;
    instead_control.say(listen(mix.clone())).await;
    is_refused(&mut instead_control, false).await;
    let (_refused, mut refused_control) = join(ADMITTED).await;
    is_refused(&mut refused_control, true).await;
    first.wanted(u64::from(MIXES) + 1).await;
    instead.close(0, b"");
    first.wanted(MIXES.into()).await;
    refused_control.say(listen(mix.clone())).await;
    is_refused(&mut refused_control, false).await;
}

#[tokio::test]
async fn who_changes_its_mix_too_often_keeps_its_share_of_all() {
    const NAMED: u16 = 64;
    const OTHERS: u16 = 57;
    let relay = Relay::start();
    let tokens: Vec<Token> = (1..=NAMED + OTHERS)
        .map(|stream| relay.admit(stream))
        .collect();
    let listen = |packet_frames: u16, sources: u16| {
        let sources: Vec<Value> = (1..=sources)
            .map(|stream| json!({"stream": stream, "gain": 1, "pan": 0, "muted": true}))
            .collect();
        let mix = json!({"format": 16, "packet_frames": packet_frames, "sources": sources});
        json!({"type": "listen", "forward": [1], "mix": mix, "opus": true})
    };
    let first = relay.connect(tokens[0]).await;
    let mut first = Control::open(&first).await;
    // One of its two sessions ends for it.
    let _stays = relay.connect(tokens[1]).await;
    let hasty = relay.connect(tokens[1]).await;
    let mut control = Control::open(&hasty).await;
    for n in 0..4 {
        control.say(listen(64 + n, 1)).await;
    }
    control.say(listen(128, NAMED)).await;
    timeout(SOON, hasty.closed()).await.expect("it is closed");
    // With its one in packets of 67 frames, of which four times as many are made, and which takes 5, and 18 of each of the others, there is room for just these of the last one's: 11 of 1,024.
    let mut others = Vec::new();
    for stream in NAMED + 1..=NAMED + OTHERS {
        let session = relay.connect(tokens[usize::from(stream) - 1]).await;
        let mut control = Control::open(&session).await;
        let sources = if stream == NAMED + OTHERS { 36 } else { NAMED };
        control.say(listen(512, sources)).await;
        first.wanted(others.len() as u64 + 2).await;
        others.push((session, control));
    }
    let (_, last) = others.last_mut().expect("there are some");
    assert_eq!(last.hear("statistics").await["mix_refused"], false);
}

#[tokio::test]
async fn a_page_that_is_gone_does_not_delay_another() {
    let relay = Relay::start();
    let (a, b) = (relay.join(1).await, relay.join(2).await);
    let mut a_control = a.listen(&[]).await;
    let _listening = b.listen(&[1]).await;
    a_control.wanted(1).await;

    // A third one listens, and then reads and acknowledges nothing: its thread stops.
    let token = relay.admit(3);
    let request = relay.request(token);
    let hashes = relay.media.offer().certificate_hashes;
    let (release, released) = mpsc::channel::<()>();
    let frozen = thread::spawn(move || {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let session = client(&hashes).connect(request).await.expect("connects");
            let mut control = Control::open(&session).await;
            control.listen(&[1]).await;
            control.hear("wanted").await;
            let _ = released.recv();
        });
    });
    a_control.wanted(2).await;
    for sequence in 0..1_000 {
        a.send(&audio(sequence));
        assert_eq!(b.receive().await, audio_from(1, sequence));
    }
    relay.expect(3, |gone| gone.aged > 0).await;
    relay.expect(2, |b| b.aged == 0).await;
    drop(release);
    frozen.join().expect("ended");
}

#[tokio::test]
async fn certificates_rotate_and_sessions_stay() {
    let relay = Relay::start_with(Lifetime {
        used: Duration::from_secs(4),
        margin: Duration::from_secs(60),
    });
    let page = relay.join(1).await;
    let mut media = relay.media.clone();
    let mut id = 0;
    // On a busy machine another one may have its turn before a round is over: then the round counts for nothing.
    loop {
        let offered = relay.media.offer();
        let [first, second] = *offered.certificate_hashes else {
            panic!("two hashes")
        };
        timeout(SOON, media.offer_changed()).await.expect("in time");
        let changed = relay.media.offer();
        let request = relay.request(page.token);
        let by_the_first = client(&[first]).connect(request.clone()).await;
        // A page that heard only what was offered at first.
        let by_the_second = client(&[second]).connect(request).await;
        if changed.certificate_hashes[0] != second || relay.media.offer() != changed {
            continue;
        }
        assert!(!changed.certificate_hashes.contains(&first));
        assert_eq!(changed.port, offered.port);
        assert!(by_the_first.is_err(), "the first is no longer shown");
        let session = by_the_second.expect("connects by the second hash");
        for session in [&session, &page.session] {
            id += 1;
            let probe = Bytes::copy_from_slice(&probe(0, id));
            session.send_datagram(probe).expect("sent");
            let reply = timeout(SOON, session.read_datagram()).await;
            let reply = reply
                .expect("in time")
                .expect("it is open, also the old one");
            assert_eq!(reply[4], id as u8);
        }
        return;
    }
}

#[tokio::test]
async fn a_certificate_from_files_is_shown_and_no_hash_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let (files, certificate) = certificate_files(folder.path());
    let config = RelayConfig {
        tls: Some(files.clone()),
        public_port: Some(4433),
        ..RelayConfig::default()
    };
    let bind = || {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        BoundRelay::bind(&Config::default(), &config, any, Lifetime::default())
    };
    let (relay, media) = bind().expect("binds");
    assert_eq!(media.offer().port, 4433);
    assert_eq!(media.offer().certificate_hashes.len(), 0);
    let address = relay.address();
    let running = relay.start().expect("starts");
    let client = ClientBuilder::new().with_server_certificates(vec![certificate.der().clone()]);
    let url = format!("https://{address}/relay/{}", "0".repeat(32));
    let request = ConnectRequest::new(url.parse::<url::Url>().expect("a URL"));
    let session = client.expect("a client").connect(request).await;
    assert_eq!(
        closed(&session.expect("the certificate is that of the files")).await,
        1
    );
    running.stop().await.expect("stops");

    let other = rcgen::KeyPair::generate().expect("made");
    fs::write(&files.key, other.serialize_pem()).expect("written");
    let refused = bind().expect_err("another certificate's key");
    assert!(matches!(refused, StartError::Tls { .. }), "{refused}");
}

#[tokio::test]
async fn a_stop_is_said_to_everyone() {
    let relay = Relay::start();
    let (a, b) = (relay.join(1).await, relay.join(2).await);
    let address = relay.address;
    let (stopped, a_code, b_code) =
        tokio::join!(relay.running.stop(), closed(&a.session), closed(&b.session));
    stopped.expect("in good order");
    assert_eq!((a_code, b_code), (5, 5));
    std::net::UdpSocket::bind(address).expect("its port is free again");
}

#[tokio::test]
async fn pages_meet_at_the_relay_and_the_operator_sees_them() {
    let mut server =
        running::Running::start(|config| config.relay = Some(RelayConfig::default())).await;
    let (mut a_page, a_welcome) = server.join(1).await;
    let (_b_page, b_welcome) = server.join(2).await;
    let a = running::connect_as_told(&a_welcome["relay"]).await;
    let b = running::connect_as_told(&b_welcome["relay"]).await;
    let (a_number, b_number) = (&a_welcome["stream"], &b_welcome["stream"]);
    let mut a_control = Control::open(&a).await;
    let mut b_control = Control::open(&b).await;
    let listen = json!({"type": "listen", "forward": [a_number], "mix": null, "opus": false});
    b_control.say(listen).await;
    a_control.wanted(1).await;
    for sequence in 0..5 {
        a.send_datagram(audio(sequence).into()).expect("sent");
        let received = timeout(SOON, b.read_datagram()).await.expect("in time");
        let number = a_number.as_u64().expect("a number") as u16;
        assert_eq!(received.expect("a datagram"), audio_from(number, sequence));
    }
    a.send_datagram(Bytes::from_static(b"rubbish"))
        .expect("sent");
    let room: RoomName = running::ROOM.parse().expect("a room");
    let of = |name: &str, welcome: &Value| {
        let stream = &welcome["stream"];
        format!("antiphon_relay_datagrams_{name}_total{{room=\"{room:?}\",stream=\"{stream}\"}}")
    };
    server.expect_metric(&of("received", &a_welcome), 6).await;
    server.expect_metric(&of("malformed", &a_welcome), 1).await;
    server
        .expect_metric("antiphon_relay_forward_latency_seconds_count", 5)
        .await;
    assert!(b_number.is_u64());

    a_page.say(json!({"type": "leave"})).await;
    assert_eq!(closed(&a).await, 4);
    server.expect_metric(&of("received", &a_welcome), 0).await;
    server
        .expect_metric("antiphon_relay_forward_latency_seconds_count", 5)
        .await;
    server.stop();
    assert_eq!(closed(&b).await, 5);
    let ended = timeout(SOON, &mut server.ended).await.expect("in time");
    ended.expect("no panic").expect("in good order");
}

#[tokio::test]
async fn whatever_names_rooms_and_secrets_people_have_each_series_is_there_once() {
    // Two of so many begin with the same 32 bits.
    fn twins<T: Clone>(made: impl Fn(u32) -> (String, T)) -> [T; 2] {
        let mut seen = HashMap::new();
        let twins = (0..).find_map(|n| {
            let (digits, one) = made(n);
            let other = seen.insert(digits, one.clone())?;
            Some([one, other])
        });
        twins.expect("sooner or later")
    }
    let secrets = twins(|n| {
        let mut secret = [0; 32];
        secret[..4].copy_from_slice(&n.to_be_bytes());
        (format!("{:?}", ParticipantId::of_secret(&secret)), secret)
    });
    let rooms = twins(|n| {
        let name = format!("a-room-like-another-{n}");
        let room: RoomName = name.parse().expect("a name");
        (format!("{room:?}"), name)
    });
    let server =
        running::Running::start(|config| config.relay = Some(RelayConfig::default())).await;
    let mut there = Vec::new();
    for (room, secret) in rooms.iter().zip([secrets, secrets]) {
        for secret in secret {
            let mut page = server.try_connect(room, None).await.expect("connects");
            let mut hello = running::hello(0);
            hello["secret"] = json!(HEXLOWER.encode(&secret));
            page.say(hello).await;
            let welcome = page.hear().await;
            let session = running::connect_as_told(&welcome["relay"]).await;
            session
                .send_datagram(Bytes::from_static(b"rubbish"))
                .expect("sent");
            there.push((page, session));
        }
    }
    let all_shown = async {
        while server
            .operator("/status.json")
            .await
            .body
            .matches("\"packets_in_per_s\"")
            .count()
            < 4
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(SOON, all_shown).await.expect("all are there");
    let metrics = server.operator("/metrics").await.body;
    let counted = metrics.lines().filter_map(|line| {
        let series = line.strip_prefix("antiphon_relay_datagrams_malformed_total")?;
        Some(series.rsplit_once(' ')?.0)
    });
    let room: RoomName = rooms[0].parse().expect("a name");
    let of = |stream| format!("{{room=\"{room:?}\",stream=\"{stream}\"}}");
    assert_eq!(counted.collect::<Vec<_>>(), [of(1), of(2)]);
}

/// Commands are done in order: whoever can open a session now, came after all that happened before.
async fn settled(server: &running::Running, person: u8) {
    let (mut page, welcome) = server.join(person).await;
    running::connect_as_told(&welcome["relay"]).await;
    page.say(json!({"type": "leave"})).await;
    assert_eq!(page.closed().await, 1000);
}

/// The next message of a type.
async fn hear(page: &mut running::Page, kind: &str) -> Value {
    loop {
        let message = page.hear().await;
        if message["type"] == kind {
            return message;
        }
    }
}

#[tokio::test]
async fn what_an_owner_decides_holds_at_the_relay_and_a_lost_page_loses_no_sound() {
    let server =
        running::Running::start(|config| config.relay = Some(RelayConfig::default())).await;
    let (mut a_page, a_welcome) = server.join(1).await;
    let (b_page, b_welcome) = server.join(2).await;
    assert_eq!(a_page.hear().await["type"], "joined");
    let a = running::connect_as_told(&a_welcome["relay"]).await;
    let b = running::connect_as_told(&b_welcome["relay"]).await;
    let mut a_control = Control::open(&a).await;
    a_control.listen(&[2]).await;
    Control::open(&b).await.wanted(1).await;
    let hears = async |sequence| {
        b.send_datagram(audio(sequence).into()).expect("sent");
        let heard = timeout(SOON, a.read_datagram()).await.expect("in time");
        assert_eq!(heard.expect("a datagram"), audio_from(2, sequence));
    };
    hears(1).await;

    drop(b_page);
    assert_eq!(a_page.hear().await["type"], "away");
    hears(2).await;
    let (mut b_page, welcome) = server.join(2).await;
    assert_eq!(welcome["relay"], b_welcome["relay"], "the same token");
    assert_eq!(a_page.hear().await["type"], "back");
    hears(3).await;

    let moderate =
        |action: &str| json!({"type": "moderate", "to": b_welcome["id"], "action": action});
    a_page.say(moderate("mute")).await;
    assert_eq!(hear(&mut a_page, "muted").await["muted"], true);
    settled(&server, 3).await;
    b.send_datagram(audio(4).into()).expect("sent");
    // This passes even so, and would come after it.
    b.send_datagram(Bytes::copy_from_slice(&probe(1, 5)))
        .expect("sent");
    let heard = timeout(SOON, a.read_datagram()).await.expect("in time");
    assert_eq!(heard.expect("a datagram")[..], probe(2, 5));
    a_page.say(moderate("unmute")).await;
    assert_eq!(hear(&mut a_page, "muted").await["muted"], false);
    settled(&server, 4).await;
    hears(6).await;

    let in_operators_view = async {
        loop {
            let status = server.operator("/status.json").await;
            let status: Value = serde_json::from_str(&status.body).expect("JSON");
            let media = &status["relay"]["rooms"][0];
            if media["room"] == status["rooms"][0]["room"]
                && media["participants"].as_array().map(Vec::len) == Some(2)
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(SOON, in_operators_view)
        .await
        .expect("both are shown, in their room");
    let metrics = server.operator("/metrics").await.body;
    assert!(
        metrics.contains("antiphon_relay_forward_latency_seconds_bucket{le=\"+Inf\"}"),
        "a histogram ends in infinity: {metrics}"
    );

    a_page.say(moderate("remove")).await;
    assert_eq!(hear(&mut b_page, "error").await["code"], "removed");
    assert_eq!(b_page.closed().await, 1008);
    assert_eq!(closed(&b).await, 4);
    a_control.wanted(0).await;
}
