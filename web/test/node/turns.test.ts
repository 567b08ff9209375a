import { expect, it } from "vitest";
import { Turns } from "../../src/worker/turns";

const BLOCK_MS = 1024 / 48;

interface Browser {
  /** From being asked until a capture begins. */
  openingMs?: (nth: number) => number;
  blockMs?: number;
  /** By how many blocks a capture's frames come later than they could. */
  lag?: (nth: number) => number;
  /** By how much the browser's word of the time is off. */
  wanderMs?: (nth: number, atMs: number) => number;
  /** Whether sound tells the captures' places. */
  isHeard?: boolean;
  /** Whether captures bring nothing. */
  isMute?: boolean;
  /** Whether a capture cannot be opened. */
  isRefused?: (nth: number) => boolean;
}

/** A browser, and a page that heeds what it is told. */
class Stage {
  readonly turns = new Turns();
  /** When each capture's next block ends. */
  readonly ends = new Map([[0, 5]]);
  /** Captures that were asked for. */
  asked = 0;
  readonly #browser: Required<Browser>;

  constructor(browser: Browser) {
    const usual = {
      openingMs: () => 40,
      blockMs: BLOCK_MS,
      lag: () => 0,
      wanderMs: () => 0,
      isHeard: true,
      isMute: false,
      isRefused: () => false,
    };
    this.#browser = { ...usual, ...browser };
  }

  play(untilMs: number): void {
    const { openingMs, blockMs, lag, wanderMs, isHeard, isMute, isRefused } = this.#browser;
    while (true) {
      const [id, placeMs] = [...this.ends].reduce((first, one) => (one[1] < first[1] ? one : first));
      if (placeMs > untilMs) return;
      this.ends.set(id, placeMs + blockMs);
      const review = this.turns.add(id, {
        blockMs,
        endMs: placeMs + wanderMs(id, placeMs),
        arrivedMs: placeMs + lag(id) * blockMs,
        placeMs: isHeard ? placeMs : null,
      });
      for (const unneeded of review?.unneeded ?? []) {
        this.ends.delete(unneeded);
        this.turns.remove(unneeded);
      }
      if (!review?.wanted) continue;
      const { atMs, everyMs } = review.wanted;
      const readyMs = placeMs + 50;
      const askedMs = atMs === null ? readyMs : atMs + Math.ceil((readyMs - atMs) / everyMs) * everyMs;
      const capture = ++this.asked;
      if (isRefused(capture)) continue;
      this.turns.open(capture, askedMs);
      if (!isMute) this.ends.set(capture, askedMs + openingMs(capture) + blockMs);
    }
  }

  /** Longest time between the ends of two blocks that follow each other, in blocks. */
  get gap(): number {
    const { blockMs, lag } = this.#browser;
    const within = (ms: number) => (ms / blockMs) % 1;
    const prompt = [...this.ends].filter(([id]) => lag(id) === 0);
    const ends = prompt.map(([, end]) => within(end)).sort((a, b) => a - b);
    return Math.max(...ends.map((end, n) => (ends[n + 1] ?? 1 + ends[0]!) - end));
  }
}

it.each([true, false])(
  "opens captures until their blocks end at even intervals, and then no more, heard: %s",
  (isHeard) => {
    for (let firstMs = 30; firstMs < 52; firstMs += 3) {
      const stage = new Stage({
        openingMs: (nth) => (nth === 1 ? firstMs + 60 : firstMs + (nth % 3)),
        isHeard,
      });
      stage.play(30_000);
      expect(stage.gap).toBeLessThanOrEqual(0.375);
      expect(stage.ends.size).toBeLessThanOrEqual(4);
      const { asked } = stage;
      expect(asked).toBeLessThanOrEqual(6);
      stage.play(600_000);
      expect(stage.asked).toBe(asked);
    }
  },
);

it("opens another after a capture has slipped, and ends what is of no use any more", () => {
  const stage = new Stage({});
  stage.play(10_000);
  const before = stage.asked;
  const last = [...stage.ends.keys()].at(-1)!;
  const [, second] = stage.ends.keys();
  stage.ends.set(last, stage.ends.get(second)! + 0.1);
  stage.play(150_000);
  expect(stage.asked).toBe(before + 1);
  expect(stage.gap).toBeLessThanOrEqual(0.375);
  expect(stage.ends.size).toBeLessThanOrEqual(4);
});

it("tries less and less often where the browser takes no time twice the same", () => {
  let state = 1;
  const stage = new Stage({
    openingMs: () => {
      state = (state * 16_807) % 2_147_483_647;
      return 40 + (state / 2_147_483_647) * BLOCK_MS;
    },
  });
  stage.play(600_000);
  expect(stage.asked).toBeLessThanOrEqual(18);
  expect(stage.ends.size).toBeLessThanOrEqual(4);
});

it("tries less and less often where captures bring nothing", () => {
  const stage = new Stage({ isMute: true });
  stage.play(600_000);
  expect(stage.asked).toBeGreaterThan(5);
  expect(stage.asked).toBeLessThanOrEqual(25);
});

it("asks again for a capture that could not be opened", () => {
  const stage = new Stage({ isRefused: (nth) => nth === 2 || nth === 3 });
  stage.play(60_000);
  expect(stage.gap).toBeLessThanOrEqual(0.375);
});

it("asks less and less often where no capture can be opened", () => {
  const stage = new Stage({ isRefused: () => true });
  stage.play(600_000);
  expect(stage.asked).toBeGreaterThan(5);
  expect(stage.asked).toBeLessThanOrEqual(25);
});

it("leaves short blocks alone, which come to all captures at once", () => {
  const stage = new Stage({ blockMs: 10 });
  stage.play(60_000);
  expect(stage.asked).toBe(0);
});

it("goes by the samples, where the browser's word of the time wanders", () => {
  const stage = new Stage({ wanderMs: (nth, atMs) => 0.3 * BLOCK_MS * Math.sin(nth + atMs / 3_000) });
  stage.play(20_000);
  const { asked } = stage;
  expect(stage.gap).toBeLessThanOrEqual(0.375);
  stage.play(600_000);
  expect(stage.asked).toBe(asked);
});

it("replaces captures that lag, and fills the first one's part if it does", () => {
  for (const lagging of [[1], [0], [0, 2, 3], [1, 2, 3]]) {
    const stage = new Stage({ lag: (nth) => (lagging.includes(nth) ? 0.25 : 0) });
    stage.play(60_000);
    expect(stage.gap, `${lagging}`).toBeLessThanOrEqual(0.375);
    expect([...stage.ends.keys()].filter((id) => id !== 0 && lagging.includes(id))).toEqual([]);
  }
});
