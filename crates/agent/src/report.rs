//! What two ends tell each other of their clocks and of what they hear: reports, and what follows from them
//! (`docs/adr/0014-measured-mouth-to-ear.md`).

use std::collections::VecDeque;

use antiphon_core::wire::{
    CaptureReport, HeardReport, InputDelay, MAX_PERIOD_MS, MAX_REPORT_US, Report,
};
use antiphon_core::{SampleRate, StreamStats};

use crate::clock::{CaptureReading, ClockOffset, frames_ns};

/// Between two reports, at most, and between two probes of a lane, ns.
pub const REPORT_INTERVAL_NS: u64 = 500_000_000;
/// The next report is due at once where the capture's line has moved by so much: frames were lost, and until the peer knows, its figure is off by as
/// much. Not twice in a row: a line that only trembles tells nothing.
const MOVED_NS: u64 = 500_000;
/// A peer that has been silent for so long tells nothing any more.
const STALE_NS: u64 = 3_000_000_000;
/// What the counts of a report cover.
const PERIOD_NS: u64 = 4_000_000_000;

/// The delay from a peer's microphone to our ear.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MouthToEar {
    /// Sum of the stages that are known, ms.
    pub known_ms: f64,
    /// It may be wrong by so much, ms.
    pub error_ms: f64,
    /// Every stage is known; otherwise it is more than that.
    pub is_whole: bool,
}

/// Counters of one stream at some moment.
type Reading = (u64, StreamStats);

/// How one stream of our player is heard.
#[derive(Debug, Default)]
pub struct Hearing {
    readings: VecDeque<Reading>,
}

/// How a source of the server's mix is heard, if the mix is heard so, and the mixer made up `concealed_share` of the source itself, 0 to 1.
pub fn in_mix(mix: HeardReport, concealed_share: f32) -> HeardReport {
    let frames = mix.played_frames.saturating_add(mix.concealed_frames);
    let made_up = (f64::from(frames) * f64::from(concealed_share.clamp(0.0, 1.0))) as u32;
    let concealed_frames = mix.concealed_frames.saturating_add(made_up).min(frames);
    HeardReport {
        is_mixed: true,
        played_frames: frames - concealed_frames,
        concealed_frames,
        ..mix
    }
}

/// Both ends of the reports with one peer.
#[derive(Debug, Default)]
pub struct Reports {
    /// The peer's clock against ours.
    pub offset: ClockOffset,
    id: u32,
    sent_at_ns: Option<u64>,
    sent_line_ns: Option<i64>,
    was_early: bool,
    dropped: VecDeque<(u64, u64)>,
    report: Option<(u64, Report)>,
}

impl Hearing {
    /// The player's newest word on this stream.
    pub fn observe(&mut self, stats: StreamStats, now_ns: u64) {
        let fell = |old: &StreamStats| {
            stats.jitter.played_frames < old.jitter.played_frames
                || stats.sequence.received < old.sequence.received
        };
        // Counters that fell are those of another stream.
        if self.readings.back().is_some_and(|(_, old)| fell(old)) {
            self.readings.clear();
        }
        self.readings.push_back((now_ns, stats));
        while self.readings.len() > 2 && now_ns - self.readings[1].0 >= PERIOD_NS {
            self.readings.pop_front();
        }
    }

    /// Its last seconds, for a report; `None` while nothing is known. `underruns` of our output, likewise.
    pub fn report(&self, underruns: u32, now_ns: u64) -> Option<HeardReport> {
        let (begin, old) = self.readings.front()?;
        let (end, new) = self.readings.back()?;
        new.format?;
        let period_ms = (end - begin) / 1_000_000;
        if period_ms == 0 || now_ns.saturating_sub(*end) > STALE_NS {
            return None;
        }
        let grown = |of: fn(&StreamStats) -> u64| {
            u32::try_from(of(new).saturating_sub(of(old))).unwrap_or(u32::MAX)
        };
        let frames = |frames: u64| u32::try_from(frames).unwrap_or(u32::MAX - 1);
        Some(HeardReport {
            is_mixed: false,
            period_ms: (period_ms as u16).min(MAX_PERIOD_MS),
            received_packets: grown(|s| s.sequence.received),
            lost_packets: grown(|s| s.sequence.lost),
            late_packets: grown(|s| s.jitter.late_packets),
            played_frames: grown(|s| s.jitter.played_frames),
            concealed_frames: grown(|s| s.jitter.concealed_frames),
            buffer_frames: new.buffered_frames.map(frames),
            target_frames: frames(new.target_frames),
            spread_frames: new.spread_frames.map(frames),
            output_underruns: Some(underruns),
        })
    }
}

