import { expect, it } from "vitest";
import { listenOf, type Taken, takesRelayed, wantsDirect } from "../../src/main/taking";
import { Mixing } from "../../src/shared/engine";
import { load } from "./golden";

const SETTINGS = { bits: 24, packet: 64 } as const;

/** Its own stream is its number and 100. */
function taken(number: number, change: Partial<Taken["participant"]> = {}): Taken {
  const strip = { gain: 0.5, pan: -1, muted: false, mutedByOwner: false, solo: false };
  const participant = { pin: "auto", ...strip, ...change } as const;
  return { number, stream: number + 100, asked: "forwarded", isReached: true, participant };
}

/** In which these are heard, or are about to be. */
function mixingOf(phase: "entering" | "held up" | "mixed", ...numbers: number[]): Mixing {
  const mixing = new Mixing(load().module);
  const seen = numbers.map((number) => ({
    stream: number + 100,
    isWanted: true,
    isForwarded: true,
    playedFrames: 0,
  }));
  for (const elapsedMs of [0, phase === "held up" ? 10_000 : 1_000]) {
    const playedFrames = phase === "mixed" ? 1 + elapsedMs : 0;
    mixing.review({ elapsedMs, playedFrames, settleMs: 500 }, seen);
  }
  return mixing;
}

/** In which nobody is. */
const NO_MIX = mixingOf("entering");

it("takes each as it is asked for, and forwarded until it is heard in the mix", () => {
  const [a, b, c] = [taken(1), taken(2, { mutedByOwner: true }), taken(3)];
  c.asked = "nothing";
  const all = [a, b, c];
  expect(listenOf(all, NO_MIX, SETTINGS)).toMatchObject({ forward: [1, 2], mix: null });
  const sources = [{ stream: 2, gain: 0.5, pan: -1, muted: true }];
  const mix = { format: 24, packet_frames: 64, sources };
  expect(listenOf(all, mixingOf("entering", 2), SETTINGS)).toMatchObject({ forward: [1, 2], mix });
  const listen = listenOf(all, mixingOf("mixed", 2), SETTINGS);
  expect(listen).toMatchObject({ forward: [1], mix });
  expect([1, 2, 3].map((number) => takesRelayed(listen, number))).toEqual([true, true, false]);
});

it("takes nothing by the relay of whom the room does not know", () => {
  const all = [{ ...taken(1), number: null }, taken(2)];
  const { forward, mix } = listenOf(all, mixingOf("entering", 1, 2), SETTINGS);
  expect([forward, mix?.sources.map(({ stream }) => stream)]).toEqual([[2], [2]]);
});

it("says at once that a peer is wanted by the server alone, and of one heard in the mix, once it is", () => {
  const cases: [Taken["participant"]["pin"], Taken["asked"], isReached: boolean, wanted: boolean][] = [
    ["auto", "mixed", true, true],
    ["relay", "forwarded", false, false],
    ["relay", "forwarded", true, false],
    // The relay is asked first.
    ["relay", null, true, true],
    ["relay", "nothing", true, true],
    // A peer that is there is heard directly until the mix holds it.
    ["mix", "mixed", false, false],
    ["mix", "mixed", true, true],
  ];
  for (const [pin, asked, isReached, wanted] of cases) {
    const peer = { ...taken(1, { pin }), asked, isReached };
    expect(wantsDirect(peer, NO_MIX), JSON.stringify({ pin, asked, isReached })).toBe(wanted);
  }
  for (const pin of ["auto", "mix"] as const) {
    expect(wantsDirect(taken(1, { pin }), mixingOf("entering", 1))).toBe(true);
    expect(wantsDirect(taken(1, { pin }), mixingOf("mixed", 1))).toBe(false);
  }
  // One that sends directly alone, for want of room, would never come into the mix.
  expect(wantsDirect(taken(1, { pin: "mix" }), mixingOf("held up", 1))).toBe(false);
  expect(wantsDirect(taken(1), mixingOf("held up", 1))).toBe(true);
  // It leaves the mix only when it is heard directly.
  expect(wantsDirect(taken(1, { pin: "direct" }), mixingOf("mixed", 1))).toBe(true);
});
