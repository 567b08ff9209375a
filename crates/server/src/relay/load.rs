//! Who loses packets while more comes than the media thread can do: those who cause the most work, before they cause more.
//!
//! Everybody's own limits are far above what one core can do for all who may be at them. So the thread watches whether it comes to the end of what
//! arrives. Once it has not for a while, each participant may cause only so much work a second, a quarter less each time that it still does not come there,
//! and slowly more again when it does. That settles where the thread just keeps up, and takes nothing from those who cause less. No guess is
//! needed of how fast a machine is.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

/// More comes than the thread can do if it has not come to the end of it for so long. After a standstill of the machine it does in less.
const OVERLOADED: Duration = Duration::from_millis(250);
/// From then on it is behind after so long already.
const BEHIND: Duration = Duration::from_millis(10);
/// Before that it is not looked at for so long after a cut: what still may come at once, and what had come before, has to be done first, or it would be cut too far.
const SETTLING: Duration = Duration::from_millis(20);
/// What each may cause at first, a second: packets that it sends, and datagrams that are sent on for it. A participant's own limits are about that.
const FIRST_PER_S: f64 = 56_000.0;
/// What is left to each in any case: three who play in packets of 128 frames cause half of it, with all that QUIC needs besides.
const LEAST_PER_S: f64 = 2_000.0;
/// What is left of it each time that the thread is still behind.
const CUT: f64 = 0.75;
/// By what share it grows a second: a quarter in less than three, all of it in half a minute. So a flood that goes on holds up the others for [`BEHIND`] every three seconds.
const GROWTH_PER_S: f64 = 0.1;
/// What may come at once, as the time in which as much may be caused: browsers send what they captured in blocks, and what waited while they stood still.
const BURST_S: f64 = 0.03;

/// How much each may cause.
#[derive(Debug)]
pub(super) struct Load {
    /// When all had been read, or what was cut is felt.
    since: Instant,
    looked_at: Instant,
    /// Work a second; `None` while the thread keeps up.
    most_per_s: Option<f64>,
    /// Packets dropped unread, of all.
    pub(super) dropped: u64,
}

impl Load {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            looked_at: now,
            most_per_s: None,
            dropped: 0,
        }
    }

    /// Packets were read; whether that was all there was.
    pub(super) fn handle_read(&mut self, is_all: bool, now: Instant) {
        let elapsed = now.saturating_duration_since(self.looked_at);
        self.looked_at = now;
        let grown = |most: f64| most * (1.0 + GROWTH_PER_S * elapsed.as_secs_f64());
        self.most_per_s = (self.most_per_s.map(grown)).filter(|most| *most < FIRST_PER_S);
        if is_all {
            self.since = now;
            return;
        }
        let patience = if self.most_per_s.is_some() {
            BEHIND
        } else {
            OVERLOADED
        };
        if now.saturating_duration_since(self.since) >= patience {
            self.since = now + SETTLING;
            let cut = |most: f64| (most * CUT).max(LEAST_PER_S);
            self.most_per_s = Some(cut(self.most_per_s.unwrap_or(FIRST_PER_S)));
        }
    }

    /// Whether one more packet of somebody is handled, which is charged then.
    pub(super) fn admits(&mut self, account: &Account, now: Instant) -> bool {
        let Some(most_per_s) = self.most_per_s else {
            account.charge(1);
            return true;
        };
        let is_admitted = account.settle(most_per_s, now) <= most_per_s * BURST_S;
        if is_admitted {
            account.charge(1);
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
    /// When that was settled.
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

    /// What it has caused that is not past, where so much passes a second. While the thread kept up nobody looked: that is past.
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
                let (mut left, mut waited) = (self.per_tick, Duration::ZERO);
                while left > 0.0
                    && let Some((at, came)) = self.waiting.pop_front()
                {
                    waited = self.now - came;
                    let sender = &mut senders[at];
                    // To drop a packet costs a quarter of what it costs to handle it.
                    left -= 0.25;
                    if self.load.admits(&sender.account, self.now) {
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
    fn who_causes_little_loses_nothing_and_waits_for_a_hundredth_of_a_second_now_and_then() {
        // Two hundred in rooms of two, of which some send to many, and ask for four times what the thread can do.
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
            // For 50 ms.
            let per_tick = std::mem::take(&mut thread.per_tick);
            thread.run(&mut senders, 50);
            thread.per_tick = per_tick;
        }
        thread.run(&mut senders, 1_000);
        assert!(senders.iter().all(|it| it.sent == it.handled));
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
        /// Packets of a sender that still wait.
        fn queued(&self, at: usize) -> u64 {
            self.waiting.iter().filter(|it| it.0 == at).count() as u64
        }
    }
}
