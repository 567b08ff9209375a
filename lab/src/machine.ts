/** What a run was made on, how busy that was, and whether it stood still. */

import { readFileSync } from "node:fs";
import os from "node:os";
import { run } from "./processes.js";
import { root } from "./rig.js";
import type { Stalls } from "./stalls.js";

export interface Load {
  /** Of all processors' time. */
  busyShare: number;
  /** The longest time for which a processor stood still, whatever was to run on it. */
  longestStallMs: number;
  /** Of all processors' time, what was missing so. */
  missingShare: number;
}

interface Ticks {
  total: number;
  idle: number;
}

/** Starts watching; the function it returns tells the load since. */
export function watchLoad(stalls: Stalls): () => Load {
  const [from, before] = [Date.now(), ticks()];
  return () => {
    const after = ticks();
    const { longestMs, missingShare } = stalls.between(from, Date.now());
    return {
      busyShare: 1 - (after.idle - before.idle) / Math.max(1, after.total - before.total),
      longestStallMs: longestMs,
      missingShare,
    };
  };
}

/** Since boot, all processors. */
function ticks(): Ticks {
  const [line = ""] = readFileSync("/proc/stat", "utf8").split("\n");
  const numbers = line.trim().split(/\s+/).slice(1, 9).map(Number);
  return { total: numbers.reduce((a, b) => a + b, 0), idle: numbers[3]! + numbers[4]! };
}

export function describeMachine(): Record<string, string> {
  return {
    processor: `${os.cpus().length} × ${os.cpus()[0]?.model.trim() ?? "unknown"}`,
    memory: `${Math.round(os.totalmem() / 2 ** 30)} GiB`,
    kernel: `${os.type()} ${os.release()}`,
  };
}

export async function commit(): Promise<string> {
  return lastLine(["git", "-C", root, "describe", "--always", "--dirty"]);
}

/** Last line of a command's output; "unknown" if it fails. */
export async function lastLine(command: string[], env = process.env): Promise<string> {
  return run(command, env).then(
    (text) => text.trim().split("\n").at(-1)!.trim(),
    () => "unknown",
  );
}
