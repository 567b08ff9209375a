//! Mixes in Opus, for listeners whose downlink has no room for samples.
//!
//! A packet takes some 50 us (`benches/mixer.rs`), those of many listeners milliseconds, for which no datagram of others shall wait: so it is done on
//! a thread of its own, at no real-time priority. What the relay's thread gives it is bounded, and so are the listeners.

use std::{
    io,
    sync::{
        Arc, Weak,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use antiphon_core::wire::{Kind, MIX_STREAM};
use antiphon_opus::{Encoder, outgoing::Rung};
use bytes::Bytes;
use tokio::sync::mpsc;

use crate::{mixer::CHANNELS, signalling::RoomName};

/// Listeners at once: half of what a processor encodes (`benches/mixer.rs`).
const MAX_LISTENERS: usize = 64;
/// Feeds that may wait: those of all listeners in 50 ms.
const MAX_WAITING: usize = 20 * MAX_LISTENERS;
/// Formats that a listener is sent at once, while one takes over from another.
const AT_ONCE: usize = 2;

/// The relay's end. The thread ends with it.
#[derive(Debug)]
pub(super) struct Encoding {
    feeds: SyncSender<Feed>,
    /// Held by every place.
    places: Arc<()>,
}

/// A listener's place among those who are encoded for.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) room: RoomName,
    pub(super) stream: u16,
    _held: Arc<()>,
}

/// Some frames of a listener's mix, in floats.
#[derive(Debug)]
struct Feed {
    place: Arc<Place>,
    /// The formats that it is sent.
    rungs: [Option<Rung>; AT_ONCE],
    datagram: Bytes,
    complete_at: Option<Duration>,
}

/// A datagram of a listener's mix, in Opus.
#[derive(Debug)]
pub(super) struct Encoded {
    pub(super) place: Arc<Place>,
    pub(super) rung: Rung,
    pub(super) datagram: Vec<u8>,
    /// When the last frame that it needed came, on the relay's clock; `None` if it did not wait for all.
    pub(super) complete_at: Option<Duration>,
}

impl Encoding {
    /// Starts the thread, and gives the end where its datagrams come out.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub(super) fn start() -> io::Result<(Self, mpsc::UnboundedReceiver<Encoded>)> {
        let (feeds, fed) = sync_channel(MAX_WAITING);
        // As bounded as what goes in.
        let (encoded, encodeds) = mpsc::unbounded_channel();
        let thread = thread::Builder::new().name("antiphon-opus".into());
        thread.spawn(move || encode(&fed, &encoded))?;
        let places = Arc::default();
        Ok((Self { feeds, places }, encodeds))
    }

    /// A place for a listener; `None` if there are enough.
    pub(super) fn place(&self, room: &RoomName, stream: u16) -> Option<Arc<Place>> {
        self.has_place().then(|| {
            Arc::new(Place {
                room: room.clone(),
                stream,
                _held: Arc::clone(&self.places),
            })
        })
    }

    /// Whether there is a place for another listener.
    pub(super) fn has_place(&self) -> bool {
        Arc::strong_count(&self.places) <= MAX_LISTENERS
    }

    /// Gives the thread a feed. False if too much waits.
    pub(super) fn feed(
        &self,
        place: &Arc<Place>,
        rungs: impl Iterator<Item = Rung>,
        datagram: &[u8],
        complete_at: Option<Duration>,
    ) -> bool {
        let mut all = [None; AT_ONCE];
        for (slot, rung) in all.iter_mut().zip(rungs) {
            *slot = Some(rung);
        }
        let feed = Feed {
            place: Arc::clone(place),
            rungs: all,
            datagram: Bytes::copy_from_slice(datagram),
            complete_at,
        };
        self.feeds.try_send(feed).is_ok()
    }
}

