/** The product under test, seen from outside: its server, its page, and the record of docs/automation.md. */

import { randomBytes } from "node:crypto";
import { existsSync } from "node:fs";
import path from "node:path";
import type { Browser } from "./browsers.js";
import { freePort } from "./ports.js";
import { makeFolder, removeFolder, Service, sleep } from "./processes.js";
import { root } from "./rig.js";

/** Parameters of the room page's address; docs/automation.md says what they mean. */
export type PageParameters = Partial<
  Record<
    | "quantum"
    | "packet"
    | "buffer"
    | "lanes"
    | "bits"
    | "opusKbps"
    | "copies"
    | "adapt"
    | "channels"
    | "loop"
    | "path"
    | "transport",
    string | number
  >
>;

/** What the lab reads of `window.antiphon.stats()`, version 2. Unknown is null. */
export interface PageStats {
  version: 2;
  /** Since the epoch. */
  timeMs: number;
  /** One's own participant id; null before joining. */
  id: string | null;
  quantumFrames: number | null;
  /** Quanta rendered. */
  quanta: number;
  packetFrames: number;
  transport: "shared" | "port";
  reportedBaseLatencyMs: number | null;
  reportedOutputLatencyMs: number | null;
  reportedInputLatencyMs: number | null;
  /** Times the page has opened the microphone. Nothing is captured for a moment then. */
  microphoneOpenings: number;
  ringOverflows: number;
  sender: {
    capturePath: string;
    captures: number;
    capturedFrames: number;
    sentFrames: number;
    overrunFrames: number;
    packets: number;
  };
  /** The connection to the server: "offline", "connecting" or "online". */
  signalling: string;
  relay: {
    sessions: { state: string }[];
    rttMs: number | null;
    wanted: number;
    sent: { format: string; copies: boolean } | null;
    missingShare: number | null;
  } | null;
  /** The server's mix; null while it makes none. */
  mix: PageStream | null;
  peers: PagePeer[];
}

/** What came of a peer by one way. */
export interface PageWay {
  /** Of probes; null while they are not answered. */
  rttMs: number | null;
  isHeard: boolean;
  receivedPackets: number;
  firstPackets: number;
}

export interface PageDelay {
  /** Null if a stage is unknown. */
  ms: number | null;
  knownMs: number;
  errorMs: number;
  offsetErrorMs: number;
  stages: { name: string; ms: number | null; source: string }[];
}

/** What came of a stream, and what became of it. */
export interface PageStream {
  receivedPackets: number;
  lostPackets: number;
  latePackets: number;
  malformedPackets: number;
  receivedFrames: number;
  playedFrames: number;
  concealedFrames: number;
  /** Frames that came again by the other way. */
  copiedFrames: number;
  skippedFrames: number;
  underruns: number;
  bufferFrames: number | null;
  targetFrames: number;
  /** "s16", "s24", "f32" or "opus". */
  format: string | null;
  opusBps: number | null;
}

export interface PagePeer extends PageStream {
  id: string;
  name: string;
  connection: string;
  /** "direct", "relay", "both" or "mix". */
  path: string | null;
  /** The way the musician chose, or "auto". */
  pin: string;
  /** Of the last moment, left and right. */
  peak: number[];
  /** By the room's owner, for everyone. */
  mutedByOwner: boolean;
  direct: PageWay | null;
  relayed: PageWay | null;
  droppedBacklog: number;
  sent: { format: string; copies: boolean; copiesSent: number; switches: number } | null;
  /** The page's own figure, null until it has one. */
  mouthToEar: PageDelay | null;
  /** How the peer hears this page, by its own report. */
  heard: { isMixed: boolean; concealedShare: number | null; targetFrames: number; periodMs: number } | null;
  /** `candidateType`: the path that ICE chose, `relay` if it is one at either end. */
  lanes: { state: string; sentDatagrams: number; candidateType: string | null }[];
}

export const binary = path.join(root, "target/release/antiphon");

