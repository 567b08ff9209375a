/**
 * The engine's C ABI (crates/core-wasm) in TypeScript. One instance serves one thread and is either a sender or a player.
 *
 * All views into wasm memory are made once: the memory does not grow after construction, and the audio thread must not allocate.
 */

import { Arrival } from "./records";
import { MAX_CHANNELS, MAX_DATAGRAM_BYTES, MAX_DECODED_BYTES } from "./wire";

/** Frames the sender takes at a time, and holds. */
const QUEUE_FRAMES = 8192;

/** Codes of `player_command`, and tags of the command ring's records. */
export const COMMAND = {
  add: 0,
  remove: 1,
  gain: 2,
  pan: 3,
  mute: 4,
  solo: 5,
  target: 6,
  budget: 7,
  expect: 8,
} as const;
/** Value of a `target` command that asks for an automatic target. */
export const AUTOMATIC = -1;

/** Order of the numbers in a sender's statistics; then one peak a channel. */
export const SENDER_STATS = { captured: 0, sent: 1, overrun: 2, packets: 3, peaks: 4 } as const;

/** Order of the numbers in a stream's statistics. Unknown numbers are NaN. */
export const STREAM_STATS = {
  received: 0,
  lost: 1,
  reordered: 2,
  duplicate: 3,
  late: 4,
  ancient: 5,
  malformed: 6,
  played: 7,
  concealed: 8,
  skipped: 9,
  lateFrames: 10,
  underruns: 11,
  resyncs: 12,
  buffered: 13,
  target: 14,
  channels: 15,
  bits: 16,
  peakLeft: 17,
  peakRight: 18,
  playhead: 19,
  spread: 20,
  drift: 21,
  driftError: 22,
  resampled: 23,
  copied: 24,
  directReceived: 25,
  directLost: 26,
  relayedReceived: 27,
  relayedLost: 28,
  recovered: 29,
  receivedFrames: 30,
} as const;
/** Numbers in a statistics record. */
export const STATS_FIELDS = 31;

interface Exports {
  memory: WebAssembly.Memory;
  datagram_ptr(): number;
  capture_ptr(): number;
  output_ptr(): number;
  stats_ptr(): number;
  sender_configure(rateHz: number, bits: number, channels: number, packetFrames: number): number;
  sender_set_muted(muted: number): number;
  sender_push(channels: number, frames: number): number;
  sender_flush(blockFrames: number): number;
  sender_pass(frames: number): number;
  sender_set_rendition(
    index: number,
    rateHz: number,
    bits: number,
    channels: number,
    packetFrames: number,
  ): number;
  sender_set_copies(index: number, carried: number): number;
  sender_poll_rendition(index: number): number;
  sender_stats(): number;
  player_new(rateHz: number, outputChannels: number, maxStreams: number, bufferFrames: number): number;
  player_command(code: number, stream: number, value: number): number;
  player_handle_datagram(stream: number, length: number, atMs: number): number;
  player_handle_decoded(stream: number, length: number): number;
  player_process_quantum(frames: number, nowMs: number): number;
  player_rendered_frames(): number;
  player_stray_datagrams(): number;
  player_stream_stats(stream: number): number;
  ladder_configure(slot: number, rungs: number, rung: number): number;
  ladder_fails(slot: number, crowded: number): number;
  ladder_review(
    slot: number,
    elapsedMs: number,
    offered: number,
    crowded: number,
    lostShare: number,
    can: number,
  ): number;
  sending_reset(slot: number): number;
  sending_review(
    slot: number,
    elapsedMs: number,
    pinned: number,
    state: number,
    directLostShare: number,
    relayLostShare: number,
    relayListeners: number,
  ): number;
  listening_review(
    elapsedMs: number,
    pinned: number,
    isRelayOpen: number,
    streams: number,
    forwarded: number,
    aged: number,
  ): number;
  mixing_new(): number;
  mixing_see(stream: number, state: number, playedFrames: number): number;
  mixing_review(elapsedMs: number, mixPlayedFrames: number, settleMs: number): number;
  mixing_place(stream: number): number;
}

