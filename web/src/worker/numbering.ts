import { readAudioHeader, writeSequence } from "../shared/wire";

/** What is older than the newest by more was not overtaken: for the engine it is too old. Its number may also have begun anew, or gone round. */
const WINDOW = 1_024;

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
  /** The first number after the last interruption, while what it overtook may still come. */
  #first: number | null = null;

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
    if (this.#isInterrupted && this.#newest !== null) {
      this.#first = (this.#newest + 1) >>> 0;
      this.#offset = (this.#first - sequence) >>> 0;
    }
    this.#isInterrupted = false;
    let number = (sequence + this.#offset) >>> 0;
    // What the first one overtook finds no number left before it: it takes the next, and all that follow move up.
    if (this.#first !== null && this.#newest !== null && (number - this.#first) >> 0 < 0) {
      this.#offset = (this.#offset + 1) >>> 0;
      number = (this.#newest + 1) >>> 0;
    }
    this.#before = this.#newest;
    // RFC 1982: newer, if the difference is positive in 32 bits.
    if (this.#newest === null || (number - this.#newest) >> 0 > 0) this.#newest = number;
    if (this.#first !== null && (this.#newest - this.#first) >> 0 > WINDOW) this.#first = null;
    writeSequence(bytes, number);
  }
}
