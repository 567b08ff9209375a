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
mod socket;

pub use quic::transport;

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
    sync::{Notify, mpsc, oneshot, watch},
    task, time,
};
use web_transport_quinn::{
    Session,
    quinn::{Endpoint, EndpointConfig, Runtime, ServerConfig, TokioRuntime, TransportConfig},
};

use self::{
    certificate::{Certificate, Rotation},
    latency::Latencies,
    metrics::Snapshot,
    quic::CloseCode,
    room::Room,
    session::Seat,
    socket::MeasuredSocket,
};
use crate::{
    acme::Shown,
    admission::{Admission, site},
    config::{Config, RelayConfig, TlsFiles},
    media::{Media, MediaCommand, MediaEnd, MediaStatus, RelayOffer, Token},
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
    shown: Option<watch::Receiver<Shown>>,
    config: ServerConfig,
    transport: Arc<TransportConfig>,
    public_origin: Option<String>,
    sessions_per_address: u32,
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
        let (identity, server_config, hashes) = match &relay.tls {
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

    /// Shows another certificate than its own as soon as there is one.
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
        let runtime = || {
            Builder::new_current_thread()
                .enable_all()
                .build_local(LocalOptions::default())
        };
        let thread = thread::Builder::new().name("antiphon-media".into());
        let thread = thread.spawn(move || {
            match realtime::prefer_this_thread() {
                Ok(()) => tracing::debug!("the relay runs at a real-time priority"),
                Err(error) => tracing::info!(%error, "the relay runs at no real-time priority"),
            }
            let ended = runtime().and_then(|runtime| runtime.block_on(self.run(stopped)));
            ended.inspect_err(|error| tracing::error!(%error, "the relay has ended"))
        })?;
        Ok(RunningRelay { stop, thread })
    }

    async fn run(self, stopped: oneshot::Receiver<()>) -> io::Result<()> {
        let Self {
            socket,
            identity,
            shown,
            config,
            transport,
            public_origin,
            sessions_per_address,
            end,
            snapshots,
            ..
        } = self;
        let socket = Arc::new(MeasuredSocket::new(TokioRuntime.wrap_udp_socket(socket)?));
        let endpoint = Endpoint::new_with_abstract_socket(
            EndpointConfig::default(),
            Some(config),
            Arc::<MeasuredSocket>::clone(&socket),
            Arc::new(TokioRuntime),
        )?;
        let relay = Rc::new(Relay {
            start: Instant::now(),
            socket,
            public_origin,
            mixes_changed: Rc::default(),
            mixed: Rc::default(),
            state: RefCell::new(State {
                seats: HashMap::new(),
                rooms: HashMap::new(),
                admission: Admission::new(sessions_per_address),
                handshakes: Vec::new(),
                forward: Latencies::default(),
                mix: Latencies::default(),
                lag: Latencies::default(),
                reported: Default::default(),
            }),
        });
        task::spawn_local(accept(Rc::clone(&relay), endpoint.clone()));
        task::spawn_local(renew(
            identity,
            shown,
            endpoint.clone(),
            transport,
            end.offer,
        ));
        task::spawn_local(mix_on_time(Rc::clone(&relay)));
        task::spawn_local(measure_lag(Rc::clone(&relay)));
        task::spawn_local(report(Rc::clone(&relay), end.status, snapshots));
        tokio::select! {
            _ = stopped => {}
            () = follow(&relay, end.commands) => {}
        }
        for room in relay.state.borrow().rooms.values() {
            room.borrow().close_all(CloseCode::Stopping);
        }
        // Nobody new while the others take their leave.
        endpoint.set_server_config(None);
        if time::timeout(PATIENCE, endpoint.wait_idle()).await.is_err() {
            tracing::debug!("sessions did not end in time");
        }
        Ok(())
    }
}

/// The relay at work, on its own thread.
#[derive(Debug)]
pub struct RunningRelay {
    stop: oneshot::Sender<()>,
    thread: thread::JoinHandle<io::Result<()>>,
}

impl RunningRelay {
    /// Closes every session, and returns when all have ended or two seconds later.
    ///
    /// # Errors
    /// The thread could not serve at all, or panicked.
    pub async fn stop(self) -> io::Result<()> {
        // Fails if the relay has ended already.
        let _ = self.stop.send(());
        let joined = task::spawn_blocking(|| self.thread.join()).await;
        match joined {
            Ok(Ok(result)) => result,
            Ok(Err(_)) | Err(_) => Err(io::Error::other("the relay's thread panicked")),
        }
    }
}

