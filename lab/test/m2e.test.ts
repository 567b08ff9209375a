import { describe, expect, it } from "vitest";
import type { Hit } from "../src/analysis.js";
import type { Kept, PagePeer, PageStats } from "../src/antiphon.js";
import type { Outcome } from "../src/experiment.js";
import { compareLooks, m2e, offShare, shareOf } from "../src/experiments/m2e.js";
import { type Budget, during, type Growth, type SetupResult } from "../src/setups.js";
import { framesPerMs } from "../src/units.js";

/** A pulse every 125 ms for 8 s; after 4 s the delay goes from 20 to 40 ms, and one pulse is missed. */
const hits: Hit[] = Array.from({ length: 64 }, (_, n) => ({
  pulse: { frame: n * 125 * framesPerMs, side: 0, code: n },
  latencyFrames: n === 50 ? null : (n < 32 ? 20 : 40) * framesPerMs,
  likeness: 1,
  crosstalkDb: -96,
}));

const look = (seconds: number, knownMs: number, errorMs: number, isWhole = true) => ({
  frame: seconds * 1_000 * framesPerMs,
  knownMs,
  errorMs,
  offsetErrorMs: 0,
  isWhole,
  stagesMs: [knownMs],
});

it("compares each look at the page with what was heard around that time", () => {
  const looks = [look(2, 20.9, 0), look(6, 45, 3.9), look(6, 45, 4)];
  const [early, wrong, right] = compareLooks(looks, hits);
  expect(early!.differenceMs).toBeCloseTo(0.9, 9);
  expect([early, wrong, right].map((one) => one!.isWithin)).toEqual([true, false, true]);
});

it("leaves out looks that know only a part, and those without a pulse", () => {
  expect(compareLooks([look(2, 3, 0, false), look(20, 40, 0)], hits)).toEqual([]);
});

it("cannot compare a look around which half of the pulses were missed, which counts as off", () => {
  const holed = hits.map((hit, n) => (n % 8 < 5 && n < 32 ? { ...hit, latencyFrames: null } : hit));
  expect(compareLooks([look(2, 20, 0), look(6, 40, 0)], holed)).toHaveLength(1);
  const one = { looks: 10, compared: 8, within: 6 };
  expect(offShare([one, { looks: 10, compared: 0, within: 0 }])).toBe(0.7);
  expect(offShare([{ looks: 10, compared: 0, within: 0 }])).toBeNull();
});

/** A page that plays 48,000 frames a second from 1,000 s on, of which it conceals one. */
const kept = (second: number): Kept<PageStats> => {
  const delay = { ms: second, knownMs: second, errorMs: 1, offsetErrorMs: 0.5, stages: [] };
  const peer = {
    playedFrames: 48_000 * second,
    concealedFrames: second,
    targetFrames: second,
    mouthToEar: delay,
  };
  return {
    atMs: (1_000 + second) * 1_000,
    said: { peers: [peer as unknown as PagePeer] } as PageStats,
  };
};

it("takes of what a page kept what it said while pulses and tone sounded", () => {
  const stage = { leadSeconds: 2.5, pulseSeconds: 3, steadySeconds: 1 };
  const all = Array.from({ length: 12 }, (_, n) => kept(n + 1));
  const { own, counters, targetFrames } = during(stage, { began_ms: 1_001_000 }, all);
  expect(own.map(({ frame, knownMs }) => [frame / framesPerMs / 1_000, knownMs])).toEqual([
    [3, 4],
    [4, 5],
    [5, 6],
  ]);
  expect([counters.playedFrames, counters.concealedFrames, targetFrames]).toEqual([4 * 48_000, 4, 5]);
  // One that was stuck when the pulses began, and one that died.
  for (const [beganMs, said] of [
    [990_000, all],
    [1_001_000, null],
  ] as const)
    expect(during(stage, { began_ms: beganMs }, said)).toMatchObject({
      own: [],
      looks: [],
      ends: null,
      counters: { playedFrames: 0, concealedFrames: 0, seconds: 4 },
      targetFrames: null,
    });
  const alone = all.map((one, n) =>
    n < 5 ? one : { ...one, said: { peers: [] as PagePeer[] } as PageStats },
  );
  const left = during(stage, { began_ms: 1_001_000 }, alone);
  expect(left.counters).toMatchObject({ playedFrames: 0, concealedFrames: 0, seconds: 4 });
});

