import { rollup } from "d3-array";
import { type Continuity, known, listen, quantile, tones } from "../analysis.js";
import {
  answerOf,
  keepAll,
  longestTraceSeconds,
  type PageStats,
  readTrace,
  untilPlaying,
} from "../antiphon.js";
import { choose, chooseConfig, configs } from "../configs.js";
import type { Experiment, Lab, Outcome, Plan, Step } from "../experiment.js";
import {
  type EmulatedNetwork,
  emulatorDoubts,
  missingForNetworks,
  type WatchedDirection,
} from "../network.js";
import { sleep } from "../processes.js";
import { mic, sampleRateHz, speaker } from "../rig.js";
import {
  concealment,
  type Delays,
  delayQuantile,
  delaysOfSent,
  during,
  together,
  withBrowsers,
} from "../setups.js";
import { writeScore } from "../signal.js";
import { framesPerMs, percent, raw, shown } from "../units.js";
import { forgetSeconds, latenciesMs, startupSeconds } from "./m2e.js";

interface Condition {
  profile: string;
  /** Random loss instead of the profile's own. */
  loss?: number;
}

interface Measured extends Condition {
  config: string;
  lanes: string;
  direction: string;
  /** From network thread to network thread. */
  packets: Delays;
  /** The same, where a copy in the next packet is as good as the packet. */
  copied: Delays;
  concealedShare: number | null;
  /** The tone as it was heard. */
  steady: Continuity | null;
  /** Of the sound system. */
  quantumFrames: number;
  bufferMs: number | null;
  droppedBacklog: number | null;
  lanesInUse: number;
  /** With a copy, of what was sent. */
  copiedShare: number | null;
  /** In the way and in the jitter buffer, by the page's own measurement: of each look that knows it. */
  wayAndBufferMs: number[];
  looks: number;
  mouthToEarMs: number | null;
  /** What the emulator says of this direction, from the network's beginning. */
  emulator: WatchedDirection;
}

/** For the latency from mouth to ear. */
const pulseSeconds = 1.5;
const directions = ["A to B", "B to A"];
/** How often a page keeps what it says. */
const lookMs = 250;

/** Of random loss, and the path on which it is swept: long enough that congestion control matters. */
const losses = [0, 0.01, 0.02, 0.05, 0.1];
const sweepProfile = "rtt-50";
const profiles = ["lan", "fibre", "cable", "wifi", "wifi-bad", "4g", "5g", "leo", "mbit-40-33", "mbit-12-4"];
const laneChoices = ["1", "2", "4", "8", "auto"];

export const loss: Experiment = {
  name: "loss",
  title: "Sound over networks that lose",
  question: "What do loss and jitter do to delay and sound, and how many lanes does it take to stay fresh?",
  programs: ["ip", "nsenter", "socat"],
  missing: missingForNetworks,
  plan(options): Plan<Measured[]> {
    const config = chooseConfig(options.configs);
    const chosenLanes = choose(options.setups, laneChoices).filter(
      (lanes) => options.setups !== undefined || !options.quick || lanes === "auto",
    );
    const seconds = options.seconds ?? (options.quick ? 2 : 10);
    const settleSeconds = options.quick ? 0.5 : startupSeconds;
    const leadSeconds = options.quick ? 2 : forgetSeconds;
    let version = "";
    const sweep = (options.quick ? [0.05] : losses).map((share) => ({ profile: sweepProfile, loss: share }));
    const others =
      options.quick || !chosenLanes.includes("auto")
        ? []
        : [{ profile: "rtt-100", loss: 0.05 }, ...profiles.map((profile) => ({ profile }))];
    // Lanes take turns at each loss, so that a busy machine is busy for all.
    const measurements = [
      ...sweep.flatMap((condition) => chosenLanes.map((lanes) => ({ condition, lanes }))),
      ...others.map((condition) => ({ condition, lanes: "auto" })),
    ];
    const steps = measurements.map(
      ({ condition, lanes }): Step<Measured[]> => ({
        label: `${lanes} lane(s), ${place(condition)}`,
        seconds: settleSeconds + leadSeconds + pulseSeconds + seconds + traceSeconds(seconds) + 10,
        run: async (lab) => {
          const network = await lab.network({ ...condition, seed: 1 });
          const browser = configs[config]!;
          const taken = await overNetwork(lab, network, {
            browser,
            lanes,
            seconds,
            settleSeconds,
            leadSeconds,
          });
          version = taken.version;
          const measured = taken.rows.map((row) => ({
            ...condition,
            config,
            lanes,
            ...row,
          }));
          const last = measured.at(-1)!;
          const words = `median ${delayText(last.packets, 0.5) ?? "–"} ms, arrived ${shares(arrivedShare(last.packets))}, or a copy ${shares(arrivedShare(last.copied))}, concealed ${shares(last.concealedShare)}`;
          return { measured, words, device: taken.summary, troubles: taken.troubles };
        },
      }),
    );
    return {
      steps,
      conclude: (measured) => conclude(measured.flat(), { seconds, leadSeconds }, config, version),
    };
  },
};

