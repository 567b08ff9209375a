import { cumsum } from "d3-array";
import { quantile } from "../analysis.js";
import { longestTraceSeconds, type PageTrace, readTrace, untilPlaying } from "../antiphon.js";
import { choose, configs } from "../configs.js";
import type { Experiment, Outcome, Plan, Step } from "../experiment.js";
import { sleep } from "../processes.js";
import { firstArrivals, withBrowsers } from "../setups.js";
import { framesPerMs, shown } from "../units.js";

interface Measured {
  config: string;
  direction: string;
  /** After acquisition at the sender, and after reception at the receiver. */
  series: Record<"sender" | "receiver", Variation[]>;
}

interface Variation {
  /** Since the trace's first event. */
  atMs: number;
  /** Time since the one before, less the frames it holds. */
  variationMs: number;
}

const packetFrames = 128;
/** As much of the trace as a figure can show. */
const shownMs = 2000;

export const ifdv: Experiment = {
  name: "ifdv",
  title: "Inter-frame delay variation",
  question:
    "How evenly does the browser hand over captured sound, and how evenly does it arrive at the other end?",
  programs: [],
  plan(options): Plan<Measured[]> {
    const chosen = choose(options.configs, Object.keys(configs)).filter(
      (name) => options.configs !== undefined || !options.quick || name === "chromium-128",
    );
    const seconds = Math.min(longestTraceSeconds, options.seconds ?? (options.quick ? 2 : 20));
    const steps: Step<Measured[]>[] = [];
    const versions = new Set<string>();
    for (const config of chosen) {
      steps.push({
        label: config,
        seconds: seconds + 10,
        run: ({ rig, product }) =>
          withBrowsers({ rig, browser: configs[config]! }, ["A", "B"], async ([a, b]) => {
            const room = product.newRoom();
            const parameters = { packet: packetFrames, lanes: 1 };
            await a!.open(product.roomUrl(room, "A", parameters));
            await b!.open(product.roomUrl(room, "B", parameters));
            await untilPlaying([a!, b!]);
            rig.favourSound();
            await sleep(options.quick ? 500 : 5000);
            const traces = await Promise.all([a!, b!].map((page) => readTrace(page, seconds)));
            const measured = ["A to B", "B to A"].map((direction, index) => ({
              config,
              direction,
              series: { sender: captured(traces[index]!), receiver: received(traces[1 - index]!) },
            }));
            versions.add(a!.version);
            const { sender, receiver } = measured[1]!.series;
            return { measured, words: `sender ${spread(sender)}, receiver ${spread(receiver)}` };
          }),
      });
    }
    return {
      steps,
      conclude: (measured) => conclude(measured.flat(), seconds, [...versions].join(", ")),
    };
  },
};

/** One for each block of captured frames. */
function captured({ captured: { timeMs, frames } }: PageTrace): Variation[] {
  return timeMs.slice(1).map((time, index) => ({
    atMs: time - timeMs[0]!,
    variationMs: time - timeMs[index]! - frames[index + 1]! / framesPerMs,
  }));
}

/** One for each packet in its order of arrival, against the one before it; a lost one makes it wait for two. */
function received(trace: PageTrace): Variation[] {
  const arrivals = [...firstArrivals(trace)];
  return arrivals.slice(1).map(([firstFrame, time], index) => {
    const [before, timeBefore] = arrivals[index]!;
    return {
      atMs: time - arrivals[0]![1],
      variationMs: time - timeBefore - (firstFrame - before) / framesPerMs,
    };
  });
}

