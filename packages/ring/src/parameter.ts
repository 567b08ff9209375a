import { allocate, PARAMETERS, type RingStorage, roundUpCapacity } from "./layout.js";
import { Ring } from "./ring.js";

/** One change of one parameter. */
export interface ParameterChange {
  /** Which parameter: a u32 whose meaning the two sides agree on. */
  index: number;
  /** Its new value, rounded to a 32-bit float. */
  value: number;
}

/**
 * Makes the storage of a queue of at least `changes` parameter changes (1 to 2^28).
 *
 * `shared` false makes a plain ArrayBuffer, for a queue inside one thread. *Errors* as `Ring.createStorage`.
 */
export function createParameterStorage(changes: number, shared = true): RingStorage {
  return allocate(
    Ring.byteLengthFor(2 * roundUpCapacity(changes, 1, "changes"), Uint32Array),
    shared,
    PARAMETERS,
  );
}

function attach(storage: RingStorage): Ring<Uint32Array> {
  return new Ring(storage, Uint32Array, 0, storage.byteLength, PARAMETERS);
}

/** Producer's end of a queue of parameter changes: two words each, the index and the bits of the value. */
export class ParameterWriter {
  readonly #ring: Ring<Uint32Array>;
  readonly #values: Float32Array;

  /** Attaches to storage made by {@link createParameterStorage}. *Errors* as the constructor of `Ring`. */
  constructor(storage: RingStorage) {
    this.#ring = attach(storage);
    this.#values = valuesOf(this.#ring);
  }

  /** Changes that can be enqueued. RT. */
  get availableWrite(): number {
    return this.#ring.availableWrite >> 1;
  }

  /** Appends a change of parameter `index` (u32) to `value` (32-bit float); false if there is no room. RT. */
  enqueue(index: number, value: number): boolean {
    const ring = this.#ring;
    if (ring.grantWrite(2) < 2) return false;
    const at = ring.writeAt();
    ring.data[at] = index;
    this.#values[at + 1] = value;
    ring.commitWrite(2);
    return true;
  }
}

/** Consumer's end of a queue of parameter changes. */
export class ParameterReader {
  readonly #ring: Ring<Uint32Array>;
  readonly #values: Float32Array;

  /** Attaches to storage made by {@link createParameterStorage}. *Errors* as the constructor of `Ring`. */
  constructor(storage: RingStorage) {
    this.#ring = attach(storage);
    this.#values = valuesOf(this.#ring);
  }

  /** Changes that can be dequeued. RT. */
  get availableRead(): number {
    return this.#ring.availableRead >> 1;
  }

  /** Moves the oldest change to `change`, which the caller keeps and reuses; false if there is none. RT. */
  dequeue(change: ParameterChange): boolean {
    const ring = this.#ring;
    if (ring.grantRead(2) < 2) return false;
    const at = ring.readAt();
    change.index = ring.data[at];
    change.value = this.#values[at + 1];
    ring.commitRead(2);
    return true;
  }
}

function valuesOf(ring: Ring<Uint32Array>): Float32Array {
  return new Float32Array(ring.data.buffer, ring.data.byteOffset, ring.capacity);
}