impl Reports {
    /// The next report; `None` if it is not time, to be asked ten times a second. `stream`: as the datagram needs it on its way. `dropped_packets`: of ours to this
    /// peer, so far; `overrun_frames`: captured and lost, in the last seconds; `heard`: how we hear it.
    pub fn poll(
        &mut self,
        stream: u16,
        capture: Option<CaptureReading>,
        overrun_frames: u32,
        dropped_packets: u64,
        heard: Option<HeardReport>,
        now_ns: u64,
    ) -> Option<Report> {
        let line_ns = capture.map(|reading| reading.line_ns);
        let has_moved = (line_ns.zip(self.sent_line_ns))
            .is_some_and(|(line, sent)| line.abs_diff(sent) > MOVED_NS);
        let is_early = self
            .sent_at_ns
            .is_some_and(|at| now_ns - at < REPORT_INTERVAL_NS);
        if is_early && (!has_moved || self.was_early) {
            return None;
        }
        self.was_early = is_early;
        self.sent_at_ns = Some(now_ns);
        self.sent_line_ns = line_ns;
        self.id = self.id.wrapping_add(1);
        self.dropped.push_back((now_ns, dropped_packets));
        while self.dropped.len() > 2 && now_ns - self.dropped[1].0 >= PERIOD_NS {
            self.dropped.pop_front();
        }
        // With a new path the count begins anew.
        let dropped = dropped_packets.saturating_sub(self.dropped[0].1);
        let capture = capture.map(|reading| CaptureReport {
            timestamp: reading.frame,
            time_ns: reading.captured.ns as u64,
            error_us: to_us(reading.captured.error_ns) as u32,
            block_us: to_us(reading.block_ns) as u32,
            send_us: to_us(reading.send_ns) as u32,
            input: reading.input_ns.map(|ns| InputDelay {
                is_calibrated: false,
                delay_us: (ns / 1_000).clamp(-i64::from(MAX_REPORT_US), MAX_REPORT_US.into())
                    as i32,
                error_us: 0,
            }),
            overrun_frames,
            dropped_packets: u32::try_from(dropped).unwrap_or(u32::MAX),
        });
        Some(Report {
            stream,
            id: self.id,
            capture,
            heard,
        })
    }

    /// A report came. One that was overtaken is ignored.
    pub fn handle_report(&mut self, report: Report, now_ns: u64) {
        let is_older = self.report.as_ref().is_some_and(|(at, newest)| {
            now_ns - at < STALE_NS && report.id.wrapping_sub(newest.id).cast_signed() <= 0
        });
        if !is_older {
            self.report = Some((now_ns, report));
        }
    }

    /// How the peer hears us, by its own word; `None` if it has not said so lately.
    pub fn heard(&self, now_ns: u64) -> Option<HeardReport> {
        self.fresh(now_ns)?.heard
    }

    /// Whether the peer captures anything, by its own word; `None` if it has not said so lately.
    pub fn captures(&self, now_ns: u64) -> Option<bool> {
        Some(self.fresh(now_ns)?.capture.is_some())
    }

    fn fresh(&self, now_ns: u64) -> Option<&Report> {
        let (at, report) = self.report.as_ref()?;
        (now_ns - at < STALE_NS).then_some(report)
    }

