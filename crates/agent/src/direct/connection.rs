//! The peer connection of one lane, and the task that runs it.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::time::{Duration, Instant};

use antiphon_core::wire::MAX_DATAGRAM_BYTES;
use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use rtc::data_channel::{RTCDataChannelId, RTCDataChannelInit};
use rtc::ice::candidate::Candidate;
use rtc::peer_connection::configuration::setting_engine::SettingEngineBuilder;
use rtc::peer_connection::event::{RTCDataChannelEvent, RTCPeerConnectionEvent};
use rtc::peer_connection::message::{RTCMessage, TaggedRTCMessage};
use rtc::peer_connection::sdp::RTCSessionDescription;
use rtc::peer_connection::state::RTCPeerConnectionState;
use rtc::peer_connection::transport::{
    CandidateConfig, CandidateHostConfig, CandidateRelayConfig, CandidateServerReflexiveConfig,
    RTCIceCandidate, RTCIceCandidateInit,
};
use rtc::peer_connection::{RTCPeerConnection, RTCPeerConnectionBuilder};
use rtc::sansio::Protocol;
use rtc::shared::error::Error;
use rtc::shared::{TaggedBytesMut, TransportContext, TransportProtocol};
use serde_json::{Value, json};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;

use super::DirectEvent;
use crate::backlog::Backlog;
use crate::clock::now_ns;
use crate::gather::{self, Gathered, Gatherer, Server, Transport};

/// The data channel's SCTP stream, agreed without a word.
const CHANNEL_STREAM: u16 = 0;
/// SCTP's packets, in bytes: as browsers have it, so that they pass through whatever a path puts around them.
const SCTP_MTU_BYTES: u32 = 1_191;
/// Not open after so long, from the peer's last restart of ICE: made anew.
pub(super) const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// Candidates that a peer may offer for a lane in one ICE generation: each is checked against all of ours.
const MAX_CANDIDATES: usize = 64;

pub(super) enum Input {
    Send(Bytes),
    Packet(SocketAddr, SocketAddr, BytesMut),
    Description(Value),
    Candidate(Value),
    Server(Server, SocketAddr),
    /// By a stream from the second address.
    Stream(Server, SocketAddr, SocketAddr, mpsc::Sender<Vec<u8>>),
    /// That stream has ended.
    StreamEnd(SocketAddr, io::Error),
    /// A mistake.
    #[cfg(test)]
    Panic,
}

/// Whatever went wrong.
type Failure = Box<dyn std::error::Error>;

/// What the lane's task and its owner both see.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) is_open: Cell<bool>,
    /// Probes that were sent since anything came.
    pub(super) unheard: Cell<u32>,
    pub(super) backlog: RefCell<Backlog>,
}

/// Runs one peer connection until it fails.
pub(super) struct Task {
    pub(super) peer: Rc<str>,
    pub(super) number: usize,
    pub(super) epoch: u64,
    pub(super) offers: bool,
    pub(super) servers: Rc<[Server]>,
    pub(super) is_relayed: bool,
    pub(super) shared: Rc<Shared>,
    pub(super) inputs: mpsc::Receiver<Input>,
    pub(super) events: mpsc::Sender<DirectEvent>,
}

impl Task {
    pub(super) async fn run(mut self, inbox: mpsc::Sender<Input>) {
        // Whatever went wrong, be it that the library panicked, another attempt is all that can be done: a lane of which nobody hears that it has
        // ended stays as it is.
        let _ = AssertUnwindSafe(self.connect(inbox)).catch_unwind().await;
        let closed = DirectEvent::Closed {
            peer: self.peer.clone(),
            lane: self.number,
            epoch: self.epoch,
        };
        let _ = self.events.send(closed).await;
    }