/// Encodes until nobody feeds any more.
fn encode(feeds: &Receiver<Feed>, encoded: &mpsc::UnboundedSender<Encoded>) {
    let mut encoders: Vec<(Weak<Place>, Rung, Encoder)> = Vec::new();
    for feed in feeds {
        let Feed {
            place,
            rungs,
            datagram,
            complete_at,
        } = feed;
        let is_its = |other: &Weak<Place>| other.as_ptr() == Arc::as_ptr(&place);
        encoders.retain(|(other, rung, _)| {
            other.strong_count() > 0 && (!is_its(other) || rungs.contains(&Some(*rung)))
        });
        for rung in rungs.into_iter().flatten() {
            let mut known = encoders.iter();
            if !known.any(|(other, its, _)| is_its(other) && *its == rung)
                && let Some(encoder) = rung.encoder(CHANNELS)
            {
                encoders.push((Arc::downgrade(&place), rung, encoder));
            }
        }
        for (_, rung, encoder) in encoders.iter_mut().filter(|(other, ..)| is_its(other)) {
            encoder.push(&datagram, |datagram| {
                Kind::Audio.set_stream(datagram, MIX_STREAM);
                // Nobody takes it any more where the relay is just ending.
                let _ = encoded.send(Encoded {
                    place: Arc::clone(&place),
                    rung: *rung,
                    datagram: datagram.to_vec(),
                    complete_at,
                });
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use antiphon_core::{
        SampleFormat, SampleRate, Sender, SenderConfig,
        wire::{self, Datagram, MAX_DATAGRAM_BYTES},
    };
    use antiphon_opus::FEED_FRAMES;

    use super::*;

    const HIGH: Rung = Rung::Opus {
        kbps: 128,
        frames: 240,
    };
    const LOW: Rung = Rung::Opus {
        kbps: 64,
        frames: 480,
    };

    fn room() -> RoomName {
        "a-room-that-nobody-guesses".parse().expect("a name")
    }

    #[tokio::test]
    async fn a_mix_comes_back_in_each_format_that_its_listener_is_sent() {
        let (encoding, mut encoded) = Encoding::start().expect("a thread");
        let place = encoding.place(&room(), 3).expect("a place");
        let mut sender = Sender::new(SenderConfig {
            rate: SampleRate::Hz48000,
            format: SampleFormat::F32,
            channels: CHANNELS,
            packet_frames: FEED_FRAMES,
        });
        let mut bytes = [0; MAX_DATAGRAM_BYTES];
        for turn in 0..16 {
            sender.push(&[0.1; CHANNELS * FEED_FRAMES], FEED_FRAMES);
            let length = sender.poll_datagram(&mut bytes).expect("a feed");
            // From the ninth on, only one.
            let rungs = [HIGH, LOW].into_iter().skip(usize::from(turn >= 8));
            let at = Some(Duration::from_millis(turn));
            assert!(encoding.feed(&place, rungs, &bytes[..length], at));
        }
        drop(encoding);
        let mut came = Vec::new();
        while let Some(one) = encoded.recv().await {
            assert!(Arc::ptr_eq(&one.place, &place));
            assert_eq!(
                wire::route(&one.datagram),
                Ok((Kind::Audio, MIX_STREAM)),
                "for whom"
            );
            let Ok(Datagram::Opus(header, _)) = wire::parse(&one.datagram) else {
                panic!("no Opus");
            };
            let complete_ms = one.complete_at.expect("known").as_millis();
            came.push((one.rung, header.frames, complete_ms));
        }
        let of = |rung: Rung| {
            let its = came.iter().filter(move |(its, ..)| *its == rung);
            its.map(|&(_, frames, at)| (frames, at)).collect::<Vec<_>>()
        };
        // The first of each begins before the first frame, and is not sent.
        assert_eq!(of(HIGH), [(240, 3), (240, 5), (240, 7)]);
        assert_eq!(of(LOW), [(480, 7), (480, 11), (480, 15)]);
    }

    #[test]
    fn there_are_so_many_places_and_those_who_leave_make_room() {
        let (encoding, _encoded) = Encoding::start().expect("a thread");
        let mut places: Vec<_> = (0..MAX_LISTENERS as u16)
            .map(|stream| encoding.place(&room(), stream).expect("a place"))
            .collect();
        assert!(encoding.place(&room(), 1).is_none());
        places.pop();
        assert!(encoding.place(&room(), 1).is_some());
    }
}
