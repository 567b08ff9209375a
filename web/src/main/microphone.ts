/** One's own microphone: opened, followed while it is unplugged and plugged in again, and closed. */

import { milliseconds } from "./clock";
import {
  inspectMicrophone,
  isStandIn,
  microphoneFault,
  microphoneProblem,
  openMicrophone,
  rateProblem,
} from "./devices";
import type { Device, MicrophoneFault, Problem, StudioState } from "./model";
import type { Store } from "./store";

/** `latency` is in the standard, but not yet in TypeScript's library. */
type TrackSettings = MediaTrackSettings & { latency?: number };

/** Asked for sooner, Firefox sometimes goes on with the stream that was to end; and what cannot be opened at once may be let go a moment later. */
const RENEWAL_WAITS_MS = [200, 500, 1_000];
/** One that was plugged in is listed before it can be opened. */
const RETAKING_WAITS_MS = [0, ...RENEWAL_WAITS_MS];

/** About one that is not open after so long the browser asks, though another was on: Firefox does. The page misses its sound only later. */
const ASKED_AFTER_MS = 1_500;

export class Microphone {
  readonly #store: Store;
  readonly #stopCapture: () => void;
  #stream: MediaStream | null = null;
  /** How often it was opened or closed: what the browser answers to an earlier question counts no more. */
  #request = 0;
  #openings = 0;
  /** Which one its problems were last said of. */
  #inspected = "";
  /** The one that was opened last, and whether it has been seen to be gone since it ended. */
  #input: { id: string; isMissing: boolean } | null = null;

  readonly #lost: () => void;
  /** Ends the wait for one that is still being opened. */
  #giveUpOpening: () => void = () => {};

  /** `stopCapture` is called when what was captured is not to be any more; `lost` after one has ended by itself that may be there still. */
  constructor(store: Store, stopCapture: () => void, lost: () => void) {
    this.#store = store;
    this.#stopCapture = stopCapture;
    this.#lost = lost;
  }

  /** Null unless it is on. */
  get stream(): MediaStream | null {
    return this.#stream;
  }

  /** Times one was opened. */
  get openings(): number {
    return this.#openings;
  }

  /** What the browser calls it; empty unless it is on. */
  get label(): string {
    return this.#stream?.getAudioTracks()[0]?.label ?? "";
  }

  /** By the word of the browser that has opened it; null where it says none. */
  get latencyMs(): number | null {
    const settings: TrackSettings | undefined = this.#stream?.getAudioTracks()[0]?.getSettings();
    return milliseconds(settings?.latency);
  }

