/**
 * The bench: mouth-to-ear latency of setup A, of RTC media and of Antiphon, in interleaved sessions, in real browsers.
 *   node lab/dist/bench.js [--quick] [--sessions N] [--out results/DATE-topic] [--configs ...] [--legs ...]
 */

import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import os from "node:os";
import path from "node:path";
import { parseArgs } from "node:util";
import { missingProduct, type PageParameters, Product } from "./antiphon.js";
import type { LaunchOptions } from "./browsers.js";
import { type LegName, type LegResult, legs } from "./legs.js";
import { servePages } from "./pages.js";
import { run, sleep } from "./processes.js";
import { type Goals, type Measured, type RunInfo, rawCsv, runsCsv, summarize } from "./report.js";
import { Rig, root } from "./rig.js";

interface BenchConfig {
  browser: LaunchOptions;
  /** Address parameters of Antiphon's room page: tune them here. */
  antiphon: PageParameters;
  goals: Goals;
}

const studio: PageParameters = { quantum: 64, packet: 128, buffer: "auto", lanes: 1, bits: 16, channels: 2 };

/** Ratios of medians, but for Firefox, which is to stay within so many ms of setup A; and the share of frames concealed. */
export const configs: Record<string, BenchConfig> = {
  chromium: {
    browser: { browser: "chromium" },
    antiphon: studio,
    goals: { toSetupA: 0.85, toRtcMedia: 0.5, concealedShare: 0.001 },
  },
  "chromium-128": {
    browser: { browser: "chromium", audioBufferSize: 128 },
    antiphon: studio,
    goals: { toSetupA: 0.7, concealedShare: 0.001 },
  },
  firefox: {
    browser: { browser: "firefox" },
    antiphon: studio,
    goals: { overSetupAMs: 35, concealedShare: 0.001 },
  },
  "firefox-128": {
    browser: { browser: "firefox", cubebFrames: 128 },
    antiphon: studio,
    goals: { overSetupAMs: 35, concealedShare: 0.001 },
  },
};

const help = `Measures mouth-to-ear latency of setup A (microphone straight to speaker in one page), RTC media and Antiphon.

  node lab/dist/bench.js                  all browsers, 3 interleaved sessions, about 25 minutes
  node lab/dist/bench.js --quick          1 short session, about 5 minutes
  node lab/dist/bench.js --out results/2026-01-31-mouth-to-ear
                                          keeps raw.csv, runs.csv and summary.md there
      --sessions N                        interleaved sessions
      --configs ${Object.keys(configs).join(",")}
      --legs "${Object.keys(legs).join(",")}"
      --max-load N                        before each leg waits, at most 10 minutes, for a load average below N

Nothing else should run on the machine meanwhile; the summary says when it was too noisy.
`;

async function main(): Promise<number> {
  const { values: options } = parseArgs({
    options: {
      help: { type: "boolean" },
      quick: { type: "boolean", default: false },
      sessions: { type: "string" },
      out: { type: "string" },
      configs: { type: "string", default: Object.keys(configs).join(",") },
      legs: { type: "string", default: Object.keys(legs).join(",") },
      "max-load": { type: "string" },
    },
  });
  if (options.help) {
    say(help);
    return 0;
  }
  const sessions = Number(options.sessions ?? (options.quick ? 1 : 3));
  const chosenConfigs = choose(options.configs, Object.keys(configs));
  const chosenLegs = choose(options.legs, Object.keys(legs)) as LegName[];
  const timing = options.quick
    ? { settleSeconds: 2, leadSeconds: 3, pulseSeconds: 6, steadySeconds: 2 }
    : { settleSeconds: 2, leadSeconds: 12, pulseSeconds: 15, steadySeconds: 5 };

  const rig = await Rig.start({ cards: ["A", "B", "Loop"] });
  const pages = await servePages();
  const withoutProduct = chosenLegs.includes("Antiphon") ? missingProduct() : "not asked for";
  const product = withoutProduct ? undefined : await Product.start();
  if (withoutProduct && chosenLegs.includes("Antiphon")) say(`Antiphon is left out: ${withoutProduct}\n`);

  const measured: Measured[] = [];
  for (let session = 1; session <= sessions; session++) {
    for (const configName of chosenConfigs) {
      const { browser, antiphon } = configs[configName]!;
      for (const leg of chosenLegs) {
        if (leg === "Antiphon" && !product) continue;
        if (options["max-load"]) await untilLoadBelow(Number(options["max-load"]));
        const parameters = leg === "Antiphon" ? antiphon : {};
        const cpu = cpuTimes();
        let result: LegResult | undefined;
        let failure: string | undefined;
        try {
          result = await legs[leg]({ rig, pages, product, browser, parameters, ...timing });
        } catch (error) {
          failure = error instanceof Error ? error.message : String(error);
        }
        const one = { session, config: configName, leg, parameters, result, failure, machine: cpuSince(cpu) };
        measured.push(one);
        say(progress(one));
      }
    }
  }

  const info = await describeMachine(rig, measured, process.argv.slice(2), timing, sessions);
  await product?.stop();
  pages.close();
  await rig.stop();

  const summary = summarize(measured, info, configs);
  say(`\n${summary}\n`);
  if (options.out) {
    const folder = path.resolve(root, options.out);
    mkdirSync(folder, { recursive: true });
    writeFileSync(path.join(folder, "raw.csv"), rawCsv(measured));
    writeFileSync(path.join(folder, "runs.csv"), runsCsv(measured));
    writeFileSync(path.join(folder, "summary.md"), summary);
    say(`Written: ${path.relative(root, folder)}/summary.md, runs.csv, raw.csv\n`);
  }
  return measured.some(({ failure }) => failure) ? 1 : 0;
}

