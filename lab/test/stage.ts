/** Pages that play to each other, and what their counters must say: for tests in real browsers. */

import { expect, type TestContext } from "vitest";
import { listen } from "../src/analysis.js";
import {
  missingProduct,
  type PageParameters,
  type PagePeer,
  type PageStats,
  Product,
  readStats,
  untilPlaying,
} from "../src/antiphon.js";
import { type Browser, type BrowserName, type LaunchOptions, launch } from "../src/browsers.js";
import { run, sleep } from "../src/processes.js";
import { mostQueuedShare, Queues } from "../src/queues.js";
import { mic, Rig, sampleRateHz, speaker } from "../src/rig.js";
import { type Score, type ScoreOptions, writeScore } from "../src/signal.js";
import { Stalls } from "../src/stalls.js";
import { percent } from "../src/units.js";
import type { Take } from "../src/wav.js";

/** The buffer is large, so that a machine with other work to do cannot fail a test; and the steps, which cost a machine more than the frames in them. */
export const parameters = { quantum: 256, packet: 192, buffer: 8192, lanes: 1, bits: 16, channels: 2 };
const rigQuantumFrames = 256;

export let rig: Rig;
export let product: Product;
let stalls: Stalls;
let queues: Queues;
let browsers: Browser[] = [];

/** A rig with these cards, and the server. */
export async function setUp(cards: string[]): Promise<void> {
  expect(missingProduct()).toBeUndefined();
  rig = await Rig.start({ cards, quantumFrames: rigQuantumFrames });
  product = await Product.start();
  stalls = Stalls.start();
  queues = new Queues();
}

/** Reads counters twice: when a score's lead is over, and when its tone is. Neither while the device starts nor while it ends. */
export async function readAround<T>(
  {
    leadSeconds,
    pulseSeconds,
    steadySeconds,
  }: Record<"leadSeconds" | "pulseSeconds" | "steadySeconds", number>,
  read: () => Promise<T>,
): Promise<[before: T, after: T]> {
  await sleep(leadSeconds * 1000);
  const before = await read();
  await sleep((pulseSeconds + steadySeconds) * 1000);
  return [before, await read()];
}

/** Asks the sound system. */
export async function pactl(...command: string[]): Promise<string> {
  return (await run(["pactl", ...command], rig.env)).trim();
}

export async function tearDown(): Promise<void> {
  queues?.stop();
  await stalls?.stop();
  await product?.stop();
  await rig?.stop();
}

export async function closeBrowsers(): Promise<void> {
  for (const browser of browsers) await browser.close();
  browsers = [];
}

/** One that a test has ended by itself. */
export function forget(browser: Browser): void {
  browsers = browsers.filter((other) => other !== browser);
}

/** The room of the last `meet`. */
export let currentRoom = "";

/** Two processes with a card each, in one new room, hearing each other. `more`: beyond `parameters`. `host`: as they call the server. */
export async function meet(
  one: BrowserName,
  other: BrowserName,
  more: PageParameters = {},
  host = "127.0.0.1",
): Promise<[Browser, Browser]> {
  const asked = { ...parameters, ...more };
  currentRoom = product.newRoom();
  const a = await start(one, "A");
  const b = await start(other, "B");
  const url = (name: string) => product.roomUrl(currentRoom, name, asked).replace("127.0.0.1", host);
  await a.open(url("A"));
  await b.open(url("B"));
  await untilPlaying([a, b]);
  rig.favourSound();
  return [a, b];
}

/** A browser with this card. */
export async function start(
  browser: BrowserName,
  card: string,
  options: Omit<LaunchOptions, "browser" | "env"> = {},
): Promise<Browser> {
  const started = await launch({ ...options, browser, env: rig.cardEnv(card) });
  browsers.push(started);
  return started;
}

/** Waits until the page shows this text. */
export async function untilShown(page: Browser, text: string): Promise<void> {
  const deadline = Date.now() + 20_000;
  while (!(await page.evaluate((wanted) => document.body.textContent.includes(wanted), text))) {
    if (Date.now() > deadline)
      throw new Error(
        `the page does not show "${text}", but: ${await page.evaluate(() => document.body.textContent)}`,
      );
    await sleep(100);
  }
}

/** Clicks the button with this text. */
export async function press(page: Browser, text: string): Promise<void> {
  await page.evaluate((wanted) => {
    const buttons = Array.from(document.querySelectorAll("button"));
    buttons.find(({ textContent }) => textContent.trim() === wanted)!.click();
  }, text);
}

/** The start of a stream does not end. */
class Unsettled extends Error {}

