//! The native participant: a sound card, a room, and what lies between them. No browser.
//!
//! * [`duplex`] is what happens on the audio thread, whatever calls it: the engine's player, and rings.
//! * [`participant`] is the network thread: the engine's sender, the [`relay`], [`direct`] lanes, [`signalling`].
//! * [`sound`] calls the first: a sound card, or files at the same pace.
//! * [`bots`] are many participants without ears, for company and for load.
//!
//! `docs/architecture.md` has the picture.
#![warn(missing_docs)]

mod backlog;
pub mod bots;
pub mod clock;
pub mod direct;
pub mod duplex;
mod gather;
pub mod link;
pub mod music;
mod numbering;
pub mod participant;
pub mod priority;
pub mod relay;
pub mod report;
mod runtime;
pub mod signalling;
pub mod sound;
pub mod status;
mod tls;
mod turn;
pub mod wake;

pub use antiphon_core as core;
pub use antiphon_opus::outgoing;
