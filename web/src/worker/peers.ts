import type { Ladder } from "../shared/engine";
import type { FromWorker, WorkerPeerStats } from "../shared/messages";
import { DECODED_TAG, type RecordSink } from "../shared/records";
import type { Rung } from "../shared/rungs";
import type { HeardStats } from "../shared/stats";
import {
  AUDIO_HEADER_BYTES,
  type CaptureReport,
  type HeardReport,
  isOpus,
  KIND_AUDIO,
  KIND_PROBE,
  KIND_PROBE_REPLY,
  KIND_REPORT,
  kindOf,
  MAX_DATAGRAM_BYTES,
  OPUS_RATE_HZ,
  probeRepliedNs,
  probeReply,
  probeTimeNs,
  readAudioHeader,
  writeProbe,
  writeSequence,
} from "../shared/wire";
import { epochMs } from "./clock";
import { OpusReceiver } from "./opus";
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
const REVIEW_INTERVAL_MS = 1_000;
/** Lanes are taken away after so long without any datagram that found all of them crowded... */
const CALM_MS = 60_000;
/** ...but for these: a copy needs a second one. */
const CALM_LANES = 2;
/** When the format changes, the old one is sent for so many more frames of media time: a codec takes its time to be set up. */
const OVERLAP_FRAMES = 24_000;

/** What is sent, and what may be changed about it for a listener's sake. */
export interface Sending {
  /** The chosen format first. */
  rungs: readonly [Rung, ...Rung[]];
  copies: "auto" | "on" | "off";
  addsLanes: boolean;
}

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
  /** The next datagram's number: each listener's are counted on their own, so that a change of format is no loss. */
  sequence: number;
  rung: Rung;
  /** The format it had before, until `rung` has taken over. */
  leaving: Rung | null;
  /** Media time where `rung` began; null until it did. */
  rungFrom: number | null;
  switches: number;
  /** Null if there are too many peers to judge: then it has what is chosen. */
  ladder: Ladder | null;
  copies: boolean;
  copiesSent: number;
  /** Of this burst, to be sent again. */
  burst: { datagram: Uint8Array<ArrayBuffer>; sequence: number; lane: Lane }[];
  /** Its Opus, by the packets' duration: where it changes that, both come for a moment. */
  opus: Map<number, OpusReceiver>;
  heardOpusBps: number | null;
  lanesWanted: number;
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

/**
 * Every peer and its lanes. A datagram goes once to each peer that listens to its format, on the lane with the least backlog; and
 * a second time on another lane if the peer's path loses some.
 */
