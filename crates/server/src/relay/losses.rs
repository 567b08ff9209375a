//! What is lost between a participant and the relay: of its own sound, which its sender is told; and of what it is sent, of which the relay
//! sends copies where that helps.

use std::{cell::OnceCell, time::Duration};

use antiphon_core::{
    Ladder, Observation,
    jitter::JitterCounts,
    ladder::CONGESTED_SHARE,
    sequence::{Arrival, SequenceTracker},
    wire::{self, Datagram, MAX_DATAGRAM_BYTES},
};
use bytes::Bytes;

/// Loss is judged by so many looks, one a second: as many seconds as a listener's report covers.
const LOOKS: usize = 4;

/// Counts of what came through, or was sent, and of what was lost, as they were at the last looks.
#[derive(Debug)]
struct Recent<const LOOKS: usize>([(u64, u64); LOOKS]);

impl<const LOOKS: usize> Default for Recent<LOOKS> {
    fn default() -> Self {
        Self([(0, 0); LOOKS])
    }
}

impl<const LOOKS: usize> Recent<LOOKS> {
    /// How much they have grown since the oldest of these. What falls, because a session ended or a straggler came, has not grown.
    fn look(&mut self, now: (u64, u64)) -> (u64, u64) {
        let before = std::mem::replace(&mut self.0[0], now);
        self.0.rotate_left(1);
        (
            now.0.saturating_sub(before.0),
            now.1.saturating_sub(before.1),
        )
    }
}

/// A participant's own sound, as it reaches the relay.
#[derive(Debug, Default)]
pub(super) struct Uplink {
    tracker: SequenceTracker,
    recent: Recent<LOOKS>,
    lately: (u64, u64),
    /// See [`Sound::newest`].
    pub(super) newest: Option<Bytes>,
}

impl Uplink {
    /// A datagram of audio has come. False for one that came before, which has done its work.
    pub(super) fn is_news(&mut self, datagram: &[u8]) -> bool {
        let sequence = wire::sequence(datagram);
        let is_news = self.tracker.handle(sequence, false) != Arrival::Duplicate;
        if is_news && wire::without_copy(datagram).len() < datagram.len() {
            self.tracker.handle_copy(sequence.wrapping_sub(1));
        }
        is_news
    }

    /// Once a second.
    pub(super) fn look(&mut self) {
        let counts = self.tracker.counts();
        self.lately = self.recent.look((counts.received, counts.lost));
    }

    /// Of the last four seconds: datagrams that came, each counted once, and those of which not even a copy did.
    pub(super) fn lately(&self) -> (u64, u64) {
        self.lately
    }
}

/// A participant's sound, as the mixer plays it.
#[derive(Debug, Default)]
pub(super) struct Mixed {
    recent: Recent<LOOKS>,
    concealed_share: f32,
}

impl Mixed {
    /// Once a second. `counts`: so far; `None` if it is in no mix.
    pub(super) fn look(&mut self, counts: Option<JitterCounts>) {
        let counts = counts.unwrap_or_default();
        let heard = counts.played_frames + counts.concealed_frames;
        self.concealed_share = share(self.recent.look((heard, counts.concealed_frames)));
    }

    /// Of the last four seconds, the share of frames that were made up.
    pub(super) fn concealed_share(&self) -> f32 {
        self.concealed_share
    }
}

/// A datagram of sound on its way to its listeners, after the prefix of a session.
#[derive(Debug)]
pub(super) struct Sound {
    datagram: Bytes,
    before: Option<Bytes>,
    insured: OnceCell<Insured>,
}

/// What a listener is sent of a datagram, where some is lost.
#[derive(Debug)]
pub(super) struct Insured {
    /// The datagram, perhaps with a copy of the one before.
    pub(super) datagram: Bytes,
    /// What goes out on another session as well.
    pub(super) again: Vec<Bytes>,
}

impl Sound {
    /// `before`: the [`newest`](Self::newest) until now of the same stream.
    pub(super) fn new(datagram: Bytes, before: Option<Bytes>) -> Self {
        Self {
            datagram,
            before,
            insured: OnceCell::new(),
        }
    }

    /// For who loses nothing.
    pub(super) fn datagram(&self) -> &Bytes {
        &self.datagram
    }

