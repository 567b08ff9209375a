//! The model: what becomes of a packet, decided at the instant it is offered.

use std::collections::VecDeque;

use rand::RngExt;
use rand_pcg::Pcg64;

use crate::{ConfigError, Direction, LinkConfig, NS_PER_MS};

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Lost on the way.
    Lost,
    /// The queue was full.
    QueueDropped,
    /// It arrives.
    Delivered {
        /// When.
        at_ns: u64,
        /// When its copy arrives, if there is one.
        duplicate_at_ns: Option<u64>,
    },
}

/// One direction of a link. Sans-IO: instants are passed in, and must not go backwards.
///
/// The same seed loses and duplicates the same packets, by their number, whatever jitter, rate and time are, as long as all are offered.
#[derive(Debug)]
pub struct Link {
    config: LinkConfig,
    fate: Pcg64,
    jitter: Pcg64,
    bad: bool,
    held_ms: f64,
    held_until_ns: u64,
    /// What is in the queue: when each packet has left, and its size.
    queue: VecDeque<(u64, u32)>,
    queued_bytes: u64,
    free_at_ns: u64,
    last_arrival_ns: u64,
}

impl Link {
    /// A link with an empty queue, in its good state. Each direction draws its own random numbers from one seed.
    ///
    /// # Errors
    /// As [`LinkConfig::validate`].
    pub fn new(config: LinkConfig, seed: u64, direction: Direction) -> Result<Self, ConfigError> {
        config.validate()?;
        let [fate, jitter] = generators(seed, direction);
        Ok(Self {
            config,
            fate,
            jitter,
            bad: false,
            held_ms: 0.0,
            held_until_ns: 0,
            queue: VecDeque::new(),
            queued_bytes: 0,
            free_at_ns: 0,
            last_arrival_ns: 0,
        })
    }

    /// What the link does now.
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Changes what the link does to the packets offered from now on. Those in the queue keep their place and instant.
    ///
    /// # Errors
    /// As [`LinkConfig::validate`]; the link then stays as it was.
    pub fn set_config(&mut self, config: LinkConfig) -> Result<(), ConfigError> {
        config.validate()?;
        self.config = config;
        self.held_until_ns = 0;
        Ok(())
    }

    /// Starts the random numbers again.
    pub fn set_seed(&mut self, seed: u64, direction: Direction) {
        [self.fate, self.jitter] = generators(seed, direction);
        self.bad = false;
    }

    /// Decides what becomes of a packet offered at `now_ns`.
    pub fn offer(&mut self, size_bytes: u32, now_ns: u64) -> Verdict {
        let lost = self.draw_loss();
        // Drawn for lost packets too, so that the numbers of the next packet do not depend on it.
        let duplicate = self.fate.random::<f64>() < self.config.duplicate_share;
        self.draw_held(now_ns);
        if lost {
            return Verdict::Lost;
        }
        let Some(left_ns) = self.enqueue(size_bytes, now_ns) else {
            return Verdict::QueueDropped;
        };
        let at_ns = self.draw_arrival(left_ns);
        let duplicate_at_ns = duplicate.then(|| self.draw_arrival(left_ns).max(at_ns));
        self.last_arrival_ns = self
            .last_arrival_ns
            .max(at_ns)
            .max(duplicate_at_ns.unwrap_or(0));
        Verdict::Delivered {
            at_ns,
            duplicate_at_ns,
        }
    }

    fn draw_loss(&mut self) -> bool {
        let [change, loss] = self.config.loss.chain()[usize::from(self.bad)];
        let lost = self.fate.random::<f64>() < loss;
        self.bad ^= self.fate.random::<f64>() < change;
        lost
    }

    /// When the packet has left the queue; none if the queue is full.
    fn enqueue(&mut self, size_bytes: u32, now_ns: u64) -> Option<u64> {
        while let Some((_, size)) = self.queue.pop_front_if(|(left_ns, _)| *left_ns <= now_ns) {
            self.queued_bytes -= u64::from(size);
        }
        let queued_bytes = self.queued_bytes + u64::from(size_bytes);
        if self
            .config
            .queue_limit_bytes()
            .is_some_and(|limit| queued_bytes > limit)
        {
            return None;
        }
        let left_ns = self
            .free_at_ns
            .max(now_ns)
            .saturating_add(self.config.serialisation_ns(size_bytes));
        self.free_at_ns = left_ns;
        if left_ns > now_ns {
            self.queue.push_back((left_ns, size_bytes));
            self.queued_bytes = queued_bytes;
        }
        Some(left_ns)
    }

