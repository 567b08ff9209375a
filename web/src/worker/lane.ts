import type { WorkerPeerStats } from "../shared/messages";
import { probeTimeNs } from "../shared/wire";
import { REPORT_INTERVAL_MS } from "./report";
import { SILENT_MS } from "./way";

/**
 * A lane whose oldest unsent datagram has waited for longer than this is no use: what would queue behind it is better dropped.
 * An age, not a size: Chromium captures 1,024 frames at a time, so a full burst may be in the queue of a lane in good health. And
 * not a short one: on a busy machine the browser's network thread stands still for tens of milliseconds, and then sends all.
 */
export const MAX_WAIT_MS = 100;
/** A wait that says a lane is held up: it is seen at two looks. */
const HELD_MS = 5;

/** As much of a data channel as a lane needs: a session with the relay has it, too. */
export interface LaneChannel {
  readonly readyState: RTCDataChannelState;
  readonly bufferedAmount: number;
  onmessage: ((event: { data: unknown }) => void) | null;
  onclose: (() => void) | null;
  /** *Errors* if it is not open, or its buffer is full. */
  send(bytes: Uint8Array<ArrayBuffer>): void;
  close(): void;
}

/** One association with a peer, or session with the relay: what has gone and come by it, and how long what is to go waits. */
export class Lane {
  readonly number: number;
  readonly epoch: number;
  /** False for the far end of the loop, which only receives. */
  readonly sends: boolean;
  readonly #channel: LaneChannel;
  /** Bytes ever queued. */
  #queuedBytes = 0;
  /** Of what was queued between two looks and is not all sent: when it was first seen, and `#queuedBytes` after it. Oldest first. */
  readonly #bursts: { atMs: number; endBytes: number }[] = [];
  /** How long the oldest unsent datagram has been seen waiting. */
  waitMs = 0;
  #sent = 0;
  received = 0;
  #rttMs: number | null = null;
  #leastRttMs = Number.POSITIVE_INFINITY;
  #probedAtMs = 0;
  /** When a probe's answer last came, ms of `performance.now()`. */
  answeredAtMs: number | null = null;

  constructor(number: number, epoch: number, sends: boolean, channel: LaneChannel) {
    this.number = number;
    this.epoch = epoch;
    this.sends = sends;
    this.#channel = channel;
  }

  get isOpen(): boolean {
    return this.sends && this.#channel.readyState === "open";
  }

  get backlogBytes(): number {
    return this.#channel.bufferedAmount;
  }

  /** Audio. False if the browser refuses: the channel is closing, or its buffer is full. */
  send(datagram: Uint8Array<ArrayBuffer>): boolean {
    const isQueued = this.#queue(datagram);
    if (isQueued) this.#sent++;
    return isQueued;
  }

  /** Probes, replies and reports are dropped on a lane that queues, like audio. */
  sendControl(datagram: Uint8Array<ArrayBuffer>): void {
    if (this.waitMs <= MAX_WAIT_MS) this.#queue(datagram);
  }

  #queue(datagram: Uint8Array<ArrayBuffer>): boolean {
    try {
      this.#channel.send(datagram);
    } catch {
      return false;
    }
    this.#queuedBytes += datagram.length;
    return true;
  }

  /** Finds out how long datagrams wait; whether they are found held up for the first time. */
  look(nowMs: number): boolean {
    const bursts = this.#bursts;
    const waitedMs = this.waitMs;
    const sentBytes = this.#queuedBytes - this.backlogBytes;
    while (bursts.length > 0 && bursts[0].endBytes <= sentBytes) bursts.shift();
    if (this.#queuedBytes > Math.max(sentBytes, bursts.at(-1)?.endBytes ?? 0))
      bursts.push({ atMs: nowMs, endBytes: this.#queuedBytes });
    this.waitMs = bursts.length > 0 ? nowMs - bursts[0].atMs : 0;
    return waitedMs < HELD_MS && this.waitMs >= HELD_MS;
  }

  /** Not probed yet: it has just opened. */
  get isNew(): boolean {
    return this.#probedAtMs === 0;
  }

  isDue(nowMs: number): boolean {
    return nowMs - this.#probedAtMs >= REPORT_INTERVAL_MS;
  }

  probe(probe: Uint8Array<ArrayBuffer>, nowMs: number): void {
    this.#probedAtMs = nowMs;
    this.sendControl(probe);
  }

  answered(rttMs: number): void {
    this.#rttMs = rttMs;
    this.#leastRttMs = Math.min(this.#leastRttMs, rttMs);
    this.answeredAtMs = performance.now();
  }

  /** By how much longer the last probe took than the quickest: there is a queue on the way. */
  get queueMs(): number {
    return this.#rttMs === null ? 0 : this.#rttMs - this.#leastRttMs;
  }

  /** What is under way on it comes to nobody any more. */
  close(): void {
    this.#channel.onmessage = null;
    this.#channel.close();
  }

  stats(receivedDatagrams: number): WorkerPeerStats["lanes"][number] {
    const { readyState } = this.#channel;
    const isAnswered = (this.answeredAtMs ?? 0) > performance.now() - SILENT_MS;
    return {
      lane: this.number,
      state: readyState === "closing" ? "closed" : readyState,
      sentDatagrams: this.#sent,
      receivedDatagrams,
      backlogBytes: this.backlogBytes,
      rttMs: isAnswered ? this.#rttMs : null,
    };
  }
}

/** How long ago the probe was sent to which this is the reply, by `epochMs`; null if that cannot be. */
export function roundTripMs(reply: Uint8Array, nowMs: number): number | null {
  const rttMs = nowMs - Number(probeTimeNs(reply)) / 1e6;
  return rttMs >= 0 && rttMs < 60_000 ? rttMs : null;
}
