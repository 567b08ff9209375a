/**
 * The product in real browsers on real (virtual) sound cards. Asserts frames, sequence and sides; never times, which
 * belong to the bench. The buffer is large, so that a machine with other work to do cannot fail a test.
 */

import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { listen } from "../src/analysis.js";
import { type PagePeer, readStats, untilPlaying } from "../src/antiphon.js";
import type { Browser, BrowserName } from "../src/browsers.js";
import { sleep } from "../src/processes.js";
import { mic, readAround, sampleRateHz, speaker } from "../src/rig.js";
import { writeScore } from "../src/signal.js";
import { framesPerMs } from "../src/units.js";
import {
  closeBrowsers,
  currentRoom,
  expectWhole,
  forget,
  type Interval,
  meet,
  mustArrive,
  parameters,
  product,
  rig,
  settled,
  setUp,
  start,
  statsOf,
  tearDown,
  troubles,
} from "./stage.js";

describe("the product", () => {
  beforeAll(() => setUp(["A", "B", "C"]));
  afterEach(closeBrowsers);
  afterAll(tearDown);

  describe.each<[BrowserName, BrowserName]>([
    ["chromium", "chromium"],
    ["firefox", "firefox"],
    ["chromium", "firefox"],
  ])("between %s and %s", (one, other) => {
    it("carries stereo both ways at once, sides apart, every frame once", async () => {
      const [a, b] = await meet(one, other);
      const seconds = { leadSeconds: 2, pulseSeconds: 3, steadySeconds: 2 };
      const scores = ([0, 1] as const).map((voice) => writeScore({ voice, sampleRateHz, ...seconds }));
      await expectWhole([a, b], async () => {
        const [{ heard }, interval] = await Promise.all([
          rig.pass({
            plays: [
              { take: scores[0]!.take, to: mic("A") },
              { take: scores[1]!.take, to: mic("B") },
            ],
            hears: [speaker("B"), speaker("A")],
          }),
          readAround(seconds, () => statsOf(a, b)),
        ]);
        for (const direction of [0, 1]) {
          const { hits, missed, crosstalkDb } = listen(heard[direction]!, scores[direction]!);
          // Pulses of both sides, and nothing of the other side at 16 bits.
          expect(missed, "pulses not heard").toBeLessThan(hits.length / 4);
          expect(crosstalkDb).toBeLessThan(-60);
        }
        return interval;
      });
    });
  });

  it.each<[BrowserName, BrowserName]>([
    ["chromium", "firefox"],
    ["chromium", "chromium"],
  ])(
    "changes to Opus and back between %s and %s without losing a frame, and is heard in both",
    async (one, other) => {
      const [a, b] = await meet(one, other);
      const seconds = { leadSeconds: 2, pulseSeconds: 3, steadySeconds: 0 };
      const scores = ([0, 1] as const).map((voice) => writeScore({ voice, sampleRateHz, ...seconds }));
      await expectUnbroken([a, b], async () => {
        const before = await statsOf(a, b);
        const unheard: string[] = [];
        for (const [value, format] of [
          ["opus", "opus"],
          ["16", "s16"],
        ] as const) {
          await Promise.all([a, b].map((page) => page.evaluate(chooseFormat, value)));
          await sleep(1000);
          const { heard } = await rig.pass({
            plays: [
              { take: scores[0]!.take, to: mic("A") },
              { take: scores[1]!.take, to: mic("B") },
            ],
            hears: [speaker("B"), speaker("A")],
          });
          for (const direction of [0, 1]) {
            const { hits, missed } = listen(heard[direction]!, scores[direction]!);
            if (missed >= hits.length / 4) unheard.push(`${missed} pulses not heard in ${format}`);
          }
          for (const { peers } of await statsOf(a, b)) {
            const [{ format: heardFormat, opusBps, sent }] = peers as [PagePeer];
            expect([heardFormat, sent?.format]).toEqual([format, format]);
            expect(opusBps).toBe(format === "opus" ? 128_000 : null);
          }
        }
        return { interval: [before, await statsOf(a, b)], unheard };
      });
    },
  );

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

  it("loses not one frame while both main threads are blocked for 2 s", async () => {
    const [a, b] = await meet("chromium", "chromium");
    const block = (browser: Browser) =>
      browser.evaluate((ms) => {
        const end = performance.now() + ms;
        while (performance.now() < end);
      }, 2000);
    await expectWhole([a, b], async () => {
      const before = await statsOf(a, b);
      await Promise.all([block(a), block(b)]);
      const after = await statsOf(a, b);
      // The stream went on meanwhile: far more arrived than the buffer could have hidden.
      for (const [index, stats] of after.entries()) {
        const received = stats.peers[0]!.receivedPackets - before[index]!.peers[0]!.receivedPackets;
        expect(received * parameters.packet).toBeGreaterThan(4 * parameters.buffer);
      }
      return [before, after];
    });
  });

  it.each(["cleanly", "by being killed"])(
    "is untouched by a third who comes and leaves %s",
    async (manner) => {
      const [a, b] = await meet("chromium", "chromium");
      const room = currentRoom;
      await expectWhole([a, b], async () => {
        // Starting a browser takes the whole machine for a while; it is no part of joining.
        const c = await start("chromium", "C");
        await settled(a, b);
        const before = await statsOf(a, b);
        await c.open(product.roomUrl(room, "C", parameters));
        await untilPlaying([c], 2);
        await untilPlaying([a, b], 2);
        if (manner === "cleanly") await c.close();
        else c.kill();
        forget(c);
        await sleep(2000);
        return [before, await statsOf(a, b)];
      });
    },
  );
});

/** As `expectWhole`, of a stream whose packets are not all of one length: nothing lost, nothing concealed, and all pulses heard. */
async function expectUnbroken(
  pages: [Browser, Browser],
  observe: () => Promise<{ interval: Interval; unheard: string[] }>,
): Promise<void> {
  const seen: string[] = [];
  for (let tries = 0; tries < 3; tries++) {
    if (tries > 0) await settled(...pages);
    const { interval, unheard } = await observe();
    const [before, after] = interval;
    const found = [0, 1].flatMap((index) => {
      const [from, to] = [before, after].map((stats) => stats[index]!.peers[0]!);
      expect(to!.playedFrames - from!.playedFrames).toBeGreaterThan(5 * sampleRateHz);
      return troubles(from!, to!, [...mustArrive, "concealedFrames", "underruns", "latePackets"]);
    });
    found.push(...unheard);
    if (found.length === 0) return;
    seen.push(found.join(", "));
  }
  expect(seen, "what was wrong in each of three intervals").toEqual([]);
}

/** Chooses what is sent, as a musician would. Runs in the page. */
function chooseFormat(value: string): void {
  const label = Array.from(document.querySelectorAll("label")).find(
    ({ textContent }) => textContent === "Sample format",
  );
  const select = label?.control;
  if (!(select instanceof HTMLSelectElement)) throw new Error("the page offers no sample format");
  select.value = value;
  select.dispatchEvent(new Event("change", { bubbles: true }));
}