interface Conditions {
  browser: (typeof configs)[string];
  lanes: string;
  seconds: number;
  settleSeconds: number;
  leadSeconds: number;
}

async function overNetwork(
  { rig, product }: Lab,
  network: EmulatedNetwork,
  { browser, lanes, seconds, settleSeconds, leadSeconds }: Conditions,
) {
  await network.admit(product.port, "left");
  await network.admit(product.port, "right");
  const places = { A: { network, side: "left" }, B: { network, side: "right" } } as const;
  return withBrowsers({ rig, browser, places }, ["A", "B"], async ([a, b]) => {
    const room = product.newRoom();
    // As a musician has it: copies against loss, and other formats where the path cannot carry this one.
    const parameters = {
      lanes,
      packet: 128,
      bits: 16,
      channels: 2,
      buffer: "auto",
      copies: "auto",
      adapt: "auto",
    };
    await a!.open(product.roomUrl(room, "A", parameters));
    await b!.open(product.roomUrl(room, "B", parameters));
    await untilPlaying([a!, b!]);
    rig.favourSound();
    await sleep(settleSeconds * 1000);
    const troubles: string[] = [];
    const handOver = await keepAll<PageStats>([a!, b!], troubles, { everyMs: lookMs });
    const scores = ([0, 1] as const).map((voice) =>
      writeScore({
        voice,
        sampleRateHz,
        leadSeconds,
        pulseSeconds,
        steadySeconds: seconds,
        tailSeconds: 1.5,
      }),
    );
    const { heard, summary } = await rig.pass({
      plays: [
        { take: scores[0]!.take, to: mic("A") },
        { take: scores[1]!.take, to: mic("B") },
      ],
      hears: [speaker("B"), speaker("A")],
    });
    const kept = await handOver();
    // Afterwards: handing a trace over disturbs the page, and the jitter buffer remembers that for a while.
    const traces = await Promise.all(
      [a!, b!].map((page) => answerOf(readTrace(page, traceSeconds(seconds)), troubles)),
    );
    // A is on the left.
    const emulated = await network.stats();
    const rows = [0, 1].map((index) => {
      const [sender, receiver] = [index, 1 - index];
      const stage = { leadSeconds, pulseSeconds: pulseSeconds + seconds, steadySeconds: 0 };
      const { counters, looks, ends: heardEnds, targetFrames } = during(stage, summary, kept[receiver]!);
      const concealed = concealment(counters);
      const hearing = listen(heard[index]!, scores[index]!);
      const { steady } = hearing;
      const [first, last] = during(stage, summary, kept[sender]!).ends ?? [];
      const outgoing = last?.peers[0];
      const copies = (outgoing?.sent?.copiesSent ?? 0) - (first?.peers[0]?.sent?.copiesSent ?? 0);
      const packets = (last?.sender.packets ?? 0) - (first?.sender.packets ?? 0);
      const [sent, received] = [traces[sender]!, traces[receiver]!];
      const delays = (options: { copies: boolean }): Delays =>
        sent && received ? delaysOfSent(sent, received, options) : { arrivedMs: [], missing: 0 };
      return {
        direction: directions[index]!,
        packets: delays({ copies: false }),
        copied: delays({ copies: true }),
        concealedShare: concealed && concealed.frames / concealed.of,
        steady,
        quantumFrames: summary.quantum_frames,
        bufferMs: targetFrames === null ? null : targetFrames / framesPerMs,
        droppedBacklog: outgoing ? outgoing.droppedBacklog - (first?.peers[0]?.droppedBacklog ?? 0) : null,
        lanesInUse: outgoing?.lanes.filter(({ state }) => state === "open").length ?? 0,
        copiedShare: packets > 0 ? Math.min(1, copies / packets) : null,
        wayAndBufferMs: looks.flatMap((stats) => wayAndBufferMs(stats) ?? []),
        // A page that said nothing knew it at none of those that there should be.
        looks: heardEnds ? looks.length : Math.round((stage.pulseSeconds * 1000) / lookMs),
        mouthToEarMs: quantile(latenciesMs(hearing.hits), 0.5),
        emulator: emulated[index]!,
      };
    });
    return { rows, summary, version: a!.version, troubles };
  });
}