/// What the tasks of the media thread share.
#[derive(Debug)]
struct Relay {
    start: Instant,
    socket: Arc<MeasuredSocket>,
    public_origin: Option<String>,
    /// A mix may be due sooner than any was before.
    mixes_changed: Rc<Notify>,
    /// Sources of all mixes.
    mixed: Rc<Cell<usize>>,
    state: RefCell<State>,
}

#[derive(Debug)]
struct State {
    seats: HashMap<Token, Seat>,
    rooms: HashMap<RoomName, Rc<RefCell<Room>>>,
    admission: Admission,
    /// The addresses of connections that are no session yet, one for each.
    handshakes: Vec<IpAddr>,
    /// Of rooms that are gone.
    forward: Latencies,
    mix: Latencies,
    lag: Latencies,
    /// Lag and transit as of the last report.
    reported: (Latencies, Latencies),
}

impl Relay {
    /// Lets a connection begin its handshake, or not. Each one let in must be given back to [`Relay::handshake_ended`], then to [`Relay::left`].
    fn admit(&self, address: IpAddr) -> bool {
        let mut state = self.state.borrow_mut();
        let address = site(address);
        let handshakes = &state.handshakes;
        let own = handshakes.iter().filter(|other| **other == address).count();
        let admitted = handshakes.len() < MAX_HANDSHAKES
            && own < HANDSHAKES_PER_ADDRESS
            && state.admission.handle_opened(address, self.start.elapsed());
        if admitted {
            state.handshakes.push(address);
        }
        admitted
    }

    fn handshake_ended(&self, address: IpAddr) {
        let handshakes = &mut self.state.borrow_mut().handshakes;
        let address = site(address);
        if let Some(index) = handshakes.iter().position(|other| *other == address) {
            handshakes.swap_remove(index);
        }
    }

    fn left(&self, address: IpAddr) {
        self.state.borrow_mut().admission.handle_closed(address);
    }

    /// The place of a session that asks for one, or why it is closed.
    fn seat(&self, token: Token, session: &Session) -> Result<Seat, CloseCode> {
        let seat = self.state.borrow().seats.get(&token).cloned();
        let seat = seat.ok_or(CloseCode::UnknownToken)?;
        seat.room.borrow_mut().open(seat.stream, session)?;
        Ok(seat)
    }

    fn handle_command(&self, command: MediaCommand) {
        let mut state = self.state.borrow_mut();
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
                        Arc::clone(&self.socket),
                        Rc::clone(&self.mixes_changed),
                        Rc::clone(&self.mixed),
                    );
                    Rc::new(RefCell::new(room))
                };
                let room = Rc::clone(state.rooms.entry(room.clone()).or_insert_with(new));
                room.borrow_mut().admit(stream, participant);
                state.seats.insert(token, Seat { room, stream });
            }
            MediaCommand::Withdraw { token } => {
                let Some(Seat { room, stream }) = state.seats.remove(&token) else {
                    return;
                };
                let mut room = room.borrow_mut();
                room.withdraw(stream);
                if room.is_empty() {
                    state.forward.merge(&room.forward);
                    state.mix.merge(&room.mix);
                    state.rooms.remove(&room.name);
                }
            }
            MediaCommand::Mute { token, muted } => {
                if let Some(seat) = state.seats.get(&token) {
                    seat.room.borrow_mut().mute(seat.stream, muted);
                }
            }
        }
    }
}

/// Does what the hub says, until it is gone.
async fn follow(relay: &Relay, mut commands: mpsc::UnboundedReceiver<MediaCommand>) {
    while let Some(command) = commands.recv().await {
        relay.handle_command(command);
    }
}

/// An address has to prove that it is its own, which costs a round trip: otherwise anyone could use up what another's may open, and have
/// certificates sent there.
async fn accept(relay: Rc<Relay>, endpoint: Endpoint) {
    while let Some(incoming) = endpoint.accept().await {
        if !incoming.remote_address_validated() {
            // It fails only for those that are validated.
            let _ = incoming.retry();
        } else if relay.admit(incoming.remote_address().ip()) {
            task::spawn_local(session::serve(Rc::clone(&relay), incoming));
        } else {
            incoming.refuse();
        }
    }
}

