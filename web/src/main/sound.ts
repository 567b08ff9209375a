/** The audio graph and the two other threads: everything that makes and takes sound, without a room. */

import { RecordRing } from "@antiphon/ring";
import { Recent } from "../shared/clock";
import { AUTOMATIC, COMMAND, Mixing, type Pin, STATS_FIELDS } from "../shared/engine";
import {
  CAPTURE_RING_BYTES,
  type CaptureTime,
  COMMAND_RING_BYTES,
  DATAGRAM_RING_BYTES,
  type DeviceDelay,
  FIRST_CAPTURE,
  type FromWorker,
  type Hearing,
  MAX_STREAMS,
  type ToWorker,
  type WayName,
  type WorkletChannels,
  type WorkletOptions,
} from "../shared/messages";
import { type Channel, CommandRecord, type RecordSink, sinkOf } from "../shared/records";
import type { Listen, RelayOffer } from "../shared/relay";
import type { SendConfig } from "../shared/rungs";
import { Snapshot, WORKLET_STATS } from "../shared/snapshot";
import workletUrl from "../worklet/index.ts?worker&url";
import { Captures } from "./captures";
import { epochMs } from "./clock";
import engineUrl from "./engine.wasm?url";
import { InputWatch, type Ran } from "./input-watch";
import type { Buffer } from "./model";
import type { OutputClock } from "./mouth-to-ear";
import { Standstill } from "./standstill";
import { Underruns } from "./underruns";

declare global {
  interface AudioContextOptions {
    /** Frames per quantum; Chromium honours it. */
    renderSizeHint?: number | "default" | "hardware";
    sinkId?: string;
  }
  interface AudioContext {
    setSinkId?(id: string): Promise<void>;
    /** Where it plays: an id, for nobody here asks for none. */
    readonly sinkId?: string;
    onerror: (() => void) | null;
    /** Chromium's counts of its own output. */
    readonly playbackStats?: { readonly underrunEvents: number };
  }
  /** Chromium, in the window only. */
  var MediaStreamTrackProcessor:
    | (new (options: {
        track: MediaStreamTrack;
        maxBufferSize?: number;
      }) => { readable: ReadableStream })
    | undefined;
}

export const OUTPUT_CHANNELS = 2;
/** AudioData of at most 1,024 frames that may wait while the worker is busy: four seconds. */
const TRACK_BUFFERS = 200;

/**
 * Whether the browser may be asked for its output's latency and timestamps. Firefox never: to answer, its main thread waits for the audio
 * server, which may wait for the audio callback, which waits for that thread; page and sound then stand still for ever
 * (docs/adr/0014-measured-mouth-to-ear.md).
 */
export const TELLS_OUTPUT = !navigator.userAgent.includes("Firefox/");
/**
 * Looks at the output, ten a second. When frames are rendered is known to a block of the device alone, so the least of two seconds counts, and
 * of ten seconds for the error of a browser that says no more.
 */
const RENDERED_LOOKS = 20;
const RENDERED_LOOKS_FOR_ERROR = 100;
/**
 * What the output takes from there is the browser's word. It has that from the sound system, of when that last worked, and it seldom is too little and
 * often too much, by up to a quantum of the sound system's. So what nine of ten looks in half a minute are above counts, and the error is its distance from their middle.
 */
const OUTPUT_LOOKS = 300;
const PROMPT_SHARE = 0.1;

/** So long the audio thread may render nothing, and the worker, which does so ten times a second, tell nothing. */
const RENDERING_PATIENCE_MS = 2_000;
const WORKER_PATIENCE_MS = 3_000;

/** Share of sound that may be concealed for being late. */
export const BUDGET_SHARES = { tight: 0.01, auto: 0.001, safe: 0.0001 } as const;

let engine: Promise<WebAssembly.Module> | undefined;

function loadEngine(): Promise<WebAssembly.Module> {
  engine ??= WebAssembly.compileStreaming(fetch(engineUrl)).catch((error) => {
    // To be tried again.
    engine = undefined;
    throw error;
  });
  return engine;
}

/** The sound's code did not come: a matter of the network or the server, and not of the sound system. */
export class NotLoaded extends Error {}

export interface SoundOptions {
  /** How records pass between threads. */
  transport: Transport;
  rateHz: number;
  quantum: number;
  outputDeviceId: string;
  sender: SendConfig;
}

