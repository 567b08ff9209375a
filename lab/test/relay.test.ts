/**
 * The server's relay between real browsers on real (virtual) sound cards. Asserts frames, sides and paths; never times, which belong to
 * the bench.
 */

import path from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { known, listen, quantile } from "../src/analysis.js";
import { binary, type PagePeer, readStats } from "../src/antiphon.js";
import { type Browser, type BrowserName, networkServices } from "../src/browsers.js";
import { Correlator } from "../src/correlator.js";
import { makeFolder, removeFolder, Service, sleep } from "../src/processes.js";
import { mic, sampleRateHz, speaker } from "../src/rig.js";
import { pulseFrames, pulseShape, type Score, writeScore } from "../src/signal.js";
import { readWav, type Take, writeWav } from "../src/wav.js";
import {
  closeBrowsers,
  currentRoom,
  expectSound,
  meet,
  parameters,
  playBothWays,
  press,
  product,
  readAround,
  rig,
  settled,
  setUp,
  start,
  statsOf,
  tearDown,
  untilShown,
  wrongCounts,
  wrongIn,
} from "./stage.js";

const seconds = { leadSeconds: 2, pulseSeconds: 3, steadySeconds: 0 };

describe("through the server", () => {
  beforeAll(() => setUp(["A", "B"]));
  afterEach(closeBrowsers);
  afterAll(tearDown);

  // By both names of this machine: for localhost Chromium would try ::1 alone.
  it.for<[BrowserName, BrowserName, string]>([
    ["chromium", "chromium", "127.0.0.1"],
    ["firefox", "chromium", "localhost"],
  ])(
    "forwards between %s and %s at %s: every frame that is sent is played once",
    async ([one, other, host], context) => {
      const pages = await meet(one, other, { path: "relay" }, host);
      await until(pages, ({ path }) => path === "relay", "come by the relay alone");
      await expectSound(context, async () => {
        await settled(...pages);
        const [wrong, interval] = await Promise.all([
          playBothWays(seconds),
          readAround(seconds, () => statsOf(...pages)),
        ]);
        const [before, after] = interval;
        for (const [index, { peers }] of after.entries()) {
          const grown = (way: "direct" | "relayed") =>
            peers[0]![way]!.receivedPackets - before[index]!.peers[0]![way]!.receivedPackets;
          expect(grown("direct")).toBe(0);
          expect(grown("relayed")).toBeGreaterThan(0);
        }
        return [...wrong, ...wrongCounts(interval)];
      });
    },
  );

  it("mixes: what one plays is heard at the other, and not at oneself", async (context) => {
    const pages = await meet("chromium", "chromium", { path: "mix" });
    await until(pages, ({ path }) => path === "mix", "come mixed by the server");
    const isTold = ({ heard }: PagePeer) => heard?.isMixed === true && heard.concealedShare !== null;
    await until(pages, isTold, "be told how they are heard in the mix");
    const score = writeScore({ voice: 0, sampleRateHz, ...seconds });
    await expectSound(context, async () => {
      const { heard } = await rig.pass({
        plays: [{ take: score.take, to: mic("A") }],
        hears: [speaker("B"), speaker("A")],
      });
      const atOneself = listen(heard[1]!, score);
      expect(atOneself.missed, "pulses not heard at oneself").toBe(atOneself.hits.length);
      return wrongIn(heard[0]!, score, "at the other");
    });
  });

  // Both decoders that are none of a browser: the mixer's and the native participant's.
  it.for<[BrowserName, string]>([
    ["chromium", "127.0.0.1"],
    ["firefox", "localhost"],
  ])(
    "carries Opus of %s, mixed to a page and forwarded to a musician without a browser, sides apart and as loud",
    async ([one, host], context) => {
      const pages = await meet(one, "chromium", { path: "mix", bits: "opus" }, host);
      await until(pages, (peer) => peer.path === "mix", "come mixed by the server");
      await expectSound(context, async () => {
        const wrong = await wrongPulses();
        expect((await readStats(pages[0])).relay).toMatchObject({ sent: { format: "opus" } });
        return wrong;
      });
    },
  );

  it.for<[BrowserName, string]>([
    ["chromium", "direct"],
    ["firefox", "relay"],
  ])("plays in %s the Opus of a musician without a browser, %s", async ([browser, way], context) => {
    const room = product.newRoom();
    const page = await start(browser, "B");
    await page.open(product.roomUrl(room, "B", { ...parameters, path: way }));
    rig.favourSound();
    const times = { ...seconds, pulseSeconds: 2, steadySeconds: 1, tailSeconds: 2 };
    const score = writeScore({ voice: 0, sampleRateHz, ...times });
    const scoreFrames = score.take[0]!.length;
    const folder = makeFolder("join");
    const take = path.join(folder, "take.wav");
    writeWav(take, score.take, sampleRateHz);
    const options = ["--plain", "--path", way, "--input", take, "--loop", "--opus", "128", "--packet", "240"];
    const join = [binary, "join", ...options, product.lobbyUrl(room)];
    const musician = Service.start(join, rig.env, path.join(folder, "log"));
    try {
      await until([page], (peer) => peer.format === "opus" && peer.path === way, `come in Opus, ${way}`);
      await expectSound(context, async () => {
        // It is played again and again: some whole one of it is in three times its length.
        const silence = score.take.map(() => new Float32Array(3 * scoreFrames));
        const { heard } = await rig.pass({
          plays: [{ take: silence, to: mic("A") }],
          hears: [speaker("B")],
        });
        const [peer] = (await readStats(page)).peers;
        expect(peer).toMatchObject({ format: "opus", opusBps: 128_000, malformedPackets: 0 });
        return wrongOpus(fromBeginning(heard[0]!, score, 2 * scoreFrames), score, `in ${browser}`);
      });
    } finally {
      await musician.stop();
      removeFolder(folder);
    }
  });

  it("comes to each as its musician has chosen, and directly again where the server that mixes is gone", async (context) => {
    // A needs no relay for itself: it opens a session because B asks for its sound there.
    const pages = await meet("chromium", "chromium", { path: "direct" });
    for (const path of ["relay", "mix"] as const) {
      await pages[1].evaluate(choosePath, "Path of A", path);
      await until([pages[1]], (peer) => peer.path === path, `come by ${path}`);
      await until([pages[0]], (peer) => peer.path === "direct", "come directly");
    }
    await killServer(() => until([pages[1]], ({ path }) => path === "mix", "come mixed again"));
    await until([pages[1]], ({ path }) => path === "direct", "come directly again");
    const score = writeScore({ voice: 0, sampleRateHz, ...seconds });
    await expectSound(context, async () => {
      const { heard } = await rig.pass({
        plays: [{ take: score.take, to: mic("A") }],
        hears: [speaker("B")],
      });
      return wrongIn(heard[0]!, score, "at B");
    });
    await product.restart();
  });

  it("changes from any path to any other without a gap, and without being heard twice", async (context) => {
    const pages = await meet("chromium", "chromium", { path: "auto" });
    const go = async (pin: string) => {
      await pages[1].evaluate(choosePath, "Path of A", pin);
      // By itself A sends both ways, but directly alone for a while after datagrams that waited too long.
      const ways = pin === "auto" ? ["both", "direct"] : [pin];
      await until([pages[1]], ({ path }) => ways.includes(`${path}`), `come by ${pin}`);
    };
    let from = "auto";
    for (const to of ["mix", "relay", "mix", "direct", "auto"]) {
      await expectSound(context, async () => {
        await go(from);
        await settled(...pages);
        return (await wrongLevels(() => go(to))).map((level) => `from ${from} to ${to}: ${level}`);
      });
      from = to;
    }
  });

  it("goes on directly while the server is gone, and takes both ways again when it is back", async () => {
    const pages = await meet("chromium", "chromium", { path: "auto" });
    await until(pages, ({ path }) => path === "both", "come both ways");
    const rooms = await Promise.all(pages.map(readStats));
    await killServer(() => until(pages, ({ path }) => path === "both", "come both ways again"));
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

  it("is how sound comes to a browser that is too old for another way, which is said", async () => {
    const [old, other] = [await start("chromium", "A"), await start("chromium", "B")];
    const room = product.newRoom();
    await old.open(product.lobbyUrl(room));
    await untilShown(old, "Join and only listen");
    await old.evaluate(() => {
      const post = Worker.prototype.postMessage as (this: Worker, ...told: unknown[]) => void;
      Worker.prototype.postMessage = function (message: unknown, handed?: unknown) {
        const isLane = Array.isArray(handed) && handed.some((one) => one instanceof RTCDataChannel);
        if (isLane) throw new DOMException("could not be cloned", "DataCloneError");
        post.call(this, message, handed);
      };
    });
    await press(old, "Join and only listen");
    await other.open(product.roomUrl(room, "B", parameters));
    await untilShown(old, "too old to send sound straight");
    await until([old], ({ path }) => path === "relay", "come by the relay alone");
    await press(old, "Hear yourself through the network");
    await untilShown(old, "With you: 1");
    expect(old.errors).toEqual([]);
  });

  it("comes both ways again after a browser has lost all its sockets", async () => {
    const pages = await meet("chromium", "chromium", { path: "auto" });
    await until(pages, ({ path }) => path === "both", "come both ways");
    await settled(...pages);
    const before = await statsOf(...pages);
    const services = networkServices();
    expect(services).toHaveLength(2);
    process.kill(services[0]!, "SIGKILL");
    // By lanes made anew, not by sockets that ICE finds after many seconds.
    for (const [index, page] of pages.entries()) {
      const sent = before[index]!.peers[0]!.lanes[0]!.sentDatagrams;
      await until([page], ({ lanes }) => (lanes[0]?.sentDatagrams ?? sent) < sent, "leave its dead lanes");
    }
    await until(pages, ({ path }) => path === "both", "come both ways again");
  });
});

/**
 * Kills the server as a crash would. Chromium 156 now and then loses all its sockets at that moment (`networkServices`): then the server
 * comes back, everything as it was, and it is done again.
 */
async function killServer(asBefore: () => Promise<void>): Promise<void> {
  for (let times = 1; ; times++) {
    const services = networkServices().join();
    await product.kill();
    await sleep(1000);
    if (networkServices().join() === services) return;
    if (times === 3) throw new Error("Chromium has lost its sockets three times");
    await product.restart();
    await asBefore();
  }
}

/** Waits until every page says so of its first peer. Both ways are taken again up to 15 s after an uplink was short, or 30 s if that failed once. */
async function until(
  pages: readonly Browser[],
  holds: (peer: PagePeer) => boolean,
  what: string,
): Promise<void> {
  const deadline = Date.now() + 60_000;
  for (const page of pages) {
    for (;;) {
      const { peers, relay } = await readStats(page);
      if (peers[0] !== undefined && holds(peers[0])) break;
      if (Date.now() > deadline) {
        const { path, pin } = peers[0] ?? {};
        const all = JSON.stringify({ peers, relay });
        throw new Error(
          `the sound does not ${what}: path ${path}, pin ${pin}; errors: ${page.errors.join(" | ")}; ${all}`,
        );
      }
      await sleep(200);
    }
  }
}

/** Noise from A is heard at B while something is done: where it was much quieter or louder than usual. */
async function wrongLevels(act: () => Promise<void>): Promise<string[]> {
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

/** Pulses from A are heard at B and by a native participant, who comes for them: what was wrong with their number, sides and loudness. */
async function wrongPulses(): Promise<string[]> {
  const folder = makeFolder("join");
  const file = path.join(folder, "heard.wav");
  const options = ["--plain", "--path", "relay", "--buffer", "8000", "--output", file];
  const join = [binary, "join", ...options, product.lobbyUrl(currentRoom)];
  const musician = Service.start(join, rig.env, path.join(folder, "log"));
  try {
    await musician.until(() => /^ *A: .*relay,.* buffer \d/m.test(musician.logTail()), "sound", 30);
    // Each code once, so that a recording tells where in the score it began; and all of it, although the mixer's own buffer grows for
    // a machine that stands still now and then.
    const times = { ...seconds, pulseSeconds: 2, steadySeconds: 1, tailSeconds: 2 };
    const score = writeScore({ voice: 0, sampleRateHz, ...times });
    const { heard } = await rig.pass({
      plays: [{ take: score.take, to: mic("A") }],
      hears: [speaker("B")],
    });
    await musician.stop();
    const takes = { "at B": heard[0]!, "without a browser": fromBeginning(readWav(file), score) };
    return Object.entries(takes).flatMap(([where, take]) => wrongOpus(take, score, where));
  } finally {
    await musician.stop();
    removeFolder(folder);
  }
}

/** What is wrong with a score that was sent as Opus. */
function wrongOpus(take: Take, score: Score, where: string): string[] {
  const { hits, missed, crosstalkDb } = listen(take, score, { maxLatencyFrames: 2 * sampleRateHz - 1 });
  const levels = loudness(take, score, quantile(known(hits.map((hit) => hit.latencyFrames)), 0.5) ?? 0);
  const isWhole = missed < hits.length / 4 && crosstalkDb !== null && crosstalkDb < -50;
  if (isWhole && levels.every((level) => Math.abs(level - 1) < 0.05)) return [];
  return [`${where}: ${missed} pulses not heard, crosstalk ${crosstalkDb} dB, levels ${levels}`];
}

/** A recording that began before its score, or `withinFrames` before the end of it, from 100 ms before the score on: no pulse seems to come too early. */
function fromBeginning(
  recording: Take,
  { pulses: [first] }: Score,
  withinFrames = recording[0]!.length,
): Take {
  const { frame, side, code } = first!;
  const searched = recording[side]!.subarray(0, withinFrames);
  const correlator = new Correlator(searched.length - pulseFrames, pulseFrames);
  const begin = correlator.strongestLag(searched, 0, pulseShape(code)) - frame - sampleRateHz / 10;
  return recording.map((signal) => signal.subarray(Math.max(0, begin)));
}

/** How loud a score's steady tone is in each side of a recording; as it was played: 1. */
function loudness(heard: Take, { take, steady: { from, to } }: Score, latencyFrames: number): number[] {
  const level = (signal: Float32Array, delay: number) =>
    quantile(windowsOf(signal.subarray(from + delay, to + delay)), 0.5) ?? 0;
  return heard.map((signal, side) => level(signal, Math.round(latencyFrames)) / level(take[side]!, 0));
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
