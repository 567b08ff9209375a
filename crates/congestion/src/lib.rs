//! QUIC for sound: [`configure`], and the congestion control, [`SoundConfig`].
//!
//! Sound comes at a steady rate, of which the sender and the listener agree from what they measure themselves: fewer bits, Opus, a mix.
//! Never sent again, it survives a few lost packets; what it does not survive is to wait. The usual controls halve the window at each
//! loss, whatever its cause, until a stream waits or is dropped: over 100 ms and 1 % of random loss, Cubic lets 19 % of four streams
//! through (`cargo bench -p antiphon-server --bench congestion`). So here
//!
//! * loss counts as congestion only where it is more than a tenth by more than chance; a tenth as in Google's congestion control for
//!   WebRTC (draft-ietf-rmcat-gcc-02, section 6); an acknowledgement of packets that the network has marked (ECN) counts as one that was lost. Then it takes away half as much as was lost of what was under way; after an interruption
//!   the window soon doubles again;
//! * a window that holds the sender back does not grow while packets wait in a queue of the network, and shrinks while they wait for long:
//!   then the queue is our own doing. If shrinking does not shorten the queue, it is not: the way has become longer;
//! * a window that does not hold the sender back grows until it holds a second of sound: so long may acknowledgements stay away.
#![warn(missing_docs)]

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};
use quinn_proto::{AckFrequencyConfig, RttEstimator, TransportConfig};

/// Packets that the other end need not acknowledge at once, where it can wait (draft-ietf-quic-ack-frequency; else one): nothing is sent
/// again, and most acknowledgements then travel with datagrams that go the other way. Chromium acknowledges as many by itself.
const UNACKNOWLEDGED: u32 = 9;

/// Until something is known, in packets (RFC 9002, section 7.2), and the least, a packet more than there: a burst of one stream.
const INITIAL_PACKETS: u64 = 10;
const LEAST_PACKETS: u64 = 3;
/// Loss is judged over so many packets, or after so long.
const JUDGED_PACKETS: u32 = 200;
const JUDGED: Duration = Duration::from_secs(1);
/// Shares of the bytes lost: below the first all is well, above the second it is congestion.
const LITTLE_LOSS: f64 = 0.02;
const MUCH_LOSS: f64 = 0.1;
/// Standard deviations by which it must be above that: of 200 packets 21 are lost of a twelfth once in a second of four streams.
const BEYOND_CHANCE: f64 = 2.0;
/// The path was away if no acknowledgement came for so much longer than a round trip; they are held back for a tenth of it. What was lost
/// then is judged within the second time.
const AWAY: Duration = Duration::from_millis(250);
const RETURNED: Duration = Duration::from_secs(2);
/// Waiting in the network beyond the least seen: above the first the window stays, above the second it shrinks.
const SHORT_QUEUE: Duration = Duration::from_millis(10);
const LONG_QUEUE: Duration = Duration::from_millis(30);
/// By how much then, each time.
const DRAIN: f64 = 0.85;
/// After so many in a row a queue of our own has become shorter by a tenth of the round trip, whose window is then three fifths.
const DRAINS: u32 = 3;
const SHORTER: f64 = 0.9;
/// The least delay is remembered for one to two times this: routes change, and clocks do not matter.
const MEMORY: Duration = Duration::from_secs(10);
/// A rate is taken over no less: acknowledgements that were held up come together.
const MEASURED: Duration = Duration::from_millis(500);
/// Sound that the window holds where it does not hold the sender back.
const SPARE: Duration = Duration::from_secs(1);
/// Enough for thirty streams over a round trip of 300 ms.
const MOST_WINDOW: u64 = 2 << 20;
/// After the start, for so many bytes acknowledged the window grows by one; and where some are lost, but not too many: it must come back
/// from a judgement that chance had made.
const GROWTH: u64 = 10;
const GROWTH_IN_LOSS: u64 = 100;

/// Sets the congestion control, and how often the other end acknowledges.
pub fn configure(transport: &mut TransportConfig) -> &mut TransportConfig {
    let mut acknowledgements = AckFrequencyConfig::default();
    acknowledgements.ack_eliciting_threshold(UNACKNOWLEDGED.into());
    transport
        .ack_frequency_config(Some(acknowledgements))
        .congestion_controller_factory(Arc::new(SoundConfig))
}

