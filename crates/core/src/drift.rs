//! How far a sender's clock runs from the player's own, known from nothing but when packets come.
//!
//! The delay of an arrival is *frames output* minus *media time at the packet's end*, as in [`crate::spread`]. Clocks that run apart
//! tilt it; everything else that moves it is noise: queues (one-sided, heavy-tailed), bursts of capture and of rendering, and steps,
//! when a device stands still or a route changes. So:
//!
//! * The delays of each half second are averaged, queues clipped. Delays are multiples of quanta and packets, so a minimum or a
//!   median would be a staircase; the mean is smooth as soon as jitter is as wide as the stairs. How much of the stairs may
//!   remain is measured, and counts as error.
//! * Where the host says when a packet came, by a clock finer than its quanta, the delays of the levels are of that moment: the grid
//!   is then no coarser than that clock.
//! * A line is fitted through the last 12 to 256 such levels, robustly: levels that lie apart for a moment have no weight, and where
//!   they lie apart for good, a new segment begins, of the same slope and another offset. Where that recurs, a single line is tried as well: a sender that
//!   loses a few frames every second is slow.

use alloc::boxed::Box;
use alloc::vec;

use crate::wire::SampleRate;

const WINDOW_SECONDS: f64 = 0.5;
/// A host's clock may tell whole milliseconds.
const CLOCK_SECONDS: f64 = 0.001;
/// Windows remembered: 128 s.
const WINDOWS: usize = 256;
/// Fewest windows a line is fitted through: 6 s.
const LEAST_WINDOWS: usize = 12;
/// Most delays kept of a window. Beyond that, every second one is dropped.
const SAMPLES: usize = 1_024;
/// Times at which packets came that are compared in a window; more are left out.
const GROUPS: usize = 512;
/// A window in which packets came at fewer times says too little.
const LEAST_GROUPS: u64 = 4;
/// Windows are whole bursts of capture, in media time: a burst cut in two would tilt the levels.
const BURST_FRAMES: u64 = 1_024;
/// Packets late by so many windows are left out.
const STRAGGLERS: u64 = 2;
/// Windows on either side of a step, all of which must lie apart: as long does it take to believe in one.
const STEP_WINDOWS: usize = 4;
/// Least step, apart from what drift and the coarseness of the delays could do: of other ends' devices, and of routes.
const LEAST_STEP_SECONDS: f64 = 0.0015;
/// More steps than that in what is remembered may be drift.
const RECURRING_STEPS: usize = 3;
/// Clocks run apart by less, and so does a sender that loses one frame in 250.
const MAX_PPM: f64 = 4_000.0;
/// What the clocks of sound cards keep to.
const USUAL_PPM: f64 = 300.0;
/// What is more is of lost frames, and may end from one second to the next: if a newer past says that so small a share of it is left, it has.
const ENDED_SHARE: f32 = 0.25;
/// That it has begun is believed of pasts of so many windows at least: of shorter ones it may be chance.
const BEGUN_WINDOWS: usize = 32;
/// How fast temperature may change a clock: the longer the past, the less it says about now.
const WANDER_PPM_PER_S: f64 = 1.0 / 60.0;
/// Tukey's biweight: levels that lie apart by this many standard deviations have no weight.
const CUTOFF: f64 = 4.685;
const ROUNDS: usize = 3;
/// How far above their third quartile delays count as what they are, in ranges below it: farther ones are queues.
const REACH: f64 = 4.0;
/// Delays come on a grid, of quanta or of packets. Where jitter moves one in so many of them to another point of it, or more, the mean
/// follows the clock rather than standing still until all of them move at once.
const VARIOUS: f64 = 8.0;
/// Packets after which a pattern of arrivals repeats itself, at most; it must be there so often to be believed.
const LONGEST_PATTERN: usize = 16;
const LEAST_PATTERNS: usize = 8;
/// How much less of the grid remains in the mean when jitter is as wide as the grid. Found by trial, as are the next three: so
/// that errors are claimed honestly in the cases of `tests/drift.rs`.
const DITHER: f64 = 2.0;
/// Tilt that what remains of the grid may put on a line, in grids over its length.
const UNSEEN: f64 = 1.6;
/// The windows at which the error claimed is twice that of a long past.
const FEW: f64 = 8.0;
/// Stretches of the past that are compared to tell how uncertain a line is.
const BLOCKS: usize = 8;
/// Standard errors in [`Drift::error_ppm`]: two, and some more because [`BLOCKS`] tell them but roughly.
const ERRORS: f64 = 2.8;

