/** Linear gain and level against decibels, and the fader's scale. */

/** The fader's lowest position means silence, not -60 dB. */
export const FADER_MIN_DB = -60;
export const FADER_MAX_DB = 12;
export const FADER_STEP_DB = 0.5;

/** @returns -Infinity for 0 and for anything that is no level. */
export function gainToDb(gain: number): number {
  return gain > 0 ? 20 * Math.log10(gain) : Number.NEGATIVE_INFINITY;
}

export function dbToGain(db: number): number {
  return 10 ** (db / 20);
}

/** Fader position in dB, within the fader's range and on its steps. */
export function gainToFader(gain: number): number {
  const steps = Math.round(gainToDb(gain) / FADER_STEP_DB) * FADER_STEP_DB;
  return Math.min(FADER_MAX_DB, Math.max(FADER_MIN_DB, steps));
}

export function faderToGain(faderDb: number): number {
  return faderDb <= FADER_MIN_DB ? 0 : dbToGain(Math.min(FADER_MAX_DB, faderDb));
}
