import type { HeardStats } from "./stats";
import type { HeardReport } from "./wire";

/** What a report's counts cover. */
export const REPORT_PERIOD_MS = 4_000;

/** 0 to 1; null of nothing. */
export function share(part: number, whole: number): number | null {
  return whole > 0 ? Math.min(1, part / whole) : null;
}

/** A report's counts as shares. */
export function heardStats(heard: HeardReport): HeardStats {
  const { receivedPackets, lostPackets, latePackets, playedFrames, concealedFrames, ...rest } = heard;
  const packets = receivedPackets + lostPackets;
  return {
    lostShare: share(lostPackets, packets),
    lateShare: share(latePackets, packets),
    concealedShare: share(concealedFrames, playedFrames + concealedFrames),
    ...rest,
  };
}