/// How much faster the sender's clock runs than the player's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drift {
    /// Parts per million; positive when the sender captures more frames than the player outputs.
    pub ppm: f32,
    /// About two standard deviations of `ppm`, from the noise seen and from what cannot be seen.
    pub error_ppm: f32,
}

/// The level of the delay in one window.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    /// Middle, in frames output.
    at: u64,
    /// Frames, from the estimator's origin.
    level: f64,
    /// Frames by which the quantum in which packets are seen may change all at once, because all come alike.
    stair: f32,
    /// Frames by which the level may so change, after it has not changed at all.
    hidden: f32,
    /// Frames between points of the grid that delays are on.
    grid: f32,
    /// What remains of that grid in the level.
    coarseness: f32,
    segment: u32,
    is_timed: bool,
}

/// A window in the fit: where it lies from the middle of its segment, and how far from the line.
#[derive(Clone, Copy, Debug, Default)]
struct Point {
    time: f64,
    residual: f64,
    weight: f64,
}

/// Estimates the drift of one sender from arrivals.
#[derive(Debug)]
pub struct DriftEstimator {
    rate_hz: f64,
    /// The delay that counts as 0: the first.
    origin: Option<i64>,
    window_frames: u64,
    /// Number of the window that is filled: media time / `window_frames`.
    window: u64,
    /// Whether its delays are by the host's clock.
    is_timed: bool,
    segment: u32,
    /// Frames output when the window's first and newest packets came.
    began_at: u64,
    newest_at: u64,
    /// Least delay of what came at `newest_at`, by quanta and by the host's clock.
    least: i64,
    timed_least: i64,
    /// Delays in this window.
    samples: Box<[i32]>,
    sampled: usize,
    /// Of the delays, one in so many is kept.
    stride: u32,
    skipped: u32,
    /// Times at which packets came, and the least between two of them.
    groups: u64,
    least_interval: u64,
    /// Of these times the least delays, and the media times, from the window's first, of what came with them.
    leasts: Box<[i32]>,
    timed_leasts: Box<[i32]>,
    ends: Box<[u32]>,
    windows: Box<[Window]>,
    count: usize,
    points: Box<[Point]>,
    scratch: Box<[f64]>,
    estimate: Option<Drift>,
}

impl DriftEstimator {
    /// An estimator that knows nothing yet. Allocates all that it will ever need, 32 kB.
    pub fn new(rate: SampleRate) -> Self {
        Self {
            rate_hz: f64::from(rate.hz()),
            origin: None,
            window_frames: BURST_FRAMES
                * (f64::from(rate.hz()) * WINDOW_SECONDS / BURST_FRAMES as f64 + 0.5) as u64,
            window: 0,
            is_timed: false,
            segment: 0,
            began_at: 0,
            newest_at: 0,
            least: i64::MAX,
            timed_least: i64::MAX,
            samples: vec![0; SAMPLES].into_boxed_slice(),
            sampled: 0,
            stride: 1,
            skipped: 0,
            groups: 0,
            least_interval: u64::MAX,
            leasts: vec![0; GROUPS].into_boxed_slice(),
            timed_leasts: vec![0; GROUPS].into_boxed_slice(),
            ends: vec![0; GROUPS].into_boxed_slice(),
            windows: vec![Window::default(); WINDOWS].into_boxed_slice(),
            count: 0,
            points: vec![Point::default(); WINDOWS].into_boxed_slice(),
            scratch: vec![0.0; WINDOWS].into_boxed_slice(),
            estimate: None,
        }
    }

