/**
 * Records between threads: through a ring in shared memory, or, in a page that is not cross-origin isolated, through a MessagePort
 * into the same ring in the receiver's private memory. Either way the receiver pops from a `RecordRing`.
 */

import { RecordRing, type RingStorage, recordBytes } from "@antiphon/ring";

/** One end of a MessagePort, as far as every thread's globals agree on it. */
export interface Port {
  postMessage(message: unknown): void;
  // biome-ignore lint/suspicious/noExplicitAny: each thread's library has an event type of its own.
  onmessage: ((event: any) => void) | null;
}

/** How records of one kind pass from one thread to another. */
export type Channel = { storage: RingStorage } | { port: Port };

/** Where a producer puts records: false if one did not fit. */
export interface RecordSink {
  push(tag: number, bytes: Uint8Array): boolean;
  /** One record of both. */
  push2(tag: number, head: Uint8Array, body: Uint8Array): boolean;
}

interface PortRecord {
  tag: number;
  bytes: Uint8Array;
}

/** Where a consumer takes records from. */
export interface RecordSource {
  readonly ring: RecordRing;
  /** To be called now and then: by a port, the producer then knows what has been taken, and that there is room again. */
  acknowledge(): void;
}

/** `capacityBytes`: of the ring at the far end of a port, should the consumer acknowledge. Otherwise there always seems to be room. */
export function sinkOf(channel: Channel, capacityBytes = Number.POSITIVE_INFINITY): RecordSink {
  if ("storage" in channel) return new RecordRing(channel.storage);
  const { port } = channel;
  let [sentBytes, takenBytes] = [0, 0];
  port.onmessage = ({ data }: { data: number }) => {
    takenBytes = data;
  };
  const hasRoom = (length: number) => sentBytes - takenBytes + recordBytes(length) <= capacityBytes;
  const post = (tag: number, bytes: Uint8Array) => {
    sentBytes += recordBytes(bytes.length);
    port.postMessage({ tag, bytes } satisfies PortRecord);
    return true;
  };
  return {
    // A copy of its own: `bytes` is mostly a view of an area that is used again.
    push: (tag, bytes) => hasRoom(bytes.length) && post(tag, bytes.slice()),
    push2(tag, head, body) {
      const length = head.length + body.length;
      if (!hasRoom(length)) return false;
      const bytes = new Uint8Array(length);
      bytes.set(head);
      bytes.set(body, head.length);
      return post(tag, bytes);
    },
  };
}

/** `arrived` is called where the channel can tell (a port can, shared memory cannot). */
export function sourceOf(channel: Channel, capacityBytes: number, arrived?: () => void): RecordSource {
  if ("storage" in channel) return { ring: new RecordRing(channel.storage), acknowledge() {} };
  const { port } = channel;
  const ring = new RecordRing(RecordRing.createStorage(capacityBytes, false));
  let receivedBytes = 0;
  port.onmessage = ({ data }: { data: PortRecord }) => {
    const { tag, bytes } = data;
    receivedBytes += recordBytes(bytes.length);
    ring.push(tag, bytes);
    arrived?.();
  };
  const heldBytes = () => ring.maxRecordBytes - ring.availableWriteBytes;
  return { ring, acknowledge: () => port.postMessage(receivedBytes - heldBytes()) };
}

/** What its consumer threw away: records that it has no room for, and all that was in a ring that held impossible values, as one. */
export function discards({ skippedRecords, corruptions }: RecordRing): number {
  return skippedRecords + corruptions;
}

/** Tag of a record of captured audio: f32 `[channel][frame]`. One of no channels says how many frames were lost before the next. */
export function captureTag(channels: number, frames: number): number {
  return channels * 65_536 + frames;
}
export function captureShape(tag: number): { channels: number; frames: number } {
  return { channels: Math.floor(tag / 65_536), frames: tag % 65_536 };
}

/**
 * Added to a stream's name: a decoded Opus packet, not a datagram as it came. Only this side can say so, no peer. The sum is an integer
 * below 2^30, which takes the audio thread no allocation.
 */
export const DECODED_TAG = 2 ** 29;

/** The end of a datagram's record: when it came, in ms of `Date.now()`, the one clock that the audio thread has too. */
export class Arrival {
  static readonly BYTES = 8;
  readonly bytes = new Uint8Array(Arrival.BYTES);
  readonly #view = new DataView(this.bytes.buffer);

  set(atMs: number): Uint8Array {
    this.#view.setFloat64(0, atMs, true);
    return this.bytes;
  }
}

/** A command's record: the stream's name, then a value. */
export class CommandRecord {
  readonly bytes = new Uint8Array(8);
  readonly #view = new DataView(this.bytes.buffer);

  get stream(): number {
    return this.#view.getUint32(0, true);
  }
  get value(): number {
    return this.#view.getFloat32(4, true);
  }
  set(stream: number, value: number): Uint8Array {
    this.#view.setUint32(0, stream, true);
    this.#view.setFloat32(4, value, true);
    return this.bytes;
  }
}
