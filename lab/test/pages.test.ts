/** The measurement pages of lab/pages do what they claim. Asserts frames, sides and counters; never times. */

import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { listen } from "../src/analysis.js";
import { Product, readStats, untilPlaying } from "../src/antiphon.js";
import { type Browser, launch } from "../src/browsers.js";
import { type Doorway, openDoorway } from "../src/doorway.js";
import { type PageServer, servePages } from "../src/pages.js";
import { sleep } from "../src/processes.js";
import { mic, Rig, sampleRateHz, speaker } from "../src/rig.js";
import { type Counters, increments, meet } from "../src/setups.js";
import { writeScore } from "../src/signal.js";
import { readAround } from "./stage.js";

const packetFrames = 128;
/** Places of the paper's circular buffer. */
const ringFrames = 16 * packetFrames;
/** What both sides of a page that plays need: small bursts, as the paper's browsers had them. */
const audioBufferSize = 128;

const seconds = { leadSeconds: 1, pulseSeconds: 2, steadySeconds: 0 };
const score = writeScore({ voice: 0, sampleRateHz, ...seconds });

let rig: Rig;
let pages: PageServer;
let browsers: Browser[] = [];

beforeAll(async () => {
  rig = await Rig.start({ cards: ["A", "B"] });
  pages = await servePages();
});

afterEach(async () => {
  await Promise.all(browsers.map((browser) => browser.close()));
  browsers = [];
});

afterAll(async () => {
  pages?.close();
  await rig?.stop();
});

describe("the paper's de-jitter buffer", () => {
  it("plays what comes in a burst in order, eight blocks after the first came, and once", async () => {
    const buffer = await newBuffer();
    for (let number = 5; number < 13; number++) buffer.enqueue(packetOf(number, -100 * number));
    expect(play(buffer, 8)).toEqual(Array(8).fill(0));
    expect(play(buffer, 8)).toEqual([5, 6, 7, 8, 9, 10, 11, 12].map((number) => -100 * number));
    expect(buffer.counters).toMatchObject({
      playedFrames: 1024,
      concealedFrames: 0,
      underruns: 0,
      bufferFrames: 0,
    });
    expect(play(buffer, 20)).toEqual(Array(20).fill(0));
    expect(buffer.counters).toMatchObject({ playedFrames: 1024, concealedFrames: 20 * 128, underruns: 1 });
  });

  it("counts apart what is late, too early, and lost", async () => {
    const buffer = await newBuffer();
    buffer.enqueue(packetOf(0, 1));
    buffer.enqueue(packetOf(8, 9)); // Finds no place: the ring holds eight blocks ahead of the first.
    expect(play(buffer, 9).at(-1)).toBe(1);
    buffer.enqueue(packetOf(0, 1)); // Its turn is over.
    buffer.enqueue(packetOf(3, 4)); // And 1 and 2 never came.
    expect(play(buffer, 4)).toEqual([0, 0, 4, 0]);
    expect(buffer.counters).toEqual({
      playedFrames: 2 * 128,
      concealedFrames: 3 * 128,
      skippedFrames: 128,
      receivedPackets: 4,
      lostPackets: 5,
      latePackets: 1,
      underruns: 2,
      bufferFrames: 0,
    });
  });

  it("keeps a peer's offset, until nothing of it was in time for a second", async () => {
    const buffer = await newBuffer();
    buffer.enqueue(packetOf(0, 1));
    play(buffer, 50);
    for (let number = 1; number <= 375; number++, play(buffer, 1)) buffer.enqueue(packetOf(number, 1));
    expect(buffer.counters).toMatchObject({ latePackets: 375, playedFrames: 128 });
    buffer.enqueue(packetOf(376, 7));
    expect(play(buffer, 9).at(-1)).toBe(7);
  });

  it("mixes what is for the same block", async () => {
    const buffer = await newBuffer();
    for (const sample of [-32_768, 1000]) buffer.enqueue(packetOf(0, sample));
    expect(play(buffer, 9).at(-1)).toBe(-31_768);
  });

  it("is fed by a ring that loses what it has no room for, and nothing else", async () => {
    const { SendRing } = await buffers();
    const ring = new SendRing(SendRing.createMemory());
    const taken: number[] = [];
    ring.drain((packet: ArrayBuffer) => taken.push(new Int32Array(packet)[0]!));
    const push = (from: number, to: number) => {
      for (let number = from; number < to; number++) ring.push(new Uint8Array(packetOf(number, 0)));
    };
    push(0, 520);
    await until(async () => taken.length >= 512, "the ring to be emptied");
    push(520, 530);
    await until(async () => taken.length >= 522, "the ring to be emptied");
    expect(taken).toEqual([...Array(530).keys()].filter((number) => number < 512 || number >= 520));
  });
});

