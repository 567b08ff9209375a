/** Draws the figures of a report as SVG, legible in light and dark: lines and text take the colour of the text around. */

import * as Plot from "@observablehq/plot";
import { bin, extent, greatest, groups, least, max, sort, sum, ticks, union } from "d3-array";
import { parseHTML } from "linkedom";
import { quantile } from "../analysis.js";
import {
  type BoxFigure,
  type CdfFigure,
  type DensityFigure,
  type Figure,
  type LineFigure,
  numberText,
  type Observations,
  type Points,
  type SpectrumFigure,
  type Stage,
  type TimeFigure,
  type WaterfallFigure,
} from "./model.js";

/** Colours of the series: Okabe and Ito's, which colour-blind readers tell apart, those that stand out on each ground. */
export const palette: readonly { light: string; dark: string }[] = [
  { light: "#0072B2", dark: "#56B4E9" },
  { light: "#D55E00", dark: "#E8702A" },
  { light: "#009E73", dark: "#1BB88B" },
  { light: "#CC79A7", dark: "#CC79A7" },
  { light: "#E69F00", dark: "#E69F00" },
  { light: "#56B4E9", dark: "#F0E442" },
  { light: "currentColor", dark: "currentColor" },
];

const symbols = ["circle", "square", "triangle", "diamond", "star", "wye", "cross"] as const;
/** Where the figures are made; they never enter it. */
const { document } = parseHTML("<html></html>");
const fontPx = 12;
/** Of a character, on average; a little too wide rather than too narrow. */
const characterPx = 7;
const linePx = 18;
const axisPx = 44;
const rowPx = 22;
const background = "var(--background, white)";
const muted = "var(--muted, #666)";

/** What one kind of figure adds to the common frame. */
interface Drawing {
  /** Stands above the frame. */
  yLabel?: string;
  legend: { label: string; color?: string; symbol?: Plot.SymbolType; fillOpacity?: number }[];
  options: Plot.PlotOptions;
}

/** The figure as one `svg` element, `width` pixels wide where there is room; null when nothing was measured. */
export function figureSvg(figure: Figure, width = 720): string | null {
  const drawing = draw(figure, width);
  if (!drawing) return null;
  const { options } = drawing;
  const marginLeft = options.marginLeft ?? 56;
  const legend = legendMarks(drawing.legend, width);
  // The frame keeps its height whatever the legend takes.
  const marginTop = legend.heightPx + (options.marginTop ?? 30);
  const svg = Plot.plot({
    ...options,
    document,
    className: "plot",
    width,
    height: (options.height ?? 300) + legend.heightPx,
    marginLeft,
    marginTop,
    marginRight: 20,
    marginBottom: options.marginBottom ?? axisPx,
    style: { fontSize: `${fontPx}px`, background: "none", overflow: "visible" },
    x: { labelAnchor: "right", labelArrow: "none", nice: true, ...options.x },
    y: { label: null, nice: true, ...options.y },
    marks: [
      ...(options.marks ?? []),
      // From the frame's top left, up into the margin.
      ...legend.marks(-marginTop, -marginLeft),
      Plot.text([drawing.yLabel ?? ""], {
        frameAnchor: "top-left",
        textAnchor: "start",
        dx: 16 - marginLeft,
        dy: -22,
        fill: "currentColor",
      }),
    ],
  });
  const opening = `<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="${escaped(figure.alt)}"`;
  return svg.outerHTML.replace("<svg", () => opening);
}

