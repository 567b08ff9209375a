import { quantile } from "../analysis.js";
import { answerOf, type PageStats, readStats, untilPlaying } from "../antiphon.js";
import { type Browser, launch } from "../browsers.js";
import { choose, chooseConfig, configs, rotated } from "../configs.js";
import { openDoorway } from "../doorway.js";
import type { Experiment, Outcome, Plan, Step } from "../experiment.js";
import { sleep } from "../processes.js";
import { sampleRateHz } from "../rig.js";
import { concealment, until } from "../setups.js";
import { percent, shown } from "../units.js";

interface Measured {
  session: number;
  transport: string;
  /** In the room, the measured one included. */
  peers: number;
  receivedPackets: number;
  latePackets: number;
  lostPackets: number;
  concealedFrames: number;
  playedFrames: number;
  /** How long it was counted, by the listener's clock. */
  seconds: number;
  /** Frames played or concealed, over those of that time: of the peer who has the fewest. One who ran dry counts neither. */
  leastShare: number;
  /** Sender's own lateness in the interval: not the listener's fault. */
  senderLateMs: number | null;
}

/** What pages/senders.js offers. Runs in the page. */
declare function page(): {
  start(options: { url: string; room: string; count: number; listener: string }): Promise<void>;
  ready(): boolean;
  counters(): Promise<{ sentPackets: number[]; droppedBacklog: number[]; maxLateMs: number }>;
  stop(): void;
};

const counts = [2, 3, 5, 8, 12, 16, 20];
/** What may be concealed, and what must have been played or concealed. */
const mostConcealedShare = 0.001;
const leastPlayedShare = 0.95;
/** The paper's de-jitter buffer: eight packets of 128 frames. */
const bufferFrames = 1024;

export const peers: Experiment = {
  name: "peers",
  title: "Late loss against the number of concurrent peers",
  question:
    "How many musicians can one browser listen to before packets come too late, with messages between its threads and with shared memory?",
  programs: [],
  plan(options): Plan<Measured> {
    const config = chooseConfig(options.configs);
    const transports = choose(options.setups, ["port", "shared"]);
    const seconds = options.seconds ?? (options.quick ? 2 : 30);
    const sessions = options.sessions ?? (options.quick ? 1 : 2);
    const numbers = options.quick ? [3] : counts;
    const steps: Step<Measured>[] = [];
    let version = "";
    for (let session = 1; session <= sessions; session++) {
      for (const count of numbers) {
        for (const transport of rotated(transports, session, sessions)) {
          steps.push({
            label: `session ${session}, ${count} peers, ${name(transport)}`,
            seconds: seconds + (options.quick ? 6 : 14),
            run: async ({ rig, pages, product }) => {
              const browsers: Browser[] = [];
              const doorway = await openDoorway(product.url);
              try {
                const listener = await launch({ ...configs[config]!, env: rig.cardEnv("A") });
                browsers.push(listener);
                version = listener.version;
                const room = product.newRoom();
                await listener.open(
                  product.roomUrl(room, "A", {
                    buffer: bufferFrames,
                    lanes: 1,
                    ...(transport === "port" ? { transport } : {}),
                  }),
                );
                await until(async () => (await readStats(listener)).id !== null, "the listener to join");
                const { id } = await readStats(listener);
                const senders = await launch({ browser: "chromium", env: rig.cardEnv("B") });
                browsers.push(senders);
                await senders.open(`${pages.url}senders.html`);
                await senders.evaluate((start) => page().start(start), {
                  url: doorway.url,
                  room,
                  count: count - 1,
                  listener: id!,
                });
                // Whoever is not heard by then is what is to be measured.
                await untilPlaying([listener], count - 1, 40).catch(() => undefined);
                rig.favourSound();
                await sleep(options.quick ? 1000 : 6000);
                // Lateness is counted from call to call.
                await senders.evaluate(() => page().counters());
                const troubles: string[] = [];
                const before = await answerOf(readStats(listener), troubles);
                await sleep(seconds * 1000);
                const after = await answerOf(readStats(listener), troubles);
                const { maxLateMs } = await senders.evaluate(() => page().counters());
                const measured = {
                  session,
                  transport,
                  peers: count,
                  ...(before && after ? growth(before, after, count - 1) : { ...nothingHeard, seconds }),
                  senderLateMs: maxLateMs,
                };
                return {
                  measured,
                  troubles,
                  words: `late ${percent(lateShare(measured))}, concealed ${percent(concealedShare(measured))}`,
                };
              } finally {
                for (const browser of browsers) await browser.close();
                doorway.close();
              }
            },
          });
        }
      }
    }
    return { steps, conclude: (measured) => conclude(measured, config, numbers, version) };
  },
};

