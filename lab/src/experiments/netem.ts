import type { Experiment, Outcome, Plan } from "../experiment.js";
import {
  type DirectionStats,
  emulatorDoubts,
  missingForNetworks,
  type NetworkStats,
  netemBinary,
} from "../network.js";
import { run } from "../processes.js";
import type { Cell, Table } from "../report/model.js";

/** A row of `antiphon-netem calibrate`. */
interface Row {
  case: string;
  direction: string;
  quantity: string;
  /** Null: no formula, or nothing to observe. */
  model: number | null;
  measured: number | null;
  residual: number | null;
  allowed: number | null;
  ok: boolean;
  /** Whether the residual could be too large: late percentiles of a stream as short as this may come out anyhow. */
  canTell: boolean;
}

const drivers = ["virtual", "tun"] as const;

interface Calibration {
  driver: (typeof drivers)[number];
  rows: Row[];
  /** By case; of real packets only. */
  stats: Record<string, NetworkStats>;
}

export const netem: Experiment = {
  name: "netem",
  title: "Calibration of the network emulator",
  question: "Do emulated networks delay, lose, reorder and limit as their model says?",
  programs: ["ip"],
  missing: missingForNetworks,
  plan(options): Plan<Calibration> {
    const packets = options.quick ? 5_000 : 100_000;
    const cases = options.quick ? ["--profile", "wifi"] : [];
    const steps = drivers.map((driver) => ({
      label: `${timeOf(driver)} time, ${packets} packets a case`,
      seconds: driver === "virtual" ? 20 : options.quick ? 6 : 500,
      run: async () => {
        const text = await run(
          [netemBinary, "calibrate", "--driver", driver, "--packets", String(packets), ...cases],
          process.env,
          // Found wanting: the rows tell in what.
          [0, 1],
        );
        const { rows, stats } = JSON.parse(text) as Omit<Calibration, "driver">;
        const bad = rows.filter(({ ok }) => !ok).length;
        return {
          measured: { driver, rows, stats },
          words: bad === 0 ? `none of ${rows.length} figures off` : `${bad} of ${rows.length} figures off`,
        };
      },
    }));
    return { steps, conclude: (measured) => conclude(measured, packets) };
  },
};

function conclude(measured: Calibration[], packets: number): Outcome {
  const all = measured.flatMap(({ driver, rows }) => rows.map((row) => ({ driver, ...row })));
  const off = all.filter(({ ok }) => !ok);
  const compared = all.filter(({ residual, canTell, ok }) => residual !== null && (canTell || !ok));
  const untold = all.filter(({ residual, canTell, ok }) => residual !== null && !canTell && ok).length;
  const times = measured.map(({ driver }) => timeOf(driver)).join(" and ");
  const result =
    off.length === 0
      ? `all ${compared.length} figures of the emulator are what its model says, within what chance and the driver's own error allow`
      : `${off.length} of ${compared.length} figures of the emulator are off: ${off.map((row) => `${row.case} ${row.quantity} (${row.driver})`).join(", ")}`;
  const ways = measured.flatMap(({ stats }) =>
    Object.entries(stats).flatMap(([name, { leftToRight, rightToLeft }]) => [
      { case: name, direction: "leftToRight", ...leftToRight },
      { case: name, direction: "rightToLeft", ...rightToLeft },
    ]),
  );
  const missing = drivers.filter((one) => !measured.some(({ driver }) => driver === one)).map(timeOf);
  return {
    findings: [
      ...(all.length > 0 ? [`In ${times} time, ${result}.`] : []),
      ...missing.map((time) => `Not measured in ${time} time.`),
      ...(untold > 0 ? [`Of ${untold} late percentiles a stream this short cannot tell.`] : []),
    ],
    sections: measured.map(({ driver, rows }) => ({
      heading: driver === "tun" ? "Real time, between network namespaces" : "Virtual time",
      method:
        driver === "tun"
          ? `${packets} UDP packets each way for each case, through the TUN devices of two namespaces, with the time of sending inside.`
          : `${packets} packets each way for each case, through the event queue that simulations use.`,
      uncertainty:
        "A residual is measured less model. Allowed is what chance makes at five standard errors, for delays by formula and for the rest estimated from 50 parts of the same stream in virtual time, plus the driver's own error. Cannot tell: jitter is held for so long that few draws decide, and chance alone may put the percentile anywhere above. Empty: there is no formula, or nothing was observed.",
      figures: [],
      tables: [
        {
          caption: "Residuals",
          columns: [
            { name: "network" },
            { name: "direction" },
            { name: "quantity" },
            { name: "model", align: "right" as const },
            { name: "measured", align: "right" as const },
            { name: "residual", align: "right" as const },
            { name: "allowed", align: "right" as const },
            { name: "ok" },
          ],
          rows: rows.map((row) => [
            row.case,
            row.direction,
            row.quantity,
            row.model,
            row.measured,
            row.residual,
            row.allowed,
            verdict(row),
          ]),
        },
        ...(driver === "tun" ? [latenessTable(ways)] : []),
      ],
    })),
    tables: {
      "residuals.csv": {
        columns: [
          "driver",
          "case",
          "direction",
          "quantity",
          "model",
          "measured",
          "residual",
          "allowed",
          "ok",
        ],
        rows: all.map((row) => [
          row.driver,
          row.case,
          row.direction,
          row.quantity,
          row.model,
          row.measured,
          row.residual,
          row.allowed,
          verdict(row),
        ]),
      },
      "lateness.csv": {
        columns: [
          "case",
          "direction",
          "lateness_p50_us",
          "lateness_p99_us",
          "lateness_max_us",
          "refused_packets",
        ],
        rows: ways.map(latenessCells),
      },
    },
    versions: {},
    doubts: [
      ...(off.length > 0 ? ["the network emulator is out of calibration"] : []),
      ...emulatorDoubts(ways),
      ...missing.map((time) => `the network emulator was not measured in ${time} time`),
    ],
  };
}

type Way = DirectionStats & { case: string; direction: string };

function latenessTable(ways: readonly Way[]): Table {
  return {
    caption:
      "The emulator's own lateness, µs: from when a packet was due to when it was delivered. How late it was read comes on top",
    columns: [
      { name: "network" },
      { name: "direction" },
      { name: "50 %", align: "right" },
      { name: "99 %", align: "right" },
      { name: "at most", align: "right" },
      { name: "refused packets", align: "right" },
    ],
    rows: ways.map(latenessCells),
  };
}

function latenessCells(way: Way): Cell[] {
  const { direction, latenessP50Us, latenessP99Us, latenessMaxUs, refusedPackets } = way;
  return [way.case, direction, latenessP50Us, latenessP99Us, latenessMaxUs, refusedPackets];
}

function timeOf(driver: Calibration["driver"]): string {
  return driver === "tun" ? "real" : "virtual";
}

function verdict({ ok, canTell }: Row): string {
  if (!ok) return "no";
  return canTell ? "yes" : "cannot tell";
}
