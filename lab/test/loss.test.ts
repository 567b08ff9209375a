import { expect, it } from "vitest";
import { gapWords } from "../src/experiments/loss.js";
import { emulatorDoubts } from "../src/network.js";

const heard = (direction: string, ...hardGaps: [from: number, frames: number][]) => ({
  direction,
  quantumFrames: 64,
  steady: {
    frames: 480_000,
    breaks: hardGaps.length,
    hardGaps: hardGaps.map(([from, frames]) => ({ from, frames })),
    silentFrames: 0,
  },
});

it("tells each speaker's hard gaps, and which of them are like the sound system's own", () => {
  const measured = [
    heard("A to B"),
    heard("B to A", [6400, 64], [12_800, 128]),
    heard("B to A", [6401, 64], [64, 64]),
    { ...heard("A to B"), steady: null },
  ];
  expect(gapWords(measured)).toEqual([
    "At B's speaker 0 hard gaps in 10 s of all networks, and 1 of 2 tones not heard.",
    "At A's speaker 4 hard gaps in 20 s of all networks; 75.0 % of them last exactly one quantum, 75.0 % begin on its grid.",
  ]);
});

it("doubts what was measured over an emulator that was late, or lost what it should not have", () => {
  const well = { latenessP99Us: 900, refusedPackets: 0, unreadPackets: 0 };
  expect(emulatorDoubts([well, { ...well, latenessP99Us: null }])).toEqual([]);
  const ill = { latenessP99Us: 4_200, refusedPackets: 1, unreadPackets: 2 };
  expect(emulatorDoubts([well, ill])).toEqual([
    "the network emulator delivered a hundredth of the packets more than 4.2 ms late (more than 1 ms in 1 of 2 directions)",
    "the network emulator lost 3 packets that its model did not",
  ]);
});
