//! One native participant: the network thread between an audio thread and a room.
//!
//! All of it is one `Network`, which every event changes. Here is what comes in; what follows of it is in `sending`, `routing` and `telling`.

mod peer;
mod routing;
mod sending;
mod telling;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use antiphon_core::path::{self, Asked, Pin, Route};
use antiphon_core::wire::{self, Datagram, Kind, MIX_STREAM, Probe};
use antiphon_core::{Command, Mixing, StreamId, Target};
use antiphon_opus::outgoing::{Choice, Listener, Outgoing};
use antiphon_opus::{Received, Receiver};
use bytes::Bytes;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};

use crate::clock::{CaptureClock, Recent, now_ns};
use crate::direct::{Direct, DirectEvent};
use crate::duplex::{Far, Faults, MAX_STREAMS, Observation};
use crate::link::RoomLink;
use crate::priority;
use crate::relay::{self, Relay, RelayConfig, RelayEvent, RelayStatistics};
use crate::report::{Hearing, Reports};
use crate::runtime;
use crate::signalling::{
    self, FromServer, Hello, IceServer, Moderation, RelayAddress, RemoteParticipant, Secret,
    SignallingEvent, ToServer, Welcome,
};
use crate::sound::RateSource;
use crate::status::{Signalling, Status};
use crate::wake::Sleeper;
use peer::{Peer, RoundTrips, Strip, Way};
use routing::MixStream;
use sending::FIRST_LANES;

/// Events that may wait for the network thread.
const QUEUE: usize = 2_048;
/// So many of them are handled before anything else is looked at.
const BATCH: usize = 16;
/// Between two looks at the clock: probes, reports, the status.
const TICK: Duration = Duration::from_millis(100);
/// Ticks between two probes of a lane.
const PROBE_TICKS: u64 = 5;
/// What "in the last seconds" means in a report, in ticks.
const RECENT_TICKS: usize = 40;
/// The same in ns.
const RECENT_NS: u64 = RECENT_TICKS as u64 * TICK.as_nanos() as u64;
/// Above ordinary threads, below a sound server's own (PipeWire takes 88).
const PRIORITY: i32 = 60;

/// Between two looks at the mix, while there is one.
const MIX_LOOK: Duration = Duration::from_millis(10);
/// After a restart of the server others may take so long to be back: as long as it keeps the place of who is away.
const GRACE_NS: u64 = 15_000_000_000;
/// News is news for so long.
const NOTICE_NS: u64 = 30_000_000_000;
/// Nobody who is in the room should think that it is locked.
const OPEN_NOW: &str = "this room was locked, and is open now: somebody without the passphrase was back first; its owner can lock it again";

/// By which ways sound goes and comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Straight to each peer and through the server, both at once while there is room for both: of each frame the first copy is
    /// played. The engine chooses (`antiphon_core::path`).
    Auto,
    /// Straight to each peer only.
    Direct,
    /// Through the server only, each stream as it is.
    Relay,
    /// Through the server, which mixes.
    Mix,
}

impl Path {
    fn pin(self) -> Pin {
        match self {
            Self::Auto => Pin::Automatic,
            Self::Direct => Pin::Direct,
            Self::Relay => Pin::Relayed,
            Self::Mix => Pin::Mixed,
        }
    }

    fn is_direct(self) -> bool {
        matches!(self, Self::Auto | Self::Direct)
    }
}

/// What to join, and how.
#[derive(Clone, Debug)]
pub struct ParticipantConfig {
    /// Where.
    pub link: RoomLink,
    /// 1 to 64 code points.
    pub name: String,
    /// Of a room that is locked.
    pub passphrase: Option<String>,
    /// What is sent. Its rate is the sound card's; the room's too, or nothing is heard. Its channels are those captured.
    pub choice: Choice,
    /// What has the sound's rate changed, where the room has another.
    pub rate_source: RateSource,
    /// Of every jitter buffer.
    pub target: Target,
    /// Share of frames that an automatic target may have concealed.
    pub budget: f32,
    /// By which ways.
    pub path: Path,
    /// Sessions with the relay, 1 to 4.
    pub sessions: usize,
    /// Lanes to each peer, 1 to 16; `None`: two, and more where these back up.
    pub lanes: Option<usize>,
}

/// What a user may ask of a participant. Steps are from where it is by then: the user may be ahead of what the status says.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Louder by so many dB. Of a peer, by its id; an empty one is the server's mix.
    Louder(String, f32),
    /// Gain 0 dB.
    ResetGain(String),
    /// Further to the right by so much; from the left to the right it is 2.
    Right(String, f32),
    /// Not heard here, or heard again.
    ToggleMute(String),
    /// While anybody is solo, only those are heard here.
    ToggleSolo(String),
    /// For everyone, as the room's owner.
    Moderate(String, Moderation),
    /// Sends silence, or sound again.
    ToggleMuteSelf,
    /// Leaves the room and ends.
    Leave,
}

/// A participant at work on a thread of its own.
#[derive(Debug)]
pub struct Participant {
    /// The newest status, ten times a second.
    pub status: watch::Receiver<Status>,
    /// For orders.
    pub orders: mpsc::Sender<Order>,
    thread: thread::JoinHandle<()>,
}

