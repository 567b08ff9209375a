/**
 * How many negotiations there may be: a peer can bring them about, each may make a connection, of which browsers have so many and keep closed
 * ones for a while, and takes a dozen signals.
 */

/** A page's, of all peers together: the server takes 2,000 signals at once, and 100 a second. */
const OF_PAGE = { atOnce: 128, intervalMs: 250 };
/** A peer's share: all lanes four times. */
const OF_PEER = { atOnce: 64, intervalMs: 1_000 };

export class Negotiations {
  readonly #atOnce: number;
  /** After those at once, one in so long. */
  readonly #intervalMs: number;
  readonly #whole: Negotiations | null;
  /** When all that there were would have been at the rate of the long run. */
  #usedUntilMs = 0;

  private constructor({ atOnce, intervalMs }: typeof OF_PAGE, whole: Negotiations | null) {
    this.#atOnce = atOnce;
    this.#intervalMs = intervalMs;
    this.#whole = whole;
  }

  static ofPage(): Negotiations {
    return new Negotiations(OF_PAGE, null);
  }

  ofPeer(): Negotiations {
    return new Negotiations(OF_PEER, this);
  }

  /** Whether there may be one more now, which is counted then. */
  take(): boolean {
    const nowMs = performance.now();
    const untilMs = Math.max(this.#usedUntilMs, nowMs) + this.#intervalMs;
    if (untilMs - nowMs > this.#atOnce * this.#intervalMs || this.#whole?.take() === false) return false;
    this.#usedUntilMs = untilMs;
    return true;
  }
}
