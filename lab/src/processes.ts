/** Child processes and temporary folders that never outlive the lab, however it ends. */

import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import {
  closeSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";

const children = new Set<ChildProcess>();

const grouping = "/proc/sys/kernel/sched_autogroup_enabled";
/** In the folder of a process that has ended the grouping: what it was before. */
const groupingFile = "sched_autogroup_enabled";
let groupingBefore: string | undefined;

/** Everything temporary of this process, browser profiles included, is in here. */
const temporary = path.join(tmpdir(), `antiphon-lab-${process.pid}`);
removeLeftovers();
mkdirSync(temporary, { recursive: true });
process.env.TMPDIR = temporary;

/** Kills what is left, without waiting. Runs on every way out but SIGKILL, where `dieWithParent` takes over. */
function cleanUp(): void {
  // Browsers, too, which their drivers started: while one lives, it writes to its profile.
  for (const id of offspring()) {
    try {
      process.kill(id, "SIGKILL");
    } catch {
      // It has ended meanwhile.
    }
  }
  if (groupingBefore !== undefined && groupingOfOthers() === undefined)
    writeFileSync(grouping, groupingBefore);
  rmSync(temporary, { recursive: true, force: true, maxRetries: 5, retryDelay: 50 });
}

/** Every process that descends from this one. */
export function offspring(): number[] {
  const parents = new Map<number, number>();
  for (const name of readdirSync("/proc").filter((entry) => /^\d+$/.test(entry))) {
    try {
      const stat = readFileSync(`/proc/${name}/stat`, "utf8");
      parents.set(Number(name), Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[1]));
    } catch {
      // It has ended meanwhile.
    }
  }
  const isOurs = (id: number): boolean => {
    const parent = parents.get(id);
    return parent !== undefined && (parent === process.pid || isOurs(parent));
  };
  return [...parents.keys()].filter(isOurs);
}

/** The folders in `/proc` of all threads of these names in processes that descend from this one. */
export function threadsNamed(names: readonly string[]): string[] {
  return offspring().flatMap((owner) => {
    const tasks = `/proc/${owner}/task`;
    try {
      return readdirSync(tasks)
        .map((id) => `${tasks}/${id}`)
        .filter((thread) => names.includes(readFileSync(`${thread}/comm`, "utf8").trim()));
    } catch {
      // It has ended meanwhile.
      return [];
    }
  });
}

/** Real-time priority of a thread, by its folder in `/proc`; 0 of one that has none or has ended. */
export function realTimePriority(thread: string): number {
  let stat: string;
  try {
    stat = readFileSync(`${thread}/stat`, "utf8");
  } catch {
    return 0;
  }
  // The name, in brackets, may hold anything. `rt_priority` is the 40th field (man 5 proc), the 38th after it.
  return Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[37]);
}

/** The folders of other lab processes, and whether these live. */
function foldersOfOthers(): { folder: string; isAlive: boolean }[] {
  const parent = path.dirname(temporary);
  return readdirSync(parent).flatMap((name) => {
    const pid = /^antiphon-lab-(\d+)$/.exec(name)?.[1];
    const folder = path.join(parent, name);
    const isOurs =
      pid && folder !== temporary && statSync(folder, { throwIfNoEntry: false })?.uid === process.getuid?.();
    return isOurs ? [{ folder, isAlive: existsSync(`/proc/${pid}`) }] : [];
  });
}

/** What the grouping was before the first of the other lab processes that live ended it; undefined if none did. */
function groupingOfOthers(): string | undefined {
  return foldersOfOthers()
    .filter(({ isAlive }) => isAlive)
    .map(({ folder }) => savedGrouping(folder))
    .find((saved) => saved !== undefined);
}

function savedGrouping(folder: string): string | undefined {
  try {
    return readFileSync(path.join(folder, groupingFile), "utf8");
  } catch {
    // It left the grouping alone, or has tidied up meanwhile.
    return undefined;
  }
}

/** Of lab processes that were killed too hard to tidy up. */
function removeLeftovers(): void {
  for (const { folder, isAlive } of foldersOfOthers()) {
    if (isAlive) continue;
    const saved = savedGrouping(folder);
    if (saved !== undefined && groupingOfOthers() === undefined) writeFileSync(grouping, saved);
    rmSync(folder, { recursive: true, force: true });
  }
}

process.on("exit", cleanUp);
for (const [signal, number] of [
  ["SIGHUP", 1],
  ["SIGINT", 2],
  ["SIGTERM", 15],
] as const) {
  process.on(signal, () => process.exit(128 + number));
}

/**
 * Has the kernel, until this process and others of its kind end, rank threads by their own priorities, not by what others of their session do on the same
 * processor. So grouped, a browser's threads that carry sound, all of one rank, waited for up to 107 ms, two browsers sharing two
 * processors. Root only: for others nothing happens.
 */
export function ungroupSessions(): void {
  if (groupingBefore !== undefined) return;
  try {
    const before = groupingOfOthers() ?? readFileSync(grouping, "utf8");
    // First, for who is killed between the two.
    writeFileSync(path.join(temporary, groupingFile), before);
    writeFileSync(grouping, "0");
    groupingBefore = before;
  } catch {
    // No such grouping here, or not ours to end.
    rmSync(path.join(temporary, groupingFile), { force: true });
  }
}

