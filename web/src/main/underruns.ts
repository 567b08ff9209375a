/** Every page's output runs dry while the page begins, whatever the computer: nobody hears that, and nobody need do anything about it. */
const BEGINNING_MS = 3_000;

/** How often an output has run dry since it began in earnest. */
export class Underruns {
  readonly #beganMs: number;
  #atBeginning = 0;

  constructor(nowMs: number) {
    this.#beganMs = nowMs;
  }

  /** Of `total`, by the browser's count until now; to be asked now and then from the beginning on. */
  since(nowMs: number, total: number): number {
    if (nowMs - this.#beganMs < BEGINNING_MS) this.#atBeginning = total;
    return total - this.#atBeginning;
  }
}