/// Makes a control for each connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct SoundConfig;

impl ControllerFactory for SoundConfig {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Sound::new(now, current_mtu))
    }
}

/// The control of one connection. All sizes in bytes.
#[derive(Clone, Debug)]
struct Sound {
    mtu: u64,
    window: u64,
    /// The first signs of congestion have not been seen yet: the window doubles each round trip.
    is_starting: bool,
    /// Since when the following is counted.
    since: Instant,
    packets: u32,
    acked: u64,
    lost: u64,
    /// Size of the packet that was acknowledged last.
    newest: u64,
    /// Most that was under way.
    most_in_flight: u64,
    /// Bytes acknowledged since then without loss or a full window, for their rate.
    free_since: Instant,
    free_acked: u64,
    /// Least mean round trip, without the time for which acknowledgements were held back.
    delay: Duration,
    /// The same over the last periods of [`MEMORY`], the current one first, and when that began.
    least_delays: [Duration; 2],
    remembered_since: Instant,
    /// Judgements in a row that shrank the window for a queue, and the delay at the first.
    drains: u32,
    drained_from: Duration,
    /// When something was last acknowledged, and when that first was so again after the path was away.
    acked_at: Instant,
    returned_at: Option<Instant>,
    /// Whether the window held the sender back.
    is_limited: bool,
    /// Of the last judgement.
    is_calm: bool,
    is_congested: bool,
}

impl Sound {
    fn new(now: Instant, mtu: u16) -> Self {
        let mtu = u64::from(mtu);
        Self {
            mtu,
            window: INITIAL_PACKETS * mtu,
            is_starting: true,
            since: now,
            packets: 0,
            acked: 0,
            lost: 0,
            newest: mtu,
            most_in_flight: 0,
            free_since: now,
            free_acked: 0,
            delay: Duration::MAX,
            least_delays: [Duration::MAX; 2],
            remembered_since: now,
            drains: 0,
            drained_from: Duration::ZERO,
            acked_at: now,
            returned_at: None,
            is_limited: false,
            is_calm: true,
            is_congested: false,
        }
    }

    fn least_window(&self) -> u64 {
        LEAST_PACKETS * self.mtu
    }

    fn least_delay(&self) -> Duration {
        let [newer, older] = self.least_delays;
        newer.min(older)
    }

    /// How long packets waited in the network, at least.
    fn queue(&self) -> Duration {
        self.delay.saturating_sub(self.least_delay())
    }

    fn remember(&mut self, delay: Duration, now: Instant) {
        self.delay = self.delay.min(delay);
        if now.saturating_duration_since(self.remembered_since) > MEMORY {
            self.least_delays = [Duration::MAX, self.least_delays[0]];
            self.remembered_since = now;
        }
        self.least_delays[0] = self.least_delays[0].min(delay);
    }

    /// Notices that a queue is not our own.
    fn count_drain(&mut self, is_waiting: bool) {
        if !is_waiting {
            self.drains = 0;
            return;
        }
        if self.drains == 0 {
            self.drained_from = self.delay;
        }
        self.drains += 1;
        if self.drains > DRAINS {
            if self.delay > self.drained_from.mul_f64(SHORTER) {
                self.least_delays = [self.delay; 2];
            }
            self.drains = 0;
        }
    }

    fn judge(&mut self, now: Instant) {
        let loss = self.lost as f64 / (self.acked + self.lost).max(1) as f64;
        let chance = (loss * (1.0 - loss) / f64::from(self.packets.max(1))).sqrt();
        self.is_congested = loss > MUCH_LOSS + BEYOND_CHANCE * chance;
        let is_waiting = self.is_limited && self.queue() > LONG_QUEUE;
        self.count_drain(is_waiting);
        if self.is_congested || is_waiting {
            let kept = if self.is_congested {
                1.0 - loss / 2.0
            } else {
                DRAIN
            };
            // What is under way is looked at after acknowledgements, when it is least.
            let used = if self.is_limited {
                self.window
            } else {
                self.most_in_flight.min(self.window)
            };
            self.window = ((used as f64 * kept) as u64).max(self.least_window());
            // What has come back may be another path.
            let has_returned = |at| now.saturating_duration_since(at) < RETURNED;
            self.is_starting = self.returned_at.is_some_and(has_returned);
        }
        self.free_acked += self.acked;
        let free = now.saturating_duration_since(self.free_since);
        self.is_calm = loss < LITTLE_LOSS;
        let is_free = self.is_calm && !self.is_limited;
        if is_free && free >= MEASURED {
            let spare = self.free_acked as f64 * SPARE.as_secs_f64() / free.as_secs_f64();
            self.window = self.window.max((spare as u64).min(MOST_WINDOW));
        }
        if !is_free || free >= MEASURED {
            (self.free_since, self.free_acked) = (now, 0);
        }
        self.since = now;
        (self.packets, self.acked, self.lost, self.most_in_flight) = (0, 0, 0, 0);
        self.delay = Duration::MAX;
        self.is_limited = false;
    }
}

