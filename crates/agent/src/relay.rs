//! The way through the server: WebTransport sessions as lanes, and the control stream. `docs/protocol.md`, "Relay".

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use url::Url;
use web_transport_quinn::Session;
use web_transport_quinn::quinn::crypto::rustls::QuicClientConfig;
use web_transport_quinn::quinn::{ClientConfig, Endpoint, IdleTimeout, TransportConfig, VarInt};

use crate::signalling::{RelayAddress, printable};
use crate::tls;
use antiphon_opus::outgoing::Sent;

/// Most sessions of a participant.
pub const MAX_SESSIONS: usize = 4;
/// Longest line on the control stream, in bytes.
const MAX_LINE_BYTES: usize = 16_384;
/// What a session may hold that is not sent yet, in bytes: 16 datagrams, then the oldest go.
const SEND_BUFFER_BYTES: usize = 16_384;
/// With less room than this, so much waits that the path is too slow.
const CROWDED_ROOM_BYTES: usize = SEND_BUFFER_BYTES / 2;
const RECEIVE_BUFFER_BYTES: usize = 1 << 20;
/// The server closes a session that is idle for 10 s.
const IDLE_MS: u32 = 10_000;
const KEEP_ALIVE: Duration = Duration::from_secs(3);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const FIRST_RETRY: Duration = Duration::from_millis(200);
const LAST_RETRY: Duration = Duration::from_secs(2);
/// Application close codes after which another session would fare no better.
const FINAL_CODES: [u32; 2] = [0, 4];
/// A mix that was refused is asked for again when the relay has said so often, once a second, that it is: others may have left meanwhile.
const MIX_REFUSALS: u32 = 10;
/// A session that ended sooner was as good as refused, and another one may fare no better yet: 1, unknown token: a newer one may be on its
/// way; 3, too many sessions: the server may not have noticed yet that old ones are gone.
const STEADY: Duration = Duration::from_secs(5);

/// What one takes from the relay: all of it, each time.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename = "listen")]
pub struct Listen {
    /// Numbers of the streams to forward.
    pub forward: Vec<u16>,
    /// A personal mix.
    pub mix: Option<Mix>,
    /// Whether forwarded Opus is of use.
    pub opus: bool,
}

impl Listen {
    /// Whether it asks for the stream with that number, forwarded or mixed.
    pub fn takes(&self, number: u16) -> bool {
        let mut sources = self.mix.iter().flat_map(|mix| &mix.sources);
        self.forward.contains(&number) || sources.any(|source| source.stream == number)
    }
}

impl Default for Listen {
    /// Nothing; but Opus would be of use.
    fn default() -> Self {
        Self {
            forward: Vec::new(),
            mix: None,
            opus: true,
        }
    }
}

/// A personal mix.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mix {
    /// 16 or 24 bits.
    pub format: u32,
    /// 16 to 512.
    pub packet_frames: usize,
    /// What is in it.
    pub sources: Vec<MixSource>,
}

/// A stream in a personal mix.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MixSource {
    /// The sender's number.
    pub stream: u16,
    /// 0 to 4.
    pub gain: f32,
    /// −1 to 1.
    pub pan: f32,
    /// Not heard.
    pub muted: bool,
}

/// What the relay says of one's first session, each second.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct RelayStatistics {
    /// Round trip of the session, us.
    pub rtt_us: u64,
    /// Datagrams sent to us.
    pub forwarded: u64,
    /// Dropped for us because no session had room.
    pub aged: u64,
    /// Of our own, dropped because they were over our rate.
    pub over_rate: u64,
    /// Sent to us but lost, as QUIC counts packets.
    pub lost: u64,
    /// Datagrams of our own sound that reached it in the last 4 s, each once.
    #[serde(default)]
    pub received: u64,
    /// Of the same seconds, those that did not.
    #[serde(default)]
    pub missing: u64,
    /// From the last needed frame to the mix's datagram.
    #[serde(default)]
    pub mix_us: Option<f64>,
    /// Who plays in our mix.
    #[serde(default)]
    pub mixed: Vec<MixedSource>,
    /// It mixes enough already: there is no mix of ours, although we asked for one.
    #[serde(default)]
    pub mix_refused: bool,
}

