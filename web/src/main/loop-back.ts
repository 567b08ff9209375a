/** The loop-back measurement: pulses played and recorded, and what was found for each set-up (`calibration.ts`) kept. */

import type { DeviceDelay, FromWorker } from "../shared/messages";
import {
  agreement,
  type Calibration,
  findPulse,
  isSameSetup,
  loadCalibration,
  MOST_DOUBT_MS,
  PULSE_INTERVAL_SECONDS,
  PULSES,
  pulseShape,
  type Setup,
  split,
  storeCalibration,
} from "./calibration";
import type { CalibrationState } from "./model";
import type { Sound } from "./sound";
import type { Store } from "./store";

type Recording = Extract<FromWorker, { type: "recording" }>;

export const NO_CALIBRATION: CalibrationState = {
  phase: "none",
  doneShare: 0,
  roundTripMs: null,
  spreadMs: null,
  problem: null,
};
/** Before the first pulse, so that the recording has begun, and after the last, for what is late. */
const LEAD_SECONDS = 0.5;
const TAIL_SECONDS = 1;
/** How long the output's clock may take to be known. */
const OUTPUT_PATIENCE_MS = 3_000;
const LOOK_MS = 100;

export class LoopBack {
  readonly #store: Store;
  readonly #setup: () => Setup;
  #found: Calibration | null = null;
  /** For which it was looked up last. */
  #lookedUp: Setup | null = null;
  /** Where the recording under way goes. */
  #endRecording: ((recording: Recording) => void) | null = null;

  /** `setup`: the devices and settings of now. */
  constructor(store: Store, setup: () => Setup) {
    this.#store = store;
    this.#setup = setup;
  }

  /** What the devices take beyond the browser's timestamps: by a loop-back if there was one, else by its word, `input` and `output`. */
  split(
    input: DeviceDelay | null,
    output: DeviceDelay | null,
  ): { input: DeviceDelay | null; output: DeviceDelay | null } {
    return this.#found === null ? { input, output } : split(this.#found, input, output);
  }

  /** After `prepare`, measures, unless it does so already, and keeps what it finds; in the lobby, and while `sound` is `isCurrent`. */
  async run(sound: Sound, isCurrent: () => boolean, prepare: () => Promise<void>): Promise<void> {
    const { phase, calibration } = this.#store.state;
    if (phase !== "lobby" || calibration.phase === "running") return;
    this.#show({ phase: "running" });
    try {
      await prepare();
      const setup = this.#setup();
      const found = await this.#measure(sound, isCurrent);
      if (!isSameSetup(setup, this.#setup()))
        throw new Error("The devices or settings were changed meanwhile. Measure again.");
      [this.#lookedUp, this.#found] = [setup, found];
      storeCalibration(setup, found);
      this.#showFound();
    } catch (error) {
      this.fail(error instanceof Error ? error.message : String(error));
    }
  }

  /** Says why it cannot be measured, and what to do. */
  fail(problem: string): void {
    this.#show({ phase: "failed", problem });
  }

  forget(): void {
    storeCalibration(this.#setup(), null);
    this.recall();
  }

  /** Takes what was found for the devices and settings of now, if anything was. */
  recall(): void {
    this.#lookedUp = this.#setup();
    this.#found = loadCalibration(this.#lookedUp);
    if (this.#store.state.calibration.phase !== "running") this.#showFound();
  }

  /** The same where they are others now. */
  follow(): void {
    if (this.#lookedUp === null || !isSameSetup(this.#lookedUp, this.#setup())) this.recall();
  }

  handleRecording(recording: Recording): void {
    this.#endRecording?.(recording);
  }

  #showFound(): void {
    if (this.#found === null) this.#show({});
    else {
      const { roundTripMs, spreadMs } = this.#found;
      this.#show({ phase: "done", doneShare: 1, roundTripMs, spreadMs });
    }
  }

  #show(change: Partial<CalibrationState>): void {
    this.#store.set({ calibration: { ...NO_CALIBRATION, ...change } });
  }

  /** *Errors* in plain words, for the musician. */
  async #measure(sound: Sound, isCurrent: () => boolean): Promise<Calibration> {
    const wait = (ms: number) => new Promise<void>((resolve) => setTimeout(resolve, ms));
    const stopped = () => !isCurrent() || this.#store.state.phase !== "lobby";
    for (let waitedMs = 0; sound.outputClock(null) === null; waitedMs += LOOK_MS) {
      if (waitedMs > OUTPUT_PATIENCE_MS || stopped())
        throw new Error("The browser does not say when sound leaves it. Try again in a moment.");
      await wait(LOOK_MS);
    }
    const { sampleRate: rateHz, currentTime } = sound.context;
    const shape = pulseShape(rateHz);
    const firstFrame = Math.ceil((currentTime + LEAD_SECONDS) * rateHz);
    const frames = Array.from(
      { length: PULSES },
      (_, n) => firstFrame + Math.round(n * PULSE_INTERVAL_SECONDS * rateHz),
    );
    const seconds = LEAD_SECONDS + PULSES * PULSE_INTERVAL_SECONDS + TAIL_SECONDS;
    const recorded = new Promise<Recording | null>((resolve) => {
      this.#endRecording = resolve;
      setTimeout(resolve, (seconds + 2) * 1000, null);
    });
    sound.record(seconds);
    const sources = frames.map((frame) => sound.play(shape, frame));
    for (let share = 0; share < 1 && !stopped(); share += LOOK_MS / 1000 / seconds) {
      this.#show({ phase: "running", doneShare: share });
      await wait(LOOK_MS);
    }
    const recording = stopped() ? null : await recorded;
    this.#endRecording = null;
    const output = sound.outputClock(null);
    if (recording === null || output === null || stopped()) {
      // Those that are left would be heard by everybody in a room.
      for (const source of sources) source.stop();
      throw new Error("The sound stopped meanwhile. Try again.");
    }
    if (output.playedLine.errorMs > MOST_DOUBT_MS)
      throw new Error("This computer was too busy to measure it well. Close other programs and try again.");
    const lateMs: (number | null)[] = [];
    for (const frame of frames) {
      lateMs.push(findPulse(recording, shape, output.playedLine.ms + (frame * 1000) / rateHz, rateHz));
      await wait(0);
    }
    const found = agreement(lateMs);
    if (found === null) {
      throw new Error(
        lateMs.every((ms) => ms === null)
          ? "The hisses were not heard in your microphone. Connect output and input with a cable, or turn the loudspeaker up and hold the microphone to it."
          : "The hisses were not heard clearly. Make it quiet, or use a cable, and try again.",
      );
    }
    const reportedMs = output.playedLine.ms - output.renderedLineMs + recording.blockMs;
    return {
      excessMs: found.excessMs,
      // Pulses of one loop agree better than what they are compared with.
      spreadMs: found.spreadMs + output.playedLine.errorMs,
      roundTripMs: found.excessMs + reportedMs,
      atMs: Date.now(),
    };
  }
}
