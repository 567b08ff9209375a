//! The way straight to a peer: WebRTC data channels as lanes, to browsers and to other native participants.
//! `docs/protocol.md`, "Lanes" and "Between two pages".
//!
//! Each lane is a task that owns its peer connection and its sockets. What has failed is made anew: no ICE restart is offered,
//! though a page's is answered.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use antiphon_core::wire::MAX_DATAGRAM_BYTES;
use bytes::{Bytes, BytesMut};
use rtc::data_channel::{RTCDataChannelId, RTCDataChannelInit};
use rtc::peer_connection::configuration::setting_engine::SettingEngineBuilder;
use rtc::peer_connection::event::{RTCDataChannelEvent, RTCPeerConnectionEvent};
use rtc::peer_connection::message::{RTCMessage, TaggedRTCMessage};
use rtc::peer_connection::sdp::RTCSessionDescription;
use rtc::peer_connection::state::RTCPeerConnectionState;
use rtc::peer_connection::transport::{
    CandidateConfig, CandidateHostConfig, RTCIceCandidate, RTCIceCandidateInit,
};
use rtc::peer_connection::{RTCPeerConnection, RTCPeerConnectionBuilder};
use rtc::sansio::Protocol;
use rtc::shared::{TaggedBytesMut, TransportContext, TransportProtocol};
use serde_json::{Value, json};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;

use crate::clock::now_ns;

/// Most lanes of a pair.
pub const MAX_LANES: usize = 8;
/// The data channel's SCTP stream, agreed without a word.
const CHANNEL_STREAM: u16 = 0;
/// What a lane may hold that is not acknowledged yet, in bytes; what comes beyond it is dropped.
const MAX_OUTSTANDING_BYTES: usize = 128 * 1_024;
/// Inputs that may wait for a lane's task.
const INBOX: usize = 512;
/// SCTP's packets, in bytes: as browsers have it, so that they pass through whatever a path puts around them.
const SCTP_MTU_BYTES: u32 = 1_191;
/// Not open after so long: made anew.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// Candidates that a peer may offer for a lane: each is checked against all of ours.
const MAX_CANDIDATES: usize = 64;
/// Negotiations that a peer may ask for, each of which may make a peer connection: so many at once, and one in so long, ns, after
/// that. All lanes four times are within it; more would hold up the sound of others, which the same thread carries.
const MAX_NEGOTIATIONS: u64 = 32;
const NEGOTIATION_NS: u64 = 500_000_000;
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(16);

/// What lanes tell.
#[derive(Debug)]
pub enum DirectEvent {
    /// A datagram came by a lane.
    Datagram {
        /// The peer's id.
        peer: Rc<str>,
        /// The lane's number.
        lane: usize,
        /// The bytes.
        bytes: Bytes,
    },
    /// To be sent by signalling.
    Signal {
        /// The peer's id.
        peer: Rc<str>,
        /// As in the protocol.
        data: Value,
    },
    /// A lane ended.
    Closed {
        /// The peer's id.
        peer: Rc<str>,
        /// The lane's number.
        lane: usize,
        /// Which of its peer connections.
        epoch: u64,
    },
    /// It is time to make a lane again.
    Retry {
        /// The peer's id.
        peer: Rc<str>,
        /// The lane's number.
        lane: usize,
        /// Which of its peer connections failed.
        epoch: u64,
    },
}

enum Input {
    Send(Bytes),
    Packet(SocketAddr, SocketAddr, BytesMut),
    Description(Value),
    Candidate(Value),
}

/// What the lane's task and its owner both see.
#[derive(Debug, Default)]
struct Shared {
    is_open: Cell<bool>,
    backlog_bytes: Cell<usize>,
}