/// One whom the relay's mix holds.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct MixedSource {
    /// The sender's number.
    pub stream: u16,
    /// By so many frames the mix's media time is ahead of the sender's own where both sound together.
    pub lead_frames: i64,
    /// Of its last 4 s in mixes, the share that the mixer made up in place of what did not come in time; 0 to 1.
    #[serde(default)]
    pub concealed_share: f32,
}

impl RelayStatistics {
    /// Share of our own datagrams that were lost on the way to the relay, 0 to 1; `None` if none were due.
    pub fn missing_share(&self) -> Option<f32> {
        let due = self.received.saturating_add(self.missing);
        (due > 0).then(|| self.missing as f32 / due as f32)
    }

    /// A sender as it plays in our mix; `None` while it does not.
    pub fn mixed(&self, stream: u16) -> Option<MixedSource> {
        let source = self.mixed.iter().find(|source| source.stream == stream)?;
        Some(*source)
    }
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum FromRelay {
    Wanted { listeners: u32, opus: bool },
    Statistics(RelayStatistics),
}

/// What comes from the relay.
#[derive(Debug)]
pub enum RelayEvent {
    /// A datagram, on a session.
    Datagram(usize, Bytes),
    /// So many take our stream, and whether Opus is of use to all of them.
    Wanted(u32, bool),
    /// The relay's own figures.
    Statistics(RelayStatistics),
    /// The number of open sessions changed.
    Changed,
}

/// The socket that all sessions share, bound to whatever family of addresses the server has.
///
/// # Errors
/// The system's. Must be called within a runtime.
pub fn endpoint(server: IpAddr) -> io::Result<Endpoint> {
    let any: IpAddr = match server {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    Endpoint::client(SocketAddr::new(any, 0))
}

/// Sessions of one participant; they are made again when they end. They all end with this.
#[derive(Debug)]
pub struct Relay {
    sessions: Rc<RefCell<Vec<Option<Session>>>>,
    target: Rc<RefCell<Dial>>,
    /// Whose turn it is among equals.
    turn: Cell<usize>,
    listen: watch::Sender<Listen>,
    tasks: Vec<JoinHandle<()>>,
    trouble: Rc<RefCell<Option<String>>>,
    /// Datagrams that no session took.
    pub dropped: Cell<u64>,
}

/// How to reach it.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// The page's host.
    pub host: String,
    /// The server's address.
    pub server: IpAddr,
    /// From `welcome`.
    pub address: RelayAddress,
    /// 1 to [`MAX_SESSIONS`].
    pub sessions: usize,
}

impl Relay {
    /// Opens the sessions, within a `LocalSet`. What comes is told by `events`; what finds no room there is dropped.
    ///
    /// # Errors
    /// In words for the user: an address that cannot be one.
    pub fn open(
        endpoint: &Endpoint,
        config: &RelayConfig,
        listen: Listen,
        events: mpsc::Sender<RelayEvent>,
    ) -> Result<Self, String> {
        let target = Rc::new(RefCell::new(Dial::new(config)?));
        let count = config.sessions.clamp(1, MAX_SESSIONS);
        let sessions = Rc::new(RefCell::new(vec![None; count]));
        let (listen, wanted) = watch::channel(listen);
        let control = Rc::new(Cell::new(None));
        let trouble = Rc::new(RefCell::new(None));
        let tasks = (0..count)
            .map(|index| {
                let lane = Lane {
                    index,
                    endpoint: endpoint.clone(),
                    target: target.clone(),
                    sessions: sessions.clone(),
                    control: control.clone(),
                    trouble: trouble.clone(),
                    listen: wanted.clone(),
                    events: events.clone(),
                };
                tokio::task::spawn_local(lane.run())
            })
            .collect();
        Ok(Self {
            sessions,
            target,
            turn: Cell::new(0),
            listen,
            tasks,
            trouble,
            dropped: Cell::new(0),
        })
    }

    /// Where sessions that are made from now on go; those that are open stay.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn update(&self, config: &RelayConfig) -> Result<(), String> {
        *self.target.borrow_mut() = Dial::new(config)?;
        Ok(())
    }

    /// Where sessions that are made from now on go to.
    pub fn server(&self) -> IpAddr {
        self.target.borrow().server.ip()
    }

    /// Sends a datagram on the session with the most room. `None` if it was dropped: there is no session, or none with room.
    pub fn send(&self, datagram: Bytes) -> Option<Sent> {
        self.turn.set(self.turn.get().wrapping_add(1));
        let sent = self.send_where(|_| true, datagram);
        if sent.is_none() && self.is_open() {
            self.dropped.set(self.dropped.get() + 1);
        }
        sent
    }

