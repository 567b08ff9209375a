import { createContext, runInContext } from "node:vm";
import { expect, it } from "vitest";
import { answerOf, keep, type PageTrace, readTrace } from "../src/antiphon.js";
import type { Browser } from "../src/browsers.js";
import type { DeviceSummary, Passage, Rig } from "../src/rig.js";
import {
  type Counters,
  concealment,
  counted,
  delayQuantile,
  delaysMs,
  delaysOfSent,
  firstArrivals,
  measureRoom,
} from "../src/setups.js";

/** Sends a packet of 128 frames every 100 ms, for 3 s. */
const sender: PageTrace = {
  version: 1,
  captured: { timeMs: [], frames: [] },
  sent: { timeMs: [], sequence: [], firstFrame: [] },
  received: { timeMs: [], sequence: [], firstFrame: [], peer: [], isCopy: [] },
  dropped: 0,
};
const receiver: PageTrace = structuredClone(sender);
for (let n = 0; n <= 30; n++) {
  sender.sent.timeMs.push(100 * n);
  sender.sent.sequence.push(n);
  sender.sent.firstFrame.push(128 * n);
  // Every fifth is lost; of those, every second is made up for by the copy in the next one.
  if (n % 5 !== 4) arrive(n, 100 * n + 10, false);
  if (n % 10 === 5) arrive(n - 1, 100 * n + 10, true);
}

function arrive(n: number, timeMs: number, isCopy: boolean): void {
  const { received } = receiver;
  received.timeMs.push(timeMs);
  received.sequence.push(n);
  received.firstFrame.push(128 * n);
  received.peer.push("B");
  received.isCopy.push(isCopy);
}

it("a copy is not the packet, unless it is asked for", () => {
  expect(firstArrivals(receiver).has(128 * 4)).toBe(false);
  expect(firstArrivals(receiver, { copies: true }).get(128 * 4)).toBe(510);
  expect(new Set(delaysMs(sender, receiver))).toEqual(new Set([10]));
});

it("what was sent while both traces ran has arrived, or is missing", () => {
  // From 210 ms to 2 s: packets 3 to 20, of which 4, 9, 14 and 19 are lost and 4 and 14 made up for.
  const itself = delaysOfSent(sender, receiver, { copies: false });
  expect(itself).toEqual({ arrivedMs: Array(14).fill(10), missing: 4 });
  const copied = delaysOfSent(sender, receiver, { copies: true });
  expect(copied.missing).toBe(2);
  expect(copied.arrivedMs.filter((ms) => ms === 110)).toHaveLength(2);
});

it("of what was sent to a page where nothing came all is missing", () => {
  // It captures a block every 20 ms from 500 ms on: packets from 700 ms to 2 s count.
  const captured = {
    timeMs: Array.from({ length: 125 }, (_, n) => 500 + 20 * n),
    frames: Array(125).fill(960),
  };
  const deaf = { ...receiver, received: structuredClone(sender.received), captured };
  expect(delaysOfSent(sender, deaf, { copies: true })).toEqual({ arrivedMs: [], missing: 14 });
  const still = structuredClone({ ...sender, sent: sender.received });
  expect(delaysOfSent(sender, still, { copies: true })).toEqual({ arrivedMs: [], missing: 19 });
});

it("does not read a trace that had no room for all", async () => {
  const page = { evaluate: async () => JSON.stringify({ ...sender, dropped: 3 }) } as unknown as Browser;
  await expect(readTrace(page, 1)).rejects.toThrow("no room for 3 events");
});

it("what never came is later than all that did", () => {
  const delays = { arrivedMs: [4, 1, 3, 2], missing: 1 };
  expect([0, 0.5, 0.75].map((p) => delayQuantile(delays, p))).toEqual([1, 3, 4]);
  expect(delayQuantile(delays, 0.8)).toBe(Number.POSITIVE_INFINITY);
  expect(delayQuantile({ arrivedMs: [], missing: 2 }, 0)).toBe(Number.POSITIVE_INFINITY);
  expect(delayQuantile({ arrivedMs: [5], missing: 0 }, 0.99)).toBe(5);
  expect(delayQuantile({ arrivedMs: [], missing: 0 }, 0.5)).toBeNull();
});

