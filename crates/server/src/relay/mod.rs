//! The relay: carries datagrams between the pages of a room, over WebTransport (`docs/protocol.md`, "Relay").
//!
//! ```text
//! hub ── media::MediaCommand ──▶ Relay      who may have sessions
//!                                  │
//! page ══ QUIC ══▶ connections ─▶ room      the loop reads a packet, and sends on what each
//!                     │             │       listener takes, before it looks at the next
//!                     ▼             ▼
//!            session, control     connections ══ QUIC ══▶ other pages
//! ```
//!
//! All of it, QUIC included, is one loop on a thread of its own with a real-time priority: a datagram meets no other thread, no other task
//! and no lock on its way through. A session that does not read only loses its own oldest datagrams.
//! Why it is so: `docs/adr/0019-relay.md`, `docs/adr/0025-quic-driven-by-the-relay.md`.

mod certificate;
mod connections;
pub mod control;
mod encoding;
mod latency;
mod load;
mod losses;
mod metrics;
mod quic;
mod realtime;
mod room;
mod session;
mod socket;
mod webtransport;

pub use quic::transport;

use std::{
    cell::RefCell,
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    pin::pin,
    rc::Rc,
    sync::Arc,
    thread,
    time::{Duration, Instant, SystemTime},
};

use quinn_proto::{ServerConfig, TransportConfig};
use rustls::{pki_types::CertificateDer, sign::CertifiedKey};
use tokio::{
    runtime::{Builder, LocalOptions},
    sync::{mpsc, oneshot, watch},
    task, time,
};

use self::{
    certificate::{Certificate, Rotation},
    connections::{Connections, Inbox, Routed},
    encoding::{Encoded, Encoding},
    latency::Latencies,
    metrics::Snapshot,
    quic::CloseCode,
    room::{AllMixes, Changed, Room},
    session::Seat,
};
use crate::{
    acme::Shown,
    admission::{Admission, counted},
    config::{Config, RelayConfig, Tls, TlsFiles},
    media::{Media, MediaCommand, MediaEnd, MediaStatus, RelayOffer, Token},
    network::Network,
    rate::TokenBucket,
    server::StartError,
    signalling::RoomName,
    tls,
};

pub use self::certificate::Lifetime;
pub(crate) use self::metrics::RelayMetrics;

/// Sessions for each connection that an address may have with the hub.
const SESSIONS: u32 = room::MAX_SESSIONS as u32;
/// Handshakes at once, beyond which nobody gets another.
const MAX_HANDSHAKES: usize = 512;
/// Handshakes at once, beyond which an address gets none: a class behind one address opens some for each.
const HANDSHAKES_PER_ADDRESS: usize = 64;
/// How long sessions may take to end after the relay was asked to stop.
const PATIENCE: Duration = Duration::from_secs(2);
/// How much longer the thread may take, which then stands still: whoever stops the server shall not have to kill it.
const STUCK: Duration = Duration::from_secs(1);
/// How often the loop's lag is measured.
const LAG_INTERVAL: Duration = Duration::from_millis(50);
/// How often the snapshots are made.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// A report that is not done after so long goes on between packets, too.
const REPORT_DELAY: Duration = Duration::from_millis(100);
const PRIVATE: &str = "no public CA vouches for the certificate of the web port: the relay shows one of its own, which pages recognise";
/// A certificate of the relay's own is looked at this often, because a host may sleep.
const ROTATION_CHECK: Duration = Duration::from_secs(60);

/// A relay with its socket bound and its certificate read, ready to [`BoundRelay::start`].
#[derive(Debug)]
pub struct BoundRelay {
    socket: UdpSocket,
    address: SocketAddr,
    identity: Identity,
    shown: Option<watch::Receiver<Shown>>,
    is_public: IsPublic,
    config: ServerConfig,
    transport: Arc<TransportConfig>,
    public_origin: Option<String>,
    sessions_per_address: u32,
    end: MediaEnd,
    snapshots: watch::Sender<Arc<Snapshot>>,
}

