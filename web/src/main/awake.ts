/** Keeps the screen on: a phone that goes dark takes the microphone from the page, and its meters and buttons from the musician. */
export class Awake {
  #isWanted = false;
  #lock: WakeLockSentinel | null = null;

  constructor() {
    // Browsers let the screen go with every page that is hidden.
    addEventListener("visibilitychange", () => void this.#settle());
  }

  follow(isWanted: boolean): void {
    if (isWanted === this.#isWanted) return;
    this.#isWanted = isWanted;
    void this.#settle();
  }

  async #settle(): Promise<void> {
    if (!this.#isWanted) {
      void this.#lock?.release();
      this.#lock = null;
      return;
    }
    if (this.#isHeld || document.visibilityState !== "visible") return;
    // Refused where the battery is low, and unknown to older browsers: then the screen does what the system says.
    const lock = (await navigator.wakeLock?.request("screen").catch(() => null)) ?? null;
    if (this.#isWanted && !this.#isHeld) this.#lock = lock;
    else void lock?.release();
  }

  get #isHeld(): boolean {
    return this.#lock !== null && !this.#lock.released;
  }
}
