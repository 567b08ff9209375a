import { expect, it } from "vitest";
import { LostHere, ownFigures, peerFigures } from "../../src/main/ui/figures";
import { REPORT_PERIOD_MS } from "../../src/shared/heard";
import type { PeerStats, Stats } from "../../src/shared/stats";

it("says over which time each figure of a way was counted", () => {
  const explanation = peerFigures(null, null, null, null).find(
    ({ label }) => label === "Direct",
  )?.explanation;
  expect(explanation).toContain("came that way first in the last 10 seconds");
  expect(explanation).toContain(`never came that way in the last ${REPORT_PERIOD_MS / 1000} seconds`);
});

it("says that what was not sent in time is counted since the sound began, which may be long before one joins", () => {
  const sender = { overrunFrames: 480, capturePath: "track" };
  const stats = { sampleRateHz: 48_000, channels: 1, sender } as unknown as Stats;
  const figure = ownFigures(stats).find(({ label }) => label === "Not sent in time");
  expect(figure).toMatchObject({ value: "10.0\u202fms", note: "since the sound began" });
});

it("shows of who only listens nothing about their sound", () => {
  const labels = (receivedPackets: number) => {
    const peer = { receivedPackets, lanes: [], driftErrorPpm: null } as unknown as PeerStats;
    return peerFigures(peer, null, null, null).map(({ label }) => label);
  };
  expect(labels(0)).toEqual(["Round trip", "Direct", "By server", "Lanes", "They get"]);
  expect(labels(1)).toContain("Filled in");
});

it("tells a computer that loses sound from a clock that is slow", () => {
  const note = (driftPpm: number, driftErrorPpm: number) => {
    const peer = { receivedPackets: 1, lanes: [], driftPpm, driftErrorPpm, isResampled: true };
    const figures = peerFigures(peer as unknown as PeerStats, null, null, null);
    return figures.find(({ label }) => label === "Clocks")?.note;
  };
  expect(note(-300, 20)).toBe("± 20, resampled");
  expect(note(-430, 50)).toBe("± 50, resampled");
  expect(note(-950, 50)).toBe("± 50: sound is lost at their end");
  // What is lost by chance is known no better.
  expect(note(-1300, 300)).toBe("± 300: sound is lost at their end");
  expect(note(-500, 300)).toBe("being measured");
  expect(note(950, 50)).toBe("± 50, resampled");
});

it("takes what was lost while a tab was hidden for nothing that is lost now", () => {
  const lost = new LostHere();
  const read = (timeMs: number, overrunFrames: number) => {
    const stats = { timeMs, sender: { overrunFrames } } as unknown as Stats;
    return lost.add(stats, { droppedBacklog: 0 } as PeerStats)?.overrun ?? null;
  };
  expect(read(0, 0)).toBeNull();
  expect(read(500, 10)).toBe(10);
  expect(read(600_000, 5_000)).toBeNull();
  expect(read(600_500, 5_000)).toBeNull();
  expect(read(604_000, 5_020)).toBe(20);
});
