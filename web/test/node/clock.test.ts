import { describe, expect, it } from "vitest";
import { CaptureClock, ClockOffset, Recent, RecentCounts } from "../../src/shared/clock";

/** A random number in [0, 1), the same each time. */
function seeded(seed: number) {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
}

const EPOCH_MS = 1_795_223_941_000;

/** Two clocks that run apart by `skewPpm`, and a network between them; a probe every half second. */
function probe(options: {
  offsetMs: number;
  skewPpm: number;
  outMs: () => number;
  backMs: () => number;
  probes: number;
}) {
  const { offsetMs, skewPpm, outMs, backMs, probes } = options;
  const remote = (ms: number) => ms + offsetMs + ((ms - EPOCH_MS) * skewPpm) / 1e6;
  const offset = new ClockOffset(0.04);
  const errors: { claimedMs: number; trueMs: number }[] = [];
  for (let n = 0; n < probes; n++) {
    const sentMs = EPOCH_MS + n * 500;
    const repliedMs = sentMs + outMs();
    const receivedMs = repliedMs + backMs();
    offset.add(sentMs, remote(repliedMs), receivedMs);
    const nowMs = sentMs + 250;
    const estimate = offset.at(nowMs);
    if (estimate === null) throw new Error("no estimate");
    errors.push({ claimedMs: estimate.errorMs, trueMs: Math.abs(estimate.ms - (remote(nowMs) - nowMs)) });
  }
  return errors;
}

describe("the offset of a peer's clock", () => {
  it("is unknown before a probe has come back", () => {
    expect(new ClockOffset(0.04).at(EPOCH_MS)).toBeNull();
  });

  it.each([
    ["a LAN", 0.2, 0.1, 0],
    ["jitter of 30 ms", 15, 30, 0],
    ["clocks that run apart", 15, 30, 20],
    ["clocks that run apart the other way", 15, 30, -20],
  ])("is never wrong by more than it says: %s", (_, leastMs, jitterMs, skewPpm) => {
    const random = seeded(1);
    const delay = () => leastMs + jitterMs * random() ** 4;
    const errors = probe({ offsetMs: -3_600_000, skewPpm, outMs: delay, backMs: delay, probes: 400 });
    for (const { claimedMs, trueMs } of errors) expect(trueMs).toBeLessThanOrEqual(claimedMs);
    const last = errors.at(-1)!;
    expect(last.claimedMs).toBeLessThan(leastMs + 0.8);
    // Both ways are as fast at best, so the middle is right to a fraction of the bound.
    expect(last.trueMs).toBeLessThan(0.6);
  });

  it("says so when one way is slower, and covers it", () => {
    const errors = probe({ offsetMs: 5, skewPpm: 0, outMs: () => 30, backMs: () => 2, probes: 100 });
    const { claimedMs, trueMs } = errors.at(-1)!;
    expect(trueMs).toBeCloseTo(14, 1);
    expect(claimedMs).toBeCloseTo(16, 1);
  });

  it("begins anew when a clock was set", () => {
    const offset = new ClockOffset(0.04);
    for (let n = 0; n < 10; n++) offset.add(n * 500, n * 500 + 1, n * 500 + 2);
    offset.add(5_000, 65_001, 5_002);
    expect(offset.at(5_002)?.ms).toBeCloseTo(60_000, 6);
  });

  it("ignores a reply from before its probe", () => {
    const offset = new ClockOffset(0.04);
    offset.add(10, 0, 9);
    offset.add(Number.NaN, 0, 9);
    expect(offset.at(10)).toBeNull();
  });
});

