/** When threads that carry sound were kept from the processors by others: what a program that shares the machine can hardly help. */

import { readFileSync } from "node:fs";
import { threadsNamed } from "./processes.js";

/** Those that a packet passes in Chromium and in Firefox, as far as they have no rank before others. As the browsers call them. */
const carriers = ["DedicatedWorker", "WebRTC_W_and_N", "DOM Worker", "GraphRunner", "Socket Thread"];
const lookMs = 50;
/** Looks between two searches for new threads. */
const searchInterval = 40;
/** A share is that of so many looks. */
const windowLooks = 5;

/** Sound that was held up for longer than this share of a quarter of a second says nothing of who carries it. */
export const mostQueuedShare = 0.6;

interface Look {
  atMs: number;
  /** Since the thread began. */
  waitedMs: number;
}

export class Queues {
  readonly #threads = new Map<string, Look[]>();
  readonly #shares: { atMs: number; share: number }[] = [];
  #looks = 0;
  readonly #timer = setInterval(() => this.#look(), lookMs);

  /** The most of a quarter of a second that one of the threads wanted to run and did not, between two moments in ms since the epoch; null: there was none to watch. */
  between(fromMs: number, toMs: number): number | null {
    const shares = this.#shares.filter(({ atMs }) => atMs >= fromMs && atMs <= toMs);
    return shares.length > 0 ? shares.reduce((most, { share }) => Math.max(most, share), 0) : null;
  }

  stop(): void {
    clearInterval(this.#timer);
  }

  #look(): void {
    if (this.#looks++ % searchInterval === 0)
      for (const thread of threadsNamed(carriers))
        if (!this.#threads.has(thread)) this.#threads.set(thread, []);
    const atMs = Date.now();
    let share: number | null = null;
    for (const [thread, looks] of this.#threads) {
      const waitedMs = waitOf(thread);
      if (waitedMs === null) {
        this.#threads.delete(thread);
        continue;
      }
      looks.push({ atMs, waitedMs });
      if (looks.length <= windowLooks) continue;
      const before = looks.shift()!;
      share = Math.max(share ?? 0, (waitedMs - before.waitedMs) / (atMs - before.atMs));
    }
    if (share !== null) this.#shares.push({ atMs, share });
  }
}

/** Time in the queue for a processor (Documentation/scheduler/sched-stats.rst); null if the thread has ended. */
function waitOf(thread: string): number | null {
  try {
    return Number(readFileSync(`${thread}/schedstat`, "utf8").split(" ")[1]) / 1e6;
  } catch {
    return null;
  }
}
