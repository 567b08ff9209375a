/**
 * When a microphone that comes through the audio graph is to be opened anew. While the graph stands still its input does not: what comes meanwhile waits, and so
 * does all that follows, for as long as it is open. (Firefox 153, a standstill of 200 ms: 171 ms of delay that stay. The rest the output had in store.) No
 * browser tells; but the output has slipped by as much.
 */

/** How long the audio thread has run, and by how much the output has slipped meanwhile. */
export interface Ran {
  ms: number;
  slippedMs: number;
}

/** Without a slip for so long, the graph has begun, or whatever made it stand still is over. */
const CALM_MS = 1_000;
/** To open a microphone makes a gap of a tenth of a second: for less delay than this it is not worth it. */
const LEAST_LATE_MS = 20;
/** Nor for a short while: after so many ms × ms of delay and time it is, 5 s after it was opened for 200 ms, 50 s for 20. */
const WORTH_MS_MS = 1_000_000;

/** The engine takes no more for a slip: a clock that is set does the same. */
const MOST_SLIP_MS = 1_000;

export class InputWatch {
  readonly #openedMs: number;
  /** Opened before it was known by how much the graph slips at its beginning, which takes long; or the graph has stood still for longer than a slip. */
  #isDoubtful: boolean;
  /** How long the audio thread had run when that was last seen to have grown, and when that was. */
  #ranMs: number;
  #ranAtMs: number;
  #slippedMs: number;
  #disturbedAtMs: number;
  /** What the output had slipped by when the input ran; null before. To open it makes the output slip, too. */
  #beforeMs: number | null = null;

  /** Of an input opened at `nowMs`. */
  constructor(nowMs: number, { ms, slippedMs }: Ran) {
    this.#openedMs = nowMs;
    this.#isDoubtful = ms < CALM_MS;
    this.#ranMs = ms;
    this.#ranAtMs = nowMs;
    this.#slippedMs = slippedMs;
    this.#disturbedAtMs = nowMs;
  }

  isLate(nowMs: number, { ms, slippedMs }: Ran): boolean {
    const stoodStill = nowMs - this.#ranAtMs - (ms - this.#ranMs) >= MOST_SLIP_MS;
    if (stoodStill) this.#isDoubtful = true;
    if (stoodStill || slippedMs !== this.#slippedMs) this.#disturbedAtMs = nowMs;
    this.#slippedMs = slippedMs;
    if (ms !== this.#ranMs) {
      this.#ranMs = ms;
      this.#ranAtMs = nowMs;
    }
    if (nowMs - this.#disturbedAtMs < CALM_MS || ms < CALM_MS) return false;
    this.#beforeMs ??= slippedMs;
    if (this.#isDoubtful) return true;
    const lateMs = slippedMs - this.#beforeMs;
    return lateMs >= LEAST_LATE_MS && lateMs * (nowMs - this.#openedMs) >= WORTH_MS_MS;
  }
}