/** Waits until nothing was concealed, lost or skipped for a second: the start is over. */
export async function settled(...pages: Browser[]): Promise<void> {
  for (let tries = 0; tries < 10; tries++) {
    const before = await statsOf(...pages);
    await sleep(1000);
    const after = await statsOf(...pages);
    if (before.every((stats, index) => troubles(stats.peers[0]!, after[index]!.peers[0]!).length === 0))
      return;
  }
  const peers = (await statsOf(...pages)).map((stats) => stats.peers[0]!);
  const seen = peers.map((peer) => mustStay.map((counter) => `${counter} ${peer[counter]}`).join(", "));
  throw new Unsettled(`does not settle; since joining, A counts: ${seen.join("; B counts: ")}`);
}

/**
 * A number that is missing may still be under way: lanes take turns, and while one of them is held up every second packet is. So what
 * is missing is looked for again a second later, when it has come or never will.
 */
export async function statsOf(...pages: Browser[]): Promise<PageStats[]> {
  const stats = await Promise.all(pages.map(readStats));
  await sleep(1000);
  const later = await Promise.all(pages.map(readStats));
  for (const [index, { peers }] of stats.entries()) {
    for (const peer of peers) {
      const again = later[index]!.peers.find(({ id }) => id === peer.id);
      peer.lostPackets = Math.min(peer.lostPackets, again?.lostPackets ?? peer.lostPackets);
    }
  }
  return stats;
}

/** Counters that never move where the network loses nothing. */
export const mustArrive = ["lostPackets", "malformedPackets", "droppedBacklog"] as const;
/** And these not while every thread gets the processor when it is due. */
const mustStay = [
  ...mustArrive,
  "latePackets",
  "underruns",
  "concealedFrames",
  "skippedFrames",
] as const satisfies (keyof PagePeer)[];

export function troubles(
  before: PagePeer,
  after: PagePeer,
  counters: readonly (typeof mustStay)[number][] = mustStay,
) {
  return counters
    .filter((counter) => after[counter] !== before[counter])
    .map((counter) => `${counter} +${after[counter] - before[counter]}`);
}

export type Interval = [before: PageStats[], after: PageStats[]];

/** Observations of which a fault must show in each. */
const mostObserved = 3;
/** A machine that stands still for less lets sound through: an output holds a few milliseconds. */
const mostStillMs = 5;
const mostMissingShare = 0.005;
/** No observation begins later than this after the first. */
const patienceMs = 120_000;

/** One that found something wrong. */
export interface Observation {
  wrong: string;
  /** Whether the machine let sound through. */
  isQuiet: boolean;
  /** How often microphones were opened meanwhile. */
  openings: number;
}

/**
 * What makes the observations a fault: what was wrong each time, of those in which anything can be told; or that microphones were opened anew
 * in every one that the machine left alone. Null: neither. `isOver`: no further one follows, and two that agree have to do.
 */
export function faultIn(observed: readonly Observation[], { isOver }: { isOver: boolean }): string[] | null {
  const quiet = observed.filter(({ isQuiet }) => isQuiet);
  const clear = quiet.filter(({ openings }) => openings === 0);
  if (clear.length >= mostObserved) return clear.map(({ wrong }) => wrong);
  if (clear.length > 0 || quiet.length < (isOver ? 2 : mostObserved)) return null;
  return quiet.map(({ wrong, openings }) => `${openings} microphones opened anew, ${wrong}`);
}

/** Skips a test of sound; `scripts/test` looks for the line and counts it. */
export function skipSound({ skip, task }: Pick<TestContext, "skip" | "task">, why: string): never {
  process.stderr.write(`SOUND TEST SKIPPED: ${task.name}: ${why}\n`);
  return skip(why);
}

/**
 * Nothing is wrong by what `observe` says.
 *
 * Two or three browsers and their sound system share what may be two cores, with other work besides: now and then one of them stands still
 * for longer than the buffer lasts, or for longer than a datagram may wait for its lane (100 ms). What then comes late or is dropped is not lost by
 * a fault, but not to be told from what is. So it is observed again, at most twice: a fault would be there each time. Where the whole
 * machine stood still meanwhile, where it had no processor for those who carry the sound, or where a page opened its microphone anew (as
 * Firefox's does when it was late; each time it waits longer for that), nothing was observed; a test that saw too little else is skipped, and says so.
 * But where the machine was quiet and microphones were opened anew each time all the same, that is the fault.
 */
export async function expectSound(
  context: Pick<TestContext, "skip" | "annotate" | "task">,
  observe: () => Promise<string[]>,
): Promise<void> {
  const observed: Observation[] = [];
  const begin = Date.now();
  for (;;) {
    const from = Date.now();
    const isOver = from - begin > patienceMs;
    expect(faultIn(observed, { isOver }), "what was wrong each time").toBeNull();
    if (isOver) skipSound(context, "the machine was too busy too often to tell");
    const openings = await countOpenings();
    const wrong = await observe().catch((error: unknown) => {
      if (error instanceof Unsettled) return [error.message];
      throw error;
    });
    if (wrong.length === 0) return;
    const { longestMs, missingShare } = stalls.between(from, Date.now());
    const queuedShare = queues.between(from, Date.now()) ?? 0;
    const opened = (await countOpenings()) - openings;
    const stoodStill = longestMs > mostStillMs || missingShare > mostMissingShare;
    const isQuiet = !stoodStill && queuedShare <= mostQueuedShare;
    observed.push({ wrong: wrong.join(", "), isQuiet, openings: opened });
    const machine = [
      `the machine stood still for ${longestMs} ms, ${percent(missingShare)} in all`,
      `threads waited for a processor for up to ${percent(queuedShare)} of 250 ms`,
      `microphones opened: ${opened}`,
    ];
    await context.annotate(`${wrong.join(", ")}; ${machine.join("; ")}`);
  }
}