/// [`tls::is_public`], but for tests, which have no such certificate.
type IsPublic = fn(&[CertificateDer<'_>]) -> bool;

/// Where the certificate is from.
#[derive(Debug)]
enum Identity {
    Files(TlsFiles),
    Own(Rotation),
}

impl BoundRelay {
    /// Binds the socket at `listen` and reads the certificate, or makes one that lives as long as `lifetime` says.
    ///
    /// # Errors
    /// The address is taken, or the files are no certificate with its key.
    pub fn bind(
        config: &Config,
        relay: &RelayConfig,
        listen: SocketAddr,
        lifetime: Lifetime,
    ) -> Result<(Self, Media), StartError> {
        let transport = Arc::new(quic::transport());
        let files = relay.tls.as_ref().or_else(|| public_files(config));
        let (identity, server_config, hashes) = match files {
            Some(files) => {
                let server_config = read(files, &transport).map_err(|source| StartError::Tls {
                    cert: files.cert.clone(),
                    key: files.key.clone(),
                    source,
                })?;
                (
                    Identity::Files(files.clone()),
                    server_config,
                    Arc::default(),
                )
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
        let (socket, address) = bind().map_err(|source| StartError::ListenRelay {
            address: listen,
            source,
        })?;
        let (media, end) = Media::new(RelayOffer {
            port: relay.public_port.unwrap_or(address.port()),
            certificate_hashes: hashes,
        });
        let relay = Self {
            socket,
            address,
            identity,
            shown: None,
            is_public: tls::is_public,
            config: server_config,
            transport,
            public_origin: config.public_origin.clone(),
            sessions_per_address: config.connections.per_address.saturating_mul(SESSIONS),
            end,
            snapshots: watch::Sender::default(),
        };
        Ok((relay, media))
    }

    /// Where it listens, with the port that was really taken.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether its certificate is read again on SIGHUP.
    pub(crate) fn reads_files(&self) -> bool {
        matches!(self.identity, Identity::Files(_))
    }

    /// Shows another certificate than its own as soon as there is one that a public CA vouches for.
    pub(crate) fn show(&mut self, shown: watch::Receiver<Shown>) {
        self.shown = Some(shown);
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
        let (stop, stopped) = oneshot::channel();
        let (running, gone) = oneshot::channel();
        // Before the other, whose priority its own children would have.
        let encoding = Encoding::start()?;
        let runtime = || {
            Builder::new_current_thread()
                .enable_all()
                .build_local(LocalOptions::default())
        };
        let thread = thread::Builder::new().name("antiphon-media".into());
        let thread = thread.spawn(move || {
            // Dropped with the thread's end, whatever that is.
            let _running: oneshot::Sender<()> = running;
            match realtime::prefer_this_thread() {
                Ok(()) => tracing::debug!("the relay runs at a real-time priority"),
                Err(error) => tracing::info!(%error, "the relay runs at no real-time priority"),
            }
            let ended = runtime().and_then(|runtime| runtime.block_on(self.run(stopped, encoding)));
            ended.inspect_err(|error| tracing::error!(%error, "the relay has ended"))
        })?;
        Ok(RunningRelay { stop, gone, thread })
    }

    async fn run(
        self,
        mut stopped: oneshot::Receiver<()>,
        (encoding, mut encoded): (Encoding, mpsc::UnboundedReceiver<Encoded>),
    ) -> io::Result<()> {
        let Self {
            socket,
            identity,
            shown,
            is_public,
            config,
            transport,
            public_origin,
            sessions_per_address,
            mut end,
            snapshots,
            ..
        } = self;
        let start = Instant::now();
        let mut relay = Relay {
            start,
            connections: Connections::new(socket, config)?,
            public_origin,
            changed: Rc::default(),
            mix_due: None,
            all_mixes: Rc::default(),
            encoding: Rc::new(encoding),
            seats: HashMap::new(),
            rooms: HashMap::new(),
            admission: Admission::new(sessions_per_address),
            handshakes: Vec::new(),
            refused: 0,
            lines: TokenBucket::new(1, 1, Duration::ZERO),
            forward: Latencies::default(),
            mix: Latencies::default(),
            lag: Lag::new(start),
            reported: Default::default(),
            overloaded: 0,
            reported_at: start,
            report: None,
        };
        let mut inbox = relay.connections.inbox();
        let (configs, mut new_configs) = mpsc::unbounded_channel();
        let renewing = renew(identity, shown, is_public, configs, transport, end.offer);
        task::spawn_local(renewing);
        let mut timer = pin!(time::sleep(Duration::ZERO));
        let mut stopping = None;
        loop {
            tokio::select! {
                readable = relay.connections.readable() => {
                    readable?;
                    relay.handle_packets(&mut inbox)?;
                }
                // What is due may be so only because it lies unread.
                () = &mut timer => relay.handle_packets(&mut inbox)?,
                Some(encoded) = encoded.recv() => relay.handle_encoded(encoded),
                command = end.commands.recv(), if stopping.is_none() => match command {
                    Some(command) => relay.handle_command(command),
                    None => stopping = Some(relay.stop()),
                },
                _ = &mut stopped, if stopping.is_none() => stopping = Some(relay.stop()),
                Some(config) = new_configs.recv(), if stopping.is_none() => {
                    relay.connections.set_server_config(Some(config));
                }
                // Room by room: packets come first.
                () = task::yield_now(), if relay.report.is_some() => relay.report_next(&end.status, &snapshots),
            }
            let now = Instant::now();
            relay.handle_timeout(now);
            relay.connect_listeners();
            relay.connections.transmit_all(now);
            if relay.report.is_some() && relay.reported_at + REPORT_DELAY <= now {
                // While more waits than is read at a time, nothing else has its turn: it is now that an operator has to see it.
                task::yield_now().await;
                relay.report_next(&end.status, &snapshots);
            }
            if let Some(until) = stopping {
                if relay.connections.is_empty() {
                    return Ok(());
                }
                if now >= until {
                    tracing::debug!("sessions did not end in time");
                    return Ok(());
                }
            }
            let next = relay.next_timeout();
            timer
                .as_mut()
                .reset(next.min(stopping.unwrap_or(next)).into());
        }
    }
}

/// The relay at work, on its own thread.
#[derive(Debug)]
pub struct RunningRelay {
    stop: oneshot::Sender<()>,
    gone: oneshot::Receiver<()>,
    thread: thread::JoinHandle<io::Result<()>>,
}

impl RunningRelay {
    /// Returns when the thread has ended. It does not by itself, unless something is wrong: [`stop`](Self::stop) says what.
    pub async fn gone(&mut self) {
        // Nothing is ever sent.
        let _ = (&mut self.gone).await;
    }

    /// Closes every session, and returns when all have ended or two seconds later; after another second whatever the thread does.
    ///
    /// # Errors
    /// The thread could not serve at all, panicked, or does not end.
    pub async fn stop(self) -> io::Result<()> {
        // Fails if the relay has ended already.
        let _ = self.stop.send(());
        let joined = task::spawn_blocking(|| self.thread.join());
        match time::timeout(PATIENCE + STUCK, joined).await {
            Ok(Ok(Ok(result))) => result,
            Ok(_) => Err(io::Error::other("the relay's thread panicked")),
            Err(_) => {
                let why = "the relay's thread does not end";
                Err(io::Error::new(io::ErrorKind::TimedOut, why))
            }
        }
    }
}

/// All that the media thread has.
#[derive(Debug)]
struct Relay {
    start: Instant,
    connections: Connections,
    public_origin: Option<String>,
    changed: Rc<Changed>,
    /// When the first mix is due, unless that has changed.
    mix_due: Option<Instant>,
    all_mixes: Rc<AllMixes>,
    encoding: Rc<Encoding>,
    seats: HashMap<Token, Seat>,
    rooms: HashMap<RoomName, Rc<RefCell<Room>>>,
    admission: Admission,
    /// The addresses of connections that are no session yet, one for each.
    handshakes: Vec<IpAddr>,
    /// Connections that no [`Relay::admit`] let in, since the start.
    refused: u64,
    /// Lines that may be logged about what strangers do: one a second, or they could fill the disk.
    lines: TokenBucket,
    /// Of rooms that are gone.
    forward: Latencies,
    mix: Latencies,
    lag: Lag,
    /// Lag and transit as of the last report, and when that was.
    reported: (Latencies, Latencies),
    /// Packets dropped unread by then.
    overloaded: u64,
    reported_at: Instant,
    report: Option<Report>,
}

/// A report being made.
#[derive(Debug)]
struct Report {
    /// Since the one before.
    elapsed: Duration,
    status: MediaStatus,
    snapshot: Snapshot,
    /// What is still to be added: the rooms of when it was begun, even if some end meanwhile.
    rooms: Vec<Rc<RefCell<Room>>>,
}

/// How late the loop comes round to what is due after [`LAG_INTERVAL`]. Up to 1 ms of it is the grain of its timer.
#[derive(Debug)]
struct Lag {
    due: Instant,
    latencies: Latencies,
}

impl Lag {
    fn new(now: Instant) -> Self {
        Self {
            due: now + LAG_INTERVAL,
            latencies: Latencies::default(),
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        if self.due <= now {
            self.latencies.record(now - self.due);
            self.due = now + LAG_INTERVAL;
        }
    }
}

impl Relay {
    /// Lets a connection begin its handshake, or not. Each one let in must be given back to [`Relay::handshake_ended`], then to [`Relay::left`].
    fn admit(&mut self, address: IpAddr) -> bool {
        let handshakes = &self.handshakes;
        let has_room = |(network, share): (Network, u32)| {
            let own = handshakes.iter().filter(|other| network.contains(**other));
            own.count() < HANDSHAKES_PER_ADDRESS * share as usize
        };
        let admitted = handshakes.len() < MAX_HANDSHAKES
            && counted(address).all(has_room)
            && self
                .admission
                .handle_opened(address, self.start.elapsed())
                .is_ok();
        if admitted {
            self.handshakes.push(address);
        }
        admitted
    }

    fn handshake_ended(&mut self, address: IpAddr) {
        let mut handshakes = self.handshakes.iter();
        if let Some(index) = handshakes.position(|other| *other == address) {
            self.handshakes.swap_remove(index);
        }
    }

    fn left(&mut self, address: IpAddr) {
        self.admission.handle_closed(address);
    }

    /// Reads a burst of packets, and does all that each causes before the next.
    fn handle_packets(&mut self, inbox: &mut Inbox) -> io::Result<()> {
        self.connections.receive(inbox)?;
        for (meta, packet) in inbox.packets() {
            let now = Instant::now();
            match self.connections.handle_packet(now, meta, packet) {
                Some(Routed::To(handle)) => self.serve(handle, now),
                Some(Routed::New(incoming)) => self.handle_incoming(*incoming, now),
                None => {}
            }
        }
        self.connections.has_handled();
        Ok(())
    }

    fn handle_encoded(&mut self, encoded: Encoded) {
        if let Some(room) = self.rooms.get(&encoded.place.room) {
            room.borrow_mut()
                .handle_encoded(encoded, &mut self.connections);
        }
    }

    /// Does what is due by `now`.
    fn handle_timeout(&mut self, now: Instant) {
        while let Some(handle) = self.connections.poll_due(now) {
            self.handle_connection_timeout(handle, now);
        }
        // Such a mix misses something, and leaves up to 1 ms late: the timer's grain. What is complete has left before that, with its last frame.
        if self.next_mix().is_some_and(|due| due <= now) {
            let now = now - self.start;
            for room in self.rooms.values() {
                let mut room = room.borrow_mut();
                if room.poll_timeout().is_some_and(|due| due <= now) {
                    room.send_mixes(&mut self.connections);
                }
            }
        }
        self.lag.handle_timeout(now);
        if self.report.is_none() && self.reported_at + REPORT_INTERVAL <= now {
            self.begin_report(now);
        }
    }

    /// Finds out anew who takes what, where that has changed: once for all that a burst says.
    fn connect_listeners(&mut self) {
        if self.changed.listeners.take() {
            for room in self.rooms.values() {
                room.borrow_mut().connect_listeners(&mut self.connections);
            }
        }
    }

    /// When something is due although nothing comes.
    fn next_timeout(&mut self) -> Instant {
        let timeouts = [
            self.connections.next_timeout(),
            self.next_mix(),
            Some(self.reported_at + REPORT_INTERVAL),
        ];
        let timeouts = timeouts.into_iter().flatten();
        timeouts.fold(self.lag.due, Instant::min)
    }

    /// When the first mix is due.
    fn next_mix(&mut self) -> Option<Instant> {
        if self.changed.mixes.take() {
            let rooms = self.rooms.values();
            let due = rooms.filter_map(|room| room.borrow().poll_timeout()).min();
            self.mix_due = due.map(|due| self.start + due);
        }
        self.mix_due
    }

    /// Closes all sessions, and lets nobody new in. Answers how long they may take.
    fn stop(&mut self) -> Instant {
        for room in self.rooms.values() {
            room.borrow()
                .close_all(CloseCode::Stopping, &mut self.connections);
        }
        self.connections.set_server_config(None);
        Instant::now() + PATIENCE
    }

    fn handle_command(&mut self, command: MediaCommand) {
        match command {
            MediaCommand::Admit {
                token,
                room,
                participant,
                stream,
                sample_rate_hz,
            } => {
                let new = || {
                    let room = Room::new(
                        room.clone(),
                        sample_rate_hz,
                        self.start,
                        Rc::clone(&self.changed),
                        Rc::clone(&self.all_mixes),
                        Rc::clone(&self.encoding),
                    );
                    Rc::new(RefCell::new(room))
                };
                let room = Rc::clone(self.rooms.entry(room.clone()).or_insert_with(new));
                room.borrow_mut().admit(stream, participant);
                self.seats.insert(token, Seat { room, stream });
            }
            MediaCommand::Withdraw { token } => {
                let Some(Seat { room, stream }) = self.seats.remove(&token) else {
                    return;
                };
                let mut room = room.borrow_mut();
                room.withdraw(stream, &mut self.connections);
                if room.is_empty() {
                    self.forward.merge(&room.forward);
                    self.mix.merge(&room.mix);
                    self.rooms.remove(&room.name);
                }
            }
            MediaCommand::Mute { token, muted } => {
                if let Some(seat) = self.seats.get(&token) {
                    seat.room.borrow_mut().mute(seat.stream, muted);
                }
            }
        }
    }
}

/// Keeps the certificate fresh, until nobody takes one any more. Sessions that are open keep the one that they have.
async fn renew(
    identity: Identity,
    shown: Option<watch::Receiver<Shown>>,
    is_public: IsPublic,
    configs: mpsc::UnboundedSender<ServerConfig>,
    transport: Arc<TransportConfig>,
    offers: watch::Sender<RelayOffer>,
) {
    match identity {
        Identity::Files(files) => {
            let reload = async || {
                let next = read_again(&files, is_public, &transport)?;
                let is_taken = next.is_some();
                if let Some(next) = next {
                    let _ = configs.send(next);
                }
                Ok(is_taken)
            };
            tls::keep_fresh("relay", files.clone(), reload).await;
        }
        Identity::Own(own) => {
            let rotate = rotate(own, &configs, &transport, &offers);
            let Some(mut shown) = shown else {
                return rotate.await;
            };
            shown.mark_changed();
            let issued = async {
                match next_public(&mut shown, is_public).await {
                    Some(certificate) => certificate,
                    // Whoever orders may have ended without one: then its own go on.
                    None => std::future::pending().await,
                }
            };
            let mut certificate = tokio::select! {
                () = rotate => return,
                certificate = issued => certificate,
            };
            loop {
                let config = certificate::server_config(certificate, &transport);
                let _ = configs.send(config);
                offers.send_if_modified(|offer| {
                    !std::mem::take(&mut offer.certificate_hashes).is_empty()
                });
                match next_public(&mut shown, is_public).await {
                    Some(next) => certificate = next,
                    None => return,
                }
            }
        }
    }
}

/// Waits for the next certificate that a public CA vouches for; `None` if no more come.
async fn next_public(
    shown: &mut watch::Receiver<Shown>,
    is_public: IsPublic,
) -> Option<Arc<CertifiedKey>> {
    loop {
        shown.changed().await.ok()?;
        let certificate = shown.borrow_and_update().clone();
        match certificate {
            Some(certificate) if is_public(&certificate.cert) => return Some(certificate),
            Some(_) => tracing::info!("{PRIVATE}"),
            None => {}
        }
    }
}

/// Goes from one certificate of its own to the next, for ever.
async fn rotate(
    mut own: Rotation,
    configs: &mpsc::UnboundedSender<ServerConfig>,
    transport: &Arc<TransportConfig>,
    offers: &watch::Sender<RelayOffer>,
) {
    loop {
        let remaining = own.remaining(SystemTime::now());
        if !remaining.is_zero() {
            time::sleep(remaining.min(ROTATION_CHECK)).await;
            continue;
        }
        own.advance(SystemTime::now());
        let _ = configs.send(own.server_config(transport));
        offers.send_modify(|offer| offer.certificate_hashes = own.hashes());
        tracing::info!("the relay goes on to its next certificate");
    }
}

/// The web port's, if a public CA vouches for what is in them. What cannot be read has been said already.
fn public_files(config: &Config) -> Option<&TlsFiles> {
    let Some(Tls::Files(files)) = &config.tls else {
        return None;
    };
    let is_public = Certificate::read(files).is_ok_and(|certificate| certificate.is_public());
    if !is_public {
        tracing::info!("{PRIVATE}");
    }
    is_public.then_some(files)
}

/// Whether files for the relay alone hold what Chromium takes for no relay, which is said. What cannot be read is an error elsewhere.
pub(crate) fn is_private(files: &TlsFiles) -> bool {
    let is_private = Certificate::read(files).is_ok_and(|certificate| !certificate.is_public());
    if is_private {
        tracing::warn!(
            cert = %files.cert.display(),
            "no public CA vouches for the certificate of --relay-cert: browsers would open no relay with it, so that it is not shown. \
             Leave out --relay-cert and --relay-key, and the relay shows one that pages recognise, as now"
        );
    }
    is_private
}

/// Reads files that have changed; `None` if no public CA vouches for what is in them now, which is said.
fn read_again(
    files: &TlsFiles,
    is_public: IsPublic,
    transport: &Arc<TransportConfig>,
) -> io::Result<Option<ServerConfig>> {
    let certificate = Certificate::read(files)?;
    if !is_public(certificate.chain()) {
        tracing::error!(
            cert = %files.cert.display(),
            "no public CA vouches for the certificate that is there now: browsers would open no relay with it, so that the old one stays"
        );
        return Ok(None);
    }
    configured(&certificate, files, transport).map(Some)
}

fn read(files: &TlsFiles, transport: &Arc<TransportConfig>) -> io::Result<ServerConfig> {
    configured(&Certificate::read(files)?, files, transport)
}

/// Warns of a key that takes long to sign.
fn configured(
    certificate: &Certificate,
    files: &TlsFiles,
    transport: &Arc<TransportConfig>,
) -> io::Result<ServerConfig> {
    if certificate.is_slow() {
        tracing::warn!(
            key = %files.key.display(),
            "the key of the relay's certificate is not of the kind ECDSA with P-256: each handshake holds up everybody's sound 20 times as long or more. \
             Have one issued for such a key, for --relay-cert alone if need be"
        );
    }
    let config = certificate.server_config(transport);
    config.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

impl Relay {
    fn begin_report(&mut self, now: Instant) {
        let elapsed = now - self.reported_at;
        self.reported_at = now;
        let transit = self.connections.transit();
        let lag = &self.lag.latencies;
        let (lag_before, transit_before) = &self.reported;
        let status = MediaStatus {
            loop_lag_us: lag.since(lag_before).quantiles(),
            transit_us: transit.since(transit_before).quantiles(),
            refused: self.refused,
            rooms: Vec::with_capacity(self.rooms.len()),
        };
        self.reported = (lag.clone(), transit.clone());
        let overloaded = self.connections.overloaded();
        let dropped = overloaded - std::mem::replace(&mut self.overloaded, overloaded);
        if dropped > 0 && self.lines.take(1, self.start.elapsed()) {
            tracing::warn!(
                packets = dropped,
                "more comes than the relay can do: those who cause the most of it lose some"
            );
        }
        let snapshot = Snapshot {
            participants: Vec::with_capacity(self.seats.len()),
            forward: self.forward.clone(),
            transit: transit.clone(),
            mix: self.mix.clone(),
            lag: lag.clone(),
            refused: self.refused,
            mixes_refused: self.all_mixes.refused.get(),
            overloaded,
        };
        self.report = Some(Report {
            elapsed,
            status,
            snapshot,
            rooms: self.rooms.values().cloned().collect(),
        });
    }

    /// Adds a room to the report for the operator and for Prometheus; shows it when it has all.
    fn report_next(
        &mut self,
        shown: &watch::Sender<Arc<MediaStatus>>,
        snapshots: &watch::Sender<Arc<Snapshot>>,
    ) {
        let Some(report) = self.report.as_mut() else {
            return;
        };
        if let Some(room) = report.rooms.pop() {
            room.borrow_mut().report(
                report.elapsed,
                &mut report.status,
                &mut report.snapshot,
                &mut self.connections,
            );
        }
        if report.rooms.is_empty()
            && let Some(Report {
                status, snapshot, ..
            }) = self.report.take()
        {
            shown.send_replace(Arc::new(status));
            snapshots.send_replace(Arc::new(snapshot));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        net::UdpSocket,
        sync::{
            Mutex,
            atomic::{AtomicBool, Ordering},
        },
    };

    use quinn_udp::{Transmit, UdpSocketState};

    use super::*;

    #[tokio::test]
    async fn its_own_certificates_go_on_when_nobody_orders_others_any_more() {
        let lifetime = Lifetime {
            used: Duration::from_secs(1),
            margin: Duration::from_secs(60),
        };
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let bound = BoundRelay::bind(&Config::default(), &RelayConfig::default(), any, lifetime);
        let (mut relay, mut media) = bound.expect("binds");
        let orders = watch::Sender::default();
        relay.show(orders.subscribe());
        drop(orders);
        let first = media.offer().certificate_hashes;
        let running = relay.start().expect("starts");
        let changed = time::timeout(Duration::from_secs(30), media.offer_changed());
        changed.await.expect("it goes on to the next");
        let next = media.offer().certificate_hashes;
        assert_eq!(next.len(), 2);
        assert_ne!(first, next);
        running.stop().await.expect("it ends in good order");
    }

    #[tokio::test]
    async fn reports_while_more_comes_than_it_can_take() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let (config, relay) = (Config::default(), RelayConfig::default());
        let bound = BoundRelay::bind(&config, &relay, any, Lifetime::default());
        let (relay, media) = bound.expect("binds");
        let address = SocketAddr::from(([127, 0, 0, 1], media.offer().port));
        let running = relay.start().expect("starts");
        // The first packet of a connection (RFC 9000, section 17.2.2), in whose keys nothing can be read: no other costs as much.
        let mut initial = [0; 1_200];
        initial[..18].copy_from_slice(&[
            0xc3, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0x44, 0x9e,
        ]);
        let is_over = AtomicBool::new(false);
        thread::scope(|flood| {
            for _ in 0..2 {
                flood.spawn(|| {
                    let socket = UdpSocket::bind(any).expect("a socket");
                    let state = UdpSocketState::new((&socket).into()).expect("a socket");
                    let many = initial.repeat(state.max_gso_segments().clamp(1, 40));
                    while !is_over.load(Ordering::Relaxed) {
                        let _ = state.try_send(
                            (&socket).into(),
                            &Transmit {
                                destination: address,
                                ecn: None,
                                contents: &many,
                                segment_size: Some(initial.len()),
                                src_ip: None,
                            },
                        );
                    }
                });
            }
            let began = Instant::now();
            let (mut reports, mut last) = (0, media.status());
            while reports < 3 && began.elapsed() < Duration::from_secs(20) {
                thread::sleep(Duration::from_millis(10));
                let now = media.status();
                reports += u32::from(!Arc::ptr_eq(&now, &last));
                last = now;
            }
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(reports, 3);
        });
        running.stop().await.expect("it ends in good order");
    }

    #[tokio::test]
    async fn a_certificate_is_shown_that_a_public_ca_vouches_for_and_no_other() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let (config, relay) = (Config::default(), RelayConfig::default());
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
        let key = made.signing_key.serialize_der().try_into().expect("a key");
        let provider = rustls::crypto::ring::default_provider();
        let issued = CertifiedKey::from_der(vec![made.cert.into()], key, &provider);
        let issued = Some(Arc::new(issued.expect("a pair")));
        for is_public in [true, false] {
            let bound = BoundRelay::bind(&config, &relay, any, Lifetime::default());
            let (mut relay, mut media) = bound.expect("binds");
            if is_public {
                relay.is_public = |_| true;
            }
            let orders = watch::Sender::default();
            relay.show(orders.subscribe());
            let running = relay.start().expect("starts");
            let own = media.offer().certificate_hashes;
            assert!(!own.is_empty(), "before there is another");
            orders.send_replace(issued.clone());
            let patience = Duration::from_secs(if is_public { 30 } else { 1 });
            let changed = time::timeout(patience, media.offer_changed()).await;
            assert_eq!(changed.is_ok(), is_public);
            assert_eq!(media.offer().certificate_hashes.is_empty(), is_public);
            running.stop().await.expect("it ends in good order");
        }
    }

    #[test]
    fn files_that_no_public_ca_vouches_for_any_more_are_not_shown() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = tls::self_signed(folder.path());
        let transport = Arc::new(transport());
        let is_shown = |is_public| {
            let read = read_again(&files, is_public, &transport);
            read.map(|config| config.is_some())
                .map_err(|error| error.kind())
        };
        assert_eq!(is_shown(|_| true), Ok(true));
        assert_eq!(is_shown(tls::is_public), Ok(false));
        fs::remove_file(&files.key).expect("removed");
        assert_eq!(is_shown(|_| true), Err(io::ErrorKind::NotFound));
    }

    #[test]
    fn a_key_that_takes_long_to_sign_is_warned_of() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = tls::self_signed(folder.path());
        let transport = Arc::new(transport());
        let log = folder.path().join("log");
        let file = Mutex::new(File::create(&log).expect("created"));
        let _logging =
            tracing::subscriber::set_default(tracing_subscriber::fmt().with_writer(file).finish());
        let warned = || {
            read(&files, &transport).expect("a pair");
            let log = fs::read_to_string(&log).expect("UTF-8");
            log.contains("P-256")
        };
        assert!(!warned());
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).expect("made");
        let parameters = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("valid");
        let certificate = parameters.self_signed(&key).expect("signed");
        fs::write(&files.cert, certificate.pem()).expect("written");
        fs::write(&files.key, key.serialize_pem()).expect("written");
        assert!(warned());
    }

    #[tokio::test]
    async fn a_thread_that_stands_still_holds_up_a_stop_for_three_seconds_and_no_longer() {
        let (stop, _stopped) = oneshot::channel();
        let (_running, gone) = oneshot::channel();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            // Fails when the test ends.
            let _ = released.recv();
            Ok(())
        });
        let stopping = RunningRelay { stop, gone, thread }.stop();
        let stopped = time::timeout(Duration::from_secs(30), stopping).await;
        let error = stopped.expect("in time").expect_err("it stands still");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(release);
    }

    #[test]
    fn the_lag_is_as_long_as_a_stall() {
        const STALL: Duration = Duration::from_millis(100);
        let start = Instant::now();
        let mut lag = Lag::new(start);
        lag.handle_timeout(start + LAG_INTERVAL / 2);
        assert_eq!(lag.latencies.count(), 0, "not due yet");
        lag.handle_timeout(start + LAG_INTERVAL + STALL);
        assert_eq!((lag.latencies.count(), lag.latencies.sum()), (1, STALL));
        assert_eq!(lag.due, start + LAG_INTERVAL + STALL + LAG_INTERVAL);
    }
}
