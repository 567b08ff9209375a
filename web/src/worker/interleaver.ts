import { FIRST_CAPTURE } from "../shared/messages";

/** Frames by which a place is known, and how many of their samples have to differ from the one before. */
const MARK_FRAMES = 64;
const LEAST_CHANGES = 16;
/** Frames passed on that are kept to compare with: four blocks of Chromium's. */
const PAST_FRAMES = 4_096;
/** Blocks in a row that nothing like was ever passed on before, after which a capture is a stranger. */
const MOST_STRANGE = 50;
/** Frames of one capture, while no other has new ones either, after which it goes on without a place. */
const RESTART_FRAMES = 2_048;

interface Place {
  /** Media time of the capture's next frame; null while it is not known. */
  next: number | null;
  /** Frames of its last block, for to find the place, and how many came after them; null if none of them can be known again. */
  mark: { planes: Float32Array[]; framesAfter: number } | null;
  strange: number;
  refusedFrames: number;
}

/**
 * Several captures of one microphone as one. Each gets the same samples in blocks as long as the browser likes, but their blocks end at
 * different times: together they bring each frame sooner than one of them would (docs/adr: captures in turns).
 *
 * What they share tells where a block belongs: a capture of whose last block another has brought some frames, bit by bit, goes on behind
 * it. From then on its frames are counted, and those of each block that are known already are compared: if they differ, it has lost some,
 * and its place is looked for anew, while the others go on.
 */
export class Interleaver {
  readonly channels: number;
  /** The frames passed on last, `[channel]`; that of media time *t* is at *t* mod `PAST_FRAMES`. */
  readonly #past: Float32Array[];
  /** Frames passed on so far, and how many of them are there to compare with. */
  #end = 0;
  #known = 0;
  readonly #places = new Map<number, Place>();

  constructor(channels: number) {
    this.channels = channels;
    this.#past = Array.from({ length: channels }, () => new Float32Array(PAST_FRAMES));
  }

  /** How many captures' places are known. */
  get count(): number {
    return Array.from(this.#places.values()).filter(({ next }) => next !== null).length;
  }

  /** Media time of a capture's next frame, in frames; null while its place is not known. */
  placeOf(capture: number): number | null {
    return this.#places.get(capture)?.next ?? null;
  }

  /**
   * A block of a capture, `planes[channel][frame]`. Its frames from the index returned on are new, and follow those that were new before;
   * there are none if that is `frames`.
   */
  take(capture: number, planes: readonly Float32Array[], frames: number): number {
    const place = this.#places.get(capture) ?? {
      next: null,
      mark: null,
      strange: 0,
      refusedFrames: 0,
    };
    this.#places.set(capture, place);
    if (!this.#locate(place, planes, frames)) {
      if (this.#known > 0 && place.refusedFrames < RESTART_FRAMES) {
        place.next = null;
        place.refusedFrames += frames;
        place.mark = markIn(planes, frames);
        return frames;
      }
      // The first block of all, or nothing has followed what was passed on for long.
      for (const other of this.#places.values()) other.next = null;
      this.#known = 0;
      place.next = this.#end;
    }
    const from = Math.min(frames, this.#end - place.next!);
    place.next! += frames;
    place.strange = 0;
    if (from < frames) this.#pass(planes, from, frames);
    return from;
  }

  /**
   * Captures that do not bring the samples that the others do: resampled, or of another microphone. The first one is the one that was
   * chosen: if it is a stranger, the others are.
   */
  strangers(): number[] {
    const strange = [...this.#places]
      .filter(([, { strange }]) => strange >= MOST_STRANGE)
      .map(([capture]) => capture);
    if (!strange.includes(FIRST_CAPTURE)) return strange;
    return [...this.#places.keys()].filter((capture) => capture !== FIRST_CAPTURE);
  }

  remove(capture: number): void {
    this.#places.delete(capture);
  }

  /** Whether the block is known to go on from the capture's place, which is looked for if it has none. */
  #locate(place: Place, planes: readonly Float32Array[], frames: number): boolean {
    if (place.next === null && place.mark !== null) {
      const found = this.#find(place.mark.planes);
      if (found.length === 0) place.strange++;
      if (found.length === 1) place.next = found[0]! + place.mark.framesAfter;
    }
    if (place.next === null) return false;
    // It may be ahead of the others, where a mark was found that is not the end of its block.
    const knownTo = Math.min(frames, this.#end - place.next);
    return knownTo >= 0 && this.#matches(planes, knownTo, place.next + knownTo);
  }

  /** Media times behind what was passed on that is like a mark: at most two, which are as good as none. */
  #find(mark: readonly Float32Array[]): number[] {
    const found: number[] = [];
    for (let time = this.#end; time >= this.#end - this.#known + MARK_FRAMES && found.length < 2; time--)
      if (this.#matches(mark, MARK_FRAMES, time)) found.push(time);
    return found;
  }

  /** Whether the frames before `index` are those passed on before `time`, as far as these are there: at most `MARK_FRAMES`. */
  #matches(planes: readonly Float32Array[], index: number, time: number): boolean {
    const frames = Math.min(MARK_FRAMES, index, Math.max(0, this.#known - (this.#end - time)));
    return this.#past.every((past, channel) => {
      const plane = planes[channel]!;
      for (let n = 1; n <= frames; n++) if (plane[index - n] !== past[(time - n) % PAST_FRAMES]) return false;
      return true;
    });
  }

  #pass(planes: readonly Float32Array[], from: number, frames: number): void {
    for (const [channel, past] of this.#past.entries())
      for (let n = from; n < frames; n++) past[(this.#end + n - from) % PAST_FRAMES] = planes[channel]![n]!;
    this.#end += frames - from;
    this.#known = Math.min(PAST_FRAMES, this.#known + frames - from);
    for (const place of this.#places.values()) place.refusedFrames = 0;
  }
}

/** The last frames of a block that can be known again: silence is found everywhere. */
function markIn(planes: readonly Float32Array[], frames: number): Place["mark"] {
  for (let end = frames; end >= MARK_FRAMES; end -= MARK_FRAMES / 2) {
    if (!isTelling(planes, end)) continue;
    return { planes: planes.map((plane) => plane.slice(end - MARK_FRAMES, end)), framesAfter: frames - end };
  }
  return null;
}

/** Whether the frames of a mark that ends there can be known again. */
function isTelling(planes: readonly Float32Array[], end: number): boolean {
  let changes = 0;
  for (const plane of planes)
    for (let n = end - MARK_FRAMES + 1; n < end; n++) if (plane[n] !== plane[n - 1]) changes++;
  return changes >= LEAST_CHANGES;
}
