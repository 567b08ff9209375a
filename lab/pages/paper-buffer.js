/**
 * The memory between the main thread and the audio thread, as section 3 of the paper describes it.
 *
 * What the paper calls an audio frame, 128 frames of the sound card, is a block here. A packet is a block with the number that the
 * paper calls its frame index.
 */

export const blockFrames = 128;
const blockSamples = blockFrames * 2;
/** The number, then interleaved 16-bit samples. */
export const packetBytes = 4 + blockSamples * 2;

/** How far a peer's first block is put ahead of the reading position: 21.34 ms. */
const delayBlocks = 8;
/** The circular buffer, twice the delay: a block may be as early as it may be late. */
const ringBlocks = 2 * delayBlocks;
/**
 * The offset of a peer is never changed, however late or early it has become. Only a peer of which nothing at all was in time for a
 * second is taken for one that has just joined: the paper is silent on this, and a measurement that stays silent tells nothing.
 */
const rejoinBlocks = 375;

const read = 0;
const start = 1;
const played = 2;
const concealed = 3;
const underruns = 4;
const received = 5;
const late = 6;
const skipped = 7;
const firstNumber = 8;
const lastNumber = 9;
const fields = 10;

/** Mixed by the thread that receives, played and zeroed by the audio thread. The pages that use it have one peer: one offset, one set of counters. */
export class DejitterBuffer {
  static createMemory() {
    return new SharedArrayBuffer(4 * (fields + ringBlocks + ringBlocks * blockSamples));
  }

  #state;
  /** Blocks mixed into each place: silence that was sent is not silence for want of a packet. */
  #mixed;
  #samples;
  #offset = null;
  #missed = 0;
  #isDry = false;

  constructor(memory) {
    this.#state = new Int32Array(memory, 0, fields);
    this.#mixed = new Int32Array(memory, 4 * fields, ringBlocks);
    this.#samples = new Int32Array(memory, 4 * (fields + ringBlocks));
  }

  enqueue(packet) {
    const state = this.#state;
    const [number] = new Int32Array(packet, 0, 1);
    const now = Atomics.load(state, read);
    if (Atomics.load(state, received) === 0) {
      Atomics.store(state, firstNumber, number);
      Atomics.store(state, start, now + delayBlocks);
    }
    Atomics.add(state, received, 1);
    Atomics.store(state, lastNumber, Math.max(number, Atomics.load(state, lastNumber)));
    if (this.#missed === rejoinBlocks) this.#offset = null;
    this.#offset ??= now + delayBlocks - number;
    const position = number + this.#offset;
    if (position < now || position >= now + ringBlocks) {
      Atomics.add(state, position < now ? late : skipped, 1);
      this.#missed++;
      return;
    }
    this.#missed = 0;
    const samples = new Int16Array(packet, 4);
    const place = position % ringBlocks;
    for (let n = 0; n < blockSamples; n++) Atomics.add(this.#samples, place * blockSamples + n, samples[n]);
    Atomics.add(this.#mixed, place, 1);
  }

  /** RT: no alloc, no lock, O(frames). */
  dequeue(left, right) {
    const state = this.#state;
    const position = Atomics.load(state, read);
    const place = position % ringBlocks;
    let at = place * blockSamples;
    for (let n = 0; n < blockFrames; n++) {
      left[n] = Atomics.exchange(this.#samples, at++, 0) / 32_768;
      right[n] = Atomics.exchange(this.#samples, at++, 0) / 32_768;
    }
    const isDry = Atomics.exchange(this.#mixed, place, 0) === 0;
    if (!isDry) Atomics.add(state, played, 1);
    else if (Atomics.load(state, received) > 0 && position >= Atomics.load(state, start)) {
      Atomics.add(state, concealed, 1);
      if (!this.#isDry) Atomics.add(state, underruns, 1);
    }
    this.#isDry = isDry;
    Atomics.add(state, read, 1);
  }

  get counters() {
    const state = this.#state.map((_, field) => Atomics.load(this.#state, field));
    const hasBegun = state[received] > 0;
    return {
      playedFrames: state[played] * blockFrames,
      concealedFrames: state[concealed] * blockFrames,
      skippedFrames: state[skipped] * blockFrames,
      receivedPackets: state[received],
      lostPackets: hasBegun ? state[lastNumber] - state[firstNumber] + 1 - state[received] : null,
      latePackets: state[late],
      underruns: state[underruns],
      // What was taken in and is not played yet.
      bufferFrames: hasBegun
        ? (state[received] - state[late] - state[skipped] - state[played]) * blockFrames
        : null,
    };
  }
}

/** Packets on their way from the audio thread to the main thread. Room for 1.4 s; one that finds none is lost, which its number tells. */
const sendBlocks = 512;
const written = 0;
const taken = 1;

export class SendRing {
  static createMemory() {
    return new SharedArrayBuffer(8 + sendBlocks * packetBytes);
  }

  #state;
  #packets;

  constructor(memory) {
    this.#state = new Int32Array(memory, 0, 2);
    this.#packets = new Uint8Array(memory, 8);
  }

  /** RT: no alloc, no lock, O(frames). `packet`: bytes. */
  push(packet) {
    const count = Atomics.load(this.#state, written);
    if (count - Atomics.load(this.#state, taken) === sendBlocks) return;
    this.#packets.set(packet, (count % sendBlocks) * packetBytes);
    Atomics.store(this.#state, written, count + 1);
    Atomics.notify(this.#state, written);
  }

  /** Calls `take` with every packet from now on, without end. */
  async drain(take) {
    for (let count = 0; ; ) {
      await Atomics.waitAsync(this.#state, written, count).value;
      for (; count < Atomics.load(this.#state, written); count++) {
        const at = (count % sendBlocks) * packetBytes;
        // A copy: channels send no shared memory.
        const { buffer } = this.#packets.slice(at, at + packetBytes);
        Atomics.store(this.#state, taken, count + 1);
        take(buffer);
      }
    }
  }
}
