/** The network thread: the sender, and every data channel. It moves bytes between transports and rings; it never decodes them. */

import { Ladders } from "../shared/engine";
import type { FromWorker, ToWorker } from "../shared/messages";
import { sinkOf } from "../shared/records";
import { Capture } from "./capture";
import { Peers } from "./peers";
import { Trace } from "./trace";

/** How often the lanes' queues are looked at. */
const STOCK_MS = 10;
/** How often statistics go to the main thread, and lanes are reviewed. */
const REPORT_MS = 100;

const scope = self as unknown as DedicatedWorkerGlobalScope;
const say = (message: FromWorker) => scope.postMessage(message);

let peers: Peers | null = null;
let capture: Capture | null = null;

scope.onmessage = ({ data }: MessageEvent<ToWorker>) => {
  switch (data.type) {
    case "start": {
      const ladders = new Ladders(data.module);
      peers = new Peers(sinkOf(data.datagrams), say, (rungs) => ladders.add(rungs));
      capture = new Capture(data.module, data.capture, data.sender, peers, say);
      setInterval(report, REPORT_MS);
      setInterval(() => peers?.takeStock(performance.now()), STOCK_MS);
      break;
    }
    case "configure":
      capture?.configure(data.sender);
      break;
    case "mute":
      capture?.setMuted(data.muted);
      break;
    case "track":
      capture?.fromTrack(data.readable as ReadableStream<AudioData>, data.channels);
      break;
    case "worklet":
      capture?.fromWorklet();
      break;
    case "stop-capture":
      capture?.stop();
      break;
    case "trace": {
      if (peers === null || capture === null) break;
      const trace = new Trace(data.seconds, (rows) => {
        setTrace(null);
        say({ type: "trace", rows });
      });
      setTrace(trace);
      break;
    }
    case "record":
      capture?.startRecording(data.seconds);
      break;
    case "heard":
      for (const { stream, heard } of data.streams) peers?.setHeard(stream, heard);
      if (capture !== null) capture.input = data.input;
      break;
    case "lane":
      peers?.addLane(data.stream, data.lane, data.epoch, data.sends, data.channel as RTCDataChannel);
      break;
    case "close-lane":
      peers?.closeLane(data.stream, data.lane);
      break;
    case "close-stream":
      peers?.close(data.stream);
      break;
  }
};

function setTrace(trace: Trace | null): void {
  if (peers !== null) peers.trace = trace;
  if (capture !== null) capture.trace = trace;
}

function report(): void {
  if (peers === null || capture === null) return;
  peers.review(performance.now());
  const sender = capture.stats();
  peers.report(capture.reports(sender.overrunFrames));
  say({ type: "stats", sender, peers: peers.stats(), ringOverflows: peers.ringOverflows });
}
