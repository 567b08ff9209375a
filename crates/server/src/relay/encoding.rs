//! Mixes in Opus, for listeners whose downlink has no room for samples.
//!
//! Encoding a packet takes some tenths of a millisecond, for which no datagram of others shall wait: so it is done on a thread of its own, at
//! no real-time priority. What the relay's thread gives it is bounded, and so are the listeners.

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

/// Listeners at once: what one processor encodes, with as much to spare (`benches/mixer.rs`).
const MAX_LISTENERS: usize = 32;
/// Feeds that may wait: those of all listeners in a tenth of a second.
const MAX_WAITING: usize = 40 * MAX_LISTENERS;
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
        let has_room = Arc::strong_count(&self.places) <= MAX_LISTENERS;
        has_room.then(|| {
            Arc::new(Place {
                room: room.clone(),
                stream,
                _held: Arc::clone(&self.places),
            })
        })
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
