//! Sequence numbers of one way, without the gaps of what was not to come.

use antiphon_core::sequence;

/// What is older than the newest by more was not overtaken: for the engine it is too old. Its number may also have begun anew, or gone round.
const WINDOW: i32 = sequence::WINDOW as i32;

/// A sender counts what it sends to the relay, whoever takes it there, and whether the relay passes it on. Such a gap is no loss.
#[derive(Debug, Default)]
pub(crate) struct Numbering {
    offset: u32,
    newest: Option<u32>,
    is_interrupted: bool,
    /// The first number after the last interruption, while what it overtook may still come.
    first: Option<u32>,
}

impl Numbering {
    /// What came since the last datagram, if anything did, was not to be heard.
    pub(crate) fn interrupt(&mut self) {
        self.is_interrupted = true;
    }

    /// The number that a datagram has in place of its own: after an interruption it goes on by one.
    pub(crate) fn apply(&mut self, sequence: u32) -> u32 {
        if let Some(newest) = self.newest.filter(|_| self.is_interrupted) {
            let first = newest.wrapping_add(1);
            self.first = Some(first);
            self.offset = first.wrapping_sub(sequence);
        }
        self.is_interrupted = false;
        let mut number = sequence.wrapping_add(self.offset);
        // What the first one overtook finds no number left before it: it takes the next, and all that follow move up.
        if let (Some(first), Some(newest)) = (self.first, self.newest)
            && number.wrapping_sub(first).cast_signed() < 0
        {
            self.offset = self.offset.wrapping_add(1);
            number = newest.wrapping_add(1);
        }
        // RFC 1982: newer, if the difference is positive in 32 bits.
        let is_newer = |newest: u32| number.wrapping_sub(newest).cast_signed() > 0;
        if self.newest.is_none_or(is_newer) {
            self.newest = Some(number);
        }
        let newest = self.newest.unwrap_or(number);
        let is_near = |first: &u32| newest.wrapping_sub(*first).cast_signed() <= WINDOW;
        self.first = self.first.filter(is_near);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_numbers_as_they_are_and_with_them_what_was_lost_or_overtaken() {
        let mut numbering = Numbering::default();
        numbering.interrupt();
        for sequence in [7, 8, 11, 9, 12] {
            assert_eq!(numbering.apply(sequence), sequence);
        }
    }

    #[test]
    fn goes_on_by_one_after_an_interruption_whatever_passed_meanwhile() {
        let mut numbering = Numbering::default();
        let mut seen = [u32::MAX - 1, u32::MAX]
            .map(|sequence| numbering.apply(sequence))
            .to_vec();
        numbering.interrupt();
        seen.extend([30_000, 30_001, 30_003, 30_002].map(|sequence| numbering.apply(sequence)));
        numbering.interrupt();
        seen.push(numbering.apply(5));
        assert_eq!(seen, [u32::MAX - 1, u32::MAX, 0, 1, 3, 2, 4]);
    }

    #[test]
    fn gives_what_the_first_one_after_an_interruption_has_overtaken_a_number_of_its_own() {
        let mut numbering = Numbering::default();
        let mut seen = [7, 8].map(|sequence| numbering.apply(sequence)).to_vec();
        numbering.interrupt();
        seen.extend([31, 30, 32, 34, 33].map(|sequence| numbering.apply(sequence)));
        assert_eq!(seen, [7, 8, 9, 10, 11, 13, 12]);
    }

    #[test]
    fn leaves_numbers_alone_that_begin_anew_or_go_round_long_after_an_interruption() {
        let mut numbering = Numbering::default();
        numbering.apply(9);
        numbering.interrupt();
        for sequence in (10..=5_000).chain(0..3_000) {
            assert_eq!(numbering.apply(sequence), sequence);
        }
        let mut going = Numbering::default();
        going.apply(9);
        going.interrupt();
        for part in 0..6 {
            for sequence in [10, 11, 13] {
                let sequence = (1u32 << 30).wrapping_mul(part).wrapping_add(sequence);
                assert_eq!(going.apply(sequence), sequence);
            }
        }
    }
}