    /// Forgets everything: for another sender, or one that started anew. RT: no alloc, no lock, O(1).
    pub fn reset(&mut self) {
        self.origin = None;
        self.count = 0;
        self.estimate = None;
    }

    /// Takes an arrival: of `frames` frames from `timestamp` on (media time), when `output_frames` frames had been output, as far as whole
    /// quanta tell. `timed_frames` is how many were when it came, by a clock of milliseconds or finer; `None` if nobody looked.
    ///
    /// RT: no alloc, no lock, O(1), and twice a second O(samples × (log samples + 16) + windows).
    pub fn add(
        &mut self,
        output_frames: u64,
        timed_frames: Option<u64>,
        timestamp: u64,
        frames: u16,
    ) {
        let end = timestamp.wrapping_add(u64::from(frames));
        let window = timestamp / self.window_frames;
        // Where timed ones come as well, the others would end each window before it is full.
        let is_near =
            (-(STRAGGLERS as i64)..=1).contains(&(window.wrapping_sub(self.window) as i64));
        if self.origin.is_some() && self.is_timed && timed_frames.is_none() && is_near {
            return;
        }
        let delay_from = |origin: i64, at: u64| (at.wrapping_sub(end) as i64).wrapping_sub(origin);
        let is_far = |origin| i32::try_from(delay_from(origin, output_frames)).is_err();
        if self.origin.is_some_and(is_far) {
            // By hours: another time altogether, whose delays would all be the longest that is kept.
            self.reset();
        }
        let origin = match self.origin {
            Some(origin) if self.is_timed == timed_frames.is_some() => origin,
            known => {
                // The two kinds of delays differ by nobody knows what.
                self.segment = self.segment.wrapping_add(1);
                self.is_timed = timed_frames.is_some();
                self.begin_window(window, output_frames);
                *self
                    .origin
                    .insert(known.unwrap_or(output_frames.wrapping_sub(end) as i64))
            }
        };
        let delay = delay_from(origin, output_frames);
        let timed_delay = timed_frames.map_or(delay, |at| delay_from(origin, at));
        match self.window.wrapping_sub(window) {
            0 => {}
            // A straggler: its window has ended.
            1..=STRAGGLERS => return,
            _ => {
                self.end_window();
                self.begin_window(window, output_frames);
            }
        }
        if output_frames == self.newest_at {
            self.least = self.least.min(delay);
            self.timed_least = self.timed_least.min(timed_delay);
        } else {
            self.end_group();
            let interval = output_frames.wrapping_sub(self.newest_at);
            // After a slip the output may seem to go back.
            if (interval as i64) > 0 {
                self.least_interval = self.least_interval.min(interval);
            }
            self.newest_at = output_frames;
            (self.least, self.timed_least) = (delay, timed_delay);
        }
        self.take_sample(timed_delay);
    }

    /// What is known now; `None` before the first seconds, and when the arrivals make no sense.
    pub fn estimate(&self) -> Option<Drift> {
        self.estimate
    }

    /// By how many frames packets may all at once come later than they did: where they come alike, the player sees only in which of its
    /// quanta, and clocks that run apart carry them over the edge of one. RT: no alloc, no lock, O(windows).
    pub fn stair_frames(&self) -> i64 {
        let windows = &self.windows[..self.count];
        windows
            .iter()
            .fold(0.0, |most: f32, window| most.max(window.stair)) as i64
    }

    fn begin_window(&mut self, window: u64, output_frames: u64) {
        self.window = window;
        self.began_at = output_frames;
        self.newest_at = output_frames;
        (self.least, self.timed_least) = (i64::MAX, i64::MAX);
        self.sampled = 0;
        self.stride = 1;
        self.skipped = 0;
        self.groups = 0;
        self.least_interval = u64::MAX;
    }

