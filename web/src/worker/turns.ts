import { FIRST_CAPTURE } from "../shared/messages";

/** Shorter blocks are left alone: they are the sound system's own, and come to all captures at once. */
const LONG_BLOCK_MS = 15;
/** Captures of one microphone, and so parts of a block. Each costs about 2 % of a processor (results, captures in turns). */
const CAPTURES = 4;
/** Most between the ends of two blocks that follow each other, in blocks. */
const MOST_GAP = 0.375;
/** Blocks by which a capture's time is told. */
const LOOKS = 8;
/** Until another capture is opened: longer each time, for opening disturbs. */
const FIRST_WAIT_MS = 250;
const MOST_WAIT_MS = 60_000;

export interface Review {
  unneeded: number[];
  /** When to ask the browser for another capture, here and then every so many ms; null at `atMs`: at any time. */
  wanted: { atMs: number | null; everyMs: number } | null;
}

/**
 * Decides which captures of a microphone take turns: as many as divide a block of the browser into equal parts.
 *
 * When a capture's blocks end is settled by the moment it is opened, and that takes about as long each time: so captures are asked for when
 * it makes their blocks end at the time wanted, and replaced if that failed.
 */
export class Turns {
  readonly #captures = new Map<number, { askedMs: number | null; behind: number[] }>();
  #firstEndMs = 0;
  /** From asking for a capture until one of its blocks ends, in blocks, less whole ones. */
  #opening: number | null = null;
  #nextMs: number | null = null;
  #waitMs = FIRST_WAIT_MS;

  /** A capture that was asked for at `askedMs`. */
  open(capture: number, askedMs: number): void {
    this.#captures.set(capture, { askedMs, behind: [] });
  }

  remove(capture: number): void {
    this.#captures.delete(capture);
  }

  /** A block whose last frame was captured at `endMs`. Null while there is nothing to do. */
  add(capture: number, endMs: number, blockMs: number): Review | null {
    if (blockMs < LONG_BLOCK_MS) return null;
    if (capture === FIRST_CAPTURE) {
      this.#firstEndMs = endMs;
      this.#nextMs ??= endMs + this.#waitMs;
      return endMs < this.#nextMs ? null : this.#review(endMs, blockMs);
    }
    const other = this.#captures.get(capture);
    if (other === undefined) return null;
    other.behind.push(wrap((endMs - this.#firstEndMs) / blockMs));
    if (other.behind.length > LOOKS) other.behind.shift();
    if (other.askedMs !== null && other.behind.length === LOOKS) {
      this.#opening = wrap(middle(other.behind) - (other.askedMs - this.#firstEndMs) / blockMs);
      other.askedMs = null;
    }
    return null;
  }

  #review(nowMs: number, blockMs: number): Review | null {
    const known = Array.from(this.#captures, ([id, { behind }]) => ({ id, behind }));
    this.#nextMs = nowMs + this.#waitMs;
    if (known.some(({ behind }) => behind.length < LOOKS)) return null;
    const behind = known.map(({ id, behind }) => ({ id, by: middle(behind) }));
    if (largestGap([0, ...behind.map(({ by }) => by)]) <= MOST_GAP) return null;
    const parts = Array.from({ length: CAPTURES - 1 }, (_, n) => {
      const due = (n + 1) / CAPTURES;
      const off = behind.map(({ id, by }) => ({ id, off: apart(by, due) }));
      const nearest = off.reduce((best, one) => (one.off < best.off ? one : best), {
        id: -1,
        off: 0.5 / CAPTURES,
      });
      return { due, ...nearest };
    });
    const unneeded = known.map(({ id }) => id).filter((id) => !parts.some((part) => part.id === id));
    const worst = parts.reduce((most, part) => (part.off > most.off ? part : most));
    this.#waitMs = Math.min(MOST_WAIT_MS, 2 * this.#waitMs);
    const atMs = this.#opening === null ? null : this.#firstEndMs + wrap(worst.due - this.#opening) * blockMs;
    return { unneeded, wanted: { atMs, everyMs: blockMs } };
  }
}

function largestGap(times: number[]): number {
  const sorted = times.sort((a, b) => a - b);
  return Math.max(...sorted.map((time, n) => (sorted[n + 1] ?? 1) - time));
}

const wrap = (blocks: number) => blocks - Math.floor(blocks);

/** How far two times within a block are from each other. */
function apart(a: number, b: number): number {
  const ahead = wrap(a - b);
  return Math.min(ahead, 1 - ahead);
}

/** The one that the others are nearest to: on a circle there is no median. */
function middle(times: readonly number[]): number {
  const distance = (time: number) => times.reduce((sum, other) => sum + apart(time, other), 0);
  return times.reduce((best, time) => (distance(time) < distance(best) ? time : best));
}
