/** What a run was made on, and how busy that was. */

import { readFileSync } from "node:fs";
import os from "node:os";
import { run } from "./processes.js";
import { root } from "./rig.js";

/** Shares of all processors' time. */
export interface Load {
  busyShare: number;
  /** Taken away by the host of a virtual machine. */
  stealShare: number;
}

interface Ticks {
  total: number;
  idle: number;
  steal: number;
}

/** Starts watching; the function it returns tells the load since. */
export function watchLoad(): () => Load {
  const before = ticks();
  return () => {
    const after = ticks();
    const total = Math.max(1, after.total - before.total);
    return {
      busyShare: 1 - (after.idle - before.idle) / total,
      stealShare: (after.steal - before.steal) / total,
    };
  };
}

/** Since boot, all processors. */
function ticks(): Ticks {
  const [line = ""] = readFileSync("/proc/stat", "utf8").split("\n");
  const numbers = line.trim().split(/\s+/).slice(1, 9).map(Number);
  return { total: numbers.reduce((a, b) => a + b, 0), idle: numbers[3]! + numbers[4]!, steal: numbers[7]! };
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
