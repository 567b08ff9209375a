import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { rotated } from "../src/configs.js";
import { isLessDisturbed, Patience } from "../src/patience.js";
import type { DeviceSummary } from "../src/rig.js";

const noStall = { longestMs: 3, missingShare: 0.001 };
const stall = { longestMs: 30, missingShare: 0.001 };
/** A machine that stands still until this moment, ms. */
let disturbedUntil: number;
const said = vi.fn();
const steady: DeviceSummary = {
  version: 1,
  sample_rate_hz: 48_000,
  quantum_frames: 64,
  frames: 48_000,
  began_ms: 0,
  xruns: 0,
  clock_gaps: 0,
  missed_frames: 0,
  quantum_changes: 0,
};
const watch = { between: (fromMs: number) => (fromMs < disturbedUntil ? stall : noStall) };

beforeEach(() => {
  vi.useFakeTimers();
  said.mockClear();
});
afterEach(() => {
  vi.useRealTimers();
});

/** Of which all may be spent by the first step. */
function patienceOf(minutes: number): Patience {
  const patience = new Patience(watch, minutes, said);
  patience.begin(1);
  return patience;
}

async function waits(patience: Patience): Promise<number> {
  const began = Date.now();
  const waited = patience.untilQuiet();
  await vi.runAllTimersAsync();
  await waited;
  return (Date.now() - began) / 1000;
}

it("waits until ten seconds have passed undisturbed, while it lasts", async () => {
  const patience = patienceOf(1);
  disturbedUntil = Date.now() + 25_000;
  expect(await waits(patience)).toBe(35);
  disturbedUntil = Date.now() + 1e6;
  expect(await waits(patience)).toBe(25);
  expect(await waits(patience)).toBe(0);
  expect(said).toHaveBeenCalledTimes(2);
});

it("takes anew what was disturbed, while it lasts for another take", () => {
  const patience = patienceOf(1);
  const inAll = patience.watch();
  expect(patience.again({ load: noStall }, 20_000)).toBe(false);
  expect(patience.again({ load: stall }, 20_000)).toBe(true);
  const sinceThen = patience.watch();
  expect(patience.again({ load: { longestMs: 5, missingShare: 0.02 } }, 20_000)).toBe(true);
  expect(patience.again({ load: stall }, 20_000)).toBe(false);
  expect(inAll()).toBe(
    "waited 1 min for it, 2 disturbed takes among that; 1 disturbed takes count for want of it",
  );
  expect(sinceThen()).toBe(
    "waited 0 min for it, 1 disturbed takes among that; 1 disturbed takes count for want of it",
  );
});

it("gives every step its share, and what those before have left", () => {
  const patience = new Patience(watch, 4, said);
  const took = () => patience.again({ load: stall }, 50_000);
  patience.begin(0.25);
  expect([took(), took()]).toEqual([true, false]);
  patience.begin(0.5);
  expect([took(), took()]).toEqual([true, false]);
  patience.begin(0.75);
  patience.begin(1);
  expect([took(), took(), took()]).toEqual([true, true, false]);
});

it.each([{ missed_frames: 481 }, { missed_frames: -481 }, { xruns: 1 }, { quantum_changes: 1 }])(
  "takes anew what the device was not in all the time: %j",
  (trouble) => {
    const patience = patienceOf(1);
    expect(patience.again({ load: noStall, device: { ...steady, missed_frames: 480 } }, 1000)).toBe(false);
    expect(patience.again({ load: noStall, device: { ...steady, ...trouble } }, 1000)).toBe(true);
  },
);

it("an undisturbed take counts, whatever share of it is missing, and else the one with less missing", () => {
  const quiet = { load: { longestMs: 9, missingShare: 0.009 } };
  const still = { load: { longestMs: 11, missingShare: 0.001 } };
  const without = { load: noStall, device: { ...steady, missed_frames: 481 } };
  const worse = { load: { longestMs: 11, missingShare: 0.02 } };
  for (const other of [still, without, worse]) {
    expect(isLessDisturbed(quiet, other)).toBe(true);
    expect(isLessDisturbed(other, quiet)).toBe(false);
  }
  expect(isLessDisturbed(still, worse)).toBe(true);
  expect(isLessDisturbed(worse, still)).toBe(false);
  expect(isLessDisturbed(still, still)).toBe(false);
});

it("of disturbed takes that with fewer xruns counts, then that of which less is missing, at the device too", () => {
  const take = (missingShare: number, trouble: Partial<DeviceSummary>) => ({
    load: { longestMs: 30, missingShare },
    device: { ...steady, ...trouble },
  });
  const ordered = [
    take(0.002, { missed_frames: 480 }),
    take(0.001, { missed_frames: -4_800 }),
    take(0.2, { missed_frames: 0 }),
    take(0.001, { quantum_changes: 1 }),
    take(0.001, { xruns: 2 }),
  ];
  for (const [index, one] of ordered.entries())
    for (const [other, two] of ordered.entries()) expect(isLessDisturbed(one, two)).toBe(index < other);
});

it("of no minutes takes everything as it comes", async () => {
  const patience = patienceOf(0);
  disturbedUntil = Date.now() + 1e6;
  expect(await waits(patience)).toBe(0);
  expect(patience.again({ load: stall }, 1000)).toBe(false);
  expect(said).not.toHaveBeenCalled();
});

it("no setup is always the first or the last of its session", () => {
  const all = ["A", "RTC", "Antiphon"];
  const orders = [1, 2, 3].map((session) => rotated(all, session, 3));
  expect(orders).toEqual([all, ["RTC", "Antiphon", "A"], ["Antiphon", "A", "RTC"]]);
  expect(rotated(all, 2, 2)).toEqual(["RTC", "Antiphon", "A"]);
  expect(rotated(["shared"], 2, 2)).toEqual(["shared"]);
});
