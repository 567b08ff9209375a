/**
 * When a microphone that comes through the audio graph is to be opened anew. While the graph stands still its input does not: what comes meanwhile waits, and so
 * does all that follows, for as long as it is open. (Firefox 153, a standstill of 200 ms: 171 ms of delay that stay. The rest the output had in store.) No
 * browser tells; but the output has slipped by as much: docs/adr/0027.
 */

/** How long the audio thread has run, and by how much the output has slipped meanwhile. */
export interface Ran {
  ms: number;
  slippedMs: number;
}

/** With hardly a slip for so long, the graph has begun, or whatever made it stand still is over. */
const CALM_MS = 1_000;
/** To open a microphone makes a gap of a third of a second: for less delay than this it is not worth it. */
const LEAST_LATE_MS = 20;
/** Nor before the delay has lasted: 200 ms for 5 s, 20 ms for 50 s, in ms². Each time takes so much more than the one before. */
const COST = 1_000_000;
/** The engine takes a second or more for no slip, but for a clock that was set; and what is seen of it here may be a look shorter. */
const LONG_STANDSTILL_MS = 700;
/** The sound card's clock and the page's run apart by less: of a page that nobody looked at for hours, too. */
const DRIFT = 400e-6;

/** Watches the inputs of one audio graph, one after the other. */
export class InputWatch {
  /** Opened before it was known by how much the graph slips at its beginning, which takes long; or the graph has stood still for too long to tell. */
  #isDoubtful = false;
  /** When the calm began, if it is one, and what the output had slipped by. */
  #calm = { fromMs: 0, slippedMs: 0 };
  /** What the output had slipped by when the input ran; null before. To open it makes the output slip, too. */
  #beforeMs: number | null = null;
  /** How long the audio thread had run when that was last seen to have grown, and when that was. */
  #ran = { ms: 0, atMs: 0 };
  #lookedMs = 0;
  /** Delay × time since the input ran, in ms², and how many times such a cost was too much. */
  #cost = 0;
  #renewals = 0;

  /** An input is opened at `nowMs`. */
  opened(nowMs: number, { ms, slippedMs }: Ran): void {
    this.#isDoubtful = ms < CALM_MS;
    this.#calm = { fromMs: nowMs, slippedMs };
    this.#beforeMs = null;
    this.#ran = { ms, atMs: nowMs };
    this.#lookedMs = nowMs;
    this.#cost = 0;
  }

  /** Whether to open it anew. Once true, it is to be done. */
  isLate(nowMs: number, { ms, slippedMs }: Ran): boolean {
    const elapsedMs = nowMs - this.#lookedMs;
    this.#lookedMs = nowMs;
    const passedMs = nowMs - this.#ran.atMs;
    const stoodStill = passedMs * (1 - DRIFT) - (ms - this.#ran.ms) >= LONG_STANDSTILL_MS;
    if (ms !== this.#ran.ms) this.#ran = { ms, atMs: nowMs };
    if (stoodStill) this.#isDoubtful = true;
    if (stoodStill || Math.abs(slippedMs - this.#calm.slippedMs) >= LEAST_LATE_MS)
      this.#calm = { fromMs: nowMs, slippedMs };
    if (nowMs - this.#calm.fromMs < CALM_MS || ms < CALM_MS) return false;
    if (this.#isDoubtful) return true;
    this.#beforeMs ??= slippedMs;
    const lateMs = slippedMs - this.#beforeMs;
    if (lateMs < LEAST_LATE_MS) return false;
    this.#cost += lateMs * elapsedMs;
    if (this.#cost < COST * (1 + this.#renewals)) return false;
    this.#renewals++;
    return true;
  }
}
