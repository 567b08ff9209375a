/** The loudest since one reader last asked: the audio thread and the worker begin anew each time they publish theirs. */
export class Peaks {
  readonly #loudest = new Map<string, readonly number[]>();
  /** Whose have been read since they were last published. */
  readonly #read = new Set<string>();

  /** Whenever new ones are published: linear, per channel. */
  add(whose: string, peaks: readonly number[]): void {
    const before = this.#read.delete(whose) ? undefined : this.#loudest.get(whose);
    this.#loudest.set(
      whose,
      peaks.map((peak, channel) => Math.max(peak, before?.[channel] ?? 0)),
    );
  }

  /** The same once more while nothing new is published; empty before anything is. */
  take(whose: string): readonly number[] {
    this.#read.add(whose);
    return this.#loudest.get(whose) ?? [];
  }

  forget(whose: string): void {
    this.#loudest.delete(whose);
  }
}
