/** The lab: `node lab/dist/lab.js [EXPERIMENT...]` measures, and writes a report of each run. */

import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import path from "node:path";
import { parseArgs } from "node:util";
import { known, listen, quantile } from "./analysis.js";
import { missingProduct, Product } from "./antiphon.js";
import { configs } from "./configs.js";
import type { Experiment, Lab, Options, Outcome, Step, Take } from "./experiment.js";
import { fidelity } from "./experiments/fidelity.js";
import { ifdv } from "./experiments/ifdv.js";
import { loss } from "./experiments/loss.js";
import { m2e } from "./experiments/m2e.js";
import { native } from "./experiments/native.js";
import { netem } from "./experiments/netem.js";
import { peers } from "./experiments/peers.js";
import { restart } from "./experiments/restart.js";
import { server } from "./experiments/server.js";
import { soak } from "./experiments/soak.js";
import { commit, commitDoubts, describeMachine, type Load, lastLine, watchLoad } from "./machine.js";
import { EmulatedNetwork } from "./network.js";
import { servePages } from "./pages.js";
import { isLessDisturbed, Patience } from "./patience.js";
import { requirePrograms } from "./processes.js";
import { mostQueuedShare, Queues } from "./queues.js";
import { type CsvTable, csv } from "./report/csv.js";
import { type IndexEntry, indexEntry, indexPage, reportPage } from "./report/html.js";
import { summaryMarkdown } from "./report/markdown.js";
import type { Cell, Report, Section } from "./report/model.js";
import {
  type DeviceSummary,
  isSteady,
  mostMissedFrames,
  playback,
  Rig,
  root,
  sampleRateHz,
  speaker,
} from "./rig.js";
import { writeScore } from "./signal.js";
import { isDisturbed, Stalls } from "./stalls.js";
import { framesPerMs, percent } from "./units.js";

const experiments: readonly Experiment[] = [
  m2e,
  ifdv,
  peers,
  loss,
  native,
  server,
  soak,
  restart,
  fidelity,
  netem,
];

const help = `Measures Antiphon in real browsers on virtual sound cards and emulated networks, and writes a report of each run.

  make lab                            every experiment, several hours
  make lab EXPERIMENT=m2e             one of them
  node lab/dist/lab.js --quick        every one once, in a few minutes: shows that the lab works, measures nothing
  node lab/dist/lab.js m2e --sessions 10 --seconds 60 --configs chromium,firefox --setups A,Antiphon

experiments
${experiments.map(({ name, question }) => `  ${name.padEnd(10)} ${question}`).join("\n")}

options
  --sessions N      repetitions, interleaved (m2e, native 3; peers 2; restart 5; server 1)
  --seconds N       length of each measurement
  --configs LIST    of ${Object.keys(configs).join(", ")}; one of them in peers, loss, native and fidelity (default: chromium-128)
  --setups LIST     of A, B0, B1, C0, C1, RTC, Antiphon, "Antiphon, relayed", "Antiphon, mixed", "Antiphon, messages", "Antiphon, least" (m2e) · RTC, Antiphon
                    (fidelity) · JackTrip, Jamulus, "Antiphon, native", "Antiphon, native, relayed", Antiphon (native) ·
                    "Antiphon, forwarded", "Antiphon, forwarded to everyone", "Antiphon, mixed", "Bare UDP", the first, third and
                    fourth with ", in step", Jamulus, JackTrip (server) · forwarded, mixed (soak) · port, shared (peers) · lanes 1, 2, 4, 8, auto (loss)
  --patience MIN    wait so many minutes in all for a quiet machine, shared evenly: before a step until ten seconds pass undisturbed, and
                    take steps anew during which it stood still (default: 0, take everything as it comes)
  --out FOLDER      where the runs' folders go (default: results)

Every run gets a folder DATE-EXPERIMENT with index.html (open it in any browser), summary.md, report.json and the raw data as CSV; the
folder above gets an index.html of all runs. Nothing else should run on the machine meanwhile: a report says when it was too noisy.
Ends clean on Ctrl-C. Needs root for emulated networks, and the packages of scripts/install-test-packages.
`;

