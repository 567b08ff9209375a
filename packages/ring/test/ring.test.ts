import { expect, test } from "vitest";
import {
  AudioReader,
  AudioWriter,
  createParameterStorage,
  ParameterReader,
  ParameterWriter,
  RecordRing,
  Ring,
  type RingStorage,
} from "../src/index.js";

function makeRing(capacity: number, start = 0): Ring<Float32Array> {
  const ring = new Ring(Ring.createStorage(capacity, Float32Array), Float32Array);
  ring.reset(start);
  return ring;
}

function count(from: number, length: number): Float32Array {
  return Float32Array.from({ length }, (_, i) => from + i);
}

test("capacity is rounded up to a power of two, all of which is usable", () => {
  expect(Ring.byteLengthFor(1000, Float32Array)).toBe(256 + 4 * 1024);
  expect(Ring.byteLengthFor(1, Float64Array)).toBe(256 + 8);
  const ring = makeRing(1000);
  expect(ring.capacity).toBe(1024);
  expect(ring.push(count(0, 2000))).toBe(1024);
  expect(ring.full).toBe(true);
  expect(ring.availableWrite).toBe(0);
});

test.each([0, -1, 1.5, Number.NaN, 2 ** 29 + 1])("a capacity of %d is refused", (capacity) => {
  expect(() => Ring.byteLengthFor(capacity, Float32Array)).toThrow(RangeError);
});

test("storage that is no ring's is refused", () => {
  expect(() => new Ring(new SharedArrayBuffer(256), Float32Array)).toThrow(RangeError);
  expect(() => new Ring(new SharedArrayBuffer(256 + 12), Float32Array)).toThrow(RangeError);
  expect(() => new Ring(new SharedArrayBuffer(100), Float32Array)).toThrow(RangeError);
  const storage = Ring.createStorage(16, Float32Array);
  expect(() => new Ring(storage, Float32Array, 4)).toThrow(RangeError);
  expect(() => new Ring(storage, Float32Array, 8, storage.byteLength)).toThrow(RangeError);
  expect(() => new Ring(storage, Float32Array, -8)).toThrow(RangeError);
});

test("storage made for one kind of ring is refused by every other, and zeroed memory by none", () => {
  const types = [
    Int8Array,
    Uint8Array,
    Int16Array,
    Uint16Array,
    Int32Array,
    Uint32Array,
    Float32Array,
    Float64Array,
  ].map((type) => type as unknown as Float32ArrayConstructor);
  const elements = types.map((type) => ({
    name: type.name,
    storage: Ring.createStorage(64, type),
    attach: (storage: RingStorage) => [new Ring(storage, type)],
  }));
  const kinds = [
    ...elements,
    {
      name: "records",
      storage: RecordRing.createStorage(64),
      attach: (storage: RingStorage) => [new RecordRing(storage)],
    },
    {
      name: "writer of parameters",
      storage: createParameterStorage(32),
      attach: (storage: RingStorage) => [new ParameterWriter(storage)],
    },
    {
      name: "reader of parameters",
      storage: createParameterStorage(32, false),
      attach: (storage: RingStorage) => [new ParameterReader(storage)],
    },
  ];
  const areSame = (one: string, other: string) => one.split(" ").at(-1) === other.split(" ").at(-1);
  for (const { name, storage } of kinds) {
    for (const { name: other, attach } of kinds) {
      const attached = () => attach(storage);
      if (areSame(name, other)) expect(attached, `${other} on ${name}`).not.toThrow();
      else expect(attached, `${other} on ${name}`).toThrow(RangeError);
      expect(() => attach(new SharedArrayBuffer(storage.byteLength))).not.toThrow();
    }
  }
});

test("without SharedArrayBuffer the error names the headers, and a plain ArrayBuffer still works", () => {
  const original = globalThis.SharedArrayBuffer;
  // @ts-expect-error: a page that is not isolated has none
  delete globalThis.SharedArrayBuffer;
  try {
    expect(() => Ring.createStorage(16, Float32Array)).toThrow(/COOP and COEP/);
    const storage = Ring.createStorage(16, Float32Array, false);
    expect(storage).toBeInstanceOf(ArrayBuffer);
    const ring = new Ring(storage, Float32Array);
    expect(ring.push(count(1, 3))).toBe(3);
    expect(ring.availableRead).toBe(3);
  } finally {
    globalThis.SharedArrayBuffer = original;
  }
});

test("two objects on one storage see one ring", () => {
  const storage = Ring.createStorage(16, Float32Array);
  const producer = new Ring(storage, Float32Array);
  const consumer = new Ring(storage, Float32Array);
  expect(consumer.empty).toBe(true);
  producer.push(count(5, 3));
  expect([consumer.availableRead, consumer.availableWrite, consumer.empty, consumer.full]).toEqual([
    3,
    13,
    false,
    false,
  ]);
  const out = new Float32Array(16).fill(-1);
  expect(consumer.pop(out)).toBe(3);
  expect([...out.subarray(0, 4)]).toEqual([5, 6, 7, -1]);
  // Another object takes over each role in the middle.
  const laterProducer = new Ring(storage, Float32Array);
  expect(laterProducer.push(count(8, 16))).toBe(16);
  expect(new Ring(storage, Float32Array).pop(out)).toBe(16);
  expect(out[15]).toBe(23);
});

