import { describe, expect, it } from "vitest";
import { split } from "../../src/main/calibration";
import { mouthToEar, type OutputClock } from "../../src/main/mouth-to-ear";
import {
  delayFigure,
  delayNote,
  distanceWords,
  loopBackNote,
  settled,
  waterfall,
} from "../../src/main/ui/delay";
import type { FarEnd } from "../../src/shared/messages";

const plain = (text: string) => text.replaceAll("\u202f", " ");

/** Media frame n was captured at 1,000 + n / 48 ms; context frame n left at 500 + n / 48 ms, rendered 9 ms before. */
const far: FarEnd = {
  isMixed: false,
  lineMs: 1_000,
  lineErrorMs: 0.5,
  offsetErrorMs: 0.4,
  captureMs: 2.7,
  packetMs: 0.3,
  networkMs: 1,
  input: { isCalibrated: false, ms: 0, errorMs: 0 },
  overrunFrames: 0,
  droppedPackets: 0,
};
const output: OutputClock = {
  playedLine: { ms: 500, errorMs: 0.2 },
  renderedLineMs: 491,
  device: { isCalibrated: true, ms: 2, errorMs: 1 },
};
// Frame 48,000 was captured at 2,000 ms, and leaves at 2,020 ms with frame 72,960.
const now = { playhead: 48_000, nextFrame: 72_960, rateHz: 48_000 };

describe("mouth to ear", () => {
  it("is the sum of its stages, and its error that of its parts", () => {
    const delay = mouthToEar(far, output, now);
    expect(delay.ms).toBeCloseTo(22, 6);
    expect(delay.knownMs).toBeCloseTo(22, 6);
    expect(delay.errorMs).toBeCloseTo(0.5 + 0.2 + 1, 6);
    expect(delay.devicesErrorMs).toBeCloseTo(1, 6);
    const stages = delay.stages.map(({ name, ms, source }) => [name, Math.round(ms! * 10) / 10, source]);
    expect(stages).toEqual([
      ["input", 0, "reported"],
      ["capture", 2.7, "measured"],
      ["packet", 0.3, "measured"],
      ["network", 1, "measured"],
      ["buffer", 7, "measured"],
      ["playout", 9, "reported"],
      ["output", 2, "calibrated"],
    ]);
  });

  it("says that the server is on the way of who is heard in its mix", () => {
    const bars = waterfall(mouthToEar({ ...far, isMixed: true }, output, now));
    expect(bars.map(({ label }) => label)).toContain("Network and server");
  });

  it("is at least what is known where a stage is not", () => {
    const delay = mouthToEar({ ...far, input: null }, output, now);
    expect(delay.ms).toBeNull();
    expect(plain(delayFigure(delay))).toBe("> 22.0 ms");
    expect(waterfall(delay)[0]).toMatchObject({
      label: "Microphone and driver",
      value: "–",
      note: "nobody knows",
    });
  });

  it("is as far away as sound comes in it, and at least so far where a stage is unknown", () => {
    const delay = mouthToEar(far, output, now);
    const atLeast = mouthToEar({ ...far, input: null }, output, now);
    expect(distanceWords("them", delay, 5)).toBe("Like hearing them from 8\u202fm away.");
    expect(distanceWords("them", atLeast, 5)).toBe(
      "Like hearing them from at least 8\u202fm away, not counting what a sound card adds.",
    );
    expect(distanceWords("yourself", null, 5)).toBe(
      "Like hearing yourself from 2\u202fm away, not counting both sound cards.",
    );
    expect(distanceWords("them", null, null)).toBeNull();
  });

  it("is shown with its error, once that is small", () => {
    const delay = mouthToEar(far, output, now);
    expect(plain(`${delayFigure(delay)} ${delayNote(delay)}`)).toBe("22.0 ms ± 1.7 ms, mouth to ear");
    expect(settled(delay)).toBe(delay);
    expect(settled({ ...delay, errorMs: 12 })).toBeNull();
    // However much a loop-back leaves open.
    const open = { ...output, device: { ...output.device!, errorMs: 40 } };
    expect(settled(mouthToEar(far, open, now))).toMatchObject({ devicesErrorMs: 40 });
    expect(settled({ ...delay, knownMs: -3 })).toBeNull();
    expect(settled(null)).toBeNull();
  });

  it("says of what a loop-back found that a device's share is assumed, whether halves were made of it or not", () => {
    const found = { excessMs: 12, spreadMs: 1, roundTripMs: 40, atMs: 0 };
    const word = { isCalibrated: false, ms: 0, errorMs: 0 };
    const [whole, halves] = [split(found, null, word), split(found, word, word)];
    expect([whole.input.ms, halves.input.ms]).toEqual([12, 6]);
    for (const { input, output: device } of [whole, halves]) {
      const delay = mouthToEar({ ...far, input }, { ...output, device }, now);
      expect(waterfall(delay)[0]?.note).toBe("measured by loop-back, its share assumed");
      expect(plain(loopBackNote(delay)!)).toContain(`± ${delay.devicesErrorMs.toFixed(1)} ms is what`);
    }
    expect(loopBackNote(mouthToEar(far, { ...output, device: word }, now))).toBeNull();
  });

  it("falls from stage to stage without a gap", () => {
    const bars = waterfall(mouthToEar(far, output, now));
    // Nothing of the input: it has no word of its own.
    expect(bars.map(({ label }) => label)).toEqual([
      "Captured block",
      "Packet",
      "Network",
      "Buffer",
      "Browser's output",
      "Loudspeaker and driver",
    ]);
    for (const [index, bar] of bars.entries()) {
      const before = bars[index - 1];
      expect(bar.fromPercent).toBeCloseTo(before ? before.fromPercent + before.widthPercent : 0, 6);
    }
    const last = bars.at(-1)!;
    expect(last.fromPercent + last.widthPercent).toBeCloseTo(100, 6);
  });

  it("stays within the picture where a loop-back takes something back", () => {
    const delay = mouthToEar(far, { ...output, device: { isCalibrated: true, ms: -2, errorMs: 1 } }, now);
    for (const { fromPercent, widthPercent } of waterfall(delay)) {
      expect(fromPercent).toBeGreaterThanOrEqual(0);
      expect(widthPercent).toBeGreaterThanOrEqual(0);
      expect(fromPercent + widthPercent).toBeLessThanOrEqual(100.000_001);
    }
  });
});