    async fn connect(&mut self, inbox: mpsc::Sender<Input>) -> Result<(), Failure> {
        let mut sockets = Vec::new();
        let mut readers = tokio::task::JoinSet::new();
        for address in own_addresses() {
            let Ok(socket) = UdpSocket::bind((address, 0)).await else {
                continue;
            };
            let socket = Rc::new(socket);
            let local = socket.local_addr()?;
            readers.spawn_local(read(socket.clone(), local, inbox.clone()));
            sockets.push((local, socket));
        }
        for server in self.servers.iter().cloned() {
            readers.spawn_local(find(server, inbox.clone(), self.events.clone()));
        }
        drop(inbox);
        let (mut connection, channel) = new_connection()?;
        let mut gatherer = Gatherer::default();
        let mut has_described = false;
        let mut has_heard = false;
        for (local, _) in sockets.iter().filter(|_| !self.is_relayed) {
            connection.add_local_candidate(host(*local)?)?;
        }
        if self.offers {
            let offer = connection.create_offer(None)?;
            connection.set_local_description(Instant::now(), offer)?;
            self.send_description(&connection)?;
            has_described = true;
        }
        let mut has_remote = false;
        let mut early = Vec::new();
        let mut generation = Generation::new(Instant::now());
        loop {
            while let Some(event) = gatherer.poll_event() {
                let candidate = match event {
                    Gathered::Reflexive { base, mapped } if !self.is_relayed => {
                        reflexive(base, mapped)?
                    }
                    Gathered::Reflexive { .. } => continue,
                    Gathered::Relayed(address) => relayed(address)?,
                    // Sooner than ICE finds out.
                    Gathered::Lost(address) if is_selected(&mut connection, address) => {
                        return Ok(());
                    }
                    Gathered::Lost(_) => continue,
                    Gathered::Data {
                        relayed,
                        peer,
                        bytes,
                    } => {
                        handle_packet(&mut connection, relayed, peer, bytes);
                        continue;
                    }
                    Gathered::Failed(why) => {
                        let _ = self.events.try_send(DirectEvent::Notice(why));
                        continue;
                    }
                };
                // What is found before the description is in it.
                if connection.add_local_candidate(candidate.clone()).is_ok() && has_described {
                    self.send_candidate(&candidate)?;
                }
            }
            while let Some(packet) = connection.poll_write() {
                let TransportContext {
                    local_addr,
                    peer_addr,
                    ..
                } = packet.transport;
                self.shared
                    .backlog
                    .borrow_mut()
                    .handle_packet(packet.message.len());
                let socket = sockets.iter().find(|(local, _)| *local == local_addr);
                if let Some((_, socket)) = socket {
                    // A full socket buffer loses it, as the network may.
                    let _ = socket.try_send_to(&packet.message, peer_addr);
                } else {
                    gatherer.send(local_addr, peer_addr, &packet.message, Instant::now());
                }
            }
            while let Some(event) = connection.poll_event() {
                match event {
                    RTCPeerConnectionEvent::OnDataChannel(RTCDataChannelEvent::OnOpen(_)) => {
                        self.shared.is_open.set(true);
                    }
                    RTCPeerConnectionEvent::OnDataChannel(RTCDataChannelEvent::OnClose(_))
                    | RTCPeerConnectionEvent::OnConnectionStateChangeEvent(
                        RTCPeerConnectionState::Failed | RTCPeerConnectionState::Closed,
                    ) => return Ok(()),
                    _ => {}
                }
            }
            while let Some(TaggedRTCMessage { message, .. }) = connection.poll_read() {
                if let RTCMessage::DataChannelMessage(_, message) = message
                    && message.data.len() <= MAX_DATAGRAM_BYTES
                {
                    self.shared.unheard.set(0);
                    // A full queue means that we are late ourselves: what is new is dropped, as in the network.
                    let _ = self.events.try_send(DirectEvent::Datagram {
                        peer: self.peer.clone(),
                        lane: self.number,
                        bytes: message.data.freeze(),
                    });
                }
            }
            if let Some(channel) = connection.data_channel(channel) {
                let outstanding = channel.outstanding_bytes();
                let mut backlog = self.shared.backlog.borrow_mut();
                backlog.set_outstanding(outstanding);
                if std::mem::take(&mut has_heard) {
                    backlog.take_stock(now_ns());
                }
            }
            let now = Instant::now();
            let deadlines = [connection.poll_timeout(), gatherer.poll_timeout()];
            let mut deadline =
                (deadlines.into_iter().flatten().min()).unwrap_or(now + OPEN_TIMEOUT);
            if !self.shared.is_open.get() {
                let give_up = generation.begun + OPEN_TIMEOUT;
                if now >= give_up {
                    return Ok(());
                }
                deadline = deadline.min(give_up);
            }
            if deadline <= now {
                connection.handle_timeout(now)?;
                gatherer.handle_timeout(now);
                continue;
            }
            let input = tokio::select! {
                biased;
                input = self.inputs.recv() => input,
                () = tokio::time::sleep_until(deadline.into()) => continue,
            };
            match input {
                None => return Ok(()),
                Some(Input::Send(datagram)) => {
                    if let Some(mut channel) = connection.data_channel(channel) {
                        let bytes = BytesMut::from(&datagram[..]);
                        if channel.send(Instant::now(), bytes).is_ok() {
                            let mut backlog = self.shared.backlog.borrow_mut();
                            backlog.add(datagram.len(), now_ns());
                        }
                    }
                }
                Some(Input::Packet(local_addr, peer_addr, message)) => {
                    if gatherer.handle_read(local_addr, peer_addr, &message, Instant::now()) {
                        continue;
                    }
                    handle_packet(&mut connection, local_addr, peer_addr, message);
                    has_heard = true;
                }
                Some(Input::Description(description)) => {
                    let description: RTCSessionDescription = serde_json::from_value(description)?;
                    if !generation.handle_description(&description.sdp, Instant::now()) {
                        return Ok(());
                    }
                    connection.set_remote_description(Instant::now(), description)?;
                    has_remote = true;
                    for candidate in early.drain(..) {
                        add_candidate(&mut connection, candidate);
                    }
                    if !self.offers {
                        let answer = connection.create_answer(None)?;
                        connection.set_local_description(Instant::now(), answer)?;
                        self.send_description(&connection)?;
                        has_described = true;
                    }
                }
                Some(Input::Candidate(candidate)) => {
                    if !generation.may_add() {
                        continue;
                    } else if has_remote {
                        add_candidate(&mut connection, candidate);
                    } else {
                        early.push(candidate);
                    }
                }
                Some(Input::Server(server, address)) => {
                    gatherer.ask(&server, address, &sockets, Instant::now());
                }
                Some(Input::Stream(server, address, local, stream)) => {
                    gatherer.ask_by_stream(&server, address, local, stream, Instant::now());
                }
                Some(Input::StreamEnd(local, why)) => gatherer.handle_stream_end(local, &why),
                #[cfg(test)]
                Some(Input::Panic) => panic!("a mistake"),
            }
        }
    }

