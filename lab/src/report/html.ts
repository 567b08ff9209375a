/** Static pages: a report, and the index of all reports. One file each, without scripts, readable from disk. */

import { descending, group, sort } from "d3-array";
import { escaped, figureSvg, palette } from "./figures.js";
import { dateText, type Figure, instant, type Report, type Section, type Table, tableText } from "./model.js";

/** The report as a page. `files`: paths of the raw files, relative to it. */
export function reportPage(report: Report, files: readonly string[] = []): string {
  const { title, topic, question, run, findings, sections } = report;
  return page(
    title,
    `<header>
<p class="topic">${escaped(topic)}</p>
<h1>${escaped(title)}</h1>
<p class="question">${escaped(question)}</p>
<p class="run"><time datetime="${escaped(run.date)}">${dateText(run.date)}</time> · commit <code>${escaped(run.commit)}</code> · took ${durationText(run.seconds)}</p>
<p class="run"><code>${escaped(run.command)}</code></p>
${run.quick ? banner("A quick run:", "too few observations to publish.") : ""}
${run.noisy === null ? "" : banner("The machine was too noisy: take ratios with care and times not at all.", run.noisy)}
</header>
<main>
<section class="findings">
<h2>Findings</h2>
${list(findings.map(escaped))}
</section>
${sections.map(sectionHtml).join("\n")}
</main>
<footer>
<h2>The run</h2>
${definitions("Versions", run.versions)}
${definitions("Machine", run.machine)}
${files.length > 0 ? `<h3>Raw data</h3>\n${list(files.map((file) => `<a href="${relative(file)}">${escaped(file)}</a>`))}` : ""}
</footer>`,
  );
}

/** One run in the index. */
export interface IndexEntry {
  /** Its page, relative to the index. */
  path: string;
  title: string;
  topic: string;
  /** ISO 8601. */
  date: string;
  quick: boolean;
  noisy: string | null;
  /** The report's first finding; null when there is none. */
  finding: string | null;
}

/** What the index says of a report whose page is at `path`. */
export function indexEntry({ title, topic, run, findings }: Report, path: string): IndexEntry {
  const { date, quick, noisy } = run;
  return { path, title, topic, date, quick, noisy, finding: findings[0] ?? null };
}

/** All runs by topic, newest first; the topic with the newest run comes first. */
export function indexPage(entries: readonly IndexEntry[]): string {
  const newest = sort(entries, (a, b) => descending(instant(a.date), instant(b.date)));
  const topics = [...group(newest, ({ topic }) => topic)];
  return page(
    "Measured runs",
    `<header><h1>Measured runs</h1></header>
<main>
${topics.map(([topic, runs]) => `<section>\n<h2>${escaped(topic)}</h2>\n${list(runs.map(entryHtml))}\n</section>`).join("\n")}
${entries.length === 0 ? nothing : ""}
</main>`,
  );
}

const nothing = `<p class="nothing">nothing was measured</p>`;

function entryHtml({ path, title, date, quick, noisy, finding }: IndexEntry): string {
  const marks = [quick && "quick", noisy !== null && "noisy"].filter((mark) => mark !== false);
  return [
    `<a href="${relative(path)}">${escaped(title)}</a>`,
    `<time datetime="${escaped(date)}">${dateText(date)}</time>`,
    ...marks.map((mark) => `<strong class="mark">${mark}</strong>`),
    finding === null ? "" : `<p>${escaped(finding)}</p>`,
  ].join(" ");
}

function sectionHtml({ heading, method, uncertainty, figures, tables }: Section): string {
  return `<section>
<h2>${escaped(heading)}</h2>
<p>${escaped(method)}</p>
<p><strong>Uncertainty.</strong> ${escaped(uncertainty)}</p>
${figures.map(figureHtml).join("\n")}
${tables.map(tableHtml).join("\n")}
</section>`;
}

/** Drawn twice, for a screen and for a phone: scaled down, the text of the one could not be read on the other. */
function figureHtml(figure: Figure): string {
  const [wide, narrow] = [720, 360].map((width) => figureSvg(figure, width));
  const drawing = wide ? `<div class="wide">${wide}</div>\n<div class="narrow">${narrow}</div>` : nothing;
  return `<figure>
<h3>${escaped(figure.title)}</h3>
${drawing}
<figcaption>${escaped(figure.caption)}</figcaption>
</figure>`;
}

