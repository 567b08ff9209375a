import { type CaptureTime, FIRST_CAPTURE } from "../shared/messages";

/** Shorter blocks are left alone: they are the sound system's own, and come to all captures at once. */
const LONG_BLOCK_MS = 15;
/** Captures of one microphone, and so parts of a block. */
const CAPTURES = 4;
/** Most between the ends of two blocks that follow each other, in blocks. */
const MOST_GAP = 0.375;
/** Blocks by which a capture's phase is told. */
const LOOKS = 8;
/** Between two looks at all captures; one that is silent for so long has died. */
const REVIEW_MS = 1_000;
/** Until another capture is opened: twice as long each time, for opening disturbs. */
const FIRST_WAIT_MS = 250;
const MOST_WAIT_MS = 60_000;

export interface Review {
  unneeded: number[];
  wanted: CaptureTime | null;
}

/**
 * Decides which captures of a microphone take turns: as many as divide a block of the browser into equal parts.
 *
 * When a capture's blocks end is settled by the moment it is opened, and that takes about as long each time: so each is asked for when it makes
 * its blocks end at the time wanted, and replaced if that failed. Times within a block are *phases*: blocks since the first capture's
 * block ended, from 0 to 1.
 */
export class Turns {
  readonly #captures = new Map<number, { askedMs: number | null; endMs: number; phases: number[] }>();
  /** When the first capture's last block ended. */
  #firstEndMs = 0;
  /** From asking for a capture until its blocks end, in blocks, less whole ones; and so whatever the two clocks differ by. */
  #opening: number | null = null;
  #isAsked = false;
  #reviewMs = Number.NEGATIVE_INFINITY;
  #askMs: number | null = null;
  #waitMs = FIRST_WAIT_MS;

  /** A capture that was asked for at `askedMs`. */
  open(capture: number, askedMs: number): void {
    this.#isAsked = false;
    this.#captures.set(capture, { askedMs, endMs: this.#firstEndMs, phases: [] });
  }

  remove(capture: number): void {
    this.#captures.delete(capture);
  }

  /** A block whose last frame was captured at `endMs`. Null while there is nothing to do. */
  add(capture: number, endMs: number, blockMs: number): Review | null {
    if (blockMs < LONG_BLOCK_MS) return null;
    if (capture === FIRST_CAPTURE) {
      this.#firstEndMs = endMs;
      return this.#review(blockMs);
    }
    const other = this.#captures.get(capture);
    if (other === undefined) return null;
    other.endMs = endMs;
    other.phases.push(wrap((endMs - this.#firstEndMs) / blockMs));
    if (other.phases.length > LOOKS) other.phases.shift();
    if (other.askedMs !== null && other.phases.length === LOOKS) {
      this.#opening = wrap(middle(other.phases) - (other.askedMs - this.#firstEndMs) / blockMs);
      other.askedMs = null;
    }
    return null;
  }

  #review(blockMs: number): Review | null {
    const nowMs = this.#firstEndMs;
    this.#askMs ??= nowMs + FIRST_WAIT_MS;
    if (this.#isAsked || nowMs < Math.min(this.#askMs, this.#reviewMs + REVIEW_MS)) return null;
    this.#reviewMs = nowMs;
    const dead = [...this.#captures].filter(([, { endMs }]) => nowMs - endMs > REVIEW_MS).map(([id]) => id);
    const alive = [...this.#captures].filter(([id]) => !dead.includes(id));
    if (alive.some(([, { phases }]) => phases.length < LOOKS)) return unneededOnly(dead);
    const phases = alive.map(([id, capture]) => ({ id, phase: middle(capture.phases) }));
    if (largestGap(phases) <= MOST_GAP) return unneededOnly(dead);
    const parts = Array.from({ length: CAPTURES - 1 }, (_, n) => nearest((n + 1) / CAPTURES, phases));
    const unneeded = phases.map(({ id }) => id).filter((id) => !parts.some((part) => part.id === id));
    if (nowMs < this.#askMs) return unneededOnly([...dead, ...unneeded]);
    this.#isAsked = true;
    this.#waitMs = Math.min(MOST_WAIT_MS, 2 * this.#waitMs);
    this.#askMs = nowMs + this.#waitMs;
    const worst = parts.reduce((most, part) => (part.off > most.off ? part : most));
    const atMs = this.#opening === null ? null : nowMs + wrap(worst.phase - this.#opening) * blockMs;
    return { unneeded: [...dead, ...unneeded], wanted: { atMs, everyMs: blockMs } };
  }
}

function unneededOnly(unneeded: number[]): Review | null {
  return unneeded.length === 0 ? null : { unneeded, wanted: null };
}

/** The capture that is next to a phase, none if that is in another part; and how far off it is. */
function nearest(phase: number, captures: readonly { id: number; phase: number }[]) {
  const none = { id: null as number | null, off: 0.5 / CAPTURES };
  const offs = captures.map((capture) => ({ id: capture.id, off: apart(capture.phase, phase) }));
  return { phase, ...offs.reduce((best, one) => (one.off < best.off ? one : best), none) };
}

/** Between the ends of two blocks that follow each other, the first capture's included, in blocks. */
function largestGap(captures: readonly { phase: number }[]): number {
  const phases = [0, ...captures.map(({ phase }) => phase)].sort((a, b) => a - b);
  return Math.max(...phases.map((phase, n) => (phases[n + 1] ?? 1) - phase));
}

const wrap = (blocks: number) => blocks - Math.floor(blocks);

/** How far two phases are from each other. */
function apart(a: number, b: number): number {
  const ahead = wrap(a - b);
  return Math.min(ahead, 1 - ahead);
}

/** The one that the others are nearest to: on a circle there is no median. */
function middle(phases: readonly number[]): number {
  const distance = (phase: number) => phases.reduce((sum, other) => sum + apart(phase, other), 0);
  return phases.reduce((best, phase) => (distance(phase) < distance(best) ? phase : best));
}