async function main(): Promise<number> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      help: { type: "boolean", short: "h" },
      quick: { type: "boolean", default: false },
      sessions: { type: "string" },
      seconds: { type: "string" },
      configs: { type: "string" },
      setups: { type: "string" },
      patience: { type: "string" },
      out: { type: "string", default: "results" },
    },
  });
  if (values.help) {
    say(help);
    return 0;
  }
  const unknown = positionals.filter((name) => !experiments.some((experiment) => experiment.name === name));
  if (unknown.length > 0)
    throw new Error(
      `no experiment ${unknown.join(", ")}: there are ${experiments.map(({ name }) => name).join(", ")}`,
    );
  const chosen = experiments.filter(({ name }) => positionals.length === 0 || positionals.includes(name));
  const options: Options = {
    quick: values.quick,
    sessions: whole(values.sessions, "--sessions"),
    seconds: positive(values.seconds, "--seconds"),
    configs: list(values.configs),
    setups: list(values.setups),
  };
  const patienceMinutes = positive(values.patience, "--patience");
  const missing = missingProduct();
  if (missing) throw new Error(missing);
  requirePrograms(...new Set(chosen.flatMap(({ programs }) => programs)));
  for (const { name, missing: lacks } of chosen) {
    const lack = lacks?.();
    if (lack) throw new Error(`${name}: ${lack}`);
  }
  const plans = chosen.map((experiment) => ({ experiment, plan: experiment.plan(options) }));
  const command = ["node lab/dist/lab.js", ...process.argv.slice(2).map(quoted)].join(" ");

  const rig = await Rig.start({ cards: ["A", "B", "Loop"] });
  const pages = await servePages();
  const product = await Product.start();
  const stalls = Stalls.start();
  const queues = new Queues();
  const shared = { rig, pages, product };
  const patience = new Patience(stalls, patienceMinutes ?? 0, say);
  let failed = false;
  try {
    say(await calibrate(rig));
    const steps = plans.flatMap(({ plan }) => plan.steps);
    const short = patienceMinutes === undefined ? null : shortPatience(patienceMinutes, steps);
    if (short) process.stderr.write(`--patience ${patienceMinutes} is ${short}\n`);
    // While it runs, the next change may begin.
    const code = await commit();
    const progress = new Progress(steps);
    for (const { experiment, plan } of plans) {
      const date = new Date().toISOString();
      const began = Date.now();
      const waited = patience.watch();
      const ranks = rig.watchRanks();
      const failures: string[] = [];
      const repeated: string[] = [];
      const kept: (Kept & { label: string })[] = [];
      for (const step of plan.steps) {
        patience.begin(progress.planned(step));
        const { least, failed } = await measure(
          () => progress.take(experiment.name, step, shared),
          () => watchLoad(stalls, queues),
          patience,
        );
        if (least) kept.push({ ...least, label: step.label });
        (least ? repeated : failures).push(...failed.slice(-1).map((failure) => `${step.label}: ${failure}`));
      }
      failed ||= failures.length > 0;
      try {
        const loads = kept.map(({ load }) => load);
        const outcome = await plan.conclude(kept.map(({ measured }) => measured));
        const devices = kept.flatMap(({ label, device }) => (device ? [{ label, device }] : []));
        const noise = [
          ...(options.quick ? [] : commitDoubts(code)),
          ...outcome.doubts,
          ...loadDoubts(loads),
          ...deviceDoubts(devices),
        ];
        const report: Report = {
          title: experiment.title,
          topic: experiment.name,
          question: experiment.question,
          run: {
            command,
            date,
            commit: code,
            quick: options.quick,
            noisy: noise.length > 0 ? `${noise.join("; ")}.` : null,
            versions: {
              ...outcome.versions,
              PipeWire: (await lastLine(["pipewire", "--version"])).replace("Linked with libpipewire ", ""),
              Node: process.version,
            },
            machine: {
              ...describeMachine(ranks()),
              ...loadWords(loads),
              ...(patienceMinutes
                ? { patience: known([waited(), shortPatience(patienceMinutes, plan.steps)]).join("; ") }
                : {}),
            },
            seconds: Math.round((Date.now() - began) / 1000),
          },
          findings: [
            ...outcome.findings,
            ...kept.flatMap(({ label, troubles }) =>
              [...new Set(troubles)].map(
                (trouble) => `Something broke, and counts as it came: ${label}: ${trouble}`,
              ),
            ),
            ...repeated.map((failure) => `A step failed and was repeated: ${failure}`),
            ...failures.map((failure) => `A step failed, and its figures are missing: ${failure}`),
          ],
          sections: [...outcome.sections, ...(devices.length > 0 ? [deviceSection(devices)] : [])],
        };
        const tables = {
          ...outcome.tables,
          ...(devices.length > 0 ? { "device.csv": deviceCsv(devices) } : {}),
        };
        const folder = write(path.resolve(root, values.out), report, tables);
        say(`\n${report.title}\n${report.findings.map((finding) => `  ${finding}\n`).join("")}`);
        if (report.run.noisy) say(`  The machine was too noisy: ${report.run.noisy}\n`);
        say(`  → ${path.relative(process.cwd(), folder)}/index.html\n\n`);
      } catch (error) {
        // The experiments to come are not to suffer from it.
        failed = true;
        say(
          `\n${experiment.name} has no report: ${error instanceof Error ? error.stack : String(error)}\n\n`,
        );
      }
    }
  } finally {
    queues.stop();
    await stalls.stop();
    await product.stop();
    pages.close();
    await rig.stop();
  }
  return failed ? 1 : 0;
}

