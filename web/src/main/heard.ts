/** How a stream is heard in the last seconds, for the report to its peer. */

import { RecentCounts } from "../shared/clock";
import { REPORT_PERIOD_MS, share } from "../shared/heard";
import type { WayName } from "../shared/messages";
import type { HeardReport } from "../shared/wire";
import { orNull, type StreamNumber } from "./stream-number";

type Counted = "receivedPackets" | "lostPackets" | "latePackets" | "playedFrames" | "concealedFrames";
type CountedByWay = "directReceived" | "directLost" | "relayedReceived" | "relayedLost";
const GROWING = ["receivedPackets", "playedFrames", "concealedFrames"] as const;

/** One stream's counters, looked at now and then. */
export class HeardWindow {
  readonly #counts = new RecentCounts<Record<Counted | CountedByWay | "outputUnderruns", number>>(
    REPORT_PERIOD_MS,
  );

  /** Share of each way's datagrams that never came, lately; null where none should have. */
  lost: Record<WayName, number | null> = { direct: null, relayed: null };

  /**
   * What to report at `timeMs`; null while nothing has come. `number`: the stream's statistics, of one that there is.
   * `outputUnderruns`: so far, null if unknown.
   */
  add(timeMs: number, number: StreamNumber, outputUnderruns: number | null): HeardReport | null {
    const recent = this.#counts.add(
      timeMs,
      {
        receivedPackets: number("received"),
        lostPackets: number("lost"),
        latePackets: number("late") + number("ancient"),
        playedFrames: number("played"),
        concealedFrames: number("concealed"),
        outputUnderruns: outputUnderruns ?? 0,
        directReceived: number("directReceived"),
        directLost: number("directLost"),
        relayedReceived: number("relayedReceived"),
        relayedLost: number("relayedLost"),
      },
      GROWING,
    );
    this.lost = {
      direct: recent && lostShare(recent.grown.directReceived, recent.grown.directLost),
      relayed: recent && lostShare(recent.grown.relayedReceived, recent.grown.relayedLost),
    };
    if (recent === null || number("received") === 0) return null;
    const { receivedPackets, lostPackets, latePackets, playedFrames, concealedFrames } = recent.grown;
    return {
      isMixed: false,
      receivedPackets,
      lostPackets,
      latePackets,
      playedFrames,
      concealedFrames,
      periodMs: recent.periodMs,
      outputUnderruns: outputUnderruns === null ? null : recent.grown.outputUnderruns,
      bufferFrames: orNull(number("buffered")),
      targetFrames: number("target"),
      spreadFrames: orNull(number("spread")),
    };
  }
}

/** How a source of the server's mix is heard, if the mix is heard so, and the mixer made up `concealedShare` of the source itself, 0 to 1. */
export function inMix(mix: HeardReport, concealedShare: number): HeardReport {
  const frames = mix.playedFrames + mix.concealedFrames;
  const concealedFrames = Math.min(frames, mix.concealedFrames + Math.trunc(frames * concealedShare));
  return { ...mix, isMixed: true, playedFrames: frames - concealedFrames, concealedFrames };
}

function lostShare(received: number, lost: number): number | null {
  return share(lost, received + lost);
}
