import type { FromWorker, WorkerPeerStats } from "../shared/messages";
import type { RecordSink } from "../shared/records";
import type { HeardStats } from "../shared/stats";
import {
  type CaptureReport,
  type HeardReport,
  KIND_AUDIO,
  KIND_PROBE,
  KIND_PROBE_REPLY,
  KIND_REPORT,
  kindOf,
  MAX_DATAGRAM_BYTES,
  probeRepliedNs,
  probeReply,
  probeTimeNs,
  writeProbe,
} from "../shared/wire";
import { epochMs } from "./clock";
import { REPORT_INTERVAL_MS, Reports, toNs } from "./report";
import type { Trace } from "./trace";

/**
 * A lane whose oldest unsent datagram has waited for longer than this is no use: what would queue behind it is better dropped.
 * An age, not a size: Chromium captures 1,024 frames at a time, so a full burst may be in the queue of a lane in good health. And
 * not a short one: on a busy machine the browser's network thread stands still for tens of milliseconds, and then sends all.
 */
const MAX_WAIT_MS = 100;
/** A wait that says more lanes are needed. */
const CROWDED_MS = 25;
const MAX_LANES = 8;
/** Resolution of `performance.now()` here and at the peer: with a page that is not cross-origin isolated, a millisecond in Firefox. */
const GRANULARITY_MS = globalThis.crossOriginIsolated ? 0.04 : 2;
/** Lanes are added when more than this share of a review's datagrams found every lane crowded... */
const BACKLOG_SHARE = 0.01;
const REVIEW_INTERVAL_MS = 1_000;
/** ...and taken away after so long without any. */
const CALM_MS = 60_000;

interface Lane {
  readonly number: number;
  readonly epoch: number;
  /** False for the far end of the loop, which only receives. */
  readonly sends: boolean;
  readonly channel: RTCDataChannel;
  /** Bytes ever queued. */
  queuedBytes: number;
  /** Of what was queued between two looks and is not all sent: when it was first seen, and `queuedBytes` after it. Oldest first. */
  bursts: { atMs: number; endBytes: number }[];
  /** How long the oldest unsent datagram has been seen waiting. */
  waitMs: number;
  sent: number;
  received: number;
  rttMs: number | null;
  probedAtMs: number;
}

interface Peer {
  lanes: Lane[];
  /** Datagrams sent to it, or dropped: whose turn it is. */
  turn: number;
  droppedBacklog: number;
  oversized: number;
  offered: number;
  /** Datagrams of this review that found every lane crowded, dropped ones included. */
  crowded: number;
  reviewedAtMs: number;
  crowdedAtMs: number;
  readonly reports: Reports;
  /** How the peer hears us, by its own report of its last seconds; null while it does not say. */
  heard: HeardStats | null;
}

/** Every peer and its lanes. A datagram goes once to each peer, on the lane with the least backlog. */
export class Peers {
  readonly #peers = new Map<number, Peer>();
  readonly #sink: RecordSink;
  readonly #say: (message: FromWorker) => void;
  #probeId = 0;
  /** Datagrams that did not fit the ring to the audio thread. */
  ringOverflows = 0;
  trace: Trace | null = null;

  constructor(sink: RecordSink, say: (message: FromWorker) => void) {
    this.#sink = sink;
    this.#say = say;
  }

  addLane(stream: number, number: number, epoch: number, sends: boolean, channel: RTCDataChannel): void {
    const peer = this.#peers.get(stream) ?? this.#add(stream);
    const lane: Lane = {
      number,
      epoch,
      sends,
      channel,
      queuedBytes: 0,
      bursts: [],
      waitMs: 0,
      sent: 0,
      received: 0,
      rttMs: null,
      probedAtMs: 0,
    };
    peer.lanes = peer.lanes.filter((other) => {
      const replaced = other.number === number && other.sends === sends;
      if (replaced) other.channel.close();
      return !replaced;
    });
    peer.lanes.push(lane);
    channel.binaryType = "arraybuffer";
    channel.onmessage = ({ data }) => this.#receive(stream, peer, lane, data);
    channel.onclose = () => this.#say({ type: "lane-closed", stream, lane: number, epoch });
  }

  closeLane(stream: number, number: number): void {
    const peer = this.#peers.get(stream);
    if (peer === undefined) return;
    for (const lane of peer.lanes) if (lane.number === number) lane.channel.close();
    peer.lanes = peer.lanes.filter((lane) => lane.number !== number);
  }

