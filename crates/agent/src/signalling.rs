//! The connection to the server: `docs/protocol.md`, "Signalling". Reconnects by itself, keeping the identity.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::future::select_ok;
use futures_util::{SinkExt, StreamExt};
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout, timeout_at};
use tokio_tungstenite::tungstenite::{
    self, Message, handshake::client::Response, protocol::WebSocketConfig,
};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use crate::link::RoomLink;
use crate::tls::{self, Wire};

/// Version of the protocol.
pub const VERSION: u32 = 1;
/// Longest message from the server that is read, in bytes: signals are 64 KiB at most, and a room's participants far less.
const MAX_MESSAGE_BYTES: usize = 1 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Between attempts at two of its addresses. RFC 8305, section 8.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// A server that is silent for so long is gone, as for the page. It is asked for a sign of life three times within that.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(10);
/// The first retry is at once; then after so long, doubled each time up to the last. A server that was restarted has everybody
/// back within 3 s.
const FIRST_RETRY: Duration = Duration::from_millis(200);
const LAST_RETRY: Duration = Duration::from_secs(2);
/// After so many failures nobody waits at the door any more.
const LAST_RETRY_LONG: Duration = Duration::from_secs(10);
const PATIENCE: u32 = 30;

/// Who one is, for as long as one keeps it: 32 random bytes.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// A new one.
    ///
    /// # Panics
    /// If the system has no randomness.
    pub fn random() -> Self {
        let mut bytes = [0; 32];
        SystemRandom::new()
            .fill(&mut bytes)
            .expect("the system has randomness");
        Self(bytes)
    }

    fn to_hex(&self) -> String {
        data_encoding::HEXLOWER.encode(&self.0)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(***)")
    }
}

/// What one says first.
#[derive(Clone, Debug)]
pub struct Hello {
    /// Who one is.
    pub secret: Secret,
    /// 1 to 64 code points.
    pub name: String,
    /// Wanted if the room is new, Hz.
    pub sample_rate_hz: u32,
    /// Of a room that is locked; later on what the room has, should a server that was restarted have to make it again.
    pub passphrase: Option<String>,
    /// Plays by itself: the room is owned by somebody else, if anybody is there.
    pub bot: bool,
    /// Whether the server has ever let it in; false at first.
    pub returning: bool,
}

/// To the server.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToServer {
    /// Passed on unread.
    Signal {
        /// A participant's id.
        to: String,
        /// An object.
        data: Value,
    },
    /// By the owner only.
    Moderate {
        /// A participant's id.
        to: String,
        /// What for.
        action: Moderation,
    },
    /// Leaves at once.
    Leave {},
}

/// What a room's owner does about somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Moderation {
    /// Nobody hears it.
    Mute,
    /// No longer.
    Unmute,
    /// It is no longer in the room.
    Remove,
}

/// Another in the room.
#[derive(Clone, Debug, Deserialize)]
pub struct RemoteParticipant {
    /// Its id.
    pub id: String,
    /// Its number in the room.
    #[serde(default)]
    pub stream: u16,
    /// For people.
    pub name: String,
    /// Whether its connection to the server is there.
    pub present: bool,
    /// By the owner.
    #[serde(default)]
    pub muted: bool,
}

/// Where the relay is.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct RelayAddress {
    /// UDP port.
    pub port: u16,
    /// Stands for one participant.
    pub token: String,
    /// 64 hex digits each; none: the certificate is one that this machine trusts.
    pub certificate_hashes: Vec<String>,
}

/// One is in.
#[derive(Clone, Debug, Deserialize)]
pub struct Welcome {
    /// One's id.
    pub id: String,
    /// One's number in the room.
    #[serde(default)]
    pub stream: u16,
    /// The room's, Hz.
    pub sample_rate_hz: u32,
    /// The others, in order of joining.
    pub participants: Vec<RemoteParticipant>,
    /// Who may moderate, by its id.
    #[serde(default)]
    pub owner: String,
    /// Whether newcomers need a passphrase.
    pub locked: bool,
    /// By the owner: nobody hears us.
    #[serde(default)]
    pub muted: bool,
    /// `None` where the server has no relay.
    #[serde(default)]
    pub relay: Option<RelayAddress>,
    /// False: the server did not know us any more, or not yet.
    pub resumed: bool,
    /// For direct lanes.
    #[serde(default)]
    pub ice_servers: Vec<IceServer>,
}

/// A STUN or TURN server.
#[derive(Clone, Debug, Deserialize)]
pub struct IceServer {
    /// `stun:HOST:PORT` or `turn:HOST:PORT`; more than one with TURN.
    pub urls: Urls,
    /// Of TURN.
    #[serde(default)]
    pub username: Option<String>,
    /// Of TURN.
    #[serde(default)]
    pub credential: Option<Credential>,
}

