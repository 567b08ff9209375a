/** How much there may be in a second in the long run, and at once. */
export class TokenBucket {
  readonly #perSecond: number;
  readonly #atOnce: number;
  #tokens = 0;
  #filledAtMs = Number.NEGATIVE_INFINITY;

  constructor(perSecond: number, atOnce = perSecond) {
    this.#perSecond = perSecond;
    this.#atOnce = atOnce;
  }

  /** Whether there may be one more. */
  has(nowMs: number): boolean {
    const grown = ((nowMs - this.#filledAtMs) * this.#perSecond) / 1000;
    this.#tokens = Math.min(this.#atOnce, this.#tokens + grown);
    this.#filledAtMs = nowMs;
    return this.#tokens >= 1;
  }

  /** The same, and that one is counted. */
  take(nowMs: number): boolean {
    if (!this.has(nowMs)) return false;
    this.#tokens--;
    return true;
  }
}
