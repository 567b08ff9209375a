//! Where the connections meet: drives [`Rooms`] with the real clock and puts what comes out into outboxes.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use axum::extract::ws::Utf8Bytes;
use tokio::{sync::Notify, time};

use crate::{
    admission::{Admission, site},
    config::Config,
    media::Media,
    metrics::{DropReason, Metrics},
    network::Network,
    outbox::{End, NotTaken, Outbox},
    rate::LineRate,
    rooms::{Arrival, ConnectionId, Moderated, Output, RoomStatus, Rooms},
    signalling::{ClientMessage, ErrorCode, Hello, RoomName, ServerMessage},
};

/// The state that all connections share.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) config: Config,
    pub(crate) metrics: Metrics,
    pub(crate) media: Option<Media>,
    lines: LineRate,
    start: Instant,
    state: Mutex<State>,
    deadline_changed: Notify,
    emptied: Notify,
    told_of_proxy: AtomicBool,
    stopping: AtomicBool,
    broken: AtomicBool,
}

#[derive(Debug)]
struct State {
    rooms: Rooms,
    admission: Admission,
    outboxes: HashMap<ConnectionId, Arc<Outbox>>,
    next_connection: u64,
    open: usize,
}

/// A connection's place in the hub; dropping it tells the others.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) id: ConnectionId,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) hub: Arc<Hub>,
    address: IpAddr,
}

impl Hub {
    pub(crate) fn new(config: Config, metrics: Metrics, media: Option<Media>) -> Arc<Self> {
        Arc::new(Self {
            metrics,
            start: Instant::now(),
            state: Mutex::new(State {
                rooms: Rooms::new(config.rooms, media.as_ref().map(Media::offer)),
                admission: Admission::new(config.connections.per_address),
                outboxes: HashMap::new(),
                next_connection: 0,
                open: 0,
            }),
            config,
            media,
            lines: LineRate::new(Duration::ZERO),
            deadline_changed: Notify::new(),
            emptied: Notify::new(),
            told_of_proxy: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            broken: AtomicBool::new(false),
        })
    }

    /// Time since the server started: the `now` of everything sans-IO.
    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Whether a line about a connection that was refused or dropped may be logged.
    pub(crate) fn may_log(&self) -> bool {
        self.lines.may_log(self.now())
    }

    /// Counts and logs a connection that was dropped for what its client did not do.
    pub(crate) fn tell_dropped(&self, connection: ConnectionId, reason: DropReason, why: &str) {
        self.metrics.count_dropped(reason);
        if self.may_log() {
            tracing::info!(connection = connection.0, "dropped: {why}");
        }
    }

    /// Somebody who is not trusted connects for others. Once is enough, and only of one who is near: anybody may say so.
    pub(crate) fn tell_of_proxy(&self, peer: IpAddr) {
        let is_near = match peer {
            IpAddr::V4(peer) => peer.is_loopback() || peer.is_private(),
            IpAddr::V6(peer) => peer.is_loopback() || peer.is_unique_local(),
        };
        if is_near && !self.told_of_proxy.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "{peer} connects for others (X-Forwarded-For), and is not trusted: all of them count as one address, with its \
                 limits. Is this your proxy? Use --trusted-proxy {peer}"
            );
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Something has ended that does not begin again until the server does.
    pub(crate) fn handle_broken(&self) {
        self.broken.store(true, Ordering::Release);
    }

