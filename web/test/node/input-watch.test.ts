import { expect, it } from "vitest";
import { InputWatch } from "../../src/main/input-watch";

/** An input that is opened when the graph has run for so long, and has slipped by so much. */
function opened(ms: number, slippedMs = 0): InputWatch {
  const watch = new InputWatch();
  watch.opened(ms, { ms, slippedMs });
  return watch;
}

/** Asks ten times a second, from `fromMs` until `toMs` after the sound began: when the input was first called late, null if never. */
function lateAt(watch: InputWatch, fromMs: number, toMs: number, slippedMs: (nowMs: number) => number) {
  for (let nowMs = fromMs; nowMs <= toMs; nowMs += 100)
    if (watch.isLate(nowMs, { ms: nowMs, slippedMs: slippedMs(nowMs) })) return nowMs;
  return null;
}

it("doubts an input that was there before the graph ran, as soon as that is calm", () => {
  expect(lateAt(opened(0), 0, 60_000, (nowMs) => (nowMs < 700 ? 0 : 150))).toBe(1_700);
  expect(
    lateAt(opened(0), 0, 60_000, (nowMs) => Math.floor(nowMs / 300) * 2),
    "small slips",
  ).toBe(1_000);
});

it("leaves an input alone that the graph serves in time, and what opening it made slip", () => {
  expect(lateAt(opened(5_000, 150), 5_000, 600_000, (nowMs) => (nowMs < 5_400 ? 150 : 190))).toBeNull();
});

it("finds an input late by what the output slipped since, the sooner the more that is", () => {
  const slip = (ms: number) => (nowMs: number) => (nowMs < 60_000 ? 0 : ms);
  expect(lateAt(opened(5_000), 5_000, 600_000, slip(200))).toBe(65_900);
  expect(lateAt(opened(5_000), 5_000, 600_000, slip(20))).toBe(110_900);
  expect(lateAt(opened(5_000), 5_000, 600_000, slip(19))).toBeNull();
  expect(lateAt(opened(5_000), 5_000, 600_000, (nowMs) => Math.floor(nowMs / 8_000) * 5)).not.toBeNull();
});

it("takes no drift of the clocks for a standstill when it has not looked for hours", () => {
  const watch = opened(5_000);
  const hours = 3 * 3_600_000;
  lateAt(watch, 5_000, 7_000, () => 0);
  for (const nowMs of [hours, hours + 1_100])
    expect(watch.isLate(nowMs, { ms: nowMs * (1 - 100e-6), slippedMs: 0 })).toBe(false);
});

it("waits while the graph goes on slipping", () => {
  expect(lateAt(opened(5_000), 5_000, 60_000, (nowMs) => Math.max(0, nowMs - 7_000) / 20)).toBeNull();
});

it("has inputs opened anew the less often the more often it did", () => {
  const watch = opened(5_000);
  const times: number[] = [];
  for (let nowMs = 5_000, slippedMs = 0; nowMs < 600_000; nowMs += 100) {
    if (nowMs % 3_000 === 0) slippedMs += 30;
    if (!watch.isLate(nowMs, { ms: nowMs, slippedMs })) continue;
    times.push(nowMs);
    watch.opened(nowMs, { ms: nowMs, slippedMs });
  }
  const apart = times.slice(1).map((ms, n) => ms - times[n]);
  expect(apart.length).toBeGreaterThan(5);
  expect(apart).toEqual([...apart].sort((a, b) => a - b));
  expect(apart.at(-1)).toBeGreaterThan(2 * apart[0]);
});

it.each([900, 3_000])(
  "doubts an input after a standstill of %s ms, whether the engine takes that for a slip or not",
  (standstillMs) => {
    const watch = opened(5_000);
    const look = (nowMs: number) => {
      const ms = nowMs < 8_000 ? nowMs : Math.max(8_000, nowMs - standstillMs);
      return watch.isLate(nowMs, { ms, slippedMs: 0 });
    };
    const late = Array.from({ length: 200 }, (_, n) => 5_000 + n * 100).find(look);
    expect(late).toBe(8_000 + standstillMs + 1_100);
  },
);
