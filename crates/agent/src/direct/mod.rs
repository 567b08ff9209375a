//! The way straight to a peer: WebRTC data channels as lanes, to browsers and to other native participants.
//! `docs/protocol.md`, "Lanes" and "Between two pages".
//!
//! Each lane is a task that owns its peer connection and its sockets, and asks the room's STUN and TURN servers from them
//! (`gather`). What has failed, or is silent, is made anew: no ICE restart is offered,
//! though a page's is answered.

mod connection;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use antiphon_opus::outgoing::Sent;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::backlog::Backlog;
use crate::clock::now_ns;
use crate::gather::{self, Server};
use crate::signalling::IceServer;
use connection::{Input, Shared, Task};

/// Most lanes of a pair.
pub const MAX_LANES: usize = 16;
/// What a lane may hold that is not acknowledged yet, in bytes; what comes beyond it is dropped.
const MAX_OUTSTANDING_BYTES: usize = 128 * 1_024;
/// A lane whose oldest datagram has waited for longer is no use: what would queue behind it is better dropped. As in the page.
pub(crate) const MAX_WAIT_NS: u64 = 100_000_000;
/// A wait that says that the path is too slow.
const CROWDED_NS: u64 = 25_000_000;
/// Inputs that may wait for a lane's task.
const INBOX: usize = 512;
/// Negotiations that a peer may ask for, each of which may make a peer connection: so many at once, and one in so long, ns, after
/// that. All lanes four times are within it; more would hold up the sound of others, which the same thread carries.
const MAX_NEGOTIATIONS: u64 = 4 * MAX_LANES as u64;
const NEGOTIATION_NS: u64 = 500_000_000;
/// So long after nothing more was sent on a lane it is closed: what the peer had sent before it heard of that has come, as far as it would be
/// played. As in the page.
const RETIRED_NS: u64 = 1_000_000_000;
/// A lane by which nothing came while so many probes were sent is silent: the peer sends as many. ICE takes half a minute to find out.
const SILENT_PROBES: u32 = 6;
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(16);
/// The same where it is offered anew each time: browsers make so many connections, and keep closed ones for a while.
const LAST_ANEW: Duration = Duration::from_secs(240);
/// Failures of a lane after which its peer is not asked sooner for another.
const QUICK_FAILURES: u32 = 2;

/// What lanes tell.
#[derive(Debug)]
pub enum DirectEvent {
    /// A datagram came by a lane.
    Datagram {
        /// The peer's id.
        peer: Rc<str>,
        /// The lane's number.
        lane: usize,
        /// The bytes.
        bytes: Bytes,
    },
    /// To be sent by signalling.
    Signal {
        /// The peer's id.
        peer: Rc<str>,
        /// As in the protocol.
        data: Value,
    },
    /// A lane ended.
    Closed {
        /// The peer's id.
        peer: Rc<str>,
        /// The lane's number.
        lane: usize,
        /// Which of its peer connections.
        epoch: u64,
    },
    /// It is time to make a lane again.
    Retry {
        /// The peer's id.
        peer: Rc<str>,
        /// The lane's number.
        lane: usize,
        /// Which of its peer connections failed.
        epoch: u64,
    },
    /// What a user may want to know.
    Notice(String),
}

#[derive(Debug)]
struct Lane {
    epoch: u64,
    failures: u32,
    /// The peer's answer to our offer has come.
    is_answered: bool,
    inbox: mpsc::Sender<Input>,
    shared: Rc<Shared>,
    task: tokio::task::JoinHandle<()>,
    /// Offered in place of this one, which is silent, until the peer answers: it has left this then, which may come back by itself before.
    successor: Option<Box<Lane>>,
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The lanes to one peer. They all end with this.
#[derive(Debug)]
pub struct Direct {
    peer: Rc<str>,
    /// One side makes all offers, so that they never cross.
    offers: bool,
    wanted: usize,
    wanted_by_peer: usize,
    lanes: BTreeMap<usize, Lane>,
    /// Lanes on which nothing more is sent, and until when they are kept, ns of the local clock.
    retired: Vec<(u64, Lane)>,
    /// The greatest of any lane so far.
    last_epoch: u64,
    turn: usize,
    /// Until then the peer's negotiations so far have used up what it may ask for in the long run, ns of the local clock.
    negotiated_ns: u64,
    servers: Rc<[Server]>,
    /// Candidates are the relayed ones only.
    is_relayed: bool,
    events: mpsc::Sender<DirectEvent>,
    /// Datagrams that no lane took though one was open.
    pub dropped: u64,
    /// Whether the peer wants our audio this way, by its own word.
    pub is_wanted: bool,
}

impl Lane {
    /// Whether it is offered anew when the peer asks. Where there is no way each one fails, and the peer asks each time; and an offer
    /// that is not answered yet has crossed it.
    fn may_restart(&self) -> bool {
        let is_in_vain = !self.shared.is_open.get() && self.failures > QUICK_FAILURES;
        !is_in_vain && self.successor.is_none()
    }
}

impl Direct {
    /// Begins to connect, within a `LocalSet`. `lanes`: how many this end wishes, 1 to [`MAX_LANES`]; `servers`: for candidates
    /// beyond this machine's own addresses.
    pub fn new(
        own_id: &str,
        peer: &str,
        lanes: usize,
        servers: &[IceServer],
        events: mpsc::Sender<DirectEvent>,
    ) -> Self {
        Self::begin(own_id, peer, lanes, servers, false, events)
    }

    fn begin(
        own_id: &str,
        peer: &str,
        lanes: usize,
        servers: &[IceServer],
        is_relayed: bool,
        events: mpsc::Sender<DirectEvent>,
    ) -> Self {
        let mut direct = Self {
            peer: peer.into(),
            offers: own_id > peer,
            wanted: lanes.clamp(1, MAX_LANES),
            wanted_by_peer: 1,
            lanes: BTreeMap::new(),
            retired: Vec::new(),
            last_epoch: 0,
            turn: 0,
            negotiated_ns: 0,
            servers: gather::servers(servers).into(),
            is_relayed,
            events,
            dropped: 0,
            is_wanted: true,
        };
        direct.meet(now_ns());
        direct
    }

    /// Lanes made from now on ask these: credentials for TURN get old.
    pub fn set_servers(&mut self, servers: &[IceServer]) {
        self.servers = gather::servers(servers).into();
    }