impl Participant {
    /// Joins. The other end of `far` should run already, or soon.
    ///
    /// # Errors
    /// The system's, for want of a thread or a runtime.
    pub fn join(config: ParticipantConfig, far: Far, sleeper: Sleeper) -> io::Result<Self> {
        let (say, status) = watch::channel(Status::default());
        let (orders, ordered) = mpsc::channel(64);
        let runtime = runtime::new()?;
        let thread = thread::Builder::new()
            .name("network".into())
            .spawn(move || {
                let notice = priority::real_time(PRIORITY)
                    .err()
                    .map(|why| format!("the network thread has no real-time priority: {why}"));
                runtime::run(runtime, network(config, far, sleeper, say, ordered, notice));
            })?;
        Ok(Self {
            status,
            orders,
            thread,
        })
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Leaves, and waits until that is said.
    ///
    /// # Errors
    /// In words for the user: a mistake of ours ended it before.
    pub fn leave(self) -> Result<(), String> {
        // Without anybody to hear it, it has ended already.
        let _ = self.orders.blocking_send(Order::Leave);
        (self.thread.join()).map_err(|_| "the network thread panicked".to_owned())
    }
}

struct Network {
    config: ParticipantConfig,
    far: Far,
    faults: Arc<Faults>,
    outgoing: Outgoing,
    capture: CaptureClock,
    id: Option<String>,
    /// In order of joining.
    peers: Vec<Peer>,
    strips: HashMap<String, Strip>,
    next_stream: StreamId,
    mixing: Mixing,
    /// While it is needed.
    mix: Option<MixStream>,
    /// When that was last looked at.
    looked_ns: u64,
    commands: VecDeque<Command>,
    endpoint: Option<(IpAddr, web_transport_quinn::quinn::Endpoint)>,
    relay: Option<(RelayConfig, Relay)>,
    relay_events: mpsc::Sender<RelayEvent>,
    direct_events: mpsc::Sender<DirectEvent>,
    ice_servers: Vec<IceServer>,
    to_server: mpsc::Sender<ToServer>,
    /// What the relay is sent.
    relay_listener: Listener,
    /// Of its sessions.
    relay_rtts: RoundTrips,
    /// When anything last came from the relay.
    relay_ns: Option<u64>,
    listeners: Option<u32>,
    statistics: Option<RelayStatistics>,
    /// At the last review.
    statistics_before: Option<RelayStatistics>,
    /// Datagrams to it that were dropped, at the last review.
    relay_dropped_before: u64,
    listening: path::Listening,
    asked: Asked,
    probe_id: u32,
    /// Faults at the last ticks: xruns, lost frames.
    recent: VecDeque<(u64, u64)>,
    /// When frame 0 of our output was rendered, ns.
    rendered: Recent,
    rendered_frames: u64,
    /// Of the mix, since the last status.
    output_peaks: [f32; 2],
    /// From when a quantum comes until its first frame is heard; `None`: unknown.
    output_ns: Option<i64>,
    /// Since when there is news.
    noticed_ns: u64,
    status: Status,
}

async fn network(
    config: ParticipantConfig,
    far: Far,
    sleeper: Sleeper,
    say: watch::Sender<Status>,
    mut orders: mpsc::Receiver<Order>,
    notice: Option<String>,
) {
    let (to_server, outgoing) = mpsc::channel(256);
    let (signalling, mut signals) = mpsc::channel(QUEUE);
    let (relay_events, mut relayed) = mpsc::channel(QUEUE);
    let (direct_events, mut directed) = mpsc::channel(QUEUE);
    let hello = Hello {
        secret: Secret::random(),
        name: config.name.clone(),
        sample_rate_hz: config.choice.rate.hz(),
        passphrase: config.passphrase.clone(),
        bot: false,
        returning: false,
    };
    let talking = tokio::task::spawn_local(signalling::run(
        config.link.clone(),
        hello,
        outgoing,
        signalling,
    ));
    let mut network = Network::new(config, far, relay_events, direct_events, to_server);
    if let Some(notice) = notice {
        network.notice(notice);
    }
    let (mut from_relay, mut from_lanes) = (Vec::new(), Vec::new());
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut tick = 0u64;
    let mut looks = interval(MIX_LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut listener = match sleeper.listen() {
        Ok(listener) => listener,
        Err(error) => {
            network.status.ended = Some(error.to_string());
            say.send_replace(network.status);
            return;
        }
    };
    while network.status.ended.is_none() {
        tokio::select! {
            // What has a musician waiting comes first, and then what is rare: where there is more to receive than this thread can, nothing else would get its turn.
            biased;
            () = listener.woken() => network.handle_capture(),
            event = signals.recv() => match event {
                Some(event) => network.handle_signalling(event),
                None => break,
            },
            order = orders.recv() => match order {
                Some(Order::Leave) | None => break,
                Some(order) => network.handle_order(order),
            },
            _ = looks.tick(), if network.mix.is_some() => network.follow_mix(now_ns()),
            _ = ticks.tick() => {
                tick += 1;
                network.handle_tick(tick);
                say.send_replace(network.status.clone());
            }
            _ = relayed.recv_many(&mut from_relay, BATCH) => {
                from_relay.drain(..).for_each(|event| network.handle_relay(event));
            }
            _ = directed.recv_many(&mut from_lanes, BATCH) => {
                from_lanes.drain(..).for_each(|event| network.handle_direct(event));
            }
        }
    }
    network.relay = None;
    network.peers.clear();
    (network.status.ended).get_or_insert_with(|| "you left the room".into());
    // Whoever ended it, unless that was the server. The word may not get out if that is away: it notices by itself.
    if network.to_server.try_send(ToServer::Leave {}).is_ok() {
        let _ = tokio::time::timeout(Duration::from_secs(1), talking).await;
    }
    if let Some((_, endpoint)) = network.endpoint.take() {
        let _ = tokio::time::timeout(Duration::from_millis(500), endpoint.wait_idle()).await;
    }
    say.send_replace(network.status);
}

impl Network {
    fn new(
        config: ParticipantConfig,
        far: Far,
        relay_events: mpsc::Sender<RelayEvent>,
        direct_events: mpsc::Sender<DirectEvent>,
        to_server: mpsc::Sender<ToServer>,
    ) -> Self {
        let outgoing = Outgoing::new(&config.choice);
        let status = Status {
            sample_rate_hz: config.choice.rate.hz(),
            packet_frames: config.choice.packet_frames,
            ..Status::default()
        };
        Self {
            faults: far.faults(),
            relay_listener: Listener::new(outgoing.rungs(false), config.choice.copies),
            outgoing,
            capture: CaptureClock::new(config.choice.rate.hz()),
            id: None,
            peers: Vec::new(),
            strips: HashMap::new(),
            next_stream: 0,
            mixing: Mixing::new(MAX_STREAMS),
            mix: None,
            looked_ns: now_ns(),
            commands: VecDeque::new(),
            endpoint: None,
            relay: None,
            relay_events,
            direct_events,
            ice_servers: Vec::new(),
            to_server,
            relay_rtts: RoundTrips::default(),
            relay_ns: None,
            listeners: None,
            statistics: None,
            statistics_before: None,
            relay_dropped_before: 0,
            listening: path::Listening::new(),
            asked: if config.path == Path::Mix {
                Asked::Mixed
            } else {
                Asked::Forwarded
            },
            probe_id: 0,
            recent: VecDeque::new(),
            rendered: Recent::new(64),
            rendered_frames: 0,
            output_peaks: [0.0; 2],
            output_ns: None,
            noticed_ns: 0,
            status,
            config,
            far,
        }
    }

    // What comes from the audio thread.

    fn handle_capture(&mut self) {
        let now = now_ns();
        // Block by block: after a standstill more may wait than the sender's queue holds.
        while self.take_captured(now) {
            self.send_captured();
        }
        self.review_formats(0, now);
        while let Some(observation) = self.far.observe() {
            self.handle_observation(observation);
        }
        while let Some(command) = self.commands.pop_front() {
            if !self.far.command(command) {
                self.commands.push_front(command);
                break;
            }
        }
    }

    /// Hands the sender the next captured block; false if none waits.
    fn take_captured(&mut self, now: u64) -> bool {
        let (sender, capture) = (&mut self.outgoing.samples.sender, &mut self.capture);
        self.far.take_block(|samples, frames, at_ns| {
            if let Some(at_ns) = at_ns {
                sender.push(samples, frames);
                sender.flush(frames);
                capture.add(frames as u64, at_ns, now);
            } else {
                sender.push_made_up(samples, frames);
                capture.pass(frames as u64);
            }
        })
    }

    fn handle_observation(&mut self, observation: Observation) {
        match observation {
            Observation::Stream { id, stats, peaks } => {
                let now = now_ns();
                if let Some(peer) = self.peers.iter_mut().find(|peer| peer.stream == id) {
                    peer.hearing.observe(stats, now);
                    peer.stats = Some(stats);
                    raise(&mut peer.peaks, peaks);
                } else if let Some(mix) = self.mix.as_mut().filter(|mix| mix.stream == id) {
                    mix.hearing.observe(stats, now);
                    mix.stats = stats;
                    raise(&mut mix.peaks, peaks);
                }
            }
            Observation::Mix {
                peaks,
                rendered,
                at_ns,
                quantum,
                delays,
            } => {
                raise(&mut self.output_peaks, peaks);
                self.status.quantum_frames = quantum;
                self.capture.input_ns = delays.input_ns;
                self.output_ns = delays.output_ns;
                // The playheads that came with this are of the frame after this quantum.
                self.rendered_frames = rendered;
                let before = rendered - u64::from(quantum);
                let played_ns = before as f64 * 1e9 / f64::from(self.config.choice.rate.hz());
                self.rendered.add(at_ns as i64 - played_ns as i64);
            }
        }
    }

    // What comes from the network.

    fn handle_relay(&mut self, event: RelayEvent) {
        match event {
            RelayEvent::Datagram(session, bytes) => self.handle_relayed(session, &bytes),
            RelayEvent::Wanted(listeners, opus) => {
                self.listeners = Some(listeners);
                self.relay_listener.set_rungs(self.outgoing.rungs(opus));
            }
            RelayEvent::Statistics(statistics) => self.statistics = Some(statistics),
            RelayEvent::Changed => {
                let open = self.relay.as_ref().map(|(_, relay)| relay.open_sessions());
                // Otherwise there is a control stream, or another one will be: it need not say again what has not changed.
                if open.as_ref().is_none_or(Vec::is_empty) {
                    (self.listeners, self.statistics) = (None, None);
                }
                self.relay_rtts
                    .keep(|session| open.iter().flatten().any(|&open| open == session));
            }
        }
    }

    fn handle_relayed(&mut self, session: usize, bytes: &[u8]) {
        let Ok((kind, number)) = wire::route(bytes) else {
            return;
        };
        let now = now_ns();
        self.relay_ns = Some(now);
        if kind == Kind::ProbeReply
            && number == 0
            && let Ok(Datagram::Probe(probe)) = wire::parse(bytes)
        {
            self.relay_rtts.add(session, probe.time_ns, now);
            return;
        }
        if kind == Kind::Audio && number == MIX_STREAM {
            if let Some(mix) = &mut self.mix {
                give(&mut self.far, &mut mix.opus, mix.stream, bytes);
            }
            return;
        }
        let Some(at) = self
            .peers
            .iter()
            .position(|peer| peer.number == Some(number))
        else {
            return;
        };
        if let Some(reply) = self.handle_datagram(at, 0, kind, bytes, now)
            && let Some((_, relay)) = &self.relay
        {
            relay.send_on(session, reply);
        }
    }

    fn handle_direct(&mut self, event: DirectEvent) {
        let find = |peers: &[Peer], id: &Rc<str>| peers.iter().position(|peer| *peer.id == **id);
        match event {
            DirectEvent::Datagram { peer, lane, bytes } => {
                let (Some(at), Ok((kind, 0))) = (find(&self.peers, &peer), wire::route(&bytes))
                else {
                    return;
                };
                if let Some(reply) = self.handle_datagram(at, lane + 1, kind, &bytes, now_ns())
                    && let Some(direct) = &self.peers[at].direct
                {
                    direct.send_on(lane, reply);
                }
            }
            DirectEvent::Signal { peer, data } => {
                let to = peer.to_string();
                // A full queue while the server is away: the lane is made again later.
                let _ = self.to_server.try_send(ToServer::Signal { to, data });
            }
            DirectEvent::Closed { peer, lane, epoch } => {
                if let Some(at) = find(&self.peers, &peer)
                    && let Some(direct) = &mut self.peers[at].direct
                {
                    direct.handle_closed(lane, epoch);
                    self.peers[at].rtts.keep(|open| open != lane);
                }
            }
            DirectEvent::Retry { peer, lane, epoch } => {
                if let Some(at) = find(&self.peers, &peer)
                    && let Some(direct) = &mut self.peers[at].direct
                {
                    direct.handle_retry(lane, epoch);
                }
            }
            DirectEvent::Notice(why) => self.notice(why),
        }
    }

    /// A datagram of a peer; returns the reply to a probe, to go where that came from. `lane`: 0 through the relay, a lane's number
    /// and 1 otherwise.
    fn handle_datagram(
        &mut self,
        at: usize,
        lane: usize,
        kind: Kind,
        bytes: &[u8],
        now: u64,
    ) -> Option<Bytes> {
        let peer = &mut self.peers[at];
        if lane > 0 {
            peer.direct_ns = Some(now);
        }
        match wire::parse(bytes) {
            Ok(Datagram::Audio(..) | Datagram::Opus(..)) => {
                let way = if lane == 0 {
                    &mut peer.by_relay
                } else {
                    &mut peer.by_lanes
                };
                if std::mem::take(&mut way.is_withheld) && !way.is_heard(now) {
                    way.numbering.interrupt();
                }
                way.audio_ns = Some(now);
                let sequence = wire::sequence(bytes);
                let number = way.numbering.apply(sequence);
                let renumbered = (number != sequence).then(|| {
                    let mut bytes = bytes.to_vec();
                    wire::set_sequence(&mut bytes, number);
                    bytes
                });
                let bytes = renumbered.as_deref().unwrap_or(bytes);
                give(&mut self.far, &mut way.opus, peer.stream, bytes);
            }
            Ok(Datagram::Probe(probe)) => match probe.replied_ns {
                None => {
                    let reply = Probe {
                        replied_ns: Some(now_ns()),
                        ..probe
                    };
                    return Some(Bytes::copy_from_slice(&reply.to_bytes()));
                }
                Some(replied_ns) => {
                    peer.reports.offset.add(probe.time_ns, replied_ns, now);
                    if let Some(lane) = lane.checked_sub(1) {
                        peer.rtts.add(lane, probe.time_ns, now);
                    }
                }
            },
            Ok(Datagram::Report(report)) => peer.reports.handle_report(report, now),
            // The player counts what is malformed.
            Err(_) if kind == Kind::Audio => self.far.give(peer.stream, bytes),
            Err(_) => {}
        }
        None
    }

    // What comes from the server.

    fn handle_signalling(&mut self, event: SignallingEvent) {
        let (message, address) = match event {
            SignallingEvent::Offline(why) => {
                self.status.signalling = Signalling::Connecting;
                self.status.offline = Some(why);
                return;
            }
            SignallingEvent::Ended(why) => {
                self.status.ended = Some(why);
                return;
            }
            SignallingEvent::Message { message, address } => (message, address),
        };
        let find = |peers: &mut Vec<Peer>, id: &str| peers.iter().position(|peer| peer.id == id);
        match message {
            FromServer::Welcome(welcome) => self.handle_welcome(*welcome, address),
            FromServer::Joined { participant } => {
                self.add_peer(participant, false);
                self.listen(now_ns());
            }
            FromServer::Left { id } => {
                if let Some(at) = find(&mut self.peers, &id) {
                    self.remove_peer(at);
                    self.listen(now_ns());
                }
            }
            FromServer::Away { id } => {
                if let Some(at) = find(&mut self.peers, &id) {
                    self.peers[at].is_present = false;
                }
            }
            FromServer::Back { id } => {
                if let Some(at) = find(&mut self.peers, &id) {
                    self.peers[at].is_present = true;
                    self.peers[at].say_again(now_ns());
                }
            }
            FromServer::Renamed { id, name } => {
                if let Some(at) = find(&mut self.peers, &id) {
                    self.peers[at].name = name;
                }
            }
            FromServer::Owner { id } => self.status.is_owner = self.id.as_ref() == Some(&id),
            FromServer::Muted { id, muted } => {
                if self.id.as_ref() == Some(&id) {
                    self.status.is_muted_by_owner = muted;
                } else if let Some(at) = find(&mut self.peers, &id) {
                    self.peers[at].set_muted_by_owner(muted);
                    self.apply_strips();
                }
            }
            FromServer::Relay { relay } => self.set_relay(relay, address, false),
            FromServer::Signal { from, data } => self.handle_signal(&from, &data),
            // The connection ends next, which says it for as long as it lasts; and who has just left needs no signal.
            FromServer::Error { code, .. }
                if matches!(code.as_str(), "shutting_down" | "unknown_peer") => {}
            FromServer::Error { message, .. } => self.notice(message),
            // The passphrase is for the next `hello`.
            FromServer::Locked { passphrase } => self.set_locked(passphrase.is_some()),
            FromServer::Unknown => {}
        }
    }

    fn set_locked(&mut self, is_locked: bool) {
        self.status.is_locked = is_locked;
        if is_locked && self.status.notice.as_deref() == Some(OPEN_NOW) {
            self.status.notice = None;
        }
    }

    fn handle_signal(&mut self, from: &str, data: &Value) {
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.id == from) else {
            return;
        };
        if data["kind"] == "relayed" {
            peer.takes_relayed = data["wanted"] != false;
        } else if let Some(direct) = peer.direct.as_mut() {
            direct.handle_signal(data, now_ns());
        }
    }

    fn handle_welcome(&mut self, welcome: Welcome, address: IpAddr) {
        if welcome.sample_rate_hz != self.config.choice.rate.hz() {
            self.status.ended = Some(format!(
                "this room's sample rate is {} Hz, but the sound here is at {} Hz: {}",
                welcome.sample_rate_hz,
                self.config.choice.rate.hz(),
                self.config.rate_source.advice(welcome.sample_rate_hz)
            ));
            return;
        }
        self.status.signalling = Signalling::Online;
        self.status.offline = None;
        self.status.is_muted_by_owner = welcome.muted;
        self.status.is_owner = welcome.owner == welcome.id;
        // After a restart of the server; otherwise it was opened by its owner meanwhile.
        if self.status.is_locked && !welcome.locked && !welcome.resumed {
            self.notice(OPEN_NOW.into());
        }
        self.set_locked(welcome.locked);
        self.status.id = Some(welcome.id.clone());
        self.id = Some(welcome.id);
        self.ice_servers = welcome.ice_servers;
        for direct in self.peers.iter_mut().filter_map(|it| it.direct.as_mut()) {
            direct.set_servers(&self.ice_servers);
        }
        let is_here = |id: &str| welcome.participants.iter().any(|other| other.id == id);
        for at in (0..self.peers.len()).rev() {
            if is_here(&self.peers[at].id) {
                continue;
            }
            if welcome.resumed {
                self.remove_peer(at);
            } else {
                // A server that was restarted knows nobody yet: who is heard directly goes on being heard, and will be back.
                let peer = &mut self.peers[at];
                (peer.number, peer.is_present) = (None, false);
                peer.missed_since_ns = Some(now_ns());
            }
        }
        for participant in welcome.participants {
            self.add_peer(participant, welcome.resumed);
        }
        self.set_relay(welcome.relay, address, !welcome.resumed);
    }

    /// `is_new`: the server does not know the old token any more. Otherwise sessions that are open stay, until they end.
    fn set_relay(&mut self, relay: Option<RelayAddress>, server: IpAddr, is_new: bool) {
        let Some(address) = relay.filter(|_| self.config.path != Path::Direct) else {
            self.forget_relay();
            return;
        };
        let config = RelayConfig {
            host: self.config.link.host.clone(),
            server,
            address,
            sessions: self.config.sessions,
        };
        // The socket is of one family of addresses.
        if let Some((old, relay)) = &mut self.relay
            && !is_new
            && old.server.is_ipv4() == server.is_ipv4()
        {
            if let Err(why) = relay.update(&config) {
                self.notice(why);
            }
            self.listen(now_ns());
            return;
        }
        // The old ones end first.
        self.forget_relay();
        let endpoint = match self.endpoint.take() {
            Some((bound, endpoint)) if bound.is_ipv4() == server.is_ipv4() => Ok(endpoint),
            _ => relay::endpoint(server),
        };
        let opened = endpoint
            .map_err(|error| error.to_string())
            .and_then(|endpoint| {
                self.endpoint = Some((server, endpoint.clone()));
                let listen = self.wanted(now_ns());
                Relay::open(&endpoint, &config, listen, self.relay_events.clone())
            });
        match opened {
            Ok(relay) => self.relay = Some((config, relay)),
            Err(why) => self.notice(format!("no way through the server: {why}")),
        }
    }

    /// Another one knows nothing of what this one did.
    fn forget_relay(&mut self) {
        self.relay = None;
        (self.listeners, self.statistics, self.statistics_before) = (None, None, None);
        (self.relay_ns, self.relay_dropped_before) = (None, 0);
        self.relay_rtts = RoundTrips::default();
    }

    /// `resumed`: the server has known us all the time.
    fn add_peer(&mut self, participant: RemoteParticipant, resumed: bool) {
        let RemoteParticipant {
            id,
            stream: number,
            name,
            present,
            muted,
        } = participant;
        if let Some(peer) = self.peers.iter_mut().find(|peer| peer.id == id) {
            // It has been gone, whether we were told or not; or we have.
            if !resumed || peer.number != Some(number) {
                peer.meet_again(now_ns());
                // What it sent meanwhile was not for the relay that passes it on now, or not by this number.
                peer.by_relay.numbering.interrupt();
            } else {
                peer.say_again(now_ns());
            }
            // A server that was restarted numbers anew.
            (peer.number, peer.name, peer.is_present) = (Some(number), name, present);
            peer.set_muted_by_owner(muted);
            peer.missed_since_ns = None;
            self.apply_strips();
            return;
        }
        // One stream is the mix's.
        if self.peers.len() + 1 >= MAX_STREAMS {
            self.notice(format!("{name} is not heard: too many are in this room"));
            return;
        }
        let stream = self.add_stream();
        let direct = (self.id.as_deref())
            .filter(|_| self.config.path.is_direct())
            .map(|own| {
                let lanes = self.config.lanes.unwrap_or(FIRST_LANES);
                let events = self.direct_events.clone();
                Direct::new(own, &id, lanes, &self.ice_servers, events)
            });
        self.peers.push(Peer {
            id,
            name,
            number: Some(number),
            is_present: present,
            missed_since_ns: None,
            is_muted_by_owner: muted,
            stream,
            strip: None,
            direct,
            direct_ns: None,
            by_lanes: Way::default(),
            by_relay: Way::default(),
            both_ways_ns: None,
            is_told_direct: Some(true),
            is_told_relayed: Some(true),
            takes_relayed: true,
            sending: path::Sending::new(),
            route: Route {
                direct: true,
                relay: true,
            },
            dropped_before: 0,
            listener: Listener::new(self.outgoing.rungs(true), self.config.choice.copies),
            reports: Reports::default(),
            hearing: Hearing::default(),
            stats: None,
            peaks: [0.0; 2],
            rtts: RoundTrips::default(),
        });
        self.apply_strips();
    }

    fn remove_peer(&mut self, at: usize) {
        let peer = self.peers.remove(at);
        self.commands.push_back(Command::Remove(peer.stream));
    }

    fn add_stream(&mut self) -> StreamId {
        let stream = self.next_stream;
        self.next_stream += 1;
        self.commands.extend([
            Command::Add(stream),
            Command::Target(stream, self.config.target),
            Command::Budget(stream, self.config.budget),
        ]);
        stream
    }

    fn handle_order(&mut self, order: Order) {
        match order {
            Order::Louder(id, db) => self.own_strip(id).make_louder(db),
            Order::ResetGain(id) => self.own_strip(id).gain = 1.0,
            Order::Right(id, step) => self.own_strip(id).move_right(step),
            Order::ToggleMute(id) => self.own_strip(id).is_muted ^= true,
            Order::ToggleSolo(id) => self.own_strip(id).is_solo ^= true,
            Order::ToggleMuteSelf => {
                self.status.is_muted ^= true;
                let sender = &mut self.outgoing.samples.sender;
                return sender.set_muted(self.status.is_muted);
            }
            Order::Moderate(to, action) => {
                let moderate = ToServer::Moderate { to, action };
                // It is not kept until the server is back: by then it may be the wrong thing.
                if self.status.signalling != Signalling::Online
                    || self.to_server.try_send(moderate).is_err()
                {
                    self.notice("the server does not answer: try again".into());
                }
                return;
            }
            Order::Leave => return,
        }
        self.apply_strips();
        self.listen(now_ns());
    }

    fn own_strip(&mut self, id: String) -> &mut Strip {
        self.strips.entry(id).or_default()
    }

    fn handle_tick(&mut self, tick: u64) {
        let now = now_ns();
        for direct in self.peers.iter().filter_map(|peer| peer.direct.as_ref()) {
            direct.take_stock(now);
        }
        let is_gone = |peer: &Peer| peer.missed_since_ns.is_some_and(|at| now - at > GRACE_NS);
        while let Some(at) = self.peers.iter().position(is_gone) {
            self.remove_peer(at);
        }
        self.review_formats(TICK.as_millis() as u32, now);
        if tick.is_multiple_of(PROBE_TICKS) {
            self.review();
            self.probe();
        }
        self.follow_mix(now);
        let xruns = self.faults.xruns.load(Ordering::Relaxed);
        let lost = self.faults.lost_capture_frames.load(Ordering::Relaxed);
        self.recent.push_back((xruns, lost));
        if self.recent.len() > RECENT_TICKS {
            self.recent.pop_front();
        }
        let (old_xruns, old_lost) = self.recent[0];
        self.report(
            u32::try_from(lost - old_lost).unwrap_or(u32::MAX),
            u32::try_from(xruns - old_xruns).unwrap_or(u32::MAX - 1),
            now,
        );
        self.tell(now);
    }

    /// Says it until it is old, or there is other news.
    fn notice(&mut self, news: String) {
        (self.status.notice, self.noticed_ns) = (Some(news), now_ns());
    }
}

/// Gives the engine a datagram of a stream's sound, decoded where it is Opus.
fn give(far: &mut Far, opus: &mut Receiver, stream: StreamId, bytes: &[u8]) {
    opus.push(bytes, |received| match received {
        Received::Decoded(record) => far.give_decoded(stream, record),
        Received::Undecoded(bytes) => far.give(stream, bytes),
    });
}

fn raise(peaks: &mut [f32; 2], new: [f32; 2]) {
    for (peak, new) in peaks.iter_mut().zip(new) {
        *peak = peak.max(new);
    }
}

#[cfg(test)]
mod tests {
    use antiphon_core::jitter::JitterCounts;
    use antiphon_core::wire::{AUDIO_HEADER_BYTES, AudioHeader, CaptureReport, OpusHeader, Report};
    use antiphon_core::{SampleFormat, SampleRate, StreamFormat, StreamStats};
    use antiphon_opus::outgoing::Copies;
    use futures_util::{SinkExt, StreamExt};
    use proptest::{collection::vec, prelude::*};
    use serde_json::json;
    use tokio::task::LocalSet;
    use tokio_tungstenite::tungstenite::Message;