impl Sound {
    fn acknowledged(&mut self, now: Instant, round_trip: Duration, bytes: u64, app_limited: bool) {
        self.packets += 1;
        self.acked += bytes;
        self.newest = bytes;
        self.remember(round_trip, now);
        if app_limited {
            return;
        }
        self.is_limited = true;
        if self.queue() > SHORT_QUEUE {
            self.is_starting = false;
        } else if self.is_starting {
            self.window += bytes;
        } else if self.is_calm {
            self.window += bytes / GROWTH;
        } else if !self.is_congested {
            self.window += bytes / GROWTH_IN_LOSS;
        }
        self.window = self.window.min(MOST_WINDOW);
    }
}

impl Controller for Sound {
    fn on_ack(
        &mut self,
        now: Instant,
        _sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.acknowledged(now, rtt.get(), bytes, app_limited);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        _app_limited: bool,
        _largest_packet_num_acked: Option<u64>,
    ) {
        self.most_in_flight = self.most_in_flight.max(in_flight);
        if now.saturating_duration_since(self.acked_at) > AWAY.saturating_add(self.least_delay()) {
            self.returned_at = Some(now);
        }
        self.acked_at = now;
        if self.packets >= JUDGED_PACKETS || now.saturating_duration_since(self.since) > JUDGED {
            self.judge(now);
        }
    }

    fn on_congestion_event(
        &mut self,
        _now: Instant,
        _sent: Instant,
        _is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        // Nothing is lost where packets came, but marked (ECN): a network that could not mark them would have dropped some. How many the other end saw marked since
        // its last acknowledgement is not known: at least one.
        let lost_bytes = if lost_bytes == 0 {
            self.newest
        } else {
            lost_bytes
        };
        self.packets += lost_bytes.div_ceil(self.mtu) as u32;
        self.lost += lost_bytes;
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = u64::from(new_mtu);
        self.window = self.window.max(self.least_window());
    }

