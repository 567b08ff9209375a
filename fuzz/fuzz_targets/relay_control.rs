//! Any bytes: the relay's parser of control lines never panics, and accepts only what its mixers can take.
#![no_main]

use antiphon_server::relay::control::{self, MAX_LINE_BYTES, PageMessage};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(PageMessage::Listen(listen)) = control::parse(bytes) {
        assert!(bytes.len() <= MAX_LINE_BYTES);
        assert!(listen.forward.is_sorted_by(|a, b| a < b));
        if let Some(mix) = listen.mix {
            assert!((16..=512).contains(&mix.packet_frames));
            assert!([16, 24].contains(&mix.format));
            for source in mix.sources {
                assert!((0.0..=4.0).contains(&source.gain) && (-1.0..=1.0).contains(&source.pan));
            }
        }
    }
});
