//! The candidates that STUN and TURN servers have for a lane's sockets, and the datagrams that TURN servers relay.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use rtc::ice::url::{ProtoType, SchemeType, Url};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::signalling::{IceServer, reach};
use crate::tls::{self, Wire};
use crate::turn::{Credentials, TurnClient, TurnEvent};

/// Servers that are asked, of those that we are told of: each is asked from a socket of every lane.
const MAX_SERVERS: usize = 8;
/// For a server's address, and for a stream to it.
const PATIENCE: Duration = Duration::from_secs(5);
/// Messages that may wait for a stream: what is new is dropped, as in the network.
const STREAM_QUEUE: usize = 64;
/// Longest message from a server that is read from a stream, in bytes.
const MAX_MESSAGE_BYTES: usize = 2_048;
const HEADER_BYTES: usize = 20;

/// How a server is reached. What its relayed addresses carry is UDP in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Udp,
    Tcp,
    Tls,
}

/// A server that we are told of.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) host: String,
    port: u16,
    pub(crate) transport: Transport,
    credentials: Option<Credentials>,
}

/// The servers that can be asked. STUN by a stream tells nothing of a UDP socket, and TURN needs credentials.
pub(crate) fn servers(told: &[IceServer]) -> Vec<Server> {
    let urls = told
        .iter()
        .flat_map(|server| server.urls.iter().map(move |url| (server, url)));
    let usable = urls.filter_map(|(server, url)| {
        let url = Url::parse_url(url).ok()?;
        let transport = match (url.scheme, url.proto) {
            (SchemeType::Stun | SchemeType::Turn, ProtoType::Udp) => Transport::Udp,
            (SchemeType::Turn, ProtoType::Tcp) => Transport::Tcp,
            (SchemeType::Turns, ProtoType::Tcp) => Transport::Tls,
            _ => return None,
        };
        let credentials = match url.scheme {
            SchemeType::Stun => None,
            _ => Some(Credentials {
                username: server.username.clone()?,
                credential: server.credential.clone()?,
            }),
        };
        Some(Server {
            host: url.host,
            port: url.port,
            transport,
            credentials,
        })
    });
    usable.take(MAX_SERVERS).collect()
}

impl Server {
    /// Its addresses, one of each family at most.
    pub(crate) async fn resolve(&self) -> Vec<SocketAddr> {
        let found = timeout(
            PATIENCE,
            tokio::net::lookup_host((self.host.as_str(), self.port)),
        );
        let Ok(Ok(found)) = found.await else {
            return Vec::new();
        };
        let found: Vec<SocketAddr> = found.collect();
        let of_family = |is_ipv4| found.iter().find(|it| it.is_ipv4() == is_ipv4).copied();
        of_family(true)
            .into_iter()
            .chain(of_family(false))
            .collect()
    }

    /// A stream to the one of its addresses that answers first: this end's address, that one, and the stream.
    ///
    /// # Errors
    /// Of the network, of TLS, or it took too long.
    pub(crate) async fn connect(
        &self,
        addresses: &[SocketAddr],
    ) -> io::Result<(SocketAddr, SocketAddr, Box<dyn Wire>)> {
        let connecting = async {
            let tcp = reach(addresses).await?;
            tcp.set_nodelay(true)?;
            let (local, address) = (tcp.local_addr()?, tcp.peer_addr()?);
            let wire: Box<dyn Wire> = match self.transport {
                Transport::Tls => tls::connect(tcp, &self.host).await?,
                Transport::Udp | Transport::Tcp => Box::new(tcp),
            };
            Ok((local, address, wire))
        };
        timeout(PATIENCE, connecting).await?
    }
}

/// What a stream to a server takes, and its other end.
pub(crate) fn stream_queue() -> (mpsc::Sender<Vec<u8>>, mpsc::Receiver<Vec<u8>>) {
    mpsc::channel(STREAM_QUEUE)
}

