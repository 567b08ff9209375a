//! The engine for the browser: a plain C ABI over `antiphon-core`, without logic of its own.
//!
//! One module instance serves one thread and holds at most one [`Sender`], one [`Player`], one [`Listening`], one [`Mixing`], and a [`Ladder`] and a
//! [`Sending`] for each of `MAX_LISTENERS`; the module imports nothing and its memory does not grow after `*_new`. Bytes and samples pass through fixed areas of its memory, whose addresses `*_ptr` give. Functions return a
//! non-negative result, or one of the negative codes below. The TypeScript side of this contract is `web/src/shared/engine.ts`.
//!
//! No wasm-bindgen: its glue needs TextDecoder, which an AudioWorkletGlobalScope lacks.

use core::cell::UnsafeCell;

use antiphon_core::conceal::Concealment;
use antiphon_core::mixing::{MemberObservation, MixObservation};
use antiphon_core::path::{Carried, ListenerObservation, SenderObservation};
use antiphon_core::player::MAX_QUANTUM_FRAMES;
use antiphon_core::sender::{MAX_RENDITIONS, QUEUE_FRAMES};
use antiphon_core::wire::{MAX_CHANNELS, MAX_DATAGRAM_BYTES, MAX_DECODED_BYTES};
use antiphon_core::{
    Command, Ladder, Listening, Mixing, Observation, Pin, Player, PlayerConfig, SampleFormat,
    SampleRate, Sender, SenderConfig, Sending, StreamFormat, Target,
};

/// An argument is out of its range; nothing was done.
const BAD_ARGUMENT: i32 = -1;
/// `*_new` has not been called.
const NOT_READY: i32 = -2;
/// The command names a stream that does not exist, exists already, or finds no room.
const COMMAND_REFUSED: i32 = -3;

/// Numbers in a statistics record. Their order is the ABI.
const STATS_FIELDS: usize = 31;

/// Listeners whose paths are judged, and participants of a mix.
const MAX_LISTENERS: usize = 64;

/// The engine's halves.
struct Engine {
    sender: Option<Sender>,
    player: Option<Player>,
    ladders: [Option<Ladder>; MAX_LISTENERS],
    sendings: [Option<Sending>; MAX_LISTENERS],
    listening: Listening,
    mixing: Option<Mixing>,
    /// Seen for the mix's next review.
    members: Vec<MemberObservation>,
    output_channels: usize,
}

/// The areas that the host reads and writes. All zero at first, so that they take no room in the module's file.
struct Areas {
    datagram: [u8; MAX_DECODED_BYTES],
    capture: [f32; MAX_CHANNELS * QUEUE_FRAMES],
    output: [f32; MAX_CHANNELS * MAX_QUANTUM_FRAMES],
    stats: [f64; STATS_FIELDS],
}

struct OneThread<T>(UnsafeCell<T>);

// SAFETY: the module has private, unshared memory, and so exactly one thread.
unsafe impl<T> Sync for OneThread<T> {}

static ENGINE: OneThread<Engine> = OneThread(UnsafeCell::new(Engine {
    sender: None,
    player: None,
    ladders: [const { None }; MAX_LISTENERS],
    sendings: [const { None }; MAX_LISTENERS],
    listening: Listening::new(),
    mixing: None,
    members: Vec::new(),
    output_channels: 0,
}));
static AREAS: OneThread<Areas> = OneThread(UnsafeCell::new(Areas {
    datagram: [0; MAX_DECODED_BYTES],
    capture: [0.0; MAX_CHANNELS * QUEUE_FRAMES],
    output: [0.0; MAX_CHANNELS * MAX_QUANTUM_FRAMES],
    stats: [0.0; STATS_FIELDS],
}));

/// The engine. Each export calls this at most once, and none calls another export.
fn engine() -> &'static mut Engine {
    // SAFETY: one thread, and exports do not nest, so no other reference is alive.
    unsafe { &mut *ENGINE.0.get() }
}

/// The areas. Each export calls this at most once, and none calls another export.
fn areas() -> &'static mut Areas {
    // SAFETY: one thread, and exports do not nest, so no other reference is alive.
    unsafe { &mut *AREAS.0.get() }
}

