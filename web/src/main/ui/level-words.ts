/** Levels in words, and what of one's own is worth saying. */

import { CLIP_LEVEL, type HeardState } from "./ballistics";
import { gainToDb } from "./decibel";
import { formatDbfs, UNKNOWN } from "./format";

/** Coming: heard by the page, and by nobody else. */
export type LevelState = HeardState | "coming";

export const levelWords: Record<LevelState, string> = {
  nothing: "No sound at all. Is it switched on, and the right input?",
  quiet: "No sound yet. Play or speak.",
  heard: "Your sound comes in.",
  coming: "Sound comes in.",
  resting: "Quiet now.",
  clipping: "Too loud: it clips. Turn the input down.",
};

/** @param peak linear, 1 = full scale; null if unknown */
export function peakWords(peak: number | null): string {
  if (peak === null) return `Peak ${UNKNOWN}`;
  if (peak === 0) return "Silent";
  return `Peak ${formatDbfs(gainToDb(peak))}${peak >= CLIP_LEVEL ? ": clips" : ""}`;
}

/** What is amiss each time, that one is heard once: a screen reader without headphones hears itself say it. */
export class LevelNews {
  #wasHeard = false;

  /** @returns what is to be said now, or null */
  add(state: LevelState): string | null {
    const isNews = state === "nothing" || state === "clipping" || (state === "heard" && !this.#wasHeard);
    if (state === "heard") this.#wasHeard = true;
    return isNews ? levelWords[state] : null;
  }
}
