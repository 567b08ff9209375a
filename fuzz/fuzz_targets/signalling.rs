//! Any text: the server's parser of messages never panics, and refuses what is too long.
#![no_main]

use antiphon_server::signalling::{self, MAX_MESSAGE_BYTES};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    if signalling::parse(&text).is_ok() {
        assert!(text.len() <= MAX_MESSAGE_BYTES);
    }
});
