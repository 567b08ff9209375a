/** What was heard against what was played: latency by matched filter, missed pulses, crosstalk, breaks. */

import { quantile as d3quantile } from "d3-array";
import { Correlator } from "./correlator.js";
import { type Pulse, pulseFrames, pulseShape, type Score } from "./signal.js";
import type { Take } from "./wav.js";

/** One pulse in a recording. */
export interface Hit {
  pulse: Pulse;
  /** Frames from its first frame in the take to its first frame in the recording; null = not heard. */
  latencyFrames: number | null;
  /** How much the heard pulse resembles the played one, 0 to 1. */
  likeness: number;
  /** Power in the other channel during the pulse, against the pulse's own; -96 = nothing that 16 bits can hold. */
  crosstalkDb: number | null;
}

export interface Hearing {
  hits: Hit[];
  missed: number;
  crosstalkDb: number | null;
  /** The steady tone; null when no pulse tells where it is. */
  steady: Continuity | null;
}

export interface Continuity {
  frames: number;
  /**
   * Places where the tone is interrupted, jumps, repeats or is far from exact, as where a cheap copy was decoded. What is concealed counts only where its seams
   * show: a steady tone is predicted well. Neighbours within 256 frames count as one.
   */
  breaks: number;
  /** Stretches of digital silence, of at least 8 frames: of the side that has more of them. */
  hardGaps: Gap[];
  /** Frames of digital silence in it. */
  silentFrames: number;
}

/** Where in the recording, and how long. */
export interface Gap {
  from: number;
  frames: number;
}

export interface AnalysisOptions {
  /** The longest latency looked for; must stay under eight pulse intervals. */
  maxLatencyFrames?: number;
  /** A pulse with less likeness counts as missed. Opus scores above 0.8, a pulse cut in two about 0.7. */
  minLikeness?: number;
}

const silenceDb = -96;

/** Finds the pulses of `score` in a stereo recording that began at the same frame as the take. */
export function listen(heard: Take, score: Score, options: AnalysisOptions = {}): Hearing {
  const { maxLatencyFrames = 48_000, minLikeness = 0.5 } = options;
  const correlator = new Correlator(maxLatencyFrames + 1, pulseFrames);
  const hits = score.pulses.map((pulse): Hit => {
    const own = heard[pulse.side]!;
    const shape = pulseShape(pulse.code);
    const lag = correlator.strongestLag(own, pulse.frame, shape);
    const window = own.subarray(pulse.frame + lag, pulse.frame + lag + pulseFrames);
    const power = energy(window);
    const likeness = power > 0 ? Math.abs(dot(window, shape)) / Math.sqrt(power * energy(shape)) : 0;
    if (likeness < minLikeness) return { pulse, latencyFrames: null, likeness, crosstalkDb: null };
    const other = heard[1 - pulse.side];
    const leaked = other && energy(other.subarray(pulse.frame + lag, pulse.frame + lag + pulseFrames));
    const crosstalkDb = leaked === undefined ? null : Math.max(silenceDb, 10 * Math.log10(leaked / power));
    return { pulse, latencyFrames: lag, likeness, crosstalkDb };
  });
  const latency = quantile(known(hits.map((hit) => hit.latencyFrames)), 0.5);
  return {
    hits,
    missed: hits.filter((hit) => hit.latencyFrames === null).length,
    crosstalkDb: quantile(known(hits.map((hit) => hit.crosstalkDb)), 0.5),
    steady: latency === null ? null : steadiness(heard, score, Math.round(latency)),
  };
}

