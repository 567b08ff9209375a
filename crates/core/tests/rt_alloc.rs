//! After construction nothing allocates: counted by the allocator itself.
#![allow(unsafe_code, reason = "an allocator is unsafe by nature")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use antiphon_core::conceal::Concealment;
use antiphon_core::player::MAX_QUANTUM_FRAMES;
use antiphon_core::wire::MAX_DATAGRAM_BYTES;
use antiphon_core::{
    Command, Player, PlayerConfig, SampleFormat, SampleRate, Sender, SenderConfig, Target,
};
use support::{Random, datagram, header};

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
    let mut kept = None;
    assert_eq!(calls(|| kept = Some(Box::new(1))), 1);
    assert_eq!(calls(|| drop(kept.take())), 1);
    assert_eq!(calls(|| ()), 0);
}

#[test]
fn the_sender_does_not_allocate() {
    let mut random = Random(1);
    let mut config = SenderConfig {
        rate: SampleRate::Hz48000,
        format: SampleFormat::S24,
        channels: 2,
        packet_frames: 64,
    };
    let input = vec![0.5; 8 * 1_024];
    let mut bytes = [0; MAX_DATAGRAM_BYTES];
    let mut sender = Sender::new(config);
    let found = calls(|| {
        for n in 0..20_000 {
            let frames = 1 + random.below(1_024) as usize;
            let channels = 1 + random.below(8) as usize;
            sender.push(&input[..channels * frames], frames);
            // Sometimes nobody drains it, and it overflows.
            while random.below(20) > 0 && sender.poll_datagram(&mut bytes).is_some() {}
            while random.below(20) > 0 && sender.poll_rendition(1, &mut bytes).is_some() {}
            if n % 100 == 0 {
                config.channels = 1 + random.below(8) as usize;
                config.packet_frames = 16 + random.below(497) as usize;
                sender.set_config(config);
                sender.set_rendition(1, (n % 300 > 0).then_some(config));
                sender.set_copies(n as usize / 100 % 2, n % 400 == 0);
                sender.set_muted(n % 200 == 0);
            }
            sender.take_peaks();
            sender.stats();
        }
    });
    assert!(sender.stats().packets > 0 && sender.stats().overrun_frames > 0);
    assert_eq!(found, 0);
}

#[test]
fn the_player_does_not_allocate() {
    let mut random = Random(2);
    let mut player = Player::new(PlayerConfig {
        rate: SampleRate::Hz48000,
        output_channels: 2,
        max_streams: 8,
        buffer_frames: 8_192,
        max_quantum_frames: MAX_QUANTUM_FRAMES,
        concealment: Concealment::Prediction,
    });
    // All that is fed is made before.
    let datagrams: Vec<Vec<u8>> = (0..4_096u64)
        .map(|n| {
            let mut bytes = datagram(&header(n as u32, 64 * n, 64));
            match n % 16 {
                3 => bytes.truncate(random.below(200) as usize),
                5 => bytes.resize(1_200, 1),
                7 => bytes[random.below(20) as usize] ^= 1 << random.below(8),
                _ => {}
            }
            bytes
        })
        .collect();
    let mut out = [0.0; 2 * 1_024];
    let found = calls(|| {
        for n in 0..200_000u64 {
            let id = random.below(10) as u32;
            // Mostly in order, with jumps and repetitions.
            let at = n / 8 + random.below(8) * random.below(4);
            player.handle_datagram(id, &datagrams[at as usize % datagrams.len()]);
            let frames = 16 + random.below(1_009) as usize;
            if n % 8 == 0 {
                player.process_quantum(&mut out[..2 * if n % 80 == 0 { frames } else { 64 }]);
            }
            let command = match random.below(400) {
                0 => Command::Add(id),
                1 => Command::Remove(id),
                2 => Command::Target(id, Target::Auto),
                3 => Command::Target(id, Target::Fixed(random.below(5_000) as u32)),
                4 => Command::Gain(id, random.unit() as f32 * 5.0),
                5 => Command::Pan(id, random.unit() as f32 * 2.0 - 1.0),
                6 => Command::Mute(id, n % 2 == 0),
                7 => Command::Solo(id, n % 3 == 0),
                8..30 => Command::Add(id),
                _ => continue,
            };
            let _ = player.handle_command(command);
            let _ = (player.stream_stats(id), player.take_peaks(id));
        }
    });
    assert_eq!(found, 0);
    let known: Vec<_> = (0..10).filter_map(|id| player.stream_stats(id)).collect();
    assert!(known.iter().any(|stats| stats.jitter.played_frames > 0));
    assert!(known.iter().any(|stats| stats.jitter.resyncs > 0));
    assert!(known.iter().any(|stats| stats.malformed_packets > 0));
}
