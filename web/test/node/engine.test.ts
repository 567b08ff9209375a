import { expect, it } from "vitest";
import { PlayerEngine } from "../../src/shared/engine";
import { load } from "./golden";

const { module } = load();

it("counts frames by which the output slipped as rendered", () => {
  const sizes = { rateHz: 48_000, outputChannels: 2, maxStreams: 1, bufferFrames: 8_192 };
  const engine = new PlayerEngine(module, sizes);
  const play = (seconds: number, fromMs: number) => {
    const quanta = (seconds * 48_000) / 128;
    for (let n = 0; n < quanta; n++) engine.process(128, Math.trunc(fromMs + (n * 128) / 48));
  };
  play(2, 1_000_000);
  expect(engine.renderedFrames()).toBe(2 * 48_000);
  play(2, 1_002_200);
  expect(Math.abs(engine.renderedFrames() - 4 * 48_000 - 200 * 48)).toBeLessThanOrEqual(48);
});
