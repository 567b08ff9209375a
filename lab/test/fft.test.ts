import { expect, it } from "vitest";
import { powerSpectrum } from "../src/fft.js";

it("a tone has the same spectrum however long it lasts", () => {
  const size = 64;
  const tone = (frames: number) =>
    Float32Array.from({ length: frames }, (_, n) => Math.sin((2 * Math.PI * 8 * n) / size));
  const [short, long] = [size, 10 * size + 5].map((frames) => powerSpectrum(tone(frames), size));
  expect(short![8]).toBeGreaterThan(100);
  for (const [k, power] of long!.entries()) expect(power).toBeCloseTo(short![k]!, 3);
});
