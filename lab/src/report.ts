/** Tables of the bench. An unknown figure is an empty cell, never 0. */

import { known, quantile } from "./analysis.js";
import type { PageParameters } from "./antiphon.js";
import type { Direction, LegName, LegResult } from "./legs.js";

const framesPerMs = 48;

/** One leg in one session. */
export interface Measured {
  session: number;
  config: string;
  leg: LegName;
  parameters: PageParameters;
  result: LegResult | undefined;
  failure: string | undefined;
  /** Of the whole machine, over the leg, browsers' start included. */
  machine: { busyShare: number; stealShare: number; load1: number };
}

/** What Antiphon wants to reach. Ratios of medians of the same session, so that the machine's mood cancels out. */
export interface Goals {
  /** Antiphon / setup A, at most. */
  toSetupA?: number;
  /** Antiphon - setup A, ms, at most. */
  overSetupAMs?: number;
  /** Antiphon / RTC media, at most. */
  toRtcMedia?: number;
  /** Concealed frames / all frames played, at most. */
  concealedShare: number;
}

export interface RunInfo {
  command: string;
  date: string;
  commit: string;
  browsers: string;
  kernel: string;
  pipewire: string;
  node: string;
  cores: number;
  cpu: string;
  quantumFrames: number;
  sessions: number;
  /** Scheduling priority of the browsers. */
  timing: { settleSeconds: number; leadSeconds: number; pulseSeconds: number; steadySeconds: number };
}

/** One row for each pulse. */
export function rawCsv(measured: readonly Measured[]): string {
  const rows = measured.flatMap(({ session, config, leg, result }) =>
    (result?.directions ?? []).flatMap(({ name, hearing }) =>
      hearing.hits.map(({ pulse, latencyFrames, likeness, crosstalkDb }) => [
        session,
        config,
        leg,
        name,
        pulse.side === 0 ? "left" : "right",
        pulse.frame,
        latencyFrames,
        digits(likeness, 4),
        digits(crosstalkDb, 1),
      ]),
    ),
  );
  return csv(
    [
      "session",
      "config",
      "leg",
      "direction",
      "side",
      "pulse_frame",
      "latency_frames",
      "likeness",
      "crosstalk_db",
    ],
    rows,
  );
}

const runColumns = (
  "session config leg direction median_ms p05_ms p95_ms pulses missed_pulses crosstalk_db steady_frames steady_breaks " +
  "steady_silent_frames played_frames concealed_frames skipped_frames received_packets lost_packets late_packets underruns " +
  "buffer_frames quantum_frames reported_base_latency_ms reported_output_latency_ms reported_input_latency_ms " +
  "calibration_min_frames calibration_max_frames device_xruns device_missed_frames page_errors antiphon_parameters " +
  "cpu_busy_share cpu_steal_share load1 failure"
).split(" ");

/** One row for each direction of each leg. */
export function runsCsv(measured: readonly Measured[]): string {
  const rows = measured.flatMap((one) => {
    const { session, config, leg, parameters, result, failure, machine } = one;
    const place = [session, config, leg];
    const setting = new URLSearchParams(parameters as Record<string, string>).toString() || null;
    const state = [digits(machine.busyShare, 3), digits(machine.stealShare, 3), digits(machine.load1, 2)];
    if (!result)
      return [
        [
          ...place,
          ...Array(runColumns.indexOf("antiphon_parameters") - place.length).fill(null),
          setting,
          ...state,
          failure,
        ],
      ];
    return result.directions.map((direction) => {
      const { name, hearing, counters, report } = direction;
      const ms = latenciesMs([direction]);
      const calibration = known(result.calibration.hits.map((hit) => hit.latencyFrames));
      return [
        ...place,
        name,
        ...[0.5, 0.05, 0.95].map((p) => digits(quantile(ms, p), 2)),
        hearing.hits.length,
        hearing.missed,
        digits(hearing.crosstalkDb, 1),
        hearing.steady?.frames,
        hearing.steady?.breaks,
        hearing.steady?.silentFrames,
        counters?.playedFrames,
        counters?.concealedFrames,
        counters?.skippedFrames,
        counters?.receivedPackets,
        counters?.lostPackets,
        counters?.latePackets,
        counters?.underruns,
        counters?.bufferFrames,
        report.quantumFrames,
        digits(report.reportedBaseLatencyMs, 2),
        digits(report.reportedOutputLatencyMs, 2),
        digits(report.reportedInputLatencyMs, 2),
        quantile(calibration, 0),
        quantile(calibration, 1),
        result.summary.xruns,
        result.summary.missed_frames,
        result.pageErrors.length,
        setting,
        ...state,
        null,
      ];
    });
  });
  return csv(runColumns, rows);
}

