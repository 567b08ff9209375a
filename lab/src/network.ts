/**
 * An emulated network between two sides, "left" and "right", each a network namespace with one interface: what crosses it passes the
 * emulator (crates/netem) and nothing else. The namespaces live as long as the emulator's process.
 */

import { type ChildProcess, spawn } from "node:child_process";
import { existsSync } from "node:fs";
import path from "node:path";
import { createInterface } from "node:readline";
import { known, quantile } from "./analysis.js";
import { dieWithParent, makeFolder, removeFolder, requirePrograms, run, Service } from "./processes.js";
import { root } from "./rig.js";

export type Side = "left" | "right";

export interface NetworkOptions {
  /** `antiphon-netem profiles` lists them. */
  profile: string;
  /** Random loss instead of the profile's own. */
  loss?: number;
  seed?: number;
}

/** Counters of one direction since the network began. */
export interface DirectionStats {
  offeredPackets: number;
  deliveredPackets: number;
  lostPackets: number;
  /** By the model: they met a full queue. */
  queueDroppedPackets: number;
  duplicatedPackets: number;
  reorderedPackets: number;
  offeredBytes: number;
  /**
   * How much later than the model says a packet was delivered. Null before the first one. The model counts from when the emulator read the packet:
   * how late that was it cannot see, and it comes on top. The thread that reads also delivers, so it is about as late at both.
   */
  latenessP50Us: number | null;
  latenessP99Us: number | null;
  latenessMaxUs: number | null;
  /** Not by the model: the far device would not have them. They count as delivered, too. */
  refusedPackets: number;
}

export type NetworkStats = Record<"leftToRight" | "rightToLeft", DirectionStats>;

/** Of an emulated network that was measured over. */
export interface WatchedDirection extends DirectionStats {
  /** Not by the model: they waited in front of the emulator, and it came too late to read them all. */
  unreadPackets: number;
}

/** The latest hundredth may be so late. A quiet machine's is late by 0.1 ms. */
const mostLatenessUs = 1_000;

/** What emulators say against what was measured over them, one clause each. */
export function emulatorDoubts(
  all: readonly (Pick<WatchedDirection, "latenessP99Us" | "refusedPackets"> & { unreadPackets?: number })[],
): string[] {
  const late = known(all.map(({ latenessP99Us }) => latenessP99Us)).filter((us) => us > mostLatenessUs);
  const lost = all.reduce((sum, one) => sum + one.refusedPackets + (one.unreadPackets ?? 0), 0);
  return [
    ...(late.length > 0
      ? [
          `the network emulator delivered a hundredth of the packets more than ${(quantile(late, 1)! / 1000).toFixed(1)} ms late (more than 1 ms in ${late.length} of ${all.length} directions)`,
        ]
      : []),
    ...(lost > 0 ? [`the network emulator lost ${lost} packets that its model did not`] : []),
  ];
}

export const netemBinary = path.join(root, "target/release/antiphon-netem");

/** What is missing for an emulated network; null if nothing is. */
export function missingForNetworks(): string | null {
  if (process.getuid?.() !== 0) return "emulated networks need root (network namespaces): run it as root";
  if (!existsSync("/dev/net/tun")) return "emulated networks need /dev/net/tun: modprobe tun";
  if (!existsSync(netemBinary)) return "target/release/antiphon-netem is not built: make lab-build";
  return null;
}

export class EmulatedNetwork {
  private sides!: Record<Side, { netns: string; address: string }>;
  private readonly services: Service[] = [];
  private answers: ((line: string) => void)[] = [];

  private constructor(
    private readonly child: ChildProcess,
    private readonly folder: string,
  ) {}

  static async start(options: NetworkOptions): Promise<EmulatedNetwork> {
    const missing = missingForNetworks();
    if (missing) throw new Error(missing);
    requirePrograms("ip", "nsenter", "socat", "setpriv");
    const args = ["run", "--profile", options.profile, "--seed", String(options.seed ?? 1)];
    if (options.loss !== undefined) args.push("--loss", String(options.loss));
    const [program, ...prefix] = dieWithParent;
    const child = spawn(program, [...prefix, netemBinary, ...args], { stdio: ["pipe", "pipe", "pipe"] });
    const network = new EmulatedNetwork(child, makeFolder("network"));
    let complaint = "";
    child.stderr!.on("data", (chunk: Buffer) => {
      complaint = `${complaint}${chunk}`.slice(-2000);
    });
    // It has ended, and what is asked of it is answered so.
    child.stdin!.on("error", () => undefined);
    createInterface({ input: child.stdout! }).on("line", (line) => network.answers.shift()?.(line));
    child.on("exit", () => {
      for (const answer of network.answers.splice(0))
        answer(JSON.stringify({ error: complaint.trim() || "the emulator ended" }));
    });
    try {
      const { ready } = await network.answer<{ ready: Record<Side, { netns: string; address: string }> }>();
      network.sides = ready;
      return network;
    } catch (error) {
      await network.stop();
      throw error;
    }
  }

