import { quantile } from "d3-array";
import { parseHTML } from "linkedom";
import { describe, expect, it } from "vitest";
import { csv } from "../src/report/csv.js";
import { boxSummary, figureSvg } from "../src/report/figures.js";
import { indexEntry, indexPage, reportPage } from "../src/report/html.js";
import { summaryMarkdown } from "../src/report/markdown.js";
import { type Figure, type Report, tableText } from "../src/report/model.js";

const text = { title: "Title", caption: "Caption", alt: "Alternative text" };
const values = [3, 1, 4, 1, 5, 9, 2, 6];
const points = values.map((y, x) => ({ x: 100 * (x + 1), y }));
const stage = (name: string, ms: number | null, measured = true) => ({ name, ms, measured });

/** One of each kind. What is drawn: marks by selector, and text. */
const kinds: { figure: Figure; marks: Record<string, number>; labels: string[] }[] = [
  {
    figure: {
      kind: "box",
      ...text,
      xLabel: "latency, ms",
      rows: [
        { group: "Chromium", label: "setup A", values, references: [{ label: "paper", value: 7 }] },
        { group: "Chromium", label: "RTC media", values: [] },
        { group: "Firefox", label: "setup A", values: [8, 8, 8] },
      ],
    },
    // Each box lies on a patch that hides the whisker; each whisker ends in two ticks. Two dots: the reference, its legend.
    marks: {
      '[aria-label="bar"] rect': 4,
      '[aria-label="rule"] line': 2,
      '[aria-label="tick"] line': 6,
      '[aria-label="dot"] path': 2,
    },
    labels: [
      "Chromium",
      "Firefox",
      "setup A",
      "RTC media",
      "nothing was measured",
      "median 3.5, n = 8",
      "paper",
    ],
  },
  {
    figure: {
      kind: "cdf",
      ...text,
      xLabel: "latency, ms",
      probability: "plain",
      series: [{ label: "all", values }],
    },
    marks: { '[aria-label="line"] path': 1 },
    labels: ["all", "100 %", "0 %", "latency, ms"],
  },
  {
    figure: {
      kind: "cdf",
      ...text,
      xLabel: "latency, ms",
      probability: "log",
      series: [{ label: "all", values }],
    },
    marks: { '[aria-label="line"] path': 1 },
    labels: ["all", "100 %", "10 %", "observations above x"],
  },
  {
    figure: {
      kind: "time",
      ...text,
      xLabel: "time, s",
      yLabel: "buffer, ms",
      series: [
        { label: "Ada", points },
        { label: "Béla", points: points.map(({ x, y }) => ({ x, y: y + 1 })) },
      ],
      band: { label: "network", points: [0, 9].map((x) => ({ x, low: 1, high: 2 })) },
    },
    marks: { '[aria-label="line"] path': 2, '[aria-label="area"] path': 1 },
    labels: ["Ada", "Béla", "network", "time, s", "buffer, ms"],
  },
  {
    figure: {
      kind: "density",
      ...text,
      xLabel: "variation, ms",
      series: [
        { label: "sent", values },
        { label: "received", values: [1, 2] },
        { label: "unknown", values: [] },
      ],
    },
    marks: { '[aria-label="line"] path': 2, '[aria-label="area"] path': 2 },
    labels: ["sent", "received", "variation, ms", "observations per 0.2 of x, %"],
  },
  {
    figure: {
      kind: "line",
      ...text,
      xLabel: "network",
      yLabel: "rate, Mbit/s",
      series: [
        { label: "one", points: ["LAN", "ocean"].map((x, y) => ({ x, y })) },
        { label: "two", points: ["LAN", "ocean"].map((x) => ({ x, y: x === "LAN" ? null : 3 })) },
      ],
    },
    // Three known points and two legend entries.
    marks: { '[aria-label="dot"] path, [aria-label="dot"] circle': 5, '[aria-label="line"] path': 2 },
    labels: ["LAN", "ocean", "one", "two", "rate, Mbit/s"],
  },
  {
    figure: {
      kind: "line",
      ...text,
      xLabel: "peers",
      yLabel: "lost, %",
      logY: true,
      series: [{ label: "lost", points: [0, 0.1, 1, 10].map((y, x) => ({ x, y })) }],
    },
    marks: { '[aria-label="dot"] path, [aria-label="dot"] circle': 4 },
    labels: ["lost", "0.1", "10", "not on this axis: 1 at 0 or below"],
  },
  {
    figure: {
      kind: "waterfall",
      ...text,
      rows: [
        {
          label: "direct",
          stages: [stage("capture", 10), stage("network", null), stage("playout", 5.5, false)],
        },
        { label: "relayed", stages: [stage("capture", null)] },
      ],
    },
    marks: { '[aria-label="bar"] rect': 2, '[aria-label="bar"][stroke-dasharray] rect': 1 },
    labels: [
      "direct",
      "15.5 ms without network",
      "nothing was measured",
      "pale and dashed: estimated",
      "delay, ms",
    ],
  },
  {
    figure: {
      kind: "spectrum",
      ...text,
      xLabel: "frequency, Hz",
      yLabel: "level, dB",
      series: [{ label: "PCM", points: [0, 20, 1000, 20_000].map((x) => ({ x, y: -x / 1000 })) }],
    },
    marks: { '[aria-label="line"] path': 1 },
    labels: ["PCM", "100", "1k", "10k", "frequency, Hz", "level, dB"],
  },
];

