import { describe, expect, it } from "vitest";
import {
  Ballistics,
  type HeardState,
  Hearing,
  METER_FLOOR_DB,
  meterPosition,
} from "../../src/main/ui/ballistics";

describe("a meter", () => {
  it("rises at once and falls 20 dB in 1.7 s", () => {
    const meter = new Ballistics();
    meter.update(1, 1000);
    expect(meter.levelDb).toBe(0);
    for (let ms = 1010; ms <= 2700; ms += 10) meter.update(0, ms);
    expect(meter.levelDb).toBeCloseTo(-20, 6);
  });

  it("holds its peak, then lets it fall", () => {
    const meter = new Ballistics();
    meter.update(0.5, 0);
    meter.update(0, 1400);
    expect(meter.holdDb).toBeCloseTo(-6.02, 2);
    meter.update(0, 1600);
    meter.update(0, 3600);
    expect(meter.holdDb).toBeLessThan(-20);
  });

  it("shows a clip for a while", () => {
    const meter = new Ballistics();
    meter.update(0.9998, 0);
    expect(meter.clipping).toBe(false);
    meter.update(32767 / 32768, 10);
    expect(meter.clipping).toBe(true);
    meter.update(0, 3000);
    expect(meter.clipping).toBe(true);
    meter.update(0, 5000);
    expect(meter.clipping).toBe(false);
  });

  it("says when there is nothing to draw", () => {
    const meter = new Ballistics();
    expect(meter.update(0, 0)).toBe(false);
    expect(meter.update(0.1, 16)).toBe(true);
    expect(meter.update(0, 60_000)).toBe(true);
    meter.update(0, 60_016);
    expect(meter.update(0, 120_000)).toBe(false);
  });

  it("never leaves its scale", () => {
    const meter = new Ballistics();
    meter.update(Number.NaN, 0);
    expect(meter.levelDb).toBe(METER_FLOOR_DB);
    expect(meterPosition(METER_FLOOR_DB)).toBe(0);
    expect(meterPosition(-30)).toBe(0.5);
    expect(meterPosition(0)).toBe(1);
    expect(meterPosition(6)).toBe(1);
  });
});

describe("what the lobby hears", () => {
  /** What is said at the end of the time, if all of it is at `peak`. */
  function listen(hearing: Hearing, peak: number, fromMs: number, untilMs: number): HeardState {
    for (let ms = fromMs; ms < untilMs; ms += 50) hearing.update(peak, ms);
    return hearing.update(peak, untilMs);
  }

  it("is quiet at first, then nothing if there are only zeros", () => {
    const hearing = new Hearing();
    expect(hearing.update(0, 1000)).toBe("quiet");
    expect(listen(hearing, 0, 1050, 2900)).toBe("quiet");
    expect(hearing.update(0, 3000)).toBe("nothing");
  });

  it("listens anew once one is back at the page, before it says that there is nothing", () => {
    const hearing = new Hearing();
    expect(listen(hearing, 0.1, 0, 3_000)).toBe("heard");
    expect(hearing.update(0, 60_000), "what came meanwhile is forgotten").toBe("resting");
    expect(listen(hearing, 0, 60_050, 61_950)).toBe("resting");
    expect(hearing.update(0, 62_000)).toBe("nothing");
    expect(hearing.update(0, 70_000)).toBe("resting");
  });

  it("does not take a room's hiss for playing, nor for a dead input", () => {
    const hearing = new Hearing();
    for (let ms = 0; ms < 10_000; ms += 16) expect(hearing.update(0.001, ms)).toBe("quiet");
  });

  it("still hears six seconds into a rest", () => {
    const hearing = new Hearing();
    expect(hearing.update(0.1, 0)).toBe("heard");
    expect(listen(hearing, 0.0005, 50, 5_900)).toBe("heard");
    expect(hearing.update(0.0005, 6_100)).toBe("resting");
    expect(listen(hearing, 0, 6_150, 8_200)).toBe("nothing");
    expect(hearing.update(0.0005, 8_300)).toBe("resting");
  });

  it("warns of clipping", () => {
    const hearing = new Hearing();
    expect(hearing.update(1, 0)).toBe("clipping");
    expect(hearing.update(0.1, 4_100)).toBe("heard");
  });
});