    use super::peer::{AUDIBLE_NS, RTT_STALE_NS};
    use super::*;
    use crate::duplex::{self, DeviceDelays, Duplex, DuplexConfig};
    use crate::relay::{Listen, MixedSource};

    type End = (Network, Duplex, mpsc::Receiver<ToServer>);

    fn config(path: Path) -> ParticipantConfig {
        ParticipantConfig {
            link: "http://localhost/r/abcdefghijklmnop"
                .parse()
                .expect("a link"),
            name: "Ann".into(),
            passphrase: None,
            choice: Choice {
                rate: SampleRate::Hz48000,
                channels: 1,
                format: SampleFormat::S16,
                packet_frames: 128,
                opus_kbps: None,
                adapts: true,
                copies: Copies::Auto,
            },
            rate_source: RateSource::Asked,
            target: Target::Auto,
            budget: 0.001,
            path,
            sessions: 1,
            lanes: Some(1),
        }
    }

    fn pair() -> (Duplex, Far, Sleeper) {
        let config = DuplexConfig {
            rate: SampleRate::Hz48000,
            input_channels: 1,
            output_channels: 1,
        };
        duplex::pair(config).expect("a pair")
    }

    /// A network thread's part and an audio thread's, without threads, and what it says to a server.
    fn network(path: Path) -> End {
        let (config, (duplex, far, _)) = (config(path), pair());
        let (relay_events, direct_events) = (mpsc::channel(1).0, mpsc::channel(1).0);
        let (to_server, said) = mpsc::channel(8);
        let network = Network::new(config, far, relay_events, direct_events, to_server);
        (network, duplex, said)
    }