/** The device, looped on itself: what it reads there, in words. *Errors* if nothing. */
async function calibrate(rig: Rig): Promise<string> {
  const score = writeScore({ voice: 0, sampleRateHz, pulseSeconds: 1, steadySeconds: 0.1, tailSeconds: 0.3 });
  const { heard } = await rig.pass({
    plays: [{ take: score.take, to: playback("Loop") }],
    hears: [speaker("Loop")],
  });
  const { hits, missed } = listen(heard[0]!, score, { maxLatencyFrames: 4096 });
  const frames = known(hits.map(({ latencyFrames }) => latencyFrames));
  const [least, most] = [quantile(frames, 0), quantile(frames, 1)];
  if (least === null || most === null) throw new Error("the device does not hear its own loop");
  return `The device's own loop: ${least} frames (${(least / framesPerMs).toFixed(2)} ms), spread ${most - least}, ${missed} of ${hits.length} pulses missed; right is one quantum, ${rig.quantumFrames}, without spread.\n`;
}

interface Kept extends Take<unknown> {
  load: Load;
}

/** Takes a step, and anew while the machine disturbs it and patience lasts; what fails, once more. The least disturbed take counts, whatever it measured. */
async function measure(
  take: () => Promise<Take<unknown> | { failure: string }>,
  watch: () => () => Load,
  patience: Patience,
): Promise<{ least: Kept | undefined; failed: string[] }> {
  const failed: string[] = [];
  let least: Kept | undefined;
  while (failed.length < 2) {
    await patience.untilQuiet();
    const [began, loadSince] = [Date.now(), watch()];
    const taken = await take();
    const load = loadSince();
    if ("failure" in taken) failed.push(taken.failure);
    else if (!least || isLessDisturbed({ ...taken, load }, least)) least = { ...taken, load };
    if (least && !patience.again(least, Date.now() - began)) break;
  }
  return { least, failed };
}

/** Steps with an estimate of the time left, from how long those before took against their own estimates. */
class Progress {
  #number = 0;
  #spentMs = 0;
  #estimatedMs = 0;

  constructor(private readonly steps: readonly Step[]) {
    say(`${steps.length} steps, about ${words(this.#left())}\n`);
  }

  /** Of all steps, by their own estimates: the share up to the end of this one. */
  planned(step: Step): number {
    const seconds = (steps: readonly Step[]) => steps.reduce((sum, one) => sum + one.seconds, 0);
    return seconds(this.steps.slice(0, this.steps.indexOf(step) + 1)) / seconds(this.steps);
  }

