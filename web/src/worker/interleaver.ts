import { FIRST_CAPTURE } from "../shared/messages";

/** Frames that a block has to share with what was passed on, and how many of their samples have to differ from the one before. */
const SHARED_FRAMES = 64;
const LEAST_CHANGES = 16;
/** Blocks in a row that fit nowhere, though there is sound, after which a capture is a stranger. */
const MOST_STRANGE = 50;
/** Frames of one capture, while no other has new ones either, after which it goes on without sharing any. */
const RESTART_FRAMES = 2_048;

interface Place {
  /** Media time of the capture's next frame; null until it is known. */
  next: number | null;
  strange: number;
  refusedFrames: number;
}

/**
 * Several captures of one microphone as one. Each gets the same samples in blocks as long as the browser likes, but their blocks end at
 * different times: together they bring each frame sooner than one of them would (docs/adr: captures in turns).
 *
 * What they share tells where a block belongs: what is new in it follows the frames that another capture brought last, bit by bit. If
 * these are not where they should be, the capture has lost frames, and they are looked for. So no frame is passed on twice, and none that
 * does not follow the one before.
 */
export class Interleaver {
  readonly channels: number;
  /** The last frames passed on, `[channel][frame]`. */
  readonly #last: Float32Array[];
  /** Frames passed on so far, and how many of them can be shared. */
  #end = 0;
  #known = 0;
  readonly #places = new Map<number, Place>();

  constructor(channels: number) {
    this.channels = channels;
    this.#last = Array.from({ length: channels }, () => new Float32Array(SHARED_FRAMES));
  }

  /** How many captures' places are known. */
  get count(): number {
    return Array.from(this.#places.values()).filter(({ next }) => next !== null).length;
  }

  /**
   * A block of a capture, `planes[channel][frame]`. Its frames from the index returned on are new, and follow those that were new before;
   * there are none if that is `frames`.
   */
  take(capture: number, planes: readonly Float32Array[], frames: number): number {
    const place = this.#places.get(capture) ?? { next: null, strange: 0, refusedFrames: 0 };
    this.#places.set(capture, place);
    const from = this.#newFrom(place, planes, frames);
    if (from === null) {
      place.next = null;
      place.refusedFrames += frames;
      return frames;
    }
    place.strange = 0;
    place.next = this.#end - from + frames;
    if (from < frames) this.#pass(planes, from, frames);
    return Math.min(from, frames);
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

  /** Index of the block's first new frame, beyond its end if it is older than the last one passed on; null if it is not known. */
  #newFrom(place: Place, planes: readonly Float32Array[], frames: number): number | null {
    const due = place.next === null ? null : this.#end - place.next;
    if (due !== null && (due > frames || this.#follow(planes, due))) return due;
    const found = this.#isTelling() ? this.#find(planes, frames) : null;
    if (typeof found === "number") return found;
    if (found === "nowhere") place.strange++;
    if (this.#known > 0 && place.refusedFrames < RESTART_FRAMES) return null;
    // The first block of all, or nothing has followed what was passed on for long.
    for (const other of this.#places.values()) other.next = null;
    return 0;
  }

  /** Whether the block's frames before an index are the last ones passed on, as far as they are there. */
  #follow(planes: readonly Float32Array[], index: number): boolean {
    const shared = Math.min(index, this.#known);
    return this.#last.every((last, channel) => {
      const plane = planes[channel]!;
      for (let n = 1; n <= shared; n++) if (plane[index - n] !== last[SHARED_FRAMES - n]) return false;
      return true;
    });
  }

  /** The one index before which the last frames passed on are found, unless there are several. */
  #find(planes: readonly Float32Array[], frames: number): number | "nowhere" | null {
    let found: number | "nowhere" = "nowhere";
    for (let index = SHARED_FRAMES; index <= frames; index++) {
      if (!this.#follow(planes, index)) continue;
      if (found !== "nowhere") return null;
      found = index;
    }
    return found;
  }

  /** Whether the last frames can be known again: silence is found everywhere. */
  #isTelling(): boolean {
    let changes = 0;
    for (const last of this.#last)
      for (let n = 1; n < SHARED_FRAMES; n++) if (last[n] !== last[n - 1]) changes++;
    return this.#known === SHARED_FRAMES && changes >= LEAST_CHANGES;
  }

  #pass(planes: readonly Float32Array[], from: number, frames: number): void {
    const kept = Math.min(SHARED_FRAMES, frames - from);
    for (const [channel, last] of this.#last.entries()) {
      last.copyWithin(0, kept);
      last.set(planes[channel]!.subarray(frames - kept, frames), SHARED_FRAMES - kept);
    }
    this.#end += frames - from;
    this.#known = Math.min(SHARED_FRAMES, this.#known + kept);
    for (const place of this.#places.values()) place.refusedFrames = 0;
  }
}
