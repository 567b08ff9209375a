import { type CaptureTime, FIRST_CAPTURE } from "../shared/messages";

/** Shorter blocks are left alone: they are the sound system's own, and come to all captures at once. */
const LONG_BLOCK_MS = 15;
/** Parts of a block, at each of whose ends the block of one capture is to end. */
const PARTS = 4;
/** Most between the ends of two blocks that follow each other, in blocks. */
const MOST_GAP = 0.375;
/** Most by which the blocks of a capture in turns may come later than those of the quickest, in blocks. */
const MOST_LAG = 0.5 / PARTS;
/** Blocks by which a capture's phase and lag are told. */
const LOOKS = 8;
/** Between two looks at all captures. */
const REVIEW_MS = 250;
/** A capture that is silent for so long has died. */
const MOST_SILENT_MS = 1_000;
/** Until another capture is opened: longer each time that the one before did not help, for opening disturbs. */
const FIRST_WAIT_MS = 250;
const WAIT_GROWTH = 1.5;
const MOST_WAIT_MS = 60_000;
/** A capture that was asked for and has not come in so long could not be opened. */
const MOST_OPENING_MS = 10_000;

/** A block of a capture, in milliseconds. */
export interface Block {
  blockMs: number;
  /** When its last frame was captured, by the browser. */
  endMs: number;
  /** When the worker got it. */
  arrivedMs: number;
  /** The media time of its end, by its samples; null while its place is not known. */
  placeMs: number | null;
}

export interface Review {
  unneeded: number[];
  wanted: CaptureTime | null;
}

/** By one block. `lag` is null, and `phase` by the browser's word, while the capture's place is not known. */
interface Look {
  phase: number;
  lag: number | null;
}

interface Opened {
  askedMs: number | null;
  endMs: number;
  looks: Look[];
}

/** What all looks at a capture come to. */
interface Seen {
  id: number;
  phase: number;
}

/**
 * Decides which captures of a microphone take turns: as many as divide a block of the browser into equal parts.
 *
 * When a capture's blocks end is settled by the moment it is opened, and that takes about as long each time: so each is asked for when it makes
 * its blocks end at the time wanted, and replaced if that failed. Times within a block are *phases*: blocks since the first capture's
 * block ended, from 0 to 1. They are told by samples, where these tell them: the browser's timestamps wander by a third of a block. A capture
 * *lags* by as many blocks as its frames come later than the first one's: Chromium cuts blocks from what the sound system gives it in pieces,
 * and may keep up to a block less a piece back for ever.
 */
export class Turns {
  readonly #captures = new Map<number, Opened>();
  #first: Block | null = null;
  /** From asking for a capture until its blocks end, in blocks, less whole ones; and so whatever the two clocks differ by. */
  #opening: number | null = null;
  /** When a capture that was asked for is given up. */
  #giveUpMs = Number.NEGATIVE_INFINITY;
  #reviewMs = Number.NEGATIVE_INFINITY;
  #askMs: number | null = null;
  #waitMs = FIRST_WAIT_MS;
  /** Parts that another capture had when one was asked for last. */
  #filled = -1;

  /** A capture that was asked for at `askedMs`. */
  open(capture: number, askedMs: number): void {
    this.#giveUpMs = Number.NEGATIVE_INFINITY;
    this.#captures.set(capture, { askedMs, endMs: this.#first?.endMs ?? 0, looks: [] });
  }

  remove(capture: number): void {
    this.#captures.delete(capture);
  }

  /** Null while there is nothing to do. */
  add(capture: number, block: Block): Review | null {
    if (block.blockMs < LONG_BLOCK_MS) return null;
    if (capture === FIRST_CAPTURE) {
      this.#first = block;
      return this.#review(block);
    }
    const opened = this.#captures.get(capture);
    if (opened !== undefined && this.#first !== null) this.#look(opened, block, this.#first);
    return null;
  }

  #look(opened: Opened, block: Block, first: Block): void {
    const { looks } = opened;
    const look = lookAt(block, first);
    if ((looks[0]?.lag === null) !== (look.lag === null)) looks.length = 0;
    looks.push(look);
    if (looks.length > LOOKS) looks.shift();
    opened.endMs = block.endMs;
    if (opened.askedMs === null || looks.length < LOOKS) return;
    this.#opening = wrap(phaseOf(looks) - (opened.askedMs - first.endMs) / block.blockMs);
    opened.askedMs = null;
  }