/// Keeps the certificate fresh. Sessions that are open keep the one that they have.
async fn renew(
    identity: Identity,
    shown: Option<watch::Receiver<Shown>>,
    endpoint: Endpoint,
    transport: Arc<TransportConfig>,
    offers: watch::Sender<RelayOffer>,
) {
    match identity {
        Identity::Files(files) => {
            let reload = async || {
                endpoint.set_server_config(Some(read(&files, &transport)?));
                Ok(())
            };
            tls::keep_fresh(files.clone(), reload).await;
        }
        Identity::Own(own) => {
            let rotate = rotate(own, &endpoint, &transport, &offers);
            let Some(mut shown) = shown else {
                return rotate.await;
            };
            let issued = async {
                // Whoever orders may have ended without one: then its own go on.
                if shown.wait_for(Option::is_some).await.is_err() {
                    std::future::pending().await
                }
            };
            tokio::select! {
                () = rotate => {}
                () = issued => {}
            }
            loop {
                if let Some(certificate) = shown.borrow_and_update().clone() {
                    let config = certificate::server_config(certificate, &transport);
                    endpoint.set_server_config(Some(config));
                    offers.send_if_modified(|offer| {
                        !std::mem::take(&mut offer.certificate_hashes).is_empty()
                    });
                }
                if shown.changed().await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Goes from one certificate of its own to the next, for ever.
async fn rotate(
    mut own: Rotation,
    endpoint: &Endpoint,
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
        endpoint.set_server_config(Some(own.server_config(transport)));
        offers.send_modify(|offer| offer.certificate_hashes = own.hashes());
        tracing::info!("the relay goes on to its next certificate");
    }
}

fn read(files: &TlsFiles, transport: &Arc<TransportConfig>) -> io::Result<ServerConfig> {
    let certificate = Certificate::read(files)?;
    let config = certificate.server_config(transport);
    config.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Sends each mix that is due although something is missing in it, or up to 1 ms later: such is the timer's grain. What is complete has left
/// before that, with its last frame.
async fn mix_on_time(relay: Rc<Relay>) {
    loop {
        let due = {
            let state = relay.state.borrow();
            let rooms = state.rooms.values();
            rooms.filter_map(|room| room.borrow().poll_timeout()).min()
        };
        let wait = async {
            match due {
                Some(due) => time::sleep_until((relay.start + due).into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = wait => {
                for room in relay.state.borrow().rooms.values() {
                    room.borrow_mut().send_mixes();
                }
            }
            () = relay.mixes_changed.notified() => {}
        }
    }
}

async fn measure_lag(relay: Rc<Relay>) {
    loop {
        let lag = lag().await;
        relay.state.borrow_mut().lag.record(lag);
    }
}

/// How late the loop comes round to what is due after [`LAG_INTERVAL`]. Up to 1 ms of it is the grain of its timers.
async fn lag() -> Duration {
    let due = time::Instant::now() + LAG_INTERVAL;
    time::sleep_until(due).await;
    due.elapsed()
}

/// Makes the snapshots for the operator and for Prometheus, room by room: datagrams come first.
async fn report(
    relay: Rc<Relay>,
    statuses: watch::Sender<Arc<MediaStatus>>,
    snapshots: watch::Sender<Arc<Snapshot>>,
) {
    let mut before = Instant::now();
    loop {
        time::sleep(REPORT_INTERVAL).await;
        let elapsed = before.elapsed();
        before += elapsed;
        let transit = relay.socket.transit();
        let (mut status, mut snapshot, rooms) = relay.state.borrow_mut().report(transit);
        for room in rooms {
            room.borrow_mut()
                .report(elapsed, &mut status, &mut snapshot);
            task::yield_now().await;
        }
        statuses.send_replace(Arc::new(status));
        snapshots.send_replace(Arc::new(snapshot));
    }
}

impl State {
    /// What is reported of the whole, and the rooms that are to be added: those of now, even if some end meanwhile.
    fn report(&mut self, transit: Latencies) -> (MediaStatus, Snapshot, Vec<Rc<RefCell<Room>>>) {
        let (lag_before, transit_before) = &self.reported;
        let status = MediaStatus {
            loop_lag_us: self.lag.since(lag_before).quantiles(),
            transit_us: transit.since(transit_before).quantiles(),
            rooms: Vec::with_capacity(self.rooms.len()),
        };
        self.reported = (self.lag.clone(), transit.clone());
        let snapshot = Snapshot {
            participants: Vec::with_capacity(self.seats.len()),
            forward: self.forward.clone(),
            transit,
            mix: self.mix.clone(),
            lag: self.lag.clone(),
        };
        (status, snapshot, self.rooms.values().cloned().collect())
    }
}

#[cfg(test)]
mod tests {
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
    async fn the_lag_is_as_long_as_a_stall() {
        const STALL: Duration = Duration::from_millis(100);
        let measuring = tokio::spawn(lag());
        task::yield_now().await;
        thread::sleep(LAG_INTERVAL + STALL);
        assert!(measuring.await.expect("it ends") >= STALL);
    }
}
