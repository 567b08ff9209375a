//! The relay's UDP socket, which also measures how long datagrams take through the relay, QUIC included.

use std::{
    io::{self, IoSliceMut},
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use web_transport_quinn::quinn::{
    AsyncUdpSocket, UdpPoller,
    udp::{RecvMeta, Transmit},
};

use super::latency::Latencies;

/// A datagram that was not sent by then never will be: its session has ended, or had no room.
const LOST: Duration = Duration::from_secs(1);

/// A socket that knows when it was read and written.
///
/// One datagram at a time is followed: from the reading of the burst of packets in which it came to the first packet that goes to its listener
/// after it was handed to QUIC.
#[derive(Debug)]
pub(super) struct MeasuredSocket {
    socket: Arc<dyn AsyncUdpSocket>,
    /// QUIC's types ask for a lock; nobody but the media thread ever takes it.
    trace: Mutex<Trace>,
}

#[derive(Debug)]
struct Trace {
    /// When the first packet of the newest burst was read.
    burst: Instant,
    /// Whether the burst is over: nothing more was there to read.
    is_over: bool,
    /// What is followed: since when, and where to.
    followed: Option<(Instant, SocketAddr)>,
    transit: Latencies,
}

impl MeasuredSocket {
    pub(super) fn new(socket: Arc<dyn AsyncUdpSocket>) -> Self {
        Self {
            socket,
            trace: Mutex::new(Trace {
                burst: Instant::now(),
                is_over: true,
                followed: None,
                transit: Latencies::default(),
            }),
        }
    }

    /// A datagram of the newest burst was handed to QUIC for this address.
    pub(super) fn follow(&self, listener: SocketAddr) {
        let mut trace = self.trace();
        if trace
            .followed
            .is_none_or(|(since, _)| since.elapsed() > LOST)
        {
            trace.followed = Some((trace.burst, listener));
        }
    }

    /// From reading a datagram until its last copy was written, of those that were followed.
    pub(super) fn transit(&self) -> Latencies {
        self.trace().transit.clone()
    }

    fn trace(&self) -> MutexGuard<'_, Trace> {
        self.trace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsyncUdpSocket for MeasuredSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.socket).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.socket.try_send(transmit)?;
        let mut trace = self.trace();
        if let Some((since, _)) = trace
            .followed
            .take_if(|(_, listener)| *listener == transmit.destination)
        {
            trace.transit.record(since.elapsed());
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let received = self.socket.poll_recv(cx, buffers, meta);
        let mut trace = self.trace();
        if received.is_pending() {
            trace.is_over = true;
        } else if trace.is_over {
            trace.is_over = false;
            trace.burst = Instant::now();
        }
        received
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.socket.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.socket.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }
}
