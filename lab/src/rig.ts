/**
 * The rig: a private sound system with virtual cards, and the mouth-to-ear device that plays and listens on them.
 * Nothing of the machine's own sound set-up is read or changed. Method and calibration: docs/lab-method.md.
 */

import { spawnSync } from "node:child_process";
import { copyFileSync, existsSync, mkdirSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import {
  makeFolder,
  realTimePriority,
  removeFolder,
  requirePrograms,
  run,
  Service,
  threadsNamed,
  ungroupSessions,
} from "./processes.js";
import { readWav, type Take, writeWav } from "./wav.js";

export const sampleRateHz = 48_000;

/** Folder of the checkout. */
export const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../..");

export interface RigOptions {
  /** Names of the cards; card "A" is the speaker spkA and the microphone micA, both stereo. */
  cards: string[];
  /** Frames the graph computes at a time: the rig's own latency. */
  quantumFrames?: number;
}

/** One way through the rig: a take into a microphone, or a speaker into a recording. */
export interface Passage {
  /** Played into `to` (ports in channel order). */
  plays: { take: Take; to: string[] }[];
  /** Recorded from these ports; one recording for each list. */
  hears: string[][];
  /** Default: the longest take. */
  seconds?: number;
}

/** Counters of the device over a run. */
export interface DeviceSummary {
  version: 1;
  sample_rate_hz: number;
  quantum_frames: number;
  frames: number;
  /** When the takes began, ms since the epoch, some 5 ms late at most; null if they were too short to see. */
  began_ms: number | null;
  /** At least: PipeWire tells no JACK client of the first since its driver began. Whether the device itself was late, `missed_frames` says. */
  xruns: number;
  clock_gaps: number;
  /** Frames the graph ran without the device: sounds under way seem that much faster. */
  missed_frames: number;
  quantum_changes: number;
}

/** As long as the machine may stand still. */
export const mostMissedFrames = sampleRateHz / 100;

/** Whether the graph ran with the device all the time, but for a moment, and in steps of one size. */
export function isSteady({ xruns, missed_frames, quantum_changes }: DeviceSummary): boolean {
  return xruns === 0 && Math.abs(missed_frames) <= mostMissedFrames && quantum_changes === 0;
}

export class Rig {
  readonly #ranks = { given: 0, refused: 0 };

  private constructor(
    readonly folder: string,
    /** Environment for programs that shall use the rig's sound system. */
    readonly env: NodeJS.ProcessEnv,
    readonly cards: readonly string[],
    readonly quantumFrames: number,
    private readonly services: Service[],
  ) {}

  /** The process that runs the graph. */
  get soundServerPid(): number {
    return this.pipewire.pid!;
  }

  private get pipewire(): Service {
    return this.services.find(({ name }) => name === "pipewire")!;
  }

  static async start({ cards, quantumFrames = 64 }: RigOptions): Promise<Rig> {
    requirePrograms(
      "setpriv",
      "dbus-daemon",
      "pipewire",
      "wireplumber",
      "pipewire-pulse",
      "pw-jack",
      "pw-link",
      "pactl",
    );
    ungroupSessions();
    const folder = makeFolder("rig");
    const runtime = path.join(folder, "run");
    const config = path.join(folder, "config");
    mkdirSync(runtime, { mode: 0o700 });
    writeConfiguration(config, cards, quantumFrames);

    const bus = path.join(runtime, "bus");
    const env: NodeJS.ProcessEnv = {
      ...process.env,
      XDG_RUNTIME_DIR: runtime,
      XDG_CONFIG_HOME: config,
      XDG_STATE_HOME: path.join(folder, "state"),
      XDG_CACHE_HOME: path.join(folder, "cache"),
      PIPEWIRE_CONFIG_DIR: path.join(config, "pipewire"),
      DBUS_SESSION_BUS_ADDRESS: `unix:path=${bus}`,
      // Quiet; the logs stay in the rig's folder.
      PIPEWIRE_DEBUG: "2",
    };
    for (const name of [
      "PULSE_SERVER",
      "PULSE_SINK",
      "PULSE_SOURCE",
      "PIPEWIRE_REMOTE",
      "PIPEWIRE_RUNTIME_DIR",
    ])
      delete env[name];

    const rig = new Rig(folder, env, cards, quantumFrames, []);
    try {
      const dbus = rig.startService(
        "dbus-daemon",
        "--session",
        "--nofork",
        "--nopidfile",
        `--address=unix:path=${bus}`,
      );
      await dbus.until(() => existsSync(bus), "bus");
      await rig.startSound();
      return rig;
    } catch (error) {
      await rig.stop();
      throw error;
    }
  }

  private startService(...command: string[]): Service {
    const service = Service.start(command, this.env, path.join(this.folder, `${command[0]}.log`));
    this.services.unshift(service); // stopped in reverse order
    return service;
  }

  /** The sound server and its cards. */
  async startSound(): Promise<void> {
    const { cards, env } = this;
    const runtime = path.join(this.folder, "run");
    const pipewire = this.startService("pipewire");
    await pipewire.until(() => existsSync(path.join(runtime, "pipewire-0")), "socket");
    const wireplumber = this.startService("wireplumber");
    const pulse = this.startService("pipewire-pulse");
    await pulse.until(() => existsSync(path.join(runtime, "pulse/native")), "socket");
    const wanted = cards.flatMap((card) => [...mic(card), ...speaker(card), ...playback(card)]);
    await wireplumber.until(async () => {
      const ports = new Set(
        (await run(["pw-link", "-io"], env).catch(() => "")).split("\n").map((port) => port.trim()),
      );
      return wanted.every((port) => ports.has(port));
    }, "ports of the cards");
    await pulse.until(async () => {
      const list = await run(["pactl", "list", "short"], env).catch(() => "");
      return cards.every((card) => list.includes(`\tspk${card}\t`) && list.includes(`\tmic${card}\t`));
    }, "cards");
  }

  /** The sound server dies as by a crash, and with it all cards, until `startSound`. */
  async loseSound(): Promise<void> {
    await this.pipewire.kill();
    const [dbus, ...sound] = this.services.toReversed();
    for (const service of sound) await service.stop();
    this.services.splice(0, this.services.length, dbus!);
    for (const socket of ["pipewire-0", "pulse/native"])
      rmSync(path.join(this.folder, "run", socket), { force: true });
  }

  /** Environment for a process that shall have this card as its only one. */
  cardEnv(card: string): NodeJS.ProcessEnv {
    if (!this.cards.includes(card))
      throw new Error(`The rig has no card ${card}, only ${this.cards.join(", ")}`);
    return { ...this.env, PULSE_SINK: `spk${card}`, PULSE_SOURCE: `mic${card}` };
  }

  /**
   * Gives the threads through which programs reach the sound server, and which nobody ranks, the real-time class that browsers give their
   * own audio threads. Call it once sound flows. Two people's browsers and sound servers share the cores here; without it a page that is
   * busy drawing keeps those threads from the processor for longer than an output buffer lasts. Root only.
   */
  favourSound(): void {
    // Not the sound server's own loop: ranked as low as a browser's threads it misses cycles, and the microphone's frames with them.
    const unranked = threadsNamed(["threaded-ml", "pipewire-pulse"]).filter(
      (one) => realTimePriority(one) === 0,
    );
    for (const thread of unranked) {
      const { status } = spawnSync("chrt", ["--rr", "--pid", "8", path.basename(thread)], {
        stdio: "ignore",
      });
      this.#ranks[status === 0 ? "given" : "refused"]++;
    }
  }

  /** The ranks that {@link favourSound} gives from now on, and those that it may not give. */
  watchRanks(): () => { given: number; refused: number } {
    const { given, refused } = this.#ranks;
    return () => ({ given: this.#ranks.given - given, refused: this.#ranks.refused - refused });
  }

  /** Plays and records, all on one clock; recordings in the order of `hears`. */
  async pass({ plays, hears, seconds }: Passage): Promise<{ heard: Take[]; summary: DeviceSummary }> {
    const folder = makeFolder("takes");
    try {
      const args: string[] = [];
      plays.forEach(({ take, to }, index) => {
        const file = path.join(folder, `take${index}.wav`);
        writeWav(file, take, sampleRateHz);
        args.push("--play", file, "--connect-out", to.join(","));
      });
      const files = hears.map((from, index) => {
        const file = path.join(folder, `heard${index}.wav`);
        args.push("--record", file, "--connect-in", from.join(","));
        return file;
      });
      if (seconds !== undefined) args.push("--seconds", String(seconds));
      const latency = `${this.quantumFrames}/${sampleRateHz}`;
      const summary = JSON.parse(
        await run(["pw-jack", deviceBinary(), ...args], { ...this.env, PIPEWIRE_LATENCY: latency }),
      ) as DeviceSummary;
      return { heard: files.map((file) => readWav(file)), summary };
    } catch (error) {
      const { message } = error as Error;
      throw new Error(`${message} PipeWire's log ends: ${this.pipewire.logTail(5)}`, { cause: error });
    } finally {
      removeFolder(folder);
    }
  }

  async stop(): Promise<void> {
    for (const service of this.services) await service.stop();
    removeFolder(this.folder);
  }
}

/** Ports into a card's microphone. */
export function mic(card: string): string[] {
  return [`mic${card}:input_FL`, `mic${card}:input_FR`];
}

/** Ports out of a card's speaker: what a listener in front of it hears. */
export function speaker(card: string): string[] {
  return [`spk${card}:monitor_FL`, `spk${card}:monitor_FR`];
}

/** Ports into a card's speaker, as a program playing on it has them: for calibration. */
export function playback(card: string): string[] {
  return [`spk${card}:playback_FL`, `spk${card}:playback_FR`];
}

/** Name of a card as ALSA has it: its speaker and its microphone. */
export function alsaCard(card: string): string {
  return `lab${card}`;
}

function deviceBinary(): string {
  const binary = path.join(root, "target/release/antiphon-device");
  if (!existsSync(binary))
    throw new Error("The mouth-to-ear device is not built: cargo build --release -p antiphon-device");
  return binary;
}

function writeConfiguration(config: string, cards: readonly string[], quantumFrames: number): void {
  const pipewire = path.join(config, "pipewire");
  const wireplumber = path.join(config, "wireplumber");
  mkdirSync(pipewire, { recursive: true });
  // The clients' configurations are used as they come, without what the machine's owner changed.
  for (const file of readdirSync("/usr/share/pipewire")) {
    if (file.startsWith("client") || file === "jack.conf")
      copyFileSync(`/usr/share/pipewire/${file}`, path.join(pipewire, file));
  }
  const quantum = `${quantumFrames}/${sampleRateHz}`;
  const modules = (...names: string[]) =>
    `context.modules = [\n${names.map((name) => `  { name = libpipewire-module-${name} }`).join("\n")}\n]`;
  const libraries =
    "context.spa-libs = { audio.convert.* = audioconvert/libspa-audioconvert, support.* = support/libspa-support }";
  // All cards are in one group, so one clock drives them all and nothing restarts when the device links to them. That clock is no card's: the speaker that
  // drives a graph is heard a quantum later than the others.
  const node = (name: string, mediaClass: string) => `  { factory = adapter args = {
      factory.name = support.null-audio-sink, node.name = ${name}, node.description = ${name}, media.class = ${mediaClass}
      audio.rate = ${sampleRateHz}, audio.position = "FL,FR", node.latency = ${quantum}, node.group = lab
      node.pause-on-idle = false, session.suspend-timeout-seconds = 0 } }`;
  const nodes = cards.flatMap((card) => [
    node(`spk${card}`, "Audio/Sink"),
    node(`mic${card}`, "Audio/Source/Virtual"),
  ]);
  writeFileSync(
    path.join(pipewire, "pipewire.conf"),
    `context.properties = {
  core.daemon = true, core.name = pipewire-0, link.max-buffers = 16
  default.clock.rate = ${sampleRateHz}, default.clock.allowed-rates = [ ${sampleRateHz} ]
  default.clock.quantum = ${quantumFrames}, default.clock.min-quantum = 32
}
${libraries}
${modules("rt", "protocol-native", "profiler", "metadata", "spa-device-factory", "spa-node-factory", "client-node", "client-device", "access", "adapter", "link-factory", "session-manager")}
context.objects = [
  { factory = spa-node-factory args = {
      factory.name = support.node.driver, node.name = Dummy-Driver, node.group = lab, priority.driver = 20000 } }
${nodes.join("\n")}
]
`,
  );
  writeFileSync(
    path.join(pipewire, "pipewire-pulse.conf"),
    `context.properties = { }
${libraries}
${modules("rt", "protocol-native", "client-node", "adapter", "metadata", "protocol-pulse")}
pulse.properties = {
  server.address = [ "unix:native" ]
  pulse.min.req = ${quantum}, pulse.min.quantum = ${quantum}, pulse.min.frag = ${quantum}
}
`,
  );
  // Programs that speak ALSA find its file by XDG_CONFIG_HOME.
  mkdirSync(path.join(config, "alsa"));
  const pcm = (card: string) => `pcm.${alsaCard(card)} {
  type pipewire
  playback_node "spk${card}"
  capture_node "mic${card}"
  hint { show on description "Card ${card}" }
}
`;
  writeFileSync(path.join(config, "alsa/asoundrc"), cards.map(pcm).join(""));
  // No real hardware: the session manager only links streams to the virtual cards.
  for (const [folder, lines] of [
    [
      "main.lua.d",
      ["alsa_monitor.enabled = false", "v4l2_monitor.enabled = false", "libcamera_monitor.enabled = false"],
    ],
    ["bluetooth.lua.d", ["bluez_monitor.enabled = false"]],
  ] as const) {
    mkdirSync(path.join(wireplumber, folder), { recursive: true });
    writeFileSync(path.join(wireplumber, folder, "51-lab.lua"), `${lines.join("\n")}\n`);
  }
}
