/** What an experiment is: steps that measure, then a report of what they measured. The runner (lab.ts) does all else. */

import type { Product } from "./antiphon.js";
import type { EmulatedNetwork, NetworkOptions } from "./network.js";
import type { PageServer } from "./pages.js";
import type { CsvTable } from "./report/csv.js";
import type { Section } from "./report/model.js";
import type { DeviceSummary, Rig } from "./rig.js";

/** What the steps of all experiments share. */
export interface Lab {
  rig: Rig;
  pages: PageServer;
  product: Product;
  /** Starts an emulated network, ended with the step that asked for it at the latest. */
  network(options: NetworkOptions): Promise<EmulatedNetwork>;
}

export interface Options {
  /** A smoke run: everything once, as short as it goes. Its figures mean nothing. */
  quick: boolean;
  /** Repetitions, interleaved; undefined: the experiment's own choice. */
  sessions: number | undefined;
  /** Names of launch configurations (configs.ts); undefined: the experiment's own choice. */
  configs: readonly string[] | undefined;
  /** Names of setups; undefined: the experiment's own choice. */
  setups: readonly string[] | undefined;
  /** How long each measurement lasts; undefined: the experiment's own choice. */
  seconds: number | undefined;
}

export interface Step<T = unknown> {
  label: string;
  /** About how long it takes: for the estimate of the time left. */
  seconds: number;
  /**
   * May be called again, where the machine disturbed it: what it measures is only in what it returns. *Errors* if it could not be set up or its instruments failed, and is then repeated: a bad
   * outcome, such as a page that dies, is a figure, for else it would be the outcome that decides which take counts.
   */
  run(lab: Lab): Promise<Take<T>>;
}

export interface Take<T> {
  measured: T;
  /** A few, for the progress line. */
  words: string;
  /** What the mouth-to-ear device says of itself, if it took part. */
  device?: DeviceSummary;
  /** What broke after all was set up, one clause each: the figures are as bad as that made them, and the report names it. */
  troubles?: readonly string[];
}

export interface Outcome {
  /** Plain sentences, the answer first. */
  findings: string[];
  sections: Section[];
  /** Raw data, by name of the file. */
  tables: Record<string, CsvTable>;
  /** Versions of what was measured, by name. */
  versions: Record<string, string>;
  /** What the instruments say against the run, one clause each; empty if all is well. */
  doubts: string[];
}

export interface Plan<T = unknown> {
  steps: Step<T>[];
  /** Called once, after the steps, with what they measured, in their order; of those that failed there is nothing. */
  conclude(measured: T[]): Outcome | Promise<Outcome>;
}

export interface Experiment {
  name: string;
  title: string;
  /** One sentence: what is measured, and why. */
  question: string;
  /** Programs beyond those of the rig and the browsers. */
  programs: readonly string[];
  /** Without a privilege it needs: what to do; null if all is there. */
  missing?(): string | null;
  plan(options: Options): Plan;
}