    /// The peer may have forgotten this one: what it said is forgotten here too, and lanes that are not `alive` are made anew.
    pub fn meet_again(&mut self, alive: bool, now_ns: u64) {
        self.is_wanted = true;
        self.wanted_by_peer = 1;
        if !alive {
            self.lanes.clear();
        }
        self.say_again(alive, now_ns);
    }

    /// What this one said of late may not have reached the peer, which has forgotten nothing.
    pub fn say_again(&mut self, alive: bool, now_ns: u64) {
        if self.offers && !alive {
            self.lanes.clear();
        }
        if !self.offers || !alive {
            self.meet(now_ns);
        }
    }

    /// This end's wish, 1 to [`MAX_LANES`]; the greater of both ends' is granted.
    pub fn want_lanes(&mut self, count: usize, now_ns: u64) {
        self.wanted = count.clamp(1, MAX_LANES);
        self.meet(now_ns);
    }

    /// Makes the lanes, or says how many this end wishes: the other does not know.
    fn meet(&mut self, now_ns: u64) {
        if self.offers {
            self.adjust(now_ns);
        } else {
            self.signal(json!({"kind": "lanes", "count": self.wanted}));
        }
    }

    /// How many lanes this end wishes.
    pub fn wanted_lanes(&self) -> usize {
        self.wanted
    }

    fn adjust(&mut self, now_ns: u64) {
        if !self.offers {
            return;
        }
        let count = self.wanted.max(self.wanted_by_peer);
        for number in 0..count {
            if !self.lanes.contains_key(&number) && self.may_negotiate(now_ns) {
                self.offer_anew(number);
            }
        }
        for number in self.spare_lanes(count) {
            self.signal(json!({"kind": "close", "lane": number}));
            self.retire(number, now_ns);
        }
    }

    /// The lanes that are too many, where there shall be `count`. One that is open stays in place of one with a lower number that is not: it may
    /// be all that carries the sound.
    fn spare_lanes(&self, count: usize) -> Vec<usize> {
        let mut open = 0;
        let is_spare = |(&number, lane): (&usize, &Lane)| {
            let is_open = lane.shared.is_open.get();
            let is_spare = number >= count && (!is_open || open >= count);
            open += usize::from(is_open && !is_spare);
            is_spare.then_some(number)
        };
        self.lanes.iter().filter_map(is_spare).collect()
    }

    /// Nothing more is sent on that lane. The other end goes on sending on it until it hears of it, and that shall still come.
    fn retire(&mut self, number: usize, now_ns: u64) {
        if let Some(mut lane) = self.lanes.remove(&number)
            && lane.shared.is_open.get()
        {
            lane.successor = None;
            self.retired.push((now_ns + RETIRED_NS, lane));
        }
    }

    /// Whether the peer may have one more negotiation now, which is counted then.
    fn may_negotiate(&mut self, now_ns: u64) -> bool {
        let until_ns = self.negotiated_ns.max(now_ns) + NEGOTIATION_NS;
        let may = until_ns - now_ns <= MAX_NEGOTIATIONS * NEGOTIATION_NS;
        if may {
            self.negotiated_ns = until_ns;
        }
        may
    }

    fn signal(&self, data: Value) {
        let peer = self.peer.clone();
        // A full queue: the peer hears it at the next attempt.
        let _ = self.events.try_send(DirectEvent::Signal { peer, data });
    }

    fn offer_anew(&mut self, number: usize) {
        let lane = self.offer(number);
        self.lanes.insert(number, lane);
    }

    fn offer(&mut self, number: usize) -> Lane {
        let failures = self.lanes.get(&number).map_or(0, |old| old.failures);
        // Greater than of any lane before, of one that this program has forgotten, too; and the clock may have been put back.
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_ms = since_1970.map_or(0, |it| it.as_millis() as u64);
        self.make(number, now_ms.max(self.last_epoch + 1), failures)
    }

    fn make(&mut self, number: usize, epoch: u64, failures: u32) -> Lane {
        self.last_epoch = self.last_epoch.max(epoch);
        let (inbox, inputs) = mpsc::channel(INBOX);
        let shared = Rc::new(Shared::default());
        let task = Task {
            peer: self.peer.clone(),
            number,
            epoch,
            offers: self.offers,
            servers: self.servers.clone(),
            is_relayed: self.is_relayed,
            shared: shared.clone(),
            inputs,
            events: self.events.clone(),
        };
        let task = tokio::task::spawn_local(task.run(inbox.clone()));
        Lane {
            epoch,
            failures,
            is_answered: false,
            inbox,
            shared,
            task,
            successor: None,
        }
    }

    /// What the peer said of its lanes. Nonsense is passed over, and so is what comes too often.
    pub fn handle_signal(&mut self, data: &Value, now_ns: u64) {
        let number = |name| data.get(name).and_then(Value::as_u64);
        let lane = number("lane")
            .and_then(|lane| usize::try_from(lane).ok())
            .filter(|&lane| lane < MAX_LANES);
        match (data.get("kind").and_then(Value::as_str), lane) {
            (Some(kind @ ("description" | "candidate")), Some(lane)) => {
                let Some(epoch) = number("epoch") else { return };
                let is_offer = kind == "description" && !self.offers;
                if is_offer && !self.may_negotiate(now_ns) {
                    return;
                }
                let is_newer = self.lanes.get(&lane).is_none_or(|old| epoch > old.epoch);
                // Only an offer opens a lane: a candidate may be a straggler of one that was closed.
                if is_offer && is_newer {
                    let made = self.make(lane, epoch, 0);
                    self.lanes.insert(lane, made);
                } else if kind == "description"
                    && let Some(successor) = self.take_successor(lane, epoch)
                {
                    self.lanes.insert(lane, successor);
                }
                let lane = match self.lanes.get_mut(&lane) {
                    Some(lane) if lane.epoch == epoch => lane,
                    Some(Lane {
                        successor: Some(successor),
                        ..
                    }) if successor.epoch == epoch => successor,
                    _ => return,
                };
                // An offer of ours was counted when it was made, and has one answer.
                if kind == "description"
                    && !is_offer
                    && std::mem::replace(&mut lane.is_answered, true)
                {
                    return;
                }
                let input = match data.get(kind) {
                    Some(description) if kind == "description" => {
                        Input::Description(description.clone())
                    }
                    Some(candidate) => Input::Candidate(candidate.clone()),
                    None => return,
                };
                let _ = lane.inbox.try_send(input);
            }
            (Some("restart"), Some(lane))
                if self.offers
                    && self.lanes.get(&lane).is_some_and(Lane::may_restart)
                    && self.may_negotiate(now_ns) =>
            {
                self.offer_anew(lane);
            }
            (Some("close"), Some(lane)) if !self.offers => self.retire(lane, now_ns),
            (Some("lanes"), _) if self.offers => {
                let count = number("count").unwrap_or(1).clamp(1, MAX_LANES as u64) as usize;
                self.wanted_by_peer = count;
                self.adjust(now_ns);
            }
            (Some("direct"), _) => {
                self.is_wanted = data.get("wanted") != Some(&Value::Bool(false));
            }
            _ => {}
        }
    }