    fn take_sample(&mut self, delay: i64) {
        self.skipped += 1;
        if self.skipped < self.stride {
            return;
        }
        self.skipped = 0;
        if self.sampled == SAMPLES {
            for n in 0..SAMPLES / 2 {
                self.samples[n] = self.samples[2 * n];
            }
            self.sampled = SAMPLES / 2;
            self.stride *= 2;
        }
        self.samples[self.sampled] = as_sample(delay);
        self.sampled += 1;
    }

    fn end_group(&mut self) {
        let group = self.groups as usize;
        if group < GROUPS {
            self.leasts[group] = as_sample(self.least);
            self.timed_leasts[group] = as_sample(self.timed_least);
            let passed = self.newest_at.wrapping_sub(self.began_at);
            self.ends[group] = passed.wrapping_sub(self.least as u64) as u32;
        }
        self.groups += 1;
    }

    fn end_window(&mut self) {
        self.end_group();
        if self.groups < LEAST_GROUPS {
            return;
        }
        let span = self.newest_at.wrapping_sub(self.began_at);
        // Media time that jumps from window to window is no reason to fit a line each time.
        if (span as i64) < (self.window_frames / 2) as i64 {
            return;
        }
        let interval = span as f64 / (self.groups - 1) as f64;
        let least_interval = (self.least_interval as f64).min(interval);
        let count = GROUPS.min(self.groups as usize);
        let ends = &self.ends[..count];
        let quanta = Grid::of(&mut self.leasts[..count], ends, least_interval);
        let stair = quanta.stair;
        let Grid {
            stair: hidden,
            size: grid,
            coarseness,
        } = if self.is_timed {
            let clock = self.rate_hz * CLOCK_SECONDS;
            Grid::of(&mut self.timed_leasts[..count], ends, clock)
        } else {
            quanta
        };

        let samples = &mut self.samples[..self.sampled];
        let least = samples
            .iter()
            .fold(i32::MAX, |least, &delay| least.min(delay));
        let least = f64::from(least);
        let at = samples.len() * 3 / 4;
        let upper = f64::from(*samples.select_nth_unstable(at).1);
        let most = upper + REACH * (upper - least).max(interval);
        let level = samples
            .iter()
            .map(|&delay| f64::from(delay).min(most))
            .sum::<f64>()
            / samples.len() as f64;
        if self.count == WINDOWS {
            self.windows.copy_within(1.., 0);
            self.count -= 1;
        }
        self.windows[self.count] = Window {
            at: self.began_at.wrapping_add(span / 2),
            level,
            stair,
            hidden,
            grid,
            coarseness,
            segment: self.segment,
            is_timed: self.is_timed,
        };
        self.count += 1;
        self.look_for_step();
        self.estimate = self.best_of_pasts();
    }

    /// Begins a new segment where the last windows all lie apart from those before. The window in between, in which
    /// the step may have been, stays with these.
    fn look_for_step(&mut self) {
        let windows = &mut self.windows[..self.count];
        let Some(first) = windows.len().checked_sub(2 * STEP_WINDOWS + 1) else {
            return;
        };
        let (before, after) = windows[first..].split_at_mut(STEP_WINDOWS + 1);
        let before = &before[..STEP_WINDOWS];
        if before[0].segment != after[0].segment {
            return;
        }
        let range = |windows: &[Window]| {
            let levels = || windows.iter().map(|window| window.level);
            (
                levels().fold(f64::INFINITY, f64::min),
                levels().fold(f64::NEG_INFINITY, f64::max),
            )
        };
        let (old, new) = (range(before), range(after));
        let coarseness = before
            .iter()
            .chain(after.iter())
            .fold(0.0, |most: f32, window| most.max(window.hidden));
        let drift = after[0].at.wrapping_sub(before[STEP_WINDOWS - 1].at) as f64 * USUAL_PPM * 1e-6;
        let least_step =
            self.rate_hz * LEAST_STEP_SECONDS + drift + f64::from(coarseness) * (17.0 / 16.0);
        if (new.0 - old.1).max(old.0 - new.1) > least_step {
            self.segment = self.segment.wrapping_add(1);
            for window in after {
                window.segment = self.segment;
            }
        }
    }

