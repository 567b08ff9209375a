import fc from "fast-check";
import { expect, it } from "vitest";
import { Interleaver } from "../../src/worker/interleaver";

const BLOCK = 1024;

interface Lost {
  at: number;
  frames: number;
}

/** A capture that begins with frame `first` of a microphone whose samples are the frames' numbers, and loses some. */
class Source {
  #next: number;
  readonly #lost: readonly Lost[];
  readonly #sample: (frame: number) => number;
  #block: number[] = [];

  constructor(first: number, lost: readonly Lost[] = [], sample = (frame: number) => frame) {
    this.#next = first;
    this.#lost = lost;
    this.#sample = sample;
    this.#fill();
  }

  /** When its next block is full. */
  get end(): number {
    return this.#next;
  }

  #fill(): void {
    this.#block = Array.from({ length: BLOCK }, () => {
      for (const { at, frames } of this.#lost) if (at === this.#next) this.#next += frames;
      return this.#sample(this.#next++);
    });
  }

  take(): Float32Array[] {
    const block = Float32Array.from(this.#block);
    this.#fill();
    return [block, block.map((sample) => -sample)];
  }
}

/** Lets the capture speak whose block is full first, and so on; returns what is passed on. */
function play(sources: Source[], blocks: number) {
  const interleaver = new Interleaver(2);
  const passed: number[] = [];
  const sizes: number[] = [];
  for (let n = 0; n < blocks; n++) {
    const id = sources.reduce((first, source, at) => (source.end < sources[first].end ? at : first), 0);
    const planes = sources[id].take();
    const from = interleaver.take(id, planes, BLOCK);
    passed.push(...planes[0].subarray(from));
    sizes.push(BLOCK - from);
  }
  return { interleaver, passed, sizes };
}

it("passes every frame on once and in order, as soon as any of the captures has it", () => {
  const firsts = fc.array(fc.integer({ min: 0, max: BLOCK - 1 }), { minLength: 1, maxLength: 4 });
  fc.assert(
    fc.property(firsts, (others) => {
      const { passed, sizes } = play(
        [0, ...others].map((first) => new Source(first)),
        60,
      );
      const first = passed[0];
      expect(passed.findIndex((frame, n) => frame !== first + n)).toBe(-1);
      const ends = [...new Set([0, ...others])].sort((a, b) => a - b);
      const gaps = ends.map((end, n) => (ends[n + 1] ?? BLOCK + ends[0]) - end);
      expect(Math.max(...sizes.slice(-20))).toBe(Math.max(...gaps));
    }),
    { numRuns: 40 },
  );
});

/** Short sounds between silences. */
const beats = (frame: number) => (frame % 6000 < 480 ? frame : 0);

it("passes on nothing twice nor out of order whatever captures lose, and goes on", () => {
  const lost = fc.record({
    at: fc.integer({ min: 10 * BLOCK, max: 20 * BLOCK }),
    frames: fc.integer({ min: 1, max: 3 * BLOCK }),
  });
  fc.assert(
    fc.property(fc.array(fc.array(lost, { maxLength: 3 }), { minLength: 4, maxLength: 4 }), (losses) => {
      const sources = losses.map((own, n) => new Source([0, 300, 500, 800][n], own));
      const { interleaver, passed } = play(sources, 160);
      expect([interleaver.count, interleaver.strangers()]).toEqual([4, []]);
      expect(passed.findIndex((frame, n) => n > 0 && frame <= passed[n - 1])).toBe(-1);
      expect(passed.at(-1)).toBeGreaterThan(Math.min(...sources.map(({ end }) => end)) - 2 * BLOCK);
      const most = losses.flat().reduce((sum, { frames }) => sum + frames, 0);
      expect(passed.at(-1)! - passed[0] + 1 - passed.length).toBeLessThanOrEqual(most);
    }),
    { numRuns: 40 },
  );
});

it("passes on no sound twice nor out of order where there is silence between, whatever captures lose", () => {
  const lost = fc.record({
    at: fc.integer({ min: 10 * BLOCK, max: 30 * BLOCK }),
    frames: fc.integer({ min: 1, max: 3 * BLOCK }),
  });
  fc.assert(
    fc.property(fc.array(fc.array(lost, { maxLength: 3 }), { minLength: 4, maxLength: 4 }), (losses) => {
      const sources = losses.map((own, n) => new Source([0, 300, 500, 800][n], own, beats));
      const { interleaver, passed } = play(sources, 200);
      const sounds = passed.filter((frame) => frame > 0);
      expect(sounds.findIndex((frame, n) => n > 0 && frame <= sounds[n - 1])).toBe(-1);
      expect(interleaver.strangers()).toEqual([]);
    }),
    { numRuns: 40 },
  );
});

it("waits for sound before another capture takes turns, and keeps its turn in silence", () => {
  const quiet = (frame: number) => (frame > 20_000 && frame < 60_000 ? frame : 0);
  const { interleaver, passed, sizes } = play([new Source(0, [], quiet), new Source(500, [], quiet)], 19 * 2);
  expect(interleaver.count).toBe(1);
  expect(new Set(sizes)).toEqual(new Set([0, BLOCK]));
  expect(passed.length).toBe(19 * BLOCK);
  const longer = play([new Source(0, [], quiet), new Source(500, [], quiet)], 160);
  expect(longer.interleaver.count).toBe(2);
  expect(new Set(longer.sizes.slice(-20))).toEqual(new Set([500, BLOCK - 500]));
});

it("takes turns again by a short sound between silences", () => {
  const lost = [{ at: 30_000, frames: 2_500 }];
  const { interleaver, passed, sizes } = play([new Source(0, [], beats), new Source(500, lost, beats)], 160);
  expect(interleaver.count).toBe(2);
  expect(new Set(sizes.slice(-20))).toEqual(new Set([952, 72]));
  const sounds = passed.filter((frame) => frame > 0);
  expect(sounds.findIndex((frame, n) => n > 0 && frame <= sounds[n - 1])).toBe(-1);
});

it("lets no capture of other samples take turns, and takes the first one's side", () => {
  const other = new Source(500, [], (frame) => frame + 0.5);
  const { interleaver, passed } = play([new Source(0), other], 200);
  expect(passed).toEqual(passed.map((_, n) => n));
  expect(interleaver.strangers()).toEqual([1]);
  // The sound system moves the first to another microphone.
  const moved = new Source(0, [], (frame) => (frame < 20_000 ? frame : frame + 0.5));
  expect(play([moved, new Source(500)], 200).interleaver.strangers()).toEqual([1]);
});

it("is not confused by a tone that repeats itself exactly", () => {
  const tone = (frame: number) => Math.round(8192 * Math.sin((2 * Math.PI * (frame % 48)) / 48)) / 32_768;
  const { interleaver, sizes } = play([new Source(0, [], tone), new Source(500, [], tone)], 200);
  expect(interleaver.count).toBe(1);
  expect(interleaver.strangers()).toEqual([]);
  expect(new Set(sizes)).toEqual(new Set([0, BLOCK]));
});