describe("the clock of a capture", () => {
  const rateHz = 48_000;
  const atMs = (frame: number) => EPOCH_MS + (frame * 1000) / rateHz;

  it("is unknown until frames have been captured and sent", () => {
    const clock = new CaptureClock(rateHz);
    expect(clock.read("main")).toBeNull();
    clock.add(128, atMs(0), atMs(130));
    expect(clock.read("main")).toBeNull();
  });

  it("follows the browser's timestamps, which come late now and then but never early", () => {
    const random = seeded(7);
    const clock = new CaptureClock(rateHz);
    for (let frame = 0; frame < 5 * rateHz; frame += 128) {
      const noiseMs = random() ** 8 * 3;
      const nowMs = atMs(frame + 128) + 0.1 + noiseMs;
      clock.add(128, atMs(frame) + noiseMs, nowMs);
      clock.sent("main", frame, nowMs + 0.05);
      // An encoder's packet is of earlier frames.
      if (frame >= 640) clock.sent("opus", frame - 640, nowMs + 0.05);
    }
    const read = clock.read("main")!;
    expect(Math.abs(read.captured.ms - atMs(read.frame))).toBeLessThan(0.05);
    expect(read.captured.errorMs).toBeLessThan(0.05);
    expect(read.blockMs).toBeCloseTo(128 / 48 + 0.1, 1);
    expect(read.sendMs).toBeCloseTo(128 / 48 + 0.15, 1);
    expect(clock.read("opus")?.sendMs).toBeCloseTo((128 + 640) / 48 + 0.15, 1);
    expect(clock.read("s16")).toBeNull();
  });

  it("goes by the most prompt of several blocks that an audio graph hands over at once", () => {
    const clock = new CaptureClock(rateHz);
    for (let burst = 0; burst < 400; burst++) {
      const nowMs = atMs((burst + 1) * 512);
      for (let block = 0; block < 4; block++) clock.add(128, null, nowMs);
      clock.sent("main", burst * 512, nowMs);
    }
    const read = clock.read("main")!;
    expect(read.captured.ms).toBeCloseTo(atMs(read.frame), 2);
    expect(read.sendMs).toBeCloseTo(512 / 48, 2);
  });

  it("moves at once when frames are lost, though the browser takes seconds to say so", () => {
    const clock = new CaptureClock(rateHz);
    const capture = (from: number, seconds: number, lostMs: number, saidMs: (passedMs: number) => number) => {
      for (let frame = from; frame < from + seconds * rateHz; frame += 128) {
        const saidAtMs = atMs(frame) + saidMs(((frame - from) * 1000) / rateHz);
        clock.add(128, saidAtMs, atMs(frame + 128) + lostMs + 0.2);
        clock.sent("main", frame, atMs(frame + 128) + lostMs + 0.2);
      }
    };
    capture(0, 10, 0, () => 0);
    const lostMs = 20;
    const before = clock.read("main")!.lineMs;
    capture(10 * rateHz, 0.192, lostMs, (passedMs) => Math.min(lostMs, passedMs / 150));
    const { frame, captured, lineMs } = clock.read("main")!;
    expect(Math.abs(captured.ms - atMs(frame) - lostMs)).toBeLessThan(0.1);
    expect(lineMs - before).toBeCloseTo(lostMs, 0);
    expect(captured.errorMs, "it has just moved").toBeGreaterThan(lostMs - 0.1);
    capture(10.192 * rateHz, 2.4, lostMs, () => lostMs);
    expect(clock.read("main")!.captured.errorMs).toBeLessThan(0.1);
  });

  it("keeps media time and forgets the old clock with another source", () => {
    const clock = new CaptureClock(rateHz);
    for (let frame = 0; frame < rateHz; frame += 128) clock.add(128, atMs(frame), atMs(frame + 128));
    clock.restart();
    expect(clock.read("main")).toBeNull();
    const late = 10_000;
    for (let frame = rateHz; frame < 2 * rateHz; frame += 128) {
      clock.add(128, atMs(frame) + late, atMs(frame + 128) + late);
      clock.sent("main", frame, atMs(frame + 128) + late);
    }
    const read = clock.read("main")!;
    expect(read.frame).toBe(2 * rateHz);
    expect(read.captured.ms).toBeCloseTo(atMs(read.frame) + late, 2);
  });

  it("goes on by what passes uncaptured", () => {
    const clock = new CaptureClock(rateHz);
    const capture = (from: number) => {
      for (let frame = from; frame < from + rateHz; frame += 128) {
        clock.add(128, atMs(frame), atMs(frame + 128));
        clock.sent("main", frame, atMs(frame + 128));
      }
    };
    capture(0);
    clock.restart();
    clock.pass(14_400);
    capture(rateHz + 14_400);
    const read = clock.read("main")!;
    expect(read.frame).toBe(2 * rateHz + 14_400);
    expect(read.captured.ms).toBeCloseTo(atMs(read.frame), 2);
  });
});

describe("recent values", () => {
  it("are unknown at first, then their middle and their range", () => {
    const recent = new Recent(10);
    expect([recent.middle(), recent.least()]).toEqual([null, null]);
    for (let n = 0; n < 100; n++) recent.add(n);
    expect(recent.middle()).toEqual({ ms: 95, errorMs: 3.5 });
    expect(recent.middle(3)).toEqual({ ms: 98, errorMs: 3.5 });
    expect(recent.middle(1)).toEqual({ ms: 99, errorMs: 4 });
    expect([recent.least(), recent.least(3)]).toEqual([90, 97]);
    recent.clear();
    expect(recent.middle()).toBeNull();
  });
});

describe("recent counts", () => {
  const add = (
    counts: RecentCounts<{ received: number; lost: number }>,
    s: number,
    received: number,
    lost: number,
  ) => counts.add(s * 1000, { received, lost }, ["received"]);

  it("cover the last seconds and no more", () => {
    const counts = new RecentCounts<{ received: number; lost: number }>(4_000);
    expect(add(counts, 0, 0, 0)).toBeNull();
    expect(add(counts, 1, 100, 50)).toEqual({ periodMs: 1_000, grown: { received: 100, lost: 50 } });
    for (let s = 2; s < 20; s++) add(counts, s, s * 100, 50);
    expect(add(counts, 20, 2_000, 50)).toEqual({ periodMs: 4_000, grown: { received: 400, lost: 0 } });
  });

  it("take what was lost and came for not lost", () => {
    const counts = new RecentCounts<{ received: number; lost: number }>(4_000);
    add(counts, 0, 0, 5);
    expect(add(counts, 1, 10, 3)?.grown).toEqual({ received: 10, lost: 0 });
  });

  it("begin anew when their owner does", () => {
    const counts = new RecentCounts<{ received: number; lost: number }>(4_000);
    add(counts, 0, 1_000, 0);
    expect(add(counts, 1, 10, 0)).toBeNull();
    expect(add(counts, 2, 20, 1)?.grown).toEqual({ received: 10, lost: 1 });
  });
});