    fn take_successor(&mut self, number: usize, epoch: u64) -> Option<Lane> {
        let successor = &mut self.lanes.get_mut(&number)?.successor;
        Some(*successor.take_if(|it| it.epoch == epoch)?)
    }

    /// A lane's task ended: it is tried again later, and later still each time.
    pub fn handle_closed(&mut self, number: usize, epoch: u64) {
        // Where the old lane is as silent as before, there will be another.
        self.take_successor(number, epoch);
        let Some(lane) = self.lanes.get_mut(&number) else {
            return;
        };
        if lane.epoch != epoch {
            return;
        }
        if lane.shared.is_open.replace(false) {
            lane.failures = 0;
        }
        lane.failures += 1;
        let failures = lane.failures;
        let wait = self.retry_wait(failures);
        let (events, peer) = (self.events.clone(), self.peer.clone());
        tokio::task::spawn_local(async move {
            tokio::time::sleep(wait).await;
            let retry = DirectEvent::Retry {
                peer,
                lane: number,
                epoch,
            };
            let _ = events.send(retry).await;
        });
    }

    fn retry_wait(&self, failures: u32) -> Duration {
        let most = if self.offers { LAST_ANEW } else { LAST_RETRY };
        FIRST_RETRY
            .saturating_mul(1 << (failures - 1).min(8))
            .min(most)
    }

    /// It is time to try again.
    pub fn handle_retry(&mut self, number: usize, epoch: u64) {
        if self
            .lanes
            .get(&number)
            .is_none_or(|lane| lane.epoch != epoch)
        {
            return;
        }
        if self.offers {
            self.offer_anew(number);
        } else {
            self.signal(json!({"kind": "restart", "lane": number}));
            self.handle_closed(number, epoch);
        }
    }

    /// Numbers of the open lanes.
    pub fn open_lanes(&self) -> Vec<usize> {
        let open = |(&number, lane): (&usize, &Lane)| lane.shared.is_open.get().then_some(number);
        self.lanes.iter().filter_map(open).collect()
    }

    /// Whether any lane is open.
    pub fn is_open(&self) -> bool {
        self.lanes.values().any(|lane| lane.shared.is_open.get())
    }

    /// Sends a datagram on the lane with the least backlog, in turns among equals. `None` if it was dropped, or no lane is open.
    pub fn send(&mut self, datagram: Bytes) -> Option<Sent> {
        if !self.is_open() {
            return None;
        }
        self.turn = self.turn.wrapping_add(1);
        let sent = self
            .least_backlog(|_, backlog| {
                backlog.wait_ns() <= MAX_WAIT_NS && backlog.outstanding() <= MAX_OUTSTANDING_BYTES
            })
            .and_then(|(lane, of)| {
                let is_crowded = of.shared.backlog.borrow().wait_ns() > CROWDED_NS;
                (of.inbox.try_send(Input::Send(datagram)).is_ok())
                    .then_some(Sent { lane, is_crowded })
            });
        if sent.is_none() {
            self.dropped += 1;
        }
        sent
    }

    /// Sends a datagram once more, on another lane than `first`, if there is one on which nothing waits.
    pub fn send_copy(&self, first: usize, datagram: Bytes) -> bool {
        let other =
            self.least_backlog(|lane, backlog| lane != first && backlog.wait_ns() <= CROWDED_NS);
        other.is_some_and(|(_, lane)| lane.inbox.try_send(Input::Send(datagram)).is_ok())
    }

    /// Of the open lanes that `fit`, the one with the least backlog, in turns among equals.
    fn least_backlog(&self, fit: impl Fn(usize, &Backlog) -> bool) -> Option<(usize, &Lane)> {
        let count = self.lanes.len();
        let in_turn = (self.lanes.iter().cycle()).skip(self.turn % count.max(1));
        in_turn
            .take(count)
            .map(|(&number, lane)| (number, lane))
            .filter(|(number, lane)| {
                lane.shared.is_open.get() && fit(*number, &lane.shared.backlog.borrow())
            })
            .min_by_key(|(_, lane)| lane.shared.backlog.borrow().outstanding())
    }

    /// Finds out how long datagrams wait on the lanes. To be called by a timer, never while sending.
    pub fn take_stock(&self, now_ns: u64) {
        for lane in self.lanes.values() {
            lane.shared.backlog.borrow_mut().take_stock(now_ns);
        }
    }

    /// Sends a probe on each open lane, sees to those that are silent, makes those that were too many at once before, and closes those that have
    /// been retired. To be called twice a second.
    pub fn probe(&mut self, probe: &Bytes, now_ns: u64) {
        self.retired.retain(|&(until_ns, _)| now_ns < until_ns);
        self.adjust(now_ns);
        for number in self.open_lanes() {
            let lane = &self.lanes[&number];
            let has_successor = lane.successor.is_some();
            let silent = lane.shared.unheard.get();
            lane.shared.unheard.set(silent + 1);
            self.send_on(number, probe.clone());
            if self.offers {
                if silent >= SILENT_PROBES && !has_successor && self.may_negotiate(now_ns) {
                    let successor = Box::new(self.offer(number));
                    let lane = self.lanes.get_mut(&number).expect("it is open");
                    lane.successor = Some(successor);
                }
            } else if silent > SILENT_PROBES && silent.is_power_of_two() {
                // Later than the other end would offer it anew by itself, and later still each time.
                self.signal(json!({"kind": "restart", "lane": number}));
            }
        }
    }

