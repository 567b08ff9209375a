//! The local clock, and models of other clocks. Times are ns of [`now_ns`], which no one else's clock agrees with.
//!
//! A stream's clock is a *line*: the time of its frame 0; frame *n* follows n / rate later.

use std::collections::{HashMap, VecDeque};
use std::sync::LazyLock;
use std::time::Instant;

use antiphon_core::SampleRate;
use antiphon_opus::outgoing::Rung;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// This process's clock, ns: counts from some moment of its life, never steps. Bots of one process share it.
///
/// RT: no alloc, no lock; on Linux read without a system call. Call it once before the audio thread does.
pub fn now_ns() -> u64 {
    START.elapsed().as_nanos() as u64
}

/// So many frames of media time. Media time beyond some three centuries would overflow, and says nothing.
pub fn frames_ns(frames: i64, rate: SampleRate) -> i64 {
    (i128::from(frames) * 1_000_000_000 / i128::from(rate.hz())) as i64
}

/// An estimate, and by how much it may be wrong, ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The estimate.
    pub ns: i64,
    /// It is off by no more, as far as that can be known.
    pub error_ns: i64,
}

/// The newest values of something measured often.
#[derive(Debug)]
pub struct Recent {
    values: VecDeque<i64>,
    capacity: usize,
}

impl Recent {
    /// Keeps `capacity` values.
    pub fn new(capacity: usize) -> Self {
        Self {
            values: VecDeque::with_capacity(capacity),
            capacity,
        }
    }

    /// Adds one; the oldest goes.
    pub fn add(&mut self, value: i64) {
        if self.values.len() == self.capacity {
            self.values.pop_front();
        }
        self.values.push_back(value);
    }

    /// The middle, and half of what the middle 80 % range over; `None` before there is any.
    pub fn middle(&self) -> Option<Estimate> {
        let sorted = self.sorted(self.capacity);
        (!sorted.is_empty()).then(|| Estimate {
            ns: quantile(&sorted, 0.5),
            error_ns: (quantile(&sorted, 0.9) - quantile(&sorted, 0.1)) / 2,
        })
    }

    /// The middle of the `newest` values, and half of what the middle 80 % of all range over, or how far the newest are from the middle of all if
    /// that is more; `None` before there is any.
    pub fn newest_middle(&self, newest: usize) -> Option<Estimate> {
        let all = self.middle()?;
        let ns = quantile(&self.sorted(newest), 0.5);
        let error_ns = all.error_ns.max((ns - all.ns).abs());
        Some(Estimate { ns, error_ns })
    }

    fn sorted(&self, newest: usize) -> Vec<i64> {
        let mut sorted: Vec<i64> = self.values.iter().rev().take(newest).copied().collect();
        sorted.sort_unstable();
        sorted
    }
}

