/** The delay that last sufficed for each peer: the next time it starts with that instead of with a guess. */

import { type Keeper, keep, readEntries, renew } from "./storage";

const KEY = "antiphon.delays";
const MOST_PEERS = 64;

/** What a player is called that did not say its name. */
export const DEFAULT_NAME = "Musician";

/**
 * What a peer's delay is remembered by: its name, since nothing else is the same at the next visit, and the rate, since delays are in
 * frames. Null for those who have no name of their own.
 */
export function delayKey({ name, isLoop }: { name: string; isLoop: boolean }, rateHz: number): string | null {
  // No name begins so: every other key begins with a number.
  if (isLoop) return `loop ${rateHz}`;
  return name === DEFAULT_NAME ? null : `${rateHz} ${name}`;
}

/** Whether a delay was long enough: of what was played meanwhile no more was concealed than is aimed at. */
export function hasSufficed(
  { playedFrames, concealedFrames }: { playedFrames: number; concealedFrames: number },
  budgetShare: number,
): boolean {
  return playedFrames > 0 && concealedFrames <= budgetShare * (playedFrames + concealedFrames);
}

/** Delays by `delayKey`. */
export class RememberedDelays {
  /** Oldest first. */
  readonly #frames: Map<string, number>;

  constructor(private readonly keeper?: Keeper) {
    this.#frames = readDelays(keeper);
  }

  /** In frames; null if the peer was never heard well. */
  of(key: string | null): number | null {
    return key === null ? null : (this.#frames.get(key) ?? null);
  }

  /** This delay has sufficed for a while. */
  keep(key: string, frames: number): void {
    renew(this.#frames, key, frames, MOST_PEERS);
    // Beside what another page has kept meanwhile.
    const kept = readDelays(this.keeper);
    renew(kept, key, frames, MOST_PEERS);
    keep(KEY, Array.from(kept), this.keeper);
  }
}

function readDelays(keeper?: Keeper): Map<string, number> {
  return new Map(readEntries(KEY, keeper).filter(isDelay).slice(-MOST_PEERS));
}

function isDelay(entry: [string, unknown]): entry is [string, number] {
  return Number.isInteger(entry[1]);
}
