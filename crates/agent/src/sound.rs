//! What calls the audio thread's part: a sound card, or files and tones at the same pace.

pub mod file;
pub mod jack;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use antiphon_core::SampleRate;

use crate::duplex::Duplex;

/// Sound that runs on a thread of its own until this is dropped.
#[derive(Debug)]
pub struct Running {
    /// Set: the sound shall end.
    stop: Arc<AtomicBool>,
    /// Set: it has ended, by itself or because it was told.
    ended: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<Result<(), String>>>,
}

/// A sound input and output, about to run.
pub trait Device: Send {
    /// Frames per second.
    fn rate(&self) -> SampleRate;
    /// Channels captured, 1 to 8.
    fn input_channels(&self) -> usize;
    /// Channels played, 1 to 8.
    fn output_channels(&self) -> usize;
    /// What the output takes after a quantum was rendered, ns; `None`: unknown.
    fn output_ns(&self) -> Option<i64>;
    /// Calls the duplex quantum by quantum until `stop` is set, or the input has ended.
    ///
    /// # Errors
    /// In words for the user.
    fn run(self: Box<Self>, duplex: Duplex, stop: Arc<AtomicBool>) -> Result<(), String>;
}

impl Running {
    /// Starts.
    ///
    /// # Errors
    /// The system's, for want of a thread, in words.
    pub fn start(device: Box<dyn Device>, duplex: Duplex) -> Result<Self, String> {
        let (stop, ended) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let (stopped, finished) = (stop.clone(), ended.clone());
        let thread = thread::Builder::new()
            .name("sound".into())
            .spawn(move || {
                let result = device.run(duplex, stopped);
                finished.store(true, Ordering::Release);
                result
            })
            .map_err(|error| error.to_string())?;
        Ok(Self {
            stop,
            ended,
            thread: Some(thread),
        })
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Ends it, and says how that went.
    ///
    /// # Errors
    /// What went wrong while it ran, in words for the user.
    pub fn stop(mut self) -> Result<(), String> {
        self.join()
    }

    fn join(&mut self) -> Result<(), String> {
        self.stop.store(true, Ordering::Release);
        match self.thread.take().map(thread::JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err("the sound's thread panicked".into()),
            None => Ok(()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.join();
    }
}