/** Why the product cannot be started; undefined when it can. */
export function missingProduct(): string | undefined {
  return existsSync(binary) ? undefined : "target/release/antiphon is not built: make build";
}

/** Starts a server, and waits until it answers. */
async function serve(command: readonly string[], url: string, folder: string): Promise<Service> {
  const service = Service.start(command, process.env, path.join(folder, "log"));
  const answers = () =>
    fetch(url).then(
      () => true,
      () => false,
    );
  try {
    await service.until(answers, `answer at ${url}`);
  } catch (error) {
    await service.stop();
    throw error;
  }
  return service;
}

export class Product {
  private constructor(
    readonly url: string,
    /** Where it serves `/metrics`. */
    readonly metricsUrl: string,
    private readonly command: readonly string[],
    public service: Service,
    private readonly folder: string,
  ) {}

  /** `prefix` of the server's command, for instance to bind it to a core; `options` of `antiphon serve`. */
  static async start({
    prefix = [],
    options = [],
  }: {
    prefix?: readonly string[];
    options?: readonly string[];
  } = {}): Promise<Product> {
    const missing = missingProduct();
    if (missing) throw new Error(missing);
    const folder = makeFolder("server");
    const [listen, metrics] = [`127.0.0.1:${await freePort()}`, `127.0.0.1:${await freePort()}`];
    const command = [...prefix, binary, "serve", "--listen", listen, "--metrics-listen", metrics, ...options];
    const url = `http://${listen}`;
    try {
      return new Product(url, `http://${metrics}`, command, await serve(command, url, folder), folder);
    } catch (error) {
      removeFolder(folder);
      throw error;
    }
  }

  /** Ends the server as a crash would. */
  async kill(): Promise<void> {
    await this.service.kill();
  }

  /** Starts it anew, at the same address, knowing nothing. */
  async restart(): Promise<void> {
    this.service = await serve(this.command, this.url, this.folder);
  }

  get port(): number {
    return Number(new URL(this.url).port);
  }

  /** A room of its own for every measurement. */
  newRoom(): string {
    return randomBytes(16).toString("base64url");
  }

  lobbyUrl(room: string): string {
    return `${this.url}/r/${room}`;
  }

  /**
   * The room page that joins by itself. Unless asked otherwise it sends what it was told to and nothing else, whatever the
   * machine and the network do: one thing is measured at a time.
   */
  roomUrl(room: string, name: string, parameters: PageParameters): string {
    const query = new URLSearchParams({ autojoin: "1", name, copies: "off", adapt: "off", path: "direct" });
    for (const [key, value] of Object.entries(parameters)) query.set(key, String(value));
    return `${this.lobbyUrl(room)}?${query}`;
  }

  async stop(): Promise<void> {
    await this.service.stop();
    removeFolder(this.folder);
  }
}

export async function readStats(page: Browser): Promise<PageStats> {
  const stats = await page.evaluate(() => {
    const { antiphon } = window as unknown as { antiphon?: { stats(): unknown } };
    return (antiphon?.stats() ?? null) as PageStats | null;
  });
  if (stats === null) throw new Error("the page has no window.antiphon.stats()");
  if (stats.version !== 2)
    throw new Error(`the page's stats have version ${stats.version}, the lab reads version 2`);
  return stats;
}

/** What a page said of itself, and when, in ms since the epoch. */
export interface Kept<T> {
  atMs: number;
  said: T;
}

/**
 * Has a page keep its stats, or one of lab/pages its counters, once every `everyMs`, until it is asked to hand them over; it keeps nothing if it
 * has none. To be asked for them from outside delays its sound: the browser's processes and ours then work on both processors for some 0.1 s,
 * the first time most of all.
 */
