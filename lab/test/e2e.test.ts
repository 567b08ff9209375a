/**
 * The product in real browsers on real (virtual) sound cards. Asserts frames, sequence and sides; never times, which
 * belong to the bench. The buffer is large, so that a machine with other work to do cannot fail a test.
 */

import { afterAll, afterEach, beforeAll, describe, expect, it, type TestContext } from "vitest";
import { type PagePeer, readStats, readTrace, untilPlaying } from "../src/antiphon.js";
import type { Browser, BrowserName } from "../src/browsers.js";
import { sleep } from "../src/processes.js";
import { sampleRateHz } from "../src/rig.js";
import { framesPerMs } from "../src/units.js";
import {
  closeBrowsers,
  currentRoom,
  expectSound,
  forget,
  meet,
  mustArrive,
  pactl,
  parameters,
  playBothWays,
  press,
  product,
  readAround,
  settled,
  setUp,
  start,
  statsOf,
  tearDown,
  troubles,
  wrongCounts,
} from "./stage.js";

/** Three browsers that play stereo take two processors of this kind whole; half of it are datagrams. */
const light = { channels: 1, packet: 480 };

describe("the product", () => {
  beforeAll(() => setUp(["A", "B", "C"]));
  afterEach(closeBrowsers);
  afterAll(tearDown);

  describe.each<[BrowserName, BrowserName]>([
    ["chromium", "chromium"],
    ["firefox", "firefox"],
    ["chromium", "firefox"],
  ])("between %s and %s", (one, other) => {
    it("carries stereo both ways at once, sides apart, every frame once", async (context) => {
      const [a, b] = await meet(one, other);
      await expectEveryFrame(context, a, b);
    });
  });

  it.for<[BrowserName, BrowserName]>([
    ["chromium", "firefox"],
    ["chromium", "chromium"],
  ])(
    "changes to Opus, to another bit rate and back between %s and %s without losing a frame, and is heard in all",
    async ([one, other], context) => {
      const [a, b] = await meet(one, other);
      const seconds = { leadSeconds: 2, pulseSeconds: 3, steadySeconds: 0 };
      await expectSound(context, async () => {
        await settled(a, b);
        const before = await statsOf(a, b);
        const wrong: string[] = [];
        for (const [choices, format, kbps, mostCrosstalkDb] of [
          [{ "Sample format": "opus", "Opus quality": "128" }, "opus", 128, -40],
          [{ "Opus quality": "256" }, "opus", 256, -40],
          [{ "Sample format": "16" }, "s16", null, -60],
        ] as const) {
          for (const choice of Object.entries(choices))
            await Promise.all([a, b].map((page) => page.evaluate(choose, choice)));
          await sleep(1000);
          wrong.push(...(await playBothWays(seconds, mostCrosstalkDb)).map((what) => `in ${format} ${what}`));
          for (const { peers } of await statsOf(a, b)) {
            const [{ format: heardFormat, opusBps, sent }] = peers as [PagePeer];
            expect([heardFormat, sent?.format]).toEqual([format, format]);
            expect(opusBps).toBe(kbps && kbps * 1000);
          }
        }
        // Packets are not all of one length here: nothing lost and nothing concealed is what can be said of them.
        for (const [index, { peers }] of (await statsOf(a, b)).entries()) {
          const [from, to] = [before[index]!.peers[0]!, peers[0]!];
          expect(to.playedFrames - from.playedFrames).toBeGreaterThan(5 * sampleRateHz);
          wrong.push(...troubles(from, to, [...mustArrive, "concealedFrames", "underruns", "latePackets"]));
        }
        return wrong;
      });
    },
  );

  it("takes Chromium's long blocks in turns, and the sound is whole", async (context) => {
    const [a, b] = await meet("chromium", "chromium");
    // Turns are taken from the first sound on.
    await playBothWays({ leadSeconds: 8, pulseSeconds: 1, steadySeconds: 0 });
    for (const { sender } of await statsOf(a, b)) expect(sender.captures).toBeGreaterThan(1);
    // Now and then blocks that wait for a busy processor come all at once, as one long block: turns are what most of them come in.
    const shareOfShort = async () => {
      const { frames } = (await readTrace(a, 1)).captured;
      return frames.filter((length) => length < 1024).length / frames.length;
    };
    await expect.poll(shareOfShort, { timeout: 20_000 }).toBeGreaterThan(0.5);
    await expectEveryFrame(context, a, b);
    const frames = await a.evaluate(() => document.querySelectorAll("iframe").length);
    expect(frames).toBeGreaterThan(0);
    await press(a, "Leave");
    await expect.poll(() => a.evaluate(() => document.querySelectorAll("iframe").length)).toBe(0);
  });

  it("tells both ends how they hear each other, and how long the way is", async () => {
    const pages = await meet("chromium", "chromium");
    let peers: PagePeer[] = [];
    for (let tries = 0; tries < 40; tries++) {
      peers = (await Promise.all(pages.map(readStats))).map((stats) => stats.peers[0]!);
      if (peers.every(({ heard, mouthToEar }) => heard !== null && mouthToEar !== null)) break;
      await sleep(500);
    }
    for (const { heard, mouthToEar } of peers) {
      expect(heard).toMatchObject({ targetFrames: parameters.buffer, periodMs: expect.any(Number) });
      const names = mouthToEar!.stages.map(({ name }) => name);
      expect(names).toEqual(["input", "capture", "packet", "network", "buffer", "playout", "output"]);
      const sum = mouthToEar!.stages.reduce((total, { ms }) => total + (ms ?? 0), 0);
      expect(sum).toBeCloseTo(mouthToEar!.knownMs, 6);
      // A buffer of 8,192 frames is most of it, whatever the machine does besides.
      expect(mouthToEar!.knownMs).toBeGreaterThan(parameters.buffer / framesPerMs / 2);
    }
  });

  it("asks Firefox nothing of its output, which may stop it for ever", async () => {
    const pages = await meet("chromium", "firefox");
    await Promise.all(pages.map((page) => page.evaluate(countQuestions)));
    await sleep(2000);
    const [chromium, firefox] = await Promise.all(
      pages.map((page) => page.evaluate(() => (window as unknown as { questions: number }).questions)),
    );
    expect(chromium).toBeGreaterThan(0);
    expect(firefox).toBe(0);
  });

  it("loses not one frame while both main threads are blocked for 2 s", async (context) => {
    const [a, b] = await meet("chromium", "chromium");
    const block = (browser: Browser) =>
      browser.evaluate((ms) => {
        const end = performance.now() + ms;
        while (performance.now() < end);
      }, 2000);
    await expectSound(context, async () => {
      await settled(a, b);
      const before = await statsOf(a, b);
      await Promise.all([block(a), block(b)]);
      const after = await statsOf(a, b);
      // The stream went on meanwhile: far more arrived than the buffer could have hidden.
      for (const [index, stats] of after.entries()) {
        const received = stats.peers[0]!.receivedPackets - before[index]!.peers[0]!.receivedPackets;
        expect(received * parameters.packet).toBeGreaterThan(4 * parameters.buffer);
      }
      return wrongCounts([before, after]);
    });
  });

  // Chromium closes the output of a page that has been silent for half a minute, and lets a timer take its place.
  it("keeps the output while nobody plays", async () => {
    await meet("chromium", "chromium");
    await sleep(35_000);
    const inputs = await pactl("list", "sink-inputs");
    expect(inputs.match(/Corked: no/g)).toHaveLength(2);
  });

  it.for(["cleanly", "by being killed"])(
    "is untouched by a third who comes and leaves %s",
    async (manner, context) => {
      const [a, b] = await meet("chromium", "chromium", light);
      const room = currentRoom;
      await expectSound(context, async () => {
        // Starting a browser and a page takes the whole machine for a while; it is no part of joining.
        const c = await start("chromium", "C");
        await settled(a, b);
        const before = await statsOf(a, b);
        await c.open(product.roomUrl(room, "C", { ...parameters, ...light }));
        await untilPlaying([c], 2);
        await untilPlaying([a, b], 2);
        if (manner === "cleanly") await c.close();
        else c.kill();
        forget(c);
        await sleep(2000);
        return wrongCounts([before, await statsOf(a, b)]);
      });
    },
  );
});

