//! The relay: carries datagrams between the pages of a room, over WebTransport (`docs/protocol.md`, "Relay").
//!
//! ```text
//! hub ── media::MediaCommand ──▶ Relay      who may have sessions
//!                                  │
//! page ══ QUIC ══▶ session ─────▶ room      one task reads a session's datagrams, and sends on what
//!                     │ control     │       each listener takes, before it waits again
//!                     ▼             ▼
//!                  control        other sessions ══ QUIC ══▶ pages
//! ```
//!
//! All of it, QUIC included, runs on one thread of its own with a real-time priority: a datagram meets no other thread, and no lock that
//! another thread holds, on its way through. A session that does not read only loses its own oldest datagrams.
//! Why it is so: `docs/adr/0019-relay.md`.

mod certificate;
pub mod control;
mod latency;
mod metrics;
mod quic;
mod realtime;
mod room;
mod session;

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    rc::Rc,
    sync::Arc,
    thread,
    time::{Duration, Instant, SystemTime},
};

use tokio::{
    runtime::{Builder, LocalOptions},
    sync::{mpsc, oneshot, watch},
    task, time,
};
use web_transport_quinn::{
    Session,
    quinn::{Endpoint, EndpointConfig, ServerConfig, TokioRuntime, TransportConfig},
};

use self::{
    certificate::{Certificate, Rotation},
    latency::Latencies,
    metrics::Snapshot,
    quic::CloseCode,
    room::Room,
    session::Seat,
};
use crate::{
    admission::Admission,
    config::{RelayConfig, TlsFiles},
    media::{Media, MediaCommand, MediaEnd, MediaStatus, RelayOffer, Token},
    server::StartError,
    signalling::RoomName,
    tls,
};

pub use self::certificate::Lifetime;
pub(crate) use self::metrics::RelayMetrics;

/// Sessions that one address may have: those of as many participants as a room has by default, and of some who have gone.
const SESSIONS_PER_ADDRESS: u32 = 256;
/// Handshakes at once, beyond which an address has to prove that it is its own, and twice that, beyond which nobody gets one.
const HANDSHAKES: usize = 64;
/// How long sessions may take to end after the relay was asked to stop.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often the loop's lag is measured.
const LAG_INTERVAL: Duration = Duration::from_millis(50);
/// How often the snapshots are made.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// A certificate of the relay's own is looked at this often, because a host may sleep.
const ROTATION_CHECK: Duration = Duration::from_secs(60);

/// A relay with its socket bound and its certificate read, ready to [`BoundRelay::start`].
#[derive(Debug)]
pub struct BoundRelay {
    socket: UdpSocket,
    address: SocketAddr,
    identity: Identity,
    config: ServerConfig,
    transport: Arc<TransportConfig>,
    public_origin: Option<String>,
    end: MediaEnd,
    snapshots: watch::Sender<Arc<Snapshot>>,
}

/// Where the certificate is from.
#[derive(Debug)]
enum Identity {
    Files(TlsFiles),
    Own(Rotation),
}

impl BoundRelay {
    /// Binds the socket and reads the certificate, or makes one that lives as long as `lifetime` says. Pages of `public_origin` may
    /// connect, besides those of the host that they connect to.
    ///
    /// # Errors
    /// The address is taken, or the files are no certificate with its key.
    pub fn bind(
        listen: SocketAddr,
        config: &RelayConfig,
        public_origin: Option<String>,
        lifetime: Lifetime,
    ) -> Result<(Self, Media), StartError> {
        let transport = quic::transport();
        let (identity, server_config, hashes) = match &config.tls {
            Some(files) => {
                let server_config = read(files, &transport).map_err(|source| StartError::Tls {
                    cert: files.cert.clone(),
                    key: files.key.clone(),
                    source,
                })?;
                (Identity::Files(files.clone()), server_config, Arc::default())
            }
            None => {
                let own = Rotation::new(lifetime, SystemTime::now());
                let hashes = own.hashes();
                let server_config = own.server_config(&transport);
                (Identity::Own(own), server_config, hashes)
            }
        };
        let bind = || {
            let socket = quic::bind(listen)?;
            let address = socket.local_addr()?;
            Ok((socket, address))
        };
        let (socket, address) = bind().map_err(|source| StartError::Listen {
            address: listen,
            source,
        })?;
        let (media, end) = Media::new(RelayOffer {
            port: config.public_port.unwrap_or(address.port()),
            certificate_hashes: hashes,
        });
        let relay = Self {
            socket,
            address,
            identity,
            config: server_config,
            transport,
            public_origin,
            end,
            snapshots: watch::Sender::default(),
        };
        Ok((relay, media))
    }

    /// Where it listens, with the port that was really taken.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What Prometheus may ask of it.
    pub(crate) fn metrics(&self) -> RelayMetrics {
        RelayMetrics(self.snapshots.subscribe())
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// The operating system gives no thread, or none of what its event loop needs.
    pub fn start(self) -> io::Result<RunningRelay> {
        let runtime = || {
            Builder::new_current_thread()
                .enable_all()
                .build_local(LocalOptions::default())
        };
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new()
            .name("antiphon-media".into())
            .spawn(move || {
                match realtime::prefer_this_thread() {
                    Ok(()) => tracing::debug!("the relay runs at a real-time priority"),
                    Err(error) => tracing::info!(%error, "the relay runs without a real-time priority"),
                }
                let run = async { runtime()?.block_on(self.run(stopped)) };
            })?;
        Ok(RunningRelay { stop, thread })
    }
}