#[derive(Debug)]
struct Lane {
    epoch: u64,
    failures: u32,
    inbox: mpsc::Sender<Input>,
    shared: Rc<Shared>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The lanes to one peer. They all end with this.
#[derive(Debug)]
pub struct Direct {
    peer: Rc<str>,
    /// One side makes all offers, so that they never cross.
    offers: bool,
    wanted: usize,
    lanes: BTreeMap<usize, Lane>,
    turn: usize,
    /// Until then the peer's negotiations so far have used up what it may ask for in the long run, ns of the local clock.
    negotiated_ns: u64,
    events: mpsc::Sender<DirectEvent>,
    /// Datagrams that no lane took though one was open.
    pub dropped: u64,
    /// Whether the peer wants our audio this way, by its own word.
    pub is_wanted: bool,
}

impl Direct {
    /// Begins to connect, within a `LocalSet`. `lanes`: how many this end wishes, 1 to [`MAX_LANES`].
    pub fn new(own_id: &str, peer: &str, lanes: usize, events: mpsc::Sender<DirectEvent>) -> Self {
        let mut direct = Self {
            peer: peer.into(),
            offers: own_id > peer,
            wanted: lanes.clamp(1, MAX_LANES),
            lanes: BTreeMap::new(),
            turn: 0,
            negotiated_ns: 0,
            events,
            dropped: 0,
            is_wanted: true,
        };
        direct.adjust(direct.wanted, now_ns());
        direct
    }

    fn adjust(&mut self, count: usize, now_ns: u64) {
        if !self.offers {
            return;
        }
        for number in 0..count {
            if !self.lanes.contains_key(&number) && self.may_negotiate(now_ns) {
                self.make(number, 0, 0);
            }
        }
        while let Some((&number, _)) = self.lanes.last_key_value()
            && number >= count
        {
            self.lanes.remove(&number);
            self.signal(json!({"kind": "close", "lane": number}));
        }
    }

    /// Whether the peer may have one more negotiation now, which is counted then.
    fn may_negotiate(&mut self, now_ns: u64) -> bool {
        let until_ns = self.negotiated_ns.max(now_ns) + NEGOTIATION_NS;
        let may = until_ns - now_ns <= MAX_NEGOTIATIONS * NEGOTIATION_NS;
        if may {
            self.negotiated_ns = until_ns;
        }
        may
    }

    fn signal(&self, data: Value) {
        let peer = self.peer.clone();
        // A full queue: the peer hears it at the next attempt.
        let _ = self.events.try_send(DirectEvent::Signal { peer, data });
    }

    fn make(&mut self, number: usize, epoch: u64, failures: u32) {
        let (inbox, inputs) = mpsc::channel(INBOX);
        let shared = Rc::new(Shared::default());
        let task = Task {
            peer: self.peer.clone(),
            number,
            epoch,
            offers: self.offers,
            shared: shared.clone(),
            inputs,
            events: self.events.clone(),
        };
        let task = tokio::task::spawn_local(task.run(inbox.clone()));
        let lane = Lane {
            epoch,
            failures,
            inbox,
            shared,
            task,
        };
        self.lanes.insert(number, lane);
    }

