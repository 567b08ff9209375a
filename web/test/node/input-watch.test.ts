import { expect, it } from "vitest";
import { InputWatch } from "../../src/main/input-watch";

/** Asks ten times a second, from `fromMs` until `toMs` after the sound began: when the input was first called late, null if never. */
function lateAt(watch: InputWatch, fromMs: number, toMs: number, slippedMs: (nowMs: number) => number) {
  for (let nowMs = fromMs; nowMs <= toMs; nowMs += 100)
    if (watch.isLate(nowMs, { ms: nowMs, slippedMs: slippedMs(nowMs) })) return nowMs;
  return null;
}

it("doubts an input that was there before the graph ran, as soon as that is calm", () => {
  const watch = new InputWatch(0, { ms: 0, slippedMs: 0 });
  expect(lateAt(watch, 0, 60_000, (nowMs) => (nowMs < 700 ? 0 : 150))).toBe(1_700);
});

it("leaves an input alone that the graph serves in time, and what opening it made slip", () => {
  const watch = new InputWatch(5_000, { ms: 5_000, slippedMs: 150 });
  expect(lateAt(watch, 5_000, 600_000, (nowMs) => (nowMs < 5_400 ? 150 : 190))).toBeNull();
});

it("finds an input late by what the output slipped since, the sooner the more that is", () => {
  const open = () => new InputWatch(5_000, { ms: 5_000, slippedMs: 0 });
  const slip = (ms: number) => (nowMs: number) => (nowMs < 8_000 ? 0 : ms);
  expect(lateAt(open(), 5_000, 600_000, slip(200))).toBe(10_000);
  expect(lateAt(open(), 5_000, 600_000, slip(20))).toBe(55_000);
  expect(lateAt(open(), 5_000, 600_000, slip(19))).toBeNull();
  // Some that come one by one count together.
  expect(lateAt(open(), 5_000, 600_000, (nowMs) => Math.floor(nowMs / 8_000) * 5)).not.toBeNull();
});

it("doubts an input after the graph stood still for longer than the engine takes for a slip", () => {
  const watch = new InputWatch(5_000, { ms: 5_000, slippedMs: 0 });
  const look = (nowMs: number) =>
    watch.isLate(nowMs, { ms: nowMs < 8_000 ? nowMs : Math.max(8_000, nowMs - 3_000), slippedMs: 0 });
  const late = Array.from({ length: 200 }, (_, n) => 5_000 + n * 100).find(look);
  expect(late).toBe(12_100);
});

it("waits while the graph goes on slipping", () => {
  const watch = new InputWatch(5_000, { ms: 5_000, slippedMs: 0 });
  expect(lateAt(watch, 5_000, 60_000, (nowMs) => Math.max(0, nowMs - 7_000) / 100)).toBeNull();
});
