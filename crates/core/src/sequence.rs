//! Sequence numbers: 32 bits on the wire, 64 from here on; loss, order and duplicates counted.

use crate::presence::each_word;

/// A jump of more than this is believed only when the next datagram continues it.
const MAX_JUMP: i64 = 65_536;
/// A smaller jump back is a sender that started anew if this many old numbers come, no newer one between them, while
/// nothing plays. While something does, it is a lane or a relay that was held up.
const RESTART_RUN: u32 = 16;
/// Duplicates of so many of the first numbers, and of no others, tell of a sender that started anew: a held-up lane has brought the first ones long ago.
const FIRST_NUMBERS: u64 = 64;
/// How far behind the newest a duplicate can be told from a straggler, in datagrams. Longer than any buffer holds.
pub const WINDOW: u64 = 1_024;

/// What a sequence number says about its datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The newest so far. Play it.
    New,
    /// Not seen before, but newer ones overtook it. Play it if there is time.
    Overtaken,
    /// It has not come, but the next one carried a copy of it. Play that if there is time.
    Recovered,
    /// Overtaken by its copy. Play it in place of that if there is time; how late it comes matters to nobody.
    Original,
    /// Seen before. Drop it.
    Duplicate,
    /// So old that nobody can tell whether it was seen. Drop it.
    Ancient,
    /// A jump nobody believes yet. Drop it.
    Doubtful,
    /// Continues a doubtful jump: the sender started anew. Play it, and forget what was buffered.
    Restart,
}

/// Loss, order and duplicates of one stream on one path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceCounts {
    /// Datagrams seen for the first time.
    pub received: u64,
    /// Sequence numbers between the first and the newest of which nothing came. Falls when a straggler arrives.
    pub lost: u64,
    /// Sequence numbers of which only a copy came, in the datagram after. Falls when a straggler arrives.
    pub recovered: u64,
    /// Datagrams newer ones had overtaken.
    pub reordered: u64,
    /// Datagrams seen before.
    pub duplicate: u64,
}

impl core::ops::Add for SequenceCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            received: self.received + other.received,
            lost: self.lost + other.lost,
            recovered: self.recovered + other.recovered,
            reordered: self.reordered + other.reordered,
            duplicate: self.duplicate + other.duplicate,
        }
    }
}

/// Follows the sequence numbers of one stream on one path (RFC 3550 A.1, with a replay window as in RFC 4303 A2.2).
#[derive(Debug, Default)]
pub struct SequenceTracker {
    newest: Option<u64>,
    /// The first since the (re)start.
    first: u64,
    /// Bit `n % WINDOW` says whether number `n` of the last `WINDOW` was seen.
    seen: [u64; (WINDOW / 64) as usize],
    /// Ditto, whether a copy of it was counted.
    recovered: [u64; (WINDOW / 64) as usize],
    doubtful_next: Option<u32>,
    /// Ancient datagrams since the last new one.
    ancient_run: u32,
    /// Duplicates of [`FIRST_NUMBERS`] since the last new one, while the stream was dry.
    repeated_run: u32,
    counts: SequenceCounts,
}

impl SequenceTracker {
    /// The counts so far.
    pub fn counts(&self) -> SequenceCounts {
        self.counts
    }

    /// Judges a datagram by its sequence number and counts it. `is_starved` says that the stream has run dry for a while.
    ///
    /// RT: no alloc, no lock, O(window / 64) at most.
    pub fn handle(&mut self, sequence: u32, is_starved: bool) -> Arrival {
        let Some(newest) = self.newest else {
            self.start(sequence);
            return Arrival::New;
        };
        // RFC 1982: the nearest number with these low 32 bits, ahead or behind.
        let ahead = i64::from(sequence.wrapping_sub(newest as u32) as i32);
        if !(-MAX_JUMP..=MAX_JUMP).contains(&ahead) {
            if self.doubtful_next == Some(sequence) {
                self.start(sequence);
                return Arrival::Restart;
            }
            self.doubtful_next = Some(sequence.wrapping_add(1));
            return Arrival::Doubtful;
        }
        self.doubtful_next = None;
        if ahead > 0 {
            self.advance(newest, ahead as u64);
            return Arrival::New;
        }
        let behind = ahead.unsigned_abs();
        if behind >= WINDOW {
            self.ancient_run = self.ancient_run.saturating_add(1);
            if is_starved && self.ancient_run >= RESTART_RUN {
                self.start(sequence);
                return Arrival::Restart;
            }
            return Arrival::Ancient;
        }
        let number = newest - behind;
        let (word, bit) = position(number);
        if self.seen[word] & bit != 0 {
            self.counts.duplicate += 1;
            if is_starved && number < self.first + FIRST_NUMBERS {
                self.repeated_run = self.repeated_run.saturating_add(1);
            }
            return Arrival::Duplicate;
        }
        self.seen[word] |= bit;
        self.counts.received += 1;
        self.counts.reordered += 1;
        if self.recovered[word] & bit != 0 {
            self.counts.recovered -= 1;
            return Arrival::Original;
        }
        if number > self.first {
            // A straggler from before the first datagram of all was never counted as lost.
            self.counts.lost -= 1;
        }
        Arrival::Overtaken
    }

