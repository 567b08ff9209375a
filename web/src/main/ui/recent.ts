/** What happened to a peer's stream in the last ten seconds, from counters that only count since joining. */

import { REPORT_PERIOD_MS, share } from "../../shared/heard";
import { AUDIBLE_SHARE, AUDIBLE_UNDERRUNS } from "./diagnosis";
import { THIN } from "./format";

export interface StreamCounters {
  receivedPackets: number;
  lostPackets: number;
  latePackets: number;
  playedFrames: number;
  concealedFrames: number;
  bufferFrames: number | null;
  /** Of this page, whoever's the stream is; null where the browser does not tell. */
  outputUnderruns: number | null;
}

export interface RecentStream {
  /** How long this window really is, but for the part of a reading that it may be longer than ten. */
  seconds: number;
  lostPackets: number;
  latePackets: number;
  concealedFrames: number;
  /** Of the packets that should have come. Null when none should have. */
  lostShare: number | null;
  lateShare: number | null;
  /** Of the frames that were played. Null when none were. */
  concealedShare: number | null;
  /** Anything at all, since joining. */
  hasReceived: boolean;
  outputUnderruns: number;
  /** The most that waited at any reading. Between two arrivals the buffer only empties; its fullest is what delays. */
  fullestFrames: number | null;
}

const WINDOW_MS = 10_000;
/** A longer silence between two readings (a hidden tab) would make the window a lie: it starts again. */
const MAX_GAP_MS = 2_500;

export class RecentWindow {
  #readings: { timeMs: number; counters: StreamCounters }[] = [];

  /** @returns null until there are two readings to compare. */
  add(timeMs: number, counters: StreamCounters): RecentStream | null {
    const last = this.#readings.at(-1);
    if (last) {
      const gapMs = timeMs - last.timeMs;
      const restarted =
        counters.receivedPackets < last.counters.receivedPackets ||
        counters.playedFrames < last.counters.playedFrames ||
        counters.concealedFrames < last.counters.concealedFrames;
      if (gapMs <= 0 || gapMs > MAX_GAP_MS || restarted) this.#readings = [];
    }
    this.#readings.push({ timeMs, counters: { ...counters } });
    while (this.#readings.length > 2 && timeMs - this.#readings[1]!.timeMs >= WINDOW_MS)
      this.#readings.shift();
    return this.#readings.length < 2 ? null : compare(this.#readings);
  }
}

function compare(readings: readonly { timeMs: number; counters: StreamCounters }[]): RecentStream {
  const from = readings[0]!;
  const to = readings.at(-1)!;
  const since = (key: Exclude<keyof StreamCounters, "bufferFrames">) =>
    Math.max(0, (to.counters[key] ?? 0) - (from.counters[key] ?? 0));
  // A packet counted as lost may still arrive: then the count falls, and nothing was lost in the window.
  const lostPackets = since("lostPackets");
  const latePackets = since("latePackets");
  const concealedFrames = since("concealedFrames");
  const expectedPackets = since("receivedPackets") + lostPackets;
  const outputFrames = since("playedFrames") + concealedFrames;
  const buffers = readings.map((r) => r.counters.bufferFrames).filter((frames) => frames !== null);
  return {
    seconds: Math.min(WINDOW_MS, to.timeMs - from.timeMs) / 1000,
    lostPackets,
    latePackets,
    concealedFrames,
    lostShare: share(lostPackets, expectedPackets),
    lateShare: share(latePackets, expectedPackets),
    concealedShare: share(concealedFrames, outputFrames),
    hasReceived: to.counters.receivedPackets > 0,
    outputUnderruns: since("outputUnderruns"),
    fullestFrames: buffers.length > 0 ? Math.max(...buffers) : null,
  };
}

export interface Verdict {
  tone: "good" | "fair" | "poor" | "unknown";
  text: string;
}

/** The window in words. Why, and what to do about it, says `diagnose`. `captures`: whether the peer does, by its own word. */
export function verdict(recent: RecentStream | null, captures: boolean | null = null): Verdict {
  if (recent === null || recent.concealedShare === null) {
    if (captures === false) return { tone: "unknown", text: "Sends no sound, only listens" };
    return {
      tone: "unknown",
      text: recent?.hasReceived ? "No sound at the moment" : "No sound received yet",
    };
  }
  const period = `the last ${Math.max(1, Math.round(recent.seconds))}${THIN}s`;
  const { concealedFrames, concealedShare, outputUnderruns } = recent;
  if (concealedFrames === 0 && outputUnderruns === 0)
    return { tone: "good", text: `Clean: no gaps in ${period}` };
  const underruns = outputUnderruns * Math.min(1, REPORT_PERIOD_MS / 1000 / recent.seconds);
  return concealedShare < AUDIBLE_SHARE && underruns < AUDIBLE_UNDERRUNS
    ? { tone: "fair", text: `Nearly clean: a few short gaps in ${period}` }
    : { tone: "poor", text: `Gaps you can hear in ${period}` };
}
