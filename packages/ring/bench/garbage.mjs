/**
 * Heap bytes that a million operations leave behind, with the collector kept from running in between: run by bench.mjs in a
 * process of its own with --expose-gc and a young generation that holds them all. Prints JSON.
 */
import { RingBuffer } from "ringbuf.js";
import { RecordRing, Ring } from "../dist/index.js";

const OPERATIONS = 100_000;
const src = new Float32Array(128);
const dst = new Float32Array(128);
const head = new Uint8Array(100);
const datagram = new Uint8Array(1200);
const room = new Uint8Array(1500);
const ring = new Ring(Ring.createStorage(1024, Float32Array), Float32Array);
const buffer = new RingBuffer(RingBuffer.getStorageForCapacity(1024, Float32Array), Float32Array);
const records = new RecordRing(RecordRing.createStorage(16_384));
const fill = (_data, _offset1, count1, _offset2, count2) => count1 + count2;

const cases = {
  "push + pop 128": {
    ring(n) {
      for (let i = 0; i < n; i++) {
        ring.push(src);
        ring.pop(dst);
      }
    },
    "ringbuf.js"(n) {
      for (let i = 0; i < n; i++) {
        buffer.push(src, 128);
        buffer.pop(dst, 128);
      }
    },
  },
  "push + pop 100 of 128 (out of step)": {
    ring(n) {
      for (let i = 0; i < n; i++) {
        ring.push(src, 0, 100);
        ring.pop(dst, 0, 100);
      }
    },
    "ringbuf.js"(n) {
      for (let i = 0; i < n; i++) {
        buffer.push(src, 100);
        buffer.pop(dst, 100);
      }
    },
  },
  "callbacks of 128": {
    ring(n) {
      for (let i = 0; i < n; i++) {
        ring.writeCallbackWithOffset(128, fill);
        ring.readCallbackWithOffset(128, fill);
      }
    },
  },
  "record of 1200 bytes, push + pop": {
    ring(n) {
      for (let i = 0; i < n; i++) {
        records.push(i, datagram);
        records.pop(room);
      }
    },
  },
  "record of two parts, 100 and 1000 bytes, push2 + pop": {
    ring(n) {
      for (let i = 0; i < n; i++) {
        records.push2(i, head, datagram, 200);
        records.pop(room);
      }
    },
  },
};

const result = {};
for (const [name, queues] of Object.entries(cases)) {
  result[name] = {};
  for (const [queue, run] of Object.entries(queues)) {
    // What compiling takes is no garbage of the operations, and is collected late.
    for (let i = 0; i < 12; i++) {
      run(OPERATIONS / 4);
      globalThis.gc();
    }
    const left = [];
    for (let i = 0; i < 5; i++) {
      globalThis.gc();
      const before = process.memoryUsage().heapUsed;
      run(OPERATIONS);
      left.push(process.memoryUsage().heapUsed - before);
    }
    // What the operations leave they leave each time; what comes on top now and then is the compiler's.
    result[name][queue] = (Math.min(...left) / OPERATIONS) * 1e6;
  }
}
process.stdout.write(JSON.stringify(result));
