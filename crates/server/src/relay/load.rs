//! Who loses packets while more comes than the media thread can do: those who cause the most work, before they cause more.
//!
//! Everybody's own limits are far above what one core can do for all who may be at them. So the thread watches whether it comes to the end of what
//! arrives. Once it has not for a while, each participant may cause only so much work a second, a quarter less each time that it still does not come there,
//! and slowly more again when it does. That settles where the thread just keeps up, and takes nothing from those who cause less. No guess is
//! needed of how fast a machine is. Who has no seat yet is charged together with all strangers. Mixes are not charged: they have a bound of their own.

use std::{
    cell::Cell,
    rc::Rc,
    time::{Duration, Instant},
};

/// More comes than the thread can do if it has not come to the end of it for so long. After a standstill of the machine it does in less.
const OVERLOADED: Duration = Duration::from_millis(250);
/// From then on it is behind after so long already.
const BEHIND: Duration = Duration::from_millis(20);
/// Before that it is not looked at for so long after a cut: what still may come at once, and what had come before, has to be done first, or it would be cut too far.
const SETTLING: Duration = Duration::from_millis(10);
/// What each may cause at first, a second: packets and datagrams of its own, and datagrams that are sent on for it. A participant's own limits are about that.
const FIRST_PER_S: f64 = 64_000.0;
/// What is left to each in any case: three who play in packets of 128 frames cause some 2,000. More than two hundred at once who cause as much as they can
/// are still too much.
const LEAST_PER_S: f64 = 3_000.0;
/// What is left of it each time that the thread is still behind.
const CUT: f64 = 0.75;
/// By what share it grows a second: a quarter in less than three, all of it in half a minute. So a flood that goes on holds up the others for [`BEHIND`] every three seconds.
const GROWTH_PER_S: f64 = 0.1;
/// What may come at once, as the time in which as much may be caused: browsers send what they captured in blocks, and what waited while they stood still.
const BURST_S: f64 = 0.03;
/// The first packet of a connection costs as much as so many others: keys, and a signed answer.
pub(super) const FIRST_PACKET: usize = 8;
/// Any other.
pub(super) const PACKET: usize = 1;

/// How much each may cause.
#[derive(Debug)]
pub(super) struct Load {
    /// Since when it reads without coming to the end, or from when on what was cut is felt; `None` if all was read. A standstill is no part of it.
    behind_since: Option<Instant>,
    looked_at: Instant,
    /// Work a second; `None` while the thread keeps up.
    most_per_s: Option<f64>,
    /// Of all who have no seat, together, and of those who send from an address that is not their connection's, for nobody knows whose that is.
    strangers: Rc<Account>,
    /// Packets dropped unread, of all.
    pub(super) dropped: u64,
}

impl Load {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            behind_since: None,
            looked_at: now,
            most_per_s: None,
            strangers: Rc::default(),
            dropped: 0,
        }
    }

    /// Whom connections are charged to that are nobody's.
    pub(super) fn strangers(&self) -> Rc<Account> {
        Rc::clone(&self.strangers)
    }

    /// Packets were read; whether that was all there was.
    pub(super) fn handle_read(&mut self, is_all: bool, now: Instant) {
        let elapsed = now.saturating_duration_since(self.looked_at);
        self.looked_at = now;
        let grown = |most: f64| most * (1.0 + GROWTH_PER_S * elapsed.as_secs_f64());
        self.most_per_s = (self.most_per_s.map(grown)).filter(|most| *most < FIRST_PER_S);
        if is_all {
            self.behind_since = None;
            return;
        }
        let since = *self.behind_since.get_or_insert(now);
        let patience = match self.most_per_s {
            Some(_) => BEHIND,
            None => OVERLOADED,
        };
        if now.saturating_duration_since(since) >= patience {
            self.behind_since = Some(now + SETTLING);
            let cut = |most: f64| (most * CUT).max(LEAST_PER_S);
            self.most_per_s = Some(cut(self.most_per_s.unwrap_or(FIRST_PER_S)));
        }
    }

    /// Whether one more packet is handled, which is charged then, to whom it is from or, if that is nobody, to the strangers.
    pub(super) fn admits(&mut self, account: Option<&Account>, work: usize, now: Instant) -> bool {
        let account = account.unwrap_or(&self.strangers);
        let Some(most_per_s) = self.most_per_s else {
            account.forget();
            return true;
        };
        let is_admitted = account.settle(most_per_s, now) <= most_per_s * BURST_S;
        if is_admitted {
            account.charge(work);
        } else {
            account.dropped.set(account.dropped.get() + 1);
            self.dropped += 1;
        }
        is_admitted
    }
}

