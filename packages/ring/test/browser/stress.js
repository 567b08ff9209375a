/**
 * The ring in a browser: worker to worker, worker to AudioWorklet, AudioWorklet to worker, all at once.
 *
 * `await run(seed, scale)` returns {records, elements, wraps, errors, firstError, ends}.
 */
import { RecordRing, Ring } from "../../dist/index.js";

/** One end in a worker of its own; resolves with its report. */
function inWorker(spec) {
  const worker = new Worker(new URL("stress-worker.js", import.meta.url), { type: "module" });
  return new Promise((resolve, reject) => {
    worker.onmessage = (event) => resolve(event.data);
    worker.onerror = (event) => reject(new Error(event.message));
    worker.postMessage(spec);
  }).finally(() => worker.terminate());
}

/**
 * Several ends in one AudioWorkletProcessor, a few steps of each per quantum. Offline, so that it needs no sound card and runs
 * as fast as it can; the processor waits a little for the other end.
 */
async function inWorklet(specs) {
  const context = new OfflineAudioContext({ numberOfChannels: 1, length: 128 * 60_000, sampleRate: 48_000 });
  await context.audioWorklet.addModule(new URL("stress-worklet.js", import.meta.url));
  const node = new AudioWorkletNode(context, "stress", { processorOptions: { specs } });
  const reports = new Promise((resolve, reject) => {
    node.port.onmessage = (event) => resolve(event.data);
    node.onprocessorerror = () => reject(new Error("the processor threw"));
  });
  node.connect(context.destination);
  const rendered = context.startRendering().then(() => {
    // The report is posted before the last quantum; after the whole length without one, the ends were starved.
    node.port.postMessage("report");
    return reports;
  });
  return await Promise.race([reports, rendered]);
}

function elements(type, capacity, seed, count) {
  const storage = Ring.createStorage(capacity, type);
  new Ring(storage, type).reset(2 ** 32 - Math.floor(count / 2));
  return { kind: "elements", type: type.name, storage, seed, count, capacity };
}

function records(capacity, seed, count, maxRecordBytes) {
  const storage = RecordRing.createStorage(capacity);
  new RecordRing(storage).reset(2 ** 32 - 8 * count);
  return { kind: "records", storage, seed, count, maxRecordBytes, capacity };
}

function audio(channels, capacity, seed, count) {
  const storage = Ring.createStorage(capacity, Float32Array);
  new Ring(storage, Float32Array).reset(2 ** 32 - Math.floor(count / 2));
  return { kind: "audio", storage, seed, count, channels, capacity };
}

async function run(seed = 1, scale = 1) {
  if (!crossOriginIsolated) throw new Error("the page is not cross-origin isolated");
  const produced = (spec) => ({ ...spec, role: "producer" });
  const consumed = (spec) => ({ ...spec, role: "consumer" });
  const reports = [];

  // Worker to worker, one pair at a time: two ends want two cores.
  for (const spec of [
    elements(Float32Array, 8, seed, 500_000 * scale),
    elements(Float32Array, 4096, seed + 1, 2_000_000 * scale),
    elements(Uint8Array, 64, seed + 2, 200_000 * scale),
    elements(Int32Array, 512, seed + 3, 500_000 * scale),
    records(256, seed + 4, 20_000 * scale),
    records(16384, seed + 5, 30_000 * scale, 1200),
  ]) {
    reports.push(
      ...(await Promise.all([inWorker(produced(spec)), inWorker(consumed(spec))])).map((r) => [spec, r]),
    );
  }

  // Worker to worklet and back.
  const toWorklet = [
    records(16384, seed + 6, 20_000 * scale, 1200),
    audio(2, 1024, seed + 7, 500_000 * scale),
  ];
  const fromWorklet = [elements(Float32Array, 2048, seed + 8, 1_000_000 * scale)];
  const [inside, ...outside] = await Promise.all([
    inWorklet([...toWorklet.map(consumed), ...fromWorklet.map(produced)]),
    ...toWorklet.map((spec) => inWorker(produced(spec))),
    ...fromWorklet.map((spec) => inWorker(consumed(spec))),
  ]);
  const worklet = [...toWorklet, ...fromWorklet];
  reports.push(...inside.map((r, i) => [worklet[i], r]), ...outside.map((r, i) => [worklet[i], r]));

  const result = { records: 0, elements: 0, wraps: 0, errors: 0, firstError: "", missing: 0, ends: [] };
  for (const [spec, report] of reports) {
    result.errors += report.errors;
    result.firstError ||= report.firstError;
    result.missing += spec.count - report.moved;
    result.ends.push(report);
    if (report.role === "producer") continue;
    if (spec.kind === "records") {
      result.records += report.moved;
      result.wraps += Math.floor(report.bytes / spec.capacity);
    } else {
      const moved = report.moved * (spec.channels ?? 1);
      result.elements += moved;
      result.wraps += Math.floor(moved / spec.capacity);
    }
  }
  return result;
}

window.run = run;