/** As long as the tone, if a page traces for so long. */
function traceSeconds(seconds: number): number {
  return Math.min(longestTraceSeconds, seconds);
}

/** From the sender's network thread to the listener's audio graph, as the listening page says; null before it knows. */
function wayAndBufferMs({ peers }: PageStats): number | null {
  const stages = peers[0]?.mouthToEar?.stages ?? [];
  const [way, buffer] = ["network", "buffer"].map((wanted) => stages.find(({ name }) => name === wanted)?.ms);
  return way == null || buffer == null ? null : way + buffer;
}

function lanesText(choice: string): string {
  return choice === "auto" ? "automatic" : `${choice} lane${choice === "1" ? "" : "s"}`;
}

function place({ profile, loss: share }: Condition): string {
  return share === undefined ? profile : `${profile}, ${share * 100} % loss`;
}

function conclude(
  measured: Measured[],
  { seconds, leadSeconds }: Pick<Conditions, "seconds" | "leadSeconds">,
  config: string,
  version: string,
): Outcome {
  const swept = measured.filter((one) => one.profile === sweepProfile);
  const byProfile = measured.filter((one) => one.profile !== sweepProfile);
  const lanes = laneChoices.filter((choice) => swept.some((one) => one.lanes === choice));
  const cell = (choice: string, share: number) =>
    swept.filter((one) => one.lanes === choice && one.loss === share);
  const curves = (pick: (rows: Measured[]) => number | null) =>
    lanes.map((choice) => ({
      label: lanesText(choice),
      points: losses
        .filter((share) => cell(choice, share).length > 0)
        .map((share) => ({ x: share * 100, y: pick(cell(choice, share)) })),
    }));
  const middle = (rows: Measured[], pick: (one: Measured) => number | null) =>
    quantile(known(rows.map(pick)), 0.5);
  const itself = (rows: Measured[]) => together(rows.map(({ packets }) => packets));
  const orCopy = (rows: Measured[]) => together(rows.map(({ copied }) => copied));
  const line = (
    title: string,
    caption: string,
    yLabel: string,
    pick: (rows: Measured[]) => number | null,
    logY = false,
  ) => ({
    kind: "line" as const,
    title,
    caption,
    alt: `${title} against random loss, a line for each number of lanes.`,
    xLabel: "random loss, %",
    yLabel,
    series: curves(pick),
    logY,
  });
  const automatic = swept.filter((one) => one.lanes === "auto" && one.loss === 0.05);
  const slight = swept.filter((one) => one.lanes === "auto" && one.loss === 0.02);
  const lossless = swept.filter((one) => one.lanes === "auto" && one.loss === 0);
  // The two cards were not alike for long (docs/lab-method.md).
  const hardGaps = (rows: Measured[]) =>
    directions
      .map((direction) => {
        const there = rows.filter((one) => one.direction === direction);
        return `${shown(middle(there, gapsPerSecond), 2) ?? "–"} at ${speakerOf(direction)}`;
      })
      .join(" and ");
  const farthest = byProfile.filter((one) => one.profile === "rtt-100");
  const far = farthest.flatMap((one) => one.wayAndBufferMs);
  const farLooks = farthest.reduce((sum, { looks }) => sum + looks, 0);
  const single = swept.filter((one) => one.lanes === "1" && one.loss === 0.05);
  const findings = [
    ...(automatic.length > 0
      ? [
          `At 5 % loss and 50 ms round trip, with lanes on automatic, ${arrivalWords(itself(automatic), orCopy(automatic))} (25 ms is the wire), and ${shares(middle(automatic, (one) => one.concealedShare))} of the sound is concealed.`,
        ]
      : []),
    ...(far.length > 0
      ? [
          `At 5 % loss and 100 ms round trip (50 ms is the wire), way and jitter buffer take ${shown(quantile(far, 0.5), 1)} ms at the median, and ${shown(quantile(far, 0.99), 1)} ms at most in 99 of 100 looks (${far.length} of ${farLooks} looks know them).`,
        ]
      : []),
    ...(slight.length > 0
      ? [`Hard gaps a second at 2 % loss: ${hardGaps(slight)}; where nothing is lost: ${hardGaps(lossless)}.`]
      : []),
    ...(single.length > 0
      ? [`With one lane at 5 % loss ${arrivalWords(itself(single), orCopy(single))}.`]
      : []),
    ...gapWords(measured),
    ...measured
      .filter(({ packets }) => sentPackets(packets) === 0)
      .map(
        (one) =>
          `${place(one)}, ${lanesText(one.lanes)}, ${one.direction}: no packet that was sent was traced, so it is in no figure of theirs.`,
      ),
  ];
  return {
    findings,
    sections: [
      {
        heading: "Loss and lanes",
        method: `Two browsers (${config}) in network namespaces, joined by the emulator: ${sweepProfile} (100 Mbit/s) with random loss in both directions, and automatic buffers. Both play a steady tone for ${seconds} s. Packet delay is from network thread to network thread. A percentile is one of all packets sent: what never came took forever, and a percentile that falls among that is "never" (inf in the raw data, no point in a figure). With copies means that a packet also counts as there when its cheap copy came, inside the packet after it: coarser sound, that is, and never the packet itself. A hard gap is silence in the tone that left the speaker. The engine means to leave none; one of the sound system's own, where it missed a cycle, lasts one quantum and begins on its grid, so those are counted, at each speaker apart. A break is where the tone does not go on as it should by more than a quarter of its own second difference, as at an edge of silence, a jump, or where a cheap copy was played; a good prediction of it does not show. Way and buffer is what the receiving page says of itself, four times a second, once it had half a minute after its start, as where mouth to ear is measured, and ${leadSeconds} s of quiet noise, in which the buffer forgets what came before. Concealed, dropped for backlog and sent with copies are of the pulses and the tone, from one look before them to the last. The packets are traced afterwards, for ${traceSeconds(seconds)} s, because handing a trace over disturbs a page. Copies against loss and changes of format are automatic, as they are for musicians.`,
        uncertainty:
          "Both directions are one observation each. Clocks of two processes on one machine agree within 0.1 ms; how late the emulator delivered is in the tables, of all packets since the browsers began; how late it read them it cannot see, and that comes on top.",
        figures: [
          line(
            "Packet delay, 90th percentile",
            "Of all packets sent. Congestion control makes a lossy lane queue; more lanes keep it fresh.",
            "delay, ms",
            (rows) => delayQuantile(itself(rows), 0.9),
            true,
          ),
          line(
            "Packet delay with copies, 99th percentile",
            "Of all packets sent, until the packet or its copy is there.",
            "delay, ms",
            (rows) => delayQuantile(orCopy(rows), 0.99),
            true,
          ),
          line(
            "Packets that arrived",
            "Themselves. What is missing was lost on the way, or dropped because every lane queued.",
            "arrived, %",
            (rows) => times100(arrivedShare(itself(rows))),
          ),
          line(
            "Packets that arrived, or a copy of them",
            "What is missing here was neither there itself nor made up for.",
            "arrived, %",
            (rows) => times100(arrivedShare(orCopy(rows))),
          ),
          line(
            "Sound concealed",
            "Share of frames that were not there when they should have been played, all of the time in which a stream had run dry included.",
            "concealed, %",
            (rows) => times100(middle(rows, (one) => one.concealedShare)),
          ),
          ...directions.map((direction) =>
            line(
              `Hard gaps, ${direction}`,
              `Silences a second in the tone that was heard at ${speakerOf(direction)}.`,
              "hard gaps a second",
              (rows) =>
                middle(
                  rows.filter((one) => one.direction === direction),
                  gapsPerSecond,
                ),
            ),
          ),
          {
            kind: "cdf",
            title: "Packet delay at 5 % loss",
            caption:
              "Of the packets that arrived themselves: share that took longer than so many milliseconds.",
            alt: "Curves of the share of packets above each delay, one for each number of lanes.",
            xLabel: "delay, ms",
            probability: "log",
            series: lanes.map((choice) => ({
              label: lanesText(choice),
              values: itself(cell(choice, 0.05)).arrivedMs,
            })),
          },
        ],
        tables: [table("Random loss", swept)],
      },
      {
        heading: "Profiles",
        method:
          "The same on the emulator's named networks, with their own loss and jitter, lanes on automatic.",
        uncertainty: "As above; profiles are models of networks, not networks.",
        figures: [
          {
            kind: "box",
            title: "Packet delay by network",
            caption: "All packets that arrived themselves: minimum, quartiles, maximum.",
            alt: "Box plot of packet delay for each network profile.",
            xLabel: "delay, ms",
            rows: byProfile.map((one) => ({
              group: place(one),
              label: one.direction,
              values: one.packets.arrivedMs,
            })),
          },
        ],
        tables: [table("Profiles", byProfile)],
      },
    ],
    tables: {
      // Hundreds of thousands of packets: counted in steps of a tenth of a millisecond.
      "delays.csv": {
        columns: ["config", "profile", "loss_share", "lanes", "direction", "delay_ms", "packets"],
        rows: measured.flatMap((one) =>
          [
            ...rollup(
              one.packets.arrivedMs,
              (step) => step.length,
              (ms) => Math.round(ms * 10),
            ),
          ]
            .sort(([a], [b]) => a - b)
            .map(([tenths, packets]) => [
              one.config,
              one.profile,
              one.loss ?? null,
              one.lanes,
              one.direction,
              shown(tenths / 10, 1),
              packets,
            ]),
        ),
      },
      "runs.csv": {
        columns:
          "config profile loss_share lanes direction packets p50_ms p95_ms p99_ms arrived_share p99_with_copies_ms arrived_or_copied_share concealed_share hard_gaps_per_second gap_frames gaps_of_one_quantum gaps_on_grid breaks_per_second buffer_aim_ms way_and_buffer_p50_ms way_and_buffer_p99_ms way_and_buffer_looks looks dropped_backlog lanes_in_use copied_share mouth_to_ear_ms emulator_lateness_p50_us emulator_lateness_p99_us emulator_lateness_max_us emulator_queue_dropped_packets emulator_refused_packets emulator_unread_packets".split(
            " ",
          ),
        rows: measured.map((one) => [
          one.config,
          one.profile,
          one.loss ?? null,
          one.lanes,
          one.direction,
          sentPackets(one.packets),
          ...[0.5, 0.95, 0.99].map((p) => delayCell(one.packets, p)),
          shown(arrivedShare(one.packets), 5),
          delayCell(one.copied, 0.99),
          shown(arrivedShare(one.copied), 5),
          shown(one.concealedShare, 5),
          shown(gapsPerSecond(one), 3),
          one.steady?.hardGaps.map(({ frames }) => frames).join(" ") ?? null,
          one.steady && ofOneQuantum(one),
          one.steady && onGrid(one),
          shown(breaksPerSecond(one), 3),
          shown(one.bufferMs, 2),
          ...[0.5, 0.99].map((p) => shown(quantile(one.wayAndBufferMs, p), 2)),
          one.wayAndBufferMs.length,
          one.looks,
          one.droppedBacklog,
          one.lanesInUse,
          shown(one.copiedShare, 4),
          raw(one.mouthToEarMs, 2),
          one.emulator.latenessP50Us,
          one.emulator.latenessP99Us,
          one.emulator.latenessMaxUs,
          one.emulator.queueDroppedPackets,
          one.emulator.refusedPackets,
          one.emulator.unreadPackets,
        ]),
      },
    },
    versions: { browsers: version },
    doubts: emulatorDoubts(measured.map(({ emulator }) => emulator)),
  };
}

