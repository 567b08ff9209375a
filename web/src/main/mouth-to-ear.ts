/** The delay from a peer's microphone to our ear, from the clocks of both ends: docs/adr/0014. */

import type { Estimate } from "../shared/clock";
import type { DeviceDelay, FarEnd } from "../shared/messages";
import type { DelayStage, MouthToEar } from "../shared/stats";

/** Our playing: lines of the audio context, whose frame *n* is rendered, and leaves, n / rate after its frame 0. */
export interface OutputClock {
  /** When frame 0 left, by the browser's word. */
  playedLine: Estimate;
  /** When frame 0 was rendered. */
  renderedLineMs: number;
  /** What the output takes beyond that word; null: unknown. */
  device: DeviceDelay | null;
}

/**
 * What a stream's frames take from the peer's microphone to our ear. The stages add up; the whole is null where one is unknown.
 *
 * `playhead`: media time that plays with the context's frame `nextFrame`.
 */
export function mouthToEar(
  far: FarEnd,
  output: OutputClock,
  { playhead, nextFrame, rateHz }: { playhead: number; nextFrame: number; rateHz: number },
): MouthToEar {
  const atMs = (lineMs: number, frame: number) => lineMs + (frame * 1000) / rateHz;
  const capturedMs = atMs(far.lineMs, playhead);
  const renderedMs = atMs(output.renderedLineMs, nextFrame);
  const playedMs = atMs(output.playedLine.ms, nextFrame);
  const arrivedMs = capturedMs + far.captureMs + far.packetMs + far.networkMs;
  const stages: DelayStage[] = [
    deviceStage("input", far.input),
    { name: "capture", ms: far.captureMs, source: "measured" },
    { name: "packet", ms: far.packetMs, source: "measured" },
    { name: far.isMixed ? "server" : "network", ms: far.networkMs, source: "measured" },
    { name: "buffer", ms: renderedMs - arrivedMs, source: "measured" },
    { name: "playout", ms: playedMs - renderedMs, source: "reported" },
    deviceStage("output", output.device),
  ];
  const known = stages.reduce((sum, { ms }) => sum + (ms ?? 0), 0);
  const devicesErrorMs = (far.input?.errorMs ?? 0) + (output.device?.errorMs ?? 0);
  return {
    ms: stages.every(({ ms }) => ms !== null) ? known : null,
    knownMs: known,
    errorMs: far.lineErrorMs + output.playedLine.errorMs + devicesErrorMs,
    offsetErrorMs: far.offsetErrorMs,
    devicesErrorMs,
    stages,
  };
}

function deviceStage(name: "input" | "output", device: DeviceDelay | null): DelayStage {
  if (device === null) return { name, ms: null, source: "unknown" };
  return { name, ms: device.ms, source: device.isCalibrated ? "calibrated" : "reported" };
}