/** By a listener that has died. */
const nothingHeard = {
  receivedPackets: 0,
  latePackets: 0,
  lostPackets: 0,
  concealedFrames: 0,
  playedFrames: 0,
  leastShare: 0,
};

type Counter = "receivedPackets" | "latePackets" | "lostPackets" | "concealedFrames" | "playedFrames";

/** What a listener counted of so many peers between two records. One who was not there all the time was not heard. */
export function growth(before: PageStats, after: PageStats, count: number) {
  const there = before.peers.flatMap((old) => {
    const peer = after.peers.find(({ id }) => id === old.id);
    return peer ? [(counter: Counter) => peer[counter] - old[counter]] : [];
  });
  const sum = (counter: Counter) => there.reduce((total, grown) => total + grown(counter), 0);
  const seconds = (after.timeMs - before.timeMs) / 1000;
  const frames = there.map((grown) => grown("playedFrames") + grown("concealedFrames"));
  return {
    receivedPackets: sum("receivedPackets"),
    latePackets: sum("latePackets"),
    lostPackets: sum("lostPackets"),
    concealedFrames: sum("concealedFrames"),
    playedFrames: sum("playedFrames"),
    seconds,
    leastShare: there.length < count ? 0 : Math.min(...frames) / (seconds * sampleRateHz),
  };
}

function name(transport: string): string {
  return transport === "port" ? "messages" : "shared memory";
}

/** How long all were counted, text. */
function duration(measured: readonly Measured[]): string {
  const all = measured.map(({ seconds }) => seconds);
  const [least, most] = [0, 1].map((p) => shown(quantile(all, p), 1));
  return least === most ? `${least ?? 0} s` : `${least} to ${most} s`;
}

function lateShare({ latePackets, receivedPackets, lostPackets }: Measured): number {
  return latePackets / Math.max(1, receivedPackets + lostPackets);
}

/** Whether no peer ran dry. */
function isHeard({ leastShare }: Measured): boolean {
  return leastShare >= leastPlayedShare;
}

function concealedShare(measured: Measured): number {
  const concealed = concealment(measured, measured.peers - 1);
  return concealed ? concealed.frames / concealed.of : 1;
}

