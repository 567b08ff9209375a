/** `await bench(rounds, blocks)` in a page. */
import { RingBuffer } from "/ringbuf.js/index.mjs";
import { RecordRing, Ring } from "../dist/index.js";
import { runAll } from "./run.js";

async function startThread() {
  const worker = new Worker(new URL("page-worker.js", import.meta.url), { type: "module" });
  await new Promise((resolve, reject) => {
    worker.onmessage = resolve;
    worker.onerror = (event) => reject(new Error(event.message));
  });
  return {
    post: (job) => worker.postMessage(job),
    onMessage: (handler) => {
      worker.onmessage = (event) => handler(event.data);
    },
    stop: async () => worker.terminate(),
  };
}

window.bench = (rounds, blocks) =>
  runAll(
    { Ring, RecordRing, RingBuffer },
    { now: () => performance.now(), MessageChannel, startThread, rounds, blocks },
  );
