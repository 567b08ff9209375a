/**
 * The audio thread: the player, and capture where the worker cannot do it itself.
 *
 * `process()` allocates nothing, takes no lock, posts no message and logs nothing, with shared memory. (Without it, records leave
 * through a MessagePort instead: slower, but the same records.)
 */

import type { RecordRing } from "@antiphon/ring";
import { COMMAND, PlayerEngine, STATS_FIELDS } from "../shared/engine";
import {
  BUFFER_FRAMES,
  COMMAND_RING_BYTES,
  DATAGRAM_RING_BYTES,
  MAX_STREAMS,
  type WorkletChannels,
  type WorkletOptions,
} from "../shared/messages";
import {
  CommandRecord,
  captureTag,
  DECODED_TAG,
  discards,
  type Port,
  type RecordSink,
  type RecordSource,
  sinkOf,
  sourceOf,
} from "../shared/records";
import { Snapshot, WORKLET_STATS } from "../shared/snapshot";

/** Quanta are many: statistics are published every so many seconds. */
const PUBLISH_SECONDS = 0.05;
/**
 * Datagrams taken at most for each frame of a quantum, so that catching up takes no longer than the quantum has: sixteen times what 64 streams
 * send in packets of 128 frames. The rest waits for the next quantum.
 */
const MAX_DATAGRAMS_PER_FRAME = 8;
const MAX_COMMANDS = 64;
/** Records per quantum that tell of lost capture: of a minute or more. */
const MAX_LOSSES = 64;
/** More than a jitter buffer holds. What waits after that is of the past, even the newest of it: a full ring takes nothing newer. */
const STANDSTILL_MS = 400;
/** Once what waited is taken, so long for live packets of every stream: Opus packets are of 10 ms. */
const SETTLE_SECONDS = 0.04;
const NOTHING = new Uint8Array(0);
/**
 * −200 dB below full scale, far below the last bit of any converter. After half a minute of nothing but zeros Chromium closes the output, and
 * takes quanta by a timer (docs/adr: never quite silent).
 */
const INAUDIBLE = 1e-10;

/** The ways to the other threads. */
class Links {
  readonly datagrams: RecordSource;
  readonly commands: RecordSource;
  readonly capture: RecordSink;
  readonly stats: Snapshot;
  /** Gets a copy of the statistics where they are not in shared memory. */
  readonly statsPort: Port | null;

  constructor({ datagrams, commands, capture, stats }: WorkletChannels) {
    this.datagrams = sourceOf(datagrams, DATAGRAM_RING_BYTES);
    this.commands = sourceOf(commands, COMMAND_RING_BYTES);
    this.capture = sinkOf(capture);
    const count = WORKLET_STATS.streams + MAX_STREAMS * (STATS_FIELDS + 1);
    this.statsPort = "port" in stats ? stats.port : null;
    this.stats = new Snapshot(
      "storage" in stats ? stats.storage : new ArrayBuffer(Snapshot.byteLengthFor(count)),
    );
  }
}

class AntiphonProcessor extends AudioWorkletProcessor {
  readonly #engine: PlayerEngine;
  readonly #outputChannels: number;
  readonly #command = new CommandRecord();
  #links: Links | null = null;
  #captured = new Float32Array(0);
  #capturedBytes = new Uint8Array(0);
  /** Names of the streams, by slot; 0 is a free slot. */
  readonly #streams = new Uint32Array(MAX_STREAMS);
  #quantumFrames = 0;
  #quanta = 0;
  #sincePublished = 0;
  /** When the last quantum was rendered, and for how many frames nothing is heard: by a clock that is put back it could be for hours. */
  #lastMs = 0;
  #quietFrames = 0;
  #captureOverflows = 0;
  /** Captured since there was room for what was captured last. */
  #lostFrames = 0;

