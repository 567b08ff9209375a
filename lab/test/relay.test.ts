/**
 * The server's relay between real browsers on real (virtual) sound cards. Asserts frames, sides and paths; never times, which belong to
 * the bench.
 */

import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { listen } from "../src/analysis.js";
import { type PagePeer, readStats } from "../src/antiphon.js";
import type { Browser, BrowserName } from "../src/browsers.js";
import { sleep } from "../src/processes.js";
import { mic, readAround, sampleRateHz, speaker } from "../src/rig.js";
import { writeScore } from "../src/signal.js";
import {
  closeBrowsers,
  expectWhole,
  meet,
  product,
  rig,
  settled,
  setUp,
  statsOf,
  tearDown,
} from "./stage.js";

const seconds = { leadSeconds: 2, pulseSeconds: 3, steadySeconds: 0 };

describe("through the server", () => {
  beforeAll(() => setUp(["A", "B"]));
  afterEach(closeBrowsers);
  afterAll(tearDown);

  // By both names of this machine: for localhost Chromium would try ::1 alone.
  it.each<[BrowserName, BrowserName, string]>([
    ["chromium", "chromium", "127.0.0.1"],
    ["firefox", "chromium", "localhost"],
  ])(
    "forwards between %s and %s at %s: every frame that is sent is played once",
    async (one, other, host) => {
      const pages = await meet(one, other, { path: "relay" }, host);
      await until(pages, ({ path }) => path === "relay", "come by the relay alone");
      const scores = ([0, 1] as const).map((voice) => writeScore({ voice, sampleRateHz, ...seconds }));
      await expectWhole(pages, async () => {
        const [{ heard }, interval] = await Promise.all([
          rig.pass({
            plays: [
              { take: scores[0]!.take, to: mic("A") },
              { take: scores[1]!.take, to: mic("B") },
            ],
            hears: [speaker("B"), speaker("A")],
          }),
          readAround(seconds, () => statsOf(...pages)),
        ]);
        for (const direction of [0, 1]) {
          const { hits, missed } = listen(heard[direction]!, scores[direction]!);
          expect(missed, "pulses not heard").toBeLessThan(hits.length / 4);
        }
        const [before, after] = interval;
        for (const [index, { peers }] of after.entries()) {
          const grown = (way: "direct" | "relayed") =>
            peers[0]![way]!.receivedPackets - before[index]!.peers[0]![way]!.receivedPackets;
          expect(grown("direct")).toBe(0);
          expect(grown("relayed")).toBeGreaterThan(0);
        }
        return interval;
      });
    },
  );

  it("mixes: what one plays is heard at the other, and not at oneself", async () => {
    const pages = await meet("chromium", "chromium", { path: "mix" });
    await until(pages, ({ path }) => path === "mix", "come mixed by the server");
    const score = writeScore({ voice: 0, sampleRateHz, ...seconds });
    const { heard } = await rig.pass({
      plays: [{ take: score.take, to: mic("A") }],
      hears: [speaker("B"), speaker("A")],
    });
    const [there, here] = heard.map((take) => listen(take, score));
    expect(there!.missed, "pulses not heard at the other").toBeLessThan(there!.hits.length / 4);
    expect(here!.missed, "pulses not heard at oneself").toBe(here!.hits.length);
  });

  it("comes to each as its musician has chosen, and directly again where the server that mixes is gone", async () => {
    // A needs no relay for itself: it opens a session because B asks for its sound there.
    const pages = await meet("chromium", "chromium", { path: "direct" });
    for (const path of ["relay", "mix"] as const) {
      await pages[1].evaluate(choosePath, "Path of A", path);
      await until([pages[1]], (peer) => peer.path === path, `come by ${path}`);
      await until([pages[0]], (peer) => peer.path === "direct", "come directly");
    }
    await product.kill();
    await until([pages[1]], ({ path }) => path === "direct", "come directly again");
    const score = writeScore({ voice: 0, sampleRateHz, ...seconds });
    const { heard } = await rig.pass({
      plays: [{ take: score.take, to: mic("A") }],
      hears: [speaker("B")],
    });
    const { hits, missed } = listen(heard[0]!, score);
    expect(missed, "pulses not heard").toBeLessThan(hits.length / 4);
    await product.restart();
  });

  it("changes from any path to any other without a gap, and without being heard twice", async () => {
    const pages = await meet("chromium", "chromium", { path: "auto" });
    const go = async ([pin, path]: readonly [string, string]) => {
      await pages[1].evaluate(choosePath, "Path of A", pin);
      await until([pages[1]], (peer) => peer.path === path, `come by ${path}`);
    };
    let from: readonly [string, string] = ["auto", "both"];
    for (const to of [
      ["mix", "mix"],
      ["relay", "relay"],
      ["mix", "mix"],
      ["direct", "direct"],
      ["auto", "both"],
    ] as const) {
      // A machine that stands still breaks the sound too, as in `expectWhole`; a fault of the change would be there each time.
      const seen: string[] = [];
      for (let tries = 0; tries === seen.length && tries < 3; tries++) {
        await go(from);
        await settled(...pages);
        const odd = await oddLevels(() => go(to));
        if (odd.length > 0) seen.push(odd.join(", "));
      }
      if (seen.length === 3)
        expect(seen, `levels from ${from[0]} to ${to[0]}, each of three times`).toEqual([]);
      from = to;
    }
  }, 300_000);

  it("goes on directly while the server is gone, and takes both ways again when it is back", async () => {
    const pages = await meet("chromium", "chromium", { path: "auto" });
    await until(pages, ({ path }) => path === "both", "come both ways");
    const rooms = await Promise.all(pages.map(readStats));
    await product.kill();
    await until(pages, ({ path }) => path === "direct", "come directly alone");
    const before = await statsOf(...pages);
    await sleep(3000);
    const after = await statsOf(...pages);
    for (const [index, { peers, signalling }] of after.entries()) {
      expect(signalling).toBe("connecting");
      expect(peers[0]!.playedFrames).toBeGreaterThan(
        before[index]!.peers[0]!.playedFrames + 2 * sampleRateHz,
      );
      expect(peers[0]!.connection).toBe("connected");
    }
    await product.restart();
    await until(pages, ({ path }) => path === "both", "come both ways again");
    for (const [index, { id, peers, signalling }] of (await Promise.all(pages.map(readStats))).entries()) {
      expect(signalling).toBe("online");
      // The same people, and the same stream: it was never interrupted.
      expect([id, ...peers.map((peer) => peer.id)]).toEqual([
        rooms[index]!.id,
        ...rooms[index]!.peers.map((peer) => peer.id),
      ]);
      expect(peers[0]!.playedFrames).toBeGreaterThan(after[index]!.peers[0]!.playedFrames);
    }
  });
});

