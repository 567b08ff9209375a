/** The three ways from mouth to ear that the bench compares. Each leg starts its browsers, measures, and ends them. */

import { type Hearing, listen } from "./analysis.js";
import { type PageParameters, type PagePeer, type Product, readStats, untilPlaying } from "./antiphon.js";
import { type Browser, type LaunchOptions, launch } from "./browsers.js";
import type { PageServer } from "./pages.js";
import { sleep } from "./processes.js";
import { type DeviceSummary, mic, playback, type Rig, readAround, sampleRateHz, speaker } from "./rig.js";
import { type Score, writeScore } from "./signal.js";

export type LegName = "setup A" | "RTC media" | "Antiphon";

export interface Stage {
  rig: Rig;
  pages: PageServer;
  product: Product | undefined;
  /** How to launch the browsers, without a card. */
  browser: LaunchOptions;
  parameters: PageParameters;
  /** Before playing begins, and from there to the first pulse: starting the device disturbs what runs on the machine. */
  settleSeconds: number;
  leadSeconds: number;
  pulseSeconds: number;
  steadySeconds: number;
}

/** Counters of the receiving end over the measured interval; null where it counts no such thing. */
export interface Counters {
  playedFrames: number | null;
  concealedFrames: number | null;
  skippedFrames: number | null;
  receivedPackets: number | null;
  lostPackets: number | null;
  latePackets: number | null;
  underruns: number | null;
  bufferFrames: number | null;
}

/** The browsers' own words about the receiving end, not measurements. */
export interface Report {
  quantumFrames: number | null;
  reportedBaseLatencyMs: number | null;
  reportedOutputLatencyMs: number | null;
  reportedInputLatencyMs: number | null;
}

export interface Direction {
  name: string;
  hearing: Hearing;
  counters: Counters | null;
  report: Report;
}

export interface LegResult {
  directions: Direction[];
  calibration: Hearing;
  summary: DeviceSummary;
  browserVersion: string;
  pageErrors: string[];
}

export const legs: Record<LegName, (stage: Stage) => Promise<LegResult>> = {
  "setup A": async (stage) => {
    return withBrowsers(stage, ["A"], async ([a]) => {
      await a!.open(`${stage.pages.url}setup-a.html`);
      await a!.evaluate(() => page().start());
      await sleep(stage.settleSeconds * 1000);
      const [score] = scores(stage);
      const { heard, calibration, summary } = await pass(stage, [{ score: score!, from: "A", to: "A" }]);
      const report = await a!.evaluate(() => page().report());
      return {
        directions: [{ name: "A to A", hearing: heard[0]!, counters: null, report }],
        calibration,
        summary,
        ...about(a!),
      };
    });
  },

  "RTC media": async (stage) => {
    return withBrowsers(stage, ["A", "B"], async ([a, b]) => {
      for (const end of [a!, b!]) {
        await end.open(`${stage.pages.url}rtc-media.html`);
        await end.evaluate(() => page().start());
      }
      const offer = await a!.evaluate(() => page().describe());
      const answer = await b!.evaluate((description) => page().describe(description), offer);
      await a!.evaluate((description) => page().accept(description), answer);
      for (const end of [a!, b!]) await until(() => end.evaluate(() => page().ready()), "RTC media to flow");
      await sleep(stage.settleSeconds * 1000);
      return bothWays(stage, a!, b!, {
        count: (end) => end.evaluate(() => page().counters()),
        report: (end) => end.evaluate(() => page().report()),
      });
    });
  },

  Antiphon: async (stage) => {
    const { product } = stage;
    if (!product) throw new Error("the product is not built");
    return withBrowsers(stage, ["A", "B"], async ([a, b]) => {
      const room = product.newRoom();
      await a!.open(product.roomUrl(room, "A", stage.parameters));
      await b!.open(product.roomUrl(room, "B", stage.parameters));
      await untilPlaying([a!, b!]);
      await sleep(stage.settleSeconds * 1000);
      return bothWays(stage, a!, b!, {
        count: async (end) => countersOf((await readStats(end)).peers[0]!),
        report: readStats,
      });
    });
  },
};

