/**
 * Compares the ring with ringbuf.js and with postMessage. Prints Markdown.
 *
 *   node packages/ring/bench/bench.mjs [--browser] [--json FILE] [--rounds N] [--blocks N]
 *
 * The queues take turns round by round, so that a slow moment of the machine hits all of them; figures are medians. The floor
 * is one copy and one index published. Where 10 % to 90 % of the rounds of two queues overlap there is no ratio, and after the tables stands
 * where the ring did not win.
 * Build first: npx tsc -b packages/ring
 */
import { execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { cpus, loadavg } from "node:os";
import { dirname } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import { Worker } from "node:worker_threads";
import { RingBuffer } from "ringbuf.js";
import { RecordRing, Ring } from "../dist/index.js";
import { launchChromium, launchFirefox, serve } from "../test/browser/browsers.mjs";
import { runAll } from "./run.js";

const { values: options } = parseArgs({
  options: {
    browser: { type: "boolean", default: false },
    json: { type: "string" },
    rounds: { type: "string", default: "200" },
    blocks: { type: "string", default: "100000" },
  },
});
const rounds = Number(options.rounds);
const blocks = Number(options.blocks);

async function startThread() {
  const worker = new Worker(new URL("thread.mjs", import.meta.url));
  await new Promise((resolve, reject) => worker.once("message", resolve).once("error", reject));
  return {
    post: (job) => worker.postMessage(job),
    onMessage: (handler) => worker.removeAllListeners("message").on("message", handler),
    stop: () => worker.terminate(),
  };
}

function garbage() {
  const script = fileURLToPath(new URL("garbage.mjs", import.meta.url));
  return JSON.parse(
    execFileSync(
      process.execPath,
      ["--expose-gc", "--max-semi-space-size=256", "--min-semi-space-size=256", script],
      {
        encoding: "utf8",
      },
    ),
  );
}

async function inBrowser(launch) {
  const ringbuf = pathToFileURL(`${dirname(fileURLToPath(import.meta.resolve("ringbuf.js")))}/`);
  const server = await serve({ "/ringbuf.js/": ringbuf });
  const browser = await launch();
  try {
    const page = await browser.open(`${server.origin}/bench/index.html`);
    return { host: browser.version, samples: await page.evaluate(`bench(${rounds}, ${blocks})`) };
  } finally {
    await browser.close();
    await server.close();
  }
}

function quantile(samples, q) {
  const sorted = [...samples].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))];
}

const QUANTILES = [0.1, 0.5, 0.9];

/** Median time of `other` by that of the ring; null where the ranges overlap. */
function ratioOf(ring, other) {
  const [low, middle, high] = QUANTILES.map((q) => quantile(ring, q));
  const [otherLow, otherMiddle, otherHigh] = QUANTILES.map((q) => quantile(other, q));
  return otherLow <= high && low <= otherHigh ? null : otherMiddle / middle;
}

function table({ host, samples }) {
  const lines = [
    `### ${host}`,
    "",
    "| ns per operation, median (10 % to 90 %) | ring | ringbuf.js 0.4.0 | postMessage | floor | ringbuf.js / ring | postMessage / ring | floor / ring |",
    "| --- | --: | --: | --: | --: | --: | --: | --: |",
  ];
  for (const [name, queues] of Object.entries(samples)) {
    const cell = (queue) => {
      if (!queues[queue]) return "";
      const [low, middle, high] = QUANTILES.map((q) => Math.round(quantile(queues[queue], q)));
      return `${middle} (${low} to ${high})`;
    };
    const ratio = (queue) => (queues[queue] ? (ratioOf(queues.ring, queues[queue])?.toFixed(1) ?? "–") : "");
    lines.push(
      `| ${name} | ${cell("ring")} | ${cell("ringbuf.js")} | ${cell("postMessage")} | ${cell("floor")} | ${ratio("ringbuf.js")} | ${ratio("postMessage")} | ${ratio("floor")} |`,
    );
  }
  return `${lines.join("\n")}\n\n`;
}

/** A line for each queue that the ring did not beat. */
function losses(all) {
  const lines = all.flatMap(({ host, samples }) =>
    Object.entries(samples).flatMap(([name, { ring, floor: _, ...others }]) =>
      Object.entries(others).flatMap(([queue, other]) => {
        const ratio = ratioOf(ring, other);
        if (ratio !== null && ratio > 1) return [];
        const result =
          ratio === null ? "no difference to be told" : `takes ${(1 / ratio).toFixed(1)} times as long`;
        return [`- ${host}, ${name}, against ${queue}: ${result}`];
      }),
    ),
  );
  return `### Where the ring did not win\n\n${lines.join("\n") || "Nowhere."}\n`;
}

const load = loadavg()[0];
const runs = [
  {
    host: `Node ${process.version}`,
    samples: await runAll(
      { Ring, RecordRing, RingBuffer },
      { now: () => performance.now(), MessageChannel, startThread, rounds, blocks },
    ),
  },
];
if (options.browser) runs.push(await inBrowser(launchChromium), await inBrowser(launchFirefox));
const left = garbage();

process.stdout.write(
  `${cpus().length} x ${cpus()[0].model}, load ${load.toFixed(1)} at the start, ${rounds} rounds\n\n`,
);
for (const run of runs) process.stdout.write(table(run));
process.stdout.write(
  `### Garbage, Node ${process.version}\n\n| heap bytes per million | ring | ringbuf.js 0.4.0 |\n| --- | --: | --: |\n`,
);
for (const [name, queues] of Object.entries(left)) {
  const cell = (queue) => (queue in queues ? Math.round(queues[queue]).toLocaleString("en") : "");
  process.stdout.write(`| ${name} | ${cell("ring")} | ${cell("ringbuf.js")} |\n`);
}
process.stdout.write(`\n${losses(runs)}`);
if (options.json) {
  const machine = { cpus: cpus().length, model: cpus()[0].model, load };
  writeFileSync(options.json, `${JSON.stringify({ machine, rounds, blocks, runs, garbage: left })}\n`);
}
