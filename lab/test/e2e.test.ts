/**
 * The product in real browsers on real (virtual) sound cards. Asserts frames, sequence and sides; never times, which
 * belong to the bench. The buffer is large, so that a machine with other work to do cannot fail a test.
 */

import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { listen } from "../src/analysis.js";
import {
  missingProduct,
  type PagePeer,
  type PageStats,
  Product,
  readStats,
  untilPlaying,
} from "../src/antiphon.js";
import { type Browser, type BrowserName, launch } from "../src/browsers.js";
import { sleep } from "../src/processes.js";
import { mic, Rig, sampleRateHz, speaker } from "../src/rig.js";
import { writeScore } from "../src/signal.js";

const parameters = { quantum: 128, packet: 128, buffer: 8192, lanes: 1, bits: 16, channels: 2 };

let rig: Rig;
let product: Product;
let browsers: Browser[] = [];

describe("the product", () => {
  beforeAll(async () => {
    expect(missingProduct()).toBeUndefined();
    rig = await Rig.start({ cards: ["A", "B", "C"] });
    product = await Product.start();
  });

  afterEach(async () => {
    for (const browser of browsers) await browser.close();
    browsers = [];
  });

  afterAll(async () => {
    await product?.stop();
    await rig?.stop();
  });

  describe.each<[BrowserName, BrowserName]>([
    ["chromium", "chromium"],
    ["firefox", "firefox"],
    ["chromium", "firefox"],
  ])("between %s and %s", (one, other) => {
    it("carries stereo both ways at once, sides apart, every frame once", async () => {
      const [a, b] = await meet(one, other);
      const scores = ([0, 1] as const).map((voice) =>
        writeScore({ voice, sampleRateHz, pulseSeconds: 3, steadySeconds: 2 }),
      );
      const before = await statsOf(a, b);
      const { heard } = await rig.pass({
        plays: [
          { take: scores[0]!.take, to: mic("A") },
          { take: scores[1]!.take, to: mic("B") },
        ],
        hears: [speaker("B"), speaker("A")],
      });
      const after = await statsOf(a, b);
      for (const direction of [0, 1]) {
        const { hits, missed, crosstalkDb } = listen(heard[direction]!, scores[direction]!);
        // Pulses of both sides, and nothing of the other side at 16 bits.
        expect(missed, "pulses not heard").toBeLessThan(hits.length / 4);
        expect(crosstalkDb).toBeLessThan(-60);
      }
      expectWhole(before, after);
    });
  });

  it("loses not one frame while both main threads are blocked for 2 s", async () => {
    const [a, b] = await meet("chromium", "chromium");
    const before = await statsOf(a, b);
    const block = (browser: Browser) =>
      browser.evaluate((ms) => {
        const end = performance.now() + ms;
        while (performance.now() < end);
      }, 2000);
    await Promise.all([block(a), block(b)]);
    const after = await statsOf(a, b);
    expectWhole(before, after);
    // The stream went on meanwhile: far more arrived than the buffer could have hidden.
    for (const [index, stats] of after.entries()) {
      const received = stats.peers[0]!.receivedPackets - before[index]!.peers[0]!.receivedPackets;
      expect(received * parameters.packet).toBeGreaterThan(4 * parameters.buffer);
    }
  });

  it.each(["cleanly", "by being killed"])(
    "is untouched by a third who comes and leaves %s",
    async (manner) => {
      const [a, b] = await meet("chromium", "chromium");
      const room = currentRoom;
      // Starting a browser takes the whole machine for a while; it is no part of joining.
      const c = await start("chromium", "C");
      await settled(a, b);
      const before = await statsOf(a, b);
      await c.open(product.roomUrl(room, "C", parameters));
      await untilPlaying([c], 2);
      await untilPlaying([a, b], 2);
      if (manner === "cleanly") await c.close();
      else c.kill();
      browsers = browsers.filter((browser) => browser !== c);
      await sleep(2000);
      expectWhole(before, await statsOf(a, b));
    },
  );
});

let currentRoom = "";

/** Two processes with a card each, in one new room, hearing each other steadily. */
async function meet(one: BrowserName, other: BrowserName): Promise<[Browser, Browser]> {
  currentRoom = product.newRoom();
  const a = await start(one, "A");
  const b = await start(other, "B");
  await a.open(product.roomUrl(currentRoom, "A", parameters));
  await b.open(product.roomUrl(currentRoom, "B", parameters));
  await untilPlaying([a, b]);
  await settled(a, b);
  return [a, b];
}

async function start(browser: BrowserName, card: string): Promise<Browser> {
  const started = await launch({ browser, env: rig.cardEnv(card) });
  browsers.push(started);
  return started;
}

/** Waits until nothing was concealed, lost or skipped for a second: the start is over. */
async function settled(...pages: Browser[]): Promise<void> {
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

function statsOf(...pages: Browser[]): Promise<PageStats[]> {
  return Promise.all(pages.map(readStats));
}

/** Counters that must not move while everything that is sent arrives in time. */
const mustArrive = ["lostPackets", "latePackets", "malformedPackets", "underruns", "droppedBacklog"] as const;
/** And these not while it is played, too. */
const mustStay = [...mustArrive, "concealedFrames", "skippedFrames"] as const satisfies (keyof PagePeer)[];

function troubles(
  before: PagePeer,
  after: PagePeer,
  counters: readonly (typeof mustStay)[number][] = mustStay,
) {
  return counters
    .filter((counter) => after[counter] !== before[counter])
    .map((counter) => `${counter} +${after[counter] - before[counter]}`);
}

/**
 * Whether the page's output stood still: it rendered far fewer frames than the same page captured meanwhile, on one sample clock.
 * A machine with other work to do brings a browser's output to that; what could not be played then is not the product's loss.
 */
function outputStood(before: PageStats, after: PageStats): boolean {
  const rendered = (after.quanta - before.quanta) * after.quantumFrames!;
  const captured = after.sender.capturedFrames - before.sender.capturedFrames;
  return captured - rendered > 4096;
}

/** Of the stream between A and B: every frame received in the interval was played once, and nothing else was. */
function expectWhole(before: PageStats[], after: PageStats[]): void {
  for (const [index, name] of ["B", "A"].entries()) {
    const [earlier, later] = [before[index]!, after[index]!];
    const [from, to] = [earlier, later].map((stats) => stats.peers.find((peer) => peer.name === name)!);
    const stood = outputStood(earlier, later);
    const counters = stood ? mustArrive : mustStay;
    expect(troubles(from!, to!, counters), `what page ${index} hears of ${name}`).toEqual([]);
    expect(later.sender.overrunFrames - earlier.sender.overrunFrames).toBe(0);
    expect(later.ringOverflows - earlier.ringOverflows).toBe(0);
    // What is held after such a standstill begins with silence, which no counter tells apart.
    if (stood) continue;
    const received = (to!.receivedPackets - from!.receivedPackets) * later.packetFrames;
    const played = to!.playedFrames - from!.playedFrames;
    expect(received).toBeGreaterThan(0);
    // What was received and not played yet waits in the buffer. The figures of one record are read one after another,
    // by threads that go on meanwhile: hence a few packets of play.
    const waiting = (to!.bufferFrames ?? 0) - (from!.bufferFrames ?? 0);
    const skipped = to!.skippedFrames - from!.skippedFrames;
    const tolerance = 16 * later.packetFrames;
    expect(
      Math.abs(received - played - skipped - waiting),
      "frames neither played nor waiting",
    ).toBeLessThanOrEqual(tolerance);
  }
}
