import { describe, expect, it } from "vitest";
import { type Mix, Mixes } from "../../src/main/mixes";
import { readEntries } from "../../src/main/storage";
import { storage } from "./storage";

const mix: Mix = { gain: 0.5, pan: -0.25, muted: true, solo: true, buffer: "safe", pin: "relay" };
const ann = { id: "1", name: "Ann" };

describe("mixes", () => {
  it("are there when the page is loaded anew, by the name, but for solo and path", () => {
    const kept = storage();
    new Mixes(null, kept).keep(ann, mix);
    const next = new Mixes(null, kept);
    const { gain, pan, muted, buffer } = mix;
    expect(next.of({ id: "2", name: "Ann" }, [])).toEqual({ gain, pan, muted, buffer });
    expect(next.of({ id: "2", name: "Ann" }, ["Ann"])).toBeUndefined();
    expect(next.of({ id: "1", name: "Bo" }, [])).toBeUndefined();
    next.setBuffer("tight");
    expect(new Mixes(null, kept).of(ann, [])).toMatchObject({ gain, buffer: "tight" });
  });

  it("of an earlier page have the buffer that the address asks for, until another is chosen", () => {
    const kept = storage();
    new Mixes(null, kept).keep(ann, mix);
    const next = new Mixes(256, kept);
    expect(next.of(ann, [])).toMatchObject({ gain: mix.gain, buffer: 256 });
    next.keep({ id: "2", name: "Bo" }, mix);
    expect(new Mixes(null, kept).of(ann, [])?.buffer).toBe("safe");
    next.keep(ann, mix);
    expect(next.of(ann, [])?.buffer).toBe("safe");
  });

  it("of nobody without a name are kept, and of the names longest not mixed none", () => {
    const kept = storage();
    const mixes = new Mixes(null, kept);
    mixes.keep({ id: "1", name: "Musician" }, mix);
    for (let n = 0; n < 65; n++) {
      mixes.keep({ id: `${n}`, name: `player ${n}` }, mix);
      mixes.keep({ id: "0", name: "player 0" }, mix);
    }
    const next = new Mixes(null, kept);
    const isKept = (name: string) => next.of({ id: "new", name }, []) !== undefined;
    expect(["Musician", "player 0", "player 1", "player 2"].map(isKept)).toEqual([false, true, false, true]);
  });

  it("of a name stay when somebody else takes it", () => {
    const kept = storage();
    new Mixes(null, kept).keep(ann, mix);
    const next = new Mixes(null, kept);
    next.keep({ id: "2", name: "Bo" }, { ...mix, gain: 2 });
    next.rename({ id: "2", name: "Ann" }, []);
    expect(next.of({ id: "3", name: "Ann" }, [])).toMatchObject({ gain: 0.5 });
  });

  it("kept meanwhile by another page stay", () => {
    const kept = storage();
    const [one, other] = [new Mixes(null, kept), new Mixes(null, kept)];
    one.keep(ann, { ...mix, gain: 1 });
    other.keep(ann, { ...mix, gain: 0.1 });
    one.keep({ id: "2", name: "Bo" }, mix);
    const next = new Mixes(null, kept);
    expect(next.of(ann, [])?.gain).toBe(0.1);
    expect(next.of({ id: "2", name: "Bo" }, [])?.gain).toBe(mix.gain);
    one.setBuffer("tight");
    expect(new Mixes(null, kept).of(ann, [])).toMatchObject({ gain: 0.1, buffer: "tight" });
  });

  it("are no more than 64 once one is kept, however many were stored", () => {
    const { gain, pan, muted, buffer } = mix;
    const many = Array.from({ length: 200 }, (_, n) => [`player ${n}`, { gain, pan, muted, buffer }]);
    const kept = storage(JSON.stringify(many));
    new Mixes(null, kept).keep(ann, mix);
    expect(readEntries("antiphon.mixes", kept)).toHaveLength(64);
  });

  const sound = { gain: 1, pan: 0, muted: false, buffer: 512 };
  it.each([
    "{",
    "7",
    '{"Ann": {}}',
    '[["Ann"], [1, 2]]',
    ...[null, "auto", { ...sound, gain: 5 }, { ...sound, gain: "1" }, { ...sound, pan: null }].map(stored),
    ...[
      { ...sound, muted: 0 },
      { ...sound, buffer: 0.5 },
      { ...sound, buffer: null },
    ].map(stored),
  ])("survive %s", (text) => {
    expect(new Mixes(null, storage(text)).of(ann, [])).toBeUndefined();
    expect(new Mixes(null, storage(stored(sound))).of(ann, [])).toEqual(sound);
  });

  it("hold for the visit where nothing can be stored", () => {
    const mixes = new Mixes(null, () => {
      throw new Error("site data is blocked");
    });
    mixes.keep(ann, mix);
    expect(mixes.of({ id: "2", name: "Ann" }, [])).toEqual(mix);
  });
});

function stored(value: unknown): string {
  return JSON.stringify([["Ann", value]]);
}
