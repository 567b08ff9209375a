/**
 * The measurements, for Node and browsers alike. Each returns the nanoseconds of one operation in one round.
 *
 * The same work for every queue: 128 floats at a time, from one array into the queue, out of it into another. The capacities
 * are equal, and every queue is driven by source of its own, so that no queue pays for the types another one has seen.
 */
export const QUANTUM = 128;
const CAPACITY = 65_536;
const PUSHES = CAPACITY / QUANTUM;
/** Times that a ring is filled in one round: a browser's clock counts in steps of up to 39 ns per push of one fill. */
const FILLS = 16;

/**
 * The operations on one thread: {name: {queue: round}}, where `round()` returns ns per operation.
 * `now()` returns milliseconds.
 */
export function localCases({ Ring, RecordRing, RingBuffer }, now) {
  const src = new Float32Array(QUANTUM).map((_, i) => i);
  const dst = new Float32Array(QUANTUM);
  const sparse = new Float32Array(CAPACITY);

  const pushRing = new Ring(Ring.createStorage(CAPACITY, Float32Array), Float32Array);
  const pushBuffer = new RingBuffer(RingBuffer.getStorageForCapacity(CAPACITY, Float32Array), Float32Array);
  const floor = new Float32Array(new SharedArrayBuffer(4 * CAPACITY));
  const floorIndex = new Int32Array(new SharedArrayBuffer(4));
  const ring = new Ring(Ring.createStorage(1024, Float32Array), Float32Array);
  const buffer = new RingBuffer(RingBuffer.getStorageForCapacity(1024, Float32Array), Float32Array);
  const shifted = new Ring(Ring.createStorage(1024, Float32Array), Float32Array);
  const shiftedBuffer = new RingBuffer(RingBuffer.getStorageForCapacity(1024, Float32Array), Float32Array);
  const records = new RecordRing(RecordRing.createStorage(16_384));
  const datagram = new Uint8Array(1200).fill(7);
  const room = new Uint8Array(1500);

  return {
    "push 128": {
      ring() {
        let time = 0;
        let pushed = 0;
        for (let fill = 0; fill < FILLS; fill++) {
          const start = now();
          for (let i = 0; i < PUSHES; i++) pushed += pushRing.push(src);
          time += now() - start;
          pushRing.pop(sparse);
        }
        if (pushed !== FILLS * CAPACITY) throw new Error(`${pushed} pushed`);
        return (time * 1e6) / (FILLS * PUSHES);
      },
      "ringbuf.js"() {
        let time = 0;
        let pushed = 0;
        for (let fill = 0; fill < FILLS; fill++) {
          const start = now();
          for (let i = 0; i < PUSHES; i++) pushed += pushBuffer.push(src, QUANTUM);
          time += now() - start;
          pushBuffer.pop(sparse, CAPACITY);
        }
        if (pushed !== FILLS * CAPACITY) throw new Error(`${pushed} pushed`);
        return (time * 1e6) / (FILLS * PUSHES);
      },
      // What no queue of this kind can do without: one copy, and one index published in the cheapest way there is.
      floor() {
        const start = now();
        for (let fill = 0; fill < FILLS; fill++) {
          for (let at = 0; at < CAPACITY; at += QUANTUM) {
            floor.set(src, at);
            Atomics.exchange(floorIndex, 0, at + QUANTUM);
          }
        }
        return ((now() - start) * 1e6) / (FILLS * PUSHES);
      },
    },
    "push + pop 128": {
      ring() {
        const start = now();
        for (let i = 0; i < 2000; i++) {
          ring.push(src);
          ring.pop(dst);
        }
        return ((now() - start) * 1e6) / 2000;
      },
      "ringbuf.js"() {
        const start = now();
        for (let i = 0; i < 2000; i++) {
          buffer.push(src, QUANTUM);
          buffer.pop(dst, QUANTUM);
        }
        return ((now() - start) * 1e6) / 2000;
      },
    },
    "push + pop 100 of 128 (out of step)": {
      ring() {
        const start = now();
        for (let i = 0; i < 2000; i++) {
          shifted.push(src, 0, 100);
          shifted.pop(dst, 0, 100);
        }
        return ((now() - start) * 1e6) / 2000;
      },
      "ringbuf.js"() {
        const start = now();
        for (let i = 0; i < 2000; i++) {
          shiftedBuffer.push(src, 100);
          shiftedBuffer.pop(dst, 100);
        }
        return ((now() - start) * 1e6) / 2000;
      },
    },
    "record of 1200 bytes, push + pop": {
      ring() {
        const start = now();
        for (let i = 0; i < 2000; i++) {
          records.push(i, datagram);
          records.pop(room);
        }
        return ((now() - start) * 1e6) / 2000;
      },
    },
  };
}

/** ns per `postMessage` of 128 floats, the sender's part only; the messages are received before the promise resolves. */
export async function postRound(MessageChannel, now, count = 500) {
  const src = new Float32Array(QUANTUM);
  const { port1, port2 } = new MessageChannel();
  const received = new Promise((resolve) => {
    let left = count;
    port2.onmessage = () => {
      if (--left === 0) resolve();
    };
  });
  const start = now();
  for (let i = 0; i < count; i++) port1.postMessage(src);
  const sent = now();
  await received;
  const both = now();
  port1.close();
  port2.close();
  return { push: ((sent - start) * 1e6) / count, pushPop: ((both - start) * 1e6) / count };
}

/** How one end between two threads does each queue: whether a block can move now, and moving it. */
const ENDS = {
  ring({ Ring }, storage) {
    const ring = new Ring(storage, Float32Array);
    return {
      canPush: () => ring.availableWrite >= QUANTUM,
      push: (block) => ring.push(block),
      canPop: () => ring.availableRead >= QUANTUM,
      pop: (block) => ring.pop(block),
    };
  },
  "ringbuf.js"({ RingBuffer }, storage) {
    const buffer = new RingBuffer(storage, Float32Array);
    return {
      canPush: () => buffer.available_write() >= QUANTUM,
      push: (block) => buffer.push(block, QUANTUM),
      canPop: () => buffer.available_read() >= QUANTUM,
      pop: (block) => buffer.pop(block, QUANTUM),
    };
  },
};

/** Storage for both ends; null for postMessage. */
export function storageFor({ Ring, RingBuffer }, queue) {
  if (queue === "ring") return Ring.createStorage(8192, Float32Array);
  return queue === "ringbuf.js" ? RingBuffer.getStorageForCapacity(8192, Float32Array) : null;
}

/** One end of a measurement between two threads, in a worker. The consumer posts its ns per block, first block to last. */
export function work(modules, { role, queue, storage, blocks }, now, post) {
  const block = new Float32Array(QUANTUM);
  if (queue === "postMessage") {
    for (let i = 0; i < blocks; i++) {
      block[0] = i;
      post(block);
    }
    return;
  }
  const end = ENDS[queue](modules, storage);
  const never = new Int32Array(new SharedArrayBuffer(4));
  // Spin first; then sleep, so that the other end gets the core if there are not enough of them.
  const until = (ready) => {
    for (let spins = 0; !ready(); spins++) if (spins > 5000) Atomics.wait(never, 0, 0, 0.05);
  };
  if (role === "producer") {
    for (let i = 0; i < blocks; i++) {
      block[0] = i;
      until(end.canPush);
      end.push(block);
    }
    return;
  }
  let start = 0;
  for (let i = 0; i < blocks; i++) {
    until(end.canPop);
    end.pop(block);
    if (i === 0) start = now();
    if (block[0] !== i) throw new Error("out of order");
  }
  post(((now() - start) * 1e6) / (blocks - 1));
}