  /** Runs a step. */
  async take(
    experiment: string,
    step: Step,
    shared: Omit<Lab, "network">,
  ): Promise<Take<unknown> | { failure: string }> {
    const networks: EmulatedNetwork[] = [];
    const began = Date.now();
    this.#number = this.steps.indexOf(step) + 1;
    say(
      `[${String(this.#number).padStart(String(this.steps.length).length)}/${this.steps.length}] ${experiment}: ${step.label} … `,
    );
    let taken: Take<unknown> | { failure: string };
    try {
      taken = await step.run({
        ...shared,
        network: async (options) => {
          const network = await EmulatedNetwork.start(options);
          networks.push(network);
          return network;
        },
      });
    } catch (error) {
      taken = { failure: error instanceof Error ? error.message : String(error) };
    } finally {
      for (const network of networks) await network.stop();
    }
    this.#spentMs += Date.now() - began;
    this.#estimatedMs += step.seconds * 1000;
    const left = this.#left();
    const result = "failure" in taken ? `FAILED: ${taken.failure}` : taken.words;
    say(`${result}${left > 0 ? `  (about ${words(left)} left)` : ""}\n`);
    return taken;
  }

  #left(): number {
    const ratio = this.#estimatedMs > 0 ? this.#spentMs / this.#estimatedMs : 1;
    return this.steps.slice(this.#number).reduce((sum, { seconds }) => sum + seconds * 1000, 0) * ratio;
  }
}

/** Where so much patience can come to nothing: why. */
function shortPatience(minutes: number, steps: readonly Step[]): string | null {
  const longest = Math.max(...steps.map(({ seconds }) => seconds));
  if (minutes * 60 > longest) return null;
  return `less than the longest step takes (about ${words(longest * 1000)}), which can never be taken anew`;
}

function words(ms: number): string {
  const minutes = ms / 60_000;
  if (minutes < 1.5) return `${Math.max(1, Math.round(ms / 1000))} s`;
  return minutes < 90 ? `${Math.round(minutes)} min` : `${(minutes / 60).toFixed(1)} h`;
}

function loadDoubts(loads: readonly Load[]): string[] {
  const { busyShare, queuedShare, longestMs, missingShare } = worst(loads);
  return [
    ...(isDisturbed({ longestMs, missingShare })
      ? [
          `the machine itself stood still, for up to ${longestMs.toFixed(0)} ms and ${percent(missingShare)} of a step`,
        ]
      : []),
    ...(busyShare > 0.97 ? [`the processors had no idle time (${percent(busyShare)} busy in one step)`] : []),
    ...(queuedShare !== null && queuedShare > mostQueuedShare
      ? [`threads that carry the sound waited for a processor for up to ${percent(queuedShare)} of 250 ms`]
      : []),
  ];
}

interface StepDevice {
  label: string;
  device: DeviceSummary;
}

function deviceDoubts(all: readonly StepDevice[]): string[] {
  return all
    .filter(({ device }) => !isSteady(device))
    .map(
      ({ label, device: { missed_frames, xruns, quantum_changes } }) =>
        `the sound graph ran without the device for ${missed_frames} frames in ${label} (${xruns} xruns, ${quantum_changes} changes of quantum)`,
    );
}

/** What the device says of itself, step by step. */
function deviceSection(all: readonly StepDevice[]): Section {
  const columns = ["frames", "gaps", "frames without the device", "xruns", "changes of quantum"];
  return {
    heading: "The sound graph and the device",
    method: `Frames that the graph ran without the device, in every step. The device's own loop cannot show them: it neither plays nor records meanwhile, so both stand still together, but a sound under way goes on and seems that much faster. More than ${mostMissedFrames} in a step (10 ms), an xrun or a change of quantum make it a disturbed one.`,
    uncertainty: "Exact: the graph numbers its frames.",
    figures: [],
    tables: [
      {
        caption: "Each step",
        columns: [{ name: "step" }, ...columns.map((name) => ({ name, align: "right" as const }))],
        rows: deviceRows(all),
      },
    ],
  };
}

function deviceCsv(all: readonly StepDevice[]): CsvTable {
  return {
    columns: ["step", "frames", "clock_gaps", "missed_frames", "xruns", "quantum_changes"],
    rows: deviceRows(all),
  };
}

