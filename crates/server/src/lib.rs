//! Rooms, signalling, the relay and the web app, in one process.
//!
//! ```text
//! browser ── HTTP ──▶ web         the embedded app, with the headers of headers
//!    │
//!    └── WebSocket ─▶ connection  one task: limits (rate, admission), hello, liveness
//!                         │ signalling::parse
//!                         ▼
//!                        hub      one lock, one clock
//!                         │ handle_*  ▲ poll_output
//!                         ▼           │
//!                        rooms    sans-IO: who is where, and who is told what
//!
//! browser ══ WebTransport ══▶ relay    forwards and mixes sound, on a thread of its own; told by the hub through media
//!
//! CA ◀── HTTPS ── acme        orders certificates for web and relay
//!
//! operator ── HTTP, on a port of its own ──▶ status    the live page, and metrics
//! ```
//!
//! The wire is described in `docs/protocol.md`.

pub mod acme;
mod admission;
mod config;
mod connection;
mod headers;
mod hub;
pub mod ice;
mod listener;
mod lock;
pub mod media;
mod metrics;
pub mod mixer;
mod network;
mod numbers;
mod outbox;
mod rate;
pub mod relay;
mod room_signer;
pub mod rooms;
mod secret;
mod server;
pub mod signalling;
mod status;
mod tls;
mod web;

pub use config::{AcmeConfig, Config, ConnectionLimits, RelayConfig, Tls, TlsFiles};
pub use network::Network;
pub use room_signer::{LabelError, RoomSigner, WeakSecret};
pub use secret::Secret;
pub use server::{Server, StartError};
pub use web::is_embedded as has_web_app;
