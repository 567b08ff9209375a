//! Synthetic musicians: company for the first who comes, and the load of the benchmarks.
//!
//! All bots live on one thread. They have no player: what comes to them is counted, not heard. Because they share a clock, how
//! long a datagram took from one bot to another is measured exactly: each remembers when it sent what.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use antiphon_core::sequence::{Arrival, SequenceTracker};
use antiphon_core::wire::{
    self, AudioHeader, Datagram, Kind, MAX_DATAGRAM_BYTES, MIX_STREAM, Probe,
};
use antiphon_core::{SampleFormat, SampleRate, pcm};
use bytes::Bytes;
use ring::rand::{SecureRandom, SystemRandom};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};
use web_transport_quinn::quinn::Endpoint;

use crate::clock::now_ns;
use crate::link::RoomLink;
use crate::music;
use crate::participant::Path;
use crate::priority;
use crate::relay::{self, Listen, Mix, MixSource, Relay, RelayConfig, RelayEvent};
use crate::runtime;
use crate::signalling::{self, FromServer, Hello, RelayAddress, Secret, SignallingEvent, ToServer};
use crate::sound::file::{forgiven, sleep_until};
use crate::wake::{self, Waker};

/// Most turns in which bots can send in the time of a packet.
pub const MAX_TURNS: usize = 64;
/// Datagrams whose time of sending is remembered, for each bot: some 2.7 s of packets of 128 frames, 0.3 s of 16. Longer delays are counted as if they were that long.
const REMEMBERED: usize = 1_024;
/// A bucket of the delays' histogram, ns, and how many there are: up to 100 ms, and all above in the last.
const BUCKET_NS: u64 = 5_000;
const BUCKETS: usize = 20_000;
const PRIORITY: i32 = 60;

/// Who comes, and where.
#[derive(Clone, Debug)]
pub struct BotsConfig {
    /// The room of the first bots.
    pub link: RoomLink,
    /// Of rooms that are locked.
    pub passphrase: Option<String>,
    /// Bots in each room.
    pub bots: usize,
    /// Rooms: the first is the link's, the others are new ones of the same server.
    pub rooms: usize,
    /// [`Path::Relay`]: every bot takes all others of its room; [`Path::Mix`]: a mix of them.
    pub path: Path,
    /// Frames per packet, 16 to 512.
    pub packet_frames: usize,
    /// 1 or 2.
    pub channels: usize,
    /// Sessions of each, 1 to 4.
    pub sessions: usize,
    /// In how many turns they send in the time of a packet, 1 to [`MAX_TURNS`]. Real musicians do not play in step; the clients of one
    /// sound system do, which is 1.
    pub turns: usize,
}

/// What all bots counted so far. Delays are from before a datagram is handed to a session until it has come out of another.
#[derive(Clone, Debug, Default, Serialize)]
pub struct BotsSummary {
    /// Since the first was in, with a session, s.
    pub seconds: f64,
    /// Rooms that bots are in, or will be.
    pub rooms: usize,
    /// Bots that are in.
    pub bots: usize,
    /// Datagrams sent to the relay.
    pub sent_packets: u64,
    /// Datagrams that no session had room for; those of a bot without a session are none.
    pub dropped_packets: u64,
    /// Datagrams of sound that came, from others than bots too.
    pub received_packets: u64,
    /// Sequence numbers that never came, though a later one did.
    pub lost_packets: u64,
    /// Datagrams that came after a later one.
    pub reordered_packets: u64,
    /// Datagrams of mixes, of those received.
    pub mix_packets: u64,
    /// Delays measured.
    pub delays: u64,
    /// Half of them took no longer, us; `None` before there is any.
    pub delay_p50_us: Option<f64>,
    /// 99 of 100 took no longer, us.
    pub delay_p99_us: Option<f64>,
    /// 999 of 1,000 took no longer, us.
    pub delay_p999_us: Option<f64>,
    /// The longest, us.
    pub delay_max_us: Option<f64>,
    /// Bots that are gone for good: refused by the server, or removed.
    pub refused: usize,
    /// Why bots were refused, or what they lost, the last time; otherwise why one has no session with the relay.
    pub trouble: Option<String>,
}