function tableHtml(table: Table): string {
  const { caption, columns } = table;
  const rows = tableText(table);
  const align = (n: number) => (columns[n]!.align === "right" ? ' class="right"' : "");
  const head = columns.map(({ name }, n) => `<th scope="col"${align(n)}>${escaped(name)}</th>`).join("");
  const body = rows.map((row) => {
    const cells = row.map((cell, n) =>
      n === 0 ? `<th scope="row"${align(n)}>${escaped(cell)}</th>` : `<td${align(n)}>${escaped(cell)}</td>`,
    );
    return `<tr>${cells.join("")}</tr>`;
  });
  // It scrolls by itself where it is wider than the screen, by keyboard too.
  return `<div class="table" role="region" tabindex="0" aria-label="${escaped(caption)}"><table>
<caption>${escaped(caption)}</caption>
<thead><tr>${head}</tr></thead>
<tbody>
${body.join("\n")}
</tbody>
</table>${rows.length === 0 ? nothing : ""}</div>`;
}

function banner(claim: string, why: string): string {
  return `<p class="banner" role="note"><strong>${escaped(claim)}</strong> ${escaped(why)}</p>`;
}

function list(items: string[]): string {
  return items.length === 0 ? nothing : `<ul>\n${items.map((item) => `<li>${item}</li>`).join("\n")}\n</ul>`;
}

function definitions(heading: string, entries: Record<string, string>): string {
  const rows = Object.entries(entries).map(
    ([name, value]) => `<div><dt>${escaped(name)}</dt><dd>${escaped(value)}</dd></div>`,
  );
  return rows.length === 0 ? "" : `<h3>${heading}</h3>\n<dl>\n${rows.join("\n")}\n</dl>`;
}

/** A link that stays among the files around the page, whatever the path says. */
function relative(path: string): string {
  return escaped(`./${path.split("/").map(encodeURIComponent).join("/")}`);
}

function durationText(seconds: number): string {
  return seconds < 120 ? `${Math.round(seconds)} s` : `${Math.round(seconds / 60)} min`;
}

function page(title: string, body: string): string {
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escaped(title)}</title>
<style>${css}</style>
</head>
<body>
${body}
</body>
</html>
`;
}

function seriesColors(ground: "light" | "dark"): string {
  return palette.map((color, n) => `--series-${n + 1}: ${color[ground]};`).join(" ");
}

const css = `
:root {
  color-scheme: light dark;
  --background: #ffffff; --text: #1b1f24; --muted: #59626c; --line: #d5dae0; --link: #0b5cad; --warning: #fff1cc;
  ${seriesColors("light")}
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --background: #14181c; --text: #e4e8ec; --muted: #9ba6b1; --line: #363e47; --link: #7cc0ff; --warning: #4a3500;
    ${seriesColors("dark")}
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 46rem; overflow-wrap: break-word;
  background: var(--background); color: var(--text); font: 16px/1.5 system-ui, sans-serif;
}
a { color: var(--link); }
h1 { margin: 0; font-size: 1.75rem; line-height: 1.2; }
h2 { margin: 2.5rem 0 0.5rem; padding-top: 1rem; border-top: 1px solid var(--line); font-size: 1.3rem; }
h3 { margin: 0 0 0.5rem; font-size: 1rem; }
.topic, .run, time, figcaption, caption, .nothing, dt { color: var(--muted); }
.topic { margin: 0; }
.question { font-size: 1.1rem; }
.run { margin: 0.25rem 0; font-size: 0.9rem; }
.banner { padding: 0.75rem 1rem; background: var(--warning); border-left: 0.3rem solid #e69f00; }
.mark { padding: 0 0.4rem; background: var(--warning); border-radius: 0.25rem; font-size: 0.8rem; }
.findings li { margin: 0.4rem 0; font-size: 1.1rem; }
li p { margin: 0 0 0.75rem; }
figure { margin: 2rem 0; break-inside: avoid; }
figcaption { margin-top: 0.5rem; font-size: 0.9rem; }
.narrow { display: none; }
@media screen and (max-width: 36rem) {
  .wide { display: none; }
  .narrow { display: block; }
}
.nothing { font-style: italic; }
.table { margin: 2rem 0; overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: 0.4rem; }
th, td { padding: 0.3rem 0.9rem 0.3rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
.right { text-align: right; }
tbody th { font-weight: normal; }
footer h3 { margin-top: 1.25rem; }
dl, footer { font-size: 0.9rem; }
dl { margin: 0; }
dl div { display: flex; gap: 0.75rem; }
dt { flex: 0 0 9rem; }
dd { margin: 0; min-width: 0; }
@media print {
  body { max-width: none; padding: 0; font-size: 11pt; }
  * { print-color-adjust: exact; }
  h2, h3, caption { break-after: avoid; }
  tr { break-inside: avoid; }
  .table { overflow: visible; }
}
`;
