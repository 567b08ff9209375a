//! How one comes into the mix that the server makes for a listener, and out of it, without a gap and without being heard twice.
//!
//! The old way is heard until the new one plays. The mix as a whole is switched at the listener, so its first and its last participant
//! change in one ramp; another changes at the server, and the two ends of that are as far apart as the time it takes to be heard is
//! misjudged.

use alloc::vec::Vec;

use crate::player::StreamId;

/// Who does not come into the mix for so long, or is not heard without it, is held up.
const HELD_UP_MS: u32 = 2_000;
/// A mix of which nothing was played for so long has ended.
const SILENT_MS: u32 = 500;
/// One that nobody is in any more is kept until its sound has faded out.
const FADE_MS: u32 = 100;

/// How far a participant has come. Its own stream is silent from `Mixed` until it is gone from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Asked for in the mix and forwarded: the mix is not heard yet, or does not hold it for sure.
    Entering,
    Mixed,
    /// Its own stream is asked for again, and does not play yet.
    Leaving,
    /// No longer asked for in the mix, which may still hold it.
    Withdrawn,
}

#[derive(Clone, Debug)]
struct Member {
    stream: StreamId,
    phase: Phase,
    /// In this phase, ms.
    phase_ms: u32,
    /// Since it was first asked for, `Entering` having begun anew meanwhile, ms.
    asked_ms: u32,
    /// Frames of its own stream that had been played when the phase began.
    played_frames: u64,
}

impl Member {
    /// Whether its own stream plays again.
    fn plays_alone(&self, seen: &MemberObservation) -> bool {
        seen.played_frames > self.played_frames
    }

    fn turn(&mut self, phase: Phase, played_frames: u64) {
        if (self.phase, phase) != (Phase::Entering, Phase::Entering) {
            self.asked_ms = 0;
        }
        (self.phase, self.phase_ms, self.played_frames) = (phase, 0, played_frames);
    }
}

/// What the listener saw of its mix since the last review.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MixObservation {
    /// Time since the last review, ms.
    pub elapsed_ms: u32,
    /// Frames of the mix that were played so far; 0 while there is none.
    pub played_frames: u64,
    /// From asking for a change of the mix until it is heard, ms: the round trip to the server, and the mix's own buffer.
    pub settle_ms: u32,
}

/// What the listener saw of a participant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberObservation {
    /// Its own stream.
    pub stream: StreamId,
    /// It shall be heard in the mix, and the relay reaches it.
    pub is_wanted: bool,
    /// Its stream comes forwarded by the server: one that does not would be silent in the mix, too.
    pub is_forwarded: bool,
    /// Frames of it that were played so far.
    pub played_frames: u64,
}

/// Who is heard in the mix.
#[derive(Clone, Debug)]
pub struct Mixing {
    members: Vec<Member>,
    most: usize,
    /// Of the mix, at the last review.
    played_frames: u64,
    /// Since that grew, ms.
    silent_ms: u32,
    /// Since nobody is in the mix any more, ms.
    idle_ms: u32,
}

impl Mixing {
    /// Nobody yet. Who would be one too many of `most` is not let in.
    pub fn new(most: usize) -> Self {
        Self {
            members: Vec::with_capacity(most),
            most,
            played_frames: 0,
            silent_ms: 0,
            idle_ms: FADE_MS,
        }
    }

