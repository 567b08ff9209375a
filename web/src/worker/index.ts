/** The network thread: the sender, every data channel, and the sessions with the relay. It moves datagrams between transports and rings, and has the browser encode and decode Opus. */

import { Ladders, Paths } from "../shared/engine";
import { DATAGRAM_RING_BYTES, type FromWorker, RELAY_STREAM, type ToWorker } from "../shared/messages";
import { sinkOf } from "../shared/records";
import { NOBODY } from "../shared/relay";
import { Capture } from "./capture";
import type { LaneChannel } from "./lane";
import { Peers } from "./peers";
import { Relay } from "./relay";
import { Trace } from "./trace";

/** How often the lanes' queues are looked at. */
const STOCK_MS = 10;
/** How often statistics go to the main thread, and lanes are reviewed. */
const REPORT_MS = 100;

const scope = self as unknown as DedicatedWorkerGlobalScope;
/** The relay's lanes are this thread's own affair. */
const say = (message: FromWorker) => {
  if (!("stream" in message) || message.stream !== RELAY_STREAM) scope.postMessage(message);
  else if (message.type === "lanes-wanted") relay?.setSessions(message.count);
};

let peers: Peers | null = null;
let capture: Capture | null = null;
let relay: Relay | null = null;

scope.onmessage = ({ data }: MessageEvent<ToWorker>) => {
  switch (data.type) {
    case "start": {
      const ladders = new Ladders(data.module);
      const paths = new Paths(data.module);
      const sink = sinkOf(data.datagrams, DATAGRAM_RING_BYTES);
      peers = new Peers(sink, say, (rungs) => ladders.add(rungs), paths);
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
      capture?.fromTrack(data);
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
      for (const { stream, heard, lost } of data.streams) {
        peers?.setHeard(stream, heard);
        peers?.setLost(stream, lost);
      }
      if (capture !== null) capture.input = data.input;
      break;
    case "lane":
      (data.channel as RTCDataChannel).binaryType = "arraybuffer";
      peers?.addLane(data.stream, data.lane, data.epoch, data.sends, data.channel as LaneChannel);
      break;
    case "close-lane":
      peers?.closeLane(data.stream, data.lane);
      break;
    case "retire-lane":
      peers?.retireLane(data.stream, data.lane);
      break;
    case "close-stream":
      peers?.close(data.stream);
      break;
    case "relay":
      relay ??= peers && newRelay(data.host, peers);
      relay?.setOffer(data.offer);
      break;
    case "hold-relay":
      relay?.hold();
      break;
    case "doubt-lanes":
      peers?.doubtLanes(performance.now());
      break;
    case "listen":
      relay?.setListen(data.listen);
      break;
    case "peer":
      peers?.setPeer(data.stream, data.number, data.pin, data.wants);
      break;
  }
};

function newRelay(host: string, lanes: Peers): Relay {
  return new Relay(host, {
    addLane: (number, channel) => lanes.addLane(RELAY_STREAM, number, 0, true, channel),
    closeLane: (number) => lanes.closeLane(RELAY_STREAM, number),
    retireLane: (number) => lanes.retireLane(RELAY_STREAM, number),
    answeredAtMs: (number) => lanes.answeredAtMs(RELAY_STREAM, number),
    changed: () => lanes.setRelay(relay?.wanted ?? NOBODY, relay?.statistics ?? null),
  });
}

function setTrace(trace: Trace | null): void {
  if (peers !== null) peers.trace = trace;
  if (capture !== null) capture.trace = trace;
}

function report(): void {
  if (peers === null || capture === null) return;
  peers.review(performance.now());
  relay?.setNeeded(peers.needsRelay);
  relay?.review(performance.now());
  const sender = capture.stats();
  peers.report(capture.reports(sender.overrunFrames));
  const ringOverflows = peers.ringOverflows + capture.discards;
  say({ type: "stats", sender, peers: peers.stats(), relay: peers.relayStats(), ringOverflows });
}