    /// What the peer said of its lanes. Nonsense is passed over, and so is what comes too often.
    pub fn handle_signal(&mut self, data: &Value, now_ns: u64) {
        let number = |name| data.get(name).and_then(Value::as_u64);
        let lane = number("lane")
            .and_then(|lane| usize::try_from(lane).ok())
            .filter(|&lane| lane < MAX_LANES);
        match (data.get("kind").and_then(Value::as_str), lane) {
            (Some(kind @ ("description" | "candidate")), Some(lane)) => {
                let Some(epoch) = number("epoch") else { return };
                if kind == "description" && !self.may_negotiate(now_ns) {
                    return;
                }
                let is_newer = self.lanes.get(&lane).is_none_or(|old| epoch > old.epoch);
                // Only an offer opens a lane: a candidate may be a straggler of one that was closed.
                if kind == "description" && is_newer && !self.offers {
                    self.make(lane, epoch, 0);
                }
                let Some(lane) = self.lanes.get(&lane).filter(|lane| lane.epoch == epoch) else {
                    return;
                };
                let input = match data.get(kind) {
                    Some(description) if kind == "description" => {
                        Input::Description(description.clone())
                    }
                    Some(candidate) => Input::Candidate(candidate.clone()),
                    None => return,
                };
                let _ = lane.inbox.try_send(input);
            }
            (Some("restart"), Some(lane)) if self.offers => {
                let old = self.lanes.get(&lane);
                if let Some((epoch, failures)) = old.map(|old| (old.epoch, old.failures))
                    && self.may_negotiate(now_ns)
                {
                    self.make(lane, epoch + 1, failures);
                }
            }
            (Some("close"), Some(lane)) if !self.offers => {
                self.lanes.remove(&lane);
            }
            (Some("lanes"), _) if self.offers => {
                let count = number("count").unwrap_or(1).clamp(1, MAX_LANES as u64) as usize;
                self.adjust(count.max(self.wanted), now_ns);
            }
            (Some("direct"), _) => {
                self.is_wanted = data.get("wanted") != Some(&Value::Bool(false));
            }
            _ => {}
        }
    }

    /// A lane's task ended: it is tried again later, and later still each time.
    pub fn handle_closed(&mut self, number: usize, epoch: u64) {
        let Some(lane) = self.lanes.get_mut(&number) else {
            return;
        };
        if lane.epoch != epoch {
            return;
        }
        if lane.shared.is_open.replace(false) {
            lane.failures = 0;
        }
        lane.failures += 1;
        let wait = FIRST_RETRY
            .saturating_mul(1 << (lane.failures - 1).min(8))
            .min(LAST_RETRY);
        let (events, peer) = (self.events.clone(), self.peer.clone());
        tokio::task::spawn_local(async move {
            tokio::time::sleep(wait).await;
            let retry = DirectEvent::Retry {
                peer,
                lane: number,
                epoch,
            };
            let _ = events.send(retry).await;
        });
    }

    /// It is time to try again.
    pub fn handle_retry(&mut self, number: usize, epoch: u64) {
        let Some(lane) = self.lanes.get(&number).filter(|lane| lane.epoch == epoch) else {
            return;
        };
        if self.offers {
            let failures = lane.failures;
            self.make(number, epoch + 1, failures);
        } else {
            self.signal(json!({"kind": "restart", "lane": number}));
            self.handle_closed(number, epoch);
        }
    }

    /// Numbers of the open lanes.
    pub fn open_lanes(&self) -> Vec<usize> {
        let open = |(&number, lane): (&usize, &Lane)| lane.shared.is_open.get().then_some(number);
        self.lanes.iter().filter_map(open).collect()
    }

    /// Whether any lane is open.
    pub fn is_open(&self) -> bool {
        self.lanes.values().any(|lane| lane.shared.is_open.get())
    }

    /// Sends a datagram on the lane with the least backlog, in turns among equals. False if it was dropped.
    pub fn send(&mut self, datagram: Bytes) -> bool {
        self.turn = self.turn.wrapping_add(1);
        let count = self.lanes.len();
        let mut lanes: Vec<&Lane> = self.lanes.values().collect();
        if count > 0 {
            lanes.rotate_left(self.turn % count);
        }
        let best = lanes
            .into_iter()
            .filter(|lane| lane.shared.is_open.get())
            .min_by_key(|lane| lane.shared.backlog_bytes.get());
        let Some(lane) = best else { return false };
        let has_room = lane.shared.backlog_bytes.get() <= MAX_OUTSTANDING_BYTES;
        let is_sent = has_room && lane.inbox.try_send(Input::Send(datagram)).is_ok();
        if !is_sent {
            self.dropped += 1;
        }
        is_sent
    }

