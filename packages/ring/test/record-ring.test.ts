import { expect, test, vi } from "vitest";
import { CORRUPT, EMPTY, RecordRing, TOO_LONG } from "../src/index.js";

function makeRing(capacity: number, start = 0): RecordRing {
  const ring = new RecordRing(RecordRing.createStorage(capacity));
  ring.reset(start);
  return ring;
}

function bytes(length: number, from = 1): Uint8Array {
  return Uint8Array.from({ length }, (_, i) => from + i);
}

test.each([0, 2 ** 30 - 8, 2 ** 32 - 40])(
  "records keep length, tag and bytes, with the indices starting at %d",
  (start) => {
    const ring = makeRing(100, start);
    expect([ring.capacityBytes, ring.maxRecordBytes]).toEqual([128, 120]);
    const out = new Uint8Array(130);
    for (let length = 0; length <= 120; length++) {
      expect(ring.push(2 ** 32 - 1 - length, bytes(length))).toBe(true);
      expect(ring.nextLengthBytes()).toBe(length);
      out.fill(0);
      expect(ring.pop(out, 3)).toBe(length);
      expect(ring.tag).toBe(2 ** 32 - 1 - length);
      expect(out).toEqual(Uint8Array.from([0, 0, 0, ...bytes(length), ...new Uint8Array(127 - length)]));
      expect(ring.pop(out)).toBe(EMPTY);
    }
  },
);

test("a record goes in whole or not at all", () => {
  const ring = makeRing(64);
  expect(ring.availableWriteBytes).toBe(56);
  expect(ring.push(1, bytes(30))).toBe(true);
  expect(ring.availableWriteBytes).toBe(16);
  expect(ring.push(2, bytes(17))).toBe(false);
  expect(ring.push(2, bytes(16))).toBe(true);
  expect(ring.availableWriteBytes).toBe(-1);
  expect(ring.push(3, bytes(0))).toBe(false);
  const out = new Uint8Array(64);
  expect([ring.pop(out), ring.tag, ring.pop(out), ring.tag, ring.pop(out)]).toEqual([30, 1, 16, 2, EMPTY]);
  expect(ring.empty).toBe(true);
});

test("head and body are joined", () => {
  const ring = makeRing(64, 40);
  const out = new Uint8Array(64);
  for (let head = 0; head <= 20; head++) {
    expect(ring.push2(head, bytes(head), bytes(50, 100), 5, 30)).toBe(true);
    expect(ring.pop(out)).toBe(head + 30);
    expect([...out.subarray(0, head + 30)]).toEqual([...bytes(head), ...bytes(30, 105)]);
  }
});

test("no view is made for the same two arrays again, wherever the ring's end cuts them", () => {
  const ring = makeRing(1024);
  const [head, body, out] = [bytes(100), bytes(200), bytes(300)];
  let views = 0;
  const lap = () => {
    for (let n = 0; n < 100; n++) {
      ring.push2(n, head, body, 4);
      ring.pop(out);
    }
  };
  lap();
  vi.stubGlobal(
    "Int32Array",
    new Proxy(Int32Array, {
      construct(type, parameters) {
        views++;
        return Reflect.construct(type, parameters);
      },
    }),
  );
  lap();
  vi.unstubAllGlobals();
  expect(views).toBe(0);
});

test("a record that does not fit is thrown away and counted", () => {
  const ring = makeRing(64);
  ring.push(7, bytes(9));
  ring.push(8, bytes(8));
  const out = new Uint8Array(8);
  expect(ring.pop(out)).toBe(TOO_LONG);
  expect([ring.tag, ring.lengthBytes, ring.skippedRecords]).toEqual([7, 9, 1]);
  expect(out).toEqual(new Uint8Array(8));
  expect([ring.pop(out), ring.tag]).toEqual([8, 8]);
});

test("wrong ranges and records longer than the ring are errors", () => {
  const ring = makeRing(64);
  expect(() => ring.push(1, bytes(57))).toThrow(RangeError);
  expect(() => ring.push2(1, bytes(30), bytes(27))).toThrow(RangeError);
  expect(() => ring.push(1, bytes(4), 2, 3)).toThrow(RangeError);
  expect(() => ring.push(1, bytes(4), -1, 3)).toThrow(RangeError);
  expect(() => ring.push2(1, bytes(4), bytes(4), 2, 3)).toThrow(RangeError);
  expect(() => ring.pop(bytes(4), 5)).toThrow(RangeError);
  expect(ring.empty).toBe(true);
  expect(() => new RecordRing(new SharedArrayBuffer(256 + 8))).toThrow(RangeError);
  expect(() => new RecordRing(new SharedArrayBuffer(256 + 24))).toThrow(RangeError);
});