  constructor({ processorOptions }: { processorOptions: WorkletOptions }) {
    super();
    const { module, outputChannels } = processorOptions;
    this.#engine = new PlayerEngine(module, {
      rateHz: sampleRate,
      outputChannels,
      maxStreams: MAX_STREAMS,
      bufferFrames: sampleRate > 48_000 ? 2 * BUFFER_FRAMES : BUFFER_FRAMES,
    });
    this.#outputChannels = outputChannels;
    this.port.onmessage = ({ data }) => {
      this.#links ??= new Links(data as WorkletChannels);
    };
  }

  process(inputs: Float32Array[][], outputs: Float32Array[][]): boolean {
    const links = this.#links;
    if (links === null) return true;
    const output = outputs[0];
    const frames = output[0].length;
    if (frames !== this.#quantumFrames) this.#prepare(frames);
    this.#handleCommands(links.commands.ring);
    const isBehind = this.#handleDatagrams(links.datagrams.ring, frames);
    const nowMs = Date.now();
    if (nowMs - this.#lastMs > STANDSTILL_MS || (isBehind && this.#quietFrames > 0)) {
      this.#quietFrames = SETTLE_SECONDS * sampleRate;
    }
    this.#lastMs = nowMs;
    this.#engine.process(frames, nowMs);
    for (let channel = 0; channel < this.#outputChannels; channel++) {
      // What is not heard is rendered all the same: so the streams get past it.
      if (this.#quietFrames > 0) output[channel].fill(0);
      else output[channel].set(this.#engine.output[channel]);
    }
    this.#quietFrames = Math.max(0, this.#quietFrames - frames);
    if (isSilent(output)) output[0][0] = INAUDIBLE;
    if (inputs[0].length > 0) this.#capture(inputs[0], frames, links.capture);
    this.#quanta++;
    this.#sincePublished += frames;
    if (this.#sincePublished >= sampleRate * PUBLISH_SECONDS) this.#publish(links);
    return true;
  }

  /** Once: a context's quantum does not change. */
  #prepare(frames: number): void {
    this.#quantumFrames = frames;
    this.#engine.prepare(this.#outputChannels, frames);
    this.#captured = new Float32Array(8 * frames);
    this.#capturedBytes = new Uint8Array(this.#captured.buffer);
  }

  #handleCommands(commands: RecordRing): void {
    for (let n = 0; n < MAX_COMMANDS; n++) {
      if (commands.pop(this.#command.bytes) < 0) return;
      const { stream, value } = this.#command;
      const code = commands.tag;
      if (code === COMMAND.add) this.#rename(0, stream);
      if (code === COMMAND.remove) this.#rename(stream, 0);
      this.#engine.command(code, stream, value);
    }
  }

  #rename(from: number, to: number): void {
    const slot = this.#streams.indexOf(from);
    if (slot >= 0) this.#streams[slot] = to;
  }

  /** Whether more of them may wait. None is passed over: they are numbered, and would count as lost on their way. */
  #handleDatagrams(datagrams: RecordRing, frames: number): boolean {
    for (let n = 0; n < MAX_DATAGRAMS_PER_FRAME * frames; n++) {
      const length = datagrams.pop(this.#engine.datagram);
      if (length === -1) return false;
      if (length < 0) continue;
      if (datagrams.tag < DECODED_TAG) this.#engine.handleDatagram(datagrams.tag, length);
      else this.#engine.handleDecoded(datagrams.tag - DECODED_TAG, length);
    }
    return true;
  }

  #capture(input: Float32Array[], frames: number, sink: RecordSink): void {
    const channels = Math.min(input.length, 8);
    for (let n = 0; n < MAX_LOSSES && this.#lostFrames > 0; n++) {
      const lost = Math.min(this.#lostFrames, 65_535);
      if (!sink.push(captureTag(0, lost), NOTHING)) break;
      this.#lostFrames -= lost;
    }
    for (let channel = 0; channel < channels; channel++) {
      this.#captured.set(input[channel], channel * frames);
    }
    // While a loss is still to be told, this would be taken for what was lost.
    const isNext = this.#lostFrames === 0;
    if (!isNext || !sink.push(captureTag(channels, frames), this.#captureView(channels * frames * 4))) {
      this.#captureOverflows++;
      this.#lostFrames += frames;
    }
  }

  /** The first `length` captured bytes; a new view only when the number of channels changes. */
  #captureView(length: number): Uint8Array {
    if (this.#capturedBytes.length !== length) {
      this.#capturedBytes = new Uint8Array(this.#captured.buffer, 0, length);
    }
    return this.#capturedBytes;
  }

  #publish(links: Links): void {
    this.#sincePublished = 0;
    const { numbers } = links.stats;
    links.stats.begin();
    numbers[WORKLET_STATS.quanta] = this.#quanta;
    numbers[WORKLET_STATS.quantumFrames] = this.#quantumFrames;
    numbers[WORKLET_STATS.stray] = this.#engine.strayDatagrams();
    numbers[WORKLET_STATS.captureOverflows] = this.#captureOverflows;
    numbers[WORKLET_STATS.discards] = discards(links.datagrams.ring) + discards(links.commands.ring);
    numbers[WORKLET_STATS.nextFrame] = currentFrame + this.#quantumFrames;
    numbers[WORKLET_STATS.slippedFrames] = this.#engine.renderedFrames() - this.#quanta * this.#quantumFrames;
    for (let slot = 0; slot < MAX_STREAMS; slot++) {
      const at = WORKLET_STATS.streams + slot * (STATS_FIELDS + 1);
      const stream = this.#streams[slot];
      numbers[at] = stream;
      if (stream !== 0 && this.#engine.readStats(stream)) numbers.set(this.#engine.stats, at + 1);
    }
    links.stats.end();
    // allow postMessage: no shared memory, so a copy goes through the port
    links.statsPort?.postMessage(numbers);
    // A message too where no memory is shared, else nothing.
    links.datagrams.acknowledge();
    links.commands.acknowledge();
  }
}

/** RT: O(frames) in silence; sound is told by its first frame. */
function isSilent(output: readonly Float32Array[]): boolean {
  for (let channel = 0; channel < output.length; channel++) {
    const plane = output[channel];
    for (let n = 0; n < plane.length; n++) if (plane[n] !== 0) return false;
  }
  return true;
}

registerProcessor("antiphon", AntiphonProcessor);