    /// From its microphone to our ear, if `playhead` is rendered with the frame that our output takes at `rendered_ns`, and our output
    /// takes `output_ns` from there; `None` for that: unknown.
    pub fn mouth_to_ear(
        &self,
        playhead: u64,
        rendered_ns: i64,
        output_ns: Option<i64>,
        rate: SampleRate,
        now_ns: u64,
    ) -> Option<MouthToEar> {
        let capture = self.fresh(now_ns)?.capture?;
        let offset = self.offset.at(now_ns)?;
        // The playhead begins before the first frame, whose number may be 0: only their difference is a number of frames.
        let since_capture = playhead.wrapping_sub(capture.timestamp).cast_signed();
        let captured_ns = (capture.time_ns as i64)
            .wrapping_sub(offset.ns)
            .wrapping_add(frames_ns(since_capture, rate));
        let (input_ns, input_error_ns) = capture.input.map_or((0, 0), |input| {
            (
                i64::from(input.delay_us) * 1_000,
                u64::from(input.error_us) * 1_000,
            )
        });
        // What a peer says of its clock may be anything: nonsense comes of nonsense.
        let known_ns = rendered_ns
            .wrapping_sub(captured_ns)
            .wrapping_add(input_ns)
            .wrapping_add(output_ns.unwrap_or(0));
        let error_ns =
            offset.error_ns as u64 + u64::from(capture.error_us) * 1_000 + input_error_ns;
        Some(MouthToEar {
            known_ms: known_ns as f64 / 1e6,
            error_ms: error_ns as f64 / 1e6,
            is_whole: capture.input.is_some() && output_ns.is_some(),
        })
    }
}