    /// To be called every 10 to 20 ms while [a mix is needed](Self::is_needed) and a few times a second otherwise: one participant's change from its own
    /// stream to a mix that plays, or back, may come so much too late. With all who are in the room, each once. Who is missing is gone for good.
    ///
    /// RT: no alloc, no lock, O(participants²).
    pub fn review(&mut self, mix: &MixObservation, all: &[MemberObservation]) {
        self.silent_ms = if mix.played_frames > self.played_frames {
            0
        } else {
            self.silent_ms.saturating_add(mix.elapsed_ms)
        };
        self.played_frames = mix.played_frames;
        let plays = mix.played_frames > 0 && self.silent_ms < SILENT_MS;
        if self.members.is_empty() {
            self.idle_ms = self.idle_ms.saturating_add(mix.elapsed_ms);
        }
        self.members
            .retain(|member| all.iter().any(|seen| seen.stream == member.stream));
        for seen in all {
            let known = (self.members.iter_mut()).find(|member| member.stream == seen.stream);
            if let Some(member) = known {
                member.phase_ms = member.phase_ms.saturating_add(mix.elapsed_ms);
                member.asked_ms = member.asked_ms.saturating_add(mix.elapsed_ms);
            } else if seen.is_wanted && self.members.len() < self.most {
                self.members.push(Member {
                    stream: seen.stream,
                    phase: Phase::Entering,
                    phase_ms: 0,
                    asked_ms: 0,
                    played_frames: seen.played_frames,
                });
            }
        }
        let of = |stream| all.iter().find(|seen| seen.stream == stream);
        // The mix as a whole ends in one step, for all together.
        let is_awaited = |member: &Member| match member.phase {
            Phase::Mixed => true,
            Phase::Leaving => {
                let plays = of(member.stream).is_some_and(|seen| member.plays_alone(seen));
                !plays && member.phase_ms < HELD_UP_MS
            }
            Phase::Entering | Phase::Withdrawn => false,
        };
        let may_leave =
            all.iter().any(|seen| seen.is_wanted) || !self.members.iter().any(is_awaited);
        self.members.retain_mut(|member| {
            of(member.stream)
                .is_some_and(|seen| advance(member, seen, plays, mix.settle_ms, may_leave))
        });
        let is_last = !self.members.iter().any(is_source);
        self.members.retain(|member| {
            let is_settled = is_last || member.phase_ms >= mix.settle_ms;
            !(member.phase == Phase::Withdrawn && is_settled)
        });
        if !self.members.is_empty() {
            self.idle_ms = 0;
        }
    }

    /// Whether the listener needs a stream of the mix, be it silent.
    pub fn is_needed(&self) -> bool {
        self.idle_ms < FADE_MS
    }

    /// The participants whom the mix shall hold, by their streams.
    pub fn sources(&self) -> impl Iterator<Item = StreamId> {
        let sources = self.members.iter().filter(|member| is_source(member));
        sources.map(|member| member.stream)
    }

    /// Whether the mix is heard.
    pub fn is_heard(&self) -> bool {
        self.members.iter().any(is_mixed)
    }

    /// Whether a participant is heard in the mix, and its own stream is silent.
    pub fn is_mixed(&self, stream: StreamId) -> bool {
        self.member(stream).is_some_and(is_mixed)
    }

    /// Whether a participant was asked for long ago and has not come: a sender with room for one way alone may have chosen the direct one.
    pub fn is_held_up(&self, stream: StreamId) -> bool {
        let is_held_up =
            |member: &Member| member.phase == Phase::Entering && member.asked_ms >= HELD_UP_MS;
        self.member(stream).is_some_and(is_held_up)
    }

    /// Whether a participant's own stream is to be asked for, as far as the mix is concerned.
    pub fn needs_own(&self, stream: StreamId) -> bool {
        self.member(stream)
            .is_none_or(|member| member.phase != Phase::Mixed)
    }

    fn member(&self, stream: StreamId) -> Option<&Member> {
        self.members.iter().find(|member| member.stream == stream)
    }
}

fn is_source(member: &Member) -> bool {
    member.phase != Phase::Withdrawn
}

fn is_mixed(member: &Member) -> bool {
    member.phase != Phase::Entering
}