it("a share of concealed frames has in it streams that ran dry", () => {
  const counters = (playedFrames: number, concealedFrames: number) =>
    ({ playedFrames, concealedFrames, receivedPackets: 80, lostPackets: 20, seconds: 10 }) as Growth;
  const measured = (...all: (Growth | null)[]) => [
    { result: { directions: all.map((one) => ({ counters: one })) } },
  ];
  const whole = counters(479_520, 480);
  expect(shareOf(measured(whole, null), "concealedFrames")).toBe(0.001);
  expect(shareOf(measured(whole, counters(0, 0)), "concealedFrames")).toBe(0.5005);
  expect(shareOf(measured(whole), "lostPackets")).toBe(0.2);
  expect(shareOf(measured(null), "concealedFrames")).toBeNull();
});

/** What a run reports of which `measured` was measured, everything in chromium. */
async function reported(
  measured: { session: number; setup: string; result: SetupResult }[],
  setups: string[],
): Promise<Outcome> {
  const sessions = Math.max(...measured.map(({ session }) => session));
  const options = { quick: false, sessions, configs: ["chromium"], setups, seconds: undefined };
  return m2e.plan(options).conclude(measured.map((one) => ({ config: "chromium", ...one })));
}

/** A measurement of one direction: how long each pulse took; null: not heard. */
function heard(pulsesMs: (number | null)[], budget: Budget | null = null): SetupResult {
  const pulses = pulsesMs.map((ms, n): Hit => {
    const pulse = { frame: n * 125 * framesPerMs, side: 0, code: n } as const;
    return { pulse, latencyFrames: ms === null ? null : ms * framesPerMs, likeness: 1, crosstalkDb: null };
  });
  const missed = pulsesMs.filter((ms) => ms === null).length;
  const loop: Hit = {
    pulse: { frame: 0, side: 0, code: 0 },
    latencyFrames: 64,
    likeness: 1,
    crosstalkDb: -96,
  };
  const report = {
    quantumFrames: null,
    reportedBaseLatencyMs: null,
    reportedOutputLatencyMs: null,
    reportedInputLatencyMs: null,
  };
  const hearing = { hits: pulses, missed, crosstalkDb: null, steady: null };
  return {
    directions: [{ name: "A to B", hearing, counters: null, report, budget, own: [] }],
    calibration: { hits: [loop], missed: 0, crosstalkDb: -96, steady: null },
    summary: { quantum_frames: 64, xruns: 0, missed_frames: 0 } as SetupResult["summary"],
    browserVersion: "1",
    pageErrors: [],
    troubles: [],
  };
}

it("draws no playout where the other stages come to more than the whole", async () => {
  const budget = { blockFrames: 480, packetMs: 1, networkMs: 1, bufferMs: 8 };
  for (const [bufferMs, label, playoutMs] of [
    [8, "chromium", 5],
    [14, "chromium, stages overlap", null],
  ] as const) {
    const result = heard([25, 25, 25], { ...budget, bufferMs });
    const { sections } = await reported([{ session: 1, setup: "Antiphon", result }], ["Antiphon"]);
    const waterfall = sections.flatMap(({ figures }) => figures).find(({ kind }) => kind === "waterfall");
    expect(waterfall).toMatchObject({ rows: [{ label }] });
    expect(waterfall?.kind === "waterfall" && waterfall.rows[0]!.stages.at(-1)).toEqual({
      name: "playout",
      ms: playoutMs,
      measured: false,
    });
  }
});

it("doubts a device that does not hear all of its own loop", async () => {
  const result = heard(Array(8).fill(20));
  result.calibration = { ...result.calibration, missed: 1 };
  const { doubts } = await reported([{ session: 1, setup: "A", result }], ["A"]);
  expect(doubts).toEqual(["the device's own loop missed 1 of 2 pulses"]);
});

