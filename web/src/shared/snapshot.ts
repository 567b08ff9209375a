/** Numbers that one thread publishes and another may look at any time: a seqlock. The writer never waits; a reader may see "not now". */
export class Snapshot {
  readonly numbers: Float64Array;
  readonly #version: Int32Array;

  static byteLengthFor(count: number): number {
    return 8 + count * 8;
  }

  constructor(storage: SharedArrayBuffer | ArrayBuffer) {
    this.#version = new Int32Array(storage, 0, 1);
    this.numbers = new Float64Array(storage, 8);
  }

  /** Writer: between `begin` and `end`, set `numbers`. RT. */
  begin(): void {
    Atomics.add(this.#version, 0, 1);
  }
  end(): void {
    Atomics.add(this.#version, 0, 1);
  }

  /** Reader: copies all numbers; false if the writer was at it, and `into` is then worth nothing. */
  read(into: Float64Array): boolean {
    const before = Atomics.load(this.#version, 0);
    if (before % 2 !== 0) return false;
    into.set(this.numbers);
    return Atomics.load(this.#version, 0) === before;
  }
}

/** Numbers at the front of the worklet's snapshot; then `STATS_FIELDS + 1` for each stream slot, its name first (0: none). */
export const WORKLET_STATS = {
  quanta: 0,
  quantumFrames: 1,
  stray: 2,
  captureOverflows: 3,
  discards: 4,
  /** The context's frame that is rendered next: the one that the streams' playheads go with. */
  nextFrame: 5,
  /** By which the output has rendered less than the clock went on. */
  slippedFrames: 6,
  streams: 7,
} as const;