/// False if it is not a member any more.
fn advance(
    member: &mut Member,
    seen: &MemberObservation,
    mix_plays: bool,
    settle_ms: u32,
    may_leave: bool,
) -> bool {
    let is_settled = member.phase_ms >= settle_ms;
    // Where the mix has ended, too, there is nothing to wait for.
    let may_withdraw = (may_leave && member.plays_alone(seen)) || !mix_plays;
    let next = match member.phase {
        Phase::Entering if !seen.is_wanted => return false,
        Phase::Entering if !seen.is_forwarded => Phase::Entering,
        Phase::Entering if mix_plays && is_settled => Phase::Mixed,
        Phase::Mixed if !seen.is_wanted => Phase::Leaving,
        Phase::Mixed if !mix_plays => Phase::Entering,
        Phase::Leaving if seen.is_wanted => Phase::Mixed,
        Phase::Leaving if may_withdraw => Phase::Withdrawn,
        Phase::Withdrawn if seen.is_wanted => Phase::Entering,
        _ => return true,
    };
    member.turn(next, seen.played_frames);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: StreamId = 7;
    const B: StreamId = 3;

    /// A listener who looks every 100 ms. What is heard: "a" by its own stream, "mix a" in the mix.
    struct Listener {
        mixing: Mixing,
        /// There is a mix, and it plays.
        plays: bool,
        mix_played: u64,
        forwarded: Vec<StreamId>,
        played: [u64; 2],
        present: Vec<StreamId>,
    }

    impl Listener {
        fn new() -> Self {
            Self {
                mixing: Mixing::new(2),
                plays: false,
                mix_played: 0,
                forwarded: [A, B].into(),
                played: [0; 2],
                present: [A, B].into(),
            }
        }

        fn mixed(wanted: &[StreamId]) -> Self {
            let mut listener = Self {
                plays: true,
                ..Self::new()
            };
            for _ in 0..10 {
                listener.look(wanted);
            }
            listener
        }

        /// Who is heard by its own stream, and who in the mix.
        fn look(&mut self, wanted: &[StreamId]) -> (Vec<StreamId>, Vec<StreamId>) {
            let seen = self.present.iter().map(|&stream| MemberObservation {
                stream,
                is_wanted: wanted.contains(&stream),
                is_forwarded: self.forwarded.contains(&stream),
                played_frames: self.played[usize::from(stream == B)],
            });
            self.mix_played = if self.plays {
                self.mix_played + 4_800
            } else {
                0
            };
            let mix = MixObservation {
                elapsed_ms: 100,
                played_frames: self.mix_played,
                settle_ms: 250,
            };
            self.mixing.review(&mix, &seen.collect::<Vec<_>>());
            let (mixed, own): (Vec<_>, Vec<_>) = [A, B]
                .iter()
                .partition(|&&stream| self.mixing.is_mixed(stream));
            assert_eq!(self.mixing.is_heard(), !mixed.is_empty());
            (own, mixed)
        }

        fn sources(&self) -> Vec<StreamId> {
            self.mixing.sources().collect()
        }

        fn need_own(&self) -> [bool; 2] {
            [A, B].map(|stream| self.mixing.needs_own(stream))
        }
    }

    fn streams<const N: usize>(streams: [StreamId; N]) -> Vec<StreamId> {
        streams.into()
    }

    fn own() -> (Vec<StreamId>, Vec<StreamId>) {
        (streams([A, B]), streams([]))
    }

    fn mix() -> (Vec<StreamId>, Vec<StreamId>) {
        (streams([]), streams([A, B]))
    }

    fn only_a_in_the_mix() -> (Vec<StreamId>, Vec<StreamId>) {
        (streams([B]), streams([A]))
    }

    #[test]
    fn the_streams_are_heard_until_the_mix_plays_then_the_mix_alone_in_one_step() {
        let mut listener = Listener::new();
        for _ in 0..20 {
            assert_eq!(listener.look(&[A, B]), own());
        }
        assert_eq!(listener.sources(), [A, B]);
        assert_eq!(listener.need_own(), [true, true]);
        listener.plays = true;
        assert_eq!(listener.look(&[A, B]), mix());
        assert_eq!(listener.need_own(), [false, false]);
    }

    #[test]
    fn the_mix_is_heard_until_the_streams_play_and_then_ends() {
        let mut listener = Listener::mixed(&[A, B]);
        for _ in 0..20 {
            assert_eq!(listener.look(&[]), mix());
        }
        assert_eq!(listener.sources(), [A, B]);
        assert_eq!(listener.need_own(), [true, true]);
        listener.played = [128; 2];
        assert_eq!(listener.look(&[]), own());
        assert!(listener.sources().is_empty());
    }

    #[test]
    fn the_mix_ends_for_all_at_once_but_for_who_does_not_come() {
        let mut listener = Listener::mixed(&[A, B]);
        listener.look(&[]);
        listener.played[0] = 128;
        for _ in 0..3 {
            assert_eq!(listener.look(&[]), mix());
            assert_eq!(listener.sources(), [A, B]);
        }
        listener.played[1] = 128;
        assert_eq!(listener.look(&[]), own());

        let mut listener = Listener::mixed(&[A, B]);
        for n in 0..20 {
            assert_eq!(listener.look(&[]), mix(), "{n}");
            listener.played[0] += 128;
        }
        listener.look(&[]);
        assert_eq!(listener.sources(), [B]);
    }

    #[test]
    fn one_comes_into_a_mix_that_plays_only_when_that_holds_it() {
        let mut listener = Listener::mixed(&[A]);
        for _ in 0..3 {
            assert_eq!(listener.look(&[A, B]), only_a_in_the_mix());
            assert_eq!(listener.sources(), [A, B]);
        }
        assert_eq!(listener.look(&[A, B]), mix());
    }

    #[test]
    fn one_leaves_a_mix_that_goes_on_before_its_own_stream_is_heard() {
        let mut listener = Listener::mixed(&[A, B]);
        listener.look(&[A]);
        listener.played[1] = 128;
        for _ in 0..3 {
            assert_eq!(listener.look(&[A]), mix());
            assert_eq!(listener.sources(), [A]);
        }
        assert_eq!(listener.look(&[A]), only_a_in_the_mix());
    }

    #[test]
    fn who_does_not_come_into_the_mix_is_held_up_until_it_has() {
        let mut listener = Listener::new();
        listener.plays = true;
        listener.forwarded = streams([B]);
        let is_held_up = |listener: &mut Listener| {
            listener.look(&[A]);
            listener.mixing.is_held_up(A)
        };
        for n in 0..30 {
            assert_eq!(is_held_up(&mut listener), n >= 20, "{n}");
        }
        listener.forwarded.push(A);
        // So it stays while its stream comes, or it would be asked for directly again too early.
        for is_mixed in [false, false, true] {
            assert_eq!(is_held_up(&mut listener), !is_mixed);
            assert_eq!(listener.mixing.is_mixed(A), is_mixed);
        }
        listener.plays = false;
        assert!(!is_held_up(&mut listener));
    }

    #[test]
    fn nobody_waits_for_a_mix_that_has_died_nor_for_who_has_gone() {
        let mut listener = Listener::mixed(&[A, B]);
        listener.present = streams([A]);
        listener.plays = false;
        listener.look(&[]);
        assert_eq!(listener.look(&[]), own());
    }

    #[test]
    fn who_does_not_come_by_the_server_is_not_let_in_though_the_mix_of_the_others_plays() {
        let mut listener = Listener::new();
        listener.plays = true;
        listener.forwarded = streams([A]);
        for _ in 0..20 {
            listener.look(&[A, B]);
        }
        assert_eq!(listener.look(&[A, B]), only_a_in_the_mix());
        assert_eq!(listener.need_own(), [false, true]);
        // From then on it takes as long as ever until the mix holds it.
        listener.forwarded = streams([A, B]);
        for _ in 0..2 {
            assert_eq!(listener.look(&[A, B]), only_a_in_the_mix());
        }
        assert_eq!(listener.look(&[A, B]), mix());
    }

    #[test]
    fn where_the_mix_has_ended_though_it_is_wanted_the_streams_are_heard_until_it_plays_again() {
        let mut listener = Listener::mixed(&[A, B]);
        listener.plays = false;
        for _ in 0..20 {
            assert_eq!(listener.look(&[A, B]), own());
        }
        assert_eq!(listener.need_own(), [true, true]);
        assert_eq!(listener.sources(), [A, B]);
        listener.plays = true;
        assert_eq!(listener.look(&[A, B]), mix());
    }

    #[test]
    fn a_mix_that_stands_still_for_half_a_second_has_ended() {
        let mut mixing = Mixing::new(1);
        let seen = MemberObservation {
            stream: A,
            is_wanted: true,
            is_forwarded: true,
            played_frames: 0,
        };
        let mut is_mixed = |played_frames| {
            let mix = MixObservation {
                elapsed_ms: 100,
                played_frames,
                settle_ms: 0,
            };
            mixing.review(&mix, &[seen]);
            mixing.is_mixed(A)
        };
        assert!([1, 2].map(&mut is_mixed)[1]);
        assert_eq!([2; 5].map(&mut is_mixed), [true, true, true, true, false]);
        assert!(is_mixed(3));
        // As much as ever of another mix.
        assert!(!is_mixed(0));
        assert!(is_mixed(3));
    }

    #[test]
    fn the_mix_is_needed_until_its_sound_has_faded_out() {
        let mut listener = Listener::new();
        listener.look(&[]);
        assert!(!listener.mixing.is_needed());
        let mut listener = Listener::mixed(&[A, B]);
        listener.look(&[]);
        listener.played = [128; 2];
        assert_eq!(listener.look(&[]), own());
        assert!(listener.mixing.is_needed(), "it was heard until now");
        listener.look(&[]);
        assert!(!listener.mixing.is_needed());
    }

    #[test]
    fn one_too_many_is_heard_by_its_own_stream() {
        let mut listener = Listener {
            mixing: Mixing::new(1),
            plays: true,
            ..Listener::new()
        };
        for _ in 0..9 {
            listener.look(&[A, B]);
        }
        assert_eq!(listener.look(&[A, B]), only_a_in_the_mix());
        assert_eq!(listener.need_own(), [false, true]);
    }

    #[test]
    fn a_change_of_mind_makes_no_gap() {
        let mut listener = Listener::new();
        listener.look(&[A, B]);
        assert_eq!(listener.look(&[]), own());
        assert!(listener.sources().is_empty());
        let mut listener = Listener::mixed(&[A, B]);
        listener.look(&[]);
        assert_eq!(listener.look(&[A, B]), mix());
        assert_eq!(listener.need_own(), [false, false]);
    }
}