    /// For who loses some. Made once for all of them.
    pub(super) fn insured(&self) -> &Insured {
        self.insured.get_or_init(|| {
            let mut insured = Insured {
                datagram: self.datagram.clone(),
                again: Vec::new(),
            };
            if let Ok(Datagram::Audio(_, _, [_, ..])) = wire::parse(&self.datagram[1..]) {
                // Its sender has seen to it.
                return insured;
            }
            let waits = waits_for_next(&self.datagram);
            let before = (self.before.as_ref()).filter(|before| waits_for_next(before));
            let mut copy = [0; MAX_DATAGRAM_BYTES];
            if waits
                && let Some(before) = before
                && let Some(length) = wire::write_copy(&before[1..], &self.datagram[1..], &mut copy)
            {
                insured.datagram = [&self.datagram[..], &copy[..length]].concat().into();
                return insured;
            }
            // No copy of another shape, as where packets are split unevenly.
            insured.again.extend(before.cloned());
            if !waits {
                insured.again.push(self.datagram.clone());
            }
            insured
        })
    }

    /// The next one's `before`. `None` while nobody loses any.
    pub(super) fn newest(&self) -> Option<Bytes> {
        self.insured.get().map(|_| self.datagram.clone())
    }
}

/// Whether a datagram's second chance is the next one, which brings a copy of it or goes with it once more: samples of which one of the same shape has room for a copy.
fn waits_for_next(datagram: &Bytes) -> bool {
    let datagram = &datagram[1..];
    matches!(
        wire::parse(datagram),
        Ok(Datagram::Audio(header, _, [])) if datagram.len() + header.copy_bytes() <= MAX_DATAGRAM_BYTES
    )
}

/// Whether copies are sent of what a participant is sent.
#[derive(Debug)]
pub(super) struct Downlink {
    /// With one format: it is for the copies.
    ladder: Ladder,
    sends_copies: bool,
    recent: Recent<LOOKS>,
    last: Recent<1>,
    /// Since the last review.
    offered: u32,
    crowded: u32,
}

impl Default for Downlink {
    fn default() -> Self {
        Self {
            ladder: Ladder::new(1),
            sends_copies: false,
            recent: Recent::default(),
            last: Recent::default(),
            offered: 0,
            crowded: 0,
        }
    }
}

impl Downlink {
    pub(super) fn sends_copies(&self) -> bool {
        self.sends_copies
    }

    /// A datagram was sent, for the first time.
    pub(super) fn offer(&mut self, is_crowded: bool) {
        self.offered += 1;
        self.crowded += u32::from(is_crowded);
    }

    /// Once a second. `packets`: those that QUIC has sent on the open sessions, and found lost.
    pub(super) fn review(&mut self, elapsed: Duration, packets: (u64, u64)) {
        let lost = share(self.recent.look(packets));
        let is_heavy = share(self.last.look(packets)) > CONGESTED_SHARE;
        let (offered, crowded) = (
            std::mem::take(&mut self.offered),
            std::mem::take(&mut self.crowded),
        );
        let decision = self.ladder.review(&Observation {
            elapsed_ms: elapsed.as_millis().try_into().unwrap_or(u32::MAX),
            offered,
            // So much lost is want of room: the copies go, and rest.
            crowded: if is_heavy { offered.max(1) } else { crowded },
            // QUIC counts what the network lost, copy or not. What the listener then misses is what was lost twice.
            lost_share: Some(if self.sends_copies { lost * lost } else { lost }),
            // Those of Opus need a second session, which a page opens where it loses some.
            can_copy: true,
            can_add_lanes: false,
        });
        self.sends_copies = decision.copies;
    }
}

