/** What two ends tell each other of their clocks and of what they hear: reports, and what follows from them. */

import { ClockOffset, type Estimate, Recent, RecentCounts } from "../shared/clock";
import { heardStats, REPORT_PERIOD_MS } from "../shared/heard";
import type { FarEnd } from "../shared/messages";
import type { HeardStats } from "../shared/stats";
import {
  type CaptureReport,
  type HeardReport,
  MAX_REPORT_US,
  type Report,
  readAudioHeader,
  readReport,
  writeReport,
} from "../shared/wire";

/** Between two reports, at most, and between two probes of a lane. */
export const REPORT_INTERVAL_MS = 500;
/**
 * The next report is due at once where the capture's line has moved by so much: frames were lost, and until the peer knows, its figure is off by as
 * much. Not twice in a row: a line that only trembles tells nothing.
 */
const MOVED_MS = 0.5;
/** A peer, or main, that has been silent for so long tells nothing any more. */
const STALE_MS = 3_000;
/** Arrivals that are remembered: a third of a second of packets of 128 frames. With longer, the network seems shorter by what the capture has just lost. */
const MAX_ARRIVALS = 128;

/** What is told of our capture: `lineMs` is when its frame 0 was captured. */
export interface Captured extends Omit<CaptureReport, "droppedPackets"> {
  lineMs: number;
}

/** Both ends of the reports with one peer. */
export class Reports {
  readonly offset: ClockOffset;
  /** What main knows of how the peer is heard, for the next report, and when it said so. */
  #hears: HeardReport | null = null;
  #hearsAtMs = Number.NEGATIVE_INFINITY;
  #id = 0;
  #sentAtMs = Number.NEGATIVE_INFINITY;
  #sentLineMs: number | null = null;
  #wasEarly = false;
  readonly #dropped = new RecentCounts<{ packets: number }>(REPORT_PERIOD_MS);
  /** The newest from the peer, and when it came. */
  #report: Report | null = null;
  #reportAtMs = Number.NEGATIVE_INFINITY;
  /** Reports in a row that told of no capture. */
  #uncaptured = 0;
  /** Lines of its datagrams: when frame 0 would have come. */
  readonly #arrivals = new Recent(MAX_ARRIVALS);
  #rateHz = 0;

  /** `granularityMs`: resolution of this clock and the peer's together. */
  constructor(granularityMs: number) {
    this.offset = new ClockOffset(granularityMs);
  }

  /** What main knows of how the peer is heard. It goes into the next reports, unless main says no more. */
  setHears(hears: HeardReport | null, nowMs: number): void {
    this.#hears = hears;
    this.#hearsAtMs = nowMs;
  }

  /** The next report's datagram; null if it is not time, to be asked ten times a second. `droppedBacklog`: datagrams dropped so far. */
  poll(captured: Captured | null, droppedBacklog: number, nowMs: number): Uint8Array<ArrayBuffer> | null {
    const lineMs = captured?.lineMs ?? null;
    const hasMoved =
      lineMs !== null && this.#sentLineMs !== null && Math.abs(lineMs - this.#sentLineMs) > MOVED_MS;
    const isEarly = nowMs - this.#sentAtMs < REPORT_INTERVAL_MS;
    if (isEarly && (!hasMoved || this.#wasEarly)) return null;
    this.#wasEarly = isEarly;
    this.#sentAtMs = nowMs;
    this.#sentLineMs = lineMs;
    const dropped = this.#dropped.add(nowMs, { packets: droppedBacklog }, ["packets"]);
    this.#id = (this.#id + 1) >>> 0;
    return writeReport({
      id: this.#id,
      capture: captured && { ...captured, droppedPackets: dropped?.grown.packets ?? 0 },
      heard: nowMs - this.#hearsAtMs < STALE_MS ? this.#hears : null,
    });
  }

  /** A datagram that `kindOf` calls a report. One that was overtaken is ignored. */
  handleReport(bytes: Uint8Array, nowMs: number): void {
    const report = readReport(bytes);
    const isNewer = this.#report === null || (report.id - this.#report.id) >> 0 > 0;
    // After a silence any number will do: the peer may have begun anew.
    if (!isNewer && nowMs - this.#reportAtMs < STALE_MS) return;
    this.#report = report;
    this.#reportAtMs = nowMs;
    this.#uncaptured = report.capture === null ? this.#uncaptured + 1 : 0;
  }

  /** A datagram that `kindOf` calls audio. */
  handleAudio(bytes: Uint8Array, nowMs: number): void {
    const { rateHz, timestamp } = readAudioHeader(bytes);
    this.#rateHz = rateHz;
    this.#arrivals.add(nowMs - (Number(timestamp) * 1000) / rateHz);
  }

  /** Whether the peer captures anything, by its own word; null if it has not said so lately. That it does not, twice: it begins before it can say when. */
  captures(nowMs: number): boolean | null {
    if (this.#report === null || nowMs - this.#reportAtMs >= STALE_MS || this.#uncaptured === 1) return null;
    return this.#uncaptured === 0;
  }

  /** How the peer hears us; null if it has not said so lately. */
  heard(nowMs: number): HeardStats | null {
    const heard = nowMs - this.#reportAtMs < STALE_MS ? this.#report?.heard : null;
    return heard ? heardStats(heard) : null;
  }

  /**
   * The peer's capture on our clock; null while something of that is unknown. Of a `mix` that holds it: in the media time of that, which is
   * `leadFrames` ahead of the peer's.
   */
  farEnd(nowMs: number, mix?: { reports: Reports; leadFrames: number }): FarEnd | null {
    const heard = mix?.reports ?? this;
    const offset = this.offset.at(nowMs);
    const arrival = heard.#arrivals.middle();
    const capture = nowMs - this.#reportAtMs < STALE_MS ? this.#report?.capture : null;
    if (!capture || offset === null || arrival === null) return null;
    const far = farEndOf(capture, offset, arrival, heard.#rateHz, mix?.leadFrames ?? 0);
    return { ...far, isMixed: mix !== undefined };
  }
}

function farEndOf(
  capture: CaptureReport,
  offset: Estimate,
  arrival: Estimate,
  rateHz: number,
  leadFrames: number,
): Omit<FarEnd, "isMixed"> {
  const { input } = capture;
  const frame = Number(capture.timestamp) + leadFrames;
  const lineMs = Number(capture.timeNs) / 1e6 - offset.ms - (frame * 1000) / rateHz;
  // The first frame of a block waits for the whole block, though the datagrams that are cut from it are younger on average.
  const captureMs = capture.blockUs / 1000;
  const sendMs = capture.sendUs / 1000;
  return {
    lineMs,
    lineErrorMs: offset.errorMs + capture.errorUs / 1000,
    captureMs,
    packetMs: Math.max(0, sendMs - captureMs),
    networkMs: arrival.ms - lineMs - sendMs,
    input: input && {
      isCalibrated: input.isCalibrated,
      ms: input.delayUs / 1000,
      errorMs: input.errorUs / 1000,
    },
    offsetErrorMs: offset.errorMs,
    overrunFrames: capture.overrunFrames,
    droppedPackets: capture.droppedPackets,
  };
}

/** Of a duration, for a report. */
export function toUs(ms: number): number {
  return Math.min(MAX_REPORT_US, Math.max(-MAX_REPORT_US, Math.round(ms * 1000)));
}

/** Nanoseconds of a clock that counts milliseconds since the epoch; to a quarter of a microsecond. */
export function toNs(epochMs: number): bigint {
  return BigInt(Math.round(epochMs * 1e6));
}
