import { dateText, type Report, type Table, tableText } from "./model.js";

/** The report as summary.md: findings and tables; figures are named, the page beside it shows them. */
export function summaryMarkdown(report: Report): string {
  const { title, question, run, findings, sections } = report;
  const warnings = [
    run.quick && "**A quick run: too few observations to publish.**",
    run.noisy !== null &&
      `**The machine was too noisy: take ratios with care and times not at all.** ${text(run.noisy)}`,
  ];
  const parts = [
    `# ${text(title)}`,
    text(question),
    `${code(run.command)} · ${dateText(run.date)} · commit ${text(run.commit)} · ${Math.round(run.seconds)} s`,
    ...warnings,
    "## Findings",
    list(findings.map(text)),
    ...sections.flatMap(({ heading, method, uncertainty, tables, figures }) => [
      `## ${text(heading)}`,
      text(method),
      `Uncertainty: ${text(uncertainty)}`,
      ...tables.map(markdownTable),
      list(figures.map((figure) => `Figure: ${text(figure.title)}. ${text(figure.caption)}`)),
    ]),
    "## Versions and machine",
    list(
      [...Object.entries(run.versions), ...Object.entries(run.machine)].map(
        ([name, value]) => `${text(name)}: ${text(value)}`,
      ),
    ),
  ];
  return `${parts.filter(Boolean).join("\n\n")}\n`;
}

function markdownTable(table: Table): string {
  const line = (cells: string[]) => `| ${cells.join(" | ")} |`;
  return [
    `${text(table.caption)}:`,
    "",
    line(table.columns.map(({ name }) => text(name))),
    line(table.columns.map(({ align }) => (align === "right" ? "--:" : "---"))),
    ...tableText(table).map((row) => line(row.map(text))),
  ].join("\n");
}

function list(items: string[]): string {
  return items.map((item) => `- ${item}`).join("\n");
}

/** On one line, with nothing that Markdown would take for a mark of its own. */
function text(plain: string): string {
  return plain
    .replaceAll(/\s+/g, " ")
    .replaceAll(/[\\`*[\]<|]|(?<!\w)_|_(?!\w)/g, "\\$&")
    .trim();
}

function code(plain: string): string {
  const fence = "`".repeat(1 + Math.max(0, ...(plain.match(/`+/g) ?? []).map((run) => run.length)));
  const space = plain.includes("`") ? " " : "";
  return `${fence}${space}${plain.replaceAll(/\s+/g, " ")}${space}${fence}`;
}
