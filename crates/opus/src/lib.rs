//! Opus outside the browser: a sender's packets into frames for the engine, and an engine's frames into packets, as the page does it with WebCodecs.
//!
//! An [`Encoder`] makes the packets of one stream. A [`Receiver`] decodes what comes by one path from one sender: packets of one duration in order of media time, each once, and
//! those of different durations apart, because both are sent for a moment where that changes. What a decoder gives before it has as much of the past as
//! its encoder is kept from the engine, which would play it: shorter packets come first. It makes up nothing for what is lost:
//! the engine conceals that, whatever the format.
//!
//! Packets come from whoever may speak in a room. A packet is looked at only if it lasts as long as its header says, which bounds the
//! work; the decoder has no unsafe code where these bytes lead it, and should it panic all the same, the packet is refused and the
//! decoder thrown away. No sender gets decoders made faster than [`PACKETS_PER_DECODER`] allows.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod encoder;
pub mod outgoing;

pub use encoder::{Encoder, FEED_FRAMES};

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use antiphon_core::wire::{self, AUDIO_HEADER_BYTES, Datagram, MAX_DECODED_BYTES, OpusHeader};
use ruopus::{OpusDecoder, Packet};

/// A gap in media time waits for the packets that begin within so many frames of the first behind it: two lanes may differ by 5 ms, and
/// copies come after the burst they belong to. As in the page.
const MAX_WAITING_FRAMES: i64 = 240;
/// Packets that may wait behind a gap, copies included.
const MAX_WAITING: usize = 8;
/// A jump in media time of more, to either side, is no gap: the sender began anew.
const MAX_GAP_FRAMES: u64 = 48_000;
/// From the past of so many frames the loudness of each packet is foretold. A decoder that begins where its encoder does not has it after these; until then
/// much of the sound is too quiet, at first by more than 20 dB. And an encoder takes over from another, in the same decoder, so many frames after its first:
/// after one packet a chord was too loud by up to 4 dB, for 0.1 s. As in the page.
const WARM_UP_FRAMES: u64 = 4_800;
/// Longer packets that came as near as this in media time are still sent.
const NEAR_FRAMES: u64 = 960;
/// Packets of one duration between a new decoder and the next one, because making one takes as long as decoding a packet. A packet that would
/// need one sooner is refused. As in the page.
pub const PACKETS_PER_DECODER: u32 = 50;

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received<'a> {
    /// For [`Player::handle_decoded`](antiphon_core::Player::handle_decoded): its header and samples, or the header alone of what came
    /// twice or too late.
    Decoded(&'a [u8]),
    /// The datagram as it came: for [`Player::handle_datagram`](antiphon_core::Player::handle_datagram), which plays samples. Opus that
    /// no decoder reads it refuses and counts, and its frames are lost.
    Undecoded(&'a [u8]),
}

/// Decodes what one sender sends by one path.
#[derive(Debug, Default)]
pub struct Receiver {
    /// By duration; made when the first such packet comes. In boxes: who sends samples shall not pay for them.
    renditions: [Option<Box<Rendition>>; 3],
}

impl Receiver {
    /// Takes an audio datagram. `deliver` gets it at once if it is no Opus; otherwise it may have to wait for its turn, and `deliver` gets
    /// it then, after what it waited for.
    ///
    /// RT: no lock, O(frames). No alloc but for Opus: of that it keeps some 30 KB for each duration, and up to 8 datagrams behind a
    /// gap; the rest is freed within the call.
    pub fn push(&mut self, datagram: &[u8], mut deliver: impl FnMut(Received<'_>)) {
        let Ok(Datagram::Opus(header, _)) = wire::parse(datagram) else {
            deliver(Received::Undecoded(datagram));
            return;
        };
        // 120, 240 or 480 frames: 0, 1 or 2.
        let place = usize::from(header.frames) / 240;
        let (others, longer) = self.renditions.split_at_mut(place + 1);
        let mut longer = longer.iter().flatten();
        let rendition = others[place].get_or_insert_default();
        rendition.has_longer = longer.any(|it| it.ahead(&header).unsigned_abs() <= NEAR_FRAMES);
        rendition.push(&header, datagram, &mut deliver);
        rendition.release(&mut deliver);
    }
}

/// Packets of one duration.
#[derive(Default)]
struct Rendition {
    /// With the channels that it decodes to.
    decoder: Option<(u8, OpusDecoder)>,
    /// Packets before which no other decoder is made.
    packets_to_go: u32,
    /// Media time after the last packet decoded.
    next: Option<u64>,
    /// Media time where the decoder's past begins.
    began: u64,
    /// Longer packets are sent as well.
    has_longer: bool,
    /// Datagrams behind a gap, oldest first.
    waiting: Vec<(OpusHeader, Box<[u8]>)>,
}

impl Rendition {
    fn push(
        &mut self,
        header: &OpusHeader,
        datagram: &[u8],
        deliver: &mut dyn FnMut(Received<'_>),
    ) {
        let ahead = self.ahead(header);
        if ahead.unsigned_abs() > MAX_GAP_FRAMES {
            for (_, passed_over) in self.waiting.drain(..) {
                deliver(Received::Decoded(&passed_over[..AUDIO_HEADER_BYTES]));
            }
            self.began = header.timestamp;
            self.decode(header, datagram, deliver);
        } else if ahead < 0 {
            // It came, though twice or too late for a decoder that is past it. The engine tells which, by its sequence number.
            deliver(Received::Decoded(&datagram[..AUDIO_HEADER_BYTES]));
        } else if ahead == 0 {
            self.decode(header, datagram, deliver);
        } else {
            let at = (self.waiting).partition_point(|(other, _)| self.ahead(other) <= ahead);
            self.waiting.insert(at, (*header, datagram.into()));
        }
    }

    /// Decodes what waits for nothing, or has waited for long enough.
    fn release(&mut self, deliver: &mut dyn FnMut(Received<'_>)) {
        while let [(first, _), ..] = &self.waiting[..] {
            let ahead = self.ahead(first);
            let newest = self.waiting.last().map_or(0, |(last, _)| self.ahead(last));
            let is_patient = self.waiting.len() < MAX_WAITING;
            if ahead > 0 && newest - ahead <= MAX_WAITING_FRAMES && is_patient {
                return;
            }
            let (header, datagram) = self.waiting.remove(0);
            if ahead < 0 {
                deliver(Received::Decoded(&datagram[..AUDIO_HEADER_BYTES]));
            } else {
                self.decode(&header, &datagram, deliver);
            }
        }
    }

    /// Frames between the last packet decoded and this one.
    fn ahead(&self, header: &OpusHeader) -> i64 {
        (self.next).map_or(0, |next| header.timestamp.wrapping_sub(next) as i64)
    }

    fn decode(
        &mut self,
        header: &OpusHeader,
        datagram: &[u8],
        deliver: &mut dyn FnMut(Received<'_>),
    ) {
        self.next = Some(header.timestamp.wrapping_add(u64::from(header.frames)));
        self.packets_to_go = self.packets_to_go.saturating_sub(1);
        let packet = &datagram[AUDIO_HEADER_BYTES..];
        let is_fit = frames_of(packet) == Some(header.frames.into());
        let Some((_, decoder)) = is_fit.then(|| self.decoder_for(header)).flatten() else {
            deliver(Received::Undecoded(datagram));
            return;
        };
        let mut record = [0; MAX_DECODED_BYTES];
        let record = &mut record[..header.decoded().datagram_bytes()];
        let (head, samples) = record.split_at_mut(AUDIO_HEADER_BYTES);
        head.copy_from_slice(&datagram[..AUDIO_HEADER_BYTES]);
        // What a panic leaves in a decoder is nobody's: it goes with the packet, as after samples that are none.
        let decode = AssertUnwindSafe(|| decode_packet(decoder, packet, samples));
        if let Ok(Some(())) = catch_unwind(decode) {
            let is_cold = header.timestamp.wrapping_sub(self.began) < WARM_UP_FRAMES;
            let is_kept_back = is_cold && self.has_longer;
            let head = &record[..AUDIO_HEADER_BYTES];
            deliver(Received::Decoded(if is_kept_back { head } else { record }));
        } else {
            self.decoder = None;
            deliver(Received::Undecoded(datagram));
        }
    }

    /// The decoder for a packet of so many channels; `None` if that would be a new one, too soon.
    fn decoder_for(&mut self, header: &OpusHeader) -> Option<&mut (u8, OpusDecoder)> {
        let channels = header.channels;
        let is_there = matches!(&self.decoder, Some((known, _)) if *known == channels);
        if !is_there {
            if self.packets_to_go > 0 {
                return None;
            }
            self.packets_to_go = PACKETS_PER_DECODER;
            self.decoder = Some((channels, OpusDecoder::new(channels.into())));
            self.began = header.timestamp;
        }
        self.decoder.as_mut()
    }
}

impl fmt::Debug for Rendition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rendition")
            .field("next", &self.next)
            .field("waiting", &self.waiting.len())
            .finish_non_exhaustive()
    }
}

/// How long a packet lasts, in frames; `None` if it is no Opus.
fn frames_of(packet: &[u8]) -> Option<usize> {
    let packet = Packet::parse(packet).ok()?;
    Some(packet.toc().frame_size().samples_per_channel_48k() * packet.frames().len())
}

/// Writes a packet's samples, `f32`, interleaved. `None` if they are not as many as there is room for, or not all finite.
fn decode_packet(decoder: &mut OpusDecoder, packet: &[u8], out: &mut [u8]) -> Option<()> {
    let samples = decoder.decode_packet(packet).ok()?;
    if size_of_val(&samples[..]) != out.len() {
        return None;
    }
    for (bytes, sample) in out.chunks_exact_mut(4).zip(samples) {
        // Infinity would stay in the decoder for good.
        if !sample.is_finite() {
            return None;
        }
        bytes.copy_from_slice(&sample.to_le_bytes());
    }
    Some(())
}