/** Rings in shared memory, or messages where a page has none. */
export type Transport = "shared" | "port";

/** The two ends of one way for records. */
function channelPair(transport: Transport, capacityBytes: number): [Channel, Channel] {
  if (transport === "shared") {
    const storage = RecordRing.createStorage(capacityBytes);
    return [{ storage }, { storage }];
  }
  const { port1, port2 } = new MessageChannel();
  return [{ port: port1 }, { port: port2 }];
}

/** The ports among channels, to be transferred with them. */
function portsOf(...channels: Channel[]): Transferable[] {
  return channels.flatMap((channel) => ("port" in channel ? [channel.port as unknown as MessagePort] : []));
}

/** A command for the audio thread: code, stream and value. */
interface HeldCommand {
  code: number;
  stream: number;
  value: number;
}

export class Sound {
  readonly context: AudioContext;
  /** In frames, as it was asked of the browser. */
  readonly quantum: number;
  /** Who is heard in the server's mix. */
  readonly mixing: Mixing;
  readonly #worker: Worker;
  readonly #node: AudioWorkletNode;
  readonly #commands: RecordSink;
  readonly #command = new CommandRecord();
  /** Those for which there was no room, oldest first. */
  #held: HeldCommand[] = [];
  readonly #snapshot: Snapshot | null;
  readonly #numbers: Float64Array;
  #source: MediaStreamAudioSourceNode | null = null;
  readonly #inputWatch = new InputWatch();
  readonly #underruns = new Underruns(performance.now());
  readonly #captures = new Captures();
  #captureAgain: ((wanted: CaptureTime) => Promise<void>) | null = null;
  readonly #renderedLines = new Recent(RENDERED_LOOKS_FOR_ERROR);
  /** What passes from there until a frame leaves. */
  readonly #outputs = new Recent(OUTPUT_LOOKS);
  readonly #rendering = new Standstill(RENDERING_PATIENCE_MS);
  readonly #working = new Standstill(WORKER_PATIENCE_MS);
  /** Messages of the worker. */
  #told = 0;
  /** Changes of the output that are under way. */
  #outputChanges = 0;
  #rateHz: number;
  /** Its code has failed. */
  #audioHasFailed = false;
  /** Its code did not come. */
  #workerHasFailed = false;

  /**
   * `outputFailed` is called when the output does not open or breaks, from the beginning on: the browser may have taken the system's own instead.
   *
   * *Errors* `NotLoaded`, and whatever the browser throws if it has no audio output or no such rate.
   */
  static async start(
    options: SoundOptions,
    receive: (message: FromWorker) => void,
    outputFailed: () => void,
  ): Promise<Sound> {
    const contextOptions: AudioContextOptions = {
      latencyHint: 0,
      sampleRate: options.rateHz,
      renderSizeHint: options.quantum,
    };
    if (options.outputDeviceId !== "" && "setSinkId" in AudioContext.prototype) {
      contextOptions.sinkId = options.outputDeviceId;
    }
    const context = new AudioContext(contextOptions);
    context.onerror = outputFailed;
    try {
      const loaded = Promise.all([loadEngine(), context.audioWorklet.addModule(workletUrl)]);
      const [module] = await loaded.catch((error) => {
        throw new NotLoaded(String(error));
      });
      return new Sound(context, module, options, receive);
    } catch (error) {
      void context.close();
      throw error;
    }
  }

