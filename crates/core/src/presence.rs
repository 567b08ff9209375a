//! Which frames of a stream are there, in rings of one bit each.

use alloc::boxed::Box;
use alloc::vec;

/// Which of the newest frames were received, whatever became of them.
#[derive(Debug)]
pub(crate) struct Received {
    frames: Presence,
    /// Media time after the newest frame received: the record reaches back from there by its capacity. `None` before the first.
    end: Option<u64>,
}

impl Received {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            frames: Presence::new(capacity),
            end: None,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.frames.clear_all();
        self.end = None;
    }

    /// Makes the record reach over these frames, from which on what is older than its capacity is forgotten.
    pub(crate) fn reach(&mut self, media: u64, frames: usize) {
        let capacity = self.frames.capacity() as i64;
        let end = media.wrapping_add(frames as u64);
        let known = *self.end.get_or_insert(end);
        let ahead = end.wrapping_sub(known) as i64;
        if ahead > capacity || ahead.saturating_sub(frames as i64) < -capacity {
            // Another time altogether.
            self.frames.clear_all();
            self.end = Some(end);
        } else if ahead > 0 {
            self.frames.clear(known, ahead as usize);
            self.end = Some(end);
        }
    }

    /// Whether `media` is older than the record.
    pub(crate) fn is_past(&self, media: u64) -> bool {
        let capacity = self.frames.capacity() as i64;
        self.end
            .is_some_and(|end| end.wrapping_sub(media) as i64 > capacity)
    }

    /// Frames from `media` on that were received, in a row, at most `most`.
    pub(crate) fn run(&self, media: u64, most: usize) -> usize {
        let Some(end) = self.end else {
            return 0;
        };
        let behind = end.wrapping_sub(media) as i64;
        if (0..=self.frames.capacity() as i64).contains(&behind) {
            self.frames.run(media, most.min(behind as usize))
        } else {
            0
        }
    }

    /// Frames from `media` on that were not, in a row, at most `most`; all within [`reach`](Self::reach).
    pub(crate) fn gap(&self, media: u64, most: usize) -> usize {
        self.frames.gap(media, most)
    }

    /// Records frames within [`reach`](Self::reach).
    pub(crate) fn set(&mut self, media: u64, frames: usize) {
        self.frames.set(media, frames);
    }
}

/// Which slots hold a frame that has not been played: one bit each.
#[derive(Debug)]
pub(crate) struct Presence {
    words: Box<[u64]>,
}

impl Presence {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            words: vec![0; capacity / 64].into_boxed_slice(),
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.words.len() * 64
    }

    pub(crate) fn slot(&self, media: u64) -> usize {
        media as usize & (self.capacity() - 1)
    }

    pub(crate) fn count(&self) -> usize {
        self.words
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum()
    }

    pub(crate) fn clear_all(&mut self) {
        self.words.fill(0);
    }

    /// Frames present in a row from `media` on, at most `most`.
    pub(crate) fn run(&self, media: u64, most: usize) -> usize {
        self.count_while(media, most, |word| !word)
    }

    /// Frames absent in a row from `media` on, at most `most`.
    pub(crate) fn gap(&self, media: u64, most: usize) -> usize {
        self.count_while(media, most, |word| word)
    }

    /// Counts bits up to the first that is set in `stop(word)`.
    fn count_while(&self, media: u64, most: usize, stop: impl Fn(u64) -> u64) -> usize {
        let mut count = 0;
        while count < most {
            let slot = self.slot(media.wrapping_add(count as u64));
            let bit = slot % 64;
            let here =
                ((stop(self.words[slot / 64]) >> bit).trailing_zeros() as usize).min(64 - bit);
            count += here;
            if here < 64 - bit {
                break;
            }
        }
        count.min(most)
    }

    /// Returns how many were not set before.
    pub(crate) fn set(&mut self, media: u64, frames: usize) -> usize {
        let mut new = 0;
        self.each_word(media, frames, |word, mask| {
            new += (!*word & mask).count_ones() as usize;
            *word |= mask;
        });
        new
    }

    /// Returns how many were set.
    pub(crate) fn clear(&mut self, media: u64, frames: usize) -> usize {
        let mut set = 0;
        self.each_word(media, frames, |word, mask| {
            set += (*word & mask).count_ones() as usize;
            *word &= !mask;
        });
        set
    }

    fn each_word(&mut self, media: u64, frames: usize, apply: impl FnMut(&mut u64, u64)) {
        each_word(&mut self.words, media, frames, apply);
    }
}

/// Calls `apply` with each word of a ring of bits, as many as a power of two, that has some of the `count` from `from` on, and with those.
pub(crate) fn each_word(
    ring: &mut [u64],
    from: u64,
    count: usize,
    mut apply: impl FnMut(&mut u64, u64),
) {
    let mut done = 0;
    while done < count {
        let place = from.wrapping_add(done as u64) as usize & (ring.len() * 64 - 1);
        let bit = place % 64;
        let run = (count - done).min(64 - bit);
        let mask = (u64::MAX >> (64 - run)) << bit;
        apply(&mut ring[place / 64], mask);
        done += run;
    }
}
