/** The delay that last sufficed for each peer: the next time it starts with that instead of with a guess. */

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

  /** `storage` may throw: it does where site data is blocked. */
  constructor(private readonly storage: () => Pick<Storage, "getItem" | "setItem">) {
    this.#frames = new Map(read(storage));
  }

  /** In frames; null if the peer was never heard well. */
  of(key: string | null): number | null {
    return key === null ? null : (this.#frames.get(key) ?? null);
  }

  /** This delay has sufficed for a while. */
  keep(key: string, frames: number): void {
    this.#frames.delete(key);
    this.#frames.set(key, frames);
    const [oldest] = this.#frames.keys();
    if (this.#frames.size > MOST_PEERS && oldest !== undefined) this.#frames.delete(oldest);
    try {
      this.storage().setItem(KEY, JSON.stringify(Array.from(this.#frames)));
    } catch {
      // A browser that keeps nothing: it is remembered for this visit.
    }
  }
}

function read(storage: () => Pick<Storage, "getItem">): [string, number][] {
  try {
    const stored: unknown = JSON.parse(storage().getItem(KEY) ?? "[]");
    return Array.isArray(stored) ? stored.filter(isEntry).slice(-MOST_PEERS) : [];
  } catch {
    return [];
  }
}

function isEntry(entry: unknown): entry is [string, number] {
  return (
    Array.isArray(entry) && entry.length === 2 && typeof entry[0] === "string" && Number.isInteger(entry[1])
  );
}