  private constructor(
    context: AudioContext,
    module: WebAssembly.Module,
    { transport, rateHz, quantum, sender }: SoundOptions,
    receive: (message: FromWorker) => void,
  ) {
    this.context = context;
    this.quantum = quantum;
    this.mixing = new Mixing(module);
    this.#rateHz = rateHz;
    const count = WORKLET_STATS.streams + MAX_STREAMS * (STATS_FIELDS + 1);
    this.#numbers = new Float64Array(count);
    const [datagramsIn, datagramsOut] = channelPair(transport, DATAGRAM_RING_BYTES);
    const [commandsIn, commandsOut] = channelPair(transport, COMMAND_RING_BYTES);
    const [captureIn, captureOut] = channelPair(transport, CAPTURE_RING_BYTES);
    const [statsIn, statsOut] = statsPair(transport, count);
    this.#snapshot = "storage" in statsOut ? new Snapshot(statsOut.storage) : null;
    if ("port" in statsOut)
      statsOut.port.onmessage = ({ data }: { data: Float64Array }) => this.#numbers.set(data);

    this.#commands = sinkOf(commandsIn, COMMAND_RING_BYTES);
    const processorOptions: WorkletOptions = { module, outputChannels: OUTPUT_CHANNELS };
    this.#node = new AudioWorkletNode(context, "antiphon", {
      numberOfInputs: 1,
      numberOfOutputs: 1,
      outputChannelCount: [OUTPUT_CHANNELS],
      channelCount: 8,
      channelCountMode: "max",
      channelInterpretation: "discrete",
      processorOptions,
    });
    const channels: WorkletChannels = {
      datagrams: datagramsOut,
      commands: commandsOut,
      capture: captureIn,
      stats: statsIn,
    };
    this.#node.port.postMessage(channels, portsOf(datagramsOut, commandsOut, captureIn, statsIn));
    this.#node.onprocessorerror = () => {
      this.#audioHasFailed = true;
    };
    this.#node.connect(context.destination);

    this.#worker = new Worker(new URL("../worker/index.ts", import.meta.url), { type: "module" });
    // Until it speaks for the first time: from then on it is there, and missed when it falls silent.
    this.#worker.onerror = () => {
      this.#workerHasFailed = true;
    };
    this.#worker.onmessage = ({ data }: MessageEvent<FromWorker>) => {
      this.#worker.onerror = null;
      this.#told++;
      if (data.type === "capture-wanted") void this.#captureAgain?.(data);
      else if (data.type === "capture-unneeded") this.#captures.end(data.capture);
      else receive(data);
    };
    this.#tell(
      { type: "start", module, datagrams: datagramsIn, capture: captureOut, sender },
      portsOf(datagramsIn, captureOut),
    );
  }

  /**
   * Captures from `stream`: from its track in the worker where that is possible, else through the audio graph.
   *
   * *Errors* whatever the browser throws: `NotSupportedError` where it does not resample what was recorded at another rate (older Firefox; version 153 does).
   */
  capture(stream: MediaStream, channels: number, throughGraph = false): void {
    this.stopCapture();
    const [track] = stream.getAudioTracks();
    const rateHz = track.getSettings().sampleRate;
    const Processor = globalThis.MediaStreamTrackProcessor;
    if (Processor !== undefined && !throughGraph && (rateHz ?? this.#rateHz) === this.#rateHz) {
      const begin = (capture: number, askedMs: number, from: MediaStreamTrack) => {
        const { readable } = new Processor({ track: from, maxBufferSize: TRACK_BUFFERS });
        this.#tell({ type: "track", capture, askedMs, readable, channels }, [readable]);
      };
      begin(FIRST_CAPTURE, epochMs(), track);
      this.#captureAgain = async (wanted) => {
        const another = await this.#captures.add(track, wanted);
        if (another === null) return;
        try {
          begin(another.id, another.askedMs, another.track);
        } catch {
          // It has ended already.
          this.#captures.end(another.id);
        }
      };
      return;
    }
    this.#source = this.context.createMediaStreamSource(stream);
    this.#tell({ type: "worklet" });
    this.#source.connect(this.#node);
    this.#inputWatch.opened(performance.now(), this.#ran());
  }

  /** Whether what is captured comes straight from the microphone's track. */
  get capturesTrack(): boolean {
    return this.#captureAgain !== null;
  }

  /** Whether what is captured comes through the audio graph. */
  get capturesGraph(): boolean {
    return this.#source !== null;
  }

  /** Whether the microphone is to be opened anew, because it comes late through the audio graph; to be asked ten times a second. Once true, it is to be done. */
  isInputLate(): boolean {
    return this.capturesGraph && this.#inputWatch.isLate(performance.now(), this.#ran());
  }

  /** By the audio thread's own count. */
  #ran(): Ran {
    const numbers = this.numbers();
    const msOf = (frames: number) => (frames * 1000) / this.#rateHz;
    return {
      ms: msOf(numbers[WORKLET_STATS.quanta] * numbers[WORKLET_STATS.quantumFrames]),
      slippedMs: msOf(numbers[WORKLET_STATS.slippedFrames]),
    };
  }

  stopCapture(): void {
    this.#captures.endAll();
    this.#captureAgain = null;
    this.#source?.disconnect();
    this.#source = null;
    this.#tell({ type: "stop-capture" });
  }

  /** Makes the worker record for so long; the rows come as its message. */
  trace(seconds: number): void {
    this.#tell({ type: "trace", seconds });
  }

  configureSender(sender: SendConfig): void {
    this.#tell({ type: "configure", sender });
  }

  setMuted(muted: boolean): void {
    this.#tell({ type: "mute", muted });
  }

  /** `expectedFrames`: what sufficed for an automatic buffer last time. */
  addStream(stream: number, buffer: Buffer, expectedFrames: number | null): void {
    this.command(COMMAND.add, stream, 0);
    if (expectedFrames !== null) this.command(COMMAND.expect, stream, expectedFrames);
    this.setBuffer(stream, buffer);
  }

  setBuffer(stream: number, buffer: Buffer): void {
    if (typeof buffer === "string") this.command(COMMAND.budget, stream, BUDGET_SHARES[buffer]);
    this.command(COMMAND.target, stream, typeof buffer === "string" ? AUTOMATIC : buffer);
  }

  removeStream(stream: number): void {
    this.#tell({ type: "close-stream", stream });
    this.command(COMMAND.remove, stream, 0);
  }

  command(code: number, stream: number, value: number): void {
    // Of what still waits, the newest counts.
    const isOver = (held: HeldCommand) =>
      held.stream === stream && (code === COMMAND.remove || (held.code === code && code !== COMMAND.add));
    this.#held = this.#held.filter((held) => !isOver(held));
    this.#held.push({ code, stream, value });
    this.#sendCommands();
  }

  /** The audio thread takes none while its context stands still, as in a call: what there is no room for waits. */
  #sendCommands(): void {
    for (let next = this.#held[0]; next !== undefined; next = this.#held[0]) {
      if (!this.#commands.push(next.code, this.#command.set(next.stream, next.value))) return;
      this.#held.shift();
    }
  }

  addLane(stream: number, lane: number, epoch: number, sends: boolean, channel: RTCDataChannel): void {
    this.#tell({ type: "lane", stream, lane, epoch, sends, channel }, [channel as unknown as Transferable]);
  }

  closeLane(stream: number, lane: number): void {
    this.#tell({ type: "close-lane", stream, lane });
  }

  retireLane(stream: number, lane: number): void {
    this.#tell({ type: "retire-lane", stream, lane });
  }

  /** The audio thread's numbers: `WORKLET_STATS` first, then the streams. Valid until the next call. */
  numbers(): Float64Array {
    // The writer is at it for microseconds every 50 ms: should it happen, the numbers of last time serve.
    for (let n = 0; n < 3 && this.#snapshot !== null; n++) if (this.#snapshot.read(this.#numbers)) break;
    return this.#numbers;
  }

  /** Where a stream's numbers start in `numbers()`, or -1. */
  offsetOf(numbers: Float64Array, stream: number): number {
    for (let slot = 0; slot < MAX_STREAMS; slot++) {
      const at = WORKLET_STATS.streams + slot * (STATS_FIELDS + 1);
      if (numbers[at] === stream) return at + 1;
    }
    return -1;
  }

  /** The browser's own report of its output latency; null where it has none, and until the output runs. */
  reportedOutputLatencyMs(): number | null {
    return TELLS_OUTPUT ? this.context.outputLatency * 1000 || null : null;
  }

  /** Looks at the output's clock; to be called ten times a second. */
  observeOutput(): void {
    this.#sendCommands();
    const { context } = this;
    if (context.state !== "running") return;
    this.#renderedLines.add(epochMs() - context.currentTime * 1000);
    if (!TELLS_OUTPUT) return;
    const { contextTime, performanceTime } = context.getOutputTimestamp();
    if (!contextTime || !performanceTime) return;
    const playedLineMs = performance.timeOrigin + performanceTime - contextTime * 1000;
    this.#outputs.add(playedLineMs - this.#renderedLines.least(RENDERED_LOOKS)!);
  }

  /** When the context's frames are rendered, and leave; null until it has been looked at. `device` goes with it. */
  outputClock(device: DeviceDelay | null): OutputClock | null {
    const renderedLineMs = this.#renderedLines.least(RENDERED_LOOKS);
    if (renderedLineMs === null) return null;
    if (!TELLS_OUTPUT) {
      // All that is known of a frame's leaving is that it was rendered before; `device` has the rest.
      const errorMs = renderedLineMs - this.#renderedLines.least()!;
      return { playedLine: { ms: renderedLineMs, errorMs }, renderedLineMs, device };
    }
    const outputMs = this.#outputs.quantile(PROMPT_SHARE);
    if (outputMs === null) return null;
    const errorMs = this.#outputs.middle()!.ms - outputMs;
    return { playedLine: { ms: renderedLineMs + outputMs, errorMs }, renderedLineMs, device };
  }

  /** Plays mono samples from the context's frame `atFrame` on, through the output that the streams leave by, unless what it returns is stopped. */
  play(samples: Float32Array<ArrayBuffer>, atFrame: number): AudioBufferSourceNode {
    const { context } = this;
    const buffer = context.createBuffer(1, samples.length, context.sampleRate);
    buffer.copyToChannel(samples, 0);
    const source = context.createBufferSource();
    source.buffer = buffer;
    source.connect(context.destination);
    source.start(atFrame / context.sampleRate);
    return source;
  }

  /** Makes the worker record what is captured for so long; it comes as its message. */
  record(seconds: number): void {
    this.#tell({ type: "record", seconds });
  }

  /** Times the output ran dry since it began; null where the browser does not count. */
  outputUnderruns(): number | null {
    const { playbackStats } = this.context;
    return playbackStats ? this.#underruns.since(performance.now(), playbackStats.underrunEvents) : null;
  }

  /** Which relay to use, if any. */
  setRelay(offer: RelayOffer | null): void {
    // Chromium tries ::1 alone for localhost, where a server that listens on 127.0.0.1 is not.
    const host = location.hostname === "localhost" ? "127.0.0.1" : location.hostname;
    this.#tell({ type: "relay", host, offer });
  }

  /** The server does not answer: no session is opened until the next offer. */
  holdRelay(): void {
    this.#tell({ type: "hold-relay" });
  }

  /** The network was away: direct lanes that do not answer now are said to be closed. */
  doubtLanes(): void {
    this.#tell({ type: "doubt-lanes" });
  }

  /** What to take from the relay. */
  setListen(listen: Listen): void {
    this.#tell({ type: "listen", listen });
  }

  /** What the room calls a stream's peer, null if it does not know it, the way that is pinned, and by which ways the peer wants our stream. */
  setPeer(stream: number, number: number | null, pin: Pin, wants: Record<WayName, boolean>): void {
    this.#tell({ type: "peer", stream, number, pin, wants });
  }

  /** Tells the worker what its reports to the peers shall say, and what is lost by which way. */
  setHeard(streams: Hearing[], input: DeviceDelay | null): void {
    this.#tell({ type: "heard", streams, input });
  }

  /** Which of the two threads has failed, or stands still though it ran before and ought to; to be asked ten times a second. */
  standstill(): { audio: boolean; worker: boolean } {
    const nowMs = performance.now();
    const oughtToRender = this.context.state === "running" && this.#outputChanges === 0;
    const quanta = this.numbers()[WORKLET_STATS.quanta];
    return {
      audio: this.#audioHasFailed || this.#rendering.isStill(nowMs, (oughtToRender && quanta) || null),
      worker: this.#workerHasFailed || this.#working.isStill(nowMs, this.#told || null),
    };
  }

  async setOutput(deviceId: string): Promise<void> {
    this.#outputChanges++;
    try {
      await this.context.setSinkId?.(deviceId);
    } finally {
      this.#outputChanges--;
      // A browser whose output has failed does not start the next one by itself.
      if (this.context.state === "suspended") this.context.resume().catch(() => {});
    }
    this.#renderedLines.clear();
    this.#outputs.clear();
  }

  async close(): Promise<void> {
    this.stopCapture();
    this.#worker.terminate();
    await this.context.close();
  }

  #tell(message: ToWorker, transfer: Transferable[] = []): void {
    this.#worker.postMessage(message, transfer);
  }
}

function statsPair(transport: Transport, count: number): [Channel, Channel] {
  if (transport === "shared") {
    const storage = new SharedArrayBuffer(Snapshot.byteLengthFor(count));
    return [{ storage }, { storage }];
  }
  return channelPair(transport, 0);
}
