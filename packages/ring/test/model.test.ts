/** Any sequence of operations does to a ring what it does to a plain array. */
import fc from "fast-check";
import { expect, test } from "vitest";
import {
  AudioReader,
  AudioWriter,
  EMPTY,
  type NumericArray,
  RecordRing,
  Ring,
  TOO_LONG,
} from "../src/index.js";

const RUNS = 2000;
const start = fc.oneof(
  fc.constant(0),
  fc.integer({ min: 2 ** 32 - 200, max: 2 ** 32 - 1 }),
  fc.integer({ min: 2 ** 30 - 200, max: 2 ** 30 }),
);
const operations = fc.array(
  fc.record({
    operation: fc.integer({ min: 0, max: 9 }),
    count: fc.oneof(fc.integer({ min: 0, max: 40 }), fc.integer({ min: 0, max: 1300 })),
    offset: fc.integer({ min: 0, max: 5 }),
    used: fc.integer({ min: 0, max: 40 }),
  }),
  { maxLength: 60 },
);

test.each([
  Int8Array,
  Uint8Array,
  Int16Array,
  Uint16Array,
  Int32Array,
  Uint32Array,
  Float32Array,
  Float64Array,
])("%o ring", (type) => {
  // Only the element type differs: to the compiler all are arrays of numbers.
  const Type = type as unknown as Float32ArrayConstructor;
  fc.assert(
    fc.property(
      fc.integer({ min: 0, max: 10 }),
      start,
      fc.boolean(),
      operations,
      (log2, first, shared, steps) => {
        const capacity = 2 ** log2;
        const storage = Ring.createStorage(capacity, Type, shared);
        const ring = new Ring(storage, Type);
        ring.reset(first);
        ring.prepareBlocks(Math.max(1, capacity / 4));
        const model: number[] = [];
        let next = 0;
        const fresh = (length: number): Float32Array => {
          const array = new Type(length);
          for (let i = 0; i < length; i++) array[i] = next++ % 101;
          return array;
        };
        for (const { operation, count, offset, used } of steps) {
          const room = capacity - model.length;
          if (operation <= 2) {
            const array = fresh(operation === 0 ? count : count + offset + 2);
            const from = operation === 0 ? 0 : offset;
            const pushed = operation === 0 ? ring.push(array) : ring.push(array, from, count);
            expect(pushed).toBe(Math.min(room, count));
            model.push(...array.subarray(from, from + pushed));
          } else if (operation === 3) {
            const array = fresh(Math.min(count, room));
            const wanted = Math.min(array.length, used);
            const pushed = ring.writeCallbackWithOffset(count, (data, offset1, count1, offset2, count2) => {
              expect(count1 + count2).toBe(array.length);
              for (let i = 0; i < wanted; i++)
                data[i < count1 ? offset1 + i : offset2 + i - count1] = array[i];
              return wanted;
            });
            expect(pushed).toBe(wanted);
            model.push(...array.subarray(0, wanted));
          } else if (operation === 4) {
            const array = fresh(Math.min(count, room));
            const pushed = ring.writeCallback(count, (one, two) => {
              one.set(array.subarray(0, one.length));
              two.set(array.subarray(one.length));
            });
            expect(pushed).toBe(array.length);
            model.push(...array);
          } else if (operation <= 7) {
            const array = new Type(operation === 5 ? count : count + offset + 2).fill(111);
            const to = operation === 5 ? 0 : offset;
            const expected = model.slice(0, count);
            const popped =
              operation === 5
                ? ring.pop(array)
                : operation === 6
                  ? ring.pop(array, to, count)
                  : ring.peek(array, to, count);
            expect(popped).toBe(expected.length);
            const rest = array.length - to - popped;
            expect([...array]).toEqual([...Array(to).fill(111), ...expected, ...Array(rest).fill(111)]);
            if (operation !== 7) model.splice(0, popped);
          } else if (operation === 8) {
            expect(ring.skip(count)).toBe(model.splice(0, count).length);
          } else {
            const seen: number[] = [];
            const popped = ring.readCallback(count, (one: NumericArray, two: NumericArray) => {
              seen.push(...one, ...two);
              return Math.min(used, seen.length);
            });
            expect(seen).toEqual(model.slice(0, count));
            expect(popped).toBe(Math.min(used, seen.length));
            model.splice(0, popped);
          }
          expect(ring.availableRead).toBe(model.length);
          expect(ring.availableWrite).toBe(capacity - model.length);
          expect([ring.empty, ring.full]).toEqual([model.length === 0, model.length === capacity]);
        }
      },
    ),
    { numRuns: RUNS / 8, seed: 20260101 },
  );
});

