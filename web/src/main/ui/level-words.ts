/** Levels in words, and what of one's own is worth saying. */

import { CLIP_LEVEL, type HeardState } from "./ballistics";
import { gainToDb } from "./decibel";
import { formatDbfs, UNKNOWN } from "./format";
import { type Unheard, whyUnheard } from "./own-words";

/** Coming: heard by the page, and by nobody else. Stopped: nothing can come in. */
export type LevelState = HeardState | "coming" | "stopped";

export const levelWords: Record<LevelState, string> = {
  nothing: "No sound at all. Is it switched on, and the right input?",
  quiet: "No sound yet. Play or speak.",
  heard: "Your sound comes in.",
  coming: "Sound comes in.",
  resting: "Quiet now.",
  clipping: "Too loud: it clips. Turn the input down.",
  stopped: "Nothing comes in before the sound runs.",
};

/** Of what comes in, and of who hears it: the silence of a sound that does not run is none of the microphone's. */
export function levelState(heard: HeardState, own: Unheard): LevelState {
  if (!own.captures) return "stopped";
  return heard === "heard" && whyUnheard(own) !== null ? "coming" : heard;
}

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
