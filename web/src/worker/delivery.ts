import { Arrival, DECODED_TAG, type RecordSink } from "../shared/records";

/** Gives what comes to the audio thread. */
export class Delivery {
  readonly #sink: RecordSink;
  readonly #arrival = new Arrival();
  /** Datagrams that did not fit the ring. */
  overflows = 0;

  constructor(sink: RecordSink) {
    this.#sink = sink;
  }

  /** As it came. False if there is no room, and it is counted. */
  give(stream: number, datagram: Uint8Array): boolean {
    return this.#count(this.#sink.push2(stream, datagram, this.#arrival.set(Date.now())));
  }

  /** A decoded Opus packet. */
  giveDecoded(stream: number, record: Uint8Array): boolean {
    return this.#count(this.#sink.push(stream + DECODED_TAG, record));
  }

  #count(hasRoom: boolean): boolean {
    if (!hasRoom) this.overflows++;
    return hasRoom;
  }
}
