import { type Rung, stepFrom } from "../shared/rungs";
import { readAudioHeader } from "../shared/wire";
import { WARM_UP_FRAMES } from "./opus";

/**
 * When the format changes, the old one is sent for so many more frames of media time: a codec takes its time to be set up, and a format
 * that turns out to be too much is taken back before the old one has ended.
 */
const OVERLAP_FRAMES = 48_000;

/** What there always is: with Opus chosen it keeps time. */
export const SAMPLES: Rung = { key: "main", format: "s16", opusBps: null };

/** What may be sent, the chosen format first. */
export type Rungs = readonly [Rung, ...Rung[]];

/** What one listener is sent: one rendition, and where that has changed for a while also the one before. */
export class Renditions {
  #rungs: Rungs;
  rung: Rung;
  /** The one before, until `rung` has taken over. */
  leaving: Rung | null = null;
  /** Media time where `rung` began; null until it did. */
  #from: number | null = null;
  switches = 0;

  constructor(rungs: Rungs) {
    this.#rungs = rungs;
    this.rung = rungs[0];
  }

  /** Down from the chosen one. */
  get step(): number {
    return Math.max(0, this.#placeOf(this.rung.key));
  }

  #placeOf(key: string): number {
    return this.#rungs.findIndex((rung) => rung.key === key);
  }

  includes(key: string): boolean {
    return key === this.rung.key || key === this.leaving?.key;
  }

  /** Other ones from now on. A listener who had less than what was chosen is sent no more than that. */
  setRungs(rungs: Rungs): void {
    const step = this.step > 0 ? stepFrom(this.rung, rungs) : 0;
    this.#rungs = rungs;
    this.change(step);
  }

  /** So many steps down from now on. Where a codec is involved, what was sent goes on until that has taken over. */
  change(step: number): void {
    const { rung, leaving } = this;
    const to = this.#rungs[Math.min(step, this.#rungs.length - 1)];
    this.rung = to;
    if (rung.key === to.key) return;
    this.switches++;
    // What has not begun is not missed: what was sent before it goes on.
    const from = leaving !== null && this.#from === null ? leaving : rung;
    // Renditions in samples are of the same packets: one ends where the other begins. What has not ended yet goes on.
    const isCodecInvolved = from.format === "opus" || to.format === "opus";
    const isSharp = !isCodecInvolved || from.key === to.key || leaving?.key === to.key;
    this.leaving = isSharp ? null : from;
    this.#from = null;
  }

  /** The encoder of `key` has nothing yet: until it has, who is sent nothing else is sent samples. */
  bridge(key: string): void {
    if (this.rung.format !== "opus" || !this.includes(key)) return;
    if (this.leaving === null || this.leaving.key === key) this.leaving = SAMPLES;
    this.#from = null;
  }

  /** Whether a datagram is to be sent, of the rendition `key`; notes how far that is. `isCrowded`: the lanes do not carry all. */
  admits(key: string, datagram: Uint8Array, isCrowded: boolean): boolean {
    if (this.leaving === null) return key === this.rung.key;
    if (!this.includes(key)) return false;
    const isSent = this.#isHandedOver
      ? this.#isItsTurn(key, datagram)
      : !(isCrowded && this.#isOutdone(key, this.leaving.key));
    this.#takeOver(key, datagram);
    return isSent;
  }

  /** From one format to another in Opus packets of one duration, which go through one decoder: each frame is sent in one of them only. */
  get #isHandedOver(): boolean {
    const { rung, leaving } = this;
    return rung.format === "opus" && leaving?.format === "opus" && rung.frames === leaving.frames;
  }

  #isItsTurn(key: string, datagram: Uint8Array): boolean {
    const hasBegun = this.#from !== null && Number(readAudioHeader(datagram).timestamp) >= this.#from;
    return hasBegun === (key === this.rung.key);
  }

  /** Whether it is a format that was too much, while the cheaper one is sent already. */
  #isOutdone(key: string, leaving: string): boolean {
    return key === leaving && this.#from !== null && this.#placeOf(key) < this.#placeOf(this.rung.key);
  }

  /**
   * A datagram of one of two formats came to be sent: the old one ends once it is far enough into the new one, or if it seems to have ended by
   * itself, as with an encoder that failed.
   */
  #takeOver(key: string, datagram: Uint8Array): void {
    const { timestamp, frames } = readAudioHeader(datagram);
    const start = Number(timestamp);
    const isNew = key === this.rung.key;
    if (isNew) this.#from ??= start + (this.#isHandedOver ? WARM_UP_FRAMES : 0);
    const from = this.#from;
    if (from === null) return;
    const isOver = isNew ? start >= from + 2 * OVERLAP_FRAMES : start + frames >= from + OVERLAP_FRAMES;
    if (isOver) this.leaving = null;
  }
}
