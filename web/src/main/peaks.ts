/** Peaks that are not published any more are of the past after so long. */
const STALE_MS = 1_000;

/** The loudest since one reader last asked: the audio thread and the worker begin anew each time they publish theirs. */
export class Peaks {
  readonly #loudest = new Map<string, { peaks: readonly number[]; atMs: number }>();
  /** Whose have been read since they were last published. */
  readonly #read = new Set<string>();

  /** Whenever new ones are published: linear, per channel. */
  add(whose: string, peaks: readonly number[], nowMs: number): void {
    const before = this.#read.delete(whose) ? undefined : this.#loudest.get(whose)?.peaks;
    const loudest = peaks.map((peak, channel) => Math.max(peak, before?.[channel] ?? 0));
    this.#loudest.set(whose, { peaks: loudest, atMs: nowMs });
  }

  /** The same once more while nothing new is published, for a moment; empty then, and before anything is. */
  take(whose: string, nowMs: number): readonly number[] {
    this.#read.add(whose);
    const newest = this.#loudest.get(whose);
    return newest === undefined || nowMs - newest.atMs > STALE_MS ? [] : newest.peaks;
  }

  forget(whose: string): void {
    this.#loudest.delete(whose);
  }
}
