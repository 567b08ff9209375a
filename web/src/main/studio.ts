/** The session: devices, room, peers and sound, behind the interface that the page and the automation use. */

import { COMMAND, type Pin } from "../shared/engine";
import type { FromWorker } from "../shared/messages";
import { WORKLET_STATS } from "../shared/snapshot";
import type { Stats, Trace } from "../shared/stats";
import { Awake } from "./awake";
import { milliseconds } from "./clock";
import { closedDoorWords, type Stopped, stoppedBy } from "./door";
import { Hearing } from "./hearing";
import { accepted } from "./ice";
import { NO_CALIBRATION } from "./loop-back";
import { Members } from "./members";
import { Meters } from "./meters";
import type { Buffer, Entry, Levels, Problem, Settings, StudioApi, StudioState } from "./model";
import { OwnDevices } from "./own-devices";
import { DEFAULT_NAME } from "./remembered";
import { RunningSound } from "./running-sound";
import { SendingFormat } from "./sending-format";
import { type Automation, nameOf, storeSettings } from "./settings";
import { type FromServer, newSecret, Signalling, type Trouble, type Welcome } from "./signalling";
import { Store } from "./store";
import { Taking } from "./taking";
import { Tracing } from "./tracing";
import { WorkerStats } from "./worker-stats";

/** How often the output's clock is looked at, and what the worker is told of it. */
const OBSERVE_MS = 100;

export class Studio implements StudioApi {
  readonly #store: Store;
  readonly #tracing = new Tracing();
  readonly #automation: Automation;
  readonly #format: SendingFormat;
  readonly #sound: RunningSound;
  readonly #devices: OwnDevices;
  /** Whether the microphone was on when the room was left. */
  #hadMicrophone = false;
  #signalling: Signalling | null = null;
  readonly #secret = newSecret();
  /** Why the door stays closed, as it was said last since somebody wanted in. */
  #trouble: Trouble | null = null;
  /** One message of the server at a time: some wait for the sound, and so does a change of it. */
  #inbox: Promise<void> = Promise.resolve();
  /** What was said at the door, or is to be said there since the owner locked the room. */
  #passphrase: string | null = null;
  readonly #members: Members;
  readonly #taking: Taking;
  readonly #hearing: Hearing;
  readonly #meters: Meters;
  readonly #worker = new WorkerStats();
  #observer: ReturnType<typeof setInterval> | undefined;