test("record ring", () => {
  const recordSteps = fc.array(
    fc.record({
      operation: fc.integer({ min: 0, max: 4 }),
      tag: fc.integer({ min: 0, max: 2 ** 32 - 1 }),
      length: fc.integer({ min: 0, max: 130 }),
      offset: fc.integer({ min: 0, max: 9 }),
      align: fc.integer({ min: 0, max: 3 }),
    }),
    { maxLength: 60 },
  );
  fc.assert(
    fc.property(fc.integer({ min: 4, max: 10 }), start, recordSteps, (log2, first, steps) => {
      const ring = new RecordRing(RecordRing.createStorage(2 ** log2));
      ring.reset(first);
      const capacity = ring.capacityBytes;
      const model: { tag: number; bytes: number[] }[] = [];
      const taken = (length: number): number => 8 + Math.ceil(length / 8) * 8;
      let next = 0;
      let skipped = 0;
      for (const { operation, tag, length, offset, align } of steps) {
        const free = capacity - model.reduce((sum, record) => sum + taken(record.bytes.length), 0);
        expect(ring.availableWriteBytes).toBe(free - 8 < 0 ? -1 : free - 8);
        if (operation <= 2) {
          const size = Math.min(length, ring.maxRecordBytes);
          const array = new Uint8Array(new ArrayBuffer(size + offset + 4), align, size + offset);
          for (let i = 0; i < array.length; i++) array[i] = next++;
          const head = Math.min(size, align * 7);
          const pushed =
            operation === 0
              ? ring.push(tag, array.slice(offset))
              : operation === 1
                ? ring.push(tag, array, offset)
                : ring.push2(tag, array.slice(offset, offset + head), array, offset + head);
          expect(pushed).toBe(taken(size) <= free);
          if (pushed) model.push({ tag, bytes: [...array.subarray(offset)] });
        } else {
          const dst = new Uint8Array(new ArrayBuffer(length + offset + 4), align, length + offset).fill(111);
          const record = model.shift();
          expect(ring.nextLengthBytes()).toBe(record ? record.bytes.length : EMPTY);
          const popped = ring.pop(dst, offset);
          const before = Array(offset).fill(111);
          if (record === undefined) expect(popped).toBe(EMPTY);
          else expect([ring.tag, ring.lengthBytes]).toEqual([record.tag, record.bytes.length]);
          if (record && record.bytes.length <= length) {
            expect(popped).toBe(record.bytes.length);
            const after = Array(length - popped).fill(111);
            expect([...dst]).toEqual([...before, ...record.bytes, ...after]);
          } else if (record) {
            expect(popped).toBe(TOO_LONG);
            skipped++;
          }
          if (popped < 0) expect([...dst]).toEqual([...before, ...Array(length).fill(111)]);
        }
        expect(ring.empty).toBe(model.length === 0);
      }
      expect([ring.skippedRecords, ring.corruptions]).toEqual([skipped, 0]);
    }),
    { numRuns: RUNS, seed: 20260102 },
  );
});

test("audio frames", () => {
  const property = fc.property(
    fc.integer({ min: 1, max: 6 }),
    start,
    operations,
    (channels, first, steps) => {
      const ring = new Ring(Ring.createStorage(64, Float32Array), Float32Array);
      ring.reset(first);
      const writer = new AudioWriter(ring, channels);
      const reader = new AudioReader(ring, channels);
      const most = Math.floor(64 / channels);
      const model: number[][] = [];
      let next = 0;
      for (const { operation, count, offset } of steps) {
        const frames = count % 70;
        const planes = Array.from({ length: channels }, () => new Float32Array(offset + frames + 1).fill(-1));
        const interleaved = new Float32Array((offset + frames + 1) * channels).fill(-1);
        if (operation < 5) {
          const expected = Math.min(frames, most - model.length);
          expect(writer.availableFrames).toBe(most - model.length);
          for (let i = 0; i < frames; i++) {
            for (let channel = 0; channel < channels; channel++) {
              planes[channel][offset + i] = next + i + channel / 8;
              interleaved[(offset + i) * channels + channel] = next + i + channel / 8;
            }
          }
          const done =
            operation < 3
              ? writer.enqueuePlanar(planes, offset, frames)
              : writer.enqueue(interleaved, offset, frames);
          expect(done).toBe(expected);
          for (let i = 0; i < done; i++) model.push(planes.map((plane) => plane[offset + i]));
          next += done;
        } else {
          const expected = model.splice(0, frames);
          const done =
            operation < 8
              ? reader.dequeuePlanar(planes, offset, frames)
              : reader.dequeue(interleaved, offset, frames);
          expect(done).toBe(expected.length);
          const got = Array.from({ length: offset + frames + 1 }, (_, i) =>
            operation < 8
              ? planes.map((plane) => plane[i])
              : [...interleaved.subarray(i * channels, (i + 1) * channels)],
          );
          const untouched = Array(channels).fill(-1);
          expect(got.slice(0, offset)).toEqual(Array(offset).fill(untouched));
          expect(got.slice(offset, offset + done)).toEqual(expected);
          expect(got.slice(offset + done)).toEqual(Array(frames + 1 - done).fill(untouched));
        }
        expect(reader.availableFrames).toBe(model.length);
      }
    },
  );
  fc.assert(property, { numRuns: RUNS, seed: 20260103 });
});
