import { quantile } from "../analysis.js";
import { answerOf } from "../antiphon.js";
import { choose, describe } from "../configs.js";
import type { Experiment, Outcome, Plan } from "../experiment.js";
import { makeFolder, removeFolder, sleep } from "../processes.js";
import { shown } from "../units.js";
import {
  absentBots,
  type BotsSummary,
  lostPackets,
  missingShare,
  missingText,
  residentKib,
  startAntiphon,
} from "./server.js";

const participants = 20;
const lookSeconds = 10;

const loads: Record<string, { about: string; rooms: number; perRoom: number; path: string }> = {
  forwarded: {
    about: "ten rooms of two, each datagram forwarded to the other",
    rooms: 10,
    perRoom: 2,
    path: "relay",
  },
  mixed: { about: "one room, a personal mix for each", rooms: 1, perRoom: participants, path: "mix" },
};

interface Look {
  seconds: number;
  memoryKib: number;
  transitP99Us: number | null;
  mixP99Us: number | null;
  /** Dropped by the server so far. */
  aged: number;
  overRate: number;
}

interface Soaked {
  load: string;
  looks: Look[];
  bots: BotsSummary;
  missingShare: number;
  absent: number;
}

export const soak: Experiment = {
  name: "soak",
  title: "Through the server for half an hour",
  question:
    "Does the server lose, delay or keep anything while 20 participants play through it for half an hour?",
  programs: ["taskset"],
  plan(options): Plan<Soaked> {
    const seconds = options.seconds ?? (options.quick ? 2 : 1_800);
    const every = options.quick ? 1 : lookSeconds;
    const steps = choose(options.setups, Object.keys(loads)).map((load) => ({
      label: load,
      seconds: seconds + 10,
      run: async () => {
        const folder = makeFolder("soak");
        const running = await startAntiphon(folder, loads[load]!);
        try {
          await sleep(5000);
          const looks: Look[] = [];
          const began = performance.now();
          const troubles: string[] = [];
          for (const at of lookTimes(seconds, every)) {
            await sleep(began + at * 1000 - performance.now());
            const look = await answerOf(lookAt(running, at), troubles, lookSeconds);
            if (look) looks.push(look);
            // A server that answered once and does not any more is what this is to find.
            else if (looks.length === 0) throw new Error(`the server cannot be looked at: ${troubles[0]}`);
          }
          const bots = await running.summary();
          const measured: Soaked = {
            load,
            looks,
            bots,
            missingShare: missingShare(bots, loads[load]!),
            absent: absentBots(bots, loads[load]!),
          };
          return {
            measured,
            troubles,
            words: `${lostPackets(bots, loads[load]!.path)} of ${bots.sent_packets} lost, ${missingText(measured)} missing`,
          };
        } finally {
          for (const service of running.services) await service.stop();
          removeFolder(folder);
        }
      },
    }));
    return { steps, conclude: (soaked) => conclude(soaked, seconds) };
  },
};

async function lookAt(
  { look, server }: Pick<Awaited<ReturnType<typeof startAntiphon>>, "look" | "server">,
  seconds: number,
): Promise<Look> {
  const { transitUs, mixUs, aged, overRate } = await look();
  return {
    seconds,
    memoryKib: residentKib(server[0]!),
    transitP99Us: transitUs?.p99 ?? null,
    mixP99Us: mixUs?.p99 ?? null,
    aged,
    overRate,
  };
}

/** When to look, s: every so often, and at the end. */
export function lookTimes(seconds: number, every: number): number[] {
  return Array.from({ length: Math.ceil(seconds / every) }, (_, n) => Math.min((n + 1) * every, seconds));
}

/** Medians of the first and the last tenth. */
function growth(looks: readonly Look[]): [number | null, number | null] {
  const tenth = Math.ceil(looks.length / 10);
  const median = (some: readonly Look[]) =>
    quantile(
      some.map(({ memoryKib }) => memoryKib),
      0.5,
    );
  return [median(looks.slice(0, tenth)), median(looks.slice(-tenth))];
}

