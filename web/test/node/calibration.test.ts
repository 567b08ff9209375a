import { beforeEach, describe, expect, it, vi } from "vitest";
import {
  agreement,
  type Calibration,
  findPulse,
  loadCalibration,
  pulseShape,
  type Setup,
  split,
  storeCalibration,
} from "../../src/main/calibration";

const rateHz = 48_000;

/** Noise, the same each time, of this peak. */
function noise(frames: number, peak: number): Float32Array {
  let state = 1;
  return Float32Array.from({ length: frames }, () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return (state / 2 ** 31 - 1) * peak;
  });
}

function withPulse(samples: Float32Array, atFrame: number, gain: number): Float32Array {
  for (const [n, sample] of pulseShape(rateHz).entries()) samples[atFrame + n] += sample * gain;
  return samples;
}

describe("a pulse", () => {
  it("resembles itself and nothing else", () => {
    const shape = pulseShape(24_000);
    const chips = Array.from(shape, (sample) => Math.sign(sample));
    for (let shift = 0; shift < 511; shift++) {
      const likeness = chips.reduce((sum, chip, n) => sum + chip * chips[(n + shift) % 511], 0);
      expect(likeness).toBe(shift === 0 ? 511 : -1);
    }
  });

  it.each([44_100, 48_000, 88_200, 96_000])("lasts some 20 ms at %i Hz", (hz) => {
    expect((pulseShape(hz).length * 1000) / hz).toBeCloseTo(22, -1);
  });

  it.each([
    [1, 0],
    [0.02, 0.01],
    [-0.5, 0.1],
  ])("is found to the frame at gain %f in noise of %f", (gain, peak) => {
    const samples = withPulse(noise(rateHz, peak), 20_123, gain);
    const lateMs = findPulse({ samples, startMs: 5_000 }, pulseShape(rateHz), 5_400, rateHz);
    expect(lateMs).toBeCloseTo((20_123 - 19_200) / 48, 6);
  });

  it("is found before its time too, where the browser promises too much", () => {
    const samples = withPulse(noise(rateHz, 0.01), 19_100, 0.5);
    const lateMs = findPulse({ samples, startMs: 0 }, pulseShape(rateHz), 400, rateHz);
    expect(lateMs).toBeCloseTo(-100 / 48, 6);
  });

  it("is not found in silence, in noise, in a tone, or outside of the recording", () => {
    const shape = pulseShape(rateHz);
    const tone = Float32Array.from({ length: rateHz }, (_, n) => Math.sin(n / 10));
    for (const samples of [new Float32Array(rateHz), noise(rateHz, 1), tone])
      expect(findPulse({ samples, startMs: 0 }, shape, 400, rateHz)).toBeNull();
    expect(findPulse({ samples: tone, startMs: 0 }, shape, 5_000, rateHz)).toBeNull();
    expect(findPulse({ samples: tone, startMs: 0 }, shape, -5_000, rateHz)).toBeNull();
  });
});

describe("pulses together", () => {
  it("say their middle and how far they are apart", () => {
    expect(agreement([3, 3.2, 3.1, null, 3.3, 3.1])).toEqual({ excessMs: 3.1, spreadMs: (3.3 - 3) / 2 });
  });

  it("leave out one that is far off, and say nothing where few agree", () => {
    const found = agreement([3, 3.1, 60, 3.1, 3.2, -20]);
    expect(found?.excessMs).toBe(3.1);
    expect(found?.spreadMs).toBeCloseTo(0.1, 6);
    expect(agreement([3, 30, 60, 3.1, 3.2, -20])).toBeNull();
    expect(agreement([3, 3, 3, null, null, null])).toBeNull();
    expect(agreement([null, null, null, null, null, null])).toBeNull();
  });
});

const calibration: Calibration = { excessMs: 6, spreadMs: 0.4, roundTripMs: 20, atMs: 1 };

describe("what a loop-back found", () => {
  const timestamped = { isCalibrated: false, ms: 0, errorMs: 0 };

  it("goes to both sides alike, in doubt by that half, where both say something of themselves", () => {
    const { input, output } = split(calibration, timestamped, timestamped);
    expect(input).toEqual({ isCalibrated: true, ms: 3, errorMs: 3.2 });
    expect(output).toEqual(input);
  });

  it("keeps what the input reported", () => {
    const { input, output } = split(calibration, { ...timestamped, ms: 10 }, timestamped);
    expect(input).toEqual({ isCalibrated: true, ms: 8, errorMs: 2.2 });
    expect(output).toEqual({ isCalibrated: true, ms: -2, errorMs: 2.2 });
    expect(input.ms + output.ms).toBe(calibration.excessMs);
  });

  it("goes to an input of which nobody says anything", () => {
    expect(split(calibration, null, timestamped)).toEqual({
      input: { isCalibrated: true, ms: 6, errorMs: 0.4 },
      output: timestamped,
    });
  });

  it("goes to both sides alike where neither says anything", () => {
    const { input, output } = split(calibration, null, null);
    expect(input).toEqual({ isCalibrated: true, ms: 3, errorMs: 3.2 });
    expect(output).toEqual(input);
  });
});

describe("what is kept", () => {
  const setup: Setup = { input: "a", output: "b", rateHz, quantum: 64, capturePath: "track" };
  const kept = new Map<string, string>();

  beforeEach(() => {
    kept.clear();
    vi.stubGlobal("localStorage", {
      getItem: (key: string) => kept.get(key) ?? null,
      setItem: (key: string, value: string) => kept.set(key, value),
    });
  });

  it("belongs to its devices and settings", () => {
    expect(loadCalibration(setup)).toBeNull();
    storeCalibration(setup, calibration);
    expect(loadCalibration({ ...setup })).toEqual(calibration);
    for (const other of [{ input: "c" }, { output: "c" }, { quantum: 128 }, { capturePath: "worklet" }])
      expect(loadCalibration({ ...setup, ...other })).toBeNull();
    storeCalibration(setup, null);
    expect(loadCalibration(setup)).toBeNull();
  });

  it("is bounded, and the newest stays", () => {
    for (let n = 0; n < 100; n++) storeCalibration({ ...setup, input: `${n}` }, calibration);
    expect(loadCalibration({ ...setup, input: "99" })).toEqual(calibration);
    expect(loadCalibration({ ...setup, input: "0" })).toBeNull();
    expect(JSON.parse([...kept.values()][0]).length).toBe(32);
  });

  it.each(["nonsense", "{}", "[1]", '[["x"]]', "null"])("survives %s in its place", (text) => {
    storeCalibration(setup, calibration);
    const [key] = kept.keys();
    kept.set(key, text);
    expect(loadCalibration(setup)).toBeNull();
    storeCalibration(setup, calibration);
    expect(loadCalibration(setup)).toEqual(calibration);
  });

  it("is refused where it is no calibration", () => {
    storeCalibration(setup, { ...calibration, excessMs: Number.NaN });
    expect(loadCalibration(setup)).toBeNull();
  });
});
