/** The lab itself: a smoke run of every experiment. It asserts that instruments are in calibration and reports whole; never a time. */

import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { missingForNetworks } from "../src/network.js";
import { areSessionsUngrouped, offspring } from "../src/processes.js";
import { root } from "../src/rig.js";

const topics = [
  "m2e",
  "ifdv",
  "peers",
  "native",
  "server",
  "soak",
  "restart",
  "fidelity",
  ...(missingForNetworks() ? [] : ["loss", "netem"]),
];

let folder: string;

beforeAll(() => {
  folder = mkdtempSync(path.join(tmpdir(), "antiphon-lab-test-"));
});

afterAll(() => rmSync(folder, { recursive: true, force: true }));

describe("a quick run", () => {
  let output = "";

  it("takes every step of every experiment", async () => {
    const [code, text] = await lab(["--quick", "--out", folder, ...topics]).ended;
    output = text;
    expect(code, text).toBe(0);
  }, 900_000);

  it("prints its device's own loop: one quantum, without spread", () => {
    expect(output).toMatch(/^The device's own loop: 64 frames \(1\.33 ms\), spread 0, 0 of /);
  });

  it("tells how far it is and how long it will take", () => {
    expect(output).toMatch(/^\d+ steps, about /m);
    expect(output).toMatch(/\[ *1\/\d+\] m2e: .* left\)/);
  });

  it.each(topics)("writes a report of %s that stands alone, with its raw data", (topic) => {
    const [name] = readdirSync(folder).filter((entry) => entry.endsWith(`-${topic}`));
    const read = (file: string) => readFileSync(path.join(folder, name!, file), "utf8");
    const report = JSON.parse(read("report.json")) as {
      findings: string[];
      run: { quick: boolean; commit: string; noisy: string | null; machine: Record<string, string> };
    };
    expect(report.run.quick).toBe(true);
    expect(report.run.machine.scheduling).toMatch(/the kernel .*; real-time priority given to \d+ threads/);
    expect(report.findings.length).toBeGreaterThan(0);
    expect(report.findings.filter((finding) => finding.includes("figures are missing"))).toEqual([]);
    // Of what can be wrong, only the device: machines that run tests are busy.
    expect(report.run.noisy ?? "").not.toMatch(/loop read/);
    const page = read("index.html");
    expect(page).not.toMatch(/(src|href)="(https?:|\/)/);
    for (const [, file] of page.matchAll(/href="([^"#]+)"/g))
      expect(existsSync(path.join(folder, name!, file!)), file).toBe(true);
    const data = readdirSync(path.join(folder, name!)).filter((file) => file.endsWith(".csv"));
    expect(data.length).toBeGreaterThan(0);
    for (const file of data) expect(read(file).split("\r\n").length, file).toBeGreaterThan(2);
    expect(readFileSync(path.join(folder, "index.html"), "utf8")).toContain(`${name}/index.html`);
  });

  it("reads its device's own loop as exactly one quantum, without spread", () => {
    const [name] = readdirSync(folder).filter((entry) => entry.endsWith("-m2e"));
    const [head, ...rows] = readFileSync(path.join(folder, name!, "runs.csv"), "utf8")
      .trim()
      .split("\r\n");
    const column = (title: string) => head!.split(",").indexOf(title);
    expect(rows.length).toBeGreaterThan(0);
    for (const row of rows.map((line) => line.split(","))) {
      expect(row[column("calibration_min_frames")]).toBe("64");
      expect(row[column("calibration_max_frames")]).toBe("64");
    }
  });

  it("gives back what entered the microphone bit for bit, but for what the machine broke", () => {
    const [name] = readdirSync(folder).filter((entry) => entry.endsWith("-fidelity"));
    const rows = readFileSync(path.join(folder, name!, "runs.csv"), "utf8")
      .trim()
      .split("\r\n")
      .filter((line) => line.includes(",Antiphon,"));
    expect(rows).toHaveLength(1);
    const [, , frames, share, , breaks] = rows[0]!.split(",");
    expect(Number(frames)).toBeGreaterThan(0);
    // A busy machine holds sound up a few times in these seconds, in ways that nobody tells; before and after, every frame is what it was.
    expect(Number(breaks)).toBeLessThan(10);
    expect(Number(share)).toBeGreaterThan(0.5);
  });
});

it("leaves no process, namespace, folder or setting of the kernel behind when it is interrupted", async () => {
  const isUngrouped = areSessionsUngrouped();
  const { child, ended } = lab(["--quick", "--out", folder, missingForNetworks() ? "m2e" : "loss"]);
  // In the midst of its first step: browsers, sound system, server and network run.
  await new Promise((resolve) => setTimeout(resolve, 6000));
  const ours = offspring();
  expect(ours.length).toBeGreaterThan(8);
  child.kill("SIGINT");
  const [code] = await ended;
  expect(code).toBe(130);
  for (const deadline = Date.now() + 10_000; Date.now() < deadline; ) {
    if (!ours.some(isAlive)) break;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  expect(ours.filter(isAlive)).toEqual([]);
  expect(existsSync(path.join(tmpdir(), `antiphon-lab-${child.pid}`))).toBe(false);
  expect(areSessionsUngrouped()).toBe(isUngrouped);
});

it.each([
  [["nonsense"], /no experiment nonsense: there are m2e, /],
  [["m2e", "--sessions=-1"], /--sessions takes a number above 0/],
  [["m2e", "--sessions", "0.5"], /--sessions takes a whole number/],
  [["peers", "--configs", "chromium,firefox"], /take one of --configs at a time, not chromium, firefox/],
  [["m2e", "--configs", "safari"], /there is no safari here, but: chromium/],
  [["--nonsense"], /Unknown option '--nonsense'/],
])("refuses %j and says why", async (args, reason) => {
  const [code, text] = await lab(args as string[]).ended;
  expect(code).toBe(1);
  expect(text).toMatch(reason);
});

it("explains itself", async () => {
  const [code, text] = await lab(["--help"]).ended;
  expect(code).toBe(0);
  for (const topic of topics) expect(text).toContain(`\n  ${topic} `);
});

function lab(args: string[]) {
  const child = spawn(process.execPath, [path.join(root, "lab/dist/lab.js"), ...args], {
    stdio: ["ignore", "pipe", "pipe"],
    // Its own folder for temporary files is beside this test's, not inside.
    env: { ...process.env, TMPDIR: tmpdir() },
  });
  let text = "";
  for (const stream of [child.stdout, child.stderr])
    stream.on("data", (chunk: Buffer) => {
      text += chunk.toString();
    });
  const ended = new Promise<[code: number | null, text: string]>((resolve) =>
    child.on("close", (code) => resolve([code, text])),
  );
  return { child, ended };
}

function isAlive(id: number): boolean {
  try {
    return !/^\d+ \(.*\) [ZX]/s.test(readFileSync(`/proc/${id}/stat`, "utf8"));
  } catch {
    return false;
  }
}