/** Whether the kernel ranks threads by their own priorities alone; null if it does not say. */
export function areSessionsUngrouped(): boolean | null {
  try {
    return readFileSync(grouping, "utf8").trim() === "0";
  } catch {
    return null;
  }
}

/** Prefix of a command: the kernel kills it when the process that started it dies. */
export const dieWithParent = ["setpriv", "--pdeathsig", "KILL"] as const;

/** Debian package of each program that the lab starts. */
const packages: Record<string, string> = {
  setpriv: "util-linux",
  "dbus-daemon": "dbus-daemon",
  pipewire: "pipewire",
  wireplumber: "wireplumber",
  "pipewire-pulse": "pipewire-pulse",
  "pw-jack": "pipewire-jack",
  "pw-link": "pipewire-bin",
  "pw-metadata": "pipewire-bin",
  taskset: "util-linux",
  pactl: "pulseaudio-utils",
  chromium: "chromium",
  "firefox-esr": "firefox-esr",
  ip: "iproute2",
  nsenter: "util-linux",
  socat: "socat",
  jacktrip: "jacktrip",
  Jamulus: "jamulus",
};

/** Throws one sentence naming every missing program and how to install them all. */
export function requirePrograms(...programs: string[]): void {
  const missing = programs.filter((program) => findProgram(program) === undefined);
  if (missing.length > 0) {
    const install = [...new Set(missing.map((program) => packages[program] ?? program))].join(" ");
    throw new Error(
      `The lab needs ${missing.join(", ")}, not found on this machine: apt-get install ${install}`,
    );
  }
}

/** Full path of a program on PATH. */
export function findProgram(program: string): string | undefined {
  const { status, stdout } = spawnSync("/bin/sh", ["-c", `command -v "$1"`, "sh", program], {
    encoding: "utf8",
  });
  return status === 0 ? stdout.trim() : undefined;
}

/** A new private folder, removed at the latest when the lab ends. */
export function makeFolder(name: string): string {
  return mkdtempSync(path.join(temporary, `${name}-`));
}

export function removeFolder(folder: string): void {
  rmSync(folder, { recursive: true, force: true, maxRetries: 10, retryDelay: 50 });
}

/** A background process with a log file. */
export class Service {
  private constructor(
    readonly name: string,
    private readonly child: ChildProcess,
    private readonly logFile: string,
  ) {}

  /** Starts a command in a session of its own; its output goes to `logFile`. */
  static start(command: readonly string[], env: NodeJS.ProcessEnv, logFile: string): Service {
    const log = openSync(logFile, "a");
    const [program, ...args] = [...dieWithParent, ...command];
    const child = spawn(program!, args, { env, stdio: ["ignore", log, log], detached: true });
    closeSync(log);
    children.add(child);
    child.on("exit", () => children.delete(child));
    return new Service(path.basename(command[0]!), child, logFile);
  }

  get pid(): number | undefined {
    return this.child.pid;
  }

  get ended(): boolean {
    return this.child.exitCode !== null || this.child.signalCode !== null;
  }

  /** Waits until `ready` is true; throws with the log's end if the process ends or `seconds` pass. */
  async until(ready: () => boolean | Promise<boolean>, what: string, seconds = 10): Promise<void> {
    const deadline = Date.now() + seconds * 1000;
    while (!(await ready())) {
      if (this.ended || Date.now() > deadline) {
        const verdict = this.ended ? "ended at once" : `shows no ${what} after ${seconds} s`;
        throw new Error(`${this.name} ${verdict}. Its log ends:\n${this.logTail()}`);
      }
      await sleep(25);
    }
  }

  logTail(lines = 20): string {
    return readFileSync(this.logFile, "utf8").trimEnd().split("\n").slice(-lines).join("\n");
  }

  /** Ends the process as a crash would. */
  async kill(): Promise<void> {
    if (this.ended) return;
    const gone = new Promise<void>((resolve) => this.child.once("exit", () => resolve()));
    this.child.kill("SIGKILL");
    await gone;
  }

  /** Asks the process to end, then insists. */
  async stop(graceMs = 2000): Promise<void> {
    if (this.ended) return;
    const gone = new Promise<void>((resolve) => this.child.once("exit", () => resolve()));
    this.child.kill("SIGTERM");
    const timer = setTimeout(() => this.child.kill("SIGKILL"), graceMs);
    await gone;
    clearTimeout(timer);
  }
}

/** Runs a command to its end; throws with its error output if it ends with none of `codes`. Resolves to its standard output. */
export async function run(
  command: readonly string[],
  env: NodeJS.ProcessEnv,
  codes: readonly number[] = [0],
): Promise<string> {
  const [program, ...args] = [...dieWithParent, ...command];
  const child = spawn(program!, args, { env, stdio: ["ignore", "pipe", "pipe"] });
  children.add(child);
  let output = "";
  let errors = "";
  child.stdout.on("data", (chunk: Buffer) => {
    output += chunk.toString();
  });
  child.stderr.on("data", (chunk: Buffer) => {
    errors += chunk.toString();
  });
  const code = await new Promise<number | null>((resolve, reject) => {
    child.on("error", reject);
    child.on("close", resolve);
  });
  children.delete(child);
  if (code === null || !codes.includes(code))
    throw new Error(`${path.basename(command[0]!)} failed (${code}): ${errors.trim() || output.trim()}`);
  return output;
}

export function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
