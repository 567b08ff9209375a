import { quantile } from "../analysis.js";
import { answerOf, type PageStats, Product, readStats, untilPlaying } from "../antiphon.js";
import { type Browser, launch, networkServices } from "../browsers.js";
import { choose, configs } from "../configs.js";
import type { Experiment, Lab, Outcome, Plan } from "../experiment.js";
import { sleep } from "../processes.js";
import { sampleRateHz } from "../rig.js";
import { raw, shown, shownMs } from "../units.js";

interface Measured extends Times {
  config: string;
  session: number;
  page: string;
}

/** Of one page. */
interface Times {
  /** From killing the server until the page's connection to it is known to be gone. Infinite, as all times here: it was not seen. */
  noticedMs: number;
  /** Whether the part of a browser that holds its sockets crashed meanwhile, in either. */
  hasCrashed: boolean;
  /** Frames played while the server was gone, over those of that time. */
  playedShare: number;
  /** Frames concealed from before the server was killed until after all was back; null: the other was gone then. */
  concealedFrames: number | null;
  /** From starting the server anew until it answered. */
  answersMs: number;
  /** From starting it anew until the page was in its room again. */
  roomMs: number;
  /** The same until the other answered by way of the server, too. */
  relayMs: number;
}

/** How long the server is gone. */
const goneMs = 5_000;
const lookMs = 20;
/** More than one time takes if nothing comes back. */
const longestSeconds = 300;
const names = ["A", "B"];
const never = Number.POSITIVE_INFINITY;

const worst: Times = {
  noticedMs: never,
  hasCrashed: false,
  playedShare: 0,
  concealedFrames: null,
  answersMs: never,
  roomMs: never,
  relayMs: never,
};

export const restart: Experiment = {
  name: "restart",
  title: "The server is killed, and comes back",
  question:
    "Does the music go on without the server, and how soon are all in their room again when it is back?",
  programs: [],
  plan(options): Plan<Measured[]> {
    const chosen = choose(options.configs ?? ["chromium", "firefox"], Object.keys(configs)).slice(
      0,
      options.quick ? 1 : undefined,
    );
    const sessions = options.sessions ?? (options.quick ? 1 : 5);
    const versions: Record<string, string> = {};
    const steps = chosen.map((config) => ({
      label: `${config}, ${sessions} times`,
      seconds: 15 + 12 * sessions,
      run: async ({ rig }: Lab) => {
        // A server of its own: others need theirs.
        const product = await Product.start();
        const pages: Browser[] = [];
        try {
          const room = product.newRoom();
          for (const card of ["A", "B"] as const) {
            const page = await launch({ ...configs[config]!, env: rig.cardEnv(card) });
            pages.push(page);
            await page.open(product.roomUrl(room, card, { path: "auto", buffer: 4096 }));
          }
          versions[config] = pages[0]!.version;
          await untilPlaying(pages);
          rig.favourSound();
          if (!(await answerBothWays(pages))) throw new Error("30 s without answers both ways");
          const measured: Measured[] = [];
          const troubles: string[] = [];
          for (let session = 1; session <= sessions; session++) {
            const times = await answerOf(once(product, pages), troubles, longestSeconds);
            measured.push(
              ...names.map((page, index) => ({ config, session, page, ...(times?.[index] ?? worst) })),
            );
          }
          return {
            measured,
            troubles,
            words: `back in the room after ${milliseconds(measured, ({ roomMs }) => roomMs)}`,
          };
        } finally {
          for (const page of pages) await page.close();
          await product.stop();
        }
      },
    }));
    return { steps, conclude: (measured) => conclude(measured.flat(), versions) };
  },
};

/** *Errors* if a page is dead. */
async function once(product: Product, pages: readonly Browser[]): Promise<Times[]> {
  // They did once: what the time before broke is no reason to take it anew.
  if (!(await answerBothWays(pages))) return pages.map(() => worst);
  const before = await Promise.all(pages.map(readStats));
  const services = networkServices().join();
  const killed = performance.now();
  await product.kill();
  const gone = await Promise.all(
    pages.map(async (page) => {
      const { at, stats } = await until(page, ({ signalling }) => signalling !== "online");
      return { noticedMs: at - killed, stats };
    }),
  );
  await sleep(goneMs);
  const alone = await Promise.all(
    pages.map(async (page, index) => {
      const stats = await readStats(page);
      const { stats: then } = gone[index]!;
      const [first, last] = [then, stats].map(({ peers }) => peers[0]?.playedFrames);
      if (first === undefined || last === undefined) return 0;
      return (last - first) / (((stats.timeMs - then.timeMs) / 1000) * sampleRateHz);
    }),
  );
  const started = performance.now();
  const answered = product.restart().then(
    () => performance.now() - started,
    () => never,
  );
  const back = await Promise.all(
    pages.map(async (page) => {
      const room = await until(page, isInRoom);
      const relayed = await until(page, isRelayed);
      return { roomMs: room.at - started, relayMs: relayed.at - started, stats: relayed.stats };
    }),
    // Whatever became of the pages, the server is to be started, to be ended.
  ).finally(() => answered);
  const answersMs = await answered;
  return pages.map((_, index) => {
    const { stats, ...times } = back[index]!;
    const ids = (of: PageStats) => [of.id, of.peers[0]?.id].join();
    // Whoever is in the room as somebody else is not back.
    const { roomMs, relayMs } = ids(stats) === ids(before[index]!) ? times : worst;
    const [old, now] = [before[index]!, stats].map(({ peers }) => peers[0]?.concealedFrames);
    return {
      noticedMs: gone[index]!.noticedMs,
      hasCrashed: networkServices().join() !== services,
      playedShare: alone[index]!,
      concealedFrames: old === undefined || now === undefined ? null : now - old,
      answersMs,
      roomMs,
      relayMs,
    };
  });
}

