/** The formats that a stream can be sent in, from the chosen one down. */

import { MAX_OPUS_CHANNELS, OPUS_FRAMES, OPUS_RATE_HZ, type OpusFrames } from "./wire";

/** What a stream is written in: signed integers of 16 or 24 bits, floats of 32, or Opus. */
export type Format = "s16" | "s24" | "f32" | "opus";

export const OPUS_KBPS = [64, 96, 128, 256] as const;
export type OpusKbps = (typeof OPUS_KBPS)[number];

/** What the musician chose to send, and what may be done about a path that cannot carry it. */
export interface SendConfig {
  rateHz: number;
  channels: number;
  packetFrames: number;
  bits: 16 | 24 | 32 | "opus";
  opusKbps: OpusKbps;
  /** Whether datagrams carry copies of what was sent before, or of Opus are sent twice: where it helps, always, or never. */
  copies: "auto" | "on" | "off";
  /** Whether the format may step down for a listener whose path cannot carry it. */
  adapts: boolean;
  /** Whether lanes may be added. */
  addsLanes: boolean;
}

/** One format of one stream. Two with the same `key` are the same datagrams. */
export type Rung =
  | { key: "main" | "s16"; format: "s16" | "s24" | "f32"; opusBps: null }
  | { key: string; format: "opus"; opusBps: number; frames: OpusFrames };
export type OpusRung = Extract<Rung, { format: "opus" }>;

/** Why Opus cannot be sent so, in plain words; null if it can. */
export function opusRefusal({ rateHz, channels }: Pick<SendConfig, "rateHz" | "channels">): string | null {
  if (rateHz !== OPUS_RATE_HZ)
    return `Opus is sent at 48 kHz only, and this room is at ${rateHz / 1000} kHz.`;
  if (channels > MAX_OPUS_CHANNELS) return `Opus is sent in one or two channels only, not ${channels}.`;
  return null;
}

/** Bits of the main rendition's samples: with Opus chosen it only keeps time. */
export function mainBits({ bits }: SendConfig): 16 | 24 | 32 {
  return bits === "opus" ? 16 : bits;
}

/** The chosen format first, then each cheaper than the one before. Where Opus is chosen and cannot be, 16 bits. */
export function rungsFor(config: SendConfig, hasOpus: boolean): [Rung, ...Rung[]] {
  const { bits, opusKbps, packetFrames, adapts } = config;
  const canOpus = hasOpus && opusRefusal(config) === null;
  const opus = (kbps: number, frames: OpusFrames): OpusRung => ({
    key: `opus-${kbps}-${frames}`,
    format: "opus",
    opusBps: kbps * 1000,
    frames,
  });
  // Headers cost as much as the sound: a slow path gets longer packets, too.
  const down: OpusRung[] = canOpus ? [opus(128, 240), opus(64, 480)] : [];
  if (bits === "opus" && canOpus) {
    const top = opus(opusKbps, nearestOpusFrames(packetFrames));
    return adapts ? [top, ...down.filter(({ opusBps }) => opusBps < top.opusBps)] : [top];
  }
  const format = { 16: "s16", 24: "s24", 32: "f32" } as const;
  const main: Rung = { key: "main", format: format[mainBits(config)], opusBps: null };
  if (!adapts) return [main];
  return main.format === "s16"
    ? [main, ...down]
    : [main, { key: "s16", format: "s16", opusBps: null }, ...down];
}

/** Headers of each packet, of all protocols together. */
const HEADER_BITS = 8 * 110;
/** In the order of what they take of a path. */
const SAMPLES = ["s16", "s24", "f32"];

/** What a format takes of a path, bit/s with headers; of samples the order alone counts. */
function costOf(rung: Rung): number {
  if (rung.format !== "opus") return 1e9 + SAMPLES.indexOf(rung.format);
  return rung.opusBps + (HEADER_BITS * OPUS_RATE_HZ) / rung.frames;
}

/** Which of other formats to send where `before` was, which was not the chosen one: the first that takes no more of the path, or the last. */
export function stepFrom(before: Rung, rungs: readonly Rung[]): number {
  const step = rungs.findIndex((rung) => costOf(rung) <= costOf(before));
  return step < 0 ? rungs.length - 1 : step;
}

/** Of a packet that collects `frames`. */
export function nearestOpusFrames(frames: number): OpusFrames {
  return OPUS_FRAMES.reduce((best, next) =>
    Math.abs(next - frames) < Math.abs(best - frames) ? next : best,
  );
}
