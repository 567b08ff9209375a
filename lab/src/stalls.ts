/** When the machine stood still: what no program on it could help. */

import { spawnSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { cpus } from "node:os";
import path from "node:path";
import { makeFolder, removeFolder, Service } from "./processes.js";
import { root } from "./rig.js";

export interface Standstill {
  /** The longest time for which a processor stood still, whatever was to run on it. */
  longestMs: number;
  /** Of all processors' time, what was missing so. */
  missingShare: number;
}

/** Whether what was measured meanwhile is in doubt. */
export function isDisturbed({ longestMs, missingShare }: Standstill): boolean {
  return longestMs > 10 || missingShare > 0.01;
}

export class Stalls {
  private constructor(
    private readonly service: Service,
    private readonly folder: string,
  ) {}

  /**
   * Watches from now on. Above all else on the machine if it may; else our own work counts as standing still too.
   * A standstill seems up to a nap shorter than it was; short naps take some of the processors' time.
   */
  static start({ napMs = 2 } = {}): Stalls {
    const binary = path.join(root, "target/release/antiphon-stalls");
    if (!existsSync(binary)) throw new Error("target/release/antiphon-stalls is not built: make lab-build");
    const folder = makeFolder("stalls");
    const above = ["chrt", "--fifo", "99"];
    const isAllowed = spawnSync(above[0]!, [...above.slice(1), "true"]).status === 0;
    return new Stalls(
      Service.start(
        [...(isAllowed ? above : []), binary, String(napMs)],
        process.env,
        path.join(folder, "log"),
      ),
      folder,
    );
  }

  /** Between two moments, ms since the epoch. */
  between(fromMs: number, toMs: number): Standstill {
    if (this.service.ended) throw new Error(`the watch over stalls has ended: ${this.service.logTail()}`);
    const lateMs = readFileSync(path.join(this.folder, "log"), "utf8")
      .trimEnd()
      .split("\n")
      .map((line) => line.split(" ").map(Number))
      .filter(([atMs, late]) => late! > 0 && atMs! >= fromMs && atMs! - late! <= toMs)
      .map(([, late]) => late!);
    return {
      longestMs: lateMs.reduce((most, ms) => Math.max(most, ms), 0),
      missingShare: lateMs.reduce((sum, ms) => sum + ms, 0) / ((toMs - fromMs) * cpus().length),
    };
  }

  async stop(): Promise<void> {
    await this.service.stop();
    removeFolder(this.folder);
  }
}
