//! The driver in virtual time: a deterministic event queue around one direction.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use crate::{Direction, Link, LinkConfig, Plan, PlanError, Step, Verdict};

/// Beyond so many packets on the way, a packet is dropped as if a queue were full: memory stays bounded.
pub const MAX_IN_FLIGHT_PACKETS: usize = 65_536;

/// What became of the packets of one direction. When nothing is on the way any more,
/// offered = delivered + lost + queue-dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkStats {
    /// Packets that entered.
    pub offered_packets: u64,
    /// Packets that came out, copies not counted.
    pub delivered_packets: u64,
    /// Packets lost on the way.
    pub lost_packets: u64,
    /// Packets for which there was no room.
    pub queue_dropped_packets: u64,
    /// Copies that came out.
    pub duplicated_packets: u64,
    /// Delivered packets that came out after one offered later (RFC 4737, type-P-reordered).
    pub reordered_packets: u64,
    /// Bytes that entered.
    pub offered_bytes: u64,
}

/// One direction with the packets on their way, in virtual time. The same plan and input give the same output.
#[derive(Debug)]
pub struct Line<T> {
    link: Link,
    direction: Direction,
    steps: VecDeque<Step>,
    origin_ns: u64,
    /// By instant, then order of entry.
    arrivals: BTreeMap<(u64, u64), Arrival<T>>,
    entries: u64,
    next_delivered: u64,
    stats: LinkStats,
}

#[derive(Debug)]
struct Arrival<T> {
    /// Of the packet among all offered.
    number: u64,
    copy: bool,
    packet: T,
}

impl<T: Clone> Line<T> {
    /// A line that follows the plan's steps, counted from `now_ns`.
    ///
    /// # Errors
    /// As [`Plan::validate`].
    pub fn new(plan: &Plan, direction: Direction, now_ns: u64) -> Result<Self, PlanError> {
        plan.validate()?;
        let link = Link::new(LinkConfig::default(), plan.seed, direction);
        Ok(Self {
            link: link.map_err(|error| PlanError::Config {
                direction,
                index: 0,
                error,
            })?,
            direction,
            steps: plan.steps(direction).iter().cloned().collect(),
            origin_ns: now_ns,
            arrivals: BTreeMap::new(),
            entries: 0,
            next_delivered: 0,
            stats: LinkStats::default(),
        })
    }

    /// Follows another plan from now on. What is on its way keeps its instant, and the order stays.
    ///
    /// # Errors
    /// As [`Plan::validate`]; the line then goes on as before.
    pub fn set_plan(&mut self, plan: &Plan, now_ns: u64) -> Result<(), PlanError> {
        plan.validate()?;
        self.link.set_seed(plan.seed, self.direction);
        self.steps = plan.steps(self.direction).iter().cloned().collect();
        self.steps.push_front(Step {
            at_ms: 0,
            link: LinkConfig::default(),
        });
        self.origin_ns = now_ns;
        Ok(())
    }

    /// Offers a packet of `size_bytes`; instants must not go backwards.
    pub fn push(&mut self, packet: T, size_bytes: u32, now_ns: u64) -> Verdict {
        self.follow_plan(now_ns);
        let number = self.stats.offered_packets;
        self.stats.offered_packets += 1;
        self.stats.offered_bytes += u64::from(size_bytes);
        let verdict = if self.arrivals.len() < MAX_IN_FLIGHT_PACKETS {
            self.link.offer(size_bytes, now_ns)
        } else {
            Verdict::QueueDropped
        };
        match verdict {
            Verdict::Lost => self.stats.lost_packets += 1,
            Verdict::QueueDropped => self.stats.queue_dropped_packets += 1,
            Verdict::Delivered {
                at_ns,
                duplicate_at_ns,
            } => {
                let copy = duplicate_at_ns.map(|at_ns| (at_ns, packet.clone()));
                self.enter(at_ns, number, false, packet);
                if let Some((at_ns, packet)) = copy {
                    self.enter(at_ns, number, true, packet);
                }
            }
        }
        verdict
    }

    /// When the next packet arrives; none while nothing is on its way.
    pub fn poll_at(&self) -> Option<u64> {
        self.arrivals
            .first_key_value()
            .map(|((at_ns, _), _)| *at_ns)
    }

    /// The next packet that has arrived by `now_ns`. Packets of one instant come in the order they were offered.
    pub fn pop(&mut self, now_ns: u64) -> Option<T> {
        if self.poll_at()? > now_ns {
            return None;
        }
        let (_, arrival) = self.arrivals.pop_first()?;
        if arrival.copy {
            self.stats.duplicated_packets += 1;
        } else {
            self.stats.delivered_packets += 1;
            if arrival.number < self.next_delivered {
                self.stats.reordered_packets += 1;
            }
            self.next_delivered = self.next_delivered.max(arrival.number + 1);
        }
        Some(arrival.packet)
    }

    /// What became of the packets so far.
    pub fn stats(&self) -> LinkStats {
        self.stats
    }

    fn enter(&mut self, at_ns: u64, number: u64, copy: bool, packet: T) {
        let arrival = Arrival {
            number,
            copy,
            packet,
        };
        self.arrivals.insert((at_ns, self.entries), arrival);
        self.entries += 1;
    }

    fn follow_plan(&mut self, now_ns: u64) {
        let elapsed_ms = now_ns.saturating_sub(self.origin_ns) / 1_000_000;
        while let Some(step) = self.steps.pop_front_if(|step| step.at_ms <= elapsed_ms) {
            // Plans are checked on entry.
            let checked = self.link.set_config(step.link);
            debug_assert!(checked.is_ok());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_followed_step_by_step_and_can_be_replaced() {
        let plan = Plan::from_json(
            r#"{"leftToRight":[{"atMs":10,"link":{"delayMs":5}},{"atMs":20,"link":{"loss":{"kind":"random","share":1}}}]}"#,
        )
        .expect("valid");
        let ms = |ms: u64| ms * 1_000_000;
        let mut line = Line::new(&plan, Direction::LeftToRight, ms(100)).expect("valid");
        line.push("perfect", 100, ms(100));
        line.push("delayed", 100, ms(110));
        line.push("lost", 100, ms(120));
        assert_eq!(line.pop(ms(100)), Some("perfect"));
        assert_eq!(line.poll_at(), Some(ms(115)));
        assert_eq!(line.pop(ms(115) - 1), None);
        assert_eq!(line.pop(ms(115)), Some("delayed"));
        line.set_plan(&Plan::default(), ms(130)).expect("valid");
        line.push("perfect again", 100, ms(130));
        assert_eq!(line.pop(ms(130)), Some("perfect again"));
        let stats = line.stats();
        assert_eq!((stats.offered_packets, stats.lost_packets), (4, 1));
    }

    #[test]
    fn memory_is_bounded() {
        let slow = LinkConfig {
            delay_ms: 60_000.0,
            ..LinkConfig::default()
        };
        let plan = Plan::steady(1, slow.clone(), slow);
        let mut line = Line::new(&plan, Direction::LeftToRight, 0).expect("valid");
        for _ in 0..MAX_IN_FLIGHT_PACKETS + 10 {
            line.push((), 100, 0);
        }
        assert_eq!(line.stats().queue_dropped_packets, 10);
    }
}
