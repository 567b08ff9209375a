import { expect, it } from "vitest";
import { Peaks } from "../../src/main/peaks";

it("tells the loudest of each channel since it was last asked, and the same again while nothing is new", () => {
  const peaks = new Peaks();
  expect(peaks.take("a")).toEqual([]);
  for (const published of [[0.1, 0.5], [0.9, 0.2], [0]]) peaks.add("a", published);
  expect(peaks.take("a"), "one channel is left").toEqual([0.9]);
  expect(peaks.take("a")).toEqual([0.9]);
  peaks.add("a", [0.3, 0.3]);
  peaks.add("b", [1]);
  expect([peaks.take("a"), peaks.take("b")]).toEqual([[0.3, 0.3], [1]]);
  peaks.forget("a");
  expect(peaks.take("a")).toEqual([]);
});
