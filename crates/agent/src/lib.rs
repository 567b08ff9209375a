//! The native participant.
#![warn(missing_docs)]
pub mod clock;
pub mod direct;
pub mod duplex;
pub mod link;
pub mod relay;
pub mod report;
pub mod signalling;
mod tls;
mod wake;
