import { describe, expect, it } from "vitest";
import { dbToGain, faderToGain, gainToDb, gainToFader } from "../../src/main/ui/decibel";

describe("gain and decibels", () => {
  it("knows the usual points", () => {
    expect(gainToDb(1)).toBe(0);
    expect(gainToDb(0.5)).toBeCloseTo(-6.02, 2);
    expect(gainToDb(2)).toBeCloseTo(6.02, 2);
    expect(dbToGain(-20)).toBeCloseTo(0.1, 10);
    expect(dbToGain(12)).toBeCloseTo(3.981, 3);
  });

  it("takes no level for no sound", () => {
    expect(gainToDb(0)).toBe(Number.NEGATIVE_INFINITY);
    expect(gainToDb(-1)).toBe(Number.NEGATIVE_INFINITY);
    expect(gainToDb(Number.NaN)).toBe(Number.NEGATIVE_INFINITY);
  });
});

describe("the fader", () => {
  it("is silent at its lowest position, and only there", () => {
    expect(faderToGain(-60)).toBe(0);
    expect(faderToGain(-59.5)).toBeGreaterThan(0);
    expect(gainToFader(0)).toBe(-60);
  });

  it("has exactly 1 at 0 dB", () => {
    expect(faderToGain(0)).toBe(1);
    expect(gainToFader(1)).toBe(0);
  });

  it("ends at +12 dB, within the session's range of 0 to 4", () => {
    expect(gainToFader(4)).toBe(12);
    expect(faderToGain(12)).toBeLessThanOrEqual(4);
    expect(faderToGain(40)).toBe(faderToGain(12));
  });

  it("returns to every one of its positions", () => {
    for (let db = -60; db <= 12; db += 0.5) expect(gainToFader(faderToGain(db))).toBe(db);
  });
});
