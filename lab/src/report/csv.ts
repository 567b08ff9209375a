import type { Cell } from "./model.js";

/** Raw data, one observation a row. Units stand in the names of the columns. */
export interface CsvTable {
  columns: readonly string[];
  rows: Iterable<readonly Cell[]>;
}

/** A CSV file after RFC 4180, with a header; unknown is an empty cell. Numbers keep every digit. */
export function csv({ columns, rows }: CsvTable): string {
  const lines = [columns.map(field).join(",")];
  for (const row of rows) {
    if (row.length !== columns.length)
      throw new Error(`CSV row ${lines.length} has ${row.length} cells for ${columns.length} columns`);
    lines.push(row.map(field).join(","));
  }
  return lines.map((line) => `${line}\r\n`).join("");
}

function field(cell: Cell): string {
  if (cell === null || (typeof cell === "number" && !Number.isFinite(cell))) return "";
  const text = String(cell);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