    /// Sends a datagram on that lane: a probe, or its reply.
    pub fn send_on(&self, number: usize, datagram: Bytes) {
        if let Some(lane) = self.lanes.get(&number)
            && lane.shared.is_open.get()
        {
            let _ = lane.inbox.try_send(Input::Send(datagram));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::path::Path;
    use std::process::{Child, Command, Stdio};
    use std::time::Instant;

    use antiphon_core::wire::MAX_DATAGRAM_BYTES;
    use tokio::net::UdpSocket;
    use tokio::task::LocalSet;

    use super::connection::{OPEN_TIMEOUT, new_connection};
    use super::*;

    /// Of lane 0.
    fn epoch(direct: &Direct) -> Option<u64> {
        direct.lanes.get(&0).map(|lane| lane.epoch)
    }

    /// Makes lane 0.
    fn make(direct: &mut Direct, epoch: u64) {
        let lane = direct.make(0, epoch, 0);
        direct.lanes.insert(0, lane);
    }

    /// As the peer answers the offer of lane 0.
    fn answer(epoch: u64) -> Value {
        json!({"kind": "description", "lane": 0, "epoch": epoch,
            "description": {"type": "answer", "sdp": ""}})
    }

    /// Says `data` with an epoch that was not before, many times: how many peer connections are made for lane 0.
    fn insist(direct: &mut Direct, now_ns: u64, data: impl Fn(u64) -> Value) -> u64 {
        let mut made = 0;
        for _ in 0..2_000 {
            let before = epoch(direct);
            direct.handle_signal(&data(before.map_or(0, |it| it + 1)), now_ns);
            made += u64::from(epoch(direct) != before);
        }
        made
    }

    #[tokio::test]
    async fn a_lane_has_its_time_to_open_anew_with_each_restart_of_ice() {
        let offering = async {
            let (mut connection, _) = new_connection().expect("a connection");
            let offer = connection.create_offer(None).expect("an offer");
            let offer = |ufrag: &str| {
                let lines = offer.sdp.lines().map(|line| match line.split_once(':') {
                    Some(("a=ice-ufrag", _)) => format!("a=ice-ufrag:{ufrag}\r\n"),
                    _ => format!("{line}\r\n"),
                });
                json!({"kind": "description", "lane": 0, "epoch": 1,
                    "description": {"type": "offer", "sdp": lines.collect::<String>()}})
            };
            let mut end = End::new("a", "b", &[], false);
            let begun = Instant::now();
            end.direct.handle_signal(&offer("first"), now_ns());
            tokio::time::sleep(Duration::from_secs(3)).await;
            end.direct.handle_signal(&offer("second"), now_ns());
            let mut answers = 0;
            loop {
                match end.told.recv().await.expect("it goes on") {
                    DirectEvent::Signal { data, .. } => {
                        answers += usize::from(data["kind"] == "description");
                    }
                    DirectEvent::Closed { .. } => break,
                    event => panic!("{event:?}"),
                }
            }
            assert_eq!(answers, 2);
            assert!(begun.elapsed() >= OPEN_TIMEOUT + Duration::from_secs(3));
        };
        let offering = tokio::time::timeout(Duration::from_secs(60), offering);
        let offered = LocalSet::new().run_until(offering).await;
        offered.expect("it gives up in the end");
    }

    #[tokio::test]
    async fn a_silent_lane_is_made_anew_within_what_may_be_negotiated() {
        // None of them is run.
        let probing = async {
            let (events, mut told) = mpsc::channel(64);
            let (now, probe) = (now_ns(), Bytes::new());
            let open = |direct: &Direct| direct.lanes[&0].shared.is_open.set(true);
            let offered = |direct: &Direct| direct.lanes[&0].successor.as_ref().map(|it| it.epoch);
            let silence = |direct: &mut Direct, now| {
                open(direct);
                direct.lanes[&0].shared.unheard.set(0);
                for _ in 0..=SILENT_PROBES {
                    assert_eq!(offered(direct), None);
                    direct.probe(&probe, now);
                }
                offered(direct)
            };
            let mut offerer = Direct::new("b", "a", 1, &[], events.clone());
            let first = epoch(&offerer).expect("one");
            let second = silence(&mut offerer, now).expect("an offer");
            assert!(second > first);
            // Until it is answered, the old lane is what there is, and one offer is enough.
            for _ in 0..1_000 {
                offerer.probe(&probe, now);
                offerer.handle_signal(&json!({"kind": "restart", "lane": 0}), now);
            }
            assert_eq!(
                (epoch(&offerer), offered(&offerer)),
                (Some(first), Some(second))
            );
            offerer.handle_closed(0, second);
            assert_eq!((epoch(&offerer), offerer.is_open()), (Some(first), true));
            let third = silence(&mut offerer, now).expect("an offer");
            offerer.handle_signal(&answer(second), now);
            assert_eq!(epoch(&offerer), Some(first));
            let candidate =
                json!({"kind": "candidate", "lane": 0, "epoch": third, "candidate": null});
            offerer.handle_signal(&candidate, now);
            let successor = offerer.lanes[&0].successor.as_ref().expect("one");
            assert_eq!(successor.inbox.capacity(), INBOX - 1);
            offerer.handle_signal(&answer(third), now);
            assert_eq!((epoch(&offerer), offered(&offerer)), (Some(third), None));
            // One that is not open yet has its own time.
            for _ in 0..1_000 {
                offerer.probe(&probe, now);
            }
            assert_eq!((epoch(&offerer), offered(&offerer)), (Some(third), None));
            let mut made = 0;
            while let Some(next) = silence(&mut offerer, now) {
                offerer.handle_signal(&answer(next), now);
                assert_eq!(epoch(&offerer), Some(next));
                made += 1;
            }
            assert!(made > 0 && made < MAX_NEGOTIATIONS, "{made}");
            let later = now + NEGOTIATION_NS;
            assert!(silence(&mut offerer, later).is_some());

            let mut answerer = Direct::new("a", "b", 1, &[], events);
            make(&mut answerer, 1);
            open(&answerer);
            while told.try_recv().is_ok() {}
            let mut asked = Vec::new();
            for probes in 0..100 {
                answerer.probe(&probe, now);
                while let Ok(DirectEvent::Signal { data, .. }) = told.try_recv() {
                    assert_eq!(data, json!({"kind": "restart", "lane": 0}));
                    asked.push(probes);
                }
            }
            assert_eq!(asked, [8, 16, 32, 64]);
        };
        LocalSet::new().run_until(probing).await;
    }

    #[tokio::test]
    async fn a_lane_that_idles_stays_and_one_that_is_silent_at_either_end_is_made_anew() {
        let probing = async {
            let mut ends =
                [("b", "a"), ("a", "b")].map(|(own, peer)| End::new(own, peer, &[], false));
            let mut beat = tokio::time::interval(Duration::from_millis(50));
            // First neither is silent, then who offers, then who answers.
            for silent in [None, Some(0), Some(1)] {
                let before = epoch(&ends[0].direct);
                let mut beats = 0;
                while beats < 4 * SILENT_PROBES {
                    let is_anew = epoch(&ends[0].direct) > before;
                    assert!(silent.is_some() || !is_anew, "it only idles");
                    let [first, second] = &mut ends;
                    let (at, event) = tokio::select! {
                        event = first.told.recv() => (0, event.expect("it goes on")),
                        event = second.told.recv() => (1, event.expect("it goes on")),
                        _ = beat.tick() => {
                            // It is the lane's fault: another one is well.
                            for (at, end) in ends.iter_mut().enumerate() {
                                if is_anew || silent != Some(at) {
                                    end.direct.probe(&Bytes::from_static(b"probe"), now_ns());
                                }
                            }
                            let is_open = ends.iter().all(|end| end.direct.is_open());
                            beats += u32::from(is_open && (is_anew || silent.is_none()));
                            continue;
                        }
                    };
                    match event {
                        DirectEvent::Signal { data, .. } => {
                            ends[1 - at].direct.handle_signal(&data, now_ns());
                        }
                        DirectEvent::Datagram { .. } => {}
                        event => panic!("{event:?}"),
                    }
                }
            }
        };
        let probing = tokio::time::timeout(Duration::from_secs(20), probing);
        let probed = LocalSet::new().run_until(probing).await;
        probed.expect("before ICE finds out");
    }

    /// A TURN server on this machine. Ends with the test.
    struct Coturn {
        process: Child,
        address: SocketAddr,
    }

    impl Drop for Coturn {
        fn drop(&mut self) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }

    impl Coturn {
        /// With a certificate and its key, it is reached by TLS at the same port.
        async fn start(certified: Option<(&Path, &Path)>) -> Self {
            // Somebody else may have taken its port meanwhile.
            for _ in 0..5 {
                if let Some(coturn) = Self::try_start(certified).await {
                    return coturn;
                }
            }
            panic!("coturn does not answer");
        }

        async fn try_start(certified: Option<(&Path, &Path)>) -> Option<Self> {
            let free = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
            let address = free.local_addr().expect("bound");
            drop(free);
            let mut command = Command::new("turnserver");
            if let Some((certificate, key)) = certified {
                command
                    .arg("--cert")
                    .arg(certificate)
                    .arg("--pkey")
                    .arg(key);
                command.args(["--tls-listening-port", &address.port().to_string()]);
            } else {
                command.arg("--no-tls");
            }
            let process = command
                .args(["-n", "--no-cli", "--no-dtls", "--no-tcp-relay"])
                .args([
                    "--lt-cred-mech",
                    "--realm",
                    "test",
                    "--user",
                    "ann:pass,word",
                ])
                .args(["--listening-ip", "127.0.0.1", "--relay-ip", "127.0.0.1"])
                .args([
                    "--allow-loopback-peers",
                    "--log-file",
                    "stdout",
                    "--simple-log",
                ])
                .args(["--pidfile", "/dev/null", "--db", "/dev/null"])
                .args(["--listening-port", &address.port().to_string()])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("coturn is installed: scripts/install-test-packages");
            let coturn = Self { process, address };
            let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
            let binding = [
                0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
            ];
            let mut bytes = [0; 512];
            for _ in 0..200 {
                let _ = socket.send_to(&binding, address).await;
                let answer =
                    tokio::time::timeout(Duration::from_millis(50), socket.recv(&mut bytes));
                if matches!(answer.await, Ok(Ok(_))) {
                    return Some(coturn);
                }
            }
            None
        }

        fn turn(&self, credential: &str, transport: &str) -> IceServer {
            let url = match transport {
                "tls" => format!("turns:{}", self.address),
                _ => format!("turn:{}?transport={transport}", self.address),
            };
            let server = json!({"urls": [url],
                "username": "ann", "credential": credential});
            serde_json::from_value(server).expect("a server")
        }
    }

    fn stun(address: SocketAddr) -> IceServer {
        serde_json::from_value(json!({"urls": format!("stun:{address}")})).expect("a server")
    }

    /// What is said of candidates, in descriptions and alone.
    fn candidates(data: &Value) -> Vec<String> {
        let text = match data["kind"].as_str() {
            Some("description") => data["description"]["sdp"].as_str(),
            _ => data["candidate"]["candidate"].as_str(),
        };
        let lines = text.unwrap_or_default().lines();
        let candidates = lines.filter(|line| line.contains("candidate:"));
        candidates.map(str::to_owned).collect()
    }

    /// One end of a pair, and what its lanes told, in order.
    struct End {
        direct: Direct,
        told: mpsc::Receiver<DirectEvent>,
    }

    impl End {
        fn new(own: &str, peer: &str, servers: &[IceServer], is_relayed: bool) -> Self {
            let (events, told) = mpsc::channel(64);
            let direct = Direct::begin(own, peer, 1, servers, is_relayed, events);
            Self { direct, told }
        }
    }

    #[tokio::test]
    async fn sound_goes_both_ways_through_a_turn_server_where_there_is_no_other_way() {
        goes_through_a_turn_server("udp", None).await;
    }

    #[tokio::test]
    async fn sound_goes_both_ways_through_a_turn_server_reached_by_tcp() {
        goes_through_a_turn_server("tcp", None).await;
    }

    #[tokio::test]
    async fn sound_goes_both_ways_through_a_turn_server_reached_by_tls() {
        const NAME: &str = "sound_goes_both_ways_through_a_turn_server_reached_by_tls";
        const KEY: &str = "TEST_KEY_FILE";
        // What a machine trusts is read from its environment: that of a process of its own.
        if let (Some(certificate), Some(key)) =
            (std::env::var_os("SSL_CERT_FILE"), std::env::var_os(KEY))
        {
            let certified = (certificate.as_ref(), key.as_ref());
            return goes_through_a_turn_server("tls", Some(certified)).await;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".into()]).expect("made");
        let file = |name: &str, text: String| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("written");
            path
        };
        let certificate = file("certificate.pem", made.cert.pem());
        let key = file("key.pem", made.signing_key.serialize_pem());
        let output = Command::new(std::env::current_exe().expect("this"))
            .args(["--exact", &format!("direct::tests::{NAME}")])
            .env("SSL_CERT_FILE", certificate)
            .env(KEY, key)
            .output()
            .expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}"
        );
    }

