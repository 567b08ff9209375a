/** The output that was chosen, and the system's own while that is not there. */

import type { Device } from "./model";
import type { Sound } from "./sound";
import type { Store } from "./store";

/** Chromium keeps a closed stream for 5 s, and takes it again for the same output, although the sound system has moved it to another meanwhile. */
const RESTS_MS = 6_000;

export class Output {
  readonly #store: Store;
  readonly #sound: () => Sound | null;
  /** Since when the chosen one is known not to be there, or not to open, on the page's clock. */
  #missingMs: number | null = null;
  /** When the chosen one was taken again last. */
  #retakenMs: number | null = null;

  constructor(store: Store, sound: () => Sound | null) {
    this.#store = store;
    this.#sound = sound;
  }

  /** Where it plays, or will play: the browser falls back on the system's own by itself, and says so nowhere else. */
  get inUse(): string {
    const sound = this.#sound();
    return sound === null ? this.#store.state.settings.outputDeviceId : (sound.context.sinkId ?? "");
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
    const { outputSelectable, microphoneAllowed, settings } = this.#store.state;
    const wanted = settings.outputDeviceId;
    if (this.#sound() === null || !outputSelectable || wanted === "") return;
    if (outputs.length === 0) {
      if (!microphoneAllowed && this.inUse !== wanted)
        this.#saySystemPlays(
          "may not be used yet",
          "The browser lets a page choose only when it may use the microphone: allow that, and it is taken, or choose the system's default.",
        );
      return;
    }
    const isMissing = !outputs.some(({ id }) => id === wanted);
    const due = isMissing ? "" : wanted;
    if (this.inUse === due && isMissing === (this.#missingMs !== null)) return;
    // One that opens and fails again at once is not taken without end.
    const retakenMs = isMissing ? null : this.#retakenMs;
    const restsMs = (this.#missingMs ?? retakenMs ?? -Infinity) + RESTS_MS - performance.now();
    if (restsMs > 0) {
      setTimeout(again, restsMs);
      return;
    }
    this.presume();
    if (isMissing) this.#missingMs = performance.now();
    else this.#retakenMs = performance.now();
    const isSet = await this.#set(due);
    if (isMissing && isSet)
      this.#saySystemPlays("is not there", "Plug it in again, and it is taken again, or choose another.");
    // It is tried again at the next change.
    if (!isMissing && !isSet) this.#missingMs = performance.now();
  }

  #saySystemPlays(why: string, remedy: string): void {
    const title = `The output you chose ${why}: you hear the others from the system's own.`;
    this.#store.raise({ id: "output-gone", severity: "warning", title, remedy });
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