describe("the paper's setups", () => {
  it("B1 carries the microphone to the speaker of one page, sides apart", async () => {
    const a = await openPaper("A", "B1");
    await until(() => a.evaluate(() => page<PaperPage>().ready()), "sound");
    const [before, after] = await carries(a, "A");
    expect(after.lostPackets).toBe(0);
    expect(after.receivedPackets).toBeGreaterThan(before.receivedPackets);
    expect(a.errors).toEqual([]);
  });

  it.each(["C0", "C1"])("%s carries one browser's microphone to the speaker of another", async (setup) => {
    const [a, b] = await Promise.all([openPaper("A", setup), openPaper("B", setup)]);
    const offer = await a.evaluate(() => page<PaperPage>().describe());
    const answer = await b.evaluate((description) => page<PaperPage>().describe(description), offer);
    await a.evaluate((description) => page<PaperPage>().accept(description), answer);
    for (const end of [a, b]) await until(() => end.evaluate(() => page<PaperPage>().ready()), "sound");
    const [before, after] = await carries(b, "B");
    // A channel without retransmission may give packets up when the machine stands still; that is rare.
    const lost = after.lostPackets! - before.lostPackets!;
    expect(lost).toBeLessThan((after.receivedPackets - before.receivedPackets) / 4);
    expect([...a.errors, ...b.errors]).toEqual([]);
  });

  it("refuses a setup that the paper does not have", async () => {
    const a = await start("A");
    await a.open(`${pages.url}paper.html?setup=D2`);
    expect(a.errors.join()).toContain("setup must be B0, B1, C0 or C1");
  });
});

describe("RTC media", () => {
  it.each(["chromium", "firefox"] as const)("%s sends the shortest packets, of 10 ms", async (browser) => {
    const product = { newRoom: () => "" } as Product;
    const stage = { rig, pages, product, browser: { browser }, parameters: {} };
    const read = (end: Browser) => end.evaluate(() => page<{ counters(): Promise<Counters> }>().counters());
    const grown = await meet(stage, "RTC", async ([, b]) => {
      const before = await read(b);
      await sleep(3000);
      return increments(before, await read(b));
    });
    // What is concealed at an end of that time is not whole packets.
    const frames = (grown.playedFrames! + grown.concealedFrames!) / grown.receivedPackets!;
    expect(frames).toBeGreaterThan(400);
    expect(frames).toBeLessThan(560);
  });

  it("is not ready while it plays, connected, before the first packet", async () => {
    const [a, b] = await Promise.all([start("A"), start("B")]);
    for (const end of [a, b]) {
      await end.open(`${pages.url}rtc-media.html`);
      await end.evaluate(keepFromSending);
      await end.evaluate(() => page<RtcPage>().start());
    }
    const offer = await a.evaluate(() => page<RtcPage>().describe());
    const answer = await b.evaluate((description) => page<RtcPage>().describe(description), offer);
    await a.evaluate((description) => page<RtcPage>().accept(description), answer);
    await until(() => b.evaluate(isPlaying), "the element to play");
    expect(await b.evaluate(() => page<RtcPage>().ready())).toBe(false);
  });
});