function drawn(figure: Figure, width?: number) {
  const svg = figureSvg(figure, width);
  expect(svg).not.toBeNull();
  const root = parseHTML(`<html><body>${svg}</body></html>`).document.querySelector("svg")!;
  const labels = [...root.querySelectorAll("text")].map((label) => label.textContent ?? "");
  return { svg: svg!, root, labels };
}

function emptied(figure: Figure): Figure {
  const copy = structuredClone(figure);
  if (copy.kind === "box") for (const row of copy.rows) row.values = [];
  else if (copy.kind === "waterfall") for (const row of copy.rows) row.stages = [];
  else if (copy.kind === "cdf" || copy.kind === "density")
    for (const one of copy.series) one.values = [Number.NaN];
  else for (const one of copy.series) one.points = one.points.map(({ x }) => ({ x: x as never, y: null }));
  return copy;
}

function report(changes: Partial<Report> = {}): Report {
  return {
    title: "Mouth to ear",
    topic: "latency",
    question: "How late is it?",
    run: {
      command: "make bench",
      date: "2026-11-21T08:00:00+01:00",
      commit: "abc1234",
      quick: false,
      noisy: null,
      versions: { node: "20" },
      machine: { cores: "2" },
      seconds: 300,
    },
    findings: ["It is in time."],
    sections: [
      {
        heading: "Latency",
        method: "By pulses.",
        uncertainty: "One quantum.",
        figures: kinds.map(({ figure }) => figure),
        tables: [
          {
            caption: "Medians",
            columns: [{ name: "leg" }, { name: "median_ms", align: "right" }],
            rows: [
              ["setup A", 12.34567],
              ["RTC media", null],
            ],
          },
        ],
      },
    ],
    ...changes,
  };
}

describe("a figure", () => {
  it.each(kinds.map((one) => [one.figure.kind, one] as const))("of kind %s shows its data", (_, one) => {
    for (const width of [720, 360]) {
      const { root, labels } = drawn(one.figure, width);
      expect(root.getAttribute("aria-label")).toBe(text.alt);
      expect(root.getAttribute("viewBox")).toMatch(new RegExp(`^0 0 ${width} `));
      for (const [selector, count] of Object.entries(one.marks))
        expect([selector, root.querySelectorAll(selector).length]).toEqual([selector, count]);
      // A mark's title stands inside its label.
      for (const label of one.labels)
        expect(
          labels.some((shown) => shown.startsWith(label)),
          label,
        ).toBe(true);
      for (const path of root.querySelectorAll("path"))
        expect(path.getAttribute("d")).not.toMatch(/NaN|Infinity/);
    }
  });

  it.each(kinds.map(({ figure }) => [figure.kind, figure] as const))(
    "of kind %s without data is none",
    (_, figure) => {
      expect(figureSvg(emptied(figure))).toBeNull();
    },
  );

  it("of one single value, or of equal ones, is drawn", () => {
    for (const { figure } of kinds) {
      const one = structuredClone(figure);
      if (one.kind === "box") one.rows = [{ group: "", label: "one", values: [64] }];
      else if (one.kind === "waterfall") one.rows = [{ label: "one", stages: [stage("capture", 0)] }];
      else if (one.kind === "cdf" || one.kind === "density")
        one.series = [{ label: "one", values: [64, 64] }];
      else one.series = [{ label: "one", points: [{ x: 64, y: 64 }] }];
      expect(drawn(one).svg).not.toMatch(/NaN|Infinity/);
    }
  });
});

