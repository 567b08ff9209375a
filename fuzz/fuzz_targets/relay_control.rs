//! Any bytes: the relay's parser of control lines never panics, and accepts only what its mixers can take.
#![no_main]

use std::collections::BTreeSet;

use antiphon_server::relay::control::{self, MAX_LINE_BYTES, PageMessage};
use libfuzzer_sys::fuzz_target;

const NUMBERS: std::ops::RangeInclusive<u16> = 1..=65_534;

fuzz_target!(|bytes: &[u8]| {
    let Ok(PageMessage::Listen(listen)) = control::parse(bytes) else {
        return;
    };
    assert!(bytes.len() <= MAX_LINE_BYTES);
    assert!(listen.forward.is_sorted_by(|a, b| a < b));
    assert!(listen.forward.iter().all(|stream| NUMBERS.contains(stream)));
    if let Some(mix) = listen.mix {
        assert!((16..=512).contains(&mix.packet_frames));
        assert!([16, 24].contains(&mix.format));
        let mut known = BTreeSet::new();
        for source in mix.sources {
            assert!(NUMBERS.contains(&source.stream) && known.insert(source.stream));
            assert!((0.0..=4.0).contains(&source.gain) && (-1.0..=1.0).contains(&source.pan));
        }
    }
    // Blanks may follow, as many as make it as long as can be.
    let mut longest = bytes.to_vec();
    longest.resize(MAX_LINE_BYTES, b' ');
    assert!(control::parse(&longest).is_ok());
    longest.push(b' ');
    assert!(control::parse(&longest).is_err());
});
