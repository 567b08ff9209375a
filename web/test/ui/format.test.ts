import { describe, expect, it } from "vitest";
import {
  formatCount,
  formatDb,
  formatDbfs,
  formatMs,
  formatName,
  formatPan,
  formatRate,
  formatShare,
  framesToMs,
  metresOfAir,
  msFigure,
  plural,
  sentWords,
  spokenDb,
} from "../../src/main/ui/format";

/** Narrow spaces as plain ones, to keep the expectations readable. */
const plain = (text: string) => text.replaceAll("\u202f", " ");

describe("decibels as text", () => {
  it("signs them", () => {
    expect(plain(formatDb(-3))).toBe("−3.0 dB");
    expect(plain(formatDb(6.02))).toBe("+6.0 dB");
    expect(plain(formatDb(0))).toBe("0.0 dB");
    expect(plain(formatDb(-0.04))).toBe("0.0 dB");
    expect(plain(formatDb(Number.NEGATIVE_INFINITY))).toBe("−∞ dB");
    expect(plain(formatDbfs(0.3))).toBe("0.3 dBFS");
  });

  it("speaks them", () => {
    expect(spokenDb(-3)).toBe("-3.0 dB");
    expect(spokenDb(-0.01)).toBe("0.0 dB");
    expect(spokenDb(12)).toBe("12.0 dB");
    expect(spokenDb(Number.NEGATIVE_INFINITY)).toBe("silent");
  });
});

describe("pan as text", () => {
  it.each([
    [0, "centre"],
    [0.004, "centre"],
    [-0.3, "30 % left"],
    [0.3, "30 % right"],
    [-1, "100 % left"],
  ])("%f is %s", (pan, text) => expect(formatPan(pan)).toBe(text));
});

describe("figures", () => {
  it("shows the unknown as a dash, never as 0", () => {
    expect(formatMs(null)).toBe("–");
    expect(msFigure(null)).toBe("–");
    expect(formatCount(null)).toBe("–");
    expect(formatShare(null)).toBe("–");
    expect(formatShare(Number.NaN)).toBe("–");
    expect(formatRate(null)).toBe("–");
    expect(framesToMs(null, 48_000)).toBeNull();
    expect(framesToMs(128, null)).toBeNull();
    expect(framesToMs(128, 0)).toBeNull();
  });

  it("shows a measured nothing as 0", () => {
    expect(plain(formatMs(0))).toBe("0.0 ms");
    expect(plain(formatShare(0))).toBe("0 %");
    expect(formatCount(0)).toBe("0");
  });

  it("counts frames into milliseconds", () => {
    expect(framesToMs(480, 48_000)).toBe(10);
    expect(plain(formatMs(framesToMs(128, 48_000)))).toBe("2.7 ms");
    expect(plain(formatMs(framesToMs(128, 44_100)))).toBe("2.9 ms");
    expect(plain(formatMs(99.96))).toBe("100 ms");
    expect(plain(formatMs(1234.5))).toBe("1235 ms");
  });

  it("never rounds a loss down to nothing, nor one to everything", () => {
    expect(plain(formatShare(0.000_01))).toBe("< 0.1 %");
    expect(plain(formatShare(0.0126))).toBe("1.3 %");
    expect(plain(formatShare(0.999))).toBe("99.9 %");
    expect(plain(formatShare(1))).toBe("100 %");
  });

  it("groups thousands and counts things", () => {
    expect(formatCount(12_345)).toBe("12,345");
    expect(plural(1, "frame")).toBe("1 frame");
    expect(plural(64, "frame")).toBe("64 frames");
    expect(plain(formatRate(44_100))).toBe("44.1 kHz");
  });

  it("turns delay into distance", () => {
    expect(metresOfAir(10)).toBeCloseTo(3.43, 2);
  });
});

describe("formats as text", () => {
  it.each([
    ["s16", null, "16 bit"],
    ["s24", null, "24 bit"],
    ["f32", null, "32 bit (float)"],
    ["opus", 128_000, "Opus 128 kbit/s"],
    ["opus", null, "Opus"],
    [null, null, "–"],
  ] as const)("%s at %s", (format, opusBps, text) => {
    expect(plain(formatName(format, opusBps))).toBe(text);
  });
});

describe("what a peer is sent, and why", () => {
  const sent = { format: "s16", opusBps: null, rung: 0, copies: false, copiesSent: 0, switches: 0 } as const;
  it("says whether that is as chosen", () => {
    expect(sentWords(null)).toBe("");
    expect(sentWords(sent)).toBe("as chosen");
    expect(sentWords({ ...sent, copies: true })).toBe("as chosen; with copies");
    expect(sentWords({ ...sent, rung: 1 })).toBe("stepped down: the way there was too slow");
  });
});
