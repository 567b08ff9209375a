import { expect, it } from "vitest";
import { Underruns } from "../../src/main/underruns";

it("what an output misses while it begins is none of its underruns", () => {
  const underruns = new Underruns(10_000);
  const counted = [
    [10_500, 4],
    [12_500, 5],
    [13_500, 5],
    [20_000, 7],
  ].map(([nowMs, total]) => underruns.since(nowMs!, total!));
  expect(counted).toEqual([0, 0, 0, 2]);
});