function conclude(
  measured: Measured[],
  config: string,
  numbers: readonly number[],
  version: string,
): Outcome {
  const transports = [...new Set(measured.map(({ transport }) => transport))];
  const mean = (values: number[]) =>
    values.length > 0 ? values.reduce((a, b) => a + b, 0) / values.length : null;
  const curve = (pick: (one: Measured) => number) =>
    transports.map((transport) => ({
      label: name(transport),
      points: numbers.map((count) => ({
        x: count,
        y: mean(
          measured
            .filter((one) => one.transport === transport && one.peers === count)
            .map((one) => pick(one) * 100),
        ),
      })),
    }));
  const withoutLate = (transport: string) =>
    most(
      numbers,
      measured.filter((one) => one.transport === transport),
      (one) => isHeard(one) && one.latePackets === 0,
    );
  const columns = [
    "session",
    "transport",
    "peers",
    "received_packets",
    "late_packets",
    "lost_packets",
    "concealed_frames",
    "played_frames",
    "seconds",
    "least_share",
    "sender_late_ms",
  ];
  return {
    findings: transports.map((transport) => {
      const there = measured.filter((one) => one.transport === transport);
      const clean = most(numbers, there, (one) => isHeard(one) && concealedShare(one) < mostConcealedShare);
      return clean !== null
        ? `With ${name(transport)}, up to ${clean} peers were heard with less than 0.1 % of frames concealed.`
        : `With ${name(transport)}, not even ${numbers[0]} peers were heard with less than 0.1 % of frames concealed.`;
    }),
    sections: [
      {
        heading: "Late loss",
        method: `One ${config} listens, with a fixed buffer of ${bufferFrames} frames (21.33 ms, the paper's). The other peers are synthetic senders in a page of another browser on the same machine: each is a participant of its own, with its own peer connection, and sends 16-bit stereo in packets of 128 frames, 1.5 Mbit/s. ${duration(measured)} each, after a pause. Late: arrived after it should have been played. Heard: frames played or concealed, over those of that time, of the peer who has the fewest, none of one who was not connected all the time; with less than ${percent(leastPlayedShare)} one ran dry, and so many peers were not heard. "Up to" so many means that fewer were no trouble either, in any session. The paper's figure 9 shows the same; there each peer is a whole browser.`,
        uncertainty:
          "Senders and listener share the processors: what is late at the sender already counts against the listener here. The column says how late the latest packet left. Counts are exact.",
        figures: [
          {
            kind: "line",
            title: "Late packets",
            caption: "Share of packets that came too late, mean of the sessions (the paper's figure 9).",
            alt: "Late packets in per cent against the number of peers, messages and shared memory.",
            xLabel: "peers in the room",
            yLabel: "late packets, %",
            series: curve(lateShare),
          },
          {
            kind: "line",
            title: "Concealed frames",
            caption:
              "Share of frames that were not there in time, whatever the reason, those of peers who were not heard included.",
            alt: "Concealed frames in per cent against the number of peers, messages and shared memory.",
            xLabel: "peers in the room",
            yLabel: "concealed frames, %",
            series: curve(concealedShare),
          },
        ],
        tables: [
          {
            caption: "Each session",
            columns: [
              { name: "session", align: "right" },
              { name: "between threads" },
              { name: "peers", align: "right" },
              { name: "packets received", align: "right" },
              { name: "late", align: "right" },
              { name: "lost", align: "right" },
              { name: "concealed frames", align: "right" },
              { name: "heard, at least", align: "right" },
              { name: "latest sent, ms", align: "right" },
            ],
            rows: measured.map((one) => [
              one.session,
              name(one.transport),
              one.peers,
              one.receivedPackets,
              percent(lateShare(one)),
              one.lostPackets,
              percent(concealedShare(one)),
              percent(one.leastShare),
              shown(one.senderLateMs, 1),
            ]),
          },
          {
            caption: "Beside the paper (figure 9 in words)",
            columns: [
              { name: "between threads" },
              { name: "published" },
              { name: "here, most peers with no late packet" },
            ],
            rows: [
              [
                "messages",
                "a rapid reduction in performance as soon as the number of peers increases",
                withoutLate("port"),
              ],
              [
                "shared memory",
                "no loss in any stream, even with twenty concurrent peers",
                withoutLate("shared"),
              ],
            ],
          },
        ],
      },
    ],
    tables: {
      "raw.csv": {
        columns,
        rows: measured.map((one) => [
          one.session,
          one.transport,
          one.peers,
          one.receivedPackets,
          one.latePackets,
          one.lostPackets,
          one.concealedFrames,
          one.playedFrames,
          shown(one.seconds, 3),
          shown(one.leastShare, 5),
          shown(one.senderLateMs, 2),
        ]),
      },
    },
    versions: { browsers: version },
    doubts: [],
  };
}

/** The most of `numbers` at which, as at all below, there was a session and each was clean; null: not even at the first. */
export function most<One extends { peers: number }>(
  numbers: readonly number[],
  measured: readonly One[],
  isClean: (one: One) => boolean,
): number | null {
  const spoilt = numbers.findIndex((count) => {
    const there = measured.filter(({ peers }) => peers === count);
    return there.length === 0 || !there.every(isClean);
  });
  return (spoilt < 0 ? numbers : numbers.slice(0, spoilt)).at(-1) ?? null;
}
