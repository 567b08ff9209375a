/** When blocks were captured and datagrams sent and received, for the lab: off unless asked for. */

import type { TraceRows } from "../shared/messages";
import { readAudioHeader, withoutCopy } from "../shared/wire";
import { epochMs } from "./clock";

/** Of each kind, at most: 60 s of 32 streams of 128-frame packets take 720,000. */
const MAX_ROWS = 1 << 20;

/** Records for a while, then hands over what it has. */
export class Trace {
  readonly #captured: number[] = [];
  readonly #sent: number[] = [];
  readonly #received: number[] = [];
  #dropped = 0;

  /** `done` gets the rows after `seconds`. */
  constructor(seconds: number, done: (rows: TraceRows) => void) {
    setTimeout(() => {
      done({
        captured: Float64Array.from(this.#captured),
        sent: Float64Array.from(this.#sent),
        received: Float64Array.from(this.#received),
        dropped: this.#dropped,
      });
    }, seconds * 1000);
  }

  captured(frames: number): void {
    this.#add(this.#captured, epochMs(), frames);
  }

  /** A datagram that goes to every peer. */
  sent(datagram: Uint8Array): void {
    const { sequence, timestamp } = readAudioHeader(datagram);
    this.#add(this.#sent, epochMs(), sequence, Number(timestamp));
  }

  /** A copy that it carries has a row of its own, of the packet before: if that has been lost, it is what came. */
  received(stream: number, datagram: Uint8Array<ArrayBuffer>): void {
    const { sequence, timestamp, frames } = readAudioHeader(datagram);
    const atMs = epochMs();
    this.#add(this.#received, atMs, sequence, Number(timestamp), stream, 0);
    if (withoutCopy(datagram).length < datagram.length)
      this.#add(this.#received, atMs, (sequence - 1) >>> 0, Number(timestamp) - frames, stream, 1);
  }

  #add(rows: number[], ...row: number[]): void {
    if (rows.length >= MAX_ROWS * row.length) this.#dropped++;
    else rows.push(...row);
  }
}
