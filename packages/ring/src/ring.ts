import {
  allocate,
  capacityOf,
  HEADER_BYTES,
  HEADER_WORDS,
  INDEX_MASK,
  kindOf,
  publish,
  READ,
  READ_SEEN,
  type RingStorage,
  roundUpCapacity,
  WRITE,
  WRITE_SEEN,
} from "./layout.js";

/** The element types that a {@link Ring} can carry. */
export type NumericArray =
  | Int8Array
  | Uint8Array
  | Int16Array
  | Uint16Array
  | Int32Array
  | Uint32Array
  | Float32Array
  | Float64Array;

/** The constructor of a typed array, `Float32Array` for instance. */
export interface NumericArrayConstructor<T extends NumericArray> {
  readonly BYTES_PER_ELEMENT: number;
  readonly name: string;
  /** What `T` is inferred from: the array over any buffer, and not just over an ArrayBuffer. */
  readonly prototype: T;
  new (buffer: ArrayBufferLike, byteOffset?: number, length?: number): NoInfer<T>;
}

/**
 * Fills or reads up to two spans of `data`: `count1` elements from `offset1`, then `count2` from `offset2`.
 * Returns how many elements it used, counted from the start of the first span; `undefined` means all.
 * `data` is the storage of the whole ring: touching anything outside the two spans corrupts it.
 */
export type SpanCallback<T extends NumericArray> = (
  data: T,
  offset1: number,
  count1: number,
  offset2: number,
  count2: number,
  // biome-ignore lint/suspicious/noConfusingVoidType: a callback without a return statement means "all"
) => number | undefined | void;

/** Like {@link SpanCallback}, with two views instead; the second is empty when the span does not wrap. */
// biome-ignore lint/suspicious/noConfusingVoidType: a callback without a return statement means "all"
export type ViewCallback<T extends NumericArray> = (first: T, second: T) => number | undefined | void;

/**
 * Copies. `TypedArray.set` of a whole array is the fastest copy above a few elements and makes no garbage; to copy a part,
 * it needs a view of the part, which is garbage unless it is kept. A loop makes none, at about twice the time for 128
 * elements. Hence: `set` for whole arrays and for blocks whose views are kept, loops for the rest up to LOOP_LIMIT.
 * Measured by bench/, which see.
 */
const LOOP_WINS = 16;
const LOOP_LIMIT = 512;

/** Elements per block whose views are kept from the start: the default render quantum of Web Audio. */
const DEFAULT_BLOCK = 128;
/** Rings of more blocks keep no views unless told to, as every view costs some 100 bytes. */
const DEFAULT_BLOCKS_MAX = 1024;

/**
 * A wait-free queue of numbers from one producer thread to one consumer thread.
 *
 * Both sides construct a `Ring` on the same storage. One thread at a time may call the producer's methods
 * (`push`, `writeCallback…`), one the consumer's (`pop`, `peek`, `skip`, `readCallback…`); everything else is
 * open to both. Every method finishes in a bounded number of its own steps, whatever the other side does.
 *
 * *Invariant* `0 <= availableRead <= capacity`; elements leave in the order in which they came, each once.
 *
 * *Real-time* Methods marked RT: no allocation, no lock, no system call, O(elements moved). "RT up to 512"
 * means that above 512 elements a copy may allocate short-lived views.
 */
export class Ring<T extends NumericArray> {
  /** Number of elements that fit: the number asked for, rounded up to a power of two. */
  readonly capacity: number;
  /** The elements, for {@link SpanCallback}s. @internal */
  readonly data: T;
  /** `capacity - 1`. @internal */
  readonly mask: number;
  readonly #index: Int32Array;
  #block = 0;
  #blockShift = 0;
  #blockViews: T[] = [];

  /**
   * Size of the storage of a ring of at least `capacity` elements.
   *
   * *Units* elements in (1 to 2^29), bytes out. *Errors* RangeError if out of range.
   */
  static byteLengthFor<T extends NumericArray>(capacity: number, type: NumericArrayConstructor<T>): number {
    return HEADER_BYTES + roundUpCapacity(capacity, 1, "elements") * type.BYTES_PER_ELEMENT;
  }