  #review({ endMs: nowMs, blockMs }: Block): Review | null {
    this.#askMs ??= nowMs + FIRST_WAIT_MS;
    if (nowMs < this.#giveUpMs || nowMs < this.#reviewMs + REVIEW_MS) return null;
    this.#reviewMs = nowMs;
    const dead = [...this.#captures]
      .filter(([, { endMs }]) => nowMs - endMs > MOST_SILENT_MS)
      .map(([id]) => id);
    const alive = [...this.#captures].filter(([id]) => !dead.includes(id));
    if (alive.some(([, { looks }]) => looks.length < LOOKS)) return unneededOnly(dead);
    const prompt = promptOf(alive);
    const parts = Array.from({ length: PARTS }, (_, n) => nearest(n / PARTS, prompt));
    const unneeded = alive.map(([id]) => id).filter((id) => !parts.some((part) => part.id === id));
    if (largestGap(prompt) <= MOST_GAP) return unneededOnly([...dead, ...unneeded]);
    // Better than nothing until another is to be had.
    if (nowMs < this.#askMs) return unneededOnly(dead);
    this.#giveUpMs = nowMs + MOST_OPENING_MS;
    const filled = parts.filter(({ id }) => id !== null && id !== FIRST_CAPTURE).length;
    if (filled <= this.#filled) this.#waitMs = Math.min(MOST_WAIT_MS, WAIT_GROWTH * this.#waitMs);
    this.#filled = filled;
    this.#askMs = nowMs + this.#waitMs;
    const worst = parts.reduce((most, part) => (part.off > most.off ? part : most));
    const atMs = this.#opening === null ? null : nowMs + wrap(worst.phase - this.#opening) * blockMs;
    return { unneeded: [...dead, ...unneeded], wanted: { atMs, everyMs: blockMs } };
  }
}

function lookAt(block: Block, first: Block): Look {
  if (block.placeMs === null || first.placeMs === null)
    return { phase: wrap((block.endMs - first.endMs) / block.blockMs), lag: null };
  const aheadMs = block.placeMs - first.placeMs;
  const lagMs = block.arrivedMs - first.arrivedMs - aheadMs;
  return { phase: wrap(aheadMs / block.blockMs), lag: lagMs / block.blockMs };
}

/** The captures that do not lag. If the first one is not among them, another is to take its part, too. */
function promptOf(others: readonly [number, Opened][]): Seen[] {
  const lagOf = (looks: readonly Look[]) => median(looks.map(({ lag }) => lag ?? 0));
  const all = [
    { id: FIRST_CAPTURE, phase: 0, lag: 0 },
    ...others.map(([id, { looks }]) => ({ id, phase: phaseOf(looks), lag: lagOf(looks) })),
  ];
  const least = Math.min(...all.map(({ lag }) => lag));
  return all.filter(({ lag }) => lag - least <= MOST_LAG);
}

function unneededOnly(unneeded: number[]): Review | null {
  return unneeded.length === 0 ? null : { unneeded, wanted: null };
}

/** The capture that is next to a phase, none if that is in another part; and how far off it is. */
function nearest(phase: number, captures: readonly Seen[]) {
  const none = { id: null as number | null, off: 0.5 / PARTS };
  const offs = captures.map((capture) => ({ id: capture.id, off: apart(capture.phase, phase) }));
  return { phase, ...offs.reduce((best, one) => (one.off < best.off ? one : best), none) };
}

/** Between the ends of two blocks that follow each other, in blocks. */
function largestGap(captures: readonly Seen[]): number {
  const phases = captures.map(({ phase }) => phase).sort((a, b) => a - b);
  return Math.max(...phases.map((phase, n) => (phases[n + 1] ?? 1 + phases[0]!) - phase));
}

const wrap = (blocks: number) => blocks - Math.floor(blocks);

/** How far two phases are from each other. */
function apart(a: number, b: number): number {
  const ahead = wrap(a - b);
  return Math.min(ahead, 1 - ahead);
}

/** The one that the others are nearest to: on a circle there is no median. */
function phaseOf(looks: readonly Look[]): number {
  const distance = ({ phase }: Look) => looks.reduce((sum, other) => sum + apart(phase, other.phase), 0);
  return looks.reduce((best, look) => (distance(look) < distance(best) ? look : best)).phase;
}

function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[values.length >> 1]!;
}