    async fn goes_through_a_turn_server(transport: &str, certified: Option<(&Path, &Path)>) {
        // More at once than a lane takes does not stop it for good.
        const BURST: u8 = 9;
        let talking = async {
            let coturn = Coturn::start(certified).await;
            let servers = [stun(coturn.address), coturn.turn("pass,word", transport)];
            let mut ends =
                [("b", "a"), ("a", "b")].map(|(own, peer)| End::new(own, peer, &servers, true));
            let (mut said, mut heard) = (Vec::new(), [0; 2]);
            let mut beat = tokio::time::interval(Duration::from_millis(20));
            while heard.iter().any(|&count| count < 20) {
                let [first, second] = &mut ends;
                let (at, event) = tokio::select! {
                    event = first.told.recv() => (0, event.expect("it goes on")),
                    event = second.told.recv() => (1, event.expect("it goes on")),
                    _ = beat.tick() => {
                        for (at, end) in ends.iter_mut().enumerate() {
                            let burst = Bytes::from(vec![BURST; MAX_DATAGRAM_BYTES]);
                            while end.direct.is_open() && end.direct.dropped == 0 {
                                end.direct.send(burst.clone());
                            }
                            end.direct.send(Bytes::from(vec![at as u8; MAX_DATAGRAM_BYTES]));
                        }
                        continue;
                    }
                };
                match event {
                    DirectEvent::Signal { data, .. } => {
                        said.extend(candidates(&data));
                        ends[1 - at].direct.handle_signal(&data, now_ns());
                    }
                    DirectEvent::Datagram { bytes, .. } if bytes[0] == BURST => {}
                    DirectEvent::Datagram { bytes, .. } => {
                        assert_eq!(bytes, vec![1 - at as u8; MAX_DATAGRAM_BYTES]);
                        heard[at] += 1;
                    }
                    DirectEvent::Closed { lane, epoch, .. } => {
                        ends[at].direct.handle_closed(lane, epoch);
                    }
                    DirectEvent::Retry { lane, epoch, .. } => {
                        ends[at].direct.handle_retry(lane, epoch);
                    }
                    DirectEvent::Notice(why) => panic!("{why}"),
                }
            }
            assert!(ends.iter().all(|end| end.direct.dropped > 0), "no burst");
            assert!(said.len() >= 2, "{said:?}");
            for candidate in said {
                assert!(candidate.contains(" 127.0.0.1 "), "{candidate}");
                assert!(candidate.contains(" typ relay "), "{candidate}");
            }
            if transport != "udp" {
                drop(coturn);
                for end in &mut ends {
                    is_closed_with_its_stream(&mut end.told).await;
                }
            }
        };
        let talking = tokio::time::timeout(Duration::from_secs(60), talking);
        let talked = LocalSet::new().run_until(talking).await;
        talked.expect("sound both ways");
    }