  /** Asks for the one that is chosen, and says why if it does not open. False then, and if it was opened anew or closed meanwhile. */
  async enable(rateHz: number): Promise<boolean> {
    // What was on is on again at once: to say otherwise for that moment would put other words and buttons under the user's hands.
    if (this.#store.state.microphone !== "on") this.#store.set({ microphone: "asking" });
    const opening = this.open(rateHz);
    const request = this.#request;
    try {
      return await opening;
    } catch (error) {
      if (request === this.#request) this.#failed(error);
      return false;
    }
  }

  /**
   * The same for the one that is open, which browsers give again without asking; nothing is captured for a moment. One that has gone in that moment is taken
   * again when it is back.
   */
  renew(rateHz: number): Promise<boolean> {
    return this.#openAgain(rateHz, RENEWAL_WAITS_MS, ["none"]);
  }

  /** The same for the one that had gone and is back, by `follow`. While it does not open, it is taken again whenever the devices change. */
  retake(rateHz: number): Promise<boolean> {
    return this.#openAgain(rateHz, RETAKING_WAITS_MS, ["none", "busy"]);
  }

  /** The one that was opened last, after one of these waits. If it has one of the faults `ofGone` to the end, it is taken for gone. */
  async #openAgain(rateHz: number, waitsMs: number[], ofGone: MicrophoneFault[]): Promise<boolean> {
    const input = this.#input;
    this.#release();
    let request = this.#request;
    let error: unknown;
    for (const waitMs of waitsMs) {
      if (waitMs > 0) await new Promise((resolve) => setTimeout(resolve, waitMs));
      if (request !== this.#request) return false;
      const opening = this.open(rateHz, input?.id);
      request = this.#request;
      try {
        return await opening;
      } catch (reason) {
        error = reason;
      }
      // Who has said no is not asked once more.
      if (microphoneFault(error) === "refused") break;
    }
    if (request !== this.#request) return false;
    if (input === null || !ofGone.includes(microphoneFault(error))) this.#failed(error);
    else {
      this.#input = { id: input.id, isMissing: true };
      this.#ended();
    }
    return false;
  }

  /** False if it was opened anew or closed meanwhile. *Errors* the browser's own. */
  async open(rateHz: number, deviceId = this.#store.state.settings.inputDeviceId): Promise<boolean> {
    const { channels } = this.#store.state.settings;
    this.#release();
    const request = this.#request;
    if (!navigator.mediaDevices) throw new Error("insecure context");
    const ask = () => request === this.#request && this.#store.set({ microphone: "asking" });
    const timer = setTimeout(ask, ASKED_AFTER_MS);
    const opening = openMicrophone(deviceId, channels, rateHz).finally(() => clearTimeout(timer));
    // Who never answers the browser's question keeps nobody waiting for this.
    const givenUp = new Promise<null>((resolve) => {
      this.#giveUpOpening = () => resolve(null);
    });
    const stream = await Promise.race([opening, givenUp]);
    // Allowed after the room was left, or when another microphone was chosen meanwhile.
    if (stream === null || request !== this.#request) {
      opening.then(stopTracks, () => {});
      return false;
    }
    this.#stream = stream;
    const [track] = stream.getAudioTracks();
    const { deviceId: id } = track.getSettings();
    this.#input = id === undefined ? null : { id, isMissing: false };
    track.onended = () => {
      this.#ended();
      // It stands for another one by now, perhaps.
      if (id === undefined || !isStandIn(id)) this.#lost();
    };
    track.onmute = track.onunmute = () => this.#followMute(track);
    this.#followMute(track);
    // Said of another one, though it was dismissed.
    const kind = `${id} ${track.label}`;
    if (kind !== this.#inspected) this.#store.end("input-bluetooth", "input-processed");
    this.#inspected = kind;
    for (const problem of inspectMicrophone(track)) this.#store.raise(problem);
    this.#store.set({ microphone: "on" });
    this.#store.clear("microphone-ended");
    this.#openings++;
    return true;
  }

  /** Also one that the browser still asks about. */
  close(): void {
    this.#release();
    this.#store.clear("microphone-ended");
    this.#followMute({ muted: false });
  }

  /** Muted is what follows until it says otherwise, or fails. */
  #release(): void {
    this.#request++;
    this.#giveUpOpening();
    this.#stopCapture();
    for (const track of this.#stream?.getTracks() ?? []) {
      track.onended = track.onmute = track.onunmute = null;
      track.stop();
    }
    this.#stream = null;
    this.#input = null;
    // That it has gone stands while it is tried again: a screen reader would say it each time.
    this.#store.clear("microphone", "input-bluetooth", "input-processed");
    this.#store.end("input-gone");
  }

  /**
   * After `inputs` has changed from `before`. Ends a microphone that has gone: where the sound system goes on with another one
   * (PulseAudio, PipeWire), Chromium does not say so, and the others would hear the room. True if one that had gone is back: it is to be asked for again.
   */
  follow(inputs: readonly Device[], before: readonly Device[]): boolean {
    const input = this.#input;
    if (input === null) return false;
    const gone = without(before, inputs);
    const isOn = this.#store.state.microphone === "on";
    // Which one that is, or was, no browser says there.
    if (isOn && isStandIn(input.id) && gone.length > 0) {
      this.#store.end("input-gone");
      this.#store.raise({
        id: "input-gone",
        severity: "warning",
        title: `“${gone[0].label}” has gone. If you played on it, the system may have gone on with another.`,
        remedy:
          "Look at your level. Or choose your input under Sound settings: then the page knows when it has gone.",
      });
    }
    const isThere = inputs.some(({ id }) => id === input.id);
    // None at all are listed where the browser names none.
    if (isOn && !isThere && inputs.length > 0) {
      if (this.#stream !== null) stopTracks(this.#stream);
      this.#ended();
    }
    if (this.#store.state.microphone !== "ended") return false;
    // A default is listed whatever it stands for: what has come may be what it stood for.
    const isPlugged = isStandIn(input.id) && without(inputs, before).length > 0;
    const isBack = isThere && (input.isMissing || isPlugged);
    input.isMissing = !isThere;
    return isBack;
  }

  /** Closes one that opened and cannot be captured, and says why. */
  giveUp(error: unknown, rateHz: number): void {
    this.#release();
    if (!(error instanceof DOMException && error.name === "NotSupportedError")) {
      this.#failed(error);
      return;
    }
    this.#off("mismatched", rateProblem(rateHz));
  }

  #failed(error: unknown): void {
    this.#store.clear("microphone-ended");
    this.#off(microphoneFault(error), microphoneProblem(error));
  }

  /** First why none is on: one that is muted no more is heard. */
  #off(microphone: StudioState["microphone"], problem: Problem): void {
    this.#store.set({ microphone });
    this.#followMute({ muted: false });
    this.#store.raise(problem);
  }

  /** By the browser, by the system or by a switch of its own: never by this page. */
  #followMute({ muted }: { muted: boolean }): void {
    this.#store.set({ inputMuted: muted });
    if (!muted) {
      this.#store.clear("input-muted");
      return;
    }
    this.#store.raise({
      id: "input-muted",
      severity: "error",
      title: "The browser or the system has muted your microphone: nobody hears you.",
      remedy:
        "Switch it on where it was switched off: beside the page's address, on the microphone itself, or in the system.",
    });
  }

  #ended(): void {
    this.#stopCapture();
    this.#stream = null;
    this.#store.end("input-gone");
    this.#off("ended", {
      id: "microphone-ended",
      severity: "error",
      title: "The microphone has gone: nobody hears you.",
      remedy:
        "Plug it in again, and it is taken again, or choose another. If you have forbidden it, allow it beside the page's address, then press “Try the microphone again”. You still hear the others.",
    });
  }
}

function stopTracks(stream: MediaStream): void {
  for (const track of stream.getTracks()) track.stop();
}

function without(devices: readonly Device[], others: readonly Device[]): Device[] {
  return devices.filter(({ id }) => !others.some((other) => other.id === id));
}