fn to_us(ns: i64) -> i64 {
    (ns / 1_000).clamp(0, i64::from(MAX_REPORT_US))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Estimate;

    const RATE: SampleRate = SampleRate::Hz48000;

    #[test]
    fn mouth_to_ear_compares_the_two_clocks() {
        let mut reports = Reports::default();
        // Its clock is 7 s ahead of ours.
        let ahead = 7_000_000_000;
        let reading = CaptureReading {
            frame: 48_000,
            captured: Estimate {
                ns: 10_000_000_000 + ahead,
                error_ns: 20_000,
            },
            line_ns: 9_000_000_000 + ahead,
            block_ns: 1_300_000,
            send_ns: 1_500_000,
            input_ns: None,
        };
        let report = Reports::default()
            .poll(3, Some(reading), 0, 0, None, 1)
            .expect("it is time");
        assert_eq!((report.id, report.stream, report.heard), (1, 3, None));
        let now_ns = 10_100_000_000;
        reports.handle_report(report, now_ns);
        assert_eq!(
            reports.mouth_to_ear(48_000, 0, None, RATE, now_ns),
            None,
            "the clocks are not compared yet"
        );
        reports
            .offset
            .add(now_ns - 1_000_000, now_ns - 500_000 + ahead as u64, now_ns);
        // Its frame 48,480 was captured 10 ms after frame 48,000, and is rendered 30 ms after that.
        let found = reports
            .mouth_to_ear(48_480, 10_040_000_000, Some(1_000_000), RATE, now_ns)
            .expect("known");
        assert_eq!(found.known_ms, 31.0);
        assert_eq!(found.error_ms, 0.52);
        assert!(!found.is_whole, "its input says nothing");
        let told = CaptureReading {
            input_ns: Some(-1_333_333),
            ..reading
        };
        let report = Reports::default().poll(3, Some(told), 0, 0, None, 1);
        reports.report = None;
        reports.handle_report(report.expect("it is time"), now_ns);
        let found = reports
            .mouth_to_ear(48_480, 10_040_000_000, Some(1_000_000), RATE, now_ns)
            .expect("known");
        assert_eq!(found.known_ms, 29.667);
        assert!(found.is_whole);
        // Before its first frame there is silence, which was captured a second and 10 ms before frame 48,000.
        let found = reports
            .mouth_to_ear(
                0u64.wrapping_sub(480),
                9_020_000_000,
                Some(1_000_000),
                RATE,
                now_ns,
            )
            .expect("known");
        assert_eq!(found.known_ms, 29.667);
    }

    #[test]
    fn a_peer_may_say_anything_of_its_clock() {
        let now_ns = 10_000_000_000;
        let most = i64::MAX as u64;
        for time_ns in [0, most, most + 10_000, u64::MAX] {
            for (timestamp, delay_us) in [
                (0, 60_000_000),
                (0, -60_000_000),
                (u64::MAX, 60_000_000),
                (u64::MAX, -60_000_000),
            ] {
                let mut reports = Reports::default();
                let capture = CaptureReport {
                    timestamp,
                    time_ns,
                    error_us: MAX_REPORT_US,
                    block_us: 0,
                    send_us: 0,
                    input: Some(InputDelay {
                        is_calibrated: true,
                        delay_us,
                        error_us: MAX_REPORT_US,
                    }),
                    overrun_frames: 0,
                    dropped_packets: 0,
                };
                let report = Report {
                    stream: 0,
                    id: 1,
                    capture: Some(capture),
                    heard: None,
                };
                reports.handle_report(report, now_ns);
                for replied_ns in [time_ns, now_ns] {
                    reports.offset.add(now_ns - 1_000, replied_ns, now_ns);
                    let found = reports.mouth_to_ear(0, 0, Some(0), RATE, now_ns);
                    assert!(found.is_some_and(|found| found.is_whole), "{capture:?}");
                }
            }
        }
    }

    #[test]
    fn that_frames_were_lost_is_told_at_once() {
        let mut reports = Reports::default();
        let mut tells = |n: u64, line_ns| {
            let reading = CaptureReading {
                frame: 0,
                captured: Estimate { ns: 1, error_ns: 0 },
                line_ns,
                block_ns: 0,
                send_ns: 0,
                input_ns: None,
            };
            let now_ns = 1 + n * 100_000_000;
            (reports.poll(0, Some(reading), 0, 0, None, now_ns)).is_some()
        };
        let lost = |n| match n {
            0..7 => 0,
            7..9 => 1_300_000,
            _ => 2_600_000,
        };
        let told: Vec<u64> = (0..20).filter(|n| tells(*n, lost(*n))).collect();
        assert_eq!(told, [0, 5, 7, 12, 17], "the second waits for its turn");
    }

    #[test]
    fn a_count_of_dropped_packets_may_begin_anew() {
        let mut reports = Reports::default();
        let reading = CaptureReading {
            frame: 0,
            captured: Estimate { ns: 1, error_ns: 0 },
            line_ns: 1,
            block_ns: 0,
            send_ns: 0,
            input_ns: None,
        };
        let mut dropped = |packets, n| {
            let now_ns = 1 + n * REPORT_INTERVAL_NS;
            let report = reports.poll(0, Some(reading), 0, packets, None, now_ns);
            report.and_then(|r| r.capture).map(|c| c.dropped_packets)
        };
        assert_eq!(dropped(5, 0), Some(0));
        assert_eq!(dropped(9, 1), Some(4));
        assert_eq!(
            dropped(0, 2),
            Some(0),
            "through a server that was restarted"
        );
    }

    #[test]
    fn reports_that_were_overtaken_are_ignored() {
        let mut reports = Reports::default();
        let report = |id| Report {
            stream: 0,
            id,
            capture: None,
            heard: Some(HeardReport {
                is_mixed: false,
                period_ms: 4_000,
                received_packets: id,
                lost_packets: 0,
                late_packets: 0,
                played_frames: 0,
                concealed_frames: 0,
                buffer_frames: None,
                target_frames: 0,
                spread_frames: None,
                output_underruns: None,
            }),
        };
        let received = |reports: &Reports, now| reports.heard(now).map(|h| h.received_packets);
        reports.handle_report(report(5), 0);
        reports.handle_report(report(4), 1);
        assert_eq!(received(&reports, 2), Some(5));
        reports.handle_report(report(6), 3);
        assert_eq!(received(&reports, 4), Some(6));
        assert_eq!(received(&reports, 3 + STALE_NS), None, "3 s old");
        reports.handle_report(report(1), 4 + STALE_NS);
        assert_eq!(received(&reports, 5 + STALE_NS), Some(1), "it began anew");
    }
}