    fn draw_held(&mut self, now_ns: u64) {
        let hold_ns = (self.config.jitter_hold_ms * NS_PER_MS) as u64;
        if hold_ns > 0 && now_ns >= self.held_until_ns {
            self.held_ms = self.config.jitter.sample_ms(&mut self.jitter);
            self.held_until_ns = now_ns.saturating_add(hold_ns);
        }
    }

    fn draw_arrival(&mut self, left_ns: u64) -> u64 {
        let jitter_ms = if self.config.jitter_hold_ms > 0.0 {
            self.held_ms
        } else {
            self.config.jitter.sample_ms(&mut self.jitter)
        };
        let delay_ms = self.config.delay_ms + jitter_ms;
        let at_ns = left_ns.saturating_add((delay_ms * NS_PER_MS).round() as u64);
        if self.config.reorder {
            at_ns
        } else {
            at_ns.max(self.last_arrival_ns)
        }
    }
}

/// One generator for loss and duplicates, one for jitter.
fn generators(seed: u64, direction: Direction) -> [Pcg64; 2] {
    let stream = 2 * direction as u128;
    [stream, stream + 1].map(|stream| {
        let mut rng = Pcg64::new(u128::from(seed), stream);
        // The first numbers of neighbouring streams are alike.
        rng.advance(1 << 20);
        rng
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Jitter, Loss};

    fn link(config: LinkConfig) -> Link {
        Link::new(config, 1, Direction::LeftToRight).expect("valid")
    }

    fn at_ms(ms: f64) -> Verdict {
        Verdict::Delivered {
            at_ns: (ms * NS_PER_MS) as u64,
            duplicate_at_ns: None,
        }
    }

    #[test]
    fn packets_leave_one_after_the_other_at_the_rate_and_a_full_queue_drops() {
        // 1,500 bytes at 1.2 Mbit/s take 10 ms.
        let mut link = link(LinkConfig {
            delay_ms: 5.0,
            rate_bits_per_second: Some(1_200_000),
            queue_bytes: Some(3_000),
            ..LinkConfig::default()
        });
        assert_eq!(link.offer(1_500, 0), at_ms(15.0));
        assert_eq!(link.offer(1_500, 0), at_ms(25.0));
        assert_eq!(link.offer(1_500, 0), Verdict::QueueDropped);
        assert_eq!(link.offer(1_500, 10_000_000), at_ms(35.0));
        assert_eq!(link.offer(1_500, 10_000_000), Verdict::QueueDropped);
        assert_eq!(link.offer(1_500, 100_000_000), at_ms(115.0));
    }

    #[test]
    fn a_change_keeps_the_queue_and_the_order() {
        let mut link = link(LinkConfig {
            delay_ms: 100.0,
            rate_bits_per_second: Some(1_200_000),
            ..LinkConfig::default()
        });
        assert_eq!(link.offer(1_500, 0), at_ms(110.0));
        link.set_config(LinkConfig::default()).expect("valid");
        assert_eq!(link.offer(1_500, 1_000_000), at_ms(110.0));
        link.set_config(LinkConfig {
            reorder: true,
            ..LinkConfig::default()
        })
        .expect("valid");
        // The queue is one line: what was offered earlier leaves it earlier, at 10 ms.
        assert_eq!(link.offer(1_500, 2_000_000), at_ms(10.0));
    }

    #[test]
    fn the_same_packets_are_lost_whatever_the_jitter() {
        let lost = |jitter: Jitter, seed| {
            let mut link = Link::new(
                LinkConfig {
                    jitter,
                    loss: Loss::Random { share: 0.1 },
                    duplicate_share: 0.1,
                    ..LinkConfig::default()
                },
                seed,
                Direction::RightToLeft,
            )
            .expect("valid");
            (0..1_000)
                .filter(|i| link.offer(100, i * 1_000_000) == Verdict::Lost)
                .collect::<Vec<_>>()
        };
        let exponential = Jitter::Exponential { mean_ms: 3.0 };
        assert_eq!(lost(Jitter::None {}, 7), lost(exponential.clone(), 7));
        assert_ne!(lost(exponential.clone(), 7), lost(exponential, 8));
    }
}
