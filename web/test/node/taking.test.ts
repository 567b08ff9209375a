import { expect, it } from "vitest";
import { Mixing } from "../../src/main/mixing";
import { listenOf, type Taken, takesRelayed, wantsDirect } from "../../src/main/taking";

const SETTINGS = { bits: 24, packet: 64 } as const;

function taken(id: string, number: number, change: Partial<Taken["participant"]> = {}): Taken {
  const strip = { gain: 0.5, pan: -1, muted: false, mutedByOwner: false, solo: false };
  const participant = { id, present: true, pin: "auto", ...strip, ...change } as const;
  return { number, asked: "forwarded", isReached: true, participant };
}

/** In which these are heard, or are about to be. */
function mixingOf(phase: "entering" | "held up" | "mixed", ...ids: string[]): Mixing {
  const mixing = new Mixing();
  for (const nowMs of [0, phase === "held up" ? 10_000 : 1_000])
    mixing.look(new Set(ids), {
      nowMs,
      mixPlays: phase === "mixed",
      settleMs: 500,
      isForwarded: () => true,
      playedFrames: () => 0,
    });
  return mixing;
}

it("takes each as it is asked for, and forwarded until it is heard in the mix", () => {
  const [a, b, c] = [taken("a", 1), taken("b", 2, { mutedByOwner: true }), taken("c", 3)];
  c.asked = "nothing";
  const all = [a, b, c];
  expect(listenOf(all, new Mixing(), SETTINGS)).toMatchObject({ forward: [1, 2], mix: null });
  const sources = [{ stream: 2, gain: 0.5, pan: -1, muted: true }];
  const mix = { format: 24, packet_frames: 64, sources };
  expect(listenOf(all, mixingOf("entering", "b"), SETTINGS)).toMatchObject({ forward: [1, 2], mix });
  const listen = listenOf(all, mixingOf("mixed", "b"), SETTINGS);
  expect(listen).toMatchObject({ forward: [1], mix });
  expect([1, 2, 3, null].map((number) => takesRelayed(listen, number))).toEqual([true, true, false, false]);
});

it("takes a number once, for the one who is there: who has not returned has that of before a restart", () => {
  const [gone, here] = [taken("gone", 1, { present: false }), taken("here", 1, { gain: 1 })];
  for (const all of [
    [gone, here],
    [here, gone],
  ]) {
    const { forward, mix } = listenOf(all, mixingOf("entering", "gone", "here"), SETTINGS);
    expect(forward).toEqual([1]);
    expect(mix?.sources).toEqual([{ stream: 1, gain: 1, pan: -1, muted: false }]);
  }
  // One who is away keeps it: the sound need not be affected.
  expect(listenOf([gone], new Mixing(), SETTINGS).forward).toEqual([1]);
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
    const peer = { ...taken("a", 1, { pin }), asked, isReached };
    expect(wantsDirect(peer, new Mixing()), JSON.stringify({ pin, asked, isReached })).toBe(wanted);
  }
  for (const pin of ["auto", "mix"] as const) {
    expect(wantsDirect(taken("a", 1, { pin }), mixingOf("entering", "a"))).toBe(true);
    expect(wantsDirect(taken("a", 1, { pin }), mixingOf("mixed", "a"))).toBe(false);
  }
  // One that sends directly alone, for want of room, would never come into the mix.
  expect(wantsDirect(taken("a", 1, { pin: "mix" }), mixingOf("held up", "a"))).toBe(false);
  expect(wantsDirect(taken("a", 1), mixingOf("held up", "a"))).toBe(true);
  // It leaves the mix only when it is heard directly.
  expect(wantsDirect(taken("a", 1, { pin: "direct" }), mixingOf("mixed", "a"))).toBe(true);
});