/// What a TURN server wants to hear.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub struct Credential(String);

impl Credential {
    /// The text.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Credential {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credential(***)")
    }
}

/// As in a browser: one, or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Urls {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl Urls {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        match self {
            Self::One(url) => std::slice::from_ref(url),
            Self::Many(urls) => urls,
        }
        .iter()
        .map(String::as_str)
    }
}

/// From the server. Fields that are not read here are passed over: the server may know more than we do.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromServer {
    /// One is in.
    Welcome(Box<Welcome>),
    /// Somebody came.
    Joined {
        /// Who.
        participant: RemoteParticipant,
    },
    /// Somebody's connection to the server broke.
    Away {
        /// Who.
        id: String,
    },
    /// And returned.
    Back {
        /// Who.
        id: String,
    },
    /// Gone for good.
    Left {
        /// Who.
        id: String,
    },
    /// Somebody's new name.
    Renamed {
        /// Who.
        id: String,
        /// The name.
        name: String,
    },
    /// Somebody else may moderate now.
    Owner {
        /// Who.
        id: String,
    },
    /// Muted, or not any more, by the owner.
    Muted {
        /// Who; oneself included.
        id: String,
        /// Whether.
        muted: bool,
    },
    /// Newcomers need a passphrase from now on, another, or none.
    Locked {
        /// Which; `None`: none.
        passphrase: Option<String>,
    },
    /// The relay's certificate changed.
    Relay {
        /// As in `welcome`.
        relay: Option<RelayAddress>,
    },
    /// From another participant.
    Signal {
        /// Who.
        from: String,
        /// What.
        data: Value,
    },
    /// Something went wrong.
    Error {
        /// `docs/protocol.md` has a table of them.
        code: String,
        /// For people.
        message: String,
    },
    /// Of a newer server.
    #[serde(other)]
    Unknown,
}

/// What the server says. Most of it is shown to people: no text has control characters.
fn parse(text: &str) -> Option<FromServer> {
    let mut message: Value = serde_json::from_str(text).ok()?;
    // Signals are for programs, and a passphrase has to be said again as it is.
    if !matches!(message["type"].as_str(), Some("signal" | "locked")) {
        clean(&mut message);
    }
    serde_json::from_value(message).ok()
}

fn clean(value: &mut Value) {
    match value {
        Value::String(text) => *text = printable(text),
        Value::Array(values) => values.iter_mut().for_each(clean),
        Value::Object(fields) => fields.values_mut().for_each(clean),
        _ => {}
    }
}

