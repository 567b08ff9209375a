/** The sound while it runs: started and started anew, held back by the browser, standing still, and stopped. */

import type { FromWorker } from "../shared/messages";
import type { RelayOffer } from "../shared/relay";
import { ONLY_SECURE } from "./devices";
import type { Problem } from "./model";
import type { SendingFormat } from "./sending-format";
import type { Automation } from "./settings";
import { NotLoaded, Sound, type Transport } from "./sound";
import type { Store } from "./store";
import { type StreamNumber, streamNumber } from "./stream-number";
import { WorkerStats } from "./worker-stats";

/** Sound that has not started after so long is held back: some outputs take a second to begin. */
const HELD_BACK_MS = 1_500;
const NO_STANDSTILL = { audio: false, worker: false };

/** What the sound asks of whoever makes use of it. */
export interface SoundHost {
  /** It runs from now on. */
  began(): void;
  receive(message: FromWorker): void;
  /** It may play elsewhere from now on. */
  outputFailed(): void;
  /** It is about to be closed. */
  ended(): void;
  /** The user wants it started again, after it has stopped by itself. */
  recover(): void;
}

const INSECURE: Problem = {
  id: "sound",
  severity: "error",
  title: "This page came by plain http://: there is no sound.",
  remedy: ONLY_SECURE,
};

export class RunningSound {
  readonly transport: Transport;
  /** Of the room: the sound has it from its next start on. */
  rateHz: number;
  /** What its worker has told. */
  readonly worker = new WorkerStats();
  readonly #store: Store;
  readonly #format: SendingFormat;
  readonly #host: SoundHost;
  #current: Sound | null = null;
  #starting: Promise<void> | null = null;
  /** How often it was stopped: what was begun before is not to be followed. */
  #stops = 0;
  #relayOffer: RelayOffer | null = null;
  /** As it was seen last. */
  #standstill = NO_STANDSTILL;
  #heldBackTimer: ReturnType<typeof setTimeout> | undefined;
  /** The audio graph, since this sound began. */
  #hasRun = false;
  /** Since the sound ran last. */
  #outputHasFailed = false;