  close(stream: number): void {
    for (const lane of this.#peers.get(stream)?.lanes ?? []) lane.channel.close();
    this.#peers.delete(stream);
  }

  /**
   * Finds out how long datagrams wait. To be called by a timer, never while sending: `bufferedAmount` is brought up to date by tasks
   * of this thread's event loop, and would look stuck to one who was held up and now catches up. `nowMs`: performance.now().
   */
  takeStock(nowMs: number): void {
    for (const { lanes } of this.#peers.values()) for (const lane of lanes) takeStock(lane, nowMs);
  }

  send(datagram: Uint8Array<ArrayBuffer>): void {
    this.trace?.sent(datagram);
    for (const peer of this.#peers.values()) this.#sendTo(peer, datagram);
  }

  #sendTo(peer: Peer, datagram: Uint8Array<ArrayBuffer>): void {
    let best: Lane | null = null;
    let backlog = Number.POSITIVE_INFINITY;
    // Among lanes that are equal the one whose turn it is: what is under way unacknowledged fills a lane unseen, long before
    // anything queues, so each shall have as little of that as can be.
    const first = peer.turn++;
    for (let n = 0; n < peer.lanes.length; n++) {
      const lane = peer.lanes[(first + n) % peer.lanes.length];
      if (!lane.sends || lane.channel.readyState !== "open" || lane.waitMs > MAX_WAIT_MS) continue;
      const bytes = lane.channel.bufferedAmount;
      if (bytes < backlog) {
        best = lane;
        backlog = bytes;
      }
    }
    if (best === null) {
      // No lane at all is no backlog: the peer is not connected (yet).
      if (peer.lanes.some((lane) => lane.sends && lane.channel.readyState === "open")) {
        peer.offered++;
        peer.crowded++;
        peer.droppedBacklog++;
      }
      return;
    }
    peer.offered++;
    if (best.waitMs > CROWDED_MS) peer.crowded++;
    if (trySend(best.channel, datagram)) {
      best.sent++;
      best.queuedBytes += datagram.length;
    } else peer.droppedBacklog++;
  }

  #receive(stream: number, peer: Peer, lane: Lane, data: unknown): void {
    if (!(data instanceof ArrayBuffer) || data.byteLength > MAX_DATAGRAM_BYTES) {
      peer.oversized++;
      return;
    }
    const nowMs = epochMs();
    const bytes = new Uint8Array(data);
    const kind = kindOf(bytes);
    switch (kind) {
      case KIND_PROBE:
        this.#sendControl(lane, probeReply(bytes, toNs(epochMs())));
        return;
      case KIND_PROBE_REPLY:
        handleReply(peer, lane, bytes, nowMs);
        return;
      case KIND_REPORT:
        peer.reports.handleReport(bytes, nowMs);
        peer.heard = peer.reports.heard(nowMs);
        return;
    }
    lane.received++;
    if (kind === KIND_AUDIO) {
      peer.reports.handleAudio(bytes, nowMs);
      this.trace?.received(stream, bytes);
    }
    if (!this.#sink.push(stream, bytes)) this.ringOverflows++;
  }

  /** Probes, replies and reports are dropped on a lane that queues, like audio. */
  #sendControl(lane: Lane, datagram: Uint8Array<ArrayBuffer>): void {
    if (lane.waitMs <= MAX_WAIT_MS && trySend(lane.channel, datagram)) lane.queuedBytes += datagram.length;
  }

  /** What main says of how a stream is heard, for the reports to its peer. */
  setHeard(stream: number, heard: HeardReport | null): void {
    const peer = this.#peers.get(stream);
    if (peer !== undefined) peer.reports.hears = heard;
  }

  /** Sends the reports that are due, and forgets those that are old. */
  report(capture: CaptureReport | null): void {
    for (const peer of this.#peers.values()) {
      peer.heard = peer.reports.heard(epochMs());
      const open = peer.lanes.filter((lane) => lane.sends && lane.channel.readyState === "open");
      if (open.length === 0) continue;
      const report = peer.reports.poll(capture, peer.droppedBacklog, epochMs());
      const lane = open.reduce((best, other) => (other.waitMs < best.waitMs ? other : best));
      if (report !== null) this.#sendControl(lane, report);
    }
  }

  /** Probes lanes and finds out whether there are enough of them. `nowMs`: performance.now(). */
  review(nowMs: number): void {
    for (const [stream, peer] of this.#peers) {
      for (const lane of peer.lanes) {
        if (!lane.sends || lane.channel.readyState !== "open") continue;
        if (nowMs - lane.probedAtMs < REPORT_INTERVAL_MS) continue;
        lane.probedAtMs = nowMs;
        this.#sendControl(lane, writeProbe(this.#probeId++, toNs(epochMs())));
      }
      if (nowMs - peer.reviewedAtMs >= REVIEW_INTERVAL_MS) this.#reviewLanes(stream, peer, nowMs);
    }
  }

  #reviewLanes(stream: number, peer: Peer, nowMs: number): void {
    const { offered, crowded } = peer;
    peer.offered = 0;
    peer.crowded = 0;
    peer.reviewedAtMs = nowMs;
    const lanes = peer.lanes.filter((lane) => lane.sends && lane.channel.readyState === "open").length;
    if (lanes === 0) return;
    if (crowded > 0) peer.crowdedAtMs = nowMs;
    if (crowded > offered * BACKLOG_SHARE && lanes < MAX_LANES) {
      this.#say({ type: "lanes-wanted", stream, count: Math.min(MAX_LANES, lanes * 2) });
    } else if (nowMs - peer.crowdedAtMs > CALM_MS && lanes > 1) {
      peer.crowdedAtMs = nowMs;
      this.#say({ type: "lanes-wanted", stream, count: lanes - 1 });
    }
  }