/// Carries messages by a stream, each way, until it ends or carries nonsense.
///
/// # Errors
/// Of the network; what came is no STUN message.
pub(crate) async fn carry(
    wire: Box<dyn Wire>,
    mut outgoing: mpsc::Receiver<Vec<u8>>,
    mut receive: impl FnMut(BytesMut),
) -> io::Result<()> {
    let (mut reader, mut writer) = tokio::io::split(wire);
    let reading = async {
        loop {
            let mut message = BytesMut::zeroed(HEADER_BYTES);
            reader.read_exact(&mut message).await?;
            // Without channels all that comes is STUN, which has its length in the header and begins with two zero bits.
            let length = HEADER_BYTES + usize::from(u16::from_be_bytes([message[2], message[3]]));
            if message[0] >> 6 != 0 || length > MAX_MESSAGE_BYTES {
                return Err(io::ErrorKind::InvalidData.into());
            }
            message.resize(length, 0);
            reader.read_exact(&mut message[HEADER_BYTES..]).await?;
            receive(message);
        }
    };
    let writing = async {
        while let Some(message) = outgoing.recv().await {
            writer.write_all(&message).await?;
            writer.flush().await?;
        }
        Ok(())
    };
    tokio::select! {
        ended = reading => ended,
        ended = writing => ended,
    }
}

/// What the servers gave.
#[derive(Debug)]
pub(crate) enum Gathered {
    /// A socket's address, as a server sees it.
    Reflexive {
        /// The socket's own.
        base: SocketAddr,
        /// The other.
        mapped: SocketAddr,
    },
    /// A server passes on what comes to this address.
    Relayed(SocketAddr),
    /// And does so no longer.
    Lost(SocketAddr),
    /// And did.
    Data {
        /// That address.
        relayed: SocketAddr,
        /// Where it is from.
        peer: SocketAddr,
        /// What came.
        bytes: BytesMut,
    },
    /// A server gives nothing: why, for people.
    Failed(String),
}

/// By what a server is asked.
enum Way {
    Socket(Rc<UdpSocket>),
    Stream(mpsc::Sender<Vec<u8>>),
}

impl Way {
    /// A full buffer loses it, as the network may.
    fn send(&self, bytes: Vec<u8>, server: SocketAddr) {
        match self {
            Self::Socket(socket) => drop(socket.try_send_to(&bytes, server)),
            Self::Stream(stream) => drop(stream.try_send(bytes)),
        }
    }
}

struct Asked {
    host: String,
    address: SocketAddr,
    local: SocketAddr,
    way: Way,
    is_turn: bool,
    client: TurnClient,
}

/// All servers of a lane. What they relay ends with this.
#[derive(Default)]
pub(crate) struct Gatherer {
    asked: Vec<Asked>,
    /// Addresses that were gathered already: base, and as seen.
    seen: HashSet<(SocketAddr, SocketAddr)>,
    gathered: VecDeque<Gathered>,
}

impl Gatherer {
    /// Asks a server, from the socket by which the system would reach it.
    pub(crate) fn ask(
        &mut self,
        server: &Server,
        address: SocketAddr,
        sockets: &[(SocketAddr, Rc<UdpSocket>)],
        now: Instant,
    ) {
        let route = route_to(address);
        let of_family = || {
            sockets
                .iter()
                .filter(|(local, _)| local.is_ipv4() == address.is_ipv4())
        };
        let socket = of_family()
            .find(|(local, _)| Some(local.ip()) == route)
            .or_else(|| of_family().next());
        // Two names of one server are one; but it may be told of for STUN and for TURN.
        let is_known = |local| {
            let is_turn = server.credentials.is_some();
            let same = |it: &Asked| (it.address, it.local, it.is_turn) == (address, local, is_turn);
            self.asked.iter().any(same)
        };
        if let Some((local, socket)) = socket.filter(|(local, _)| !is_known(*local)) {
            self.add(server, address, *local, Way::Socket(socket.clone()), now);
        }
    }

    /// Asks a server by a stream.
    pub(crate) fn ask_by_stream(
        &mut self,
        server: &Server,
        address: SocketAddr,
        local: SocketAddr,
        stream: mpsc::Sender<Vec<u8>>,
        now: Instant,
    ) {
        self.add(server, address, local, Way::Stream(stream), now);
    }

    fn add(
        &mut self,
        server: &Server,
        address: SocketAddr,
        local: SocketAddr,
        way: Way,
        now: Instant,
    ) {
        if let Ok(client) = TurnClient::new(server.credentials.clone(), now) {
            self.asked.push(Asked {
                host: server.host.clone(),
                address,
                local,
                way,
                is_turn: server.credentials.is_some(),
                client,
            });
            self.flush();
        }
    }

