import { describe, expect, it } from "vitest";
import { AUDIBLE_UNDERRUNS } from "../../src/main/ui/diagnosis";
import { type RecentStream, RecentWindow, type StreamCounters, verdict } from "../../src/main/ui/recent";

const zero: StreamCounters = {
  receivedPackets: 0,
  lostPackets: 0,
  latePackets: 0,
  playedFrames: 0,
  concealedFrames: 0,
  bufferFrames: null,
  outputUnderruns: null,
};

/** A stream of 375 packets of 128 frames a second, read twice a second. */
function play(
  window: RecentWindow,
  fromS: number,
  toS: number,
  extra: (s: number) => Partial<StreamCounters>,
) {
  let recent: RecentStream | null = null;
  for (let s = fromS; s <= toS; s += 0.5) {
    recent = window.add(s * 1000, {
      ...zero,
      receivedPackets: s * 375,
      playedFrames: s * 48_000,
      ...extra(s),
    });
  }
  return recent;
}

describe("the last ten seconds", () => {
  it("are unknown at the first reading", () => {
    expect(new RecentWindow().add(0, zero)).toBeNull();
  });

  it("say how long they really are", () => {
    const window = new RecentWindow();
    expect(play(window, 0, 3, () => ({}))?.seconds).toBe(3);
    expect(play(window, 3.5, 60, () => ({}))?.seconds).toBe(10);
    // Where readings do not come to the tenth second sharp.
    expect(play(window, 60.2, 80, () => ({}))?.seconds).toBe(10);
    expect(
      window.add(80_400, { ...zero, receivedPackets: 30_150, playedFrames: 80.4 * 48_000 })?.seconds,
    ).toBe(10);
  });

  it("count what happened within them only", () => {
    const window = new RecentWindow();
    const loss = (s: number) => ({ lostPackets: Math.min(s, 20) * 10, latePackets: Math.min(s, 20) * 4 });
    const during = play(window, 0, 20, loss);
    expect(during?.lostPackets).toBe(100);
    expect(during?.latePackets).toBe(40);
    expect(during?.lostShare).toBeCloseTo(100 / 3850, 10);
    expect(during?.lateShare).toBeCloseTo(40 / 3850, 10);
    const after = play(window, 20.5, 31, loss);
    expect(after?.lostPackets).toBe(0);
    expect(after?.lostShare).toBe(0);
  });

  it("take concealed frames as a share of all played", () => {
    const recent = play(new RecentWindow(), 0, 10, (s) => ({
      playedFrames: s * 47_000,
      concealedFrames: s * 1_000,
    }));
    expect(recent?.concealedShare).toBeCloseTo(1 / 48, 10);
  });

  it("have no shares of nothing", () => {
    const window = new RecentWindow();
    window.add(0, zero);
    const recent = window.add(500, zero);
    expect(recent?.lostShare).toBeNull();
    expect(recent?.lateShare).toBeNull();
    expect(recent?.concealedShare).toBeNull();
    expect(recent?.fullestFrames).toBeNull();
  });

  it("do not go below nothing when a packet counted as lost arrives after all", () => {
    const recent = play(new RecentWindow(), 0, 2, (s) => ({ lostPackets: s < 1 ? 5 : 2 }));
    expect(recent?.lostPackets).toBe(0);
  });

  it("start again after a hidden tab, which read nothing", () => {
    const window = new RecentWindow();
    play(window, 0, 10, () => ({}));
    expect(window.add(300_000, { ...zero, receivedPackets: 112_500, playedFrames: 14_400_000 })).toBeNull();
  });

  it("start again when the counters do", () => {
    const window = new RecentWindow();
    play(window, 0, 10, () => ({}));
    expect(window.add(10_500, zero)).toBeNull();
  });

  it("count how often the output ran dry within them", () => {
    const dry = (s: number) => ({ outputUnderruns: 7 + Math.min(s, 4) });
    const window = new RecentWindow();
    expect(play(window, 0, 10, dry)?.outputUnderruns).toBe(4);
    expect(play(window, 10.5, 20, dry)?.outputUnderruns).toBe(0);
  });

  it("keep the fullest the buffer was", () => {
    const recent = play(new RecentWindow(), 0, 4, (s) => ({
      bufferFrames: s === 2 ? 1500 : s === 1 ? null : 400,
    }));
    expect(recent?.fullestFrames).toBe(1500);
  });
});

describe("the verdict", () => {
  const clean: RecentStream = {
    seconds: 10,
    lostPackets: 0,
    latePackets: 0,
    concealedFrames: 0,
    lostShare: 0,
    lateShare: 0,
    concealedShare: 0,
    hasReceived: true,
    outputUnderruns: 0,
    fullestFrames: 512,
  };

  it("claims nothing before sound came", () => {
    expect(verdict(null).tone).toBe("unknown");
    const none = { tone: "unknown", text: "No sound received yet" };
    expect(verdict({ ...clean, concealedShare: null, hasReceived: false })).toEqual(none);
  });

  it("says who only listens, by their own word, unless sound comes all the same", () => {
    const listens = { tone: "unknown", text: "Sends no sound, only listens" };
    expect(verdict({ ...clean, concealedShare: null, hasReceived: false }, false)).toEqual(listens);
    expect(verdict({ ...clean, concealedShare: null }, true).text).toBe("No sound at the moment");
    expect(verdict(clean, false).tone).toBe("good");
  });

  it("does not say that sound never came when it only pauses", () => {
    const pause = { tone: "unknown", text: "No sound at the moment" };
    expect(verdict({ ...clean, concealedShare: null })).toEqual(pause);
  });

  it("is not clean where the output ran dry, though all came", () => {
    expect(verdict({ ...clean, outputUnderruns: 1 }).tone).toBe("fair");
    // As many in a report's 4 s: in ten, no more than may be.
    expect(verdict({ ...clean, outputUnderruns: AUDIBLE_UNDERRUNS }).tone).toBe("fair");
    expect(verdict({ ...clean, seconds: 4, outputUnderruns: AUDIBLE_UNDERRUNS }).tone).toBe("poor");
    expect(verdict({ ...clean, outputUnderruns: 3 * AUDIBLE_UNDERRUNS }).tone).toBe("poor");
  });

  it("names how long it was clean", () => {
    expect(verdict({ ...clean, seconds: 3.02 })).toEqual({
      tone: "good",
      text: "Clean: no gaps in the last 3\u202fs",
    });
  });
});