    /// The estimate of least error among those from all, the newer half, the newer quarter and so on of the windows; where steps recur, with
    /// and without them.
    fn best_of_pasts(&mut self) -> Option<Drift> {
        let mut best: Option<Drift> = None;
        let mut length = self.count;
        while length >= LEAST_WINDOWS {
            let windows = &self.windows[self.count - length..self.count];
            let recur = segments(windows, Steps::Apart).count() > RECURRING_STEPS + 1;
            let ways = [Steps::Apart, Steps::Drift];
            for steps in ways.into_iter().take(if recur { 2 } else { 1 }) {
                let drift = fit(
                    windows,
                    steps,
                    &mut self.points[..length],
                    &mut self.scratch[..length],
                    self.rate_hz,
                );
                if let Some(drift) = drift.filter(|drift| steps.may_be(drift))
                    && best.is_none_or(|best| is_better(drift, best, steps, length))
                {
                    best = Some(drift);
                }
            }
            length /= 2;
        }
        best.filter(|drift| f64::from(drift.ppm.abs()) <= MAX_PPM)
    }
}

/// What steps of the level are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Steps {
    /// No drift: each begins a segment.
    Apart,
    /// Drift: a sender that loses a few frames every second is slow.
    Drift,
}

impl Steps {
    /// Nobody captures more than there is.
    fn may_be(self, drift: &Drift) -> bool {
        self == Self::Apart || drift.ppm < 0.0
    }

    fn are_none_between(self, one: &Window, other: &Window) -> bool {
        let is_like = one.is_timed == other.is_timed;
        (self == Self::Drift && is_like) || one.segment == other.segment
    }
}

/// The points that delays are on.
#[derive(Clone, Copy, Debug)]
struct Grid {
    /// As [`Window::hidden`].
    stair: f32,
    /// As [`Window::grid`].
    size: f32,
    /// As [`Window::coarseness`].
    coarseness: f32,
}

impl Grid {
    /// `leasts` are the delays of the most prompt packets, `ends` the media times of these, and `step` is the distance of points that
    /// delays of packets that come alike would be on. The delays are overwritten.
    fn of(leasts: &mut [i32], ends: &[u32], step: f64) -> Self {
        let changes = changes(leasts, ends);
        let same = changes.partition_point(|&change| change == 0);
        let changing = &changes[same..];
        let various = (VARIOUS * changing.len() as f64 / changes.len() as f64).min(1.0);
        let stair = step * (1.0 - various);
        let (mut size, mut coarseness) = (stair, stair);
        if let Some(&usual) = changing.get(changing.len() / 4) {
            let usual = f64::from(usual);
            let squares = changing.iter().map(|&change| {
                let change = (f64::from(change) / usual).min(3.0);
                change * change / 2.0
            });
            let variance = squares.sum::<f64>() / changes.len() as f64;
            size += various * usual;
            coarseness += various * usual / (1.0 + DITHER * variance);
        }
        Self {
            stair: stair as f32,
            size: size as f32,
            coarseness: coarseness as f32,
        }
    }
}

/// By how much the most prompt packets' delays changed from one time to another, in order. Packets that are no whole number of
/// captured blocks come in a pattern that repeats itself: what the pattern does is no change. The changes are sorted, and take the place of
/// the delays.
fn changes<'a>(leasts: &'a mut [i32], ends: &[u32]) -> &'a [i32] {
    let count = leasts.len();
    let steps = ends.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]));
    let step = steps.filter(|&step| step > 0).min().unwrap_or(1);
    let neighbours = || (1..count).map(|after| (after - 1, after));
    let (_, changing) = share_changing(leasts, neighbours());
    let most = LONGEST_PATTERN.min(count / LEAST_PATTERNS) as u32;
    let (pattern, _) = (2..=most).fold((None, changing), |best, packets| {
        let distance = step.saturating_mul(packets);
        let (pairs, changing) = share_changing(leasts, pairs_apart(ends, distance));
        // By chance one of so many is somewhat less.
        if 2 * pairs > count && 2.0 * changing < best.1 {
            (Some(distance), 2.0 * changing)
        } else {
            best
        }
    });
    // In place: what is written was read.
    let mut changed = 0;
    let mut change = |before: usize, after: usize| {
        let change = leasts[after].abs_diff(leasts[before]);
        leasts[changed] = i32::try_from(change).unwrap_or(i32::MAX);
        changed += 1;
    };
    match pattern {
        Some(distance) => {
            pairs_apart(ends, distance).for_each(|(before, after)| change(before, after));
        }
        None => neighbours().for_each(|(before, after)| change(before, after)),
    }
    let changes = &mut leasts[..changed];
    changes.sort_unstable();
    changes
}

