/** The ways from mouth to ear that are compared: docs/lab-method.md. Each starts its browsers, measures, and ends them. */

import { type Hearing, listen, quantile } from "./analysis.js";
import {
  answerOf,
  type Kept,
  keepAll,
  type PageParameters,
  type PageStats,
  type PageStream,
  type PageTrace,
  type Product,
  readStats,
  readTrace,
  untilPlaying,
} from "./antiphon.js";
import { type Browser, type LaunchOptions, launch } from "./browsers.js";
import type { PageServer } from "./pages.js";
import { sleep } from "./processes.js";
import { type DeviceSummary, mic, playback, type Rig, sampleRateHz, speaker } from "./rig.js";
import { type Score, writeScore } from "./signal.js";
import { framesPerMs } from "./units.js";

export interface Stage {
  rig: Rig;
  pages: PageServer;
  product: Product;
  /** How to launch the browsers, without a card. */
  browser: LaunchOptions;
  parameters: PageParameters;
  /** Before playing begins, and from there to the first pulse: starting the device disturbs what runs on the machine. */
  settleSeconds: number;
  leadSeconds: number;
  pulseSeconds: number;
  steadySeconds: number;
  /** Of a setup that has one page only: default A. */
  card?: "A" | "B";
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

/** What counters grew by, and in what time. */
export interface Growth extends Counters {
  seconds: number;
}

/** The browsers' own words about the receiving end, not measurements. */
export interface Report {
  quantumFrames: number | null;
  reportedBaseLatencyMs: number | null;
  reportedOutputLatencyMs: number | null;
  reportedInputLatencyMs: number | null;
}

/** Where a packet's time goes, medians of a trace. */
export interface Budget {
  /** Frames that the browser hands over at a time. */
  blockFrames: number;
  /** From a block's capture to its packets' way out. */
  packetMs: number;
  /** From there to the other page's network thread. */
  networkMs: number;
  /** What the jitter buffer aimed at while the pulses sounded. */
  bufferMs: number;
}

export interface Direction {
  name: string;
  hearing: Hearing;
  counters: Growth | null;
  report: Report;
  budget: Budget | null;
  /** What the page itself says of this direction while the pulses sound, once a second; empty where it says nothing. */
  own: OwnLook[];
}

/** A look at the page's own figure. */
export interface OwnLook {
  /** The take's frame that was played then, within some 10 ms. */
  frame: number;
  /** Sum of the stages that it knows, and the error that it states. */
  knownMs: number;
  errorMs: number;
  /** Part of that: of the offset between the two clocks. */
  offsetErrorMs: number;
  /** Whether it knows all stages. */
  isWhole: boolean;
  /** The stages, from microphone to ear; null where one is unknown. */
  stagesMs: (number | null)[];
}

export interface SetupResult {
  directions: Direction[];
  calibration: Hearing;
  summary: DeviceSummary;
  browserVersion: string;
  pageErrors: string[];
  /** What broke once sound had flowed: see `Take`. */
  troubles: string[];
}

/** Pages of lab/pages. */
const pageOf: Record<string, string> = {
  A: "setup-a.html",
  B0: "paper.html?setup=B0",
  B1: "paper.html?setup=B1",
  C0: "paper.html?setup=C0",
  C1: "paper.html?setup=C1",
  RTC: "rtc-media.html",
};

export const setups: Record<string, (stage: Stage) => Promise<SetupResult>> = {
  A: (stage) => onePage(stage, pageOf.A!),
  B0: (stage) => onePage(stage, pageOf.B0!),
  B1: (stage) => onePage(stage, pageOf.B1!),
  C0: (stage) => twoPages(stage, pageOf.C0!),
  C1: (stage) => twoPages(stage, pageOf.C1!),
  RTC: (stage) => twoPages(stage, pageOf.RTC!),
  "Antiphon, messages": (stage) => antiphon(stage, { ...stage.parameters, transport: "port" }),
  // The least buffer there is: what the way itself takes, however much of the sound is lost by that.
  "Antiphon, least": (stage) => antiphon(stage, { ...stage.parameters, buffer: 64 }),
  "Antiphon, relayed": (stage) => antiphon(stage, { ...stage.parameters, path: "relay" }),
  "Antiphon, mixed": (stage) => antiphon(stage, { ...stage.parameters, path: "mix" }),
  Antiphon: (stage) => antiphon(stage, stage.parameters),
};

async function onePage(stage: Stage, address: string): Promise<SetupResult> {
  const { card = "A" } = stage;
  return withBrowsers(stage, [card], async ([a]) => {
    await a!.open(`${stage.pages.url}${address}`);
    await a!.evaluate(() => page().start());
    const troubles: string[] = [];
    const handOver = await keepAll<Counters>([a!], troubles);
    await sleep(stage.settleSeconds * 1000);
    const [score] = scores(stage);
    const { heard, calibration, summary } = await pass(stage, [{ score: score!, from: card, to: card }]);
    const [kept] = await handOver();
    const counters = counted(stage, summary, kept!);
    const report =
      (await answerOf(
        a!.evaluate(() => page().report()),
        troubles,
      )) ?? nothingSaid;
    return {
      directions: [
        { name: `${card} to ${card}`, hearing: heard[0]!, counters, report, budget: null, own: [] },
      ],
      calibration,
      summary,
      troubles,
      ...about(a!),
    };
  });
}

async function twoPages(stage: Stage, address: string): Promise<SetupResult> {
  return withPages(stage, address, async ([a, b]) => {
    const { result, kept } = await bothWays<Counters>(stage, a, b, (end) =>
      end.evaluate(() => page().report()),
    );
    for (const [index, direction] of result.directions.entries())
      direction.counters = counted(stage, result.summary, kept[index]!);
    return result;
  });
}

async function antiphon(stage: Stage, parameters: PageParameters): Promise<SetupResult> {
  return withRoom({ ...stage, parameters }, (pair) => measureRoom({ ...stage, parameters }, pair));
}

/** Two pages of Antiphon that hear each other. What breaks from now on is in the result. */
export async function measureRoom(
  stage: Omit<Stage, "pages" | "product" | "browser">,
  [a, b]: Pair,
): Promise<SetupResult> {
  const { result, kept } = await bothWays<PageStats>(stage, a, b, readStats);
  // After the pulses: handing a trace over disturbs the page, and the jitter buffer remembers that for a while.
  const [traceA, traceB] = await Promise.all(
    [a, b].map((end) =>
      answerOf(readTrace(end, Math.min(traceSeconds, stage.pulseSeconds)), result.troubles),
    ),
  );
  const [ab, ba] = result.directions;
  for (const [direction, keptThere, sent, received] of [
    [ab!, kept[0]!, traceA!, traceB!],
    [ba!, kept[1]!, traceB!, traceA!],
  ] as const) {
    const { own, counters, targetFrames } = during(stage, result.summary, keptThere);
    // Packets of a mix are not those that were sent.
    const isKnown = stage.parameters.path !== "mix" && targetFrames !== null;
    const budget = isKnown && sent && received ? budgetOf(sent, received, targetFrames) : null;
    Object.assign(direction, { own, counters, budget });
  }
  return result;
}

type Lengths = Pick<Stage, "leadSeconds" | "pulseSeconds" | "steadySeconds">;

/** Of what a page kept: the last before pulses and tone sounded, the last while they did, and all while pulses did, each with its place in the take. */
function cut<T>(
  { leadSeconds, pulseSeconds, steadySeconds }: Lengths,
  { began_ms: beganMs }: Pick<DeviceSummary, "began_ms">,
  kept: readonly Kept<T>[],
) {
  if (beganMs === null) throw new Error("the device does not say when its takes began");
  const placed = kept.map(({ atMs, said }) => ({ seconds: (atMs - beganMs) / 1000, said }));
  const before = (end: number) => placed.findLast(({ seconds }) => seconds <= end);
  return {
    first: before(leadSeconds),
    last: before(leadSeconds + pulseSeconds + steadySeconds),
    sounding: placed.filter(({ seconds }) => seconds > leadSeconds && seconds <= leadSeconds + pulseSeconds),
  };
}

/** By how much a page's counters grew while pulses and tone sounded; null of a page that counts nothing. One that died, or was stuck from before the pulses on, played nothing. */
export function counted(
  stage: Lengths,
  summary: Pick<DeviceSummary, "began_ms">,
  kept: readonly Kept<Counters>[] | null,
): Growth | null {
  if (kept?.length === 0) return null;
  const { first, last } = cut(stage, summary, kept ?? []);
  if (!first || !last) return nothingCounted(stage);
  return { ...increments(first.said, last.said), seconds: last.seconds - first.seconds };
}

/** Of somebody or a page that is not there any more. */
const nothingPlayed: Counters = {
  playedFrames: 0,
  concealedFrames: 0,
  skippedFrames: null,
  receivedPackets: null,
  lostPackets: null,
  latePackets: null,
  underruns: null,
  bufferFrames: null,
};

function nothingCounted({ pulseSeconds, steadySeconds }: Lengths): Growth {
  return { ...nothingPlayed, seconds: pulseSeconds + steadySeconds };
}

const nothingSaid: Report = {
  quantumFrames: null,
  reportedBaseLatencyMs: null,
  reportedOutputLatencyMs: null,
  reportedInputLatencyMs: null,
};

/**
 * So much of the time may be missing in what a page counted, whichever is more. It renews its counters every 50 ms, and clocks are 0.02 % apart at most; but an output
 * slips where the machine stands still: at most 0.7 % were missing of streams that had not run dry, while the device missed 42,112 frames (results/2026-11-26-m2e-5).
 */
const mostUncountedShare = 0.01;
const mostUncountedSeconds = 0.1;

/**
 * Frames concealed, and of how many, in so many streams. Of one that ran dry the engine counts neither what it played nor what it concealed: what is missing of the time was
 * concealed. Null where the page counts no such thing, or nothing.
 */
export function concealment(
  { playedFrames, concealedFrames, seconds }: Pick<Growth, "playedFrames" | "concealedFrames" | "seconds">,
  streams = 1,
): { frames: number; of: number } | null {
  if (playedFrames === null || concealedFrames === null) return null;
  const counted = playedFrames + concealedFrames;
  const missing = seconds * sampleRateHz * streams - counted;
  const tolerated = Math.max(mostUncountedShare * seconds, mostUncountedSeconds) * sampleRateHz * streams;
  const uncounted = missing > tolerated ? missing : 0;
  const of = counted + uncounted;
  return of > 0 ? { frames: concealedFrames + uncounted, of } : null;
}

/** What a page said of its peer while pulses and tone sounded. One that died, or was stuck from before the pulses on, said and played nothing. */
export function during(
  stage: Lengths,
  summary: Pick<DeviceSummary, "began_ms">,
  kept: readonly Kept<PageStats>[] | null,
): {
  own: OwnLook[];
  looks: PageStats[];
  /** Between them the counters grew; null of a page that said nothing. */
  ends: [PageStats, PageStats] | null;
  counters: Growth;
  /** What the jitter buffer aimed at, the middle of the looks; null without a peer. */
  targetFrames: number | null;
} {
  const { first, last, sounding } = cut(stage, summary, kept ?? []);
  if (!first || !last)
    return { own: [], looks: [], ends: null, counters: nothingCounted(stage), targetFrames: null };
  const [before, after] = [first, last].map(({ said }) => heard(said));
  const own = sounding.flatMap(({ seconds, said }): OwnLook[] => {
    const delay = said.peers[0]?.mouthToEar;
    if (!delay) return [];
    const { ms, knownMs, errorMs, offsetErrorMs, stages } = delay;
    const frame = seconds * sampleRateHz;
    return [
      { frame, knownMs, errorMs, offsetErrorMs, isWhole: ms !== null, stagesMs: stages.map((one) => one.ms) },
    ];
  });
  const grown = before && after ? increments(countersOf(before), countersOf(after)) : nothingPlayed;
  const aims = sounding.flatMap(({ said }) => heard(said)?.targetFrames ?? []);
  return {
    own,
    looks: sounding.map(({ said }) => said),
    ends: [first.said, last.said],
    counters: { ...grown, seconds: last.seconds - first.seconds },
    targetFrames: quantile(aims, 0.5) ?? after?.targetFrames ?? null,
  };
}

/** The stream in which a page's peer is heard. */
function heard(said: PageStats): PageStream | undefined {
  const peer = said.peers[0];
  return (peer?.path === "mix" ? said.mix : peer) ?? undefined;
}

type Meeting = Pick<Stage, "rig" | "pages" | "product" | "browser" | "parameters">;
type Pair = [a: Browser, b: Browser];

/** Two browsers, A and B, that hear each other by the named setup, while `body` lasts. */
export function meet<T>(stage: Meeting, setup: string, body: (pair: Pair) => Promise<T>): Promise<T> {
  return setup === "Antiphon" ? withRoom(stage, body) : withPages(stage, pageOf[setup]!, body);
}

async function withPages<T>(stage: Meeting, address: string, body: (pair: Pair) => Promise<T>): Promise<T> {
  return withBrowsers(stage, ["A", "B"], async ([a, b]) => {
    for (const end of [a!, b!]) {
      await end.open(`${stage.pages.url}${address}`);
      await end.evaluate(() => page().start());
    }
    const offer = await a!.evaluate(() => page().describe());
    const answer = await b!.evaluate((description) => page().describe(description), offer);
    await a!.evaluate((description) => page().accept(description), answer);
    for (const end of [a!, b!]) await until(() => end.evaluate(() => page().ready()), "sound to flow");
    return body([a!, b!]);
  });
}

async function withRoom<T>(stage: Meeting, body: (pair: Pair) => Promise<T>): Promise<T> {
  return withBrowsers(stage, ["A", "B"], async ([a, b]) => {
    const room = stage.product.newRoom();
    await a!.open(stage.product.roomUrl(room, "A", stage.parameters));
    await b!.open(stage.product.roomUrl(room, "B", stage.parameters));
    await untilPlaying([a!, b!]);
    return body([a!, b!]);
  });
}

/** Of a trace that tells the budget: a hundred blocks of 1,024 frames. */
const traceSeconds = 3;

/** From the traces of a sender and of who receives it alone, taken at the same time; null if no packet is in both. */
export function budgetOf(sender: PageTrace, receiver: PageTrace, targetFrames: number): Budget | null {
  const delays = delaysMs(sender, receiver);
  const { timeMs, frames } = sender.captured;
  let block = 0;
  const packetMs = sender.sent.timeMs.flatMap((sentMs) => {
    while (block + 1 < timeMs.length && timeMs[block + 1]! <= sentMs) block++;
    return timeMs[block] !== undefined && timeMs[block]! <= sentMs ? [sentMs - timeMs[block]!] : [];
  });
  const [network, packet, blockFrames] = [delays, packetMs, frames].map((values) => quantile(values, 0.5));
  if (network === null || packet === null || blockFrames === null) return null;
  return {
    blockFrames: blockFrames!,
    packetMs: packet!,
    networkMs: network!,
    bufferMs: targetFrames / framesPerMs,
  };
}

/** Delay of each packet that arrived itself and is in both traces, in order of sending, from the one page's network thread to the other's. */
export function delaysMs(sender: PageTrace, receiver: PageTrace): number[] {
  const arrivals = firstArrivals(receiver);
  return sender.sent.firstFrame.flatMap((firstFrame, index) => {
    const arrived = arrivals.get(firstFrame);
    return arrived === undefined ? [] : [arrived - sender.sent.timeMs[index]!];
  });
}

/** When the packet of each first frame came first, itself or also as a copy. Not by sequence numbers: each path has its own. For a page that hears one peer. */
export function firstArrivals({ received }: PageTrace, { copies = false } = {}): Map<number, number> {
  const arrivals = new Map<number, number>();
  for (const [index, firstFrame] of received.firstFrame.entries())
    if (!arrivals.has(firstFrame) && (copies || !received.isCopy[index]))
      arrivals.set(firstFrame, received.timeMs[index]!);
  return arrivals;
}

/** Of packets sent: how long each that arrived took, and how many never did. */
export interface Delays {
  arrivedMs: number[];
  missing: number;
}

/** Of each packet sent while both traces ran, without the last second: those may still be under way. With `copies`, a packet's copy is as good as itself. */
export function delaysOfSent(sender: PageTrace, receiver: PageTrace, options: { copies: boolean }): Delays {
  const arrivals = firstArrivals(receiver, options);
  // Both traces begin within moments of each other: what was sent before the receiver looked is not counted. Its first event tells when that was, of whatever kind:
  // where nothing came it still captures, and all is missing.
  const { captured, sent, received } = receiver;
  const firstMs = [captured, sent, received].flatMap(({ timeMs }) => timeMs.slice(0, 1));
  const begin = (quantile(firstMs, 0) ?? sender.sent.timeMs[0] ?? 0) + 200;
  const end = (sender.sent.timeMs.at(-1) ?? 0) - 1000;
  const delays = sender.sent.timeMs.flatMap((timeMs, index) => {
    if (timeMs < begin || timeMs > end) return [];
    return [(arrivals.get(sender.sent.firstFrame[index]!) ?? Number.POSITIVE_INFINITY) - timeMs];
  });
  const arrivedMs = delays.filter(Number.isFinite);
  return { arrivedMs, missing: delays.length - arrivedMs.length };
}

/** Infinite where the percentile falls among what never came; null of nothing. */
export function delayQuantile({ arrivedMs, missing }: Delays, p: number): number | null {
  return quantile([...arrivedMs, ...Array<number>(missing).fill(Number.POSITIVE_INFINITY)], p);
}

export function together(all: readonly Delays[]): Delays {
  return {
    arrivedMs: all.flatMap(({ arrivedMs }) => arrivedMs),
    missing: all.reduce((sum, { missing }) => sum + missing, 0),
  };
}

/** The functions that the pages of lab/pages offer. Runs in the page. */
declare function page(): {
  start(): Promise<void>;
  report(): Report;
  describe(offer?: RTCSessionDescriptionInit): Promise<RTCSessionDescriptionInit>;
  accept(answer: RTCSessionDescriptionInit): Promise<void>;
  ready(): boolean | Promise<boolean>;
  /** Not where there is nothing to count. */
  counters?(): Promise<Counters>;
};

/** `kept`: by each direction's receiving page, for what counts to be told from it. */
async function bothWays<T>(
  stage: Pick<Stage, "rig" | "settleSeconds"> & Lengths,
  a: Browser,
  b: Browser,
  readReport: (end: Browser) => Promise<Report>,
): Promise<{ result: SetupResult; kept: (Kept<T>[] | null)[] }> {
  const troubles: string[] = [];
  const handOver = await keepAll<T>([b, a], troubles);
  await sleep(stage.settleSeconds * 1000);
  const [ab, ba] = scores(stage);
  const { heard, calibration, summary } = await pass(stage, [
    { score: ab!, from: "A", to: "B" },
    { score: ba!, from: "B", to: "A" },
  ]);
  const kept = await handOver();
  const directions: Direction[] = [];
  for (const [index, end] of [b, a].entries()) {
    const { quantumFrames, reportedBaseLatencyMs, reportedOutputLatencyMs, reportedInputLatencyMs } =
      (await answerOf(readReport(end), troubles)) ?? nothingSaid;
    directions.push({
      name: index === 0 ? "A to B" : "B to A",
      hearing: heard[index]!,
      counters: null,
      report: { quantumFrames, reportedBaseLatencyMs, reportedOutputLatencyMs, reportedInputLatencyMs },
      budget: null,
      own: [],
    });
  }
  return { result: { directions, calibration, summary, troubles, ...about(a, b) }, kept };
}

/** Plays every score at once, and the first one through the idle card too: the run's own calibration. */
async function pass(stage: Pick<Stage, "rig"> & Lengths, ways: { score: Score; from: string; to: string }[]) {
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

function scores({ leadSeconds, pulseSeconds, steadySeconds }: Lengths): Score[] {
  const seconds = { leadSeconds, pulseSeconds, steadySeconds, tailSeconds: 3 };
  return ([0, 1] as const).map((voice) => writeScore({ voice, sampleRateHz, ...seconds }));
}

/** Starts a browser for each card, and ends them all, whatever happens. `places`: on which side of an emulated network, by card. */
export async function withBrowsers<T>(
  {
    rig,
    browser,
    places = {},
  }: { rig: Rig; browser: LaunchOptions; places?: Record<string, NonNullable<LaunchOptions["place"]>> },
  cards: string[],
  body: (browsers: Browser[]) => Promise<T>,
): Promise<T> {
  const browsers: Browser[] = [];
  try {
    for (const card of cards) {
      const place = places[card];
      browsers.push(await launch({ ...browser, env: rig.cardEnv(card), ...(place && { place }) }));
    }
    return await body(browsers);
  } finally {
    for (const one of browsers) await one.close();
  }
}

export function countersOf(peer: PageStream): Counters {
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
export function increments(before: Counters, after: Counters): Counters {
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

/** *Errors* if it takes longer. */
export async function until(ready: () => Promise<boolean>, what: string, seconds = 20): Promise<void> {
  const deadline = Date.now() + seconds * 1000;
  while (!(await ready())) {
    if (Date.now() > deadline) throw new Error(`waited ${seconds} s for ${what}`);
    await sleep(100);
  }
}