  /** File of a side's network namespace: for `nsenter --net=` and `LaunchOptions.netns`. */
  netns(side: Side): string {
    return this.sides[side].netns;
  }

  address(side: Side): string {
    return this.sides[side].address;
  }

  /** Makes a port of the outer machine's 127.0.0.1 reachable at the same address and port inside, past the emulator. */
  async admit(port: number, side: Side): Promise<void> {
    const socket = path.join(this.folder, `${side}-${port}-in`);
    await this.relay([`UNIX-LISTEN:${socket},fork`, `TCP:127.0.0.1:${port}`], null, socket);
    await this.relay([`TCP-LISTEN:${port},bind=127.0.0.1,fork,reuseaddr`, `UNIX-CONNECT:${socket}`], side);
  }

  /** The other way: a port of a side's 127.0.0.1 is reachable at the same port of the outer machine's. */
  async expose(port: number, side: Side): Promise<void> {
    const socket = path.join(this.folder, `${side}-${port}-out`);
    await this.relay([`UNIX-LISTEN:${socket},fork`, `TCP:127.0.0.1:${port}`], side, socket);
    await this.relay([`TCP-LISTEN:${port},bind=127.0.0.1,fork,reuseaddr`, `UNIX-CONNECT:${socket}`], null);
  }

  /** Starts a program on a side, or on the outer machine; it ends with the network. */
  launch(side: Side | null, command: readonly string[]): Service {
    const enter = side === null ? [] : ["nsenter", `--net=${this.netns(side)}`];
    const log = path.join(this.folder, `${this.services.length}.log`);
    const service = Service.start([...enter, ...command], process.env, log);
    this.services.unshift(service);
    return service;
  }

  /** Other conditions from now on: a profile, or a plan as `antiphon-netem run --help` has it. */
  async change(to: Pick<NetworkOptions, "profile" | "loss"> | { plan: object }): Promise<void> {
    await this.ask(to);
  }

  /** Left to right, and right to left. */
  async stats(): Promise<[WatchedDirection, WatchedDirection]> {
    const { stats } = await this.ask<{ stats: NetworkStats }>({ stats: true });
    const [left, right] = await Promise.all((["left", "right"] as const).map((side) => this.unread(side)));
    return [
      { ...stats.leftToRight, unreadPackets: left! },
      { ...stats.rightToLeft, unreadPackets: right! },
    ];
  }

  /** What a side's device could not hand to the emulator: dropped on the way out (proc(5), net/dev). */
  private async unread(side: Side): Promise<number> {
    const text = await run(["nsenter", `--net=${this.netns(side)}`, "cat", "/proc/net/dev"], process.env);
    const device = text.split("\n").find((line) => line.includes(":") && !/^\s*lo:/.test(line));
    return Number(device!.split(":")[1]!.trim().split(/\s+/)[11]);
  }

  async stop(): Promise<void> {
    for (const service of this.services) await service.stop();
    this.child.stdin?.end();
    if (!this.hasEnded) {
      const gone = new Promise((resolve) => this.child.once("exit", resolve));
      const timer = setTimeout(() => this.child.kill("SIGKILL"), 2000);
      await gone;
      clearTimeout(timer);
    }
    removeFolder(this.folder);
  }

  private get hasEnded(): boolean {
    return this.child.exitCode !== null || this.child.signalCode !== null;
  }

  private async relay(addresses: [string, string], side: Side | null, socket?: string): Promise<void> {
    const service = this.launch(side, ["socat", ...addresses]);
    if (socket) await service.until(() => existsSync(socket), "socket");
  }

  private async ask<T>(question: object): Promise<T> {
    const answer = this.answer<T>();
    this.child.stdin!.write(`${JSON.stringify(question)}\n`);
    return answer;
  }

  private async answer<T>(): Promise<T> {
    const line = await new Promise<string>((resolve) => {
      if (!this.hasEnded) this.answers.push(resolve);
      else resolve(JSON.stringify({ error: "the emulator has ended" }));
    });
    const answer = JSON.parse(line) as T & { error?: string };
    if (answer.error) throw new Error(`network emulator: ${answer.error}`);
    return answer;
  }
}