  /**
   * Makes the storage of an empty ring of at least `capacity` elements, to be given to both sides.
   *
   * `shared` false makes a plain ArrayBuffer, for a ring inside one thread.
   * *Errors* RangeError if `capacity` is not in 1 to 2^29; Error if the page has no SharedArrayBuffer.
   */
  static createStorage<T extends NumericArray>(
    capacity: number,
    type: NumericArrayConstructor<T>,
    shared = true,
  ): RingStorage {
    return allocate(Ring.byteLengthFor(capacity, type), shared, kindOf(type));
  }

  /**
   * Attaches to storage made by {@link createStorage}, or to `byteLengthFor` zeroed bytes at `byteOffset`
   * (a multiple of 8) of a larger buffer, such as the memory of a wasm module.
   *
   * Changes nothing in the storage. Allocates: construct before real time starts.
   * *Errors* RangeError if the bytes cannot be a ring of this type, or were made for another. `kind` is for the wrappers of a ring.
   */
  constructor(
    storage: RingStorage,
    type: NumericArrayConstructor<T>,
    byteOffset = 0,
    byteLength = storage.byteLength - byteOffset,
    kind = kindOf(type),
  ) {
    this.capacity = capacityOf(storage, byteOffset, byteLength, type.BYTES_PER_ELEMENT, kind);
    this.mask = this.capacity - 1;
    this.#index = new Int32Array(storage, byteOffset, HEADER_WORDS);
    this.data = new type(storage, byteOffset + HEADER_BYTES, this.capacity);
    const blocks = this.capacity / DEFAULT_BLOCK;
    if (blocks >= 1 && blocks <= DEFAULT_BLOCKS_MAX) this.prepareBlocks(DEFAULT_BLOCK);
  }

  /**
   * Consumer: keeps a view of each block of `elements` elements, so that a `pop` of exactly so many, as long as all pops are
   * of so many, is a single memory copy without garbage. Done by the constructor for 128, in rings of up to 131072 elements.
   *
   * Not RT: allocates `capacity / elements` views. *Errors* RangeError if `elements` is no power of two up to the capacity.
   */
  prepareBlocks(elements: number): void {
    const divides = Number.isInteger(elements) && (elements & (elements - 1)) === 0;
    if (!divides || elements < 1 || elements > this.capacity) {
      throw new RangeError(`blocks of ${elements} elements do not divide a ring of ${this.capacity}`);
    }
    this.#block = elements;
    this.#blockShift = 31 - Math.clz32(elements);
    this.#blockViews = [];
    for (let at = 0; at < this.capacity; at += elements) this.#blockViews.push(view(this.data, at, elements));
  }

