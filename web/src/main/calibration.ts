/**
 * What the machine's own sound input and output take beyond what the browser says of them: coded pulses leave by the output, come
 * back by a cable or through the air, and are found in the capture. Both ends are on one clock here, so the difference between when
 * the browser says that a pulse left and when it says that it was captured is what both words leave out together.
 */

import type { DeviceDelay } from "../shared/messages";
import { keep, readEntries } from "./storage";

export const PULSES = 6;
export const PULSE_INTERVAL_SECONDS = 0.5;
/** Where a pulse is looked for, around the moment at which the browser's words would have it. */
const EARLIEST_SECONDS = -0.05;
const LATEST_SECONDS = 0.4;
/** Chips of the pulse's code, a maximum-length sequence, and the rate at which they follow: full energy up to 10 kHz. */
const CHIPS = 511;
const CHIP_RATE_HZ = 24_000;
const AMPLITUDE = 0.25;
/** A likeness so many times that of what else is in the recording is no chance: the greatest of 20,000 chances is 4 times. */
const LEAST_CLARITY = 7;
/** Of the pulses so many must be found, within so much of their middle. */
const LEAST_FOUND = 4;
const MOST_APART_MS = 1;
/** With the output's own clock less certain than this, a loop-back would spoil more than it mends. */
export const MOST_DOUBT_MS = 5;

/** What a loop-back found. */
export interface Calibration {
  /** Round trip beyond the browser's words; below 0 if they promise too much. */
  excessMs: number;
  /** Half the range of what the pulses say. */
  spreadMs: number;
  /** The whole: from rendering to the engine having what was captured. */
  roundTripMs: number;
  /** When, in ms since the epoch. */
  atMs: number;
}

/** What was captured while the pulses played: mono, and when its first frame was captured by the browser's word. */
export interface Recording {
  samples: Float32Array;
  startMs: number;
}

/** One pulse, at this sample rate. */
export function pulseShape(rateHz: number): Float32Array<ArrayBuffer> {
  const chipFrames = Math.max(1, Math.round(rateHz / CHIP_RATE_HZ));
  const shape = new Float32Array(CHIPS * chipFrames);
  let register = 1;
  for (let chip = 0; chip < CHIPS; chip++) {
    shape.fill(register & 1 ? AMPLITUDE : -AMPLITUDE, chip * chipFrames, (chip + 1) * chipFrames);
    // x^9 + x^4 + 1
    register = (register >> 1) | (((register ^ (register >> 4)) & 1) << 8);
  }
  return shape;
}

/**
 * By how many ms the pulse that was to be captured at `expectedMs` was captured later; null if it is not there.
 *
 * O(window × pulse): some 20 million products, tens of milliseconds.
 */
export function findPulse(
  { samples, startMs }: Recording,
  shape: Float32Array,
  expectedMs: number,
  rateHz: number,
): number | null {
  const expectedFrame = ((expectedMs - startMs) * rateHz) / 1000;
  const from = Math.max(0, Math.round(expectedFrame + EARLIEST_SECONDS * rateHz));
  const to = Math.min(samples.length - shape.length, Math.round(expectedFrame + LATEST_SECONDS * rateHz));
  let best = 0;
  let bestFrame = -1;
  let energy = 0;
  for (let frame = from; frame < to; frame++) {
    let likeness = 0;
    for (let n = 0; n < shape.length; n++) likeness += samples[frame + n]! * shape[n]!;
    energy += likeness * likeness;
    // Either way up: some inputs turn the phase.
    if (Math.abs(likeness) > best) {
      best = Math.abs(likeness);
      bestFrame = frame;
    }
  }
  const others = Math.sqrt((energy - best * best) / Math.max(1, to - from - 1));
  if (bestFrame < 0 || best === 0 || best < LEAST_CLARITY * others) return null;
  return ((bestFrame - expectedFrame) * 1000) / rateHz;
}

/** What the pulses say together; null if too few were found, or they disagree. `null` among `lateMs` was not found. */
export function agreement(lateMs: readonly (number | null)[]): { excessMs: number; spreadMs: number } | null {
  const found = lateMs.filter((ms) => ms !== null).sort((a, b) => a - b);
  const excessMs = found[found.length >> 1];
  if (excessMs === undefined) return null;
  const near = found.filter((ms) => Math.abs(ms - excessMs) <= MOST_APART_MS);
  if (near.length < LEAST_FOUND) return null;
  return { excessMs, spreadMs: (near.at(-1)! - near[0]!) / 2 };
}

/**
 * What input and output take beyond the browser's timestamps, by a loop-back, given its words of them. A loop-back knows only their sum.
 * An input of which nothing is said gets what is missing, if the output has its word; else neither is known better than the other: each
 * gets half of it, and may be wrong by that half.
 */
export function split(
  { excessMs, spreadMs }: Calibration,
  input: DeviceDelay | null,
  output: DeviceDelay | null,
): { input: DeviceDelay; output: DeviceDelay } {
  if (input === null && output !== null)
    return { input: { isCalibrated: true, ms: excessMs - output.ms, errorMs: spreadMs }, output };
  const [inputMs, outputMs] = [input?.ms ?? 0, output?.ms ?? 0];
  const halfMs = (excessMs - inputMs - outputMs) / 2;
  const errorMs = Math.abs(halfMs) + spreadMs / 2;
  return {
    input: { isCalibrated: true, ms: inputMs + halfMs, errorMs },
    output: { isCalibrated: true, ms: outputMs + halfMs, errorMs },
  };
}

const KEY = "antiphon.calibrations";
/** Devices and settings that are remembered. */
const MOST_KEPT = 32;

/** What distinguishes one set-up from another. */
export interface Setup {
  /** A device's id; where the system's default is chosen, what that stands for, as far as the browser names it. */
  input: string;
  output: string;
  rateHz: number;
  quantum: number;
  capturePath: string;
}

export function loadCalibration(setup: Setup): Calibration | null {
  const found = readEntries(KEY).find(([key]) => key === keyOf(setup))?.[1];
  return isCalibration(found) ? found : null;
}

/** Null forgets it. */
export function storeCalibration(setup: Setup, calibration: Calibration | null): void {
  const others = readEntries(KEY).filter(([key]) => key !== keyOf(setup));
  const kept = calibration === null ? others : [[keyOf(setup), calibration], ...others];
  keep(KEY, kept.slice(0, MOST_KEPT));
}

export function isSameSetup(one: Setup, other: Setup): boolean {
  return keyOf(one) === keyOf(other);
}

function keyOf({ input, output, rateHz, quantum, capturePath }: Setup): string {
  return JSON.stringify([input, output, rateHz, quantum, capturePath]);
}

function isCalibration(value: unknown): value is Calibration {
  if (typeof value !== "object" || value === null) return false;
  const numbers = value as Record<string, unknown>;
  return ["excessMs", "spreadMs", "roundTripMs", "atMs"].every((key) => Number.isFinite(numbers[key]));
}