test.each([0, 2 ** 30 - 3, 2 ** 32 - 3])(
  "push and pop of parts, with the indices starting at %d",
  (start) => {
    const ring = makeRing(8, start);
    const out = new Float32Array(8);
    for (let lap = 0; lap < 5; lap++) {
      expect(ring.push(count(lap * 10, 9), 3, 5)).toBe(5);
      expect(ring.push(count(lap * 10 + 8, 9), 0, 9)).toBe(3);
      expect(ring.full).toBe(true);
      expect(ring.push(count(0, 1))).toBe(0);
      expect(ring.peek(out, 0, 2)).toBe(2);
      expect(ring.skip(1)).toBe(1);
      expect(ring.pop(out, 1, 7)).toBe(7);
      expect([...out]).toEqual([3, 4, 5, 6, 7, 8, 9, 10].map((value) => value + lap * 10));
      expect(ring.pop(out)).toBe(0);
      expect(ring.skip(4)).toBe(0);
    }
  },
);

test("ranges outside an array are errors and move nothing", () => {
  const ring = makeRing(8);
  const array = new Float32Array(4);
  for (const [offset, number] of [
    [0, 5],
    [-1, 2],
    [3, 2],
    [5, 0],
    [0, -1],
    [0.5, 1],
    [0, 1.5],
    [0, Number.NaN],
    [2 ** 32, 1],
  ]) {
    expect(() => ring.push(array, offset, number)).toThrow(RangeError);
    expect(() => ring.pop(array, offset, number)).toThrow(RangeError);
    expect(() => ring.peek(array, offset, number)).toThrow(RangeError);
  }
  expect(() => ring.push(array, 5)).toThrow(RangeError);
  expect(() => ring.skip(-1)).toThrow(RangeError);
  expect(() => ring.writeCallback(-1, () => 0)).toThrow(RangeError);
  expect(ring.empty).toBe(true);
});

test("write callbacks get both spans and may use less", () => {
  const ring = makeRing(8);
  ring.push(count(0, 6));
  ring.skip(5);
  const wrote = ring.writeCallbackWithOffset(100, (data, offset1, count1, offset2, count2) => {
    expect([offset1, count1, offset2, count2]).toEqual([6, 2, 0, 5]);
    for (let i = 0; i < count1; i++) data[offset1 + i] = 6 + i;
    data[offset2] = 8;
    return 3;
  });
  expect(wrote).toBe(3);
  expect(
    ring.writeCallback(2, (first, second) => {
      expect([first.length, second.length]).toEqual([2, 0]);
      first.set([9, 10]);
    }),
  ).toBe(2);
  const seen: number[] = [];
  expect(ring.readCallback(100, (first, second) => void seen.push(...first, ...second))).toBe(6);
  expect(seen).toEqual([5, 6, 7, 8, 9, 10]);
  expect(ring.readCallbackWithOffset(1, () => expect.unreachable())).toBe(0);
});

test("a callback that throws or claims too much moves nothing", () => {
  const ring = makeRing(8);
  for (const bad of [9, -1, 0.5, Number.NaN]) {
    expect(() => ring.writeCallback(100, () => bad)).toThrow(RangeError);
  }
  expect(() =>
    ring.writeCallback(1, () => {
      throw new Error("mine");
    }),
  ).toThrow("mine");
  expect(ring.empty).toBe(true);
  ring.push(count(0, 4));
  expect(() => ring.readCallback(100, () => 5)).toThrow(RangeError);
  expect(ring.readCallback(100, () => 0)).toBe(0);
  expect(ring.availableRead).toBe(4);
});

test("a callback that moves elements of its own ring by another call throws, and moves nothing itself", () => {
  const ring = makeRing(8);
  const out = new Float32Array(1);
  expect(() =>
    ring.writeCallback(2, (first) => {
      first.fill(9);
      ring.push(count(1, 1));
    }),
  ).toThrow("moved elements of its own ring");
  expect(ring.availableRead).toBe(1);
  ring.push(count(2, 3));
  expect(() => ring.readCallback(2, () => void ring.pop(out))).toThrow("moved elements of its own ring");
  expect([out[0], ring.availableRead]).toEqual([1, 3]);
  // The other side's calls are another matter.
  expect(ring.writeCallback(1, (first) => void first.fill(ring.pop(out) + 4))).toBe(1);
  expect(ring.readCallback(3, (first) => void ring.push(first.subarray(0, 1)))).toBe(3);
  expect([ring.pop(out), out[0], ring.empty]).toEqual([1, 3, true]);
});