    /// Sends a datagram on that lane: a probe, or its reply.
    pub fn send_on(&self, number: usize, datagram: Bytes) {
        if let Some(lane) = self.lanes.get(&number)
            && lane.shared.is_open.get()
        {
            let _ = lane.inbox.try_send(Input::Send(datagram));
        }
    }
}

/// Runs one peer connection until it fails.
struct Task {
    peer: Rc<str>,
    number: usize,
    epoch: u64,
    offers: bool,
    shared: Rc<Shared>,
    inputs: mpsc::Receiver<Input>,
    events: mpsc::Sender<DirectEvent>,
}

impl Task {
    async fn run(mut self, inbox: mpsc::Sender<Input>) {
        // Whatever went wrong, another attempt is all that can be done.
        let _ = self.connect(inbox).await;
        let closed = DirectEvent::Closed {
            peer: self.peer.clone(),
            lane: self.number,
            epoch: self.epoch,
        };
        let _ = self.events.send(closed).await;
    }

    async fn connect(
        &mut self,
        inbox: mpsc::Sender<Input>,
    ) -> Result<(), Box<dyn std::error::Error>> {
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
        drop(inbox);
        let (mut connection, channel) = new_connection(sockets.iter().map(|(local, _)| *local))?;
        if self.offers {
            let offer = connection.create_offer(None)?;
            connection.set_local_description(Instant::now(), offer)?;
            self.send_description(&connection)?;
        }
        let give_up = Instant::now() + OPEN_TIMEOUT;
        let mut has_remote = false;
        let mut early = Vec::new();
        let mut candidates = 0;
        loop {
            while let Some(packet) = connection.poll_write() {
                let TransportContext {
                    local_addr,
                    peer_addr,
                    ..
                } = packet.transport;
                let socket = sockets.iter().find(|(local, _)| *local == local_addr);
                if let Some((_, socket)) = socket {
                    // A full socket buffer loses it, as the network may.
                    let _ = socket.try_send_to(&packet.message, peer_addr);
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
                    // A full queue means that we are late ourselves: what is new is dropped, as in the network.
                    let _ = self.events.try_send(DirectEvent::Datagram {
                        peer: self.peer.clone(),
                        lane: self.number,
                        bytes: message.data.freeze(),
                    });
                }
            }
            let now = Instant::now();
            let mut deadline = connection.poll_timeout().unwrap_or(now + OPEN_TIMEOUT);
            if !self.shared.is_open.get() {
                if now >= give_up {
                    return Ok(());
                }
                deadline = deadline.min(give_up);
            }
            if deadline <= now {
                connection.handle_timeout(now)?;
                continue;
            }
            let input = tokio::select! {
                biased;
                input = self.inputs.recv() => input,
                () = tokio::time::sleep_until(deadline.into()) => {
                    connection.handle_timeout(Instant::now())?;
                    continue;
                }
            };
            match input {
                None => return Ok(()),
                Some(Input::Send(datagram)) => {
                    if let Some(mut channel) = connection.data_channel(channel) {
                        let _ = channel.send(Instant::now(), BytesMut::from(&datagram[..]));
                        self.shared.backlog_bytes.set(channel.outstanding_bytes());
                    }
                }
                Some(Input::Packet(local_addr, peer_addr, message)) => {
                    // What a stranger sends is refused there.
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
                    if let Some(channel) = connection.data_channel(channel) {
                        self.shared.backlog_bytes.set(channel.outstanding_bytes());
                    }
                }
                Some(Input::Description(description)) => {
                    let description: RTCSessionDescription = serde_json::from_value(description)?;
                    connection.set_remote_description(Instant::now(), description)?;
                    has_remote = true;
                    for candidate in early.drain(..) {
                        add_candidate(&mut connection, candidate);
                    }
                    if !self.offers {
                        let answer = connection.create_answer(None)?;
                        connection.set_local_description(Instant::now(), answer)?;
                        self.send_description(&connection)?;
                    }
                }
                Some(Input::Candidate(candidate)) => {
                    candidates += 1;
                    if candidates > MAX_CANDIDATES {
                        continue;
                    } else if has_remote {
                        add_candidate(&mut connection, candidate);
                    } else {
                        early.push(candidate);
                    }
                }
            }
        }
    }