/** The functions that the pages of lab/pages offer. Runs in the page. */
declare function page(): {
  start(): Promise<void>;
  report(): Report;
  describe(offer?: RTCSessionDescriptionInit): Promise<RTCSessionDescriptionInit>;
  accept(answer: RTCSessionDescriptionInit): Promise<void>;
  ready(): boolean;
  counters(): Promise<Counters>;
};

async function bothWays(
  stage: Stage,
  a: Browser,
  b: Browser,
  read: { count(end: Browser): Promise<Counters>; report(end: Browser): Promise<Report> },
): Promise<LegResult> {
  const [ab, ba] = scores(stage);
  const [{ heard, calibration, summary }, [before, after]] = await Promise.all([
    pass(stage, [
      { score: ab!, from: "A", to: "B" },
      { score: ba!, from: "B", to: "A" },
    ]),
    readAround(stage, () => Promise.all([read.count(b), read.count(a)])),
  ]);
  const directions: Direction[] = [];
  for (const [index, end] of [b, a].entries()) {
    const { quantumFrames, reportedBaseLatencyMs, reportedOutputLatencyMs, reportedInputLatencyMs } =
      await read.report(end);
    directions.push({
      name: index === 0 ? "A to B" : "B to A",
      hearing: heard[index]!,
      counters: increments(before[index]!, after[index]!),
      report: { quantumFrames, reportedBaseLatencyMs, reportedOutputLatencyMs, reportedInputLatencyMs },
    });
  }
  return { directions, calibration, summary, ...about(a, b) };
}

/** Plays every score at once, and the first one through the idle card too: the run's own calibration. */
async function pass(stage: Stage, ways: { score: Score; from: string; to: string }[]) {
  stage.rig.favourSound();
  const { heard, summary } = await stage.rig.pass({
    plays: [
      ...ways.map(({ score, from }) => ({ take: score.take, to: mic(from) })),
      { take: ways[0]!.score.take, to: playback("Loop") },
    ],
    hears: [...ways.map(({ to }) => speaker(to)), speaker("Loop")],
  });
  return {
    heard: ways.map(({ score }, index) => listen(heard[index]!, score)),
    calibration: listen(heard[ways.length]!, ways[0]!.score, { maxLatencyFrames: 4096 }),
    summary,
  };
}

function scores({ leadSeconds, pulseSeconds, steadySeconds }: Stage): Score[] {
  const seconds = { leadSeconds, pulseSeconds, steadySeconds, tailSeconds: 3 };
  return ([0, 1] as const).map((voice) => writeScore({ voice, sampleRateHz, ...seconds }));
}

async function withBrowsers(
  { rig, browser }: Stage,
  cards: string[],
  body: (browsers: Browser[]) => Promise<LegResult>,
): Promise<LegResult> {
  const browsers: Browser[] = [];
  try {
    for (const card of cards) browsers.push(await launch({ ...browser, env: rig.cardEnv(card) }));
    return await body(browsers);
  } finally {
    for (const one of browsers) await one.close();
  }
}

export function countersOf(peer: PagePeer): Counters {
  const {
    playedFrames,
    concealedFrames,
    skippedFrames,
    receivedPackets,
    lostPackets,
    latePackets,
    underruns,
  } = peer;
  const { bufferFrames } = peer;
  return {
    playedFrames,
    concealedFrames,
    skippedFrames,
    receivedPackets,
    lostPackets,
    latePackets,
    underruns,
    bufferFrames,
  };
}

/** What the counters grew by; `bufferFrames` is no counter and keeps its last value. */
function increments(before: Counters, after: Counters): Counters {
  const grown = { ...after };
  for (const key of Object.keys(after) as (keyof Counters)[]) {
    const [from, to] = [before[key], after[key]];
    if (key !== "bufferFrames") grown[key] = from === null || to === null ? null : to - from;
  }
  return grown;
}

function about(...browsers: Browser[]): { browserVersion: string; pageErrors: string[] } {
  return {
    browserVersion: [...new Set(browsers.map((browser) => browser.version))].join(" + "),
    pageErrors: browsers.flatMap((browser) => browser.errors),
  };
}

async function until(ready: () => Promise<boolean>, what: string, seconds = 20): Promise<void> {
  const deadline = Date.now() + seconds * 1000;
  while (!(await ready())) {
    if (Date.now() > deadline) throw new Error(`waited ${seconds} s for ${what}`);
    await sleep(100);
  }
}
