/** Advice to start the browser with short buffers, unless it was. */

import { startByHand } from "./by-hand";
import { wasLaunched } from "./launcher";
import type { Store } from "./store";

/** A browser whose input reports more than this was not started for low latency. */
const LONG_INPUT_LATENCY_MS = 10;

export class LaunchAdvice {
  readonly #store: Store;
  readonly #isLaunched = wasLaunched();

  constructor(store: Store) {
    this.#store = store;
  }

  /** Chromium's report of its input tells, `inputMs`; Firefox has none, nor has who only listens. */
  give(inputMs: number | null): void {
    const { userAgent } = navigator;
    const { link } = this.#store.state;
    const isShort = this.#isLaunched || (inputMs !== null && inputMs <= LONG_INPUT_LATENCY_MS);
    const isPossible = /Chrome\/|Firefox\//.test(userAgent) && !/Android|iPhone|iPad|CrOS/.test(userAgent);
    if (isShort || !isPossible) {
      this.#store.clear("launcher");
      return;
    }
    const browser = userAgent.includes("Firefox/") ? "--browser firefox " : "";
    this.#store.raise({
      id: "launcher",
      severity: "advice",
      title: `Less delay ${inputMs === null ? "may be" : "is"} possible on this computer.`,
      remedy: "A browser that is started with short sound buffers answers sooner.",
      how: [
        startByHand(link, userAgent, brands()),
        {
          remedy: "Where the antiphon program is installed, it does the same:",
          command: `antiphon open ${browser}${link}`,
          what: "command",
        },
      ],
    });
  }
}

/** Of the browser, as far as it tells; not yet in TypeScript's library. */
function brands(): string[] {
  const { userAgentData } = navigator as { userAgentData?: { brands: { brand: string }[] } };
  return userAgentData?.brands.map(({ brand }) => brand) ?? [];
}
