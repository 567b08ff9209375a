/** One's own devices: the microphone and the output, listed and followed, and what they take by themselves. */

import type { DeviceDelay } from "../shared/messages";
import type { Setup } from "./calibration";
import { isStandIn, listDevices, microphonePermission } from "./devices";
import { LaunchAdvice } from "./launch-advice";
import { LoopBack } from "./loop-back";
import { Microphone } from "./microphone";
import type { Device } from "./model";
import { Output } from "./output";
import type { RunningSound } from "./running-sound";
import { TELLS_OUTPUT } from "./sound";
import type { Store } from "./store";

export class OwnDevices {
  readonly microphone: Microphone;
  readonly output: Output;
  readonly loopBack: LoopBack;
  readonly #store: Store;
  readonly #sound: RunningSound;
  readonly #launchAdvice: LaunchAdvice;

  constructor(store: Store, sound: RunningSound) {
    this.#store = store;
    this.#sound = sound;
    const stopCapture = () => sound.current?.stopCapture();
    const retake = () => void this.#retakeAllowed().catch(() => {});
    this.microphone = new Microphone(store, stopCapture, retake);
    this.output = new Output(store, () => sound.current);
    this.loopBack = new LoopBack(store, () => this.#setup());
    this.#launchAdvice = new LaunchAdvice(store);
    navigator.mediaDevices?.addEventListener("devicechange", () => void this.list());
    // Some browsers do not tell.
    void this.#followPermission().catch(() => {});
  }

  /** It may be given or taken in the browser's own menus. */
  async #followPermission(): Promise<void> {
    const permission = await microphonePermission();
    permission.onchange = () => this.#store.set({ microphoneAllowed: permission.state === "granted" });
    this.#store.set({ microphoneAllowed: permission.state === "granted" });
  }

  async enableMicrophone(): Promise<void> {
    if (await this.microphone.enable(this.#sound.rateHz)) await this.#useMicrophone();
    await this.list();
    // Another may be the system's default by now.
    this.loopBack.recall();
  }

  /** The devices were listed just now. */
  async #retakeMicrophone(): Promise<void> {
    const { inputs } = this.#store.state;
    if (await this.microphone.retake(this.#sound.rateHz)) await this.#useMicrophone();
    else await this.#catchUp(inputs);
    this.loopBack.recall();
  }

  /**
   * The microphone has ended by itself. While the browser allows it nobody has forbidden it: the device or the sound system has begun anew, or it was unplugged, and
   * then it does not open.
   */
  async #retakeAllowed(): Promise<void> {
    const { state } = await microphonePermission();
    if (state === "granted" && this.#store.state.microphone === "ended") await this.#retakeMicrophone();
  }

  async #useMicrophone(): Promise<void> {
    if (this.#sound.current !== null) this.capture();
    else await this.#sound.start().catch((error) => this.#sound.failed(error));
  }

  /** Opens the same one anew, unasked, for one that comes through the audio graph. */
  async #renewMicrophone(): Promise<void> {
    const { inputs } = this.#store.state;
    if (await this.microphone.renew(this.#sound.rateHz)) this.capture(true);
    else await this.#catchUp(inputs);
  }

  /** After a microphone did not open that was asked for when there were these `inputs`: what changed meanwhile was not followed. */
  async #catchUp(inputs: readonly Device[]): Promise<void> {
    if (this.#store.state.inputs !== inputs) await this.list();
  }

  /** Renews a microphone that comes late; to be called ten times a second. Only while the page is seen: a browser that does ask asks there. */
  followInput(): void {
    const isFree =
      document.visibilityState === "visible" && this.#store.state.calibration.phase !== "running";
    if (isFree && this.#sound.current?.isInputLate()) void this.#renewMicrophone();
  }

  /** Captures from the microphone, if it is on. */
  capture(throughGraph = false): void {
    const { stream } = this.microphone;
    if (stream === null) return;
    try {
      this.#sound.current?.capture(stream, this.#store.state.settings.channels, throughGraph);
      this.adviseLaunch();
    } catch (error) {
      this.microphone.giveUp(error, this.#sound.rateHz);
    }
  }

  adviseLaunch(): void {
    this.#launchAdvice.give(this.microphone.latencyMs);
  }

  /** Lists what is there, and takes what was chosen and is back. */
  async list(): Promise<void> {
    if (!navigator.mediaDevices) return;
    const { inputs, outputs } = await listDevices();
    const { inputs: inputsBefore } = this.#store.state;
    this.#store.set({ inputs, outputs });
    if (this.microphone.follow(inputs, inputsBefore)) void this.#retakeMicrophone();
    await this.output.follow(outputs, () => void this.list());
    this.loopBack.follow();
  }

  async calibrate(): Promise<void> {
    const sound = this.#sound.current;
    if (sound === null) {
      this.loopBack.fail("The sound does not run. Start it, then measure again.");
      return;
    }
    // A delay that will be gone tomorrow is not to be measured.
    const prepare = async () => (sound.capturesGraph ? this.#renewMicrophone() : undefined);
    await this.loopBack.run(sound, () => this.#sound.current === sound, prepare);
  }

  /** What the devices take beyond the browser's timestamps: by a loop-back if there was one, else by its word. */
  delays(): { input: DeviceDelay | null; output: DeviceDelay | null } {
    const output = TELLS_OUTPUT ? { isCalibrated: false, ms: 0, errorMs: 0 } : null;
    return this.loopBack.split(this.#reportedInput(), output);
  }

  /** What the input takes beyond what captured blocks' timestamps say, by the browser's own word. */
  #reportedInput(): DeviceDelay | null {
    // Blocks of a track are stamped by the browser, its own delay included as far as it knows it.
    const isStamped = this.#sound.worker.newest.sender.capturePath === "track";
    const ms = isStamped ? 0 : this.microphone.latencyMs;
    return ms === null ? null : { isCalibrated: false, ms, errorMs: 0 };
  }

  #setup(): Setup {
    const { settings, outputs } = this.#store.state;
    const { capturePath } = this.#sound.worker;
    const input = isStandIn(settings.inputDeviceId) ? this.microphone.label : settings.inputDeviceId;
    const outputId = this.output.inUse || "default";
    const output = isStandIn(outputId) ? (outputs.find(({ id }) => id === outputId)?.label ?? "") : outputId;
    return { input, output, quantum: settings.quantum, capturePath, rateHz: this.#sound.rateHz };
  }
}