export class Peers {
  readonly #peers = new Map<number, Peer>();
  readonly #sink: RecordSink;
  readonly #say: (message: FromWorker) => void;
  readonly #newLadder: (rungs: number) => Ladder | null;
  #sending: Sending = {
    rungs: [{ key: "main", format: "s16", opusBps: null }],
    copies: "off",
    addsLanes: true,
  };
  #probeId = 0;
  /** Datagrams that did not fit the ring to the audio thread. */
  ringOverflows = 0;
  trace: Trace | null = null;

  constructor(
    sink: RecordSink,
    say: (message: FromWorker) => void,
    newLadder: (rungs: number) => Ladder | null = () => null,
  ) {
    this.#sink = sink;
    this.#say = say;
    this.#newLadder = newLadder;
  }

  /** What is sent from now on. A listener who was some steps down stays so. */
  setSending(sending: Sending): void {
    const before = this.#sending.rungs;
    this.#sending = sending;
    for (const peer of this.#peers.values()) {
      const step = Math.max(
        0,
        before.findIndex(({ key }) => key === peer.rung.key),
      );
      peer.ladder?.setRungs(sending.rungs.length);
      change(peer, sending.rungs[Math.min(step, sending.rungs.length - 1)]);
      peer.copies = sending.copies === "on" || (peer.copies && sending.copies === "auto");
    }
  }

  /** Every format that someone listens to, each once. */
  rungsInUse(): Rung[] {
    const used = new Map<string, Rung>();
    for (const peer of this.#peers.values()) {
      if (openLanes(peer) === 0) continue;
      const { rung, leaving } = peer;
      used.set(rung.key, rung);
      if (leaving !== null) used.set(leaving.key, leaving);
    }
    return [...used.values()];
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
      if (replaced) close(other);
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
    for (const lane of peer.lanes) if (lane.number === number) close(lane);
    peer.lanes = peer.lanes.filter((lane) => lane.number !== number);
  }

  close(stream: number): void {
    const peer = this.#peers.get(stream);
    if (peer === undefined) return;
    for (const lane of peer.lanes) close(lane);
    for (const receiver of peer.opus.values()) receiver.close();
    peer.ladder?.close();
    this.#peers.delete(stream);
  }

  /**
   * Finds out how long datagrams wait. To be called by a timer, never while sending: `bufferedAmount` is brought up to date by tasks
   * of this thread's event loop, and would look stuck to one who was held up and now catches up. `nowMs`: performance.now().
   */
  takeStock(nowMs: number): void {
    for (const { lanes } of this.#peers.values()) for (const lane of lanes) takeStock(lane, nowMs);
  }

  /** Sends a datagram of the rendition `key` to all who listen to that. Its sequence number is overwritten. */
  send(key: string, datagram: Uint8Array<ArrayBuffer>): void {
    let kept: Uint8Array<ArrayBuffer> | null = null;
    let isTraced = false;
    for (const peer of this.#peers.values()) {
      if (peer.rung.key !== key && peer.leaving?.key !== key) continue;
      const { sequence } = peer;
      writeSequence(datagram, sequence);
      if (this.trace !== null && !isTraced && openLanes(peer) > 0) {
        this.trace.sent(datagram);
        isTraced = true;
      }
      const lane = this.#sendTo(peer, datagram);
      if (lane !== null && peer.copies) {
        kept ??= datagram.slice();
        peer.burst.push({ datagram: kept, sequence, lane });
      }
      if (peer.leaving !== null) takeOver(peer, key, datagram);
    }
    if (!isTraced && key === this.#sending.rungs[0].key) this.trace?.sent(datagram);
  }

  /** Sends the copies of all that was sent since the last call: after the burst, so that no original waits behind a copy. */
  sendCopies(): void {
    for (const peer of this.#peers.values()) {
      for (const { datagram, sequence, lane: first } of peer.burst) {
        const lane = laneForCopy(peer, first);
        if (lane === null) continue;
        writeSequence(datagram, sequence);
        if (!trySend(lane.channel, datagram)) continue;
        lane.sent++;
        lane.queuedBytes += datagram.length;
        peer.copiesSent++;
      }
      peer.burst.length = 0;
    }
  }

  /** The lane it went on; null if it was dropped, or there is none. */
  #sendTo(peer: Peer, datagram: Uint8Array<ArrayBuffer>): Lane | null {
    let best: Lane | null = null;
    let backlog = Number.POSITIVE_INFINITY;
    // Among lanes that are equal the one whose turn it is: what is under way unacknowledged fills a lane unseen, long before
    // anything queues, so each shall have as little of that as can be.
    const first = peer.turn++;
    for (let n = 0; n < peer.lanes.length; n++) {
      const lane = peer.lanes[(first + n) % peer.lanes.length];
      if (!isOpen(lane) || lane.waitMs > MAX_WAIT_MS) continue;
      const bytes = lane.channel.bufferedAmount;
      if (bytes < backlog) {
        best = lane;
        backlog = bytes;
      }
    }
    if (best === null) {
      // No lane at all is no backlog: the peer is not connected (yet).
      if (openLanes(peer) > 0) {
        peer.sequence = (peer.sequence + 1) >>> 0;
        peer.offered++;
        peer.crowded++;
        peer.droppedBacklog++;
      }
      return null;
    }
    peer.sequence = (peer.sequence + 1) >>> 0;
    peer.offered++;
    if (best.waitMs > CROWDED_MS) peer.crowded++;
    if (trySend(best.channel, datagram)) {
      best.sent++;
      best.queuedBytes += datagram.length;
      return best;
    }
    peer.droppedBacklog++;
    return null;
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
      if (isOpus(bytes)) {
        this.#receiveOpus(stream, peer, bytes);
        return;
      }
      peer.heardOpusBps = null;
    }
    this.#give(stream, bytes);
  }

  #receiveOpus(stream: number, peer: Peer, bytes: Uint8Array<ArrayBuffer>): void {
    const { frames } = readAudioHeader(bytes);
    peer.heardOpusBps = ((bytes.length - AUDIO_HEADER_BYTES) * 8 * OPUS_RATE_HZ) / frames;
    let receiver = peer.opus.get(frames);
    if (receiver === undefined) {
      receiver = new OpusReceiver(
        (record) => this.#give(stream + DECODED_TAG, record),
        // As it came: the engine refuses it, and counts.
        (refused) => this.#give(stream, refused),
      );
      peer.opus.set(frames, receiver);
    }
    receiver.push(bytes);
  }

  #give(tag: number, bytes: Uint8Array): void {
    if (!this.#sink.push(tag, bytes)) this.ringOverflows++;
  }

  /** Probes, replies and reports are dropped on a lane that queues, like audio. */
  #sendControl(lane: Lane, datagram: Uint8Array<ArrayBuffer>): void {
    if (lane.waitMs <= MAX_WAIT_MS && trySend(lane.channel, datagram)) lane.queuedBytes += datagram.length;
  }

  /** What main says of how a stream is heard, for the reports to its peer. */
  setHeard(stream: number, heard: HeardReport | null): void {
    this.#peers.get(stream)?.reports.setHears(heard, epochMs());
  }

  /** Sends the reports that are due, and forgets those that are old. `captureOf`: what to say of the capture to a rung's listeners. */
  report(captureOf: (key: string) => CaptureReport | null): void {
    for (const peer of this.#peers.values()) {
      peer.heard = peer.reports.heard(epochMs());
      const open = peer.lanes.filter(isOpen);
      if (open.length === 0) continue;
      const capture = captureOf((peer.leaving ?? peer.rung).key);
      const report = peer.reports.poll(capture, peer.droppedBacklog, epochMs());
      const lane = open.reduce((best, other) => (other.waitMs < best.waitMs ? other : best));
      if (report !== null) this.#sendControl(lane, report);
    }
  }

  /** Probes lanes and finds out whether there are enough of them. `nowMs`: performance.now(). */
  review(nowMs: number): void {
    for (const [stream, peer] of this.#peers) {
      for (const lane of peer.lanes) {
        if (!isOpen(lane)) continue;
        if (nowMs - lane.probedAtMs < REPORT_INTERVAL_MS) continue;
        lane.probedAtMs = nowMs;
        this.#sendControl(lane, writeProbe(this.#probeId++, toNs(epochMs())));
      }
      if (nowMs - peer.reviewedAtMs >= REVIEW_INTERVAL_MS) this.#reviewLanes(stream, peer, nowMs);
    }
  }

  #reviewLanes(stream: number, peer: Peer, nowMs: number): void {
    const { offered, crowded } = peer;
    const elapsedMs = nowMs - peer.reviewedAtMs;
    peer.offered = 0;
    peer.crowded = 0;
    peer.reviewedAtMs = nowMs;
    const lanes = openLanes(peer);
    if (lanes === 0) return;
    const { rungs, copies, addsLanes } = this.#sending;
    const decision = peer.ladder?.review({
      elapsedMs,
      offered,
      crowded,
      lostShare: peer.heard?.lostShare ?? null,
      canCopy: copies === "auto" && lanes > 1,
      // Lanes that were asked for and do not come are not waited for.
      canAddLanes: addsLanes && Math.max(lanes, peer.lanesWanted) < MAX_LANES,
    }) ?? { rung: 0, copies: false, addLanes: false };
    change(peer, rungs[Math.min(decision.rung, rungs.length - 1)]);
    peer.copies = copies === "on" || decision.copies;
    if (crowded > 0) peer.crowdedAtMs = nowMs;
    if (decision.addLanes) {
      this.#wantLanes(stream, peer, Math.min(MAX_LANES, Math.max(lanes, peer.lanesWanted) * 2));
    } else if (nowMs - peer.crowdedAtMs > CALM_MS && lanes > CALM_LANES) {
      peer.crowdedAtMs = nowMs;
      this.#wantLanes(stream, peer, lanes - 1);
    }
  }

  #wantLanes(stream: number, peer: Peer, count: number): void {
    peer.lanesWanted = count;
    this.#say({ type: "lanes-wanted", stream, count });
  }

  stats(): WorkerPeerStats[] {
    return Array.from(this.#peers, ([stream, peer]) => ({
      stream,
      droppedBacklog: peer.droppedBacklog,
      oversized: peer.oversized,
      sent:
        openLanes(peer) === 0
          ? null
          : {
              format: peer.rung.format,
              opusBps: peer.rung.opusBps,
              rung: Math.max(
                0,
                this.#sending.rungs.findIndex(({ key }) => key === peer.rung.key),
              ),
              copies: peer.copies,
              copiesSent: peer.copiesSent,
              switches: peer.switches,
            },
      heardOpusBps: peer.heardOpusBps,
      opusDuplicates: Array.from(peer.opus.values()).reduce((sum, { duplicates }) => sum + duplicates, 0),
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
    const { rungs, copies } = this.#sending;
    const peer: Peer = {
      lanes: [],
      sequence: 0,
      rung: rungs[0],
      leaving: null,
      rungFrom: null,
      switches: 0,
      ladder: this.#newLadder(rungs.length),
      copies: copies === "on",
      copiesSent: 0,
      burst: [],
      opus: new Map(),
      heardOpusBps: null,
      lanesWanted: 0,
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

/** From now on `to`. Where a codec is involved, what was sent goes on until that has taken over. */
function change(peer: Peer, to: Rung): void {
  const from = peer.rung;
  peer.rung = to;
  if (from.key === to.key) return;
  peer.switches++;
  // Renditions in samples are of the same packets: one ends where the other begins. And two in Opus packets of one
  // duration could not be told apart.
  const isSharp =
    from.format === "opus" && to.format === "opus"
      ? from.frames === to.frames
      : from.format !== "opus" && to.format !== "opus";
  peer.leaving = isSharp ? null : from;
  peer.rungFrom = null;
}

/**
 * A datagram of one of two formats was sent: the old one ends once it is far enough into the new one, or if it seems to have ended by
 * itself, as with an encoder that failed.
 */
function takeOver(peer: Peer, key: string, datagram: Uint8Array): void {
  const { timestamp, frames } = readAudioHeader(datagram);
  const start = Number(timestamp);
  if (key === peer.rung.key) peer.rungFrom ??= start;
  const from = peer.rungFrom;
  if (from === null) return;
  const isOver =
    key === peer.rung.key ? start >= from + 2 * OVERLAP_FRAMES : start + frames >= from + OVERLAP_FRAMES;
  if (isOver) peer.leaving = null;
}

/** What is under way on it comes to nobody any more. */
function close({ channel }: Lane): void {
  channel.onmessage = null;
  channel.close();
}

function isOpen(lane: Lane): boolean {
  return lane.sends && lane.channel.readyState === "open";
}

function openLanes(peer: Peer): number {
  return peer.lanes.filter(isOpen).length;
}

/** The lane other than the first with the least backlog, if there is one on which nothing has waited. */
function laneForCopy(peer: Peer, first: Lane): Lane | null {
  let best: Lane | null = null;
  for (const lane of peer.lanes) {
    if (lane === first || !isOpen(lane) || lane.waitMs > 0) continue;
    if (best === null || lane.channel.bufferedAmount < best.channel.bufferedAmount) best = lane;
  }
  return best;
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