    /// With all candidates in it: they are known from the start, so none follows.
    fn send_description(
        &self,
        connection: &RTCPeerConnection,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let description = connection.local_description().ok_or("no description")?;
        let data = json!({
            "kind": "description",
            "lane": self.number,
            "epoch": self.epoch,
            "description": serde_json::to_value(description)?,
        });
        let peer = self.peer.clone();
        self.events.try_send(DirectEvent::Signal { peer, data })?;
        Ok(())
    }
}

/// A browser's candidate may be a name that only it can resolve, or null at the end: the peer reaches us then, or nobody does.
fn add_candidate(connection: &mut RTCPeerConnection, candidate: Value) {
    if let Ok(candidate) = serde_json::from_value::<RTCIceCandidateInit>(candidate)
        && !candidate.candidate.contains(".local ")
    {
        let _ = connection.add_remote_candidate(candidate);
    }
}

fn new_connection(
    addresses: impl Iterator<Item = SocketAddr>,
) -> Result<(RTCPeerConnection, RTCDataChannelId), Box<dyn std::error::Error>> {
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
    for address in addresses {
        let candidate = CandidateHostConfig {
            base_config: CandidateConfig {
                network: "udp".to_owned(),
                address: address.ip().to_string(),
                port: address.port(),
                component: 1,
                ..Default::default()
            },
            ..Default::default()
        }
        .new_candidate_host()?;
        connection.add_local_candidate(RTCIceCandidate::from(&candidate).to_json()?)?;
    }
    Ok((connection, channel))
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

/// The one that the default route leaves by. Connecting a UDP socket sends nothing.
#[cfg(not(target_os = "linux"))]
fn interface_addresses() -> Vec<IpAddr> {
    let own = || {
        let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    };
    own().map(|address| address.ip()).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use tokio::task::LocalSet;

    use super::*;

    /// Peer connections made for lane 0 so far, whose first was `epoch` 0.
    fn made(direct: &Direct) -> u64 {
        direct.lanes.get(&0).map_or(0, |lane| lane.epoch + 1)
    }

    /// Says `data`, of each epoch in turn, until it has no effect.
    fn insist(direct: &mut Direct, now_ns: u64, data: impl Fn(u64) -> Value) -> u64 {
        let before = made(direct);
        for _ in 0..2_000 {
            direct.handle_signal(&data(made(direct)), now_ns);
        }
        made(direct) - before
    }

    #[tokio::test]
    async fn a_peer_has_so_many_connections_made_and_no_more() {
        // None of them is run: that they are made is what costs.
        let asking = async {
            let (events, _told) = mpsc::channel(1);
            let offer = |epoch| {
                json!({"kind": "description", "lane": 0, "epoch": epoch,
                "description": {"type": "offer", "sdp": ""}})
            };
            let mut answerer = Direct::new("a", "b", 1, events.clone());
            let now = now_ns();
            assert_eq!(insist(&mut answerer, now, offer), MAX_NEGOTIATIONS);
            assert_eq!(insist(&mut answerer, now + NEGOTIATION_NS - 1, offer), 0);
            assert_eq!(insist(&mut answerer, now + 3 * NEGOTIATION_NS, offer), 3);
            let restart = |_| json!({"kind": "restart", "lane": 0});
            let mut offerer = Direct::new("b", "a", 1, events);
            let made = insist(&mut offerer, now, restart);
            assert!(made < MAX_NEGOTIATIONS, "{made}, and the one at first");
            let more = json!({"kind": "lanes", "count": MAX_LANES});
            offerer.handle_signal(&more, now);
            assert_eq!(offerer.lanes.len(), 1);
            // Its own attempts come at their own pace.
            offerer.handle_retry(0, made);
            assert_eq!(self::made(&offerer), made + 2);
        };
        LocalSet::new().run_until(asking).await;
    }
}