test("blocks popped whole, in step and out of step with the blocks of the ring", () => {
  const ring = makeRing(512);
  const block = new Float32Array(128);
  let next = 0;
  const pushAndPop = (length: number): void => {
    expect(ring.push(count(next, length))).toBe(length);
    const out = length === 128 ? block : new Float32Array(length);
    expect(ring.pop(out)).toBe(length);
    expect([out[0], out[length - 1]]).toEqual([next, next + length - 1]);
    next += length;
  };
  for (const length of [128, 128, 128, 128, 128, 100, 128, 128, 128, 128, 28, 128, 512, 64, 128])
    pushAndPop(length);
  ring.prepareBlocks(64);
  for (let i = 0; i < 20; i++) pushAndPop(64);
  for (const elements of [0, 2.5, 48, 1024, Number.NaN])
    expect(() => ring.prepareBlocks(elements), `${elements}`).toThrow(RangeError);
});

test("copies of more than 512 elements, whole and in parts", () => {
  const ring = makeRing(4096, 2 ** 32 - 1000);
  const source = count(0, 5000);
  const out = new Float32Array(5000);
  for (let i = 0; i < 10; i++) {
    expect(ring.push(source, 700, 3000)).toBe(3000);
    expect(ring.pop(out, 10, 3000)).toBe(3000);
    expect([out[10], out[3009]]).toEqual([700, 3699]);
  }
});

test("impossible indices are clamped", () => {
  const storage = Ring.createStorage(8, Float32Array);
  const ring = new Ring(storage, Float32Array);
  const words = new Int32Array(storage);
  const out = new Float32Array(100).fill(-1);
  for (const write of [9, 1000, -1, -(2 ** 31), 2 ** 31 - 1]) {
    ring.reset();
    words[0] = write;
    expect(ring.availableRead).toBeGreaterThanOrEqual(0);
    expect(ring.availableRead).toBeLessThanOrEqual(8);
    expect(ring.pop(out)).toBeLessThanOrEqual(8);
    expect(ring.push(out)).toBeLessThanOrEqual(8);
  }
});

test("audio: short reads say how short, and leave the rest alone", () => {
  const ring = makeRing(16);
  const writer = new AudioWriter(ring, 3);
  const reader = new AudioReader(ring, 3);
  expect(writer.availableFrames).toBe(5);
  expect(writer.enqueuePlanar([count(0, 2), count(100, 2), count(200, 2)])).toBe(2);
  expect(reader.availableFrames).toBe(2);
  const out = new Float32Array(9).fill(-1);
  expect(reader.dequeue(out)).toBe(2);
  expect([...out]).toEqual([0, 100, 200, 1, 101, 201, -1, -1, -1]);
  expect(writer.enqueue(count(0, 30))).toBe(5);
  expect(writer.enqueue(count(0, 30))).toBe(0);
  const planes = [new Float32Array(8), new Float32Array(8), new Float32Array(8)];
  expect(reader.dequeuePlanar(planes, 1, 4)).toBe(4);
  expect([...planes[2]]).toEqual([0, 2, 5, 8, 11, 0, 0, 0]);
  expect(reader.availableFrames).toBe(1);
});

test("audio: wrong shapes are errors", () => {
  const ring = makeRing(16);
  expect(() => new AudioWriter(ring, 0)).toThrow(RangeError);
  expect(() => new AudioReader(ring, 17)).toThrow(RangeError);
  const writer = new AudioWriter(ring, 2);
  const reader = new AudioReader(ring, 2);
  expect(() => writer.enqueuePlanar([new Float32Array(2)])).toThrow(RangeError);
  expect(() => reader.dequeuePlanar([new Float32Array(2), new Float32Array(1)])).toThrow(RangeError);
  expect(() => writer.enqueue(new Float32Array(4), 1, 2)).toThrow(RangeError);
  expect(() => reader.dequeue(new Float32Array(4), 0, -1)).toThrow(RangeError);
  expect(ring.empty).toBe(true);
});

test("parameter changes keep their order, index and value", () => {
  const storage = createParameterStorage(3);
  const writer = new ParameterWriter(storage);
  const reader = new ParameterReader(storage);
  const change = { index: 0, value: 0 };
  expect(reader.dequeue(change)).toBe(false);
  for (let lap = 0; lap < 3; lap++) {
    expect(writer.availableWrite).toBe(4);
    for (let i = 0; i < 4; i++) expect(writer.enqueue(2 ** 32 - 1 - i, -0.5 * i)).toBe(true);
    expect(writer.enqueue(1, 1)).toBe(false);
    expect(reader.availableRead).toBe(4);
    for (let i = 0; i < 4; i++) {
      expect(reader.dequeue(change)).toBe(true);
      expect(change).toEqual({ index: 2 ** 32 - 1 - i, value: -0.5 * i });
    }
  }
});

test("a queue of parameter changes holds a whole number of them", () => {
  for (const changes of [0, 0.5, 1.5, 2 ** 28 + 1, Number.NaN])
    expect(() => createParameterStorage(changes), `${changes}`).toThrow(RangeError);
  const writer = new ParameterWriter(createParameterStorage(1));
  expect([writer.enqueue(1, 0.5), writer.enqueue(2, 0.5)]).toEqual([true, false]);
});