    /// ICE would need half a minute, and would not say why.
    async fn is_closed_with_its_stream(told: &mut mpsc::Receiver<DirectEvent>) {
        let mut why = None;
        let closing = async {
            loop {
                match told.recv().await.expect("it goes on") {
                    DirectEvent::Notice(notice) => why = Some(notice),
                    DirectEvent::Closed { .. } => break,
                    _ => {}
                }
            }
        };
        let closed = tokio::time::timeout(Duration::from_secs(15), closing).await;
        closed.expect("before ICE finds out");
        let why = why.expect("a notice");
        let ended = "the server 127.0.0.1 has ended the connection";
        assert!(why.starts_with(ended), "{why}");
    }

    #[tokio::test]
    async fn new_lanes_ask_the_newest_servers() {
        let asking = async {
            let coturn = Coturn::start(None).await;
            let old = [coturn.turn("old", "udp")];
            let mut end = End::new("b", "a", &old, true);
            loop {
                if let DirectEvent::Notice(why) = end.told.recv().await.expect("it goes on") {
                    assert_eq!(why, "the server 127.0.0.1 refuses, error 401");
                    break;
                }
            }
            end.direct.set_servers(&[coturn.turn("pass,word", "udp")]);
            let last = epoch(&end.direct).expect("one");
            end.direct.handle_retry(0, last);
            loop {
                match end.told.recv().await.expect("it goes on") {
                    DirectEvent::Signal { data, .. } if !candidates(&data).is_empty() => break,
                    DirectEvent::Signal { .. } => {}
                    event => panic!("{event:?}"),
                }
            }
        };
        let asking = tokio::time::timeout(Duration::from_secs(60), asking);
        let asked = LocalSet::new().run_until(asking).await;
        asked.expect("a relayed candidate");
    }