    /// With the candidates in it that are known by then.
    fn send_description(&self, connection: &RTCPeerConnection) -> Result<(), Failure> {
        let description = connection.local_description().ok_or("no description")?;
        self.signal("description", serde_json::to_value(description)?)
    }

    fn send_candidate(&self, candidate: &RTCIceCandidateInit) -> Result<(), Failure> {
        self.signal("candidate", serde_json::to_value(candidate)?)
    }

    fn signal(&self, kind: &str, value: Value) -> Result<(), Failure> {
        let data = json!({"kind": kind, "lane": self.number, "epoch": self.epoch, kind: value});
        let peer = self.peer.clone();
        self.events.try_send(DirectEvent::Signal { peer, data })?;
        Ok(())
    }
}

/// A peer's candidates since it last restarted ICE, which makes it forget those before. RFC 8445, section 2.4.
#[derive(Debug)]
struct Generation {
    ufrag: Option<String>,
    candidates: usize,
    /// From then on a lane has its time to open: what was before the restart is no matter.
    begun: Instant,
}

impl Generation {
    fn new(now: Instant) -> Self {
        Self {
            ufrag: None,
            candidates: 0,
            begun: now,
        }
    }

    /// False if there are too many in it.
    fn handle_description(&mut self, sdp: &str, now: Instant) -> bool {
        let all = |name: &'static str| sdp.lines().filter_map(move |line| line.strip_prefix(name));
        let ufrag = all("a=ice-ufrag:").next();
        if self.ufrag.as_deref() != ufrag {
            // Those that came before the first description belong to it.
            if self.ufrag.is_some() {
                self.candidates = 0;
            }
            self.ufrag = ufrag.map(str::to_owned);
            self.begun = now;
        }
        self.candidates += all("a=candidate:").count();
        self.candidates <= MAX_CANDIDATES
    }

    /// Whether the peer may add one more, which is counted.
    fn may_add(&mut self) -> bool {
        self.candidates += 1;
        self.candidates <= MAX_CANDIDATES
    }
}

/// Whether what the lane sends leaves from that address of ours.
fn is_selected(connection: &mut RTCPeerConnection, address: SocketAddr) -> bool {
    let sctp = connection.sctp();
    let pair = sctp.and_then(|it| it.transport().ice_transport().get_selected_candidate_pair());
    pair.is_some_and(|pair| {
        let local = pair.local();
        (local.address.parse(), local.port) == (Ok(address.ip()), address.port())
    })
}