/// Runs until `stop` is set or no bot is left, and returns the whole count; each second `say` gets it so far.
///
/// # Errors
/// In words for the user: no runtime.
pub fn run(
    config: BotsConfig,
    stop: &Arc<AtomicBool>,
    mut say: impl FnMut(&BotsSummary),
) -> Result<BotsSummary, String> {
    let (waker, sleeper) = wake::pair().map_err(|error| error.to_string())?;
    let runtime = runtime::new().map_err(|error| error.to_string())?;
    let rate = SampleRate::Hz48000;
    let packet_ns = config.packet_frames as u64 * 1_000_000_000 / u64::from(rate.hz());
    let turn_ns = packet_ns / config.turns as u64;
    let metronome = Metronome::start(waker, turn_ns)?;
    let summary = runtime::run(runtime, async {
        // Datagrams that come are read at once, so that they are not counted as slower than they were.
        let _ = priority::real_time(PRIORITY);
        let mut listener = sleeper.listen().map_err(|error| error.to_string())?;
        let band = Rc::new(Band::new(&config, rate));
        for room in 0..config.rooms {
            let link = match room {
                0 => config.link.clone(),
                _ => config.link.with_room(random_room()),
            };
            for n in 0..config.bots {
                let index = room * config.bots + n;
                tokio::task::spawn_local(attend(band.clone(), index, n, link.clone()));
            }
        }
        let mut seconds = interval(Duration::from_secs(1));
        seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        seconds.tick().await;
        let mut turns = Turns {
            start_ns: now_ns(),
            turn_ns,
            played: 0,
        };
        while !stop.load(Ordering::Acquire) && band.bots.iter().any(Bot::is_left) {
            tokio::select! {
                biased;
                () = listener.woken() => {
                    turns.due(now_ns()).for_each(|turn| band.play(turn));
                }
                _ = seconds.tick() => say(&band.summary()),
            }
        }
        let summary = band.summary();
        let mut leaving = Vec::new();
        for bot in &band.bots {
            *bot.relay.borrow_mut() = None;
            if let Some((to_server, talking)) = bot.to_server.borrow_mut().take() {
                let _ = to_server.try_send(ToServer::Leave {});
                leaving.push(talking);
            }
        }
        // Who cannot say so, because the server is away, is missed there before long.
        let all_gone = async {
            for talking in leaving {
                let _ = talking.await;
            }
        };
        let _ = timeout(Duration::from_millis(1_500), all_gone).await;
        Ok(summary)
    });
    drop(metronome);
    summary
}

/// Which turns are due.
struct Turns {
    start_ns: u64,
    turn_ns: u64,
    played: u64,
}

impl Turns {
    /// Those since it was last asked; however late, none is left out, but after a standstill it goes on from now.
    fn due(&mut self, now_ns: u64) -> Range<u64> {
        let played = self.played;
        let late_ns = now_ns.saturating_sub(self.start_ns + played * self.turn_ns);
        self.start_ns += forgiven(late_ns);
        self.played = played.max(now_ns.saturating_sub(self.start_ns) / self.turn_ns);
        played..self.played
    }
}

