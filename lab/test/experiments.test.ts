import { expect, it } from "vitest";
import { offScheduleMs } from "../src/experiments/ifdv.js";
import { most } from "../src/experiments/peers.js";
import { pointsOf } from "../src/experiments/server.js";

it("draws the server's cost over the number of participants, one point for all sessions", () => {
  const sessions = [
    [2, 0.1],
    [20, 0.5],
    [8, 0.2],
    [2, 0.3],
    [8, 0.25],
    [2, 0.125],
  ] as const;
  expect(pointsOf(sessions.map(([participants, cpuShare]) => ({ participants, cpuShare })))).toEqual([
    { x: 2, y: 12.5 },
    { x: 8, y: 22.5 },
    { x: 20, y: 50 },
  ]);
});

it("says that so many peers had no late packet only if none had in any session", () => {
  const of = (transport: string, count: number, latePackets: number) => ({
    transport,
    peers: count,
    latePackets,
  });
  const measured = [
    of("port", 2, 0),
    of("port", 5, 0),
    of("port", 5, 1),
    of("port", 2, 0),
    of("shared", 8, 0),
  ];
  expect(most(measured, "port")).toBe(2);
  expect(most(measured, "shared")).toBe(8);
  expect(most([of("port", 3, 1)], "port")).toBeNull();
});

it("tells how far packets are off an even schedule, not how far they are from each other", () => {
  const variations = (...ms: number[]) => ms.map((variationMs) => ({ variationMs }));
  // Bursts of three packets of 2 ms: each burst in time, its packets 4, 2 and 0 ms early.
  const burst = [4, -2, -2];
  expect(offScheduleMs(variations(...burst, ...burst, ...burst))).toEqual([2, 0, -2, 2, 0, -2, 2, 0, -2]);
  expect(offScheduleMs([])).toEqual([]);
});
