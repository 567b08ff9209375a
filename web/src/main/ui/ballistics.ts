/** How a meter moves: it jumps up, falls slowly, holds its peak and remembers a clip. */

import { gainToDb } from "./decibel";

export const METER_FLOOR_DB = -60;
/** Fall of a type I peak programme meter: 20 dB in 1.7 s (IEC 60268-10). */
const FALL_DB_PER_S = 20 / 1.7;
const HOLD_MS = 1_500;
const CLIP_HOLD_MS = 4_000;
/** 24-bit full scale is 0.99999988, 16-bit 0.99997: anything from here up has no room left. */
export const CLIP_LEVEL = 0.9999;

/** One channel. All in dBFS, never below the floor. */
export class Ballistics {
  levelDb = METER_FLOOR_DB;
  holdDb = METER_FLOOR_DB;
  clipping = false;
  #timeMs = 0;
  #heldSinceMs = 0;
  #clippedAtMs = Number.NEGATIVE_INFINITY;

  /** @param peak linear, 1 = full scale @returns whether anything a meter shows has changed */
  update(peak: number, timeMs: number): boolean {
    const { levelDb, holdDb, clipping } = this;
    const elapsedS = Math.max(0, timeMs - this.#timeMs) / 1000;
    this.#timeMs = timeMs;
    const db = Math.max(METER_FLOOR_DB, gainToDb(peak));
    this.levelDb = Math.max(db, METER_FLOOR_DB, this.levelDb - FALL_DB_PER_S * elapsedS);
    if (db >= this.holdDb) {
      this.holdDb = db;
      this.#heldSinceMs = timeMs;
    } else if (timeMs - this.#heldSinceMs > HOLD_MS) {
      this.holdDb = Math.max(this.levelDb, this.holdDb - FALL_DB_PER_S * elapsedS);
    }
    if (peak >= CLIP_LEVEL) this.#clippedAtMs = timeMs;
    this.clipping = timeMs - this.#clippedAtMs < CLIP_HOLD_MS;
    return levelDb !== this.levelDb || holdDb !== this.holdDb || clipping !== this.clipping;
  }
}

/** Where a level lies on the meter, 0 to 1. */
export function meterPosition(db: number): number {
  return Math.min(1, Math.max(0, 1 - db / METER_FLOOR_DB));
}

/** Quiet before anything was heard, at rest after. */
export type HeardState = "nothing" | "quiet" | "heard" | "resting" | "clipping";

/** Louder than the hiss of a room and a cheap microphone, softer than any playing. */
const HEARD_DB = -45;
const HEARD_HOLD_MS = 6_000;
const NOTHING_AFTER_MS = 2_000;
/** Not asked for so long, nobody listened: the tab was hidden. */
const AWAY_MS = 1_000;

/** Turns input peaks into words that do not flicker: heard is heard until six seconds of quiet. */
export class Hearing {
  #startMs = Number.NEGATIVE_INFINITY;
  #askedAtMs = Number.NEGATIVE_INFINITY;
  #signalAtMs = Number.NEGATIVE_INFINITY;
  #heardAtMs = Number.NEGATIVE_INFINITY;
  #clippedAtMs = Number.NEGATIVE_INFINITY;

  update(peak: number, timeMs: number): HeardState {
    // What came meanwhile is not known.
    if (timeMs - this.#askedAtMs > AWAY_MS) this.#startMs = timeMs;
    this.#askedAtMs = timeMs;
    if (peak > 0) this.#signalAtMs = timeMs;
    if (gainToDb(peak) > HEARD_DB) this.#heardAtMs = timeMs;
    if (peak >= CLIP_LEVEL) this.#clippedAtMs = timeMs;
    if (timeMs - this.#clippedAtMs < CLIP_HOLD_MS) return "clipping";
    if (timeMs - this.#heardAtMs < HEARD_HOLD_MS) return "heard";
    // A live microphone always hisses a little: exact zeros mean that none is connected, or a switch is off.
    const silentSinceMs = Math.max(this.#startMs, this.#signalAtMs);
    if (timeMs - silentSinceMs >= NOTHING_AFTER_MS) return "nothing";
    return this.#heardAtMs > Number.NEGATIVE_INFINITY ? "resting" : "quiet";
  }
}