/// Address of the area for one datagram or what was decoded of one, [`MAX_DECODED_BYTES`] long.
#[unsafe(no_mangle)]
pub extern "C" fn datagram_ptr() -> *const u8 {
    areas().datagram.as_ptr()
}

/// Address of the area for captured audio, f32 `[channel][frame]`, [`QUEUE_FRAMES`] frames of [`MAX_CHANNELS`] channels.
#[unsafe(no_mangle)]
pub extern "C" fn capture_ptr() -> *const f32 {
    areas().capture.as_ptr()
}

/// Address of the area for the mix, f32 `[channel][frame]`.
#[unsafe(no_mangle)]
pub extern "C" fn output_ptr() -> *const f32 {
    areas().output.as_ptr()
}

/// Address of the area for statistics: f64 numbers.
#[unsafe(no_mangle)]
pub extern "C" fn stats_ptr() -> *const f64 {
    areas().stats.as_ptr()
}

fn sender_config(
    rate_hz: u32,
    bits: u32,
    channels: u32,
    packet_frames: u32,
) -> Option<SenderConfig> {
    Some(SenderConfig {
        rate: SampleRate::from_hz(rate_hz)?,
        format: SampleFormat::from_bits(bits)?,
        channels: channels as usize,
        packet_frames: packet_frames as usize,
    })
}

/// Makes the sender, or changes what it sends. 0, or `BAD_ARGUMENT`.
#[unsafe(no_mangle)]
pub extern "C" fn sender_configure(
    rate_hz: u32,
    bits: u32,
    channels: u32,
    packet_frames: u32,
) -> i32 {
    let Some(config) = sender_config(rate_hz, bits, channels, packet_frames) else {
        return BAD_ARGUMENT;
    };
    match &mut engine().sender {
        Some(sender) => sender.set_config(config),
        none => *none = Some(Sender::new(config)),
    }
    0
}

/// Begins or changes rendition `index`, 1 to `MAX_RENDITIONS` - 1; ends it if `bits` is 0. 0, or `BAD_ARGUMENT`.
#[unsafe(no_mangle)]
pub extern "C" fn sender_set_rendition(
    index: u32,
    rate_hz: u32,
    bits: u32,
    channels: u32,
    packet_frames: u32,
) -> i32 {
    let Some(sender) = &mut engine().sender else {
        return NOT_READY;
    };
    let config = sender_config(rate_hz, bits, channels, packet_frames);
    let index = index as usize;
    if !(1..MAX_RENDITIONS).contains(&index) || (bits != 0 && config.is_none()) {
        return BAD_ARGUMENT;
    }
    sender.set_rendition(index, config);
    0
}

/// Whether each datagram of rendition `index` carries a copy of the one before. 0, or `BAD_ARGUMENT`.
#[unsafe(no_mangle)]
pub extern "C" fn sender_set_copies(index: u32, carried: u32) -> i32 {
    let Some(sender) = &mut engine().sender else {
        return NOT_READY;
    };
    let index = index as usize;
    if index >= MAX_RENDITIONS {
        return BAD_ARGUMENT;
    }
    sender.set_copies(index, carried != 0);
    0
}

/// Sends silence instead of the capture if not 0.
#[unsafe(no_mangle)]
pub extern "C" fn sender_set_muted(muted: u32) -> i32 {
    let Some(sender) = &mut engine().sender else {
        return NOT_READY;
    };
    sender.set_muted(muted != 0);
    0
}

/// Pushes `frames` frames of `channels` channels from the capture area, laid out `[channel][frame]` without gaps.
#[unsafe(no_mangle)]
pub extern "C" fn sender_push(channels: u32, frames: u32) -> i32 {
    let Some(sender) = &mut engine().sender else {
        return NOT_READY;
    };
    let (channels, frames) = (channels as usize, frames as usize);
    if !(1..=MAX_CHANNELS).contains(&channels) || frames > QUEUE_FRAMES {
        return BAD_ARGUMENT;
    }
    sender.push(&areas().capture[..channels * frames], frames);
    0
}

/// What was pushed ends a captured block of so many frames: see [`Sender::flush`].
#[unsafe(no_mangle)]
pub extern "C" fn sender_flush(block_frames: u32) -> i32 {
    let Some(sender) = &mut engine().sender else {
        return NOT_READY;
    };
    sender.flush(block_frames as usize);
    0
}

