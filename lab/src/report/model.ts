/** What a report of a measured run consists of. `html.ts` and `markdown.ts` write it, `figures.ts` draws its figures. */

export interface Report {
  title: string;
  /** Runs of one topic stand together in the index, for instance "mouth to ear". */
  topic: string;
  /** One sentence: what is measured, and why. */
  question: string;
  run: RunInfo;
  /** Plain sentences for a musician. The first one stands in the index. */
  findings: string[];
  sections: Section[];
}

export interface RunInfo {
  command: string;
  /** ISO 8601, with its offset. */
  date: string;
  commit: string;
  /** Too few observations to publish. */
  quick: boolean;
  /** Why the machine was too noisy to trust; null when it was quiet. */
  noisy: string | null;
  versions: Record<string, string>;
  machine: Record<string, string>;
  /** How long the run took. */
  seconds: number;
}

export interface Section {
  heading: string;
  /** How it was measured. */
  method: string;
  /** How far the figures can be wrong, and why. */
  uncertainty: string;
  figures: Figure[];
  tables: Table[];
}

export interface Table {
  caption: string;
  columns: { name: string; align?: "left" | "right" }[];
  /** As many cells in each row as there are columns. */
  rows: Cell[][];
}

/** Unknown is null: an empty cell, never 0. */
export type Cell = string | number | null;

/** A figure without data says that nothing was measured. */
export type Figure =
  | BoxFigure
  | CdfFigure
  | TimeFigure
  | DensityFigure
  | LineFigure
  | WaterfallFigure
  | SpectrumFigure;

interface FigureText {
  title: string;
  /** What it shows. */
  caption: string;
  /** For those who do not see it: what a reader would take from it. */
  alt: string;
}

/** Minimum, quartiles and maximum of each row, as figures 6 and 7 of the JackTrip-WebRTC paper. */
export interface BoxFigure extends FigureText {
  kind: "box";
  /** With its unit, as every axis label. */
  xLabel: string;
  /** Rows of one group follow each other under its name. */
  rows: {
    group: string;
    label: string;
    /** Infinite: it never came. */
    values: readonly number[];
    /** Published figures to compare with. */
    references?: readonly { label: string; value: number }[];
  }[];
}

/**
 * Share of observations at or below x; "log" draws the share above x on a logarithmic axis, which shows the tail. What never came, infinite,
 * is above every x.
 */
export interface CdfFigure extends FigureText {
  kind: "cdf";
  xLabel: string;
  probability: "plain" | "log";
  series: Observations[];
}

/** How often each value was observed. */
export interface DensityFigure extends FigureText {
  kind: "density";
  xLabel: string;
  series: Observations[];
}

export interface Observations {
  label: string;
  values: readonly number[];
}

/** What happened over time. */
export interface TimeFigure extends FigureText {
  kind: "time";
  xLabel: string;
  yLabel: string;
  series: Points<number>[];
  band?: { label: string; points: readonly { x: number; low: number; high: number }[] };
}

/** One figure against another. A text as x makes every x a category, in order of appearance. */
export interface LineFigure extends FigureText {
  kind: "line";
  xLabel: string;
  yLabel: string;
  series: Points<number | string>[];
  logY?: boolean;
}

/** Level over frequency, frequency on a logarithmic axis. */
export interface SpectrumFigure extends FigureText {
  kind: "spectrum";
  xLabel: string;
  yLabel: string;
  series: Points<number>[];
}

export interface Points<X> {
  label: string;
  /** In the order of x. Unknown is null: a gap in the line. */
  points: readonly { x: X; y: number | null }[];
}

/** The delay budget: capture, packet, send, network, buffer, playout, one after the other. */
export interface WaterfallFigure extends FigureText {
  kind: "waterfall";
  rows: { label: string; stages: Stage[] }[];
}

export interface Stage {
  name: string;
  /** Unknown is null. */
  ms: number | null;
  /** False for an estimate, which is drawn as one. */
  measured: boolean;
}

/** The table's cells as a reader sees them: whole numbers whole, others with four digits, unknown empty. */
export function tableText({ caption, columns, rows }: Table): string[][] {
  return rows.map((row, n) => {
    if (row.length !== columns.length)
      throw new Error(
        `table "${caption}": row ${n + 1} has ${row.length} cells for ${columns.length} columns`,
      );
    return row.map(cellText);
  });
}

function cellText(cell: Cell): string {
  if (typeof cell !== "number") return cell ?? "";
  if (!Number.isFinite(cell)) return "";
  return Number.isInteger(cell) ? String(cell) : numberText(cell);
}

/** Four digits, and all digits before the point. */
export function numberText(value: number): string {
  return Math.abs(value) >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(4)));
}

/** To the minute, in UTC, whatever offset it was written with. */
export function dateText(date: string): string {
  return `${instant(date).toISOString().slice(0, 16).replace("T", " ")} UTC`;
}

/** The instant that a date in ISO 8601 names. */
export function instant(date: string): Date {
  const at = new Date(date);
  if (Number.isNaN(at.getTime())) throw new Error(`not a date in ISO 8601: "${date}"`);
  return at;
}