    /// Why the server is not what it should be, if it is not.
    pub(crate) fn trouble(&self) -> Option<&'static str> {
        if self.is_stopping() {
            Some("the server stops")
        } else if self.broken.load(Ordering::Acquire) {
            Some("a background task has ended; restart the server")
        } else {
            None
        }
    }

    /// Gives a connection its place, or says what has too many; nothing has, if the server stops.
    pub(crate) fn admit(self: &Arc<Self>, address: IpAddr) -> Result<Connection, Option<Network>> {
        let mut state = self.lock();
        if self.is_stopping() {
            return Err(None);
        }
        state.admission.handle_opened(address, self.now())?;
        let id = ConnectionId(state.next_connection);
        state.next_connection += 1;
        state.open += 1;
        let outbox = Arc::new(Outbox::default());
        state.outboxes.insert(id, Arc::clone(&outbox));
        self.metrics.connections.set(state.open as i64);
        Ok(Connection {
            id,
            outbox,
            hub: Arc::clone(self),
            address,
        })
    }

    /// Ends the grace of those who are away, when it is time, for ever.
    pub(crate) async fn run_timers(&self) {
        loop {
            let deadline = self.lock().rooms.poll_timeout();
            let wait = deadline.map_or(Duration::MAX, |deadline| {
                deadline.saturating_sub(self.now())
            });
            tokio::select! {
                () = time::sleep(wait.min(Duration::from_secs(3_600))) => {
                    self.with_rooms(|rooms, now| rooms.handle_timeout(now));
                }
                () = self.deadline_changed.notified() => {}
            }
        }
    }

    /// Tells the pages of each change in how the relay is reached, for ever.
    pub(crate) async fn follow_relay(&self) {
        let Some(mut media) = self.media.clone() else {
            return;
        };
        loop {
            media.offer_changed().await;
            self.with_rooms(|rooms, _| rooms.handle_relay_offer(media.offer()));
        }
    }

    /// All rooms, and how many connections are open.
    pub(crate) fn status(&self) -> (Vec<RoomStatus>, usize) {
        let state = self.lock();
        (state.rooms.status(), state.open)
    }

    /// Tells every page that the server stops, and waits for the connections to end.
    pub(crate) async fn shut_down(&self, patience: Duration) {
        self.stopping.store(true, Ordering::Release);
        {
            let mut state = self.lock();
            for (_, outbox) in state.outboxes.drain() {
                self.metrics.count_dropped(DropReason::ShuttingDown);
                let why = "the server stops; trying again may help";
                self.end(&outbox, ErrorCode::ShuttingDown, why);
            }
        }
        let all_gone = async {
            while self.lock().open > 0 {
                self.emptied.notified().await;
            }
        };
        if time::timeout(patience, all_gone).await.is_err() {
            tracing::warn!(open = self.lock().open, "connections did not end in time");
        }
    }

    /// Runs one step of the rooms, then does what they ask for.
    fn with_rooms(&self, step: impl FnOnce(&mut Rooms, Duration)) {
        let now = self.now();
        let mut state = self.lock();
        let deadline = state.rooms.poll_timeout();
        step(&mut state.rooms, now);
        while let Some(output) = state.rooms.poll_output() {
            match output {
                Output::Send { to, message } => self.send(&mut state, &to, &message, now),
                Output::Close { connection, code } => {
                    if let Some(outbox) = state.outboxes.remove(&connection) {
                        outbox.end(End::Close(code));
                    }
                }
                Output::Media(command) => {
                    if let Some(media) = &self.media {
                        media.tell(command);
                    }
                }
                Output::Moderated(room, what) => {
                    self.metrics.count_moderated(what);
                    let is_told = match what {
                        Moderated::Muted | Moderated::Unmuted => false,
                        Moderated::Removed | Moderated::Locked | Moderated::Unlocked => {
                            self.may_log()
                        }
                        // Not for long after the start.
                        Moderated::LockedAgain => true,
                    };
                    if is_told {
                        tracing::info!(?room, action = what.name(), "moderated");
                    }
                }
                Output::DroppedWhileAway => self.metrics.count_dropped(DropReason::PeerAway),
            }
        }
        self.metrics.rooms.set(state.rooms.room_count() as i64);
        self.metrics
            .participants
            .set(state.rooms.participant_count() as i64);
        if state.rooms.poll_timeout() != deadline {
            self.deadline_changed.notify_one();
        }
    }

    fn send(&self, state: &mut State, to: &[ConnectionId], message: &ServerMessage, now: Duration) {
        let text = written(message);
        if let ServerMessage::Error { code, .. } = message {
            self.metrics.count_dropped((*code).into());
        }
        for connection in to {
            let Some(outbox) = state.outboxes.get(connection) else {
                continue;
            };
            let pushed = match message {
                ServerMessage::Signal { from, .. } => outbox.push_signal(text.clone(), *from),
                _ => outbox.push(text.clone()),
            };
            match (pushed, message) {
                (Ok(()), _) => self.metrics.count_sent(message.kind()),
                (Err(NotTaken::Ended), _) => {}
                // Whoever sends them shall not be able to cut the connection.
                (Err(NotTaken::Full), ServerMessage::Signal { .. }) => {
                    self.metrics.count_dropped(DropReason::PeerSlow);
                }
                (Err(NotTaken::Full), _) => {
                    outbox.end(End::Abort);
                    state.outboxes.remove(connection);
                    self.tell_dropped(*connection, DropReason::SlowClient, "it does not read");
                    state.rooms.handle_closed(*connection, now);
                }
            }
        }
    }

    /// Says why, and ends the connection; without a word, if there is no room for it.
    fn end(&self, outbox: &Outbox, code: ErrorCode, why: &str) {
        let message = ServerMessage::error(code, why);
        let pushed = outbox.push(written(&message));
        if pushed.is_ok() {
            self.metrics.count_sent(message.kind());
        }
        outbox.end(match code.close_code() {
            Some(code) if pushed != Err(NotTaken::Full) => End::Close(code),
            _ => End::Abort,
        });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    /// Joins or resumes.
    pub(crate) fn handle_hello(&self, room: RoomName, hello: Hello) {
        let read_at = Instant::now();
        let unix_now_s = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        let arrival = Arrival {
            connection: self.id,
            address: self.address,
            ice_servers: self.hub.config.ice.servers_for(hello.id, unix_now_s),
        };
        tracing::debug!(connection = self.id.0, ?room, participant = ?hello.id, "hello");
        let mut entered = Ok(());
        let enter = |rooms: &mut Rooms, now| {
            entered = rooms.handle_hello(arrival, room.clone(), hello, now);
        };
        self.hub.with_rooms(enter);
        let code = match entered {
            Ok(()) => {
                let welcome_seconds = &self.hub.metrics.welcome_seconds;
                welcome_seconds.observe(read_at.elapsed().as_secs_f64());
                return;
            }
            Err(code) => code,
        };
        let why = match code {
            ErrorCode::RoomFull => "the room is full, see --max-participants-per-room",
            ErrorCode::ServerFull => "the server is full, see --max-participants and --max-rooms",
            ErrorCode::TooFast => "too many wrong passphrases",
            _ => return,
        };
        if self.hub.may_log() {
            tracing::warn!(?room, address = %site(self.address), "refused a participant: {why}");
        }
    }

    /// Whether it may tell everybody in the room something now, which then counts.
    pub(crate) fn may_tell_all(&self) -> bool {
        let now = self.hub.now();
        self.hub.lock().admission.may_tell_all(self.address, now)
    }

    /// Says that what it said is not done for now.
    pub(crate) fn decline(&self) {
        self.hub.with_rooms(|rooms, _| rooms.tell_not_now(self.id));
    }

    /// Anything after the hello.
    pub(crate) fn handle_message(&self, message: ClientMessage) {
        self.hub
            .with_rooms(|rooms, now| rooms.handle_message(self.id, message, now));
    }

    /// Ends the connection for what its page did.
    pub(crate) fn refuse(&self, reason: DropReason, code: ErrorCode, why: &str) {
        if self.hub.may_log() {
            tracing::info!(
                connection = self.id.0,
                reason = reason.name(),
                why,
                "refused"
            );
        }
        self.hub.metrics.count_dropped(reason);
        self.hub.end(&self.outbox, code, why);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        {
            let mut state = self.hub.lock();
            state.outboxes.remove(&self.id);
            state.admission.handle_closed(self.address);
            state.open -= 1;
            self.hub.metrics.connections.set(state.open as i64);
            if state.open == 0 {
                self.hub.emptied.notify_one();
            }
        }
        self.hub
            .with_rooms(|rooms, now| rooms.handle_closed(self.id, now));
        tracing::debug!(connection = self.id.0, "ended");
    }
}