    /// Sends a datagram once more, by another session than `first`, if there is one on which little waits.
    pub fn send_copy(&self, first: usize, datagram: Bytes) -> bool {
        let sessions = self.sessions.borrow();
        let is_calm =
            |session: &Session| session.datagram_send_buffer_space() >= CROWDED_ROOM_BYTES;
        self.send_where(
            |index| index != first && sessions[index].as_ref().is_some_and(is_calm),
            datagram,
        )
        .is_some()
    }

    /// On the session with the most room, in turns among equals.
    fn send_where(&self, fit: impl Fn(usize) -> bool, datagram: Bytes) -> Option<Sent> {
        let sessions = self.sessions.borrow();
        let (lane, session) = (0..sessions.len())
            .map(|n| self.turn.get().wrapping_add(n) % sessions.len())
            .filter(|&index| fit(index))
            .filter_map(|index| Some((index, sessions[index].as_ref()?)))
            .max_by_key(|(_, session)| session.datagram_send_buffer_space())?;
        let room = session.datagram_send_buffer_space();
        let is_sent = room >= datagram.len() && session.send_datagram(datagram).is_ok();
        is_sent.then_some(Sent {
            lane,
            is_crowded: room < CROWDED_ROOM_BYTES,
        })
    }

    /// Sends a datagram on that session: a probe, or its reply.
    pub fn send_on(&self, index: usize, datagram: Bytes) {
        if let Some(Some(session)) = self.sessions.borrow().get(index) {
            // Probes are lost like everything else.
            let _ = session.send_datagram(datagram);
        }
    }

    /// Whether any session is open.
    pub fn is_open(&self) -> bool {
        self.sessions.borrow().iter().any(Option::is_some)
    }

    /// Why the last attempt at a session failed, for people; `None` while one is open, or before that.
    pub fn trouble(&self) -> Option<String> {
        let why = self.trouble.borrow().clone().filter(|_| !self.is_open())?;
        let port = self.target.borrow().server.port();
        Some(format!(
            "the server's relay does not answer on UDP {port}: {why}"
        ))
    }

    /// Which sessions are open.
    pub fn open_sessions(&self) -> Vec<usize> {
        let sessions = self.sessions.borrow();
        (0..sessions.len())
            .filter(|&index| sessions[index].is_some())
            .collect()
    }

    /// What to take from now on.
    pub fn listen(&self, listen: Listen) {
        self.listen.send_if_modified(|old| {
            let changed = *old != listen;
            *old = listen;
            changed
        });
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        for session in self.sessions.borrow().iter().flatten() {
            session.close(0, b"");
        }
    }
}

/// What a session needs to be made.
#[derive(Clone, Debug)]
struct Dial {
    client: ClientConfig,
    server: SocketAddr,
    url: Url,
}

impl Dial {
    fn new(config: &RelayConfig) -> Result<Self, String> {
        let RelayAddress {
            port,
            token,
            certificate_hashes,
        } = &config.address;
        let is_token = token.len() == 32 && token.bytes().all(|b| b.is_ascii_hexdigit());
        if !is_token {
            return Err("the server's relay has no token".into());
        }
        let url = Url::parse(&format!("https://{}:{port}/relay/{token}", config.host))
            .map_err(|error| error.to_string())?;
        Ok(Self {
            client: client_config(certificate_hashes)?,
            server: SocketAddr::new(config.server, *port),
            url,
        })
    }
}

fn client_config(hashes: &[String]) -> Result<ClientConfig, String> {
    let mut decoded = Vec::new();
    for hash in hashes {
        let bytes = data_encoding::HEXLOWER_PERMISSIVE.decode(hash.as_bytes());
        let hash = bytes.ok().and_then(|bytes| bytes.try_into().ok());
        decoded.push(hash.ok_or("a certificate's hash has 64 hex digits")?);
    }
    let mut tls = tls::client_config(&decoded).map_err(|error| error.to_string())?;
    tls.alpn_protocols = vec![web_transport_quinn::ALPN.as_bytes().to_vec()];
    let quic = QuicClientConfig::try_from(tls).map_err(|error| error.to_string())?;
    let mut client = ClientConfig::new(Arc::new(quic));
    let mut transport = TransportConfig::default();
    antiphon_congestion::configure(&mut transport)
        .datagram_send_buffer_size(SEND_BUFFER_BYTES)
        .datagram_receive_buffer_size(Some(RECEIVE_BUFFER_BYTES))
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(IDLE_MS))))
        .keep_alive_interval(Some(KEEP_ALIVE));
    client.transport_config(Arc::new(transport));
    Ok(client)
}

