import { expect, it } from "vitest";
import { Mixing } from "../../src/shared/engine";
import { load } from "./golden";

it("says what the engine has decided of each, by its stream", () => {
  const mixing = new Mixing(load().module);
  const seen = (stream: number, change = {}) => ({
    stream,
    isWanted: true,
    isForwarded: true,
    playedFrames: 0,
    ...change,
  });
  let playedFrames = 0;
  const look = (...all: ReturnType<typeof seen>[]) => {
    playedFrames += 4_800;
    mixing.review({ elapsedMs: 1_000, playedFrames, settleMs: 500 }, all);
    return all.map(({ stream }) => [
      mixing.isSource(stream),
      mixing.isMixed(stream),
      mixing.needsOwn(stream),
      mixing.isHeldUp(stream),
    ]);
  };
  const outside = [false, false, true, false];
  const entering = [true, false, true, false];
  const mixed = [true, true, false, false];
  const leaving = [true, true, true, false];
  expect(look(seen(7), seen(9, { isWanted: false }))).toEqual([entering, outside]);
  expect([mixing.isNeeded, mixing.isHeard]).toEqual([true, false]);
  expect(look(seen(7), seen(9, { isForwarded: false }))).toEqual([mixed, entering]);
  expect(mixing.isHeard).toBe(true);
  look(seen(7), seen(9, { isForwarded: false }));
  const heldUp = [true, false, true, true];
  expect(look(seen(7), seen(9, { isForwarded: false }))).toEqual([mixed, heldUp]);
  const own = { isWanted: false, playedFrames: 2 ** 40 };
  expect(look(seen(7, own), seen(9))).toEqual([leaving, mixed]);
  // Who is missing is gone, and who comes again begins anew.
  expect(look(seen(9))).toEqual([mixed]);
  expect(mixing.isMixed(7)).toBe(false);
  expect(look(seen(7), seen(9))).toEqual([entering, mixed]);
  look();
  look();
  expect([mixing.isNeeded, mixing.isHeard]).toEqual([false, false]);
});

it("leaves who is one too many out", () => {
  const mixing = new Mixing(load().module);
  const all = Array.from({ length: 65 }, (_, stream) => {
    return { stream, isWanted: true, isForwarded: true, playedFrames: 0 };
  });
  for (let n = 1; n <= 3; n++) mixing.review({ elapsedMs: 1_000, playedFrames: n, settleMs: 500 }, all);
  expect(all.map(({ stream }) => mixing.isMixed(stream))).toEqual(all.map((_, n) => n < 64));
  expect(mixing.needsOwn(64)).toBe(true);
});
