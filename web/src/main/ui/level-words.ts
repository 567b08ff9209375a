/** One's own level in words, and what of its changes is worth saying. */

import type { HeardState } from "./ballistics";

/** Coming: heard by the page, and by nobody else. */
export type LevelState = HeardState | "coming";

export const levelWords: Record<LevelState, string> = {
  nothing: "No sound at all. Is it switched on, and the right input?",
  quiet: "No sound yet. Play or speak.",
  heard: "We hear you.",
  coming: "Sound comes in.",
  resting: "Quiet now.",
  clipping: "Too loud: it clips. Turn the input down.",
};

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