function deviceRows(all: readonly StepDevice[]): Cell[][] {
  return all.map(({ label, device: { frames, clock_gaps, missed_frames, xruns, quantum_changes } }) => [
    label,
    frames,
    clock_gaps,
    missed_frames,
    xruns,
    quantum_changes,
  ]);
}

function loadWords(loads: readonly Load[]): Record<string, string> {
  if (loads.length === 0) return {};
  const { busyShare, queuedShare, longestMs, missingShare } = worst(loads);
  return {
    // The servers and native programs have no such threads.
    load: `processors at most ${percent(busyShare)} busy in a step; ${queuedShare === null ? "" : `browsers' threads that carry the sound waited for one for at most ${percent(queuedShare)} of 250 ms; `}stood still for at most ${longestMs.toFixed(1)} ms, ${percent(missingShare)} of a step`,
  };
}

/** The worst of each kind, each perhaps in another step. */
function worst(loads: readonly Load[]): Load {
  const most = (pick: (load: Load) => number) => Math.max(0, ...loads.map(pick));
  return {
    busyShare: most(({ busyShare }) => busyShare),
    queuedShare: quantile(known(loads.map(({ queuedShare }) => queuedShare)), 1),
    longestMs: most(({ longestMs }) => longestMs),
    missingShare: most(({ missingShare }) => missingShare),
  };
}

/** Writes a run's folder and the index of all; returns the folder. */
function write(results: string, report: Report, tables: Outcome["tables"]): string {
  const name = `${report.run.date.slice(0, 10)}-${report.topic}`;
  let folder = path.join(results, name);
  for (let again = 2; existsSync(folder); again++) folder = path.join(results, `${name}-${again}`);
  mkdirSync(folder, { recursive: true });
  for (const [file, table] of Object.entries(tables)) writeFileSync(path.join(folder, file), csv(table));
  const files = [...Object.keys(tables), "summary.md", "report.json"];
  writeFileSync(path.join(folder, "index.html"), reportPage(report, files));
  writeFileSync(path.join(folder, "summary.md"), summaryMarkdown(report));
  // What the index needs; figures are drawn from the raw data's numbers and are not kept twice.
  const { sections: _, ...rest } = report;
  writeFileSync(path.join(folder, "report.json"), `${JSON.stringify(rest, null, 2)}\n`);
  writeFileSync(path.join(results, "index.html"), indexPage(entries(results)));
  return folder;
}

/** Of every run, also those that other programs made: they have a README.md. */
function entries(results: string): IndexEntry[] {
  return readdirSync(results, { withFileTypes: true }).flatMap((entry): IndexEntry[] => {
    const read = (file: string) => {
      const whole = path.join(results, entry.name, file);
      return entry.isDirectory() && existsSync(whole) ? readFileSync(whole, "utf8") : undefined;
    };
    const json = read("report.json");
    if (json !== undefined) {
      const report = JSON.parse(json) as Omit<Report, "sections">;
      return [indexEntry({ ...report, sections: [] }, `${entry.name}/index.html`)];
    }
    const title = /^# (.+)$/m.exec(read("README.md") ?? "")?.[1];
    const [, date, topic] = /^(\d{4}-\d{2}-\d{2})-(.+)$/.exec(entry.name) ?? [];
    if (title === undefined || date === undefined || topic === undefined) return [];
    const readme = `${entry.name}/README.md`;
    return [{ path: readme, title, topic, date, quick: false, noisy: null, finding: null }];
  });
}

function list(text: string | undefined): string[] | undefined {
  // A name may hold ", ".
  return text?.split(/,(?! )/).map((name) => name.trim());
}

function positive(text: string | undefined, option: string): number | undefined {
  if (text === undefined) return undefined;
  const value = Number(text);
  if (!(value > 0)) throw new Error(`${option} takes a number above 0, not ${text}`);
  return value;
}

function whole(text: string | undefined, option: string): number | undefined {
  const value = positive(text, option);
  if (value !== undefined && !Number.isInteger(value))
    throw new Error(`${option} takes a whole number, not ${text}`);
  return value;
}

function quoted(word: string): string {
  return /^[\w,./=-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

function say(text: string): void {
  process.stdout.write(text);
}

main().then(
  (code) => process.exit(code),
  (error: unknown) => {
    process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`);
    process.exit(1);
  },
);