  constructor(store: Store, { port, rateHz }: Automation, format: SendingFormat, host: SoundHost) {
    this.transport = crossOriginIsolated && !port ? "shared" : "port";
    this.rateHz = rateHz;
    this.#store = store;
    this.#format = format;
    this.#host = host;
    if (!isSecureContext) store.raise(INSECURE);
    else if (!crossOriginIsolated) {
      store.raise({
        id: "not-isolated",
        severity: "warning",
        title: "This page cannot share memory between its threads.",
        remedy:
          "It still works, with more delay. Whoever runs the server should check its COOP and COEP headers.",
      });
    }
    // A browser that waits for the user to do something waits for anything.
    for (const gesture of ["click", "keydown"]) addEventListener(gesture, () => this.#resumeSuspended());
    addEventListener(
      "visibilitychange",
      () => document.visibilityState === "visible" && this.#resumeSuspended(),
    );
  }

  /** Null unless it runs. */
  get current(): Sound | null {
    return this.#current;
  }

  /** What the audio thread says of a stream, in these `numbers()` of the sound. */
  number(stream: number, numbers: Float64Array | undefined): StreamNumber {
    const at = numbers === undefined ? -1 : (this.#current?.offsetOf(numbers, stream) ?? -1);
    return streamNumber(numbers, at);
  }

  /** Which relay to use, if any: now, and after each start. */
  setRelay(offer: RelayOffer | null): void {
    this.#relayOffer = offer;
    this.#current?.setRelay(offer);
  }

  /** With the microphone, if it is on. Once, though it may be allowed and the room joined at the same time. */
  start(): Promise<void> {
    if (this.#starting !== null) return this.#starting;
    const starting = this.#make().finally(() => {
      if (this.#starting === starting) this.#starting = null;
    });
    this.#starting = starting;
    return starting;
  }

  /** Once the sound that is being started runs or has failed: what was chosen meanwhile, it does not know. */
  async started(): Promise<void> {
    await this.#starting?.catch(() => {});
  }

  async #make(): Promise<void> {
    if (this.#current !== null) return;
    const { transport, rateHz } = this;
    const { quantum, outputDeviceId } = this.#store.state.settings;
    const options = { transport, rateHz, quantum, outputDeviceId, sender: this.#format.config };
    const stops = this.#stops;
    const isOver = () => stops !== this.#stops;
    const receive = (message: FromWorker) => {
      if (!isOver()) this.#host.receive(message);
    };
    const outputFailed = () => {
      if (isOver()) return;
      this.#outputHasFailed = true;
      this.#host.outputFailed();
    };
    const sound = await Sound.start(options, receive, outputFailed).catch((error) => {
      if (!isOver()) throw error;
      return null;
    });
    if (sound === null || isOver()) {
      await sound?.close();
      return;
    }
    this.#current = sound;
    this.#store.clear("sound");
    // It may have been chosen anew meanwhile.
    this.#current.configureSender(this.#format.config);
    this.#format.advise();
    this.#current.setMuted(this.#store.state.selfMuted);
    this.#current.setRelay(this.#relayOffer);
    const { context } = this.#current;
    context.onstatechange = () => this.#checkContext(context);
    this.#checkContext(context);
    this.#followCapture();
    this.#host.began();
  }

  async restart(): Promise<void> {
    await this.stop();
    await this.start();
  }

  /** Also one that is being started, as soon as it runs. */
  async stop(): Promise<void> {
    const sound = this.#current;
    this.#current = null;
    this.#starting = null;
    this.#stops++;
    this.#standstill = NO_STANDSTILL;
    this.#hasRun = false;
    this.#outputHasFailed = false;
    if (sound === null) return;
    this.worker.forget();
    this.#host.ended();
    sound.context.onstatechange = null;
    clearTimeout(this.#heldBackTimer);
    this.#store.set({ heldBack: false, captures: false });
    this.#store.clear("sound-stopped", "suspended");
    await sound.close();
  }

  /** Says why it did not start. */
  failed(error: unknown): void {
    if (!isSecureContext) {
      this.#store.raise(INSECURE);
      return;
    }
    // Elsewhere one joins anew.
    const again =
      this.#store.state.phase === "lobby"
        ? { action: { label: "Try again", run: () => this.#host.recover() } }
        : {};
    const words =
      error instanceof NotLoaded
        ? {
            title: "A part of this page could not be loaded: there is no sound.",
            remedy: `Check your network and try again, or reload the page. The browser says: ${error.message}`,
          }
        : {
            title: "The browser could not start its sound.",
            remedy: `Check that a loudspeaker or headphones are connected, then try again. The browser says: ${String(error)}`,
          };
    this.#store.raise({ id: "sound", severity: "error", ...words, ...again });
  }

  /** Looks at the output's clock, and whether a thread stands still; to be called ten times a second. True if that has changed of the worker. */
  observe(): boolean {
    if (this.#current === null) return false;
    this.#current.observeOutput();
    if (this.#current.context.state === "running") this.#outputHasFailed = false;
    const before = this.#standstill;
    const now = this.#current.standstill();
    this.#standstill = now;
    const hadStopped = before.audio || before.worker;
    const hasStopped = now.audio || now.worker;
    // Each is said once: it may go on by itself, as after a sleep.
    if (hasStopped && !hadStopped) this.#stopped();
    if (hadStopped && !hasStopped) this.#store.clear("sound-stopped");
    this.#followCapture();
    return now.worker !== before.worker;
  }

  /** What comes straight from the microphone's track needs neither the audio thread nor the output that drives it. */
  #followCapture(): void {
    const { audio, worker } = this.#standstill;
    const { heldBack, captures: before } = this.#store.state;
    const isGraphAlive = this.#hasRun && !audio && !heldBack;
    const captures = !worker && (this.#current?.capturesTrack === true || isGraphAlive);
    if (captures !== before) this.#store.set({ captures });
  }

  /** Nothing moves on the lanes there may be. */
  get isWorkerStill(): boolean {
    return this.#standstill.worker;
  }

  #stopped(): void {
    const { phase, isOwner, participants } = this.#store.state;
    const hasHeir = phase === "joined" && isOwner && participants.some(({ isLoop }) => !isLoop);
    this.#store.raise({
      id: "sound-stopped",
      severity: "error",
      title: "The browser's sound engine stopped.",
      remedy: `You hear nobody, and may not be heard, until it is started again.${hasHeir ? " For that you leave the room for a moment, and somebody else will own it." : ""}`,
      action: { label: "Restart the sound", run: () => this.#host.recover() },
    });
  }

  #checkContext(context: AudioContext): void {
    clearTimeout(this.#heldBackTimer);
    if (context.state === "running") this.#hasRun = true;
    if (context.state === "running" || context.state === "closed") {
      this.#store.set({ heldBack: false });
      this.#store.clear("suspended");
      return;
    }
    this.#resumeSuspended();
    this.#heldBackTimer = setTimeout(() => this.#heldBack(context.state === "interrupted"), HELD_BACK_MS);
  }

  #heldBack(isInterrupted: boolean): void {
    const [title, remedy] = isInterrupted
      ? [
          "Something else on this device has taken the sound.",
          "A call, perhaps. Start it again when that is over.",
        ]
      : this.#outputHasFailed
        ? [
            "The output could not be used: there is no sound.",
            "Choose another under Sound settings, or close the program that holds it, then start the sound again.",
          ]
        : ["The browser has not started the sound.", "It waits for a click on the page."];
    this.#store.set({ heldBack: true });
    const action = { label: "Start the sound", run: () => this.#resume() };
    this.#store.raise({ id: "suspended", severity: "error", title, remedy, action });
  }

  /** To ask while something else has the sound may leave it running without a sound: that is for who uses the page to say. */
  #resumeSuspended(): void {
    if (this.#current?.context.state === "suspended") this.#resume();
  }

  #resume(): void {
    const context = this.#current?.context;
    if (context === undefined || context.state === "running" || context.state === "closed") return;
    // What is refused shows in the state.
    context.resume().catch(() => {});
  }
}
