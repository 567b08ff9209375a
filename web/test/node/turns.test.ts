import { expect, it } from "vitest";
import { Turns } from "../../src/worker/turns";

const BLOCK_MS = 1024 / 48;

/** A browser that needs so long from being asked until a capture begins, and a page that heeds what it is told. */
class Stage {
  readonly turns = new Turns();
  /** When each capture's next block ends. */
  readonly ends = new Map([[0, 5]]);
  opened = 0;
  readonly #openingMs: (nth: number) => number;
  readonly #blockMs: number;

  constructor(openingMs: (nth: number) => number, blockMs = BLOCK_MS) {
    this.#openingMs = openingMs;
    this.#blockMs = blockMs;
  }

  play(untilMs: number): void {
    while (true) {
      const [id, endMs] = [...this.ends].reduce((first, one) => (one[1] < first[1] ? one : first));
      if (endMs > untilMs) return;
      this.ends.set(id, endMs + this.#blockMs);
      const review = this.turns.add(id, endMs, this.#blockMs);
      for (const unneeded of review?.unneeded ?? []) {
        this.ends.delete(unneeded);
        this.turns.remove(unneeded);
      }
      if (!review?.wanted) continue;
      const { atMs, everyMs } = review.wanted;
      const readyMs = endMs + 50;
      const askedMs = atMs === null ? readyMs : atMs + Math.ceil((readyMs - atMs) / everyMs) * everyMs;
      const capture = ++this.opened;
      this.turns.open(capture, askedMs);
      this.ends.set(capture, askedMs + this.#openingMs(capture) + this.#blockMs);
    }
  }

  /** Longest time between the ends of two blocks that follow each other, in blocks. */
  get gap(): number {
    const first = this.ends.get(0)!;
    const within = (ms: number) => ((((ms - first) / this.#blockMs) % 1) + 1) % 1;
    const ends = [...this.ends.values()].map(within).sort((a, b) => a - b);
    return Math.max(...ends.map((end, n) => (ends[n + 1] ?? 1) - end));
  }
}

it("opens captures until their blocks end at even intervals, and then no more", () => {
  for (let firstMs = 30; firstMs < 52; firstMs++) {
    const stage = new Stage((nth) => (nth === 1 ? firstMs + 60 : firstMs + (nth % 3)));
    stage.play(30_000);
    expect(stage.gap).toBeLessThanOrEqual(0.375);
    expect(stage.ends.size).toBeLessThanOrEqual(4);
    const { opened } = stage;
    expect(opened).toBeLessThanOrEqual(6);
    stage.play(600_000);
    expect(stage.opened).toBe(opened);
  }
});

it("opens another after a capture has slipped, and ends what is of no use any more", () => {
  const stage = new Stage(() => 40);
  stage.play(10_000);
  const before = stage.opened;
  const last = [...stage.ends.keys()].at(-1)!;
  const [, second] = stage.ends.keys();
  stage.ends.set(last, stage.ends.get(second)! + 0.1);
  stage.play(150_000);
  expect(stage.opened).toBe(before + 1);
  expect(stage.gap).toBeLessThanOrEqual(0.375);
  expect(stage.ends.size).toBeLessThanOrEqual(4);
});

it("tries less and less often where the browser takes no time twice the same", () => {
  let state = 1;
  const stage = new Stage(() => {
    state = (state * 16_807) % 2_147_483_647;
    return 40 + (state / 2_147_483_647) * BLOCK_MS;
  });
  stage.play(600_000);
  expect(stage.opened).toBeLessThanOrEqual(18);
  expect(stage.ends.size).toBeLessThanOrEqual(4);
});

it("leaves short blocks alone, which come to all captures at once", () => {
  const stage = new Stage(() => 40, 10);
  stage.play(60_000);
  expect(stage.opened).toBe(0);
});
