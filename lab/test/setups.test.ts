import { expect, it } from "vitest";
import type { PageTrace } from "../src/antiphon.js";
import { delayQuantile, delaysMs, delaysOfSent, firstArrivals } from "../src/setups.js";

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

it("what never came is later than all that did", () => {
  const delays = { arrivedMs: [4, 1, 3, 2], missing: 1 };
  expect([0, 0.5, 0.75].map((p) => delayQuantile(delays, p))).toEqual([1, 3, 4]);
  expect(delayQuantile(delays, 0.8)).toBe(Number.POSITIVE_INFINITY);
  expect(delayQuantile({ arrivedMs: [], missing: 2 }, 0)).toBe(Number.POSITIVE_INFINITY);
  expect(delayQuantile({ arrivedMs: [5], missing: 0 }, 0.99)).toBe(5);
  expect(delayQuantile({ arrivedMs: [], missing: 0 }, 0.5)).toBeNull();
});
