import { expect, it } from "vitest";
import type { Hit } from "../src/analysis.js";
import { compareLooks } from "../src/experiments/m2e.js";
import { framesPerMs } from "../src/units.js";

/** A pulse every 125 ms for 8 s; after 4 s the delay goes from 20 to 40 ms, and one pulse is missed. */
const hits: Hit[] = Array.from({ length: 64 }, (_, n) => ({
  pulse: { frame: n * 125 * framesPerMs, side: 0, code: n },
  latencyFrames: n === 50 ? null : (n < 32 ? 20 : 40) * framesPerMs,
  likeness: 1,
  crosstalkDb: -96,
}));

const look = (seconds: number, knownMs: number, errorMs: number, isWhole = true) => ({
  frame: seconds * 1_000 * framesPerMs,
  knownMs,
  errorMs,
  offsetErrorMs: 0,
  isWhole,
  stagesMs: [knownMs],
});

it("compares each look at the page with what was heard around that time", () => {
  const looks = [look(2, 20.9, 0), look(6, 45, 3.9), look(6, 45, 4)];
  const [early, wrong, right] = compareLooks(looks, hits);
  expect(early!.differenceMs).toBeCloseTo(0.9, 9);
  expect([early, wrong, right].map((one) => one!.isWithin)).toEqual([true, false, true]);
});

it("leaves out looks that know only a part, and those without a pulse", () => {
  expect(compareLooks([look(2, 3, 0, false), look(20, 40, 0)], hits)).toEqual([]);
});
