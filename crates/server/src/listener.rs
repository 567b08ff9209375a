//! A web port's connections: so many of one address, and none that says nothing, or does not listen.

use std::{
    io, net,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::extract::connect_info::Connected;
use axum_server::{AddrListener, Address, accept::Accept};
use futures_util::future::BoxFuture;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time,
};

use crate::{
    admission::Admission, hub::Hub, metrics::DropReason, network::Network, rate::LineRate,
};

/// Connections of an address, for each signalling connection that it may have: pages also load their files by some.
const PER_SIGNALLING_CONNECTION: u32 = 8;
/// At least so many: each browser opens six for files, and who may not come in has to be told.
const LEAST_CONNECTIONS: u32 = 32;
/// How long a client may take for its first words.
const FIRST_WORDS: Duration = Duration::from_secs(5);
/// How long a client that does not read is waited for. One that reads slowly is not concerned.
const STALL: Duration = Duration::from_secs(30);
/// So long they are, in bytes: hyper waits for them without a timer, as they tell HTTP/2 from HTTP/1 (RFC 9113, section 3.4).
const FIRST_WORDS_BYTES: usize = 24;

/// Accepts what comes to a port.
#[derive(Debug)]
pub(crate) struct Listener {
    listener: TcpListener,
    hub: Arc<Hub>,
    /// Where addresses have limits.
    admission: Option<Arc<Mutex<Admission>>>,
    /// Of all connections.
    places: Arc<Semaphore>,
    lines: LineRate,
}

impl Listener {
    /// For everyone: with limits for each address, but not for proxies.
    pub(crate) fn public(listener: net::TcpListener, hub: Arc<Hub>) -> io::Result<Self> {
        let signalling = hub.config.connections.per_address;
        let all = signalling.saturating_mul(PER_SIGNALLING_CONNECTION);
        let places = hub.config.connections.in_all.min(Semaphore::MAX_PERMITS);
        let admission = Admission::new(all.max(LEAST_CONNECTIONS));
        Ok(Self {
            admission: Some(Arc::new(Mutex::new(admission))),
            places: Arc::new(Semaphore::new(places)),
            ..Self::operator(listener, hub)?
        })
    }

    /// For the operator alone.
    pub(crate) fn operator(listener: net::TcpListener, hub: Arc<Hub>) -> io::Result<Self> {
        Ok(Self {
            listener: TcpListener::from_std(listener)?,
            lines: LineRate::new(hub.now()),
            hub,
            admission: None,
            places: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
        })
    }

    /// The place of a connection that may come in, or what has too many; nothing has, if there are too many in all.
    fn admit(&self, address: IpAddr) -> Result<Place, Option<Network>> {
        let one_of_all = Arc::clone(&self.places).try_acquire_owned();
        let one_of_all = one_of_all.map_err(|_| None)?;
        let admission = self.admission.as_ref();
        let admission = admission.filter(|_| !self.hub.config.trusts(address));
        if let Some(admission) = admission {
            let mut admission = admission.lock().unwrap_or_else(PoisonError::into_inner);
            admission.handle_opened(address, self.hub.now())?;
        }
        Ok(Place {
            admission: admission.cloned(),
            address,
            _one_of_all: one_of_all,
        })
    }
}

impl AddrListener<Visit, Visitor> for Listener {
    async fn bind_to(_: Visitor) -> io::Result<Self> {
        // It is made of one that is bound.
        Err(io::ErrorKind::Unsupported.into())
    }

    async fn accept_stream(&self) -> io::Result<(Visit, Visitor)> {
        loop {
            let accepted = self.listener.accept().await;
            let (stream, address) = accepted.inspect_err(|error| {
                if self.lines.may_log(self.hub.now()) {
                    tracing::error!(%error, "cannot accept connections");
                }
            })?;
            let network = match self.admit(address.ip()) {
                Ok(place) => return Ok((Visit { stream, place }, Visitor(address))),
                Err(network) => network,
            };
            self.hub
                .metrics
                .count_dropped(DropReason::TooManyConnections);
            if !self.lines.may_log(self.hub.now()) {
                continue;
            }
            match network {
                Some(network) => tracing::warn!(
                    %network,
                    "refused to talk: an address has too many connections, or opens them too fast; see \
                     --max-connections-per-address"
                ),
                None => tracing::warn!(
                    "refused to talk: there are as many connections as open files allow; raise that limit (`ulimit -n`, or \
                     LimitNOFILE= of systemd)"
                ),
            }
        }
    }