describe("the senders", () => {
  const pitches = [1, 2, 3];
  let product: Product;
  let doorway: Doorway;

  beforeAll(async () => {
    product = await Product.start();
    doorway = await openDoorway(product.url);
  });

  afterAll(async () => {
    doorway?.close();
    await product?.stop();
  });

  it("are all heard by the one they play to, and by no other sender", async () => {
    const room = product.newRoom();
    const [a, crowd] = await Promise.all([start("A"), start("B")]);
    await a.open(product.roomUrl(room, "listener", { quantum: 128, buffer: 4096, lanes: 1 }));
    await until(() => a.evaluate(idOf), "the listener's place in the room");
    const listener = (await a.evaluate(idOf))!;
    await crowd.open(`${pages.url}senders.html`);
    await crowd.evaluate((options) => page<SendersPage>().start(options), {
      url: doorway.url,
      room,
      count: pitches.length,
      listener,
    });
    await until(() => crowd.evaluate(() => page<SendersPage>().ready()), "the senders' connections");
    await untilPlaying([a], pitches.length);

    const before = await crowd.evaluate(() => page<SendersPage>().counters());
    const { heard } = await rig.pass({ plays: [], hears: [speaker("A")], seconds: 2 });
    const after = await crowd.evaluate(() => page<SendersPage>().counters());
    for (const side of heard[0]!) {
      const powers = [1, 2, 3, 4].map((pitch) => power(side, pitch));
      for (const pitch of pitches) expect(powers[pitch - 1]).toBeGreaterThan(100 * powers[3]!);
    }
    // All by one clock: none sends more than another.
    const grown = after.sentPackets.map((sent, index) => {
      const dropped = after.droppedBacklog[index]! - before.droppedBacklog[index]!;
      return sent - before.sentPackets[index]! + dropped;
    });
    expect(Math.min(...grown)).toBeGreaterThan(0);
    expect(Math.max(...grown) - Math.min(...grown)).toBeLessThanOrEqual(1);

    const { peers } = await readStats(a);
    expect(peers.map(({ name }) => name).sort()).toEqual(["sender 1", "sender 2", "sender 3"]);
    const { sentPackets, droppedBacklog } = await crowd.evaluate(() => page<SendersPage>().counters());
    for (const peer of peers) {
      const index = Number(peer.name.at(-1)) - 1;
      expect(peer.malformedPackets).toBe(0);
      expect(peer.playedFrames).toBeGreaterThan(0);
      expect(peer.receivedPackets).toBeLessThanOrEqual(sentPackets[index]!);
      // Every packet has its number: what is missing was sent and lost, or never sent.
      const numbered = peer.receivedPackets + peer.lostPackets;
      expect(numbered).toBeLessThanOrEqual(sentPackets[index]! + droppedBacklog[index]!);
    }
    await crowd.evaluate(() => page<SendersPage>().stop());
    await until(async () => (await readStats(a)).peers.length === 0, "the senders to leave");
    expect([...a.errors, ...crowd.errors]).toEqual([]);
  });

  it("say what is wrong with the room", async () => {
    const crowd = await start("B");
    await crowd.open(`${pages.url}senders.html`);
    const options = { url: doorway.url, room: product.newRoom(), count: 1, listener: "0".repeat(32) };
    const started = crowd.evaluate((it) => page<SendersPage>().start(it), options);
    await expect(started).rejects.toThrow(/listener 0+ is not in the room/);
  });
});

/** The page's own module, which is plain JavaScript. */
const buffers = () => import(new URL("../pages/paper-buffer.js", import.meta.url).href);

async function newBuffer() {
  const { DejitterBuffer } = await buffers();
  return new DejitterBuffer(DejitterBuffer.createMemory());
}

/** A packet of the pages, with the same sample in all its frames. */
function packetOf(number: number, sample: number): ArrayBuffer {
  const packet = new ArrayBuffer(4 + packetFrames * 4);
  new Int32Array(packet, 0, 1)[0] = number;
  new Int16Array(packet, 4).fill(sample);
  return packet;
}

/** The one sample of which each of so many blocks consists. */
function play(buffer: { dequeue(left: Float32Array, right: Float32Array): void }, blocks: number): number[] {
  return Array.from({ length: blocks }, () => {
    const sides = [new Float32Array(packetFrames), new Float32Array(packetFrames)] as const;
    buffer.dequeue(...sides);
    const samples = new Set([...sides[0], ...sides[1]]);
    expect(samples.size).toBe(1);
    return [...samples][0]! * 32_768;
  });
}

interface PaperCounters {
  playedFrames: number;
  concealedFrames: number;
  skippedFrames: number;
  receivedPackets: number;
  lostPackets: number | null;
  latePackets: number;
  underruns: number;
  bufferFrames: number | null;
}

/** What lab/pages/paper.js offers. */
interface PaperPage {
  start(): Promise<void>;
  describe(offer?: RTCSessionDescriptionInit): Promise<RTCSessionDescriptionInit>;
  accept(answer: RTCSessionDescriptionInit): Promise<void>;
  ready(): boolean;
  counters(): Promise<PaperCounters>;
}

