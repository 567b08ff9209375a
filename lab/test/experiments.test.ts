import { expect, it } from "vitest";
import type { PageStats } from "../src/antiphon.js";
import { offScheduleMs } from "../src/experiments/ifdv.js";
import { netem } from "../src/experiments/netem.js";
import { growth, most } from "../src/experiments/peers.js";
import { missingShare, pointsOf } from "../src/experiments/server.js";
import { lookTimes } from "../src/experiments/soak.js";

it("draws the server's cost over the number of participants, one point for all sessions", () => {
  const sessions = [
    [2, 0.1],
    [20, 0.5],
    [8, 0.2],
    [2, 0.3],
    [8, 0.25],
    [2, 0.125],
  ] as const;
  const whole = { missingShare: 0, absent: 0 };
  const measured = sessions.map(([participants, cpuShare]) => ({ participants, cpuShare, ...whole }));
  expect(pointsOf(measured)).toEqual([
    { x: 2, y: 12.5 },
    { x: 8, y: 22.5 },
    { x: 20, y: 50 },
  ]);
  // Who was not there cost nothing.
  for (const trouble of [{ missingShare: 0.2 }, { absent: 1 }]) {
    const less = { participants: 8, cpuShare: 0.1, ...whole, ...trouble };
    expect(pointsOf([...measured, less])[1]).toEqual({ x: 8, y: null });
  }
});

it("misses a participant whom nobody hears", () => {
  const bots = { sent_packets: 2_900, dropped_packets: 100, received_packets: 6_000 };
  expect(missingShare(bots, { perRoom: 3, path: "relay" })).toBe(0);
  expect(missingShare({ ...bots, received_packets: 4_500 }, { perRoom: 3, path: "relay" })).toBe(0.25);
  expect(missingShare({ ...bots, received_packets: 3_000 }, { perRoom: 3, path: "mix" })).toBe(0);
  expect(missingShare({ ...bots, received_packets: 0 }, { perRoom: 3, path: "mix" })).toBe(1);
});

it("looks at the server at least once, and at the end", () => {
  expect(lookTimes(5, 10)).toEqual([5]);
  expect(lookTimes(25, 10)).toEqual([10, 20, 25]);
  expect(lookTimes(30, 10)).toEqual([10, 20, 30]);
});

it("says of the emulator only what was measured", async () => {
  const { plan } = netem;
  const options = {
    quick: true,
    sessions: undefined,
    seconds: undefined,
    configs: undefined,
    setups: undefined,
  };
  const row = { case: "lan", direction: "up", quantity: "loss", residual: 0, ok: true, canTell: true };
  const [virtual, real] = ["virtual", "tun"].map((driver) => ({ driver, rows: [row], stats: {} }));
  const findingsOf = async (...measured: unknown[]) => {
    const { findings, doubts } = await plan(options).conclude(measured);
    return [...findings, ...doubts];
  };
  const result =
    "figures of the emulator are what its model says, within what chance and the driver's own error allow.";
  expect(await findingsOf(virtual, real)).toEqual([`In virtual and real time, all 2 ${result}`]);
  const notReal = ["Not measured in real time.", "the network emulator was not measured in real time"];
  expect(await findingsOf(virtual)).toEqual([`In virtual time, all 1 ${result}`, ...notReal]);
  expect(await findingsOf()).toEqual(expect.arrayContaining(["Not measured in virtual time.", ...notReal]));
  expect(await findingsOf()).toHaveLength(4);
  const way = { latenessP99Us: 80, refusedPackets: 0 };
  const late = { ...real, stats: { lan: { leftToRight: way, rightToLeft: { ...way, refusedPackets: 3 } } } };
  expect((await findingsOf(virtual, late)).at(-1)).toBe(
    "the network emulator lost 3 packets that its model did not",
  );
});

it("says that up to so many peers were clean only if all fewer were, in every session", () => {
  const numbers = [2, 5, 8];
  const of = (...all: [peers: number, late: number][]) => all.map(([peers, late]) => ({ peers, late }));
  const clean = ({ late }: { late: number }) => late === 0;
  expect(most(numbers, of([2, 0], [5, 0], [8, 0]), clean)).toBe(8);
  expect(most(numbers, of([2, 0], [5, 0], [8, 0], [5, 1]), clean)).toBe(2);
  expect(most(numbers, of([2, 0], [8, 0]), clean)).toBe(2);
  expect(most(numbers, of([2, 1], [5, 0]), clean)).toBeNull();
});

it("counts every peer, and how much of the time it was heard", () => {
  const record = (timeMs: number, ...playedFrames: number[]) => {
    const none = { receivedPackets: 0, latePackets: 0, lostPackets: 0, concealedFrames: 0 };
    const peers = playedFrames.map((frames, n) => ({ ...none, id: String(n), playedFrames: frames }));
    return { timeMs, peers } as unknown as PageStats;
  };
  const [before, after] = [record(0, 0, 0), record(2000, 96_000, 48_000)];
  expect(growth(before, after, 2)).toMatchObject({ playedFrames: 144_000, seconds: 2, leastShare: 0.5 });
  expect(growth(before, record(2000, 96_000), 2)).toMatchObject({ playedFrames: 96_000, leastShare: 0 });
  expect(growth(before, after, 3)).toMatchObject({ playedFrames: 144_000, leastShare: 0 });
});

it("tells how far packets are off an even schedule, not how far they are from each other", () => {
  const variations = (...ms: number[]) => ms.map((variationMs) => ({ variationMs }));
  // Bursts of three packets of 2 ms: each burst in time, its packets 4, 2 and 0 ms early.
  const burst = [4, -2, -2];
  expect(offScheduleMs(variations(...burst, ...burst, ...burst))).toEqual([2, 0, -2, 2, 0, -2, 2, 0, -2]);
  expect(offScheduleMs([])).toEqual([]);
});