    #[tokio::test]
    async fn a_nat_is_seen_and_what_a_server_refuses_is_said() {
        let talking = async {
            let coturn = Coturn::start(None).await;
            // A NAT: what comes to its inner side leaves by its outer side.
            let inner = Rc::new(UdpSocket::bind("127.0.0.1:0").await.expect("a port"));
            let outer = Rc::new(UdpSocket::bind("127.0.0.1:0").await.expect("a port"));
            let (inside, outside) = (inner.local_addr(), outer.local_addr().expect("bound"));
            let server = coturn.address;
            let _nat = tokio::task::spawn_local(async move {
                let (mut client, mut bytes, mut answer) = (None, [0; 512], [0; 512]);
                loop {
                    tokio::select! {
                        Ok((count, from)) = inner.recv_from(&mut bytes) => {
                            client = Some(from);
                            let _ = outer.send_to(&bytes[..count], server).await;
                        }
                        Ok(count) = outer.recv(&mut answer) => if let Some(client) = client {
                            let _ = inner.send_to(&answer[..count], client).await;
                        },
                    }
                }
            });
            let nobody = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
            let silent = stun(nobody.local_addr().expect("bound"));
            let inside = stun(inside.expect("bound"));
            let servers = [silent, coturn.turn("wrong", "udp"), inside.clone(), inside];
            let mut end = End::new("b", "a", &servers, false);
            let first = epoch(&end.direct);
            let (mut mapped, mut notice) = (None, None);
            while mapped.is_none() || notice.is_none() {
                match end.told.recv().await.expect("it goes on") {
                    DirectEvent::Signal { data, .. } => {
                        assert_eq!(data["epoch"].as_u64(), first, "before its lane gives up");
                        let reflexive = candidates(&data)
                            .into_iter()
                            .find(|it| it.contains(" typ srflx "));
                        mapped = mapped.or(reflexive);
                    }
                    DirectEvent::Notice(why) => notice = Some(why),
                    event => panic!("{event:?}"),
                }
            }
            let mapped = mapped.expect("one");
            let address = format!(" {} {} typ srflx ", outside.ip(), outside.port());
            assert!(mapped.contains(&address), "{mapped}, not{address}");
            assert_eq!(
                notice.as_deref(),
                Some("the server 127.0.0.1 refuses, error 401")
            );
        };
        let talking = tokio::time::timeout(Duration::from_secs(60), talking);
        let talked = LocalSet::new().run_until(talking).await;
        talked.expect("an address and a refusal");
    }

    #[tokio::test]
    async fn a_peer_has_so_many_connections_made_and_no_more() {
        // None of them is run: that they are made is what costs.
        let asking = async {
            let (events, _told) = mpsc::channel(1);
            let offer = |epoch| {
                json!({"kind": "description", "lane": 0, "epoch": epoch,
                "description": {"type": "offer", "sdp": ""}})
            };
            let mut answerer = Direct::new("a", "b", 1, &[], events.clone());
            let now = now_ns();
            assert_eq!(insist(&mut answerer, now, offer), MAX_NEGOTIATIONS);
            assert_eq!(insist(&mut answerer, now + NEGOTIATION_NS - 1, offer), 0);
            assert_eq!(insist(&mut answerer, now + 3 * NEGOTIATION_NS, offer), 3);
            let restart = |_| json!({"kind": "restart", "lane": 0});
            let mut offerer = Direct::new("b", "a", 1, &[], events);
            let made = insist(&mut offerer, now, restart);
            assert!(made < MAX_NEGOTIATIONS, "{made}, and the one at first");
            let more = json!({"kind": "lanes", "count": MAX_LANES});
            offerer.handle_signal(&more, now);
            assert_eq!(offerer.lanes.len(), 1);
            // Its own attempts come at their own pace.
            let last = epoch(&offerer).expect("one");
            offerer.handle_retry(0, last);
            assert!(epoch(&offerer) > Some(last));
        };
        LocalSet::new().run_until(asking).await;
    }

    #[tokio::test]
    async fn where_there_is_no_way_lanes_are_offered_ever_less_often() {
        // None of them is run.
        let failing = async {
            let (events, _told) = mpsc::channel(1);
            let mut offerer = Direct::new("b", "a", 1, &[], events);
            let hour = Duration::from_secs(3_600);
            let waits = (1..).map(|failures| offerer.retry_wait(failures) + OPEN_TIMEOUT);
            let mut passed = Duration::ZERO;
            let offers = waits.take_while(|&wait| {
                passed += wait;
                passed < hour
            });
            let offers = offers.count();
            assert!((10..40).contains(&offers), "{offers} an hour");
            let restart = json!({"kind": "restart", "lane": 0});
            let mut obeyed = 0;
            for _ in 0..100 {
                let before = epoch(&offerer).expect("one");
                offerer.handle_closed(0, before);
                offerer.handle_signal(&restart, now_ns());
                obeyed += u32::from(epoch(&offerer) > Some(before));
            }
            assert_eq!(obeyed, QUICK_FAILURES, "the peer asks as often as it likes");
            offerer.lanes[&0].shared.is_open.set(true);
            let before = epoch(&offerer);
            offerer.handle_signal(&restart, now_ns());
            assert!(epoch(&offerer) > before, "an open one is no such");
        };
        LocalSet::new().run_until(failing).await;
    }

    #[tokio::test]
    async fn all_lanes_are_made_again_if_not_at_once_then_later() {
        // None of them is run.
        let meeting = async {
            let (events, _told) = mpsc::channel(1);
            let mut offerer = Direct::new("b", "a", MAX_LANES, &[], events);
            let second = 1_000_000_000;
            let later = now_ns() + 5 * second;
            let mut flap = || {
                let epochs: Vec<_> = (offerer.lanes.iter())
                    .map(|(&lane, it)| (lane, it.epoch))
                    .collect();
                for (lane, epoch) in epochs {
                    let answer = json!({"kind": "description", "lane": lane, "epoch": epoch,
                        "description": {"type": "answer", "sdp": ""}});
                    for _ in 0..3 {
                        offerer.handle_signal(&answer, later);
                    }
                    let waiting = INBOX - offerer.lanes[&lane].inbox.capacity();
                    assert_eq!(waiting, 1, "one offer, one answer");
                }
                offerer.say_again(false, later);
                offerer.lanes.len()
            };
            assert_eq!([flap(), flap(), flap()], [MAX_LANES; 3]);
            assert!(flap() < MAX_LANES, "so many at once");
            offerer.probe(&Bytes::new(), later + 5 * second);
            assert_eq!(offerer.lanes.len(), MAX_LANES);
        };
        LocalSet::new().run_until(meeting).await;
    }