    /// The stream from there has ended, and with it what was asked for by it.
    pub(crate) fn handle_stream_end(&mut self, local: SocketAddr, why: &io::Error) {
        for asked in &mut self.asked {
            if asked.local == local && matches!(asked.way, Way::Stream(_)) {
                asked
                    .client
                    .fail(format!("has ended the connection: {why}"));
            }
        }
        self.flush();
    }

    /// What came to a socket; false if it is not from a server.
    pub(crate) fn handle_read(
        &mut self,
        local: SocketAddr,
        from: SocketAddr,
        bytes: &[u8],
        now: Instant,
    ) -> bool {
        let mut is_from_server = false;
        for asked in self
            .asked
            .iter_mut()
            .filter(|it| (it.address, it.local) == (from, local))
        {
            is_from_server = true;
            // What is malformed or forged is dropped, and so is what another client asked for.
            let _ = asked.client.handle_read(bytes, now);
        }
        self.flush();
        is_from_server
    }

    /// Sends by the server that relays for `relayed`; false if none does.
    pub(crate) fn send(
        &mut self,
        relayed: SocketAddr,
        peer: SocketAddr,
        bytes: &[u8],
        now: Instant,
    ) -> bool {
        let asked = (self.asked.iter_mut()).find(|it| it.client.relayed() == Some(relayed));
        let Some(asked) = asked else { return false };
        let _ = asked.client.send(peer, bytes, now);
        self.flush();
        true
    }

    pub(crate) fn poll_event(&mut self) -> Option<Gathered> {
        self.gathered.pop_front()
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let timeouts = self.asked.iter().filter_map(|it| it.client.poll_timeout());
        timeouts.min()
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        for asked in &mut self.asked {
            let _ = asked.client.handle_timeout(now);
        }
        self.flush();
    }

    fn flush(&mut self) {
        for asked in &mut self.asked {
            while let Some(bytes) = asked.client.poll_transmit() {
                asked.way.send(bytes, asked.address);
            }
            while let Some(event) = asked.client.poll_event() {
                self.gathered.push_back(match event {
                    // Without a NAT it is the socket's own. A stream's is of no use to others.
                    TurnEvent::Reflexive(mapped)
                        if matches!(asked.way, Way::Socket(_))
                            && asked.local != mapped
                            && self.seen.insert((asked.local, mapped)) =>
                    {
                        Gathered::Reflexive {
                            base: asked.local,
                            mapped,
                        }
                    }
                    TurnEvent::Reflexive(_) => continue,
                    TurnEvent::Relayed(relayed) => Gathered::Relayed(relayed),
                    TurnEvent::Lost(relayed) => Gathered::Lost(relayed),
                    TurnEvent::Data(peer, bytes) => match asked.client.relayed() {
                        Some(relayed) => Gathered::Data {
                            relayed,
                            peer,
                            bytes,
                        },
                        None => continue,
                    },
                    TurnEvent::Failed(why) => {
                        Gathered::Failed(format!("the server {} {why}", asked.host))
                    }
                });
            }
        }
    }
}

/// The servers need not wait until what they relay ends by itself.
impl Drop for Gatherer {
    fn drop(&mut self) {
        for asked in &mut self.asked {
            if let Some(bytes) = asked.client.release() {
                asked.way.send(bytes, asked.address);
            }
        }
    }
}

