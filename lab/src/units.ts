/** Figures as text. */

import { sampleRateHz } from "./rig.js";

export const framesPerMs = sampleRateHz / 1000;

/** Rounded to so many places, for people; unknown stays null, and what never came took for "never". */
export function shown(value: number | null, places: number): string | null {
  return value === Number.POSITIVE_INFINITY ? "never" : (value?.toFixed(places) ?? null);
}

/** The same with its unit. */
export function shownMs(ms: number | null, places = 1): string | null {
  const text = shown(ms, places);
  return ms === null || ms === Number.POSITIVE_INFINITY ? text : `${text} ms`;
}

/** The same for programs: "inf". */
export function raw(value: number | null, places: number): string | null {
  return value === Number.POSITIVE_INFINITY ? "inf" : shown(value, places);
}

/** A share as a percentage, small ones with three places. */
export function percent(share: number): string {
  return `${(share * 100).toFixed(share < 0.01 ? 3 : 1)} %`;
}