/// Fits lines of one slope through the segments, or a single one if `steps` are drift.
///
/// `points` and `scratch` are as long as `windows`.
fn fit(
    windows: &[Window],
    steps: Steps,
    points: &mut [Point],
    scratch: &mut [f64],
    rate_hz: f64,
) -> Option<Drift> {
    let mut slope = rough_slope(windows, steps, scratch)?;
    let mut rest = &mut *points;
    for run in segments(windows, steps) {
        let (part, after) = rest.split_at_mut(run.len());
        rest = after;
        for ((point, offset), window) in part.iter_mut().zip(&mut *scratch).zip(run) {
            point.residual = window.level - slope * frames_between(&run[0], window);
            *offset = point.residual;
        }
        let middle = median(&mut scratch[..run.len()]);
        part.iter_mut().for_each(|point| point.residual -= middle);
    }
    for (size, point) in scratch.iter_mut().zip(&*points) {
        *size = if point.residual < 0.0 {
            -point.residual
        } else {
            point.residual
        };
    }
    // A frame of deviation at least: delays are whole frames.
    let cutoff = CUTOFF * (1.4826 * median(scratch)).max(1.0);
    let (mut weights, mut squares) = (0.0, 0.0);
    for _ in 0..ROUNDS {
        (weights, squares) = (0.0, 0.0);
        let mut products = 0.0;
        let mut rest = &mut *points;
        for run in segments(windows, steps) {
            let (part, after) = rest.split_at_mut(run.len());
            rest = after;
            let (mut weight, mut time, mut level) = (0.0, 0.0, 0.0);
            for (point, window) in part.iter_mut().zip(run) {
                let share = point.residual / cutoff;
                let below = (1.0 - share * share).max(0.0);
                point.weight = below * below;
                weight += point.weight;
                time += point.weight * frames_between(&run[0], window);
                level += point.weight * (window.level - run[0].level);
            }
            if weight > 0.0 {
                time /= weight;
                level /= weight;
            }
            weights += weight;
            for (point, window) in part.iter_mut().zip(run) {
                point.time = frames_between(&run[0], window) - time;
                // The level from its segment's mean; less the slope it is a residual again.
                point.residual = window.level - run[0].level - level;
                squares += point.weight * point.time * point.time;
                products += point.weight * point.time * point.residual;
            }
        }
        if squares <= 0.0 {
            return None;
        }
        slope = products / squares;
        points
            .iter_mut()
            .for_each(|point| point.residual -= slope * point.time);
    }
    let (mut white, mut blocks) = (0.0, [0.0; BLOCKS]);
    for (n, point) in points.iter().enumerate() {
        let influence = point.weight * point.time * point.residual;
        white += influence * influence;
        blocks[n * BLOCKS / points.len()] += influence;
    }
    // Noise of neighbouring windows may be alike: then the sums of blocks vary more than noise that is white would let them.
    let grouped: f64 = blocks.iter().map(|sum| sum * sum).sum();
    let deviation = libm::sqrt(white.max(grouped) * (weights / (weights - 2.0))) / squares;
    // As long as a single line that were known as well.
    let length = libm::sqrt(12.0 * squares / weights);
    let mean = |of: fn(&Window) -> f32| {
        windows
            .iter()
            .map(|window| f64::from(of(window)))
            .sum::<f64>()
            / windows.len() as f64
    };
    let tilt = (slope * length).max(-slope * length);
    let stairs = (tilt / mean(|window| window.grid).max(1.0)).max(1.0);
    let unseen = UNSEEN * mean(|window| window.coarseness) / (length * stairs);
    let age_s = frames_between(&windows[0], &windows[windows.len() - 1]) / rate_hz / 2.0;
    let error_ppm = (1.0 + FEW / windows.len() as f64) * (ERRORS * deviation + unseen) * 1e6
        + WANDER_PPM_PER_S * age_s;
    (weights > 4.0 && error_ppm < 1e6).then_some(Drift {
        ppm: (-slope * 1e6) as f32,
        error_ppm: error_ppm as f32,
    })
}