    fn hear(network: &mut Network, message: Value) {
        let message = serde_json::from_value(message).expect("a message");
        let address = IpAddr::from([127, 0, 0, 1]);
        network.handle_signalling(SignallingEvent::Message { message, address });
    }

    fn welcome(resumed: bool, participants: &[(&str, u16)]) -> Value {
        let participants: Vec<_> = (participants.iter())
            .map(|(id, stream)| json!({"id": id, "stream": stream, "name": id, "present": true}))
            .collect();
        json!({"type": "welcome", "id": "m", "sample_rate_hz": 48_000, "participants": participants, "locked": false,
            "resumed": resumed})
    }

    /// Whom the relay is asked to forward, and whom to mix.
    fn taken(network: &Network, now: u64) -> (Vec<u16>, Vec<u16>) {
        let listen = network.wanted(now);
        let mixed = listen.mix.into_iter().flat_map(|mix| mix.sources);
        (listen.forward, mixed.map(|source| source.stream).collect())
    }

    fn audio(timestamp: u64) -> Vec<u8> {
        let header = AudioHeader {
            format: SampleFormat::S16,
            rate: SampleRate::Hz48000,
            channels: 1,
            stream: 0,
            frames: 128,
            sequence: timestamp as u32 / 128,
            timestamp,
        };
        let mut bytes = vec![0; header.datagram_bytes()];
        header.write(&mut bytes);
        of(&bytes, 1.0)
    }

    /// How loud one voice is.
    const LEVEL: f32 = 0.1;

    /// The same with the sound of so many voices.
    fn of(datagram: &[u8], voices: f32) -> Vec<u8> {
        let mut bytes = datagram.to_vec();
        let sample = (voices * LEVEL * 32_768.0) as i16;
        for out in bytes[AUDIO_HEADER_BYTES..].chunks_exact_mut(2) {
            out.copy_from_slice(&sample.to_le_bytes());
        }
        bytes
    }

