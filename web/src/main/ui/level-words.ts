/** One's own level in words, and what of its changes is worth saying. */

import type { HeardState } from "./ballistics";

export const levelWords: Record<HeardState, string> = {
  nothing: "No sound at all. Is it switched on, and the right input?",
  quiet: "No sound yet. Play or speak.",
  heard: "We hear you.",
  resting: "Quiet now.",
  clipping: "Too loud: it clips. Turn the input down.",
};

/** What is amiss each time, that one is heard once: a screen reader without headphones hears itself say it. */
export class LevelNews {
  #wasHeard = false;

  /** @returns what is to be said now, or null */
  add(state: HeardState): string | null {
    const isNews = state === "nothing" || state === "clipping" || (state === "heard" && !this.#wasHeard);
    if (state === "heard") this.#wasHeard = true;
    return isNews ? levelWords[state] : null;
  }
}