/// Whether a past of so many windows tells more than a longer one, or than the same with its steps apart.
fn is_better(drift: Drift, best: Drift, steps: Steps, windows: usize) -> bool {
    let less = if steps == Steps::Apart { 2.0 } else { 1.0 };
    less * drift.error_ppm < best.error_ppm
        || has_ended(best, drift)
        || (windows >= BEGUN_WINDOWS && has_begun(best, drift))
}

/// Whether a sender that lost frames `before` loses no more, as a newer past says.
fn has_ended(before: Drift, newer: Drift) -> bool {
    let ppm = before.ppm.abs();
    f64::from(ppm) > USUAL_PPM && newer.ppm.abs() + newer.error_ppm < ENDED_SHARE * ppm
}

/// Whether a sender that had a clock `before` has begun to lose frames, as a newer past says.
fn has_begun(before: Drift, newer: Drift) -> bool {
    let was_clock = f64::from(before.ppm) > -USUAL_PPM;
    was_clock && f64::from(newer.ppm + newer.error_ppm - before.ppm) < -USUAL_PPM
}

/// The median of the slopes between windows a quarter of the past apart, or less where segments are short.
fn rough_slope(windows: &[Window], steps: Steps, scratch: &mut [f64]) -> Option<f64> {
    let mut lag = windows.len() / 4;
    while lag > 0 {
        let mut count = 0;
        for (from, to) in windows.iter().zip(&windows[lag..]) {
            if steps.are_none_between(from, to) {
                scratch[count] = (to.level - from.level) / frames_between(from, to).max(1.0);
                count += 1;
            }
        }
        if count >= windows.len() / 4 {
            return Some(median(&mut scratch[..count]));
        }
        lag /= 2;
    }
    None
}

fn segments(windows: &[Window], steps: Steps) -> impl Iterator<Item = &[Window]> {
    windows.chunk_by(move |one, other| steps.are_none_between(one, other))
}

/// Pairs of groups, in order, whose media times lie so far apart.
fn pairs_apart(ends: &[u32], distance: u32) -> impl Iterator<Item = (usize, usize)> {
    let mut after = 0;
    ends.iter().enumerate().filter_map(move |(before, &end)| {
        let ahead = |after: usize| Some(i64::from(ends.get(after)?.wrapping_sub(end) as i32));
        while ahead(after).is_some_and(|ahead| ahead < distance.into()) {
            after += 1;
        }
        (ahead(after) == Some(distance.into())).then_some((before, after))
    })
}

/// How many pairs there are, and the share of them whose delays differ.
fn share_changing(leasts: &[i32], pairs: impl Iterator<Item = (usize, usize)>) -> (usize, f64) {
    let (mut count, mut changing) = (0, 0);
    for (before, after) in pairs {
        count += 1;
        changing += usize::from(leasts[before] != leasts[after]);
    }
    (count, changing as f64 / count as f64)
}

fn as_sample(delay: i64) -> i32 {
    delay.clamp(i32::MIN.into(), i32::MAX.into()) as i32
}

fn frames_between(from: &Window, to: &Window) -> f64 {
    to.at.wrapping_sub(from.at) as f64
}

fn median(values: &mut [f64]) -> f64 {
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}
