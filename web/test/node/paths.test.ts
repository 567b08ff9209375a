import { beforeEach, expect, it } from "vitest";
import {
  type ListenerObservation,
  Paths,
  type SenderObservation,
  type Sending,
} from "../../src/shared/engine";
import { load } from "./golden";

let paths: Paths;
beforeEach(() => {
  paths = new Paths(load().module);
});

const CALM: SenderObservation = {
  elapsedMs: 500,
  pin: "auto",
  isDirectOpen: true,
  isRelayOpen: true,
  directLostShare: 0,
  relayLostShare: null,
  direct: { isShort: false, isAnswered: true },
  relay: { isShort: false, isAnswered: true },
  relayListeners: 1,
};
const SHORT: SenderObservation = { ...CALM, direct: { isShort: true, isAnswered: true } };
/** A path is short if it is so twice in a row, and lives. */
const shorten = (sending: Sending | null, seen: SenderObservation) =>
  [sending?.review(seen), sending?.review(seen)][1];
const BOTH = { direct: true, relay: true };
const DIRECT = { direct: true, relay: false };
const RELAY = { direct: false, relay: true };

it("each listener has a choice of its own, and a new one begins with both paths", () => {
  const [one, other] = [paths.add(), paths.add()];
  expect(shorten(one, SHORT)).toEqual(DIRECT);
  expect(other?.review(CALM)).toEqual(BOTH);
  expect(one?.review(CALM)).toEqual(DIRECT);
  one?.close();
  // 62 slots were never used; the next after them is the one that was freed.
  const rest = Array.from({ length: 62 }, () => paths.add());
  expect(rest.every((sending) => sending !== null)).toBe(true);
  expect(paths.add()?.review(CALM)).toEqual(BOTH);
  expect(paths.add()).toBeNull();
});

it("says what is seen in the engine's words", () => {
  const dead = { isShort: true, isAnswered: false };
  const many = { relayListeners: 2 };
  const cases: [Partial<SenderObservation>, typeof BOTH][] = [
    [{ directLostShare: 0.2, relayLostShare: 0.1 }, RELAY],
    [{ directLostShare: 0.1, relayLostShare: 0.2 }, DIRECT],
    [many, RELAY],
    [{ ...many, direct: dead }, BOTH],
    [{ ...many, direct: CALM.direct, relay: dead }, BOTH],
    [{ ...many, direct: CALM.direct, relay: SHORT.direct }, DIRECT],
    [{ isDirectOpen: false }, RELAY],
    [{ isRelayOpen: false, relayListeners: 2 }, DIRECT],
    [{ relayListeners: 0 }, DIRECT],
    [{ pin: "direct", relayListeners: 2 }, DIRECT],
    [{ pin: "relay" }, RELAY],
    [{ pin: "mix" }, RELAY],
    [
      { isDirectOpen: false, isRelayOpen: false },
      { direct: false, relay: false },
    ],
  ];
  for (const [seen, route] of cases) {
    expect(shorten(new Paths(load().module).add(), { ...SHORT, ...seen })).toEqual(route);
  }
});

it("a listener without room takes a mix, and every stream again after 30 s", () => {
  const full: ListenerObservation = {
    elapsedMs: 500,
    pin: "auto",
    isRelayOpen: true,
    streams: 2,
    forwarded: 375,
    aged: 10,
  };
  const asked = (count: number, seen: ListenerObservation) =>
    Array.from({ length: count }, () => paths.listen(seen));
  expect(asked(4, full)).toEqual(["forwarded", "forwarded", "forwarded", "mixed"]);
  expect(new Set(asked(59, full))).toEqual(new Set(["mixed"]));
  expect(paths.listen(full)).toBe("forwarded");
  expect(paths.listen({ ...full, pin: "mix" })).toBe("mixed");
  expect(paths.listen({ ...full, pin: "direct" })).toBe("nothing");
  expect(paths.listen({ ...full, isRelayOpen: false })).toBe("nothing");
});
