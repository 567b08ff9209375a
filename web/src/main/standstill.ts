/** What no browser says: that something which ought to go on stands still. */

/** What passes between two looks counts for so much at most: a page in the background looks less often, and one that slept saw nothing. */
const MOST_MS = 200;

/** Watches a count that ought to grow. */
export class Standstill {
  readonly #patienceMs: number;
  #count: number | null = null;
  #lookedMs = 0;
  #stillMs = 0;

  /** `patienceMs`: for so long it may stand still. */
  constructor(patienceMs: number) {
    this.#patienceMs = patienceMs;
  }

  /** To be asked ten times a second. `count` is null while it need not grow. */
  isStill(nowMs: number, count: number | null): boolean {
    const elapsedMs = Math.min(MOST_MS, nowMs - this.#lookedMs);
    this.#lookedMs = nowMs;
    this.#stillMs = count !== null && count === this.#count ? this.#stillMs + elapsedMs : 0;
    this.#count = count;
    return this.#stillMs >= this.#patienceMs;
  }
}
