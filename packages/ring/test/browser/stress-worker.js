/** A worker that runs one end of a ring to its end. */
import { makeTask, runToEnd } from "../stress.js";

globalThis.onmessage = (event) => postMessage(runToEnd(makeTask(event.data)));
