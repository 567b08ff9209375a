import {
  allocate,
  capacityOf,
  HEADER_BYTES,
  HEADER_WORDS,
  INDEX_MASK,
  publish,
  READ,
  READ_SEEN,
  RECORDS,
  type RingStorage,
  roundUpCapacity,
  WRITE,
  WRITE_SEEN,
} from "./layout.js";

/** {@link RecordRing.pop}: there is no record. */
export const EMPTY = -1;
/** {@link RecordRing.pop}: the record was longer than the room given; it has been thrown away and counted. */
export const TOO_LONG = -2;
/** {@link RecordRing.pop}: the shared memory held impossible values; everything in it has been thrown away. */
export const CORRUPT = -3;

/** Each record is an int32 length, an int32 tag and the payload, padded to a multiple of this. */
const ALIGN = 8;
/** Takes an index to a multiple of 8 below 2^30, whatever a corrupt memory holds. */
const ALIGNED = INDEX_MASK & -ALIGN;
const RECORD_HEADER_BYTES = 8;

/**
 * Up to this many bytes are moved one by one. More are moved by `TypedArray.set` if that needs no new view, else by words of
 * 4 bytes if the addresses allow it, both without garbage. See the note on copies in ring.ts.
 */
const LOOP_WINS = 16;

const NONE: Uint8Array = new Uint8Array(0);

/**
 * A wait-free queue of byte records, each with a u32 tag, from one producer thread to one consumer thread.
 *
 * A record goes in whole or not at all. It takes 8 bytes plus its length rounded up to a multiple of 8.
 * Roles, threads and hand-over are as for `Ring`.
 *
 * *Invariant* Records leave in the order in which they came, each once, unless counted in `skippedRecords` or `corruptions`.
 * A corrupt or hostile storage can cost records, never a read or write outside the storage or an endless loop.
 *
 * *Real-time* Methods marked RT: no allocation, no lock, no system call, O(bytes moved). `push`, `push2` and `pop` are RT as
 * long as the arrays they get stay the same ones: for a new array a view is made, and kept.
 */
export class RecordRing {
  /** Bytes for records with their headers and padding: the number asked for, rounded up to a power of two (16 at least). */
  readonly capacityBytes: number;
  /** Greatest length of a record: `capacityBytes - 8`. */
  readonly maxRecordBytes: number;
  /** Consumer: tag of the record that the last `pop` returned or skipped, a u32. */
  tag = 0;
  /** Consumer: length of the record that the last `pop` returned or skipped, in bytes. */
  lengthBytes = 0;
  /** Consumer: number of records thrown away by this object because they did not fit into `dst`. */
  skippedRecords = 0;
  /** Consumer: number of times that this object found impossible values and emptied the ring. */
  corruptions = 0;
  readonly #index: Int32Array;
  readonly #bytes: Uint8Array;
  readonly #words: Int32Array;
  readonly #mask: number;
  readonly #head = new Foreign();
  readonly #source = new Foreign();
  readonly #sink = new Foreign();

  /** Size of the storage of a ring of at least `capacityBytes`. *Units* bytes. *Errors* RangeError if not in 1 to 2^29. */
  static byteLengthFor(capacityBytes: number): number {
    return HEADER_BYTES + roundUpCapacity(capacityBytes, 2 * ALIGN, "bytes");
  }

  /**
   * Makes the storage of an empty ring of at least `capacityBytes`, to be given to both sides.
   *
   * `shared` false makes a plain ArrayBuffer, for a ring inside one thread.
   * *Errors* RangeError if `capacityBytes` is not in 1 to 2^29; Error if the page has no SharedArrayBuffer.
   */
  static createStorage(capacityBytes: number, shared = true): RingStorage {
    return allocate(RecordRing.byteLengthFor(capacityBytes), shared, RECORDS);
  }

  /**
   * Attaches to storage made by {@link createStorage}, or to `byteLengthFor` zeroed bytes at `byteOffset`
   * (a multiple of 8) of a larger buffer. Changes nothing in the storage. Allocates: construct before real time starts.
   *
   * *Errors* RangeError if the bytes cannot be a ring of records, or were made for another kind.
   */
  constructor(storage: RingStorage, byteOffset = 0, byteLength = storage.byteLength - byteOffset) {
    this.capacityBytes = capacityOf(storage, byteOffset, byteLength, 1, RECORDS);
    if (this.capacityBytes < 2 * ALIGN) throw new RangeError("a ring of records has 16 bytes at least");
    this.maxRecordBytes = this.capacityBytes - RECORD_HEADER_BYTES;
    this.#mask = this.capacityBytes - 1;
    this.#index = new Int32Array(storage, byteOffset, HEADER_WORDS);
    this.#bytes = new Uint8Array(storage, byteOffset + HEADER_BYTES, this.capacityBytes);
    this.#words = new Int32Array(storage, byteOffset + HEADER_BYTES, this.capacityBytes / 4);
  }

