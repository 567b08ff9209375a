/** The measured delay and its stages, in words. */

import type { DelayStage, MouthToEar } from "../../shared/stats";
import { formatMs, metresOfAir, THIN } from "./format";

/** Clocks this far off say nothing yet: they are still being compared, or a machine stands still. */
const SETTLED_ERROR_MS = 10;

const stageLabels: Record<DelayStage["name"], string> = {
  input: "Microphone and driver",
  capture: "Captured block",
  packet: "Packet",
  network: "Network",
  server: "Network and server",
  buffer: "Buffer",
  playout: "Browser's output",
  output: "Loudspeaker and driver",
};

const sourceWords: Record<DelayStage["source"], string> = {
  measured: "measured",
  // Together with the same machine's other device: `split` in calibration.ts.
  calibrated: "measured by loop-back, its share assumed",
  reported: "the browser's own word",
  unknown: "nobody knows",
};

export interface Bar {
  label: string;
  value: string;
  note: string;
  source: DelayStage["source"];
  /** Where the stage begins and how long it is, in percent of the whole. */
  fromPercent: number;
  widthPercent: number;
}

/** Null while it is too uncertain to be shown. */
export function settled(delay: MouthToEar | null): MouthToEar | null {
  if (delay === null || delay.knownMs <= 0) return null;
  return delay.errorMs - delay.devicesErrorMs <= SETTLED_ERROR_MS ? delay : null;
}

/** "14.2 ms", or "> 14.2 ms" where a stage is unknown. */
export function delayFigure(delay: MouthToEar): string {
  return delay.ms === null ? `> ${formatMs(delay.knownMs)}` : formatMs(delay.ms);
}

/** How good the figure is: "± 0.6 ms, mouth to ear". */
export function delayNote(delay: MouthToEar): string {
  return `±${THIN}${formatMs(delay.errorMs)}, mouth to ear`;
}

/** What of the error loop-backs leave open; null where there was none. */
export function loopBackNote({ devicesErrorMs }: MouthToEar): string | null {
  return devicesErrorMs > 0
    ? `±${THIN}${formatMs(devicesErrorMs)} is what loop-backs leave open: how exactly they measure and, unless a browser speaks of the loudspeaker only, how much is loudspeaker and how much microphone.`
    : null;
}

/**
 * How far away one who is heard so late would stand: by the measured delay, else by an estimate that leaves both sound cards out; null
 * where there is neither. A stage that is unknown may be of either sound card, or of both.
 */
export function distanceWords(
  from: "them" | "yourself",
  delay: MouthToEar | null,
  estimateMs: number | null,
): string | null {
  const ms = delay?.knownMs ?? estimateMs;
  if (ms === null) return null;
  const distance = `${Math.max(1, Math.round(metresOfAir(ms)))}${THIN}m`;
  if (delay === null) return `Like hearing ${from} from ${distance} away, not counting both sound cards.`;
  return delay.ms === null
    ? `Like hearing ${from} from at least ${distance} away, not counting what a sound card adds.`
    : `Like hearing ${from} from ${distance} away.`;
}

/**
 * The stages as a waterfall. A loop-back may find that the browser promised too much: a bar then runs backwards. Of a device that has no
 * word of its own beyond the browser's timestamps there is nothing to show.
 */
export function waterfall(delay: MouthToEar): Bar[] {
  const stages = delay.stages.filter(({ ms, source }) => source !== "reported" || ms !== 0);
  let atMs = 0;
  const ends = stages.map(({ ms }) => {
    const fromMs = atMs;
    atMs += ms ?? 0;
    return [Math.min(fromMs, atMs), Math.max(fromMs, atMs)] as const;
  });
  const wholeMs = Math.max(...ends.map(([, to]) => to), Number.MIN_VALUE);
  const percent = (ms: number) => (Math.min(wholeMs, Math.max(0, ms)) / wholeMs) * 100;
  return stages.map(({ name, ms, source }, index) => {
    const [fromMs, toMs] = ends[index]!;
    return {
      label: stageLabels[name],
      value: formatMs(ms),
      note: sourceWords[source],
      source,
      fromPercent: percent(fromMs),
      widthPercent: percent(toMs) - percent(fromMs),
    };
  });
}
