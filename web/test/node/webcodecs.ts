/** A stand-in for WebCodecs, which Node lacks. */

import { type OpusFrames, writeOpus } from "../../src/shared/wire";

/** The first byte of an Opus packet that is one frame of so many samples (RFC 6716, 3.1). */
export function toc(frames: number, channels: number): number {
  return ((28 + Math.log2(frames / 120)) << 3) | (channels === 2 ? 4 : 0);
}

/** A datagram of a packet that sounds like that (see {@link FakeDecoder}). */
export function opusDatagram(
  frames: OpusFrames,
  timestamp: number,
  sound = 0,
  channels = 2,
): Uint8Array<ArrayBuffer> {
  const { datagram, packet } = writeOpus(channels, frames, BigInt(timestamp), 40);
  packet.fill(sound);
  packet[0] = toc(frames, channels);
  return datagram;
}

/** As much of WebCodecs as is used, with a "codec" of this lookahead that keeps the first sample of each packet. One in, one out, at once. */
export const LOOKAHEAD_FRAMES = 120;

export class FakeData {
  readonly timestamp: number;
  readonly numberOfFrames: number;
  readonly numberOfChannels: number;
  readonly data: Float32Array;
  constructor(init: {
    timestamp: number;
    numberOfFrames: number;
    numberOfChannels: number;
    data: Float32Array;
  }) {
    this.timestamp = init.timestamp;
    this.numberOfFrames = init.numberOfFrames;
    this.numberOfChannels = init.numberOfChannels;
    this.data = init.data.slice();
  }
  copyTo(plane: Float32Array, { planeIndex }: { planeIndex: number }): void {
    for (let n = 0; n < this.numberOfFrames; n++)
      plane[n] = this.data[n * this.numberOfChannels + planeIndex];
  }
  close(): void {}
}

export class FakeChunk {
  readonly timestamp: number;
  readonly data: Uint8Array;
  constructor(init: { timestamp: number; data: Uint8Array }) {
    this.timestamp = init.timestamp;
    this.data = init.data.slice();
  }
  get byteLength(): number {
    return this.data.length;
  }
  copyTo(into: Uint8Array): void {
    into.set(this.data);
  }
}

export class FakeEncoder {
  /** Of what was encoded, since `installFakes`. */
  static timestampsUs: number[] = [];
  state = "unconfigured";
  encodeQueueSize = 0;
  /** The sample that the next packet begins with. */
  #past = 0;
  readonly #output: (chunk: FakeChunk, metadata: unknown) => void;
  readonly #error: (error: Error) => void;
  constructor({
    output,
    error,
  }: {
    output: (chunk: FakeChunk, metadata: unknown) => void;
    error: (error: Error) => void;
  }) {
    this.#output = output;
    this.#error = error;
  }
  configure(): void {
    this.state = "configured";
  }
  encode(data: FakeData): void {
    FakeEncoder.timestampsUs.push(data.timestamp);
    const description = new Uint8Array(19);
    description[10] = LOOKAHEAD_FRAMES;
    const packet = new Uint8Array(40).fill(this.#past);
    this.#past = data.data[(data.numberOfFrames - LOOKAHEAD_FRAMES) * data.numberOfChannels];
    packet[0] = toc(data.numberOfFrames, data.numberOfChannels);
    this.#output(new FakeChunk({ timestamp: 0, data: packet }), { decoderConfig: { description } });
  }
  fail(): void {
    this.state = "closed";
    this.#error(new Error("out of order"));
  }
  close(): void {
    this.state = "closed";
  }
}

/** What a packet sounds like is its second byte; 255 is no Opus, and 254 gives other frames than it says. */
export class FakeDecoder {
  static made = 0;
  state = "unconfigured";
  decodeQueueSize = 0;
  #channels = 0;
  readonly #init: { output: (data: FakeData) => void; error: (error: Error) => void };
  constructor(init: { output: (data: FakeData) => void; error: (error: Error) => void }) {
    this.#init = init;
    FakeDecoder.made++;
  }
  configure({ numberOfChannels }: { numberOfChannels: number }): void {
    this.state = "configured";
    this.#channels = numberOfChannels;
  }
  decode({ data, timestamp }: FakeChunk): void {
    const [first, sound] = data;
    if (sound === 255) {
      this.state = "closed";
      this.#init.error(new Error("no Opus"));
      return;
    }
    const numberOfFrames = sound === 254 ? 960 : 120 << ((first >> 3) - 28);
    const samples = new Float32Array(numberOfFrames * this.#channels).map(
      (_, n) => sound + (n % this.#channels) / 2,
    );
    this.#init.output(
      new FakeData({ timestamp, numberOfFrames, numberOfChannels: this.#channels, data: samples }),
    );
  }
  close(): void {
    this.state = "closed";
  }
}

const NAMES = {
  AudioEncoder: FakeEncoder,
  AudioDecoder: FakeDecoder,
  AudioData: FakeData,
  EncodedAudioChunk: FakeChunk,
};

export function installFakes(): void {
  FakeEncoder.timestampsUs = [];
  FakeDecoder.made = 0;
  Object.assign(globalThis, NAMES);
}

export function removeFakes(): void {
  for (const name of Object.keys(NAMES)) delete (globalThis as Record<string, unknown>)[name];
}
