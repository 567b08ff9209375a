/** The session: its parts put together, behind the interface that the page and the automation use. */

import { COMMAND, type Pin } from "../shared/engine";
import type { FromWorker } from "../shared/messages";
import { WORKLET_STATS } from "../shared/snapshot";
import type { Stats, Trace } from "../shared/stats";
import { Awake } from "./awake";
import { milliseconds } from "./clock";
import { Hearing } from "./hearing";
import { NO_CALIBRATION } from "./loop-back";
import { Members } from "./members";
import { Meters } from "./meters";
import type { Buffer, Entry, Levels, Settings, StudioApi, StudioState } from "./model";
import { OwnDevices } from "./own-devices";
import { Room } from "./room";
import { RunningSound } from "./running-sound";
import { SendingFormat } from "./sending-format";
import { type Automation, givenName, nameOf, storeSettings } from "./settings";
import { keepText, ofTab, readText } from "./storage";
import { Store } from "./store";
import { Taking } from "./taking";
import { Tracing } from "./tracing";

/** How often it is looked at the output's clock, the peers' ways and how they are heard. */
const OBSERVE_MS = 100;

/** Whoever has muted oneself in a room is so after a reload, too: nobody is to be live unawares. */
const mutedKey = (room: string) => `antiphon.muted ${room}`;

export class Studio implements StudioApi {
  readonly #store: Store;
  readonly #format: SendingFormat;
  readonly #sound: RunningSound;
  readonly #devices: OwnDevices;
  readonly #members: Members;
  readonly #taking: Taking;
  readonly #hearing: Hearing;
  readonly #meters: Meters;
  readonly #room: Room;
  readonly #tracing = new Tracing();
  #observer: ReturnType<typeof setInterval> | undefined;