function table(caption: string, rows: readonly Measured[]) {
  const right = (name: string) => ({ name, align: "right" as const });
  return {
    caption,
    columns: [
      { name: "network" },
      { name: "lanes" },
      { name: "direction" },
      right("packets sent"),
      right("delay 50 %, ms"),
      right("99 %, ms"),
      right("arrived"),
      right("99 % with copies, ms"),
      right("arrived, or a copy"),
      right("concealed"),
      right("hard gaps a second"),
      right("of them one quantum long"),
      right("breaks a second"),
      right("buffer aim, ms"),
      right("way and buffer 50 %, ms"),
      right("99 %, ms"),
      right("of looks"),
      right("dropped for backlog"),
      right("lanes in use"),
      right("sent with copies"),
      right("mouth to ear, ms"),
      right("emulator late 99 %, ms"),
      right("at most, ms"),
      right("dropped by its queue"),
      right("lost without its model"),
    ],
    rows: rows.map((one) => [
      place(one),
      one.lanes,
      one.direction,
      sentPackets(one.packets),
      ...[0.5, 0.99].map((p) => delayText(one.packets, p)),
      percentCell(arrivedShare(one.packets)),
      delayText(one.copied, 0.99),
      percentCell(arrivedShare(one.copied)),
      percentCell(one.concealedShare),
      shown(gapsPerSecond(one), 2),
      one.steady && ofOneQuantum(one),
      shown(breaksPerSecond(one), 2),
      shown(one.bufferMs, 1),
      ...[0.5, 0.99].map((p) => shown(quantile(one.wayAndBufferMs, p), 1)),
      `${one.wayAndBufferMs.length} of ${one.looks}`,
      one.droppedBacklog,
      one.lanesInUse,
      percentCell(one.copiedShare),
      shown(one.mouthToEarMs, 1),
      ...[one.emulator.latenessP99Us, one.emulator.latenessMaxUs].map((us) => shown(us && us / 1000, 2)),
      one.emulator.queueDroppedPackets,
      one.emulator.refusedPackets + one.emulator.unreadPackets,
    ]),
  };
}

