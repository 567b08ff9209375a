//! The stream numbers of one room, given out so that an old datagram meets its stream's next bearer as late as possible.

use std::collections::VecDeque;

/// The greatest stream number. 0 means the musician itself and 65,535 a mix (`docs/protocol.md`).
pub(crate) const MAX_STREAM: u16 = 65_534;

/// Gives out 1 to [`MAX_STREAM`]: new ones in order, then the one that has been free for longest.
#[derive(Debug, Default)]
pub(crate) struct StreamNumbers {
    /// The last new one.
    last: u16,
    /// Used before, in the order in which they became free. Grows to 128 KiB in a room that 65,534 people have left.
    free: VecDeque<u16>,
}

impl StreamNumbers {
    /// A number that nobody has, or none if all are in use.
    pub(crate) fn take(&mut self) -> Option<u16> {
        if self.last < MAX_STREAM {
            self.last += 1;
            return Some(self.last);
        }
        self.free.pop_front()
    }

    /// Gives back a number that was taken.
    pub(crate) fn give_back(&mut self, stream: u16) {
        self.free.push_back(stream);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_used_again_after_all_others_and_the_longest_free_first() {
        let mut numbers = StreamNumbers::default();
        assert_eq!((numbers.take(), numbers.take()), (Some(1), Some(2)));
        numbers.give_back(2);
        numbers.give_back(1);
        for expected in 3..=MAX_STREAM {
            assert_eq!(numbers.take(), Some(expected));
        }
        assert_eq!(
            [numbers.take(), numbers.take(), numbers.take()],
            [Some(2), Some(1), None]
        );
    }
}