function choose(list: string, known: string[]): string[] {
  const chosen = list.split(",").map((name) => name.trim());
  const unknown = chosen.filter((name) => !known.includes(name));
  if (unknown.length > 0) throw new Error(`unknown: ${unknown.join(", ")}; there are ${known.join(", ")}`);
  return chosen;
}

function progress({ session, config, leg, result, failure }: Measured): string {
  const head = `session ${session}  ${config.padEnd(13)} ${leg.padEnd(10)}`;
  if (!result) return `${head} FAILED: ${failure}\n`;
  return result.directions
    .map(({ name, hearing }) => {
      const ms = hearing.hits.flatMap(({ latencyFrames }) =>
        latencyFrames === null ? [] : [latencyFrames / 48],
      );
      ms.sort((x, y) => x - y);
      const middle = ms.length > 0 ? `${ms[ms.length >> 1]!.toFixed(1)} ms` : "nothing heard";
      return `${head} ${name}: ${middle}, missed ${hearing.missed} of ${hearing.hits.length}\n`;
    })
    .join("");
}

async function describeMachine(
  rig: Rig,
  measured: Measured[],
  args: string[],
  timing: RunInfo["timing"],
  sessions: number,
): Promise<RunInfo> {
  const first = async (...command: string[]) =>
    run(command, rig.env).then(
      (text) => text.trim().split("\n").at(-1)!.trim(),
      () => "unknown",
    );
  return {
    command: ["node lab/dist/bench.js", ...args].join(" "),
    date: new Date().toISOString(),
    commit: await first("git", "-C", root, "describe", "--always", "--dirty"),
    browsers: [...new Set(measured.flatMap(({ result }) => result?.browserVersion ?? []))].join(", "),
    kernel: os.release(),
    pipewire: (await first("pipewire", "--version")).replace("Linked with libpipewire ", ""),
    node: process.version,
    cores: os.cpus().length,
    cpu: os.cpus()[0]?.model ?? "unknown",
    quantumFrames: rig.quantumFrames,
    sessions,
    timing,
  };
}

interface CpuTimes {
  total: number;
  idle: number;
  steal: number;
}

/** Ticks since boot, all cores. */
function cpuTimes(): CpuTimes {
  const ticks = readFileSync("/proc/stat", "utf8")
    .split("\n")[0]!
    .trim()
    .split(/\s+/)
    .slice(1, 9)
    .map(Number);
  return { total: ticks.reduce((a, b) => a + b, 0), idle: ticks[3]! + ticks[4]!, steal: ticks[7]! };
}

function cpuSince(before: CpuTimes): Measured["machine"] {
  const now = cpuTimes();
  const total = now.total - before.total;
  return {
    busyShare: 1 - (now.idle - before.idle) / total,
    stealShare: (now.steal - before.steal) / total,
    load1: os.loadavg()[0]!,
  };
}

async function untilLoadBelow(load: number): Promise<void> {
  const deadline = Date.now() + 600_000;
  while (os.loadavg()[0]! >= load && Date.now() < deadline) await sleep(5000);
}

function say(text: string): void {
  process.stdout.write(text);
}

main().then(
  (code) => process.exit(code),
  (error: unknown) => {
    process.stderr.write(`bench: ${error instanceof Error ? error.message : String(error)}\n`);
    process.exit(1);
  },
);
