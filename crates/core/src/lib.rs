//! The audio engine.
#![no_std]
#![forbid(unsafe_code)]