/// Lets media time pass without frames: what is pushed next is `frames` frames later. What waits for the rest of its packet is dropped, and counted.
#[unsafe(no_mangle)]
pub extern "C" fn sender_pass(frames: f64) -> i32 {
    let Some(sender) = &mut engine().sender else {
        return NOT_READY;
    };
    sender.pass(frames as u64);
    0
}

/// Writes the next datagram of rendition `index`, 0 being the main one, into its area: its length in bytes, or 0 if there is none yet, or no such
/// rendition.
#[unsafe(no_mangle)]
pub extern "C" fn sender_poll_rendition(index: u32) -> i32 {
    let Some(sender) = &mut engine().sender else {
        return NOT_READY;
    };
    sender
        .poll_rendition(index as usize, &mut areas().datagram)
        .map_or(0, |length| length as i32)
}

/// Makes ladder `slot` for `rungs` formats, at the first of them, or tells it of others, of which `rung` is sent now; 0 formats end it. 0, or
/// `BAD_ARGUMENT`.
#[unsafe(no_mangle)]
pub extern "C" fn ladder_configure(slot: u32, rungs: u32, rung: u32) -> i32 {
    let Some(ladder) = engine().ladders.get_mut(slot as usize) else {
        return BAD_ARGUMENT;
    };
    match ladder {
        Some(known) if rungs > 0 => known.set_rungs(rungs as usize, rung as usize),
        _ => *ladder = (rungs > 0).then(|| Ladder::new(rungs as usize)),
    }
    0
}

/// Whether ladder `slot` is to be reviewed at once, `crowded` as for `ladder_review`: 1 or 0, or `NOT_READY`.
#[unsafe(no_mangle)]
pub extern "C" fn ladder_fails(slot: u32, crowded: u32) -> i32 {
    let Some(Some(ladder)) = engine().ladders.get(slot as usize) else {
        return NOT_READY;
    };
    i32::from(ladder.fails(crowded))
}

/// Reviews ladder `slot`. `lost_share` is NaN when unknown; `can` is 1 if copies can be sent, plus 2 if lanes can be added.
///
/// The rung (0 to 255), plus 256 for copies, plus 512 to add lanes; or `NOT_READY`.
#[unsafe(no_mangle)]
pub extern "C" fn ladder_review(
    slot: u32,
    elapsed_ms: u32,
    offered: u32,
    crowded: u32,
    lost_share: f32,
    can: u32,
) -> i32 {
    let Some(Some(ladder)) = engine().ladders.get_mut(slot as usize) else {
        return NOT_READY;
    };
    let decision = ladder.review(&Observation {
        elapsed_ms,
        offered,
        crowded,
        lost_share: (!lost_share.is_nan()).then_some(lost_share),
        can_copy: can & 1 != 0,
        can_add_lanes: can & 2 != 0,
    });
    decision.rung.min(255) as i32
        | i32::from(decision.copies) << 8
        | i32::from(decision.add_lanes) << 9
}

/// 0 automatic, 1 direct, 2 relayed, 3 mixed.
fn pin(code: u32) -> Option<Pin> {
    match code {
        0 => Some(Pin::Automatic),
        1 => Some(Pin::Direct),
        2 => Some(Pin::Relayed),
        3 => Some(Pin::Mixed),
        _ => None,
    }
}

/// Begins the choice of path for listener `slot` anew. 0, or `BAD_ARGUMENT`.
#[unsafe(no_mangle)]
pub extern "C" fn sending_reset(slot: u32) -> i32 {
    let Some(sending) = engine().sendings.get_mut(slot as usize) else {
        return BAD_ARGUMENT;
    };
    *sending = Some(Sending::new());
    0
}

