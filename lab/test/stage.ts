/** Pages that play to each other, and what their counters must say: for tests in real browsers. */

import { expect } from "vitest";
import {
  missingProduct,
  type PageParameters,
  type PagePeer,
  type PageStats,
  Product,
  readStats,
  untilPlaying,
} from "../src/antiphon.js";
import { type Browser, type BrowserName, launch } from "../src/browsers.js";
import { sleep } from "../src/processes.js";
import { Rig } from "../src/rig.js";

/** The buffer is large, so that a machine with other work to do cannot fail a test. */
export const parameters = { quantum: 128, packet: 128, buffer: 8192, lanes: 1, bits: 16, channels: 2 };

export let rig: Rig;
export let product: Product;
let browsers: Browser[] = [];

/** A rig with these cards, and the server. */
export async function setUp(cards: string[]): Promise<void> {
  expect(missingProduct()).toBeUndefined();
  rig = await Rig.start({ cards });
  product = await Product.start();
}

export async function tearDown(): Promise<void> {
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

/** Two processes with a card each, in one new room, hearing each other steadily. `more`: beyond `parameters`. `host`: as they call the server. */
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
  await settled(a, b);
  return [a, b];
}

/** A browser with this card. */
export async function start(browser: BrowserName, card: string): Promise<Browser> {
  const started = await launch({ browser, env: rig.cardEnv(card) });
  browsers.push(started);
  return started;
}

/** Waits until nothing was concealed, lost or skipped for a second: the start is over. */
export async function settled(...pages: Browser[]): Promise<void> {
  for (let tries = 0; tries < 20; tries++) {
    const before = await statsOf(...pages);
    await sleep(1000);
    const after = await statsOf(...pages);
    if (before.every((stats, index) => troubles(stats.peers[0]!, after[index]!.peers[0]!).length === 0))
      return;
  }
  const peers = (await statsOf(...pages)).map((stats) => stats.peers[0]!);
  const seen = peers.map((peer) => mustStay.map((counter) => `${counter} ${peer[counter]}`).join(", "));
  throw new Error(`the stream does not settle; since joining, A counts: ${seen.join("; B counts: ")}`);
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

/**
 * Of the stream between A and B: in the interval that `observe` returns, every frame received was played once, and nothing else was.
 *
 * Two or three browsers and their sound system share what may be two cores, with other work besides: now and then one of them stands still
 * for longer than the buffer lasts, or for longer than a datagram may wait for its lane (100 ms). What then comes late or is dropped is not lost by
 * a fault, but not to be told from what is. So such an interval is observed again, at most twice: a fault would be there each time. A malformed
 * packet is a fault at once.
 */
export async function expectWhole(
  pages: [Browser, Browser],
  observe: () => Promise<Interval>,
): Promise<void> {
  const seen: string[] = [];
  for (let tries = 0; tries < 3; tries++) {
    if (tries > 0) await settled(...pages);
    const [before, after] = await observe();
    const found = [0, 1].flatMap((index) => faults(before[index]!, after[index]!, ["B", "A"][index]!));
    if (found.length === 0) return;
    seen.push(found.join(", "));
  }
  expect(seen, "what was wrong in each of three intervals").toEqual([]);
}

/** What one page counts of another's stream that should not be. */
function faults(earlier: PageStats, later: PageStats, name: string): string[] {
  const [from, to] = [earlier, later].map((stats) => stats.peers.find((peer) => peer.name === name)!);
  expect(troubles(from!, to!, ["malformedPackets"]), `what is heard of ${name}`).toEqual([]);
  const grown = (
    counter: "receivedPackets" | "playedFrames" | "skippedFrames" | "concealedFrames" | "copiedFrames",
  ) => to![counter] - from![counter];
  const received = grown("receivedPackets") * later.packetFrames;
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