/// The work that a participant has caused, by all its sessions.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// Less what has passed since.
    work: Cell<f64>,
    /// When that was settled; `None` while the thread keeps up.
    settled_at: Cell<Option<Instant>>,
    /// Packets dropped unread since they were last taken.
    dropped: Cell<u64>,
}

impl Account {
    pub(super) fn charge(&self, work: usize) {
        self.work.set(self.work.get() + work as f64);
    }

    pub(super) fn take_dropped(&self) -> u64 {
        self.dropped.take()
    }

    /// While the thread keeps up, nobody owes anything.
    fn forget(&self) {
        self.settled_at.set(None);
    }

    /// What it has caused that is not past, where so much passes a second.
    fn settle(&self, per_s: f64, now: Instant) -> f64 {
        let elapsed = (self.settled_at.replace(Some(now)))
            .map_or(Duration::MAX, |at| now.saturating_duration_since(at));
        let work = (self.work.get() - per_s * elapsed.as_secs_f64()).max(0.0);
        self.work.set(work);
        work
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(1);
    /// Packets that the socket holds.
    const QUEUE: usize = 2_000;

    /// A thread that does so much in a tick, and what waits for it, oldest first.
    struct Thread {
        load: Load,
        now: Instant,
        per_tick: f64,
        waiting: std::collections::VecDeque<(usize, Instant)>,
    }

    /// Who sends so many packets in a tick, each of which causes so much work besides.
    struct Sender {
        per_tick: usize,
        work: usize,
        account: Account,
        sent: u64,
        handled: u64,
    }

    impl Sender {
        fn new(per_tick: usize, work: usize) -> Self {
            Self {
                per_tick,
                work,
                account: Account::default(),
                sent: 0,
                handled: 0,
            }
        }
    }

    impl Thread {
        fn new(per_tick: f64) -> Self {
            let now = Instant::now();
            Self {
                load: Load::new(now),
                now,
                per_tick,
                waiting: Default::default(),
            }
        }

        /// Answers how long what was handled last had waited.
        fn run(&mut self, senders: &mut [Sender], ticks: u32) -> Vec<Duration> {
            let mut waits = Vec::new();
            for _ in 0..ticks {
                self.now += TICK;
                self.arrive(senders);
                let (mut left, mut waited) = (self.per_tick, Duration::ZERO);
                while left > 0.0
                    && let Some((at, came)) = self.waiting.pop_front()
                {
                    waited = self.now - came;
                    let sender = &mut senders[at];
                    // To drop a packet costs a quarter of what it costs to handle it.
                    left -= 0.25;
                    if self.load.admits(Some(&sender.account), PACKET, self.now) {
                        sender.handled += 1;
                        sender.account.charge(sender.work);
                        left -= 0.75 + sender.work as f64;
                    }
                }
                self.load.handle_read(self.waiting.is_empty(), self.now);
                waits.push(waited);
            }
            waits
        }
    }

    #[test]
    fn who_causes_little_loses_nothing_and_waits_for_a_fiftieth_of_a_second_now_and_then() {
        // Forty in rooms of two, and eight who send to many: together four times what the thread can do.
        let pair = || Sender::new(1, 1);
        let flooding = || Sender::new(8, 12);
        let mut senders: Vec<_> = (0..40).map(|_| pair()).collect();
        senders.extend((0..8).map(|_| flooding()));
        let mut thread = Thread::new(250.0);
        thread.run(&mut senders, 1_000);
        let missing = |thread: &Thread, senders: &[Sender]| {
            let missing = |(at, it): (usize, &Sender)| it.sent - it.handled - thread.queued(at);
            senders[..40].iter().enumerate().map(missing).sum::<u64>()
        };
        let flooded =
            |senders: &[Sender]| senders[40..].iter().map(|it| it.handled * 13).sum::<u64>();
        let before = (missing(&thread, &senders), flooded(&senders));
        let waits = thread.run(&mut senders, 10_000);
        assert_eq!(missing(&thread, &senders), before.0);
        let late = waits.iter().filter(|wait| **wait > 2 * TICK).count();
        assert!(
            waits.iter().all(|wait| *wait <= BEHIND + 2 * TICK),
            "{:?}",
            waits.iter().max()
        );
        assert!(late <= 10_000 / 50, "{late} of 10,000");
        // They are left what the others leave, or most of it.
        let flooded = flooded(&senders) - before.1;
        assert!(
            flooded as f64 > 0.5 * 10_000.0 * (250.0 - 80.0),
            "{flooded}"
        );
    }

    #[test]
    fn a_thread_that_stands_still_takes_nothing_from_a_full_room() {
        let mut senders: Vec<_> = (0..8).map(|_| Sender::new(1, 11)).collect();
        let mut thread = Thread::new(200.0);
        for _ in 0..20 {
            thread.run(&mut senders, 500);
            thread.stand_still(&mut senders, 50);
        }
        thread.run(&mut senders, 1_000);
        assert!(senders.iter().all(|it| it.sent == it.handled));
    }

    #[test]
    fn after_an_overload_standstills_do_not_keep_the_limit() {
        let mut senders: Vec<_> = (0..8).map(|_| Sender::new(1, 11)).collect();
        senders.push(Sender::new(40, 20));
        let mut thread = Thread::new(200.0);
        thread.run(&mut senders, 2_000);
        assert!(thread.load.most_per_s.is_some());
        senders.pop();
        for _ in 0..80 {
            thread.run(&mut senders, 500);
            thread.stand_still(&mut senders, 15);
        }
        assert_eq!(thread.load.most_per_s, None);
    }

    #[test]
    fn between_two_overloads_nobody_runs_up_debts() {
        let mut senders = [Sender::new(2, 24), Sender::new(40, 20)];
        let mut thread = Thread::new(200.0);
        thread.run(&mut senders, 2_000);
        senders[1].per_tick = 0;
        thread.run(&mut senders, 100_000);
        assert_eq!(thread.load.most_per_s, None);
        senders[1].per_tick = 40;
        let before = senders[0].handled;
        thread.run(&mut senders, 5_000);
        // A fifth of what it sends is within the least that is left to each.
        assert!(
            senders[0].handled - before > 500,
            "{}",
            senders[0].handled - before
        );
    }

    #[test]
    fn strangers_take_nothing_from_those_who_have_a_seat() {
        let now = Instant::now();
        let mut load = Load::new(now);
        load.handle_read(false, now);
        let now = now + OVERLOADED;
        load.handle_read(false, now);
        let seated = Account::default();
        let admitted = (0..10_000)
            .filter(|_| load.admits(None, FIRST_PACKET, now))
            .count();
        assert!((1..1_000).contains(&admitted), "{admitted}");
        assert!(
            !load.admits(None, PACKET, now),
            "their handshakes wait with them"
        );
        assert!(load.admits(Some(&seated), PACKET, now));
    }

    #[test]
    fn all_of_it_comes_back() {
        let mut senders = [Sender::new(40, 20)];
        let mut thread = Thread::new(200.0);
        thread.run(&mut senders, 5_000);
        let dropped = thread.load.dropped;
        assert!(dropped > 0 && senders[0].account.take_dropped() == dropped);
        assert_eq!(senders[0].account.take_dropped(), 0);
        let mut none: [Sender; 0] = [];
        thread.run(&mut none, 40_000);
        assert_eq!(thread.load.most_per_s, None);
        senders[0].per_tick = 9;
        let before = senders[0].handled;
        thread.run(&mut senders, 1_000);
        assert_eq!(senders[0].handled - before, 9_000);
    }

    impl Thread {
        /// Nothing is read for so many ticks, though it comes.
        fn stand_still(&mut self, senders: &mut [Sender], ticks: u32) {
            for _ in 0..ticks {
                self.now += TICK;
                self.arrive(senders);
            }
        }

        /// What comes in a tick.
        fn arrive(&mut self, senders: &mut [Sender]) {
            let most = senders.iter().map(|it| it.per_tick).max().unwrap_or(0);
            for turn in 0..most {
                for (at, sender) in senders.iter_mut().enumerate() {
                    if turn < sender.per_tick {
                        sender.sent += 1;
                        if self.waiting.len() < QUEUE {
                            self.waiting.push_back((at, self.now));
                        }
                    }
                }
            }
        }

        /// Packets of a sender that still wait.
        fn queued(&self, at: usize) -> u64 {
            self.waiting.iter().filter(|it| it.0 == at).count() as u64
        }
    }
}
