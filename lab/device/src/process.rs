//! What happens on the audio thread. RT: no allocation, no lock, no system call; everything is allocated before
//! activation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use antiphon_jack::{Cycle, Events, Handler, InPort, OutPort};

/// What the audio thread and the main thread tell each other.
#[derive(Default)]
pub(crate) struct Progress {
    /// Main: all ports are connected.
    pub(crate) armed: AtomicBool,
    /// Audio thread: the run has begun.
    pub(crate) running: AtomicBool,
    /// Audio thread: the run is complete.
    pub(crate) done: AtomicBool,
    /// JACK: the server shut down.
    pub(crate) server_gone: AtomicBool,
    /// JACK's xruns during the run, at least: see [`Events::xrun`].
    pub(crate) xruns: AtomicU32,
}

/// The run's place on the graph's clock, apart from JACK so that it can be tested.
pub(crate) struct Run {
    frames: usize,
    settle_frames: usize,
    position: usize,
    next_cycle: Option<u32>,
    quantum: Option<usize>,
    /// Cycles that did not begin where the cycle before ended.
    pub(crate) clock_gaps: u32,
    /// Frames the graph ran without us, in all.
    pub(crate) missed_frames: i64,
    /// Cycles of another size than the cycle before.
    pub(crate) quantum_changes: u32,
    progress: Arc<Progress>,
}

impl Run {
    pub(crate) fn new(frames: usize, settle_frames: usize, progress: Arc<Progress>) -> Self {
        Self {
            frames,
            settle_frames,
            position: 0,
            next_cycle: None,
            quantum: None,
            clock_gaps: 0,
            missed_frames: 0,
            quantum_changes: 0,
            progress,
        }
    }

    /// One cycle of `count` frames that begins at `cycle_start` on the graph's clock (which wraps). Returns the frames
    /// of the run in it: where they begin in the takes, where in the cycle, and how many they are.
    /// RT: no alloc, no lock, O(1).
    fn advance(&mut self, cycle_start: u32, count: usize) -> (usize, usize, usize) {
        if !self.progress.armed.load(Ordering::Acquire)
            || self.progress.done.load(Ordering::Relaxed)
        {
            return (0, 0, 0);
        }
        let settling = self.settle_frames.min(count);
        self.settle_frames -= settling;
        if settling < count {
            self.progress.running.store(true, Ordering::Relaxed);
        }
        if self.position > 0 {
            // Signed: a late reader may see the next cycle's start first and this one's after it, which loses nothing.
            let jump = self
                .next_cycle
                .map_or(0, |next| cycle_start.wrapping_sub(next).cast_signed());
            if jump != 0 {
                self.clock_gaps += 1;
                self.missed_frames += i64::from(jump);
            }
            if self.quantum.is_some_and(|quantum| quantum != count) {
                self.quantum_changes += 1;
            }
        }
        self.next_cycle = Some(cycle_start.wrapping_add(count as u32));
        self.quantum = Some(count);

        let begin = self.position;
        let taken = (count - settling).min(self.frames - begin);
        self.position += taken;
        if self.position == self.frames {
            self.progress.running.store(false, Ordering::Relaxed);
            self.progress.done.store(true, Ordering::Release);
        }
        (begin, settling, taken)
    }
}

/// The process handler: plays the takes, fills the recordings.
pub(crate) struct Device {
    pub(crate) outputs: Vec<(OutPort, Vec<f32>)>,
    pub(crate) inputs: Vec<(InPort, Vec<f32>)>,
    pub(crate) run: Run,
}

impl Handler for Device {
    fn process(&mut self, cycle: &Cycle<'_>) {
        let (begin, offset, count) = self.run.advance(cycle.start(), cycle.frames as usize);
        for (port, take) in &mut self.outputs {
            let out = cycle.to_play(port);
            out.fill(0.0);
            let left = &take[begin.min(take.len())..];
            let played = count.min(left.len());
            out[offset..offset + played].copy_from_slice(&left[..played]);
        }
        for (port, recording) in &mut self.inputs {
            recording[begin..begin + count]
                .copy_from_slice(&cycle.heard(port)[offset..offset + count]);
        }
    }

    fn events(&self) -> Arc<dyn Events> {
        Arc::clone(&self.run.progress) as Arc<dyn Events>
    }
}

impl Events for Progress {
    fn xrun(&self) {
        if self.running.load(Ordering::Relaxed) {
            self.xruns.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn server_gone(&self) {
        self.server_gone.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn armed(frames: usize, settle: usize) -> Run {
        let progress = Arc::new(Progress::default());
        progress.armed.store(true, Ordering::Relaxed);
        Run::new(frames, settle, progress)
    }

    #[test]
    fn nothing_moves_before_the_ports_are_connected() {
        let mut run = Run::new(100, 0, Arc::default());
        assert_eq!(run.advance(0, 64), (0, 0, 0));
        assert_eq!(run.position, 0);
    }

    #[test]
    fn settles_then_covers_every_frame_once() {
        let mut run = armed(150, 96);
        assert_eq!(run.advance(0, 64), (0, 64, 0));
        assert_eq!(run.advance(64, 64), (0, 32, 32));
        assert_eq!(run.advance(128, 64), (32, 0, 64));
        assert_eq!(run.advance(192, 64), (96, 0, 54));
        assert!(run.progress.done.load(Ordering::Relaxed));
        assert_eq!(run.advance(256, 64), (0, 0, 0));
        assert_eq!((run.clock_gaps, run.quantum_changes), (0, 0));
    }

    #[test]
    fn counts_gaps_of_the_clock_across_its_wrap() {
        let mut run = armed(1000, 0);
        run.advance(u32::MAX - 63, 64);
        run.advance(0, 64);
        assert_eq!(run.clock_gaps, 0);
        run.advance(192, 32);
        assert_eq!(
            (run.clock_gaps, run.missed_frames, run.quantum_changes),
            (1, 128, 1)
        );
    }
}