/** How often all pages have opened their microphones. */
async function countOpenings(): Promise<number> {
  const counts = await Promise.all(browsers.map(async (page) => (await readStats(page)).microphoneOpenings));
  return counts.reduce((sum, count) => sum + count, 0);
}

/** What is wrong with what was heard of a score: pulses that are missing, or heard on the other side too. */
export function wrongIn(heard: Take, score: Score, where: string, mostCrosstalkDb = -60): string[] {
  const { hits, missed, crosstalkDb } = listen(heard, score);
  const wrong: string[] = [];
  if (missed >= hits.length / 4) wrong.push(`${where}: ${missed} of ${hits.length} pulses not heard`);
  if (crosstalkDb !== null && crosstalkDb > mostCrosstalkDb)
    wrong.push(`${where}: crosstalk ${crosstalkDb} dB`);
  return wrong;
}

/** A plays to B, and B to A at the same time: what is wrong with what they hear. */
export async function playBothWays(
  seconds: Omit<ScoreOptions, "voice" | "sampleRateHz">,
  mostCrosstalkDb?: number,
): Promise<string[]> {
  const scores = ([0, 1] as const).map((voice) => writeScore({ voice, sampleRateHz, ...seconds }));
  const { heard } = await rig.pass({
    plays: [
      { take: scores[0]!.take, to: mic("A") },
      { take: scores[1]!.take, to: mic("B") },
    ],
    hears: [speaker("B"), speaker("A")],
  });
  return heard.flatMap((take, n) => wrongIn(take, scores[n]!, `at ${["B", "A"][n]}`, mostCrosstalkDb));
}

/**
 * What is wrong with the streams between A and B in an interval: every frame received is to be played once, and nothing else. A malformed
 * packet is a fault at once.
 */
export function wrongCounts([before, after]: Interval): string[] {
  return [0, 1].flatMap((index) => faults(before[index]!, after[index]!, ["B", "A"][index]!));
}

/** What one page counts of another's stream that should not be. */
function faults(earlier: PageStats, later: PageStats, name: string): string[] {
  const [from, to] = [earlier, later].map((stats) => stats.peers.find((peer) => peer.name === name)!);
  expect(troubles(from!, to!, ["malformedPackets"]), `what is heard of ${name}`).toEqual([]);
  const grown = (
    counter: "receivedFrames" | "playedFrames" | "skippedFrames" | "concealedFrames" | "copiedFrames",
  ) => to![counter] - from![counter];
  const received = grown("receivedFrames");
  expect(received).toBeGreaterThan(0);
  const overrun = later.sender.overrunFrames - earlier.sender.overrunFrames;
  const overflows = later.ringOverflows - earlier.ringOverflows;
  // The figures of one record are read one after another, by threads that go on meanwhile: hence a few packets of play.
  const play = 16 * later.packetFrames;
  // What was received and not played yet waits in the buffer.
  const waiting = (to!.bufferFrames ?? 0) - (from!.bufferFrames ?? 0);
  const astray = received - grown("playedFrames") - grown("skippedFrames") - grown("copiedFrames") - waiting;
  const found = troubles(from!, to!, [...mustArrive, "latePackets"]);
  // Where the sound system stands still, a page renders less than it receives, and skips just that; where it stands still at the
  // other end, less comes than is rendered, and just that is concealed. What exceeds it is the engine's own.
  const rendered = (later.quanta - earlier.quanta) * (later.quantumFrames ?? 0);
  const ahead = received - grown("copiedFrames") - waiting - rendered;
  const skipped = grown("skippedFrames") - Math.max(0, ahead);
  const concealed = grown("concealedFrames") - Math.max(0, -ahead);
  if (skipped > play)
    found.push(`${name}: skippedFrames +${grown("skippedFrames")}, of ${ahead} that had to be`);
  if (concealed > play)
    found.push(`${name}: concealedFrames +${grown("concealedFrames")}, of ${-ahead} that had to be`);
  if (overrun !== 0) found.push(`overrun ${overrun}`);
  if (overflows !== 0) found.push(`ring overflows ${overflows}`);
  if (Math.abs(astray) > play) found.push(`${name}: ${astray} frames neither played nor waiting`);
  return found;
}