/// What a stranger wrote, without control characters: some would be commands to the terminal.
pub(crate) fn printable(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

/// After these, trying again would change nothing.
const FINAL_ERRORS: [&str; 7] = [
    "bad_message",
    "bad_version",
    "room_full",
    "server_full",
    "passphrase",
    "removed",
    "replaced",
];

/// What the connection tells.
#[derive(Debug)]
pub enum SignallingEvent {
    /// From the server; `address` is the server's own, where its relay is too.
    Message {
        /// What.
        message: FromServer,
        /// The server's.
        address: IpAddr,
    },
    /// There is no connection; it is being made again. Why, for people.
    Offline(String),
    /// There will be none any more. Why, for people.
    Ended(String),
}

type Socket = WebSocketStream<Box<dyn Wire>>;

enum End {
    /// Retry.
    Broken(String),
    /// Do not.
    Final(String),
    /// For now: too much was said, or too often something wrong, and not by us alone.
    TooFast(String),
    /// We left.
    Left,
}

/// Keeps the connection until the server refuses us for good, or until `outgoing` is closed or says `leave`; tells all by `events`.
///
/// What is sent while there is no connection is kept, and sent after the next `welcome`.
pub async fn run(
    link: RoomLink,
    mut hello: Hello,
    mut outgoing: mpsc::Receiver<ToServer>,
    events: mpsc::Sender<SignallingEvent>,
) {
    let mut failures = 0u32;
    let mut server = None;
    loop {
        let end = match timeout(CONNECT_TIMEOUT, connect(&link, server)).await {
            Err(_) => End::Broken(unreachable(&link, "the server does not answer")),
            Ok(Err(error)) => {
                // Whoever was in has the right link.
                let may_be_https = !link.is_secure && !hello.returning;
                let why = unreachable(&link, &explained(&error, may_be_https));
                // Whoever was in knows that it is there: what stands before a server that is started again may say so, too.
                if is_elsewhere(&error) && !hello.returning {
                    End::Final(why)
                } else {
                    End::Broken(why)
                }
            }
            Ok(Ok((socket, address))) => {
                server = Some(address);
                let mut welcomed = false;
                let end = talk(
                    socket,
                    address,
                    &mut hello,
                    &mut outgoing,
                    &events,
                    &mut welcomed,
                    SILENCE_TIMEOUT,
                )
                .await;
                if welcomed {
                    (failures, hello.returning) = (0, true);
                }
                end
            }
        };
        let why = match end {
            End::Left => return,
            End::TooFast(why) if hello.returning => why,
            End::Final(why) | End::TooFast(why) => {
                let _ = events.send(SignallingEvent::Ended(why)).await;
                return;
            }
            End::Broken(why) => why,
        };
        if events.send(SignallingEvent::Offline(why)).await.is_err() {
            return;
        }
        tokio::time::sleep(retry_after(failures)).await;
        failures = failures.saturating_add(1);
    }
}

fn unreachable(link: &RoomLink, why: &str) -> String {
    format!("{}:{}: {why}", link.host, link.port)
}

/// Where the server listens is another one, so that a room's link is wrong.
fn is_elsewhere(error: &io::Error) -> bool {
    refusal(error).is_some_and(|response| response.status() == 404)
}

/// What was said instead of opening a WebSocket.
fn refusal(error: &io::Error) -> Option<&Response> {
    match error.get_ref()?.downcast_ref()? {
        tungstenite::Error::Http(response) => Some(response),
        _ => None,
    }
}

/// What a user may do about it, where that is known.
fn explained(error: &io::Error, may_be_https: bool) -> String {
    if let Some(response) = refusal(error) {
        let place = response.headers().get("location");
        return match (response.status().as_u16(), place.map(|to| to.to_str())) {
            (404, _) => "there is no such room, or no Antiphon server: is the link whole?".into(),
            (300..400, Some(Ok(to))) => {
                let to = printable(to);
                format!("it is elsewhere, at {to}: take the link that a browser shows in the room")
            }
            (421, _) => {
                "it serves its own machine only: has it been started with --public-url?".into()
            }
            (429, _) => "it has too many connections from this address".into(),
            (status, _) => {
                format!("it answers HTTP {status}: is an Antiphon server there, and does it run?")
            }
        };
    }
    let inner = error.get_ref();
    let tls = inner.and_then(|inner| inner.downcast_ref());
    let is_cut_off = match inner.and_then(|inner| inner.downcast_ref()) {
        Some(tungstenite::Error::Io(error)) => error.kind() == io::ErrorKind::ConnectionReset,
        Some(tungstenite::Error::Protocol(_)) => true,
        _ => false,
    };
    match (error.kind(), tls) {
        (io::ErrorKind::ConnectionRefused, _) => {
            "nothing listens there: does the server run, and is this its port?".into()
        }
        (_, Some(rustls::Error::InvalidMessage(_))) => {
            "no HTTPS there: does the room's link begin with http://?".into()
        }
        (_, Some(rustls::Error::InvalidCertificate(why))) => format!(
            "this machine does not trust the server's certificate ({why}): is the name in the link right? One that you made \
             yourself is to be added to this machine's, or named by SSL_CERT_FILE"
        ),
        _ if is_cut_off && may_be_https => {
            "it hangs up: does the room's link begin with https://?".into()
        }
        _ => error.to_string(),
    }
}

/// The wait before retry number `failures`; spread by a random half, so that a restarted server is not stormed.
fn retry_after(failures: u32) -> Duration {
    if failures == 0 {
        return Duration::ZERO;
    }
    let last = if failures < PATIENCE {
        LAST_RETRY
    } else {
        LAST_RETRY_LONG
    };
    let wait = FIRST_RETRY
        .saturating_mul(1 << (failures - 1).min(10))
        .min(last);
    let mut random = [0];
    // Without randomness all wait as long: no harm.
    let _ = SystemRandom::new().fill(&mut random);
    wait / 2 + wait * u32::from(random[0]) / 512
}

/// `last`: where the server was.
async fn connect(link: &RoomLink, last: Option<IpAddr>) -> io::Result<(Socket, IpAddr)> {
    let addresses = lookup_host((link.host_name(), link.port)).await?;
    let mut addresses: Vec<_> = addresses.collect();
    // The same family again: the relay's sessions are of it.
    addresses.sort_by_key(|address| last.is_some_and(|it| it.is_ipv4() != address.is_ipv4()));
    let tcp = reach(&addresses).await?;
    tcp.set_nodelay(true)?;
    let address = tcp.peer_addr()?.ip();
    let wire: Box<dyn Wire> = if link.is_secure {
        tls::connect(tcp, link.host_name()).await?
    } else {
        Box::new(tcp)
    };
    let limits = WebSocketConfig::default()
        .max_message_size(Some(MAX_MESSAGE_BYTES))
        .max_frame_size(Some(MAX_MESSAGE_BYTES));
    let (socket, _) = client_async_with_config(link.signalling_url(), wire, Some(limits))
        .await
        .map_err(io::Error::other)?;
    Ok((socket, address))
}

/// Connects to the address that answers first. Each is tried a moment after the one before: a whole family of them may be a black hole.
/// RFC 8305, section 5.
pub(crate) async fn reach(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    if addresses.is_empty() {
        return Err(io::Error::other("the server's name has no address"));
    }
    let attempts = (0..).zip(addresses).map(|(n, &address)| {
        Box::pin(async move {
            tokio::time::sleep(n * ATTEMPT_DELAY).await;
            TcpStream::connect(address).await
        })
    });
    select_ok(attempts).await.map(|(tcp, _)| tcp)
}

async fn talk(
    mut socket: Socket,
    address: IpAddr,
    hello: &mut Hello,
    outgoing: &mut mpsc::Receiver<ToServer>,
    events: &mpsc::Sender<SignallingEvent>,
    welcomed: &mut bool,
    silence: Duration,
) -> End {
    let mut first = serde_json::json!({
        "type": "hello",
        "version": VERSION,
        "secret": hello.secret.to_hex(),
        "name": hello.name,
        "sample_rate_hz": hello.sample_rate_hz,
    });
    if hello.bot {
        first["bot"] = true.into();
    }
    if hello.returning {
        first["returning"] = true.into();
    }
    if let Some(passphrase) = &hello.passphrase {
        first["passphrase"] = passphrase.as_str().into();
    }
    let mut heard_at = Instant::now();
    if let Err(end) = say(
        &mut socket,
        Message::text(first.to_string()),
        heard_at + silence,
    )
    .await
    {
        return end;
    }
    let mut pings = interval_at(Instant::now() + silence / 3, silence / 3);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            // What is said to it meanwhile proves nothing.
            message = timeout_at(heard_at + silence, socket.next()) => {
                heard_at = Instant::now();
                let text = match message {
                    Err(_) => return silent(),
                    Ok(None) => return End::Broken("the server closed the connection".into()),
                    Ok(Some(Err(error))) => return End::Broken(error.to_string()),
                    Ok(Some(Ok(Message::Text(text)))) => text,
                    // Pings are answered by the library.
                    Ok(Some(Ok(_))) => continue,
                };
                let Some(message) = parse(&text) else { continue };
                match &message {
                    FromServer::Welcome(welcome) => {
                        *welcomed = true;
                        // The room's, should a server that was restarted have to make it again.
                        hello.sample_rate_hz = welcome.sample_rate_hz;
                        if !welcome.locked {
                            hello.passphrase = None;
                        }
                    }
                    FromServer::Locked { passphrase } => hello.passphrase.clone_from(passphrase),
                    FromServer::Error { code, message } if code == "too_fast" => {
                        return End::TooFast(message.clone());
                    }
                    FromServer::Error { code, message } if FINAL_ERRORS.contains(&code.as_str()) => {
                        let how = if code == "passphrase" {
                            ": say it by ANTIPHON_PASSPHRASE or --passphrase"
                        } else {
                            ""
                        };
                        return End::Final(format!("{message}{how}"));
                    }
                    _ => {}
                }
                if events.send(SignallingEvent::Message { message, address }).await.is_err() {
                    return End::Left;
                }
            }
            _ = pings.tick() => {
                let ping = Message::Ping(Default::default());
                if let Err(end) = say(&mut socket, ping, heard_at + silence).await {
                    return end;
                }
            }
            message = outgoing.recv(), if *welcomed => {
                let Some(message) = message else { return End::Left };
                let leaves = matches!(message, ToServer::Leave {});
                let Ok(text) = serde_json::to_string(&message) else { continue };
                if let Err(end) = say(&mut socket, Message::text(text), heard_at + silence).await {
                    return end;
                }
                if leaves {
                    // Until the server closes: a connection that is dropped with something unread is reset, and what was said last may be lost with it.
                    let farewell = async { while let Some(Ok(_)) = socket.next().await {} };
                    let _ = timeout(Duration::from_secs(1), farewell).await;
                    return End::Left;
                }
            }
        }
    }
}

