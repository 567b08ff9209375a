/** One of the two threads of the benchmark in Node. */
import { parentPort } from "node:worker_threads";
import { RingBuffer } from "ringbuf.js";
import { RecordRing, Ring } from "../dist/index.js";
import { work } from "./cases.js";

parentPort.on("message", (job) => {
  work(
    { Ring, RecordRing, RingBuffer },
    job,
    () => performance.now(),
    (message) => parentPort.postMessage(message),
  );
});
parentPort.postMessage("ready");