export async function keep<T>(page: Browser, { everyMs = 1000 } = {}): Promise<() => Promise<Kept<T>[]>> {
  await page.evaluate((intervalMs) => {
    const { antiphon, page } = window as unknown as {
      antiphon?: { stats(): T };
      page?(): { counters?(): Promise<T> };
    };
    const say = antiphon ? () => antiphon.stats() : page?.().counters;
    const kept: Kept<T>[] = [];
    const timer =
      say && setInterval(async () => kept.push({ atMs: Date.now(), said: await say() }), intervalMs);
    Object.assign(window, {
      handOver: () => {
        clearInterval(timer);
        return kept;
      },
    });
  }, everyMs);
  return () => page.evaluate(() => (window as unknown as { handOver(): Kept<T>[] }).handOver());
}

/**
 * What a page answers; null, and the reason in `troubles`, of one that has died or says nothing for so long. Once sound has flowed that is a figure, the worst: a step that failed
 * by it would be taken anew until it went well.
 */
export async function answerOf<T>(answer: Promise<T>, troubles: string[], seconds = 120): Promise<T | null> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`a page said nothing for ${seconds} s`)), seconds * 1000);
  });
  try {
    return await Promise.race([answer, late]);
  } catch (error) {
    troubles.push((error instanceof Error ? error.message : String(error)).split("\n")[0]!.trim());
    return null;
  } finally {
    clearTimeout(timer);
  }
}

/** Has pages keep what they say, each as by {@link keep}; null of one that cannot, as by {@link answerOf}. */
export async function keepAll<T>(
  pages: readonly Browser[],
  troubles: string[],
  options?: { everyMs?: number },
): Promise<() => Promise<(Kept<T>[] | null)[]>> {
  const handOver = await Promise.all(pages.map((page) => answerOf(keep<T>(page, options), troubles)));
  return () => Promise.all(handOver.map((hand) => hand && answerOf(hand(), troubles)));
}

/** What the lab reads of `window.antiphon.trace()`, version 1: columns, times in ms since the epoch. */
export interface PageTrace {
  version: 1;
  captured: { timeMs: number[]; frames: number[] };
  sent: { timeMs: number[]; sequence: number[]; firstFrame: number[] };
  received: { timeMs: number[]; sequence: number[]; firstFrame: number[]; peer: string[]; isCopy: boolean[] };
  dropped: number;
}

/** The page refuses longer ones. */
export const longestTraceSeconds = 60;

export async function readTrace(page: Browser, seconds: number): Promise<PageTrace> {
  // As text: the drivers take minutes over so many numbers.
  const text = await page.evaluate(async (length) => {
    const { antiphon } = window as unknown as { antiphon: { trace(seconds: number): Promise<PageTrace> } };
    return JSON.stringify(await antiphon.trace(length));
  }, seconds);
  const trace = JSON.parse(text) as PageTrace;
  if (trace.version !== 1)
    throw new Error(`the page's traces have version ${trace.version}, the lab reads version 1`);
  // Else they would pass for packets that never came.
  if (trace.dropped > 0) throw new Error(`the page's trace had no room for ${trace.dropped} events`);
  return trace;
}

/** Waits until every page hears `peers` others: connected, and playing more frames from look to look, or in the server's mix. */
export async function untilPlaying(pages: readonly Browser[], peers = 1, seconds = 30): Promise<void> {
  const deadline = Date.now() + seconds * 1000;
  for (const page of pages) {
    let before = new Map<string, number>();
    for (;;) {
      let problem = "";
      const stats = await readStats(page).catch((error: unknown) => {
        problem = String(error);
        return undefined;
      });
      const playing = (stats?.peers ?? []).filter(
        (peer) =>
          peer.connection === "connected" &&
          (peer.path === "mix" || peer.playedFrames > (before.get(peer.id) ?? Number.POSITIVE_INFINITY)),
      );
      if (playing.length >= peers) break;
      if (Date.now() > deadline) {
        const seen = stats ? JSON.stringify(stats.peers) : problem;
        throw new Error(
          `after ${seconds} s the page does not play ${peers} peers: ${seen}; errors: ${page.errors.join(" | ")}`,
        );
      }
      before = new Map((stats?.peers ?? []).map((peer) => [peer.id, peer.playedFrames]));
      await sleep(200);
    }
  }
}
