//! The audio engine: bytes and samples in, bytes and samples out.
//!
//! Sans-IO, in two halves that share no state, because the microphone and the speaker have different clocks:
//!
//! * [`Sender`]: [`push`](Sender::push) captured frames, then drain [`poll_datagram`](Sender::poll_datagram).
//! * [`Player`]: [`handle_datagram`](Player::handle_datagram) whatever arrives, then
//!   [`process_quantum`](Player::process_quantum) once for each block the speaker wants. Control is a
//!   [`Command`]; observation is an output ([`Player::stream_stats`]), never a log call.
//!
//! Hosts (the browser's worker and worklet, a native audio callback, a server's mixer, a simulator) own the
//! threads, sockets and devices. Nothing here reads a clock: all time is counted in frames, by the sender's sample
//! clock (media time) or by the player's own output, whose slips the host lets it know ([`Player::keep_time`]).
//!
//! Shapes: audio is `f32`, full scale ±1, *planar* (`[channel][frame]`, one contiguous slice). Everything is
//! allocated at construction; no later call allocates, locks, or loops without bound.
//!
//! Modules, by the words of `docs/glossary.md`: [`wire`] the datagram format · [`pcm`] sample formats · [`adpcm`] cheap copies ·
//! [`sequence`] loss, order and duplicates · [`spread`] how late packets come · [`slip`] when the output
//! stands still · [`playout`] how much delay is needed for that · [`jitter`] the jitter buffer ·
//! [`conceal`] what is heard in place of lost frames · [`drift`] how far two clocks run apart · [`resample`] following that ·
//! [`mix`] gain, pan, mute, solo · [`limiter`] what keeps the server's mixes below full scale (a player's own output is not limited) · [`sender`] and [`player`] the two halves · [`ladder`] what a listener's path can carry ·
//! [`path`] which path that is · [`mixing`] the way into a mix and out of it.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod adpcm;
pub mod conceal;
pub mod drift;
pub mod jitter;
pub mod ladder;
pub mod limiter;
pub mod mix;
pub mod mixing;
pub mod path;
pub mod pcm;
pub mod player;
pub mod playout;
mod presence;
pub mod resample;
pub mod sender;
pub mod sequence;
pub mod slip;
pub mod spread;
pub mod wire;

pub use jitter::Target;
pub use ladder::{Ladder, Observation};
pub use mixing::Mixing;
pub use path::{Listening, Pin, Sending};
pub use player::{Command, Player, PlayerConfig, StreamFormat, StreamId, StreamStats};
pub use sender::{Sender, SenderConfig, SenderStats};
pub use wire::{SampleFormat, SampleRate};
