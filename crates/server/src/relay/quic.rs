//! What the relay asks of QUIC, and why: `docs/adr/0019-relay.md`.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    time::Duration,
};

use quinn_proto::TransportConfig;
use socket2::{Domain, Protocol, Socket, Type};

/// A WebTransport datagram begins with the quarter of its session's stream number (RFC 9297). The relay takes one session on each
/// connection, so that is 0: this byte.
pub(super) const SESSION_PREFIX: u8 = 0;

/// A session that is silent for this long is closed; one that lives answers the keep-alives.
const IDLE: Duration = Duration::from_secs(10);
const KEEP_ALIVE: Duration = Duration::from_secs(3);
/// What may wait on a session, in bytes. About 30 datagrams of 128 frames: one of each in a full room.
pub(super) const SEND_BUFFER: usize = 16 * 1_024;
/// What may wait for the media thread from one session, in bytes.
const RECEIVE_BUFFER: usize = 64 * 1_024;
/// The operating system's buffers: a burst of all senders, while the thread signs a handshake.
const SOCKET_BUFFER: usize = 4 << 20;

/// Why a session is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum CloseCode {
    Unneeded = 0,
    UnknownToken = 1,
    MalformedControl = 2,
    TooManySessions = 3,
    Left = 4,
    Stopping = 5,
}

impl CloseCode {
    /// In words for the developer of a page.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Unneeded => "no longer needed",
            Self::UnknownToken => "unknown token",
            Self::MalformedControl => "malformed control",
            Self::TooManySessions => "too many sessions",
            Self::Left => "the participant has left",
            Self::Stopping => "the server stops",
        }
    }
}

/// A UDP socket with large buffers, as far as the operating system allows.
pub(super) fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    // What is refused is less, not nothing.
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER);
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// What every session asks of QUIC.
pub fn transport() -> TransportConfig {
    let mut transport = TransportConfig::default();
    antiphon_congestion::configure(&mut transport)
        .max_idle_timeout(Some(IDLE.try_into().expect("fits QUIC's milliseconds")))
        .keep_alive_interval(Some(KEEP_ALIVE))
        .datagram_send_buffer_size(SEND_BUFFER)
        .datagram_receive_buffer_size(Some(RECEIVE_BUFFER))
        // The request itself, and the control stream.
        .max_concurrent_bidi_streams(2_u32.into())
        // HTTP/3's own: control, and two of QPACK.
        .max_concurrent_uni_streams(4_u32.into())
        .stream_receive_window((32_u32 * 1_024).into())
        .receive_window((64_u32 * 1_024).into())
        .send_window(64 * 1_024);
    transport
}
