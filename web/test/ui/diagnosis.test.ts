import { describe, expect, it } from "vitest";
import { diagnose, diagnoseMix, heardWords, isHeard, type Way } from "../../src/main/ui/diagnosis";
import type { HeardStats } from "../../src/shared/stats";

const plain = (text: string) => text.replaceAll("\u202f", " ");

const clean: Way = {
  from: "Bob",
  to: null,
  concealedShare: 0,
  lostShare: 0,
  lateShare: 0,
  overrunFrames: 0,
  droppedPackets: 0,
  outputUnderruns: 0,
  isMixed: false,
  isMixBad: false,
  othersHearSenderBadly: null,
  listenerHearsOthersBadly: null,
};
const gaps: Way = { ...clean, concealedShare: 0.02, lostShare: 0.02 };

describe("a diagnosis", () => {
  it("is not made while nobody would hear anything", () => {
    expect(diagnose(clean)).toBeNull();
    expect(diagnose({ ...clean, concealedShare: null, lostShare: null, lateShare: null })).toBeNull();
    expect(diagnose({ ...gaps, concealedShare: 0.005, overrunFrames: 100 })).toBeNull();
    expect(diagnose({ ...clean, outputUnderruns: 2 })).toBeNull();
  });

  it.each<[Partial<Way>, string, string]>([
    [{}, "path", "Packets from Bob to you get lost on the way."],
    [{ lateShare: 0.03 }, "path", "Packets from Bob to you take very different times."],
    [{ overrunFrames: 511, lostShare: 0 }, "microphone", "Bob's sound stops now and then before it is sent."],
    [
      { lostShare: 0, othersHearSenderBadly: true, listenerHearsOthersBadly: true },
      "microphone",
      "Bob's sound stops now and then before it is sent.",
    ],
    [{ overrunFrames: 512 }, "microphone", "Bob's computer is too busy: it loses sound before sending it."],
    [{ droppedPackets: 1 }, "uplink", "Bob's connection cannot carry all that it sends."],
    [{ othersHearSenderBadly: true }, "uplink", "Bob's connection cannot carry all that it sends."],
    [{ othersHearSenderBadly: false }, "path", "Packets from Bob to you get lost on the way."],
    [
      { listenerHearsOthersBadly: true },
      "downlink",
      "Your connection has trouble receiving: it is the same with everyone.",
    ],
    [{ outputUnderruns: 3 }, "output", "Your computer is too busy to play without gaps."],
    [{ outputUnderruns: 2 }, "path", "Packets from Bob to you get lost on the way."],
    [{ outputUnderruns: null }, "path", "Packets from Bob to you get lost on the way."],
    [{ isMixed: true }, "downlink", "The server's mix reaches you with gaps."],
    [{ isMixed: true, lostShare: 0, lateShare: 0.02 }, "downlink", "The server's mix reaches you with gaps."],
    [{ isMixed: true, lostShare: 0.001 }, "uplink", "Bob's sound reaches the server with gaps."],
    [{ lostShare: 0 }, "microphone", "Bob's sound stops now and then before it is sent."],
  ])("%o: %s", (change, where, text) => {
    expect(diagnose({ ...gaps, ...change })).toMatchObject({ where, text });
  });

  it("speaks of the other way round", () => {
    const way = { ...gaps, from: null, to: "Bob" };
    expect(diagnose({ ...way, droppedPackets: 3 })).toEqual({
      where: "uplink",
      text: "Your connection cannot carry all that it sends.",
      advice:
        "A network cable at your end, and Wi-Fi switched off, helps most; fewer channels or bits help too.",
    });
    expect(diagnose({ ...way, outputUnderruns: 3 })?.text).toBe(
      "Bob's computer is too busy to play without gaps.",
    );
  });

  it.each<[Partial<Way>, string, string]>([
    [
      { outputUnderruns: 3 },
      "Close other programs. If that does not help, leave and choose a larger block under Advanced.",
      "Ask Bob to close other programs and, if that does not help, to take a larger block: under Advanced before joining, or in a terminal with --quantum.",
    ],
    [
      { lateShare: 0.03 },
      "Set Buffer to Safe, here: fewer gaps, more delay. A cable instead of Wi-Fi at either end helps, too.",
      "Ask Bob to set Buffer to Safe for you: fewer gaps, more delay. A cable instead of Wi-Fi at either end helps, too.",
    ],
  ])("advises what the one who hears %o can do on this page", (change, ofMe, ofBob) => {
    expect(diagnose({ ...gaps, ...change })?.advice).toBe(ofMe);
    expect(diagnose({ ...gaps, ...change, from: null, to: "Bob" })?.advice).toBe(ofBob);
  });

  it("of a mix in which all have gaps is made once, and blames nobody who does not say it himself", () => {
    const bad = { isMixed: true, concealedShare: 0.02, lostShare: 0, lateShare: 0 };
    const late = { ...bad, lateShare: 0.02 };
    const well = { ...bad, concealedShare: 0.005 };
    const direct = { ...well, isMixed: false };
    const words = (...heard: (typeof bad | null)[]) => diagnoseMix(heard)?.text;
    expect(words(bad, bad, direct, null)).toBe("The server's mix has gaps; it cannot tell from whom.");
    expect(words(late, late)).toBe("The server's mix reaches you with gaps.");
    expect([words(bad), words(bad, well), words(), words(direct, direct)]).toEqual(Array(4).fill(undefined));
    const way = { ...gaps, ...bad, isMixBad: true };
    expect(diagnose(way)).toBeNull();
    expect(diagnose({ ...way, isMixBad: false })?.text).toBe("Bob's sound reaches the server with gaps.");
    expect(diagnose({ ...way, overrunFrames: 512 })?.where).toBe("microphone");
  });

  it("does not take somebody for oneself because of a name", () => {
    expect(diagnose({ ...gaps, from: "you", overrunFrames: 512 })?.text).toBe(
      "You's computer is too busy: it loses sound before sending it.",
    );
  });
});