    #[tokio::test]
    async fn the_greater_wish_for_lanes_is_granted() {
        let wish = async {
            let [mut offering, mut other] =
                [("b", "a"), ("a", "b")].map(|(own, peer)| End::new(own, peer, &[], false));
            offering.direct.want_lanes(3, now_ns());
            assert_eq!(offering.direct.lanes.len(), 3);
            let mut wish = |offering: &mut End, count| {
                other.direct.want_lanes(count, now_ns());
                while let Ok(DirectEvent::Signal { data, .. }) = other.told.try_recv() {
                    offering.direct.handle_signal(&data, now_ns());
                }
                offering.direct.lanes.len()
            };
            assert_eq!(wish(&mut offering, 5), 5);
            offering.direct.want_lanes(1, now_ns());
            assert_eq!(offering.direct.lanes.len(), 5);
            assert_eq!(wish(&mut offering, 2), 2);
            assert_eq!(wish(&mut offering, 100), MAX_LANES);
            // Both say so from the first, and again to one that may have forgotten it.
            let begin = |own, peer, lanes| {
                let (events, told) = mpsc::channel(64);
                let direct = Direct::new(own, peer, lanes, &[], events);
                End { direct, told }
            };
            let (mut offering, mut other) = (begin("b", "a", 2), begin("a", "b", 4));
            let granted = |offering: &mut End, other: &mut End| {
                while let Ok(DirectEvent::Signal { data, .. }) = other.told.try_recv() {
                    offering.direct.handle_signal(&data, now_ns());
                }
                offering.direct.lanes.len()
            };
            assert_eq!(granted(&mut offering, &mut other), 4);
            offering.direct.meet_again(true, now_ns());
            offering.direct.want_lanes(2, now_ns());
            other.direct.meet_again(true, now_ns());
            assert_eq!(granted(&mut offering, &mut other), 4);
        };
        LocalSet::new().run_until(wish).await;
    }

    #[tokio::test]
    async fn what_is_under_way_on_a_lane_that_is_taken_away_still_comes() {
        let talking = async {
            let mut ends =
                [("b", "a"), ("a", "b")].map(|(own, peer)| End::new(own, peer, &[], false));
            ends[0].direct.want_lanes(2, now_ns());
            let (mut heard, mut is_taken) = ([0; 2], false);
            let mut beat = tokio::time::interval(Duration::from_millis(20));
            while heard != [1, 1] {
                let [first, second] = &mut ends;
                let (at, event) = tokio::select! {
                    event = first.told.recv() => (0, event.expect("it goes on")),
                    event = second.told.recv() => (1, event.expect("it goes on")),
                    _ = beat.tick() => {
                        let are_open = ends.iter().all(|end| end.direct.open_lanes() == [0, 1]);
                        if are_open && !is_taken {
                            let [first, second] = &mut ends;
                            first.direct.send_on(1, Bytes::from_static(b"before"));
                            first.direct.want_lanes(1, now_ns());
                            assert_eq!(first.direct.open_lanes(), [0]);
                            // It has not heard of that.
                            second.direct.send_on(1, Bytes::from_static(b"after"));
                            is_taken = true;
                        }
                        continue;
                    }
                };
                match event {
                    DirectEvent::Signal { data, .. } => {
                        ends[1 - at].direct.handle_signal(&data, now_ns());
                    }
                    DirectEvent::Datagram { lane, bytes, .. } => {
                        assert_eq!((lane, &bytes[..]), (1, [&b"after"[..], b"before"][at]));
                        heard[at] += 1;
                    }
                    event => panic!("{event:?}"),
                }
            }
            for End { direct, .. } in &mut ends {
                let until_ns = direct.retired[0].0;
                direct.probe(&Bytes::new(), until_ns - 1);
                assert_eq!(direct.retired.len(), 1);
                direct.probe(&Bytes::new(), until_ns);
                assert_eq!(direct.retired.len(), 0);
            }
        };
        let talking = tokio::time::timeout(Duration::from_secs(20), talking);
        let talked = LocalSet::new().run_until(talking).await;
        talked.expect("what was sent on it");
    }

    #[tokio::test]
    async fn the_only_lane_that_is_open_stays_whatever_its_number() {
        // None of them is run.
        let choosing = async {
            let (events, _told) = mpsc::channel(64);
            let mut offerer = Direct::new("b", "a", 4, &[], events);
            let open = |offerer: &Direct, lane| offerer.lanes[&lane].shared.is_open.set(true);
            open(&offerer, 2);
            open(&offerer, 3);
            offerer.want_lanes(1, now_ns());
            assert!(
                offerer.lanes.keys().eq(&[0, 2]),
                "{:?}",
                offerer.lanes.keys()
            );
            open(&offerer, 0);
            offerer.probe(&Bytes::new(), now_ns());
            assert!(offerer.lanes.keys().eq(&[0]), "{:?}", offerer.lanes.keys());
        };
        LocalSet::new().run_until(choosing).await;
    }

    #[tokio::test]
    async fn a_clock_that_is_put_back_makes_no_lane_older_than_the_last() {
        let meeting = async {
            let (events, _told) = mpsc::channel(1);
            let mut offerer = Direct::new("b", "a", 1, &[], events);
            let ahead = u64::MAX / 2;
            make(&mut offerer, ahead);
            offerer.say_again(false, now_ns());
            assert!(epoch(&offerer) > Some(ahead));
        };
        LocalSet::new().run_until(meeting).await;
    }

    #[tokio::test]
    async fn lanes_begin_again_with_one_that_forgot_them_unless_they_are_alive() {
        let meeting = async {
            let (events, _told) = mpsc::channel(1);
            let offer = |epoch| {
                json!({"kind": "description", "lane": 0, "epoch": epoch,
                "description": {"type": "offer", "sdp": ""}})
            };
            let mut answerer = Direct::new("a", "b", 1, &[], events.clone());
            answerer.handle_signal(&offer(3), now_ns());
            answerer.handle_signal(&json!({"kind": "direct", "wanted": false}), now_ns());
            assert!(!answerer.is_wanted);
            answerer.meet_again(true, now_ns());
            answerer.handle_signal(&offer(0), now_ns());
            assert_eq!((epoch(&answerer), answerer.is_wanted), (Some(3), true));
            answerer.meet_again(false, now_ns());
            assert_eq!(epoch(&answerer), None);
            answerer.handle_signal(&offer(4), now_ns());
            assert_eq!(epoch(&answerer), Some(4));
            let mut offerer = Direct::new("b", "a", 1, &[], events.clone());
            let first = epoch(&offerer);
            offerer.meet_again(true, now_ns());
            assert_eq!(epoch(&offerer), first);
            tokio::time::sleep(Duration::from_millis(2)).await;
            offerer.meet_again(false, now_ns());
            assert!(epoch(&offerer) > first);
            // One that forgets and begins anew is newer, too.
            tokio::time::sleep(Duration::from_millis(2)).await;
            let another = Direct::new("b", "a", 1, &[], events);
            assert!(epoch(&another) > epoch(&offerer));
        };
        LocalSet::new().run_until(meeting).await;
    }
}