it("counts of a page only while pulses and tone sound, by the device's clock", () => {
  const stage = { leadSeconds: 2.5, pulseSeconds: 3, steadySeconds: 1 };
  const said = (playedFrames: number) => ({ playedFrames, lostPackets: null, bufferFrames: 64 }) as Counters;
  const kept = Array.from({ length: 12 }, (_, n) => ({ atMs: 1_000 * n, said: said(100 * n) }));
  expect(counted(stage, { began_ms: 1_000 }, kept)).toEqual({ ...said(400), seconds: 4 });
  expect(counted(stage, { began_ms: 1_000 }, [])).toBeNull();
  // One that was stuck when the pulses began, and one that died.
  for (const [beganMs, said] of [
    [-10_000, kept],
    [1_000, null],
  ] as const)
    expect(counted(stage, { began_ms: beganMs }, said)).toMatchObject({ playedFrames: 0, seconds: 4 });
});

it("what a stream that ran dry did not count was concealed, but not what an output slipped by", () => {
  const of = (playedFrames: number | null, concealedFrames: number, seconds = 10) =>
    concealment({ playedFrames, concealedFrames, seconds });
  expect(of(479_000, 1_000)).toEqual({ frames: 1_000, of: 480_000 });
  expect(of(475_000, 1_000)).toEqual({ frames: 1_000, of: 476_000 });
  expect(of(192_000, 48_000)).toEqual({ frames: 288_000, of: 480_000 });
  expect(of(0, 0)).toEqual({ frames: 480_000, of: 480_000 });
  // Of a short time what the page has not published yet is more.
  expect(of(93_000, 0, 2)).toEqual({ frames: 0, of: 93_000 });
  expect(of(null, 0)).toBeNull();
  expect(concealment({ playedFrames: 480_000, concealedFrames: 0, seconds: 10 }, 2)).toEqual({
    frames: 480_000,
    of: 960_000,
  });
});

it("a page keeps what it counts until it is asked, and nothing if it counts nothing", async () => {
  const keptBy = async (window: object) => {
    const context = createContext({ window, Date, setInterval, clearInterval });
    const evaluate = async (fn: unknown, ...args: unknown[]) =>
      runInContext(`(${fn})(...${JSON.stringify(args)})`, context);
    const handOver = await keep({ evaluate } as Browser, { everyMs: 5 });
    await new Promise((resolve) => setTimeout(resolve, 50));
    return (await handOver()).map(({ said }) => said);
  };
  let frames = 0;
  expect((await keptBy({ page: () => ({ counters: async () => ++frames }) })).slice(0, 2)).toEqual([1, 2]);
  expect((await keptBy({ antiphon: { stats: () => ++frames } })).length).toBeGreaterThan(0);
  expect(await keptBy({ page: () => ({}) })).toEqual([]);
});

it("a page that dies once sound has flowed is the worst figure, no failure", async () => {
  const dies = {
    version: "1",
    errors: [],
    evaluate: () => Promise.reject(new Error("Target crashed\n  at")),
  };
  const silence = [new Float32Array(48_000), new Float32Array(48_000)];
  const summary = { began_ms: Date.now() } as DeviceSummary;
  const rig = {
    favourSound: () => undefined,
    pass: async ({ hears }: Passage) => ({ heard: hears.map(() => silence), summary }),
  } as unknown as Rig;
  const lengths = { settleSeconds: 0, leadSeconds: 0.1, pulseSeconds: 0.5, steadySeconds: 0.2 };
  const pair = [dies, dies] as unknown as [Browser, Browser];
  const { directions, troubles } = await measureRoom({ rig, parameters: {}, ...lengths }, pair);
  expect(new Set(troubles)).toEqual(new Set(["Target crashed"]));
  for (const { hearing, counters, report, budget, own } of directions) {
    expect(hearing.missed).toBe(hearing.hits.length);
    expect(concealment(counters!)).toEqual({ frames: 0.7 * 48_000, of: 0.7 * 48_000 });
    expect([report.quantumFrames, budget, own]).toEqual([null, null, []]);
  }
});

it("does not wait for ever for what a page says", async () => {
  const troubles: string[] = [];
  expect(await answerOf(new Promise(() => undefined), troubles, 0.01)).toBeNull();
  expect(await answerOf(Promise.resolve(1), troubles)).toBe(1);
  expect(troubles).toEqual(["a page said nothing for 0.01 s"]);
});