function conclude(soaked: Soaked[], seconds: number): Outcome {
  return {
    findings: soaked.map(({ load, looks, bots, missingShare, absent }) => {
      const [before, after] = growth(looks);
      const grown = before === null || after === null ? null : after - before;
      const { aged, overRate } = looks.at(-1)!;
      return `${load}: ${missingText({ missingShare })} of what was to be heard is missing; ${bots.lost_packets} lost, of them ${aged} dropped by the server for want of room and ${overRate} for being over the rate; ${bots.dropped_packets} dropped by the sender itself; ${bots.sent_packets} sent; bots not in at the end: ${absent}; memory grew by ${shown(grown, 0)} KiB.`;
    }),
    sections: [
      {
        heading: "Half an hour with 20 participants",
        method: `The server runs on one core of this machine, the ${participants} bots on the other, with 16-bit stereo in packets of 128 frames, for ${seconds} s. ${describe(loads)} Lost: a sequence number that never came, though a later one did; forwarded, what its sender dropped is among them. Missing: of all that was to be heard, also of streams that never began or ended early, and of what was sent before its listeners had come. Dropped: by the server, because the listener's sessions had no room or the sender was over its rate, as it says itself at the last look; by the sender, because the bot's own session had no room. One way: from bot to bot, both network stacks included; bots cannot tell whose sound a mix has. Memory: the server's, resident; medians of the first and the last tenth of the time.`,
        uncertainty: "Where this machine stands still, the bots do too.",
        figures: [
          {
            kind: "line",
            title: "Memory of the server",
            caption: "Resident, while 20 participants play.",
            alt: "Resident memory against time, for each load.",
            xLabel: "s",
            yLabel: "MiB",
            series: soaked.map(({ load, looks }) => ({
              label: load,
              points: looks.map(({ seconds: x, memoryKib }) => ({ x, y: memoryKib / 1024 })),
            })),
          },
        ],
        tables: [
          {
            caption: "Each load",
            columns: [
              { name: "load" },
              { name: "sent", align: "right" },
              { name: "missing", align: "right" },
              { name: "lost", align: "right" },
              { name: "dropped by the server: no room", align: "right" },
              { name: "over the rate", align: "right" },
              { name: "dropped by the sender", align: "right" },
              { name: "bots not in at the end", align: "right" },
              { name: "one way, us: median", align: "right" },
              { name: "99 %", align: "right" },
              { name: "99.9 %", align: "right" },
              { name: "most", align: "right" },
              { name: "memory at first, KiB", align: "right" },
              { name: "at last", align: "right" },
            ],
            rows: soaked.map(({ load, looks, bots, missingShare, absent }) => [
              load,
              bots.sent_packets,
              missingText({ missingShare }),
              bots.lost_packets,
              looks.at(-1)!.aged,
              looks.at(-1)!.overRate,
              bots.dropped_packets,
              absent,
              bots.delay_p50_us,
              bots.delay_p99_us,
              bots.delay_p999_us,
              shown(bots.delay_max_us, 0),
              ...growth(looks).map((kib) => shown(kib, 0)),
            ]),
          },
        ],
      },
    ],
    tables: {
      "loads.csv": {
        columns:
          "load sent received missing_share lost dropped_by_sender absent one_way_p50_us one_way_p99_us one_way_p999_us one_way_most_us".split(
            " ",
          ),
        rows: soaked.map(({ load, bots, missingShare, absent }) => [
          load,
          bots.sent_packets,
          bots.received_packets,
          shown(missingShare, 7),
          bots.lost_packets,
          bots.dropped_packets,
          absent,
          ...[bots.delay_p50_us, bots.delay_p99_us, bots.delay_p999_us, bots.delay_max_us],
        ]),
      },
      "raw.csv": {
        columns: ["load", "seconds", "memory_kib", "transit_p99_us", "mix_p99_us", "aged", "over_rate"],
        rows: soaked.flatMap(({ load, looks }) =>
          looks.map((look) => [
            ...[load, look.seconds, look.memoryKib, look.transitP99Us, look.mixP99Us],
            ...[look.aged, look.overRate],
          ]),
        ),
      },
    },
    versions: {},
    doubts: [],
  };
}
