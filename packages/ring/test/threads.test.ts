/** Both ends on real threads, at full speed, with every element checked. */
import { Worker } from "node:worker_threads";
import { expect, test } from "vitest";
import { createParameterStorage, RecordRing, Ring, type RingStorage } from "../src/index.js";

interface Report {
  moved: number;
  errors: number;
  firstError: string;
}

const CANARY = 0xa5;
const CANARY_BYTES = 4096;

/** `bytes` zeroed bytes between two stretches of canaries. */
function fenced(bytes: number): SharedArrayBuffer {
  const buffer = new SharedArrayBuffer(bytes + 2 * CANARY_BYTES);
  new Uint8Array(buffer).fill(CANARY, 0, CANARY_BYTES).fill(CANARY, CANARY_BYTES + bytes);
  return buffer;
}

function expectCanariesAlive(buffer: SharedArrayBuffer): void {
  const bytes = new Uint8Array(buffer);
  expect(bytes.subarray(0, CANARY_BYTES).every((byte) => byte === CANARY)).toBe(true);
  expect(bytes.subarray(bytes.length - CANARY_BYTES).every((byte) => byte === CANARY)).toBe(true);
}

interface Spec {
  kind: "elements" | "records" | "audio" | "parameters";
  storage: RingStorage;
  seed: number;
  count: number;
  [more: string]: unknown;
}

/** Runs both ends in threads of their own, and checks that everything arrived. The first error ends both. */
async function bothEnds(spec: Spec): Promise<void> {
  const workers = ["producer", "consumer"].map(
    (role) => new Worker(new URL("./thread.mjs", import.meta.url), { workerData: { ...spec, role } }),
  );
  try {
    await Promise.all(
      workers.map(async (worker) => {
        const report = await new Promise<Report>((resolve, reject) => {
          worker.once("message", resolve);
          worker.once("error", reject);
        });
        expect(report.firstError).toBe("");
        expect(report.errors).toBe(0);
        expect(report.moved).toBe(spec.count);
      }),
    );
  } finally {
    await Promise.all(workers.map((worker) => worker.terminate()));
  }
}

test.each([
  ["Int8Array", 64, 400_000],
  ["Uint8Array", 1, 20_000],
  ["Int16Array", 2, 50_000],
  ["Uint16Array", 256, 400_000],
  ["Int32Array", 1024, 2_000_000],
  ["Uint32Array", 32, 400_000],
  ["Float32Array", 4096, 4_000_000],
  ["Float64Array", 512, 1_000_000],
] as const)(
  "%s elements through a ring of %i, across the overflow of the indices",
  async (type, capacity, count) => {
    const types = {
      Int8Array,
      Uint8Array,
      Int16Array,
      Uint16Array,
      Int32Array,
      Uint32Array,
      Float32Array,
      Float64Array,
    };
    // As if it were of floats: this thread only sets the indices and looks at them.
    const Type = types[type] as unknown as Float32ArrayConstructor;
    const byteLength = Ring.byteLengthFor(capacity, Type);
    const storage = fenced(byteLength);
    const ring = new Ring(storage, Type, CANARY_BYTES, byteLength);
    ring.reset(2 ** 32 - count / 2);
    const place = { byteOffset: CANARY_BYTES, byteLength };
    await bothEnds({ kind: "elements", storage, type, seed: capacity + 1, count, ...place });
    expectCanariesAlive(storage);
    expect(ring.empty).toBe(true);
  },
);

// Each lap needs both threads. On two free cores this takes 2 s; on a machine with ten other busy threads, over a minute.
const LAPS = Number(process.env.RING_LAPS ?? 1_000_000);
test(`${LAPS} laps of a ring of 8`, { timeout: 900_000 }, async () => {
  const storage = Ring.createStorage(8, Float32Array);
  await bothEnds({ kind: "elements", storage, type: "Float32Array", seed: 88, count: 8 * LAPS });
});

test("a ring of integers crosses the overflow of the indices", async () => {
  const storage = Ring.createStorage(64, Int32Array);
  new Ring(storage, Int32Array).reset(2 ** 30 - 100_000);
  await bothEnds({ kind: "elements", storage, type: "Int32Array", seed: 31, count: 200_000 });
});

test.each([
  [16, 20_000],
  [64, 100_000],
  [256, 200_000],
  [4096, 100_000],
  [65536, 10_000],
])("records of all lengths through a ring of %i bytes", async (capacity, count) => {
  const byteLength = RecordRing.byteLengthFor(capacity);
  const storage = fenced(byteLength);
  new RecordRing(storage, CANARY_BYTES, byteLength).reset(2 ** 32 - 8 * count);
  const place = { byteOffset: CANARY_BYTES, byteLength };
  await bothEnds({ kind: "records", storage, seed: capacity, count, ...place });
  expectCanariesAlive(storage);
});

test("datagrams of up to 1200 bytes through a ring of 16 KiB", async () => {
  const storage = RecordRing.createStorage(16384);
  await bothEnds({ kind: "records", storage, seed: 5, count: 100_000, maxRecordBytes: 1200 });
});

test.each([1, 2, 3, 5])("audio frames of %i channels, planar and interleaved", async (channels) => {
  const storage = Ring.createStorage(512, Float32Array);
  new Ring(storage, Float32Array).reset(2 ** 32 - 12_345);
  await bothEnds({ kind: "audio", storage, seed: channels, count: 1_000_000, channels });
});

test("parameter changes", async () => {
  const storage = createParameterStorage(64);
  await bothEnds({ kind: "parameters", storage, seed: 1, count: 1_000_000 });
});
