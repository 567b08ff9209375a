import type { RecordRing } from "@antiphon/ring";
import { CaptureClock, RecentCounts } from "../shared/clock";
import { SENDER_STATS, SenderEngine } from "../shared/engine";
import { REPORT_PERIOD_MS } from "../shared/heard";
import {
  CAPTURE_RING_BYTES,
  type DeviceDelay,
  FIRST_CAPTURE,
  type FromWorker,
  type TrackCapture,
} from "../shared/messages";
import { type Channel, captureShape, discards, sourceOf } from "../shared/records";
import { mainBits, type OpusRung, opusRefusal, type Rung, rungsFor, type SendConfig } from "../shared/rungs";
import type { SenderStats } from "../shared/stats";
import { readAudioHeader } from "../shared/wire";
import { epochMs } from "./clock";
import { Interleaver } from "./interleaver";
import { FEED_FRAMES, hasOpus, OpusSender } from "./opus";
import type { Peers } from "./peers";
import { type Captured, toNs, toUs } from "./report";
import type { Trace } from "./trace";
import { type Block, Turns } from "./turns";

/** How long to wait for captured frames in shared memory. The audio thread may not wake us (notify takes a lock): we look. */
const LOOK_MS = 1;
/** A block older than this has a timestamp of another clock. */
const MAX_BLOCK_AGE_MS = 1_000;
/** A source that has brought nothing for so long captures nothing, whatever the browser says of it. */
const SILENT_MS = 1_000;

/**
 * An encoder that nobody has listened to for so long is closed. Until then it goes on: where a listener's lanes are made anew, the next one would
 * be missing for as long as it takes to be set up.
 */
const IDLE_MS = 10_000;
/** From the making of an encoder that fails to that of the next... */
const RETRY_MS = 1_000;
/** ...and so many failures in a row, with nothing sent between them, end the format. */
const MAX_IN_VAIN = 3;

/** The sender's renditions beside the main one: samples of 16 bits, and floats for the Opus encoders. */
const NARROW = 1;
const FEED = 2;

/** The microphone's frames through the sender to every peer. */
export class Capture {
  readonly #engine: SenderEngine;
  readonly #ring: RecordRing;
  /** False where the ring is filled by a port, which tells. */
  readonly #isShared: boolean;
  readonly #peers: Peers;
  readonly #say: (message: FromWorker) => void;
  #config: SendConfig;
  #sendsNarrow = false;
  #feeds = false;
  /** By the rung's key. */
  readonly #opus = new Map<string, { encoder: OpusSender; usedAtMs: number }>();
  /** By the rung's key, until another has sent something: when there may be one after those that failed, how many these were, and why the last did. */
  readonly #failed = new Map<string, { againMs: number; inVain: number; reason: string }>();
  #path: SenderStats["capturePath"] = "none";
  /** Changes when the source changes; whoever reads for an older one stops. */
  #generation = 0;
  /** When the newest frames came; null before there were any. */
  #newestMs: number | null = null;
  /** Whether none have come of this source yet. */
  #isPaused = true;
  trace: Trace | null = null;
  readonly #clock: CaptureClock;
  #interleaver: Interleaver | null = null;
  #turns: Turns | null = null;
  /** Captures beside the first. */
  readonly #others = new Set<number>();
  /** The planes of the block at hand. The same as long as blocks are alike, for the browser keeps each that it is handed until it collects all garbage. */
  #block: Float32Array<ArrayBuffer>[] = [];
  #lostFrames = 0;
  readonly #overruns = new RecentCounts<{ frames: number }>(REPORT_PERIOD_MS);
  #recording: { samples: Float32Array; frames: number; first: number } | null = null;
  /** What the input takes beyond its timestamps. */
  input: DeviceDelay | null = null;