/// What a stranger sends is refused there.
fn handle_packet(
    connection: &mut RTCPeerConnection,
    local_addr: SocketAddr,
    peer_addr: SocketAddr,
    message: BytesMut,
) {
    let _ = connection.handle_read(TaggedBytesMut {
        now: Instant::now(),
        transport: TransportContext {
            local_addr,
            peer_addr,
            transport_protocol: TransportProtocol::UDP,
            ecn: None,
        },
        message,
    });
}

/// A browser's candidate may be a name that only it can resolve, or null at the end: the peer reaches us then, or nobody does.
fn add_candidate(connection: &mut RTCPeerConnection, candidate: Value) {
    if let Ok(candidate) = serde_json::from_value::<RTCIceCandidateInit>(candidate)
        && !candidate.candidate.contains(".local ")
    {
        let _ = connection.add_remote_candidate(candidate);
    }
}

pub(super) fn new_connection() -> Result<(RTCPeerConnection, RTCDataChannelId), Error> {
    let settings = SettingEngineBuilder::new()
        .with_sctp_mtu(SCTP_MTU_BYTES)
        .build();
    let mut connection = RTCPeerConnectionBuilder::new()
        .with_setting_engine(settings)
        .build(Instant::now())?;
    // Agreed without a word: one that this library accepts in-band would forget that it is unreliable.
    let channel = RTCDataChannelInit {
        ordered: false,
        max_retransmits: Some(0),
        negotiated: Some(CHANNEL_STREAM),
        ..Default::default()
    };
    let channel = connection.create_data_channel("audio", Some(channel))?.id();
    Ok((connection, channel))
}

fn candidate_config(address: SocketAddr) -> CandidateConfig {
    CandidateConfig {
        network: "udp".to_owned(),
        address: address.ip().to_string(),
        port: address.port(),
        component: 1,
        ..Default::default()
    }
}

/// As it is said to the peer: in the one media section, whatever its name.
fn candidate_init(candidate: &Candidate) -> Result<RTCIceCandidateInit, Error> {
    Ok(RTCIceCandidateInit {
        sdp_mid: None,
        ..RTCIceCandidate::from(candidate).to_json()?
    })
}

fn host(address: SocketAddr) -> Result<RTCIceCandidateInit, Error> {
    let config = CandidateHostConfig {
        base_config: candidate_config(address),
        ..Default::default()
    };
    candidate_init(&config.new_candidate_host()?)
}

fn reflexive(base: SocketAddr, mapped: SocketAddr) -> Result<RTCIceCandidateInit, Error> {
    let config = CandidateServerReflexiveConfig {
        base_config: candidate_config(mapped),
        rel_addr: base.ip().to_string(),
        rel_port: base.port(),
        url: None,
    };
    candidate_init(&config.new_candidate_server_reflexive()?)
}

/// What it is related to is nobody's business.
fn relayed(address: SocketAddr) -> Result<RTCIceCandidateInit, Error> {
    let config = CandidateRelayConfig {
        base_config: candidate_config(address),
        rel_addr: Ipv4Addr::UNSPECIFIED.to_string(),
        rel_port: 0,
        url: None,
    };
    candidate_init(&config.new_candidate_relay()?)
}

/// Looks a server up, and connects to it where it is reached by a stream.
async fn find(server: Server, inbox: mpsc::Sender<Input>, events: mpsc::Sender<DirectEvent>) {
    let notice = |why| drop(events.try_send(DirectEvent::Notice(why)));
    let addresses = server.resolve().await;
    if addresses.is_empty() {
        notice(format!("the server {} is not found", server.host));
    } else if server.transport == Transport::Udp {
        for address in addresses {
            let _ = inbox.send(Input::Server(server.clone(), address)).await;
        }
    } else if let Err(why) = connect(&server, &addresses, &inbox).await {
        notice(format!("the server {} is not reached: {why}", server.host));
    }
}

/// Connects to a server by a stream, which is carried as long as it lasts.
async fn connect(
    server: &Server,
    addresses: &[SocketAddr],
    inbox: &mpsc::Sender<Input>,
) -> io::Result<()> {
    let (local, address, wire) = server.connect(addresses).await?;
    let (stream, outgoing) = gather::stream_queue();
    let asked = inbox.send(Input::Stream(server.clone(), address, local, stream));
    if asked.await.is_ok() {
        let receive = |message| drop(inbox.try_send(Input::Packet(local, address, message)));
        if let Err(why) = gather::carry(wire, outgoing, receive).await {
            let _ = inbox.send(Input::StreamEnd(local, why)).await;
        }
    }
    Ok(())
}

