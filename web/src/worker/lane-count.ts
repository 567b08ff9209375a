const MAX_LANES = 8;
/**
 * ...and to a peer who is sent copies. A lane that has lost something carries four packets for each acknowledgement, and holds back what is more until that comes: at
 * a round trip of 100 ms eight such lanes hold back one datagram in thirty.
 */
const MAX_LOSSY_LANES = 16;
/** To all peers together: each is a connection to set up, to watch and to keep alive. */
const MAX_LANES_TOGETHER = 64;
/** Lanes are taken away after so long without copies, and without any datagram that found all of them crowded... */
const CALM_MS = 60_000;
/** ...but for these: a copy of Opus needs a second one. */
const CALM_LANES = 2;

/** What a review says of a listener's lanes. */
interface Need {
  open: number;
  most: number;
  /** All of them were needed. */
  isNeeded: boolean;
  needsMore: boolean;
  needsMost: boolean;
  /** The format has stepped down all the same. */
  isInVain: boolean;
}

/** How many lanes one listener shall have. */
export class LaneCount {
  #wanted = 0;
  /** When all the lanes were last needed. */
  #neededAtMs = performance.now();

  /** Lanes that were asked for and do not come are not waited for. */
  #before(open: number): number {
    return Math.max(open, this.#wanted);
  }

  /** What was asked for before does not count any more. */
  forget(): void {
    this.#wanted = 0;
  }

  canGrow({ open, most }: Pick<Need, "open" | "most">): boolean {
    return this.#before(open) < most;
  }

  /** From now on; null: as many as before. */
  review({ open, most, isNeeded, needsMore, needsMost, isInVain }: Need, nowMs: number): number | null {
    const before = this.#before(open);
    if (isNeeded) this.#neededAtMs = nowMs;
    if (needsMore) return this.#want(Math.min(most, before * 2));
    // They were of no use, and together hide that the path is too slow: none of them backs up before the network loses much.
    if (isInVain && before > CALM_LANES) return this.#want(CALM_LANES);
    if (needsMost) {
      this.#neededAtMs = nowMs;
      return before < most ? this.#want(most) : null;
    }
    if (nowMs - this.#neededAtMs <= CALM_MS || open <= CALM_LANES) return null;
    this.#neededAtMs = nowMs;
    return this.#want(open - 1);
  }

  #want(count: number): number {
    this.#wanted = count;
    return count;
  }
}

/** How many lanes there may be to one of so many peers. */
export function mostLanes(peers: number, isSentCopies: boolean): number {
  const share = Math.max(CALM_LANES, Math.floor(MAX_LANES_TOGETHER / Math.max(1, peers)));
  return Math.min(isSentCopies ? MAX_LOSSY_LANES : MAX_LANES, share);
}