/// Reviews the choice of path for listener `slot`. `pinned`: 0 automatic, 1 direct, 2 relayed, 3 mixed. `state` is 1 if a direct lane is
/// open, plus 2 if a relay session is; plus 4 if the lanes did not carry all, plus 8 if something came by them, plus 16 and 32 for the same of the relay. The shares of loss are NaN when unknown.
///
/// 1 to send directly, plus 2 to send to the relay; `BAD_ARGUMENT`, or `NOT_READY`.
#[unsafe(no_mangle)]
pub extern "C" fn sending_review(
    slot: u32,
    elapsed_ms: u32,
    pinned: u32,
    state: u32,
    direct_lost_share: f32,
    relay_lost_share: f32,
    relay_listeners: u32,
) -> i32 {
    let Some(pin) = pin(pinned) else {
        return BAD_ARGUMENT;
    };
    let Some(Some(sending)) = engine().sendings.get_mut(slot as usize) else {
        return NOT_READY;
    };
    let known = |share: f32| (!share.is_nan()).then_some(share);
    let carried = |state: u32| Carried {
        is_short: state & 1 != 0,
        is_answered: state & 2 != 0,
    };
    let route = sending.review(&SenderObservation {
        elapsed_ms,
        pin,
        is_direct_open: state & 1 != 0,
        is_relay_open: state & 2 != 0,
        direct_lost_share: known(direct_lost_share),
        relay_lost_share: known(relay_lost_share),
        direct: carried(state >> 2),
        relay: carried(state >> 4),
        relay_listeners,
    });
    i32::from(route.direct) | i32::from(route.relay) << 1
}

/// Reviews what to ask the relay for. `pinned` as for `sending_review`; `is_relay_open` is not 0 if a session is open.
///
/// 0 nothing, 1 every stream, 2 a mix; or `BAD_ARGUMENT`.
#[unsafe(no_mangle)]
pub extern "C" fn listening_review(
    elapsed_ms: u32,
    pinned: u32,
    is_relay_open: u32,
    streams: u32,
    forwarded: u32,
    aged: u32,
) -> i32 {
    let Some(pin) = pin(pinned) else {
        return BAD_ARGUMENT;
    };
    let asked = engine().listening.review(&ListenerObservation {
        elapsed_ms,
        pin,
        is_relay_open: is_relay_open != 0,
        streams,
        forwarded,
        aged,
    });
    asked as i32
}

/// Begins anew with nobody in the mix. 0.
#[unsafe(no_mangle)]
pub extern "C" fn mixing_new() -> i32 {
    let engine = engine();
    engine.mixing = Some(Mixing::new(MAX_LISTENERS));
    engine.members = Vec::with_capacity(MAX_LISTENERS);
    0
}

/// Tells the mix's next review of one participant. `state` is 1 if it shall be heard in the mix, plus 2 if its stream comes forwarded. 0, also for one too
/// many, who is not told of; or `NOT_READY`.
#[unsafe(no_mangle)]
pub extern "C" fn mixing_see(stream: u32, state: u32, played_frames: f64) -> i32 {
    let engine = engine();
    if engine.mixing.is_none() {
        return NOT_READY;
    }
    if engine.members.len() < MAX_LISTENERS {
        engine.members.push(MemberObservation {
            stream,
            is_wanted: state & 1 != 0,
            is_forwarded: state & 2 != 0,
            played_frames: played_frames as u64,
        });
    }
    0
}

/// Reviews who is heard in the mix, of those who were told of since the last time. `mix_played_frames`: of the mix so far, 0 while there is none. 1 if a stream
/// of the mix is needed, else 0; or `NOT_READY`.
#[unsafe(no_mangle)]
pub extern "C" fn mixing_review(elapsed_ms: u32, mix_played_frames: f64, settle_ms: u32) -> i32 {
    let engine = engine();
    let Some(mixing) = &mut engine.mixing else {
        return NOT_READY;
    };
    let seen = MixObservation {
        elapsed_ms,
        played_frames: mix_played_frames as u64,
        settle_ms,
    };
    mixing.review(&seen, &engine.members);
    engine.members.clear();
    mixing.is_needed().into()
}

/// A participant's place in the mix: 1 if it shall be in it, plus 2 if it is heard there, plus 4 if its own stream is not needed, plus 8 if it is held up; or
/// `NOT_READY`.
#[unsafe(no_mangle)]
pub extern "C" fn mixing_place(stream: u32) -> i32 {
    let Some(mixing) = &engine().mixing else {
        return NOT_READY;
    };
    i32::from(mixing.sources().any(|source| source == stream))
        | i32::from(mixing.is_mixed(stream)) << 1
        | i32::from(!mixing.needs_own(stream)) << 2
        | i32::from(mixing.is_held_up(stream)) << 3
}