  /** Whether there is no record. RT. */
  get empty(): boolean {
    return Atomics.load(this.#index, WRITE) === Atomics.load(this.#index, READ);
  }

  /**
   * Length of the longest record that can be pushed now, in bytes, 0 to `maxRecordBytes`; -1 if not even an empty one can.
   * To the producer a lower bound, to others a snapshot. RT.
   */
  get availableWriteBytes(): number {
    const used = (Atomics.load(this.#index, WRITE) - Atomics.load(this.#index, READ)) & ALIGNED;
    const room = used > this.capacityBytes ? 0 : this.capacityBytes - used;
    return room < RECORD_HEADER_BYTES ? -1 : room - RECORD_HEADER_BYTES;
  }

  /**
   * Producer: appends `length` bytes of `bytes` from `offset` as one record with a u32 `tag`; false if there is no room now.
   *
   * *Errors* RangeError if the range is not inside `bytes`, or the record is longer than `maxRecordBytes`. *Real-time* RT.
   */
  push(tag: number, bytes: Uint8Array, offset = 0, length = bytes.length - offset): boolean {
    checkRange(bytes, offset, length);
    const start = this.#begin(tag, length);
    if (start < 0) return false;
    this.#put(this.#source, bytes, offset, start, length);
    this.#publish(length);
    return true;
  }

  /**
   * Producer: appends one record made of all of `head` followed by `bodyLength` bytes of `body` from `bodyOffset`; false if
   * there is no room now. The same as `push` of the two joined, without joining them.
   *
   * *Errors* RangeError if the range is not inside `body`, or the record is longer than `maxRecordBytes`. *Real-time* RT.
   */
  push2(
    tag: number,
    head: Uint8Array,
    body: Uint8Array,
    bodyOffset = 0,
    bodyLength = body.length - bodyOffset,
  ): boolean {
    checkRange(body, bodyOffset, bodyLength);
    const start = this.#begin(tag, head.length + bodyLength);
    if (start < 0) return false;
    this.#put(this.#head, head, 0, start, head.length);
    this.#put(this.#source, body, bodyOffset, (start + head.length) & this.#mask, bodyLength);
    this.#publish(head.length + bodyLength);
    return true;
  }

  /**
   * Consumer: length of the next record, in bytes, without taking it; {@link EMPTY} or {@link CORRUPT} as for `pop`. RT.
   */
  nextLengthBytes(): number {
    const index = this.#index;
    const read = index[READ] & ALIGNED;
    let ready = (index[WRITE_SEEN] - read) & ALIGNED;
    if (ready < ALIGN || ready > this.capacityBytes) {
      const write = Atomics.load(index, WRITE) & ALIGNED;
      index[WRITE_SEEN] = write;
      ready = (write - read) & ALIGNED;
      if (ready === 0) return EMPTY;
      if (ready > this.capacityBytes) return this.#drop(write);
    }
    const length = this.#words[(read & this.#mask) >> 2];
    if (length < 0 || length > ready - RECORD_HEADER_BYTES)
      return this.#drop(Atomics.load(index, WRITE) & ALIGNED);
    return length;
  }

  /**
   * Consumer: moves the next record to `dst` from `dstOffset` and returns its length in bytes; `tag` then is its tag.
   *
   * Otherwise returns a negative number: {@link EMPTY}, {@link TOO_LONG} (the record did not fit into the rest of `dst`, is
   * gone, `tag` and `lengthBytes` tell what it was) or {@link CORRUPT}. `dst` then is unchanged.
   * *Errors* RangeError if `dstOffset` is not inside `dst`. *Real-time* RT.
   */
  pop(dst: Uint8Array, dstOffset = 0): number {
    checkRange(dst, dstOffset, 0);
    const length = this.nextLengthBytes();
    if (length < 0) return length;
    const index = this.#index;
    const read = index[READ] & ALIGNED;
    const start = read & this.#mask;
    this.tag = this.#words[(start >> 2) + 1] >>> 0;
    this.lengthBytes = length;
    const fits = length <= dst.length - dstOffset;
    if (fits) this.#take((start + RECORD_HEADER_BYTES) & this.#mask, dst, dstOffset, length);
    else this.skippedRecords++;
    publish(index, READ, read + recordBytes(length));
    return fits ? length : TOO_LONG;
  }

  /** Empties the ring. Only while no other thread uses it. `start`, a multiple of 8, is the value of both indices: see `Ring.reset`. */
  reset(start = 0): void {
    for (const word of [READ, READ_SEEN, WRITE, WRITE_SEEN])
      Atomics.store(this.#index, word, start & ALIGNED);
  }

  /** Writes the header of a record if there is room; returns the place of its payload, or -1. */
  #begin(tag: number, length: number): number {
    if (length > this.maxRecordBytes) {
      throw new RangeError(
        `a record of ${length} bytes is longer than the ${this.maxRecordBytes} of this ring`,
      );
    }
    const index = this.#index;
    const need = recordBytes(length);
    const write = index[WRITE] & ALIGNED;
    let used = (write - index[READ_SEEN]) & ALIGNED;
    if (need > this.capacityBytes - used) {
      const read = Atomics.load(index, READ) & ALIGNED;
      index[READ_SEEN] = read;
      used = (write - read) & ALIGNED;
      if (need > this.capacityBytes - used) return -1;
    }
    const start = write & this.#mask;
    this.#words[start >> 2] = length;
    this.#words[(start >> 2) + 1] = tag | 0;
    return (start + RECORD_HEADER_BYTES) & this.#mask;
  }

  #publish(length: number): void {
    const index = this.#index;
    publish(index, WRITE, (index[WRITE] & ALIGNED) + recordBytes(length));
  }

  #drop(write: number): number {
    this.corruptions++;
    publish(this.#index, READ, write);
    return CORRUPT;
  }

  /** Copies `count` bytes of `src`, by `foreign`, into the ring, to place `to`, across its end if need be. */
  #put(foreign: Foreign, src: Uint8Array, from: number, to: number, count: number): void {
    if (count === src.length && count > LOOP_WINS && to + count <= this.capacityBytes) {
      this.#bytes.set(src, to);
      return;
    }
    const first = Math.min(count, this.capacityBytes - to);
    foreign.copyOut(src, from, this.#bytes, this.#words, to, first);
    if (first < count) foreign.copyOut(src, from + first, this.#bytes, this.#words, 0, count - first);
  }

  /** Copies `count` bytes out of the ring, from place `from`, across its end if need be. */
  #take(from: number, dst: Uint8Array, to: number, count: number): void {
    const first = Math.min(count, this.capacityBytes - from);
    this.#sink.copyIn(dst, to, this.#bytes, this.#words, from, first);
    if (first < count) this.#sink.copyIn(dst, to + first, this.#bytes, this.#words, 0, count - first);
  }
}

/** An array of the caller's, with a view of its whole words that is kept until another array comes. */
class Foreign {
  #bytes: Uint8Array = NONE;
  #length = 0;
  #words: Int32Array = new Int32Array(0);

  /** From `bytes` into the ring. */
  copyOut(
    bytes: Uint8Array,
    from: number,
    ring: Uint8Array,
    ringWords: Int32Array,
    to: number,
    count: number,
  ): void {
    let i = 0;
    if (count > LOOP_WINS && (((bytes.byteOffset + from) | to) & 3) === 0) {
      const words = this.#wordsOf(bytes);
      copyWords(words, (bytes.byteOffset + from - words.byteOffset) >> 2, ringWords, to >> 2, count >> 2);
      i = count & -4;
    }
    for (; i < count; i++) ring[to + i] = bytes[from + i];
  }

  /** From the ring into `bytes`. */
  copyIn(
    bytes: Uint8Array,
    to: number,
    ring: Uint8Array,
    ringWords: Int32Array,
    from: number,
    count: number,
  ): void {
    let i = 0;
    if (count > LOOP_WINS && (((bytes.byteOffset + to) | from) & 3) === 0) {
      const words = this.#wordsOf(bytes);
      copyWords(ringWords, from >> 2, words, (bytes.byteOffset + to - words.byteOffset) >> 2, count >> 2);
      i = count & -4;
    }
    for (; i < count; i++) bytes[to + i] = ring[from + i];
  }

  #wordsOf(bytes: Uint8Array): Int32Array {
    if (bytes !== this.#bytes || bytes.length !== this.#length) {
      // The memory of a wasm module may be longer than 2 GiB.
      const start = bytes.byteOffset + (-bytes.byteOffset & 3);
      const end = bytes.byteOffset + bytes.length;
      this.#words = new Int32Array(bytes.buffer, start, (end - start) >> 2);
      this.#bytes = bytes;
      this.#length = bytes.length;
    }
    return this.#words;
  }
}

/** Unrolled: half the time of the plain loop, in V8. */
function copyWords(src: Int32Array, from: number, dst: Int32Array, to: number, count: number): void {
  let i = 0;
  for (; i <= count - 8; i += 8) {
    dst[to + i] = src[from + i];
    dst[to + i + 1] = src[from + i + 1];
    dst[to + i + 2] = src[from + i + 2];
    dst[to + i + 3] = src[from + i + 3];
    dst[to + i + 4] = src[from + i + 4];
    dst[to + i + 5] = src[from + i + 5];
    dst[to + i + 6] = src[from + i + 6];
    dst[to + i + 7] = src[from + i + 7];
  }
  for (; i < count; i++) dst[to + i] = src[from + i];
}

/** Bytes that a record of `length` bytes takes in a ring of records. *Real-time* RT. */
export function recordBytes(length: number): number {
  return (RECORD_HEADER_BYTES + length + ALIGN - 1) & -ALIGN;
}

function checkRange(bytes: Uint8Array, offset: number, length: number): void {
  if (
    (offset | 0) !== offset ||
    (length | 0) !== length ||
    offset < 0 ||
    length < 0 ||
    offset + length > bytes.length
  ) {
    throw new RangeError(`${length} bytes from ${offset} are not inside an array of ${bytes.length}`);
  }
}
