//! Sound from the relay to a listener over an emulated network, in virtual time: QUIC itself at both ends (quinn-proto) with the relay's own
//! settings, and the emulator's model between them. The same plan gives the same result.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use antiphon_netem::{Direction, Line, LinkConfig, Loss, Plan, Step};
use bytes::{Bytes, BytesMut};
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Endpoint, EndpointConfig, Event,
    ServerConfig, Transmit, TransportConfig, congestion::ControllerFactory,
    crypto::rustls::QuicClientConfig,
};
use rustls::{RootCertStore, pki_types::PrivatePkcs8KeyDer};

/// 128 frames at 48 kHz.
const PACKET_NS: u64 = 2_666_667;
/// 16-bit stereo of that length, with the headers of the relay's datagrams.
const DATAGRAM_BYTES: usize = 533;
/// IPv4 and UDP, which count for a link's rate.
const HEADER_BYTES: usize = 28;
const SECOND_NS: u64 = 1_000_000_000;
/// Not counted: the handshake, and the start of the control.
const START_NS: u64 = 5 * SECOND_NS;
/// What a jitter buffer might wait for beyond the network's least delay.
pub(crate) const IN_TIME_MS: u64 = 20;
const NAME: &str = "relay.test";

/// What came of the datagrams that were to be sent.
pub(crate) struct Heard {
    /// Share that arrived.
    pub(crate) delivered: f64,
    /// Share that arrived within [`IN_TIME_MS`] of the network's least delay.
    pub(crate) in_time: f64,
    /// Delay beyond the least.
    pub(crate) median_ms: f64,
    pub(crate) p99_ms: f64,
    /// What might be under way at the end. Only the benchmark tells.
    #[allow(dead_code)]
    pub(crate) window_bytes: u64,
}

/// Over 10 ms each way, of which from each time on, in ms, this share is lost both ways.
pub(crate) fn losing(changes: impl IntoIterator<Item = (u64, f64)>) -> Plan {
    let steps: Vec<Step> = changes
        .into_iter()
        .map(|(at_ms, share)| Step {
            at_ms,
            link: LinkConfig {
                delay_ms: 10.0,
                loss: Loss::Random { share },
                ..LinkConfig::default()
            },
        })
        .collect();
    Plan {
        seed: 1,
        left_to_right: steps.clone(),
        right_to_left: steps,
    }
}

/// Plays so many streams from the relay to a listener, from right to left, for so long.
pub(crate) fn play(
    plan: &Plan,
    streams: u64,
    seconds: u64,
    control: Arc<dyn ControllerFactory + Send + Sync>,
) -> Heard {
    let mut relay_transport = antiphon_server::relay::transport();
    relay_transport.congestion_controller_factory(control);
    let (mut relay, mut listener) = ends(relay_transport);
    let begin = Instant::now();
    let mut down = Line::new(plan, Direction::RightToLeft, 0).expect("a valid plan");
    let mut up = Line::new(plan, Direction::LeftToRight, 0).expect("a valid plan");
    let mut delays_ns = Vec::new();
    let (mut next, mut sent, mut now_ns) = (0, 0u64, 0);
    let counted = START_NS..START_NS + seconds * SECOND_NS;
    // What is sent last may still come.
    let end_ns = counted.end + SECOND_NS / 2;
    while now_ns < end_ns {
        let now = begin + Duration::from_nanos(now_ns);
        while let Some(packet) = down.pop(now_ns) {
            listener.handle(now, packet);
        }
        while let Some(packet) = up.pop(now_ns) {
            relay.handle(now, packet);
        }
        while next <= now_ns {
            if let Some(connection) = relay.connected() {
                let mut datagram = vec![0; DATAGRAM_BYTES];
                datagram[..8].copy_from_slice(&now_ns.to_le_bytes());
                if counted.contains(&now_ns) {
                    sent += 1;
                }
                connection
                    .datagrams()
                    .send(datagram.into(), true)
                    .expect("a datagram of that length may be sent");
            }
            next += PACKET_NS / streams;
        }
        relay.drive(now, |packet| {
            let bytes = (packet.len() + HEADER_BYTES) as u32;
            down.push(packet, bytes, now_ns);
        });
        listener.drive(now, |packet| {
            let bytes = (packet.len() + HEADER_BYTES) as u32;
            up.push(packet, bytes, now_ns);
        });
        if let Some(connection) = listener.connected() {
            while let Some(datagram) = connection.datagrams().recv() {
                let sent_ns = u64::from_le_bytes(datagram[..8].try_into().expect("8 bytes"));
                if counted.contains(&sent_ns) {
                    delays_ns.push(now_ns - sent_ns);
                }
            }
        }
        let timeouts = [&mut relay, &mut listener].map(|end| end.timeout());
        let timeouts = timeouts.into_iter().flatten().map(|at| {
            // A timer that is due already has been handled: it fires again with the next event.
            (at.saturating_duration_since(begin).as_nanos() as u64).max(now_ns + 1_000)
        });
        let arrivals = [down.poll_at(), up.poll_at()].into_iter().flatten();
        now_ns = timeouts
            .chain(arrivals)
            .chain([next])
            .min()
            .expect("there is a next packet")
            .max(now_ns);
    }
    delays_ns.sort_unstable();
    let link = &plan.right_to_left[0].link;
    let packet_bits = 8.0 * (DATAGRAM_BYTES + HEADER_BYTES) as f64;
    let on_wire = link
        .rate_bits_per_second
        .map_or(0.0, |rate| packet_bits / rate as f64);
    let least_ns = ((link.delay_ms / 1e3 + on_wire) * SECOND_NS as f64) as u64;
    let quantile = |share: f64| {
        let at = ((delays_ns.len() as f64 * share) as usize).min(delays_ns.len() - 1);
        delays_ns[at].saturating_sub(least_ns) as f64 / 1e6
    };
    let in_time = delays_ns.partition_point(|delay| *delay <= least_ns + IN_TIME_MS * 1_000_000);
    let connection = relay.connected().expect("is open");
    Heard {
        delivered: delays_ns.len() as f64 / sent as f64,
        in_time: in_time as f64 / sent as f64,
        median_ms: quantile(0.5),
        p99_ms: quantile(0.99),
        window_bytes: connection.stats().path.cwnd,
    }
}