/// One session, through all its reconnections.
struct Lane {
    index: usize,
    endpoint: Endpoint,
    target: Rc<RefCell<Dial>>,
    sessions: Rc<RefCell<Vec<Option<Session>>>>,
    /// Which session has the control stream.
    control: Rc<Cell<Option<usize>>>,
    /// Of all lanes: why the last attempt failed, if it did.
    trouble: Rc<RefCell<Option<String>>>,
    listen: watch::Receiver<Listen>,
    events: mpsc::Sender<RelayEvent>,
}

impl Lane {
    async fn run(self) {
        let mut wait = FIRST_RETRY;
        loop {
            let connected = timeout(CONNECT_TIMEOUT, self.connect()).await;
            let connected = connected.unwrap_or_else(|_| Err("timed out".into()));
            // The relay's own words may be in it.
            *self.trouble.borrow_mut() = connected.as_ref().err().map(|why| printable(why));
            if let Ok(session) = connected {
                self.sessions.borrow_mut()[self.index] = Some(session.clone());
                self.tell_changed().await;
                let opened = Instant::now();
                self.serve(&session).await;
                self.sessions.borrow_mut()[self.index] = None;
                if self.control.get() == Some(self.index) {
                    self.control.set(None);
                }
                self.tell_changed().await;
                let code = session.close_reason().and_then(|error| close_code(&error));
                if code.is_some_and(|code| FINAL_CODES.contains(&code)) {
                    return;
                }
                if opened.elapsed() >= STEADY {
                    wait = FIRST_RETRY;
                }
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LAST_RETRY);
        }
    }

    /// Unlike a datagram this must not be lost where the queue is full. Who reads it waits for no session.
    async fn tell_changed(&self) {
        let _ = self.events.send(RelayEvent::Changed).await;
    }

    async fn connect(&self) -> Result<Session, String> {
        let Dial {
            client,
            server,
            url,
        } = self.target.borrow().clone();
        let host = url.host_str().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let connection = self
            .endpoint
            .connect_with(client, server, host)
            .map_err(|error| error.to_string())?
            .await
            .map_err(|error| error.to_string())?;
        Session::connect(connection, url)
            .await
            .map_err(|error| error.to_string())
    }

    /// Until the session ends.
    async fn serve(&self, session: &Session) {
        let mut control = std::pin::pin!(self.control(session));
        loop {
            tokio::select! {
                biased;
                datagram = session.read_datagram() => {
                    let Ok(datagram) = datagram else { return };
                    // A full queue means that we are late ourselves: what is new is dropped, as in the network.
                    let _ = self.events.try_send(RelayEvent::Datagram(self.index, datagram));
                }
                () = &mut control => {
                    // What the relay says there is no longer what we understand.
                    session.close(2, b"control");
                    return;
                }
            }
        }
    }

    /// Holds the control stream once no other session does; returns when that ends.
    async fn control(&self, session: &Session) {
        while self.control.get().is_some() {
            tokio::time::sleep(FIRST_RETRY).await;
        }
        self.control.set(Some(self.index));
        let Ok((mut send, mut receive)) = session.open_bi().await else {
            return;
        };
        let mut listen = self.listen.clone();
        listen.mark_changed();
        // Since it was last told what to send.
        let mut refusals = 0;
        let mut line = Vec::new();
        let mut bytes = [0; 2_048];
        loop {
            tokio::select! {
                changed = listen.changed() => {
                    if changed.is_err() { return }
                    let Ok(mut text) = serde_json::to_vec(&*listen.borrow_and_update()) else { return };
                    text.push(b'\n');
                    if send.write_all(&text).await.is_err() { return }
                    refusals = 0;
                    // 20 messages a second are allowed; a fader makes more.
                    tokio::time::sleep(Duration::from_millis(60)).await;
                }
                read = receive.read(&mut bytes) => {
                    let Ok(Some(count)) = read else { return };
                    for &byte in &bytes[..count] {
                        if byte != b'\n' {
                            line.push(byte);
                            if line.len() > MAX_LINE_BYTES { return }
                            continue;
                        }
                        let event = match serde_json::from_slice(&line) {
                            Ok(FromRelay::Wanted { listeners, opus }) => RelayEvent::Wanted(listeners, opus),
                            Ok(FromRelay::Statistics(statistics)) => {
                                refusals += u32::from(statistics.mix_refused);
                                if refusals >= MIX_REFUSALS { listen.mark_changed() }
                                RelayEvent::Statistics(statistics)
                            }
                            Err(_) => return,
                        };
                        line.clear();
                        if self.events.send(event).await.is_err() { return }
                    }
                }
            }
        }
    }
}