/** Counts from now on in `questions` how often the page asks the browser of its output. Runs in the page. */
function countQuestions(): void {
  const counts = Object.assign(window, { questions: 0 });
  const { prototype } = AudioContext;
  const latency = Object.getOwnPropertyDescriptor(prototype, "outputLatency")!;
  Object.defineProperty(prototype, "outputLatency", {
    get() {
      counts.questions++;
      return latency.get!.call(this);
    },
  });
  const timestamp = prototype.getOutputTimestamp;
  prototype.getOutputTimestamp = function () {
    counts.questions++;
    return timestamp.call(this);
  };
}

/** Chooses what is sent, as a musician would. Runs in the page. */
function choose([what, value]: [label: string, value: string]): void {
  const label = Array.from(document.querySelectorAll("label")).find(
    ({ textContent }) => textContent === what,
  );
  const select = label?.control;
  if (!(select instanceof HTMLSelectElement)) throw new Error(`the page offers no choice of ${what}`);
  select.value = value;
  select.dispatchEvent(new Event("change", { bubbles: true }));
}

/** Stereo comes both ways at once, sides apart, and every frame that was sent is played once. */
async function expectEveryFrame(context: TestContext, a: Browser, b: Browser): Promise<void> {
  const seconds = { leadSeconds: 2, pulseSeconds: 3, steadySeconds: 2 };
  await expectSound(context, async () => {
    await settled(a, b);
    const [wrong, interval] = await Promise.all([
      playBothWays(seconds),
      readAround(seconds, () => statsOf(a, b)),
    ]);
    return [...wrong, ...wrongCounts(interval)];
  });
}