function isInRoom({ signalling, peers }: PageStats): boolean {
  return signalling === "online" && peers.length === 1;
}

/** Null once no probe has been answered for 3 s. Whether sound goes this way as well is the pages' choice, which also knows the uplink. */
function isRelayed(stats: PageStats): boolean {
  return isInRoom(stats) && stats.peers[0]!.relayed?.rttMs != null;
}

/** Whether each page soon has answers from the other directly and by the server. */
async function answerBothWays(pages: readonly Browser[]): Promise<boolean> {
  const answers = (stats: PageStats) => isRelayed(stats) && stats.peers[0]!.direct?.rttMs != null;
  const ready = await Promise.all(pages.map((page) => until(page, answers)));
  return ready.every(({ at }) => at !== never);
}

/** Looks at the page until it says so: when that was, and what else it said. Never, after half a minute. */
async function until(
  page: Browser,
  holds: (stats: PageStats) => boolean,
): Promise<{ at: number; stats: PageStats }> {
  const deadline = performance.now() + 30_000;
  for (;;) {
    const stats = await readStats(page);
    const at = performance.now();
    if (holds(stats)) return { at, stats };
    if (at > deadline) return { at: never, stats };
    await sleep(lookMs);
  }
}

function milliseconds(some: readonly Measured[], of: (one: Measured) => number): string {
  const all = some.map(of);
  const [middle, most] = [0.5, 1].map((p) => shownMs(quantile(all, p), 0));
  return `${middle}, at most ${most}`;
}

function conclude(measured: Measured[], versions: Record<string, string>): Outcome {
  const chosen = [...new Set(measured.map(({ config }) => config))];
  const of = (config: string) => measured.filter((one) => one.config === config);
  return {
    findings: chosen.map((config) => {
      const some = of(config);
      const least = quantile(
        some.map(({ playedShare }) => playedShare),
        0,
      );
      const crashes = some.filter(({ hasCrashed, page }) => hasCrashed && page === "A").length;
      const also =
        crashes > 0 ? ` ${crashes} times of ${some.length / 2} a browser lost all its sockets.` : "";
      return `${config}: in the room again ${milliseconds(some, ({ roomMs }) => roomMs)} after the server's start, an answer by way of it ${milliseconds(some, ({ relayMs }) => relayMs)} (median, most); without the server at least ${shown((least ?? 0) * 100, 1)} % of the frames were played.${also}`;
    }),
    sections: [
      {
        heading: "Without the server, and with it again",
        method: `Two pages in browsers of their own hear each other both ways, directly and by the server. It is killed as by a crash, knows nothing of rooms when it is started again ${goneMs / 1000} s later, and its relay has another certificate. The pages' own counters are looked at every ${lookMs} ms: when the connection is said to be gone; what share of the frames of that time was played; when each was online with the other in its room; when the other answered by way of the server, too. Chromium 156 sometimes loses all its sockets, of the direct lanes too, at the moment when a WebTransport server dies (its network service crashes, and is started anew); it is said where that happened. Who is back has the id from before; nothing was reloaded. What was not seen within half a minute is "never"; if two do not come back from one time, the times after it are "never" as well.`,
        uncertainty: `Looking takes some milliseconds, and the time until the server answers, part of all of these, is measured in steps of 100 ms. The pages' counters are renewed a few times a second: shares are right to some percent.`,
        figures: [],
        tables: [
          {
            caption: "Each time, each page",
            columns: [
              { name: "browser" },
              { name: "time", align: "right" },
              { name: "page" },
              { name: "loss noticed, ms", align: "right" },
              { name: "played meanwhile, %", align: "right" },
              { name: "concealed, frames", align: "right" },
              { name: "server answers, ms", align: "right" },
              { name: "in the room, ms", align: "right" },
              { name: "answer by the server, ms", align: "right" },
              { name: "sockets lost" },
            ],
            rows: measured.map((one) => [
              one.config,
              one.session,
              one.page,
              shown(one.noticedMs, 0),
              shown(one.playedShare * 100, 1),
              one.concealedFrames,
              shown(one.answersMs, 0),
              shown(one.roomMs, 0),
              shown(one.relayMs, 0),
              one.hasCrashed ? "yes" : "",
            ]),
          },
        ],
      },
    ],
    tables: {
      "raw.csv": {
        columns: [
          "config",
          "session",
          "page",
          "noticed_ms",
          "played_share",
          "concealed_frames",
          "answers_ms",
          "room_ms",
          "relay_ms",
          "sockets_lost",
        ],
        rows: measured.map((one) => [
          one.config,
          one.session,
          one.page,
          raw(one.noticedMs, 1),
          shown(one.playedShare, 5),
          one.concealedFrames,
          raw(one.answersMs, 1),
          raw(one.roomMs, 1),
          raw(one.relayMs, 1),
          Number(one.hasCrashed),
        ]),
      },
    },
    versions,
    doubts: [],
  };
}