/// One end: QUIC without sockets.
struct End {
    endpoint: Endpoint,
    peer: SocketAddr,
    connection: Option<(ConnectionHandle, Connection)>,
    is_connected: bool,
    answers: Vec<Bytes>,
}

fn ends(transport: TransportConfig) -> (End, End) {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).expect("a certificate");
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let mut server =
        ServerConfig::with_single_cert(vec![made.cert.der().clone()], key.into()).expect("fits");
    server.transport_config(Arc::new(transport));
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).expect("a certificate");
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let tls = QuicClientConfig::try_from(tls).expect("TLS 1.3");
    let client = ClientConfig::new(Arc::new(tls));
    let [relay_at, listener_at] = [1, 2].map(|n| SocketAddr::from((Ipv4Addr::LOCALHOST, n)));
    // The same random numbers each time: connection ids do not matter, but should not differ either.
    let endpoint = |server, seed| {
        Endpoint::new(
            Arc::new(EndpointConfig::default()),
            server,
            true,
            Some([seed; 32]),
        )
    };
    let relay = End {
        endpoint: endpoint(Some(Arc::new(server)), 1),
        peer: listener_at,
        connection: None,
        is_connected: false,
        answers: Vec::new(),
    };
    let mut endpoint = endpoint(None, 2);
    let connection = endpoint
        .connect(Instant::now(), client, relay_at, NAME)
        .expect("may connect");
    let listener = End {
        endpoint,
        peer: relay_at,
        connection: Some(connection),
        is_connected: false,
        answers: Vec::new(),
    };
    (relay, listener)
}

impl End {
    fn connected(&mut self) -> Option<&mut Connection> {
        let (_, connection) = self.connection.as_mut().filter(|_| self.is_connected)?;
        Some(connection)
    }

    fn handle(&mut self, now: Instant, packet: Bytes) {
        let mut answer = Vec::new();
        let packet = BytesMut::from(packet.as_ref());
        match self
            .endpoint
            .handle(now, self.peer, None, None, packet, &mut answer)
        {
            Some(DatagramEvent::NewConnection(incoming)) => {
                let accepted = self.endpoint.accept(incoming, now, &mut answer, None);
                self.connection = Some(
                    accepted
                        .map_err(|error| error.cause)
                        .expect("the first packet is whole"),
                );
            }
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some((own, connection)) = &mut self.connection
                    && *own == handle
                {
                    connection.handle_event(event);
                }
            }
            Some(DatagramEvent::Response(transmit)) => {
                self.answers.push(packet_of(&transmit, answer))
            }
            None => {}
        }
    }

    /// All that can be done now; what is sent goes to `send`.
    fn drive(&mut self, now: Instant, mut send: impl FnMut(Bytes)) {
        self.answers.drain(..).for_each(&mut send);
        let Some((handle, connection)) = &mut self.connection else {
            return;
        };
        if connection.poll_timeout().is_some_and(|at| at <= now) {
            connection.handle_timeout(now);
        }
        loop {
            let mut buffer = Vec::new();
            while let Some(transmit) = connection.poll_transmit(now, 1, &mut buffer) {
                send(packet_of(&transmit, std::mem::take(&mut buffer)));
            }
            let mut is_done = true;
            while let Some(event) = connection.poll_endpoint_events() {
                is_done = false;
                if let Some(event) = self.endpoint.handle_event(*handle, event) {
                    connection.handle_event(event);
                }
            }
            while let Some(event) = connection.poll() {
                if let Event::ConnectionLost { reason } = event {
                    panic!("the connection is lost: {reason}");
                }
                self.is_connected |= matches!(event, Event::Connected);
            }
            if is_done {
                return;
            }
        }
    }

    fn timeout(&mut self) -> Option<Instant> {
        self.connection.as_mut()?.1.poll_timeout()
    }
}

fn packet_of(transmit: &Transmit, buffer: Vec<u8>) -> Bytes {
    Bytes::from(buffer).slice(..transmit.size)
}