/// Wakes the bots when packets are due.
struct Metronome {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Metronome {
    fn start(waker: Waker, turn_ns: u64) -> Result<Self, String> {
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let thread = thread::Builder::new()
            .name("metronome".into())
            .spawn(move || {
                let _ = priority::real_time(PRIORITY);
                let mut due_ns = now_ns();
                while !told.load(Ordering::Acquire) {
                    due_ns += turn_ns;
                    due_ns += forgiven(sleep_until(due_ns));
                    waker.wake();
                }
            })
            .map_err(|error| error.to_string())?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Metronome {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn random_room() -> String {
    let mut bytes = [0; 16];
    // Without randomness all new rooms are one.
    let _ = SystemRandom::new().fill(&mut bytes);
    data_encoding::BASE64URL_NOPAD.encode(&bytes)
}

/// All bots, and what they share.
struct Band {
    config: BotsConfig,
    rate: SampleRate,
    /// Loops of the parts, as 16-bit samples, interleaved.
    parts: Vec<Vec<u8>>,
    bots: Vec<Bot>,
    /// The one socket for each family of addresses, the older first: a server may be found by the other one later.
    endpoints: [RefCell<Option<Endpoint>>; 2],
    /// By room and number, who that is.
    seats: RefCell<HashMap<(String, u16), usize>>,
    started_ns: Cell<Option<u64>>,
    delays: RefCell<Vec<u64>>,
    longest_ns: Cell<u64>,
    trouble: RefCell<Option<String>>,
}

#[derive(Default)]
struct Bot {
    relay: RefCell<Option<Relay>>,
    /// And what ends once it has left.
    to_server: RefCell<Option<(mpsc::Sender<ToServer>, JoinHandle<()>)>>,
    /// Where it is in its loop, and which of its frames comes next.
    frame: Cell<u64>,
    sequence: Cell<u32>,
    /// The last sequence numbers, each at its remainder, and when they were sent, ns.
    sent: RefCell<Vec<(u32, u64)>>,
    listeners: Cell<Option<u32>>,
    /// Gone for good.
    is_refused: Cell<bool>,
    counts: Cell<Counts>,
    /// By stream.
    heard: RefCell<HashMap<u16, SequenceTracker>>,
}

impl Bot {
    fn is_left(&self) -> bool {
        !self.is_refused.get()
    }

    /// When it sent that one, ns; of one that is not remembered any more when it sent the oldest that is, which was later.
    fn sent_ns(&self, sequence: u32) -> u64 {
        let sent = self.sent.borrow();
        match sent[sequence as usize % REMEMBERED] {
            (remembered, sent_ns) if remembered == sequence => sent_ns,
            _ => sent.iter().map(|&(_, sent_ns)| sent_ns).min().unwrap_or(0),
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Counts {
    sent: u64,
    received: u64,
    lost: u64,
    reordered: u64,
    mixed: u64,
    dropped: u64,
}

impl Band {
    fn new(config: &BotsConfig, rate: SampleRate) -> Self {
        let parts = config.bots.min(music::PARTS);
        let parts = (0..parts).map(|part| {
            let samples = music::part(part, rate.hz());
            let mut bytes = vec![0; samples.len() * 2 * config.channels];
            for channel in 0..config.channels {
                pcm::encode_channel(
                    SampleFormat::S16,
                    &samples,
                    channel,
                    config.channels,
                    &mut bytes,
                );
            }
            bytes
        });
        let bots = (0..config.rooms * config.bots).map(|index| Bot {
            frame: Cell::new(music::entry_frames(index % config.bots, rate.hz()) as u64),
            sent: RefCell::new(vec![(0, 0); REMEMBERED]),
            ..Bot::default()
        });
        Self {
            parts: parts.collect(),
            bots: bots.collect(),
            rate,
            endpoints: Default::default(),
            seats: RefCell::new(HashMap::new()),
            started_ns: Cell::new(None),
            delays: RefCell::new(vec![0; BUCKETS]),
            longest_ns: Cell::new(0),
            trouble: RefCell::new(None),
            config: config.clone(),
        }
    }

    /// The packets of those whose turn it is.
    fn play(&self, turn: u64) {
        let turns = self.config.turns;
        let first = (turn % turns as u64) as usize;
        for (index, bot) in self.bots.iter().enumerate().skip(first).step_by(turns) {
            self.play_bot(bot, index % self.config.bots);
        }
    }

    /// `n`: in its room.
    fn play_bot(&self, bot: &Bot, n: usize) {
        let first = bot.frame.get();
        bot.frame.set(first + self.config.packet_frames as u64);
        let relay = bot.relay.borrow();
        let Some(relay) = relay.as_ref().filter(|_| bot.listeners.get() != Some(0)) else {
            return;
        };
        let part = &self.parts[n % music::PARTS];
        let frame_bytes = 2 * self.config.channels;
        let room_frames = (MAX_DATAGRAM_BYTES - wire::AUDIO_HEADER_BYTES) / frame_bytes;
        let mut left = self.config.packet_frames;
        let mut timestamp = first;
        let mut counts = bot.counts.get();
        while left > 0 {
            let frames = left.div_ceil(left.div_ceil(room_frames));
            let sequence = bot.sequence.get();
            bot.sequence.set(sequence.wrapping_add(1));
            let header = AudioHeader {
                format: SampleFormat::S16,
                rate: self.rate,
                channels: self.config.channels as u8,
                stream: 0,
                frames: frames as u16,
                sequence,
                timestamp,
            };
            let mut datagram = vec![0; header.datagram_bytes()];
            header.write(&mut datagram);
            let begin = timestamp as usize * frame_bytes % part.len();
            let samples = part[begin..].iter().chain(part);
            for (to, from) in datagram[wire::AUDIO_HEADER_BYTES..].iter_mut().zip(samples) {
                *to = *from;
            }
            bot.sent.borrow_mut()[sequence as usize % REMEMBERED] = (sequence, now_ns());
            if relay.send(datagram.into()).is_some() {
                counts.sent += 1;
            } else if relay.is_open() {
                counts.dropped += 1;
            }
            timestamp += frames as u64;
            left -= frames;
        }
        bot.counts.set(counts);
    }

    fn receive(&self, bot: &Bot, room: &str, bytes: &[u8]) {
        let now = now_ns();
        let Ok(Datagram::Audio(header, _, copy)) = wire::parse(bytes) else {
            return;
        };
        let mut heard = bot.heard.borrow_mut();
        let tracker = heard.entry(header.stream).or_default();
        let before = tracker.counts();
        // The relay sends copies of what the way here loses some of: within the next one, or by themselves.
        if tracker.handle(header.sequence, false) == Arrival::Duplicate {
            return;
        }
        if !copy.is_empty() {
            tracker.handle_copy(header.before().sequence);
        }
        let now_counted = tracker.counts();
        let mut counts = bot.counts.get();
        counts.received += 1;
        counts.reordered += now_counted.reordered - before.reordered;
        counts.lost = counts.lost + now_counted.lost - before.lost;
        counts.mixed += u64::from(header.stream == MIX_STREAM);
        bot.counts.set(counts);
        // Strangers' clocks are not ours.
        let seats = self.seats.borrow();
        let Some(&sender) = seats.get(&(room.to_owned(), header.stream)) else {
            return;
        };
        let sent_ns = self.bots[sender].sent_ns(header.sequence);
        self.count_delay(now.saturating_sub(sent_ns));
    }

    fn count_delay(&self, delay_ns: u64) {
        self.longest_ns.set(self.longest_ns.get().max(delay_ns));
        let bucket = ((delay_ns / BUCKET_NS) as usize).min(BUCKETS - 1);
        self.delays.borrow_mut()[bucket] += 1;
    }

    fn summary(&self) -> BotsSummary {
        let delays = self.delays.borrow();
        let count: u64 = delays.iter().sum();
        let percentile = |share: f64| {
            let wanted = (count as f64 * share).ceil() as u64;
            let mut below = 0;
            let bucket = delays.iter().position(|bucket| {
                below += bucket;
                below >= wanted
            })?;
            // No shorter than the truth: the bucket's upper end, which the last one has not.
            let end_ns = if bucket == BUCKETS - 1 {
                self.longest_ns.get()
            } else {
                (bucket as u64 + 1) * BUCKET_NS
            };
            (count > 0).then_some(end_ns as f64 / 1e3)
        };
        let sum = |of: fn(&Counts) -> u64| self.bots.iter().map(|bot| of(&bot.counts.get())).sum();
        let since = |start: u64| (now_ns() - start) as f64 / 1e9;
        BotsSummary {
            seconds: self.started_ns.get().map_or(0.0, since),
            rooms: self.rooms(),
            bots: self
                .bots
                .iter()
                .filter(|bot| bot.relay.borrow().as_ref().is_some_and(Relay::is_open))
                .count(),
            sent_packets: sum(|counts| counts.sent),
            dropped_packets: sum(|counts| counts.dropped),
            received_packets: sum(|counts| counts.received),
            lost_packets: sum(|counts| counts.lost),
            reordered_packets: sum(|counts| counts.reordered),
            mix_packets: sum(|counts| counts.mixed),
            delays: count,
            delay_p50_us: percentile(0.5),
            delay_p99_us: percentile(0.99),
            delay_p999_us: percentile(0.999),
            delay_max_us: (count > 0).then(|| self.longest_ns.get() as f64 / 1e3),
            refused: self.refused(),
            trouble: self.trouble.borrow().clone().or_else(|| {
                let mut bots = self.bots.iter();
                bots.find_map(|bot| bot.relay.borrow().as_ref()?.trouble())
            }),
        }
    }

    /// Rooms in which bots are left.
    fn rooms(&self) -> usize {
        let rooms = self.bots.chunks(self.config.bots);
        rooms.filter(|room| room.iter().any(Bot::is_left)).count()
    }

    fn refused(&self) -> usize {
        self.bots.iter().filter(|bot| !bot.is_left()).count()
    }

    /// A bot will never be in again.
    fn refuse(&self, bot: &Bot, why: String) {
        *bot.relay.borrow_mut() = None;
        *self.trouble.borrow_mut() = Some(why);
        bot.is_refused.set(true);
    }

    fn relay_config(&self, address: RelayAddress, host: &str, server: IpAddr) -> RelayConfig {
        RelayConfig {
            host: host.to_owned(),
            server,
            address,
            sessions: self.config.sessions,
        }
    }

    /// Where sessions that are made from now on go: the relay's own certificate changes every few days.
    fn update_relay(&self, bot: &Bot, relay: Option<RelayAddress>, host: &str, server: IpAddr) {
        let (Some(open), Some(address)) = (&*bot.relay.borrow(), relay) else {
            return;
        };
        if let Err(why) = open.update(&self.relay_config(address, host, server)) {
            *self.trouble.borrow_mut() = Some(why);
        }
    }

    fn endpoint(&self, server: IpAddr) -> Option<Endpoint> {
        let mut endpoint = self.endpoints[usize::from(server.is_ipv6())].borrow_mut();
        if endpoint.is_none() {
            match relay::endpoint(server) {
                Ok(new) => *endpoint = Some(new),
                Err(error) => *self.trouble.borrow_mut() = Some(error.to_string()),
            }
        }
        endpoint.clone()
    }
}

/// One bot in its room. `index`: among all; `n`: in its room.
async fn attend(band: Rc<Band>, index: usize, n: usize, link: RoomLink) {
    let room = link.room.clone();
    let host = link.host.clone();
    let hello = Hello {
        secret: Secret::random(),
        name: music::name(n),
        sample_rate_hz: band.rate.hz(),
        passphrase: band.config.passphrase.clone(),
        bot: true,
        returning: false,
    };
    let (to_server, outgoing) = mpsc::channel(16);
    let (signalling, mut signals) = mpsc::channel(256);
    let (events, mut relayed) = mpsc::channel(1_024);
    let bot = &band.bots[index];
    let talking = tokio::task::spawn_local(signalling::run(link, hello, outgoing, signalling));
    *bot.to_server.borrow_mut() = Some((to_server, talking));
    // Numbers of the others.
    let mut others: HashMap<String, u16> = HashMap::new();
    let mut seat = None;
    loop {
        tokio::select! {
            biased;
            Some(event) = relayed.recv() => match event {
                RelayEvent::Datagram(session, bytes) => match wire::route(&bytes) {
                    Ok((Kind::Audio, _)) => band.receive(bot, &room, &bytes),
                    Ok((Kind::Probe, _)) => {
                        if let (Ok(Datagram::Probe(probe)), Some(relay)) =
                            (wire::parse(&bytes), &*bot.relay.borrow())
                        {
                            let reply = Probe { replied_ns: Some(now_ns()), ..probe };
                            relay.send_on(session, Bytes::copy_from_slice(&reply.to_bytes()));
                        }
                    }
                    _ => {}
                },
                RelayEvent::Wanted(listeners, _) => bot.listeners.set(Some(listeners)),
                RelayEvent::Changed => {
                    if !bot.relay.borrow().as_ref().is_some_and(Relay::is_open) {
                        bot.listeners.set(None);
                    } else if band.started_ns.get().is_none() {
                        band.started_ns.set(Some(now_ns()));
                    }
                }
                RelayEvent::Statistics(_) => {}
            },
            event = signals.recv() => {
                let Some(event) = event else { return };
                let (message, address) = match event {
                    SignallingEvent::Message { message, address } => (message, address),
                    SignallingEvent::Offline(why) => {
                        *band.trouble.borrow_mut() = Some(why);
                        continue;
                    }
                    SignallingEvent::Ended(why) => {
                        band.refuse(bot, why);
                        return;
                    }
                };
                match message {
                    FromServer::Welcome(welcome) => {
                        // It is over, unless a bot is out for good.
                        if band.refused() == 0 {
                            *band.trouble.borrow_mut() = None;
                        }
                        if let Some(old) = seat.replace(welcome.stream) {
                            // By now another may have that number: a server that was restarted numbers anew.
                            let old = (room.clone(), old);
                            let mut seats = band.seats.borrow_mut();
                            if seats.get(&old) == Some(&index) {
                                seats.remove(&old);
                            }
                        }
                        if !welcome.resumed {
                            bot.heard.borrow_mut().clear();
                        }
                        band.seats.borrow_mut().insert((room.clone(), welcome.stream), index);
                        others = welcome.participants.into_iter().map(|p| (p.id, p.stream)).collect();
                        // The socket is of one family of addresses.
                        let has_relay = bot.relay.borrow().as_ref()
                            .is_some_and(|relay| relay.server().is_ipv4() == address.is_ipv4());
                        if welcome.sample_rate_hz != band.rate.hz() {
                            band.refuse(
                                bot,
                                format!("the room is at {} Hz, bots are at {}", welcome.sample_rate_hz, band.rate.hz()),
                            );
                            if let Some((to_server, _)) = &*bot.to_server.borrow() {
                                let _ = to_server.try_send(ToServer::Leave {});
                            }
                            // A connection of which nobody hears any more ends, be the word out or not.
                            while signals.recv().await.is_some() {}
                            return;
                        } else if welcome.resumed && has_relay {
                            // The sessions are what they were; those to come may not be.
                            band.update_relay(bot, welcome.relay, &host, address);
                        } else if let (Some(relay), Some(endpoint)) =
                            (welcome.relay, band.endpoint(address))
                        {
                            let config = band.relay_config(relay, &host, address);
                            *bot.relay.borrow_mut() = None;
                            match Relay::open(&endpoint, &config, wanted(&band, &others), events.clone()) {
                                Ok(relay) => *bot.relay.borrow_mut() = Some(relay),
                                Err(why) => *band.trouble.borrow_mut() = Some(why),
                            }
                        } else {
                            *band.trouble.borrow_mut() = Some("the server has no relay".into());
                        }
                    }
                    FromServer::Relay { relay } => band.update_relay(bot, relay, &host, address),
                    FromServer::Joined { participant } => {
                        others.insert(participant.id, participant.stream);
                    }
                    FromServer::Left { id } => {
                        if let Some(number) = others.remove(&id) {
                            bot.heard.borrow_mut().remove(&number);
                        }
                    }
                    _ => continue,
                }
                if let Some(relay) = &*bot.relay.borrow() {
                    relay.listen(wanted(&band, &others));
                }
            }
        }
    }
}

fn wanted(band: &Band, others: &HashMap<String, u16>) -> Listen {
    let mut numbers: Vec<u16> = others.values().copied().collect();
    numbers.sort_unstable();
    if band.config.path != Path::Mix {
        return Listen {
            forward: numbers,
            ..Listen::default()
        };
    }
    let sources = numbers.into_iter().map(|stream| MixSource {
        stream,
        gain: 1.0,
        pan: 0.0,
        muted: false,
    });
    Listen {
        mix: Some(Mix {
            format: 16,
            packet_frames: band.config.packet_frames,
            sources: sources.collect(),
        }),
        ..Listen::default()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use futures_util::{SinkExt, StreamExt};
    use serde_json::json;
    use tokio::net::TcpListener;
    use tokio::task::LocalSet;
    use tokio_tungstenite::tungstenite::Message;

    use super::*;

    /// A bot that is alone.
    fn band(link: RoomLink) -> Rc<Band> {
        let config = BotsConfig {
            link,
            passphrase: None,
            bots: 1,
            rooms: 1,
            path: Path::Relay,
            packet_frames: 128,
            channels: 2,
            sessions: 1,
            turns: 1,
        };
        Rc::new(Band::new(&config, SampleRate::Hz48000))
    }

    #[test]
    fn delays_beyond_the_last_bucket_are_as_long_as_the_longest() {
        let link = "http://localhost/r/abcdefghijklmnop".parse();
        let band = band(link.expect("a link"));
        assert_eq!(band.summary().delay_p50_us, None);
        for delay_ns in [1_000_000, 2_000_001, 150_000_000, 300_000_000] {
            band.count_delay(delay_ns);
        }
        let summary = band.summary();
        assert_eq!(summary.delay_p50_us, Some(2_005.0));
        assert_eq!(summary.delay_p99_us, Some(300_000.0));
    }

    #[test]
    fn a_delay_longer_than_is_remembered_is_no_shorter_than_that() {
        let band = band(
            "http://localhost/r/abcdefghijklmnop"
                .parse()
                .expect("a link"),
        );
        let bot = &band.bots[0];
        for n in 0..1_500 {
            bot.sent.borrow_mut()[n as usize % REMEMBERED] = (n, u64::from(n) * 1_000);
        }
        assert_eq!(bot.sent_ns(1_400), 1_400_000);
        let oldest = 1_500 - REMEMBERED as u64;
        assert_eq!(bot.sent_ns(100), oldest * 1_000);
    }

    #[test]
    fn rooms_whose_bots_are_all_refused_are_none() {
        let config = BotsConfig {
            bots: 2,
            rooms: 3,
            ..band(
                "http://localhost/r/abcdefghijklmnop"
                    .parse()
                    .expect("a link"),
            )
            .config
            .clone()
        };
        let band = Band::new(&config, SampleRate::Hz48000);
        for index in [0, 1, 2] {
            band.refuse(&band.bots[index], "no such room".into());
        }
        let summary = band.summary();
        assert_eq!((summary.rooms, summary.refused), (2, 3));
    }

    #[test]
    fn a_packet_that_is_late_is_sent_and_what_a_standstill_held_up_is_not() {
        let second_ns = 1_000_000_000;
        let mut turns = Turns {
            start_ns: second_ns,
            turn_ns: 1_000_000,
            played: 0,
        };
        assert_eq!(turns.due(second_ns + 2_500_000), 0..2);
        assert_eq!(turns.due(second_ns + 2_600_000), 2..2);
        assert_eq!(
            turns.due(2 * second_ns),
            2..1_000,
            "a second is made up for"
        );
        assert_eq!(turns.due(60 * second_ns), 1_000..1_000);
        assert_eq!(turns.due(60 * second_ns + 3_000_000), 1_000..1_003);
    }

    #[tokio::test]
    async fn only_what_a_session_has_no_room_for_is_dropped() {
        let (mut server, config) = relay::tests::server();
        let playing = async {
            let socket = relay::endpoint(config.server).expect("a socket");
            let (events, _told) = mpsc::channel(16);
            let band = band(
                "http://localhost/r/abcdefghijklmnop"
                    .parse()
                    .expect("a link"),
            );
            let bot = &band.bots[0];
            let open = Relay::open(&socket, &config, Listen::default(), events);
            *bot.relay.borrow_mut() = Some(open.expect("a relay"));
            let counts = || {
                let summary = band.summary();
                (summary.bots, summary.sent_packets, summary.dropped_packets)
            };
            band.play(0);
            assert_eq!(counts(), (0, 0, 0), "there is none yet");
            let _session = relay::tests::accept(&mut server).await;
            while counts().0 == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            band.play(0);
            assert_eq!(counts(), (1, 1, 0));
            // All at once is more than a session takes.
            for _ in 0..100_000 {
                band.play(0);
            }
            let (_, sent, dropped) = counts();
            assert!(dropped > 0 && sent + dropped == 100_001, "{dropped}");
        };
        let playing = timeout(Duration::from_secs(30), playing);
        let played = LocalSet::new().run_until(playing).await;
        played.expect("there is a session");
    }

    /// Until `serving` has ended, in time, while a bot attends, which stays.
    async fn attended(band: &Rc<Band>, link: RoomLink, serving: impl Future<Output = ()>) {
        let both = async {
            tokio::select! {
                () = attend(band.clone(), 0, 0, link) => panic!("it stays"),
                () = serving => {}
            }
        };
        let both = timeout(Duration::from_secs(30), both);
        let served = LocalSet::new().run_until(both).await;
        served.expect("it has come to what it waits for");
    }

    #[tokio::test]
    async fn trouble_is_over_when_the_server_is_back() {
        let (server, link) = signalling::tests::room().await;
        let band = band(link.clone());
        let serving = async {
            let (mut socket, _) = signalling::tests::accept(&server).await;
            *band.trouble.borrow_mut() = Some("the server is away".into());
            let mut welcome = signalling::tests::welcome(false);
            let hash = "00".repeat(32);
            let token = "0".repeat(32);
            welcome["relay"] = json!({"port": 9, "token": token, "certificate_hashes": [hash]});
            let welcome = Message::text(welcome.to_string());
            socket.send(welcome).await.expect("it is there");
            while band.summary().trouble.is_some() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        attended(&band, link, serving).await;
    }

    #[tokio::test]
    async fn a_bot_leaves_a_room_of_another_rate_however_much_is_said_there() {
        // What it does first, to hear or to say something, is by chance.
        for _ in 0..8 {
            let (server, link) = signalling::tests::room().await;
            let band = band(link.clone());
            let serving = async {
                let (mut socket, _) = signalling::tests::accept(&server).await;
                let mut welcome = signalling::tests::welcome(false);
                welcome["sample_rate_hz"] = json!(44_100);
                let renamed = json!({"type": "renamed", "id": "01", "name": "Bob"});
                let renamed = Message::text(renamed.to_string());
                let told = std::iter::once(Message::text(welcome.to_string()));
                // More than can wait for the bot.
                for message in told.chain(std::iter::repeat_n(renamed, 1_000)) {
                    socket.feed(message).await.expect("it is there");
                }
                socket.flush().await.expect("it is there");
                let said = socket.next().await.expect("a message").expect("a word");
                assert_eq!(said.to_text().expect("text"), r#"{"type":"leave"}"#);
            };
            let both = async { tokio::join!(attend(band.clone(), 0, 0, link), serving) };
            let both = timeout(Duration::from_secs(30), both);
            let left = LocalSet::new().run_until(both).await;
            left.expect("it leaves");
            assert_eq!(band.refused(), 1);
        }
    }

    #[tokio::test]
    async fn a_bot_that_the_relay_does_not_answer_says_so_and_has_not_begun() {
        let (mut server, config) = relay::tests::server();
        let (room, link) = signalling::tests::room().await;
        let band = band(link.clone());
        let address = |hash: &str| {
            let RelayAddress { port, token, .. } = &config.address;
            json!({"port": port, "token": token, "certificate_hashes": [hash]})
        };
        let until = async |is_so: fn(&BotsSummary) -> bool| {
            while !is_so(&band.summary()) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            band.summary()
        };
        let serving = async {
            let (mut socket, _) = signalling::tests::accept(&room).await;
            let mut welcome = signalling::tests::welcome(false);
            welcome["relay"] = address(&"0".repeat(64));
            let welcome = Message::text(welcome.to_string());
            socket.send(welcome).await.expect("it is there");
            let summary = until(|summary| summary.trouble.is_some()).await;
            let why = summary.trouble.expect("trouble");
            assert!(why.contains("does not answer on UDP"), "{why}");
            assert_eq!((summary.bots, summary.seconds), (0, 0.0));
            let right = address(&config.address.certificate_hashes[0]);
            let right = Message::text(json!({"type": "relay", "relay": right}).to_string());
            socket.send(right).await.expect("it is there");
            let _session = relay::tests::accept(&mut server).await;
            let summary = until(|summary| summary.seconds > 0.0).await;
            assert_eq!((summary.bots, summary.trouble), (1, None));
        };
        attended(&band, link, serving).await;
    }

    #[tokio::test]
    async fn a_bot_whose_server_has_an_address_of_the_other_family_now_is_in_again() {
        let now = Ipv6Addr::LOCALHOST;
        let Ok(room) = TcpListener::bind((now, 0)).await else {
            // This machine has one family only.
            return;
        };
        let port = room.local_addr().expect("bound").port();
        let link = format!("http://[{now}]:{port}/r/abcdefghijklmnop").parse();
        let link: RoomLink = link.expect("a link");
        let (mut server, config) = relay::tests::server_at(now.into());
        let band = band(link.clone());
        let serving = async {
            let before = RelayConfig {
                server: Ipv4Addr::LOCALHOST.into(),
                ..config.clone()
            };
            let socket = band.endpoint(before.server).expect("a socket");
            let (events, _told) = mpsc::channel(16);
            let opened = Relay::open(&socket, &before, Listen::default(), events);
            *band.bots[0].relay.borrow_mut() = Some(opened.expect("a relay"));
            let (mut socket, _) = signalling::tests::accept(&room).await;
            let mut welcome = signalling::tests::welcome(false);
            let RelayAddress {
                port,
                token,
                certificate_hashes,
            } = &config.address;
            welcome["relay"] =
                json!({"port": port, "token": token, "certificate_hashes": certificate_hashes});
            welcome["resumed"] = json!(true);
            let welcome = Message::text(welcome.to_string());
            socket.send(welcome).await.expect("it is there");
            let _session = relay::tests::accept(&mut server).await;
            while band.summary().bots == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        attended(&band, link, serving).await;
    }

    #[tokio::test]
    async fn a_bot_is_in_once_it_has_a_session_if_need_be_by_a_newer_certificate() {
        let (mut server, relay) = relay::tests::server();
        let link = "http://localhost/r/abcdefghijklmnop".parse();
        let band = band(link.expect("a link"));
        let bot = &band.bots[0];
        let coming = async {
            let socket = relay::endpoint(relay.server).expect("a socket");
            let mut old = relay.clone();
            old.address.certificate_hashes = vec!["0".repeat(64)];
            let (events, _told) = mpsc::channel(16);
            let opened = Relay::open(&socket, &old, Listen::default(), events);
            *bot.relay.borrow_mut() = Some(opened.expect("a relay"));
            assert_eq!(band.summary().bots, 0);
            band.update_relay(bot, Some(relay.address), &relay.host, relay.server);
            let _session = relay::tests::accept(&mut server).await;
            while band.summary().bots == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let coming = timeout(Duration::from_secs(30), coming);
        let came = LocalSet::new().run_until(coming).await;
        came.expect("it is in");
    }
}
