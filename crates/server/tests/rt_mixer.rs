//! What the mixer takes of memory, counted by the allocator itself: nothing while datagrams come and go, and so much for each participant.
#![allow(unsafe_code, reason = "an allocator is unsafe by nature")]

mod mixing;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use antiphon_core::wire::{AUDIO_HEADER_BYTES, MAX_DATAGRAM_BYTES, OpusHeader};
use antiphon_core::{SampleFormat, SampleRate, Sender, SenderConfig};
use antiphon_server::mixer::Mixer;
use mixing::room;

/// What is left of the goal, 256 KiB for all that the server keeps of a participant, after some 80 KiB for QUIC and signalling.
const MOST_BYTES: usize = 176 * 1_024;

/// What a source takes more that sends Opus of every duration, with as much behind gaps as may wait.
const MOST_OPUS_BYTES: usize = 3 * 40 * 1_024;

thread_local! {
    /// Calls of the allocator by this thread, and the bytes that it holds: tests run side by side.
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

fn count(bytes: isize) {
    // A thread that is being torn down has nothing to test any more.
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
    let _ = BYTES.try_with(|held| held.set(held.get() + bytes));
}

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps this function's contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps this function's contract, which is the same.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn nothing_allocates_while_datagrams_come_and_go() {
    const PARTICIPANTS: u16 = 5;
    let mut mixer = room(PARTICIPANTS);
    let mut sender = Sender::new(SenderConfig {
        rate: SampleRate::Hz48000,
        format: SampleFormat::S16,
        channels: 2,
        packet_frames: 128,
    });
    let mut bytes = [0; MAX_DATAGRAM_BYTES];
    let (mut complete, mut due) = (0, 0);
    let before = CALLS.get();
    for n in 0..4_000u64 {
        sender.push(&[0.3; 256], 128);
        let length = sender.poll_datagram(&mut bytes).expect("a packet");
        for stream in 1..=PARTICIPANTS {
            // One falls silent, some are lost, and once the host sleeps.
            if (stream == 2 && n > 2_000) || (n + u64::from(stream)).is_multiple_of(97) {
                continue;
            }
            let slept_ms = if n > 3_000 { 500 } else { 0 };
            let now = Duration::from_nanos(n * 128 * 1_000_000_000 / 48_000)
                + Duration::from_millis(slept_ms);
            mixer.handle_audio(stream, &bytes[..length], now);
            let mut out = [0; MAX_DATAGRAM_BYTES];
            while let Some(mixed) = mixer.poll_datagram(now, &mut out) {
                match mixed.complete_at {
                    Some(_) => complete += 1,
                    None => due += 1,
                }
            }
            assert!(mixer.poll_timeout().is_some_and(|timeout| timeout > now));
        }
    }
    assert_eq!(CALLS.get() - before, 0);
    assert!(complete > 10_000 && due > 300, "{complete}, {due}");
    let stats = mixer.source_stats(1).expect("is in a mix").stream;
    assert!(stats.jitter.concealed_frames > 0, "{stats:?}");
}

#[test]
fn a_participant_takes_no_more_than_its_share_in_small_rooms_and_in_large_ones() {
    // What all rooms share.
    drop(room(2));
    for participants in [2, 8, 20] {
        let before = BYTES.get();
        let mixer = room(participants);
        let each = (BYTES.get() - before) as usize / usize::from(participants);
        drop(mixer);
        assert_eq!(BYTES.get(), before, "something is kept");
        println!("{participants} participants: {each} bytes each");
        assert!(each <= MOST_BYTES, "{each} bytes each of {participants}");
    }
}

/// Each duration, mono and stereo in turn, and every second packet is lost.
fn send_opus_of_every_kind(mixer: &mut Mixer) {
    const FILES: [(u16, [&[u8]; 2]); 3] = [
        (
            120,
            [
                include_bytes!("../../opus/tests/libopus/1-120"),
                include_bytes!("../../opus/tests/libopus/2-120"),
            ],
        ),
        (
            240,
            [
                include_bytes!("../../opus/tests/libopus/1-240"),
                include_bytes!("../../opus/tests/libopus/2-240"),
            ],
        ),
        (
            480,
            [
                include_bytes!("../../opus/tests/libopus/1-480"),
                include_bytes!("../../opus/tests/libopus/2-480"),
            ],
        ),
    ];
    for n in 0..1_000u32 {
        let now = Duration::from_millis(10 * u64::from(n));
        for (frames, files) in FILES {
            // The file's first packet, after its length.
            let (length, rest) = files[n as usize % 2].split_first_chunk().expect("a length");
            let packet = &rest[..u16::from_le_bytes(*length).into()];
            let mut bytes = vec![0; AUDIO_HEADER_BYTES + packet.len()];
            OpusHeader {
                channels: 1 + (n % 2) as u8,
                stream: 0,
                frames,
                sequence: n,
                timestamp: u64::from(2 * n) * u64::from(frames),
            }
            .write(&mut bytes);
            bytes[AUDIO_HEADER_BYTES..].copy_from_slice(packet);
            mixer.handle_audio(1, &bytes, now);
        }
        let mut out = [0; MAX_DATAGRAM_BYTES];
        while mixer.poll_datagram(now, &mut out).is_some() {}
    }
}

#[test]
fn opus_of_every_kind_takes_no_more_than_a_decoder_for_each_duration() {
    // What the decoders of a thread share.
    send_opus_of_every_kind(&mut room(2));
    let mut mixer = room(2);
    let before = BYTES.get();
    send_opus_of_every_kind(&mut mixer);
    let grown = (BYTES.get() - before) as usize;
    println!("{grown} bytes");
    assert!((40_000..=MOST_OPUS_BYTES).contains(&grown), "{grown} bytes");
}