describe("how they hear you", () => {
  const heard: HeardStats = {
    isMixed: false,
    lostShare: 0.001,
    lateShare: 0,
    concealedShare: 0.002,
    bufferFrames: 384,
    targetFrames: 256,
    spreadFrames: 200,
    outputUnderruns: null,
    periodMs: 4_000,
  };

  it("is said in a sentence", () => {
    const words = (change: Partial<HeardStats>) => plain(heardWords("Bob", { ...heard, ...change }, 48_000));
    expect(words({})).toBe("Bob hears you: 0.2 % filled in, 8.0 ms buffer");
    expect(words({ concealedShare: 0 })).toBe("Bob hears you: no gaps, 8.0 ms buffer");
    expect(words({ concealedShare: 0, outputUnderruns: 3 })).toBe(
      "Bob hears you: their output ran dry 3 times, 8.0 ms buffer",
    );
    expect(words({ outputUnderruns: 1 })).toBe(
      "Bob hears you: 0.2 % filled in, their output ran dry 1 time, 8.0 ms buffer",
    );
    expect(words({ bufferFrames: null })).toBe("Bob hears you: 0.2 % filled in, 5.3 ms buffer");
    expect(words({ isMixed: true })).toBe(
      "Bob hears you in the server's mix: 0.2 % filled in, 8.0 ms buffer",
    );
    expect(words({ concealedShare: null })).toBe("Bob does not hear you yet");
  });

  it.each([
    { selfMuted: true },
    { inputMuted: true },
    { mutedByOwner: true },
    { microphone: "ended" as const },
    { captures: false },
  ])("is of nothing while %o", (change) => {
    const unmuted = { selfMuted: false, inputMuted: false, mutedByOwner: false };
    const state = { ...unmuted, microphone: "on" as const, captures: true };
    expect(isHeard(state)).toBe(true);
    expect(isHeard({ ...state, ...change })).toBe(false);
  });
});