  stats(): WorkerPeerStats[] {
    return Array.from(this.#peers, ([stream, peer]) => ({
      stream,
      droppedBacklog: peer.droppedBacklog,
      oversized: peer.oversized,
      heard: peer.heard,
      farEnd: peer.reports.farEnd(epochMs()),
      lanes: peer.lanes
        .filter((lane) => lane.sends)
        .map((lane) => ({
          lane: lane.number,
          state: laneState(lane.channel),
          sentDatagrams: lane.sent,
          receivedDatagrams: this.#receivedOn(peer, lane),
          backlogBytes: lane.channel.bufferedAmount,
          rttMs: lane.rttMs,
        })),
    }));
  }

  /** A lane's datagrams, both ends of a looped one counted as one. */
  #receivedOn(peer: Peer, lane: Lane): number {
    return peer.lanes
      .filter((other) => other.number === lane.number)
      .reduce((sum, other) => sum + other.received, 0);
  }

  #add(stream: number): Peer {
    const now = performance.now();
    const peer: Peer = {
      lanes: [],
      turn: 0,
      droppedBacklog: 0,
      oversized: 0,
      offered: 0,
      crowded: 0,
      reviewedAtMs: now,
      crowdedAtMs: now,
      reports: new Reports(GRANULARITY_MS),
      heard: null,
    };
    this.#peers.set(stream, peer);
    return peer;
  }
}

function handleReply(peer: Peer, lane: Lane, reply: Uint8Array, nowMs: number): void {
  const sentMs = Number(probeTimeNs(reply)) / 1e6;
  const rttMs = nowMs - sentMs;
  if (!(rttMs >= 0 && rttMs < 60_000)) return;
  lane.rttMs = rttMs;
  peer.reports.offset.add(sentMs, Number(probeRepliedNs(reply)) / 1e6, nowMs);
}

function takeStock(lane: Lane, nowMs: number): void {
  const { bursts, queuedBytes } = lane;
  const sentBytes = queuedBytes - lane.channel.bufferedAmount;
  while (bursts.length > 0 && bursts[0].endBytes <= sentBytes) bursts.shift();
  if (queuedBytes > Math.max(sentBytes, bursts.at(-1)?.endBytes ?? 0))
    bursts.push({ atMs: nowMs, endBytes: queuedBytes });
  lane.waitMs = bursts.length > 0 ? nowMs - bursts[0].atMs : 0;
}

function laneState(channel: RTCDataChannel): "connecting" | "open" | "closed" {
  if (channel.readyState === "connecting" || channel.readyState === "open") return channel.readyState;
  return "closed";
}

/** False if the browser refuses: the channel is closing, or its buffer is full. */
function trySend(channel: RTCDataChannel, bytes: Uint8Array<ArrayBuffer>): boolean {
  try {
    channel.send(bytes);
    return true;
  } catch {
    return false;
  }
}
