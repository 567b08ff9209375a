/** The delay that last sufficed for each peer: the next time it starts with that instead of with a guess. */

const KEY = "antiphon.delays";
const MOST_PEERS = 64;

/** A peer by its name: nothing else is the same at the next visit. */
export class RememberedDelays {
  /** Oldest first. */
  readonly #frames: Map<string, number>;

  /** `storage` may throw: it does where site data is blocked. */
  constructor(private readonly storage: () => Pick<Storage, "getItem" | "setItem">) {
    this.#frames = new Map(read(storage));
  }

  /** In frames; null if the peer was never heard well. */
  of(name: string): number | null {
    return this.#frames.get(name) ?? null;
  }

  /** Nothing was concealed with this delay for a while. */
  keep(name: string, frames: number): void {
    this.#frames.delete(name);
    this.#frames.set(name, frames);
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