describe("a box", () => {
  it("spans the quartiles, its whiskers the extremes, in the axis' own scale", () => {
    const summary = boxSummary(values)!;
    expect(summary).toEqual({
      count: 8,
      never: 0,
      min: 1,
      q1: quantile(values, 0.25),
      median: 3.5,
      q3: quantile(values, 0.75),
      max: 9,
    });
    const { root } = drawn({
      kind: "box",
      ...text,
      xLabel: "ms",
      rows: [{ group: "", label: "one", values: [...values, Number.NaN] }],
    });
    const number = (element: Element | null, name: string) => Number(element?.getAttribute(name));
    const whisker = root.querySelector('[aria-label="rule"] line');
    const [x1, x2] = [number(whisker, "x1"), number(whisker, "x2")];
    const pxPerMs = (x2 - x1) / (9 - 1);
    const box = root.querySelector('[aria-label="bar"] rect');
    expect(number(box, "x")).toBeCloseTo(x1 + (summary.q1 - 1) * pxPerMs, 6);
    expect(number(box, "width")).toBeCloseTo((summary.q3 - summary.q1) * pxPerMs, 6);
  });

  it("says how many never came, and draws no end of them", () => {
    const never = Number.POSITIVE_INFINITY;
    const { root, labels } = drawn({
      kind: "box",
      ...text,
      xLabel: "ms",
      rows: [
        { group: "", label: "some", values: [1, 2, 3, 4, never] },
        { group: "", label: "most", values: [1, never, never] },
        { group: "", label: "all", values: [never] },
      ],
    });
    for (const note of [
      "median 3, n = 5, 1 never",
      "median never, n = 3, 2 never",
      "median never, n = 1, 1 never",
    ])
      expect(labels).toContain(note);
    expect(root.querySelectorAll('[aria-label="rule"] line')).toHaveLength(2);
    // The least of each, and a median.
    expect(root.querySelectorAll('[aria-label="tick"] line')).toHaveLength(3);
  });

  it("of nothing has no summary", () => {
    expect(boxSummary([])).toBeNull();
  });
});

it("a tail ends at the share of what never came", () => {
  const points = (values: number[]) => {
    const series = [{ label: "one", values }];
    const { root } = drawn({ kind: "cdf", ...text, xLabel: "ms", probability: "log", series });
    return root.querySelector('[aria-label="line"] path')!.getAttribute("d");
  };
  const never = Number.POSITIVE_INFINITY;
  // A tenth of all are above the last, whether they came later or never.
  expect(points([1, 2, 3, 4, 5, 6, 7, 8, 9, 9])).toContain(points([1, 2, 3, 4, 5, 6, 7, 8, 9, never]));
});

it("a waterfall's stages follow each other", () => {
  const stages = [stage("capture", 10), stage("network", 20), stage("playout", 30)];
  const { root } = drawn({ kind: "waterfall", ...text, rows: [{ label: "one", stages }] });
  const bars = [...root.querySelectorAll('[aria-label="bar"] rect')].map((bar) => ({
    x: Number(bar.getAttribute("x")),
    width: Number(bar.getAttribute("width")),
  }));
  const gapPx = 1;
  expect(bars[1]!.x).toBeCloseTo(bars[0]!.x + bars[0]!.width + gapPx, 6);
  expect(bars[2]!.x).toBeCloseTo(bars[1]!.x + bars[1]!.width + gapPx, 6);
  expect((bars[2]!.width + gapPx) / (bars[0]!.width + gapPx)).toBeCloseTo(3, 6);
});

it("a long series keeps its peaks and its gaps, and its picture stays small", () => {
  const long = Array.from({ length: 200_000 }, (_, x) => ({ x, y: x % 7 })) as {
    x: number;
    y: number | null;
  }[];
  const figure = (points: typeof long): Figure => ({
    kind: "time",
    ...text,
    xLabel: "s",
    yLabel: "ms",
    series: [{ label: "one", points }],
  });
  const path = (points: typeof long) =>
    drawn(figure(points)).root.querySelector('[aria-label="line"] path')!.getAttribute("d")!;
  const plain = path(long);
  expect(plain.length).toBeLessThan(50_000);
  expect(plain.split("M").length - 1).toBe(1);
  // Alone on its side of the axis, which reaches as far as it does.
  for (const [y, label] of [
    [500, "500"],
    [-500, "−500"],
  ] as const) {
    const { labels, root } = drawn(
      figure(long.map((point) => (point.x === 77_777 ? { ...point, y } : point))),
    );
    const d = root.querySelector('[aria-label="line"] path')!.getAttribute("d")!;
    const heightsPx = [...d.matchAll(/,([\d.]+)/g)].map((match) => Number(match[1]));
    const middlePx = (Math.min(...heightsPx) + Math.max(...heightsPx)) / 2;
    expect(labels).toContain(label);
    expect(heightsPx.filter((height) => height < middlePx === y > 0)).toHaveLength(1);
  }
  const gap = path(long.map((point) => (point.x === 77_777 ? { ...point, y: null } : point)));
  expect(gap.split("M").length - 1).toBe(2);
});

