/** How much may come in a second, and at once. */
export class TokenBucket {
  readonly #perSecond: number;
  #tokens = 0;
  #filledAtMs = Number.NEGATIVE_INFINITY;

  constructor(perSecond: number) {
    this.#perSecond = perSecond;
  }

  /** Whether one more may. */
  take(nowMs: number): boolean {
    const grown = ((nowMs - this.#filledAtMs) * this.#perSecond) / 1000;
    this.#tokens = Math.min(this.#perSecond, this.#tokens + grown);
    this.#filledAtMs = nowMs;
    if (this.#tokens < 1) return false;
    this.#tokens--;
    return true;
  }
}