/// `deadline`: a server that takes nothing more is not heard meanwhile, either, and may be gone.
async fn say(socket: &mut Socket, message: Message, deadline: Instant) -> Result<(), End> {
    match timeout_at(deadline, socket.send(message)).await {
        Err(_) => Err(silent()),
        Ok(sent) => sent.map_err(|error| End::Broken(error.to_string())),
    }
}

fn silent() -> End {
    End::Broken("the server is silent".into())
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::{collection::vec, prelude::*, sample::select};
    use serde_json::json;
    use tokio::net::TcpListener;
    use tokio_tungstenite::accept_async;

    use super::*;

    #[test]
    fn a_restarted_server_has_everybody_back_within_three_seconds() {
        assert_eq!(retry_after(0), Duration::ZERO);
        for failures in 1..PATIENCE {
            assert!(retry_after(failures) <= LAST_RETRY, "{failures}");
        }
        assert!(retry_after(PATIENCE + 5) > LAST_RETRY);
    }

    fn hello() -> Hello {
        Hello {
            secret: Secret::random(),
            name: "Ann".into(),
            sample_rate_hz: 48_000,
            passphrase: None,
            bot: false,
            returning: false,
        }
    }

    pub(crate) fn welcome(locked: bool) -> Value {
        serde_json::json!({"type": "welcome", "version": 1, "id": "00", "stream": 1, "room": "abcdefghijklmnop",
            "sample_rate_hz": 48_000, "participants": [], "owner": "00", "locked": locked, "muted": false,
            "ice_servers": [], "relay": null, "resumed": false})
    }

    /// Where the server listens, and its room.
    pub(crate) async fn room() -> (TcpListener, RoomLink) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let link = format!("http://127.0.0.1:{port}/r/abcdefghijklmnop");
        (listener, link.parse().expect("a link"))
    }

    fn too_fast() -> Value {
        serde_json::json!({"type": "error", "code": "too_fast", "message": "so it is"})
    }

    /// A participant's connection, and what it says first.
    pub(crate) async fn accept(listener: &TcpListener) -> (WebSocketStream<TcpStream>, Message) {
        let (tcp, _) = listener.accept().await.expect("a connection");
        let mut socket = accept_async(tcp).await.expect("a WebSocket");
        let hello = socket.next().await.expect("a message").expect("a hello");
        (socket, hello)
    }

    /// What a participant says first, and then gets to hear before its connection breaks.
    async fn meet(listener: &TcpListener, told: &[Value]) -> Value {
        let (mut socket, hello) = accept(listener).await;
        for message in told {
            let sent = socket.send(Message::text(message.to_string())).await;
            sent.expect("it is there");
        }
        serde_json::from_str(hello.to_text().expect("text")).expect("JSON")
    }

    #[tokio::test]
    async fn a_hello_says_the_passphrase_that_the_room_has_now() {
        let (listener, link) = room().await;
        let lock = |passphrase: Option<&str>| serde_json::json!({"type": "locked", "locked": passphrase.is_some(), "passphrase": passphrase});
        let (_to_server, outgoing) = mpsc::channel(1);
        let (events, mut told) = mpsc::channel(1);
        let talking = run(link, hello(), outgoing, events);
        let listening = async { while told.recv().await.is_some() {} };
        let serving = async {
            let first = meet(&listener, &[welcome(false), lock(Some("x"))]).await;
            assert_eq!(first.get("passphrase"), None);
            assert_eq!(first.get("returning"), None);
            let second = meet(&listener, &[welcome(true), lock(Some("y"))]).await;
            assert_eq!(second["passphrase"], "x");
            assert_eq!(second["returning"], true, "it was in");
            let third = meet(&listener, &[welcome(true), lock(None)]).await;
            assert_eq!(third["passphrase"], "y");
            let fourth = meet(&listener, &[welcome(true), lock(Some("z"))]).await;
            assert_eq!(fourth.get("passphrase"), None);
            let fifth = meet(&listener, &[welcome(false)]).await;
            assert_eq!(fifth["passphrase"], "z");
            let sixth = meet(&listener, &[]).await;
            assert_eq!(sixth.get("passphrase"), None, "it was unlocked meanwhile");
            let seventh = meet(&listener, &[too_fast()]).await;
            let eighth = meet(&listener, &[]).await;
            assert_eq!(seventh, eighth, "who was in comes again");
        };
        tokio::select! {
            () = serving => {}
            ((), ()) = async { tokio::join!(talking, listening) } => panic!("it gave up"),
        }
    }

    /// What a participant is told first where each connection gets this answer, or an alert for none; then the whole link.
    async fn told_where(answer: &[u8], hello: Hello) -> (SignallingEvent, RoomLink) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (listener, link) = room().await;
        let (_to_server, outgoing) = mpsc::channel(1);
        let (events, mut told) = mpsc::channel(16);
        let serving = async {
            loop {
                let (mut tcp, _) = listener.accept().await.expect("a connection");
                let _ = tcp.read(&mut [0; 2_048]).await;
                tcp.write_all(answer).await.expect("it is there");
            }
        };
        let all = async {
            tokio::select! {
                () = serving => unreachable!("it never ends"),
                () = async {
                    run(link.clone(), hello, outgoing, events).await;
                    std::future::pending().await
                } => unreachable!(),
                event = told.recv() => event.expect("an event"),
            }
        };
        let event = timeout(SILENCE_TIMEOUT, all).await;
        (event.expect("it is told"), link)
    }

    #[tokio::test]
    async fn who_has_a_wrong_link_is_told_so() {
        let offline = async |answer: &[u8]| match told_where(answer, hello()).await.0 {
            SignallingEvent::Offline(why) => why,
            event => panic!("{event:?}"),
        };
        let missing = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
        let (event, link) = told_where(missing, hello()).await;
        let expected = format!(
            "127.0.0.1:{}: there is no such room, or no Antiphon server: is the link whole?",
            link.port
        );
        assert!(matches!(event, SignallingEvent::Ended(why) if why == expected));
        let returning = Hello {
            returning: true,
            ..hello()
        };
        let event = told_where(missing, returning).await.0;
        assert!(
            matches!(event, SignallingEvent::Offline(_)),
            "it was there: {event:?}"
        );
        let moved = b"HTTP/1.1 301 Moved\r\nlocation: https://b/r\r\ncontent-length: 0\r\n\r\n";
        assert!(
            offline(moved)
                .await
                .contains("it is elsewhere, at https://b/r")
        );
        let gateway = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n";
        assert!(offline(gateway).await.contains("HTTP 502"));
        // As a server of HTTPS answers HTTP.
        let alert = b"\x15\x03\x03\x00\x02\x02\x46";
        let said = [offline(alert).await, offline(b"").await];
        assert!(said.iter().all(|why| why.contains("https://?")), "{said:?}");
        let untrusted = rustls::Error::from(rustls::CertificateError::UnknownIssuer);
        let why = explained(&io::Error::other(untrusted), false);
        assert!(
            why.contains("does not trust") && why.contains("SSL_CERT_FILE"),
            "{why}"
        );
    }

    #[tokio::test]
    async fn a_server_that_only_answers_pings_is_there() {
        const SILENCE: Duration = Duration::from_millis(300);
        let (here, there) = tokio::io::duplex(1 << 16);
        let wire: Box<dyn Wire> = Box::new(here);
        let (near, far) = tokio::join!(
            client_async_with_config("ws://localhost/", wire, None),
            accept_async(there)
        );
        let mut far = far.expect("a WebSocket");
        let (_to_server, mut outgoing) = mpsc::channel(1);
        let (events, _told) = mpsc::channel(16);
        let (mut hello, mut welcomed) = (hello(), false);
        let talking = talk(
            near.expect("a WebSocket").0,
            IpAddr::from([127, 0, 0, 1]),
            &mut hello,
            &mut outgoing,
            &events,
            &mut welcomed,
            SILENCE,
        );
        let answering = async { while let Some(Ok(_)) = far.next().await {} };
        let both = async { tokio::join!(talking, answering) };
        assert!(timeout(4 * SILENCE, both).await.is_err(), "it goes on");
    }

    #[tokio::test]
    async fn who_was_never_in_is_told_that_it_was_too_fast() {
        let (listener, link) = room().await;
        let (_to_server, outgoing) = mpsc::channel(1);
        let (events, mut told) = mpsc::channel(16);
        let told_first = [too_fast()];
        let all = async {
            tokio::join!(
                run(link, hello(), outgoing, events),
                meet(&listener, &told_first),
            )
        };
        timeout(SILENCE_TIMEOUT, all).await.expect("it ends");
        assert!(
            matches!(told.recv().await, Some(SignallingEvent::Ended(why)) if why == "so it is")
        );
    }

    #[tokio::test]
    async fn who_leaves_stays_until_the_server_has_heard_it() {
        let (listener, link) = room().await;
        let (to_server, outgoing) = mpsc::channel(1);
        let (events, mut told) = mpsc::channel(16);
        let talking = run(link, hello(), outgoing, events);
        let listening = async {
            while told.recv().await.is_some() {
                let _ = to_server.try_send(ToServer::Leave {});
            }
        };
        let serving = async {
            let (mut socket, _) = accept(&listener).await;
            let welcome = Message::text(welcome(false).to_string());
            socket.send(welcome).await.expect("it is there");
            let last = socket.next().await.expect("a message").expect("a word");
            assert_eq!(last.to_text().expect("text"), r#"{"type":"leave"}"#);
            // What others do meanwhile is told as before.
            let left = Message::text(r#"{"type":"left","id":"01"}"#);
            socket.send(left).await.expect("it is there");
            let silence = timeout(Duration::from_millis(100), socket.next()).await;
            assert!(silence.is_err(), "it is still there: {silence:?}");
            socket.close(None).await.expect("it is there");
        };
        let all = async { tokio::join!(talking, listening, serving) };
        timeout(SILENCE_TIMEOUT, all).await.expect("it leaves");
    }

    #[tokio::test]
    async fn a_server_that_is_silent_is_gone_however_much_is_said_to_it() {
        const SILENCE: Duration = Duration::from_secs(1);
        // Where what it does not read finds room, where that is soon full, and where not even the hello fits.
        for room in [1 << 20, 512, 64] {
            let (here, there) = tokio::io::duplex(room);
            let wire: Box<dyn Wire> = Box::new(here);
            let (near, far) = tokio::join!(
                client_async_with_config("ws://localhost/", wire, None),
                accept_async(there)
            );
            let mut far = far.expect("a WebSocket");
            let (to_server, mut outgoing) = mpsc::channel(1);
            let (events, _told) = mpsc::channel(16);
            let (mut hello, mut welcomed) = (hello(), false);
            let address = IpAddr::from([127, 0, 0, 1]);
            let talking = talk(
                near.expect("a WebSocket").0,
                address,
                &mut hello,
                &mut outgoing,
                &events,
                &mut welcomed,
                SILENCE,
            );
            let saying = async {
                let welcome = Message::text(welcome(false).to_string());
                far.send(welcome).await.expect("it is there");
                loop {
                    let signal = ToServer::Signal {
                        to: "01".into(),
                        data: Value::Null,
                    };
                    to_server.send(signal).await.expect("it is there");
                    tokio::time::sleep(SILENCE / 8).await;
                }
            };
            let both = async {
                tokio::select! {
                    end = talking => end,
                    () = saying => unreachable!("it never ends"),
                }
            };
            let end = timeout(10 * SILENCE, both).await.expect("it notices");
            assert!(matches!(end, End::Broken(why) if why == "the server is silent"));
        }
    }

    #[tokio::test]
    async fn an_address_that_does_not_answer_holds_nobody_up() {
        // Nobody accepts: once the queue is full, the system answers no more.
        let hole = tokio::net::TcpSocket::new_v4().expect("a socket");
        hole.bind(([127, 0, 0, 1], 0).into()).expect("a port");
        let hole = hole.listen(1).expect("it listens");
        let silent = hole.local_addr().expect("bound");
        let mut waiting = Vec::new();
        while let Ok(connected) = timeout(ATTEMPT_DELAY, TcpStream::connect(silent)).await {
            waiting.push(connected.expect("it answers"));
        }
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let answering = listener.local_addr().expect("bound");
        let refusing = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let refused = refusing.local_addr().expect("bound");
        drop(refusing);
        let reached = reach(&[silent, refused, answering]).await;
        let reached = reached.expect("it answers").peer_addr();
        assert_eq!(reached.expect("connected"), answering);
        assert!(reach(&[refused]).await.is_err());
        assert!(reach(&[]).await.is_err());
    }

    #[test]
    fn messages_are_as_the_protocol_says() {
        let signal = ToServer::Signal {
            to: "ab".into(),
            data: serde_json::json!({"kind": "close", "lane": 1}),
        };
        assert_eq!(
            serde_json::to_string(&signal).expect("JSON"),
            r#"{"type":"signal","to":"ab","data":{"kind":"close","lane":1}}"#
        );
        let moderate = ToServer::Moderate {
            to: "ab".into(),
            action: Moderation::Unmute,
        };
        assert_eq!(
            serde_json::to_string(&moderate).expect("JSON"),
            r#"{"type":"moderate","to":"ab","action":"unmute"}"#
        );
        assert_eq!(
            serde_json::to_string(&ToServer::Leave {}).expect("JSON"),
            r#"{"type":"leave"}"#
        );
        let text = r#"{"type":"welcome","version":1,"id":"00","stream":3,"room":"r","sample_rate_hz":48000,
            "participants":[{"id":"01","stream":2,"name":"Ann","present":true,"muted":false}],"owner":"01",
            "locked":false,"muted":false,"ice_servers":[{"urls":"stun:a"},
            {"urls":["turn:b"],"username":"u","credential":"hush"}],"relay":{"port":4433,"token":"00","certificate_hashes":[]},"resumed":false}"#;
        let FromServer::Welcome(welcome) = serde_json::from_str(text).expect("a welcome") else {
            panic!("a welcome");
        };
        assert_eq!((welcome.stream, welcome.participants[0].stream), (3, 2));
        let urls: Vec<&str> = (welcome.ice_servers.iter())
            .flat_map(|server| server.urls.iter())
            .collect();
        assert_eq!(urls, ["stun:a", "turn:b"]);
        assert!(!format!("{welcome:?}").contains("hush"));
        assert_eq!(welcome.relay.expect("a relay").port, 4433);
        let newer = r#"{"type":"chat","text":"hello"}"#;
        assert!(matches!(
            serde_json::from_str(newer),
            Ok(FromServer::Unknown)
        ));
    }

    #[test]
    fn what_a_server_says_is_no_command_to_the_terminal() {
        let escapes = "a\u{1b}]0;b\u{7}\u{9b}2J\r\nc";
        let shown = "a\u{fffd}]0;b\u{fffd}\u{fffd}2J\u{fffd}\u{fffd}c";
        let parsed = |message: Value| parse(&message.to_string()).expect("a message");
        let error = serde_json::json!({"type": "error", "code": "removed", "message": escapes});
        assert!(matches!(parsed(error), FromServer::Error { message, .. } if message == shown));
        let renamed = serde_json::json!({"type": "renamed", "id": "01", "name": escapes});
        assert!(matches!(parsed(renamed), FromServer::Renamed { name, .. } if name == shown));
        let mut welcome = welcome(false);
        welcome["participants"] = serde_json::json!([{"id": "01", "stream": 2, "name": escapes, "present": true, "muted": false}]);
        welcome["ice_servers"] = serde_json::json!([{"urls": [escapes]}]);
        let FromServer::Welcome(welcome) = parsed(welcome) else {
            panic!("a welcome");
        };
        assert_eq!(welcome.participants[0].name, shown);
        let urls: Vec<_> = welcome.ice_servers[0].urls.iter().collect();
        assert_eq!(urls, [shown]);
        // What nobody is shown stays as it is.
        let signal = serde_json::json!({"type": "signal", "from": "01", "data": {"sdp": escapes}});
        assert!(
            matches!(parsed(signal), FromServer::Signal { data, .. } if data["sdp"] == escapes)
        );
        let locked = serde_json::json!({"type": "locked", "passphrase": escapes});
        assert!(
            matches!(parsed(locked), FromServer::Locked { passphrase } if passphrase.as_deref() == Some(escapes))
        );
    }

    #[test]
    fn a_secret_is_not_shown() {
        let secret = Secret::random();
        assert!(!format!("{secret:?}").contains(&secret.to_hex()[..8]));
    }

    /// Text with control characters, and without what `Debug` would write with a backslash besides.
    fn text() -> impl Strategy<Value = String> {
        "[a-z é\u{0}\u{7}\u{1b}\u{9b}]{0,6}"
    }

    fn anything() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            text().prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 12, 4, |inner| {
            prop_oneof![
                vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::hash_map(text(), inner, 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    /// A message of every type, in the words of whoever says it.
    fn said(of: &str) -> Vec<Value> {
        let participant =
            json!({"id": of, "stream": 2, "name": of, "present": true, "muted": false});
        let relay = json!({"port": 4433, "token": of, "certificate_hashes": [of]});
        let mut welcome = welcome(true);
        welcome["participants"] = json!([participant]);
        welcome["ice_servers"] =
            json!([{"urls": of}, {"urls": [of], "username": of, "credential": of}]);
        welcome["relay"] = relay.clone();
        welcome["owner"] = of.into();
        let mut all = vec![
            welcome,
            json!({"type": "joined", "participant": participant}),
            json!({"type": "renamed", "id": of, "name": of}),
            json!({"type": "muted", "id": of, "muted": true}),
            json!({"type": "locked", "passphrase": of}),
            json!({"type": "relay", "relay": relay}),
            json!({"type": "signal", "from": of, "data": {"kind": of}}),
            json!({"type": "error", "code": of, "message": of}),
        ];
        all.extend(["away", "back", "left", "owner"].map(|kind| json!({"type": kind, "id": of})));
        all
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn nothing_that_a_server_says_makes_the_parser_panic(bytes in vec(any::<u8>(), 0..200), value in anything()) {
            let _ = parse(&String::from_utf8_lossy(&bytes));
            let _ = parse(&value.to_string());
        }

        #[test]
        fn whatever_a_server_changes_in_a_message_no_text_of_it_has_control_characters(
            of in text(),
            field in select(&["type", "id", "name", "participants", "participant", "relay", "ice_servers", "code"][..]),
            other in prop::option::of(anything()),
        ) {
            for mut message in said(&of) {
                prop_assert!(parse(&message.to_string()).is_some(), "{message}");
                if let Some(other) = &other {
                    message[field] = other.clone();
                }
                let kind = message["type"].clone();
                let Some(read) = parse(&message.to_string()) else { continue };
                if kind != "signal" && kind != "locked" {
                    let shown = format!("{read:?}");
                    prop_assert!(!shown.contains('\\'), "{shown}");
                }
            }
        }
    }
}