/// Writes the sender's statistics: captured, sent, overrun frames, packets, then one peak a channel (reset by reading).
#[unsafe(no_mangle)]
pub extern "C" fn sender_stats() -> i32 {
    let Some(sender) = &mut engine().sender else {
        return NOT_READY;
    };
    let counters = sender.stats();
    let peaks = sender.take_peaks();
    let numbers = [
        counters.captured_frames as f64,
        counters.sent_frames as f64,
        counters.overrun_frames as f64,
        counters.packets as f64,
    ];
    let numbers = numbers.into_iter().chain(peaks.map(f64::from));
    areas()
        .stats
        .iter_mut()
        .zip(numbers)
        .for_each(|(slot, number)| *slot = number);
    0
}

/// Makes the player. 0, or `BAD_ARGUMENT`.
#[unsafe(no_mangle)]
pub extern "C" fn player_new(
    rate_hz: u32,
    output_channels: u32,
    max_streams: u32,
    buffer_frames: u32,
) -> i32 {
    let Some(rate) = SampleRate::from_hz(rate_hz) else {
        return BAD_ARGUMENT;
    };
    let fits = (1..=MAX_CHANNELS as u32).contains(&output_channels)
        && (1..=256).contains(&max_streams)
        && (2_048..=1 << 17).contains(&buffer_frames)
        && buffer_frames.is_power_of_two();
    if !fits {
        return BAD_ARGUMENT;
    }
    let engine = engine();
    engine.output_channels = output_channels as usize;
    engine.player = Some(Player::new(PlayerConfig {
        rate,
        output_channels: output_channels as usize,
        max_streams: max_streams as usize,
        buffer_frames: buffer_frames as usize,
        max_quantum_frames: MAX_QUANTUM_FRAMES,
        concealment: Concealment::Prediction,
    }));
    0
}

/// Carries out a command. Codes: 0 add, 1 remove, 2 gain, 3 pan, 4 mute, 5 solo, 6 target in frames (negative: automatic), 7 glitch
/// budget, a share, 8 automatic target to start with, in frames.
#[unsafe(no_mangle)]
pub extern "C" fn player_command(code: u32, stream: u32, value: f32) -> i32 {
    let Some(player) = &mut engine().player else {
        return NOT_READY;
    };
    let command = match code {
        0 => Command::Add(stream),
        1 => Command::Remove(stream),
        2 => Command::Gain(stream, value),
        3 => Command::Pan(stream, value),
        4 => Command::Mute(stream, value != 0.0),
        5 => Command::Solo(stream, value != 0.0),
        6 if value < 0.0 => Command::Target(stream, Target::Auto),
        6 => Command::Target(stream, Target::Fixed(value as u32)),
        7 => Command::Budget(stream, value),
        8 => Command::Expect(stream, value as u32),
        _ => return BAD_ARGUMENT,
    };
    player
        .handle_command(command)
        .map_or(COMMAND_REFUSED, |()| 0)
}

/// Takes the datagram of `length` bytes in its area. `at_ms` is when it came, by the clock of `player_process_quantum`; NaN if nobody looked.
#[unsafe(no_mangle)]
pub extern "C" fn player_handle_datagram(stream: u32, length: u32, at_ms: f64) -> i32 {
    let Some(player) = &mut engine().player else {
        return NOT_READY;
    };
    let length = length as usize;
    if length > MAX_DATAGRAM_BYTES {
        return BAD_ARGUMENT;
    }
    let bytes = &areas().datagram[..length];
    if at_ms.is_nan() {
        player.handle_datagram(stream, bytes);
    } else {
        player.handle_datagram_at(stream, bytes, as_ns(at_ms));
    }
    0
}

/// Takes what the host decoded of an Opus datagram, of `length` bytes in the datagram's area: that datagram's header, then its
/// samples, f32, interleaved. Never for bytes that came from the network as they are.
#[unsafe(no_mangle)]
pub extern "C" fn player_handle_decoded(stream: u32, length: u32) -> i32 {
    let Some(player) = &mut engine().player else {
        return NOT_READY;
    };
    let Some(bytes) = areas().datagram.get(..length as usize) else {
        return BAD_ARGUMENT;
    };
    player.handle_decoded(stream, bytes);
    0
}