/// The application's code, if the other end closed the session.
fn close_code(error: &web_transport_quinn::SessionError) -> Option<u32> {
    use web_transport_quinn::{SessionError, WebTransportError};
    match error {
        SessionError::WebTransportError(WebTransportError::Closed(code, _)) => Some(*code),
        _ => None,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::{collection::vec, prelude::*};
    use ring::digest::{SHA256, digest};
    use rustls::pki_types::PrivatePkcs8KeyDer;
    use tokio::task::LocalSet;
    use web_transport_quinn::{Server, ServerBuilder};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    pub(crate) async fn accept(server: &mut Server) -> Session {
        let request = timeout(PATIENCE, server.accept()).await;
        let request = request.expect("another attempt").expect("a request");
        request.ok().await.expect("a session")
    }

    /// A relay, and how one session with it is made.
    pub(crate) fn server() -> (Server, RelayConfig) {
        server_at(Ipv4Addr::LOCALHOST.into())
    }

    pub(crate) fn server_at(address: IpAddr) -> (Server, RelayConfig) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]);
        let rcgen::CertifiedKey { cert, signing_key } = made.expect("a certificate");
        let hash = digest(&SHA256, cert.der());
        let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der());
        let server = ServerBuilder::new()
            .with_addr((address, 0).into())
            .with_certificate(vec![cert.der().clone()], key.into())
            .expect("a server");
        let config = RelayConfig {
            host: "localhost".into(),
            server: address,
            address: RelayAddress {
                port: server.local_addr().expect("bound").port(),
                token: "0".repeat(32),
                certificate_hashes: vec![data_encoding::HEXLOWER.encode(hash.as_ref())],
            },
            sessions: 1,
        };
        (server, config)
    }

    #[tokio::test]
    async fn that_a_session_is_open_is_told_though_datagrams_fill_the_queue() {
        let (mut server, config) = server();
        let telling = async {
            let socket = endpoint(config.server).expect("a socket");
            let (events, mut told) = mpsc::channel(1);
            let datagram = || RelayEvent::Datagram(0, Bytes::new());
            events.try_send(datagram()).expect("room");
            let relay = Relay::open(&socket, &config, Listen::default(), events).expect("a relay");
            let _session = accept(&mut server).await;
            while !relay.is_open() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert!(matches!(told.recv().await, Some(RelayEvent::Datagram(..))));
            let next = timeout(PATIENCE, told.recv()).await;
            assert!(matches!(next, Ok(Some(RelayEvent::Changed))), "{next:?}");
        };
        LocalSet::new().run_until(telling).await;
    }

    #[tokio::test]
    async fn a_session_that_was_refused_is_made_again_until_the_participant_has_left() {
        let (mut server, config) = server();
        let trying = async {
            let socket = endpoint(config.server).expect("a socket");
            let (events, _told) = mpsc::channel(16);
            let mut relay =
                Relay::open(&socket, &config, Listen::default(), events).expect("a relay");
            let began = Instant::now();
            // 6: of a server that mixed enough already.
            for code in [3, 6, 6] {
                let session = accept(&mut server).await;
                session.close(code, b"");
                session.closed().await;
            }
            let session = accept(&mut server).await;
            let (least, waited) = (7 * FIRST_RETRY, began.elapsed());
            assert!(waited >= least, "{waited:?}: as if each had been of use");
            session.accept_bi().await.expect("its control stream");
            session.close(4, b"");
            let ended = timeout(PATIENCE, &mut relay.tasks[0]).await;
            ended.expect("it ends").expect("without a panic");
        };
        LocalSet::new().run_until(trying).await;
    }

    #[tokio::test]
    async fn why_there_is_no_session_is_said_until_there_is_one() {
        let (mut server, mut config) = server();
        let right = std::mem::replace(&mut config.address.certificate_hashes, vec!["0".repeat(64)]);
        let trying = async {
            let socket = endpoint(config.server).expect("a socket");
            let (events, mut told) = mpsc::channel(16);
            let relay = Relay::open(&socket, &config, Listen::default(), events).expect("a relay");
            assert_eq!(relay.trouble(), None, "before the first attempt");
            while relay.trouble().is_none() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let why = relay.trouble().expect("trouble");
            let words = format!(
                "the server's relay does not answer on UDP {}: ",
                config.address.port
            );
            assert!(why.starts_with(&words), "{why}");
            config.address.certificate_hashes = right;
            relay.update(&config).expect("an address");
            let _session = accept(&mut server).await;
            let opened = timeout(PATIENCE, told.recv()).await;
            opened.expect("it opens").expect("it goes on");
            assert_eq!(relay.trouble(), None);
        };
        LocalSet::new().run_until(trying).await;
    }

    #[tokio::test]
    async fn a_mix_that_was_refused_is_asked_for_again() {
        let (mut server, config) = server();
        let asking = async {
            let socket = endpoint(config.server).expect("a socket");
            let (events, mut told) = mpsc::channel(64);
            let listen = Listen {
                mix: Some(Mix {
                    format: 16,
                    packet_frames: 128,
                    sources: Vec::new(),
                }),
                ..Listen::default()
            };
            let _relay = Relay::open(&socket, &config, listen, events).expect("a relay");
            let session = accept(&mut server).await;
            let (mut says, mut hears) = session.accept_bi().await.expect("its control stream");
            let mut heard = async || {
                let (mut line, mut byte) = (Vec::new(), [0]);
                while byte != *b"\n" {
                    hears.read_exact(&mut byte).await.expect("it is there");
                    line.extend(byte);
                }
                line
            };
            let first = heard().await;
            let statistics = |refused| {
                format!(
                    "{{\"type\":\"statistics\",\"rtt_us\":1,\"forwarded\":0,\"aged\":0,\"over_rate\":0,\"lost\":0,\"mix_refused\":{refused}}}\n"
                )
            };
            let once_less = statistics(true).repeat(MIX_REFUSALS as usize - 1) + &statistics(false);
            says.write_all(once_less.as_bytes())
                .await
                .expect("it is there");
            let soon = timeout(Duration::from_millis(500), heard()).await;
            assert!(soon.is_err(), "no sooner than needed: {soon:?}");
            let last = statistics(true);
            says.write_all(last.as_bytes()).await.expect("it is there");
            let again = timeout(PATIENCE, heard()).await.expect("it asks again");
            assert_eq!(again, first);
            let mut refused = Vec::new();
            while let Ok(event) = told.try_recv() {
                if let RelayEvent::Statistics(statistics) = event {
                    refused.push(statistics.mix_refused);
                }
            }
            assert_eq!(refused.last(), Some(&true));
            assert_eq!(refused.len(), 1 + MIX_REFUSALS as usize);
        };
        LocalSet::new().run_until(asking).await;
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn whatever_a_relay_says_is_refused_or_makes_a_share(
            bytes in vec(any::<u8>(), 0..200),
            counts in any::<[u64; 6]>(),
            (stream, lead_frames, concealed_share) in any::<(u16, i64, f64)>(),
        ) {
            let _ = serde_json::from_slice::<FromRelay>(&bytes);
            let [rtt_us, forwarded, aged, over_rate, received, missing] = counts;
            let line = serde_json::json!({"type": "statistics", "rtt_us": rtt_us, "forwarded": forwarded, "aged": aged,
                "over_rate": over_rate, "lost": 0, "received": received, "missing": missing, "mix_us": null, "mix_refused": false,
                "mixed": [{"stream": stream, "lead_frames": lead_frames, "concealed_share": concealed_share}]});
            let read = serde_json::from_slice(line.to_string().as_bytes());
            let Ok(FromRelay::Statistics(statistics)) = read else { panic!("{read:?}") };
            prop_assert!(statistics.missing_share().is_none_or(|share| (0.0..=1.0).contains(&share)));
            prop_assert_eq!(statistics.mixed(stream).map(|source| source.lead_frames), Some(lead_frames));
        }
    }
}
