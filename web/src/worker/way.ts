import type { WayStats } from "../shared/stats";
import { isOpus, OPUS_FRAMES, readAudioHeader } from "../shared/wire";
import type { Delivery } from "./delivery";
import { Numbering } from "./numbering";
import { OpusReceiver } from "./opus";

/** A way by which nothing has come for so long, not even the answer to a probe, is closed. */
export const SILENT_MS = 3_000;
/** One by which no sound has come for so long is not heard. */
const AUDIBLE_MS = 1_000;
/** A decoder that has had nothing to do for so long is closed: the peer sends another format. */
const IDLE_MS = 10_000;

/** What comes of a peer by one of the two ways. */
export class Way {
  readonly #stream: number;
  readonly #delivery: Delivery;
  #rttMs: number | null = null;
  /** When a probe's answer last came, ms of `epochMs`. */
  #answeredAtMs = Number.NEGATIVE_INFINITY;
  /** When anything of its own last came, and when audio did, ms of `epochMs`. */
  heardAtMs = Number.NEGATIVE_INFINITY;
  #audioAtMs = Number.NEGATIVE_INFINITY;
  /** Datagrams of audio, and those of them whose frames had not come by the other way before. */
  #received = 0;
  #first = 0;
  /** Media time of the newest datagram. */
  #newest = 0n;
  readonly numbering = new Numbering();
  /** By the packets' duration: where the peer changes that, both come for a moment. Each way's packets are counted by the engine: so each is decoded. */
  readonly #opus = new Map<number, { receiver: OpusReceiver; usedAtMs: number }>();
  /** Opus packets that came twice, of decoders that are closed. */
  #duplicates = 0;
  /** Share of its datagrams by this way that never came, of the last seconds, by main's word. */
  lostShare: number | null = null;

  constructor(stream: number, delivery: Delivery) {
    this.#stream = stream;
    this.#delivery = delivery;
  }

  isSilent(nowMs: number): boolean {
    return nowMs - this.heardAtMs >= SILENT_MS;
  }

  isHeard(nowMs: number): boolean {
    return nowMs - this.#audioAtMs <= AUDIBLE_MS;
  }

  answered(rttMs: number, nowMs: number): void {
    this.#rttMs = rttMs;
    this.#answeredAtMs = nowMs;
  }

  hear(nowMs: number): void {
    this.#audioAtMs = nowMs;
    this.#received++;
  }

  /** Whether frames from this media time on had not come the other way before; notes that they have come this way. */
  isFirst(timestamp: bigint, other: Way, nowMs: number): boolean {
    this.#newest = timestamp;
    const isFirst = !other.isHeard(nowMs) || timestamp > other.#newest;
    if (isFirst) this.#first++;
    return isFirst;
  }

  play(audio: Uint8Array<ArrayBuffer>): void {
    if (this.#opus.size > 0) this.#closeIdle();
    if (isOpus(audio)) this.#receiverOf(readAudioHeader(audio).frames).push(audio);
    else this.#give(audio, false);
  }

  #receiverOf(frames: number): OpusReceiver {
    let opened = this.#opus.get(frames);
    if (opened === undefined) {
      const longer = OPUS_FRAMES.filter((other) => other > frames);
      const receiver = new OpusReceiver(
        (record) => this.#give(record, true),
        // As it came: the engine refuses it, and counts.
        (refused) => this.#give(refused, false),
        (time) => longer.some((other) => this.#opus.get(other)?.receiver.isNear(time)),
      );
      opened = { receiver, usedAtMs: this.#audioAtMs };
      this.#opus.set(frames, opened);
    }
    opened.usedAtMs = this.#audioAtMs;
    return opened.receiver;
  }

  #closeIdle(): void {
    for (const [frames, { receiver, usedAtMs }] of this.#opus) {
      if (this.#audioAtMs - usedAtMs < IDLE_MS) continue;
      this.#duplicates += receiver.duplicates;
      receiver.close();
      this.#opus.delete(frames);
    }
  }

  /**
   * Numbers audio as it is given to the engine, not before: what finds no room there, because the audio thread stood still for long, is no
   * loss of the way, which the other end would have to do something about, and then a decoder holds some of what follows.
   */
  #give(audio: Uint8Array, isDecoded: boolean): void {
    this.numbering.apply(audio);
    const hasRoom = isDecoded
      ? this.#delivery.giveDecoded(this.#stream, audio)
      : this.#delivery.give(this.#stream, audio);
    if (!hasRoom) this.numbering.withdraw();
  }

  /** Opus packets that came twice by it. */
  get duplicates(): number {
    return Array.from(this.#opus.values()).reduce(
      (sum, { receiver }) => sum + receiver.duplicates,
      this.#duplicates,
    );
  }

  close(): void {
    for (const { receiver } of this.#opus.values()) receiver.close();
  }

  stats(nowMs: number): WayStats {
    return {
      rttMs: nowMs - this.#answeredAtMs < SILENT_MS ? this.#rttMs : null,
      isHeard: this.isHeard(nowMs),
      lostShare: this.lostShare,
      receivedPackets: this.#received,
      firstPackets: this.#first,
    };
  }
}