/// Renders `frames` frames into the output area. `now_ms`, whole or not, is what the host's clock reads, from anywhere in the past.
#[unsafe(no_mangle)]
pub extern "C" fn player_process_quantum(frames: u32, now_ms: f64) -> i32 {
    let Engine {
        player: Some(player),
        output_channels,
        ..
    } = engine()
    else {
        return NOT_READY;
    };
    let frames = frames as usize;
    if !(1..=MAX_QUANTUM_FRAMES).contains(&frames) {
        return BAD_ARGUMENT;
    }
    player.keep_time(as_ns(now_ms));
    player.process_quantum(&mut areas().output[..*output_channels * frames]);
    0
}

fn as_ns(ms: f64) -> u64 {
    (ms * 1e6) as u64
}

/// Frames rendered so far or slipped by, or `NOT_READY`.
#[unsafe(no_mangle)]
pub extern "C" fn player_rendered_frames() -> f64 {
    let Some(player) = &engine().player else {
        return f64::from(NOT_READY);
    };
    player.rendered_frames() as f64
}

/// Datagrams that came for no stream, or `NOT_READY`.
#[unsafe(no_mangle)]
pub extern "C" fn player_stray_datagrams() -> f64 {
    let Some(player) = &engine().player else {
        return f64::from(NOT_READY);
    };
    player.stray_datagrams() as f64
}

/// Writes a stream's statistics. Unknown numbers are NaN. 0, or `COMMAND_REFUSED` if there is no such stream.
///
/// Order: received, lost, reordered, duplicate packets · late, ancient, malformed packets · played, concealed, skipped, late frames ·
/// underruns, resyncs · buffered, target frames · channels, bits (unknown of Opus, too) · peak of even and odd channels (reset by
/// reading) · playhead · spread frames · drift and its error, ppm · 1 if resampled · copied frames · received and lost packets of the
/// direct path, and of the relayed one (the first four are of both together) · packets of which only a copy came.
#[unsafe(no_mangle)]
pub extern "C" fn player_stream_stats(stream: u32) -> i32 {
    let Some(player) = &mut engine().player else {
        return NOT_READY;
    };
    let Some(known) = player.stream_stats(stream) else {
        return COMMAND_REFUSED;
    };
    let peaks = player.take_peaks(stream).unwrap_or_default();
    let numbers = [
        known.sequence.received as f64,
        known.sequence.lost as f64,
        known.sequence.reordered as f64,
        known.sequence.duplicate as f64,
        known.jitter.late_packets as f64,
        known.ancient_packets as f64,
        known.malformed_packets as f64,
        known.jitter.played_frames as f64,
        known.jitter.concealed_frames as f64,
        known.jitter.skipped_frames as f64,
        known.jitter.late_frames as f64,
        known.jitter.underruns as f64,
        known.jitter.resyncs as f64,
        known
            .buffered_frames
            .map_or(f64::NAN, |frames| frames as f64),
        known.target_frames as f64,
        known.channels.map_or(f64::NAN, f64::from),
        match known.format {
            Some(StreamFormat::Samples(format)) => f64::from(format.bits()),
            Some(StreamFormat::Opus) | None => f64::NAN,
        },
        f64::from(peaks[0]),
        f64::from(peaks[1]),
        // Before the first frame, whose number may be 0, the playhead is negative.
        known
            .playhead
            .map_or(f64::NAN, |frame| frame.cast_signed() as f64),
        known.spread_frames.map_or(f64::NAN, |frames| frames as f64),
        known.drift.map_or(f64::NAN, |drift| f64::from(drift.ppm)),
        known
            .drift
            .map_or(f64::NAN, |drift| f64::from(drift.error_ppm)),
        f64::from(u8::from(known.is_resampled)),
        known.jitter.copied_frames as f64,
        known.paths[0].received as f64,
        known.paths[0].lost as f64,
        known.paths[1].received as f64,
        known.paths[1].lost as f64,
        known.sequence.recovered as f64,
        known.jitter.received_frames as f64,
    ];
    areas()
        .stats
        .iter_mut()
        .zip(numbers)
        .for_each(|(slot, number)| *slot = number);
    0
}