/** The steady tone of both sides, without its first and last 100 ms. */
function steadiness(heard: Take, score: Score, latencyFrames: number): Continuity | null {
  const { from, to, hz } = score.steady;
  const margin = 4800;
  const begin = from + latencyFrames + margin;
  const end = Math.min(to + latencyFrames - margin, heard[0]!.length);
  if (end <= begin) return null;
  const sides = hz.map((pitch, side) =>
    continuity(heard[side]!.subarray(begin, end), (2 * Math.PI * pitch) / 48_000),
  );
  const [{ hardGaps }] = sides.toSorted((a, b) => b.hardGaps.length - a.hardGaps.length) as [Continuity];
  return {
    frames: end - begin,
    breaks: Math.max(...sides.map((side) => side.breaks)),
    hardGaps: hardGaps.map(({ from, frames }) => ({ from: begin + from, frames })),
    silentFrames: Math.max(...sides.map((side) => side.silentFrames)),
  };
}

/**
 * Breaks in a tone of `step` radians per frame: a sine satisfies x[n] = 2 cos(step) x[n-1] - x[n-2], so a frame that
 * misses this by more than a quarter of the tone's own second difference is not its continuation.
 */
export function continuity(tone: Float32Array, step: number): Continuity {
  const twoCos = 2 * Math.cos(step);
  const rms = Math.sqrt(energy(tone) / tone.length);
  // Second difference of a sine of that RMS; the floor lets the rounding of 16 bits pass.
  const tolerance = Math.max(rms * Math.SQRT2 * (2 - twoCos) * 0.25, 4 / 32_768);
  let breaks = 0;
  const hardGaps: Gap[] = [];
  let lastBreak = Number.NEGATIVE_INFINITY;
  let zeros = 0;
  for (let n = 0; n < tone.length; n++) {
    const silent = Math.abs(tone[n]!) < 1e-7;
    zeros = silent ? zeros + 1 : 0;
    if (zeros === 8) hardGaps.push({ from: n - 7, frames: 8 });
    else if (zeros > 8) hardGaps.at(-1)!.frames++;
    const odd = n >= 2 && Math.abs(tone[n]! - twoCos * tone[n - 1]! + tone[n - 2]!) > tolerance;
    if (odd || zeros >= 8) {
      if (n - lastBreak > 256) breaks++;
      lastBreak = n;
    }
  }
  const silentFrames = hardGaps.reduce((sum, { frames }) => sum + frames, 0);
  return { frames: tone.length, breaks, hardGaps, silentFrames };
}

/** The tones of all, together. `unheard` is to stand behind the breaks: what was not heard has none, and is worse. */
export function tones(hearings: readonly Pick<Hearing, "steady">[]): {
  breaks: number;
  seconds: number;
  unheard: string;
} {
  const heard = known(hearings.map(({ steady }) => steady));
  const sum = (pick: (one: Continuity) => number) => heard.reduce((total, one) => total + pick(one), 0);
  return {
    breaks: sum(({ breaks }) => breaks),
    seconds: sum(({ frames }) => frames) / 48_000,
    unheard:
      heard.length < hearings.length
        ? `, and ${hearings.length - heard.length} of ${hearings.length} tones not heard`
        : "",
  };
}

/** Linear interpolation between order statistics; null of nothing. Infinite where the place falls among what is infinite, because it never came. */
export function quantile(values: readonly number[], p: number): number | null {
  const finite = values.filter((value) => value !== Number.POSITIVE_INFINITY);
  if (finite.length === values.length) return d3quantile(values, p) ?? null;
  // Interpolated with what is infinite, the last finite value would be no number.
  const place = p * (values.length - 1);
  if (place > finite.length - 1) return Number.POSITIVE_INFINITY;
  return d3quantile(finite, finite.length > 1 ? place / (finite.length - 1) : p) ?? null;
}

export function known<T>(values: readonly (T | null)[]): T[] {
  return values.filter((value): value is T => value !== null);
}

function energy(samples: Float32Array): number {
  return dot(samples, samples);
}

function dot(a: Float32Array, b: Float32Array): number {
  let sum = 0;
  const length = Math.min(a.length, b.length);
  for (let n = 0; n < length; n++) sum += a[n]! * b[n]!;
  return sum;
}
