/**
 * Seeded sequence generators and verifiers, one per end of a ring, for any thread: Node worker, browser worker, AudioWorklet.
 *
 * A task is one end. `step()` makes one random move (some of them on purpose with room or data missing) and returns how
 * many elements or records it moved. What comes out is compared with what the seed says must come out; every difference is
 * an error. The generators of the two ends share nothing but the seed of the content: each has moves of its own.
 */
import {
  AudioReader,
  AudioWriter,
  ParameterReader,
  ParameterWriter,
  RecordRing,
  Ring,
  TOO_LONG,
} from "../dist/index.js";

export const TYPES = {
  Int8Array,
  Uint8Array,
  Int16Array,
  Uint16Array,
  Int32Array,
  Uint32Array,
  Float32Array,
  Float64Array,
};

/** xorshift32: a function that returns a whole number from 0 to `below - 1`. */
export function makeRandom(seed) {
  let state = seed | 0 || 0x9e3779b9;
  return (below) => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) % below;
  };
}

/**
 * Makes one end from `spec`: {kind, role, storage, byteOffset, byteLength, seed, count, type?, channels?, maxRecordBytes?}.
 * `count` is in elements, frames, changes or records; the end stops when it has moved so many.
 */
export function makeTask(spec) {
  return new TASKS[`${spec.kind} ${spec.role}`](spec);
}

class Task {
  moved = 0;
  bytes = 0;
  errors = 0;
  firstError = "";

  constructor(spec) {
    this.spec = spec;
    this.random = makeRandom((spec.seed ^ (spec.role === "producer" ? 0x2545f491 : 0x1f123bb5)) | 0);
  }

  get done() {
    return this.moved >= this.spec.count;
  }

  fail(message) {
    this.errors++;
    this.firstError ||= `${this.spec.kind} ${this.spec.role}, seed ${this.spec.seed}, at ${this.moved}: ${message}`;
    // With the content out of step, everything that follows is wrong as well: do not go on for ever.
    if (this.errors > 100) this.moved = this.spec.count;
  }

  report() {
    const { kind, role, seed } = this.spec;
    return {
      kind,
      role,
      seed,
      moved: this.moved,
      bytes: this.bytes,
      errors: this.errors,
      firstError: this.firstError,
    };
  }
}

/** A prime period, so that no lap of a ring looks like the lap before; exact in every type. */
function period(type) {
  return type.BYTES_PER_ELEMENT === 1 ? 113 : type.BYTES_PER_ELEMENT === 2 ? 32749 : 16777213;
}

class ElementTask extends Task {
  constructor(spec) {
    super(spec);
    const type = TYPES[spec.type];
    this.ring = new Ring(spec.storage, type, spec.byteOffset, spec.byteLength);
    this.period = period(type);
    this.type = type;
    this.scratch = new type(2 * this.ring.capacity + 8);
    this.block = Math.max(1, this.ring.capacity >> 2);
    this.ring.prepareBlocks(this.block);
    this.wholes = [1, 7, 16, 17, 128, this.block, this.ring.capacity].map((length) => new type(length));
    this.spans = (data, offset1, count1, offset2, count2) => {
      const wanted = this.random(4) === 0 ? this.random(count1 + count2 + 1) : count1 + count2;
      for (let i = 0; i < wanted; i++) this.visit(data, i < count1 ? offset1 + i : offset2 + i - count1, i);
      return wanted;
    };
    this.views = (first, second) => {
      for (let i = 0; i < first.length; i++) this.visit(first, i, i);
      for (let i = 0; i < second.length; i++) this.visit(second, i, first.length + i);
    };
  }

  /** A number of elements up to `most`, small ones and extremes often. */
  size(most) {
    const kind = this.random(8);
    if (kind === 0) return 0;
    if (kind === 1) return most;
    return this.random(Math.min(most, kind < 6 ? 24 : most) + 1);
  }

  left(count) {
    return Math.min(count, this.spec.count - this.moved);
  }
}

class ElementProducer extends ElementTask {
  visit(data, at, i) {
    data[at] = (this.moved + i) % this.period;
  }

  step() {
    const { ring, random } = this;
    let pushed = 0;
    switch (random(5)) {
      case 0: {
        const array = this.wholes[random(this.wholes.length)];
        if (array.length > this.spec.count - this.moved) return 0;
        for (let i = 0; i < array.length; i++) this.visit(array, i, i);
        pushed = ring.push(array);
        break;
      }
      case 1: {
        pushed = ring.writeCallbackWithOffset(this.left(this.size(ring.capacity + 5)), this.spans);
        break;
      }
      case 2: {
        pushed = ring.writeCallback(this.left(this.size(ring.capacity)), this.views);
        break;
      }
      default: {
        const count = this.left(this.size(ring.capacity + 5));
        const offset = random(4);
        const room = ring.availableWrite;
        for (let i = 0; i < count; i++) this.visit(this.scratch, offset + i, i);
        pushed = ring.push(this.scratch, offset, count);
        if (pushed < Math.min(room, count)) this.fail(`${room} free, ${count} pushed, ${pushed} taken`);
      }
    }
    this.moved += pushed;
    return pushed;
  }
}