/** What lab/pages/rtc-media.js offers. */
type RtcPage = Pick<PaperPage, "start" | "describe" | "accept"> & { ready(): Promise<boolean> };

/** What lab/pages/senders.js offers. */
interface SendersPage {
  start(options: { url: string; room: string; count: number; listener: string }): Promise<void>;
  ready(): boolean;
  counters(): Promise<{ sentPackets: number[]; droppedBacklog: number[]; maxLateMs: number }>;
  stop(): void;
}

/** Runs in the page. */
declare function page<Page>(): Page;

/** A page's connections send nothing from here on, and what it plays by is kept. Runs in the page. */
function keepFromSending(): void {
  const { addTrack } = RTCPeerConnection.prototype;
  RTCPeerConnection.prototype.addTrack = function (...track) {
    const sender = addTrack.apply(this, track);
    Object.assign(window, { played: { connection: this, element: null } });
    sender.replaceTrack(null);
    return sender;
  };
  const { play } = HTMLMediaElement.prototype;
  HTMLMediaElement.prototype.play = function () {
    (window as unknown as Played).played.element = this;
    return play.apply(this);
  };
}

/** Whether the page's element plays what its connected connection brings. Runs in the page. */
function isPlaying(): boolean {
  const { connection, element } = (window as unknown as Played).played;
  return (
    connection.connectionState === "connected" && !!element && !element.paused && element.currentTime > 0
  );
}

interface Played {
  played: { connection: RTCPeerConnection; element: HTMLMediaElement | null };
}

/** The product's participant, once it has joined. Runs in the page. */
function idOf(): string | null {
  const { antiphon } = window as unknown as { antiphon?: { stats(): { id: string | null } } };
  return antiphon?.stats().id ?? null;
}

async function start(card: string): Promise<Browser> {
  const started = await launch({ browser: "chromium", env: rig.cardEnv(card), audioBufferSize });
  browsers.push(started);
  return started;
}

async function openPaper(card: string, setup: string): Promise<Browser> {
  const opened = await start(card);
  await opened.open(`${pages.url}paper.html?setup=${setup}`);
  await opened.evaluate(() => page<PaperPage>().start());
  return opened;
}

/**
 * Plays the score into microphone A. Pulses must be heard, each by its own code and on its own side, from the speaker of `card`.
 * A machine with other work to do may stand still for longer than the paper's buffer lasts: then once more, at most twice.
 */
async function carries(end: Browser, card: string): Promise<[before: PaperCounters, after: PaperCounters]> {
  rig.favourSound();
  for (let tries = 1; ; tries++) {
    const [{ heard }, [before, after]] = await Promise.all([
      rig.pass({ plays: [{ take: score.take, to: mic("A") }], hears: [speaker(card)] }),
      readAround(seconds, () => end.evaluate(() => page<PaperPage>().counters())),
    ]);
    const { hits, missed, crosstalkDb } = listen(heard[0]!, score);
    const heardPulses = hits.length - missed;
    if (heardPulses < hits.length / 4 && tries < 3) continue;
    expect(heardPulses, "pulses heard").toBeGreaterThanOrEqual(hits.length / 4);
    expect(crosstalkDb).toBeLessThan(-60);
    for (const counter of ["playedFrames", "receivedPackets"] as const)
      expect(after[counter]).toBeGreaterThan(before[counter]);
    for (const { bufferFrames } of [before, after]) {
      // What was received was played, late, skipped, or is in the buffer: were it counted twice or not at all, this would run away.
      expect(bufferFrames).toBeGreaterThanOrEqual(0);
      expect(bufferFrames).toBeLessThanOrEqual(ringFrames);
    }
    return [before, after];
  }
}

/** Of the tone with `periods` in a packet, over whole packets: other senders' tones do not count. */
function power(side: Float32Array, periods: number): number {
  const frames = side.length - (side.length % packetFrames);
  let [re, im] = [0, 0];
  for (let n = 0; n < frames; n++) {
    const angle = (2 * Math.PI * periods * n) / packetFrames;
    re += side[n]! * Math.cos(angle);
    im += side[n]! * Math.sin(angle);
  }
  return (re * re + im * im) / (frames * frames);
}

async function until(holds: () => Promise<unknown>, what: string): Promise<void> {
  const deadline = Date.now() + 20_000;
  while (!(await holds())) {
    if (Date.now() > deadline) throw new Error(`waited 20 s for ${what}`);
    await sleep(100);
  }
}
