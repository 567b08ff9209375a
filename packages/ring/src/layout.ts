/**
 * What every ring here has in common: where the two indices stand in the storage.
 *
 * ```
 * byte 0    producer's line   word 0: write index          word 1: the read index the producer saw last
 * byte 128  consumer's line   word 0: read index           word 1: the write index the consumer saw last
 * byte 252  kind              what the ring carries, as its maker knew, before there were two sides; 0: nobody said
 * byte 256  data              capacity, a power of two, so that `index & mask` is the place of an index
 * ```
 *
 * Each line has one writer. A line is 128 bytes: a cache line of the widest machines in use, and two of the usual 64
 * bytes, which some prefetchers fetch in pairs. "Seen last" copies live in the storage and not in the object, so that a role
 * can be handed over to another thread (with synchronisation of its own) without any call.
 *
 * The indices run freely through the capacity and wrap at 2^30, a multiple of every capacity: only differences modulo 2^30
 * count. Not at 2^32, because engines with compressed pointers (Chromium) keep whole numbers of up to 31 bits inside a
 * pointer, but larger ones on the heap: there, each atomic store of a larger index left up to 7 bytes of garbage on average,
 * after some hours of audio only.
 */

/** Word (4 bytes) of the write index: published by the producer. */
export const WRITE = 0;
/** Word of the producer's own copy of the read index. Never ahead of the real one. */
export const READ_SEEN = 1;
/** Word of the read index: published by the consumer. */
export const READ = 32;
/** Word of the consumer's own copy of the write index. Never ahead of the real one. */
export const WRITE_SEEN = 33;
/** Word of the kind, one of those below. */
export const KIND = 63;

/** Bytes before the data. */
export const HEADER_BYTES = 256;
/** Number of int32 words in the header. */
export const HEADER_WORDS = 64;

/** Indices count modulo 2^30. */
export const INDEX_MASK = 2 ** 30 - 1;

/**
 * Publishes an index, taken modulo 2^30, and with it what was written before. RT.
 *
 * An exchange and no store, for nobody wants the old value: Firefox has a store followed by a fence, which on x86 took 16 ns and
 * held up the copy before it, an exchange 2 ns (firefox 153, AMD EPYC, bench/). In Chromium and Node both take the same. Where a
 * processor makes an exchange of a load and a store that may have to be repeated (ARM before 8.1), nothing makes it repeat: each index has one writer.
 */
export function publish(index: Int32Array, word: number, value: number): void {
  Atomics.exchange(index, word, value & INDEX_MASK);
}

/** Greatest capacity, in elements or bytes: a full ring and an empty one have to differ modulo 2^30. */
export const MAX_CAPACITY = 2 ** 29;

/** Kinds of rings: of records, of parameter changes, and, from 1, of elements of one of these types. */
export const RECORDS = 101;
export const PARAMETERS = 102;
const ELEMENTS = [
  "Int8Array",
  "Uint8Array",
  "Int16Array",
  "Uint16Array",
  "Int32Array",
  "Uint32Array",
  "Float32Array",
  "Float64Array",
];

/** The kind of a ring of elements; 0 of a type that is not known here. */
export function kindOf(type: { readonly name: string }): number {
  return ELEMENTS.indexOf(type.name) + 1;
}

/** Where the indices and the data of a ring live: shared between threads, or private to one. */
export type RingStorage = SharedArrayBuffer | ArrayBuffer;

/** The smallest power of two that is at least `wanted` and at least `least` (a power of two itself). */
export function roundUpCapacity(wanted: number, least: number, unit: string): number {
  if (!Number.isInteger(wanted) || wanted < 1 || wanted > MAX_CAPACITY) {
    throw new RangeError(`ring capacity must be a whole number of ${unit} from 1 to 2^29, got ${wanted}`);
  }
  let capacity = least;
  while (capacity < wanted) capacity *= 2;
  return capacity;
}

/** New storage of `bytes` bytes, zeroed but for its kind: a SharedArrayBuffer, or an ArrayBuffer if `shared` is false. */
export function allocate(bytes: number, shared: boolean, kind: number): RingStorage {
  if (shared && typeof SharedArrayBuffer === "undefined") {
    throw new Error(
      "SharedArrayBuffer is missing: the page must be cross-origin isolated (COOP and COEP headers)",
    );
  }
  const storage = shared ? new SharedArrayBuffer(bytes) : new ArrayBuffer(bytes);
  new Int32Array(storage, 0, HEADER_WORDS)[KIND] = kind;
  return storage;
}

/** Capacity, in elements of `elementBytes` bytes, of the storage given to a constructor; throws if it is no ring's of this kind. */
export function capacityOf(
  storage: RingStorage,
  byteOffset: number,
  byteLength: number,
  elementBytes: number,
  kind: number,
): number {
  const capacity = (byteLength - HEADER_BYTES) / elementBytes;
  if (byteOffset % 8 !== 0)
    throw new RangeError(`ring storage must start at a multiple of 8 bytes, not ${byteOffset}`);
  if (
    !Number.isInteger(byteOffset) ||
    byteOffset < 0 ||
    byteOffset + byteLength > storage.byteLength ||
    !(capacity >= 1 && capacity <= MAX_CAPACITY) ||
    2 ** Math.round(Math.log2(capacity)) !== capacity
  ) {
    throw new RangeError(`${byteLength} bytes at ${byteOffset} are not the storage of a ring of this type`);
  }
  const found = new Int32Array(storage, byteOffset, HEADER_WORDS)[KIND];
  if (found !== 0 && found !== kind)
    throw new RangeError("the storage was made for another kind of ring, or for elements of another type");
  return capacity;
}