class ElementConsumer extends ElementTask {
  visit(data, at, i) {
    const expected = (this.moved + i) % this.period;
    if (data[at] !== expected) this.fail(`${data[at]} instead of ${expected}`);
  }

  step() {
    const { ring, random } = this;
    let popped = 0;
    switch (random(6)) {
      case 0: {
        const array = this.wholes[random(this.wholes.length)];
        popped = ring.pop(array);
        for (let i = 0; i < popped; i++) this.visit(array, i, i);
        break;
      }
      case 1: {
        popped = ring.readCallbackWithOffset(this.size(ring.capacity + 5), this.spans);
        break;
      }
      case 2: {
        popped = ring.readCallback(this.size(ring.capacity), this.views);
        break;
      }
      case 3: {
        const peeked = ring.peek(this.scratch, 0, this.size(ring.capacity));
        for (let i = 0; i < peeked; i++) this.visit(this.scratch, i, i);
        popped = ring.skip(peeked);
        if (popped !== peeked) this.fail(`${peeked} peeked, ${popped} skipped`);
        break;
      }
      default: {
        const count = this.size(ring.capacity + 5);
        const offset = random(4);
        const ready = ring.availableRead;
        this.scratch[offset + count] = 99;
        popped = ring.pop(this.scratch, offset, count);
        for (let i = 0; i < popped; i++) this.visit(this.scratch, offset + i, i);
        if (popped < Math.min(ready, count)) this.fail(`${ready} ready, ${count} asked for, ${popped} given`);
        if (this.scratch[offset + count] !== 99) this.fail("written behind the range");
      }
    }
    this.moved += popped;
    return popped;
  }
}

/** Length and content of record `n` are functions of the seed and `n`. */
class RecordTask extends Task {
  constructor(spec) {
    super(spec);
    this.ring = new RecordRing(spec.storage, spec.byteOffset, spec.byteLength);
    this.content = makeRandom(spec.seed);
    this.most = Math.min(spec.maxRecordBytes ?? this.ring.maxRecordBytes, this.ring.maxRecordBytes);
    this.scratch = new Uint8Array(this.most + 16);
    this.next();
  }

  next() {
    const kind = this.content(10);
    this.length = kind === 0 ? 0 : kind === 1 ? this.most : this.content(this.most + 1);
    this.tag = (this.content(0x10000) * 0x10000 + this.content(0x10000)) >>> 0;
  }

  byte(i) {
    return (this.tag + this.moved * 31 + i * 7) & 255;
  }
}

class RecordProducer extends RecordTask {
  step() {
    const { ring, random, scratch, length } = this;
    const offset = random(3) === 0 ? random(8) : 0;
    for (let i = 0; i < length; i++) scratch[offset + i] = this.byte(i);
    const room = ring.availableWriteBytes;
    let pushed = false;
    switch (random(3)) {
      case 0:
        pushed = ring.push(this.tag, scratch, offset, length);
        break;
      case 1:
        pushed = ring.push(this.tag, scratch.slice(offset, offset + length));
        break;
      default: {
        const head = random(Math.min(length, 24) + 1);
        pushed = ring.push2(
          this.tag,
          scratch.slice(offset, offset + head),
          scratch,
          offset + head,
          length - head,
        );
      }
    }
    if (!pushed) {
      if (room >= length) this.fail(`${room} bytes free, ${length} refused`);
      return 0;
    }
    this.moved++;
    this.bytes += length;
    this.next();
    return 1;
  }
}

class RecordConsumer extends RecordTask {
  step() {
    const { ring, random, scratch, length } = this;
    const tight = random(16) === 0 && length > 0;
    const offset = random(8);
    const dst = tight ? scratch.subarray(0, random(length)) : scratch;
    const at = tight ? 0 : offset;
    if (!tight) scratch[at + length] = 99;
    const popped = ring.pop(dst, at);
    if (popped === -1) return 0;
    if (popped !== (tight ? TOO_LONG : length)) this.fail(`pop returned ${popped} for ${length} bytes`);
    if (ring.tag !== this.tag) this.fail(`tag ${ring.tag} instead of ${this.tag}`);
    if (ring.lengthBytes !== length) this.fail(`length ${ring.lengthBytes} instead of ${length}`);
    if (!tight) {
      for (let i = 0; i < length; i++) {
        if (scratch[at + i] !== this.byte(i))
          this.fail(`byte ${i} of ${length}: ${scratch[at + i]}, not ${this.byte(i)}`);
      }
      if (scratch[at + length] !== 99) this.fail("written behind the record");
    }
    this.moved++;
    this.bytes += length;
    this.next();
    return 1;
  }
}