/** Text that markup may not read as its own, inside elements and inside attributes. */
export function escaped(text: string): string {
  const entities: Record<string, string> = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    '"': "&quot;",
    "'": "&#39;",
  };
  return text.replaceAll(/[&<>"']/g, (character) => entities[character]!);
}

function draw(figure: Figure, width: number): Drawing | null {
  switch (figure.kind) {
    case "box":
      return box(figure, width);
    case "cdf":
      return cdf(figure);
    case "density":
      return density(figure);
    case "time":
      return time(figure, width);
    case "line":
      return line(figure, width);
    case "spectrum":
      return spectrum(figure, width);
    case "waterfall":
      return waterfall(figure, width);
  }
}

/** Quartiles interpolate linearly between order statistics (R's type 7); infinite ones fall among what never came. Null of nothing. */
export function boxSummary(values: readonly number[]): BoxSummary | null {
  const counted = countable(values);
  if (counted.length === 0) return null;
  const [low, q1, middle, q3, high] = [0, 0.25, 0.5, 0.75, 1].map((p) => quantile(counted, p)!);
  const never = counted.length - finite(counted).length;
  return { count: counted.length, never, min: low!, q1: q1!, median: middle!, q3: q3!, max: high! };
}

/** What a row of a box figure draws. */
export interface BoxSummary {
  count: number;
  /** Of them infinite. */
  never: number;
  min: number;
  q1: number;
  median: number;
  q3: number;
  max: number;
}

function box({ rows, xLabel }: BoxFigure, width: number): Drawing | null {
  const labels = [...union(rows.map(({ label }) => label))];
  const sources = [...union(rows.flatMap(({ references = [] }) => references.map(({ label }) => label)))];
  const lines = rowLines(rows, ({ group }) => group);
  const drawn = lines.rows.map(({ row, y }) => {
    const summary = boxSummary(row.values);
    const color = seriesColor(labels.indexOf(row.label));
    const note = summary ? boxNote(summary) : "nothing was measured";
    return { row, y, label: row.label, note, color, summary };
  });
  const longest = max(rows.flatMap(({ values }) => finite(values)));
  if (longest === undefined) return null;
  const boxes = drawn.flatMap(({ y, color, summary }) => {
    if (!summary || !Number.isFinite(summary.min)) return [];
    const { min, q1, median, q3, max } = summary;
    // What never came is drawn as far as the figure goes, and has no end there.
    const [low, high, whisker] = [q1, q3, max].map((value) => Math.min(value, longest));
    return [{ y, color, min, low, high, whisker, ends: finite([min, max]), middle: finite([median]) }];
  });
  const references = drawn.flatMap(({ y, row }) => (row.references ?? []).map((one) => ({ ...one, y })));
  const symbolOf = ({ label }: { label: string }) => symbols[(3 + sources.indexOf(label)) % symbols.length]!;
  return {
    legend: [
      { label: "whiskers: min and max, box: quartiles" },
      ...sources.map((label) => ({
        label,
        color: "currentColor",
        symbol: symbolOf({ label }),
        fillOpacity: 0,
      })),
    ],
    options: {
      ...lines.options,
      x: { label: xLabel, grid: true, zero: true },
      marks: [
        ...lines.marks(drawn, width),
        Plot.ruleY(boxes, { y: "y", x1: "min", x2: "whisker", stroke: "color", strokeWidth: 1.5 }),
        Plot.tickX(
          boxes.flatMap(({ y, ends, color }) => ends.map((x) => ({ x, y, color }))),
          { x: "x", y: "y", stroke: "color", strokeWidth: 1.5, inset: 4 },
        ),
        Plot.barX(boxes, { y: "y", x1: "low", x2: "high", fill: background, stroke: "none" }),
        Plot.barX(boxes, {
          y: "y",
          x1: "low",
          x2: "high",
          fill: "color",
          fillOpacity: 0.45,
          stroke: "color",
        }),
        Plot.tickX(
          boxes.flatMap(({ y, middle }) => middle.map((x) => ({ x, y }))),
          { x: "x", y: "y", stroke: "currentColor", strokeWidth: 2.5 },
        ),
        Plot.dot(references, {
          x: "value",
          y: "y",
          symbol: symbolOf,
          r: 5,
          stroke: "currentColor",
          strokeWidth: 1.5,
          fill: background,
        }),
      ],
      // Each row names its symbol itself.
      symbol: { type: "identity" } as never,
    },
  };
}

function boxNote({ median, count, never }: BoxSummary): string {
  const middle = Number.isFinite(median) ? numberText(median) : "never";
  return `median ${middle}, n = ${count}${never > 0 ? `, ${never} never` : ""}`;
}

function waterfall({ rows }: WaterfallFigure, width: number): Drawing | null {
  const names = [...union(rows.flatMap(({ stages }) => stages.map(({ name }) => name)))];
  const known = (stage: Stage): stage is Stage & { ms: number } =>
    stage.ms !== null && Number.isFinite(stage.ms);
  if (!rows.some(({ stages }) => stages.some(known))) return null;
  const lines = rowLines(rows, () => "");
  const drawn = lines.rows.map(({ row, y }) => {
    const unknown = row.stages.filter((stage) => !known(stage)).map(({ name }) => name);
    const total = sum(row.stages.filter(known), ({ ms }) => ms);
    const sumText = `${numberText(Number(total.toFixed(2)))} ms`;
    const note =
      unknown.length === 0
        ? sumText
        : unknown.length === row.stages.length
          ? "nothing was measured"
          : `${sumText} without ${unknown.join(", ")}`;
    return { y, label: row.label, note };
  });
  const segments = lines.rows.flatMap(({ row, y }) => {
    let x2 = 0;
    return row.stages.filter(known).map(({ name, ms, measured }) => {
      const x1 = x2;
      x2 += ms;
      return { y, x1, x2, ms, measured, color: seriesColor(names.indexOf(name)) };
    });
  });
  const longest = max(segments, ({ x2 }) => x2)!;
  const segmentText = (ms: number) => numberText(Number(ms.toFixed(1)));
  const roomy = segments.filter(
    ({ ms }) => (ms / longest) * (width - 60) > (segmentText(ms).length + 1) * characterPx,
  );
  const style = {
    y: "y",
    x1: "x1",
    x2: "x2",
    fill: "color",
    stroke: "color",
    insetLeft: 0.5,
    insetRight: 0.5,
  };
  const estimates = segments.filter(({ measured }) => !measured);
  return {
    legend: [
      ...names.map((label, n) => ({ label, color: seriesColor(n), symbol: "square" as const })),
      ...(estimates.length > 0 ? [{ label: "pale and dashed: estimated" }] : []),
    ],
    options: {
      ...lines.options,
      x: { label: "delay, ms", grid: true, zero: true },
      marks: [
        ...lines.marks(drawn, width),
        Plot.barX(
          segments.filter(({ measured }) => measured),
          { ...style, fillOpacity: 0.75 },
        ),
        Plot.barX(estimates, { ...style, fillOpacity: 0.15, strokeDasharray: "3,2" }),
        Plot.text(roomy, {
          x: ({ x1, x2 }) => (x1 + x2) / 2,
          y: "y",
          text: ({ ms }) => segmentText(ms),
          fill: "currentColor",
          stroke: background,
          strokeWidth: 3,
        }),
      ],
    },
  };
}

/**
 * Rows under each other, each with its label and a note above its bar, which leaves long labels their room on a phone.
 * Bands, named by number: one for each group's name, one for each row's text, one for each row's bar.
 */
function rowLines<Row>(rows: readonly Row[], groupOf: (row: Row) => string) {
  const domain: number[] = [];
  const headings: { y: number; text: string }[] = [];
  const placed: { row: Row; y: number }[] = [];
  let group = "";
  for (const row of rows) {
    if (groupOf(row) !== group) {
      group = groupOf(row);
      // A group stands apart from the one above.
      if (placed.length > 0) domain.push(domain.length);
      headings.push({ y: domain.push(domain.length) - 1, text: group });
    }
    domain.push(domain.length);
    placed.push({ row, y: domain.push(domain.length) - 1 });
  }
  const fitted = (text: string, room: number) =>
    text.length > room ? `${text.slice(0, Math.max(1, room - 1))}…` : text;
  return {
    rows: placed,
    options: {
      marginLeft: 16,
      marginTop: 6,
      height: domain.length * rowPx + axisPx,
      y: { type: "band", domain, axis: null, padding: 0.1 },
    } satisfies Plot.PlotOptions,
    marks: (drawn: readonly { y: number; label: string; note: string }[], width: number): Plot.Markish[] => {
      const room = Math.floor((width - 32) / characterPx);
      const common = { frameAnchor: "left", textAnchor: "start", fill: "currentColor" } as const;
      return [
        Plot.text(headings, {
          ...common,
          y: "y",
          text: ({ text }) => fitted(text, room),
          fontWeight: "bold",
        }),
        Plot.text(drawn, {
          ...common,
          y: ({ y }) => y - 1,
          text: ({ label, note }) => fitted(label, Math.max(8, room - note.length - 2)),
          title: "label",
          dy: 1,
        }),
        Plot.text(drawn, {
          y: ({ y }) => y - 1,
          text: ({ note }) => fitted(note, room - 10),
          frameAnchor: "right",
          textAnchor: "end",
          fill: muted,
          dy: 1,
        }),
      ];
    },
  };
}

function cdf({ series, xLabel, probability }: CdfFigure): Drawing | null {
  const measured = observed(series);
  if (measured.length === 0) return null;
  const log = probability === "log";
  const points = measured.flatMap(({ values, count, color, n }) => {
    const sorted = sort(values);
    // The last step of a tail is drawn down to one observation, for a logarithm has no 0.
    const share = (i: number) => (log ? Math.max(count - 1 - i, 1) / count : (i + 1) / count);
    const steps = stepIndices(sorted.length).map((i) => ({ x: sorted[i]!, share: share(i), color, n }));
    return [{ x: sorted[0]!, share: log ? 1 : 0, color, n }, ...steps];
  });
  const percent = (share: number) => `${numberText(share * 100)} %`;
  return {
    legend: seriesLegend(measured),
    yLabel: log ? "observations above x" : "observations up to x",
    options: {
      x: { label: xLabel, ...roomAround(points.map(({ x }) => x)) },
      y: {
        ...(log ? logAxis(points.map(({ share }) => share)) : { domain: [0, 1] }),
        tickFormat: percent,
        grid: true,
      },
      marginLeft: 64,
      marks: [
        Plot.line(points, {
          x: "x",
          y: "share",
          z: "n",
          stroke: "color",
          strokeWidth: 2,
          curve: "step-after",
        }),
      ],
    },
  };
}

/** At most some 800 of `count` sorted observations: evenly spread, and ever denser towards the largest. */
function stepIndices(count: number): number[] {
  const last = count - 1;
  const even = Array.from({ length: 401 }, (_, k) => Math.round((k / 400) * last));
  const tail = Array.from({ length: 401 }, (_, k) => last - Math.round(count ** (k / 400) - 1));
  return sort(union(even, tail));
}

function density({ series, xLabel }: DensityFigure): Drawing | null {
  const measured = observed(series);
  const [low, high] = extent(measured.flatMap(({ values }) => values));
  if (low === undefined || high === undefined) return null;
  const edges = low < high ? ticks(low, high, 50) : [low - 0.5];
  const binWidth = edges.length > 1 ? edges[1]! - edges[0]! : 1;
  const first = edges[0]! <= low ? edges[0]! : edges[0]! - binWidth;
  const bins = Math.floor((high - first) / binWidth) + 1;
  const thresholds = Array.from({ length: bins + 1 }, (_, k) => first + k * binWidth);
  const points = measured.flatMap(({ values, color, n }) => {
    const counted = bin<number, number>()
      .domain([first, thresholds[bins]!])
      .thresholds(thresholds.slice(1, -1))(values)
      .map((values_, k) => ({ x: thresholds[k]!, share: (100 * values_.length) / values.length, color, n }));
    return [...counted, { x: thresholds[bins]!, share: 0, color, n }];
  });
  const channels = { x: "x", z: "n", curve: "step-after" } as const;
  return {
    legend: seriesLegend(measured),
    yLabel: `observations per ${numberText(binWidth)} of x, %`,
    options: {
      x: { label: xLabel, ...roomAround([low, high]) },
      y: { zero: true, grid: true },
      marks: [
        Plot.areaY(points, {
          ...channels,
          y1: 0,
          y2: "share",
          fill: "color",
          fillOpacity: 0.25,
        }),
        Plot.lineY(points, { ...channels, y: "share", stroke: "color", strokeWidth: 1.5 }),
        Plot.ruleY([0]),
      ],
    },
  };
}

function time({ series, band, xLabel, yLabel }: TimeFigure, width: number): Drawing | null {
  const measured = drawable(series);
  if (measured.length === 0) return null;
  return {
    legend: [
      ...seriesLegend(measured),
      ...(band
        ? [{ label: band.label, color: "currentColor", symbol: "square" as const, fillOpacity: 0.2 }]
        : []),
    ],
    yLabel,
    options: {
      x: { label: xLabel },
      y: { grid: true },
      marks: [
        ...(band
          ? [
              Plot.areaY(band.points, {
                x: "x",
                y1: "low",
                y2: "high",
                fill: "currentColor",
                fillOpacity: 0.15,
              }),
            ]
          : []),
        lines(measured.map((one) => ({ ...one, points: thinned(one.points, width) }))),
      ],
    },
  };
}

function spectrum({ series, xLabel, yLabel }: SpectrumFigure, width: number): Drawing | null {
  const audible = series.map((one) => ({ ...one, points: one.points.filter(({ x }) => x > 0) }));
  const measured = drawable(audible);
  if (measured.length === 0) return null;
  const [lowest, highest] = extent(measured.flatMap(({ points }) => points.map(({ x }) => x))) as [
    number,
    number,
  ];
  const axis = logAxis([lowest, highest], width < 500 ? [1] : [1, 2, 5]);
  return {
    legend: seriesLegend(measured),
    yLabel,
    options: {
      x: {
        type: "log",
        domain: [lowest, highest],
        nice: false,
        ticks: axis.ticks.filter((tick) => tick >= lowest && tick <= highest),
        tickFormat: (hz: number) => (hz >= 1000 ? `${numberText(hz / 1000)}k` : numberText(hz)),
        label: xLabel,
        grid: true,
      },
      y: { grid: true },
      marks: [lines(measured.map((one) => ({ ...one, points: thinned(one.points, width, Math.log10) })))],
    },
  };
}

function line({ series, xLabel, yLabel, logY = false }: LineFigure, width: number): Drawing | null {
  const measured = drawable(series, ({ y }) => !logY || (y !== null && y > 0)).map((one) => ({
    ...one,
    symbol: symbols[(one.n + Math.floor(one.n / palette.length)) % symbols.length]!,
  }));
  if (measured.length === 0) return null;
  const xs = [...union(series.flatMap(({ points }) => points.map(({ x }) => x)))];
  const categories = xs.some((x) => typeof x === "string");
  const drawn = measured.map((one) => ({
    ...one,
    points: one.points.map(({ x, y }) => ({ x: categories ? String(x) : x, y })),
  }));
  const marked = drawn.flatMap(({ points, color, symbol }) =>
    points.filter(({ y }) => y !== null).map((point) => ({ ...point, color, symbol })),
  );
  const undrawn = sum(series, ({ points }) => points.filter(({ y }) => logY && y !== null && y <= 0).length);
  // Names of categories take as many lines as they need to stand beside each other.
  const columnPx = (width - 80) / xs.length;
  const nameLines = categories ? max(xs, (x) => Math.ceil((String(x).length * characterPx) / columnPx))! : 1;
  return {
    legend: [
      ...measured.map(({ label, color, symbol }) => ({ label, color, symbol })),
      ...(undrawn > 0 ? [{ label: `not on this axis: ${undrawn} at 0 or below` }] : []),
    ],
    yLabel,
    options: {
      x: categories
        ? { type: "point", domain: xs.map(String), label: xLabel }
        : { label: xLabel, ...roomAround(xs.map(Number)) },
      y: {
        grid: true,
        ...(logY ? { ...logAxis(marked.map(({ y }) => y!)), tickFormat: numberText } : { zero: true }),
      },
      // Each row names its symbol itself.
      symbol: { type: "identity" } as never,
      height: 300 + (nameLines - 1) * fontPx,
      marginBottom: axisPx + (nameLines - 1) * fontPx,
      marks: [
        ...(categories ? [Plot.axisX({ lineWidth: columnPx / fontPx, labelAnchor: "right" })] : []),
        lines(drawn),
        Plot.dot(marked, { x: "x", y: "y", fill: "color", symbol: "symbol", r: 4.5 }),
      ],
    },
  };
}

function lines(series: readonly (Points<number | string> & Colored)[]): Plot.Markish {
  const points = series.flatMap(({ points, color, n }) => points.map((point) => ({ ...point, color, n })));
  const stroke = { stroke: "color", strokeWidth: 2, strokeLinejoin: "round" } as const;
  return Plot.line(points, { x: "x", y: "y", z: "n", ...stroke });
}

/** Whole decades around `values`, with ticks at these multiples of each. */
function logAxis(
  values: readonly number[],
  multiples: readonly number[] = [1],
): Plot.ScaleOptions & { ticks: number[] } {
  const [low, high] = extent(values.map(Math.log10)) as [number, number];
  const to = Math.ceil(high);
  const from = Math.min(Math.floor(low), to - 1);
  const few = to - from < 3 ? [1, 2, 5] : multiples;
  const decades = Array.from({ length: to - from + 1 }, (_, k) => 10 ** (from + k));
  const [bottom, top] = [decades[0]!, decades.at(-1)!];
  const ticks = decades
    .flatMap((decade) => few.map((multiple) => multiple * decade))
    .filter((tick) => tick <= top);
  return { type: "log", domain: [bottom, top], ticks };
}

/** An axis of one single value needs a width; any other finds its own. */
function roomAround(values: readonly number[]): Plot.ScaleOptions {
  const [low, high] = extent(values);
  return low !== undefined && low === high ? { domain: [low - 1, low + 1] } : {};
}

interface Colored {
  label: string;
  color: string;
  /** Place among all series, those without data included: a colour means the same in figures of the same series. */
  n: number;
}

function colored<Series extends { label: string }>(series: readonly Series[]): (Series & Colored)[] {
  return series.map((one, n) => ({ ...one, color: seriesColor(n), n }));
}

/** With the finite values, which can be drawn, and the count of all. */
function observed(series: readonly Observations[]): (Observations & Colored & { count: number })[] {
  return colored(series)
    .map((one) => ({ ...one, values: finite(one.values), count: countable(one.values).length }))
    .filter(({ values }) => values.length > 0);
}

/** Series with a point to draw; a point that the axes cannot hold is a gap. */
function drawable<X>(
  series: readonly Points<X>[],
  fits: (point: { x: X; y: number | null }) => boolean = () => true,
): (Points<X> & Colored)[] {
  const known = (point: { x: X; y: number | null }) =>
    point.y !== null && Number.isFinite(point.y) && fits(point) ? point.y : null;
  return colored(series)
    .map((one) => ({
      ...one,
      points: one.points
        .filter(({ x }) => typeof x === "string" || Number.isFinite(x))
        .map((point) => ({ x: point.x, y: known(point) })),
    }))
    .filter(({ points }) => points.some(({ y }) => y !== null));
}

/**
 * Per pixel the lowest and the highest point and one gap: the picture stays the same, its size is bounded.
 * `place` is where on the axis an x stands.
 */
function thinned(points: Points<number>["points"], widthPx: number, place = (x: number) => x): typeof points {
  const [low, high] = extent(points, ({ x }) => place(x)) as [number, number];
  const pixel = ({ x }: { x: number }) => Math.floor(((place(x) - low) / (high - low || 1)) * widthPx);
  return groups(points, pixel).flatMap(([, part]) => {
    const kept = [part.find(({ y }) => y === null), least(part, ({ y }) => y), greatest(part, ({ y }) => y)];
    return part.filter((point) => kept.includes(point));
  });
}

function finite(values: readonly number[]): number[] {
  return values.filter(Number.isFinite);
}

/** What never came included. */
function countable(values: readonly number[]): number[] {
  return values.filter((value) => value > Number.NEGATIVE_INFINITY);
}

function seriesColor(n: number): string {
  const place = n % palette.length;
  return `var(--series-${place + 1}, ${palette[place]!.light})`;
}

function seriesLegend(series: readonly Colored[]): Drawing["legend"] {
  return series.map(({ label, color }) => ({ label, color, symbol: "square" }));
}

/** Entries side by side, as many lines as they need, above the frame. */
function legendMarks(entries: Drawing["legend"], width: number) {
  const most = Math.floor((width - 40) / characterPx);
  let [x, y] = [0, 0];
  const placed = entries.map((entry) => {
    const text = entry.label.length > most ? `${entry.label.slice(0, most - 1)}…` : entry.label;
    const indent = entry.symbol ? 16 : 0;
    const wide = indent + text.length * characterPx + 16;
    if (x > 0 && x + wide > width - 16) [x, y] = [0, y + linePx];
    const place = { ...entry, text, x, y, indent };
    x += wide;
    return place;
  });
  return {
    heightPx: entries.length > 0 ? y + linePx + 6 : 0,
    marks: (top: number, left: number): Plot.Markish[] =>
      placed.flatMap((entry) => {
        const corner = { frameAnchor: "top-left", dy: top + entry.y + linePx / 2 + 2 } as const;
        const dx = left + 16 + entry.x;
        const text = Plot.text([entry], {
          ...corner,
          dx: dx + entry.indent,
          text: "text",
          title: "label",
          textAnchor: "start",
          lineAnchor: "middle",
          fill: entry.symbol ? "currentColor" : muted,
        });
        if (!entry.symbol) return [text];
        const { color = "currentColor", symbol, fillOpacity = 1 } = entry;
        return [
          Plot.dot([entry], { ...corner, dx: dx + 5, r: 5, symbol, fill: color, fillOpacity, stroke: color }),
          text,
        ];
      }),
  };
}