    fn get_local_addr(&self) -> io::Result<Visitor> {
        self.listener.local_addr().map(Visitor)
    }
}

/// Who connects.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Visitor(SocketAddr);

impl Address for Visitor {
    type Stream = Visit;
    type Listener = Listener;
}

impl Connected<Visitor> for SocketAddr {
    fn connect_info(Visitor(address): Visitor) -> Self {
        address
    }
}

/// A connection that was let in.
#[derive(Debug)]
pub(crate) struct Visit {
    stream: TcpStream,
    place: Place,
}

/// Counts among those of its address, until it is dropped.
#[derive(Debug)]
struct Place {
    admission: Option<Arc<Mutex<Admission>>>,
    address: IpAddr,
    _one_of_all: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(admission) = &self.admission {
            let mut admission = admission.lock().unwrap_or_else(PoisonError::into_inner);
            admission.handle_closed(self.address);
        }
    }
}

/// Goes on to HTTP as another acceptor does, which has a timer of its own if it is for TLS.
#[derive(Debug, Clone)]
pub(crate) struct Prompt<A>(pub(crate) A);

impl<A, S> Accept<Visit, S> for Prompt<A>
where
    A: Accept<TcpStream, S, Future: Send + 'static>,
{
    type Stream = PromptStream<A::Stream>;
    type Service = A::Service;
    type Future = BoxFuture<'static, io::Result<(Self::Stream, Self::Service)>>;

    fn accept(&self, Visit { stream, place }: Visit, service: S) -> Self::Future {
        let accepted = self.0.accept(stream, service);
        Box::pin(async move {
            let (stream, service) = accepted.await?;
            let prompt = PromptStream {
                stream,
                missing: FIRST_WORDS_BYTES,
                deadline: Box::pin(time::sleep(FIRST_WORDS)),
                patience: STALL,
                stall: None,
                _place: place,
            };
            Ok((prompt, service))
        })
    }
}

/// Ends if the first words do not come in time, or nothing can be written for too long.
#[derive(Debug)]
pub(crate) struct PromptStream<S> {
    stream: S,
    /// Bytes until they are complete.
    missing: usize,
    deadline: Pin<Box<time::Sleep>>,
    patience: Duration,
    /// Until when something has to be written, if that waits for the client.
    stall: Option<Pin<Box<time::Sleep>>>,
    _place: Place,
}

impl<S> PromptStream<S> {
    /// What came of writing, unless that waits for too long.
    fn in_time<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stall = None;
            return written;
        }
        let patience = self.patience;
        let stall = self
            .stall
            .get_or_insert_with(|| Box::pin(time::sleep(patience)));
        ready!(stall.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for PromptStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_pending() && self.missing > 0 {
            ready!(self.deadline.as_mut().poll(context));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        self.missing = self.missing.saturating_sub(buffer.filled().len() - before);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PromptStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.in_time(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = Pin::new(&mut self.stream).poll_flush(context);
        self.in_time(context, written)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = Pin::new(&mut self.stream).poll_shutdown(context);
        self.in_time(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.in_time(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    /// A connection, and its client's end, which reads at most so many bytes ahead.
    fn connection() -> (PromptStream<DuplexStream>, DuplexStream) {
        let (stream, client) = duplex(8);
        let places = Arc::new(Semaphore::new(1));
        let place = Place {
            admission: None,
            address: [192, 0, 2, 1].into(),
            _one_of_all: places.try_acquire_owned().expect("there is one"),
        };
        let prompt = PromptStream {
            stream,
            missing: 0,
            deadline: Box::pin(time::sleep(FIRST_WORDS)),
            patience: Duration::from_millis(300),
            stall: None,
            _place: place,
        };
        (prompt, client)
    }

    #[tokio::test]
    async fn who_does_not_read_is_not_waited_for_but_who_reads_slowly_is() {
        let (mut deaf, _client) = connection();
        let written = time::timeout(Duration::from_secs(30), deaf.write_all(&[0; 64])).await;
        let error = written.expect("it ends").expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);

        let (mut slow, mut client) = connection();
        let read = async {
            for _ in 0..8 {
                time::sleep(Duration::from_millis(100)).await;
                client.read_exact(&mut [0; 8]).await.expect("something");
            }
        };
        let (written, ()) = tokio::join!(slow.write_all(&[0; 64]), read);
        written.expect("all of it");
    }
}