  constructor(room: string, settings: Settings, automation: Automation) {
    this.#automation = automation;
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
      inputMuted: false,
      heldBack: false,
      selfMuted: false,
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
      recover: () => void this.#recoverSound(),
    });
    this.#devices = new OwnDevices(this.#store, this.#sound, this.#worker);
    this.#members = new Members(this.#store, this.#sound, this.#worker, automation.pin, {
      signal: (to, data) => this.#signalling?.send({ type: "signal", to, data }) ?? false,
      removed: (id) => this.#meters.forget(id),
    });
    this.#taking = new Taking(this.#store, this.#sound, this.#worker, this.#members);
    this.#hearing = new Hearing(this.#sound, this.#worker, this.#devices, this.#members, this.#taking);
    this.#meters = new Meters(this.#sound, this.#members);
    // A page that goes away says so, instead of leaving the others to wait for its return.
    addEventListener("pagehide", () => this.#signalling?.leave());
    // Browsers may bring it back as it was.
    addEventListener("pageshow", ({ persisted }) => persisted && this.#comeBack());
    const awake = new Awake();
    this.#store.subscribe(() => awake.follow(this.#state.phase === "joined"));
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
    const settings = asked.name === undefined ? asked : { ...asked, name: nameOf(asked.name) };
    const before = this.#state.settings;
    const after = { ...before, ...settings };
    this.#set({ settings: after });
    storeSettings(settings);
    const changed = (key: keyof Settings) => after[key] !== before[key];
    if (changed("name")) this.#signalling?.rename(this.#displayName());
    if (changed("outputDeviceId")) await this.#sound.started().then(() => this.#devices.output.choose());
    if (changed("inputDeviceId") || changed("outputDeviceId") || changed("quantum")) this.#devices.loopBack.recall();
    // A welcome waits meanwhile: lanes need the sound.
    if (changed("quantum")) await this.#inTurn(() => this.#sound.started().then(() => this.#followQuantum()));
    const { microphone } = this.#state;
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
    void this.#devices.list();
  }

  #soundEnded(): void {
    clearInterval(this.#observer);
    this.#meters.end();
    this.#taking.end();
    this.#worker.forget();
    this.#devices.output.presume();
  }

  /** Not in a room: lanes would end with their worker. */
  async #followQuantum(): Promise<void> {
    const { current } = this.#sound;
    const isCurrent = current === null || current.quantum === this.#state.settings.quantum;
    if (isCurrent || this.#state.phase === "joined") return;
    await this.#sound.restart().catch((error) => {
      this.stopJoining();
      this.#sound.failed(error);
    });
  }

  /** In a room by joining it anew: the lanes end with the worker that has them. */
  async #recoverSound(): Promise<void> {
    if (this.#state.phase === "lobby") {
      await this.#sound.restart().catch((error) => this.#sound.failed(error));
      return;
    }
    this.leave();
    await this.rejoin();
  }

  /** Looks at the output's clock, and tells the worker how the streams are heard. */
  #observe(): void {
    if (this.#sound.observe()) this.#members.publish();
    this.#devices.followInput();
    this.#taking.follow();
    this.#hearing.report();
  }

  #handleWorker(message: FromWorker): void {
    switch (message.type) {
      case "stats": {
        const { capturePath } = this.#worker;
        this.#worker.take(message);
        this.#meters.addInput(message.sender.peak);
        if (this.#worker.capturePath !== capturePath) this.#devices.loopBack.recall();
        this.#members.publishConnections();
        break;
      }
      case "lanes-wanted":
        if (this.#state.settings.lanes === "auto") this.#members.peerOfStream(message.stream)?.wantLanes(message.count);
        break;
      case "lane-closed":
        this.#members.peerOfStream(message.stream)?.laneClosed(message.lane, message.epoch);
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

  async join({ passphrase, microphone = false }: Entry = {}): Promise<void> {
    if (passphrase !== undefined) this.#passphrase = passphrase.trim() || null;
    this.#clear("server");
    this.#trouble = null;
    this.#set({ phase: "joining" });
    try {
      if (microphone) await this.enableMicrophone();
      await this.#sound.start();
    } catch (error) {
      this.#set({ phase: "lobby" });
      this.#sound.failed(error);
      return;
    }
    this.#clear("sound");
    const signalling = new Signalling(
      this.#state.room,
      this.#secret,
      {
        name: this.#displayName(),
        sample_rate_hz: this.#sound.rateHz,
        ...(this.#passphrase === null ? {} : { passphrase: this.#passphrase }),
      },
      (message) => {
        this.#inTurn(async () => {
          if (this.#signalling === signalling) await this.#handleServer(message);
        }).catch((error) => this.#messageFailed(error));
      },
      (status, trouble) => this.#handleStatus(status, trouble),
    );
    this.#signalling = signalling;
  }

  #inTurn(act: () => Promise<void>): Promise<void> {
    const done = this.#inbox.then(act);
    this.#inbox = done.catch(() => {});
    return done;
  }

  /** What the server said could not be done: who is not in yet can try again. */
  #messageFailed(error: unknown): void {
    this.stopJoining();
    this.#raise({
      id: "server",
      severity: "error",
      title: "This page could not do what the server said.",
      remedy: `Reload it, or take another browser. The browser says: ${String(error)}`,
    });
  }

  rejoin(): Promise<void> {
    return this.join({ microphone: this.#hadMicrophone });
  }

  async toLobby(): Promise<void> {
    this.#set({ phase: "lobby" });
    if (this.#hadMicrophone) await this.enableMicrophone();
  }

  leave(): void {
    this.#end("left");
  }

  /** To where it was when the page went away. */
  #comeBack(): void {
    this.stopJoining();
    if (this.#state.phase !== "joined") return;
    this.leave();
    void this.rejoin();
  }

  stopJoining(): void {
    if (this.#state.phase !== "joining" || this.#signalling === null) return;
    this.#backToLobby(this.#state.passphrase);
  }

  #end(phase: "left" | "failed" | "removed"): void {
    this.#disconnect(phase);
    void this.#sound.stop();
    this.#devices.microphone.close();
    this.#hadMicrophone = this.#state.microphone === "on";
    this.#sound.setRelay(null);
    this.#set({ looping: false, microphone: "unasked", signalling: "offline", passphrase: "none" });
  }

  /** From the room: its members go, and what was said of the server with it. First the phase, or each of them would be said to leave. */
  #disconnect(phase: StudioState["phase"]): void {
    this.#set({ phase });
    this.#signalling?.leave();
    this.#signalling = null;
    this.#members.removeAll();
    this.#setMutedByOwner(false);
    this.#store.end("server-gone", "not-ordered", "ice", "unlocked");
  }

  #displayName(): string {
    return this.#state.settings.name || DEFAULT_NAME;
  }

  #handleStatus(signalling: StudioState["signalling"], trouble?: Trouble): void {
    this.#set({ signalling });
    if (signalling === "connecting") this.#sound.current?.holdRelay();
    if (signalling === "online") this.#store.end("server-gone", "not-ordered");
    else if (signalling === "connecting" && this.#state.phase === "joined") {
      this.#raise({
        id: "server-gone",
        severity: "warning",
        title: "The server does not answer.",
        remedy:
          "You go on playing with those you are directly connected to; sound through the server waits, and others cannot join meanwhile. The page keeps trying by itself.",
      });
    } else if (this.#state.phase === "joining" && trouble !== undefined && trouble !== this.#trouble) {
      // It is found at each try, and may have been dismissed.
      this.#trouble = trouble;
      this.#raise({ id: "server-gone", severity: "error", ...closedDoorWords[trouble] });
    }
  }

  async #handleServer(message: FromServer): Promise<void> {
    switch (message.type) {
      case "welcome":
        await this.#handleWelcome(message);
        break;
      case "joined":
        this.#members.meet(message.participant, false);
        break;
      case "away":
        this.#members.update(message.id, { present: false });
        break;
      case "back":
        this.#members.update(message.id, { present: true });
        this.#members.sayAgain(message.id);
        break;
      case "renamed":
        this.#members.rename(message.id, message.name);
        break;
      case "left":
        this.#members.remove(message.id);
        break;
      case "owner":
        this.#members.setOwner(message.id);
        break;
      case "muted":
        if (message.id === this.#members.selfId) this.#setMutedByOwner(message.muted);
        else this.#members.update(message.id, { mutedByOwner: message.muted });
        break;
      case "locked":
        this.#passphrase = message.passphrase;
        if (message.locked) this.#store.end("unlocked");
        this.#set({ locked: message.locked, roomPassphrase: message.passphrase });
        break;
      case "relay":
        this.#sound.setRelay(message.relay);
        break;
      case "signal":
        this.#members.peer(message.from)?.handle(message.data);
        break;
      case "error":
        this.#handleServerError(message.code, message.message);
        break;
    }
  }

  async #handleWelcome(welcome: Welcome): Promise<void> {
    this.#members.enter(welcome.id, this.#accepted(welcome.ice_servers));
    if (welcome.sample_rate_hz !== this.#sound.rateHz) {
      this.#sound.rateHz = welcome.sample_rate_hz;
      // Their lanes end with the worker that has them.
      this.#members.removeAll();
      const { microphone } = this.#state;
      const signalling = this.#signalling;
      if (microphone === "on" || microphone === "mismatched") await this.#devices.microphone.enable(this.#sound.rateHz);
      // It ended with the room that was left meanwhile; in the lobby it goes on, and is to have this rate.
      if (this.#sound.current === null) return;
      try {
        await this.#sound.restart();
      } catch (error) {
        if (this.#signalling !== signalling) return;
        this.#backToLobby("none");
        this.#sound.failed(error);
      }
      if (this.#signalling !== signalling) return;
    }
    if (!welcome.locked) this.#passphrase = null;
    this.#sound.setRelay(welcome.relay);
    this.#members.meetAll(welcome.participants, welcome.resumed);
    const isFirst = this.#state.phase !== "joined";
    if (welcome.locked) this.#store.end("unlocked");
    else if (this.#state.locked && !isFirst && !welcome.resumed) this.#sayUnlocked();
    if (isFirst) this.#devices.adviseLaunch();
    else this.#sound.current?.doubtLanes();
    // First who owns the room: whoever comes in is told of changes from then on.
    this.#members.setOwner(welcome.owner);
    const { locked } = welcome;
    this.#set({ phase: "joined", locked, roomPassphrase: this.#passphrase, passphrase: "none" });
    this.#setMutedByOwner(welcome.muted);
    if ((isFirst && this.#automation.loop) || this.#state.looping) await this.setLoop(true);
  }

  /** A server that was restarted made the room again without its lock. */
  #sayUnlocked(): void {
    this.#raise({
      id: "unlocked",
      severity: "warning",
      title: "This room was locked, and is open now.",
      remedy:
        "The server has started anew, and somebody without the passphrase was back first. Look who is here; the room's owner can lock it again.",
    });
  }

  #handleServerError(code: string, text: string): void {
    // What the server says itself helps where something is broken; elsewhere it only says the same again.
    const remedies: Record<string, [title: string, remedy: string]> = {
      room_full: ["The room is full.", "Ask somebody to leave, or make a new room."],
      server_full: ["The server is full.", "Try again in a minute, or ask whoever runs it."],
      bad_version: ["This page is older or newer than the server.", `Reload the page. (${text})`],
      replaced: ["This session was taken over.", "Another page resumed it. Rejoin to continue here."],
      bad_message: ["The server did not understand this page.", `Reload the page. (${text})`],
    };
    const stopped = stoppedBy(code, this.#passphrase !== null, this.#signalling?.wasIn === true);
    if (stopped !== null) {
      this.#askForPassphrase(stopped);
      return;
    }
    // The page of those who were removed says all there is to say.
    if (code === "removed") this.#end("removed");
    const known = remedies[code];
    // The others end by themselves: the connection is retried, or the peer has left.
    if (known === undefined) return;
    this.#end("failed");
    this.#raise({ id: "server", severity: "error", title: known[0], remedy: known[1] });
  }

  #askForPassphrase(passphrase: Stopped): void {
    this.#passphrase = null;
    this.#set({ refusals: this.#state.refusals + 1 });
    this.#backToLobby(passphrase);
  }

  /** With the microphone on. */
  #backToLobby(passphrase: StudioState["passphrase"]): void {
    this.#disconnect("lobby");
    this.#sound.setRelay(null);
    this.#set({ looping: false, signalling: "offline", passphrase });
  }

  #accepted(servers: RTCIceServer[]): RTCIceServer[] {
    const taken = accepted(servers);
    if (taken.length === servers.length) {
      this.#clear("ice");
      return taken;
    }
    this.#raise({
      id: "ice",
      severity: "warning",
      title: "This browser refuses something that the server offers to find ways through firewalls.",
      remedy:
        "If somebody cannot be reached, another browser may help. Whoever runs the server should check its ICE servers.",
    });
    return taken;
  }

  #setMutedByOwner(mutedByOwner: boolean): void {
    this.#set({ mutedByOwner });
    if (!mutedByOwner) {
      this.#clear("muted-by-owner");
      return;
    }
    this.#raise({
      id: "muted-by-owner",
      severity: "error",
      title: "The room's owner has muted you: nobody hears you.",
      remedy: "Only the owner can change that. You still hear the others.",
    });
  }

  // ---- Controls ----

  setSelfMuted(selfMuted: boolean): void {
    this.#set({ selfMuted });
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

  moderate(id: string, action: "mute" | "unmute" | "remove"): boolean {
    return this.#ordered(this.#signalling?.send({ type: "moderate", to: id, action }));
  }

  lock(passphrase: string | null): boolean {
    return this.#ordered(this.#signalling?.lock(passphrase?.trim() ?? null));
  }

  /** Whether what the room's owner wants has reached the server. It is not kept until it does: by then it may be the wrong thing. */
  #ordered(isSent = false): boolean {
    if (isSent) {
      this.#clear("not-ordered");
      return true;
    }
    this.#raise({
      id: "not-ordered",
      severity: "error",
      title: "Nothing has changed: the server does not answer.",
      remedy: "Do it again when the server is back.",
    });
    return false;
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
    const { settings, room, signalling } = this.#state;
    const { chosen } = this.#format;
    return {
      version: 2,
      timeMs: Date.now(),
      room,
      id: this.#members.selfId,
      name: this.#displayName(),
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
        this.#worker.newest.ringOverflows +
        (numbers?.[WORKLET_STATS.captureOverflows] ?? 0) +
        (numbers?.[WORKLET_STATS.discards] ?? 0),
      strayDatagrams: numbers?.[WORKLET_STATS.stray] ?? 0,
      sender: this.#worker.newest.sender,
      relay: this.#worker.newest.relay,
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
    const participants = () => new Map(this.#members.all.map(({ participant, stream }) => [stream, participant.id]));
    return this.#tracing.run(sound, seconds, participants);
  }

  // ---- State ----

  get #state(): StudioState {
    return this.#store.state;
  }

  #set(change: Partial<StudioState>): void {
    this.#store.set(change);
  }

  #raise(problem: Problem): void {
    this.#store.raise(problem);
  }

  #clear(...problemIds: string[]): void {
    this.#store.clear(...problemIds);
  }
}