function gapsPerSecond({ steady }: Measured): number | null {
  return steady && steady.hardGaps.length / (steady.frames / sampleRateHz);
}

function breaksPerSecond({ steady }: Measured): number | null {
  return steady && steady.breaks / (steady.frames / sampleRateHz);
}

type Gaps = Pick<Measured, "steady" | "quantumFrames">;

function ofOneQuantum({ steady, quantumFrames }: Gaps): number {
  return steady?.hardGaps.filter(({ frames }) => frames === quantumFrames).length ?? 0;
}

/** A recording begins with a cycle of the sound system. */
function onGrid({ steady, quantumFrames }: Gaps): number {
  return steady?.hardGaps.filter(({ from }) => from % quantumFrames === 0).length ?? 0;
}

/** How many gaps are as the sound system would leave them, at each speaker. */
export function gapWords(measured: readonly (Gaps & Pick<Measured, "direction">)[]): string[] {
  return directions.flatMap((direction) => {
    const there = measured.filter((one) => one.direction === direction);
    const sum = (pick: (one: (typeof there)[number]) => number) =>
      there.reduce((total, one) => total + pick(one), 0);
    if (there.length === 0) return [];
    const gaps = sum(({ steady }) => steady?.hardGaps.length ?? 0);
    const { seconds, unheard } = tones(there);
    const kinds =
      gaps > 0
        ? `; ${percent(sum(ofOneQuantum) / gaps)} of them last exactly one quantum, ${percent(sum(onGrid) / gaps)} begin on its grid`
        : "";
    return [
      `At ${speakerOf(direction)} ${gaps} hard gaps in ${shown(seconds, 0)} s of all networks${unheard}${kinds}.`,
    ];
  });
}