/// The address of the interface by which the system reaches `address`. Connecting a UDP socket sends nothing.
pub(crate) fn route_to(address: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = std::net::UdpSocket::bind((any, 0)).ok()?;
    socket.connect(address).ok()?;
    socket.local_addr().ok().map(|own| own.ip())
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};
    use serde_json::json;
    use tokio::io::duplex;

    use super::*;

    #[test]
    fn of_what_it_is_told_it_asks_what_it_can() {
        let told = json!([
            {"urls": "stun:stun.example.org"},
            {"urls": ["stuns:stun.example.org", "stun:", "https://example.org", ""]},
            {"urls": ["turn:turn.example.org", "turn:turn.example.org:443?transport=tcp"],
                "username": "ann", "credential": "hush"},
            {"urls": "turn:[2001:db8::1]:99?transport=udp", "username": "ann", "credential": "hush"},
            {"urls": ["turns:turn.example.org", "turns:turn.example.org?transport=udp"],
                "username": "ann", "credential": "hush"},
            {"urls": "turn:nobody.example.org"},
        ]);
        let told: Vec<IceServer> = serde_json::from_value(told).expect("servers");
        let asked = servers(&told);
        let said: Vec<_> = (asked.iter())
            .map(|it| {
                (
                    it.host.as_str(),
                    it.port,
                    it.transport,
                    it.credentials.is_some(),
                )
            })
            .collect();
        assert_eq!(
            said,
            [
                ("stun.example.org", 3478, Transport::Udp, false),
                ("turn.example.org", 3478, Transport::Udp, true),
                ("turn.example.org", 443, Transport::Tcp, true),
                ("2001:db8::1", 99, Transport::Udp, true),
                ("turn.example.org", 5349, Transport::Tls, true),
            ]
        );
        assert!(!format!("{asked:?}").contains("hush"));
        let many = vec![told[0].clone(); 100];
        assert_eq!(servers(&many).len(), MAX_SERVERS);
    }

    /// What is received of `bytes`, and how that ends.
    async fn carried(bytes: &[u8]) -> (Vec<BytesMut>, io::ErrorKind) {
        let (near, mut far) = duplex(8_192);
        far.write_all(bytes).await.expect("room");
        drop(far);
        let (_stream, outgoing) = stream_queue();
        let mut received = Vec::new();
        let ended = carry(Box::new(near), outgoing, |it| received.push(it)).await;
        (received, ended.expect_err("it has ended").kind())
    }

    #[tokio::test]
    async fn a_stream_carries_whole_messages_and_ends_with_nonsense() {
        let message = |length: u16| {
            let mut bytes = vec![0; HEADER_BYTES + usize::from(length)];
            bytes[2..4].copy_from_slice(&length.to_be_bytes());
            bytes
        };
        let longest = (MAX_MESSAGE_BYTES - HEADER_BYTES) as u16;
        let two = [message(8), message(longest)].concat();
        let (received, end) = carried(&two).await;
        assert_eq!(received.concat(), two);
        assert_eq!((received.len(), end), (2, io::ErrorKind::UnexpectedEof));
        let (received, end) = carried(&two[..two.len() - 1]).await;
        assert_eq!((received.len(), end), (1, io::ErrorKind::UnexpectedEof));
        for nonsense in [message(longest + 1), vec![0x40; 64], vec![0xff; 64]] {
            let (received, end) = carried(&nonsense).await;
            assert_eq!((received.len(), end), (0, io::ErrorKind::InvalidData));
        }
    }

    /// Something like a message: its first byte, the length that it says, and how many bytes follow the header.
    fn part() -> impl Strategy<Value = Vec<u8>> {
        let first = prop_oneof![9 => 0..0x40u8, 1 => any::<u8>()];
        let length = prop_oneof![9 => 0..60u16, 1 => 2_020..=2_030u16, 1 => any::<u16>()];
        let missing = prop_oneof![9 => Just(0), 1 => 0..60usize];
        (first, length, missing).prop_map(|(first, length, missing)| {
            let mut bytes = vec![first; HEADER_BYTES + usize::from(length.min(2_048))];
            bytes[2..4].copy_from_slice(&length.to_be_bytes());
            bytes.truncate(bytes.len().saturating_sub(missing));
            bytes
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn of_whatever_a_stream_carries_all_that_comes_is_whole_and_in_order(parts in vec(part(), 0..4)) {
            let bytes = parts.concat();
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            let (received, end) = runtime.block_on(carried(&bytes));
            let mut rest = &bytes[..];
            let length = |it: &[u8]| HEADER_BYTES + usize::from(u16::from_be_bytes([it[2], it[3]]));
            for message in received {
                prop_assert!(message[0] < 0x40 && message.len() <= MAX_MESSAGE_BYTES);
                prop_assert_eq!(message.len(), length(&message));
                prop_assert!(rest.starts_with(&message));
                rest = &rest[message.len()..];
            }
            let is_whole = rest.len() >= HEADER_BYTES;
            let is_nonsense = is_whole && (rest[0] >= 0x40 || length(rest) > MAX_MESSAGE_BYTES);
            let expected = if is_nonsense { io::ErrorKind::InvalidData } else { io::ErrorKind::UnexpectedEof };
            prop_assert_eq!(end, expected);
            prop_assert!(is_nonsense || !is_whole || rest.len() < length(rest));
        }
    }
}