/** Waits until every page says so of its first peer. */
async function until(
  pages: readonly Browser[],
  holds: (peer: PagePeer) => boolean,
  what: string,
): Promise<void> {
  const deadline = Date.now() + 30_000;
  for (const page of pages) {
    for (;;) {
      const { peers, relay } = await readStats(page);
      if (peers[0] !== undefined && holds(peers[0])) break;
      if (Date.now() > deadline)
        throw new Error(
          `the sound does not ${what}: ${JSON.stringify({ peers, relay })}; errors: ${page.errors.join(" | ")}`,
        );
      await sleep(200);
    }
  }
}

/** Noise from A is heard at B while something is done: where it was much quieter or louder than usual. */
async function oddLevels(act: () => Promise<void>): Promise<string[]> {
  const noise = noiseOf(10);
  const [{ heard }, overAt] = await Promise.all([
    rig.pass({ plays: [{ take: [noise, noise], to: mic("A") }], hears: [speaker("B")] }),
    sleep(3000)
      .then(act)
      .then(() => Date.now()),
  ]);
  // What a change breaks may be heard as long as the buffer lasts.
  if (Date.now() - overAt < 1500) return ["the change took as long as the noise"];
  const levels = windowsOf(heard[0]![0]!);
  // What is heard begins and ends with silence.
  const first = levels.findIndex((level) => level > 0.05) + 5;
  const last = levels.findLastIndex((level) => level > 0.05) - 5;
  if (last - first < (9 * sampleRateHz) / windowFrames) return [`${last - first} windows were heard`];
  const usual = [...levels.slice(first, last)].sort((one, other) => one - other)[(last - first) >> 1]!;
  return levels
    .slice(first, last)
    .flatMap((level, n) =>
      level < 0.4 * usual || level > 1.25 * usual
        ? [`${(level / usual).toFixed(2)} at ${(((first + n) * windowFrames) / sampleRateHz).toFixed(2)} s`]
        : [],
    );
}

const windowFrames = 960;

/** Levels (RMS) of a signal, 20 ms each. */
function windowsOf(signal: Float32Array): number[] {
  return Array.from({ length: Math.floor(signal.length / windowFrames) }, (_, n) => {
    const window = signal.subarray(n * windowFrames, (n + 1) * windowFrames);
    return Math.sqrt(window.reduce((sum, sample) => sum + sample * sample, 0) / windowFrames);
  });
}

/** White noise: two of it at once are louder, whatever lies between them. */
function noiseOf(noiseSeconds: number): Float32Array {
  let state = 1;
  return Float32Array.from({ length: noiseSeconds * sampleRateHz }, () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return (state / 2 ** 32 - 0.5) * 0.6;
  });
}

/** Chooses a path, as a musician would. Runs in the page. */
function choosePath(label: string, value: string): void {
  const select = document.querySelector(`select[aria-label="${label}"]`);
  if (!(select instanceof HTMLSelectElement)) throw new Error(`no "${label}"`);
  select.value = value;
  select.dispatchEvent(new Event("change", { bubbles: true }));
}
