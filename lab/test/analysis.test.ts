import { describe, expect, it } from "vitest";
import { continuity, listen, quantile, tones } from "../src/analysis.js";
import { goldCode, pulseFrames, type Score, writeScore } from "../src/signal.js";
import type { Take } from "../src/wav.js";

const sampleRateHz = 48_000;
const score = writeScore({ voice: 0, sampleRateHz, pulseSeconds: 4, steadySeconds: 2 });
const otherVoice = writeScore({ voice: 1, sampleRateHz, pulseSeconds: 4, steadySeconds: 2 });

/** The take as a path with this latency would give it back. */
function delayed({ take }: Score, frames: number): Take {
  return take.map((channel) => {
    const heard = new Float32Array(channel.length);
    heard.set(channel.subarray(0, channel.length - frames), frames);
    return heard;
  });
}

function mixed(a: Take, b: Take, gain: number): Take {
  return a.map((channel, side) => channel.map((sample, n) => sample + gain * b[side]![n]!));
}

describe("the test signal", () => {
  it("is exact 16-bit material", () => {
    for (const channel of score.take) expect(channel.every((x) => Number.isInteger(x * 32_768))).toBe(true);
  });

  it("uses codes that correlate with each other as Gold codes do", () => {
    for (const [a, b] of [
      [0, 1],
      [0, 8],
      [7, 31],
    ] as const) {
      const [x, y] = [goldCode(a), goldCode(b)];
      for (let shift = 0; shift < 511; shift++) {
        const sum = x.reduce((total, chip, n) => total + chip * y[(n + shift) % 511]!, 0);
        expect([-33, -1, 31]).toContain(sum);
      }
    }
  });

  it("never plays both sides at once before the steady tone", () => {
    const [left, right] = score.take as [Float32Array, Float32Array];
    expect(left.subarray(0, score.steady.from).every((x, n) => x === 0 || right[n] === 0)).toBe(true);
  });
});

describe("latency", () => {
  it.each([0, 1, 64, 127, 3001, 14_400, 40_000])(
    "of %i frames is read to the frame, at every pulse",
    (frames) => {
      const hearing = listen(delayed(score, frames), score);
      expect(new Set(hearing.hits.map((hit) => hit.latencyFrames))).toEqual(new Set([frames]));
      expect(hearing.missed).toBe(0);
      expect(hearing.crosstalkDb).toBe(-96);
      expect(hearing.steady).toMatchObject({ breaks: 0, silentFrames: 0 });
    },
  );

  it("is read through the other voice at the same level and a quiet echo of itself", () => {
    const heard = mixed(mixed(delayed(score, 700), otherVoice.take, 1), delayed(score, 9000), 0.3);
    const hearing = listen(heard, score);
    expect(new Set(hearing.hits.map((hit) => hit.latencyFrames))).toEqual(new Set([700]));
  });

  it("does not find one voice in the other, nor anything in silence", () => {
    expect(listen(otherVoice.take, score).hits.every((hit) => hit.latencyFrames === null)).toBe(true);
    const silence = score.take.map((channel) => new Float32Array(channel.length));
    expect(listen(silence, score)).toMatchObject({
      missed: score.pulses.length,
      crosstalkDb: null,
      steady: null,
    });
  });

  it("counts a pulse that was not heard as missed and the others as heard", () => {
    const heard = delayed(score, 100);
    const third = score.pulses[2]!;
    heard[third.side]!.fill(0, third.frame + 100, third.frame + 100 + pulseFrames);
    const hearing = listen(heard, score);
    expect(hearing.missed).toBe(1);
    expect(hearing.hits[2]!.latencyFrames).toBeNull();
  });
});

it("crosstalk is the leaked power", () => {
  const [left, right] = delayed(score, 50) as [Float32Array, Float32Array];
  const heard = [left.map((x, n) => x + 0.01 * right[n]!), right];
  const hearing = listen(heard, score);
  const onRight = hearing.hits.filter((hit) => hit.pulse.side === 1).map((hit) => hit.crosstalkDb!);
  expect(quantile(onRight, 0.5)).toBeCloseTo(-40, 1);
});

describe("continuity", () => {
  const step = (2 * Math.PI * 997) / sampleRateHz;
  const tone = (frames: number, at = 0) =>
    Float32Array.from({ length: frames }, (_, n) => Math.round(Math.sin(step * (n + at)) * 8192) / 32_768);

  it("of a whole tone has no break", () => {
    expect(continuity(tone(48_000), step)).toEqual({
      frames: 48_000,
      breaks: 0,
      hardGaps: [],
      silentFrames: 0,
    });
  });

  it.each([16, 32, 64, 128, 512, 1024])("sees %i missing frames", (frames) => {
    const heard = new Float32Array([...tone(10_000), ...tone(10_000, 10_000 + frames)]);
    expect(continuity(heard, step).breaks).toBe(1);
  });

  it("sees a step of more than a quarter of the tone's second difference", () => {
    const jumped = (share: number) => {
      const heard = tone(20_000);
      heard[10_000]! += (8192 / 32_768) * (2 - 2 * Math.cos(step)) * share;
      return continuity(heard, step).breaks;
    };
    // The frame after it is off by nearly twice as much.
    expect([0.1, 0.3].map(jumped)).toEqual([0, 1]);
  });

  it("sees a block played twice, and a block of silence", () => {
    const twice = new Float32Array([...tone(10_000), ...tone(10_000, 10_000 - 128)]);
    expect(continuity(twice, step).breaks).toBe(1);
    const hole = tone(20_000).fill(0, 5000, 5128);
    expect(continuity(hole, step)).toMatchObject({
      breaks: 1,
      hardGaps: [{ from: 5000, frames: 128 }],
      silentFrames: 128,
    });
  });
});

it("a tone that nobody heard is told of beside the breaks of the others", () => {
  const steady = { frames: 96_000, breaks: 3, hardGaps: [], silentFrames: 0 };
  expect(tones([{ steady }, { steady }])).toEqual({ breaks: 6, seconds: 4, unheard: "" });
  expect(tones([{ steady }, { steady: null }])).toEqual({
    breaks: 3,
    seconds: 2,
    unheard: ", and 1 of 2 tones not heard",
  });
});

it("a quantile that falls among what never came is infinite", () => {
  const never = Number.POSITIVE_INFINITY;
  expect([0, 0.5, 0.75].map((p) => quantile([4, never, 1, 3, 2], p))).toEqual([1, 3, 4]);
  expect(quantile([4, never, 1, 3, 2], 0.8)).toBe(never);
  expect(quantile([never, never], 0)).toBe(never);
  expect(quantile([5, never], 0)).toBe(5);
  expect(quantile([], 0.5)).toBeNull();
});
