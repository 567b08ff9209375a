/** Figures as text. */

import { sampleRateHz } from "./rig.js";

export const framesPerMs = sampleRateHz / 1000;

/** Rounded to so many places; unknown stays null. */
export function shown(value: number | null, places: number): string | null {
  return value === null ? null : value.toFixed(places);
}

/** A share as a percentage, small ones with three places. */
export function percent(share: number): string {
  return `${(share * 100).toFixed(share < 0.01 ? 3 : 1)} %`;
}
