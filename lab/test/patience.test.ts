import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { Patience } from "../src/patience.js";

const noStall = { longestMs: 3, missingShare: 0.001 };
const stall = { longestMs: 30, missingShare: 0.001 };
/** A machine that stands still until this moment, ms. */
let disturbedUntil: number;
const said = vi.fn();
const watch = { between: (fromMs: number) => (fromMs < disturbedUntil ? stall : noStall) };

beforeEach(() => {
  vi.useFakeTimers();
  said.mockClear();
});
afterEach(() => {
  vi.useRealTimers();
});

async function waits(patience: Patience): Promise<number> {
  const began = Date.now();
  const waited = patience.untilQuiet();
  await vi.runAllTimersAsync();
  await waited;
  return (Date.now() - began) / 1000;
}

it("waits until ten seconds have passed undisturbed, while it lasts", async () => {
  const patience = new Patience(watch, 1, said);
  disturbedUntil = Date.now() + 25_000;
  expect(await waits(patience)).toBe(35);
  disturbedUntil = Date.now() + 1e6;
  expect(await waits(patience)).toBe(25);
  expect(await waits(patience)).toBe(0);
  expect(said).toHaveBeenCalledTimes(2);
});

it("takes anew what was disturbed, while it lasts for another take", () => {
  const patience = new Patience(watch, 1, said);
  expect(patience.again(noStall, 20_000)).toBe(false);
  expect(patience.again(stall, 20_000)).toBe(true);
  expect(patience.again({ longestMs: 5, missingShare: 0.02 }, 20_000)).toBe(true);
  expect(patience.again(stall, 20_000)).toBe(false);
  expect(patience.words).toContain("2 disturbed takes");
});

it("of no minutes takes everything as it comes", async () => {
  const patience = new Patience(watch, 0, said);
  disturbedUntil = Date.now() + 1e6;
  expect(await waits(patience)).toBe(0);
  expect(patience.again(stall, 1000)).toBe(false);
  expect(said).not.toHaveBeenCalled();
});
