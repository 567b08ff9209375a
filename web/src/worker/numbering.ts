import { readAudioHeader, writeSequence } from "../shared/wire";

/**
 * Sequence numbers of one way, without the gaps of what was not to come: a sender counts what it sends to the relay, whoever takes it there,
 * and whether the relay passes it on. Such a gap is no loss.
 */
export class Numbering {
  #offset = 0;
  #newest: number | null = null;
  /** Before the last datagram. */
  #before: number | null = null;
  #isInterrupted = false;

  /** What came since the last datagram, if anything did, was not to be heard. */
  interrupt(): void {
    this.#isInterrupted = true;
  }

  /** What was numbered last is not to be heard either. */
  withdraw(): void {
    this.#newest = this.#before;
    this.interrupt();
  }

  /** Rewrites the number of a datagram of audio, so that after an interruption it goes on by one. */
  apply(bytes: Uint8Array): void {
    const { sequence } = readAudioHeader(bytes);
    if (this.#isInterrupted && this.#newest !== null) this.#offset = (this.#newest + 1 - sequence) >>> 0;
    this.#isInterrupted = false;
    const number = (sequence + this.#offset) >>> 0;
    this.#before = this.#newest;
    // RFC 1982: newer, if the difference is positive in 32 bits.
    if (this.#newest === null || (number - this.#newest) >> 0 > 0) this.#newest = number;
    writeSequence(bytes, number);
  }
}