    /// Whether the first numbers come again, as from a sender that started anew so early that all its numbers were seen. To be believed only
    /// when nothing plays at all: else it may be copies that a lane has held up.
    ///
    /// RT: no alloc, no lock, O(1).
    pub fn is_repeated(&self) -> bool {
        self.repeated_run >= RESTART_RUN
    }

    /// The last one, which was judged a [`Arrival::Duplicate`], is of newer sound than any, or one of [many first ones](Self::is_repeated): the sender
    /// started anew, with numbers that were seen.
    ///
    /// RT: no alloc, no lock, O(window / 64).
    pub fn restart(&mut self, sequence: u32) {
        self.counts.duplicate -= 1;
        self.start(sequence);
    }

    /// Judges the copy of the datagram of that number, after the datagram that carried it, and counts it if nothing else has come:
    /// [`Arrival::Recovered`], [`Arrival::Duplicate`] or [`Arrival::Ancient`].
    ///
    /// RT: no alloc, no lock, O(1).
    pub fn handle_copy(&mut self, sequence: u32) -> Arrival {
        let Some(newest) = self.newest else {
            return Arrival::Ancient;
        };
        let behind = i64::from((newest as u32).wrapping_sub(sequence) as i32);
        let number = newest.wrapping_add_signed(-behind);
        if !(0..WINDOW as i64).contains(&behind) || number < self.first {
            return Arrival::Ancient;
        }
        let (word, bit) = position(number);
        if (self.seen[word] | self.recovered[word]) & bit != 0 {
            return Arrival::Duplicate;
        }
        self.recovered[word] |= bit;
        self.counts.lost -= 1;
        self.counts.recovered += 1;
        Arrival::Recovered
    }

    fn start(&mut self, sequence: u32) {
        // One whole turn up, so that stragglers from before the first have a number too.
        let first = u64::from(sequence) + (1 << 32);
        self.newest = Some(first);
        self.first = first;
        self.doubtful_next = None;
        (self.ancient_run, self.repeated_run) = (0, 0);
        self.seen = Default::default();
        self.recovered = Default::default();
        let (word, bit) = position(first);
        self.seen[word] |= bit;
        self.counts.received += 1;
    }

    fn advance(&mut self, newest: u64, ahead: u64) {
        for ring in [&mut self.seen, &mut self.recovered] {
            let passed = ahead.min(WINDOW) as usize;
            each_word(ring, newest + 1, passed, |word, bits| *word &= !bits);
        }
        (self.ancient_run, self.repeated_run) = (0, 0);
        let next = newest + ahead;
        // With a jump beyond the window every bit was cleared above, wherever the next number's bit is.
        let (word, bit) = position(next);
        self.seen[word] |= bit;
        self.newest = Some(next);
        self.counts.received += 1;
        self.counts.lost += ahead - 1;
    }
}

