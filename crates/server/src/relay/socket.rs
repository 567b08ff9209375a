//! The relay's socket in its event loop.

use std::{io, net};

use quinn_udp::UdpSockRef;
use tokio::io::Interest;

#[cfg(unix)]
type Inner = tokio::io::unix::AsyncFd<net::UdpSocket>;
#[cfg(not(unix))]
type Inner = tokio::net::UdpSocket;

/// A socket of which the event loop tells when there is something to read, and no more where it can be asked for that alone. The relay never waits
/// to write, and each packet that leaves makes room for another: to be told of that as well took an eighth of the thread's time (docs/adr/0025-quic-driven-by-the-relay.md).
#[derive(Debug)]
pub(super) struct Socket(Inner);

impl Socket {
    #[cfg(unix)]
    pub(super) fn new(socket: net::UdpSocket) -> io::Result<Self> {
        // SAFETY: the socket owns its descriptor, which stays as it is until it is dropped, and nothing takes it out of there.
        let inner = unsafe { Inner::register_with_interest(socket, Interest::READABLE) };
        inner.map(Self).map_err(Into::into)
    }

    #[cfg(not(unix))]
    pub(super) fn new(socket: net::UdpSocket) -> io::Result<Self> {
        Inner::from_std(socket).map(Self)
    }

    /// Waits until there may be something to read.
    pub(super) async fn readable(&self) -> io::Result<()> {
        self.0.readable().await.map(drop)
    }

    /// Reads, unless the event loop knows that there is nothing; if `read` says `WouldBlock`, that is what it knows until something comes.
    pub(super) fn try_read<R>(
        &self,
        read: impl FnOnce(UdpSockRef<'_>) -> io::Result<R>,
    ) -> io::Result<R> {
        #[cfg(unix)]
        let read = |_: &_| read(self.udp());
        #[cfg(not(unix))]
        let read = || read(self.udp());
        self.0.try_io(Interest::READABLE, read)
    }

    /// Tells the event loop that all was read: it says so when more comes, and need not be asked until then.
    pub(super) fn was_emptied(&self) {
        let nothing = |_: UdpSockRef<'_>| Err::<(), _>(io::ErrorKind::WouldBlock.into());
        let _ = self.try_read(nothing);
    }

    /// For what does not wait.
    pub(super) fn udp(&self) -> UdpSockRef<'_> {
        (&self.0).into()
    }
}