    /// The same with a sender's number, as the relay passes it on.
    fn relayed(datagram: &[u8], number: u16) -> Vec<u8> {
        let mut bytes = datagram.to_vec();
        bytes[4..6].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    /// Datagrams of a peer that the player has had.
    fn played(network: &mut Network, duplex: &mut Duplex, id: &str) -> u64 {
        // More than a twentieth of a second: then it says so.
        for _ in 0..6 {
            network.handle_capture();
            duplex.process(&[0.0; 512], &mut [0.0; 512]);
        }
        network.handle_capture();
        let peer = network.peers.iter().find(|peer| peer.id == id);
        let stats = peer.and_then(|peer| peer.stats).expect("a stream");
        stats.sequence.received
    }

    /// A participant whose relay has sound of peers 1 and 2, and a mix of those who are asked for; all time is the test's.
    struct Rehearsal {
        network: Network,
        duplex: Duplex,
        said: mpsc::Receiver<ToServer>,
        now: u64,
        packets: u64,
        mix_plays: bool,
        a_direct: bool,
    }

    impl Rehearsal {
        fn new() -> Self {
            let (mut network, duplex, said) = network(Path::Auto);
            (network.asked, network.looked_ns) = (Asked::Forwarded, 10 * AUDIBLE_NS);
            Self {
                network,
                duplex,
                said,
                now: 10 * AUDIBLE_NS,
                packets: 0,
                mix_plays: true,
                a_direct: false,
            }
        }

        /// A tenth of a second: how many voices are heard in each hundredth.
        fn tick(&mut self) -> Vec<f32> {
            let mut heard = Vec::new();
            for _ in 0..10 {
                let (forward, mixed) = self.taken();
                for _ in 0..4 {
                    let bytes = audio(128 * self.packets);
                    for at in 0..2 {
                        let number = self.network.peers[at].number.expect("a number");
                        if at == 0 && self.a_direct {
                            self.network
                                .handle_datagram(at, 1, Kind::Audio, &bytes, self.now);
                        }
                        if forward.contains(&number) {
                            let bytes = relayed(&bytes, number);
                            self.network
                                .handle_datagram(at, 0, Kind::Audio, &bytes, self.now);
                        }
                    }
                    if let Some(mix) = &mut self.network.mix
                        && self.mix_plays
                        && !mixed.is_empty()
                    {
                        let voices = mixed.len() as f32;
                        give(
                            &mut self.network.far,
                            &mut mix.opus,
                            mix.stream,
                            &of(&bytes, voices),
                        );
                    }
                    self.packets += 1;
                }
                let mut quantum = [0.0; 512];
                self.duplex.process(&[0.0; 512], &mut quantum);
                heard.push(quantum.iter().sum::<f32>() / 512.0 / LEVEL);
                self.now += 512 * 1_000_000_000 / 48_000;
                self.network.handle_capture();
                self.network.follow_mix(self.now);
            }
            heard
        }

        /// Of so many, those in which it was not two.
        fn disturbed(&mut self, ticks: usize) -> Vec<f32> {
            let heard = (0..ticks).flat_map(|_| self.tick());
            heard
                .filter(|voices| !(1.95..2.05).contains(voices))
                .collect()
        }

        fn taken(&self) -> (Vec<u16>, Vec<u16>) {
            taken(&self.network, self.now)
        }

        fn wishes(&mut self) -> Vec<(String, String, bool)> {
            let said = std::iter::from_fn(|| self.said.try_recv().ok());
            let wish = |message| match message {
                ToServer::Signal { to, data } => {
                    let kind = data["kind"].as_str().expect("a kind").to_owned();
                    (to, kind, data["wanted"].as_bool().expect("a wish"))
                }
                message => panic!("{message:?}"),
            };
            said.map(wish).collect()
        }
    }

    #[tokio::test]
    async fn one_is_heard_in_the_mix_until_audio_comes_directly_and_never_both() {
        let run = async {
            let mut music = Rehearsal::new();
            hear(&mut music.network, welcome(false, &[("a", 1), ("b", 2)]));
            let wish = |to: &str, kind: &str, wanted| (to.to_owned(), kind.to_owned(), wanted);
            music.disturbed(5);
            assert_eq!(music.taken(), (vec![1, 2], vec![]));
            assert!(music.wishes().is_empty());

            // Until the mix is heard, all come both ways.
            music.network.asked = Asked::Mixed;
            music.mix_plays = false;
            assert_eq!(music.disturbed(9), [0.0; 0]);
            assert_eq!(music.taken(), (vec![1, 2], vec![1, 2]));
            music.mix_plays = true;
            assert_eq!(music.disturbed(9), [0.0; 0]);
            assert_eq!(music.taken(), (vec![], vec![1, 2]));
            let wishes = [wish("a", "direct", false), wish("b", "direct", false)];
            assert_eq!(music.wishes(), wishes);

            // One is heard directly after all.
            music.a_direct = true;
            // Its end in a mix that goes on is not told to the frame.
            let alone = music.disturbed(9);
            assert!(alone.len() <= 3, "{alone:?}");
            assert!(alone.iter().all(|voices| *voices < 2.0), "{alone:?}");
            assert_eq!(music.taken(), (vec![], vec![2]));
            let wishes = [wish("a", "direct", true), wish("a", "relayed", false)];
            assert_eq!(music.wishes(), wishes);

            // Its lanes are silent.
            music.a_direct = false;
            music.disturbed(20);
            assert_eq!(music.taken(), (vec![], vec![2, 1]));
            let wishes = [wish("a", "relayed", true), wish("a", "direct", false)];
            assert_eq!(music.wishes(), wishes);

            music.network.asked = Asked::Forwarded;
            assert_eq!(music.disturbed(9), [0.0; 0]);
            assert_eq!(music.taken(), (vec![1, 2], vec![]));
            assert!(music.network.mix.is_none());
            let wishes = [wish("a", "direct", true), wish("b", "direct", true)];
            assert_eq!(music.wishes(), wishes);

            // One that the server does not know would not hear it.
            music.network.peers[0].number = None;
            music.network.asked = Asked::Nothing;
            music.network.follow_mix(music.now);
            assert_eq!(music.wishes(), [wish("b", "relayed", false)]);
        };
        LocalSet::new().run_until(run).await;
    }

    #[test]
    fn keys_pressed_before_the_next_status_all_count() {
        let (mut network, ..) = network(Path::Relay);
        hear(&mut network, welcome(false, &[("a", 1)]));
        let id = || "a".to_owned();
        let mut after = |orders: &[Order]| {
            orders
                .iter()
                .for_each(|order| network.handle_order(order.clone()));
            let strip = network.strips["a"];
            let gain_db = (20.0 * strip.gain.log10()).round();
            (gain_db, strip.pan, strip.is_muted, strip.is_solo)
        };
        assert_eq!(
            after(&[Order::Louder(id(), 1.0), Order::Louder(id(), 1.0)]).0,
            2.0
        );
        assert_eq!(after(&vec![Order::Louder(id(), -1.0); 5]).0, -3.0);
        assert_eq!(
            after(&vec![Order::Louder(id(), 1.0); 40]).0,
            12.0,
            "no louder"
        );
        assert_eq!(
            after(&vec![Order::Louder(id(), -1.0); 60]).0,
            f32::NEG_INFINITY
        );
        assert_eq!(after(&[Order::Louder(id(), 1.0)]).0, -40.0, "from silence");
        assert_eq!(after(&[Order::ResetGain(id())]).0, 0.0);
        let left = || Order::Right(id(), -0.1);
        assert_eq!(after(&[left(), left(), left()]).1, -0.3);
        assert_eq!(
            after(&vec![Order::Right(id(), 0.1); 3]).1,
            0.0,
            "the middle is met"
        );
        assert_eq!(after(&vec![left(); 30]).1, -1.0);
        let twice = [Order::ToggleMute(id()), Order::ToggleMute(id())];
        assert!(!after(&twice).2);
        assert!(after(&[Order::ToggleMute(id()), Order::ToggleSolo(id())]).2);
        assert!(network.strips["a"].is_solo);
        network.handle_order(Order::ToggleMuteSelf);
        assert!(network.status.is_muted);
        network.handle_order(Order::ToggleMuteSelf);
        assert!(!network.status.is_muted);
    }

    #[test]
    fn the_meter_of_the_mix_falls_when_it_is_silent() {
        let (mut network, ..) = network(Path::Relay);
        let mut told = |peaks: &[f32]| {
            for &peak in peaks {
                network.handle_observation(Observation::Mix {
                    peaks: [peak, 0.0],
                    rendered: 64,
                    at_ns: 0,
                    quantum: 64,
                    delays: DeviceDelays::default(),
                });
            }
            network.tell(0);
            network.status.output_peaks[0]
        };
        assert_eq!(told(&[0.2, 0.5, 0.1]), 0.5);
        assert_eq!(told(&[0.1]), 0.1);
        assert_eq!(told(&[]), 0.0);
    }

    #[tokio::test]
    async fn nothing_goes_to_the_relay_for_who_does_not_take_it_there() {
        let (mut network, ..) = network(Path::Auto);
        let welcome = welcome(false, &[("a", 1)]);
        let lanes = LocalSet::new();
        lanes.run_until(async { hear(&mut network, welcome) }).await;
        network.listeners = Some(3);
        let mut says = |wanted| {
            hear(
                &mut network,
                json!({"type": "signal", "from": "a", "data": {"kind": "relayed", "wanted": wanted}}),
            );
            network.peers[0].relay_listeners(network.listeners)
        };
        assert_eq!(says(json!(false)), 0);
        assert_eq!(says(json!(true)), 3);
        assert_eq!(says(json!(false)), 0);
        assert_eq!(says(json!("nonsense")), 3);
    }

    /// Has each hear what the other says to it, in order.
    fn converse(ends: &mut [End; 2]) {
        for (at, from) in [(0, "a"), (1, "b")] {
            while let Ok(ToServer::Signal { data, .. }) = ends[at].2.try_recv() {
                hear(
                    &mut ends[1 - at].0,
                    json!({"type": "signal", "from": from, "data": data}),
                );
            }
        }
    }

    #[tokio::test]
    async fn who_is_listened_to_by_the_relay_goes_on_when_one_of_its_sessions_is_made_again() {
        let run = async {
            let (mut server, mut config) = relay::tests::server();
            config.sessions = 2;
            let (events, mut told) = mpsc::channel(16);
            let endpoint = relay::endpoint(config.server).expect("a socket");
            let opened = Relay::open(&endpoint, &config, Listen::default(), events);
            let (mut network, ..) = network(Path::Relay);
            network.relay = Some((config, opened.expect("a relay")));
            let mut sessions = VecDeque::new();
            for _ in 0..2 {
                sessions.push_back(relay::tests::accept(&mut server).await);
            }
            let [first, second] = [0, 1].map(|at| sessions[at].accept_bi());
            let (at, control) = tokio::select! {
                control = first => (0, control),
                control = second => (1, control),
            };
            let (mut says, _hears) = control.expect("a control stream");
            let wanted = b"{\"type\":\"wanted\",\"listeners\":1,\"opus\":true}\n";
            says.write_all(wanted).await.expect("it is there");
            let mut until = async |network: &mut Network, sessions, listeners| {
                let seen = async {
                    loop {
                        let (_, relay) = network.relay.as_ref().expect("a relay");
                        if (relay.open_sessions().len(), network.listeners) == (sessions, listeners)
                        {
                            break;
                        }
                        network.handle_relay(told.recv().await.expect("it goes on"));
                    }
                    // What else there is to be heard of it.
                    while let Ok(event) = told.try_recv() {
                        network.handle_relay(event);
                    }
                    network.listeners
                };
                let seen = tokio::time::timeout(Duration::from_secs(30), seen).await;
                assert_eq!(seen.expect("that many sessions"), listeners);
            };
            until(&mut network, 2, Some(1)).await;
            sessions[1 - at].close(1, b"");
            until(&mut network, 1, Some(1)).await;
            let again = relay::tests::accept(&mut server).await;
            until(&mut network, 2, Some(1)).await;
            for session in sessions.into_iter().chain([again]) {
                session.close(4, b"");
            }
            until(&mut network, 0, None).await;
        };
        LocalSet::new().run_until(run).await;
    }

    #[tokio::test]
    async fn who_needs_a_relay_is_told_that_there_is_none() {
        let run = async {
            for (path, is_told) in [(Path::Auto, false), (Path::Relay, true), (Path::Mix, true)] {
                let (mut network, ..) = network(path);
                network.tell(0);
                assert_eq!(network.status.relay.trouble, None, "not known yet");
                hear(&mut network, welcome(false, &[]));
                network.tell(0);
                assert_eq!(network.status.relay.trouble.is_some(), is_told, "{path:?}");
            }
        };
        LocalSet::new().run_until(run).await;
    }

    #[test]
    fn what_the_relay_did_not_pass_on_is_not_lost() {
        let (mut network, mut duplex, _) = network(Path::Relay);
        hear(&mut network, welcome(false, &[("a", 1)]));
        let mut heard = 0;
        let mut comes = |network: &mut Network, sequence: u64, at_s: u64, lost| {
            let datagram = relayed(&audio(sequence * 128), 1);
            let at_ns = at_s * 1_000_000_000;
            network.follow_mix(at_ns);
            network.handle_datagram(0, 0, Kind::Audio, &datagram, at_ns);
            heard += 1;
            assert_eq!(played(network, &mut duplex, "a"), heard);
            let stats = network.peers[0].stats.expect("a stream");
            assert_eq!(stats.sequence.lost, lost, "{sequence}");
        };
        comes(&mut network, 0, 1, 0);
        comes(&mut network, 1, 1, 0);
        comes(&mut network, 3, 1, 1);
        // Muted by the owner for a while.
        let muted = |muted| json!({"type": "muted", "id": "a", "muted": muted});
        hear(&mut network, muted(true));
        network.follow_mix(0);
        hear(&mut network, muted(false));
        comes(&mut network, 753, 3, 1);
        comes(&mut network, 754, 3, 1);
        // Not asked for, as while it is in the mix; the last of it comes all the same.
        network.asked = Asked::Nothing;
        network.follow_mix(0);
        comes(&mut network, 755, 3, 1);
        network.follow_mix(0);
        network.asked = Asked::Forwarded;
        comes(&mut network, 1_505, 5, 1);
        // The network was gone.
        comes(&mut network, 2_255, 7, 750);
    }

    #[test]
    fn what_was_sent_while_the_server_was_restarted_is_not_lost_whoever_is_back_first() {
        let (mut network, mut duplex, _) = network(Path::Relay);
        let mut heard = 0;
        let mut comes = |network: &mut Network, sequence: u64, at_ms: u64| {
            let number = network.peers[0].number.expect("a number");
            let datagram = relayed(&audio(sequence * 128), number);
            network.handle_datagram(0, 0, Kind::Audio, &datagram, at_ms * 1_000_000);
            heard += 1;
            assert_eq!(played(network, &mut duplex, "a"), heard);
            let stats = network.peers[0].stats.expect("a stream");
            assert_eq!(stats.sequence.lost, 0, "{sequence}");
        };
        hear(&mut network, welcome(false, &[("a", 1)]));
        comes(&mut network, 0, 1_000);
        comes(&mut network, 1, 1_003);
        // It was back before us; by the same number or by another.
        hear(&mut network, welcome(false, &[("a", 1)]));
        comes(&mut network, 901, 3_403);
        hear(&mut network, welcome(false, &[("a", 2)]));
        comes(&mut network, 1_101, 3_903);
        // It is back after us.
        hear(&mut network, welcome(false, &[]));
        hear(
            &mut network,
            json!({"type": "joined", "participant": {"id": "a", "stream": 1, "name": "a", "present": true}}),
        );
        comes(&mut network, 2_001, 6_303);
        comes(&mut network, 2_002, 6_306);
    }

    #[test]
    fn news_goes_after_a_while_and_hides_no_refusal() {
        let (mut network, ..) = network(Path::Relay);
        network.handle_direct(DirectEvent::Notice("no answer from STUN".into()));
        network.faults.set_refused(Some("no such port".into()));
        let now = now_ns();
        for (after_ns, notice) in [
            (0, Some("no answer from STUN")),
            (NOTICE_NS - 1_000_000_000, Some("no answer from STUN")),
            (NOTICE_NS, None),
        ] {
            network.tell(now + after_ns);
            assert_eq!(network.status.notice.as_deref(), notice);
            assert_eq!(network.status.refused.as_deref(), Some("no such port"));
        }
        network.faults.set_refused(None);
        network.tell(now);
        assert_eq!(network.status.refused, None, "it is linked by now");
    }

    #[test]
    fn what_was_said_to_one_who_has_just_left_is_no_news() {
        let (mut network, ..) = network(Path::Relay);
        for code in ["unknown_peer", "shutting_down"] {
            hear(
                &mut network,
                json!({"type": "error", "code": code, "message": "0123"}),
            );
            assert_eq!(network.status.notice, None, "{code}");
        }
        hear(
            &mut network,
            json!({"type": "error", "code": "not_owner", "message": "you do not own this room"}),
        );
        assert!(network.status.notice.is_some());
    }

    #[tokio::test]
    async fn who_owns_the_room_may_moderate() {
        let run = async {
            let (mut network, _, mut said) = network(Path::Auto);
            let mut owned = welcome(false, &[("a", 1)]);
            owned["owner"] = json!("m");
            hear(&mut network, owned);
            assert!(network.status.is_owner);
            network.handle_order(Order::Moderate("a".into(), Moderation::Mute));
            let Ok(ToServer::Moderate { to, action }) = said.try_recv() else {
                panic!("nothing was said");
            };
            assert_eq!((to.as_str(), action), ("a", Moderation::Mute));
            hear(
                &mut network,
                json!({"type": "muted", "id": "a", "muted": true}),
            );
            assert!(network.peers[0].is_muted_by_owner);
            assert_eq!(network.status.notice, None);
            network.handle_signalling(SignallingEvent::Offline("it is gone".into()));
            network.handle_order(Order::Moderate("a".into(), Moderation::Remove));
            assert!(said.try_recv().is_err(), "it is not kept");
            let notice = network.status.notice.as_deref();
            assert_eq!(notice, Some("the server does not answer: try again"));
            hear(&mut network, json!({"type": "owner", "id": "a"}));
            assert!(!network.status.is_owner);
        };
        LocalSet::new().run_until(run).await;
    }

    #[tokio::test]
    async fn mouth_to_ear_ends_with_the_quantum_that_a_frame_leaves_with_be_it_in_the_mix() {
        let run = async {
            let mut music = Rehearsal::new();
            hear(&mut music.network, welcome(false, &[("a", 1), ("b", 2)]));
            let begin = music.now;
            music.disturbed(5);
            music.network.asked = Asked::Mixed;
            music.disturbed(9);
            let now = music.now;
            let network = &mut music.network;
            network.rendered = Recent::new(1);
            // Its clock is ours, and its frame 0 was captured in the beginning.
            let capture = CaptureReport {
                timestamp: 0,
                time_ns: begin,
                error_us: 0,
                block_us: 0,
                send_us: 0,
                input: None,
                overrun_frames: 0,
                dropped_packets: 0,
            };
            let report = Report {
                stream: 0,
                id: 1,
                capture: Some(capture),
                heard: None,
            };
            let reports = &mut network.peers[0].reports;
            reports.offset.add(now, now, now);
            reports.handle_report(report, now);
            let told_ms = |network: &mut Network, stream, playhead| {
                network.handle_observation(Observation::Stream {
                    id: stream,
                    stats: StreamStats {
                        playhead: Some(playhead),
                        ..StreamStats::default()
                    },
                    peaks: [0.0; 2],
                });
                // It leaves with the quantum after this one, which comes 130 ms after the beginning.
                network.handle_observation(Observation::Mix {
                    peaks: [0.0; 2],
                    rendered: 48_000,
                    at_ns: begin + 130_000_000,
                    quantum: 64,
                    delays: DeviceDelays::default(),
                });
                network.tell(now);
                let told = network.status.peers[0].mouth_to_ear;
                told.map(|told| (told.known_ms * 1e3).round() / 1e3)
            };
            let mix = network.mix.as_ref().expect("a mix").stream;
            assert_eq!(
                told_ms(network, mix, 5_800),
                None,
                "the relay does not tell"
            );
            network.statistics = Some(RelayStatistics {
                mixed: vec![MixedSource {
                    stream: 1,
                    lead_frames: 1_000,
                    concealed_share: 0.25,
                }],
                ..RelayStatistics::default()
            });
            assert_eq!(told_ms(network, mix, 5_800), Some(31.333));
            // Of the mix a tenth was made up so far.
            let stats = |played_frames, concealed_frames| StreamStats {
                jitter: JitterCounts {
                    played_frames,
                    concealed_frames,
                    ..JitterCounts::default()
                },
                format: Some(StreamFormat::Samples(SampleFormat::S16)),
                ..StreamStats::default()
            };
            let hearing = &mut network.mix.as_mut().expect("a mix").hearing;
            *hearing = Hearing::default();
            let seen_ns = now_ns();
            hearing.observe(stats(0, 0), 0);
            hearing.observe(stats(18_000, 2_000), seen_ns);
            let heard = network.hears(&network.peers[0], 3, seen_ns);
            let heard = heard.expect("is heard");
            assert!(heard.is_mixed);
            assert_eq!(
                (heard.played_frames, heard.concealed_frames),
                (13_000, 7_000)
            );
            assert_eq!(heard.output_underruns, Some(3));
            network.asked = Asked::Forwarded;
            music.disturbed(9);
            let network = &mut music.network;
            network.rendered = Recent::new(1);
            let own = network.peers[0].stream;
            assert_eq!(told_ms(network, own, 4_800), Some(31.333));
        };
        LocalSet::new().run_until(run).await;
    }

    #[tokio::test]
    async fn who_was_gone_is_told_again_what_is_taken_of_it() {
        let run = async {
            let mut ends = [network(Path::Auto), network(Path::Auto)];
            let joined = |id, stream| {
                json!({"type": "joined", "participant":
                    {"id": id, "stream": stream, "name": id, "present": true}})
            };
            let now = now_ns();
            let talk = |ends: &mut [End; 2], asked| {
                for (network, ..) in ends.iter_mut() {
                    network.asked = asked;
                    // Where it is mixed, in the end.
                    network.peers[0].by_relay.audio_ns = Some(now);
                    for _ in 0..3 {
                        network.follow_mix(now);
                        if let Some(mix) = &mut network.mix {
                            let played_frames = &mut mix.stats.jitter.played_frames;
                            *played_frames = match asked {
                                Asked::Mixed => *played_frames + 1,
                                _ => 0,
                            };
                        }
                    }
                }
                converse(ends);
                // Whether the other takes it by the relay, and directly.
                [0, 1].map(|at| {
                    let peer = &ends[at].0.peers[0];
                    let direct = peer.direct.as_ref().expect("lanes");
                    (peer.takes_relayed, direct.is_wanted)
                })
            };
            hear(&mut ends[0].0, welcome(false, &[("b", 2)]));
            hear(&mut ends[1].0, welcome(false, &[("a", 1)]));
            assert_eq!(talk(&mut ends, Asked::Nothing), [(false, true); 2]);

            // B is gone for longer than the grace period, and A has heard of it.
            hear(&mut ends[0].0, json!({"type": "left", "id": "b"}));
            hear(&mut ends[0].0, joined("b", 3));
            hear(&mut ends[1].0, welcome(false, &[("a", 1)]));
            assert_eq!(talk(&mut ends, Asked::Forwarded), [(true, true); 2]);
            assert_eq!(talk(&mut ends, Asked::Mixed), [(true, false); 2]);

            // A has not heard of it: it was away meanwhile.
            hear(&mut ends[0].0, welcome(true, &[("b", 4)]));
            hear(&mut ends[1].0, welcome(false, &[("a", 1)]));
            assert_eq!(talk(&mut ends, Asked::Nothing), [(false, true); 2]);

            // The server was restarted.
            hear(&mut ends[0].0, welcome(false, &[]));
            hear(&mut ends[1].0, welcome(false, &[("a", 1)]));
            hear(&mut ends[0].0, joined("b", 2));
            assert_eq!(talk(&mut ends, Asked::Forwarded), [(true, true); 2]);
            assert_eq!(talk(&mut ends, Asked::Nothing), [(false, true); 2]);

            // Who has resumed says again what was lost with its old connection.
            let (a, _, said) = &mut ends[0];
            a.asked = Asked::Forwarded;
            a.follow_mix(now);
            let lost = std::iter::from_fn(|| said.try_recv().ok()).count();
            assert!(lost > 0, "that it takes B's from the relay");
            hear(a, welcome(true, &[("b", 2)]));
            assert_eq!(talk(&mut ends, Asked::Forwarded), [(true, true); 2]);
            assert_eq!(talk(&mut ends, Asked::Nothing), [(false, true); 2]);

            // Who resumed may have missed what it was told.
            ends[1].0.peers[0].takes_relayed = true;
            let direct = ends[1].0.peers[0].direct.as_mut().expect("lanes");
            direct.is_wanted = false;
            hear(&mut ends[0].0, json!({"type": "back", "id": "b"}));
            assert_eq!(talk(&mut ends, Asked::Nothing), [(false, true); 2]);
        };
        LocalSet::new().run_until(run).await;
    }

    #[tokio::test]
    async fn who_cannot_play_at_the_room_s_rate_leaves_it() {
        let (server, link) = signalling::tests::room().await;
        let serving = async {
            let (mut socket, _) = signalling::tests::accept(&server).await;
            let mut welcome = welcome(false, &[]);
            welcome["sample_rate_hz"] = json!(44_100);
            let welcome = Message::text(welcome.to_string());
            socket.send(welcome).await.expect("it is there");
            let said = socket.next().await.expect("a message").expect("a word");
            assert_eq!(said.to_text().expect("text"), r#"{"type":"leave"}"#);
        };
        let (_duplex, far, sleeper) = pair();
        let config = ParticipantConfig {
            link,
            ..config(Path::Auto)
        };
        let (say, status) = watch::channel(Status::default());
        let (_orders, ordered) = mpsc::channel(1);
        let playing = super::network(config, far, sleeper, say, ordered, None);
        let both = async { tokio::join!(playing, serving) };
        let both = tokio::time::timeout(Duration::from_secs(30), both);
        let left = LocalSet::new().run_until(both).await;
        left.expect("it leaves");
        let ended = status.borrow().ended.clone().expect("it is over");
        assert!(
            ended.ends_with("48000 Hz: join with --rate 44100"),
            "{ended}"
        );
    }

    #[test]
    fn what_a_mute_for_all_leaves_out_is_not_counted_as_made_up() {
        let (mut network, ..) = network(Path::Relay);
        hear(&mut network, welcome(false, &[("a", 1)]));
        let stats = |played_frames, concealed_frames| StreamStats {
            jitter: JitterCounts {
                played_frames,
                concealed_frames,
                ..JitterCounts::default()
            },
            format: Some(StreamFormat::Samples(SampleFormat::S16)),
            ..StreamStats::default()
        };
        let now = now_ns() + 1_000_000_000;
        let concealed = |network: &mut Network, played, made_up| {
            let hearing = &mut network.peers[0].hearing;
            hearing.observe(stats(played, made_up), now + played * 1_000_000);
            network.tell(now + played * 1_000_000);
            let hearing = network.status.peers[0].hearing;
            hearing.and_then(|hearing| hearing.concealed_share)
        };
        let mute = |network: &mut Network, muted| {
            hear(network, json!({"type": "muted", "id": "a", "muted": muted}));
        };
        assert_eq!(concealed(&mut network, 0, 0), None, "not known yet");
        assert_eq!(concealed(&mut network, 75, 25), Some(0.25));
        mute(&mut network, true);
        assert_eq!(concealed(&mut network, 76, 1_025), None);
        mute(&mut network, false);
        assert_eq!(concealed(&mut network, 77, 1_025), None);
        assert_eq!(concealed(&mut network, 177, 1_025), Some(0.0));
    }

    #[test]
    fn of_a_relay_that_is_gone_nothing_is_left() {
        let (mut network, ..) = network(Path::Auto);
        let now = now_ns();
        (network.listeners, network.relay_ns) = (Some(1), Some(now));
        network.statistics = Some(RelayStatistics::default());
        network.statistics_before = Some(RelayStatistics::default());
        network.relay_dropped_before = 9;
        network.relay_rtts.add(0, now, now);
        hear(&mut network, json!({"type": "relay", "relay": null}));
        assert_eq!((network.listeners, network.relay_ns), (None, None));
        assert_eq!(
            (&network.statistics, &network.statistics_before),
            (&None, &None)
        );
        assert_eq!(
            (
                network.relay_dropped_before,
                network.relay_rtts.least_ns(now)
            ),
            (0, None)
        );
    }

    #[test]
    fn who_was_heard_by_a_lane_within_the_last_second_is_heard_directly() {
        let (mut network, ..) = network(Path::Relay);
        hear(&mut network, welcome(false, &[("a", 1)]));
        let now = 10 * AUDIBLE_NS;
        network.handle_datagram(0, 1, Kind::Audio, &audio(0), now);
        let mut is_heard = |now| {
            network.tell(now);
            let told = &network.status.peers[0];
            (told.is_heard_directly, told.is_relayed)
        };
        assert_eq!(is_heard(now + AUDIBLE_NS - 1), (true, false));
        assert_eq!(is_heard(now + AUDIBLE_NS), (false, false));
    }

    #[test]
    fn a_lane_s_round_trip_is_forgotten_with_its_replies() {
        let (mut network, ..) = network(Path::Relay);
        hear(&mut network, welcome(false, &[("a", 1)]));
        let reply = Probe {
            stream: 0,
            id: 0,
            time_ns: 1_000_000,
            replied_ns: Some(1),
        };
        for (lane, now_ms) in [(0, 3), (2, 11), (3, 31)] {
            network.handle_datagram(
                0,
                lane,
                Kind::ProbeReply,
                &reply.to_bytes(),
                now_ms * 1_000_000,
            );
        }
        for (session, rtt_ms) in [(0, 40), (1, 20)] {
            let sent_ns = now_ns();
            network
                .relay_rtts
                .add(session, sent_ns, sent_ns + rtt_ms * 1_000_000);
        }
        let mut rtts = |now| {
            network.tell(now);
            (network.status.peers[0].rtt_ms, network.status.relay.rtt_ms)
        };
        assert_eq!(rtts(31_000_000).0, Some(10.0));
        assert_eq!(rtts(RTT_STALE_NS + 20_000_000).0, Some(30.0));
        let now = now_ns();
        assert_eq!(rtts(now).1, Some(20.0));
        assert_eq!(rtts(now + 2 * RTT_STALE_NS), (None, None));
    }

    #[test]
    fn after_a_restart_a_number_is_of_whom_the_server_gives_it_to() {
        let (mut network, ..) = network(Path::Mix);
        hear(&mut network, welcome(false, &[("a", 1), ("b", 2)]));
        let mixed = |network: &mut Network| {
            network.follow_mix(0);
            taken(network, 0).1
        };
        assert_eq!(mixed(&mut network), [1, 2]);
        hear(&mut network, welcome(false, &[("c", 1)]));
        assert_eq!(mixed(&mut network), [1], "a is not back yet");
        let reply = Probe {
            stream: 1,
            id: 0,
            time_ns: 0,
            replied_ns: Some(1),
        };
        network.handle_relayed(0, &reply.to_bytes());
        let replied: Vec<_> = (network.peers.iter())
            .filter(|peer| peer.reports.offset.at(now_ns()).is_some())
            .map(|peer| peer.id.as_str())
            .collect();
        assert_eq!(replied, ["c"]);
        hear(
            &mut network,
            json!({"type": "joined", "participant": {"id": "a", "stream": 3, "name": "a", "present": true}}),
        );
        assert_eq!(mixed(&mut network), [1, 3]);
        // Without a connection to the server for a while; its sessions with the relay are there all the same.
        hear(&mut network, json!({"type": "away", "id": "a"}));
        assert_eq!(mixed(&mut network), [1, 3]);
    }

    #[test]
    fn says_that_a_room_is_open_that_was_locked_before_a_restart() {
        let (mut network, ..) = network(Path::Relay);
        let lock = |passphrase: Option<&str>| json!({"type": "locked", "passphrase": passphrase});
        let hears = |network: &mut Network, message| {
            hear(network, message);
            network.status.notice.clone()
        };
        assert_eq!(hears(&mut network, welcome(false, &[])), None, "at first");
        assert!(!network.status.is_locked);
        assert_eq!(hears(&mut network, lock(Some("x"))), None);
        assert!(network.status.is_locked);
        let opened = hears(&mut network, welcome(true, &[]));
        assert_eq!(opened, None, "by its owner");
        assert_eq!(hears(&mut network, lock(Some("y"))), None);
        let opened = hears(&mut network, welcome(false, &[]));
        assert_eq!(opened.as_deref(), Some(OPEN_NOW));
        assert_eq!(hears(&mut network, lock(Some("z"))), None);
    }

    /// Packets of libopus, mono, 240 frames, each after its length: a chord.
    const OPUS: &[u8] = include_bytes!("../../../opus/tests/libopus/1-240");

    #[test]
    fn no_end_of_a_captured_block_waits_for_the_next() {
        let (mut network, mut duplex, _) = network(Path::Auto);
        let mut sent = |frames: usize| {
            duplex.process(&vec![0.1; frames], &mut vec![0.0; frames]);
            network.handle_capture();
            let stats = network.outgoing.samples.sender.stats();
            (stats.sent_frames, stats.packets)
        };
        assert_eq!(sent(480), (480, 4));
        assert_eq!(sent(100), (480, 4), "a short block waits for its packet");
        assert_eq!(sent(100), (608, 5));
    }

    #[test]
    fn what_is_captured_while_the_network_thread_stands_still_is_all_sent() {
        let (mut network, mut duplex, _) = network(Path::Auto);
        // A third of a second.
        let frames = 480;
        for _ in 0..33 {
            duplex.process(&vec![0.1; frames], &mut vec![0.0; frames]);
        }
        network.handle_capture();
        let stats = network.outgoing.samples.sender.stats();
        assert_eq!((stats.overrun_frames, stats.sent_frames), (0, 33 * 480));
    }

    #[test]
    fn opus_is_heard_by_either_path() {
        for (number, lane) in [(0, 1), (1, 0)] {
            let (mut network, mut duplex, _) = network(Path::Relay);
            hear(&mut network, welcome(false, &[("a", 1)]));
            let mut loudest = 0.0f32;
            for (n, packet) in OPUS.chunks_exact(2 + 80).enumerate() {
                let header = OpusHeader {
                    channels: 1,
                    stream: number,
                    frames: 240,
                    sequence: n as u32,
                    timestamp: n as u64 * 240,
                };
                let mut bytes = [0; AUDIO_HEADER_BYTES + 80];
                header.write(&mut bytes);
                bytes[AUDIO_HEADER_BYTES..].copy_from_slice(&packet[2..]);
                // As it came; nothing reads it; and once more.
                for bytes in [&bytes[..], &bytes[..AUDIO_HEADER_BYTES], &bytes[..]] {
                    network.handle_datagram(0, lane, Kind::Audio, bytes, 1);
                }
                network.handle_capture();
                let mut heard = [0.0; 240];
                duplex.process(&[0.0; 240], &mut heard);
                loudest = heard
                    .iter()
                    .fold(loudest, |loudest, s| loudest.max(s.abs()));
            }
            assert_eq!(played(&mut network, &mut duplex, "a"), 30);
            let stats = network.peers[0].stats.expect("a stream");
            assert_eq!(stats.format, Some(StreamFormat::Opus));
            assert_eq!((stats.malformed_packets, stats.sequence.lost), (30, 0));
            assert_eq!(stats.sequence.duplicate, 30);
            assert!((0.1..0.5).contains(&loudest), "{loudest}");
        }
    }

    /// Bytes, any, or those of a datagram of sound with some changed.
    fn hostile() -> impl Strategy<Value = Vec<u8>> {
        let number = prop_oneof![0..4u16, Just(MIX_STREAM)];
        let change = (0..AUDIO_HEADER_BYTES, any::<u8>());
        let changed =
            (number, any::<u32>(), vec(change, 0..3)).prop_map(|(number, at, changes)| {
                let mut bytes = relayed(&audio(128 * u64::from(at)), number);
                for (at, value) in changes {
                    bytes[at] = value;
                }
                bytes
            });
        let reply =
            any::<(u16, u32, u64, Option<u64>)>().prop_map(|(stream, id, time_ns, replied_ns)| {
                let stream = stream % 4;
                Probe {
                    stream,
                    id,
                    time_ns,
                    replied_ns,
                }
                .to_bytes()
                .to_vec()
            });
        prop_oneof![1 => vec(any::<u8>(), 0..1_100), 4 => changed, 1 => reply]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(40) })]

        #[test]
        fn whatever_comes_by_the_relay_what_is_heard_is_finite(
            is_mix: bool,
            datagrams in vec((0..5usize, hostile()), 0..100),
        ) {
            let (mut network, mut duplex, _) = network(if is_mix { Path::Mix } else { Path::Relay });
            hear(&mut network, welcome(false, &[("a", 1), ("b", 2)]));
            network.follow_mix(0);
            for (session, bytes) in datagrams {
                network.handle_relayed(session, &bytes);
                network.handle_capture();
                let mut heard = [0.0; 64];
                duplex.process(&[0.0; 64], &mut heard);
                prop_assert!(heard.iter().all(|sample| sample.is_finite()));
            }
            network.tell(now_ns());
        }
    }
}