fn position(n: u64) -> (usize, u64) {
    ((n % WINDOW / 64) as usize, 1 << (n % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle_all(numbers: &[u32]) -> (SequenceTracker, alloc::vec::Vec<Arrival>) {
        let mut tracker = SequenceTracker::default();
        let arrivals = numbers.iter().map(|&n| tracker.handle(n, false)).collect();
        (tracker, arrivals)
    }

    #[test]
    fn a_wrap_is_no_loss() {
        let (tracker, arrivals) = handle_all(&[u32::MAX - 1, u32::MAX, 0, 1]);
        assert!(arrivals.iter().all(|&arrival| arrival == Arrival::New));
        assert_eq!(
            tracker.counts(),
            SequenceCounts {
                received: 4,
                ..Default::default()
            }
        );
    }

    #[test]
    fn stragglers_fill_the_gap_they_left() {
        let (tracker, arrivals) = handle_all(&[10, 13, 11, 13, 11]);
        use Arrival::{Duplicate, New, Overtaken};
        assert_eq!(arrivals, [New, New, Overtaken, Duplicate, Duplicate]);
        let counts = SequenceCounts {
            received: 3,
            lost: 1,
            reordered: 1,
            duplicate: 2,
            ..Default::default()
        };
        assert_eq!(tracker.counts(), counts);
    }

    #[test]
    fn a_copy_counts_once_and_until_what_it_is_of_comes() {
        let (mut tracker, _) = handle_all(&[u32::MAX - 1, 2]);
        assert_eq!(tracker.handle_copy(1), Arrival::Recovered);
        assert_eq!(tracker.handle_copy(1), Arrival::Duplicate);
        assert_eq!(tracker.handle_copy(2), Arrival::Duplicate, "it came itself");
        assert_eq!(tracker.handle_copy(u32::MAX), Arrival::Recovered);
        let counts = |tracker: &SequenceTracker| {
            let SequenceCounts {
                received,
                lost,
                recovered,
                ..
            } = tracker.counts();
            (received, lost, recovered)
        };
        assert_eq!(counts(&tracker), (2, 1, 2));
        assert_eq!(tracker.handle(1, false), Arrival::Original);
        assert_eq!(tracker.handle(0, false), Arrival::Overtaken);
        assert_eq!(counts(&tracker), (4, 0, 1));
        // From before the first, from the future, and before anything came.
        assert_eq!(tracker.handle_copy(u32::MAX - 2), Arrival::Ancient);
        assert_eq!(tracker.handle_copy(3), Arrival::Ancient);
        assert_eq!(SequenceTracker::default().handle_copy(0), Arrival::Ancient);
    }

    #[test]
    fn too_old_to_tell_is_ancient() {
        let (_, arrivals) = handle_all(&[0, 2_000, 2_000 - WINDOW as u32, 2_001 - WINDOW as u32]);
        assert_eq!(arrivals[2..], [Arrival::Ancient, Arrival::Overtaken]);
    }

    #[test]
    fn a_straggler_from_before_the_first_fills_no_gap() {
        let (tracker, _) = handle_all(&[10, 12, 9]);
        assert_eq!(tracker.counts().lost, 1);
    }

    #[test]
    fn a_sender_that_starts_anew_from_0_is_believed_soon() {
        let mut tracker = SequenceTracker::default();
        for n in 0..5_000 {
            tracker.handle(n, false);
        }
        let mut restarted = 0;
        for n in 0..1_000 {
            match tracker.handle(n, true) {
                Arrival::Ancient => assert!(n + 1 < RESTART_RUN),
                Arrival::Restart => restarted += 1,
                arrival => assert_eq!(arrival, Arrival::New),
            }
        }
        assert_eq!((restarted, tracker.counts().lost), (1, 0));
    }

    #[test]
    fn a_held_up_lane_is_no_new_sender() {
        let mut tracker = SequenceTracker::default();
        for n in 0..5_000 {
            tracker.handle(n, false);
        }
        // Old datagrams in a row while there is something to play, or newer ones between them while there is not.
        for n in 0..200 {
            assert_eq!(tracker.handle(n, false), Arrival::Ancient);
        }
        for n in 0..200 {
            if n % (RESTART_RUN - 1) == 0 {
                assert_eq!(tracker.handle(5_000 + n, true), Arrival::New);
            }
            assert_eq!(tracker.handle(n, true), Arrival::Ancient);
        }
    }

    #[test]
    fn a_jump_needs_a_witness() {
        let (tracker, arrivals) = handle_all(&[5, 1_000_000, 6, 3_000_000, 3_000_001, 3_000_002]);
        use Arrival::{Doubtful, New, Restart};
        assert_eq!(arrivals, [New, Doubtful, New, Doubtful, Restart, New]);
        assert_eq!(tracker.counts().lost, 0);
    }
}