fn quantile(sorted: &[i64], share: f64) -> i64 {
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

/// Probes that are remembered, of two a second on each way: 80 s of two lanes and the relay, 14 s of sixteen lanes and the relay.
const MAX_PROBES: usize = 480;
/// Clocks may run apart by so much: twice the tolerance that RFC 5905 assumes of one clock (PHI, 15 ppm).
const SKEW: f64 = 30e-6;

/// The offset of a peer's clock: remote minus local. Each probe brackets it, whatever the network did: the reply was written
/// after the probe was sent and before it came back. The truth lies in all brackets at once, which widen with age.
#[derive(Debug, Default)]
pub struct ClockOffset {
    /// When the reply came, least, most.
    probes: VecDeque<(u64, i64, i64)>,
}

impl ClockOffset {
    /// A probe came back. All by the local clock but `replied_ns`.
    pub fn add(&mut self, sent_ns: u64, replied_ns: u64, received_ns: u64) {
        if received_ns < sent_ns {
            return;
        }
        let replied = replied_ns as i64;
        let least = replied.wrapping_sub(received_ns as i64);
        let most = replied.wrapping_sub(sent_ns as i64);
        self.probes.push_back((received_ns, least, most));
        if self.probes.len() > MAX_PROBES {
            self.probes.pop_front();
        }
        // A clock was set, or a machine slept: what came before no longer holds.
        if self.at(received_ns).is_none() {
            self.probes.drain(..self.probes.len() - 1);
        }
    }

    /// `None` before the first probe has come back.
    pub fn at(&self, now_ns: u64) -> Option<Estimate> {
        let mut range: Option<(i64, i64)> = None;
        for &(at, least, most) in &self.probes {
            let apart = (now_ns.abs_diff(at) as f64 * SKEW) as i64;
            let (least, most) = (least.saturating_sub(apart), most.saturating_add(apart));
            range = Some(range.map_or((least, most), |(l, m)| (l.max(least), m.min(most))));
        }
        let (least, most) = range.filter(|(least, most)| least <= most)?;
        let error_ns = most.saturating_sub(least) / 2;
        Some(Estimate {
            ns: least + error_ns,
            error_ns,
        })
    }
}

/// Blocks are looked at in groups of so long, of which the most prompt one counts.
const GROUP_NS: u64 = 50_000_000;
/// The newest groups, whose middle tells when frames come: those that are lost move it at once. Two seconds of groups tell the error.
const NEWEST_GROUPS: usize = 3;
const GROUPS: usize = 40;

/// When captured frames were captured, and how long they took from there to the network.
#[derive(Debug)]
pub struct CaptureClock {
    /// What the input takes before the instants that the blocks tell, ns; `None`: unknown.
    pub input_ns: Option<i64>,
    frame_ns: f64,
    frames: u64,
    lines: Recent,
    blocks: Recent,
    /// By the format in which they were sent.
    sent: HashMap<Rung, Recent>,
    least: Option<i64>,
    group_end_ns: Option<u64>,
}

/// What a report says of a capture.
#[derive(Clone, Copy, Debug)]
pub struct CaptureReading {
    /// Media time of a frame.
    pub frame: u64,
    /// When it was captured.
    pub captured: Estimate,
    /// When frame 0 was, ns.
    pub line_ns: i64,
    /// From a block's first frame until the engine has the block, ns.
    pub block_ns: i64,
    /// From a datagram's first frame until it is handed to a lane, ns.
    pub send_ns: i64,
    /// As the clock's.
    pub input_ns: Option<i64>,
}

impl CaptureClock {
    /// For frames of a rate in Hz.
    pub fn new(rate_hz: u32) -> Self {
        Self {
            input_ns: None,
            frame_ns: 1e9 / f64::from(rate_hz),
            frames: 0,
            lines: Recent::new(GROUPS),
            blocks: Recent::new(256),
            sent: HashMap::new(),
            least: None,
            group_end_ns: None,
        }
    }

    /// A block that was handed over at `block_ns`, as soon as its last frame was captured, and that the engine has at `now_ns`.
    pub fn add(&mut self, frames: u64, block_ns: u64, now_ns: u64) {
        let first = block_ns as i64 - (frames as f64 * self.frame_ns) as i64;
        let line = first - (self.frames as f64 * self.frame_ns) as i64;
        self.least = Some(self.least.map_or(line, |least| least.min(line)));
        self.blocks.add(now_ns as i64 - first);
        self.frames += frames;
        if self.group_end_ns.is_some_and(|end| now_ns < end) {
            return;
        }
        if let (Some(_), Some(least)) = (self.group_end_ns, self.least) {
            self.lines.add(least);
        }
        self.least = None;
        self.group_end_ns = Some(now_ns + GROUP_NS);
    }

    /// So many frames were not captured, and count all the same.
    pub fn pass(&mut self, frames: u64) {
        self.frames += frames;
    }

    /// A datagram of that format whose first frame has this media time is handed to a lane.
    pub fn sent(&mut self, rung: Rung, frame: u64, now_ns: u64) {
        // The newest line will do: the middle is asked for ten times a second, this hundreds of times.
        if let Some(&line) = self.lines.values.back() {
            let captured = line + (frame as f64 * self.frame_ns) as i64;
            let sent = self.sent.entry(rung).or_insert_with(|| Recent::new(256));
            sent.add(now_ns as i64 - captured);
        }
    }

    /// For who hears that format; `None` until frames have been captured, and sent in it, for a moment.
    pub fn read(&self, rung: Rung) -> Option<CaptureReading> {
        let line = self.lines.newest_middle(NEWEST_GROUPS)?;
        let captured = Estimate {
            ns: line.ns + (self.frames as f64 * self.frame_ns) as i64,
            ..line
        };
        Some(CaptureReading {
            frame: self.frames,
            captured,
            line_ns: line.ns,
            block_ns: self.blocks.middle()?.ns,
            send_ns: self.sent.get(&rung)?.middle()?.ns,
            input_ns: self.input_ns,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_lies_in_every_bracket() {
        let mut offset = ClockOffset::default();
        assert_eq!(offset.at(0), None);
        // Ahead by 1,000,000; 100 there and 900 back, then 900 there and 100 back.
        offset.add(0, 1_000_100, 1_000);
        offset.add(2_000, 1_002_900, 3_000);
        let found = offset.at(3_000).expect("known");
        assert_eq!((found.ns, found.error_ns), (1_000_000, 100));
        // The clock was set: what came before no longer holds.
        offset.add(4_000, 4_500, 5_000);
        assert_eq!(offset.at(5_000).expect("known").ns, 0);
    }

    #[test]
    fn a_capture_clock_knows_when_frames_were_captured() {
        let mut clock = CaptureClock::new(48_000);
        for block in 1..200u64 {
            // Captured from 5 ms on; every other block is handed over 300 us late, and taken 100 us after that.
            let ideal = 5_000_000 + block * 64 * 1_000_000 / 48;
            let handed = ideal + (block % 2) * 300_000;
            clock.add(64, handed, handed + 100_000);
            clock.sent(Rung::Main, (block - 1) * 64, handed + 150_000);
        }
        assert!(clock.read(Rung::Narrow).is_none());
        let reading = clock.read(Rung::Main).expect("known");
        assert_eq!(reading.frame, 199 * 64);
        let truth = 5_000_000 + 199 * 64 * 1_000_000i64 / 48;
        assert!((reading.captured.ns - truth).abs() < 2_000, "{reading:?}");
        assert!(
            (reading.block_ns - 1_433_333).abs() <= 302_000,
            "{reading:?}"
        );
        assert!(reading.send_ns >= reading.block_ns, "{reading:?}");
    }

    #[test]
    fn the_capture_line_moves_at_once_when_frames_are_lost() {
        let mut clock = CaptureClock::new(48_000);
        let lost = 1_333_333;
        let mut capture = |blocks: std::ops::Range<u64>, lost: u64| {
            for block in blocks {
                let handed = (block + 1) * 64 * 1_000_000 / 48 + lost;
                clock.add(64, handed, handed);
                clock.sent(Rung::Main, block * 64, handed);
            }
            clock.read(Rung::Main).expect("known")
        };
        let before = capture(0..7_500, 0);
        // 200 ms later.
        let after = capture(7_500..7_650, lost);
        let moved = after.line_ns - before.line_ns;
        assert!((moved - lost as i64).abs() < 2_000, "{moved}");
        let error = after.captured.error_ns;
        assert!(error > lost as i64 - 2_000, "it has just moved: {error}");
        let error = capture(7_650..9_600, lost).captured.error_ns;
        assert!(error < 2_000, "{error}");
    }
}