describe("what is not heard", () => {
  const [whole, silent] = [heard(Array(8).fill(20)), heard(Array(8).fill(null))];
  const goal = ({ sections }: Outcome, figure: string) =>
    sections
      .flatMap(({ tables }) => tables)
      .find(({ caption }) => caption.startsWith("Against the goals"))!
      .rows.find((row) => row[1] === figure)
      ?.slice(2);

  it("took longer than all that is, in medians, the raw data and doubts", async () => {
    const half = heard([20, 20, 20, 20, null, null, null, null]);
    const outcome = await reported([{ session: 1, setup: "A", result: half }], ["A"]);
    expect(outcome.findings).toEqual([
      "chromium: setup A never (medians).",
      "Pulses missed: chromium, A 4 of 8.",
    ]);
    expect(outcome.doubts).toEqual(["chromium, A, A to B was silent for a time within session 1"]);
    const { columns, rows } = outcome.tables["runs.csv"]!;
    const cells = ["median_ms", "p05_ms", "p95_ms"].map((name) => [...rows][0]![columns.indexOf(name)]);
    expect(cells).toEqual(["inf", "20.00", "inf"]);
  });

  it("makes a session the worst of all, whichever of the two was silent", async () => {
    const sessions = (...results: [antiphon: SetupResult, a: SetupResult][]) =>
      reported(
        results.flatMap(([antiphon, a], index) => [
          { session: index + 1, setup: "Antiphon", result: antiphon },
          { session: index + 1, setup: "A", result: a },
        ]),
        ["Antiphon", "A"],
      );
    const better = heard(Array(8).fill(10));
    const ratio = "Antiphon / setup A";
    expect(goal(await sessions([better, whole], [silent, whole], [whole, whole]), ratio)).toEqual([
      "1.00",
      "0.70",
      "no",
    ]);
    for (const pair of [
      [silent, whole],
      [whole, silent],
      [silent, silent],
    ] as const) {
      const outcome = await sessions([...pair]);
      expect(goal(outcome, ratio)).toEqual(["not measured", "0.70", "no"]);
      expect(outcome.findings).toContainEqual(
        expect.stringContaining("chromium: Antiphon / setup A not measured"),
      );
    }
  });

  it("makes a page that said nothing of its own figure miss the goal, whatever others said", async () => {
    const figure = "looks at the page's figure off by more than 1 ms beyond their error";
    const said = { frame: 0, knownMs: 20, errorMs: 1, offsetErrorMs: 0, isWhole: true, stagesMs: [20] };
    const { directions, ...rest } = whole;
    const result = { ...rest, directions: directions.map((one) => ({ ...one, own: [said] })) };
    const sessions = (...results: SetupResult[]) =>
      results.map((one, index) => ({ session: index + 1, setup: "Antiphon", result: one }));
    expect(goal(await reported(sessions(result, result), ["Antiphon"]), figure)?.[2]).toBe("yes");
    const outcome = await reported(sessions(result, whole), ["Antiphon"]);
    expect(goal(outcome, figure)).toEqual(["not measured", "0.000 %", "no"]);
  });

  it("makes a session that is missing concealed more than any", async () => {
    const counters = {
      playedFrames: 480_000,
      concealedFrames: 0,
      receivedPackets: 0,
      lostPackets: 0,
      seconds: 10,
    } as Growth;
    const { directions, ...rest } = whole;
    const result = { ...rest, directions: directions.map((one) => ({ ...one, counters })) };
    const both = [1, 2].map((session) => ({ session, setup: "Antiphon", result }));
    expect(goal(await reported(both, ["Antiphon"]), "frames concealed")).toEqual([
      "0.000 %",
      "0.100 %",
      "yes",
    ]);
    expect(goal(await reported(both.slice(1), ["Antiphon"]), "frames concealed")).toEqual([
      "not measured",
      "0.100 %",
      "no",
    ]);
  });

  it("is no goal missed if it was not to be measured", async () => {
    const outcome = await reported([{ session: 1, setup: "Antiphon", result: whole }], ["Antiphon"]);
    expect(goal(outcome, "Antiphon / setup A")).toBeUndefined();
    expect(goal(outcome, "frames concealed")).toEqual(["not measured", "0.100 %", "no"]);
  });
});
