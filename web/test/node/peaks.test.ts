import { expect, it } from "vitest";
import { Peaks } from "../../src/main/peaks";

it("tells the loudest of each channel since it was last asked, and the same again while nothing is new for a moment", () => {
  const peaks = new Peaks();
  expect(peaks.take("a", 0)).toEqual([]);
  for (const published of [[0.1, 0.5], [0.9, 0.2], [0]]) peaks.add("a", published, 0);
  expect(peaks.take("a", 0), "one channel is left").toEqual([0.9]);
  expect(peaks.take("a", 1_000)).toEqual([0.9]);
  expect(peaks.take("a", 1_001), "of the past").toEqual([]);
  peaks.add("a", [0.3, 0.3], 5_000);
  peaks.add("b", [1], 5_000);
  expect([peaks.take("a", 5_000), peaks.take("b", 5_000)]).toEqual([[0.3, 0.3], [1]]);
  peaks.forget("a");
  expect(peaks.take("a", 5_000)).toEqual([]);
});
