//! QUIC on the relay's socket: its connections, their timers, and what they send (`docs/adr/0025-quic-driven-by-the-relay.md`).
//!
//! [`Connections::receive`] reads a burst of packets; each goes to [`Connections::handle_packet`], and whoever calls that does all that the
//! packet causes before the next one. What this gives a connection to send waits until [`Connections::transmit`] or, for all of them,
//! [`Connections::transmit_all`].

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    io::{self, IoSliceMut},
    iter, net,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use quinn_proto::{
    ConnectionHandle, DatagramEvent, EcnCodepoint, Endpoint, EndpointConfig, Event, Incoming,
    ServerConfig, Transmit,
};
use quinn_udp::{BATCH_SIZE, RecvMeta, UdpSocketState};

use super::{
    latency::Latencies,
    load::{Account, FIRST_PACKET, Load, PACKET},
    session::Session,
    socket::Socket,
    webtransport::WebTransport,
};
use crate::mixer::UNREAD;

/// Packets of one connection in one system call, where the operating system takes several.
const MAX_SEGMENTS: usize = 10;

/// The loop comes round to the socket sooner than this only if it did not wait for it.
const BUSY: Duration = Duration::from_micros(100);

/// All connections of the relay's socket.
#[derive(Debug)]
pub(super) struct Connections {
    socket: Socket,
    udp: UdpSocketState,
    endpoint: Endpoint,
    /// By handle.
    slots: Vec<Option<Box<Connection>>>,
    /// When to look at a connection, never later than its timeout.
    timers: BinaryHeap<Reverse<(Instant, usize)>>,
    /// Who may have something to send, each once.
    touched: Vec<ConnectionHandle>,
    /// When the newest burst was read.
    burst: Instant,
    /// Whether that was all there was.
    is_emptied: bool,
    /// Whatever came until then has been handled.
    handled_until: Instant,
    /// When what is handled now came, as far as that is known: not later.
    arrived: Instant,
    /// Since when there is nothing to do.
    idle_since: Instant,
    /// Of what was [followed](Self::follow).
    transit: Latencies,
    load: Load,
    /// What is being sent.
    buffer: Vec<u8>,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) quic: quinn_proto::Connection,
    pub(super) web: WebTransport,
    pub(super) session: Session,
    /// When a packet of it was read last.
    heard_at: Instant,
    /// Its entry among the timers.
    armed: Option<Instant>,
    is_touched: bool,
    /// When the burst was read whose datagram it has still to send.
    followed: Option<Instant>,
    /// Bytes that datagrams may wait in.
    datagram_space: usize,
}

/// What came of a packet.
pub(super) enum Routed {
    /// Something has happened to this connection.
    To(ConnectionHandle),
    /// Someone begins a connection: to be accepted, refused or sent a retry.
    New(Box<Incoming>),
}

/// Room for one burst of packets.
pub(super) struct Inbox {
    bytes: Box<[u8]>,
    packets: [RecvMeta; BATCH_SIZE],
    count: usize,
}

impl Connections {
    /// Nobody is connected yet to the socket.
    pub(super) fn new(socket: net::UdpSocket, config: ServerConfig) -> io::Result<Self> {
        let udp = UdpSocketState::new((&socket).into())?;
        let socket = Socket::new(socket)?;
        let may_probe_mtu = !udp.may_fragment();
        let own = Arc::new(EndpointConfig::default());
        Ok(Self {
            socket,
            udp,
            endpoint: Endpoint::new(own, Some(Arc::new(config)), may_probe_mtu, None),
            slots: Vec::new(),
            timers: BinaryHeap::new(),
            touched: Vec::new(),
            burst: Instant::now(),
            is_emptied: true,
            handled_until: Instant::now(),
            arrived: Instant::now(),
            idle_since: Instant::now(),
            transit: Latencies::default(),
            load: Load::new(Instant::now()),
            buffer: Vec::new(),
        })
    }

    /// From now on handshakes are made so; without, there are none. Connections keep what they have.
    pub(super) fn set_server_config(&mut self, config: Option<ServerConfig>) {
        self.endpoint.set_server_config(config.map(Arc::new));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.iter().all(Option::is_none)
    }