class AudioTask extends Task {
  constructor(spec, Wrapper) {
    super(spec);
    const ring = new Ring(spec.storage, Float32Array, spec.byteOffset, spec.byteLength);
    this.audio = new Wrapper(ring, spec.channels);
    this.most = Math.floor(ring.capacity / spec.channels) + 3;
    this.interleaved = new Float32Array((this.most + 4) * spec.channels);
    this.planes = Array.from({ length: spec.channels }, () => new Float32Array(this.most + 4));
  }

  sample(frame, channel) {
    return ((this.moved + frame) % 1048573) * 16 + channel;
  }
}

class AudioProducer extends AudioTask {
  constructor(spec) {
    super(spec, AudioWriter);
  }

  step() {
    const { audio, random, spec } = this;
    const frames = Math.min(random(this.most), spec.count - this.moved);
    const offset = random(4);
    const planar = random(2) === 0;
    for (let channel = 0; channel < spec.channels; channel++) {
      for (let i = 0; i < frames; i++) {
        if (planar) this.planes[channel][offset + i] = this.sample(i, channel);
        else this.interleaved[(offset + i) * spec.channels + channel] = this.sample(i, channel);
      }
    }
    const moved = planar
      ? audio.enqueuePlanar(this.planes, offset, frames)
      : audio.enqueue(this.interleaved, offset, frames);
    this.moved += moved;
    return moved;
  }
}

class AudioConsumer extends AudioTask {
  constructor(spec) {
    super(spec, AudioReader);
  }

  step() {
    const { audio, random, spec } = this;
    const frames = random(this.most);
    const offset = random(4);
    const planar = random(2) === 0;
    const moved = planar
      ? audio.dequeuePlanar(this.planes, offset, frames)
      : audio.dequeue(this.interleaved, offset, frames);
    for (let channel = 0; channel < spec.channels; channel++) {
      for (let i = 0; i < moved; i++) {
        const got = planar
          ? this.planes[channel][offset + i]
          : this.interleaved[(offset + i) * spec.channels + channel];
        if (got !== this.sample(i, channel)) this.fail(`frame ${i}, channel ${channel}: ${got}`);
      }
    }
    this.moved += moved;
    return moved;
  }
}

class ParameterProducer extends Task {
  constructor(spec) {
    super(spec);
    this.writer = new ParameterWriter(spec.storage);
  }

  step() {
    const index = (this.moved * 2654435761) >>> 0;
    if (!this.writer.enqueue(index, this.moved % 16777213)) return 0;
    this.moved++;
    return 1;
  }
}

class ParameterConsumer extends Task {
  change = { index: 0, value: 0 };

  constructor(spec) {
    super(spec);
    this.reader = new ParameterReader(spec.storage);
  }

  step() {
    const { change } = this;
    if (!this.reader.dequeue(change)) return 0;
    if (change.index !== (this.moved * 2654435761) >>> 0) this.fail(`index ${change.index}`);
    if (change.value !== this.moved % 16777213) this.fail(`value ${change.value}`);
    this.moved++;
    return 1;
  }
}

const TASKS = {
  "elements producer": ElementProducer,
  "elements consumer": ElementConsumer,
  "records producer": RecordProducer,
  "records consumer": RecordConsumer,
  "audio producer": AudioProducer,
  "audio consumer": AudioConsumer,
  "parameters producer": ParameterProducer,
  "parameters consumer": ParameterConsumer,
};

/** A thread that has waited so long waits for something that was lost. No test passes or fails by it otherwise. */
const STALL_MS = 30_000;

/** Runs a task to its end on a thread that may block: spins while it moves, and sleeps 0.1 ms after 500 vain steps. */
export function runToEnd(task) {
  const never = new Int32Array(new SharedArrayBuffer(4));
  let vain = 0;
  let movedAt = performance.now();
  while (!task.done) {
    if (task.step() > 0) {
      if (vain >= 400) movedAt = performance.now();
      vain = 0;
    } else if (++vain > 500) {
      Atomics.wait(never, 0, 0, 0.1);
      vain = 400;
      if (performance.now() - movedAt > STALL_MS) {
        task.fail("nothing moves any more");
        break;
      }
    }
  }
  return task.report();
}