function conclude(measured: Measured[], seconds: number, version: string): Outcome {
  const ends = ["sender", "receiver"] as const;
  const first = measured.filter(({ direction }) => direction === "A to B");
  return {
    findings: first.map(
      ({ config, series }) =>
        `${config}: half of all captured blocks are handed over within ${interval(series.sender)} ms of an even schedule, half of all packets arrive within ${interval(series.receiver)} ms of theirs.`,
    ),
    sections: [
      {
        heading: "Inter-frame delay variation",
        method: `Two browsers on one machine, ${seconds} s. The sender's network thread notes when it gets each block of captured frames, the receiver's when each packet of ${packetFrames} frames comes out of a lane. Variation is the time since the block (packet) before, less the length of what it holds; 0 is perfectly even. Added up, the variations are how far each is off an even schedule, whose middle event is in time: half of all are within so much of it. The paper traces the same two places, in its audio threads (figure 8).`,
        uncertainty:
          "The browsers' clocks are coarse: 5 µs in an isolated Chromium page, 20 µs in Firefox. The schedule is even by these; where the card's clock runs apart from them, that counts too. A loaded machine widens everything; that is part of the answer, not of the error.",
        figures: [
          ...first.map(({ config, series }) => ({
            kind: "time" as const,
            title: `Trace, ${config}`,
            caption: `The first ${shownMs / 1000} s from A to B. Blocks of several packets arrive as bursts: the first one late, the others early.`,
            alt: `Variation over time for ${config}: sender ${spread(series.sender)}, receiver ${spread(series.receiver)}.`,
            xLabel: "time, ms",
            yLabel: "variation, ms",
            series: ends.map((end) => ({
              label: end,
              points: series[end]
                .filter(({ atMs }) => atMs < shownMs)
                .map(({ atMs, variationMs }) => ({ x: atMs, y: variationMs })),
            })),
          })),
          ...first.map(({ config, series }) => ({
            kind: "density" as const,
            title: `Density, ${config}`,
            caption: "How often each variation was observed, A to B, the whole trace.",
            alt: `Densities for ${config}: sender ${spread(series.sender)}, receiver ${spread(series.receiver)}.`,
            xLabel: "variation, ms",
            series: ends.map((end) => ({ label: end, values: series[end].map((one) => one.variationMs) })),
          })),
        ],
        tables: [
          {
            caption: "Variation, ms",
            columns: [
              { name: "browser" },
              { name: "direction" },
              { name: "where" },
              { name: "events", align: "right" },
              ...["1 %", "25 %", "median", "75 %", "99 %", "greatest", "half within, off schedule"].map(
                (name) => ({
                  name,
                  align: "right" as const,
                }),
              ),
            ],
            rows: measured.flatMap(({ config, direction, series }) =>
              ends.map((end) => [
                config,
                direction,
                end,
                series[end].length,
                ...[0.01, 0.25, 0.5, 0.75, 0.99, 1].map((p) => shown(at(series[end], p), 2)),
                interval(series[end]),
              ]),
            ),
          },
        ],
      },
    ],
    tables: {
      "raw.csv": {
        columns: ["config", "direction", "where", "at_ms", "variation_ms"],
        rows: measured.flatMap(({ config, direction, series }) =>
          ends.flatMap((end) =>
            series[end].map(({ atMs, variationMs }) => [
              config,
              direction,
              end,
              shown(atMs, 3),
              shown(variationMs, 3),
            ]),
          ),
        ),
      },
    },
    versions: { browsers: version },
    doubts: [],
  };
}

function at(series: readonly Variation[], p: number): number | null {
  return quantile(
    series.map(({ variationMs }) => variationMs),
    p,
  );
}

/** Half of all are off schedule by no more, text. */
function interval(series: readonly Variation[]): string {
  return shown(quantile(offScheduleMs(series).map(Math.abs), 0.5), 2) ?? "unknown";
}

/** How late each event is by an even schedule for which half of them come too late. */
export function offScheduleMs(series: readonly Pick<Variation, "variationMs">[]): number[] {
  const offsets = [...cumsum(series, ({ variationMs }) => variationMs)];
  const middle = quantile(offsets, 0.5);
  return offsets.map((ms) => ms - middle!);
}

function spread(series: readonly Variation[]): string {
  const [low, high] = [at(series, 0.01), at(series, 0.99)];
  return low === null || high === null ? "nothing" : `${low.toFixed(1)} to ${high.toFixed(1)} ms`;
}