    pub(super) fn get(&mut self, handle: ConnectionHandle) -> Option<&mut Connection> {
        self.slots.get_mut(handle.0)?.as_deref_mut()
    }

    /// Room for a burst of this socket's packets.
    pub(super) fn inbox(&self) -> Inbox {
        // As much as this end says it takes, each time as often as the operating system may put packets together.
        let packet = self.endpoint.config().get_max_udp_payload_size() as usize;
        let length = packet.min(1 << 16) * self.udp.gro_segments() * BATCH_SIZE;
        Inbox {
            bytes: vec![0; length].into(),
            packets: [RecvMeta::default(); BATCH_SIZE],
            count: 0,
        }
    }

    /// Waits until there may be packets.
    pub(super) async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// Reads what is there, up to one batch. Nothing may be.
    pub(super) fn receive(&mut self, inbox: &mut Inbox) -> io::Result<()> {
        inbox.count = 0;
        let now = Instant::now();
        let has_waited = now.saturating_duration_since(self.idle_since) > BUSY;
        let mut parts = inbox
            .bytes
            .chunks_exact_mut(inbox.bytes.len() / BATCH_SIZE)
            .map(IoSliceMut::new);
        let mut parts: [_; BATCH_SIZE] =
            std::array::from_fn(|_| parts.next().expect("as many parts"));
        let received = self
            .socket
            .try_read(|socket| self.udp.recv(socket, &mut parts, &mut inbox.packets));
        match received {
            Ok(count) => inbox.count = count,
            // What the network says of one peer says nothing of the others, and may be forged.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
            // It may have some the next time.
            Err(error) if error.kind() == io::ErrorKind::OutOfMemory => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                (self.burst, self.is_emptied) = (now, true);
                self.load.handle_read(true, now);
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        self.burst = Instant::now();
        // Else it may have lain there since the socket was last read.
        let since = self.handled_until.max(self.burst - UNREAD);
        self.arrived = if has_waited { self.burst } else { since };
        self.is_emptied = inbox.count < BATCH_SIZE && BATCH_SIZE > 1;
        if self.is_emptied {
            self.socket.was_emptied();
        }
        self.load.handle_read(self.is_emptied, self.burst);
        Ok(())
    }

    /// The newest burst has been handled.
    pub(super) fn has_handled(&mut self) {
        if self.is_emptied {
            self.handled_until = self.burst;
        }
    }

    /// When what is handled now came: not later, and if nothing kept the loop from reading it, not earlier.
    pub(super) fn arrived(&self) -> Instant {
        self.arrived
    }

    /// Whatever came until then has been handled: of what is missing, the rest may lie unread.
    pub(super) fn handled_until(&self) -> Instant {
        self.handled_until
    }

    /// Whom a connection is charged to that has no seat yet.
    pub(super) fn strangers(&self) -> Rc<Account> {
        self.load.strangers()
    }

    /// Packets that were dropped unread, since the start, because more came than could be handled.
    pub(super) fn overloaded(&self) -> u64 {
        self.load.dropped
    }

    /// One packet that was read at `now`.
    pub(super) fn handle_packet(
        &mut self,
        now: Instant,
        meta: &RecvMeta,
        packet: BytesMut,
    ) -> Option<Routed> {
        let ecn = meta.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8));
        self.buffer.clear();
        let (from, to) = (meta.addr, meta.dst_ip);
        if is_first(&packet) && !self.load.admits(None, FIRST_PACKET, now) {
            return None;
        }
        let event = self
            .endpoint
            .handle(now, from, to, ecn, packet, &mut self.buffer)?;
        match event {
            DatagramEvent::ConnectionEvent(handle, event) => {
                let connection = self.slots.get_mut(handle.0)?.as_deref_mut()?;
                connection.heard_at = now;
                // From elsewhere it may be anybody's, who has seen it.
                let is_own = connection.quic.remote_address() == from;
                let account = is_own.then_some(&*connection.session.account);
                if !self.load.admits(account, PACKET, now) {
                    return None;
                }
                connection.quic.handle_event(event);
                self.touch(handle);
                Some(Routed::To(handle))
            }
            DatagramEvent::NewConnection(incoming) => Some(Routed::New(Box::new(incoming))),
            DatagramEvent::Response(transmit) => {
                self.send(&transmit);
                None
            }
        }
    }

    /// Begins a connection.
    pub(super) fn accept(
        &mut self,
        incoming: Incoming,
        session: Session,
        now: Instant,
    ) -> Option<ConnectionHandle> {
        self.buffer.clear();
        match self.endpoint.accept(incoming, now, &mut self.buffer, None) {
            Ok((handle, mut quic)) => {
                let datagram_space = quic.datagrams().send_buffer_space();
                let connection = Connection {
                    quic,
                    web: WebTransport::default(),
                    session,
                    heard_at: now,
                    armed: None,
                    is_touched: false,
                    followed: None,
                    datagram_space,
                };
                if self.slots.len() <= handle.0 {
                    self.slots.resize_with(handle.0 + 1, || None);
                }
                debug_assert!(self.slots[handle.0].is_none(), "QUIC has let go of it");
                self.slots[handle.0] = Some(Box::new(connection));
                self.touch(handle);
                Some(handle)
            }
            Err(error) => {
                if let Some(transmit) = error.response {
                    self.send(&transmit);
                }
                None
            }
        }
    }

    /// Lets who begins a connection prove that the address is its own.
    pub(super) fn retry(&mut self, incoming: Incoming) {
        self.buffer.clear();
        match self.endpoint.retry(incoming, &mut self.buffer) {
            Ok(transmit) => self.send(&transmit),
            Err(error) => self.endpoint.ignore(error.into_incoming()),
        }
    }

    pub(super) fn refuse(&mut self, incoming: Incoming) {
        self.buffer.clear();
        let transmit = self.endpoint.refuse(incoming, &mut self.buffer);
        self.send(&transmit);
    }

    /// What QUIC has to say of a connection.
    pub(super) fn poll(&mut self, handle: ConnectionHandle) -> Option<Event> {
        self.get(handle)?.quic.poll()
    }

    /// A connection may have something to send, or another timeout.
    pub(super) fn touch(&mut self, handle: ConnectionHandle) {
        if let Some(connection) = self.get(handle)
            && !std::mem::replace(&mut connection.is_touched, true)
        {
            self.touched.push(handle);
        }
    }

    /// For how long nothing has come of a connection, up to the newest burst.
    pub(super) fn silence(&mut self, handle: ConnectionHandle) -> Duration {
        let burst = self.burst;
        let connection = self.get(handle);
        connection.map_or(Duration::MAX, |connection| {
            burst.saturating_duration_since(connection.heard_at)
        })
    }

    /// Bytes of datagrams that still have room on a connection.
    pub(super) fn datagram_space(&mut self, handle: ConnectionHandle) -> usize {
        let connection = self.get(handle);
        connection.map_or(0, |connection| {
            connection.quic.datagrams().send_buffer_space()
        })
    }

    /// Gives a connection a datagram to send; where there is no room, the oldest that waits there goes. False if the connection cannot.
    pub(super) fn send_datagram(&mut self, handle: ConnectionHandle, datagram: Bytes) -> bool {
        let Some(connection) = self.get(handle) else {
            return false;
        };
        let sent = connection.quic.datagrams().send(datagram, true).is_ok();
        self.touch(handle);
        sent
    }

    /// The newest burst's datagram, which this connection has to send now, is followed until it has left.
    pub(super) fn follow(&mut self, handle: ConnectionHandle) {
        let burst = self.burst;
        if let Some(connection) = self.get(handle) {
            connection.followed.get_or_insert(burst);
        }
    }

    /// From reading a burst until the datagrams in it that were followed had left.
    pub(super) fn transit(&self) -> &Latencies {
        &self.transit
    }

    /// Lets a connection send all that it may by now.
    pub(super) fn transmit(&mut self, handle: ConnectionHandle, now: Instant) {
        let segments = self.udp.max_gso_segments().min(MAX_SEGMENTS);
        let Some(connection) = self.slots.get_mut(handle.0).and_then(Option::as_deref_mut) else {
            return;
        };
        connection.is_touched = false;
        while let Some(event) = connection.quic.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(handle, event) {
                connection.quic.handle_event(event);
            }
        }
        if connection.quic.is_drained() && connection.session.is_ended() {
            self.slots[handle.0] = None;
            return;
        }
        loop {
            self.buffer.clear();
            let transmit = connection
                .quic
                .poll_transmit(now, segments, &mut self.buffer);
            let Some(transmit) = transmit else { break };
            write(&self.socket, &self.udp, &transmit, &self.buffer);
        }
        if let Some(since) = connection.followed
            && connection.quic.datagrams().send_buffer_space() == connection.datagram_space
        {
            connection.followed = None;
            self.transit.record(since.elapsed());
        }
        if let Some(due) = connection.timeout()
            && connection.armed.is_none_or(|armed| due < armed)
        {
            connection.armed = Some(due);
            self.timers.push(Reverse((due, handle.0)));
        }
    }

    /// Lets all send who were touched.
    pub(super) fn transmit_all(&mut self, now: Instant) {
        let mut touched = std::mem::take(&mut self.touched);
        for handle in touched.drain(..) {
            if self.get(handle).is_some_and(|it| it.is_touched) {
                self.transmit(handle, now);
            }
        }
        debug_assert!(self.touched.is_empty(), "to send touches nobody");
        self.touched = touched;
        self.idle_since = Instant::now();
    }

    /// A connection whose timeout has come.
    pub(super) fn poll_due(&mut self, now: Instant) -> Option<ConnectionHandle> {
        self.next_timeout().filter(|due| *due <= now)?;
        let Reverse((_, slot)) = self.timers.pop()?;
        let handle = ConnectionHandle(slot);
        self.get(handle)?.armed = None;
        self.touch(handle);
        Some(handle)
    }

    /// When the next connection has to be looked at. Timeouts move with almost every packet, and only those that come first are put right.
    pub(super) fn next_timeout(&mut self) -> Option<Instant> {
        loop {
            let &Reverse((at, slot)) = self.timers.peek()?;
            let connection = self.slots[slot].as_deref_mut();
            // Another entry than its own is of a connection that is gone, or was too late.
            let connection = connection.filter(|connection| connection.armed == Some(at));
            let due = connection.and_then(|connection| {
                connection.armed = connection.timeout();
                connection.armed
            });
            if due == Some(at) {
                return due;
            }
            self.timers.pop();
            if let Some(due) = due {
                self.timers.push(Reverse((due, slot)));
            }
        }
    }

    fn send(&mut self, transmit: &Transmit) {
        write(&self.socket, &self.udp, transmit, &self.buffer);
    }
}