async fn read(socket: Rc<UdpSocket>, local: SocketAddr, inbox: mpsc::Sender<Input>) {
    let mut bytes = [0; 2_048];
    loop {
        // An error on a UDP socket is an ICMP message: the next datagram may come all the same.
        let Ok((count, peer)) = socket.recv_from(&mut bytes).await else {
            tokio::task::yield_now().await;
            continue;
        };
        let packet = Input::Packet(local, peer, BytesMut::from(&bytes[..count]));
        if let Err(mpsc::error::TrySendError::Closed(_)) = inbox.try_send(packet) {
            return;
        }
    }
}

/// Of all interfaces, for candidates. Loopback only where there is nothing else: Firefox refuses it.
fn own_addresses() -> Vec<IpAddr> {
    let mut addresses = interface_addresses();
    addresses.retain(|address| match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    });
    if addresses.is_empty() {
        addresses.push(Ipv4Addr::LOCALHOST.into());
    }
    addresses
}

#[cfg(target_os = "linux")]
fn interface_addresses() -> Vec<IpAddr> {
    let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let address = |interface: nix::ifaddrs::InterfaceAddress| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    };
    interfaces.filter_map(address).collect()
}

/// The one that the default route leaves by.
#[cfg(not(target_os = "linux"))]
fn interface_addresses() -> Vec<IpAddr> {
    gather::route_to(([192, 0, 2, 1], 9).into())
        .into_iter()
        .collect()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::signalling::IceServer;

    #[test]
    fn a_peer_has_so_many_candidates_each_time_it_restarts_ice() {
        let described = |ufrag: &str, candidates| {
            let candidates = "a=candidate:1 1 udp 1 192.0.2.1 9 typ host\r\n".repeat(candidates);
            format!("v=0\r\na=ice-ufrag:{ufrag}\r\na=ice-pwd:x\r\n{candidates}")
        };
        let now = Instant::now();
        let mut generation = Generation::new(now);
        let added =
            |generation: &mut Generation| (0..1_000).filter(|_| generation.may_add()).count();
        assert!(generation.may_add(), "before its description");
        assert!(generation.handle_description(&described("one", 3), now));
        assert_eq!(added(&mut generation), MAX_CANDIDATES - 4);
        assert!(generation.handle_description(&described("two", 0), now));
        assert_eq!(added(&mut generation), MAX_CANDIDATES);
        let later = now + OPEN_TIMEOUT;
        assert!(
            !generation.handle_description(&described("two", 0), later),
            "the same again"
        );
        assert_eq!(generation.begun, now);
        assert!(!generation.handle_description(&described("three", MAX_CANDIDATES + 1), later));
    }

    #[tokio::test]
    async fn a_lane_that_ends_by_a_mistake_is_said_to_have_ended() {
        let ((inbox, inputs), (events, mut told)) = (mpsc::channel(8), mpsc::channel(8));
        let task = Task {
            peer: "bob".into(),
            number: 2,
            epoch: 7,
            offers: false,
            servers: Rc::new([]),
            is_relayed: false,
            shared: Rc::default(),
            inputs,
            events,
        };
        assert!(inbox.send(Input::Panic).await.is_ok());
        let ending = async {
            tokio::task::spawn_local(task.run(inbox));
            let closed = tokio::time::timeout(OPEN_TIMEOUT / 2, told.recv()).await;
            assert!(
                matches!(
                    &closed,
                    Ok(Some(DirectEvent::Closed {
                        lane: 2,
                        epoch: 7,
                        ..
                    }))
                ),
                "{closed:?}"
            );
        };
        tokio::task::LocalSet::new().run_until(ending).await;
    }

    #[tokio::test]
    async fn a_server_is_reached_by_a_stream_at_the_address_that_answers() {
        let bind = || TcpListener::bind("127.0.0.1:0");
        let (refusing, answering) = (bind().await, bind().await.expect("a port"));
        let refused = refusing.expect("a port").local_addr().expect("bound");
        let answers = answering.local_addr().expect("bound");
        let told = json!([{"urls": "turn:turn.example.org?transport=tcp",
            "username": "ann", "credential": "hush"}]);
        let told: Vec<IceServer> = serde_json::from_value(told).expect("a server");
        let server = &gather::servers(&told)[0];
        let (addresses, (inbox, mut inputs)) = ([refused, answers], mpsc::channel(1));
        let asked = tokio::select! {
            ended = connect(server, &addresses, &inbox) => panic!("{ended:?}"),
            asked = inputs.recv() => asked,
        };
        assert!(matches!(asked, Some(Input::Stream(_, address, ..)) if address == answers));
    }
}
