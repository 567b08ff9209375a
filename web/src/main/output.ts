/** The output that was chosen, and the system's own while that is not there. */

import type { Device } from "./model";
import type { Sound } from "./sound";
import type { Store } from "./store";

/** Chromium keeps a closed stream for 5 s, and takes it again for the same output, although the sound system has moved it to another meanwhile. */
const RESTS_MS = 6_000;

export class Output {
  readonly #store: Store;
  readonly #sound: () => Sound | null;
  /** Since when the chosen one is not there and the system's own plays, on the page's clock. */
  #missingMs: number | null = null;

  constructor(store: Store, sound: () => Sound | null) {
    this.#store = store;
    this.#sound = sound;
  }

  /** Plays on the one that the settings say. */
  async choose(): Promise<void> {
    this.presume();
    await this.#set(this.#store.state.settings.outputDeviceId);
  }

  /** The chosen one is there, as far as is known. */
  presume(): void {
    this.#missingMs = null;
    this.#store.end("output-gone");
    this.#store.clear("output");
  }

  /** Plays on the system's own while the chosen one is not there. `again` is called when to look once more, for some changes have to wait. */
  async follow(outputs: readonly Device[], again: () => void): Promise<void> {
    const { outputSelectable, settings } = this.#store.state;
    const wanted = settings.outputDeviceId;
    if (this.#sound() === null || !outputSelectable || wanted === "" || outputs.length === 0) return;
    const isMissing = !outputs.some(({ id }) => id === wanted);
    const missingMs = this.#missingMs;
    if (isMissing === (missingMs !== null)) return;
    const restsMs = missingMs === null ? 0 : missingMs + RESTS_MS - performance.now();
    if (restsMs > 0) {
      setTimeout(again, restsMs);
      return;
    }
    this.presume();
    if (isMissing) this.#missingMs = performance.now();
    const isSet = await this.#set(isMissing ? "" : wanted);
    if (isMissing && isSet)
      this.#store.raise({
        id: "output-gone",
        severity: "warning",
        title: "The output you chose is not there: you hear the others from the system's own.",
        remedy: "Plug it in again, and it is taken again, or choose another.",
      });
    // It is tried again at the next change.
    if (!isMissing && !isSet) this.#missingMs = performance.now();
  }

  /** Whether it plays there. */
  async #set(deviceId: string): Promise<boolean> {
    try {
      await this.#sound()?.setOutput(deviceId);
      this.#store.clear("output");
      return true;
    } catch (error) {
      this.#store.raise({
        id: "output",
        severity: "error",
        title: "That output could not be opened.",
        remedy: `Choose another. The browser says: ${String(error)}`,
      });
      return false;
    }
  }
}