describe("the page", () => {
  const hostile = `</svg></style><script>alert("1")</script>'&amp;`;

  it("tells title, question, command, date, findings, versions and files, findings first", () => {
    const { document } = parseHTML(reportPage(report(), ["raw.csv", "javascript:alert(1)", "a b/c?.csv"]));
    expect(document.querySelector("h1")!.textContent).toBe("Mouth to ear");
    expect(document.querySelector("header")!.textContent).toMatch(
      /How late is it\?.*2026-11-21 07:00 UTC.*make bench/s,
    );
    expect([...document.querySelectorAll("h2")].map((heading) => heading.textContent)).toEqual([
      "Findings",
      "Latency",
      "The run",
    ]);
    expect(document.querySelectorAll("figure")).toHaveLength(kinds.length);
    expect(document.querySelectorAll("figure > h3 ~ figcaption")).toHaveLength(kinds.length);
    expect([...document.querySelectorAll("a")].map((link) => link.getAttribute("href"))).toEqual([
      "./raw.csv",
      "./javascript%3Aalert(1)",
      "./a%20b/c%3F.csv",
    ]);
  });

  it("warns when the run was quick or the machine noisy, and only then", () => {
    const banners = (changes: Partial<Report["run"]>) =>
      [
        ...parseHTML(reportPage(report({ run: { ...report().run, ...changes } }))).document.querySelectorAll(
          ".banner",
        ),
      ].map((banner) => banner.textContent);
    expect(banners({})).toEqual([]);
    expect(banners({ quick: true })).toEqual([expect.stringContaining("quick")]);
    expect(banners({ noisy: "no idle time" })).toEqual([expect.stringContaining("no idle time")]);
  });

  it("marks its tables up, and leaves unknown cells empty", () => {
    const { document } = parseHTML(reportPage(report()));
    expect(document.querySelector("table caption")!.textContent).toBe("Medians");
    expect([...document.querySelectorAll("thead th")].map((head) => head.getAttribute("scope"))).toEqual([
      "col",
      "col",
    ]);
    expect([...document.querySelectorAll("tbody th, tbody td")].map((cell) => cell.textContent)).toEqual([
      "setup A",
      "12.35",
      "RTC media",
      "",
    ]);
  });

  it("says where nothing was measured", () => {
    const [section] = report().sections;
    const figures = section!.figures.map(emptied);
    const { document } = parseHTML(reportPage(report({ sections: [{ ...section!, figures }] })));
    const said = [...document.querySelectorAll("figure")].map(
      (figure) => figure.querySelector(".nothing")?.textContent,
    );
    expect(said).toEqual(figures.map(() => "nothing was measured"));
  });

  it("takes no text for markup", () => {
    const figures = kinds.map(({ figure }): Figure => {
      const copy = structuredClone({ ...figure, title: hostile, caption: hostile, alt: hostile });
      if ("xLabel" in copy) copy.xLabel = hostile;
      if ("yLabel" in copy) copy.yLabel = hostile;
      if ("series" in copy) for (const one of copy.series) one.label = hostile;
      else for (const row of copy.rows) row.label = hostile;
      return copy;
    });
    const run = { ...report().run, command: hostile, commit: hostile, noisy: hostile };
    const table = { caption: hostile, columns: [{ name: hostile }], rows: [[hostile]] };
    const section = { heading: hostile, method: hostile, uncertainty: hostile, figures, tables: [table] };
    const page = reportPage(
      {
        title: hostile,
        topic: hostile,
        question: hostile,
        findings: [hostile],
        sections: [section],
        run: { ...run, versions: { [hostile]: hostile }, machine: { [hostile]: hostile } },
      },
      [hostile],
    );
    const { document } = parseHTML(page);
    expect(page).not.toMatch(/<script/i);
    expect(document.querySelectorAll("script")).toHaveLength(0);
    expect(document.querySelectorAll("style")).toHaveLength(1 + 2 * kinds.length);
    expect(document.querySelector("h1")!.textContent).toBe(hostile);
    expect(document.querySelector("svg")!.getAttribute("aria-label")).toBe(hostile);
    expect(
      indexPage([indexEntry(report({ title: hostile, topic: hostile, findings: [hostile] }), hostile)]),
    ).not.toMatch(/<script/i);
  });

  it("needs nothing from elsewhere", () => {
    const page = reportPage(report(), ["raw.csv"]) + indexPage([indexEntry(report(), "run/index.html")]);
    expect(page).not.toMatch(/(src|href)\s*=\s*["']?\s*(https?:|\/\/)/i);
    expect(page).not.toMatch(/<(script|link|img|iframe)|@import|url\(/i);
  });
});

describe("the index", () => {
  const entry = (title: string, topic: string, date: string) =>
    indexEntry(report({ title, topic, run: { ...report().run, date } }), `${title}/index.html`);

  it("lists runs newest first, whatever their offsets, the topic of the newest first", () => {
    const page = indexPage([
      entry("old", "ring", "2026-11-20T12:00:00Z"),
      entry("older", "latency", "2026-11-20T11:00:00+01:00"),
      entry("newest", "latency", "2026-11-21T00:00:00+01:00"),
      entry("oldest", "latency", "2026-11-20T10:30:00+02:00"),
    ]);
    const { document } = parseHTML(page);
    expect([...document.querySelectorAll("h2")].map((heading) => heading.textContent)).toEqual([
      "latency",
      "ring",
    ]);
    const titles = [...document.querySelectorAll("a")].map((link) => link.textContent);
    expect(titles).toEqual(["newest", "older", "oldest", "old"]);
    expect(document.querySelector("li p")!.textContent).toBe("It is in time.");
  });

  it("marks quick and noisy runs", () => {
    const marks = (changes: object) =>
      [
        ...parseHTML(indexPage([{ ...entry("a", "b", "2026-11-20"), ...changes }])).document.querySelectorAll(
          ".mark",
        ),
      ].map((mark) => mark.textContent);
    expect(marks({})).toEqual([]);
    expect(marks({ quick: true, noisy: "steal" })).toEqual(["quick", "noisy"]);
  });

  it("refuses a date that is none", () => {
    expect(() => indexPage([entry("a", "b", "yesterday")])).toThrow('not a date in ISO 8601: "yesterday"');
  });
});

describe("a table", () => {
  it("shows whole numbers whole, others with four digits, unknown and impossible ones empty", () => {
    const table = {
      caption: "",
      columns: [{ name: "n" }],
      rows: [[1_234_567], [12_345.6], [0.123456], [0], [null], [Number.NaN]],
    };
    expect(tableText(table).flat()).toEqual(["1234567", "12346", "0.1235", "0", "", ""]);
  });

  it("with a cell too few or too many is refused", () => {
    const table = { caption: "Medians", columns: [{ name: "a" }, { name: "b" }], rows: [[1, 2], [3]] };
    expect(() => tableText(table)).toThrow('table "Medians": row 2 has 1 cells for 2 columns');
  });
});

describe("CSV", () => {
  it("is RFC 4180: quotes where needed, unknown empty, numbers to their last digit", () => {
    const rows = [
      ["plain", 0.1 + 0.2, null],
      ['say "a", b', Number.NaN, "two\r\nlines"],
    ];
    expect(csv({ columns: ["a", "b,c", "d"], rows })).toBe(
      'a,"b,c",d\r\nplain,0.30000000000000004,\r\n"say ""a"", b",,"two\r\nlines"\r\n',
    );
  });

  it("refuses a row of another length", () => {
    expect(() => csv({ columns: ["a"], rows: [[1], [1, 2]] })).toThrow("CSV row 2 has 2 cells for 1 columns");
  });
});

it("the summary holds findings and tables, names figures, and takes no text for markup", () => {
  const summary = summaryMarkdown(report({ findings: ["It is *in* time | <b>now</b>\n# not a heading"] }));
  expect(summary).toContain("- It is \\*in\\* time \\| \\<b>now\\</b> # not a heading");
  expect(summary).toContain("| leg | median_ms |\n| --- | --: |\n| setup A | 12.35 |\n| RTC media |  |");
  expect(summary).toContain("- Figure: Title. Caption");
  expect(summary).not.toContain("quick");
  expect(summaryMarkdown(report({ run: { ...report().run, quick: true } }))).toContain("quick");
});