test.each([-1, 57, 41, 2 ** 31 - 1, -(2 ** 31), -8])(
  "a corrupt length of %d empties the ring, which then works again",
  (length) => {
    const storage = RecordRing.createStorage(64);
    const ring = new RecordRing(storage);
    ring.push(1, bytes(40));
    new Int32Array(storage, 256)[0] = length;
    const out = new Uint8Array(64);
    expect(ring.pop(out)).toBe(CORRUPT);
    expect(out).toEqual(new Uint8Array(64));
    expect([ring.corruptions, ring.empty, ring.pop(out)]).toEqual([1, true, EMPTY]);
    expect(ring.push(9, bytes(56))).toBe(true);
    expect([ring.pop(out), ring.tag, out[55]]).toEqual([56, 9, 56]);
  },
);

test.each([1, 3, 72, 1000, -8, -(2 ** 31), 2 ** 31 - 1])(
  "a corrupt write index of %d is survived",
  (write) => {
    const storage = RecordRing.createStorage(64);
    const ring = new RecordRing(storage);
    const out = new Uint8Array(64);
    Atomics.store(new Int32Array(storage), 0, write);
    for (let i = 0; i < 20 && ring.pop(out) !== EMPTY; i++);
    expect(ring.pop(out)).toBe(EMPTY);
    for (let i = 0; i < 50; i++) {
      expect(ring.push(i, bytes(i))).toBe(true);
      expect([ring.pop(out), ring.tag]).toEqual([i, i]);
    }
  },
);

test("random garbage anywhere in the storage never hangs, throws or writes outside", () => {
  const fence = 64;
  const length = RecordRing.byteLengthFor(256);
  const buffer = new SharedArrayBuffer(length + 2 * fence);
  const all = new Uint8Array(buffer).fill(0xa5);
  const words = new Int32Array(buffer, fence, length / 4).fill(0);
  const ring = new RecordRing(buffer, fence, length);
  const out = new Uint8Array(64).fill(7);
  let state = 12345;
  const random = (below: number): number => {
    state = (Math.imul(state, 1664525) + 1013904223) | 0;
    return (state >>> 8) % below;
  };
  let wrong = 0;
  for (let i = 0; i < 200_000; i++) {
    const place = random(3) === 0 ? [0, 1, 32, 33][random(4)] : 64 + random(64);
    if (random(8) === 0) words[place] = random(2) === 0 ? random(300) - 20 : random(2 ** 24) * 256;
    ring.push(i, out, random(8), random(50));
    ring.push2(i, out.subarray(0, random(10)), out, random(8), random(50));
    const popped = ring.pop(out, random(8));
    if (popped < CORRUPT || popped > 64) wrong++;
    if (ring.availableWriteBytes > ring.maxRecordBytes) wrong++;
    let steps = 0;
    while (ring.pop(out) !== EMPTY && steps < 100) steps++;
    // 256 bytes hold 32 records at most; a few more pops report what is corrupt.
    if (steps > 36) wrong++;
  }
  expect(wrong).toBe(0);
  expect(ring.corruptions).toBeGreaterThan(1000);
  expect(all.subarray(0, fence).every((byte) => byte === 0xa5)).toBe(true);
  expect(all.subarray(fence + length).every((byte) => byte === 0xa5)).toBe(true);
});

test("records come from and go to memory beyond 2 GiB", () => {
  const memory = new ArrayBuffer(2 ** 31 + 256);
  const [there, back] = [new Uint8Array(memory, 2 ** 31, 128), new Uint8Array(memory, 2 ** 31 + 128)];
  there.set(bytes(100));
  const ring = makeRing(256);
  expect(ring.push(1, there, 0, 100)).toBe(true);
  expect(ring.pop(back)).toBe(100);
  expect(back.subarray(0, 100)).toEqual(bytes(100));
});
