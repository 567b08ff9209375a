/** A Node worker thread that runs one end of a ring to its end. */
import { parentPort, workerData } from "node:worker_threads";
import { makeTask, runToEnd } from "./stress.js";

parentPort.postMessage(runToEnd(makeTask(workerData)));