  constructor(
    module: WebAssembly.Module,
    channel: Channel,
    config: SendConfig,
    peers: Peers,
    say: (message: FromWorker) => void,
  ) {
    this.#engine = new SenderEngine(module, { ...config, bits: mainBits(config) });
    this.#isShared = "storage" in channel;
    this.#ring = sourceOf(channel, CAPTURE_RING_BYTES, () => {
      if (this.#path === "worklet") this.#drain();
    }).ring;
    this.#config = config;
    this.#peers = peers;
    this.#say = say;
    this.#clock = new CaptureClock(config.rateHz);
    this.configure(config);
  }

  configure(config: SendConfig): void {
    const { channels } = this.#config;
    this.#config = config;
    this.#engine.configure({ ...config, bits: mainBits(config) });
    if (this.#sendsNarrow) this.#engine.setRendition(NARROW, { ...config, bits: 16 });
    const { copies, addsLanes } = config;
    this.#peers.setSending({ rungs: this.#rungs(), copies, addsLanes });
    const [chosen] = rungsFor(config, hasOpus());
    this.#say({ type: "opus-failed", reason: this.#failureOf(chosen.key) });
    if (config.channels !== channels) this.#stopOpus();
  }

  /** What can be sent: in place of Opus that cannot be, samples. */
  #rungs(): [Rung, ...Rung[]] {
    const can = ({ key }: Rung) => this.#failureOf(key) === null;
    const wanted = rungsFor(this.#config, hasOpus());
    const [chosen, ...cheaper] = can(wanted[0]) ? wanted : rungsFor({ ...this.#config, bits: 16 }, hasOpus());
    return [chosen, ...cheaper.filter(can)];
  }

  /** Why a rung is given up; null if it is not. */
  #failureOf(key: string): string | null {
    const { inVain, reason } = this.#failed.get(key) ?? { inVain: 0, reason: null };
    return inVain < MAX_IN_VAIN ? null : reason;
  }

  setMuted(muted: boolean): void {
    this.#engine.setMuted(muted);
  }

  stop(): void {
    this.#generation++;
    this.#path = "none";
    this.#isPaused = true;
    this.#clock.restart();
    this.#recording = null;
    this.#interleaver = null;
    this.#turns = null;
    this.#others.clear();
  }

  /**
   * Reads the track itself, past the audio graph and its input buffer (docs/adr: track capture in the worker). All captures but the
   * first are of the same microphone, in turns with it. Never rejects: what goes wrong ends the capture, and main is told.
   */
  async fromTrack({ capture: id, askedMs, readable, channels }: TrackCapture): Promise<void> {
    if (id === FIRST_CAPTURE) {
      this.stop();
      this.#path = "track";
      this.#turns = new Turns();
    } else if (this.#turns === null) {
      // It was asked for before another one turned out to be none of this microphone.
      (readable as ReadableStream).cancel().catch(() => undefined);
      this.#say({ type: "capture-unneeded", capture: id });
      return;
    } else {
      this.#others.add(id);
      this.#turns.open(id, askedMs);
    }
    const generation = this.#generation;
    const reader = (readable as ReadableStream<AudioData>).getReader();
    const reason = await this.#read(id, reader, channels, generation).catch(String);
    reader.cancel().catch(() => undefined);
    if (generation !== this.#generation) return;
    if (id !== FIRST_CAPTURE) {
      if (this.#others.has(id)) this.#endOther(id);
      return;
    }
    this.stop();
    this.#say({ type: "capture-ended", reason });
  }

  /** Takes blocks until there are no more, or none that are wanted; resolves to the reason. */
  async #read(
    id: number,
    reader: ReadableStreamDefaultReader<AudioData>,
    channels: number,
    generation: number,
  ): Promise<string> {
    while (true) {
      const { value, done } = await reader.read();
      if (done) return "the track ended";
      try {
        if (generation !== this.#generation) return "another source";
        // Only the audio graph resamples: the main thread falls back to it.
        if (value.sampleRate !== this.#config.rateHz) return "rate";
        if (!this.#take(id, value, Math.min(value.numberOfChannels, channels))) return "unneeded";
      } finally {
        value.close();
      }
    }
  }

  /** False if the capture is of no use any more. */
  #take(id: number, data: AudioData, channels: number): boolean {
    if (id !== FIRST_CAPTURE && !this.#others.has(id)) return false;
    const all = data.numberOfFrames;
    if (this.#interleaver?.channels !== channels) {
      if (id !== FIRST_CAPTURE) return false;
      this.#interleaver = new Interleaver(channels);
    }
    if (this.#block.length !== channels || this.#block[0]!.length !== all)
      this.#block = Array.from({ length: channels }, () => new Float32Array(all));
    const planes = this.#block;
    for (const [planeIndex, plane] of planes.entries())
      data.copyTo(plane, { planeIndex, format: "f32-planar" });
    const from = this.#interleaver.take(id, planes, all);
    const firstMs = capturedMs(data);
    const msOf = (frames: number) => (frames * 1000) / this.#config.rateHz;
    const place = this.#interleaver.placeOf(id);
    this.#takeTurns(
      id,
      firstMs === null
        ? null
        : {
            blockMs: msOf(all),
            endMs: firstMs + msOf(all),
            arrivedMs: epochMs(),
            placeMs: place === null ? null : msOf(place),
          },
    );
    const frames = all - from;
    if (frames > 0) {
      for (const [channel, plane] of planes.entries())
        this.#engine.plane(channel, frames).set(plane.subarray(from));
      this.#push(channels, frames, all, firstMs === null ? null : firstMs + msOf(from));
    }
    return true;
  }

  /** A block of a capture, null if nobody says when it ended: begins and ends others. */
  #takeTurns(id: number, block: Block | null): void {
    const strangers = this.#interleaver?.strangers() ?? [];
    for (const other of strangers) this.#endOther(other);
    if (strangers.length > 0) this.#turns = null;
    const review = block === null ? null : this.#turns?.add(id, block);
    if (!review) return;
    for (const other of review.unneeded) this.#endOther(other);
    if (review.wanted !== null) this.#say({ type: "capture-wanted", ...review.wanted });
  }

  #endOther(id: number): void {
    this.#others.delete(id);
    this.#interleaver?.remove(id);
    this.#turns?.remove(id);
    this.#say({ type: "capture-unneeded", capture: id });
  }

  /** Takes the frames that the audio thread captured. */
  fromWorklet(): void {
    this.stop();
    this.#path = "worklet";
    // Of the source before.
    const bytes = this.#planes();
    while (this.#ring.pop(bytes) !== -1);
    if (this.#isShared) void this.#look(this.#generation);
  }

  async #look(generation: number): Promise<void> {
    const unchanging = new Int32Array(new SharedArrayBuffer(4));
    let hasFailed = false;
    while (generation === this.#generation) {
      try {
        this.#drain();
      } catch (error) {
        // As of a message, it costs what was at hand, not all that would follow. It is said once, not a thousand times a second.
        if (!hasFailed) reportError(error);
        hasFailed = true;
      }
      // A timer of 1 ms: setTimeout would be held to 4. Firefox has it from 145 on.
      if ("waitAsync" in Atomics) {
        const wait = Atomics.waitAsync(unchanging, 0, 0, LOOK_MS);
        if (wait.async) await wait.value;
      } else await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    }
  }

  /** A record is at most 8 channels of 1,024 frames; the engine's planes hold eight times that. */
  #planes(): Uint8Array<ArrayBuffer> {
    const planes = this.#engine.plane(0, 8 * 1024);
    return new Uint8Array(planes.buffer, planes.byteOffset, planes.byteLength);
  }

  #drain(): void {
    const bytes = this.#planes();
    while (true) {
      const length = this.#ring.pop(bytes);
      if (length === -1) return;
      if (length < 0) continue;
      const { channels, frames } = captureShape(this.#ring.tag);
      if (channels > 0) this.#push(channels, frames, frames, null);
      else this.#lose(frames);
    }
  }

  /** Sends what is in the engine's planes, of a block of so many frames. `firstMs`: when its first frame was captured, null if nobody says. */
  #push(channels: number, frames: number, blockFrames: number, firstMs: number | null): void {
    const nowMs = epochMs();
    this.#resume(frames, nowMs);
    this.#clock.add(frames, firstMs, nowMs);
    this.trace?.captured(frames);
    this.#record(channels, frames);
    this.#engine.push(channels, frames);
    this.#engine.flush(blockFrames);
    this.#send();
  }

  /**
   * Before `frames` frames are pushed. Between two sources media time goes on by the clock: otherwise all that follows would seem to come as much
   * later as the change took, and listeners would keep a longer delay for it.
   */
  #resume(frames: number, nowMs: number): void {
    const pausedMs = this.#isPaused && this.#newestMs !== null ? nowMs - this.#newestMs : 0;
    this.#isPaused = false;
    this.#newestMs = nowMs;
    const missing = Math.round((pausedMs * this.#config.rateHz) / 1000) - frames;
    if (missing > 0) this.#pass(missing);
  }

  /** Captured, and lost on the way here: media time goes on, or all that follows would seem to come too late. */
  #lose(frames: number): void {
    this.#lostFrames += frames;
    // Otherwise it was of the source before, and the clock tells.
    if (!this.#isPaused) this.#pass(frames);
  }

  #pass(frames: number): void {
    // What comes behind a gap would seem to have come sooner.
    this.#recording = null;
    this.#engine.pass(frames);
    this.#clock.pass(frames);
  }

  /** Records what is captured from now on, for so long; it goes to main when it is full. */
  startRecording(seconds: number): void {
    this.#recording = {
      samples: new Float32Array(seconds * this.#config.rateHz),
      frames: 0,
      first: 0,
    };
  }

  /** What is in the engine's planes: all channels together, since a loop may come back by any. */
  #record(channels: number, frames: number): void {
    const recording = this.#recording;
    if (recording === null) return;
    const { samples } = recording;
    if (recording.frames === 0) recording.first = this.#clock.nextFrame - frames;
    const room = Math.min(frames, samples.length - recording.frames);
    for (let channel = 0; channel < channels; channel++) {
      const plane = this.#engine.plane(channel, frames);
      for (let n = 0; n < room; n++) samples[recording.frames + n]! += plane[n]!;
    }
    recording.frames += room;
    if (recording.frames < samples.length) return;
    this.#recording = null;
    const startMs = this.#clock.timeOf(recording.first);
    const blockMs = this.#clock.read("main")?.blockMs;
    if (startMs !== null && blockMs !== undefined)
      this.#say({ type: "recording", samples, startMs, blockMs });
  }

  #send(): void {
    this.#prepare();
    this.#each(0, (datagram) => this.#sendAs("main", datagram));
    if (this.#sendsNarrow) this.#each(NARROW, (datagram) => this.#sendAs("s16", datagram));
    this.#peers.sendCopies();
    if (this.#opus.size === 0) return;
    this.#each(FEED, (datagram) => {
      for (const { encoder } of this.#opus.values()) encoder.push(datagram);
    });
  }

  #sendAs(key: string, datagram: Uint8Array<ArrayBuffer>): void {
    this.#peers.send(key, datagram);
    this.#clock.sent(key, Number(readAudioHeader(datagram).timestamp), epochMs());
  }

  #each(rendition: number, handle: (datagram: Uint8Array<ArrayBuffer>) => void): void {
    let datagram = this.#engine.poll(rendition);
    for (; datagram !== null; datagram = this.#engine.poll(rendition)) handle(datagram);
  }

  #stopOpus(): void {
    for (const { encoder } of this.#opus.values()) encoder.close();
    this.#opus.clear();
    this.#feed();
  }

  /** Begins the renditions and encoders that someone has come to listen to, and ends those that nobody does. */
  #prepare(): void {
    const used = this.#peers.rungsInUse();
    const usesNarrow = used.some(({ key }) => key === "s16");
    if (usesNarrow !== this.#sendsNarrow) {
      this.#sendsNarrow = usesNarrow;
      this.#engine.setRendition(NARROW, usesNarrow ? { ...this.#config, bits: 16 } : null);
    }
    const nowMs = performance.now();
    for (const [key, opus] of this.#opus) {
      if (used.some((rung) => rung.key === key)) opus.usedAtMs = nowMs;
      if (nowMs - opus.usedAtMs < IDLE_MS) continue;
      opus.encoder.close();
      this.#opus.delete(key);
    }
    // What ends may be Opus of other channels than there are now.
    const canOpus = opusRefusal(this.#config) === null;
    for (const rung of used) {
      if (rung.format !== "opus" || !canOpus) continue;
      const { key } = rung;
      if (!this.#opus.has(key) && this.#mayBegin(key))
        this.#opus.set(key, { encoder: this.#encoderFor(rung), usedAtMs: nowMs });
      if (!this.#opus.get(key)?.encoder.isReady) this.#peers.bridge(key);
    }
    this.#engine.setCopies(0, this.#peers.wantsCopies("main"));
    this.#engine.setCopies(NARROW, this.#peers.wantsCopies("s16"));
    this.#feed();
  }

  /** Begins or ends the rendition that feeds encoders. */
  #feed(): void {
    const feeds = this.#opus.size > 0;
    if (feeds === this.#feeds) return;
    this.#feeds = feeds;
    const feed = { ...this.#config, bits: 32 as const, packetFrames: FEED_FRAMES };
    this.#engine.setRendition(FEED, feeds ? feed : null);
  }

  #mayBegin(key: string): boolean {
    const { againMs } = this.#failed.get(key) ?? { againMs: 0 };
    return this.#failureOf(key) === null && performance.now() >= againMs;
  }

  #encoderFor(rung: OpusRung): OpusSender {
    const send = (datagram: Uint8Array<ArrayBuffer>) => {
      this.#failed.delete(rung.key);
      this.#sendAs(rung.key, datagram);
      this.#peers.sendCopies();
    };
    const againMs = performance.now() + RETRY_MS;
    const encoder = new OpusSender(rung, this.#config.channels, send, (reason) => {
      const inVain = 1 + (this.#failed.get(rung.key)?.inVain ?? 0);
      this.#failed.set(rung.key, { againMs, inVain, reason });
      // Not from within its own construction.
      queueMicrotask(() => {
        if (this.#opus.get(rung.key)?.encoder === encoder) this.#opus.delete(rung.key);
        if (this.#failureOf(rung.key) !== null) this.configure(this.#config);
      });
    });
    return encoder;
  }

  /**
   * What to tell the listeners of a rendition, by its key, of this capture: null until there is something to tell, and once no frames come any more.
   * `frames`: overrun so far.
   */
  reports(frames: number): (key: string) => Captured | null {
    const nowMs = epochMs();
    const overrunFrames = this.#overruns.add(nowMs, { frames }, ["frames"])?.grown.frames ?? 0;
    const isSilent = this.#newestMs === null || nowMs - this.#newestMs > SILENT_MS;
    const { input } = this;
    return (key) => {
      const clock = isSilent ? null : this.#clock.read(key);
      return (
        clock && {
          timestamp: BigInt(clock.frame),
          timeNs: toNs(clock.captured.ms),
          errorUs: toUs(clock.captured.errorMs),
          blockUs: toUs(clock.blockMs),
          sendUs: toUs(clock.sendMs),
          input: input && {
            isCalibrated: input.isCalibrated,
            delayUs: toUs(input.ms),
            errorUs: toUs(input.errorMs),
          },
          overrunFrames,
          lineMs: clock.lineMs,
        }
      );
    };
  }

  /** Of what the audio thread captured. */
  get discards(): number {
    return discards(this.#ring);
  }

  stats(): SenderStats {
    this.#engine.readStats();
    const numbers = this.#engine.stats;
    return {
      capturePath: this.#path,
      captures: this.#path === "none" ? 0 : (this.#interleaver?.count ?? 1),
      capturedFrames: numbers[SENDER_STATS.captured],
      sentFrames: numbers[SENDER_STATS.sent],
      overrunFrames: numbers[SENDER_STATS.overrun] + this.#lostFrames,
      packets: numbers[SENDER_STATS.packets],
      peak: Array.from(numbers.subarray(SENDER_STATS.peaks, SENDER_STATS.peaks + this.#config.channels)),
    };
  }
}

/**
 * When the first frame of a block was captured, by the browser's word. Chromium counts from this thread's time origin; blocks that
 * waited while the stream was transferred still count from the page's, and other browsers may count from anything: null for those.
 */
function capturedMs({ timestamp }: AudioData): number | null {
  const ageMs = performance.now() - timestamp / 1000;
  return ageMs > 0 && ageMs < MAX_BLOCK_AGE_MS ? epochMs() - ageMs : null;
}
