//! A room in which everybody takes a mix of all others.

use std::time::Duration;

use antiphon_core::{SampleFormat, SampleRate};
use antiphon_server::mixer::{Mixer, Source};

/// Listeners 1 to `participants`, 48 kHz, 16 bits, packets of 128 frames; each source as loud as leaves the limiter at rest.
pub(crate) fn room(participants: u16) -> Mixer {
    let mut mixer = Mixer::new(SampleRate::Hz48000);
    for listener in 1..=participants {
        mixer.set_listener(listener, SampleFormat::S16, 128);
        let others = (1..=participants).filter(|&other| other != listener);
        let sources: Vec<_> = others
            .map(|stream| Source {
                stream,
                gain: 1.0 / f32::from(participants),
                pan: 0.0,
                muted: false,
            })
            .collect();
        mixer.set_sources(listener, &sources, Duration::ZERO);
    }
    mixer
}
