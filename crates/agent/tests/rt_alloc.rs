//! The audio thread's part does not allocate: counted by the allocator itself.
#![allow(unsafe_code, reason = "an allocator is unsafe by nature")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;

use antiphon_agent::core::wire::AudioHeader;
use antiphon_agent::core::{Command, SampleFormat, SampleRate};
use antiphon_agent::duplex::{self, DuplexConfig, Observation};

thread_local! {
    /// Calls of the allocator by this thread: tests run side by side.
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

fn count() {
    // A thread that is being torn down has nothing to test any more.
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
}

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps this function's contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller keeps this function's contract, which is the same.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn calls(work: impl FnOnce()) -> u64 {
    let before = CALLS.get();
    work();
    CALLS.get() - before
}

#[test]
fn the_counter_counts() {
    assert_eq!(calls(|| drop(black_box(Box::new(1)))), 2);
    assert_eq!(calls(|| ()), 0);
}

/// The callbacks of cpal's streams, with what comes from a card that runs ahead of another, stands still, and has what is no room for.
#[cfg(any(feature = "alsa", not(target_os = "linux")))]
#[test]
fn two_streams_of_a_card_do_not_allocate() {
    use antiphon_agent::sound::cpal::pair;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    let (duplex, mut far, _sleeper) = duplex::pair(CONFIG).expect("a duplex");
    let faults = duplex.faults();
    let (mut capture, mut playback) = pair(&[1, 0], 4, 2, duplex);
    let captured = [i16::MAX; 4 * 66];
    let mut heard = [0i16; 2 * 64];
    let (mut found, mut frames) = (0, 0);
    for n in 0..20_000 {
        if n % 5_000 < 4_000 {
            found += calls(|| capture.process(&captured, Duration::from_millis(3)));
        }
        if n % 5_000 > 500 {
            found += calls(|| playback.process(&mut heard, Duration::from_millis(3)));
        }
        while far.take_block(|_, count, _| frames += count) {}
    }
    assert_eq!(found, 0, "calls of the allocator");
    assert_eq!(frames, 4 * 4_499 * 64);
    let xruns = faults.xruns.load(Ordering::Relaxed);
    assert!(xruns > 4 * 900, "{xruns}");
}

const CONFIG: DuplexConfig = DuplexConfig {
    rate: SampleRate::Hz48000,
    input_channels: 2,
    output_channels: 2,
};

/// A datagram of 64 frames, mono, all at half of full scale.
fn datagram(packet: u64) -> Vec<u8> {
    let header = AudioHeader {
        format: SampleFormat::S16,
        rate: SampleRate::Hz48000,
        channels: 1,
        stream: 0,
        frames: 64,
        sequence: packet as u32,
        timestamp: packet * 64,
    };
    let mut bytes = vec![0; header.datagram_bytes()];
    header.write(&mut bytes);
    for sample in bytes[20..].chunks_exact_mut(2) {
        sample.copy_from_slice(&0x4000i16.to_le_bytes());
    }
    bytes
}

#[test]
fn a_quantum_does_not_allocate() {
    let (mut duplex, mut far, _sleeper) = duplex::pair(CONFIG).expect("a duplex");
    let captured = [0.5; 2 * 64];
    let mut heard = [0.0; 2 * 64];
    let (mut blocks, mut frames, mut observed, mut played) = (0, 0, 0, 0);
    let mut found = 0;
    for n in 0..20_000u64 {
        match n % 5_000 {
            0 => drop(far.command(Command::Add(n as u32 / 5_000))),
            4_999 => drop(far.command(Command::Remove(n as u32 / 5_000))),
            _ => {}
        }
        // Every tenth is lost; and those of a stream that is not there, or are nonsense, are for nobody.
        if n % 10 != 0 {
            far.give(n as u32 / 5_000, &datagram(n));
        }
        far.give(77, &datagram(n));
        far.give(0, &[1; 30]);
        found += calls(|| {
            if n % 1_000 == 700 {
                duplex.miss(128);
            }
            duplex.process(&captured, &mut heard);
        });
        // For a while nobody takes what was captured.
        while !(5_000..9_000).contains(&n)
            && far.take_block(|_, count, _| {
                blocks += 1;
                frames += count as u64;
            })
        {}
        while let Some(observation) = far.observe() {
            match observation {
                Observation::Stream { stats, .. } => played = stats.jitter.played_frames,
                Observation::Mix { rendered, .. } => observed = rendered,
            }
        }
    }
    assert_eq!(found, 0, "calls of the allocator");
    assert!(played > 200_000, "{played} frames of the last stream");
    assert!(observed > 1_277_000, "{observed} frames rendered");
    assert_eq!(
        frames,
        20_000 * 64 + 20 * 128,
        "what was lost is made up, and takes its time"
    );
    assert!(blocks < 20_000, "something was lost in between");
    let faults = duplex.faults();
    let lost = faults
        .lost_capture_frames
        .load(std::sync::atomic::Ordering::Relaxed);
    assert!(lost > 0 && lost % 64 == 0, "{lost} frames lost");
}
