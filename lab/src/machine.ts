/** What a run was made on, how busy that was, and whether it stood still. */

import { readFileSync } from "node:fs";
import os from "node:os";
import { areSessionsUngrouped, run } from "./processes.js";
import type { Queues } from "./queues.js";
import { root } from "./rig.js";
import type { Stalls, Standstill } from "./stalls.js";

export interface Load extends Standstill {
  /** Of all processors' time. */
  busyShare: number;
  /** See `Queues.between`. */
  queuedShare: number | null;
}

interface Ticks {
  total: number;
  idle: number;
}

/** Starts watching; the function it returns tells the load since. */
export function watchLoad(stalls: Stalls, queues: Queues): () => Load {
  const [from, before] = [Date.now(), ticks()];
  return () => {
    const [to, after] = [Date.now(), ticks()];
    return {
      ...stalls.between(from, to),
      queuedShare: queues.between(from, to),
      busyShare: 1 - (after.idle - before.idle) / Math.max(1, after.total - before.total),
    };
  };
}

/** Since boot, all processors. */
function ticks(): Ticks {
  const [line = ""] = readFileSync("/proc/stat", "utf8").split("\n");
  const numbers = line.trim().split(/\s+/).slice(1, 9).map(Number);
  return { total: numbers.reduce((a, b) => a + b, 0), idle: numbers[3]! + numbers[4]! };
}

/** `ranks`: what `Rig.watchRanks` says. */
export function describeMachine(ranks: { given: number; refused: number }): Record<string, string> {
  return {
    processor: `${os.cpus().length} × ${os.cpus()[0]?.model.trim() ?? "unknown"}`,
    memory: `${Math.round(os.totalmem() / 2 ** 30)} GiB`,
    kernel: `${os.type()} ${os.release()}`,
    scheduling: schedulingWords(areSessionsUngrouped(), ranks),
  };
}

/** Figures with and without what the lab does about the processors are not comparable. */
export function schedulingWords(
  isUngrouped: boolean | null,
  { given, refused }: { given: number; refused: number },
): string {
  const grouping =
    isUngrouped === null
      ? "unknown whether the kernel groups threads by session"
      : `the kernel ${isUngrouped ? "does not group" : "groups"} threads by session`;
  const ranks = refused > 0 ? `, refused to ${refused}` : "";
  return `${grouping}; real-time priority given to ${given} threads that reach the sound server${ranks}`;
}

const dirty = "-dirty";

/** Of the checkout at `folder`, and whether anything in it differs from that. Its runs do not count: those before this one, and their index, are there. */
export async function commit(folder = root): Promise<string> {
  const git = (...args: string[]) => run(["git", "-C", folder, ...args], process.env);
  try {
    const name = (await git("describe", "--always")).trim();
    const changed = await git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!results");
    return changed === "" ? name : `${name}${dirty}`;
  } catch {
    return "unknown";
  }
}

/** Against a run of that commit, one clause each. */
export function commitDoubts(name: string): string[] {
  return name.endsWith(dirty) ? ["the checkout had changes that are in no commit"] : [];
}

/** Last line of a command's output; "unknown" if it fails. */
export async function lastLine(command: string[], env = process.env): Promise<string> {
  return run(command, env).then(
    (text) => text.trim().split("\n").at(-1)!.trim(),
    () => "unknown",
  );
}
