/**
 * Test takes. All are exact 16-bit material, so that a lossless path gives back the very same numbers.
 *
 * A take is stereo: first coded pulses, then a steady tone. Every pulse is a Gold code of 511 chips; each voice and side
 * has its own eight codes in turn, so a pulse is never mistaken for another side, another voice, or a neighbour as long
 * as the latency stays under eight intervals. Left and right take turns, half an interval apart: whatever is in the
 * other channel while a pulse sounds is crosstalk.
 */

import type { Take } from "./wav.js";

/** Frames per chip: spreads a pulse over 0 to 24 kHz and its correlation peak over two frames. */
const chipFrames = 2;
const codeLength = 511;
const codesPerSide = 8;

export const pulseFrames = codeLength * chipFrames;
export const intervalFrames = 12_000;
/** Quarter of full scale. */
const amplitude = 0.25;
/** Evenly spread up to it: its power is a third of its square. */
const noiseAmplitude = 0.005;

/** Who plays. Voices may sound at the same time without being confused. */
export type Voice = 0 | 1;

export interface Pulse {
  /** First frame, in the take. */
  frame: number;
  /** 0 left, 1 right. */
  side: 0 | 1;
  /** Index for `pulseShape`. */
  code: number;
}

export interface Score {
  take: Take;
  pulses: Pulse[];
  /** The steady tone: frames `from` to `to` of the take, one pitch for each side. */
  steady: { from: number; to: number; hz: readonly [number, number] };
}

/** Pitches with no common divisor near any block length, so that a missing block is never a whole number of periods. */
const pitches = [
  [997, 1499],
  [1201, 1811],
] as const;

export interface ScoreOptions {
  voice: Voice;
  sampleRateHz: number;
  pulseSeconds: number;
  steadySeconds: number;
  /**
   * Noise at −51 dB at the beginning, as microphones have it, for what the start of the playing itself disturbs. Not silence: the first sound
   * that a page hears has browser and page do what they had not done before, and their sound waits for it.
   */
  leadSeconds?: number;
  /** Silence at the end, for what is still under way. */
  tailSeconds?: number;
}

export function writeScore({
  voice,
  sampleRateHz,
  pulseSeconds,
  steadySeconds,
  leadSeconds = 0,
  tailSeconds = 1,
}: ScoreOptions): Score {
  const lead = Math.round(leadSeconds * sampleRateHz);
  const from = lead + Math.round(pulseSeconds * sampleRateHz);
  const to = from + Math.round(steadySeconds * sampleRateHz);
  const take = [0, 1].map(() => new Float32Array(to + Math.round(tailSeconds * sampleRateHz)));
  addNoise(take, lead);
  const pulses: Pulse[] = [];
  for (let turn = 0; ; turn++) {
    const frame = lead + (turn * intervalFrames) / 2 + 480;
    if (frame + pulseFrames > from) break;
    const side = (turn % 2) as 0 | 1;
    const code = (voice * 2 + side) * codesPerSide + (Math.floor(turn / 2) % codesPerSide);
    take[side]!.set(pulseShape(code), frame);
    pulses.push({ frame, side, code });
  }
  const hz = pitches[voice];
  for (const side of [0, 1] as const) {
    const step = (2 * Math.PI * hz[side]) / sampleRateHz;
    for (let n = from; n < to; n++)
      take[side]![n] = Math.round(Math.sin(step * (n - from)) * amplitude * 32_768) / 32_768;
  }
  return { take, pulses, steady: { from, to, hz } };
}

/** The same in each run, of 16 bits. */
function addNoise(take: Take, frames: number): void {
  let state = 1;
  for (const channel of take)
    for (let n = 0; n < frames; n++) {
      state = (Math.imul(state, 1_664_525) + 1_013_904_223) | 0;
      channel[n] = Math.round((state / 2 ** 31) * noiseAmplitude * 32_768) / 32_768;
    }
}

/** A score with other material, stereo, in place of the steady tone. */
export function scoreWith(material: Take, options: Omit<ScoreOptions, "steadySeconds">): Score {
  const score = writeScore({ ...options, steadySeconds: material[0]!.length / options.sampleRateHz });
  for (const side of [0, 1] as const) score.take[side]!.set(material[side]!, score.steady.from);
  return score;
}

/** The samples of one pulse, ±0.25. */
export function pulseShape(code: number): Float32Array {
  const chips = goldCode(code);
  const shape = new Float32Array(pulseFrames);
  for (let n = 0; n < pulseFrames; n++) shape[n] = chips[Math.floor(n / chipFrames)]! * amplitude;
  return shape;
}

/**
 * Gold code number `index` (0 to 510) of length 511, chips ±1: the sum of two m-sequences of the preferred pair
 * 1021 and 1131 (octal), the second one shifted. Two different codes of the family correlate with at most 33 of 511.
 */
export function goldCode(index: number): Int8Array {
  if (!Number.isInteger(index) || index < 0 || index >= codeLength)
    throw new RangeError(`no Gold code ${index}`);
  const chips = new Int8Array(codeLength);
  for (let n = 0; n < codeLength; n++) chips[n] = first[n]! ^ second[(n + index) % codeLength]! ? -1 : 1;
  return chips;
}

/** One period of the m-sequence whose next bit is the sum of the bits `taps` places back. */
function mSequence(taps: readonly number[]): Uint8Array {
  const bits = new Uint8Array(codeLength).fill(1, 0, 9);
  for (let n = 9; n < codeLength; n++) bits[n] = taps.reduce((sum, tap) => sum ^ bits[n - tap]!, 0);
  return bits;
}

const first = mSequence([9, 5]); // x^9 + x^4 + 1
const second = mSequence([9, 6, 5, 3]); // x^9 + x^6 + x^4 + x^3 + 1
