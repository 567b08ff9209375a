/** One of the two threads of the benchmark in a browser. */
import { RingBuffer } from "/ringbuf.js/index.mjs";
import { RecordRing, Ring } from "../dist/index.js";
import { work } from "./cases.js";

globalThis.onmessage = (event) => {
  work(
    { Ring, RecordRing, RingBuffer },
    event.data,
    () => performance.now(),
    (message) => postMessage(message),
  );
};
postMessage("ready");