fn written(message: &ServerMessage) -> Utf8Bytes {
    serde_json::to_string(message)
        .expect("a message is JSON")
        .into()
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::{
        media::{CertificateHash, MediaCommand, RelayOffer},
        outbox::Next,
        signalling::parse,
    };

    fn offer(hash: u8) -> RelayOffer {
        RelayOffer {
            port: 4433,
            certificate_hashes: [CertificateHash([hash; 32])].into(),
        }
    }

    async fn hear(connection: &Connection) -> serde_json::Value {
        match connection.outbox.next().await {
            Next::Send(text) => serde_json::from_str(&text).expect("JSON"),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn the_relay_knows_a_token_before_its_page_and_pages_follow_its_certificate() {
        let (media, mut relay) = Media::new(offer(1));
        let metrics = Metrics::new(Registry::default());
        let hub = Hub::new(Config::default(), metrics, Some(media));
        let following = Arc::clone(&hub);
        let following = tokio::spawn(async move { following.follow_relay().await });
        let connection = hub.admit(IpAddr::from([192, 0, 2, 1])).expect("admitted");
        let room: RoomName = "hub-room-01234567".parse().expect("a name");
        let hello = format!(
            r#"{{"type":"hello","version":1,"secret":"{}","name":"Ann","sample_rate_hz":96000}}"#,
            "00".repeat(32)
        );
        let Ok(ClientMessage::Hello(hello)) = parse(&hello) else {
            panic!("{hello}")
        };
        let participant = hello.id;
        connection.handle_hello(room.clone(), hello);

        let told = relay.commands.try_recv().expect("it is admitted");
        let MediaCommand::Admit { token, stream, .. } = told else {
            panic!("{told:?}")
        };
        let sample_rate_hz = 96_000.try_into().expect("a rate");
        let expected = MediaCommand::Admit {
            token,
            room,
            participant,
            stream,
            sample_rate_hz,
        };
        assert_eq!(told, expected);
        let welcome = hear(&connection).await;
        assert_eq!(welcome["stream"], stream);
        let access = |hash: &str| {
            serde_json::json!({
                "port": 4433, "token": token, "certificate_hashes": [hash.repeat(32)],
            })
        };
        assert_eq!(welcome["relay"], access("01"));

        relay.offer.send(offer(2)).expect("the hub listens");
        let expected = serde_json::json!({ "type": "relay", "relay": access("02") });
        assert_eq!(hear(&connection).await, expected);

        connection.handle_message(ClientMessage::Leave);
        let withdrawn = relay.commands.try_recv();
        assert_eq!(withdrawn, Ok(MediaCommand::Withdraw { token }));
        following.abort();
    }
}