impl Connection {
    /// When to look at it although nothing comes.
    fn timeout(&mut self) -> Option<Instant> {
        let timeouts = [self.quic.poll_timeout(), self.session.timeout()];
        timeouts.into_iter().flatten().min()
    }
}

impl Inbox {
    /// The packets of the burst, in the order in which they came.
    pub(super) fn packets(&self) -> impl Iterator<Item = (&RecvMeta, BytesMut)> {
        let parts = self.bytes.chunks_exact(self.bytes.len() / BATCH_SIZE);
        let received = self.packets.iter().zip(parts).take(self.count);
        received.flat_map(|(meta, part)| {
            let mut rest = BytesMut::from(&part[..meta.len]);
            iter::from_fn(move || {
                let length = meta.stride.min(rest.len());
                (length > 0).then(|| (meta, rest.split_to(length)))
            })
        })
    }
}

/// Whether it is one of those that begin connections: Initial (RFC 9000, section 17.2.2; 0-RTT is not offered).
fn is_first(packet: &[u8]) -> bool {
    packet.first().is_some_and(|byte| byte & 0xf0 == 0xc0)
}

/// What finds the system's buffer full is lost, as it would be in any full queue on the way; so is what no route leads to.
fn write(socket: &Socket, udp: &UdpSocketState, transmit: &Transmit, buffer: &[u8]) {
    let ecn = transmit.ecn;
    let transmit = quinn_udp::Transmit {
        destination: transmit.destination,
        ecn: ecn.and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8)),
        contents: &buffer[..transmit.size],
        segment_size: transmit.segment_size,
        src_ip: transmit.src_ip,
    };
    if let Err(error) = udp.send(socket.udp(), &transmit) {
        tracing::debug!(%error, "a packet was lost on its way into the network");
    }
}