/** Where a direction is heard. */
function speakerOf(direction: string): string {
  return `${direction.at(-1)}'s speaker`;
}

function sentPackets({ arrivedMs, missing }: Delays): number {
  return arrivedMs.length + missing;
}

function arrivedShare(delays: Delays): number | null {
  return sentPackets(delays) > 0 ? delays.arrivedMs.length / sentPackets(delays) : null;
}

/** For people. */
function delayText(delays: Delays, p: number): string | null {
  return shown(delayQuantile(delays, p), 1);
}

/** For programs. */
function delayCell(delays: Delays, p: number): string | null {
  return raw(delayQuantile(delays, p), 2);
}

function arrivalWords(packets: Delays, copied: Delays): string {
  const within = (delays: Delays) => {
    const text = delayText(delays, 0.99);
    return text === "never" ? "less than 99 % at all" : `99 % within ${text ?? "–"} ms`;
  };
  return `${shares(arrivedShare(packets))} of the packets arrive: half within ${delayText(packets, 0.5) ?? "–"} ms, ${within(packets)}; with copies ${shares(arrivedShare(copied))} are there: ${within(copied)}`;
}

function percentCell(share: number | null): string | null {
  return share === null ? null : percent(share);
}

function times100(value: number | null): number | null {
  return value === null ? null : value * 100;
}

function shares(share: number | null): string {
  return share === null ? "an unknown share" : percent(share);
}