/// 0 to 1, also of counts that began anew meanwhile and have not grown alike since.
fn share((sent, lost): (u64, u64)) -> f32 {
    if sent > 0 {
        (lost as f32 / sent as f32).min(1.0)
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use antiphon_core::{
        SampleFormat, SampleRate,
        wire::{AUDIO_HEADER_BYTES, AudioHeader, OpusHeader},
    };

    const SECOND: Duration = Duration::from_secs(1);
    const PER_S: u64 = 375;

    /// So many seconds in which so many of a second's packets are lost; for how many of them copies were sent.
    fn seconds(
        downlink: &mut Downlink,
        packets: &mut (u64, u64),
        seconds: u32,
        lost_per_s: u64,
        crowded: bool,
    ) -> u32 {
        (0..seconds)
            .map(|_| {
                for _ in 0..PER_S {
                    downlink.offer(crowded);
                }
                packets.0 += PER_S;
                packets.1 += lost_per_s;
                downlink.review(SECOND, *packets);
                u32::from(downlink.sends_copies())
            })
            .sum()
    }

    #[test]
    fn a_downlink_that_loses_some_is_sent_copies_until_it_loses_none() {
        let (mut downlink, mut packets) = (Downlink::default(), (0, 0));
        assert_eq!(seconds(&mut downlink, &mut packets, 30, 0, false), 0);
        let with = seconds(&mut downlink, &mut packets, 60, 8, false);
        assert!((55..60).contains(&with), "{with} of 60 s");
        // The last seconds' losses, the rest of the hold, and no more.
        seconds(&mut downlink, &mut packets, 45, 0, false);
        assert_eq!(seconds(&mut downlink, &mut packets, 30, 0, false), 0);
    }

    #[test]
    fn want_of_room_is_no_reason_to_send_more() {
        let (mut downlink, mut packets) = (Downlink::default(), (0, 0));
        seconds(&mut downlink, &mut packets, 30, 0, false);
        assert_eq!(
            seconds(&mut downlink, &mut packets, 30, 60, false),
            0,
            "a sixth lost"
        );
        assert_eq!(
            seconds(&mut downlink, &mut packets, 30, 8, true),
            0,
            "crowded"
        );
        // Where the copies are what fills the downlink, they are tried less and less.
        let tried: u32 = (0..300)
            .map(|_| {
                let lost = if downlink.sends_copies() { 100 } else { 4 };
                seconds(&mut downlink, &mut packets, 1, lost, false)
            })
            .sum();
        assert!((1..10).contains(&tried), "{tried} of 300 s");
    }

    fn sound(header: &AudioHeader, before: Option<Bytes>) -> Sound {
        let mut bytes = vec![header.sequence as u8; 1 + header.datagram_bytes()];
        header.write(&mut bytes[1..]);
        Sound::new(bytes.into(), before)
    }

    fn header(sequence: u32, timestamp: u64, frames: u16) -> AudioHeader {
        AudioHeader {
            format: SampleFormat::S16,
            rate: SampleRate::Hz48000,
            channels: 2,
            stream: 0,
            frames,
            sequence,
            timestamp,
        }
    }

    #[test]
    fn samples_carry_a_copy_for_who_loses_some_made_once_and_nothing_is_kept_for_who_does_not() {
        let first = sound(&header(1, 128, 128), None);
        assert_eq!(first.newest(), None);
        assert_eq!(first.insured().datagram, first.datagram());
        assert!(
            first.insured().again.is_empty(),
            "the next carries a copy of it"
        );
        let second = sound(&header(2, 256, 128), first.newest());
        let made = second.insured();
        let mut copy = [0; MAX_DATAGRAM_BYTES];
        let (earlier, later) = (&first.datagram()[1..], &second.datagram()[1..]);
        let length = wire::write_copy(earlier, later, &mut copy).expect("has room");
        assert_eq!(
            made.datagram,
            [&second.datagram()[..], &copy[..length]].concat()
        );
        assert!(made.again.is_empty());
        assert_eq!(second.insured().datagram.as_ptr(), made.datagram.as_ptr());
        assert_eq!(second.newest().as_ref(), Some(second.datagram()));
        // Its sender sends copies: to everyone.
        let own = Sound::new(made.datagram.clone(), first.newest());
        assert_eq!(
            (&own.insured().datagram, &own.insured().again),
            (&made.datagram, &Vec::new())
        );
    }

    #[test]
    fn what_no_copy_can_be_of_goes_twice() {
        let opus = OpusHeader {
            channels: 2,
            stream: 0,
            frames: 120,
            sequence: 1,
            timestamp: 120,
        };
        let mut packet = vec![9; 1 + AUDIO_HEADER_BYTES + 40];
        opus.write(&mut packet[1..]);
        let malformed = vec![1; 100];
        let before = sound(&header(6, 0, 240), None);
        before.insured();
        for one in [
            Sound::new(packet.into(), before.newest()),
            Sound::new(malformed.into(), before.newest()),
            // It has no room for a copy.
            sound(&header(7, 240, 240), before.newest()),
        ] {
            let Insured { datagram, again } = one.insured();
            assert_eq!(
                (datagram, &again[..]),
                (one.datagram(), &[one.datagram().clone()][..])
            );
        }
        // 512 frames in three, and then blocks of other lengths: none has a copy of another shape, and 240 have no room for one.
        let mut newest = None;
        let mut copies = Vec::new();
        let mut timestamp = 0;
        for (sequence, frames) in [171, 171, 170, 120, 240, 240, 120, 120]
            .into_iter()
            .enumerate()
        {
            let one = sound(&header(sequence as u32, timestamp, frames), newest.take());
            let Insured { datagram, again } = one.insured();
            let again = again.iter().map(|again| wire::sequence(&again[1..]));
            copies.push((
                datagram.len() > one.datagram().len(),
                again.collect::<Vec<_>>(),
            ));
            newest = one.newest();
            timestamp += u64::from(frames);
        }
        assert_eq!(
            copies,
            [
                (false, vec![]),
                (true, vec![]),
                (false, vec![1]),
                (false, vec![2]),
                (false, vec![3, 4]),
                (false, vec![5]),
                (false, vec![]),
                (true, vec![]),
            ]
        );
    }

    fn datagram(sequence: u32, has_copy: bool) -> Vec<u8> {
        let header = header(sequence, 0, 16);
        let copy_bytes = if has_copy { header.copy_bytes() } else { 0 };
        let mut bytes = vec![0; header.datagram_bytes() + copy_bytes];
        header.write(&mut bytes);
        bytes
    }

    #[test]
    fn what_the_mixer_made_up_is_told_of_the_last_seconds() {
        let mut mixed = Mixed::default();
        let counts = |played_frames, concealed_frames| {
            Some(JitterCounts {
                played_frames,
                concealed_frames,
                ..JitterCounts::default()
            })
        };
        mixed.look(None);
        assert_eq!(mixed.concealed_share(), 0.0);
        mixed.look(counts(36_000, 12_000));
        assert_eq!(mixed.concealed_share(), 0.25);
        for second in 1..=4 {
            mixed.look(counts(36_000 + 48_000 * second, 12_000));
        }
        assert_eq!(mixed.concealed_share(), 0.0, "it is long ago");
        // It left all mixes, and came into one again.
        mixed.look(None);
        mixed.look(counts(0, 100));
        assert_eq!(
            mixed.concealed_share(),
            0.0,
            "counts that fell tell nothing"
        );
        let mut mixed = Mixed::default();
        for counts in [counts(48_000, 0), None, None, counts(47_000, 2_000)] {
            mixed.look(counts);
        }
        mixed.look(counts(48_000, 4_000));
        assert_eq!(mixed.concealed_share(), 1.0);
    }

    #[test]
    fn of_what_is_lost_on_the_way_to_the_relay_a_copy_is_enough() {
        let mut uplink = Uplink::default();
        for sequence in (0..2_000).filter(|n| n % 50 != 7) {
            assert!(uplink.is_news(&datagram(sequence, true)));
        }
        // It is still welcome.
        assert!(uplink.is_news(&datagram(1_957, true)));
        uplink.look();
        assert_eq!(uplink.lately(), (1_961, 0));
    }

    #[test]
    fn what_reaches_the_relay_is_told_of_the_last_seconds_and_what_comes_again_is_no_news() {
        let mut uplink = Uplink::default();
        let mut sequence = u32::MAX - 500;
        for second in 0..8 {
            for n in 0..PER_S {
                // One in 50 never comes in the first half.
                if second >= 4 || n % 50 != 0 {
                    assert!(uplink.is_news(&datagram(sequence, false)));
                    assert!(!uplink.is_news(&datagram(sequence, false)));
                }
                sequence = sequence.wrapping_add(1);
            }
            uplink.look();
            let told = uplink.lately();
            match second {
                3 => assert_eq!(told, (4 * (PER_S - 8), 4 * 8 - 1)),
                7 => assert_eq!(told, (4 * PER_S, 0)),
                _ => {}
            }
        }
    }
}