    fn window(&self) -> u64 {
        self.window
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.window;
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        INITIAL_PACKETS * self.mtu
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: u64 = 1_200;
    const PACKET: u64 = 561;

    /// A second of a stream, of which every `nth` packet is lost, over a path with this round trip; 0: none.
    fn second(
        sound: &mut Sound,
        now: &mut Instant,
        nth: u32,
        round_trip_ms: u64,
        app_limited: bool,
    ) {
        let round_trip = Duration::from_millis(round_trip_ms);
        let in_flight = PACKET * 375 * round_trip_ms / 1_000;
        for n in 1..=375 {
            *now += Duration::from_micros(2_667);
            if nth > 0 && n % nth == 0 {
                sound.on_congestion_event(*now, *now - round_trip, false, PACKET);
            } else {
                sound.acknowledged(*now, round_trip, PACKET, app_limited);
            }
            sound.on_end_acks(*now, in_flight, app_limited, None);
        }
    }

    fn begin() -> (Sound, Instant) {
        // Some time after the clock's own beginning, before which packets cannot have been sent.
        let now = Instant::now() + Duration::from_secs(10);
        (Sound::new(now, MTU as u16), now)
    }

    #[test]
    fn loss_that_nobody_caused_takes_nothing_away() {
        let (mut sound, mut now) = begin();
        for nth in [0, 100, 20, 11] {
            let before = sound.window();
            second(&mut sound, &mut now, nth, 100, true);
            assert!(sound.window() >= before, "one in {nth}");
        }
    }

    #[test]
    fn a_steady_stream_gets_a_second_of_room_and_no_more() {
        let (mut sound, mut now) = begin();
        for _ in 0..20 {
            second(&mut sound, &mut now, 0, 20, true);
        }
        let second = 375 * PACKET;
        assert!(
            (second * 9 / 10..second * 11 / 10).contains(&sound.window()),
            "{}",
            sound.window()
        );
    }

    #[test]
    fn acknowledgements_that_come_together_make_no_rate() {
        let (mut sound, mut now) = begin();
        for _ in 0..3 {
            second(&mut sound, &mut now, 0, 20, true);
        }
        let before = sound.window();
        now += Duration::from_millis(300);
        for _ in 0..450 {
            sound.acknowledged(now, Duration::from_millis(320), PACKET, true);
            sound.on_end_acks(now, 0, true, None);
        }
        second(&mut sound, &mut now, 0, 20, true);
        // In less than a millisecond, which would make hundreds of megabytes a second.
        assert!(
            sound.window() < 4 * before,
            "{} after {before}",
            sound.window()
        );
    }

    #[test]
    fn much_loss_takes_half_as_much_of_what_was_under_way() {
        let (mut sound, mut now) = begin();
        second(&mut sound, &mut now, 0, 100, true);
        sound.judge(now);
        // Every fourth is lost of some 21 kB under way.
        second(&mut sound, &mut now, 4, 100, true);
        let under_way = PACKET * 375 / 10;
        let kept = sound.window() as f64 / under_way as f64;
        assert!((0.8..=0.9).contains(&kept), "{kept}");
    }

    #[test]
    fn marks_of_a_network_that_is_full_count_as_loss() {
        let (mut sound, mut now) = begin();
        second(&mut sound, &mut now, 0, 100, true);
        sound.judge(now);
        for (nth, shrinks) in [(50, false), (4, true)] {
            let before = sound.window();
            for n in 1..=375 {
                now += Duration::from_micros(2_667);
                sound.acknowledged(now, Duration::from_millis(100), PACKET, false);
                sound.on_end_acks(now, 100 * PACKET, false, None);
                if n % nth == 0 {
                    sound.on_congestion_event(now, now, false, 0);
                }
            }
            let after = sound.window();
            assert_eq!(after < before, shrinks, "{after} after {before}");
        }
    }

    #[test]
    fn the_window_has_a_least_and_a_most() {
        let (mut sound, mut now) = begin();
        for _ in 0..100 {
            second(&mut sound, &mut now, 2, 1, false);
        }
        assert_eq!(sound.window(), LEAST_PACKETS * MTU);
        // Most of it may be lost where a rate is enforced: that is no interruption.
        sound.window = 100 * MTU;
        for n in 1..10_000 {
            now += Duration::from_micros(2_667);
            if n % 5 == 0 {
                sound.acknowledged(now, Duration::from_millis(20), PACKET, false);
                sound.on_end_acks(now, 100 * MTU, false, None);
            } else {
                sound.on_congestion_event(now, now, false, PACKET);
            }
        }
        assert!(
            sound.window() < 2 * LEAST_PACKETS * MTU,
            "{}",
            sound.window()
        );
        for _ in 0..1_000 {
            second(&mut sound, &mut now, 0, 1, false);
        }
        assert_eq!(sound.window(), MOST_WINDOW);
    }

    #[test]
    fn a_window_that_fills_a_queue_stops_growing_and_drains_it() {
        let (mut sound, mut now) = begin();
        second(&mut sound, &mut now, 0, 20, false);
        let grown = sound.window();
        assert!(grown > INITIAL_PACKETS * MTU, "{grown}");
        sound.judge(now);
        second(&mut sound, &mut now, 0, 20 + 15, false);
        assert_eq!(sound.window(), grown, "a short queue");
        sound.judge(now);
        second(&mut sound, &mut now, 0, 20 + 80, false);
        assert!(sound.window() < grown, "a long queue: {}", sound.window());
    }

    #[test]
    fn a_queue_that_others_fill_takes_nothing_from_who_is_not_held_back() {
        let (mut sound, mut now) = begin();
        second(&mut sound, &mut now, 0, 20, true);
        let before = sound.window();
        second(&mut sound, &mut now, 0, 220, true);
        assert!(sound.window() >= before);
    }
}
