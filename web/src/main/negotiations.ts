/**
 * How many negotiations there may be: a peer can bring them about, each may make a connection, of which browsers have so many and keep closed
 * ones for a while, and takes a dozen signals.
 */

import { TokenBucket } from "../shared/token-bucket";

/** A page's, of all peers together: the server takes 2,000 signals at once, and 100 a second. */
const OF_PAGE = { perSecond: 4, atOnce: 128 };
/** A peer's share: all lanes four times. */
const OF_PEER = { perSecond: 1, atOnce: 64 };

export class Negotiations {
  readonly #own: TokenBucket;
  readonly #whole: Negotiations | null;

  private constructor({ perSecond, atOnce }: typeof OF_PAGE, whole: Negotiations | null) {
    this.#own = new TokenBucket(perSecond, atOnce);
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
    // A peer that has used up its share takes nothing of the whole.
    if (!this.#own.has(nowMs) || this.#whole?.take() === false) return false;
    return this.#own.take(nowMs);
  }
}
