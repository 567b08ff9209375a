import { existsSync, readdirSync, readFileSync } from "node:fs";
import path from "node:path";
import { afterAll, beforeAll, expect, it, type TestContext, vi } from "vitest";
import { listen } from "../src/analysis.js";
import { realTimePriority, run, threadsNamed } from "../src/processes.js";
import { mic, type Passage, playback, Rig, root, sampleRateHz, speaker } from "../src/rig.js";
import { writeScore } from "../src/signal.js";
import { Stalls } from "../src/stalls.js";
import { framesPerMs } from "../src/units.js";
import { type Take, writeWav } from "../src/wav.js";
import { skipSound } from "./stage.js";

const score = writeScore({ voice: 0, sampleRateHz, pulseSeconds: 2, steadySeconds: 0.5, tailSeconds: 0.5 });
let rig: Rig;
let stalls: Stalls;

beforeAll(async () => {
  rig = await Rig.start({ cards: ["A", "B"] });
  // Shorter than the least standstill that can cost a cycle: a longer nap would sleep through it.
  stalls = Stalls.start({ napMs: 0.25 });
});

afterAll(async () => {
  await stalls.stop();
  await rig.stop();
});

it("reads its own loop as exactly one quantum, at every pulse", async (test) => {
  const { heard, summary } = await passWhole(test, rig, {
    plays: [{ take: score.take, to: playback("A") }],
    hears: [speaker("A")],
  });
  expect(summary.quantum_frames).toBe(rig.quantumFrames);
  const { hits, missed, crosstalkDb } = listen(heard[0]!, score);
  expect(missed).toBe(0);
  expect(new Set(hits.map((hit) => hit.latencyFrames))).toEqual(new Set([rig.quantumFrames]));
  expect(crosstalkDb).toBe(-96);
});

it("gives 16-bit material back exactly", async (test) => {
  const shift = rig.quantumFrames;
  const played = score.take[0]!.subarray(0, score.take[0]!.length - shift);
  const passage = { plays: [{ take: score.take, to: playback("A") }], hears: [speaker("A")] };
  const back = ([take]: Take[]) => take![0]!.subarray(shift);
  const { heard } = await passWhole(test, rig, passage, (all) =>
    back(all).every((sample, n) => sample === played[n]),
  );
  expect(back(heard)).toEqual(played);
});

it("keeps its cards apart: a microphone's sound reaches no speaker, and no other card", async () => {
  const { heard } = await rig.pass({
    plays: [{ take: score.take, to: mic("A") }],
    hears: [speaker("A"), speaker("B")],
  });
  for (const side of heard.flat()) expect(side.every((sample) => sample === 0)).toBe(true);
});

it("hears a sound from all speakers in the same frame", async () => {
  const file = path.join(rig.folder, "score.wav");
  writeWav(file, score.take, sampleRateHz);
  const played = run(["paplay", "--device=spkA", "--latency-msec=50", file], rig.env);
  // As soon as its ports are there, it sounds from the other speaker as well.
  const ports = ["FL", "FR"].map((side) => `paplay:output_${side}`);
  await vi.waitFor(async () => {
    for (const [n, port] of ports.entries()) await run(["pw-link", port, playback("B")[n]!], rig.env);
  });
  const { heard } = await rig.pass({ plays: [], hears: [speaker("A"), speaker("B")], seconds: 1 });
  const [a, b] = heard.map(([left]) => left!);
  const sounding = Array.from(a!.keys()).filter((frame) => a![frame] !== 0);
  expect(sounding.length).toBeGreaterThan(1_000);
  // But for a moment in which a link begins, or the machine stands still.
  const same = sounding.filter((frame) => a![frame] === b![frame]);
  expect(same.length / sounding.length).toBeGreaterThan(0.8);
  await played;
});

it("gets its device in while other programs come and go", async () => {
  const passes = async () => {
    for (let n = 0; n < 5; n += 1) await rig.pass({ plays: [], hears: [speaker("A")], seconds: 0.1 });
  };
  await Promise.all(Array.from({ length: 8 }, passes));
});