export function summarize(
  measured: readonly Measured[],
  info: RunInfo,
  configs: Record<string, { goals: Goals; antiphon: PageParameters }>,
): string {
  const { timing } = info;
  const names = [...new Set(measured.map(({ config }) => config))];
  return `# Mouth-to-ear latency

\`${info.command}\` · ${info.date} · commit ${info.commit}

${info.browsers} · kernel ${info.kernel} · PipeWire ${info.pipewire} · Node ${info.node} · ${info.cores} cores, ${info.cpu}.
${info.sessions} interleaved session(s); in each leg ${timing.settleSeconds} s of settling, ${timing.leadSeconds} s of silence, ${timing.pulseSeconds} s of coded pulses (8 a second), ${timing.steadySeconds} s of steady tone.
Virtual sound cards with a quantum of ${info.quantumFrames} frames. Figures are as heard, with nothing subtracted.

${noise(measured, info)}

## Latency, ms

Median, p05..p95 over all pulses of all sessions and directions; in brackets the medians of the sessions.

${table(
  [
    "browser",
    "leg",
    "median",
    "p05..p95",
    "sessions",
    "missed pulses",
    "crosstalk dB",
    "breaks in steady tone",
  ],
  names.flatMap((config) => legsOf(measured, config).map((leg) => latencyRow(measured, config, leg))),
)}

## Against the goals

A ratio or difference compares medians of the same session; shown is the median over the sessions.

${table(
  ["browser", "figure", "measured", "goal", "met"],
  names.flatMap((config) => goalRows(measured, config, configs[config]!.goals)),
)}

## What was played

Shares over the measured interval, from the receiving end's own counters.

${table(
  [
    "browser",
    "leg",
    "concealed frames",
    "skipped frames",
    "lost packets",
    "late packets",
    "underruns",
    "buffer, frames",
    "quantum",
    "reported base / output / input, ms",
  ],
  names.flatMap((config) => legsOf(measured, config).map((leg) => playedRow(measured, config, leg))),
)}

Antiphon's page parameters: ${names.map((config) => `${config} \`${new URLSearchParams(configs[config]!.antiphon as Record<string, string>)}\``).join(" · ")}.
`;
}

/** What the instruments say of themselves, and whether the run deserves trust. */
function noise(measured: readonly Measured[], info: RunInfo): string {
  const results = measured.flatMap(({ result }) => result ?? []);
  const calibration = results.flatMap((result) =>
    known(result.calibration.hits.map((hit) => hit.latencyFrames)),
  );
  const [low, high] = [quantile(calibration, 0), quantile(calibration, 1)];
  const sum = (pick: (result: LegResult) => number) =>
    results.reduce((total, result) => total + pick(result), 0);
  const missedFrames = sum(({ summary }) => Math.abs(summary.missed_frames));
  const missedShare =
    missedFrames /
    Math.max(
      1,
      sum(({ summary }) => summary.frames),
    );
  const busiest = Math.max(...measured.map(({ machine }) => machine.busyShare));
  const steal = Math.max(...measured.map(({ machine }) => machine.stealShare));
  const complaints: string[] = [];
  if (low !== info.quantumFrames || high !== info.quantumFrames)
    complaints.push("the calibration is not one quantum");
  if (missedShare > 0.001)
    complaints.push(`the graph ran without the device for ${percent(missedShare)} of the time`);
  if (steal > 0.03) complaints.push(`the host took up to ${percent(steal)} of the processor away`);
  if (busiest > 0.95) complaints.push("the processors had no idle time");
  for (const { config, session, result, leg } of measured) {
    if (leg !== "setup A" || !result) continue;
    const ms = latenciesMs(result.directions);
    const spread = (quantile(ms, 0.95) ?? 0) - (quantile(ms, 0.05) ?? 0);
    if (spread > 12)
      complaints.push(`setup A in ${config} spread over ${spread.toFixed(0)} ms in session ${session}`);
  }
  const failures = measured.filter(({ failure }) => failure);
  return [
    complaints.length > 0
      ? `**The machine was too noisy: take ratios with care and times not at all.** ${complaints.join("; ")}.`
      : "The machine was quiet enough.",
    `Device calibration: ${low === null ? "unknown" : `${low} to ${high} frames over ${calibration.length} pulses`} (right is ${info.quantumFrames}); ` +
      `xruns ${sum(({ summary }) => summary.xruns)}, missed frames ${missedFrames} (${percent(missedShare)}). ` +
      `Processor busy at most ${percent(busiest)}, taken by the host at most ${percent(steal)}.`,
    ...failures.map(
      ({ session, config, leg, failure }) => `Failed: session ${session}, ${config}, ${leg}: ${failure}`,
    ),
  ].join("\n\n");
}

function latencyRow(measured: readonly Measured[], config: string, leg: LegName): Cell[] {
  const all = of(measured, config, leg);
  const directions = all.flatMap(({ result }) => result?.directions ?? []);
  const ms = latenciesMs(directions);
  const pulses = directions.flatMap(({ hearing }) => hearing.hits).length;
  const missed = directions.reduce((total, { hearing }) => total + hearing.missed, 0);
  const medians = all.map(({ result }) => digits(result ? medianMs(result) : null, 1) ?? "–");
  const breaks = known(directions.map(({ hearing }) => hearing.steady?.breaks ?? null));
  return [
    config,
    leg,
    digits(quantile(ms, 0.5), 1),
    ms.length > 0 ? `${digits(quantile(ms, 0.05), 1)}..${digits(quantile(ms, 0.95), 1)}` : null,
    `(${medians.join(", ")})`,
    pulses > 0 ? `${missed} of ${pulses}` : null,
    digits(quantile(known(directions.map(({ hearing }) => hearing.crosstalkDb)), 1), 0),
    breaks.length > 0 ? breaks.reduce((a, b) => a + b, 0) : null,
  ];
}

function goalRows(measured: readonly Measured[], config: string, goals: Goals): Cell[][] {
  const against = (other: LegName, compare: (ours: number, theirs: number) => number) => {
    const compared = of(measured, config, "Antiphon").flatMap(({ session, result }) => {
      const reference = of(measured, config, other).find((one) => one.session === session)?.result;
      const [ours, theirs] = [result && medianMs(result), reference && medianMs(reference)];
      return ours && theirs ? [compare(ours, theirs)] : [];
    });
    return quantile(compared, 0.5);
  };
  const ratioTo = (other: LegName) => against(other, (ours, theirs) => ours / theirs);
  const concealed = shareOf(measured, config, "Antiphon", "concealedFrames");
  const row = (
    figure: string,
    value: number | null,
    goal: number | undefined,
    show: (value: number) => string,
  ): Cell[] => [
    config,
    figure,
    value === null ? null : show(value),
    goal === undefined ? null : `≤ ${show(goal)}`,
    value === null || goal === undefined ? null : value <= goal ? "yes" : "no",
  ];
  const overSetupA = against("setup A", (ours, theirs) => ours - theirs);
  return [
    row("Antiphon / setup A", ratioTo("setup A"), goals.toSetupA, (x) => x.toFixed(2)),
    row("Antiphon − setup A", overSetupA, goals.overSetupAMs, (x) => `${x.toFixed(1)} ms`),
    row("Antiphon / RTC media", ratioTo("RTC media"), goals.toRtcMedia, (x) => x.toFixed(2)),
    row("concealed frames", concealed, goals.concealedShare, percent),
  ];
}

function playedRow(measured: readonly Measured[], config: string, leg: LegName): Cell[] {
  const share = (counter: "concealedFrames" | "skippedFrames" | "lostPackets" | "latePackets") => {
    const value = shareOf(measured, config, leg, counter);
    return value === null ? null : percent(value);
  };
  const directions = of(measured, config, leg).flatMap(({ result }) => result?.directions ?? []);
  const underruns = known(directions.map(({ counters }) => counters?.underruns ?? null));
  const middle = (pick: (direction: Direction) => number | null | undefined, places: number) =>
    digits(quantile(known(directions.map((direction) => pick(direction) ?? null)), 0.5), places);
  const reported = (
    ["reportedBaseLatencyMs", "reportedOutputLatencyMs", "reportedInputLatencyMs"] as const
  ).map((key) => middle(({ report }) => report[key], 1) ?? "");
  return [
    config,
    leg,
    share("concealedFrames"),
    share("skippedFrames"),
    share("lostPackets"),
    share("latePackets"),
    underruns.length > 0 ? underruns.reduce((a, b) => a + b, 0) : null,
    middle(({ counters }) => counters?.bufferFrames, 0),
    middle(({ report }) => report.quantumFrames, 0),
    reported.join(" / "),
  ];
}

/** A counter's share of all frames played, or of all packets sent, over all sessions and directions. */
function shareOf(
  measured: readonly Measured[],
  config: string,
  leg: LegName,
  counter: "concealedFrames" | "skippedFrames" | "lostPackets" | "latePackets",
): number | null {
  let part = 0;
  let whole = 0;
  for (const { result } of of(measured, config, leg)) {
    for (const { counters } of result?.directions ?? []) {
      if (!counters) continue;
      const { playedFrames, concealedFrames, receivedPackets, lostPackets } = counters;
      const [a, b] = counter.endsWith("Frames")
        ? [playedFrames, concealedFrames]
        : [receivedPackets, lostPackets];
      const value = counters[counter];
      if (a === null || b === null || value === null) continue;
      part += value;
      whole += a + b;
    }
  }
  return whole > 0 ? part / whole : null;
}

function of(measured: readonly Measured[], config: string, leg: LegName): Measured[] {
  return measured.filter((one) => one.config === config && one.leg === leg);
}

function legsOf(measured: readonly Measured[], config: string): LegName[] {
  return [...new Set(measured.filter((one) => one.config === config).map(({ leg }) => leg))];
}

function latenciesMs(directions: readonly Direction[]): number[] {
  return known(directions.flatMap(({ hearing }) => hearing.hits.map((hit) => hit.latencyFrames))).map(
    (frames) => frames / framesPerMs,
  );
}

function medianMs(result: LegResult): number | null {
  return quantile(latenciesMs(result.directions), 0.5);
}

type Cell = string | number | null | undefined;

function digits(value: number | null | undefined, places: number): string | null {
  return value === null || value === undefined ? null : value.toFixed(places);
}

function percent(share: number): string {
  return `${(share * 100).toFixed(share < 0.01 ? 3 : 1)} %`;
}

function table(head: string[], rows: Cell[][]): string {
  const line = (cells: Cell[]) => `| ${cells.map((cell) => cell ?? "").join(" | ")} |`;
  return [line(head), line(head.map(() => "---")), ...rows.map(line)].join("\n");
}

function csv(head: string[], rows: unknown[][]): string {
  const cell = (value: unknown) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""').replaceAll("\n", " ")}"` : text;
  };
  return `${[head, ...rows].map((row) => row.map(cell).join(",")).join("\n")}\n`;
}
