/**
 * Waits for a quiet machine: on a virtual one, what its host does for others disturbs a run for seconds to hours.
 * What decides is only the watch over stalls and what the mouth-to-ear device says of itself, never what a step measured, and it is the same
 * for every setup: so no result is chosen.
 */

import { sleep } from "./processes.js";
import { type DeviceSummary, isSteady } from "./rig.js";
import { isDisturbed, type Stalls, type Standstill } from "./stalls.js";

const quietMs = 10_000;

/** What the instruments say of a take. */
export interface Conditions {
  load: Standstill;
  /** None, if it took no part. */
  device?: DeviceSummary | undefined;
}

/**
 * Whether a take counts rather than another of the same step: an undisturbed one always, else the one with fewer xruns and changes of
 * quantum, else the one of which less is missing, by the machine's standstills and the device's missed frames together.
 */
export function isLessDisturbed(one: Conditions, other: Conditions): boolean {
  const [first, second] = [one, other].map(disturbance) as [number[], number[]];
  const worst = first.findIndex((figure, index) => figure !== second[index]);
  return worst >= 0 && first[worst]! < second[worst]!;
}

/** What disturbed a take, the weightiest first. */
function disturbance(take: Conditions): number[] {
  const { load, device } = take;
  return [
    Number(isTakeDisturbed(take)),
    device ? device.xruns + device.quantum_changes : 0,
    load.missingShare + (device ? Math.abs(device.missed_frames) / device.frames : 0),
  ];
}

function isTakeDisturbed({ load, device }: Conditions): boolean {
  return isDisturbed(load) || (device !== undefined && !isSteady(device));
}

export class Patience {
  readonly #wholeMs: number;
  #leftMs = 0;
  #waitedMs = 0;
  #retaken = 0;
  #kept = 0;

  /** For a whole run; 0: waits for nothing, and takes every step as it comes. */
  constructor(
    private readonly stalls: Pick<Stalls, "between">,
    minutes: number,
    /** Told of each wait and each take anew, a line each. */
    private readonly say: (line: string) => void,
  ) {
    this.#wholeMs = minutes * 60_000;
  }

  /**
   * A step begins, up to whose end so much of the run is planned: so much of the patience there is by then, with what those before have left. First come, first
   * served, the setups that are taken first would have it all.
   */
  begin(plannedShare: number): void {
    this.#leftMs = plannedShare * this.#wholeMs - this.#waitedMs;
  }

  /** Ends when the last ten seconds were quiet, or with patience. */
  async untilQuiet(): Promise<void> {
    const began = Date.now();
    const isQuiet = () => {
      const now = Date.now();
      return !isDisturbed(this.stalls.between(now - quietMs, now));
    };
    if (this.#leftMs > 0 && !isQuiet()) this.say("  waiting for the machine to be quiet\n");
    while (Date.now() - began < this.#leftMs && !isQuiet()) await sleep(1000);
    this.#spend(Date.now() - began);
  }

  /** After a take that lasted so long: whether to take the step anew. */
  again(take: Conditions, tookMs: number): boolean {
    if (!isTakeDisturbed(take)) return false;
    if (this.#leftMs <= tookMs) {
      this.#kept++;
      return false;
    }
    const why = isDisturbed(take.load)
      ? `the machine stood still meanwhile, for up to ${take.load.longestMs.toFixed(0)} ms`
      : "the sound graph ran without the device meanwhile";
    this.say(`  ${why}: once more\n`);
    this.#retaken++;
    this.#spend(tookMs);
    return true;
  }

  /** What it comes to from now on, in words for a report. */
  watch(): () => string {
    const [waitedMs, retaken, kept] = [this.#waitedMs, this.#retaken, this.#kept];
    return () => {
      const minutes = ((this.#waitedMs - waitedMs) / 60_000).toFixed(0);
      return `waited ${minutes} min for it, ${this.#retaken - retaken} disturbed takes among that; ${this.#kept - kept} disturbed takes count for want of it`;
    };
  }

  #spend(ms: number): void {
    this.#leftMs -= ms;
    this.#waitedMs += ms;
  }
}