it("favours threads that nobody ranks, and lowers none", (test) => {
  const threads = threadsNamed(["pipewire-pulse"]);
  const before = threads.map(realTimePriority);
  const isAllowed = process.getuid?.() === 0 && before.some((priority) => priority > 8);
  test.skip(!isAllowed, "real-time classes are not allowed here");
  rig.favourSound();
  expect(threads.map(realTimePriority)).toEqual(before.map((priority) => priority || 8));
});

it("names the ports there are when a port is missing", async () => {
  const wrong = rig.pass({ plays: [], hears: [["spkZ:monitor_FL"]], seconds: 0.1 });
  await expect(wrong).rejects.toThrow(/spkZ:monitor_FL.*spkA:monitor_FL/s);
});

it("refuses to play at another rate than it was told", async () => {
  const device = path.join(root, "target/release/antiphon-device");
  const never = path.join(rig.folder, "never.wav");
  const args = ["--seconds", "0.1", "--record", never, "--connect-in", speaker("A")[0]!];
  const asked = run(["pw-jack", device, ...args], { ...rig.env, PIPEWIRE_LATENCY: "64/44100" });
  await expect(asked).rejects.toThrow(/runs at 48000 Hz, not at 44100 Hz/);
  expect(existsSync(never)).toBe(false);
});

it("leaves no process and no folder behind, and another rig can follow", async (test) => {
  const second = await Rig.start({ cards: ["X"], quantumFrames: 128 });
  const { heard } = await passWhole(test, second, {
    plays: [{ take: score.take, to: playback("X") }],
    hears: [speaker("X")],
  });
  expect(listen(heard[0]!, score).hits[0]!.latencyFrames).toBe(128);
  await second.stop();
  expect(existsSync(second.folder)).toBe(false);
  expect(processesIn(second.folder)).toEqual([]);
  expect(processesIn(rig.folder)).not.toEqual([]);
});

/** Command lines of all processes whose environment names the folder. */
function processesIn(folder: string): string[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .flatMap((pid) => {
      try {
        if (!readFileSync(`/proc/${pid}/environ`, "latin1").includes(folder)) return [];
        return [readFileSync(`/proc/${pid}/cmdline`, "latin1").replaceAll("\0", " ")];
      } catch {
        return []; // It ended meanwhile, or is another user's.
      }
    });
}

/** No pass begins later than this after the first. */
const patienceMs = 120_000;

/**
 * A pass of which the device missed nothing, and what was heard is right. Where the machine stands still for a cycle of the graph, the graph goes on
 * without the device, which counts that, or without a card, which nobody counts: then nothing was passed, and it is passed again, or the test is skipped where that goes on. Three times without a standstill it is a
 * fault.
 */
async function passWhole(
  context: Pick<TestContext, "skip" | "annotate" | "task">,
  on: Rig,
  passage: Passage,
  isRight: (heard: Take[]) => boolean = () => true,
): ReturnType<Rig["pass"]> {
  const faults: string[] = [];
  const begin = Date.now();
  for (;;) {
    const from = Date.now();
    if (from - begin > patienceMs) skipSound(context, "the machine stood still too often to tell");
    const pass = await on.pass(passage);
    const { xruns, clock_gaps, missed_frames } = pass.summary;
    const right = isRight(pass.heard);
    if (xruns === 0 && clock_gaps === 0 && right) return pass;
    const { longestMs } = stalls.between(from, Date.now());
    const gaps = `${clock_gaps} gaps of ${missed_frames} frames in all, ${xruns} xruns, heard ${right ? "right" : "wrong"}`;
    // A cycle that begins so late has half its time left, less what the graph itself takes.
    if (longestMs < on.quantumFrames / framesPerMs / 2) faults.push(gaps);
    expect(faults.length, `${faults.join("; ")}, though the machine did not stand still`).toBeLessThan(3);
    await context.annotate(`${gaps}; the machine stood still for up to ${longestMs} ms`);
  }
}