  constructor(room: string, settings: Settings, automation: Automation) {
    this.#store = new Store({
      phase: "lobby",
      room,
      link: `${location.origin}/r/${room}`,
      signalling: "offline",
      settings,
      inputs: [],
      outputs: [],
      outputSelectable: "setSinkId" in AudioContext.prototype,
      microphone: "unasked",
      microphoneAllowed: false,
      inputMuted: false,
      heldBack: false,
      captures: false,
      selfMuted: readText(mutedKey(room), ofTab) === "yes",
      looping: false,
      isOwner: false,
      mutedByOwner: false,
      locked: false,
      roomPassphrase: null,
      passphrase: "none",
      refusals: 0,
      calibration: NO_CALIBRATION,
      participants: [],
      problems: [],
    });
    this.#format = new SendingFormat(this.#store, () => this.#sound.rateHz);
    this.#sound = new RunningSound(this.#store, automation, this.#format, {
      began: () => this.#soundBegan(),
      receive: (message) => this.#handleWorker(message),
      ended: () => this.#soundEnded(),
      outputFailed: () => void this.#devices.list(),
      recover: () => void this.#room.recoverSound(),
    });
    this.#devices = new OwnDevices(this.#store, this.#sound);
    this.#members = new Members(this.#store, this.#sound, automation, {
      signal: (to, data) => this.#room.signal(to, data),
      removed: (id) => this.#meters.forget(id),
    });
    this.#taking = new Taking(this.#store, this.#sound, this.#members);
    this.#hearing = new Hearing(this.#sound, this.#devices, this.#members, this.#taking);
    this.#meters = new Meters(this.#sound, this.#members);
    this.#room = new Room(this.#store, this.#sound, this.#devices, this.#members, automation.loop);
    const awake = new Awake();
    this.#store.subscribe(() => awake.follow(this.state.phase === "joined"));
  }

  get state(): StudioState {
    return this.#store.state;
  }

  subscribe(listener: () => void): () => void {
    return this.#store.subscribe(listener);
  }

  // ---- Devices ----

  enableMicrophone(): Promise<void> {
    return this.#devices.enableMicrophone();
  }

  async change(asked: Partial<Settings>): Promise<void> {
    const settings = asked.name === undefined ? asked : { ...asked, name: nameOf(asked.name) || givenName() };
    const before = this.state.settings;
    const after = { ...before, ...settings };
    this.#store.set({ settings: after });
    storeSettings(settings);
    const changed = (key: keyof Settings) => after[key] !== before[key];
    if (changed("name")) {
      this.#room.rename();
      // Another of that name is told apart.
      this.#members.publish();
    }
    if (changed("outputDeviceId")) await this.#sound.started().then(() => this.#devices.output.choose());
    if (changed("inputDeviceId") || changed("outputDeviceId") || changed("quantum"))
      this.#devices.loopBack.recall();
    if (changed("quantum")) await this.#room.followQuantum();
    const { microphone } = this.state;
    const isOpened = microphone === "on" || microphone === "asking";
    if ((changed("inputDeviceId") && microphone !== "unasked") || (changed("channels") && isOpened))
      await this.enableMicrophone();
    const sent = ["bits", "opusKbps", "copies", "adapt", "lanes", "packet", "channels"] as const;
    if (sent.some(changed)) {
      this.#format.advise();
      this.#sound.current?.configureSender(this.#format.config);
    }
    if (changed("buffer")) {
      this.#members.setBuffers(after.buffer);
      this.#taking.setBuffer(after.buffer);
    }
    if (changed("lanes")) this.#members.wantLanes(after.lanes);
  }

  calibrate(): Promise<void> {
    return this.#devices.calibrate();
  }

  forgetCalibration(): void {
    this.#devices.loopBack.forget();
  }

  // ---- Sound ----

  #soundBegan(): void {
    this.#observer = setInterval(() => this.#observe(), OBSERVE_MS);
    this.#meters.begin();
    this.#devices.capture();
    // It may have another rate than the one before.
    this.#devices.loopBack.recall();
    void this.#devices.list();
  }

  #soundEnded(): void {
    clearInterval(this.#observer);
    this.#meters.end();
    this.#taking.end();
    this.#devices.output.presume();
  }

  /** Follows what no event tells of. */
  #observe(): void {
    if (this.#sound.observe()) this.#members.publish();
    this.#devices.followInput();
    this.#taking.follow();
    this.#hearing.report();
  }

  #handleWorker(message: FromWorker): void {
    switch (message.type) {
      case "stats": {
        const { capturePath } = this.#sound.worker;
        this.#sound.worker.take(message);
        this.#meters.addInput(message.sender.peak);
        if (this.#sound.worker.capturePath !== capturePath) this.#devices.loopBack.recall();
        this.#members.publishConnections();
        break;
      }
      case "lanes-wanted":
        if (this.state.settings.lanes === "auto")
          this.#members.peerOfStream(message.stream)?.wantLanes(message.count);
        break;
      case "lane-closed":
        this.#members.laneClosed(message.stream, message.lane, message.epoch);
        break;
      case "recording":
        this.#devices.loopBack.handleRecording(message);
        break;
      case "trace":
        this.#tracing.handleRows(message.rows);
        break;
      case "opus-failed":
        this.#format.opusFailed(message.reason);
        break;
      case "capture-ended":
        // The track runs at another rate than the room, or broke: the audio graph resamples and may still have it.
        this.#devices.capture(true);
        break;
    }
  }

  // ---- Room ----

  join(entry?: Entry): Promise<void> {
    return this.#room.join(entry);
  }
  rejoin(): Promise<void> {
    return this.#room.rejoin();
  }
  toLobby(): Promise<void> {
    return this.#room.toLobby();
  }
  leave(): void {
    this.#room.leave();
  }
  stopJoining(): void {
    this.#room.stopJoining();
  }
  moderate(id: string, action: "mute" | "unmute" | "remove"): boolean {
    return this.#room.moderate(id, action);
  }
  lock(passphrase: string | null): boolean {
    return this.#room.lock(passphrase);
  }

  // ---- Controls ----

  setSelfMuted(selfMuted: boolean): void {
    this.#store.set({ selfMuted });
    keepText(mutedKey(this.state.room), selfMuted ? "yes" : "no", ofTab);
    this.#sound.current?.setMuted(selfMuted);
  }

  async setLoop(looping: boolean): Promise<void> {
    this.#members.setLoop(looping);
  }

  setGain(id: string, gain: number): void {
    this.#members.control(id, { gain }, COMMAND.gain, gain);
  }
  setPan(id: string, pan: number): void {
    this.#members.control(id, { pan }, COMMAND.pan, pan);
  }
  setMuted(id: string, muted: boolean): void {
    this.#members.mix(id, { muted });
  }
  setSolo(id: string, solo: boolean): void {
    this.#members.control(id, { solo }, COMMAND.solo, Number(solo));
  }

  setBuffer(id: string, buffer: Buffer): void {
    this.#members.setBuffer(id, buffer);
  }
  setPin(id: string, pin: Pin): void {
    this.#members.setPin(id, pin);
  }

  dismiss(problemId: string): void {
    this.#store.dismiss(problemId);
  }

  // ---- Figures ----

  levels(): Levels {
    return this.#meters.levels();
  }

  /** `window.antiphon.stats()`: the peaks are those since it was last called, whatever the page reads meanwhile. */
  automationStats(): Stats {
    return this.#meters.withPeaks(this.stats());
  }

  stats(): Stats {
    const sound = this.#sound.current;
    const numbers = sound?.numbers();
    const { settings, room, signalling } = this.state;
    const { chosen } = this.#format;
    const { newest } = this.#sound.worker;
    return {
      version: 2,
      timeMs: Date.now(),
      room,
      id: this.#members.selfId,
      name: this.#room.ownName,
      signalling,
      crossOriginIsolated,
      transport: this.#sound.transport,
      sampleRateHz: sound?.context.sampleRate ?? null,
      quantumFrames: numbers?.[WORKLET_STATS.quantumFrames] || null,
      packetFrames: settings.packet,
      bits: settings.bits === "opus" ? null : settings.bits,
      format: chosen.format,
      opusBps: chosen.opusBps,
      channels: settings.channels,
      reportedBaseLatencyMs: milliseconds(sound?.context.baseLatency),
      reportedOutputLatencyMs: sound?.reportedOutputLatencyMs() ?? null,
      reportedInputLatencyMs: this.#devices.microphone.latencyMs,
      microphoneOpenings: this.#devices.microphone.openings,
      outputUnderruns: sound?.outputUnderruns() ?? null,
      slippedFrames: numbers?.[WORKLET_STATS.slippedFrames] ?? 0,
      quanta: numbers?.[WORKLET_STATS.quanta] ?? 0,
      ringOverflows:
        newest.ringOverflows +
        (numbers?.[WORKLET_STATS.captureOverflows] ?? 0) +
        (numbers?.[WORKLET_STATS.discards] ?? 0),
      strayDatagrams: numbers?.[WORKLET_STATS.stray] ?? 0,
      sender: newest.sender,
      relay: newest.relay,
      mix: this.#hearing.mixStats(numbers),
      peers: this.#hearing.peerStats(numbers),
    };
  }

  /**
   * Records for `seconds` (more than 0, at most 60) when blocks are captured and datagrams sent and received.
   *
   * *Errors* before the sound runs, while another trace is under way, and if the sound stops meanwhile.
   */
  async trace(seconds: number): Promise<Trace> {
    const sound = this.#sound.current;
    if (sound === null) throw new Error("no sound runs yet: nothing to trace");
    const participants = () =>
      new Map(this.#members.all.map(({ participant, stream }) => [stream, participant.id]));
    return this.#tracing.run(sound, seconds, participants);
  }
}