  /** Elements that can be popped, 0 to capacity. To the consumer a lower bound, to others a snapshot. RT. */
  get availableRead(): number {
    const write = Atomics.load(this.#index, WRITE);
    return this.#checked((write - Atomics.load(this.#index, READ)) & INDEX_MASK);
  }

  /** Elements that can be pushed, 0 to capacity. To the producer a lower bound, to others a snapshot. RT. */
  get availableWrite(): number {
    return this.capacity - this.availableRead;
  }

  /** Whether there is nothing to pop. RT. */
  get empty(): boolean {
    return this.availableRead === 0;
  }

  /** Whether there is no room to push. RT. */
  get full(): boolean {
    return this.availableRead === this.capacity;
  }

  /**
   * Producer: appends up to `count` elements of `src` from `offset`; returns how many fitted. `src` is unchanged.
   *
   * *Errors* RangeError if the range is not inside `src`. *Real-time* RT up to 512 elements.
   */
  push(src: T, offset = 0, count = src.length - offset): number {
    const index = this.#index;
    const write = index[WRITE];
    const at = write & this.mask;
    // A whole array that fits, which is what audio is, without a call: that takes a fifth off in Firefox.
    if (
      offset === 0 &&
      count === src.length &&
      count > LOOP_WINS &&
      at + count <= this.capacity &&
      (count <= this.capacity - ((write - index[READ_SEEN]) & INDEX_MASK) || this.grantWrite(count) === count)
    ) {
      this.data.set(src, at);
      publish(index, WRITE, write + count);
      return count;
    }
    checkRange(src.length, offset, count);
    const granted = this.grantWrite(count);
    if (granted === 0) return 0;
    copyIn(src, offset, this.data, at, granted);
    this.commitWrite(granted);
    return granted;
  }

  /**
   * Consumer: moves up to `count` elements to `dst` from `offset`; returns how many there were.
   * The rest of `dst` is unchanged: after a short pop it still holds old data, which the caller must replace.
   *
   * *Errors* RangeError if the range is not inside `dst`. *Real-time* RT up to 512 elements.
   */
  pop(dst: T, offset = 0, count = dst.length - offset): number {
    const granted = this.peek(dst, offset, count);
    if (granted !== 0) this.commitRead(granted);
    return granted;
  }

  /** Consumer: {@link pop} that leaves the elements in the ring. */
  peek(dst: T, offset = 0, count = dst.length - offset): number {
    checkRange(dst.length, offset, count);
    const granted = this.grantRead(count);
    if (granted === 0) return 0;
    const at = this.readAt();
    if (granted === this.#block && (at & (granted - 1)) === 0)
      dst.set(this.#blockViews[at >>> this.#blockShift], offset);
    else copyOut(this.data, at, dst, offset, granted);
    return granted;
  }

  /** Consumer: throws away up to `count` elements; returns how many there were. RT. */
  skip(count: number): number {
    checkRange(count, 0, count);
    const granted = this.grantRead(count);
    if (granted !== 0) this.commitRead(granted);
    return granted;
  }

  /**
   * Producer: lets `fill` write up to `count` elements in place; returns how many were appended.
   *
   * `fill` gets all of the room, up to `count`, and is not called when there is none. If it throws, nothing is appended.
   * *Errors* RangeError if `fill` returns a number that is not in 0 to the room it got; Error if it appends to the ring by another call,
   * whose elements stand where it writes.
   * *Real-time* RT, if `fill` is.
   */
  writeCallbackWithOffset(count: number, fill: SpanCallback<T>): number {
    checkRange(count, 0, count);
    const granted = this.grantWrite(count);
    if (granted === 0) return 0;
    const before = this.#index[WRITE];
    const at = this.writeAt();
    const first = Math.min(granted, this.capacity - at);
    const used = checkUsed(fill(this.data, at, first, 0, granted - first), granted);
    this.#checkUnmoved(WRITE, before);
    this.commitWrite(used);
    return used;
  }

  /** Producer: {@link writeCallbackWithOffset} with two views. Not RT: allocates the views. */
  writeCallback(count: number, fill: ViewCallback<T>): number {
    return this.writeCallbackWithOffset(count, (data, offset1, count1, offset2, count2) =>
      fill(view(data, offset1, count1), view(data, offset2, count2)),
    );
  }

  /**
   * Consumer: lets `use` read up to `count` elements in place; returns how many were removed.
   *
   * `use` gets all elements there are, up to `count`, and is not called when there are none. If it throws, nothing is removed.
   * *Errors* RangeError if `use` returns a number that is not in 0 to the elements it got; Error if it removes some by another call.
   * *Real-time* RT, if `use` is.
   */
  readCallbackWithOffset(count: number, use: SpanCallback<T>): number {
    checkRange(count, 0, count);
    const granted = this.grantRead(count);
    if (granted === 0) return 0;
    const before = this.#index[READ];
    const at = this.readAt();
    const first = Math.min(granted, this.capacity - at);
    const used = checkUsed(use(this.data, at, first, 0, granted - first), granted);
    this.#checkUnmoved(READ, before);
    this.commitRead(used);
    return used;
  }

  /** Consumer: {@link readCallbackWithOffset} with two views. Not RT: allocates the views. */
  readCallback(count: number, use: ViewCallback<T>): number {
    return this.readCallbackWithOffset(count, (data, offset1, count1, offset2, count2) =>
      use(view(data, offset1, count1), view(data, offset2, count2)),
    );
  }

  /**
   * Empties the ring. Only while no other thread uses it.
   *
   * `start` is the value of both indices, modulo 2^30: tests start just below 2^30 to see them overflow.
   */
  reset(start = 0): void {
    for (const word of [READ, READ_SEEN, WRITE, WRITE_SEEN])
      Atomics.store(this.#index, word, start & INDEX_MASK);
  }

  /** Place in `data` of the next element to be written. @internal */
  writeAt(): number {
    return this.#index[WRITE] & this.mask;
  }

  /** Place in `data` of the next element to be read. @internal */
  readAt(): number {
    return this.#index[READ] & this.mask;
  }

  /** Room for the producer, at most `count`. Asks the other side only if the room seen last is too small. @internal */
  grantWrite(count: number): number {
    const index = this.#index;
    const used = (index[WRITE] - index[READ_SEEN]) & INDEX_MASK;
    if (count <= this.capacity - used) return count;
    const read = Atomics.load(index, READ);
    index[READ_SEEN] = read;
    const room = this.capacity - this.#checked((index[WRITE] - read) & INDEX_MASK);
    return Math.min(room, count);
  }

  /** Elements for the consumer, at most `count`. @internal */
  grantRead(count: number): number {
    const index = this.#index;
    const ready = (index[WRITE_SEEN] - index[READ]) & INDEX_MASK;
    if (count <= ready && ready <= this.capacity) return count;
    const write = Atomics.load(index, WRITE);
    index[WRITE_SEEN] = write;
    return Math.min(this.#checked((write - index[READ]) & INDEX_MASK), count);
  }

  /** Publishes `count` written elements. @internal */
  commitWrite(count: number): void {
    const index = this.#index;
    publish(index, WRITE, index[WRITE] + count);
  }

  /** Gives the room of `count` read elements back. @internal */
  commitRead(count: number): void {
    const index = this.#index;
    publish(index, READ, index[READ] + count);
  }

  /** Elements moved within a callback would be passed over by what the callback says. */
  #checkUnmoved(word: number, before: number): void {
    if (this.#index[word] !== before) throw new Error("a ring callback moved elements of its own ring");
  }

  /** A difference above the capacity is a third thread's snapshot torn by progress, or garbage: nothing there. */
  #checked(fill: number): number {
    return fill <= this.capacity ? fill : 0;
  }
}

function checkRange(length: number, offset: number, count: number): void {
  if (
    (offset | 0) !== offset ||
    (count | 0) !== count ||
    offset < 0 ||
    count < 0 ||
    offset + count > length
  ) {
    throw new RangeError(`${count} elements from ${offset} are not inside an array of ${length}`);
  }
}

// biome-ignore lint/suspicious/noConfusingVoidType: see SpanCallback
function checkUsed(used: number | undefined | void, granted: number): number {
  if (used === undefined) return granted;
  if ((used | 0) !== used || used < 0 || used > granted) {
    throw new RangeError(`a ring callback returned ${used}, but was given ${granted} elements`);
  }
  return used;
}

/** Copies into the ring `data` from place `at`, across its end if need be. */
function copyIn<T extends NumericArray>(src: T, offset: number, data: T, at: number, count: number): void {
  const first = Math.min(count, data.length - at);
  copy(src, offset, data, at, first);
  if (first < count) copy(src, offset + first, data, 0, count - first);
}

/** Copies out of the ring `data` from place `at`, across its end if need be. */
function copyOut<T extends NumericArray>(data: T, at: number, dst: T, offset: number, count: number): void {
  const first = Math.min(count, data.length - at);
  copy(data, at, dst, offset, first);
  if (first < count) copy(data, 0, dst, offset + first, count - first);
}

function copy<T extends NumericArray>(src: T, from: number, dst: T, to: number, count: number): void {
  if (count > LOOP_LIMIT) {
    dst.set(view(src, from, count), to);
    return;
  }
  let i = 0;
  // Unrolled: half the time of the plain loop, in V8.
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

function view<T extends NumericArray>(data: T, offset: number, count: number): T {
  return data.subarray(offset, offset + count) as T;
}
