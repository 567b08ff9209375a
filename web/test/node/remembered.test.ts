import { describe, expect, it } from "vitest";
import { delayKey, hasSufficed, RememberedDelays } from "../../src/main/remembered";
import { storage } from "./storage";

describe("remembered delays", () => {
  it("are of one rate and one name, of nobody without a name, and never of a name if of the loop", () => {
    const key = (name: string, isLoop = false) => delayKey({ name, isLoop }, 48_000);
    expect(key("Ann")).not.toBe(key("Bo"));
    expect(key("Ann")).not.toBe(delayKey({ name: "Ann", isLoop: false }, 96_000));
    expect(key("Musician")).toBeNull();
    const loop = key("any", true);
    for (const name of ["any", "loop", "loop 48000", ""]) expect(key(name)).not.toBe(loop);
    expect(new RememberedDelays(storage()).of(null)).toBeNull();
  });

  it.each([
    [480_000, 0, 0.001, true],
    [480_000, 480, 0.001, true],
    [480_000, 482, 0.001, false],
    [480_000, 4_800, 0.01, true],
    [480_000, 4_900, 0.01, false],
    // Silent, or gone: nothing was learnt.
    [0, 0, 0.01, false],
  ])(
    "have sufficed or not: %d frames played, %d concealed, of which %d may be",
    (playedFrames, concealedFrames, share, has) => {
      expect(hasSufficed({ playedFrames, concealedFrames }, share)).toBe(has);
    },
  );

  it("are there at the next visit, the newest of each peer", () => {
    const kept = storage();
    const delays = new RememberedDelays(kept);
    expect(delays.of("Ann")).toBeNull();
    delays.keep("Ann", 300);
    delays.keep("Bo", 500);
    delays.keep("Ann", 200);
    const next = new RememberedDelays(kept);
    expect([next.of("Ann"), next.of("Bo"), next.of("Cy")]).toEqual([200, 500, null]);
  });

  it("kept meanwhile by another page stay", () => {
    const kept = storage();
    const [one, other] = [new RememberedDelays(kept), new RememberedDelays(kept)];
    one.keep("Ann", 300);
    other.keep("Ann", 100);
    one.keep("Bo", 500);
    const next = new RememberedDelays(kept);
    expect([next.of("Ann"), next.of("Bo")]).toEqual([100, 500]);
  });

  it("of the peers longest not heard are forgotten", () => {
    const delays = new RememberedDelays(storage());
    for (let n = 0; n < 65; n++) {
      delays.keep(`peer ${n}`, n);
      delays.keep("peer 0", 7);
    }
    expect(delays.of("peer 0")).toBe(7);
    expect(delays.of("peer 1")).toBeNull();
    expect(delays.of("peer 2")).toBe(2);
  });

  it.each(["{", "7", '{"a": 1}', '[["a"], ["b", "c"], [1, 2], ["d", 1.5]]'])("survive %s", (text) => {
    const delays = new RememberedDelays(storage(text));
    expect(["a", "b", "d"].map((name) => delays.of(name))).toEqual([null, null, null]);
  });

  const refuse = () => {
    throw new Error("no room, or site data is blocked");
  };
  it.each([() => ({ getItem: refuse, setItem: refuse }), refuse])(
    "hold for the visit where nothing can be stored",
    (kept) => {
      const delays = new RememberedDelays(kept);
      delays.keep("Ann", 300);
      expect(delays.of("Ann")).toBe(300);
    },
  );
});