function instantiate(module: WebAssembly.Module): Exports {
  return new WebAssembly.Instance(module).exports as unknown as Exports;
}

function check(result: number, what: string): void {
  if (result < 0) throw new RangeError(`${what}: code ${result}`);
}

export interface SenderConfig {
  rateHz: number;
  bits: 16 | 24 | 32;
  channels: number;
  packetFrames: number;
}

/** The sending half. */
export class SenderEngine {
  readonly #exports: Exports;
  readonly #capture: Float32Array<ArrayBuffer>;
  readonly #datagram: Uint8Array<ArrayBuffer>;
  /** Views of that by length, each made once: one that was handed to the browser lives until it collects all garbage, which holds up the thread. */
  readonly #datagrams: Uint8Array<ArrayBuffer>[] = [];
  readonly stats: Float64Array<ArrayBuffer>;

  /** *Errors* RangeError if the engine refuses `config`. */
  constructor(module: WebAssembly.Module, config: SenderConfig) {
    this.#exports = instantiate(module);
    this.configure(config);
    const { memory } = this.#exports;
    this.#capture = new Float32Array(memory.buffer, this.#exports.capture_ptr(), MAX_CHANNELS * QUEUE_FRAMES);
    this.#datagram = new Uint8Array(memory.buffer, this.#exports.datagram_ptr(), MAX_DATAGRAM_BYTES);
    this.stats = new Float64Array(memory.buffer, this.#exports.stats_ptr(), STATS_FIELDS);
  }

  configure({ rateHz, bits, channels, packetFrames }: SenderConfig): void {
    check(this.#exports.sender_configure(rateHz, bits, channels, packetFrames), "sender_configure");
  }

  /** Begins or changes another rendition (1 or 2) of what is captured, or ends it. */
  setRendition(index: number, config: SenderConfig | null): void {
    const { rateHz, bits, channels, packetFrames } = config ?? {
      rateHz: 0,
      bits: 0,
      channels: 0,
      packetFrames: 0,
    };
    const result = this.#exports.sender_set_rendition(index, rateHz, bits, channels, packetFrames);
    check(result, "sender_set_rendition");
  }

  /** Whether each datagram of a rendition carries a copy of the one before; to be said again after `setRendition`. */
  setCopies(index: number, carried: boolean): void {
    check(this.#exports.sender_set_copies(index, Number(carried)), "sender_set_copies");
  }

  setMuted(muted: boolean): void {
    this.#exports.sender_set_muted(Number(muted));
  }

  /** Where to put `frames` captured frames of channel `channel` before `push`. */
  plane(channel: number, frames: number): Float32Array<ArrayBuffer> {
    return this.#capture.subarray(channel * frames, (channel + 1) * frames);
  }

  /** Takes what was put into the planes. */
  push(channels: number, frames: number): void {
    check(this.#exports.sender_push(channels, frames), "sender_push");
  }

  /** What was pushed ends a captured block of so many frames: if that is longer than a packet, its end does not wait for the next block. */
  flush(blockFrames: number): void {
    check(this.#exports.sender_flush(blockFrames), "sender_flush");
  }

  /** Lets media time pass without frames: what is pushed next is so many later. What waits for the rest of its packet is dropped, and counted. */
  pass(frames: number): void {
    check(this.#exports.sender_pass(frames), "sender_pass");
  }

  /** The next datagram of a rendition, 0 being the main one; valid until the next call, or null. */
  poll(rendition = 0): Uint8Array<ArrayBuffer> | null {
    const length = this.#exports.sender_poll_rendition(rendition);
    if (length <= 0) return null;
    this.#datagrams[length] ??= this.#datagram.subarray(0, length);
    return this.#datagrams[length];
  }

  /** Refreshes `stats`, which see. Resets the peaks. */
  readStats(): void {
    this.#exports.sender_stats();
  }
}

/** The playing half. RT: no method but the constructor allocates. */
export class PlayerEngine {
  readonly #exports: Exports;
  /** Put a datagram here and call `handleDatagram`, or what was decoded of one and call `handleDecoded`. */
  readonly datagram: Uint8Array<ArrayBuffer>;
  readonly #records: DataView;
  readonly stats: Float64Array<ArrayBuffer>;
  /** One view per output channel, of the quantum's size. */
  readonly output: Float32Array<ArrayBuffer>[] = [];

  /** *Errors* RangeError if the engine refuses a size. */
  constructor(
    module: WebAssembly.Module,
    sizes: { rateHz: number; outputChannels: number; maxStreams: number; bufferFrames: number },
  ) {
    this.#exports = instantiate(module);
    check(
      this.#exports.player_new(sizes.rateHz, sizes.outputChannels, sizes.maxStreams, sizes.bufferFrames),
      "player_new",
    );
    const { memory } = this.#exports;
    this.datagram = new Uint8Array(memory.buffer, this.#exports.datagram_ptr(), MAX_DECODED_BYTES);
    this.#records = new DataView(memory.buffer, this.datagram.byteOffset, MAX_DECODED_BYTES);
    this.stats = new Float64Array(memory.buffer, this.#exports.stats_ptr(), STATS_FIELDS);
  }

  /** Makes the `output` views for quanta of `frames` frames: once, since a context's quantum does not change. */
  prepare(outputChannels: number, frames: number): void {
    const base = this.#exports.output_ptr();
    this.output.length = 0;
    for (let channel = 0; channel < outputChannels; channel++) {
      this.output.push(new Float32Array(this.#exports.memory.buffer, base + channel * frames * 4, frames));
    }
  }

  command(code: number, stream: number, value: number): void {
    this.#exports.player_command(code, stream, value);
  }

  /** Of `length` bytes the last are an {@link Arrival}, by the clock of `process`. */
  handleDatagram(stream: number, length: number): void {
    const end = length - Arrival.BYTES;
    this.#exports.player_handle_datagram(stream, end, this.#records.getFloat64(end, true));
  }

  /** Never for what came from the network as it is. */
  handleDecoded(stream: number, length: number): void {
    this.#exports.player_handle_decoded(stream, length);
  }

  /** Renders `frames` frames into `output`, when a clock reads `nowMs`: any clock, if no coarser than whole milliseconds. */
  process(frames: number, nowMs: number): void {
    this.#exports.player_process_quantum(frames, nowMs);
  }

  /** Frames rendered so far, and those by which the output has slipped: has rendered less than the clock went on. */
  renderedFrames(): number {
    return this.#exports.player_rendered_frames();
  }

  strayDatagrams(): number {
    return this.#exports.player_stray_datagrams();
  }

  /** Refreshes `stats` with a stream's numbers and resets its peaks; false if there is no such stream. */
  readStats(stream: number): boolean {
    return this.#exports.player_stream_stats(stream) === 0;
  }
}

/** Listeners that can be judged at a time. */
const MAX_LISTENERS = 64;

/** What was seen of a listener's path since the last review. */
export interface Observation {
  elapsedMs: number;
  /** Datagrams for it, without copies, and those of them that found every lane crowded. */
  offered: number;
  crowded: number;
  /** Share that it reports as never arrived, 0 to 1. */
  lostShare: number | null;
  canCopy: boolean;
  canAddLanes: boolean;
}

/** What to do until the next review. */
export interface Decision {
  rung: number;
  copies: boolean;
  addLanes: boolean;
}

/** Judges one listener's path. */
export interface Ladder {
  /** Other formats: so many, at least 1, of which `rung` is sent now. */
  setRungs(rungs: number, rung: number): void;
  /** Whether to review at once: the format has just stepped up, and that was too much. `crowded`: as there. */
  fails(crowded: number): boolean;
  review(seen: Observation): Decision;
  close(): void;
}

/** The engine's ladders. */
export class Ladders {
  readonly #exports: Exports;
  readonly #free = Array.from({ length: MAX_LISTENERS }, (_, slot) => slot);

  constructor(module: WebAssembly.Module) {
    this.#exports = instantiate(module);
  }

  /** A ladder at its top; null if too many are in use. */
  add(rungs: number): Ladder | null {
    const slot = this.#free.shift();
    if (slot === undefined) return null;
    const setRungs = (count: number, rung: number) =>
      check(this.#exports.ladder_configure(slot, count, rung), "ladder_configure");
    setRungs(rungs, 0);
    return {
      setRungs,
      fails: (crowded) => {
        const fails = this.#exports.ladder_fails(slot, crowded);
        check(fails, "ladder_fails");
        return fails === 1;
      },
      review: ({ elapsedMs, offered, crowded, lostShare, canCopy, canAddLanes }) => {
        const can = Number(canCopy) + 2 * Number(canAddLanes);
        const lost = lostShare ?? Number.NaN;
        const decision = this.#exports.ladder_review(slot, elapsedMs, offered, crowded, lost, can);
        check(decision, "ladder_review");
        return {
          rung: decision & 0xff,
          copies: (decision & 0x100) !== 0,
          addLanes: (decision & 0x200) !== 0,
        };
      },
      close: () => {
        this.#exports.ladder_configure(slot, 0, 0);
        this.#free.push(slot);
      },
    };
  }
}

/** What the user wants, as far as it is possible; in the order of the engine's codes. */
export const PINS = ["auto", "direct", "relay", "mix"] as const;
export type Pin = (typeof PINS)[number];

/** What was seen of a listener's paths since the last review. */
export interface SenderObservation {
  elapsedMs: number;
  pin: Pin;
  isDirectOpen: boolean;
  isRelayOpen: boolean;
  /** Share of datagrams that the listener lately missed of each path, 0 to 1. */
  directLostShare: number | null;
  relayLostShare: number | null;
  direct: Carried;
  relay: Carried;
  /** How many take this participant's stream from the relay. */
  relayListeners: number;
}

/** What was seen of one path since the last review. */
export interface Carried {
  /** Datagrams were dropped because of a backlog, or their format stepped down. */
  isShort: boolean;
  /** Something came by it from the other end. */
  isAnswered: boolean;
}

/** Where to send until the next review; neither, if nothing is open. */
export interface Route {
  direct: boolean;
  relay: boolean;
}

/** What was seen of the relay since the last review. */
export interface ListenerObservation {
  elapsedMs: number;
  pin: Pin;
  isRelayOpen: boolean;
  /** Streams that the relay has for this listener. */
  streams: number;
  /** Datagrams that the relay sent to this listener, and those it dropped because no session had room. */
  forwarded: number;
  aged: number;
}

/** In the order of the engine's codes. Who is heard directly belongs neither into a mix nor among what is forwarded beside it. */
const ASKED = ["nothing", "forwarded", "mixed"] as const;
/** What to ask the relay for. */
export type Asked = (typeof ASKED)[number];

/** Chooses the path to one listener. */
export interface Sending {
  review(seen: SenderObservation): Route;
  close(): void;
}

/** The engine's choices of path: to each listener, and from the relay. */
export class Paths {
  readonly #exports: Exports;
  readonly #free = Array.from({ length: MAX_LISTENERS }, (_, slot) => slot);

  constructor(module: WebAssembly.Module) {
    this.#exports = instantiate(module);
  }

  /** A choice that begins with both paths; null if too many are in use. To be reviewed about twice a second. */
  add(): Sending | null {
    const slot = this.#free.shift();
    if (slot === undefined) return null;
    check(this.#exports.sending_reset(slot), "sending_reset");
    return {
      review: (seen) => {
        const { direct, relay } = seen;
        const carried = [direct.isShort, direct.isAnswered, relay.isShort, relay.isAnswered];
        const flags = [seen.isDirectOpen, seen.isRelayOpen, ...carried];
        const state = flags.reduce((bits, flag, at) => bits + Number(flag) * 2 ** at, 0);
        const route = this.#exports.sending_review(
          slot,
          seen.elapsedMs,
          PINS.indexOf(seen.pin),
          state,
          seen.directLostShare ?? Number.NaN,
          seen.relayLostShare ?? Number.NaN,
          seen.relayListeners,
        );
        check(route, "sending_review");
        return { direct: (route & 1) !== 0, relay: (route & 2) !== 0 };
      },
      close: () => {
        this.#free.push(slot);
      },
    };
  }

  /** What to ask the relay for until the next review, about twice a second. */
  listen({ elapsedMs, pin, isRelayOpen, streams, forwarded, aged }: ListenerObservation): Asked {
    const pinned = PINS.indexOf(pin);
    const asked = this.#exports.listening_review(
      elapsedMs,
      pinned,
      Number(isRelayOpen),
      streams,
      forwarded,
      aged,
    );
    check(asked, "listening_review");
    return ASKED[asked]!;
  }
}

/** What was seen of the server's mix since the last review. */
export interface MixObservation {
  elapsedMs: number;
  /** Frames of it that were played so far; 0 while there is none. */
  playedFrames: number;
  /** From asking for a change of the mix until it is heard: the round trip to the server, and the mix's own buffer. */
  settleMs: number;
}

/** What was seen of a participant. */
export interface MemberObservation {
  /** Its own stream. */
  stream: number;
  /** It shall be heard in the mix, and the relay reaches it. */
  isWanted: boolean;
  /** Its stream comes forwarded by the server: one that does not would be silent in the mix, too. */
  isForwarded: boolean;
  /** Frames of it that were played so far. */
  playedFrames: number;
}

/** Bits of a place in the mix. */
const PLACE = { source: 1, mixed: 2, ownNotNeeded: 4, heldUp: 8 } as const;

/** The engine's way into the server's mix and out of it, for one listener. */
export class Mixing {
  readonly #exports: Exports;
  /** By streams. */
  readonly #places = new Map<number, number>();
  #isNeeded = false;

  constructor(module: WebAssembly.Module) {
    this.#exports = instantiate(module);
    check(this.#exports.mixing_new(), "mixing_new");
  }

  /**
   * To be called every 10 to 20 ms while a mix is needed and a few times a second otherwise, with all who are in the room. Who is missing is
   * gone for good.
   */
  review(mix: MixObservation, all: readonly MemberObservation[]): void {
    const { mixing_see, mixing_review, mixing_place } = this.#exports;
    for (const { stream, isWanted, isForwarded, playedFrames } of all)
      check(mixing_see(stream, Number(isWanted) + 2 * Number(isForwarded), playedFrames), "mixing_see");
    const needed = mixing_review(mix.elapsedMs, mix.playedFrames, mix.settleMs);
    check(needed, "mixing_review");
    this.#isNeeded = needed === 1;
    this.#places.clear();
    for (const { stream } of all) this.#places.set(stream, mixing_place(stream));
  }

  /** Whether a stream of the mix is needed, be it silent. */
  get isNeeded(): boolean {
    return this.#isNeeded;
  }

  /** Whether the mix is heard. */
  get isHeard(): boolean {
    return Array.from(this.#places.values()).some((place) => (place & PLACE.mixed) !== 0);
  }

  /** Whether the mix shall hold a participant. */
  isSource(stream: number): boolean {
    return this.#is(stream, PLACE.source);
  }

  /** Whether a participant is heard in the mix, and its own stream is silent. */
  isMixed(stream: number): boolean {
    return this.#is(stream, PLACE.mixed);
  }

  /** Whether a participant was asked for long ago and has not come: a sender with room for one way alone may have chosen the direct one. */
  isHeldUp(stream: number): boolean {
    return this.#is(stream, PLACE.heldUp);
  }

  /** Whether a participant's own stream is to be asked for, as far as the mix is concerned. */
  needsOwn(stream: number): boolean {
    return !this.#is(stream, PLACE.ownNotNeeded);
  }

  #is(stream: number, bit: number): boolean {
    return ((this.#places.get(stream) ?? 0) & bit) !== 0;
  }
}
