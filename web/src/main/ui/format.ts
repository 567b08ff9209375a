/** Figures as text. What is not known is an en dash, never 0. */

import type { Format } from "../../shared/rungs";
import type { SentStats } from "../../shared/stats";

export const UNKNOWN = "–";
const MINUS = "\u2212";
export const THIN = "\u202f"; // narrow no-break space, between a figure and its unit

/** "−3.0 dB", "+6.0 dB", "0.0 dB", "−∞ dB". */
export function formatDb(db: number, unit = "dB"): string {
  if (Number.isNaN(db)) return UNKNOWN;
  if (db === Number.NEGATIVE_INFINITY) return `${MINUS}∞${THIN}${unit}`;
  const tenths = Math.round(db * 10) / 10;
  const sign = tenths < 0 ? MINUS : tenths > 0 ? "+" : "";
  return `${sign}${Math.abs(tenths).toFixed(1)}${THIN}${unit}`;
}

/** A level, which is never above full scale by much: no plus sign wanted. */
export function formatDbfs(db: number): string {
  return formatDb(db, "dBFS").replace("+", "");
}

/** For screen readers, which differ in what they make of typographic signs. */
export function spokenDb(db: number): string {
  if (db === Number.NEGATIVE_INFINITY) return "silent";
  const tenths = Math.round(db * 10) / 10;
  return `${(tenths === 0 ? 0 : tenths).toFixed(1)} dB`;
}

/** @param pan -1 left to 1 right */
export function formatPan(pan: number): string {
  const percent = Math.round(Math.abs(pan) * 100);
  if (percent === 0) return "centre";
  return `${percent} % ${pan < 0 ? "left" : "right"}`;
}

export function framesToMs(frames: number | null, sampleRateHz: number | null): number | null {
  if (frames === null || sampleRateHz === null || sampleRateHz <= 0) return null;
  return (frames / sampleRateHz) * 1000;
}

/** One decimal below 100 ms, none above. */
export function formatMs(ms: number | null): string {
  return ms === null ? UNKNOWN : `${msFigure(ms)}${THIN}ms`;
}

/** The same without its unit, for two figures that share one. */
export function msFigure(ms: number | null): string {
  if (ms === null || !Number.isFinite(ms)) return UNKNOWN;
  return Math.abs(ms) < 99.95 ? ms.toFixed(1) : ms.toFixed(0);
}

export function formatCount(count: number | null): string {
  return count === null ? UNKNOWN : Math.round(count).toLocaleString("en");
}

/** A share that is not nothing never reads "0 %". @param share 0 to 1 */
export function formatShare(share: number | null): string {
  if (share === null || !Number.isFinite(share)) return UNKNOWN;
  const percent = share * 100;
  if (percent <= 0) return `0${THIN}%`;
  if (percent < 0.1) return `<${THIN}0.1${THIN}%`;
  return `${percent < 99.95 ? percent.toFixed(1) : "100"}${THIN}%`;
}

export function formatRate(sampleRateHz: number | null): string {
  return sampleRateHz === null ? UNKNOWN : `${sampleRateHz / 1000}${THIN}kHz`;
}

/** How far apart two players on one stage would hear each other as late as this. Air carries sound 343 m in a second. */
export function metresOfAir(ms: number): number {
  return (ms / 1000) * 343;
}

/** "16 bit", "32 bit (float)", "Opus 128 kbit/s". */
export function formatName(format: Format | null, opusBps: number | null): string {
  switch (format) {
    case "s16":
      return "16 bit";
    case "s24":
      return "24 bit";
    case "f32":
      return "32 bit (float)";
    case "opus":
      return opusBps === null ? "Opus" : `Opus ${Math.round(opusBps / 1000)}${THIN}kbit/s`;
    case null:
      return UNKNOWN;
  }
}

/** Why a peer is sent what it is. */
export function sentWords(sent: SentStats | null): string {
  if (sent === null) return "";
  const format = sent.rung === 0 ? "as chosen" : "stepped down: the way there was too slow";
  return sent.copies ? `${format}; with copies` : format;
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${formatCount(count)} ${count === 1 ? one : many}`;
}
